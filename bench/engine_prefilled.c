/* SPDX-License-Identifier: MIT */
/*
 * The honest rival of ready memory: a memfd whose pages were filled earlier, mapped at an address aligned to 1 GiB,
 * while a second mapping of it, populated and aligned as well and with the same flags, is alive in the engine's
 * process. The kernel then shares that one's page tables.
 */
#include "engine.h"
#include "memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct prefilled {
	int fd;
	char *second;  /* the other mapping */
	char *aligned; /* where the file is mapped, taken before the clock */
};

/*
 * The address for the next round is chosen after the last one: nothing is asked of the kernel right before the clock,
 * which would leave its code and data in the caches for the call that is measured.
 */
static int choose_address(struct engine_memory *memory)
{
	struct prefilled *own = memory->own;

	own->aligned = bench_reserve(memory->setup->size);
	return own->aligned ? 0 : engine_failed(memory, -ENOMEM, "no addresses");
}

static int prefilled_open(struct engine_memory *memory)
{
	uint64_t size = memory->setup->size, start = bench_now_ns();
	struct prefilled *own = calloc(1, sizeof(*own));
	int rc;

	if (!own)
		return engine_failed(memory, -ENOMEM, "calloc");
	memory->own = own;
	own->fd = bench_memfd(size);
	if (own->fd < 0)
		return engine_failed(memory, own->fd, "no huge pages: memfd_create");
	own->second = bench_reserve(size);
	if (!own->second)
		return engine_failed(memory, -ENOMEM, "no addresses");
	if (mmap(own->second, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own->fd, 0) == MAP_FAILED)
		return engine_failed(memory, -errno, "no huge pages: mmap");
	rc = bench_in_parallel(bench_cpus(), own->second, size, bench_populate);
	if (rc)
		return engine_failed(memory, rc, "no huge pages: MADV_POPULATE_WRITE");
	memory->fill_s = (double)(bench_now_ns() - start) / 1e9;
	return choose_address(memory);
}

static int prefilled_begin(struct engine_memory *memory)
{
	return 0;
}

static int prefilled_map(struct engine_memory *memory, void **address)
{
	struct prefilled *own = memory->own;

	*address = mmap(own->aligned, memory->setup->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own->fd, 0);
	return *address == MAP_FAILED ? engine_failed(memory, -errno, "mmap") : 0;
}

static int prefilled_unmap(struct engine_memory *memory, void *address)
{
	return munmap(address, memory->setup->size) ? engine_failed(memory, -errno, "munmap") : 0;
}

static int prefilled_end(struct engine_memory *memory)
{
	struct prefilled *own = memory->own;
	uint64_t start;
	int rc = choose_address(memory);

	start = bench_now_ns();
	bench_in_parallel(bench_cpus(), own->second, memory->setup->size, bench_clear);
	memory->fill_s = (double)(bench_now_ns() - start) / 1e9;
	return rc;
}

static int prefilled_close(struct engine_memory *memory)
{
	struct prefilled *own = memory->own;

	munmap(own->second, memory->setup->size);
	close(own->fd);
	free(own);
	return 0;
}

const struct engine engine_prefilled = {
	.name = "prefilled",
	.open = prefilled_open,
	.begin = prefilled_begin,
	.map = prefilled_map,
	.unmap = prefilled_unmap,
	.end = prefilled_end,
	.close = prefilled_close,
};
