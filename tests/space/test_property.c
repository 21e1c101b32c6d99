/* SPDX-License-Identifier: MIT */
/*
 * Random operations on the sim backend against a simple model.
 *
 * The model knows of each file which pages are promised, what they hold, and which lie in frames and which in places for
 * base pages; of each mapping which pages it shows and which are pinned; and of each pool and tenant how many frames and
 * places are spoken for. That predicts every result: success, or who is refused and why.
 *
 * An operation is a kind and four random numbers, which mean something in whatever state they find: any part of a list
 * of operations is a list of operations. So a list that fails is cut down before it is printed. Each list runs in a
 * process of its own, which may crash or hang.
 *
 * HP_TEST_SEED=N repeats one seed, HP_TEST_OPS=N sets the length of a list, HP_TEST_VERBOSE=1 prints what is done.
 */
#include "support/pool.h"
#include "support/random.h"

#include "pool/base.h"
#include "pool/extent.h"
#include "pool/workers.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEEDS = 6, OPS = 15000, SECONDS_MAX = 100 };
enum { POOLS = 3, FILES = 12, MAPPINGS = 24, EXTENTS = 10, SLOTS = 4, TENANTS = 5, PINS = 64 };

enum kind {
	POOL_CREATE,
	POOL_CLOSE,
	POOL_WAIT,
	POOL_CHECK,
	FILE_CREATE,
	FILE_CLOSE,
	FILE_ALLOCATE,
	FILE_TRUNCATE,
	FILE_PUNCH,
	MAP,
	UNMAP,
	UNMAP_PART,
	PROTECT,
	POPULATE,
	STORE,
	LOAD,
	ALLOC,
	FREE,
	COLLAPSE,
	SPLIT,
	PIN,
	UNPIN,
	TENANT_CREATE,
	TENANT_CLOSE,
	KINDS,
};

static const unsigned weight[KINDS] = {
	[POOL_CREATE] = 2, [POOL_CLOSE] = 2,    [POOL_WAIT] = 2,      [POOL_CHECK] = 3,   [FILE_CREATE] = 5,
	[FILE_CLOSE] = 4,  [FILE_ALLOCATE] = 4, [FILE_TRUNCATE] = 10, [FILE_PUNCH] = 8,   [MAP] = 16,
	[UNMAP] = 12,      [UNMAP_PART] = 7,    [PROTECT] = 8,        [POPULATE] = 6,     [STORE] = 40,
	[LOAD] = 40,       [ALLOC] = 8,         [FREE] = 7,           [COLLAPSE] = 14,    [SPLIT] = 9,
	[PIN] = 3,         [UNPIN] = 5,         [TENANT_CREATE] = 2,  [TENANT_CLOSE] = 1,
};

struct op {
	enum kind kind;
	uint32_t a, b, c, d;
};

/* ---- the model -------------------------------------------------------------------------------------------------- */

struct model_pool {
	bool exists, has_workers;
	hp_pool handle;
	uint64_t frames, hugetlb, other;
	uint64_t taken;                /* promised pages, extents, and what tenants' minimums keep */
	uint64_t places, places_taken; /* for base pages: all, and those that are promised */
	uint64_t maps;                 /* kernel mappings of its own */
};

struct model_tenant {
	bool exists;
	hp_tenant handle;
	unsigned pool, files;
	uint64_t limit, minimum, used, base; /* frames; UINT64_MAX: no limit. Promised frames, and places */
};

/* Where a page lies. */
enum memory { NOWHERE, IN_FRAME, IN_PLACE };

struct model_file {
	bool exists, open;
	hp_file handle;
	unsigned pool, mappings;
	unsigned flags, tenant; /* TENANTS: none */
	uint32_t pages, most;
	bool *promised, *touched; /* by page, up to `most` */
	uint8_t *memory;          /* the same: enum memory */
	uint32_t base_promised;   /* of the pages that are promised and lie nowhere, those that get a place */
	uint64_t (*tag)[SLOTS];   /* of some base pages of each page */
};

/* Pins go by address, and stand for the page of the file. */
struct model_pin {
	char *address;
	unsigned file, count; /* 0: none */
	uint32_t page;
};

struct model_mapping {
	bool exists, lazy;
	unsigned file, prot;
	uint32_t first, pages;
	char *address;
	uint64_t maps;
};

struct model_extent {
	bool exists;
	unsigned pool;
	uint32_t frames;
	char *address;
	uint64_t tag;
};

static struct model_pool pools[POOLS];
static struct model_file files[FILES];
static struct model_mapping mappings[MAPPINGS];
static struct model_extent extents[EXTENTS];
static struct model_tenant tenants[TENANTS];
static struct model_pin pins[PINS];
static struct hp_sim_config config;
static uint64_t maps_taken, maps_overdrawn, next_tag;
static unsigned large_share; /* one of so many sizes is large */
static bool verbose;

static const uint64_t slot_offset[SLOTS] = {0, 4096, FRAME / 2, FRAME - 4096};

#define say(...)                                      \
	do {                                          \
		if (verbose)                          \
			fprintf(stderr, __VA_ARGS__); \
	} while (0)

#define must(condition, ...)                                      \
	do {                                                      \
		if (!(condition)) {                               \
			fprintf(stderr, "line %d: ", __LINE__);   \
			fprintf(stderr, __VA_ARGS__);             \
			fprintf(stderr, "; %s\n", error.message); \
			_exit(1);                                 \
		}                                                 \
	} while (0)

/* The n-th of those that exist, counted round; `count` if there are none. */
#define DEFINE_PICK(name, array, count)                        \
	static unsigned name(uint32_t n)                       \
	{                                                      \
		for (unsigned i = 0; i < (count); i++)         \
			if ((array)[(n + i) % (count)].exists) \
				return (n + i) % (count);      \
		return count;                                  \
	}                                                      \
	static unsigned name##_free(void)                      \
	{                                                      \
		unsigned i = 0;                                \
                                                               \
		while (i < (count) && (array)[i].exists)       \
			i++;                                   \
		return i;                                      \
	}

DEFINE_PICK(pick_pool, pools, POOLS)
DEFINE_PICK(pick_file, files, FILES)
DEFINE_PICK(pick_mapping, mappings, MAPPINGS)
DEFINE_PICK(pick_extent, extents, EXTENTS)
DEFINE_PICK(pick_tenant, tenants, TENANTS)

/* Mostly small, sometimes about a GiB; in some lists often. */
static uint32_t size_of(uint32_t random, uint32_t small)
{
	return random % large_share == 0 ? 480 + random / 12 % 600 : 1 + random / 12 % small;
}

static void range_in(uint32_t pages, uint32_t b, uint32_t c, uint32_t *first, uint32_t *count)
{
	*first = b % 2 ? b / 2 % pages : 0;
	*count = c % 2 ? 1 + c / 2 % (pages - *first) : pages - *first;
}

static void take_frames(struct model_pool *pool, uint64_t frames)
{
	pool->taken += frames;
	must(pool->taken <= pool->frames, "the model gave too much");
}

static uint32_t missing_of(const struct model_file *file, uint32_t first, uint32_t pages)
{
	uint32_t missing = 0;

	for (uint32_t page = first; page < first + pages; page++)
		missing += !file->promised[page];
	return missing;
}

/* What the pool has committed to a tenant that uses so many frames. */
static uint64_t committed_for(const struct model_tenant *tenant, uint64_t used)
{
	return used > tenant->minimum ? used : tenant->minimum;
}

static struct model_tenant *tenant_of(const struct model_file *file)
{
	return file->tenant == TENANTS ? NULL : &tenants[file->tenant];
}

static void charge(const struct model_file *file, uint64_t frames, uint64_t places)
{
	struct model_pool *pool = &pools[file->pool];
	struct model_tenant *tenant = tenant_of(file);

	take_frames(pool, tenant ? committed_for(tenant, tenant->used + frames) - committed_for(tenant, tenant->used)
	                         : frames);
	pool->places_taken += places;
	must(pool->places_taken <= pool->places, "the model gave too many places");
	if (tenant) {
		tenant->used += frames;
		tenant->base += places;
	}
}

