/* SPDX-License-Identifier: MIT */
/*
 * The time inside the kernel's own collapse function, without the system call around it, from its trace events:
 *
 *   anonymous memory   collapse_huge_page(): it begins with giving up the mmap lock for reading
 *                      (mmap_lock:mmap_lock_released), and ends with huge_memory:mm_collapse_huge_page
 *   shared memory      hpage_collapse_scan_file(), which is called with that lock just given up, and ends with
 *                      huge_memory:mm_khugepaged_scan_file
 *
 * All of it is set in an instance of the tracing system that is the series' own, for its process alone, so that nobody
 * else's settings are touched; a process of its own, the keeper, takes that away when the series ends in whatever way.
 * If tracefs is not mounted, it is for the series' process only.
 */
#include "collapse.h"

#include "hugepool.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRACING "/sys/kernel/tracing"
#define MARK "hugepool_collapse"
#define DESCRIPTORS 1024 /* a series has fewer */

struct tracer {
	struct collapse_state *series;
	char folder[64]; /* of the instance; empty: there is none */
	int hold;        /* as long as this pipe is open, the keeper waits */
	pid_t keeper;
};

static const char *end_event(const struct tracer *tracer)
{
	return tracer->series->params->shared ? "mm_khugepaged_scan_file" : "mm_collapse_huge_page";
}

/* ---- The instance ----------------------------------------------------------------------------------------------- */

static bool write_to(struct tracer *tracer, const char *file, const char *text)
{
	char path[192];
	bool done;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", tracer->folder, file);
	fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
	done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (!done)
		collapse_failed(tracer->series, -errno, path, NULL);
	if (fd >= 0)
		close(fd);
	return done;
}

/* In this process only, and gone with it. */
static bool mount_tracing(struct tracer *tracer)
{
	if (!access(TRACING "/instances", X_OK))
		return true;
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("tracefs", TRACING, "tracefs", 0, NULL))
		return collapse_failed(tracer->series, -errno, "no tracing: tracefs", NULL);
	return true;
}

/* The files of the instance are open for a moment longer than their process lives. */
static void remove_instance(const struct tracer *tracer)
{
	for (int i = 0; i < 500 && rmdir(tracer->folder) && errno != ENOENT; i++)
		usleep(10000);
}

static _Noreturn void keep(const struct tracer *tracer, int pipe_fd)
{
	char byte;

	setsid();
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	for (int fd = 0; fd < DESCRIPTORS; fd++)
		if (fd != pipe_fd)
			close(fd);
	while (read(pipe_fd, &byte, 1) < 0 && errno == EINTR)
		;
	remove_instance(tracer);
	_exit(0);
}

static bool start_keeper(struct tracer *tracer)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return collapse_failed(tracer->series, -errno, "pipe", NULL);
	tracer->keeper = fork();
	if (!tracer->keeper) {
		close(ends[1]);
		keep(tracer, ends[0]);
	}
	close(ends[0]);
	tracer->hold = ends[1];
	return tracer->keeper > 0 ? true : collapse_failed(tracer->series, -errno, "fork", NULL);
}

static void end_tracing(struct tracer *tracer)
{
	if (tracer->series->mark >= 0)
		close(tracer->series->mark);
	tracer->series->mark = -1;
	if (tracer->hold >= 0)
		close(tracer->hold);
	tracer->hold = -1;
	if (tracer->keeper > 0)
		while (waitpid(tracer->keeper, NULL, 0) < 0 && errno == EINTR)
			;
	tracer->keeper = 0;
}

