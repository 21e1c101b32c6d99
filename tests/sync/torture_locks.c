/* SPDX-License-Identifier: MIT */
/*
 * Many threads of many processes take locks at random, and die at random: killed, by exec in another thread, or the
 * thread alone; at once, or at one of their next yield points. Dead ones are replaced. Whoever is inside looks whether it
 * is alone there; a controller looks whether anybody waits for long, and takes every lock in the end.
 *
 *   torture_locks [SECONDS [DEATHS]]
 *
 * The locks are this program's own copy, with yield points in.
 */
#include "support/domain.h"
#include "support/random.h"
#include "sync/yield.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROCESSES = 8, THREADS = 4, WAIT_LIMIT_MS = 2000, BUCKETS = 8 };
enum way { KILL_NOW, EXEC_NOW, KILL_AT_YIELD, PTHREAD_EXIT, RAW_EXIT, WAYS };

static const char *const way_names[] = {"killed", "by exec", "killed at a yield point", "by pthread_exit",
                                        "by raw exit"};
static const int64_t bucket_ms[BUCKETS] = {1, 5, 30, 60, 100, 250, 1000, INT64_MAX};

struct worker {                      /* one thread */
	_Atomic int64_t waits_since; /* or 0 */
	_Atomic uint64_t waits_for;  /* a lock's id */
	_Atomic int32_t fuse;        /* so many yield points to live, if more than 0 */
	_Atomic uint32_t fuse_way;
	_Atomic bool lives;
	_Atomic uint32_t slot; /* plus 1 */
	_Atomic uint64_t rounds;
} __attribute__((aligned(HP_CACHE_LINE)));

/* What controller and processes share beside the domain. */
static struct torture {
	struct worker worker[PROCESSES][THREADS];
	_Atomic bool exec[PROCESSES], stop;
	_Atomic uint32_t wrong;
	_Atomic uint64_t deaths[WAYS], waits[BUCKETS], longest_wait_ns, repairs;
} * torture;

static uint64_t seed;
static pid_t pids[PROCESSES];
static __thread struct worker *self;
static __thread uint64_t dice;

void (*hp_yield_hook)(const char *where);

