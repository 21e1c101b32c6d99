/* SPDX-License-Identifier: MIT */
#include "base/units.h"
#include "os/sim_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/*
 * A *place* is HP_FRAME_SIZE of the address space; it has a record of what is mapped there.
 *
 * Lock order:
 *     sim->changes                records and segments change
 *         sim->gates[]            held for reading by a touch while it uses a record
 *             sim->budget.lock    pages become present and absent
 *
 * A change of records ends by passing the gates of its places, as the kernel ends one by flushing TLBs: when map, unmap
 * or move returns, no touch uses the old record any more.
 *
 * While the record of a place is COPIED, its contents lie in sim->copies, in the frame with the place's number.
 */

/* A record, from low to high: frame, segment, prot, state. All zero is unmapped. */
#define RECORD_FRAME_MASK UINT64_C(0xffffffff)
#define RECORD_SEGMENT_SHIFT 32
#define RECORD_SEGMENT_MASK UINT64_C(0xffff)
#define RECORD_PROT_SHIFT 48
#define RECORD_PROT_MASK (UINT64_C(3) << RECORD_PROT_SHIFT)
#define RECORD_RESERVED (UINT64_C(1) << 50)
#define RECORD_MAPPED (UINT64_C(1) << 51)
#define RECORD_START (UINT64_C(1) << 52) /* a kernel mapping begins here: there are as many as mappings */
#define RECORD_END (UINT64_C(1) << 53)   /* beyond the end of the control memory; it has no segment */
#define RECORD_PRIVATE (UINT64_C(1) << 54)
#define RECORD_COPIED (UINT64_C(1) << 55) /* its contents are not the segment's any more */

#define ADDRESS_BYTES_DEFAULT (UINT64_C(8) << 40)
#define ADDRESS_BYTES_MAX (UINT64_C(1) << 47)
#define MAP_COUNT_DEFAULT 65530

enum {
	SEGMENTS_MAX = 1024,
	GATES = 16,
	MOVE_SPARE = 3, /* mappings; like the kernel, a move wants room for what it splits on the way */
};

/* Free while memory.frames is 0. The memory stays while a record names it, as that of a closed descriptor does. */
struct segment {
	struct sim_segment memory;
	bool open;       /* by changes; not destroyed yet */
	uint64_t mapped; /* by changes; records that name it */
};

struct sim {
	struct hp_os os;
	struct sim_budget budget;
	uint64_t max_map_count; /* these five never change */
	bool no_thp;
	bool table_sharing;
	uintptr_t base;  /* address of place 0 */
	uint64_t places; /* the first and the last stay unmapped, so that all others have neighbours */

	pthread_rwlock_t gates[GATES];
	pthread_mutex_t changes;
	_Atomic uint64_t *records; /* written under changes */
	struct segment segments[SEGMENTS_MAX];
	unsigned closing;   /* by changes; segments destroyed and still mapped */
	uint64_t hint;      /* by changes; the place after the last reservation */
	uint64_t map_count; /* by changes */

	struct sim_segment copies; /* made by the first private map */
	struct sim_budget copies_budget;
};

struct range {
	uint64_t first; /* place */
	uint64_t count;
};

static struct sim *sim_of(struct hp_os *os)
{
	return (struct sim *)os;
}

/* ---- Control memory -------------------------------------------------------------------------------------------- */

static int sim_control_create(struct hp_os *os, uint64_t size, void **address, hp_segment *handle)
{
	void *memory = size ? sim_sparse_create(size, MAP_SHARED) : NULL;

	if (!memory)
		return size ? -ENOMEM : -EINVAL;
	*address = memory;
	*handle = HP_NO_SEGMENT;
	return 0;
}

static int sim_control_destroy(struct hp_os *os, void *address, uint64_t size, hp_segment handle)
{
	if (size)
		sim_sparse_destroy(address, size);
	return 0;
}

/* ---- Segments -------------------------------------------------------------------------------------------------- */

static struct segment *segment_find_locked(struct sim *sim, hp_segment index)
{
	if (index < 0 || index >= SEGMENTS_MAX || !sim->segments[index].open)
		return NULL;
	return &sim->segments[index];
}

/* Offset and length are multiples of the grain. */
static bool segment_has(const struct segment *segment, uint64_t offset, uint64_t length, uint64_t grain)
{
	uint64_t size = segment->memory.frames * HP_FRAME_SIZE;

	return length && length <= size && offset <= size - length && offset % grain == 0 && length % grain == 0;
}

static int segment_create_locked(struct sim *sim, hp_backing backing, uint64_t frames, hp_segment *index)
{
	for (int i = 0; i < SEGMENTS_MAX; i++) {
		struct segment *segment = &sim->segments[i];

		if (segment->memory.frames)
			continue;
		int error = sim_segment_init(&segment->memory, backing, frames);
		segment->open = !error;
		*index = error ? HP_NO_SEGMENT : i;
		return error;
	}
	return -EMFILE;
}

