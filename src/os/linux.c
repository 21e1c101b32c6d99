/* SPDX-License-Identifier: MIT */
/* The kernel, one system call for each operation. What the fault path reaches stands first. */
#include "os/os.h"

#include "base/units.h"
#include "os/probe.h"
#include "os/room.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define DEFAULT_MAX_MAP_COUNT 65530u

/* The result of a call that answers -1 and errno, with errno put back. */
static int result_of(long returned, int saved_errno)
{
	int result = returned == -1 ? -errno : 0;

	errno = saved_errno;
	return result;
}

static int to_prot(unsigned prot)
{
	return (prot & HP_PROT_READ ? PROT_READ : 0) | (prot & HP_PROT_WRITE ? PROT_WRITE : 0);
}

/* ftruncate or pwrite beyond RLIMIT_FSIZE is SIGXFSZ, which ends a program. */
static bool is_allowed_size(uint64_t size)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur;
}

/* -- fault path ------------------------------------------------------------------------------------------------- */

static int linux_map(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_segment segment,
                     uint64_t offset, unsigned flags)
{
	int saved_errno = errno;
	int how = (flags & HP_OS_MAP_PRIVATE ? MAP_PRIVATE : MAP_SHARED) |
	          (flags & HP_OS_MAP_REPLACE ? MAP_FIXED : MAP_FIXED_NOREPLACE) |
	          (flags & HP_OS_MAP_POPULATE ? MAP_POPULATE : 0) | (flags & HP_OS_MAP_UNRESERVED ? MAP_NORESERVE : 0);
	void *mapped = mmap(address, length, to_prot(prot), how, segment, (off_t)offset);

	if (mapped != MAP_FAILED && mapped != address) { /* a kernel that takes NOREPLACE for a hint */
		munmap(mapped, length);
		errno = saved_errno;
		return -EEXIST;
	}
	return result_of(mapped == MAP_FAILED ? -1 : 0, saved_errno);
}

static int linux_unmap(struct hp_os *os, void *address, uint64_t length)
{
	int saved_errno = errno;

	return result_of(munmap(address, length), saved_errno);
}

static int linux_move(struct hp_os *os, void *from, void *to, uint64_t length)
{
	int saved_errno = errno;
	void *moved = mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to);

	return result_of(moved == MAP_FAILED ? -1 : 0, saved_errno);
}

/* Readable and writable: of an inaccessible mapping an access would be SIGSEGV, end or not. */
static int linux_end(struct hp_os *os, void *address, uint64_t length, hp_segment control, uint64_t control_size)
{
	int saved_errno = errno;
	void *mapped = mmap(address, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, control,
	                    (off_t)hp_align_up(control_size, HP_BASE_PAGE_SIZE));

	return result_of(mapped == MAP_FAILED ? -1 : 0, saved_errno);
}

static void linux_zero(struct hp_os *os, void *address, uint64_t length)
{
	hp_zero_stream(address, length);
}

