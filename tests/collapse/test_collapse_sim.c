/* SPDX-License-Identifier: MIT */
/*
 * Base pages, collapse and split on the sim backend: what files are promised, where they lie, what happens between the
 * steps of a move, and the thread in the background.
 */
#include "support/pool.h"

#include "file/reserve.h"
#include "pool/base.h"
#include "pool/tenant.h"
#include "support/random.h"
#include "support/threads.h"

#include <unistd.h>

#define PAGES 12
#define MOVABLE (HP_FILE_FALLBACK | HP_FILE_MOVABLE)
#define BASE HP_BASE_PAGE_SIZE

static hp_pool pool;
static hp_file file;
static const struct hp_os_ops *real_ops; /* of a sim with hooks */

/* ---- short forms ------------------------------------------------------------------------------------------------ */

/* A pool of `frames` frames with places for many more. */
static hp_pool pool_with(uint64_t frames, unsigned flags, const char *tuning)
{
	hp_pool_options options = {.struct_size = sizeof(options),
	                           .flags = flags,
	                           .size = frames * FRAME,
	                           .backing = HP_BACKING_HUGETLB,
	                           .workers = HP_WORKERS_NONE,
	                           .tuning = tuning};
	hp_pool made = {0};

	expect_ok(pool_try(&options, &made));
	return made;
}

static hp_file file_with(uint64_t pages, unsigned flags, hp_tenant tenant)
{
	hp_file_options options = {.struct_size = sizeof(options),
	                           .flags = HP_FILE_CREATE | flags,
	                           .size = pages * FRAME,
	                           .tenant = tenant};
	hp_file made = {0};

	expect_ok(hp_file_open(pool, NULL, &options, &made, &error));
	return made;
}

static void start_with(uint64_t frames, uint64_t pages, unsigned flags, const char *tuning)
{
	expect_ok(sim_start(&(struct hp_sim_config){.hugetlb_bytes = 1024 * FRAME}));
	pool = pool_with(frames, 0, tuning);
	file = file_with(pages, flags, (hp_tenant){0});
}

static void start(uint64_t frames)
{
	start_with(frames, PAGES, MOVABLE, NULL);
}

static struct hp_pool_view *view_now(void)
{
	return hp_pool_find(pool.id);
}

static struct hp_file_record *record_now(void)
{
	return hp_file_at(view_now(), file.id >> 8 & 0xffffff);
}

static uint64_t places_left(void)
{
	return atomic_load(&view_now()->shared->base_uncommitted);
}

static uint64_t frames_left(void)
{
	return atomic_load(&view_now()->shared->uncommitted);
}

static uint64_t places(void)
{
	return hp_pool_frames_max(view_now()) - hp_base_first(view_now());
}

/* All frames and places are nobody's again. */
static void end(void)
{
	uint64_t frames = pool_stats(pool).hugetlb;

	file_close(file);
	expect_ok(hp_pool_wait(pool, 60000, &error)); /* a worker may have taken what has just become free */
	assert_int_equal(pool_stats(pool).used, 0);
	assert_int_equal(pool_stats(pool).reserved, 0);
	assert_int_equal(places_left(), places());
	assert_int_equal(frames_left(), frames);
	pool_end(pool);
	assert_int_equal(hp_sim_destroy(os), 0);
	real_ops = NULL;
}

static hp_file_stat stat_now(void)
{
	hp_file_stat stat = {.struct_size = sizeof(stat)};

	assert_int_equal(hp_file_stat_get(file, &stat), 0);
	return stat;
}

/* In pages. `base` counts those that are there. */
static void expect_stat(uint64_t present, uint64_t base, uint64_t reserved)
{
	hp_file_stat stat = stat_now();

	if (stat.present != present * FRAME || stat.base != base * FRAME || stat.reserved != reserved * FRAME)
		fail_msg("%lu present, %lu base, %lu reserved, and should be %lu, %lu, %lu", stat.present / FRAME,
		         stat.base / FRAME, stat.reserved / FRAME, present, base, reserved);
	pool_check(pool);
}

static hp_collapse_stats collapses(void)
{
	hp_collapse_stats stats = {.struct_size = sizeof(stats)};

	assert_int_equal(hp_collapse_stats_get(pool, &stats), 0);
	return stats;
}

static hp_frame_id frame_of(uint32_t page)
{
	return hp_index_lookup(hp_file_index(view_now(), record_now()), page);
}

static bool is_base(uint32_t page)
{
	return hp_is_base(view_now(), frame_of(page));
}

static uint64_t tag_of(uint64_t page, uint64_t base_page)
{
	return 1000000 + page * 1000 + base_page;
}

/* Some base pages of each page, of different number and place. */
static bool is_stored(uint64_t page, uint64_t base_page)
{
	return (base_page + page) % 97 == 3 || base_page == page % 512;
}

static void store_page(char *address, uint64_t page)
{
	for (uint64_t b = 0; b < HP_BASE_PAGES; b++)
		if (is_stored(page, b))
			store(address + b * BASE, tag_of(page, b));
}

static void store_pages(char *address, uint64_t first, uint64_t pages)
{
	for (uint64_t page = first; page < first + pages; page++)
		store_page(address + (page - first) * FRAME, page);
}

static void expect_page(const char *address, uint64_t page)
{
	for (uint64_t b = 0; b < HP_BASE_PAGES; b++) {
		uint64_t tag = load(address + b * BASE);

		if (tag != (is_stored(page, b) ? tag_of(page, b) : 0))
			fail_msg("page %lu, base page %lu: %lu", page, b, tag);
	}
}

static void expect_pages(const char *address, uint64_t first, uint64_t pages)
{
	for (uint64_t page = first; page < first + pages; page++)
		expect_page(address + (page - first) * FRAME, page);
}

/* The kernel has mapped there what the index says. */
static void expect_mapped_right(const char *address, uint32_t first, uint32_t pages)
{
	for (uint32_t page = first; page < first + pages; page++) {
		uint64_t offset = 0, wanted;
		unsigned segment = hp_segment_of(view_now(), frame_of(page), &wanted);

		assert_int_equal(hp_sim_mapped_at(os, address + (page - first) * FRAME, &offset),
		                 view_now()->segment[segment]);
		assert_int_equal(offset, wanted);
	}
}

static void *take_frames(uint64_t frames)
{
	void *extent = NULL;

	expect_ok(hp_alloc(pool, frames * FRAME, &extent, &error));
	return extent;
}

static void give_frames(void *extent)
{
	assert_int_equal(hp_free(pool, extent), 0);
}

static unsigned count_backed(uint32_t page)
{
	unsigned char there[HP_BASE_PAGES];
	unsigned count = 0;

	assert_int_equal(hp_base_backed(view_now(), frame_of(page), there), 0);
	for (unsigned b = 0; b < HP_BASE_PAGES; b++)
		count += there[b];
	return count;
}

/* ---- promises --------------------------------------------------------------------------------------------------- */

/* Frames as far as they go, and places: promised, taken, and given back in all ways. */
static void test_promises(void **state)
{
	char *address;

	start_with(4, PAGES, HP_FILE_FALLBACK, NULL);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	expect_stat(0, 0, PAGES);
	assert_int_equal(pool_stats(pool).reserved, 4);
	assert_int_equal(places_left(), places() - (PAGES - 4));
	store_pages(address, 0, PAGES);
	expect_stat(PAGES, PAGES - 4, 0);
	expect_mapped_right(address, 0, PAGES);
	expect_pages(address, 0, PAGES);

	/* Cut: all that lay beyond is mapped, and stays as holes until the mapping has followed, which it has. */
	expect_ok(hp_file_truncate(file, 5 * FRAME, &error));
	pool_check(pool);
	assert_int_equal(stat_now().present, 5 * FRAME);
	expect_pages(address, 0, 5);
	expect_ok(hp_file_truncate(file, PAGES * FRAME, &error));
	pool_check(pool);
	for (uint64_t page = 5; page < PAGES; page++)
		assert_int_equal(load(address + page * FRAME), 0);
	expect_pages(address, 0, 5);
	store_pages(address + 5 * FRAME, 5, PAGES - 5);
	expect_pages(address, 0, PAGES);
	pool_check(pool);

	/* Punched while mapped: places too are holes, promised as before. */
	expect_ok(hp_file_punch(file, 2 * FRAME, 8 * FRAME, 0, &error));
	assert_int_equal(stat_now().holes, 8 * FRAME);
	pool_check(pool);
	for (uint64_t page = 2; page < 10; page++)
		assert_int_equal(load(address + page * FRAME + 3 * BASE), 0);
	expect_pages(address, 0, 2);
	expect_pages(address + 10 * FRAME, 10, 2);
	unmap(address, PAGES);
	/* Punched while nobody maps it: given back. */
	expect_ok(hp_file_punch(file, 0, PAGES * FRAME, 0, &error));
	expect_stat(0, 0, 0);
	assert_int_equal(places_left(), places());
	assert_int_equal(frames_left(), 4);
	end();
}

