/* SPDX-License-Identifier: MIT */
/*
 * A map from disjoint ranges of addresses to values that is read without a lock, in a signal handler too.
 *
 * Two levels: a root with separators, and leaves of up to HP_RANGE_LEAF sorted ranges. A change copies what stays of
 * the leaves it concerns and swings one pointer: the leaf's if it is one leaf before and after, else that of a copy of
 * the root. Readers see all of a change or nothing of it.
 *
 * Writers: one at a time, the caller's lock. Readers: inside a read section of the caller's epoch. What a change
 * replaced is put on the map's retired list; the caller takes the list, waits until no reader can have any of it, and
 * frees it. Values whose memory begins with a pointer, free for the link, may be retired with them.
 */
#ifndef HP_BASE_RANGE_MAP_H
#define HP_BASE_RANGE_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HP_RANGE_LEAF 62

struct hp_range {
	uintptr_t start, end; /* [start, end) */
	void *value;
};

struct hp_range_root;

struct hp_range_map {
	_Atomic(struct hp_range_root *) root; /* changed by the writer, read by all */
	void *retired;                        /* writer's */
	uint32_t retired_count;               /* writer's */
};

/*
 * Replaces all ranges that overlap [start, end), whole, by the pieces, which are sorted and disjoint and lie where
 * those ranges are or none is. For readers it is one step: an address that both old and new ranges cover always has a
 * value. An empty [start, end) overlaps nothing; there may be no pieces. The caller retires the replaced values.
 * -EEXIST: a range that stays overlaps a piece or lies among the pieces. -ENOMEM. Nothing has changed then. Writers.
 */
int hp_range_map_exchange(struct hp_range_map *map, uintptr_t start, uintptr_t end, const struct hp_range *pieces,
                          uint32_t count);
/* -EEXIST: it overlaps a range that is there. -ENOMEM. Nothing has changed then. Writers. */
int hp_range_map_insert(struct hp_range_map *map, uintptr_t start, uintptr_t end, void *value);
/*
 * Removes the range that starts exactly there; *value is what it had, NULL if there is none. -ENOMEM: nothing
 * changed. Writers.
 */
int hp_range_map_remove(struct hp_range_map *map, uintptr_t start, void **value);
/* The value whose range holds the address, or NULL. Readers. Signal safe. */
void *hp_range_map_find(struct hp_range_map *map, uintptr_t address);
/*
 * The first range that ends above the address; false if there is none. All ranges that overlap [a, b), in order:
 * for (from = a; hp_range_map_next(map, from, &range) && range.start < b; from = range.end). Writers.
 */
bool hp_range_map_next(const struct hp_range_map *map, uintptr_t from, struct hp_range *range);
/* Calls fn for each range in order. Writers. */
void hp_range_map_each(struct hp_range_map *map, void (*fn)(const struct hp_range *range, void *context),
                       void *context);

/* Memory from malloc that readers may still look at. Writers. */
void hp_range_map_retire(struct hp_range_map *map, void *memory);
/* Detaches the retired list; NULL if it is empty. Writers. */
void *hp_range_map_take_retired(struct hp_range_map *map);
/* Frees a detached list that no reader can have any more. */
void hp_range_map_free(void *retired);

#endif
