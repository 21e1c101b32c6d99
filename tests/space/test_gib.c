/* SPDX-License-Identifier: MIT */
/*
 * Whole GiBs: where a file is placed, and what the kernel makes of it.
 */
#include "real.h"

#include "space/space.h"

#define PAGES 512

static bool memory_available(uint64_t bytes)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[256];
	unsigned long kib = 0;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %lu kB", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib * 1024 >= bytes || huge_pages_available() >= bytes / FRAME;
}

static void start(uint64_t frames)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;

	if (!memory_available(frames * FRAME + 256 * FRAME))
		skip_test("not enough memory for a GiB");
	options.size = frames * FRAME;
	options.workers = HP_WORKERS_NONE;
	make_pool_with(&options);
}

/* The frame of a page, by the file's index. */
static hp_frame_id frame_of(hp_file file, uint32_t page)
{
	struct hp_pool_view *view = hp_pool_find(pool.id);

	return hp_index_lookup(hp_file_index(view, hp_file_at(view, file.id >> 8 & 0xffffff)), page);
}

static uint64_t offset_of(hp_file file, uint32_t page)
{
	uint64_t offset;

	hp_segment_of(hp_pool_find(pool.id), frame_of(file, page), &offset);
	return offset;
}

static void expect_one_region(hp_file file)
{
	hp_frame_id first = frame_of(file, 0);

	EXPECT_EQ(first % HP_REGION_FRAMES, 0);
	for (uint32_t page = 0; page < PAGES; page++)
		EXPECT_EQ(frame_of(file, page), first + page);
}

/* Where all of the memory is of one kind, a region is whole. */
static bool is_of_one_kind(void)
{
	hp_pool_stats stats = stats_now();

	return stats.hugetlb == 0 || stats.hugetlb == stats.frames;
}

static void test_placement(void)
{
	hp_file small, file;
	char *address, *second, *few;

	start(PAGES);
	if (!is_of_one_kind()) {
		end_pool();
		skip_test("huge pages for a part of the pool only");
	}
	file = make_file(PAGES);
	for (int round = 0; round < 2; round++) {
		address = map(file, PAGES, 0);
		expect_one_region(file);
		EXPECT_EQ(count_mappings(address, PAGES * FRAME), 1);
		second = map(file, PAGES, 0);
		EXPECT_EQ(count_mappings(second, PAGES * FRAME), 1);
		few = map_part(file, 100, 3, RO, 0);
		if (stats_now().table_sharing) {
			EXPECT_EQ((uintptr_t)address % GIB, offset_of(file, 0) % GIB);
			EXPECT_EQ((uintptr_t)second % GIB, offset_of(file, 0) % GIB);
		}
		for (int i = 0; i < PAGES; i += 37) {
			if (round == 0)
				EXPECT(is_zero(address + i * FRAME));
			write_tag(address + i * FRAME, i);
			EXPECT(has_tag(second + i * FRAME, i));
		}
		unmap(second, PAGES);
		unmap(address, PAGES);
		unmap(few, 3);
	}
	close_file(file);

	/* A small file first: a region is not whole any more, and the large file is there all the same. */
	small = make_file(3);
	few = map(small, 3, 0);
	file = make_file(PAGES - 3);
	address = map(file, PAGES - 3, 0);
	EXPECT(is_zero(address + (PAGES - 4) * FRAME));
	unmap(address, PAGES - 3);
	unmap(few, 3);
	close_file(file);
	close_file(small);
	end_pool();
}

static unsigned in_order(unsigned i)
{
	return i;
}

static unsigned backwards(unsigned i)
{
	return PAGES - 1 - i;
}

static unsigned scattered(unsigned i)
{
	return i * 205 % PAGES;
}

/* A lazy GiB that has become full is one kernel mapping, in whatever order it was touched. */
static void test_lazy_gib_becomes_one_mapping(void)
{
	unsigned (*const orders[])(unsigned) = {in_order, backwards, scattered};
	bool whole;

	start(PAGES);
	whole = is_of_one_kind();
	for (int round = 0; round < 3; round++) {
		hp_file file = make_file(PAGES);
		char *address = map(file, PAGES, LAZY);

		for (unsigned i = 0; i < PAGES; i++)
			*(uint64_t *)(void *)(address + orders[round](i) * FRAME) = orders[round](i) + 1;
		EXPECT_EQ(file_stat(file).present, PAGES * FRAME);
		if (whole) {
			expect_one_region(file);
			EXPECT_EQ(count_mappings(address, PAGES * FRAME), 1);
			if (stats_now().table_sharing)
				EXPECT_EQ((uintptr_t)address % GIB, offset_of(file, 0) % GIB);
		}
		for (unsigned i = 0; i < PAGES; i++)
			EXPECT_EQ(*(uint64_t *)(void *)(address + i * FRAME), i + 1);
		EXPECT_EQ(stats_now().fault_pages, PAGES * (round + 1));
		unmap(address, PAGES);
		close_file(file);
	}
	end_pool();
}

struct part {
	char *address;
	unsigned first, step;
};

static void *touch_part(void *context)
{
	struct part *part = context;

	for (unsigned i = part->first; i < PAGES; i += part->step)
		*(uint64_t *)(void *)(part->address + scattered(i) * FRAME) = scattered(i) + 1;
	for (unsigned i = 0; i < PAGES; i += part->step)
		touch(part->address + i * FRAME);
	return NULL;
}

/* The same while other threads read and write what is moved. */
static void test_merge_among_threads(void)
{
	start(PAGES);
	for (int round = 0; round < 3; round++) {
		hp_file file = make_file(PAGES);
		char *address = map(file, PAGES, LAZY);
		struct part part[4];
		pthread_t thread[4];

		for (unsigned i = 0; i < 4; i++) {
			part[i] = (struct part){address, i, 4};
			thread[i] = start_thread(touch_part, &part[i]);
		}
		for (unsigned i = 0; i < 4; i++)
			join_thread(thread[i]);
		for (unsigned i = 0; i < PAGES; i++)
			EXPECT_EQ(*(uint64_t *)(void *)(address + i * FRAME), i + 1);
		unmap(address, PAGES);
		close_file(file);
	}
	end_pool();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_placement),
		REAL_TEST(test_lazy_gib_becomes_one_mapping),
		REAL_TEST(test_merge_among_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
