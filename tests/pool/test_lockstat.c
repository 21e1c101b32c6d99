/* SPDX-License-Identifier: MIT */
/* Statistics of locks: of this process's pools, of another process's, and as text. */
#include "real.h"

#include "arena/arena.h"
#include "file/lock.h"
#include "space/space.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PAGES 8

static struct hp_pool_view *view;
static hp_file file;
static char *lazy;
static _Atomic int *step; /* shared by the processes of a test */

static void start(const char *tuning)
{
	step = make_shared(4096);
	make_pool(2 * PAGES, tuning);
	view = hp_pool_find(pool.id);
	EXPECT(view);
	file = make_file(PAGES);
	lazy = map(file, PAGES, LAZY);
}

static void end(void)
{
	unmap(lazy, PAGES);
	close_file(file);
	end_pool();
	munmap(step, 4096);
}

static struct hp_thread *thread_record(void)
{
	struct hp_thread *t;

	EXPECT_EQ(hp_thread_enter(view, &t), 0);
	return t;
}

static struct hp_file_use use_of_file(void)
{
	uint32_t number = file.id >> 8 & 0xffffff;

	return (struct hp_file_use){hp_file_at(view, number), number};
}

/* See test_deaths.c. */
/* ---- rows ------------------------------------------------------------------------------------------------------- */

struct rows {
	hp_lock_stat row[HP_LOCK_STATS_MAX];
	unsigned count;
};

static struct rows rows_of(hp_pool of)
{
	struct rows rows = {.count = HP_LOCK_STATS_MAX};

	EXPECT_EQ(hp_pool_lockstat(of, rows.row, &rows.count, sizeof(rows.row[0])), 0);
	EXPECT(rows.count <= HP_LOCK_STATS_MAX);
	return rows;
}

/* All zeroes: such locks were never taken. */
static hp_lock_stat find_row(const struct rows *rows, const char *name, char mode)
{
	for (unsigned i = 0; i < rows->count; i++)
		if (!strcmp(rows->row[i].name, name) && rows->row[i].mode == mode)
			return rows->row[i];
	return (hp_lock_stat){.mode = mode};
}

static hp_lock_stat row_of(const char *name, char mode)
{
	struct rows rows = rows_of(pool);

	return find_row(&rows, name, mode);
}

static uint64_t acquisitions(const char *name, char mode)
{
	return row_of(name, mode).acquisitions;
}

static bool names_function(const hp_lock_place *places, const char *function)
{
	for (unsigned i = 0; i < HP_LOCK_POINTS && places[i].count; i++)
		if (!strncmp(places[i].name, function, strlen(function)) && places[i].name[strlen(function)] == ' ')
			return true;
	return false;
}

/* ---- counting --------------------------------------------------------------------------------------------------- */

static void *touch_two(void *address)
{
	touch(address);
	touch((char *)address + FRAME);
	return NULL;
}

static void touch_two_in_child(void *address)
{
	touch_two(address);
}

/* Acquisitions of all threads and processes, also of those that have ended. */
static void test_acquisitions(void)
{
	pthread_t thread[3];
	uint64_t before;

	start("fault_window=1");
	before = acquisitions("file", 'R');
	for (int i = 0; i < 3; i++)
		thread[i] = start_thread(touch_two, lazy + 2 * i * FRAME);
	for (int i = 0; i < 3; i++)
		join_thread(thread[i]);
	EXPECT_EQ(acquisitions("file", 'R'), before + 6);
	/* A child registers the mapping, and faults on the page that is not mapped yet. */
	run_child(touch_two_in_child, lazy + 5 * FRAME);
	EXPECT_EQ(acquisitions("file", 'R'), before + 6 + 2);
	check_pool();
	EXPECT_EQ(acquisitions("file", 'R'), before + 6 + 2);
	end();
}

