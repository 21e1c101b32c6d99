/* SPDX-License-Identifier: MIT */
#include "lock_rivals.h"

#include "sync/barrier.h"
#include "sync/biased.h"
#include "sync/futex.h"
#include "sync/mutex.h"
#include "sync/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Processors fetch cache lines in pairs. */
#define OWN_LINES __attribute__((aligned(2 * HP_CACHE_LINE)))

/* A member of a crowd looks for the end after so many operations. */
#define LOOK_AFTER 64u
/* So much of the time passes before the clock starts: all members have woken up and the locks have learned. */
#define WARM_UP 0.2
#define CROWD_TIMEOUT_NS 60000000000u

struct lock_memory {
	struct hp_lock_shared shared;
	struct {
		pthread_mutex_t lock;
	} pthread_mutex OWN_LINES;
	struct {
		pthread_rwlock_t lock;
	} pthread_rwlock OWN_LINES;
	struct {
		struct hp_mutex lock;
	} mutex OWN_LINES;
	struct {
		struct hp_rwsem lock;
	} rwsem OWN_LINES;
	struct {
		struct hp_biased lock;
	} biased OWN_LINES;
	struct hp_slot slots[] OWN_LINES; /* the records follow */
};

struct lock_board {
	_Atomic uint32_t go; /* futex: grows with each measurement */
	_Atomic uint32_t failed;
	const struct lock_crowd_rival *rival; /* written before go; NULL: go home */
	struct lock_mix mix;
	struct {
		_Atomic uint32_t word;
	} stop OWN_LINES;
	struct {
		_Atomic uint32_t count; /* futex: members that are done with the present measurement */
	} done OWN_LINES;
	struct {
		_Atomic uint64_t operations;
	} OWN_LINES member[];
};

/* ---- The locks -------------------------------------------------------------------------------------------------- */

static void *shared_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p != MAP_FAILED)
		return p;
	fprintf(stderr, "hugepool bench: no memory for the locks: %s\n", strerror(errno));
	return NULL;
}

static bool init_pthread_locks(struct lock_memory *memory)
{
	pthread_mutexattr_t mutex;
	pthread_rwlockattr_t rwlock;
	int error;

	pthread_mutexattr_init(&mutex);
	pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
	error = pthread_mutex_init(&memory->pthread_mutex.lock, &mutex);
	pthread_mutexattr_destroy(&mutex);
	pthread_rwlockattr_init(&rwlock);
	pthread_rwlockattr_setpshared(&rwlock, PTHREAD_PROCESS_SHARED);
	error = error ? error : pthread_rwlock_init(&memory->pthread_rwlock.lock, &rwlock);
	pthread_rwlockattr_destroy(&rwlock);
	return !error;
}

bool lock_site_open(struct lock_site *site, unsigned threads)
{
	struct lock_memory *memory;

	site->size = sizeof(*memory) + threads * (sizeof(struct hp_slot) + sizeof(struct hp_lock_record));
	site->memory = memory = shared_memory(site->size);
	if (!memory)
		return false;
	site->domain = (struct hp_lock_domain){
		.shared = &memory->shared,
		.slots = memory->slots,
		.records = (struct hp_lock_record *)(memory->slots + threads),
		.slot_count = threads,
		.base = (const char *)memory,
	};
	hp_locks_init(&site->domain);
	site->fenced = memory->shared.fenced;
	if (hp_slots_init(memory->slots, threads) || !init_pthread_locks(memory)) {
		fprintf(stderr, "hugepool bench: no locks can be made in shared memory\n");
		lock_site_close(site);
		return false;
	}
	lock_site_renew(site);
	return true;
}

void lock_site_close(struct lock_site *site)
{
	munmap(site->memory, site->size);
}

void lock_site_renew(struct lock_site *site)
{
	struct lock_memory *memory = site->memory;
	struct hp_locker nobody = {.shared = &memory->shared, .domain = &site->domain};

	memory->shared.fenced = site->fenced;
	pthread_mutex_destroy(&memory->pthread_mutex.lock);
	pthread_rwlock_destroy(&memory->pthread_rwlock.lock);
	init_pthread_locks(memory);
	memset(&memory->mutex, 0, sizeof(memory->mutex));
	memset(&memory->rwsem, 0, sizeof(memory->rwsem));
	memset(&memory->biased, 0, sizeof(memory->biased));
	hp_biased_init(&memory->biased.lock, &nobody, true);
}

static bool may_reuse(const void *context, uint32_t id)
{
	return true; /* nobody dies here with a lock in hand */
}

