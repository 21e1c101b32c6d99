/* SPDX-License-Identifier: MIT */
/* Cutting files and growing them again: alone, against mappings, and against everything at once. */
#include "real.h"

#include "file/lock.h"
#include "file/remove.h"
#include "file/reserve.h"
#include "space/space.h"

#include <sched.h>

#define PAGES 8

static const char *const schemes[] = {"file_lock=biased", "file_lock=invalidate", "file_lock=vma", "file_lock=rwsem"};

#define SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

static hp_file file;
static _Atomic int *step; /* shared by the processes of a test */

/* ---- what an access is ------------------------------------------------------------------------------------------ */

static __thread sigjmp_buf bus_return;
static __thread volatile sig_atomic_t bus_expected;

static void on_bus(int signal)
{
	if (!bus_expected)
		real_failed(__FILE__, __LINE__, "no access outside of traps() is SIGBUS");
	siglongjmp(bus_return, 1);
}

static void catch_bus(void)
{
	struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};

	EXPECT_EQ(sigaction(SIGBUS, &action, NULL), 0);
}

/* True: the access was SIGBUS. Every other signal ends the process. */
static bool traps(volatile uint64_t *word, bool write, uint64_t *value)
{
	if (sigsetjmp(bus_return, 1)) {
		bus_expected = 0;
		return true;
	}
	bus_expected = 1;
	if (write)
		*word = *value;
	else
		*value = *word;
	bus_expected = 0;
	return false;
}

/* What the kernel says to a system call that reads, or writes, there. */
static int errno_of_call(char *address, bool stores)
{
	int ends[2], result;
	char byte = 1;

	EXPECT_EQ(pipe(ends), 0);
	EXPECT_EQ(write(ends[1], &byte, 1), 1);
	result = (int)(stores ? read(ends[0], address, 1) : write(ends[1], address, 1)) < 0 ? errno : 0;
	close(ends[0]);
	close(ends[1]);
	return result;
}

static void expect_end(char *address)
{
	uint64_t value = 1;

	for (uint64_t at = 0; at < FRAME; at += FRAME / 4) {
		EXPECT_EQ(errno_of_call(address + at, false), EFAULT);
		EXPECT_EQ(errno_of_call(address + at, true), EFAULT);
		EXPECT(traps((uint64_t *)(address + at), false, &value));
		EXPECT(traps((uint64_t *)(address + at), true, &value));
		EXPECT_EQ(errno_of_call(address + at, true), EFAULT);
	}
}

/* Nothing was written there since it was cut or punched; then it is. */
static void expect_fresh(char *address, uint64_t tag)
{
	uint64_t value;

	EXPECT(!traps((uint64_t *)address, false, &value));
	EXPECT(is_zero(address));
	EXPECT_EQ(errno_of_call(address, false), 0);
	write_tag(address, tag);
}

/* ---- one file -------------------------------------------------------------------------------------------------- */

