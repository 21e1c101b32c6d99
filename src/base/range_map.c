/* SPDX-License-Identifier: MIT */
#include "base/range_map.h"

#include "base/assert.h"
#include "base/units.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Both kinds of node begin with the link of the retired list. Nodes never change once they can be read. */
struct leaf {
	void *next_retired;
	uint32_t count;
	struct hp_range range[]; /* as many as it needs: most maps are small, and so is what a change copies */
};

struct child {
	uintptr_t from;              /* this leaf's ranges start at or after it; the first child's is not looked at */
	_Atomic(struct leaf *) leaf; /* never empty */
};

struct hp_range_root {
	void *next_retired;
	uint32_t count; /* at least 1: an empty map has no root */
	struct child child[];
};

/* Ranges that follow each other, in some leaf or at the caller's. */
struct stretch {
	const struct hp_range *range;
	uint32_t count;
};

/* The leaves [first, after) of the root become the ranges of the stretches. */
struct change {
	struct hp_range_root *root; /* NULL: the map is empty */
	uint32_t first, after;
	struct stretch stretch[3]; /* what stays of the first leaf, the pieces, what stays of the last leaf */
};

static void child_set(struct child *child, uintptr_t from, struct leaf *leaf)
{
	child->from = from;
	atomic_store_explicit(&child->leaf, leaf, memory_order_relaxed);
}

static struct leaf *child_leaf(const struct child *child)
{
	return atomic_load_explicit(&child->leaf, memory_order_acquire);
}

void hp_range_map_retire(struct hp_range_map *map, void *memory)
{
	*(void **)memory = map->retired;
	map->retired = memory;
	map->retired_count++;
}

void *hp_range_map_take_retired(struct hp_range_map *map)
{
	void *retired = map->retired;

	map->retired = NULL;
	map->retired_count = 0;
	return retired;
}

void hp_range_map_free(void *retired)
{
	while (retired) {
		void *memory = retired;

		retired = *(void **)memory;
		free(memory);
	}
}

