/* SPDX-License-Identifier: MIT */
/*
 * Pools on real memory: what they are made of, who zeroes, extents, and limits.
 */
#include "real.h"

#include "pool/pool.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define FRAMES 32
#define PAGES 8

static hp_pool_options options_for(uint64_t frames, hp_backing backing)
{
	return (hp_pool_options){.struct_size = sizeof(hp_pool_options),
	                         .size = frames * FRAME,
	                         .backing = backing,
	                         .workers = HP_WORKERS_NONE};
}

static int try_pool(const hp_pool_options *options)
{
	memset(&error, 0, sizeof(error));
	return hp_pool_create(options, &pool, &error);
}

/* Every frame of a pool can be used, whatever it is made of. */
static void use_all(uint64_t frames)
{
	hp_file file = make_file(frames);
	char *address = map(file, frames, 0);

	for (uint64_t i = 0; i < frames; i++) {
		EXPECT(is_zero(address + i * FRAME));
		write_tag(address + i * FRAME, i);
	}
	for (uint64_t i = 0; i < frames; i++)
		EXPECT(has_tag(address + i * FRAME, i));
	EXPECT_EQ(file_stat(file).present, frames * FRAME);
	unmap(address, frames);
	close_file(file);
}

/* ---- backings --------------------------------------------------------------------------------------------------- */

static void test_auto(void)
{
	bool huge = huge_pages_available() >= FRAMES;
	hp_pool_stats stats;
	hp_pool_options options = options_for(FRAMES, HP_BACKING_AUTO);

	EXPECT_OK(try_pool(&options));
	stats = stats_now();
	EXPECT_EQ(stats.frames, FRAMES);
	EXPECT_EQ(stats.zeroed, FRAMES);
	EXPECT_EQ(stats.dirty + stats.zeroing + stats.used + stats.holes + stats.reserved, 0);
	EXPECT_EQ(stats.hugetlb + stats.thp + stats.base, FRAMES);
	EXPECT_EQ(stats.processes, 1);
	EXPECT(stats.kernel_maps > 0 && stats.kernel_maps < stats.kernel_maps_max);
	EXPECT(stats.fill_ns > 0);
	if (huge)
		EXPECT_EQ(stats.hugetlb, FRAMES);
	EXPECT_EQ(stats.why_not_better[0] == 0, stats.hugetlb == FRAMES);
	use_all(FRAMES);
	end_pool();
}

static void test_hugetlb(void)
{
	hp_pool_options options = options_for(FRAMES, HP_BACKING_HUGETLB);
	uint64_t available = huge_pages_available();
	int result = try_pool(&options);

	if (result) {
		EXPECT(available < FRAMES);
		EXPECT(result == -ENOTSUP || error.limit == HP_LIMIT_KERNEL_POOL);
		EXPECT_EQ(error.code, result);
		EXPECT(error.message[0]);
		return;
	}
	EXPECT_EQ(stats_now().hugetlb, FRAMES);
	EXPECT_EQ(stats_now().why_not_better[0], 0);
	use_all(FRAMES);
	end_pool();

	/* More than there are: nothing is kept. */
	options = options_for(huge_pages_available() + 64, HP_BACKING_HUGETLB);
	EXPECT_EQ(try_pool(&options), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_KERNEL_POOL);
	EXPECT(strstr(error.message, "nr_hugepages"));
	EXPECT(huge_pages_available() >= FRAMES);
}

static void test_thp(void)
{
	hp_pool_options options = options_for(FRAMES, HP_BACKING_THP);
	int result = try_pool(&options);

	if (result) {
		EXPECT(result == -ENOTSUP || result == -ENOMEM);
		EXPECT(error.message[0]);
		return;
	}
	EXPECT_EQ(stats_now().thp, FRAMES);
	EXPECT(stats_now().why_not_better[0]);
	use_all(FRAMES);
	end_pool();
}

