/* SPDX-License-Identifier: MIT */
/* What a run of `hugepool bench fallocate` comes to: ways to fill, where their time goes, the index by itself. */
#include "fallocate.h"

#include "engine_locks.h"
#include "pairs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *fallocate_size_text(char cell[TABLE_CELL], uint64_t bytes)
{
	static const char *const units[] = {"MiB", "GiB", "TiB"};
	double value = (double)bytes / (1 << 20);
	unsigned unit = 0;

	for (; unit < 2 && value >= 1024; unit++)
		value /= 1024;
	snprintf(cell, TABLE_CELL, "%.4g %s", value, units[unit]);
	return cell;
}

const char *fallocate_size_word(char cell[TABLE_CELL], uint64_t bytes)
{
	static const char units[] = "MGT";
	unsigned unit = 0;

	bytes >>= 20;
	for (; unit < 2 && bytes % 1024 == 0; unit++)
		bytes /= 1024;
	snprintf(cell, TABLE_CELL, "%llu%c", (unsigned long long)bytes, units[unit]);
	return cell;
}

/* NaN where there is no such series, too. */
static double median_of(const struct bench_series *series, unsigned metric)
{
	return series ? bench_stat_median(&series->stat[metric]) : NAN;
}

static bool is_fill(const struct bench_series *series)
{
	return series->job == &fallocate_fill_job;
}

static double frames_of(uint64_t size)
{
	return (double)(size / BENCH_FRAME);
}

/* ---- What it comes to ------------------------------------------------------------------------------------------- */

/* Of a fill's frames, on the wall clock: as the fill enters them, in runs from a stock, in short ones else. */
static double index_ns(const struct bench_run *run, const struct fallocate_fill *fill)
{
	const struct engine_setup *setup = &fill->setup;
	const struct index_rival *rival = setup->no_stock ? &index_by_frame : &index_by_run;
	const struct bench_series *index = fallocate_find_index(run, rival, setup->size);

	return median_of(index, FALLOCATE_INSERT) * frames_of(setup->size) / fill->fillers;
}

/* Of the frames that were dirty. */
static double zeroing_ns(const struct bench_series *series, uint64_t size)
{
	double zeroed = median_of(series, FALLOCATE_ZEROED);

	return zeroed ? median_of(series, FALLOCATE_ZEROING) * zeroed / frames_of(size) : 0;
}

struct fallocate_parts fallocate_parts(const struct bench_run *run, const struct bench_series *series)
{
	const struct fallocate_fill *fill = series->params;
	struct fallocate_parts parts = {
		.elapsed = median_of(series, FALLOCATE_ELAPSED),
		.zeroing = NAN,
		.index = NAN,
		.syscalls = median_of(series, FALLOCATE_SYSCALLS_NS) / fill->fillers,
	};

	if (fill->engine == &engine_hugepool) {
		parts.zeroing = zeroing_ns(series, fill->setup.size);
		parts.index = index_ns(run, fill);
	}
	parts.other = parts.elapsed - parts.zeroing - parts.index - parts.syscalls;
	return parts;
}

double fallocate_share(const struct bench_run *run, const struct bench_series *series)
{
	const struct bench_series *dirty = fallocate_find_fill(run, &engine_hugepool, true);
	const struct fallocate_fill *fill = dirty ? dirty->params : NULL;

	if (!fill)
		return NAN;
	/* Of the time of one thread, for one frame. */
	return median_of(series, FALLOCATE_INSERT) /
	       (median_of(dirty, FALLOCATE_ELAPSED) * fill->fillers / frames_of(fill->setup.size));
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *where_json(const struct bench_run *run)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];
		struct fallocate_parts parts;

		if (!is_fill(series) || !series->stat[FALLOCATE_ELAPSED].count)
			continue;
		parts = fallocate_parts(run, series);
		json_array_append_new(
			list, json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:o}", "engine", series->engine, "variant",
		                        engine_series_variant(series), "elapsed_ns", report_number(parts.elapsed),
		                        "zeroing_ns", report_number(parts.zeroing), "index_ns",
		                        report_number(parts.index), "syscalls_ns", report_number(parts.syscalls),
		                        "other_ns", report_number(parts.other)));
	}
	return list;
}

static json_t *index_json(const struct bench_run *run)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];

		if (series->job == &fallocate_index_job)
			json_array_append_new(list, json_pack("{s:s,s:o,s:o}", "engine", series->engine, "variant",
			                                      engine_series_variant(series), "share_percent",
			                                      report_number(100 * fallocate_share(run, series))));
	}
	return list;
}

/* Each of hugepool's ways to each of the others. */
static json_t *pairs_json(const struct bench_run *run)
{
	static struct bench_pairs pairs;
	json_t *list = json_array();
	char ours[TABLE_CELL], theirs[TABLE_CELL];

	for (unsigned i = 0; i < run->series_count; i++) {
		if (!is_fill(&run->series[i]) || strcmp(run->series[i].engine, "hugepool") != 0)
			continue;
		for (unsigned k = 0; k < run->series_count; k++) {
			if (!is_fill(&run->series[k]) || !strcmp(run->series[k].engine, "hugepool"))
				continue;
			bench_pairs_of_times(&pairs, &run->series[i], &run->series[k], FALLOCATE_ELAPSED);
			json_array_append_new(
				list, bench_pairs_json(&pairs, engine_series_name(ours, sizeof(ours), &run->series[i]),
			                               engine_series_name(theirs, sizeof(theirs), &run->series[k])));
		}
	}
	return list;
}

void fallocate_report(const struct bench_run *run, json_t *report)
{
	json_t *ratios = json_object_get(json_object_get(report, "ratios"), "elapsed_ns");

	json_object_set_new(ratios, "pairs", pairs_json(run));
	json_object_set_new(report, "where", where_json(run));
	json_object_set_new(report, "index", index_json(run));
}

