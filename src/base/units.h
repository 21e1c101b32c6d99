/* SPDX-License-Identifier: MIT */
/*
 * Units. A name says its unit: `_bytes` or nothing for bytes, `pages` and `pgno` for pages of a file (a frame each),
 * `frame` and `frames` for frames of a pool. Conversions happen here and nowhere else.
 */
#ifndef HP_BASE_UNITS_H
#define HP_BASE_UNITS_H

#include "hugepool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t hp_frame_id;
#define HP_NO_FRAME UINT32_MAX

/* Frames of 1 GiB: the unit in which the kernel shares page tables, and in which a pool keeps its books. */
#define HP_REGION_FRAMES 512u
#define HP_REGION_SIZE ((uint64_t)HP_REGION_FRAMES << HP_FRAME_SHIFT)
#define HP_CACHE_LINE 64

static inline uint64_t hp_bytes(uint64_t frames)
{
	return frames << HP_FRAME_SHIFT;
}

static inline uint64_t hp_frames(uint64_t bytes)
{
	return bytes >> HP_FRAME_SHIFT;
}

/* Overflow-free: a size near 2^64 gives the frames that it needs. */
static inline uint64_t hp_frames_up(uint64_t bytes)
{
	return (bytes >> HP_FRAME_SHIFT) + ((bytes & (HP_FRAME_SIZE - 1)) != 0);
}

static inline bool hp_is_frame_aligned(uint64_t value)
{
	return (value & (HP_FRAME_SIZE - 1)) == 0;
}

static inline bool hp_is_power_of_two(uint64_t value)
{
	return value != 0 && (value & (value - 1)) == 0;
}

static inline uint64_t hp_align_up(uint64_t value, uint64_t align)
{
	return (value + align - 1) & ~(align - 1);
}

static inline uint64_t hp_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* For free(), which takes no pointer to an atomic type. */
#define hp_unatomic(pointer) ((void *)(uintptr_t)(pointer))

#endif
