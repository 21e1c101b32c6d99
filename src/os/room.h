/* SPDX-License-Identifier: MIT */
/* How much memory this process can take before somebody is killed for it. */
#ifndef HP_OS_ROOM_H
#define HP_OS_ROOM_H

#include "hugepool.h"

/*
 * Bytes that can be filled without waking the out-of-memory killer, and what sets the bound: HP_LIMIT_MEMORY (the
 * machine's available memory) or HP_LIMIT_CGROUP. A part is left to page tables and to everybody else. UINT64_MAX:
 * unknown.
 */
uint64_t hp_memory_room(hp_limit *limit);

#endif
