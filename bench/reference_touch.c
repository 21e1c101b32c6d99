/* SPDX-License-Identifier: MIT */
/* Workload 2: parallel first touch. */
#include "reference.h"

#include "memory.h"
#include "table.h"

#include <math.h>

#define MANY_THREADS 64
#define SLEEP_US 1000
#define TEXT(number) TEXT_OF(number)
#define TEXT_OF(number) #number

static const struct {
	const char *name;
	unsigned threads;
	const char *mutexes; /* NULL: the table */
	double seconds;
} published[] = {
	{"one global mutex, 1 thread", 1, "1", 40.68},
	{"one global mutex, 64 threads", MANY_THREADS, "1", 39.34},
	{"hashed mutexes, 64 threads", MANY_THREADS, NULL, 0.85},
};
#define PUBLISHED (sizeof(published) / sizeof(published[0]))
#define PUBLISHED_PAGES 8192 /* 128 GB of 16 MB pages */

static const struct {
	const char *name;
	unsigned contentions, acquisitions;
	double waited_us;
} published_locks[] = {
	{"published: global mutex", 10678, 99476, 76888911.01},
	{"published: hashed table", 383, 120546, 1381.72},
};
#define PUBLISHED_LOCKS (sizeof(published_locks) / sizeof(published_locks[0]))

/* ---- Series ----------------------------------------------------------------------------------------------------- */

static struct parallel_fault *add(struct bench_run *run, const struct engine *engine, uint64_t size, unsigned threads)
{
	static struct parallel_fault params[REFERENCE_TEAMS * 9 + 2 * PUBLISHED + 1];
	static unsigned used;
	struct parallel_fault *own = &params[used++];

	*own = (struct parallel_fault){
		.engine = engine, .setup = {.size = size, .threads = threads}, .skip = BENCH_FRAME};
	bench_run_add(run, engine->name, &parallel_fault_job, own);
	if (engine != &engine_kernel)
		run->huge_bytes += size;
	return own;
}

static void tag(struct bench_run *run, const char *key, const char *value)
{
	bench_series_tag(&run->series[run->series_count - 1], key, value);
}

static struct bench_run *touch_run(struct reference *r, unsigned threads, const char *what)
{
	struct bench_run *run = reference_run(r, "parallel-fault", r->rounds);

	run->metric = parallel_fault_metrics;
	run->metrics = PARALLEL_FAULT_METRICS;
	snprintf(run->title, sizeof(run->title), "2. parallel first touch, %u thread%s, %s", threads,
	         threads == 1 ? "" : "s", what);
	return run;
}

static void plan_team(struct reference *r, unsigned team)
{
	unsigned n = r->threads[team];
	struct parallel_fault *p;
	struct bench_run *run = touch_run(r, n, "ready memory");

	r->ready[team] = run;
	add(run, &engine_kernel, r->touch_size, n);
	add(run, &engine_tuned, r->touch_size, n);
	add(run, &engine_prefilled, r->touch_size, n);
	add(run, &engine_hugepool, r->touch_size, n);
	add(run, &engine_hugepool, r->touch_size, n)->setup.no_stock = true;
	tag(run, "stock", "dirty");
	add(run, &engine_hugepool, r->touch_size, n)->setup.cold = true;
	tag(run, "stock", "cold");
	run->series[run->series_count - 1].rounds = 2;

	run = touch_run(r, n, "lazy memory");
	r->lazy[team] = run;
	add(run, &engine_kernel, r->touch_size, n);
	p = add(run, &engine_hugepool, r->touch_size, n);
	p->setup.lazy = true;
	p->setup.tuning = "fault_window=16";
	tag(run, "map", "lazy");
	p = add(run, &engine_hugepool, r->touch_size, n);
	p->setup.lazy = p->random = true;
	p->setup.tuning = "fault_window=1";
	tag(run, "map", "one page");
}

/* A lazy series where each fault takes one page, with lock statistics. */
static struct parallel_fault *add_faulting(struct bench_run *run, const struct reference *r, unsigned threads,
                                           const char *tuning)
{
	struct parallel_fault *p = add(run, &engine_hugepool, r->mutex_size, threads);

	p->setup.lazy = true;
	p->setup.tuning = tuning;
	p->locks = engine_share(sizeof(*p->locks));
	tag(run, "threads", threads == 1 ? "1" : TEXT(MANY_THREADS));
	return p;
}