static void test_base(void)
{
	hp_pool_options options = options_for(FRAMES, HP_BACKING_BASE);

	EXPECT_OK(try_pool(&options));
	EXPECT_EQ(stats_now().base, FRAMES);
	EXPECT(stats_now().why_not_better[0]);
	use_all(FRAMES);
	end_pool();
}

/* All addresses of the pool's own mapping are taken, so that nobody else's mapping can come there. */
static void expect_no_hole(void)
{
	struct hp_pool_view *view = hp_pool_find(pool.id);
	uint64_t length = (uint64_t)view->shared->regions * HP_REGION_SIZE;
	unsigned char *vector = malloc(length / 4096);

	EXPECT(vector);
	EXPECT_EQ(mincore(view->direct, length, vector), 0);
	free(vector);
}

/* Huge pages for a part of the pool: the rest is something else, and the pool says why. */
static void test_mixed(void)
{
	uint64_t available = huge_pages_available();
	hp_pool_options options = options_for(available + FRAMES, HP_BACKING_AUTO);
	hp_pool_stats stats;

	if (available == 0 || available > 512)
		skip_test("no huge pages, or too many of them");
	EXPECT_OK(try_pool(&options));
	stats = stats_now();
	EXPECT_EQ(stats.frames, available + FRAMES);
	EXPECT(stats.hugetlb > 0 && stats.hugetlb <= available);
	EXPECT_EQ(stats.hugetlb + stats.thp + stats.base, stats.frames);
	EXPECT(strstr(stats.why_not_better, "nr_hugepages"));
	expect_no_hole();
	use_all(stats.frames);
	end_pool();
}

struct thief {
	_Atomic int stop;
	uint64_t frames;
};

/* A process that takes huge pages of the kernel's pool and gives them back, all the time. */
static void steal(void *context)
{
	struct hp_os *os = hp_os_linux();
	struct thief *thief = context;

	while (!atomic_load(&thief->stop)) {
		uint64_t length = thief->frames * FRAME;
		hp_segment segment;
		void *address;

		EXPECT_EQ(os->ops->segment_create(os, HP_BACKING_HUGETLB, length, &segment), 0);
		EXPECT_EQ(os->ops->reserve(os, length, FRAME, 0, &address), 0);
		if (os->ops->map(os, address, length, RW, segment, 0, HP_OS_MAP_REPLACE) == 0)
			os->ops->populate(os, address, length);
		os->ops->unmap(os, address, length);
		EXPECT_EQ(os->ops->segment_destroy(os, segment), 0);
	}
}

/* The kernel's pool runs empty while ours is filled: an error or the next kind, never a signal. */
static void test_kernel_pool_runs_empty(void)
{
	uint64_t available = huge_pages_available();
	struct thief *thief;
	pid_t pid;

	if (available < FRAMES || available > 512)
		skip_test("no huge pages, or too many of them");
	thief = make_shared(sizeof(*thief));
	thief->frames = available / 2;
	pid = start_child(steal, thief);
	for (int i = 0; i < 20; i++) {
		hp_pool_options options = options_for(available - 8, i % 2 ? HP_BACKING_AUTO : HP_BACKING_HUGETLB);
		int result = try_pool(&options);

		if (result) {
			if (options.backing == HP_BACKING_AUTO)
				EXPECT_OK(result);
			EXPECT_EQ(options.backing, HP_BACKING_HUGETLB);
			/* Who looks later, when the pages are back, must think that a control group was in the way. */
			EXPECT(result == -ENOMEM ? error.limit == HP_LIMIT_KERNEL_POOL
			                         : error.limit == HP_LIMIT_CGROUP);
			continue;
		}
		EXPECT_EQ(stats_now().frames, available - 8);
		EXPECT_EQ(stats_now().why_not_better[0] == 0, stats_now().hugetlb == available - 8);
		use_all(available - 8);
		end_pool();
	}
	atomic_store(&thief->stop, 1);
	join_child(pid);
	munmap(thief, sizeof(*thief));
}

