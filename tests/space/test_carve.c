/* SPDX-License-Identifier: MIT */
/* Parts of mappings: unmapped, protected, replaced; and mapping at an address of choice. */
#include "real.h"

#include "support/random.h"

#include <sched.h>

#define PAGES 12

static hp_file file;
static uint32_t maps_before; /* kernel mappings set aside when nothing is mapped */

static void start(uint64_t frames, const char *tuning)
{
	make_pool(frames, tuning);
	file = make_file(PAGES);
	maps_before = stats_now().kernel_maps;
}

static void end(void)
{
	EXPECT_EQ(stats_now().kernel_maps, maps_before);
	close_file(file);
	end_pool();
}

/* Pages of a file have their numbers for tags. */
static void write_pages(char *address, uint64_t first, uint64_t pages, uint64_t tag)
{
	for (uint64_t i = first; i < first + pages; i++)
		write_tag(address + i * FRAME, tag + i);
}

static void expect_pages(const char *address, uint64_t first, uint64_t pages, uint64_t tag)
{
	for (uint64_t i = first; i < first + pages; i++)
		EXPECT(has_tag(address + i * FRAME, tag + i));
}

static void store_to_it(void *address)
{
	*(volatile char *)address = 1;
}

static void expect_no_access(char *address)
{
	expect_killed(touch_it, address, SIGSEGV);
}

static void expect_read_only(char *address)
{
	touch(address);
	expect_killed(store_to_it, address, SIGSEGV);
}

static char *map_with(hp_file of, uint64_t first, uint64_t pages, unsigned flags, char *where)
{
	void *address = where;

	EXPECT_OK(hp_map(of, first * FRAME, pages * FRAME, RW, flags, &address, &error));
	return address;
}

static int try_map(hp_file of, uint64_t pages, unsigned flags, char *where)
{
	void *address = where;
	int result = hp_map(of, 0, pages * FRAME, RW, flags, &address, &error);

	if (result)
		EXPECT(address == where);
	return result;
}

/* ---- parts that are unmapped ------------------------------------------------------------------------------------ */

/* Pages [from, until) go; of a lazy mapping every second one was touched before. */
static void unmap_pages(unsigned flags, uint64_t from, uint64_t until)
{
	char *address;

	start(PAGES, "fault_window=1");
	address = map(file, PAGES, flags);
	for (uint64_t i = 0; i < PAGES; i += flags ? 2 : 1)
		write_pages(address, i, 1, 100);
	unmap(address + from * FRAME, until - from);
	EXPECT_EQ(file_stat(file).mappings, (from > 0) + (until < PAGES));
	if (from < until) {
		expect_no_access(address + from * FRAME);
		expect_no_access(address + (until - 1) * FRAME);
	}
	for (uint64_t i = 0; i < PAGES; i++)
		if (i < from || i >= until) {
			EXPECT(flags && i % 2 ? is_zero(address + i * FRAME) : has_tag(address + i * FRAME, 100 + i));
			write_pages(address, i, 1, 200);
		}
	check_pool();
	if (from)
		unmap(address, from);
	if (until < PAGES)
		unmap(address + until * FRAME, PAGES - until);
	EXPECT_EQ(stats_now().kernel_maps, maps_before);
	address = map(file, PAGES, 0);
	for (uint64_t i = 0; i < PAGES; i++) {
		bool gone = i >= from && i < until;

		EXPECT(gone && flags && i % 2 ? is_zero(address + i * FRAME)
		                              : has_tag(address + i * FRAME, (gone ? 100 : 200) + i));
	}
	unmap(address, PAGES);
	end();
}

static void test_head_middle_and_tail(void)
{
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		unmap_pages(lazy ? LAZY : 0, 0, 3);
		unmap_pages(lazy ? LAZY : 0, 5, 6);
		unmap_pages(lazy ? LAZY : 0, 4, 9);
		unmap_pages(lazy ? LAZY : 0, 9, PAGES);
		unmap_pages(lazy ? LAZY : 0, 0, PAGES);
	}
}

