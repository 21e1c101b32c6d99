/* SPDX-License-Identifier: MIT */
/*
 * Lock statistics, by class and mode, in the memory that the processes of a domain share.
 *
 * Acquisitions are counted by each thread in its own record, without an atomic operation. Contended ones are measured
 * all, and add to the sums here; of the others one in HP_HOLD_SAMPLE reads the clock, for hold times and bounces. A
 * contention names two points: where the waiter stood, and where the holder that it found had taken the lock.
 */
#ifndef HP_SYNC_STATISTICS_H
#define HP_SYNC_STATISTICS_H

#include "base/units.h"
#include "sync/class.h"

#include <stdatomic.h>

#define HP_HOLD_SAMPLE 256u /* what the ticks of a record count to */
#define HP_STAT_POINTS 8u

struct hp_time_sum { /* ns */
	_Atomic uint64_t count, total, min, max;
};

struct hp_point_count {
	_Atomic uint32_t point; /* 0: free; set once */
	_Atomic uint32_t count;
};

struct hp_class_sums {
	struct hp_time_sum wait, hold;      /* of contended acquisitions; of sampled ones */
	_Atomic uint64_t contended_bounces; /* found the lock last taken on another CPU */
	_Atomic uint64_t sampled_bounces;   /* the same of sampled acquisitions */
	_Atomic uint64_t acquired_before;   /* at the last reset: what the records said then */
	_Atomic uint64_t deaths;            /* owners and readers that were found gone */
	struct hp_point_count waiter[HP_STAT_POINTS], holder[HP_STAT_POINTS];
} __attribute__((aligned(HP_CACHE_LINE)));

struct hp_lock_statistics {
	_Atomic uint32_t enabled;
	struct hp_class_sums sums[HP_LOCK_CLASSES][HP_LOCK_MODES];
};

struct hp_locker;

/* A contended acquisition: `waiter` and `holder` are points; `last_cpu` belongs to the lock. */
void hp_stat_contended(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode, uint32_t waiter,
                       uint32_t holder, int64_t waited_ns, _Atomic uint16_t *last_cpu);
/* A sampled hold begins. Returns the time. last_cpu may be NULL. */
uint64_t hp_stat_sample(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode,
                        _Atomic uint16_t *last_cpu);
/* It ends. */
void hp_stat_held(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode, uint64_t since_ns);
/* All sums begin anew; `acquired` is what the records say now. */
void hp_stat_reset(struct hp_class_sums *sums, uint64_t acquired);
void hp_stat_death(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode);

#endif
