/* SPDX-License-Identifier: MIT */
/* The lock statistics of a running program's pools, read from its control memory. */
#include "cli/cli.h"

#include "hugepool.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Raised when a key of the JSON output goes away or changes its meaning; new keys do not raise it. */
#define JSON_VERSION 1

#define POOLS_MAX 64u
#define SECONDS_MAX 86400.0
#define NO_ACTION (-1)

struct request {
	int pid;
	int pool;   /* -1: all of them */
	int action; /* hp_lockstat_action, or NO_ACTION */
	bool json;
	double seconds; /* of --watch, or 0 */
};

/* What one pool said at one time. */
struct snapshot {
	hp_lock_stat row[HP_LOCK_STATS_MAX];
	unsigned count;
};

/* ---- growth ----------------------------------------------------------------------------------------------------- */

/* A figure that has become smaller was reset in between, and began at 0. */
static uint64_t growth(uint64_t now, uint64_t before)
{
	return now >= before ? now - before : now;
}

/* How short and long the shortest and longest of an interval were cannot be told: a minimum above the maximum. */
static hp_lock_times growth_of_times(const hp_lock_times *now, const hp_lock_times *before)
{
	hp_lock_times grown = {.count = growth(now->count, before->count), .total = growth(now->total, before->total)};

	if (before->count)
		grown.min = grown.count ? UINT64_MAX : 0;
	else
		grown = *now;
	return grown;
}

/* What has not grown is left out; the most frequent come first again. */
static void growth_of_places(hp_lock_place *places, const hp_lock_place *before)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < HP_LOCK_POINTS && places[i].count; i++) {
		hp_lock_place grown = places[i];
		unsigned at = kept;

		for (unsigned j = 0; j < HP_LOCK_POINTS && before[j].count; j++)
			if (strcmp(before[j].name, grown.name) == 0)
				grown.count = growth(grown.count, before[j].count);
		if (!grown.count)
			continue;
		for (; at > 0 && places[at - 1].count < grown.count; at--)
			places[at] = places[at - 1];
		places[at] = grown;
		kept++;
	}
	for (; kept < HP_LOCK_POINTS; kept++)
		places[kept].count = 0;
}

static hp_lock_stat growth_of_row(const hp_lock_stat *now, const hp_lock_stat *before)
{
	hp_lock_stat grown = *now;

	grown.acquisitions = growth(now->acquisitions, before->acquisitions);
	grown.acq_bounces = growth(now->acq_bounces, before->acq_bounces);
	grown.contentions = growth(now->contentions, before->contentions);
	grown.con_bounces = growth(now->con_bounces, before->con_bounces);
	grown.deaths = growth(now->deaths, before->deaths);
	grown.wait = growth_of_times(&now->wait, &before->wait);
	grown.hold = growth_of_times(&now->hold, &before->hold);
	growth_of_places(grown.waiter, before->waiter);
	growth_of_places(grown.holder, before->holder);
	return grown;
}

static void growth_of_snapshot(const struct snapshot *now, const struct snapshot *before, struct snapshot *grown)
{
	grown->count = 0;
	for (unsigned i = 0; i < now->count; i++) {
		hp_lock_stat *row = &grown->row[grown->count];

		*row = now->row[i];
		for (unsigned j = 0; j < before->count; j++)
			if (now->row[i].mode == before->row[j].mode && !strcmp(now->row[i].name, before->row[j].name))
				*row = growth_of_row(&now->row[i], &before->row[j]);
		grown->count += row->acquisitions || row->contentions || row->deaths;
	}
}

/* ---- printing --------------------------------------------------------------------------------------------------- */

static int print_text(const struct snapshot *pool)
{
	size_t length = hp_lockstat_format(pool->row, pool->count, NULL, 0);
	char *text = malloc(length + 1);

	if (!text) {
		fputs("hugepool lockstat: no memory for the text\n", stderr);
		return HP_CLI_FAILED;
	}
	hp_lockstat_format(pool->row, pool->count, text, length + 1);
	fputs(text, stdout);
	if (!pool->count)
		puts("no lock was taken, or statistics are off");
	free(text);
	return HP_CLI_OK;
}

static void set_number(json_t *object, const char *key, uint64_t number)
{
	json_object_set_new(object, key, json_integer((json_int_t)number));
}

static void set_times(json_t *object, const char *key, const hp_lock_times *times)
{
	json_t *member = json_object();

	set_number(member, "count", times->count);
	set_number(member, "min", times->min);
	set_number(member, "max", times->max);
	set_number(member, "total", times->total);
	if (times->min > times->max) {
		json_object_set_new(member, "min", json_null());
		json_object_set_new(member, "max", json_null());
	}
	json_object_set_new(object, key, member);
}

