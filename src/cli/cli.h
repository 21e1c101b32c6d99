/* SPDX-License-Identifier: MIT */
/*
 * The commands of the program `hugepool`, one function each. argv[0] is "hugepool COMMAND" for messages; options are
 * the command's own, and getopt has been reset. Results go to standard output, messages to standard error.
 */
#ifndef HP_CLI_CLI_H
#define HP_CLI_CLI_H

/* Exit codes; a command that has more of its own says so in its --help. */
enum {
	HP_CLI_OK = 0,
	HP_CLI_FAILED = 1, /* the machine, not the caller: no memory, output could not be written */
	HP_CLI_USAGE = 2,
};

int hp_cli_info(int argc, char **argv);
int hp_cli_bench(int argc, char **argv);
int hp_cli_lockstat(int argc, char **argv);

#endif
