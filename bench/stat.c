/* SPDX-License-Identifier: MIT */
#include "stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void bench_stat_add(struct bench_stat *stat, double sample)
{
	if (!isnan(sample) && stat->count < BENCH_SAMPLES_MAX)
		stat->samples[stat->count++] = sample;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_stat_median(const struct bench_stat *stat)
{
	double sorted[BENCH_SAMPLES_MAX];
	unsigned n = stat->count;

	if (!n)
		return NAN;
	memcpy(sorted, stat->samples, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare);
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

double bench_stat_min(const struct bench_stat *stat)
{
	double min = NAN;

	for (unsigned i = 0; i < stat->count; i++)
		min = fmin(min, stat->samples[i]);
	return min;
}

double bench_stat_max(const struct bench_stat *stat)
{
	double max = NAN;

	for (unsigned i = 0; i < stat->count; i++)
		max = fmax(max, stat->samples[i]);
	return max;
}

double bench_ratio(double ours, double theirs, int more_is_better)
{
	double ratio = more_is_better ? ours / theirs : theirs / ours;

	return isfinite(ratio) ? ratio : NAN;
}