static void set_places(json_t *object, const char *key, const hp_lock_place *places)
{
	json_t *array = json_array();

	for (unsigned i = 0; i < HP_LOCK_POINTS && places[i].count; i++) {
		json_t *place = json_object();

		json_object_set_new(place, "place", json_string(places[i].name));
		set_number(place, "count", places[i].count);
		json_array_append_new(array, place);
	}
	json_object_set_new(object, key, array);
}

/* The keys are the names in hugepool.h, as in the lists `locks` of `hugepool bench` (bench/engine_locks.c). */
static json_t *json_of_row(const hp_lock_stat *row)
{
	json_t *object = json_object();
	char mode[2] = {row->mode, 0};

	json_object_set_new(object, "class", json_string(row->name));
	json_object_set_new(object, "mode", row->mode ? json_string(mode) : json_null());
	set_number(object, "acquisitions", row->acquisitions);
	set_number(object, "acq_bounces", row->acq_bounces);
	set_number(object, "contentions", row->contentions);
	set_number(object, "con_bounces", row->con_bounces);
	set_number(object, "deaths", row->deaths);
	set_number(object, "sampled", row->sampled);
	set_times(object, "wait_ns", &row->wait);
	set_times(object, "hold_ns", &row->hold);
	set_places(object, "waiter", row->waiter);
	set_places(object, "holder", row->holder);
	return object;
}

static json_t *json_of_pool(const struct snapshot *pool, unsigned number)
{
	json_t *object = json_object(), *locks = json_array();

	set_number(object, "pool", number);
	for (unsigned i = 0; i < pool->count; i++)
		json_array_append_new(locks, json_of_row(&pool->row[i]));
	json_object_set_new(object, "locks", locks);
	return object;
}

/* One object; one line of its own for each look of --watch. `seconds`: since the last look; 0: since the reset. */
static int print_json(const struct request *request, const struct snapshot *pools, unsigned count, double seconds)
{
	json_t *report = json_object(), *array = json_array();
	int failed;

	set_number(report, "version", JSON_VERSION);
	set_number(report, "pid", (uint64_t)request->pid);
	json_object_set_new(report, "seconds", seconds > 0 ? json_real(seconds) : json_null());
	for (unsigned i = 0; i < count; i++)
		json_array_append_new(array, json_of_pool(&pools[i], request->pool < 0 ? i : (unsigned)request->pool));
	json_object_set_new(report, "pools", array);
	failed = json_dumpf(report, stdout, request->seconds > 0 ? JSON_COMPACT : JSON_INDENT(2));
	putchar('\n');
	json_decref(report);
	return failed ? HP_CLI_FAILED : HP_CLI_OK;
}

/* Of one pool the text is what a program that reads the kernel's file expects, and nothing else. */
static int print_pools(const struct request *request, const struct snapshot *pools, unsigned count, double seconds)
{
	int result = HP_CLI_OK;

	if (request->json)
		return print_json(request, pools, count, seconds);
	if (seconds > 0)
		printf("\nin %.1f s:\n", seconds);
	else if (request->seconds > 0)
		puts("since the start, or the last reset:");
	for (unsigned i = 0; i < count && result == HP_CLI_OK; i++) {
		if (count > 1)
			printf("pool %u\n", i);
		result = print_text(&pools[i]);
	}
	return result;
}

/* ---- looking ---------------------------------------------------------------------------------------------------- */

/* The library's sentence, and what to do about it where that does not say so. */
static int complain(const struct request *request, const hp_error *error)
{
	fprintf(stderr, "hugepool lockstat: %s", error->message);
	if (error->code == -ENOENT && request->pool > 0)
		fputs("; numbers begin at 0, and without --pool all are shown", stderr);
	else if (error->code == -ENOENT)
		fputs("; give the number of a program that uses hugepool, after it has made its pool (where the "
		      "program has closed all its descriptors, only root can find the pool)",
		      stderr);
	else if (error->code == -ESRCH)
		fputs("; see ps(1) for those that there are", stderr);
	else if (error->code == -EPROTO)
		fputs("; use the hugepool command of that version", stderr);
	fputc('\n', stderr);
	return HP_CLI_FAILED;
}

static int read_pool(const struct request *request, unsigned number, struct snapshot *pool, hp_error *error)
{
	pool->count = HP_LOCK_STATS_MAX;
	return hp_process_lockstat(request->pid, number, pool->row, &pool->count, sizeof(pool->row[0]), error);
}

/* Calls `visit` with the number of each pool that is meant, until one fails. Returns how many there were, or -errno. */
static int each_pool(const struct request *request, int (*visit)(const struct request *, unsigned, void *, hp_error *),
                     void *context, hp_error *error)
{
	unsigned first = request->pool < 0 ? 0 : (unsigned)request->pool;
	unsigned end = request->pool < 0 ? POOLS_MAX : first + 1, number = first;
	int result = 0;

	while (number < end && !result) {
		result = visit(request, number, context, error);
		number += !result;
	}
	/* After the last one there is none. */
	return result && !(result == -ENOENT && number > first) ? result : (int)(number - first);
}

