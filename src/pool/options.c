/* SPDX-License-Identifier: MIT */
/* What a caller asked for, checked. */
#include "pool/pool.h"

#include "base/error.h"
#include "base/machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_fault_window(uint64_t value)
{
	return hp_is_power_of_two(value) && value <= HP_REGION_FRAMES;
}

static bool is_fault_mutexes(uint64_t value)
{
	return value == 0 || (hp_is_power_of_two(value) && value <= HP_FAULT_MUTEXES_MAX);
}

static bool is_rate(uint64_t value)
{
	return value <= UINT32_MAX;
}

static bool is_none(uint64_t value)
{
	return value < HP_REGION_FRAMES; /* as many base pages as a frame has */
}

static bool is_ms(uint64_t value)
{
	return value >= 1 && value <= 1000000;
}

static bool is_switch(uint64_t value)
{
	return value <= 1;
}

static bool is_sleep(uint64_t value)
{
	return value <= 1000000;
}

static const char *const file_lock_words[] = {
	[HP_FILE_LOCK_BIASED] = "biased", [HP_FILE_LOCK_INVALIDATE] = "invalidate",
	[HP_FILE_LOCK_VMA] = "vma",       [HP_FILE_LOCK_RWSEM] = "rwsem",
	[HP_FILE_LOCK_NONE] = "none",     NULL};
static const char *const resv_lock_words[] = {[HP_RESV_LOCK_FILE] = "file", [HP_RESV_LOCK_GLOBAL] = "global", NULL};
static const char *const collapse_words[] = {"upgrade", "relock", NULL};

#define NOT_UNSAFE UINT64_MAX

/* A key takes a number or one of some words, whose place in the list is its value. */
static const struct tuning_key {
	const char *name;
	size_t offset; /* in struct hp_tuning */
	bool (*is_valid)(uint64_t value);
	const char *const *words;
	uint64_t unsafe; /* the value that needs HP_POOL_UNSAFE */
	const char *valid;
} tuning_keys[] = {
	{"fault_window", offsetof(struct hp_tuning, fault_window), is_fault_window, NULL, NOT_UNSAFE,
         "a power of two from 1 to 512"},
	{"fault_mutexes", offsetof(struct hp_tuning, fault_mutexes), is_fault_mutexes, NULL, 0,
         "a power of two up to 4096, or 0 with HP_POOL_UNSAFE"},
	{"fault_sleep_us", offsetof(struct hp_tuning, fault_sleep_us), is_sleep, NULL, NOT_UNSAFE,
         "a number up to 1000000"},
	{"file_lock", offsetof(struct hp_tuning, file_lock), NULL, file_lock_words, HP_FILE_LOCK_NONE,
         "biased, invalidate, vma, rwsem, or none with HP_POOL_UNSAFE"},
	{"resv_lock", offsetof(struct hp_tuning, resv_lock), NULL, resv_lock_words, NOT_UNSAFE, "file or global"},
	{"zero_mb_per_s", offsetof(struct hp_tuning, zero_mb_per_s), is_rate, NULL, NOT_UNSAFE, "a number"},
	{"collapse", offsetof(struct hp_tuning, collapse), NULL, collapse_words, NOT_UNSAFE, "upgrade or relock"},
	{"collapse_none", offsetof(struct hp_tuning, collapse_none), is_none, NULL, NOT_UNSAFE, "a number up to 511"},
	{"collapse_mb_per_s", offsetof(struct hp_tuning, collapse_mb_per_s), is_rate, NULL, NOT_UNSAFE, "a number"},
	{"collapse_scan_ms", offsetof(struct hp_tuning, collapse_scan_ms), is_ms, NULL, NOT_UNSAFE,
         "a number from 1 to 1000000"},
	{"collapse_verify", offsetof(struct hp_tuning, collapse_verify), is_switch, NULL, NOT_UNSAFE, "0 or 1"},
};

#define TUNING_KEYS (sizeof(tuning_keys) / sizeof(tuning_keys[0]))