/* What is promised and never touched, with a part that is. */
static void test_promises_dropped(void **state)
{
	for (unsigned way = 0; way < 3; way++)
		for (unsigned touched = 0; touched <= PAGES; touched += 3) {
			char *address;

			start_with(4, PAGES, HP_FILE_FALLBACK, NULL);
			address = map(file, 0, PAGES, HP_MAP_LAZY);
			for (unsigned page = 0; page < touched; page++)
				store(address + (PAGES - 1 - page) * FRAME, page + 1);
			pool_check(pool);
			/* Places are taken first. */
			assert_int_equal(stat_now().base, (touched < PAGES - 4 ? touched : PAGES - 4) * FRAME);
			unmap(address, PAGES);
			if (way == 0)
				expect_ok(hp_file_truncate(file, 2 * FRAME, &error));
			if (way == 1)
				expect_ok(hp_file_punch(file, FRAME, 9 * FRAME, 0, &error));
			pool_check(pool);
			end();
		}
}

static void test_allocate_and_ready(void **state)
{
	void *extent;
	char *address;

	start_with(4, PAGES, HP_FILE_FALLBACK, NULL);
	extent = take_frames(3);
	expect_ok(hp_file_allocate(file, 0, 3 * FRAME, &error));
	expect_stat(3, 2, 0);
	address = map(file, 0, PAGES, 0);
	expect_stat(PAGES, PAGES - 1, 0);
	expect_mapped_right(address, 0, PAGES);
	for (uint32_t page = 0; page < PAGES; page++)
		if (is_base(page))
			assert_int_equal(count_backed(page), HP_BASE_PAGES); /* all is there */
	store_pages(address, 0, PAGES);
	expect_pages(address, 0, PAGES);
	unmap(address, PAGES);
	give_frames(extent);
	end();
}

/* Without the flag a file is refused as before, beside one that has it. */
static void test_others_are_refused(void **state)
{
	hp_file firm;
	char *address, *refused;

	start_with(4, PAGES, HP_FILE_FALLBACK, NULL);
	firm = file_make(pool, PAGES);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	expect_error(map_try(firm, 0, 1, HP_MAP_LAZY, &refused), -ENOMEM, HP_LIMIT_POOL, "0 of the pool's");
	expect_error(map_try(firm, 0, 1, 0, &refused), -ENOMEM, HP_LIMIT_POOL, "");
	pool_check(pool);
	unmap(address, PAGES);
	file_close(firm);
	end();
}

/* Places are as many as max_size in GiB; then these are refused too, and what was taken for the call is given back. */
static void test_places_run_out(void **state)
{
	char *address, *refused;

	start_with(4, 600, HP_FILE_FALLBACK, NULL);
	assert_int_equal(places(), 512);
	expect_error(map_try(file, 0, 517, HP_MAP_LAZY, &refused), -ENOMEM, HP_LIMIT_POOL, "places for base pages");
	assert_int_equal(places_left(), 512);
	assert_int_equal(frames_left(), 4);
	address = map(file, 0, 516, HP_MAP_LAZY);
	assert_int_equal(places_left(), 0);
	expect_error(map_try(file, 0, 517, HP_MAP_LAZY, &refused), -ENOMEM, HP_LIMIT_POOL, "places for base pages");
	for (uint64_t page = 0; page < 516; page++)
		store(address + page * FRAME, page + 1);
	expect_stat(516, 512, 0);
	expect_mapped_right(address, 0, 516);
	for (uint64_t page = 0; page < 516; page++)
		assert_int_equal(load(address + page * FRAME), page + 1);
	unmap(address, 516);
	end();
}

/* ---- tenants ---------------------------------------------------------------------------------------------------- */

static hp_tenant_stat tenant_stat(hp_tenant tenant)
{
	hp_tenant_stat stat = {.struct_size = sizeof(stat)};

	assert_int_equal(hp_tenant_stat_get(tenant, &stat), 0);
	return stat;
}

static void expect_used(hp_tenant tenant, uint64_t pages)
{
	assert_int_equal(tenant_stat(tenant).used, pages * FRAME);
	pool_check(pool);
}

/* The limit counts both kinds, and the minimum is kept in frames through all of it. */
static void test_tenant(void **state)
{
	hp_tenant tenant;
	char *address, *refused;
	void *extent;

	start_with(8, PAGES, 0, NULL);
	expect_ok(hp_tenant_create(pool, 9 * FRAME, 2 * FRAME, &tenant, &error));
	file_close(file);
	file = file_with(PAGES, MOVABLE, tenant);
	extent = take_frames(5);
	assert_int_equal(frames_left(), 1);
	expect_error(map_try(file, 0, 10, HP_MAP_LAZY, &refused), -EDQUOT, HP_LIMIT_TENANT, "at most 9");
	expect_used(tenant, 0);
	assert_int_equal(places_left(), places());
	assert_int_equal(frames_left(), 1);
	address = map(file, 0, 9, HP_MAP_LAZY);
	expect_used(tenant, 9);
	/* Two of the minimum and the last one. */
	assert_int_equal(pool_stats(pool).reserved, 3);
	assert_int_equal(places_left(), places() - 6);
	expect_error(map_try(file, 9, 1, HP_MAP_LAZY, &refused), -EDQUOT, HP_LIMIT_TENANT, "");
	store_pages(address, 0, 9);
	expect_stat(9, 6, 0);
	expect_used(tenant, 9);
	expect_error(hp_collapse(address, 9 * FRAME, &error), -ENOMEM, HP_LIMIT_POOL, "");
	give_frames(extent);
	expect_ok(hp_collapse(address, 4 * FRAME, &error));
	expect_used(tenant, 9);
	expect_ok(hp_split(address, 9 * FRAME, &error));
	expect_used(tenant, 9);
	expect_stat(9, 9, 0);
	/* The minimum is free and the tenant's. */
	assert_int_equal(frames_left(), 6);
	expect_ok(hp_collapse(address, FRAME, &error));
	expect_used(tenant, 9);
	assert_int_equal(frames_left(), 6);
	expect_ok(hp_collapse(address, 3 * FRAME, &error));
	assert_int_equal(frames_left(), 5);
	expect_pages(address, 0, 9);
	unmap(address, 9);
	expect_ok(hp_file_truncate(file, 2 * FRAME, &error));
	expect_used(tenant, 2);
	assert_int_equal(frames_left(), 6);
	expect_ok(hp_file_punch(file, 0, 2 * FRAME, 0, &error));
	expect_used(tenant, 0);
	assert_int_equal(frames_left(), 6);
	file_close(file);
	assert_int_equal(hp_tenant_close(tenant), 0);
	file = file_make(pool, 1);
	end();
}

/* A page of the minimum is collapsed into a frame of the minimum, also when the pool has no other. */
static void test_minimum_is_there_for_a_collapse(void **state)
{
	hp_tenant tenant;
	char *address;
	void *extent;

	start_with(4, 1, 0, NULL);
	expect_ok(hp_tenant_create(pool, 9 * FRAME, 2 * FRAME, &tenant, &error));
	file_close(file);
	file = file_with(PAGES, MOVABLE, tenant);
	address = map(file, 0, 1, HP_MAP_LAZY);
	store_pages(address, 0, 1);
	expect_stat(1, 0, 0);
	expect_ok(hp_split(address, FRAME, &error));
	expect_stat(1, 1, 0);
	extent = take_frames(2);
	assert_int_equal(frames_left(), 0);
	expect_ok(hp_collapse(address, FRAME, &error));
	expect_stat(1, 0, 0);
	expect_pages(address, 0, 1);
	unmap(address, 1);
	give_frames(extent);
	file_close(file);
	assert_int_equal(hp_tenant_close(tenant), 0);
	file = file_make(pool, 1);
	end();
}

