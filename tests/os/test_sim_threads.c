/* SPDX-License-Identifier: MIT */
/*
 * The sim backend under threads that touch while others map, unmap, move and punch.
 */
#include "sim_forms.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

static int setup(void **state)
{
	return start(&(struct hp_sim_config){.hugetlb_bytes = TIB});
}

static int setup_budgets(void **state)
{
	return start(&(struct hp_sim_config){
		.hugetlb_bytes = 8 * FRAME, .cgroup_bytes = 6 * FRAME, .memory_bytes = 4 * FRAME});
}

/* ---- Touches while mappings change ----------------------------------------------------------------------------- */

enum { PLACES = 8, TOUCHERS = 4, ROUNDS = 3000 };

/* At place p the threads may find p + 1 or p + 100, zero, or nothing mapped. They store 1 at place 0. */
struct race {
	char *address;
	_Atomic bool stop;
	_Atomic int wrong; /* asserted when the threads have ended */
};

static void *touch_often(void *argument)
{
	struct race *race = argument;
	unsigned seed = 3;

	while (!atomic_load(&race->stop)) {
		unsigned place = (unsigned)rand_r(&seed) % PLACES;
		uint64_t tag = 0;
		int error = hp_sim_load(os, race->address + place * FRAME, &tag);

		if (error ? error != -EFAULT : tag && tag != place + 1 && tag != 100 + place)
			atomic_fetch_add(&race->wrong, 1);
		if (place == 0 && hp_sim_store(os, race->address, 1) == -EIO)
			atomic_fetch_add(&race->wrong, 1);
	}
	return NULL;
}

static void run_race(void (*change)(struct race *race))
{
	struct race race = {.address = reserve(PLACES * FRAME, FRAME, 0)};
	pthread_t threads[TOUCHERS];

	for (int i = 0; i < TOUCHERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, touch_often, &race), 0);
	change(&race);
	atomic_store(&race.stop, true);
	for (int i = 0; i < TOUCHERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(race.wrong, 0);
	unmap(race.address, PLACES * FRAME);
	assert_int_equal(os->ops->hugetlb_available(os), TIB / FRAME);
}

static void change_mappings(struct race *race)
{
	char *address = race->address;
	hp_segment one = make_segment(HP_BACKING_HUGETLB, PLACES * FRAME);
	hp_segment two = make_segment(HP_BACKING_THP, PLACES * FRAME);
	char *scratch = reserve(PLACES * FRAME, FRAME, 0);

	assert_int_equal(map(scratch, PLACES * FRAME, RW, one, 0), 0);
	for (uint64_t i = 0; i < PLACES; i++)
		store(scratch + i * FRAME, i + 1);
	assert_int_equal(map(scratch, PLACES * FRAME, RW, two, 0), 0);
	for (uint64_t i = 1; i < PLACES; i++)
		store(scratch + i * FRAME, 100 + i);

	unsigned seed = 4;
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t offset = (unsigned)rand_r(&seed) % PLACES * FRAME;

		switch (rand_r(&seed) % 4) {
		case 0:
			assert_int_equal(map(address, PLACES * FRAME, RW, rand_r(&seed) % 2 ? one : two, 0), 0);
			break;
		case 1:
			assert_int_equal(map(scratch + offset, FRAME, RW, one, offset), 0);
			assert_int_equal(os->ops->move(os, scratch + offset, address + offset, FRAME), 0);
			break;
		case 2:
			assert_int_equal(os->ops->segment_punch(os, two, offset, FRAME), 0);
			break;
		case 3:
			unmap(address + offset, FRAME);
			break;
		}
	}
	unmap(scratch, PLACES * FRAME);
	destroy_segment(one);
	destroy_segment(two);
}

static void test_touch_while_mapping(void **state)
{
	run_race(change_mappings);
}

