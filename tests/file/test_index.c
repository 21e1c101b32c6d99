/* SPDX-License-Identifier: MIT */
/* The index of a file and the page store under it: against a model, at boundaries, without memory, with readers. */
#include "file/index.h"
#include "support/domain.h"
#include "support/random.h"
#include "support/threads.h"

#include <errno.h>
#include <setjmp.h>

#include <cmocka.h>

#define MOST_PAGES (UINT32_MAX - 1) /* of the largest file */
#define RUN_SPAN ((uint64_t)1 << HP_ORDER_RUN)
#define FRAME_SPAN ((uint64_t)1 << HP_ORDER_FRAME)

/* ---- a page store by itself ------------------------------------------------------------------------------------- */

enum { STORE_MAX = 16384 };

static struct hp_pages pages;
static uint64_t bitmap[STORE_MAX / 64];
static struct hp_page_store store;

static void store_make(uint32_t count)
{
	assert_true(count <= STORE_MAX);
	memset(&pages, 0, sizeof(pages));
	memset(bitmap, 0, sizeof(bitmap));
	store = (struct hp_page_store){.pages = &pages, .bitmap = bitmap};
	store.memory = mmap(NULL, STORE_MAX * HP_BASE_PAGE_SIZE, PROT_READ | PROT_WRITE,
	                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	assert_ptr_not_equal(store.memory, MAP_FAILED);
	hp_pages_init(&store, count);
}

/* Nobody gets so many, but who asks makes what waits in the limbo free. */
static void store_drain(void)
{
	assert_int_equal(hp_pages_take(&store, pages.count * HP_BASE_PAGE_SIZE, &me), 0);
}

static uint32_t store_free(void)
{
	return pages.count - 1 - pages.used;
}

/* All is back, and each page that is handed out again is zeroed. */
static void store_end(void)
{
	static const char zeroes[HP_BASE_PAGE_SIZE];
	uint32_t page;

	store_drain();
	assert_int_equal(pages.used, 0);
	assert_int_equal(pages.waiting, 0);
	for (uint32_t i = 1; i < pages.count; i++) {
		page = hp_pages_take(&store, 1, &me);
		assert_int_not_equal(page, 0);
		assert_memory_equal(hp_pages_at(&store, page), zeroes, sizeof(zeroes));
	}
	assert_int_equal(hp_pages_take(&store, 1, &me), 0);
	munmap(store.memory, STORE_MAX * HP_BASE_PAGE_SIZE);
}

/* Takes pages until `left` are free. */
static unsigned store_hoard(uint32_t *hoard, uint32_t left)
{
	unsigned n = 0;

	store_drain();
	while (store_free() > left) {
		hoard[n] = hp_pages_take(&store, 1, &me);
		assert_int_not_equal(hoard[n++], 0);
	}
	return n;
}

static void store_unhoard(uint32_t *hoard, unsigned n)
{
	while (n > 0)
		hp_pages_give(&store, hoard[--n], 1, 0, &me);
}

static struct hp_index index_make(uint64_t file_pages)
{
	struct hp_index index = {.store = &store, .level = hp_index_level(file_pages)};

	index.root = hp_pages_take(&store, HP_BASE_PAGE_SIZE, &me);
	assert_int_not_equal(index.root, 0);
	return index;
}

/* ---- the model -------------------------------------------------------------------------------------------------- */

enum { ENTRIES_MAX = 20000, NODES_MAX = 8192 };

struct entry {
	uint64_t pgoff;
	hp_pfn pfn;
	unsigned order;
};

struct node { /* not the root */
	unsigned level;
	uint64_t base;
};

static struct {
	uint64_t file_pages, end;
	struct hp_index index;
	struct entry entries[ENTRIES_MAX]; /* by pgoff */
	unsigned count;
	struct node nodes[NODES_MAX];
	unsigned node_count;
	uint32_t others; /* pages of the store that are not nodes */
	uint64_t random;
	uint64_t gib[6]; /* where things happen */
} m;

static uint64_t below(uint64_t n)
{
	return random_below(&m.random, n);
}

static uint64_t span(unsigned order)
{
	return (uint64_t)1 << order;
}

static uint64_t align_down(uint64_t pgoff, unsigned order)
{
	return pgoff & ~(span(order) - 1);
}

static void model_make(uint64_t file_pages)
{
	uint64_t gibs = (file_pages + HP_REGION_FRAMES - 1) / HP_REGION_FRAMES;

	m.file_pages = file_pages;
	m.end = file_pages << HP_ORDER_FRAME;
	m.index = index_make(file_pages);
	m.count = m.node_count = m.others = 0;
	for (unsigned i = 0; i < 6; i++)
		m.gib[i] = below(gibs);
	m.gib[0] = 0;
	m.gib[1] = gibs - 1;
	m.gib[2] = gibs > 1 ? gibs - 2 : 0;
	m.gib[4] = m.gib[3] > 0 ? m.gib[3] - 1 : 0; /* its neighbour */
}

/* The first entry that ends behind `pgoff`. */
static unsigned first_entry(uint64_t pgoff)
{
	unsigned low = 0, high = m.count;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (m.entries[middle].pgoff + span(m.entries[middle].order) <= pgoff)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static const struct entry *entry_in(uint64_t pgoff, uint64_t end)
{
	unsigned i = first_entry(pgoff);

	return i < m.count && m.entries[i].pgoff < end ? &m.entries[i] : NULL;
}

static void add_entry(uint64_t pgoff, hp_pfn pfn, unsigned order)
{
	unsigned i = first_entry(pgoff);

	assert_true(m.count < ENTRIES_MAX);
	memmove(&m.entries[i + 1], &m.entries[i], (m.count++ - i) * sizeof(m.entries[0]));
	m.entries[i] = (struct entry){pgoff, pfn, order};
}

static void remove_entries(uint64_t pgoff, uint64_t end)
{
	unsigned from = first_entry(pgoff), to = first_entry(end);

	memmove(&m.entries[from], &m.entries[to], (m.count - to) * sizeof(m.entries[0]));
	m.count -= to - from;
}

static bool has_node(unsigned level, uint64_t pgoff)
{
	for (unsigned i = 0; i < m.node_count; i++)
		if (m.nodes[i].level == level && m.nodes[i].base == align_down(pgoff, HP_INDEX_BITS * (level + 1)))
			return true;
	return false;
}

/* The nodes on the way to an entry of the level, if no memory is in the way. */
static void add_way(uint64_t pgoff, unsigned level)
{
	const struct entry *over = entry_in(pgoff, pgoff + 1);

	if (over && over->order / HP_INDEX_BITS > level)
		return;
	for (unsigned l = m.index.level; l-- > level;) {
		assert_true(m.node_count < NODES_MAX);
		if (!has_node(l, pgoff))
			m.nodes[m.node_count++] = (struct node){l, align_down(pgoff, HP_INDEX_BITS * (l + 1))};
	}
}

static void model_prune(uint64_t pgoff, uint64_t end)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < m.node_count; i++) {
		uint64_t base = m.nodes[i].base, behind = base + span(HP_INDEX_BITS * (m.nodes[i].level + 1));

		if (base < pgoff || behind > end || entry_in(base, behind))
			m.nodes[kept++] = m.nodes[i];
	}
	m.node_count = kept;
}

