/* SPDX-License-Identifier: MIT */
/*
 * Rounds of `hugepool bench collapse` by one thread: memory of 2 MiB is mapped and touched in base pages, made huge,
 * which is what the clock is for, and unmapped; again and again. And a bare copy of as much.
 *
 * hugepool's pool is made anew in each round, of one frame, so that no series has a frame that is better for it than
 * another's: what one gives back to the kernel the next one gets.
 */
#include "collapse.h"

#include "memory.h"

#include "hugepool.h"
#include "os/os.h"
#include "os/probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

bool collapse_failed(struct collapse_state *state, int rc, const char *what, const char *message)
{
	snprintf(state->why, BENCH_WHY, "%s: %.140s", what, message && *message ? message : strerror(-rc));
	return false;
}

void collapse_touch(char *address)
{
	for (uint64_t at = 0; at < BENCH_FRAME; at += HP_BASE_PAGE_SIZE)
		*(volatile char *)(address + at) = 1;
}

bool collapse_begin(struct collapse_state *state, const void *params, char why[BENCH_WHY])
{
	*state = (struct collapse_state){.params = params, .why = why, .mark = -1};
	state->all = calloc(state->params->count, sizeof(*state->all));
	return state->all ? true : collapse_failed(state, -ENOMEM, "no memory", NULL);
}

void collapse_sum_up(const struct collapse_state *state, double *mean, double *median)
{
	static struct bench_stat stat;
	unsigned count = state->params->count;
	double sum = 0;

	stat.count = 0;
	for (unsigned i = 0; i < count; i++) {
		sum += state->all[i];
		bench_stat_add(&stat, state->all[i]);
	}
	*mean = sum / 1e3 / count;
	*median = bench_stat_median(&stat) / 1e3;
}

/* Does it `count` times, after some to warm up; *mean and *median in us. False: it failed. */
static bool repeat(struct collapse_state *state, bool (*once)(struct collapse_state *state, uint64_t *ns), double *mean,
                   double *median)
{
	uint64_t ns;

	for (unsigned i = 0; i < COLLAPSE_WARM_UP; i++)
		if (!once(state, &ns))
			return false;
	for (unsigned i = 0; i < state->params->count; i++) {
		if (!once(state, &ns))
			return false;
		state->all[i] = (double)ns;
	}
	collapse_sum_up(state, mean, median);
	return true;
}

/* ---- The kernel ------------------------------------------------------------------------------------------------- */

struct kernel {
	struct collapse_state state;
	char *address; /* where each mapping is made */
	bool is_eager; /* a first touch brings a huge page, if it is not forbidden */
	bool look;     /* whether the next one is huge */
};

static bool map(struct kernel *kernel)
{
	bool shared = kernel->state.params->shared;
	int fd = shared ? memfd_create("hugepool-bench", MFD_CLOEXEC) : -1;
	char *p;

	if (shared && (fd < 0 || ftruncate(fd, (off_t)BENCH_FRAME)))
		return collapse_failed(&kernel->state, -errno, "memfd_create", NULL);
	p = mmap(kernel->address, BENCH_FRAME, PROT_READ | PROT_WRITE,
	         MAP_FIXED | (shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS), fd, 0);
	if (shared)
		close(fd);
	return p == MAP_FAILED ? collapse_failed(&kernel->state, -errno, "mmap", NULL) : true;
}

static bool kernel_once(struct collapse_state *state, uint64_t *ns)
{
	struct kernel *kernel = (struct kernel *)state;
	uint64_t start;
	int rc;

	if (!map(kernel))
		return false;
	if (kernel->is_eager)
		madvise(kernel->address, BENCH_FRAME, MADV_NOHUGEPAGE);
	collapse_touch(kernel->address);
	if (kernel->is_eager)
		madvise(kernel->address, BENCH_FRAME, MADV_HUGEPAGE);
	collapse_trace_mark(state);
	start = bench_now_ns();
	rc = madvise(kernel->address, BENCH_FRAME, MADV_COLLAPSE) ? -errno : 0;
	*ns = bench_now_ns() - start;
	if (!rc && kernel->look && !bench_is_huge(kernel->address, BENCH_FRAME, state->why))
		return false;
	kernel->look = false;
	munmap(kernel->address, BENCH_FRAME);
	return rc ? collapse_failed(state, rc, "MADV_COLLAPSE", NULL) : true;
}

