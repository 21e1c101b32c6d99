/* SPDX-License-Identifier: MIT */
/*
 * A round of `hugepool bench collapse` beside threads that store to the page all the time: what they notice.
 *
 * The page goes to base pages (hp_split) and back to a frame, over and over. A writer stores, looks at the clock, and
 * keeps every gap between two stores that is longer than a few stores; of those that meet a collapse the longest is its
 * pause there. The next change begins when all writers are under way again, so that no gap meets two.
 */
#include "collapse.h"

#include "memory.h"

#include "hugepool.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOOR_NS 1000
#define GAPS (1 << 18) /* that a writer keeps in a round, the first ones */

struct span {
	uint64_t from, to; /* ns */
};

struct writer {
	struct state *state;
	unsigned index;
	pthread_t thread;
	_Atomic uint64_t stores;
	struct span *gap;
	unsigned gaps;
	bool lost; /* it did not find what it had stored */
};

struct state {
	struct collapse_state common;
	hp_pool pool;
	hp_file file;
	char *address;
	struct span *collapse; /* of a round */
	double *pause;         /* in us, of a round's collapses and their writers */
	struct writer writer[COLLAPSE_WRITERS_MAX];
	_Atomic bool stop;
	cpu_set_t cpus; /* before this thread kept to one */
};

/* ---- A writer --------------------------------------------------------------------------------------------------- */

/* Its own are the words of every COLLAPSE_WRITERS_MAX-th; the first tells whether a store was lost. */
static uint64_t store_once(struct writer *writer, uint64_t number)
{
	_Atomic uint64_t *word = (_Atomic uint64_t *)(void *)writer->state->address;
	uint64_t at = number * 0x9e3779b97f4a7c15u >> 32; /* anywhere */

	at = at % (BENCH_FRAME / sizeof(*word) / COLLAPSE_WRITERS_MAX) * COLLAPSE_WRITERS_MAX + writer->index;
	if (number > 1)
		writer->lost |= atomic_load_explicit(&word[writer->index], memory_order_relaxed) != number - 1;
	if (at != writer->index)
		atomic_store_explicit(&word[at], number, memory_order_relaxed);
	atomic_store_explicit(&word[writer->index], number, memory_order_relaxed);
	return bench_now_ns();
}

static void *write_on(void *arg)
{
	struct writer *writer = arg;
	struct state *state = writer->state;
	uint64_t last = bench_now_ns();

	sched_setaffinity(0, sizeof(state->cpus), &state->cpus);
	if (state->common.params->pinned)
		bench_pin(1 + writer->index, 2);
	for (uint64_t number = 1; !atomic_load_explicit(&state->stop, memory_order_relaxed); number++) {
		uint64_t now = store_once(writer, number);

		if (now - last > FLOOR_NS && writer->gaps < GAPS)
			writer->gap[writer->gaps++] = (struct span){last, now};
		last = now;
		atomic_store_explicit(&writer->stores, number, memory_order_relaxed);
	}
	return NULL;
}

/* All of them store again. */
static void await_writers(struct state *state)
{
	for (unsigned w = 0; w < state->common.params->writers; w++) {
		uint64_t seen = atomic_load(&state->writer[w].stores);

		while (atomic_load(&state->writer[w].stores) < seen + 2)
			sched_yield();
	}
}

static bool start_writers(struct state *state, unsigned *started)
{
	atomic_store(&state->stop, false);
	for (*started = 0; *started < state->common.params->writers; ++*started) {
		struct writer *writer = &state->writer[*started];
		int rc;

		writer->gaps = 0;
		writer->lost = false;
		atomic_store(&writer->stores, 0);
		rc = pthread_create(&writer->thread, NULL, write_on, writer);
		if (rc)
			return collapse_failed(&state->common, -rc, "a writer", NULL);
	}
	await_writers(state);
	return true;
}

static void stop_writers(struct state *state, unsigned started)
{
	atomic_store(&state->stop, true);
	while (started--)
		pthread_join(state->writer[started].thread, NULL);
}

/* ---- The collapses ---------------------------------------------------------------------------------------------- */

static bool collapse_once(struct state *state, struct span *span)
{
	hp_error error = {0};
	int rc = hp_split(state->address, BENCH_FRAME, &error);

	if (rc)
		return collapse_failed(&state->common, rc, "hp_split", error.message);
	/* A store that the writers do not make: it must not be in the place of one of theirs. */
	for (uint64_t at = 0; at < BENCH_FRAME; at += HP_BASE_PAGE_SIZE)
		atomic_fetch_add((_Atomic uint64_t *)(void *)(state->address + at), 0);
	await_writers(state);
	span->from = bench_now_ns();
	rc = hp_collapse(state->address, BENCH_FRAME, &error);
	span->to = bench_now_ns();
	if (rc)
		return collapse_failed(&state->common, rc, "hp_collapse", error.message);
	await_writers(state);
	return true;
}

