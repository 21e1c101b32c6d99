/* SPDX-License-Identifier: MIT */
/*
 * A pool's control memory is a memfd with a name of its own. It is looked for among the process's descriptors, and, for
 * programs that have closed all of those, among what it has mapped, which takes more privilege.
 */
#include "os/attach.h"

#include "base/format.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOUND_MAX 64
#define LINK_NAME "/memfd:hugepool-control (deleted)"

struct found {
	uint64_t made_ns; /* 0 on kernels that do not note it */
	uint64_t inode;   /* grows with each file that is made, as long as that is on one CPU */
	char path[64];
};

static int by_age(const void *a, const void *b)
{
	const struct found *x = a, *y = b;

	if (x->made_ns != y->made_ns)
		return x->made_ns < y->made_ns ? -1 : 1;
	return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static void note(struct found *found, unsigned *count, const char *path)
{
	struct statx status;
	char target[64];
	ssize_t length = readlink(path, target, sizeof(target) - 1);

	if (length != (ssize_t)strlen(LINK_NAME) || memcmp(target, LINK_NAME, strlen(LINK_NAME)) != 0 ||
	    statx(AT_FDCWD, path, 0, STATX_INO | STATX_BTIME, &status))
		return;
	for (unsigned i = 0; i < *count; i++)
		if (found[i].inode == status.stx_ino)
			return;
	if (*count == FOUND_MAX)
		return;
	found[*count].inode = status.stx_ino;
	found[*count].made_ns = !(status.stx_mask & STATX_BTIME)
	                                ? 0
	                                : (uint64_t)status.stx_btime.tv_sec * 1000000000 + status.stx_btime.tv_nsec;
	hp_format(found[(*count)++].path, sizeof(found[0].path), "%s", path);
}

static int look_in(int pid, const char *folder, struct found *found, unsigned *count)
{
	char path[64];
	struct dirent *entry;
	DIR *dir;

	hp_format(path, sizeof(path), "/proc/%d/%s", pid, folder);
	dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? -ESRCH : -errno;
	while ((entry = readdir(dir)) != NULL) {
		char file[64];

		if (entry->d_name[0] == '.' || strlen(entry->d_name) > 36)
			continue;
		hp_format(file, sizeof(file), "/proc/%d/%s/%s", pid, folder, entry->d_name);
		note(found, count, file);
	}
	closedir(dir);
	return 0;
}

static bool is_sealed(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && seals & F_SEAL_SHRINK;
}

static int map_file(const char *path, void **address, uint64_t *size)
{
	int fd = open(path, O_RDWR | O_CLOEXEC), result = 0;
	struct stat status;

	if (fd < 0)
		return errno == EPERM ? -EACCES : -errno;
	/* One that its owner can shrink would end us by SIGBUS. */
	if (fstat(fd, &status))
		result = -errno;
	else if (status.st_size == 0 || !is_sealed(fd))
		result = -EPROTO; /* just being made, or not one of ours */
	else if ((*address = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) ==
	         MAP_FAILED)
		result = -errno;
	else
		*size = (uint64_t)status.st_size;
	close(fd);
	return result;
}

int hp_attach(int pid, unsigned number, void **address, uint64_t *size)
{
	struct found found[FOUND_MAX];
	unsigned count = 0;
	int saved_errno = errno, result = look_in(pid, "fd", found, &count);

	if (!result && !count)
		look_in(pid, "map_files", found, &count);
	qsort(found, count, sizeof(found[0]), by_age);
	if (!result)
		result = number < count ? map_file(found[number].path, address, size) : -ENOENT;
	errno = saved_errno;
	return result;
}

void hp_detach(void *address, uint64_t size)
{
	int saved_errno = errno;

	munmap(address, size);
	errno = saved_errno;
}