/* The published three, with what a fault does beside: it zeroes a dirty frame, or sleeps. */
static void plan_mutexes(struct reference *r)
{
	struct bench_run *zeroing = touch_run(r, MANY_THREADS, "lazy, dirty frames"), *sleeping;

	for (unsigned i = 0; i < PUBLISHED; i++) {
		add_faulting(zeroing, r, published[i].threads,
		             published[i].mutexes ? "fault_window=1 fault_mutexes=1" : "fault_window=1")
			->setup.no_stock = true;
		tag(zeroing, "fault_mutexes", published[i].mutexes ? published[i].mutexes : "default");
	}
	add_faulting(zeroing, r, MANY_THREADS, "fault_window=1 resv_lock=global")->setup.no_stock = true;
	tag(zeroing, "resv_lock", "global");

	sleeping = touch_run(r, MANY_THREADS, "lazy, a fault sleeps");
	for (unsigned i = 0; i < PUBLISHED; i++) {
		add_faulting(sleeping, r, published[i].threads,
		             published[i].mutexes ? "fault_window=1 fault_mutexes=1 fault_sleep_us=" TEXT(SLEEP_US)
		                                  : "fault_window=1 fault_sleep_us=" TEXT(SLEEP_US));
		tag(sleeping, "fault_mutexes", published[i].mutexes ? published[i].mutexes : "default");
	}
	r->zeroing = zeroing;
	r->sleeping = sleeping;
}

void reference_plan_touch(struct reference *r)
{
	for (unsigned team = 0; team < REFERENCE_TEAMS; team++)
		plan_team(r, team);
	plan_mutexes(r);
}

/* ---- Printing: the fault mutexes -------------------------------------------------------------------------------- */

static double elapsed(const struct bench_run *run, unsigned index)
{
	return bench_stat_median(&run->series[index].stat[PARALLEL_FAULT_WALL]);
}

static void print_elapsed(const struct reference *r, FILE *out)
{
	struct table table;
	char cell[TABLE_CELL];

	table_init(&table, 4, 1);
	table_row(&table);
	table_set(&table, 1, "published");
	table_set(&table, 2, "here, zeroing");
	table_set(&table, 3, "here, sleeping");
	for (unsigned i = 0; i < PUBLISHED; i++) {
		table_row(&table);
		table_set(&table, 0, "%s", published[i].name);
		table_set(&table, 1, "%.2f s", published[i].seconds);
		table_set(&table, 2, "%s", table_figure(cell, elapsed(r->zeroing, i), "s"));
		table_set(&table, 3, "%s", table_figure(cell, elapsed(r->sleeping, i), "s"));
	}
	table_print(&table, out);
}

static void begin_locks(struct table *table, const char *column)
{
	table_init(table, 5, 1);
	table_row(table);
	table_set(table, 1, "contentions");
	table_set(table, 2, "acquisitions");
	table_set(table, 3, "us waited");
	table_set(table, 4, "%s", column);
}

/* Of one round: means. */
static void locks_row(struct table *table, const char *name, const struct bench_series *series, const char *class)
{
	const struct parallel_fault *params = series->params;
	hp_lock_stat row = engine_locks_find(params->locks, class, 0);
	double rounds = params->locks->rounds;

	table_row(table);
	table_set(table, 0, "%s", name);
	if (!params->locks->rounds)
		return;
	table_set(table, 1, "%.0f", (double)row.contentions / rounds);
	table_set(table, 2, "%.0f", (double)row.acquisitions / rounds);
	table_set(table, 3, "%.2f", (double)row.wait.total / 1e3 / rounds);
}

static void print_lock_statistics(const struct reference *r, FILE *out)
{
	struct table table;
	char name[TABLE_CELL];

	begin_locks(&table, "");
	for (unsigned i = 0; i < PUBLISHED_LOCKS; i++) {
		table_row(&table);
		table_set(&table, 0, "%s", published_locks[i].name);
		table_set(&table, 1, "%u", published_locks[i].contentions);
		table_set(&table, 2, "%u", published_locks[i].acquisitions);
		table_set(&table, 3, "%.2f", published_locks[i].waited_us);
	}
	for (unsigned i = 0; i < PUBLISHED; i++) {
		snprintf(name, sizeof(name), "zeroing: %s", published[i].name);
		locks_row(&table, name, &r->zeroing->series[i], "fault");
	}
	for (unsigned i = 0; i < PUBLISHED; i++) {
		snprintf(name, sizeof(name), "sleeping: %s", published[i].name);
		locks_row(&table, name, &r->sleeping->series[i], "fault");
	}
	table_print(&table, out);
}

static void print_reservations(const struct reference *r, FILE *out)
{
	struct table table;
	char cell[TABLE_CELL];

	begin_locks(&table, "elapsed");
	for (unsigned i = PUBLISHED - 1; i <= PUBLISHED; i++) {
		locks_row(&table, i == PUBLISHED ? "resv_lock=global" : "resv_lock=file", &r->zeroing->series[i],
		          "reservation");
		table_set(&table, 4, "%s", table_figure(cell, elapsed(r->zeroing, i), "s"));
	}
	table_print(&table, out);
}

