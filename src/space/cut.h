/* SPDX-License-Identifier: MIT */
/*
 * Cutting mappings.
 *
 * A mapping does not change: what is left of one, or gets another protection, becomes a piece, a mapping of its own.
 * The range map gives up the old one for its pieces in one step, so that a fault finds one or the other at every
 * moment. Faults that found the old one are waited for before its memory is touched:
 *
 *   fault                                   unmap a part
 *   find the mapping
 *                                           pieces in its place
 *                                           synchronize: waits
 *   map frames, note them as touched
 *   leave the epoch
 *                                           unmap the part
 *
 * The fork gate is held for reading around all of it.
 */
#ifndef HP_SPACE_CUT_H
#define HP_SPACE_CUT_H

#include "space/space.h"

/* A mapping that is being cut, [from, end) of it being changed, and the pieces that take its place. */
struct hp_cut {
	struct hp_mapping *old;
	uint32_t from, end; /* pages of the file */
	struct hp_mapping *piece[3];
	unsigned pieces;
};

/* -- a mapping and its pieces ------------------------------------------------------------------------------------ */

/*
 * The first mapping that has some of [start, end) is cut there: its pieces are found from here on, and it is not.
 * `prot` is what the part gets; NULL: it goes. *t: the thread's part in its pool, NULL in a child that is not a
 * member, which has no books. -ENOENT: there is none left.
 */
int hp_cut_begin(uintptr_t start, uintptr_t end, const unsigned *prot, struct hp_cut *cut, struct hp_thread **t);
/* The old mapping is not any more; the part is unmapped, or a piece. */
void hp_cut_finish(struct hp_thread *t, struct hp_cut *cut, bool unmapped);
/* The kernel refused to unmap the part: it is a mapping again, with the old one's protection. */
void hp_cut_keep_part(struct hp_thread *t, struct hp_cut *cut);
/*
 * What is left of a GiB that had a shared page table has one of its own, which is empty: filling it at once is cheaper
 * than a fault for each page.
 */
void hp_cut_touch_rest(struct hp_thread *t, const struct hp_cut *cut);

/* -- its steps --------------------------------------------------------------------------------------------------- */

/* Another piece, of pages [from, end); nothing if these are none. The range map does not have it yet. */
int hp_cut_make_piece(struct hp_thread *t, struct hp_cut *cut, uint32_t from, uint32_t end, uint32_t prot);
/* Nobody has found the pieces. */
void hp_cut_drop_pieces(struct hp_thread *t, struct hp_cut *cut);
/*
 * Kernel mappings for each piece, set aside by the old one until it has gone: for none more than `most`, which are
 * those of the whole. -ENOMEM: there are not as many.
 */
int hp_cut_take_maps(struct hp_cut *cut, uint64_t most, uint64_t *share);
void hp_cut_share_maps(struct hp_cut *cut, const uint64_t *share);

/*
 * Faults that found the old mapping, and that have been waited for, may have cut it to its file's end since its pieces
 * were made.
 */
void hp_cut_lower_pieces(const struct hp_cut *cut);

/* -- addresses --------------------------------------------------------------------------------------------------- */

/* A mapping is cut between pages of the kernel's only. */
bool hp_space_may_be_cut(const struct hp_mapping *m, uintptr_t at);
/* Every byte of the range belongs to a mapping, and it ends where mappings may be cut. */
bool hp_space_is_ours(uintptr_t start, uintptr_t end);
/*
 * A mapping that is to be changed is on the way to its place, by another thread's HP_MAP_REPLACE: lets that go on. What
 * was found before has to be looked for again.
 */
void hp_space_wait_locked(void);
/* Addresses that were given back, and may be had again. */
void hp_space_remember_address(uintptr_t start, uint64_t length);

#endif
