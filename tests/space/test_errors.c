/* SPDX-License-Identifier: MIT */
/* What cannot be done is refused with the right code, the limit that was hit, and words that say what to do. */
#include "support/pool.h"

static const hp_pool_options small = {
	.struct_size = sizeof(small), .size = 20 * FRAME, .backing = HP_BACKING_HUGETLB, .workers = HP_WORKERS_NONE};

static int setup_budgets(void **state)
{
	return sim_start(&(struct hp_sim_config){
		.hugetlb_bytes = 32 * FRAME, .cgroup_bytes = 16 * FRAME, .memory_bytes = 16 * FRAME, .no_thp = true});
}

static int setup_kernel_pool(void **state)
{
	return sim_start(&(struct hp_sim_config){.hugetlb_bytes = 16 * FRAME, .memory_bytes = 2 * FRAME});
}

static int setup_few_maps(void **state)
{
	return sim_start(
		&(struct hp_sim_config){.hugetlb_bytes = 1024 * FRAME, .max_map_count = 40}); /* a budget of 32 */
}

static int setup_few_addresses(void **state)
{
	return sim_start(&(struct hp_sim_config){.hugetlb_bytes = 1024 * FRAME, .address_bytes = 2568 * FRAME});
}

static void expect_no_pool(hp_pool_options options, int code, hp_limit limit, const char *words)
{
	hp_pool pool = {7};

	expect_error(pool_try(&options, &pool), code, limit, words);
	assert_int_equal(pool.id, 7);
	assert_int_equal(hp_maps_taken(os), 0);
}

/* A small pool and one file in it, as most tests want them. */
struct made {
	hp_pool pool;
	hp_file file;
};

static struct made make(uint64_t frames, uint64_t file_frames)
{
	struct made made = {.pool = pool_make(frames, HP_WORKERS_NONE, NULL)};

	made.file = file_make(made.pool, file_frames);
	return made;
}

static void unmake(struct made made)
{
	file_close(made.file);
	assert_int_equal(pool_stats(made.pool).reserved, 0);
	pool_end(made.pool);
}

/* ---- creating pools --------------------------------------------------------------------------------------------- */

static void test_kernel_pool_too_small(void **state)
{
	hp_pool_options options = small;
	hp_pool pool;

	expect_no_pool(options, -ENOMEM, HP_LIMIT_KERNEL_POOL,
	               "the kernel has 16 of 20 huge pages free; add 4 to /proc/sys/vm/nr_hugepages");
	options.backing = HP_BACKING_AUTO;
	expect_no_pool(options, -ENOMEM, HP_LIMIT_MEMORY, "memory is 8 MiB short");
	/* With as much as there is it works, and the pool says why it is not better. */
	options.size = 18 * FRAME;
	expect_ok(pool_try(&options, &pool));
	assert_int_equal(pool_stats(pool).hugetlb, 16);
	assert_int_equal(pool_stats(pool).thp, 2);
	assert_non_null(strstr(pool_stats(pool).why_not_better, "add 2 to /proc/sys/vm/nr_hugepages"));
	pool_end(pool);
}

static void test_cgroup_too_small(void **state)
{
	expect_no_pool(small, -ENOSPC, HP_LIMIT_CGROUP, "hugetlb limit leaves 16 of 20 huge pages");
}

static void test_memory_too_small(void **state)
{
	hp_pool_options options = small;

	options.backing = HP_BACKING_BASE;
	expect_no_pool(options, -ENOMEM, HP_LIMIT_MEMORY, "memory is 8 MiB short");
}

static void test_no_thp(void **state)
{
	hp_pool_options options = small;
	hp_pool pool;

	options.backing = HP_BACKING_THP;
	expect_no_pool(options, -ENOTSUP, HP_LIMIT_NONE, "shmem_enabled");
	options.backing = HP_BACKING_AUTO;
	expect_ok(pool_try(&options, &pool)); /* base pages will do */
	assert_int_equal(pool_stats(pool).base, 4);
	pool_end(pool);
}

static void test_background_fill_fails(void **state)
{
	hp_pool_options options = small;
	hp_pool pool;

	options.flags = HP_POOL_BACKGROUND;
	expect_ok(pool_try(&options, &pool));
	expect_error(hp_pool_wait(pool, -1, &error), -ENOMEM, HP_LIMIT_KERNEL_POOL, "nr_hugepages");
	pool_end(pool);
}