/* Frames that the minimum keeps and nobody uses any more are dirty: workers hear of them. */
static void workers_hear(bool by_split)
{
	hp_pool_options options = {
		.struct_size = sizeof(options), .size = 8 * FRAME, .backing = HP_BACKING_HUGETLB, .workers = 1};
	hp_tenant tenant;
	char *address;

	expect_ok(sim_start(&(struct hp_sim_config){.hugetlb_bytes = 8 * FRAME}));
	expect_ok(pool_try(&options, &pool));
	expect_ok(hp_tenant_create(pool, 0, 4 * FRAME, &tenant, &error));
	file = file_with(2, MOVABLE, tenant);
	address = map(file, 0, 2, HP_MAP_LAZY);
	store_pages(address, 0, 2);
	expect_ok(hp_pool_wait(pool, 60000, &error));
	usleep(20000); /* they sleep */
	if (by_split)
		expect_ok(hp_split(address, 2 * FRAME, &error));
	unmap(address, 2);
	if (!by_split)
		expect_ok(hp_file_truncate(file, 0, &error));
	expect_ok(hp_pool_wait(pool, 60000, &error));
	assert_int_equal(pool_stats(pool).dirty, 0);
	file_close(file);
	assert_int_equal(hp_tenant_close(tenant), 0);
	file = file_make(pool, 1);
	end();
}

static void test_workers_hear_of_a_cut(void **state)
{
	workers_hear(false);
}

static void test_workers_hear_of_a_split(void **state)
{
	workers_hear(true);
}

/* ---- segments --------------------------------------------------------------------------------------------------- */

/*
 * A GiB of frames, of which the last ones are followed in the file by the first places for base pages: their numbers go
 * on, their memory does not.
 */
static void across(unsigned flags, unsigned map_flags, bool populate)
{
	void *extent;
	char *address;

	start_with(512, 512, flags, "fault_window=512");
	extent = take_frames(100);
	assert_int_equal((uintptr_t)((char *)extent - view_now()->direct), 0);
	/* Frames to the segment's end, and then places from the first on. */
	address = map(file, 0, 412, 0);
	unmap(address, 412);
	assert_int_equal(frame_of(0), 100);
	assert_int_equal(frame_of(411), 511);
	address = map(file, 0, 512, map_flags);
	if (populate)
		assert_int_equal(hp_populate(address, 512 * FRAME), 0);
	for (uint64_t page = 0; page < 512; page++)
		store(address + page * FRAME, page + 1);
	assert_int_equal(frame_of(412), 512);
	if (map_flags & HP_MAP_LAZY) /* ready memory is filled by several threads, each from where the last one was */
		assert_int_equal(frame_of(511), 611);
	expect_stat(512, 100, 0);
	expect_mapped_right(address, 0, 512);
	for (uint64_t page = 0; page < 512; page++)
		assert_int_equal(load(address + page * FRAME), page + 1);
	if (flags & HP_FILE_MOVABLE) {
		give_frames(extent);
		expect_ok(hp_split(address + 400 * FRAME, 12 * FRAME, &error));
		expect_ok(hp_collapse(address + 400 * FRAME, 112 * FRAME, &error));
		expect_mapped_right(address, 0, 512);
		for (uint64_t page = 0; page < 512; page++)
			assert_int_equal(load(address + page * FRAME), page + 1);
		expect_stat(512, 0, 0);
		extent = NULL;
	}
	unmap(address, 512);
	if (extent)
		give_frames(extent);
	end();
}

static void test_ready_across_segments(void **state)
{
	across(HP_FILE_FALLBACK, 0, false);
}

static void test_lazy_across_segments(void **state)
{
	across(HP_FILE_FALLBACK, HP_MAP_LAZY, false);
	across(HP_FILE_FALLBACK, HP_MAP_LAZY, true);
}

static void test_movable_across_segments(void **state)
{
	across(MOVABLE, HP_MAP_LAZY, false);
	across(MOVABLE, 0, false);
}

/* ---- runs of a GiB ---------------------------------------------------------------------------------------------- */

static unsigned order_of_entry(uint32_t page)
{
	unsigned order = 0;

	hp_index_find(hp_file_index(view_now(), record_now()), hp_pgoff(page), &order);
	return order;
}

/* A file whose second GiB is one entry of its index, of places: no call makes one yet. */
static char *start_with_run(const char *tuning)
{
	hp_pool_options options = {.struct_size = sizeof(options),
	                           .size = 4 * FRAME,
	                           .max_size = 1024 * FRAME,
	                           .backing = HP_BACKING_HUGETLB,
	                           .workers = HP_WORKERS_NONE,
	                           .tuning = tuning};
	struct hp_file_use use;
	struct hp_thread *t;
	void *extent;
	char *address;

	expect_ok(sim_start(&(struct hp_sim_config){.hugetlb_bytes = 1024 * FRAME}));
	expect_ok(pool_try(&options, &pool));
	file = file_with(1024, MOVABLE, (hp_tenant){0});
	extent = take_frames(4);
	assert_int_equal(hp_file_enter(file, &t, &use, &error), 0);
	expect_ok(hp_file_fill(t, use, 512, 512, HP_FILL_PLACES, &error));
	hp_file_put(t, use.number);
	address = map(file, 512, 512, HP_MAP_LAZY);
	for (uint64_t page = 0; page < 512; page++)
		store(address + page * FRAME, page + 1);
	assert_int_equal(order_of_entry(512 + 300), HP_ORDER_RUN);
	give_frames(extent);
	return address;
}

static void test_a_page_of_a_run(void **state)
{
	static const char *const tunings[] = {NULL, "collapse=relock"};

	for (unsigned i = 0; i < 2; i++) {
		char *address = start_with_run(tunings[i]);

		expect_ok(hp_collapse(address + 300 * FRAME, 2 * FRAME, &error));
		assert_int_equal(order_of_entry(512 + 300), HP_ORDER_FRAME);
		assert_int_equal(order_of_entry(512 + 1), HP_ORDER_FRAME);
		expect_stat(512, 510, 0);
		expect_mapped_right(address, 512, 512);
		for (uint64_t page = 0; page < 512; page++)
			assert_int_equal(load(address + page * FRAME), page + 1);
		expect_ok(hp_collapse(address, FRAME, &error));
		expect_ok(hp_collapse(address + 511 * FRAME, FRAME, &error));
		expect_error(hp_collapse(address + 100 * FRAME, FRAME, &error), -ENOMEM, HP_LIMIT_POOL, "no frame");
		expect_ok(hp_split(address, 512 * FRAME, &error));
		expect_stat(512, 512, 0);
		for (uint64_t page = 0; page < 512; page++)
			assert_int_equal(load(address + page * FRAME), page + 1);
		unmap(address, 512);
		end();
	}
}

/* The other way: a GiB of frames. */
static void test_split_of_a_page_of_a_run(void **state)
{
	char *address;

	start_with(512, 1024, MOVABLE, NULL);
	expect_ok(hp_file_allocate(file, 0, 512 * FRAME, &error));
	address = map(file, 0, 512, HP_MAP_LAZY);
	assert_int_equal(order_of_entry(300), HP_ORDER_RUN);
	for (uint64_t page = 0; page < 512; page++)
		store(address + page * FRAME, page + 1);
	expect_ok(hp_split(address + 300 * FRAME, 2 * FRAME, &error));
	assert_int_equal(order_of_entry(300), HP_ORDER_FRAME);
	expect_stat(512, 2, 0);
	expect_mapped_right(address, 0, 512);
	for (uint64_t page = 0; page < 512; page++)
		assert_int_equal(load(address + page * FRAME), page + 1);
	expect_ok(hp_collapse(address, 512 * FRAME, &error));
	expect_stat(512, 0, 0);
	for (uint64_t page = 0; page < 512; page++)
		assert_int_equal(load(address + page * FRAME), page + 1);
	unmap(address, 512);
	end();
}

