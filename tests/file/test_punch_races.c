/* SPDX-License-Identifier: MIT */
/*
 * Punching against threads of two processes that fault, read and write. Each page has an owner, who knows what is in
 * it; everybody else finds zeroes or what is the owner's.
 */
#include "real.h"

#include "support/random.h"

#define PAGES 8

static const char *const schemes[] = {"file_lock=biased", "file_lock=invalidate", "file_lock=vma", "file_lock=rwsem"};

#define SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

static hp_file file;

#define ACTORS 3 /* of each process; each owns some pages */

struct storm {
	_Atomic int stop;
	_Atomic uint64_t punched, stored;
	uint64_t seed;
};

static struct storm *storm;

static uint64_t word_of(uint64_t page, uint64_t number)
{
	return (page + 1) << 48 | number;
}

/* Whoever looks finds zero or something of this page's owner. */
static void expect_owned(const volatile uint64_t *word, uint64_t page)
{
	uint64_t found = *word;

	if (found && found >> 48 != page + 1)
		fprintf(stderr, "page %lu holds %lx\n", page, found);
	EXPECT(found == 0 || found >> 48 == page + 1);
}

/* Other pages, through a mapping of the moment. */
static void look_around(uint64_t *random)
{
	uint64_t first = random_below(random, PAGES), pages = 1 + random_below(random, PAGES - first);
	char *address = map_part(file, first, pages, RW, random_below(random, 2) ? LAZY : 0);

	for (uint64_t i = 0; i < pages; i++)
		expect_owned((uint64_t *)(void *)(address + i * FRAME + 8 * random_below(random, 100)), first + i);
	unmap(address, pages);
}

static void store_own(uint64_t page, volatile uint64_t *word, uint64_t value, bool by_write)
{
	uint64_t at = page * FRAME + ((uintptr_t)word & (FRAME - 1));

	if (by_write)
		EXPECT_EQ(hp_file_write(file, at, &value, 8), 8);
	else
		*word = value;
	EXPECT_EQ(*word, value);
	atomic_fetch_add(&storm->stored, 1);
}

/* Its owner finds nothing in a page after the punch, by a load and by reading. */
static void punch_own(uint64_t page, volatile uint64_t *word, unsigned flags)
{
	uint64_t at = page * FRAME + ((uintptr_t)word & (FRAME - 1)), found = 1;

	EXPECT_OK(hp_file_punch(file, flags ? at : page * FRAME, flags ? 8 : FRAME, flags, &error));
	EXPECT_EQ(*word, 0);
	EXPECT_EQ(hp_file_read(file, at, &found, 8), 8);
	EXPECT_EQ(found, 0);
	atomic_fetch_add(&storm->punched, 1);
}

static void *act(void *context)
{
	uint64_t own = (uintptr_t)context, random = storm->seed + own;
	char *address = map_part(file, own, 1, RW, LAZY);

	for (uint64_t number = 1; !atomic_load(&storm->stop); number++) {
		volatile uint64_t *word = (uint64_t *)(void *)(address + 8 * random_below(&random, 100));

		store_own(own, word, word_of(own, number), random_below(&random, 3) == 0);
		if (random_below(&random, 2))
			punch_own(own, word, random_below(&random, 4) ? 0 : HP_PUNCH_KEEP);
		if (random_below(&random, 3) == 0)
			look_around(&random);
		if (random_below(&random, 4) == 0) {
			uint64_t kept = *word;

			unmap(address, 1);
			address = map_part(file, own, 1, RW, random_below(&random, 2) ? LAZY : 0);
			word = (uint64_t *)(void *)(address + ((uintptr_t)word & (FRAME - 1)));
			EXPECT_EQ(*word, kept);
		}
	}
	unmap(address, 1);
	return NULL;
}

static void run_actors(void *first)
{
	pthread_t thread[ACTORS];

	for (unsigned i = 0; i < ACTORS; i++)
		thread[i] = start_thread(act, (void *)((uintptr_t)first + i));
	for (unsigned i = 0; i < ACTORS; i++)
		join_thread(thread[i]);
}

static void *run_actors_here(void *first)
{
	run_actors(first);
	return NULL;
}

static void run_storm(const char *scheme, unsigned window)
{
	char tuning[64];
	pthread_t beginning;
	pid_t pid;

	snprintf(tuning, sizeof(tuning), "%s fault_window=%u", scheme, window);
	storm = make_shared(sizeof(*storm));
	storm->seed = random_seed();
	make_pool(PAGES, tuning);
	file = make_file(PAGES);
	pid = start_child(run_actors, (void *)0);
	beginning = start_thread(run_actors_here, (void *)ACTORS);
	nap(500000);
	atomic_store(&storm->stop, 1);
	join_thread(beginning);
	join_child(pid);
	EXPECT(atomic_load(&storm->punched) > 20 && atomic_load(&storm->stored) > 20);
	check_pool();
	EXPECT_OK(hp_file_punch(file, 0, PAGES * FRAME, 0, &error));
	EXPECT_EQ(stats_now().used, 0);
	EXPECT_EQ(stats_now().holes, 0);
	close_file(file);
	end_pool();
	munmap(storm, sizeof(*storm));
}

static void test_everything_at_once(void)
{
	for (unsigned i = 0; i < SCHEMES; i++)
		run_storm(schemes[i], i % 2 ? 1 : 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_everything_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