/* ---- control groups --------------------------------------------------------------------------------------------- */

static bool write_file(const char *folder, const char *name, const char *text)
{
	char path[256];
	bool written = false;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd >= 0) {
		written = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
		close(fd);
	}
	return written;
}

static bool file_has_word(const char *folder, const char *name, const char *word)
{
	char path[256], text[4096] = " ";
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "r");
	if (!file)
		return false;
	if (!fgets(text, sizeof(text), file))
		text[0] = 0;
	fclose(file);
	return strstr(text, word) != NULL;
}

struct group {
	char root[64], folder[128];
	const char *limit, *reservation_limit; /* names of its files */
	bool switched_on;
};

/* A group of its own for hugetlb, in a mount that only this process sees. */
static bool make_group(struct group *group)
{
	strcpy(group->root, "/tmp/hugepool-cgroup-XXXXXX");
	if (geteuid() != 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    !mkdtemp(group->root))
		return false;
	group->limit = "hugetlb.2MB.max";
	group->reservation_limit = "hugetlb.2MB.rsvd.max";
	if (mount("none", group->root, "cgroup2", 0, NULL) == 0) {
		if (file_has_word(group->root, "cgroup.controllers", "hugetlb")) {
			if (!file_has_word(group->root, "cgroup.subtree_control", "hugetlb"))
				group->switched_on = write_file(group->root, "cgroup.subtree_control", "+hugetlb");
			goto make;
		}
		umount(group->root);
	}
	group->limit = "hugetlb.2MB.limit_in_bytes";
	group->reservation_limit = "hugetlb.2MB.rsvd.limit_in_bytes";
	if (mount("none", group->root, "cgroup", 0, "hugetlb")) {
		rmdir(group->root);
		return false;
	}
make:
	snprintf(group->folder, sizeof(group->folder), "%s/hugepool-test-%d", group->root, getpid());
	EXPECT_EQ(mkdir(group->folder, 0700), 0);
	return true;
}

static void drop_group(struct group *group)
{
	for (int i = 0; i < 100 && rmdir(group->folder); i++)
		nap(10000); /* the last member is still on its way out */
	if (group->switched_on)
		write_file(group->root, "cgroup.subtree_control", "-hugetlb");
	EXPECT_EQ(umount2(group->root, MNT_DETACH), 0);
	EXPECT_EQ(rmdir(group->root), 0);
}

#define LIMIT 10 /* frames */

static void enter_group(const struct group *group)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", getpid());
	EXPECT(write_file(group->folder, "cgroup.procs", pid));
}

static void be_limited(void *context)
{
	hp_pool_options options = options_for(FRAMES, HP_BACKING_HUGETLB);
	hp_pool_stats stats;

	enter_group(context);
	EXPECT_EQ(try_pool(&options), -ENOSPC);
	EXPECT_EQ(error.limit, HP_LIMIT_CGROUP);
	EXPECT(strstr(error.message, "hugetlb"));
	options.backing = HP_BACKING_AUTO;
	EXPECT_OK(try_pool(&options));
	stats = stats_now();
	EXPECT_EQ(stats.frames, FRAMES);
	EXPECT(stats.hugetlb <= LIMIT);
	EXPECT(strstr(stats.why_not_better, "control group"));
	expect_no_hole();
	use_all(FRAMES);
	end_pool();
	options = options_for(LIMIT, HP_BACKING_HUGETLB);
	EXPECT_OK(try_pool(&options));
	use_all(LIMIT);
	end_pool();
}

static void touch_all(void *context)
{
	enter_group(context);
	use_all(FRAMES);
}

/* Pages are charged to who fills the pool: a child in a poor group uses them all the same. */
static void have_a_poor_child(void *context)
{
	struct group *group = context;

	EXPECT(write_file(group->folder, group->limit, "0"));
	make_pool(FRAMES, NULL);
	EXPECT_EQ(stats_now().hugetlb, FRAMES);
	run_child(touch_all, group);
	end_pool();
}

