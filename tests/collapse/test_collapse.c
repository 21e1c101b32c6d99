/* SPDX-License-Identifier: MIT */
/* Base pages come to lie in frames, and back, alone and beside those who read and write. */
#include "real.h"

#include "space/space.h"

#include <sched.h>

#define PAGES 6

static const char *const schemes[] = {"file_lock=biased", "file_lock=invalidate",
                                      "file_lock=vma",    "file_lock=rwsem",
                                      "collapse=relock",  "file_lock=vma collapse=relock collapse_verify=1"};

#define SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

static hp_file file;
static _Atomic int *step; /* shared by the processes of a test */

/* ---- forms ------------------------------------------------------------------------------------------------------ */

static hp_file make_movable(uint64_t pages)
{
	hp_file made;

	EXPECT_OK(hp_file_create(pool, pages * FRAME, HP_FILE_FALLBACK | HP_FILE_MOVABLE, &made, &error));
	return made;
}

static void start(uint64_t frames, const char *tuning)
{
	step = make_shared(4096);
	make_pool(frames, tuning);
	file = make_movable(PAGES);
}

static void end(void)
{
	close_file(file);
	end_pool();
	munmap(step, 4096);
}

/* All of it in base pages: every base page of a page has its number. */
static void *take_all_frames(uint64_t frames)
{
	void *all;

	EXPECT_OK(hp_alloc(pool, frames * FRAME, &all, &error));
	return all;
}

static void fill(char *address, uint64_t pages)
{
	for (uint64_t at = 0; at < pages * FRAME; at += HP_BASE_PAGE_SIZE)
		*(volatile uint64_t *)(address + at) = at / HP_BASE_PAGE_SIZE + 1;
}

static void expect_filled(const char *address, uint64_t pages)
{
	for (uint64_t at = 0; at < pages * FRAME; at += HP_BASE_PAGE_SIZE)
		EXPECT_EQ(*(const volatile uint64_t *)(address + at), at / HP_BASE_PAGE_SIZE + 1);
}

static hp_collapse_stats collapses(void)
{
	hp_collapse_stats stats = {.struct_size = sizeof(stats)};

	EXPECT_EQ(hp_collapse_stats_get(pool, &stats), 0);
	return stats;
}

/* A mapping of the whole file, in base pages and filled; frames are free then. */
static char *map_base(unsigned flags)
{
	void *all = take_all_frames(PAGES);
	char *address = map(file, PAGES, flags);

	EXPECT_EQ(file_stat(file).base, flags & LAZY ? 0 : PAGES * FRAME);
	fill(address, PAGES);
	EXPECT_EQ(file_stat(file).base, PAGES * FRAME);
	EXPECT_EQ(hp_free(pool, all), 0);
	check_pool();
	return address;
}

/* ---- alone ------------------------------------------------------------------------------------------------------ */

static void collapse_and_split(const char *tuning, unsigned flags)
{
	char *address;

	start(PAGES, tuning);
	address = map_base(flags);
	EXPECT_OK(hp_collapse(address, 2 * FRAME, &error));
	check_pool();
	EXPECT_EQ(file_stat(file).base, (PAGES - 2) * FRAME);
	EXPECT_EQ(collapses().collapsed, 2);
	expect_filled(address, PAGES);
	EXPECT_OK(hp_collapse(address, PAGES * FRAME, &error));
	check_pool();
	EXPECT_EQ(file_stat(file).base, 0);
	EXPECT_EQ(file_stat(file).present, PAGES * FRAME);
	EXPECT_EQ(collapses().collapsed, PAGES);
	EXPECT_EQ(collapses().collapse.count, PAGES);
	expect_filled(address, PAGES);
	fill(address, PAGES);

	EXPECT_OK(hp_split(address + FRAME, 3 * FRAME, &error));
	check_pool();
	EXPECT_EQ(file_stat(file).base, 3 * FRAME);
	EXPECT_EQ(stats_now().zeroed + stats_now().dirty, 3);
	EXPECT_EQ(collapses().split, 3);
	expect_filled(address, PAGES);
	fill(address, PAGES);
	expect_filled(address, PAGES);
	unmap(address, PAGES);
	end();
}

static void test_collapse_and_split(void)
{
	for (unsigned i = 0; i < SCHEMES; i++) {
		collapse_and_split(schemes[i], LAZY);
		collapse_and_split(schemes[i], 0);
	}
}

