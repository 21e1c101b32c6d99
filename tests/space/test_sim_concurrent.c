/* SPDX-License-Identifier: MIT */
/*
 * Threads that map, unmap, fault, populate, allocate and free at the same time, on pools so small that frames go round
 * quickly. A tag says who owns a page. What was promised never runs out, and nobody sees what another left behind.
 */
#include "support/pool.h"
#include "support/random.h"
#include "support/threads.h"

static uint64_t seed;

static uint64_t scaled(uint64_t rounds)
{
	return rounds * env_number("HP_TEST_SCALE", 100) / 100;
}

/* ---- everything at once ----------------------------------------------------------------------------------------- */

/* With files that fall back and are moved there are this few frames: hp_alloc may be refused then. */
enum { FEW_FRAMES = 9, MOVING = HP_FILE_FALLBACK | HP_FILE_MOVABLE };
enum { OWNERS = 6, SHARED_PAGES = 18, OWN_PAGES = 4, FRAMES = SHARED_PAGES + OWNERS * (OWN_PAGES + 1) };

struct owner {
	unsigned id; /* from 1 */
	uint64_t random;
	hp_pool pool;
	hp_file shared; /* every owner has each OWNERS-th page of it */
	unsigned flags; /* of all files */
	uint64_t written[SHARED_PAGES];
	void *extent;
};

static uint64_t tag_of(const struct owner *o, uint64_t number)
{
	return (uint64_t)o->id << 32 | number;
}

static void use_shared_page(struct owner *o, char *address, unsigned page, uint64_t number)
{
	unsigned owner = page % OWNERS + 1;
	uint64_t tag = 0;

	thread_must(touch_load(address, &tag) == 0);
	if (owner != o->id) {
		thread_must(tag == 0 || tag >> 32 == owner);
		return;
	}
	thread_must(tag == o->written[page]);
	o->written[page] = tag_of(o, number);
	thread_must(touch_store(address, o->written[page]) == 0);
}

