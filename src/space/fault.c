/* SPDX-License-Identifier: MIT */
/*
 * The fault path of lazy mappings. Everything that it reaches is signal safe: tests/architecture proves it.
 *
 * A page is resolved in three steps: it is made present in the file (file/allocate.c), mapped together with neighbours
 * that are present and lie beside it, and noted as mapped. Two threads that fault on the same window may both map it:
 * they put the same frames at the same place.
 */
#include "space/space.h"

#include "base/log.h"
#include "base/machine.h"
#include "file/lock.h"
#include "file/moving.h"
#include "file/place.h"
#include "pool/base.h"
#include "pool/extent.h"

#include <errno.h>
#include <sched.h>

/* How this thread has touched lazy memory: the window grows while it goes on where the last one ended. */
static __thread struct {
	const struct hp_mapping *mapping;
	uint32_t next;   /* the page after the last window */
	uint32_t window; /* pages */
} touches;

/* The last fault of this thread on a page that was mapped already, and how often its file's pages had been moved. */
static __thread struct {
	const struct hp_mapping *mapping;
	uintptr_t address;
	uint32_t times, moves;
} repeated;

/* A lost race leaves nothing to do, once or twice; a page that keeps faulting was protected by somebody else. */
#define REPEATS_MAX 8u

/* The window of an ordinary fault at `page`, by what this thread did before. */
static uint32_t choose_window(const struct hp_mapping *m, uint32_t page)
{
	uint32_t most = m->pool->shared->fault_window;

	if (touches.mapping == m && touches.next == page)
		touches.window = touches.window * 2 < most ? touches.window * 2 : most;
	else
		touches.window = 1;
	touches.mapping = m;
	return touches.window;
}

struct run {
	uint32_t page, pages;
	hp_frame_id frame;
};

/*
 * The pages around `page` that are present in frames beside its own and not mapped yet, inside the aligned block of the
 * largest window, the mapping, the chunk and the segment. Forward at least `window` pages may be looked at. A page that
 * is being moved is left out.
 */
static struct run run_around(const struct hp_mapping *m, uint32_t page, uint32_t window)
{
	const struct hp_file_record *file = hp_file_at(m->pool, m->file);
	struct hp_index index = hp_file_index(m->pool, file);
	uint32_t block = m->pool->shared->fault_window, low = page & ~(block - 1), high = low + block;
	uint32_t chunk = page & ~(HP_REGION_FRAMES - 1);
	struct run run = {page, 1, hp_index_lookup(index, page)};
	uint64_t frames_end, frames_start;

	high = high > page + window ? high : page + window;
	high = (uint32_t)hp_min(high, atomic_load(&hp_file_at(m->pool, m->file)->pages)); /* reach may be behind it */
	low = low > m->first ? low : m->first;
	high = (uint32_t)hp_min(hp_min(high, m->first + atomic_load(&m->reach)), chunk + HP_REGION_FRAMES);
	frames_end = hp_segment_end(m->pool, run.frame);
	frames_start = frames_end - hp_segment_frames(m->pool->shared);
	/* Whether it moves is asked first: what is looked up then is the new frame, or the move waits for us. */
	while (page + run.pages < high && run.frame + run.pages < frames_end &&
	       !hp_file_is_moving(file, page + run.pages) &&
	       hp_index_lookup(index, page + run.pages) == run.frame + run.pages &&
	       !hp_touched_test(m->touched, page + run.pages))
		run.pages++;
	while (run.page > low && run.frame > frames_start && !hp_file_is_moving(file, run.page - 1) &&
	       hp_index_lookup(index, run.page - 1) == run.frame - 1 && !hp_touched_test(m->touched, run.page - 1)) {
		run.page--;
		run.frame--;
		run.pages++;
	}
	return run;
}

/*
 * A chunk whose 512 pages are all mapped and lie in one region becomes one kernel mapping, which is where the kernel
 * shares page tables. The new mapping is made at a scratch address and moved over the old ones: a failed replacement in
 * place would leave a hole where live data was.
 */