/* No room to divide it: nothing changes, what was taken goes back. */
static void test_a_run_that_cannot_be_divided(void **state)
{
	static uint32_t taken[1 << 20];
	char *address = start_with_run(NULL);
	struct hp_thread *t;
	unsigned count = 0;
	sigset_t saved;

	hp_signals_block(&saved);
	assert_int_equal(hp_thread_enter(view_now(), &t), 0);
	while (count < 1 << 20 && (taken[count] = hp_pages_take(&t->pool->pages, HP_BASE_PAGE_SIZE, &t->locker)))
		count++;
	assert_int_equal(hp_collapse(address + 300 * FRAME, FRAME, &error), -ENOMEM);
	assert_int_equal(order_of_entry(512 + 300), HP_ORDER_RUN);
	expect_stat(512, 512, 0);
	assert_int_equal(frames_left(), 4);
	while (count)
		hp_pages_give(&t->pool->pages, taken[--count], HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE, &t->locker);
	hp_signals_restore(&saved);
	expect_ok(hp_collapse(address + 300 * FRAME, FRAME, &error));
	for (uint64_t page = 0; page < 512; page++)
		assert_int_equal(load(address + page * FRAME), page + 1);
	unmap(address, 512);
	end();
}

/* ---- contents --------------------------------------------------------------------------------------------------- */

static char *map_base(unsigned flags)
{
	void *extent = take_frames(pool_stats(pool).hugetlb);
	char *address = map(file, 0, PAGES, flags);

	store_pages(address, 0, PAGES);
	give_frames(extent);
	return address;
}

/* Frames that others have written, whose rest must read as zeroes; and back. */
static void dirty_frames(const char *tuning, bool sparse)
{
	char *address, *extent;

	start_with(PAGES, PAGES, MOVABLE, tuning);
	address = map_base(HP_MAP_LAZY);
	extent = take_frames(PAGES);
	for (uint64_t at = 0; at < PAGES * FRAME; at += BASE)
		store(extent + at, 77);
	give_frames(extent);
	assert_int_equal(pool_stats(pool).dirty, PAGES);
	expect_ok(hp_collapse(address, PAGES * FRAME, &error));
	expect_stat(PAGES, 0, 0);
	expect_pages(address, 0, PAGES);
	expect_mapped_right(address, 0, PAGES);
	expect_ok(hp_split(address, PAGES * FRAME, &error));
	expect_stat(PAGES, PAGES, 0);
	/* What is all zero has no memory. */
	for (uint32_t page = 0; page < PAGES && sparse; page++) {
		unsigned stored = 0;

		for (uint64_t b = 0; b < HP_BASE_PAGES; b++)
			stored += is_stored(page, b);
		assert_int_equal(count_backed(page), stored);
	}
	expect_pages(address, 0, PAGES);
	assert_int_equal(collapses().misused, 0);
	assert_int_equal(collapses().collapsed, PAGES);
	assert_int_equal(collapses().split, PAGES);
	assert_int_equal(collapses().collapse.count, PAGES);
	unmap(address, PAGES);
	end();
}

static void test_dirty_frames(void **state)
{
	dirty_frames(NULL, true);
	dirty_frames("collapse=relock", true);
	dirty_frames("collapse_verify=1", false); /* looks at what is not there, which brings it */
}

/* Several mappings of the page, some not touched, some that may only read, some cut; all see the same. */
static void test_several_mappings(void **state)
{
	char *address, *other, *reader, *inaccessible;

	start(PAGES);
	address = map_base(HP_MAP_LAZY);
	other = map(file, 2, 6, HP_MAP_LAZY);
	expect_page(other + FRAME, 3);
	reader = map(file, 0, PAGES, 0);
	assert_int_equal(hp_protect(reader, 8 * FRAME, HP_PROT_READ), 0);
	inaccessible = map(file, 0, PAGES, 0);
	assert_int_equal(hp_protect(inaccessible, PAGES * FRAME, 0), 0);
	expect_ok(hp_collapse(address, PAGES * FRAME, &error));
	expect_stat(PAGES, 0, 0);
	expect_pages(address, 0, PAGES);
	expect_pages(other, 2, 6);
	expect_pages(reader, 0, PAGES);
	assert_int_equal(touch_store(reader, 1), -EFAULT);
	store(reader + 9 * FRAME + 5 * BASE, 4711);
	assert_int_equal(load(address + 9 * FRAME + 5 * BASE), 4711);
	store(address + 9 * FRAME + 5 * BASE, is_stored(9, 5) ? tag_of(9, 5) : 0);
	assert_int_equal(touch_load(inaccessible + 3 * FRAME, &(uint64_t){0}), -EFAULT);
	assert_int_equal(hp_protect(inaccessible, PAGES * FRAME, RW), 0);
	expect_pages(inaccessible, 0, PAGES);
	expect_ok(hp_split(reader, 8 * FRAME, &error));
	expect_stat(PAGES, 8, 0);
	expect_pages(address, 0, PAGES);
	expect_pages(other, 2, 6);
	assert_int_equal(touch_store(reader + 2 * FRAME, 1), -EFAULT);
	unmap(other, 6);
	unmap(inaccessible, PAGES);
	unmap(address, PAGES);
	unmap(reader, PAGES);
	end();
}

/* By calls, without a mapping of the page. */
static void test_unmapped_pages(void **state)
{
	uint64_t word = 0;
	char *address;

	start(PAGES);
	address = map_base(HP_MAP_LAZY);
	unmap(address, PAGES);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	expect_ok(hp_collapse(address, PAGES * FRAME, &error)); /* nothing of it is touched */
	expect_stat(PAGES, 0, 0);
	assert_int_equal(hp_file_read(file, 3 * FRAME + 3 * BASE, &word, 8), 8);
	assert_int_equal(word, tag_of(3, 3));
	expect_ok(hp_split(address, PAGES * FRAME, &error));
	assert_int_equal(hp_file_read(file, 3 * FRAME + 3 * BASE, &word, 8), 8);
	assert_int_equal(word, tag_of(3, 3));
	expect_pages(address, 0, PAGES);
	unmap(address, PAGES);
	end();
}

/* A page that was punched while it was mapped and has been stored to since is to be made huge as others are. */
static void test_punched_and_stored(void **state)
{
	char *address;

	start(PAGES);
	address = map_base(HP_MAP_LAZY);
	expect_ok(hp_file_punch(file, 2 * FRAME, 2 * FRAME, 0, &error));
	pool_check(pool);
	store_pages(address + 2 * FRAME, 2, 2);
	expect_ok(hp_collapse(address, PAGES * FRAME, &error));
	expect_pages(address, 0, PAGES);
	pool_check(pool);
	for (uint32_t page = 0; page < PAGES; page++)
		assert_false(is_base(page));
	expect_ok(hp_file_punch(file, 2 * FRAME, 2 * FRAME, 0, &error));
	store_pages(address + 2 * FRAME, 2, 2);
	expect_ok(hp_split(address, PAGES * FRAME, &error));
	expect_pages(address, 0, PAGES);
	for (uint32_t page = 0; page < PAGES; page++)
		assert_true(is_base(page));
	unmap(address, PAGES);
	end();
}

/* Parts of pages in places are given back to the kernel in base pages. */
static void test_punched_in_parts(void **state)
{
	char *address;

	start(PAGES);
	address = map(file, 0, PAGES, 0);
	for (uint64_t b = 0; b < HP_BASE_PAGES; b++)
		store(address + FRAME + b * BASE, b + 1);
	expect_ok(hp_split(address, PAGES * FRAME, &error));
	assert_int_equal(count_backed(1), HP_BASE_PAGES);
	expect_ok(hp_file_punch(file, FRAME + 100 * BASE + 1, 10 * BASE, 0, &error));
	for (uint64_t b = 101; b < 110; b++)
		assert_int_equal(load(address + FRAME + b * BASE), 0);
	pool_check(pool);
	expect_ok(hp_file_punch(file, FRAME + 200 * BASE, 10 * BASE, 0, &error));
	assert_int_equal(count_backed(1), HP_BASE_PAGES - 10);
	unmap(address, PAGES);
	end();
}

/* What was never touched stays without memory when a part of it is punched. */
static void test_punch_brings_no_memory(void **state)
{
	void *extent;
	char *address;

	start(PAGES);
	extent = take_frames(PAGES);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	store(address, 1);
	assert_int_equal(count_backed(0), 1);
	expect_ok(hp_file_punch(file, 100 * BASE, 200 * BASE, 0, &error));
	assert_int_equal(count_backed(0), 1);
	assert_int_equal(load(address), 1);
	unmap(address, PAGES);
	give_frames(extent);
	end();
}

/* ---- refused ---------------------------------------------------------------------------------------------------- */

