/* SPDX-License-Identifier: MIT */
/* The command `hugepool bench tlb`. */
#include "tlb.h"

#include "command.h"
#include "fallocate.h"
#include "pairs.h"
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZES_MAX 8
#define SIZES_DEFAULT "1G,4G,8G"
#define SIZE_MIN (2 * BENCH_FRAME) /* half of it is a page */
#define ROUNDS_DEFAULT 3
#define LEFT_TO_OTHERS BENCH_GIB

static const char *const phase_names[TLB_PHASES] = {"base", "half", "collapsed"};

static struct bench_metric metrics[TLB_METRICS];

static void set_metrics(struct bench_run *run)
{
	static const struct bench_metric figures[TLB_FIGURES] = {
		[TLB_READ] = {"read_ns", "ns", 0, true, NULL},
		[TLB_BASE_BYTES] = {"base_bytes", "B", 0, false, NULL},
		[TLB_FRAMES] = {"frames", "1", 0, false, NULL},
		[TLB_IN_PLACE] = {"in_place", "1", 0, false, NULL},
	};

	for (unsigned figure = 0; figure < TLB_FIGURES; figure++)
		for (unsigned phase = 0; phase < TLB_PHASES; phase++) {
			metrics[TLB_METRIC(figure, phase)] = figures[figure];
			metrics[TLB_METRIC(figure, phase)].phase = phase_names[phase];
		}
	run->metric = metrics;
	run->metrics = TLB_METRICS;
}

/* ---- What is measured ------------------------------------------------------------------------------------------- */

/* Base pages and frames are there at the same time. */
static void look_for_room(struct tlb *params)
{
	uint64_t need = params->size + bench_pages_missing(params->size) + LEFT_TO_OTHERS;
	uint64_t have = bench_memory_available();

	if (need > have)
		snprintf(params->why_not, BENCH_WHY, "it takes %.1f GiB, with 1 GiB left to others, and %.1f are there",
		         (double)need / (double)BENCH_GIB, (double)have / (double)BENCH_GIB);
}

static void add(struct bench_run *run, uint64_t size, unsigned rounds)
{
	static struct tlb all[SIZES_MAX];
	static char name[SIZES_MAX][TABLE_CELL];
	unsigned own = run->series_count;
	struct bench_series *series;

	all[own].size = (size + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	all[own].size = all[own].size < SIZE_MIN ? SIZE_MIN : all[own].size;
	look_for_room(&all[own]);
	series = bench_run_add(run, "hugepool", &tlb_job, &all[own]);
	bench_series_tag(series, "size", fallocate_size_word(name[own], all[own].size));
	series->rounds = rounds; /* a round begins from nothing: there is nothing to warm up */
	if (!all[own].why_not[0] && all[own].size > run->huge_bytes)
		run->huge_bytes = all[own].size;
}

static bool add_all(struct bench_run *run, const char *sizes, unsigned rounds)
{
	char *text = strdup(sizes), *rest = text, *word;
	bool good = text != NULL;

	while (good && (word = strsep(&rest, ","))) {
		uint64_t size;

		good = run->series_count < SIZES_MAX && bench_parse_size(word, &size) && size <= UINT64_C(1) << 43;
		if (good)
			add(run, size, rounds);
	}
	free(text);
	return good;
}

/* ---- Printing --------------------------------------------------------------------------------------------------- */

/* How many times as fast as on base pages, round by round: all of a round's figures are there, or none. */
static void pair_up(const struct bench_series *series, enum tlb_phase phase, struct bench_pairs *pairs)
{
	const struct bench_stat *ours = &series->stat[TLB_METRIC(TLB_READ, phase)];
	const struct bench_stat *base = &series->stat[TLB_METRIC(TLB_READ, TLB_BASE)];

	pairs->ratio.count = 0;
	for (unsigned i = 0; i < ours->count && i < base->count; i++)
		bench_stat_add(&pairs->ratio, base->samples[i] / ours->samples[i]);
	bench_pairs_close(pairs);
}

static double median(const struct bench_series *series, unsigned figure, enum tlb_phase phase)
{
	return bench_stat_median(&series->stat[TLB_METRIC(figure, phase)]);
}

static void print_row(struct table *table, const struct bench_series *series, enum tlb_phase phase)
{
	static const char *const names[TLB_PHASES] = {"base pages", "half collapsed", "collapsed"};
	static struct bench_pairs pairs;
	const struct bench_stat *read = &series->stat[TLB_METRIC(TLB_READ, phase)];
	char cell[TABLE_CELL];

	table_row(table);
	table_set(table, 0, "%s", series->variant[0].value);
	table_set(table, 1, "%s", names[phase]);
	table_set(table, 2, "%s", table_figure(cell, bench_stat_median(read), "ns"));
	table_set(table, 3, "%s", table_figure(cell, bench_stat_min(read), "ns"));
	table_set(table, 4, "%s", table_figure(cell, bench_stat_max(read), "ns"));
	table_set(table, 5, "%u", read->count);
	if (phase != TLB_BASE) {
		pair_up(series, phase, &pairs);
		table_set(table, 6, "%s", bench_pairs_text(cell, &pairs));
	}
	table_set(table, 7, "%.0f", median(series, TLB_BASE_BYTES, phase) / (double)BENCH_FRAME);
	table_set(table, 8, "%.0f", median(series, TLB_FRAMES, phase));
	table_set(table, 9, "%.0f", median(series, TLB_IN_PLACE, phase));
}

static void print_table(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"memory", "is in",         "a read",      "min",    "max",
	                                      "rounds", "times as fast", "base places", "frames", "made huge in place"};
	struct table table;
	char name[TABLE_CELL];

	fprintf(out, "%s\n", run->title);
	table_init(&table, 10, 2);
	table_row(&table);
	for (unsigned c = 0; c < 10; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 0; i < run->series_count; i++)
		for (enum tlb_phase phase = TLB_BASE; phase < TLB_PHASES; phase++)
			if (run->series[i].stat[TLB_READ].count)
				print_row(&table, &run->series[i], phase);
	table_print(&table, out);
	fputs("\n", out);
	for (unsigned i = 0; i < run->series_count; i++) {
		snprintf(name, sizeof(name), "%s", run->series[i].variant[0].value);
		if (run->series[i].note[0])
			fprintf(out, "  %s: %s\n", name, run->series[i].note);
	}
	report_discarded(run, out);
}