static void *kernel_open(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	static struct hp_probe probe;
	struct kernel *kernel = calloc(1, sizeof(*kernel));
	const char *word;

	(void)note;
	if (!kernel)
		return NULL;
	hp_probe_read(&probe);
	if (!collapse_begin(&kernel->state, params, why))
		return NULL;
	word = kernel->state.params->shared ? probe.thp_shmem : probe.thp_enabled;
	kernel->is_eager = !strcmp(word, "always") || !strcmp(word, "within_size") || !strcmp(word, "force");
	kernel->address = bench_reserve(BENCH_FRAME);
	bench_pin(0, 1);
	if (kernel->address)
		return kernel;
	collapse_failed(&kernel->state, -ENOMEM, "no addresses", NULL);
	return NULL;
}

static void kernel_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct kernel *kernel = arg;

	(void)warm_up;
	kernel->state.why = sample->why;
	kernel->look = true;
	sample->counts =
		repeat(&kernel->state, kernel_once, &sample->value[COLLAPSE_TIME], &sample->value[COLLAPSE_MEDIAN]);
}

static bool kernel_close(void *arg, char why[BENCH_WHY])
{
	(void)arg;
	(void)why;
	return true;
}

const struct bench_job collapse_kernel_job = {kernel_open, kernel_round, kernel_close};

/* ---- hugepool --------------------------------------------------------------------------------------------------- */

struct ours {
	struct collapse_state state;
	hp_pool pool;
};

static bool make_pool(struct ours *ours)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_error error = {0};
	int rc;

	options.size = BENCH_FRAME;
	options.backing = HP_BACKING_HUGETLB;
	options.workers = HP_WORKERS_NONE;
	options.tuning = ours->state.params->tuning;
	rc = hp_pool_create(&options, &ours->pool, &error);
	return rc ? collapse_failed(&ours->state, rc, "hp_pool_create", error.message) : true;
}

static bool drop_pool(struct ours *ours)
{
	hp_error error = {0};
	int rc = hp_pool_check(ours->pool, &error);

	if (!rc)
		rc = hp_pool_close(ours->pool);
	return rc ? collapse_failed(&ours->state, rc, "closing the pool", error.message) : true;
}

static bool collapse(struct ours *ours, void *address, void *frame, uint64_t *ns)
{
	hp_error error = {0};
	uint64_t start;
	int rc;

	collapse_touch(address);
	rc = hp_free(ours->pool, frame);
	if (rc)
		return collapse_failed(&ours->state, rc, "hp_free", NULL);
	start = bench_now_ns();
	rc = hp_collapse(address, BENCH_FRAME, &error);
	*ns = bench_now_ns() - start;
	return rc ? collapse_failed(&ours->state, rc, "hp_collapse", error.message) : true;
}

/* The pool's only frame is taken while the file is mapped: so it has base pages. */
static bool ours_once(struct collapse_state *state, uint64_t *ns)
{
	struct ours *ours = (struct ours *)state;
	hp_error error = {0};
	void *frame, *address;
	hp_file file;
	bool done;
	int rc = hp_alloc(ours->pool, BENCH_FRAME, &frame, &error);

	if (rc)
		return collapse_failed(state, rc, "hp_alloc", error.message);
	rc = hp_file_create(ours->pool, BENCH_FRAME, HP_FILE_FALLBACK | HP_FILE_MOVABLE, &file, &error);
	if (rc)
		return collapse_failed(state, rc, "hp_file_create", error.message);
	rc = hp_map(file, 0, BENCH_FRAME, HP_PROT_READ | HP_PROT_WRITE, HP_MAP_LAZY, &address, &error);
	if (rc)
		return collapse_failed(state, rc, "hp_map", error.message);
	done = collapse(ours, address, frame, ns);
	rc = hp_unmap(address, BENCH_FRAME);
	if (!rc)
		rc = hp_file_close(file);
	if (!done)
		return false;
	return rc ? collapse_failed(state, rc, "hp_unmap", NULL) : true;
}

