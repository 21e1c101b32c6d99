/* SPDX-License-Identifier: MIT */
/*
 * The probe: the table of kernels that share page tables well, files read from made-up trees, and the real machine.
 */
#include "hugepool.h"
#include "os/probe.h"

#include <errno.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- Made-up trees --------------------------------------------------------------------------------------------- */

static char tree[64];

static void put(const char *path, const char *text)
{
	char full[512];

	snprintf(full, sizeof(full), "%s%s", tree, path);
	for (char *slash = full + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
		*slash = '/';
	}
	FILE *file = fopen(full, "w");
	assert_non_null(file);
	fputs(text, file);
	assert_int_equal(fclose(file), 0);
}

static int tree_setup(void **state)
{
	snprintf(tree, sizeof(tree), "/tmp/hugepool-probe-XXXXXX");
	return mkdtemp(tree) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *position)
{
	return remove(path);
}

static int tree_teardown(void **state)
{
	return nftw(tree, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A made-up machine is large for a stack. */
static struct hp_probe probe;

static const struct hp_probe_pool *read_tree(void)
{
	hp_probe_read_files(&probe, tree);
	return hp_probe_pool_of(&probe, HP_FRAME_SIZE);
}

static void put_pool(void)
{
	put("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2\n");
	put("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "100\n");
	put("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "70\n");
	put("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "7\n");
	put("/sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages", "3\n");
	put("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages", "5\n");
}

/* ---- Page-table sharing ---------------------------------------------------------------------------------------- */

static void test_table_sharing(void **state)
{
	static const struct {
		const char *release;
		bool x86_64, aarch64;
	} kernels[] = {
		{"2.6.32-754.el6.x86_64", false, false},
		{"5.4.295", false, false},
		{"5.10.239", false, false},
		{"5.14.0-570.el9.x86_64", false, false},
		{"5.15.186", false, false},
		{"6.1", false, false},
		{"6.1.0-40-amd64", false, false},
		{"6.1.166", false, false},
		{"6.1.167", true, false},
		{"6.1.170-1", true, false},
		{"6.2.16", false, false},
		{"6.6.0", false, false},
		{"6.6.126", false, false},
		{"6.6.127", true, false},
		{"6.6.87.2-microsoft-standard-WSL2", false, false},
		{"6.8.0-45-generic", false, false},
		{"6.11.11", false, false},
		{"6.12.0-124.el10.x86_64", false, false},
		{"6.12.73+deb13-amd64", false, false},
		{"6.12.74+deb13-amd64", true, false},
		{"6.13.12", false, false},
		{"6.15.4", false, false},
		{"6.16.12", false, false},
		{"6.17.0-5-generic", false, false},
		{"6.17.130", false, false},
		{"6.18.0", false, false},
		{"6.18.12", false, false},
		{"6.18.13", true, false},
		{"6.18.44-fc", true, false},
		{"6.19.0-rc1", false, false},
		{"6.19-rc8", false, false},
		{"6.19.0", true, false},
		{"6.19.3-arch1-1", true, false},
		{"7.0.0", true, false},
		{"7.0.0-rc3", true, false},
		{"7.1.0-rc2", true, false},
		{"7.1.0", true, true},
		{"7.2", true, true},
		{"10.0.1", true, true},
		{"", false, false},
		{"unknown", false, false},
		{".1.2", false, false},
		{"99999999999999999999.1", false, false},
	};

	for (size_t i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		for (int arm64 = 0; arm64 < 2; arm64++) {
			char why[HP_PROBE_SENTENCE] = "stale";
			bool wanted = arm64 ? kernels[i].aarch64 : kernels[i].x86_64;
			bool shares = hp_probe_table_sharing_on(arm64 ? "aarch64" : "x86_64", kernels[i].release, why,
			                                        sizeof(why));
			if (shares != wanted)
				fail_msg("%s on %s: %d", kernels[i].release, arm64 ? "aarch64" : "x86_64", shares);
			/* A refusal has a reason that is complete, a yes has none. */
			assert_int_equal(why[0] == '\0', shares);
			assert_true(strlen(why) < sizeof(why) - 1);
		}
	}
}

static void test_table_sharing_elsewhere(void **state)
{
	char why[HP_PROBE_SENTENCE];
	char small[8] = "1234567";

	assert_false(hp_probe_table_sharing_on("riscv64", "7.2.0", why, sizeof(why)));
	assert_non_null(strstr(why, "riscv64"));
	/* The reason names the version to go to in the same series. */
	assert_false(hp_probe_table_sharing_on("x86_64", "6.6.1", why, sizeof(why)));
	assert_non_null(strstr(why, "6.6.127"));
	assert_false(hp_probe_table_sharing_on("x86_64", "6.6.1", small, sizeof(small)));
	assert_int_equal(strlen(small), sizeof(small) - 1);
	assert_false(hp_probe_table_sharing_on("x86_64", "6.6.1", NULL, 0));
}

static void test_kernel_of_distribution(void **state)
{
	/* The compiler's "Debian 12.2.0" is not the kernel's. */
	put("/proc/version",
	    "Linux version 6.1.0-40-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14+deb12u1) "
	    "12.2.0, GNU ld 2.40) #1 SMP PREEMPT_DYNAMIC Debian 6.1.170-1 (2026-05-01)\n");
	read_tree();
	assert_string_equal(probe.kernel, "6.1.0-40-amd64");
	assert_string_equal(probe.kernel_upstream, "6.1.170");

	put("/proc/version", "Linux version 6.8.0-45-generic (buildd@host) (gcc 13.2.0) #45-Ubuntu SMP\n");
	put("/proc/version_signature", "Ubuntu 6.8.0-45.45-generic 6.8.12\n");
	read_tree();
	assert_string_equal(probe.kernel, "6.8.0-45-generic");
	assert_string_equal(probe.kernel_upstream, "6.8.12");

	put("/proc/version_signature", "nonsense\n");
	read_tree();
	assert_string_equal(probe.kernel_upstream, "6.8.0-45-generic");
}

/* ---- Files ----------------------------------------------------------------------------------------------------- */

static void test_empty_tree(void **state)
{
	assert_null(read_tree());
	assert_true(probe.kernel[0] != '\0'); /* uname needs no file */
	assert_string_equal(probe.cpu, "");
	assert_int_equal(probe.memory_bytes, 0);
	assert_int_equal(probe.pools, 0);
	assert_int_equal(probe.nodes, 0);
	assert_string_equal(probe.thp_enabled, "");
	assert_string_equal(probe.cgroup, "none");
	assert_int_equal(probe.cgroup_memory.bytes, -1);
	assert_int_equal(probe.cgroup_memory.used_bytes, -1);
}

static void test_machine(void **state)
{
	put_pool();
	put("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n");
	put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:   1 kB\nMemAvailable:    600 kB\n");
	put("/proc/sys/vm/max_map_count", "65530\n");
	put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
	put("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise never [deny] force\n");
	put("/sys/kernel/mm/transparent_hugepage/defrag", "no brackets\n");
	put("/sys/devices/system/node/node10/meminfo", "Node 10 MemTotal: 20 kB\nNode 10 MemFree: 10 kB\n");
	put("/sys/devices/system/node/node10/hugepages/hugepages-2048kB/nr_hugepages", "4\n");
	put("/sys/devices/system/node/node10/hugepages/hugepages-2048kB/free_hugepages", "3\n");
	put("/sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 40 kB\n");
	put("/sys/devices/system/node/nodes", "");
	put("/sys/devices/system/node/node3x/meminfo", "Node 3 MemTotal: 40 kB\n");

	const struct hp_probe_pool *pool = read_tree();
	assert_non_null(pool);
	assert_int_equal(probe.pools, 2);
	assert_int_equal(probe.pool[1].page_bytes, 1 << 30);
	assert_int_equal(probe.pool[1].total, 2);
	assert_int_equal(probe.pool[1].free, 0);
	assert_int_equal(pool->total, 100);
	assert_int_equal(pool->free, 70);
	assert_int_equal(pool->reserved, 7);
	assert_int_equal(pool->surplus, 3);
	assert_int_equal(pool->overcommit, 5);
	assert_string_equal(probe.cpu, "Some CPU @ 2 GHz");
	assert_int_equal(probe.memory_bytes, 1000 * 1024);
	assert_int_equal(probe.available_bytes, 600 * 1024);
	assert_int_equal(probe.max_map_count, 65530);
	assert_string_equal(probe.thp_enabled, "madvise");
	assert_string_equal(probe.thp_shmem, "deny");
	assert_string_equal(probe.thp_defrag, "");
	assert_int_equal(probe.nodes, 2);
	assert_int_equal(probe.node[0].id, 2);
	assert_int_equal(probe.node[0].memory_bytes, 40 * 1024);
	assert_int_equal(probe.node[0].free_bytes, 0);
	assert_int_equal(probe.node[1].id, 10);
	assert_int_equal(probe.node[1].free_bytes, 10 * 1024);
	assert_int_equal(probe.node[1].huge_total, 4);
	assert_int_equal(probe.node[1].huge_free, 3);
}

static void test_garbage(void **state)
{
	put_pool();
	put("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "many\n");
	put("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "99999999999999999999999\n");
	put("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "");
	put("/sys/kernel/mm/hugepages/hugepages-2048MB/nr_hugepages", "1\n");
	put("/sys/kernel/mm/transparent_hugepage/enabled", "][\n");
	put("/proc/meminfo", "MemTotal: -5 kB\nNotMemAvailable: 3 kB\nMemAvailable 3 kB\n");
	put("/proc/self/mountinfo", "\n1\n1 2 3\n30 22 0:27 / /sys/fs/cgroup rw -\n31 1 0:1 / /x rw - cgroup2\n");
	put("/proc/self/cgroup", "\n:\n0:\n0::");
	put("/proc/version", "");

	const struct hp_probe_pool *pool = read_tree();
	assert_int_equal(probe.pools, 2);
	assert_int_equal(pool->total, 0);
	assert_int_equal(pool->free, 0);
	assert_int_equal(pool->reserved, 0);
	assert_string_equal(probe.thp_enabled, "");
	assert_int_equal(probe.memory_bytes, 0);
	assert_int_equal(probe.available_bytes, 0);
	assert_string_equal(probe.cgroup, "none");
}

/* ---- Control groups -------------------------------------------------------------------------------------------- */

static void test_cgroup_v2(void **state)
{
	put_pool();
	put("/proc/self/mountinfo", "30 22 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
	put("/proc/self/cgroup", "0::/group/inner\n");
	/* The outer group has the lower limit, the inner one less room. */
	put("/sys/fs/cgroup/group/hugetlb.2MB.max", "8388608\n");
	put("/sys/fs/cgroup/group/hugetlb.2MB.current", "0\n");
	put("/sys/fs/cgroup/group/inner/hugetlb.2MB.max", "20971520\n");
	put("/sys/fs/cgroup/group/inner/hugetlb.2MB.current", "18874368\n");
	put("/sys/fs/cgroup/group/inner/hugetlb.2MB.rsvd.max", "max\n");
	put("/sys/fs/cgroup/group/inner/hugetlb.2MB.rsvd.current", "4194304\n");
	put("/sys/fs/cgroup/group/inner/hugetlb.1GB.max", "0\n");
	put("/sys/fs/cgroup/group/memory.max", "1048576\n");
	put("/sys/fs/cgroup/group/inner/memory.max", "max\n");
	put("/sys/fs/cgroup/group/inner/memory.current", "4096\n");

	const struct hp_probe_pool *pool = read_tree();
	assert_string_equal(probe.cgroup, "v2");
	assert_int_equal(pool->cgroup.bytes, 20971520);
	assert_int_equal(pool->cgroup.used_bytes, 18874368);
	assert_string_equal(pool->cgroup.file, "/sys/fs/cgroup/group/inner/hugetlb.2MB.max");
	assert_int_equal(pool->cgroup_rsvd.bytes, -1);
	assert_int_equal(pool->cgroup_rsvd.used_bytes, 4194304);
	assert_string_equal(pool->cgroup_rsvd.file, "");
	assert_int_equal(probe.pool[1].cgroup.bytes, 0);
	assert_int_equal(probe.cgroup_memory.bytes, 1048576);
	assert_int_equal(probe.cgroup_memory.used_bytes, -1);
}

static void test_cgroup_v1(void **state)
{
	put_pool();
	/* A path with a blank, a controller that shares its hierarchy, and one whose name contains another's. */
	put("/proc/self/mountinfo", "31 30 0:28 / /sys/fs/cgroup/a\\040b rw - cgroup cgroup rw,cpu,hugetlb\n"
	                            "32 30 0:29 / /sys/fs/cgroup/x rw - cgroup cgroup rw,name=memory2\n"
	                            "33 30 0:30 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
	put("/proc/self/cgroup", "3:cpu,hugetlb:/one\n2:name=memory2:/no\n1:memory:/box/deep/er\n");
	put("/sys/fs/cgroup/a b/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n");
	put("/sys/fs/cgroup/a b/one/hugetlb.2MB.limit_in_bytes", "0\n");
	put("/sys/fs/cgroup/a b/one/hugetlb.2MB.usage_in_bytes", "0\n");
	put("/sys/fs/cgroup/a b/one/hugetlb.2MB.rsvd.limit_in_bytes", "2097152\n");
	put("/sys/fs/cgroup/memory/deep/memory.limit_in_bytes", "4096000\n");
	put("/sys/fs/cgroup/memory/deep/memory.usage_in_bytes", "96000\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");

	const struct hp_probe_pool *pool = read_tree();
	assert_string_equal(probe.cgroup, "v1");
	assert_int_equal(pool->cgroup.bytes, 0);
	assert_string_equal(pool->cgroup.file, "/sys/fs/cgroup/a b/one/hugetlb.2MB.limit_in_bytes");
	assert_int_equal(pool->cgroup_rsvd.bytes, 2097152);
	assert_int_equal(probe.cgroup_memory.bytes, 4096000);
	assert_int_equal(probe.cgroup_memory.used_bytes, 96000);
}

static void test_cgroup_hybrid(void **state)
{
	put_pool();
	/* memory in version 1, hugetlb in version 2; the own group of version 2 lies outside of what is mounted. */
	put("/proc/self/mountinfo", "33 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	                            "34 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
	put("/proc/self/cgroup", "1:memory:/\n0::/../other\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n");
	put("/sys/fs/cgroup/unified/memory.max", "1\n");
	put("/sys/fs/cgroup/unified/hugetlb.2MB.max", "4194304\n");

	const struct hp_probe_pool *pool = read_tree();
	assert_string_equal(probe.cgroup, "hybrid");
	assert_int_equal(probe.cgroup_memory.bytes, 8192);
	assert_int_equal(pool->cgroup.bytes, 4194304);
	assert_int_equal(pool->cgroup.used_bytes, -1);
}

/* ---- This machine ---------------------------------------------------------------------------------------------- */

static void test_this_machine(void **state)
{
	char why[HP_PROBE_SENTENCE];

	errno = EXDEV;
	hp_probe_read(&probe);
	assert_int_equal(errno, EXDEV);
	assert_true(probe.kernel[0] && probe.kernel_upstream[0] && probe.machine[0]);
	assert_true(probe.zero_method[0]);
	assert_in_range(probe.cpus, 1, sysconf(_SC_NPROCESSORS_CONF));
	assert_true(probe.memory_bytes > 0 && probe.available_bytes <= probe.memory_bytes);
	assert_true(probe.max_map_count > 0);
	assert_in_range(probe.pools, 0, HP_PROBE_SIZES);
	for (int i = 0; i < probe.pools; i++) {
		assert_true(probe.pool[i].page_bytes % HP_BASE_PAGE_SIZE == 0);
		assert_true(i == 0 || probe.pool[i].page_bytes > probe.pool[i - 1].page_bytes);
		assert_true(probe.pool[i].cgroup.bytes >= -1);
	}
	assert_in_range(probe.nodes, 0, HP_PROBE_NODES);
	assert_int_equal(probe.collapse_works, probe.collapse_error == 0);
	assert_true(probe.collapse_error <= 0);
	assert_int_equal(probe.table_sharing, probe.table_sharing_why[0] == '\0');
	assert_int_equal(hp_probe_table_sharing(NULL, why, sizeof(why)), probe.table_sharing);
	assert_string_equal(why, probe.table_sharing_why);
}

/* Nothing may stay behind: the trials open descriptors and map memory. */
static void test_leaves_nothing(void **state)
{
	int before = dup(0);
	assert_true(before >= 0);
	close(before);
	for (int i = 0; i < 3; i++)
		hp_probe_read(&probe);
	int after = dup(0);
	assert_int_equal(after, before);
	close(after);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table_sharing),
		cmocka_unit_test(test_table_sharing_elsewhere),
		cmocka_unit_test_setup_teardown(test_kernel_of_distribution, tree_setup, tree_teardown),
		cmocka_unit_test_setup_teardown(test_empty_tree, tree_setup, tree_teardown),
		cmocka_unit_test_setup_teardown(test_machine, tree_setup, tree_teardown),
		cmocka_unit_test_setup_teardown(test_garbage, tree_setup, tree_teardown),
		cmocka_unit_test_setup_teardown(test_cgroup_v2, tree_setup, tree_teardown),
		cmocka_unit_test_setup_teardown(test_cgroup_v1, tree_setup, tree_teardown),
		cmocka_unit_test_setup_teardown(test_cgroup_hybrid, tree_setup, tree_teardown),
		cmocka_unit_test(test_this_machine),
		cmocka_unit_test(test_leaves_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