/* The last child whose `from` is not above the address. */
static uint32_t child_of(const struct hp_range_root *root, uintptr_t address)
{
	uint32_t low = 0, high = root->count;

	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (root->child[middle].from <= address)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* How many ranges of the leaf start at or below the address. */
static uint32_t starts_up_to(const struct leaf *leaf, uintptr_t address)
{
	uint32_t low = 0, high = leaf->count;

	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (leaf->range[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void *hp_range_map_find(struct hp_range_map *map, uintptr_t address)
{
	const struct hp_range_root *root = atomic_load_explicit(&map->root, memory_order_acquire);

	/*
	 * A range belongs to the leaf of its start and may reach beyond the leaf's span: step back if all ranges of
	 * the leaf start above the address. The two leaves may be of different moments: while the root stays, an
	 * address that is always covered is covered by the same leaf, because what concerns two leaves makes a new
	 * root.
	 */
	for (uint32_t c = root ? child_of(root, address) + 1 : 0; c-- > 0;) {
		const struct leaf *leaf = child_leaf(&root->child[c]);
		uint32_t n = starts_up_to(leaf, address);

		if (n > 0)
			return address < leaf->range[n - 1].end ? leaf->range[n - 1].value : NULL;
	}
	return NULL;
}

bool hp_range_map_next(const struct hp_range_map *map, uintptr_t from, struct hp_range *range)
{
	const struct hp_range_root *root = atomic_load_explicit(&map->root, memory_order_relaxed);
	uint32_t c = root ? child_of(root, from) : 0;

	/* The last range of the leaf before may reach into this leaf's span. */
	if (c > 0 && child_leaf(&root->child[c])->range[0].start > from)
		c--;
	for (; root && c < root->count; c++) {
		const struct leaf *leaf = child_leaf(&root->child[c]);
		uint32_t n = starts_up_to(leaf, from);

		if (n > 0 && leaf->range[n - 1].end > from)
			n--;
		if (n < leaf->count) {
			*range = leaf->range[n];
			return true;
		}
	}
	return false;
}

/* A leaf with the next `count` ranges of the stretches, which it takes away from them. */
static struct leaf *leaf_new(struct stretch *stretch, uint32_t count)
{
	struct leaf *leaf = malloc(sizeof(*leaf) + count * sizeof(leaf->range[0]));

	if (!leaf)
		return NULL;
	leaf->count = count;
	for (uint32_t have = 0, n; have < count; have += n) {
		while (stretch->count == 0)
			stretch++;
		n = (uint32_t)hp_min(stretch->count, count - have);
		memcpy(leaf->range + have, stretch->range, n * sizeof(leaf->range[0]));
		stretch->range += n;
		stretch->count -= n;
	}
	return leaf;
}

/* Fills child[0 .. leaves - 1] with `count` ranges, as many in each as in the others. */
static int fill(struct child *child, uint32_t leaves, struct stretch *stretch, uint32_t count)
{
	for (uint32_t i = 0; i < leaves; i++) {
		struct leaf *leaf = leaf_new(stretch, count / (leaves - i));

		if (!leaf) {
			while (i-- > 0)
				free(child_leaf(&child[i]));
			return -ENOMEM;
		}
		child_set(&child[i], leaf->range[0].start, leaf);
		count -= leaf->count;
	}
	return 0;
}

static int replace_leaf(struct hp_range_map *map, struct child *child, struct stretch *stretch, uint32_t count)
{
	struct leaf *old = child_leaf(child), *leaf = leaf_new(stretch, count);

	if (!leaf)
		return -ENOMEM;
	atomic_store_explicit(&child->leaf, leaf, memory_order_release);
	hp_range_map_retire(map, old);
	return 0;
}

static void copy_children(struct child *to, const struct child *from, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		child_set(&to[i], from[i].from, child_leaf(&from[i]));
}

/* *fresh: the root after the change, NULL if no range is left. */
static int root_new(struct change *change, uint32_t leaves, uint32_t count, struct hp_range_root **fresh)
{
	const struct hp_range_root *old = change->root;
	uint32_t before = change->first, behind = old ? old->count - change->after : 0;
	struct hp_range_root *root;

	*fresh = NULL;
	if (before + leaves + behind == 0)
		return 0;
	root = malloc(sizeof(*root) + (before + leaves + behind) * sizeof(root->child[0]));
	if (!root || fill(root->child + before, leaves, change->stretch, count)) {
		free(root);
		return -ENOMEM;
	}
	root->count = before + leaves + behind;
	if (old) {
		copy_children(root->child, old->child, before);
		copy_children(root->child + before + leaves, old->child + change->after, behind);
	}
	*fresh = root;
	return 0;
}

static int apply(struct hp_range_map *map, struct change *change)
{
	uint32_t count = change->stretch[0].count + change->stretch[1].count + change->stretch[2].count;
	uint32_t leaves = (count + HP_RANGE_LEAF - 1) / HP_RANGE_LEAF;
	struct hp_range_root *old = change->root, *fresh;

	if (leaves == 1 && change->after - change->first == 1)
		return replace_leaf(map, &old->child[change->first], change->stretch, count);
	if (root_new(change, leaves, count, &fresh))
		return -ENOMEM;
	atomic_store_explicit(&map->root, fresh, memory_order_release);
	for (uint32_t c = change->first; c < change->after; c++)
		hp_range_map_retire(map, child_leaf(&old->child[c]));
	if (old)
		hp_range_map_retire(map, old);
	return 0;
}

/*
 * All ranges that come or go, and no others, start in [*low, *high]; *low > *high if there are none. -EEXIST: a range
 * that stays is among them.
 */
static int find_bounds(const struct hp_range_map *map, uintptr_t start, uintptr_t end, struct stretch pieces,
                       uintptr_t *low, uintptr_t *high)
{
	uintptr_t from = start, to = end;
	struct hp_range range;

	*low = UINTPTR_MAX;
	*high = 0;
	if (pieces.count > 0) {
		const struct hp_range *last = &pieces.range[pieces.count - 1];

		*low = pieces.range[0].start;
		*high = last->start;
		from = hp_min(start, *low);
		to = last->end > end ? last->end : end;
	}
	for (; from < to && hp_range_map_next(map, from, &range) && range.start < to; from = range.end) {
		if (range.end <= start || range.start >= end || start == end)
			return -EEXIST;
		*low = hp_min(*low, range.start);
		*high = range.start > *high ? range.start : *high;
	}
	return 0;
}

/* Takes what stays, left of low and right of high, from the leaves of the two. */
static void choose_leaves(struct change *change, uintptr_t low, uintptr_t high)
{
	const struct hp_range_root *root = change->root;
	const struct leaf *left, *right;
	uint32_t n;

	if (!root)
		return;
	change->first = child_of(root, low);
	change->after = child_of(root, high) + 1;
	left = child_leaf(&root->child[change->first]);
	right = child_leaf(&root->child[change->after - 1]);
	n = starts_up_to(right, high);
	change->stretch[0] = (struct stretch){left->range, low > 0 ? starts_up_to(left, low - 1) : 0};
	change->stretch[2] = (struct stretch){right->range + n, right->count - n};
}

int hp_range_map_exchange(struct hp_range_map *map, uintptr_t start, uintptr_t end, const struct hp_range *pieces,
                          uint32_t count)
{
	struct change change = {
		.root = atomic_load_explicit(&map->root, memory_order_relaxed),
		.stretch[1] = {pieces, count},
	};
	uintptr_t low, high;

	HP_DEBUG_ASSERT(start <= end);
	for (uint32_t i = 0; i < count; i++)
		HP_DEBUG_ASSERT(pieces[i].value && pieces[i].start < pieces[i].end &&
		                (i == 0 || pieces[i - 1].end <= pieces[i].start));
	if (find_bounds(map, start, end, change.stretch[1], &low, &high))
		return -EEXIST;
	if (low > high)
		return 0;
	choose_leaves(&change, low, high);
	return apply(map, &change);
}

int hp_range_map_insert(struct hp_range_map *map, uintptr_t start, uintptr_t end, void *value)
{
	const struct hp_range piece = {start, end, value};

	return hp_range_map_exchange(map, start, start, &piece, 1);
}

int hp_range_map_remove(struct hp_range_map *map, uintptr_t start, void **value)
{
	struct hp_range range;
	int result;

	*value = NULL;
	if (!hp_range_map_next(map, start, &range) || range.start != start)
		return 0;
	result = hp_range_map_exchange(map, start, range.end, NULL, 0);
	if (!result)
		*value = range.value;
	return result;
}

void hp_range_map_each(struct hp_range_map *map, void (*fn)(const struct hp_range *range, void *context), void *context)
{
	struct hp_range range;

	for (uintptr_t from = 0; hp_range_map_next(map, from, &range); from = range.end)
		fn(&range, context);
}
