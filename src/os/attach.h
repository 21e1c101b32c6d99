/* SPDX-License-Identifier: MIT */
/* The control memory of pools of another process, found through /proc. */
#ifndef HP_OS_ATTACH_H
#define HP_OS_ATTACH_H

#include <stdint.h>

/*
 * Maps the control memory of a process's pool by number, oldest first. What is in it may change at any time, and must
 * be checked. -ESRCH no such process; -ENOENT no pool of that number; -EACCES not permitted; -EPROTO it is empty; or
 * another errno.
 */
int hp_attach(int pid, unsigned number, void **address, uint64_t *size);
void hp_detach(void *address, uint64_t size);

#endif