/* The rows make sense. */
static void test_rows(void)
{
	struct rows rows;

	start(NULL);
	touch_two(lazy);
	EXPECT_OK(hp_file_truncate(file, PAGES * FRAME, &error));
	check_pool();
	rows = rows_of(pool);
	EXPECT(rows.count >= 8);
	for (unsigned i = 0; i < rows.count; i++) {
		const hp_lock_stat *row = &rows.row[i];
		bool shared = !strcmp(row->name, "file") || !strcmp(row->name, "mapping");

		EXPECT(row->name[0] && strlen(row->name) < sizeof(row->name));
		EXPECT(shared ? row->mode == 'W' || row->mode == 'R' : row->mode == 0);
		EXPECT(row->acquisitions > 0);
		EXPECT(row->sampled > 0);
		EXPECT(row->hold.count <= row->acquisitions);
		EXPECT(row->contentions == row->wait.count);
		EXPECT(row->hold.min <= row->hold.max && row->hold.max <= row->hold.total);
		EXPECT_EQ(row->deaths, 0);
		for (unsigned j = 0; j < i; j++)
			EXPECT(strcmp(row->name, rows.row[j].name) || row->mode != rows.row[j].mode);
	}
	EXPECT_EQ(find_row(&rows, "file", 'W').acquisitions, 1);
	EXPECT(find_row(&rows, "extents", 0).acquisitions > 0);
	EXPECT(find_row(&rows, "extents", 0).hold.count > 0); /* the first one is in the sample */
	EXPECT_EQ(find_row(&rows, "fault", 0).acquisitions, 2);
	end();
}

static void test_errors(void)
{
	struct rows rows, all;
	hp_pool closed;

	start(NULL);
	all = rows_of(pool);
	EXPECT(all.count > 3);
	for (rows.count = 0; rows.count <= 3; rows.count++) {
		unsigned count = rows.count;

		memset(rows.row, 0x5a, sizeof(rows.row));
		EXPECT_EQ(hp_pool_lockstat(pool, rows.row, &count, sizeof(rows.row[0])), 0);
		EXPECT_EQ(count, rows.count);
		for (unsigned i = 0; i < count; i++)
			EXPECT(!strcmp(rows.row[i].name, all.row[i].name));
		EXPECT_EQ(((unsigned char *)&rows.row[count])[0], 0x5a); /* nothing behind */
	}
	rows.count = HP_LOCK_STATS_MAX;
	EXPECT_EQ(hp_pool_lockstat(pool, rows.row, &rows.count, sizeof(rows.row[0]) - 1), -EINVAL);
	rows.count = HP_LOCK_STATS_MAX;
	EXPECT_EQ(hp_pool_lockstat(pool, rows.row, &rows.count, 0), -EINVAL);
	EXPECT_EQ(hp_pool_lockstat_set(pool, (hp_lockstat_action)99), -EINVAL);
	closed = pool;
	end();
	rows.count = HP_LOCK_STATS_MAX;
	EXPECT_EQ(hp_pool_lockstat(closed, rows.row, &rows.count, sizeof(rows.row[0])), -EBADF);
	EXPECT_EQ(hp_pool_lockstat((hp_pool){0}, rows.row, &rows.count, sizeof(rows.row[0])), -EBADF);
	EXPECT_EQ(hp_pool_lockstat_set(closed, HP_LOCKSTAT_ON), -EBADF);
}

static void use_locks(int page)
{
	touch(lazy + page * FRAME);
	close_file(make_file(1));
}

static void use_locks_in_child(void *page)
{
	use_locks(*(int *)page);
}

static void test_off_on_reset(void)
{
	struct rows before, now;
	int page;

	start("fault_window=1");
	use_locks(0);
	EXPECT_EQ(hp_pool_lockstat_set(pool, HP_LOCKSTAT_OFF), 0);
	before = rows_of(pool);
	use_locks(1);
	page = 2;
	run_child(use_locks_in_child, &page);
	now = rows_of(pool);
	EXPECT_EQ(now.count, before.count);
	EXPECT_EQ(memcmp(now.row, before.row, now.count * sizeof(now.row[0])), 0);

	EXPECT_EQ(hp_pool_lockstat_set(pool, HP_LOCKSTAT_ON), 0);
	use_locks(3);
	now = rows_of(pool);
	EXPECT_EQ(find_row(&now, "file", 'R').acquisitions, find_row(&before, "file", 'R').acquisitions + 1);
	EXPECT(find_row(&now, "table", 0).acquisitions > find_row(&before, "table", 0).acquisitions);

	EXPECT_EQ(hp_pool_lockstat_set(pool, HP_LOCKSTAT_RESET), 0);
	EXPECT_EQ(rows_of(pool).count, 0);
	use_locks(4);
	now = rows_of(pool);
	EXPECT_EQ(find_row(&now, "file", 'R').acquisitions, 1);
	EXPECT_EQ(find_row(&now, "fault", 0).acquisitions, 1);
	EXPECT_EQ(find_row(&now, "fault", 0).contentions, 0);

	/* A reset while it is off; and it stays off. */
	EXPECT_EQ(hp_pool_lockstat_set(pool, HP_LOCKSTAT_OFF), 0);
	EXPECT_EQ(hp_pool_lockstat_set(pool, HP_LOCKSTAT_RESET), 0);
	use_locks(5);
	EXPECT_EQ(rows_of(pool).count, 0);
	end();
}