/* ---- Tables ----------------------------------------------------------------------------------------------------- */

static void begin(struct table *table, unsigned left, const char *const *heading)
{
	unsigned columns = 0;

	while (heading[columns])
		columns++;
	table_init(table, columns, left);
	table_row(table);
	for (unsigned c = 0; c < columns; c++)
		table_set(table, c, "%s", heading[c]);
}

static void set_figure(struct table *table, unsigned column, double value, const char *unit)
{
	char cell[TABLE_CELL];

	table_set(table, column, "%s", table_figure(cell, value, unit));
}

static unsigned threads_of(const struct bench_series *series)
{
	const struct fallocate_fill *fill = series->params;

	return series->job == &fallocate_sim_job ? 1 : fill->fillers;
}

static void print_fills(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"fill",   "threads", "elapsed", "min", "max",
	                                      "rounds", "rate",    "a page",  "",    NULL};
	static struct bench_pairs pairs;
	const struct bench_series *kernel = fallocate_find_fill(run, &engine_kernel, false);
	struct table table;
	char cell[TABLE_CELL];

	begin(&table, 1, heading);
	if (kernel)
		table_set(&table, 8, "times the kernel");
	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];
		const struct bench_stat *elapsed = &series->stat[FALLOCATE_ELAPSED];
		double rate = median_of(series, FALLOCATE_RATE);

		if (!elapsed->count)
			continue;
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(cell, sizeof(cell), series));
		table_set(&table, 1, "%u", threads_of(series));
		set_figure(&table, 2, bench_stat_median(elapsed), "ns");
		set_figure(&table, 3, bench_stat_min(elapsed), "ns");
		set_figure(&table, 4, bench_stat_max(elapsed), "ns");
		table_set(&table, 5, "%u", elapsed->count);
		set_figure(&table, 6, rate, "B/s");
		set_figure(&table, 7, 1e9 * (double)BENCH_FRAME / rate, "ns");
		if (!kernel || !is_fill(series) || series == kernel)
			continue;
		bench_pairs_of_times(&pairs, series, kernel, FALLOCATE_ELAPSED);
		table_set(&table, 8, "%s", bench_pairs_text(cell, &pairs));
	}
	table_print(&table, out);
}

/* "412 ms, 93.4 %"; of what is below the clock's last digit, nothing */
static void set_part(struct table *table, unsigned column, double part, double whole)
{
	char cell[TABLE_CELL];

	if (isnan(part) || part == 0)
		table_set(table, column, "%s", part == 0 ? "0" : "-");
	else
		table_set(table, column, "%s, %.*f %%", table_figure(cell, part, "ns"),
		          fabs(part / whole) < 0.01 ? 3 : 1, 100 * part / whole);
}

static void print_where(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"where the time goes", "elapsed", "zeroing", "index",
	                                      "system calls",        "",        "other",   NULL};
	struct table table;
	char cell[TABLE_CELL];

	begin(&table, 1, heading);
	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];
		double calls = median_of(series, FALLOCATE_SYSCALLS);
		struct fallocate_parts parts;

		if (!is_fill(series) || !series->stat[FALLOCATE_ELAPSED].count)
			continue;
		parts = fallocate_parts(run, series);
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(cell, sizeof(cell), series));
		set_figure(&table, 1, parts.elapsed, "ns");
		set_part(&table, 2, parts.zeroing, parts.elapsed);
		set_part(&table, 3, parts.index, parts.elapsed);
		if (!isnan(calls))
			table_set(&table, 4, "%.0f", calls);
		set_part(&table, 5, parts.syscalls, parts.elapsed);
		set_part(&table, 6, parts.other, parts.elapsed);
	}
	table_print(&table, out);
}

static void print_indexes(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"the index by itself", "insert", "lookup", "section each",
	                                      "memory a page",       "",       NULL};
	struct table table;
	char cell[TABLE_CELL];

	begin(&table, 1, heading);
	if (fallocate_find_job(run, &fallocate_fill_job))
		table_set(&table, 5, "of a fill");
	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];
		double share = fallocate_share(run, series);

		if (!series->stat[FALLOCATE_INSERT].count)
			continue;
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(cell, sizeof(cell), series));
		set_figure(&table, 1, median_of(series, FALLOCATE_INSERT), "ns");
		set_figure(&table, 2, median_of(series, FALLOCATE_LOOKUP), "ns");
		set_figure(&table, 3, median_of(series, FALLOCATE_LOOKUP_ALONE), "ns");
		set_figure(&table, 4, median_of(series, FALLOCATE_BYTES), "B");
		if (!isnan(share) && series->job == &fallocate_index_job)
			table_set(&table, 5, "%.5f %%", 100 * share);
	}
	table_print(&table, out);
}

static void print_notes(const struct bench_run *run, FILE *out)
{
	char name[TABLE_CELL];

	for (unsigned i = 0; i < run->series_count; i++)
		if (run->series[i].note[0])
			fprintf(out, "  %s: %s\n", engine_series_name(name, sizeof(name), &run->series[i]),
			        run->series[i].note);
	report_discarded(run, out);
}

void fallocate_print(const struct bench_run *run, FILE *out)
{
	bool sim = fallocate_find_job(run, &fallocate_sim_job) != NULL;

	fprintf(out, "%s\n", run->title);
	print_fills(run, out);
	if (!sim) {
		fprintf(out, "\n");
		print_where(run, out);
	}
	fprintf(out, "\n");
	print_indexes(run, out);
	fprintf(out, "\n");
	print_notes(run, out);
}
