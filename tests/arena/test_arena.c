/* SPDX-License-Identifier: MIT */
/* The arena and what is handed out from it: sections, records, runs of pages, intents. */
#include "support/pool.h"
#include "support/domain.h"
#include "support/random.h"
#include "support/threads.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct hp_section_spec specs[] = {{"first", 24, 10}, {"second", 4096, 3}, {"third", 1, 1}, {NULL, 0, 0}};

/* ---- sections --------------------------------------------------------------------------------------------------- */

static void test_sections(void **state)
{
	struct hp_arena arena;

	expect_ok(hp_arena_create(os, specs, &arena, &error));
	for (unsigned i = 0; i < 3; i++) {
		char *section = hp_arena_section(&arena, i);
		uint64_t size = specs[i].record_size * specs[i].count;

		assert_int_equal((uintptr_t)section % 64, 0);
		for (uint64_t at = 0; at < size; at++)
			assert_int_equal(section[at], 0);
		memset(section, 0xff, size);
	}
	/* What one section holds is not in another's, nor in the header. */
	assert_int_equal(hp_arena_verify(&arena, specs), 0);
	hp_arena_destroy(&arena, 0, 0);
	assert_null(arena.header);
}

/* Whoever lays it out in another way is refused. */
static void test_signature(void **state)
{
	struct hp_section_spec other[4];
	struct hp_arena arena;

	expect_ok(hp_arena_create(os, specs, &arena, &error));
	memcpy(other, specs, sizeof(specs));
	assert_int_equal(hp_arena_verify(&arena, other), 0);
	other[1].name = "another";
	assert_int_equal(hp_arena_verify(&arena, other), -EPROTO);
	memcpy(other, specs, sizeof(specs));
	other[0].record_size++;
	assert_int_equal(hp_arena_verify(&arena, other), -EPROTO);
	memcpy(other, specs, sizeof(specs));
	other[2].count++;
	assert_int_equal(hp_arena_verify(&arena, other), -EPROTO);
	memcpy(other, specs, sizeof(specs));
	other[2].record_size = 0;
	assert_int_equal(hp_arena_verify(&arena, other), -EPROTO);
	arena.size += HP_BASE_PAGE_SIZE; /* a truncated one */
	assert_int_equal(hp_arena_verify(&arena, specs), -EPROTO);
	arena.size -= HP_BASE_PAGE_SIZE;
	*(char *)arena.header ^= 1;
	assert_int_equal(hp_arena_verify(&arena, specs), -EPROTO);
	hp_arena_destroy(&arena, 0, 0);
}

/* ---- records ---------------------------------------------------------------------------------------------------- */

enum { RECORDS = 33, THREADS = 4, RECORD_ROUNDS = 2000 };

/* Who takes the locks of what is tested: nobody dies here. */
static struct hp_lock_shared lock_shared;
static const struct hp_lock_domain lock_domain = {.shared = &lock_shared};
static struct hp_lock_record lock_records[THREADS];
static struct hp_locker lockers[THREADS];

static struct record {
	uint32_t next_free, owner, filler[6];
} records[RECORDS];
static struct hp_table table;

static void test_table(void **state)
{
	bool seen[RECORDS] = {false};
	uint32_t number;

	table = (struct hp_table){0};
	hp_table_init(&table, RECORDS);
	for (unsigned i = 1; i < RECORDS; i++) {
		number = hp_table_take(&table, records, sizeof(records[0]), &lockers[0]);
		assert_in_range(number, 1, RECORDS - 1);
		assert_false(seen[number]);
		seen[number] = true;
		memset(&records[number], 0xff, sizeof(records[0]));
	}
	assert_int_equal(atomic_load(&table.live), RECORDS - 1);
	assert_int_equal(hp_table_take(&table, records, sizeof(records[0]), &lockers[0]), 0);
	hp_table_give(&table, records, sizeof(records[0]), 7, &lockers[0]);
	hp_table_give(&table, records, sizeof(records[0]), 3, &lockers[0]);
	for (unsigned i = 0; i < 2; i++) {
		number = hp_table_take(&table, records, sizeof(records[0]), &lockers[0]);
		assert_true(number == 3 || number == 7);
		for (unsigned k = 0; k < 6; k++)
			assert_int_equal(records[number].filler[k], 0);
	}
	assert_int_equal(hp_table_take(&table, records, sizeof(records[0]), &lockers[0]), 0);
}

