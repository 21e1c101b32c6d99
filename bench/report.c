/* SPDX-License-Identifier: MIT */
#include "report.h"

#include "command.h"
#include "env.h"
#include "table.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Those with which ratios are always given, as null where one does not exist; other engines follow. */
static const char *const rivals[] = {"kernel", "tuned", "prefilled"};

/* -1: there is none. */
static int find_default(const struct bench_run *run, const char *engine)
{
	for (unsigned i = 0; i < run->series_count; i++)
		if (bench_series_is_default(&run->series[i]) && !strcmp(run->series[i].engine, engine))
			return (int)i;
	return -1;
}

double report_default_median(const struct bench_run *run, const char *engine, unsigned metric)
{
	int i = find_default(run, engine);

	return i < 0 ? NAN : bench_stat_median(&run->series[i].stat[metric]);
}

static double ratio_with(const struct bench_run *run, const char *engine, unsigned metric)
{
	return bench_ratio(report_default_median(run, "hugepool", metric), report_default_median(run, engine, metric),
	                   run->metric[metric].more_is_better);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

json_t *report_number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *variant(const struct bench_series *series, const struct bench_metric *metric)
{
	json_t *object = json_object();

	for (unsigned i = 0; i < BENCH_TAGS_MAX && series->variant[i].key; i++)
		json_object_set_new(object, series->variant[i].key, json_string(series->variant[i].value));
	if (metric && metric->phase)
		json_object_set_new(object, "phase", json_string(metric->phase));
	return object;
}

static json_t *rows(const struct bench_run *run)
{
	json_t *array = json_array();

	for (unsigned m = 0; m < run->metrics; m++) {
		for (unsigned i = 0; i < run->series_count; i++) {
			const struct bench_series *series = &run->series[i];
			const struct bench_stat *stat = &series->stat[m];
			json_t *values;

			if (!stat->count)
				continue;
			values = json_array();
			for (unsigned s = 0; s < stat->count; s++)
				json_array_append_new(values, report_number(stat->samples[s]));
			json_array_append_new(array,
			                      json_pack("{s:s,s:o,s:s,s:s,s:o,s:o,s:o,s:I,s:o}", "engine",
			                                series->engine, "variant", variant(series, &run->metric[m]),
			                                "metric", run->metric[m].name, "unit", run->metric[m].unit,
			                                "median", report_number(bench_stat_median(stat)), "min",
			                                report_number(bench_stat_min(stat)), "max",
			                                report_number(bench_stat_max(stat)), "samples",
			                                (json_int_t)stat->count, "values", values));
		}
	}
	return array;
}

static json_t *discarded(const struct bench_run *run)
{
	json_t *reasons = json_array();
	json_int_t count = 0;

	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];

		count += series->discarded;
		for (unsigned r = 0; r < series->reasons; r++)
			json_array_append_new(reasons,
			                      json_pack("{s:s,s:o,s:s,s:i}", "engine", series->engine, "variant",
			                                variant(series, NULL), "reason", series->reason[r].text,
			                                "count", (int)series->reason[r].count));
	}
	return json_pack("{s:I,s:o}", "count", count, "reasons", reasons);
}

static json_t *ratios(const struct bench_run *run)
{
	json_t *object = json_object();

	for (unsigned m = 0; m < run->metrics; m++) {
		json_t *one;

		if (!run->metric[m].ratio)
			continue;
		one = json_object();
		for (unsigned r = 0; r < 3; r++) {
			char key[64];

			snprintf(key, sizeof(key), "vs_%s", rivals[r]);
			json_object_set_new(one, key, report_number(ratio_with(run, rivals[r], m)));
		}
		for (unsigned i = 0; i < run->series_count; i++) {
			char key[64];

			snprintf(key, sizeof(key), "vs_%s", run->series[i].engine);
			if (strcmp(run->series[i].engine, "hugepool") && bench_series_is_default(&run->series[i]))
				json_object_set_new(one, key, report_number(ratio_with(run, run->series[i].engine, m)));
		}
		json_object_set_new(object, run->metric[m].name, one);
	}
	return object;
}

json_t *report_json(const struct bench_run *run, json_t *params, json_t *env)
{
	json_t *report = json_pack("{s:i,s:s}", "version", 1, "bench", run->bench);
	json_t *notes = json_array();

	if (params)
		json_object_set_new(report, "params", params);
	if (env)
		json_object_set_new(report, "env", env);
	for (unsigned i = 0; i < run->series_count; i++)
		if (run->series[i].note[0])
			json_array_append_new(notes,
			                      json_pack("{s:s,s:o,s:s}", "engine", run->series[i].engine, "variant",
			                                variant(&run->series[i], NULL), "note", run->series[i].note));
	json_object_set_new(report, "rows", rows(run));
	json_object_set_new(report, "discarded", discarded(run));
	json_object_set_new(report, "ratios", ratios(run));
	json_object_set_new(report, "notes", notes);
	return report;
}

