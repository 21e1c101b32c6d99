/* SPDX-License-Identifier: MIT */
/*
 * Parallel first touch: the classic parallel_fault NR_THREADS SIZE_KB SKIP_KB.
 *
 * The clock runs from the moment all threads stand ready until the last has touched its last page: it covers mapping
 * and touching, and with --no-stock the zeroing. Making the file and unmapping are outside of it.
 */
#include "command.h"
#include "memory.h"
#include "workloads.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 1024

const struct bench_metric parallel_fault_metrics[PARALLEL_FAULT_METRICS] = {
	[PARALLEL_FAULT_RATE] = {"pages_per_s", "1/s", 1, true, NULL},
	[PARALLEL_FAULT_WALL] = {"wall_s", "s", 0, true, NULL},
	[PARALLEL_FAULT_CPU] = {"cpu_s", "s", 0, true, NULL},
	[PARALLEL_FAULT_FILL] = {"fill_s", "s", 0, false, "fill"},
};

uint64_t parallel_fault_touches(const struct parallel_fault *params)
{
	return (params->setup.size + params->skip - 1) / params->skip;
}

/* ---- The threads ------------------------------------------------------------------------------------------------ */

struct crew {
	const struct parallel_fault *params;
	struct engine_memory *memory;
	_Atomic unsigned ready;     /* threads that stand before the clock */
	_Atomic unsigned allocated; /* threads whose part of the file is there */
	_Atomic bool go;
	_Atomic(char *) region; /* once it is mapped; FAILED */
	_Atomic int rc;         /* the first failure */
	_Atomic unsigned done;
	uint64_t start_ns, start_cpu_ns; /* the first thread's */
	uint64_t end_cpu_ns;             /* by whoever is last */
};

struct member {
	struct crew *crew;
	unsigned index;
	pthread_t thread;
	uint64_t *order;      /* --random: the touches' byte offsets */
	uint64_t first, last; /* touches: first <= i < last */
	uint64_t end_ns;
};

static char failed_mark;
#define FAILED (&failed_mark)

/* There may be fewer CPUs than threads: whoever waits for long lets others run. */
#define SPIN_UNTIL(condition)                           \
	for (unsigned spin = 0; !(condition); spin++) { \
		if (spin % 1024 == 1023)                \
			sched_yield();                  \
		else                                    \
			relax();                        \
	}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

static void fail(struct crew *crew, int rc)
{
	int none = 0;

	atomic_compare_exchange_strong(&crew->rc, &none, rc);
}

/* The part of the file, in whole frames, that this thread prepares. */
static void own_part(const struct member *member, uint64_t *offset, uint64_t *length)
{
	const struct engine_setup *setup = &member->crew->params->setup;
	uint64_t frames = setup->size / BENCH_FRAME, threads = setup->threads;

	*offset = frames * member->index / threads * BENCH_FRAME;
	*length = frames * (member->index + 1) / threads * BENCH_FRAME - *offset;
}

static void allocate_part(struct member *member)
{
	struct crew *crew = member->crew;
	uint64_t offset, length;
	int rc;

	own_part(member, &offset, &length);
	rc = length ? crew->memory->engine->allocate(crew->memory, offset, length) : 0;
	if (rc)
		fail(crew, rc);
	atomic_fetch_add(&crew->allocated, 1);
}

static char *map_region(struct crew *crew)
{
	void *region = FAILED;
	int rc = atomic_load(&crew->rc);

	if (!rc)
		rc = crew->memory->engine->map(crew->memory, &region);
	if (rc) {
		fail(crew, rc);
		region = FAILED;
	}
	atomic_store_explicit(&crew->region, region, memory_order_release);
	return region;
}

static void touch_part(const struct member *member, char *region)
{
	uint64_t skip = member->crew->params->skip;

	if (member->order)
		for (uint64_t i = 0; i < member->last - member->first; i++)
			*(volatile char *)(region + member->order[i]) = 1;
	else
		for (uint64_t i = member->first; i < member->last; i++)
			*(volatile char *)(region + i * skip) = 1;
}

