/* SPDX-License-Identifier: MIT */
/* Cutting files and growing them again: alone, against mappings, and against everything at once. */
#include "real.h"

#include "file/lock.h"
#include "file/reserve.h"
#include "space/space.h"

#include <sched.h>

#define PAGES 8

static const char *const schemes[] = {"file_lock=biased", "file_lock=invalidate", "file_lock=vma", "file_lock=rwsem"};

#define SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

static hp_file file;
static _Atomic int *step; /* shared by the processes of a test */

static void start(uint64_t frames, const char *tuning)
{
	step = make_shared(4096);
	make_pool(frames, tuning);
	file = make_file(PAGES);
}

static void end(void)
{
	close_file(file);
	end_pool();
	munmap(step, 4096);
}

static int truncate_to(uint64_t pages)
{
	return hp_file_truncate(file, pages * FRAME, &error);
}

static void expect_stat(uint64_t size, uint64_t present, uint64_t reserved)
{
	hp_file_stat stat = file_stat(file);

	EXPECT_EQ(stat.size, size * FRAME);
	EXPECT_EQ(stat.present, present * FRAME);
	EXPECT_EQ(stat.reserved, reserved * FRAME);
}

static void expect_refused(int result, int code)
{
	EXPECT_EQ(result, code);
	EXPECT_EQ(error.code, code);
	EXPECT(error.message[0]);
	error = (hp_error){.code = 0};
}

/* See test_deaths.c. */
/* ---- alone ------------------------------------------------------------------------------------------------------ */

static void test_errors(void)
{
	hp_file closed;

	start(PAGES, NULL);
	expect_refused(hp_file_truncate(file, FRAME + 4096, &error), -EINVAL);
	expect_refused(hp_file_truncate(file, 1, &error), -EINVAL);
	expect_refused(truncate_to(PAGES + 1), -EFBIG);
	expect_refused(hp_file_truncate(file, UINT64_MAX - FRAME + 1, &error), -EFBIG);
	expect_stat(PAGES, 0, 0);
	EXPECT_OK(truncate_to(3));
	/* What it was made with counts, not what it has now. */
	EXPECT_OK(truncate_to(PAGES));
	closed = make_file(2);
	close_file(closed);
	expect_refused(hp_file_truncate(closed, FRAME, &error), -EBADF);
	EXPECT_EQ(hp_file_truncate((hp_file){0}, FRAME, NULL), -EBADF);
	EXPECT_EQ(hp_file_truncate(file, 1, NULL), -EINVAL);
	end();
}

static void test_frames_go_back(void)
{
	static const uint64_t sizes[] = {PAGES - 1, 5, 5, 1, 0};
	void *all;

	for (unsigned i = 0; i < SCHEMES; i++) {
		start(PAGES, schemes[i]);
		EXPECT_OK(hp_file_allocate(file, 0, PAGES * FRAME, &error));
		for (unsigned j = 0; j < sizeof(sizes) / sizeof(sizes[0]); j++) {
			EXPECT_OK(truncate_to(sizes[j]));
			expect_stat(sizes[j], sizes[j], 0);
			EXPECT_EQ(stats_now().used, sizes[j]);
			check_pool();
		}
		/* They are free for everybody. */
		EXPECT_OK(hp_alloc(pool, PAGES * FRAME, &all, &error));
		EXPECT_EQ(hp_free(pool, all), 0);
		end();
	}
}

static void test_beyond_the_end(void)
{
	void *address;

	start(PAGES, NULL);
	EXPECT_OK(truncate_to(4));
	expect_refused(hp_file_allocate(file, 0, 5 * FRAME, &error), -EINVAL);
	expect_refused(hp_map(file, 3 * FRAME, 2 * FRAME, RW, 0, &address, &error), -EINVAL);
	expect_refused(hp_map(file, 4 * FRAME, FRAME, RW, LAZY, &address, &error), -EINVAL);
	EXPECT_OK(truncate_to(0));
	expect_refused(hp_map(file, 0, FRAME, RW, LAZY, &address, &error), -EINVAL);
	expect_refused(hp_file_allocate(file, 0, FRAME, &error), -EINVAL);
	expect_stat(0, 0, 0);
	end();
}

