/* SPDX-License-Identifier: MIT */
#include "file/copy.h"

#include "file/moving.h"

#include "base/error.h"
#include "pool/base.h"
#include "pool/hole.h"

#include <errno.h>
#include <string.h>

uint32_t hp_file_next_present(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t end)
{
	uint64_t section = hp_section_enter(&t->locker);
	uint32_t next = hp_index_next_page(hp_file_index(t->pool, use.record), page, end);

	hp_section_leave(&t->locker, section);
	return next;
}

/* ---- one page --------------------------------------------------------------------------------------------------- */

/* Bytes of one page that is there: what is done with them, and with what. */
struct work {
	struct hp_thread *t;
	hp_frame_id frame;
	char *address;
	uint64_t length;
	void *to;
	const void *from;
	bool keep; /* memory that is zeroed is kept */
};

typedef void work_fn(const struct work *work);

static void load(const struct work *work)
{
	work->t->pool->os->ops->load(work->t->pool->os, work->address, work->to, work->length);
}

static void store(const struct work *work)
{
	work->t->pool->os->ops->store(work->t->pool->os, work->address, work->from, work->length);
}

/* Whole base pages go back to the kernel where the page has a place for them. */
static void clear_pages(const struct work *work, uint64_t in_frame, uint64_t length)
{
	struct hp_pool_view *view = work->t->pool;
	struct hp_os *os = view->os;
	uint64_t offset;
	unsigned segment = hp_segment_of(view, work->frame, &offset);

	if (work->keep || !hp_is_base(view, work->frame) ||
	    os->ops->segment_punch(os, view->segment[segment], offset + in_frame, length))
		os->ops->zero(os, work->address - (uintptr_t)work->address % HP_FRAME_SIZE + in_frame, length);
	else
		hp_huge_set(view, work->frame, 1, false);
}

static void clear(const struct work *work)
{
	static const char zeroes[HP_BASE_PAGE_SIZE];
	uint64_t start = (uintptr_t)work->address % HP_FRAME_SIZE, end = start + work->length;
	uint64_t first = hp_align_up(start, HP_BASE_PAGE_SIZE), last = end & ~(HP_BASE_PAGE_SIZE - 1);
	struct hp_os *os = work->t->pool->os;

	if (first > last) { /* inside of one base page */
		os->ops->store(os, work->address, zeroes, work->length);
		return;
	}
	if (start < first)
		os->ops->store(os, work->address, zeroes, first - start);
	if (first < last)
		clear_pages(work, first, last - first);
	if (last < end)
		os->ops->store(os, work->address + (last - start), zeroes, end - last);
}

/*
 * Finds the page, and acts on it. The file lock is held for reading. -ENXIO beyond the end; -EAGAIN: absent; -EBUSY: it
 * is being moved and cannot be changed.
 */
static int act_locked(struct hp_thread *t, struct hp_file_use use, uint64_t offset, struct work *work, work_fn *run)
{
	uint32_t page = (uint32_t)hp_frames(offset);
	int result;

	if (page >= atomic_load(&use.record->pages))
		return -ENXIO;
	if (run != load && hp_file_is_moving(use.record, page))
		return -EBUSY;
	work->frame = hp_index_lookup(hp_file_index(t->pool, use.record), page);
	if (work->frame == HP_NO_FRAME)
		return -EAGAIN;
	work->address = hp_direct(t->pool, work->frame);
	if (!work->address)
		return -EFAULT;
	result = hp_file_refill_locked(t, use, work->frame);
	if (result)
		return result;
	work->address += offset % HP_FRAME_SIZE;
	run(work);
	return 0;
}

static int act(struct hp_thread *t, struct hp_file_use use, uint64_t offset, struct work work, work_fn *run)
{
	sigset_t saved;
	int result;

	work.t = t;
	for (;;) {
		hp_signals_block(&saved);
		hp_biased_read_lock(&use.record->lock, &t->locker, HP_CLASS_FILE);
		result = act_locked(t, use, offset, &work, run);
		hp_biased_read_unlock(&use.record->lock, &t->locker);
		hp_signals_restore(&saved);
		if (result != -EBUSY)
			return result;
		hp_file_await_move(t, use, (uint32_t)hp_frames(offset));
	}
}

int hp_file_load(struct hp_thread *t, struct hp_file_use use, uint64_t offset, void *to, uint64_t length)
{
	int result = act(t, use, offset, (struct work){.to = to, .length = length}, load);

	if (result == -EAGAIN)
		memset(to, 0, length);
	return result == -EAGAIN ? 0 : result;
}

int hp_file_store(struct hp_thread *t, struct hp_file_use use, uint64_t offset, const void *from, uint64_t length)
{
	int result;

	while ((result = act(t, use, offset, (struct work){.from = from, .length = length}, store)) == -EAGAIN) {
		result = hp_file_fill(t, use, (uint32_t)hp_frames(offset), 1, HP_FILL_PLACES, NULL);
		if (result)
			return result == -EINVAL ? -ENXIO : result;
	}
	return result;
}

int hp_file_clear(struct hp_thread *t, struct hp_file_use use, uint64_t offset, uint64_t length, bool keep)
{
	int result = act(t, use, offset, (struct work){.length = length, .keep = keep}, clear);

	/* Absent: somebody took the page away meanwhile. A hole whose memory does not come back has none to be zeroed. */
	return result == -EAGAIN || result == -ENOMEM ? 0 : result;
}

/* ---- read and write --------------------------------------------------------------------------------------------- */

typedef int copy_piece(struct hp_thread *t, struct hp_file_use use, uint64_t offset, char *user, uint64_t length);

static int read_piece(struct hp_thread *t, struct hp_file_use use, uint64_t offset, char *user, uint64_t length)
{
	char piece[HP_COPY_PIECE];
	int result = hp_file_load(t, use, offset, piece, length);

	if (!result)
		memcpy(user, piece, length);
	return result;
}

static int write_piece(struct hp_thread *t, struct hp_file_use use, uint64_t offset, char *user, uint64_t length)
{
	char piece[HP_COPY_PIECE];

	memcpy(piece, user, length);
	return hp_file_store(t, use, offset, piece, length);
}

/* Returns how many bytes were copied before the end or the first error, which is returned if there are none. */
static int64_t copy(hp_file file, uint64_t offset, char *user, uint64_t length, copy_piece *piece)
{
	uint64_t done = 0, size;
	struct hp_file_use use;
	struct hp_thread *t;
	int result = hp_file_enter(file, &t, &use, NULL);

	if (result)
		return result;
	size = hp_bytes(atomic_load(&use.record->pages));
	length = offset < size ? hp_min(hp_min(length, size - offset), INT64_MAX) : 0;
	while (done < length && !result) {
		uint64_t at = offset + done, in_frame = HP_FRAME_SIZE - at % HP_FRAME_SIZE;
		uint64_t part = hp_min(hp_min(length - done, HP_COPY_PIECE), in_frame);

		result = piece(t, use, at, user + done, part);
		if (!result)
			done += part;
	}
	hp_file_put(t, use.number);
	if (done || !result || result == -ENXIO)
		return (int64_t)done;
	return result == -EFAULT ? -ENOMEM : result;
}

int64_t hp_file_read(hp_file file, uint64_t offset, void *buffer, uint64_t length)
{
	return copy(file, offset, buffer, length, read_piece);
}

int64_t hp_file_write(hp_file file, uint64_t offset, const void *buffer, uint64_t length)
{
	return copy(file, offset, (char *)(uintptr_t)buffer, length, write_piece);
}
