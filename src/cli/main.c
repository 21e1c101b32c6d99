/* SPDX-License-Identifier: MIT */
#include "cli/cli.h"

#include "hugepool.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

static const struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
} commands[] = {
	{"info", hp_cli_info, "what this machine offers for huge pages, and what stands in the way"},
	{"bench", hp_cli_bench, "every workload on the kernel and on hugepool, side by side"},
	{"lockstat", hp_cli_lockstat, "where a running program's threads wait for the locks of its pools"},
};

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

static void print_help(FILE *out)
{
	fputs("Usage: hugepool COMMAND [OPTION]...\n"
	      "\n"
	      "Huge pages that are ready when a program asks for them.\n"
	      "\n"
	      "Commands:\n",
	      out);
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
	fputs("\n"
	      "Options:\n"
	      "  -h, --help     this text; hugepool COMMAND --help for a command's own\n"
	      "  -V, --version  the version\n"
	      "\n"
	      "Examples:\n"
	      "  hugepool info                 look at this machine\n"
	      "  hugepool info --json          the same for programs\n"
	      "  hugepool bench --help         which workloads there are\n"
	      "  hugepool lockstat 1234        what the locks of process 1234's pools did\n"
	      "\n"
	      "Exit code: 0 done, 1 failed, 2 wrong usage.\n",
	      out);
}

/* What was printed may still fail to arrive, on a full disk: a program that reads it must learn that. */
static int finish(int code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	fprintf(stderr, "hugepool: standard output: %s\n", strerror(errno));
	return code == HP_CLI_OK ? HP_CLI_FAILED : code;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	const struct command *command;
	char name[64];
	int option;

	while ((option = getopt_long(argc, argv, "+hV", options, NULL)) != -1) {
		switch (option) {
		case 'h':
			print_help(stdout);
			return finish(HP_CLI_OK);
		case 'V':
			puts("hugepool " HP_VERSION_STRING);
			return finish(HP_CLI_OK);
		default:
			fputs("See \"hugepool --help\".\n", stderr);
			return HP_CLI_USAGE;
		}
	}
	if (optind >= argc) {
		print_help(stderr);
		return HP_CLI_USAGE;
	}
	command = find_command(argv[optind]);
	if (!command) {
		fprintf(stderr, "hugepool: there is no command \"%s\".\n", argv[optind]);
		fputs("See \"hugepool --help\" for those there are.\n", stderr);
		return HP_CLI_USAGE;
	}
	argc -= optind;
	argv += optind;
	snprintf(name, sizeof(name), "hugepool %s", command->name);
	argv[0] = name;
	/* 0, not 1: glibc then also forgets the order that was asked for with "+". */
	optind = 0;
	return finish(command->run(argc, argv));
}
