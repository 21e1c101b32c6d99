/* SPDX-License-Identifier: MIT */
/*
 * Processes of one pool: what a fork continues, what a death gives back.
 */
#include "real.h"

#include "sync/process.h"

#include <sched.h>
#include <spawn.h>
#include <sys/syscall.h>

#define PAGES 8

static hp_file file;
static char *ready, *lazy;
static _Atomic int *step; /* shared by the processes of a test */

static void start(const char *tuning)
{
	step = make_shared(4096);
	make_pool(48, tuning);
	file = make_file(PAGES);
	ready = map(file, PAGES, 0);
	lazy = map(file, PAGES, LAZY);
}

static void end(void)
{
	unmap(lazy, PAGES);
	unmap(ready, PAGES);
	close_file(file);
	end_pool();
	munmap(step, 4096);
}

/* What a dead process had is taken back by the next check: the books say what they said before. */
static void expect_books(const hp_pool_stats *before)
{
	hp_pool_stats now;

	check_pool();
	now = stats_now();
	EXPECT_EQ(now.processes, before->processes);
	EXPECT_EQ(now.mappings, before->mappings);
	EXPECT_EQ(now.files, before->files);
	EXPECT_EQ(now.used, before->used);
	EXPECT_EQ(now.reserved, before->reserved);
	EXPECT_EQ(now.zeroed + now.dirty, before->zeroed + before->dirty);
}

/* ---- what continues --------------------------------------------------------------------------------------------- */

static void write_odd_pages(void *address)
{
	for (int i = 0; i < PAGES; i++) {
		char *page = (char *)address + i * FRAME;

		if (i % 2 == 0)
			EXPECT(has_tag(page, i));
		else
			write_tag(page, i);
	}
	EXPECT_EQ(stats_now().processes, 2);
	EXPECT_EQ(stats_now().mappings, 4);
	REACH(step, 1);
	await(step, 2);
	for (int i = 0; i < PAGES; i++)
		EXPECT(has_tag((char *)address + i * FRAME, 100 + i));
}

static void contents_go_both_ways(char *mine, char *childs)
{
	pid_t pid;

	for (int i = 0; i < PAGES; i += 2)
		write_tag(mine + i * FRAME, i);
	pid = start_child(write_odd_pages, childs);
	await(step, 1);
	for (int i = 0; i < PAGES; i++) {
		EXPECT(has_tag(mine + i * FRAME, i));
		write_tag(mine + i * FRAME, 100 + i);
	}
	REACH(step, 2);
	join_child(pid);
}

static void test_contents_go_both_ways(void)
{
	hp_pool_stats before;

	for (int i = 0; i < 4; i++) {
		start(i % 2 ? "fault_window=1" : NULL);
		before = stats_now();
		contents_go_both_ways(i & 1 ? ready : lazy, i & 2 ? ready : lazy);
		expect_books(&before);
		end();
	}
}

static void touch_untouched(void *unused)
{
	for (int i = PAGES - 1; i >= 0; i--) {
		EXPECT(is_zero(lazy + i * FRAME));
		write_tag(lazy + i * FRAME, i);
	}
	EXPECT_EQ(file_stat(file).present, PAGES * FRAME);
}

/* The promise that the parent was given covers the child's faults. */
static void test_child_touches_what_the_parent_did_not(void)
{
	void *rest;

	make_pool(32, "fault_window=1");
	file = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
	EXPECT_OK(hp_alloc(pool, (32 - PAGES) * FRAME, &rest, &error));
	run_child(touch_untouched, NULL);
	for (int i = 0; i < PAGES; i++)
		EXPECT(has_tag(lazy + i * FRAME, i));
	EXPECT_EQ(hp_free(pool, rest), 0);
	unmap(lazy, PAGES);
	close_file(file);
	end_pool();
}

