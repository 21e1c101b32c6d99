/* SPDX-License-Identifier: MIT */
/* hugepool, by its public interface alone. */
#include "engine.h"
#include "engine_locks.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_MS 120000

struct pool {
	hp_pool pool;
	hp_file file;
	bool open, has_file;
};

static int failed(struct engine_memory *memory, int rc, const char *what, const hp_error *error)
{
	if (error->message[0])
		snprintf(memory->why, sizeof(memory->why), "%s: %.160s", what, error->message);
	else
		engine_failed(memory, rc, what);
	return rc;
}

static int create(struct engine_memory *memory)
{
	const struct engine_setup *setup = memory->setup;
	struct pool *own = memory->own;
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_error error = {0};
	int rc;

	options.size = setup->size;
	options.workers = setup->no_stock ? HP_WORKERS_NONE : HP_WORKERS_DEFAULT;
	options.tuning = setup->tuning;
	options.flags = setup->unsafe ? HP_POOL_UNSAFE : 0;
	rc = hp_pool_create(&options, &own->pool, &error);
	if (rc)
		return failed(memory, rc, "hp_pool_create", &error);
	own->open = true;
	return 0;
}

/* In a process of its own: a pool leaves handlers behind, which would be in the forks that are measured. */
int engine_check_tuning(const char *command, const struct engine_setup *setup)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_error error = {0};
	hp_pool pool;
	int status = 0;
	pid_t pid;

	if (!setup->tuning)
		return BENCH_DONE;
	pid = fork();
	if (!pid) {
		options.size = HP_FRAME_SIZE;
		options.backing = HP_BACKING_BASE;
		options.workers = HP_WORKERS_NONE;
		options.tuning = setup->tuning;
		options.flags = setup->unsafe ? HP_POOL_UNSAFE : 0;
		/* Other errors are for the rounds to find. */
		_exit(hp_pool_create(&options, &pool, &error) == -EINVAL ? bench_usage(command, "%s", error.message)
		                                                         : BENCH_DONE);
	}
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : BENCH_DONE;
}

static int statistics(struct engine_memory *memory, hp_pool_stats *stats)
{
	struct pool *own = memory->own;
	int rc;

	memset(stats, 0, sizeof(*stats));
	stats->struct_size = sizeof(*stats);
	rc = hp_pool_stats_get(own->pool, stats);
	return rc ? engine_failed(memory, rc, "hp_pool_stats_get") : 0;
}

static int hugepool_open(struct engine_memory *memory)
{
	struct pool *own = calloc(1, sizeof(*own));
	hp_pool_stats stats;
	uint64_t start = bench_now_ns();
	int rc;

	if (!own)
		return engine_failed(memory, -ENOMEM, "calloc");
	memory->own = own;
	if (memory->setup->cold)
		return 0;
	rc = create(memory);
	if (rc)
		return rc;
	memory->fill_s = (double)(bench_now_ns() - start) / 1e9;
	rc = statistics(memory, &stats);
	if (rc)
		return rc;
	snprintf(memory->note, sizeof(memory->note), "%llu hugetlb, %llu thp, %llu base frames, page tables %s%s%.120s",
	         (unsigned long long)stats.hugetlb, (unsigned long long)stats.thp, (unsigned long long)stats.base,
	         stats.table_sharing ? "shared" : "not shared", stats.why_not_better[0] ? "; " : "",
	         stats.why_not_better);
	return 0;
}

/* The frames are what the command line promised of them: ready, or dirty. */
static int check_stock(struct engine_memory *memory)
{
	hp_pool_stats stats;
	int rc = statistics(memory, &stats);
	uint64_t need = memory->setup->size / HP_FRAME_SIZE;

	if (rc)
		return rc;
	if (memory->setup->no_stock && !memory->warm_up && stats.dirty < need) {
		snprintf(memory->why, sizeof(memory->why), "%llu frames of %llu were not dirty",
		         (unsigned long long)(need - stats.dirty), (unsigned long long)need);
		return -EAGAIN;
	}
	if (!memory->setup->no_stock && stats.zeroed < need) {
		snprintf(memory->why, sizeof(memory->why), "%llu frames of %llu were not ready",
		         (unsigned long long)(need - stats.zeroed), (unsigned long long)need);
		return -EAGAIN;
	}
	return 0;
}

