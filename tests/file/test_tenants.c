/* SPDX-License-Identifier: MIT */
/* Tenants: limits and minimums of parts of a pool. */
#include "real.h"

#include "pool/layout.h"
#include "support/random.h"

#define PAGES 4

static _Atomic int *step; /* shared by the processes of a test */

static void start(uint64_t frames)
{
	step = make_shared(4096);
	make_pool(frames, NULL);
}

static void end(void)
{
	end_pool();
	munmap(step, 4096);
}

static int open_as(const char *name, unsigned flags, uint64_t pages, hp_tenant tenant, hp_file *file)
{
	hp_file_options options = HP_FILE_OPTIONS_INIT;

	options.flags = flags;
	options.size = pages * FRAME;
	options.tenant = tenant;
	return hp_file_open(pool, name, &options, file, &error);
}

static void unlink_file(const char *name)
{
	EXPECT_OK(hp_file_unlink(pool, name, &error));
}

static void expect_refused(int result, int code)
{
	EXPECT_EQ(result, code);
	EXPECT_EQ(error.code, code);
	EXPECT(error.message[0]);
	error = (hp_error){.code = 0};
}

static uint64_t free_frames(void)
{
	hp_pool_stats stats = stats_now();

	return stats.zeroed + stats.dirty - stats.reserved;
}

/* ---- tenants: what they are promised ---------------------------------------------------------------------------- */

static hp_tenant make_tenant(uint64_t limit, uint64_t minimum)
{
	hp_tenant tenant;

	EXPECT_OK(hp_tenant_create(pool, limit * FRAME, minimum * FRAME, &tenant, &error));
	return tenant;
}

static hp_tenant_stat tenant_stat(hp_tenant tenant)
{
	hp_tenant_stat stat = {.struct_size = sizeof(stat)};

	EXPECT_EQ(hp_tenant_stat_get(tenant, &stat), 0);
	return stat;
}

static void expect_used(hp_tenant tenant, uint64_t frames)
{
	EXPECT_EQ(tenant_stat(tenant).used, frames * FRAME);
}

static hp_file tenant_file(hp_tenant tenant, uint64_t pages)
{
	hp_file file;

	EXPECT_OK(open_as(NULL, HP_FILE_CREATE, pages, tenant, &file));
	return file;
}

static int allocate(hp_file file, uint64_t first, uint64_t pages)
{
	return hp_file_allocate(file, first * FRAME, pages * FRAME, &error);
}

static void test_tenant_errors(void)
{
	hp_tenant_stat small = {.struct_size = 4};
	hp_tenant tenant, more[HP_TENANTS_MAX];
	hp_file file;

	start(PAGES);
	expect_refused(hp_tenant_create(pool, FRAME - 1, 0, &tenant, &error), -EINVAL);
	expect_refused(hp_tenant_create(pool, FRAME, 2 * FRAME, &tenant, &error), -EINVAL);
	expect_refused(hp_tenant_create(pool, 2 * FRAME + 1, 2 * FRAME + 1, &tenant, &error), -EINVAL);
	expect_refused(hp_tenant_create(pool, 0, (PAGES + 1) * FRAME, &tenant, &error), -ENOMEM);
	EXPECT_EQ(hp_tenant_create((hp_pool){0}, 0, 0, &tenant, NULL), -EBADF);
	tenant = make_tenant(0, 0);
	EXPECT_EQ(hp_tenant_stat_get(tenant, &small), -EINVAL);
	file = tenant_file(tenant, 1);
	EXPECT_EQ(tenant_stat(tenant).files, 1);
	EXPECT_EQ(tenant_stat(tenant).limit, 0);
	EXPECT_EQ(hp_tenant_close(tenant), -EBUSY);
	close_file(file);
	EXPECT_EQ(hp_tenant_close(tenant), 0);
	EXPECT_EQ(hp_tenant_close(tenant), -EBADF);
	EXPECT_EQ(hp_tenant_stat_get(tenant, &small), -EBADF);
	expect_refused(open_as("a", HP_FILE_CREATE, 1, tenant, &file), -EBADF);
	for (unsigned i = 0; i < HP_TENANTS_MAX - 1; i++)
		more[i] = make_tenant(0, 0);
	EXPECT(more[0].id != tenant.id); /* the old handle is none of the new one */
	expect_refused(hp_tenant_create(pool, 0, FRAME, &tenant, &error), -ENFILE);
	EXPECT_EQ(free_frames(), PAGES);
	for (unsigned i = 0; i < HP_TENANTS_MAX - 1; i++)
		EXPECT_EQ(hp_tenant_close(more[i]), 0);
	end();
}

/* A fraction of a frame is cut from the limit, and added to the minimum. */
static void test_fractions(void)
{
	hp_tenant tenant;

	start(PAGES);
	EXPECT_OK(hp_tenant_create(pool, 3 * FRAME + FRAME / 2, FRAME + 1, &tenant, &error));
	EXPECT_EQ(tenant_stat(tenant).limit, 3 * FRAME);
	EXPECT_EQ(tenant_stat(tenant).minimum, 2 * FRAME);
	EXPECT_EQ(free_frames(), PAGES - 2);
	EXPECT_EQ(hp_tenant_close(tenant), 0);
	EXPECT_EQ(free_frames(), PAGES);
	end();
}

