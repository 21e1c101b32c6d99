/* SPDX-License-Identifier: MIT */
/*
 * Races of the fault path, one interleaving at a time: a lock that a fault needs is held by another thread until the
 * others are where the test wants them.
 */
#include "real.h"

#include "file/reserve.h"
#include "space/space.h"

#define PAGES 8

static struct hp_pool_view *view;

static void start(uint64_t frames, const char *tuning)
{
	make_pool(frames, tuning);
	view = hp_pool_find(pool.id);
	EXPECT(view);
}

static struct hp_thread *thread_record(void)
{
	struct hp_thread *t;

	EXPECT_EQ(hp_thread_enter(view, &t), 0);
	return t;
}

static uint32_t number_of(hp_file file)
{
	return file.id >> 8 & 0xffffff;
}

static struct hp_file_record *record_of(hp_file file)
{
	return hp_file_at(view, number_of(file));
}

/* A thread that touches an address, and says when it is about to and when it has. */
struct toucher {
	char *address;
	pthread_t thread;
	_Atomic int step;
};

static void *touch_address(void *context)
{
	struct toucher *toucher = context;

	REACH(&toucher->step, 1);
	touch(toucher->address);
	REACH(&toucher->step, 2);
	return NULL;
}

static void start_touching(struct toucher *toucher, char *address)
{
	*toucher = (struct toucher){.address = address};
	toucher->thread = start_thread(touch_address, toucher);
	await(&toucher->step, 1);
}

/* Long enough for whatever is not held up. */
static void expect_waiting(_Atomic int *step)
{
	nap(30000);
	EXPECT_EQ(atomic_load(step), 1);
}

static void join_toucher(struct toucher *toucher)
{
	await(&toucher->step, 2);
	join_thread(toucher->thread);
}

/*
 * A thread that holds a lock: nobody who holds a lock of the fault path may go into other calls, so the test's own thread
 * does not.
 */
static struct holder {
	pthread_t thread;
	struct hp_mutex *mutex;
	struct hp_biased *lock;
	_Atomic int step; /* 1: it is held; 2: let go */
} holder;

static void *hold_lock(void *unused)
{
	struct hp_thread *t = thread_record();

	if (holder.mutex)
		hp_mutex_lock(holder.mutex, &t->locker, HP_CLASS_FAULT);
	else
		hp_biased_write_lock(holder.lock, &t->locker, HP_CLASS_FILE);
	atomic_store(&holder.step, 1);
	await(&holder.step, 2);
	if (holder.mutex)
		hp_mutex_unlock(holder.mutex, &t->locker);
	else
		hp_biased_write_unlock(holder.lock, &t->locker);
	return NULL;
}

static void hold(struct hp_mutex *mutex, struct hp_biased *lock)
{
	holder = (struct holder){.mutex = mutex, .lock = lock};
	holder.thread = start_thread(hold_lock, NULL);
	await(&holder.step, 1);
}

static void let_go(void)
{
	atomic_store(&holder.step, 2);
	join_thread(holder.thread);
}

/* ---- the last frame --------------------------------------------------------------------------------------------- */

struct racer {
	pthread_barrier_t *barrier;
	char **address;
	int rounds;
};

static void *race(void *context)
{
	struct racer *racer = context;

	for (int i = 0; i < racer->rounds; i++) {
		pthread_barrier_wait(racer->barrier);
		EXPECT_EQ(touch(*racer->address), 0);
		pthread_barrier_wait(racer->barrier);
	}
	return NULL;
}

/*
 * One frame is free, and promised to the page that both touch. The loser gets the winner's page, never a failure.
 * With two mappings nothing but the file tells the two that they want the same.
 */