static void limit_group(bool reservations)
{
	struct group group = {.switched_on = false};
	int limited = 0, poor = 0;
	char bytes[32];

	if (huge_pages_available() < FRAMES)
		skip_test("no huge pages");
	if (!make_group(&group))
		skip_test("no hugetlb control group can be made");
	snprintf(bytes, sizeof(bytes), "%lu", LIMIT * FRAME);
	if (write_file(group.folder, reservations ? group.reservation_limit : group.limit, bytes)) {
		limited = end_of(start_child(be_limited, &group));
		if (!reservations)
			poor = end_of(start_child(have_a_poor_child, &group));
	}
	drop_group(&group); /* also when something was wrong */
	EXPECT_EQ(limited, 0);
	EXPECT_EQ(poor, 0);
}

static void test_group_limit(void)
{
	limit_group(false);
}

static void test_group_limit_of_reservations(void)
{
	limit_group(true);
}

/* ---- options ---------------------------------------------------------------------------------------------------- */

static void test_options(void)
{
	static const struct {
		const char *tuning;
		uint32_t flags;
		int result;
	} cases[] = {
		{"", 0, 0},
		{"  fault_window=512   fault_mutexes=1 zero_mb_per_s=100", 0, 0},
		{"fault_mutexes=0", HP_POOL_UNSAFE, 0},
		{"fault_mutexes=0", 0, -EINVAL},
		{"fault_window=3", 0, -EINVAL},
		{"fault_window=0", 0, -EINVAL},
		{"fault_window=1024", 0, -EINVAL},
		{"fault_window=-1", 0, -EINVAL},
		{"fault_window=", 0, -EINVAL},
		{"fault_window=8x", 0, -EINVAL},
		{"fault_windows=8", 0, -EINVAL},
		{"nonsense", 0, -EINVAL},
		{NULL, 1u << 20, -EINVAL},
		{NULL, HP_POOL_NO_TABLE_SHARING, 0},
	};
	hp_pool_options options;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		options = options_for(2, HP_BACKING_BASE);
		options.tuning = cases[i].tuning;
		options.flags = cases[i].flags;
		EXPECT_EQ(try_pool(&options), cases[i].result);
		EXPECT_EQ(error.message[0] != 0, cases[i].result != 0);
		EXPECT_EQ(error.code, cases[i].result);
		if (cases[i].result == 0)
			end_pool();
	}
	options = options_for(0, HP_BACKING_BASE);
	EXPECT_EQ(try_pool(&options), -EINVAL);
	options = options_for(2, 77);
	EXPECT_EQ(try_pool(&options), -EINVAL);
	options = options_for(2, HP_BACKING_BASE);
	options.max_size = FRAME;
	EXPECT_EQ(try_pool(&options), -EINVAL);
	options.max_size = 600 * FRAME;
	options.size = FRAME + 1; /* rounded up */
	EXPECT_OK(try_pool(&options));
	EXPECT_EQ(stats_now().frames, 2);
	use_all(2);
	end_pool();
	options.struct_size = 0;
	EXPECT_EQ(try_pool(&options), -EINVAL);
	EXPECT_EQ(hp_pool_create(&options, &pool, NULL), -EINVAL);
}

static void test_too_many_pools(void)
{
	hp_pool_options options = options_for(1, HP_BACKING_BASE);
	hp_pool pools[64];
	int n = 0, result;

	while ((result = try_pool(&options)) == 0 && n < 64)
		pools[n++] = pool;
	EXPECT_EQ(result, -EMFILE);
	EXPECT_EQ(error.limit, HP_LIMIT_TABLE);
	EXPECT(n >= 16);
	for (int i = 0; i < n; i++) {
		pool = pools[i];
		use_all(1);
		end_pool();
		EXPECT_EQ(hp_pool_check(pool, &error), -EBADF);
	}
	/* An old handle is not the new pool's. */
	EXPECT_OK(try_pool(&options));
	EXPECT_EQ(hp_pool_close(pools[0]), -EBADF);
	EXPECT(pool.id != pools[0].id);
	end_pool();
}

