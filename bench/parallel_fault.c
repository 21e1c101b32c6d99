/* SPDX-License-Identifier: MIT */
/*
 * Parallel first touch: the classic parallel_fault NR_THREADS SIZE_KB SKIP_KB.
 *
 * The clock runs from the moment all threads stand ready until the last has touched its last page: it covers mapping
 * and touching, and with --no-stock the zeroing. Making the file and unmapping are outside of it.
 */
#include "report.h"
#include "command.h"
#include "memory.h"
#include "table.h"
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
	/* Threads that fill the file zero in parallel; lazy pages are zeroed by the touch. */
	bool allocates = crew->params->setup.no_stock && !crew->params->setup.lazy && engine == &engine_hugepool;
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
	unsigned rounds; /* without the one to warm up */
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
	if (warm_up)
		engine_locks_begin(memory);
	else
		state->rounds++;
}

static bool parallel_fault_close(void *arg, char why[BENCH_WHY])
{
	struct parallel_fault_state *state = arg;

	if (!engine_locks_end(state->memory, state->params->locks, state->rounds)) {
		snprintf(why, BENCH_WHY, "%s", state->memory->why);
		return false;
	}
	return engine_close(state->memory, why);
}

const struct bench_job parallel_fault_job = {parallel_fault_open, parallel_fault_round, parallel_fault_close};

/* ---- Lock statistics -------------------------------------------------------------------------------------------- */

void parallel_fault_print_locks(const struct engine_locks *locks, const char *class, FILE *out)
{
	hp_lock_stat row = engine_locks_find(locks, class, 0);

	fprintf(out, "%llu contentions in %llu acquisitions, %.2f us waited", (unsigned long long)row.contentions,
	        (unsigned long long)row.acquisitions, (double)row.wait.total / 1e3);
}