/* What is regrown is absent and reads as zeroes, what was kept is as it was. */
static void regrow(unsigned flags, uint64_t keep)
{
	char *address;

	start(PAGES, "fault_window=4");
	address = map(file, PAGES, flags);
	for (uint64_t i = 0; i < PAGES; i++)
		write_tag(address + i * FRAME, i);
	unmap(address, PAGES);
	EXPECT_OK(truncate_to(keep));
	EXPECT_OK(truncate_to(PAGES));
	expect_stat(PAGES, keep, 0);
	address = map(file, PAGES, LAZY);
	expect_stat(PAGES, keep, PAGES - keep);
	for (uint64_t i = 0; i < PAGES; i++)
		EXPECT(i < keep ? has_tag(address + i * FRAME, i) : is_zero(address + i * FRAME));
	expect_stat(PAGES, PAGES, 0);
	unmap(address, PAGES);
	end();
}

static void test_regrown(void)
{
	regrow(0, 3);
	regrow(LAZY, 3);
	regrow(0, 0);
}

/* What was promised and never touched is given up with the rest. */
static void test_promises_are_cut(void)
{
	void *all;

	start(PAGES, "fault_window=1");
	char *address = map(file, PAGES, LAZY);

	touch(address + FRAME);
	touch(address + 6 * FRAME);
	unmap(address, PAGES);
	expect_stat(PAGES, 2, PAGES - 2);
	EXPECT_OK(truncate_to(4));
	expect_stat(4, 1, 3);
	EXPECT_EQ(stats_now().reserved, 3);
	EXPECT_OK(hp_alloc(pool, 2 * FRAME, &all, &error));
	EXPECT_EQ(hp_free(pool, all), 0);
	EXPECT_OK(truncate_to(0));
	EXPECT_EQ(stats_now().reserved, 0);
	EXPECT_OK(hp_alloc(pool, PAGES * FRAME, &all, &error));
	EXPECT_EQ(hp_free(pool, all), 0);
	end();
}

/* ---- mappings --------------------------------------------------------------------------------------------------- */

static void test_busy_here(void)
{
	for (unsigned i = 0; i < 2 * SCHEMES; i++) {
		char *low, *high;

		start(PAGES, schemes[i / 2]);
		high = map_part(file, 4, 3, RW, i % 2 ? LAZY : 0);
		low = map_part(file, 0, 2, RW, i % 2 ? 0 : LAZY);
		write_tag(high + 2 * FRAME, 7);
		write_tag(low + FRAME, 8);
		expect_refused(truncate_to(6), -EBUSY);
		expect_refused(truncate_to(0), -EBUSY);
		EXPECT_EQ(file_stat(file).size, PAGES * FRAME);
		EXPECT(has_tag(high + 2 * FRAME, 7));
		EXPECT_OK(truncate_to(7)); /* up to where it ends */
		unmap(high, 3);
		expect_refused(truncate_to(1), -EBUSY);
		EXPECT_OK(truncate_to(2));
		EXPECT(has_tag(low + FRAME, 8));
		unmap(low, 2);
		EXPECT_OK(truncate_to(0));
		EXPECT_EQ(stats_now().used, 0);
		end();
	}
}

static char *forked;

static void keep_it_mapped(void *unused)
{
	REACH(step, 1);
	await(step, 2);
	EXPECT(has_tag(forked + 5 * FRAME, 5));
	unmap(forked, PAGES);
	REACH(step, 3);
	await(step, 4);
}

static void test_busy_elsewhere(void)
{
	for (unsigned i = 0; i < SCHEMES; i++) {
		pid_t pid;

		start(PAGES, schemes[i]);
		forked = map(file, PAGES, LAZY);
		write_tag(forked + 5 * FRAME, 5);
		pid = start_child(keep_it_mapped, NULL);
		unmap(forked, PAGES);
		await(step, 1);
		expect_refused(truncate_to(2), -EBUSY);
		EXPECT_EQ(file_stat(file).size, PAGES * FRAME);
		REACH(step, 2);
		await(step, 3);
		EXPECT_OK(truncate_to(2));
		REACH(step, 4);
		join_child(pid);
		end();
	}
}