static void test_limits_that_are_told(void **state)
{
	char *address, *more;
	hp_file other;

	start_with(PAGES, 512 + PAGES, MOVABLE, NULL);
	address = map_base(HP_MAP_LAZY);
	expect_ok(hp_collapse(address, PAGES * FRAME, &error));
	expect_error(hp_collapse(address, FRAME + 1, &error), -EINVAL, HP_LIMIT_NONE, "multiples of 2 MiB");
	expect_error(hp_collapse(address, (PAGES + 1) * FRAME, &error), -EINVAL, HP_LIMIT_NONE, "not inside one");
	assert_int_equal(hp_pin(address + FRAME + 17, 1), 0);
	expect_error(hp_split(address, PAGES * FRAME, &error), -EBUSY, HP_LIMIT_PINNED, "hp_unpin");
	expect_stat(PAGES, 1, 0);
	assert_int_equal(hp_unpin(address + FRAME, FRAME), 0);
	assert_int_equal(hp_unpin(address + FRAME, FRAME), -EINVAL);
	expect_ok(hp_split(address, 3 * FRAME, &error));
	/* All places are taken by another file. */
	other = file_with(places_left() + 3, HP_FILE_FALLBACK, (hp_tenant){0});
	more = map(other, 0, places_left() + 3, HP_MAP_LAZY);
	assert_int_equal(places_left(), 0);
	expect_error(hp_split(address + 5 * FRAME, FRAME, &error), -ENOMEM, HP_LIMIT_TABLE, "place");
	expect_stat(PAGES, 3, 0);
	/* And all frames. */
	assert_int_equal(frames_left(), 0);
	expect_error(hp_collapse(address, FRAME, &error), -ENOMEM, HP_LIMIT_POOL, "no frame");
	expect_stat(PAGES, 3, 0);
	unmap(more, hp_frames(512 * FRAME - (3 * FRAME)) + 3);
	file_close(other);
	expect_pages(address, 0, PAGES);
	unmap(address, PAGES);
	end();
}

static void test_pins(void **state)
{
	char *address, *other;
	void *over;

	start(PAGES);
	address = map_base(HP_MAP_LAZY);
	other = map(file, 0, PAGES, HP_MAP_LAZY);
	/* By the page, whichever mapping it was pinned through. */
	assert_int_equal(hp_pin(other + 4 * FRAME, FRAME), 0);
	expect_error(hp_collapse(address + 4 * FRAME, FRAME, &error), -EBUSY, HP_LIMIT_PINNED, "pinned");
	expect_ok(hp_collapse(address + 5 * FRAME, FRAME, &error));
	/* The pin goes with that mapping, also with a part of it, and also when another one takes its place. */
	assert_int_equal(hp_unmap(other + 4 * FRAME, FRAME), 0);
	expect_ok(hp_collapse(address + 4 * FRAME, FRAME, &error));
	assert_int_equal(hp_pin(other + 7 * FRAME, FRAME), 0);
	over = other + 7 * FRAME;
	expect_ok(hp_map(file, 7 * FRAME, FRAME, RW, HP_MAP_REPLACE, &over, &error));
	expect_ok(hp_collapse(address + 7 * FRAME, FRAME, &error));
	/* A page of the file that is gone cannot be pinned. */
	expect_ok(hp_file_truncate(file, 10 * FRAME, &error));
	assert_int_equal(hp_pin(address + 9 * FRAME, 2 * FRAME), -ENXIO);
	expect_ok(hp_collapse(address, PAGES * FRAME, &error));
	expect_pages(address, 0, 10);
	assert_int_equal(hp_unmap(other, 4 * FRAME), 0);
	assert_int_equal(hp_unmap(other + 5 * FRAME, 7 * FRAME), 0);
	unmap(address, PAGES);
	end();
}

/* ---- hooks: what others do between the steps of a move ---------------------------------------------------------- */

static struct hp_os_ops hooked_ops;
typedef void hook_fn(void);
static hook_fn *_Atomic on_map;  /* called once, before the next map */
static hook_fn *_Atomic on_copy; /* the same before bytes are copied */
static _Atomic unsigned refused_maps;

static void call_once(hook_fn *_Atomic *hook)
{
	hook_fn *fn = atomic_exchange(hook, NULL);

	if (fn)
		fn();
}

static int hooked_map(struct hp_os *sim, void *address, uint64_t length, unsigned prot, hp_segment segment,
                      uint64_t offset, unsigned flags)
{
	unsigned left = atomic_load(&refused_maps);

	call_once(&on_map);
	if (left && atomic_compare_exchange_strong(&refused_maps, &left, left - 1)) {
		/* As os.h warns: what was there may be gone. */
		if (flags & HP_OS_MAP_REPLACE)
			real_ops->vacate(sim, address, length);
		return -ENOMEM;
	}
	return real_ops->map(sim, address, length, prot, segment, offset, flags);
}

static int hooked_scatter(struct hp_os *sim, hp_segment segment, uint64_t offset, const void *from, uint64_t length)
{
	call_once(&on_copy);
	return real_ops->scatter(sim, segment, offset, from, length);
}

static int hooked_gather(struct hp_os *sim, void *to, const void *mapped, hp_segment segment, uint64_t offset,
                         uint64_t length)
{
	call_once(&on_copy);
	return real_ops->gather(sim, to, mapped, segment, offset, length);
}

static void hook(void)
{
	real_ops = os->ops;
	hooked_ops = *real_ops;
	hooked_ops.map = hooked_map;
	hooked_ops.gather = hooked_gather;
	hooked_ops.scatter = hooked_scatter;
	os->ops = &hooked_ops;
	atomic_store(&on_map, NULL);
	atomic_store(&on_copy, NULL);
	atomic_store(&refused_maps, 0);
}

/* HP_MAP_REPLACE that fails leaves what was there, of a movable file too. */
static void test_failed_replacement(void **state)
{
	void *over;
	char *address;

	start(PAGES);
	hook();
	address = map_base(HP_MAP_LAZY);
	over = address + 2 * FRAME;
	atomic_store(&refused_maps, 1);
	expect_error(hp_map(file, 2 * FRAME, 3 * FRAME, RW, HP_MAP_REPLACE, &over, &error), -ENOMEM, HP_LIMIT_MEMORY,
	             "");
	atomic_store(&refused_maps, 0);
	expect_pages(address, 0, PAGES);
	unmap(address, PAGES);
	end();
}

/* The kernel refuses to map the new frame: it is refused before anything has changed. */
static void test_switch_that_fails(void **state)
{
	char *address;

	start(PAGES);
	hook();
	address = map_base(HP_MAP_LAZY);
	unmap(map(file, 0, PAGES, 0), PAGES);
	/* The direct map of the places is mapped by the first move, so that the next map is the switch. */
	expect_ok(hp_collapse(address, FRAME, &error));
	expect_ok(hp_split(address, FRAME, &error));
	atomic_store(&refused_maps, 1);
	expect_error(hp_collapse(address + FRAME, FRAME, &error), -ENOMEM, HP_LIMIT_MEMORY, "refuses");
	assert_int_equal(atomic_load(&refused_maps), 0);
	pool_check(pool);
	expect_pages(address, 0, PAGES);
	expect_ok(hp_collapse(address + FRAME, FRAME, &error));
	atomic_store(&refused_maps, 1);
	expect_error(hp_split(address + FRAME, FRAME, &error), -ENOMEM, HP_LIMIT_MEMORY, "refuses");
	assert_int_equal(atomic_load(&refused_maps), 0);
	pool_check(pool);
	expect_ok(hp_split(address + FRAME, FRAME, &error));
	expect_pages(address, 0, PAGES);
	expect_stat(PAGES, PAGES, 0);
	expect_ok(hp_collapse(address, PAGES * FRAME, &error));
	expect_pages(address, 0, PAGES);
	unmap(address, PAGES);
	end();
}

static void slow_zero(struct hp_os *sim, void *address, uint64_t length)
{
	usleep(50000);
	real_ops->zero(sim, address, length);
}

