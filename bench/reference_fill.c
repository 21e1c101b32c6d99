/* SPDX-License-Identifier: MIT */
/* Workload 3: filling the page cache. */
#include "reference.h"

#include "fallocate.h"
#include "memory.h"
#include "table.h"

#include <math.h>

static const struct {
	const char *name;
	double before, after; /* percent of the time */
} published[] = {
	{"published: 700 GB, aarch64", 0.08, 0.17},
	{"published: 100 GB, x86", 0.03, 0.04},
};
#define PUBLISHED (sizeof(published) / sizeof(published[0]))
#define PUBLISHED_CLEARING 95 /* percent */

void reference_plan_fill(struct reference *r)
{
	struct bench_run *run = reference_run(r, "fallocate", r->rounds);
	char size[TABLE_CELL];

	fallocate_plan(run, r->fill_size, true);
	snprintf(run->title, sizeof(run->title), "3. filling the page cache, %s",
	         fallocate_size_text(size, r->fill_size));
	r->fill = run;
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

static void set_percent(struct table *table, unsigned column, double part)
{
	if (isnan(part))
		table_set(table, column, "-");
	else
		table_set(table, column, "%.*f %%", part < 1e-5 ? 6 : part < 0.01 ? 4 : 2, 100 * part);
}

static void set_share(struct table *table, unsigned column, const struct bench_run *run,
                      const struct index_rival *rival, uint64_t size)
{
	const struct bench_series *index = fallocate_find_index(run, rival, size);

	set_percent(table, column, index ? fallocate_share(run, index) : NAN);
}

/* What part of a fill without stock is zeroing. */
static double clearing(const struct bench_run *run)
{
	struct fallocate_parts parts = fallocate_parts(run, fallocate_find_fill(run, &engine_hugepool, true));

	return parts.zeroing / parts.elapsed;
}

static void print_shares(const struct reference *r, FILE *out)
{
	static const char *const heading[] = {"part of the time", "inserted before", "after", "after, in runs",
	                                      "clearing"};
	const uint64_t sizes[] = {r->fill_size, FALLOCATE_LARGE};
	struct table table;
	char size[TABLE_CELL];

	table_init(&table, 5, 1);
	table_row(&table);
	for (unsigned c = 0; c < 5; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 0; i < PUBLISHED; i++) {
		table_row(&table);
		table_set(&table, 0, "%s", published[i].name);
		table_set(&table, 1, "%.2f %%", published[i].before);
		table_set(&table, 2, "%.2f %%", published[i].after);
		table_set(&table, 4, "%d %%", PUBLISHED_CLEARING);
	}
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		table_row(&table);
		table_set(&table, 0, "here: an index of %s", fallocate_size_text(size, sizes[i]));
		set_share(&table, 1, r->fill, &index_flat, sizes[i]);
		set_share(&table, 2, r->fill, &index_by_frame, sizes[i]);
		set_share(&table, 3, r->fill, &index_by_run, sizes[i]);
		if (i == 0)
			set_percent(&table, 4, clearing(r->fill));
	}
	table_print(&table, out);
}

static void elapsed_row(struct table *table, const char *name, const struct bench_series *series, double kernel)
{
	const struct fallocate_fill *fill = series->params;
	double elapsed = bench_stat_median(&series->stat[FALLOCATE_ELAPSED]);
	char cell[TABLE_CELL];

	table_row(table);
	table_set(table, 0, "%s, %u thread%s", name, fill->fillers, fill->fillers == 1 ? "" : "s");
	table_set(table, 1, "%s", table_figure(cell, elapsed, "ns"));
	table_set(table, 2, "%s", table_figure(cell, elapsed * (double)BENCH_FRAME / (double)fill->setup.size, "ns"));
	table_set(table, 3, "%s", table_figure(cell, bench_stat_median(&series->stat[FALLOCATE_RATE]), "B/s"));
	table_set(table, 4, "%s", table_ratio(cell, kernel / elapsed));
}

static void print_elapsed(const struct reference *r, FILE *out)
{
	static const char *const heading[] = {"", "elapsed", "a page", "rate", "times the kernel"};
	const struct bench_run *run = r->fill;
	const struct bench_series *kernel = fallocate_find_fill(run, &engine_kernel, false);
	double whole = bench_stat_median(&kernel->stat[FALLOCATE_ELAPSED]);
	struct table table;

	table_init(&table, 5, 1);
	table_row(&table);
	for (unsigned c = 0; c < 5; c++)
		table_set(&table, c, "%s", heading[c]);
	elapsed_row(&table, "kernel, fallocate(2)", kernel, whole);
	elapsed_row(&table, "tuned, MADV_POPULATE_WRITE", fallocate_find_fill(run, &engine_tuned, false), whole);
	elapsed_row(&table, "hugepool without a stock", fallocate_find_fill(run, &engine_hugepool, true), whole);
	elapsed_row(&table, "hugepool with a stock", fallocate_find_fill(run, &engine_hugepool, false), whole);
	table_print(&table, out);
}

void reference_print_fill(const struct reference *r, FILE *out)
{
	char size[TABLE_CELL];

	fprintf(out,
	        "3. Filling the page cache: fallocate of a file in 2 MB pages, and what part of the time it takes to\n"
	        "   insert them in the index.\n"
	        "   Source: linux-mm, August 2023, page cache of huge pages indexed in base-page units. Here: a file "
	        "of\n"
	        "   %s, %u CPUs, medians of %u rounds. before: an entry for each huge page, here a flat table; after:\n"
	        "   the index in units of base pages, here a radix tree, page by page or in runs of up to 512. Of "
	        "what\n"
	        "   the threads take to fill the file from dirty frames. clearing: what zeroing as many frames "
	        "takes.\n\n",
	        fallocate_size_text(size, r->fill_size), bench_cpus(), r->rounds);
	print_shares(r, out);
	fprintf(out, "\n   What the reviewer asks for, real elapsed times, and has 1 TB at database start-up in mind. "
	             "Without a\n"
	             "   stock all CPUs zero the frames under the clock; with one they were zeroed before, in idle "
	             "time.\n\n");
	print_elapsed(r, out);
}