static void merge_chunk(const struct hp_mapping *m, uint32_t page)
{
	struct hp_os *os = m->pool->os;
	struct hp_index index = hp_file_index(m->pool, hp_file_at(m->pool, m->file));
	uint32_t first = page & ~(HP_REGION_FRAMES - 1);
	struct hp_mapping scratch = *m;
	hp_frame_id frame = hp_index_lookup(index, first);
	void *address;

	/* What belongs to other pieces of the mapping is not in the count, or was before it was cut. */
	if (first < m->first || first + HP_REGION_FRAMES > hp_mapping_end(m) ||
	    first + HP_REGION_FRAMES > atomic_load(&hp_file_at(m->pool, m->file)->pages) ||
	    hp_index_run(index, first, HP_REGION_FRAMES) != HP_REGION_FRAMES ||
	    hp_segment_end(m->pool, frame) - frame < HP_REGION_FRAMES ||
	    atomic_load(&hp_file_at(m->pool, m->file)->moving) ||
	    os->ops->reserve(os, HP_REGION_SIZE, HP_REGION_SIZE, 0, &address))
		return;
	scratch.start = (uintptr_t)address;
	scratch.first = first;
	if (!hp_mapping_place(&scratch, first, HP_REGION_FRAMES, frame, HP_OS_MAP_REPLACE)) {
		if (!os->ops->move(os, address, hp_mapping_at(m, first), HP_REGION_SIZE))
			return;
		/* The kernel may have taken the old mappings away already. */
		if (hp_mapping_place(m, first, HP_REGION_FRAMES, frame, HP_OS_MAP_REPLACE))
			hp_log(HP_LOG_ERROR,
			       "pages %u to %u of a mapping are lost: the kernel has no memory to map them", first,
			       first + HP_REGION_FRAMES - 1);
	}
	os->ops->unmap(os, address, HP_REGION_SIZE);
}

/* Maps what is present around a page. The file lock is held for reading. */
static int map_around(struct hp_thread *t, struct hp_mapping *m, uint32_t page, uint32_t window, uint32_t *end)
{
	struct run run = run_around(m, page, window);
	/* Memory of places for base pages comes when it is touched. */
	unsigned populate = hp_is_base(m->pool, run.frame) ? 0 : HP_OS_MAP_POPULATE;
	int result = hp_mapping_place(m, run.page, run.pages, run.frame, HP_OS_MAP_REPLACE | populate);

	if (result)
		return result;
	if (hp_touched_set(m->touched, run.page, run.pages) == HP_REGION_FRAMES)
		merge_chunk(m, page);
	*end = run.page + run.pages;
	atomic_fetch_add_explicit(&t->pool->shared->faults, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&t->pool->shared->fault_pages, run.pages, memory_order_relaxed);
	return 0;
}

/* What the fault mutex is chosen by: all who map a shared page meet, and private memory is its mapping's alone. */
static struct hp_fault_key key_of(const struct hp_mapping *m, uint32_t page)
{
	if (m->flags & HP_MAPPING_PRIVATE)
		return (struct hp_fault_key){1ull << 32 | m->vma, hp_frames((uintptr_t)hp_mapping_at(m, page))};
	return (struct hp_fault_key){m->file, page};
}

/* An access beyond the file's end is SIGBUS from now on. Others may be putting pages there that were inside before. */
static int cut_to_size(struct hp_thread *t, struct hp_mapping *m)
{
	struct hp_file_use use = hp_mapping_file(m);
	int result;

	hp_file_mapping_lock(t, use, m->vma);
	result = hp_mapping_cut(m, atomic_load(&use.record->pages));
	hp_file_mapping_unlock(t, use, m->vma);
	return result ? -ENOMEM : -ENXIO;
}

/*
 * A page that is inside again, after the mapping was cut, is not the mapping's before its process has caught up
 * (space/catch_up.c): who cuts it the next time looks no further than its reach.
 */
static bool is_reached(const struct hp_mapping *m, uint32_t page)
{
	return page - m->first < atomic_load(&m->reach);
}

/* -EBUSY: the page is being moved. */
static int resolve_locked(struct hp_thread *t, struct hp_mapping *m, uint32_t page, uint32_t window, uint32_t *end)
{
	struct hp_file_use use = hp_mapping_file(m);
	uint32_t left = hp_mapping_end(m) - page;
	int result;

	if (hp_file_is_moving(use.record, page))
		return -EBUSY;
	result = hp_file_fault_locked(t, use, page, (window < left ? window : left) - 1, key_of(m, page));
	return result ? result : map_around(t, m, page, window, end);
}

