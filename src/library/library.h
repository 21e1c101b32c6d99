/* SPDX-License-Identifier: MIT */
/* What ties the layers together. */
#ifndef HP_LIBRARY_LIBRARY_H
#define HP_LIBRARY_LIBRARY_H

#include "hugepool.h"
#include "os/os.h"

/* hp_pool_create on a backend of choice. */
int hp_pool_create_on(struct hp_os *os, const hp_pool_options *options, hp_pool *pool, hp_error *error);

#endif
