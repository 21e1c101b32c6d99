/* SPDX-License-Identifier: MIT */
/*
 * The library's locks by themselves, in three parts: what one thread pays for a lock and an unlock, what the statistics
 * add to that, and how many operations a crowd of threads or processes gets done. In each part those who are compared
 * take turns, and a ratio is the median of the turns' ratios: what disturbs the machine for longer than a turn disturbs
 * all of them alike.
 */
#include "locks.h"

#include "env.h"
#include "harness.h"
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The command ------------------------------------------------------------------------------------------------ */

const char bench_locks_help[] =
	"Usage: hugepool bench locks [OPTIONS]\n\n"
	"The library's internal locks (src/sync) by themselves, beside those of pthreads (process-shared): hp_mutex;\n"
	"hp_rwsem, for readers and writers; hp_biased, the same with readers that share no cache line, which\n"
	"files have. They survive the death of their owners, and what they take includes the lock statistics. The\n"
	"row none is the loop and the section without any lock. Three parts; all of them, unless some are named:\n\n"
	"  --uncontended      one thread: what a lock and an unlock take, with an empty section between them and\n"
	"                     with one of 200 ns, a loop that reads no clock\n"
	"  --stats            one thread: lock statistics on against off, and off against off, which tells how\n"
	"                     much of a difference is chance\n"
	"  --contended        crowds that all take one lock: their operations per second together\n\n"
	"  --threads LIST     crowds of so many threads, \"2,8,24\"; without --processes only these\n"
	"  --processes LIST   crowds of so many processes; without --threads only these\n"
	"                     (default: 2,24 threads and 2,4,8,24,64 processes)\n"
	"  --share LIST       per cent of the operations that read (default 100,99,90,50,0); 0 is for the mutexes\n"
	"  --section WHICH    empty, 200ns or both (default both)\n"
	"  --rounds N         rounds of each crowd (default 5)\n"
	"  --seconds T        that a measurement of a crowd takes (default 0.05)\n"
	"  --batches N        batches of one thread (default 60); in one, each lock has 24 turns of 0.1 ms\n"
	"  --quick            only 2 threads and 24 processes, 3 rounds of 0.03 s, 30 batches\n"
	"  --json             JSON alone on standard output\n\n"
	"A ratio is ours to theirs, taken in each batch or round, and then the median of those: of times less is\n"
	"better, of operations per second more. Bars: the mutex 1.1 of pthread's time, a biased read 0.6 of a\n"
	"read of pthread's, statistics 1.15 of the time without. The first two are held against the lock's own\n"
	"cost, which is the time less that of the section. The processor is kept from doing a section of 200 ns\n"
	"while it still works at the lock. The confidence covers chance within a run; where a build puts the\n"
	"code is worth half a nanosecond more or less, which counts for a biased read and an empty section.\n"
	"Missing a bar does not change the exit status.\n\n"
	"Beside a bar stands, under uncontended, whether the median is within or above it; under statistics, within\n"
	"when all of the interval is, above when none of it is, unsure when the bar lies inside: more batches\n"
	"would tell. Each table says what share of the CPUs others had meanwhile: with more than a few per cent,\n"
	"repeat it when the machine is quiet.\n\n"
	"Modes of hp_biased: \"read\" by a bias that is on; \"read, warm\" with a barrier in each, as where the\n"
	"kernel has none for all CPUs; \"write\" after another writer, where no bias is to be revoked.\n\n"
	"JSON: rows as of all workloads, with the metrics op_s (lock, section and unlock), own_s (less the\n"
	"section) and ops_per_s; the variant names the part, the mode, the section and the crowd; cpu_share is\n"
	"what of the CPUs somebody else had meanwhile, which should be little. ratios: for each of the times and\n"
	"rates, and for statistics (on to off), a list of {ours, theirs, variant, ratio, min, max, low,\n"
	"high, samples, at_most}. low and high bound the median with 95 % confidence, null for less than 6\n"
	"samples; at_most is the bar, or null.\n\n"
	"Examples:\n"
	"  hugepool bench locks --quick\n"
	"  hugepool bench locks --uncontended --stats --batches 200\n"
	"  hugepool bench locks --contended --processes 24 --share 99,90 --rounds 15 --seconds 0.2 --json\n";

static const char *const option_names[] = {"threads=", "processes=", "share=",      "section=", "rounds=",
                                           "seconds=", "batches=",   "uncontended", "stats",    "contended",
                                           "quick",    "json",       NULL};
enum option {
	THREADS,
	PROCESSES,
	SHARE,
	SECTION,
	ROUNDS,
	SECONDS,
	BATCHES,
	UNCONTENDED,
	STATS,
	CONTENDED,
	QUICK,
	JSON
};

static bool parse_list(const char *text, uint64_t min, uint64_t max, struct list *list)
{
	char word[16];

	list->count = 0;
	while (list->count < LIST_MAX) {
		size_t length = strcspn(text, ",");
		uint64_t value;

		if (length >= sizeof(word))
			return false;
		memcpy(word, text, length);
		word[length] = 0;
		if (!bench_parse_number(word, min, max, &value))
			return false;
		list->value[list->count++] = (unsigned)value;
		if (!text[length])
			return true;
		text += length + 1;
	}
	return false;
}

static bool parse_section(const char *text, bool section[SECTIONS])
{
	bool both = !strcmp(text, "both");

	for (unsigned s = 0; s < SECTIONS; s++)
		section[s] = both || !strcmp(text, locks_sections[s]);
	return section[EMPTY] || section[BUSY];
}