static void race_for_the_last_frame(bool two_mappings)
{
	enum { ROUNDS = 1000 };
	pthread_barrier_t barrier;
	char *address[2];
	struct racer racer[2] = {{&barrier, &address[0], ROUNDS}, {&barrier, &address[1], ROUNDS}};
	pthread_t thread[2];
	void *rest;

	start(4, NULL);
	EXPECT_OK(hp_alloc(pool, 3 * FRAME, &rest, &error));
	EXPECT_EQ(pthread_barrier_init(&barrier, NULL, 3), 0);
	for (int i = 0; i < 2; i++)
		thread[i] = start_thread(race, &racer[i]);
	for (int i = 0; i < ROUNDS; i++) {
		hp_file file = make_file(1);

		address[0] = address[1] = map(file, 1, LAZY);
		if (two_mappings)
			address[1] = map(file, 1, LAZY);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		EXPECT_EQ(file_stat(file).present, FRAME);
		write_tag(address[0], i);
		EXPECT(has_tag(address[1], i));
		unmap(address[0], 1);
		if (two_mappings)
			unmap(address[1], 1);
		close_file(file);
	}
	for (int i = 0; i < 2; i++)
		join_thread(thread[i]);
	pthread_barrier_destroy(&barrier);
	EXPECT_EQ(hp_free(pool, rest), 0);
	end_pool();
}

static void test_last_frame_in_one_mapping(void)
{
	race_for_the_last_frame(false);
}

static void test_last_frame_in_two_mappings(void)
{
	race_for_the_last_frame(true);
}

struct shared_race {
	_Atomic int round, ready, done;
	hp_file file;
};

/* The same between processes. */
static void touch_each_round(void *context)
{
	struct shared_race *shared = context;

	for (int i = 1; i <= 200; i++) {
		char *address;

		await(&shared->round, i);
		address = map(shared->file, 1, LAZY);
		atomic_fetch_add(&shared->ready, 1);
		while (atomic_load(&shared->ready) < 2 * i)
			sched_yield();
		EXPECT_EQ(touch(address), 0);
		unmap(address, 1);
		atomic_fetch_add(&shared->done, 1);
	}
}

static void test_last_frame_in_two_processes(void)
{
	struct shared_race *shared = make_shared(sizeof(*shared));
	pid_t pid[2];
	void *rest;

	start(4, NULL);
	EXPECT_OK(hp_alloc(pool, 3 * FRAME, &rest, &error));
	shared->file = make_file(1);
	for (int i = 0; i < 2; i++)
		pid[i] = start_child(touch_each_round, shared);
	for (int i = 1; i <= 200; i++) {
		REACH(&shared->round, i);
		await(&shared->done, 2 * i);
	}
	for (int i = 0; i < 2; i++)
		join_child(pid[i]);
	EXPECT_EQ(file_stat(shared->file).present, FRAME);
	close_file(shared->file);
	EXPECT_EQ(hp_free(pool, rest), 0);
	end_pool();
	munmap(shared, sizeof(*shared));
}

/* The page is in transit: another thread has its token and has not inserted it yet. */
static void test_page_in_transit(void)
{
	struct hp_thread *t;
	struct toucher toucher, other;
	hp_file file;
	char *lazy;

	start(32, "fault_window=1");
	t = thread_record();
	file = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
	EXPECT_EQ(hp_reserve_take(t, record_of(file), 3, 1), 1);
	start_touching(&toucher, lazy + 3 * FRAME);
	expect_waiting(&toucher.step);
	/* Who waits holds nobody else up, whatever mutex their page has. */
	for (int i = 0; i < PAGES; i++)
		if (i != 3)
			touch(lazy + i * FRAME);
	start_touching(&other, lazy + 3 * FRAME + 9);
	hp_reserve_untake(t, record_of(file), 3, 1);
	join_toucher(&toucher);
	join_toucher(&other);
	EXPECT_EQ(file_stat(file).present, PAGES * FRAME);
	unmap(lazy, PAGES);
	close_file(file);
	end_pool();
}

/* ---- fault mutexes ---------------------------------------------------------------------------------------------- */

static struct hp_mutex *mutex_of(hp_file file, uint32_t page)
{
	return hp_fault_mutex_for(view->fault_mutexes, view->shared->fault_mutexes, number_of(file), page);
}

