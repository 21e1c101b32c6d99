/* SPDX-License-Identifier: MIT */
/*
 * Yield points: places where a test takes control, to bring threads into an order that seldom happens by itself. Built
 * only into a test's own copy of the locks; nothing otherwise.
 */
#ifndef HP_SYNC_YIELD_H
#define HP_SYNC_YIELD_H

#ifdef HP_YIELD_POINTS
extern void (*hp_yield_hook)(const char *where);
#define HP_YIELD(where)                       \
	do {                                  \
		if (hp_yield_hook)            \
			hp_yield_hook(where); \
	} while (0)
#else
#define HP_YIELD(where) ((void)0)
#endif

#endif
