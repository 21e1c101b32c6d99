/* SPDX-License-Identifier: MIT */
/* Making, closing and describing pools. */
#include "pool/extent.h"

#include "base/error.h"
#include "base/log.h"
#include "base/machine.h"
#include "os/budget.h"
#include "os/life.h"
#include "pool/base.h"
#include "pool/hole.h"
#include "pool/workers.h"
#include "sync/futex.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hp_background_fill {
	pthread_t thread;
	struct hp_pool_view *view;
	hp_pool_options options;
};

/* ---- layout ----------------------------------------------------------------------------------------------------- */

/*
 * Base pages for what files have: each a map of 2 bits for every frame of the pool, since it may grow to that; and
 * nodes of the index, of which a promised page needs two if its neighbours are far away. What is not used costs
 * nothing.
 */
static uint64_t file_pages_for(uint64_t frames)
{
	return hp_min((frames / 4 / HP_BASE_PAGE_SIZE + 5) * HP_FILES_MAX + 2 * frames + 1024, UINT32_MAX);
}

static void describe_sections(uint32_t regions, struct hp_section_spec *spec)
{
	uint64_t frames = (uint64_t)regions * HP_REGION_FRAMES, pages = file_pages_for(frames);

	memset(spec, 0, sizeof(*spec) * (HP_SECTIONS + 1));
	spec[HP_SECTION_SHARED] = (struct hp_section_spec){"shared", sizeof(struct hp_pool_shared), 1};
	spec[HP_SECTION_PROCESSES] = (struct hp_section_spec){"processes", sizeof(struct hp_process), HP_PROCESSES_MAX};
	spec[HP_SECTION_SLOTS] = (struct hp_section_spec){"slots", sizeof(struct hp_slot), HP_SLOTS_MAX};
	spec[HP_SECTION_LOCKS] = (struct hp_section_spec){"locks", sizeof(struct hp_lock_shared), 1};
	spec[HP_SECTION_LOCK_RECORDS] =
		(struct hp_section_spec){"lock records", sizeof(struct hp_lock_record), HP_SLOTS_MAX};
	spec[HP_SECTION_LOCK_POINTS] = (struct hp_section_spec){"lock points", HP_POINT_NAME, HP_POINTS_MAX};
	spec[HP_SECTION_INTENTS] = (struct hp_section_spec){"intents", sizeof(struct hp_intents), HP_SLOTS_MAX};
	spec[HP_SECTION_FAULT_MUTEXES] =
		(struct hp_section_spec){"fault mutexes", sizeof(struct hp_fault_mutex), HP_FAULT_MUTEXES_MAX};
	spec[HP_SECTION_CPU_CACHES] =
		(struct hp_section_spec){"CPU caches", sizeof(struct hp_cpu_cache), HP_CPU_CACHES};
	spec[HP_SECTION_REGIONS] = (struct hp_section_spec){"regions", sizeof(struct hp_region), regions};
	spec[HP_SECTION_FRAMES] = (struct hp_section_spec){"frames", sizeof(struct hp_frame), frames};
	spec[HP_SECTION_ZEROED_MAP] = (struct hp_section_spec){"zeroed map", sizeof(uint64_t), frames / 64};
	spec[HP_SECTION_FREE_MAP] = (struct hp_section_spec){"free map", sizeof(uint64_t), frames / 64};
	spec[HP_SECTION_HUGE_MAP] = (struct hp_section_spec){"huge map", sizeof(uint64_t), frames / 64};
	spec[HP_SECTION_FILES] = (struct hp_section_spec){"files", HP_FILE_RECORD_SIZE, HP_FILES_MAX};
	spec[HP_SECTION_NAMES] = (struct hp_section_spec){"names", HP_FILE_NAME_SIZE, HP_FILES_MAX};
	spec[HP_SECTION_VMAS] = (struct hp_section_spec){"mappings", HP_VMA_RECORD_SIZE, HP_VMAS_MAX};
	spec[HP_SECTION_OPENS] =
		(struct hp_section_spec){"opens", sizeof(uint16_t), (uint64_t)HP_PROCESSES_MAX * HP_FILES_MAX};
	spec[HP_SECTION_PAGES_MAP] = (struct hp_section_spec){"pages map", hp_pages_bitmap_bytes(pages), 1};
	spec[HP_SECTION_PAGES] = (struct hp_section_spec){"pages", HP_BASE_PAGE_SIZE, pages};
}

