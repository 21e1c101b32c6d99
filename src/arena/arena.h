/* SPDX-License-Identifier: MIT */
/*
 * The arena: the control memory that the processes of a pool share.
 *
 * One sparse range, divided into sections; each section is an array of one kind of record that belongs to the layer
 * that declared it. Inside are ids and offsets, never pointers. The header carries a signature of the layout (the
 * sections' names, record sizes and counts, and the version), so that a program built otherwise is refused instead of
 * misread.
 */
#ifndef HP_ARENA_ARENA_H
#define HP_ARENA_ARENA_H

#include "base/units.h"
#include "os/os.h"

#define HP_ARENA_VERSION 4u
#define HP_ARENA_SECTIONS_MAX 24

struct hp_section_spec {
	const char *name;
	uint64_t record_size; /* bytes; 0 ends a list */
	uint64_t count;
};

struct hp_arena_header;

struct hp_arena { /* one process's view */
	struct hp_os *os;
	struct hp_arena_header *header; /* the arena begins here */
	uint64_t size;
	hp_segment handle;
	uint64_t offset[HP_ARENA_SECTIONS_MAX + 1]; /* of each section, and of the end: as the header says, read once */
};

int hp_arena_create(struct hp_os *os, const struct hp_section_spec *specs, struct hp_arena *arena, hp_error *error);
/* Unmaps all of it, except for the first `bytes` of a section, whose pages stay, unreachable through `arena`. */
void hp_arena_destroy(struct hp_arena *arena, unsigned section, uint64_t bytes);
/*
 * Control memory of `size` bytes that somebody else made: true if it has so many sections, the first of them with room
 * for so many bytes. Then it can be verified; nothing else in it is to be trusted before.
 */
bool hp_arena_adopt(struct hp_arena *arena, void *base, uint64_t size, unsigned sections, uint64_t first_bytes);
/* 0, or -EPROTO: made by something that lays these sections out differently. */
int hp_arena_verify(const struct hp_arena *arena, const struct hp_section_spec *specs);
/* The first record of the section with this index in the list. 64-byte aligned. */
void *hp_arena_section(const struct hp_arena *arena, unsigned index);

#endif
