/* SPDX-License-Identifier: MIT */
/*
 * Processes that are killed while they hold one of the pool's locks. A child takes the lock as the library does and is
 * killed with it; the parent then does something ordinary that needs the lock, and must get it soon. Where the child
 * had nothing else in its hands the books are right again after the next check.
 */
#include "real.h"

#include "file/lock.h"
#include "file/remove.h"
#include "file/reserve.h"
#include "space/space.h"

#include <sched.h>

#define FRAMES 24
#define PAGES 12      /* of the file that is mapped */
#define BARE_PAGES 4  /* of the one that is not */
#define SECONDS_MAX 5 /* generous: what is aimed at is a tenth of a second */

static struct hp_pool_view *view;
static hp_file file, bare;
static char *lazy;
static uint32_t parent; /* its number as a process of the pool */
static int next_page;   /* of `lazy`: the first that nobody has touched */
static _Atomic int *step;

/* ---- pools ------------------------------------------------------------------------------------------------------ */

static const hp_backing backings[] = {HP_BACKING_HUGETLB, HP_BACKING_THP, HP_BACKING_BASE};

#define BACKINGS (sizeof(backings) / sizeof(backings[0]))

/* False: this kind of memory cannot be had here. */
static bool start(hp_backing backing, const char *tuning)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	cpu_set_t cpus;

	options.size = FRAMES * FRAME;
	options.workers = HP_WORKERS_NONE;
	options.backing = backing;
	options.tuning = tuning;
	if (backing != HP_BACKING_AUTO && hp_pool_create(&options, &pool, &error))
		return false;
	if (backing == HP_BACKING_AUTO)
		make_pool_with(&options);
	/* Parent and children use the same CPU's cache. */
	CPU_ZERO(&cpus);
	CPU_SET(sched_getcpu(), &cpus);
	EXPECT_EQ(sched_setaffinity(0, sizeof(cpus), &cpus), 0);
	view = hp_pool_find(pool.id);
	EXPECT(view);
	parent = view->process;
	step = make_shared(4096);
	file = make_file(PAGES);
	bare = make_file(BARE_PAGES);
	lazy = map(file, PAGES, LAZY);
	next_page = 0;
	return true;
}

static void end(void)
{
	unmap(lazy, PAGES);
	close_file(file);
	close_file(bare);
	end_pool();
	munmap(step, 4096);
}

static struct hp_thread *thread_record(void)
{
	struct hp_thread *t;

	EXPECT_EQ(hp_thread_enter(view, &t), 0);
	return t;
}

static struct hp_file_use use_of(hp_file of)
{
	uint32_t number = of.id >> 8 & 0xffffff;

	return (struct hp_file_use){hp_file_at(view, number), number};
}

static struct hp_file_record *record_of(hp_file of)
{
	return use_of(of).record;
}

/* The dead are found, and nothing of theirs is left: `lazy` is mapped, and so many more. */
static void expect_alone_with(unsigned mappings)
{
	check_pool();
	EXPECT_EQ(stats_now().processes, 1);
	EXPECT_EQ(stats_now().mappings, 1 + mappings);
	EXPECT_EQ(stats_now().files, 2);
}

static void expect_alone(void)
{
	expect_alone_with(0);
}

/* ---- time ------------------------------------------------------------------------------------------------------- */

static double longest;
static const char *longest_name = "";

static void expect_soon(const char *name, double since)
{
	double took = seconds() - since;

	if (took >= SECONDS_MAX)
		fprintf(stderr, "%s took %.2f s\n", name, took);
	EXPECT(took < SECONDS_MAX);
	if (took <= longest)
		return;
	longest = took;
	longest_name = name;
}

/* To be read after the run, in its log. */
static void tell_longest(const char *what)
{
	fprintf(stderr, "%s: longest wait after a death %.0f ms (%s)\n", what, longest * 1e3, longest_name);
}

/* ---- what the child holds --------------------------------------------------------------------------------------- */

static void hold_extents(struct hp_thread *t)
{
	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
}

static void hold_cache(struct hp_thread *t)
{
	hp_mutex_lock(&view->caches[(uint32_t)sched_getcpu() % HP_CPU_CACHES].lock, &t->locker, HP_CLASS_CPU_CACHE);
}

static void hold_files(struct hp_thread *t)
{
	hp_mutex_lock(&view->shared->files.lock, &t->locker, HP_CLASS_TABLE);
}

static void hold_vmas(struct hp_thread *t)
{
	hp_mutex_lock(&view->shared->vmas.lock, &t->locker, HP_CLASS_TABLE);
}

static void hold_pages(struct hp_thread *t)
{
	hp_mutex_lock(&view->shared->pages.lock, &t->locker, HP_CLASS_PAGES);
}