struct hp_slot *lock_site_join(struct lock_site *site, struct hp_locker *who, unsigned index)
{
	struct hp_slot *slot;
	sigset_t saved;

	/* A process that does not join would not be reached by the barriers of those that end a bias. */
	if (!hp_barrier_join() && !site->fenced)
		return NULL;
	hp_signals_block(&saved);
	slot = hp_slot_claim(site->domain.slots, site->domain.slot_count, index + 1, may_reuse, NULL);
	hp_signals_restore(&saved);
	if (slot)
		hp_locker_init(who, &site->domain, slot);
	return slot;
}

void lock_site_leave(struct hp_slot *slot)
{
	sigset_t saved;

	hp_signals_block(&saved);
	hp_slot_release(slot);
	hp_signals_restore(&saved);
}

void lock_site_set_statistics(struct lock_site *site, bool enabled)
{
	atomic_store(&site->memory->shared.statistics.enabled, enabled);
}

/* ---- Taking them ------------------------------------------------------------------------------------------------ */

/* Each is one place that takes a lock, as the library has many. */
#define OPERATION(name, call)                                                               \
	static inline __attribute__((always_inline)) void name(struct lock_memory *memory,  \
	                                                       const struct hp_locker *who) \
	{                                                                                   \
		call;                                                                       \
	}

OPERATION(bare_lock, (void)memory)
OPERATION(bare_unlock, (void)memory)
OPERATION(pthread_mutex_take, pthread_mutex_lock(&memory->pthread_mutex.lock))
OPERATION(pthread_mutex_give, pthread_mutex_unlock(&memory->pthread_mutex.lock))
OPERATION(mutex_take, hp_mutex_lock(&memory->mutex.lock, who, HP_CLASS_BENCH))
OPERATION(mutex_give, hp_mutex_unlock(&memory->mutex.lock, who))
OPERATION(pthread_read_take, pthread_rwlock_rdlock(&memory->pthread_rwlock.lock))
OPERATION(pthread_write_take, pthread_rwlock_wrlock(&memory->pthread_rwlock.lock))
OPERATION(pthread_rwlock_give, pthread_rwlock_unlock(&memory->pthread_rwlock.lock))
OPERATION(rwsem_read_take, hp_rwsem_read_lock(&memory->rwsem.lock, who, HP_CLASS_BENCH))
OPERATION(rwsem_read_give, hp_rwsem_read_unlock(&memory->rwsem.lock, who))
OPERATION(rwsem_write_take, hp_rwsem_write_lock(&memory->rwsem.lock, who, HP_CLASS_BENCH))
OPERATION(rwsem_write_give, hp_rwsem_write_unlock(&memory->rwsem.lock, who))
OPERATION(upgradeable_take, hp_rwsem_upgradeable_lock(&memory->rwsem.lock, who, HP_CLASS_BENCH))
OPERATION(upgradeable_give, hp_rwsem_upgradeable_unlock(&memory->rwsem.lock, who))
OPERATION(biased_read_take, hp_biased_read_lock(&memory->biased.lock, who, HP_CLASS_BENCH))
OPERATION(biased_read_give, hp_biased_read_unlock(&memory->biased.lock, who))
OPERATION(biased_write_take, hp_biased_write_lock(&memory->biased.lock, who, HP_CLASS_BENCH))
OPERATION(biased_write_give, hp_biased_write_unlock(&memory->biased.lock, who))

/* What was begun before is done before anything after is begun. */
static inline void finish_all(void)
{
#if defined(__x86_64__)
	__builtin_ia32_lfence();
#elif defined(__aarch64__)
	__asm__ volatile("dsb ld\n\tisb" ::: "memory");
#endif
}

/*
 * A section reads no clock: that would take longer than some of the locks. Each turn needs the one before. The
 * processor, which works ahead, is kept from doing the section while it still takes the lock or gives it back: how much
 * of a lock's cost a section can hide says more about the section. One copy for all, since how fast a short loop is
 * depends on where it stands.
 */
static __attribute__((noinline)) void busy_section(uint32_t turns)
{
	uint64_t left = turns, one = 1;

	__asm__ volatile("" : "+r"(left), "+r"(one));
	finish_all();
	while (left)
		left = left * one - 1;
	finish_all();
}

static inline __attribute__((always_inline)) void section(uint32_t turns)
{
	if (turns)
		busy_section(turns);
}