static void test_errors(void)
{
	hp_file fixed;
	char *address, *other;

	start(PAGES + 1, NULL);
	address = map(file, PAGES, LAZY);
	EXPECT_EQ(hp_collapse(address + 1, FRAME, &error), -EINVAL);
	EXPECT_EQ(hp_collapse(address, 0, &error), -EINVAL);
	EXPECT_EQ(hp_collapse(address, (PAGES + 1) * FRAME, &error), -EINVAL);
	EXPECT_EQ(hp_collapse((void *)FRAME, FRAME, &error), -EINVAL);
	EXPECT_EQ(hp_split(address, FRAME + 4096, &error), -EINVAL);
	EXPECT_OK(hp_collapse(address, PAGES * FRAME, &error)); /* absent */
	EXPECT_OK(hp_split(address, PAGES * FRAME, &error));
	EXPECT_EQ(file_stat(file).present, 0);
	fixed = make_file(1);
	other = map(fixed, 1, 0);
	EXPECT_EQ(hp_split(other, FRAME, &error), -EPERM);
	unmap(other, 1);
	close_file(fixed);
	unmap(address, PAGES);
	EXPECT_EQ(hp_file_create(pool, FRAME, 64, &fixed, &error), -EINVAL);
	end();
}

static void expect_sparse(const char *address)
{
	for (uint64_t at = 0; at < PAGES * FRAME; at += 8)
		EXPECT_EQ(*(const uint64_t *)(address + at), at % FRAME == 7 * HP_BASE_PAGE_SIZE ? at / FRAME + 1 : 0);
}

/* Nothing that is not there comes to be there by it; what is zero is given up by a split. */
static void test_memory(void)
{
	char *address;
	void *all;

	start(PAGES, NULL);
	all = take_all_frames(PAGES);
	address = map(file, PAGES, LAZY);
	for (uint64_t i = 0; i < PAGES; i++)
		*(uint64_t *)(address + i * FRAME + 7 * HP_BASE_PAGE_SIZE) = i + 1;
	EXPECT_EQ(hp_free(pool, all), 0);
	/* The frames are dirty: what was absent reads as zeroes all the same. */
	EXPECT_OK(hp_alloc(pool, PAGES * FRAME, &all, &error));
	memset(all, 99, PAGES * FRAME);
	EXPECT_EQ(hp_free(pool, all), 0);
	EXPECT_OK(hp_collapse(address, PAGES * FRAME, &error));
	EXPECT_EQ(file_stat(file).base, 0);
	expect_sparse(address);
	EXPECT_OK(hp_split(address, PAGES * FRAME, &error));
	expect_sparse(address);
	unmap(address, PAGES);
	end();
}

/* ---- what stands in the way ------------------------------------------------------------------------------------- */

static void test_pins(void)
{
	char *address;

	start(PAGES, NULL);
	address = map_base(LAZY);
	EXPECT_EQ(hp_pin(address + FRAME + 100, FRAME), 0); /* has parts of two pages */
	EXPECT_EQ(hp_pin(address + FRAME + 5, 1), 0);
	EXPECT_EQ(hp_collapse(address, PAGES * FRAME, &error), -EBUSY);
	EXPECT_EQ(error.limit, HP_LIMIT_PINNED);
	EXPECT_EQ(file_stat(file).base, (PAGES - 1) * FRAME);
	EXPECT_EQ(hp_unpin(address + FRAME, 3 * FRAME), -EINVAL);
	EXPECT_EQ(hp_unpin(address + FRAME + 100, FRAME), 0);
	EXPECT_EQ(hp_collapse(address + FRAME, FRAME, &error), -EBUSY);
	EXPECT_OK(hp_collapse(address + 2 * FRAME, FRAME, &error));
	EXPECT_EQ(hp_unpin(address + FRAME + 5, 1), 0);
	EXPECT_EQ(hp_unpin(address + FRAME + 5, 1), -EINVAL);
	EXPECT_OK(hp_collapse(address, PAGES * FRAME, &error));
	EXPECT_EQ(hp_pin(address, FRAME), 0);
	EXPECT_EQ(hp_split(address, FRAME, &error), -EBUSY);
	EXPECT_EQ(hp_pin(address, 0), -EINVAL);
	EXPECT_EQ(hp_pin(address, (PAGES + 1) * FRAME), -EINVAL);
	expect_filled(address, PAGES);
	unmap(address, PAGES); /* and the pins with it */
	address = map(file, PAGES, 0);
	EXPECT_OK(hp_split(address, FRAME, &error));
	unmap(address, PAGES);
	end();
}

static void hold_it(void *address)
{
	REACH(step, 1);
	await(step, 2);
	expect_filled(address, PAGES);
}