void hp_pool_find_sections(struct hp_pool_view *view)
{
	struct hp_arena *arena = &view->arena;

	view->shared = hp_arena_section(arena, HP_SECTION_SHARED);
	view->slots = hp_arena_section(arena, HP_SECTION_SLOTS);
	view->processes.record = hp_arena_section(arena, HP_SECTION_PROCESSES);
	view->processes.slots = view->slots;
	view->processes.control = arena->handle;
	view->processes.identity = hp_life_identity(arena->handle);
	view->locks = (struct hp_lock_domain){
		.shared = hp_arena_section(arena, HP_SECTION_LOCKS),
		.slots = view->slots,
		.records = hp_arena_section(arena, HP_SECTION_LOCK_RECORDS),
		.slot_count = HP_SLOTS_MAX,
		.base = (const char *)arena->header,
	};
	view->processes.slots_used = &view->locks.shared->slots_used;
	view->lock_points = hp_arena_section(arena, HP_SECTION_LOCK_POINTS);
	view->intents = hp_arena_section(arena, HP_SECTION_INTENTS);
	view->fault_mutexes = hp_arena_section(arena, HP_SECTION_FAULT_MUTEXES);
	view->caches = hp_arena_section(arena, HP_SECTION_CPU_CACHES);
	view->regions = hp_arena_section(arena, HP_SECTION_REGIONS);
	view->frames = hp_arena_section(arena, HP_SECTION_FRAMES);
	view->zeroed_map = hp_arena_section(arena, HP_SECTION_ZEROED_MAP);
	view->free_map = hp_arena_section(arena, HP_SECTION_FREE_MAP);
	view->huge_map = hp_arena_section(arena, HP_SECTION_HUGE_MAP);
	view->files = hp_arena_section(arena, HP_SECTION_FILES);
	view->vmas = hp_arena_section(arena, HP_SECTION_VMAS);
	view->opens = hp_arena_section(arena, HP_SECTION_OPENS);
	view->names = hp_arena_section(arena, HP_SECTION_NAMES);
	view->pages.pages = &view->shared->pages;
	view->pages.bitmap = hp_arena_section(arena, HP_SECTION_PAGES_MAP);
	view->pages.memory = hp_arena_section(arena, HP_SECTION_PAGES);
}

int hp_pool_verify_arena(const struct hp_pool_view *view)
{
	struct hp_section_spec spec[HP_SECTIONS + 1];

	describe_sections(view->shared->regions, spec);
	return hp_arena_verify(&view->arena, spec);
}

static int create_arena(struct hp_pool_view *view, const hp_pool_options *options, const struct hp_tuning *tuning,
                        hp_error *error)
{
	struct hp_section_spec spec[HP_SECTIONS + 1];
	bool gigantic = options->backing == HP_BACKING_HUGETLB_1G;
	bool hugetlb = gigantic || options->backing == HP_BACKING_AUTO || options->backing == HP_BACKING_HUGETLB;
	bool memory = !gigantic && options->backing != HP_BACKING_HUGETLB;
	uint32_t each = (uint32_t)((hp_frames_up(options->max_size) + HP_REGION_FRAMES - 1) / HP_REGION_FRAMES);
	struct hp_pool_shared *shared;
	uint32_t segments = 0;
	int result;

	describe_sections(each * (uint32_t)(hugetlb + memory + !gigantic), spec);
	result = hp_arena_create(view->os, spec, &view->arena, error);
	if (result)
		return result;
	hp_pool_find_sections(view);
	shared = view->shared;
	if (hugetlb)
		shared->segment[segments++] = (struct hp_segment_record){.backing = HP_BACKING_HUGETLB};
	if (memory)
		shared->segment[segments++] = (struct hp_segment_record){
			.backing = options->backing == HP_BACKING_BASE ? HP_BACKING_BASE : HP_BACKING_THP};
	shared->frame_regions = each * segments;
	if (!gigantic)
		shared->segment[segments++] = (struct hp_segment_record){.backing = HP_BACKING_BASE};
	for (uint32_t s = 0; s < segments; s++)
		shared->segment[s].first_region = s * each;
	shared->regions = each * segments;
	shared->segments = segments;
	shared->unit = gigantic ? HP_REGION_FRAMES : 1;
	shared->size_frames = hp_frames_up(options->size);
	shared->fault_window = gigantic ? HP_REGION_FRAMES : tuning->fault_window;
	shared->fault_mutexes = tuning->fault_mutexes;
	shared->fault_sleep_us = tuning->fault_sleep_us;
	shared->file_lock = tuning->file_lock;
	shared->resv_lock = tuning->resv_lock;
	shared->zero_mb_per_s = tuning->zero_mb_per_s;
	shared->late = (options->flags & HP_POOL_LATE) != 0;
	shared->collapse_relock = tuning->collapse;
	shared->collapse_none = tuning->collapse_none;
	shared->collapse_mb_per_s = tuning->collapse_mb_per_s;
	shared->collapse_scan_ms = tuning->collapse_scan_ms;
	shared->collapse_verify = tuning->collapse_verify;
	shared->table_sharing =
		!(options->flags & HP_POOL_NO_TABLE_SHARING) && view->os->ops->shares_page_tables(view->os);
	hp_table_init(&shared->files, HP_FILES_MAX);
	hp_table_init(&shared->vmas, HP_VMAS_MAX);
	hp_base_init(view);
	hp_pages_init(&view->pages, (uint32_t)spec[HP_SECTION_PAGES].count);
	hp_locks_init(&view->locks);
	HP_ASSERT(hp_points_count() <= HP_POINTS_MAX);
	for (uint32_t p = 0; p < hp_points_count(); p++)
		hp_point_format(p + 1, view->lock_points[p]);
	result = hp_slots_init(view->slots, HP_SLOTS_MAX);
	if (result)
		return hp_fail(error, result, HP_LIMIT_NONE, "this system has no robust shared mutexes");
	return 0;
}

