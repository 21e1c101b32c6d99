/* SPDX-License-Identifier: MIT */
/*
 * A round of `hugepool bench tlb`: a movable file that has base pages, a chain of pointers through all of it in random
 * order, and one walk along it, on base pages, half collapsed, collapsed. A read needs the one before it, so that it
 * shows all of its time; and the walk is a cycle, so that it proves that no pointer was lost.
 *
 * The pool is made in the round and gone after it: sizes take turns, and need not have room beside each other.
 */
#include "tlb.h"

#include "memory.h"

#include "hugepool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * As many places for all sizes where that is possible: 256 MiB of cache lines, more than caches have, so that a larger
 * memory differs by its translation alone. At the least a place for each base page.
 */
#define NODES ((uint64_t)4 << 20)
#define LINE 64
#define PARTS 64      /* of a walk; divides the places of all whole frames */
#define FRAMES_NONE 1 /* frames of a pool that has none to give: it is held all the time */

struct state {
	const struct tlb *params;
	hp_pool pool;
	hp_file file;
	char *memory;
	void *frames;    /* the pool's, held until the file has base pages */
	uint32_t *order; /* of the walk */
	bool has_frames; /* else the kernel collapses in place */
	char *why;
};

uint64_t tlb_stride(uint64_t size)
{
	uint64_t stride = LINE;

	while (stride < HP_BASE_PAGE_SIZE && size / stride > NODES)
		stride *= 2;
	return stride;
}

uint64_t tlb_nodes(uint64_t size)
{
	return size / tlb_stride(size);
}

static bool failed(struct state *state, int rc, const char *what, const hp_error *error)
{
	snprintf(state->why, BENCH_WHY, "%s: %.140s", what,
	         error && error->message[0] ? error->message : strerror(-rc));
	return false;
}

/* ---- The memory ------------------------------------------------------------------------------------------------- */

/* Of the kernel's pool as large as the file. Where that cannot be had: a pool that is all promised to somebody. */
static bool make_pool(struct state *state)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_error error = {0};
	int rc;

	options.size = state->params->size;
	options.backing = HP_BACKING_HUGETLB;
	options.workers = HP_WORKERS_NONE;
	rc = hp_pool_create(&options, &state->pool, &error);
	state->has_frames = !rc;
	if (!rc)
		return true;
	options.size = FRAMES_NONE * BENCH_FRAME;
	options.max_size = state->params->size + options.size;
	options.backing = HP_BACKING_AUTO;
	rc = hp_pool_create(&options, &state->pool, &error);
	return rc ? failed(state, rc, "hp_pool_create", &error) : true;
}

static bool make_memory(struct state *state)
{
	uint64_t size = state->params->size;
	hp_error error = {0};
	void *address;
	int rc = hp_alloc(state->pool, state->has_frames ? size : FRAMES_NONE * BENCH_FRAME, &state->frames, &error);

	if (rc)
		return failed(state, rc, "hp_alloc", &error);
	rc = hp_file_create(state->pool, size, HP_FILE_FALLBACK | HP_FILE_MOVABLE, &state->file, &error);
	if (rc)
		return failed(state, rc, "hp_file_create", &error);
	rc = hp_map(state->file, 0, size, HP_PROT_READ | HP_PROT_WRITE, 0, &address, &error);
	if (rc)
		return failed(state, rc, "hp_map", &error);
	state->memory = address;
	for (uint64_t at = 0; at < size; at += HP_BASE_PAGE_SIZE)
		*(volatile char *)(state->memory + at) = 0;
	if (!state->has_frames)
		return true;
	rc = hp_free(state->pool, state->frames);
	state->frames = NULL;
	return rc ? failed(state, rc, "hp_free", NULL) : true;
}

static bool drop_memory(struct state *state)
{
	hp_error error = {0};
	int rc = state->memory ? hp_unmap(state->memory, state->params->size) : 0, other;

	state->memory = NULL;
	if (state->file.id) {
		other = hp_file_close(state->file);
		rc = rc ? rc : other;
	}
	state->file.id = 0;
	if (state->frames) {
		other = hp_free(state->pool, state->frames);
		rc = rc ? rc : other;
	}
	state->frames = NULL;
	if (!rc)
		rc = hp_pool_check(state->pool, &error);
	other = hp_pool_close(state->pool);
	rc = rc ? rc : other;
	return rc ? failed(state, rc, "giving the memory back", &error) : true;
}

/* ---- The chain -------------------------------------------------------------------------------------------------- */

static uint64_t scramble(uint64_t x)
{
	x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
	x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
	return x ^ x >> 33;
}

/* Anywhere in its stride, so that the places do not share the sets of a cache. */
static void **node_at(const struct state *state, uint64_t node)
{
	uint64_t stride = tlb_stride(state->params->size);
	char *line = state->memory + node * stride + scramble(node) % (stride / LINE) * LINE;

	return (void **)(void *)line;
}