static void test_too_large(void)
{
	hp_pool_options options = options_for(UINT64_C(1) << 40, HP_BACKING_AUTO);

	EXPECT_EQ(try_pool(&options), -EINVAL);
	/* More than the machine has, in huge pages only, so that it is found out at once. */
	options = options_for(UINT64_C(1) << 21, HP_BACKING_HUGETLB);
	EXPECT(try_pool(&options) < 0);
	EXPECT(error.message[0]);
	/* The same in other memory, where filling would end with somebody being killed. */
	for (hp_backing backing = HP_BACKING_AUTO; backing <= HP_BACKING_BASE; backing++) {
		options = options_for(UINT64_C(1) << 21, backing);
		EXPECT(try_pool(&options) < 0);
		if (backing != HP_BACKING_HUGETLB)
			EXPECT(error.limit == HP_LIMIT_MEMORY || error.limit == HP_LIMIT_CGROUP);
		EXPECT(error.message[0]);
	}
}

/* ---- a control group with little memory ------------------------------------------------------------------------- */

#define MEMORY_GROUPS "/sys/fs/cgroup/memory" /* version 1 */
#define MEMORY_GROUP_FRAMES 64

static void want_too_much(void *context)
{
	hp_pool_options options = options_for(2 * MEMORY_GROUP_FRAMES, HP_BACKING_BASE);
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", getpid());
	EXPECT(write_file(context, "cgroup.procs", pid));
	EXPECT_EQ(try_pool(&options), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_CGROUP);
	options = options_for(MEMORY_GROUP_FRAMES / 2, HP_BACKING_BASE);
	EXPECT_OK(try_pool(&options));
	use_all(MEMORY_GROUP_FRAMES / 2);
	end_pool();
}

static void test_group_with_little_memory(void)
{
	char folder[64], bytes[32];
	int status = -1;

	snprintf(folder, sizeof(folder), MEMORY_GROUPS "/hugepool-test-%d", getpid());
	snprintf(bytes, sizeof(bytes), "%lu", MEMORY_GROUP_FRAMES * FRAME);
	if (mkdir(folder, 0755))
		skip_test("no memory control group can be made");
	if (write_file(folder, "memory.limit_in_bytes", bytes))
		status = end_of(start_child(want_too_much, folder));
	for (unsigned tries = 0; rmdir(folder) && tries < 100; tries++)
		usleep(10000); /* the group empties when the child is reaped */
	EXPECT_EQ(status, 0);
}

/* ---- filling in the background ---------------------------------------------------------------------------------- */

static void test_background(void)
{
	hp_pool_options options = options_for(FRAMES, HP_BACKING_AUTO);
	hp_pool_stats stats;
	int result;

	options.flags = HP_POOL_BACKGROUND;
	for (int i = 0; i < 5; i++) {
		EXPECT_OK(try_pool(&options));
		result = hp_pool_wait(pool, 0, &error);
		EXPECT(result == 0 || result == -ETIMEDOUT);
		stats = stats_now();
		EXPECT(stats.frames <= FRAMES);
		if (i % 2) {
			EXPECT_OK(hp_pool_wait(pool, -1, &error));
			EXPECT_EQ(stats_now().frames, FRAMES);
			EXPECT_EQ(stats_now().zeroed, FRAMES);
			use_all(FRAMES);
			end_pool();
		} else {
			EXPECT_EQ(hp_pool_close(pool), 0); /* in the middle of it */
		}
	}
}