/* ---- contention ------------------------------------------------------------------------------------------------- */

struct use {
	void (*run)(void);
	_Atomic int step;
};

static void *run_use(void *context)
{
	struct use *use = context;

	stats_now(); /* it has entered the pool */
	REACH(&use->step, 1);
	use->run();
	REACH(&use->step, 2);
	return NULL;
}

static pthread_t start_waiter(struct use *use, void (*run)(void))
{
	pthread_t thread;

	*use = (struct use){.run = run};
	thread = start_thread(run_use, use);
	await(&use->step, 1);
	nap(30000);
	EXPECT_EQ(atomic_load(&use->step), 1);
	return thread;
}

static void fault_first(void)
{
	touch(lazy);
}

static void create_file(void)
{
	close_file(make_file(1));
}

static void truncate_to_the_same(void)
{
	EXPECT_OK(hp_file_truncate(file, PAGES * FRAME, &error));
}

static void hold_file(struct hp_thread *t)
{
	hp_biased_write_lock(&use_of_file().record->lock, &t->locker, HP_CLASS_FILE);
}

static void let_file_go(struct hp_thread *t)
{
	hp_biased_write_unlock(&use_of_file().record->lock, &t->locker);
}

static void hold_file_for_reading(struct hp_thread *t)
{
	hp_biased_read_lock(&use_of_file().record->lock, &t->locker, HP_CLASS_FILE);
}

static void let_readers_file_go(struct hp_thread *t)
{
	hp_biased_read_unlock(&use_of_file().record->lock, &t->locker);
}

static void hold_table(struct hp_thread *t)
{
	hp_mutex_lock(&view->shared->files.lock, &t->locker, HP_CLASS_TABLE);
}

static void let_table_go(struct hp_thread *t)
{
	hp_mutex_unlock(&view->shared->files.lock, &t->locker);
}

static const struct contention {
	const char *class;
	char mode;
	void (*hold)(struct hp_thread *t), (*let_go)(struct hp_thread *t), (*use)(void);
	const char *waiter, *holder; /* functions */
} contentions[] = {
	{"file", 'R', hold_file, let_file_go, fault_first, "resolve", "hold_file"},
	{"file", 'W', hold_file_for_reading, let_readers_file_go, truncate_to_the_same, "cut", "hold_file_for_reading"},
	{"table", 0, hold_table, let_table_go, create_file, "hp_table_take", "hold_table"},
};

/* Who waited, for how long, and for whom. */
static void run_contentions(const char *tuning)
{
	for (unsigned i = 0; i < sizeof(contentions) / sizeof(contentions[0]); i++) {
		const struct contention *c = &contentions[i];
		struct hp_thread *t;
		hp_lock_stat row;
		pthread_t thread;
		struct use use;

		start(tuning);
		t = thread_record();
		EXPECT_EQ(row_of(c->class, c->mode).contentions, 0);
		c->hold(t);
		thread = start_waiter(&use, c->use);
		c->let_go(t);
		await(&use.step, 2);
		join_thread(thread);
		row = row_of(c->class, c->mode);
		EXPECT_EQ(row.contentions, 1);
		EXPECT_EQ(row.wait.count, 1);
		EXPECT(row.wait.max >= 20000000 && row.wait.max < 20000000000u);
		EXPECT(row.wait.min == row.wait.max && row.wait.total == row.wait.max);
		EXPECT_EQ(row.waiter[0].count, 1);
		EXPECT_EQ(row.waiter[1].count, 0);
		EXPECT(names_function(row.waiter, c->waiter));
		EXPECT_EQ(row.holder[0].count, 1);
		EXPECT_EQ(row.holder[1].count, 0);
		EXPECT(names_function(row.holder, c->holder));
		EXPECT(strstr(row.holder[0].name, "(test_lockstat.c:"));
		EXPECT_EQ(hp_pool_lockstat_set(pool, HP_LOCKSTAT_RESET), 0);
		EXPECT_EQ(row_of(c->class, c->mode).contentions, 0);
		end();
	}
}

