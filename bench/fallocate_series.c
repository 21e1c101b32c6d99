/* SPDX-License-Identifier: MIT */
/*
 * What a run of `hugepool bench fallocate` measures: one way to fill a file, or one part of a fill by itself. Each is a
 * job of the harness, in a process of its own.
 */
#include "fallocate.h"

#include "crew.h"
#include "memory.h"
#include "syscalls.h"

#include "os/os.h"
#include "os/sim.h"
#include "library/library.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_elapsed(struct bench_sample *sample, uint64_t size, double elapsed_ns)
{
	sample->value[FALLOCATE_RATE] = (double)size / (elapsed_ns / 1e9);
	sample->value[FALLOCATE_ELAPSED] = elapsed_ns;
}

/* ---- Filling a file of real memory ------------------------------------------------------------------------------ */

struct fill {
	const struct fallocate_fill *params;
	struct engine_memory *memory;
	bool counted; /* the system calls: in the round to warm up */
	struct bench_syscalls syscalls;
};

static void *fill_open(const void *arg, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	struct fill *fill = calloc(1, sizeof(*fill));

	if (!fill)
		return NULL;
	fill->params = arg;
	fill->memory = engine_open(fill->params->engine, &fill->params->setup, why, note);
	return fill->memory ? fill : NULL;
}

static int fill_share(void *memory, uint64_t offset, uint64_t length)
{
	return ((struct engine_memory *)memory)->engine->fallocate(memory, offset, length);
}

/* Where nobody counts none were: what the kernel clears it clears inside of its calls. */
static double zeroed_so_far(struct engine_memory *memory)
{
	uint64_t frames = 0;

	return memory->engine->zeroed && !memory->engine->zeroed(memory, &frames) ? (double)frames : NAN;
}

static int fill_all(void *memory)
{
	return fill_share(memory, 0, ((struct engine_memory *)memory)->setup->size);
}

static void leave(void *context)
{
	struct engine_memory *memory = context;

	if (memory->engine->leave)
		memory->engine->leave(memory);
}

static int zero_share(void *memory, uint64_t offset, uint64_t length)
{
	for (uint64_t end = offset + length; offset < end; offset += BENCH_FRAME)
		hp_zero_stream((char *)memory + offset, BENCH_FRAME);
	return 0;
}

/* Zeroes what was filled once more, by as many threads. */
static void time_zeroing(const struct fallocate_fill *params, void *address, struct bench_sample *sample)
{
	bench_crew(params->fillers, params->setup.size, zero_share, address, &sample->value[FALLOCATE_ZEROING]);
}

/* The memory is what was promised, and is given back soiled. */
static bool check_memory(const struct fill *fill, struct bench_sample *sample)
{
	struct engine_memory *memory = fill->memory;
	uint64_t size = memory->setup->size;
	void *address;
	bool sound;

	if (memory->engine->map(memory, &address))
		return false;
	sound = bench_was_zero(address, size, BENCH_FRAME, memory->why) && bench_is_huge(address, size, memory->why);
	if (sound && sample->value[FALLOCATE_ZEROED] > 0)
		time_zeroing(fill->params, address, sample);
	if (sound)
		bench_soil(address, size, BENCH_FRAME);
	return !memory->engine->unmap(memory, address) && sound;
}

static bool fill_timed(const struct fill *fill, struct bench_sample *sample)
{
	struct engine_memory *memory = fill->memory;
	const struct engine_setup *setup = memory->setup;
	double zeroed = zeroed_so_far(memory), elapsed_ns;

	if (bench_crew(setup->threads, setup->size, fill_share, memory, &elapsed_ns))
		return false;
	set_elapsed(sample, setup->size, elapsed_ns);
	sample->value[FALLOCATE_ZEROED] = zeroed_so_far(memory) - zeroed;
	return check_memory(fill, sample);
}

/* A thread's first call makes it known to the pool: that is no part of a fill. */
static int be_known(void *memory)
{
	zeroed_so_far(memory);
	return 0;
}

/* Of a file of its own, whose frames are as those of the rounds will be. */
static bool count_syscalls(struct fill *fill)
{
	static const struct bench_traced traced = {be_known, fill_all, leave};
	struct engine_memory *memory = fill->memory;
	bool counted = !memory->engine->begin(memory) && bench_count_syscalls(&traced, memory, &fill->syscalls);

	return !memory->engine->end(memory) && counted;
}