static bool collapse_all(struct state *state)
{
	for (unsigned i = 0; i < state->common.params->count; i++) {
		if (!collapse_once(state, &state->collapse[i]))
			return false;
		state->common.all[i] = (double)(state->collapse[i].to - state->collapse[i].from);
	}
	return true;
}

/* ---- What the writers noticed ----------------------------------------------------------------------------------- */

/* A sample for each collapse that one of the gaps meets. Both lists are in the order of time. */
static unsigned note_pauses(const struct state *state, const struct writer *writer, double *pause)
{
	unsigned count = 0, gap = 0;

	for (unsigned i = 0; i < state->common.params->count; i++) {
		const struct span *collapse = &state->collapse[i];
		uint64_t longest = 0;

		while (gap < writer->gaps && writer->gap[gap].to <= collapse->from)
			gap++;
		for (unsigned g = gap; g < writer->gaps && writer->gap[g].from < collapse->to; g++)
			if (writer->gap[g].to - writer->gap[g].from > longest)
				longest = writer->gap[g].to - writer->gap[g].from;
		if (longest)
			pause[count++] = (double)longest / 1e3;
	}
	return count;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static bool sum_up(struct state *state, double value[BENCH_METRICS_MAX])
{
	unsigned count = 0;

	collapse_sum_up(&state->common, &value[COLLAPSE_TIME], &value[COLLAPSE_MEDIAN]);
	for (unsigned w = 0; w < state->common.params->writers; w++) {
		if (state->writer[w].lost) {
			snprintf(state->common.why, BENCH_WHY, "a store was lost");
			return false;
		}
		count += note_pauses(state, &state->writer[w], state->pause + count);
	}
	qsort(state->pause, count, sizeof(*state->pause), compare);
	if (!count)
		return true;
	value[COLLAPSE_PAUSE] = state->pause[count / 2];
	value[COLLAPSE_PAUSE_95] = state->pause[(unsigned)(0.95 * (count - 1))];
	value[COLLAPSE_PAUSE_MAX] = state->pause[count - 1];
	return true;
}

/* ---- A series --------------------------------------------------------------------------------------------------- */

static bool make_memory(struct state *state)
{
	unsigned writers = state->common.params->writers, count = state->common.params->count;

	state->collapse = calloc(count, sizeof(*state->collapse));
	state->pause = calloc((size_t)count * writers, sizeof(*state->pause));
	for (unsigned w = 0; w < writers; w++) {
		state->writer[w] = (struct writer){.state = state, .index = w};
		state->writer[w].gap = calloc(GAPS, sizeof(struct span));
		if (!state->writer[w].gap)
			return collapse_failed(&state->common, -ENOMEM, "no memory", NULL);
	}
	return state->collapse && state->pause ? true : collapse_failed(&state->common, -ENOMEM, "no memory", NULL);
}

static bool make_file(struct state *state)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_error error = {0};
	void *address;
	int rc;

	options.size = BENCH_FRAME;
	options.backing = HP_BACKING_HUGETLB;
	options.workers = HP_WORKERS_NONE;
	options.tuning = state->common.params->tuning;
	rc = hp_pool_create(&options, &state->pool, &error);
	if (rc)
		return collapse_failed(&state->common, rc, "hp_pool_create", error.message);
	rc = hp_file_create(state->pool, BENCH_FRAME, HP_FILE_FALLBACK | HP_FILE_MOVABLE, &state->file, &error);
	if (!rc)
		rc = hp_map(state->file, 0, BENCH_FRAME, HP_PROT_READ | HP_PROT_WRITE, 0, &address, &error);
	if (rc)
		return collapse_failed(&state->common, rc, "hp_map", error.message);
	state->address = address;
	collapse_touch(address);
	return true;
}

static void *open_series(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	struct state *state = calloc(1, sizeof(*state));

	if (!state)
		return NULL;
	if (!collapse_begin(&state->common, params, why) || !make_memory(state) || !make_file(state))
		return NULL;
	sched_getaffinity(0, sizeof(state->cpus), &state->cpus);
	if (state->common.params->pinned && bench_cpus() < 2)
		snprintf(note, BENCH_NOTE, "there is one CPU for both");
	if (state->common.params->pinned)
		bench_pin(0, 2);
	return state;
}

static void do_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct state *state = arg;
	unsigned started;

	(void)warm_up;
	state->common.why = sample->why;
	sample->counts = start_writers(state, &started) && collapse_all(state);
	stop_writers(state, started);
	sample->counts = sample->counts && sum_up(state, sample->value);
}

static bool close_series(void *arg, char why[BENCH_WHY])
{
	struct state *state = arg;
	hp_error error = {0};
	int rc = hp_unmap(state->address, BENCH_FRAME);

	state->common.why = why;
	if (!rc)
		rc = hp_file_close(state->file);
	if (!rc)
		rc = hp_pool_check(state->pool, &error);
	if (!rc)
		rc = hp_pool_close(state->pool);
	return rc ? collapse_failed(&state->common, rc, "at the end", error.message) : true;
}

const struct bench_job collapse_writers_job = {open_series, do_round, close_series};
