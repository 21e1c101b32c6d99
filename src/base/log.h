/* SPDX-License-Identifier: MIT */
/* Everything the library has to say, as one line to one callback. Signal safe. */
#ifndef HP_BASE_LOG_H
#define HP_BASE_LOG_H

#include "hugepool.h"

void hp_log(hp_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
