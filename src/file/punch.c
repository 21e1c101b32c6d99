/* SPDX-License-Identifier: MIT */
/* Punching: a range reads as zeroes again. */
#include "file/copy.h"
#include "file/remove.h"

#include "base/error.h"
#include "pool/hole.h"

#include <errno.h>

/* Zeroes bytes of one page, or more, where they are. What is absent is zero. */
static int zero_bytes(struct hp_thread *t, struct hp_file_use use, uint64_t offset, uint64_t end, bool keep)
{
	int result = 0;

	while (offset < end && !result) {
		uint64_t length = hp_min(end - offset, HP_FRAME_SIZE - offset % HP_FRAME_SIZE);
		uint64_t there = hp_bytes(
			hp_file_next_present(t, use, (uint32_t)hp_frames(offset), (uint32_t)hp_frames_up(end)));

		if (there > offset)
			length = hp_min(there, end) - offset;
		else
			result = hp_file_clear(t, use, offset, length, keep);
		offset += length;
	}
	return result == -ENXIO ? 0 : result; /* it has been cut meanwhile */
}

/* Whole frames are given back, or zeroed. *uncovered: see hp_holes_punch(). */
static int punch(struct hp_thread *t, struct hp_file_use use, uint64_t offset, uint64_t end, unsigned flags,
                 uint64_t *uncovered)
{
	uint64_t unit = hp_unit(t->pool), first = hp_align_up(hp_frames_up(offset), unit),
		 last = hp_frames(end) & ~(unit - 1);
	int result;

	if (flags & HP_PUNCH_KEEP || first >= last)
		return zero_bytes(t, use, offset, end, flags & HP_PUNCH_KEEP);
	result = zero_bytes(t, use, offset, hp_bytes(first), false);
	if (!result)
		result = hp_file_remove(t, use, (uint32_t)first, (uint32_t)last, uncovered);
	return result ? result : zero_bytes(t, use, hp_bytes(last), end, false);
}

static int explain(int result, uint64_t uncovered, hp_error *error)
{
	if (result == -ENOMEM)
		return hp_fail(
			error, result, HP_LIMIT_TABLE,
			"the index has no room to divide a run of 1 GiB: part of the range may be as it was; close "
			"files or give the pool a larger max_size");
	if (result)
		return hp_fail(error, result, HP_LIMIT_MEMORY,
		               "the kernel does not map the pool's memory, so that part of the range is as it was "
		               "(errno %d); see vm.max_map_count and RLIMIT_AS",
		               -result);
	if (uncovered)
		return hp_fail(
			error, -ENOSPC, HP_LIMIT_KERNEL_POOL,
			"the range is punched, but others took the kernel's huge pages and %lu of its holes have "
			"none: a touch of these is SIGBUS until /proc/sys/vm/nr_hugepages is raised or the pages "
			"come back",
			uncovered);
	return 0;
}

int hp_file_punch(hp_file file, uint64_t offset, uint64_t length, unsigned flags, hp_error *error)
{
	uint64_t uncovered = 0, size;
	struct hp_file_use use;
	struct hp_thread *t;
	int result = hp_file_enter(file, &t, &use, error);

	if (result)
		return result;
	size = hp_bytes(atomic_load(&use.record->pages));
	if (flags & ~HP_PUNCH_KEEP)
		result = hp_fail(error, -EINVAL, HP_LIMIT_NONE, "hp_file_punch: unknown flags 0x%x", flags);
	else if (length == 0)
		result = hp_fail(error, -EINVAL, HP_LIMIT_NONE, "length is 0");
	else if (offset < size) {
		result = punch(t, use, offset, offset + hp_min(length, size - offset), flags, &uncovered);
		hp_holes_settle(t);
		result = explain(result, uncovered, error);
	}
	hp_file_put(t, use.number);
	return result;
}