static void add_pairs(const struct bench_run *run, json_t *report)
{
	static struct bench_pairs pairs;
	json_t *list;
	char ours[TABLE_CELL], theirs[TABLE_CELL];

	if (!report)
		return;
	list = json_array();
	for (unsigned i = 0; i < run->series_count; i++)
		for (enum tlb_phase phase = TLB_HALF; phase < TLB_PHASES; phase++) {
			snprintf(ours, sizeof(ours), "%s size=%.20s", phase_names[phase],
			         run->series[i].variant[0].value);
			snprintf(theirs, sizeof(theirs), "%s size=%.20s", phase_names[TLB_BASE],
			         run->series[i].variant[0].value);
			pair_up(&run->series[i], phase, &pairs);
			json_array_append_new(list, bench_pairs_json(&pairs, ours, theirs));
		}
	json_object_set_new(json_object_get(json_object_get(report, "ratios"), "read_ns"), "pairs", list);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_tlb_help[] =
	"Usage: hugepool bench tlb [OPTIONS]\n\n"
	"What huge pages are worth to a program that reads all over its memory. A movable file has base pages; a\n"
	"chain of pointers leads through all of it in random order, so that a read waits for the one before it. It is\n"
	"followed once on base pages, once when every second page of 2 MiB has been collapsed (hp_collapse()), and\n"
	"once when all have. The chain is a cycle: it proves that collapsing lost nothing.\n\n"
	"Where the kernel's pool of huge pages has or gets as much, pages are copied to frames of it; elsewhere the\n"
	"kernel makes them huge in place. The table says how many places of 2 MiB are for base pages, and how many\n"
	"frames are in use; what the kernel made huge in place stays in the first of these.\n\n"
	"  --sizes LIST  of the memory (default " SIZES_DEFAULT
	"), up to 8; twice as much has to be there with frames,\n"
	"                and sizes that do not fit are left out\n"
	"  --rounds N    rounds that count (default 3)\n"
	"  --json        JSON alone on standard output\n\n"
	"JSON: metrics read_ns, for a read; base_bytes, frames and in_place; each with phase base, half and collapsed\n"
	"in its variant. ratios.read_ns.pairs is a list of {ours, theirs, ratio, min, max, low, high, samples}: how\n"
	"many times as fast reads are as on base pages.\n\n"
	"Examples:\n"
	"  hugepool bench tlb\n"
	"  hugepool bench tlb --sizes 256M,1G --rounds 9 --json\n";

static const char *const option_names[] = {"sizes=", "rounds=", "json", NULL};
enum option { SIZES, ROUNDS, JSON };

int bench_tlb(int argc, char **argv)
{
	static struct bench_run run = {.bench = "tlb"};
	struct bench_options options = {.command = "tlb", .argc = argc, .argv = argv};
	const char *sizes = SIZES_DEFAULT;
	uint64_t rounds = ROUNDS_DEFAULT;
	bool json = false;
	int option;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("tlb", "'%s' is not an option", options.value);
		if (option == SIZES)
			sizes = options.value;
		if (option == ROUNDS && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &rounds))
			return bench_usage("tlb", "--rounds takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		json |= option == JSON;
	}
	set_metrics(&run);
	if (!add_all(&run, sizes, (unsigned)rounds))
		return bench_usage("tlb", "--sizes takes up to %d sizes like 1G,4G", SIZES_MAX);
	run.rounds = (unsigned)rounds;
	snprintf(run.title, sizeof(run.title), "tlb, reads in random order, each after the one before it");
	return bench_command_with(&run, json, json_pack("{s:s,s:I}", "sizes", sizes, "rounds", (json_int_t)rounds),
	                          print_table, add_pairs);
}