static void test_limit(void)
{
	hp_tenant tenant;
	hp_file file, other;
	void *address;

	start(8);
	tenant = make_tenant(3, 0);
	file = tenant_file(tenant, 5);
	other = tenant_file(tenant, 5);
	expect_used(tenant, 0);
	EXPECT_EQ(allocate(file, 0, 4), -EDQUOT);
	EXPECT_EQ(error.limit, HP_LIMIT_TENANT);
	expect_used(tenant, 0);
	EXPECT_EQ(file_stat(file).present, 0);
	EXPECT_OK(allocate(file, 0, 2));
	expect_used(tenant, 2);
	EXPECT_OK(allocate(file, 0, 2)); /* what is there costs nothing */
	expect_refused(hp_map(other, 0, 2 * FRAME, RW, 0, &address, &error), -EDQUOT);
	expect_refused(hp_map(other, 0, 2 * FRAME, RW, LAZY, &address, &error), -EDQUOT);
	EXPECT_EQ(hp_file_write(other, 4 * FRAME, "x", 1), 1);
	EXPECT_EQ(hp_file_write(other, 0, "x", 1), -EDQUOT);
	expect_used(tenant, 3);
	check_pool();
	EXPECT_OK(hp_file_punch(other, 4 * FRAME, FRAME, 0, &error));
	expect_used(tenant, 2);
	EXPECT_OK(hp_file_truncate(file, FRAME, &error));
	expect_used(tenant, 1);
	EXPECT_OK(allocate(other, 0, 2));
	close_file(file);
	expect_used(tenant, 2);
	close_file(other);
	expect_used(tenant, 0);
	EXPECT_EQ(hp_tenant_close(tenant), 0);
	end();
}

/* A lazy mapping counts when it is promised, and what was promised stays so until it is punched or cut. */
static void test_lazy_counts_when_promised(void)
{
	hp_tenant tenant;
	hp_file file;
	char *lazy;

	start(8);
	tenant = make_tenant(4, 0);
	file = tenant_file(tenant, 4);
	lazy = map(file, 3, LAZY);
	expect_used(tenant, 3);
	touch(lazy);
	expect_used(tenant, 3);
	EXPECT_OK(hp_file_punch(file, 0, FRAME, 0, &error)); /* a hole is its tenant's still */
	expect_used(tenant, 3);
	check_pool();
	unmap(lazy, 3);
	expect_used(tenant, 3);
	EXPECT_OK(hp_file_punch(file, 0, 2 * FRAME, 0, &error));
	expect_used(tenant, 1);
	EXPECT_OK(hp_file_truncate(file, 0, &error));
	expect_used(tenant, 0);
	close_file(file);
	EXPECT_EQ(hp_tenant_close(tenant), 0);
	end();
}

static void test_minimum(void)
{
	hp_tenant tenant;
	hp_file file, stranger;
	void *extent;

	start(6);
	tenant = make_tenant(5, 3);
	EXPECT_EQ(stats_now().reserved, 3);
	file = tenant_file(tenant, 6);
	stranger = make_file(6);
	expect_refused(allocate(stranger, 0, 4), -ENOMEM);
	expect_refused(hp_alloc(pool, 4 * FRAME, &extent, &error), -ENOMEM);
	EXPECT_OK(allocate(stranger, 0, 3));
	/* The pool is full, but for its own. */
	EXPECT_EQ(free_frames(), 0);
	EXPECT_OK(allocate(file, 0, 2));
	EXPECT_EQ(free_frames(), 0);
	check_pool();
	EXPECT_OK(allocate(file, 2, 1));
	EXPECT_EQ(allocate(file, 3, 1), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_POOL);
	/* Beyond the minimum it takes of the pool; what it gives back below it is kept for it. */
	EXPECT_OK(hp_file_truncate(stranger, FRAME, &error));
	EXPECT_OK(allocate(file, 3, 2));
	expect_refused(allocate(file, 5, 1), -EDQUOT);
	EXPECT_EQ(free_frames(), 0);
	EXPECT_OK(hp_file_punch(file, 0, 4 * FRAME, 0, &error));
	EXPECT_EQ(free_frames(), 2);
	EXPECT_EQ(stats_now().reserved, 2);
	check_pool();
	close_file(file);
	EXPECT_EQ(stats_now().reserved, 3);
	EXPECT_EQ(hp_tenant_close(tenant), 0);
	EXPECT_EQ(stats_now().reserved, 0);
	close_file(stranger);
	end();
}

/* ---- tenants: among threads and processes ----------------------------------------------------------------------- */

static hp_tenant tenants[2];

