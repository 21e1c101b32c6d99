/* SPDX-License-Identifier: MIT */
/* Punching on real memory: what goes back, what becomes a hole, what others see of it. */
#include "real.h"

#include "os/inject.h"
#include "library/library.h"
#include "space/space.h"
#include "support/random.h"

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

static int punch(uint64_t first, uint64_t pages)
{
	return hp_file_punch(file, first * FRAME, pages * FRAME, 0, &error);
}

static void expect_stat(uint64_t present, uint64_t holes, uint64_t reserved)
{
	hp_file_stat stat = file_stat(file);

	EXPECT_EQ(stat.present, present * FRAME);
	EXPECT_EQ(stat.holes, holes * FRAME);
	EXPECT_EQ(stat.reserved, reserved * FRAME);
}

static void write_all(char *address)
{
	for (uint64_t i = 0; i < PAGES; i++)
		write_tag(address + i * FRAME, i + 1);
}

static void expect_all_but(const char *address, uint64_t first, uint64_t pages)
{
	for (uint64_t i = 0; i < PAGES; i++)
		EXPECT(i - first < pages ? is_zero(address + i * FRAME) : has_tag(address + i * FRAME, i + 1));
}

static bool is_hugetlb(void)
{
	hp_pool_stats stats = stats_now();

	return stats.hugetlb == stats.frames;
}

/* Under with-hugepages.sh nobody else takes huge pages or gives them back. */
static bool is_alone(void)
{
	return getenv("HUGEPOOL_PAGES_LOCKED") != NULL;
}

static uint64_t kernel_pages(const char *which)
{
	char path[128];
	unsigned long pages = 0;
	FILE *from;

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-2048kB/%s_hugepages", which);
	from = fopen(path, "r");
	if (!from)
		return 0; /* a kernel without huge pages */
	EXPECT(fscanf(from, "%lu", &pages) == 1);
	fclose(from);
	return pages;
}

/* ---- what the call takes ---------------------------------------------------------------------------------------- */

static void test_errors(void)
{
	hp_file closed;

	start(PAGES, NULL);
	EXPECT_EQ(hp_file_punch(file, 0, 0, 0, &error), -EINVAL);
	EXPECT(error.message[0]);
	EXPECT_EQ(hp_file_punch(file, 0, FRAME, 2, &error), -EINVAL);
	EXPECT_EQ(hp_file_punch(file, 100 * FRAME, 0, 0, NULL), -EINVAL);
	closed = make_file(1);
	close_file(closed);
	EXPECT_EQ(hp_file_punch(closed, 0, FRAME, 0, &error), -EBADF);
	EXPECT_EQ(hp_file_punch((hp_file){0}, 0, FRAME, 0, NULL), -EBADF);
	end();
}

static void test_beyond_the_end_is_nothing(void)
{
	char *address;

	start(PAGES, NULL);
	address = map(file, PAGES, 0);
	write_all(address);
	EXPECT_EQ(hp_file_punch(file, PAGES * FRAME, FRAME, 0, &error), 0);
	EXPECT_EQ(hp_file_punch(file, PAGES * FRAME + 5, 3, HP_PUNCH_KEEP, &error), 0);
	EXPECT_EQ(hp_file_punch(file, UINT64_MAX, UINT64_MAX, 0, &error), 0);
	expect_all_but(address, 0, 0);
	/* As far as it lies in the file. */
	EXPECT_EQ(hp_file_punch(file, 6 * FRAME, UINT64_MAX, 0, &error), 0);
	expect_all_but(address, 6, 2);
	EXPECT_EQ(hp_file_punch(file, 5 * FRAME, UINT64_MAX, HP_PUNCH_KEEP, &error), 0);
	expect_all_but(address, 5, 3);
	unmap(address, PAGES);
	end();
}

/* ---- unmapped --------------------------------------------------------------------------------------------------- */