static void die(void *unused)
{
	kill(getpid(), SIGKILL);
}

/* The mapping of a process that is dead stands in nobody's way. */
static void test_busy_by_a_dead_process(void)
{
	start(PAGES, NULL);
	forked = map(file, PAGES, LAZY);
	expect_killed(die, NULL, SIGKILL);
	unmap(forked, PAGES);
	EXPECT_OK(truncate_to(2));
	end();
}

static void truncate_in_child(void *unused)
{
	EXPECT_OK(truncate_to(3));
}

static void test_in_a_child(void)
{
	start(PAGES, NULL);
	EXPECT_OK(hp_file_allocate(file, 0, PAGES * FRAME, &error));
	run_child(truncate_in_child, NULL);
	expect_stat(3, 3, 0);
	end();
}

/* ---- everything at once ----------------------------------------------------------------------------------------- */

#define ACTORS 3 /* of each process */

struct storm {
	_Atomic int stop;
	_Atomic uint64_t done[3];
};

static struct storm *storm;

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state >> 33;
}

/* Somebody else has cut the file: the range does not exist now. Nothing else may be wrong. */
static bool was_cut(int result)
{
	EXPECT(!result || result == -EINVAL);
	return result != 0;
}

static void allocate_some(uint64_t random)
{
	uint64_t first = random % PAGES, pages = 1 + random / PAGES % (PAGES - first);

	was_cut(hp_file_allocate(file, first * FRAME, pages * FRAME, &error));
}

/* A page that is mapped stays, whatever others cut. It is this mapper's alone: page `own` of the file. */
static void map_some(uint64_t random, uint64_t own, uint64_t tag)
{
	volatile uint64_t *word;
	void *address;

	if (was_cut(hp_map(file, own * FRAME, FRAME, RW, random % 3 ? LAZY : 0, &address, &error)))
		return;
	word = (volatile uint64_t *)((char *)address + 8 * (tag % 1000));
	EXPECT(*word == 0 || *word >> 32 == own);
	*word = own << 32 | (uint32_t)tag;
	sched_yield();
	EXPECT(*word == (own << 32 | (uint32_t)tag));
	unmap(address, 1);
}

/* Lazy faults over all that there is. */
static void touch_some(uint64_t random)
{
	uint64_t pages = 1 + random % PAGES;
	void *address;

	if (was_cut(hp_map(file, 0, pages * FRAME, RW, LAZY, &address, &error)))
		return;
	for (uint64_t i = 0; i < 4; i++)
		touch((char *)address + next_random(&random) % pages * FRAME);
	unmap(address, pages);
}

static void *act(void *context)
{
	uint64_t own = (uintptr_t)context, random = own * 77 + 1;

	for (uint64_t i = 1; !atomic_load(&storm->stop); i++) {
		unsigned what = next_random(&random) % 3;

		if (what == 0)
			allocate_some(next_random(&random));
		else if (what == 1)
			map_some(next_random(&random), own, i);
		else
			touch_some(next_random(&random));
		atomic_fetch_add(&storm->done[what], 1);
	}
	return NULL;
}

static void run_actors(void *first)
{
	pthread_t thread[ACTORS];

	for (unsigned i = 0; i < ACTORS; i++)
		thread[i] = start_thread(act, (void *)((uintptr_t)first + i));
	for (unsigned i = 0; i < ACTORS; i++)
		join_thread(thread[i]);
}

static void *run_actors_here(void *first)
{
	run_actors(first);
	return NULL;
}