static void test_no_addresses(void **state)
{
	hp_pool_options options = small;
	hp_pool pool;
	hp_file file;
	char *address;

	options.max_size = 2048 * FRAME;
	expect_no_pool(options, -ENOMEM, HP_LIMIT_ADDRESS, "smaller max_size");
	/* The pool takes four of five GiB: two for frames, two for base pages. A mapping that is refused leaves no promise behind. */
	options.max_size = 0;
	options.size = 700 * FRAME;
	expect_ok(pool_try(&options, &pool));
	file = file_make(pool, 700);
	expect_error(map_try(file, 0, 600, HP_MAP_LAZY, &address), -ENOMEM, HP_LIMIT_ADDRESS, "no free range");
	assert_int_equal(pool_stats(pool).reserved, 0);
	expect_error(map_try(file, 0, 600, 0, &address), -ENOMEM, HP_LIMIT_ADDRESS, "no free range");
	address = map(file, 0, 400, HP_MAP_LAZY);
	store(address, 1);
	unmap(address, 400);
	file_close(file);
	pool_end(pool);
}

static void test_no_kernel_mappings_for_a_pool(void **state)
{
	hp_pool_options options = small;

	options.max_size = 30 * HP_REGION_SIZE;
	expect_ok(hp_maps_take(os, 5));
	expect_error(pool_try(&options, &(hp_pool){0}), -ENOMEM, HP_LIMIT_MAP_COUNT, "vm.max_map_count");
	hp_maps_give(os, 5);
	assert_int_equal(hp_maps_taken(os), 0);
}

static void test_options(void **state)
{
	hp_pool_options options = small;

	expect_error(pool_try(NULL, &(hp_pool){0}), -EINVAL, HP_LIMIT_NONE, "struct_size");
	options.struct_size = sizeof(options) - 8;
	expect_no_pool(options, -EINVAL, HP_LIMIT_NONE, "struct_size");
	options = small;
	options.flags = 0x80;
	expect_no_pool(options, -EINVAL, HP_LIMIT_NONE, "unknown flags 0x80");
	options = small;
	options.backing = 77;
	expect_no_pool(options, -EINVAL, HP_LIMIT_NONE, "unknown backing 77");
	options = small;
	options.size = 0;
	expect_no_pool(options, -EINVAL, HP_LIMIT_NONE, "size is 0");
	options = small;
	options.max_size = options.size - 1;
	expect_no_pool(options, -EINVAL, HP_LIMIT_NONE, "less than size");
	for (uint64_t less = 0; less < 3 * FRAME; less += FRAME - 1) {
		options = small;
		options.size = UINT64_MAX - less;
		expect_no_pool(options, -EINVAL, HP_LIMIT_NONE, "2 PiB");
		options.size = FRAME;
		options.max_size = UINT64_MAX - less;
		expect_no_pool(options, -EINVAL, HP_LIMIT_NONE, "2 PiB");
	}
	options = small;
	options.size = (uint64_t)64 << 40;
	expect_no_pool(options, -ENOMEM, HP_LIMIT_ADDRESS, "bytes of addresses");
}

static void test_tuning(void **state)
{
	static const char *const bad[][2] = {
		{"fault_window", "unknown word"},
		{"fault_window=", "fault_window takes a power of two from 1 to 512"},
		{"fault_window=0", "fault_window takes"},
		{"fault_window=3", "fault_window takes"},
		{"fault_window=1024", "fault_window takes"},
		{"fault_window=16x", "fault_window takes"},
		{"fault_window=-16", "fault_window takes"},
		{"fault_window=4294967312", "fault_window takes"},
		{"fault_window=18446744073709551616", "fault_window takes"},
		{"fault_window= 16", "fault_window takes"},
		{"fault_mutexes=3", "fault_mutexes takes"},
		{"fault_mutexes=8192", "fault_mutexes takes"},
		{"fault_mutexes=0", "HP_POOL_UNSAFE"},
		{"zero_mb_per_s=4294967296", "zero_mb_per_s takes a number"},
		{"zero_mb_per_s=fast", "zero_mb_per_s takes a number"},
		{"fault_window=16 fault_windows=16", "unknown word at \"fault_windows=16\""},
		{"speed=1", "known are fault_window"},
	};
	static const char *const good[] = {"", "  ", "fault_window=512  fault_mutexes=4096 zero_mb_per_s=0 ",
	                                   "fault_mutexes=1"};
	hp_pool_options options = small;
	hp_pool pool;

	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		options.tuning = bad[i][0];
		expect_no_pool(options, -EINVAL, HP_LIMIT_NONE, bad[i][1]);
	}
	for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		pool_end(pool_make(1, HP_WORKERS_NONE, good[i]));
	options.tuning = "fault_mutexes=0";
	options.flags = HP_POOL_UNSAFE;
	expect_ok(pool_try(&options, &pool));
	pool_end(pool);
}

