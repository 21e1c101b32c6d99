/* SPDX-License-Identifier: MIT */
#include "sync/epoch.h"

#include "sync/futex.h"

#include <sched.h>
#include <string.h>

struct hp_epoch_section hp_epoch_enter(struct hp_epoch *epoch)
{
	int cpu = sched_getcpu();
	struct hp_epoch_section section = {
		.phase = atomic_load_explicit(&epoch->phase, memory_order_relaxed) & 1,
		.stripe = cpu < 0 ? 0 : (unsigned)cpu % HP_EPOCH_STRIPES,
	};

	/* Sequentially consistent: what the reader looks at next was not read before its entry could be seen. */
	atomic_fetch_add(&epoch->stripe[section.stripe].entered[section.phase], 1);
	return section;
}

void hp_epoch_leave(struct hp_epoch *epoch, struct hp_epoch_section section)
{
	atomic_fetch_add(&epoch->stripe[section.stripe].left[section.phase], 1);
}

/*
 * Exits are summed before entries: a section that is counted as left was counted as entered, so equal sums mean that at
 * some moment between the two nobody was inside.
 */
static int is_empty(struct hp_epoch *epoch, uint32_t phase)
{
	uint64_t left = 0, entered = 0;

	for (unsigned i = 0; i < HP_EPOCH_STRIPES; i++)
		left += atomic_load(&epoch->stripe[i].left[phase]);
	for (unsigned i = 0; i < HP_EPOCH_STRIPES; i++)
		entered += atomic_load(&epoch->stripe[i].entered[phase]);
	return left == entered;
}

static void wait_for(struct hp_epoch *epoch, uint32_t phase)
{
	for (unsigned tries = 0; !is_empty(epoch, phase); tries++) {
		if (tries < 100)
			hp_cpu_relax();
		else
			sched_yield();
	}
}

/*
 * A reader may load the phase, be delayed, and enter an old phase that nobody waits for any more: it is then counted in
 * the phase that the next flip leaves. So both phases are waited for, the idle one first.
 */
void hp_epoch_synchronize(struct hp_epoch *epoch)
{
	uint32_t phase = atomic_load(&epoch->phase) & 1;

	/* What the caller has changed is seen by readers who enter from here on. */
	atomic_thread_fence(memory_order_seq_cst);
	wait_for(epoch, !phase);
	atomic_store(&epoch->phase, !phase);
	wait_for(epoch, phase);
}

void hp_epoch_reset(struct hp_epoch *epoch)
{
	memset(epoch, 0, sizeof(*epoch));
}
