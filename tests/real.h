/* SPDX-License-Identifier: MIT */
/*
 * Short forms for the tests on real memory.
 *
 * Each test runs in a process of its own, for three reasons: cmocka sets its own SIGSEGV handler before every test,
 * over hugepool's; a test that crashes or hangs takes nothing with it; and what a process has left behind can be
 * counted. So a test says EXPECT, in all its threads and children, and not cmocka's assertions.
 */
#ifndef REAL_H
#define REAL_H

#include "hugepool.h"
#include "os/os.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define FRAME HP_FRAME_SIZE
#define GIB (UINT64_C(1) << 30)
#define RW (HP_PROT_READ | HP_PROT_WRITE)
#define RO HP_PROT_READ
#define LAZY HP_MAP_LAZY

#define TEST_SECONDS_MAX 60
#define STEP_SECONDS_MAX 20
#define EXIT_SKIPPED 77

/* ---- expectations ----------------------------------------------------------------------------------------------- */

#define EXPECT(condition) ((condition) ? (void)0 : real_failed(__FILE__, __LINE__, #condition))
#define EXPECT_EQ(is, should) real_expect_equal(__FILE__, __LINE__, #is, (long long)(is), (long long)(should))
/* Of a call that has filled `error`. */
#define EXPECT_OK(call) real_expect_ok(__FILE__, __LINE__, #call, (call))

static hp_error error;

static inline void real_failed(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: does not hold in process %d: %s\n", file, line, getpid(), what);
	_exit(1);
}

static inline void real_expect_equal(const char *file, int line, const char *what, long long is, long long should)
{
	if (is == should)
		return;
	fprintf(stderr, "%s:%d: in process %d: %s is %lld and should be %lld\n", file, line, getpid(), what, is,
	        should);
	_exit(1);
}

static inline void real_expect_ok(const char *file, int line, const char *what, int result)
{
	if (!result)
		return;
	fprintf(stderr, "%s:%d: in process %d: %s answers %d; last error: %s\n", file, line, getpid(), what, result,
	        error.message);
	_exit(1);
}

static inline void skip_test(const char *why)
{
	fprintf(stderr, "skipped: %s\n", why);
	_exit(EXIT_SKIPPED);
}

/* ---- one process for each test ---------------------------------------------------------------------------------- */

struct real_body {
	void (*run)(void);
};

static inline unsigned count_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	EXPECT(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Kernel mappings of hugepool's memory in this process that overlap a range. */
static inline unsigned count_mappings(const void *address, uint64_t length)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096];
	unsigned n = 0;

	EXPECT(maps);
	while (fgets(line, sizeof(line), maps)) {
		unsigned long start, end;

		if (!strstr(line, "memfd:hugepool") || sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		n += start < (uintptr_t)address + length && end > (uintptr_t)address;
	}
	fclose(maps);
	return n;
}

/* Everything of hugepool's that this process has mapped. */
static inline unsigned count_all_mappings(void)
{
	return count_mappings(NULL, UINT64_MAX);
}

