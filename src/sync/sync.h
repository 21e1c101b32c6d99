/* SPDX-License-Identifier: MIT */
/*
 * Lock order. A lock may be taken while those above and to its left are held, never the other way round; the classes in
 * sync/class.h are numbered so, and debug builds abort on anything else.
 *
 *   fork                       process-local (space/fork.c)
 *     grace, space             process-local: one synchronization at a time; the map of addresses
 *       reap                   one at a time takes back what the dead had
 *         names                of files
 *         table                records in the arena
 *           file mappings      the list of mappings of a file
 *             file             fault and allocate for reading; what takes pages away for writing
 *               mapping        in place of the file lock where the tuning says file_lock=vma
 *                 fault        one of a table, by (file, page); two at once only by trylock
 *                   reservation  promised pages of a file
 *                     tenant     what a tenant uses
 *                     pages      base pages of the arena: nodes of indexes, maps of files
 *                       extents  free frames by region
 *                         CPU cache  a few zeroed frames for each CPU
 *
 * The fault path takes what stands from `file` down. Calls that hold one of these block all signals first
 * (sync/signals.h), so that no handler of the program can touch lazy memory and come back for the same lock, or for one
 * above it. A handler that comes while a lock above `file` is held may fault: nobody who holds `file` waits for those.
 *
 * Locks live in memory shared by processes. They hold the number and the generation of their owner's slot, never an
 * address: whoever waits can find out that the owner is gone (sync/domain.h).
 */
#ifndef HP_SYNC_SYNC_H
#define HP_SYNC_SYNC_H

#include <stdint.h>

/*
 * Who takes a lock. Bits 0-11: the id of the thread's slot plus 1, so that 0 is nobody; bits 12-29: the generation of
 * the slot, so that a slot's next thread is not taken for the last one.
 */
typedef uint32_t hp_owner;

#define HP_OWNER_SLOT_BITS 12
#define HP_OWNER_SLOT_MASK ((1u << HP_OWNER_SLOT_BITS) - 1)
#define HP_OWNER_MASK 0x3fffffffu

/* Some instructions that would cost as much again as a call. */
#define HP_FAST_PATH static inline __attribute__((always_inline))

/* How long a sleeping waiter goes without asking whether those it waits for are alive. */
#define HP_LIVENESS_NS 25000000

#endif
