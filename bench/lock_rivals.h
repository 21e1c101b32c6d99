/* SPDX-License-Identifier: MIT */
/*
 * The locks that `hugepool bench locks` measures, in memory that processes share, each on cache lines of its own; loops
 * over them; and crowds that take them all at the same time.
 */
#ifndef BENCH_LOCK_RIVALS_H
#define BENCH_LOCK_RIVALS_H

#include "bench.h"

#include "sync/domain.h"

#include <pthread.h>
#include <stddef.h>

#define LOCK_CROWD_MAX 512u

/* ---- The locks -------------------------------------------------------------------------------------------------- */

struct lock_memory;

struct lock_site {
	struct lock_memory *memory;
	size_t size;
	struct hp_lock_domain domain;
	uint32_t fenced; /* as the domain came out: this machine has no one-sided barriers */
};

/* Slots for `threads` threads. A message and false where that is not possible. */
bool lock_site_open(struct lock_site *site, unsigned threads);
void lock_site_close(struct lock_site *site);
/* All locks as new. Nobody may be using them. */
void lock_site_renew(struct lock_site *site);
/* The calling thread becomes a locker. The slot is what it gives back, or NULL. */
struct hp_slot *lock_site_join(struct lock_site *site, struct hp_locker *who, unsigned index);
void lock_site_leave(struct hp_slot *slot);
void lock_site_set_statistics(struct lock_site *site, bool enabled);

/* ---- By one thread ---------------------------------------------------------------------------------------------- */

struct lock_rival {
	const char *engine, *mode; /* mode "": a mutex */
	bool ours;
	void (*prepare)(struct lock_site *site); /* after lock_site_renew(); NULL: nothing more */
	/* Takes the lock and gives it back, `count` times, with a section of so many turns inside. */
	void (*loop)(struct lock_site *site, const struct hp_locker *who, uint64_t count, uint32_t turns);
};

enum lock_rival_index {
	LOCK_BARE, /* no lock at all: the loop and the section */
	LOCK_PTHREAD_MUTEX,
	LOCK_MUTEX,
	LOCK_PTHREAD_READ,
	LOCK_RWSEM_READ,
	LOCK_BIASED_READ,
	LOCK_BIASED_READ_WARM,
	LOCK_PTHREAD_WRITE,
	LOCK_RWSEM_WRITE,
	LOCK_BIASED_WRITE,
	LOCK_UPGRADEABLE,
	LOCK_RIVALS,
};
extern const struct lock_rival lock_rivals[LOCK_RIVALS];

/* How many turns of a section's loop take so long. */
uint32_t lock_section_turns(double seconds);

/* ---- By many ---------------------------------------------------------------------------------------------------- */

struct lock_mix {
	uint64_t read_below; /* a random number of 32 bits that is smaller means: read */
	uint32_t turns;      /* of the section */
	uint32_t seed;       /* not 0 */
};

struct lock_crowd_rival {
	const char *engine;
	/* Takes and gives back until *stop, adding to *operations. */
	void (*loop)(struct lock_site *site, const struct hp_locker *who, const struct lock_mix *mix,
	             const _Atomic uint32_t *stop, _Atomic uint64_t *operations);
};

enum lock_crowd_index {
	CROWD_PTHREAD_RWLOCK,
	CROWD_RWSEM,
	CROWD_BIASED,
	CROWD_PTHREAD_MUTEX,
	CROWD_MUTEX,
	CROWD_RIVALS
};
extern const struct lock_crowd_rival lock_crowd_rivals[CROWD_RIVALS];

/* Threads of this process, or processes of one thread each, that sleep until there is something to measure. */
struct lock_crowd {
	struct lock_site site;
	struct lock_board *board;
	size_t board_size;
	unsigned count;
	bool processes;
	union {
		pid_t pid;
		pthread_t thread;
	} member[LOCK_CROWD_MAX];
};

/* Both: a message and false when something broke; a crowd that could not be opened needs no close. */
bool lock_crowd_open(struct lock_crowd *crowd, unsigned count, bool processes);
/* Operations per second of all members, `reads` of 100 of them for reading. */
bool lock_crowd_measure(struct lock_crowd *crowd, const struct lock_crowd_rival *rival, unsigned reads, uint32_t turns,
                        double seconds, double *operations_per_s);
/* CPU time that the crowd and this process have had. */
double lock_crowd_cpu_s(const struct lock_crowd *crowd);
void lock_crowd_close(struct lock_crowd *crowd);

#endif
