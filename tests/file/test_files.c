/* SPDX-License-Identifier: MIT */
/* Names of files, and their figures. */
#include "real.h"

#define PAGES 4
#define OPENS_MAX 32767

static _Atomic int *step; /* shared by the processes of a test */

static void start(uint64_t frames)
{
	step = make_shared(4096);
	make_pool(frames, NULL);
}

static void end(void)
{
	end_pool();
	munmap(step, 4096);
}

static int open_as(const char *name, unsigned flags, uint64_t pages, hp_tenant tenant, hp_file *file)
{
	hp_file_options options = HP_FILE_OPTIONS_INIT;

	options.flags = flags;
	options.size = pages * FRAME;
	options.tenant = tenant;
	return hp_file_open(pool, name, &options, file, &error);
}

static int try_open(const char *name, unsigned flags, hp_file *file)
{
	return open_as(name, flags, PAGES, (hp_tenant){0}, file);
}

static hp_file open_file(const char *name, unsigned flags)
{
	hp_file file;

	EXPECT_OK(try_open(name, flags, &file));
	return file;
}

static void unlink_file(const char *name)
{
	EXPECT_OK(hp_file_unlink(pool, name, &error));
}

static void expect_refused(int result, int code)
{
	EXPECT_EQ(result, code);
	EXPECT_EQ(error.code, code);
	EXPECT(error.message[0]);
	error = (hp_error){.code = 0};
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static void test_create_and_open(void)
{
	hp_file made, again, wrong;
	uint64_t value = 7;

	start(PAGES);
	expect_refused(try_open("a", 0, &wrong), -ENOENT);
	expect_refused(hp_file_open(pool, "a", NULL, &wrong, &error), -ENOENT);
	made = open_file("a", HP_FILE_CREATE | HP_FILE_EXCLUSIVE);
	EXPECT_EQ(file_stat(made).size, PAGES * FRAME);
	EXPECT_EQ(file_stat(made).present, 0);
	expect_refused(try_open("a", HP_FILE_CREATE | HP_FILE_EXCLUSIVE, &wrong), -EEXIST);
	/* One that is there keeps its size. */
	EXPECT_OK(open_as("a", HP_FILE_CREATE, 1, (hp_tenant){0}, &again));
	EXPECT_EQ(file_stat(again).size, PAGES * FRAME);
	EXPECT_EQ(hp_file_write(made, 100, &value, 8), 8);
	close_file(made);
	value = 0;
	EXPECT_EQ(hp_file_read(again, 100, &value, 8), 8);
	EXPECT_EQ(value, 7);
	close_file(again);
	EXPECT_EQ(hp_file_close(again), -EBADF);
	unlink_file("a");
	expect_refused(hp_file_unlink(pool, "a", &error), -ENOENT);
	EXPECT_EQ(stats_now().files, 0);
	EXPECT_EQ(stats_now().used, 0);
	end();
}

/* The name of a file is a reference: contents stay without a handle and a mapping. */
static void test_name_keeps_the_file(void)
{
	hp_file file;
	char *address;

	start(PAGES);
	file = open_file("kept", HP_FILE_CREATE);
	address = map(file, PAGES, 0);
	write_tag(address, 1);
	close_file(file);
	unmap(address, PAGES);
	EXPECT_EQ(stats_now().files, 1);
	EXPECT_EQ(stats_now().used, PAGES);
	check_pool();
	file = open_file("kept", 0);
	address = map(file, PAGES, LAZY);
	EXPECT(has_tag(address, 1));
	close_file(file);
	unmap(address, PAGES);
	unlink_file("kept");
	end();
}

static void test_unlinked_while_open_and_mapped(void)
{
	hp_file file, other;
	char *address;

	start(2 * PAGES);
	file = open_file("gone", HP_FILE_CREATE);
	address = map(file, PAGES, LAZY);
	write_tag(address, 1);
	unlink_file("gone");
	expect_refused(try_open("gone", 0, &other), -ENOENT);
	other = open_file("gone", HP_FILE_CREATE | HP_FILE_EXCLUSIVE);
	EXPECT_EQ(file_stat(other).present, 0);
	write_tag(address + FRAME, 2);
	close_file(file);
	EXPECT(has_tag(address, 1) && has_tag(address + FRAME, 2));
	write_tag(address + 2 * FRAME, 3);
	EXPECT_EQ(stats_now().files, 2);
	unmap(address, PAGES);
	EXPECT_EQ(stats_now().files, 1);
	EXPECT_EQ(stats_now().used, 0);
	unlink_file("gone");
	close_file(other);
	end();
}

static void test_names_that_are_refused(void)
{
	hp_file_options options = HP_FILE_OPTIONS_INIT;
	char name[300];
	hp_file file;

	start(PAGES);
	memset(name, 'x', sizeof(name));
	name[256] = 0;
	expect_refused(try_open(name, HP_FILE_CREATE, &file), -ENAMETOOLONG);
	expect_refused(hp_file_unlink(pool, name, &error), -ENAMETOOLONG);
	name[255] = 0;
	file = open_file(name, HP_FILE_CREATE);
	close_file(file);
	name[254] = 'y';
	expect_refused(try_open(name, 0, &file), -ENOENT);
	name[254] = 'x';
	close_file(open_file(name, 0));
	unlink_file(name);
	expect_refused(try_open("", HP_FILE_CREATE, &file), -EINVAL);
	expect_refused(hp_file_unlink(pool, "", &error), -EINVAL);
	expect_refused(hp_file_unlink(pool, NULL, &error), -EINVAL);
	expect_refused(try_open("a", 16, &file), -EINVAL);
	expect_refused(try_open("a", HP_FILE_FALLBACK | HP_FILE_MOVABLE, &file), -ENOENT); /* of a new file */
	expect_refused(try_open(NULL, 0, &file), -EINVAL);
	expect_refused(hp_file_open(pool, NULL, NULL, &file, &error), -EINVAL);
	expect_refused(open_as("a", HP_FILE_CREATE, 0, (hp_tenant){0}, &file), -EINVAL);
	expect_refused(open_as("a", HP_FILE_CREATE, UINT64_C(1) << 40, (hp_tenant){0}, &file), -EFBIG);
	expect_refused(open_as("a", HP_FILE_CREATE, 1, (hp_tenant){12345}, &file), -EBADF);
	options.struct_size = 4;
	expect_refused(hp_file_open(pool, "a", &options, &file, &error), -EINVAL);
	EXPECT_EQ(hp_file_open((hp_pool){0}, "a", NULL, &file, NULL), -EBADF);
	EXPECT_EQ(hp_file_unlink((hp_pool){0}, "a", NULL), -EBADF);
	EXPECT_EQ(stats_now().files, 0);
	/* Without a name: one of its own each time. */
	EXPECT_OK(try_open(NULL, HP_FILE_CREATE, &file));
	close_file(file);
	end();
}

static void test_many_names(void)
{
	char name[32];
	hp_file file;

	start(PAGES);
	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "number %d", i);
		close_file(open_file(name, HP_FILE_CREATE | HP_FILE_EXCLUSIVE));
	}
	EXPECT_EQ(stats_now().files, 1000);
	for (int i = 999; i >= 0; i -= 2) {
		snprintf(name, sizeof(name), "number %d", i);
		unlink_file(name);
	}
	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "number %d", i);
		EXPECT_EQ(try_open(name, 0, &file), i % 2 ? -ENOENT : 0);
		if (i % 2)
			continue;
		close_file(file);
		unlink_file(name);
	}
	EXPECT_EQ(stats_now().files, 0);
	end();
}

