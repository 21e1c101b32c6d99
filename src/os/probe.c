/* SPDX-License-Identifier: MIT */
#include "os/probe.h"

#include "hugepool.h"
#include "os/os.h"
#include "os/probe_read.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Newer than the headers of some systems that have the kernel for it. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

#define POOLS "/sys/kernel/mm/hugepages"
#define THP "/sys/kernel/mm/transparent_hugepage"
#define NODES "/sys/devices/system/node"

/* ---- Files ----------------------------------------------------------------------------------------------------- */

static void read_cpu(struct hp_probe *probe, const char *root)
{
	FILE *file = hp_read_open(root, "/proc/cpuinfo");
	char line[512];

	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		if (strncmp(line, "model name", 10) != 0)
			continue;
		char *value = strchr(line, ':');
		if (!value)
			continue;
		value++;
		value += strspn(value, " \t");
		value[strcspn(value, "\n")] = '\0';
		hp_read_copy(probe->cpu, sizeof(probe->cpu), value);
		break;
	}
	fclose(file);
}

static void read_pool(struct hp_probe_pool *pool, const char *root, const char *directory)
{
	const struct {
		const char *name;
		uint64_t *value;
	} files[] = {
		{"nr_hugepages", &pool->total},
		{"free_hugepages", &pool->free},
		{"resv_hugepages", &pool->reserved},
		{"surplus_hugepages", &pool->surplus},
		{"nr_overcommit_hugepages", &pool->overcommit},
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		char path[HP_PROBE_PATH];
		snprintf(path, sizeof(path), POOLS "/%s/%s", directory, files[i].name);
		hp_read_number(root, path, files[i].value);
	}
}

static int by_page_bytes(const void *a, const void *b)
{
	uint64_t x = ((const struct hp_probe_pool *)a)->page_bytes, y = ((const struct hp_probe_pool *)b)->page_bytes;

	return (x > y) - (x < y);
}

static DIR *open_directory(const char *root, const char *path)
{
	char full[2 * HP_PROBE_PATH];

	if (snprintf(full, sizeof(full), "%s%s", root, path) >= (int)sizeof(full))
		return NULL;
	return opendir(full);
}

static void read_pools(struct hp_probe *probe, const char *root)
{
	DIR *directory = open_directory(root, POOLS);
	struct dirent *entry;

	while (directory && (entry = readdir(directory)) && probe->pools < HP_PROBE_SIZES) {
		unsigned long long kb;
		char kind[4];
		if (sscanf(entry->d_name, "hugepages-%llu%3s", &kb, kind) != 2 || strcmp(kind, "kB") != 0)
			continue;
		struct hp_probe_pool *pool = &probe->pool[probe->pools++];
		pool->page_bytes = kb * 1024;
		read_pool(pool, root, entry->d_name);
	}
	if (directory)
		closedir(directory);
	qsort(probe->pool, (size_t)probe->pools, sizeof(probe->pool[0]), by_page_bytes);
}

static void read_thp(struct hp_probe *probe, const char *root)
{
	hp_read_choice(root, THP "/enabled", probe->thp_enabled, sizeof(probe->thp_enabled));
	hp_read_choice(root, THP "/shmem_enabled", probe->thp_shmem, sizeof(probe->thp_shmem));
	hp_read_choice(root, THP "/defrag", probe->thp_defrag, sizeof(probe->thp_defrag));
}

static int by_id(const void *a, const void *b)
{
	return ((const struct hp_probe_node *)a)->id - ((const struct hp_probe_node *)b)->id;
}

static void read_nodes(struct hp_probe *probe, const char *root)
{
	DIR *directory = open_directory(root, NODES);
	struct dirent *entry;

	while (directory && (entry = readdir(directory)) && probe->nodes < HP_PROBE_NODES) {
		char path[HP_PROBE_PATH];
		int id, end = 0;
		if (sscanf(entry->d_name, "node%d%n", &id, &end) != 1 || entry->d_name[end] != '\0' || id < 0)
			continue;
		struct hp_probe_node *node = &probe->node[probe->nodes++];
		node->id = id;
		snprintf(path, sizeof(path), NODES "/node%d/meminfo", id);
		hp_read_kb(root, path, "MemTotal", &node->memory_bytes);
		hp_read_kb(root, path, "MemFree", &node->free_bytes);
		snprintf(path, sizeof(path), NODES "/node%d/hugepages/hugepages-%llukB/nr_hugepages", id,
		         (unsigned long long)(HP_FRAME_SIZE / 1024));
		hp_read_number(root, path, &node->huge_total);
		snprintf(path, sizeof(path), NODES "/node%d/hugepages/hugepages-%llukB/free_hugepages", id,
		         (unsigned long long)(HP_FRAME_SIZE / 1024));
		hp_read_number(root, path, &node->huge_free);
	}
	if (directory)
		closedir(directory);
	qsort(probe->node, (size_t)probe->nodes, sizeof(probe->node[0]), by_id);
}