static uint32_t model_run(uint32_t page, uint32_t most)
{
	hp_pfn first = HP_NO_PFN;

	for (uint32_t n = 0; n < most; n++) {
		const struct entry *entry = entry_in(hp_pgoff(page + n), hp_pgoff(page + n) + 1);
		hp_pfn pfn = entry ? entry->pfn + (hp_pgoff(page + n) - entry->pgoff) : 0;

		if (!entry || entry->order < HP_ORDER_FRAME || (n > 0 && pfn != first + hp_pgoff(n)))
			return n;
		first = n > 0 ? first : pfn;
	}
	return most;
}

/* ---- the index against the model -------------------------------------------------------------------------------- */

static void check_find(uint64_t pgoff)
{
	const struct entry *entry = entry_in(pgoff, pgoff + 1);
	hp_frame_id frame =
		entry ? (hp_frame_id)((entry->pfn + (pgoff - entry->pgoff)) >> HP_ORDER_FRAME) : HP_NO_FRAME;
	unsigned order;
	hp_pfn pfn = hp_index_find(m.index, pgoff, &order);

	assert_int_equal(pfn, entry ? entry->pfn + (pgoff - entry->pgoff) : HP_NO_PFN);
	if (entry)
		assert_int_equal(order, entry->order);
	else if (order > 0)
		assert_false(has_node(order / HP_INDEX_BITS - 1, pgoff));
	if (entry && entry->order < HP_ORDER_FRAME)
		frame = HP_NO_FRAME;
	/* A frame that is divided into base pages is none, whichever of them are there. */
	if ((pgoff & (FRAME_SPAN - 1)) == 0)
		assert_int_equal(hp_index_lookup(m.index, (uint32_t)(pgoff >> HP_ORDER_FRAME)), frame);
}

static void check_run(uint32_t page)
{
	uint32_t rest = (uint32_t)(m.file_pages - page), most = (uint32_t)(1 + below(rest < 1200 ? rest : 1200));

	assert_int_equal(hp_index_run(m.index, page, most), model_run(page, most));
}

/* A place near those where things happen. */
static uint64_t random_place(void)
{
	uint64_t base = m.gib[below(6)] * RUN_SPAN;
	uint64_t page = below(2) ? below(HP_REGION_FRAMES) : below(2) ? below(6) : HP_REGION_FRAMES - 1 - below(3);
	uint64_t pgoff = base + page * FRAME_SPAN + (below(2) ? below(FRAME_SPAN) : 0);

	return pgoff < m.end ? pgoff : below(m.end);
}

static void check_next(void)
{
	uint64_t pgoff = random_place(), end = random_place();
	const struct entry *entry = pgoff < end ? entry_in(pgoff, end) : NULL;

	assert_int_equal(hp_index_next(m.index, pgoff, end), !entry                 ? end
	                                                     : entry->pgoff < pgoff ? pgoff
	                                                                            : entry->pgoff);
	pgoff = align_down(pgoff, HP_ORDER_FRAME);
	entry = entry_in(pgoff, m.end);
	assert_int_equal(hp_index_next_page(m.index, (uint32_t)(pgoff >> HP_ORDER_FRAME), (uint32_t)m.file_pages),
	                 !entry                 ? m.file_pages
	                 : entry->pgoff < pgoff ? pgoff >> HP_ORDER_FRAME
	                                        : entry->pgoff >> HP_ORDER_FRAME);
}

static void check_all(void)
{
	uint64_t at = 0;

	for (unsigned i = 0; i < m.count; i++) {
		const struct entry *entry = &m.entries[i];

		assert_int_equal(hp_index_next(m.index, at, m.end), entry->pgoff);
		at = entry->pgoff + span(entry->order);
		check_find(entry->pgoff);
		check_find(at - 1);
		check_find(entry->pgoff + below(span(entry->order)));
		if (i % 16 == 0)
			check_run((uint32_t)(entry->pgoff >> HP_ORDER_FRAME));
	}
	assert_int_equal(hp_index_next(m.index, at, m.end), m.end);
	for (unsigned i = 0; i < 50; i++) {
		check_find(random_place());
		check_find(align_down(random_place(), HP_ORDER_FRAME));
		check_run((uint32_t)(random_place() >> HP_ORDER_FRAME));
		check_next();
	}
	assert_int_equal(pages.used - pages.waiting, 1 + m.node_count + m.others);
}

/* ---- what is done to both --------------------------------------------------------------------------------------- */

static void prune(uint64_t pgoff, uint64_t end)
{
	hp_index_prune(m.index, pgoff, end, &me);
	model_prune(pgoff, end);
}

