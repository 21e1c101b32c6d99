/* SPDX-License-Identifier: MIT */
/*
 * The SIGSEGV handler among the program's own signals and handlers, on real memory.
 */
#include "real.h"

#include <ucontext.h>

#define PAGES 8

static void quiet(hp_log_level level, const char *line, void *context)
{
}

/* ---- the handler ------------------------------------------------------------------------------------------------ */

static void test_errno_is_kept(void)
{
	hp_file file;
	char *lazy;

	make_pool(32, NULL);
	file = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
	for (int i = 0; i < PAGES; i++) {
		errno = 1000 + i;
		touch(lazy + i * FRAME);
		EXPECT_EQ(errno, 1000 + i);
	}
	errno = 7;
	unmap(lazy, PAGES);
	EXPECT_EQ(errno, 7);
	EXPECT_EQ(hp_file_allocate((hp_file){77}, 0, FRAME, NULL), -EBADF);
	EXPECT_EQ(errno, 7);
	close_file(file);
	end_pool();
	EXPECT_EQ(errno, 7);
}

#define ALTERNATE_SIZE 65536

static void install(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};

	EXPECT_EQ(sigaction(signal, &action, NULL), 0);
}

static ucontext_t main_context, deep_context;

/* Uses more stack than a frame has. */
static int __attribute__((noinline)) descend(int depth)
{
	volatile char room[4096];

	room[0] = (char)depth;
	return depth ? descend(depth - 1) + room[0] - (char)depth + 1 : 0;
}

static void run_deep(void)
{
	EXPECT_EQ(descend(2000), 2000);
}

/* A stack in lazy memory: its own page is missing when the handler is to be called. */
static void test_stack_in_lazy_memory(void)
{
	stack_t alternate = {.ss_sp = malloc(ALTERNATE_SIZE), .ss_size = ALTERNATE_SIZE};
	hp_file file;
	char *lazy;

#if defined(__SANITIZE_ADDRESS__)
	free(alternate.ss_sp);
	skip_test("the address sanitizer keeps books of stacks itself");
#endif
	make_pool(32, "fault_window=1");
	EXPECT_EQ(sigaltstack(&alternate, NULL), 0);
	file = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
	EXPECT_EQ(getcontext(&deep_context), 0);
	deep_context.uc_stack.ss_sp = lazy;
	deep_context.uc_stack.ss_size = PAGES * FRAME;
	deep_context.uc_link = &main_context;
	makecontext(&deep_context, run_deep, 0);
	EXPECT_EQ(swapcontext(&main_context, &deep_context), 0);
	EXPECT(file_stat(file).present >= 3 * FRAME);
	unmap(lazy, PAGES);
	close_file(file);
	alternate.ss_flags = SS_DISABLE;
	EXPECT_EQ(sigaltstack(&alternate, NULL), 0);
	free(alternate.ss_sp);
	end_pool();
}

static char *handlers_memory;
static _Atomic int handler_calls;

static void touch_all(int signal, siginfo_t *info, void *context)
{
	for (int i = 0; i < PAGES; i++)
		handlers_memory[i * FRAME + (unsigned)atomic_load(&handler_calls) % FRAME]++;
	atomic_fetch_add(&handler_calls, 1);
}

struct sender {
	pthread_t to;
	_Atomic int stop;
};

static void *send_signals(void *context)
{
	struct sender *sender = context;

	while (!atomic_load(&sender->stop)) {
		pthread_kill(sender->to, SIGUSR1);
		nap(50);
	}
	return NULL;
}

/* A handler of the program touches lazy memory, whatever its thread was doing in hugepool. */
static void test_fault_in_a_signal_handler(void)
{
	struct sender sender = {.to = pthread_self()};
	hp_file file, other;
	pthread_t thread;

	make_pool(32, "fault_window=1 fault_mutexes=1");
	file = make_file(PAGES);
	other = make_file(PAGES);
	handlers_memory = map(file, PAGES, LAZY);
	install(SIGUSR1, touch_all, SA_RESTART);
	thread = start_thread(send_signals, &sender);
	for (double end = seconds() + 2; seconds() < end;) {
		char *lazy;

		EXPECT_OK(hp_file_allocate(other, 0, PAGES * FRAME, &error));
		lazy = map(other, PAGES, LAZY);
		write_tag(lazy + FRAME, 1);
		EXPECT_EQ(hp_populate(lazy, PAGES * FRAME), 0);
		unmap(lazy, PAGES);
		close_file(other);
		other = make_file(PAGES);
		/* New pages for the handler to fault on. */
		char *fresh = map(file, PAGES, LAZY), *old = handlers_memory;
		sigset_t mask, saved;

		sigemptyset(&mask);
		sigaddset(&mask, SIGUSR1);
		pthread_sigmask(SIG_BLOCK, &mask, &saved);
		handlers_memory = fresh;
		pthread_sigmask(SIG_SETMASK, &saved, NULL);
		unmap(old, PAGES);
	}
	atomic_store(&sender.stop, 1);
	join_thread(thread);
	EXPECT(atomic_load(&handler_calls) > 10);
	unmap(handlers_memory, PAGES);
	close_file(file);
	close_file(other);
	end_pool();
}

