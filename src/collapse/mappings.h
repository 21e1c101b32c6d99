/* SPDX-License-Identifier: MIT */
/*
 * The mappings of a page that is moved: all are this process's, none is on the way to its place or from it. The space
 * lock and the file's list of mappings are held, so that they stay what they are.
 */
#ifndef HP_COLLAPSE_MAPPINGS_H
#define HP_COLLAPSE_MAPPINGS_H

#include "space/space.h"

/* False: another process maps the page, or may, or a mapping is being made or unmade. */
bool hp_mappings_are_ours(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page);
/* Where the page is mapped and can be read; NULL: nowhere. */
const void *hp_mappings_source(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page);
/* Nobody stores to the page through its mappings; readers go on. On failure they are as they were. */
int hp_mappings_protect(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page);
/* They are as they were before that. */
void hp_mappings_unprotect(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page);
/*
 * Maps the page's new frame beside each mapping, so that what the kernel may refuse it has refused before anything
 * changes. On failure nothing is mapped.
 */
int hp_mappings_stage(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page, hp_frame_id frame);
/*
 * What was staged takes the place of the old memory. False: somewhere the old memory stays mapped, and must not be
 * anybody else's.
 */
bool hp_mappings_switch(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page);

#endif
