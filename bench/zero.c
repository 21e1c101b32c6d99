/* SPDX-License-Identifier: MIT */
/*
 * Clearing memory with one thread: the library's way against a bare loop of streaming stores and against memset, in
 * huge pages that are mapped and touched already.
 */
#include "command.h"
#include "memory.h"

#include "os/os.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ZERO_RATE, ZERO_WALL, ZERO_CPU, ZERO_METRICS };
static const struct bench_metric metrics[ZERO_METRICS] = {
	[ZERO_RATE] = {"bytes_per_s", "B/s", 1, true, NULL},
	[ZERO_WALL] = {"wall_s", "s", 0, true, NULL},
	[ZERO_CPU] = {"cpu_s", "s", 0, true, NULL},
};

/* A round clears the memory this often, so that it is long enough for its clock. */
#define PASSES 4

struct zero {
	void (*clear)(void *address, size_t length);
	uint64_t size;
};

struct zero_state {
	const struct zero *params;
	char *memory;
};

static void clear_loop(void *address, size_t length)
{
	bench_stream_zero(address, length);
}

/* The call must not be folded away. */
static void *(*volatile do_memset)(void *, int, size_t) = memset;

static void clear_memset(void *address, size_t length)
{
	do_memset(address, 0, length);
}

static void *zero_open(const void *arg, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	const struct zero *params = arg;
	struct zero_state *state = calloc(1, sizeof(*state));

	if (!state)
		return NULL;
	state->params = params;
	state->memory = bench_huge_memory(params->size);
	if (!state->memory) {
		snprintf(why, BENCH_WHY, "no memory");
		return NULL;
	}
	return state;
}

static void zero_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct zero_state *state = arg;
	uint64_t size = state->params->size, start, start_cpu;

	memset(state->memory, 0xa5, size);
	bench_pin(0, 1);
	start_cpu = bench_cpu_ns();
	start = bench_now_ns();
	for (unsigned pass = 0; pass < PASSES; pass++)
		state->params->clear(state->memory, size);
	sample->value[ZERO_WALL] = (double)(bench_now_ns() - start) / 1e9;
	sample->value[ZERO_CPU] = (double)(bench_cpu_ns() - start_cpu) / 1e9;
	sample->value[ZERO_RATE] = PASSES * (double)size / sample->value[ZERO_WALL];
	sample->counts = bench_was_zero(state->memory, size, BENCH_FRAME, sample->why) &&
	                 bench_is_huge(state->memory, size, sample->why);
}

static bool zero_close(void *arg, char why[BENCH_WHY])
{
	struct zero_state *state = arg;

	munmap(state->memory, state->params->size);
	return true;
}

static const struct bench_job job = {zero_open, zero_round, zero_close};

const char bench_zero_help[] = "Usage: hugepool bench zero [OPTIONS]\n\n"
			       "One thread clears huge pages that are there: hugepool's method, a bare loop of "
			       "streaming stores with the widest\n"
			       "registers of this processor (loop), and memset. The rows method=... are all methods "
			       "that hugepool has here.\n\n"
			       "  --size SIZE   of the memory (default 128M)\n"
			       "  --rounds N    rounds that count (default 5)\n"
			       "  --json        JSON alone on standard output\n\n"
			       "Examples:\n"
			       "  hugepool bench zero\n"
			       "  hugepool bench zero --size 1G --rounds 11 --json\n";

static const char *const option_names[] = {"size=", "rounds=", "json", NULL};
enum option { SIZE, ROUNDS, JSON };

static void add(struct bench_run *run, const char *engine, const char *method, void (*clear)(void *, size_t),
                uint64_t size)
{
	static struct zero params[BENCH_SERIES_MAX];
	struct zero *own = &params[run->series_count];
	struct bench_series *series;

	if (run->series_count == BENCH_SERIES_MAX)
		return;
	*own = (struct zero){clear, size};
	series = bench_run_add(run, engine, &job, own);
	if (method)
		bench_series_tag(series, "method", method);
	run->huge_bytes += size;
}

int bench_zero(int argc, char **argv)
{
	static struct bench_run run = {.bench = "zero", .metric = metrics, .metrics = ZERO_METRICS};
	struct bench_options options = {.command = "zero", .argc = argc, .argv = argv};
	uint64_t size = (uint64_t)128 << 20, rounds = BENCH_ROUNDS;
	bool json = false;
	int option;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("zero", "'%s' is not an option", options.value);
		if (option == SIZE && !bench_parse_size(options.value, &size))
			return bench_usage("zero", "--size takes a size like 64M or 1G");
		if (option == ROUNDS && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &rounds))
			return bench_usage("zero", "--rounds takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		json |= option == JSON;
	}
	size = (size + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	add(&run, "hugepool", NULL, hp_zero_stream, size);
	add(&run, "loop", NULL, clear_loop, size);
	add(&run, "memset", NULL, clear_memset, size);
	for (const struct hp_zero_method *method = hp_zero_methods; method->name; method++)
		if (method->usable())
			add(&run, "hugepool", method->name, method->zero, size);
	run.rounds = (unsigned)rounds;
	snprintf(run.title, sizeof(run.title), "zero, one thread, %llu MiB of huge pages, %d times a round; loop: %s",
	         (unsigned long long)(size >> 20), PASSES, bench_stream_name());
	return bench_command(&run, json,
	                     json_pack("{s:I,s:i,s:s,s:I}", "size", (json_int_t)size, "passes", PASSES, "loop",
	                               bench_stream_name(), "rounds", (json_int_t)rounds));
}
