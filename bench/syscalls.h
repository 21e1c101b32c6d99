/* SPDX-License-Identifier: MIT */
/* What a piece of work asks the kernel for, found out by ptrace(2). */
#ifndef BENCH_SYSCALLS_H
#define BENCH_SYSCALLS_H

#include <stdbool.h>

struct bench_traced {
	int (*prepare)(void *context); /* not counted */
	int (*work)(void *context);
	void (*leave)(void *context); /* before the process ends */
};

struct bench_syscalls {
	unsigned calls;
	unsigned masks; /* of these: rt_sigprocmask(2), which changes a word of the thread's own */
};

/*
 * Counts the system calls of one thread. All of this is done in a forked child, which is traced. False: something
 * failed there, or tracing is not allowed here.
 */
bool bench_count_syscalls(const struct bench_traced *traced, void *context, struct bench_syscalls *count);

/* What rt_sigprocmask(2) takes here now. */
double bench_mask_call_ns(void);

#endif
