/* SPDX-License-Identifier: MIT */
/*
 * The memory of the sim backend: segments of base pages with a tag each, and the budgets that they are charged to while
 * they are present or reserved. Pages become present and absent by the *unit*: of HP_BACKING_BASE a page, otherwise a
 * frame, so that a punch of base pages gives back what it takes and no page is there because its neighbour is.
 *
 * All arrays are sparse: pages that were never touched cost nothing, so a segment may have terabytes.
 *
 * Threads: loads, stores, zero, populate and punch of one segment may run at the same time.
 */
#ifndef HP_OS_SIM_MEMORY_H
#define HP_OS_SIM_MEMORY_H

#include "os/sim.h"

#include <pthread.h>

#define PAGES_PER_FRAME (HP_FRAME_SIZE / HP_BASE_PAGE_SIZE)

struct sim_budget {
	uint64_t hugetlb_max; /* bytes; these three never change */
	uint64_t cgroup_max;
	uint64_t memory_max;

	pthread_mutex_t lock;  /* pages become present and absent under it */
	uint64_t hugetlb_used; /* by lock; bytes */
	uint64_t memory_used;  /* by lock; bytes */
};

struct sim_segment {
	hp_backing backing; /* these five do not change between init and release */
	uint64_t frames;
	uint64_t unit;           /* base pages: 1 or PAGES_PER_FRAME */
	_Atomic uint8_t *states; /* one for each unit */
	_Atomic uint64_t *tags;  /* one for each base page */

	uint64_t charged; /* by the budget's lock; units that are present or reserved */
};

void sim_budget_init(struct sim_budget *budget, const struct hp_sim_config *config);
void sim_budget_destroy(struct sim_budget *budget);
/* Frames that hugetlb segments could still populate. */
uint64_t sim_budget_available(struct sim_budget *budget);

int sim_segment_init(struct sim_segment *segment, hp_backing backing, uint64_t frames);
/* Gives all memory back. Nobody uses the segment any more. */
void sim_segment_release(struct sim_segment *segment, struct sim_budget *budget);

/* Ranges of base pages, counted from the segment's start. These two take whole units. */
void sim_pages_punch(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count);
/* Charges absent units, so that a later touch of them cannot fail. -ENOMEM: not for all of them; then for none. */
int sim_pages_reserve(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count);

/* Makes the units of a range present. -ENOMEM, -EFAULT: the budget of this backing is used up, see hp_sim_config; what
 * became present before stays. */
int sim_pages_populate(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count);
/* These do so too, and fail as populate does. */
int sim_page_load(struct sim_segment *segment, struct sim_budget *budget, uint64_t page, uint64_t *tag);
int sim_page_store(struct sim_segment *segment, struct sim_budget *budget, uint64_t page, uint64_t tag);
int sim_pages_zero(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count);
/* Loads every page of a frame and stores it in another. */
int sim_frame_copy(struct sim_segment *from, struct sim_budget *from_budget, uint64_t from_frame,
                   struct sim_segment *to, struct sim_budget *to_budget, uint64_t to_frame);
/* Makes nothing present. */
bool sim_page_is_present(const struct sim_segment *segment, uint64_t page);

/* Zero-filled memory that costs nothing until it is written; NULL if there is none. `sharing` as for mmap. */
void *sim_sparse_create(uint64_t size, int sharing);
void sim_sparse_destroy(void *memory, uint64_t size);

#endif
