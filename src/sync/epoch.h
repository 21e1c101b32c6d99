/* SPDX-License-Identifier: MIT */
/*
 * Read sections without registration, for readers that may be signal handlers: sleepable RCU after McKenney ("Sleepable
 * Read-Copy Update", 2006), with counters striped by CPU. A reader adds one to the entry counter of the current phase
 * and, leaving, one to the exit counter of the phase it entered in; a writer that changed something flips the phase and
 * waits until the old phase's entries and exits are equal.
 *
 * Process-local. Read sections are signal safe and may nest; a thread inside one must not synchronize.
 */
#ifndef HP_SYNC_EPOCH_H
#define HP_SYNC_EPOCH_H

#include "base/units.h"

#include <stdatomic.h>

#define HP_EPOCH_STRIPES 16

struct hp_epoch_stripe {
	_Atomic uint64_t entered[2];
	_Atomic uint64_t left[2];
} __attribute__((aligned(HP_CACHE_LINE)));

struct hp_epoch {
	_Atomic uint32_t phase;
	struct hp_epoch_stripe stripe[HP_EPOCH_STRIPES];
};

/* What a reader keeps between entering and leaving. */
struct hp_epoch_section {
	uint32_t phase, stripe;
};

struct hp_epoch_section hp_epoch_enter(struct hp_epoch *epoch);
void hp_epoch_leave(struct hp_epoch *epoch, struct hp_epoch_section section);

/* Waits for all sections that were entered before the call. One caller at a time: a lock of the caller. */
void hp_epoch_synchronize(struct hp_epoch *epoch);

/* In a fork child, where only this thread goes on: forgets readers of the parent. */
void hp_epoch_reset(struct hp_epoch *epoch);

#endif