/* Two mappings side by side, of different kinds and files: [0, 12) and [12, 24). */
static char *map_side_by_side(hp_file second)
{
	char *address = map(file, PAGES, LAZY), *hint = address + PAGES * FRAME;

	/* Where nothing is: a place with twice the room. */
	while (try_map(second, PAGES, HP_MAP_AT, hint) == -EEXIST) {
		char *room = mmap(NULL, (2 * PAGES + 1) * FRAME, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		EXPECT(room != MAP_FAILED);
		EXPECT_EQ(munmap(room, (2 * PAGES + 1) * FRAME), 0);
		room = (char *)(((uintptr_t)room + FRAME - 1) & ~(FRAME - 1));
		unmap(address, PAGES);
		address = map_with(file, 0, PAGES, LAZY | HP_MAP_AT, room);
		hint = address + PAGES * FRAME;
	}
	write_pages(address, 0, PAGES, 100);
	write_pages(address + PAGES * FRAME, 0, PAGES, 300);
	return address;
}

static void test_over_several_mappings(void)
{
	hp_file second;
	char *address;

	start(2 * PAGES, NULL);
	second = make_file(PAGES);
	address = map_side_by_side(second);
	unmap(address + (PAGES - 2) * FRAME, 5);
	expect_pages(address, 0, PAGES - 2, 100);
	expect_pages(address + PAGES * FRAME, 3, PAGES - 3, 300);
	expect_no_access(address + (PAGES - 1) * FRAME);
	expect_no_access(address + (PAGES + 2) * FRAME);
	/* All that is left has a gap: nothing happens. */
	EXPECT_EQ(hp_unmap(address, 2 * PAGES * FRAME), -EINVAL);
	EXPECT_EQ(hp_unmap(address + (PAGES - 3) * FRAME, 2 * FRAME), -EINVAL);
	EXPECT_EQ(hp_protect(address + (PAGES - 3) * FRAME, 2 * FRAME, RO), -EINVAL);
	write_pages(address, 0, PAGES - 2, 500);
	write_pages(address + PAGES * FRAME, 3, PAGES - 3, 600);
	expect_pages(address, 0, PAGES - 2, 500);
	check_pool();
	unmap(address, PAGES - 2);
	unmap(address + (PAGES + 3) * FRAME, PAGES - 3);
	close_file(second);
	end();
}

static void test_ranges_that_are_refused(void)
{
	char *address, *foreign;

	start(PAGES, NULL);
	address = map(file, PAGES, 0);
	EXPECT_EQ(hp_unmap(address, 0), -EINVAL);
	EXPECT_EQ(hp_unmap(address + 4096, FRAME), -EINVAL);
	EXPECT_EQ(hp_unmap(address, FRAME + 1), -EINVAL);
	EXPECT_EQ(hp_unmap(NULL, FRAME), -EINVAL);
	EXPECT_EQ(hp_unmap((void *)(UINTPTR_MAX - FRAME + 1), 2 * FRAME), -EINVAL);
	EXPECT_EQ(hp_unmap(address, (PAGES + 1) * FRAME), -EINVAL);
	EXPECT_EQ(hp_protect(address, 0, RW), -EINVAL);
	EXPECT_EQ(hp_protect(address + 4096, FRAME, RW), -EINVAL);
	EXPECT_EQ(hp_protect(address, FRAME + 1, RW), -EINVAL);
	EXPECT_EQ(hp_protect(address, FRAME, 4), -EINVAL);
	EXPECT_EQ(hp_protect(address, FRAME, HP_PROT_WRITE), -EINVAL);
	foreign = mmap(NULL, 2 * FRAME, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(foreign != MAP_FAILED);
	foreign = (char *)(((uintptr_t)foreign + FRAME - 1) & ~(FRAME - 1));
	EXPECT_EQ(hp_unmap(foreign, FRAME), -EINVAL);
	EXPECT_EQ(hp_protect(foreign, FRAME, 0), -EINVAL);
	touch(foreign);
	write_pages(address, 0, PAGES, 1);
	unmap(address, PAGES);
	EXPECT_EQ(hp_unmap(address, PAGES * FRAME), -EINVAL);
	end();
}

/* Pieces of pieces in any order; what is left always works. */
static void test_random_pieces(void)
{
	uint64_t random = random_seed();

	for (unsigned round = 0; round < 30; round++) {
		bool there[PAGES];
		char *address;
		uint64_t left = PAGES;

		start(PAGES, round % 2 ? "fault_window=1" : "fault_window=8");
		memset(there, 1, sizeof(there));
		address = map(file, PAGES, round % 3 ? LAZY : 0);
		while (left) {
			uint64_t first = random_below(&random, PAGES), count = 0, pick = random_below(&random, PAGES);

			while (first + count < PAGES && there[first + count] && count < 3)
				count++;
			if (count) {
				unmap(address + first * FRAME, count);
				memset(there + first, 0, count);
				left -= count;
			}
			if (there[pick])
				store_to_it(address + pick * FRAME);
			if (there[pick] && random_below(&random, 2)) {
				EXPECT_EQ(hp_protect(address + pick * FRAME, FRAME, RO), 0);
				touch(address + pick * FRAME);
				EXPECT_EQ(hp_protect(address + pick * FRAME, FRAME, RW), 0);
			}
			check_pool();
		}
		EXPECT_EQ(file_stat(file).mappings, 0);
		end();
	}
}

/* Punching and cutting the file sees what is mapped now. */
static void test_punch_and_truncate_see_the_pieces(void)
{
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		char *address;

		start(PAGES, NULL);
		address = map(file, PAGES, lazy ? LAZY : 0);
		write_pages(address, 0, PAGES, 1);
		unmap(address + 4 * FRAME, 4);
		EXPECT_OK(hp_file_punch(file, 2 * FRAME, 8 * FRAME, 0, &error));
		EXPECT_EQ(file_stat(file).present, 4 * FRAME);
		EXPECT_EQ(file_stat(file).holes, 4 * FRAME);
		EXPECT_EQ(stats_now().zeroed + stats_now().dirty, 4);
		for (uint64_t i = 0; i < PAGES; i++)
			if (i < 4 || i >= 8)
				EXPECT(i < 2 || i >= 10 ? has_tag(address + i * FRAME, 1 + i)
				                        : is_zero(address + i * FRAME));
		EXPECT_OK(hp_file_truncate(file, 10 * FRAME, &error));
		expect_killed(touch_it, address + 11 * FRAME, SIGBUS);
		touch(address + 9 * FRAME);
		/* A piece that lies across the end is cut in two there, and grows again. */
		unmap(address + 8 * FRAME, 1);
		EXPECT_EQ(hp_protect(address + 9 * FRAME, 2 * FRAME, RO), 0);
		expect_killed(touch_it, address + 10 * FRAME, SIGBUS);
		EXPECT_OK(hp_file_truncate(file, PAGES * FRAME, &error));
		EXPECT(is_zero(address + 11 * FRAME));
		expect_read_only(address + 10 * FRAME);
		write_tag(address + 11 * FRAME, 3);
		check_pool();
		unmap(address, 4);
		unmap(address + 9 * FRAME, 3);
		end();
	}
}

static char *forked;

static void unmap_in_child(void *unused)
{
	expect_pages(forked, 0, 3, 1);
	unmap(forked + FRAME, 1);
	EXPECT(has_tag(forked, 1));
	EXPECT_EQ(hp_unmap(forked + 4 * FRAME, FRAME), -EINVAL); /* the parent's gap is the child's */
	unmap(forked + 6 * FRAME, PAGES - 6);
	unmap(forked, 1);
	unmap(forked + 2 * FRAME, 1);
	EXPECT_EQ(hp_file_close(file), 0);
}

static void test_pieces_and_fork(void)
{
	start(PAGES, NULL);
	forked = map(file, PAGES, LAZY);
	write_pages(forked, 0, PAGES, 1);
	unmap(forked + 3 * FRAME, 3);
	run_child(unmap_in_child, NULL);
	expect_pages(forked, 0, 3, 1);
	expect_pages(forked, 6, PAGES - 6, 1);
	unmap(forked, 3);
	unmap(forked + 6 * FRAME, PAGES - 6);
	end();
}

/* ---- among threads ---------------------------------------------------------------------------------------------- */

struct toucher {
	char *address;
	_Atomic uint64_t kept; /* pages below it stay; with `tail`, pages from it on */
	_Atomic int stop;
	bool tail, reads;
	_Atomic uint64_t touched;
	uint64_t seed;
};

static void *touch_kept(void *context)
{
	struct toucher *t = context;
	uint64_t random = t->seed;

	while (!atomic_load(&t->stop)) {
		uint64_t page = random_below(&random, t->tail ? PAGES - t->kept : t->kept) + (t->tail ? t->kept : 0);

		if (t->reads)
			touch(t->address + page * FRAME + 100);
		else
			store_to_it(t->address + page * FRAME + 100);
		atomic_fetch_add(&t->touched, 1);
	}
	return NULL;
}

/* Two threads fault in what stays, while the rest goes piece by piece. */
static void test_threads_touch_what_stays(void)
{
	static const char *const tunings[] = {"file_lock=biased fault_window=1", "file_lock=vma fault_window=4",
	                                      "file_lock=invalidate fault_window=2", "file_lock=rwsem"};
	uint64_t seed = random_seed();

	for (unsigned round = 0; round < 120; round++) {
		struct toucher low = {.kept = 4, .seed = seed + round}, high = {.kept = 8, .tail = true, .seed = seed};
		pthread_t thread[2];

		start(PAGES, tunings[round % 4]);
		low.address = high.address = map(file, PAGES, round % 3 ? LAZY : 0);
		thread[0] = start_thread(touch_kept, &low);
		thread[1] = start_thread(touch_kept, &high);
		for (uint64_t i = 4; i < 8; i++) {
			if (round % 2)
				touch(low.address + i * FRAME);
			unmap(low.address + i * FRAME, 1);
		}
		while (!atomic_load(&low.touched) || !atomic_load(&high.touched))
			sched_yield();
		atomic_store(&low.stop, 1);
		atomic_store(&high.stop, 1);
		join_thread(thread[0]);
		join_thread(thread[1]);
		unmap(low.address, 4);
		unmap(low.address + 8 * FRAME, 4);
		end();
	}
}

/* ---- protection ------------------------------------------------------------------------------------------------- */

static void protect(char *address, uint64_t pages, unsigned prot)
{
	EXPECT_EQ(hp_protect(address, pages * FRAME, prot), 0);
}

static void test_protect(void)
{
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		char *address;

		start(PAGES, "fault_window=1");
		address = map(file, PAGES, lazy ? LAZY : 0);
		write_pages(address, 0, 6, 1);
		protect(address, PAGES, RO);
		expect_pages(address, 0, 6, 1);
		expect_read_only(address + FRAME);
		/* Pages of a lazy one that were not touched get it with their first touch. */
		EXPECT(is_zero(address + 7 * FRAME));
		expect_read_only(address + 7 * FRAME);
		expect_killed(store_to_it, address + 8 * FRAME, SIGSEGV);
		protect(address, PAGES, 0);
		expect_no_access(address);
		expect_no_access(address + 7 * FRAME);
		expect_no_access(address + 9 * FRAME);
		protect(address, PAGES, RW);
		expect_pages(address, 0, 6, 1);
		write_pages(address, 0, PAGES, 2);
		expect_pages(address, 0, PAGES, 2);
		check_pool();
		unmap(address, PAGES);
		end();
	}
}