static int hugepool_begin(struct engine_memory *memory)
{
	struct pool *own = memory->own;
	hp_error error = {0};
	int rc;

	if (memory->setup->cold)
		return 0;
	rc = check_stock(memory);
	if (rc)
		return rc;
	rc = hp_file_create(own->pool, memory->setup->size, 0, &own->file, &error);
	if (rc)
		return failed(memory, rc, "hp_file_create", &error);
	own->has_file = true;
	return 0;
}

static int hugepool_allocate(struct engine_memory *memory, uint64_t offset, uint64_t length)
{
	struct pool *own = memory->own;
	hp_error error = {0};
	int rc = hp_file_allocate(own->file, offset, length, &error);

	return rc ? failed(memory, rc, "hp_file_allocate", &error) : 0;
}

static int hugepool_map(struct engine_memory *memory, void **address)
{
	const struct engine_setup *setup = memory->setup;
	struct pool *own = memory->own;
	hp_error error;
	int rc;

	if (setup->cold) {
		rc = create(memory);
		if (rc)
			return rc;
		error.message[0] = 0;
		rc = hp_file_create(own->pool, setup->size, 0, &own->file, &error);
		if (rc)
			return failed(memory, rc, "hp_file_create", &error);
		own->has_file = true;
	}
	error.message[0] = 0;
	rc = hp_map(own->file, 0, setup->size, HP_PROT_READ | HP_PROT_WRITE, setup->lazy ? HP_MAP_LAZY : 0, address,
	            &error);
	return rc ? failed(memory, rc, "hp_map", &error) : 0;
}

static int hugepool_unmap(struct engine_memory *memory, void *address)
{
	int rc = hp_unmap(address, memory->setup->size);

	return rc ? engine_failed(memory, rc, "hp_unmap") : 0;
}

static int hugepool_end(struct engine_memory *memory)
{
	struct pool *own = memory->own;
	uint64_t start = bench_now_ns();
	hp_error error = {0};
	int rc = 0;

	memory->fill_s = NAN;
	if (own->has_file)
		rc = hp_file_close(own->file);
	own->has_file = false;
	if (rc)
		return engine_failed(memory, rc, "hp_file_close");
	if (memory->setup->cold && own->open) {
		own->open = false;
		rc = hp_pool_close(own->pool);
		return rc ? engine_failed(memory, rc, "hp_pool_close") : 0;
	}
	if (memory->setup->cold || memory->setup->no_stock)
		return 0;
	rc = hp_pool_wait(own->pool, WAIT_MS, &error);
	if (rc)
		return failed(memory, rc, "hp_pool_wait", &error);
	memory->fill_s = (double)(bench_now_ns() - start) / 1e9;
	return 0;
}

static void hugepool_leave(struct engine_memory *memory)
{
	struct pool *own = memory->own;

	hp_file_close(own->file);
	hp_pool_close(own->pool);
}

static int hugepool_zeroed(struct engine_memory *memory, uint64_t *frames)
{
	hp_pool_stats stats;
	int rc = statistics(memory, &stats);

	*frames = stats.zeroed_by_caller;
	return rc;
}

static int hugepool_locks(struct engine_memory *memory, struct engine_locks *locks)
{
	struct pool *own = memory->own;
	unsigned count = HP_LOCK_STATS_MAX;
	int rc = 0;

	if (!own->open)
		return 0;
	if (locks) {
		rc = hp_pool_lockstat(own->pool, locks->row, &count, sizeof(locks->row[0]));
		if (rc)
			return engine_failed(memory, rc, "hp_pool_lockstat");
		locks->count = count;
	}
	rc = hp_pool_lockstat_set(own->pool, HP_LOCKSTAT_RESET);
	return rc ? engine_failed(memory, rc, "hp_pool_lockstat_set") : 0;
}

static int hugepool_close(struct engine_memory *memory)
{
	struct pool *own = memory->own;
	hp_error error = {0};
	int rc = 0;

	if (own->has_file)
		hp_file_close(own->file);
	if (own->open) {
		rc = hp_pool_check(own->pool, &error);
		if (rc)
			failed(memory, rc, "hp_pool_check", &error);
		hp_pool_close(own->pool);
	}
	free(own);
	return rc;
}

const struct engine engine_hugepool = {
	.name = "hugepool",
	.open = hugepool_open,
	.begin = hugepool_begin,
	.allocate = hugepool_allocate,
	.fallocate = hugepool_allocate,
	.map = hugepool_map,
	.unmap = hugepool_unmap,
	.end = hugepool_end,
	.leave = hugepool_leave,
	.zeroed = hugepool_zeroed,
	.locks = hugepool_locks,
	.close = hugepool_close,
};
