/* SPDX-License-Identifier: MIT */
/* Lists of operations that libFuzzer makes: fuzz.sh beside this file. */
#include "model/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SECONDS_MAX = 20 };

static _Atomic unsigned long lists;

/* A hang may have all signals blocked, which libFuzzer's own limit of time is one of. */
static void *watch(void *unused)
{
	unsigned long seen = 0, same = 0;

	for (;;) {
		sleep(1);
		same = atomic_load(&lists) == seen ? same + 1 : 0;
		seen = atomic_load(&lists);
		if (seen && same >= SECONDS_MAX) {
			fprintf(stderr, "a list hangs\n");
			abort();
		}
	}
	return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static pthread_t watcher;

	if (atomic_fetch_add(&lists, 1) == 0 && pthread_create(&watcher, NULL, watch, NULL))
		abort();
	engine_run(data, size, false);
	return 0;
}
