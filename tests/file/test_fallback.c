/* SPDX-License-Identifier: MIT */
/* Files that take base pages where no frame can be had: promises, limits, and all that files can do. */
#include "real.h"

#include "file/file.h"
#include "pool/base.h"

#define FRAMES 4
#define PAGES 10

static hp_file make_falling(uint64_t pages)
{
	hp_file made;

	EXPECT_OK(hp_file_create(pool, pages * FRAME, HP_FILE_FALLBACK, &made, &error));
	return made;
}

static void expect_file(hp_file file, uint64_t present, uint64_t base, uint64_t reserved)
{
	hp_file_stat stat = file_stat(file);

	EXPECT_EQ(stat.present, present * FRAME);
	EXPECT_EQ(stat.base, base * FRAME);
	EXPECT_EQ(stat.reserved, reserved * FRAME);
}

static hp_pool_options larger(void)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;

	options.size = FRAMES * FRAME;
	options.max_size = 4 * PAGES * FRAME;
	return options;
}

static void start(void)
{
	hp_pool_options options = larger();

	make_pool_with(&options);
}

/* A file without the flag is refused; one with it has what frames there are, and base pages. */
static void mapped(unsigned flags)
{
	hp_file file, firm;
	void *unused;
	char *address;

	start();
	firm = make_file(PAGES);
	EXPECT_EQ(hp_map(firm, 0, PAGES * FRAME, RW, flags, &unused, &error), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_POOL);
	file = make_falling(PAGES);
	address = map(file, PAGES, flags);
	check_pool();
	if (flags & LAZY)
		expect_file(file, 0, 0, PAGES);
	else
		expect_file(file, PAGES, PAGES - FRAMES, 0);
	EXPECT_EQ(stats_now().reserved, flags & LAZY ? FRAMES : 0);
	for (uint64_t i = 0; i < PAGES; i++) {
		EXPECT(is_zero(address + i * FRAME));
		write_tag(address + i * FRAME, i);
	}
	expect_file(file, PAGES, PAGES - FRAMES, 0);
	check_pool();
	EXPECT_EQ(stats_now().frames, PAGES);
	for (uint64_t i = 0; i < PAGES; i++)
		EXPECT(has_tag(address + i * FRAME, i));
	unmap(address, PAGES);
	close_file(file);
	EXPECT_EQ(stats_now().frames, FRAMES);
	close_file(firm);
	end_pool();
}

static void test_mapped(void)
{
	mapped(0);
	mapped(LAZY);
}

/* Base pages of a page of the file that have memory. */
static unsigned count_base_pages(hp_file file, uint32_t page)
{
	struct hp_pool_view *view = hp_pool_find(pool.id);
	const struct hp_file_record *record = hp_file_at(view, file.id >> 8 & 0xffffff);
	hp_frame_id place = hp_index_lookup(hp_file_index(view, record), page);
	unsigned char there[HP_BASE_PAGES];
	unsigned count = 0;

	EXPECT(hp_is_base(view, place));
	EXPECT_EQ(hp_base_backed(view, place, there), 0);
	for (unsigned i = 0; i < HP_BASE_PAGES; i++)
		count += there[i];
	return count;
}

/* Base pages are as many as are touched. */
static void test_read_and_write(void)
{
	hp_file file;
	uint64_t word = 7;
	void *all;

	start();
	EXPECT_OK(hp_alloc(pool, FRAMES * FRAME, &all, &error));
	file = make_falling(PAGES);
	EXPECT_EQ(hp_file_write(file, 3 * FRAME + 4096, &word, 8), 8);
	expect_file(file, 1, 1, 0);
	EXPECT_EQ(hp_file_read(file, 3 * FRAME + 4096, &word, 8), 8);
	EXPECT_EQ(word, 7);
	EXPECT_EQ(hp_file_read(file, 3 * FRAME, &word, 8), 8);
	EXPECT_EQ(word, 0);
	EXPECT_EQ(hp_file_write(file, 3 * FRAME + 5 * 4096, &word, 8), 8);
	EXPECT_EQ(count_base_pages(file, 3), 3);
	EXPECT_OK(hp_file_allocate(file, 0, 2 * FRAME, &error));
	EXPECT_EQ(count_base_pages(file, 1), HP_BASE_PAGES);
	EXPECT_OK(hp_file_punch(file, FRAME + 100, 8 * 4096, 0, &error));
	EXPECT_EQ(count_base_pages(file, 1), HP_BASE_PAGES - 7);
	EXPECT_OK(hp_file_punch(file, FRAME + 20 * 4096, 8 * 4096, HP_PUNCH_KEEP, &error));
	EXPECT_EQ(count_base_pages(file, 1), HP_BASE_PAGES - 7);
	expect_file(file, 3, 3, 0);
	EXPECT_OK(hp_file_punch(file, 0, FRAME, 0, &error));
	EXPECT_OK(hp_file_punch(file, 3 * FRAME + 4096, 4096, 0, &error));
	EXPECT_EQ(hp_file_read(file, 3 * FRAME + 4096, &word, 8), 8);
	EXPECT_EQ(word, 0);
	expect_file(file, 2, 2, 0);
	check_pool();
	EXPECT_OK(hp_file_truncate(file, 2 * FRAME, &error));
	expect_file(file, 1, 1, 0);
	EXPECT_OK(hp_file_truncate(file, PAGES * FRAME, &error));
	check_pool();
	close_file(file);
	EXPECT_EQ(hp_free(pool, all), 0);
	end_pool();
}

