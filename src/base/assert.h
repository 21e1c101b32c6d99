/* SPDX-License-Identifier: MIT */
/*
 * Assertions in tiers. HP_ASSERT stays in every build: it guards what would corrupt memory and costs a compare.
 * HP_DEBUG_ASSERT is for debug builds (meson -Ddebug_checks=true): costly checks and caller mistakes.
 * Both are signal safe.
 */
#ifndef HP_BASE_ASSERT_H
#define HP_BASE_ASSERT_H

_Noreturn void hp_assert_failed(const char *expression, const char *file, int line);

#define HP_ASSERT(expression) ((expression) ? (void)0 : hp_assert_failed(#expression, __FILE__, __LINE__))

#ifdef HP_DEBUG_CHECKS
#define HP_DEBUG_ASSERT(expression) HP_ASSERT(expression)
#else
#define HP_DEBUG_ASSERT(expression) ((void)sizeof(expression))
#endif

#endif
