/* SPDX-License-Identifier: MIT */
#include "base/range_map.h"

#include "base/assert.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Both kinds of node begin with the link of the retired list. Nodes never change once they can be read. */
struct leaf {
	void *next_retired;
	uint32_t count;
	struct hp_range range[]; /* as many as it needs: most maps are small, and so is what a change copies */
};

struct child {
	uintptr_t from; /* this leaf's ranges start at or after it; the first child's is 0 */
	_Atomic(struct leaf *) leaf;
};

struct hp_range_root {
	void *next_retired;
	uint32_t count; /* at least 1 */
	struct child child[];
};

static struct leaf *leaf_new(uint32_t count)
{
	struct leaf *leaf = malloc(sizeof(*leaf) + count * sizeof(leaf->range[0]));

	if (leaf)
		leaf->count = count;
	return leaf;
}

static struct hp_range_root *root_new(uint32_t count)
{
	struct hp_range_root *root = malloc(sizeof(*root) + count * sizeof(root->child[0]));

	if (root)
		root->count = count;
	return root;
}

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
	 * A range belongs to the leaf of its start and may reach beyond the leaf's span: step back over empty leaves.
	 */
	for (uint32_t c = root ? child_of(root, address) + 1 : 0; c-- > 0;) {
		const struct leaf *leaf = child_leaf(&root->child[c]);
		uint32_t n = starts_up_to(leaf, address);

		if (n > 0)
			return address < leaf->range[n - 1].end ? leaf->range[n - 1].value : NULL;
	}
	return NULL;
}

/* The lowest start at or above the address; UINTPTR_MAX if there is none. Writers. */
static uintptr_t next_start(const struct hp_range_root *root, uintptr_t address)
{
	for (uint32_t c = child_of(root, address); c < root->count; c++) {
		const struct leaf *leaf = child_leaf(&root->child[c]);
		uint32_t n = address ? starts_up_to(leaf, address - 1) : 0;

		if (n < leaf->count)
			return leaf->range[n].start;
	}
	return UINTPTR_MAX;
}

static int first_insert(struct hp_range_map *map, const struct hp_range *range)
{
	struct leaf *leaf = leaf_new(1);
	struct hp_range_root *root = root_new(1);

	if (!leaf || !root) {
		free(leaf);
		free(root);
		return -ENOMEM;
	}
	leaf->range[0] = *range;
	child_set(&root->child[0], 0, leaf);
	atomic_store_explicit(&map->root, root, memory_order_release);
	return 0;
}

/* Replaces leaf c of the root by two halves. The new right half starts with its own first range. */
static int split(struct hp_range_map *map, struct hp_range_root *root, uint32_t c)
{
	struct leaf *old = child_leaf(&root->child[c]);
	struct leaf *left = leaf_new(old->count / 2), *right = leaf_new(old->count - old->count / 2);
	struct hp_range_root *grown = root_new(root->count + 1);

	if (!left || !right || !grown) {
		free(left);
		free(right);
		free(grown);
		return -ENOMEM;
	}
	memcpy(left->range, old->range, left->count * sizeof(old->range[0]));
	memcpy(right->range, old->range + left->count, right->count * sizeof(old->range[0]));
	for (uint32_t i = 0; i < root->count; i++)
		child_set(&grown->child[i < c ? i : i + 1], root->child[i].from, child_leaf(&root->child[i]));
	child_set(&grown->child[c], root->child[c].from, left);
	child_set(&grown->child[c + 1], right->range[0].start, right);
	atomic_store_explicit(&map->root, grown, memory_order_release);
	hp_range_map_retire(map, old);
	hp_range_map_retire(map, root);
	return 0;
}

int hp_range_map_insert(struct hp_range_map *map, uintptr_t start, uintptr_t end, void *value)
{
	const struct hp_range range = {start, end, value};
	struct hp_range_root *root = atomic_load_explicit(&map->root, memory_order_relaxed);

	HP_DEBUG_ASSERT(start < end && value);
	if (!root)
		return first_insert(map, &range);
	if (hp_range_map_find(map, start) || next_start(root, start) < end)
		return -EEXIST;

	uint32_t c = child_of(root, start);

	if (child_leaf(&root->child[c])->count == HP_RANGE_LEAF) {
		if (split(map, root, c))
			return -ENOMEM;
		root = atomic_load_explicit(&map->root, memory_order_relaxed);
		c = child_of(root, start);
	}

	struct leaf *old = child_leaf(&root->child[c]), *leaf = leaf_new(old->count + 1);
	uint32_t at = starts_up_to(old, start);

	if (!leaf)
		return -ENOMEM;
	memcpy(leaf->range, old->range, at * sizeof(range));
	leaf->range[at] = range;
	memcpy(leaf->range + at + 1, old->range + at, (old->count - at) * sizeof(range));
	atomic_store_explicit(&root->child[c].leaf, leaf, memory_order_release);
	hp_range_map_retire(map, old);
	return 0;
}

/* Takes an empty leaf out of the root. Without memory it stays, which costs room and nothing else. */
static void drop_leaf(struct hp_range_map *map, struct hp_range_root *root, uint32_t c)
{
	struct hp_range_root *shrunk = root->count > 1 ? root_new(root->count - 1) : NULL;

	if (!shrunk)
		return;
	for (uint32_t i = 0, to = 0; i < root->count; i++)
		if (i != c) {
			child_set(&shrunk->child[to], to ? root->child[i].from : 0, child_leaf(&root->child[i]));
			to++;
		}
	atomic_store_explicit(&map->root, shrunk, memory_order_release);
	hp_range_map_retire(map, child_leaf(&root->child[c]));
	hp_range_map_retire(map, root);
}

int hp_range_map_remove(struct hp_range_map *map, uintptr_t start, void **value)
{
	struct hp_range_root *root = atomic_load_explicit(&map->root, memory_order_relaxed);

	*value = NULL;
	if (!root)
		return 0;

	uint32_t c = child_of(root, start);
	struct leaf *old = child_leaf(&root->child[c]);
	uint32_t n = starts_up_to(old, start);

	if (n == 0 || old->range[n - 1].start != start)
		return 0;

	struct leaf *leaf = leaf_new(old->count - 1);

	if (!leaf)
		return -ENOMEM;
	*value = old->range[n - 1].value;
	memcpy(leaf->range, old->range, (n - 1) * sizeof(leaf->range[0]));
	memcpy(leaf->range + n - 1, old->range + n, (old->count - n) * sizeof(leaf->range[0]));
	atomic_store_explicit(&root->child[c].leaf, leaf, memory_order_release);
	hp_range_map_retire(map, old);
	if (leaf->count == 0)
		drop_leaf(map, root, c);
	return 0;
}

void hp_range_map_each(struct hp_range_map *map, void (*fn)(const struct hp_range *range, void *context), void *context)
{
	const struct hp_range_root *root = atomic_load_explicit(&map->root, memory_order_relaxed);

	for (uint32_t c = 0; root && c < root->count; c++) {
		const struct leaf *leaf = child_leaf(&root->child[c]);

		for (uint32_t i = 0; i < leaf->count; i++)
			fn(&leaf->range[i], context);
	}
}
