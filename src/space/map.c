/* SPDX-License-Identifier: MIT */
/* Mapping and unmapping. */
#include "space/space.h"

#include "base/bitmap.h"
#include "base/error.h"
#include "base/log.h"
#include "file/reserve.h"
#include "os/budget.h"

#include <errno.h>
#include <stdlib.h>

struct hp_space hp_space;

/* The locks of the space are the process's own: their owners do not die without it, and they have no statistics. */
static struct hp_lock_shared local_shared;
static const struct hp_lock_domain local = {.shared = &local_shared};

const struct hp_locker *hp_space_locker(void)
{
	static _Atomic hp_owner last;
	static __thread struct hp_lock_record record;
	static __thread struct hp_locker mine;

	if (!mine.owner)
		mine = (struct hp_locker){
			.owner = (atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1) & HP_OWNER_MASK,
			.record = &record,
			.shared = &local_shared,
			.domain = &local,
		};
	return &mine;
}

#define RETIRED_MAX 64u      /* pieces of memory that wait for readers before we do */
#define POPULATE_FRAMES 512u /* kernel mappings up to this size get their page table at once */

/* ---- addresses -------------------------------------------------------------------------------------------------- */

/*
 * Addresses that were given back last, to be tried first: a program that maps the same file again and again gets an
 * aligned range for the price of one mmap. Under the space lock. That nothing is there now is for the kernel to say.
 */
static struct recent {
	uintptr_t start;
	uint64_t length;
} recent[8];

static void remember_address(uintptr_t start, uint64_t length)
{
	static unsigned next;

	recent[next++ % 8] = (struct recent){start, length};
}

static void *recall_address(uint64_t length, uint64_t align, uint64_t skew)
{
	void *found = NULL;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	for (unsigned i = 0; i < 8 && !found; i++)
		if (recent[i].length == length && (recent[i].start & (align - 1)) == skew) {
			found = (void *)recent[i].start;
			recent[i].length = 0;
		}
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	return found;
}

/* The kernel shares page tables where a GiB of the segment is mapped at addresses that are equal to it modulo a GiB. */
static uint64_t alignment_for(const struct hp_mapping *m)
{
	return m->length >= HP_REGION_SIZE && m->pool->shared->table_sharing ? HP_REGION_SIZE : HP_FRAME_SIZE;
}

/* ---- kernel mappings -------------------------------------------------------------------------------------------- */

int hp_mapping_place(const struct hp_mapping *m, uint32_t page, uint32_t pages, hp_frame_id frame, unsigned os_flags)
{
	struct hp_os *os = m->pool->os;
	uint64_t offset;
	unsigned segment = hp_segment_of(m->pool, frame, &offset);

	/* Numbers go on from one segment to the next; memory does not. */
	HP_ASSERT(offset + hp_bytes(pages) <= hp_bytes(hp_segment_frames(m->pool->shared)));
	return os->ops->map(os, (void *)(m->start + hp_bytes(page - m->first)), hp_bytes(pages), m->prot,
	                    m->pool->segment[segment], offset, os_flags);
}

/* How many runs of frames the mapping's pages lie in; 0 if one is absent. */
static uint32_t count_runs(const struct hp_mapping *m)
{
	struct hp_index index = hp_file_index(m->pool, hp_file_at(m->pool, m->file));
	uint32_t runs = 0;

	for (uint32_t page = m->first, run; page < m->first + m->pages; page += run, runs++) {
		run = hp_index_run(index, page, m->first + m->pages - page);
		if (!run)
			return 0;
	}
	return runs;
}

static int reserve_addresses(struct hp_mapping *m, uint64_t skew, hp_error *error)
{
	struct hp_os *os = m->pool->os;
	void *address;
	int result = os->ops->reserve(os, m->length, alignment_for(m), skew, &address);

	if (result)
		return hp_fail(error, result, HP_LIMIT_ADDRESS, "no free range of %lu bytes of addresses (errno %d)",
		               m->length, -result);
	m->start = (uintptr_t)address;
	return 0;
}

