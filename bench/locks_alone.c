/* SPDX-License-Identifier: MIT */
/* What one thread pays for a lock and an unlock, and what the statistics add to that. */
#include "locks.h"

#include "bench.h"
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_LOOPS 2000 /* to warm up, and to find out how many make a slice */

/* What is asked of the locks, as times of pthread's; and of the statistics, as times of doing without. */
#define BAR_MUTEX 1.1
#define BAR_BIASED 0.6
#define BAR_STATISTICS 1.15

/* ---- One thread ------------------------------------------------------------------------------------------------- */

struct single {
	struct lock_site site;
	struct hp_locker who;
	struct hp_slot *slot;
	uint64_t count[LOCK_RIVALS]; /* loops that make a slice */
};

struct subject {
	unsigned rival;
	bool statistics;
};

/* Seconds for one turn of a rival's loop. */
static double time_loop(struct single *single, struct subject subject, uint64_t count, uint32_t turns)
{
	const struct lock_rival *r = &lock_rivals[subject.rival];
	uint64_t start;

	lock_site_set_statistics(&single->site, subject.statistics);
	lock_site_renew(&single->site);
	if (r->prepare)
		r->prepare(&single->site);
	start = bench_now_ns();
	r->loop(&single->site, &single->who, count, turns);
	return (double)(bench_now_ns() - start) / 1e9 / (double)count;
}

/* Fills seconds[] in the order of the subjects. Which of them follows which changes with each slice. */
static void time_batch(struct single *single, const struct subject *subject, unsigned subjects, uint32_t turns,
                       double *seconds)
{
	static struct bench_stat slices[LOCK_RIVALS];

	for (unsigned i = 0; i < subjects; i++)
		slices[i].count = 0;
	for (unsigned slice = 0; slice < SLICES; slice++) {
		for (unsigned turn = 0; turn < subjects; turn++) {
			unsigned place = slice / subjects % 2 ? subjects - 1 - turn : turn;
			unsigned i = (slice + place) % subjects;

			bench_stat_add(&slices[i],
			               time_loop(single, subject[i], single->count[subject[i].rival], turns));
		}
	}
	for (unsigned i = 0; i < subjects; i++)
		seconds[i] = bench_stat_median(&slices[i]);
}

static bool single_open(struct single *single)
{
	if (!lock_site_open(&single->site, 1))
		return false;
	single->slot = lock_site_join(&single->site, &single->who, 0);
	if (!single->slot)
		fprintf(stderr, "hugepool bench: the domain of the locks does not take this thread\n");
	return single->slot != NULL;
}

static void single_close(struct single *single)
{
	lock_site_leave(single->slot);
	lock_site_close(&single->site);
}

static void find_counts(struct single *single, uint32_t turns)
{
	for (unsigned r = 0; r < LOCK_RIVALS; r++) {
		double each = INFINITY;

		for (unsigned i = 0; i < 5; i++)
			each = fmin(each, time_loop(single, (struct subject){r, true}, FIRST_LOOPS, turns));
		single->count[r] = (uint64_t)(SLICE_S / (each > 1e-10 ? each : 1e-10)) + 1;
	}
}

static json_t *single_variant(const char *part, const char *mode, enum section section)
{
	json_t *variant = json_pack("{s:s,s:s}", "part", part, "section", locks_sections[section]);

	if (*mode)
		json_object_set_new(variant, "mode", json_string(mode));
	return variant;
}

/* ---- Part: uncontended ------------------------------------------------------------------------------------------ */

static const struct comparison {
	unsigned ours, theirs;
	double bar;
} comparisons[] = {
	{LOCK_MUTEX, LOCK_PTHREAD_MUTEX, BAR_MUTEX},     {LOCK_BIASED_READ, LOCK_PTHREAD_READ, BAR_BIASED},
	{LOCK_BIASED_READ_WARM, LOCK_PTHREAD_READ, NAN}, {LOCK_RWSEM_READ, LOCK_PTHREAD_READ, NAN},
	{LOCK_RWSEM_WRITE, LOCK_PTHREAD_WRITE, NAN},     {LOCK_BIASED_WRITE, LOCK_PTHREAD_WRITE, NAN},
};

#define COMPARISONS (sizeof(comparisons) / sizeof(comparisons[0]))

struct times {
	struct bench_stat gross[LOCK_RIVALS], own[LOCK_RIVALS];
	struct bench_stat gross_ratio[COMPARISONS], own_ratio[COMPARISONS];
};

