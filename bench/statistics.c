/* SPDX-License-Identifier: MIT */
/*
 * What the statistics of locks cost in real work: lazy faults, and mapping and unmapping ready files.
 *
 * Each workload has a process, a pool and a thread of its own, and the statistics of that pool are switched while it
 * works. A round is a pair of samples, off and on, and a third, off again, which tells how far two samples of the same
 * are apart here. The three take turns in slices, in all orders one after the other, so that a change of the clock rate
 * or of the neighbours' load meets all of them alike; a sample is the median of its slices, as one that was preempted
 * says nothing. What is done only for one acquisition in HP_HOLD_SAMPLE, two looks at the clock, is in some slices and
 * not in others; spread over all acquisitions it is far below what can be seen here.
 */
#include "command.h"
#include "env.h"
#include "memory.h"
#include "report.h"
#include "table.h"

#include "hugepool.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOAL 1.02 /* of the time without */
#define PAIRS 40
#define SLICES 12 /* of a sample: each of the six orders twice */
#define MIB ((uint64_t)1 << 20)

enum { OFF, ON, OFF_AGAIN, LOCKS, METRICS };
#define STATES LOCKS

static const struct bench_metric metrics[METRICS] = {
	[OFF] = {"off_s", "s", 0, false, NULL},
	[ON] = {"on_s", "s", 0, false, NULL},
	[OFF_AGAIN] = {"off_again_s", "s", 0, false, NULL},
	[LOCKS] = {"locks", "1", 0, false, NULL}, /* taken in one operation */
};

struct work {
	const char *name, *window;
	bool lazy;          /* an operation is the first touch of a page; else it is a map and an unmap of the file */
	const char *tuning; /* of the pool */
	uint64_t size;      /* of the file */
	double seconds;     /* that a sample takes */
};

struct state {
	const struct work *work;
	hp_pool pool;
	hp_file file;
	uint64_t passes; /* that make a slice */
	unsigned pairs;  /* done so far */
	hp_error error;
	char *why; /* of what is going on */
};

/* ---- The work --------------------------------------------------------------------------------------------------- */

static bool failed(struct state *state, int rc, const char *what)
{
	const char *message = state->error.message;

	snprintf(state->why, BENCH_WHY, "%s: %.160s", what, message[0] ? message : strerror(-rc));
	return false;
}

static uint64_t read_clock(const struct state *state)
{
	(void)state;
	return bench_now_ns();
}

/* All that were counted so far, of all classes. */
static uint64_t read_acquisitions(const struct state *state)
{
	static hp_lock_stat rows[HP_LOCK_STATS_MAX];
	unsigned count = HP_LOCK_STATS_MAX;
	uint64_t sum = 0;

	if (hp_pool_lockstat(state->pool, rows, &count, sizeof(rows[0])))
		return 0;
	for (unsigned i = 0; i < count; i++)
		sum += rows[i].acquisitions;
	return sum;
}

static void touch(char *address, uint64_t size)
{
	for (uint64_t offset = 0; offset < size; offset += BENCH_FRAME)
		*(volatile char *)(address + offset) = 1;
}

/*
 * Maps the file and unmaps it, as often as makes a slice. `sum` gets by how much the meter went on during the touches,
 * or all in all where mapping is the work.
 */
static bool do_passes(struct state *state, uint64_t (*meter)(const struct state *), uint64_t *sum)
{
	const struct work *work = state->work;
	uint64_t first = meter(state), before, touches = 0;
	void *address;
	int rc;

	for (uint64_t pass = 0; pass < state->passes; pass++) {
		rc = hp_map(state->file, 0, work->size, HP_PROT_READ | HP_PROT_WRITE, work->lazy ? HP_MAP_LAZY : 0,
		            &address, &state->error);
		if (rc)
			return failed(state, rc, "hp_map");
		if (work->lazy) {
			before = meter(state);
			touch(address, work->size);
			touches += meter(state) - before;
		}
		rc = hp_unmap(address, work->size);
		if (rc)
			return failed(state, rc, "hp_unmap");
	}
	*sum = work->lazy ? touches : meter(state) - first;
	return true;
}

/* One operation's part of what the meter counts in a slice. */
static bool do_slice(struct state *state, bool statistics, uint64_t (*meter)(const struct state *), double *each)
{
	const struct work *work = state->work;
	int rc = hp_pool_lockstat_set(state->pool, statistics ? HP_LOCKSTAT_ON : HP_LOCKSTAT_OFF);
	uint64_t sum;

	if (rc)
		return failed(state, rc, "hp_pool_lockstat_set");
	if (!do_passes(state, meter, &sum))
		return false;
	*each = (double)sum / ((double)state->passes * (work->lazy ? (double)(work->size / BENCH_FRAME) : 1));
	return true;
}

