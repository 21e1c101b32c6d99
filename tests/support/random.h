/* SPDX-License-Identifier: MIT */
/* Random numbers that can be had again: every test prints its seed, and HP_TEST_SEED=N repeats it. */
#ifndef SUPPORT_RANDOM_H
#define SUPPORT_RANDOM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* SplitMix64 (Steele, Lea, Flood). */
static inline uint64_t random_next(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* From 0 to below - 1. */
static inline uint64_t random_below(uint64_t *state, uint64_t below)
{
	return random_next(state) % below;
}

static inline uint64_t env_number(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* HP_TEST_SEED, or a new seed by the clock. Printed. */
static inline uint64_t random_seed(void)
{
	struct timespec now;
	uint64_t seed;

	clock_gettime(CLOCK_REALTIME, &now);
	seed = env_number("HP_TEST_SEED", (uint64_t)(now.tv_sec * 1000 + now.tv_nsec / 1000000));
	fprintf(stderr, "seed: HP_TEST_SEED=%lu\n", (unsigned long)seed);
	return seed;
}

#endif