static void test_unmapped_frames_go_back(void)
{
	for (unsigned i = 0; i < SCHEMES; i++) {
		char *address;
		void *extent;

		start(PAGES, schemes[i]);
		address = map(file, PAGES, 0);
		write_all(address);
		unmap(address, PAGES);
		EXPECT_EQ(hp_alloc(pool, FRAME, &extent, &error), -ENOMEM);
		EXPECT_OK(punch(2, 3));
		expect_stat(5, 0, 0);
		EXPECT_EQ(stats_now().used, 5);
		EXPECT_EQ(stats_now().dirty, 3);
		EXPECT_EQ(stats_now().holes, 0);
		EXPECT_OK(punch(2, 3)); /* again: nothing is there */
		expect_stat(5, 0, 0);
		check_pool();
		/* They are free for everybody. */
		for (unsigned n = 0; n < 3; n++) {
			EXPECT_OK(hp_alloc(pool, FRAME, &extent, &error));
			EXPECT(is_zero(extent));
			EXPECT_EQ(hp_free(pool, extent), 0);
		}
		address = map(file, PAGES, i % 2 ? LAZY : 0);
		expect_all_but(address, 2, 3);
		expect_stat(8, 0, 0);
		unmap(address, PAGES);
		end();
	}
}

static void test_promises_go_too(void)
{
	char *lazy;

	start(PAGES, "fault_window=1");
	lazy = map(file, PAGES, LAZY);
	write_tag(lazy + 3 * FRAME, 3);
	unmap(lazy, PAGES);
	expect_stat(1, 0, 7);
	EXPECT_OK(punch(2, 4));
	expect_stat(0, 0, 4);
	EXPECT_EQ(stats_now().reserved, 4);
	EXPECT_OK(punch(0, PAGES));
	EXPECT_EQ(stats_now().reserved, 0);
	end();
}

/* A page of a mapping that was never touched is no hole, and its promise is kept. */
static void test_mapped_promises_stay(void)
{
	char *lazy;
	void *extent;

	start(PAGES, "fault_window=1");
	lazy = map(file, PAGES, LAZY);
	write_tag(lazy + 3 * FRAME, 3);
	EXPECT_OK(punch(2, 4));
	expect_stat(0, 1, 7);
	EXPECT_EQ(hp_alloc(pool, FRAME, &extent, &error), -ENOMEM);
	for (unsigned i = 0; i < PAGES; i++)
		EXPECT(is_zero(lazy + i * FRAME));
	unmap(lazy, PAGES);
	end();
}

/* ---- mapped ----------------------------------------------------------------------------------------------------- */

static void test_mapped_frames_become_holes(void)
{
	uint64_t huge, reserved;
	char *address;

	start(PAGES + 2, NULL);
	address = map(file, PAGES, 0);
	write_all(address);
	huge = kernel_pages("free");
	reserved = kernel_pages("resv");
	EXPECT_OK(punch(2, 3));
	expect_stat(5, 3, 0);
	EXPECT_EQ(stats_now().holes, 3);
	EXPECT_EQ(stats_now().used, 5);
	EXPECT_EQ(stats_now().zeroed + stats_now().dirty, 2);
	if (is_hugetlb() && is_alone()) {
		EXPECT_EQ(kernel_pages("free"), huge + 3);
		EXPECT_EQ(kernel_pages("resv"), reserved + 3);
	}
	check_pool();
	expect_all_but(address, 2, 3);
	write_tag(address + 2 * FRAME, 77);
	if (is_hugetlb() && is_alone()) {
		EXPECT_EQ(kernel_pages("free"), huge);
		EXPECT_EQ(kernel_pages("resv"), reserved);
	}
	EXPECT_OK(punch(2, 3)); /* holes that have memory are emptied again */
	EXPECT_OK(punch(2, 3));
	expect_stat(5, 3, 0);
	expect_all_but(address, 2, 3);
	unmap(address, PAGES);
	end();
}

/* Takes all huge pages that can be had; NULL: none. */
static char *take_the_rest(uint64_t *pages)
{
	char *taken = MAP_FAILED;

	for (*pages = huge_pages_available(); *pages; (*pages)--) {
		taken = mmap(NULL, *pages * FRAME, PROT_READ | PROT_WRITE,
		             MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | 21 << MAP_HUGE_SHIFT, -1, 0);
		if (taken != MAP_FAILED)
			break;
	}
	if (taken == MAP_FAILED)
		return NULL;
	for (uint64_t i = 0; i < *pages; i++)
		taken[i * FRAME] = 1;
	return taken;
}

static void test_a_stranger_cannot_take_a_hole(void)
{
	char *address, *taken;
	uint64_t pages;

	start(PAGES, NULL);
	if (!is_hugetlb() || !is_alone()) {
		end();
		skip_test("no huge pages, or others use them too");
	}
	address = map(file, PAGES, 0);
	write_all(address);
	EXPECT_OK(punch(0, PAGES));
	taken = take_the_rest(&pages);
	expect_all_but(address, 0, PAGES);
	write_all(address);
	expect_all_but(address, 0, 0);
	if (taken)
		EXPECT_EQ(munmap(taken, pages * FRAME), 0);
	unmap(address, PAGES);
	end();
}

