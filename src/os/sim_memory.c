/* SPDX-License-Identifier: MIT */
#include "os/sim_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#define PAGES_PER_FRAME (HP_FRAME_SIZE / HP_BASE_PAGE_SIZE)

/*
 * State of a frame: 0 (absent), RESERVED (absent, but charged to the budget), PRESENT (charged), or PRESENT | DIRTY
 * (has tags to clear). A frame that is not dirty has zero tags only, but for that of a store that is still under way.
 */
enum { PRESENT = 1, DIRTY = 2, RESERVED = 4 };

/* ---- Sparse memory --------------------------------------------------------------------------------------------- */

void *sim_sparse_create(uint64_t size, int sharing)
{
	int saved = errno;
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	/* With huge pages, one tag would cost as much as a real frame. */
	if (memory != MAP_FAILED)
		madvise(memory, size, MADV_NOHUGEPAGE);
	errno = saved;
	return memory == MAP_FAILED ? NULL : memory;
}

void sim_sparse_destroy(void *memory, uint64_t size)
{
	int saved = errno;

	if (memory)
		munmap(memory, size);
	errno = saved;
}

/* ---- Budgets --------------------------------------------------------------------------------------------------- */

void sim_budget_init(struct sim_budget *budget, const struct hp_sim_config *config)
{
	*budget = (struct sim_budget){
		.hugetlb_max = config->hugetlb_bytes,
		.cgroup_max = config->cgroup_bytes ? config->cgroup_bytes : UINT64_MAX,
		.memory_max = config->memory_bytes ? config->memory_bytes : UINT64_MAX,
	};
	pthread_mutex_init(&budget->lock, NULL);
}

void sim_budget_destroy(struct sim_budget *budget)
{
	pthread_mutex_destroy(&budget->lock);
}

uint64_t sim_budget_available(struct sim_budget *budget)
{
	pthread_mutex_lock(&budget->lock);
	uint64_t bytes = budget->hugetlb_max - budget->hugetlb_used;
	pthread_mutex_unlock(&budget->lock);
	return bytes / HP_FRAME_SIZE;
}

static int charge_locked(struct sim_budget *budget, struct sim_segment *segment, uint64_t frames)
{
	if (segment->backing == HP_BACKING_HUGETLB) {
		uint64_t used = budget->hugetlb_used + frames * HP_FRAME_SIZE;

		if (used > budget->hugetlb_max)
			return -ENOMEM;
		if (used > budget->cgroup_max)
			return -EFAULT;
		budget->hugetlb_used = used;
	} else {
		uint64_t used = budget->memory_used + frames * HP_FRAME_SIZE;

		if (used > budget->memory_max)
			return -ENOMEM;
		budget->memory_used = used;
	}
	segment->charged += frames;
	return 0;
}

static void uncharge_locked(struct sim_budget *budget, struct sim_segment *segment, uint64_t frames)
{
	if (segment->backing == HP_BACKING_HUGETLB)
		budget->hugetlb_used -= frames * HP_FRAME_SIZE;
	else
		budget->memory_used -= frames * HP_FRAME_SIZE;
	segment->charged -= frames;
}

/* ---- Segments -------------------------------------------------------------------------------------------------- */

static uint64_t tags_size(uint64_t frames)
{
	return frames * PAGES_PER_FRAME * sizeof(uint64_t);
}

int sim_segment_init(struct sim_segment *segment, hp_backing backing, uint64_t frames)
{
	void *states = sim_sparse_create(frames, MAP_PRIVATE);
	void *tags = sim_sparse_create(tags_size(frames), MAP_PRIVATE);

	if (!states || !tags) {
		sim_sparse_destroy(states, frames);
		sim_sparse_destroy(tags, tags_size(frames));
		return -ENOMEM;
	}
	*segment = (struct sim_segment){.backing = backing, .frames = frames, .states = states, .tags = tags};
	return 0;
}

void sim_segment_release(struct sim_segment *segment, struct sim_budget *budget)
{
	pthread_mutex_lock(&budget->lock);
	uncharge_locked(budget, segment, segment->charged);
	pthread_mutex_unlock(&budget->lock);
	sim_sparse_destroy(segment->states, segment->frames);
	sim_sparse_destroy(segment->tags, tags_size(segment->frames));
	*segment = (struct sim_segment){0};
}

static void clear_tags(struct sim_segment *segment, uint64_t frame)
{
	_Atomic uint64_t *tags = &segment->tags[frame * PAGES_PER_FRAME];

	for (unsigned i = 0; i < PAGES_PER_FRAME; i++)
		atomic_store_explicit(&tags[i], 0, memory_order_relaxed);
}

