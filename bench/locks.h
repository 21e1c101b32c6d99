/* SPDX-License-Identifier: MIT */
/*
 * What the parts of `hugepool bench locks` share: what they were asked for, what they have found, and how much of the
 * machine others had meanwhile.
 */
#ifndef BENCH_LOCKS_H
#define BENCH_LOCKS_H

#include "lock_rivals.h"
#include "stat.h"
#include "table.h"

#include <jansson.h>

#define LIST_MAX 8
#define SECTION_S 200e-9

/*
 * In a batch of one thread its subjects take turns in slices so short that a change of the clock rate meets all of
 * them; the batch's figure is the median of the slices, as one that was preempted says nothing.
 */
#define SLICE_S 100e-6
#define SLICES 24

enum section { EMPTY, BUSY, SECTIONS };
extern const char *const locks_sections[SECTIONS];

struct list {
	unsigned count, value[LIST_MAX];
};

struct locks {
	struct list threads, processes, shares;
	bool section[SECTIONS];
	bool uncontended, statistics, contended, json;
	uint64_t rounds, batches;
	double seconds;

	uint32_t turns[SECTIONS]; /* of the sections' loop */
	json_t *rows, *ratios;
};

/* A row of the report; variant is taken over. */
void locks_add_row(struct locks *b, const char *engine, json_t *variant, const char *metric, const char *unit,
                   const struct bench_stat *stat);
/* bar NaN: none. */
void locks_add_ratio(struct locks *b, const char *metric, const char *ours, const char *theirs, json_t *variant,
                     const struct bench_stat *ratio, double bar);
json_t *locks_number(double value);

/* "1.03 (1.01-1.05)": the median and its confidence interval. */
const char *locks_ratio_cell(char cell[TABLE_CELL], const struct bench_stat *ratio);
const char *locks_name(char cell[TABLE_CELL], const struct lock_rival *rival);
void locks_heading(struct table *table, const char *const *heading);

/*
 * Locks are measured while others may use the same CPUs, or the other halves of their cores. How much of the CPUs they had
 * is told with the figures: a share from 0 to 1.
 */
struct watch {
	double machine, own;
	uint64_t start;
};

/* crowd NULL: there is only this process. */
struct watch locks_watch(const struct lock_crowd *crowd);
/* The machine counts in ticks: the time since the begin should be long enough for many. */
void locks_watch_end(const struct watch *watch, const struct lock_crowd *crowd, struct bench_stat *share);
void locks_add_watch(struct locks *b, json_t *variant, const struct bench_stat *share);
/* Prints the table with its title; throws it away where JSON alone is asked for. */
void locks_table(struct locks *b, struct table *table, const char *title);
/* The same, with the part that it is of and what others had meanwhile. */
void locks_end_table(struct locks *b, struct table *table, const char *part, const char *title,
                     const struct bench_stat *share);

/* The parts. False: something broke, and it was said. */
bool locks_uncontended(struct locks *b);
bool locks_statistics(struct locks *b);
bool locks_contended(struct locks *b);

#endif
