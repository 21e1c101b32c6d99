/* SPDX-License-Identifier: MIT */
/*
 * Warm faults: every instance, a process of its own, maps one file that is filled already, writes a byte in each huge
 * page, unmaps, and begins again for the time of the round. The rate is the sum over instances.
 */
#include "command.h"
#include "memory.h"
#include "workloads.h"

#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define INSTANCES_MAX 1024

const struct bench_metric faults_metrics[FAULTS_METRICS] = {
	[FAULTS_RATE] = {"faults_per_s", "1/s", 1, true, NULL},
	[FAULTS_WALL] = {"wall_s", "s", 0, false, NULL},
	[FAULTS_CPU] = {"cpu_s", "s", 0, false, NULL},
	[FAULTS_FILL] = {"fill_s", "s", 0, false, "fill"},
};

struct instance { /* written by it, read by the engine once it has ended */
	pid_t pid;
	bool done;
	bool counts;
	char why[BENCH_WHY];
	uint64_t faults, end_ns, cpu_ns;
};

struct board { /* shared by the instances of a round */
	_Atomic uint32_t ready;
	_Atomic uint32_t go; /* futex */
	uint64_t start_ns;   /* written before go */
	struct instance instance[];
};

struct faults_state {
	const struct faults *params;
	struct engine_memory *memory;
	struct board *board;
};

static void *faults_open(const void *arg, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	const struct faults *params = arg;
	struct faults_state *state = calloc(1, sizeof(*state));
	uint64_t start = bench_now_ns();

	if (!state)
		return NULL;
	state->params = params;
	state->board = mmap(NULL, sizeof(*state->board) + params->instances * sizeof(state->board->instance[0]),
	                    PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (state->board == MAP_FAILED) {
		snprintf(why, BENCH_WHY, "no memory");
		return NULL;
	}
	state->memory = engine_open(params->engine, &params->setup, why, note);
	if (!state->memory)
		return NULL;
	if (params->engine->begin(state->memory) ||
	    (params->engine->allocate && params->engine->allocate(state->memory, 0, params->setup.size))) {
		snprintf(why, BENCH_WHY, "%s", state->memory->why);
		return NULL;
	}
	state->memory->fill_s = (double)(bench_now_ns() - start) / 1e9;
	return state;
}

/* ---- An instance ------------------------------------------------------------------------------------------------ */

static bool map_and_touch(struct faults_state *state, char **address)
{
	const struct faults *params = state->params;
	void *p;

	if (params->engine->map(state->memory, &p))
		return false;
	*address = p;
	for (uint64_t offset = 0; offset < params->setup.size; offset += BENCH_FRAME)
		*(volatile char *)(*address + offset) = 1;
	return true;
}

static _Noreturn void run_instance(struct faults_state *state, struct instance *own)
{
	const struct faults *params = state->params;
	const struct engine *engine = params->engine;
	struct board *board = state->board;
	uint64_t pages = params->setup.size / BENCH_FRAME, cpu, until;
	char *address;

	atomic_fetch_add(&board->ready, 1);
	while (!atomic_load(&board->go))
		syscall(SYS_futex, &board->go, FUTEX_WAIT, 0, NULL, NULL, 0);
	cpu = bench_cpu_ns();
	until = board->start_ns + (uint64_t)(params->seconds * 1e9);
	do {
		if (!map_and_touch(state, &address) || engine->unmap(state->memory, address))
			goto failed;
		own->faults += pages;
		own->end_ns = bench_now_ns();
	} while (own->end_ns < until);
	own->cpu_ns = bench_cpu_ns() - cpu;

	if (!map_and_touch(state, &address))
		goto failed;
	own->counts = bench_is_huge(address, params->setup.size, own->why) &&
	              bench_was_zero(address, params->setup.size, BENCH_FRAME, own->why);
	if (engine->unmap(state->memory, address))
		goto failed;
	own->done = true;
	if (engine->leave)
		engine->leave(state->memory);
	_exit(0);
failed:
	snprintf(own->why, sizeof(own->why), "%s", state->memory->why);
	own->counts = false;
	own->done = true;
	_exit(1);
}

/* ---- A round ---------------------------------------------------------------------------------------------------- */

static bool start_instances(struct faults_state *state, struct bench_sample *sample)
{
	struct board *board = state->board;
	unsigned n = state->params->instances;
	pid_t engine = getpid();

	for (unsigned i = 0; i < n; i++) {
		pid_t pid = fork();

		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != engine)
				_exit(0);
			run_instance(state, &board->instance[i]);
		}
		board->instance[i].pid = pid;
		if (pid < 0) {
			snprintf(sample->why, sizeof(sample->why), "fork: %s", strerror(errno));
			return false;
		}
	}
	for (unsigned waited = 0; atomic_load(&board->ready) < n; waited++) {
		usleep(200);
		if (waited > 150000) {
			snprintf(sample->why, sizeof(sample->why), "instances did not get ready in 30 s");
			return false;
		}
	}
	return true;
}

