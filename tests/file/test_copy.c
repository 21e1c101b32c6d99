/* SPDX-License-Identifier: MIT */
/* Reading and writing files without mapping them. */
#include "real.h"

#include "file/copy.h"

#include "support/random.h"

#define PAGES 6
#define SIZE (PAGES * FRAME)

static hp_file file;

static void start(uint64_t frames, const char *tuning)
{
	make_pool(frames, tuning);
	file = make_file(PAGES);
}

static void end(void)
{
	close_file(file);
	end_pool();
}

static void expect_present(uint64_t pages)
{
	EXPECT_EQ(file_stat(file).present, pages * FRAME);
}

static char *make_buffer(uint64_t size, uint64_t *random)
{
	char *buffer = malloc(size);

	EXPECT(buffer);
	for (uint64_t i = 0; i < size; i++)
		buffer[i] = (char)(random ? random_next(random) | 1 : 0x55);
	return buffer;
}

static bool is_filled(const char *buffer, uint64_t size, char with)
{
	return size == 0 || (buffer[0] == with && !memcmp(buffer, buffer + 1, size - 1));
}

/* ---- what the calls say ----------------------------------------------------------------------------------------- */

static void test_absent_pages_read_as_zeroes(void)
{
	char *buffer = make_buffer(SIZE, NULL);

	start(PAGES, NULL);
	EXPECT_EQ(hp_file_read(file, 0, buffer, SIZE), SIZE);
	EXPECT(is_filled(buffer, SIZE, 0));
	expect_present(0);
	EXPECT_EQ(stats_now().used, 0);
	EXPECT_EQ(stats_now().reserved, 0);
	/* Beside one that is there. */
	EXPECT_EQ(hp_file_write(file, 3 * FRAME + 9, "abc", 3), 3);
	expect_present(1);
	EXPECT_EQ(hp_file_read(file, 2 * FRAME, buffer, 3 * FRAME), 3 * FRAME);
	EXPECT(is_filled(buffer, FRAME + 9, 0) && !memcmp(buffer + FRAME + 9, "abc", 3));
	EXPECT(is_filled(buffer + FRAME + 12, 2 * FRAME - 12, 0));
	expect_present(1);
	end();
	free(buffer);
}

static void test_the_end_of_the_file(void)
{
	char buffer[100];

	start(PAGES, NULL);
	memset(buffer, 1, sizeof(buffer));
	EXPECT_EQ(hp_file_write(file, SIZE - 10, buffer, sizeof(buffer)), 10);
	EXPECT_EQ(file_stat(file).size, SIZE); /* which writing does not move */
	EXPECT_EQ(hp_file_read(file, SIZE - 20, buffer, sizeof(buffer)), 20);
	EXPECT(is_filled(buffer, 10, 0) && is_filled(buffer + 10, 90, 1));
	EXPECT_EQ(hp_file_read(file, SIZE, buffer, sizeof(buffer)), 0);
	EXPECT_EQ(hp_file_write(file, SIZE, buffer, sizeof(buffer)), 0);
	EXPECT_EQ(hp_file_read(file, UINT64_MAX, buffer, sizeof(buffer)), 0);
	EXPECT_EQ(hp_file_write(file, UINT64_MAX - 5, buffer, sizeof(buffer)), 0);
	EXPECT_EQ(hp_file_read(file, 0, buffer, 0), 0);
	EXPECT_EQ(hp_file_write(file, 0, buffer, 0), 0);
	expect_present(1);
	EXPECT_EQ(hp_file_truncate(file, 2 * FRAME, &error), 0);
	EXPECT_EQ(hp_file_write(file, 2 * FRAME - 1, buffer, sizeof(buffer)), 1);
	EXPECT_EQ(hp_file_write(file, 2 * FRAME, buffer, sizeof(buffer)), 0);
	EXPECT_EQ(hp_file_truncate(file, SIZE, &error), 0);
	EXPECT_EQ(hp_file_read(file, SIZE - 20, buffer, 20), 20);
	EXPECT(is_filled(buffer, 20, 0));
	end();
}

static void test_errors(void)
{
	hp_file closed, large;
	char byte = 1, *buffer = make_buffer(3 * FRAME, NULL);

	start(PAGES, NULL);
	closed = make_file(1);
	close_file(closed);
	EXPECT_EQ(hp_file_read(closed, 0, &byte, 1), -EBADF);
	EXPECT_EQ(hp_file_write(closed, 0, &byte, 1), -EBADF);
	EXPECT_EQ(hp_file_read((hp_file){0}, 0, &byte, 1), -EBADF);
	/* The pool is full: what is present can be written, what is not is short, or an error at the first page. */
	EXPECT_OK(hp_file_allocate(file, 0, (PAGES - 1) * FRAME, &error));
	large = make_file(3);
	EXPECT_EQ(hp_file_write(large, 0, buffer, 3 * FRAME), FRAME);
	EXPECT_EQ(hp_file_write(large, FRAME, &byte, 1), -ENOMEM);
	EXPECT_EQ(hp_file_write(large, 5, &byte, 1), 1);
	EXPECT_EQ(hp_file_read(large, FRAME, &byte, 1), 1);
	EXPECT_EQ(byte, 0);
	close_file(large);
	end();
	free(buffer);
}