static void hold_reap(struct hp_thread *t)
{
	hp_mutex_lock(&view->shared->reap_lock, &t->locker, HP_CLASS_REAP);
}

static void hold_reservation(struct hp_thread *t)
{
	hp_mutex_lock(&record_of(file)->reserve_lock, &t->locker, HP_CLASS_RESERVE);
}

static void hold_all_reservations(struct hp_thread *t)
{
	hp_mutex_lock(&view->shared->resv_lock_of_all, &t->locker, HP_CLASS_RESERVE);
}

static void hold_mappings(struct hp_thread *t)
{
	hp_mutex_lock(&record_of(file)->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS);
}

static void hold_file_for_writing(struct hp_thread *t)
{
	hp_biased_write_lock(&record_of(file)->lock, &t->locker, HP_CLASS_FILE);
}

static void hold_file_for_reading(struct hp_thread *t)
{
	hp_biased_read_lock(&record_of(file)->lock, &t->locker, HP_CLASS_FILE);
}

static void hold_file_upgradeable(struct hp_thread *t)
{
	hp_biased_upgradeable_lock(&record_of(file)->lock, &t->locker, HP_CLASS_FILE);
}

/* Several at once, in the lock order. */
static void hold_many(struct hp_thread *t)
{
	hold_reap(t);
	hold_files(t);
	hold_mappings(t);
	hold_file_for_reading(t);
	hp_mutex_lock(hp_fault_mutex_for(view->fault_mutexes, view->shared->fault_mutexes, 1, 0), &t->locker,
	              HP_CLASS_FAULT);
	hold_reservation(t);
	hold_pages(t);
	hold_extents(t);
	hold_cache(t);
}

/* The record of the parent's mapping. */
static struct hp_vma_record *parents_vma(void)
{
	uint32_t number = record_of(file)->vma_head;

	while (number && atomic_load(&hp_vma_at(view, number)->process) != parent)
		number = hp_vma_at(view, number)->next;
	EXPECT(number);
	return hp_vma_at(view, number);
}

static void hold_mapping_for_writing(struct hp_thread *t)
{
	hp_rwsem_write_lock(&parents_vma()->lock, &t->locker, HP_CLASS_MAPPING);
}

static void hold_mapping_for_reading(struct hp_thread *t)
{
	hp_rwsem_read_lock(&parents_vma()->lock, &t->locker, HP_CLASS_MAPPING);
}

/* ---- what the parent does --------------------------------------------------------------------------------------- */

static void alloc_and_free(void)
{
	void *extent;

	EXPECT_OK(hp_alloc(pool, 2 * FRAME, &extent, &error));
	EXPECT_EQ(hp_free(pool, extent), 0);
}

static void create_and_close(void)
{
	close_file(make_file(3));
}

static void map_and_unmap(void)
{
	unmap(map_part(file, 0, 2, RW, LAZY), 2);
}

static void allocate(void)
{
	EXPECT_OK(hp_file_allocate(file, 0, FRAME, &error));
}

static void touch_next(void)
{
	EXPECT(next_page < PAGES);
	EXPECT(is_zero(lazy + next_page++ * FRAME));
}

static void check(void)
{
	check_pool();
}

static void truncate_to_the_same(void)
{
	EXPECT_OK(hp_file_truncate(file, PAGES * FRAME, &error));
}

static void do_nothing(void *unused)
{
}

static void fork_once(void)
{
	run_child(do_nothing, NULL);
}

/* ---- each lock in turn ------------------------------------------------------------------------------------------ */

struct death {
	const char *name;
	void (*hold)(struct hp_thread *t);
	void (*use)(void);
};

static void hold_and_die(void *context)
{
	const struct death *death = context;

	death->hold(thread_record());
	kill(getpid(), SIGKILL);
}

static void run_deaths(struct death *deaths)
{
	for (; deaths->name; deaths++) {
		double since;

		expect_killed(hold_and_die, deaths, SIGKILL);
		since = seconds();
		deaths->use();
		expect_soon(deaths->name, since);
		expect_alone();
	}
}

