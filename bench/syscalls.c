/* SPDX-License-Identifier: MIT */
#include "syscalls.h"

#include "bench.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT_A_CALL (SIGTRAP | 0x80) /* PTRACE_O_TRACESYSGOOD marks stops at system calls so */
#define MARK_CALLS 2u
#define MASK_CALLS 2000u /* timed together */

/* The tracer counts between two of these, which are MARK_CALLS themselves. */
static void mark(void)
{
	pid_t pid = (pid_t)syscall(SYS_getpid);

	syscall(SYS_tgkill, pid, pid, SIGSTOP);
}

static _Noreturn void be_traced(const struct bench_traced *traced, void *context)
{
	int rc;

	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(1);
	rc = traced->prepare(context);
	mark();
	rc = rc ? rc : traced->work(context);
	if (!rc)
		mark();
	traced->leave(context);
	_exit(rc != 0);
}

/* The signal at which the child stops; 0: it has ended. */
static int await_stop(pid_t child)
{
	int status = 0;

	while (waitpid(child, &status, __WALL) < 0)
		if (errno != EINTR)
			return 0;
	return WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
}

static void count_entry(pid_t child, struct bench_syscalls *count)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, child, (void *)sizeof(info), &info) <= 0 ||
	    info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return;
	count->calls++;
	count->masks += info.entry.nr == SYS_rt_sigprocmask;
}

/* From the first mark to the second. False: there was no second one. */
static bool count_calls(pid_t child, struct bench_syscalls *count)
{
	int signal = 0;

	while (!ptrace(PTRACE_SYSCALL, child, NULL, (void *)(long)signal)) {
		signal = await_stop(child);
		if (signal == SIGSTOP || !signal)
			return signal && count->calls >= MARK_CALLS;
		if (signal == AT_A_CALL) {
			count_entry(child, count);
			signal = 0;
		}
	}
	return false;
}

bool bench_count_syscalls(const struct bench_traced *traced, void *context, struct bench_syscalls *count)
{
	pid_t child = fork();

	*count = (struct bench_syscalls){0};
	if (!child)
		be_traced(traced, context);
	if (child < 0 || await_stop(child) != SIGSTOP)
		return false;
	ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
	if (!count_calls(child, count))
		return false;
	count->calls -= MARK_CALLS;
	ptrace(PTRACE_DETACH, child, NULL, NULL);
	await_stop(child);
	return true;
}

double bench_mask_call_ns(void)
{
	uint64_t start;
	sigset_t mask;

	sigprocmask(SIG_SETMASK, NULL, &mask);
	start = bench_now_ns();
	for (unsigned i = 0; i < MASK_CALLS; i++)
		sigprocmask(SIG_SETMASK, &mask, NULL);
	return (double)(bench_now_ns() - start) / MASK_CALLS;
}