void hp_probe_read_files(struct hp_probe *probe, const char *root)
{
	memset(probe, 0, sizeof(*probe));
	hp_probe_read_kernel(probe, root);
	read_cpu(probe, root);
	hp_read_kb(root, "/proc/meminfo", "MemTotal", &probe->memory_bytes);
	hp_read_kb(root, "/proc/meminfo", "MemAvailable", &probe->available_bytes);
	hp_read_number(root, "/proc/sys/vm/max_map_count", &probe->max_map_count);
	read_pools(probe, root);
	read_thp(probe, root);
	read_nodes(probe, root);
	hp_probe_read_cgroups(probe, root);
}

/* ---- Trials ---------------------------------------------------------------------------------------------------- */

static int usable_cpus(void)
{
	/* The set must be as large as the kernel's own, which no call tells. */
	for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
		cpu_set_t *set = CPU_ALLOC(cpus);
		size_t size = CPU_ALLOC_SIZE(cpus);
		if (!set)
			break;
		int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
		int error = count ? 0 : errno;
		CPU_FREE(set);
		if (count > 0)
			return count;
		if (error != EINVAL)
			break;
	}
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	return online > 0 ? (int)online : 1;
}

/* CAP_IPC_LOCK lifts RLIMIT_MEMLOCK. */
static bool may_lock_everything(void)
{
	FILE *file = hp_read_open("", "/proc/self/status");
	char line[256];
	unsigned long long effective = 0;

	if (!file)
		return false;
	while (fgets(line, sizeof(line), file) && sscanf(line, "CapEff: %llx", &effective) != 1)
		;
	fclose(file);
	return effective >> 14 & 1;
}

static int64_t memlock_limit(void)
{
	struct rlimit limit;

	if (may_lock_everything() || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return -1;
	return limit.rlim_cur > INT64_MAX ? -1 : (int64_t)limit.rlim_cur;
}

static bool try_userfaultfd(void)
{
	long fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	/* Before Linux 5.11 there was no such flag. */
	if (fd < 0 && errno == EINVAL)
		fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	close((int)fd);
	return true;
}

/* Opening for writing without writing tells, where permission bits would not: read-only mounts, privileges. */
static bool may_set_pools(void)
{
	int fd = open("/proc/sys/vm/nr_hugepages", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	close(fd);
	return true;
}

/* Makes one frame of shared memory huge. Everything is given back. */
static int try_collapse(void)
{
	int error = 0;
	int fd = memfd_create("hugepool-probe", MFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)HP_FRAME_SIZE) != 0) {
		error = -errno;
		goto out_fd;
	}
	char *reserved = mmap(NULL, 2 * HP_FRAME_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (reserved == MAP_FAILED) {
		error = -errno;
		goto out_fd;
	}
	char *frame = (char *)(((uintptr_t)reserved + HP_FRAME_SIZE - 1) & ~(uintptr_t)(HP_FRAME_SIZE - 1));
	if (mmap(frame, HP_FRAME_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		error = -errno;
		goto out_map;
	}
	/* A page that cannot be had here would be a SIGBUS; fallocate asks first. Holes would not be collapsed. */
	if (fallocate(fd, 0, 0, (off_t)HP_FRAME_SIZE) != 0) {
		error = -errno;
		goto out_map;
	}
	for (uint64_t at = 0; at < HP_FRAME_SIZE; at += HP_BASE_PAGE_SIZE)
		*(volatile char *)(frame + at) = 0;
	/* EAGAIN is a page that someone looks at just now. */
	for (int attempt = 0; attempt < 10; attempt++) {
		error = madvise(frame, HP_FRAME_SIZE, MADV_COLLAPSE) == 0 ? 0 : -errno;
		if (error != -EAGAIN)
			break;
		usleep(1000);
	}
out_map:
	munmap(reserved, 2 * HP_FRAME_SIZE);
out_fd:
	close(fd);
	return error;
}

void hp_probe_read(struct hp_probe *probe)
{
	int saved = errno;

	hp_probe_read_files(probe, "");
	hp_read_copy(probe->zero_method, sizeof(probe->zero_method), hp_zero_method_best()->name);
	probe->cpus = usable_cpus();
	probe->memlock_bytes = memlock_limit();
	probe->userfaultfd = try_userfaultfd();
	probe->may_set_pools = may_set_pools();
	probe->thp_disabled = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) > 0;
	probe->collapse_error = try_collapse();
	probe->collapse_works = probe->collapse_error == 0;
	errno = saved;
}

const struct hp_probe_pool *hp_probe_pool_of(const struct hp_probe *probe, uint64_t page_bytes)
{
	for (int i = 0; i < probe->pools; i++)
		if (probe->pool[i].page_bytes == page_bytes)
			return &probe->pool[i];
	return NULL;
}
