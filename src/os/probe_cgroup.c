/* SPDX-License-Identifier: MIT */
/*
 * The limits of the control groups that this process is in, versions 1 and 2 and both at once.
 *
 * A controller is in one hierarchy only: in the version 1 hierarchy that names it, or else in version 2. In that
 * hierarchy every group from our own up to the root may have a limit, and the one with the least room decides. In a
 * container only a part of the way up may be visible; what is not visible is not known.
 */
#include "os/probe_read.h"

#include "hugepool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct hierarchy {
	bool found;
	char mount_point[HP_PROBE_PATH];
	char path[HP_PROBE_PATH]; /* of our own group below the mount point: "" or "/a/b" */
};

/* The names that one limit has in the two versions. */
struct limit_files {
	const char *limit[2], *used[2];
};

/* True if `word` is one of those in `list`, separated by commas. */
static bool in_list(const char *list, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = list; (at = strstr(at, word)); at += length) {
		bool begins = at == list || at[-1] == ',';
		bool ends = at[length] == ',' || at[length] == '\0' || at[length] == '\n';
		if (begins && ends)
			return true;
	}
	return false;
}

/* Blanks and backslashes of paths stand in mountinfo as \040: undone in place. */
static void unescape(char *text)
{
	char *to = text;

	for (char *from = text; *from; to++) {
		if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' &&
		    from[3] >= '0' && from[3] <= '7') {
			*to = (char)((from[1] - '0') * 64 + (from[2] - '0') * 8 + (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = '\0';
}

/*
 * Our group's path in a hierarchy, as /proc/self/cgroup has it. controller NULL is version 2.
 * Lines are "4:cpu,memory:/a/b" and "0::/a/b".
 */
static bool own_path(const char *root, const char *controller, char *path, size_t size)
{
	FILE *file = hp_read_open(root, "/proc/self/cgroup");
	char *line = NULL;
	size_t capacity = 0;
	bool found = false;

	if (!file)
		return false;
	while (!found && getline(&line, &capacity, file) > 0) {
		char *controllers = strchr(line, ':');
		char *own = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!own)
			continue;
		*own++ = '\0';
		own[strcspn(own, "\n")] = '\0';
		controllers++;
		found = controller ? in_list(controllers, controller)
		                   : strncmp(line, "0:", 2) == 0 && *controllers == '\0';
		if (found)
			hp_read_copy(path, size, own);
	}
	free(line);
	fclose(file);
	return found;
}

struct mount {
	char *type, *root, *point, *options;
};

/* Takes a line of mountinfo apart: "31 30 0:28 ROOT POINT rw shared:5 - TYPE SOURCE OPTIONS". */
static bool parse_mount(char *line, struct mount *mount)
{
	char *save;
	char *field = strtok_r(line, " \n", &save);

	*mount = (struct mount){.type = NULL};
	for (int i = 0; field; i++, field = strtok_r(NULL, " \n", &save)) {
		if (i == 3)
			mount->root = field;
		else if (i == 4)
			mount->point = field;
		else if (i > 5 && strcmp(field, "-") == 0)
			break;
	}
	if (!field || !mount->point)
		return false;
	mount->type = strtok_r(NULL, " \n", &save);
	strtok_r(NULL, " \n", &save);
	mount->options = strtok_r(NULL, " \n", &save);
	if (!mount->type || !mount->options)
		return false;
	unescape(mount->root);
	unescape(mount->point);
	return true;
}

/* What of `path` is below a mount of the group `mount_root`: "" if that group is not one of ours. */
static const char *below(const char *path, const char *mount_root)
{
	size_t length = strlen(mount_root);

	if (strcmp(path, "/") == 0 || strncmp(path, "/..", 3) == 0)
		return "";
	if (strcmp(mount_root, "/") == 0)
		return path;
	if (strncmp(path, mount_root, length) != 0 || (path[length] != '/' && path[length] != '\0'))
		return "";
	return path + length;
}

/* Finds where a controller's hierarchy is mounted; controller NULL is version 2. */
static void find_hierarchy(const char *root, const char *controller, struct hierarchy *hierarchy)
{
	char path[HP_PROBE_PATH] = "/";
	FILE *file = hp_read_open(root, "/proc/self/mountinfo");
	char *line = NULL;
	size_t capacity = 0;

	hierarchy->found = false;
	if (!file)
		return;
	own_path(root, controller, path, sizeof(path));
	while (!hierarchy->found && getline(&line, &capacity, file) > 0) {
		struct mount mount;
		if (!parse_mount(line, &mount) || strcmp(mount.type, controller ? "cgroup" : "cgroup2") != 0)
			continue;
		if (controller && !in_list(mount.options, controller))
			continue;
		hierarchy->found = true;
		hp_read_copy(hierarchy->mount_point, sizeof(hierarchy->mount_point), mount.point);
		hp_read_copy(hierarchy->path, sizeof(hierarchy->path), below(path, mount.root));
	}
	free(line);
	fclose(file);
}

/* The kind of control groups, by what is mounted. */
static void find_kind(const char *root, char *kind, size_t size)
{
	FILE *file = hp_read_open(root, "/proc/self/mountinfo");
	char *line = NULL;
	size_t capacity = 0;
	bool mounted[2] = {false, false};

	while (file && getline(&line, &capacity, file) > 0) {
		struct mount mount;
		if (!parse_mount(line, &mount))
			continue;
		mounted[0] |= strcmp(mount.type, "cgroup") == 0;
		mounted[1] |= strcmp(mount.type, "cgroup2") == 0;
	}
	free(line);
	if (file)
		fclose(file);
	hp_read_copy(kind, size, mounted[0] && mounted[1] ? "hybrid" : mounted[0] ? "v1" : mounted[1] ? "v2" : "none");
}

/* A limit or use in bytes. "max", and version 1's way to say the same, is -1. */
static int read_bytes(const char *root, const char *directory, const char *name, char *path, size_t size,
                      int64_t *bytes)
{
	char line[64];
	int error;
	uint64_t number;

	if (snprintf(path, size, "%s/%s", directory, name) >= (int)size)
		return -ENAMETOOLONG;
	error = hp_read_line(root, path, line, sizeof(line));
	if (error)
		return error;
	if (strcmp(line, "max") == 0) {
		*bytes = -1;
		return 0;
	}
	error = hp_read_number(root, path, &number);
	if (error)
		return error;
	/* Version 1 has the highest signed number, rounded down to pages of that size. */
	*bytes = number >= (uint64_t)1 << 62 ? -1 : (int64_t)number;
	return 0;
}

static int64_t room(int64_t limit, int64_t used)
{
	if (used < 0)
		return limit;
	return limit > used ? limit - used : 0;
}

/* Walks from our own group to the top of what is mounted. */
static void walk(const char *root, const struct hierarchy *hierarchy, int version, const struct limit_files *files,
                 struct hp_probe_limit *limit)
{
	char directory[2 * HP_PROBE_PATH];
	char path[HP_PROBE_PATH], ignored[HP_PROBE_PATH];
	size_t top = strlen(hierarchy->mount_point);

	snprintf(directory, sizeof(directory), "%s%s", hierarchy->mount_point, hierarchy->path);
	for (;;) {
		int64_t bytes, used = -1;
		bool limited = read_bytes(root, directory, files->limit[version], path, sizeof(path), &bytes) == 0;
		read_bytes(root, directory, files->used[version], ignored, sizeof(ignored), &used);
		if (limited && bytes >= 0 &&
		    (limit->bytes < 0 || room(bytes, used) < room(limit->bytes, limit->used_bytes))) {
			limit->bytes = bytes;
			limit->used_bytes = used;
			hp_read_copy(limit->file, sizeof(limit->file), path);
		} else if (limit->bytes < 0 && limit->used_bytes < 0) {
			limit->used_bytes = used;
		}
		char *slash = strrchr(directory, '/');
		if (!slash || (size_t)(slash - directory) < top)
			break;
		*slash = '\0';
	}
}

static void read_limit(const char *root, const struct hierarchy hierarchies[2], const struct limit_files *files,
                       struct hp_probe_limit *limit)
{
	*limit = (struct hp_probe_limit){.bytes = -1, .used_bytes = -1};
	for (int version = 0; version < 2; version++) {
		if (!hierarchies[version].found)
			continue;
		walk(root, &hierarchies[version], version, files, limit);
		return;
	}
}

/* The kernel's name of a huge page size in control groups: 64KB, 2MB, 1GB. */
static void size_name(uint64_t bytes, char *name, size_t size)
{
	if (bytes >= (uint64_t)1 << 30)
		snprintf(name, size, "%lluGB", (unsigned long long)(bytes >> 30));
	else if (bytes >= (uint64_t)1 << 20)
		snprintf(name, size, "%lluMB", (unsigned long long)(bytes >> 20));
	else
		snprintf(name, size, "%lluKB", (unsigned long long)(bytes >> 10));
}

static void read_pool_limits(const char *root, const struct hierarchy hierarchies[2], struct hp_probe_pool *pool)
{
	static const char *const format[2][4] = {
		{"hugetlb.%s.limit_in_bytes", "hugetlb.%s.usage_in_bytes", "hugetlb.%s.rsvd.limit_in_bytes",
	         "hugetlb.%s.rsvd.usage_in_bytes"},
		{"hugetlb.%s.max", "hugetlb.%s.current", "hugetlb.%s.rsvd.max", "hugetlb.%s.rsvd.current"},
	};
	char size[32];
	char name[2][4][80];

	size_name(pool->page_bytes, size, sizeof(size));
	for (int version = 0; version < 2; version++) {
		for (int i = 0; i < 4; i++) {
			const char *at = strstr(format[version][i], "%s");
			snprintf(name[version][i], sizeof(name[version][i]), "%.*s%s%s", (int)(at - format[version][i]),
			         format[version][i], size, at + 2);
		}
	}
	read_limit(root, hierarchies, &(struct limit_files){{name[0][0], name[1][0]}, {name[0][1], name[1][1]}},
	           &pool->cgroup);
	read_limit(root, hierarchies, &(struct limit_files){{name[0][2], name[1][2]}, {name[0][3], name[1][3]}},
	           &pool->cgroup_rsvd);
}

void hp_probe_read_cgroups(struct hp_probe *probe, const char *root)
{
	static const struct limit_files memory_files = {{"memory.limit_in_bytes", "memory.max"},
	                                                {"memory.usage_in_bytes", "memory.current"}};
	struct hierarchy hugetlb[2], memory[2];

	find_kind(root, probe->cgroup, sizeof(probe->cgroup));
	find_hierarchy(root, "hugetlb", &hugetlb[0]);
	find_hierarchy(root, "memory", &memory[0]);
	find_hierarchy(root, NULL, &hugetlb[1]);
	memory[1] = hugetlb[1];

	read_limit(root, memory, &memory_files, &probe->cgroup_memory);
	for (int i = 0; i < probe->pools; i++)
		read_pool_limits(root, hugetlb, &probe->pool[i]);
}