/* Punched and cut while it is mapped: as frames. */
static void test_holes(void)
{
	hp_file file;
	char *address;
	void *all;

	start();
	EXPECT_OK(hp_alloc(pool, FRAMES * FRAME, &all, &error));
	file = make_falling(PAGES);
	address = map(file, PAGES, 0);
	for (uint64_t i = 0; i < PAGES; i++)
		write_tag(address + i * FRAME, i);
	EXPECT_OK(hp_file_punch(file, FRAME, 2 * FRAME, 0, &error));
	EXPECT_EQ(file_stat(file).holes, 2 * FRAME);
	check_pool();
	EXPECT(has_tag(address, 0));
	EXPECT(is_zero(address + FRAME));
	write_tag(address + FRAME, 77);
	EXPECT(has_tag(address + FRAME, 77));
	EXPECT_OK(hp_file_allocate(file, FRAME, FRAME, &error));
	EXPECT(has_tag(address + FRAME, 77));
	EXPECT_EQ(file_stat(file).holes, FRAME);
	EXPECT_OK(hp_file_truncate(file, 5 * FRAME, &error));
	check_pool();
	EXPECT_OK(hp_file_truncate(file, PAGES * FRAME, &error));
	for (uint64_t i = 5; i < PAGES; i++)
		EXPECT(is_zero(address + i * FRAME));
	check_pool();
	unmap(address, PAGES);
	close_file(file);
	EXPECT_EQ(hp_free(pool, all), 0);
	EXPECT_EQ(stats_now().frames, FRAMES);
	end_pool();
}

static void touch_in_child(void *context)
{
	char *address = context;

	for (uint64_t i = 0; i < PAGES; i++)
		EXPECT(has_tag(address + i * FRAME, i));
	write_tag(address, 100);
}

static void test_fork(void)
{
	hp_file file;
	char *address;

	start();
	file = make_falling(PAGES);
	address = map(file, PAGES, LAZY);
	for (uint64_t i = 0; i < PAGES; i++)
		write_tag(address + i * FRAME, i);
	run_child(touch_in_child, address);
	EXPECT(has_tag(address, 100));
	unmap(address, PAGES);
	close_file(file);
	end_pool();
}

/* Places run out as frames do, and a tenant's limit counts both. */
static void test_limits(void)
{
	hp_file_options options = HP_FILE_OPTIONS_INIT;
	hp_tenant tenant;
	hp_file file;
	void *address;

	make_pool(FRAMES, NULL);
	EXPECT_OK(hp_tenant_create(pool, 6 * FRAME, 2 * FRAME, &tenant, &error));
	options.flags = HP_FILE_CREATE | HP_FILE_FALLBACK;
	options.size = 600 * FRAME;
	options.tenant = tenant;
	EXPECT_OK(hp_file_open(pool, NULL, &options, &file, &error));
	EXPECT_EQ(hp_map(file, 0, 7 * FRAME, RW, LAZY, &address, &error), -EDQUOT);
	address = map_part(file, 0, 6, RW, LAZY);
	check_pool();
	memset(address, 1, 6 * FRAME);
	expect_file(file, 6, 2, 0);
	check_pool();
	unmap(address, 6);
	close_file(file);
	EXPECT_EQ(hp_tenant_close(tenant), 0);

	file = make_falling(600);
	EXPECT_EQ(hp_map(file, 0, 600 * FRAME, RW, LAZY, &address, &error), -ENOMEM);
	EXPECT(error.limit == HP_LIMIT_POOL || error.limit == HP_LIMIT_MEMORY);
	check_pool();
	address = map_part(file, 0, FRAMES + 1, RW, LAZY);
	check_pool();
	unmap(address, FRAMES + 1);
	close_file(file);
	end_pool();
}

/* Who is to wait gets what others give back meanwhile, or falls back, or is refused, after that time. */
static void *give_back(void *all)
{
	nap(100000);
	EXPECT_EQ(hp_free(pool, all), 0);
	return NULL;
}

static void test_waiting(void)
{
	hp_file_options options = HP_FILE_OPTIONS_INIT;
	hp_file patient, falling;
	pthread_t thread;
	double before;
	void *all, *address;

	start();
	options.flags = HP_FILE_CREATE;
	options.size = FRAMES * FRAME;
	options.wait_ms = 20000;
	EXPECT_OK(hp_file_open(pool, NULL, &options, &patient, &error));
	options.flags |= HP_FILE_FALLBACK;
	options.wait_ms = 200;
	EXPECT_OK(hp_file_open(pool, NULL, &options, &falling, &error));
	EXPECT_OK(hp_alloc(pool, FRAMES * FRAME, &all, &error));
	before = seconds();
	EXPECT_OK(hp_file_allocate(falling, 0, FRAME, &error));
	EXPECT(seconds() - before > 0.19);
	expect_file(falling, 1, 1, 0);
	thread = start_thread(give_back, all);
	address = map(patient, FRAMES, 0);
	join_thread(thread);
	expect_file(patient, FRAMES, 0, 0);
	unmap(address, FRAMES);
	close_file(patient);
	close_file(falling);
	end_pool();
}

static void test_errors(void)
{
	hp_file_options options = HP_FILE_OPTIONS_INIT;
	hp_pool_options pool_options = larger();
	hp_file file;
	hp_pool late;

	start();
	options.flags = HP_FILE_CREATE | 32;
	options.size = FRAME;
	EXPECT_EQ(hp_file_open(pool, NULL, &options, &file, &error), -EINVAL);
	EXPECT_EQ(hp_file_create(pool, FRAME, HP_FILE_CREATE, &file, &error), -EINVAL);
	pool_options.flags = HP_POOL_LATE;
	EXPECT_EQ(hp_pool_create(&pool_options, &late, &error), -EINVAL);
	end_pool();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_mapped), REAL_TEST(test_read_and_write), REAL_TEST(test_holes),  REAL_TEST(test_fork),
		REAL_TEST(test_limits), REAL_TEST(test_waiting),        REAL_TEST(test_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