static bool parse_word(const struct tuning_key *key, const char *text, size_t length, uint64_t *value)
{
	for (*value = 0; key->words[*value]; ++*value)
		if (strlen(key->words[*value]) == length && !strncmp(key->words[*value], text, length))
			return true;
	return false;
}

static bool parse_value(const struct tuning_key *key, const char *text, size_t length, uint64_t *value)
{
	char *end;

	if (key->words)
		return parse_word(key, text, length, value);
	*value = strtoull(text, &end, 10);
	return *text >= '0' && *text <= '9' && end == text + length && key->is_valid(*value);
}

static int parse_pair(const char *pair, size_t length, bool unsafe, struct hp_tuning *tuning, hp_error *error)
{
	for (size_t i = 0; i < TUNING_KEYS; i++) {
		const struct tuning_key *key = &tuning_keys[i];
		size_t name = strlen(key->name);
		uint64_t value;

		if (length <= name || strncmp(pair, key->name, name) != 0 || pair[name] != '=')
			continue;
		if (!parse_value(key, pair + name + 1, length - name - 1, &value) || (value == key->unsafe && !unsafe))
			return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "tuning: %s takes %s", key->name, key->valid);
		*(uint32_t *)((char *)tuning + key->offset) = (uint32_t)value;
		return 0;
	}
	return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
	               "tuning: unknown word at \"%s\"; known are fault_window, fault_mutexes, fault_sleep_us, "
	               "file_lock, resv_lock, zero_mb_per_s, collapse, collapse_none, collapse_mb_per_s, "
	               "collapse_scan_ms and collapse_verify",
	               pair);
}

int hp_tuning_parse(const char *text, bool unsafe, struct hp_tuning *tuning, hp_error *error)
{
	*tuning = (struct hp_tuning){.fault_window = 16,
	                             .fault_mutexes = hp_fault_mutexes_for(hp_cpu_count()),
	                             .collapse_none = HP_REGION_FRAMES - 1,
	                             .collapse_scan_ms = 1000};
	for (const char *p = text ? text : ""; *p;) {
		size_t length = strcspn(p, " ");
		int result = length ? parse_pair(p, length, unsafe, tuning, error) : 0;

		if (result)
			return result;
		p += length ? length : 1;
	}
	return 0;
}

#define FRAMES_MAX ((uint64_t)1 << 30) /* of one pool: 2 PiB */

int hp_options_check(const hp_pool_options *given, hp_pool_options *options, hp_error *error)
{
	const uint32_t known =
		HP_POOL_BACKGROUND | HP_POOL_UNSAFE | HP_POOL_NO_TABLE_SHARING | HP_POOL_LATE | HP_POOL_COLLAPSE;

	if (!given || given->struct_size < offsetof(hp_pool_options, tuning) + sizeof(given->tuning))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "options: set struct_size with HP_POOL_OPTIONS_INIT");
	*options = *given;
	if (options->flags & ~known)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "options: unknown flags 0x%x", options->flags & ~known);
	if (options->backing > HP_BACKING_HUGETLB_1G)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "options: unknown backing %u", options->backing);
	if (options->flags & HP_POOL_LATE && options->backing != HP_BACKING_HUGETLB)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "options: HP_POOL_LATE is for huge pages of the kernel's pool: set backing to "
		               "HP_BACKING_HUGETLB");
	if (options->size == 0)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "options: size is 0; a pool has at least one frame of 2 MiB");
	if (options->max_size == 0)
		options->max_size = options->size;
	if (options->max_size < options->size)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "options: max_size %lu is less than size %lu",
		               options->max_size, options->size);
	if (options->backing == HP_BACKING_HUGETLB_1G && options->max_size <= FRAMES_MAX << HP_FRAME_SHIFT) {
		options->size = hp_align_up(options->size, HP_REGION_SIZE);
		options->max_size = hp_align_up(options->max_size, HP_REGION_SIZE);
		options->workers = HP_WORKERS_NONE; /* a frame in their hands would break a page */
	}
	if (hp_frames_up(options->max_size) > FRAMES_MAX)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "options: %lu bytes are more than a pool can have (2 PiB)", options->max_size);
	return 0;
}
