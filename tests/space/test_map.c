/* SPDX-License-Identifier: MIT */
/*
 * Mappings on real memory: what they hold, what is refused, and how much a fault maps.
 */
#include "real.h"

#include <sys/resource.h>
#include <sys/stat.h>

#define PAGES 8

/* ---- contents --------------------------------------------------------------------------------------------------- */

static void two_mappings_share(unsigned one, unsigned two)
{
	hp_file file;
	char *a, *b;

	make_pool(32, NULL);
	file = make_file(PAGES);
	a = map(file, PAGES, one);
	b = map(file, PAGES, two);
	EXPECT(a != b);
	for (int i = 0; i < PAGES; i++) {
		char *writer = i % 2 ? a : b, *reader = i % 2 ? b : a;

		EXPECT(is_zero(writer + i * FRAME));
		write_tag(writer + i * FRAME, i + 1);
		EXPECT(has_tag(reader + i * FRAME, i + 1));
	}
	EXPECT_EQ(file_stat(file).mappings, 2);
	EXPECT_EQ(file_stat(file).present, PAGES * FRAME);
	unmap(a, PAGES);
	EXPECT(has_tag(b + FRAME, 2));
	unmap(b, PAGES);
	close_file(file);
	end_pool();
}

static void test_ready_mappings_share(void)
{
	two_mappings_share(0, 0);
}

static void test_lazy_mappings_share(void)
{
	two_mappings_share(LAZY, LAZY);
}

static void test_ready_and_lazy_share(void)
{
	two_mappings_share(0, LAZY);
}

/* Its own files come under the numbers of the descriptors that it closed: nothing of the pool may get into them. */
static void close_everything(void *unused)
{
	char name[] = "/tmp/hugepool-test-XXXXXX";
	char *there;
	void *refused;
	hp_file file;
	struct stat status;
	int own = -1;

	(void)unused;
	make_pool(2 * PAGES, NULL);
	file = make_file(2 * PAGES);
	there = map(file, PAGES, 0);
	EXPECT_EQ(close_range(3, ~0u, 0), 0);
	for (unsigned i = 0; i < 16; i++) {
		own = i ? dup(own) : mkstemp(name);
		EXPECT(own >= 0);
	}
	unlink(name);
	EXPECT(hp_map(file, PAGES * FRAME, PAGES * FRAME, RW, 0, &refused, &error) < 0);
	write_tag(there, 7);
	EXPECT(has_tag(there, 7));
	EXPECT_EQ(fstat(own, &status), 0);
	EXPECT_EQ(status.st_size, 0);
	_exit(0);
}

static void test_descriptors_closed_by_the_program(void)
{
	run_child(close_everything, NULL);
}

static void test_part_of_a_file(void)
{
	hp_file file;
	char *whole, *part, *lazy;

	make_pool(32, NULL);
	file = make_file(PAGES);
	whole = map(file, PAGES, 0);
	part = map_part(file, 3, 4, RW, 0);
	lazy = map_part(file, 5, 3, RW, LAZY);
	for (int i = 0; i < PAGES; i++)
		write_tag(whole + i * FRAME, i);
	for (int i = 0; i < 4; i++)
		EXPECT(has_tag(part + i * FRAME, i + 3));
	for (int i = 2; i >= 0; i--)
		EXPECT(has_tag(lazy + i * FRAME, i + 5));
	unmap(lazy, 3);
	unmap(whole, PAGES);
	unmap(part, 4);
	close_file(file);
	end_pool();
}

/* A mapping keeps its file alive, and what was recycled from another file reads as zeroes. */
static void test_zeroes_at_first_touch(void)
{
	make_pool(PAGES, NULL);
	for (int round = 0; round < 4; round++) {
		hp_file file = make_file(PAGES);
		char *address = map(file, PAGES, round % 2 ? LAZY : 0);

		close_file(file);
		EXPECT_EQ(stats_now().files, 1);
		EXPECT_EQ(stats_now().used, round % 2 ? 0 : PAGES);
		EXPECT_EQ(stats_now().reserved, round % 2 ? PAGES : 0);
		for (int i = PAGES - 1; i >= 0; i--) {
			EXPECT(is_zero(address + i * FRAME));
			memset(address + i * FRAME, 0xa5, FRAME);
		}
		unmap(address, PAGES);
		EXPECT_EQ(stats_now().dirty, PAGES);
	}
	end_pool();
}