static void test_background_that_fails(void)
{
	hp_pool_options options = options_for(huge_pages_available() + 64, HP_BACKING_HUGETLB);

	options.flags = HP_POOL_BACKGROUND;
	if (try_pool(&options))
		return; /* no such memory on this system */
	EXPECT(hp_pool_wait(pool, -1, &error) < 0);
	EXPECT_EQ(error.limit, HP_LIMIT_KERNEL_POOL);
	EXPECT(error.message[0]);
	check_pool();
	EXPECT_EQ(hp_pool_close(pool), 0);
}

/* ---- zeroing ---------------------------------------------------------------------------------------------------- */

/* Fills all frames with a pattern and gives them back dirty. */
static void make_dirty(void)
{
	hp_file file = make_file(FRAMES);
	char *address = map(file, FRAMES, 0);

	memset(address, 0xa5, FRAMES * FRAME);
	unmap(address, FRAMES);
	close_file(file);
}

static void test_workers_zero(void)
{
	hp_pool_options options = options_for(FRAMES, HP_BACKING_AUTO);
	hp_pool_stats stats;

	options.workers = 2;
	EXPECT_OK(try_pool(&options));
	for (unsigned i = 1; i <= 3; i++) {
		make_dirty();
		if (i == 2)
			check_pool(); /* among the workers */
		EXPECT_OK(hp_pool_wait(pool, -1, &error));
		stats = stats_now();
		EXPECT_EQ(stats.dirty, 0);
		EXPECT_EQ(stats.zeroing, 0);
		EXPECT_EQ(stats.zeroed, FRAMES);
		EXPECT_EQ(stats.zeroed_by_worker, (2 * i - 1) * FRAMES);
		EXPECT_EQ(stats.zeroed_by_caller, 0);
		use_all(FRAMES);
		EXPECT_OK(hp_pool_wait(pool, -1, &error));
	}
	end_pool();
}

/* What workers have in hand is not missing: who needs all frames waits for them. */
static void test_workers_and_callers(void)
{
	hp_pool_options options = options_for(FRAMES, HP_BACKING_AUTO);
	hp_pool_stats stats;

	options.workers = 2;
	EXPECT_OK(try_pool(&options));
	for (int i = 0; i < 20; i++) {
		make_dirty();
		use_all(FRAMES);
	}
	EXPECT_OK(hp_pool_wait(pool, -1, &error));
	stats = stats_now();
	EXPECT_EQ(stats.zeroed_by_worker + stats.zeroed_by_caller, 40 * FRAMES);
	end_pool();
}

static void test_callers_zero(void)
{
	hp_pool_stats stats;

	make_pool(FRAMES, NULL);
	make_dirty();
	EXPECT_OK(hp_pool_wait(pool, 0, &error)); /* there is nobody to wait for */
	stats = stats_now();
	EXPECT_EQ(stats.dirty, FRAMES);
	EXPECT_EQ(stats.zeroed, 0);
	use_all(FRAMES);
	stats = stats_now();
	EXPECT_EQ(stats.zeroed_by_caller, FRAMES);
	EXPECT_EQ(stats.zeroed_by_worker, 0);
	end_pool();
}

static void test_rate(void)
{
	hp_pool_options options = options_for(4, HP_BACKING_AUTO);
	hp_file file;
	char *address;

	options.workers = 1;
	options.tuning = "zero_mb_per_s=100";
	EXPECT_OK(try_pool(&options));
	file = make_file(4);
	address = map(file, 4, 0);
	memset(address, 1, 4 * FRAME);
	unmap(address, 4);
	close_file(file);
	EXPECT_OK(hp_pool_wait(pool, -1, &error));
	EXPECT_EQ(stats_now().zeroed, 4);
	end_pool();
}

/* ---- extents ---------------------------------------------------------------------------------------------------- */

static char *alloc(uint64_t frames)
{
	void *address;

	EXPECT_OK(hp_alloc(pool, frames * FRAME, &address, &error));
	EXPECT_EQ((uintptr_t)address % FRAME, 0);
	return address;
}

