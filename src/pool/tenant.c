/* SPDX-License-Identifier: MIT */
#include "pool/tenant.h"

#include "pool/base.h"
#include "pool/extent.h"
#include "pool/hole.h"

#include "base/error.h"

#include <errno.h>

static struct hp_tenant_record *record_of(const struct hp_pool_view *view, uint32_t number)
{
	return &view->shared->tenant[number];
}

/* Frames that the pool has committed to a tenant that uses so many. */
static uint64_t committed_for(const struct hp_tenant_record *tenant, uint64_t used)
{
	return used > tenant->minimum ? used : tenant->minimum;
}

/* How many more are committed when it uses so many more. */
static uint64_t committed_more(const struct hp_tenant_record *tenant, uint64_t frames)
{
	uint64_t used = atomic_load_explicit(&tenant->used, memory_order_relaxed);

	return committed_for(tenant, used + frames) - committed_for(tenant, used);
}

/* Uses so many more frames, and as many places for base pages less. Under the lock. */
static void shift(struct hp_tenant_record *tenant, int frames)
{
	atomic_fetch_add_explicit(&tenant->used, (uint64_t)(int64_t)frames, memory_order_relaxed);
	atomic_fetch_sub_explicit(&tenant->base, (uint64_t)(int64_t)frames, memory_order_relaxed);
}

/* ---- frames ----------------------------------------------------------------------------------------------------- */

/* Takes what is needed beyond what is committed already, and takes that into account. */
static int commit_more(struct hp_pool_view *view, uint64_t needed, uint64_t *committed, uint64_t *missing)
{
	*missing = needed > *committed ? needed - *committed : 0;
	if (*missing && hp_commit(view, *missing))
		return -ENOMEM;
	*committed = *committed + *missing - needed;
	return 0;
}

int hp_tenant_charge(struct hp_thread *t, uint32_t number, uint64_t frames, uint64_t base, uint64_t *committed,
                     uint64_t *missing)
{
	struct hp_tenant_record *tenant = record_of(t->pool, number);
	uint64_t used, all = frames + base;
	int result;

	if (!number)
		return commit_more(t->pool, frames, committed, missing);
	hp_mutex_lock(&tenant->lock, &t->locker, HP_CLASS_TENANT);
	used = atomic_load_explicit(&tenant->used, memory_order_relaxed);
	if (all > tenant->limit || used + atomic_load(&tenant->base) > tenant->limit - all)
		result = -EDQUOT;
	else
		result = commit_more(t->pool, committed_more(tenant, frames), committed, missing);
	if (!result) {
		atomic_store_explicit(&tenant->used, used + frames, memory_order_relaxed);
		atomic_fetch_add_explicit(&tenant->base, base, memory_order_relaxed);
	}
	hp_mutex_unlock(&tenant->lock, &t->locker);
	return result;
}

void hp_tenant_uncharge_base(struct hp_thread *t, uint32_t number, uint64_t places)
{
	if (number)
		atomic_fetch_sub(&record_of(t->pool, number)->base, places);
	hp_base_uncommit(t->pool, places);
}

void hp_tenant_uncharge(struct hp_thread *t, uint32_t number, uint64_t frames)
{
	struct hp_tenant_record *tenant = record_of(t->pool, number);
	uint64_t used, given;

	if (!number) {
		hp_pool_unpromise(t->pool, frames);
		return;
	}
	hp_mutex_lock(&tenant->lock, &t->locker, HP_CLASS_TENANT);
	used = atomic_load_explicit(&tenant->used, memory_order_relaxed);
	HP_ASSERT(used >= frames);
	given = committed_for(tenant, used) - committed_for(tenant, used - frames);
	atomic_store_explicit(&tenant->used, used - frames, memory_order_relaxed);
	hp_mutex_unlock(&tenant->lock, &t->locker);
	hp_pool_unpromise(t->pool, given); /* workers hear of it also where the minimum keeps all */
}

