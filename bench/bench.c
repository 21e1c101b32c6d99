/* SPDX-License-Identifier: MIT */
/* `hugepool bench`: finds the workload, and reads command lines for all of them. */
#include "bench.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
	const char *summary;
} workloads[] = {
	{"parallel-fault", bench_parallel_fault, bench_parallel_fault_help,
         "threads share a region and touch it first"},
	{"faults", bench_faults, bench_faults_help, "processes map a filled file, touch every page, unmap"},
	{"forks", bench_forks, bench_forks_help, "processes map a filled file, touch a few pages, fork, unmap"},
	{"fork-cow", bench_fork_cow, bench_fork_cow_help, "forks of a process with private memory, and first writes"},
	{"combined", bench_combined, bench_combined_help, "faults and forks on the same file at the same time"},
	{"fallocate", bench_fallocate, bench_fallocate_help,
         "making every page of a file present, and where the time goes"},
	{"collapse", bench_collapse, bench_collapse_help, "making base pages a huge page"},
	{"tlb", bench_tlb, bench_tlb_help, "what huge pages are worth: random reads before and after collapse"},
	{"zero", bench_zero, bench_zero_help, "clearing memory with one thread"},
	{"locks", bench_locks, bench_locks_help, "the library's locks by themselves, beside those of pthreads"},
	{"statistics", bench_statistics, bench_statistics_help, "what the statistics of locks cost in real work"},
	{"reference", bench_reference, bench_reference_help,
         "published tables, with figures measured here beside them"},
};

#define WORKLOADS (sizeof(workloads) / sizeof(workloads[0]))

static void print_help(FILE *out)
{
	fputs("Usage: hugepool bench WORKLOAD [OPTIONS]\n\n"
	      "Runs one workload on the kernel and on hugepool, side by side and alternating, and prints medians,\n"
	      "spreads and ratios. A ratio above 1 always means that hugepool is better; only the workloads locks and\n"
	      "statistics have ratios of their own, ours to theirs, with the bars that they are held "
	      "to.\n\nWorkloads:\n",
	      out);
	for (unsigned i = 0; i < WORKLOADS; i++)
		fprintf(out, "  %-16s %s\n", workloads[i].name, workloads[i].summary);
	fputs("\nEngines:\n"
	      "  kernel     mmap(NULL) of the kernel's huge pages, and touch: what most programs do\n"
	      "  tuned      an address aligned to 1 GiB, MAP_POPULATE, each thread its own part\n"
	      "  prefilled  a memfd filled earlier, aligned, a second populated mapping of it alive elsewhere\n"
	      "  hugepool   the library's public interface\n"
	      "\nOptions of all workloads:\n"
	      "  --json       JSON alone on standard output\n"
	      "  --rounds N   rounds that count, after one to warm up (default 5)\n"
	      "  --help       about one workload: hugepool bench faults --help\n"
	      "\nEnough huge pages are set aside in /proc/sys/vm/nr_hugepages where this user may do so, and put back\n"
	      "at the end. Rounds whose pages turn out not to be huge, or not to be zero, are discarded and counted.\n"
	      "\nExit status: 0 done, 1 failed, 2 wrong command line, 3 no round of hugepool was left.\n"
	      "\nExamples:\n"
	      "  hugepool bench parallel-fault 2 2097152 2048         2 threads, 2 GiB, every 2 MiB\n"
	      "  hugepool bench parallel-fault 1 1048576 2048 --lazy  pages mapped at their first touch\n"
	      "  hugepool bench faults --instances 24 --size 1G --seconds 1 --json\n"
	      "  hugepool bench combined --lazy                       forks against faults, by schemes of the file "
	      "lock\n"
	      "  hugepool bench fork-cow --size 256M                  copy on write\n"
	      "  hugepool bench fallocate --sim --size 1T             what indexing a terabyte costs\n"
	      "  hugepool bench collapse --pairs 100\n"
	      "  hugepool bench tlb --sizes 1G\n"
	      "  hugepool bench locks --contended --processes 24\n"
	      "  hugepool bench statistics --pairs 100\n"
	      "  hugepool bench reference --quick\n",
	      out);
}

int hp_cli_bench(int argc, char **argv)
{
	if (argc < 2) {
		print_help(stderr);
		return BENCH_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		print_help(stdout);
		return BENCH_DONE;
	}
	for (unsigned i = 0; i < WORKLOADS; i++) {
		if (strcmp(argv[1], workloads[i].name))
			continue;
		for (int a = 2; a < argc; a++) {
			if (!strcmp(argv[a], "--help") || !strcmp(argv[a], "-h")) {
				fputs(workloads[i].help, stdout);
				return BENCH_DONE;
			}
		}
		return workloads[i].run(argc - 1, argv + 1);
	}
	return bench_usage("", "there is no workload '%s'", argv[1]);
}

int bench_usage(const char *command, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "hugepool bench%s%s: ", *command ? " " : "", command);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\nTry: hugepool bench%s%s --help\n", *command ? " " : "", command);
	return BENCH_USAGE;
}

bool bench_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *number)
{
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*number = strtoull(text, &end, 10);
	return !errno && !*end && *number >= min && *number <= max;
}

bool bench_parse_size(const char *text, uint64_t *bytes)
{
	static const char units[] = "KMGT";
	char *end;
	uint64_t n;
	unsigned shift = 0;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || !n)
		return false;
	if (*end) {
		char letter = *end & (char)~0x20;
		const char *unit = letter ? strchr(units, letter) : NULL;

		if (!unit)
			return false;
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
		if (*end == 'i')
			end++;
		if (*end == 'B')
			end++;
	}
	if (*end || n > UINT64_MAX >> 8 >> shift)
		return false;
	*bytes = n << shift;
	return true;
}

int bench_option(struct bench_options *o, const char *const *names)
{
	char *word;

	if (++o->next >= o->argc)
		return -3;
	word = o->argv[o->next];
	o->value = word;
	if (strncmp(word, "--", 2) != 0)
		return -1;
	for (int i = 0; names[i]; i++) {
		size_t length = strlen(names[i]);
		bool takes_value = names[i][length - 1] == '=';

		length -= takes_value;
		if (strncmp(word + 2, names[i], length) != 0)
			continue;
		word += 2 + length;
		if (!*word) {
			if (!takes_value)
				return i;
			if (++o->next < o->argc) {
				o->value = o->argv[o->next];
				return i;
			}
			bench_usage(o->command, "--%.*s needs a value", (int)length, names[i]);
			return -2;
		}
		if (*word == '=' && takes_value) {
			o->value = word + 1;
			return i;
		}
		word = o->argv[o->next];
	}
	bench_usage(o->command, "unknown option %s", word);
	return -2;
}