/* ---- faults that are not hugepool's ----------------------------------------------------------------------------- */

static sigjmp_buf back;
static siginfo_t seen;
static volatile int seen_count;
static sigset_t seen_mask;
static void *seen_stack;

static void jump_out(int signal, siginfo_t *info, void *context)
{
	seen = *info;
	seen_count++;
	seen_stack = &info;
	pthread_sigmask(SIG_SETMASK, NULL, &seen_mask);
	siglongjmp(back, 1);
}

static volatile int plain_count;

static void jump_out_plain(int signal)
{
	plain_count += signal;
	siglongjmp(back, 1);
}

/* A lazy mapping, made so that hugepool's handler stands before the one that was installed. */
static hp_file lazy_file;
static char *lazy_memory;

static void start_lazy(const char *tuning)
{
	hp_log_set(quiet, HP_LOG_DEBUG, NULL);
	make_pool(32, tuning);
	lazy_file = make_file(PAGES);
	lazy_memory = map(lazy_file, PAGES, LAZY);
}

static void end_lazy(void)
{
	unmap(lazy_memory, PAGES);
	close_file(lazy_file);
	end_pool();
}

static void *no_access(void)
{
	void *address = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT(address != MAP_FAILED);
	return address;
}

static void test_previous_handler_sees_its_siginfo(void)
{
	stack_t alternate = {.ss_sp = malloc(ALTERNATE_SIZE), .ss_size = ALTERNATE_SIZE};
	char *forbidden = no_access();

	EXPECT_EQ(sigaltstack(&alternate, NULL), 0);
	install(SIGSEGV, jump_out, SA_ONSTACK);
	start_lazy(NULL);
	for (int i = 0; i < 1000; i++) {
		char *volatile address = i % 2 ? forbidden + i : (char *)8192 + i;

		if (sigsetjmp(back, 1) == 0) {
			touch(address);
			EXPECT(!"it was accessible");
		}
		EXPECT_EQ(seen_count, i + 1);
		EXPECT_EQ(seen.si_signo, SIGSEGV);
		EXPECT_EQ(seen.si_addr, address);
		EXPECT_EQ(seen.si_code, i % 2 ? SEGV_ACCERR : SEGV_MAPERR);
		/* As the kernel would have called it: its own signal is blocked, others are not. */
		EXPECT_EQ(sigismember(&seen_mask, SIGSEGV), 1);
		EXPECT_EQ(sigismember(&seen_mask, SIGUSR1), 0);
		EXPECT((char *)seen_stack > (char *)alternate.ss_sp &&
		       (char *)seen_stack < (char *)alternate.ss_sp + ALTERNATE_SIZE);
		/* Hugepool's own faults go on meanwhile. */
		if (i < PAGES)
			EXPECT(is_zero(lazy_memory + i * FRAME));
	}
	end_lazy();
	alternate.ss_flags = SS_DISABLE;
	EXPECT_EQ(sigaltstack(&alternate, NULL), 0);
	free(alternate.ss_sp);
	munmap(forbidden, 4096);
}

static void test_previous_plain_handler(void)
{
	signal(SIGSEGV, jump_out_plain);
	start_lazy(NULL);
	for (int i = 0; i < 1000; i++) {
		if (sigsetjmp(back, 1) == 0) {
			*(volatile char *)((char *)8192 + i) = 1;
			EXPECT(!"it was accessible");
		}
		EXPECT_EQ(plain_count, (i + 1) * SIGSEGV);
		lazy_memory[i % PAGES * FRAME]++;
	}
	end_lazy();
}

static void test_sent_signal(void)
{
	install(SIGSEGV, jump_out, 0);
	start_lazy(NULL);
	for (int i = 0; i < 10; i++) {
		if (sigsetjmp(back, 1) == 0) {
			EXPECT_EQ(kill(getpid(), SIGSEGV), 0);
			nap(1000000);
			EXPECT(!"it did not arrive");
		}
		EXPECT_EQ(seen_count, i + 1);
		EXPECT_EQ(seen.si_code, SI_USER);
		EXPECT_EQ(seen.si_pid, getpid());
	}
	end_lazy();
}