/* ---- making and unmaking ---------------------------------------------------------------------------------------- */

static int create_segments(struct hp_pool_view *view, const hp_pool_options *options, hp_error *error)
{
	struct hp_pool_shared *shared = view->shared;
	uint64_t size = hp_bytes(hp_segment_frames(shared));
	void *direct;
	int result;

	for (uint32_t s = 0; s < shared->segments; s++) {
		hp_backing backing = hp_unit(view) > 1 ? HP_BACKING_HUGETLB_1G : shared->segment[s].backing;

		result = view->os->ops->segment_create(view->os, backing, size, &view->segment[s]);
		if (result == -ENOTSUP && options->backing == HP_BACKING_AUTO && s < hp_frame_segments(shared))
			continue; /* the fill says so and goes on to the next kind */
		if (result == -EFBIG)
			return hp_fail(error, result, HP_LIMIT_NONE,
			               "the file size limit (ulimit -f) is below the %lu bytes of a segment", size);
		if (result)
			return hp_fail(error, result, HP_LIMIT_NONE, "no memory of kind %s can be made here (errno %d)",
			               hp_backing_name(backing), -result);
	}
	result = view->os->ops->reserve(view->os, size * shared->segments, HP_REGION_SIZE, 0, &direct);
	if (result)
		return hp_fail(error, result, HP_LIMIT_ADDRESS,
		               "no free range of %lu bytes of addresses; ask for a smaller max_size or raise RLIMIT_AS",
		               size * shared->segments);
	view->direct = direct;
	view->direct_frames = calloc(shared->regions, sizeof(view->direct_frames[0]));
	view->threads = calloc(HP_SLOTS_MAX, sizeof(view->threads[0]));
	if (!view->direct_frames || !view->threads)
		return hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "no memory for the tables of regions and threads");
	if (hp_maps_take(view->os, shared->regions + 2))
		return hp_fail(error, -ENOMEM, HP_LIMIT_MAP_COUNT,
		               "the pool's own mapping takes %u kernel mappings, and %lu of %lu are in use; raise "
		               "vm.max_map_count",
		               shared->regions + 2, hp_maps_taken(view->os), hp_maps_max(view->os));
	view->maps = shared->regions + 2;
	return 0;
}

