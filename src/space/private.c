/* SPDX-License-Identifier: MIT */
/*
 * Private memory, and what a fork makes of it.
 *
 * A private mapping has a file of its own that nobody can open. Until the first fork it is mapped as any other. At the
 * fork it is frozen: the file's frames stay as they are for ever and are mapped copy on write in their place, by the
 * kernel, in parent and child; what was absent becomes private memory of the kernel's. From then on it is the kernel's
 * business alone: no call of ours changes it, and system calls, devices and further forks work as always.
 *
 *   until the fork         after it, in both
 *   frames, shared         the same frames, copy on write: a store gets a page of the kernel's pool
 *   absent (lazy)          anonymous memory of the kernel's
 *
 * The copies need huge pages of the kernel's. They are promised when the memory is mapped: the holder, a range of the
 * same length that nobody can touch, has them reserved, and is given up just before the kernel is asked to map copy on
 * write, which reserves as much. (Moving a mapping made before over it would leave no gap; but Linux loses what was
 * reserved for parts of one that is moved in parts.)
 *
 * A mapping may have another policy: the child does not get it (HP_FORK_WITHOUT), or gets a copy in base pages, made
 * at the fork (HP_FORK_COPY). Nothing is frozen then.
 */
#include "space/cut.h"

#include "base/error.h"
#include "base/log.h"
#include "file/remove.h"
#include "file/reserve.h"

#include <errno.h>
#include <stdlib.h>

#define POLICIES (HP_FORK_WITHOUT | HP_FORK_COPY)
#define FLAGS (HP_MAP_LAZY | HP_MAP_WISH | HP_MAP_AT | HP_MAP_REPLACE | POLICIES)

/* ---- hp_map_private --------------------------------------------------------------------------------------------- */

/* What the kernel's pages for copies are: huge ones of its pool where frames of ours are, which have to be reserved. */
static hp_backing kind_of(const struct hp_pool_view *view)
{
	const struct hp_segment_record *segment = &view->shared->segment[0];

	return segment->backing == HP_BACKING_HUGETLB && atomic_load(&segment->filled) ? HP_BACKING_HUGETLB
	                                                                               : HP_BACKING_THP;
}

static int hold(struct hp_mapping *m, hp_error *error)
{
	struct hp_os *os = m->pool->os;
	void *address;
	int result;

	if (m->flags & POLICIES)
		return 0;
	result = os->ops->hold(os, m->length, kind_of(m->pool), &address);
	if (result == -ENOTSUP)
		return 0;
	if (result)
		return hp_fail(error, result, HP_LIMIT_KERNEL_POOL,
		               "a fork may copy all of the private memory, and the kernel's pool has no %lu huge pages "
		               "free for "
		               "that; raise /proc/sys/vm/nr_hugepages, or use HP_FORK_WITHOUT or HP_FORK_COPY",
		               hp_frames(m->length));
	m->holder = (uintptr_t)address;
	return 0;
}

static void let_go(struct hp_mapping *m, uint32_t page, uint32_t end)
{
	struct hp_os *os = m->pool->os;

	if (m->holder && page < end)
		os->ops->unmap(os, (void *)(m->holder + hp_bytes(page - m->first)), hp_bytes(end - page));
}

static int map(struct hp_thread *t, struct hp_mapping *m, uintptr_t wish, uintptr_t *start, hp_error *error)
{
	int result = hold(m, error);

	if (result)
		return result;
	atomic_fetch_add(&hp_space.privates, 1); /* before a fork can find it */
	result = hp_space_map(t, m, wish, start, error);
	if (result)
		let_go(m, m->first, hp_mapping_end(m));
	return result;
}

static int check(const struct hp_thread *t, uint64_t length, unsigned prot, unsigned flags, uintptr_t wish,
                 hp_error *error)
{
	if (!length || !hp_is_frame_aligned(length))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "length %lu must be a multiple of 2 MiB, and not 0",
		               length);
	if (flags & ~FLAGS || (flags & POLICIES) == POLICIES)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "hp_map_private: flags 0x%x: unknown ones, or HP_FORK_WITHOUT and HP_FORK_COPY both",
		               flags);
	return hp_space_check(t->pool, prot, flags & ~POLICIES, wish, error);
}