static struct death ordinary[] = {
	{"extents, alloc", hold_extents, alloc_and_free},
	{"extents, fault", hold_extents, touch_next},
	{"CPU cache, check", hold_cache, check},
	{"table of files, create", hold_files, create_and_close},
	{"table of mappings, map", hold_vmas, map_and_unmap},
	{"table of mappings, fork", hold_vmas, fork_once},
	{"pages, create", hold_pages, create_and_close},
	{"reap, check", hold_reap, check},
	{"reservation, allocate", hold_reservation, allocate},
	{"reservation, map", hold_reservation, map_and_unmap},
	{"file mappings, map", hold_mappings, map_and_unmap},
	{"file mappings, fork", hold_mappings, fork_once},
	{"file mappings, truncate", hold_mappings, truncate_to_the_same},
	{"file for writing, fault", hold_file_for_writing, touch_next},
	{"file for writing, allocate", hold_file_for_writing, allocate},
	{"file for writing, fork", hold_file_for_writing, fork_once},
	{"file for writing, truncate", hold_file_for_writing, truncate_to_the_same},
	{"file for reading, truncate", hold_file_for_reading, truncate_to_the_same},
	{"file for reading, fault", hold_file_for_reading, touch_next},
	{"file upgradeable, truncate", hold_file_upgradeable, truncate_to_the_same},
	{"many, alloc", hold_many, alloc_and_free},
	{"many, truncate", hold_many, truncate_to_the_same},
	{NULL},
};

static void test_each_lock(void)
{
	unsigned done = 0;

	for (unsigned i = 0; i < BACKINGS; i++) {
		if (!start(backings[i], "fault_window=1"))
			continue;
		run_deaths(ordinary);
		end();
		done++;
	}
	EXPECT(done > 0);
	tell_longest("each lock");
}

static struct death of_schemes[] = {
	{"file for writing, fault", hold_file_for_writing, touch_next},
	{"file for writing, allocate", hold_file_for_writing, allocate},
	{"file for writing, fork", hold_file_for_writing, fork_once},
	{"file for writing, truncate", hold_file_for_writing, truncate_to_the_same},
	{"file for reading, truncate", hold_file_for_reading, truncate_to_the_same},
	{"file for reading, fork", hold_file_for_reading, fork_once},
	{"file upgradeable, truncate", hold_file_upgradeable, truncate_to_the_same},
	{NULL},
};

static void test_each_file_lock(void)
{
	static const char *const tunings[] = {"fault_window=1 file_lock=invalidate", "fault_window=1 file_lock=vma",
	                                      "fault_window=1 file_lock=rwsem"};

	for (unsigned i = 0; i < sizeof(tunings) / sizeof(tunings[0]); i++) {
		EXPECT(start(HP_BACKING_AUTO, tunings[i]));
		run_deaths(of_schemes);
		end();
	}
	tell_longest("each file lock");
}

static void test_mapping_lock(void)
{
	static struct death deaths[] = {
		{"mapping for writing, fault", hold_mapping_for_writing, touch_next},
		{"mapping for reading, fault", hold_mapping_for_reading, touch_next},
		{NULL},
	};

	EXPECT(start(HP_BACKING_AUTO, "fault_window=1 file_lock=vma"));
	run_deaths(deaths);
	end();
	tell_longest("mapping lock");
}

/* A mapping whose lock a dead thread holds is not in the way of one who cuts. */
static void test_mapping_lock_and_truncate(void)
{
	static struct death deaths[] = {
		{"mapping for reading, truncate", hold_mapping_for_reading, truncate_to_the_same},
		{"mapping for writing, truncate", hold_mapping_for_writing, truncate_to_the_same},
		{NULL},
	};

	EXPECT(start(HP_BACKING_AUTO, "fault_window=1 file_lock=vma"));
	run_deaths(deaths);
	end();
}

static void test_reservation_lock_of_all(void)
{
	static struct death deaths[] = {
		{"reservation of all, allocate", hold_all_reservations, allocate},
		{"reservation of all, truncate", hold_all_reservations, truncate_to_the_same},
		{NULL},
	};

	EXPECT(start(HP_BACKING_AUTO, "fault_window=1 resv_lock=global"));
	run_deaths(deaths);
	end();
}

/* ---- killed inside a fault -------------------------------------------------------------------------------------- */

static struct hp_mutex *mutex_of_page(int page)
{
	return hp_fault_mutex_for(view->fault_mutexes, view->shared->fault_mutexes, use_of(file).number,
	                          (uint32_t)page);
}

static void touch_next_in_child(void *unused)
{
	touch_next();
}

/* A child is killed while it sleeps in a fault: it has the file lock for reading and the fault mutex. */
static void die_in_a_fault(void)
{
	double deadline = seconds() + STEP_SECONDS_MAX;
	pid_t pid;

	view->shared->fault_sleep_us = 1000000;
	pid = start_child(touch_next_in_child, NULL);
	while (!atomic_load(&mutex_of_page(next_page)->word)) {
		EXPECT(seconds() < deadline);
		nap(200);
	}
	nap(1000);
	kill(pid, SIGKILL);
	EXPECT(WIFSIGNALED(end_of(pid)));
	view->shared->fault_sleep_us = 0;
}

