/* SPDX-License-Identifier: MIT */
/*
 * The lock statistics of a series, for the report.
 *
 * They are read in the series' process, while its pool is still there, into memory that it shares with the bench, which
 * prints them when all series are over.
 */
#ifndef BENCH_ENGINE_LOCKS_H
#define BENCH_ENGINE_LOCKS_H

#include "engine.h"

#include "hugepool.h"

#include <jansson.h>
#include <stdio.h>

struct engine_locks {
	unsigned rounds; /* that they are of; the one that warms up is not among them */
	unsigned count;  /* 0: the series has none, or did not come to its end */
	hp_lock_stat row[HP_LOCK_STATS_MAX];
};

/* Zeroed memory that is shared with processes forked later. Not freed: it is as good as static. */
void *engine_share(size_t size);

/* In the series' process, after its round to warm up. */
void engine_locks_begin(struct engine_memory *memory);
/* After its last one. `locks` may be NULL. False, with a reason in `memory`. */
bool engine_locks_end(struct engine_memory *memory, struct engine_locks *locks, unsigned rounds);

/* "fault"; the mode is 'R', 'W', or 0 for a mutex. All zeroes where it was never taken. */
hp_lock_stat engine_locks_find(const struct engine_locks *locks, const char *class, char mode);

/* What a short table shows: the locks of faults, and of the others those of classes where somebody waited. */
bool engine_locks_matter(const struct engine_locks *locks, const hp_lock_stat *row);

/* In the layout of /proc/lock_stat, under a line that names the series. */
void engine_locks_print(const struct engine_locks *locks, const struct bench_series *series, bool all, FILE *out);
/* {"engine", "variant", "rounds", "rows"}; a row has the keys that `hugepool lockstat --json` gives it too. */
json_t *engine_locks_json(const struct engine_locks *locks, const struct bench_series *series);

/* "hugepool file_lock=vma" */
const char *engine_series_name(char *name, size_t size, const struct bench_series *series);
/* {"file_lock": "vma"} */
json_t *engine_series_variant(const struct bench_series *series);

#endif