/* Another process has the page: a store of its own would be lost. */
static void test_shared(void)
{
	char *address;
	pid_t pid;

	start(PAGES, NULL);
	address = map_base(LAZY);
	EXPECT_OK(hp_collapse(address, FRAME, &error));
	pid = start_child(hold_it, address);
	await(step, 1);
	/* In place, where the kernel does that for shared memory. */
	if (hp_collapse(address + FRAME, FRAME, &error))
		EXPECT_EQ(error.code, -EBUSY);
	EXPECT_EQ(collapses().collapsed, 1);
	EXPECT_EQ(hp_split(address, FRAME, &error), -EBUSY);
	expect_filled(address, PAGES);
	REACH(step, 2);
	join_child(pid);
	EXPECT_EQ(hp_pool_wait(pool, 10000, &error), 0); /* buries it */
	EXPECT_OK(hp_collapse(address + FRAME, FRAME, &error));
	EXPECT_EQ(collapses().collapsed, 2);
	unmap(address, PAGES);
	end();
}

static void collapse_in_child(void *address)
{
	EXPECT_OK(hp_collapse(address, PAGES * FRAME, &error));
	EXPECT_EQ(file_stat(file).base, 0);
	expect_filled(address, PAGES);
}

static void map_and_collapse_in_child(void *unused)
{
	collapse_in_child(map(file, PAGES, LAZY));
}

/* Who maps it moves it, whoever made the pool. */
static void test_in_a_child(void)
{
	start(PAGES, NULL);
	unmap(map_base(LAZY), PAGES);
	run_child(map_and_collapse_in_child, NULL);
	EXPECT_EQ(hp_pool_wait(pool, 10000, &error), 0);
	EXPECT_EQ(file_stat(file).base, 0);
	end();
}

static void test_no_frame(void)
{
	char *address;
	void *all;

	start(PAGES, NULL);
	address = map_base(LAZY);
	all = take_all_frames(PAGES);
	/* In place, where the kernel does that. */
	if (hp_collapse(address, PAGES * FRAME, &error)) {
		EXPECT_EQ(error.code, -ENOMEM);
		EXPECT_EQ(error.limit, HP_LIMIT_POOL);
		EXPECT_EQ(stats_now().base, PAGES);
	} else {
		EXPECT_EQ(collapses().in_place, PAGES);
	}
	expect_filled(address, PAGES);
	EXPECT_EQ(hp_free(pool, all), 0);
	EXPECT_OK(hp_collapse(address, PAGES * FRAME, &error));
	EXPECT_EQ(file_stat(file).base, 0);
	expect_filled(address, PAGES);
	unmap(address, PAGES);
	end();
}

/* ---- beside readers and writers --------------------------------------------------------------------------------- */

#define WRITERS 2

static char *shared_address;

/* Counts in a word of its own in each base page; nothing of it is ever lost. */
static void *count_up(void *context)
{
	uintptr_t own = (uintptr_t)context;
	uint64_t round = 0;

	while (atomic_load(step) == 0) {
		for (uint64_t at = 8 * own; at < PAGES * FRAME; at += 16 * HP_BASE_PAGE_SIZE) {
			volatile uint64_t *word = (volatile uint64_t *)(shared_address + at);

			EXPECT_EQ(*word, round);
			*word = round + 1;
		}
		round++;
	}
	return (void *)round;
}

static void *write_by_calls(void *context)
{
	uint64_t round = 0, offset = 8 * (uintptr_t)context, seen;

	while (atomic_load(step) == 0) {
		for (uint64_t page = 0; page < PAGES; page++) {
			EXPECT_EQ(hp_file_read(file, page * FRAME + offset, &seen, 8), 8);
			EXPECT_EQ(seen, round);
			seen = round + 1;
			EXPECT_EQ(hp_file_write(file, page * FRAME + offset, &seen, 8), 8);
		}
		round++;
	}
	return NULL;
}

static void beside_writers(const char *tuning)
{
	double until = seconds() + 0.6;
	pthread_t threads[WRITERS + 1];
	char *address;
	unsigned moves = 0;

	start(PAGES, tuning);
	shared_address = address = map(file, PAGES, LAZY);
	memset(address, 0, PAGES * FRAME);
	for (uintptr_t i = 0; i < WRITERS; i++)
		threads[i] = start_thread(count_up, (void *)i);
	threads[WRITERS] = start_thread(write_by_calls, (void *)WRITERS);
	while (seconds() < until) {
		int result = hp_split(address, PAGES * FRAME, &error);

		EXPECT(!result || result == -EAGAIN);
		result = hp_collapse(address, PAGES * FRAME, &error);
		EXPECT(!result || result == -EAGAIN);
		moves++;
	}
	REACH(step, 1);
	for (unsigned i = 0; i <= WRITERS; i++)
		join_thread(threads[i]);
	EXPECT(moves > 1);
	EXPECT_EQ(collapses().misused, 0);
	check_pool();
	unmap(address, PAGES);
	end();
}