static void *run_member(void *arg)
{
	struct member *member = arg;
	struct crew *crew = member->crew;
	const struct engine *engine = crew->memory->engine;
	unsigned threads = crew->params->setup.threads;
	bool allocates = crew->params->setup.no_stock && engine->allocate && engine == &engine_hugepool;
	uint64_t offset, length;
	char *region;
	int rc;

	if (!crew->params->setup.cold) /* a pool is filled on the CPUs that its maker may use */
		bench_pin(member->index, threads);
	atomic_fetch_add(&crew->ready, 1);
	if (member->index == 0) {
		SPIN_UNTIL(atomic_load(&crew->ready) == threads);
		crew->start_cpu_ns = bench_cpu_ns();
		crew->start_ns = bench_now_ns();
		atomic_store(&crew->go, true);
	}
	if (allocates) {
		SPIN_UNTIL(atomic_load_explicit(&crew->go, memory_order_acquire));
		allocate_part(member);
	}
	if (member->index == 0) {
		if (allocates)
			SPIN_UNTIL(atomic_load(&crew->allocated) == threads);
		region = map_region(crew);
	} else {
		SPIN_UNTIL((region = atomic_load_explicit(&crew->region, memory_order_acquire)));
	}
	if (region != FAILED) {
		own_part(member, &offset, &length);
		rc = engine->populate && length ? engine->populate(crew->memory, region + offset, length) : 0;
		if (rc)
			fail(crew, rc);
		else
			touch_part(member, region);
	}
	member->end_ns = bench_now_ns();
	if (atomic_fetch_add(&crew->done, 1) + 1 == threads)
		crew->end_cpu_ns = bench_cpu_ns();
	return NULL;
}

/* ---- A round ---------------------------------------------------------------------------------------------------- */

struct parallel_fault_state {
	const struct parallel_fault *params;
	struct engine_memory *memory;
	struct member *member;
};

static void *parallel_fault_open(const void *arg, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	const struct parallel_fault *params = arg;
	struct parallel_fault_state *state = calloc(1, sizeof(*state));
	uint64_t touches = parallel_fault_touches(params), random = 88172645463325252u;

	if (!state)
		return NULL;
	state->params = params;
	state->member = calloc(params->setup.threads, sizeof(*state->member));
	for (unsigned t = 0; t < params->setup.threads; t++) {
		struct member *member = &state->member[t];

		member->index = t;
		member->first = touches * t / params->setup.threads;
		member->last = touches * (t + 1) / params->setup.threads;
		if (!params->random || member->first == member->last)
			continue;
		member->order = malloc((member->last - member->first) * sizeof(*member->order));
		for (uint64_t i = 0; i < member->last - member->first; i++) {
			uint64_t other;

			random ^= random << 13;
			random ^= random >> 7;
			random ^= random << 17;
			other = random % (i + 1);
			member->order[i] = member->order[other];
			member->order[other] = (member->first + i) * params->skip;
		}
	}
	state->memory = engine_open(params->engine, &params->setup, why, note);
	return state->memory ? state : NULL;
}

/* Starts the threads, of which the engine's own is the first, waits for them, and says what the clock showed. */
static int run_crew(struct parallel_fault_state *state, struct crew *crew, struct bench_sample *sample)
{
	unsigned threads = state->params->setup.threads;
	cpu_set_t own_cpus;
	uint64_t end = 0;

	sched_getaffinity(0, sizeof(own_cpus), &own_cpus);
	for (unsigned t = 0; t < threads; t++) {
		state->member[t].crew = crew;
		if (t && pthread_create(&state->member[t].thread, NULL, run_member, &state->member[t])) {
			fprintf(stderr, "hugepool bench: cannot start %u threads\n", threads);
			_Exit(1);
		}
	}
	run_member(&state->member[0]);
	sched_setaffinity(0, sizeof(own_cpus), &own_cpus);
	for (unsigned t = 0; t < threads; t++) {
		if (t)
			pthread_join(state->member[t].thread, NULL);
		end = state->member[t].end_ns > end ? state->member[t].end_ns : end;
	}
	sample->value[PARALLEL_FAULT_WALL] = (double)(end - crew->start_ns) / 1e9;
	sample->value[PARALLEL_FAULT_CPU] = (double)(crew->end_cpu_ns - crew->start_cpu_ns) / 1e9;
	sample->value[PARALLEL_FAULT_RATE] =
		(double)parallel_fault_touches(state->params) / sample->value[PARALLEL_FAULT_WALL];
	return atomic_load(&crew->rc);
}

