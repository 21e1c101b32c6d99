/* SPDX-License-Identifier: MIT */
/*
 * Workers: threads that zero freed frames in idle time.
 *
 * A pool has one coordinator and some zeroers, all in the process that made it. The coordinator is an ordinary thread:
 * it commits a frame, takes it, hands it to a zeroer and puts it back afterwards. A zeroer is of the idle class and
 * does nothing but write zeroes into the frame that it was given. So nobody ever waits for an idle-class thread that
 * holds a lock (the way back from the idle class needs a privilege, or a thread could change), and what is promised to
 * others never depends on a frame that is being zeroed.
 */
#ifndef HP_POOL_WORKERS_H
#define HP_POOL_WORKERS_H

#include "pool/pool.h"

int hp_workers_start(struct hp_thread *t, uint32_t zeroers);
void hp_workers_stop(struct hp_pool_view *view);
/*
 * Holds workers off until resume, and waits until no frame is in their hands; false: some still are. Their process may
 * be stopped, or a zeroer may not get the CPU, so who only wants frames waits for HP_WORKERS_PATIENCE. Nests. Not in
 * the fault path.
 */
#define HP_WORKERS_PATIENCE 200000000 /* ns */
bool hp_workers_pause(struct hp_thread *t, int64_t timeout_ns);
void hp_workers_resume(struct hp_thread *t);
/* There may be something to zero: frames became dirty, or a promise that kept workers from them was given up. */
void hp_workers_notify(struct hp_pool_view *view);
/* Processes are dead: takes back the frames that their zeroers had, and their pauses. */
void hp_workers_reap(struct hp_thread *t, const uint64_t *dead);

/*
 * The same for other threads that change the pool by themselves, page by page: they count as zeroing workers at work.
 * False: workers are held off. Where it is true hp_workers_leave() must follow.
 */
bool hp_workers_enter(struct hp_pool_view *view);
void hp_workers_leave(struct hp_pool_view *view);

/* How long to rest after so many bytes in `spent_ns`, to keep to a limit in MB (10^6 bytes) a second; 0 is none. */
int64_t hp_workers_rest_ns(uint32_t mb_per_s, uint64_t bytes, int64_t spent_ns);

#endif