/* The store of a mapping that found a hole is kept, whoever maps it next and however. */
static void test_stores_after_a_punch_are_kept(void)
{
	for (unsigned i = 0; i < 2 * SCHEMES; i++) {
		char *address, tag[64];

		start(PAGES, schemes[i / 2]);
		address = map(file, PAGES, i % 2 ? LAZY : 0);
		write_all(address);
		EXPECT_OK(punch(1, 6));
		write_tag(address + 4 * FRAME, 5);
		EXPECT_EQ(hp_file_read(file, 4 * FRAME, tag, sizeof(tag)), sizeof(tag));
		EXPECT_EQ(*(uint64_t *)(void *)tag, 5);
		unmap(address, PAGES);
		check_pool();
		for (unsigned again = 0; again < 2; again++) {
			address = map(file, PAGES, again ? 0 : LAZY);
			EXPECT(has_tag(address + 4 * FRAME, 5));
			for (unsigned page = 0; page < PAGES; page++)
				if (page != 4)
					EXPECT(page - 1u < 6 ? is_zero(address + page * FRAME)
					                     : has_tag(address + page * FRAME, page + 1));
			unmap(address, PAGES);
		}
		end();
	}
}

/* Mapping a file of holes as ready memory brings their memory back. */
static void test_ready_mappings_of_holes(void)
{
	char *address, *again;

	start(PAGES, NULL);
	address = map(file, PAGES, 0);
	write_all(address);
	EXPECT_OK(punch(0, 4));
	expect_stat(4, 4, 0);
	again = map(file, PAGES, 0);
	expect_stat(8, 0, 0);
	expect_all_but(again, 0, 4);
	EXPECT_OK(punch(0, 4));
	unmap(again, PAGES);
	unmap(address, PAGES);
	/* Nobody maps them: the next punch gives them back. */
	EXPECT_OK(punch(0, 4));
	expect_stat(4, 0, 0);
	check_pool();
	EXPECT_EQ(stats_now().zeroed + stats_now().dirty, 4);
	end();
}

/* A part is mapped: holes there, the rest goes back. */
static void test_partly_mapped(void)
{
	char *address, *part;

	start(PAGES, NULL);
	address = map(file, PAGES, 0);
	write_all(address);
	unmap(address, PAGES);
	part = map_part(file, 3, 2, RW, 0);
	EXPECT_OK(punch(1, 6));
	expect_stat(2, 2, 0);
	EXPECT_EQ(stats_now().zeroed + stats_now().dirty, 4);
	EXPECT(is_zero(part) && is_zero(part + FRAME));
	unmap(part, 2);
	address = map(file, PAGES, 0);
	expect_all_but(address, 1, 6);
	unmap(address, PAGES);
	end();
}

/* ---- other processes -------------------------------------------------------------------------------------------- */

static char *forked;

static void look_after_punch(void *stops)
{
	expect_all_but(forked, 0, 0);
	if (stops)
		raise(SIGSTOP);
	else
		REACH(step, 1);
	await(step, 2);
	expect_all_but(forked, 2, 3);
	write_tag(forked + 2 * FRAME, 3);
	REACH(step, 3);
	await(step, 4);
	unmap(forked, PAGES);
	close_file(file);
}

static void punch_before_another(unsigned flags, bool stops, const char *tuning)
{
	pid_t pid;

	start(PAGES, tuning);
	forked = map(file, PAGES, flags);
	write_all(forked);
	pid = start_child(look_after_punch, stops ? forked : NULL);
	if (stops) {
		int status;

		EXPECT_EQ(waitpid(pid, &status, WUNTRACED), pid);
		EXPECT(WIFSTOPPED(status));
	} else {
		await(step, 1);
	}
	EXPECT_OK(punch(2, 3));
	expect_all_but(forked, 2, 3);
	REACH(step, 2);
	kill(pid, SIGCONT);
	await(step, 3);
	EXPECT(has_tag(forked + 2 * FRAME, 3));
	REACH(step, 4);
	join_child(pid);
	unmap(forked, PAGES);
	EXPECT_OK(hp_file_allocate(file, 0, PAGES * FRAME, &error));
	forked = map(file, PAGES, 0);
	EXPECT(has_tag(forked + 2 * FRAME, 3));
	unmap(forked, PAGES);
	end();
}

