/* SPDX-License-Identifier: MIT */
/* Rows and tables of `hugepool bench locks`. */
#include "locks.h"

#include "bench.h"
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *const locks_sections[SECTIONS] = {"empty", "200ns"};

/* ---- What a part finds ------------------------------------------------------------------------------------------ */

json_t *locks_number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

void locks_add_row(struct locks *b, const char *engine, json_t *variant, const char *metric, const char *unit,
                   const struct bench_stat *stat)
{
	json_t *values = json_array();

	for (unsigned i = 0; i < stat->count; i++)
		json_array_append_new(values, locks_number(stat->samples[i]));
	json_array_append_new(
		b->rows, json_pack("{s:s,s:o,s:s,s:s,s:o,s:o,s:o,s:I,s:o}", "engine", engine, "variant", variant,
	                           "metric", metric, "unit", unit, "median", locks_number(bench_stat_median(stat)),
	                           "min", locks_number(bench_stat_min(stat)), "max", locks_number(bench_stat_max(stat)),
	                           "samples", (json_int_t)stat->count, "values", values));
}

/* bar NaN: none. */
void locks_add_ratio(struct locks *b, const char *metric, const char *ours, const char *theirs, json_t *variant,
                     const struct bench_stat *ratio, double bar)
{
	json_t *list = json_object_get(b->ratios, metric);
	double low, high;

	if (!list) {
		list = json_array();
		json_object_set_new(b->ratios, metric, list);
	}
	bench_stat_confidence(ratio, &low, &high);
	json_array_append_new(list,
	                      json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:o}", "ours", ours, "theirs", theirs,
	                                "variant", variant, "ratio", locks_number(bench_stat_median(ratio)), "min",
	                                locks_number(bench_stat_min(ratio)), "max", locks_number(bench_stat_max(ratio)),
	                                "low", locks_number(low), "high", locks_number(high), "samples",
	                                (json_int_t)ratio->count, "at_most", locks_number(bar)));
}

/* "1.03 (1.01-1.05)": the median and its confidence interval. */
const char *locks_ratio_cell(char cell[TABLE_CELL], const struct bench_stat *ratio)
{
	double low, high;

	if (bench_stat_confidence(ratio, &low, &high))
		snprintf(cell, TABLE_CELL, "%.3f (%.3f-%.3f)", bench_stat_median(ratio), low, high);
	else
		snprintf(cell, TABLE_CELL, "%.3f", bench_stat_median(ratio));
	return cell;
}

const char *locks_name(char cell[TABLE_CELL], const struct lock_rival *rival)
{
	snprintf(cell, TABLE_CELL, "%s%s%s", rival->engine, *rival->mode ? " " : "", rival->mode);
	return cell;
}

void locks_heading(struct table *table, const char *const *heading)
{
	table_row(table);
	for (unsigned c = 0; heading[c]; c++)
		table_set(table, c, "%s", heading[c]);
}

/* Printed, or thrown away where JSON alone is asked for. */
void locks_table(struct locks *b, struct table *table, const char *title)
{
	bench_progress(NULL);
	if (b->json) {
		free(table->cell);
		return;
	}
	printf("\n%s\n", title);
	table_print(table, stdout);
	fflush(stdout);
}

/* ---- What others do --------------------------------------------------------------------------------------------- */

/* CPU time that this machine has spent, for whomever, what its host took from it included; NaN: it does not tell. */
static double machine_cpu_s(void)
{
	double user, nice, system, idle, wait, irq, softirq, steal, sum = NAN;
	FILE *file = fopen("/proc/stat", "r");

	if (file && fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &wait, &irq,
	                   &softirq, &steal) == 8)
		sum = (user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK);
	if (file)
		fclose(file);
	return sum;
}

static double own_cpu_s(const struct lock_crowd *crowd)
{
	return crowd ? lock_crowd_cpu_s(crowd) : (double)bench_cpu_ns() / 1e9;
}

/* crowd NULL: there is only this process. */
struct watch locks_watch(const struct lock_crowd *crowd)
{
	return (struct watch){machine_cpu_s(), own_cpu_s(crowd), bench_now_ns()};
}

/* The machine counts in ticks: the time since the begin should be long enough for many. */
void locks_watch_end(const struct watch *watch, const struct lock_crowd *crowd, struct bench_stat *share)
{
	double others = machine_cpu_s() - watch->machine - (own_cpu_s(crowd) - watch->own);

	others /= (double)(bench_now_ns() - watch->start) / 1e9 * (double)sysconf(_SC_NPROCESSORS_ONLN);
	bench_stat_add(share, isnan(others) ? NAN : fmin(fmax(others, 0), 1));
}

void locks_add_watch(struct locks *b, json_t *variant, const struct bench_stat *share)
{
	locks_add_row(b, "others", variant, "cpu_share", "", share);
}

void locks_end_table(struct locks *b, struct table *table, const char *part, const char *title,
                     const struct bench_stat *share)
{
	char line[256];

	locks_add_watch(b, json_pack("{s:s}", "part", part), share);
	snprintf(line, sizeof(line), "%s: %s\n(others had %.0f %% of the CPUs meanwhile)", part, title,
	         100 * bench_stat_median(share));
	locks_table(b, table, line);
}