static void deaths_in_faults(hp_backing backing, const char *tuning)
{
	double since;

	if (!start(backing, tuning))
		return;
	die_in_a_fault();
	since = seconds();
	touch_next(); /* the same page */
	expect_soon("fault mutex, fault", since);
	expect_alone();
	die_in_a_fault();
	since = seconds();
	fork_once();
	expect_soon("in a fault, fork", since);
	expect_alone();
	die_in_a_fault();
	since = seconds();
	truncate_to_the_same();
	expect_soon("in a fault, truncate", since);
	expect_alone();
	/* The bias is off now. */
	die_in_a_fault();
	since = seconds();
	truncate_to_the_same();
	expect_soon("in a fault, truncate again", since);
	touch_next();
	end();
}

static void test_in_a_fault(void)
{
	for (unsigned i = 0; i < BACKINGS; i++)
		deaths_in_faults(backings[i], "fault_window=1");
	deaths_in_faults(HP_BACKING_AUTO, "fault_window=1 file_lock=invalidate");
	deaths_in_faults(HP_BACKING_AUTO, "fault_window=1 file_lock=rwsem");
	deaths_in_faults(HP_BACKING_AUTO, "fault_window=1 file_lock=vma");
	tell_longest("in a fault");
}

/* ---- half done -------------------------------------------------------------------------------------------------- */

/* Where in hp_file_truncate the child is killed. */
enum moment {
	SIZE_IS_CHANGED,    /* nothing is taken away yet; both locks are held */
	PROCESSES_ARE_TOLD, /* that, and those that map it have heard */
	A_PART_IS_TAKEN,    /* the first part is; the locks are held */
	BETWEEN_PARTS,      /* no lock is held */
	ALL_IS_TAKEN,       /* with the locks held still */
	MOMENTS,
};

static void truncate_half(void *moment)
{
	struct hp_file_use use = use_of(bare);
	struct hp_thread *t = thread_record();
	uint64_t uncovered = 0;
	sigset_t saved;

	hp_intent_begin(t->intents, HP_INTENT_TRUNCATE, use.number, 1, 0);
	hp_signals_block(&saved);
	hp_file_modify_lock(t, use);
	atomic_store(&use.record->pages, 1);
	if (*(enum moment *)moment >= PROCESSES_ARE_TOLD)
		hp_vma_tell_locked(view, use.record, 1);
	if (*(enum moment *)moment >= A_PART_IS_TAKEN)
		EXPECT_EQ(hp_file_remove_locked(t, use, 1, 2, &uncovered), 0);
	if (*(enum moment *)moment == ALL_IS_TAKEN)
		EXPECT_EQ(hp_file_remove_locked(t, use, 2, BARE_PAGES, &uncovered), 0);
	if (*(enum moment *)moment == BETWEEN_PARTS)
		hp_file_modify_unlock(t, use);
	kill(getpid(), SIGKILL);
}

/* What comes next in the process that lives. */
enum next { CHECK, TRUNCATE_THERE, GROW, GROW_A_BIT, ALLOCATE, MAP_IT, NEXTS };

static void expect_cut(uint64_t pages)
{
	EXPECT_EQ(file_stat(bare).size, pages * FRAME);
	EXPECT_EQ(file_stat(bare).present, FRAME);
	EXPECT_EQ(file_stat(bare).holes, 0);
	EXPECT_EQ(file_stat(bare).reserved, 0);
}

static void do_next(enum next next)
{
	switch (next) {
	case TRUNCATE_THERE:
		EXPECT_OK(hp_file_truncate(bare, FRAME, &error));
		break;
	case GROW:
		EXPECT_OK(hp_file_truncate(bare, BARE_PAGES * FRAME, &error));
		break;
	case GROW_A_BIT:
		EXPECT_OK(hp_file_truncate(bare, 2 * FRAME, &error));
		break;
	case ALLOCATE:
		EXPECT_OK(hp_file_allocate(bare, 0, FRAME, &error));
		EXPECT_EQ(hp_file_allocate(bare, FRAME, FRAME, &error), -EINVAL);
		break;
	case MAP_IT:
		unmap(map_part(bare, 0, 1, RW, LAZY), 1);
		break;
	default:
		check_pool();
	}
}

/*
 * Whatever comes next, and before or after the dead process is buried: no byte comes back that was cut. The burial
 * gives all frames back.
 */