/* Waits for whoever is changing the pages; what is swapped out is read back, what is absent is zeroes. */
static int read_segment(hp_segment segment, uint64_t offset, char *to, uint64_t length)
{
	int saved_errno = errno;

	while (length) {
		ssize_t got = pread(segment, to, length, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got ? result_of(-1, saved_errno) : -EIO;
		offset += (uint64_t)got;
		to += got;
		length -= (uint64_t)got;
	}
	errno = saved_errno;
	return 0;
}

/*
 * Through the mapping what is in memory for certain, which costs no system call and passes the caches; the rest, which
 * may be absent, swapped out or on its way, by reading.
 */
static int gather_mapped(char *to, const char *mapped, hp_segment segment, uint64_t offset, unsigned pages)
{
	unsigned char there[HP_FRAME_SIZE / HP_BASE_PAGE_SIZE];
	int saved_errno = errno, result = 0;
	bool known = mincore((void *)(uintptr_t)mapped, pages * HP_BASE_PAGE_SIZE, there) == 0;

	errno = saved_errno;
	for (unsigned i = 0, run; !result && i < pages; i += run) {
		bool in_memory = known && there[i] & 1;
		uint64_t at = i * HP_BASE_PAGE_SIZE;

		for (run = 1; i + run < pages && (known && there[i + run] & 1) == in_memory; run++)
			;
		if (in_memory)
			hp_copy_stream(to + at, mapped + at, run * HP_BASE_PAGE_SIZE);
		else
			result = read_segment(segment, offset + at, to + at, run * HP_BASE_PAGE_SIZE);
	}
	return result;
}

static int linux_gather(struct hp_os *os, void *to, const void *mapped, hp_segment segment, uint64_t offset,
                        uint64_t length)
{
	int result = 0;

	if (!mapped)
		return read_segment(segment, offset, to, length);
	for (uint64_t done = 0, part; !result && done < length; done += part) {
		part = hp_min(length - done, HP_FRAME_SIZE);
		result = gather_mapped((char *)to + done, (const char *)mapped + done, segment, offset + done,
		                       (unsigned)(part / HP_BASE_PAGE_SIZE));
	}
	return result;
}

static bool is_zero_page(const char *page)
{
	const uint64_t *word = (const void *)page;
	uint64_t any = 0;

	for (unsigned i = 0; i < HP_BASE_PAGE_SIZE / sizeof(*word); i++)
		any |= word[i];
	return any == 0;
}

/* Writing, and not storing through a mapping: the pages are in no page table when they are given back. */
static int write_segment(hp_segment segment, uint64_t offset, const char *from, uint64_t length)
{
	int saved_errno = errno;

	if (!is_allowed_size(offset + length)) /* the program may have lowered it since the segment was made */
		return -EFBIG;
	while (length) {
		ssize_t put = pwrite(segment, from, length, (off_t)offset);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return put ? result_of(-1, saved_errno) : -EIO;
		offset += (uint64_t)put;
		from += put;
		length -= (uint64_t)put;
	}
	errno = saved_errno;
	return 0;
}

static int linux_scatter(struct hp_os *os, hp_segment segment, uint64_t offset, const void *from, uint64_t length)
{
	const char *source = from;
	int result = 0;

	for (uint64_t at = 0, run; !result && at < length; at += run) {
		bool zero = is_zero_page(source + at);

		for (run = HP_BASE_PAGE_SIZE; at + run < length && is_zero_page(source + at + run) == zero;
		     run += HP_BASE_PAGE_SIZE)
			;
		if (!zero)
			result = write_segment(segment, offset + at, source + at, run);
	}
	return result;
}

static void linux_load(struct hp_os *os, const void *address, void *to, uint64_t length)
{
	memcpy(to, address, length);
}

static void linux_store(struct hp_os *os, void *address, const void *from, uint64_t length)
{
	memcpy(address, from, length);
}

/* -- the rest --------------------------------------------------------------------------------------------------- */

static int advise(void *address, uint64_t length, int advice)
{
	int saved_errno = errno, result;

	do
		result = madvise(address, length, advice);
	while (result == -1 && errno == EINTR);
	return result_of(result, saved_errno);
}

static int linux_populate(struct hp_os *os, void *address, uint64_t length)
{
	return advise(address, length, MADV_POPULATE_WRITE);
}

static int linux_touch(struct hp_os *os, void *address, uint64_t length)
{
	return advise(address, length, MADV_POPULATE_READ);
}

static int linux_collapse(struct hp_os *os, void *address, uint64_t length)
{
	return advise(address, length, MADV_COLLAPSE);
}

/*
 * Moves a descriptor to a high number. A program that closes all descriptors, as daemons do, closes ours too; the
 * numbers that it opens afterwards are low ones. So a later call of ours is EBADF, and not a mapping of somebody's
 * file. Not higher than that takes: every fork copies the table of descriptors up to the highest.
 */
static int move_high(int fd)
{
	struct rlimit limit;
	int high = -1;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= 512)
		high = fcntl(fd, F_DUPFD_CLOEXEC, (int)hp_min(limit.rlim_cur, 1024) - 256);
	if (high < 0)
		return fd;
	close(fd);
	return high;
}

/* A sparse memfd of that size, or a negative errno. */
static int sized_memfd(const char *name, unsigned flags, uint64_t size)
{
	int saved_errno = errno, fd, result;

	if (!is_allowed_size(size))
		return -EFBIG;
	fd = result = memfd_create(name, MFD_CLOEXEC | flags);
	if (fd >= 0)
		fd = result = move_high(fd);
	if (fd < 0)
		result = -errno;
	else if (ftruncate(fd, (off_t)size) < 0) {
		result = -errno;
		close(fd);
	}
	errno = saved_errno;
	return result;
}

