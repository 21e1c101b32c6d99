/* SPDX-License-Identifier: MIT */
/* What the findings say about made-up machines. */
#include "cli/findings.h"
#include "hugepool.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct hp_probe probe;
static struct hp_finding findings[HP_FINDINGS_MAX];

/* A machine where nothing stands in the way. */
static int setup(void **state)
{
	probe = (struct hp_probe){
		.kernel = "6.18.44",
		.kernel_upstream = "6.18.44",
		.machine = "x86_64",
		.cpus = 2,
		.memory_bytes = (uint64_t)16 << 30,
		.available_bytes = (uint64_t)8 << 30,
		.pools = 1,
		.pool[0] = {.page_bytes = HP_FRAME_SIZE,
	                    .total = 10,
	                    .free = 10,
	                    .cgroup = {.bytes = -1, .used_bytes = -1},
	                    .cgroup_rsvd = {.bytes = -1, .used_bytes = -1}},
		.thp_shmem = "never",
		.collapse_works = true,
		.cgroup_memory = {.bytes = -1, .used_bytes = -1},
		.memlock_bytes = -1,
		.max_map_count = 65530,
		.table_sharing = true,
		.nodes = 1,
		.node[0] = {.memory_bytes = (uint64_t)16 << 30, .huge_total = 10},
	};
	return 0;
}

static void expect_one(bool root, const char *id, enum hp_severity severity, const char *command)
{
	assert_int_equal(hp_findings(&probe, root, findings), 1);
	assert_string_equal(findings[0].id, id);
	assert_int_equal(findings[0].severity, severity);
	assert_string_equal(findings[0].command, command);
	assert_true(strlen(findings[0].text) < sizeof(findings[0].text) - 1);
}

static void test_nothing(void **state)
{
	assert_int_equal(hp_findings(&probe, false, findings), 0);
}

static void test_pool(void **state)
{
	struct hp_probe_pool *pool = &probe.pool[0];

	pool->total = pool->free = 0;
	expect_one(false, "no_huge_pages", HP_SEVERITY_BLOCKS, "echo 1024 | sudo tee /proc/sys/vm/nr_hugepages");
	expect_one(true, "no_huge_pages", HP_SEVERITY_BLOCKS, "echo 1024 > /proc/sys/vm/nr_hugepages");
	assert_non_null(strstr(findings[0].text, "on the host"));
	probe.may_set_pools = true;
	expect_one(true, "no_huge_pages", HP_SEVERITY_BLOCKS, "echo 1024 > /proc/sys/vm/nr_hugepages");
	assert_null(strstr(findings[0].text, "on the host"));
	/* What may be overcommitted is there when it is asked for. */
	pool->overcommit = 5;
	assert_int_equal(hp_findings(&probe, false, findings), 0);

	pool->total = 15;
	pool->surplus = 5;
	pool->free = pool->reserved = 3;
	expect_one(false, "huge_pages_taken", HP_SEVERITY_BLOCKS, "echo 1039 | sudo tee /proc/sys/vm/nr_hugepages");
	probe.pools = 0;
	expect_one(false, "no_hugetlb", HP_SEVERITY_BLOCKS, "");
}

