/* SPDX-License-Identifier: MIT */
#include "os/inject.h"

#include <stdatomic.h>
#include <stdlib.h>

/* No lock, so that wrapped calls may come from a fault handler. */
struct rule {
	_Atomic uint64_t calls; /* seen since creation */
	_Atomic uint64_t first; /* the calls with these numbers fail, counted from 1; first 0: none */
	_Atomic uint64_t last;
	_Atomic int error;
};

struct inject {
	struct hp_os os;
	struct hp_os *inner; /* never changes */
	struct rule rules[HP_CALL_COUNT];
};

static struct inject *inject_of(struct hp_os *os)
{
	return (struct inject *)os;
}

static struct hp_os *inner_of(struct hp_os *os)
{
	return inject_of(os)->inner;
}

/* Counts a call and returns the error it has to fail with, or 0. */
static int check(struct hp_os *os, enum hp_os_call call)
{
	struct rule *rule = &inject_of(os)->rules[call];
	uint64_t number = atomic_fetch_add(&rule->calls, 1) + 1;
	uint64_t first = atomic_load(&rule->first);

	if (!first || number < first || number > atomic_load(&rule->last))
		return 0;
	return atomic_load(&rule->error);
}

static int inject_control_create(struct hp_os *os, uint64_t size, void **address, hp_segment *handle)
{
	int error = check(os, HP_CALL_CONTROL_CREATE);

	return error ? error : inner_of(os)->ops->control_create(inner_of(os), size, address, handle);
}

static int inject_control_destroy(struct hp_os *os, void *address, uint64_t size, hp_segment handle)
{
	int error = check(os, HP_CALL_CONTROL_DESTROY);

	return error ? error : inner_of(os)->ops->control_destroy(inner_of(os), address, size, handle);
}

static int inject_segment_create(struct hp_os *os, hp_backing backing, uint64_t size, hp_segment *segment)
{
	int error = check(os, HP_CALL_SEGMENT_CREATE);

	return error ? error : inner_of(os)->ops->segment_create(inner_of(os), backing, size, segment);
}

static int inject_segment_destroy(struct hp_os *os, hp_segment segment)
{
	int error = check(os, HP_CALL_SEGMENT_DESTROY);

	return error ? error : inner_of(os)->ops->segment_destroy(inner_of(os), segment);
}

static int inject_segment_punch(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length)
{
	int error = check(os, HP_CALL_SEGMENT_PUNCH);

	return error ? error : inner_of(os)->ops->segment_punch(inner_of(os), segment, offset, length);
}

static int inject_segment_renew(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length)
{
	int error = check(os, HP_CALL_SEGMENT_RENEW);

	return error ? error : inner_of(os)->ops->segment_renew(inner_of(os), segment, offset, length);
}

static int inject_backed(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length, unsigned char *pages)
{
	int error = check(os, HP_CALL_BACKED);

	return error ? error : inner_of(os)->ops->backed(inner_of(os), segment, offset, length, pages);
}

static int inject_reserve(struct hp_os *os, uint64_t length, uint64_t align, uint64_t skew, void **address)
{
	int error = check(os, HP_CALL_RESERVE);

	return error ? error : inner_of(os)->ops->reserve(inner_of(os), length, align, skew, address);
}

static int inject_reserve_at(struct hp_os *os, void *address, uint64_t length)
{
	int error = check(os, HP_CALL_RESERVE_AT);

	return error ? error : inner_of(os)->ops->reserve_at(inner_of(os), address, length);
}

static int inject_vacate(struct hp_os *os, void *address, uint64_t length)
{
	int error = check(os, HP_CALL_VACATE);

	return error ? error : inner_of(os)->ops->vacate(inner_of(os), address, length);
}

static int inject_map(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_segment segment,
                      uint64_t offset, unsigned flags)
{
	int error = check(os, HP_CALL_MAP);

	return error ? error : inner_of(os)->ops->map(inner_of(os), address, length, prot, segment, offset, flags);
}

