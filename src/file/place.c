/* SPDX-License-Identifier: MIT */
#include "file/place.h"

#include "pool/base.h"
#include "pool/extent.h"

/* A chunk's word: 0 not looked for yet, NOWHERE looked for in vain, else the frame plus 1. */
#define NOWHERE UINT32_MAX

static uint32_t chunks_of(uint32_t pages)
{
	return (uint32_t)(((uint64_t)pages + HP_REGION_FRAMES - 1) / HP_REGION_FRAMES);
}

uint64_t hp_place_bytes(uint32_t pages)
{
	return chunks_of(pages) * sizeof(uint32_t);
}

static _Atomic uint32_t *places_of(const struct hp_pool_view *view, const struct hp_file_record *file)
{
	return hp_pages_at(&view->pages, file->place_run);
}

/* Of which the file has some. */
static uint32_t pages_in_chunk(const struct hp_file_record *file, uint32_t chunk)
{
	uint32_t before = chunk * HP_REGION_FRAMES, pages = atomic_load(&file->pages);

	return pages > before ? (uint32_t)hp_min(HP_REGION_FRAMES, pages - before) : 1;
}

/* Finds a place for a chunk: after the one before it if that is free, so that both can be mapped in one piece. */
static uint32_t find_place(struct hp_thread *t, struct hp_file_use use, uint32_t chunk)
{
	_Atomic uint32_t *place = places_of(t->pool, use.record);
	uint32_t before = chunk ? atomic_load_explicit(&place[chunk - 1], memory_order_relaxed) : 0;
	hp_frame_id wish = before && before != NOWHERE ? before - 1 + HP_REGION_FRAMES : HP_NO_FRAME;
	uint32_t pages = pages_in_chunk(use.record, chunk), expected = 0;
	bool whole = pages == HP_REGION_FRAMES;
	hp_frame_id found = whole ? hp_region_claim(t, use.number, wish) : hp_find_free(t, wish, pages);
	uint32_t value = found == HP_NO_FRAME ? NOWHERE : found + 1;

	if (atomic_compare_exchange_strong(&place[chunk], &expected, value))
		return value;
	if (whole && found != HP_NO_FRAME)
		hp_region_unclaim(t, use.number, found);
	return expected;
}

hp_frame_id hp_place_hint(struct hp_thread *t, struct hp_file_use use, uint32_t page)
{
	uint32_t chunk = page / HP_REGION_FRAMES;
	uint32_t value = atomic_load_explicit(&places_of(t->pool, use.record)[chunk], memory_order_relaxed);

	if (!value)
		value = find_place(t, use, chunk);
	if (value != NOWHERE) {
		hp_frame_id first = value - 1;
		uint64_t frame = (uint64_t)first + page % HP_REGION_FRAMES;

		/* The run that was found may have been shorter than the chunk, at the end of a segment. */
		return frame < hp_segment_end(t->pool, first) ? (hp_frame_id)frame : HP_NO_FRAME;
	}
	if (page % HP_REGION_FRAMES) {
		hp_frame_id neighbour = hp_index_lookup(hp_file_index(t->pool, use.record), page - 1);

		if (neighbour != HP_NO_FRAME && !hp_is_base(t->pool, neighbour) && (neighbour + 1) % HP_REGION_FRAMES)
			return neighbour + 1;
	}
	return HP_NO_FRAME;
}

void hp_place_drop(struct hp_thread *t, struct hp_file_use use)
{
	_Atomic uint32_t *place = places_of(t->pool, use.record);

	for (uint32_t chunk = 0; chunk < chunks_of(atomic_load(&use.record->reach)); chunk++) {
		uint32_t value = atomic_load_explicit(&place[chunk], memory_order_relaxed);

		if (value && value != NOWHERE)
			hp_region_unclaim(t, use.number, value - 1);
	}
}

void hp_place_forget(struct hp_thread *t, struct hp_file_use use, uint32_t page)
{
	uint32_t value = atomic_exchange(&places_of(t->pool, use.record)[page / HP_REGION_FRAMES], 0);

	if (value && value != NOWHERE)
		hp_region_unclaim(t, use.number, value - 1);
}