/* Undoes whatever of a view exists. */
static void destroy_view(struct hp_pool_view *view)
{
	struct hp_pool_shared *shared = view->shared;
	uint32_t held = 0;

	if (view->filling) {
		pthread_join(view->filling->thread, NULL);
		free(view->filling);
	}
	hp_pool_stop_layers(view);
	hp_workers_stop(view);
	if (view->generation)
		held = hp_pool_unregister(view);
	if (view->process)
		hp_process_release(&view->processes, view->process, view->process_lock);
	if (view->maps)
		hp_maps_give(view->os, view->maps);
	if (view->direct)
		view->os->ops->unmap(view->os, view->direct, hp_bytes((uint64_t)shared->regions * HP_REGION_FRAMES));
	for (uint32_t s = 0; s < HP_SEGMENTS_MAX; s++)
		if (view->segment[s] != HP_NO_SEGMENT)
			view->os->ops->segment_destroy(view->os, view->segment[s]);
	/* Threads that go on hold robust mutexes in the slots, and the C library writes there when they take others. */
	if (view->arena.header)
		hp_arena_destroy(&view->arena, HP_SECTION_SLOTS, held * sizeof(struct hp_slot));
	free(hp_unatomic(view->direct_frames));
	free(view->threads);
	free(view);
}

static void *fill_in_background(void *context)
{
	struct hp_background_fill *filling = context;
	struct hp_thread *t;

	if (hp_thread_enter(filling->view, &t)) {
		hp_fail(&filling->view->shared->fill_error, -EAGAIN, HP_LIMIT_TABLE,
		        "no slot for the thread that fills the pool");
		hp_fill_end(filling->view->shared, HP_FILL_FAILED);
	} else {
		hp_pool_fill(t, &filling->options, NULL);
	}
	return NULL;
}

static int start_filling(struct hp_thread *t, const hp_pool_options *options, hp_error *error)
{
	struct hp_background_fill *filling;
	sigset_t saved;
	int result;

	if (!(options->flags & HP_POOL_BACKGROUND))
		return hp_pool_fill(t, options, error);
	atomic_store(&t->pool->shared->fill_process, t->pool->process);
	filling = malloc(sizeof(*filling));
	if (!filling)
		return hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "no memory for the thread that fills the pool");
	*filling = (struct hp_background_fill){.view = t->pool, .options = *options};
	hp_signals_block(&saved); /* our threads run no handler of the program */
	result = -pthread_create(&filling->thread, NULL, fill_in_background, filling);
	hp_signals_restore(&saved);
	if (result) {
		free(filling);
		return hp_fail(error, result, HP_LIMIT_NONE, "no thread to fill the pool (errno %d)", -result);
	}
	t->pool->filling = filling;
	return 0;
}

static int populate_view(struct hp_pool_view *view, const hp_pool_options *options, hp_error *error)
{
	uint32_t workers = options->workers == HP_WORKERS_DEFAULT ? (hp_cpu_count() + 3) / 4
	                   : options->workers == HP_WORKERS_NONE  ? 0
	                                                          : options->workers;
	struct hp_thread *t;
	int result;

	/* Before a fork in another thread can see the pool: the proof of life is not its child's. */
	view->process = hp_process_claim(&view->processes, getpid(), &view->process_lock);
	hp_life_keep(view->process_lock);
	result = hp_pool_register(view);
	if (result)
		return hp_fail(error, result, HP_LIMIT_TABLE, "this process has %u pools already; close one",
		               HP_POOLS_MAX);
	result = hp_thread_enter(view, &t);
	if (!result)
		result = start_filling(t, options, error);
	if (!result) {
		int refused = hp_workers_start(t, workers);

		if (refused)
			hp_log(HP_LOG_WARNING, "no threads to zero frames in idle time (errno %d): callers zero",
			       -refused);
	}
	return result ? result : hp_pool_start_layers(t, options);
}

int hp_pool_make(struct hp_os *os, const hp_pool_options *given, hp_pool *pool, hp_error *error)
{
	struct hp_pool_view *view;
	struct hp_tuning tuning;
	hp_pool_options options;
	int result = hp_options_check(given, &options, error);

	if (!result)
		result = hp_tuning_parse(options.tuning, options.flags & HP_POOL_UNSAFE, &tuning, error);
	if (result)
		return result;
	view = calloc(1, sizeof(*view));
	if (!view)
		return hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "no memory for the pool's view");
	view->os = os;
	view->arena.handle = HP_NO_SEGMENT;
	for (uint32_t s = 0; s < HP_SEGMENTS_MAX; s++)
		view->segment[s] = HP_NO_SEGMENT;

	result = create_arena(view, &options, &tuning, error);
	if (!result)
		result = create_segments(view, &options, error);
	if (!result)
		result = populate_view(view, &options, error);
	if (result) {
		destroy_view(view);
		return result;
	}
	pool->id = (uint64_t)view->generation << 8 | (view->index + 1);
	return 0;
}