static void uncharge(const struct model_file *file, uint64_t frames, uint64_t places)
{
	struct model_pool *pool = &pools[file->pool];
	struct model_tenant *tenant = tenant_of(file);

	pool->taken -=
		tenant ? committed_for(tenant, tenant->used) - committed_for(tenant, tenant->used - frames) : frames;
	pool->places_taken -= places;
	if (tenant) {
		tenant->used -= frames;
		tenant->base -= places;
	}
}

/* What a promise of so many more pages comes to. */
struct outcome_of_promise {
	int result;
	uint32_t places; /* of the pages, so many are to lie in places */
};

static struct outcome_of_promise try_promise(const struct model_file *file, uint32_t missing)
{
	const struct model_pool *pool = &pools[file->pool];
	const struct model_tenant *tenant = tenant_of(file);
	uint64_t left = pool->frames - pool->taken, needed = missing;

	if (tenant && tenant->limit != UINT64_MAX && tenant->used + tenant->base + missing > tenant->limit)
		return (struct outcome_of_promise){-EDQUOT, 0};
	if (tenant)
		needed = committed_for(tenant, tenant->used + missing) - committed_for(tenant, tenant->used);
	if (needed <= left)
		return (struct outcome_of_promise){0, 0};
	if (file->flags & HP_FILE_FALLBACK && needed - left <= pool->places - pool->places_taken)
		return (struct outcome_of_promise){0, (uint32_t)(needed - left)};
	return (struct outcome_of_promise){-ENOMEM, 0};
}

static struct outcome_of_promise try_range(const struct model_file *file, uint32_t first, uint32_t pages)
{
	return try_promise(file, missing_of(file, first, pages));
}

static void expect_limit(int result)
{
	must(result != -ENOMEM || error.limit == HP_LIMIT_POOL, "limit %s", hp_limit_name(error.limit));
	must(result != -EDQUOT || error.limit == HP_LIMIT_TENANT, "limit %s", hp_limit_name(error.limit));
}

/* The promise can be kept. */
static void promise(struct model_file *file, uint32_t first, uint32_t pages, bool touched)
{
	uint32_t missing = missing_of(file, first, pages);
	struct outcome_of_promise outcome = try_promise(file, missing);

	must(!outcome.result, "the model promised too much");
	charge(file, missing - outcome.places, outcome.places);
	file->base_promised += outcome.places;
	for (uint32_t page = first; page < first + pages; page++) {
		file->promised[page] = true;
		file->touched[page] |= touched;
	}
}

/* A page is given up. Of those that lie nowhere the promises of places go first. */
static void give_up(struct model_file *file, uint32_t page)
{
	bool place = file->memory[page] == IN_PLACE;

	if (!file->promised[page])
		return;
	if (file->memory[page] == NOWHERE && file->base_promised) {
		file->base_promised--;
		place = true;
	}
	uncharge(file, !place, place);
	file->promised[page] = file->touched[page] = false;
	file->memory[page] = NOWHERE;
}

static void drop_file_if_unused(struct model_file *file)
{
	if (file->open || file->mappings)
		return;
	for (uint32_t page = 0; page < file->pages; page++)
		give_up(file, page);
	if (tenant_of(file))
		tenant_of(file)->files--;
	free(file->promised);
	free(file->touched);
	free(file->memory);
	free(file->tag);
	*file = (struct model_file){0};
}

/* ---- where pages lie, by the file's own index ------------------------------------------------------------------- */

static struct hp_pool_view *view_of(const struct model_file *file)
{
	return hp_pool_find(pools[file->pool].handle.id);
}

static struct hp_index index_of(const struct model_file *file)
{
	struct hp_pool_view *view = view_of(file);

	return hp_file_index(view, hp_file_at(view, file->handle.id >> 8 & 0xffffff));
}

static hp_frame_id frame_of(const struct model_file *file, uint32_t page)
{
	return hp_index_lookup(index_of(file), page);
}

static enum memory memory_of(const struct model_file *file, uint32_t page)
{
	hp_frame_id frame = frame_of(file, page);

	return frame == HP_NO_FRAME ? NOWHERE : hp_is_base(view_of(file), frame) ? IN_PLACE : IN_FRAME;
}

static bool is_hole(const struct model_file *file, uint32_t page)
{
	return hp_frame_state(hp_frame_load(&view_of(file)->frames[frame_of(file, page)])) == HP_FRAME_HOLE;
}

/*
 * Pages come to be there by faults and calls, with others beside them: they were promised, and those that come first get
 * the places. What was there stays where it was.
 */
static void follow_memory(struct model_file *file)
{
	uint32_t come = 0, places = 0;

	for (uint32_t page = 0; page < file->pages; page++) {
		enum memory memory = memory_of(file, page);

		if (memory == file->memory[page])
			continue;
		must(file->memory[page] == NOWHERE, "page %u was in a %s and is in a %s", page,
		     file->memory[page] == IN_PLACE ? "place" : "frame",
		     memory == IN_PLACE   ? "place"
		     : memory == IN_FRAME ? "frame"
		                          : "void");
		must(file->promised[page], "page %u is there and was not promised", page);
		file->memory[page] = memory;
		come++;
		places += memory == IN_PLACE;
	}
	must(places == hp_min(come, file->base_promised), "%u pages came to be there, %u in places of %u promised",
	     come, places, file->base_promised);
	file->base_promised -= places;
}

/* ---- pools ------------------------------------------------------------------------------------------------------ */

static uint64_t left_of(uint64_t budget_bytes, uint64_t used_frames)
{
	return budget_bytes ? budget_bytes / FRAME - used_frames : UINT64_MAX / 2;
}

enum outcome { MUST_FAIL, MUST_FIT, MAY_BE_EITHER };

/* Pieces of a pool that do not fit are given back whole, so at the edge of a budget both answers are right. */
static enum outcome expect_pool(const hp_pool_options *options, uint64_t frames, uint64_t regions)
{
	uint64_t huge_used = 0, other_used = 0, huge, other;

	for (unsigned i = 0; i < POOLS; i++) {
		huge_used += pools[i].hugetlb;
		other_used += pools[i].other;
	}
	huge = hp_min(config.hugetlb_bytes / FRAME - huge_used, left_of(config.cgroup_bytes, huge_used));
	other = left_of(config.memory_bytes, other_used);
	if (maps_taken + regions + 2 > hp_maps_max(os))
		return MUST_FAIL;
	if (options->backing == HP_BACKING_HUGETLB)
		return frames <= huge ? MUST_FIT : MUST_FAIL;
	if (options->backing == HP_BACKING_THP && config.no_thp)
		return MUST_FAIL;
	if (options->backing != HP_BACKING_AUTO)
		return frames <= other ? MUST_FIT : MUST_FAIL;
	if (frames <= huge || frames <= other)
		return MUST_FIT;
	return frames > huge + other ? MUST_FAIL : MAY_BE_EITHER;
}

