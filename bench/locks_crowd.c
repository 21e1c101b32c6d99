/* SPDX-License-Identifier: MIT */
/* How many operations a crowd of threads or processes gets done. */
#include "locks.h"

#include "bench.h"
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Part: contended -------------------------------------------------------------------------------------------- */

/* Who competes: pthread's first, then ours. */
static const unsigned shared_rivals[] = {CROWD_PTHREAD_RWLOCK, CROWD_RWSEM, CROWD_BIASED};
static const unsigned exclusive_rivals[] = {CROWD_PTHREAD_MUTEX, CROWD_MUTEX};

#define COMPETING_MAX 3

struct rates {
	struct bench_stat rate[COMPETING_MAX], ratio[COMPETING_MAX];
	struct bench_stat others; /* in all rounds together */
};

static bool measure_rates(struct lock_crowd *crowd, struct rates *rates, const struct locks *b, unsigned reads,
                          enum section section, const unsigned *rivals, unsigned count)
{
	struct watch watch = locks_watch(crowd);
	double rate[COMPETING_MAX];

	for (unsigned round = 0; round < b->rounds; round++) {
		bench_progress("contended: %u %s, %u %% reads, section %s: round %u of %u", crowd->count,
		               crowd->processes ? "processes" : "threads", reads, locks_sections[section], round + 1,
		               (unsigned)b->rounds);
		for (unsigned turn = 0; turn < count; turn++) {
			unsigned i = (round + turn) % count;

			if (!lock_crowd_measure(crowd, &lock_crowd_rivals[rivals[i]], reads, b->turns[section],
			                        b->seconds, &rate[i]))
				return false;
			bench_stat_add(&rates->rate[i], rate[i]);
		}
		for (unsigned i = 1; i < count; i++)
			bench_stat_add(&rates->ratio[i], rate[0] > 0 ? rate[i] / rate[0] : NAN);
	}
	locks_watch_end(&watch, crowd, &rates->others);
	return true;
}

static json_t *crowd_variant(const struct lock_crowd *crowd, unsigned reads, enum section section)
{
	char count[16], share[16];

	snprintf(count, sizeof(count), "%u", crowd->count);
	snprintf(share, sizeof(share), "%u", reads);
	return json_pack("{s:s,s:s,s:s,s:s}", "part", "contended", crowd->processes ? "processes" : "threads", count,
	                 "reads", share, "section", locks_sections[section]);
}

/* "41.2 M/s (38.0-44.1)" */
static const char *rate_cell(char cell[TABLE_CELL], const struct bench_stat *stat)
{
	snprintf(cell, TABLE_CELL, "%.2f (%.2f-%.2f)", bench_stat_median(stat) / 1e6, bench_stat_min(stat) / 1e6,
	         bench_stat_max(stat) / 1e6);
	return cell;
}

static void show_rates(struct locks *b, const struct lock_crowd *crowd, const struct rates *rates, unsigned reads,
                       enum section section, const unsigned *rivals, unsigned count, struct table *table)
{
	char cell[TABLE_CELL];

	table_row(table);
	table_set(table, 0, "%u %s", crowd->count, crowd->processes ? "processes" : "threads");
	table_set(table, 1, "%u %%", reads);
	table_set(table, 2, "%s", locks_sections[section]);
	for (unsigned i = 0; i < count; i++) {
		const char *engine = lock_crowd_rivals[rivals[i]].engine;

		locks_add_row(b, engine, crowd_variant(crowd, reads, section), "ops_per_s", "1/s", &rates->rate[i]);
		table_set(table, 3 + i, "%s", rate_cell(cell, &rates->rate[i]));
		if (i == 0)
			continue;
		locks_add_ratio(b, "ops_per_s", engine, lock_crowd_rivals[rivals[0]].engine,
		                crowd_variant(crowd, reads, section), &rates->ratio[i], NAN);
		snprintf(cell, TABLE_CELL, "%.2f (%.2f-%.2f)", bench_stat_median(&rates->ratio[i]),
		         bench_stat_min(&rates->ratio[i]), bench_stat_max(&rates->ratio[i]));
		table_set(table, 2 + count + i, "%s", cell);
	}
	locks_add_watch(b, crowd_variant(crowd, reads, section), &rates->others);
	table_set(table, 2 + 2 * count, "%.0f %%", 100 * bench_stat_median(&rates->others));
}

/* All shares and sections of one crowd. */
static bool do_crowd(struct locks *b, unsigned members, bool processes, struct table *shared, struct table *exclusive)
{
	static struct lock_crowd crowd;
	static struct rates rates;

	if (!lock_crowd_open(&crowd, members, processes))
		return false;
	for (unsigned share = 0; share < b->shares.count; share++) {
		unsigned reads = b->shares.value[share], count = reads ? 3 : 2;
		const unsigned *rivals = reads ? shared_rivals : exclusive_rivals;

		for (unsigned s = 0; s < SECTIONS; s++) {
			if (!b->section[s])
				continue;
			memset(&rates, 0, sizeof(rates));
			/* Whoever is still in the crowd ends with this process. */
			if (!measure_rates(&crowd, &rates, b, reads, s, rivals, count))
				return false;
			show_rates(b, &crowd, &rates, reads, s, rivals, count, reads ? shared : exclusive);
		}
	}
	lock_crowd_close(&crowd);
	return true;
}

bool locks_contended(struct locks *b)
{
	static const char *const shared_heading[] = {"by",        "reads",   "section",  "pthread_rwlock", "hp_rwsem",
	                                             "hp_biased", "rwsem x", "biased x", "others",         NULL};
	static const char *const exclusive_heading[] = {"by",       "reads",   "section", "pthread_mutex",
	                                                "hp_mutex", "mutex x", "others",  NULL};
	struct table shared, exclusive;
	bool done = true;

	table_init(&shared, 9, 3);
	locks_heading(&shared, shared_heading);
	table_init(&exclusive, 7, 3);
	locks_heading(&exclusive, exclusive_heading);
	for (unsigned i = 0; i < b->threads.count && done; i++)
		done = do_crowd(b, b->threads.value[i], false, &shared, &exclusive);
	for (unsigned i = 0; i < b->processes.count && done; i++)
		done = do_crowd(b, b->processes.value[i], true, &shared, &exclusive);
	if (shared.rows > 1)
		locks_table(b, &shared,
		            "contended: million operations per second of all together, median (min-max); x: times "
		            "pthread's");
	if (exclusive.rows > 1)
		locks_table(b, &exclusive,
		            "contended, no readers: million operations per second of all together, median (min-max)");
	return done;
}
