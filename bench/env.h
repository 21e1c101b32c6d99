/* SPDX-License-Identifier: MIT */
/* On what a measurement was made. */
#ifndef BENCH_ENV_H
#define BENCH_ENV_H

#include "hugepages.h"

#include <jansson.h>
#include <stdio.h>

json_t *bench_env(const struct bench_pages *pages);
void bench_env_print(const json_t *env, FILE *out);

#endif
