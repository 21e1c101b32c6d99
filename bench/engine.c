/* SPDX-License-Identifier: MIT */
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct engine_memory *engine_open(const struct engine *engine, const struct engine_setup *setup, char why[BENCH_WHY],
                                  char note[BENCH_NOTE])
{
	struct engine_memory *memory = calloc(1, sizeof(*memory));

	if (!memory) {
		snprintf(why, BENCH_WHY, "no memory");
		return NULL;
	}
	memory->engine = engine;
	memory->setup = setup;
	memory->fill_s = NAN;
	if (engine->open(memory)) {
		snprintf(why, BENCH_WHY, "%s", memory->why);
		free(memory);
		return NULL;
	}
	snprintf(note, BENCH_NOTE, "%s", memory->note);
	return memory;
}

bool engine_close(struct engine_memory *memory, char why[BENCH_WHY])
{
	bool sound = !memory->engine->close(memory);

	snprintf(why, BENCH_WHY, "%s", memory->why);
	free(memory);
	return sound;
}

int engine_failed(struct engine_memory *memory, int rc, const char *what)
{
	snprintf(memory->why, sizeof(memory->why), "%s: %s", what, strerror(-rc));
	return rc;
}