/*
 * What the kernel's engines do is nothing but calls. Of others it is told if they are of the kind whose price is known.
 */
static void set_syscalls(const struct fill *fill, struct bench_sample *sample)
{
	const struct bench_syscalls *count = &fill->syscalls;

	sample->value[FALLOCATE_SYSCALLS] = count->calls;
	if (fill->params->engine != &engine_hugepool)
		sample->value[FALLOCATE_SYSCALLS_NS] = sample->value[FALLOCATE_ELAPSED] * fill->params->fillers;
	else if (count->masks == count->calls)
		sample->value[FALLOCATE_SYSCALLS_NS] = count->calls * bench_mask_call_ns();
}

static void fill_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct fill *fill = arg;
	struct engine_memory *memory = fill->memory;

	memory->warm_up = warm_up;
	sample->counts = !memory->engine->begin(memory) && fill_timed(fill, sample);
	if (!sample->counts)
		snprintf(sample->why, sizeof(sample->why), "%s", memory->why);
	if (memory->engine->end(memory) && sample->counts) {
		sample->counts = false;
		snprintf(sample->why, sizeof(sample->why), "%s", memory->why);
	}
	if (warm_up)
		fill->counted = sample->counts && count_syscalls(fill);
	if (fill->counted)
		set_syscalls(fill, sample);
}

static bool fill_close(void *arg, char why[BENCH_WHY])
{
	return engine_close(((struct fill *)arg)->memory, why);
}

const struct bench_job fallocate_fill_job = {fill_open, fill_round, fill_close};

/* ---- An index by itself ----------------------------------------------------------------------------------------- */

/* A round goes on until so many pages were entered, and looked up, that the clock is no part of it. */
#define PAGES_AT_LEAST 65536u
#define BATCH 1024u /* looked up in one read section */

struct index {
	const struct fallocate_index *params;
	struct index_site *site;
	uint32_t pages;
	uint32_t *order; /* in which they are looked up: all of them, at random, the same for every rival */
};

static void shuffle(uint32_t *order, uint32_t count)
{
	uint64_t random = 88172645463325252u;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t other;

		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		other = (uint32_t)(random % (i + 1));
		order[i] = order[other];
		order[other] = i;
	}
}

static void *index_open(const void *arg, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	const struct fallocate_index *params = arg;
	struct index *index = calloc(1, sizeof(*index));

	snprintf(why, BENCH_WHY, "no memory");
	if (!index)
		return NULL;
	index->params = params;
	index->pages = (uint32_t)(params->size / BENCH_FRAME);
	index->order = malloc(index->pages * sizeof(*index->order));
	index->site = index_site_open(params->rival, index->pages);
	if (!index->order || !index->site)
		return NULL;
	shuffle(index->order, index->pages);
	bench_pin(0, 1);
	return index;
}

/* The last fill stays. NaN: there was no room. */
static double insert_ns(struct index *index)
{
	const struct index_rival *rival = index->params->rival;
	uint64_t ns = 0, done = 0;

	do {
		uint64_t start;
		bool filled;

		rival->clear(index->site);
		start = bench_now_ns();
		filled = rival->fill(index->site);
		ns += bench_now_ns() - start;
		if (!filled)
			return NAN;
		done += index->pages;
	} while (done < PAGES_AT_LEAST);
	return (double)ns / (double)done;
}

typedef uint64_t look_up_fn(struct index_site *site, const uint32_t *pages, uint32_t count);

static uint64_t look_up_all(struct index *index, look_up_fn *look_up)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < index->pages; i += BATCH)
		sum += look_up(index->site, &index->order[i], index->pages - i < BATCH ? index->pages - i : BATCH);
	return sum;
}

/* In caches that hold as much of it as they can. NaN: something else was found than what was entered. */
static double look_up_ns(struct index *index, look_up_fn *look_up)
{
	uint64_t sum = look_up_all(index, look_up), start = bench_now_ns(), passes = 0;

	do {
		sum += look_up_all(index, look_up);
		passes++;
	} while (passes * index->pages < PAGES_AT_LEAST);
	if (sum != (1 + passes) * index_site_sum(index->site))
		return NAN;
	return (double)(bench_now_ns() - start) / (double)(passes * index->pages);
}