static void punch_locked(struct sim_segment *segment, struct sim_budget *budget, uint64_t frame)
{
	_Atomic uint8_t *state = &segment->states[frame];

	if (!atomic_load_explicit(state, memory_order_relaxed))
		return;
	if (atomic_exchange_explicit(state, 0, memory_order_acq_rel) & DIRTY)
		clear_tags(segment, frame);
	uncharge_locked(budget, segment, 1);
}

void sim_frames_punch(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count)
{
	pthread_mutex_lock(&budget->lock);
	for (uint64_t i = 0; i < count; i++)
		punch_locked(segment, budget, first + i);
	pthread_mutex_unlock(&budget->lock);
}

static bool is_absent(const struct sim_segment *segment, uint64_t frame)
{
	return !atomic_load_explicit(&segment->states[frame], memory_order_relaxed);
}

int sim_frames_reserve(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count)
{
	uint64_t absent = 0;

	pthread_mutex_lock(&budget->lock);
	for (uint64_t i = 0; i < count; i++)
		absent += is_absent(segment, first + i);
	int error = charge_locked(budget, segment, absent) ? -ENOMEM : 0;
	for (uint64_t i = 0; i < count && !error; i++)
		if (is_absent(segment, first + i))
			atomic_store_explicit(&segment->states[first + i], RESERVED, memory_order_relaxed);
	pthread_mutex_unlock(&budget->lock);
	return error;
}

/* ---- Frames and pages ------------------------------------------------------------------------------------------ */

/* Two that want the last frame of a budget at once both get it: the second finds it present under the lock. */
int sim_frame_populate(struct sim_segment *segment, struct sim_budget *budget, uint64_t frame)
{
	_Atomic uint8_t *state = &segment->states[frame];
	int error = 0;

	if (atomic_load_explicit(state, memory_order_acquire) & PRESENT)
		return 0;
	pthread_mutex_lock(&budget->lock);
	if (is_absent(segment, frame))
		error = charge_locked(budget, segment, 1);
	if (!error && !(atomic_load_explicit(state, memory_order_relaxed) & PRESENT))
		atomic_store_explicit(state, PRESENT, memory_order_release);
	pthread_mutex_unlock(&budget->lock);
	return error;
}

int sim_page_load(struct sim_segment *segment, struct sim_budget *budget, uint64_t page, uint64_t *tag)
{
	int error = sim_frame_populate(segment, budget, page / PAGES_PER_FRAME);

	if (!error)
		*tag = atomic_load_explicit(&segment->tags[page], memory_order_acquire);
	return error;
}

/* False: the frame was punched meanwhile. Writes a mark that is there again, so that a later zero sees the tag. */
static bool mark_dirty(_Atomic uint8_t *state)
{
	uint8_t seen = atomic_load_explicit(state, memory_order_relaxed);

	while (seen & PRESENT)
		if (atomic_compare_exchange_weak_explicit(state, &seen, PRESENT | DIRTY, memory_order_acq_rel,
		                                          memory_order_relaxed))
			return true;
	return false;
}

/*
 * The tag comes first and the mark second. The other way round, zero could take the mark away before the tag is there,
 * and the tag would stay in a frame that passes for clean.
 */
int sim_page_store(struct sim_segment *segment, struct sim_budget *budget, uint64_t page, uint64_t tag)
{
	uint64_t frame = page / PAGES_PER_FRAME;

	do {
		int error = sim_frame_populate(segment, budget, frame);

		if (error)
			return error;
		atomic_store_explicit(&segment->tags[page], tag, memory_order_release);
	} while (!mark_dirty(&segment->states[frame]));
	return 0;
}

int sim_frame_zero(struct sim_segment *segment, struct sim_budget *budget, uint64_t frame)
{
	int error = sim_frame_populate(segment, budget, frame);

	if (!error && atomic_fetch_and_explicit(&segment->states[frame], (uint8_t)~DIRTY, memory_order_acq_rel) & DIRTY)
		clear_tags(segment, frame);
	return error;
}

int sim_frame_copy(struct sim_segment *from, struct sim_budget *from_budget, uint64_t from_frame,
                   struct sim_segment *to, struct sim_budget *to_budget, uint64_t to_frame)
{
	int error = 0;

	for (uint64_t i = 0; i < PAGES_PER_FRAME && !error; i++) {
		uint64_t tag;

		error = sim_page_load(from, from_budget, from_frame * PAGES_PER_FRAME + i, &tag);
		if (!error)
			error = sim_page_store(to, to_budget, to_frame * PAGES_PER_FRAME + i, tag);
	}
	return error;
}
