/* SPDX-License-Identifier: MIT */
/*
 * Filling a pool: absent frames become zeroed ones, on all CPUs.
 *
 * First the direct map of every region is made, which takes the kernel's reservation and so tells at once what the
 * kernel's pool of huge pages cannot give. Then threads populate it in pieces. A piece that fails ends the segment
 * there: what lies before it is kept, what was filled beyond it is given back, and the next kind of backing takes over.
 *
 * A pool that is filled late goes on where it ended, when the kernel has more.
 */
#include "pool/base.h"
#include "pool/extent.h"

#include "base/error.h"
#include "base/machine.h"
#include "sync/futex.h"

#include <errno.h>

#define PIECE_FRAMES 16u /* populated by one call, or a page of the kernel's */
#define FILL_THREADS_MAX 64u

struct fill {
	struct hp_pool_view *view;
	hp_backing backing;
	hp_frame_id first;          /* of the segment */
	uint32_t frames;            /* of the segment that are mapped, to be filled from `next` on */
	uint32_t piece;             /* frames */
	bool may_be_small;          /* base pages will do where huge ones cannot be had */
	_Atomic uint32_t next;      /* first frame that no thread has begun with */
	_Atomic uint32_t failed_at; /* lowest frame of a piece that failed */
	_Atomic int error;
	_Atomic int collapse_error;
	_Atomic uint32_t small;
};

static void note_failure(struct fill *fill, uint32_t at, int error)
{
	uint32_t lowest = atomic_load(&fill->failed_at);

	while (at < lowest && !atomic_compare_exchange_weak(&fill->failed_at, &lowest, at))
		;
	atomic_store(&fill->error, error);
}

/* Shared memory: base pages are there; makes each frame of them huge. */
static int make_huge(struct fill *fill, uint32_t at, uint32_t frames)
{
	struct hp_os *os = fill->view->os;

	for (uint32_t i = 0; i < frames; i++) {
		hp_frame_id frame = fill->first + at + i;
		int result = os->ops->collapse(os, fill->view->direct + hp_bytes(frame), HP_FRAME_SIZE);

		if (!result) {
			hp_huge_set(fill->view, frame, 1, true);
			continue;
		}
		atomic_fetch_add(&fill->small, 1);
		atomic_store(&fill->collapse_error, result);
		if (!fill->may_be_small)
			return result;
	}
	return 0;
}

static void *fill_pieces(void *context)
{
	struct fill *fill = context;
	struct hp_os *os = fill->view->os;
	char *base = fill->view->direct + hp_bytes(fill->first);

	for (;;) {
		uint32_t at = atomic_fetch_add(&fill->next, fill->piece);
		uint32_t frames = at < fill->frames ? (uint32_t)hp_min(fill->piece, fill->frames - at) : 0;
		int result;

		if (!frames || at >= atomic_load(&fill->failed_at))
			return NULL;
		result = os->ops->populate(os, base + hp_bytes(at), hp_bytes(frames));
		if (!result && fill->backing == HP_BACKING_THP)
			result = make_huge(fill, at, frames);
		if (result)
			note_failure(fill, at, result);
	}
}

/* Without threads the caller does it alone: a thread that cannot be made is no reason to fail. */
static void fill_in_parallel(struct fill *fill)
{
	uint32_t want = (uint32_t)hp_min(hp_min(hp_cpu_count(), FILL_THREADS_MAX), fill->frames / fill->piece),
		 made = 0;
	pthread_t thread[FILL_THREADS_MAX];
	sigset_t saved;

	hp_signals_block(&saved); /* our threads run no handler of the program */
	while (made + 1 < want && pthread_create(&thread[made], NULL, fill_pieces, fill) == 0)
		made++;
	hp_signals_restore(&saved);
	fill_pieces(fill);
	while (made)
		pthread_join(thread[--made], NULL);
}

/*
 * How many of `want` frames the kernel gives to a region when it does not give all: what its pool has, or as much as a
 * control group may reserve, which nobody tells but the kernel.
 */
static uint32_t map_what_there_is(struct hp_pool_view *view, uint32_t region, uint32_t want, int *error)
{
	uint32_t there = view->direct_frames[region], low = there, high;
	uint32_t have = (uint32_t)hp_min(want, there + view->os->ops->hugetlb_available(view->os));

	*error = have < want || hp_unit(view) > 1 ? -ENOMEM : -EFAULT;
	if (hp_unit(view) > 1)
		return 0; /* a page is there or not */
	/* Others take and give meanwhile, so this is worth a try also when it is as many as before. */
	if (have == there || !hp_direct_map(view, region, have))
		return have;
	high = have;
	while (high > low + 1) {
		uint32_t middle = low + (high - low) / 2;

		if (hp_direct_map(view, region, middle))
			high = middle;
		else
			low = middle;
	}
	return low;
}

