/* SPDX-License-Identifier: MIT */
#include "harness.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* A round that takes longer than this hangs: the series is ended and its rounds are discarded. */
#define ROUND_TIMEOUT_MS 300000

enum order { DO_WARM_UP = 1, DO_ROUND, DO_CLOSE };

struct opened { /* the first message of a series */
	bool done;
	char why[BENCH_WHY];
	char note[BENCH_NOTE];
};

struct closed { /* the last one */
	bool sound;
	char why[BENCH_WHY];
};

/* ---- Signals ---------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted_by;
static sigset_t outside_mask; /* as it was before the bench blocked its signals */
static struct sigaction outside_action[3];
static const int stop_signals[3] = {SIGINT, SIGTERM, SIGHUP};

static void on_signal(int signal_number)
{
	interrupted_by = signal_number;
}

static void signals_begin(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	sigset_t blocked;

	sigemptyset(&blocked);
	for (unsigned i = 0; i < 3; i++)
		sigaddset(&blocked, stop_signals[i]);
	sigprocmask(SIG_BLOCK, &blocked, &outside_mask);
	for (unsigned i = 0; i < 3; i++) {
		sigaction(stop_signals[i], NULL, &outside_action[i]);
		if (outside_action[i].sa_handler != SIG_IGN)
			sigaction(stop_signals[i], &action, NULL);
	}
}

/* Also for a series' process. */
static void signals_end(void)
{
	for (unsigned i = 0; i < 3; i++)
		sigaction(stop_signals[i], &outside_action[i], NULL);
	sigprocmask(SIG_SETMASK, &outside_mask, NULL);
}

bool bench_interrupted(void)
{
	return interrupted_by != 0;
}

/* The only place where a signal can arrive. Returns what poll() does. */
static int wait_for(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};

	return ppoll(fds, count, &timeout, &outside_mask);
}

void bench_sleep_ms(unsigned ms)
{
	wait_for(NULL, 0, (int)ms);
}

void bench_progress(const char *format, ...)
{
	static int looked_at = -1;
	static bool shown;
	va_list args;

	if (looked_at < 0)
		looked_at = isatty(STDERR_FILENO);
	if (!looked_at || (!format && !shown))
		return;
	fputs("\r\033[K", stderr);
	if (format) {
		va_start(args, format);
		vfprintf(stderr, format, args);
		va_end(args);
	}
	fflush(stderr);
	shown = format != NULL;
}

/* ---- A run's description ---------------------------------------------------------------------------------------- */

struct bench_series *bench_run_add(struct bench_run *run, const char *engine, const struct bench_job *job,
                                   const void *params)
{
	struct bench_series *series = &run->series[run->series_count++];

	if (run->series_count > BENCH_SERIES_MAX)
		abort();
	memset(series, 0, sizeof(*series));
	series->engine = engine;
	series->job = job;
	series->params = params;
	series->socket = -1;
	return series;
}

void bench_series_tag(struct bench_series *series, const char *key, const char *value)
{
	for (unsigned i = 0; i < BENCH_TAGS_MAX; i++) {
		if (series->variant[i].key)
			continue;
		series->variant[i] = (struct bench_tag){key, value};
		return;
	}
	abort();
}

bool bench_series_is_default(const struct bench_series *series)
{
	return !series->variant[0].key;
}

/* "hugepool", or "hugepool stock=cold". */
static const char *series_name(const struct bench_series *series)
{
	static char name[128];
	size_t used = (size_t)snprintf(name, sizeof(name), "%s", series->engine);

	for (unsigned i = 0; i < BENCH_TAGS_MAX && series->variant[i].key && used < sizeof(name); i++)
		used += (size_t)snprintf(name + used, sizeof(name) - used, " %s=%s", series->variant[i].key,
		                         series->variant[i].value);
	return name;
}

static void discard(struct bench_series *series, const char *why)
{
	unsigned i;

	series->discarded++;
	for (i = 0; i < series->reasons; i++)
		if (!strcmp(series->reason[i].text, why))
			break;
	if (i == BENCH_REASONS_MAX)
		i--;
	if (i == series->reasons) {
		snprintf(series->reason[i].text, sizeof(series->reason[i].text), "%s", why);
		series->reasons++;
	}
	series->reason[i].count++;
}

