/* SPDX-License-Identifier: MIT */
/*
 * Pins: pages of movable files that devices, or calls under way, hold by their addresses.
 *
 * They are this process's own: a page that another process maps is not moved anyhow. Few at a time are expected: a list
 * sorted by address, under the space lock, which a move holds too.
 */
#include "space/space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct pin {
	uintptr_t address; /* of a page */
	const struct hp_pool_view *view;
	uint32_t file, page;
	uint32_t count;
};

static struct pin *pins;
static size_t pin_count, pin_room;

/* The first pin at an address or behind it. */
static size_t find_locked(uintptr_t address)
{
	size_t low = 0, high = pin_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (pins[middle].address < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Room for so many more. */
static int make_room_locked(size_t more)
{
	size_t room = pin_count + more > 2 * pin_room ? pin_count + more : 2 * pin_room;
	struct pin *larger;

	if (pin_count + more <= pin_room)
		return 0;
	larger = realloc(pins, room * sizeof(*pins));
	if (!larger)
		return -ENOMEM;
	pins = larger;
	pin_room = room;
	return 0;
}

/* There is room. */
static void pin_locked(const struct hp_mapping *m, uintptr_t address)
{
	size_t at = find_locked(address);

	if (at == pin_count || pins[at].address != address) {
		memmove(&pins[at + 1], &pins[at], (pin_count - at) * sizeof(*pins));
		pins[at] =
			(struct pin){address, m->pool, m->file, m->first + (uint32_t)hp_frames(address - m->start), 0};
		pin_count++;
	}
	pins[at].count++;
}

static void remove_locked(size_t first, size_t end)
{
	memmove(&pins[first], &pins[end], (pin_count - end) * sizeof(*pins));
	pin_count -= end - first;
}

bool hp_page_is_pinned(const struct hp_pool_view *view, uint32_t file, uint32_t page)
{
	for (size_t i = 0; i < pin_count; i++)
		if (pins[i].view == view && pins[i].file == file && pins[i].page == page)
			return true;
	return false;
}

void hp_pins_drop_locked(uintptr_t start, uintptr_t end)
{
	if (pin_count)
		remove_locked(find_locked(start), find_locked(end));
}

void hp_pins_reset(void)
{
	pin_count = 0;
}

/* ---- hp_pin and hp_unpin ---------------------------------------------------------------------------------------- */

/* The pages that [start, end) has a part of are inside one mapping. NULL: they are not. */
static const struct hp_mapping *mapping_locked(uintptr_t start, uintptr_t end)
{
	struct hp_mapping *m = hp_range_map_find(&hp_space.ranges, start);

	return m && !m->gone && end <= m->start + m->length ? m : NULL;
}

static bool is_movable(const struct hp_mapping *m)
{
	return hp_mapping_file(m).record->flags & HP_FILE_MOVABLE;
}

static int pin_range_locked(uintptr_t start, uintptr_t end)
{
	const struct hp_mapping *m = mapping_locked(start, end);
	int result;

	if (!m)
		return -EINVAL;
	if (!is_movable(m))
		return 0;
	result = make_room_locked(hp_frames(end - start));
	for (uintptr_t at = start; !result && at < end; at += HP_FRAME_SIZE)
		pin_locked(m, at);
	return result;
}

static int unpin_range_locked(uintptr_t start, uintptr_t end)
{
	const struct hp_mapping *m = mapping_locked(start, end);
	size_t first = find_locked(start), pages = hp_frames(end - start);

	if (!m)
		return -EINVAL;
	if (!is_movable(m))
		return 0;
	/* All of them, or none is changed. */
	if (first + pages > pin_count || pins[first].address != start ||
	    pins[first + pages - 1].address != end - HP_FRAME_SIZE)
		return -EINVAL;
	for (size_t i = first + pages; i-- > first;)
		if (--pins[i].count == 0)
			remove_locked(i, i + 1);
	return 0;
}

static int change(const void *address, uint64_t length, int (*change_locked)(uintptr_t start, uintptr_t end))
{
	uintptr_t start = (uintptr_t)address, end = start + length;
	int result;

	if (!length || end < start || end > UINTPTR_MAX - HP_FRAME_SIZE)
		return -EINVAL;
	start &= ~(HP_FRAME_SIZE - 1);
	end = hp_align_up(end, HP_FRAME_SIZE);
	hp_space_enter();
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	result = change_locked(start, end);
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	hp_space_leave();
	return result;
}

int hp_pin(const void *address, uint64_t length)
{
	uintptr_t start = (uintptr_t)address & ~(HP_FRAME_SIZE - 1);
	int result = change(address, length, pin_range_locked);

	if (result)
		return result;
	/* Pinned first: a page that is mapped is not moved from then on. */
	result = hp_populate((void *)start, hp_align_up((uintptr_t)address + length - start, HP_FRAME_SIZE));
	if (result)
		hp_unpin(address, length);
	return result;
}

int hp_unpin(const void *address, uint64_t length)
{
	return change(address, length, unpin_range_locked);
}