static int inject_unmap(struct hp_os *os, void *address, uint64_t length)
{
	int error = check(os, HP_CALL_UNMAP);

	return error ? error : inner_of(os)->ops->unmap(inner_of(os), address, length);
}

static int inject_move(struct hp_os *os, void *from, void *to, uint64_t length)
{
	int error = check(os, HP_CALL_MOVE);

	return error ? error : inner_of(os)->ops->move(inner_of(os), from, to, length);
}

static int inject_end(struct hp_os *os, void *address, uint64_t length, hp_segment control, uint64_t control_size)
{
	int error = check(os, HP_CALL_END);

	return error ? error : inner_of(os)->ops->end(inner_of(os), address, length, control, control_size);
}

static int inject_protect(struct hp_os *os, void *address, uint64_t length, unsigned prot)
{
	int error = check(os, HP_CALL_PROTECT);

	return error ? error : inner_of(os)->ops->protect(inner_of(os), address, length, prot);
}

static int inject_anonymous(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_backing backing)
{
	int error = check(os, HP_CALL_ANONYMOUS);

	return error ? error : inner_of(os)->ops->anonymous(inner_of(os), address, length, prot, backing);
}

static int inject_hold(struct hp_os *os, uint64_t length, hp_backing backing, void **address)
{
	int error = check(os, HP_CALL_HOLD);

	return error ? error : inner_of(os)->ops->hold(inner_of(os), length, backing, address);
}

static int inject_keep_from_children(struct hp_os *os, void *address, uint64_t length)
{
	int error = check(os, HP_CALL_KEEP_FROM_CHILDREN);

	return error ? error : inner_of(os)->ops->keep_from_children(inner_of(os), address, length);
}

static int inject_populate(struct hp_os *os, void *address, uint64_t length)
{
	int error = check(os, HP_CALL_POPULATE);

	return error ? error : inner_of(os)->ops->populate(inner_of(os), address, length);
}

static int inject_touch(struct hp_os *os, void *address, uint64_t length)
{
	int error = check(os, HP_CALL_TOUCH);

	return error ? error : inner_of(os)->ops->touch(inner_of(os), address, length);
}

static int inject_collapse(struct hp_os *os, void *address, uint64_t length)
{
	int error = check(os, HP_CALL_COLLAPSE);

	return error ? error : inner_of(os)->ops->collapse(inner_of(os), address, length);
}

static void inject_zero(struct hp_os *os, void *address, uint64_t length)
{
	inner_of(os)->ops->zero(inner_of(os), address, length);
}

static int inject_gather(struct hp_os *os, void *to, const void *mapped, hp_segment segment, uint64_t offset,
                         uint64_t length)
{
	int error = check(os, HP_CALL_GATHER);

	return error ? error : inner_of(os)->ops->gather(inner_of(os), to, mapped, segment, offset, length);
}

static int inject_scatter(struct hp_os *os, hp_segment segment, uint64_t offset, const void *from, uint64_t length)
{
	int error = check(os, HP_CALL_SCATTER);

	return error ? error : inner_of(os)->ops->scatter(inner_of(os), segment, offset, from, length);
}

static void inject_load(struct hp_os *os, const void *address, void *to, uint64_t length)
{
	inner_of(os)->ops->load(inner_of(os), address, to, length);
}

static void inject_store(struct hp_os *os, void *address, const void *from, uint64_t length)
{
	inner_of(os)->ops->store(inner_of(os), address, from, length);
}

static uint64_t inject_max_map_count(struct hp_os *os)
{
	return inner_of(os)->ops->max_map_count(inner_of(os));
}

static uint64_t inject_hugetlb_available(struct hp_os *os)
{
	return inner_of(os)->ops->hugetlb_available(inner_of(os));
}

static uint64_t inject_memory_room(struct hp_os *os, hp_limit *limit)
{
	return inner_of(os)->ops->memory_room(inner_of(os), limit);
}

static bool inject_shares_page_tables(struct hp_os *os)
{
	return inner_of(os)->ops->shares_page_tables(inner_of(os));
}