/* ---- A series --------------------------------------------------------------------------------------------------- */

static bool make_pool(struct state *state, char note[BENCH_NOTE])
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	int rc;

	options.size = state->work->size;
	options.workers = HP_WORKERS_NONE; /* there is nothing to be zeroed, and nobody who could disturb */
	options.tuning = state->work->tuning;
	rc = hp_pool_create(&options, &state->pool, &state->error);
	if (rc)
		return failed(state, rc, "hp_pool_create");
	rc = hp_pool_stats_get(state->pool, &stats);
	if (rc)
		return failed(state, rc, "hp_pool_stats_get");
	snprintf(note, BENCH_NOTE, "%llu hugetlb, %llu thp, %llu base frames%s%.160s",
	         (unsigned long long)stats.hugetlb, (unsigned long long)stats.thp, (unsigned long long)stats.base,
	         stats.why_not_better[0] ? "; " : "", stats.why_not_better);
	rc = hp_file_create(state->pool, state->work->size, 0, &state->file, &state->error);
	if (rc)
		return failed(state, rc, "hp_file_create");
	rc = hp_file_allocate(state->file, 0, state->work->size, &state->error);
	return rc ? failed(state, rc, "hp_file_allocate") : true;
}

/* How many passes make a slice. */
static bool find_passes(struct state *state)
{
	double least = INFINITY, each = 0, pass_s;

	state->passes = 1;
	for (unsigned i = 0; i < 5; i++) {
		if (!do_slice(state, true, read_clock, &each))
			return false;
		least = fmin(least, each / 1e9);
	}
	pass_s = least * (state->work->lazy ? (double)(state->work->size / BENCH_FRAME) : 1);
	state->passes = (uint64_t)ceil(fmin(state->work->seconds / SLICES / fmax(pass_s, 1e-7), 1e6));
	return true;
}

/* It has the process to itself, which ends pinned. */
static void *open_work(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	struct state *state = calloc(1, sizeof(*state));

	if (!state)
		return NULL;
	state->work = params;
	state->why = why;
	if (!make_pool(state, note))
		return NULL;
	bench_pin(0, 1);
	return find_passes(state) ? state : NULL;
}

static bool do_pair(struct state *state, struct bench_sample *sample)
{
	static const unsigned char order[6][STATES] = {{OFF, ON, OFF_AGAIN}, {OFF_AGAIN, ON, OFF},
	                                               {ON, OFF_AGAIN, OFF}, {OFF, OFF_AGAIN, ON},
	                                               {OFF_AGAIN, OFF, ON}, {ON, OFF, OFF_AGAIN}};
	static struct bench_stat slices[STATES];
	double each;

	for (unsigned i = 0; i < STATES; i++)
		slices[i].count = 0;
	/* The first slice after a sleep finds cold caches: it is nobody's. */
	if (!do_slice(state, true, read_clock, &each))
		return false;
	for (unsigned slice = 0; slice < SLICES; slice++) {
		for (unsigned turn = 0; turn < STATES; turn++) {
			unsigned now = order[(slice + state->pairs) % 6][turn];

			if (!do_slice(state, now == ON, read_clock, &each))
				return false;
			bench_stat_add(&slices[now], each / 1e9);
		}
	}
	for (unsigned i = 0; i < STATES; i++)
		sample->value[i] = bench_stat_median(&slices[i]);
	state->pairs++;
	return true;
}

/* Proof that the switch does something: what is counted while they are on, and nothing while they are off. */
static bool count_locks(struct state *state, struct bench_sample *sample)
{
	double off;

	if (!do_slice(state, false, read_acquisitions, &off) ||
	    !do_slice(state, true, read_acquisitions, &sample->value[LOCKS]))
		return false;
	if (off > 0)
		snprintf(state->why, BENCH_WHY, "the statistics counted while they were off");
	else if (!(sample->value[LOCKS] > 0))
		snprintf(state->why, BENCH_WHY, "the statistics counted nothing while they were on");
	return off == 0 && sample->value[LOCKS] > 0;
}

static void do_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct state *state = arg;

	(void)warm_up;
	state->why = sample->why;
	sample->counts = do_pair(state, sample) && count_locks(state, sample);
}

static bool close_work(void *arg, char why[BENCH_WHY])
{
	struct state *state = arg;
	int rc = hp_file_close(state->file);

	state->why = why;
	if (!rc)
		rc = hp_pool_check(state->pool, &state->error);
	if (!rc)
		rc = hp_pool_close(state->pool);
	return rc ? failed(state, rc, "at the end") : true;
}