static void use_handles(void *unused)
{
	hp_file own;
	char *address;
	void *extent;

	EXPECT_EQ(file_stat(file).size, PAGES * FRAME);
	EXPECT_EQ(file_stat(file).mappings, 4);
	EXPECT_OK(hp_file_allocate(file, 0, PAGES * FRAME, &error));
	address = map(file, PAGES, LAZY);
	EXPECT(has_tag(address, 5));
	unmap(address, PAGES);
	own = make_file(3);
	address = map(own, 3, LAZY);
	EXPECT(is_zero(address + FRAME));
	unmap(address, 3);
	close_file(own);
	EXPECT_OK(hp_alloc(pool, 2 * FRAME, &extent, &error));
	EXPECT(is_zero(extent));
	EXPECT_EQ(hp_free(pool, extent), 0);
	unmap(ready, PAGES);
	unmap(lazy, PAGES);
	close_file(file);
	EXPECT_EQ(hp_file_close(file), -EBADF);
	EXPECT_EQ(hp_pool_close(pool), 0);
	EXPECT_EQ(count_all_mappings(), 0);
}

/* A child that gives up everything, the pool included, takes nothing from the parent. */
static void test_handles_are_valid_in_the_child(void)
{
	hp_pool_stats before;

	start(NULL);
	write_tag(ready, 5);
	before = stats_now();
	run_child(use_handles, NULL);
	EXPECT_EQ(stats_now().processes, 1); /* it said good-bye, nobody had to find out */
	expect_books(&before);
	EXPECT(has_tag(ready, 5));
	touch(lazy + 3 * FRAME);
	end();
}

static void free_it(void *extent)
{
	EXPECT(has_tag(extent, 4));
	EXPECT_EQ(hp_free(pool, extent), 0);
}

static void test_extents(void)
{
	void *extent;

	make_pool(32, NULL);
	EXPECT_OK(hp_alloc(pool, 4 * FRAME, &extent, &error));
	write_tag(extent, 4);
	run_child(free_it, extent);
	EXPECT_EQ(hp_free(pool, extent), -EINVAL);
	end_pool();
}

/* ---- the parent leaves ------------------------------------------------------------------------------------------ */

static void survive(void *unused)
{
	await(step, 1);
	check_pool();
	EXPECT_EQ(stats_now().processes, 1);
	for (int i = 0; i < PAGES; i++) {
		EXPECT(has_tag(ready + i * FRAME, i));
		EXPECT(has_tag(lazy + i * FRAME, i));
	}
	check_pool();
	write_tag(lazy, 50);
	EXPECT(has_tag(ready, 50));
	end();
}

static void test_parent_leaves(void)
{
	pid_t pid;

	start(NULL);
	for (int i = 0; i < PAGES; i++)
		write_tag(ready + i * FRAME, i);
	pid = start_child(survive, NULL);
	unmap(lazy, PAGES);
	unmap(ready, PAGES);
	close_file(file);
	EXPECT_EQ(hp_pool_close(pool), 0);
	REACH(step, 1);
	join_child(pid);
	munmap(step, 4096);
}

/* Makes the pool, forks, and dies: `how` the pool's maker ends. */
static void make_and_die(int how)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	pid_t pid;

	options.size = 32 * FRAME;
	options.workers = 2;
	make_pool_with(&options);
	file = make_file(PAGES);
	ready = map(file, PAGES, 0);
	lazy = map(file, PAGES, LAZY);
	for (int i = 0; i < PAGES; i++)
		write_tag(ready + i * FRAME, i);
	pid = fork(); /* it outlives us */
	if (pid == 0) {
		survive(NULL);
		_exit(0);
	}
	/* Workers must not die with a frame in their hands: nothing is dirty now, and they sleep. */
	EXPECT_OK(hp_pool_wait(pool, -1, &error));
	if (how)
		kill(getpid(), how);
	_exit(0);
}

static void maker_dies(int how)
{
	pid_t maker, child;
	int status;

	step = make_shared(4096);
	maker = fork();
	if (maker == 0)
		make_and_die(how);
	end_of(maker);
	REACH(step, 1);
	/* An orphan of ours by now, because this process is the subreaper. */
	child = waitpid(-1, &status, 0);
	EXPECT(child > 0);
	EXPECT_EQ(status, 0);
	munmap(step, 4096);
}

