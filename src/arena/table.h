/* SPDX-License-Identifier: MIT */
/*
 * A table of fixed-size records in the arena, handed out by number. Number 0 is never handed out and means none.
 * The first word of a free record links it to the next one; a record that is handed out is zeroed.
 */
#ifndef HP_ARENA_TABLE_H
#define HP_ARENA_TABLE_H

#include "base/units.h"
#include "sync/mutex.h"

struct hp_table { /* in the arena */
	struct hp_mutex lock;
	uint32_t free;          /* first free record; under lock */
	_Atomic uint32_t fresh; /* records from here on were never used; under lock, read by all */
	uint32_t capacity;      /* never changes; record 0 included */
	_Atomic uint32_t live;  /* under lock, read by all */
};

void hp_table_init(struct hp_table *table, uint32_t capacity);
/* The number of a zeroed record, or 0 if the table is full. `records` is the table's section. */
uint32_t hp_table_take(struct hp_table *table, void *records, size_t record_size, const struct hp_locker *who);
void hp_table_give(struct hp_table *table, void *records, size_t record_size, uint32_t number,
                   const struct hp_locker *who);
/* The lock's owner died inside: counts again. Under the lock. */
void hp_table_repair(struct hp_table *table, void *records, size_t record_size);

#endif