static void test_in_another_process(void)
{
	for (unsigned i = 0; i < SCHEMES; i++) {
		punch_before_another(0, false, schemes[i]);
		punch_before_another(LAZY, false, schemes[i]);
	}
}

static void test_in_a_stopped_process(void)
{
	for (unsigned i = 0; i < SCHEMES; i++) {
		punch_before_another(0, true, schemes[i]);
		punch_before_another(LAZY, true, schemes[i]);
	}
}

static void punch_as_child(void *unused)
{
	EXPECT_OK(punch(2, 3));
}

/* A child punches what its parent alone maps: the child has unmapped nothing, and its mapping counts until it ends. */
static void test_by_a_child(void)
{
	char *address;

	start(PAGES, NULL);
	address = map(file, PAGES, 0);
	write_all(address);
	run_child(punch_as_child, NULL);
	expect_all_but(address, 2, 3);
	check_pool();
	unmap(address, PAGES);
	end();
}

/* ---- parts of frames -------------------------------------------------------------------------------------------- */

static void fill_with(char *at, uint64_t length, uint64_t *random)
{
	for (uint64_t i = 0; i + 8 <= length; i += 8)
		*(uint64_t *)(void *)(at + i) = random_next(random) | 0x0101010101010101u;
}

static void expect_contents(const char *wanted, char *scratch)
{
	EXPECT_EQ(hp_file_read(file, 0, scratch, PAGES * FRAME), PAGES * FRAME);
	EXPECT(!memcmp(scratch, wanted, PAGES * FRAME));
}

/* Offsets that are odd, near the edges of frames, or at them. */
static uint64_t some_offset(uint64_t *random)
{
	uint64_t at = random_below(random, PAGES + 1) * FRAME;

	switch (random_below(random, 4)) {
	case 0:
		return at;
	case 1:
		return at + random_below(random, 9);
	case 2:
		return at > 9 ? at - random_below(random, 9) : at;
	default:
		return random_below(random, PAGES * FRAME);
	}
}

static void punch_bytes(uint64_t *random, char *wanted)
{
	uint64_t from = some_offset(random), until = some_offset(random);
	unsigned flags = random_below(random, 3) ? 0 : HP_PUNCH_KEEP;
	uint64_t before = file_stat(file).present + file_stat(file).holes;

	if (from > until) {
		uint64_t swap = from;

		from = until;
		until = swap;
	}
	if (from == until)
		return;
	EXPECT_OK(hp_file_punch(file, from, until - from, flags, &error));
	until = until < PAGES * FRAME ? until : PAGES * FRAME;
	memset(wanted + from, 0, from < until ? until - from : 0);
	if (flags)
		EXPECT_EQ(file_stat(file).present + file_stat(file).holes, before);
	EXPECT(file_stat(file).present + file_stat(file).holes <= before);
}

static void test_any_range_of_bytes(void)
{
	uint64_t random = random_seed();
	char *wanted = calloc(PAGES, FRAME), *scratch = malloc(PAGES * FRAME), *address = NULL;

	start(PAGES + 2, NULL);
	for (unsigned round = 0; round < 150; round++) {
		uint64_t at = random_below(&random, PAGES) * FRAME;

		if (round % 8 == 0 && address) {
			unmap(address, PAGES);
			address = NULL;
		} else if (round % 8 == 4) {
			address = map(file, PAGES, random_below(&random, 2) ? LAZY : 0);
		}
		fill_with(wanted + at, FRAME, &random);
		EXPECT_EQ(hp_file_write(file, at, wanted + at, FRAME), FRAME);
		punch_bytes(&random, wanted);
		if (round % 5 == 0)
			expect_contents(wanted, scratch);
		if (address)
			EXPECT(!memcmp(address, wanted, PAGES * FRAME));
		check_pool();
	}
	expect_contents(wanted, scratch);
	if (address)
		unmap(address, PAGES);
	end();
	free(wanted);
	free(scratch);
}

