/* SPDX-License-Identifier: MIT */
/*
 * Random lists of operations against the model, and those that once failed.
 *
 *   test_lists [LISTS]     so many random ones, after those in tests/model/corpus and tests/model/crashes
 *   test_lists -r FILE...  runs files, and says what they do
 *
 * HP_TEST_SEED=N begins with that list. One that fails is cut down, printed, and written to a file where HP_TEST_SAVE
 * names a folder.
 */
#include "model/engine.h"
#include "support/random.h"

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LISTS = 2000, OPS_MAX = 100, BATCH = 250, SECONDS_MAX = 20, SHRINK_SECONDS = 20, FILE_MAX = 1 << 16 };

struct list {
	size_t size;
	uint8_t data[FILE_MAX];
};

static _Atomic uint64_t *at; /* the list that is being run, shared with children */

static void make_list(uint64_t seed, struct list *list)
{
	list->size = ENGINE_HEADER + ENGINE_OP * (1 + random_below(&seed, OPS_MAX));
	for (size_t i = 0; i < list->size; i++)
		list->data[i] = (uint8_t)random_next(&seed);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A child that goes on with the same list for so long hangs. It may have all signals blocked. */
static bool passed(pid_t child, double limit)
{
	uint64_t list = atomic_load(at);
	double since = seconds();
	int status = 0;
	pid_t done;

	while ((done = waitpid(child, &status, WNOHANG)) == 0) {
		nanosleep(&(struct timespec){.tv_nsec = 300000}, NULL);
		if (list != atomic_load(at)) {
			list = atomic_load(at);
			since = seconds();
		}
		if (seconds() - since > limit) {
			fprintf(stderr, "it hangs\n");
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
			return false;
		}
	}
	if (done != child) {
		perror("a child");
		exit(2);
	}
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

enum noise { SILENT, FAILURES, EVERYTHING };

/* In a process of its own. */
static bool list_passes(const struct list *list, enum noise noise)
{
	pid_t child = fork();

	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (noise == SILENT && !freopen("/dev/null", "w", stderr))
			_exit(2);
		engine_run(list->data, list->size, noise == EVERYTHING);
		exit(0);
	}
	return passed(child, noise == SILENT ? SECONDS_MAX / 20.0 : SECONDS_MAX);
}

/* Leaves out what is not needed to fail: smaller and smaller pieces. */
static void shrink(struct list *list)
{
	static struct list shorter;
	time_t end = time(NULL) + SHRINK_SECONDS;
	size_t ops = (list->size - ENGINE_HEADER + ENGINE_OP - 1) / ENGINE_OP;

	for (size_t piece = (ops + 1) / 2; piece; piece /= 2)
		for (size_t from = ENGINE_HEADER; from < list->size && time(NULL) < end;) {
			size_t cut = piece * ENGINE_OP < list->size - from ? piece * ENGINE_OP : list->size - from;

			memcpy(shorter.data, list->data, from);
			memcpy(shorter.data + from, list->data + from + cut, list->size - from - cut);
			shorter.size = list->size - cut;
			if (list_passes(&shorter, SILENT))
				from += cut;
			else
				*list = shorter;
		}
}

static void save(const struct list *list, const char *name)
{
	const char *folder = getenv("HP_TEST_SAVE");
	char path[4096];
	FILE *file;

	if (!folder)
		return;
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "w");
	if (!file || fwrite(list->data, 1, list->size, file) != list->size || fclose(file))
		perror(path);
}

static void report(struct list *list, const char *name)
{
	shrink(list);
	fprintf(stderr, "%s fails, and so does this part of it:", name);
	for (size_t i = 0; i < list->size; i++)
		fprintf(stderr, "%s%02x", i >= ENGINE_HEADER && (i - ENGINE_HEADER) % ENGINE_OP == 0 ? " " : "",
		        list->data[i]);
	fprintf(stderr, "\n");
	list_passes(list, EVERYTHING);
	save(list, name);
}

/* ---- random lists ----------------------------------------------------------------------------------------------- */

/* Lists [seed, end) in one process; `at` says where it is. */
static bool batch_passes(uint64_t seed, uint64_t end)
{
	static struct list list;
	pid_t child = fork();

	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (; seed < end; seed++) {
			atomic_store(at, seed);
			make_list(seed, &list);
			engine_run(list.data, list.size, false);
		}
		exit(0);
	}
	return passed(child, SECONDS_MAX);
}

static unsigned run_random(uint64_t lists)
{
	static struct list list;
	uint64_t seed = random_seed(), end = seed + lists;
	unsigned failed = 0;

	while (seed < end && failed < 5) {
		uint64_t stop = end - seed < BATCH ? end : seed + BATCH;
		char name[64];

		if (batch_passes(seed, stop)) {
			seed = stop;
			continue;
		}
		seed = atomic_load(at);
		snprintf(name, sizeof(name), "list-%lu", (unsigned long)seed);
		make_list(seed++, &list);
		report(&list, name);
		failed++;
	}
	return failed;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static bool read_list(const char *path, struct list *list)
{
	FILE *file = fopen(path, "r");

	if (!file) {
		perror(path);
		return false;
	}
	list->size = fread(list->data, 1, sizeof(list->data), file);
	fclose(file);
	return true;
}

static unsigned run_folder(const char *folder, unsigned *count)
{
	static struct list list;
	DIR *dir = opendir(folder);
	struct dirent *entry;
	unsigned failed = 0;

	while (dir && (entry = readdir(dir))) {
		char path[4096];

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		if (!read_list(path, &list))
			return 1;
		++*count;
		if (!list_passes(&list, FAILURES)) {
			fprintf(stderr, "%s fails: see it with test_lists -r\n", path);
			failed++;
		}
	}
	if (dir)
		closedir(dir);
	return failed;
}

static int run_files(char **paths)
{
	static struct list list;
	int failed = 0;

	for (; *paths; paths++)
		failed |= !read_list(*paths, &list) || !list_passes(&list, EVERYTHING);
	return failed;
}

int main(int argc, char **argv)
{
	uint64_t lists = argc > 1 ? strtoull(argv[1], NULL, 0) : LISTS;
	unsigned failed, files = 0;
	double start = seconds();

	at = mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return 2;
	if (argc > 2 && !strcmp(argv[1], "-r"))
		return run_files(argv + 2);
	failed = run_folder(MODEL_FOLDER "/corpus", &files);
	failed += run_folder(MODEL_FOLDER "/crashes", &files);
	failed += run_random(lists);
	printf("%u lists of files and %lu random ones, %.1f s: %u fail\n", files, (unsigned long)lists,
	       seconds() - start, failed);
	return failed != 0;
}
