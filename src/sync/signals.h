/* SPDX-License-Identifier: MIT */
/*
 * All signals are blocked while a lock of the fault path is held outside the fault handler. Otherwise a handler of the
 * program could interrupt the holder, touch lazy memory, and wait for a lock that its own thread holds, or out of
 * order.
 */
#ifndef HP_SYNC_SIGNALS_H
#define HP_SYNC_SIGNALS_H

#include <pthread.h>
#include <signal.h>

static inline void hp_signals_block(sigset_t *saved)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, saved);
}

static inline void hp_signals_restore(const sigset_t *saved)
{
	pthread_sigmask(SIG_SETMASK, saved, NULL);
}

#endif
