/* SPDX-License-Identifier: MIT */
/* The published tables of workloads 1 and 2, in their own layout, with figures measured here beside them. */
#include "env.h"
#include "memory.h"
#include "report.h"
#include "table.h"
#include "workloads.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TEAMS 2 /* numbers of threads, and of instances */
#define PARTS 2 /* of the parallel first touch: so that not all pools are alive at the same time */
#define RUNS_MAX (TEAMS + TEAMS * PARTS)

struct reference {
	struct bench_run run[RUNS_MAX];
	unsigned count;
	bool quick;
	uint64_t faults_size, touch_size; /* bytes */
	double seconds;
	unsigned instances[TEAMS], threads[TEAMS];
	struct bench_run *faults[TEAMS], *ready[TEAMS], *lazy[TEAMS];
};

/* ---- Workload 1 ------------------------------------------------------------------------------------------------- */

static const struct {
	const char *test;
	unsigned instances;
	unsigned figure[5];
} published_faults[TEAMS] = {
	{"faults per sec", 1, {393043, 395680, 389932, 382994, 386884}},
	{"faults per sec", 24, {71405, 81191, 79048, 97959, 75427}},
};

static struct bench_series *add_faults(struct bench_run *run, const struct engine *engine, const struct reference *r,
                                       unsigned instances, bool lazy)
{
	static struct faults params[TEAMS * 5];
	static unsigned used;
	struct faults *own = &params[used++];

	*own = (struct faults){
		.engine = engine,
		.setup = {.size = r->faults_size, .threads = 1, .lazy = lazy},
		.instances = instances,
		.seconds = r->seconds,
	};
	run->huge_bytes += r->faults_size;
	return bench_run_add(run, engine->name, &faults_job, own);
}

static void plan_faults(struct reference *r)
{
	for (unsigned t = 0; t < TEAMS; t++) {
		struct bench_run *run = &r->run[r->count++];
		unsigned n = published_faults[t].instances;

		run->bench = "faults";
		run->metric = faults_metrics;
		run->metrics = FAULTS_METRICS;
		run->rounds = BENCH_ROUNDS;
		snprintf(run->title, sizeof(run->title), "1. faults, %u instance%s", n, n == 1 ? "" : "s");
		add_faults(run, &engine_kernel, r, n, false);
		add_faults(run, &engine_tuned, r, n, false);
		add_faults(run, &engine_prefilled, r, n, false);
		add_faults(run, &engine_hugepool, r, n, false);
		bench_series_tag(add_faults(run, &engine_hugepool, r, n, true), "map", "lazy");
		r->instances[t] = n;
		r->faults[t] = run;
	}
}

static void print_faults(const struct reference *r, FILE *out)
{
	static const char *const heading[] = {
		"test",  "instances", "unmodified", "reverted", "lock", "next, lock", "next, invalidate",
		"here:", "here:",     "here:",      "here:",    "here:"};
	static const char *const second[] = {"",        "",          "(rwsem)",       "(fault mutexes)",
	                                     "per vma", "per vma",   "lock per file", "kernel",
	                                     "tuned",   "prefilled", "lazy",          "ready"};
	static const unsigned order[] = {0, 1, 2, 4, 3}; /* the series of the columns measured here */
	struct table table;

	fprintf(out,
	        "1. Shared mappings: map a shared huge-page file, write-fault every page, unmap; loop. Per instance.\n"
	        "   Source: message of Linux commit 188a39725ad7, and a linux-mm review of October 2023 "
	        "(next-20230925\n"
	        "   with and without a series): 48 CPUs, 320 GB, a mapping of 250 GB. Here: a filled file of %.3g "
	        "GiB,\n"
	        "   %u CPUs, medians of %d rounds of %g s. lazy and ready are hugepool's two kinds of memory.\n\n",
	        (double)r->faults_size / (double)BENCH_GIB, bench_cpus(), BENCH_ROUNDS, r->seconds);
	table_init(&table, 12, 1);
	table_row(&table);
	for (unsigned c = 0; c < 12; c++)
		table_set(&table, c, "%s", heading[c]);
	table_row(&table);
	for (unsigned c = 0; c < 12; c++)
		table_set(&table, c, "%s", second[c]);
	for (unsigned t = 0; t < TEAMS; t++) {
		table_row(&table);
		table_set(&table, 0, "%s", published_faults[t].test);
		table_set(&table, 1, "%u", published_faults[t].instances);
		for (unsigned c = 0; c < 5; c++)
			table_set(&table, 2 + c, "%u", published_faults[t].figure[c]);
		for (unsigned c = 0; c < 5; c++) {
			double rate = bench_stat_median(&r->faults[t]->series[order[c]].stat[FAULTS_RATE]);

			if (isnan(rate))
				table_set(&table, 7 + c, "-");
			else
				table_set(&table, 7 + c, "%.0f", rate / r->instances[t]);
		}
	}
	table_print(&table, out);
}

