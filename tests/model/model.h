/* SPDX-License-Identifier: MIT */
/*
 * What must be seen of one pool: files page by page, mappings, tenants, and how many frames are promised. The model
 * calls nothing of hugepool. Each function says what the call of the same name must answer, 0 or an errno, and does
 * what the call must have done.
 *
 * It is modelled what the manual promises. What is left open, which of the promised pages are present, is known only as
 * a lower bound. How many pages of a file have places for base pages (HP_FILE_FALLBACK) follows from what was promised
 * to it; which pages these are does not, and the model learns it from who looks.
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
	MODEL_PINS = 1024,  /* pages that are pinned, at their addresses */
};

/* Where the memory of a page lies, whether or not it is a hole. */
enum model_lies { MODEL_UNKNOWN, MODEL_IN_FRAME, MODEL_IN_PLACE };

struct model_file {
	bool exists;
	uint32_t serial; /* tells it from others that were in the same place */
	uint32_t size, most;
	uint32_t opens, names, pieces;
	int tenant;      /* -1: none */
	unsigned flags;  /* HP_FILE_FALLBACK, HP_FILE_MOVABLE */
	uint32_t number; /* for who looks */
	uint32_t promised_count;
	uint32_t places; /* of these, for base pages */
	uint32_t spread; /* `places` may be so many less: the last call did not say which pages it gave up */
	bool promised[MODEL_PAGES];
	bool there[MODEL_PAGES];        /* it is present for certain, or a hole */
	uint8_t lies[MODEL_PAGES];      /* enum model_lies, of what was promised */
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

/* A page at an address that is mapped. */
struct model_pin {
	uintptr_t address;
	uint32_t count; /* 0: it is free */
};

struct model {
	uint64_t frames;     /* of the pool */
	uint64_t places;     /* for base pages */
	uint32_t frames_max; /* to which every file can grow */
	uint32_t serial;
	struct model_file file[MODEL_FILES];
	struct model_handle handle[MODEL_SLOTS];
	int name[MODEL_SLOTS]; /* the file, or -1 */
	struct model_tenant tenant[MODEL_TENANTS];
	struct model_piece piece[MODEL_PIECES];
	struct model_pin pin[MODEL_PINS];
};

/* A pool has as many places as frames that it can ever have. */
void model_begin(struct model *m, uint64_t frames, uint32_t frames_max);
void model_end(struct model *m);

/* ---- frames ----------------------------------------------------------------------------------------------------- */

uint64_t model_tenant_used(const struct model *m, int tenant);
uint64_t model_tenant_files(const struct model *m, int tenant);
/* Frames of the pool, and places, that somebody was promised. */
uint64_t model_committed(const struct model *m);
uint64_t model_places(const struct model *m);
/* Of a file's tenant: frames of its minimum that nobody uses. */
uint64_t model_spare(const struct model *m, const struct model_file *file);
/* All or nothing: 0, -EDQUOT, -ENOMEM. Frames first, then places where the file may have them. */
int model_promise(struct model *m, struct model_file *file, uint32_t first, uint32_t pages);

int model_tenant_create(struct model *m, int tenant, uint64_t limit, uint64_t minimum);
int model_tenant_close(struct model *m, int tenant);

/* ---- files ------------------------------------------------------------------------------------------------------ */

/* A place for a file; -1: there is none. */
int model_free_file(const struct model *m);
/* The file that a handle is good for; NULL: it must answer -EBADF. */
struct model_file *model_file_of(struct model *m, unsigned slot);
void model_make_file(struct model *m, int file, uint32_t pages, int tenant, unsigned flags);
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

uint32_t model_there(const struct model_file *file);
/* How many pages lie so, as far as that is known. */
uint32_t model_lying(const struct model_file *file, enum model_lies lies);
/* False: it cannot be so. */
bool model_learn_lies(struct model_file *file, uint32_t page, enum model_lies lies);
bool model_learn_places(struct model_file *file, uint32_t places);
/* A page is moved to a frame, or to a place. */
void model_move(struct model_file *file, uint32_t page, enum model_lies to);
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
bool model_is_pinned(const struct model *m, const struct model_file *file, uint32_t page);
/* Is there room to pin that many pages? */
bool model_has_pins(const struct model *m, uint32_t pages);
void model_pin(struct model *m, uintptr_t start, uintptr_t end);
/* -EINVAL: not all of them are. */
int model_unpin(struct model *m, uintptr_t start, uintptr_t end);
/* 0 or -ENXIO. */
int model_populate(struct model *m, const struct model_piece *piece, uint32_t first, uint32_t pages);

#endif
