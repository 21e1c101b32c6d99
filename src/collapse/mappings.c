/* SPDX-License-Identifier: MIT */
#include "collapse/mappings.h"

#include "pool/base.h"

typedef int visitor(struct hp_mapping *m, void *at, uint32_t page, void *context);

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
		struct hp_mapping *m = covers(vma, page) ? mapping_of(vma, number, page) : NULL;

		/* What was not touched, or lies beyond the reach, is not mapped. */
		if (m && page - m->first < atomic_load(&m->reach) && hp_touched_test(m->touched, page))
			result = visit(m, hp_mapping_at(m, page), page, context);
	}
	return result;
}

static int protect(struct hp_mapping *m, void *at, uint32_t page, void *context)
{
	struct hp_os *os = m->pool->os;

	(void)page;
	(void)context;
	return m->prot & HP_PROT_WRITE ? os->ops->protect(os, at, HP_FRAME_SIZE, HP_PROT_READ) : 0;
}

static int unprotect(struct hp_mapping *m, void *at, uint32_t page, void *context)
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

static int unstage(struct hp_mapping *m, void *at, uint32_t page, void *context)
{
	struct hp_os *os = m->pool->os;

	(void)at;
	(void)page;
	(void)context;
	if (m->staged)
		os->ops->unmap(os, (void *)m->staged, HP_FRAME_SIZE);
	m->staged = 0;
	return 0;
}

static int stage(struct hp_mapping *m, void *at, uint32_t page, void *context)
{
	hp_frame_id frame = *(const hp_frame_id *)context;
	unsigned flags = HP_OS_MAP_REPLACE | (hp_is_base(m->pool, frame) ? 0 : HP_OS_MAP_POPULATE);
	struct hp_os *os = m->pool->os;
	struct hp_mapping scratch = *m;
	void *address;
	int result = os->ops->reserve(os, HP_FRAME_SIZE, HP_FRAME_SIZE, 0, &address);

	(void)at;
	if (result)
		return result;
	m->staged = scratch.start = (uintptr_t)address;
	scratch.first = page;
	return hp_mapping_place(&scratch, page, 1, frame, flags);
}

static int put_in_place(struct hp_mapping *m, void *at, uint32_t page, void *context)
{
	struct hp_os *os = m->pool->os;

	if (os->ops->move(os, (void *)m->staged, at, HP_FRAME_SIZE)) {
		unstage(m, at, page, NULL);
		/* It becomes one that was not touched, or else keeps what it has. */
		if (os->ops->vacate(os, at, HP_FRAME_SIZE))
			*(bool *)context = false;
		else
			hp_touched_clear(m->touched, page, page + 1);
	}
	m->staged = 0;
	return 0;
}

static int note_source(struct hp_mapping *m, void *at, uint32_t page, void *context)
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

int hp_mappings_stage(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page, hp_frame_id frame)
{
	int result = for_each(view, use, page, &frame, stage);

	if (result)
		for_each(view, use, page, NULL, unstage);
	return result;
}

bool hp_mappings_switch(const struct hp_pool_view *view, struct hp_file_use use, uint32_t page)
{
	bool all = true;

	for_each(view, use, page, &all, put_in_place);
	return all;
}