static void pool_create(const struct op *op)
{
	static const char *const tunings[] = {NULL,
	                                      "fault_window=1 collapse=relock",
	                                      "fault_window=4 fault_mutexes=1",
	                                      "fault_window=512",
	                                      "fault_mutexes=64 zero_mb_per_s=4000",
	                                      "resv_lock=global collapse_verify=1 file_lock=vma"};
	unsigned i = pick_pool_free();
	uint64_t frames = size_of(op->a, 64), max = op->b % 5 ? frames : frames * 2;
	hp_pool_options options = {
		.struct_size = sizeof(options),
		.flags =
			(op->c % 4 == 0 ? HP_POOL_NO_TABLE_SHARING : 0) | (op->c / 4 % 4 == 0 ? HP_POOL_BACKGROUND : 0),
		.size = frames * FRAME - op->d % 2,
		.max_size = op->b % 5 ? 0 : max * FRAME,
		.backing = op->b / 5 % 4,
		.workers = op->d / 2 % 3 ? HP_WORKERS_NONE : 1 + op->d / 6 % 2,
		.tuning = tunings[op->b / 20 % 6],
	};
	uint64_t regions =
		(max + HP_REGION_FRAMES - 1) / HP_REGION_FRAMES * (options.backing == HP_BACKING_AUTO ? 3 : 2);
	enum outcome expected = expect_pool(&options, frames, regions);
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	hp_pool handle;
	int result;

	if (i == POOLS)
		return;
	result = hp_pool_create_on(os, &options, &handle, &error);
	if (!result && options.flags & HP_POOL_BACKGROUND) {
		result = hp_pool_wait(handle, 10000, &error);
		must(!result || hp_pool_close(handle) == 0, "close after a failed background fill");
	}
	say("pool_create %u: %lu frames of at most %lu, backing %s, flags %u, workers %d, tuning %s -> %d\n", i, frames,
	    max, hp_backing_name(options.backing), options.flags, (int)options.workers, options.tuning, result);
	must(result ? expected != MUST_FIT : expected != MUST_FAIL, "pool_create: %d, expected %d", result, expected);
	must(!result || (error.code == result && error.message[0]), "pool_create: no message");
	if (result)
		return;
	must(hp_pool_stats_get(handle, &stats) == 0, "stats");
	pools[i] = (struct model_pool){.exists = true,
	                               .has_workers = options.workers != HP_WORKERS_NONE,
	                               .handle = handle,
	                               .frames = frames,
	                               .hugetlb = stats.hugetlb,
	                               .other = stats.thp + stats.base,
	                               .places = hp_segment_frames(hp_pool_find(handle.id)->shared),
	                               .maps = regions + 2};
	maps_taken += regions + 2;
	must(stats.frames == frames && stats.hugetlb + stats.thp + stats.base == frames && stats.zeroed == frames,
	     "%lu frames, %lu hugetlb, %lu zeroed", stats.frames, stats.hugetlb, stats.zeroed);
	must((stats.hugetlb == frames) == (stats.why_not_better[0] == 0) || options.backing != HP_BACKING_AUTO,
	     "why not better: %s", stats.why_not_better);
}

static void pool_close(const struct op *op)
{
	unsigned i = pick_pool(op->a);
	bool used = false;
	int result;

	if (i == POOLS)
		return;
	for (unsigned f = 0; f < FILES; f++)
		used |= files[f].exists && files[f].pool == i;
	result = hp_pool_close(pools[i].handle);
	say("pool_close %u -> %d\n", i, result);
	must(result == (used ? -EBUSY : 0), "pool_close: %d, used %d", result, used);
	if (result)
		return;
	maps_taken -= pools[i].maps;
	for (unsigned e = 0; e < EXTENTS; e++)
		if (extents[e].pool == i)
			extents[e].exists = false;
	for (unsigned t = 0; t < TENANTS; t++)
		if (tenants[t].pool == i)
			tenants[t].exists = false;
	must(hp_pool_check(pools[i].handle, NULL) == -EBADF, "a closed pool is still there");
	pools[i] = (struct model_pool){0};
}

static void pool_wait(const struct op *op)
{
	unsigned i = pick_pool(op->a);
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	int result;

	if (i == POOLS)
		return;
	result = hp_pool_wait(pools[i].handle, 20000, &error);
	say("pool_wait %u -> %d\n", i, result);
	must(result == 0, "pool_wait: %d", result);
	must(hp_pool_stats_get(pools[i].handle, &stats) == 0, "stats");
	must(!pools[i].has_workers || pools[i].taken == pools[i].frames || stats.dirty == 0,
	     "%lu dirty frames after a wait", stats.dirty);
}

static void check_file(const struct model_file *file)
{
	hp_file_stat stat = {.struct_size = sizeof(stat)};
	uint64_t promised = 0, touched = 0, places = 0, holes = 0;

	if (!file->exists || !file->open)
		return;
	for (uint32_t page = 0; page < file->pages; page++) {
		promised += file->promised[page];
		touched += file->touched[page];
		places += file->memory[page] == IN_PLACE;
		holes += file->memory[page] == IN_PLACE && is_hole(file, page);
	}
	must(hp_file_stat_get(file->handle, &stat) == 0, "file_stat");
	must(stat.size == file->pages * FRAME && stat.mappings == file->mappings &&
	             stat.present + stat.holes + stat.reserved == promised * FRAME &&
	             stat.present + stat.holes >= touched * FRAME,
	     "file: %lu present, %lu holes, %lu reserved, %lu promised, %lu touched", stat.present / FRAME,
	     stat.holes / FRAME, stat.reserved / FRAME, promised, touched);
	must(stat.base == places * FRAME || stat.base == (places - holes) * FRAME,
	     "file: %lu in places, and should be %lu or %lu less", stat.base / FRAME, places, holes);
}

static void check_tenant(const struct model_tenant *tenant)
{
	hp_tenant_stat stat = {.struct_size = sizeof(stat)};

	must(hp_tenant_stat_get(tenant->handle, &stat) == 0, "tenant_stat");
	must(stat.used == (tenant->used + tenant->base) * FRAME && stat.files == tenant->files,
	     "tenant: %lu used, %u files, and should be %lu frames, %lu places, %u files", stat.used / FRAME,
	     stat.files, tenant->used, tenant->base, tenant->files);
}

static void check_pool(unsigned i)
{
	const struct model_pool *pool = &pools[i];
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	uint64_t file_count = 0, mapping_count = 0, places = pool->places_taken; /* that files have */

	must(hp_pool_check(pool->handle, &error) == 0, "pool_check %u", i);
	must(hp_pool_stats_get(pool->handle, &stats) == 0, "stats");
	for (unsigned f = 0; f < FILES; f++)
		if (files[f].exists && files[f].pool == i) {
			file_count++;
			mapping_count += files[f].mappings;
			places -= files[f].base_promised;
		}
	must(stats.used + stats.holes + stats.reserved == pool->taken + places,
	     "%lu used, %lu holes and %lu reserved of %lu taken and %lu places", stats.used, stats.holes,
	     stats.reserved, pool->taken, places);
	must(stats.zeroed + stats.dirty + stats.zeroing + stats.used + stats.holes == pool->frames + places,
	     "frames by state");
	must(stats.files == file_count && stats.mappings == mapping_count, "%lu files, %lu mappings", stats.files,
	     stats.mappings);
}