static void *take_records(void *argument)
{
	struct hp_locker *who = argument;
	hp_owner owner = who->owner;

	for (unsigned round = 0; round < RECORD_ROUNDS; round++) {
		uint32_t held[RECORDS / THREADS];

		for (unsigned i = 0; i < RECORDS / THREADS; i++) {
			held[i] = hp_table_take(&table, records, sizeof(records[0]), who);
			thread_must(held[i] > 0 && records[held[i]].owner == 0);
			records[held[i]].owner = owner;
		}
		for (unsigned i = 0; i < RECORDS / THREADS; i++) {
			thread_must(records[held[i]].owner == owner);
			hp_table_give(&table, records, sizeof(records[0]), held[i], who);
		}
	}
	return NULL;
}

static void test_table_threads(void **state)
{
	table = (struct hp_table){0};
	hp_table_init(&table, RECORDS);
	threads_run(THREADS, take_records, lockers, sizeof(lockers[0]));
	assert_int_equal(atomic_load(&table.live), 0);
}

/* ---- runs of pages ---------------------------------------------------------------------------------------------- */

enum { PAGES = 300, RUNS = 30, RUN_ROUNDS = 5000 };

static struct hp_pages pages;
static uint64_t bitmap[PAGES / 64 + 1];
static char memory[PAGES * HP_BASE_PAGE_SIZE];

static void test_pages(void **state)
{
	struct hp_page_store store = {.pages = &pages, .bitmap = bitmap, .memory = memory};
	struct {
		uint32_t page;
		uint64_t bytes;
	} run[RUNS] = {{0, 0}};
	uint64_t random = random_seed(), used = 0;

	hp_pages_init(&store, PAGES);
	assert_int_equal(hp_pages_take(&store, PAGES * HP_BASE_PAGE_SIZE, &lockers[0]), 0); /* page 0 is nobody's */
	for (unsigned round = 0; round < RUN_ROUNDS; round++) {
		unsigned i = (unsigned)random_below(&random, RUNS);
		uint64_t n = (run[i].bytes + HP_BASE_PAGE_SIZE - 1) / HP_BASE_PAGE_SIZE;
		char *at = hp_pages_at(&store, run[i].page);

		if (run[i].page) {
			for (uint64_t b = 0; b < run[i].bytes; b += 997)
				assert_int_equal(at[b], (char)i);
			hp_pages_give(&store, run[i].page, run[i].bytes, run[i].bytes, &lockers[0]);
			run[i].page = 0;
			used -= n;
		} else {
			run[i].bytes = 1 + random_below(&random, 20 * HP_BASE_PAGE_SIZE);
			n = (run[i].bytes + HP_BASE_PAGE_SIZE - 1) / HP_BASE_PAGE_SIZE;
			run[i].page = hp_pages_take(&store, run[i].bytes, &lockers[0]);
			at = hp_pages_at(&store, run[i].page);
			for (uint64_t b = 0; run[i].page && b < run[i].bytes; b++)
				assert_int_equal(at[b], 0);
			if (run[i].page) {
				memset(at, (int)i, run[i].bytes);
				used += n;
			}
		}
		assert_int_equal(pages.used, used);
	}
	for (unsigned i = 0; i < RUNS; i++)
		hp_pages_give(&store, run[i].page, run[i].bytes, run[i].bytes, &lockers[0]);
	assert_int_not_equal(hp_pages_take(&store, (PAGES - 1) * HP_BASE_PAGE_SIZE, &lockers[0]), 0);
	assert_int_equal(hp_pages_take(&store, 1, &lockers[0]), 0);
}

/* ---- pages in the limbo ----------------------------------------------------------------------------------------- */

enum { LIMBO_PAGES = 2 * HP_PAGES_LIMBO + 10 };

/* Shared, so that a child can die in it. */
struct limbo_store {
	struct hp_pages pages;
	uint64_t bitmap[LIMBO_PAGES / 64 + 1];
	_Atomic uint64_t link[LIMBO_PAGES];
};

static struct limbo_store *limbo;
static struct hp_page_store limbo_view;