static void more(const struct bench_run *run, json_t *report)
{
	json_t *list = json_array();
	char name[TABLE_CELL], cell[TABLE_CELL];

	for (unsigned i = 0; i < run->series_count; i++) {
		const struct bench_series *series = &run->series[i];
		const struct parallel_fault *params = series->params;

		if (!params->locks)
			continue;
		if (report) {
			json_array_append_new(list, engine_locks_json(params->locks, series));
			continue;
		}
		engine_locks_print(params->locks, series, true, stdout);
		table_figure(cell, bench_stat_median(&series->stat[PARALLEL_FAULT_WALL]), "s");
		printf("%s, %u thread%s: %s elapsed; fault mutexes, all rounds: ",
		       engine_series_name(name, sizeof(name), series), params->setup.threads,
		       params->setup.threads == 1 ? "" : "s", cell);
		parallel_fault_print_locks(params->locks, "fault", stdout);
		printf("\n");
	}
	if (report && json_array_size(list))
		json_object_set_new(report, "locks", list);
	else
		json_decref(list);
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_parallel_fault_help[] =
	"Usage: hugepool bench parallel-fault THREADS SIZE_KB SKIP_KB [OPTIONS]\n\n"
	"Threads share a region of SIZE_KB KiB (rounded up to huge pages) and touch a byte every SKIP_KB KiB, each\n"
	"its contiguous part. The clock covers mapping and touching, from when all threads stand ready until the\n"
	"last is done. Not in it: making the file or memfd, unmapping, and for ready memory the zeroing, which has a\n"
	"row of its own, phase=fill: what it took to make the memory of each round ready. The row stock=cold has an\n"
	"empty pool: its clock also covers making the pool and filling it, on all CPUs.\n\n"
	"  --lazy            hugepool maps pages at their first touch\n"
	"  --fault-around N  with --lazy: most pages mapped by one touch, a power of two up to 512 (default 16)\n"
	"  --random          each thread touches its part in random order\n"
	"  --no-stock        frames are there but dirty, nobody zeroes in idle time, and the threads zero them under\n"
	"                    the clock, with --lazy in their faults; there is no prefilled rival then\n"
	"  --fault-mutexes LIST\n"
	"                    how many mutexes order faults: a number, or default, which goes by CPUs; 0 is unsafe.\n"
	"                    Of a list like 1,default each gets a series of hugepool, and there is no cold one\n"
	"  --lockstat        the statistics of hugepool's locks, under the table; in JSON the list locks, of\n"
	"                    {engine, variant, rounds, rows}\n"
	"  --tuning STRING   more of the pool's tuning, \"fault_sleep_us=1000\" for instance\n"
	"  --rounds N        rounds that count (default 5)\n"
	"  --json            JSON alone on standard output\n\n"
	"Examples:\n"
	"  hugepool bench parallel-fault 2 2097152 2048\n"
	"  hugepool bench parallel-fault 1 1048576 2048 --lazy --random --fault-around 1\n"
	"  hugepool bench parallel-fault 2 1048576 2048 --no-stock --json\n"
	"  hugepool bench parallel-fault 64 1048576 2048 --lazy --no-stock --fault-around 1 \\\n"
	"      --fault-mutexes 1,default --lockstat\n"
	"      (one mutex against the table of them, where each fault zeroes one page)\n";

static const char *const option_names[] = {"lazy",    "random",  "no-stock", "fault-around=", "fault-mutexes=",
                                           "tuning=", "rounds=", "lockstat", "json",          NULL};
enum option { LAZY, RANDOM, NO_STOCK, FAULT_AROUND, FAULT_MUTEXES, TUNING, ROUNDS, LOCKSTAT, JSON };

#define MUTEXES_MAX 4 /* series that differ in them */
#define MUTEXES_DEFAULT UINT64_MAX
#define TUNING_SIZE 320

struct asked {
	struct parallel_fault params;
	uint64_t number[3]; /* THREADS SIZE_KB SKIP_KB */
	uint64_t window, rounds;
	uint64_t mutexes[MUTEXES_MAX];
	unsigned mutexes_count;
	const char *mutexes_text, *tuning;
	bool around, lockstat, json;
};

/* "1,default" */
static bool parse_mutexes(const char *text, struct asked *asked)
{
	char word[16];

	asked->mutexes_text = text;
	for (asked->mutexes_count = 0; asked->mutexes_count < MUTEXES_MAX;) {
		uint64_t *value = &asked->mutexes[asked->mutexes_count++];
		size_t length = strcspn(text, ",");

		if (length >= sizeof(word))
			return false;
		memcpy(word, text, length);
		word[length] = 0;
		if (!strcmp(word, "default"))
			*value = MUTEXES_DEFAULT;
		else if (!bench_parse_number(word, 0, 4096, value) || *value & (*value - 1))
			return false;
		if (!text[length])
			return true;
		text += length + 1;
	}
	return false;
}

/* An exit status: BENCH_DONE to go on. */
static int read_options(struct asked *asked, int argc, char **argv)
{
	struct bench_options options = {.command = "parallel-fault", .argc = argc, .argv = argv};
	struct engine_setup *setup = &asked->params.setup;
	unsigned words = 0;
	int option;

	*asked = (struct asked){.window = 16, .rounds = BENCH_ROUNDS, .mutexes = {MUTEXES_DEFAULT}, .mutexes_count = 1};
	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1) {
			if (words == 3 ||
			    !bench_parse_number(options.value, 1, UINT64_MAX >> 24, &asked->number[words]))
				return bench_usage("parallel-fault", "'%s' is not one of THREADS SIZE_KB SKIP_KB",
				                   options.value);
			words++;
			continue;
		}
		if (option == FAULT_AROUND) {
			asked->around = true;
			if (!bench_parse_number(options.value, 1, 512, &asked->window) ||
			    asked->window & (asked->window - 1))
				return bench_usage("parallel-fault",
				                   "--fault-around takes a power of two from 1 to 512");
		}
		if (option == FAULT_MUTEXES && !parse_mutexes(options.value, asked))
			return bench_usage("parallel-fault",
			                   "--fault-mutexes takes up to %d of: 0, a power of two up to 4096, default",
			                   MUTEXES_MAX);
		if (option == ROUNDS && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &asked->rounds))
			return bench_usage("parallel-fault", "--rounds takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		setup->lazy |= option == LAZY;
		asked->params.random |= option == RANDOM;
		setup->no_stock |= option == NO_STOCK;
		asked->lockstat |= option == LOCKSTAT;
		asked->json |= option == JSON;
		asked->tuning = option == TUNING ? options.value : asked->tuning;
	}
	if (words != 3)
		return bench_usage("parallel-fault", "THREADS, SIZE_KB and SKIP_KB are needed");
	if (asked->number[0] > THREADS_MAX)
		return bench_usage("parallel-fault", "at most %d threads", THREADS_MAX);
	if (asked->around && !setup->lazy)
		return bench_usage("parallel-fault", "--fault-around needs --lazy");
	if (asked->tuning && strlen(asked->tuning) > TUNING_SIZE / 2)
		return bench_usage("parallel-fault", "--tuning takes at most %d characters", TUNING_SIZE / 2);
	setup->threads = (unsigned)asked->number[0];
	setup->size = (asked->number[1] * 1024 + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	asked->params.skip = asked->number[2] * 1024;
	return BENCH_DONE;
}

/* NULL: the defaults. */
static const char *tuning_of(const struct asked *asked, uint64_t mutexes)
{
	char text[TUNING_SIZE];
	size_t used = 0;
	char *kept;

	if (asked->params.setup.lazy)
		used += (size_t)snprintf(text, sizeof(text), "fault_window=%u ", (unsigned)asked->window);
	if (mutexes != MUTEXES_DEFAULT)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "fault_mutexes=%u ", (unsigned)mutexes);
	if (asked->tuning)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s", asked->tuning);
	if (!used)
		return NULL;
	kept = strdup(text);
	if (!kept)
		abort();
	return kept;
}

