/* SPDX-License-Identifier: MIT */
/*
 * The memory of the sim backend: segments of frames, each frame with a state and a tag for each base page, and the
 * budgets that frames are charged to while they are present or reserved.
 *
 * All arrays are sparse: frames that were never touched cost nothing, so a segment may have terabytes.
 *
 * Threads: loads, stores, zero, populate and punch of one segment may run at the same time.
 */
#ifndef HP_OS_SIM_MEMORY_H
#define HP_OS_SIM_MEMORY_H

#include "os/sim.h"

#include <pthread.h>

struct sim_budget {
	uint64_t hugetlb_max; /* bytes; these three never change */
	uint64_t cgroup_max;
	uint64_t memory_max;

	pthread_mutex_t lock;  /* frames become present and absent under it */
	uint64_t hugetlb_used; /* by lock; bytes */
	uint64_t memory_used;  /* by lock; bytes */
};

struct sim_segment {
	hp_backing backing; /* these four do not change between init and release */
	uint64_t frames;
	_Atomic uint8_t *states; /* one for each frame */
	_Atomic uint64_t *tags;

	uint64_t charged; /* by the budget's lock; frames that are present or reserved */
};

void sim_budget_init(struct sim_budget *budget, const struct hp_sim_config *config);
void sim_budget_destroy(struct sim_budget *budget);
/* Frames that hugetlb segments could still populate. */
uint64_t sim_budget_available(struct sim_budget *budget);

int sim_segment_init(struct sim_segment *segment, hp_backing backing, uint64_t frames);
/* Gives all memory back. Nobody uses the segment any more. */
void sim_segment_release(struct sim_segment *segment, struct sim_budget *budget);
void sim_frames_punch(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count);

/* Charges absent frames, so that a later touch of them cannot fail. -ENOMEM: not for all of them; then for none. */
int sim_frames_reserve(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count);

/* Makes a frame present. -ENOMEM, -EFAULT: the budget of this backing is used up, see hp_sim_config. */
int sim_frame_populate(struct sim_segment *segment, struct sim_budget *budget, uint64_t frame);
/* These make the frame present too, and fail as populate does. `page` counts base pages from the segment's start. */
int sim_page_load(struct sim_segment *segment, struct sim_budget *budget, uint64_t page, uint64_t *tag);
int sim_page_store(struct sim_segment *segment, struct sim_budget *budget, uint64_t page, uint64_t tag);
int sim_frame_zero(struct sim_segment *segment, struct sim_budget *budget, uint64_t frame);
/* Loads every page of a frame and stores it in another. */
int sim_frame_copy(struct sim_segment *from, struct sim_budget *from_budget, uint64_t from_frame,
                   struct sim_segment *to, struct sim_budget *to_budget, uint64_t to_frame);

/* Zero-filled memory that costs nothing until it is written; NULL if there is none. `sharing` as for mmap. */
void *sim_sparse_create(uint64_t size, int sharing);
void sim_sparse_destroy(void *memory, uint64_t size);

#endif
