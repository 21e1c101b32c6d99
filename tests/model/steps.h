/* SPDX-License-Identifier: MIT */
/*
 * The operations of a list (engine.h). Each does one call, and what the call should have answered and done to the
 * model; or nothing, where there is nothing that it could be done to.
 */
#ifndef MODEL_STEPS_H
#define MODEL_STEPS_H

#include "model/engine.h"
#include "model/model.h"

#include "os/os.h"

#include <stdio.h>
#include <stdlib.h>

struct op {
	uint8_t kind, a;
	uint16_t b, c;
	uint8_t d, e;
};

_Static_assert(sizeof(struct op) == ENGINE_OP, "an operation is read as it is");

/* The list that is being run. */
extern struct model model;
extern struct hp_os *os;
extern hp_pool pool;
extern hp_error last_error; /* of the last call that got it */
extern bool big, verbose;
extern hp_backing backing; /* of the pool's frames */
extern uint64_t next_tag;

#define say(...)                                      \
	do {                                          \
		if (verbose)                          \
			fprintf(stderr, __VA_ARGS__); \
	} while (0)

#define must(condition, ...)                                                  \
	do {                                                                  \
		if (!(condition)) {                                           \
			fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);       \
			fprintf(stderr, __VA_ARGS__);                         \
			fprintf(stderr, "; error: %s\n", last_error.message); \
			abort();                                              \
		}                                                             \
	} while (0)

/* The call's answer and the model's. */
#define must_answer(is, should) must((is) == (should), "answers %ld, and should %ld", (long)(is), (long)(should))

/* ---- engine.c: what an operation's numbers mean ------------------------------------------------------------------ */

/* From 0 to `size`; for a large file often beside the boundary between two nodes of the index. */
uint32_t choose_place(uint16_t n, uint32_t size);
/* Mostly a range of the file, sometimes none. */
void choose_range(const struct op *op, uint32_t size, uint32_t *first, uint32_t *pages);
uint32_t choose_size(uint16_t n);
/* Somewhere in a page. */
uint64_t choose_odd(uint16_t n, unsigned how);
uint32_t choose_base_page(uint16_t n);
/* The n-th piece, counted round; NULL: there is none. */
struct model_piece *pick_piece(unsigned n);
/* Mostly a handle that is open, if there is one. */
unsigned pick_handle(const struct op *op);

/* ---- engine.c: looking into the pool for what is not promised ---------------------------------------------------- */

/* Where a page's memory lies; MODEL_UNKNOWN: it has none. */
enum model_lies look_at(const struct model_file *file, uint32_t page, bool *hole);
/* The model learns it, where the page is present. */
void learn_page(struct model_file *file, uint32_t page);
/* After a call that takes pages away: how many of those that the file has left lie in places, or will. */
void learn_places(struct model_file *file);

/* ---- steps_files.c ---------------------------------------------------------------------------------------------- */

void step_create(const struct op *op);
void step_open_file(const struct op *op);
/* The same of files that may fall back and are movable, or one of both. */
void step_create_special(const struct op *op);
void step_open_special(const struct op *op);
void step_unlink_file(const struct op *op);
void step_close_file(const struct op *op);
void step_allocate(const struct op *op);
void step_punch(const struct op *op);
void step_truncate_file(const struct op *op);
void step_read_file(const struct op *op);
void step_write_file(const struct op *op);
void step_tenant_create(const struct op *op);
void step_tenant_close(const struct op *op);

/* ---- steps_maps.c ----------------------------------------------------------------------------------------------- */

void step_map(const struct op *op);
void step_unmap(const struct op *op);
void step_protect(const struct op *op);
void step_populate(const struct op *op);
void step_load(const struct op *op);
void step_store(const struct op *op);
void step_collapse(const struct op *op);
void step_split(const struct op *op);
void step_pin(const struct op *op);
void step_unpin(const struct op *op);

void touch_piece(const struct model_piece *piece, uint32_t page, uint32_t base, bool write);
void forget_addresses(void);

#endif