static void test_fault_mutex_is_busy(void)
{
	struct toucher toucher;
	hp_file file;
	char *lazy, *second;
	int others = 0;

	start(32, "fault_window=1 fault_mutexes=64");
	file = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
	second = map(file, PAGES, LAZY);
	hold(mutex_of(file, 2), NULL);
	start_touching(&toucher, lazy + 2 * FRAME);
	expect_waiting(&toucher.step);
	for (uint32_t i = 0; i < PAGES; i++)
		if (mutex_of(file, i) != mutex_of(file, 2)) {
			touch(lazy + i * FRAME);
			others++;
		}
	EXPECT(others > 0);
	let_go();
	join_toucher(&toucher);
	/* A page that is there is found without the mutex. */
	hold(mutex_of(file, 2), NULL);
	touch(second + 2 * FRAME);
	let_go();
	unmap(lazy, PAGES);
	unmap(second, PAGES);
	close_file(file);
	end_pool();
}

/* ---- fault against unmap ---------------------------------------------------------------------------------------- */

struct unmapper {
	char *address;
	pthread_t thread;
	_Atomic int step;
};

static void *unmap_address(void *context)
{
	struct unmapper *unmapper = context;

	REACH(&unmapper->step, 1);
	unmap(unmapper->address, PAGES);
	REACH(&unmapper->step, 2);
	return NULL;
}

static void start_unmapping(struct unmapper *unmapper, char *address)
{
	*unmapper = (struct unmapper){.address = address};
	unmapper->thread = start_thread(unmap_address, unmapper);
	await(&unmapper->step, 1);
}

/*
 *   main                        toucher              unmapper
 *   lock the file for writing
 *                               fault in `lazy`:
 *                               waits for the lock
 *                                                    unmap `other`: waits for the toucher,
 *                                                    who might be in `other` for all it knows
 *   unlock
 *                               goes on              goes on
 */
static void test_unmap_waits_for_a_fault(void)
{
	struct unmapper unmapper;
	struct toucher toucher;
	hp_file file, second;
	char *lazy, *other, *ready;

	start(32, NULL);
	file = make_file(PAGES);
	second = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
	other = map(second, PAGES, LAZY);
	ready = map(second, PAGES, 0);
	touch(other + FRAME);
	hold(NULL, &record_of(file)->lock);
	start_touching(&toucher, lazy + FRAME);
	expect_waiting(&toucher.step);
	start_unmapping(&unmapper, other);
	expect_waiting(&unmapper.step);
	/* Nobody can have faulted in ready memory: its unmapping waits for nobody. */
	unmap(ready, PAGES);
	/* Nor do faults in other files. */
	ready = map(second, PAGES, LAZY);
	EXPECT(is_zero(ready + 2 * FRAME));
	let_go();
	join_toucher(&toucher);
	await(&unmapper.step, 2);
	join_thread(unmapper.thread);
	unmap(ready, PAGES);
	unmap(lazy, PAGES);
	close_file(file);
	close_file(second);
	end_pool();
}

static __thread sigjmp_buf back;

static void jump_back(int signal)
{
	siglongjmp(back, 1);
}

/* A program must not touch what it unmaps. If it does, the touch goes well or traps, and nothing else happens. */
static void *touch_or_trap(void *context)
{
	struct toucher *toucher = context;

	if (sigsetjmp(back, 1) == 0)
		touch_address(context);
	REACH(&toucher->step, 2);
	return NULL;
}