static inline void real_child(void (*run)(void))
{
	static const int caught[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS};
	unsigned descriptors;

	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* out of reach of who interrupts the test, by its group of its own */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (size_t i = 0; i < sizeof(caught) / sizeof(caught[0]); i++)
		signal(caught[i], SIG_DFL);
	descriptors = count_descriptors();
	run();
	EXPECT_EQ(count_descriptors(), descriptors);
	EXPECT_EQ(count_all_mappings(), 0);
	EXPECT(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
	_exit(0);
}

static inline void nap(unsigned us)
{
	struct timespec rest = {us / 1000000, us % 1000000 * 1000};

	nanosleep(&rest, NULL);
}

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void run_isolated(void **state)
{
	const struct real_body *body = *state;
	const char *longer = getenv("HP_TEST_SECONDS");
	double deadline = seconds() + TEST_SECONDS_MAX + (longer ? strtod(longer, NULL) : 0);
	pid_t pid, done;
	int status;

	fflush(NULL);
	pid = fork();
	if (pid == 0)
		real_child(body->run);
	assert_true(pid > 0);
	while ((done = waitpid(pid, &status, WNOHANG)) == 0 && seconds() < deadline)
		nap(1000);
	for (int i = 0; done == pid && i < 100 && kill(-pid, 0) == 0; i++)
		nap(2000);
	if (kill(-pid, SIGKILL) == 0 || done != pid) {
		kill(pid, SIGKILL);
		if (done != pid)
			waitpid(pid, NULL, 0);
		fail_msg("%s", done == pid ? "processes are left behind" : "it hangs");
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED)
		skip();
	if (WIFSIGNALED(status))
		fail_msg("it ended by signal %d", WTERMSIG(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

#define REAL_TEST(body)                                              \
	{                                                            \
#body, run_isolated, NULL, NULL, &(struct real_body) \
		{                                                    \
			body                                         \
		}                                                    \
	}

/* ---- pools ------------------------------------------------------------------------------------------------------ */

static hp_pool pool;

static inline void make_pool_with(const hp_pool_options *options)
{
	EXPECT_OK(hp_pool_create(options, &pool, &error));
}

/* Without workers, so that figures are exact. */
static inline void make_pool(uint64_t frames, const char *tuning)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;

	options.size = frames * FRAME;
	options.workers = HP_WORKERS_NONE;
	options.tuning = tuning;
	make_pool_with(&options);
}

static inline hp_pool_stats stats_of(hp_pool of)
{
	hp_pool_stats stats = {.struct_size = sizeof(stats)};

	EXPECT_EQ(hp_pool_stats_get(of, &stats), 0);
	return stats;
}

static inline hp_pool_stats stats_now(void)
{
	return stats_of(pool);
}

static inline void check_pool(void)
{
	EXPECT_OK(hp_pool_check(pool, &error));
}

/* The end of every test: nothing is in use, the sums hold. */
static inline void end_pool(void)
{
	hp_pool_stats stats;

	check_pool();
	stats = stats_now();
	EXPECT_EQ(stats.used, 0);
	EXPECT_EQ(stats.reserved, 0);
	EXPECT_EQ(stats.files, 0);
	EXPECT_EQ(stats.mappings, 0);
	EXPECT_EQ(stats.zeroed + stats.dirty + stats.zeroing, stats.frames);
	EXPECT_EQ(stats.hugetlb + stats.thp + stats.base, stats.frames);
	EXPECT_EQ(hp_pool_close(pool), 0);
}

static inline uint64_t huge_pages_available(void)
{
	return hp_os_linux()->ops->hugetlb_available(hp_os_linux());
}

/* ---- files and mappings ----------------------------------------------------------------------------------------- */

static inline hp_file make_file(uint64_t pages)
{
	hp_file file;

	EXPECT_OK(hp_file_create(pool, pages * FRAME, 0, &file, &error));
	return file;
}

static inline char *map_part(hp_file file, uint64_t first, uint64_t pages, unsigned prot, unsigned flags)
{
	void *address;

	EXPECT_OK(hp_map(file, first * FRAME, pages * FRAME, prot, flags, &address, &error));
	EXPECT_EQ((uintptr_t)address % FRAME, 0);
	return address;
}

static inline char *map(hp_file file, uint64_t pages, unsigned flags)
{
	return map_part(file, 0, pages, RW, flags);
}

static inline void unmap(char *address, uint64_t pages)
{
	EXPECT_EQ(hp_unmap(address, pages * FRAME), 0);
}

static inline void close_file(hp_file file)
{
	EXPECT_EQ(hp_file_close(file), 0);
}

static inline hp_file_stat file_stat(hp_file file)
{
	hp_file_stat stat = {.struct_size = sizeof(stat)};

	EXPECT_EQ(hp_file_stat_get(file, &stat), 0);
	return stat;
}

/* ---- contents --------------------------------------------------------------------------------------------------- */

#define TAG_STRIDE 4096

static inline void write_tag(volatile char *page, uint64_t tag)
{
	for (uint64_t at = 0; at < FRAME; at += TAG_STRIDE)
		*(volatile uint64_t *)(page + at + at / TAG_STRIDE % 500 * 8) = tag + at;
}

static inline bool has_tag(const volatile char *page, uint64_t tag)
{
	for (uint64_t at = 0; at < FRAME; at += TAG_STRIDE)
		if (*(const volatile uint64_t *)(page + at + at / TAG_STRIDE % 500 * 8) != tag + at)
			return false;
	return true;
}

static inline bool is_zero(const char *page)
{
	return page[0] == 0 && memcmp(page, page + 1, FRAME - 1) == 0;
}

static inline char touch(const char *address)
{
	return *(const volatile char *)address;
}

/* ---- threads and processes -------------------------------------------------------------------------------------- */

/* Memory that all processes of a test share, apart from hugepool. */
static inline void *make_shared(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	EXPECT(memory != MAP_FAILED);
	return memory;
}

#define REACH(step, value) atomic_store(step, value)

/* Waits until another thread or process has come that far. */
static inline void await(_Atomic int *step, int value)
{
	double deadline = seconds() + STEP_SECONDS_MAX;

	while (atomic_load(step) < value) {
		EXPECT(seconds() < deadline);
		nap(100);
	}
}

static inline pthread_t start_thread(void *(*run)(void *), void *context)
{
	pthread_t thread;

	EXPECT_EQ(pthread_create(&thread, NULL, run, context), 0);
	return thread;
}

static inline void join_thread(pthread_t thread)
{
	EXPECT_EQ(pthread_join(thread, NULL), 0);
}

/* A child that does not outlive its parent. */
static inline pid_t start_child(void (*run)(void *), void *context)
{
	pid_t pid = fork();

	EXPECT(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run(context);
		_exit(0);
	}
	return pid;
}

static inline int end_of(pid_t pid)
{
	int status;

	EXPECT_EQ(waitpid(pid, &status, 0), pid);
	return status;
}

static inline void join_child(pid_t pid)
{
	EXPECT_EQ(end_of(pid), 0);
}

static inline void run_child(void (*run)(void *), void *context)
{
	join_child(start_child(run, context));
}

/* The child must end by this signal. */
static inline void expect_killed(void (*run)(void *), void *context, int by)
{
	int status = end_of(start_child(run, context));

	EXPECT(WIFSIGNALED(status));
	EXPECT_EQ(WTERMSIG(status), by);
}

/* For expect_killed. */
static inline void touch_it(void *address)
{
	touch(address);
}

#endif
