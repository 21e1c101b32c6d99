/* SPDX-License-Identifier: MIT */
#include "index_rivals.h"

#include "file/index.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct index_site {
	uint32_t pages;

	/* Who takes the locks and enters the sections: one thread, in a domain that is this process's own. */
	struct hp_lock_shared shared;
	struct hp_lock_record record;
	struct hp_lock_domain domain;
	struct hp_locker who;

	/* The library's. */
	struct hp_pages store_pages;
	struct hp_page_store store;
	struct hp_index index;

	/* The flat table's: the frame, counted from 1. */
	_Atomic uint32_t *entry;
};

/* Page p has frame p: what is where makes no difference to any of them. */
static hp_frame_id frame_of(uint32_t page)
{
	return page;
}

uint64_t index_site_sum(const struct index_site *site)
{
	return (uint64_t)site->pages * (site->pages - 1) / 2;
}

static void *memory_for(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* ---- The library's index ---------------------------------------------------------------------------------------- */

/* Enough for pages that are entered one by one: the nodes of two levels, and one more for each that is not full. */
static uint32_t nodes_for(uint32_t pages)
{
	uint32_t full = pages / HP_INDEX_ENTRIES;

	return full + full / HP_INDEX_ENTRIES + 8;
}

/* Its root is a page of the store as any other. */
static bool plant(struct index_site *site)
{
	site->index = (struct hp_index){
		.store = &site->store,
		.root = hp_pages_take(&site->store, HP_BASE_PAGE_SIZE, &site->who),
		.level = hp_index_level(site->pages),
	};
	return site->index.root != 0;
}

static bool radix_open(struct index_site *site)
{
	uint32_t nodes = nodes_for(site->pages);

	site->store.pages = &site->store_pages;
	site->store.bitmap = memory_for(hp_pages_bitmap_bytes(nodes));
	site->store.memory = memory_for(nodes * HP_BASE_PAGE_SIZE);
	if (!site->store.bitmap || !site->store.memory)
		return false;
	hp_pages_init(&site->store, nodes);
	return plant(site);
}

static bool radix_fill(struct index_site *site, uint32_t most)
{
	for (uint32_t page = 0, count; page < site->pages; page += count) {
		count = (uint32_t)hp_min(most, site->pages - page);
		if (hp_index_insert(site->index, page, frame_of(page), count, &site->who))
			return false;
	}
	return true;
}

/* As scattered faults do. */
static bool fill_by_frame(struct index_site *site)
{
	return radix_fill(site, 1);
}

/* As an allocation from a stock of zeroed frames does. */
static bool fill_by_run(struct index_site *site)
{
	return radix_fill(site, HP_REGION_FRAMES);
}

static uint64_t radix_look_up(struct index_site *site, const uint32_t *pages, uint32_t count)
{
	uint64_t outer = hp_section_enter(&site->who), sum = 0;

	for (uint32_t i = 0; i < count; i++)
		sum += hp_index_lookup(site->index, pages[i]);
	hp_section_leave(&site->who, outer);
	return sum;
}

static uint64_t radix_look_up_alone(struct index_site *site, const uint32_t *pages, uint32_t count)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint64_t outer = hp_section_enter(&site->who);

		sum += hp_index_lookup(site->index, pages[i]);
		hp_section_leave(&site->who, outer);
	}
	return sum;
}

static void radix_clear(struct index_site *site)
{
	hp_index_destroy(site->index, &site->who);
	plant(site); /* of the pages that have just become free */
}

static uint64_t radix_bytes(const struct index_site *site)
{
	return site->store_pages.used * HP_BASE_PAGE_SIZE;
}

const struct index_rival index_by_frame = {
	.name = "radix",
	.insert = "frame",
	.open = radix_open,
	.fill = fill_by_frame,
	.look_up = radix_look_up,
	.look_up_alone = radix_look_up_alone,
	.clear = radix_clear,
	.bytes = radix_bytes,
};

const struct index_rival index_by_run = {
	.name = "radix",
	.insert = "run",
	.open = radix_open,
	.fill = fill_by_run,
	.look_up = radix_look_up,
	.look_up_alone = radix_look_up_alone,
	.clear = radix_clear,
	.bytes = radix_bytes,
};

/* ---- The flat table --------------------------------------------------------------------------------------------- */

static uint64_t flat_bytes(const struct index_site *site)
{
	return site->pages * sizeof(site->entry[0]);
}

static bool flat_open(struct index_site *site)
{
	site->entry = memory_for(flat_bytes(site));
	return site->entry != NULL;
}

/* Called for each page as the functions of the library's index are, and checking as much. */
static __attribute__((noinline)) void flat_insert(_Atomic uint32_t *entry, uint32_t page, hp_frame_id frame)
{
	HP_ASSERT(atomic_load_explicit(&entry[page], memory_order_relaxed) == 0);
	atomic_store_explicit(&entry[page], frame + 1, memory_order_release);
}

static __attribute__((noinline)) hp_frame_id flat_find(const _Atomic uint32_t *entry, uint32_t page)
{
	return atomic_load_explicit(&entry[page], memory_order_acquire) - 1;
}

static bool flat_fill(struct index_site *site)
{
	for (uint32_t page = 0; page < site->pages; page++)
		flat_insert(site->entry, page, frame_of(page));
	return true;
}

static uint64_t flat_look_up(struct index_site *site, const uint32_t *pages, uint32_t count)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count; i++)
		sum += flat_find(site->entry, pages[i]);
	return sum;
}

static void flat_clear(struct index_site *site)
{
	memset(site->entry, 0, flat_bytes(site));
}

const struct index_rival index_flat = {
	.name = "flat",
	.insert = "frame",
	.open = flat_open,
	.fill = flat_fill,
	.look_up = flat_look_up,
	.clear = flat_clear,
	.bytes = flat_bytes,
};

/* ---- All of them ------------------------------------------------------------------------------------------------ */

struct index_site *index_site_open(const struct index_rival *rival, uint32_t pages)
{
	struct index_site *site = memory_for(sizeof(*site));

	if (!site)
		return NULL;
	site->pages = pages;
	site->domain.shared = &site->shared;
	hp_locks_init(&site->domain);
	site->who = (struct hp_locker){
		.owner = 1, .record = &site->record, .shared = &site->shared, .domain = &site->domain};
	return rival->open(site) ? site : NULL;
}
