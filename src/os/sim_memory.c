/* SPDX-License-Identifier: MIT */
#include "base/units.h"
#include "os/sim_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

/*
 * State of a unit: 0 (absent), RESERVED (absent, but charged to the budget), PRESENT (charged), or PRESENT | DIRTY
 * (has tags to clear). A unit that is not dirty has zero tags only, but for that of a store that is still under way.
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

static uint64_t unit_bytes(const struct sim_segment *segment)
{
	return segment->unit * HP_BASE_PAGE_SIZE;
}

static int charge_locked(struct sim_budget *budget, struct sim_segment *segment, uint64_t units)
{
	if (segment->backing == HP_BACKING_HUGETLB) {
		uint64_t used = budget->hugetlb_used + units * unit_bytes(segment);

		if (used > budget->hugetlb_max)
			return -ENOMEM;
		if (used > budget->cgroup_max)
			return -EFAULT;
		budget->hugetlb_used = used;
	} else {
		uint64_t used = budget->memory_used + units * unit_bytes(segment);

		if (used > budget->memory_max)
			return -ENOMEM;
		budget->memory_used = used;
	}
	segment->charged += units;
	return 0;
}

static void uncharge_locked(struct sim_budget *budget, struct sim_segment *segment, uint64_t units)
{
	if (segment->backing == HP_BACKING_HUGETLB)
		budget->hugetlb_used -= units * unit_bytes(segment);
	else
		budget->memory_used -= units * unit_bytes(segment);
	segment->charged -= units;
}

/* ---- Segments ---------------------------------------------------------------------------------------------------- */

static uint64_t tags_size(uint64_t frames)
{
	return frames * PAGES_PER_FRAME * sizeof(uint64_t);
}

int sim_segment_init(struct sim_segment *segment, hp_backing backing, uint64_t frames)
{
	uint64_t unit = backing == HP_BACKING_BASE ? 1 : PAGES_PER_FRAME, units = frames * PAGES_PER_FRAME / unit;
	void *states = sim_sparse_create(units, MAP_PRIVATE);
	void *tags = sim_sparse_create(tags_size(frames), MAP_PRIVATE);

	if (!states || !tags) {
		sim_sparse_destroy(states, units);
		sim_sparse_destroy(tags, tags_size(frames));
		return -ENOMEM;
	}
	*segment = (struct sim_segment){
		.backing = backing, .frames = frames, .unit = unit, .states = states, .tags = tags};
	return 0;
}

void sim_segment_release(struct sim_segment *segment, struct sim_budget *budget)
{
	pthread_mutex_lock(&budget->lock);
	uncharge_locked(budget, segment, segment->charged);
	pthread_mutex_unlock(&budget->lock);
	sim_sparse_destroy(segment->states, segment->frames * PAGES_PER_FRAME / segment->unit);
	sim_sparse_destroy(segment->tags, tags_size(segment->frames));
	*segment = (struct sim_segment){0};
}

static _Atomic uint8_t *state_of(const struct sim_segment *segment, uint64_t page)
{
	return &segment->states[page / segment->unit];
}

/* The first page of the unit after that of `page`. */
static uint64_t next_unit(const struct sim_segment *segment, uint64_t page)
{
	return page + segment->unit - page % segment->unit;
}

static void clear_tags(struct sim_segment *segment, uint64_t first, uint64_t count)
{
	for (uint64_t page = first; page < first + count; page++)
		atomic_store_explicit(&segment->tags[page], 0, memory_order_relaxed);
}

static void punch_locked(struct sim_segment *segment, struct sim_budget *budget, uint64_t page)
{
	_Atomic uint8_t *state = state_of(segment, page);

	if (!atomic_load_explicit(state, memory_order_relaxed))
		return;
	if (atomic_exchange_explicit(state, 0, memory_order_acq_rel) & DIRTY)
		clear_tags(segment, page, segment->unit);
	uncharge_locked(budget, segment, 1);
}

