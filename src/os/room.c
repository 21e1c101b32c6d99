/* SPDX-License-Identifier: MIT */
#include "os/room.h"

#include "base/units.h"
#include "os/probe.h"
#include "os/probe_read.h"

#include <stdio.h>
#include <string.h>

/* One part in 16 stays free. */
static uint64_t usable(uint64_t bytes)
{
	return bytes - bytes / 16;
}

/* Page cache of the group that nobody uses, which the kernel drops before it kills. */
static uint64_t idle_cache(const struct hp_probe_limit *limit)
{
	char path[HP_PROBE_PATH + 16], line[128];
	unsigned long long bytes, total = 0;
	const char *name = strrchr(limit->file, '/');
	FILE *file;

	if (!name)
		return 0;
	snprintf(path, sizeof(path), "%.*s/memory.stat", (int)(name - limit->file), limit->file);
	file = fopen(path, "re");
	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file))
		/* Version 1 has the sum over the group's children in a line of its own. */
		if (sscanf(line, "inactive_file %llu", &bytes) == 1 ||
		    sscanf(line, "total_inactive_file %llu", &bytes) == 1)
			total = bytes > total ? bytes : total;
	fclose(file);
	return total;
}

uint64_t hp_memory_room(hp_limit *limit)
{
	struct hp_probe probe;
	uint64_t room;

	hp_probe_read_files(&probe, "");
	*limit = HP_LIMIT_MEMORY;
	room = probe.available_bytes ? usable(probe.available_bytes) : UINT64_MAX;
	if (probe.cgroup_memory.bytes >= 0 && probe.cgroup_memory.used_bytes >= 0) {
		int64_t left = probe.cgroup_memory.bytes - probe.cgroup_memory.used_bytes;
		uint64_t in_group = usable((left > 0 ? (uint64_t)left : 0) + idle_cache(&probe.cgroup_memory));

		if (in_group < room) {
			*limit = HP_LIMIT_CGROUP;
			room = in_group;
		}
	}
	return room;
}
