/* SPDX-License-Identifier: MIT */
#include "file/file.h"

#include "base/error.h"
#include "file/lock.h"
#include "file/place.h"
#include "file/remove.h"
#include "file/reserve.h"
#include "pool/hole.h"
#include "pool/tenant.h"

#include <errno.h>

/* ---- handles ---------------------------------------------------------------------------------------------------- */

/* Bits 0-7: the pool's index plus 1; bits 8-31: the record's number; bits 32-63: its generation. */
static hp_file make_handle(const struct hp_pool_view *view, uint32_t number, uint32_t generation)
{
	return (hp_file){(uint64_t)generation << 32 | number << 8 | (view->index + 1)};
}

static bool get_unless_zero(_Atomic uint32_t *refs)
{
	uint32_t seen = atomic_load_explicit(refs, memory_order_relaxed);

	while (seen)
		if (atomic_compare_exchange_weak_explicit(refs, &seen, seen + 1, memory_order_acquire,
		                                          memory_order_relaxed))
			return true;
	return false;
}

int hp_file_enter(hp_file file, struct hp_thread **t, struct hp_file_use *use, hp_error *error)
{
	struct hp_pool_view *view = hp_pool_at((uint32_t)(file.id & 0xff) - 1);
	uint32_t number = file.id >> 8 & 0xffffff, generation = (uint32_t)(file.id >> 32);
	struct hp_file_record *record;
	int result;

	if (!view || number == 0 || number >= HP_FILES_MAX || generation == 0)
		return hp_fail(error, -EBADF, HP_LIMIT_NONE, "this file is closed, or the handle never was one");
	result = hp_pool_enter_view(view, t, error);
	if (result)
		return result;
	record = hp_file_at(view, number);
	if (get_unless_zero(&record->refs)) {
		bool open = atomic_load(hp_file_opens(view, view->process, number)) & ~HP_OPEN_INHERITED;

		*use = (struct hp_file_use){record, number};
		if (open && atomic_load_explicit(&record->generation, memory_order_acquire) == generation)
			return 0;
		hp_file_put(*t, number);
	}
	return hp_fail(error, -EBADF, HP_LIMIT_NONE, "this file is closed");
}

int hp_file_range(const struct hp_pool_view *view, const struct hp_file_record *file, uint64_t offset, uint64_t length,
                  uint32_t *first, uint32_t *pages, hp_error *error)
{
	uint32_t size = atomic_load(&file->pages);

	if (!hp_is_aligned(view, offset) || !hp_is_aligned(view, length))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "offset %lu and length %lu must be multiples of %lu MiB",
		               offset, length, hp_bytes(hp_unit(view)) >> 20);
	if (length == 0)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "length is 0");
	if (hp_frames(offset) >= size || hp_frames(length) > size - hp_frames(offset))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "offset %lu and length %lu reach beyond the file's %lu bytes", offset, length,
		               hp_bytes(size));
	*first = (uint32_t)hp_frames(offset);
	*pages = (uint32_t)hp_frames(length);
	return 0;
}

/* ---- lives ------------------------------------------------------------------------------------------------------ */

bool hp_file_get_live(struct hp_pool_view *view, uint32_t number)
{
	return get_unless_zero(&hp_file_at(view, number)->refs);
}

void hp_file_get(struct hp_pool_view *view, uint32_t number)
{
	atomic_fetch_add_explicit(&hp_file_at(view, number)->refs, 1, memory_order_relaxed);
}

void hp_file_keep(struct hp_pool_view *view, uint32_t number, uint32_t end)
{
	_Atomic uint32_t *unlisted = &hp_file_at(view, number)->unlisted;
	uint32_t seen = atomic_load(unlisted);

	hp_file_get(view, number);
	while (seen < end && !atomic_compare_exchange_weak(unlisted, &seen, end))
		;
}