static void test_protect_a_part(void)
{
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		char *address;

		start(PAGES, "fault_window=4");
		address = map(file, PAGES, lazy ? LAZY : 0);
		write_pages(address, 0, 5, 1);
		protect(address + 3 * FRAME, 4, RO);
		EXPECT_EQ(file_stat(file).mappings, 3);
		protect(address + 3 * FRAME, 4, RO); /* as it is: no more pieces */
		EXPECT_EQ(file_stat(file).mappings, 3);
		expect_pages(address, 0, 5, 1);
		write_pages(address, 0, 3, 2);
		write_pages(address, 7, PAGES - 7, 2);
		expect_read_only(address + 3 * FRAME);
		expect_read_only(address + 6 * FRAME);
		protect(address + 5 * FRAME, 4, 0); /* across two pieces */
		expect_no_access(address + 5 * FRAME);
		expect_no_access(address + 8 * FRAME);
		expect_read_only(address + 4 * FRAME);
		write_pages(address, 9, PAGES - 9, 2);
		protect(address, PAGES, RW); /* over all pieces */
		write_pages(address, 0, PAGES, 3);
		expect_pages(address, 0, PAGES, 3);
		check_pool();
		unmap(address, PAGES);
		end();
	}
}

struct protector {
	char *page;
	uint64_t number;
};

