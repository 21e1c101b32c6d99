/* SPDX-License-Identifier: MIT */
/* Workload 1: shared mappings, faults and forks. */
#include "reference.h"

#include "memory.h"
#include "table.h"

#include <math.h>
#include <string.h>

#define INSTANCES 24
#define PAIRS 7 /* rounds of the combined test, for a confidence interval */

static const struct {
	const char *title;
	unsigned count[INSTANCE_KINDS]; /* faults, forks */
} tests[REFERENCE_TESTS] = {
	{"faults, 1 instance", {1, 0}},
	{"faults, 24 instances", {INSTANCES, 0}},
	{"forks, 1 instance", {0, 1}},
	{"forks, 24 instances", {0, INSTANCES}},
	{"combined, 24+24 instances", {INSTANCES, INSTANCES}},
};

#define PUBLISHED 5

static const struct {
	const char *name;
	unsigned instances, test; /* test: where it is measured */
	enum instance_kind kind;
	unsigned figure[PUBLISHED];
} rows[] = {
	{"faults per sec", 1, 0, INSTANCE_FAULTS, {393043, 395680, 389932, 382994, 386884}},
	{"faults per sec", 24, 1, INSTANCE_FAULTS, {71405, 81191, 79048, 97959, 75427}},
	{"forks per sec", 1, 2, INSTANCE_FORKS, {2802, 2747, 2725, 3105, 3148}},
	{"forks per sec", 24, 3, INSTANCE_FORKS, {439, 536, 500, 693, 715}},
	{"combined faults", 24, 4, INSTANCE_FAULTS, {1621, 68070, 53662, 74506, 31648}},
	{"combined forks", 24, 4, INSTANCE_FORKS, {358, 67, 142, 233, 282}},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* The series of each run: first the schemes of the file lock, then these. */
static const struct engine *const others[] = {&engine_hugepool, &engine_kernel, &engine_tuned, &engine_prefilled};

#define OTHERS (sizeof(others) / sizeof(others[0]))
#define SERIES (COMBINED_FILE_LOCKS + OTHERS)

void reference_plan_faults(struct reference *r)
{
	for (unsigned t = 0; t < REFERENCE_TESTS; t++) {
		struct instances params = {.setup = {.size = r->faults_size, .threads = 1}, .seconds = r->seconds};
		bool combined = tests[t].count[INSTANCE_FAULTS] && tests[t].count[INSTANCE_FORKS];
		bool many = tests[t].count[INSTANCE_FAULTS] + tests[t].count[INSTANCE_FORKS] > 1;
		/* A turn of many instances takes as long as a quick round of one. */
		unsigned rounds = r->quick && many ? 1 : !r->quick && combined ? PAIRS : r->rounds;
		struct bench_run *run = reference_run(r, "", rounds);

		run->bench = combined ? "combined" : tests[t].count[INSTANCE_FORKS] ? "forks" : "faults";
		memcpy(params.count, tests[t].count, sizeof(params.count));
		instances_set_metrics(run, &params);
		for (unsigned i = 0; i < COMBINED_FILE_LOCKS; i++)
			combined_add_file_lock(run, &params, i)->record = engine_share(sizeof(struct instances_record));
		for (unsigned i = 0; i < OTHERS; i++)
			instances_add(run, others[i], &params);
		snprintf(run->title, sizeof(run->title), "1. %s", tests[t].title);
		r->test[t] = run;
	}
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

static void print_heading(struct table *table, const char *const (*heading)[2], unsigned columns)
{
	table_init(table, 2 + columns, 1);
	table_row(table);
	table_set(table, 0, "test");
	table_set(table, 1, "instances");
	for (unsigned c = 0; c < columns; c++)
		table_set(table, 2 + c, "%s", heading[c][0]);
	table_row(table);
	for (unsigned c = 0; c < columns; c++)
		table_set(table, 2 + c, "%s", heading[c][1]);
}

static void begin_row(struct table *table, unsigned row)
{
	table_row(table);
	table_set(table, 0, "%s", rows[row].name);
	table_set(table, 1, "%u", rows[row].instances);
}

static void print_published(FILE *out)
{
	static const char *const heading[PUBLISHED][2] = {{"unmodified", "(rwsem)"},
	                                                  {"reverted", "(fault mutexes)"},
	                                                  {"lock", "per vma"},
	                                                  {"next, lock", "per vma"},
	                                                  {"next, invalidate", "lock per file"}};
	struct table table;

	print_heading(&table, heading, PUBLISHED);
	for (unsigned row = 0; row < ROWS; row++) {
		begin_row(&table, row);
		for (unsigned c = 0; c < PUBLISHED; c++)
			table_set(&table, 2 + c, "%u", rows[row].figure[c]);
	}
	table_print(&table, out);
}

static void print_measured(const struct reference *r, FILE *out)
{
	static const char *const heading[SERIES + 1][2] = {
		{"lazy,", "rwsem"}, {"lazy,", "none"}, {"lazy,", "vma"}, {"lazy,", "invalidate"}, {"lazy,", "biased"},
		{"", "ready"},      {"", "kernel"},    {"", "tuned"},    {"", "prefilled"},       {"", "rounds"}};
	struct table table;

	print_heading(&table, heading, SERIES + 1);
	for (unsigned row = 0; row < ROWS; row++) {
		const struct bench_run *run = r->test[rows[row].test];

		begin_row(&table, row);
		for (unsigned c = 0; c < SERIES; c++) {
			const struct bench_series *series = &run->series[c];
			unsigned metric = instances_rate_metric(series->params, rows[row].kind);
			double rate = bench_stat_median(&series->stat[metric]);

			if (isnan(rate))
				table_set(&table, 2 + c, "-");
			else
				table_set(&table, 2 + c, "%.0f", rate / rows[row].instances);
		}
		table_set(&table, 2 + SERIES, "%u", run->rounds);
	}
	table_print(&table, out);
}

/* Where faults and forks met, or passed each other by. */
static void print_locks(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"file_lock", "lock", "acquisitions", "contentions", "us waited"};
	struct table table;

	table_init(&table, 5, 2);
	table_row(&table);
	for (unsigned c = 0; c < 5; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 0; i < COMBINED_FILE_LOCKS; i++) {
		const struct instances *params = run->series[i].params;
		const struct engine_locks *locks = &params->record->locks;

		for (unsigned k = 0; k < locks->count; k++) {
			const hp_lock_stat *row = &locks->row[k];

			if (!engine_locks_matter(locks, row))
				continue;
			table_row(&table);
			table_set(&table, 0, "%s", combined_file_locks[i]);
			table_set(&table, 1, "%s%s", row->name, row->mode == 'W' ? "-W" : row->mode == 'R' ? "-R" : "");
			table_set(&table, 2, "%llu", (unsigned long long)row->acquisitions);
			table_set(&table, 3, "%llu", (unsigned long long)row->contentions);
			table_set(&table, 4, "%.2f", (double)row->wait.total / 1e3);
		}
	}
	table_print(&table, out);
}

void reference_print_faults(const struct reference *r, FILE *out)
{
	const struct bench_run *combined = r->test[REFERENCE_TESTS - 1];

	fprintf(out,
	        "1. Shared mappings. faults: map a shared huge-page file, write-fault every page, unmap; loop. forks:\n"
	        "   map it, write-fault a few pages, fork a child that exits, unmap; loop. Per instance.\n"
	        "   Source: message of Linux commit 188a39725ad7, and a linux-mm review of October 2023\n"
	        "   (next-20230925 with and without a series): 48 CPUs, 320 GB, a mapping of 250 GB.\n\n");
	print_published(out);
	fprintf(out,
	        "\n   Here: a filled file of %.3g GiB, %u CPUs, medians of the rounds, of %g s each. lazy: pages are\n"
	        "   mapped one by one in faults that take the file lock, under which the parent enters the mapping\n"
	        "   of a child before it forks; what the lock is made of heads the column. ready: hugepool's\n"
	        "   ordinary mappings. Then this machine's kernel: as programs use it, tuned (aligned,\n"
	        "   MAP_POPULATE), prefilled (and mapped a second time).\n\n",
	        (double)r->faults_size / (double)BENCH_GIB, bench_cpus(), r->seconds);
	print_measured(r, out);
	fprintf(out,
	        "\n   Locks of the combined test, %u round%s: faults read the file's lock, or with vma their "
	        "mapping's;\n"
	        "   forks write it with rwsem, and read it with the others. Other locks where somebody waited.\n\n",
	        combined->rounds, combined->rounds == 1 ? "" : "s");
	print_locks(combined, out);
	fprintf(out, "\n");
	combined_print_better(combined, out);
}
