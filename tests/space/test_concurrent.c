/* SPDX-License-Identifier: MIT */
/*
 * 4 processes with 16 threads each fault, unmap and remap one file, and verify the owner of every byte.
 *
 * A page belongs to one thread, its writer, which is the only one to know what must stand in it. Every 8 bytes of a
 * page hold the page's number and the writer's count of writes, so that anybody can tell whether they are in the right
 * page. Beside that, scratch files come and go, so that frames are recycled all the time and must come back zeroed.
 */
#include "real.h"

#define PROCESSES 4
#define THREADS 16
#define OWNERS (PROCESSES * THREADS)
#define PAGES OWNERS /* of the file: one for each owner */
#define SCRATCH_FRAMES 32

static hp_file file;
static unsigned first_seed;
static double end_time;

struct owner {
	unsigned number; /* of the owner, and of its page */
	unsigned seed;
	uint32_t writes;
	uint64_t rounds;
};

static unsigned draw(struct owner *owner, unsigned below)
{
	return (unsigned)rand_r(&owner->seed) % below;
}

static uint64_t word(unsigned page, uint32_t writes)
{
	return (uint64_t)(page + 1) << 32 | writes;
}

static void wrong(const struct owner *owner, const char *what, unsigned page, uint64_t is)
{
	fprintf(stderr, "seed %u, owner %u: page %u %s: 0x%lx\n", first_seed, owner->number, page, what, is);
	_exit(1);
}

static void write_page(struct owner *owner, char *address)
{
	volatile uint64_t *words = (void *)address;
	uint64_t value = word(owner->number, ++owner->writes);

	for (uint64_t i = 0; i < FRAME / 8; i++)
		words[i] = value;
}

static void verify_own(const struct owner *owner, const char *address)
{
	const volatile uint64_t *words = (const void *)address;
	uint64_t value = owner->writes ? word(owner->number, owner->writes) : 0;

	for (uint64_t i = 0; i < FRAME / 8; i++)
		if (words[i] != value)
			wrong(owner, "has lost what its owner wrote", owner->number, words[i]);
}

static void verify_other(const struct owner *owner, const char *address, unsigned page)
{
	const volatile uint64_t *words = (const void *)address;

	for (uint64_t i = 0; i < FRAME / 8; i++) {
		uint64_t value = words[i];

		if (value && value >> 32 != page + 1)
			wrong(owner, "holds bytes of another", page, value);
	}
}

/* Maps a range with the own page in it, looks at some pages, writes the own one, and unmaps. */
static void use_file(struct owner *owner)
{
	unsigned first = draw(owner, owner->number + 1),
		 pages = owner->number - first + 1 + draw(owner, PAGES - owner->number);
	char *address = map_part(file, first, pages, RW, draw(owner, 3) ? LAZY : 0);
	char *own = address + (owner->number - first) * FRAME;

	if (draw(owner, 8) == 0)
		EXPECT_EQ(hp_populate(address, pages * FRAME), 0);
	verify_own(owner, own);
	for (unsigned i = 0; i < 2; i++) {
		unsigned page = draw(owner, pages);

		verify_other(owner, address + page * FRAME, first + page);
	}
	for (unsigned i = 0; i < 8; i++)
		touch(address + draw(owner, pages) * FRAME + draw(owner, FRAME));
	if (draw(owner, 2)) {
		write_page(owner, own);
		verify_own(owner, own);
	}
	unmap(address, pages);
}

static void use_scratch(struct owner *owner)
{
	unsigned pages = 1 + draw(owner, 3);
	hp_file scratch;
	void *address;
	int result;

	EXPECT_OK(hp_file_create(pool, pages * FRAME, 0, &scratch, &error));
	result = hp_map(scratch, 0, pages * FRAME, RW, draw(owner, 2) ? LAZY : 0, &address, NULL);
	if (result == 0) {
		for (unsigned i = 0; i < pages; i++) {
			char *page = (char *)address + i * FRAME;

			if (!is_zero(page))
				wrong(owner, "of a new file is not zeroed", i, *(uint64_t *)(void *)page);
			memset(page, (int)owner->number + 1, FRAME);
		}
		unmap(address, pages);
	} else {
		EXPECT_EQ(result, -ENOMEM); /* the others have it all */
	}
	close_file(scratch);
}

static void *run(void *context)
{
	struct owner *owner = context;

	for (; seconds() < end_time; owner->rounds++)
		if (draw(owner, 4))
			use_file(owner);
		else
			use_scratch(owner);
	return NULL;
}

static void run_process(void *context)
{
	unsigned process = *(unsigned *)context;
	struct owner owner[THREADS];
	pthread_t thread[THREADS];
	char *address;

	for (unsigned i = 0; i < THREADS; i++) {
		unsigned number = process * THREADS + i;

		owner[i] = (struct owner){.number = number, .seed = first_seed + number};
		thread[i] = start_thread(run, &owner[i]);
	}
	for (unsigned i = 0; i < THREADS; i++)
		join_thread(thread[i]);
	address = map(file, PAGES, LAZY);
	for (unsigned i = 0; i < THREADS; i++) {
		EXPECT(owner[i].rounds > 0);
		verify_own(&owner[i], address + owner[i].number * FRAME);
	}
	unmap(address, PAGES);
}

static void run_all(const char *tuning, uint32_t workers)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	const char *duration = getenv("HP_TEST_SECONDS"), *seed = getenv("HP_TEST_SEED");
	unsigned numbers[PROCESSES];
	pid_t pid[PROCESSES];

	first_seed = seed ? (unsigned)strtoul(seed, NULL, 10) : (unsigned)time(NULL);
	fprintf(stderr, "HP_TEST_SEED=%u\n", first_seed);
	options.size = (PAGES + SCRATCH_FRAMES) * FRAME;
	options.workers = workers;
	options.tuning = tuning;
	make_pool_with(&options);
	file = make_file(PAGES);
	/* Promised once and for all: scratch files may take what is left, not what the file has not asked for yet. */
	unmap(map(file, PAGES, LAZY), PAGES);
#if defined(__SANITIZE_ADDRESS__)
	nap(100000); /* its allocator does not survive a fork while a thread, a worker that starts, is in it */
#endif
	end_time = seconds() + (duration ? strtod(duration, NULL) : 8) / 2;
	for (unsigned i = 1; i < PROCESSES; i++) {
		numbers[i] = i;
		pid[i] = start_child(run_process, &numbers[i]);
	}
	numbers[0] = 0;
	run_process(&numbers[0]);
	for (unsigned i = 1; i < PROCESSES; i++)
		join_child(pid[i]);
	check_pool();
	EXPECT_EQ(stats_now().mappings, 0);
	close_file(file);
	end_pool();
}

static void test_with_workers(void)
{
	run_all(NULL, 1);
}

/* One mutex for all pages, one page for each fault: as much contention as can be. */
static void test_without_workers(void)
{
	run_all("fault_window=1 fault_mutexes=1", HP_WORKERS_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_with_workers),
		REAL_TEST(test_without_workers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