static void test_any_offset_and_length(void)
{
	uint64_t random = random_seed();
	char *wanted = calloc(PAGES, FRAME), *buffer = make_buffer(SIZE, &random), *found = malloc(SIZE);

	start(PAGES, NULL);
	for (unsigned i = 0; i < 400; i++) {
		uint64_t length = random_below(&random, i % 4 ? 70000 : 2 * FRAME + 5);
		uint64_t at = i % 3 ? random_below(&random, SIZE)
		                    : (1 + random_below(&random, PAGES - 1)) * FRAME - random_below(&random, 50);
		uint64_t copied = length < SIZE - at ? length : SIZE - at;

		if (random_below(&random, 2)) {
			EXPECT_EQ(hp_file_write(file, at, buffer + i, length < SIZE - i ? length : SIZE - i), copied);
			memcpy(wanted + at, buffer + i, copied);
		} else {
			EXPECT_EQ(hp_file_read(file, at, found, length), copied);
			EXPECT(!memcmp(found, wanted + at, copied));
		}
	}
	EXPECT_EQ(hp_file_read(file, 0, found, SIZE), SIZE);
	EXPECT(!memcmp(found, wanted, SIZE));
	end();
	free(wanted);
	free(buffer);
	free(found);
}

/* What is mapped and what is read are the same memory. */
static void test_mapped_files(void)
{
	char *ready, *lazy, buffer[16] = "";

	start(PAGES, "fault_window=1");
	ready = map_part(file, 0, 2, RW, 0);
	lazy = map_part(file, 0, PAGES, RO, LAZY);
	strcpy(ready + FRAME - 3, "across");
	EXPECT_EQ(hp_file_read(file, FRAME - 3, buffer, 7), 7);
	EXPECT(!strcmp(buffer, "across"));
	EXPECT_EQ(hp_file_write(file, 4 * FRAME - 2, "lazy", 5), 5);
	EXPECT(!strcmp(lazy + 4 * FRAME - 2, "lazy"));
	expect_present(4);
	unmap(ready, 2);
	unmap(lazy, PAGES);
	end();
}

/* A hole reads as zeroes, or as what was stored since; a write to one is kept. */
static void test_holes(void)
{
	char *address, byte = 1;

	start(PAGES, NULL);
	address = map(file, PAGES, 0);
	for (uint64_t i = 0; i < PAGES; i++)
		write_tag(address + i * FRAME, i);
	EXPECT_OK(hp_file_punch(file, 0, SIZE, 0, &error));
	address[FRAME] = 7;
	EXPECT_EQ(hp_file_read(file, 0, &byte, 1), 1);
	EXPECT_EQ(byte, 0);
	EXPECT_EQ(hp_file_read(file, FRAME, &byte, 1), 1);
	EXPECT_EQ(byte, 7);
	EXPECT_EQ(hp_file_write(file, 2 * FRAME, &byte, 1), 1);
	EXPECT_EQ(address[2 * FRAME], 7);
	EXPECT_EQ(file_stat(file).present, 3 * FRAME);
	EXPECT_EQ(file_stat(file).holes, 3 * FRAME);
	unmap(address, PAGES);
	end();
}

/* ---- lazy buffers ----------------------------------------------------------------------------------------------- */

/* The user's side is lazy memory that nobody has touched: of another file, and of the same. */
static void test_lazy_buffers(void)
{
	static const char *const schemes[] = {"file_lock=biased", "file_lock=invalidate", "file_lock=vma",
	                                      "file_lock=rwsem"};

	for (unsigned i = 0; i < 4; i++) {
		hp_file other;
		char *lazy, *same;

		start(3 * PAGES, schemes[i]);
		other = make_file(PAGES);
		lazy = map(other, PAGES, LAZY);
		same = map(file, PAGES, LAZY);
		EXPECT_EQ(hp_file_read(file, 100, lazy + 5, 2 * FRAME), 2 * FRAME); /* of zeroes, into absent pages */
		EXPECT_EQ(file_stat(other).present >= 3 * FRAME, 1);
		expect_present(0);
		strcpy(lazy + 3 * FRAME - 2, "text");
		EXPECT_EQ(hp_file_write(file, 7, lazy + 2 * FRAME, FRAME + 100), FRAME + 100);
		EXPECT(!strcmp(same + FRAME - 2 + 7, "text"));
		/* Into itself: page 0 and 1 to 3 and 4, then absent pages of itself. */
		EXPECT_EQ(hp_file_read(file, 0, same + 3 * FRAME, 2 * FRAME), 2 * FRAME);
		EXPECT(!strcmp(same + 4 * FRAME - 2 + 7, "text"));
		EXPECT_EQ(hp_file_write(file, 0, same + 5 * FRAME, FRAME), FRAME);
		EXPECT(is_zero(same));
		unmap(lazy, PAGES);
		unmap(same, PAGES);
		close_file(other);
		check_pool();
		end();
	}
}

