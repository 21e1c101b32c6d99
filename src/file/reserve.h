/* SPDX-License-Identifier: MIT */
/*
 * Reservations of a file: two bits a page.
 *
 *   promised  taken
 *      0        0     nothing
 *      1        0     reserved: a frame of the pool is committed for it
 *      1        1     present, or about to be
 *
 * Who sets `taken` has the page's token: the right, and the duty, to take one committed frame and insert it. So a
 * promise is spent exactly once, whoever races for it. Promised bits change under the file's reserve_lock; taken bits
 * atomically.
 *
 * A file that may fall back is promised places for base pages (pool/base.h) where frames cannot be had. Which pages get
 * these is not said: `base_promised` of the file counts them, and whoever comes first takes them.
 */
#ifndef HP_FILE_RESERVE_H
#define HP_FILE_RESERVE_H

#include "file/file.h"

/* Of each of the two maps. */
uint64_t hp_reserve_bytes(uint32_t pages);

/*
 * Promises what is not promised yet of a range; all or nothing. Signals are blocked; where it has to wait for frames it
 * does so with the mask `outside`. It waits as long as the file says, and then falls back if it may.
 */
int hp_reserve_promise(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages,
                       const sigset_t *outside, hp_error *error);
/* Takes the tokens of pages from `first` on, up to the first that is taken already; returns how many. Signal safe. */
uint32_t hp_reserve_take(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages);
/* How many of so many tokens, from the first on, are for places for base pages; these are the caller's to take. */
uint32_t hp_reserve_take_base(struct hp_file_record *file, uint32_t tokens);
void hp_reserve_untake_base(struct hp_file_record *file, uint32_t places);
/* Gives tokens back unused. Signal safe. */
void hp_reserve_untake(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages);
/* Gives up what is promised and not taken of a range. */
void hp_reserve_drop(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages);
/* Pages that had frames have lost them, and are promised to nobody. The file lock is held for writing. */
void hp_reserve_forget(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages);

/* All pages of a range are. */
bool hp_reserve_is_promised(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages);
bool hp_reserve_is_taken(const struct hp_pool_view *view, const struct hp_file_record *file, uint32_t page);
/* For checks: promised and not taken; and the number of pages taken that were never promised, which must be 0. */
uint64_t hp_reserve_count(const struct hp_pool_view *view, const struct hp_file_record *file, uint64_t *unpromised);

#endif
