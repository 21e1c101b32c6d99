/* SPDX-License-Identifier: MIT */
/*
 * Points: the places in the code where locks are taken, as small numbers that mean the same in every process that runs
 * this library. The linker collects them in one section; their names are copied to the arena when a pool is made, for
 * those who look on from another program.
 */
#ifndef HP_SYNC_POINT_H
#define HP_SYNC_POINT_H

#include "sync/class.h"

#include <stddef.h>

struct hp_point {
	const char *function, *file;
	uint32_t line;
	uint32_t class;
} __attribute__((aligned(32)));

#define HP_POINTS_MAX 256u
#define HP_POINT_NAME 64u

extern const struct hp_point __start_hp_lock_points[] __attribute__((visibility("hidden")));
extern const struct hp_point __stop_hp_lock_points[] __attribute__((visibility("hidden")));

/* 0 is no point. */
static inline uint32_t hp_point_number(const struct hp_point *point)
{
	return (uint32_t)(point - __start_hp_lock_points) + 1;
}

static inline const struct hp_point *hp_point_at(uint32_t number)
{
	return &__start_hp_lock_points[number - 1];
}

static inline uint32_t hp_points_count(void)
{
	return (uint32_t)(__stop_hp_lock_points - __start_hp_lock_points);
}

/* The class of the lock that is taken there. */
static inline enum hp_lock_class hp_point_class(uint32_t number)
{
	/* A damaged number names nothing. */
	return number - 1 < hp_points_count() ? (enum hp_lock_class)hp_point_at(number)->class : HP_CLASS_NONE;
}

/* The number of the place where this is written, for a lock of a class. */
#define HP_HERE(lock_class)                                                                                            \
	__extension__({                                                                                                \
		static const struct hp_point here                                                                      \
			__attribute__((section("hp_lock_points"), used)) = {__func__, __FILE__, __LINE__, lock_class}; \
		hp_point_number(&here);                                                                                \
	})

/* "function (file.c:12)". */
void hp_point_format(uint32_t number, char name[HP_POINT_NAME]);

#endif