static int fail_to_map(hp_error *error, int result)
{
	return hp_fail(error, result, result == -ENOMEM ? HP_LIMIT_MAP_COUNT : HP_LIMIT_NONE,
	               "the kernel refused to map the frames (errno %d); at -12 see vm.max_map_count and RLIMIT_AS",
	               result);
}

/* Pages of a region that begin where the region does can get their page table from the direct map. */
static unsigned populate_flag(const struct hp_mapping *m, uint32_t frames)
{
	return frames <= POPULATE_FRAMES && alignment_for(m) == HP_FRAME_SIZE ? HP_OS_MAP_POPULATE : 0;
}

static int map_runs(struct hp_mapping *m, uint32_t runs, hp_error *error)
{
	struct hp_index index = hp_file_index(m->pool, hp_file_at(m->pool, m->file));
	hp_frame_id frame = hp_index_lookup(index, m->first);
	uint64_t align = alignment_for(m), skew = hp_bytes(frame) & (align - 1);
	int result;

	if (runs == 1) {
		m->start = (uintptr_t)recall_address(m->length, align, skew);
		if (m->start && !hp_mapping_place(m, m->first, m->pages, frame, populate_flag(m, m->pages)))
			return 0;
	}
	result = reserve_addresses(m, skew, error);
	for (uint32_t page = m->first, run; !result && page < m->first + m->pages; page += run) {
		run = hp_index_run(index, page, m->first + m->pages - page);
		frame = hp_index_lookup(index, page);
		result = hp_mapping_place(m, page, run, frame, HP_OS_MAP_REPLACE | populate_flag(m, run));
		if (result) {
			m->pool->os->ops->unmap(m->pool->os, (void *)m->start, m->length);
			return fail_to_map(error, result);
		}
	}
	return result;
}

/* ---- hp_map ----------------------------------------------------------------------------------------------------- */

static int take_maps(struct hp_mapping *m, uint64_t maps, hp_error *error)
{
	struct hp_os *os = m->pool->os;

	if (hp_maps_take(os, maps))
		return hp_fail(error, -ENOMEM, HP_LIMIT_MAP_COUNT,
		               "the mapping may need %lu kernel mappings, and hugepool uses %lu of at most %lu; raise "
		               "vm.max_map_count or map less at once",
		               maps, hp_maps_taken(os), hp_maps_max(os));
	m->maps = maps;
	return 0;
}

/*
 * The mapping is in its file's list already. Who takes pages away looks at the list after it has made them absent; we
 * look at the pages after we have entered the list: one of the two sees the other.
 */
static int map_ready(struct hp_thread *t, struct hp_mapping *m, hp_error *error)
{
	struct hp_file_use use = {hp_file_at(t->pool, m->file), m->file};
	/* A file that is empty has no pages to look at. */
	uint32_t runs = atomic_load_explicit(&use.record->present, memory_order_acquire) ? count_runs(m) : 0;
	int result = 0;

	if (!runs) {
		result = hp_file_fill(t, use, m->first, m->pages, error);
		runs = result ? 0 : count_runs(m);
	}
	if (!result)
		result = take_maps(m, runs, error);
	return result ? result : map_runs(m, runs, error);
}

static int map_lazy(struct hp_thread *t, struct hp_mapping *m, hp_error *error)
{
	struct hp_file_use use = {hp_file_at(t->pool, m->file), m->file};
	sigset_t saved;
	uint32_t chunks = (m->first + m->pages - 1) / HP_REGION_FRAMES - m->first / HP_REGION_FRAMES + 1;
	int result = hp_handler_install();

	if (result)
		return hp_fail(error, result, HP_LIMIT_NONE, "the SIGSEGV handler could not be installed");
	/* In the worst order of touches every second page is mapped by itself, and then all the others. */
	result = take_maps(m, (uint64_t)m->pages + 1, error);
	if (result)
		return result;
	m->mapped = calloc(hp_bitmap_words(m->pages), sizeof(uint64_t));
	m->chunk_mapped = calloc(chunks, sizeof(uint16_t));
	if (!m->mapped || !m->chunk_mapped)
		return hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "no memory to note which pages are mapped");
	result = reserve_addresses(m, hp_bytes(m->first) & (alignment_for(m) - 1), error);
	if (result)
		return result;
	/* Last, because a promise stays with the file. */
	hp_signals_block(&saved);
	result = hp_reserve_promise(t, use, m->first, m->pages, &saved, error);
	hp_signals_restore(&saved);
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