static void test_too_many_pools(void **state)
{
	hp_pool_options options = small;
	hp_pool pools[HP_POOLS_MAX], more = {0};

	options.size = FRAME;
	for (unsigned i = 0; i < HP_POOLS_MAX; i++)
		expect_ok(pool_try(&options, &pools[i]));
	expect_error(pool_try(&options, &more), -EMFILE, HP_LIMIT_TABLE, "16 pools already");
	pool_end(pools[5]);
	expect_ok(pool_try(&options, &pools[5]));
	for (unsigned i = 0; i < HP_POOLS_MAX; i++)
		pool_end(pools[i]);
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

static void expect_bad_pool(hp_pool pool)
{
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	void *address;

	expect_error(hp_file_create(pool, FRAME, 0, &(hp_file){0}, &error), -EBADF, HP_LIMIT_NONE, "closed");
	expect_error(hp_alloc(pool, FRAME, &address, &error), -EBADF, HP_LIMIT_NONE, "closed");
	expect_error(hp_pool_wait(pool, 0, &error), -EBADF, HP_LIMIT_NONE, "closed");
	expect_error(hp_pool_check(pool, &error), -EBADF, HP_LIMIT_NONE, "closed");
	assert_int_equal(hp_pool_stats_get(pool, &stats), -EBADF);
	assert_int_equal(hp_free(pool, NULL), -EBADF);
	assert_int_equal(hp_pool_close(pool), -EBADF);
}

static void expect_bad_file(hp_file file)
{
	hp_file_stat stat = {.struct_size = sizeof(stat)};
	char *address;

	expect_error(hp_file_allocate(file, 0, FRAME, &error), -EBADF, HP_LIMIT_NONE, "closed");
	expect_error(map_try(file, 0, 1, 0, &address), -EBADF, HP_LIMIT_NONE, "closed");
	assert_int_equal(hp_file_stat_get(file, &stat), -EBADF);
	assert_int_equal(hp_file_close(file), -EBADF);
}

static void test_handles_that_never_were(void **state)
{
	static const uint64_t ids[] = {
		0, 1, 2, 17, 255, 0x100, 0x101, 0x1000001, 0x100000101, UINT64_MAX, UINT64_MAX << 8};
	struct made made = make(4, 4);

	for (unsigned i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		if (ids[i] != made.pool.id)
			expect_bad_pool((hp_pool){ids[i]});
		if (ids[i] != made.file.id)
			expect_bad_file((hp_file){ids[i]});
	}
	expect_bad_pool((hp_pool){made.file.id});
	unmake(made);
}

static void test_closed_handles(void **state)
{
	struct made old = make(4, 4), made;
	hp_file file;

	/* The same record is used again by another file. */
	file_close(old.file);
	expect_bad_file(old.file);
	file = file_make(old.pool, 4);
	assert_int_equal(file.id & 0xffffffff, old.file.id & 0xffffffff);
	expect_bad_file(old.file);
	file_close(file);

	/* The same index is used again by another pool. */
	pool_end(old.pool);
	expect_bad_pool(old.pool);
	expect_bad_file(file);
	made = make(4, 4);
	assert_int_equal(made.pool.id & 0xff, old.pool.id & 0xff);
	expect_bad_pool(old.pool);
	expect_bad_file(old.file);
	expect_bad_file(file);
	unmake(made);
}

static void test_close_while_in_use(void **state)
{
	struct made made = make(8, 4);
	char *address = map(made.file, 0, 2, HP_MAP_LAZY);
	void *extent;

	assert_int_equal(hp_pool_close(made.pool), -EBUSY);
	store(address, 5);
	file_close(made.file);
	assert_int_equal(hp_pool_close(made.pool), -EBUSY);
	/* Nothing has happened: the mapping works on. */
	assert_int_equal(load(address), 5);
	store(address + FRAME, 6);
	unmap(address, 2);
	expect_ok(hp_alloc(made.pool, FRAME, &extent, &error));
	pool_end(made.pool); /* extents stay with the pool and are no obstacle */
}

static void test_struct_sizes(void **state)
{
	struct made made = make(4, 4);
	hp_pool_stats stats = {.struct_size = sizeof(stats) - 1};
	hp_file_stat stat = {.struct_size = sizeof(stat) - 1};

	assert_int_equal(hp_pool_stats_get(made.pool, &stats), -EINVAL);
	assert_int_equal(hp_file_stat_get(made.file, &stat), -EINVAL);
	assert_int_equal(stats.frames, 0);
	assert_int_equal(stat.size, 0);
	unmake(made);
}

/* ---- arguments -------------------------------------------------------------------------------------------------- */

static void expect_bad_range(hp_file file, uint64_t offset, uint64_t length, const char *words)
{
	void *address = NULL;

	expect_error(hp_file_allocate(file, offset, length, &error), -EINVAL, HP_LIMIT_NONE, words);
	expect_error(hp_map(file, offset, length, RW, 0, &address, &error), -EINVAL, HP_LIMIT_NONE, words);
	expect_error(hp_map(file, offset, length, RW, HP_MAP_LAZY, &address, &error), -EINVAL, HP_LIMIT_NONE, words);
	assert_null(address);
}

static void test_ranges(void **state)
{
	struct made made = make(8, 4);
	uint64_t top = UINT64_MAX - FRAME + 1;

	expect_bad_range(made.file, 1, FRAME, "offset 1 and length 2097152 must be multiples of 2 MiB");
	expect_bad_range(made.file, 0, FRAME - 1, "multiples of 2 MiB");
	expect_bad_range(made.file, 4096, 4096, "multiples of 2 MiB");
	expect_bad_range(made.file, UINT64_MAX, FRAME, "multiples of 2 MiB");
	expect_bad_range(made.file, 0, UINT64_MAX, "multiples of 2 MiB");
	expect_bad_range(made.file, 0, 0, "length is 0");
	expect_bad_range(made.file, 4 * FRAME, FRAME, "beyond the file's 8388608 bytes");
	expect_bad_range(made.file, 3 * FRAME, 2 * FRAME, "beyond");
	expect_bad_range(made.file, 0, 5 * FRAME, "beyond");
	expect_bad_range(made.file, top, FRAME, "beyond");
	expect_bad_range(made.file, FRAME, top, "beyond");
	expect_bad_range(made.file, top, top, "beyond");
	expect_bad_range(made.file, 2 * FRAME, (uint64_t)UINT32_MAX * FRAME, "beyond");
	expect_bad_range(made.file, ((uint64_t)1 << 32) * FRAME, FRAME, "beyond");
	unmake(made);
}

static void test_flags(void **state)
{
	struct made made = make(8, 4);
	hp_file file;
	void *address;

	expect_error(hp_file_create(made.pool, FRAME, 16, &file, &error), -EINVAL, HP_LIMIT_NONE, "unknown flags 0x10");
	expect_error(hp_map(made.file, 0, FRAME, RW, 1u << 31, &address, &error), -EINVAL, HP_LIMIT_NONE,
	             "unknown flags 0x80000000");
	address = NULL;
	expect_error(hp_map(made.file, 0, FRAME, RW, HP_MAP_WISH | HP_MAP_AT, &address, &error), -EINVAL, HP_LIMIT_NONE,
	             "exclude each other");
	expect_error(hp_map(made.file, 0, FRAME, RW, HP_MAP_AT, &address, &error), -EINVAL, HP_LIMIT_NONE,
	             "multiple of 2 MiB");
	address = (void *)(FRAME + 4096);
	expect_error(hp_map(made.file, 0, FRAME, RW, HP_MAP_REPLACE, &address, &error), -EINVAL, HP_LIMIT_NONE,
	             "multiple of 2 MiB");
	expect_error(hp_map(made.file, 0, FRAME, 4, 0, &address, &error), -EINVAL, HP_LIMIT_NONE, "prot");
	expect_error(hp_map(made.file, 0, FRAME, 0, 0, &address, &error), -EINVAL, HP_LIMIT_NONE, "prot");
	expect_error(hp_map(made.file, 0, FRAME, HP_PROT_WRITE, 0, &address, &error), -EINVAL, HP_LIMIT_NONE, "prot");
	unmake(made);
}

static void test_file_sizes(void **state)
{
	struct made made = make(8, 4);
	uint64_t most = HP_PAGES_MAX - HP_REGION_FRAMES;
	hp_file file;

	expect_error(hp_file_create(made.pool, 0, 0, &file, &error), -EINVAL, HP_LIMIT_NONE, "size is 0");
	expect_error(hp_file_create(made.pool, UINT64_MAX, 0, &file, &error), -EFBIG, HP_LIMIT_TABLE, "any pool");
	expect_error(hp_file_create(made.pool, UINT64_MAX - FRAME, 0, &file, &error), -EFBIG, HP_LIMIT_TABLE,
	             "any pool");
	expect_error(hp_file_create(made.pool, (most + 1) * FRAME, 0, &file, &error), -EFBIG, HP_LIMIT_TABLE,
	             "any pool");
	expect_error(hp_file_create(made.pool, most * FRAME, 0, &file, &error), -EFBIG, HP_LIMIT_TABLE,
	             "larger max_size");
	expect_ok(hp_file_create(made.pool, 1, 0, &file, &error)); /* rounded up */
	file_close(file);
	unmake(made);
}

static void test_too_many_files(void **state)
{
	static hp_file files[HP_FILES_MAX];
	hp_pool pool = pool_make(4, HP_WORKERS_NONE, NULL);

	for (unsigned i = 1; i < HP_FILES_MAX; i++)
		files[i] = file_make(pool, 4);
	expect_error(hp_file_create(pool, FRAME, 0, &files[0], &error), -ENFILE, HP_LIMIT_TABLE, "4095 files already");
	file_close(files[77]);
	files[77] = file_make(pool, 4);
	for (unsigned i = 1; i < HP_FILES_MAX; i++)
		file_close(files[i]);
	pool_end(pool);
}

/* ---- pools that run out ----------------------------------------------------------------------------------------- */

static void test_pool_runs_out(void **state)
{
	struct made made = make(8, 16);
	void *extent;
	char *address;

	expect_error(hp_alloc(made.pool, 9 * FRAME, &extent, &error), -ENOMEM, HP_LIMIT_POOL,
	             "9 frames of 2 MiB are needed");
	expect_error(hp_alloc(made.pool, UINT64_MAX, &extent, &error), -ENOMEM, HP_LIMIT_POOL,
	             "8 of the pool's are free");
	expect_error(hp_alloc(made.pool, 0, &extent, &error), -EINVAL, HP_LIMIT_NONE, "size is 0");
	expect_error(hp_file_allocate(made.file, 0, 9 * FRAME, &error), -ENOMEM, HP_LIMIT_POOL, "9 frames");
	expect_error(map_try(made.file, 0, 9, 0, &address), -ENOMEM, HP_LIMIT_POOL, "9 frames");
	expect_error(map_try(made.file, 7, 9, HP_MAP_LAZY, &address), -ENOMEM, HP_LIMIT_POOL, "9 frames");
	assert_int_equal(pool_stats(made.pool).zeroed, 8);
	assert_int_equal(pool_stats(made.pool).reserved, 0);

	/* Only what is missing counts. */
	expect_ok(hp_file_allocate(made.file, 2 * FRAME, 4 * FRAME, &error));
	expect_error(map_try(made.file, 0, 11, 0, &address), -ENOMEM, HP_LIMIT_POOL,
	             "7 frames of 2 MiB are needed and 4 of");
	address = map(made.file, 0, 8, 0);
	expect_error(hp_alloc(made.pool, 1, &extent, &error), -ENOMEM, HP_LIMIT_POOL, "0 of the pool's are free");
	unmap(address, 8);
	unmake(made);
}

static void test_no_frames_in_a_row(void **state)
{
	hp_pool pool = pool_make(6, HP_WORKERS_NONE, NULL);
	void *extent[6], *large;

	for (unsigned i = 0; i < 6; i++)
		expect_ok(hp_alloc(pool, FRAME, &extent[i], &error));
	for (unsigned i = 0; i < 6; i += 2)
		assert_int_equal(hp_free(pool, extent[i]), 0);
	expect_error(hp_alloc(pool, 2 * FRAME, &large, &error), -ENOMEM, HP_LIMIT_POOL, "no 2 of them in a row");
	assert_int_equal(hp_free(pool, extent[3]), 0);
	expect_ok(hp_alloc(pool, 3 * FRAME, &large, &error));
	pool_end(pool);
}

/* What was reserved can be touched, whoever takes all the rest. */
static void test_reserved_is_kept(void **state)
{
	struct made made = make(40, 64);
	char *address = map(made.file, 10, 20, HP_MAP_LAZY);
	void *extent;

	assert_int_equal(pool_stats(made.pool).reserved, 20);
	for (unsigned i = 0; i < 20; i++)
		expect_ok(hp_alloc(made.pool, FRAME, &extent, &error));
	expect_error(hp_alloc(made.pool, FRAME, &extent, &error), -ENOMEM, HP_LIMIT_POOL, "1 frames");
	expect_error(hp_file_allocate(made.file, 0, FRAME, &error), -ENOMEM, HP_LIMIT_POOL, "1 frames");
	for (unsigned i = 20; i-- > 0;)
		store(address + i * FRAME, i + 1);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(load(address + i * FRAME), i + 1);
	assert_int_equal(pool_stats(made.pool).used, 40);
	unmap(address, 20);
	unmake(made);
}

/* Workers zero again when a promise that kept them from it is given up. */
static void test_workers_go_on(void **state)
{
	hp_pool pool = pool_make(4, 1, NULL);
	hp_file file = file_make(pool, 4);
	void *extent[4];
	char *address;

	for (unsigned round = 0; round < 20; round++) {
		for (unsigned i = 0; i < 4; i++)
			expect_ok(hp_alloc(pool, FRAME, &extent[i], &error));
		for (unsigned i = 0; i < 4; i++)
			assert_int_equal(hp_free(pool, extent[i]), 0);
		address = map(file, 0, 4, HP_MAP_LAZY);
		unmap(address, 4);
		file_close(file);
		expect_ok(hp_pool_wait(pool, 10000, &error));
		assert_int_equal(pool_stats(pool).zeroed, 4);
		file = file_make(pool, 4);
	}
	file_close(file);
	pool_end(pool);
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

static void test_foreign_faults(void **state)
{
	struct made made = make(16, 16);
	char *lazy = map(made.file, 0, 4, HP_MAP_LAZY), *ready = map(made.file, 4, 4, 0),
	     *gone = map(made.file, 0, 8, HP_MAP_LAZY);
	void *extent;

	expect_ok(hp_alloc(made.pool, FRAME, &extent, &error));
	unmap(gone, 8);
	assert_int_equal(fault(NULL, false), HP_FAULT_FOREIGN);
	assert_int_equal(fault((char *)&made, true), HP_FAULT_FOREIGN);
	assert_int_equal(fault((char *)UINTPTR_MAX, true), HP_FAULT_FOREIGN);
	assert_int_equal(fault(gone, false), HP_FAULT_FOREIGN);
	assert_int_equal(fault(lazy - 1, false), HP_FAULT_FOREIGN);
	/* Not the engine's; but it may have come in the place of lazy memory a moment ago. */
	for (unsigned repeated = 0; fault(ready, true) == HP_FAULT_RESOLVED; repeated++)
		assert_true(repeated < 8);
	assert_int_equal(fault(extent, true), HP_FAULT_FOREIGN);
	assert_int_equal(fault(lazy, false), HP_FAULT_RESOLVED);
	assert_int_equal(fault(lazy + 4 * FRAME - 1, false), HP_FAULT_RESOLVED);
	unmap(lazy, 4);
	assert_int_equal(fault(lazy, false), HP_FAULT_FOREIGN);
	unmap(ready, 4);
	unmake(made);
}

static void test_read_only(void **state)
{
	struct made made = make(8, 4);
	void *address;

	expect_ok(hp_map(made.file, 0, 4 * FRAME, HP_PROT_READ, HP_MAP_LAZY, &address, &error));
	assert_int_equal(fault(address, true), HP_FAULT_FOREIGN);
	assert_int_equal(load(address), 0);
	assert_int_equal(fault(address, true), HP_FAULT_FOREIGN);
	assert_int_equal(touch_store(address, 1), -EFAULT);
	assert_int_equal(load((char *)address + FRAME), 0);
	unmap(address, 4);
	unmake(made);
}

/* A page that faults again and again although it is mapped was taken away by somebody else. */
static void test_protected_by_others(void **state)
{
	struct made made = make(8, 4);
	char *address = map(made.file, 0, 4, HP_MAP_LAZY);
	unsigned resolved = 0;

	store(address, 1);
	expect_ok(os->ops->vacate(os, address, FRAME));
	while (fault(address, false) == HP_FAULT_RESOLVED)
		assert_true(++resolved < 100);
	unmap(address, 4);
	unmake(made);
}

/* ---- kernel mappings -------------------------------------------------------------------------------------------- */

static void test_no_kernel_mappings_left(void **state)
{
	struct made made = make(64, 64);
	uint64_t before = hp_maps_taken(os);
	char *lazy, *ready, *refused;

	assert_int_equal(pool_stats(made.pool).kernel_maps_max, 32);
	assert_int_equal(pool_stats(made.pool).kernel_maps, before);
	expect_error(map_try(made.file, 0, 32, HP_MAP_LAZY, &refused), -ENOMEM, HP_LIMIT_MAP_COUNT, "vm.max_map_count");
	assert_int_equal(hp_maps_taken(os), before);
	assert_int_equal(pool_stats(made.pool).reserved, 0);
	lazy = map(made.file, 0, 20, HP_MAP_LAZY);
	expect_error(map_try(made.file, 0, 20, HP_MAP_LAZY, &refused), -ENOMEM, HP_LIMIT_MAP_COUNT,
	             "the mapping may need 21 kernel mappings, and hugepool uses 25 of at most 32");
	/* One run of frames is one kernel mapping, however long. */
	ready = map(made.file, 32, 32, 0);
	assert_int_equal(hp_maps_taken(os), before + 21 + 1);
	/* The worst order of touches does not need more than was set aside. */
	for (unsigned i = 0; i < 20; i += 2)
		store(lazy + i * FRAME, i + 1);
	for (unsigned i = 1; i < 20; i += 2)
		store(lazy + i * FRAME, i + 1);
	assert_true(hp_sim_map_count(os) <= hp_maps_taken(os));
	unmap(lazy, 20);
	unmap(ready, 32);
	assert_int_equal(hp_maps_taken(os), before);
	lazy = map(made.file, 0, 20, HP_MAP_LAZY);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(load(lazy + i * FRAME), i + 1);
	unmap(lazy, 20);
	unmake(made);
}

/* ---- wrong addresses -------------------------------------------------------------------------------------------- */

static void test_wrong_unmap(void **state)
{
	struct made made = make(8, 4);
	char *address = map(made.file, 0, 4, HP_MAP_LAZY);
	uint64_t before = hp_maps_taken(os);

	store(address, 3);
	store(address + 3 * FRAME, 4);
	assert_int_equal(hp_unmap(NULL, FRAME), -EINVAL);
	assert_int_equal(hp_unmap(address, 0), -EINVAL);
	assert_int_equal(hp_unmap(address, 5 * FRAME), -EINVAL);
	assert_int_equal(hp_unmap(address + FRAME, 4 * FRAME), -EINVAL);
	assert_int_equal(hp_unmap(address + 1, 4 * FRAME), -EINVAL);
	assert_int_equal(hp_unmap(address, FRAME + 1), -EINVAL);
	assert_int_equal(hp_unmap(address - FRAME, 4 * FRAME), -EINVAL);
	assert_int_equal(hp_unmap(address, UINT64_MAX - FRAME + 1), -EINVAL);
	assert_int_equal(hp_maps_taken(os), before);
	assert_int_equal(pool_stats(made.pool).mappings, 1);
	/* A part goes, and what is around a gap is not one range. */
	unmap(address + FRAME, 2);
	assert_int_equal(pool_stats(made.pool).mappings, 2);
	assert_int_equal(hp_unmap(address, 4 * FRAME), -EINVAL);
	assert_int_equal(hp_unmap(address, 2 * FRAME), -EINVAL);
	assert_int_equal(hp_unmap(address + FRAME, FRAME), -EINVAL);
	assert_int_equal(hp_protect(address, 4 * FRAME, HP_PROT_READ), -EINVAL);
	assert_int_equal(load(address), 3);
	assert_int_equal(load(address + 3 * FRAME), 4);
	unmap(address, 1);
	unmap(address + 3 * FRAME, 1);
	assert_int_equal(hp_unmap(address, 4 * FRAME), -EINVAL);
	unmake(made);
}

static void test_wrong_protect(void **state)
{
	struct made made = make(8, 4);
	char *address = map(made.file, 0, 4, HP_MAP_LAZY);

	store(address, 3);
	assert_int_equal(hp_protect(NULL, FRAME, RW), -EINVAL);
	assert_int_equal(hp_protect(address, 0, RW), -EINVAL);
	assert_int_equal(hp_protect(address + 1, FRAME, RW), -EINVAL);
	assert_int_equal(hp_protect(address, FRAME + 1, RW), -EINVAL);
	assert_int_equal(hp_protect(address, 5 * FRAME, HP_PROT_READ), -EINVAL);
	assert_int_equal(hp_protect(address - FRAME, 2 * FRAME, HP_PROT_READ), -EINVAL);
	assert_int_equal(hp_protect(address, FRAME, HP_PROT_WRITE), -EINVAL);
	assert_int_equal(hp_protect(address, FRAME, 4), -EINVAL);
	assert_int_equal(hp_protect(address, UINT64_MAX - FRAME + 1, RW), -EINVAL);
	assert_int_equal(pool_stats(made.pool).mappings, 1);
	store(address, 4);
	unmap(address, 4);
	assert_int_equal(hp_protect(address, 4 * FRAME, RW), -EINVAL);
	unmake(made);
}

static void test_wrong_populate(void **state)
{
	struct made made = make(16, 8);
	char *address = map(made.file, 0, 4, HP_MAP_LAZY), *ready = map(made.file, 4, 4, 0);

	assert_int_equal(hp_populate(address, 0), -EINVAL);
	assert_int_equal(hp_populate(address + 1, FRAME), -EINVAL);
	assert_int_equal(hp_populate(address, FRAME + 1), -EINVAL);
	assert_int_equal(hp_populate(address, 5 * FRAME), -EINVAL);
	assert_int_equal(hp_populate(address + FRAME, UINT64_MAX - FRAME + 1), -EINVAL);
	assert_int_equal(hp_populate(NULL, FRAME), -EINVAL);
	assert_int_equal(hp_populate(ready, 4 * FRAME), 0);
	assert_int_equal(hp_populate(ready, 5 * FRAME), -EINVAL);
	unmap(address, 4);
	unmap(ready, 4);
	unmake(made);
}

static void test_wrong_free(void **state)
{
	struct made made = make(16, 8);
	hp_pool other = pool_make(4, HP_WORKERS_NONE, NULL);
	char *address = map(made.file, 0, 4, 0);
	void *extent;

	expect_ok(hp_alloc(made.pool, 3 * FRAME, &extent, &error));
	assert_int_equal(hp_free(made.pool, NULL), -EINVAL);
	assert_int_equal(hp_free(made.pool, address), -EINVAL);
	assert_int_equal(hp_free(made.pool, (char *)extent + 1), -EINVAL);
	assert_int_equal(hp_free(made.pool, (char *)extent + FRAME), -EINVAL);
	assert_int_equal(hp_free(made.pool, (char *)extent + 3 * FRAME), -EINVAL);
	assert_int_equal(hp_free(made.pool, (char *)extent + HP_REGION_SIZE), -EINVAL);
	assert_int_equal(hp_free(other, extent), -EINVAL);
	assert_int_equal(hp_free(made.pool, extent), 0);
	assert_int_equal(hp_free(made.pool, extent), -EINVAL);
	unmap(address, 4);
	pool_end(other);
	unmake(made);
}

#define WITH(setup, test) cmocka_unit_test_setup_teardown(test, setup, sim_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(setup_kernel_pool, test_kernel_pool_too_small),
		WITH(setup_budgets, test_cgroup_too_small),
		WITH(setup_budgets, test_memory_too_small),
		WITH(setup_budgets, test_no_thp),
		WITH(setup_kernel_pool, test_background_fill_fails),
		WITH(setup_few_addresses, test_no_addresses),
		WITH(setup_few_maps, test_no_kernel_mappings_for_a_pool),
		WITH(sim_setup, test_options),
		WITH(sim_setup, test_tuning),
		WITH(sim_setup, test_too_many_pools),
		WITH(sim_setup, test_handles_that_never_were),
		WITH(sim_setup, test_closed_handles),
		WITH(sim_setup, test_close_while_in_use),
		WITH(sim_setup, test_struct_sizes),
		WITH(sim_setup, test_ranges),
		WITH(sim_setup, test_flags),
		WITH(sim_setup, test_file_sizes),
		WITH(sim_setup, test_too_many_files),
		WITH(sim_setup, test_pool_runs_out),
		WITH(sim_setup, test_no_frames_in_a_row),
		WITH(sim_setup, test_reserved_is_kept),
		WITH(sim_setup, test_workers_go_on),
		WITH(sim_setup, test_foreign_faults),
		WITH(sim_setup, test_read_only),
		WITH(sim_setup, test_protected_by_others),
		WITH(setup_few_maps, test_no_kernel_mappings_left),
		WITH(sim_setup, test_wrong_unmap),
		WITH(sim_setup, test_wrong_protect),
		WITH(sim_setup, test_wrong_populate),
		WITH(sim_setup, test_wrong_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