/* ---- The process of a series ------------------------------------------------------------------------------------ */

static _Noreturn void serve(struct bench_series *series, int socket)
{
	struct opened opened = {0};
	struct closed closed = {.sound = true};
	void *state = series->job->open(series->params, opened.why, opened.note);
	enum order order;

	opened.done = state != NULL;
	if (send(socket, &opened, sizeof(opened), MSG_NOSIGNAL) < 0 || !state)
		_exit(0);
	while (recv(socket, &order, sizeof(order), 0) == sizeof(order) && order != DO_CLOSE) {
		struct bench_sample sample = {.counts = true};

		for (unsigned i = 0; i < BENCH_METRICS_MAX; i++)
			sample.value[i] = NAN;
		series->job->round(state, order == DO_WARM_UP, &sample);
		if (send(socket, &sample, sizeof(sample), MSG_NOSIGNAL) < 0)
			_exit(0);
	}
	closed.sound = series->job->close(state, closed.why);
	send(socket, &closed, sizeof(closed), MSG_NOSIGNAL);
	_exit(0);
}

static void end_series(struct bench_series *series)
{
	int status = 0;

	if (series->socket >= 0)
		close(series->socket);
	series->socket = -1;
	if (!series->pid)
		return;
	kill(series->pid, SIGKILL);
	while (waitpid(series->pid, &status, 0) < 0 && errno == EINTR)
		;
	series->pid = 0;
	if (series->why_not[0])
		return;
	if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
		snprintf(series->why_not, sizeof(series->why_not), "its process was ended by %s",
		         strsignal(WTERMSIG(status)));
	else
		snprintf(series->why_not, sizeof(series->why_not), "its process ended");
}

/* Its socket is closed: it is about to die by itself, and of what is worth telling. */
static void await_death(struct bench_series *series)
{
	for (int i = 0; i < 100; i++) {
		siginfo_t info = {0};

		if (waitid(P_PID, (id_t)series->pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid)
			return;
		bench_sleep_ms(10);
	}
}

/* Receives one message. False: the series has ended, or -EINTR is to be looked for. */
static bool receive(struct bench_series *series, void *message, size_t size)
{
	struct pollfd fd = {.fd = series->socket, .events = POLLIN};
	int ready;

	do
		ready = wait_for(&fd, 1, ROUND_TIMEOUT_MS);
	while (ready < 0 && errno == EINTR && !interrupted_by);
	if (interrupted_by)
		return false;
	if (ready > 0 && recv(series->socket, message, size, 0) == (ssize_t)size)
		return true;
	if (!ready)
		snprintf(series->why_not, sizeof(series->why_not), "no answer in %d s", ROUND_TIMEOUT_MS / 1000);
	else
		await_death(series);
	end_series(series);
	return false;
}

static int start_series(struct bench_run *run, struct bench_series *series, struct bench_pages *pages)
{
	struct opened opened;
	pid_t bench = getpid();
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return -errno;
	fflush(NULL);
	series->pid = fork();
	if (series->pid < 0) {
		series->pid = 0;
		close(ends[0]);
		close(ends[1]);
		return -errno;
	}
	if (!series->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != bench)
			_exit(0);
		signals_end();
		bench_pages_forget(pages);
		close(ends[0]);
		for (unsigned i = 0; i < run->series_count; i++)
			if (&run->series[i] != series && run->series[i].socket >= 0)
				close(run->series[i].socket);
		serve(series, ends[1]);
	}
	close(ends[1]);
	series->socket = ends[0];
	if (!receive(series, &opened, sizeof(opened)))
		return 0;
	memcpy(series->note, opened.note, sizeof(series->note));
	if (!opened.done) {
		memcpy(series->why_not, opened.why, sizeof(series->why_not));
		end_series(series);
	}
	return 0;
}

/* ---- Rounds ----------------------------------------------------------------------------------------------------- */

