/* SPDX-License-Identifier: MIT */
/*
 * Taking pages away: what punch, truncate and the end of a file have in common.
 *
 * What nobody maps is recycled: its frames become dirty and free, its promises are given up. What somebody maps becomes
 * holes, which keep their place (pool/hole.h), and keeps its promises, so that a mapping can always be touched.
 *
 * The list of mappings and the file lock are held, the lock for writing: no page is inserted meanwhile and no mapping
 * begins. Long ranges are taken away in parts, without the locks in between.
 */
#ifndef HP_FILE_REMOVE_H
#define HP_FILE_REMOVE_H

#include "file/file.h"

/* So many pages are taken away without letting others in between. */
#define HP_REMOVE_PART 128u

/*
 * Takes [first, end) away. -ENOMEM: there is no page for a node of the index, and some of it may be left. `*uncovered`
 * grows as in hp_holes_punch().
 */
int hp_file_remove_locked(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end,
                          uint64_t *uncovered);
/* The same in parts, locks and signals included. */
int hp_file_remove(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end, uint64_t *uncovered);
/*
 * Takes what lies beyond the end away, with its promises: a part, from *page on. True: it is not all, and *page is
 * where to go on.
 */
bool hp_file_remove_beyond_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, int *result);
/* All of it, in parts, locks and signals included. Does nothing twice. */
int hp_file_remove_beyond(struct hp_thread *t, struct hp_file_use use, uint32_t page);
/* A mapping of [first, end) is gone: what lies beyond the end of the file and nobody maps any more is recycled. */
void hp_file_reclaim(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end);
/* The file goes: nobody has it. */
void hp_file_remove_all(struct hp_thread *t, struct hp_file_use use);

#endif