static void check_all(void)
{
	for (unsigned i = 0; i < POOLS; i++)
		if (pools[i].exists)
			check_pool(i);
	for (unsigned f = 0; f < FILES; f++)
		check_file(&files[f]);
	for (unsigned t = 0; t < TENANTS; t++)
		if (tenants[t].exists)
			check_tenant(&tenants[t]);
	must(hp_sim_map_count(os) <= maps_taken + maps_overdrawn, "%lu kernel mappings where %lu were set aside",
	     hp_sim_map_count(os), maps_taken);
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

/* Base pages are memory that is not set aside; where there is little of it, a touch may end the process. */
static bool may_have_places(unsigned p)
{
	return config.memory_bytes == 0 && !pools[p].has_workers;
}

/* A tenant of the pool, for some files. */
static unsigned choose_tenant(unsigned p, uint32_t random)
{
	for (unsigned t = 0; t < TENANTS && random % 3; t++)
		if (tenants[(t + random) % TENANTS].exists && tenants[(t + random) % TENANTS].pool == p)
			return (t + random) % TENANTS;
	return TENANTS;
}

static void file_create(const struct op *op)
{
	static const unsigned kinds[] = {0,
	                                 0,
	                                 HP_FILE_MOVABLE,
	                                 HP_FILE_FALLBACK,
	                                 HP_FILE_FALLBACK | HP_FILE_MOVABLE,
	                                 HP_FILE_FALLBACK | HP_FILE_MOVABLE};
	unsigned i = pick_file_free(), p = pick_pool(op->a);
	struct model_file *file = &files[i];
	uint32_t pages = size_of(op->b, 48);
	hp_file_options options = {.struct_size = sizeof(options), .size = pages * FRAME - op->c % 2};
	unsigned flags = kinds[op->d % 6];
	int result;

	if (i == FILES || p == POOLS)
		return;
	if (!may_have_places(p))
		flags &= ~HP_FILE_FALLBACK;
	file->tenant = choose_tenant(p, op->d / 6);
	if (file->tenant != TENANTS)
		options.tenant = tenants[file->tenant].handle;
	options.flags = HP_FILE_CREATE | flags;
	result = hp_file_open(pools[p].handle, NULL, &options, &file->handle, &error);
	say("file_create %u: pool %u, %u pages, flags %u, tenant %d -> %d\n", i, p, pages, flags,
	    file->tenant == TENANTS ? -1 : (int)file->tenant, result);
	must(result == 0, "file_create");
	file->exists = file->open = true;
	file->flags = flags;
	file->pool = p;
	file->pages = pages;
	file->most = hp_segment_frames(hp_pool_find(pools[p].handle.id)->shared);
	file->most = pages > file->most ? pages : file->most;
	file->promised = calloc(file->most, sizeof(bool));
	file->touched = calloc(file->most, sizeof(bool));
	file->memory = calloc(file->most, sizeof(file->memory[0]));
	file->tag = calloc(file->most, sizeof(file->tag[0]));
	if (tenant_of(file))
		tenant_of(file)->files++;
}

static void file_close_op(const struct op *op)
{
	unsigned i = pick_file(op->a);
	int result;

	if (i == FILES)
		return;
	result = hp_file_close(files[i].handle);
	say("file_close %u -> %d\n", i, result);
	must(result == (files[i].open ? 0 : -EBADF), "file_close: %d, open %d", result, files[i].open);
	files[i].open = false;
	drop_file_if_unused(&files[i]);
}

static void file_allocate(const struct op *op)
{
	unsigned i = pick_file(op->a);
	struct outcome_of_promise expected;
	uint32_t first, pages;
	int result;

	if (i == FILES)
		return;
	if (files[i].pages == 0)
		return;
	range_in(files[i].pages, op->b, op->c, &first, &pages);
	expected = try_range(&files[i], first, pages);
	result = hp_file_allocate(files[i].handle, first * FRAME, pages * FRAME, &error);
	say("file_allocate %u: pages %u+%u -> %d\n", i, first, pages, result);
	must(result == (!files[i].open ? -EBADF : expected.result), "file_allocate: %d, expected %d", result,
	     expected.result);
	expect_limit(result);
	if (!result)
		promise(&files[i], first, pages, true);
}

/* ---- mappings --------------------------------------------------------------------------------------------------- */

/* How many runs of frames, of one segment each, the pages lie in, by the file's own index. All are present. */
static uint64_t runs_of(const struct model_file *file, uint32_t first, uint32_t pages)
{
	struct hp_index index = index_of(file);
	uint64_t runs = 0;

	for (uint32_t page = first, run; page < first + pages; page += run, runs++) {
		hp_frame_id frame = frame_of(file, page);

		run = hp_index_run(index, page, first + pages - page);
		must(run, "page %u is not present", page);
		run = (uint32_t)hp_min(run, hp_segment_end(view_of(file), frame) - frame);
	}
	return runs;
}

static uint32_t end_of(const struct model_mapping *m)
{
	return m->first + m->pages;
}

/* How many pages of it its file has. */
static uint32_t inside_of(const struct model_mapping *m, uint32_t size)
{
	return size <= m->first ? 0 : (uint32_t)hp_min(size - m->first, m->pages);
}

static bool is_mapped(const struct model_file *file, uint32_t page)
{
	for (unsigned i = 0; i < MAPPINGS; i++)
		if (mappings[i].exists && &files[mappings[i].file] == file && mappings[i].first <= page &&
		    page < end_of(&mappings[i]))
			return true;
	return false;
}

/* Pages that are there: with what the model says, or trapping; those beyond the end are SIGBUS. */
static void check_mapped(const struct model_mapping *m, uint32_t first, uint32_t pages)
{
	const struct model_file *file = &files[m->file];

	for (uint32_t page = first; page < first + pages; page++)
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			const char *address = m->address + (page - m->first) * FRAME + slot_offset[slot];
			uint64_t tag = 0;
			int result = hp_sim_load(os, address, &tag);

			if (page >= file->pages) {
				must(result == -ENXIO, "page %u is beyond the end: %d", page, result);
			} else if (!m->prot) {
				must(result == -EFAULT, "page %u is forbidden: %d", page, result);
			} else {
				must(result == 0, "page %u is not mapped: %d", page, result);
				must(tag == file->tag[page][slot], "page %u has %lu, and should have %lu", page, tag,
				     file->tag[page][slot]);
			}
		}
}

static void check_all_mapped(const struct model_mapping *m)
{
	uint32_t size = files[m->file].pages, end = m->first + inside_of(m, size);

	if (!m->lazy)
		check_mapped(m, m->first, end - m->first);
	check_mapped(m, end, end_of(m) - end);
}

/* The budget has as many, or a mapping goes on with fewer than it needs. */
static void change_maps(struct model_mapping *m, uint64_t maps)
{
	if (maps > m->maps && maps_taken + maps - m->maps > hp_maps_max(os)) {
		maps_overdrawn += maps - m->maps;
		return;
	}
	maps_taken += maps - m->maps;
	m->maps = maps;
}

/* Ready mappings of a file that has another size now, by address. */
static void follow_size(unsigned f, uint32_t before)
{
	char *at = NULL;

	for (;;) {
		struct model_mapping *next = NULL;
		uint32_t had, has;

		for (unsigned i = 0; i < MAPPINGS; i++)
			if (mappings[i].exists && mappings[i].file == f && mappings[i].address > at &&
			    (!next || mappings[i].address < next->address))
				next = &mappings[i];
		if (!next)
			return;
		at = next->address;
		had = inside_of(next, before);
		has = inside_of(next, files[f].pages);
		if (!next->lazy && has < had)
			change_maps(next, hp_min(next->maps, has) + 1);
		if (!next->lazy && has > had)
			change_maps(next,
			            hp_min(next->maps + runs_of(&files[f], next->first + had, has - had), next->pages));
		check_all_mapped(next);
	}
}

static uint32_t choose_size(const struct model_file *file, const struct op *op)
{
	switch (op->b % 6) {
	case 0:
		return file->pages + op->c % 60;
	case 1:
		return op->c % (file->most + 2);
	case 2:
		return size_of(op->c, 48);
	default:
		return op->c % (file->pages + 1);
	}
}

static void cut_file(struct model_file *file, uint32_t size)
{
	for (uint32_t page = size; page < file->pages; page++) {
		give_up(file, page);
		memset(file->tag[page], 0, sizeof(file->tag[page]));
	}
	file->pages = size;
}

/* What is mapped is promised again, and there if its mapping is ready. */
static void grow_file(struct model_file *file, uint32_t size)
{
	uint32_t before = file->pages;

	file->pages = size;
	for (unsigned i = 0; i < MAPPINGS; i++) {
		const struct model_mapping *m = &mappings[i];
		uint32_t had = inside_of(m, before);

		if (m->exists && &files[m->file] == file)
			promise(file, m->first + had, inside_of(m, size) - had, !m->lazy);
	}
}

static void file_truncate(const struct op *op)
{
	unsigned f = pick_file(op->a);
	struct model_file *file = &files[f];
	struct outcome_of_promise expected;
	uint32_t size, before, needed = 0;
	int result;

	if (f == FILES)
		return;
	before = file->pages;
	size = choose_size(file, op);
	for (uint32_t page = before; page < size; page++)
		needed += is_mapped(file, page);
	expected = try_promise(file, needed);
	result = hp_file_truncate(file->handle, size * FRAME, &error);
	say("truncate %u: %u pages to %u, %u to be promised -> %d\n", f, before, size, needed, result);
	must(result == (!file->open         ? -EBADF
	                : size > file->most ? -EFBIG
	                                    : expected.result) ||
	             (result == -ENOMEM && expected.result == -EDQUOT), /* mapping by mapping: which comes first */
	     "truncate: %d, expected %d", result, expected.result);
	expect_limit(result);
	if (!result && size <= before)
		cut_file(file, size);
	else if (!result)
		grow_file(file, size);
	follow_size(f, before);
}

/* Whole pages are given up where nobody maps them, and are empty where somebody does. Parts are zeroed. */
static void punch_page(struct model_file *file, uint32_t page, uint64_t from, uint64_t end, bool keep)
{
	for (unsigned slot = 0; slot < SLOTS; slot++)
		if (slot_offset[slot] >= from && slot_offset[slot] < end)
			file->tag[page][slot] = 0;
	if (keep || from > 0 || end < FRAME)
		return;
	file->touched[page] = false;
	if (is_mapped(file, page))
		return;
	give_up(file, page);
}