static void collect(struct faults_state *state, struct bench_sample *sample)
{
	struct board *board = state->board;
	uint64_t last_ns = board->start_ns, cpu_ns = 0;
	double rate = 0;

	for (unsigned i = 0; i < state->params->instances; i++) {
		struct instance *instance = &board->instance[i];
		int status = 0;

		while (waitpid(instance->pid, &status, 0) < 0 && errno == EINTR)
			;
		if (WIFSIGNALED(status))
			snprintf(instance->why, sizeof(instance->why), "an instance was ended by %s",
			         strsignal(WTERMSIG(status)));
		if (WIFSIGNALED(status) || !instance->done || !instance->counts) {
			sample->counts = false;
			memcpy(sample->why, instance->why, sizeof(sample->why));
			continue;
		}
		rate += (double)instance->faults / ((double)(instance->end_ns - board->start_ns) / 1e9);
		last_ns = instance->end_ns > last_ns ? instance->end_ns : last_ns;
		cpu_ns += instance->cpu_ns;
	}
	sample->value[FAULTS_RATE] = rate;
	sample->value[FAULTS_WALL] = (double)(last_ns - board->start_ns) / 1e9;
	sample->value[FAULTS_CPU] = (double)cpu_ns / 1e9;
}

static void faults_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct faults_state *state = arg;
	struct board *board = state->board;
	unsigned n = state->params->instances;

	memset(board, 0, sizeof(*board) + n * sizeof(board->instance[0]));
	if (!start_instances(state, sample)) {
		sample->counts = false;
		for (unsigned i = 0; i < n && board->instance[i].pid > 0; i++) {
			kill(board->instance[i].pid, SIGKILL);
			waitpid(board->instance[i].pid, NULL, 0);
		}
		return;
	}
	board->start_ns = bench_now_ns();
	atomic_store(&board->go, 1);
	syscall(SYS_futex, &board->go, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	collect(state, sample);
	if (warm_up)
		return;
	/* The file was filled once, before all rounds. */
	sample->value[FAULTS_FILL] = state->memory->fill_s;
	state->memory->fill_s = NAN;
}

static bool faults_close(void *arg, char why[BENCH_WHY])
{
	struct faults_state *state = arg;

	if (state->params->engine->end(state->memory)) {
		snprintf(why, BENCH_WHY, "%s", state->memory->why);
		return false;
	}
	return engine_close(state->memory, why);
}

const struct bench_job faults_job = {faults_open, faults_round, faults_close};

/* ---- The command ------------------------------------------------------------------------------------------------ */

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

static const char *const option_names[] = {"instances=", "size=",   "seconds=", "lazy",
                                           "tuning=",    "rounds=", "json",     NULL};
enum option { INSTANCES, SIZE, SECONDS, LAZY, TUNING, ROUNDS, JSON };

int bench_faults(int argc, char **argv)
{
	static const struct engine *const engines[] = {&engine_kernel, &engine_tuned, &engine_prefilled,
	                                               &engine_hugepool};
	static struct faults params[4];
	static struct bench_run run = {.bench = "faults", .metric = faults_metrics, .metrics = FAULTS_METRICS};
	struct bench_options options = {.command = "faults", .argc = argc, .argv = argv};
	struct faults asked = {.setup = {.threads = 1, .size = BENCH_GIB}, .seconds = 1};
	uint64_t instances = 1, rounds = BENCH_ROUNDS;
	bool json = false;
	char *end;
	int option;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("faults", "'%s' is not an option", options.value);
		if (option == INSTANCES && !bench_parse_number(options.value, 1, INSTANCES_MAX, &instances))
			return bench_usage("faults", "--instances takes a number from 1 to %d", INSTANCES_MAX);
		if (option == SIZE && !bench_parse_size(options.value, &asked.setup.size))
			return bench_usage("faults", "--size takes a size like 64M or 1G");
		if (option == ROUNDS && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &rounds))
			return bench_usage("faults", "--rounds takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		if (option == SECONDS) {
			asked.seconds = strtod(options.value, &end);
			if (*end || !(asked.seconds > 0 && asked.seconds <= 100))
				return bench_usage("faults", "--seconds takes a number above 0, up to 100");
		}
		asked.setup.lazy |= option == LAZY;
		asked.setup.tuning = option == TUNING ? options.value : asked.setup.tuning;
		json |= option == JSON;
	}
	asked.instances = (unsigned)instances;
	asked.setup.size = (asked.setup.size + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	for (unsigned i = 0; i < 4; i++) {
		params[i] = asked;
		params[i].engine = engines[i];
		bench_run_add(&run, engines[i]->name, &faults_job, &params[i]);
		run.huge_bytes += asked.setup.size;
	}
	run.rounds = (unsigned)rounds;
	snprintf(run.title, sizeof(run.title), "faults, %u instance%s, a file of %llu MiB, %g s a round%s",
	         asked.instances, asked.instances == 1 ? "" : "s", (unsigned long long)(asked.setup.size >> 20),
	         asked.seconds, asked.setup.lazy ? ", lazy" : "");
	return bench_command(&run, json,
	                     json_pack("{s:I,s:I,s:f,s:b,s:o,s:I}", "instances", (json_int_t)instances, "size",
	                               (json_int_t)asked.setup.size, "seconds", asked.seconds, "lazy", asked.setup.lazy,
	                               "tuning", asked.setup.tuning ? json_string(asked.setup.tuning) : json_null(),
	                               "rounds", (json_int_t)rounds));
}