static int visit_to_read(const struct request *request, unsigned number, void *context, hp_error *error)
{
	struct snapshot *pools = context;

	return read_pool(request, number, &pools[request->pool < 0 ? number : 0], error);
}

static int visit_to_act(const struct request *request, unsigned number, void *context, hp_error *error)
{
	return hp_process_lockstat_set(request->pid, number, (hp_lockstat_action)request->action, error);
}

/* ---- watching --------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

static double now_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* False: interrupted. The signal is let through only while we sleep, so that none is missed. */
static bool sleep_until(double deadline, const sigset_t *outside)
{
	double left;

	while (!interrupted && (left = deadline - now_seconds()) > 0) {
		struct timespec rest = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};

		pselect(0, NULL, NULL, NULL, &rest, outside);
	}
	return !interrupted;
}

struct watch {
	struct snapshot now[POOLS_MAX], before[POOLS_MAX], grown[POOLS_MAX];
};

/* The growth of all pools since `before`, which becomes `now`. */
static int print_growth(const struct request *request, struct watch *watch, int count, double seconds)
{
	for (int i = 0; i < count; i++)
		growth_of_snapshot(&watch->now[i], &watch->before[i], &watch->grown[i]);
	memcpy(watch->before, watch->now, sizeof(watch->now));
	return print_pools(request, watch->grown, (unsigned)count, seconds);
}

/* A program that ends while it is watched is no failure. */
static int has_ended(const struct request *request)
{
	fprintf(stderr, "hugepool lockstat: process %d has ended, or has closed its pool\n", request->pid);
	return HP_CLI_OK;
}

static int watch_pools(const struct request *request, struct watch *watch)
{
	const struct sigaction action = {.sa_handler = on_interrupt};
	double last = now_seconds();
	sigset_t blocked, outside;
	hp_error error;
	int result = HP_CLI_OK;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGINT);
	sigprocmask(SIG_BLOCK, &blocked, &outside);
	sigdelset(&outside, SIGINT);
	sigaction(SIGINT, &action, NULL);
	while (result == HP_CLI_OK && fflush(stdout) == 0 && sleep_until(last + request->seconds, &outside)) {
		double now = now_seconds();
		int count = each_pool(request, visit_to_read, watch->now, &error);

		/* It could be looked into before: a process that is ending belongs to root for a moment. */
		if (count == -ESRCH || count == -ENOENT || count == -EACCES)
			return has_ended(request);
		if (count < 0)
			return complain(request, &error);
		result = print_growth(request, watch, count, now - last);
		last = now;
	}
	return result;
}

/* The first look shows all since the reset. */
static int look(const struct request *request)
{
	struct watch *watch = calloc(1, sizeof(*watch));
	hp_error error;
	int count, result;

	if (!watch) {
		fputs("hugepool lockstat: no memory for the figures\n", stderr);
		return HP_CLI_FAILED;
	}
	count = each_pool(request, visit_to_read, watch->before, &error);
	result = count < 0 ? complain(request, &error) : print_pools(request, watch->before, (unsigned)count, 0);
	if (result == HP_CLI_OK && request->seconds > 0)
		result = watch_pools(request, watch);
	free(watch);
	return result;
}

/* ---- Command ---------------------------------------------------------------------------------------------------- */