/* A store that outlived the unmap would appear in the frame after it was zeroed through another mapping. */
static void unmap_and_zero(struct race *race)
{
	hp_segment segment = make_segment(HP_BACKING_HUGETLB, FRAME);
	char *other = reserve(FRAME, FRAME, 0);

	assert_int_equal(map(other, FRAME, RW, segment, 0), 0);
	for (int round = 0; round < ROUNDS; round++) {
		assert_int_equal(map(race->address, FRAME, RW, segment, 0), 0);
		unmap(race->address, FRAME);
		os->ops->zero(os, other, FRAME);
		for (int i = 0; i < 10; i++)
			if (load(other) != 0)
				atomic_fetch_add(&race->wrong, 1);
	}
	unmap(other, FRAME);
	destroy_segment(segment);
}

static void test_no_store_after_unmap(void **state)
{
	run_race(unmap_and_zero);
}

/* Other private mappings of the segment never see what these threads store at place 0, wherever it is moved to. */
static void change_private_mappings(struct race *race)
{
	hp_segment segment = make_segment(HP_BACKING_HUGETLB, PLACES * FRAME);
	char *shared = reserve(PLACES * FRAME, FRAME, 0);
	char *scratch = reserve(FRAME, FRAME, 0);
	const unsigned flags = HP_OS_MAP_REPLACE | HP_OS_MAP_PRIVATE;

	assert_int_equal(map(shared, PLACES * FRAME, RW, segment, 0), 0);
	for (uint64_t i = 1; i < PLACES; i++)
		store(shared + i * FRAME, i + 1);
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t offset = (uint64_t)round % PLACES * FRAME;

		if (round % 64 == 0)
			assert_int_equal(os->ops->map(os, race->address, PLACES * FRAME, RW, segment, 0, flags), 0);
		assert_int_equal(os->ops->map(os, scratch, FRAME, RW, segment, offset, flags), 0);
		if (offset)
			store(scratch, 100 + offset / FRAME);
		assert_int_equal(os->ops->move(os, scratch, race->address + offset, FRAME), 0);
		if (offset)
			assert_int_equal(load(race->address + offset), 100 + offset / FRAME);
		assert_int_equal(load(shared), 0);
	}
	unmap(shared, PLACES * FRAME);
	unmap(scratch, FRAME);
	destroy_segment(segment);
}

static void test_touch_while_mapping_private(void **state)
{
	run_race(change_private_mappings);
}

/* ---- Touches of absent frames ---------------------------------------------------------------------------------- */

/* Threads that touch the same absent frames at the same time, round after round. They spin, to start close together. */
struct rounds {
	char *address;
	uint64_t frames;
	_Atomic int round;        /* goes up when a round starts */
	_Atomic unsigned touched; /* threads that are through with it */
	_Atomic int wrong;        /* asserted when the threads have ended */
};

static void *touch_in_rounds(void *argument)
{
	struct rounds *rounds = argument;

	for (int round = 1; round <= ROUNDS; round++) {
		while (atomic_load(&rounds->round) != round)
			sched_yield();
		for (uint64_t i = 0; i < rounds->frames; i++)
			if (hp_sim_store(os, rounds->address + i * FRAME, 1))
				atomic_fetch_add(&rounds->wrong, 1);
		atomic_fetch_add(&rounds->touched, 1);
	}
	return NULL;
}

static void punch(hp_segment segment, uint64_t frames)
{
	assert_int_equal(os->ops->segment_punch(os, segment, 0, frames * FRAME), 0);
}

/* After a round, and if it was punched after one more punch: the right tags, and no frame charged twice or for nothing.
 */
static void check_round(struct rounds *rounds, hp_segment segment, uint64_t tag, uint64_t available)
{
	for (uint64_t i = 0; i < rounds->frames; i++) {
		uint64_t found;

		if (hp_sim_load(os, rounds->address + i * FRAME, &found) || found != tag)
			atomic_fetch_add(&rounds->wrong, 1);
	}
	if (os->ops->hugetlb_available(os) != available - rounds->frames)
		atomic_fetch_add(&rounds->wrong, 1);
	punch(segment, rounds->frames);
	if (os->ops->hugetlb_available(os) != available)
		atomic_fetch_add(&rounds->wrong, 1);
}