/* Gives the record's runs back, those that it has. */
static void give_runs(struct hp_thread *t, struct hp_file_record *file)
{
	struct hp_page_store *store = &t->pool->pages;

	uint32_t most = file->most_pages, reach = atomic_load(&file->reach);

	hp_index_destroy(hp_file_index(t->pool, file), &t->locker);
	hp_pages_give(store, file->place_run, hp_place_bytes(most), hp_place_bytes(reach), &t->locker);
	hp_pages_give(store, file->promised_run, hp_reserve_bytes(most), hp_reserve_bytes(reach), &t->locker);
	hp_pages_give(store, file->taken_run, hp_reserve_bytes(most), hp_reserve_bytes(reach), &t->locker);
}

static void destroy(struct hp_thread *t, uint32_t number)
{
	struct hp_pool_view *view = t->pool;
	struct hp_file_record *file = hp_file_at(view, number);
	struct hp_file_use use = {file, number};
	sigset_t saved;

	hp_signals_block(&saved);
	hp_intent_begin(t->intents, HP_INTENT_FILE_DESTROY, number, 0, 0);
	atomic_store(&file->generation, 0);
	hp_place_drop(t, use);
	hp_file_remove_all(t, use);
	give_runs(t, file);
	hp_tenant_leave(view, file->tenant);
	hp_table_give(&view->shared->files, view->files, HP_FILE_RECORD_SIZE, number, &t->locker);
	hp_intent_end(t->intents);
	hp_signals_restore(&saved);
	hp_holes_settle(t);
}

void hp_file_put(struct hp_thread *t, uint32_t number)
{
	if (atomic_fetch_sub_explicit(&hp_file_at(t->pool, number)->refs, 1, memory_order_acq_rel) == 1)
		destroy(t, number);
}

/* Takes the record's runs; false leaves what was taken in the record. */
static bool take_runs(struct hp_thread *t, struct hp_file_record *file)
{
	struct hp_page_store *store = &t->pool->pages;

	file->index_level = hp_index_level(file->most_pages);
	file->index_root = hp_pages_take(store, HP_BASE_PAGE_SIZE, &t->locker);
	file->place_run = hp_pages_take(store, hp_place_bytes(file->most_pages), &t->locker);
	file->promised_run = hp_pages_take(store, hp_reserve_bytes(file->most_pages), &t->locker);
	file->taken_run = hp_pages_take(store, hp_reserve_bytes(file->most_pages), &t->locker);
	return file->index_root && file->place_run && file->promised_run && file->taken_run;
}

/* Signals are blocked. The new file has one reference, and is open once. */
static int create_record(struct hp_thread *t, uint32_t pages, const hp_file_options *options, uint32_t tenant,
                         uint32_t *number)
{
	struct hp_pool_view *view = t->pool;
	struct hp_file_record *file;
	uint32_t generation;

	*number = hp_table_take(&view->shared->files, view->files, HP_FILE_RECORD_SIZE, &t->locker);
	if (!*number)
		return -ENFILE;
	hp_intent_begin(t->intents, HP_INTENT_FILE_CREATE, *number, 0, 0);
	file = hp_file_at(view, *number);
	atomic_store(&file->pages, pages);
	atomic_store(&file->reach, pages);
	file->tenant = tenant;
	file->flags = options->flags;
	file->wait_ms = options->wait_ms;
	file->most_pages = pages > hp_segment_frames(view->shared) ? pages : hp_segment_frames(view->shared);
	hp_biased_init(&file->lock, &t->locker, view->shared->file_lock == HP_FILE_LOCK_BIASED);
	if (!take_runs(t, file)) {
		give_runs(t, file);
		hp_table_give(&view->shared->files, view->files, HP_FILE_RECORD_SIZE, *number, &t->locker);
		hp_intent_end(t->intents);
		return -EFBIG;
	}
	do
		generation = atomic_fetch_add(&view->shared->file_generation, 1) + 1;
	while (generation == 0);
	atomic_store(&file->generation, generation);
	/* In this order: a fork in another thread pins what it finds open. */
	atomic_store(&file->refs, 1);
	atomic_store(hp_file_opens(view, view->process, *number), 1);
	hp_intent_end(t->intents);
	return 0;
}

