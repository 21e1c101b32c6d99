/* SPDX-License-Identifier: MIT */
/* Mapping: hp_map. */
#include "space/space.h"

#include "base/error.h"
#include "file/reserve.h"

#include <errno.h>
#include <stdlib.h>

#define FLAGS (HP_MAP_LAZY | HP_MAP_WISH | HP_MAP_AT | HP_MAP_REPLACE)

/* ---- addresses -------------------------------------------------------------------------------------------------- */

static bool is_aligned(const struct hp_mapping *m, uintptr_t address, uint64_t skew)
{
	return (address & (hp_mapping_alignment(m) - 1)) == skew;
}

/* Addresses for all of a mapping, inaccessible until its pages are placed. `wish` is 0 or where it should be. */
static int find_addresses(struct hp_mapping *m, uintptr_t wish, uint64_t skew, hp_error *error)
{
	struct hp_os *os = m->pool->os;

	if (wish && (m->flags & HP_MAP_AT || is_aligned(m, wish, skew))) {
		int result = os->ops->reserve_at(os, (void *)wish, m->length);

		m->start = wish;
		if (!result)
			return 0;
		if (m->flags & HP_MAP_AT)
			return hp_fail(error, result, HP_LIMIT_ADDRESS,
			               "%lu bytes at 0x%lx cannot be had: something is mapped there (errno %d)",
			               m->length, wish, -result);
	}
	return hp_mapping_reserve(m, skew, error);
}

/* A ready mapping of one run of frames goes where one like it was given back, for the price of one mmap. */
static bool place_again(struct hp_mapping *m, hp_frame_id frame, uint64_t skew)
{
	m->start = hp_space_recall_address(m->length, hp_mapping_alignment(m), skew);
	return m->start && !hp_mapping_place(m, m->first, m->pages, frame, hp_mapping_populate_flag(m, m->pages));
}

/* ---- both kinds ------------------------------------------------------------------------------------------------- */

static int map_runs(struct hp_thread *t, struct hp_mapping *m, uintptr_t wish, hp_error *error)
{
	struct hp_os *os = m->pool->os;
	hp_frame_id frame;
	uint64_t skew;
	bool one;
	int result;

	one = hp_mapping_run(t, m, m->first, &frame) == m->pages;
	skew = hp_bytes(frame) & (hp_mapping_alignment(m) - 1);
	if (one && !wish && place_again(m, frame, skew))
		return 0;
	result = find_addresses(m, wish, skew, error);
	if (result)
		return result;
	result = hp_mapping_place_runs(t, m, m->first, hp_mapping_end(m));
	if (!result)
		return 0;
	os->ops->unmap(os, (void *)m->start, m->length);
	if (result == -ENXIO)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "the file has been cut meanwhile: the range lies beyond it");
	return hp_fail(error, result, result == -ENOMEM ? HP_LIMIT_MAP_COUNT : HP_LIMIT_NONE,
	               "the kernel refused to map the frames (errno %d); at -12 see vm.max_map_count and RLIMIT_AS",
	               result);
}

/* The frames of a mapping that can share page tables, where a punch has spoiled those of the direct map. */
static void repair_sharing(struct hp_thread *t, const struct hp_mapping *m)
{
	if (hp_mapping_alignment(m) != HP_REGION_SIZE)
		return;
	for (uint32_t page = m->first, run; page < hp_mapping_end(m); page += run) {
		hp_frame_id frame;

		run = hp_mapping_run(t, m, page, &frame);
		if (!run)
			return;
		hp_direct_repair(m->pool, frame, run);
	}
}

/*
 * The mapping is in its file's list already. Who takes pages away looks at the list after it has locked it; we look at
 * the pages after we have entered the list: one of the two sees the other.
 */
static int map_ready(struct hp_thread *t, struct hp_mapping *m, uintptr_t wish, hp_error *error)
{
	struct hp_file_use use = hp_mapping_file(m);
	/* A file that is empty has no pages to look at, and a hole may have no memory. */
	bool look = atomic_load_explicit(&use.record->present, memory_order_acquire) &&
	            !atomic_load_explicit(&use.record->holes, memory_order_acquire);
	uint32_t runs = look ? hp_mapping_runs(t, m) : 0;
	int result = 0;

	if (!runs) {
		result = hp_file_fill(t, use, m->first, m->pages, HP_FILL_MEMORY, error);
		runs = result ? 0 : hp_mapping_runs(t, m);
	}
	if (!result)
		result = hp_mapping_take_maps(m, runs, error);
	if (result)
		return result;
	repair_sharing(t, m);
	return map_runs(t, m, wish, error);
}

/* What was promised of [first, end) after the file had been cut below it: nobody else would give it up. */
static void drop_beyond(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end)
{
	uint32_t size;

	hp_biased_read_lock(&use.record->lock, &t->locker, HP_CLASS_FILE);
	size = atomic_load(&use.record->pages);
	first = first > size ? first : size;
	if (first < end)
		hp_reserve_drop(t, use.record, first, end - first);
	hp_biased_read_unlock(&use.record->lock, &t->locker);
}

/* What its faults will need, which stays with the file. */
static int promise(struct hp_thread *t, struct hp_mapping *m, hp_error *error)
{
	struct hp_file_use use = hp_mapping_file(m);
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	result = hp_reserve_promise(t, use, m->first, m->pages, &saved, error);
	if (!result)
		drop_beyond(t, use, m->first, hp_mapping_end(m));
	hp_signals_restore(&saved);
	return result ? result : hp_file_prepare(t, use, m->first, m->pages, error);
}