static void run_rounds(unsigned touchers, uint64_t frames, bool punching)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, frames * FRAME, &segment);
	struct rounds rounds = {.address = address, .frames = frames};
	uint64_t available = os->ops->hugetlb_available(os);
	pthread_t threads[TOUCHERS];

	for (unsigned i = 0; i < touchers; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, touch_in_rounds, &rounds), 0);
	for (int round = 1; round <= ROUNDS; round++) {
		atomic_store(&rounds.touched, 0);
		atomic_store(&rounds.round, round);
		while (atomic_load(&rounds.touched) < touchers) {
			for (int i = 0; punching && i < 16; i++)
				punch(segment, frames);
			sched_yield();
		}
		if (punching)
			punch(segment, frames);
		check_round(&rounds, segment, punching ? 0 : 1, available);
	}
	for (unsigned i = 0; i < touchers; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(rounds.wrong, 0);
	unmap(address, frames * FRAME);
	destroy_segment(segment);
}

/* Threads that want the same frames use up the budget only once, and all get the last frame of it. */
static void test_threads_share_the_last_frame(void **state)
{
	run_rounds(TOUCHERS, 6, false);
}

/* A store that meets a punch is before it or after it: never a tag in a frame that passes for absent. */
static void test_store_meets_punch(void **state)
{
	run_rounds(1, 1, true);
}

/* ---- Base pages ------------------------------------------------------------------------------------------------ */

/* Each thread has every fourth page of a frame, between those of the others. */
struct owner {
	char *address;
	unsigned number;
	hp_segment segment;
	int wrong;
};

static void *store_and_punch(void *argument)
{
	struct owner *owner = argument;
	unsigned seed = owner->number;

	for (uint64_t round = 1; round <= ROUNDS; round++) {
		uint64_t page = (uint64_t)rand_r(&seed) % (PAGES_PER_FRAME / TOUCHERS) * TOUCHERS + owner->number;
		char *at = owner->address + page * PAGE;
		unsigned char present = 0;
		uint64_t tag = 0;

		owner->wrong += hp_sim_store(os, at, round) || hp_sim_load(os, at, &tag) || tag != round;
		owner->wrong += os->ops->backed(os, owner->segment, page * PAGE, PAGE, &present) || !present;
		if (round % 2)
			os->ops->zero(os, at, PAGE);
		else
			owner->wrong += os->ops->segment_punch(os, owner->segment, page * PAGE, PAGE) != 0;
		owner->wrong +=
			os->ops->backed(os, owner->segment, page * PAGE, PAGE, &present) || present != round % 2;
		owner->wrong += hp_sim_load(os, at, &tag) || tag;
	}
	return NULL;
}

/* What is done to a base page is not seen at its neighbours, and the budget counts right: all of it is there after. */
static void test_neighbours(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_BASE, 4 * FRAME, &segment);
	struct owner owners[TOUCHERS];
	pthread_t threads[TOUCHERS];

	for (unsigned i = 0; i < TOUCHERS; i++) {
		owners[i] = (struct owner){.address = address, .number = i, .segment = segment};
		assert_int_equal(pthread_create(&threads[i], NULL, store_and_punch, &owners[i]), 0);
	}
	for (int i = 0; i < TOUCHERS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(owners[i].wrong, 0);
	}
	assert_int_equal(os->ops->populate(os, address, 4 * FRAME), 0);
	assert_int_equal(os->ops->segment_punch(os, segment, 0, 4 * FRAME), 0);
	assert_int_equal(count_backed(segment, 0, 4 * PAGES_PER_FRAME), 0);
	assert_int_equal(os->ops->populate(os, address, 4 * FRAME), 0);
	unmap(address, 4 * FRAME);
	destroy_segment(segment);
}