static const struct hp_os_ops inject_ops = {
	.name = "inject",
	.control_create = inject_control_create,
	.control_destroy = inject_control_destroy,
	.segment_create = inject_segment_create,
	.segment_destroy = inject_segment_destroy,
	.segment_punch = inject_segment_punch,
	.segment_renew = inject_segment_renew,
	.backed = inject_backed,
	.reserve = inject_reserve,
	.reserve_at = inject_reserve_at,
	.vacate = inject_vacate,
	.map = inject_map,
	.unmap = inject_unmap,
	.move = inject_move,
	.end = inject_end,
	.protect = inject_protect,
	.anonymous = inject_anonymous,
	.hold = inject_hold,
	.keep_from_children = inject_keep_from_children,
	.populate = inject_populate,
	.touch = inject_touch,
	.collapse = inject_collapse,
	.zero = inject_zero,
	.gather = inject_gather,
	.scatter = inject_scatter,
	.load = inject_load,
	.store = inject_store,
	.max_map_count = inject_max_map_count,
	.hugetlb_available = inject_hugetlb_available,
	.memory_room = inject_memory_room,
	.shares_page_tables = inject_shares_page_tables,
};

static const char *const call_names[HP_CALL_COUNT] = {
	[HP_CALL_CONTROL_CREATE] = "control_create",
	[HP_CALL_CONTROL_DESTROY] = "control_destroy",
	[HP_CALL_SEGMENT_CREATE] = "segment_create",
	[HP_CALL_SEGMENT_DESTROY] = "segment_destroy",
	[HP_CALL_SEGMENT_PUNCH] = "segment_punch",
	[HP_CALL_SEGMENT_RENEW] = "segment_renew",
	[HP_CALL_BACKED] = "backed",
	[HP_CALL_RESERVE] = "reserve",
	[HP_CALL_RESERVE_AT] = "reserve_at",
	[HP_CALL_VACATE] = "vacate",
	[HP_CALL_MAP] = "map",
	[HP_CALL_UNMAP] = "unmap",
	[HP_CALL_MOVE] = "move",
	[HP_CALL_END] = "end",
	[HP_CALL_PROTECT] = "protect",
	[HP_CALL_ANONYMOUS] = "anonymous",
	[HP_CALL_HOLD] = "hold",
	[HP_CALL_KEEP_FROM_CHILDREN] = "keep_from_children",
	[HP_CALL_POPULATE] = "populate",
	[HP_CALL_TOUCH] = "touch",
	[HP_CALL_COLLAPSE] = "collapse",
	[HP_CALL_GATHER] = "gather",
	[HP_CALL_SCATTER] = "scatter",
};

const char *hp_os_call_name(enum hp_os_call call)
{
	return (unsigned)call < HP_CALL_COUNT ? call_names[call] : "unknown";
}

struct hp_os *hp_inject_create(struct hp_os *inner)
{
	struct inject *inject = calloc(1, sizeof(*inject));

	if (!inject)
		return NULL;
	inject->os.ops = &inject_ops;
	inject->inner = inner;
	return &inject->os;
}

void hp_inject_destroy(struct hp_os *os)
{
	free(inject_of(os));
}

void hp_inject_fail(struct hp_os *os, enum hp_os_call call, uint64_t occurrence, uint64_t more, int error)
{
	struct rule *rule = &inject_of(os)->rules[call];
	uint64_t first = atomic_load(&rule->calls) + occurrence;

	/* Off while it changes: a call at the same time finds no rule rather than half of two. */
	atomic_store(&rule->first, 0);
	atomic_store(&rule->last, more > UINT64_MAX - first ? UINT64_MAX : first + more);
	atomic_store(&rule->error, error);
	atomic_store(&rule->first, first);
}

void hp_inject_clear(struct hp_os *os)
{
	for (int call = 0; call < HP_CALL_COUNT; call++)
		atomic_store(&inject_of(os)->rules[call].first, 0);
}

uint64_t hp_inject_count(struct hp_os *os, enum hp_os_call call)
{
	return atomic_load(&inject_of(os)->rules[call].calls);
}