static int map_lazy(struct hp_thread *t, struct hp_mapping *m, uintptr_t wish, hp_error *error)
{
	int result = hp_handler_install();

	if (result)
		return hp_fail(error, result, HP_LIMIT_NONE, "the SIGSEGV handler could not be installed");
	/* In the worst order of touches every second page is mapped by itself, and then all the others. */
	result = hp_mapping_take_maps(m, (uint64_t)m->pages + 1, error);
	if (result)
		return result;
	m->touched = hp_touched_new(m->first, m->pages);
	if (!m->touched)
		return hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "no memory to note which pages are mapped");
	result = find_addresses(m, wish, hp_bytes(m->first) & (hp_mapping_alignment(m) - 1), error);
	if (result)
		return result;
	result = promise(t, m, error);
	if (result)
		m->pool->os->ops->unmap(m->pool->os, (void *)m->start, m->length);
	return result;
}

/* From here on faults find it. */
static int publish(struct hp_thread *t, struct hp_mapping *m, hp_error *error)
{
	int result;

	hp_vma_at(t->pool, m->vma)->address = m->start;
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	result = hp_range_map_insert(&hp_space.ranges, m->start, m->start + m->length, m);
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	if (!result)
		return 0;
	m->pool->os->ops->unmap(m->pool->os, (void *)m->start, m->length);
	if (result == -EEXIST)
		return hp_fail(
			error, result, HP_LIMIT_NONE,
			"the kernel gave addresses that belong to another mapping of hugepool: somebody unmapped "
			"those with munmap instead of hp_unmap");
	return hp_fail(error, result, HP_LIMIT_MEMORY, "no memory to note the mapping");
}

/* ---- hp_map ----------------------------------------------------------------------------------------------------- */

static int make(struct hp_thread *t, struct hp_mapping *m, uintptr_t wish, hp_error *error)
{
	return m->flags & HP_MAP_LAZY ? map_lazy(t, m, wish, error) : map_ready(t, m, wish, error);
}

static int map_registered(struct hp_thread *t, struct hp_mapping *m, uintptr_t wish, uintptr_t *start, hp_error *error)
{
	bool replace = m->flags & HP_MAP_REPLACE;
	int result;

	hp_intent_begin(t->intents, HP_INTENT_MAP, m->vma, m->first, m->pages);
	result = make(t, m, replace ? 0 : wish, error);
	*start = replace ? wish : m->start;
	if (!result)
		result = replace ? hp_space_replace(t, m, wish, error) : publish(t, m, error);
	if (result) {
		hp_mapping_forget(t, m);
		free(m->touched);
	}
	hp_intent_end(t->intents);
	return result;
}

int hp_space_map(struct hp_thread *t, struct hp_mapping *m, uintptr_t wish, uintptr_t *start, hp_error *error)
{
	struct hp_pool_view *pool = m->pool;
	uint32_t file = m->file, end = hp_mapping_end(m);
	int result;

	hp_space_enter();
	result = hp_mapping_register(t, m, error);
	if (!result)
		result = map_registered(t, m, wish, start, error);
	/* Cut while it was being mapped: who has caught up meanwhile did not find it. */
	if (!result && end > atomic_load(&hp_file_at(pool, file)->pages))
		atomic_store(&pool->processes.record[pool->process].behind, 1);
	hp_space_leave();
	return result;
}

int hp_space_check(const struct hp_pool_view *view, unsigned prot, unsigned flags, uintptr_t wish, hp_error *error)
{
	unsigned places = flags & (HP_MAP_WISH | HP_MAP_AT | HP_MAP_REPLACE);

	if (prot & ~(HP_PROT_READ | HP_PROT_WRITE) || !(prot & HP_PROT_READ))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "hp_map: prot is HP_PROT_READ, with HP_PROT_WRITE or without");
	if (flags & ~FLAGS)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "hp_map: unknown flags 0x%x", flags & ~FLAGS);
	if (places & (places - 1))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "hp_map: HP_MAP_WISH, HP_MAP_AT and HP_MAP_REPLACE exclude each other");
	if (places && !(flags & HP_MAP_WISH) && (!wish || !hp_is_aligned(view, wish)))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "hp_map: address 0x%lx must be a multiple of %lu MiB",
		               wish, hp_bytes(hp_unit(view)) >> 20);
	return 0;
}

int hp_map(hp_file file, uint64_t offset, uint64_t length, unsigned prot, unsigned flags, void **address,
           hp_error *error)
{
	uintptr_t wish = flags & (HP_MAP_WISH | HP_MAP_AT | HP_MAP_REPLACE) ? (uintptr_t)*address : 0, start;
	bool ready = !(flags & HP_MAP_LAZY);
	struct hp_file_use use;
	struct hp_mapping *m;
	struct hp_thread *t;
	uint32_t first, pages;
	int result = hp_file_enter(file, &t, &use, error);

	if (result)
		return result;
	/* So that its pages can be mapped anew one by one. */
	if (use.record->flags & HP_FILE_MOVABLE)
		flags |= HP_MAP_LAZY;
	result = hp_space_check(t->pool, prot, flags, wish, error);
	if (!result)
		result = hp_file_range(t->pool, use.record, offset, length, &first, &pages, error);
	m = result ? NULL : hp_mapping_new(t->pool, use.number, first, pages, prot, flags);
	if (!result && !m)
		result = hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "no memory to note the mapping");
	if (!result && ready && flags & HP_MAP_LAZY)
		result = hp_file_fill(t, use, first, pages, HP_FILL_MEMORY, error);
	if (!result)
		result = hp_space_map(t, m, wish, &start, error);
	if (!result)
		*address = (void *)start;
	else
		free(m);
	/* What cannot be mapped now is mapped when it is touched. */
	if (!result && ready && flags & HP_MAP_LAZY)
		hp_populate((void *)start, hp_bytes(pages));
	hp_pool_catch_up(t);
	hp_file_put(t, use.number);
	return result;
}
