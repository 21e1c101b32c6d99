/* SPDX-License-Identifier: MIT */
/*
 * What must be seen of one pool: files page by page, mappings, tenants, and how many frames are promised. The model
 * calls nothing of hugepool. Each function says what the call of the same name must answer, 0 or an errno, and does
 * what the call must have done.
 *
 * It is modelled what the manual promises. What is left open, how many of the promised pages have a frame, is known
 * only as a lower bound.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "hugepool.h"

#include <stdbool.h>
#include <stdint.h>

#define MODEL_FRAME HP_FRAME_SIZE
#define MODEL_BASE_PAGES (HP_FRAME_SIZE / HP_BASE_PAGE_SIZE)

enum {
	MODEL_FILES = 8, /* that exist at a time, those without a name and a handle included */
	MODEL_SLOTS = 3, /* handles, and names */
	MODEL_TENANTS = 2,
	MODEL_PIECES = 40,  /* mappings, and what is left of them */
	MODEL_PAGES = 1100, /* of a file */
};

struct model_file {
	bool exists;
	uint32_t serial; /* tells it from others that were in the same place */
	uint32_t size, most;
	uint32_t opens, names, pieces;
	int tenant; /* -1: none */
	uint32_t promised_count;
	bool promised[MODEL_PAGES];
	bool framed[MODEL_PAGES];       /* it has a frame for certain, or a hole */
	uint64_t *content[MODEL_PAGES]; /* a tag for each base page; NULL: all are zero */
};

/* A handle, also one that has been closed. */
struct model_handle {
	int file; /* -1: there never was one */
	uint32_t serial;
	bool open;
	hp_file handle;
};

struct model_tenant {
	bool exists, made; /* `made`: the handle is one, perhaps of a closed tenant */
	hp_tenant handle;
	uint64_t limit, minimum; /* frames; a limit of UINT64_MAX is none */
};

struct model_piece {
	bool exists, lazy;
	int file;
	uint32_t first, pages;
	unsigned prot;
	uintptr_t start;
};

struct model {
	uint64_t frames;     /* of the pool */
	uint32_t frames_max; /* to which every file can grow */
	uint32_t serial;
	struct model_file file[MODEL_FILES];
	struct model_handle handle[MODEL_SLOTS];
	int name[MODEL_SLOTS]; /* the file, or -1 */
	struct model_tenant tenant[MODEL_TENANTS];
	struct model_piece piece[MODEL_PIECES];
};

void model_begin(struct model *m, uint64_t frames, uint32_t frames_max);
void model_end(struct model *m);

/* ---- frames ----------------------------------------------------------------------------------------------------- */

uint64_t model_tenant_used(const struct model *m, int tenant);
uint64_t model_tenant_files(const struct model *m, int tenant);
/* Frames of the pool that somebody was promised. */
uint64_t model_committed(const struct model *m);
/* All or nothing: 0, -EDQUOT, -ENOMEM. */
int model_promise(struct model *m, struct model_file *file, uint32_t first, uint32_t pages);

int model_tenant_create(struct model *m, int tenant, uint64_t limit, uint64_t minimum);
int model_tenant_close(struct model *m, int tenant);

/* ---- files ------------------------------------------------------------------------------------------------------ */

/* A place for a file; -1: there is none. */
int model_free_file(const struct model *m);
/* The file that a handle is good for; NULL: it must answer -EBADF. */
struct model_file *model_file_of(struct model *m, unsigned slot);
void model_make_file(struct model *m, int file, uint32_t pages, int tenant);
/* Forgets a file that nobody has any more. */
void model_drop_if_unused(struct model_file *file);

/* In pages. */
int model_check_range(const struct model_file *file, uint64_t offset, uint64_t length);
int model_allocate(struct model *m, struct model_file *file, uint32_t first, uint32_t pages);
/* Bytes. */
void model_punch(struct model *m, struct model_file *file, uint64_t offset, uint64_t length, bool keep);
int model_truncate(struct model *m, struct model_file *file, uint32_t pages);
/* How many bytes are written, or an errno. */
int64_t model_write(struct model *m, struct model_file *file, uint64_t offset, const char *data, uint64_t length);
int64_t model_read(const struct model_file *file, uint64_t offset, char *data, uint64_t length);

uint32_t model_framed(const struct model_file *file);
uint64_t model_tag(const struct model_file *file, uint32_t page, uint32_t base_page);
void model_set_tag(struct model_file *file, uint32_t page, uint32_t base_page, uint64_t tag);

/* ---- mappings --------------------------------------------------------------------------------------------------- */

static inline uintptr_t model_piece_end(const struct model_piece *piece)
{
	return piece->start + piece->pages * MODEL_FRAME;
}

/* The piece that has an address; NULL: none. */
struct model_piece *model_piece_at(struct model *m, uintptr_t address);
bool model_is_covered(struct model *m, uintptr_t start, uintptr_t end);
bool model_overlaps(const struct model *m, uintptr_t start, uintptr_t end);
/* Is there room to cut that many pieces? */
bool model_has_room(const struct model *m, unsigned pieces);
void model_add_piece(struct model *m, const struct model_piece *piece);
/* What is mapped in the range is cut out; `prot` is what it gets instead, NULL: it goes. */
void model_cut(struct model *m, uintptr_t start, uintptr_t end, const unsigned *prot);
/* 0 or -ENXIO. */
int model_populate(struct model *m, const struct model_piece *piece, uint32_t first, uint32_t pages);

#endif