/* Returns how often it did not find the file busy. */
static unsigned cut_and_grow(double until)
{
	uint64_t random = 5;
	unsigned cut = 0;

	while (seconds() < until) {
		int result = truncate_to(next_random(&random) % (PAGES + 1));

		EXPECT(!result || result == -EBUSY);
		cut += !result;
		if (result)
			sched_yield();
		EXPECT_EQ(hp_file_truncate(file, PAGES * FRAME, NULL), 0);
	}
	return cut;
}

static void run_storm(const char *tuning, double for_seconds)
{
	pthread_t here;
	pid_t pid;

	start(3 * PAGES, tuning);
	storm = make_shared(sizeof(*storm));
	pid = start_child(run_actors, (void *)1);
	here = start_thread(run_actors_here, (void *)(1 + ACTORS));
	EXPECT(cut_and_grow(seconds() + for_seconds) > 0);
	atomic_store(&storm->stop, 1);
	join_thread(here);
	join_child(pid);
	for (unsigned i = 0; i < 3; i++)
		EXPECT(atomic_load(&storm->done[i]) > 0);
	check_pool();
	EXPECT_EQ(hp_file_truncate(file, 0, &error), 0);
	EXPECT_EQ(stats_now().used, 0);
	munmap(storm, sizeof(*storm));
	end();
}

static void test_everything_at_once(void)
{
	for (unsigned i = 0; i < SCHEMES; i++) {
		char tuning[64];

		snprintf(tuning, sizeof(tuning), "%s fault_window=%d", schemes[i], i % 2 ? 1 : 4);
		run_storm(tuning, 0.5);
	}
	run_storm("resv_lock=global", 0.3);
}

/* ---- cut and grown while an allocation is on its way ------------------------------------------------------------ */

static struct hp_pool_view *view;

static void *allocate_all(void *unused)
{
	int result;

	REACH(step, 1);
	result = hp_file_allocate(file, 0, PAGES * FRAME, NULL);
	EXPECT(!result || result == -EINVAL);
	REACH(step, 2);
	return NULL;
}

/*
 *   main                        other thread
 *   lock the file for writing
 *                               promise all pages; wait for the file lock
 *   cut to 0, grow again
 *   unlock
 *                               fill pages whose promises are gone
 */
static void test_allocation_that_was_cut_and_regrown(void)
{
	struct hp_thread *t;
	struct hp_file_use use;
	pthread_t thread;
	sigset_t saved;

	start(2 * PAGES, NULL);
	view = hp_pool_find(pool.id);
	EXPECT_EQ(hp_thread_enter(view, &t), 0);
	use = (struct hp_file_use){hp_file_at(view, file.id >> 8 & 0xffffff), file.id >> 8 & 0xffffff};
	hp_signals_block(&saved);
	hp_file_write_lock(t, use);
	thread = start_thread(allocate_all, NULL);
	await(step, 1);
	while (file_stat(file).reserved < PAGES * FRAME)
		sched_yield();
	nap(1000);
	/* Two calls of hp_file_truncate, in one hold of the lock. */
	atomic_store(&use.record->pages, 0);
	hp_file_cut_locked(t, use);
	atomic_store(&use.record->pages, PAGES);
	hp_file_write_unlock(t, use);
	hp_signals_restore(&saved);
	await(step, 2);
	join_thread(thread);
	check_pool();
	end();
}

/* ---- which locks are taken -------------------------------------------------------------------------------------- */

static uint64_t acquisitions(const char *name, char mode)
{
	static hp_lock_stat rows[HP_LOCK_STATS_MAX];
	unsigned count = HP_LOCK_STATS_MAX;

	EXPECT_EQ(hp_pool_lockstat(pool, rows, &count, sizeof(rows[0])), 0);
	for (unsigned i = 0; i < count; i++)
		if (!strcmp(rows[i].name, name) && rows[i].mode == mode)
			return rows[i].acquisitions;
	return 0;
}

static void do_nothing(void *unused)
{
}

