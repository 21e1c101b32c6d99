/* SPDX-License-Identifier: MIT */
#include "arena/table.h"

#include "base/assert.h"

#include <stdatomic.h>

void hp_table_init(struct hp_table *table, uint32_t capacity)
{
	table->fresh = 1;
	table->capacity = capacity;
}

static uint32_t *record_at(void *records, size_t record_size, uint32_t number)
{
	return (uint32_t *)((char *)records + record_size * number);
}

/* Atomically, word by word: who still has an old number may look at the record meanwhile. */
static void clear(uint32_t *record, size_t size)
{
	for (size_t i = 0; i < size / sizeof(*record); i++)
		atomic_store_explicit((_Atomic uint32_t *)&record[i], 0, memory_order_relaxed);
}

uint32_t hp_table_take(struct hp_table *table, void *records, size_t record_size, const struct hp_locker *who)
{
	uint32_t number;

	hp_mutex_lock(&table->lock, who, HP_CLASS_TABLE);
	number = table->free;
	if (number)
		table->free = *record_at(records, record_size, number);
	else if (table->fresh < table->capacity)
		number = table->fresh++;
	if (number) {
		clear(record_at(records, record_size, number), record_size);
		atomic_fetch_add_explicit(&table->live, 1, memory_order_relaxed);
	}
	hp_mutex_unlock(&table->lock, who);
	return number;
}

void hp_table_give(struct hp_table *table, void *records, size_t record_size, uint32_t number,
                   const struct hp_locker *who)
{
	HP_ASSERT(number > 0 && number < table->capacity);
	hp_mutex_lock(&table->lock, who, HP_CLASS_TABLE);
	*record_at(records, record_size, number) = table->free;
	table->free = number;
	atomic_fetch_sub_explicit(&table->live, 1, memory_order_relaxed);
	hp_mutex_unlock(&table->lock, who);
}

/* A record that was on its way in or out stays out: it counts as live. */
void hp_table_repair(struct hp_table *table, void *records, size_t record_size)
{
	uint32_t free = 0;

	for (uint32_t number = table->free; number && free < table->fresh; free++)
		number = *record_at(records, record_size, number);
	atomic_store(&table->live, table->fresh - 1 - free);
}