static void test_unmap_and_remap(void)
{
	hp_file file;

	make_pool(32, NULL);
	file = make_file(PAGES);
	for (int round = 0; round < 50; round++) {
		char *address = map(file, PAGES, round % 3 ? 0 : LAZY);

		for (int i = 0; i < PAGES; i++) {
			if (round)
				EXPECT(has_tag(address + i * FRAME, (round - 1) * 100 + i));
			write_tag(address + i * FRAME, round * 100 + i);
		}
		unmap(address, PAGES);
		EXPECT_EQ(count_mappings(address, PAGES * FRAME), 0);
		EXPECT_EQ(hp_unmap(address, PAGES * FRAME), -EINVAL);
	}
	close_file(file);
	end_pool();
}

static void write_it(void *address)
{
	*(volatile char *)address = 1;
}

static void test_unmapped_traps(void)
{
	hp_file file;

	make_pool(32, NULL);
	file = make_file(PAGES);
	for (unsigned flags = 0; flags <= LAZY; flags++) {
		char *address = map(file, PAGES, flags);

		touch(address);
		unmap(address, PAGES);
		expect_killed(touch_it, address, SIGSEGV);
	}
	close_file(file);
	end_pool();
}

static void test_read_only(void)
{
	hp_file file;
	char *ready, *lazy, *writable;

	make_pool(32, NULL);
	file = make_file(PAGES);
	lazy = map_part(file, 0, PAGES, RO, LAZY);
	EXPECT(is_zero(lazy));
	expect_killed(write_it, lazy, SIGSEGV);
	/* One that was not touched yet: the write is refused, not resolved for reading. */
	expect_killed(write_it, lazy + FRAME, SIGSEGV);
	EXPECT_EQ(file_stat(file).present, FRAME);
	EXPECT_EQ(hp_populate(lazy, PAGES * FRAME), 0);
	ready = map_part(file, 0, PAGES, RO, 0);
	EXPECT(is_zero(ready));
	expect_killed(write_it, ready, SIGSEGV);
	writable = map(file, PAGES, 0);
	write_tag(writable + 2 * FRAME, 7);
	EXPECT(has_tag(ready + 2 * FRAME, 7));
	EXPECT(has_tag(lazy + 2 * FRAME, 7));
	unmap(writable, PAGES);
	unmap(ready, PAGES);
	unmap(lazy, PAGES);
	close_file(file);
	end_pool();
}

/* ---- system calls ----------------------------------------------------------------------------------------------- */

static void exchange(int *ends, char *from, char *to)
{
	memset(from, 'x', 1000);
	EXPECT_EQ(write(ends[1], from, 1000), 1000);
	EXPECT_EQ(read(ends[0], to, 1000), 1000);
	EXPECT_EQ(memcmp(from, to, 1000), 0);
}

static void test_system_calls(void)
{
	hp_file file;
	char *ready, *lazy, on_stack[1000];
	int ends[2];

	make_pool(32, NULL);
	EXPECT_EQ(pipe(ends), 0);
	file = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
	EXPECT_EQ(write(ends[1], lazy, 10), -1);
	EXPECT_EQ(errno, EFAULT);
	EXPECT_EQ(write(ends[1], "0123456789", 10), 10);
	EXPECT_EQ(read(ends[0], lazy + FRAME, 10), -1);
	EXPECT_EQ(errno, EFAULT);
	EXPECT_EQ(hp_populate(lazy + FRAME, 2 * FRAME), 0);
	EXPECT_EQ(read(ends[0], lazy + FRAME, 10), 10);
	EXPECT_EQ(memcmp(lazy + FRAME, "0123456789", 10), 0);
	exchange(ends, lazy + FRAME, lazy + 2 * FRAME);
	exchange(ends, on_stack, lazy + 2 * FRAME - 500); /* across two pages */
	EXPECT_EQ(write(ends[1], lazy + 3 * FRAME, 1), -1);
	EXPECT_EQ(errno, EFAULT);
	touch(lazy + 3 * FRAME);
	EXPECT_EQ(write(ends[1], lazy + 3 * FRAME, 1), 1);
	EXPECT_EQ(read(ends[0], on_stack, 1), 1);

	ready = map(file, PAGES, 0);
	for (int i = 0; i < PAGES; i++)
		exchange(ends, on_stack, ready + i * FRAME);
	exchange(ends, ready, ready + 5 * FRAME);
	unmap(ready, PAGES);
	unmap(lazy, PAGES);
	close(ends[0]);
	close(ends[1]);
	close_file(file);
	end_pool();
}

