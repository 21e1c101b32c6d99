/* SPDX-License-Identifier: MIT */
/* What a run of `hugepool bench collapse` comes to. */
#include "collapse.h"

#include "engine_locks.h"
#include "report.h"

#include <math.h>
#include <string.h>

#define TO_DECIDE 0.01 /* an effect as small as that is to be told from none */

/* The series in the order of collapse_plan(). */
enum { ANONYMOUS, SHMEM, UPGRADE, RELOCK, AGAIN, COPY, WRITERS };

/* ---- What is measured ------------------------------------------------------------------------------------------- */

static void add(struct bench_run *run, const char *engine, const struct bench_job *job, const struct collapse *params,
                const char *key, const char *value)
{
	static struct collapse all[2 * BENCH_SERIES_MAX];
	static unsigned used;
	struct collapse *own = &all[used++];
	struct bench_series *series;

	*own = *params;
	series = bench_run_add(run, engine, job, own);
	if (key)
		bench_series_tag(series, key, value);
}

void collapse_plan(struct bench_run *run, unsigned count, bool writers)
{
	static const struct bench_metric metrics[COLLAPSE_METRICS] = {
		[COLLAPSE_TIME] = {"collapse_us", "us", 0, true, NULL},
		[COLLAPSE_MEDIAN] = {"collapse_median_us", "us", 0, true, NULL},
		[COLLAPSE_LOCK] = {"lock_us", "us", 0, false, NULL},
		[COLLAPSE_PROTECT] = {"protect_us", "us", 0, false, NULL},
		[COLLAPSE_COPY] = {"copy_us", "us", 0, false, NULL},
		[COLLAPSE_SWITCH] = {"switch_us", "us", 0, false, NULL},
		[COLLAPSE_FREE] = {"free_us", "us", 0, false, NULL},
		[COLLAPSE_RECHECKED] = {"rechecked", "1", 0, false, NULL},
		[COLLAPSE_GAVE_UP] = {"gave_up", "1", 0, false, NULL},
		[COLLAPSE_PAUSE] = {"writer_pause_us", "us", 0, false, NULL},
		[COLLAPSE_PAUSE_95] = {"writer_pause_p95_us", "us", 0, false, NULL},
		[COLLAPSE_PAUSE_MAX] = {"writer_pause_max_us", "us", 0, false, NULL},
	};
	struct collapse params = {.count = count};
	struct collapse upgrade = {.count = count, .tuning = "collapse=upgrade"};
	struct collapse relock = {.count = count, .tuning = "collapse=relock"};

	run->metric = metrics;
	run->metrics = COLLAPSE_METRICS;
	add(run, "kernel", &collapse_kernel_job, &params, "memory", "anonymous");
	params.shared = true;
	add(run, "kernel", &collapse_kernel_job, &params, "memory", "shmem");
	add(run, "hugepool", &collapse_hugepool_job, &upgrade, "collapse", "upgrade");
	add(run, "hugepool", &collapse_hugepool_job, &relock, "collapse", "relock");
	add(run, "hugepool", &collapse_hugepool_job, &upgrade, "collapse", "upgrade again");
	add(run, "copy", &collapse_copy_job, &params, NULL, NULL);
	run->huge_bytes = 2 * BENCH_FRAME;
	if (!writers)
		return;
	upgrade.writers = 2;
	add(run, "hugepool", &collapse_writers_job, &upgrade, "writers", "2");
	upgrade.writers = 1;
	upgrade.pinned = true;
	add(run, "hugepool", &collapse_writers_job, &upgrade, "writers", "1 pinned");
	run->huge_bytes += 2 * BENCH_FRAME;
}

void collapse_plan_trace(struct bench_run *run, unsigned count)
{
	static const struct bench_metric metrics[COLLAPSE_TRACE_METRICS] = {
		[COLLAPSE_TRACE_CALL] = {"traced_call_us", "us", 0, false, NULL},
		[COLLAPSE_TRACE_FUNCTION] = {"function_us", "us", 0, false, NULL},
	};
	struct collapse params = {.count = count};

	run->metric = metrics;
	run->metrics = COLLAPSE_TRACE_METRICS;
	add(run, "kernel", &collapse_trace_job, &params, "memory", "anonymous");
	params.shared = true;
	add(run, "kernel", &collapse_trace_job, &params, "memory", "shmem");
}

/* ---- Pairs ------------------------------------------------------------------------------------------------------ */

