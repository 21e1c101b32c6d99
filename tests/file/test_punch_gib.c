/* SPDX-License-Identifier: MIT */
/* Punching whole GiBs and parts of them, and the page tables that the kernel shares. Needs 600 huge pages to say all. */
#include "real.h"

#include "space/space.h"

#include <sys/resource.h>

#define PAGES 512

/* What maps and touches a GiB whose page table is shared costs few faults; without sharing, one for each page. */
#define FEW 60

static hp_file file;

static void start(void)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_limit limit;

	if (huge_pages_available() < PAGES + 8 &&
	    hp_os_linux()->ops->memory_room(hp_os_linux(), &limit) < (PAGES + 256) * FRAME)
		skip_test("not enough memory for a GiB");
	options.size = (PAGES + 8) * FRAME;
	options.workers = HP_WORKERS_NONE;
	make_pool_with(&options);
	file = make_file(PAGES);
}

static void end(void)
{
	close_file(file);
	end_pool();
}

static void start_with_sharing(void)
{
	hp_pool_stats stats;

	start();
	stats = stats_now();
	if (!stats.table_sharing || stats.hugetlb != stats.frames) {
		end();
		skip_test("page tables are not shared here");
	}
}

static uint64_t faults_now(void)
{
	struct rusage usage;

	EXPECT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
	return (uint64_t)usage.ru_minflt;
}

/* Not instrumented: looking up a sanitizer's notes about each page would be a fault of its own. */
__attribute__((no_sanitize("address"))) static void touch_pages(const char *address, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < end; i++)
		(void)*(const volatile char *)(address + i * FRAME);
}

/* Minor faults of mapping the file, touching all of it and unmapping it. */
static uint64_t cost_of_a_round(void)
{
	uint64_t before = faults_now();
	char *address = map(file, PAGES, 0);

	touch_pages(address, 0, PAGES);
	unmap(address, PAGES);
	return faults_now() - before;
}

static void expect_cheap(void)
{
	uint64_t cost = cost_of_a_round();

	fprintf(stderr, "a round takes %lu minor faults\n", cost);
	EXPECT(cost < FEW);
}

static void punch(uint64_t first, uint64_t pages)
{
	EXPECT_OK(hp_file_punch(file, first * FRAME, pages * FRAME, 0, &error));
}

/* ---- one entry of the index ------------------------------------------------------------------------------------- */

/* A GiB that is one entry of the index is divided where the punch begins and ends. */
static void test_a_part_of_a_gib(void)
{
	static const struct {
		uint64_t first, pages;
	} parts[] = {{5, 1}, {0, 3}, {509, 3}, {100, 200}, {0, 512}};
	uint64_t left = PAGES;
	char *address;

	start();
	address = map(file, PAGES, 0);
	for (uint64_t i = 0; i < PAGES; i++)
		*(uint64_t *)(void *)(address + i * FRAME) = i + 1;
	unmap(address, PAGES);
	for (unsigned p = 0; p < 4; p++) {
		punch(parts[p].first, parts[p].pages);
		left -= parts[p].pages;
		EXPECT_EQ(file_stat(file).present, left * FRAME);
		EXPECT_EQ(stats_now().used, left);
		check_pool();
	}
	address = map(file, PAGES, LAZY);
	for (uint64_t i = 0; i < PAGES; i++) {
		bool gone = false;

		for (unsigned p = 0; p < 4; p++)
			gone = gone || i - parts[p].first < parts[p].pages;
		EXPECT_EQ(*(uint64_t *)(void *)(address + i * FRAME), gone ? 0 : i + 1);
	}
	unmap(address, PAGES);
	punch(0, PAGES);
	EXPECT_EQ(file_stat(file).present, 0);
	end();
}

/* The same while it is mapped: holes do not divide the index. */
static void test_a_part_of_a_mapped_gib(void)
{
	char *address;

	start();
	address = map(file, PAGES, 0);
	for (uint64_t i = 0; i < PAGES; i++)
		*(uint64_t *)(void *)(address + i * FRAME) = i + 1;
	punch(5, 300);
	EXPECT_EQ(file_stat(file).holes, 300 * FRAME);
	for (uint64_t i = 0; i < PAGES; i++)
		EXPECT_EQ(*(uint64_t *)(void *)(address + i * FRAME), i - 5 < 300 ? 0 : i + 1);
	check_pool();
	unmap(address, PAGES);
	end();
}

/* ---- page tables that are shared -------------------------------------------------------------------------------- */

static void test_cheap_when_shared(void)
{
	start_with_sharing();
	cost_of_a_round();
	expect_cheap();
	end();
}

/* Punched while nobody maps it, while somebody does, and in a mapping that goes on. */
static void test_cheap_again_after_a_punch(void)
{
	char *address;

	start_with_sharing();
	cost_of_a_round();
	punch(17, 1);
	cost_of_a_round(); /* repairs */
	expect_cheap();

	address = map(file, PAGES, 0);
	punch(17, 1);
	touch_pages(address, 0, PAGES);
	unmap(address, PAGES);
	cost_of_a_round();
	expect_cheap();

	address = map(file, PAGES, 0);
	punch(17, 1);
	cost_of_a_round();
	expect_cheap();
	unmap(address, PAGES);
	end();
}

static void test_cheap_after_protect(void)
{
	char *address;

	start_with_sharing();
	address = map(file, PAGES, 0);
	EXPECT_EQ(hp_protect(address + 5 * FRAME, FRAME, RO), 0);
	expect_cheap();
	EXPECT_EQ(hp_protect(address, PAGES * FRAME, RO), 0);
	expect_cheap();
	unmap(address, PAGES);
	expect_cheap();
	end();
}

/* What is left of the GiB lost its shared table: it is filled by the call, not by a fault for each touch. */
static void test_cheap_after_partial_unmap(void)
{
	uint64_t before;
	char *address;

	start_with_sharing();
	address = map(file, PAGES, 0);
	touch_pages(address, 0, PAGES);
	unmap(address + 100 * FRAME, 5);
	before = faults_now();
	touch_pages(address, 0, 100);
	touch_pages(address, 105, PAGES);
	fprintf(stderr, "the rest takes %lu minor faults\n", faults_now() - before);
	EXPECT(faults_now() - before < FEW);
	expect_cheap();
	unmap(address, 100);
	unmap(address + 105 * FRAME, PAGES - 105);
	expect_cheap();
	end();
}

/* The same for what hp_protect leaves. */
static void test_the_rest_is_cheap_after_protect(void)
{
	uint64_t before;
	char *address;

	start_with_sharing();
	address = map(file, PAGES, 0);
	touch_pages(address, 0, PAGES);
	EXPECT_EQ(hp_protect(address + 100 * FRAME, 5 * FRAME, RO), 0);
	before = faults_now();
	touch_pages(address, 0, PAGES);
	fprintf(stderr, "all of it takes %lu minor faults\n", faults_now() - before);
	EXPECT(faults_now() - before < FEW);
	unmap(address, PAGES);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_a_part_of_a_gib),
		REAL_TEST(test_a_part_of_a_mapped_gib),
		REAL_TEST(test_cheap_when_shared),
		REAL_TEST(test_cheap_again_after_a_punch),
		REAL_TEST(test_cheap_after_protect),
		REAL_TEST(test_cheap_after_partial_unmap),
		REAL_TEST(test_the_rest_is_cheap_after_protect),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
