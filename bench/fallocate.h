/* SPDX-License-Identifier: MIT */
/*
 * Filling the page cache: how long it takes to make every page of a file present, and where the time goes.
 *
 * A run has a series for each way to fill a file, where what was filled is zeroed once more by itself, and series of
 * what else a fill consists of: entering as many pages in an index. What is to be said of these comes from them all
 * together (fallocate_report.c).
 */
#ifndef BENCH_FALLOCATE_H
#define BENCH_FALLOCATE_H

#include "engine.h"
#include "index_rivals.h"
#include "report.h"
#include "table.h"

enum {
	FALLOCATE_RATE,
	FALLOCATE_ELAPSED,
	FALLOCATE_SYSCALLS, /* made by one thread that fills the whole file */
	FALLOCATE_SYSCALLS_NS,
	FALLOCATE_ZEROED,  /* frames that those who filled had to zero */
	FALLOCATE_ZEROING, /* what zeroing all of them takes by itself */
	FALLOCATE_INSERT,  /* from here on: a frame */
	FALLOCATE_LOOKUP,
	FALLOCATE_LOOKUP_ALONE, /* in a read section of its own */
	FALLOCATE_BYTES,        /* of memory for the books */
	FALLOCATE_METRICS
};

/* -- fallocate_series.c: what is measured ------------------------------------------------------------------------ */

/* A file of real memory is filled. */
struct fallocate_fill {
	const struct engine *engine;
	struct engine_setup setup; /* its threads divide the file among them */
	unsigned fillers;          /* threads that do the work: these, or more that the library starts for them */
};
extern const struct bench_job fallocate_fill_job;

/* Pages are entered in an index that has nothing else to do; with rival NULL in a file of a pool without memory. */
struct fallocate_index {
	const struct index_rival *rival;
	uint64_t size;
};
extern const struct bench_job fallocate_index_job, fallocate_sim_job;

/* -- fallocate_plan.c: the series of a run ----------------------------------------------------------------------- */

#define FALLOCATE_LARGE ((uint64_t)1 << 40) /* an index of this size is always looked at */

/* On real memory. `stock`: also hugepool with frames that were zeroed before; else its default is the one without. */
void fallocate_plan(struct bench_run *run, uint64_t size, bool stock);
/* Without memory. */
void fallocate_plan_sim(struct bench_run *run, uint64_t size);

/* NULL: there is none. */
const struct bench_series *fallocate_find_fill(const struct bench_run *run, const struct engine *engine, bool no_stock);
const struct bench_series *fallocate_find_job(const struct bench_run *run, const struct bench_job *job);
const struct bench_series *fallocate_find_index(const struct bench_run *run, const struct index_rival *rival,
                                                uint64_t size);

/* -- fallocate_report.c: what it comes to ------------------------------------------------------------------------ */

/* Where the time of a fill goes, in ns of the wall clock; NaN: unknown. */
struct fallocate_parts {
	double elapsed, zeroing, index, syscalls, other;
};
struct fallocate_parts fallocate_parts(const struct bench_run *run, const struct bench_series *fill);
/* What part of a fill without stock the insertion into this index is; 0 to 1, or NaN. */
double fallocate_share(const struct bench_run *run, const struct bench_series *index);

void fallocate_print(const struct bench_run *run, FILE *out);
/* Adds "where", "index" and the pairs of ratios. */
void fallocate_report(const struct bench_run *run, json_t *report);

/* "2 GiB" of bytes, and "2G" */
const char *fallocate_size_text(char cell[TABLE_CELL], uint64_t bytes);
const char *fallocate_size_word(char cell[TABLE_CELL], uint64_t bytes);

#endif
