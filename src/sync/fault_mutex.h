/* SPDX-License-Identifier: MIT */
/*
 * The hashed table of mutexes that order faults on one page.
 *
 * They exist so that a page's reservation is spent once: the loser of a race for a page waits and finds the winner's
 * page, instead of asking for a second frame that nobody promised and being told that memory is out.
 */
#ifndef HP_SYNC_FAULT_MUTEX_H
#define HP_SYNC_FAULT_MUTEX_H

#include "base/units.h"
#include "sync/mutex.h"

struct hp_fault_mutex {
	struct hp_mutex mutex;
} __attribute__((aligned(HP_CACHE_LINE)));

#define HP_FAULT_MUTEXES_MAX 4096u

/* For `cpus` CPUs: 8 for each, rounded up to a power of two; 1 on a single CPU. */
uint32_t hp_fault_mutexes_for(uint32_t cpus);

/* Mixes every bit of the key into the low ones that choose the mutex (the finalizer of MurmurHash3, A. Appleby). */
static inline uint64_t hp_hash_key(uint64_t a, uint64_t b)
{
	uint64_t x = a * 0x9e3779b97f4a7c15u ^ b;

	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdu;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53u;
	return x ^ x >> 33;
}

/* (file, page) for shared pages, so that all who map them meet; (mapping, address) for those of private memory. */
struct hp_fault_key {
	uint64_t object, place;
};

/*
 * The mutex of a page; `count` is a power of two. The key is (file, page) for pages that are shared, so that all who
 * map them meet, and (mapping, address) for those of private memory.
 */
static inline struct hp_mutex *hp_fault_mutex_for(struct hp_fault_mutex *table, uint32_t count, uint64_t object,
                                                  uint64_t place)
{
	return &table[hp_hash_key(object, place) & (count - 1)].mutex;
}

#endif