static void test_extents(void)
{
	char *extent[8];
	void *none;
	int inside = 0;

	make_pool(FRAMES, NULL);
	EXPECT_EQ(hp_alloc(pool, 0, &none, &error), -EINVAL);
	EXPECT_EQ(hp_alloc(pool, (FRAMES + 1) * FRAME, &none, &error), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_POOL);
	EXPECT_EQ(hp_alloc(pool, UINT64_MAX, &none, &error), -ENOMEM);
	for (int round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 8; i++) {
			extent[i] = alloc(4);
			for (unsigned j = 0; j < 4; j++) {
				EXPECT(is_zero(extent[i] + j * FRAME));
				memset(extent[i] + j * FRAME, 0x5a, FRAME);
				write_tag(extent[i] + j * FRAME, i * 4 + j);
			}
		}
		check_pool();
		EXPECT_EQ(stats_now().used, FRAMES);
		EXPECT_EQ(hp_alloc(pool, 1, &none, &error), -ENOMEM);
		EXPECT_EQ(error.limit, HP_LIMIT_POOL);
		for (unsigned i = 0; i < 32; i++)
			EXPECT(has_tag(extent[i / 4] + i % 4 * FRAME, i));
		/* 16 frames are free, and no 5 in a row, unless the extents were placed so that holes touch. */
		for (unsigned i = 0; i < 8; i += 2)
			EXPECT_EQ(hp_free(pool, extent[i]), 0);
		EXPECT_EQ(hp_free(pool, extent[0]), -EINVAL);
		EXPECT_EQ(hp_alloc(pool, 17 * FRAME, &none, &error), -ENOMEM);
		EXPECT_EQ(hp_free(pool, extent[1] + FRAME), -EINVAL);
		EXPECT_EQ(hp_free(pool, extent[1] + 4096), -EINVAL);
		EXPECT_EQ(hp_free(pool, extent[1] + 10 * GIB), -EINVAL);
		EXPECT_EQ(hp_free(pool, &inside), -EINVAL);
		EXPECT_EQ(hp_free(pool, NULL), -EINVAL);
		for (unsigned i = 1; i < 8; i += 2)
			EXPECT_EQ(hp_free(pool, extent[i]), 0);
		check_pool();
	}
	EXPECT(is_zero(alloc(FRAMES)));
	/* An extent stays with the pool when a process closes it. */
	EXPECT_EQ(hp_pool_close(pool), 0);
}

static void test_no_run_of_frames(void)
{
	char *extent[FRAMES];
	void *none;

	make_pool(FRAMES, NULL);
	for (unsigned i = 0; i < FRAMES; i++)
		extent[i] = alloc(1);
	for (unsigned i = 0; i < FRAMES; i++)
		if ((uintptr_t)extent[i] / FRAME % 2)
			EXPECT_EQ(hp_free(pool, extent[i]), 0);
	EXPECT_EQ(hp_alloc(pool, 2 * FRAME, &none, &error), -ENOMEM);
	EXPECT_EQ(error.limit, HP_LIMIT_POOL);
	EXPECT(strstr(error.message, "in a row"));
	use_all(FRAMES / 2); /* files do not need rows */
	for (unsigned i = 0; i < FRAMES; i++)
		if ((uintptr_t)extent[i] / FRAME % 2 == 0)
			EXPECT_EQ(hp_free(pool, extent[i]), 0);
	end_pool();
}

struct freer {
	pthread_barrier_t barrier;
	void *extent;
	_Atomic int freed;
};

static void *free_at_once(void *context)
{
	struct freer *freer = context;
	int result;

	pthread_barrier_wait(&freer->barrier);
	result = hp_free(pool, freer->extent);
	EXPECT(result == 0 || result == -EINVAL);
	atomic_fetch_add(&freer->freed, result == 0);
	return NULL;
}