static void *protect_own(void *context)
{
	struct protector *p = context;

	for (uint64_t i = 0; i < 150; i++) {
		write_tag(p->page, i);
		protect(p->page, 1, RO);
		EXPECT(has_tag(p->page, i));
		if (i % 8 == 0)
			protect(p->page, 1, 0);
		protect(p->page, 1, RW);
	}
	return NULL;
}

/* Threads change the protection of their own pages of one mapping, beside one that reads what is only read. */
static void test_protect_among_threads(void)
{
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		struct toucher reader = {.kept = 8, .tail = true, .reads = true, .seed = random_seed()};
		struct protector p[3];
		pthread_t thread[4];

		start(PAGES, "fault_window=1");
		reader.address = map(file, PAGES, lazy ? LAZY : 0);
		thread[3] = start_thread(touch_kept, &reader);
		for (unsigned i = 0; i < 3; i++) {
			p[i] = (struct protector){reader.address + 2 * i * FRAME, i};
			thread[i] = start_thread(protect_own, &p[i]);
		}
		for (unsigned i = 0; i < 100; i++)
			protect(reader.address + 8 * FRAME, 4, i % 2 ? RW : RO);
		for (unsigned i = 0; i < 3; i++)
			join_thread(thread[i]);
		atomic_store(&reader.stop, 1);
		join_thread(thread[3]);
		unmap(reader.address, PAGES);
		end();
	}
}

