/* SPDX-License-Identifier: MIT */
#include "engine_locks.h"

#include "env.h"
#include "report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *engine_share(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		abort();
	return memory;
}

/* ---- In the series' process ------------------------------------------------------------------------------------- */

void engine_locks_begin(struct engine_memory *memory)
{
	if (memory->engine->locks)
		memory->engine->locks(memory, NULL);
}

bool engine_locks_end(struct engine_memory *memory, struct engine_locks *locks, unsigned rounds)
{
	if (!locks || !memory->engine->locks)
		return true;
	locks->rounds = rounds;
	return !memory->engine->locks(memory, locks);
}

/* ---- In the report ---------------------------------------------------------------------------------------------- */

hp_lock_stat engine_locks_find(const struct engine_locks *locks, const char *class, char mode)
{
	for (unsigned i = 0; i < locks->count; i++)
		if (!strcmp(locks->row[i].name, class) && locks->row[i].mode == mode)
			return locks->row[i];
	return (hp_lock_stat){.mode = mode};
}

bool engine_locks_matter(const struct engine_locks *locks, const hp_lock_stat *row)
{
	static const char *const always[] = {"file", "mapping", "fault"};

	for (unsigned i = 0; i < sizeof(always) / sizeof(always[0]); i++)
		if (!strcmp(row->name, always[i]))
			return true;
	for (unsigned i = 0; i < locks->count; i++)
		if (!strcmp(row->name, locks->row[i].name) && locks->row[i].contentions)
			return true;
	return false;
}

void engine_locks_print(const struct engine_locks *locks, const struct bench_series *series, bool all, FILE *out)
{
	static hp_lock_stat row[HP_LOCK_STATS_MAX];
	unsigned count = 0;
	char name[128], *text;
	size_t size;

	for (unsigned i = 0; i < locks->count; i++)
		if (all || engine_locks_matter(locks, &locks->row[i]))
			row[count++] = locks->row[i];
	fprintf(out, "\n%s, locks of %u round%s", engine_series_name(name, sizeof(name), series), locks->rounds,
	        locks->rounds == 1 ? "" : "s");
	if (!count) {
		fprintf(out, ": none was taken\n");
		return;
	}
	size = hp_lockstat_format(row, count, NULL, 0) + 1;
	text = malloc(size);
	if (!text)
		abort();
	hp_lockstat_format(row, count, text, size);
	fprintf(out, ":\n%s", text);
	free(text);
}

static json_t *times_json(const hp_lock_times *times)
{
	return json_pack("{s:I,s:I,s:I,s:I}", "count", (json_int_t)times->count, "min", (json_int_t)times->min, "max",
	                 (json_int_t)times->max, "total", (json_int_t)times->total);
}

static json_t *places_json(const hp_lock_place *places)
{
	json_t *array = json_array();

	for (unsigned i = 0; i < HP_LOCK_POINTS && places[i].count; i++)
		json_array_append_new(
			array, json_pack("{s:s,s:I}", "place", places[i].name, "count", (json_int_t)places[i].count));
	return array;
}

static json_t *row_json(const hp_lock_stat *row)
{
	char mode[2] = {row->mode, 0};

	return json_pack("{s:s,s:s?,s:I,s:I,s:I,s:I,s:I,s:i,s:o,s:o,s:o,s:o}", "class", row->name, "mode",
	                 row->mode ? mode : NULL, "acquisitions", (json_int_t)row->acquisitions, "acq_bounces",
	                 (json_int_t)row->acq_bounces, "contentions", (json_int_t)row->contentions, "con_bounces",
	                 (json_int_t)row->con_bounces, "deaths", (json_int_t)row->deaths, "sampled", (int)row->sampled,
	                 "wait_ns", times_json(&row->wait), "hold_ns", times_json(&row->hold), "waiter",
	                 places_json(row->waiter), "holder", places_json(row->holder));
}

json_t *engine_locks_json(const struct engine_locks *locks, const struct bench_series *series)
{
	json_t *rows = json_array();

	for (unsigned i = 0; i < locks->count; i++)
		json_array_append_new(rows, row_json(&locks->row[i]));
	return json_pack("{s:s,s:o,s:i,s:o}", "engine", series->engine, "variant", engine_series_variant(series),
	                 "rounds", (int)locks->rounds, "rows", rows);
}

const char *engine_series_name(char *name, size_t size, const struct bench_series *series)
{
	size_t used = (size_t)snprintf(name, size, "%s", series->engine);

	for (unsigned i = 0; i < BENCH_TAGS_MAX && series->variant[i].key && used < size; i++)
		used += (size_t)snprintf(name + used, size - used, " %s=%s", series->variant[i].key,
		                         series->variant[i].value);
	return name;
}

json_t *engine_series_variant(const struct bench_series *series)
{
	json_t *object = json_object();

	for (unsigned i = 0; i < BENCH_TAGS_MAX && series->variant[i].key; i++)
		json_object_set_new(object, series->variant[i].key, json_string(series->variant[i].value));
	return object;
}
