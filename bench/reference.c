/* SPDX-License-Identifier: MIT */
/* The published tables of workloads 1 to 4, in their own layout, with figures measured here beside them. */
#include "reference.h"

#include "collapse.h"
#include "env.h"
#include "fallocate.h"
#include "memory.h"
#include "report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define QUICK_ROUNDS 2

struct bench_run *reference_run(struct reference *r, const char *bench, unsigned rounds)
{
	struct bench_run *run = &r->run[r->count++];

	if (r->count > REFERENCE_RUNS)
		abort();
	run->bench = bench;
	run->rounds = rounds;
	return run;
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_reference_help[] =
	"Usage: hugepool bench reference [OPTIONS]\n\n"
	"Prints published tables with figures measured here beside them: faults and forks of shared mappings, the\n"
	"parallel first touch with its lock statistics, filling the page cache, and collapse. Published machines were\n"
	"much larger: ratios are what compares. Takes some minutes.\n\n"
	"  --quick   smaller memory and shorter rounds: less than a minute\n"
	"  --json    JSON alone on standard output: the runs behind the tables\n\n"
	"Examples:\n"
	"  hugepool bench reference\n"
	"  hugepool bench reference --quick\n";

static const char *const option_names[] = {"quick", "json", NULL};
enum option { QUICK, JSON };

/* What the series' parameters are depends on the workload. */
static const struct engine_locks *locks_of(const struct bench_series *series)
{
	const struct instances *instances = series->params;
	const struct parallel_fault *touch = series->params;

	if (series->job == &parallel_fault_job)
		return touch->locks;
	return series->job == &instances_job && instances->record ? &instances->record->locks : NULL;
}

static json_t *locks_json(const struct bench_run *run)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < run->series_count; i++)
		if (locks_of(&run->series[i]))
			json_array_append_new(list, engine_locks_json(locks_of(&run->series[i]), &run->series[i]));
	return list;
}

static void print_json(const struct reference *r, json_t *env)
{
	json_t *runs = json_array();

	for (unsigned i = 0; i < r->count; i++) {
		json_t *report = report_json(&r->run[i], NULL, NULL);

		json_object_set_new(report, "title", json_string(r->run[i].title));
		json_object_set_new(report, "locks", locks_json(&r->run[i]));
		if (&r->run[i] == r->fill)
			fallocate_report(r->fill, report);
		if (&r->run[i] == r->collapse)
			collapse_report(r->collapse, NULL, report);
		json_array_append_new(runs, report);
	}
	report_json_print(json_pack("{s:i,s:s,s:{s:b,s:I,s:I,s:I,s:f,s:i},s:o,s:o}", "version", 1, "bench", "reference",
	                            "params", "quick", r->quick, "faults_size", (json_int_t)r->faults_size,
	                            "touch_size", (json_int_t)r->touch_size, "fill_size", (json_int_t)r->fill_size,
	                            "seconds", r->seconds, "rounds", (int)r->rounds, "env", env, "runs", runs),
	                  stdout);
}

/* Pools of the same size mostly come out the same: each outcome is told once. */
static void print_notes(const struct reference *r)
{
	const char *told[REFERENCE_RUNS * BENCH_SERIES_MAX];
	unsigned count = 0, i;

	for (unsigned run = 0; run < r->count; run++) {
		for (unsigned s = 0; s < r->run[run].series_count; s++) {
			const char *note = r->run[run].series[s].note;

			for (i = 0; i < count && strcmp(told[i], note); i++)
				;
			if (!*note || i < count)
				continue;
			told[count++] = note;
			printf("pool      %s\n", note);
		}
	}
}

static void print_tables(const struct reference *r, json_t *env)
{
	unsigned discarded = 0;

	bench_env_print(env, stdout);
	json_decref(env);
	print_notes(r);
	for (unsigned i = 0; i < r->count; i++)
		for (unsigned s = 0; s < r->run[i].series_count; s++)
			discarded += r->run[i].series[s].discarded;
	printf("rounds    %u discarded\n", discarded);
	for (unsigned i = 0; i < r->count && discarded; i++) {
		printf("%s\n", r->run[i].title);
		report_discarded(&r->run[i], stdout);
	}
	printf("\n");
	reference_print_faults(r, stdout);
	printf("\n");
	reference_print_touch(r, stdout);
	printf("\n");
	reference_print_fill(r, stdout);
	printf("\n");
	reference_print_collapse(r, stdout);
}

int bench_reference(int argc, char **argv)
{
	static struct reference r;
	struct bench_run *runs[REFERENCE_RUNS];
	struct bench_options options = {.command = "reference", .argc = argc, .argv = argv};
	struct bench_pages pages;
	bool json = false;
	json_t *env;
	int option, rc;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("reference", "'%s' is not an option", options.value);
		r.quick |= option == QUICK;
		json |= option == JSON;
	}
	r.faults_size = BENCH_GIB;
	r.touch_size = r.quick ? BENCH_GIB : 2 * BENCH_GIB;
	r.mutex_size = BENCH_GIB;
	r.fill_size = r.touch_size;
	r.rounds = r.quick ? QUICK_ROUNDS : BENCH_ROUNDS;
	r.seconds = r.quick ? 0.1 : 0.5;
	r.threads[0] = 1;
	r.threads[1] = bench_cpus() > 2 ? bench_cpus() : 2;
	reference_plan_faults(&r);
	reference_plan_touch(&r);
	reference_plan_fill(&r);
	reference_plan_collapse(&r);
	for (unsigned i = 0; i < r.count; i++)
		runs[i] = &r.run[i];

	rc = bench_measure(runs, r.count, &pages);
	if (rc && rc != -EUCLEAN)
		return BENCH_FAILED;
	env = bench_env(&pages);
	if (json)
		print_json(&r, env);
	else
		print_tables(&r, env);
	/* The last run, collapse, has no hugepool where there are no huge pages: its table says that. */
	return rc ? BENCH_FAILED : bench_status(runs, r.count - 1);
}
