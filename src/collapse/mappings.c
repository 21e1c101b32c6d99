/* SPDX-License-Identifier: MIT */
#include "collapse/mappings.h"

#include "base/log.h"
#include "pool/base.h"

typedef int visitor(const struct hp_mapping *m, void *at, uint32_t page, void *context);

/* A record of the file's list as a mapping of this process that has the page; NULL: it is none, or is none yet. */
static struct hp_mapping *mapping_of(const struct hp_vma_record *vma, uint32_t number, uint32_t page)
{
	struct hp_mapping *m = hp_range_map_find(&hp_space.ranges, vma->address + hp_bytes(page - vma->first));

	return m && m->vma == number && !atomic_load(&m->moving) ? m : NULL;
}

static bool covers(const struct hp_vma_record *vma, uint32_t page)
{
	return page >= vma->first && page - vma->first < vma->pages;
}

bool hp_mappings_are_ours(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page)
{
	if (page < atomic_load(&use.record->unlisted))
		return false;
	for (uint32_t number = use.record->vma_head; number; number = hp_vma_at(view, number)->next) {
		const struct hp_vma_record *vma = hp_vma_at(view, number);

		if (covers(vma, page) &&
		    (atomic_load(&vma->process) != view->process || !mapping_of(vma, number, page)))
			return false;
	}
	return true;
}

/* Calls `visit` for each mapping of ours that has the page mapped, with its address there. Ends where it fails. */
static int for_each(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page, void *context,
                    visitor *visit)
{
	int result = 0;

	for (uint32_t number = use.record->vma_head; number && !result; number = hp_vma_at(view, number)->next) {
		const struct hp_vma_record *vma = hp_vma_at(view, number);
		const struct hp_mapping *m = covers(vma, page) ? mapping_of(vma, number, page) : NULL;

		/* What was not touched, or lies beyond the reach, is not mapped. */
		if (m && page - m->first < atomic_load(&m->reach) && hp_touched_test(m->touched, page))
			result = visit(m, hp_mapping_at(m, page), page, context);
	}
	return result;
}

static int protect(const struct hp_mapping *m, void *at, uint32_t page, void *context)
{
	struct hp_os *os = m->pool->os;

	(void)page;
	(void)context;
	return m->prot & HP_PROT_WRITE ? os->ops->protect(os, at, HP_FRAME_SIZE, HP_PROT_READ) : 0;
}

static int unprotect(const struct hp_mapping *m, void *at, uint32_t page, void *context)
{
	struct hp_os *os = m->pool->os;

	(void)page;
	(void)context;
	if (m->prot & HP_PROT_WRITE && os->ops->protect(os, at, HP_FRAME_SIZE, m->prot)) {
		/* It becomes one that was not touched: the next store maps it anew. */
		hp_touched_clear(m->touched, page, page + 1);
		os->ops->vacate(os, at, HP_FRAME_SIZE);
	}
	return 0;
}

static int place(const struct hp_mapping *m, void *at, uint32_t page, void *context)
{
	hp_frame_id frame = *(const hp_frame_id *)context;
	struct hp_os *os = m->pool->os;
	unsigned populate = hp_is_base(m->pool, frame) ? 0 : HP_OS_MAP_POPULATE;

	if (!hp_mapping_place(m, page, 1, frame, HP_OS_MAP_REPLACE | populate))
		return 0;
	hp_touched_clear(m->touched, page, page + 1);
	if (os->ops->vacate(os, at, HP_FRAME_SIZE))
		hp_log(HP_LOG_ERROR,
		       "page %u of a mapping at 0x%lx may have lost its address: the kernel refuses to map", page,
		       m->start);
	return 0;
}

static int note_source(const struct hp_mapping *m, void *at, uint32_t page, void *context)
{
	(void)page;
	if (m->prot & HP_PROT_READ)
		*(const void **)context = at;
	return 0;
}

const void *hp_mappings_source(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page)
{
	const void *source = NULL;

	for_each(view, use, page, &source, note_source);
	return source;
}

int hp_mappings_protect(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page)
{
	int result = for_each(view, use, page, NULL, protect);

	if (result)
		hp_mappings_unprotect(view, use, page);
	return result;
}

void hp_mappings_unprotect(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page)
{
	for_each(view, use, page, NULL, unprotect);
}

void hp_mappings_switch(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page, hp_frame_id frame)
{
	for_each(view, use, page, &frame, place);
}