static void killed_in_truncate(hp_backing backing, const char *tuning, enum moment moment, enum next next)
{
	uint64_t size = next == GROW ? BARE_PAGES : next == GROW_A_BIT ? 2 : 1;
	double since;
	char *ready;

	if (!start(backing, tuning))
		return;
	EXPECT_OK(hp_file_allocate(bare, 0, BARE_PAGES * FRAME, &error));
	ready = map(bare, BARE_PAGES, 0);
	for (int i = 0; i < BARE_PAGES; i++)
		write_tag(ready + i * FRAME, i);
	unmap(ready, BARE_PAGES);
	expect_killed(truncate_half, &moment, SIGKILL);
	since = seconds();
	do_next(next);
	expect_soon("half truncated", since);
	if (size > 1) { /* before the burial */
		ready = map_part(bare, 1, size - 1, RW, LAZY);
		for (uint64_t i = 0; i + 1 < size; i++) {
			EXPECT(is_zero(ready + i * FRAME));
			write_tag(ready + i * FRAME, i + 40);
		}
	}
	expect_alone_with(size > 1);
	EXPECT_EQ(stats_now().used, size);
	EXPECT_EQ(stats_now().holes, 0);
	if (size > 1) { /* which takes nothing of it away */
		for (uint64_t i = 0; i + 1 < size; i++)
			EXPECT(has_tag(ready + i * FRAME, i + 40));
		unmap(ready, size - 1);
		EXPECT_OK(hp_file_truncate(bare, FRAME, &error));
	}
	expect_cut(1);
	EXPECT_OK(hp_file_truncate(bare, BARE_PAGES * FRAME, &error));
	expect_cut(BARE_PAGES);
	ready = map(bare, BARE_PAGES, 0);
	EXPECT(has_tag(ready, 0));
	for (int i = 1; i < BARE_PAGES; i++)
		EXPECT(is_zero(ready + i * FRAME));
	unmap(ready, BARE_PAGES);
	end();
}

static void test_half_truncated(void)
{
	static const char *const tunings[] = {NULL, "file_lock=invalidate", "file_lock=vma", "file_lock=rwsem"};

	for (enum moment moment = SIZE_IS_CHANGED; moment < MOMENTS; moment++)
		for (enum next next = CHECK; next < NEXTS; next++) {
			killed_in_truncate(HP_BACKING_AUTO, tunings[(moment + next) % 4], moment, next);
			killed_in_truncate(HP_BACKING_BASE, tunings[(moment + next + 1) % 4], moment, next);
		}
}

/*
 * The same of a file that is mapped here, ready and lazily. The dead process may not have told us: then the burial
 * does, or who cuts or grows the file next.
 */
static void killed_in_truncate_of_mapped(enum moment moment, enum next next)
{
	uint64_t size = next == GROW ? BARE_PAGES : next == GROW_A_BIT ? 2 : 1;
	char *mapped[2], *third;

	EXPECT(start(HP_BACKING_AUTO, "fault_window=1"));
	for (int m = 0; m < 2; m++)
		mapped[m] = map(bare, BARE_PAGES, m ? LAZY : 0);
	for (int i = 0; i < BARE_PAGES; i++)
		write_tag(mapped[i % 2] + i * FRAME, i);
	touch(mapped[1]);
	expect_killed(truncate_half, &moment, SIGKILL);
	do_next(next);
	expect_alone_with(2);
	file_stat(bare); /* behind no more */
	EXPECT(has_tag(mapped[0], 0) && has_tag(mapped[1], 0));
	for (int m = 0; m < 2; m++)
		for (uint64_t i = 1; i < BARE_PAGES; i++) {
			if (i < size)
				EXPECT(is_zero(mapped[m] + i * FRAME));
			else
				expect_killed(touch_it, mapped[m] + i * FRAME, SIGBUS);
		}
	expect_alone_with(2);
	EXPECT_EQ(file_stat(bare).size, size * FRAME);
	/* What was mapped all the time and is inside again may be a hole. */
	EXPECT_EQ(stats_now().used + stats_now().holes, size);
	EXPECT_EQ(file_stat(bare).present + file_stat(bare).holes, size * FRAME);
	EXPECT_OK(hp_file_truncate(bare, BARE_PAGES * FRAME, &error));
	third = map(bare, BARE_PAGES, LAZY);
	for (int i = 1; i < BARE_PAGES; i++) {
		EXPECT(is_zero(mapped[i % 2] + i * FRAME));
		write_tag(mapped[i % 2] + i * FRAME, 7 * i);
		EXPECT(has_tag(mapped[1 - i % 2] + i * FRAME, 7 * i));
		EXPECT(has_tag(third + i * FRAME, 7 * i));
	}
	unmap(mapped[0], BARE_PAGES);
	unmap(mapped[1], BARE_PAGES);
	unmap(third, BARE_PAGES);
	end();
}

static void test_half_truncated_and_mapped(void)
{
	for (enum moment moment = SIZE_IS_CHANGED; moment < MOMENTS; moment++)
		for (enum next next = CHECK; next < NEXTS; next++)
			killed_in_truncate_of_mapped(moment, next);
}

