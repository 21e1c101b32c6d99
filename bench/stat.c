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

static void sort(const struct bench_stat *stat, double sorted[BENCH_SAMPLES_MAX])
{
	memcpy(sorted, stat->samples, stat->count * sizeof(*sorted));
	qsort(sorted, stat->count, sizeof(*sorted), compare);
}

double bench_stat_median(const struct bench_stat *stat)
{
	double sorted[BENCH_SAMPLES_MAX];
	unsigned n = stat->count;

	if (!n)
		return NAN;
	sort(stat, sorted);
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

bool bench_stat_confidence(const struct bench_stat *stat, double *low, double *high)
{
	double sorted[BENCH_SAMPLES_MAX], chance = pow(0.5, stat->count), below = chance;
	unsigned n = stat->count, outside = 0; /* samples left out at each end */

	*low = *high = NAN;
	/* `below` is the chance that at most `outside` of the samples are smaller than the true median. */
	if (!n || 2 * below > 0.05)
		return false;
	while (true) {
		chance *= (double)(n - outside) / (outside + 1);
		if (2 * (below + chance) > 0.05)
			break;
		below += chance;
		outside++;
	}
	sort(stat, sorted);
	*low = sorted[outside];
	*high = sorted[n - 1 - outside];
	return true;
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
