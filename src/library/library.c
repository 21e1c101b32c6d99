/* SPDX-License-Identifier: MIT */
/* Ties the layers together: the first pool of a process makes them known to each other. */
#include "library/library.h"

#include "collapse/collapse.h"

#include "file/vma.h"
#include "os/sentinel.h"
#include "space/space.h"

static const struct hp_pool_hooks space_hooks = {.in_use = hp_space_in_use, .catch_up = hp_space_catch_up};

static void join_layers(void)
{
	hp_pool_hooks_add(&hp_file_hooks);
	hp_pool_hooks_add(&hp_vma_hooks);
	hp_pool_hooks_add(&space_hooks);
	hp_pool_hooks_add(&hp_collapse_hooks);
	hp_pool_repairs();
	hp_file_repairs();
	hp_sentinel_arm();
	hp_fork_watch();
}

int hp_pool_create_on(struct hp_os *os, const hp_pool_options *options, hp_pool *pool, hp_error *error)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, join_layers);
	return hp_pool_make(os, options, pool, error);
}

int hp_pool_create(const hp_pool_options *options, hp_pool *pool, hp_error *error)
{
	return hp_pool_create_on(hp_os_linux(), options, pool, error);
}