static void use_tenant(void *unused)
{
	hp_file file;

	EXPECT_OK(open_as("child's", HP_FILE_CREATE, 4, tenants[0], &file));
	EXPECT_OK(allocate(file, 0, 2));
	expect_refused(allocate(file, 2, 2), -EDQUOT);
	REACH(step, 1);
	await(step, 2);
	/* Ends with it open, and named. */
}

static void test_tenant_of_two_processes(void)
{
	hp_file file;
	pid_t pid;

	start(8);
	tenants[0] = make_tenant(3, 1);
	pid = start_child(use_tenant, NULL);
	await(step, 1);
	expect_used(tenants[0], 2);
	file = tenant_file(tenants[0], 4);
	expect_refused(allocate(file, 0, 2), -EDQUOT);
	EXPECT_OK(allocate(file, 0, 1));
	REACH(step, 2);
	join_child(pid);
	close_file(file);
	check_pool();
	expect_used(tenants[0], 2);
	EXPECT_EQ(hp_tenant_close(tenants[0]), -EBUSY);
	unlink_file("child's");
	expect_used(tenants[0], 0);
	EXPECT_EQ(hp_tenant_close(tenants[0]), 0);
	end();
}

static void die_with_tenant(void *unused)
{
	EXPECT_OK(allocate(tenant_file(tenants[0], 4), 0, 3));
	kill(getpid(), SIGKILL);
}

/* What a dead process had of a tenant does not stand in the way of the living. */
static void test_tenant_of_a_dead_process(void)
{
	hp_file file;

	start(8);
	tenants[0] = make_tenant(3, 1);
	file = tenant_file(tenants[0], 4);
	expect_killed(die_with_tenant, NULL, SIGKILL);
	EXPECT_OK(allocate(file, 0, 3));
	expect_used(tenants[0], 3);
	close_file(file);
	expect_killed(die_with_tenant, NULL, SIGKILL);
	EXPECT_EQ(hp_tenant_close(tenants[0]), 0);
	end();
}

#define HAMMERS 4
#define BLOWS 1500

static bool is_short(int result)
{
	EXPECT(!result || result == -EDQUOT || result == -ENOMEM);
	return result != 0;
}

static void strike(hp_file file, uint64_t *random)
{
	uint64_t first = random_below(random, 4), pages = 1 + random_below(random, 4 - first);
	hp_error why;
	void *address;

	switch (random_below(random, 4)) {
	case 0:
		is_short(hp_file_allocate(file, first * FRAME, pages * FRAME, &why));
		break;
	case 1:
		EXPECT_EQ(hp_file_punch(file, first * FRAME, pages * FRAME, 0, &why), 0);
		break;
	case 2:
		EXPECT_EQ(hp_file_truncate(file, first * FRAME, &why), 0);
		EXPECT_EQ(hp_file_truncate(file, 4 * FRAME, &why), 0);
		break;
	default:
		if (is_short(hp_map(file, first * FRAME, pages * FRAME, RW, LAZY, &address, &why)))
			return;
		touch((char *)address + random_below(random, pages) * FRAME);
		EXPECT_EQ(hp_unmap(address, pages * FRAME), 0);
	}
}

static void *hammer(void *context)
{
	uint64_t random = (uintptr_t)context;
	hp_tenant tenant = tenants[random % 2];

	for (int i = 0; i < BLOWS; i++) {
		hp_file_options options = HP_FILE_OPTIONS_INIT;
		hp_file file;

		options.flags = HP_FILE_CREATE;
		options.size = 4 * FRAME;
		options.tenant = tenant;
		EXPECT_EQ(hp_file_open(pool, NULL, &options, &file, NULL), 0);
		for (int n = 0; n < 4; n++)
			strike(file, &random);
		EXPECT(tenant_stat(tenant).used <= 5 * FRAME);
		close_file(file);
	}
	return NULL;
}

static void hammer_both(void *seed)
{
	pthread_t thread[HAMMERS];

	for (unsigned i = 0; i < HAMMERS; i++)
		thread[i] = start_thread(hammer, (char *)seed + i);
	for (unsigned i = 0; i < HAMMERS; i++)
		join_thread(thread[i]);
}

/* Threads of two processes at the limits of two tenants, in a pool too small for both: the sums are exact after. */
static void test_tenants_at_their_limits(void)
{
	uint64_t seed = random_seed();
	pid_t pid;

	start(8);
	tenants[0] = make_tenant(5, 2);
	tenants[1] = make_tenant(5, 0);
	pid = start_child(hammer_both, (void *)(uintptr_t)(seed + 100));
	hammer_both((void *)(uintptr_t)seed);
	join_child(pid);
	check_pool();
	for (int i = 0; i < 2; i++) {
		expect_used(tenants[i], 0);
		EXPECT_EQ(hp_tenant_close(tenants[i]), 0);
	}
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_tenant_errors),
		REAL_TEST(test_fractions),
		REAL_TEST(test_limit),
		REAL_TEST(test_lazy_counts_when_promised),
		REAL_TEST(test_minimum),
		REAL_TEST(test_tenant_of_two_processes),
		REAL_TEST(test_tenant_of_a_dead_process),
		REAL_TEST(test_tenants_at_their_limits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
