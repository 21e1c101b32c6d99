/* SPDX-License-Identifier: MIT */
/* The command `hugepool bench collapse`. */
#include "collapse.h"

#include "env.h"
#include "report.h"

#include <errno.h>
#include <stdio.h>

#define TRACE_ROUNDS 10

const char bench_collapse_help[] =
	"Usage: hugepool bench collapse [OPTIONS]\n\n"
	"What it costs to make 2 MiB of base pages a huge page. In each round, so many times: map it, touch every 4\n"
	"KiB, ask for a collapse, which is what the clock is for, unmap. A round's sample is the mean. Rows:\n\n"
	"  kernel memory=anonymous          madvise(MADV_COLLAPSE) of private memory\n"
	"  kernel memory=shmem              the same of a memfd\n"
	"  hugepool collapse=upgrade        hp_collapse() of a movable file in base pages: a copy to a frame of the\n"
	"                                   kernel's pool of huge pages, and the old pages freed\n"
	"  hugepool collapse=relock         lets its lock go between looking and changing, and checks all again\n"
	"  hugepool collapse=upgrade again  the same as the first: what difference is noise\n"
	"  copy                             nothing but a streaming copy of as many base pages to a huge page\n"
	"  hugepool writers=2               two threads store to the page all the time\n"
	"  hugepool writers=1 pinned        one does, on a CPU of its own\n\n"
	"A writer looks at the clock after every store. Its pause in a collapse is the longest gap between two of its\n"
	"stores that meets it. The parts of a collapse are what hp_collapse_stats_get() counts.\n\n"
	"  --count N     collapses in a round (default 100)\n"
	"  --pairs N     rounds that count (default 30); --rounds is the same\n"
	"  --no-trace    without the rows that need tracing\n"
	"  --json        JSON alone on standard output\n\n"
	"The rows of hugepool need two to four huge pages of the kernel's pool, which are set aside where that is\n"
	"allowed.\n\n"
	"After that the kernel's rows are measured once more, with trace events of it on, for the time inside the\n"
	"kernel's collapse function alone. They are set in an instance of the tracing system that is there for this\n"
	"and for this process only, which takes root.\n\n"
	"A mean carries what interrupts a collapse, which a median does not; so pairs are compared by both.\n\n"
	"JSON: metrics collapse_us, the mean, and collapse_median_us; lock_us, protect_us, copy_us, switch_us and "
	"free_us, its parts; rechecked and\n"
	"gave_up, in a round; writer_pause_us, writer_pause_p95_us and writer_pause_max_us, of a round's collapses.\n"
	"function_us is the time in the kernel's function, of calls that took traced_call_us with tracing.\n"
	"ratios.collapse_us.pairs, and ratios.collapse_median_us.pairs, is a list of {ours, theirs, ratio, min, max, "
	"low, high, samples}: how many times as\n"
	"fast ours is, round by round, low and high with 95 % confidence from 6 rounds on.\n\n"
	"Examples:\n"
	"  hugepool bench collapse\n"
	"  hugepool bench collapse --pairs 200\n"
	"  hugepool bench collapse --count 20 --pairs 10 --json\n";

static const char *const option_names[] = {"count=", "pairs=", "rounds=", "no-trace", "json", NULL};
enum option { COUNT, PAIRS, ROUNDS, NO_TRACE, JSON };

/* Both runs, as a table or as JSON. Takes over `params` and `env`. */
static void print_all(const struct bench_run *run, const struct bench_run *trace, bool json, json_t *params,
                      json_t *env)
{
	json_t *report;

	if (json) {
		report = report_json(run, params, env);
		collapse_report(run, trace, report);
		report_json_print(report, stdout);
		return;
	}
	bench_env_print(env, stdout);
	fputs("\n", stdout);
	collapse_print(run, trace, stdout);
	json_decref(params);
	json_decref(env);
}

struct asked {
	uint64_t count, pairs;
	bool no_trace, json;
};

static int read_options(struct asked *asked, int argc, char **argv)
{
	struct bench_options options = {.command = "collapse", .argc = argc, .argv = argv};
	int option;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("collapse", "'%s' is not an option", options.value);
		if (option == COUNT && !bench_parse_number(options.value, 1, COLLAPSE_COUNT_MAX, &asked->count))
			return bench_usage("collapse", "--count takes a number from 1 to %d", COLLAPSE_COUNT_MAX);
		if ((option == PAIRS || option == ROUNDS) &&
		    !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &asked->pairs))
			return bench_usage("collapse", "--%s takes a number from 1 to %d",
			                   option == PAIRS ? "pairs" : "rounds", BENCH_SAMPLES_MAX);
		asked->no_trace |= option == NO_TRACE;
		asked->json |= option == JSON;
	}
	return BENCH_DONE;
}

int bench_collapse(int argc, char **argv)
{
	static struct bench_run run = {.bench = "collapse"}, trace = {.bench = "collapse", .title = "traced"};
	struct bench_run *runs[] = {&run, &trace};
	struct asked asked = {.count = COLLAPSE_COUNT, .pairs = COLLAPSE_PAIRS};
	int status = read_options(&asked, argc, argv), rc;
	struct bench_pages pages;

	if (status != BENCH_DONE)
		return status;
	collapse_plan(&run, (unsigned)asked.count, true);
	collapse_plan_trace(&trace, (unsigned)asked.count);
	run.rounds = (unsigned)asked.pairs;
	trace.rounds = run.rounds < TRACE_ROUNDS ? run.rounds : TRACE_ROUNDS;
	snprintf(run.title, sizeof(run.title), "collapse, %llu times a round, %llu rounds",
	         (unsigned long long)asked.count, (unsigned long long)asked.pairs);
	rc = bench_measure(runs, asked.no_trace ? 1 : 2, &pages);
	if (rc && rc != -EUCLEAN)
		return BENCH_FAILED;
	print_all(&run, asked.no_trace ? NULL : &trace, asked.json,
	          json_pack("{s:I,s:I,s:b}", "count", (json_int_t)asked.count, "pairs", (json_int_t)asked.pairs,
	                    "trace", !asked.no_trace),
	          bench_env(&pages));
	return rc ? BENCH_FAILED : bench_status(runs, 1);
}