static const struct bench_job job = {open_work, do_round, close_work};

/* ---- What comes out --------------------------------------------------------------------------------------------- */

/* Samples of one series are all there or none of a round, so that those of the same number are of the same pair. */
static void pair_ratios(const struct bench_series *series, unsigned state, struct bench_stat *ratio)
{
	ratio->count = 0;
	for (unsigned i = 0; i < series->stat[OFF].count; i++)
		bench_stat_add(ratio, series->stat[state].samples[i] / series->stat[OFF].samples[i]);
}

/* As `hugepool bench locks` has them. */
static json_t *ratio_json(const struct bench_series *series, unsigned state, const char *ours, double at_most)
{
	static struct bench_stat ratio;
	json_t *variant = json_object();
	double low, high;

	for (unsigned i = 0; i < BENCH_TAGS_MAX && series->variant[i].key; i++)
		json_object_set_new(variant, series->variant[i].key, json_string(series->variant[i].value));
	pair_ratios(series, state, &ratio);
	bench_stat_confidence(&ratio, &low, &high);
	return json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:o}", "ours", ours, "theirs", "off", "variant", variant,
	                 "ratio", report_number(bench_stat_median(&ratio)), "min",
	                 report_number(bench_stat_min(&ratio)), "max", report_number(bench_stat_max(&ratio)), "low",
	                 report_number(low), "high", report_number(high), "samples", (json_int_t)ratio.count, "at_most",
	                 report_number(at_most));
}

static json_t *ratios_json(const struct bench_run *run)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < run->series_count; i++) {
		json_array_append_new(list, ratio_json(&run->series[i], ON, "on", GOAL));
		json_array_append_new(list, ratio_json(&run->series[i], OFF_AGAIN, "off again", NAN));
	}
	return json_pack("{s:o}", "statistics", list);
}

/* Sets a ratio and its interval, in two columns. */
static void set_ratio(struct table *table, unsigned column, const struct bench_stat *ratio)
{
	double low, high;

	table_set(table, column, "%.4f", bench_stat_median(ratio));
	if (bench_stat_confidence(ratio, &low, &high))
		table_set(table, column + 1, "%.4f-%.4f", low, high);
}

static void add_row(struct table *table, const struct bench_series *series)
{
	static struct bench_stat ratio;
	const struct work *work = series->params;
	double low, high;
	char cell[TABLE_CELL];

	table_row(table);
	table_set(table, 0, "%s, %llu MiB%s%s", work->lazy ? "first touch of a lazy page" : "map and unmap",
	          (unsigned long long)(work->size / MIB), work->window ? ", window " : "",
	          work->window ? work->window : "");
	table_set(table, 1, "%.2f", bench_stat_median(&series->stat[LOCKS]));
	table_set(table, 2, "%s", table_figure(cell, bench_stat_median(&series->stat[OFF]), "s"));
	table_set(table, 3, "%s", table_figure(cell, bench_stat_median(&series->stat[ON]), "s"));
	pair_ratios(series, OFF_AGAIN, &ratio);
	set_ratio(table, 6, &ratio);
	pair_ratios(series, ON, &ratio);
	set_ratio(table, 4, &ratio);
	table_set(table, 8, "%u", ratio.count);
	if (bench_stat_confidence(&ratio, &low, &high))
		table_set(table, 9, "%s", high <= GOAL ? "within" : low > GOAL ? "above" : "unsure");
}