static void test_maker_exits(void)
{
	maker_dies(0);
}

static void test_maker_is_killed(void)
{
	maker_dies(SIGKILL);
}

/* ---- deaths ----------------------------------------------------------------------------------------------------- */

/* Takes some of everything. */
static void take_much(void)
{
	hp_file own = make_file(6), closed = make_file(4);
	char *own_lazy = map(own, 6, LAZY);

	map(own, 2, 0);
	map(file, PAGES, LAZY);
	map(closed, 4, 0);
	close_file(closed);
	write_tag(own_lazy + 4 * FRAME, 1);
	write_tag(lazy, 77);
	EXPECT_EQ(stats_now().files, 3);
	EXPECT_EQ(stats_now().mappings, 8);
}

static void wait_for_death(void *unused)
{
	take_much();
	REACH(step, 1);
	for (;;)
		pause();
}

static void exit_without_closing(void *unused)
{
	take_much();
}

static void exec_something(void *unused)
{
	take_much();
	execl("/bin/true", "true", NULL);
}

static void *idle(void *unused)
{
	take_much();
	REACH(step, 1);
	for (;;)
		pause();
	return NULL;
}

/* The thread that was forked ends; another one, who uses the pool, goes on until it is killed. */
static void wait_for_death_in_a_thread(void *unused)
{
	start_thread(idle, NULL);
	pthread_exit(NULL);
}

static void test_killed(void)
{
	hp_pool_stats before;

	start("fault_window=1");
	touch(lazy);
	before = stats_now();
	for (int i = 0; i < 6; i++) {
		pid_t pid = start_child(i % 2 ? wait_for_death : wait_for_death_in_a_thread, NULL);

		await(step, 1);
		check_pool();
		EXPECT_EQ(stats_now().processes, 2); /* alive: nothing is taken back */
		EXPECT_EQ(stats_now().files, 3);
		EXPECT_EQ(stats_now().mappings, 8);
		kill(pid, SIGKILL);
		EXPECT(WIFSIGNALED(end_of(pid)));
		expect_books(&before);
		EXPECT(has_tag(lazy, 77));
		REACH(step, 0);
	}
	end();
}

static void test_exit_without_closing(void)
{
	hp_pool_stats before;

	start(NULL);
	before = stats_now();
	run_child(exit_without_closing, NULL);
	expect_books(&before);
	run_child(exec_something, NULL);
	expect_books(&before);
	end();
}

/* What the dead had is found when memory is short, without a check. */
static void test_dead_are_taken_back_when_short(void)
{
	void *all;

	start(NULL);
	run_child(exit_without_closing, NULL);
	EXPECT_OK(hp_alloc(pool, (48 - PAGES) * FRAME, &all, &error));
	EXPECT_EQ(hp_free(pool, all), 0);
	end();
}

__attribute__((noreturn)) static void generations(int deep)
{
	hp_file own = make_file(1);
	char *address = map(own, 1, LAZY);

	write_tag(address, deep);
	write_tag(lazy + deep * FRAME, deep);
	if (deep + 1 < PAGES) {
		pid_t pid = fork();

		EXPECT(pid >= 0);
		if (pid > 0)
			_exit(0); /* the child goes on without it */
		generations(deep + 1);
	}
	check_pool();
	for (int i = 0; i < PAGES; i++)
		EXPECT(has_tag(ready + i * FRAME, i));
	REACH(step, 1);
	_exit(0);
}

static void test_grandchildren(void)
{
	hp_pool_stats before;
	pid_t pid;

	start("fault_window=1");
	before = stats_now();
	pid = fork();
	if (pid == 0)
		generations(0);
	await(step, 1);
	for (int i = 0, status; i < PAGES; i++) {
		EXPECT(waitpid(-1, &status, 0) > 0);
		EXPECT_EQ(status, 0);
	}
	expect_books(&before);
	end();
}

/* ---- forks among threads ---------------------------------------------------------------------------------------- */