static void file_punch(const struct op *op)
{
	unsigned f = pick_file(op->a);
	struct model_file *file = &files[f];
	uint64_t offset, end, size;
	uint32_t first, pages;
	bool keep = op->d % 4 == 0;
	int result;

	if (f == FILES || file->pages == 0)
		return;
	size = file->pages * FRAME;
	range_in(file->pages, op->b, op->c, &first, &pages);
	if (keep && pages > 40)
		pages = 40;
	offset = first * FRAME + (op->d / 4 % 3 == 0 ? 4096 : 0);
	end = (first + pages) * FRAME - (op->d / 12 % 3 == 0 ? 8192 : 0);
	if (op->d / 36 % 5 == 0 && end >= size && !keep)
		end += 3 * FRAME; /* beyond the end is nothing */
	result = hp_file_punch(file->handle, offset, end - offset, keep ? HP_PUNCH_KEEP : 0, &error);
	say("punch %u: bytes %lu to %lu of %lu%s -> %d\n", f, offset, end, size, keep ? ", kept" : "", result);
	must(result == (file->open ? 0 : -EBADF), "punch: %d", result);
	if (result)
		return;
	for (uint64_t at = offset & ~(FRAME - 1); at < hp_min(end, size); at += FRAME)
		punch_page(file, (uint32_t)(at / FRAME), at < offset ? offset - at : 0, hp_min(end - at, FRAME), keep);
	for (unsigned i = 0; i < MAPPINGS; i++)
		if (mappings[i].exists && mappings[i].file == f)
			check_all_mapped(&mappings[i]);
}

/* Mappings of a movable file are lazy ones; those that are to be ready are filled before. */
static void map_op(const struct op *op)
{
	unsigned i = pick_mapping_free(), f = pick_file(op->a);
	struct model_mapping *m = &mappings[i];
	struct model_file *file = &files[f];
	struct outcome_of_promise expected;
	bool refused, lazy = op->d % 2;
	void *address = NULL;
	int result;

	if (i == MAPPINGS || f == FILES)
		return;
	if (file->pages == 0)
		return;
	*m = (struct model_mapping){
		.lazy = lazy || file->flags & HP_FILE_MOVABLE, .prot = op->d / 2 % 5 ? RW : HP_PROT_READ, .file = f};
	range_in(file->pages, op->b, op->c, &m->first, &m->pages);
	expected = try_range(file, m->first, m->pages);
	result = hp_map(file->handle, m->first * FRAME, m->pages * FRAME, m->prot, lazy ? HP_MAP_LAZY : 0, &address,
	                &error);
	say("map %u: file %u, pages %u+%u, %s, %s -> %d\n", i, f, m->first, m->pages, lazy ? "lazy" : "ready",
	    m->prot == RW ? "writable" : "read-only", result);
	if (!file->open) {
		must(result == -EBADF, "map of a closed file");
		return;
	}
	/* Ready memory is filled first, and then needs as many kernel mappings as it has runs. */
	if (!lazy && !expected.result)
		promise(file, m->first, m->pages, true);
	m->maps = !lazy && expected.result ? 0 : m->lazy ? m->pages + 1u : runs_of(file, m->first, m->pages);
	refused = maps_taken + m->maps > hp_maps_max(os);
	must(result == (refused ? -ENOMEM : expected.result), "map: %d; expected %d, refused %d", result,
	     expected.result, refused);
	if (refused)
		must(error.limit == HP_LIMIT_MAP_COUNT, "limit %s", hp_limit_name(error.limit));
	else
		expect_limit(result);
	if (result)
		return;
	if (lazy)
		promise(file, m->first, m->pages, false);
	m->exists = true;
	m->address = address;
	maps_taken += m->maps;
	file->mappings++;
	if (!lazy)
		check_mapped(m, m->first, m->pages);
}

/* The mapping that begins where another ends. */
static struct model_mapping *mapping_at(const char *address)
{
	for (unsigned i = 0; i < MAPPINGS; i++)
		if (mappings[i].exists && mappings[i].address == address)
			return &mappings[i];
	return NULL;
}

static void expect_unmapped(char *address, uint64_t pages)
{
	for (char *end = address + pages * FRAME; address < end; address += FRAME) {
		uint64_t tag;

		must(hp_sim_load(os, address, &tag) == -EFAULT, "still mapped after unmap");
		must(fault(address, false) == HP_FAULT_FOREIGN, "a fault after unmap is not foreign");
	}
}

static void forget_pins(const char *start, uint64_t pages)
{
	for (unsigned i = 0; i < PINS; i++)
		if (pins[i].count && pins[i].address >= start && pins[i].address < start + pages * FRAME)
			pins[i].count = 0;
}

static void forget_mapping(struct model_mapping *m)
{
	forget_pins(m->address, m->pages);
	m->exists = false;
	maps_taken -= m->maps;
	files[m->file].mappings--;
	drop_file_if_unused(&files[m->file]);
}

/* One mapping; or with it all that lie behind it without a gap. */
static void unmap_op(const struct op *op)
{
	unsigned i = pick_mapping(op->a);
	struct model_mapping *m = &mappings[i];
	uint64_t pages;
	char *address;

	if (i == MAPPINGS)
		return;
	address = m->address;
	pages = m->pages;
	must(mapping_at(address + pages * FRAME) || hp_unmap(address, (pages + 1) * FRAME) == -EINVAL,
	     "unmap of too much");
	if (op->b % 3 == 0)
		for (struct model_mapping *next = m; (next = mapping_at(address + pages * FRAME));)
			pages += next->pages;
	must(hp_unmap(address, pages * FRAME) == 0, "unmap %u", i);
	say("unmap %u: %lu pages\n", i, pages);
	expect_unmapped(address, pages);
	for (char *at = address; at < address + pages * FRAME; at += m->pages * FRAME) {
		m = mapping_at(at);
		forget_mapping(m);
	}
}

static unsigned free_mappings(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < MAPPINGS; i++)
		count += !mappings[i].exists;
	return count;
}

/* Pieces take a mapping's place: up to three, of so many pages each; each has as many kernel mappings as it may need. */
struct pieces {
	struct model_mapping of[3];
	unsigned count;
	uint64_t maps;
};

static void add_piece(struct pieces *pieces, const struct model_mapping *old, uint32_t from, uint32_t pages,
                      unsigned prot)
{
	struct model_mapping *piece = &pieces->of[pieces->count];

	if (!pages)
		return;
	*piece = *old;
	piece->first = old->first + from;
	piece->pages = pages;
	piece->prot = prot;
	piece->address = old->address + from * FRAME;
	piece->maps = hp_min(old->maps, (uint64_t)pages + old->lazy);
	pieces->maps += piece->maps;
	pieces->count++;
}

static bool have_maps_for(const struct model_mapping *old, const struct pieces *pieces)
{
	return pieces->maps <= old->maps || maps_taken + pieces->maps - old->maps <= hp_maps_max(os);
}

static void put_pieces(struct model_mapping *old, const struct pieces *pieces)
{
	old->exists = false;
	maps_taken += pieces->maps - old->maps;
	files[old->file].mappings += pieces->count - 1;
	for (unsigned i = 0; i < pieces->count; i++) {
		mappings[pick_mapping_free()] = pieces->of[i];
		check_all_mapped(&pieces->of[i]);
	}
}

static void unmap_part(const struct op *op)
{
	unsigned i = pick_mapping(op->a);
	struct model_mapping *m = &mappings[i];
	struct pieces pieces = {.count = 0};
	uint32_t from, pages;
	char *address;
	bool fit;
	int result;

	if (i == MAPPINGS || m->pages == 1 || !free_mappings())
		return;
	range_in(m->pages, op->b, op->c, &from, &pages);
	if (pages == m->pages)
		pages--;
	add_piece(&pieces, m, 0, from, m->prot);
	add_piece(&pieces, m, from + pages, m->pages - from - pages, m->prot);
	fit = have_maps_for(m, &pieces);
	address = m->address + from * FRAME;
	result = hp_unmap(address, pages * FRAME);
	say("unmap_part %u: pages %u+%u -> %d\n", i, m->first + from, pages, result);
	must(result == (fit ? 0 : -ENOMEM), "unmap of a part: %d, fits %d", result, fit);
	if (result) {
		check_all_mapped(m);
		return;
	}
	expect_unmapped(address, pages);
	forget_pins(address, pages);
	put_pieces(m, &pieces);
}