static void test_keep_takes_no_memory_and_gives_none(void)
{
	char *address;

	start(PAGES, NULL);
	EXPECT_OK(hp_file_punch(file, 0, PAGES * FRAME, HP_PUNCH_KEEP, &error));
	expect_stat(0, 0, 0); /* what is absent stays so */
	address = map(file, PAGES, 0);
	write_all(address);
	EXPECT_OK(hp_file_punch(file, FRAME, 3 * FRAME, HP_PUNCH_KEEP, &error));
	expect_stat(PAGES, 0, 0);
	expect_all_but(address, 1, 3);
	unmap(address, PAGES);
	EXPECT_OK(hp_file_punch(file, 0, PAGES * FRAME, HP_PUNCH_KEEP, &error));
	expect_stat(PAGES, 0, 0);
	/* A part of a frame that is absent, too. */
	EXPECT_OK(punch(0, PAGES));
	EXPECT_OK(hp_file_punch(file, 100, 5 * FRAME, 0, &error));
	expect_stat(0, 0, 0);
	end();
}

/* ---- without memory for holes ----------------------------------------------------------------------------------- */

/* Pages 2 to 4 are punched while the kernel renews no reservation. */
static void punch_uncovered(struct hp_os *os)
{
	hp_inject_fail(os, HP_CALL_SEGMENT_RENEW, 1, 1000, -ENOMEM);
	EXPECT_EQ(punch(2, 3), -ENOSPC);
	hp_inject_clear(os);
	EXPECT_EQ(error.limit, HP_LIMIT_KERNEL_POOL);
	EXPECT(strstr(error.message, " 3 of its holes"));
	expect_stat(5, 3, 0);
}

/* A stranger is faster: the call says so, a touch is SIGBUS until the stranger gives it back, the rest holds. */
static void test_uncovered_holes(void)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	struct hp_os *os = hp_inject_create(hp_os_linux());
	char *address, *taken, byte = 1;
	uint64_t pages;

	if (huge_pages_available() < PAGES || !is_alone())
		skip_test("no huge pages, or others use them too");
	options.size = PAGES * FRAME;
	options.backing = HP_BACKING_HUGETLB;
	options.workers = HP_WORKERS_NONE;
	EXPECT_OK(hp_pool_create_on(os, &options, &pool, &error));
	file = make_file(PAGES);
	address = map(file, PAGES, 0);
	write_all(address);
	punch_uncovered(os);
	taken = take_the_rest(&pages);
	EXPECT(taken);
	expect_killed(touch_it, address + 3 * FRAME, SIGBUS);
	EXPECT_EQ(hp_file_read(file, 3 * FRAME, &byte, 1), -ENOMEM);
	EXPECT_EQ(hp_file_write(file, 3 * FRAME, &byte, 1), -ENOMEM);
	EXPECT(has_tag(address + FRAME, 2) && has_tag(address + 5 * FRAME, 6));
	EXPECT_EQ(munmap(taken, pages * FRAME), 0);
	expect_all_but(address, 2, 3);

	check_pool(); /* the mapping of the one who was killed is no longer in the list */

	/* Homeless while a stranger has its memory, and free again after. */
	punch_uncovered(os);
	unmap(address, PAGES);
	taken = take_the_rest(&pages);
	EXPECT(taken);
	EXPECT_OK(punch(2, 3));
	expect_stat(5, 0, 0);
	EXPECT_OK(hp_pool_check(pool, &error));
	EXPECT_EQ(stats_now().holes, 3);
	EXPECT_EQ(stats_now().zeroed + stats_now().dirty, 0);
	EXPECT_EQ(munmap(taken, pages * FRAME), 0);
	EXPECT_OK(hp_pool_check(pool, &error));
	EXPECT_EQ(stats_now().holes, 0);
	EXPECT_EQ(stats_now().zeroed + stats_now().dirty, 3);
	close_file(file);
	end_pool();
	hp_inject_destroy(os);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_errors),
		REAL_TEST(test_beyond_the_end_is_nothing),
		REAL_TEST(test_unmapped_frames_go_back),
		REAL_TEST(test_promises_go_too),
		REAL_TEST(test_mapped_promises_stay),
		REAL_TEST(test_mapped_frames_become_holes),
		REAL_TEST(test_a_stranger_cannot_take_a_hole),
		REAL_TEST(test_stores_after_a_punch_are_kept),
		REAL_TEST(test_ready_mappings_of_holes),
		REAL_TEST(test_partly_mapped),
		REAL_TEST(test_in_another_process),
		REAL_TEST(test_in_a_stopped_process),
		REAL_TEST(test_by_a_child),
		REAL_TEST(test_any_range_of_bytes),
		REAL_TEST(test_keep_takes_no_memory_and_gives_none),
		REAL_TEST(test_uncovered_holes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
