/* SPDX-License-Identifier: MIT */
#include "arena/arena.h"

#include "base/assert.h"
#include "base/error.h"

#include <errno.h>
#include <string.h>

static const char magic[8] = "hpArena";

struct hp_arena_header {
	char magic[8];
	uint32_t version;
	uint32_t sections;
	uint64_t signature;
	uint64_t size;
	uint64_t offset[HP_ARENA_SECTIONS_MAX + 1]; /* of each section, and of the end */
};

_Static_assert(sizeof(struct hp_arena_header) <= HP_BASE_PAGE_SIZE, "the header has one base page");

/* FNV-1a (Fowler, Noll, Vo). */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size)
{
	for (const unsigned char *p = data, *end = p + size; p < end; p++)
		hash = (hash ^ *p) * 0x100000001b3u;
	return hash;
}

static uint64_t signature_of(const struct hp_section_spec *specs)
{
	uint32_t version = HP_ARENA_VERSION;
	uint64_t hash = hash_bytes(0xcbf29ce484222325u, &version, sizeof(version));

	for (; specs->record_size; specs++) {
		hash = hash_bytes(hash, specs->name, strlen(specs->name) + 1);
		hash = hash_bytes(hash, &specs->record_size, sizeof(specs->record_size));
		hash = hash_bytes(hash, &specs->count, sizeof(specs->count));
	}
	return hash;
}

/* Where each section begins, and the end. Returns their number. */
static unsigned lay_out(const struct hp_section_spec *specs, uint64_t *offset)
{
	uint64_t end = HP_BASE_PAGE_SIZE;
	unsigned sections = 0;

	for (; specs[sections].record_size; sections++) {
		HP_ASSERT(sections < HP_ARENA_SECTIONS_MAX);
		offset[sections] = end;
		end = hp_align_up(end + specs[sections].record_size * specs[sections].count, HP_BASE_PAGE_SIZE);
	}
	offset[sections] = end;
	return sections;
}

int hp_arena_create(struct hp_os *os, const struct hp_section_spec *specs, struct hp_arena *arena, hp_error *error)
{
	uint64_t offset[HP_ARENA_SECTIONS_MAX + 1], end;
	unsigned sections = lay_out(specs, offset);
	void *base;
	int result;

	end = offset[sections];
	result = os->ops->control_create(os, end, &base, &arena->handle);
	if (result == -EFBIG)
		return hp_fail(error, result, HP_LIMIT_NONE,
		               "the file size limit (ulimit -f) is below the %lu bytes of a pool's sparse files", end);
	if (result)
		return hp_fail(error, result, result == -ENOMEM ? HP_LIMIT_ADDRESS : HP_LIMIT_NONE,
		               "no control memory of %lu bytes (errno %d); raise RLIMIT_AS or RLIMIT_NOFILE", end,
		               -result);
	arena->os = os;
	arena->header = base;
	arena->size = end;
	memcpy(arena->header->offset, offset, sizeof(offset[0]) * (sections + 1));
	memcpy(arena->offset, offset, sizeof(offset[0]) * (sections + 1));
	arena->header->version = HP_ARENA_VERSION;
	arena->header->sections = sections;
	arena->header->signature = signature_of(specs);
	arena->header->size = end;
	memcpy(arena->header->magic, magic, sizeof(magic));
	return 0;
}

void hp_arena_destroy(struct hp_arena *arena, unsigned section, uint64_t bytes)
{
	char *base = (char *)arena->header;
	const struct hp_os_ops *ops = arena->os->ops;
	uint64_t from = arena->offset[section], to = hp_align_up(from + bytes, HP_BASE_PAGE_SIZE);

	if (bytes) {
		ops->control_destroy(arena->os, base + to, arena->size - to, HP_NO_SEGMENT);
		ops->control_destroy(arena->os, base, from, arena->handle);
	} else {
		ops->control_destroy(arena->os, base, arena->size, arena->handle);
	}
	*arena = (struct hp_arena){.handle = HP_NO_SEGMENT};
}

bool hp_arena_adopt(struct hp_arena *arena, void *base, uint64_t size, unsigned sections, uint64_t first_bytes)
{
	const struct hp_arena_header *header = base;

	if (size < HP_BASE_PAGE_SIZE + first_bytes || memcmp(header->magic, magic, sizeof(magic)) != 0 ||
	    header->version != HP_ARENA_VERSION || header->size != size || header->sections != sections)
		return false;
	*arena = (struct hp_arena){.header = base, .size = size, .handle = HP_NO_SEGMENT};
	memcpy(arena->offset, header->offset, sizeof(arena->offset[0]) * (sections + 1));
	for (unsigned i = 0; i <= sections; i++)
		if (arena->offset[i] < HP_BASE_PAGE_SIZE || arena->offset[i] > size)
			return false;
	return arena->offset[0] == HP_BASE_PAGE_SIZE;
}

int hp_arena_verify(const struct hp_arena *arena, const struct hp_section_spec *specs)
{
	const struct hp_arena_header *header = arena->header;
	uint64_t offset[HP_ARENA_SECTIONS_MAX + 1];
	unsigned sections = lay_out(specs, offset);

	if (memcmp(header->magic, magic, sizeof(magic)) != 0 || header->version != HP_ARENA_VERSION ||
	    header->size != arena->size || header->signature != signature_of(specs) || header->sections != sections ||
	    offset[sections] != arena->size || memcmp(arena->offset, offset, (sections + 1) * sizeof(offset[0])) != 0)
		return -EPROTO;
	return 0;
}

void *hp_arena_section(const struct hp_arena *arena, unsigned index)
{
	HP_DEBUG_ASSERT(index < arena->header->sections);
	return (char *)arena->header + arena->offset[index];
}