static void protect_op(const struct op *op)
{
	static const unsigned prots[] = {0, HP_PROT_READ, RW, RW};
	unsigned i = pick_mapping(op->a), prot = prots[op->d % 4];
	struct model_mapping *m = &mappings[i];
	struct pieces pieces = {.count = 0};
	uint32_t from, pages;
	bool fit;
	int result;

	if (i == MAPPINGS || free_mappings() < 2)
		return;
	range_in(m->pages, op->b, op->c, &from, &pages);
	add_piece(&pieces, m, 0, from, m->prot);
	add_piece(&pieces, m, from, pages, prot);
	add_piece(&pieces, m, from + pages, m->pages - from - pages, m->prot);
	fit = prot == m->prot || have_maps_for(m, &pieces);
	result = hp_protect(m->address + from * FRAME, pages * FRAME, prot);
	say("protect %u: pages %u+%u, %u to %u -> %d\n", i, m->first + from, pages, m->prot, prot, result);
	must(result == (fit ? 0 : -ENOMEM), "protect: %d, fits %d", result, fit);
	if (!result && prot != m->prot)
		put_pieces(m, &pieces);
	else
		check_all_mapped(m);
}

static void populate_op(const struct op *op)
{
	unsigned i = pick_mapping(op->a);
	struct model_mapping *m = &mappings[i];
	uint32_t first, pages, inside;
	int result;

	if (i == MAPPINGS)
		return;
	range_in(m->pages, op->b, op->c, &first, &pages);
	result = hp_populate(m->address + first * FRAME, pages * FRAME);
	say("populate %u: pages %u+%u -> %d\n", i, m->first + first, pages, result);
	inside = inside_of(m, files[m->file].pages);
	must(result == (first + pages > inside ? -ENXIO : 0), "populate: %d", result);
	must(hp_populate(m->address + first * FRAME, (m->pages - first + 1) * FRAME) == -EINVAL,
	     "populate beyond a mapping");
	if (first < inside)
		promise(&files[m->file], m->first + first, (uint32_t)hp_min(pages, inside - first), m->lazy);
	check_mapped(m, m->first + first, pages);
}

/* Once more after the fault that is expected, and never after that. */
static int touch(const struct model_mapping *m, char *address, bool write, uint64_t *tag)
{
	int result = write ? hp_sim_store(os, address, *tag) : hp_sim_load(os, address, tag);

	if (result == -EFAULT && fault(address, write) == HP_FAULT_RESOLVED) {
		must(m->lazy, "a fault in ready memory");
		result = write ? hp_sim_store(os, address, *tag) : hp_sim_load(os, address, tag);
	}
	return result;
}

static void touch_op(const struct op *op)
{
	unsigned i = pick_mapping(op->a), slot = op->c % SLOTS;
	struct model_mapping *m = &mappings[i];
	uint64_t tag = ++next_tag, *expected;
	bool write = op->kind == STORE;
	uint32_t page;
	int result;

	if (i == MAPPINGS)
		return;
	page = op->b % m->pages;
	expected = &files[m->file].tag[m->first + page][slot];
	result = touch(m, m->address + page * FRAME + slot_offset[slot] + op->d % 4096, write, &tag);
	say("%s %u: page %u, slot %u -> %d\n", write ? "store" : "load", i, m->first + page, slot, result);
	if (m->first + page >= files[m->file].pages) {
		must(result == -ENXIO, "an access beyond the end: %d", result);
		return;
	}
	if (!(m->prot & (write ? HP_PROT_WRITE : HP_PROT_READ))) {
		must(result == -EFAULT, "an access that is forbidden: %d", result);
		return;
	}
	must(result == 0, "touch: %d", result);
	must(write || tag == *expected, "load found %lu, and should find %lu", tag, *expected);
	*expected = tag;
	files[m->file].touched[m->first + page] = true;
}

/* ---- collapse --------------------------------------------------------------------------------------------------- */

static bool is_pinned(unsigned file, uint32_t page)
{
	for (unsigned i = 0; i < PINS; i++)
		if (pins[i].count && pins[i].file == file && pins[i].page == page)
			return true;
	return false;
}

/* What the kernel would do in place it does not do here, but for frames that are huge as it is. */
static int expect_in_place(const struct model_file *file, uint32_t page)
{
	hp_frame_id frame = frame_of(file, page);
	struct hp_pool_view *view = view_of(file);
	uint64_t offset;

	if (is_hole(file, page) || hp_huge_is(view, frame) ||
	    view->shared->segment[hp_segment_of(view, frame, &offset)].backing == HP_BACKING_HUGETLB)
		return 0;
	return -ENOMEM;
}

/* One more is not within what is kept for the file's tenant. */
static bool needs_frame(const struct model_file *file)
{
	const struct model_tenant *tenant = tenant_of(file);

	return !tenant || committed_for(tenant, tenant->used + 1) > committed_for(tenant, tenant->used);
}

/* One page: the result, and the model as it is after. `result`: of the call that went through it. */
static int expect_collapse(unsigned f, uint32_t page, int result)
{
	struct model_file *file = &files[f];
	struct model_pool *pool = &pools[file->pool];

	if (page >= file->pages || file->memory[page] == NOWHERE)
		return 0;
	if (file->memory[page] == IN_FRAME || !(file->flags & HP_FILE_MOVABLE))
		return expect_in_place(file, page);
	if (is_pinned(f, page))
		return -EBUSY;
	if (pool->taken == pool->frames && needs_frame(file))
		return -ENOMEM;
	/* A worker may have the last one in hand. */
	if (pool->has_workers && result == -ENOMEM && memory_of(file, page) == IN_PLACE)
		return -ENOMEM;
	uncharge(file, 0, 1);
	charge(file, 1, 0);
	file->memory[page] = IN_FRAME;
	return 0;
}

static int expect_split(unsigned f, uint32_t page, int result)
{
	struct model_file *file = &files[f];
	struct model_pool *pool = &pools[file->pool];

	if (!(file->flags & HP_FILE_MOVABLE))
		return -EPERM;
	if (page >= file->pages || file->memory[page] != IN_FRAME)
		return 0;
	if (is_pinned(f, page))
		return -EBUSY;
	if (pool->places_taken == pool->places)
		return -ENOMEM;
	uncharge(file, 1, 0);
	charge(file, 0, 1);
	file->memory[page] = IN_PLACE;
	return 0;
}

static int touch(const struct model_mapping *m, char *address, bool write, uint64_t *tag);

/* Pages that are there, wherever they lie now. */
static void check_contents(const struct model_mapping *m, uint32_t first, uint32_t pages)
{
	const struct model_file *file = &files[m->file];

	for (uint32_t page = first; page < first + pages && page < file->pages && m->prot; page++)
		for (unsigned slot = 0; slot < SLOTS && file->memory[page] != NOWHERE; slot++) {
			uint64_t tag = 0;

			must(touch(m, m->address + (page - m->first) * FRAME + slot_offset[slot], false, &tag) == 0,
			     "page %u cannot be read after a move", page);
			must(tag == file->tag[page][slot], "page %u has %lu after a move, and should have %lu", page,
			     tag, file->tag[page][slot]);
		}
}

/* A part of one mapping, mostly a few pages. */
static void move_op(const struct op *op)
{
	bool split = op->kind == SPLIT;
	unsigned i = pick_mapping(op->a);
	struct model_mapping *m = &mappings[i];
	uint32_t from, pages;
	int result, expected = 0;

	if (i == MAPPINGS || (split && !may_have_places(files[m->file].pool)))
		return;
	range_in(m->pages, op->b, op->c, &from, &pages);
	if (op->d % 4 && pages > 8)
		pages = 8;
	result = (split ? hp_split : hp_collapse)(m->address + from * FRAME, pages * FRAME, &error);
	say("%s %u: file %u, pages %u+%u -> %d\n", split ? "split" : "collapse", i, m->file, m->first + from, pages,
	    result);
	for (uint32_t page = from; page < from + pages && !expected; page++)
		expected = (split ? expect_split : expect_collapse)(m->file, m->first + page, result);
	must(result == expected, "%s: %d, expected %d", split ? "split" : "collapse", result, expected);
	must(!result || (error.code == result && error.message[0]), "no message");
	must(result != -EBUSY || error.limit == HP_LIMIT_PINNED, "limit %s", hp_limit_name(error.limit));
	follow_memory(&files[m->file]);
	check_contents(m, m->first + from, pages);
	must(hp_collapse(m->address + from * FRAME, (m->pages - from + 1) * FRAME, &error) == -EINVAL,
	     "collapse beyond a mapping");
}

