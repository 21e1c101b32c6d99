/* SPDX-License-Identifier: MIT */
/*
 * A program whose locks are looked at: makes as many pools as its argument says, says "ready", and does what it is told
 * line by line on standard input, with "done" after each: "truncate" takes the file lock of the last pool for writing
 * once; "contend" makes one thread wait for a fault mutex of it. Ends when its input does.
 */
#include "hugepool.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGES 8

static void must(int result, const char *what)
{
	if (!result)
		return;
	fprintf(stderr, "lockstat_target: %s: %d\n", what, result);
	_exit(1);
}

static void *populate(void *address)
{
	must(hp_populate(address, HP_FRAME_SIZE), "populate");
	return NULL;
}

/* Both want the same page, and who is first sleeps. */
static void contend(char *page)
{
	pthread_t thread[2];

	for (int i = 0; i < 2; i++)
		must(pthread_create(&thread[i], NULL, populate, page), "thread");
	for (int i = 0; i < 2; i++)
		must(pthread_join(thread[i], NULL), "join");
}

int main(int argc, char **argv)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	int pools = argc > 1 ? atoi(argv[1]) : 1;
	hp_pool pool = {0};
	hp_file file;
	void *lazy;
	char line[64];
	int page = 0;

	options.size = PAGES * HP_FRAME_SIZE;
	options.backing = HP_BACKING_BASE;
	options.flags = HP_POOL_BACKGROUND;
	options.workers = HP_WORKERS_NONE;
	options.tuning = "fault_window=1 fault_sleep_us=20000";
	for (int i = 0; i < pools; i++) {
		usleep(20000); /* pools are told apart by their age */
		must(hp_pool_create(&options, &pool, NULL), "pool");
		must(hp_pool_wait(pool, -1, NULL), "wait");
	}
	must(pools ? hp_file_create(pool, PAGES * HP_FRAME_SIZE, 0, &file, NULL) : 0, "file");
	must(pools ? hp_map(file, 0, PAGES * HP_FRAME_SIZE, HP_PROT_READ, HP_MAP_LAZY, &lazy, NULL) : 0, "map");
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "truncate\n"))
			must(hp_file_truncate(file, PAGES * HP_FRAME_SIZE, NULL), "truncate");
		else if (!strcmp(line, "contend\n") && page < PAGES)
			contend((char *)lazy + page++ * HP_FRAME_SIZE);
		else
			must(-1, line);
		puts("done");
		fflush(stdout);
	}
	return 0;
}