static void print_table(const struct bench_run *run, FILE *out)
{
	static const char *const heading[] = {"an operation",  "locks", "off",           "on",    "on to off",
	                                      "95 % interval", "A/A",   "95 % interval", "pairs", ""};
	struct table table;

	fprintf(out, "%s\n", run->title);
	table_init(&table, 10, 1);
	table_row(&table);
	for (unsigned c = 0; c < 10; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 0; i < run->series_count; i++)
		if (run->series[i].stat[OFF].count)
			add_row(&table, &run->series[i]);
	table_print(&table, out);
	for (unsigned i = 0; i < run->series_count; i++)
		if (run->series[i].note[0] && (!i || strcmp(run->series[i].note, run->series[i - 1].note) != 0))
			fprintf(out, "  pool: %s\n", run->series[i].note);
	report_discarded(run, out);
	fprintf(out,
	        "\nlocks: taken in an operation. A/A: off to off, what chance alone makes of a ratio here. The goal is "
	        "a ratio\n"
	        "on to off of at most %.2f by the upper end of its interval; unsure: it lies inside.\n",
	        GOAL);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_statistics_help[] =
	"Usage: hugepool bench statistics [OPTIONS]\n\n"
	"What the statistics of locks cost in real work. One thread, on one CPU, does the same work with the\n"
	"statistics of its pool off, on, and off again, in turns: touching each page of a lazy mapping, whose\n"
	"frames are there, with a window of 1 page a fault and with the default one (an operation is a page; map\n"
	"and unmap are not in it); mapping and unmapping a ready file of one huge page, and one of 64 MiB.\n\n"
	"  --pairs N      pairs of samples that count, after one to warm up (default 40; --rounds is the same)\n"
	"  --size SIZE    of the lazy mappings (default 256M)\n"
	"  --seconds T    of work that a sample has, in 12 slices that alternate with those of the others\n"
	"                 (default 0.03)\n"
	"  --json         JSON alone on standard output\n\n"
	"The ratio on to off is the median of the pairs' ratios, with the interval that holds it with 95 %\n"
	"confidence. The goal is at most 1.02 by the upper end of the interval: within; above: all of the interval\n"
	"is; unsure: more pairs would tell. Beside it stands off to off, in the same pairs, which is 1 but for\n"
	"chance. Missing the goal does not change the exit status. Pages need not be huge here.\n\n"
	"JSON: rows as of all workloads, with the metrics off_s, on_s and off_again_s, values in the order of the\n"
	"pairs, and locks, the acquisitions in an operation. ratios: \"statistics\", a list of {ours, theirs,\n"
	"variant, ratio, min, max, low, high, samples, at_most}; low and high are the interval's, null for less\n"
	"than 6 pairs.\n\n"
	"Examples:\n"
	"  hugepool bench statistics\n"
	"  hugepool bench statistics --pairs 100 --seconds 0.1\n"
	"  hugepool bench statistics --size 64M --json\n";

static const char *const option_names[] = {"pairs=", "rounds=", "size=", "seconds=", "json", NULL};
enum option { PAIRS_OPTION, ROUNDS, SIZE, SECONDS, JSON };

static void add_work(struct bench_run *run, const struct work *work)
{
	struct bench_series *series = bench_run_add(run, "hugepool", &job, work);
	static char size[BENCH_SERIES_MAX][32];
	char *text = size[run->series_count - 1];

	snprintf(text, sizeof(size[0]), "%lluM", (unsigned long long)(work->size / MIB));
	bench_series_tag(series, "work", work->name);
	bench_series_tag(series, "size", text);
	if (work->window)
		bench_series_tag(series, "window", work->window);
	run->huge_bytes += work->size;
}

static void add_ratios(const struct bench_run *run, json_t *report)
{
	if (report)
		json_object_set_new(report, "ratios", ratios_json(run));
}

int bench_statistics(int argc, char **argv)
{
	static struct work works[] = {
		{"touch", "1", true, "fault_window=1", 256 * MIB, 0.03},
		{"touch", "default", true, NULL, 256 * MIB, 0.03},
		{"map", NULL, false, NULL, BENCH_FRAME, 0.03},
		{"map", NULL, false, NULL, 64 * MIB, 0.03},
	};
	static struct bench_run run = {.bench = "statistics", .metric = metrics, .metrics = METRICS};
	struct bench_options options = {.command = "statistics", .argc = argc, .argv = argv};
	uint64_t size = works[0].size, pairs = PAIRS;
	double seconds = works[0].seconds;
	bool json = false;
	char *end;
	int option;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("statistics", "'%s' is not an option", options.value);
		if ((option == PAIRS_OPTION || option == ROUNDS) &&
		    !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &pairs))
			return bench_usage("statistics", "--%s takes a number from 1 to %d",
			                   option == ROUNDS ? "rounds" : "pairs", BENCH_SAMPLES_MAX);
		if (option == SIZE && !bench_parse_size(options.value, &size))
			return bench_usage("statistics", "--size takes a size like 64M or 1G");
		if (option == SECONDS) {
			seconds = strtod(options.value, &end);
			if (*end || !(seconds > 0 && seconds <= 100))
				return bench_usage("statistics", "--seconds takes a number above 0, up to 100");
		}
		json |= option == JSON;
	}
	size = (size + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	for (unsigned i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
		works[i].size = works[i].lazy ? size : works[i].size;
		works[i].seconds = seconds;
		add_work(&run, &works[i]);
	}
	run.rounds = (unsigned)pairs;
	snprintf(run.title, sizeof(run.title), "statistics of locks, one thread, %llu pairs, %g s a sample",
	         (unsigned long long)pairs, seconds);
	return bench_command_with(&run, json,
	                          json_pack("{s:I,s:I,s:f,s:i,s:f}", "pairs", (json_int_t)pairs, "size",
	                                    (json_int_t)size, "seconds", seconds, "slices", SLICES, "goal", GOAL),
	                          print_table, add_ratios);
}