struct collapse_pair collapse_pair(const struct bench_run *run, unsigned number)
{
	static const struct {
		const char *name;
		unsigned ours, theirs;
	} pairs[COLLAPSE_PAIRS_TOTAL] = {
		[COLLAPSE_PAIR_VARIANT] = {"upgrade to relock", UPGRADE, RELOCK},
		[COLLAPSE_PAIR_AA] = {"A/A: upgrade to itself", UPGRADE, AGAIN},
		[COLLAPSE_PAIR_SHMEM] = {"upgrade to kernel, shmem", UPGRADE, SHMEM},
		[COLLAPSE_PAIR_ANONYMOUS] = {"upgrade to kernel, anonymous", UPGRADE, ANONYMOUS},
	};

	return (struct collapse_pair){pairs[number].name, &run->series[pairs[number].ours],
	                              &run->series[pairs[number].theirs]};
}

static json_t *pairs_json(const struct bench_run *run, unsigned metric)
{
	static struct bench_pairs pairs;
	json_t *list = json_array();
	char ours[TABLE_CELL], theirs[TABLE_CELL];

	for (unsigned i = 0; i < COLLAPSE_PAIRS_TOTAL; i++) {
		struct collapse_pair pair = collapse_pair(run, i);

		bench_pairs_of_times(&pairs, pair.ours, pair.theirs, metric);
		json_array_append_new(list, bench_pairs_json(&pairs, engine_series_name(ours, sizeof(ours), pair.ours),
		                                             engine_series_name(theirs, sizeof(theirs), pair.theirs)));
	}
	return list;
}

/* Its rows and what was discarded of it go to the rest. */
static void add_trace(const struct bench_run *trace, json_t *report)
{
	json_t *own = report_json(trace, NULL, NULL), *all = json_object_get(report, "discarded");
	json_t *more = json_object_get(own, "discarded");

	json_array_extend(json_object_get(report, "rows"), json_object_get(own, "rows"));
	json_array_extend(json_object_get(all, "reasons"), json_object_get(more, "reasons"));
	json_object_set_new(all, "count",
	                    json_integer(json_integer_value(json_object_get(all, "count")) +
	                                 json_integer_value(json_object_get(more, "count"))));
	json_decref(own);
}

void collapse_report(const struct bench_run *run, const struct bench_run *trace, json_t *report)
{
	json_t *ratios = json_object_get(report, "ratios");

	json_object_set_new(json_object_get(ratios, "collapse_us"), "pairs", pairs_json(run, COLLAPSE_TIME));
	json_object_set_new(json_object_get(ratios, "collapse_median_us"), "pairs", pairs_json(run, COLLAPSE_MEDIAN));
	if (trace)
		add_trace(trace, report);
}

/* What the interval says about a difference. */
static void set_verdict(struct table *table, unsigned column, const struct bench_pairs *pairs)
{
	if (isnan(pairs->low))
		table_set(table, column, "too few rounds");
	else if (pairs->low > 1)
		table_set(table, column, "faster");
	else if (pairs->high < 1)
		table_set(table, column, "slower");
	else
		table_set(table, column, "no difference seen");
}

static void pair_row(struct table *table, const char *name, const struct bench_pairs *pairs)
{
	double width = (pairs->high - pairs->low) / pairs->median;

	table_row(table);
	table_set(table, 0, "%s", name);
	table_set(table, 1, "-");
	if (!pairs->ratio.count)
		return;
	table_set(table, 1, "%.4f", pairs->median);
	if (!isnan(width)) {
		table_set(table, 1, "%.4f (%.4f-%.4f)", pairs->median, pairs->low, pairs->high);
		table_set(table, 2, "%.2f %%", 100 * width);
		table_set(table, 3, "%s", width < TO_DECIDE ? "yes" : "no");
	}
	set_verdict(table, 4, pairs);
}

static void print_pairs(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"times as fast", "ratio (95 %)", "its width", "decides 1 %", "is"};
	static struct bench_pairs pairs;
	struct table table;
	char name[TABLE_CELL];

	table_init(&table, 5, 1);
	table_row(&table);
	for (unsigned c = 0; c < 5; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 0; i < 2 * COLLAPSE_PAIRS_TOTAL; i++) {
		struct collapse_pair pair = collapse_pair(run, i / 2);

		bench_pairs_of_times(&pairs, pair.ours, pair.theirs, i % 2 ? COLLAPSE_MEDIAN : COLLAPSE_TIME);
		snprintf(name, sizeof(name), "%s, by %s", pair.name, i % 2 ? "medians" : "means");
		pair_row(&table, name, &pairs);
	}
	table_print(&table, out);
}

/* ---- Tables ----------------------------------------------------------------------------------------------------- */

static void begin(struct table *table, const char *const *heading)
{
	unsigned columns = 0;

	while (heading[columns])
		columns++;
	table_init(table, columns, 1);
	table_row(table);
	for (unsigned c = 0; c < columns; c++)
		table_set(table, c, "%s", heading[c]);
}

