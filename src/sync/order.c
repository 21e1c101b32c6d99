/* SPDX-License-Identifier: MIT */
#include "sync/order.h"

#ifdef HP_DEBUG_CHECKS

#include "base/assert.h"
#include "base/format.h"

#include <stddef.h>

#define HELD_MAX 32u

/* What this thread holds, of all domains. A handler may come between any two lines: places are taken before they are
 * filled. */
static __thread struct {
	const void *lock;
	uint32_t point;
} held[HELD_MAX];
static __thread volatile unsigned depth;

static void fail(const char *what, uint32_t point, uint32_t other)
{
	char place[HP_POINT_NAME], before[HP_POINT_NAME], line[3 * HP_POINT_NAME + 128];

	hp_point_format(point, place);
	hp_point_format(other, before);
	hp_format(line, sizeof(line), "%s: lock of class %s at %s, while class %s is held since %s", what,
	          hp_lock_class_name(hp_point_class(point)), place, hp_lock_class_name(hp_point_class(other)), before);
	hp_assert_failed(line, __FILE__, __LINE__);
}

void hp_order_check(const void *lock, uint32_t point)
{
	for (unsigned i = 0; i < depth; i++) {
		if (held[i].lock == lock)
			fail("recursive locking", point, held[i].point);
		if (held[i].lock && hp_point_class(held[i].point) >= hp_point_class(point))
			fail("wrong lock order", point, held[i].point);
	}
}

void hp_order_push(const void *lock, uint32_t point)
{
	unsigned place = depth;

	HP_ASSERT(place < HELD_MAX);
	held[place].lock = NULL;
	depth = place + 1;
	held[place].point = point;
	held[place].lock = lock;
}

/* Locks are not always released in the reverse order. */
void hp_order_pop(const void *lock)
{
	unsigned place = depth;

	while (place-- > 0 && held[place].lock != lock)
		;
	HP_ASSERT(place < HELD_MAX);
	held[place].lock = NULL;
	while (depth > 0 && !held[depth - 1].lock)
		depth--;
}

#endif