/* Seconds that a section takes; the fastest is the one that nobody interrupted. */
static double time_sections(uint32_t turns, unsigned count)
{
	uint64_t best = UINT64_MAX;

	for (unsigned i = 0; i < 50; i++) {
		uint64_t start = bench_now_ns(), ns;

		for (unsigned k = 0; k < count; k++)
			section(turns);
		ns = bench_now_ns() - start;
		best = ns < best ? ns : best;
	}
	return (double)best / 1e9 / count;
}

uint32_t lock_section_turns(double seconds)
{
	const uint32_t probe = 100000;
	double each = time_sections(probe, 1) / probe, turns = seconds / each, around;

	/* What does not depend on the turns. */
	around = time_sections((uint32_t)turns, 500) - seconds;
	turns -= around / each;
	return turns < 1 ? 1 : (uint32_t)turns;
}

/* ---- By one thread ---------------------------------------------------------------------------------------------- */

#define LOOP(name, take, give)                                                                                \
	static void name(struct lock_site *site, const struct hp_locker *who, uint64_t count, uint32_t turns) \
	{                                                                                                     \
		struct lock_memory *memory = site->memory;                                                    \
                                                                                                              \
		for (uint64_t i = 0; i < count; i++) {                                                        \
			take(memory, who);                                                                    \
			section(turns);                                                                       \
			give(memory, who);                                                                    \
		}                                                                                             \
	}

LOOP(loop_bare, bare_lock, bare_unlock)
LOOP(loop_pthread_mutex, pthread_mutex_take, pthread_mutex_give)
LOOP(loop_mutex, mutex_take, mutex_give)
LOOP(loop_pthread_read, pthread_read_take, pthread_rwlock_give)
LOOP(loop_pthread_write, pthread_write_take, pthread_rwlock_give)
LOOP(loop_rwsem_read, rwsem_read_take, rwsem_read_give)
LOOP(loop_rwsem_write, rwsem_write_take, rwsem_write_give)
LOOP(loop_upgradeable, upgradeable_take, upgradeable_give)
LOOP(loop_biased_read, biased_read_take, biased_read_give)
LOOP(loop_biased_write, biased_write_take, biased_write_give)

static void bias_on(struct lock_site *site)
{
	atomic_store(&site->memory->biased.lock.bias, HP_BIAS_ON);
}

/* A warm bias stays warm only where there are no one-sided barriers. */
static void bias_warm(struct lock_site *site)
{
	site->memory->shared.fenced = 1;
	atomic_store(&site->memory->biased.lock.bias, HP_BIAS_WARM);
}

/* What the second of two writers in a row finds. */
static void bias_off(struct lock_site *site)
{
	atomic_store(&site->memory->biased.lock.bias, HP_BIAS_OFF);
}

const struct lock_rival lock_rivals[LOCK_RIVALS] = {
	[LOCK_BARE] = {"none", "", false, NULL, loop_bare},
	[LOCK_PTHREAD_MUTEX] = {"pthread_mutex", "", false, NULL, loop_pthread_mutex},
	[LOCK_MUTEX] = {"hp_mutex", "", true, NULL, loop_mutex},
	[LOCK_PTHREAD_READ] = {"pthread_rwlock", "read", false, NULL, loop_pthread_read},
	[LOCK_RWSEM_READ] = {"hp_rwsem", "read", true, NULL, loop_rwsem_read},
	[LOCK_BIASED_READ] = {"hp_biased", "read", true, bias_on, loop_biased_read},
	[LOCK_BIASED_READ_WARM] = {"hp_biased", "read, warm", true, bias_warm, loop_biased_read},
	[LOCK_PTHREAD_WRITE] = {"pthread_rwlock", "write", false, NULL, loop_pthread_write},
	[LOCK_RWSEM_WRITE] = {"hp_rwsem", "write", true, NULL, loop_rwsem_write},
	[LOCK_BIASED_WRITE] = {"hp_biased", "write", true, bias_off, loop_biased_write},
	[LOCK_UPGRADEABLE] = {"hp_rwsem", "upgradeable", true, NULL, loop_upgradeable},
};

/* ---- By many ---------------------------------------------------------------------------------------------------- */

static inline uint32_t next_random(uint32_t x)
{
	x ^= x << 13;
	x ^= x >> 17;
	return x ^ x << 5;
}