static void measure_times(struct single *single, struct times *times, const struct locks *b, enum section section)
{
	struct subject subjects[LOCK_RIVALS];
	double gross[LOCK_RIVALS];

	for (unsigned r = 0; r < LOCK_RIVALS; r++)
		subjects[r] = (struct subject){r, true};
	find_counts(single, b->turns[section]);
	for (unsigned batch = 0; batch < b->batches; batch++) {
		bench_progress("uncontended, section %s: batch %u of %u", locks_sections[section], batch + 1,
		               (unsigned)b->batches);
		time_batch(single, subjects, LOCK_RIVALS, b->turns[section], gross);
		for (unsigned r = 0; r < LOCK_RIVALS; r++) {
			bench_stat_add(&times->gross[r], gross[r]);
			bench_stat_add(&times->own[r], gross[r] - gross[LOCK_BARE]);
		}
		for (unsigned c = 0; c < COMPARISONS; c++) {
			double ours = gross[comparisons[c].ours], theirs = gross[comparisons[c].theirs];

			bench_stat_add(&times->gross_ratio[c], ours / theirs);
			bench_stat_add(&times->own_ratio[c], (ours - gross[LOCK_BARE]) / (theirs - gross[LOCK_BARE]));
		}
	}
}

static void show_times(struct locks *b, const struct times *times, enum section section, struct table *table)
{
	char cell[TABLE_CELL];

	for (unsigned r = 0; r < LOCK_RIVALS; r++) {
		const struct lock_rival *rival = &lock_rivals[r];

		locks_add_row(b, rival->engine, single_variant("uncontended", rival->mode, section), "op_s", "s",
		              &times->gross[r]);
		table_row(table);
		table_set(table, 0, "%s", locks_name(cell, rival));
		table_set(table, 1, "%s", locks_sections[section]);
		table_set(table, 2, "%s", table_figure(cell, bench_stat_median(&times->gross[r]), "s"));
		table_set(table, 3, "%s", table_figure(cell, bench_stat_min(&times->gross[r]), "s"));
		table_set(table, 4, "%s", table_figure(cell, bench_stat_max(&times->gross[r]), "s"));
		table_set(table, 6, "%u", times->gross[r].count);
		if (r == LOCK_BARE)
			continue;
		locks_add_row(b, rival->engine, single_variant("uncontended", rival->mode, section), "own_s", "s",
		              &times->own[r]);
		table_set(table, 5, "%s", table_figure(cell, bench_stat_median(&times->own[r]), "s"));
	}
}

/* A section hides what its lock costs: only for what is left without it, and without a section, is there a bar. */
static void show_comparisons(struct locks *b, const struct times *times, enum section section, struct table *table)
{
	char cell[TABLE_CELL];

	for (unsigned c = 0; c < COMPARISONS; c++) {
		const struct lock_rival *ours = &lock_rivals[comparisons[c].ours];
		const struct lock_rival *theirs = &lock_rivals[comparisons[c].theirs];
		double bar = comparisons[c].bar;

		locks_add_ratio(b, "op_s", ours->engine, theirs->engine,
		                single_variant("uncontended", ours->mode, section), &times->gross_ratio[c],
		                section == EMPTY ? bar : NAN);
		locks_add_ratio(b, "own_s", ours->engine, theirs->engine,
		                single_variant("uncontended", ours->mode, section), &times->own_ratio[c], bar);
		table_row(table);
		table_set(table, 0, "%s", locks_name(cell, ours));
		table_set(table, 1, "%s", locks_name(cell, theirs));
		table_set(table, 2, "%s", locks_sections[section]);
		table_set(table, 3, "%s", locks_ratio_cell(cell, &times->own_ratio[c]));
		table_set(table, 4, "%s", locks_ratio_cell(cell, &times->gross_ratio[c]));
		if (!isnan(bar)) {
			bool within = bench_stat_median(&times->own_ratio[c]) <= bar &&
			              (section != EMPTY || bench_stat_median(&times->gross_ratio[c]) <= bar);

			table_set(table, 5, "%.2f", bar);
			table_set(table, 6, "%s", within ? "within" : "above");
		}
	}
}

bool locks_uncontended(struct locks *b)
{
	static const char *const heading[] = {"lock", "section", "median", "min", "max", "its own", "batches", NULL};
	static const char *const ratio_heading[] = {"ours", "theirs", "section", "own cost", "with the section",
	                                            "bar",  "",       NULL};
	static struct single single;
	static struct times times;
	static struct bench_stat others;
	struct watch watch = locks_watch(NULL);
	struct table table, ratios;

	if (!single_open(&single))
		return false;
	table_init(&table, 7, 2);
	locks_heading(&table, heading);
	table_init(&ratios, 7, 3);
	locks_heading(&ratios, ratio_heading);
	for (unsigned s = 0; s < SECTIONS; s++) {
		if (!b->section[s])
			continue;
		memset(&times, 0, sizeof(times));
		measure_times(&single, &times, b, s);
		show_times(b, &times, s, &table);
		show_comparisons(b, &times, s, &ratios);
	}
	single_close(&single);
	locks_watch_end(&watch, NULL, &others);
	locks_end_table(b, &table, "uncontended",
	                "one lock and unlock by one thread; its own: less what the section takes", &others);
	locks_table(b, &ratios, "uncontended: our time to theirs, median (95 % confidence)");
	return true;
}