int hp_tenant_to_frame(struct hp_thread *t, uint32_t number)
{
	struct hp_tenant_record *tenant = record_of(t->pool, number);
	uint64_t committed = 0, missing;
	int result;

	if (!number)
		return hp_commit(t->pool, 1);
	hp_mutex_lock(&tenant->lock, &t->locker, HP_CLASS_TENANT);
	result = commit_more(t->pool, committed_more(tenant, 1), &committed, &missing);
	if (!result)
		shift(tenant, 1);
	hp_mutex_unlock(&tenant->lock, &t->locker);
	return result;
}

void hp_tenant_to_base(struct hp_thread *t, uint32_t number)
{
	struct hp_tenant_record *tenant = record_of(t->pool, number);
	uint64_t given = 1;

	if (number) {
		hp_mutex_lock(&tenant->lock, &t->locker, HP_CLASS_TENANT);
		shift(tenant, -1);
		given = committed_more(tenant, 1);
		hp_mutex_unlock(&tenant->lock, &t->locker);
	}
	hp_pool_unpromise(t->pool, given);
}

int hp_tenant_explain(const struct hp_pool_view *view, uint32_t number, uint64_t frames, hp_error *error)
{
	const struct hp_tenant_record *tenant = record_of(view, number);

	return hp_fail(error, -EDQUOT, HP_LIMIT_TENANT,
	               "%lu frames of 2 MiB are needed and the tenant uses %lu of at most %lu; free something of it, "
	               "or make a tenant with a larger limit",
	               frames, hp_tenant_used(view, number), tenant->limit);
}

uint64_t hp_tenants_reserved(const struct hp_pool_view *view)
{
	uint64_t reserved = 0;

	for (uint32_t number = 1; number < HP_TENANTS_MAX; number++) {
		const struct hp_tenant_record *tenant = record_of(view, number);
		uint64_t used = atomic_load(&tenant->used);

		if (atomic_load(&tenant->generation) % 2)
			reserved += committed_for(tenant, used) - used;
	}
	return reserved;
}

uint64_t hp_tenant_used(const struct hp_pool_view *view, uint32_t number)
{
	const struct hp_tenant_record *tenant = record_of(view, number);

	return atomic_load(&tenant->used) + atomic_load(&tenant->base);
}

/* ---- lives ------------------------------------------------------------------------------------------------------ */

/*
 * A record's generation is odd while it is a tenant, even while it is none. `files` counts its files; CLOSED in it
 * keeps others out while it is being closed.
 */
#define CLOSED 0x80000000u

/* The same layout as a file's handle: the pool's index plus 1, the record's number, its generation. */
static hp_tenant make_handle(const struct hp_pool_view *view, uint32_t number)
{
	return (hp_tenant){(uint64_t)atomic_load(&record_of(view, number)->generation) << 32 | number << 8 |
	                   (view->index + 1)};
}

static uint32_t number_of(const struct hp_pool_view *view, hp_tenant tenant)
{
	uint32_t number = tenant.id >> 8 & 0xffffff;

	if ((tenant.id & 0xff) != view->index + 1 || number == 0 || number >= HP_TENANTS_MAX ||
	    atomic_load(&record_of(view, number)->generation) != tenant.id >> 32 || tenant.id >> 32 == 0)
		return 0;
	return number;
}

int hp_tenant_join(struct hp_pool_view *view, hp_tenant tenant, uint32_t *number)
{
	struct hp_tenant_record *record;
	uint32_t files;

	*number = number_of(view, tenant);
	if (!*number)
		return -EBADF;
	record = record_of(view, *number);
	files = atomic_load(&record->files);
	do {
		if (files & CLOSED)
			return -EBADF;
	} while (!atomic_compare_exchange_weak(&record->files, &files, files + 1));
	/* It may have been closed, and made anew, before we were counted. */
	if (number_of(view, tenant) == *number)
		return 0;
	hp_tenant_leave(view, *number);
	return -EBADF;
}

void hp_tenant_leave(struct hp_pool_view *view, uint32_t number)
{
	if (number)
		atomic_fetch_sub(&record_of(view, number)->files, 1);
}