/* Round 0 warms up. */
static void do_round(struct bench_run *run, struct bench_series *series, unsigned round)
{
	bool warm_up = round == 0;
	enum order order = warm_up ? DO_WARM_UP : DO_ROUND;
	struct bench_sample sample;

	if (!series->pid) {
		if (!warm_up)
			discard(series, series->why_not);
		return;
	}
	send(series->socket, &order, sizeof(order), MSG_NOSIGNAL);
	if (!receive(series, &sample, sizeof(sample))) {
		if (!interrupted_by && !warm_up)
			discard(series, series->why_not);
		return;
	}
	if (warm_up)
		return;
	if (!sample.counts) {
		discard(series, sample.why);
		return;
	}
	if (series->counted < BENCH_SAMPLES_MAX)
		series->round[series->counted++] = round;
	for (unsigned m = 0; m < run->metrics; m++)
		bench_stat_add(&series->stat[m], sample.value[m]);
}

static int close_series(struct bench_series *series)
{
	enum order order = DO_CLOSE;
	struct closed closed;
	int rc = 0;

	if (!series->pid)
		return 0;
	send(series->socket, &order, sizeof(order), MSG_NOSIGNAL);
	if (receive(series, &closed, sizeof(closed)) && !closed.sound) {
		bench_progress(NULL);
		fprintf(stderr, "hugepool bench: %s: %s\n", series_name(series), closed.why);
		rc = -EUCLEAN;
	} else if (!series->pid && !interrupted_by) {
		bench_progress(NULL);
		fprintf(stderr, "hugepool bench: %s, while closing: %s\n", series_name(series), series->why_not);
		rc = -EUCLEAN;
	}
	end_series(series);
	series->why_not[0] = 0;
	return rc;
}

static int do_run(struct bench_run *run, struct bench_pages *pages)
{
	unsigned n = run->series_count;
	int rc = 0, closing;

	for (unsigned i = 0; i < n && !rc && !interrupted_by; i++) {
		bench_progress("%s: preparing %s", run->title, series_name(&run->series[i]));
		rc = start_series(run, &run->series[i], pages);
	}
	for (unsigned round = 0; round <= run->rounds && !rc && !interrupted_by; round++) {
		for (unsigned turn = 0; turn < n && !interrupted_by; turn++) {
			struct bench_series *series = &run->series[(round + turn) % n];

			if (series->rounds && (round == 0 || round > series->rounds))
				continue;
			if (round)
				bench_progress("%s: round %u of %u, %s", run->title, round, run->rounds,
				               series_name(series));
			else
				bench_progress("%s: warming up, %s", run->title, series_name(series));
			do_round(run, series, round);
		}
	}
	for (unsigned i = 0; i < n; i++) {
		if (rc || interrupted_by) {
			end_series(&run->series[i]);
			continue;
		}
		closing = close_series(&run->series[i]);
		if (closing)
			rc = closing;
	}
	bench_progress(NULL);
	return rc;
}

int bench_measure(struct bench_run *const *runs, unsigned count, struct bench_pages *pages)
{
	uint64_t need = 0;
	int rc, signal_number;

	for (unsigned i = 0; i < count; i++)
		need = runs[i]->huge_bytes > need ? runs[i]->huge_bytes : need;
	/* Instances outlive an engine that is killed, for a moment: they become ours, to be waited for. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	signals_begin();
	rc = bench_pages_acquire(pages, need);
	if (!rc && pages->why[0])
		fprintf(stderr, "hugepool bench: %s\n", pages->why);
	for (unsigned i = 0; i < count && !rc && !interrupted_by; i++)
		rc = do_run(runs[i], pages);
	bench_pages_release(pages);
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
		;
	signals_end();
	signal_number = interrupted_by;
	if (signal_number) {
		signal(signal_number, SIG_DFL);
		raise(signal_number);
	}
	if (rc && rc != -EUCLEAN)
		fprintf(stderr, "hugepool bench: %s\n", strerror(-rc));
	return rc;
}

int bench_status(struct bench_run *const *runs, unsigned count)
{
	for (unsigned r = 0; r < count; r++) {
		bool left = false;

		for (unsigned i = 0; i < runs[r]->series_count; i++) {
			const struct bench_series *series = &runs[r]->series[i];

			left |= !strcmp(series->engine, "hugepool") && series->stat[0].count;
		}
		if (!left)
			return BENCH_NOTHING;
	}
	return BENCH_DONE;
}