struct worker {
	_Atomic int *stop;
	unsigned number;
	hp_file file;
};

/* Maps, touches, unmaps; sometimes makes and closes a file of its own. */
static void *keep_mapping(void *context)
{
	struct worker *worker = context;

	for (unsigned round = 0; !atomic_load(worker->stop); round++) {
		char *address = map(worker->file, 4, round % 3 ? LAZY : 0);

		for (unsigned i = 0; i < 4; i++) {
			write_tag(address + i * FRAME, worker->number);
			EXPECT(has_tag(address + i * FRAME, worker->number));
		}
		unmap(address, 4);
		if (round % 4 == worker->number) {
			close_file(worker->file);
			worker->file = make_file(4);
		}
	}
	return NULL;
}

static void look_around(void *unused)
{
	hp_file own;
	char *address;

	for (int i = 0; i < PAGES; i++)
		EXPECT(has_tag(lazy + i * FRAME, i));
	own = make_file(1);
	address = map(own, 1, LAZY);
	EXPECT(is_zero(address));
	unmap(address, 1);
	unmap(ready, PAGES);
}

#define WORKERS 3

static void test_fork_while_threads_work(void)
{
	struct worker worker[WORKERS];
	pthread_t thread[WORKERS];
	hp_pool_stats before;
	_Atomic int stop = 0;

#if defined(__SANITIZE_ADDRESS__)
	skip_test("the address sanitizer's allocator does not survive a fork while a thread is in it");
#endif
	start("fault_window=2");
	for (int i = 0; i < PAGES; i++)
		write_tag(ready + i * FRAME, i);
	before = stats_now();
	for (unsigned i = 0; i < WORKERS; i++) {
		worker[i] = (struct worker){&stop, i, make_file(4)};
		thread[i] = start_thread(keep_mapping, &worker[i]);
	}
	for (int i = 0; i < 100; i++)
		run_child(look_around, NULL);
	atomic_store(&stop, 1);
	for (int i = 0; i < WORKERS; i++) {
		join_thread(thread[i]);
		close_file(worker[i].file);
	}
	expect_books(&before);
	end();
}

static void *keep_forking(void *unused)
{
	for (int i = 0; i < 50; i++)
		run_child(look_around, NULL);
	return NULL;
}

static void test_threads_fork_at_once(void)
{
	pthread_t thread[4];
	hp_pool_stats before;

	start("fault_window=1");
	for (int i = 0; i < PAGES; i++)
		write_tag(ready + i * FRAME, i);
	before = stats_now();
	for (int i = 0; i < 4; i++)
		thread[i] = start_thread(keep_forking, NULL);
	for (int i = 0; i < 4; i++)
		join_thread(thread[i]);
	expect_books(&before);
	end();
}

/* A thread that has never called hugepool forks, and ends. */
static void *fork_once(void *unused)
{
	run_child(use_handles, NULL);
	return NULL;
}

static void test_fork_in_a_thread(void)
{
	hp_pool_stats before;

	start(NULL);
	write_tag(ready, 5);
	before = stats_now();
	join_thread(start_thread(fork_once, NULL));
	expect_books(&before);
	end();
}

/* ---- children that are not ours --------------------------------------------------------------------------------- */

extern char **environ;

static void test_vfork_spawn_and_system(void)
{
	char *arguments[] = {"true", NULL};
	hp_pool_stats before;
	pid_t pid;

	start(NULL);
	before = stats_now();
	pid = vfork();
	if (pid == 0)
		_exit(0);
	join_child(pid);
	EXPECT_EQ(posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ), 0);
	join_child(pid);
	EXPECT_EQ(system("true"), 0);
	EXPECT_EQ(stats_now().processes, 1);
	expect_books(&before);
	EXPECT(is_zero(lazy));
	end();
}

static void quiet(hp_log_level level, const char *line, void *context)
{
}