#define must(condition)                                                                                   \
	do {                                                                                              \
		if (!(condition) && atomic_fetch_add(&torture->wrong, 1) < 10)                            \
			fprintf(stderr, "torture_locks.c:%d: does not hold: %s\n", __LINE__, #condition); \
	} while (0)

/* ---- workers ---------------------------------------------------------------------------------------------------- */

static bool chance(unsigned one_in)
{
	return random_below(&dice, one_in) == 0;
}

/* Now and then a step takes long, so that others come between it and the next; more often the rare ones. */
static void dawdle(const char *where)
{
	bool rare = strstr(where, "gone") || strstr(where, "are counted") || strstr(where, "repairing");

	if (chance(rare ? 8 : 4000))
		domain_sleep((int64_t)random_below(&dice, 3000000));
}

static void hook(const char *where)
{
	enum way way;

	if (!self)
		return;
	dawdle(where);
	if (atomic_load(&self->fuse) <= 0 || atomic_fetch_sub(&self->fuse, 1) != 1)
		return;
	way = atomic_load(&self->fuse_way);
	atomic_fetch_add(&torture->deaths[way], 1);
	if (way == KILL_AT_YIELD)
		kill(getpid(), SIGKILL);
	atomic_store(&self->waits_since, 0);
	atomic_store(&self->lives, false);
	if (way == PTHREAD_EXIT)
		pthread_exit(NULL);
	syscall(SYS_exit, 0);
}

static int64_t begin_wait(const void *lock)
{
	int64_t now = hp_now_ns();

	atomic_store(&self->waits_for, hp_lock_id(&me, lock));
	atomic_store(&self->waits_since, now);
	return now;
}

static void end_wait(int64_t since)
{
	uint64_t waited = (uint64_t)(hp_now_ns() - since), longest = atomic_load(&torture->longest_wait_ns);
	unsigned bucket = 0;

	atomic_store(&self->waits_since, 0);
	while ((int64_t)waited / 1000000 >= bucket_ms[bucket])
		bucket++;
	atomic_fetch_add(&torture->waits[bucket], 1);
	while (waited > longest && !atomic_compare_exchange_weak(&torture->longest_wait_ns, &longest, waited))
		;
}

#define WAITING(lock, call)                        \
	do {                                       \
		int64_t since_ = begin_wait(lock); \
		call;                              \
		end_wait(since_);                  \
	} while (0)

/* Inside, as the only one. */
static void write_data(struct domain_data *data)
{
	uint64_t a = atomic_load(&data->a);

	must(atomic_exchange(&data->inside_writers, me.owner) == 0);
	must(atomic_load(&data->b) == a);
	atomic_store(&data->a, a + 1);
	hook("inside");
	if (chance(64))
		sched_yield();
	atomic_store(&data->b, a + 1);
	must(atomic_exchange(&data->inside_writers, 0) == me.owner);
}

/* Inside, beside others who read. */
static uint64_t read_data(struct domain_data *data)
{
	uint64_t a = atomic_load(&data->a);

	must(atomic_load(&data->inside_writers) == 0);
	hook("inside");
	if (chance(64))
		sched_yield();
	must(atomic_load(&data->b) == a && atomic_load(&data->a) == a);
	must(atomic_load(&data->inside_writers) == 0);
	return a;
}

static struct domain_data *data_of(void *lock)
{
	if ((struct hp_mutex *)lock >= shared->mutex && (struct hp_mutex *)lock < shared->mutex + DOMAIN_LOCKS)
		return &shared->mutex_data[(struct hp_mutex *)lock - shared->mutex];
	if ((struct hp_rwsem *)lock >= shared->sem && (struct hp_rwsem *)lock < shared->sem + DOMAIN_LOCKS)
		return &shared->sem_data[(struct hp_rwsem *)lock - shared->sem];
	return &shared->biased_data[(struct hp_biased *)lock - shared->biased];
}

/* What the dead owner was in the middle of is done. */
static void repair(const struct hp_locker *who, void *lock, hp_owner dead)
{
	struct domain_data *data = data_of(lock);

	must(hp_owner_is_gone(&domain, dead));
	if ((struct hp_biased *)lock >= shared->biased && (struct hp_biased *)lock < shared->biased + DOMAIN_LOCKS)
		hp_biased_revoke(lock, who);
	must(atomic_load(&data->inside_writers) == 0 || atomic_load(&data->inside_writers) == dead ||
	     hp_owner_is_gone(&domain, atomic_load(&data->inside_writers)));
	hook("repairing");
	atomic_store(&data->b, atomic_load(&data->a));
	atomic_store(&data->inside_writers, 0);
	atomic_fetch_add(&torture->repairs, 1);
}

static void use_lower_locks(unsigned rank);

/* With one lock held, perhaps more are taken: another of its kind, if that is free, and those of higher rank. */
static void use_sem(struct hp_rwsem *sem, struct domain_data *data, bool waits)
{
	uint64_t seen;

	switch (random_below(&dice, 8)) {
	case 0:
		if (!waits && !hp_rwsem_write_trylock(sem, &me, CLASS_SEM))
			return;
		if (waits)
			WAITING(sem, hp_rwsem_write_lock(sem, &me, CLASS_SEM));
		write_data(data);
		use_lower_locks(1);
		hp_rwsem_write_unlock(sem, &me);
		return;
	case 1:
		if (!hp_rwsem_write_trylock(sem, &me, CLASS_SEM))
			return;
		write_data(data);
		seen = atomic_load(&data->a);
		hp_rwsem_downgrade(sem, &me);
		must(read_data(data) == seen);
		hp_rwsem_read_unlock(sem, &me);
		return;
	case 2:
	case 3:
		if (!waits && !hp_rwsem_upgradeable_trylock(sem, &me, CLASS_SEM))
			return;
		if (waits)
			WAITING(sem, hp_rwsem_upgradeable_lock(sem, &me, CLASS_SEM));
		seen = read_data(data);
		/* Not with another of its kind: two could wait for each other. */
		if (!waits || chance(2)) {
			hp_rwsem_upgradeable_unlock(sem, &me);
			return;
		}
		WAITING(sem, hp_rwsem_upgrade(sem, &me));
		must(atomic_load(&data->a) == seen);
		write_data(data);
		/* And back, as often as it likes. */
		while (chance(2)) {
			seen = atomic_load(&data->a);
			hp_rwsem_downgrade_upgradeable(sem, &me);
			must(read_data(data) == seen);
			use_lower_locks(1);
			if (chance(4)) {
				hp_rwsem_upgradeable_unlock(sem, &me);
				return;
			}
			WAITING(sem, hp_rwsem_upgrade(sem, &me));
			must(atomic_load(&data->a) == seen);
			write_data(data);
		}
		hp_rwsem_write_unlock(sem, &me);
		return;
	default:
		if (!waits && !hp_rwsem_read_trylock(sem, &me, CLASS_SEM))
			return;
		if (waits)
			WAITING(sem, hp_rwsem_read_lock(sem, &me, CLASS_SEM));
		read_data(data);
		if (waits && chance(4))
			use_sem(&shared->sem[(sem - shared->sem + 1) % DOMAIN_LOCKS],
			        &shared->sem_data[(sem - shared->sem + 1) % DOMAIN_LOCKS], false);
		use_lower_locks(1);
		hp_rwsem_read_unlock(sem, &me);
	}
}

static void use_mutex(unsigned n, bool waits)
{
	struct hp_mutex *mutex = &shared->mutex[n];

	if (!waits && !hp_mutex_trylock(mutex, &me, CLASS_MUTEX))
		return;
	if (waits)
		WAITING(mutex, hp_mutex_lock(mutex, &me, CLASS_MUTEX));
	write_data(&shared->mutex_data[n]);
	if (waits && chance(8))
		use_mutex((n + 1) % DOMAIN_LOCKS, false);
	use_lower_locks(2);
	hp_mutex_unlock(mutex, &me);
}

static void use_biased(unsigned n)
{
	struct hp_biased *lock = &shared->biased[n];
	struct domain_data *data = &shared->biased_data[n];
	uint64_t seen;

	switch (random_below(&dice, 100)) {
	case 0:
		WAITING(lock, hp_biased_write_lock(lock, &me, CLASS_BIASED));
		write_data(data);
		hp_biased_write_unlock(lock, &me);
		return;
	case 1:
		if (!hp_biased_write_trylock(lock, &me, CLASS_BIASED))
			return;
		write_data(data);
		seen = atomic_load(&data->a);
		hp_biased_downgrade(lock, &me);
		must(read_data(data) == seen);
		hp_biased_read_unlock(lock, &me);
		return;
	case 2:
		WAITING(lock, hp_biased_upgradeable_lock(lock, &me, CLASS_BIASED));
		seen = read_data(data);
		WAITING(lock, hp_biased_upgrade(lock, &me));
		must(atomic_load(&data->a) == seen);
		write_data(data);
		if (chance(2)) {
			seen = atomic_load(&data->a);
			hp_biased_downgrade_upgradeable(lock, &me);
			must(read_data(data) == seen);
			WAITING(lock, hp_biased_upgrade(lock, &me));
			must(atomic_load(&data->a) == seen);
			write_data(data);
		}
		hp_biased_write_unlock(lock, &me);
		return;
	case 3:
		if (!hp_biased_read_trylock(lock, &me, CLASS_BIASED))
			return;
		break;
	default:
		WAITING(lock, hp_biased_read_lock(lock, &me, CLASS_BIASED));
	}
	read_data(data);
	hp_biased_read_unlock(lock, &me);
}

static void use_lower_locks(unsigned rank)
{
	if (rank < 1 && chance(2))
		return;
	if (rank < 2 && chance(3))
		use_mutex((unsigned)random_below(&dice, DOMAIN_LOCKS), true);
	else if (chance(2))
		use_biased((unsigned)random_below(&dice, DOMAIN_LOCKS));
}

static void *work(void *argument)
{
	unsigned n;

	self = argument;
	while (!domain_try_join())
		domain_sleep(1000000);
	dice = seed + me.owner * 0x1000003u;
	atomic_store(&self->slot, my_slot->id + 1);
	while (!atomic_load(&torture->stop)) {
		n = (unsigned)random_below(&dice, DOMAIN_LOCKS);
		switch (random_below(&dice, 4)) {
		case 0:
			use_sem(&shared->sem[n], &shared->sem_data[n], true);
			break;
		case 1:
			use_mutex(n, true);
			break;
		default:
			use_biased(n);
		}
		must(hp_record_is_empty(me.record));
		atomic_fetch_add(&self->rounds, 1);
	}
	domain_leave();
	atomic_store(&self->slot, 0);
	atomic_store(&self->lives, false);
	return NULL;
}

/* A process: replaces those of its threads that ended. */
static void run_process(unsigned p, pid_t parent)
{
	char *const arguments[] = {(char[]){"true"}, NULL};
	unsigned alive = 1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	while (alive) {
		alive = 0;
		for (unsigned t = 0; t < THREADS; t++) {
			struct worker *worker = &torture->worker[p][t];
			pthread_t thread;

			if (!atomic_load(&worker->lives) && !atomic_load(&torture->stop)) {
				atomic_store(&worker->lives, true);
				if (pthread_create(&thread, NULL, work, worker) || pthread_detach(thread))
					_exit(1);
			}
			alive += atomic_load(&worker->lives);
		}
		if (atomic_load(&torture->exec[p])) {
			execve("/bin/true", arguments, environ);
			_exit(1);
		}
		domain_sleep(2000000);
	}
	_exit(0);
}

/* ---- the controller --------------------------------------------------------------------------------------------- */

static void start_process(unsigned p)
{
	pid_t parent = getpid();

	/* What the last one left here; a fuse dies with its thread. */
	for (unsigned t = 0; t < THREADS; t++) {
		struct worker *worker = &torture->worker[p][t];

		atomic_store(&worker->waits_since, 0);
		atomic_store(&worker->fuse, 0);
		atomic_store(&worker->slot, 0);
		atomic_store(&worker->lives, false);
	}
	atomic_store(&torture->exec[p], false);
	pids[p] = fork();
	if (!pids[p])
		run_process(p, parent);
	if (pids[p] < 0)
		domain_die("fork");
}

/* Processes that ended are replaced. How many are left. */
static unsigned look_after_processes(bool replace)
{
	unsigned alive = 0;

	for (unsigned p = 0; p < PROCESSES; p++) {
		int status;

		if (pids[p] && waitpid(pids[p], &status, WNOHANG) == pids[p]) {
			must(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
			pids[p] = 0;
		}
		if (!pids[p] && replace)
			start_process(p);
		alive += pids[p] != 0;
	}
	return alive;
}

static void kill_one(uint64_t *random)
{
	unsigned p = (unsigned)random_below(random, PROCESSES);
	struct worker *worker = &torture->worker[p][random_below(random, THREADS)];
	enum way way = (enum way)random_below(random, WAYS);

	if (!pids[p])
		return;
	if (way == KILL_NOW || way == EXEC_NOW) {
		if (way == KILL_NOW)
			kill(pids[p], SIGKILL);
		else if (atomic_exchange(&torture->exec[p], true))
			return;
		atomic_fetch_add(&torture->deaths[way], 1);
	} else if (atomic_load(&worker->lives) && atomic_load(&worker->fuse) <= 0) {
		atomic_store(&worker->fuse_way, way);
		atomic_store(&worker->fuse, 1 + (int32_t)random_below(random, 20));
	}
}

static uint64_t deaths(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < WAYS; i++)
		sum += atomic_load(&torture->deaths[i]);
	return sum;
}

static void describe(uint64_t id)
{
	void *lock = (char *)shared + id;

	if (data_of(lock) >= shared->biased_data)
		fprintf(stderr, "  biased lock %d: bias %u, ", (int)((struct hp_biased *)lock - shared->biased),
		        atomic_load(&((struct hp_biased *)lock)->bias));
	if (data_of(lock) < shared->sem_data)
		fprintf(stderr, "  mutex: word %x\n", atomic_load(&((struct hp_mutex *)lock)->word));
	else
		fprintf(stderr, "  rwsem: state %lx\n", (unsigned long)atomic_load(&((struct hp_rwsem *)lock)->state));
	for (unsigned s = 0; s < DOMAIN_SLOTS; s++)
		for (unsigned k = 0; k < HP_HOLDS; k++) {
			uint64_t hold = atomic_load(&shared->records[s].hold[k]);

			if (hold && (hold & ~HP_HOLD_STATE) == id)
				fprintf(stderr, "  slot %u holds it in state %lu, %s\n", s,
				        (unsigned long)(hold & HP_HOLD_STATE),
				        hp_slot_is_gone(&shared->slots[s]) ? "gone" : "alive");
		}
}

/* Nobody waits for long. */
static bool look_for_waits(void)
{
	int64_t now = hp_now_ns();

	for (unsigned p = 0; p < PROCESSES; p++)
		for (unsigned t = 0; t < THREADS; t++) {
			int64_t since = atomic_load(&torture->worker[p][t].waits_since);

			if (!since || !pids[p] || now - since < (int64_t)WAIT_LIMIT_MS * 1000000)
				continue;
			fprintf(stderr, "process %u thread %u (slot %u) has waited for %ld ms for lock %lx:\n", p, t,
			        atomic_load(&torture->worker[p][t].slot) - 1, (long)((now - since) / 1000000),
			        (unsigned long)atomic_load(&torture->worker[p][t].waits_for));
			describe(atomic_load(&torture->worker[p][t].waits_for));
			atomic_fetch_add(&torture->wrong, 1);
			return false;
		}
	return true;
}

static void out_of_time(int signal)
{
	static const char text[] = "the controller waits in vain for a lock\n";

	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(2);
	_exit(1);
}

static void expect_consistent(const struct domain_data *data)
{
	must(atomic_load(&data->a) == atomic_load(&data->b));
	must(atomic_load(&data->inside_writers) == 0);
}

/* Everybody has left or is dead: each lock can be had, and what it protects is whole. */
static void take_all(void)
{
	alarm(20);
	for (unsigned i = 0; i < DOMAIN_LOCKS; i++) {
		hp_mutex_lock(&shared->mutex[i], &me, CLASS_MUTEX);
		expect_consistent(&shared->mutex_data[i]);
		hp_mutex_unlock(&shared->mutex[i], &me);
		hp_rwsem_write_lock(&shared->sem[i], &me, CLASS_SEM);
		expect_consistent(&shared->sem_data[i]);
		hp_rwsem_write_unlock(&shared->sem[i], &me);
		hp_biased_write_lock(&shared->biased[i], &me, CLASS_BIASED);
		expect_consistent(&shared->biased_data[i]);
		hp_biased_write_unlock(&shared->biased[i], &me);
		must(sem_held(&shared->sem[i]) == 0 && sem_held(&shared->biased[i].sem) == 0);
	}
	for (unsigned tries = 0; tries < 10 && !domain_bury(); tries++)
		domain_sleep(30000000);
	for (unsigned i = 0; i < DOMAIN_SLOTS; i++)
		must(hp_record_is_empty(&shared->records[i]));
	must(atomic_load(&shared->shared.burial) == 0);
	alarm(0);
}

static void print_summary(uint64_t seconds)
{
	static const enum hp_lock_class classes[] = {CLASS_SEM, CLASS_MUTEX, CLASS_BIASED};
	uint64_t taken = 0, contended = 0, noticed = 0;

	for (unsigned i = 0; i < 3; i++)
		for (unsigned mode = 0; mode < HP_LOCK_MODES; mode++) {
			taken += domain_acquired(classes[i], mode);
			contended += atomic_load(&domain_sums(classes[i], mode)->wait.count);
			noticed += atomic_load(&domain_sums(classes[i], mode)->deaths);
		}
	printf("torture_locks: %lu s, %lu locks taken, %lu waited for, %lu deaths, %lu of holders noticed, %lu "
	       "repairs, "
	       "longest wait %.0f ms, %u wrong\n",
	       (unsigned long)seconds, (unsigned long)taken, (unsigned long)contended, (unsigned long)deaths(),
	       (unsigned long)noticed, (unsigned long)atomic_load(&torture->repairs),
	       (double)atomic_load(&torture->longest_wait_ns) / 1e6, atomic_load(&torture->wrong));
	for (unsigned i = 0; i < WAYS; i++)
		printf("  %lu %s", (unsigned long)atomic_load(&torture->deaths[i]), way_names[i]);
	printf("\n  waits up to, in ms:");
	for (unsigned i = 0; i + 1 < BUCKETS; i++)
		printf(" %ld: %lu", (long)bucket_ms[i], (unsigned long)atomic_load(&torture->waits[i]));
	printf(" more: %lu\n", (unsigned long)atomic_load(&torture->waits[BUCKETS - 1]));
}

static bool run(uint64_t seconds, uint64_t wanted_deaths)
{
	int64_t start = hp_now_ns(), now = start, length = (int64_t)seconds * 1000000000, stopped;
	uint64_t random = seed;

	while ((now = hp_now_ns()) - start < length && !atomic_load(&torture->wrong)) {
		look_after_processes(true);
		/* As many as there should have been by now; fuses that burn count when they have. */
		if (deaths() < (uint64_t)((double)wanted_deaths * (double)(now - start) / (double)length) + 1)
			kill_one(&random);
		domain_bury();
		if (!look_for_waits())
			return false;
		domain_sleep(1000000 + (int64_t)random_below(&random, 8000000));
	}
	atomic_store(&torture->stop, true);
	stopped = hp_now_ns();
	while (look_after_processes(false)) {
		if (!look_for_waits() || hp_now_ns() - stopped > (int64_t)20 * 1000000000)
			return false;
		domain_bury();
		domain_sleep(5000000);
	}
	take_all();
	return true;
}

int main(int argc, char **argv)
{
	uint64_t seconds = argc > 1 ? strtoull(argv[1], NULL, 0) : 3,
		 wanted = argc > 2 ? strtoull(argv[2], NULL, 0) : 30;
	bool ended;

#ifdef __SANITIZE_THREAD__
	return 77; /* children of fork that have threads */
#endif
	seed = random_seed();
	torture = mmap(NULL, sizeof(*torture), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (torture == MAP_FAILED)
		return 2;
	domain_make();
	signal(SIGALRM, out_of_time);
	hp_yield_hook = hook;
	hp_lock_class_set_repair(CLASS_SEM, repair);
	hp_lock_class_set_repair(CLASS_MUTEX, repair);
	hp_lock_class_set_repair(CLASS_BIASED, repair);
	ended = run(seconds, wanted);
	for (unsigned p = 0; p < PROCESSES; p++)
		if (pids[p])
			kill(pids[p], SIGKILL);
	print_summary(seconds);
	return !ended || atomic_load(&torture->wrong);
}