/* Maps the direct map of `frames` frames of a segment, of which `mapped` are; returns how many could be. */
static uint32_t map_segment(struct hp_pool_view *view, const struct hp_segment_record *segment, uint32_t mapped,
                            uint32_t frames, int *error)
{
	while (mapped < frames) {
		uint32_t before = mapped - mapped % HP_REGION_FRAMES;
		uint32_t want = (uint32_t)hp_min(HP_REGION_FRAMES, frames - before);
		uint32_t region = segment->first_region + before / HP_REGION_FRAMES;
		int result = hp_direct_map(view, region, want);

		if (result == -ENOMEM && segment->backing == HP_BACKING_HUGETLB)
			return before + map_what_there_is(view, region, want, error);
		if (result) {
			*error = result;
			return mapped;
		}
		mapped = before + want;
	}
	return mapped;
}

/* Gives back what a segment has beyond its first `keep` frames, of `mapped`. */
static void trim_segment(struct hp_pool_view *view, const struct hp_segment_record *segment, uint32_t keep,
                         uint32_t mapped)
{
	struct hp_os *os = view->os;
	uint32_t index = (uint32_t)(segment - view->shared->segment);

	if (keep == mapped)
		return;
	for (uint32_t r = keep / HP_REGION_FRAMES; r * HP_REGION_FRAMES < mapped; r++) {
		uint32_t left = keep > r * HP_REGION_FRAMES ? keep - r * HP_REGION_FRAMES : 0;

		atomic_store(&view->direct_frames[segment->first_region + r], left);
	}
	os->ops->vacate(os, view->direct + hp_bytes((uint64_t)segment->first_region * HP_REGION_FRAMES + keep),
	                hp_bytes(mapped - keep));
	os->ops->segment_punch(os, view->segment[index], hp_bytes(keep), hp_bytes(mapped - keep));
}

/* Enters filled frames [from, end) of a segment into the pool's books. */
static void publish(struct hp_thread *t, struct hp_segment_record *segment, uint32_t from, uint32_t end)
{
	struct hp_pool_view *view = t->pool;
	hp_frame_id first = segment->first_region * HP_REGION_FRAMES + from;
	uint32_t frames = end - from;
	sigset_t saved;

	hp_signals_block(&saved);
	hp_intent_begin(t->intents, HP_INTENT_FILL, 0, first, frames);
	for (uint32_t i = 0; i < frames; i++)
		hp_frame_fill(&view->frames[first + i]);
	atomic_store_explicit(&segment->filled, end, memory_order_release);
	if (frames)
		hp_put(t, first, frames);
	hp_uncommit(view, frames);
	hp_intent_end(t->intents);
	hp_signals_restore(&saved);
}

/* What was in the way, in words that say what to do. */
static int explain(const struct fill *fill, int error, uint32_t wanted, uint32_t got, hp_error *out)
{
	uint64_t missing = hp_bytes(wanted - got) >> 20;

	if (fill->backing == HP_BACKING_HUGETLB && error == -EFAULT)
		return hp_fail(out, -ENOSPC, HP_LIMIT_CGROUP,
		               "the control group's hugetlb limit leaves %u of %u huge pages; raise hugetlb.2MB.max, "
		               "and hugetlb.2MB.rsvd.max",
		               got, wanted);
	if (hp_unit(fill->view) > 1)
		return hp_fail(out, -ENOMEM, HP_LIMIT_KERNEL_POOL,
		               "the kernel has %u of %u huge pages of 1 GiB free; add %u to "
		               "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
		               got / hp_unit(fill->view), wanted / hp_unit(fill->view),
		               (wanted - got) / hp_unit(fill->view));
	if (fill->backing == HP_BACKING_HUGETLB)
		return hp_fail(out, -ENOMEM, HP_LIMIT_KERNEL_POOL,
		               "the kernel has %u of %u huge pages free; add %u to /proc/sys/vm/nr_hugepages", got,
		               wanted, wanted - got);
	if (atomic_load(&fill->collapse_error) && !fill->may_be_small)
		return hp_fail(out, -ENOTSUP, HP_LIMIT_NONE,
		               "the kernel does not make shared memory huge (errno %d); see "
		               "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
		               -atomic_load(&fill->collapse_error));
	if (error == -EFAULT)
		return hp_fail(out, -ENOMEM, HP_LIMIT_CGROUP,
		               "the control group's memory limit is %lu MiB short; raise memory.max", missing);
	return hp_fail(out, error, HP_LIMIT_MEMORY, "memory is %lu MiB short (errno %d); ask for a smaller pool",
	               missing, -error);
}

/* Memory is not refused when it runs out: somebody is killed. So a pool that cannot be filled is not begun. */
bool hp_pool_has_room(struct hp_os *os, uint64_t frames, hp_error *why)
{
	hp_limit limit;
	uint64_t room = os->ops->memory_room(os, &limit);

	if (hp_bytes(frames) <= room)
		return true;
	hp_fail(why, -ENOMEM, limit, "%lu MiB are needed and %s leaves %lu MiB without anybody being killed; %s",
	        hp_bytes(frames) >> 20, limit == HP_LIMIT_CGROUP ? "the control group's memory limit" : "the machine",
	        room >> 20,
	        limit == HP_LIMIT_CGROUP ? "raise memory.max or ask for a smaller pool" : "ask for a smaller pool");
	return false;
}