static void start(uint64_t frames, const char *tuning)
{
	catch_bus();
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

/* ---- alone ------------------------------------------------------------------------------------------------------ */

/* What a file of a small pool can grow to: what the pool may index. */
static uint64_t most_pages(void)
{
	return hp_segment_frames(hp_pool_find(pool.id)->shared);
}

static void test_errors(void)
{
	hp_file closed;

	start(PAGES, NULL);
	EXPECT(most_pages() >= GIB / FRAME && most_pages() % (GIB / FRAME) == 0);
	expect_refused(hp_file_truncate(file, FRAME + 4096, &error), -EINVAL);
	expect_refused(hp_file_truncate(file, 1, &error), -EINVAL);
	expect_refused(truncate_to(most_pages() + 1), -EFBIG);
	expect_refused(hp_file_truncate(file, UINT64_MAX - FRAME + 1, &error), -EFBIG);
	expect_stat(PAGES, 0, 0);
	EXPECT_OK(truncate_to(3));
	expect_refused(truncate_to(most_pages() + 1), -EFBIG);
	EXPECT_OK(truncate_to(most_pages()));
	expect_stat(most_pages(), 0, 0);
	EXPECT_OK(truncate_to(PAGES));
	closed = make_file(2);
	close_file(closed);
	expect_refused(hp_file_truncate(closed, FRAME, &error), -EBADF);
	EXPECT_EQ(hp_file_truncate((hp_file){0}, FRAME, NULL), -EBADF);
	EXPECT_EQ(hp_file_truncate(file, 1, NULL), -EINVAL);
	end();
}

/* Beyond what it was made with; and one that was made larger than its pool can grow to that again, and no further. */
static void test_growing(void)
{
	uint64_t made;
	char *address;

	start(PAGES, NULL);
	address = map(file, PAGES, 0);
	for (uint64_t i = 0; i < PAGES; i++)
		write_tag(address + i * FRAME, i);
	unmap(address, PAGES);
	EXPECT_OK(truncate_to(most_pages()));
	expect_stat(most_pages(), PAGES, 0);
	EXPECT_OK(truncate_to(PAGES - 1));
	EXPECT_OK(truncate_to(most_pages()));
	address = map_part(file, most_pages() - 1, 1, RW, LAZY);
	expect_fresh(address, 7);
	unmap(address, 1);
	address = map_part(file, 0, PAGES - 1, RW, 0);
	for (uint64_t i = 0; i < PAGES - 1; i++)
		EXPECT(has_tag(address + i * FRAME, i));
	unmap(address, PAGES - 1);
	expect_stat(most_pages(), PAGES, 0);
	close_file(file);

	made = most_pages() + 3;
	file = make_file(made);
	EXPECT_OK(truncate_to(1));
	expect_refused(truncate_to(made + 1), -EFBIG);
	EXPECT_OK(truncate_to(made));
	address = map_part(file, made - 2, 2, RW, LAZY);
	expect_fresh(address + FRAME, 8);
	unmap(address, 2);
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

/* ---- mappings of this process ----------------------------------------------------------------------------------- */

enum how { READY, TOUCHED, UNTOUCHED, HOWS };

/* Pages [first, first + pages) are mapped; those of a mapping that is not UNTOUCHED have their numbers as tags. */
static char *map_how(uint64_t first, uint64_t pages, enum how how)
{
	char *address = map_part(file, first, pages, RW, how == READY ? 0 : LAZY);

	for (uint64_t i = 0; i < pages && how != UNTOUCHED; i++)
		write_tag(address + i * FRAME, first + i);
	return address;
}

static void expect_mapped(char *address, uint64_t first, uint64_t pages, uint64_t end, enum how how)
{
	for (uint64_t i = 0; i < pages; i++)
		if (first + i >= end)
			expect_end(address + i * FRAME);
		else if (how != UNTOUCHED)
			EXPECT(has_tag(address + i * FRAME, first + i));
}

/* Two mappings of different kinds, cut step by step and grown again. */
static void cut_here(const char *scheme, enum how high_how, enum how low_how)
{
	static const uint64_t sizes[] = {7, 6, 6, 5, 3, 2, 1, 0};
	char *high, *low;

	start(2 * PAGES, scheme);
	high = map_how(4, 3, high_how);
	low = map_how(0, 4, low_how);
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint64_t end = sizes[i], present = 0;

		EXPECT_OK(truncate_to(end));
		expect_mapped(high, 4, 3, end, high_how);
		expect_mapped(low, 0, 4, end, low_how);
		present += low_how != UNTOUCHED ? hp_min(end, 4) : 0;
		present += high_how != UNTOUCHED && end > 4 ? hp_min(end - 4, 3) : 0;
		/* What is beyond is free for all, at once. */
		expect_stat(end, present, hp_min(end, 7) - present);
		EXPECT_EQ(file_stat(file).holes, 0);
		EXPECT_EQ(stats_now().used + stats_now().holes, present);
		check_pool();
	}
	EXPECT_OK(truncate_to(5));
	expect_fresh(low, 1);
	expect_fresh(high, 4);
	expect_end(high + FRAME);
	EXPECT_OK(truncate_to(PAGES));
	EXPECT(has_tag(low, 1) && has_tag(high, 4));
	for (uint64_t i = 1; i < 4; i++)
		expect_fresh(low + i * FRAME, i);
	for (uint64_t i = 1; i < 3; i++)
		expect_fresh(high + i * FRAME, 4 + i);
	/* The page that nobody maps is promised to nobody. */
	expect_stat(PAGES, 7, 0);
	check_pool();
	unmap(low, 4);
	unmap(high, 3);
	low = map(file, PAGES, LAZY);
	EXPECT(has_tag(low, 1));
	for (uint64_t i = 1; i < 7; i++)
		EXPECT(has_tag(low + i * FRAME, i));
	EXPECT(is_zero(low + 7 * FRAME));
	unmap(low, PAGES);
	end();
}

static void test_cut_here(void)
{
	for (unsigned i = 0; i < SCHEMES; i++)
		for (enum how high = READY; high < HOWS; high++)
			for (enum how low = READY; low < HOWS; low++)
				cut_here(schemes[i], high, low);
}

/* A mapping that is cut is taken apart, protected, and unmapped as any other; its pieces come back. */
static void parts_of_cut(enum how how)
{
	char *address, *child;
	uint64_t value = 1;

	start(2 * PAGES, NULL);
	address = map_how(0, PAGES, how);
	EXPECT_OK(truncate_to(4));
	EXPECT_EQ(hp_protect(address + 2 * FRAME, 4 * FRAME, RO), 0);
	expect_end(address + 4 * FRAME);
	expect_end(address + 6 * FRAME);
	unmap(address + 5 * FRAME, 1);
	expect_end(address + 4 * FRAME);
	expect_end(address + 7 * FRAME);
	EXPECT_EQ(file_stat(file).mappings, 3);
	EXPECT_OK(truncate_to(PAGES));
	for (int i = 6; i < PAGES; i++)
		expect_fresh(address + i * FRAME, i);
	EXPECT(is_zero(address + 4 * FRAME));
	for (int i = 0; i < 4 && how != UNTOUCHED; i++)
		EXPECT(has_tag(address + i * FRAME, i));
	EXPECT_EQ(hp_protect(address + 2 * FRAME, 3 * FRAME, RW), 0);
	EXPECT(!traps((uint64_t *)(address + 4 * FRAME), true, &value));
	child = map_part(file, 5, 1, RW, 0);
	expect_fresh(child, 5);
	EXPECT_OK(truncate_to(1));
	expect_end(child);
	unmap(child, 1);
	unmap(address, 5);
	unmap(address + 6 * FRAME, 2);
	expect_stat(1, how != UNTOUCHED, how == UNTOUCHED);
	end();
}

static void test_parts_of_cut(void)
{
	for (enum how how = READY; how < HOWS; how++)
		parts_of_cut(how);
}

/* What is mapped is promised again when the file grows: where the pool is short, nothing happens. */
static void test_growing_is_refused(void)
{
	for (enum how how = READY; how < HOWS; how++) {
		char *low, *high;
		void *all;

		start(PAGES, NULL);
		low = map_how(0, 3, how);
		high = map_how(6, 2, how);
		EXPECT_OK(truncate_to(2));
		EXPECT_OK(hp_alloc(pool, (PAGES - 2) * FRAME, &all, &error));
		/* One page of `low` is mapped there, and one of `high`. */
		expect_refused(truncate_to(7), -ENOMEM);
		expect_refused(truncate_to(PAGES), -ENOMEM);
		expect_stat(2, how == UNTOUCHED ? 0 : 2, how == UNTOUCHED ? 2 : 0);
		expect_mapped(low, 0, 3, 2, how);
		expect_end(high);
		check_pool();
		EXPECT_EQ(hp_free(pool, all), 0);
		EXPECT_OK(hp_alloc(pool, (PAGES - 4) * FRAME, &all, &error));
		EXPECT_OK(truncate_to(7));
		expect_mapped(low, 0, 2, 2, how);
		expect_fresh(low + 2 * FRAME, 2);
		expect_fresh(high, 6);
		expect_end(high + FRAME);
		EXPECT_EQ(hp_free(pool, all), 0);
		unmap(low, 3);
		unmap(high, 2);
		end();
	}
}

static void *ask_all_the_time(void *unused)
{
	while (atomic_load(step) < 9) {
		file_stat(file);
		atomic_fetch_add(step + 1, 1);
	}
	return NULL;
}

/* Other threads may be about to cut the mappings when hp_file_truncate() comes to it: it waits for them. */
static void test_cut_when_it_returns(void)
{
	enum { MAPPINGS = 24, TIMES = 300 };
	char *address[MAPPINGS];
	pthread_t thread[2];

	start(4 * PAGES, "fault_window=1");
	for (int i = 0; i < MAPPINGS; i++)
		address[i] = map_how(0, PAGES, i % 2 ? UNTOUCHED : READY);
	for (int i = 0; i < 2; i++)
		thread[i] = start_thread(ask_all_the_time, NULL);
	await(step + 1, 10);
	for (int n = 0; n < TIMES; n++) {
		uint64_t value;

		EXPECT_OK(truncate_to(2 + n % 5));
		for (int i = MAPPINGS; i-- > 0;)
			EXPECT(traps((uint64_t *)(address[i] + (2 + n % 5) * FRAME), false, &value));
		EXPECT_OK(truncate_to(PAGES));
		for (int i = MAPPINGS; i-- > 0;) {
			EXPECT(!traps((uint64_t *)(address[i] + (2 + n % 5) * FRAME), false, &value));
			EXPECT_EQ(value, 0);
		}
	}
	REACH(step, 9);
	for (int i = 0; i < 2; i++)
		join_thread(thread[i]);
	for (int i = 0; i < MAPPINGS; i++)
		unmap(address[i], PAGES);
	end();
}

static void *grow_all_the_time(void *unused)
{
	while (atomic_load(step) < 9) {
		EXPECT_OK(truncate_to(PAGES));
		atomic_fetch_add(step + 1, 1);
	}
	return NULL;
}

/* Who grows what another has grown already takes nothing away from it. */
static void test_two_that_grow(void)
{
	double until = seconds() + 0.5;
	pthread_t thread;
	char *address;

	start(2 * PAGES, NULL);
	address = map(file, PAGES, 0);
	thread = start_thread(grow_all_the_time, NULL);
	await(step + 1, 10);
	while (seconds() < until) {
		EXPECT_OK(truncate_to(2));
		EXPECT_OK(truncate_to(PAGES));
		for (int i = 2; i < PAGES; i++)
			*(volatile uint64_t *)(address + i * FRAME) = 77;
		file_stat(file);
		for (int i = 2; i < PAGES; i++)
			EXPECT_EQ(*(volatile uint64_t *)(address + i * FRAME), 77);
	}
	REACH(step, 9);
	join_thread(thread);
	unmap(address, PAGES);
	end();
}

/* ---- mappings of other processes -------------------------------------------------------------------------------- */

static struct {
	enum how how;
	bool grow_before_call;
	char *address;
} elsewhere;

/* Is told what to look at, and makes no call until it is told. */
static void have_it_mapped(void *unused)
{
	char *address = elsewhere.address;
	uint64_t value = 55;

	REACH(step, 1);
	await(step, 2);
	/* Cut by the parent: memory that is empty, or SIGBUS where it was never touched. */
	EXPECT(elsewhere.how == UNTOUCHED || has_tag(address + FRAME, 1));
	for (int i = 2; i < PAGES && elsewhere.how != UNTOUCHED; i++)
		EXPECT(is_zero(address + i * FRAME));
	for (int i = 2; i < PAGES && elsewhere.how != UNTOUCHED; i++)
		write_tag(address + i * FRAME, 100 + i);
	if (elsewhere.how == UNTOUCHED)
		EXPECT(traps((uint64_t *)(address + 5 * FRAME), true, &value));
	if (elsewhere.grow_before_call) {
		REACH(step, 3);
		await(step, 4);
	}
	EXPECT_EQ(file_stat(file).size, elsewhere.grow_before_call ? PAGES * FRAME : 2 * FRAME);
	if (!elsewhere.grow_before_call) {
		for (int i = 2; i < PAGES; i++)
			expect_end(address + i * FRAME);
		REACH(step, 3);
		await(step, 4);
		expect_end(address + 2 * FRAME);
		file_stat(file);
	}
	EXPECT(elsewhere.how == UNTOUCHED || has_tag(address + FRAME, 1));
	for (int i = 2; i < PAGES; i++)
		expect_fresh(address + i * FRAME, i);
	REACH(step, 5);
	await(step, 6);
}

static void cut_elsewhere(const char *scheme)
{
	void *all;
	pid_t pid;

	start(3 * PAGES, scheme);
	elsewhere.address = map_how(0, PAGES, elsewhere.how);
	pid = start_child(have_it_mapped, NULL);
	unmap(elsewhere.address, PAGES);
	await(step, 1);
	EXPECT_OK(truncate_to(2));
	check_pool();
	EXPECT_EQ(file_stat(file).size, 2 * FRAME);
	/* Who maps it is behind: the places of its pages stay. */
	EXPECT_EQ(file_stat(file).holes, elsewhere.how == UNTOUCHED ? 0 : (PAGES - 2) * FRAME);
	REACH(step, 2);
	await(step, 3);
	if (!elsewhere.grow_before_call) {
		check_pool();
		EXPECT_EQ(file_stat(file).holes, 0);
		EXPECT_EQ(stats_now().holes, 0);
		EXPECT_OK(hp_alloc(pool, 2 * PAGES * FRAME, &all, &error));
		memset(all, 99, 2 * PAGES * FRAME);
		EXPECT_EQ(hp_free(pool, all), 0);
	}
	EXPECT_OK(truncate_to(PAGES));
	check_pool();
	elsewhere.address = map(file, PAGES, LAZY);
	for (int i = 2; i < PAGES; i++)
		EXPECT(is_zero(elsewhere.address + i * FRAME));
	REACH(step, 4);
	await(step, 5);
	for (int i = 2; i < PAGES; i++)
		EXPECT(has_tag(elsewhere.address + i * FRAME, i));
	unmap(elsewhere.address, PAGES);
	REACH(step, 6);
	join_child(pid);
	end();
}

static void test_cut_elsewhere(void)
{
	for (unsigned i = 0; i < SCHEMES; i++)
		for (enum how how = READY; how < HOWS; how++)
			for (int before = 0; before < 2; before++) {
				elsewhere.how = how;
				elsewhere.grow_before_call = before;
				cut_elsewhere(schemes[i]);
			}
}

/* Looks all the time: what it sees is what was there before the cut, and after it nothing. */
static void look_all_the_time(void *unused)
{
	uint64_t value;

	for (REACH(step, 1); atomic_load(step) < 9;) {
		bool cut = atomic_load(step) >= 2, trapped = false;

		for (int i = 2; i < PAGES && !trapped; i++) {
			trapped = traps((uint64_t *)(elsewhere.address + i * FRAME), false, &value);
			EXPECT(trapped || value == 0 || (!cut && value == (uint64_t)i));
		}
		EXPECT(!trapped || elsewhere.how == UNTOUCHED);
		atomic_fetch_add(step + 1, 1);
	}
	file_stat(file);
	for (int i = 2; i < PAGES; i++)
		expect_end(elsewhere.address + i * FRAME);
}

/* Stopped before the cut, and going on when its frames are full of somebody else's bytes. */
static void cut_while_stopped(const char *scheme)
{
	int status, looked;
	void *all;
	pid_t pid;

	start(3 * PAGES, scheme);
	elsewhere.address = map_how(0, PAGES, elsewhere.how);
	pid = start_child(look_all_the_time, NULL);
	await(step + 1, 5);
	kill(pid, SIGSTOP);
	EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
	EXPECT(WIFSTOPPED(status));
	unmap(elsewhere.address, PAGES);
	EXPECT_OK(truncate_to(2));
	REACH(step, 2);
	EXPECT_OK(hp_alloc(pool, 2 * PAGES * FRAME, &all, &error));
	memset(all, 99, 2 * PAGES * FRAME);
	check_pool();
	looked = atomic_load(step + 1);
	kill(pid, SIGCONT);
	await(step + 1, looked + 20);
	EXPECT_EQ(hp_free(pool, all), 0);
	EXPECT_OK(hp_alloc(pool, 2 * PAGES * FRAME, &all, &error));
	memset(all, 98, 2 * PAGES * FRAME);
	EXPECT_EQ(hp_free(pool, all), 0);
	looked = atomic_load(step + 1);
	await(step + 1, looked + 5);
	REACH(step, 9);
	join_child(pid);
	end();
}

static void test_cut_while_stopped(void)
{
	for (unsigned i = 0; i < SCHEMES; i++)
		for (enum how how = READY; how < HOWS; how++) {
			elsewhere.how = how;
			cut_while_stopped(schemes[i]);
		}
}

static void die(void *unused)
{
	kill(getpid(), SIGKILL);
}

/* The mapping of a process that is dead keeps its pages until it is buried. */
static void test_cut_under_a_dead_process(void)
{
	for (enum how how = READY; how < HOWS; how++) {
		char *address;

		start(PAGES, NULL);
		address = map_how(0, PAGES, how);
		expect_killed(die, NULL, SIGKILL);
		unmap(address, PAGES);
		EXPECT_OK(truncate_to(2));
		check_pool();
		expect_stat(2, how == UNTOUCHED ? 0 : 2, how == UNTOUCHED ? 2 : 0);
		EXPECT_EQ(file_stat(file).holes, 0);
		end();
	}
}

static void cut_grow_and_cut(void *unused)
{
	await(step, 1);
	EXPECT_OK(truncate_to(2));
	REACH(step, 2);
	await(step, 3);
	EXPECT_OK(truncate_to(PAGES));
	REACH(step, 4);
	await(step, 5);
	EXPECT_OK(truncate_to(2));
	REACH(step, 6);
}

/*
 *   one fault                    another                        child
 *                                                               cut
 *                                begins
 *   cuts the mapping there
 *                                                               grow
 *                                page is inside: map it?
 *                                                               cut
 *   next call: cut already?
 *
 * What is mapped beyond the reach of a mapping stays there when the next cut comes.
 */
static void late_fault(const char *scheme)
{
	uint64_t value = 7;
	sigset_t saved;
	char *address;
	pid_t pid;

	start(2 * PAGES, scheme);
	address = map(file, PAGES, LAZY);
	pid = start_child(cut_grow_and_cut, NULL);
	REACH(step, 1);
	await(step, 2);
	EXPECT(traps((uint64_t *)(address + 5 * FRAME), true, &value));
	REACH(step, 3);
	await(step, 4);
	hp_signals_block(&saved);
	EXPECT_EQ(hp_space_fault((uintptr_t)address + 5 * FRAME, true), HP_FAULT_RESOLVED);
	hp_signals_restore(&saved);
	REACH(step, 5);
	await(step, 6);
	file_stat(file);
	for (int i = 2; i < PAGES; i++)
		expect_end(address + i * FRAME);
	join_child(pid);
	check_pool();
	unmap(address, PAGES);
	end();
}

static void test_late_fault(void)
{
	for (unsigned i = 0; i < SCHEMES; i++)
		late_fault(schemes[i]);
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

/* What the parent has not heard of, a child that it forks has not heard of either. */
static void hear_of_it(void *mapped)
{
	file_stat(file);
	for (int i = 3; i < PAGES; i++)
		expect_end((char *)mapped + i * FRAME);
}

static void test_forked_while_behind(void)
{
	for (enum how how = READY; how < HOWS; how++) {
		char *address;

		start(PAGES, NULL);
		address = map_how(0, PAGES, how);
		run_child(truncate_in_child, NULL);
		run_child(hear_of_it, address);
		hear_of_it(address);
		run_child(hear_of_it, address);
		unmap(address, PAGES);
		end();
	}
}

static void cut_and_grow_all_the_time(void *unused)
{
	while (atomic_load(step) < 9) {
		EXPECT_OK(truncate_to(2));
		EXPECT_OK(truncate_to(PAGES));
	}
}

static void ask_once(void *mapped)
{
	alarm(STEP_SECONDS_MAX);
	file_stat(file);
	unmap(mapped, PAGES);
}

/* A child that is forked while another thread is cutting mappings has locks that nobody holds. */
static void test_forked_while_catching_up(void)
{
	char *address[3];
	pthread_t thread;
	pid_t pid;

	start(4 * PAGES, NULL);
	for (int i = 0; i < 3; i++)
		address[i] = map_how(0, PAGES, (enum how)i);
	pid = start_child(cut_and_grow_all_the_time, NULL);
	thread = start_thread(ask_all_the_time, NULL);
	for (int i = 0; i < 60; i++)
		run_child(ask_once, address[i % 3]);
	REACH(step, 9);
	join_thread(thread);
	join_child(pid);
	for (int i = 0; i < 3; i++)
		unmap(address[i], PAGES);
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

/*
 * A page that is this mapper's alone: `own` of the file. Others cut it and grow it again: then it is empty, or SIGBUS,
 * and what is stored is lost. Nothing of anybody else's is ever there.
 */
static void map_some(uint64_t random, uint64_t own, uint64_t tag)
{
	uint64_t seen, stored = own << 32 | (uint32_t)tag;
	uint64_t *word;
	void *address;

	if (was_cut(hp_map(file, own * FRAME, FRAME, RW, random % 3 ? LAZY : 0, &address, &error)))
		return;
	word = (uint64_t *)((char *)address + 8 * (tag % 1000));
	EXPECT(traps(word, false, &seen) || seen == 0 || seen >> 32 == own);
	if (!traps(word, true, &stored)) {
		sched_yield();
		EXPECT(traps(word, false, &seen) || seen == 0 || seen == stored);
	}
	unmap(address, 1);
}

/* Lazy faults over all that there is. */
static void touch_some(uint64_t random)
{
	uint64_t pages = 1 + random % PAGES, seen;
	void *address;

	if (was_cut(hp_map(file, 0, pages * FRAME, RW, LAZY, &address, &error)))
		return;
	for (uint64_t i = 0; i < 4; i++) {
		uint64_t page = next_random(&random) % pages;

		EXPECT(traps((uint64_t *)((char *)address + page * FRAME), false, &seen) || seen == 0 ||
		       seen >> 32 == page);
	}
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

static unsigned cut_and_grow(double until)
{
	uint64_t random = 5;
	unsigned cut = 0;

	while (seconds() < until) {
		EXPECT_OK(truncate_to(next_random(&random) % (PAGES + 1)));
		EXPECT_OK(truncate_to(PAGES));
		cut++;
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
	uint64_t uncovered = 0;
	pthread_t thread;
	sigset_t saved;

	start(2 * PAGES, NULL);
	view = hp_pool_find(pool.id);
	EXPECT_EQ(hp_thread_enter(view, &t), 0);
	use = (struct hp_file_use){hp_file_at(view, file.id >> 8 & 0xffffff), file.id >> 8 & 0xffffff};
	hp_signals_block(&saved);
	hp_file_modify_lock(t, use);
	thread = start_thread(allocate_all, NULL);
	await(step, 1);
	while (file_stat(file).reserved < PAGES * FRAME)
		sched_yield();
	nap(1000);
	/* Two calls of hp_file_truncate, in one hold of the lock. */
	atomic_store(&use.record->pages, 0);
	EXPECT_EQ(hp_file_remove_locked(t, use, 0, PAGES, &uncovered), 0);
	atomic_store(&use.record->pages, PAGES);
	hp_file_modify_unlock(t, use);
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
		REAL_TEST(test_growing),
		REAL_TEST(test_frames_go_back),
		REAL_TEST(test_beyond_the_end),
		REAL_TEST(test_regrown),
		REAL_TEST(test_promises_are_cut),
		REAL_TEST(test_cut_here),
		REAL_TEST(test_parts_of_cut),
		REAL_TEST(test_growing_is_refused),
		REAL_TEST(test_cut_when_it_returns),
		REAL_TEST(test_two_that_grow),
		REAL_TEST(test_cut_elsewhere),
		REAL_TEST(test_cut_while_stopped),
		REAL_TEST(test_cut_under_a_dead_process),
		REAL_TEST(test_late_fault),
		REAL_TEST(test_in_a_child),
		REAL_TEST(test_forked_while_behind),
		REAL_TEST(test_forked_while_catching_up),
		REAL_TEST(test_everything_at_once),
		REAL_TEST(test_allocation_that_was_cut_and_regrown),
		REAL_TEST(test_locks_that_are_taken),
		REAL_TEST(test_false_out_of_memory_without_mutexes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