static void print_mutexes(const struct reference *r, FILE *out)
{
	fprintf(out,
	        "\n   What orders the faults: here %.3g GiB of lazy memory, a page for each fault, %u CPUs, medians "
	        "of\n"
	        "   %u rounds. zeroing: a fault zeroes a dirty frame under its mutex; the CPUs are busy with that, so\n"
	        "   that the table gains only what they still have to give. sleeping: it finds a zeroed frame, but\n"
	        "   sleeps for %d us under the mutex, as if taking a frame lasted so long on a CPU of its own.\n\n",
	        (double)r->mutex_size / (double)BENCH_GIB, bench_cpus(), r->rounds, SLEEP_US);
	print_elapsed(r, out);
	fprintf(out, "\n   Their lock statistics; published: of a database's start-up; here: of one round, means.\n\n");
	print_lock_statistics(r, out);
	fprintf(out,
	        "\n   The reviewer's question: what the lock over reservations had in it. Zeroing with the table, %d\n"
	        "   threads: one lock for each file, or one for all. There is one file here.\n\n",
	        MANY_THREADS);
	print_reservations(r, out);
}

/* ---- Printing: all ways to the memory --------------------------------------------------------------------------- */

static void touch_row(struct table *table, const char *name, const struct reference *r, unsigned team,
                      const struct bench_run *run, unsigned index)
{
	double wall = elapsed(run, index), kernel = elapsed(run, 0);
	double touches = (double)r->touch_size / (double)BENCH_FRAME;
	char cell[TABLE_CELL];

	table_row(table);
	table_set(table, 0, "%s, %u thread%s", name, r->threads[team], r->threads[team] == 1 ? "" : "s");
	table_set(table, 1, "%s", table_figure(cell, wall, "s"));
	table_set(table, 2, "%s", table_figure(cell, wall / touches, "s"));
	table_set(table, 3, "%s",
	          table_figure(cell, bench_stat_median(&run->series[index].stat[PARALLEL_FAULT_CPU]), "s"));
	if (index)
		table_set(table, 4, "%s", table_ratio(cell, kernel / wall));
}

static void print_touches(const struct reference *r, FILE *out)
{
	static const char *const heading[] = {"", "elapsed", "a page", "CPU time", "times the kernel"};
	struct table table;
	char cell[TABLE_CELL];

	table_init(&table, 5, 1);
	table_row(&table);
	for (unsigned c = 0; c < 5; c++)
		table_set(&table, c, "%s", heading[c]);
	for (unsigned i = 0; i < PUBLISHED; i++) {
		table_row(&table);
		table_set(&table, 0, "published: %s", published[i].name);
		table_set(&table, 1, "%.2f s", published[i].seconds);
		table_set(&table, 2, "%s", table_figure(cell, published[i].seconds / PUBLISHED_PAGES, "s"));
	}
	for (unsigned t = 0; t < REFERENCE_TEAMS; t++) {
		touch_row(&table, "kernel", r, t, r->ready[t], 0);
		touch_row(&table, "tuned", r, t, r->ready[t], 1);
		touch_row(&table, "prefilled", r, t, r->ready[t], 2);
		touch_row(&table, "hugepool ready", r, t, r->ready[t], 3);
		touch_row(&table, "hugepool ready, dirty frames", r, t, r->ready[t], 4);
		touch_row(&table, "hugepool ready, cold", r, t, r->ready[t], 5);
		touch_row(&table, "hugepool lazy, window 16", r, t, r->lazy[t], 1);
		touch_row(&table, "hugepool lazy, random, window 1", r, t, r->lazy[t], 2);
	}
	table_print(&table, out);
}

static void print_fills(const struct reference *r, FILE *out)
{
	static const char *const names[] = {[2] = "prefilled", [3] = "hugepool ready"};
	struct table table;
	char cell[TABLE_CELL];

	fprintf(out, "\n   Of these, the zeroing done before the clock, a round:\n");
	table_init(&table, 4, 1);
	for (unsigned t = 0; t < REFERENCE_TEAMS; t++) {
		for (unsigned i = 2; i < 4; i++) {
			double fill = bench_stat_median(&r->ready[t]->series[i].stat[PARALLEL_FAULT_FILL]);

			table_row(&table);
			table_set(&table, 0, "%s, %u thread%s", names[i], r->threads[t], r->threads[t] == 1 ? "" : "s");
			table_set(&table, 1, "%s", table_figure(cell, fill, "s"));
		}
	}
	table_print(&table, out);
}

void reference_print_touch(const struct reference *r, FILE *out)
{
	fprintf(out,
	        "2. Parallel first touch: parallel_fault NR_THREADS SIZE_KB SKIP_KB, a byte in each huge page.\n"
	        "   Source: linux-kernel, July 2013, \"hugepage: allow parallelization of the hugepage fault path\" "
	        "(and\n"
	        "   its predecessor of July 2011): 128 GB of 16 MB pages. Here: %.3g GiB of 2 MiB pages, %u CPUs, "
	        "medians\n"
	        "   of %u rounds (cold: 2); map and touch, without making the file and unmapping. Pages of tuned are\n"
	        "   cleared by the kernel; those of prefilled and ready were zeroed before the clock, those of dirty "
	        "by\n"
	        "   the named threads under it. cold starts without a pool and fills it on all CPUs.\n\n",
	        (double)r->touch_size / (double)BENCH_GIB, bench_cpus(), r->rounds);
	print_touches(r, out);
	print_fills(r, out);
	print_mutexes(r, out);
}
