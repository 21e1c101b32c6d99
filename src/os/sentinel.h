/* SPDX-License-Identifier: MIT */
/*
 * Tells a child that was made without fork(3), by a raw clone, that it is one: a word that the kernel wipes in every
 * copy of this process's memory (MADV_WIPEONFORK). Children of fork(3) arm it again when they have taken over what
 * their parent prepared for them (src/space/fork.c).
 */
#ifndef HP_OS_SENTINEL_H
#define HP_OS_SENTINEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic uint32_t *hp_sentinel_word;

/* Sets it up at the first call. Where the kernel cannot wipe, every copy counts as armed. */
void hp_sentinel_arm(void);

/* False: the kernel cannot wipe. */
bool hp_sentinel_wipes(void);

/* Signal safe. */
static inline bool hp_sentinel_is_armed(void)
{
	return atomic_load_explicit(hp_sentinel_word, memory_order_relaxed) != 0;
}

#endif
