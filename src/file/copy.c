/* SPDX-License-Identifier: MIT */
#include "file/copy.h"

#include "base/error.h"
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

/*
 * The address of a byte, whose page is there. The file lock is held for reading. -ENXIO beyond the end; -EAGAIN:
 * absent.
 */
static int find_locked(struct hp_thread *t, struct hp_file_use use, uint64_t offset, char **address)
{
	uint32_t page = (uint32_t)hp_frames(offset);
	hp_frame_id frame;
	int result;

	if (page >= atomic_load(&use.record->pages))
		return -ENXIO;
	frame = hp_index_lookup(hp_file_index(t->pool, use.record), page);
	if (frame == HP_NO_FRAME)
		return -EAGAIN;
	*address = hp_direct(t->pool, frame);
	if (!*address)
		return -EFAULT;
	result = hp_file_refill_locked(t, use, frame);
	*address += offset % HP_FRAME_SIZE;
	return result;
}

/* One way or the other, where the page is there. */
static int copy_present(struct hp_thread *t, struct hp_file_use use, uint64_t offset, void *to, const void *from,
                        uint64_t length)
{
	struct hp_os *os = t->pool->os;
	char *address = NULL;
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	hp_biased_read_lock(&use.record->lock, &t->locker, HP_CLASS_FILE);
	result = find_locked(t, use, offset, &address);
	if (!result && from)
		os->ops->store(os, address, from, length);
	else if (!result)
		os->ops->load(os, address, to, length);
	hp_biased_read_unlock(&use.record->lock, &t->locker);
	hp_signals_restore(&saved);
	return result;
}

int hp_file_load(struct hp_thread *t, struct hp_file_use use, uint64_t offset, void *to, uint64_t length)
{
	int result = copy_present(t, use, offset, to, NULL, length);

	if (result == -EAGAIN)
		memset(to, 0, length);
	return result == -EAGAIN ? 0 : result;
}

int hp_file_store(struct hp_thread *t, struct hp_file_use use, uint64_t offset, const void *from, uint64_t length)
{
	int result;

	while ((result = copy_present(t, use, offset, NULL, from, length)) == -EAGAIN) {
		result = hp_file_fill(t, use, (uint32_t)hp_frames(offset), 1, NULL);
		if (result)
			return result == -EINVAL ? -ENXIO : result;
	}
	return result;
}

int hp_file_clear(struct hp_thread *t, struct hp_file_use use, uint64_t offset, uint64_t length)
{
	static const char zeroes[HP_COPY_PIECE];
	int result = copy_present(t, use, offset, NULL, zeroes, length);

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
