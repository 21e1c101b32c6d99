/* SPDX-License-Identifier: MIT */
/*
 * Where a file's pages should lie.
 *
 * One word for each GiB of a file, a chunk: the frame that its first page should have. A whole chunk claims a region,
 * so that it becomes one aligned GiB whatever order its pages are touched in; a smaller one remembers a free run. Both
 * are wishes: another frame does as well, with more kernel mappings and without shared page tables.
 */
#ifndef HP_FILE_PLACE_H
#define HP_FILE_PLACE_H

#include "file/file.h"

uint64_t hp_place_bytes(uint32_t pages);
/* The frame that a page should have, or HP_NO_FRAME. Signal safe. */
hp_frame_id hp_place_hint(struct hp_thread *t, struct hp_file_use use, uint32_t page);
/* The GiB of a page, of which the file has nothing yet, gets another place. The file lock is held for writing. */
void hp_place_forget(struct hp_thread *t, struct hp_file_use use, uint32_t page);
/* The file goes: gives up its claims. */
void hp_place_drop(struct hp_thread *t, struct hp_file_use use);

#endif