static int linux_segment_create(struct hp_os *os, hp_backing backing, uint64_t size, hp_segment *segment)
{
	bool hugetlb = backing == HP_BACKING_HUGETLB || backing == HP_BACKING_HUGETLB_1G;
	unsigned kind = backing == HP_BACKING_HUGETLB ? MFD_HUGETLB | MFD_HUGE_2MB
	                : hugetlb                     ? MFD_HUGETLB | MFD_HUGE_1GB
	                                              : 0;
	int fd = sized_memfd("hugepool", kind, size);

	if (fd < 0) /* ENOENT, EINVAL, ENODEV: by age of the kernel, "no such page size" */
		return hugetlb && (fd == -ENOENT || fd == -EINVAL || fd == -ENODEV) ? -ENOTSUP : fd;
	*segment = fd;
	return 0;
}

static int linux_segment_destroy(struct hp_os *os, hp_segment segment)
{
	int saved_errno = errno;

	return result_of(close(segment), saved_errno);
}

static int linux_segment_punch(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length)
{
	int saved_errno = errno;

	return result_of(fallocate(segment, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)length),
	                 saved_errno);
}

/* A shared mapping of hugetlb reserves what its range has not got yet; the file keeps that when the mapping goes. */
static int linux_segment_renew(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length)
{
	int saved_errno = errno;
	void *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, segment, (off_t)offset);

	return result_of(mapped == MAP_FAILED ? -1 : munmap(mapped, length), saved_errno);
}

/* A look at the page cache through a mapping of the moment, which has no page tables. */
static int linux_backed(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length, unsigned char *pages)
{
	int saved_errno = errno, result;
	void *mapped = mmap(NULL, length, PROT_READ, MAP_SHARED, segment, (off_t)offset);

	if (mapped == MAP_FAILED)
		return result_of(-1, saved_errno);
	result = result_of(mincore(mapped, length, pages), saved_errno);
	munmap(mapped, length);
	for (uint64_t i = 0; !result && i < length / HP_BASE_PAGE_SIZE; i++)
		pages[i] &= 1;
	errno = saved_errno;
	return result;
}

static int linux_control_create(struct hp_os *os, uint64_t size, void **address, hp_segment *handle)
{
	int saved_errno = errno, fd = sized_memfd("hugepool-control", MFD_ALLOW_SEALING, size), result;

	if (fd < 0)
		return fd;
	/* Who looks on from another process wants to be sure that what it maps stays. */
	fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
	*address = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	result = result_of(*address == MAP_FAILED ? -1 : 0, saved_errno);
	if (result)
		close(fd);
	else
		*handle = fd;
	return result;
}

static int linux_control_destroy(struct hp_os *os, void *address, uint64_t size, hp_segment handle)
{
	int saved_errno = errno;

	if (handle != HP_NO_SEGMENT)
		close(handle);
	return result_of(size ? munmap(address, size) : 0, saved_errno);
}