/* Truncation writes; a fork child that registers a mapping reads, and writes in the oldest scheme. */
static void test_locks_that_are_taken(void)
{
	for (unsigned i = 0; i < SCHEMES; i++) {
		bool fork_writes = strstr(schemes[i], "rwsem");
		uint64_t reads, writes;
		char *first, *second;

		start(PAGES, schemes[i]);
		writes = acquisitions("file", 'W');
		EXPECT_OK(truncate_to(4));
		EXPECT_OK(truncate_to(6));
		expect_refused(hp_file_truncate(file, 1, &error), -EINVAL);
		EXPECT_EQ(acquisitions("file", 'W'), writes + 2);

		first = map_part(file, 0, 2, RW, LAZY);
		second = map_part(file, 2, 2, RW, LAZY);
		reads = acquisitions("file", 'R');
		writes = acquisitions("file", 'W');
		run_child(do_nothing, NULL);
		EXPECT_EQ(acquisitions("file", 'R'), reads + (fork_writes ? 0 : 2));
		EXPECT_EQ(acquisitions("file", 'W'), writes + (fork_writes ? 2 : 0));

		/* A fault reads its file's lock, or its mapping's. */
		reads = acquisitions(strstr(schemes[i], "vma") ? "mapping" : "file", 'R');
		touch(first);
		touch(second);
		EXPECT_EQ(acquisitions(strstr(schemes[i], "vma") ? "mapping" : "file", 'R'), reads + 2);
		unmap(first, 2);
		unmap(second, 2);
		check_pool();
		end();
	}
}

/* ---- what goes wrong without fault mutexes ---------------------------------------------------------------------- */

struct populater {
	char *address;
	pthread_barrier_t *barrier;
	int result;
};

static void *populate_page(void *context)
{
	struct populater *populater = context;

	pthread_barrier_wait(populater->barrier);
	populater->result = hp_populate(populater->address, FRAME);
	return NULL;
}

/* Two want the same page, and both are on their way to it before either has it. Returns how many get it. */
static int populate_twice(const char *tuning)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	struct populater populater[2];
	pthread_barrier_t barrier;
	pthread_t thread[2];
	char *lazy;

	options.size = 2 * FRAME;
	options.workers = HP_WORKERS_NONE;
	options.flags = HP_POOL_UNSAFE;
	options.tuning = tuning;
	make_pool_with(&options);
	file = make_file(1);
	lazy = map(file, 1, LAZY);
	EXPECT_EQ(pthread_barrier_init(&barrier, NULL, 2), 0);
	for (int i = 0; i < 2; i++) {
		populater[i] = (struct populater){lazy, &barrier, 0};
		thread[i] = start_thread(populate_page, &populater[i]);
	}
	for (int i = 0; i < 2; i++) {
		join_thread(thread[i]);
		EXPECT(!populater[i].result || populater[i].result == -ENOMEM);
	}
	pthread_barrier_destroy(&barrier);
	EXPECT_EQ(file_stat(file).present, FRAME);
	unmap(lazy, 1);
	close_file(file);
	end_pool();
	return 2 - !!populater[0].result - !!populater[1].result;
}

/* The loser is told that memory is out, while a frame is free and its page is there. With mutexes it finds the page. */
static void test_false_out_of_memory_without_mutexes(void)
{
	EXPECT_EQ(populate_twice("fault_sleep_us=50000 fault_mutexes=0"), 1);
	EXPECT_EQ(populate_twice("fault_sleep_us=50000 fault_mutexes=1"), 2);
	EXPECT_EQ(populate_twice("fault_sleep_us=50000"), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_errors),
		REAL_TEST(test_frames_go_back),
		REAL_TEST(test_beyond_the_end),
		REAL_TEST(test_regrown),
		REAL_TEST(test_promises_are_cut),
		REAL_TEST(test_busy_here),
		REAL_TEST(test_busy_elsewhere),
		REAL_TEST(test_busy_by_a_dead_process),
		REAL_TEST(test_in_a_child),
		REAL_TEST(test_everything_at_once),
		REAL_TEST(test_allocation_that_was_cut_and_regrown),
		REAL_TEST(test_locks_that_are_taken),
		REAL_TEST(test_false_out_of_memory_without_mutexes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