/* The memory is there, the engine is not. */
static void expect_no_engine(void)
{
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	hp_file_stat stat = {.struct_size = sizeof(stat)};
	hp_file other;
	void *address;

	EXPECT(has_tag(ready, 3));
	EXPECT(has_tag(lazy, 3));
	EXPECT(has_tag(ready + FRAME, 4));
	EXPECT_EQ(hp_file_create(pool, FRAME, 0, &other, &error), -ECHILD);
	EXPECT(error.message[0]);
	EXPECT_EQ(hp_file_allocate(file, 0, FRAME, &error), -ECHILD);
	EXPECT_EQ(hp_file_stat_get(file, &stat), -ECHILD);
	EXPECT_EQ(hp_map(file, 0, FRAME, RW, 0, &address, &error), -ECHILD);
	EXPECT_EQ(hp_alloc(pool, FRAME, &address, &error), -ECHILD);
	EXPECT_EQ(hp_free(pool, ready), -ECHILD);
	EXPECT_EQ(hp_pool_stats_get(pool, &stats), -ECHILD);
	EXPECT_EQ(hp_pool_wait(pool, 0, &error), -ECHILD);
	EXPECT_EQ(hp_pool_check(pool, &error), -ECHILD);
	EXPECT_EQ(hp_populate(lazy, PAGES * FRAME), -ECHILD);
	EXPECT_EQ(hp_file_close(file), -ECHILD);
	EXPECT(has_tag(lazy, 3));
}

static void test_raw_clone(void)
{
	hp_pool_stats before;
	pid_t pid;

	start("fault_window=1");
	hp_log_set(quiet, HP_LOG_DEBUG, NULL);
	write_tag(lazy, 3);
	write_tag(ready + FRAME, 4);
	before = stats_now();
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	EXPECT(pid >= 0);
	if (pid == 0) {
		expect_no_engine();
		EXPECT_EQ(hp_pool_close(pool), -ECHILD);
		_exit(0);
	}
	join_child(pid);
	EXPECT_EQ(stats_now().processes, 1);
	expect_books(&before);

	/* A lazy page that was not touched before is out of its reach. */
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0) {
		touch(lazy + 2 * FRAME);
		_exit(0);
	}
	EXPECT_EQ(WTERMSIG(end_of(pid)), SIGSEGV);

	/* It may give its copy of the mappings up, which is nobody else's business. */
	pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0) {
		EXPECT_EQ(hp_unmap(lazy, PAGES * FRAME), 0);
		EXPECT_EQ(hp_unmap(ready, PAGES * FRAME), 0);
		EXPECT_EQ(count_mappings(lazy, PAGES * FRAME), 0);
		_exit(0);
	}
	join_child(pid);
	expect_books(&before);
	EXPECT(has_tag(lazy, 3));
	touch(lazy + 2 * FRAME);
	end();
}

/* ---- the table of processes ------------------------------------------------------------------------------------- */

static void touch_one(void *unused)
{
	touch(lazy + 3 * FRAME);
}

static void test_600_forks(void)
{
	hp_pool_stats before;

	start("fault_window=1");
	before = stats_now();
	for (int i = 0; i < 600; i++)
		run_child(touch_one, NULL);
	expect_books(&before);
	EXPECT_EQ(stats_now().processes, 1);
	end();
}

static pthread_barrier_t together;

static void *touch_together(void *page)
{
	pthread_barrier_wait(&together);
	touch(page);
	return NULL;
}

static void touch_from_new_threads(void *unused)
{
	pthread_t thread[PAGES];

	EXPECT_EQ(pthread_barrier_init(&together, NULL, PAGES), 0);
	for (int i = 0; i < PAGES; i++)
		thread[i] = start_thread(touch_together, lazy + i * FRAME);
	for (int i = 0; i < PAGES; i++)
		join_thread(thread[i]);
}

/* What the child first does with hugepool it does in several threads at once: one takes over, the others wait. */
static void test_first_use_by_many_threads(void)
{
	hp_pool_stats before;

	start("fault_window=1");
	before = stats_now();
	for (int i = 0; i < 50; i++)
		run_child(touch_from_new_threads, NULL);
	expect_books(&before);
	end();
}