/* ---- against truncate and punch --------------------------------------------------------------------------------- */

#define WRITERS 3

struct storm {
	_Atomic int stop;
	uint64_t seed;
	_Atomic uint64_t copied;
};

static struct storm storm;

/* Whole words, all of one writer: reading finds its words or zeroes, never more than was asked for. */
static void *copy_some(void *context)
{
	uint64_t id = (uintptr_t)context, random = storm.seed + id;
	uint64_t *words = malloc(3 * FRAME);

	while (!atomic_load(&storm.stop)) {
		uint64_t at = random_below(&random, SIZE / 8) * 8, length = random_below(&random, FRAME / 4) * 8;
		int64_t done;

		if (random_below(&random, 2)) {
			for (uint64_t i = 0; i < length / 8; i++)
				words[i] = id + 1;
			done = hp_file_write(file, at, words, length);
		} else {
			memset(words, 0xff, length);
			done = hp_file_read(file, at, words, length);
			for (int64_t i = 0; i < done / 8; i++)
				EXPECT(words[i] <= WRITERS);
			for (uint64_t i = done / 8; i < length / 8; i++)
				EXPECT_EQ(words[i], UINT64_MAX);
		}
		EXPECT(done >= 0 && done <= (int64_t)length && done % 8 == 0);
		atomic_fetch_add(&storm.copied, done > 0);
	}
	free(words);
	return NULL;
}

static void cut_and_punch(uint64_t random)
{
	uint64_t at = random_below(&random, SIZE / 8) * 8, length = 8 + random_below(&random, (SIZE - at) / 8) * 8;

	switch (random_below(&random, 3)) {
	case 0:
		EXPECT_OK(hp_file_truncate(file, random_below(&random, PAGES + 1) * FRAME, &error));
		break;
	case 1:
		EXPECT_OK(hp_file_truncate(file, SIZE, &error));
		break;
	default:
		EXPECT_OK(hp_file_punch(file, at, length, random_below(&random, 2) ? HP_PUNCH_KEEP : 0, &error));
	}
}

static void run_storm(const char *tuning, bool mapped)
{
	pthread_t thread[WRITERS];
	uint64_t random = storm.seed = random_seed();
	double until = seconds() + 0.5;
	char *address = NULL;

	start(PAGES, tuning);
	atomic_store(&storm.stop, 0);
	atomic_store(&storm.copied, 0);
	if (mapped)
		address = map(file, PAGES, LAZY);
	for (uint64_t i = 0; i < WRITERS; i++)
		thread[i] = start_thread(copy_some, (void *)(uintptr_t)i);
	while (seconds() < until)
		cut_and_punch(random_next(&random));
	atomic_store(&storm.stop, 1);
	for (unsigned i = 0; i < WRITERS; i++)
		join_thread(thread[i]);
	EXPECT(atomic_load(&storm.copied) > 10);
	check_pool();
	if (address)
		unmap(address, PAGES);
	EXPECT_OK(hp_file_truncate(file, 0, &error));
	EXPECT_EQ(stats_now().used, 0);
	end();
}

static void test_against_truncate_and_punch(void)
{
	run_storm("file_lock=biased", false);
	run_storm("file_lock=invalidate", true);
	run_storm("file_lock=vma", true);
	run_storm("file_lock=rwsem", false);
	run_storm("file_lock=biased", true);
}

/* Who zeroes a part of a page that another thread takes away meanwhile needs no memory for it. */
static void test_clearing_what_is_gone(void)
{
	struct hp_thread *t;
	struct hp_file_use use;
	uint64_t word = 7;

	make_pool(1, NULL);
	file = make_file(2);
	EXPECT_EQ(hp_file_write(file, 0, &word, sizeof(word)), sizeof(word));
	EXPECT_EQ(hp_thread_enter(hp_pool_find(pool.id), &t), 0);
	use = (struct hp_file_use){hp_file_at(t->pool, file.id >> 8 & 0xffffff), file.id >> 8 & 0xffffff};
	EXPECT_EQ(hp_file_clear(t, use, FRAME + 100, 50, false), 0);
	EXPECT_EQ(file_stat(file).present, FRAME);
	EXPECT_EQ(hp_file_clear(t, use, 0, 4, false), 0);
	EXPECT_EQ(hp_file_clear(t, use, 2 * FRAME, 4, false), -ENXIO);
	EXPECT_EQ(hp_file_read(file, 0, &word, sizeof(word)), sizeof(word));
	EXPECT_EQ(word, 0);
	close_file(file);
	end_pool();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_clearing_what_is_gone),
		REAL_TEST(test_absent_pages_read_as_zeroes),
		REAL_TEST(test_the_end_of_the_file),
		REAL_TEST(test_errors),
		REAL_TEST(test_any_offset_and_length),
		REAL_TEST(test_mapped_files),
		REAL_TEST(test_holes),
		REAL_TEST(test_lazy_buffers),
		REAL_TEST(test_against_truncate_and_punch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