/* ---- Workload 2 ------------------------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	double seconds;
} published_touch[] = {
	{"one global mutex, 1 thread", 40.68},
	{"one global mutex, 64 threads", 39.34},
	{"hashed mutexes, 64 threads", 0.85},
};
#define PUBLISHED_PAGES 8192 /* 128 GB of 16 MB pages */

static struct parallel_fault *add_touch(struct bench_run *run, const struct engine *engine, const struct reference *r,
                                        unsigned threads, const char *key, const char *value)
{
	static struct parallel_fault params[TEAMS * PARTS * 6];
	static unsigned used;
	struct parallel_fault *own = &params[used++];
	struct bench_series *series = bench_run_add(run, engine->name, &parallel_fault_job, own);

	*own = (struct parallel_fault){
		.engine = engine, .setup = {.size = r->touch_size, .threads = threads}, .skip = BENCH_FRAME};
	if (key)
		bench_series_tag(series, key, value);
	if (engine != &engine_kernel)
		run->huge_bytes += r->touch_size;
	return own;
}

static struct bench_run *touch_run(struct reference *r, unsigned threads, const char *what)
{
	struct bench_run *run = &r->run[r->count++];

	run->bench = "parallel-fault";
	run->metric = parallel_fault_metrics;
	run->metrics = PARALLEL_FAULT_METRICS;
	run->rounds = BENCH_ROUNDS;
	snprintf(run->title, sizeof(run->title), "2. parallel first touch, %u thread%s, %s", threads,
	         threads == 1 ? "" : "s", what);
	return run;
}

static void plan_touch(struct reference *r)
{
	for (unsigned t = 0; t < TEAMS; t++) {
		unsigned n = r->threads[t];
		struct parallel_fault *p;
		struct bench_run *run = touch_run(r, n, "ready memory");

		r->ready[t] = run;
		add_touch(run, &engine_kernel, r, n, NULL, NULL);
		add_touch(run, &engine_tuned, r, n, NULL, NULL);
		add_touch(run, &engine_prefilled, r, n, NULL, NULL);
		add_touch(run, &engine_hugepool, r, n, NULL, NULL);
		add_touch(run, &engine_hugepool, r, n, "stock", "dirty")->setup.no_stock = true;
		add_touch(run, &engine_hugepool, r, n, "stock", "cold")->setup.cold = true;
		run->series[run->series_count - 1].rounds = 2;

		run = touch_run(r, n, "lazy memory");
		r->lazy[t] = run;
		add_touch(run, &engine_kernel, r, n, NULL, NULL);
		p = add_touch(run, &engine_hugepool, r, n, "map", "lazy");
		p->setup.lazy = true;
		p->setup.tuning = "fault_window=16";
		p = add_touch(run, &engine_hugepool, r, n, "map", "one page");
		p->setup.lazy = p->random = true;
		p->setup.tuning = "fault_window=1";
		p = add_touch(run, &engine_hugepool, r, n, "map", "one mutex");
		p->setup.lazy = p->random = true;
		p->setup.tuning = "fault_window=1 fault_mutexes=1";
	}
}

