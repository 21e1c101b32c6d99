/* SPDX-License-Identifier: MIT */
/* Waiting on a word of shared memory, across processes. Signal safe; errno is left as it was found. */
#ifndef HP_SYNC_FUTEX_H
#define HP_SYNC_FUTEX_H

#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>

#define HP_SLICE_NS 100000000 /* after so long without news we look whether somebody has died */
#define HP_FUTEX_FOREVER INT64_MAX

/* Sleeps while *word == expected, at most timeout_ns. 0, -EAGAIN, -EINTR or -ETIMEDOUT: look at the word again. */
int hp_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
/* Wakes at most so many sleepers; how many. */
int hp_futex_wake(_Atomic uint32_t *word, int most);

/* Sleeps for a while that nobody ends: lets others run, of lower priority too. */
void hp_sleep_ns(int64_t ns);

static inline void hp_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

#endif