static void make_chain(struct state *state)
{
	uint64_t nodes = tlb_nodes(state->params->size), random = 1;

	for (uint64_t i = 0; i < nodes; i++)
		state->order[i] = (uint32_t)i;
	for (uint64_t i = nodes - 1; i > 0; i--) {
		uint64_t other = scramble(random++) % (i + 1);
		uint32_t swap = state->order[i];

		state->order[i] = state->order[other];
		state->order[other] = swap;
	}
	for (uint64_t i = 0; i < nodes; i++)
		*node_at(state, state->order[i]) = node_at(state, state->order[(i + 1) % nodes]);
}

/* Mappings that were switched are in the page table before the clock starts. */
static void touch(const struct state *state)
{
	for (uint64_t at = 0; at < state->params->size; at += BENCH_FRAME)
		(void)*(volatile char *)(state->memory + at);
}

/* The median of the parts of one walk: what else this machine does meanwhile falls into some of them. */
static bool walk(struct state *state, double *ns)
{
	static struct bench_stat stat;
	uint64_t part = tlb_nodes(state->params->size) / PARTS;
	void *const first = node_at(state, state->order[0]);
	void **at = first;

	touch(state);
	stat.count = 0;
	for (unsigned i = 0; i < PARTS; i++) {
		uint64_t start = bench_now_ns();

		for (uint64_t n = 0; n < part; n++)
			at = *(void *const volatile *)at;
		bench_stat_add(&stat, (double)(bench_now_ns() - start) / (double)part);
	}
	*ns = bench_stat_median(&stat);
	if (at == first)
		return true;
	snprintf(state->why, BENCH_WHY, "the chain is broken: bytes were lost");
	return false;
}

/* ---- A round ---------------------------------------------------------------------------------------------------- */

/* Every second page, from `first` on. */
static bool collapse(struct state *state, uint64_t first)
{
	for (uint64_t page = first; page < state->params->size / BENCH_FRAME; page += 2) {
		hp_error error = {0};
		int rc = hp_collapse(state->memory + page * BENCH_FRAME, BENCH_FRAME, &error);

		if (rc)
			return failed(state, rc, "hp_collapse", &error);
	}
	return true;
}

static bool note_memory(struct state *state, enum tlb_phase phase, double value[BENCH_METRICS_MAX])
{
	hp_file_stat file = {.struct_size = sizeof(file)};
	hp_pool_stats pool = {.struct_size = sizeof(pool)};
	hp_collapse_stats collapses = {.struct_size = sizeof(collapses)};
	uint64_t held = state->frames ? FRAMES_NONE : 0;
	int rc = hp_file_stat_get(state->file, &file);

	if (!rc)
		rc = hp_pool_stats_get(state->pool, &pool);
	if (!rc)
		rc = hp_collapse_stats_get(state->pool, &collapses);
	if (rc)
		return failed(state, rc, "hp_file_stat_get", NULL);
	value[TLB_METRIC(TLB_BASE_BYTES, phase)] = (double)file.base;
	/* What the pool calls used are places for base pages too. */
	value[TLB_METRIC(TLB_FRAMES, phase)] = (double)(pool.used - file.base / BENCH_FRAME - held);
	value[TLB_METRIC(TLB_IN_PLACE, phase)] = (double)collapses.in_place;
	return true;
}

static bool measure(struct state *state, double value[BENCH_METRICS_MAX])
{
	make_chain(state);
	for (enum tlb_phase phase = TLB_BASE; phase < TLB_PHASES; phase++) {
		if (phase != TLB_BASE && !collapse(state, phase == TLB_HALF ? 0 : 1))
			return false;
		if (!walk(state, &value[TLB_METRIC(TLB_READ, phase)]) || !note_memory(state, phase, value))
			return false;
	}
	return bench_is_huge(state->memory, state->params->size, state->why);
}

static void *open_series(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	struct state *state = calloc(1, sizeof(*state));

	if (!state)
		return NULL;
	state->params = params;
	state->why = why;
	if (state->params->why_not[0]) {
		memcpy(why, state->params->why_not, BENCH_WHY);
		return NULL;
	}
	state->order = calloc(tlb_nodes(state->params->size), sizeof(*state->order));
	if (!state->order) {
		failed(state, -ENOMEM, "no memory", NULL);
		return NULL;
	}
	bench_pin(0, 1);
	snprintf(note, BENCH_NOTE, "%llu places, one in each %llu bytes",
	         (unsigned long long)tlb_nodes(state->params->size),
	         (unsigned long long)tlb_stride(state->params->size));
	return state;
}

static void do_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct state *state = arg;
	char other[BENCH_WHY];

	(void)warm_up;
	state->why = sample->why;
	sample->counts = make_pool(state);
	if (!sample->counts)
		return;
	sample->counts = make_memory(state) && measure(state, sample->value);
	if (!sample->counts)
		state->why = other; /* the first reason is what counts */
	sample->counts &= drop_memory(state);
}

static bool close_series(void *arg, char why[BENCH_WHY])
{
	(void)arg;
	(void)why;
	return true;
}

const struct bench_job tlb_job = {open_series, do_round, close_series};
