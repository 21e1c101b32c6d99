/* SPDX-License-Identifier: MIT */
#include "file/index.h"

#include "base/assert.h"

#include <errno.h>

#define LEVEL_FRAME 1u
#define LEVEL_RUN 2u

struct node {
	_Atomic uint64_t entry[HP_INDEX_ENTRIES];
};

_Static_assert(sizeof(struct node) == HP_BASE_PAGE_SIZE, "a node is a page of the arena");

static bool is_node(uint64_t entry)
{
	return (entry & HP_INDEX_TAG) == HP_INDEX_NODE;
}

static uint64_t node_entry(uint32_t page)
{
	return page * HP_BASE_PAGE_SIZE | HP_INDEX_NODE;
}

static uint32_t page_of(uint64_t node)
{
	return (uint32_t)(node / HP_BASE_PAGE_SIZE);
}

static struct node *node_at(struct hp_index index, uint64_t entry)
{
	return (struct node *)(index.store->memory + (entry & ~(HP_BASE_PAGE_SIZE - 1)));
}

static struct node *root_of(struct hp_index index)
{
	return hp_pages_at(index.store, index.root);
}

/* Base pages that an entry of a level covers. */
static uint64_t span_of(unsigned level)
{
	return 1ull << HP_INDEX_BITS * level;
}

static unsigned slot_of(uint64_t pgoff, unsigned level)
{
	return pgoff >> HP_INDEX_BITS * level & (HP_INDEX_ENTRIES - 1);
}

static uint64_t load(const struct node *node, unsigned slot)
{
	return atomic_load_explicit(&node->entry[slot], memory_order_acquire);
}

static uint64_t memory_entry(hp_pfn pfn)
{
	return pfn << HP_INDEX_TAG_BITS | HP_INDEX_MEMORY;
}

uint32_t hp_index_level(uint64_t pages)
{
	uint32_t level = LEVEL_FRAME;

	while (pages > span_of(level + 1) >> HP_ORDER_FRAME)
		level++;
	return level;
}

/* ---- looking ---------------------------------------------------------------------------------------------------- */

/* The entry that covers a base page, of `lowest` level or above, and where it stands. */
static uint64_t walk(struct hp_index index, uint64_t pgoff, unsigned lowest, unsigned *level, _Atomic uint64_t **where)
{
	struct node *node = root_of(index);

	for (unsigned l = index.level;; l--) {
		uint64_t entry = load(node, slot_of(pgoff, l));

		if (!is_node(entry) || l == lowest) {
			*level = l;
			*where = &node->entry[slot_of(pgoff, l)];
			return entry;
		}
		node = node_at(index, entry);
	}
}

hp_pfn hp_index_find(struct hp_index index, uint64_t pgoff, unsigned *order)
{
	_Atomic uint64_t *where;
	unsigned level;
	uint64_t entry = walk(index, pgoff, 0, &level, &where);

	*order = HP_INDEX_BITS * level;
	return entry ? (entry >> HP_INDEX_TAG_BITS) + (pgoff & (span_of(level) - 1)) : HP_NO_PFN;
}

uint32_t hp_index_run(struct hp_index index, uint32_t page, uint32_t most)
{
	hp_frame_id first = hp_index_lookup(index, page);
	uint32_t n = 0;

	while (first != HP_NO_FRAME && n < most) {
		uint64_t pgoff = hp_pgoff(page + n);
		_Atomic uint64_t *where, *end;
		unsigned level;
		uint64_t entry = walk(index, pgoff, LEVEL_FRAME, &level, &where);

		if (level == LEVEL_RUN && entry) {
			uint64_t inside = pgoff & (span_of(level) - 1);

			if (entry != memory_entry(((hp_pfn)(first + n) << HP_ORDER_FRAME) - inside))
				break;
			n += (uint32_t)((span_of(level) - inside) >> HP_ORDER_FRAME);
			continue;
		}
		/* The rest of the node, entry by entry. */
		end = where + HP_INDEX_ENTRIES - slot_of(pgoff, level);
		for (; where < end && n < most; where++, n++)
			if (atomic_load_explicit(where, memory_order_acquire) !=
			    memory_entry((hp_pfn)(first + n) << HP_ORDER_FRAME))
				return n;
	}
	return n < most ? n : most;
}

