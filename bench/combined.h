/* SPDX-License-Identifier: MIT */
/* Parts of the combined workload that the reference tables use as well. */
#ifndef BENCH_COMBINED_H
#define BENCH_COMBINED_H

#include "workloads.h"

/* The schemes of the file lock, in the order of the tables. */
#define COMBINED_FILE_LOCKS 5
extern const char *const combined_file_locks[COMBINED_FILE_LOCKS];

/* A series of lazy mappings, one page for each fault, with this scheme; tagged with it. */
struct instances *combined_add_file_lock(struct bench_run *run, const struct instances *params, unsigned file_lock);

/* How biased compares with the better of vma and invalidate, for each kind. These three need a record. */
void combined_print_better(const struct bench_run *run, FILE *out);

#endif
