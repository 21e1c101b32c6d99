/* SPDX-License-Identifier: MIT */
/*
 * Kernel mappings are a counted resource: beyond vm.max_map_count every mmap of the process fails, malloc's too. Each
 * of our mappings takes its worst case from a budget of 80 % of that when it is made, so that it cannot fail later, in
 * a fault. Counted for each backend; atomic; signal safe.
 */
#ifndef HP_OS_BUDGET_H
#define HP_OS_BUDGET_H

#include "os/os.h"

/* -ENOMEM: the budget does not have as many. */
int hp_maps_take(struct hp_os *os, uint64_t maps);
void hp_maps_give(struct hp_os *os, uint64_t maps);
uint64_t hp_maps_taken(struct hp_os *os);
uint64_t hp_maps_max(struct hp_os *os);

#endif