static void send_it(void *unused)
{
	kill(getpid(), SIGSEGV);
	nap(100000);
}

static void test_default_action_kills(void)
{
	start_lazy(NULL);
	expect_killed(touch_it, (char *)8192, SIGSEGV);
	expect_killed(send_it, NULL, SIGSEGV);
	EXPECT(is_zero(lazy_memory));
	end_lazy();
}

static void test_ignored(void)
{
	signal(SIGSEGV, SIG_IGN);
	start_lazy(NULL);
	kill(getpid(), SIGSEGV);
	EXPECT(is_zero(lazy_memory));
	expect_killed(touch_it, (char *)8192, SIGSEGV);
	end_lazy();
}

/* Runs on its own stack frame, so that the compiler keeps nothing across the jump. */
static bool __attribute__((noinline)) traps(char *address)
{
	if (sigsetjmp(back, 1))
		return true;
	*(volatile char *)address = 1;
	return false;
}

static void test_neighbours_are_foreign(void)
{
	hp_file file;
	char *small;

	install(SIGSEGV, jump_out, 0);
	start_lazy(NULL);
	file = make_file(1);
	small = map(file, 1, LAZY);
	/* Neighbouring addresses may be anybody's; those of a mapping that is gone are nobody's. */
	EXPECT(!traps(small + FRAME - 1));
	unmap(small, 1);
	EXPECT(traps(small));
	EXPECT_EQ(seen.si_addr, small);
	EXPECT(traps(small + FRAME - 1));
	close_file(file);
	end_lazy();
}

static void resolve_or_jump(int signal, siginfo_t *info, void *context)
{
	if (!hp_handle_fault(info, context))
		jump_out(signal, info, context);
	plain_count++;
}

static void test_program_replaces_the_handler(void)
{
	struct sigaction action = {.sa_sigaction = resolve_or_jump, .sa_flags = SA_SIGINFO};

	start_lazy("fault_window=1");
	touch(lazy_memory);
	sigfillset(&action.sa_mask);
	EXPECT_EQ(sigaction(SIGSEGV, &action, NULL), 0);
	for (int i = 0; i < PAGES; i++) {
		EXPECT(is_zero(lazy_memory + i * FRAME));
		EXPECT_EQ(plain_count, i);
	}
	EXPECT(traps((char *)8192));
	EXPECT_EQ(seen.si_addr, (char *)8192);
	end_lazy();
}

/* Pages that the program itself has protected go to its handler, soon. */
static void test_protected_by_the_program(void)
{
	char *ready;

	install(SIGSEGV, jump_out, 0);
	start_lazy("fault_window=1");
	ready = map(lazy_file, PAGES, 0);
	touch(lazy_memory + FRAME);
	for (int i = 0; i < 20; i++) {
		int prot = i % 2 ? PROT_READ : PROT_NONE;

		EXPECT_EQ(mprotect(lazy_memory + FRAME, FRAME, prot), 0);
		EXPECT_EQ(mprotect(ready + FRAME, FRAME, prot), 0);
		EXPECT(traps(lazy_memory + FRAME + i));
		EXPECT_EQ(seen.si_addr, lazy_memory + FRAME + i);
		EXPECT(traps(lazy_memory + FRAME)); /* the same address again */
		EXPECT(traps(lazy_memory + FRAME));
		EXPECT(traps(ready + FRAME + i));
		EXPECT(!traps(lazy_memory + 2 * FRAME + i));
		EXPECT_EQ(mprotect(lazy_memory + FRAME, FRAME, PROT_READ | PROT_WRITE), 0);
		EXPECT(!traps(lazy_memory + FRAME + i));
	}
	EXPECT_EQ(mprotect(ready + FRAME, FRAME, PROT_READ | PROT_WRITE), 0);
	unmap(ready, PAGES);
	end_lazy();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_errno_is_kept),
		REAL_TEST(test_stack_in_lazy_memory),
		REAL_TEST(test_fault_in_a_signal_handler),
		REAL_TEST(test_previous_handler_sees_its_siginfo),
		REAL_TEST(test_previous_plain_handler),
		REAL_TEST(test_sent_signal),
		REAL_TEST(test_default_action_kills),
		REAL_TEST(test_ignored),
		REAL_TEST(test_neighbours_are_foreign),
		REAL_TEST(test_program_replaces_the_handler),
		REAL_TEST(test_protected_by_the_program),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
