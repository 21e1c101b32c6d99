/* SPDX-License-Identifier: MIT */
/*
 * Runs series of rounds, each series in a process of its own, one round at a time, in turn.
 *
 * A series is one engine in one variant. Its process is forked at the start, opens the series' job, does a round
 * whenever it is told to, and sleeps in between. In each round of the run every series has its turn; who begins moves
 * on by one each time, so that no series always follows the same other one. The first round warms up and is thrown
 * away.
 */
#ifndef BENCH_HARNESS_H
#define BENCH_HARNESS_H

#include "bench.h"
#include "hugepages.h"
#include "stat.h"

#include <sys/types.h>

#define BENCH_METRICS_MAX 12
#define BENCH_NOTE 256
#define BENCH_TAGS_MAX 3
#define BENCH_SERIES_MAX 12
#define BENCH_REASONS_MAX 8
#define BENCH_ROUNDS 5

struct bench_metric {
	const char *name;
	const char *unit; /* "1/s", "s", "us", "ns", "B/s", "B"; "1": a number of things */
	int more_is_better;
	bool ratio;        /* the ratio between engines says something */
	const char *phase; /* not NULL: of another phase than the measured one; becomes part of the rows' variant */
};

/* What one round gave: crosses from the series' process to the bench. */
struct bench_sample {
	bool counts; /* false: discard this round, because `why` */
	char why[BENCH_WHY];
	double value[BENCH_METRICS_MAX]; /* in the order of the run's metrics; NaN for none */
};

/* What a series does, in its own process. */
struct bench_job {
	/* Returns NULL and says why when no round will be possible; `note` may tell what the series runs on. */
	void *(*open)(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE]);
	void (*round)(void *state, bool warm_up, struct bench_sample *sample);
	/* False, with a reason, when something is found broken at the end. */
	bool (*close)(void *state, char why[BENCH_WHY]);
};

struct bench_tag {
	const char *key, *value;
};

struct bench_reason {
	char text[BENCH_WHY];
	unsigned count;
};

struct bench_series {
	const char *engine;
	struct bench_tag variant[BENCH_TAGS_MAX]; /* ends with a NULL key; all NULL: what the command line asks for */
	const struct bench_job *job;
	const void *params;
	unsigned rounds; /* that count; 0: as many as the run has, after one to warm up; else without one */

	/* filled by bench_measure() */
	char note[BENCH_NOTE];
	char why_not[BENCH_WHY]; /* it could not be opened, or its process died */
	struct bench_stat stat[BENCH_METRICS_MAX];
	unsigned counted, round[BENCH_SAMPLES_MAX]; /* the numbers of the rounds that count */
	struct bench_reason reason[BENCH_REASONS_MAX];
	unsigned reasons, discarded;
	pid_t pid;
	int socket;
};

struct bench_run {
	const char *bench;
	char title[160];
	const struct bench_metric *metric;
	unsigned metrics;
	struct bench_series series[BENCH_SERIES_MAX];
	unsigned series_count;
	unsigned rounds;
	uint64_t huge_bytes; /* the most huge memory that all series have at the same time */
};

struct bench_series *bench_run_add(struct bench_run *run, const char *engine, const struct bench_job *job,
                                   const void *params);
/* Names the series' variant: up to BENCH_TAGS_MAX times. */
void bench_series_tag(struct bench_series *series, const char *key, const char *value);
bool bench_series_is_default(const struct bench_series *series);

/*
 * Does the runs, one after the other, with huge pages for the largest. On SIGINT, SIGTERM and SIGHUP it ends all
 * processes, puts the huge pages back, and lets the signal end this process. Returns 0, or a negative errno after a
 * message.
 */
int bench_measure(struct bench_run *const *runs, unsigned count, struct bench_pages *pages);

/* The status with which the command ends: BENCH_NOTHING unless hugepool has a round that counts in each run. */
int bench_status(struct bench_run *const *runs, unsigned count);

/* True once a signal asked to stop. Between waits only: the signals are blocked outside of them. */
bool bench_interrupted(void);
void bench_sleep_ms(unsigned ms);

/* A line on standard error that replaces the one before, only where someone looks on. NULL wipes it. */
void bench_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