static void index_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct index *index = arg;
	const struct index_rival *rival = index->params->rival;

	sample->value[FALLOCATE_INSERT] = insert_ns(index);
	sample->value[FALLOCATE_LOOKUP] = look_up_ns(index, rival->look_up);
	if (rival->look_up_alone)
		sample->value[FALLOCATE_LOOKUP_ALONE] = look_up_ns(index, rival->look_up_alone);
	sample->value[FALLOCATE_BYTES] = (double)rival->bytes(index->site) / index->pages;
	sample->counts = !isnan(sample->value[FALLOCATE_INSERT]) && !isnan(sample->value[FALLOCATE_LOOKUP]);
	if (!sample->counts)
		snprintf(sample->why, sizeof(sample->why), "the index is wrong");
}

static bool index_close(void *arg, char why[BENCH_WHY])
{
	return true;
}

const struct bench_job fallocate_index_job = {index_open, index_round, index_close};

/* ---- A file without memory -------------------------------------------------------------------------------------- */

struct sim {
	uint64_t size;
	struct hp_os *os;
	hp_pool pool;
	hp_file file;
	hp_error error;
};

static void *sim_open(const void *arg, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	const struct fallocate_index *params = arg;
	struct sim *sim = calloc(1, sizeof(*sim));
	struct hp_sim_config config = {.hugetlb_bytes = params->size};

	/* A pool has its direct map, and wants as many addresses for a moment to make it; both aligned. */
	config.address_bytes = 4 * params->size + 4 * BENCH_GIB;
	if (!sim)
		return NULL;
	sim->size = params->size;
	sim->os = hp_sim_create(&config);
	if (!sim->os)
		snprintf(why, BENCH_WHY, "no memory, or more addresses than the sim has");
	return sim->os ? sim : NULL;
}

static int sim_fail(struct sim *sim, int rc, const char *what, char why[BENCH_WHY])
{
	snprintf(why, BENCH_WHY, "%s: %.160s", what, sim->error.message[0] ? sim->error.message : strerror(-rc));
	return rc;
}

/* A new pool's frames are zeroed: nothing is left to do but the books. */
static int sim_begin(struct sim *sim, char why[BENCH_WHY])
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	int rc;

	options.size = sim->size;
	options.workers = HP_WORKERS_NONE;
	options.backing = HP_BACKING_HUGETLB;
	rc = hp_pool_create_on(sim->os, &options, &sim->pool, &sim->error);
	if (rc)
		return sim_fail(sim, rc, "hp_pool_create_on", why);
	rc = hp_file_create(sim->pool, sim->size, 0, &sim->file, &sim->error);
	return rc ? sim_fail(sim, rc, "hp_file_create", why) : 0;
}

static int sim_end(struct sim *sim, char why[BENCH_WHY])
{
	int rc = hp_file_close(sim->file);

	if (!rc)
		rc = hp_pool_close(sim->pool);
	return rc ? sim_fail(sim, rc, "hp_pool_close", why) : 0;
}

/* Resident memory of this process, by the page tables: the counter in statm lags behind. */
static double resident_bytes(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "re");
	unsigned long long kib = 0;
	char line[256];
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "Rss: %llu kB", &kib) == 1;
	if (f)
		fclose(f);
	return found ? (double)kib * 1024 : NAN;
}

static int sim_share(void *arg, uint64_t offset, uint64_t length)
{
	struct sim *sim = arg;

	return hp_file_allocate(sim->file, offset, length, &sim->error);
}

static void sim_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct sim *sim = arg;
	double frames = (double)(sim->size / BENCH_FRAME), resident;
	double elapsed_ns;
	int rc;

	sample->counts = !sim_begin(sim, sample->why);
	if (!sample->counts)
		return;
	resident = resident_bytes();
	rc = bench_crew(1, sim->size, sim_share, sim, &elapsed_ns);
	set_elapsed(sample, sim->size, elapsed_ns);
	sample->value[FALLOCATE_INSERT] = elapsed_ns / frames;
	sample->value[FALLOCATE_BYTES] = (resident_bytes() - resident) / frames;
	if (rc)
		sim_fail(sim, rc, "hp_file_allocate", sample->why);
	sample->counts = !rc && !sim_end(sim, sample->why);
}

static bool sim_close(void *arg, char why[BENCH_WHY])
{
	struct sim *sim = arg;

	snprintf(why, BENCH_WHY, "the sim has mappings or segments left");
	return hp_sim_destroy(sim->os) == 0;
}

const struct bench_job fallocate_sim_job = {sim_open, sim_round, sim_close};