/* Collapses and splits beside each other; some give up, or find no frame, or another thread at the mappings. */
static void move_some(struct owner *o, char *address, unsigned pages)
{
	unsigned first = (unsigned)random_below(&o->random, pages);
	uint64_t length = (1 + random_below(&o->random, pages - first)) * FRAME;
	int result = random_below(&o->random, 2) ? hp_collapse(address + first * FRAME, length, NULL)
	                                         : hp_split(address + first * FRAME, length, NULL);

	thread_must(!result || result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
}

/* A part of the shared file, mapped for a moment. */
static void use_shared(struct owner *o, uint64_t number)
{
	unsigned first = (unsigned)random_below(&o->random, SHARED_PAGES);
	unsigned pages = 1 + (unsigned)random_below(&o->random, SHARED_PAGES - first);
	unsigned flags = random_below(&o->random, 3) ? HP_MAP_LAZY : 0;
	void *mapped = NULL;
	char *address;

	thread_must(hp_map(o->shared, first * FRAME, pages * FRAME, RW, flags, &mapped, NULL) == 0);
	address = mapped;
	if (!address)
		return;
	if (random_below(&o->random, 4) == 0)
		thread_must(hp_populate(address, pages * FRAME) == 0);
	for (unsigned i = 0; i < 8; i++) {
		unsigned page = (unsigned)random_below(&o->random, pages);

		use_shared_page(o, address + page * FRAME, first + page, number * 8 + i + 1);
		if (o->flags && i == 4)
			move_some(o, address, pages);
	}
	thread_must(hp_unmap(address, pages * FRAME) == 0);
}

/* A file that nobody else knows: zeroes first, then what was stored. */
static void use_own(struct owner *o, uint64_t number)
{
	unsigned pages = 1 + (unsigned)random_below(&o->random, OWN_PAGES);
	unsigned flags = random_below(&o->random, 3) ? HP_MAP_LAZY : 0;
	hp_file file;
	void *mapped = NULL;
	char *address;

	thread_must(hp_file_create(o->pool, pages * FRAME, o->flags, &file, NULL) == 0);
	if (random_below(&o->random, 3) == 0)
		thread_must(hp_file_allocate(file, 0, pages * FRAME, NULL) == 0);
	thread_must(hp_map(file, 0, pages * FRAME, RW, flags, &mapped, NULL) == 0);
	thread_must(hp_file_close(file) == 0);
	address = mapped;
	if (!address)
		return;
	for (unsigned i = 0; i < 2 * pages; i++) {
		uint64_t tag = 1, expected = i < pages ? 0 : tag_of(o, number);
		char *at = address + (i < pages ? i : 2 * pages - 1 - i) * FRAME;

		thread_must(touch_load(at, &tag) == 0);
		thread_must(tag == expected);
		thread_must(touch_store(at, tag_of(o, number)) == 0);
		if (o->flags && i % 2)
			move_some(o, address, pages);
	}
	thread_must(hp_unmap(address, pages * FRAME) == 0);
}

static void use_extent(struct owner *o, uint64_t number)
{
	uint64_t tag = 1;

	if (o->extent) {
		thread_must(hp_sim_load(os, o->extent, &tag) == 0);
		thread_must(tag == tag_of(o, 7));
		thread_must(hp_free(o->pool, o->extent) == 0);
		o->extent = NULL;
		return;
	}
	thread_must(hp_alloc(o->pool, FRAME, &o->extent, NULL) == 0 || o->flags);
	if (!o->extent)
		return;
	thread_must(hp_sim_load(os, o->extent, &tag) == 0);
	thread_must(tag == 0);
	thread_must(hp_sim_store(os, o->extent, tag_of(o, 7)) == 0);
}

static void *use_all(void *context)
{
	struct owner *o = context;

	for (uint64_t i = 0; i < scaled(o->flags ? 300 : 1500); i++)
		switch (random_below(&o->random, 3)) {
		case 0:
			use_shared(o, i);
			break;
		case 1:
			use_own(o, i);
			break;
		default:
			use_extent(o, i);
		}
	return NULL;
}

static void run_owners(uint32_t workers, unsigned flags, const char *tuning)
{
	hp_pool pool = pool_make(flags ? FEW_FRAMES : FRAMES, workers, tuning);
	struct owner owners[OWNERS];
	hp_file shared;

	expect_ok(hp_file_create(pool, SHARED_PAGES * FRAME, flags, &shared, &error));
	for (unsigned i = 0; i < OWNERS; i++)
		owners[i] =
			(struct owner){.id = i + 1, .random = seed + i, .pool = pool, .shared = shared, .flags = flags};
	threads_run(OWNERS, use_all, owners, sizeof(owners[0]));
	for (unsigned i = 0; i < OWNERS; i++)
		if (owners[i].extent)
			assert_int_equal(hp_free(pool, owners[i].extent), 0);
	file_close(shared);
	expect_ok(hp_pool_wait(pool, 20000, &error));
	assert_int_equal(pool_stats(pool).used, 0);
	assert_int_equal(pool_stats(pool).reserved, 0);
	pool_end(pool);
}

static void test_everything(void **state)
{
	run_owners(HP_WORKERS_NONE, 0, NULL);
}

static void test_everything_with_workers(void **state)
{
	run_owners(2, 0, NULL);
}

static void test_everything_with_one_mutex(void **state)
{
	run_owners(1, 0, "fault_mutexes=1 fault_window=2");
}

static void test_everything_moves(void **state)
{
	run_owners(HP_WORKERS_NONE, MOVING, "collapse_verify=1");
}

static void test_everything_moves_with_workers(void **state)
{
	run_owners(1, MOVING, "collapse=relock fault_window=4 file_lock=vma");
}

/* ---- the last frame --------------------------------------------------------------------------------------------- */

enum racer_kind { BY_FAULT, BY_POPULATE, BY_ALLOCATE, RACERS_KINDS };

struct race {
	hp_pool pool;
	pthread_barrier_t barrier;
	hp_file file;
	void *address;
	uint32_t pages;
};

struct racer {
	struct race *race;
	unsigned number;
	uint64_t random;
};

static void race_for_page(struct racer *racer, enum racer_kind kind)
{
	struct race *race = racer->race;
	uint64_t tag = 1;

	if (kind == BY_FAULT)
		for (uint32_t page = 0; page < race->pages; page++)
			thread_must(touch_load((char *)race->address + page * FRAME, &tag) == 0 && tag == 0);
	else if (kind == BY_POPULATE)
		thread_must(hp_populate(race->address, race->pages * FRAME) == 0);
	else
		thread_must(hp_file_allocate(race->file, 0, race->pages * FRAME, NULL) == 0);
}

/* Racer 0 makes a file that takes all there is, both fill it, racer 0 unmakes it. */
static void *race_rounds(void *context)
{
	struct racer *racer = context;
	struct race *race = racer->race;

	for (uint64_t round = 0; round < scaled(1000); round++) {
		if (racer->number == 0) {
			thread_must(hp_file_create(race->pool, race->pages * FRAME, 0, &race->file, NULL) == 0);
			thread_must(hp_map(race->file, 0, race->pages * FRAME, RW, HP_MAP_LAZY, &race->address, NULL) ==
			            0);
		}
		pthread_barrier_wait(&race->barrier);
		race_for_page(racer, random_below(&racer->random, RACERS_KINDS));
		pthread_barrier_wait(&race->barrier);
		if (racer->number == 0) {
			for (uint32_t page = 0; page < race->pages; page++)
				thread_must(touch_store((char *)race->address + page * FRAME, round + 1) == 0);
			thread_must(hp_unmap(race->address, race->pages * FRAME) == 0);
			thread_must(hp_file_close(race->file) == 0);
		}
	}
	return NULL;
}

static void run_race(uint32_t pages, uint32_t workers, unsigned racers, const char *tuning)
{
	struct race race = {.pool = pool_make(pages, workers, tuning), .pages = pages};
	struct racer racer[8];

	pthread_barrier_init(&race.barrier, NULL, racers);
	for (unsigned i = 0; i < racers; i++)
		racer[i] = (struct racer){&race, i, seed + i};
	threads_run(racers, race_rounds, racer, sizeof(racer[0]));
	pthread_barrier_destroy(&race.barrier);
	pool_end(race.pool);
}

static void test_last_frame(void **state)
{
	run_race(1, HP_WORKERS_NONE, 2, NULL);
}

static void test_last_frame_with_workers(void **state)
{
	run_race(1, 2, 2, NULL);
}

static void test_last_frames(void **state)
{
	run_race(5, 1, 4, "fault_window=4");
}

/* As many frames as threads: each can always have one, whatever the workers have in hand. */
static void *alloc_and_free(void *context)
{
	hp_pool *pool = context;

	for (uint64_t i = 0; i < scaled(2000); i++) {
		uint64_t tag = 1;
		void *extent = NULL;

		thread_must(hp_alloc(*pool, FRAME, &extent, NULL) == 0);
		if (!extent)
			return NULL;
		thread_must(hp_sim_load(os, extent, &tag) == 0 && tag == 0);
		thread_must(hp_sim_store(os, extent, i + 1) == 0);
		thread_must(hp_free(*pool, extent) == 0);
	}
	return NULL;
}

static void test_as_many_frames_as_threads(void **state)
{
	hp_pool pools[4];

	pools[0] = pool_make(4, 2, NULL);
	for (unsigned i = 1; i < 4; i++)
		pools[i] = pools[0];
	threads_run(4, alloc_and_free, pools, sizeof(pools[0]));
	pool_end(pools[0]);
}

/* ---- handles and threads that come and go ----------------------------------------------------------------------- */

static _Atomic uint64_t last_closed;
static _Atomic bool stop;

static void *use_closed_files(void *context)
{
	while (!atomic_load(&stop)) {
		hp_file_stat stat = {.struct_size = sizeof(stat)};
		hp_file file = {atomic_load(&last_closed)};

		thread_must(hp_file_stat_get(file, &stat) == -EBADF);
		thread_must(hp_file_close(file) == -EBADF);
	}
	return NULL;
}

static void test_closed_files_meanwhile(void **state)
{
	hp_pool pool = pool_make(4, HP_WORKERS_NONE, NULL);
	pthread_t thread;

	atomic_store(&stop, false);
	atomic_store(&last_closed, 0);
	assert_int_equal(pthread_create(&thread, NULL, use_closed_files, NULL), 0);
	for (uint64_t i = 0; i < scaled(3000); i++) {
		hp_file file = file_make(pool, 2);

		file_close(file);
		atomic_store(&last_closed, file.id);
	}
	atomic_store(&stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	pool_end(pool);
}

static void *touch_once(void *context)
{
	char *address = *(void **)context;
	uint64_t tag = 0;

	thread_must(touch_load(address, &tag) == 0);
	thread_must(tag == 0);
	return NULL;
}

static void *open_and_close_pools(void *context)
{
	while (!atomic_load(&stop)) {
		hp_pool_options options = {
			.struct_size = sizeof(options), .size = FRAME, .backing = HP_BACKING_HUGETLB, .workers = 1};
		hp_pool pool;

		thread_must(hp_pool_create_on(os, &options, &pool, NULL) == 0);
		thread_must(hp_pool_close(pool) == 0);
	}
	return NULL;
}

/* Threads end, also such as never made an ordinary call, while pools come and go. More of them than the pool has slots.
 */
static void test_short_threads(void **state)
{
#if defined(__SANITIZE_THREAD__)
	skip(); /* that a slot's thread has ended before the next one has it, only the kernel knows */
#endif
	hp_pool pool = pool_make(4, HP_WORKERS_NONE, NULL);
	hp_file file = file_make(pool, 4);
	pthread_t thread;

	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, open_and_close_pools, NULL), 0);
	for (uint64_t i = 0; i < scaled(800); i++) {
		char *address = map(file, 0, 4, HP_MAP_LAZY);
		char *each[3] = {address, address, address + 3 * FRAME};

		threads_run(3, touch_once, each, sizeof(each[0]));
		unmap(address, 4);
	}
	atomic_store(&stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	file_close(file);
	pool_end(pool);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, sim_setup, sim_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_everything),
		TEST(test_everything_with_workers),
		TEST(test_everything_with_one_mutex),
		TEST(test_everything_moves),
		TEST(test_everything_moves_with_workers),
		TEST(test_last_frame),
		TEST(test_last_frame_with_workers),
		TEST(test_last_frames),
		TEST(test_as_many_frames_as_threads),
		TEST(test_closed_files_meanwhile),
		TEST(test_short_threads),
	};

	seed = random_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