/* An exit status: BENCH_DONE to go on. */
static int read_options(struct locks *b, int argc, char **argv)
{
	static const struct list shares = {5, {100, 99, 90, 50, 0}}, threads = {2, {2, 24}},
				 processes = {5, {2, 4, 8, 24, 64}};
	struct bench_options options = {.command = "locks", .argc = argc, .argv = argv};
	bool quick = false;
	char *end;
	int option;

	*b = (struct locks){.shares = shares, .section = {true, true}};
	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("locks", "'%s' is not an option", options.value);
		if (option == THREADS && !parse_list(options.value, 1, LOCK_CROWD_MAX, &b->threads))
			return bench_usage("locks", "--threads takes up to %d numbers from 1 to %u, as 2,8,24",
			                   LIST_MAX, LOCK_CROWD_MAX);
		if (option == PROCESSES && !parse_list(options.value, 1, LOCK_CROWD_MAX, &b->processes))
			return bench_usage("locks", "--processes takes up to %d numbers from 1 to %u, as 2,8,24",
			                   LIST_MAX, LOCK_CROWD_MAX);
		if (option == SHARE && !parse_list(options.value, 0, 100, &b->shares))
			return bench_usage("locks", "--share takes up to %d numbers from 0 to 100, as 99,50", LIST_MAX);
		if (option == SECTION && !parse_section(options.value, b->section))
			return bench_usage("locks", "--section takes empty, 200ns or both");
		if (option == ROUNDS && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &b->rounds))
			return bench_usage("locks", "--rounds takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		if (option == BATCHES && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &b->batches))
			return bench_usage("locks", "--batches takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		if (option == SECONDS) {
			b->seconds = strtod(options.value, &end);
			if (*end || !(b->seconds > 0 && b->seconds <= 100))
				return bench_usage("locks", "--seconds takes a number above 0, up to 100");
		}
		b->uncontended |= option == UNCONTENDED;
		b->statistics |= option == STATS;
		b->contended |= option == CONTENDED;
		quick |= option == QUICK;
		b->json |= option == JSON;
	}
	if (!b->uncontended && !b->statistics && !b->contended)
		b->uncontended = b->statistics = b->contended = true;
	if (!b->threads.count && !b->processes.count) {
		b->threads = quick ? (struct list){1, {2}} : threads;
		b->processes = quick ? (struct list){1, {24}} : processes;
	}
	b->rounds = b->rounds ? b->rounds : quick ? 3 : 5;
	b->batches = b->batches ? b->batches : quick ? 30 : 60;
	b->seconds = b->seconds > 0 ? b->seconds : quick ? 0.03 : 0.05;
	return BENCH_DONE;
}

static json_t *list_json(const struct list *list)
{
	json_t *array = json_array();

	for (unsigned i = 0; i < list->count; i++)
		json_array_append_new(array, json_integer(list->value[i]));
	return array;
}

static json_t *params_json(const struct locks *b)
{
	json_t *sections = json_array(), *parts = json_array();

	for (unsigned s = 0; s < SECTIONS; s++)
		if (b->section[s])
			json_array_append_new(sections, json_string(locks_sections[s]));
	if (b->uncontended)
		json_array_append_new(parts, json_string("uncontended"));
	if (b->statistics)
		json_array_append_new(parts, json_string("statistics"));
	if (b->contended)
		json_array_append_new(parts, json_string("contended"));
	return json_pack("{s:o,s:o,s:o,s:o,s:o,s:I,s:I,s:f,s:f,s:i,s:i}", "parts", parts, "threads",
	                 list_json(&b->threads), "processes", list_json(&b->processes), "shares", list_json(&b->shares),
	                 "sections", sections, "rounds", (json_int_t)b->rounds, "batches", (json_int_t)b->batches,
	                 "seconds", b->seconds, "slice_seconds", SLICE_S, "slices", SLICES, "section_turns",
	                 (int)b->turns[BUSY]);
}

static json_t *report(struct locks *b, json_t *env)
{
	return json_pack("{s:i,s:s,s:o,s:o,s:o,s:{s:i,s:[]},s:o,s:[]}", "version", 1, "bench", "locks", "params",
	                 params_json(b), "env", env, "rows", b->rows, "discarded", "count", 0, "reasons", "ratios",
	                 b->ratios, "notes");
}

/* The locks need no huge pages: the kernel's pool is only looked at. */
static struct bench_pages pages_now(void)
{
	struct bench_pages pages = {.hold = -1};
	FILE *file = fopen("/proc/sys/vm/nr_hugepages", "r");
	unsigned long long count;

	if (file && fscanf(file, "%llu", &count) == 1)
		pages.before = pages.during = count;
	if (file)
		fclose(file);
	return pages;
}

int bench_locks(int argc, char **argv)
{
	static struct locks b;
	struct bench_pages pages = pages_now();
	int status = read_options(&b, argc, argv);
	bool done = true;
	json_t *env;

	if (status != BENCH_DONE)
		return status;
	env = bench_env(&pages);
	if (!b.json)
		bench_env_print(env, stdout);
	b.turns[BUSY] = lock_section_turns(SECTION_S);
	b.rows = json_array();
	b.ratios = json_object();
	if (b.uncontended)
		done = locks_uncontended(&b);
	if (b.statistics && done)
		done = locks_statistics(&b);
	if (b.contended && done)
		done = locks_contended(&b);
	if (b.json && done) {
		report_json_print(report(&b, env), stdout);
	} else {
		json_decref(env);
		json_decref(b.rows);
		json_decref(b.ratios);
	}
	return done ? BENCH_DONE : BENCH_FAILED;
}