static void test_contention(void)
{
	run_contentions(NULL);
	run_contentions("file_lock=invalidate");
}

static void hold_and_die(void *hold)
{
	((void (*)(struct hp_thread *))hold)(thread_record());
	kill(getpid(), SIGKILL);
}

static void test_deaths_are_counted(void)
{
	start(NULL);
	expect_killed(hold_and_die, (void *)hold_table, SIGKILL);
	create_file();
	EXPECT_EQ(row_of("table", 0).deaths, 1);
	EXPECT(names_function(row_of("table", 0).holder, "hold_table"));
	expect_killed(hold_and_die, (void *)hold_file, SIGKILL);
	truncate_to_the_same();
	EXPECT_EQ(row_of("file", 'W').deaths, 1);
	expect_killed(hold_and_die, (void *)hold_file_for_reading, SIGKILL);
	truncate_to_the_same();
	EXPECT_EQ(row_of("file", 'R').deaths, 1);
	EXPECT_EQ(row_of("file", 'W').deaths, 1);
	end();
}

/* ---- other processes -------------------------------------------------------------------------------------------- */

static int look_at(int pid, unsigned number, struct rows *rows)
{
	error = (hp_error){.code = 0};
	rows->count = HP_LOCK_STATS_MAX;
	return hp_process_lockstat(pid, number, rows->row, &rows->count, sizeof(rows->row[0]), &error);
}

static void expect_refusal(int pid, unsigned number, int code, const char *words)
{
	struct rows rows;

	EXPECT_EQ(look_at(pid, number, &rows), code);
	EXPECT_EQ(error.code, code);
	if (!strstr(error.message, words))
		fprintf(stderr, "\"%s\" does not say \"%s\"\n", error.message, words);
	EXPECT(strstr(error.message, words));
	EXPECT_EQ(hp_process_lockstat_set(pid, number, HP_LOCKSTAT_RESET, NULL), code);
	EXPECT_EQ(hp_process_lockstat(pid, number, rows.row, &rows.count, sizeof(rows.row[0]), NULL), code);
}

static void expect_same(const struct rows *a, const struct rows *b)
{
	EXPECT_EQ(a->count, b->count);
	EXPECT_EQ(memcmp(a->row, b->row, a->count * sizeof(a->row[0])), 0);
}

struct report {
	struct rows rows[2];
};

static struct report *report; /* shared with the child */

/* A program that has two pools of its own. */
static void have_two_pools(void *unused)
{
	hp_pool pools[2];
	hp_file own;

	make_pool(4, NULL);
	pools[0] = pool;
	nap(20000); /* they are told apart by when they were made */
	make_pool(4, NULL);
	pools[1] = pool;
	pool = pools[0];
	own = make_file(2);
	for (int i = 0; i < 5; i++)
		EXPECT_EQ(hp_file_truncate(own, 2 * FRAME, NULL), 0);
	close_file(own);
	pool = pools[1];
	own = make_file(2);
	EXPECT_EQ(hp_file_truncate(own, 2 * FRAME, NULL), 0);
	for (int i = 0; i < 2; i++)
		report->rows[i] = rows_of(pools[i]);
	REACH(step, 1);
	await(step, 2);
	for (int i = 0; i < 2; i++)
		report->rows[i] = rows_of(pools[i]);
	REACH(step, 3);
	await(step, 4);
	/* Switched off from outside. */
	EXPECT_EQ(hp_file_truncate(own, 2 * FRAME, NULL), 0);
	report->rows[1] = rows_of(pools[1]);
	close_file(own);
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(hp_pool_close(pools[i]), 0);
}

