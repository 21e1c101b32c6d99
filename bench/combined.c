/* SPDX-License-Identifier: MIT */
/*
 * Instances that fault and instances that fork, on the same file at the same time. With lazy memory both meet on the
 * file lock, and each scheme of it has a series of its own.
 */
#include "report.h"
#include "command.h"
#include "combined.h"

#include "pairs.h"
#include "table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INSTANCES_DEFAULT 24
#define LAZY_ROUNDS 9 /* pairs for a confidence interval that leaves out the least and the greatest */

const char *const combined_file_locks[COMBINED_FILE_LOCKS] = {"rwsem", "none", "vma", "invalidate", "biased"};

/* ---- Series ----------------------------------------------------------------------------------------------------- */

struct instances *combined_add_file_lock(struct bench_run *run, const struct instances *params, unsigned file_lock)
{
	const char *word = combined_file_locks[file_lock], *more = params->setup.tuning;
	struct instances *own = instances_add(run, &engine_hugepool, params);
	size_t room = sizeof("fault_window=1 file_lock=invalidate ") + (more ? strlen(more) : 0);
	char *tuning = malloc(room);

	if (!tuning)
		abort();
	snprintf(tuning, room, "fault_window=1 file_lock=%s %s", word, more ? more : "");
	own->setup.lazy = true;
	own->setup.unsafe = !strcmp(word, "none");
	own->setup.tuning = tuning;
	bench_series_tag(&run->series[run->series_count - 1], "file_lock", word);
	return own;
}

static void plan(struct bench_run *run, const struct instances *params)
{
	static const struct engine *const engines[] = {&engine_kernel, &engine_tuned, &engine_prefilled};

	for (unsigned i = 0; i < 3; i++)
		instances_add(run, engines[i], params)->record = engine_share(sizeof(*params->record));
	if (!params->setup.lazy)
		instances_add(run, &engine_hugepool, params)->record = engine_share(sizeof(*params->record));
	for (unsigned i = 0; i < COMBINED_FILE_LOCKS && params->setup.lazy; i++)
		combined_add_file_lock(run, params, i)->record = engine_share(sizeof(*params->record));
}

/* ---- Pairs ------------------------------------------------------------------------------------------------------ */

static const struct instances_record *record_of(const struct bench_series *series)
{
	return ((const struct instances *)series->params)->record;
}

static const struct bench_series *series_of(const struct bench_run *run, const char *file_lock)
{
	for (unsigned i = 0; i < run->series_count; i++)
		if (run->series[i].variant[0].key && !strcmp(run->series[i].variant[0].value, file_lock))
			return &run->series[i];
	return NULL;
}

/* Ratios of two series' rates, of those rounds that count in both. */
static void pair_up(const struct bench_series *ours, const struct bench_series *theirs, enum instance_kind kind,
                    struct bench_pairs *pairs)
{
	const struct instances_record *a = record_of(ours), *b = record_of(theirs);

	memset(&pairs->ratio, 0, sizeof(pairs->ratio));
	for (unsigned round = 0; round < BENCH_SAMPLES_MAX; round++)
		if (a->rate[round][kind] > 0 && b->rate[round][kind] > 0)
			bench_stat_add(&pairs->ratio, a->rate[round][kind] / b->rate[round][kind]);
	bench_pairs_close(pairs);
}

/* Of the two schemes that the biased lock is held against, the one with the higher rate. */
static const char *better(const struct bench_run *run, enum instance_kind kind)
{
	const struct bench_series *vma = series_of(run, "vma"), *invalidate = series_of(run, "invalidate");

	return bench_stat_median(&invalidate->stat[kind]) > bench_stat_median(&vma->stat[kind]) ? "invalidate" : "vma";
}

/* ---- What there is to say beside the metrics -------------------------------------------------------------------- */

static const char *const kind_metrics[INSTANCE_KINDS] = {
	[INSTANCE_FAULTS] = "faults_per_s",
	[INSTANCE_FORKS] = "forks_per_s",
};