int hp_pool_close(hp_pool pool)
{
	struct hp_pool_view *view = hp_pool_find(pool.id);
	struct hp_thread *t;
	int result;

	if (!view)
		return -EBADF;
	/* A raw clone's record and slots are the parent's; others without one have no books. */
	result = hp_thread_enter(view, &t);
	if (result)
		return result;
	if (hp_pool_in_use(t))
		return -EBUSY;
	destroy_view(view);
	return 0;
}

/* ---- the way in ------------------------------------------------------------------------------------------------- */

int hp_pool_enter_view(struct hp_pool_view *view, struct hp_thread **t, hp_error *error)
{
	int result = hp_thread_enter(view, t);

	if (result == -ECHILD)
		return hp_fail(error, result, HP_LIMIT_TABLE,
		               "this process is not a member of the pool: it came from a raw clone, or %u processes "
		               "had it already",
		               HP_PROCESSES_MAX - 1);
	if (result)
		return hp_fail(error, result, HP_LIMIT_TABLE, "%u threads use this pool already", HP_THREADS_MAX);
	hp_pool_catch_up(*t);
	return 0;
}

int hp_pool_enter(uint64_t id, struct hp_thread **t, hp_error *error)
{
	struct hp_pool_view *view = hp_pool_find(id);

	if (!view)
		return hp_fail(error, -EBADF, HP_LIMIT_NONE, "this pool is closed, or the handle never was one");
	return hp_pool_enter_view(view, t, error);
}

int hp_pool_promise(struct hp_thread *t, uint64_t frames, hp_error *error)
{
	struct hp_pool_view *view = t->pool;
	int result = hp_commit(view, frames);

	if (result) {
		hp_workers_pause(t, HP_WORKERS_PATIENCE);
		result = hp_commit(view, frames);
		hp_workers_resume(t);
	}
	if (result) {
		hp_pool_reap(t); /* others may have done it for us */
		hp_holes_settle(t);
		result = hp_commit(view, frames);
	}
	if (result)
		return hp_fail(error, result, HP_LIMIT_POOL,
		               "%lu frames of 2 MiB are needed and %lu of the pool's are free and not promised; make "
		               "the pool larger "
		               "or free something",
		               frames, atomic_load(&view->shared->uncommitted));
	return 0;
}

bool hp_pool_await_frames(struct hp_thread *t, int64_t deadline_ns)
{
	struct hp_pool_shared *shared = t->pool->shared;
	int64_t left = deadline_ns - hp_now_ns();

	if (left <= 0)
		return false;
	atomic_fetch_add(&shared->short_waiters, 1);
	uint32_t event = atomic_load(&shared->short_event);

	/* In slices: who counts itself as waiting may be killed, or come too late to be told. */
	if (!atomic_load(&shared->uncommitted))
		hp_futex_wait(&shared->short_event, event, left < HP_SLICE_NS ? left : HP_SLICE_NS);
	atomic_fetch_sub(&shared->short_waiters, 1);
	return true;
}

void hp_pool_unpromise(struct hp_pool_view *view, uint64_t frames)
{
	hp_uncommit(view, frames);
	hp_workers_notify(view);
}

/* ---- waiting and figures ---------------------------------------------------------------------------------------- */

/* Free frames that are not zeroed. Exact when nothing runs. */
static uint64_t dirty_frames(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;
	uint64_t dirty = 0;
	sigset_t saved;

	hp_signals_block(&saved);
	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	for (uint32_t r = 0; r < view->shared->frame_regions; r++)
		dirty += view->regions[r].free - view->regions[r].zeroed;
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
	hp_signals_restore(&saved);
	return dirty;
}

/* Nothing is left for workers: no dirty frame, or only ones that are left to those who were promised them. */
static bool is_clean(struct hp_thread *t)
{
	struct hp_pool_shared *shared = t->pool->shared;
	bool promised;

	/* In this order: a worker counts itself in `zeroing` before it takes a dirty frame. */
	if (!dirty_frames(t))
		return atomic_load(&shared->zeroing) == 0;
	if (atomic_load(&shared->uncommitted))
		return false;
	/* It may be a worker that has committed the last one. */
	hp_workers_pause(t, HP_WORKERS_PATIENCE);
	promised = atomic_load(&shared->uncommitted) == 0;
	hp_workers_resume(t);
	return promised;
}

