/* SPDX-License-Identifier: MIT */
/* The commands of instances of one kind, which fault or fork; and the command line of all instances. */
#include "command.h"
#include "workloads.h"

#include <stdio.h>
#include <stdlib.h>

#define INSTANCES_MAX 1024
/* A pool knows 511 processes: those that fork, a child of each, and as many that fault beside them. */
#define FORKING_MAX 160

/* ---- The command line ------------------------------------------------------------------------------------------- */

static const char *const option_names[] = {"instances=", "size=",   "seconds=", "lazy",
                                           "tuning=",    "rounds=", "json",     NULL};
enum option { INSTANCES, SIZE, SECONDS, LAZY, TUNING, ROUNDS, JSON };

static bool parse_seconds(const char *text, double *seconds)
{
	char *end;

	*seconds = strtod(text, &end);
	return end != text && !*end && *seconds > 0 && *seconds <= 100;
}

int instances_options(struct instances_asked *asked, int argc, char **argv)
{
	struct bench_options options = {.command = asked->command, .argc = argc, .argv = argv};
	struct instances *params = &asked->params;
	unsigned most = params->count[INSTANCE_FORKS] ? FORKING_MAX : INSTANCES_MAX;
	uint64_t number = 0;
	int option;

	params->setup = (struct engine_setup){.threads = 1, .size = BENCH_GIB};
	params->seconds = 1;
	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage(asked->command, "'%s' is not an option", options.value);
		if (option == INSTANCES) {
			if (!bench_parse_number(options.value, 1, most, &number))
				return bench_usage(asked->command, "--instances takes a number from 1 to %u", most);
			for (unsigned kind = 0; kind < INSTANCE_KINDS; kind++)
				params->count[kind] = params->count[kind] ? (unsigned)number : 0;
		}
		if (option == SIZE && !bench_parse_size(options.value, &params->setup.size))
			return bench_usage(asked->command, "--size takes a size like 64M or 1G");
		if (option == ROUNDS) {
			if (!bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &number))
				return bench_usage(asked->command, "--rounds takes a number from 1 to %d",
				                   BENCH_SAMPLES_MAX);
			asked->rounds = (unsigned)number;
		}
		if (option == SECONDS && !parse_seconds(options.value, &params->seconds))
			return bench_usage(asked->command, "--seconds takes a number above 0, up to 100");
		params->setup.lazy |= option == LAZY;
		params->setup.tuning = option == TUNING ? options.value : params->setup.tuning;
		asked->json |= option == JSON;
	}
	params->setup.size = (params->setup.size + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	return BENCH_DONE;
}

json_t *instances_params_json(const struct instances_asked *asked)
{
	const struct instances *params = &asked->params;
	unsigned instances =
		params->count[INSTANCE_FAULTS] ? params->count[INSTANCE_FAULTS] : params->count[INSTANCE_FORKS];

	return json_pack("{s:i,s:I,s:f,s:b,s:o,s:i}", "instances", (int)instances, "size",
	                 (json_int_t)params->setup.size, "seconds", params->seconds, "lazy", params->setup.lazy,
	                 "tuning", params->setup.tuning ? json_string(params->setup.tuning) : json_null(), "rounds",
	                 (int)asked->rounds);
}

/* ---- The commands ----------------------------------------------------------------------------------------------- */

/* One kind on all engines. */
static int run_kind(const char *command, enum instance_kind kind, int argc, char **argv)
{
	static const struct engine *const engines[] = {&engine_kernel, &engine_tuned, &engine_prefilled,
	                                               &engine_hugepool};
	static struct bench_run run;
	struct instances_asked asked = {.command = command, .rounds = BENCH_ROUNDS};
	const struct instances *params = &asked.params;
	int status;

	asked.params.count[kind] = 1;
	status = instances_options(&asked, argc, argv);
	if (status != BENCH_DONE)
		return status;
	status = engine_check_tuning(command, &params->setup);
	if (status != BENCH_DONE)
		return status;
	run.bench = command;
	run.rounds = asked.rounds;
	instances_set_metrics(&run, params);
	for (unsigned i = 0; i < sizeof(engines) / sizeof(engines[0]); i++)
		instances_add(&run, engines[i], params);
	snprintf(run.title, sizeof(run.title), "%s, %u instance%s, a file of %llu MiB, %g s a round%s", command,
	         params->count[kind], params->count[kind] == 1 ? "" : "s",
	         (unsigned long long)(params->setup.size >> 20), params->seconds, params->setup.lazy ? ", lazy" : "");
	return bench_command(&run, asked.json, instances_params_json(&asked));
}

const char bench_faults_help[] =
	"Usage: hugepool bench faults [OPTIONS]\n\n"
	"Processes map one file that is filled already, write a byte in each huge page, unmap, and begin again.\n"
	"faults_per_s counts pages written, summed over all processes; the time to map and unmap is in it. The row\n"
	"phase=fill tells what filling the file took, before the clock.\n\n"
	"  --instances N     processes at the same time (default 1)\n"
	"  --size SIZE       of the file: 64M, 1G (default 1G), rounded up to huge pages\n"
	"  --seconds T       that a round takes (default 1)\n"
	"  --lazy            hugepool maps pages at their first touch\n"
	"  --tuning STRING   the pool's tuning, \"fault_window=1\" for instance\n"
	"  --rounds N        rounds that count (default 5)\n"
	"  --json            JSON alone on standard output\n\n"
	"Examples:\n"
	"  hugepool bench faults --instances 1 --size 1G --seconds 1\n"
	"  hugepool bench faults --instances 24 --size 1G --seconds 0.5 --json\n";

int bench_faults(int argc, char **argv)
{
	return run_kind("faults", INSTANCE_FAULTS, argc, argv);
}

const char bench_forks_help[] =
	"Usage: hugepool bench forks [OPTIONS]\n\n"
	"Processes map one file that is filled already, write a byte in each of its first 4 huge pages, fork a child\n"
	"that ends at once, wait for it, unmap, and begin again. forks_per_s is summed over all processes; the time\n"
	"to map, touch, wait and unmap is in it. The row phase=fill tells what filling the file took, before the\n"
	"clock.\n\n"
	"  --instances N     processes at the same time (default 1)\n"
	"  --size SIZE       of the file: 64M, 1G (default 1G), rounded up to huge pages\n"
	"  --seconds T       that a round takes (default 1)\n"
	"  --lazy            hugepool maps pages at their first touch\n"
	"  --tuning STRING   the pool's tuning, \"file_lock=rwsem\" for instance\n"
	"  --rounds N        rounds that count (default 5)\n"
	"  --json            JSON alone on standard output\n\n"
	"Examples:\n"
	"  hugepool bench forks --instances 1 --size 1G --seconds 1\n"
	"  hugepool bench forks --instances 24 --size 1G --lazy --json\n";

int bench_forks(int argc, char **argv)
{
	return run_kind("forks", INSTANCE_FORKS, argc, argv);
}
