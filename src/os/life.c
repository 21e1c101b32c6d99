/* SPDX-License-Identifier: MIT */
#include "os/life.h"

#include "base/format.h"
#include "base/units.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct flock lock_of(uint32_t number)
{
	return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = number, .l_len = 1};
}

uint64_t hp_life_identity(int control)
{
	int saved_errno = errno;
	struct stat status;
	bool known = control >= 0 && fstat(control, &status) == 0;

	errno = saved_errno;
	return known ? (uint64_t)status.st_dev << 32 ^ status.st_ino : 0;
}

void *hp_life_take(int control, uint64_t identity, uint32_t number)
{
	struct flock lock = lock_of(number);
	int saved_errno = errno, fd;
	void *life = MAP_FAILED;
	char path[40];

	if (control < 0)
		return NULL;
	hp_format(path, sizeof(path), "/proc/self/fd/%d", control);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && hp_life_identity(fd) == identity && fcntl(fd, F_OFD_SETLK, &lock) == 0)
		life = mmap(NULL, HP_BASE_PAGE_SIZE, PROT_NONE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	errno = saved_errno;
	return life == MAP_FAILED ? NULL : life;
}

void hp_life_keep(void *life)
{
	int saved_errno = errno;

	if (life)
		madvise(life, HP_BASE_PAGE_SIZE, MADV_DONTFORK);
	errno = saved_errno;
}

void hp_life_drop(void *life)
{
	int saved_errno = errno;

	if (life)
		munmap(life, HP_BASE_PAGE_SIZE);
	errno = saved_errno;
}

bool hp_life_is_gone(int control, uint64_t identity, uint32_t number)
{
	struct flock lock = lock_of(number);
	int saved_errno = errno;
	bool gone = identity != 0 && hp_life_identity(control) == identity && fcntl(control, F_OFD_GETLK, &lock) == 0 &&
	            lock.l_type == F_UNLCK;

	errno = saved_errno;
	return gone;
}
