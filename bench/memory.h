/* SPDX-License-Identifier: MIT */
/* The kernel's huge memory, for the engines that are its; and proof of what any engine's memory is. */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H

#include "bench.h"

/* A memfd of the kernel's 2 MiB pages, all of it a hole. Negative errno. */
int bench_memfd(uint64_t size);

/* Addresses for `size` bytes, aligned to 1 GiB where the size is as large, mapped inaccessible. NULL: none. */
void *bench_reserve(uint64_t size);

/* Splits a range of whole frames into a share per thread, and runs `work` on each in a thread. The first error. */
int bench_in_parallel(unsigned threads, char *address, uint64_t length, int (*work)(char *address, uint64_t length));
int bench_populate(char *address, uint64_t length); /* MADV_POPULATE_WRITE, or a touch where the kernel lacks it */
int bench_clear(char *address, uint64_t length);    /* streaming stores */
/* Touched memory of the kernel's pool if that has pages, else of transparent huge pages, if it pleases. NULL: none. */
char *bench_huge_memory(uint64_t size);
unsigned bench_cpus(void); /* that this process may use */

/* Thread number `index` keeps to one CPU, if there is one for each of `threads`. */
void bench_pin(unsigned index, unsigned threads);

/*
 * A region was touched: byte 1 written at each multiple of `skip` (bytes) from its start. True if all that is mapped of
 * it is mapped by huge pages.
 */
bool bench_is_huge(const char *address, uint64_t length, char why[BENCH_WHY]);

/*
 * True if a sample of its pages' bytes (64 places in each page that was touched, and four pages throughout) is zero
 * but for the touches. Then writes something else to the same places, so that the next round sees whether they are
 * cleared.
 */
bool bench_was_zero(char *address, uint64_t length, uint64_t skip, char why[BENCH_WHY]);
void bench_soil(char *address, uint64_t length, uint64_t skip);

/* A bare loop of streaming stores with the widest registers of this processor; its name is "avx512" or the like. */
void bench_stream_zero(void *address, uint64_t length);
const char *bench_stream_name(void);

#endif