/* A mapping that a fault is in stays mapped until the fault is over, although nobody finds it any more. */
static void test_unmap_of_what_is_faulted(void)
{
	struct unmapper unmapper;
	struct toucher toucher;
	hp_file file;
	char *lazy;

	signal(SIGSEGV, jump_back);
	start(32, NULL);
	file = make_file(PAGES);
	for (int i = 0; i < 20; i++) {
		lazy = map(file, PAGES, LAZY);
		hold(NULL, &record_of(file)->lock);
		toucher = (struct toucher){.address = lazy + i % PAGES * FRAME};
		toucher.thread = start_thread(touch_or_trap, &toucher);
		await(&toucher.step, 1);
		nap(5000);
		start_unmapping(&unmapper, lazy);
		nap(5000);
		EXPECT_EQ(atomic_load(&unmapper.step), 1);
		EXPECT_EQ(hp_unmap(lazy, PAGES * FRAME), -EINVAL); /* one of two wins */
		let_go();
		await(&unmapper.step, 2);
		join_thread(unmapper.thread);
		join_toucher(&toucher);
		EXPECT_EQ(count_mappings(lazy, PAGES * FRAME), 0);
	}
	close_file(file);
	end_pool();
}

static void *unmap_many(void *context)
{
	hp_file file = *(hp_file *)context;

	for (int i = 0; i < 300; i++) {
		char *address = map(file, PAGES, i % 2 ? LAZY : 0);

		write_tag(address + i % PAGES * FRAME, 1);
		unmap(address, PAGES);
	}
	return NULL;
}

/* Many at once, in two pools: a thread is known by another number in each. */
static void test_threads_unmap_at_once(void)
{
	hp_pool first, second;
	hp_file file[2];
	pthread_t thread[8];

	start(16, NULL);
	first = pool;
	file[0] = make_file(PAGES);
	make_pool(16, NULL);
	second = pool;
	file[1] = make_file(PAGES);
	for (int i = 0; i < 8; i++)
		thread[i] = start_thread(unmap_many, &file[i % 2]);
	for (int i = 0; i < 8; i++)
		join_thread(thread[i]);
	close_file(file[0]);
	close_file(file[1]);
	end_pool();
	pool = first;
	end_pool();
	EXPECT_EQ(hp_pool_close(second), -EBADF);
}

/* ---- fault against fork ----------------------------------------------------------------------------------------- */

static char *forked_lazy, *forked_other;

/* The parent's fault stays the parent's: nothing in the child waits for a thread that it does not have. */
static void unmap_in_child(void *unused)
{
	touch(forked_other + 3 * FRAME);
	unmap(forked_other, PAGES);
	unmap(forked_lazy, PAGES);
}

static void test_fork_during_a_fault(void)
{
	struct toucher toucher;
	hp_file file, second;

	start(32, "fault_window=1 fault_mutexes=1024");
	file = make_file(PAGES);
	second = make_file(PAGES);
	forked_lazy = map(file, PAGES, LAZY);
	forked_other = map(second, PAGES, LAZY);
	for (int i = 0; i < 10; i++) {
		hold(mutex_of(file, i % PAGES), NULL);
		start_touching(&toucher, forked_lazy + i % PAGES * FRAME);
		nap(5000);
		run_child(unmap_in_child, NULL);
		if (i < PAGES)
			EXPECT_EQ(atomic_load(&toucher.step), 1);
		let_go();
		join_toucher(&toucher);
	}
	EXPECT_EQ(file_stat(file).present, PAGES * FRAME);
	unmap(forked_lazy, PAGES);
	unmap(forked_other, PAGES);
	close_file(file);
	close_file(second);
	end_pool();
}

static void touch_forked(void *unused)
{
	forked_lazy[FRAME] = 5;
}

/* A child's fault waits for a lock that the parent holds, and gets it. */
static void test_child_waits_for_the_parents_lock(void)
{
	hp_file file;
	pid_t pid;

	start(32, "fault_window=1");
	file = make_file(PAGES);
	forked_lazy = map(file, PAGES, LAZY);
	hold(mutex_of(file, 1), NULL);
	pid = start_child(touch_forked, NULL);
	nap(30000);
	EXPECT_EQ(waitpid(pid, NULL, WNOHANG), 0);
	let_go();
	join_child(pid);
	EXPECT_EQ(touch(forked_lazy + FRAME), 5);
	unmap(forked_lazy, PAGES);
	close_file(file);
	end_pool();
}

/* ---- fault against the death of threads ------------------------------------------------------------------------- */

