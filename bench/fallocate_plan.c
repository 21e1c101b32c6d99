/* SPDX-License-Identifier: MIT */
#include "fallocate.h"

#include "memory.h"

#include <stdio.h>
#include <stdlib.h>

/* Parameters live as long as the process. */
static void *keep(size_t size)
{
	void *p = calloc(1, size);

	if (!p)
		abort();
	return p;
}

/* The words of tags too. */
static const char *size_word(uint64_t bytes)
{
	return fallocate_size_word(keep(TABLE_CELL), bytes);
}

/* ---- Adding ----------------------------------------------------------------------------------------------------- */

static struct fallocate_fill *add_fill(struct bench_run *run, const struct engine *engine, uint64_t size,
                                       unsigned threads)
{
	struct fallocate_fill *fill = keep(sizeof(*fill));

	fill->engine = engine;
	fill->setup = (struct engine_setup){.size = size, .threads = threads};
	fill->fillers = threads;
	bench_run_add(run, engine->name, &fallocate_fill_job, fill);
	return fill;
}

/* Frames are dirty: all CPUs are to zero them. hp_file_allocate() does that in its caller, so that each CPU has one. */
static void add_no_stock(struct bench_run *run, uint64_t size)
{
	struct fallocate_fill *fill = add_fill(run, &engine_hugepool, size, bench_cpus());

	fill->fillers = bench_cpus();
	fill->setup.no_stock = true;
}

static void add_index(struct bench_run *run, const struct index_rival *rival, uint64_t size)
{
	struct fallocate_index *index = keep(sizeof(*index));
	struct bench_series *series = bench_run_add(run, rival->name, &fallocate_index_job, index);

	*index = (struct fallocate_index){rival, size};
	bench_series_tag(series, "insert", rival->insert);
	bench_series_tag(series, "size", size_word(size));
}

static void add_indexes(struct bench_run *run, uint64_t size)
{
	add_index(run, &index_by_frame, size);
	add_index(run, &index_by_run, size);
	add_index(run, &index_flat, size);
}

static void set_metrics(struct bench_run *run)
{
	static const struct bench_metric metrics[FALLOCATE_METRICS] = {
		[FALLOCATE_RATE] = {"bytes_per_s", "B/s", 1, true, NULL},
		[FALLOCATE_ELAPSED] = {"elapsed_ns", "ns", 0, true, NULL},
		[FALLOCATE_SYSCALLS] = {"syscalls", "1", 0, false, NULL},
		[FALLOCATE_SYSCALLS_NS] = {"syscalls_ns", "ns", 0, false, NULL},
		[FALLOCATE_ZEROED] = {"zeroed_frames", "1", 0, false, NULL},
		[FALLOCATE_ZEROING] = {"zeroing_ns", "ns", 0, false, NULL},
		[FALLOCATE_INSERT] = {"insert_ns", "ns", 0, false, NULL},
		[FALLOCATE_LOOKUP] = {"lookup_ns", "ns", 0, false, NULL},
		[FALLOCATE_LOOKUP_ALONE] = {"lookup_alone_ns", "ns", 0, false, NULL},
		[FALLOCATE_BYTES] = {"bytes_per_frame", "B", 0, false, NULL},
	};

	run->metric = metrics;
	run->metrics = FALLOCATE_METRICS;
}

void fallocate_plan(struct bench_run *run, uint64_t size, bool stock)
{
	set_metrics(run);
	add_fill(run, &engine_kernel, size, 1);
	add_fill(run, &engine_tuned, size, bench_cpus());
	if (stock)
		add_fill(run, &engine_hugepool, size, 1);
	add_no_stock(run, size);
	if (stock)
		bench_series_tag(&run->series[run->series_count - 1], "stock", "dirty");
	add_indexes(run, size);
	if (size != FALLOCATE_LARGE)
		add_indexes(run, FALLOCATE_LARGE);
	/* Pools keep their memory; the others have theirs one at a time. */
	run->huge_bytes = (stock ? 3 : 2) * size;
}

void fallocate_plan_sim(struct bench_run *run, uint64_t size)
{
	struct fallocate_index *file = keep(sizeof(*file));

	set_metrics(run);
	file->size = size;
	bench_run_add(run, "hugepool", &fallocate_sim_job, file);
	add_indexes(run, size);
}

/* ---- Finding ---------------------------------------------------------------------------------------------------- */

const struct bench_series *fallocate_find_fill(const struct bench_run *run, const struct engine *engine, bool no_stock)
{
	for (unsigned i = 0; i < run->series_count; i++) {
		const struct fallocate_fill *fill = run->series[i].params;

		if (run->series[i].job == &fallocate_fill_job && fill->engine == engine &&
		    fill->setup.no_stock == no_stock)
			return &run->series[i];
	}
	return NULL;
}

const struct bench_series *fallocate_find_job(const struct bench_run *run, const struct bench_job *job)
{
	for (unsigned i = 0; i < run->series_count; i++)
		if (run->series[i].job == job)
			return &run->series[i];
	return NULL;
}

const struct bench_series *fallocate_find_index(const struct bench_run *run, const struct index_rival *rival,
                                                uint64_t size)
{
	for (unsigned i = 0; i < run->series_count; i++) {
		const struct fallocate_index *index = run->series[i].params;

		if (run->series[i].job == &fallocate_index_job && index->rival == rival && index->size == size)
			return &run->series[i];
	}
	return NULL;
}
