/* SPDX-License-Identifier: MIT */
#include "sync/barrier.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

bool hp_barrier_join(void)
{
	int saved_errno = errno;
	bool joined = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;

	errno = saved_errno;
	return joined;
}

void hp_barrier_all(void)
{
	int saved_errno = errno;

	atomic_thread_fence(memory_order_seq_cst);
	syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
	atomic_thread_fence(memory_order_seq_cst);
	errno = saved_errno;
}
