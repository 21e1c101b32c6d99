/* SPDX-License-Identifier: MIT */
/* What methods of streaming stores need of the processor: the `usable` of their tables, at any time after start-up. */
#ifndef HP_OS_CPU_H
#define HP_OS_CPU_H

#include <stdbool.h>

bool hp_cpu_any(void);
#if defined(__x86_64__)
bool hp_cpu_has_avx2(void);
bool hp_cpu_has_avx512(void);
#endif

#endif
