/* SPDX-License-Identifier: MIT */
#include "crew.h"

#include "memory.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

struct crew {
	pthread_barrier_t ready;
	bench_share_fn *work;
	void *context;
	unsigned threads;
};

struct member {
	struct crew *crew;
	unsigned index;
	uint64_t offset, length;
	pthread_t thread;

	int rc;
	uint64_t start_ns, end_ns;
};

static void *run_member(void *arg)
{
	struct member *member = arg;
	struct crew *crew = member->crew;

	bench_pin(member->index, crew->threads);
	pthread_barrier_wait(&crew->ready);
	member->start_ns = bench_now_ns();
	member->rc = member->length ? crew->work(crew->context, member->offset, member->length) : 0;
	member->end_ns = bench_now_ns();
	return NULL;
}

/* When all are done. */
static int sum_up(const struct member *member, unsigned threads, double *elapsed_ns)
{
	uint64_t start = member[0].start_ns, end = 0;
	int rc = 0;

	for (unsigned t = 0; t < threads; t++) {
		start = member[t].start_ns < start ? member[t].start_ns : start;
		end = member[t].end_ns > end ? member[t].end_ns : end;
		rc = rc ? rc : member[t].rc;
	}
	*elapsed_ns = (double)(end - start);
	return rc;
}

int bench_crew(unsigned threads, uint64_t size, bench_share_fn *work, void *context, double *elapsed_ns)
{
	struct crew crew = {.work = work, .context = context, .threads = threads};
	struct member *member = calloc(threads, sizeof(*member));
	uint64_t frames = size / BENCH_FRAME;
	cpu_set_t own_cpus;
	int rc;

	pthread_barrier_init(&crew.ready, NULL, threads);
	sched_getaffinity(0, sizeof(own_cpus), &own_cpus);
	for (unsigned t = 0; t < threads; t++) {
		uint64_t from = frames * t / threads, to = frames * (t + 1) / threads;

		member[t] = (struct member){
			.crew = &crew, .index = t, .offset = from * BENCH_FRAME, .length = (to - from) * BENCH_FRAME};
		if (t && pthread_create(&member[t].thread, NULL, run_member, &member[t])) {
			fprintf(stderr, "hugepool bench: cannot start %u threads\n", threads);
			_Exit(1);
		}
	}
	run_member(&member[0]);
	sched_setaffinity(0, sizeof(own_cpus), &own_cpus);
	for (unsigned t = 1; t < threads; t++)
		pthread_join(member[t].thread, NULL);
	pthread_barrier_destroy(&crew.ready);
	rc = sum_up(member, threads, elapsed_ns);
	free(member);
	return rc;
}
