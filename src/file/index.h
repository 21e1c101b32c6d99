/* SPDX-License-Identifier: MIT */
/*
 * The page-cache index: what memory holds each base page of a file.
 *
 * A radix tree with the shape of a page table. A node has 512 entries; at each level an entry is nothing, the next
 * node, or memory of that level's size: a base page, a frame, a run of 512 frames. So a GiB whose frames lie in a row
 * is one entry, and who walks a file takes steps as large as the entries are.
 *
 *   level   an entry's memory      a node covers
 *     0     base page                frame
 *     1     frame                    1 GiB
 *     2     run of 1 GiB             512 GiB
 *     3, 4  (nodes only)             256 TiB, more than any file
 *
 * Lookups take no lock. A page is inserted by the one who holds its token (file/reserve.h), under the file lock for
 * reading; nodes come into being there too. What takes entries away, divides one or removes a node holds it for
 * writing. Who looks without the file lock is in a read section (sync/section.h).
 */
#ifndef HP_FILE_INDEX_H
#define HP_FILE_INDEX_H

#include "arena/pages.h"

/* A base page of the pool: 512 for each frame. */
typedef uint64_t hp_pfn;
#define HP_NO_PFN UINT64_MAX

#define HP_INDEX_BITS 9u
#define HP_INDEX_ENTRIES (1u << HP_INDEX_BITS)

enum hp_order { HP_ORDER_BASE = 0, HP_ORDER_FRAME = 9, HP_ORDER_RUN = 18 };

/*
 * An entry is 0, or has one of these tags; above them are the node's page, as an offset in the store, or the memory's
 * pfn.
 */
enum { HP_INDEX_NODE = 1, HP_INDEX_MEMORY = 2, HP_INDEX_TAG = 3, HP_INDEX_TAG_BITS = 2 };

struct hp_index { /* one process's view, made for each use */
	struct hp_page_store *store;
	uint32_t root;  /* the root's page; never changes */
	uint32_t level; /* of the root; never changes */
};

/* The level of the root for a file of so many frames. */
uint32_t hp_index_level(uint64_t pages);

/* -- by base pages ----------------------------------------------------------------------------------------------- */

/* The memory of a base page, and the order of the entry that says so; HP_NO_PFN: none. Signal safe. */
hp_pfn hp_index_find(struct hp_index index, uint64_t pgoff, unsigned *order);
/*
 * Enters memory of an order at a base page, aligned to it, where nothing is. Nodes are made as needed. -ENOMEM: no
 * page is left for one; -EEXIST: the place has a node, for smaller orders.
 */
int hp_index_store(struct hp_index index, uint64_t pgoff, hp_pfn pfn, unsigned order, const struct hp_locker *who);
/* Makes the nodes in which entries of the order for [pgoff, end) can be stored without failing. -ENOMEM. */
int hp_index_prepare(struct hp_index index, uint64_t pgoff, uint64_t end, unsigned order, const struct hp_locker *who);
/* After this an entry begins at `pgoff`, which is aligned to a frame: a run that holds it is divided. -ENOMEM. */
int hp_index_divide(struct hp_index index, uint64_t pgoff, const struct hp_locker *who);
/* Other memory for a page, whose entry is of a frame. Under the file lock for writing; a reader finds one or the other. */
void hp_index_replace(struct hp_index index, uint32_t page, hp_frame_id frame);
/* Takes the entries of [pgoff, end) out, which begin and end there. Nodes stay. */
void hp_index_erase(struct hp_index index, uint64_t pgoff, uint64_t end);
/* Removes nodes that are empty and lie in [pgoff, end) as a whole; some stay while readers do not go on. */
void hp_index_prune(struct hp_index index, uint64_t pgoff, uint64_t end, const struct hp_locker *who);
/* The first base page in [pgoff, end) that has memory, or `end`. */
uint64_t hp_index_next(struct hp_index index, uint64_t pgoff, uint64_t end);
/* Nobody looks any more: gives all nodes back, the root too. */
void hp_index_destroy(struct hp_index index, const struct hp_locker *who);

static inline uint64_t hp_pgoff(uint32_t page)
{
	return (uint64_t)page << HP_ORDER_FRAME;
}

/* -- by frames --------------------------------------------------------------------------------------------------- */

/*
 * The entry of a frame, or the one above it that is no node: *shift is 0, or how many times two pages it is for. All
 * nodes are pages of the store, and an index of one level has frames in its root.
 */
HP_FAST_PATH _Atomic uint64_t *hp_index_walk(struct hp_index index, uint32_t page, unsigned *shift, uint64_t *entry)
{
	char *memory = index.store->memory, *node = memory + index.root * HP_BASE_PAGE_SIZE;
	unsigned s = HP_INDEX_BITS * (index.level - 1);

	for (;; s -= HP_INDEX_BITS) {
		_Atomic uint64_t *where = (_Atomic uint64_t *)node + (page >> s & (HP_INDEX_ENTRIES - 1));

		*entry = atomic_load_explicit(where, memory_order_acquire);
		if (s == 0 || (*entry & HP_INDEX_TAG) != HP_INDEX_NODE) {
			*shift = s;
			return where;
		}
		node = memory + (*entry & ~(HP_BASE_PAGE_SIZE - 1));
	}
}

HP_FAST_PATH hp_frame_id hp_index_lookup(struct hp_index index, uint32_t page)
{
	unsigned shift;
	uint64_t entry;

	hp_index_walk(index, page, &shift, &entry);
	if ((entry & HP_INDEX_TAG) != HP_INDEX_MEMORY)
		return HP_NO_FRAME;
	return (hp_frame_id)(entry >> (HP_ORDER_FRAME + HP_INDEX_TAG_BITS)) + (page & ((1u << shift) - 1));
}

/* The first page in [page, end) that has memory, or `end`. */
static inline uint32_t hp_index_next_page(struct hp_index index, uint32_t page, uint32_t end)
{
	return (uint32_t)(hp_index_next(index, hp_pgoff(page), hp_pgoff(end)) >> HP_ORDER_FRAME);
}

/*
 * How many of the pages from `page` on, up to `most`, lie in frames that follow each other; 0 if the first is absent.
 */
uint32_t hp_index_run(struct hp_index index, uint32_t page, uint32_t most);
/*
 * Enters frames in a row, of one GiB of the file, where nothing is; as one entry if they are all of it and it has no
 * node. -ENOMEM: no page is left for a node; nothing has changed.
 */
int hp_index_insert(struct hp_index index, uint32_t page, hp_frame_id frame, uint32_t count,
                    const struct hp_locker *who);

#endif