static int sim_segment_create(struct hp_os *os, hp_backing backing, uint64_t size, hp_segment *segment)
{
	struct sim *sim = sim_of(os);
	uint64_t frames = size / HP_FRAME_SIZE;

	if (backing == HP_BACKING_HUGETLB_1G)
		backing = HP_BACKING_HUGETLB; /* of the same budget */
	if (backing <= HP_BACKING_AUTO || backing > HP_BACKING_BASE || !frames || size % HP_FRAME_SIZE)
		return -EINVAL;
	if (frames > RECORD_FRAME_MASK)
		return -EFBIG;
	pthread_mutex_lock(&sim->changes);
	int error = segment_create_locked(sim, backing, frames, segment);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int sim_segment_destroy(struct hp_os *os, hp_segment index)
{
	struct sim *sim = sim_of(os);

	pthread_mutex_lock(&sim->changes);
	struct segment *segment = segment_find_locked(sim, index);
	if (segment) {
		segment->open = false;
		if (segment->mapped)
			sim->closing++;
		else
			sim_segment_release(&segment->memory, &sim->budget);
	}
	pthread_mutex_unlock(&sim->changes);
	return segment ? 0 : -EBADF;
}

static int sim_segment_punch(struct hp_os *os, hp_segment index, uint64_t offset, uint64_t length)
{
	struct sim *sim = sim_of(os);
	int error = 0;

	pthread_mutex_lock(&sim->changes);
	struct segment *segment = segment_find_locked(sim, index);
	if (!segment)
		error = -EBADF;
	else if (!segment_has(segment, offset, length, segment->memory.unit * HP_BASE_PAGE_SIZE))
		error = -EINVAL;
	else
		sim_pages_punch(&segment->memory, &sim->budget, offset / HP_BASE_PAGE_SIZE, length / HP_BASE_PAGE_SIZE);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int sim_segment_renew(struct hp_os *os, hp_segment index, uint64_t offset, uint64_t length)
{
	struct sim *sim = sim_of(os);
	int error = 0;

	pthread_mutex_lock(&sim->changes);
	struct segment *segment = segment_find_locked(sim, index);
	if (!segment)
		error = -EBADF;
	else if (!segment_has(segment, offset, length, HP_FRAME_SIZE))
		error = -EINVAL;
	else if (segment->memory.backing == HP_BACKING_HUGETLB)
		error = sim_pages_reserve(&segment->memory, &sim->budget, offset / HP_BASE_PAGE_SIZE,
		                          length / HP_BASE_PAGE_SIZE);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int sim_backed(struct hp_os *os, hp_segment index, uint64_t offset, uint64_t length, unsigned char *pages)
{
	struct sim *sim = sim_of(os);
	int error = 0;

	pthread_mutex_lock(&sim->changes);
	const struct segment *segment = segment_find_locked(sim, index);
	if (!segment)
		error = -EBADF;
	else if (!segment_has(segment, offset, length, HP_BASE_PAGE_SIZE) ||
	         segment->memory.backing == HP_BACKING_HUGETLB)
		error = -EINVAL;
	for (uint64_t i = 0; !error && i < length / HP_BASE_PAGE_SIZE; i++)
		pages[i] = sim_page_is_present(&segment->memory, offset / HP_BASE_PAGE_SIZE + i);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

/* ---- Records --------------------------------------------------------------------------------------------------- */

static uint64_t place_of(const struct sim *sim, const void *address)
{
	return ((uintptr_t)address - sim->base) / HP_FRAME_SIZE;
}

/* False: not whole frames, or outside the address space. */
static bool range_of(const struct sim *sim, const void *address, uint64_t length, struct range *range)
{
	*range = (struct range){place_of(sim, address), length / HP_FRAME_SIZE};
	return length && length % HP_FRAME_SIZE == 0 && (uintptr_t)address % HP_FRAME_SIZE == 0 && range->first > 0 &&
	       range->first < sim->places && range->count < sim->places - range->first;
}

static uint64_t record_at(const struct sim *sim, uint64_t place)
{
	return atomic_load_explicit(&sim->records[place], memory_order_acquire);
}

static void record_set_locked(struct sim *sim, uint64_t place, uint64_t record)
{
	atomic_store_explicit(&sim->records[place], record, memory_order_release);
}

static hp_segment record_segment(uint64_t record)
{
	return (hp_segment)(record >> RECORD_SEGMENT_SHIFT & RECORD_SEGMENT_MASK);
}

/*
 * The record with its start bit as it has to be at the edge of a changed range. Mapped pieces and those beyond the end,
 * once apart, never join again; reserved neighbours always do.
 */
static uint64_t record_at_edge(uint64_t before, uint64_t record)
{
	record &= ~RECORD_START;
	if (record & (RECORD_MAPPED | RECORD_END) || (record & RECORD_RESERVED && !(before & RECORD_RESERVED)))
		record |= RECORD_START;
	return record;
}

/* Returns when all touches that may use old records of the range have ended. */
static void wait_for_touches(struct sim *sim, struct range range)
{
	for (uint64_t i = 0; i < range.count && i < GATES; i++) {
		pthread_rwlock_t *gate = &sim->gates[(range.first + i) % GATES];

		pthread_rwlock_wrlock(gate);
		pthread_rwlock_unlock(gate);
	}
}

static void release_closing_locked(struct sim *sim)
{
	for (int i = 0; sim->closing && i < SEGMENTS_MAX; i++) {
		struct segment *segment = &sim->segments[i];

		if (segment->memory.frames && !segment->open && !segment->mapped) {
			sim_segment_release(&segment->memory, &sim->budget);
			sim->closing--;
		}
	}
}

static void drop_copy_locked(struct sim *sim, uint64_t place)
{
	wait_for_touches(sim, (struct range){place, 1});
	sim_pages_punch(&sim->copies, &sim->copies_budget, place * PAGES_PER_FRAME, PAGES_PER_FRAME);
}

static void record_replace_locked(struct sim *sim, uint64_t place, uint64_t record)
{
	uint64_t old = record_at(sim, place);

	if (old & RECORD_MAPPED)
		sim->segments[record_segment(old)].mapped--;
	if (record & RECORD_MAPPED)
		sim->segments[record_segment(record)].mapped++;
	record_set_locked(sim, place, record);
	if (old & ~record & RECORD_COPIED)
		drop_copy_locked(sim, place);
}

/*
 * Every change of what is mapped: gives a range the record, mapped frames counting up. `copied` is 0, or the first
 * place of a mapping whose copies have been taken along. Fails without any effect.
 */
static int replace_locked(struct sim *sim, struct range range, uint64_t record, uint64_t copied)
{
	uint64_t end = range.first + range.count;
	uint64_t first = record_at_edge(record_at(sim, range.first - 1), record);
	uint64_t next = record_at_edge(record, record_at(sim, end));
	uint64_t maps = sim->map_count + !!(first & RECORD_START) + !!(next & RECORD_START);
	uint64_t step = record & RECORD_MAPPED ? 1 : 0;

	for (uint64_t place = range.first; place <= end; place++)
		maps -= !!(record_at(sim, place) & RECORD_START);
	if (maps > sim->map_count && maps > sim->max_map_count)
		return -ENOMEM;
	sim->map_count = maps;

	for (uint64_t i = 0; i < range.count; i++) {
		uint64_t mark = copied ? record_at(sim, copied + i) & RECORD_COPIED : 0;

		record_replace_locked(sim, range.first + i, ((i ? record & ~RECORD_START : first) + i * step) | mark);
	}
	record_set_locked(sim, end, next);

	wait_for_touches(sim, range);
	release_closing_locked(sim);
	return 0;
}

static bool is_unmapped_locked(const struct sim *sim, struct range range)
{
	for (uint64_t i = 0; i < range.count; i++)
		if (record_at(sim, range.first + i))
			return false;
	return true;
}

/*
 * First place from `from` on, before `limit`, where `count` unmapped places begin at an address with the skew; 0: none.
 * A try looks from its end backwards and stops at what is mapped; the next try begins behind that.
 */
static uint64_t find_unmapped_locked(const struct sim *sim, uint64_t from, uint64_t limit, uint64_t count,
                                     uint64_t align, uint64_t skew)
{
	uint64_t first = from;
	uint64_t known = from; /* from `first` to here all is unmapped: no place is looked at twice */

	for (;;) {
		first += ((skew - sim->base - first * HP_FRAME_SIZE) & (align - 1)) / HP_FRAME_SIZE;
		if (first >= limit || count >= sim->places - first)
			return 0;
		uint64_t end = first + count;
		uint64_t place = end;
		while (place > first && place > known && !record_at(sim, place - 1))
			place--;
		if (place <= first || place <= known)
			return first;
		first = place;
		known = end;
	}
}

static int sim_reserve(struct hp_os *os, uint64_t length, uint64_t align, uint64_t skew, void **address)
{
	struct sim *sim = sim_of(os);
	uint64_t count = length / HP_FRAME_SIZE;

	if (!length || length % HP_FRAME_SIZE || align < HP_FRAME_SIZE || align & (align - 1) || skew >= align ||
	    skew % HP_FRAME_SIZE)
		return -EINVAL;
	pthread_mutex_lock(&sim->changes);
	/* From the last reservation on, so that an address is reused late and its use after unmap is noticed. */
	uint64_t first = find_unmapped_locked(sim, sim->hint, sim->places, count, align, skew);
	if (!first)
		first = find_unmapped_locked(sim, 1, sim->hint, count, align, skew);
	int error = first ? replace_locked(sim, (struct range){first, count}, RECORD_RESERVED, 0) : -ENOMEM;
	if (!error) {
		sim->hint = first + count;
		*address = (void *)(sim->base + first * HP_FRAME_SIZE);
	}
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int sim_reserve_at(struct hp_os *os, void *address, uint64_t length)
{
	struct sim *sim = sim_of(os);
	struct range range;
	int error = 0;

	if (!range_of(sim, address, length, &range))
		return -EINVAL;
	pthread_mutex_lock(&sim->changes);
	for (uint64_t i = 0; i < range.count && !error; i++)
		error = record_at(sim, range.first + i) ? -EEXIST : 0;
	if (!error)
		error = replace_locked(sim, range, RECORD_RESERVED, 0);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int sim_vacate(struct hp_os *os, void *address, uint64_t length)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (!range_of(sim, address, length, &range))
		return -EINVAL;
	pthread_mutex_lock(&sim->changes);
	int error = replace_locked(sim, range, RECORD_RESERVED, 0);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int map_locked(struct sim *sim, struct range range, unsigned prot, hp_segment index, uint64_t offset,
                      unsigned flags)
{
	const struct segment *segment = segment_find_locked(sim, index);
	uint64_t record = RECORD_MAPPED | (uint64_t)prot << RECORD_PROT_SHIFT |
	                  (uint64_t)index << RECORD_SEGMENT_SHIFT | offset / HP_FRAME_SIZE;

	if (!segment)
		return -EBADF;
	if (!segment_has(segment, offset, range.count * HP_FRAME_SIZE, HP_FRAME_SIZE))
		return -EINVAL;
	if (!(flags & HP_OS_MAP_REPLACE) && !is_unmapped_locked(sim, range))
		return -EEXIST;
	if (flags & HP_OS_MAP_PRIVATE) {
		/* A backing that comes by the frame, as copies do. */
		if (!sim->copies.frames && sim_segment_init(&sim->copies, HP_BACKING_THP, sim->places))
			return -ENOMEM;
		record |= RECORD_PRIVATE;
	}
	return replace_locked(sim, range, record, 0);
}

static int sim_map(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_segment segment, uint64_t offset,
                   unsigned flags)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (!range_of(sim, address, length, &range) || prot & ~(HP_PROT_READ | HP_PROT_WRITE) ||
	    flags & ~(HP_OS_MAP_REPLACE | HP_OS_MAP_POPULATE | HP_OS_MAP_PRIVATE))
		return -EINVAL;
	pthread_mutex_lock(&sim->changes);
	int error = map_locked(sim, range, prot, segment, offset, flags);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int sim_unmap(struct hp_os *os, void *address, uint64_t length)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (!range_of(sim, address, length, &range))
		return -EINVAL;
	pthread_mutex_lock(&sim->changes);
	int error = replace_locked(sim, range, 0, 0);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static bool is_whole_locked(const struct sim *sim, struct range range)
{
	uint64_t next = record_at(sim, range.first + range.count);

	return record_at(sim, range.first) & RECORD_START && (!next || next & RECORD_START);
}

/* Cannot fail: both are memory of the copies, whose budget has no limits. */
static void move_copies_locked(struct sim *sim, struct range from, struct range to)
{
	for (uint64_t i = 0; i < from.count; i++)
		if (record_at(sim, from.first + i) & RECORD_COPIED)
			sim_frame_copy(&sim->copies, &sim->copies_budget, from.first + i, &sim->copies,
			               &sim->copies_budget, to.first + i);
}

/* The source is one kernel mapping or a part of one, so its first record says it all but what is copied. */
static int move_locked(struct sim *sim, struct range from, struct range to)
{
	uint64_t record = record_at(sim, from.first) & ~RECORD_COPIED;

	for (uint64_t i = 0; i < from.count; i++) {
		uint64_t piece = record_at(sim, from.first + i);

		if (!piece || (i && piece & RECORD_START))
			return -EFAULT;
	}
	if (record & RECORD_PRIVATE && !is_whole_locked(sim, from))
		return -EINVAL;
	if (sim->map_count + MOVE_SPARE > sim->max_map_count)
		return -ENOMEM;
	move_copies_locked(sim, from, to);
	int error = replace_locked(sim, to, record, from.first);
	return error ? error : replace_locked(sim, from, 0, 0);
}

static int sim_move(struct hp_os *os, void *from, void *to, uint64_t length)
{
	struct sim *sim = sim_of(os);
	struct range source, target;

	if (!range_of(sim, from, length, &source) || !range_of(sim, to, length, &target))
		return -EINVAL;
	if (source.first < target.first + target.count && target.first < source.first + source.count)
		return -EINVAL;
	pthread_mutex_lock(&sim->changes);
	int error = move_locked(sim, source, target);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int sim_end(struct hp_os *os, void *address, uint64_t length, hp_segment control, uint64_t control_size)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (!range_of(sim, address, length, &range))
		return -EINVAL;
	pthread_mutex_lock(&sim->changes);
	int error = replace_locked(sim, range,
	                           RECORD_END | (uint64_t)(HP_PROT_READ | HP_PROT_WRITE) << RECORD_PROT_SHIFT, 0);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static bool is_mapped_locked(const struct sim *sim, struct range range)
{
	for (uint64_t i = 0; i < range.count; i++)
		if (!(record_at(sim, range.first + i) & (RECORD_MAPPED | RECORD_END)))
			return false;
	return true;
}

/*
 * The start bit, if a kernel mapping that goes on across the edge before `place` is split there; otherwise 0.
 * `changed` is the place beside the edge whose protection changes.
 */
static uint64_t split_at(const struct sim *sim, uint64_t place, uint64_t changed, uint64_t prot)
{
	uint64_t record = record_at(sim, place);

	if (!record || record & RECORD_START || (record_at(sim, changed) & RECORD_PROT_MASK) == prot)
		return 0;
	return RECORD_START;
}

/* Within the range, edges of kernel mappings stay where they are. */
static int protect_locked(struct sim *sim, struct range range, uint64_t prot)
{
	uint64_t end = range.first + range.count;

	if (!is_mapped_locked(sim, range))
		return -ENOMEM;
	uint64_t first = split_at(sim, range.first, range.first, prot);
	uint64_t next = split_at(sim, end, end - 1, prot);
	uint64_t maps = sim->map_count + !!first + !!next;
	if (maps > sim->map_count && maps > sim->max_map_count)
		return -ENOMEM;
	sim->map_count = maps;

	record_set_locked(sim, range.first, record_at(sim, range.first) | first);
	record_set_locked(sim, end, record_at(sim, end) | next);
	for (uint64_t place = range.first; place < end; place++)
		record_set_locked(sim, place, (record_at(sim, place) & ~RECORD_PROT_MASK) | prot);
	wait_for_touches(sim, range);
	return 0;
}

static int sim_protect(struct hp_os *os, void *address, uint64_t length, unsigned prot)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (!range_of(sim, address, length, &range) || prot & ~(HP_PROT_READ | HP_PROT_WRITE))
		return -EINVAL;
	pthread_mutex_lock(&sim->changes);
	int error = protect_locked(sim, range, (uint64_t)prot << RECORD_PROT_SHIFT);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

/* There is no fork in here, and so no private memory that is not a segment's. */
static int sim_anonymous(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_backing backing)
{
	return -ENOTSUP;
}

static int sim_hold(struct hp_os *os, uint64_t length, hp_backing backing, void **address)
{
	return -ENOTSUP;
}

static int sim_keep_from_children(struct hp_os *os, void *address, uint64_t length)
{
	return 0;
}

/* ---- Touches --------------------------------------------------------------------------------------------------- */

/* A frame in use by a thread, from touch_begin to touch_end. */
struct touch {
	pthread_rwlock_t *gate;
	struct sim_segment *memory;
	struct sim_budget *budget;
	uint64_t frame;
};

/* Why a touch of a record does not come to memory, or 0. */
static int check_touch(uint64_t record, unsigned prot)
{
	if (!record)
		return -EFAULT;
	if (!(record & (RECORD_MAPPED | RECORD_END)) || prot & ~(record >> RECORD_PROT_SHIFT))
		return -EACCES;
	if (record & RECORD_END)
		return -ENXIO;
	return prot & HP_PROT_WRITE && record & RECORD_PRIVATE && !(record & RECORD_COPIED) ? -EAGAIN : 0;
}

/* -EFAULT: nothing is mapped here; -EACCES: the protection forbids it; -ENXIO: beyond the end; -EAGAIN: not before the
 * frame is copied. */
static int touch_begin(struct sim *sim, const void *address, unsigned prot, struct touch *touch)
{
	uint64_t place = place_of(sim, address);

	if (place >= sim->places)
		return -EFAULT;
	touch->gate = &sim->gates[place % GATES];
	pthread_rwlock_rdlock(touch->gate);
	uint64_t record = record_at(sim, place);
	int error = check_touch(record, prot);
	if (error) {
		pthread_rwlock_unlock(touch->gate);
		return error;
	}
	bool copied = record & RECORD_COPIED;
	touch->memory = copied ? &sim->copies : &sim->segments[record_segment(record)].memory;
	touch->budget = copied ? &sim->copies_budget : &sim->budget;
	touch->frame = copied ? place : record & RECORD_FRAME_MASK;
	return 0;
}

static void touch_end(const struct touch *touch)
{
	pthread_rwlock_unlock(touch->gate);
}

/* Another thread may have copied it meanwhile, or mapped something else. */
static int copy_locked(struct sim *sim, uint64_t place)
{
	uint64_t record = record_at(sim, place);

	if (check_touch(record, HP_PROT_WRITE) != -EAGAIN)
		return 0;
	if (sim_frame_copy(&sim->segments[record_segment(record)].memory, &sim->budget, record & RECORD_FRAME_MASK,
	                   &sim->copies, &sim->copies_budget, place))
		return -EIO;
	record_set_locked(sim, place, record | RECORD_COPIED);
	wait_for_touches(sim, (struct range){place, 1});
	return 0;
}

/* touch_begin, for a store where the protection says WRITE. -EIO: no memory to read what has to be copied first. */
static int touch_begin_copied(struct sim *sim, const void *address, unsigned prot, struct touch *touch)
{
	int error;

	while ((error = touch_begin(sim, address, prot, touch)) == -EAGAIN) {
		pthread_mutex_lock(&sim->changes);
		error = copy_locked(sim, place_of(sim, address));
		pthread_mutex_unlock(&sim->changes);
		if (error)
			break;
	}
	return error;
}

static uint64_t touch_page(const struct touch *touch, const void *address)
{
	return touch->frame * PAGES_PER_FRAME + (uintptr_t)address % HP_FRAME_SIZE / HP_BASE_PAGE_SIZE;
}

/* Nothing mapped and no permission are the same signal. */
static int trap_of(int error)
{
	return error == -EACCES ? -EFAULT : error;
}

int hp_sim_load(struct hp_os *os, const void *address, uint64_t *tag)
{
	struct touch touch;
	int error = touch_begin(sim_of(os), address, HP_PROT_READ, &touch);

	if (error)
		return trap_of(error);
	error = sim_page_load(touch.memory, touch.budget, touch_page(&touch, address), tag);
	touch_end(&touch);
	return error ? -EIO : 0;
}

int hp_sim_store(struct hp_os *os, void *address, uint64_t tag)
{
	struct touch touch;
	int error = touch_begin_copied(sim_of(os), address, HP_PROT_WRITE, &touch);

	if (error)
		return trap_of(error);
	error = sim_page_store(touch.memory, touch.budget, touch_page(&touch, address), tag);
	touch_end(&touch);
	return error ? -EIO : 0;
}

/* What was populated before a failure stays, and the answers for bad ranges are those of madvise. */
static int populate(struct hp_os *os, void *address, uint64_t length, unsigned prot)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (!range_of(sim, address, length, &range))
		return -EINVAL;
	for (uint64_t done = 0; done < length; done += HP_FRAME_SIZE) {
		struct touch touch;
		int error = touch_begin_copied(sim, (char *)address + done, prot, &touch);

		if (error)
			return error == -EACCES ? -EINVAL : error == -ENXIO ? -EFAULT : -ENOMEM;
		error = sim_pages_populate(touch.memory, touch.budget, touch.frame * PAGES_PER_FRAME, PAGES_PER_FRAME);
		touch_end(&touch);
		if (error)
			return error;
	}
	return 0;
}

static int sim_populate(struct hp_os *os, void *address, uint64_t length)
{
	return populate(os, address, length, HP_PROT_WRITE);
}

static int sim_touch(struct hp_os *os, void *address, uint64_t length)
{
	return populate(os, address, length, HP_PROT_READ);
}

static int sim_collapse(struct hp_os *os, void *address, uint64_t length)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (sim->no_thp || !range_of(sim, address, length, &range))
		return -EINVAL;
	for (uint64_t done = 0; done < length; done += HP_FRAME_SIZE) {
		struct touch touch;

		if (touch_begin(sim, (char *)address + done, 0, &touch))
			return -EINVAL;
		hp_backing backing = touch.memory->backing;
		touch_end(&touch);
		if (backing != HP_BACKING_THP)
			return -EINVAL;
	}
	return 0;
}

/* From an address to the end of its frame, but no more than `left`. */
static uint64_t part_of_frame(const void *address, uint64_t left)
{
	return hp_min(left, HP_FRAME_SIZE - (uintptr_t)address % HP_FRAME_SIZE);
}

/* Base pages of one frame. */
static int zero_part(struct sim *sim, const void *address, uint64_t length)
{
	struct touch touch;
	int error = touch_begin_copied(sim, address, HP_PROT_WRITE, &touch);

	if (error)
		return error;
	error = sim_pages_zero(touch.memory, touch.budget, touch_page(&touch, address), length / HP_BASE_PAGE_SIZE);
	touch_end(&touch);
	return error;
}

/* What the pool itself reads and writes must be there. */
static void must_not_trap(const char *what, const void *address, int error)
{
	if (!error)
		return;
	fprintf(stderr, "hugepool: sim: %s traps at %p: error %d\n", what, address, -error);
	abort();
}

static void sim_zero(struct hp_os *os, void *address, uint64_t length)
{
	for (uint64_t done = 0, part; done < length; done += part) {
		char *at = (char *)address + done;

		part = part_of_frame(at, length - done);
		must_not_trap("zero", at, zero_part(sim_of(os), at, part));
	}
}

/* The tag of a page of a segment, 0 where it has no memory, which it does not get. */
static int peek(struct sim *sim, hp_segment index, uint64_t page, uint64_t *tag)
{
	int error = 0;

	pthread_mutex_lock(&sim->changes);
	struct segment *segment = segment_find_locked(sim, index);
	*tag = 0;
	if (!segment)
		error = -EBADF;
	else if (!segment_has(segment, page * HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE) ||
	         segment->memory.backing == HP_BACKING_HUGETLB)
		error = -EINVAL;
	else if (sim_page_is_present(&segment->memory, page))
		error = sim_page_load(&segment->memory, &sim->budget, page, tag);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int sim_gather(struct hp_os *os, void *to, const void *mapped, hp_segment segment, uint64_t offset,
                      uint64_t length)
{
	int error = 0;

	for (uint64_t done = 0; done < length && !error; done += HP_BASE_PAGE_SIZE) {
		const char *at = mapped ? (const char *)mapped + done : NULL;
		uint64_t tag, found = 0;

		error = peek(sim_of(os), segment, (offset + done) / HP_BASE_PAGE_SIZE, &tag);
		/* By the record and not by the tag: others may change the page meanwhile. */
		if (!error && at && (hp_sim_mapped_at(os, at, &found) != segment || found != offset + done))
			error = -EINVAL;
		if (!error && at && tag)
			must_not_trap("gather", at, hp_sim_load(os, at, &tag));
		if (!error)
			must_not_trap("gather", (char *)to + done, hp_sim_store(os, (char *)to + done, tag));
	}
	return error;
}

static int sim_scatter(struct hp_os *os, hp_segment index, uint64_t offset, const void *from, uint64_t length)
{
	struct sim *sim = sim_of(os);
	int error = 0;

	for (uint64_t done = 0; done < length && !error; done += HP_BASE_PAGE_SIZE) {
		uint64_t tag = 0;

		must_not_trap("scatter", (const char *)from + done, hp_sim_load(os, (const char *)from + done, &tag));
		if (!tag)
			continue;
		pthread_mutex_lock(&sim->changes);
		struct segment *segment = segment_find_locked(sim, index);
		if (!segment)
			error = -EBADF;
		else if (!segment_has(segment, offset + done, HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE) ||
		         segment->memory.backing == HP_BACKING_HUGETLB)
			error = -EINVAL;
		else
			error = sim_page_store(&segment->memory, &sim->budget, (offset + done) / HP_BASE_PAGE_SIZE,
			                       tag);
		pthread_mutex_unlock(&sim->changes);
	}
	return error;
}

/* The bytes of a base page are its tag, over and over. */
static void sim_load(struct hp_os *os, const void *address, void *to, uint64_t length)
{
	for (uint64_t done = 0; done < length;) {
		const char *at = (const char *)address + done;
		uint64_t in_page = (uintptr_t)at % HP_BASE_PAGE_SIZE,
			 part = hp_min(length - done, HP_BASE_PAGE_SIZE - in_page);
		uint64_t tag = 0;

		must_not_trap("load", at, hp_sim_load(os, at, &tag));
		for (uint64_t i = 0; i < part; i++)
			((char *)to)[done + i] = ((const char *)&tag)[(in_page + i) % sizeof(tag)];
		done += part;
	}
}

/* The tag is what is stored at the page's start. */
static void sim_store(struct hp_os *os, void *address, const void *from, uint64_t length)
{
	for (uint64_t done = 0; done < length;) {
		char *at = (char *)address + done;
		uint64_t in_page = (uintptr_t)at % HP_BASE_PAGE_SIZE,
			 part = hp_min(length - done, HP_BASE_PAGE_SIZE - in_page);
		uint64_t tag = 0;

		must_not_trap("store", at, hp_sim_load(os, at, &tag));
		for (uint64_t i = in_page; i < sizeof(tag) && i < in_page + part; i++)
			((char *)&tag)[i] = ((const char *)from)[done + i - in_page];
		must_not_trap("store", at, hp_sim_store(os, at, tag));
		done += part;
	}
}

/* ---- Limits and what is there ---------------------------------------------------------------------------------- */

static uint64_t sim_max_map_count(struct hp_os *os)
{
	return sim_of(os)->max_map_count;
}

static uint64_t sim_hugetlb_available(struct hp_os *os)
{
	return sim_budget_available(&sim_of(os)->budget);
}

/* Nobody is killed here: populate says when memory is out. */
static uint64_t sim_memory_room(struct hp_os *os, hp_limit *limit)
{
	*limit = HP_LIMIT_MEMORY;
	return UINT64_MAX;
}

static bool sim_shares_page_tables(struct hp_os *os)
{
	return sim_of(os)->table_sharing;
}

uint64_t hp_sim_map_count(struct hp_os *os)
{
	struct sim *sim = sim_of(os);

	pthread_mutex_lock(&sim->changes);
	uint64_t count = sim->map_count;
	pthread_mutex_unlock(&sim->changes);
	return count;
}

hp_segment hp_sim_mapped_at(struct hp_os *os, const void *address, uint64_t *offset)
{
	struct sim *sim = sim_of(os);
	uint64_t place = place_of(sim, address);
	uint64_t record = place < sim->places ? record_at(sim, place) : 0;

	if (!(record & RECORD_MAPPED))
		return HP_NO_SEGMENT;
	*offset = (record & RECORD_FRAME_MASK) * HP_FRAME_SIZE + (uintptr_t)address % HP_FRAME_SIZE;
	return record_segment(record);
}

/* ---- Creation -------------------------------------------------------------------------------------------------- */

static const struct hp_os_ops sim_ops = {
	.name = "sim",
	.control_create = sim_control_create,
	.control_destroy = sim_control_destroy,
	.segment_create = sim_segment_create,
	.segment_destroy = sim_segment_destroy,
	.segment_punch = sim_segment_punch,
	.segment_renew = sim_segment_renew,
	.backed = sim_backed,
	.reserve = sim_reserve,
	.reserve_at = sim_reserve_at,
	.vacate = sim_vacate,
	.map = sim_map,
	.unmap = sim_unmap,
	.move = sim_move,
	.end = sim_end,
	.protect = sim_protect,
	.anonymous = sim_anonymous,
	.hold = sim_hold,
	.keep_from_children = sim_keep_from_children,
	.populate = sim_populate,
	.touch = sim_touch,
	.collapse = sim_collapse,
	.zero = sim_zero,
	.gather = sim_gather,
	.scatter = sim_scatter,
	.load = sim_load,
	.store = sim_store,
	.max_map_count = sim_max_map_count,
	.hugetlb_available = sim_hugetlb_available,
	.memory_room = sim_memory_room,
	.shares_page_tables = sim_shares_page_tables,
};

/* A span of its own for each sim, so that an address of one is foreign to the others. Place 0 lies before the span. */
static uintptr_t next_base(void)
{
	static _Atomic unsigned created;

	return (UINT64_C(1) << 56) + ((uint64_t)(atomic_fetch_add(&created, 1) & 0x7fff) << 48) - HP_FRAME_SIZE;
}

static void gates_init(struct sim *sim)
{
	pthread_rwlockattr_t attributes;

	pthread_rwlockattr_init(&attributes);
	/* Otherwise threads that never stop touching keep a change waiting for ever. */
	pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	for (int i = 0; i < GATES; i++)
		pthread_rwlock_init(&sim->gates[i], &attributes);
	pthread_rwlockattr_destroy(&attributes);
}

struct hp_os *hp_sim_create(const struct hp_sim_config *config)
{
	uint64_t address_bytes = config->address_bytes ? config->address_bytes : ADDRESS_BYTES_DEFAULT;
	struct sim *sim = address_bytes <= ADDRESS_BYTES_MAX ? calloc(1, sizeof(*sim)) : NULL;

	if (!sim)
		return NULL;
	sim->os.ops = &sim_ops;
	sim->max_map_count = config->max_map_count ? config->max_map_count : MAP_COUNT_DEFAULT;
	sim->no_thp = config->no_thp;
	sim->table_sharing = config->table_sharing;
	sim->base = next_base();
	sim->places = address_bytes / HP_FRAME_SIZE + 2;
	sim->hint = 1;
	sim->records = sim_sparse_create(sim->places * sizeof(sim->records[0]), MAP_PRIVATE);
	if (!sim->records) {
		free(sim);
		return NULL;
	}
	sim_budget_init(&sim->budget, config);
	sim_budget_init(&sim->copies_budget, &(struct hp_sim_config){0});
	pthread_mutex_init(&sim->changes, NULL);
	gates_init(sim);
	return &sim->os;
}

int hp_sim_destroy(struct hp_os *os)
{
	struct sim *sim = sim_of(os);
	uint64_t left = sim->map_count;

	for (int i = 0; i < SEGMENTS_MAX; i++) {
		left += sim->segments[i].open;
		if (sim->segments[i].memory.frames)
			sim_segment_release(&sim->segments[i].memory, &sim->budget);
	}
	for (int i = 0; i < GATES; i++)
		pthread_rwlock_destroy(&sim->gates[i]);
	pthread_mutex_destroy(&sim->changes);
	if (sim->copies.frames)
		sim_segment_release(&sim->copies, &sim->copies_budget);
	sim_budget_destroy(&sim->copies_budget);
	sim_budget_destroy(&sim->budget);
	sim_sparse_destroy(sim->records, sim->places * sizeof(sim->records[0]));
	free(sim);
	return (int)left;
}
