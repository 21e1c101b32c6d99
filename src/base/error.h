/* SPDX-License-Identifier: MIT */
/* Filling an hp_error. Signal safe. */
#ifndef HP_BASE_ERROR_H
#define HP_BASE_ERROR_H

#include "hugepool.h"

/* Returns `code`, so that a caller can say: return hp_fail(error, -ENOMEM, HP_LIMIT_POOL, "..."). error may be NULL. */
int hp_fail(hp_error *error, int code, hp_limit limit, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