/* ---- Gather and scatter at the same time ------------------------------------------------------------------------ */

enum { GATHERS = 300, HOLE = 64 /* base pages */ };
#define PUNCHING UINT64_MAX

struct gatherer {
	char *address; /* where the segment is mapped, or NULL */
	char *to;
	hp_segment segment;
	_Atomic unsigned *filled; /* pages of the hole, from the first on, of this round */
	_Atomic uint64_t *round;  /* the tag that they get, or PUNCHING; 0: the end */
	_Atomic int wrong;
	unsigned gathered; /* that could be checked */
};

/* What was there before is found; what comes meanwhile is found or not, and nothing else is. */
static void *gather_often(void *argument)
{
	struct gatherer *g = argument;
	uint64_t round;

	while ((round = atomic_load(g->round))) {
		unsigned full = atomic_load(g->filled);
		bool same;

		if (round != PUNCHING && os->ops->gather(os, g->to, g->address, g->segment, 0, HOLE * PAGE))
			atomic_fetch_add(&g->wrong, 1);
		same = round != PUNCHING && atomic_load(g->round) == round;
		g->gathered += same;
		for (unsigned i = 0; same && i < HOLE; i++) {
			uint64_t tag = 0;

			if (hp_sim_load(os, g->to + i * PAGE, &tag) || (tag ? tag != round : i < full))
				atomic_fetch_add(&g->wrong, 1);
		}
	}
	return NULL;
}

static void test_gather_a_hole_that_is_filled(void **state)
{
	hp_segment segment, targets, source;
	char *address = make_mapping(HP_BACKING_BASE, FRAME, &segment);
	char *to = make_mapping(HP_BACKING_HUGETLB, 2 * FRAME, &targets);
	char *from = make_mapping(HP_BACKING_HUGETLB, FRAME, &source);
	_Atomic unsigned filled = 0;
	_Atomic uint64_t round = 1;
	struct gatherer gatherers[2] = {
		{.address = address, .to = to, .segment = segment, .filled = &filled, .round = &round},
		{.address = NULL, .to = to + FRAME, .segment = segment, .filled = &filled, .round = &round},
	};
	pthread_t threads[2];

	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, gather_often, &gatherers[i]), 0);
	for (uint64_t tag = 1; tag <= GATHERS; tag++) {
		store(from, tag);
		for (unsigned i = 0; i < HOLE; i++) {
			if (tag % 2)
				store(address + i * PAGE, tag);
			else
				assert_int_equal(scatter(segment, i * PAGE, from, PAGE), 0);
			atomic_store(&filled, i + 1);
		}
		sched_yield();
		atomic_store(&filled, 0);
		atomic_store(&round, PUNCHING);
		assert_int_equal(os->ops->segment_punch(os, segment, 0, HOLE * PAGE), 0);
		atomic_store(&round, tag < GATHERS ? tag + 1 : 0);
	}
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(gatherers[i].wrong, 0);
		assert_true(gatherers[i].gathered > 0);
	}
	unmap(address, FRAME);
	unmap(to, 2 * FRAME);
	unmap(from, FRAME);
	destroy_segment(segment);
	destroy_segment(targets);
	destroy_segment(source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_touch_while_mapping, setup, teardown),
		cmocka_unit_test_setup_teardown(test_touch_while_mapping_private, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_store_after_unmap, setup, teardown),
		cmocka_unit_test_setup_teardown(test_threads_share_the_last_frame, setup_budgets, teardown),
		cmocka_unit_test_setup_teardown(test_store_meets_punch, setup_budgets, teardown),
		cmocka_unit_test_setup_teardown(test_neighbours, setup_budgets, teardown),
		cmocka_unit_test_setup_teardown(test_gather_a_hole_that_is_filled, setup_budgets, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
