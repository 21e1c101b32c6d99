/* SPDX-License-Identifier: MIT */
/*
 * Lock order. A lock may be taken while those to its left and above are held, never the other way round.
 *
 *   fork                       process-local, one at a time (space/fork.c)
 *     pool table               process-local: which pools this process has (pool/registry.c)
 *       space                  process-local: the map of addresses; readers take an epoch instead
 *         file lock            fault and allocate for reading; what takes pages away for writing
 *           fault mutex        one of a table, by (file, page); two at once only by trylock
 *             reservation map  promised pages of a file
 *               file mappings  the list of mappings of a file
 *                 extents      free frames by region
 *                   CPU cache  a few zeroed frames for each CPU
 *                     table    free lists of records in the arena; leaf
 *
 * The fault path takes what stands from `file lock` down. Calls that hold one of these block all signals first
 * (sync/signals.h), so that no handler of the program can touch lazy memory and come back for the same lock.
 *
 * Locks live in memory shared by processes and hold the number of their owner's slot, never an address.
 */
#ifndef HP_SYNC_SYNC_H
#define HP_SYNC_SYNC_H

#include <stdint.h>

/* Who takes a lock: the id of the thread's slot plus 1, so that 0 is nobody. */
typedef uint32_t hp_owner;

#endif
