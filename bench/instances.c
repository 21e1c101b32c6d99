/* SPDX-License-Identifier: MIT */
/*
 * Instances of a program on one file that is filled already: processes that map it, touch it, and unmap it again. Some
 * write to every page, some fork after the first few. The rates are sums over instances.
 */
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

#define FEW_PAGES 4 /* that an instance touches before it forks */

/* ---- Metrics ---------------------------------------------------------------------------------------------------- */

/* What a run has beside its rates. */
enum { WALL, CPU, FILL, COMMON };

#define COMMON_METRICS                                                   \
	{"wall_s", "s", 0, false, NULL}, {"cpu_s", "s", 0, false, NULL}, \
	{                                                                \
		"fill_s", "s", 0, false, "fill"                          \
	}
#define FAULTS_METRIC                                \
	{                                            \
		"faults_per_s", "1/s", 1, true, NULL \
	}
#define FORKS_METRIC                                \
	{                                           \
		"forks_per_s", "1/s", 1, true, NULL \
	}

static const struct bench_metric fault_metrics[1 + COMMON] = {FAULTS_METRIC, COMMON_METRICS};
static const struct bench_metric combined_metrics[2 + COMMON] = {FAULTS_METRIC, FORKS_METRIC, COMMON_METRICS};

/* Where the common metrics begin. */
static unsigned rates(const struct instances *params)
{
	return (params->count[INSTANCE_FAULTS] != 0) + (params->count[INSTANCE_FORKS] != 0);
}

unsigned instances_rate_metric(const struct instances *params, enum instance_kind kind)
{
	return kind == INSTANCE_FORKS && params->count[INSTANCE_FAULTS] ? 1 : 0;
}

void instances_set_metrics(struct bench_run *run, const struct instances *params)
{
	run->metrics = rates(params) + COMMON;
	if (!params->count[INSTANCE_FORKS])
		run->metric = fault_metrics;
	else
		run->metric = params->count[INSTANCE_FAULTS] ? combined_metrics : combined_metrics + 1;
}

struct instances *instances_add(struct bench_run *run, const struct engine *engine, const struct instances *params)
{
	struct instances *own = malloc(sizeof(*own));

	if (!own)
		abort();
	*own = *params;
	own->engine = engine;
	run->huge_bytes += params->setup.size;
	bench_run_add(run, engine->name, &instances_job, own);
	return own;
}

/* ---- The series' process ---------------------------------------------------------------------------------------- */

struct instance { /* written by it, read by the engine once it has ended */
	pid_t pid;
	bool done;
	bool counts;
	char why[BENCH_WHY];
	uint64_t events, end_ns, cpu_ns; /* events: faults or forks */
};

struct board { /* shared by the instances of a round */
	_Atomic uint32_t ready;
	_Atomic uint32_t go;        /* futex */
	uint64_t start_ns;          /* written before go */
	struct instance instance[]; /* those that fault, then those that fork */
};

struct instances_state {
	const struct instances *params;
	struct engine_memory *memory;
	struct board *board;
	unsigned total; /* instances */
	unsigned round; /* that has passed, without the one to warm up */
};

static size_t board_size(const struct instances_state *state)
{
	return sizeof(*state->board) + state->total * sizeof(state->board->instance[0]);
}

static enum instance_kind kind_of(const struct instances *params, unsigned index)
{
	return index < params->count[INSTANCE_FAULTS] ? INSTANCE_FAULTS : INSTANCE_FORKS;
}