/* The first base page at or after `pgoff` that has memory below this node, which begins at `base`; or where it ends. */
static uint64_t next_in(struct hp_index index, const struct node *node, unsigned level, uint64_t base, uint64_t pgoff)
{
	for (unsigned slot = pgoff > base ? slot_of(pgoff, level) : 0; slot < HP_INDEX_ENTRIES; slot++) {
		uint64_t entry = load(node, slot), start = base + slot * span_of(level), found;

		if (!entry)
			continue;
		if (!is_node(entry))
			return pgoff > start ? pgoff : start;
		found = next_in(index, node_at(index, entry), level - 1, start, pgoff);
		if (found < start + span_of(level))
			return found;
	}
	return base + span_of(level + 1);
}

uint64_t hp_index_next(struct hp_index index, uint64_t pgoff, uint64_t end)
{
	return pgoff < end ? hp_min(next_in(index, root_of(index), index.level, 0, pgoff), end) : end;
}

/* ---- entering --------------------------------------------------------------------------------------------------- */

/* Puts a new node where nothing is; somebody else's is as good. */
static int make_node(struct hp_index index, _Atomic uint64_t *where, const struct hp_locker *who)
{
	uint32_t page = hp_pages_take(index.store, HP_BASE_PAGE_SIZE, who);
	uint64_t nothing = 0;

	if (!page)
		return -ENOMEM;
	if (!atomic_compare_exchange_strong(where, &nothing, node_entry(page)))
		hp_pages_give(index.store, page, HP_BASE_PAGE_SIZE, 0, who);
	return 0;
}

/* The entry of a level for a base page, with the nodes above it. One above it that is memory is returned as it is. */
static int make_way(struct hp_index index, uint64_t pgoff, unsigned lowest, _Atomic uint64_t **where,
                    const struct hp_locker *who)
{
	unsigned level;

	while (!walk(index, pgoff, lowest, &level, where) && level > lowest)
		if (make_node(index, *where, who))
			return -ENOMEM;
	return 0;
}

int hp_index_store(struct hp_index index, uint64_t pgoff, hp_pfn pfn, unsigned order, const struct hp_locker *who)
{
	uint64_t nothing = 0;
	_Atomic uint64_t *where;

	HP_DEBUG_ASSERT((pgoff & ((1ull << order) - 1)) == 0);
	if (order / HP_INDEX_BITS > index.level)
		return -EEXIST; /* the root is such a node */
	if (make_way(index, pgoff, order / HP_INDEX_BITS, &where, who))
		return -ENOMEM;
	if (atomic_compare_exchange_strong(where, &nothing, memory_entry(pfn)))
		return 0;
	HP_ASSERT(is_node(nothing)); /* a page has one token */
	return -EEXIST;
}

int hp_index_prepare(struct hp_index index, uint64_t pgoff, uint64_t end, unsigned order, const struct hp_locker *who)
{
	unsigned level = order / HP_INDEX_BITS;
	_Atomic uint64_t *where;

	for (; pgoff < end; pgoff = (pgoff | (span_of(level + 1) - 1)) + 1)
		if (make_way(index, pgoff, level, &where, who))
			return -ENOMEM;
	return 0;
}

/* Whether pages can be one entry: those of a whole GiB, in an index that has such entries. */
static bool is_run(struct hp_index index, uint32_t count)
{
	return count == HP_REGION_FRAMES && index.level >= LEVEL_RUN;
}

static inline void insert_at(_Atomic uint64_t *where, hp_pfn pfn, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		HP_ASSERT(atomic_load_explicit(&where[i], memory_order_relaxed) == 0);
		atomic_store_explicit(&where[i], memory_entry(pfn + i * span_of(LEVEL_FRAME)), memory_order_release);
	}
}

/* Where nodes are missing, or a whole GiB may become one entry. */
static __attribute__((noinline)) int insert_slowly(struct hp_index index, uint32_t page, hp_frame_id frame,
                                                   uint32_t count, const struct hp_locker *who)
{
	hp_pfn pfn = (hp_pfn)frame << HP_ORDER_FRAME;
	uint64_t pgoff = hp_pgoff(page), nothing = 0;
	_Atomic uint64_t *where;

	if (is_run(index, count)) {
		if (make_way(index, pgoff, LEVEL_RUN, &where, who))
			return -ENOMEM;
		if (atomic_compare_exchange_strong(where, &nothing, memory_entry(pfn)))
			return 0;
	}
	if (make_way(index, pgoff, LEVEL_FRAME, &where, who))
		return -ENOMEM;
	insert_at(where, pfn, count);
	return 0;
}

