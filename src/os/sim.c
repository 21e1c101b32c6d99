/* SPDX-License-Identifier: MIT */
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
 *             sim->budget.lock    frames become present and absent
 *
 * A change of records ends by passing the gates of its places, as the kernel ends one by flushing TLBs: when map, unmap
 * or move returns, no touch uses the old record any more.
 */

/* A record, from low to high: frame, segment, prot, state. All zero is unmapped. */
#define RECORD_FRAME_MASK UINT64_C(0xffffffff)
#define RECORD_SEGMENT_SHIFT 32
#define RECORD_SEGMENT_MASK UINT64_C(0xffff)
#define RECORD_PROT_SHIFT 48
#define RECORD_RESERVED (UINT64_C(1) << 50)
#define RECORD_MAPPED (UINT64_C(1) << 51)
#define RECORD_START (UINT64_C(1) << 52) /* a kernel mapping begins here: there are as many as mappings */

#define PAGES_PER_FRAME (HP_FRAME_SIZE / HP_BASE_PAGE_SIZE)
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

static bool segment_has(const struct segment *segment, uint64_t offset, uint64_t length)
{
	uint64_t size = segment->memory.frames * HP_FRAME_SIZE;

	return length && length <= size && offset <= size - length && offset % HP_FRAME_SIZE == 0 &&
	       length % HP_FRAME_SIZE == 0;
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
	else if (!segment_has(segment, offset, length))
		error = -EINVAL;
	else
		sim_frames_punch(&segment->memory, &sim->budget, offset / HP_FRAME_SIZE, length / HP_FRAME_SIZE);
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
 * The record with its start bit as it has to be at the edge of a changed range. Mapped pieces, once apart, never join
 * again; reserved neighbours always do.
 */
static uint64_t record_at_edge(uint64_t before, uint64_t record)
{
	record &= ~RECORD_START;
	if (record & RECORD_MAPPED || (record & RECORD_RESERVED && !(before & RECORD_RESERVED)))
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

/* Every change of records: gives a range the record, mapped frames counting up. Fails without any effect. */
static int replace_locked(struct sim *sim, struct range range, uint64_t record)
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
		uint64_t old = record_at(sim, range.first + i);

		if (old & RECORD_MAPPED)
			sim->segments[record_segment(old)].mapped--;
		record_set_locked(sim, range.first + i, (i ? record & ~RECORD_START : first) + i * step);
	}
	record_set_locked(sim, end, next);
	if (record & RECORD_MAPPED)
		sim->segments[record_segment(record)].mapped += range.count;

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
	int error = first ? replace_locked(sim, (struct range){first, count}, RECORD_RESERVED) : -ENOMEM;
	if (!error) {
		sim->hint = first + count;
		*address = (void *)(sim->base + first * HP_FRAME_SIZE);
	}
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
	int error = replace_locked(sim, range, RECORD_RESERVED);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

static int map_locked(struct sim *sim, struct range range, unsigned prot, hp_segment index, uint64_t offset,
                      unsigned flags)
{
	const struct segment *segment = segment_find_locked(sim, index);

	if (!segment)
		return -EBADF;
	if (!segment_has(segment, offset, range.count * HP_FRAME_SIZE))
		return -EINVAL;
	if (!(flags & HP_OS_MAP_REPLACE) && !is_unmapped_locked(sim, range))
		return -EEXIST;
	return replace_locked(sim, range,
	                      RECORD_MAPPED | (uint64_t)prot << RECORD_PROT_SHIFT |
	                              (uint64_t)index << RECORD_SEGMENT_SHIFT | offset / HP_FRAME_SIZE);
}

static int sim_map(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_segment segment, uint64_t offset,
                   unsigned flags)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (!range_of(sim, address, length, &range) || prot & ~(HP_PROT_READ | HP_PROT_WRITE) ||
	    flags & ~(HP_OS_MAP_REPLACE | HP_OS_MAP_POPULATE))
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
	int error = replace_locked(sim, range, 0);
	pthread_mutex_unlock(&sim->changes);
	return error;
}