static struct model_pin *pin_at(const char *address)
{
	for (unsigned i = 0; i < PINS; i++)
		if (pins[i].count && pins[i].address == address)
			return &pins[i];
	return NULL;
}

static struct model_pin *free_pin(void)
{
	for (unsigned i = 0; i < PINS; i++)
		if (!pins[i].count)
			return &pins[i];
	return NULL;
}

/* Up to three pages, or parts of these. */
static void choose_bytes(const struct op *op, const struct model_mapping *m, uint32_t *from, uint32_t *pages,
                         uint64_t *skew, uint64_t *length)
{
	*from = op->b % m->pages;
	*pages = (uint32_t)hp_min(1 + op->c % 3, m->pages - *from);
	*skew = op->d % 2 ? op->d % FRAME : 0;
	*length = *pages * FRAME - *skew - (op->d % 3 ? op->d / 3 % (FRAME - *skew) : 0);
}

static void pin_op(const struct op *op)
{
	unsigned i = pick_mapping(op->a), left = 0;
	struct model_mapping *m = &mappings[i];
	uint32_t from, pages, inside;
	uint64_t skew, length;
	int result;

	for (unsigned p = 0; p < PINS; p++)
		left += !pins[p].count;
	if (i == MAPPINGS || left < 3)
		return;
	choose_bytes(op, m, &from, &pages, &skew, &length);
	result = hp_pin(m->address + from * FRAME + skew, length);
	say("pin %u: file %u, pages %u+%u -> %d\n", i, m->file, m->first + from, pages, result);
	inside = inside_of(m, files[m->file].pages);
	must(result == (from + pages > inside ? -ENXIO : 0), "pin: %d", result);
	if (from < inside)
		promise(&files[m->file], m->first + from, (uint32_t)hp_min(pages, inside - from), m->lazy);
	for (uint32_t page = from; page < from + pages && !result && files[m->file].flags & HP_FILE_MOVABLE; page++) {
		struct model_pin *pin = pin_at(m->address + page * FRAME);

		if (!pin) {
			pin = free_pin();
			*pin = (struct model_pin){
				.address = m->address + page * FRAME, .file = m->file, .page = m->first + page};
		}
		pin->count++;
	}
	if (!result)
		check_mapped(m, m->first + from, pages);
}

/* Mostly of a page that is pinned. */
static void unpin_op(const struct op *op)
{
	unsigned i = pick_mapping(op->a);
	bool all = true;
	uint32_t from, pages;
	uint64_t skew, length;
	int result;

	if (op->d % 5 && pins[op->c % PINS].count)
		for (i = 0; i < MAPPINGS; i++)
			if (mappings[i].exists && mappings[i].address <= pins[op->c % PINS].address &&
			    mappings[i].address + mappings[i].pages * FRAME > pins[op->c % PINS].address)
				break;
	if (i == MAPPINGS)
		return;
	choose_bytes(op, &mappings[i], &from, &pages, &skew, &length);
	if (op->d % 5 && pins[op->c % PINS].count) {
		from = (uint32_t)((pins[op->c % PINS].address - mappings[i].address) / FRAME);
		pages = 1;
		skew = 0;
		length = 1;
	}
	for (uint32_t page = from; page < from + pages; page++)
		all &= pin_at(mappings[i].address + page * FRAME) != NULL;
	result = hp_unpin(mappings[i].address + from * FRAME + skew, length);
	say("unpin %u: file %u, pages %u+%u -> %d\n", i, mappings[i].file, mappings[i].first + from, pages, result);
	if (!(files[mappings[i].file].flags & HP_FILE_MOVABLE)) {
		must(result == 0, "unpin of memory that is not movable: %d", result);
		return;
	}
	must(result == (all ? 0 : -EINVAL), "unpin: %d, pinned %d", result, all);
	for (uint32_t page = from; page < from + pages && !result; page++)
		pin_at(mappings[i].address + page * FRAME)->count--;
}

/* ---- tenants ---------------------------------------------------------------------------------------------------- */

static void tenant_create(const struct op *op)
{
	unsigned i = pick_tenant_free(), p = pick_pool(op->a);
	struct model_tenant *tenant = &tenants[i];
	uint64_t minimum = op->b % 3 ? 0 : op->b / 3 % 12, limit = op->c % 3 ? minimum + 1 + op->c / 3 % 40 : 0;
	int result;

	if (i == TENANTS || p == POOLS)
		return;
	result = hp_tenant_create(pools[p].handle, limit * FRAME, minimum * FRAME, &tenant->handle, &error);
	say("tenant_create %u: pool %u, limit %lu, minimum %lu -> %d\n", i, p, limit, minimum, result);
	must(result == (minimum <= pools[p].frames - pools[p].taken ? 0 : -ENOMEM), "tenant_create: %d", result);
	expect_limit(result);
	if (result)
		return;
	take_frames(&pools[p], minimum);
	*tenant = (struct model_tenant){.exists = true,
	                                .handle = tenant->handle,
	                                .pool = p,
	                                .limit = limit ? limit : UINT64_MAX,
	                                .minimum = minimum};
}

static void tenant_close(const struct op *op)
{
	unsigned i = pick_tenant(op->a);
	int result;

	if (i == TENANTS)
		return;
	result = hp_tenant_close(tenants[i].handle);
	say("tenant_close %u -> %d\n", i, result);
	must(result == (tenants[i].files ? -EBUSY : 0), "tenant_close: %d, %u files", result, tenants[i].files);
	if (result)
		return;
	pools[tenants[i].pool].taken -= tenants[i].minimum;
	tenants[i].exists = false;
}

/* ---- extents ---------------------------------------------------------------------------------------------------- */

/* Are there as many free frames in a row? */
static bool has_run(unsigned i, uint64_t want)
{
	struct hp_pool_view *view = hp_pool_find(pools[i].handle.id);
	struct hp_thread *t;
	uint64_t in_segment = (uint64_t)view->shared->regions / view->shared->segments * HP_REGION_FRAMES, run = 0;
	uint64_t frames = (uint64_t)view->shared->regions * HP_REGION_FRAMES;
	bool found = false;

	must(hp_pool_enter(pools[i].handle.id, &t, &error) == 0, "hp_pool_enter");
	hp_workers_pause(t, INT64_MAX);
	for (uint64_t f = 0; f < frames && !found; f++) {
		enum hp_frame_state state = hp_frame_state(hp_frame_load(&view->frames[f]));

		if (f % in_segment == 0)
			run = 0;
		run = state == HP_FRAME_FREE_ZEROED || state == HP_FRAME_FREE_DIRTY ? run + 1 : 0;
		found = run >= want;
	}
	hp_workers_resume(t);
	return found;
}

static void alloc(const struct op *op)
{
	unsigned i = pick_extent_free(), p = pick_pool(op->a);
	struct model_extent *extent = &extents[i];
	void *address = NULL;
	bool fit, run;
	int result;

	if (i == EXTENTS || p == POOLS)
		return;
	*extent = (struct model_extent){.pool = p, .frames = size_of(op->b, 16), .tag = ++next_tag};
	fit = extent->frames <= pools[p].frames - pools[p].taken;
	run = has_run(p, extent->frames);
	result = hp_alloc(pools[p].handle, extent->frames * FRAME - op->c % 2, &address, &error);
	say("alloc %u: pool %u, %u frames -> %d\n", i, p, extent->frames, result);
	must(result == (fit && run ? 0 : -ENOMEM), "alloc: %d; fits %d, in a row %d", result, fit, run);
	must(!result || error.limit == HP_LIMIT_POOL, "limit %s", hp_limit_name(error.limit));
	if (result)
		return;
	extent->exists = true;
	extent->address = address;
	take_frames(&pools[p], extent->frames);
	for (uint32_t page = 0; page < extent->frames; page++)
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			char *at = extent->address + page * FRAME + slot_offset[slot];
			uint64_t tag = 1;

			must(hp_sim_load(os, at, &tag) == 0 && tag == 0, "an extent begins with %lu", tag);
			must(hp_sim_store(os, at, extent->tag) == 0, "store to an extent");
		}
}