static void test_handles_are_counted(void)
{
	hp_file file, more;

	start(PAGES);
	file = open_file("a", HP_FILE_CREATE);
	for (int i = 1; i < OPENS_MAX; i++)
		EXPECT_EQ(try_open("a", 0, &more), 0);
	expect_refused(try_open("a", 0, &more), -EMFILE);
	expect_refused(try_open("a", HP_FILE_CREATE, &more), -EMFILE);
	close_file(file);
	EXPECT_OK(try_open("a", 0, &more));
	unlink_file("a");
	for (int i = 0; i < OPENS_MAX; i++) {
		EXPECT_EQ(stats_now().files, 1);
		close_file(file);
	}
	EXPECT_EQ(hp_file_close(file), -EBADF);
	EXPECT_EQ(stats_now().files, 0);
	end();
}

#define CREATORS 4

static void *create_same(void *context)
{
	hp_file *file = context;

	EXPECT_OK(try_open("same", HP_FILE_CREATE, file));
	return NULL;
}

static void *create_exclusive(void *context)
{
	int result = try_open("same", HP_FILE_CREATE | HP_FILE_EXCLUSIVE, context);

	EXPECT(!result || result == -EEXIST);
	if (result)
		*(hp_file *)context = (hp_file){0};
	return NULL;
}

static void test_two_threads_make_one_file(void)
{
	start(PAGES);
	for (int round = 0; round < 200; round++) {
		pthread_t thread[CREATORS];
		hp_file file[CREATORS];
		unsigned made = 0;

		for (int i = 0; i < CREATORS; i++)
			thread[i] = start_thread(round % 2 ? create_same : create_exclusive, &file[i]);
		for (int i = 0; i < CREATORS; i++)
			join_thread(thread[i]);
		EXPECT_EQ(stats_now().files, 1);
		for (int i = 0; i < CREATORS; i++) {
			made += file[i].id != 0;
			if (round % 2)
				EXPECT_EQ(file[i].id, file[0].id);
			if (file[i].id)
				close_file(file[i]);
		}
		EXPECT_EQ(made, round % 2 ? CREATORS : 1);
		unlink_file("same");
	}
	end();
}