void sim_pages_punch(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count)
{
	pthread_mutex_lock(&budget->lock);
	for (uint64_t page = first; page < first + count; page = next_unit(segment, page))
		punch_locked(segment, budget, page);
	pthread_mutex_unlock(&budget->lock);
}

static bool is_absent(const struct sim_segment *segment, uint64_t page)
{
	return !atomic_load_explicit(state_of(segment, page), memory_order_relaxed);
}

int sim_pages_reserve(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count)
{
	uint64_t end = first + count, absent = 0;

	pthread_mutex_lock(&budget->lock);
	for (uint64_t page = first; page < end; page = next_unit(segment, page))
		absent += is_absent(segment, page);
	int error = charge_locked(budget, segment, absent) ? -ENOMEM : 0;
	for (uint64_t page = first; page < end && !error; page = next_unit(segment, page))
		if (is_absent(segment, page))
			atomic_store_explicit(state_of(segment, page), RESERVED, memory_order_relaxed);
	pthread_mutex_unlock(&budget->lock);
	return error;
}

/* ---- Pages ------------------------------------------------------------------------------------------------------- */

bool sim_page_is_present(const struct sim_segment *segment, uint64_t page)
{
	return atomic_load_explicit(state_of(segment, page), memory_order_acquire) & PRESENT;
}

static int populate_locked(struct sim_segment *segment, struct sim_budget *budget, uint64_t page)
{
	int error = is_absent(segment, page) ? charge_locked(budget, segment, 1) : 0;

	if (!error && !sim_page_is_present(segment, page))
		atomic_store_explicit(state_of(segment, page), PRESENT, memory_order_release);
	return error;
}

/* Two that want the last unit of a budget at once both get it: the second finds it present under the lock. */
int sim_pages_populate(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count)
{
	uint64_t page = first, end = first + count;
	int error = 0;

	while (page < end && sim_page_is_present(segment, page))
		page = next_unit(segment, page);
	if (page >= end)
		return 0;
	pthread_mutex_lock(&budget->lock);
	for (; page < end && !error; page = next_unit(segment, page))
		error = populate_locked(segment, budget, page);
	pthread_mutex_unlock(&budget->lock);
	return error;
}

int sim_page_load(struct sim_segment *segment, struct sim_budget *budget, uint64_t page, uint64_t *tag)
{
	int error = sim_pages_populate(segment, budget, page, 1);

	if (!error)
		*tag = atomic_load_explicit(&segment->tags[page], memory_order_acquire);
	return error;
}

/* False: the unit was punched meanwhile. Writes a mark that is there again, so that a later zero sees the tag. */
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
 * and the tag would stay in a unit that passes for clean.
 */
int sim_page_store(struct sim_segment *segment, struct sim_budget *budget, uint64_t page, uint64_t tag)
{
	do {
		int error = sim_pages_populate(segment, budget, page, 1);

		if (error)
			return error;
		atomic_store_explicit(&segment->tags[page], tag, memory_order_release);
	} while (!mark_dirty(state_of(segment, page)));
	return 0;
}

/* Pages of one unit. Only who clears all of it takes the mark away. */
static void zero_in_unit(struct sim_segment *segment, uint64_t first, uint64_t count)
{
	_Atomic uint8_t *state = state_of(segment, first);
	uint8_t seen = count == segment->unit ? atomic_fetch_and_explicit(state, (uint8_t)~DIRTY, memory_order_acq_rel)
	                                      : atomic_load_explicit(state, memory_order_acquire);

	if (seen & DIRTY)
		clear_tags(segment, first, count);
}

int sim_pages_zero(struct sim_segment *segment, struct sim_budget *budget, uint64_t first, uint64_t count)
{
	uint64_t end = first + count;
	int error = sim_pages_populate(segment, budget, first, count);

	for (uint64_t page = first, next; page < end && !error; page = next) {
		next = hp_min(next_unit(segment, page), end);
		zero_in_unit(segment, page, next - page);
	}
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
