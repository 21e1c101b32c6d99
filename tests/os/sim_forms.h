/* SPDX-License-Identifier: MIT */
/*
 * Short forms for the tests of the sim backend, which run on one sim at a time. They assert that what they do succeeds.
 */
#ifndef SIM_FORMS_H
#define SIM_FORMS_H

#include "os/sim.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define FRAME HP_FRAME_SIZE
#define PAGE HP_BASE_PAGE_SIZE
#define PAGES_PER_FRAME (FRAME / PAGE)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)
#define RW (HP_PROT_READ | HP_PROT_WRITE)

static struct hp_os *os;

static inline int start(const struct hp_sim_config *config)
{
	os = hp_sim_create(config);
	return os ? 0 : -1;
}

/* Also proves that each test gave everything back. */
static inline int teardown(void **state)
{
	return hp_sim_destroy(os);
}

static inline hp_segment make_segment(hp_backing backing, uint64_t size)
{
	hp_segment segment = HP_NO_SEGMENT;

	assert_int_equal(os->ops->segment_create(os, backing, size, &segment), 0);
	assert_int_not_equal(segment, HP_NO_SEGMENT);
	return segment;
}

static inline void destroy_segment(hp_segment segment)
{
	assert_int_equal(os->ops->segment_destroy(os, segment), 0);
}

static inline char *reserve(uint64_t length, uint64_t align, uint64_t skew)
{
	void *address = NULL;

	assert_int_equal(os->ops->reserve(os, length, align, skew, &address), 0);
	assert_int_equal((uintptr_t)address % align, skew);
	return address;
}

static inline int map(char *address, uint64_t length, unsigned prot, hp_segment segment, uint64_t offset)
{
	return os->ops->map(os, address, length, prot, segment, offset, HP_OS_MAP_REPLACE);
}

static inline void unmap(char *address, uint64_t length)
{
	assert_int_equal(os->ops->unmap(os, address, length), 0);
}

/* A segment and a mapping of all of it. */
static inline char *make_mapping(hp_backing backing, uint64_t size, hp_segment *segment)
{
	char *address = reserve(size, FRAME, 0);

	*segment = make_segment(backing, size);
	assert_int_equal(map(address, size, RW, *segment, 0), 0);
	return address;
}

static inline uint64_t load(const char *address)
{
	uint64_t tag = ~UINT64_C(0);

	assert_int_equal(hp_sim_load(os, address, &tag), 0);
	return tag;
}

static inline void store(char *address, uint64_t tag)
{
	assert_int_equal(hp_sim_store(os, address, tag), 0);
}

static inline int gather(char *to, const char *mapped, hp_segment segment, uint64_t offset, uint64_t length)
{
	return os->ops->gather(os, to, mapped, segment, offset, length);
}

static inline int scatter(hp_segment segment, uint64_t offset, const char *from, uint64_t length)
{
	return os->ops->scatter(os, segment, offset, from, length);
}

/* How many base pages of a segment from `first` on have memory. Asking brings none, so it answers the same twice. */
static inline uint64_t count_backed(hp_segment segment, uint64_t first, uint64_t pages)
{
	uint64_t count = 0;

	for (uint64_t i = 0; i < pages; i++) {
		unsigned char page[2] = {2, 2};

		for (int again = 0; again < 2; again++)
			assert_int_equal(os->ops->backed(os, segment, (first + i) * PAGE, PAGE, &page[again]), 0);
		assert_true(page[0] <= 1);
		assert_int_equal(page[0], page[1]);
		count += page[0];
	}
	return count;
}

static inline void expect_trap(char *address)
{
	uint64_t tag;

	assert_int_equal(hp_sim_load(os, address, &tag), -EFAULT);
	assert_int_equal(hp_sim_store(os, address, 1), -EFAULT);
}

static inline void expect_at(const char *address, hp_segment segment, uint64_t offset)
{
	uint64_t found = ~UINT64_C(0);

	assert_int_equal(hp_sim_mapped_at(os, address, &found), segment);
	assert_int_equal(found, segment == HP_NO_SEGMENT ? ~UINT64_C(0) : offset);
}

#define expect_maps(count) assert_int_equal(hp_sim_map_count(os), count)

#endif