static void *ours_open(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	struct ours *ours = calloc(1, sizeof(*ours));

	(void)note;
	if (!ours)
		return NULL;
	if (!collapse_begin(&ours->state, params, why))
		return NULL;
	bench_pin(0, 1);
	return make_pool(ours) && drop_pool(ours) ? ours : NULL; /* whether it can be had */
}

static bool read_stats(struct ours *ours, hp_collapse_stats *stats)
{
	int rc;

	stats->struct_size = sizeof(*stats);
	rc = hp_collapse_stats_get(ours->pool, stats);
	return rc ? collapse_failed(&ours->state, rc, "hp_collapse_stats_get", NULL) : true;
}

/* All were copied, and none was left to the kernel. */
static bool note_parts(struct ours *ours, struct bench_sample *sample)
{
	hp_collapse_stats stats = {0};
	double us;

	if (!read_stats(ours, &stats))
		return false;
	if (stats.collapsed != ours->state.params->count + COLLAPSE_WARM_UP) {
		snprintf(sample->why, BENCH_WHY, "%llu of %u pages came into a frame",
		         (unsigned long long)stats.collapsed, ours->state.params->count + COLLAPSE_WARM_UP);
		return false;
	}
	us = 1e3 * (double)stats.collapsed;
	sample->value[COLLAPSE_LOCK] = (double)stats.lock_ns / us;
	sample->value[COLLAPSE_PROTECT] = (double)stats.protect_ns / us;
	sample->value[COLLAPSE_COPY] = (double)stats.copy_ns / us;
	sample->value[COLLAPSE_SWITCH] = (double)stats.switch_ns / us;
	sample->value[COLLAPSE_FREE] = (double)stats.free_ns / us;
	sample->value[COLLAPSE_RECHECKED] = (double)stats.rechecked;
	sample->value[COLLAPSE_GAVE_UP] = (double)stats.gave_up;
	return true;
}

static void ours_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct ours *ours = arg;
	char other[BENCH_WHY];

	(void)warm_up;
	ours->state.why = sample->why;
	sample->counts = make_pool(ours);
	if (!sample->counts)
		return;
	sample->counts =
		repeat(&ours->state, ours_once, &sample->value[COLLAPSE_TIME], &sample->value[COLLAPSE_MEDIAN]) &&
		note_parts(ours, sample);
	if (!sample->counts)
		ours->state.why = other; /* the first reason is what counts */
	sample->counts &= drop_pool(ours);
}

const struct bench_job collapse_hugepool_job = {ours_open, ours_round, kernel_close};

/* ---- The bare copy ---------------------------------------------------------------------------------------------- */

struct copy {
	struct kernel from; /* base pages, mapped and touched for each copy */
	char *to;
};

static bool copy_once(struct collapse_state *state, uint64_t *ns)
{
	struct copy *copy = (struct copy *)state;
	char *from = copy->from.address;
	uint64_t start;

	if (!map(&copy->from))
		return false;
	madvise(from, BENCH_FRAME, MADV_NOHUGEPAGE);
	collapse_touch(from);
	start = bench_now_ns();
	hp_copy_stream(copy->to, from, BENCH_FRAME);
	*ns = bench_now_ns() - start;
	munmap(from, BENCH_FRAME);
	return true;
}

static void *copy_open(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	struct copy *copy = calloc(1, sizeof(*copy));

	if (!copy)
		return NULL;
	if (!collapse_begin(&copy->from.state, params, why))
		return NULL;
	copy->from.address = bench_reserve(BENCH_FRAME);
	copy->to = bench_huge_memory(BENCH_FRAME);
	bench_pin(0, 1);
	snprintf(note, BENCH_NOTE, "hp_copy_stream(), %s", hp_copy_method_best()->name);
	if (copy->from.address && copy->to && bench_is_huge(copy->to, BENCH_FRAME, why))
		return copy;
	if (!copy->from.address || !copy->to)
		collapse_failed(&copy->from.state, -ENOMEM, "no memory", NULL);
	return NULL;
}

static void copy_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct copy *copy = arg;
	double median;

	(void)warm_up;
	copy->from.state.why = sample->why;
	sample->counts = repeat(&copy->from.state, copy_once, &sample->value[COLLAPSE_COPY], &median);
}

const struct bench_job collapse_copy_job = {copy_open, copy_round, kernel_close};
