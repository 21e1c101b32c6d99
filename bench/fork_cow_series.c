/* SPDX-License-Identifier: MIT */
/*
 * A round of `hugepool bench fork-cow`: memory is mapped and written, outside of the clock; fork; then the parent
 * writes to some pages while the child waits, and the child to others while the parent waits; then the child exits.
 */
#include "fork_cow.h"

#include "memory.h"

#include "hugepool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif

#define WAIT_MS 120000
#define BEFORE 1 /* bytes that the pages begin with: before the fork */
#define BY_PARENT 2
#define BY_CHILD 3

/* What the child tells. */
struct told {
	double write_ns; /* for a page; below 0: it found something else than it should */
};

struct state {
	const struct fork_cow *params;
	hp_pool pool;
	char *memory;
	struct told *told;  /* shared with the child */
	int go[2], done[2]; /* pipes to the child, and from it */
	char *why;
};

unsigned fork_cow_writes(uint64_t size)
{
	uint64_t pages = size / BENCH_FRAME;

	return pages / 2 < FORK_COW_WRITES_MAX ? (unsigned)(pages / 2) : FORK_COW_WRITES_MAX;
}

static bool failed(struct state *state, int rc, const char *what, const hp_error *error)
{
	snprintf(state->why, BENCH_WHY, "%s: %.140s", what,
	         error && error->message[0] ? error->message : strerror(-rc));
	return false;
}

/* ---- The memory ------------------------------------------------------------------------------------------------- */

static bool make_pool(struct state *state, char note[BENCH_NOTE])
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	hp_error error = {0};
	int rc;

	options.size = state->params->size;
	rc = hp_pool_create(&options, &state->pool, &error);
	if (rc)
		return failed(state, rc, "hp_pool_create", &error);
	rc = hp_pool_stats_get(state->pool, &stats);
	if (rc)
		return failed(state, rc, "hp_pool_stats_get", NULL);
	snprintf(note, BENCH_NOTE, "%llu hugetlb, %llu thp, %llu base frames%s%.160s",
	         (unsigned long long)stats.hugetlb, (unsigned long long)stats.thp, (unsigned long long)stats.base,
	         stats.why_not_better[0] ? "; " : "", stats.why_not_better);
	return true;
}

static bool map_kernel(struct state *state)
{
	uint64_t size = state->params->size;
	int rc;

	state->memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
	                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
	if (state->memory == MAP_FAILED)
		return failed(state, -errno, "no huge pages: mmap", NULL);
	rc = bench_in_parallel(bench_cpus(), state->memory, size, bench_populate);
	if (!rc)
		return true;
	munmap(state->memory, size);
	return failed(state, rc, "no huge pages: MADV_POPULATE_WRITE", NULL);
}

static bool map_hugepool(struct state *state)
{
	hp_error error = {0};
	void *address;
	int rc = hp_map_private(state->pool, state->params->size, HP_PROT_READ | HP_PROT_WRITE, state->params->policy,
	                        &address, &error);

	state->memory = address;
	return rc ? failed(state, rc, "hp_map_private", &error) : true;
}

/* Frames are ready for the next round when this returns, and the child has been forgotten. */
static bool unmap(struct state *state)
{
	hp_error error = {0};
	int rc;

	if (state->params->kernel)
		return munmap(state->memory, state->params->size) ? failed(state, -errno, "munmap", NULL) : true;
	rc = hp_unmap(state->memory, state->params->size);
	if (rc)
		return failed(state, rc, "hp_unmap", NULL);
	rc = hp_pool_wait(state->pool, WAIT_MS, &error);
	return rc ? failed(state, rc, "hp_pool_wait", &error) : true;
}

static char *page_at(const struct state *state, uint64_t page)
{
	return state->memory + page * BENCH_FRAME;
}

/* A store to each page is in the page tables then. */
static bool write_all(struct state *state)
{
	for (uint64_t page = 0; page < state->params->size / BENCH_FRAME; page++)
		*(volatile char *)page_at(state, page) = BEFORE;
	return bench_is_huge(state->memory, state->params->size, state->why);
}

