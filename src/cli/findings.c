/* SPDX-License-Identifier: MIT */
#include "cli/findings.h"

#include "hugepool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list {
	const struct hp_probe *probe;
	bool root;
	int count;
	struct hp_finding *at;
};

const char *hp_severity_name(enum hp_severity severity)
{
	static const char *const names[] = {"blocks", "slows", "note"};

	return names[severity];
}

const char *hp_format_bytes(uint64_t bytes, char *text, size_t size)
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	unsigned unit = 0;

	while (unit < 6 && bytes >> (10 * (unit + 1)))
		unit++;
	uint64_t whole = bytes >> (10 * unit);
	if (whole << (10 * unit) == bytes)
		snprintf(text, size, "%llu %s", (unsigned long long)whole, units[unit]);
	else
		snprintf(text, size, "%.1f %s", (double)bytes / (double)((uint64_t)1 << (10 * unit)), units[unit]);
	return text;
}

static struct hp_finding *add(struct list *list, const char *id, enum hp_severity severity, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

static struct hp_finding *add(struct list *list, const char *id, enum hp_severity severity, const char *format, ...)
{
	static struct hp_finding surplus;
	struct hp_finding *finding = list->count < HP_FINDINGS_MAX ? &list->at[list->count++] : &surplus;
	va_list arguments;

	*finding = (struct hp_finding){.id = id, .severity = severity};
	va_start(arguments, format);
	vsnprintf(finding->text, sizeof(finding->text), format, arguments);
	va_end(arguments);
	return finding;
}

/* The command that writes `value` to a file that belongs to root. */
static void command_write(const struct list *list, struct hp_finding *finding, const char *value, const char *file)
{
	snprintf(finding->command, sizeof(finding->command), list->root ? "echo %s > '%s'" : "echo %s | sudo tee '%s'",
	         value, file);
	/* Quotes only where a name needs them. */
	if (file[strspn(file, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:@")] == '\0')
		snprintf(finding->command, sizeof(finding->command),
		         list->root ? "echo %s > %s" : "echo %s | sudo tee %s", value, file);
}

static void command_write_number(const struct list *list, struct hp_finding *finding, uint64_t value, const char *file)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	command_write(list, finding, text, file);
}

/* A quarter of what is available: room to try things, and the machine goes on. */
static uint64_t pages_to_suggest(const struct hp_probe *probe)
{
	uint64_t pages = probe->available_bytes / 4 / HP_FRAME_SIZE;

	return pages ? pages : 1;
}

static void check_pool(struct list *list)
{
	const struct hp_probe *probe = list->probe;
	const struct hp_probe_pool *pool = hp_probe_pool_of(probe, HP_FRAME_SIZE);
	const char *where = list->root && !probe->may_set_pools
	                            ? " This container may not set it: run the command on the host."
	                            : "";
	uint64_t more = pages_to_suggest(probe);
	char size[32];
	struct hp_finding *finding;

	if (!pool) {
		add(list, "no_hugetlb", HP_SEVERITY_BLOCKS,
		    "This kernel has no pool of 2 MiB pages. Boot one that was built with CONFIG_HUGETLBFS=y and base "
		    "pages of 4 KiB.");
		return;
	}
	uint64_t spare = pool->overcommit > pool->surplus ? pool->overcommit - pool->surplus : 0;
	uint64_t unpromised = pool->free > pool->reserved ? pool->free - pool->reserved : 0;
	if (spare + unpromised > 0)
		return;
	hp_format_bytes(more * HP_FRAME_SIZE, size, sizeof(size));
	if (pool->total == 0) {
		finding = add(list, "no_huge_pages", HP_SEVERITY_BLOCKS,
		              "The kernel has no 2 MiB pages set aside. %llu pages are %s, a quarter of the available "
		              "memory; a line vm.nr_hugepages=%llu in /etc/sysctl.d/hugepool.conf keeps them after a "
		              "reboot.%s",
		              (unsigned long long)more, size, (unsigned long long)more, where);
		command_write_number(list, finding, more, "/proc/sys/vm/nr_hugepages");
		return;
	}
	finding = add(list, "huge_pages_taken", HP_SEVERITY_BLOCKS,
	              "All %llu of the kernel's 2 MiB pages are in use or promised. %s more would be a quarter of the "
	              "available memory.%s",
	              (unsigned long long)pool->total, size, where);
	command_write_number(list, finding, pool->total + more, "/proc/sys/vm/nr_hugepages");
}

static void check_group_limit(struct list *list, const struct hp_probe_limit *limit, const char *id, const char *what)
{
	char size[32], left[32];

	if (limit->bytes < 0)
		return;
	uint64_t room = (uint64_t)(limit->bytes > limit->used_bytes
	                                   ? limit->bytes - (limit->used_bytes > 0 ? limit->used_bytes : 0)
	                                   : 0);
	enum hp_severity severity = room < HP_FRAME_SIZE ? HP_SEVERITY_BLOCKS : HP_SEVERITY_NOTE;
	struct hp_finding *finding;
	hp_format_bytes((uint64_t)limit->bytes, size, sizeof(size));
	hp_format_bytes(room, left, sizeof(left));
	if (limit->bytes == 0)
		finding = add(list, id, severity,
		              "A control group forbids %s. The manager that set this may set it again.", what);
	else
		finding =
			add(list, id, severity,
		            "A control group limits %s to %s; %s are left. The manager that set this may set it again.",
		            what, size, left);
	size_t length = strlen(limit->file);
	bool first_version = length > 9 && strcmp(limit->file + length - 9, "_in_bytes") == 0;
	command_write(list, finding, first_version ? "-1" : "max", limit->file);
}

static void check_groups(struct list *list)
{
	const struct hp_probe_pool *pool = hp_probe_pool_of(list->probe, HP_FRAME_SIZE);
	const struct hp_probe_limit *memory = &list->probe->cgroup_memory;

	if (pool) {
		check_group_limit(list, &pool->cgroup, "cgroup_hugetlb", "2 MiB pages");
		check_group_limit(list, &pool->cgroup_rsvd, "cgroup_hugetlb_reserved", "reservations of 2 MiB pages");
	}
	if (list->probe->memory_bytes == 0 || (uint64_t)memory->bytes < list->probe->memory_bytes)
		check_group_limit(list, memory, "cgroup_memory",
		                  "memory (transparent huge pages and base pages count against it)");
}

static void check_collapse(struct list *list)
{
	static const char shmem_file[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
	static const char id[] = "collapse_fails";
	const struct hp_probe *probe = list->probe;
	struct hp_finding *finding;
	unsigned major = 0, minor = 0;

	if (probe->collapse_works)
		return;
	if (sscanf(probe->kernel_upstream, "%u.%u", &major, &minor) == 2 && (major < 6 || (major == 6 && minor < 1))) {
		add(list, id, HP_SEVERITY_SLOWS,
		    "Shared memory cannot be made of transparent huge pages: that came with Linux 6.1, and this is %s.",
		    probe->kernel_upstream);
	} else if (probe->thp_shmem[0] == '\0') {
		add(list, id, HP_SEVERITY_SLOWS,
		    "This kernel has no transparent huge pages for shared memory. Boot one that was built with "
		    "CONFIG_TRANSPARENT_HUGEPAGE=y.");
	} else if (strcmp(probe->thp_shmem, "deny") == 0) {
		finding = add(list, id, HP_SEVERITY_SLOWS,
		              "Transparent huge pages are denied for all shared memory. \"advise\" gives them to "
		              "programs that ask, and to no other.");
		command_write(list, finding, "advise", shmem_file);
	} else if (probe->thp_disabled) {
		add(list, id, HP_SEVERITY_SLOWS,
		    "Transparent huge pages are switched off for this process by prctl(PR_SET_THP_DISABLE), which it "
		    "has from its parent. Start it from a process that does not do that.");
	} else if (probe->collapse_error == -ENOMEM) {
		finding = add(list, id, HP_SEVERITY_SLOWS,
		              "A frame of shared memory could not be made huge: the kernel found no free 2 MiB in one "
		              "piece. Compacting memory may find some.");
		command_write(list, finding, "1", "/proc/sys/vm/compact_memory");
	} else {
		add(list, id, HP_SEVERITY_SLOWS,
		    "A frame of shared memory could not be made huge: madvise(MADV_COLLAPSE) says \"%s\" on Linux %s.",
		    strerror(-probe->collapse_error), probe->kernel);
	}
}

static void check_sharing(struct list *list)
{
	if (list->probe->table_sharing)
		return;
	add(list, "no_table_sharing", HP_SEVERITY_SLOWS,
	    "Large mappings do not share page tables, so each process faults their pages in by itself: %s.",
	    list->probe->table_sharing_why);
}

/* Pools of several nodes: memory of a node without pages comes from far away. */
static void check_nodes(struct list *list)
{
	const struct hp_probe *probe = list->probe;
	uint64_t total = 0;

	for (int i = 0; i < probe->nodes; i++)
		total += probe->node[i].huge_total;
	for (int i = 0; i < probe->nodes && total; i++) {
		const struct hp_probe_node *node = &probe->node[i];
		char file[128];
		if (node->huge_total || node->memory_bytes == 0)
			continue;
		struct hp_finding *finding = add(list, "node_without_huge_pages", HP_SEVERITY_SLOWS,
		                                 "NUMA node %d has none of the kernel's 2 MiB pages; programs that run "
		                                 "there get those of another node.",
		                                 node->id);
		snprintf(file, sizeof(file), "/sys/devices/system/node/node%d/hugepages/hugepages-%llukB/nr_hugepages",
		         node->id, (unsigned long long)(HP_FRAME_SIZE / 1024));
		uint64_t pages = node->free_bytes / 4 / HP_FRAME_SIZE;
		command_write_number(list, finding, pages ? pages : 1, file);
	}
}

static void check_limits(struct list *list)
{
	const struct hp_probe *probe = list->probe;
	uint64_t frames = probe->memory_bytes / HP_FRAME_SIZE;
	struct hp_finding *finding;
	char size[32];

	/* In the worst case each frame of a lazy mapping is a kernel mapping, and hugepool takes 80 % of those. */
	if (probe->max_map_count && probe->max_map_count / 10 * 8 < frames) {
		finding = add(
			list, "max_map_count", HP_SEVERITY_NOTE,
			"A process may have %llu mappings. Lazy mappings of all this machine's memory could need %llu; "
			"where they are short, the mapping is refused.",
			(unsigned long long)probe->max_map_count, (unsigned long long)(frames / 8 * 10 + 10));
		command_write_number(list, finding, frames / 8 * 10 + 10, "/proc/sys/vm/max_map_count");
	}
	if (probe->memlock_bytes >= 0 && (uint64_t)probe->memlock_bytes < probe->memory_bytes) {
		finding = add(list, "memlock", HP_SEVERITY_NOTE,
		              "This process may lock %s: mlock, VFIO and registered buffers fail beyond that. hugepool "
		              "itself locks nothing.",
		              hp_format_bytes((uint64_t)probe->memlock_bytes, size, sizeof(size)));
		snprintf(finding->command, sizeof(finding->command), "%sprlimit --pid $$ --memlock=unlimited:unlimited",
		         list->root ? "" : "sudo ");
	}
}

static int by_severity(const void *a, const void *b)
{
	const struct hp_finding *x = a, *y = b;

	return (int)x->severity - (int)y->severity;
}

int hp_findings(const struct hp_probe *probe, bool root, struct hp_finding findings[HP_FINDINGS_MAX])
{
	struct list list = {.probe = probe, .root = root, .at = findings};

	check_pool(&list);
	check_groups(&list);
	check_collapse(&list);
	check_sharing(&list);
	check_nodes(&list);
	check_limits(&list);
	/* glibc's qsort merges, which keeps the order of equals; with another the order is only less pretty. */
	qsort(findings, (size_t)list.count, sizeof(findings[0]), by_severity);
	return list.count;
}