static void *touch_and_end(void *address)
{
	touch(address);
	return NULL;
}

/* The only thing that these threads do is to fault; nobody gives their slots up for them but the kernel. */
static void test_10000_threads_that_only_fault(void)
{
	enum { BATCH = 32 };
	hp_file file;

	start(BATCH, "fault_window=1");
	file = make_file(BATCH);
	for (int done = 0; done < 10000; done += BATCH) {
		char *lazy = map(file, BATCH, LAZY);
		hp_pool_stats before = stats_now();

		for (int i = 0; i < BATCH; i += 4) {
			pthread_t thread[4];

			for (int j = 0; j < 4; j++)
				thread[j] = start_thread(touch_and_end, lazy + (i + j) * FRAME);
			for (int j = 0; j < 4; j++)
				join_thread(thread[j]);
		}
		EXPECT_EQ(stats_now().faults - before.faults, BATCH);
		unmap(lazy, BATCH);
	}
	/* Few slots were ever needed: the dead ones' were used again. */
	for (uint32_t i = 16; i < HP_SLOTS_MAX; i++)
		EXPECT_EQ(atomic_load(&view->slots[i].generation), 0);
	close_file(file);
	end_pool();
}

struct crowd {
	_Atomic int arrived;
	pthread_mutex_t gate; /* closed while main holds it */
};

static void *take_a_slot(void *context)
{
	struct crowd *crowd = context;

	stats_now();
	atomic_fetch_add(&crowd->arrived, 1);
	pthread_mutex_lock(&crowd->gate);
	pthread_mutex_unlock(&crowd->gate);
	return NULL;
}

static void *find_no_slot(void *context)
{
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	hp_file file;

	EXPECT_EQ(hp_pool_stats_get(pool, &stats), -EAGAIN);
	EXPECT_EQ(hp_file_create(pool, FRAME, 0, &file, &error), -EAGAIN);
	EXPECT_EQ(error.limit, HP_LIMIT_TABLE);
	EXPECT(error.message[0]);
	return NULL;
}

static void quiet(hp_log_level level, const char *line, void *context)
{
}

/* One thread too many is told so. When others end, it may come again. */
static void test_slots_run_out(void)
{
	struct crowd crowd = {.gate = PTHREAD_MUTEX_INITIALIZER};
	pthread_t thread[HP_SLOTS_MAX];
	uint32_t threads = 0;
	pthread_attr_t attr;

	hp_log_set(quiet, HP_LOG_DEBUG, NULL);
	start(8, NULL);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 256 * 1024);
	stats_now(); /* one slot is ours */
	pthread_mutex_lock(&crowd.gate);
	while (threads < HP_THREADS_MAX - 1 && pthread_create(&thread[threads], &attr, take_a_slot, &crowd) == 0)
		threads++;
	await(&crowd.arrived, (int)threads);
	if (threads == HP_THREADS_MAX - 1)
		join_thread(start_thread(find_no_slot, NULL));
	pthread_mutex_unlock(&crowd.gate);
	for (uint32_t i = 0; i < threads; i++)
		join_thread(thread[i]);
	pthread_attr_destroy(&attr);
	join_thread(start_thread(take_a_slot, &crowd));
	end_pool();
	if (threads < HP_THREADS_MAX - 1)
		skip_test("not as many threads as slots can be made here");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_last_frame_in_one_mapping),     REAL_TEST(test_last_frame_in_two_mappings),
		REAL_TEST(test_last_frame_in_two_processes),   REAL_TEST(test_page_in_transit),
		REAL_TEST(test_fault_mutex_is_busy),           REAL_TEST(test_unmap_waits_for_a_fault),
		REAL_TEST(test_unmap_of_what_is_faulted),      REAL_TEST(test_threads_unmap_at_once),
		REAL_TEST(test_fork_during_a_fault),           REAL_TEST(test_child_waits_for_the_parents_lock),
		REAL_TEST(test_10000_threads_that_only_fault), REAL_TEST(test_slots_run_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
