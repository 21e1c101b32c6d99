/* SPDX-License-Identifier: MIT */
/* Threads in tests: started together, and what they find wrong is told when they have ended. */
#ifndef SUPPORT_THREADS_H
#define SUPPORT_THREADS_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <setjmp.h>

#include <cmocka.h>

static _Atomic unsigned threads_wrong;

/* For threads, which cannot use the test library's assertions. */
#define thread_must(condition)                                                                         \
	do {                                                                                           \
		if (!(condition) && atomic_fetch_add(&threads_wrong, 1) < 5)                           \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
	} while (0)

/* Runs fn(argument of each) in `count` threads and waits for all. */
static inline void threads_run(unsigned count, void *(*fn)(void *), void *arguments, size_t argument_size)
{
	pthread_t threads[64];

	assert_true(count <= 64);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, fn, (char *)arguments + i * argument_size), 0);
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&threads_wrong), 0);
}

#endif
