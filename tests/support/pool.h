/* SPDX-License-Identifier: MIT */
/*
 * Short forms for tests of pools on the sim backend: one sim and mostly one pool at a time. They assert that what they
 * do succeeds, but for those that return a result.
 */
#ifndef SUPPORT_POOL_H
#define SUPPORT_POOL_H

#include "os/budget.h"
#include "os/sim.h"
#include "library/library.h"
#include "space/space.h"
#include "sync/signals.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define FRAME HP_FRAME_SIZE
#define RW (HP_PROT_READ | HP_PROT_WRITE)

static struct hp_os *os;
static struct hp_os *sim_behind; /* the sim that is touched, where `os` stands before it; else NULL */
static hp_error error;           /* of the last call that got it */

static inline int sim_start(const struct hp_sim_config *config)
{
	os = hp_sim_create(config);
	return os ? 0 : -1;
}

/* Room for 1024 frames of each kind. */
static inline int sim_setup(void **state)
{
	return sim_start(&(struct hp_sim_config){.hugetlb_bytes = 1024 * FRAME, .memory_bytes = 1024 * FRAME});
}

/* Also proves that the test gave everything back. */
static inline int sim_teardown(void **state)
{
	return hp_sim_destroy(os);
}

#define expect_ok(call)                                                       \
	do {                                                                  \
		int result_ = (call);                                         \
		if (result_)                                                  \
			fail_msg("%s: %d %s", #call, result_, error.message); \
	} while (0)

/* The call fails with this code and limit, and its message contains `words`. */
#define expect_error(call, wanted_code, wanted_limit, words)                                  \
	do {                                                                                  \
		error = (hp_error){.code = 1};                                                \
		assert_int_equal(call, wanted_code);                                          \
		assert_int_equal(error.code, wanted_code);                                    \
		assert_string_equal(hp_limit_name(error.limit), hp_limit_name(wanted_limit)); \
		if (!strstr(error.message, words))                                            \
			fail_msg("\"%s\" does not say \"%s\"", error.message, words);         \
	} while (0)

static inline int pool_try(const hp_pool_options *options, hp_pool *pool)
{
	return hp_pool_create_on(os, options, pool, &error);
}

/* A pool of hugetlb frames; without zeroing workers it does the same every time. */
static inline hp_pool pool_make(uint64_t frames, uint32_t workers, const char *tuning)
{
	hp_pool_options options = {.struct_size = sizeof(options),
	                           .size = frames * FRAME,
	                           .backing = HP_BACKING_HUGETLB,
	                           .workers = workers,
	                           .tuning = tuning};
	hp_pool pool = {0};

	expect_ok(pool_try(&options, &pool));
	return pool;
}

static inline void pool_check(hp_pool pool)
{
	expect_ok(hp_pool_check(pool, &error));
}

static inline void pool_end(hp_pool pool)
{
	pool_check(pool);
	assert_int_equal(hp_pool_close(pool), 0);
}

static inline hp_pool_stats pool_stats(hp_pool pool)
{
	hp_pool_stats stats = {.struct_size = sizeof(stats)};

	assert_int_equal(hp_pool_stats_get(pool, &stats), 0);
	return stats;
}

static inline hp_file file_make(hp_pool pool, uint64_t frames)
{
	hp_file file = {0};

	expect_ok(hp_file_create(pool, frames * FRAME, 0, &file, &error));
	return file;
}

static inline void file_close(hp_file file)
{
	assert_int_equal(hp_file_close(file), 0);
}

/* Offset and length in frames. */
static inline int map_try(hp_file file, uint64_t first, uint64_t frames, unsigned flags, char **address)
{
	void *mapped = NULL;
	int result = hp_map(file, first * FRAME, frames * FRAME, RW, flags, &mapped, &error);

	*address = mapped;
	return result;
}

static inline char *map(hp_file file, uint64_t first, uint64_t frames, unsigned flags)
{
	char *address;

	expect_ok(map_try(file, first, frames, flags, &address));
	return address;
}

static inline void unmap(char *address, uint64_t frames)
{
	assert_int_equal(hp_unmap(address, frames * FRAME), 0);
}

static inline enum hp_fault_result fault(const char *address, bool write)
{
	enum hp_fault_result result;
	sigset_t saved;

	hp_signals_block(&saved);
	result = hp_space_fault((uintptr_t)address, write);
	hp_signals_restore(&saved);
	return result;
}

/*
 * A load and a store as a thread does them: a trap is a fault, and a resolved one repeats the access. 0, or -EFAULT and
 * -EIO as in os/sim.h. They assert nothing, so that any thread may use them.
 */
static inline int touch_load(const char *address, uint64_t *tag)
{
	int result;

	do
		result = hp_sim_load(sim_behind ? sim_behind : os, address, tag);
	while (result == -EFAULT && fault(address, false) == HP_FAULT_RESOLVED);
	return result;
}

static inline int touch_store(char *address, uint64_t tag)
{
	int result;

	do
		result = hp_sim_store(sim_behind ? sim_behind : os, address, tag);
	while (result == -EFAULT && fault(address, true) == HP_FAULT_RESOLVED);
	return result;
}

static inline uint64_t load(const char *address)
{
	uint64_t tag = ~UINT64_C(0);

	assert_int_equal(touch_load(address, &tag), 0);
	return tag;
}

static inline void store(char *address, uint64_t tag)
{
	assert_int_equal(touch_store(address, tag), 0);
}

#endif