/* Waits on a word that must no longer have the value `seen`; 0 or -ETIMEDOUT. */
static int wait_until(struct hp_thread *t, _Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns)
{
	int64_t left = deadline_ns == HP_FUTEX_FOREVER ? HP_SLICE_NS : deadline_ns - hp_now_ns();

	if (left <= 0)
		return -ETIMEDOUT;
	if (hp_futex_wait(word, seen, left < HP_SLICE_NS ? left : HP_SLICE_NS) == -ETIMEDOUT)
		hp_pool_reap(t);
	return 0;
}

int hp_pool_wait(hp_pool pool, int timeout_ms, hp_error *error)
{
	int64_t deadline = timeout_ms < 0 ? HP_FUTEX_FOREVER : hp_now_ns() + (int64_t)timeout_ms * 1000000;
	struct hp_pool_shared *shared;
	struct hp_thread *t;
	int result = hp_pool_enter(pool.id, &t, error);

	if (result)
		return result;
	shared = t->pool->shared;
	while (!result && atomic_load(&shared->fill_state) == HP_FILL_RUNNING)
		result = wait_until(t, &shared->fill_state, HP_FILL_RUNNING, deadline);
	if (!result && atomic_load(&shared->fill_state) == HP_FILL_FAILED) {
		if (error)
			*error = shared->fill_error;
		return shared->fill_error.code;
	}
	hp_pool_reap(t);
	while (!result && atomic_load(&shared->workers)) {
		uint32_t event = atomic_load(&shared->clean_event);

		if (is_clean(t))
			break;
		result = wait_until(t, &shared->clean_event, event, deadline);
	}
	return result ? hp_fail(error, result, HP_LIMIT_NONE, "the pool is not ready yet") : 0;
}

int hp_pool_stats_get(hp_pool pool, hp_pool_stats *stats)
{
	struct hp_pool_view *view;
	struct hp_pool_shared *shared;
	struct hp_thread *t;
	int result = hp_pool_enter(pool.id, &t, NULL);
	uint64_t count[HP_FRAME_STATES] = {0};

	if (result)
		return result;
	if (stats->struct_size < sizeof(*stats))
		return -EINVAL;
	view = t->pool;
	shared = view->shared;
	*stats = (hp_pool_stats){.struct_size = sizeof(*stats), .table_sharing = shared->table_sharing};
	for (hp_frame_id frame = 0; frame < hp_pool_frames_max(view); frame++) {
		enum hp_frame_state state = hp_frame_state(hp_frame_load(&view->frames[frame]));
		uint64_t offset;

		count[state]++;
		if (state == HP_FRAME_ABSENT)
			continue;
		stats->frames++;
		*(shared->segment[hp_segment_of(view, frame, &offset)].backing == HP_BACKING_HUGETLB ? &stats->hugetlb
		  : hp_huge_is(view, frame)                                                          ? &stats->thp
		                            : &stats->base) += 1;
	}
	stats->zeroed = count[HP_FRAME_FREE_ZEROED];
	stats->dirty = count[HP_FRAME_FREE_DIRTY];
	stats->zeroing = count[HP_FRAME_ZEROING];
	stats->used = count[HP_FRAME_USED];
	stats->page_size = hp_bytes(hp_unit(t->pool));
	stats->holes = count[HP_FRAME_HOLE];
	stats->reserved = hp_pool_promised(t).frames;
	stats->files = atomic_load(&shared->files.live);
	stats->mappings = atomic_load(&shared->vmas.live);
	for (uint32_t id = 1; id < HP_PROCESSES_MAX; id++)
		stats->processes += hp_process_is_live(&view->processes, id);
	stats->faults = atomic_load(&shared->faults);
	stats->fault_pages = atomic_load(&shared->fault_pages);
	stats->zeroed_by_worker = atomic_load(&shared->zeroed_by_worker);
	stats->zeroed_by_caller = atomic_load(&shared->zeroed_by_caller);
	stats->fill_ns = atomic_load(&shared->fill_ns);
	stats->kernel_maps = (uint32_t)hp_maps_taken(view->os);
	stats->kernel_maps_max = (uint32_t)hp_maps_max(view->os);
	if (atomic_load(&shared->fill_state) != HP_FILL_RUNNING)
		memcpy(stats->why_not_better, shared->fill_error.message, sizeof(stats->why_not_better));
	return 0;
}