#define CROWD_LOOP(name, read_take, read_give, write_take, write_give)                                    \
	static void name(struct lock_site *site, const struct hp_locker *who, const struct lock_mix *mix, \
	                 const _Atomic uint32_t *stop, _Atomic uint64_t *operations)                      \
	{                                                                                                 \
		struct lock_memory *memory = site->memory;                                                \
		uint64_t below = mix->read_below, done = 0;                                               \
		uint32_t random = mix->seed, turns = mix->turns;                                          \
                                                                                                          \
		while (done % LOOK_AFTER || !atomic_load_explicit(stop, memory_order_relaxed)) {          \
			random = next_random(random);                                                     \
			if (random < below) {                                                             \
				read_take(memory, who);                                                   \
				section(turns);                                                           \
				read_give(memory, who);                                                   \
			} else {                                                                          \
				write_take(memory, who);                                                  \
				section(turns);                                                           \
				write_give(memory, who);                                                  \
			}                                                                                 \
			atomic_store_explicit(operations, ++done, memory_order_relaxed);                  \
		}                                                                                         \
	}

CROWD_LOOP(crowd_pthread_rwlock, pthread_read_take, pthread_rwlock_give, pthread_write_take, pthread_rwlock_give)
CROWD_LOOP(crowd_rwsem, rwsem_read_take, rwsem_read_give, rwsem_write_take, rwsem_write_give)
CROWD_LOOP(crowd_biased, biased_read_take, biased_read_give, biased_write_take, biased_write_give)
CROWD_LOOP(crowd_pthread_mutex, pthread_mutex_take, pthread_mutex_give, pthread_mutex_take, pthread_mutex_give)
CROWD_LOOP(crowd_mutex, mutex_take, mutex_give, mutex_take, mutex_give)

const struct lock_crowd_rival lock_crowd_rivals[CROWD_RIVALS] = {
	[CROWD_PTHREAD_RWLOCK] = {"pthread_rwlock", crowd_pthread_rwlock},
	[CROWD_RWSEM] = {"hp_rwsem", crowd_rwsem},
	[CROWD_BIASED] = {"hp_biased", crowd_biased},
	[CROWD_PTHREAD_MUTEX] = {"pthread_mutex", crowd_pthread_mutex},
	[CROWD_MUTEX] = {"hp_mutex", crowd_mutex},
};

/* ---- A member --------------------------------------------------------------------------------------------------- */

static void report_done(struct lock_crowd *crowd)
{
	if (atomic_fetch_add(&crowd->board->done.count, 1) + 1 == crowd->count)
		hp_futex_wake(&crowd->board->done.count, 1);
}

static void be_member(struct lock_crowd *crowd, unsigned index)
{
	struct lock_board *board = crowd->board;
	struct hp_locker who;
	struct hp_slot *slot = lock_site_join(&crowd->site, &who, index);

	if (!slot)
		atomic_store(&board->failed, 1);
	report_done(crowd);
	for (uint32_t turn = 0;;) {
		struct lock_mix mix;

		while (atomic_load(&board->go) == turn)
			hp_futex_wait(&board->go, turn, HP_FUTEX_FOREVER);
		turn++;
		if (!board->rival)
			break;
		mix = board->mix;
		mix.seed = (index + 1) * 2654435761u; /* odd: never 0 */
		board->rival->loop(&crowd->site, &who, &mix, &board->stop.word, &board->member[index].operations);
		report_done(crowd);
	}
	if (slot)
		lock_site_leave(slot);
}

struct member_start {
	struct lock_crowd *crowd;
	unsigned index;
};

static void *member_thread(void *arg)
{
	struct member_start start = *(struct member_start *)arg;

	be_member(start.crowd, start.index);
	return NULL;
}

static bool start_process(struct lock_crowd *crowd, unsigned index)
{
	pid_t bench = getpid(), pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == bench)
			be_member(crowd, index);
		_exit(0);
	}
	crowd->member[index].pid = pid;
	return pid > 0;
}

/* ---- A crowd ---------------------------------------------------------------------------------------------------- */

static bool member_is_lost(struct lock_crowd *crowd)
{
	siginfo_t info = {0};

	return crowd->processes && !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid;
}

static bool await_done(struct lock_crowd *crowd)
{
	uint64_t start = bench_now_ns();
	uint32_t done;

	while ((done = atomic_load(&crowd->board->done.count)) < crowd->count) {
		hp_futex_wait(&crowd->board->done.count, done, 100000000);
		if (bench_now_ns() - start < CROWD_TIMEOUT_NS && !member_is_lost(crowd))
			continue;
		fprintf(stderr, "hugepool bench: of %u members that took locks, %u came to an end\n", crowd->count,
		        atomic_load(&crowd->board->done.count));
		return false;
	}
	if (atomic_load(&crowd->board->failed)) {
		fprintf(stderr, "hugepool bench: a thread found no slot in the domain of the locks\n");
		return false;
	}
	return true;
}