/* What hp_file_truncate does when it grows a file, up to where it is promised and the size is not changed, or just is. */
static void grow_half(void *changed)
{
	struct hp_file_use use = use_of(bare);
	struct hp_thread *t = thread_record();
	sigset_t saved;

	hp_intent_begin(t->intents, HP_INTENT_TRUNCATE, use.number, BARE_PAGES, 0);
	hp_signals_block(&saved);
	EXPECT_OK(hp_reserve_promise(t, use, 2, BARE_PAGES - 2, &saved, &error));
	hp_file_modify_lock(t, use);
	hp_vma_extend_locked(view, use.record, BARE_PAGES);
	if (changed)
		atomic_store(&use.record->pages, BARE_PAGES);
	kill(getpid(), SIGKILL);
}

static void killed_while_it_grows(unsigned flags, bool changed)
{
	char *mapped;

	EXPECT(start(HP_BACKING_AUTO, "fault_window=1"));
	mapped = map(bare, BARE_PAGES, flags);
	for (int i = 0; i < BARE_PAGES; i++)
		write_tag(mapped + i * FRAME, i);
	EXPECT_OK(hp_file_truncate(bare, 2 * FRAME, &error));
	expect_killed(grow_half, changed ? &changed : NULL, SIGKILL);
	expect_alone_with(1);
	file_stat(bare);
	for (uint64_t i = 2; i < BARE_PAGES; i++) {
		if (changed)
			EXPECT(is_zero(mapped + i * FRAME));
		else
			expect_killed(touch_it, mapped + i * FRAME, SIGBUS);
	}
	expect_alone_with(1);
	EXPECT_EQ(stats_now().used, changed ? BARE_PAGES : 2);
	EXPECT_EQ(stats_now().reserved, PAGES);
	EXPECT_OK(hp_file_truncate(bare, BARE_PAGES * FRAME, &error));
	for (uint64_t i = 0; i < BARE_PAGES; i++)
		EXPECT(i < 2 ? has_tag(mapped + i * FRAME, i) : is_zero(mapped + i * FRAME));
	unmap(mapped, BARE_PAGES);
	end();
}

static void test_half_grown(void)
{
	for (unsigned i = 0; i < 4; i++)
		killed_while_it_grows(i % 2 ? LAZY : 0, i / 2);
}

/* The middle of hp_vma_add: the record says that it is listed, and is not yet. */
static void list_half(void *unused)
{
	struct hp_thread *t = thread_record();
	struct hp_file_record *record = record_of(file);
	struct hp_vma_record *vma;
	uint32_t number = hp_table_take(&view->shared->vmas, view->vmas, HP_VMA_RECORD_SIZE, &t->locker);

	EXPECT(number);
	vma = hp_vma_at(view, number);
	vma->file = use_of(file).number;
	vma->first = 1;
	vma->pages = 2;
	hp_mutex_lock(&record->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS);
	hp_file_get(view, vma->file);
	atomic_store(&vma->process, view->process);
	vma->listed = 1;
	vma->next = record->vma_head;
	kill(getpid(), SIGKILL);
}

/* The middle of hp_vma_remove of the child's own mapping: neighbours do not know it any more. */
static void unlist_half(void *unused)
{
	struct hp_thread *t = thread_record();
	struct hp_file_record *record = record_of(file);

	hp_mutex_lock(&record->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS);
	if (atomic_load(&hp_vma_at(view, record->vma_head)->process) == view->process)
		record->vma_head = hp_vma_at(view, record->vma_head)->next;
	else
		record->vma_head = 0;
	kill(getpid(), SIGKILL);
}

static void test_half_listed(void)
{
	static void (*const halves[])(void *) = {list_half, unlist_half};
	static void (*const uses[])(void) = {map_and_unmap, fork_once, truncate_to_the_same, check};

	EXPECT(start(HP_BACKING_AUTO, "fault_window=1"));
	for (unsigned i = 0; i < 8; i++) {
		double since;

		expect_killed(halves[i % 2], NULL, SIGKILL);
		since = seconds();
		uses[i / 2]();
		expect_soon("half listed", since);
		expect_alone();
		EXPECT_EQ(file_stat(file).mappings, 1);
	}
	end();
}

/* ---- killed while it buries another ----------------------------------------------------------------------------- */

static void take_much_and_die(void *unused)
{
	hp_file own = make_file(3);
	char *address = map(own, 3, LAZY);

	write_tag(address, 1);
	map(file, 2, LAZY);
	hold_file_for_reading(thread_record());
	kill(getpid(), SIGKILL);
}

static void quiet(hp_log_level level, const char *line, void *context)
{
}