/* One store to each of some pages, all of which have the byte `before`; ns for each, or below 0. */
static double time_writes(const struct state *state, uint64_t first, char byte)
{
	unsigned writes = fork_cow_writes(state->params->size);
	uint64_t start = bench_now_ns();
	double ns;

	for (unsigned i = 0; i < writes; i++)
		*(volatile char *)page_at(state, first + i) = byte;
	ns = (double)(bench_now_ns() - start) / writes;
	for (unsigned i = 0; i < writes; i++)
		if (*page_at(state, first + i) != byte || page_at(state, first + i)[BENCH_FRAME - 1])
			return -1;
	return ns;
}

static bool has_bytes(const struct state *state, uint64_t first, char byte)
{
	unsigned writes = fork_cow_writes(state->params->size);

	for (unsigned i = 0; i < writes; i++)
		if (*(volatile char *)page_at(state, first + i) != byte)
			return false;
	return true;
}

/* ---- The two processes ------------------------------------------------------------------------------------------ */

/* The parent writes the first pages, the child those after them. */
static _Noreturn void be_child(const struct state *state)
{
	unsigned writes = fork_cow_writes(state->params->size);
	char byte = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(state->go[1]); /* the parent's death is the end of the pipe */
	if (write(state->done[1], &byte, 1) != 1 || read(state->go[0], &byte, 1) != 1)
		_exit(1);
	if (!(state->params->policy & HP_FORK_WITHOUT)) {
		state->told->write_ns = time_writes(state, writes, BY_CHILD);
		if (!has_bytes(state, 0, BEFORE))
			state->told->write_ns = -1;
	}
	_exit(0);
}

static bool end_child(struct state *state, pid_t pid)
{
	int status;
	char byte = 0;

	if (write(state->go[1], &byte, 1) != 1)
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		snprintf(state->why, BENCH_WHY, "the child ended by %s", strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		snprintf(state->why, BENCH_WHY, "the child failed");
	return !status;
}

static bool fork_and_write(struct state *state, double value[BENCH_METRICS_MAX])
{
	unsigned writes = fork_cow_writes(state->params->size);
	uint64_t start = bench_now_ns();
	pid_t pid = fork();
	char byte;

	value[FORK_COW_FORK] = (double)(bench_now_ns() - start);
	if (pid < 0)
		return failed(state, -errno, "fork", NULL);
	if (!pid)
		be_child(state);
	/* It has begun and sleeps: it has nothing to do with what is measured next. */
	if (read(state->done[0], &byte, 1) != 1)
		return failed(state, -EPIPE, "the child", NULL);
	value[FORK_COW_WRITE] = time_writes(state, 0, BY_PARENT);
	if (!end_child(state, pid))
		return false;
	if (!(state->params->policy & HP_FORK_WITHOUT))
		value[FORK_COW_CHILD_WRITE] = state->told->write_ns;
	if (value[FORK_COW_WRITE] >= 0 && !(value[FORK_COW_CHILD_WRITE] < 0) && has_bytes(state, 0, BY_PARENT) &&
	    has_bytes(state, writes, BEFORE))
		return true;
	snprintf(state->why, BENCH_WHY, "a store of one process was seen by the other, or was lost");
	return false;
}

/* ---- A series --------------------------------------------------------------------------------------------------- */

static void *open_series(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	struct state *state = calloc(1, sizeof(*state));

	if (!state)
		return NULL;
	state->params = params;
	state->why = why;
	state->told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (state->told == MAP_FAILED || pipe(state->go) || pipe(state->done)) {
		failed(state, -errno, "pipe", NULL);
		return NULL;
	}
	return state->params->kernel || make_pool(state, note) ? state : NULL;
}

static void do_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct state *state = arg;

	(void)warm_up;
	state->why = sample->why;
	sample->counts = state->params->kernel ? map_kernel(state) : map_hugepool(state);
	if (!sample->counts)
		return;
	sample->counts = write_all(state) && fork_and_write(state, sample->value);
	if (!sample->counts) {
		char why[BENCH_WHY]; /* the first reason is what counts */

		state->why = why;
		unmap(state);
		return;
	}
	sample->counts = unmap(state);
}

static bool close_series(void *arg, char why[BENCH_WHY])
{
	struct state *state = arg;
	hp_error error = {0};
	int rc;

	state->why = why;
	if (state->params->kernel)
		return true;
	rc = hp_pool_check(state->pool, &error);
	if (!rc)
		rc = hp_pool_close(state->pool);
	return rc ? failed(state, rc, "at the end", &error) : true;
}

const struct bench_job fork_cow_job = {open_series, do_round, close_series};