void report_json_print(json_t *report, FILE *out)
{
	json_dumpf(report, out, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
	fputs("\n", out);
	json_decref(report);
}

/* ---- Text ------------------------------------------------------------------------------------------------------- */

static void variant_text(char cell[TABLE_CELL], const struct bench_series *series, const struct bench_metric *metric)
{
	size_t used = 0;

	cell[0] = 0;
	for (unsigned i = 0; i < BENCH_TAGS_MAX && series->variant[i].key && used < TABLE_CELL; i++)
		used += (size_t)snprintf(cell + used, TABLE_CELL - used, "%s%s=%s", used ? " " : "",
		                         series->variant[i].key, series->variant[i].value);
	if (metric && metric->phase && used < TABLE_CELL)
		snprintf(cell + used, TABLE_CELL - used, "%sphase=%s", used ? " " : "", metric->phase);
}

void report_table(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"metric", "engine", "variant", "median",
	                                      "min",    "max",    "samples", "hugepool is"};
	struct table table;
	char cell[TABLE_CELL];

	fprintf(out, "%s\n", run->title);
	table_init(&table, 8, 3);
	table_row(&table);
	for (unsigned c = 0; c < 8; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned m = 0; m < run->metrics; m++) {
		const struct bench_metric *metric = &run->metric[m];

		for (unsigned i = 0; i < run->series_count; i++) {
			const struct bench_series *series = &run->series[i];
			const struct bench_stat *stat = &series->stat[m];
			double ratio = NAN;

			if (!stat->count)
				continue;
			table_row(&table);
			table_set(&table, 0, "%s", metric->name);
			table_set(&table, 1, "%s", series->engine);
			variant_text(cell, series, metric);
			table_set(&table, 2, "%s", cell);
			table_set(&table, 3, "%s", table_figure(cell, bench_stat_median(stat), metric->unit));
			table_set(&table, 4, "%s", table_figure(cell, bench_stat_min(stat), metric->unit));
			table_set(&table, 5, "%s", table_figure(cell, bench_stat_max(stat), metric->unit));
			table_set(&table, 6, "%u", stat->count);
			if (metric->ratio && bench_series_is_default(series) && strcmp(series->engine, "hugepool"))
				ratio = ratio_with(run, series->engine, m);
			if (!isnan(ratio))
				table_set(&table, 7, "%s x", table_ratio(cell, ratio));
		}
	}
	table_print(&table, out);
	for (unsigned i = 0; i < run->series_count; i++) {
		variant_text(cell, &run->series[i], NULL);
		if (run->series[i].note[0])
			fprintf(out, "  %s%s%s: %s\n", run->series[i].engine, *cell ? " " : "", cell,
			        run->series[i].note);
	}
	report_discarded(run, out);
}

void report_discarded(const struct bench_run *run, FILE *out)
{
	char cell[TABLE_CELL];

	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];

		variant_text(cell, series, NULL);
		for (unsigned r = 0; r < series->reasons; r++)
			fprintf(out, "  discarded: %u round%s of %s%s%s: %s\n", series->reason[r].count,
			        series->reason[r].count == 1 ? "" : "s", series->engine, *cell ? " " : "", cell,
			        series->reason[r].text);
	}
}

int bench_command_with(struct bench_run *run, bool json, json_t *params,
                       void (*table)(const struct bench_run *run, FILE *out),
                       void (*more)(const struct bench_run *run, json_t *report))
{
	struct bench_pages pages;
	json_t *env, *report = NULL;
	int rc = bench_measure(&run, 1, &pages);

	if (rc && rc != -EUCLEAN) {
		json_decref(params);
		return BENCH_FAILED;
	}
	env = bench_env(&pages);
	if (json) {
		report = report_json(run, params, env);
	} else {
		bench_env_print(env, stdout);
		fputs("\n", stdout);
		table(run, stdout);
		json_decref(params);
		json_decref(env);
	}
	if (more)
		more(run, report);
	if (report)
		report_json_print(report, stdout);
	return rc ? BENCH_FAILED : bench_status(&run, 1);
}

int bench_command(struct bench_run *run, bool json, json_t *params)
{
	return bench_command_with(run, json, params, report_table, NULL);
}
