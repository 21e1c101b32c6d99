/* SPDX-License-Identifier: MIT */
/*
 * The rivals: different ways to come by the same huge memory. A workload drives any of them through this table.
 *
 * The life of an engine, in its own process: open; then for each round begin, map, (populate), unmap, end; then close.
 * Only what a workload's clock covers counts, and each function says which it is meant to be. All return 0 or a
 * negative errno, with a reason in `why`.
 */
#ifndef BENCH_ENGINE_H
#define BENCH_ENGINE_H

#include "bench.h"
#include "harness.h"

struct engine_locks;

struct engine_setup {
	uint64_t size;    /* bytes of the one file, whole frames */
	unsigned threads; /* that one instance has */
	bool lazy;        /* hugepool: pages come at their first touch */
	bool no_stock;    /* hugepool: frames are there but dirty, and nobody zeroes them in idle time */
	bool cold;        /* hugepool: not even the pool is there when the clock starts */
	bool unsafe;      /* hugepool: values of `tuning` that show what goes wrong without a mechanism are allowed */
	const char *tuning;
};

struct engine_memory {
	const struct engine *engine;
	const struct engine_setup *setup;
	void *own;     /* the engine's */
	bool warm_up;  /* this round does not count */
	double fill_s; /* what it took to make the memory ready that the next round gets; NaN if nothing was */
	char why[BENCH_WHY];
	char note[BENCH_NOTE];
};

struct engine {
	const char *name;
	/* Before all rounds. */
	int (*open)(struct engine_memory *memory);
	/* Before the clock: a file of setup->size that reads as zeroes. */
	int (*begin)(struct engine_memory *memory);
	/* A thread makes its part of the file present. NULL: the first touch does it. */
	int (*allocate)(struct engine_memory *memory, uint64_t offset, uint64_t length);
	/* Under the clock: a thread makes its part of the file present as this engine does it best. NULL: it cannot. */
	int (*fallocate)(struct engine_memory *memory, uint64_t offset, uint64_t length);
	/* Under the clock, by one thread. */
	int (*map)(struct engine_memory *memory, void **address);
	/* Under the clock: a thread enters its part into the page table. NULL: nothing is to be done. */
	int (*populate)(struct engine_memory *memory, char *address, uint64_t length);
	int (*unmap)(struct engine_memory *memory, void *address);
	/* After the clock: the file is gone when this returns, and memory for the next round is ready. */
	int (*end)(struct engine_memory *memory);
	/* An instance, forked after begin, ends; the engine itself goes on. May be NULL. */
	void (*leave)(struct engine_memory *memory);
	/* How many frames its callers have zeroed themselves so far. NULL: nobody counts. */
	int (*zeroed)(struct engine_memory *memory, uint64_t *frames);
	/* Lock statistics begin anew; `locks` gets those since the last call, unless it is NULL. NULL: it has none. */
	int (*locks)(struct engine_memory *memory, struct engine_locks *locks);
	int (*close)(struct engine_memory *memory);
};

extern const struct engine engine_kernel, engine_tuned, engine_prefilled, engine_hugepool;

/* Opens `engine` in allocated memory. NULL, with a reason. */
struct engine_memory *engine_open(const struct engine *engine, const struct engine_setup *setup, char why[BENCH_WHY],
                                  char note[BENCH_NOTE]);
/* Closes and frees it. False, with a reason. */
bool engine_close(struct engine_memory *memory, char why[BENCH_WHY]);

/* Says what failed; returns rc, which is negative. */
int engine_failed(struct engine_memory *memory, int rc, const char *what);

/* A wrong tuning is said at once, not by rounds that are all discarded: BENCH_DONE, or BENCH_USAGE after a message. */
int engine_check_tuning(const char *command, const struct engine_setup *setup);

#endif