static void let_go(struct lock_crowd *crowd, const struct lock_crowd_rival *rival)
{
	crowd->board->rival = rival;
	atomic_store(&crowd->board->done.count, 0);
	atomic_store(&crowd->board->stop.word, 0);
	atomic_fetch_add(&crowd->board->go, 1);
	hp_futex_wake(&crowd->board->go, INT_MAX);
}

/* Those who have been started end: when told to, or by force. */
static void end_members(struct lock_crowd *crowd, unsigned started, bool force)
{
	for (unsigned i = 0; i < started; i++) {
		if (!crowd->processes) {
			pthread_join(crowd->member[i].thread, NULL);
			continue;
		}
		if (force)
			kill(crowd->member[i].pid, SIGKILL);
		while (waitpid(crowd->member[i].pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
}

bool lock_crowd_open(struct lock_crowd *crowd, unsigned count, bool processes)
{
	static struct member_start start[LOCK_CROWD_MAX];
	unsigned started;

	memset(crowd, 0, sizeof(*crowd));
	crowd->count = count;
	crowd->processes = processes;
	crowd->board_size = sizeof(*crowd->board) + count * sizeof(crowd->board->member[0]);
	if (!lock_site_open(&crowd->site, count))
		return false;
	crowd->board = shared_memory(crowd->board_size);
	if (!crowd->board) {
		lock_site_close(&crowd->site);
		return false;
	}
	for (started = 0; started < count; started++) {
		start[started] = (struct member_start){crowd, started};
		if (processes ? !start_process(crowd, started)
		              : pthread_create(&crowd->member[started].thread, NULL, member_thread, &start[started]))
			break;
	}
	if (started == count && await_done(crowd))
		return true;
	if (started < count)
		fprintf(stderr, "hugepool bench: %u %s cannot be started\n", count,
		        processes ? "processes" : "threads");
	let_go(crowd, NULL);
	end_members(crowd, started, true);
	munmap(crowd->board, crowd->board_size);
	lock_site_close(&crowd->site);
	return false;
}

struct reading {
	double ns, operations;
};

static struct reading read_board(const struct lock_crowd *crowd)
{
	struct reading reading = {0};
	uint64_t start = bench_now_ns(), sum = 0;

	for (unsigned i = 0; i < crowd->count; i++)
		sum += atomic_load_explicit(&crowd->board->member[i].operations, memory_order_relaxed);
	reading.ns = (double)(start + (bench_now_ns() - start) / 2);
	reading.operations = (double)sum;
	return reading;
}

static void sleep_s(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	nanosleep(&t, NULL);
}

/*
 * The clock runs between two readings of what the members have done so far: neither their waking up counts, nor what
 * those who have lost their CPU still do after the end.
 */
bool lock_crowd_measure(struct lock_crowd *crowd, const struct lock_crowd_rival *rival, unsigned reads, uint32_t turns,
                        double seconds, double *operations_per_s)
{
	struct reading from, to;

	lock_site_renew(&crowd->site);
	crowd->board->mix = (struct lock_mix){.read_below = ((uint64_t)reads << 32) / 100, .turns = turns};
	for (unsigned i = 0; i < crowd->count; i++)
		atomic_store(&crowd->board->member[i].operations, 0);
	let_go(crowd, rival);
	sleep_s(WARM_UP * seconds);
	from = read_board(crowd);
	sleep_s(seconds);
	to = read_board(crowd);
	atomic_store(&crowd->board->stop.word, 1);
	*operations_per_s = (to.operations - from.operations) / (to.ns - from.ns) * 1e9;
	return await_done(crowd);
}

double lock_crowd_cpu_s(const struct lock_crowd *crowd)
{
	double sum = (double)bench_cpu_ns() / 1e9; /* all threads of this process */
	struct timespec t;
	clockid_t clock;

	for (unsigned i = 0; crowd->processes && i < crowd->count; i++)
		if (!clock_getcpuclockid(crowd->member[i].pid, &clock) && !clock_gettime(clock, &t))
			sum += (double)t.tv_sec + (double)t.tv_nsec / 1e9;
	return sum;
}

void lock_crowd_close(struct lock_crowd *crowd)
{
	let_go(crowd, NULL);
	end_members(crowd, crowd->count, false);
	munmap(crowd->board, crowd->board_size);
	lock_site_close(&crowd->site);
}