static bool start_tracing(struct tracer *tracer)
{
	char text[96];

	if (!mount_tracing(tracer))
		return false;
	snprintf(tracer->folder, sizeof(tracer->folder), TRACING "/instances/hugepool-%d", getpid());
	if (!start_keeper(tracer))
		return false;
	if (mkdir(tracer->folder, 0700))
		return collapse_failed(tracer->series, -errno, "no tracing", NULL);
	snprintf(text, sizeof(text), "%d", getpid());
	if (!write_to(tracer, "set_event_pid", text))
		return false;
	snprintf(text, sizeof(text), "events/huge_memory/%s/enable", end_event(tracer));
	if (!write_to(tracer, "events/mmap_lock/mmap_lock_released/enable", "1") || !write_to(tracer, text, "1"))
		return false;
	snprintf(text, sizeof(text), "%s/trace_marker", tracer->folder);
	tracer->series->mark = open(text, O_WRONLY | O_CLOEXEC);
	return tracer->series->mark >= 0 ? true : collapse_failed(tracer->series, -errno, text, NULL);
}

/* ---- What was traced -------------------------------------------------------------------------------------------- */

/* Whether a line is of this event: "bench-12 [000] ..... 14446.023592: mm_collapse_huge_page: mm=..."; *us: when. */
static bool is_event(const char *line, const char *event, double *us)
{
	char word[64];
	const char *at;

	snprintf(word, sizeof(word), ": %s: ", event);
	at = strstr(line, word);
	if (!at)
		return false;
	while (at > line && at[-1] != ' ')
		at--;
	*us = 1e6 * strtod(at, NULL);
	return true;
}

/* The mean of those collapses that are not to warm up. */
static bool read_trace(struct tracer *tracer, double *mean)
{
	unsigned marks = 0, count = 0;
	double start = NAN, at, sum = 0;
	bool begins = false;
	char path[96], line[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/trace", tracer->folder);
	f = fopen(path, "re");
	if (!f)
		return collapse_failed(tracer->series, -errno, path, NULL);
	while (fgets(line, sizeof(line), f)) {
		if (is_event(line, "tracing_mark_write", &at)) {
			begins = strstr(line, MARK) && ++marks > COLLAPSE_WARM_UP;
			start = NAN;
		} else if (begins && is_event(line, "mmap_lock_released", &at)) {
			start = at;
			begins = false;
		} else if (!isnan(start) && is_event(line, end_event(tracer), &at)) {
			sum += at - start;
			count++;
			start = NAN;
		}
	}
	fclose(f);
	if (count != tracer->series->params->count) {
		snprintf(tracer->series->why, BENCH_WHY, "the trace has %u collapses of %u", count,
		         tracer->series->params->count);
		return false;
	}
	*mean = sum / count;
	return true;
}

/* ---- A series --------------------------------------------------------------------------------------------------- */

static void *open_series(const void *params, char why[BENCH_WHY], char note[BENCH_NOTE])
{
	struct tracer *tracer = calloc(1, sizeof(*tracer));

	if (!tracer)
		return NULL;
	tracer->hold = -1;
	tracer->series = collapse_kernel_job.open(params, why, note);
	if (!tracer->series)
		return NULL;
	if (start_tracing(tracer))
		return tracer;
	end_tracing(tracer);
	return NULL;
}

static void do_round(void *arg, bool warm_up, struct bench_sample *sample)
{
	struct tracer *tracer = arg;

	/* The file's truncation empties the buffer. */
	tracer->series->why = sample->why;
	sample->counts = write_to(tracer, "trace", "\n");
	if (!sample->counts)
		return;
	collapse_kernel_job.round(tracer->series, warm_up, sample);
	sample->value[COLLAPSE_TRACE_FUNCTION] = NAN;
	sample->counts = sample->counts && read_trace(tracer, &sample->value[COLLAPSE_TRACE_FUNCTION]);
}

static bool close_series(void *arg, char why[BENCH_WHY])
{
	struct tracer *tracer = arg;

	end_tracing(tracer);
	if (access(tracer->folder, F_OK))
		return true;
	snprintf(why, BENCH_WHY, "%s is still there", tracer->folder);
	return false;
}

const struct bench_job collapse_trace_job = {open_series, do_round, close_series};

void collapse_trace_mark(const struct collapse_state *state)
{
	if (state->mark >= 0 && write(state->mark, MARK, sizeof(MARK) - 1) < 0)
		return; /* the round misses it */
}