/*
 * The model has the nodes of a call already. It must fail exactly if there are not so many pages; then all is as
 * before, but for empty nodes.
 */
static bool as_expected(int result, uint32_t free_before, unsigned nodes_before, int otherwise)
{
	if (m.node_count - nodes_before <= free_before) {
		assert_int_equal(result, otherwise);
		return result == 0;
	}
	assert_int_equal(result, -ENOMEM);
	m.node_count = nodes_before;
	hp_index_prune(m.index, 0, UINT64_MAX, &me);
	model_prune(0, UINT64_MAX);
	check_all();
	return false;
}

/* Half of the time what continues the memory before it. */
static hp_pfn random_pfn(uint64_t pgoff, unsigned order)
{
	const struct entry *before = pgoff ? entry_in(pgoff - 1, pgoff) : NULL;
	hp_pfn next = before ? before->pfn + span(before->order) : 0;

	if (before && below(2) && (next & (span(order) - 1)) == 0)
		return next;
	return align_down(below((uint64_t)(UINT32_MAX - 1024) << HP_ORDER_FRAME), order);
}

static void do_store(void)
{
	unsigned order = (unsigned)below(3) * HP_INDEX_BITS, level = order / HP_INDEX_BITS, nodes = m.node_count;
	uint64_t pgoff = align_down(random_place(), order);
	uint32_t free = store_free() + pages.waiting;
	hp_pfn pfn = random_pfn(pgoff, order);
	int otherwise;

	if (entry_in(pgoff, pgoff + span(order)) || pgoff + span(order) > m.end)
		return;
	otherwise = level > m.index.level || (level > 0 && has_node(level - 1, pgoff)) ? -EEXIST : 0;
	if (level <= m.index.level)
		add_way(pgoff, level);
	if (as_expected(hp_index_store(m.index, pgoff, pfn, order, &me), free, nodes, otherwise))
		add_entry(pgoff, pfn, order);
}

static void do_prepare(void)
{
	unsigned order = (unsigned)below(3) * HP_INDEX_BITS, nodes = m.node_count;
	uint64_t pgoff = align_down(random_place(), order), behind = pgoff + span(order) * (1 + below(3000));
	uint64_t step = span(order + HP_INDEX_BITS);
	uint32_t free = store_free() + pages.waiting;

	if (behind > m.end || order / HP_INDEX_BITS > m.index.level)
		return;
	for (uint64_t at = pgoff; at < behind; at = align_down(at, order + HP_INDEX_BITS) + step)
		add_way(at, order / HP_INDEX_BITS);
	as_expected(hp_index_prepare(m.index, pgoff, behind, order, &me), free, nodes, 0);
}

/* A place for frames, without nodes for base pages in it. */
static bool is_free_of(uint64_t pgoff, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (has_node(0, pgoff + hp_pgoff(i)))
			return false;
	return !entry_in(pgoff, pgoff + hp_pgoff(count));
}

