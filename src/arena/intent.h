/* SPDX-License-Identifier: MIT */
/*
 * Intents: what a thread is in the middle of.
 *
 * A change of several steps first writes here what it is about to do, and clears the record when it is done. The steps
 * are redo-only and idempotent: whoever finds the intent of a dead thread looks at the ground truth (frame states,
 * indexes, mappings) and finishes the change from wherever it stopped.
 */
#ifndef HP_ARENA_INTENT_H
#define HP_ARENA_INTENT_H

#include "base/units.h"

#include <stdatomic.h>

enum hp_intent_kind {
	HP_INTENT_NONE = 0,
	HP_INTENT_FILL,         /* frame, frames: absent frames become zeroed */
	HP_INTENT_ALLOCATE,     /* file, page, pages: reserved pages get frames */
	HP_INTENT_FAULT,        /* file, page, pages */
	HP_INTENT_RESERVE,      /* file, page, pages: pages become promised */
	HP_INTENT_EXTENT_TAKE,  /* frame, frames */
	HP_INTENT_EXTENT_GIVE,  /* frame, frames */
	HP_INTENT_FILE_CREATE,  /* file */
	HP_INTENT_FILE_DESTROY, /* file */
	HP_INTENT_MAP,          /* file, page, pages, record of the mapping */
	HP_INTENT_UNMAP,
	HP_INTENT_TRUNCATE, /* file, page: the new end */
	HP_INTENT_FORK,     /* process: the child's record */
	HP_INTENT_MOVE,     /* file, page; the frame that it leaves, and in the high half the one it gets */
};

struct hp_intent {
	_Atomic uint32_t kind; /* enum hp_intent_kind */
	uint32_t object;       /* number of the file, mapping or process */
	uint64_t first, count; /* of pages or frames */
};

#define HP_INTENTS_DEEP 5

/* In the arena, one for each slot; written by the slot's thread. Changes are parts of changes: a small stack. */
struct hp_intents {
	_Atomic uint32_t depth;
	struct hp_intent at[HP_INTENTS_DEEP];
} __attribute__((aligned(HP_CACHE_LINE)));

void hp_intent_begin(struct hp_intents *intents, enum hp_intent_kind kind, uint32_t object, uint64_t first,
                     uint64_t count);
void hp_intent_end(struct hp_intents *intents);

#endif