/* ---- at an address of choice ------------------------------------------------------------------------------------ */

static void test_wish(void)
{
	char *free_place, *there, *elsewhere;

	start(PAGES, NULL);
	free_place = map(file, 4, 0);
	unmap(free_place, 4);
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		there = map_with(file, 0, 4, HP_MAP_WISH | (lazy ? LAZY : 0), free_place);
		EXPECT(there == free_place);
		elsewhere = map_with(file, 2, 4, HP_MAP_WISH | (lazy ? LAZY : 0), there + FRAME);
		EXPECT(elsewhere + 4 * FRAME <= there || elsewhere >= there + 4 * FRAME);
		write_tag(there + 2 * FRAME, 5);
		EXPECT(has_tag(elsewhere, 5));
		unmap(elsewhere, 4);
		elsewhere = map_with(file, 2, 4, HP_MAP_WISH | (lazy ? LAZY : 0), there + 4097);
		unmap(elsewhere, 4);
		elsewhere = map_with(file, 2, 4, HP_MAP_WISH | (lazy ? LAZY : 0), NULL);
		unmap(elsewhere, 4);
		unmap(there, 4);
	}
	end();
}

static void test_at(void)
{
	char *there, *foreign;

	start(PAGES, NULL);
	there = map(file, 4, LAZY);
	write_pages(there, 0, 4, 1);
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		EXPECT_EQ(try_map(file, 4, HP_MAP_AT | (lazy ? LAZY : 0), there), -EEXIST);
		EXPECT_EQ(try_map(file, 2, HP_MAP_AT | (lazy ? LAZY : 0), there + 3 * FRAME), -EEXIST);
		expect_pages(there, 0, 4, 1);
	}
	EXPECT_EQ(try_map(file, 2, HP_MAP_AT, there + 4096), -EINVAL);
	EXPECT_EQ(try_map(file, 2, HP_MAP_AT, NULL), -EINVAL);
	EXPECT_EQ(try_map(file, 2, HP_MAP_REPLACE, there + 4096), -EINVAL);
	EXPECT_EQ(try_map(file, 2, HP_MAP_AT | HP_MAP_WISH, there), -EINVAL);
	EXPECT_EQ(try_map(file, 2, HP_MAP_AT | HP_MAP_REPLACE, there), -EINVAL);
	EXPECT(try_map(file, 2, HP_MAP_AT, (char *)(UINTPTR_MAX - FRAME + 1)) < 0);
	/* A gap that hp_unmap made. */
	unmap(there + FRAME, 2);
	EXPECT(map_with(file, 1, 2, HP_MAP_AT, there + FRAME) == there + FRAME);
	expect_pages(there, 0, 4, 1);
	unmap(there, 4);
	foreign = mmap(there, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (foreign == there)
		EXPECT_EQ(try_map(file, 4, HP_MAP_AT, there), -EEXIST);
	EXPECT_EQ(munmap(foreign, 4096), 0);
	end();
}

/* ---- replacing -------------------------------------------------------------------------------------------------- */

