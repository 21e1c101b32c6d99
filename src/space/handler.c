/* SPDX-License-Identifier: MIT */
/*
 * The SIGSEGV handler: takes the faults of lazy mappings and passes every other one on to the handler that was there
 * before, as if it had been called by the kernel. It runs with all signals blocked, on an alternate stack where the
 * thread has one, and leaves errno as it was.
 */
#include "space/space.h"

#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

static struct sigaction previous; /* set before our handler is installed; changed where the kernel would change it */

static bool was_write(const ucontext_t *context)
{
#if defined(__x86_64__)
	return context->uc_mcontext.gregs[REG_ERR] & 2; /* the page-fault error code's write bit */
#else
	(void)context; /* a write to a read-only mapping is found out when the page keeps faulting */
	return false;
#endif
}

int hp_handle_fault(void *siginfo, void *ucontext)
{
	const siginfo_t *info = siginfo;
	int saved_errno = errno;
	enum hp_fault_result result;

	/* A SIGSEGV that somebody sent has no address. */
	if (info->si_code <= 0)
		return 0;
	result = hp_space_fault((uintptr_t)info->si_addr, was_write(ucontext));
	errno = saved_errno;
	return result == HP_FAULT_RESOLVED;
}

/* The default action at the repeated instruction: for a fault, the end of the process. A sent signal is sent again. */
static void take_default(int signal, const siginfo_t *info)
{
	struct sigaction action = {.sa_handler = SIG_DFL};

	sigaction(signal, &action, NULL);
	if (info->si_code <= 0)
		raise(signal);
}

/* The mask that the kernel would have set for a handler. */
static void set_mask_of(const struct sigaction *action, int signal, const ucontext_t *context)
{
	sigset_t mask = context->uc_sigmask;

	for (int s = 1; s < NSIG; s++)
		if (sigismember(&action->sa_mask, s) == 1)
			sigaddset(&mask, s);
	if (!(action->sa_flags & SA_NODEFER))
		sigaddset(&mask, signal);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

static void pass_on(int signal, siginfo_t *info, void *context)
{
	struct sigaction action = previous;

	if (action.sa_flags & SA_RESETHAND)
		previous = (struct sigaction){.sa_handler = SIG_DFL};
	if (action.sa_flags & SA_SIGINFO) {
		set_mask_of(&action, signal, context);
		action.sa_sigaction(signal, info, context);
	} else if (action.sa_handler == SIG_DFL) {
		take_default(signal, info);
	} else if (action.sa_handler == SIG_IGN) {
		/* An ignored signal that was sent is ignored; a fault cannot be. */
		if (info->si_code > 0)
			take_default(signal, info);
	} else {
		set_mask_of(&action, signal, context);
		action.sa_handler(signal);
	}
}

static void on_sigsegv(int signal, siginfo_t *info, void *context)
{
	if (!hp_handle_fault(info, context))
		pass_on(signal, info, context);
}

static int install_result;

static void install(void)
{
	struct sigaction action = {.sa_sigaction = on_sigsegv, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	int saved_errno = errno;

	sigfillset(&action.sa_mask);
	if (sigaction(SIGSEGV, NULL, &previous) || sigaction(SIGSEGV, &action, NULL))
		install_result = -errno;
	errno = saved_errno;
}

int hp_handler_install(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, install);
	return install_result;
}