/* ---- Part: statistics ------------------------------------------------------------------------------------------- */

enum { OFF, ON, OFF_AGAIN, STATES };

struct costs {
	struct bench_stat time[STATES], ratio, same; /* on to off; off to off */
};

static void measure_costs(struct single *single, struct costs *costs, const struct locks *b, unsigned rival,
                          uint32_t turns)
{
	const struct subject subjects[STATES] = {
		[OFF] = {rival, false}, [ON] = {rival, true}, [OFF_AGAIN] = {rival, false}};
	double time[STATES];

	for (unsigned pair = 0; pair < b->batches; pair++) {
		time_batch(single, subjects, STATES, turns, time);
		for (unsigned state = 0; state < STATES; state++)
			bench_stat_add(&costs->time[state], time[state]);
		bench_stat_add(&costs->ratio, time[ON] / time[OFF]);
		bench_stat_add(&costs->same, time[OFF_AGAIN] / time[OFF]);
	}
}

static void show_costs(struct locks *b, const struct costs *costs, const struct lock_rival *rival, enum section section,
                       struct table *table)
{
	static const char *const names[STATES] = {"off", "on", "off again"};
	double low, high;
	char cell[TABLE_CELL];

	for (unsigned state = 0; state < STATES; state++) {
		json_t *variant = single_variant("statistics", rival->mode, section);

		json_object_set_new(variant, "statistics", json_string(names[state]));
		locks_add_row(b, rival->engine, variant, "op_s", "s", &costs->time[state]);
	}
	locks_add_ratio(b, "statistics", "on", "off",
	                json_pack("{s:s,s:s,s:s}", "engine", rival->engine, "mode", rival->mode, "section",
	                          locks_sections[section]),
	                &costs->ratio, BAR_STATISTICS);
	locks_add_ratio(b, "statistics", "off again", "off",
	                json_pack("{s:s,s:s,s:s}", "engine", rival->engine, "mode", rival->mode, "section",
	                          locks_sections[section]),
	                &costs->same, NAN);
	table_row(table);
	table_set(table, 0, "%s", locks_name(cell, rival));
	table_set(table, 1, "%s", locks_sections[section]);
	table_set(table, 2, "%s", table_figure(cell, bench_stat_median(&costs->time[OFF]), "s"));
	table_set(table, 3, "%s", table_figure(cell, bench_stat_median(&costs->time[ON]), "s"));
	table_set(table, 4, "%s", locks_ratio_cell(cell, &costs->ratio));
	table_set(table, 5, "%s", locks_ratio_cell(cell, &costs->same));
	table_set(table, 6, "%u", costs->ratio.count);
	table_set(table, 7, "%.2f", BAR_STATISTICS);
	if (bench_stat_confidence(&costs->ratio, &low, &high))
		table_set(table, 8, "%s",
		          high <= BAR_STATISTICS ? "within"
		          : low > BAR_STATISTICS ? "above"
		                                 : "unsure");
}

bool locks_statistics(struct locks *b)
{
	static const char *const heading[] = {"lock",       "section", "off", "on", "on to off",
	                                      "off to off", "pairs",   "bar", "",   NULL};
	static struct single single;
	static struct costs costs;
	static struct bench_stat others;
	struct watch watch = locks_watch(NULL);
	struct table table;

	if (!single_open(&single))
		return false;
	table_init(&table, 9, 2);
	locks_heading(&table, heading);
	for (unsigned s = 0; s < SECTIONS; s++) {
		if (!b->section[s])
			continue;
		find_counts(&single, b->turns[s]);
		for (unsigned r = 0; r < LOCK_RIVALS; r++) {
			if (!lock_rivals[r].ours)
				continue;
			bench_progress("statistics: %s %s, section %s", lock_rivals[r].engine, lock_rivals[r].mode,
			               locks_sections[s]);
			memset(&costs, 0, sizeof(costs));
			measure_costs(&single, &costs, b, r, b->turns[s]);
			show_costs(b, &costs, &lock_rivals[r], s, &table);
		}
	}
	single_close(&single);
	locks_watch_end(&watch, NULL, &others);
	locks_end_table(b, &table, "statistics",
	                "time with them to time without, median (95 % confidence); off to off: how sure that is",
	                &others);
	return true;
}