/* The source is one kernel mapping or a part of one, so its first record says it all. */
static int move_locked(struct sim *sim, struct range from, struct range to)
{
	uint64_t record = record_at(sim, from.first);

	for (uint64_t i = 0; i < from.count; i++) {
		uint64_t piece = record_at(sim, from.first + i);

		if (!piece || (i && piece & RECORD_START))
			return -EFAULT;
	}
	if (sim->map_count + MOVE_SPARE > sim->max_map_count)
		return -ENOMEM;
	int error = replace_locked(sim, to, record);
	return error ? error : replace_locked(sim, from, 0);
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

/* ---- Touches --------------------------------------------------------------------------------------------------- */

/* A frame in use by a thread, from touch_begin to touch_end. */
struct touch {
	pthread_rwlock_t *gate;
	struct sim_segment *memory;
	uint64_t frame;
};

/* -EFAULT: nothing is mapped here; -EACCES: the protection forbids it. */
static int touch_begin(struct sim *sim, const void *address, unsigned prot, struct touch *touch)
{
	uint64_t place = place_of(sim, address);

	if (place >= sim->places)
		return -EFAULT;
	touch->gate = &sim->gates[place % GATES];
	pthread_rwlock_rdlock(touch->gate);
	uint64_t record = record_at(sim, place);
	if (!(record & RECORD_MAPPED) || prot & ~(record >> RECORD_PROT_SHIFT)) {
		pthread_rwlock_unlock(touch->gate);
		return record ? -EACCES : -EFAULT;
	}
	touch->memory = &sim->segments[record_segment(record)].memory;
	touch->frame = record & RECORD_FRAME_MASK;
	return 0;
}

static void touch_end(const struct touch *touch)
{
	pthread_rwlock_unlock(touch->gate);
}

static uint64_t touch_page(const struct touch *touch, const void *address)
{
	return touch->frame * PAGES_PER_FRAME + (uintptr_t)address % HP_FRAME_SIZE / HP_BASE_PAGE_SIZE;
}

int hp_sim_load(struct hp_os *os, const void *address, uint64_t *tag)
{
	struct sim *sim = sim_of(os);
	struct touch touch;

	if (touch_begin(sim, address, HP_PROT_READ, &touch))
		return -EFAULT;
	int error = sim_page_load(touch.memory, &sim->budget, touch_page(&touch, address), tag);
	touch_end(&touch);
	return error ? -EIO : 0;
}

int hp_sim_store(struct hp_os *os, void *address, uint64_t tag)
{
	struct sim *sim = sim_of(os);
	struct touch touch;

	if (touch_begin(sim, address, HP_PROT_WRITE, &touch))
		return -EFAULT;
	int error = sim_page_store(touch.memory, &sim->budget, touch_page(&touch, address), tag);
	touch_end(&touch);
	return error ? -EIO : 0;
}

/* What was populated before a failure stays, and the answers for bad ranges are those of madvise. */
static int sim_populate(struct hp_os *os, void *address, uint64_t length)
{
	struct sim *sim = sim_of(os);
	struct range range;

	if (!range_of(sim, address, length, &range))
		return -EINVAL;
	for (uint64_t done = 0; done < length; done += HP_FRAME_SIZE) {
		struct touch touch;
		int error = touch_begin(sim, (char *)address + done, HP_PROT_WRITE, &touch);

		if (error)
			return error == -EACCES ? -EINVAL : -ENOMEM;
		error = sim_frame_populate(touch.memory, &sim->budget, touch.frame);
		touch_end(&touch);
		if (error)
			return error;
	}
	return 0;
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

static int zero_frame(struct sim *sim, const void *address)
{
	struct touch touch;
	int error = touch_begin(sim, address, HP_PROT_WRITE, &touch);

	if (error)
		return error;
	error = sim_frame_zero(touch.memory, &sim->budget, touch.frame);
	touch_end(&touch);
	return error;
}

static void sim_zero(struct hp_os *os, void *address, uint64_t length)
{
	for (uint64_t done = 0; done < length; done += HP_FRAME_SIZE) {
		char *at = (char *)address + done;
		int error = zero_frame(sim_of(os), at);

		if (!error)
			continue;
		fprintf(stderr, "hugepool: sim: zero traps at %p: error %d\n", (void *)at, -error);
		abort();
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
	.reserve = sim_reserve,
	.vacate = sim_vacate,
	.map = sim_map,
	.unmap = sim_unmap,
	.move = sim_move,
	.populate = sim_populate,
	.collapse = sim_collapse,
	.zero = sim_zero,
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
	sim_budget_destroy(&sim->budget);
	sim_sparse_destroy(sim->records, sim->places * sizeof(sim->records[0]));
	free(sim);
	return (int)left;
}