static void *instances_open(const void *arg, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	const struct instances *params = arg;
	struct instances_state *state = calloc(1, sizeof(*state));
	uint64_t start = bench_now_ns();

	if (!state)
		return NULL;
	state->params = params;
	for (unsigned kind = 0; kind < INSTANCE_KINDS; kind++)
		state->total += params->count[kind];
	state->board = mmap(NULL, board_size(state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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

/* The part that an instance touches, in bytes. */
static uint64_t touched_size(const struct instances *params, enum instance_kind kind)
{
	uint64_t few = FEW_PAGES * BENCH_FRAME;

	return kind == INSTANCE_FAULTS || params->setup.size < few ? params->setup.size : few;
}

/* Writes to the pages from `from` to before `to`, bytes from the mapping's start. */
static bool map_and_touch(struct instances_state *state, uint64_t from, uint64_t to, char **address)
{
	void *p;

	if (state->params->engine->map(state->memory, &p))
		return false;
	*address = p;
	for (uint64_t offset = from; offset < to; offset += BENCH_FRAME)
		*(volatile char *)(*address + offset) = 1;
	return true;
}

/* A child that ends at once, to the end. */
static bool fork_and_wait(struct engine_memory *memory)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid)
		_exit(0);
	if (pid < 0) {
		engine_failed(memory, -errno, "fork");
		return false;
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!status)
		return true;
	snprintf(memory->why, sizeof(memory->why), "a forked child was ended by %s",
	         WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "itself, with an error");
	return false;
}

static bool do_turn(struct instances_state *state, enum instance_kind kind)
{
	char *address;

	return map_and_touch(state, 0, touched_size(state->params, kind), &address) &&
	       (kind == INSTANCE_FAULTS || fork_and_wait(state->memory)) &&
	       !state->params->engine->unmap(state->memory, address);
}

/* After the clock. Those that fault look at a share of the pages each, which are the same for all. */
static bool check_memory(struct instances_state *state, unsigned index, struct instance *own)
{
	const struct instances *params = state->params;
	enum instance_kind kind = kind_of(params, index);
	uint64_t from = 0, to = touched_size(params, kind), n = params->count[kind], pages = to / BENCH_FRAME;
	char *address;

	if (kind == INSTANCE_FAULTS && n <= pages) {
		from = pages * index / n * BENCH_FRAME;
		to = pages * (index + 1) / n * BENCH_FRAME;
	}
	if (!map_and_touch(state, from, to, &address))
		return false;
	own->counts = bench_is_huge(address + from, to - from, own->why) &&
	              bench_was_zero(address + from, to - from, BENCH_FRAME, own->why);
	return !params->engine->unmap(state->memory, address);
}

static _Noreturn void run_instance(struct instances_state *state, unsigned index)
{
	const struct instances *params = state->params;
	struct board *board = state->board;
	struct instance *own = &board->instance[index];
	enum instance_kind kind = kind_of(params, index);
	uint64_t events = kind == INSTANCE_FAULTS ? params->setup.size / BENCH_FRAME : 1, cpu, until;

	atomic_fetch_add(&board->ready, 1);
	while (!atomic_load(&board->go))
		syscall(SYS_futex, &board->go, FUTEX_WAIT, 0, NULL, NULL, 0);
	cpu = bench_cpu_ns();
	until = board->start_ns + (uint64_t)(params->seconds * 1e9);
	do {
		if (!do_turn(state, kind))
			goto failed;
		own->events += events;
		own->end_ns = bench_now_ns();
	} while (own->end_ns < until);
	own->cpu_ns = bench_cpu_ns() - cpu;

	if (!check_memory(state, index, own))
		goto failed;
	own->done = true;
	if (params->engine->leave)
		params->engine->leave(state->memory);
	_exit(0);
failed:
	snprintf(own->why, sizeof(own->why), "%s", state->memory->why);
	own->counts = false;
	own->done = true;
	_exit(1);
}

/* ---- A round ---------------------------------------------------------------------------------------------------- */

static bool start_instances(struct instances_state *state, struct bench_sample *sample)
{
	struct board *board = state->board;
	pid_t engine = getpid();

	for (unsigned i = 0; i < state->total; i++) {
		pid_t pid = fork();

		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != engine)
				_exit(0);
			run_instance(state, i);
		}
		board->instance[i].pid = pid;
		if (pid < 0) {
			snprintf(sample->why, sizeof(sample->why), "fork: %s", strerror(errno));
			return false;
		}
	}
	for (unsigned waited = 0; atomic_load(&board->ready) < state->total; waited++) {
		usleep(200);
		if (waited > 150000) {
			snprintf(sample->why, sizeof(sample->why), "instances did not get ready in 30 s");
			return false;
		}
	}
	return true;
}

static void collect(struct instances_state *state, struct bench_sample *sample)
{
	const struct instances *params = state->params;
	struct board *board = state->board;
	uint64_t last_ns = board->start_ns, cpu_ns = 0;
	double rate[INSTANCE_KINDS] = {0}, *common = &sample->value[rates(params)];

	for (unsigned i = 0; i < state->total; i++) {
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
		rate[kind_of(params, i)] +=
			(double)instance->events / ((double)(instance->end_ns - board->start_ns) / 1e9);
		last_ns = instance->end_ns > last_ns ? instance->end_ns : last_ns;
		cpu_ns += instance->cpu_ns;
	}
	for (unsigned kind = 0; kind < INSTANCE_KINDS; kind++)
		if (params->count[kind])
			sample->value[instances_rate_metric(params, kind)] = rate[kind];
	common[WALL] = (double)(last_ns - board->start_ns) / 1e9;
	common[CPU] = (double)cpu_ns / 1e9;
}

/* All instances of a round, from the first fork to the last wait. */
static void run_instances(struct instances_state *state, struct bench_sample *sample)
{
	struct board *board = state->board;

	memset(board, 0, board_size(state));
	if (!start_instances(state, sample)) {
		sample->counts = false;
		for (unsigned i = 0; i < state->total && board->instance[i].pid > 0; i++) {
			kill(board->instance[i].pid, SIGKILL);
			waitpid(board->instance[i].pid, NULL, 0);
		}
		return;
	}
	board->start_ns = bench_now_ns();
	atomic_store(&board->go, 1);
	syscall(SYS_futex, &board->go, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
	collect(state, sample);
}

static void instances_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct instances_state *state = arg;
	const struct instances *params = state->params;

	run_instances(state, sample);
	if (warm_up) {
		engine_locks_begin(state->memory);
		return;
	}
	/* The file was filled once, before all rounds. */
	sample->value[rates(params) + FILL] = state->memory->fill_s;
	state->memory->fill_s = NAN;
	if (params->record && sample->counts && state->round < BENCH_SAMPLES_MAX)
		for (unsigned kind = 0; kind < INSTANCE_KINDS; kind++)
			params->record->rate[state->round][kind] =
				params->count[kind] ? sample->value[instances_rate_metric(params, kind)] : 0;
	state->round++;
}

static bool instances_close(void *arg, char why[BENCH_WHY])
{
	struct instances_state *state = arg;
	struct instances_record *record = state->params->record;

	if (!engine_locks_end(state->memory, record ? &record->locks : NULL, state->round) ||
	    state->params->engine->end(state->memory)) {
		snprintf(why, BENCH_WHY, "%s", state->memory->why);
		return false;
	}
	return engine_close(state->memory, why);
}

const struct bench_job instances_job = {instances_open, instances_round, instances_close};