static void test_groups(void **state)
{
	struct hp_probe_limit *limit = &probe.pool[0].cgroup;

	*limit = (struct hp_probe_limit){.bytes = 0, .used_bytes = -1, .file = "/sys/fs/cgroup/a/hugetlb.2MB.max"};
	expect_one(false, "cgroup_hugetlb", HP_SEVERITY_BLOCKS, "echo max | sudo tee /sys/fs/cgroup/a/hugetlb.2MB.max");
	*limit = (struct hp_probe_limit){
		.bytes = 1 << 30, .used_bytes = 1 << 20, .file = "/sys/fs/cgroup/a b/hugetlb.2MB.limit_in_bytes"};
	expect_one(true, "cgroup_hugetlb", HP_SEVERITY_NOTE,
	           "echo -1 > '/sys/fs/cgroup/a b/hugetlb.2MB.limit_in_bytes'");
	limit->used_bytes = (int64_t)2 << 30; /* a limit may be set below the use */
	assert_int_equal(hp_findings(&probe, true, findings), 1);
	assert_int_equal(findings[0].severity, HP_SEVERITY_BLOCKS);

	setup(state);
	probe.cgroup_memory = (struct hp_probe_limit){.bytes = 1 << 30, .used_bytes = 0, .file = "/x/memory.max"};
	expect_one(false, "cgroup_memory", HP_SEVERITY_NOTE, "echo max | sudo tee /x/memory.max");
	/* More than there is, is no limit. */
	probe.cgroup_memory.bytes = (int64_t)17 << 30;
	assert_int_equal(hp_findings(&probe, false, findings), 0);
}

static void test_collapse(void **state)
{
	probe.collapse_works = false;
	probe.collapse_error = -EINVAL;
	expect_one(false, "collapse_fails", HP_SEVERITY_SLOWS, "");
	strcpy(probe.thp_shmem, "deny");
	expect_one(false, "collapse_fails", HP_SEVERITY_SLOWS,
	           "echo advise | sudo tee /sys/kernel/mm/transparent_hugepage/shmem_enabled");
	strcpy(probe.kernel_upstream, "6.0.9");
	expect_one(false, "collapse_fails", HP_SEVERITY_SLOWS, "");
	assert_non_null(strstr(findings[0].text, "6.1"));
	strcpy(probe.kernel_upstream, "10.0");
	strcpy(probe.thp_shmem, "never");
	probe.collapse_error = -ENOMEM;
	expect_one(true, "collapse_fails", HP_SEVERITY_SLOWS, "echo 1 > /proc/sys/vm/compact_memory");
}

static void test_limits(void **state)
{
	probe.memlock_bytes = 8 << 20;
	expect_one(false, "memlock", HP_SEVERITY_NOTE, "sudo prlimit --pid $$ --memlock=unlimited:unlimited");
	probe.memlock_bytes = -1;
	probe.memory_bytes = (uint64_t)1 << 40;
	expect_one(true, "max_map_count", HP_SEVERITY_NOTE, "echo 655370 > /proc/sys/vm/max_map_count");
	/* What the command sets is enough. */
	probe.max_map_count = 655370;
	assert_int_equal(hp_findings(&probe, true, findings), 0);
}

static void test_order(void **state)
{
	probe.memlock_bytes = 0;
	probe.table_sharing = false;
	probe.nodes = 2;
	probe.node[1] = (struct hp_probe_node){.id = 1, .memory_bytes = 1 << 30, .free_bytes = 1 << 30};
	probe.pool[0].free = 0;
	assert_int_equal(hp_findings(&probe, true, findings), 4);
	assert_string_equal(findings[0].id, "huge_pages_taken");
	assert_string_equal(findings[1].id, "no_table_sharing");
	assert_string_equal(findings[2].id, "node_without_huge_pages");
	assert_string_equal(findings[2].command,
	                    "echo 128 > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages");
	assert_string_equal(findings[3].id, "memlock");
}

static void test_format(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {{0, "0 bytes"},          {1023, "1023 bytes"},         {2097152, "2 MiB"},
	             {1536, "1.5 KiB"},       {(uint64_t)3 << 30, "3 GiB"}, {(uint64_t)1 << 60, "1 EiB"},
	             {UINT64_MAX, "16.0 EiB"}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char text[32];
		assert_string_equal(hp_format_bytes(cases[i].bytes, text, sizeof(text)), cases[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_nothing, setup),
		cmocka_unit_test_setup(test_pool, setup),
		cmocka_unit_test_setup(test_groups, setup),
		cmocka_unit_test_setup(test_collapse, setup),
		cmocka_unit_test_setup(test_limits, setup),
		cmocka_unit_test_setup(test_order, setup),
		cmocka_unit_test(test_format),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