/* Of threads that free the same extent, one does. */
static void test_free_at_once(void)
{
	make_pool(FRAMES, NULL);
	for (int i = 0; i < 300; i++) {
		struct freer freer = {.extent = alloc(2)};
		pthread_t thread[3];

		EXPECT_EQ(pthread_barrier_init(&freer.barrier, NULL, 3), 0);
		for (int j = 0; j < 3; j++)
			thread[j] = start_thread(free_at_once, &freer);
		for (int j = 0; j < 3; j++)
			join_thread(thread[j]);
		EXPECT_EQ(atomic_load(&freer.freed), 1);
		pthread_barrier_destroy(&freer.barrier);
	}
	end_pool();
}

static void *alloc_and_free(void *context)
{
	unsigned seed = *(unsigned *)context;

	for (int i = 0; i < 400; i++) {
		uint64_t frames = 1 + (unsigned)rand_r(&seed) % 4;
		void *address;

		if (hp_alloc(pool, frames * FRAME, &address, NULL))
			continue;
		for (uint64_t j = 0; j < frames; j++) {
			EXPECT(is_zero((char *)address + j * FRAME));
			write_tag((char *)address + j * FRAME, seed + j);
		}
		sched_yield();
		for (uint64_t j = 0; j < frames; j++)
			EXPECT(has_tag((char *)address + j * FRAME, seed + j));
		EXPECT_EQ(hp_free(pool, address), 0);
	}
	return NULL;
}

static void test_threads_alloc_and_free(void)
{
	hp_pool_options options = options_for(16, HP_BACKING_AUTO);
	pthread_t thread[6];
	unsigned seed[6];

	options.workers = 1;
	EXPECT_OK(try_pool(&options));
	for (unsigned i = 0; i < 6; i++) {
		seed[i] = i + 1;
		thread[i] = start_thread(alloc_and_free, &seed[i]);
	}
	for (unsigned i = 0; i < 6; i++)
		join_thread(thread[i]);
	end_pool();
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

static void *outlive(void *context)
{
	_Atomic int *step = context;
	hp_pool_stats stats = stats_now();

	EXPECT_EQ(stats.frames, 2);
	REACH(step, 1);
	await(step, 2);
	return NULL;
}

static void close_before_threads_end(void *unused)
{
	hp_pool_options options = options_for(2, HP_BACKING_BASE);

	for (int i = 0; i < 3; i++) {
		_Atomic int step = 0;
		pthread_t thread;

		EXPECT_OK(try_pool(&options));
		thread = start_thread(outlive, &step);
		await(&step, 1);
		end_pool();
		REACH(&step, 2);
		join_thread(thread);
	}
}

/* A thread that has used the pool may end after it was closed. What it holds there stays mapped for it. */
static void test_threads_outlive_the_pool(void)
{
	run_child(close_before_threads_end, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_auto),
		REAL_TEST(test_hugetlb),
		REAL_TEST(test_thp),
		REAL_TEST(test_base),
		REAL_TEST(test_mixed),
		REAL_TEST(test_kernel_pool_runs_empty),
		REAL_TEST(test_group_limit),
		REAL_TEST(test_group_limit_of_reservations),
		REAL_TEST(test_options),
		REAL_TEST(test_too_many_pools),
		REAL_TEST(test_too_large),
		REAL_TEST(test_group_with_little_memory),
		REAL_TEST(test_background),
		REAL_TEST(test_background_that_fails),
		REAL_TEST(test_workers_zero),
		REAL_TEST(test_workers_and_callers),
		REAL_TEST(test_callers_zero),
		REAL_TEST(test_rate),
		REAL_TEST(test_extents),
		REAL_TEST(test_no_run_of_frames),
		REAL_TEST(test_free_at_once),
		REAL_TEST(test_threads_alloc_and_free),
		REAL_TEST(test_threads_outlive_the_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