static int limbo_setup(void **state)
{
	domain_make();
	limbo = mmap(NULL, sizeof(*limbo), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	limbo_view = (struct hp_page_store){.pages = &limbo->pages, .bitmap = limbo->bitmap};
	limbo_view.memory =
		mmap(NULL, LIMBO_PAGES * HP_BASE_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (limbo == MAP_FAILED || limbo_view.memory == MAP_FAILED)
		return -1;
	hp_pages_init(&limbo_view, LIMBO_PAGES);
	return 0;
}

static int limbo_teardown(void **state)
{
	munmap(limbo_view.memory, LIMBO_PAGES * HP_BASE_PAGE_SIZE);
	munmap(limbo, sizeof(*limbo));
	domain_end();
	return 0;
}

static uint32_t limbo_take(void)
{
	return hp_pages_take(&limbo_view, 1, &me);
}

/* Nobody gets so many; but then the limbo has been looked through. */
static void limbo_drain(void)
{
	assert_int_equal(hp_pages_take(&limbo_view, LIMBO_PAGES * HP_BASE_PAGE_SIZE, &me), 0);
}

/* A page with something in it, and a link to it. */
static uint32_t take_and_link(void)
{
	uint32_t page = limbo_take();

	assert_int_not_equal(page, 0);
	memset(hp_pages_at(&limbo_view, page), 0xff, HP_BASE_PAGE_SIZE);
	atomic_store(&limbo->link[page], page);
	return page;
}

static bool unlink_it(uint32_t page)
{
	return hp_pages_unlink(&limbo_view, &limbo->link[page], page, &me);
}

static bool is_zeroed(uint32_t page)
{
	const char *at = hp_pages_at(&limbo_view, page);

	for (uint64_t i = 0; i < HP_BASE_PAGE_SIZE; i++)
		if (at[i])
			return false;
	return true;
}

/* All that are free, each once and zeroed. */
static unsigned take_all(void)
{
	bool seen[LIMBO_PAGES] = {false};
	uint32_t page;
	unsigned n = 0;

	for (; (page = limbo_take()); n++) {
		assert_false(seen[page]);
		seen[page] = true;
		assert_true(is_zeroed(page));
	}
	assert_int_equal(limbo->pages.used, LIMBO_PAGES - 1);
	return n;
}

/* What a reader may still have is not handed out. */
static void test_an_unlinked_page_waits_for_readers(void **state)
{
	uint32_t page = take_and_link(), other;
	uint64_t outer = hp_section_enter(&me);

	assert_true(unlink_it(page));
	assert_int_equal(atomic_load(&limbo->link[page]), 0);
	assert_int_equal(limbo->pages.waiting, 1);
	limbo_drain();
	assert_int_equal(limbo->pages.waiting, 1);
	assert_int_equal(limbo->pages.used, 1);
	assert_false(is_zeroed(page));
	other = take_and_link();
	assert_int_not_equal(other, page);
	hp_section_leave(&me, outer);
	limbo_drain();
	assert_int_equal(limbo->pages.waiting, 0);
	assert_int_equal(limbo->pages.used, 1);
	assert_true(is_zeroed(page));
	assert_true(unlink_it(other));
	assert_int_equal(take_all(), LIMBO_PAGES - 1); /* who finds none looks there */
}

/* Some wait for a reader, and those that were there before it do not. */
static void test_a_full_limbo_changes_nothing(void **state)
{
	uint32_t held[HP_PAGES_LIMBO + 1], late;
	uint64_t outer;

	for (unsigned i = 0; i <= HP_PAGES_LIMBO; i++)
		held[i] = take_and_link();
	for (unsigned i = 0; i < 10; i++)
		assert_true(unlink_it(held[i]));
	(void)hp_section_oldest(&domain);
	outer = hp_section_enter(&me);
	for (unsigned i = 10; i < HP_PAGES_LIMBO; i++)
		assert_true(unlink_it(held[i]));
	assert_int_equal(limbo->pages.waiting, HP_PAGES_LIMBO);
	assert_true(unlink_it(held[HP_PAGES_LIMBO])); /* now it is full, so the first ones are freed */
	assert_int_equal(limbo->pages.waiting, HP_PAGES_LIMBO - 9);
	for (unsigned i = 0; i < 9; i++)
		assert_true(unlink_it(take_and_link()));
	late = take_and_link();
	for (unsigned i = 0; i < 3; i++) {
		assert_false(unlink_it(late));
		assert_int_equal(atomic_load(&limbo->link[late]), late);
		assert_false(is_zeroed(late));
		assert_int_equal(limbo->pages.waiting, HP_PAGES_LIMBO);
		assert_int_equal(limbo->pages.used, HP_PAGES_LIMBO + 1);
	}
	hp_section_leave(&me, outer);
	assert_true(unlink_it(late));
	assert_int_equal(limbo->pages.waiting, 1);
	limbo_drain();
	assert_int_equal(limbo->pages.used, 0);
	assert_int_equal(take_all(), LIMBO_PAGES - 1);
}

static void repair_pages(const struct hp_locker *who, void *lock, hp_owner dead)
{
	hp_pages_repair(&limbo_view);
}

/* Dies when it comes to zero this page: it cannot be written here. */
static void die_while_draining(uint32_t page)
{
	pid_t child = fork();

	if (!child) {
		signal(SIGSEGV, SIG_DFL);
		domain_join();
		if (mprotect(hp_pages_at(&limbo_view, page), HP_BASE_PAGE_SIZE, PROT_READ) == 0)
			limbo_drain();
		_exit(9);
	}
	assert_true(child > 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

/* A page or two are lost then; but none is free and waits at once, so that two would get it. */
static void test_a_death_while_pages_are_freed(void **state)
{
	uint32_t held[30];
	uint64_t outer;
	unsigned n;

	hp_lock_class_set_repair(HP_CLASS_PAGES, repair_pages);
	for (unsigned i = 0; i < 30; i++)
		held[i] = take_and_link();
	for (unsigned i = 0; i < 10; i++)
		assert_true(unlink_it(held[i]));
	(void)hp_section_oldest(&domain);
	outer = hp_section_enter(&me);
	for (unsigned i = 10; i < 30; i++)
		assert_true(unlink_it(held[i]));
	die_while_draining(held[5]); /* some are freed then */
	n = take_all();
	assert_in_range(n, LIMBO_PAGES - 1 - 20 - 1, LIMBO_PAGES - 1 - 20);
	for (unsigned i = 0; i < 10; i++) /* whoever took them has something there, which stays */
		memset(hp_pages_at(&limbo_view, held[i]), 0xff, HP_BASE_PAGE_SIZE);
	hp_section_leave(&me, outer);
	n += take_all(); /* those of the others that had to wait */
	assert_in_range(n, LIMBO_PAGES - 1 - 1, LIMBO_PAGES - 1);
	for (unsigned i = 0; i < 10; i++)
		assert_false(is_zeroed(held[i]));
	hp_lock_class_set_repair(HP_CLASS_PAGES, NULL);
}

/* ---- intents ---------------------------------------------------------------------------------------------------- */

static void test_intents(void **state)
{
	struct hp_intents intents = {0};

	hp_intent_begin(&intents, HP_INTENT_MAP, 3, 4, 5);
	hp_intent_begin(&intents, HP_INTENT_RESERVE, 6, 7, 8);
	assert_int_equal(atomic_load(&intents.depth), 2);
	assert_int_equal(intents.at[0].kind, HP_INTENT_MAP);
	assert_int_equal(intents.at[0].object, 3);
	assert_int_equal(intents.at[1].first, 7);
	assert_int_equal(intents.at[1].count, 8);
	hp_intent_end(&intents);
	assert_int_equal(atomic_load(&intents.depth), 1);
	assert_int_equal(intents.at[0].count, 5);
	hp_intent_end(&intents);
	assert_int_equal(atomic_load(&intents.depth), 0);
}

#define in_limbo(test) cmocka_unit_test_setup_teardown(test, limbo_setup, limbo_teardown)
#define TEST(test) cmocka_unit_test_setup_teardown(test, sim_setup, sim_teardown)

int main(void)
{
	for (unsigned i = 0; i < THREADS; i++)
		lockers[i] = (struct hp_locker){
			.owner = i + 1, .record = &lock_records[i], .shared = &lock_shared, .domain = &lock_domain};
	const struct CMUnitTest tests[] = {
		TEST(test_sections),
		TEST(test_signature),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_table_threads),
		cmocka_unit_test(test_pages),
		in_limbo(test_an_unlinked_page_waits_for_readers),
		in_limbo(test_a_full_limbo_changes_nothing),
		in_limbo(test_a_death_while_pages_are_freed),
		cmocka_unit_test(test_intents),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