static void test_another_process(void)
{
	struct rows rows, other = {.count = HP_LOCK_STATS_MAX};
	pid_t pid;

	step = make_shared(4096);
	report = make_shared(sizeof(*report));
	pid = start_child(have_two_pools, NULL);
	await(step, 1);
	for (unsigned i = 0; i < 2; i++) {
		EXPECT_OK(look_at(pid, i, &rows));
		expect_same(&rows, &report->rows[i]);
		EXPECT_EQ(find_row(&rows, "file", 'W').acquisitions, i ? 1 : 5);
	}
	expect_refusal(pid, 2, -ENOENT, "no pool 2");
	EXPECT_EQ(hp_process_lockstat(pid, 0, other.row, &other.count, sizeof(rows.row[0]) + 8, &error), -EINVAL);
	EXPECT_EQ(hp_process_lockstat_set(pid, 0, (hp_lockstat_action)99, &error), -EINVAL);
	/* A reset is of that pool alone. */
	EXPECT_EQ(hp_process_lockstat_set(pid, 0, HP_LOCKSTAT_RESET, &error), 0);
	REACH(step, 2);
	await(step, 3);
	EXPECT_EQ(report->rows[0].count, 0);
	EXPECT_OK(look_at(pid, 1, &rows));
	expect_same(&rows, &report->rows[1]);
	EXPECT_EQ(hp_process_lockstat_set(pid, 1, HP_LOCKSTAT_OFF, &error), 0);
	REACH(step, 4);
	join_child(pid);
	expect_same(&rows, &report->rows[1]);
	expect_refusal(pid, 0, -ESRCH, "no process");
	munmap(report, sizeof(*report));
	munmap(step, 4096);
}

/* Whether this kernel notes when control memory was made. */
static bool ages_are_known(void)
{
	int fd = memfd_create("age", MFD_CLOEXEC);
	struct statx status;

	EXPECT(fd >= 0);
	EXPECT_EQ(statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &status), 0);
	close(fd);
	return status.stx_mask & STATX_BTIME;
}

/* Numbers are by age, whichever CPUs the pools were made on. */
static void test_numbers_of_pools(void)
{
	enum { POOLS = 4 };
	hp_pool pools[POOLS];
	cpu_set_t all, one;

	if (!ages_are_known())
		skip_test("this kernel does not note when a file in memory was made");
	EXPECT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
	for (int i = 0, cpu = 0; i < POOLS; i++) {
		do
			cpu = (cpu + 1) % CPU_SETSIZE;
		while (!CPU_ISSET(cpu, &all));
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
		make_pool(2, NULL);
		pools[i] = pool;
		for (int j = 0; j <= i; j++)
			close_file(make_file(1));
		nap(15000);
	}
	for (unsigned i = 0; i < POOLS; i++) {
		struct rows rows, mine = rows_of(pools[i]);

		EXPECT_OK(look_at(getpid(), i, &rows));
		expect_same(&rows, &mine);
	}
	expect_refusal(getpid(), POOLS, -ENOENT, "no pool 4");
	for (int i = 0; i < POOLS; i++) {
		pool = pools[i];
		end_pool();
	}
	expect_refusal(getpid(), 0, -ENOENT, "has no pool");
}

static void wait_for_end(void *unused)
{
	REACH(step, 1);
	await(step, 2);
}

/* A fork child has its parent's pools. */
static void test_fork_child(void)
{
	struct rows mine, childs;
	pid_t pid;

	start(NULL);
	pid = start_child(wait_for_end, NULL);
	await(step, 1);
	mine = rows_of(pool);
	EXPECT_OK(look_at(pid, 0, &childs));
	expect_same(&mine, &childs);
	expect_refusal(pid, 1, -ENOENT, "no pool 1");
	REACH(step, 2);
	join_child(pid);
	end();
}

/* Control memory that is none. */
static struct {
	const void *content;
	size_t length;
	off_t size;
} forgery;

