/* SPDX-License-Identifier: MIT */
/*
 * Proof of a process's life that the kernel keeps: a lock on one byte of the control memory's file, held through an
 * open file description that only a mapping refers to. It goes when the process exits, execs or is killed, and stays
 * when a program closes all its descriptors.
 */
#ifndef HP_OS_LIFE_H
#define HP_OS_LIFE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Takes the lock of `number` in the file with this identity, which `control` may no longer be. A fork child inherits it
 * until hp_life_keep. NULL: it cannot be had.
 */
void *hp_life_take(int control, uint64_t identity, uint32_t number);
/* Children made from now on do not inherit it. */
void hp_life_keep(void *life);
/* Gives this process's part in it up. NULL is fine. */
void hp_life_drop(void *life);

/* What identifies the control memory's file, because a program may close our descriptor and reuse its number. */
uint64_t hp_life_identity(int control);
/* True only if it is certain that nobody holds the lock. */
bool hp_life_is_gone(int control, uint64_t identity, uint32_t number);

#endif