static int linux_reserve(struct hp_os *os, uint64_t length, uint64_t align, uint64_t skew, void **address)
{
	int saved_errno = errno;
	uint64_t taken = length + align;
	char *base, *start;

	if (taken < length)
		return -ENOMEM;
	base = mmap(NULL, taken, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return result_of(-1, saved_errno);
	start = base + ((skew - (uintptr_t)base) & (align - 1));
	if (start > base)
		munmap(base, (size_t)(start - base));
	if (start + length < base + taken)
		munmap(start + length, (size_t)(base + taken - start - length));
	*address = start;
	errno = saved_errno;
	return 0;
}

static int linux_reserve_at(struct hp_os *os, void *address, uint64_t length)
{
	int saved_errno = errno;
	void *mapped = mmap(address, length, PROT_NONE,
	                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	if (mapped != MAP_FAILED && mapped != address) { /* a kernel that takes NOREPLACE for a hint */
		munmap(mapped, length);
		errno = saved_errno;
		return -EEXIST;
	}
	return result_of(mapped == MAP_FAILED ? -1 : 0, saved_errno);
}

static int linux_vacate(struct hp_os *os, void *address, uint64_t length)
{
	int saved_errno = errno;
	void *mapped = mmap(address, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	return result_of(mapped == MAP_FAILED ? -1 : 0, saved_errno);
}

static int linux_protect(struct hp_os *os, void *address, uint64_t length, unsigned prot)
{
	int saved_errno = errno;

	return result_of(mprotect(address, length, to_prot(prot)), saved_errno);
}

static int linux_anonymous(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_backing backing)
{
	int saved_errno = errno, huge = backing == HP_BACKING_HUGETLB ? MAP_HUGETLB | MAP_HUGE_2MB : 0;
	void *mapped = mmap(address, length, to_prot(prot), MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | huge, -1, 0);

	if (mapped != MAP_FAILED && backing == HP_BACKING_THP)
		madvise(address, length, MADV_HUGEPAGE); /* if not, then not */
	return result_of(mapped == MAP_FAILED ? -1 : 0, saved_errno);
}

static int linux_hold(struct hp_os *os, uint64_t length, hp_backing backing, void **address)
{
	int saved_errno = errno;
	void *mapped;

	if (backing != HP_BACKING_HUGETLB)
		return -ENOTSUP;
	mapped = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
	*address = mapped;
	return result_of(mapped == MAP_FAILED ? -1 : 0, saved_errno);
}

static int linux_keep_from_children(struct hp_os *os, void *address, uint64_t length)
{
	return advise(address, length, MADV_DONTFORK);
}

/* A number from a file of /proc or /sys; `unknown` if it cannot be read. */
static uint64_t read_number(const char *path, uint64_t unknown)
{
	int saved_errno = errno, fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[32] = "";
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;

	if (fd >= 0)
		close(fd);
	errno = saved_errno;
	return n > 0 ? strtoull(text, NULL, 10) : unknown;
}

static uint64_t linux_max_map_count(struct hp_os *os)
{
	return read_number("/proc/sys/vm/max_map_count", DEFAULT_MAX_MAP_COUNT);
}

#define HUGE_2MB "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static uint64_t linux_hugetlb_available(struct hp_os *os)
{
	uint64_t available = read_number(HUGE_2MB "free_hugepages", 0),
		 reserved = read_number(HUGE_2MB "resv_hugepages", 0);
	uint64_t overcommit = read_number(HUGE_2MB "nr_overcommit_hugepages", 0);
	uint64_t surplus = read_number(HUGE_2MB "surplus_hugepages", 0);

	available += overcommit > surplus ? overcommit - surplus : 0;
	return available > reserved ? available - reserved : 0;
}

static uint64_t linux_memory_room(struct hp_os *os, hp_limit *limit)
{
	return hp_memory_room(limit);
}

static bool linux_shares_page_tables(struct hp_os *os)
{
	char why[HP_PROBE_TEXT];

	return hp_probe_table_sharing(NULL, why, sizeof(why));
}

static const struct hp_os_ops linux_ops = {
	.name = "linux",
	.control_create = linux_control_create,
	.control_destroy = linux_control_destroy,
	.segment_create = linux_segment_create,
	.segment_destroy = linux_segment_destroy,
	.segment_punch = linux_segment_punch,
	.segment_renew = linux_segment_renew,
	.backed = linux_backed,
	.reserve = linux_reserve,
	.reserve_at = linux_reserve_at,
	.vacate = linux_vacate,
	.map = linux_map,
	.unmap = linux_unmap,
	.move = linux_move,
	.end = linux_end,
	.protect = linux_protect,
	.anonymous = linux_anonymous,
	.hold = linux_hold,
	.keep_from_children = linux_keep_from_children,
	.populate = linux_populate,
	.touch = linux_touch,
	.collapse = linux_collapse,
	.zero = linux_zero,
	.gather = linux_gather,
	.scatter = linux_scatter,
	.load = linux_load,
	.store = linux_store,
	.max_map_count = linux_max_map_count,
	.hugetlb_available = linux_hugetlb_available,
	.memory_room = linux_memory_room,
	.shares_page_tables = linux_shares_page_tables,
};

struct hp_os *hp_os_linux(void)
{
	static struct hp_os linux_os = {.ops = &linux_ops};

	return &linux_os;
}