/* Number of the process that is dead, for who buries it half. */
static uint32_t dead_process(void)
{
	uint32_t id = 1;

	while (id < HP_PROCESSES_MAX &&
	       (id == parent || id == view->process || !hp_process_is_live(&view->processes, id)))
		id++;
	EXPECT(id < HP_PROCESSES_MAX);
	return id;
}

static void reap_half(void *begun)
{
	struct hp_thread *t = thread_record();
	uint32_t dead = dead_process();

	hold_reap(t);
	EXPECT(hp_process_bury(&view->processes, dead));
	if (begun) {
		/* Some of its mappings are gone already. */
		for (uint32_t number = 1; number < view->shared->vmas.fresh; number++)
			if (atomic_load(&hp_vma_at(view, number)->process) == dead) {
				hp_vma_remove(t, number);
				break;
			}
	}
	kill(getpid(), SIGKILL);
}

static void test_killed_while_it_reaps(void)
{
	hp_log_set(quiet, HP_LOG_DEBUG, NULL);
	EXPECT(start(HP_BACKING_AUTO, "fault_window=1"));
	for (int i = 0; i < 4; i++) {
		double since;

		expect_killed(take_much_and_die, NULL, SIGKILL);
		expect_killed(reap_half, i % 2 ? &i : NULL, SIGKILL);
		since = seconds();
		check_pool();
		expect_soon("killed reaper, check", since);
		expect_alone();
	}
	end();
}

/* One who goes on with a burial is killed as well. */
static void reap_half_twice(void *unused)
{
	reap_half(unused);
}

static void go_on_and_die(void *unused)
{
	struct hp_thread *t = thread_record();

	hold_reap(t); /* goes on where the first one stopped */
	kill(getpid(), SIGKILL);
}

static void test_killed_while_it_goes_on(void)
{
	hp_log_set(quiet, HP_LOG_DEBUG, NULL);
	EXPECT(start(HP_BACKING_AUTO, "fault_window=1"));
	expect_killed(take_much_and_die, NULL, SIGKILL);
	expect_killed(reap_half_twice, NULL, SIGKILL);
	expect_killed(go_on_and_die, NULL, SIGKILL);
	expect_alone();
	end();
}

static void bury_and_die(void *unused)
{
	uint32_t dead = dead_process();

	hold_reap(thread_record());
	EXPECT(hp_process_bury(&view->processes, dead));
	kill(getpid(), SIGKILL);
}

static void test_killed_before_it_reaps(void)
{
	hp_log_set(quiet, HP_LOG_DEBUG, NULL);
	EXPECT(start(HP_BACKING_AUTO, "fault_window=1"));
	expect_killed(take_much_and_die, NULL, SIGKILL);
	expect_killed(bury_and_die, NULL, SIGKILL);
	expect_alone();
	end();
}

/* ---- many that die ---------------------------------------------------------------------------------------------- */

#define CROWD 16

static void *hold_and_wait(void *hold)
{
	((void (*)(struct hp_thread *))hold)(thread_record());
	atomic_fetch_add(step, 1);
	for (;;)
		pause();
	return NULL;
}

/* A process whose threads all hold the lock for reading. */
static void crowd_dies(void *unused)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128 * 1024);
	for (int i = 0; i < CROWD; i++)
		EXPECT_EQ(pthread_create(&thread, &attr, hold_and_wait, (void *)hold_file_for_reading), 0);
	await(step, CROWD);
	kill(getpid(), SIGKILL);
}

static void expect_crowd_killed(void)
{
	REACH(step, 0);
	expect_killed(crowd_dies, NULL, SIGKILL);
}

/* More threads die with a lock held for reading than there are slots. */
static void test_slots_of_the_dead(void)
{
	static const char *const tunings[] = {NULL, "file_lock=invalidate"};

	for (unsigned i = 0; i < 2; i++) {
		EXPECT(start(HP_BACKING_AUTO, tunings[i]));
		for (unsigned died = 0, n = 0; died <= HP_SLOTS_MAX / (i ? 4 : 1); died += CROWD, n++) {
			expect_crowd_killed();
			if (n % 10 == 9)
				expect_alone();
		}
		expect_alone();
		EXPECT(atomic_load(&view->locks.shared->slots_used) <= 10 * (CROWD + 1) + 2);
		truncate_to_the_same();
		end();
	}
}

/* One process with many readers, and a writer that comes before anybody has buried it. */
static void test_many_readers_of_one_process(void)
{
	static const char *const tunings[] = {NULL, "file_lock=invalidate"};

	for (unsigned i = 0; i < 2; i++) {
		double since;

		EXPECT(start(HP_BACKING_AUTO, tunings[i]));
		expect_crowd_killed();
		since = seconds();
		truncate_to_the_same();
		expect_soon(i ? "16 counted readers, truncate" : "16 biased readers, truncate", since);
		expect_alone();
		end();
	}
	tell_longest("many readers");
}

