/* SPDX-License-Identifier: MIT */
#include "os/cpu.h"

bool hp_cpu_any(void)
{
	return true;
}

/* The init is for calls from constructors, which may come before the compiler's own. */
#if defined(__x86_64__)
bool hp_cpu_has_avx2(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx2");
}

bool hp_cpu_has_avx512(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("avx512f");
}
#endif
