/* SPDX-License-Identifier: MIT */
/* The command `hugepool bench fork-cow`. */
#include "fork_cow.h"

#include "command.h"
#include "engine_locks.h"
#include "pairs.h"
#include "report.h"

#include "hugepool.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SIZE_MIN (2 * BENCH_FRAME) /* a page for each process */
#define ROUNDS_DEFAULT 15

static const struct bench_metric metrics[FORK_COW_METRICS] = {
	[FORK_COW_FORK] = {"fork_ns", "ns", 0, true, NULL},
	[FORK_COW_WRITE] = {"first_write_ns", "ns", 0, true, NULL},
	[FORK_COW_CHILD_WRITE] = {"child_first_write_ns", "ns", 0, true, NULL},
};

/* ---- What is measured ------------------------------------------------------------------------------------------- */

static void add(struct bench_run *run, const char *policy, const struct fork_cow *params)
{
	static struct fork_cow all[BENCH_SERIES_MAX];
	struct fork_cow *own = &all[run->series_count];
	struct bench_series *series;

	*own = *params;
	series = bench_run_add(run, params->kernel ? "kernel" : "hugepool", &fork_cow_job, own);
	if (policy)
		bench_series_tag(series, "policy", policy);
}

/*
 * Pools are there all the time. What the kernel's memory takes in its rounds is what hugepool's holder and copies take
 * in theirs, or more.
 */
static void plan(struct bench_run *run, uint64_t size)
{
	add(run, NULL, &(struct fork_cow){.kernel = true, .size = size});
	add(run, NULL, &(struct fork_cow){.size = size});
	add(run, "without", &(struct fork_cow){.policy = HP_FORK_WITHOUT, .size = size});
	add(run, "copy", &(struct fork_cow){.policy = HP_FORK_COPY, .size = size});
	run->huge_bytes = 3 * size + size + 2 * fork_cow_writes(size) * BENCH_FRAME;
}

/* ---- Ratios ----------------------------------------------------------------------------------------------------- */

static json_t *pairs_json(const struct bench_run *run, unsigned metric)
{
	const struct bench_series *kernel = &run->series[0];
	static struct bench_pairs pairs;
	json_t *list = json_array();
	char ours[TABLE_CELL];

	for (unsigned i = 1; i < run->series_count; i++) {
		bench_pairs_of_times(&pairs, &run->series[i], kernel, metric);
		json_array_append_new(list,
		                      bench_pairs_json(&pairs, engine_series_name(ours, sizeof(ours), &run->series[i]),
		                                       kernel->engine));
	}
	return list;
}

static void print_pairs(const struct bench_run *run)
{
	static const char *const heading[] = {"times as fast as the kernel", "fork", "first write",
	                                      "child's first write"};
	static struct bench_pairs pairs;
	struct table table;
	char cell[TABLE_CELL];

	table_init(&table, 4, 1);
	table_row(&table);
	for (unsigned c = 0; c < 4; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 1; i < run->series_count; i++) {
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(cell, sizeof(cell), &run->series[i]));
		for (unsigned m = 0; m < run->metrics; m++) {
			bench_pairs_of_times(&pairs, &run->series[i], &run->series[0], m);
			table_set(&table, m + 1, "%s", bench_pairs_text(cell, &pairs));
		}
	}
	fputs("\n", stdout);
	table_print(&table, stdout);
	fputs("\nMedians of the rounds' ratios, and the interval that holds them with 95 % confidence.\n", stdout);
}

static void add_pairs(const struct bench_run *run, json_t *report)
{
	json_t *ratios = report ? json_object_get(report, "ratios") : NULL;

	if (!report)
		print_pairs(run);
	for (unsigned m = 0; report && m < run->metrics; m++)
		json_object_set_new(json_object_get(ratios, run->metric[m].name), "pairs", pairs_json(run, m));
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_fork_cow_help[] =
	"Usage: hugepool bench fork-cow [OPTIONS]\n\n"
	"What a fork of a process with private huge memory costs, and the first store to a page after it. In each\n"
	"round the memory is mapped and written anew, which is not in the clock: the first fork of a mapping is what\n"
	"counts. Rows:\n\n"
	"  kernel                   private anonymous huge pages of the kernel's, populated\n"
	"  hugepool                 hp_map_private(), copy on write after the fork\n"
	"  hugepool policy=without  the child does not get the memory (HP_FORK_WITHOUT)\n"
	"  hugepool policy=copy     the child gets a copy, which the fork waits for (HP_FORK_COPY)\n\n"
	"Metrics: fork_ns is the time of fork() in the parent. first_write_ns: then, while the child sleeps, the\n"
	"parent stores to one byte in each of up to 64 pages; for a page. child_first_write_ns: then the child does\n"
	"the same to other pages. Each looks whether it finds its own bytes, and none of the other's.\n\n"
	"  --size SIZE   of the memory: 64M, 1G (default 1G), rounded up to huge pages, at least 4M\n"
	"  --rounds N    rounds that count (default 15)\n"
	"  --json        JSON alone on standard output\n\n"
	"Huge pages for four times the size and some more are set aside for it.\n\n"
	"JSON: ratios.METRIC.pairs is a list of {ours, theirs, ratio, min, max, low, high, samples}: how many times\n"
	"as fast hugepool is, round by round, low and high with 95 % confidence from 6 rounds on.\n\n"
	"Examples:\n"
	"  hugepool bench fork-cow\n"
	"  hugepool bench fork-cow --size 256M --rounds 30 --json\n";

static const char *const option_names[] = {"size=", "rounds=", "json", NULL};
enum option { SIZE, ROUNDS, JSON };

int bench_fork_cow(int argc, char **argv)
{
	static struct bench_run run = {.bench = "fork-cow", .metric = metrics, .metrics = FORK_COW_METRICS};
	struct bench_options options = {.command = "fork-cow", .argc = argc, .argv = argv};
	uint64_t size = BENCH_GIB, rounds = ROUNDS_DEFAULT;
	bool json = false;
	int option;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("fork-cow", "'%s' is not an option", options.value);
		if (option == SIZE && !bench_parse_size(options.value, &size))
			return bench_usage("fork-cow", "--size takes a size like 64M or 1G");
		if (option == ROUNDS && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &rounds))
			return bench_usage("fork-cow", "--rounds takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		json |= option == JSON;
	}
	size = (size + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	size = size < SIZE_MIN ? SIZE_MIN : size;
	plan(&run, size);
	run.rounds = (unsigned)rounds;
	snprintf(run.title, sizeof(run.title), "fork-cow, %llu MiB of private memory, %u pages written by each process",
	         (unsigned long long)(size >> 20), fork_cow_writes(size));
	return bench_command_with(&run, json,
	                          json_pack("{s:I,s:i,s:I}", "size", (json_int_t)size, "writes",
	                                    (int)fork_cow_writes(size), "rounds", (json_int_t)rounds),
	                          report_table, add_pairs);
}