static void discard(struct bench_sample *sample, const struct engine_memory *memory)
{
	sample->counts = false;
	snprintf(sample->why, sizeof(sample->why), "%s", memory->why);
}

static void parallel_fault_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct parallel_fault_state *state = arg;
	const struct parallel_fault *params = state->params;
	struct engine_memory *memory = state->memory;
	const struct engine *engine = params->engine;
	struct crew crew = {.params = params, .memory = memory};
	char *region;

	memory->warm_up = warm_up;
	sample->value[PARALLEL_FAULT_FILL] = memory->fill_s;
	if (engine->begin(memory)) {
		discard(sample, memory);
		return;
	}
	if (run_crew(state, &crew, sample))
		discard(sample, memory);
	region = atomic_load(&crew.region);
	if (region && region != FAILED) {
		if (sample->counts)
			sample->counts = bench_is_huge(region, params->setup.size, sample->why) &&
			                 bench_was_zero(region, params->setup.size, params->skip, sample->why);
		if (sample->counts)
			bench_soil(region, params->setup.size, params->skip);
		if (engine->unmap(memory, region))
			discard(sample, memory);
	}
	if (engine->end(memory))
		discard(sample, memory);
}

static bool parallel_fault_close(void *arg, char why[BENCH_WHY])
{
	struct parallel_fault_state *state = arg;

	return engine_close(state->memory, why);
}

const struct bench_job parallel_fault_job = {parallel_fault_open, parallel_fault_round, parallel_fault_close};

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_parallel_fault_help[] =
	"Usage: hugepool bench parallel-fault THREADS SIZE_KB SKIP_KB [OPTIONS]\n\n"
	"Threads share a region of SIZE_KB KiB (rounded up to huge pages) and touch a byte every SKIP_KB KiB, each "
	"its\n"
	"contiguous part. The clock covers mapping and touching, from when all threads stand ready until the last is\n"
	"done. Not in it: making the file or memfd, unmapping, and for ready memory the zeroing, which has a row of\n"
	"its own, phase=fill: what it took to make the memory of each round ready. The row stock=cold has an empty\n"
	"pool: its clock also covers making the pool and filling it, on all CPUs.\n\n"
	"  --lazy            hugepool maps pages at their first touch\n"
	"  --fault-around N  with --lazy: most pages mapped by one touch, a power of two up to 512 (default 16)\n"
	"  --random          each thread touches its part in random order\n"
	"  --no-stock        frames are there but dirty, nobody zeroes in idle time, and the threads zero them under\n"
	"                    the clock; there is no prefilled rival then\n"
	"  --tuning STRING   more of the pool's tuning, \"fault_mutexes=1\" for instance\n"
	"  --rounds N        rounds that count (default 5)\n"
	"  --json            JSON alone on standard output\n\n"
	"Examples:\n"
	"  hugepool bench parallel-fault 2 2097152 2048\n"
	"  hugepool bench parallel-fault 1 1048576 2048 --lazy --random --fault-around 1\n"
	"  hugepool bench parallel-fault 2 1048576 2048 --no-stock --json\n";

static const char *const option_names[] = {
	"lazy", "random", "no-stock", "fault-around=", "tuning=", "rounds=", "json", NULL};
enum option { LAZY, RANDOM, NO_STOCK, FAULT_AROUND, TUNING, ROUNDS, JSON };