static int try_create(struct hp_thread *t, uint32_t pages, const hp_file_options *options, uint32_t tenant,
                      uint32_t *number)
{
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	result = create_record(t, pages, options, tenant, number);
	hp_signals_restore(&saved);
	return result;
}

int hp_file_make(struct hp_thread *t, const hp_file_options *options, uint32_t tenant, uint32_t *number,
                 hp_error *error)
{
	uint64_t size = options->size;
	uint32_t pages;
	int result;

	if (size == 0)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "a new file's size is 0");
	if (hp_frames_up(size) > HP_PAGES_MAX - HP_REGION_FRAMES)
		return hp_fail(error, -EFBIG, HP_LIMIT_TABLE, "%lu bytes are more than any pool can index", size);
	if (options->flags & (HP_FILE_FALLBACK | HP_FILE_MOVABLE) && hp_unit(t->pool) > 1)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "a file in a pool of 1 GiB pages can have no base pages and is not movable");
	pages = (uint32_t)hp_align_up(hp_frames_up(size), hp_unit(t->pool));
	result = try_create(t, pages, options, tenant, number);
	if (result) {
		hp_pool_reap(t); /* or somebody else does */
		result = try_create(t, pages, options, tenant, number);
	}
	if (result == -ENFILE)
		return hp_fail(error, result, HP_LIMIT_TABLE, "the pool has %u files already; close some",
		               HP_FILES_MAX - 1);
	if (result)
		return hp_fail(
			error, result, HP_LIMIT_TABLE,
			"the pool has no room left to index %lu bytes; close files or give the pool a larger max_size",
			size);
	return 0;
}

hp_file hp_file_handle(const struct hp_pool_view *view, uint32_t number)
{
	return make_handle(view, number, atomic_load(&hp_file_at(view, number)->generation));
}

int hp_file_create(hp_pool pool, uint64_t size, unsigned flags, hp_file *file, hp_error *error)
{
	const hp_file_options options = {.flags = flags, .size = size};
	const unsigned known = HP_FILE_FALLBACK | HP_FILE_MOVABLE;
	struct hp_thread *t;
	uint32_t number;
	int result = hp_pool_enter(pool.id, &t, error);

	if (!result && flags & ~known)
		result = hp_fail(error, -EINVAL, HP_LIMIT_NONE, "hp_file_create: unknown flags 0x%x", flags & ~known);
	if (!result)
		result = hp_file_make(t, &options, 0, &number, error);
	if (!result)
		*file = hp_file_handle(t->pool, number);
	return result;
}

int hp_file_reopen(struct hp_thread *t, uint32_t number)
{
	_Atomic uint16_t *opens = hp_file_opens(t->pool, t->pool->process, number);
	uint16_t seen = atomic_load(opens);

	/* One reference for all handles of a process: the first one's. */
	hp_file_get(t->pool, number);
	do {
		if ((seen & ~HP_OPEN_INHERITED) == HP_OPENS_MAX) {
			hp_file_put(t, number);
			return -EMFILE;
		}
	} while (!atomic_compare_exchange_weak(opens, &seen, (uint16_t)(seen + 1)));
	if (seen)
		hp_file_put(t, number);
	return 0;
}

/* Counts one handle of a process down; false: it had none. */
static bool drop_handle(struct hp_pool_view *view, uint32_t process, uint32_t number, bool *last)
{
	_Atomic uint16_t *opens = hp_file_opens(view, process, number);
	uint16_t seen = atomic_load(opens);

	do {
		if ((seen & ~HP_OPEN_INHERITED) == 0)
			return false;
		*last = (seen & ~HP_OPEN_INHERITED) == 1;
	} while (!atomic_compare_exchange_weak(opens, &seen, *last ? 0 : (uint16_t)(seen - 1)));
	return true;
}