void combined_print_better(const struct bench_run *run, FILE *out)
{
	struct bench_pairs *pairs = malloc(sizeof(*pairs));
	char cell[TABLE_CELL];

	if (!pairs)
		abort();
	for (unsigned kind = 0; kind < INSTANCE_KINDS; kind++) {
		const char *than = better(run, kind);

		pair_up(series_of(run, "biased"), series_of(run, than), kind, pairs);
		if (isnan(pairs->low))
			fprintf(out, "  %s: too few rounds to tell how biased compares: %u of 6\n", kind_metrics[kind],
			        pairs->ratio.count);
		else
			fprintf(out,
			        "  %s: the better of vma and invalidate is %s; biased has %s times its rate (95 %% "
			        "confidence), %u pairs\n",
			        kind_metrics[kind], than, bench_pairs_text(cell, pairs), pairs->ratio.count);
	}
	free(pairs);
}

static void print_pairs(const struct bench_run *run, const struct bench_series *ours)
{
	struct bench_pairs *pairs = malloc(sizeof(*pairs));
	struct table table;
	char name[TABLE_CELL], cell[TABLE_CELL];

	if (!pairs)
		abort();
	printf("\nfile_lock=biased to the others, medians of the rounds' ratios%s:\n",
	       run->rounds < 6 ? "" : " (95 % confidence)");
	table_init(&table, 3, 1);
	table_row(&table);
	table_set(&table, 0, "times");
	for (unsigned kind = 0; kind < INSTANCE_KINDS; kind++)
		table_set(&table, 1 + kind, "%s", kind_metrics[kind]);
	for (unsigned i = 0; i < run->series_count; i++) {
		if (&run->series[i] == ours)
			continue;
		table_row(&table);
		table_set(&table, 0, "%s", engine_series_name(name, sizeof(name), &run->series[i]));
		for (unsigned kind = 0; kind < INSTANCE_KINDS; kind++) {
			pair_up(ours, &run->series[i], kind, pairs);
			table_set(&table, 1 + kind, "%s", bench_pairs_text(cell, pairs));
		}
	}
	table_print(&table, stdout);
	free(pairs);
	combined_print_better(run, stdout);
}

/* ratios.METRIC gets "better_file_lock" and "pairs", a list like that of `bench locks`. */
static void report_pairs(const struct bench_run *run, const struct bench_series *ours, json_t *report)
{
	struct bench_pairs *pairs = malloc(sizeof(*pairs));
	char name[TABLE_CELL], own_name[TABLE_CELL];

	if (!pairs)
		abort();
	engine_series_name(own_name, sizeof(own_name), ours);
	for (unsigned kind = 0; kind < INSTANCE_KINDS; kind++) {
		json_t *ratios = json_object_get(json_object_get(report, "ratios"), kind_metrics[kind]);
		json_t *list = json_array();

		for (unsigned i = 0; i < run->series_count; i++) {
			if (&run->series[i] == ours)
				continue;
			pair_up(ours, &run->series[i], kind, pairs);
			engine_series_name(name, sizeof(name), &run->series[i]);
			json_array_append_new(list, bench_pairs_json(pairs, own_name, name));
		}
		json_object_set_new(ratios, "better_file_lock", json_string(better(run, kind)));
		json_object_set_new(ratios, "pairs", list);
	}
	free(pairs);
}