/* A new mapping over the end of one and the beginning of another: what is left of both goes on. */
static void test_replace_parts_of_two(void)
{
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		hp_file second, fresh;
		char *address, *there;

		start(3 * PAGES, NULL);
		second = make_file(PAGES);
		fresh = make_file(4);
		EXPECT_EQ(hp_file_write(fresh, 3 * FRAME, "new", 4), 4);
		address = map_side_by_side(second);
		there = map_with(fresh, 0, 4, HP_MAP_REPLACE | (lazy ? LAZY : 0), address + (PAGES - 2) * FRAME);
		EXPECT(there == address + (PAGES - 2) * FRAME);
		EXPECT(is_zero(there) && !strcmp(there + 3 * FRAME, "new"));
		expect_pages(address, 0, PAGES - 2, 100);
		expect_pages(address + PAGES * FRAME, 2, PAGES - 2, 300);
		write_pages(there, 0, 4, 700);
		check_pool();
		/* The middle of one, by a part of the same file. */
		there = map_with(file, 0, 2, HP_MAP_REPLACE | (lazy ? 0 : LAZY), address + 4 * FRAME);
		expect_pages(there, 0, 2, 100);
		expect_pages(address, 0, 4, 100);
		expect_pages(address, 6, PAGES - 8, 100);
		EXPECT_EQ(file_stat(file).mappings, 3);
		check_pool();
		unmap(address, 2 * PAGES);
		EXPECT_EQ(stats_now().mappings, 0);
		there = map(fresh, 4, 0);
		expect_pages(there, 0, 4, 700);
		unmap(there, 4);
		close_file(second);
		close_file(fresh);
		end();
	}
}

static void test_replace_that_is_refused(void)
{
	char *address, *foreign, *free_place;
	hp_file large;

	start(PAGES, NULL);
	address = map(file, PAGES, LAZY);
	write_pages(address, 0, PAGES, 1);
	large = make_file(PAGES);
	/* No frames. */
	EXPECT_EQ(try_map(large, 2, HP_MAP_REPLACE, address), -ENOMEM);
	EXPECT_EQ(try_map(large, 2, HP_MAP_REPLACE | LAZY, address + 2 * FRAME), -ENOMEM);
	expect_pages(address, 0, PAGES, 1);
	/* A gap at the end, in the middle, all. */
	unmap(address + 6 * FRAME, 2);
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		unsigned flags = HP_MAP_REPLACE | (lazy ? LAZY : 0);

		EXPECT_EQ(try_map(file, 4, flags, address + 4 * FRAME), -EINVAL);
		EXPECT_EQ(try_map(file, 4, flags, address + 5 * FRAME), -EINVAL);
		EXPECT_EQ(try_map(file, 4, flags, address + 7 * FRAME), -EINVAL);
		EXPECT_EQ(try_map(file, 2, flags, address + 6 * FRAME), -EINVAL);
		EXPECT_EQ(try_map(file, 4, flags, address + (PAGES - 2) * FRAME), -EINVAL);
	}
	foreign = mmap(NULL, 2 * FRAME, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(foreign != MAP_FAILED);
	free_place = (char *)(((uintptr_t)foreign + FRAME - 1) & ~(FRAME - 1));
	EXPECT_EQ(try_map(file, 1, HP_MAP_REPLACE, free_place), -EINVAL);
	touch(free_place);
	/* Beyond the last address. */
	for (unsigned lazy = 0; lazy < 2; lazy++)
		for (uintptr_t n = 1; n <= 2; n++)
			EXPECT_EQ(try_map(file, 2, HP_MAP_REPLACE | (lazy ? LAZY : 0), (char *)(0 - n * FRAME)),
			          -EINVAL);
	expect_pages(address, 0, 6, 1);
	expect_pages(address, 8, PAGES - 8, 1);
	EXPECT_EQ(file_stat(file).mappings, 2);
	check_pool();
	unmap(address, 6);
	unmap(address + 8 * FRAME, PAGES - 8);
	close_file(large);
	end();
}

static struct {
	pthread_barrier_t begin, over;
	hp_file other;
	char *address;
	int what;
} rival;

/* Wants the same range at the same time. */
static void *be_a_rival(void *unused)
{
	for (;;) {
		pthread_barrier_wait(&rival.begin);
		if (rival.what == 0)
			EXPECT_EQ(try_map(rival.other, PAGES, HP_MAP_REPLACE, rival.address), 0);
		else if (rival.what == 1)
			hp_unmap(rival.address, PAGES * FRAME);
		else
			return unused;
		pthread_barrier_wait(&rival.over);
	}
}