int hp_file_close(hp_file file)
{
	struct hp_file_use use;
	struct hp_thread *t;
	bool last = false;
	int result = hp_file_enter(file, &t, &use, NULL);

	if (result)
		return result;
	if (!drop_handle(t->pool, t->pool->process, use.number, &last))
		result = -EBADF;
	if (last)
		hp_file_put(t, use.number);
	hp_file_put(t, use.number);
	return result;
}

int hp_file_stat_get(hp_file file, hp_file_stat *stat)
{
	struct hp_file_use use;
	struct hp_thread *t;
	uint64_t unpromised;
	int result = hp_file_enter(file, &t, &use, NULL);

	if (result)
		return result;
	if (stat->struct_size < sizeof(*stat))
		result = -EINVAL;
	else
		*stat = (hp_file_stat){
			.struct_size = sizeof(*stat),
			.mappings = atomic_load(&use.record->vmas),
			.holes = hp_bytes(atomic_load(&use.record->holes)),
			.size = hp_bytes(atomic_load(&use.record->pages)),
			.present = hp_bytes(atomic_load(&use.record->present)),
			.reserved = hp_bytes(hp_reserve_count(t->pool, use.record, &unpromised)),
			.base = hp_bytes(atomic_load(&use.record->base)),
		};
	hp_file_put(t, use.number);
	return result;
}

/* ---- processes come and go -------------------------------------------------------------------------------------- */

/* Numbers from here on were never used. */
static uint32_t records_used(const struct hp_pool_view *view)
{
	return view->shared->files.fresh;
}

void hp_file_inherit(struct hp_pool_view *view, uint32_t child)
{
	for (uint32_t number = 1; number < records_used(view); number++) {
		_Atomic uint16_t *opens = hp_file_opens(view, view->process, number);

		/* Other threads close files meanwhile: the reference first, then the number of handles, 0 included. */
		if (!atomic_load(opens) || !hp_file_get_live(view, number))
			continue;
		atomic_store(hp_file_opens(view, child, number), (uint16_t)(atomic_load(opens) | HP_OPEN_INHERITED));
	}
}

/* Files that were closed just when they were inherited have the mark alone. */
static void drop_marks(struct hp_thread *t)
{
	for (uint32_t number = 1; number < records_used(t->pool); number++) {
		_Atomic uint16_t *opens = hp_file_opens(t->pool, t->pool->process, number);
		uint16_t marked = HP_OPEN_INHERITED;

		if (atomic_compare_exchange_strong(opens, &marked, 0))
			hp_file_put(t, number);
	}
}

static void reap(struct hp_thread *t, const uint64_t *dead)
{
	for (uint32_t process = 1; process < HP_PROCESSES_MAX; process++) {
		if (!hp_is_dead(dead, process))
			continue;
		for (uint32_t number = 1; number < records_used(t->pool); number++)
			if (atomic_exchange(hp_file_opens(t->pool, process, number), 0))
				hp_file_put(t, number);
	}
}

static bool in_use(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;

	drop_marks(t);
	for (uint32_t number = 1; number < records_used(view); number++)
		if (atomic_load(hp_file_opens(view, view->process, number)))
			return true;
	return false;
}

static struct hp_promised promised(struct hp_thread *t)
{
	struct hp_promised sum = {0, 0};
	uint64_t unpromised;

	for (uint32_t number = 1; number < records_used(t->pool); number++) {
		const struct hp_file_record *file = hp_file_at(t->pool, number);
		uint32_t base;

		if (!hp_file_get_live(t->pool, number))
			continue;
		base = atomic_load(&file->base_promised);
		sum.base += base;
		sum.frames += hp_reserve_count(t->pool, file, &unpromised) - base;
		hp_file_put(t, number);
	}
	return sum;
}

const struct hp_pool_hooks hp_file_hooks = {
	.promised = promised, .recover = hp_file_recover, .reap = reap, .in_use = in_use, .check = hp_files_check};