static void more(const struct bench_run *run, json_t *report)
{
	const struct bench_series *biased = series_of(run, "biased");
	json_t *locks = json_array();

	if (biased && report)
		report_pairs(run, biased, report);
	else if (biased)
		print_pairs(run, biased);
	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];

		if (strcmp(series->engine, "hugepool") != 0)
			continue;
		if (report)
			json_array_append_new(locks, engine_locks_json(&record_of(series)->locks, series));
		else
			engine_locks_print(&record_of(series)->locks, series, false, stdout);
	}
	if (report)
		json_object_set_new(report, "locks", locks);
	else
		json_decref(locks);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_combined_help[] =
	"Usage: hugepool bench combined [OPTIONS]\n\n"
	"The workloads faults and forks on the same file at the same time, with as many processes of each. The rates\n"
	"are sums over the processes. Under the table stand the statistics of hugepool's locks: those of faults\n"
	"(file, mapping, fault), and of the others those that somebody waited for (see hugepool lockstat --help).\n\n"
	"With --lazy each touch takes the file lock, and so does each fork: the parent enters the child's mapping\n"
	"under it before the child is made. There is a series for each scheme of that lock, with one page for each\n"
	"fault (fault_window=1):\n\n"
	"  rwsem       faults read the lock, forks write it: each keeps out the other\n"
	"  none        faults take no lock, so that nothing orders them against truncation: not safe\n"
	"  vma         faults read a lock of their own mapping, forks read that of the file\n"
	"  invalidate  faults and forks read one reader-writer lock of the file\n"
	"  biased      the same, but its readers share no cache line; the default\n\n"
	"Only truncation, which is not in this workload, and under rwsem forks write the lock. So none, vma,\n"
	"invalidate and biased should be about equal here, and rwsem trades forks for faults. biased is compared\n"
	"with the others round by round, with a 95 % confidence interval from 6 rounds on.\n\n"
	"Lazy memory is slow beside tuned and prefilled, because each of its pages takes a fault, with a signal,\n"
	"and a kernel mapping of its own; those two have all pages mapped by one call, and faults_per_s then counts\n"
	"plain writes. Lazy memory is for what is touched in part or later.\n\n"
	"  --instances N     processes that fault, and as many that fork (default 24)\n"
	"  --size SIZE       of the file: 64M, 1G (default 1G), rounded up to huge pages\n"
	"  --seconds T       that a round takes (default 1)\n"
	"  --lazy            hugepool maps pages at their first touch\n"
	"  --tuning STRING   more of the pool's tuning, \"fault_window=16\" for instance\n"
	"  --rounds N        rounds that count (default 5; with --lazy 9)\n"
	"  --json            JSON alone on standard output\n\n"
	"JSON: beside what all workloads have, locks has a list of {engine, variant, rounds, rows}, and with --lazy\n"
	"ratios.METRIC also has pairs, a list of {ours, theirs, ratio, min, max, low, high, samples}, where low and\n"
	"high bound the median with 95 % confidence, and better_file_lock, which is vma or invalidate.\n\n"
	"Examples:\n"
	"  hugepool bench combined --instances 24 --size 1G\n"
	"  hugepool bench combined --lazy --rounds 15 --seconds 0.5 --json\n";

int bench_combined(int argc, char **argv)
{
	static struct bench_run run;
	struct instances_asked asked = {
		.command = "combined",
		.params = {.count = {INSTANCES_DEFAULT, INSTANCES_DEFAULT}},
	};
	const struct instances *params = &asked.params;
	int status = instances_options(&asked, argc, argv);

	if (status != BENCH_DONE)
		return status;
	if (params->setup.lazy && params->setup.tuning && strstr(params->setup.tuning, "file_lock="))
		return bench_usage("combined", "--lazy has a series for each file_lock=: --tuning must not set it");
	status = engine_check_tuning("combined", &params->setup);
	if (status != BENCH_DONE)
		return status;
	if (!asked.rounds)
		asked.rounds = params->setup.lazy ? LAZY_ROUNDS : BENCH_ROUNDS;
	run.bench = "combined";
	run.rounds = asked.rounds;
	instances_set_metrics(&run, params);
	plan(&run, params);
	snprintf(run.title, sizeof(run.title), "combined, %u+%u instances, a file of %llu MiB, %g s a round%s",
	         params->count[INSTANCE_FAULTS], params->count[INSTANCE_FORKS],
	         (unsigned long long)(params->setup.size >> 20), params->seconds, params->setup.lazy ? ", lazy" : "");
	return bench_command_with(&run, asked.json, instances_params_json(&asked), report_table, more);
}