static const char help[] =
	"Usage: hugepool lockstat PID [--json] [--pool N] [--watch SECONDS]\n"
	"       hugepool lockstat PID [--pool N] --on|--off|--reset\n"
	"\n"
	"Prints how often the locks of a running program's pools were taken and waited for, by class of locks, in\n"
	"the layout of the kernel's /proc/lock_stat (times in us; see Documentation/locking/lockstat.rst): one row\n"
	"for each class and mode (W writes, R reads), under them where waiters stood and where holders had taken\n"
	"the lock, as lines of hugepool's own code. Figures are of all processes that share the pool. Takes no lock\n"
	"and does not stop the program.\n"
	"\n"
	"Acquisitions and waits are all counted. Hold times and acq-bounces are measured in one acquisition of 256;\n"
	"the text scales holdtime-total and acq-bounces up to all of them, JSON has them as measured.\n"
	"\n"
	"Options:\n"
	"  -p, --pool N         only the program's pool of that number, from 0 on; otherwise all\n"
	"  -j, --json           JSON on standard output, times in ns; its \"version\" is raised when a key changes\n"
	"                       its meaning; with --watch one line for each time\n"
	"  -w, --watch SECONDS  prints again and again, until SIGINT, what was added since the last time; shortest\n"
	"                       and longest times of an interval are not known: \"-\", in JSON null\n"
	"      --reset          all figures begin anew\n"
	"      --off, --on      stop counting, and go on\n"
	"  -h, --help           this text\n"
	"\n"
	"Classes, in the order in which locks are taken:\n"
	"  fork, grace, space   of a process, not of a pool: no rows here\n"
	"  reap                 taking back what dead processes had\n"
	"  table                records of files and mappings in the pool's control memory (the arena)\n"
	"  pages                runs of base pages in the arena, for the files' indexes\n"
	"  file_mappings        the list of mappings of a file\n"
	"  file                 of a file: faults and allocation against truncation and fork\n"
	"  mapping              the same for each mapping, with tuning file_lock=vma\n"
	"  fault                mutexes that order faults, hashed by page\n"
	"  reservation          promised pages of a file\n"
	"  extents              free frames of the pool\n"
	"  cpu_cache            a few zeroed frames for each CPU\n"
	"\n"
	"Examples:\n"
	"  hugepool lockstat 1234\n"
	"  hugepool lockstat 1234 | grep ': '       the rows alone, without places\n"
	"  hugepool lockstat 1234 --watch 10\n"
	"  hugepool lockstat 1234 --json | jq '.pools[0].locks[] | select(.contentions > 0)'\n"
	"  hugepool lockstat 1234 --reset\n"
	"\n"
	"Exit code: 0 done; 1 failed: no such process, no pool in it, or no right to look; 2 wrong usage.";

static int usage(const char *format, const char *what)
{
	fputs("hugepool lockstat: ", stderr);
	fprintf(stderr, format, what);
	fputs("\nSee \"hugepool lockstat --help\".\n", stderr);
	return HP_CLI_USAGE;
}

static bool parse_number(const char *text, long least, long most, int *number)
{
	char *end;
	long value;

	errno = 0;
	value = strtol(text, &end, 10);
	*number = (int)value;
	return *text >= '0' && *text <= '9' && !*end && !errno && value >= least && value <= most;
}

static bool parse_seconds(const char *text, double *seconds)
{
	char *end;

	*seconds = strtod(text, &end);
	return *text >= '0' && *text <= '9' && !*end && *seconds >= 0.01 && *seconds <= SECONDS_MAX;
}

/* 0, -1 for --help, or HP_CLI_USAGE. */
static int parse_options(int argc, char **argv, struct request *request)
{
	enum { ON = 256, OFF, RESET };
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},        {"pool", required_argument, NULL, 'p'},
		{"watch", required_argument, NULL, 'w'}, {"on", no_argument, NULL, ON},
		{"off", no_argument, NULL, OFF},         {"reset", no_argument, NULL, RESET},
		{"help", no_argument, NULL, 'h'},        {NULL, 0, NULL, 0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "jp:w:h", options, NULL)) != -1) {
		switch (option) {
		case 'j':
			request->json = true;
			break;
		case 'p':
			if (!parse_number(optarg, 0, POOLS_MAX - 1, &request->pool))
				return usage("\"%s\" is no number of a pool: they begin at 0", optarg);
			break;
		case 'w':
			if (!parse_seconds(optarg, &request->seconds))
				return usage("--watch takes seconds from 0.01 to 86400, not \"%s\"", optarg);
			break;
		case ON:
		case OFF:
		case RESET:
			if (request->action != NO_ACTION)
				return usage("%s", "--on, --off and --reset exclude one another");
			request->action = option == ON    ? HP_LOCKSTAT_ON
			                  : option == OFF ? HP_LOCKSTAT_OFF
			                                  : HP_LOCKSTAT_RESET;
			break;
		case 'h':
			puts(help);
			return -1;
		default:
			fputs("See \"hugepool lockstat --help\".\n", stderr);
			return HP_CLI_USAGE;
		}
	}
	if (request->action != NO_ACTION && (request->json || request->seconds > 0))
		return usage("%s", "--on, --off and --reset exclude --json and --watch");
	return 0;
}

int hp_cli_lockstat(int argc, char **argv)
{
	struct request request = {.pool = -1, .action = NO_ACTION};
	hp_error error;
	int result = parse_options(argc, argv, &request);

	if (result)
		return result == -1 ? HP_CLI_OK : result;
	if (optind >= argc)
		return usage("%s", "which process? Its number is missing");
	if (!parse_number(argv[optind], 1, INT32_MAX, &request.pid))
		return usage("\"%s\" is no number of a process", argv[optind]);
	if (optind + 1 < argc)
		return usage("\"%s\" is one argument too many", argv[optind + 1]);
	if (request.action == NO_ACTION)
		return look(&request);
	if (each_pool(&request, visit_to_act, NULL, &error) < 0)
		return complain(&request, &error);
	if (request.action == HP_LOCKSTAT_OFF)
		puts("statistics are off; figures stay as they are until --on or --reset");
	return HP_CLI_OK;
}