static void test_populate(void)
{
	hp_file file;
	char *lazy, *ready;

	make_pool(32, NULL);
	file = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
	EXPECT_EQ(hp_populate(lazy + 100, FRAME), -EINVAL);
	EXPECT_EQ(hp_populate(lazy, 100), -EINVAL);
	EXPECT_EQ(hp_populate(lazy, 0), -EINVAL);
	EXPECT_EQ(hp_populate(lazy, (PAGES + 1) * FRAME), -EINVAL);
	EXPECT_EQ(hp_populate(lazy + FRAME, PAGES * FRAME), -EINVAL);
	EXPECT_EQ(hp_populate(lazy, UINT64_MAX - FRAME + 1), -EINVAL);
	EXPECT_EQ(hp_populate(lazy - FRAME, FRAME), -EINVAL);
	EXPECT_EQ(hp_populate(&file, FRAME), -EINVAL);
	EXPECT_EQ(file_stat(file).present, 0);
	write_tag(lazy + 4 * FRAME, 9);
	EXPECT_EQ(hp_populate(lazy + 3 * FRAME, 4 * FRAME), 0);
	EXPECT_EQ(file_stat(file).present, 4 * FRAME);
	EXPECT(has_tag(lazy + 4 * FRAME, 9));
	EXPECT_EQ(hp_populate(lazy, PAGES * FRAME), 0);
	EXPECT_EQ(hp_populate(lazy, PAGES * FRAME), 0);
	EXPECT_EQ(file_stat(file).present, PAGES * FRAME);
	ready = map(file, PAGES, 0);
	EXPECT_EQ(hp_populate(ready, PAGES * FRAME), 0);
	unmap(ready, PAGES);
	unmap(lazy, PAGES);
	close_file(file);
	end_pool();
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static int try_map(hp_file file, uint64_t offset, uint64_t length, unsigned prot, unsigned flags)
{
	void *address;

	error.message[0] = 0;
	return hp_map(file, offset, length, prot, flags, &address, &error);
}

static void test_refusals(void)
{
	hp_file file, closed;
	char *address;

	make_pool(32, NULL);
	file = make_file(PAGES);
	EXPECT_EQ(try_map(file, 4096, FRAME, RW, 0), -EINVAL);
	EXPECT(error.message[0]);
	EXPECT_EQ(try_map(file, 0, 4096, RW, 0), -EINVAL);
	EXPECT_EQ(try_map(file, 0, 0, RW, 0), -EINVAL);
	EXPECT_EQ(try_map(file, 0, (PAGES + 1) * FRAME, RW, 0), -EINVAL);
	EXPECT_EQ(try_map(file, PAGES * FRAME, FRAME, RW, 0), -EINVAL);
	EXPECT_EQ(try_map(file, FRAME, UINT64_MAX - FRAME + 1, RW, 0), -EINVAL);
	EXPECT_EQ(try_map(file, 0, FRAME, 0, 0), -EINVAL);
	EXPECT_EQ(try_map(file, 0, FRAME, HP_PROT_WRITE, 0), -EINVAL);
	EXPECT_EQ(try_map(file, 0, FRAME, RW, 64), -EINVAL);
	EXPECT_EQ(try_map((hp_file){0}, 0, FRAME, RW, 0), -EBADF);
	closed = make_file(1);
	close_file(closed);
	EXPECT_EQ(try_map(closed, 0, FRAME, RW, 0), -EBADF);
	EXPECT(error.message[0]);
	EXPECT_EQ(hp_file_close(closed), -EBADF);
	/* The record is used again; the old handle stays closed. */
	close_file(file);
	file = make_file(PAGES);
	closed = make_file(1);
	close_file(closed);
	EXPECT_EQ(hp_file_allocate(closed, 0, FRAME, &error), -EBADF);
	EXPECT_EQ(hp_pool_close(pool), -EBUSY);

	address = map(file, PAGES, 0);
	EXPECT_EQ(hp_unmap(address, (PAGES + 1) * FRAME), -EINVAL);
	EXPECT_EQ(hp_unmap(address + 4096, FRAME), -EINVAL);
	EXPECT_EQ(hp_unmap(address, 4096), -EINVAL);
	EXPECT_EQ(hp_unmap(&file, FRAME), -EINVAL);
	close_file(file);
	EXPECT_EQ(hp_pool_close(pool), -EBUSY);
	unmap(address, PAGES);
	end_pool();
	EXPECT_EQ(hp_pool_close(pool), -EBADF);
	EXPECT_EQ(hp_file_create(pool, FRAME, 0, &file, &error), -EBADF);
}

/* What is promised is there, and what is not there is not promised. */
static void test_promises(void)
{
	hp_file one, two;
	char *a, *b;

	make_pool(8, NULL);
	one = make_file(8);
	two = make_file(8);
	a = map_part(one, 0, 5, RW, LAZY);
	EXPECT_EQ(stats_now().reserved, 5);
	EXPECT_EQ(try_map(two, 0, 4 * FRAME, RW, 0), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_POOL);
	EXPECT_EQ(try_map(two, 0, 4 * FRAME, RW, LAZY), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_POOL);
	EXPECT_EQ(hp_file_allocate(two, 0, 4 * FRAME, &error), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_POOL);
	EXPECT_EQ(stats_now().used, 0);
	EXPECT_EQ(stats_now().mappings, 1);
	b = map_part(two, 2, 3, RW, 0);
	EXPECT_EQ(hp_file_allocate(two, 0, FRAME, &error), -ENOMEM);
	for (int i = 0; i < 5; i++)
		EXPECT(is_zero(a + i * FRAME));
	EXPECT_EQ(stats_now().used, 8);
	EXPECT_EQ(stats_now().reserved, 0);
	unmap(a, 5);
	unmap(b, 3);
	close_file(one);
	EXPECT_EQ(hp_file_allocate(two, 0, 8 * FRAME, &error), 0);
	EXPECT_EQ(stats_now().used, 8);
	close_file(two);
	end_pool();
}

/* ---- limits of the kernel ---------------------------------------------------------------------------------------- */

/* A lazy mapping that may come to need more kernel mappings than a process gets is refused when it is made. */
static void test_too_many_kernel_mappings(void)
{
	uint64_t max;
	hp_pool_stats before;
	hp_file file;

	make_pool(32, NULL);
	before = stats_now();
	max = before.kernel_maps_max;
	if (max > 1000000) {
		end_pool();
		skip_test("vm.max_map_count is set very high");
	}
	file = make_file(max + 1);
	EXPECT_EQ(try_map(file, 0, (max + 1) * FRAME, RW, LAZY), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_MAP_COUNT);
	EXPECT(strstr(error.message, "max_map_count"));
	EXPECT_EQ(stats_now().kernel_maps, before.kernel_maps);
	EXPECT_EQ(stats_now().mappings, 0);
	/* As many as there are frames, there and back. */
	for (int i = 0; i < 10; i++) {
		char *address = map_part(file, i * 1000, 32, RW, LAZY);

		EXPECT(stats_now().kernel_maps > before.kernel_maps + 32);
		unmap(address, 32);
		close_file(file);
		file = make_file(max + 1);
		EXPECT_EQ(stats_now().kernel_maps, before.kernel_maps);
	}
	close_file(file);
	end_pool();
}

struct limited {
	hp_file file;
	char *lazy;
};

static void run_out_of_addresses(void *context)
{
	struct limited *limited = context;
	struct rlimit limit = {4096, 4096};

	EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
	for (unsigned flags = 0; flags <= LAZY; flags++) {
		EXPECT_EQ(try_map(limited->file, 0, PAGES * FRAME, RW, flags), -ENOMEM);
		EXPECT(error.limit == HP_LIMIT_ADDRESS || error.limit == HP_LIMIT_MEMORY);
		EXPECT(error.message[0]);
	}
	EXPECT(has_tag(limited->lazy + FRAME, 1));
	unmap(limited->lazy, PAGES);
}

static void run_out_of_kernel_mappings(void *context)
{
	struct limited *limited = context;
	char *last = NULL;

	/* Neighbours that differ do not merge. */
	for (unsigned i = 0;; i++) {
		char *piece = mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (piece == MAP_FAILED)
			break;
		last = piece;
	}
	for (unsigned flags = 0; flags <= LAZY; flags++) {
		EXPECT_EQ(try_map(limited->file, 0, PAGES * FRAME, RW, flags), -ENOMEM);
		EXPECT(error.limit == HP_LIMIT_ADDRESS || error.limit == HP_LIMIT_MAP_COUNT ||
		       error.limit == HP_LIMIT_MEMORY);
	}
	EXPECT(has_tag(limited->lazy + FRAME, 1));
	unmap(limited->lazy, PAGES);
	(void)last;
	check_pool();
}

static void test_kernel_refuses(void)
{
	struct limited limited;
	hp_pool_stats before;

	make_pool(32, NULL);
	limited.file = make_file(PAGES);
	limited.lazy = map(limited.file, PAGES, LAZY);
	write_tag(limited.lazy + FRAME, 1);
	before = stats_now();
	run_child(run_out_of_addresses, &limited);
	if (before.kernel_maps_max < 1000000)
		run_child(run_out_of_kernel_mappings, &limited);
	check_pool();
	EXPECT_EQ(stats_now().mappings, before.mappings);
	EXPECT(has_tag(limited.lazy + FRAME, 1));
	unmap(limited.lazy, PAGES);
	close_file(limited.file);
	end_pool();
}

/* ---- fault-around ----------------------------------------------------------------------------------------------- */

static void expect_faults(const hp_pool_stats *before, uint64_t faults, uint64_t pages)
{
	hp_pool_stats now = stats_now();

	EXPECT_EQ(now.faults - before->faults, faults);
	EXPECT_EQ(now.fault_pages - before->fault_pages, pages);
}

/* An order without neighbours: 5 and 32 have no common divisor. */
static unsigned scattered(unsigned i)
{
	return i * 5 % 32;
}

static void test_window_1(void)
{
	make_pool(32, "fault_window=1");
	for (int random = 0; random < 2; random++) {
		hp_file file = make_file(32);
		hp_pool_stats before = stats_now();
		char *one = map(file, 32, LAZY), *two = map(file, 32, LAZY);

		for (unsigned i = 0; i < 32; i++)
			touch(one + (random ? scattered(i) : i) * FRAME);
		expect_faults(&before, 32, 32);
		for (unsigned i = 0; i < 32; i++)
			touch(two + (random ? scattered(i) : i) * FRAME);
		expect_faults(&before, 64, 64);
		for (unsigned i = 0; i < 32; i++)
			touch(two + i * FRAME + 5000);
		expect_faults(&before, 64, 64);
		unmap(one, 32);
		unmap(two, 32);
		close_file(file);
	}
	end_pool();
}

static void test_window_16_sequential(void)
{
	hp_pool_stats before;
	hp_file file;
	char *one, *two;

	make_pool(32, "fault_window=16");
	before = stats_now();
	file = make_file(32);
	one = map(file, 32, LAZY);
	for (unsigned i = 0; i < 32; i++)
		touch(one + i * FRAME);
	expect_faults(&before, 6, 32); /* 1 and 2 and 4 and 8 and 16 and the last one */
	/* Pages that are there are mapped by whole blocks. */
	two = map(file, 32, LAZY);
	for (unsigned i = 0; i < 32; i++)
		touch(two + i * FRAME);
	expect_faults(&before, 8, 64);
	EXPECT(count_mappings(two, 32 * FRAME) <= 2);
	unmap(one, 32);
	unmap(two, 32);
	close_file(file);
	end_pool();
}

static void test_window_16_random(void)
{
	hp_pool_stats before;
	hp_file file;
	char *one, *two;

	make_pool(32, "fault_window=16");
	before = stats_now();
	file = make_file(32);
	one = map(file, 32, LAZY);
	for (unsigned i = 0; i < 16; i++)
		touch(one + scattered(i) * FRAME);
	/* A touch that follows no other takes its own page only: what nobody asked for stays free. */
	EXPECT_EQ(file_stat(file).present, 16 * FRAME);
	EXPECT_EQ(stats_now().fault_pages - before.fault_pages, 16);
	for (unsigned i = 16; i < 32; i++)
		touch(one + scattered(i) * FRAME);
	EXPECT_EQ(file_stat(file).present, 32 * FRAME);
	EXPECT_EQ(stats_now().fault_pages - before.fault_pages, 32);
	before = stats_now();
	two = map(file, 32, LAZY);
	touch(two + 21 * FRAME);
	touch(two + 3 * FRAME);
	for (unsigned i = 0; i < 32; i++)
		touch(two + i * FRAME);
	expect_faults(&before, 2, 32);
	unmap(one, 32);
	unmap(two, 32);
	close_file(file);
	end_pool();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_ready_mappings_share),
		REAL_TEST(test_lazy_mappings_share),
		REAL_TEST(test_ready_and_lazy_share),
		REAL_TEST(test_part_of_a_file),
		REAL_TEST(test_zeroes_at_first_touch),
		REAL_TEST(test_unmap_and_remap),
		REAL_TEST(test_unmapped_traps),
		REAL_TEST(test_read_only),
		REAL_TEST(test_system_calls),
		REAL_TEST(test_populate),
		REAL_TEST(test_refusals),
		REAL_TEST(test_promises),
		REAL_TEST(test_too_many_kernel_mappings),
		REAL_TEST(test_kernel_refuses),
		REAL_TEST(test_descriptors_closed_by_the_program),
		REAL_TEST(test_window_1),
		REAL_TEST(test_window_16_sequential),
		REAL_TEST(test_window_16_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