static struct parallel_fault *add_series(struct bench_run *run, const struct asked *asked, const struct engine *engine)
{
	static struct parallel_fault params[3 + MUTEXES_MAX + 1];
	static unsigned used;
	struct parallel_fault *own = &params[used++];

	*own = asked->params;
	own->engine = engine;
	own->locks = asked->lockstat && engine == &engine_hugepool ? engine_share(sizeof(*own->locks)) : NULL;
	bench_run_add(run, engine->name, &parallel_fault_job, own);
	if (engine != &engine_kernel) /* kernel and tuned never have theirs at the same time */
		run->huge_bytes += own->setup.size;
	return own;
}

static void plan(struct bench_run *run, const struct asked *asked)
{
	static char value[MUTEXES_MAX][8];
	struct parallel_fault *own;

	add_series(run, asked, &engine_kernel);
	add_series(run, asked, &engine_tuned);
	if (!asked->params.setup.no_stock)
		add_series(run, asked, &engine_prefilled);
	for (unsigned i = 0; i < asked->mutexes_count; i++) {
		own = add_series(run, asked, &engine_hugepool);
		own->setup.tuning = tuning_of(asked, asked->mutexes[i]);
		own->setup.unsafe = asked->mutexes[i] == 0;
		if (asked->mutexes_count == 1 || asked->mutexes[i] == MUTEXES_DEFAULT)
			continue;
		snprintf(value[i], sizeof(value[i]), "%u", (unsigned)asked->mutexes[i]);
		bench_series_tag(&run->series[run->series_count - 1], "fault_mutexes", value[i]);
	}
	if (asked->mutexes_count > 1)
		return;
	own = add_series(run, asked, &engine_hugepool);
	own->setup.tuning = tuning_of(asked, asked->mutexes[0]);
	own->setup.unsafe = asked->mutexes[0] == 0;
	own->setup.cold = true;
	own->setup.no_stock = false;
	own->locks = NULL; /* each round has a pool of its own */
	bench_series_tag(&run->series[run->series_count - 1], "stock", "cold");
	run->series[run->series_count - 1].rounds = 2;
}

static int check_tuning(const struct bench_run *run)
{
	int status = BENCH_DONE;

	for (unsigned i = 0; i < run->series_count && status == BENCH_DONE; i++) {
		const struct parallel_fault *params = run->series[i].params;

		status = engine_check_tuning(run->bench, &params->setup);
	}
	return status;
}

static json_t *text_json(const char *text)
{
	return text ? json_string(text) : json_null();
}

static json_t *params_json(const struct asked *asked)
{
	const struct engine_setup *setup = &asked->params.setup;

	return json_pack("{s:I,s:I,s:I,s:I,s:b,s:b,s:b,s:o,s:o,s:o,s:I}", "threads", (json_int_t)setup->threads,
	                 "size_kb", (json_int_t)(setup->size >> 10), "skip_kb", (json_int_t)asked->number[2], "touches",
	                 (json_int_t)parallel_fault_touches(&asked->params), "lazy", setup->lazy, "random",
	                 asked->params.random, "no_stock", setup->no_stock, "fault_around",
	                 setup->lazy ? json_integer((json_int_t)asked->window) : json_null(), "fault_mutexes",
	                 text_json(asked->mutexes_text), "tuning", text_json(asked->tuning), "rounds",
	                 (json_int_t)asked->rounds);
}

int bench_parallel_fault(int argc, char **argv)
{
	static struct bench_run run = {
		.bench = "parallel-fault", .metric = parallel_fault_metrics, .metrics = PARALLEL_FAULT_METRICS};
	struct asked asked;
	int status = read_options(&asked, argc, argv);
	const struct engine_setup *setup = &asked.params.setup;

	if (status != BENCH_DONE)
		return status;
	plan(&run, &asked);
	status = check_tuning(&run);
	if (status != BENCH_DONE)
		return status;
	run.rounds = (unsigned)asked.rounds;
	snprintf(run.title, sizeof(run.title), "parallel-fault, %u thread%s, %llu MiB, a touch every %llu KiB%s%s%s",
	         setup->threads, setup->threads == 1 ? "" : "s", (unsigned long long)(setup->size >> 20),
	         (unsigned long long)asked.number[2], setup->lazy ? ", lazy" : "",
	         asked.params.random ? ", random order" : "", setup->no_stock ? ", no stock" : "");
	return bench_command_with(&run, asked.json, params_json(&asked), report_table, more);
}
