/* SPDX-License-Identifier: MIT */
#include "sync/class.h"

#include <stddef.h>

static struct {
	const char *name;
	bool shared;
	hp_lock_repair repair;
} classes[HP_LOCK_CLASSES] = {
	[HP_CLASS_FORK] = {"fork", true, NULL},
	[HP_CLASS_GRACE] = {"grace", false, NULL},
	[HP_CLASS_SPACE] = {"space", false, NULL},
	[HP_CLASS_REAP] = {"reap", false, NULL},
	[HP_CLASS_FILE] = {"file", true, NULL},
	[HP_CLASS_MAPPING] = {"mapping", true, NULL},
	[HP_CLASS_FAULT] = {"fault", false, NULL},
	[HP_CLASS_RESERVE] = {"reservation", false, NULL},
	[HP_CLASS_FILE_MAPPINGS] = {"file_mappings", false, NULL},
	[HP_CLASS_NAMES] = {"names", false, NULL},
	[HP_CLASS_TENANT] = {"tenant", false, NULL},
	[HP_CLASS_EXTENTS] = {"extents", false, NULL},
	[HP_CLASS_CPU_CACHE] = {"cpu_cache", false, NULL},
	[HP_CLASS_TABLE] = {"table", false, NULL},
	[HP_CLASS_PAGES] = {"pages", false, NULL},
	[HP_CLASS_BENCH] = {"bench", true, NULL},
};

const char *hp_lock_class_name(enum hp_lock_class class)
{
	return classes[class].name ? classes[class].name : "";
}

bool hp_lock_class_is_shared(enum hp_lock_class class)
{
	return classes[class].shared;
}

void hp_lock_class_set_repair(enum hp_lock_class class, hp_lock_repair repair)
{
	classes[class].repair = repair;
}

void hp_lock_class_repair(enum hp_lock_class class, const struct hp_locker *who, void *lock, hp_owner dead)
{
	if (classes[class].repair)
		classes[class].repair(who, lock, dead);
}
