/* SPDX-License-Identifier: MIT */
/* Two series compared round by round: ratios of figures that were taken one right after the other. */
#ifndef BENCH_PAIRS_H
#define BENCH_PAIRS_H

#include "harness.h"
#include "stat.h"
#include "table.h"

#include <jansson.h>

struct bench_pairs {
	struct bench_stat ratio;  /* a sample for each round that counts in both series */
	double median, low, high; /* of the ratios; the bounds of 95 % confidence are NaN where there are too few */
};

/* The ratios are all there. */
void bench_pairs_close(struct bench_pairs *pairs);
/*
 * How many times as fast ours is, in each round that counts in both. None where some of these have no sample of the
 * metric: it would not be known which.
 */
void bench_pairs_of_times(struct bench_pairs *pairs, const struct bench_series *ours, const struct bench_series *theirs,
                          unsigned metric);
/* "1.03 (0.981-1.060)"; "-" for none */
const char *bench_pairs_text(char cell[TABLE_CELL], const struct bench_pairs *pairs);
/* {"ours", "theirs", "ratio", "min", "max", "low", "high", "samples"} */
json_t *bench_pairs_json(const struct bench_pairs *pairs, const char *ours, const char *theirs);

#endif
