/* SPDX-License-Identifier: MIT */
/* Pools of the kernel's huge pages of 1 GiB. */
#include "real.h"

static hp_file file;

static void start(void)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	int result;

	options.size = GIB + 1; /* rounded up */
	options.backing = HP_BACKING_HUGETLB_1G;
	result = hp_pool_create(&options, &pool, &error);
	if (result == -ENOMEM || result == -ENOTSUP) {
		EXPECT(error.message[0]);
		skip_test("the kernel has no two free huge pages of 1 GiB");
	}
	EXPECT_OK(result);
	EXPECT_EQ(stats_now().frames, 1024);
	EXPECT_EQ(stats_now().page_size, GIB);
	EXPECT_OK(hp_file_create(pool, GIB + FRAME, 0, &file, &error));
	EXPECT_EQ(file_stat(file).size, 2 * GIB);
}

static void end(void)
{
	close_file(file);
	end_pool();
}

static void expect_frames(uint64_t used, uint64_t holes, uint64_t reserved)
{
	hp_pool_stats stats = stats_now();

	EXPECT_EQ(stats.used, used);
	EXPECT_EQ(stats.holes, holes);
	EXPECT_EQ(stats.reserved, reserved);
	check_pool();
}

static char *map_gib(uint64_t first, uint64_t gibs, unsigned flags)
{
	void *address;

	EXPECT_OK(hp_map(file, first * GIB, gibs * GIB, RW, flags, &address, &error));
	EXPECT_EQ((uintptr_t)address % GIB, 0);
	return address;
}

static void test_ready_and_lazy(void)
{
	char *ready, *lazy;

	start();
	ready = map_gib(0, 1, 0);
	expect_frames(512, 0, 0);
	lazy = map_gib(0, 2, LAZY);
	expect_frames(512, 0, 512);
	write_tag(ready + 3 * FRAME, 7);
	EXPECT(has_tag(lazy + 3 * FRAME, 7));
	write_tag(lazy + GIB + 100 * FRAME, 8);
	expect_frames(1024, 0, 0);
	EXPECT(is_zero(lazy + GIB + 101 * FRAME));
	EXPECT_EQ(hp_unmap(lazy, GIB), 0);
	EXPECT(has_tag(lazy + GIB + 100 * FRAME, 8));
	EXPECT_EQ(hp_unmap(lazy + GIB, GIB), 0);
	EXPECT_EQ(hp_unmap(ready, GIB), 0);
	expect_frames(1024, 0, 0);
	end();
}

static void test_punch_and_truncate(void)
{
	char *mapped;

	start();
	mapped = map_gib(0, 2, 0);
	write_tag(mapped + 5 * FRAME, 5);
	write_tag(mapped + GIB, 6);
	EXPECT_OK(hp_file_punch(file, 5 * FRAME, FRAME, 0, &error)); /* a part of a page: zeroed in place */
	EXPECT(is_zero(mapped + 5 * FRAME));
	expect_frames(1024, 0, 0);
	EXPECT_OK(hp_file_punch(file, GIB, GIB, 0, &error));
	expect_frames(512, 512, 0);
	EXPECT(is_zero(mapped + GIB));
	EXPECT_EQ(hp_unmap(mapped + GIB, GIB), 0);
	EXPECT_OK(hp_file_truncate(file, GIB, &error));
	expect_frames(512, 0, 0);
	EXPECT_EQ(hp_unmap(mapped, GIB), 0);
	EXPECT_OK(hp_file_truncate(file, 0, &error));
	expect_frames(0, 0, 0);
	/* What was used is zeroed by whoever needs it. */
	EXPECT_OK(hp_file_truncate(file, 2 * GIB, &error));
	mapped = map_gib(0, 2, 0);
	for (unsigned i = 0; i < 1024; i += 64)
		EXPECT(is_zero(mapped + i * FRAME));
	EXPECT_EQ(hp_unmap(mapped, 2 * GIB), 0);
	end();
}

static void test_extents(void)
{
	void *first, *second, *third;

	start();
	EXPECT_OK(hp_alloc(pool, 1, &first, &error));
	expect_frames(512, 0, 0);
	EXPECT_OK(hp_alloc(pool, GIB, &second, &error));
	EXPECT_EQ(hp_alloc(pool, 1, &third, &error), -ENOMEM);
	memset(first, 1, GIB);
	EXPECT_EQ(hp_free(pool, first), 0);
	EXPECT_OK(hp_alloc(pool, 1, &first, &error));
	EXPECT(is_zero((char *)first + 77 * FRAME));
	EXPECT_EQ(hp_free(pool, first), 0);
	EXPECT_EQ(hp_free(pool, second), 0);
	end();
}

static void test_refusals(void)
{
	char *mapped;
	void *address;

	start();
	mapped = map_gib(0, 1, 0);
	EXPECT_EQ(hp_map(file, FRAME, GIB, RW, 0, &address, &error), -EINVAL);
	EXPECT_EQ(hp_map(file, 0, FRAME, RW, 0, &address, &error), -EINVAL);
	EXPECT_EQ(hp_file_truncate(file, FRAME, &error), -EINVAL);
	EXPECT(strstr(error.message, "1024 MiB"));
	EXPECT_EQ(hp_file_allocate(file, 0, FRAME, &error), -EINVAL);
	EXPECT_EQ(hp_unmap(mapped, FRAME), -EINVAL);
	EXPECT_EQ(hp_protect(mapped + FRAME, FRAME, RO), -EINVAL);
	address = mapped + FRAME;
	EXPECT_EQ(hp_map(file, GIB, GIB, RW, HP_MAP_REPLACE, &address, &error), -EINVAL);
	EXPECT_EQ(hp_map_private(pool, GIB, RW, 0, &address, &error), -ENOTSUP);
	EXPECT_EQ(hp_unmap(mapped, GIB), 0);
	end();
}

static void test_the_kernel_has_too_few(void)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;

	options.size = 512 * GIB;
	options.backing = HP_BACKING_HUGETLB_1G;
	error = (hp_error){.code = 0};
	EXPECT(hp_pool_create(&options, &pool, &error) < 0);
	if (error.code == -ENOTSUP)
		skip_test("this kernel has no huge pages of 1 GiB");
	EXPECT_EQ(error.code, -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_KERNEL_POOL);
	EXPECT(strstr(error.message, "1048576kB"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_ready_and_lazy), REAL_TEST(test_punch_and_truncate),     REAL_TEST(test_extents),
		REAL_TEST(test_refusals),       REAL_TEST(test_the_kernel_has_too_few),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
