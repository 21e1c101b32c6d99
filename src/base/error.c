/* SPDX-License-Identifier: MIT */
#include "base/error.h"

#include "base/format.h"

int hp_fail(hp_error *error, int code, hp_limit limit, const char *format, ...)
{
	va_list args;

	if (!error)
		return code;
	error->code = code;
	error->limit = limit;
	va_start(args, format);
	hp_format_v(error->message, sizeof(error->message), format, args);
	va_end(args);
	return code;
}

const char *hp_limit_name(hp_limit limit)
{
	switch (limit) {
	case HP_LIMIT_NONE:
		return "none";
	case HP_LIMIT_POOL:
		return "pool";
	case HP_LIMIT_KERNEL_POOL:
		return "kernel_pool";
	case HP_LIMIT_CGROUP:
		return "cgroup";
	case HP_LIMIT_MAP_COUNT:
		return "max_map_count";
	case HP_LIMIT_ADDRESS:
		return "address_space";
	case HP_LIMIT_MEMORY:
		return "memory";
	case HP_LIMIT_TABLE:
		return "table";
	case HP_LIMIT_TENANT:
		return "tenant";
	case HP_LIMIT_PINNED:
		return "pinned";
	}
	return "unknown";
}

const char *hp_backing_name(hp_backing backing)
{
	switch (backing) {
	case HP_BACKING_AUTO:
		return "auto";
	case HP_BACKING_HUGETLB:
		return "hugetlb";
	case HP_BACKING_THP:
		return "thp";
	case HP_BACKING_HUGETLB_1G:
		return "hugetlb_1g";
	case HP_BACKING_BASE:
		return "base";
	}
	return "unknown";
}
