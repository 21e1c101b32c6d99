/* SPDX-License-Identifier: MIT */
/*
 * The kernel's huge pages, as programs use them.
 *
 * kernel: mmap(NULL) of a new file and touch. tuned: the best that a careful person gets, an address aligned to 1 GiB
 * so that page tables can be shared, MAP_POPULATE, and with several threads each populating its own part.
 */
#include "engine.h"
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct kernel {
	int fd;        /* this round's file; -1 */
	char *aligned; /* tuned: the address, taken before the clock */
};

static int kernel_open(struct engine_memory *memory)
{
	struct kernel *own = calloc(1, sizeof(*own));

	if (!own)
		return engine_failed(memory, -ENOMEM, "calloc");
	own->fd = -1;
	memory->own = own;
	return 0;
}

static int kernel_begin(struct engine_memory *memory)
{
	struct kernel *own = memory->own;

	own->fd = bench_memfd(memory->setup->size);
	return own->fd < 0 ? engine_failed(memory, own->fd, "no huge pages: memfd_create") : 0;
}

static int tuned_begin(struct engine_memory *memory)
{
	struct kernel *own = memory->own;
	int rc = kernel_begin(memory);

	if (rc)
		return rc;
	own->aligned = bench_reserve(memory->setup->size);
	return own->aligned ? 0 : engine_failed(memory, -ENOMEM, "no addresses");
}

static int kernel_allocate(struct engine_memory *memory, uint64_t offset, uint64_t length)
{
	struct kernel *own = memory->own;
	char *p = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, own->fd, (off_t)offset);
	int rc;

	if (p == MAP_FAILED)
		return engine_failed(memory, -errno, "no huge pages: mmap");
	rc = bench_in_parallel(bench_cpus(), p, length, bench_populate);
	munmap(p, length);
	return rc ? engine_failed(memory, rc, "no huge pages: MADV_POPULATE_WRITE") : 0;
}

static int kernel_fallocate(struct engine_memory *memory, uint64_t offset, uint64_t length)
{
	struct kernel *own = memory->own;

	return fallocate(own->fd, 0, (off_t)offset, (off_t)length)
	               ? engine_failed(memory, -errno, "no huge pages: fallocate")
	               : 0;
}

/* fallocate() has one thread in the file at a time; threads that fault it in clear their pages side by side. */
static int tuned_fallocate(struct engine_memory *memory, uint64_t offset, uint64_t length)
{
	struct kernel *own = memory->own;
	char *p = own->aligned + offset;
	int rc;

	if (mmap(p, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own->fd, (off_t)offset) == MAP_FAILED)
		return engine_failed(memory, -errno, "no huge pages: mmap");
	rc = bench_populate(p, length);
	return rc ? engine_failed(memory, rc, "no huge pages: MADV_POPULATE_WRITE") : 0;
}

static int kernel_map(struct engine_memory *memory, void **address)
{
	struct kernel *own = memory->own;

	*address = mmap(NULL, memory->setup->size, PROT_READ | PROT_WRITE, MAP_SHARED, own->fd, 0);
	return *address == MAP_FAILED ? engine_failed(memory, -errno, "no huge pages: mmap") : 0;
}

static int tuned_map(struct engine_memory *memory, void **address)
{
	struct kernel *own = memory->own;
	int flags = MAP_SHARED | MAP_FIXED | (memory->setup->threads == 1 ? MAP_POPULATE : 0);

	*address = mmap(own->aligned, memory->setup->size, PROT_READ | PROT_WRITE, flags, own->fd, 0);
	return *address == MAP_FAILED ? engine_failed(memory, -errno, "no huge pages: mmap") : 0;
}

static int tuned_populate(struct engine_memory *memory, char *address, uint64_t length)
{
	int rc = memory->setup->threads == 1 ? 0 : bench_populate(address, length);

	return rc ? engine_failed(memory, rc, "no huge pages: MADV_POPULATE_WRITE") : 0;
}

static int kernel_unmap(struct engine_memory *memory, void *address)
{
	return munmap(address, memory->setup->size) ? engine_failed(memory, -errno, "munmap") : 0;
}

static int kernel_end(struct engine_memory *memory)
{
	struct kernel *own = memory->own;

	if (own->fd >= 0)
		close(own->fd);
	own->fd = -1;
	return 0;
}

static int kernel_close(struct engine_memory *memory)
{
	free(memory->own);
	return 0;
}

const struct engine engine_kernel = {
	.name = "kernel",
	.open = kernel_open,
	.begin = kernel_begin,
	.allocate = kernel_allocate,
	.fallocate = kernel_fallocate,
	.map = kernel_map,
	.unmap = kernel_unmap,
	.end = kernel_end,
	.close = kernel_close,
};

const struct engine engine_tuned = {
	.name = "tuned",
	.open = kernel_open,
	.begin = tuned_begin,
	.allocate = kernel_allocate,
	.fallocate = tuned_fallocate,
	.map = tuned_map,
	.populate = tuned_populate,
	.unmap = kernel_unmap,
	.end = kernel_end,
	.close = kernel_close,
};