static void set_median(struct table *table, unsigned column, const struct bench_series *series, unsigned metric)
{
	char cell[TABLE_CELL];

	table_set(table, column, "%s", table_figure(cell, bench_stat_median(&series->stat[metric]), "us"));
}

static void print_times(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"2 MiB made huge", "mean", "min", "max", "rounds", "median", NULL};
	struct table table;
	char cell[TABLE_CELL];

	begin(&table, heading);
	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_stat *stat = &run->series[i].stat[COLLAPSE_TIME];

		if (!stat->count)
			continue;
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(cell, sizeof(cell), &run->series[i]));
		set_median(&table, 1, &run->series[i], COLLAPSE_TIME);
		table_set(&table, 2, "%s", table_figure(cell, bench_stat_min(stat), "us"));
		table_set(&table, 3, "%s", table_figure(cell, bench_stat_max(stat), "us"));
		table_set(&table, 4, "%u", stat->count);
		set_median(&table, 5, &run->series[i], COLLAPSE_MEDIAN);
	}
	table_print(&table, out);
}

static void print_parts(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"its parts", "lock",           "protect",   "copy",    "(bare copy)",
	                                      "switch",    "free old pages", "rechecked", "gave up", NULL};
	struct table table;
	char cell[TABLE_CELL];

	begin(&table, heading);
	for (unsigned i = UPGRADE; i <= AGAIN; i++) {
		const struct bench_series *series = &run->series[i];

		if (!series->stat[COLLAPSE_TIME].count)
			continue;
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(cell, sizeof(cell), series));
		for (unsigned part = COLLAPSE_LOCK; part <= COLLAPSE_COPY; part++)
			set_median(&table, 1 + part - COLLAPSE_LOCK, series, part);
		set_median(&table, 4, &run->series[COPY], COLLAPSE_COPY);
		set_median(&table, 5, series, COLLAPSE_SWITCH);
		set_median(&table, 6, series, COLLAPSE_FREE);
		table_set(&table, 7, "%.0f", bench_stat_median(&series->stat[COLLAPSE_RECHECKED]));
		table_set(&table, 8, "%.0f", bench_stat_median(&series->stat[COLLAPSE_GAVE_UP]));
	}
	table_print(&table, out);
}

static void print_pauses(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"pause of a writer", "median", "95 %", "max", "of all rounds", NULL};
	struct table table;
	char cell[TABLE_CELL];

	begin(&table, heading);
	for (unsigned i = WRITERS; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];

		if (!series->stat[COLLAPSE_PAUSE].count)
			continue;
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(cell, sizeof(cell), series));
		for (unsigned c = 0; c < 3; c++)
			set_median(&table, 1 + c, series, COLLAPSE_PAUSE + c);
		table_set(&table, 4, "%s", table_figure(cell, bench_stat_max(&series->stat[COLLAPSE_PAUSE_MAX]), "us"));
	}
	table_print(&table, out);
}

static void print_trace(const struct bench_run *trace, FILE *out)
{
	static const char *const heading[] = {"traced, by themselves", "the call", "of it, the kernel's function",
	                                      NULL};
	struct table table;
	char cell[TABLE_CELL];

	begin(&table, heading);
	for (unsigned i = 0; i < trace->series_count; i++) {
		const struct bench_series *series = &trace->series[i];

		if (!series->stat[COLLAPSE_TRACE_FUNCTION].count)
			continue;
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(cell, sizeof(cell), series));
		set_median(&table, 1, series, COLLAPSE_TRACE_CALL);
		set_median(&table, 2, series, COLLAPSE_TRACE_FUNCTION);
	}
	table_print(&table, out);
	report_discarded(trace, out);
}

void collapse_print(const struct bench_run *run, const struct bench_run *trace, FILE *out)
{
	char name[TABLE_CELL];

	fprintf(out, "%s\n", run->title);
	print_times(run, out);
	if (trace) {
		fputs("\n", out);
		print_trace(trace, out);
	}
	if (run->series[UPGRADE].stat[COLLAPSE_TIME].count) {
		fputs("\n", out);
		print_parts(run, out);
		fputs("\n", out);
		print_pairs(run, out);
		fputs("\n", out);
		print_pauses(run, out);
	}
	fputs("\n", out);
	for (unsigned i = 0; i < run->series_count; i++)
		if (run->series[i].note[0])
			fprintf(out, "  %s: %s\n", engine_series_name(name, sizeof(name), &run->series[i]),
			        run->series[i].note);
	report_discarded(run, out);
}
