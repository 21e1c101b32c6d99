/* SPDX-License-Identifier: MIT */
/*
 * The lock order, checked in debug builds (meson -Ddebug_checks=true): a thread that waits for a lock must hold only
 * locks of lower classes, and not that lock. Anything else ends the process with the names of both places.
 */
#ifndef HP_SYNC_ORDER_H
#define HP_SYNC_ORDER_H

#include "sync/point.h"

#ifdef HP_DEBUG_CHECKS
/* Before waiting for a lock; a trylock, which does not wait, may break the order. */
void hp_order_check(const void *lock, uint32_t point);
void hp_order_push(const void *lock, uint32_t point);
void hp_order_pop(const void *lock);
#else
static inline void hp_order_check(const void *lock, uint32_t point)
{
	(void)lock;
	(void)point;
}
static inline void hp_order_push(const void *lock, uint32_t point)
{
	(void)lock;
	(void)point;
}
static inline void hp_order_pop(const void *lock)
{
	(void)lock;
}
#endif

#endif