static void have_a_forgery(void *unused)
{
	int fd = memfd_create("hugepool-control", MFD_CLOEXEC);

	EXPECT(fd >= 0);
	EXPECT_EQ(ftruncate(fd, forgery.size), 0);
	EXPECT_EQ(pwrite(fd, forgery.content, forgery.length, 0), forgery.length);
	wait_for_end(NULL);
}

static void expect_forgery_refused(const void *content, size_t length, off_t size, int code)
{
	pid_t pid;

	forgery.content = content;
	forgery.length = length;
	forgery.size = size;
	step = make_shared(4096);
	pid = start_child(have_a_forgery, NULL);
	await(step, 1);
	expect_refusal(pid, 0, code, code == -EPROTO ? "another version" : "");
	REACH(step, 2);
	join_child(pid);
	munmap(step, 4096);
}

static void test_forged(void)
{
	char garbage[8192];

	for (size_t i = 0; i < sizeof(garbage); i++)
		garbage[i] = (char)(i * 7 + 1);
	expect_forgery_refused(garbage, sizeof(garbage), sizeof(garbage), -EPROTO);
	expect_forgery_refused(garbage, 10, 10, -EPROTO);
	expect_forgery_refused("", 0, 1 << 20, -EPROTO);
	expect_forgery_refused("", 0, 0, -EPROTO); /* one that is just being made */
}

/* As in arena/arena.c. */
struct header {
	char magic[8];
	uint32_t version, sections;
	uint64_t signature, size, offset[HP_ARENA_SECTIONS_MAX + 1];
};

/* A header that makes sense by itself, of an arena that is laid out otherwise. */
static void test_forged_header(void)
{
	struct header header = {.magic = "hpArena", .version = HP_ARENA_VERSION, .size = 65536};

	for (unsigned i = 0; i <= HP_ARENA_SECTIONS_MAX; i++)
		header.offset[i] = UINT64_C(1) << 40;
	expect_forgery_refused(&header, sizeof(header), 65536, -EPROTO); /* no section at all */
	header.sections = HP_SECTIONS;
	for (unsigned i = 0; i <= HP_ARENA_SECTIONS_MAX; i++)
		header.offset[i] = 65536;
	expect_forgery_refused(&header, sizeof(header), 65536, -EPROTO); /* all are empty, at the end */
}

static void close_all_descriptors(void *unused)
{
	EXPECT_EQ(syscall(SYS_close_range, 3, ~0U, 0), 0);
	touch(lazy);
	wait_for_end(NULL);
}

/* Of a program that closed our descriptors only what it has mapped tells, and that only root may see. */
static void test_descriptors_closed(void)
{
	struct rows mine, childs;
	pid_t pid;

	start(NULL);
	touch(lazy);
	pid = start_child(close_all_descriptors, NULL);
	await(step, 1);
	mine = rows_of(pool);
	if (geteuid() == 0) {
		EXPECT_OK(look_at(pid, 0, &childs));
		expect_same(&mine, &childs);
		expect_refusal(pid, 1, -ENOENT, "no pool 1");
	} else {
		EXPECT(look_at(pid, 0, &childs) < 0);
	}
	REACH(step, 2);
	join_child(pid);
	end();
}

static void look_as_a_user(void *parent)
{
	EXPECT_EQ(setgid(65534), 0);
	EXPECT_EQ(setuid(65534), 0);
	expect_refusal(*(pid_t *)parent, 0, -EACCES, "same user, or root");
}