int bench_parallel_fault(int argc, char **argv)
{
	static const struct engine *const engines[] = {&engine_kernel, &engine_tuned, &engine_prefilled,
	                                               &engine_hugepool};
	static struct parallel_fault params[4], cold;
	static struct bench_run run = {.bench = "parallel-fault",
	                               .metric = parallel_fault_metrics,
	                               .metrics = PARALLEL_FAULT_METRICS,
	                               .rounds = BENCH_ROUNDS};
	struct bench_options options = {.command = "parallel-fault", .argc = argc, .argv = argv};
	struct parallel_fault asked = {0};
	uint64_t number[3], window = 16, rounds = BENCH_ROUNDS;
	const char *more = NULL;
	char tuning[256] = "";
	bool json = false, around = false;
	unsigned words = 0;
	int option;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1) {
			if (words == 3 || !bench_parse_number(options.value, 1, UINT64_MAX >> 24, &number[words]))
				return bench_usage("parallel-fault", "'%s' is not one of THREADS SIZE_KB SKIP_KB",
				                   options.value);
			words++;
			continue;
		}
		if (option == FAULT_AROUND) {
			around = true;
			if (!bench_parse_number(options.value, 1, 512, &window) || window & (window - 1))
				return bench_usage("parallel-fault",
				                   "--fault-around takes a power of two from 1 to 512");
		} else if (option == ROUNDS && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &rounds)) {
			return bench_usage("parallel-fault", "--rounds takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		}
		asked.setup.lazy |= option == LAZY;
		asked.random |= option == RANDOM;
		asked.setup.no_stock |= option == NO_STOCK;
		json |= option == JSON;
		more = option == TUNING ? options.value : more;
	}
	if (words != 3)
		return bench_usage("parallel-fault", "THREADS, SIZE_KB and SKIP_KB are needed");
	if (number[0] > THREADS_MAX)
		return bench_usage("parallel-fault", "at most %d threads", THREADS_MAX);
	if (around && !asked.setup.lazy)
		return bench_usage("parallel-fault", "--fault-around needs --lazy");
	asked.setup.threads = (unsigned)number[0];
	asked.setup.size = (number[1] * 1024 + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	asked.skip = number[2] * 1024;
	if (asked.setup.lazy)
		snprintf(tuning, sizeof(tuning), "fault_window=%u", (unsigned)window);
	if (more)
		snprintf(tuning + strlen(tuning), sizeof(tuning) - strlen(tuning), "%s%.200s", *tuning ? " " : "",
		         more);
	asked.setup.tuning = *tuning ? tuning : NULL;

	for (unsigned i = 0; i < 4; i++) {
		if (asked.setup.no_stock && engines[i] == &engine_prefilled)
			continue;
		params[i] = asked;
		params[i].engine = engines[i];
		bench_run_add(&run, engines[i]->name, &parallel_fault_job, &params[i]);
		run.huge_bytes += i ? asked.setup.size : 0; /* kernel and tuned never have theirs at the same time */
	}
	cold = params[3];
	cold.setup.cold = true;
	cold.setup.no_stock = false;
	{
		struct bench_series *series = bench_run_add(&run, "hugepool", &parallel_fault_job, &cold);

		bench_series_tag(series, "stock", "cold");
		series->rounds = 2;
	}
	run.rounds = (unsigned)rounds;
	snprintf(run.title, sizeof(run.title), "parallel-fault, %u thread%s, %llu MiB, a touch every %llu KiB%s%s%s",
	         asked.setup.threads, asked.setup.threads == 1 ? "" : "s", (unsigned long long)(asked.setup.size >> 20),
	         (unsigned long long)number[2], asked.setup.lazy ? ", lazy" : "", asked.random ? ", random order" : "",
	         asked.setup.no_stock ? ", no stock" : "");
	return bench_command(&run, json,
	                     json_pack("{s:I,s:I,s:I,s:I,s:b,s:b,s:b,s:o,s:o,s:I}", "threads",
	                               (json_int_t)asked.setup.threads, "size_kb", (json_int_t)(asked.setup.size >> 10),
	                               "skip_kb", (json_int_t)number[2], "touches",
	                               (json_int_t)parallel_fault_touches(&asked), "lazy", asked.setup.lazy, "random",
	                               asked.random, "no_stock", asked.setup.no_stock, "fault_around",
	                               asked.setup.lazy ? json_integer((json_int_t)window) : json_null(), "tuning",
	                               more ? json_string(more) : json_null(), "rounds", (json_int_t)rounds));
}
