/* SPDX-License-Identifier: MIT */
#include "sync/futex.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int hp_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns)
{
	struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
	int saved_errno = errno, result = 0;

	if (syscall(SYS_futex, word, FUTEX_WAIT, expected, timeout_ns == HP_FUTEX_FOREVER ? NULL : &timeout, NULL, 0) <
	    0)
		result = -errno;
	errno = saved_errno;
	return result;
}

int hp_futex_wake(_Atomic uint32_t *word, int most)
{
	int saved_errno = errno;
	long woken = syscall(SYS_futex, word, FUTEX_WAKE, most, NULL, NULL, 0);

	errno = saved_errno;
	return woken < 0 ? 0 : (int)woken;
}

void hp_sleep_ns(int64_t ns)
{
	_Atomic uint32_t never = 0;

	hp_futex_wait(&never, 0, ns);
}