static void *enter(void *unused)
{
	hp_pool_stats stats = {.struct_size = sizeof(stats)};

	EXPECT_EQ(hp_pool_stats_get(pool, &stats), 0);
	return NULL;
}

static void all_slots_die(void *unused)
{
	pthread_attr_t attr;
	pthread_t thread;
	int threads = 0;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128 * 1024);
	while (threads < (int)HP_THREADS_MAX - 2 &&
	       !pthread_create(&thread, &attr, hold_and_wait, (void *)hold_file_for_reading))
		threads++;
	await(step, threads);
	hold_file_for_reading(thread_record());
	kill(getpid(), SIGKILL);
}

/* Every slot but ours belongs to a dead thread that held something: a new thread takes one all the same. */
static void test_all_slots_are_of_the_dead(void)
{
	EXPECT(start(HP_BACKING_AUTO, NULL));
	expect_killed(all_slots_die, NULL, SIGKILL);
	for (int i = 0; i < 3; i++)
		join_thread(start_thread(enter, NULL));
	expect_alone();
	end();
}

/* ---- exec ------------------------------------------------------------------------------------------------------- */

/* Another thread holds the lock, or the one that calls exec does, or the first one while another calls exec. */
static void hold_and_exec(void *hold)
{
	start_thread(hold_and_wait, hold);
	await(step, 1);
	execl("/bin/true", "true", NULL);
}

static void exec_holding(void *hold)
{
	((void (*)(struct hp_thread *))hold)(thread_record());
	execl("/bin/true", "true", NULL);
}

static void *exec_when_held(void *unused)
{
	await(step, 1);
	execl("/bin/true", "true", NULL);
	return NULL;
}

static void hold_while_another_execs(void *hold)
{
	start_thread(exec_when_held, NULL);
	hold_and_wait(hold);
}

static void test_exec(void)
{
	static void (*const ways[])(void *) = {hold_and_exec, exec_holding, hold_while_another_execs};
	static struct death deaths[] = {
		{"exec, extents, alloc", hold_extents, alloc_and_free},
		{"exec, file for writing, fault", hold_file_for_writing, touch_next},
		{"exec, file for reading, truncate", hold_file_for_reading, truncate_to_the_same},
	};

	EXPECT(start(HP_BACKING_AUTO, "fault_window=1"));
	for (unsigned i = 0; i < 9; i++) {
		struct death *death = &deaths[i / 3];
		double since;

		REACH(step, 0);
		run_child(ways[i % 3], (void *)death->hold);
		since = seconds();
		death->use();
		expect_soon(death->name, since);
		expect_alone();
	}
	end();
	tell_longest("exec");
}

/* Waiters are many, of several processes: one takes over, the others get the lock after it. */
static void touch_all(void *unused)
{
	for (int i = 0; i < PAGES; i++)
		touch(lazy + i * FRAME);
}

static void test_many_wait(void)
{
	static struct death death = {"", hold_file_for_writing, NULL};
	pid_t pid[4];
	double since;

	EXPECT(start(HP_BACKING_AUTO, "fault_window=1"));
	for (int i = 0; i < 4; i++) {
		/* They have registered, and wait for the start. */
		pid[i] = fork();
		EXPECT(pid[i] >= 0);
		if (pid[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			await(step, 1);
			touch_all(NULL);
			_exit(0);
		}
	}
	expect_killed(hold_and_die, &death, SIGKILL);
	since = seconds();
	REACH(step, 1);
	for (int i = 0; i < 4; i++)
		join_child(pid[i]);
	expect_soon("four processes wait", since);
	expect_alone();
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_each_lock),
		REAL_TEST(test_each_file_lock),
		REAL_TEST(test_mapping_lock),
		REAL_TEST(test_mapping_lock_and_truncate),
		REAL_TEST(test_reservation_lock_of_all),
		REAL_TEST(test_in_a_fault),
		REAL_TEST(test_half_truncated),
		REAL_TEST(test_half_truncated_and_mapped),
		REAL_TEST(test_half_grown),
		REAL_TEST(test_half_listed),
		REAL_TEST(test_killed_while_it_reaps),
		REAL_TEST(test_killed_while_it_goes_on),
		REAL_TEST(test_killed_before_it_reaps),
		REAL_TEST(test_slots_of_the_dead),
		REAL_TEST(test_many_readers_of_one_process),
		REAL_TEST(test_all_slots_are_of_the_dead),
		REAL_TEST(test_exec),
		REAL_TEST(test_many_wait),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
