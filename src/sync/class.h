/* SPDX-License-Identifier: MIT */
/* Classes of locks: what kind of thing a lock protects, and where it stands in the lock order (sync/sync.h). */
#ifndef HP_SYNC_CLASS_H
#define HP_SYNC_CLASS_H

#include "sync/sync.h"

#include <stdbool.h>

/* The number is the rank: a lock is taken while only lower ones are held. Part of the arena's layout. */
enum hp_lock_class {
	HP_CLASS_NONE = 0,
	HP_CLASS_FORK,
	HP_CLASS_GRACE,
	HP_CLASS_SPACE,
	HP_CLASS_REAP,
	HP_CLASS_NAMES,
	HP_CLASS_TABLE,
	HP_CLASS_FILE_MAPPINGS,
	HP_CLASS_FILE,
	HP_CLASS_MAPPING,
	HP_CLASS_FAULT,
	HP_CLASS_RESERVE,
	HP_CLASS_TENANT,
	HP_CLASS_PAGES,
	HP_CLASS_EXTENTS,
	HP_CLASS_CPU_CACHE,
	HP_CLASS_BENCH, /* locks that are measured by themselves */
	HP_LOCK_CLASSES,
};

enum hp_lock_mode { HP_LOCK_WRITE, HP_LOCK_READ, HP_LOCK_MODES }; /* a mutex is always written */

struct hp_locker;

/*
 * Makes what a lock protects consistent again after its owner died inside. Runs in the thread that got the lock from
 * the dead one, with the lock held for writing; it may itself be killed, so that another repair begins from the start.
 * What cannot be repaired it marks, so that the layer's calls refuse it.
 */
typedef void (*hp_lock_repair)(const struct hp_locker *who, void *lock, hp_owner dead);

const char *hp_lock_class_name(enum hp_lock_class class);
bool hp_lock_class_is_shared(enum hp_lock_class class); /* has readers */
/* One routine for each class, set before the first lock of the class is taken. Without one nothing needs repair. */
void hp_lock_class_set_repair(enum hp_lock_class class, hp_lock_repair repair);
void hp_lock_class_repair(enum hp_lock_class class, const struct hp_locker *who, void *lock, hp_owner dead);

#endif