/* Fills up to `frames` frames of a segment; returns how many there are now, and why not more. */
static uint32_t fill_segment(struct hp_thread *t, struct hp_segment_record *segment, hp_backing backing,
                             bool may_be_small, uint32_t frames, hp_error *why)
{
	struct hp_pool_view *view = t->pool;
	int map_error = 0;
	uint32_t from = atomic_load(&segment->filled);
	uint32_t mapped = map_segment(view, segment, from, frames, &map_error), got;
	struct fill fill = {
		.view = view,
		.backing = backing,
		.first = segment->first_region * HP_REGION_FRAMES,
		.frames = mapped,
		.piece = hp_unit(view) > 1 ? hp_unit(view) : PIECE_FRAMES,
		.may_be_small = may_be_small,
		.next = from,
		.failed_at = mapped,
	};

	fill_in_parallel(&fill);
	got = atomic_load(&fill.failed_at);
	trim_segment(view, segment, got, mapped);
	if (got < mapped || mapped < frames)
		explain(&fill, got < mapped ? atomic_load(&fill.error) : map_error, frames, got, why);
	else if (atomic_load(&fill.collapse_error))
		hp_fail(why, -ENOTSUP, HP_LIMIT_NONE,
		        "%u of %u frames stay in base pages: the kernel does not make shared memory huge (errno %d)",
		        atomic_load(&fill.small), frames, -atomic_load(&fill.collapse_error));
	publish(t, segment, from, got);
	return got;
}

void hp_fill_end(struct hp_pool_shared *shared, enum hp_fill_state state)
{
	atomic_store(&shared->fill_state, state);
	hp_futex_wake(&shared->fill_state, INT_MAX);
}

int hp_pool_fill(struct hp_thread *t, const hp_pool_options *options, hp_error *error)
{
	struct hp_pool_view *view = t->pool;
	struct hp_pool_shared *shared = view->shared;
	uint32_t wanted = (uint32_t)shared->size_frames, got = 0;
	hp_error why = {.code = 0};
	int64_t start = hp_now_ns();

	if (options->backing == HP_BACKING_THP || options->backing == HP_BACKING_BASE)
		hp_fail(&why, -ENOTSUP, HP_LIMIT_NONE, "the pool was asked for with backing %s",
		        hp_backing_name(options->backing));
	for (uint32_t s = 0; s < hp_frame_segments(shared) && got < wanted; s++) {
		struct hp_segment_record *segment = &shared->segment[s];
		hp_backing kind = segment->backing == HP_BACKING_HUGETLB || options->backing == HP_BACKING_BASE
		                          ? segment->backing
		                          : HP_BACKING_THP;
		hp_error now = {.code = 0};

		if (view->segment[s] == HP_NO_SEGMENT) {
			hp_fail(&why, -ENOTSUP, HP_LIMIT_NONE, "this kernel has no huge pages of 2 MiB (hugetlb)");
			continue;
		}
		if (kind != HP_BACKING_HUGETLB && !hp_pool_has_room(view->os, wanted - got, &why))
			break;
		got += fill_segment(t, segment, kind, options->backing != HP_BACKING_THP, wanted - got, &now);
		if (now.code && (!why.code || got < wanted))
			why = now; /* the first reason why it is not better, or the last why it is not enough */
	}
	atomic_store(&shared->fill_ns, (uint64_t)(hp_now_ns() - start));
	shared->fill_error = why;
	hp_fill_end(shared, got < wanted && !shared->late ? HP_FILL_FAILED : HP_FILL_DONE);
	if (got == wanted || shared->late)
		return 0;
	if (error)
		*error = why;
	return why.code;
}

uint32_t hp_pool_fill_more(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;
	struct hp_segment_record *segment = &view->shared->segment[0];
	uint32_t filled = atomic_load(&segment->filled), wanted = (uint32_t)view->shared->size_frames;
	uint32_t end = (uint32_t)hp_min(wanted, filled + view->os->ops->hugetlb_available(view->os));
	hp_error why = {.code = 0};

	if (atomic_load(&view->shared->fill_state) == HP_FILL_RUNNING)
		return 0; /* another thread is about it: HP_POOL_BACKGROUND */
	if (filled < end)
		end = fill_segment(t, segment, HP_BACKING_HUGETLB, false, end, &why);
	if (end < wanted && !why.code)
		hp_fail(&why, -ENOMEM, HP_LIMIT_KERNEL_POOL,
		        "%u of %u frames are there; the rest comes as the kernel has huge pages: add %u to "
		        "/proc/sys/vm/nr_hugepages",
		        end, wanted, wanted - end);
	view->shared->fill_error = why;
	return end - filled;
}

void hp_fill_reap(struct hp_pool_view *view, const uint64_t *dead)
{
	struct hp_pool_shared *shared = view->shared;

	if (!hp_is_dead(dead, atomic_load(&shared->fill_process)) ||
	    atomic_load(&shared->fill_state) != HP_FILL_RUNNING)
		return;
	hp_fail(&shared->fill_error, -EPIPE, HP_LIMIT_NONE,
	        "the process that filled the pool is gone; make another pool");
	hp_fill_end(shared, HP_FILL_FAILED);
}
