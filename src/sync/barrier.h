/* SPDX-License-Identifier: MIT */
/*
 * One-sided memory barriers: who looks at many makes all of them pass a barrier, so that those many, who look at one
 * word each time, need none. The kernel's membarrier(2) reaches the running threads of all processes that have joined.
 */
#ifndef HP_SYNC_BARRIER_H
#define HP_SYNC_BARRIER_H

#include <stdbool.h>

/* This process takes part; fork children do so again. False: not possible here, fences are needed on both sides. */
bool hp_barrier_join(void);
/* Every running thread of the processes that joined passes a full barrier during the call. Signal safe. */
void hp_barrier_all(void);

#endif