static int add_record(struct hp_thread *t, struct hp_mapping *m)
{
	struct hp_vma_record facts = hp_mapping_facts(m, m->pool->process);

	return hp_vma_add(t, m->file, &facts, &m->vma);
}

/* Faults never saw it, or see it no more. */
static void forget(struct hp_thread *t, struct hp_mapping *m)
{
	if (m->maps)
		hp_maps_give(m->pool->os, m->maps);
	if (m->vma && t)
		hp_vma_remove(t, m->vma);
	free(hp_unatomic(m->mapped));
	free(hp_unatomic(m->chunk_mapped));
}

static int map_file(struct hp_thread *t, struct hp_mapping *m, hp_error *error)
{
	int result = add_record(t, m);

	if (result == -ENOMEM) {
		hp_pool_reap(t); /* or somebody else does */
		result = add_record(t, m);
	}
	if (result == -EINVAL)
		return hp_fail(error, result, HP_LIMIT_NONE,
		               "the file has been cut meanwhile: the range lies beyond it");
	if (result)
		return hp_fail(error, -ENOMEM, HP_LIMIT_TABLE, "the pool has %u mappings already", HP_VMAS_MAX - 1);
	hp_intent_begin(t->intents, HP_INTENT_MAP, m->vma, m->first, m->pages);
	result = m->flags & HP_MAP_LAZY ? map_lazy(t, m, error) : map_ready(t, m, error);
	if (!result)
		result = publish(t, m, error);
	if (result)
		forget(t, m);
	hp_intent_end(t->intents);
	return result;
}

int hp_map(hp_file file, uint64_t offset, uint64_t length, unsigned prot, unsigned flags, void **address,
           hp_error *error)
{
	struct hp_file_use use;
	struct hp_mapping *m;
	struct hp_thread *t;
	uint32_t first, pages;
	int result = hp_file_enter(file, &t, &use, error);

	if (result)
		return result;
	if (prot & ~(HP_PROT_READ | HP_PROT_WRITE) || !(prot & HP_PROT_READ))
		result = hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		                 "hp_map: prot is HP_PROT_READ, with HP_PROT_WRITE or without");
	else if (flags & ~HP_MAP_LAZY)
		result = hp_fail(error, -EINVAL, HP_LIMIT_NONE, "hp_map: unknown flags 0x%x", flags & ~HP_MAP_LAZY);
	else
		result = hp_file_range(use.record, offset, length, &first, &pages, error);
	m = result ? NULL : calloc(1, sizeof(*m));
	if (!result && !m)
		result = hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "no memory to note the mapping");
	if (!result) {
		m->pool = t->pool;
		m->file = use.number;
		m->first = first;
		m->pages = pages;
		m->length = length;
		m->prot = prot;
		m->flags = flags;
		hp_rwsem_read_lock(&hp_space.fork_gate, hp_space_locker(), HP_CLASS_FORK);
		result = map_file(t, m, error);
		hp_rwsem_read_unlock(&hp_space.fork_gate, hp_space_locker());
		if (result)
			free(m);
		else
			*address = (void *)m->start;
	}
	hp_file_put(t, use.number);
	return result;
}

/* ---- hp_unmap --------------------------------------------------------------------------------------------------- */

/* Waits for all readers, then frees a detached list. */
static void reclaim(void *retired)
{
	hp_mutex_lock(&hp_space.grace_lock, hp_space_locker(), HP_CLASS_GRACE);
	hp_epoch_synchronize(&hp_space.epoch);
	hp_mutex_unlock(&hp_space.grace_lock, hp_space_locker());
	hp_range_map_free(retired);
}

/*
 * Takes the mapping out of the map; its memory stays until it is retired. *t: the thread's part in its pool, NULL in a
 * child that is not a member, where the kernel's mapping goes and there are no books.
 */