int hp_map_private(hp_pool pool, uint64_t length, unsigned prot, unsigned flags, void **address, hp_error *error)
{
	uintptr_t wish = flags & (HP_MAP_WISH | HP_MAP_AT | HP_MAP_REPLACE) ? (uintptr_t)*address : 0, start;
	struct hp_mapping *m = NULL;
	struct hp_thread *t;
	uint32_t number;
	int result = hp_pool_enter(pool.id, &t, error);

	if (!result && hp_unit(t->pool) > 1)
		result = hp_fail(error, -ENOTSUP, HP_LIMIT_NONE, "there is no private memory in pages of 1 GiB");
	if (!result)
		result = check(t, length, prot, flags, wish, error);
	if (!result)
		result = hp_file_make(t, &(hp_file_options){.size = length}, 0, &number, error);
	if (result)
		return result;
	m = hp_mapping_new(t->pool, number, 0, (uint32_t)hp_frames(length), prot, flags | HP_MAPPING_PRIVATE);
	result = m ? map(t, m, wish, &start, error)
	           : hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "no memory to note the mapping");
	if (!result)
		*address = (void *)start;
	else
		free(m);
	hp_file_close(hp_file_handle(t->pool, number)); /* it lives as long as its mappings */
	return result;
}

void hp_private_forget(struct hp_thread *t, struct hp_mapping *m, uint32_t page, uint32_t end)
{
	bool ours = m->flags & HP_MAPPING_PRIVATE && !atomic_load(&m->frozen);
	struct hp_file_use use = hp_mapping_file(m);
	uint64_t uncovered = 0; /* nobody can reach them */

	if (ours)
		let_go(m, page, end);
	if (ours && t)
		hp_file_get(m->pool, m->file);
	hp_mapping_forget(t, m);
	if (!ours || !t)
		return;
	hp_file_remove(t, use, page, end, &uncovered);
	hp_file_put(t, m->file);
}

/* ---- freezing --------------------------------------------------------------------------------------------------- */

/* Frames of the file become copy on write. False: the kernel refuses, and they are shared as before. */
static bool freeze_run(struct hp_mapping *m, uint32_t page, uint32_t pages, hp_frame_id frame)
{
	int result = hp_mapping_place(m, page, pages, frame, HP_OS_MAP_REPLACE | HP_OS_MAP_PRIVATE);

	if (result) { /* somebody else took the pages that we held */
		result = hp_mapping_place(m, page, pages, frame,
		                          HP_OS_MAP_REPLACE | HP_OS_MAP_PRIVATE | HP_OS_MAP_UNRESERVED);
		if (!result)
			hp_log(HP_LOG_WARNING,
			       "the kernel's pool has no huge pages for %u pages of private memory: a store after this "
			       "fork is SIGBUS if there is none by then",
			       pages);
	}
	if (!result)
		return true;
	hp_log(HP_LOG_ERROR, "no child gets the private memory at 0x%lx: the kernel refuses to map it (errno %d)",
	       m->start, -result);
	hp_mapping_place(m, page, pages, frame, HP_OS_MAP_REPLACE);
	return false;
}

/* What is absent becomes the kernel's, in huge pages if it has them. */
static void freeze_absent(struct hp_thread *t, struct hp_mapping *m, uint32_t page, uint32_t pages)
{
	struct hp_os *os = m->pool->os;
	void *address = hp_mapping_at(m, page);
	int result = os->ops->anonymous(os, address, hp_bytes(pages), m->prot, kind_of(m->pool));

	if (result)
		result = os->ops->anonymous(os, address, hp_bytes(pages), m->prot, HP_BACKING_THP);
	if (result) {
		hp_log(HP_LOG_ERROR, "%u pages of private memory are lost: the kernel refuses to map them (errno %d)",
		       pages, -result);
		os->ops->vacate(os, address, hp_bytes(pages));
	}
	hp_reserve_drop(t, hp_mapping_file(m).record, page, pages);
}

static bool is_to_be_frozen(const struct hp_mapping *m)
{
	return m->flags & HP_MAPPING_PRIVATE && !(m->flags & POLICIES) && !atomic_load(&m->frozen) && !m->gone;
}

static void freeze(struct hp_thread *t, struct hp_mapping *m)
{
	struct hp_index index = hp_file_index(m->pool, hp_mapping_file(m).record);
	uint32_t end = hp_mapping_end(m);
	bool all = true;

	for (uint32_t page = m->first, run; page < end; page += run) {
		hp_frame_id frame;

		run = hp_mapping_run(t, m, page, &frame);
		if (run) {
			let_go(m, page, page + run);
			all &= freeze_run(m, page, run, frame);
			continue;
		}
		run = hp_index_next_page(index, page, end) - page;
		let_go(m, page, page + run);
		freeze_absent(t, m, page, run);
	}
	m->holder = 0;
	if (!all)
		m->flags |= HP_FORK_WITHOUT; /* private it stays */
	atomic_store(&m->frozen, true);
	atomic_store(&m->moving, false);
}

/* ---- copies ----------------------------------------------------------------------------------------------------- */