/* ---- names and processes ---------------------------------------------------------------------------------------- */

static void use_names(void *unused)
{
	hp_file file = open_file("parent's", 0), own;
	char *address = map(file, PAGES, LAZY);

	EXPECT(has_tag(address, 1));
	write_tag(address + FRAME, 2);
	own = open_file("child's", HP_FILE_CREATE | HP_FILE_EXCLUSIVE);
	address = map_part(own, 0, 1, RW, 0);
	write_tag(address, 3);
	REACH(step, 1);
	await(step, 2);
	expect_refused(hp_file_unlink(pool, "parent's", &error), -ENOENT);
	/* Without closing anything. */
}

static void test_two_processes(void)
{
	hp_file file, childs;
	char *address;
	pid_t pid;

	start(2 * PAGES);
	file = open_file("parent's", HP_FILE_CREATE);
	address = map(file, PAGES, 0);
	write_tag(address, 1);
	pid = start_child(use_names, NULL);
	await(step, 1);
	EXPECT(has_tag(address + FRAME, 2));
	unlink_file("parent's");
	childs = open_file("child's", 0);
	REACH(step, 2);
	join_child(pid);
	unmap(address, PAGES);
	close_file(file);
	address = map(childs, 1, LAZY);
	EXPECT(has_tag(address, 3));
	unmap(address, 1);
	close_file(childs);
	check_pool(); /* what the dead have left */
	EXPECT_EQ(stats_now().files, 1);
	unlink_file("child's");
	end();
}

static hp_file inherited;

static void close_inherited(void *unused)
{
	hp_file more;

	close_file(inherited);
	close_file(inherited);
	EXPECT_EQ(hp_file_close(inherited), -EBADF);
	EXPECT_OK(try_open("a", 0, &more));
	close_file(more);
	unlink_file("a");
	EXPECT_EQ(stats_now().files, 1);
}

/* The child has as many handles as its parent had, and takes nothing from those. */
static void test_handles_and_fork(void)
{
	start(PAGES);
	inherited = open_file("a", HP_FILE_CREATE);
	EXPECT_OK(try_open("a", 0, &inherited));
	run_child(close_inherited, NULL);
	expect_refused(try_open("a", 0, &inherited), -ENOENT);
	EXPECT_EQ(file_stat(inherited).present, 0);
	close_file(inherited);
	close_file(inherited);
	end();
}

/* ---- stat ------------------------------------------------------------------------------------------------------- */

static void test_stat(void)
{
	hp_file_stat small = {.struct_size = 4};
	hp_file file;
	char *lazy, *ready;

	start(8);
	EXPECT_OK(hp_file_create(pool, 3 * FRAME + 1, 0, &file, &error));
	EXPECT_EQ(file_stat(file).size, 4 * FRAME);
	EXPECT_EQ(hp_file_stat_get(file, &small), -EINVAL);
	EXPECT_EQ(hp_file_stat_get((hp_file){0}, &small), -EBADF);
	lazy = map(file, 4, LAZY);
	ready = map_part(file, 1, 1, RO, 0);
	EXPECT_EQ(file_stat(file).mappings, 2);
	EXPECT_EQ(file_stat(file).present, FRAME);
	EXPECT_EQ(file_stat(file).reserved, 3 * FRAME);
	EXPECT_EQ(file_stat(file).holes, 0);
	EXPECT_OK(hp_file_punch(file, 0, 4 * FRAME, 0, &error));
	EXPECT_EQ(file_stat(file).present, 0);
	EXPECT_EQ(file_stat(file).reserved, 3 * FRAME);
	EXPECT_EQ(file_stat(file).holes, FRAME);
	EXPECT_EQ(stats_now().holes, 1);
	unmap(lazy, 4);
	unmap(ready, 1);
	EXPECT_EQ(file_stat(file).mappings, 0);
	close_file(file);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_create_and_open),
		REAL_TEST(test_name_keeps_the_file),
		REAL_TEST(test_unlinked_while_open_and_mapped),
		REAL_TEST(test_names_that_are_refused),
		REAL_TEST(test_many_names),
		REAL_TEST(test_handles_are_counted),
		REAL_TEST(test_two_threads_make_one_file),
		REAL_TEST(test_two_processes),
		REAL_TEST(test_handles_and_fork),
		REAL_TEST(test_stat),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