static void free_op(const struct op *op)
{
	unsigned i = pick_extent(op->a);
	struct model_extent *extent = &extents[i];
	hp_pool pool;

	if (i == EXTENTS)
		return;
	pool = pools[extent->pool].handle;
	for (uint32_t page = 0; page < extent->frames; page++)
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			uint64_t tag = 0;

			must(hp_sim_load(os, extent->address + page * FRAME + slot_offset[slot], &tag) == 0 &&
			             tag == extent->tag,
			     "extent %u has %lu, and should have %lu", i, tag, extent->tag);
		}
	must(extent->frames == 1 || hp_free(pool, extent->address + FRAME) == -EINVAL, "free of a part");
	must(hp_free(pool, extent->address) == 0, "free %u", i);
	must(hp_free(pool, extent->address) == -EINVAL, "free twice");
	say("free %u\n", i);
	extent->exists = false;
	pools[extent->pool].taken -= extent->frames;
}

/* ---- running a list --------------------------------------------------------------------------------------------- */

static void pool_check_op(const struct op *op)
{
	say("check\n");
	check_all();
}

static void (*const run_op[KINDS])(const struct op *op) = {
	[POOL_CREATE] = pool_create,
	[POOL_CLOSE] = pool_close,
	[POOL_WAIT] = pool_wait,
	[POOL_CHECK] = pool_check_op,
	[FILE_CREATE] = file_create,
	[FILE_CLOSE] = file_close_op,
	[FILE_ALLOCATE] = file_allocate,
	[FILE_TRUNCATE] = file_truncate,
	[FILE_PUNCH] = file_punch,
	[MAP] = map_op,
	[UNMAP] = unmap_op,
	[UNMAP_PART] = unmap_part,
	[PROTECT] = protect_op,
	[POPULATE] = populate_op,
	[STORE] = touch_op,
	[LOAD] = touch_op,
	[ALLOC] = alloc,
	[FREE] = free_op,
	[COLLAPSE] = move_op,
	[SPLIT] = move_op,
	[PIN] = pin_op,
	[UNPIN] = unpin_op,
	[TENANT_CREATE] = tenant_create,
	[TENANT_CLOSE] = tenant_close,
};

static void clean_up(void)
{
	check_all();
	for (unsigned i = 0; i < MAPPINGS; i++)
		if (mappings[i].exists)
			unmap_op(&(struct op){.a = i, .b = 1});
	for (unsigned i = 0; i < FILES; i++)
		if (files[i].exists)
			file_close_op(&(struct op){.a = i});
	check_all();
	for (unsigned i = 0; i < TENANTS; i++)
		if (tenants[i].exists)
			tenant_close(&(struct op){.a = i});
	check_all();
	for (unsigned i = 0; i < POOLS; i++)
		if (pools[i].exists)
			must(pools[i].places_taken == 0, "places stay taken");
	for (unsigned i = 0; i < POOLS; i++)
		if (pools[i].exists)
			pool_close(&(struct op){.a = i});
	must(hp_maps_taken(os) == 0, "%lu kernel mappings stay set aside", hp_maps_taken(os));
	must(hp_sim_destroy(os) == 0, "something was left");
}

static void choose_config(uint64_t seed)
{
	static const uint64_t hugetlb[] = {0, 24, 100, 3000}, cgroup[] = {0, 0, 20, 90}, memory[] = {0, 0, 40, 3000};
	static const uint64_t maps[] = {0, 0, 70, 1200};

	config = (struct hp_sim_config){.hugetlb_bytes = hugetlb[random_below(&seed, 4)] * FRAME,
	                                .cgroup_bytes = cgroup[random_below(&seed, 4)] * FRAME,
	                                .memory_bytes = memory[random_below(&seed, 4)] * FRAME,
	                                .max_map_count = maps[random_below(&seed, 4)],
	                                .no_thp = random_below(&seed, 4) == 0,
	                                .table_sharing = random_below(&seed, 2)};
	large_share = random_below(&seed, 3) ? 12 : 2;
	say("sim: %lu hugetlb, %lu cgroup, %lu memory (in frames), %lu kernel mappings%s%s\n",
	    config.hugetlb_bytes / FRAME, config.cgroup_bytes / FRAME, config.memory_bytes / FRAME,
	    config.max_map_count, config.no_thp ? ", no_thp" : "", config.table_sharing ? ", table_sharing" : "");
}

static void run_list(uint64_t seed, const struct op *ops, size_t count)
{
	choose_config(seed);
	os = hp_sim_create(&config);
	must(os, "no sim");
	for (size_t i = 0; i < count; i++) {
		error.message[0] = 0;
		run_op[ops[i].kind](&ops[i]);
		for (unsigned f = 0; f < FILES; f++)
			if (files[f].exists)
				follow_memory(&files[f]);
		must(hp_maps_taken(os) == maps_taken, "%lu kernel mappings set aside, and should be %lu",
		     hp_maps_taken(os), maps_taken);
	}
	clean_up();
}

enum noise { SILENT, FAILURES, EVERYTHING };

/* In a process of its own. True: all is well. */
static bool list_passes(uint64_t seed, const struct op *ops, size_t count, enum noise noise)
{
	int status;
	pid_t child = fork();

	assert_true(child >= 0);
	if (!child) {
		alarm(SECONDS_MAX);
		verbose = noise == EVERYTHING;
		if (noise == SILENT)
			assert_non_null(freopen("/dev/null", "w", stderr));
		run_list(seed, ops, count);
		exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	if (noise && WIFSIGNALED(status))
		fprintf(stderr, "ended by signal %d (%s)\n", WTERMSIG(status), strsignal(WTERMSIG(status)));
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static struct op *make_list(uint64_t seed, size_t count)
{
	struct op *ops = calloc(count, sizeof(ops[0]));
	unsigned sum = 0;

	assert_non_null(ops);
	for (unsigned kind = 0; kind < KINDS; kind++)
		sum += weight[kind];
	for (size_t i = 0; i < count; i++) {
		uint64_t at = random_below(&seed, sum);
		unsigned kind = 0;

		while (at >= weight[kind])
			at -= weight[kind++];
		ops[i] = (struct op){kind, (uint32_t)random_next(&seed), (uint32_t)random_next(&seed),
		                     (uint32_t)random_next(&seed), (uint32_t)random_next(&seed)};
	}
	return ops;
}

/* Leaves out what is not needed to fail: smaller and smaller pieces. Returns how many operations are left. */
static size_t shrink(uint64_t seed, struct op *ops, size_t count)
{
	struct op *shorter = calloc(count, sizeof(ops[0]));
	time_t end = time(NULL) + 20;

	assert_non_null(shorter);
	for (size_t piece = (count + 1) / 2; piece; piece /= 2)
		for (size_t at = 0; at < count && time(NULL) < end;) {
			size_t cut = piece < count - at ? piece : count - at;

			memcpy(shorter, ops, at * sizeof(ops[0]));
			memcpy(shorter + at, ops + at + cut, (count - at - cut) * sizeof(ops[0]));
			if (list_passes(seed, shorter, count - cut, SILENT)) {
				at += cut;
			} else {
				count -= cut;
				memcpy(ops, shorter, count * sizeof(ops[0]));
			}
		}
	free(shorter);
	return count;
}

static void run_seed(uint64_t seed)
{
	size_t count = env_number("HP_TEST_OPS", OPS);
	struct op *ops = make_list(seed, count);
	bool passes = list_passes(seed, ops, count, getenv("HP_TEST_VERBOSE") ? EVERYTHING : FAILURES);

	if (!passes) {
		size_t left = shrink(seed, ops, count);

		fprintf(stderr, "HP_TEST_SEED=%lu HP_TEST_OPS=%zu fails, and so does this part of it:\n", seed, count);
		list_passes(seed, ops, left, EVERYTHING);
	}
	free(ops);
	assert_true(passes);
}

static void test_random_operations(void **state)
{
	uint64_t seed = random_seed();
	unsigned seeds = getenv("HP_TEST_SEED") ? 1 : SEEDS;

	for (unsigned i = 0; i < seeds; i++)
		run_seed(seed + i);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_operations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