int hp_index_insert(struct hp_index index, uint32_t page, hp_frame_id frame, uint32_t count,
                    const struct hp_locker *who)
{
	unsigned shift;
	uint64_t entry;
	_Atomic uint64_t *where = hp_index_walk(index, page, &shift, &entry);

	HP_ASSERT(page % HP_INDEX_ENTRIES + count <= HP_INDEX_ENTRIES);
	if (shift)
		return insert_slowly(index, page, frame, count, who);
	insert_at(where, (hp_pfn)frame << HP_ORDER_FRAME, count);
	return 0;
}

/* ---- taking away ------------------------------------------------------------------------------------------------ */

/* A reader finds the run, or the node that says the same. */
int hp_index_divide(struct hp_index index, uint64_t pgoff, const struct hp_locker *who)
{
	_Atomic uint64_t *where;
	unsigned level;
	uint64_t run = walk(index, pgoff, LEVEL_FRAME, &level, &where);
	struct node *node;
	uint32_t page;

	if (!run || level < LEVEL_RUN || (pgoff & (span_of(level) - 1)) == 0)
		return 0;
	page = hp_pages_take(index.store, HP_BASE_PAGE_SIZE, who);
	if (!page)
		return -ENOMEM;
	node = hp_pages_at(index.store, page);
	for (unsigned i = 0; i < HP_INDEX_ENTRIES; i++)
		atomic_store_explicit(&node->entry[i],
		                      memory_entry((run >> HP_INDEX_TAG_BITS) + i * span_of(LEVEL_FRAME)),
		                      memory_order_relaxed);
	atomic_store_explicit(where, node_entry(page), memory_order_release);
	return 0;
}

void hp_index_replace(struct hp_index index, uint32_t page, hp_frame_id frame)
{
	unsigned shift;
	uint64_t entry;
	_Atomic uint64_t *where = hp_index_walk(index, page, &shift, &entry);

	HP_ASSERT(shift == 0 && (entry & HP_INDEX_TAG) == HP_INDEX_MEMORY);
	atomic_store_explicit(where, memory_entry((hp_pfn)frame << HP_ORDER_FRAME), memory_order_release);
}

void hp_index_erase(struct hp_index index, uint64_t pgoff, uint64_t end)
{
	while ((pgoff = hp_index_next(index, pgoff, end)) < end) {
		_Atomic uint64_t *where;
		unsigned level;

		walk(index, pgoff, 0, &level, &where);
		HP_ASSERT((pgoff & (span_of(level) - 1)) == 0 && end - pgoff >= span_of(level));
		atomic_store_explicit(where, 0, memory_order_release);
		pgoff += span_of(level);
	}
}

static bool is_empty(const struct node *node)
{
	uint64_t any = 0;

	for (unsigned slot = 0; slot < HP_INDEX_ENTRIES; slot++)
		any |= atomic_load_explicit(&node->entry[slot], memory_order_relaxed);
	return any == 0;
}

/* The nodes below this one, which begins at `base`. */
static void prune_below(struct hp_index index, struct node *node, unsigned level, uint64_t base, uint64_t pgoff,
                        uint64_t end, const struct hp_locker *who)
{
	for (unsigned slot = pgoff > base ? slot_of(pgoff, level) : 0; slot < HP_INDEX_ENTRIES; slot++) {
		uint64_t entry = load(node, slot), start = base + slot * span_of(level);

		if (start >= end)
			return;
		if (!is_node(entry))
			continue;
		prune_below(index, node_at(index, entry), level - 1, start, pgoff, end, who);
		if (start >= pgoff && start + span_of(level) <= end && is_empty(node_at(index, entry)) &&
		    !hp_pages_unlink(index.store, &node->entry[slot], page_of(entry), who))
			return;
	}
}

void hp_index_prune(struct hp_index index, uint64_t pgoff, uint64_t end, const struct hp_locker *who)
{
	prune_below(index, root_of(index), index.level, 0, pgoff, end, who);
}

static void destroy_node(struct hp_index index, uint32_t page, unsigned level, const struct hp_locker *who)
{
	const struct node *node = hp_pages_at(index.store, page);

	for (unsigned slot = 0; level > 0 && slot < HP_INDEX_ENTRIES; slot++)
		if (is_node(load(node, slot)))
			destroy_node(index, page_of(load(node, slot)), level - 1, who);
	hp_pages_give(index.store, page, HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE, who);
}

void hp_index_destroy(struct hp_index index, const struct hp_locker *who)
{
	if (index.root)
		destroy_node(index, index.root, index.level, who);
}