static void touch_row(struct table *table, const char *name, const struct reference *r, unsigned team,
                      const struct bench_run *run, unsigned index)
{
	double wall = bench_stat_median(&run->series[index].stat[PARALLEL_FAULT_WALL]);
	double kernel = bench_stat_median(&run->series[0].stat[PARALLEL_FAULT_WALL]);
	double touches = (double)r->touch_size / (double)BENCH_FRAME;
	char cell[TABLE_CELL];

	table_row(table);
	table_set(table, 0, "%s, %u thread%s", name, r->threads[team], r->threads[team] == 1 ? "" : "s");
	table_set(table, 1, "%s", table_figure(cell, wall, "s"));
	table_set(table, 2, "%s", table_figure(cell, wall / touches, "s"));
	table_set(table, 3, "%s",
	          table_figure(cell, bench_stat_median(&run->series[index].stat[PARALLEL_FAULT_CPU]), "s"));
	if (index)
		table_set(table, 4, "%s", table_ratio(cell, kernel / wall));
}

static void print_touch(const struct reference *r, FILE *out)
{
	static const char *const heading[] = {"", "elapsed", "a page", "CPU time", "times the kernel"};
	struct table table;
	char cell[TABLE_CELL];

	fprintf(out,
	        "2. Parallel first touch: parallel_fault NR_THREADS SIZE_KB SKIP_KB, a byte in each huge page.\n"
	        "   Source: linux-kernel, July 2013, \"hugepage: allow parallelization of the hugepage fault path\" "
	        "(and\n"
	        "   its predecessor of July 2011): 128 GB of 16 MB pages. Here: %.3g GiB of 2 MiB pages, %u CPUs, "
	        "medians\n"
	        "   of %d rounds (cold: 2); map and touch, without making the file and unmapping. Pages of tuned are\n"
	        "   cleared by the kernel; those of prefilled and ready were zeroed before the clock, those of dirty "
	        "by\n"
	        "   the named threads under it. cold starts without a pool and fills it on all CPUs.\n\n",
	        (double)r->touch_size / (double)BENCH_GIB, bench_cpus(), BENCH_ROUNDS);
	table_init(&table, 5, 1);
	table_row(&table);
	for (unsigned c = 0; c < 5; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 0; i < sizeof(published_touch) / sizeof(published_touch[0]); i++) {
		table_row(&table);
		table_set(&table, 0, "%s", published_touch[i].name);
		table_set(&table, 1, "%.2f s", published_touch[i].seconds);
		table_set(&table, 2, "%s", table_figure(cell, published_touch[i].seconds / PUBLISHED_PAGES, "s"));
	}
	for (unsigned t = 0; t < TEAMS; t++) {
		touch_row(&table, "kernel", r, t, r->ready[t], 0);
		touch_row(&table, "tuned", r, t, r->ready[t], 1);
		touch_row(&table, "prefilled", r, t, r->ready[t], 2);
		touch_row(&table, "hugepool ready", r, t, r->ready[t], 3);
		touch_row(&table, "hugepool ready, dirty frames", r, t, r->ready[t], 4);
		touch_row(&table, "hugepool ready, cold", r, t, r->ready[t], 5);
		touch_row(&table, "hugepool lazy, window 16", r, t, r->lazy[t], 1);
		touch_row(&table, "hugepool lazy, random, window 1", r, t, r->lazy[t], 2);
		touch_row(&table, "the same with one global mutex", r, t, r->lazy[t], 3);
	}
	table_print(&table, out);
	table_init(&table, 4, 1);
	fprintf(out, "\n   Of these, the zeroing done before the clock, a round:\n");
	for (unsigned t = 0; t < TEAMS; t++) {
		table_row(&table);
		table_set(&table, 0, "prefilled, %u thread%s", r->threads[t], r->threads[t] == 1 ? "" : "s");
		table_set(
			&table, 1, "%s",
			table_figure(cell, bench_stat_median(&r->ready[t]->series[2].stat[PARALLEL_FAULT_FILL]), "s"));
		table_row(&table);
		table_set(&table, 0, "hugepool ready, %u thread%s", r->threads[t], r->threads[t] == 1 ? "" : "s");
		table_set(
			&table, 1, "%s",
			table_figure(cell, bench_stat_median(&r->ready[t]->series[3].stat[PARALLEL_FAULT_FILL]), "s"));
	}
	table_print(&table, out);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_reference_help[] =
	"Usage: hugepool bench reference [OPTIONS]\n\n"
	"Prints published tables with figures measured here beside them: faults of shared mappings, and the parallel\n"
	"first touch. Published machines were much larger: ratios are what compares. Takes some minutes.\n\n"
	"  --quick   smaller memory and shorter rounds: less than a minute\n"
	"  --json    JSON alone on standard output: the runs behind the tables\n\n"
	"Examples:\n"
	"  hugepool bench reference\n"
	"  hugepool bench reference --quick\n";

static const char *const option_names[] = {"quick", "json", NULL};
enum option { QUICK, JSON };

static void print_json(const struct reference *r, json_t *env)
{
	json_t *runs = json_array();

	for (unsigned i = 0; i < r->count; i++) {
		json_t *report = report_json(&r->run[i], NULL, NULL);

		json_object_set_new(report, "title", json_string(r->run[i].title));
		json_array_append_new(runs, report);
	}
	report_json_print(json_pack("{s:i,s:s,s:{s:b,s:I,s:I,s:f,s:i},s:o,s:o}", "version", 1, "bench", "reference",
	                            "params", "quick", r->quick, "faults_size", (json_int_t)r->faults_size,
	                            "touch_size", (json_int_t)r->touch_size, "seconds", r->seconds, "rounds",
	                            BENCH_ROUNDS, "env", env, "runs", runs),
	                  stdout);
}

/* Pools of the same size mostly come out the same: each outcome is told once. */
static void print_notes(const struct reference *r)
{
	const char *told[RUNS_MAX * BENCH_SERIES_MAX];
	unsigned count = 0, i;

	for (unsigned run = 0; run < r->count; run++) {
		for (unsigned s = 0; s < r->run[run].series_count; s++) {
			const char *note = r->run[run].series[s].note;

			for (i = 0; i < count && strcmp(told[i], note); i++)
				;
			if (!*note || i < count)
				continue;
			told[count++] = note;
			printf("pool      %s\n", note);
		}
	}
}

static void print_tables(const struct reference *r, json_t *env)
{
	unsigned discarded = 0;

	bench_env_print(env, stdout);
	json_decref(env);
	print_notes(r);
	for (unsigned i = 0; i < r->count; i++)
		for (unsigned s = 0; s < r->run[i].series_count; s++)
			discarded += r->run[i].series[s].discarded;
	printf("rounds    %u discarded\n", discarded);
	for (unsigned i = 0; i < r->count && discarded; i++) {
		printf("%s\n", r->run[i].title);
		report_discarded(&r->run[i], stdout);
	}
	printf("\n");
	print_faults(r, stdout);
	printf("\n");
	print_touch(r, stdout);
}

int bench_reference(int argc, char **argv)
{
	static struct reference r;
	struct bench_run *runs[RUNS_MAX];
	struct bench_options options = {.command = "reference", .argc = argc, .argv = argv};
	struct bench_pages pages;
	bool json = false;
	json_t *env;
	int option, rc;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("reference", "'%s' is not an option", options.value);
		r.quick |= option == QUICK;
		json |= option == JSON;
	}
	r.faults_size = BENCH_GIB;
	r.touch_size = r.quick ? BENCH_GIB : 2 * BENCH_GIB;
	r.seconds = r.quick ? 0.1 : 1;
	r.threads[0] = 1;
	r.threads[1] = bench_cpus() > 2 ? bench_cpus() : 2;
	plan_faults(&r);
	plan_touch(&r);
	for (unsigned i = 0; i < r.count; i++)
		runs[i] = &r.run[i];

	rc = bench_measure(runs, r.count, &pages);
	if (rc && rc != -EUCLEAN)
		return BENCH_FAILED;
	env = bench_env(&pages);
	if (json)
		print_json(&r, env);
	else
		print_tables(&r, env);
	return rc ? BENCH_FAILED : bench_status(runs, r.count);
}