static int withdraw(void *address, uint64_t length, struct hp_mapping **mapping, struct hp_thread **t)
{
	struct hp_mapping *m;
	void *removed = NULL;
	int result = -EINVAL;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	m = hp_range_map_find(&hp_space.ranges, (uintptr_t)address);
	if (m && m->start == (uintptr_t)address && m->length == length) {
		result = hp_thread_enter(m->pool, t);
		if (result == -ECHILD)
			*t = NULL;
		if (!result || result == -ECHILD)
			result = hp_range_map_remove(&hp_space.ranges, m->start, &removed);
	}
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	*mapping = removed;
	return result;
}

/* Retires the mapping, and frees what has waited when it has become much. */
static void retire(struct hp_mapping *m)
{
	void *retired = NULL;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	remember_address(m->start, m->length);
	hp_range_map_retire(&hp_space.ranges, m);
	if (hp_space.ranges.retired_count >= RETIRED_MAX)
		retired = hp_range_map_take_retired(&hp_space.ranges);
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	if (retired)
		reclaim(retired);
}

/* The kernel refused to unmap it: it is a mapping as before. */
static void put_back(struct hp_mapping *m)
{
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	if (hp_range_map_insert(&hp_space.ranges, m->start, m->start + m->length, m))
		hp_log(HP_LOG_ERROR, "the kernel did not unmap 0x%lx, and there is no memory to note that", m->start);
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
}

/* Signals are as the caller had them; the fork gate is held for reading. */
static int unmap_file(void *address, uint64_t length)
{
	struct hp_mapping *m;
	struct hp_thread *t;
	int result = withdraw(address, length, &m, &t);

	if (result)
		return result;
	if (t)
		hp_intent_begin(t->intents, HP_INTENT_UNMAP, m->vma, m->first, m->pages);
	if (m->flags & HP_MAP_LAZY)
		reclaim(NULL);
	result = m->pool->os->ops->unmap(m->pool->os, address, length);
	if (result)
		put_back(m);
	else
		forget(t, m);
	if (t)
		hp_intent_end(t->intents);
	if (!result)
		retire(m);
	return result;
}

int hp_unmap(void *address, uint64_t length)
{
	int result;

	hp_process_is_known(); /* the gate is the parent's until then */
	hp_rwsem_read_lock(&hp_space.fork_gate, hp_space_locker(), HP_CLASS_FORK);
	result = unmap_file(address, length);
	hp_rwsem_read_unlock(&hp_space.fork_gate, hp_space_locker());
	return result;
}

/* ---- hp_populate ------------------------------------------------------------------------------------------------ */

/* A part of at most one chunk: signals are not held off, nor those who unmap, for as long as a large range takes. */
static int populate_part(uintptr_t start, uint64_t length, uint64_t *done)
{
	struct hp_epoch_section section;
	struct hp_mapping *m;
	struct hp_thread *t;
	sigset_t saved;
	int result = 0;

	hp_signals_block(&saved);
	section = hp_epoch_enter(&hp_space.epoch);
	m = hp_range_map_find(&hp_space.ranges, start);
	if (!m || length > m->length - (start - m->start)) {
		result = -EINVAL;
	} else if (!(m->flags & HP_MAP_LAZY)) {
		*done = length;
	} else {
		uint32_t page = m->first + (uint32_t)hp_frames(start - m->start);
		uint32_t pages = (uint32_t)hp_min(hp_frames(length), HP_REGION_FRAMES - page % HP_REGION_FRAMES);

		*done = hp_bytes(pages);
		result = hp_thread_enter_blocked(m->pool, &t);
		if (!result)
			result = hp_mapping_populate(t, m, page, pages);
	}
	hp_epoch_leave(&hp_space.epoch, section);
	hp_signals_restore(&saved);
	return result;
}

int hp_populate(void *address, uint64_t length)
{
	uintptr_t start = (uintptr_t)address;
	uint64_t done = 0;
	int result = 0;

	if (!hp_is_frame_aligned(start) || !hp_is_frame_aligned(length) || length == 0)
		return -EINVAL;
	hp_process_is_known(); /* the epoch is the parent's until then */
	for (; length && !result; start += done, length -= done)
		result = populate_part(start, length, &done);
	return result;
}
