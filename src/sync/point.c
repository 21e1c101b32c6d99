/* SPDX-License-Identifier: MIT */
#include "sync/point.h"

#include "base/format.h"

#include <string.h>

/* The section exists in programs, too, that take no lock. */
static const struct hp_point no_point __attribute__((section("hp_lock_points"), used)) = {"?", "?", 0, HP_CLASS_NONE};

void hp_point_format(uint32_t number, char name[HP_POINT_NAME])
{
	const struct hp_point *point;
	const char *slash;

	if (number == 0 || number > hp_points_count()) {
		hp_format(name, HP_POINT_NAME, "?");
		return;
	}
	point = hp_point_at(number);
	slash = strrchr(point->file, '/');
	hp_format(name, HP_POINT_NAME, "%s (%s:%u)", point->function, slash ? slash + 1 : point->file, point->line);
}