/* What is mapped in the end is what the books say. */
static void test_replace_against_others(void)
{
	pthread_t thread;

	start(2 * PAGES, NULL);
	rival.other = make_file(PAGES);
	rival.address = map(file, PAGES, 0);
	/* Backwards, so that it takes many moves. */
	for (int i = PAGES; i-- > 0;)
		EXPECT_EQ(hp_file_write(rival.other, i * FRAME, "other", 6), 6);
	for (int i = 0; i < PAGES; i++)
		memcpy(rival.address + i * FRAME, "file", 5);
	pthread_barrier_init(&rival.begin, NULL, 2);
	pthread_barrier_init(&rival.over, NULL, 2);
	EXPECT_EQ(pthread_create(&thread, NULL, be_a_rival, NULL), 0);
	for (int i = 0; i < 2000; i++) {
		int result;

		rival.what = i % 2;
		pthread_barrier_wait(&rival.begin);
		result = try_map(i % 4 < 2 ? file : rival.other, PAGES, HP_MAP_REPLACE, rival.address);
		pthread_barrier_wait(&rival.over);
		EXPECT(!result || rival.what == 1);
		if (!file_stat(file).mappings && !file_stat(rival.other).mappings)
			EXPECT_EQ(try_map(file, PAGES, HP_MAP_AT, rival.address), 0);
		for (int page = 0; page < PAGES; page++)
			EXPECT(!strcmp(rival.address + page * FRAME, file_stat(file).mappings ? "file" : "other"));
	}
	rival.what = 2;
	pthread_barrier_wait(&rival.begin);
	pthread_join(thread, NULL);
	unmap(rival.address, PAGES);
	close_file(rival.other);
	end();
}

struct watcher {
	char *address;
	_Atomic int stop;
	_Atomic uint64_t seen[3], wrong;
};

static void *watch(void *context)
{
	struct watcher *w = context;

	for (uint64_t i = 0; !atomic_load(&w->stop); i++) {
		uint64_t found = *(volatile uint64_t *)(void *)(w->address + i % 4 * FRAME);

		if (found == 1 || found == 2)
			atomic_fetch_add(&w->seen[found], 1);
		else
			atomic_fetch_add(&w->wrong, 1);
	}
	return NULL;
}

/* Who reads all the time sees the old or the new, and nothing else, and never faults. */
static void replace_before_watchers(unsigned first_flags, unsigned second_flags, const char *tuning)
{
	struct watcher w = {.address = NULL};
	hp_file other;
	pthread_t thread[2];
	uint64_t value;

	start(2 * PAGES, tuning);
	other = make_file(4);
	for (uint64_t i = 0; i < 4; i++) {
		value = 1;
		EXPECT_EQ(hp_file_write(file, i * FRAME, &value, 8), 8);
		value = 2;
		EXPECT_EQ(hp_file_write(other, i * FRAME, &value, 8), 8);
	}
	w.address = map(file, 4, first_flags);
	for (unsigned i = 0; i < 2; i++)
		thread[i] = start_thread(watch, &w);
	for (unsigned i = 0; i < 1000; i++) {
		uint64_t from = i % 5 == 0 ? 1 : 0, pages = i % 7 == 0 ? 2 : 4 - from;

		map_with(i % 2 ? file : other, from, pages, HP_MAP_REPLACE | (i % 2 ? first_flags : second_flags),
		         w.address + from * FRAME);
		if (i % 100 == 0)
			sched_yield();
	}
	atomic_store(&w.stop, 1);
	for (unsigned i = 0; i < 2; i++)
		join_thread(thread[i]);
	EXPECT_EQ(atomic_load(&w.wrong), 0);
	EXPECT(atomic_load(&w.seen[1]) && atomic_load(&w.seen[2]));
	check_pool();
	unmap(w.address, 4);
	close_file(other);
	end();
}

static void test_replace_before_watchers(void)
{
	replace_before_watchers(0, 0, NULL);
	replace_before_watchers(LAZY, LAZY, "fault_window=1");
	replace_before_watchers(0, LAZY, "file_lock=vma");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_head_middle_and_tail),
		REAL_TEST(test_over_several_mappings),
		REAL_TEST(test_ranges_that_are_refused),
		REAL_TEST(test_random_pieces),
		REAL_TEST(test_punch_and_truncate_see_the_pieces),
		REAL_TEST(test_pieces_and_fork),
		REAL_TEST(test_threads_touch_what_stays),
		REAL_TEST(test_protect),
		REAL_TEST(test_protect_a_part),
		REAL_TEST(test_protect_among_threads),
		REAL_TEST(test_wish),
		REAL_TEST(test_at),
		REAL_TEST(test_replace_parts_of_two),
		REAL_TEST(test_replace_that_is_refused),
		REAL_TEST(test_replace_before_watchers),
		REAL_TEST(test_replace_against_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
