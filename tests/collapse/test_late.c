/* SPDX-License-Identifier: MIT */
/*
 * A pool that begins with no huge page at all: what is in it is in base pages, and becomes huge in the background while
 * it is being written, as the kernel gets huge pages.
 *
 * The test is run with huge pages set aside for it, and first holds all of them, so that the kernel's pool is empty.
 */
#include "real.h"

#define WRITERS 2
#define PATIENCE 45 /* seconds */

static hp_file file;
static char *memory;
static uint64_t pages;
static _Atomic int stop;

/* ---- the kernel's pool ------------------------------------------------------------------------------------------ */

static char *held;
static uint64_t held_pages;

static void hold_all(void)
{
	held_pages = huge_pages_available();
	if (!held_pages)
		return;
	held = mmap(NULL, held_pages * FRAME, PROT_NONE,
	            MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1, 0);
	EXPECT(held != MAP_FAILED);
	EXPECT_EQ(huge_pages_available(), 0);
}

/* The last ones first. */
static void let_go(uint64_t count)
{
	held_pages -= count;
	EXPECT_EQ(munmap(held + held_pages * FRAME, count * FRAME), 0);
}

/* ---- a pool of such pages --------------------------------------------------------------------------------------- */

static void start(uint64_t size, unsigned flags, const char *tuning)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;

	pages = size;
	options.size = pages * FRAME;
	options.backing = HP_BACKING_HUGETLB;
	options.flags = HP_POOL_LATE;
	options.tuning = tuning;
	make_pool_with(&options);
	EXPECT_EQ(stats_now().frames, 0);
	EXPECT_OK(hp_file_create(pool, pages * FRAME, flags, &file, &error));
	memory = map(file, pages, LAZY);
	EXPECT_EQ(file_stat(file).reserved, pages * FRAME);
}

static void end(void)
{
	unmap(memory, pages);
	close_file(file);
	check_pool();
	end_pool();
}

/* In frames, or in base pages that the kernel has made huge where they are. */
static bool is_all_huge(bool frames)
{
	return frames ? stats_now().hugetlb == pages && file_stat(file).base == 0 : stats_now().thp == pages;
}

static void await_huge(bool frames)
{
	double deadline = seconds() + PATIENCE;

	while (!is_all_huge(frames)) {
		hp_pool_stats stats = stats_now();

		if (seconds() > deadline)
			fprintf(stderr, "%lu frames of hugetlb, %lu huge and %lu small of shared memory: %s\n",
			        stats.hugetlb, stats.thp, stats.base, stats.why_not_better);
		EXPECT(seconds() < deadline);
		nap(10000);
	}
}

/* Every base page has a word of each writer, which it counts up: no step is ever lost. */
static volatile uint64_t *word_of(uint64_t at, uintptr_t writer)
{
	return (volatile uint64_t *)(memory + at + 8 * writer);
}

static void *count_up(void *context)
{
	uintptr_t writer = (uintptr_t)context;
	uint64_t round = 0;

	for (; !atomic_load(&stop); round++)
		for (uint64_t at = 0; at < pages * FRAME; at += HP_BASE_PAGE_SIZE) {
			EXPECT_EQ(*word_of(at, writer), round);
			*word_of(at, writer) = round + 1;
		}
	return (void *)round;
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static void becomes_huge(uint64_t size)
{
	bool frames = held_pages >= size;
	pthread_t thread[WRITERS];
	void *rounds[WRITERS];

	start(size, HP_FILE_FALLBACK | HP_FILE_MOVABLE, "collapse_scan_ms=20");
	for (uintptr_t i = 0; i < WRITERS; i++)
		thread[i] = start_thread(count_up, (void *)i);
	while (file_stat(file).present < pages * FRAME)
		nap(1000);
	if (frames) {
		EXPECT_EQ(stats_now().hugetlb, 0);
		let_go(size / 2);
		nap(50000);
		let_go(size - size / 2);
	}
	await_huge(frames);
	atomic_store(&stop, 1);
	for (unsigned i = 0; i < WRITERS; i++)
		EXPECT_EQ(pthread_join(thread[i], &rounds[i]), 0);
	for (uint64_t at = 0; at < pages * FRAME; at += HP_BASE_PAGE_SIZE)
		for (uintptr_t i = 0; i < WRITERS; i++)
			EXPECT_EQ(*word_of(at, i), (uintptr_t)rounds[i]);
	check_pool();
	end();
}

/* The kernel may do it where it is told to leave shared memory alone, but for `deny`. */
static void skip_without_huge_pages(void)
{
	char word[100] = "";
	FILE *setting;

	if (held_pages)
		return;
	setting = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "r");
	if (!setting || !fgets(word, sizeof(word), setting) || strstr(word, "[deny]"))
		skip_test("neither huge pages nor transparent ones for shared memory");
	fclose(setting);
}

static void test_a_gib(void)
{
	hold_all();
	skip_without_huge_pages();
	if (held_pages && held_pages < 512)
		skip_test("fewer than 512 huge pages");
	becomes_huge(512);
}

static void test_a_little(void)
{
	hold_all();
	skip_without_huge_pages();
	becomes_huge(8);
}

/* Frames come to who waits for them; nobody falls back. */
static void test_waiting_for_the_kernel(void)
{
	hp_file_options options = HP_FILE_OPTIONS_INIT;
	hp_pool_options pool_options = HP_POOL_OPTIONS_INIT;
	void *unused;

	hold_all();
	if (held_pages < 4)
		skip_test("no huge pages");
	pool_options.size = 4 * FRAME;
	pool_options.backing = HP_BACKING_HUGETLB;
	pool_options.flags = HP_POOL_LATE;
	pool_options.tuning = "collapse_scan_ms=20";
	make_pool_with(&pool_options);
	pages = 4;
	options.flags = HP_FILE_CREATE;
	options.size = pages * FRAME;
	EXPECT_OK(hp_file_open(pool, NULL, &options, &file, &error));
	EXPECT_EQ(hp_map(file, 0, FRAME, RW, 0, &unused, &error), -ENOMEM);
	close_file(file);
	options.wait_ms = PATIENCE * 1000;
	EXPECT_OK(hp_file_open(pool, NULL, &options, &file, &error));
	let_go(4);
	memory = map(file, pages, 0);
	EXPECT_EQ(stats_now().hugetlb, 4);
	EXPECT_EQ(file_stat(file).base, 0);
	end();
}

/* The pool is filled by one thread, whoever is about it. */
static void test_filled_in_the_background(void)
{
	for (int i = 0; i < 10; i++) {
		hp_pool_options options = HP_POOL_OPTIONS_INIT;

		options.size = 32 * FRAME;
		options.backing = HP_BACKING_HUGETLB;
		options.flags = HP_POOL_LATE | HP_POOL_BACKGROUND;
		options.tuning = "collapse_scan_ms=1";
		make_pool_with(&options);
		EXPECT_EQ(hp_pool_wait(pool, 10000, &error), 0);
		check_pool();
		end_pool();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_a_little),
		REAL_TEST(test_waiting_for_the_kernel),
		REAL_TEST(test_a_gib),
		REAL_TEST(test_filled_in_the_background),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
