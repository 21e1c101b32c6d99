/* SPDX-License-Identifier: MIT */
/* What the files of the bench share: its commands, exit statuses, clocks, options. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define BENCH_FRAME ((uint64_t)2 << 20) /* bytes of a huge page */
#define BENCH_GIB ((uint64_t)1 << 30)
#define BENCH_WHY 192 /* bytes of a one-line reason */

enum bench_status {
	BENCH_DONE = 0,
	BENCH_FAILED = 1,  /* something broke; it is said on standard error */
	BENCH_USAGE = 2,   /* the command line */
	BENCH_NOTHING = 3, /* every round of hugepool was discarded: there is no result */
};

/* The command `hugepool bench`; argv[0] is "bench". Returns an exit status. */
int hp_cli_bench(int argc, char **argv);

/* The workloads; argv[0] is the workload's name. */
int bench_parallel_fault(int argc, char **argv);
int bench_faults(int argc, char **argv);
int bench_forks(int argc, char **argv);
int bench_fork_cow(int argc, char **argv);
int bench_combined(int argc, char **argv);
int bench_fallocate(int argc, char **argv);
int bench_collapse(int argc, char **argv);
int bench_tlb(int argc, char **argv);
int bench_zero(int argc, char **argv);
int bench_locks(int argc, char **argv);
int bench_statistics(int argc, char **argv);
int bench_reference(int argc, char **argv);

/* Help texts, for `hugepool bench WORKLOAD --help`. */
extern const char bench_parallel_fault_help[];
extern const char bench_faults_help[];
extern const char bench_forks_help[];
extern const char bench_fork_cow_help[];
extern const char bench_combined_help[];
extern const char bench_fallocate_help[];
extern const char bench_collapse_help[];
extern const char bench_tlb_help[];
extern const char bench_zero_help[];
extern const char bench_locks_help[];
extern const char bench_statistics_help[];
extern const char bench_reference_help[];

/* "64M", "2G", "4096": bytes, with k, M, G or T in powers of 1024. False for anything else and for 0. */
bool bench_parse_size(const char *text, uint64_t *bytes);
bool bench_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *number);

/*
 * One step of a command line. An option is "--name"; one that takes a value gets it from "--name=value" or the next
 * word. Returns the option's index in `names` (a trailing '=' there marks a value), -1 for a word that is no option,
 * -2 after a message about a wrong one, -3 at the end.
 */
struct bench_options {
	const char *command;
	int argc;
	char **argv;
	int next;
	const char *value; /* of the option, or the word itself */
};
int bench_option(struct bench_options *options, const char *const *names);
int bench_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline uint64_t bench_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The CPU time that all threads of this process have used: what getrusage() reports, in nanoseconds. */
static inline uint64_t bench_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
