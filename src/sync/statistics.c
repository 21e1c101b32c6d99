/* SPDX-License-Identifier: MIT */
#include "base/machine.h"
#include "sync/domain.h"

static void add_time(struct hp_time_sum *sum, uint64_t ns)
{
	uint64_t seen = atomic_load_explicit(&sum->max, memory_order_relaxed);

	while (ns > seen &&
	       !atomic_compare_exchange_weak_explicit(&sum->max, &seen, ns, memory_order_relaxed, memory_order_relaxed))
		;
	/* 0 is nothing yet: a time of 0 counts as 1 ns. */
	seen = atomic_load_explicit(&sum->min, memory_order_relaxed);
	while ((!seen || ns < seen) &&
	       !atomic_compare_exchange_weak_explicit(&sum->min, &seen, ns ? ns : 1, memory_order_relaxed,
	                                              memory_order_relaxed))
		;
	atomic_fetch_add_explicit(&sum->total, ns, memory_order_relaxed);
	atomic_fetch_add_explicit(&sum->count, 1, memory_order_relaxed);
}

/* The first points that come get a place, as many as there are. */
static void add_point(struct hp_point_count *list, uint32_t point)
{
	for (unsigned i = 0; i < HP_STAT_POINTS && point; i++) {
		uint32_t seen = atomic_load_explicit(&list[i].point, memory_order_relaxed);

		if (!seen)
			atomic_compare_exchange_strong(&list[i].point, &seen, point);
		if (!seen || seen == point) {
			atomic_fetch_add_explicit(&list[i].count, 1, memory_order_relaxed);
			return;
		}
	}
}

/* True: the lock was taken on another CPU before. */
static bool bounced(_Atomic uint16_t *last_cpu)
{
	int cpu = sched_getcpu();
	uint16_t mine = (uint16_t)(cpu + 1), last = atomic_load_explicit(last_cpu, memory_order_relaxed);

	if (last == mine)
		return false;
	atomic_store_explicit(last_cpu, mine, memory_order_relaxed);
	return last != 0;
}

void hp_stat_contended(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode, uint32_t waiter,
                       uint32_t holder, int64_t waited_ns, _Atomic uint16_t *last_cpu)
{
	struct hp_class_sums *sums = &who->shared->statistics.sums[class][mode];

	if (!atomic_load_explicit(&who->shared->statistics.enabled, memory_order_relaxed))
		return;
	add_time(&sums->wait, (uint64_t)waited_ns);
	if (bounced(last_cpu))
		atomic_fetch_add_explicit(&sums->contended_bounces, 1, memory_order_relaxed);
	add_point(sums->waiter, waiter);
	add_point(sums->holder, holder);
}

static void add_acquired(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode, uint64_t n)
{
	_Atomic uint64_t *acquired = &who->record->acquired[class][mode];

	/* Only this thread writes it. */
	atomic_store_explicit(acquired, atomic_load_explicit(acquired, memory_order_relaxed) + n, memory_order_relaxed);
}

bool hp_lock_carry(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode)
{
	add_acquired(who, class, mode, HP_HOLD_SAMPLE);
	return true;
}

void hp_lock_uncount(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode)
{
	if (atomic_load_explicit(&who->shared->statistics.enabled, memory_order_relaxed))
		add_acquired(who, class, mode, (uint64_t)-1);
}

uint64_t hp_stat_sample(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode,
                        _Atomic uint16_t *last_cpu)
{
	if (last_cpu && bounced(last_cpu))
		atomic_fetch_add_explicit(&who->shared->statistics.sums[class][mode].sampled_bounces, 1,
		                          memory_order_relaxed);
	return (uint64_t)hp_now_ns();
}

void hp_stat_held(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode, uint64_t since_ns)
{
	add_time(&who->shared->statistics.sums[class][mode].hold, (uint64_t)hp_now_ns() - since_ns);
}

void hp_stat_death(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode)
{
	atomic_fetch_add_explicit(&who->shared->statistics.sums[class][mode].deaths, 1, memory_order_relaxed);
}

static void reset_time(struct hp_time_sum *sum)
{
	atomic_store_explicit(&sum->count, 0, memory_order_relaxed);
	atomic_store_explicit(&sum->total, 0, memory_order_relaxed);
	atomic_store_explicit(&sum->min, 0, memory_order_relaxed);
	atomic_store_explicit(&sum->max, 0, memory_order_relaxed);
}

void hp_stat_reset(struct hp_class_sums *sums, uint64_t acquired)
{
	reset_time(&sums->wait);
	reset_time(&sums->hold);
	atomic_store_explicit(&sums->contended_bounces, 0, memory_order_relaxed);
	atomic_store_explicit(&sums->sampled_bounces, 0, memory_order_relaxed);
	atomic_store_explicit(&sums->deaths, 0, memory_order_relaxed);
	atomic_store_explicit(&sums->acquired_before, acquired, memory_order_relaxed);
	for (unsigned i = 0; i < HP_STAT_POINTS; i++) {
		atomic_store_explicit(&sums->waiter[i].count, 0, memory_order_relaxed);
		atomic_store_explicit(&sums->holder[i].count, 0, memory_order_relaxed);
	}
}