/* The last frame is in a worker's hands, for a moment: who asks for memory waits for it, and so does a collapse. */
static void test_frame_that_is_being_zeroed(void **state)
{
	hp_pool_options options = {
		.struct_size = sizeof(options), .size = FRAME, .backing = HP_BACKING_HUGETLB, .workers = 1};
	void *extent;
	char *address;

	expect_ok(sim_start(&(struct hp_sim_config){.hugetlb_bytes = FRAME}));
	hook();
	hooked_ops.zero = slow_zero;
	expect_ok(pool_try(&options, &pool));
	file = file_with(1, MOVABLE, (hp_tenant){0});
	extent = take_frames(1);
	address = map(file, 0, 1, HP_MAP_LAZY);
	store_page(address, 0);
	give_frames(extent);
	usleep(10000);
	/* It is not waited for as long as an idle thread may need on a busy machine. */
	if (hp_collapse(address, FRAME, &error)) {
		assert_int_equal(error.limit, HP_LIMIT_POOL);
		expect_ok(hp_pool_wait(pool, 60000, &error));
		expect_ok(hp_collapse(address, FRAME, &error));
	}
	expect_page(address, 0);
	unmap(address, 1);
	end();
}

/* ---- what happens between two steps ----------------------------------------------------------------------------- */

static char *moved_address;

/* What a thread does beside a move. */
static void *in_thread(void *context)
{
	void (*fn)(void) = *(void (**)(void))context;

	fn();
	return NULL;
}

static void run_beside(void (*fn)(void))
{
	pthread_t thread;

	thread_must(!pthread_create(&thread, NULL, in_thread, &fn));
	thread_must(!pthread_join(thread, NULL));
}

static void punch_it(void)
{
	thread_must(!hp_file_punch(file, 2 * FRAME, FRAME, 0, NULL));
}

static void punch_another(void)
{
	thread_must(!hp_file_punch(file, 3 * FRAME, FRAME, 0, NULL));
}

static void punch_between(void)
{
	run_beside(punch_it);
}

static void punch_another_between(void)
{
	run_beside(punch_another);
}

/* Looked, let go, and when it looks again the page is a hole, or gone. */
static void gives_up(bool mapped, bool split)
{
	char *address;

	start_with(PAGES, PAGES, MOVABLE, "collapse=relock");
	hook();
	if (split)
		store_pages(address = map(file, 0, PAGES, HP_MAP_LAZY), 0, PAGES);
	else
		address = map_base(HP_MAP_LAZY);
	if (!mapped)
		assert_int_equal(hp_unmap(address + 3 * FRAME, (PAGES - 3) * FRAME), 0);
	/* The direct map of the places comes with the first move: that is between the two looks. */
	atomic_store(&on_map, punch_between);
	if (split)
		expect_error(hp_split(address + 2 * FRAME, FRAME, &error), -EAGAIN, HP_LIMIT_NONE, "try again");
	else
		expect_error(hp_collapse(address + 2 * FRAME, FRAME, &error), -EAGAIN, HP_LIMIT_NONE, "try again");
	assert_null(atomic_load(&on_map));
	assert_int_equal(collapses().rechecked, 1);
	assert_int_equal(collapses().gave_up, 1);
	assert_int_equal(collapses().relock, 1);
	pool_check(pool);
	assert_int_equal(load(address + 2 * FRAME + BASE), 0);
	expect_pages(address, 0, 2);
	unmap(address, mapped ? PAGES : 3);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	end();
}

static void test_relock_gives_up(void **state)
{
	gives_up(true, false);
	gives_up(true, true);
	gives_up(false, false);
}

/* What others do elsewhere in the file is no reason. */
static void test_relock_goes_on(void **state)
{
	char *address;

	start_with(PAGES, PAGES, MOVABLE, "collapse=relock");
	hook();
	address = map_base(HP_MAP_LAZY);
	atomic_store(&on_map, punch_another_between);
	expect_ok(hp_collapse(address + 2 * FRAME, FRAME, &error));
	assert_null(atomic_load(&on_map));
	assert_int_equal(collapses().rechecked, 1);
	assert_int_equal(collapses().gave_up, 0);
	expect_pages(address, 0, 3);
	expect_pages(address + 4 * FRAME, 4, PAGES - 4);
	assert_int_equal(load(address + 3 * FRAME + BASE), 0);
	unmap(address, PAGES);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	end();
}

/* While it copies: readers of the page and writers of others go on, in mappings and by calls. */
static void use_it(void)
{
	uint64_t tag = 0, word = 99;

	thread_must(!touch_load(moved_address + 2 * FRAME + 2 * BASE, &tag) && tag == tag_of(2, 2));
	thread_must(!touch_store(moved_address + 3 * FRAME + 7 * BASE, 99));
	thread_must(hp_file_read(file, 2 * FRAME + 2 * BASE, &word, 8) == 8 && word == tag_of(2, 2));
	thread_must(hp_file_write(file, 4 * FRAME + 7 * BASE, &tag, 8) == 8);
	thread_must(hp_file_read(file, 4 * FRAME + 7 * BASE, &word, 8) == 8 && word == tag);
}

static void use_between(void)
{
	run_beside(use_it);
}

static pthread_t writers[4];
static _Atomic unsigned writing, written;
static char *second_address;

/* Each stores once to the page: through its mapping, through another, through one that was not touched; by a call. */
static void *store_to_it(void *context)
{
	uintptr_t which = (uintptr_t)context;
	uint64_t tag = 500 + which;

	atomic_fetch_add(&writing, 1);
	if (which == 0)
		thread_must(!touch_store(moved_address + 2 * FRAME + 20 * BASE, tag));
	else if (which == 1)
		thread_must(!touch_store(second_address + 2 * FRAME + 21 * BASE, tag));
	else if (which == 2)
		thread_must(hp_file_write(file, 2 * FRAME + 22 * BASE, &tag, 8) == 8);
	else
		thread_must(!touch_load(second_address + 2 * FRAME + 2 * BASE, &tag) && tag == tag_of(2, 2));
	atomic_fetch_add(&written, 1);
	return NULL;
}

static void write_between(void)
{
	atomic_store(&writing, 0);
	atomic_store(&written, 0);
	for (uintptr_t i = 0; i < 4; i++)
		thread_must(!pthread_create(&writers[i], NULL, store_to_it, (void *)i));
	while (atomic_load(&writing) < 4)
		usleep(1000);
	usleep(20000);
	thread_must(atomic_load(&written) == 0);
}

static void check_moved(const char *tuning, bool split)
{
	char *address;

	start_with(PAGES, PAGES, MOVABLE, tuning);
	hook();
	if (split)
		store_pages(address = map(file, 0, PAGES, HP_MAP_LAZY), 0, PAGES);
	else
		address = map_base(HP_MAP_LAZY);
	moved_address = address;
	second_address = map(file, 0, PAGES, HP_MAP_LAZY); /* not touched */
	atomic_store(&on_copy, use_between);
	if (split)
		expect_ok(hp_split(address + 2 * FRAME, FRAME, &error));
	else
		expect_ok(hp_collapse(address + 2 * FRAME, FRAME, &error));
	assert_null(atomic_load(&on_copy));
	assert_int_equal(is_base(2), split);
	pool_check(pool);
	/* And back. */
	atomic_store(&on_copy, write_between);
	if (split)
		expect_ok(hp_collapse(address + 2 * FRAME, FRAME, &error));
	else
		expect_ok(hp_split(address + 2 * FRAME, FRAME, &error));
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_join(writers[i], NULL), 0);
	assert_int_equal(is_base(2), !split);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(load(address + 2 * FRAME + (20 + i) * BASE), 500 + i);
		assert_int_equal(load(second_address + 2 * FRAME + (20 + i) * BASE), 500 + i);
		store(address + 2 * FRAME + (20 + i) * BASE, is_stored(2, 20 + i) ? tag_of(2, 20 + i) : 0);
	}
	assert_int_equal(collapses().misused, 0);
	assert_in_range(collapses().pause.count, 1, 4);
	expect_page(address + 2 * FRAME, 2);
	expect_page(second_address + 2 * FRAME, 2);
	unmap(second_address, PAGES);
	unmap(address, PAGES);
	end();
}

static void test_beside_a_copy(void **state)
{
	check_moved(NULL, false);
	check_moved(NULL, true);
	check_moved("collapse=relock collapse_verify=1", false);
	check_moved("file_lock=vma", true);
	check_moved("file_lock=rwsem", false);
	check_moved("file_lock=invalidate", true);
}

/* ---- many threads ----------------------------------------------------------------------------------------------- */

#ifdef __SANITIZE_THREAD__
enum { BESIDE = 3, ROUNDS = 60 };
#else
enum { BESIDE = 3, ROUNDS = 400 };
#endif
static _Atomic bool stop;
static _Atomic unsigned refused_moves;

