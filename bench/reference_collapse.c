/* SPDX-License-Identifier: MIT */
/* Workload 4: collapse. */
#include "reference.h"

#include "collapse.h"
#include "memory.h"
#include "table.h"

#include <math.h>

static const struct {
	const char *name;
	double us; /* mean of 100 */
} published[] = {
	{"published: read lock dropped, all checked again", 1611.06},
	{"published: read lock upgraded", 1597.01},
};
#define PUBLISHED (sizeof(published) / sizeof(published[0]))
#define PUBLISHED_CLAIM 0.25 /* percent: what the sender calls the difference */

#define QUICK_COUNT 20
#define QUICK_PAIRS 6 /* the fewest that have an interval */

void reference_plan_collapse(struct reference *r)
{
	struct bench_run *run = reference_run(r, "collapse", r->quick ? QUICK_PAIRS : COLLAPSE_PAIRS);

	collapse_plan(run, r->quick ? QUICK_COUNT : COLLAPSE_COUNT, false);
	snprintf(run->title, sizeof(run->title), "4. collapse");
	r->collapse = run;
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

static void print_times(const struct reference *r, FILE *out)
{
	static const char *const heading[] = {"2 MiB made huge", "mean of a round"};
	static const char *const names[] = {"kernel, anonymous", "kernel, shmem", "hugepool, lock upgraded",
	                                    "hugepool, lock dropped, all checked again"};
	static const unsigned order[] = {0, 1, 3, 2};
	struct table table;
	char cell[TABLE_CELL];

	table_init(&table, 2, 1);
	table_row(&table);
	for (unsigned c = 0; c < 2; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 0; i < PUBLISHED; i++) {
		table_row(&table);
		table_set(&table, 0, "%s", published[i].name);
		table_set(&table, 1, "%.2f us", published[i].us);
	}
	for (unsigned i = 0; i < 4; i++) {
		double us = bench_stat_median(&r->collapse->series[order[i]].stat[COLLAPSE_TIME]);

		table_row(&table);
		table_set(&table, 0, "here: %s", names[order[i]]);
		if (isnan(us))
			table_set(&table, 1, "%s", table_figure(cell, us, "us"));
		else
			table_set(&table, 1, "%.2f us", us);
	}
	table_print(&table, out);
}

/* "0.87 %", or what is known of it: "0.31 % (-0.40 to 1.12)" */
static void set_gain(struct table *table, const struct collapse_pair *pair, unsigned metric)
{
	static struct bench_pairs pairs;

	bench_pairs_of_times(&pairs, pair->ours, pair->theirs, metric);
	if (!pairs.ratio.count)
		table_set(table, 1, "-");
	else if (isnan(pairs.low))
		table_set(table, 1, "%.2f %%", 100 * (1 - 1 / pairs.median));
	else
		table_set(table, 1, "%.2f %% (%.2f to %.2f)", 100 * (1 - 1 / pairs.median), 100 * (1 - 1 / pairs.low),
		          100 * (1 - 1 / pairs.high));
}

static void print_gain(const struct reference *r, FILE *out)
{
	static const struct {
		const char *name;
		unsigned pair, metric;
	} rows[] = {
		{"here, by means", COLLAPSE_PAIR_VARIANT, COLLAPSE_TIME},
		{"here, by medians", COLLAPSE_PAIR_VARIANT, COLLAPSE_MEDIAN},
		{"here, A/A: upgrade to itself, by means", COLLAPSE_PAIR_AA, COLLAPSE_TIME},
		{"here, A/A, by medians", COLLAPSE_PAIR_AA, COLLAPSE_MEDIAN},
	};
	struct table table;

	table_init(&table, 2, 1);
	table_row(&table);
	table_set(&table, 0, "what upgrading saves");
	table_set(&table, 1, "of the time");
	table_row(&table);
	table_set(&table, 0, "published: as the sender says");
	table_set(&table, 1, "%.2f %%", PUBLISHED_CLAIM);
	table_row(&table);
	table_set(&table, 0, "published: as the two means say");
	table_set(&table, 1, "%.2f %%", 100 * (published[0].us - published[1].us) / published[0].us);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct collapse_pair pair = collapse_pair(r->collapse, rows[i].pair);

		table_row(&table);
		table_set(&table, 0, "%s", rows[i].name);
		set_gain(&table, &pair, rows[i].metric);
	}
	table_print(&table, out);
}

void reference_print_collapse(const struct reference *r, FILE *out)
{
	fprintf(out,
	        "4. Collapse: map 2 MB aligned, touch it every 4 KB, ask for a collapse, unmap; the mean of many "
	        "times.\n"
	        "   Source: linux-mm, October 2024, collapse with an upgraded read lock: 100 times, madvise 25, the\n"
	        "   kernel's function traced. Here: %u times a round, medians of %u rounds that take turns; the "
	        "kernel's\n"
	        "   are whole system calls, and hugepool's the whole hp_collapse(), which frees the old pages too.\n\n",
	        r->quick ? QUICK_COUNT : COLLAPSE_COUNT, r->collapse->rounds);
	print_times(r, out);
	fprintf(out, "\n   In pairs of rounds, and with what 95 %% confidence leaves open:\n\n");
	print_gain(r, out);
}
