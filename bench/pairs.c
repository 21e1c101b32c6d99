/* SPDX-License-Identifier: MIT */
#include "pairs.h"

#include "report.h"

#include <math.h>

void bench_pairs_close(struct bench_pairs *pairs)
{
	pairs->median = bench_stat_median(&pairs->ratio);
	bench_stat_confidence(&pairs->ratio, &pairs->low, &pairs->high);
}

void bench_pairs_of_times(struct bench_pairs *pairs, const struct bench_series *ours, const struct bench_series *theirs,
                          unsigned metric)
{
	const struct bench_stat *a = &ours->stat[metric], *b = &theirs->stat[metric];
	bool complete = a->count == ours->counted && b->count == theirs->counted;

	pairs->ratio.count = 0;
	for (unsigned i = 0, k = 0; complete && i < a->count && k < b->count;) {
		unsigned mine = ours->round[i], other = theirs->round[k];

		if (mine == other)
			bench_stat_add(&pairs->ratio, b->samples[k] / a->samples[i]);
		i += mine <= other;
		k += other <= mine;
	}
	bench_pairs_close(pairs);
}

const char *bench_pairs_text(char cell[TABLE_CELL], const struct bench_pairs *pairs)
{
	int decimals = pairs->low < 100 ? 3 : 0;
	char median[TABLE_CELL];

	table_ratio(median, pairs->median);
	if (isnan(pairs->low))
		snprintf(cell, TABLE_CELL, "%.16s", median);
	else
		snprintf(cell, TABLE_CELL, "%.16s (%.*f-%.*f)", median, decimals, pairs->low, decimals, pairs->high);
	return cell;
}

json_t *bench_pairs_json(const struct bench_pairs *pairs, const char *ours, const char *theirs)
{
	return json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:i}", "ours", ours, "theirs", theirs, "ratio",
	                 report_number(pairs->median), "min", report_number(bench_stat_min(&pairs->ratio)), "max",
	                 report_number(bench_stat_max(&pairs->ratio)), "low", report_number(pairs->low), "high",
	                 report_number(pairs->high), "samples", (int)pairs->ratio.count);
}