static void test_not_permitted(void)
{
	pid_t mine = getpid();

	if (geteuid() != 0)
		skip_test("only root can be another user");
	start(NULL);
	run_child(look_as_a_user, &mine);
	end();
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

#define DASHES                                                                                                       \
	"---------------------------------------------------------------------------------------------------------"  \
	"----------------------------------------------------------------------------------------------------------" \
	"----------"
#define DOTS                                                                                                         \
	"........................................................................................................."  \
	".........................................................................................................." \
	".........."

static const char expected[] =
	"lock_stat version 0.4\n" DASHES "\n"
	"                              class name    con-bounces    contentions   waittime-min   waittime-max"
	" waittime-total   waittime-avg    acq-bounces   acquisitions   holdtime-min   holdtime-max holdtime-total"
	"   holdtime-avg\n" DASHES "\n\n"
	"                                  file-W:             1              2           0.50           1.50"
	"           2.00           1.00              4              8           0.10           0.30           1.60"
	"           0.20\n"
	"                                  file-R:             0              1           7.00           7.00"
	"           7.00           7.00              0           1000           0.00           0.00           0.00"
	"           0.00\n"
	"                                  ------\n"
	"                                    file              3          [<0000000000000000>] lock_it (a.c:1)\n"
	"                                    file              2          [<0000000000000000>] read_it (b.c:22)\n"
	"                                  ------\n"
	"                                    file              1          [<0000000000000000>] keep_it (a.c:3)\n"
	"\n" DOTS "\n\n"
	"                                   table:             0              0           0.00           0.00"
	"           0.00           0.00              0              5           0.00           0.00           0.00"
	"           0.00\n";

/* Column by column what the kernel prints. */
static void test_text(void)
{
	static const hp_lock_stat rows[] = {
		{.name = "file",
	         .mode = 'W',
	         .acquisitions = 8,
	         .acq_bounces = 1,
	         .contentions = 2,
	         .con_bounces = 1,
	         .wait = {.count = 2, .min = 500, .max = 1500, .total = 2000},
	         .hold = {.count = 2, .min = 100, .max = 300, .total = 400},
	         .waiter = {{"read_it (b.c:22)", 2}, {"lock_it (a.c:1)", 1}}},
		{.name = "file",
	         .mode = 'R',
	         .acquisitions = 1000,
	         .contentions = 1,
	         .wait = {.count = 1, .min = 7000, .max = 7000, .total = 7000},
	         .waiter = {{"lock_it (a.c:1)", 2}},
	         .holder = {{"keep_it (a.c:3)", 1}}},
		{.name = "table", .acquisitions = 5},
	};
	char text[8192];
	size_t length = hp_lockstat_format(rows, 3, text, sizeof(text));

	EXPECT_EQ(length, strlen(text));
	if (strcmp(text, expected) != 0)
		fputs(text, stderr);
	EXPECT(strcmp(text, expected) == 0);
	EXPECT_EQ(hp_lockstat_format(rows, 3, NULL, 0), length);
	/* What does not fit is cut, and ended. */
	for (size_t size = 1; size < length; size += 97) {
		memset(text, 'x', sizeof(text));
		EXPECT_EQ(hp_lockstat_format(rows, 3, text, size), length);
		EXPECT_EQ(strlen(text), size - 1);
		EXPECT(memcmp(text, expected, size - 1) == 0);
		EXPECT_EQ(text[size], 'x');
	}
	EXPECT(hp_lockstat_format(rows, 0, text, sizeof(text)) > 0);
	/* Of a class whose readers nobody has seen the kernel does not name the mode. */
	hp_lockstat_format(rows, 1, text, sizeof(text));
	EXPECT(strstr(text, "    file:             1 "));
	EXPECT(!strstr(text, "-W"));
}

/* Whatever the pool says can be printed. */
static void test_text_of_a_pool(void)
{
	struct rows rows;
	size_t length;
	char *text;

	start(NULL);
	touch_two(lazy);
	check_pool();
	rows = rows_of(pool);
	length = hp_lockstat_format(rows.row, rows.count, NULL, 0);
	text = malloc(length + 1);
	EXPECT(text);
	EXPECT_EQ(hp_lockstat_format(rows.row, rows.count, text, length + 1), length);
	for (unsigned i = 0; i < rows.count; i++)
		EXPECT(strstr(text, rows.row[i].name));
	free(text);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_acquisitions),    REAL_TEST(test_rows),
		REAL_TEST(test_errors),          REAL_TEST(test_off_on_reset),
		REAL_TEST(test_contention),      REAL_TEST(test_deaths_are_counted),
		REAL_TEST(test_another_process), REAL_TEST(test_numbers_of_pools),
		REAL_TEST(test_fork_child),      REAL_TEST(test_forged),
		REAL_TEST(test_forged_header),   REAL_TEST(test_descriptors_closed),
		REAL_TEST(test_not_permitted),   REAL_TEST(test_text),
		REAL_TEST(test_text_of_a_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