/* -ENXIO: the page lies beyond the file's end, or did: the access is to be repeated, and mostly SIGBUS. */
static int resolve(struct hp_thread *t, struct hp_mapping *m, uint32_t page, uint32_t window, uint32_t *end)
{
	struct hp_file_use use = hp_mapping_file(m);
	uint32_t unit = hp_unit(m->pool);
	bool reached;
	int result;

	page -= page % unit;
	window = window > unit ? window : unit;
	do {
		hp_file_await_move(t, use, page);
		hp_file_fault_lock(t, use, m->vma);
		reached = is_reached(m, page);
		result = reached ? resolve_locked(t, m, page, window, end) : -ENXIO;
		hp_file_fault_unlock(t, use, m->vma);
	} while (result == -EBUSY);
	return result == -ENXIO && reached ? cut_to_size(t, m) : result;
}

int hp_mapping_populate(struct hp_thread *t, struct hp_mapping *m, uint32_t page, uint32_t pages)
{
	uint32_t end = page + pages;
	int result = 0;

	while (page < end && !result) {
		uint32_t left = end - page, in_chunk = HP_REGION_FRAMES - page % HP_REGION_FRAMES;

		if (hp_touched_test(m->touched, page))
			page++;
		else
			result = resolve(t, m, page, left < in_chunk ? left : in_chunk, &page);
	}
	return result;
}

/*
 * Somebody mapped the page already, or it was write-protected to be moved. True: the access can be repeated.
 */
static bool may_repeat(const struct hp_mapping *m, uintptr_t address)
{
	uint32_t moves = atomic_load(&hp_mapping_file(m).record->moves);

	if (repeated.mapping != m || repeated.address != address || repeated.moves != moves) {
		repeated.mapping = m;
		repeated.address = address;
		repeated.moves = moves;
		repeated.times = 0;
	}
	return repeated.times++ < REPEATS_MAX;
}

/* A store to a page that is mapped: true if it was being moved, and no longer is. */
static bool waited_for_move(struct hp_mapping *m, uint32_t page)
{
	struct hp_file_use use = hp_mapping_file(m);
	struct hp_thread *t;
	int64_t start;

	if (!hp_file_is_moving(use.record, page) || hp_thread_enter_blocked(m->pool, &t))
		return false;
	start = hp_now_ns();
	hp_file_await_move(t, use, page);
	hp_histogram_add(&m->pool->shared->collapse.pause, (uint64_t)(hp_now_ns() - start));
	return true;
}

static enum hp_fault_result fault_in(struct hp_mapping *m, uintptr_t address, bool write)
{
	uint32_t page = m->first + (uint32_t)hp_frames(address - m->start);
	struct hp_thread *t;
	int result;

	if (m->gone)
		return HP_FAULT_FOREIGN;
	if (hp_private_is_moving(m)) {
		sched_yield();
		return HP_FAULT_RESOLVED;
	}
	if (!(m->prot & (write ? HP_PROT_WRITE : HP_PROT_READ)))
		return HP_FAULT_FOREIGN;
	/* Ready memory, or the kernel's, may have come in the place of lazy memory that was touched. */
	if (!(m->flags & HP_MAP_LAZY) || atomic_load(&m->frozen) || hp_touched_test(m->touched, page))
		return waited_for_move(m, page) || may_repeat(m, address) ? HP_FAULT_RESOLVED : HP_FAULT_FOREIGN;
	result = hp_thread_enter_blocked(m->pool, &t);
	if (!result)
		result = resolve(t, m, page, choose_window(m, page), &touches.next);
	hp_private_faulted(m);
	repeated.mapping = NULL;
	if (!result || result == -ENXIO)
		return HP_FAULT_RESOLVED;
	hp_log(HP_LOG_ERROR, "the fault at 0x%lx, page %u of its file, cannot be resolved: %s (errno %d)", address,
	       page,
	       result == -ECHILD   ? "this process is not a member of the pool"
	       : result == -EAGAIN ? "the pool has no slot left for this thread"
	                           : "the kernel refuses to map the frame",
	       -result);
	return HP_FAULT_FAILED;
}

enum hp_fault_result hp_space_fault(uintptr_t address, bool write)
{
	struct hp_epoch_section section;
	enum hp_fault_result result;
	struct hp_mapping *m;

	hp_process_is_known(); /* the epoch is the parent's until then */
	section = hp_epoch_enter(&hp_space.epoch);
	m = hp_range_map_find(&hp_space.ranges, address);
	result = m ? fault_in(m, address, write) : HP_FAULT_FOREIGN;

	hp_epoch_leave(&hp_space.epoch, section);
	return result;
}
