/* SPDX-License-Identifier: MIT */
/* Samples of one figure, and what they come to. */
#ifndef BENCH_STAT_H
#define BENCH_STAT_H

#include <stdbool.h>

#define BENCH_SAMPLES_MAX 1000

struct bench_stat {
	unsigned count;
	double samples[BENCH_SAMPLES_MAX]; /* in the order in which they were taken */
};

/* NaN is no sample. */
void bench_stat_add(struct bench_stat *stat, double sample);
/* NaN where there are no samples. The median of an even number is the mean of the two in the middle. */
double bench_stat_median(const struct bench_stat *stat);
double bench_stat_min(const struct bench_stat *stat);
double bench_stat_max(const struct bench_stat *stat);
/*
 * The interval that holds the true median with a confidence of at least 95 %: the order statistics interval, which is
 * the sign test turned round. Of the samples only their order counts, and not how they are distributed, so that rounds
 * which were disturbed pull at it no more than at the median. For a comparison in pairs the samples are the pairs'
 * ratios. False, and NaN, where there are too few: below 6.
 */
bool bench_stat_confidence(const struct bench_stat *stat, double *low, double *high);

/* How many times `ours` is better than `theirs`; NaN if either is missing. */
double bench_ratio(double ours, double theirs, int more_is_better);

#endif