static void *collapse_and_split(void *context)
{
	uint64_t seed = *(uint64_t *)context;

	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t page = random_below(&seed, PAGES), pages = 1 + random_below(&seed, PAGES - page);
		char *address = moved_address + page * FRAME;
		int result = random_below(&seed, 2) ? hp_collapse(address, pages * FRAME, NULL)
		                                    : hp_split(address, pages * FRAME, NULL);

		/* Mappings are made and unmade meanwhile, and the page may have changed. */
		thread_must(!result || result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
		atomic_fetch_add(&refused_moves, result != 0);
	}
	atomic_store(&stop, true);
	return NULL;
}

/* Counts in base pages of its own; nothing is lost. Another thread punches pages that it does not use. */
static void *count_up(void *context)
{
	uint64_t seed = *(uint64_t *)context, own = seed % 512, count[PAGES] = {0};

	while (!atomic_load(&stop)) {
		uint64_t page = random_below(&seed, PAGES - 2), tag = 0;
		char *at = moved_address + page * FRAME + own * BASE;

		thread_must(!touch_load(at, &tag) && tag == count[page]);
		thread_must(!touch_store(at, ++count[page]));
		thread_must(!touch_load(at, &tag) && tag == count[page]);
	}
	return NULL;
}

static void *punch_and_map(void *context)
{
	uint64_t seed = *(uint64_t *)context;

	while (!atomic_load(&stop)) {
		uint64_t page = PAGES - 2 + random_below(&seed, 2), tag;
		void *address;

		switch (random_below(&seed, 4)) {
		case 0:
			thread_must(!hp_file_punch(file, page * FRAME, FRAME, 0, NULL));
			break;
		case 1:
			thread_must(!touch_store(moved_address + page * FRAME, 7));
			break;
		case 2:
			if (hp_map(file, page * FRAME, FRAME, RW, HP_MAP_LAZY, &address, NULL))
				break;
			thread_must(!touch_load(address, &tag) && (tag == 7 || tag == 0));
			thread_must(!hp_unmap(address, FRAME));
			break;
		default:
			thread_must(!hp_pin(moved_address + page * FRAME, 1));
			thread_must(!hp_unpin(moved_address + page * FRAME, 1));
		}
	}
	return NULL;
}

static void many_threads(const char *tuning, uint64_t *random)
{
	uint64_t seeds[BESIDE + 2];
	pthread_t threads[BESIDE + 2];

	start_with(PAGES / 2, PAGES, MOVABLE, tuning);
	moved_address = map(file, 0, PAGES, HP_MAP_LAZY);
	store_pages(moved_address + (PAGES - 2) * FRAME, 0, 2);
	for (unsigned page = 0; page < PAGES - 2; page++)
		store(moved_address + page * FRAME + 511 * BASE, 1);
	expect_ok(hp_file_punch(file, (PAGES - 2) * FRAME, 2 * FRAME, 0, &error));
	atomic_store(&stop, false);
	atomic_store(&refused_moves, 0);
	for (unsigned i = 0; i < BESIDE + 2; i++)
		seeds[i] = (random_next(random) & ~UINT64_C(511)) + i; /* seed % 512 is each one's own */
	for (unsigned i = 0; i < BESIDE + 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL,
		                                i == 0   ? collapse_and_split
		                                : i == 1 ? punch_and_map
		                                         : count_up,
		                                &seeds[i]),
		                 0);
	for (unsigned i = 0; i < BESIDE + 2; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	assert_int_equal(collapses().misused, 0);
	if (collapses().collapsed < 10 || collapses().split < 10)
		fail_msg("%lu collapsed, %lu split, %u refused", collapses().collapsed, collapses().split,
		         atomic_load(&refused_moves));
	pool_check(pool);
	unmap(moved_address, PAGES);
	end();
}

static void test_many_threads(void **state)
{
	static const char *const tunings[] = {NULL, "collapse=relock", "collapse_verify=1 file_lock=vma",
	                                      "collapse=relock file_lock=rwsem", "file_lock=invalidate"};
	uint64_t random = random_seed();

	for (unsigned i = 0; i < sizeof(tunings) / sizeof(tunings[0]); i++)
		many_threads(tunings[i], &random);
}

/* ---- in the background ------------------------------------------------------------------------------------------ */

#define PATIENCE 400 /* times 25 ms */

static bool becomes_true(bool (*condition)(void))
{
	for (unsigned i = 0; i < PATIENCE; i++) {
		if (condition())
			return true;
		usleep(25000);
	}
	return false;
}

static bool nothing_is_used(void)
{
	return pool_stats(pool).used == 0;
}

/* As end(): what the thread in the background has in hand comes back when it is done with it. */
static void end_background(char *address)
{
	unmap(address, PAGES);
	file_close(file);
	assert_true(becomes_true(nothing_is_used));
	file = file_make(pool, 1);
	end();
}

static void start_background(uint64_t frames, unsigned flags, const char *tuning)
{
	expect_ok(sim_start(&(struct hp_sim_config){.hugetlb_bytes = 16 * FRAME}));
	pool = pool_with(frames, flags, tuning);
	file = file_with(PAGES, MOVABLE, (hp_tenant){0});
}

static bool all_is_huge(void)
{
	return stat_now().base == 0;
}

static bool only_one_is_not(void)
{
	return stat_now().base == FRAME;
}

static void test_background(void **state)
{
	void *extent;
	char *address;

	start_background(PAGES, HP_POOL_COLLAPSE, "collapse_scan_ms=1");
	extent = take_frames(PAGES);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	store_pages(address, 0, PAGES);
	assert_int_equal(stat_now().base, PAGES * FRAME);
	give_frames(extent);
	assert_true(becomes_true(all_is_huge));
	expect_pages(address, 0, PAGES);
	/* And again; the thread ends with the pool, in the middle of what it does. */
	expect_ok(hp_split(address, FRAME, &error));
	assert_true(becomes_true(all_is_huge));
	expect_pages(address, 0, PAGES);
	assert_int_equal(collapses().busy, 0);
	hp_split(address, PAGES * FRAME, &error);
	expect_pages(address, 0, PAGES);
	unmap(address, PAGES);
	file_close(file);
	assert_int_equal(hp_pool_close(pool), 0);
	assert_int_equal(hp_sim_destroy(os), 0);
}

/* Pages of which too many base pages are missing are left alone; a pinned one is left until it is not. */
static void test_background_leaves_alone(void **state)
{
	void *extent;
	char *address;

	start_background(PAGES, HP_POOL_COLLAPSE, "collapse_scan_ms=1 collapse_none=100");
	extent = take_frames(PAGES);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	for (uint64_t page = 0; page < PAGES; page++)
		for (uint64_t b = 0; b < (page == 5 ? 411u : 412u + page); b++)
			store(address + page * FRAME + b * BASE, page + 1);
	assert_int_equal(hp_pin(address + 3 * FRAME, 1), 0);
	give_frames(extent);
	for (unsigned i = 0; i < PATIENCE && stat_now().base > 2 * FRAME; i++)
		usleep(25000);
	usleep(50000);
	assert_int_equal(stat_now().base, 2 * FRAME);
	assert_true(is_base(5) && is_base(3));
	assert_int_equal(hp_unpin(address + 3 * FRAME, 1), 0);
	assert_true(becomes_true(only_one_is_not));
	usleep(50000);
	assert_true(is_base(5));
	/* One more, and by hand whatever there is. */
	store(address + 5 * FRAME + 411 * BASE, 6);
	assert_true(becomes_true(all_is_huge));
	for (uint64_t page = 0; page < PAGES; page++) {
		assert_int_equal(load(address + page * FRAME + 411 * BASE), page + 1);
		assert_int_equal(load(address + page * FRAME + (412 + page) * BASE), 0);
	}
	end_background(address);
}

/* At most so many MB (10^6 bytes) a second, or less. */
static void test_background_rate(void **state)
{
	struct timespec before, after;
	double seconds;
	void *extent;
	char *address;

	start_background(PAGES, HP_POOL_COLLAPSE, "collapse_scan_ms=1 collapse_mb_per_s=50");
	extent = take_frames(PAGES);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	store_pages(address, 0, PAGES);
	clock_gettime(CLOCK_MONOTONIC, &before);
	give_frames(extent);
	assert_true(becomes_true(all_is_huge));
	clock_gettime(CLOCK_MONOTONIC, &after);
	seconds = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
	assert_true(seconds > (PAGES - 1) * (double)FRAME / 50e6);
	end_background(address);
}

