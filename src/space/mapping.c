/* SPDX-License-Identifier: MIT */
/* What mappings are made of: records, kernel mappings, addresses. */
#include "space/space.h"

#include "base/error.h"
#include "os/budget.h"
#include "pool/extent.h"

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

/* ---- records ---------------------------------------------------------------------------------------------------- */

struct hp_mapping *hp_mapping_new(struct hp_pool_view *view, uint32_t file, uint32_t first, uint32_t pages,
                                  unsigned prot, unsigned flags)
{
	struct hp_mapping *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	m->pool = view;
	m->file = file;
	m->first = first;
	m->pages = pages;
	m->length = hp_bytes(pages);
	m->prot = prot;
	m->flags = flags;
	atomic_store(&m->reach, pages);
	return m;
}

struct hp_vma_record hp_mapping_facts(const struct hp_mapping *m, uint32_t process)
{
	return (struct hp_vma_record){.process = process,
	                              .first = m->first,
	                              .pages = m->pages,
	                              .reach = atomic_load(&m->reach),
	                              .prot = m->prot,
	                              .flags = m->flags,
	                              .address = m->start};
}

static int add_record(struct hp_thread *t, struct hp_mapping *m)
{
	struct hp_vma_record facts = hp_mapping_facts(m, m->pool->process);

	return hp_vma_add(t, m->file, &facts, &m->vma);
}

int hp_mapping_register(struct hp_thread *t, struct hp_mapping *m, hp_error *error)
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
	return 0;
}

void hp_mapping_forget(struct hp_thread *t, struct hp_mapping *m)
{
	if (m->maps)
		hp_maps_give(m->pool->os, m->maps);
	m->maps = 0;
	if (m->vma && t)
		hp_vma_remove(t, m->vma);
	m->vma = 0;
}

int hp_mapping_take_maps(struct hp_mapping *m, uint64_t maps, hp_error *error)
{
	struct hp_os *os = m->pool->os;

	if (hp_maps_take(os, maps))
		return hp_fail(error, -ENOMEM, HP_LIMIT_MAP_COUNT,
		               "the mapping may need %lu kernel mappings, and hugepool uses %lu of at most %lu; raise "
		               "vm.max_map_count or map less at once",
		               maps, hp_maps_taken(os), hp_maps_max(os));
	m->maps += maps;
	return 0;
}

/* ---- kernel mappings -------------------------------------------------------------------------------------------- */

uint64_t hp_mapping_alignment(const struct hp_mapping *m)
{
	if (hp_unit(m->pool) > 1)
		return HP_REGION_SIZE; /* the kernel wants it */
	return m->length >= HP_REGION_SIZE && m->pool->shared->table_sharing ? HP_REGION_SIZE : HP_FRAME_SIZE;
}

int hp_mapping_reserve(struct hp_mapping *m, uint64_t skew, hp_error *error)
{
	struct hp_os *os = m->pool->os;
	void *address;
	int result = os->ops->reserve(os, m->length, hp_mapping_alignment(m), skew, &address);

	if (result)
		return hp_fail(error, result, HP_LIMIT_ADDRESS, "no free range of %lu bytes of addresses (errno %d)",
		               m->length, -result);
	m->start = (uintptr_t)address;
	return 0;
}

int hp_mapping_place(const struct hp_mapping *m, uint32_t page, uint32_t pages, hp_frame_id frame, unsigned os_flags)
{
	struct hp_os *os = m->pool->os;
	uint64_t offset;
	unsigned segment = hp_segment_of(m->pool, frame, &offset);

	HP_ASSERT(offset + hp_bytes(pages) <= hp_bytes(hp_segment_frames(m->pool->shared)));
	return os->ops->map(os, hp_mapping_at(m, page), hp_bytes(pages), m->prot, m->pool->segment[segment], offset,
	                    os_flags);
}

uint32_t hp_mapping_run(struct hp_thread *t, const struct hp_mapping *m, uint32_t page, hp_frame_id *frame)
{
	struct hp_index index = hp_file_index(m->pool, hp_file_at(m->pool, m->file));
	uint64_t section = hp_section_enter(&t->locker);
	uint32_t run = hp_index_run(index, page, hp_mapping_end(m) - page);

	*frame = hp_index_lookup(index, page);
	hp_section_leave(&t->locker, section);
	/* Numbers go on from one segment to the next; memory does not. */
	return run ? (uint32_t)hp_min(run, hp_segment_end(m->pool, *frame) - *frame) : 0;
}

uint32_t hp_mapping_runs(struct hp_thread *t, const struct hp_mapping *m)
{
	uint32_t runs = 0;
	hp_frame_id frame;

	for (uint32_t page = m->first, run; page < hp_mapping_end(m); page += run, runs++) {
		run = hp_mapping_run(t, m, page, &frame);
		if (!run)
			return 0;
	}
	return runs;
}

#define POPULATE_FRAMES 512u /* kernel mappings up to this size get their page table at once */

unsigned hp_mapping_populate_flag(const struct hp_mapping *m, uint32_t frames)
{
	return frames <= POPULATE_FRAMES && hp_mapping_alignment(m) == HP_FRAME_SIZE ? HP_OS_MAP_POPULATE : 0;
}

int hp_mapping_place_runs(struct hp_thread *t, const struct hp_mapping *m, uint32_t page, uint32_t end)
{
	int result = 0;

	for (uint32_t run; page < end && !result; page += run) {
		hp_frame_id frame;

		run = (uint32_t)hp_min(hp_mapping_run(t, m, page, &frame), end - page);
		if (!run)
			return -ENXIO; /* the file has been cut meanwhile */
		result = hp_mapping_place(m, page, run, frame, HP_OS_MAP_REPLACE | hp_mapping_populate_flag(m, run));
	}
	return result;
}

int hp_mapping_cut(struct hp_mapping *m, uint32_t page)
{
	const struct hp_arena *arena = &m->pool->arena;
	uint32_t reach = atomic_load(&m->reach), left = page > m->first ? page - m->first : 0;
	struct hp_os *os = m->pool->os;
	int result;

	if (left >= m->pages)
		return 0;
	page = m->first + left;
	result = os->ops->end(os, hp_mapping_at(m, page), hp_bytes(m->pages - left), arena->handle, arena->size);
	if (result)
		return result;
	if (m->touched)
		hp_touched_clear(m->touched, page, hp_mapping_end(m));
	while (reach > left && !atomic_compare_exchange_weak(&m->reach, &reach, left))
		;
	return 0;
}