static void do_insert(void)
{
	bool whole = below(3) == 0;
	uint64_t pgoff = align_down(random_place(), whole ? HP_ORDER_RUN : HP_ORDER_FRAME);
	uint32_t left = (uint32_t)((RUN_SPAN - (pgoff & (RUN_SPAN - 1))) >> HP_ORDER_FRAME);
	uint32_t count = whole ? HP_REGION_FRAMES : (uint32_t)(1 + below(below(20) ? hp_min(left, 6) : left));
	bool is_run = count == HP_REGION_FRAMES && m.index.level > 1;
	hp_pfn pfn = align_down(random_pfn(pgoff, HP_ORDER_FRAME), HP_ORDER_FRAME);
	uint32_t free = store_free() + pages.waiting;
	unsigned nodes = m.node_count;

	if (pgoff + hp_pgoff(count) > m.end || m.count + count > ENTRIES_MAX - 1024 || !is_free_of(pgoff, count))
		return;
	add_way(pgoff, is_run ? 2 : 1);
	if (!as_expected(hp_index_insert(m.index, (uint32_t)(pgoff >> HP_ORDER_FRAME),
	                                 (hp_frame_id)(pfn >> HP_ORDER_FRAME), count, &me),
	                 free, nodes, 0))
		return;
	if (is_run && !has_node(1, pgoff)) {
		add_entry(pgoff, pfn, HP_ORDER_RUN);
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		add_entry(pgoff + hp_pgoff(i), pfn + hp_pgoff(i), HP_ORDER_FRAME);
}

static void do_divide(void)
{
	uint64_t pgoff = align_down(random_place(), HP_ORDER_FRAME);
	const struct entry *entry = entry_in(pgoff, pgoff + 1);
	struct entry run = entry ? *entry : (struct entry){0, 0, 0};
	bool divides = run.order == HP_ORDER_RUN && run.pgoff != pgoff;
	uint32_t free = store_free() + pages.waiting;
	unsigned nodes = m.node_count;

	if (m.count > ENTRIES_MAX - 1024)
		return;
	if (divides)
		m.nodes[m.node_count++] = (struct node){1, run.pgoff};
	if (!as_expected(hp_index_divide(m.index, pgoff, &me), free, nodes, 0) || !divides)
		return;
	remove_entries(run.pgoff, run.pgoff + RUN_SPAN);
	for (uint64_t at = 0; at < RUN_SPAN; at += FRAME_SPAN)
		add_entry(run.pgoff + at, run.pfn + at, HP_ORDER_FRAME);
}

/* From where an entry begins, or nothing is, to such a place. */
static void do_erase(void)
{
	uint64_t ends[2] = {random_place(), random_place()}, low, high;

	if (below(4))
		ends[1] = ends[0] + below(8 * FRAME_SPAN);
	for (unsigned i = 0; i < 2; i++) {
		const struct entry *entry = entry_in(ends[i], ends[i] + 1);

		ends[i] = entry ? entry->pgoff : ends[i];
	}
	low = hp_min(ends[0], ends[1]);
	high = hp_min(ends[0] ^ ends[1] ^ low, m.end);
	if (high - low > RUN_SPAN && below(4))
		return;
	hp_index_erase(m.index, low, high);
	remove_entries(low, high);
}

static void do_prune(void)
{
	uint64_t a = random_place(), b = random_place();

	if (below(4) == 0)
		prune(0, m.end);
	else if (below(2))
		prune(align_down(a, HP_ORDER_RUN), align_down(a, HP_ORDER_RUN) + RUN_SPAN);
	else
		prune(hp_min(a, b), a ^ b ^ hp_min(a, b));
}

static void random_operations(unsigned count)
{
	static void (*const what[])(void) = {do_store,  do_store, do_store, do_store,  do_insert, do_insert,
	                                     do_insert, do_erase, do_erase, do_divide, do_prune,  do_prepare};

	for (unsigned i = 0; i < count; i++) {
		what[below(sizeof(what) / sizeof(what[0]))]();
		check_find(random_place());
		if (i % 400 == 0)
			check_all();
	}
	check_all();
}

static void model_end(void)
{
	hp_index_destroy(m.index, &me);
	store_drain();
	assert_int_equal(pages.used, m.others);
}

static const uint64_t sizes[] = {1, 2, 511, 512, 513, 1 << 18, (1 << 18) + 1, (1 << 27) - 1, (1 << 27) + 3, MOST_PAGES};

enum { SIZES = sizeof(sizes) / sizeof(sizes[0]), OPERATIONS = 100000 };

static void test_random_operations_are_as_in_the_model(void **state)
{
	m.random = random_seed();
	for (unsigned i = 0; i < SIZES; i++) {
		store_make(STORE_MAX);
		model_make(sizes[i]);
		random_operations(OPERATIONS / SIZES);
		model_end();
		store_end();
	}
}

/* Calls fail exactly where pages for their nodes are missing, and change nothing then. */
static void test_random_operations_with_few_pages(void **state)
{
	m.random = random_seed();
	for (unsigned i = 0; i < SIZES; i++) {
		store_make((uint32_t)(5 + below(20)));
		model_make(sizes[i]);
		random_operations(OPERATIONS / SIZES / 4);
		model_end();
		store_end();
	}
}

/* ---- boundaries ------------------------------------------------------------------------------------------------- */

static void test_levels(void **state)
{
	assert_int_equal(hp_index_level(0), 1);
	assert_int_equal(hp_index_level(1), 1);
	assert_int_equal(hp_index_level(512), 1);
	assert_int_equal(hp_index_level(513), 2);
	assert_int_equal(hp_index_level(1 << 18), 2);
	assert_int_equal(hp_index_level((1 << 18) + 1), 3);
	assert_int_equal(hp_index_level(1 << 27), 3);
	assert_int_equal(hp_index_level((1 << 27) + 1), 4);
	assert_int_equal(hp_index_level(UINT32_MAX), 4);
}

static void model_store(uint64_t pgoff, hp_pfn pfn, unsigned order)
{
	assert_int_equal(hp_index_store(m.index, pgoff, pfn, order, &me), 0);
	add_way(pgoff, order / HP_INDEX_BITS);
	add_entry(pgoff, pfn, order);
}

static void test_first_and_last_page_of_the_largest_file(void **state)
{
	uint64_t last = hp_pgoff(MOST_PAGES - 1);

	store_make(64);
	model_make(MOST_PAGES);
	check_all();
	model_store(last, hp_pgoff(UINT32_MAX - 1), HP_ORDER_FRAME);
	model_store(0, 0, HP_ORDER_RUN);
	model_store(last - 1, 7, HP_ORDER_BASE);
	model_store(RUN_SPAN, hp_pgoff(HP_REGION_FRAMES), HP_ORDER_FRAME);
	model_store(RUN_SPAN + FRAME_SPAN, hp_pgoff(UINT32_MAX - 1) + 511, HP_ORDER_BASE);
	check_all();
	assert_int_equal(hp_index_lookup(m.index, MOST_PAGES - 1), UINT32_MAX - 1);
	assert_int_equal(hp_index_lookup(m.index, MOST_PAGES - 2), HP_NO_FRAME); /* has a base page */
	assert_int_equal(hp_index_run(m.index, 0, MOST_PAGES), HP_REGION_FRAMES + 1);
	assert_int_equal(hp_index_run(m.index, MOST_PAGES - 1, 1), 1);
	assert_int_equal(hp_index_next(m.index, RUN_SPAN + FRAME_SPAN + 1, m.end), last - 1);
	assert_int_equal(hp_index_next_page(m.index, MOST_PAGES - 1, MOST_PAGES), MOST_PAGES - 1);
	hp_index_erase(m.index, 0, m.end);
	remove_entries(0, m.end);
	check_all();
	assert_int_equal(hp_index_next(m.index, 0, m.end), m.end); /* over empty nodes */
	prune(0, m.end);
	assert_int_equal(m.node_count, 3); /* those that reach beyond the end */
	prune(0, UINT64_MAX);
	assert_int_equal(m.node_count, 0);
	check_all();
	model_end();
	store_end();
}

static void model_insert(uint32_t page, hp_frame_id frame, uint32_t count, unsigned order)
{
	bool is_run = count == HP_REGION_FRAMES && m.index.level > 1;

	assert_int_equal(hp_index_insert(m.index, page, frame, count, &me), 0);
	add_way(hp_pgoff(page), is_run ? 2 : 1);
	for (uint32_t i = 0; i < count; i += 1u << (order - HP_ORDER_FRAME))
		add_entry(hp_pgoff(page + i), hp_pgoff(frame + i), order);
	check_all();
}

static void test_runs_across_entries_of_all_levels(void **state)
{
	store_make(64);
	model_make((1 << 18) + 2048);
	/* A run, frames that continue it, frames of the next node that continue those, a run, and one elsewhere. */
	model_insert(512, 1000, 512, HP_ORDER_RUN);
	model_insert(1024, 1512, 500, HP_ORDER_FRAME);
	assert_int_equal(hp_index_run(m.index, 512, 3000), 1012);
	assert_int_equal(hp_index_run(m.index, 700, 3000), 824);
	assert_int_equal(hp_index_run(m.index, 700, 100), 100);
	assert_int_equal(hp_index_run(m.index, 700, 0), 0);
	model_insert(1524, 2012, 12, HP_ORDER_FRAME);
	model_insert(1536, 2024, 1, HP_ORDER_FRAME);
	assert_int_equal(hp_index_run(m.index, 512, 3000), 1025);
	model_insert(1537, 2025, 511, HP_ORDER_FRAME);
	model_insert(2048, 2536, 512, HP_ORDER_RUN);
	model_insert(2560, 1, 512, HP_ORDER_RUN);
	assert_int_equal(hp_index_run(m.index, 512, UINT32_MAX - 4096), 2048);
	assert_int_equal(hp_index_run(m.index, 2560, 3000), 512);
	assert_int_equal(hp_index_run(m.index, 0, 3000), 0);
	/* Across two nodes of the level above. */
	model_insert((1 << 18) - 1, 9000, 1, HP_ORDER_FRAME);
	model_insert(1 << 18, 9001, 512, HP_ORDER_RUN);
	model_store(hp_pgoff((1 << 18) + 512), hp_pgoff(9513), HP_ORDER_BASE); /* a page of it is not all of it */
	assert_int_equal(hp_index_run(m.index, (1 << 18) - 1, 3000), 513);
	/* Divided, it says the same. */
	assert_int_equal(hp_index_divide(m.index, hp_pgoff(600), &me), 0);
	assert_int_equal(hp_index_run(m.index, 512, 3000), 2048);
	assert_int_equal(hp_index_run(m.index, 700, 3000), 2048 - 188);
	model_end();
	store_end();
}

/* A place that has a node takes runs entry by entry. */
static void test_runs_where_a_node_is(void **state)
{
	unsigned order;

	store_make(64);
	model_make(4096);
	assert_int_equal(hp_index_prepare(m.index, RUN_SPAN, 2 * RUN_SPAN, HP_ORDER_FRAME, &me), 0);
	add_way(RUN_SPAN, 1);
	assert_int_equal(hp_index_store(m.index, RUN_SPAN, 0, HP_ORDER_RUN, &me), -EEXIST);
	check_all();
	model_insert(512, 3, 512, HP_ORDER_FRAME);
	hp_index_erase(m.index, RUN_SPAN, 2 * RUN_SPAN);
	remove_entries(RUN_SPAN, 2 * RUN_SPAN);
	check_all();
	prune(RUN_SPAN, 2 * RUN_SPAN);
	model_insert(512, 4, 512, HP_ORDER_RUN);
	hp_index_find(m.index, RUN_SPAN + 12345, &order);
	assert_int_equal(order, HP_ORDER_RUN);
	assert_int_equal(hp_index_divide(m.index, RUN_SPAN, &me), 0); /* it begins there */
	hp_index_find(m.index, RUN_SPAN, &order);
	assert_int_equal(order, HP_ORDER_RUN);
	check_all();
	model_end();
	store_end();
}

/* Its root has frames as entries, even if they are all of a GiB. */
static void test_runs_in_a_small_file(void **state)
{
	store_make(64);
	model_make(512);
	assert_int_equal(hp_index_store(m.index, 0, 0, HP_ORDER_RUN, &me), -EEXIST);
	check_all();
	model_insert(0, 77, 512, HP_ORDER_FRAME);
	assert_int_equal(hp_index_run(m.index, 0, 512), 512);
	assert_int_equal(hp_index_divide(m.index, FRAME_SPAN, &me), 0);
	assert_int_equal(m.node_count, 0);
	check_all();
	model_end();
	store_end();
}

/* ---- no memory -------------------------------------------------------------------------------------------------- */

static void expect_nothing_changed(int result, uint64_t pgoff)
{
	unsigned order;

	assert_int_equal(result, -ENOMEM);
	for (unsigned i = 0; i < m.count; i++) {
		check_find(m.entries[i].pgoff);
		check_find(m.entries[i].pgoff + span(m.entries[i].order) - 1);
	}
	assert_int_equal(hp_index_find(m.index, pgoff, &order), HP_NO_PFN);
	hp_index_prune(m.index, 0, UINT64_MAX, &me);
	store_drain();
	check_all();
}

static void test_no_page_is_left(void **state)
{
	static uint32_t hoard[64];
	uint64_t far = hp_pgoff(1u << 31);
	unsigned n, order;

	store_make(64);
	model_make(MOST_PAGES);
	model_store(RUN_SPAN, RUN_SPAN, HP_ORDER_RUN);
	/* Down to a base page there are four nodes to make. */
	for (uint32_t left = 0; left < 4; left++) {
		n = store_hoard(hoard, left);
		m.others = n;
		expect_nothing_changed(hp_index_store(m.index, far, 1, HP_ORDER_BASE, &me), far);
		expect_nothing_changed(hp_index_prepare(m.index, far, far + 1, HP_ORDER_BASE, &me), far);
		if (left < 3) {
			expect_nothing_changed(hp_index_store(m.index, far, 0, HP_ORDER_FRAME, &me), far);
			expect_nothing_changed(hp_index_insert(m.index, 1u << 31, 0, 1, &me), far);
		}
		if (left < 2) {
			expect_nothing_changed(hp_index_store(m.index, far, 0, HP_ORDER_RUN, &me), far);
			expect_nothing_changed(hp_index_insert(m.index, 1u << 31, 0, 512, &me), far);
		}
		store_unhoard(hoard, n);
		m.others = 0;
	}
	n = store_hoard(hoard, 0);
	assert_int_equal(hp_index_divide(m.index, RUN_SPAN + FRAME_SPAN, &me), -ENOMEM);
	hp_index_find(m.index, RUN_SPAN + FRAME_SPAN, &order);
	assert_int_equal(order, HP_ORDER_RUN);
	/* What needs no node can be done. */
	model_store(0, 0, HP_ORDER_RUN);
	assert_int_equal(hp_index_divide(m.index, RUN_SPAN, &me), 0);
	hp_index_erase(m.index, 0, m.end);
	store_unhoard(hoard, n);
	model_end();
	store_end();
}

/* ---- inserting at once ------------------------------------------------------------------------------------------ */

enum { INSERTERS = 4, READERS = 2, PLACES = 400, EACH = 8 };

static struct hp_index common;
static _Atomic uint32_t reached[INSERTERS]; /* places that are done */
static _Atomic bool stop;

/* Far enough from each other for nodes of all levels. */
static uint32_t place_page(unsigned place)
{
	return (uint32_t)(place % 4 * 512 + place / 4 % 10 * (1 << 18) + (uint64_t)(place / 40) * (1 << 27));
}

static hp_frame_id frame_for(uint32_t page)
{
	return (page * 7 + 1) & 0x7fffffff;
}

static void insert_one(unsigned inserter, uint32_t page)
{
	int result;

	if (inserter % 2)
		result = hp_index_insert(common, page, frame_for(page), 1, &me);
	else
		result = hp_index_store(common, hp_pgoff(page), hp_pgoff(frame_for(page)), HP_ORDER_FRAME, &me);
	thread_must(result == 0);
	thread_must(hp_index_lookup(common, page) == frame_for(page));
}

static void insert_all(unsigned inserter)
{
	unsigned spins = 0;

	for (unsigned place = 0; place < PLACES; place++) {
		/* All come to a place together: awake, as far as there are CPUs. */
		for (unsigned i = 0; i < INSERTERS; i++)
			while (atomic_load(&reached[i]) < place)
				if (++spins % 4096 == 0)
					sched_yield();
		for (uint32_t k = 0; k < EACH; k++)
			insert_one(inserter, place_page(place) + k * INSERTERS + inserter);
		atomic_store(&reached[inserter], place + 1);
	}
}

static void look_on(uint64_t *random)
{
	while (!atomic_load(&stop)) {
		unsigned place = (unsigned)random_below(random, PLACES),
			 inserter = (unsigned)random_below(random, INSERTERS);
		uint32_t page = place_page(place) + (uint32_t)random_below(random, EACH) * INSERTERS + inserter;
		bool done = atomic_load(&reached[inserter]) > place;
		hp_frame_id frame = hp_index_lookup(common, page);

		thread_must(frame == frame_for(page) || (!done && frame == HP_NO_FRAME));
		thread_must(!done || hp_index_run(common, page, 1) == 1);
		thread_must(!done || hp_index_next_page(common, page, page + 1) == page);
	}
}

static void *insert_or_look_on(void *argument)
{
	unsigned number = *(const unsigned *)argument;
	uint64_t random = number;

	domain_join();
	if (number < INSERTERS)
		insert_all(number);
	else
		look_on(&random);
	domain_leave();
	return NULL;
}

static void start(pthread_t *thread, void *(*run)(void *), void *argument)
{
	assert_int_equal(pthread_create(thread, NULL, run, argument), 0);
}

static void join(pthread_t thread)
{
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static void test_threads_insert_at_once(void **state)
{
	pthread_t threads[INSERTERS + READERS];
	unsigned numbers[INSERTERS + READERS];
	uint32_t nodes = 10 + 100 + PLACES; /* of levels 3 (the root is one above), 2 and 1 */

	store_make(2048);
	common = index_make(MOST_PAGES);
	atomic_store(&stop, false);
	for (unsigned i = 0; i < INSERTERS; i++)
		atomic_store(&reached[i], 0);
	for (unsigned i = 0; i < INSERTERS + READERS; i++) {
		numbers[i] = i;
		start(&threads[i], insert_or_look_on, &numbers[i]);
	}
	for (unsigned i = 0; i < INSERTERS; i++)
		join(threads[i]);
	atomic_store(&stop, true);
	for (unsigned i = INSERTERS; i < INSERTERS + READERS; i++)
		join(threads[i]);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	for (unsigned place = 0; place < PLACES; place++)
		for (uint32_t k = 0; k < INSERTERS * EACH; k++)
			assert_int_equal(hp_index_lookup(common, place_page(place) + k),
			                 frame_for(place_page(place) + k));
	assert_int_equal(pages.used, 1 + nodes);
	hp_index_destroy(common, &me);
	store_end();
}

/* ---- readers beside one who takes away -------------------------------------------------------------------------- */

enum { GIBS = 64, CHURN_STORE = 48, CHURN_NS = 1000000000 };

static _Atomic uint64_t lookups, hits;

/* Each GiB lies in frames of its own in a row, but not beside the next one's; so it can be one entry. */
static hp_frame_id churn_frame(uint32_t page)
{
	return page + (page / HP_REGION_FRAMES * 7 + 1) * HP_REGION_FRAMES;
}

/* GiBs far from each other, so that nodes of two levels come and go. */
static uint32_t churn_page(uint64_t gib)
{
	return (uint32_t)(gib % 4 * HP_REGION_FRAMES + gib / 4 * (1 << 18));
}

static void read_some(uint64_t *random, uint64_t *seen)
{
	uint64_t outer = hp_section_enter(&me);

	for (unsigned i = 0; i < 16; i++) {
		uint32_t page =
			churn_page(random_below(random, GIBS)) + (uint32_t)random_below(random, HP_REGION_FRAMES);
		hp_frame_id frame = hp_index_lookup(common, page);
		uint32_t next = hp_index_next_page(common, page, page + 2);

		thread_must(frame == HP_NO_FRAME || frame == churn_frame(page));
		*seen += frame != HP_NO_FRAME;
		thread_must(hp_index_run(common, page, 1024) <= HP_REGION_FRAMES - page % HP_REGION_FRAMES);
		thread_must(next >= page && next <= page + 2);
	}
	hp_section_leave(&me, outer);
}

static void *read_in_sections(void *argument)
{
	uint64_t random = *(const unsigned *)argument, seen = 0, n = 0;

	domain_join();
	for (; !atomic_load(&stop); n += 16)
		read_some(&random, &seen);
	atomic_fetch_add(&lookups, n);
	atomic_fetch_add(&hits, seen);
	domain_leave();
	return NULL;
}

/* One page or the whole GiB. False: nodes cannot be had while readers do not go on. */
static bool churn_in(uint32_t gib_page, uint64_t *random)
{
	bool whole = random_below(random, 2);
	uint32_t page = whole ? gib_page : gib_page + (uint32_t)random_below(random, HP_REGION_FRAMES);

	if (hp_index_insert(common, page, churn_frame(page), whole ? HP_REGION_FRAMES : 1, &me))
		return false;
	if (whole && random_below(random, 2)) /* or it stays in one piece */
		(void)hp_index_divide(common, hp_pgoff(page + 1), &me);
	return true;
}

/* Takes a GiB out: all at once, or in two halves if it is not one entry. */
static void churn_out(uint32_t gib_page, uint64_t *random)
{
	uint64_t pgoff = hp_pgoff(gib_page), middle = pgoff + RUN_SPAN / 2;

	if (random_below(random, 2) && hp_index_divide(common, middle, &me) == 0) {
		hp_index_erase(common, middle, pgoff + RUN_SPAN);
		hp_index_erase(common, pgoff, middle);
	} else {
		hp_index_erase(common, pgoff, pgoff + RUN_SPAN);
	}
	if (random_below(random, 2))
		hp_index_prune(common, pgoff, pgoff + RUN_SPAN, &me);
	else
		hp_index_prune(common, align_down(pgoff, 27), align_down(pgoff, 27) + span(27), &me);
}

static unsigned churn(int64_t ns, uint64_t *random)
{
	static bool in[GIBS];
	int64_t began = hp_now_ns();
	unsigned rounds = 0;

	memset(in, 0, sizeof(in));
	while (hp_now_ns() - began < ns) {
		uint64_t gib = random_below(random, GIBS);

		if (in[gib])
			churn_out(churn_page(gib), random);
		in[gib] = !in[gib] && churn_in(churn_page(gib), random);
		rounds++;
	}
	return rounds;
}

/* There are so few pages that each node is soon another one. */
static void test_readers_beside_a_writer(void **state)
{
	uint64_t random = random_seed();
	pthread_t threads[READERS];
	unsigned numbers[READERS], rounds;

	store_make(CHURN_STORE);
	common = index_make((uint64_t)1 << 27);
	atomic_store(&stop, false);
	atomic_store(&lookups, 0);
	atomic_store(&hits, 0);
	for (unsigned i = 0; i < READERS; i++) {
		numbers[i] = i;
		start(&threads[i], read_in_sections, &numbers[i]);
	}
	rounds = churn(CHURN_NS, &random);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < READERS; i++)
		join(threads[i]);
	fprintf(stderr, "%u changes beside %lu lookups, of which %lu found a frame\n", rounds,
	        (unsigned long)atomic_load(&lookups), (unsigned long)atomic_load(&hits));
	assert_int_equal(atomic_load(&threads_wrong), 0);
	hp_index_erase(common, 0, hp_pgoff(1 << 27));
	for (unsigned i = 0; i < 2; i++) {
		hp_index_prune(common, 0, UINT64_MAX, &me);
		store_drain();
	}
	assert_int_equal(pages.used, 1);
	hp_index_destroy(common, &me);
	store_end();
}

/* The same where both sides need fences. */
static void test_fenced_readers_beside_a_writer(void **state)
{
	shared->shared.fenced = 1;
	test_readers_beside_a_writer(state);
}

/* ---- readers that do not go on ---------------------------------------------------------------------------------- */

enum { ENTERED, LEAVE, MANY = 300 };

static void *stop_in_a_section(void *argument)
{
	bool leaves = *(const bool *)argument;
	uint64_t outer;

	domain_join();
	outer = hp_section_enter(&me);
	step_set(ENTERED, 1);
	if (!leaves)
		return NULL;
	step_wait(LEAVE, 1);
	hp_section_leave(&me, outer);
	domain_leave();
	return NULL;
}

static void expect_frames(bool present)
{
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(hp_index_lookup(common, i * 512 + i), present ? frame_for(i) : HP_NO_FRAME);
}

static void insert_many(void)
{
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(hp_index_insert(common, i * 512 + i, frame_for(i), 1, &me), 0);
	expect_frames(true);
}

static void remove_many(void)
{
	hp_index_erase(common, 0, MANY * RUN_SPAN);
	hp_index_prune(common, 0, MANY * RUN_SPAN, &me);
	expect_frames(false);
}

static void test_a_stopped_reader_holds_up_few_pages(void **state)
{
	bool leaves = true;
	pthread_t thread;

	store_make(1024);
	common = index_make(1 << 18);
	insert_many();
	start(&thread, stop_in_a_section, &leaves);
	step_wait(ENTERED, 1);
	for (unsigned round = 0; round < 50; round++) {
		remove_many();
		assert_int_equal(pages.waiting, HP_PAGES_LIMBO);
		/* Nodes that found no room there are still linked, and used again. */
		assert_int_equal(pages.used, 1 + MANY + (round > 0 ? HP_PAGES_LIMBO : 0));
		insert_many();
		assert_int_equal(pages.used, 1 + MANY + HP_PAGES_LIMBO);
	}
	remove_many();
	step_set(LEAVE, 1);
	join(thread);
	hp_index_prune(common, 0, MANY * RUN_SPAN, &me);
	store_drain();
	assert_int_equal(pages.used, 1);
	hp_index_destroy(common, &me);
	store_end();
}

static void test_a_dead_reader_holds_up_nothing(void **state)
{
	bool leaves = false;
	pthread_t thread;

	store_make(1024);
	common = index_make(1 << 18);
	insert_many();
	start(&thread, stop_in_a_section, &leaves);
	join(thread);
	remove_many();
	store_drain();
	assert_int_equal(pages.used, 1);
	hp_index_destroy(common, &me);
	store_end();
}

/* Who stopped after it was taken away does not hold it up. */
static void test_a_later_reader_holds_up_nothing(void **state)
{
	bool leaves = true;
	pthread_t thread;

	store_make(1024);
	common = index_make(1 << 18);
	insert_many();
	remove_many();
	store_drain(); /* begins a new epoch */
	insert_many();
	hp_index_erase(common, 0, 100 * RUN_SPAN);
	hp_index_prune(common, 0, 100 * RUN_SPAN, &me);
	(void)hp_section_oldest(&domain);
	start(&thread, stop_in_a_section, &leaves);
	step_wait(ENTERED, 1);
	store_drain();
	assert_int_equal(pages.used, 1 + MANY - 100);
	step_set(LEAVE, 1);
	join(thread);
	hp_index_destroy(common, &me);
	store_end();
}

/* ---- measurements ----------------------------------------------------------------------------------------------- */

enum { MEASURED = 1 << 19 }; /* 1 TiB */

static double ns_each(int64_t since, unsigned n)
{
	return (double)(hp_now_ns() - since) / n;
}

/* Only with HP_TEST_MEASURE=1: what nodes and lookups of 1 TiB cost, beside a flat table. */
static void test_measure(void **state)
{
	static uint32_t flat[MEASURED];
	uint32_t sum = 0;
	uint64_t random = 1;
	int64_t at;

	if (!env_number("HP_TEST_MEASURE", 0))
		skip();
	store_make(2048);
	common = index_make(MEASURED);
	at = hp_now_ns();
	for (uint32_t i = 0; i < MEASURED; i++)
		(void)hp_index_insert(common, i, i ^ 5, 1, &me);
	printf("insert, frame by frame: %.1f ns\n", ns_each(at, MEASURED));
	printf("nodes: %u, %.2f bytes a frame\n", pages.used, (double)pages.used * HP_BASE_PAGE_SIZE / MEASURED);
	at = hp_now_ns();
	for (uint32_t i = 0; i < MEASURED; i++)
		atomic_store_explicit((_Atomic uint32_t *)&flat[i], i ^ 5, memory_order_release);
	printf("flat table, insert: %.1f ns\n", ns_each(at, MEASURED));
	at = hp_now_ns();
	for (uint32_t i = 0; i < MEASURED; i++)
		sum += hp_index_lookup(common, i);
	printf("lookup, in order: %.1f ns\n", ns_each(at, MEASURED));
	at = hp_now_ns();
	for (uint32_t i = 0; i < MEASURED; i++)
		sum += atomic_load_explicit((_Atomic uint32_t *)&flat[i], memory_order_acquire);
	printf("flat table, in order: %.1f ns\n", ns_each(at, MEASURED));
	at = hp_now_ns();
	for (uint32_t i = 0; i < MEASURED; i++) /* each waits for the one before */
		sum += hp_index_lookup(common, (uint32_t)((random_next(&random) ^ sum) % MEASURED));
	printf("lookup, at random: %.1f ns\n", ns_each(at, MEASURED));
	at = hp_now_ns();
	for (uint32_t i = 0; i < MEASURED; i++) {
		uint64_t outer = hp_section_enter(&me);

		sum += hp_index_lookup(common, (uint32_t)((random_next(&random) ^ sum) % MEASURED));
		hp_section_leave(&me, outer);
	}
	printf("lookup, at random, each in a section: %.1f ns\n", ns_each(at, MEASURED));
	at = hp_now_ns();
	for (uint32_t i = 0; i < MEASURED; i++)
		sum += atomic_load_explicit((_Atomic uint32_t *)&flat[(random_next(&random) ^ sum) % MEASURED],
		                            memory_order_acquire);
	printf("flat table, at random: %.1f ns (%u)\n", ns_each(at, MEASURED), sum);
	at = hp_now_ns();
	hp_index_erase(common, 0, hp_pgoff(MEASURED));
	printf("erase: %.1f ns\n", ns_each(at, MEASURED));
	at = hp_now_ns();
	hp_index_prune(common, 0, hp_pgoff(MEASURED), &me);
	printf("prune: %.1f ns a node\n", ns_each(at, MEASURED / 512));
	for (uint32_t i = 0; i < MEASURED; i += 512)
		(void)hp_index_insert(common, i, i, 512, &me);
	store_drain();
	printf("in runs of 1 GiB: %u nodes\n", pages.used);
	hp_index_destroy(common, &me);
	store_end();
}

#define in_domain(test) cmocka_unit_test_setup_teardown(test, domain_setup, domain_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		in_domain(test_levels),
		in_domain(test_random_operations_are_as_in_the_model),
		in_domain(test_random_operations_with_few_pages),
		in_domain(test_first_and_last_page_of_the_largest_file),
		in_domain(test_runs_across_entries_of_all_levels),
		in_domain(test_runs_where_a_node_is),
		in_domain(test_runs_in_a_small_file),
		in_domain(test_no_page_is_left),
		in_domain(test_threads_insert_at_once),
		in_domain(test_readers_beside_a_writer),
		in_domain(test_fenced_readers_beside_a_writer),
		in_domain(test_a_stopped_reader_holds_up_few_pages),
		in_domain(test_a_dead_reader_holds_up_nothing),
		in_domain(test_a_later_reader_holds_up_nothing),
		in_domain(test_measure),
	};
	const char *only = getenv("HP_TEST_ONLY");

	if (only)
		cmocka_set_test_filter(only);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