/* Pages of a file that nobody has any more are not worth it: they are free soon, however slow the background is. */
static void test_background_lets_go(void **state)
{
	void *extent;
	char *address;

	start_background(PAGES, HP_POOL_COLLAPSE, "collapse_scan_ms=1 collapse_mb_per_s=2");
	extent = take_frames(PAGES);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	store_pages(address, 0, PAGES);
	give_frames(extent);
	for (unsigned i = 0; i < PATIENCE && !collapses().collapsed; i++)
		usleep(10000);
	unmap(address, PAGES);
	file_close(file);
	usleep(2500000); /* a page takes a second */
	assert_int_equal(pool_stats(pool).used, 0);
	file = file_make(pool, 1);
	end();
}

/* ---- late ------------------------------------------------------------------------------------------------------- */

/* Who has huge pages of the kernel first: they are free when it ends. */
static hp_segment hold_hugetlb(uint64_t frames, void **address)
{
	hp_segment segment;

	assert_int_equal(os->ops->segment_create(os, HP_BACKING_HUGETLB, frames * FRAME, &segment), 0);
	assert_int_equal(os->ops->reserve(os, frames * FRAME, FRAME, 0, address), 0);
	assert_int_equal(
		(real_ops ? real_ops : os->ops)->map(os, *address, frames * FRAME, RW, segment, 0, HP_OS_MAP_REPLACE),
		0);
	assert_int_equal(os->ops->populate(os, *address, frames * FRAME), 0);
	return segment;
}

static void let_go(hp_segment segment, void *address, uint64_t frames)
{
	assert_int_equal(os->ops->unmap(os, address, frames * FRAME), 0);
	assert_int_equal(os->ops->segment_destroy(os, segment), 0);
}

static bool has_all_frames(void)
{
	return pool_stats(pool).hugetlb == PAGES;
}

static void test_late(void **state)
{
	hp_segment held;
	void *holder;
	char *address, *early;

	expect_ok(sim_start(&(struct hp_sim_config){.hugetlb_bytes = PAGES * FRAME}));
	held = hold_hugetlb(PAGES - 3, &holder);
	pool = pool_with(PAGES, HP_POOL_LATE | HP_POOL_COLLAPSE, "collapse_scan_ms=1");
	for (unsigned i = 0; i < PATIENCE && pool_stats(pool).hugetlb < 3; i++)
		usleep(25000);
	assert_int_equal(pool_stats(pool).hugetlb, 3);
	assert_non_null(strstr(pool_stats(pool).why_not_better, "nr_hugepages"));
	assert_int_equal(hp_pool_wait(pool, 1000, &error), 0);
	early = take_frames(1);
	store(early, 4711);
	file = file_with(PAGES - 1, MOVABLE, (hp_tenant){0});
	address = map(file, 0, PAGES - 1, HP_MAP_LAZY);
	store_pages(address, 0, PAGES - 1);
	assert_int_equal(stat_now().base, (PAGES - 3) * FRAME);
	let_go(held, holder, PAGES - 3);
	assert_true(becomes_true(has_all_frames));
	assert_true(becomes_true(all_is_huge));
	assert_int_equal(load(early), 4711);
	expect_pages(address, 0, PAGES - 1);
	assert_string_equal(pool_stats(pool).why_not_better, "");
	unmap(address, PAGES - 1);
	give_frames(early);
	file_close(file);
	file = file_with(1, MOVABLE, (hp_tenant){0});
	end();
}

/* From nothing, for files that may not fall back: as soon as there are frames. And a pool that never gets them. */
static void test_late_from_nothing(void **state)
{
	hp_segment held;
	void *holder;
	char *address;

	expect_ok(sim_start(&(struct hp_sim_config){.hugetlb_bytes = PAGES * FRAME}));
	held = hold_hugetlb(PAGES, &holder);
	pool = pool_with(PAGES, HP_POOL_LATE | HP_POOL_COLLAPSE, "collapse_scan_ms=1");
	assert_int_equal(pool_stats(pool).hugetlb, 0);
	assert_int_equal(hp_pool_close(pool), 0);
	pool = pool_with(PAGES, HP_POOL_LATE | HP_POOL_COLLAPSE, "collapse_scan_ms=1");
	file = file_with(PAGES, 0, (hp_tenant){0});
	expect_error(map_try(file, 0, 1, 0, &address), -ENOMEM, HP_LIMIT_POOL, "");
	let_go(held, holder, PAGES);
	assert_true(becomes_true(has_all_frames));
	address = map(file, 0, PAGES, 0);
	store_pages(address, 0, PAGES);
	expect_pages(address, 0, PAGES);
	unmap(address, PAGES);
	end();
}

/*
 * Others are faster: the kernel has none any more when the pool comes to map them, and, as a failed mmap does, has
 * taken away what was mapped there. What the pool had is still there.
 */
static void test_late_and_refused(void **state)
{
	hp_segment held;
	void *holder;
	char *early;

	expect_ok(sim_start(&(struct hp_sim_config){.hugetlb_bytes = PAGES * FRAME}));
	hook();
	held = hold_hugetlb(PAGES - 3, &holder);
	pool = pool_with(PAGES, HP_POOL_LATE | HP_POOL_COLLAPSE, "collapse_scan_ms=1");
	for (unsigned i = 0; i < PATIENCE && pool_stats(pool).hugetlb < 3; i++)
		usleep(25000);
	early = take_frames(1);
	store(early, 4711);
	file = file_with(PAGES - 1, MOVABLE, (hp_tenant){0});
	atomic_store(&refused_maps, 100000);
	let_go(held, holder, PAGES - 3);
	while (atomic_load(&refused_maps) > 100000 - 20)
		usleep(1000);
	held = hold_hugetlb(PAGES - 3, &holder);
	usleep(50000);
	atomic_store(&refused_maps, 0);
	assert_int_equal(load(early), 4711);
	assert_int_equal(pool_stats(pool).hugetlb, 3);
	let_go(held, holder, PAGES - 3);
	assert_true(becomes_true(has_all_frames));
	assert_int_equal(load(early), 4711);
	give_frames(early);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_promises),
		cmocka_unit_test(test_promises_dropped),
		cmocka_unit_test(test_allocate_and_ready),
		cmocka_unit_test(test_others_are_refused),
		cmocka_unit_test(test_places_run_out),
		cmocka_unit_test(test_tenant),
		cmocka_unit_test(test_minimum_is_there_for_a_collapse),
		cmocka_unit_test(test_workers_hear_of_a_cut),
		cmocka_unit_test(test_workers_hear_of_a_split),
		cmocka_unit_test(test_ready_across_segments),
		cmocka_unit_test(test_lazy_across_segments),
		cmocka_unit_test(test_movable_across_segments),
		cmocka_unit_test(test_a_page_of_a_run),
		cmocka_unit_test(test_split_of_a_page_of_a_run),
		cmocka_unit_test(test_a_run_that_cannot_be_divided),
		cmocka_unit_test(test_dirty_frames),
		cmocka_unit_test(test_several_mappings),
		cmocka_unit_test(test_unmapped_pages),
		cmocka_unit_test(test_punched_and_stored),
		cmocka_unit_test(test_punched_in_parts),
		cmocka_unit_test(test_punch_brings_no_memory),
		cmocka_unit_test(test_limits_that_are_told),
		cmocka_unit_test(test_pins),
		cmocka_unit_test(test_failed_replacement),
		cmocka_unit_test(test_switch_that_fails),
		cmocka_unit_test(test_frame_that_is_being_zeroed),
		cmocka_unit_test(test_relock_gives_up),
		cmocka_unit_test(test_relock_goes_on),
		cmocka_unit_test(test_beside_a_copy),
		cmocka_unit_test(test_many_threads),
		cmocka_unit_test(test_background),
		cmocka_unit_test(test_background_leaves_alone),
		cmocka_unit_test(test_background_rate),
		cmocka_unit_test(test_background_lets_go),
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_late_from_nothing),
		cmocka_unit_test(test_late_and_refused),
	};

	cmocka_set_test_filter(getenv("HP_TEST_ONLY"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