static int never[2]; /* a pipe that nobody writes to: its end is the end of the test */

static void wait_for_the_end(void *unused)
{
	char byte;

	close(never[1]);
	atomic_fetch_add(step, 1);
	EXPECT_EQ(read(never[0], &byte, 1), 0);
}

static void live_without_a_record(void *unused)
{
	expect_no_engine();
	EXPECT_EQ(hp_unmap(ready, PAGES * FRAME), 0);
	wait_for_the_end(NULL);
}

/* One process too many keeps its memory, and the file whose pages it still has is not recycled. */
static void test_full_table(void)
{
	hp_pool_stats before;
	pid_t last;
	void *all;

	start("fault_window=1");
	hp_log_set(quiet, HP_LOG_DEBUG, NULL);
	write_tag(lazy, 3);
	write_tag(ready + FRAME, 4);
	EXPECT_EQ(pipe(never), 0);
	before = stats_now();
	for (uint32_t i = 2; i < HP_PROCESSES_MAX; i++)
		start_child(wait_for_the_end, NULL);
	EXPECT_EQ(stats_now().processes, HP_PROCESSES_MAX - 1);
	last = start_child(live_without_a_record, NULL);
	await(step, HP_PROCESSES_MAX - 1); /* a child that registers is in a call */
	check_pool();
	close(never[1]);
	join_child(last);
	for (uint32_t i = 2; i < HP_PROCESSES_MAX; i++) {
		int status;

		EXPECT(waitpid(-1, &status, 0) > 0);
		EXPECT_EQ(status, 0);
	}
	close(never[0]);
	expect_books(&before);
	unmap(lazy, PAGES);
	unmap(ready, PAGES);
	EXPECT_OK(hp_file_truncate(file, 0, &error)); /* nor are they given away */
	EXPECT_EQ(file_stat(file).holes, PAGES * FRAME);
	EXPECT_EQ(hp_alloc(pool, (48 - PAGES + 1) * FRAME, &all, NULL), -ENOMEM);
	EXPECT_OK(hp_alloc(pool, (48 - PAGES) * FRAME, &all, &error));
	EXPECT_EQ(hp_free(pool, all), 0);
	close_file(file);
	check_pool();
	EXPECT_EQ(stats_now().files, 1); /* nobody could tell when the last child was done with it */
	EXPECT_EQ(hp_pool_close(pool), 0);
	munmap(step, 4096);
}

/* ---- another pid namespace -------------------------------------------------------------------------------------- */

static void test_pid_namespace(void)
{
	hp_pool_stats before;
	pid_t pid;

	if (geteuid() != 0)
		skip_test("a new pid namespace takes root");
	start("fault_window=1");
	before = stats_now();
	if (unshare(CLONE_NEWPID)) {
		end();
		skip_test("no pid namespaces here");
	}
	pid = start_child(wait_for_death, NULL);
	await(step, 1);
	check_pool();
	EXPECT_EQ(stats_now().processes, 2);
	kill(pid, SIGKILL);
	end_of(pid);
	expect_books(&before);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_contents_go_both_ways),
		REAL_TEST(test_child_touches_what_the_parent_did_not),
		REAL_TEST(test_handles_are_valid_in_the_child),
		REAL_TEST(test_extents),
		REAL_TEST(test_parent_leaves),
		REAL_TEST(test_maker_exits),
		REAL_TEST(test_maker_is_killed),
		REAL_TEST(test_killed),
		REAL_TEST(test_exit_without_closing),
		REAL_TEST(test_dead_are_taken_back_when_short),
		REAL_TEST(test_grandchildren),
		REAL_TEST(test_fork_while_threads_work),
		REAL_TEST(test_threads_fork_at_once),
		REAL_TEST(test_fork_in_a_thread),
		REAL_TEST(test_vfork_spawn_and_system),
		REAL_TEST(test_raw_clone),
		REAL_TEST(test_600_forks),
		REAL_TEST(test_first_use_by_many_threads),
		REAL_TEST(test_full_table),
		REAL_TEST(test_pid_namespace),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