/* A copy of what is present, which the child moves to its place. */
static void copy(struct hp_thread *t, struct hp_mapping *m)
{
	struct hp_os *os = m->pool->os;
	void *address;
	int result = os->ops->reserve(os, m->length, HP_FRAME_SIZE, 0, &address);

	m->copy = 0;
	if (!result)
		result = os->ops->anonymous(os, address, m->length, HP_PROT_READ | HP_PROT_WRITE, HP_BACKING_BASE);
	if (result) {
		hp_log(HP_LOG_ERROR, "no memory to copy %lu bytes of private memory: the child does not get it",
		       m->length);
		return;
	}
	m->copy = (uintptr_t)address;
	for (uint32_t page = m->first; page < hp_mapping_end(m); page++) {
		hp_frame_id frame;

		if (hp_mapping_run(t, m, page, &frame) && hp_direct(m->pool, frame))
			os->ops->load(os, hp_direct(m->pool, frame), (void *)(m->copy + hp_bytes(page - m->first)),
			              HP_FRAME_SIZE);
	}
	os->ops->protect(os, address, m->length, m->prot);
}

static bool is_to_be_copied(const struct hp_mapping *m)
{
	return m->flags & HP_FORK_COPY && !atomic_load(&m->frozen) && !m->gone;
}

/* ---- kept from children ----------------------------------------------------------------------------------------- */

/*
 * At every fork anew: what a fault has put there since the last one would be inherited. Faults of other threads wait
 * until the fork is over; a handler in the forking thread cannot, and keeps what it puts there itself.
 */
static __thread bool forks;

static bool is_to_be_kept(const struct hp_mapping *m)
{
	return m->flags & HP_FORK_WITHOUT && !m->gone;
}

static void keep(const struct hp_mapping *m)
{
	struct hp_os *os = m->pool->os;

	if (os->ops->keep_from_children(os, (void *)m->start, m->length))
		hp_log(HP_LOG_ERROR, "this fork's child gets %lu bytes of private memory that it should not have",
		       m->length);
}

bool hp_private_is_moving(const struct hp_mapping *m)
{
	return atomic_load(&m->moving) && !(forks && m->flags & HP_FORK_WITHOUT);
}

void hp_private_faulted(const struct hp_mapping *m)
{
	if (forks && m->flags & HP_FORK_WITHOUT)
		keep(m);
}

/* ---- fork ------------------------------------------------------------------------------------------------------- */

/* The mappings that `is` says, in order. */
static struct hp_mapping *next(uintptr_t *at, bool (*is)(const struct hp_mapping *))
{
	struct hp_range range;

	while (hp_range_map_next(&hp_space.ranges, *at, &range)) {
		*at = range.end;
		if (is(range.value))
			return range.value;
	}
	return NULL;
}

void hp_private_prepare(void)
{
	struct hp_mapping *m;
	struct hp_thread *t;
	bool some = false;

	forks = true;
	if (!atomic_load(&hp_space.privates))
		return;
	/* Faults that put shared pages there come to an end first, and those that come wait. */
	for (uintptr_t at = 0; (m = next(&at, is_to_be_frozen)); some = true)
		atomic_store(&m->moving, true);
	for (uintptr_t at = 0; (m = next(&at, is_to_be_kept)); some = true)
		atomic_store(&m->moving, true);
	if (some)
		hp_space_reclaim(NULL);
	for (uintptr_t at = 0; (m = next(&at, is_to_be_frozen));)
		if (!hp_thread_enter(m->pool, &t))
			freeze(t, m);
		else /* no slot for this thread, or not a member */
			m->flags |= HP_FORK_WITHOUT;
	for (uintptr_t at = 0; (m = next(&at, is_to_be_copied));)
		if (!hp_thread_enter(m->pool, &t))
			copy(t, m);
	for (uintptr_t at = 0; (m = next(&at, is_to_be_kept));)
		keep(m);
}

void hp_private_in_parent(void)
{
	struct hp_mapping *m;

	forks = false;
	if (!atomic_load(&hp_space.privates))
		return;
	for (uintptr_t at = 0; (m = next(&at, is_to_be_kept));)
		atomic_store(&m->moving, false);
	for (uintptr_t at = 0; (m = next(&at, is_to_be_copied));) {
		if (m->copy)
			m->pool->os->ops->unmap(m->pool->os, (void *)m->copy, m->length);
		m->copy = 0;
	}
}

/* Before the program goes on in the child: it may touch the memory at once. Only system calls. */
void hp_private_in_child(void)
{
	struct hp_mapping *m;

	forks = false;
	if (!atomic_load(&hp_space.privates))
		return;
	for (uintptr_t at = 0; (m = next(&at, is_to_be_copied));) {
		struct hp_os *os = m->pool->os;

		if (m->copy && !os->ops->move(os, (void *)m->copy, (void *)m->start, m->length)) {
			atomic_store(&m->frozen, true);
			continue;
		}
		/* Not the parent's memory, whatever happens. */
		os->ops->unmap(os, (void *)m->start, m->length);
		if (m->copy)
			os->ops->unmap(os, (void *)m->copy, m->length);
		m->gone = true;
	}
}