/* A free record becomes the caller's: closed, and with an even generation. 0: there is none. */
static uint32_t claim(struct hp_pool_view *view)
{
	for (uint32_t number = 1; number < HP_TENANTS_MAX; number++) {
		struct hp_tenant_record *tenant = record_of(view, number);
		uint32_t none = 0;

		if (atomic_load(&tenant->generation) % 2 == 0 &&
		    atomic_compare_exchange_strong(&tenant->files, &none, CLOSED)) {
			if (atomic_load(&tenant->generation) % 2 == 0)
				return number;
			atomic_store(&tenant->files, 0);
		}
	}
	return 0;
}

static int make_tenant(struct hp_pool_view *view, uint64_t limit, uint64_t minimum, hp_tenant *made, hp_error *error)
{
	uint32_t number = claim(view);
	struct hp_tenant_record *tenant = record_of(view, number);

	if (!number)
		return hp_fail(error, -ENFILE, HP_LIMIT_TABLE, "the pool has %u tenants already; close some",
		               HP_TENANTS_MAX - 1);
	tenant->limit = limit;
	tenant->minimum = minimum;
	atomic_fetch_add(&tenant->generation, 1);
	*made = make_handle(view, number);
	atomic_fetch_and(&tenant->files, ~CLOSED);
	return 0;
}

int hp_tenant_create(hp_pool pool, uint64_t limit, uint64_t minimum, hp_tenant *tenant, hp_error *error)
{
	uint64_t most = limit ? hp_frames(limit) : HP_TENANT_NO_LIMIT, least = hp_frames_up(minimum);
	struct hp_thread *t;
	int result = hp_pool_enter(pool.id, &t, error);

	if (result)
		return result;
	if (most == 0 || least > most)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "a limit of %lu bytes and a minimum of %lu: a limit is at least 2 MiB, and at least the "
		               "minimum",
		               limit, minimum);
	result = least ? hp_pool_promise(t, least, error) : 0;
	if (result)
		return result;
	result = make_tenant(t->pool, most, least, tenant, error);
	if (result && least)
		hp_pool_unpromise(t->pool, least);
	return result;
}

/* The way into calls on a tenant. */
static int enter(hp_tenant tenant, struct hp_thread **t, uint32_t *number)
{
	struct hp_pool_view *view = hp_pool_at((uint32_t)(tenant.id & 0xff) - 1);
	int result = view ? hp_pool_enter_view(view, t, NULL) : -EBADF;

	if (!result)
		result = hp_tenant_join(view, tenant, number);
	return result;
}

int hp_tenant_close(hp_tenant tenant)
{
	struct hp_tenant_record *record;
	struct hp_thread *t;
	uint32_t number, alone = 1;
	int result = enter(tenant, &t, &number);

	if (result)
		return result;
	record = record_of(t->pool, number);
	if (atomic_load(&record->files) > 1)
		hp_pool_reap(t); /* they may be a dead process's */
	hp_holes_settle(t);      /* which are still charged to it */
	if (!atomic_compare_exchange_strong(&record->files, &alone, CLOSED)) {
		hp_tenant_leave(t->pool, number);
		return -EBUSY;
	}
	if (hp_tenant_used(t->pool, number)) {
		atomic_store(&record->files, 0);
		return -EBUSY;
	}
	atomic_fetch_add(&record->generation, 1);
	if (record->minimum)
		hp_pool_unpromise(t->pool, record->minimum);
	record->minimum = 0;
	atomic_store(&record->files, 0);
	return 0;
}

int hp_tenant_stat_get(hp_tenant tenant, hp_tenant_stat *stat)
{
	struct hp_tenant_record *record;
	struct hp_thread *t;
	uint32_t number;
	int result = enter(tenant, &t, &number);

	if (result)
		return result;
	record = record_of(t->pool, number);
	if (stat->struct_size < sizeof(*stat))
		result = -EINVAL;
	else
		*stat = (hp_tenant_stat){
			.struct_size = sizeof(*stat),
			.files = atomic_load(&record->files) - 1,
			.limit = record->limit == HP_TENANT_NO_LIMIT ? 0 : hp_bytes(record->limit),
			.minimum = hp_bytes(record->minimum),
			.used = hp_bytes(hp_tenant_used(t->pool, number)),
		};
	hp_tenant_leave(t->pool, number);
	return result;
}