static void test_beside_writers(void)
{
	for (unsigned i = 0; i < SCHEMES; i++)
		beside_writers(schemes[i]);
}

/* ---- what the kernel refuses ------------------------------------------------------------------------------------ */

/* A program that closes our descriptors keeps its memory: nothing is moved any more. */
static void in_a_child_without_descriptors(void *unused)
{
	char *address = map(file, PAGES, LAZY);

	expect_filled(address, PAGES);
	for (int fd = 3; fd < 4096; fd++)
		close(fd);
	EXPECT(hp_collapse(address, PAGES * FRAME, &error) != 0);
	expect_filled(address, PAGES);
}

static void test_closed_descriptors(void)
{
	char *address;

	start(PAGES, NULL);
	address = map_base(LAZY);
	unmap(address, PAGES);
	run_child(in_a_child_without_descriptors, NULL);
	end();
}

/* Pins are dropped by the unmapping that takes their mapping away, and by nobody else's. */
static void *map_and_unmap(void *unused)
{
	while (atomic_load(step) == 0)
		unmap(map_part(file, 0, 1, RW, LAZY), 1);
	return NULL;
}

static void test_pins_beside_unmaps(void)
{
	pthread_t thread;

	start(PAGES, NULL);
	thread = start_thread(map_and_unmap, NULL);
	for (unsigned i = 0; i < 3000; i++) {
		char *address = map_part(file, 0, 1, RW, LAZY);

		EXPECT_EQ(hp_pin(address, FRAME), 0);
		sched_yield();
		EXPECT_EQ(hp_unpin(address, FRAME), 0);
		unmap(address, 1);
	}
	REACH(step, 1);
	join_thread(thread);
	end();
}

/* ---- killed in the middle --------------------------------------------------------------------------------------- */

static void move_all_the_time(void *unused)
{
	char *address = map(file, PAGES, LAZY);

	REACH(step, 1);
	for (;;) {
		hp_split(address, PAGES * FRAME, &error);
		hp_collapse(address, PAGES * FRAME, &error);
	}
}

/* Whoever waits for a page that a dead process was moving goes on, and no byte is lost. */
static void killed(const char *tuning)
{
	uint64_t word, round = 0;
	hp_pool_options options = HP_POOL_OPTIONS_INIT;

	step = make_shared(4096);
	options.size = 4 * PAGES * FRAME; /* what the dead had in hand is not found before the pool is closed */
	options.tuning = tuning;
	make_pool_with(&options);
	file = make_movable(PAGES);
	for (uint64_t page = 0; page < PAGES; page++)
		EXPECT_EQ(hp_file_write(file, page * FRAME + 8 * page, &round, 8), 8);
	for (; round < 12; round++) {
		pid_t pid;

		atomic_store(step, 0);
		pid = start_child(move_all_the_time, NULL);
		await(step, 1);
		nap(2000 + 400 * (unsigned)round);
		EXPECT_EQ(kill(pid, SIGKILL), 0);
		EXPECT_EQ(end_of(pid), SIGKILL);
		for (uint64_t page = 0; page < PAGES; page++) {
			uint64_t next = round + 1;

			EXPECT_EQ(hp_file_read(file, page * FRAME + 8 * page, &word, 8), 8);
			EXPECT_EQ(word, round);
			EXPECT_EQ(hp_file_write(file, page * FRAME + 8 * page, &next, 8), 8);
		}
		EXPECT_EQ(hp_pool_wait(pool, 10000, &error), 0);
	}
	close_file(file);
	EXPECT_EQ(hp_pool_close(pool), 0);
	munmap(step, 4096);
}

static void test_killed(void)
{
	killed(NULL);
	killed("file_lock=vma collapse=relock");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_collapse_and_split),
		REAL_TEST(test_errors),
		REAL_TEST(test_memory),
		REAL_TEST(test_pins),
		REAL_TEST(test_shared),
		REAL_TEST(test_in_a_child),
		REAL_TEST(test_closed_descriptors),
		REAL_TEST(test_pins_beside_unmaps),
		REAL_TEST(test_killed),
		REAL_TEST(test_no_frame),
		REAL_TEST(test_beside_writers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
