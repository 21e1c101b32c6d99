/* SPDX-License-Identifier: MIT */
/*
 * The sim backend by itself: records, tags, budgets and kernel mappings.
 */
#include "sim_forms.h"

#include <stdlib.h>
#include <string.h>

static int setup(void **state)
{
	return start(&(struct hp_sim_config){.hugetlb_bytes = TIB});
}

static int setup_budgets(void **state)
{
	return start(&(struct hp_sim_config){
		.hugetlb_bytes = 8 * FRAME, .cgroup_bytes = 6 * FRAME, .memory_bytes = 4 * FRAME});
}

static int setup_few_maps(void **state)
{
	return start(&(struct hp_sim_config){.hugetlb_bytes = TIB, .max_map_count = 6});
}

static int setup_small_span(void **state)
{
	return start(&(struct hp_sim_config){.hugetlb_bytes = TIB, .address_bytes = 16 * FRAME});
}

static int setup_large(void **state)
{
	return start(&(struct hp_sim_config){.hugetlb_bytes = 16 * TIB, .address_bytes = 64 * TIB});
}

static int setup_no_thp(void **state)
{
	return start(&(struct hp_sim_config){.no_thp = true, .table_sharing = true});
}

/* ---- Contents -------------------------------------------------------------------------------------------------- */

static void test_tags(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, 3 * FRAME, &segment);

	assert_int_equal(load(address), 0);
	store(address + FRAME + 4096, 7);
	store(address + 3 * FRAME - 1, 8);
	assert_int_equal(load(address + FRAME), 0);
	assert_int_equal(load(address + FRAME + 8191), 7); /* any byte of the base page */
	assert_int_equal(load(address + FRAME + 8192), 0);
	assert_int_equal(load(address + 3 * FRAME - 4096), 8);
	expect_at(address + FRAME + 5, segment, FRAME + 5);
	unmap(address, 3 * FRAME);
	destroy_segment(segment);
}

static void test_two_mappings_share(void **state)
{
	hp_segment segment;
	char *one = make_mapping(HP_BACKING_THP, 4 * FRAME, &segment);
	char *two = reserve(2 * FRAME, FRAME, 0);

	assert_int_equal(map(two, 2 * FRAME, HP_PROT_READ, segment, 2 * FRAME), 0);
	store(one + 3 * FRAME, 5);
	assert_int_equal(load(two + FRAME), 5);
	assert_int_equal(hp_sim_store(os, two, 1), -EFAULT);
	/* The frames of a destroyed segment stay with its mappings. */
	destroy_segment(segment);
	unmap(one, 4 * FRAME);
	assert_int_equal(load(two + FRAME), 5);
	unmap(two, 2 * FRAME);
	expect_trap(two);
}

static void test_punch_and_zero(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, 4 * FRAME, &segment);

	for (int i = 0; i < 4; i++) {
		store(address + i * FRAME, 1);
		store(address + i * FRAME + FRAME - 1, 2);
	}
	assert_int_equal(os->ops->segment_punch(os, segment, FRAME, FRAME), 0);
	os->ops->zero(os, address + 2 * FRAME, FRAME);
	for (int i = 0; i < 4; i++) {
		bool kept = i == 0 || i == 3;

		assert_int_equal(load(address + i * FRAME), kept ? 1 : 0);
		assert_int_equal(load(address + i * FRAME + FRAME - 1), kept ? 2 : 0);
	}
	assert_int_equal(os->ops->segment_punch(os, segment, 0, 5 * FRAME), -EINVAL);
	assert_int_equal(os->ops->segment_punch(os, segment, 4096, FRAME), -EINVAL);
	unmap(address, 4 * FRAME);
	destroy_segment(segment);
	assert_int_equal(os->ops->segment_punch(os, segment, 0, FRAME), -EBADF);
}

static void test_backed(void **state)
{
	enum { PAGES = 4 * PAGES_PER_FRAME };
	hp_segment segment, other;
	char *one = make_mapping(HP_BACKING_BASE, 4 * FRAME, &segment);
	char *two = reserve(4 * FRAME, FRAME, 0);
	unsigned char answer[PAGES + 1];

	assert_int_equal(map(two, 4 * FRAME, RW, segment, 0), 0);
	assert_int_equal(count_backed(segment, 0, PAGES), 0);
	assert_int_equal(os->ops->populate(os, one + FRAME, FRAME), 0);
	assert_int_equal(load(one), 0);
	store(two + 2 * FRAME + PAGE, 0);
	assert_int_equal(count_backed(segment, 0, PAGES), PAGES_PER_FRAME + 2);
	assert_int_equal(os->ops->backed(os, segment, 0, 4 * FRAME, answer), 0);
	for (uint64_t i = 0; i < PAGES; i++)
		assert_int_equal(answer[i], i == 0 || i / PAGES_PER_FRAME == 1 || i == 2 * PAGES_PER_FRAME + 1);
	/* A range that begins and ends within what is there, and one that does within what is not. */
	memset(answer, 2, sizeof(answer));
	assert_int_equal(os->ops->backed(os, segment, FRAME + 5 * PAGE, FRAME - 3 * PAGE, answer), 0);
	for (uint64_t i = 0; i < PAGES_PER_FRAME - 3; i++)
		assert_int_equal(answer[i], i < PAGES_PER_FRAME - 5 || i == PAGES_PER_FRAME - 4);
	assert_int_equal(answer[PAGES_PER_FRAME - 3], 2);
	assert_int_equal(os->ops->backed(os, segment, 2 * FRAME, 3 * PAGE, answer), 0);
	assert_true(!answer[0] && answer[1] && !answer[2]);

	/* No mapping is needed. */
	assert_int_equal(os->ops->segment_punch(os, segment, 0, FRAME + 3 * PAGE), 0);
	assert_int_equal(os->ops->vacate(os, two, 4 * FRAME), 0);
	unmap(one, 4 * FRAME);
	unmap(two, 4 * FRAME);
	assert_int_equal(count_backed(segment, 0, PAGES), PAGES_PER_FRAME - 3 + 1);
	assert_int_equal(os->ops->segment_punch(os, segment, 0, 4 * FRAME), 0);
	assert_int_equal(count_backed(segment, 0, PAGES), 0);

	assert_int_equal(os->ops->backed(os, segment, 2, PAGE, answer), -EINVAL);
	assert_int_equal(os->ops->backed(os, segment, PAGE, PAGE + 2, answer), -EINVAL);
	assert_int_equal(os->ops->backed(os, segment, 4 * FRAME - PAGE, 2 * PAGE, answer), -EINVAL);
	destroy_segment(segment);
	assert_int_equal(os->ops->backed(os, segment, 0, PAGE, answer), -EBADF);
	other = make_segment(HP_BACKING_HUGETLB, FRAME);
	assert_int_equal(os->ops->backed(os, other, 0, PAGE, answer), -EINVAL);
	destroy_segment(other);
}

/* What a private mapping has copied is not the segment's. */
static void test_backed_and_private(void **state)
{
	hp_segment segment = make_segment(HP_BACKING_THP, 2 * FRAME);
	char *address = reserve(2 * FRAME, FRAME, 0);

	assert_int_equal(os->ops->map(os, address, 2 * FRAME, RW, segment, 0, HP_OS_MAP_REPLACE | HP_OS_MAP_PRIVATE),
	                 0);
	store(address, 1);
	assert_int_equal(os->ops->segment_punch(os, segment, 0, 2 * FRAME), 0);
	assert_int_equal(load(address), 1);
	assert_int_equal(count_backed(segment, 0, 2 * PAGES_PER_FRAME), 0);
	unmap(address, 2 * FRAME);
	destroy_segment(segment);
}

/* Others come and go by the frame, but are zeroed and gathered by the base page too. */
static void test_base_pages_of_frames(void **state)
{
	static const hp_backing backings[] = {HP_BACKING_HUGETLB, HP_BACKING_THP};

	for (int i = 0; i < 2; i++) {
		hp_segment segment;
		char *address = make_mapping(backings[i], 3 * FRAME, &segment);

		store(address + FRAME, 1);
		store(address + FRAME + PAGE, 2);
		store(address + 2 * FRAME - PAGE, 3);
		if (backings[i] == HP_BACKING_THP)
			assert_int_equal(count_backed(segment, 0, 3 * PAGES_PER_FRAME), PAGES_PER_FRAME);
		assert_int_equal(os->ops->segment_punch(os, segment, FRAME, PAGE), -EINVAL);
		assert_int_equal(os->ops->segment_punch(os, segment, FRAME + PAGE, FRAME), -EINVAL);
		os->ops->zero(os, address + FRAME + PAGE, PAGE);
		assert_int_equal(load(address + FRAME), 1);
		assert_int_equal(load(address + FRAME + PAGE), 0);
		if (backings[i] == HP_BACKING_THP) {
			assert_int_equal(gather(address + PAGE, address + FRAME, segment, FRAME, 2 * PAGE), 0);
		} else {
			assert_int_equal(gather(address + PAGE, address + FRAME, segment, FRAME, 2 * PAGE), -EINVAL);
			assert_int_equal(scatter(segment, PAGE, address + FRAME, 2 * PAGE), -EINVAL);
			store(address + PAGE, 1);
		}
		assert_int_equal(load(address + PAGE), 1);
		assert_int_equal(load(address + 2 * PAGE), 0);
		/* What a part left dirty, the whole finds. */
		os->ops->zero(os, address + FRAME + PAGE, FRAME);
		assert_int_equal(load(address + FRAME), 1);
		assert_int_equal(load(address + 2 * FRAME - PAGE), 0);
		os->ops->zero(os, address, 3 * FRAME);
		assert_int_equal(load(address + FRAME), 0);
		assert_int_equal(load(address + PAGE), 0);
		if (backings[i] == HP_BACKING_THP)
			assert_int_equal(count_backed(segment, 0, 3 * PAGES_PER_FRAME), 3 * PAGES_PER_FRAME);
		unmap(address, 3 * FRAME);
		destroy_segment(segment);
	}
}

/* Random work on base pages against a table of what each has to hold; 0 is absent, a zeroed page is ZEROED. */
static void test_base_pages_random(void **state)
{
	enum { PAGES = 3 * PAGES_PER_FRAME, RUN = 600, ZEROED = 1 };
	static uint64_t holds[PAGES];
	static unsigned char answer[PAGES];
	hp_segment segment, buffer_segment;
	char *address = make_mapping(HP_BACKING_BASE, 3 * FRAME, &segment);
	char *buffer = make_mapping(HP_BACKING_THP, 3 * FRAME, &buffer_segment);
	unsigned seed = 6;

	memset(holds, 0, sizeof(holds));
	for (uint64_t round = 0; round < 5000; round++) {
		uint64_t first = (unsigned)rand_r(&seed) % PAGES, other = (unsigned)rand_r(&seed) % PAGES;
		uint64_t count = 1 + (unsigned)rand_r(&seed) % RUN;

		if (first + count > PAGES || other + count > PAGES)
			continue;
		switch (rand_r(&seed) % 5) {
		case 0:
			assert_int_equal(load(address + first * PAGE), holds[first] > ZEROED ? holds[first] : 0);
			if (!holds[first])
				holds[first] = ZEROED;
			break;
		case 1:
			assert_int_equal(os->ops->segment_punch(os, segment, first * PAGE, count * PAGE), 0);
			memset(holds + first, 0, count * sizeof(holds[0]));
			break;
		case 2:
			os->ops->zero(os, address + first * PAGE, count * PAGE);
			for (uint64_t i = 0; i < count; i++)
				holds[first + i] = ZEROED;
			break;
		case 3: /* The target, which may overlap, loses what it has, as scatter wants it. */
			assert_int_equal(gather(buffer, round % 2 ? address + other * PAGE : NULL, segment,
			                        other * PAGE, count * PAGE),
			                 0);
			assert_int_equal(os->ops->segment_punch(os, segment, first * PAGE, count * PAGE), 0);
			assert_int_equal(scatter(segment, first * PAGE, buffer, count * PAGE), 0);
			memmove(holds + first, holds + other, count * sizeof(holds[0]));
			for (uint64_t i = 0; i < count; i++)
				if (holds[first + i] == ZEROED)
					holds[first + i] = 0;
			break;
		case 4:
			for (uint64_t i = 0; i < count; i++) {
				holds[first + i] = round + 2;
				store(address + (first + i) * PAGE, round + 2);
			}
			break;
		}
		assert_int_equal(os->ops->backed(os, segment, 0, 3 * FRAME, answer), 0);
		for (int i = 0; i < PAGES; i++)
			assert_int_equal(answer[i], holds[i] != 0);
	}
	for (uint64_t i = 0; i < PAGES; i++)
		assert_int_equal(load(address + i * PAGE), holds[i] > ZEROED ? holds[i] : 0);
	unmap(address, 3 * FRAME);
	unmap(buffer, 3 * FRAME);
	destroy_segment(segment);
	destroy_segment(buffer_segment);
}

/* A segment with tags that say which page it is, in every third page from 0 on, and in all of the second frame. */
static uint64_t sparse_tag(uint64_t page)
{
	return page / PAGES_PER_FRAME == 1 || page % 3 == 0 ? page + 1 : 0;
}

static char *make_sparse(uint64_t frames, hp_segment *segment)
{
	char *address = make_mapping(HP_BACKING_BASE, frames * FRAME, segment);

	for (uint64_t i = 0; i < frames * PAGES_PER_FRAME; i++)
		if (sparse_tag(i))
			store(address + i * PAGE, sparse_tag(i));
	return address;
}

static const struct {
	uint64_t first, pages;
} parts[] = {
	{0, 3 * PAGES_PER_FRAME},
	{PAGES_PER_FRAME, PAGES_PER_FRAME},
	{1, PAGES_PER_FRAME},
	{PAGES_PER_FRAME - 5, PAGES_PER_FRAME + 10},
	{3, 1},
	{4, 1},
	{4, 2},
	{3 * PAGES_PER_FRAME - 1, 1},
};
enum { PARTS = sizeof(parts) / sizeof(parts[0]) };

static void gather_parts(char *to, const char *mapping, hp_segment segment)
{
	for (int p = 0; p < PARTS; p++) {
		const uint64_t first = parts[p].first, pages = parts[p].pages;

		for (uint64_t i = 0; i < 4 * PAGES_PER_FRAME; i++)
			store(to + i * PAGE, 7777);
		errno = 5;
		assert_int_equal(
			gather(to + PAGE, mapping ? mapping + first * PAGE : NULL, segment, first * PAGE, pages * PAGE),
			0);
		assert_int_equal(errno, 5);
		for (uint64_t i = 0; i < pages; i++)
			assert_int_equal(load(to + (1 + i) * PAGE), sparse_tag(first + i));
		assert_int_equal(load(to), 7777);
		assert_int_equal(load(to + (1 + pages) * PAGE), 7777);
	}
}

static void test_gather(void **state)
{
	hp_segment segment, target, other;
	char *address = make_sparse(3, &segment);
	char *to = make_mapping(HP_BACKING_HUGETLB, 4 * FRAME, &target);
	char *reader = reserve(3 * FRAME, FRAME, 0);
	char *wrong = make_mapping(HP_BACKING_BASE, FRAME, &other);
	const uint64_t backed = count_backed(segment, 0, 3 * PAGES_PER_FRAME);

	assert_int_equal(map(reader, 3 * FRAME, HP_PROT_READ, segment, 0), 0);
	gather_parts(to, NULL, segment);
	gather_parts(to, address, segment);
	gather_parts(to, reader, segment);
	assert_int_equal(os->ops->protect(os, address, 2 * FRAME, HP_PROT_READ), 0);
	gather_parts(to, address, segment);
	assert_int_equal(count_backed(segment, 0, 3 * PAGES_PER_FRAME), backed);

	/* What was punched, and what nobody has mapped. */
	unmap(reader, 3 * FRAME);
	unmap(address, 3 * FRAME);
	gather_parts(to, NULL, segment);
	assert_int_equal(os->ops->segment_punch(os, segment, FRAME, PAGE), 0);
	assert_int_equal(gather(to, NULL, segment, FRAME, 2 * PAGE), 0);
	assert_int_equal(load(to), 0);
	assert_int_equal(load(to + PAGE), sparse_tag(PAGES_PER_FRAME + 1));
	assert_int_equal(count_backed(segment, 0, 3 * PAGES_PER_FRAME), backed - 1);

	errno = 5;
	assert_int_equal(gather(to, wrong, segment, 0, PAGE), -EINVAL); /* another segment's */
	assert_int_equal(gather(to, wrong, segment, PAGE, PAGE), -EINVAL);
	assert_int_equal(gather(to, wrong + PAGE, other, 0, PAGE), -EINVAL); /* another part */
	assert_int_equal(gather(to, NULL, segment, 3 * FRAME, PAGE), -EINVAL);
	assert_int_equal(gather(to, NULL, segment, 3 * FRAME - PAGE, 2 * PAGE), -EINVAL);
	assert_int_equal(gather(wrong, NULL, target, 0, PAGE), -EINVAL); /* hugetlb */
	assert_int_equal(count_backed(other, 0, PAGES_PER_FRAME), 0);
	destroy_segment(segment);
	assert_int_equal(gather(to, NULL, segment, 0, PAGE), -EBADF);
	assert_int_equal(gather(to, NULL, HP_NO_SEGMENT, 0, PAGE), -EBADF);
	assert_int_equal(errno, 5);
	unmap(to, 4 * FRAME);
	unmap(wrong, FRAME);
	destroy_segment(target);
	destroy_segment(other);
}

static void test_scatter(void **state)
{
	hp_segment segment, source;
	char *from = make_mapping(HP_BACKING_HUGETLB, 3 * FRAME, &source);

	for (uint64_t i = 0; i < 3 * PAGES_PER_FRAME; i++)
		store(from + i * PAGE, sparse_tag(i));
	segment = make_segment(HP_BACKING_BASE, 3 * FRAME);
	for (int p = 0; p < PARTS; p++) {
		const uint64_t first = parts[p].first, end = first + parts[p].pages;
		char *address;

		errno = 5;
		assert_int_equal(scatter(segment, first * PAGE, from + first * PAGE, (end - first) * PAGE), 0);
		assert_int_equal(errno, 5);
		for (uint64_t i = 0; i < 3 * PAGES_PER_FRAME; i++)
			assert_int_equal(count_backed(segment, i, 1), i >= first && i < end && sparse_tag(i));
		address = reserve(3 * FRAME, FRAME, 0);
		assert_int_equal(map(address, 3 * FRAME, HP_PROT_READ, segment, 0), 0);
		for (uint64_t i = first; i < end; i++)
			assert_int_equal(load(address + i * PAGE), sparse_tag(i));
		unmap(address, 3 * FRAME);
		assert_int_equal(os->ops->segment_punch(os, segment, 0, 3 * FRAME), 0);
	}
	errno = 5;
	assert_int_equal(scatter(segment, 3 * FRAME, from, PAGE), -EINVAL);
	assert_int_equal(scatter(source, 0, from + FRAME, PAGE), -EINVAL); /* hugetlb */
	destroy_segment(segment);
	assert_int_equal(scatter(segment, 0, from, PAGE), -EBADF);
	assert_int_equal(scatter(HP_NO_SEGMENT, 0, from, PAGE), -EBADF);
	assert_int_equal(errno, 5);
	unmap(from, 3 * FRAME);
	destroy_segment(source);
}

/* Of 4 frames of memory: what is zero costs nothing, and gather brings none beside its target. */
static void test_scatter_budget(void **state)
{
	enum { PAGES = 4 * PAGES_PER_FRAME };
	hp_segment source, segment = make_segment(HP_BACKING_BASE, 8 * FRAME);
	char *from = make_mapping(HP_BACKING_HUGETLB, FRAME, &source);

	for (uint64_t i = 0; i < PAGES_PER_FRAME; i++)
		store(from + i * PAGE, i % 2);
	for (uint64_t frame = 0; frame < 7; frame++)
		assert_int_equal(scatter(segment, frame * FRAME, from, FRAME), 0);
	store(from, 1);
	assert_int_equal(scatter(segment, 7 * FRAME, from, FRAME), -ENOMEM); /* one too many */
	assert_int_equal(count_backed(segment, 0, 8 * PAGES_PER_FRAME), PAGES);
	assert_int_equal(gather(from, NULL, segment, 6 * FRAME, FRAME), 0);
	for (uint64_t i = 0; i < PAGES_PER_FRAME; i++)
		assert_int_equal(load(from + i * PAGE), i % 2);
	assert_int_equal(count_backed(segment, 0, 8 * PAGES_PER_FRAME), PAGES);
	/* With a page given back, it is done. */
	assert_int_equal(os->ops->segment_punch(os, segment, 7 * FRAME, FRAME), 0);
	assert_int_equal(scatter(segment, 7 * FRAME, from, FRAME), 0);
	unmap(from, FRAME);
	destroy_segment(source);
	destroy_segment(segment);
}

/* A new segment has nothing of the one that had its number before. */
static void test_segments_begin_zeroed(void **state)
{
	for (int i = 0; i < 3; i++) {
		hp_segment segment;
		char *address = make_mapping(HP_BACKING_BASE, FRAME, &segment);

		assert_int_equal(load(address), 0);
		store(address, 9);
		unmap(address, FRAME);
		destroy_segment(segment);
	}
}

static void test_protection(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, FRAME, &segment);
	uint64_t tag;

	store(address, 3);
	assert_int_equal(map(address, FRAME, HP_PROT_READ, segment, 0), 0);
	assert_int_equal(load(address), 3);
	assert_int_equal(hp_sim_store(os, address, 4), -EFAULT);
	assert_int_equal(os->ops->populate(os, address, FRAME), -EINVAL);
	assert_int_equal(map(address, FRAME, HP_PROT_WRITE, segment, 0), 0);
	store(address, 4);
	assert_int_equal(hp_sim_load(os, address, &tag), -EFAULT);
	assert_int_equal(map(address, FRAME, 0, segment, 0), 0);
	expect_trap(address);
	expect_at(address, segment, 0);
	unmap(address, FRAME);
	assert_int_equal(os->ops->populate(os, address, FRAME), -ENOMEM);
	destroy_segment(segment);
}

static void test_protect(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, 4 * FRAME, &segment);
	uint64_t offset;

	store(address + FRAME, 3);
	assert_int_equal(os->ops->protect(os, address + FRAME, 2 * FRAME, HP_PROT_READ), 0);
	assert_int_equal(load(address + FRAME), 3);
	assert_int_equal(hp_sim_store(os, address + 2 * FRAME, 4), -EFAULT);
	store(address, 1);
	store(address + 3 * FRAME, 1);
	assert_int_equal(os->ops->touch(os, address + FRAME, FRAME), 0);
	assert_int_equal(os->ops->protect(os, address + FRAME, FRAME, 0), 0);
	expect_trap(address + FRAME);
	expect_at(address + FRAME, segment, FRAME);
	assert_int_equal(os->ops->touch(os, address + FRAME, FRAME), -EINVAL);
	assert_int_equal(os->ops->protect(os, address, 4 * FRAME, RW), 0);
	store(address + FRAME, 5);

	assert_int_equal(os->ops->vacate(os, address + FRAME, FRAME), 0);
	assert_int_equal(os->ops->protect(os, address, 4 * FRAME, 0), -ENOMEM);
	store(address, 1); /* it had no effect */
	unmap(address, 4 * FRAME);
	assert_int_equal(os->ops->protect(os, address, FRAME, RW), -ENOMEM);
	assert_int_equal(os->ops->protect(os, address, 4096, RW), -EINVAL);
	assert_int_equal(os->ops->protect(os, address, FRAME, 4), -EINVAL);
	assert_int_equal(os->ops->touch(os, address, FRAME), -ENOMEM);
	assert_int_equal(os->ops->keep_from_children(os, address, FRAME), 0);
	assert_int_equal(hp_sim_mapped_at(os, address, &offset), HP_NO_SEGMENT);
	destroy_segment(segment);
}

static void expect_end(char *address)
{
	uint64_t tag;

	assert_int_equal(hp_sim_load(os, address, &tag), -ENXIO);
	assert_int_equal(hp_sim_store(os, address, 1), -ENXIO);
	expect_at(address, HP_NO_SEGMENT, 0);
}

static int end(char *address, uint64_t length)
{
	return os->ops->end(os, address, length, HP_NO_SEGMENT, 100000);
}

static void test_end(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, 6 * FRAME, &segment);

	store(address, 1);
	store(address + 2 * FRAME, 2);
	assert_int_equal(end(address + FRAME, 2 * FRAME), 0);
	expect_maps(3);
	expect_end(address + FRAME);
	expect_end(address + 3 * FRAME - 1);
	assert_int_equal(load(address), 1);
	assert_int_equal(load(address + 3 * FRAME), 0);
	assert_int_equal(os->ops->populate(os, address + FRAME, FRAME), -EFAULT);
	assert_int_equal(os->ops->touch(os, address + FRAME, FRAME), -EFAULT);
	assert_int_equal(os->ops->collapse(os, address + FRAME, FRAME), -EINVAL);
	assert_int_equal(os->ops->map(os, address + FRAME, FRAME, RW, segment, 0, 0), -EEXIST);
	/* A mapping as any: it does not merge, is split, moved, protected, and replaced. */
	assert_int_equal(end(address + 3 * FRAME, FRAME), 0);
	expect_maps(4);
	assert_int_equal(os->ops->move(os, address + FRAME, address + 4 * FRAME, FRAME), 0);
	expect_maps(5);
	expect_end(address + 4 * FRAME);
	expect_trap(address + FRAME);
	assert_int_equal(os->ops->protect(os, address + 4 * FRAME, FRAME, 0), 0);
	expect_trap(address + 4 * FRAME);
	assert_int_equal(map(address + 2 * FRAME, FRAME, RW, segment, 2 * FRAME), 0);
	assert_int_equal(load(address + 2 * FRAME), 2);
	assert_int_equal(end(address, 4096), -EINVAL);
	assert_int_equal(end(NULL, FRAME), -EINVAL);
	/* Nothing but the addresses is held by it. */
	assert_int_equal(end(address, 6 * FRAME), 0);
	expect_maps(1);
	destroy_segment(segment);
	expect_end(address);
	unmap(address, 6 * FRAME);
}

/* ---- Private mappings ------------------------------------------------------------------------------------------ */

static int map_private(char *address, uint64_t length, unsigned prot, hp_segment segment, uint64_t offset)
{
	return os->ops->map(os, address, length, prot, segment, offset, HP_OS_MAP_REPLACE | HP_OS_MAP_PRIVATE);
}

static void test_private(void **state)
{
	hp_segment segment;
	char *shared = make_mapping(HP_BACKING_HUGETLB, 4 * FRAME, &segment);
	char *own = reserve(3 * FRAME, FRAME, 0);
	char *other = reserve(3 * FRAME, FRAME, 0);

	assert_int_equal(map_private(own, 3 * FRAME, RW, segment, FRAME), 0);
	assert_int_equal(map_private(other, 3 * FRAME, RW, segment, FRAME), 0);
	store(shared + FRAME, 1);
	store(shared + FRAME + 4096, 2);
	assert_int_equal(load(own), 1); /* as long as nothing was stored */
	store(own, 11);
	assert_int_equal(load(own), 11);
	assert_int_equal(load(own + 4096), 2);
	assert_int_equal(load(shared + FRAME), 1);
	assert_int_equal(load(other), 1);
	store(shared + FRAME + 4096, 3);
	assert_int_equal(load(own + 4096), 2);
	assert_int_equal(load(other + 4096), 3);
	expect_at(own, segment, FRAME);

	/* A store is what zero and populate do too, and what a punch leaves alone. */
	os->ops->zero(os, other, FRAME);
	assert_int_equal(load(other), 0);
	assert_int_equal(load(shared + FRAME), 1);
	assert_int_equal(os->ops->populate(os, other + FRAME, FRAME), 0);
	store(shared + 2 * FRAME, 5);
	assert_int_equal(load(other + FRAME), 0);
	assert_int_equal(os->ops->touch(os, own + FRAME, FRAME), 0);
	assert_int_equal(load(own + FRAME), 5);
	assert_int_equal(os->ops->segment_punch(os, segment, 0, 4 * FRAME), 0);
	assert_int_equal(load(own), 11);
	assert_int_equal(load(own + FRAME), 0);

	/* Replaced and mapped again, nothing of it is left. */
	assert_int_equal(map_private(own, FRAME, HP_PROT_READ, segment, FRAME), 0);
	assert_int_equal(load(own), 0);
	assert_int_equal(hp_sim_store(os, own, 1), -EFAULT);
	assert_int_equal(os->ops->protect(os, own, FRAME, RW), 0);
	store(own + 4096, 6);
	assert_int_equal(load(own), 0);
	unmap(own, 3 * FRAME);
	unmap(other, 3 * FRAME);
	unmap(shared, 4 * FRAME);
	destroy_segment(segment);
}

static void test_private_move(void **state)
{
	hp_segment segment;
	char *shared = make_mapping(HP_BACKING_THP, 4 * FRAME, &segment);
	char *own = reserve(4 * FRAME, FRAME, 0);
	char *target = reserve(4 * FRAME, FRAME, 0);

	for (uint64_t i = 0; i < 4; i++)
		store(shared + i * FRAME, 1 + i);
	assert_int_equal(map_private(own, 4 * FRAME, RW, segment, 0), 0);
	assert_int_equal(map_private(target, 4 * FRAME, RW, segment, 0), 0);
	store(own + FRAME, 12);
	store(target + FRAME, 22);
	store(target + 2 * FRAME, 23);
	assert_int_equal(os->ops->move(os, own, shared, FRAME), -EINVAL); /* a part */
	assert_int_equal(os->ops->move(os, own + 3 * FRAME, shared, FRAME), -EINVAL);
	assert_int_equal(os->ops->move(os, own, target, 4 * FRAME), 0);
	for (uint64_t i = 0; i < 4; i++) {
		expect_trap(own + i * FRAME);
		expect_at(target + i * FRAME, segment, i * FRAME);
		assert_int_equal(load(target + i * FRAME), i == 1 ? 12 : 1 + i);
	}
	/* The copies have moved, and are not in the way of what comes to where they were. */
	store(target + FRAME, 32);
	assert_int_equal(load(shared + FRAME), 2);
	assert_int_equal(map_private(own, 4 * FRAME, RW, segment, 0), 0);
	assert_int_equal(load(own + FRAME), 2);
	/* Pieces that a protection has split are whole again. */
	assert_int_equal(os->ops->protect(os, target + FRAME, FRAME, HP_PROT_READ), 0);
	assert_int_equal(os->ops->move(os, target + FRAME, own, FRAME), 0);
	assert_int_equal(load(own), 32);
	assert_int_equal(hp_sim_store(os, own, 1), -EFAULT);
	unmap(own, 4 * FRAME);
	unmap(target, 4 * FRAME);
	unmap(shared, 4 * FRAME);
	destroy_segment(segment);
}

/* ---- Addresses ------------------------------------------------------------------------------------------------- */

static void test_reserve(void **state)
{
	static const struct {
		uint64_t length, align, skew;
	} wanted[] = {
		{FRAME, FRAME, 0}, {GIB, GIB, 0}, {3 * FRAME, GIB, 5 * FRAME}, {GIB, GIB, GIB - FRAME}, {TIB, TIB, 0},
	};
	enum { COUNT = sizeof(wanted) / sizeof(wanted[0]) };
	char *address[COUNT];
	void *none;

	for (int i = 0; i < COUNT; i++) {
		address[i] = reserve(wanted[i].length, wanted[i].align, wanted[i].skew);
		assert_true((uintptr_t)address[i] >> 56);
		expect_trap(address[i]);
		expect_at(address[i], HP_NO_SEGMENT, 0);
		for (int j = 0; j < i; j++)
			assert_true(address[i] >= address[j] + wanted[j].length ||
			            address[j] >= address[i] + wanted[i].length);
	}
	for (int i = 0; i < COUNT; i++)
		unmap(address[i], wanted[i].length);
	expect_maps(0);
	assert_int_equal(os->ops->reserve(os, 0, FRAME, 0, &none), -EINVAL);
	assert_int_equal(os->ops->reserve(os, 4096, FRAME, 0, &none), -EINVAL);
	assert_int_equal(os->ops->reserve(os, FRAME, 3 * FRAME, 0, &none), -EINVAL);
	assert_int_equal(os->ops->reserve(os, FRAME, 4096, 0, &none), -EINVAL);
	assert_int_equal(os->ops->reserve(os, FRAME, GIB, GIB, &none), -EINVAL);
	assert_int_equal(os->ops->reserve(os, FRAME, GIB, 4096, &none), -EINVAL);
	assert_int_equal(os->ops->reserve(os, 9 * TIB, FRAME, 0, &none), -ENOMEM);
}

static void test_reserve_all_and_again(void **state)
{
	char *piece[16];
	void *none;

	for (int i = 0; i < 16; i++)
		piece[i] = reserve(FRAME, FRAME, 0);
	assert_int_equal(os->ops->reserve(os, FRAME, FRAME, 0, &none), -ENOMEM);
	unmap(piece[4], FRAME);
	unmap(piece[8], 2 * FRAME);
	assert_int_equal(os->ops->reserve(os, 3 * FRAME, FRAME, 0, &none), -ENOMEM);
	assert_ptr_equal(reserve(2 * FRAME, FRAME, 0), piece[8]);
	assert_ptr_equal(reserve(FRAME, FRAME, 0), piece[4]);
	unmap(piece[0], 16 * FRAME);
	assert_ptr_equal(reserve(16 * FRAME, 16 * FRAME, 0), piece[0]);
	unmap(piece[0], 16 * FRAME);
}

/* Random reservations in a small space against the plain search of a table. */
static void test_reserve_random(void **state)
{
	bool taken[16] = {false};
	char *base = reserve(16 * FRAME, FRAME, 0);
	unsigned seed = 1;

	unmap(base, 16 * FRAME);
	for (int round = 0; round < 20000; round++) {
		unsigned count = 1 + (unsigned)rand_r(&seed) % 6;
		uint64_t align = FRAME << rand_r(&seed) % 3;
		uint64_t skew = (unsigned)rand_r(&seed) * FRAME % align;
		void *address;

		if (rand_r(&seed) % 2) {
			unsigned first = (unsigned)rand_r(&seed) % (17 - count);

			unmap(base + first * FRAME, count * FRAME);
			memset(taken + first, false, count);
		} else if (os->ops->reserve(os, count * FRAME, align, skew, &address) == 0) {
			uint64_t first = (uint64_t)((char *)address - base) / FRAME;

			assert_int_equal((uintptr_t)address % align, skew);
			assert_true(first + count <= 16);
			assert_null(memchr(taken + first, true, count));
			memset(taken + first, true, count);
		} else {
			for (uint64_t first = 0; first + count <= 16; first++)
				if (((uintptr_t)base + first * FRAME) % align == skew)
					assert_non_null(memchr(taken + first, true, count));
		}
	}
	unmap(base, 16 * FRAME);
}

static void test_map_refuses(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, 2 * FRAME, &segment);
	char *reserved = reserve(FRAME, FRAME, 0);

	assert_int_equal(os->ops->map(os, address + FRAME, FRAME, RW, segment, 0, 0), -EEXIST);
	assert_int_equal(os->ops->map(os, reserved, FRAME, RW, segment, 0, 0), -EEXIST);
	assert_int_equal(map(address + 4096, FRAME, RW, segment, 0), -EINVAL);
	assert_int_equal(map(address, 4096, RW, segment, 0), -EINVAL);
	assert_int_equal(map(address, 0, RW, segment, 0), -EINVAL);
	assert_int_equal(map(address, FRAME, RW, segment, 4096), -EINVAL);
	assert_int_equal(map(address, FRAME, RW, segment, 2 * FRAME), -EINVAL);
	assert_int_equal(map(address, 2 * FRAME, RW, segment, FRAME), -EINVAL);
	assert_int_equal(map(address, FRAME, 4, segment, 0), -EINVAL);
	assert_int_equal(map(NULL, FRAME, RW, segment, 0), -EINVAL);
	assert_int_equal(map(address, FRAME, RW, HP_NO_SEGMENT, 0), -EBADF);
	assert_int_equal(map(address, FRAME, RW, segment + 1, 0), -EBADF);
	unmap(reserved, FRAME);
	assert_int_equal(os->ops->map(os, reserved, FRAME, RW, segment, FRAME, HP_OS_MAP_POPULATE), 0);
	expect_at(reserved, segment, FRAME);
	unmap(reserved, FRAME);
	unmap(address, 2 * FRAME);
	destroy_segment(segment);
}

static void test_move(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, 4 * FRAME, &segment);
	char *scratch = reserve(4 * FRAME, FRAME, 0);

	store(address + 3 * FRAME, 3);
	expect_maps(2);
	/* Over reserved addresses; what is left behind is a hole. */
	assert_int_equal(os->ops->move(os, address + 2 * FRAME, scratch + FRAME, 2 * FRAME), 0);
	expect_at(scratch + FRAME, segment, 2 * FRAME);
	assert_int_equal(load(scratch + 2 * FRAME), 3);
	expect_trap(address + 2 * FRAME);
	expect_maps(4); /* mapped; reserved, moved, reserved */
	/* Over another mapping. */
	assert_int_equal(os->ops->move(os, scratch + FRAME, address, 2 * FRAME), 0);
	assert_int_equal(load(address + FRAME), 3);
	expect_at(address, segment, 2 * FRAME);
	expect_maps(3);

	assert_int_equal(os->ops->move(os, address, address + FRAME, 2 * FRAME), -EINVAL);
	assert_int_equal(os->ops->move(os, address + 2 * FRAME, scratch, FRAME), -EFAULT); /* nothing there */
	assert_int_equal(map(address, FRAME, RW, segment, 0), 0);
	assert_int_equal(os->ops->move(os, address, scratch, 2 * FRAME), -EFAULT); /* two mappings */
	unmap(address, 4 * FRAME);
	unmap(scratch, 4 * FRAME);
	destroy_segment(segment);
}

static void test_vacate(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, 4 * FRAME, &segment);

	store(address + 2 * FRAME, 2);
	assert_int_equal(os->ops->vacate(os, address + FRAME, 2 * FRAME), 0);
	expect_trap(address + 2 * FRAME);
	expect_at(address + 2 * FRAME, HP_NO_SEGMENT, 0);
	expect_maps(3);
	assert_int_equal(os->ops->map(os, address + FRAME, FRAME, RW, segment, 0, 0), -EEXIST);
	assert_int_equal(map(address + 2 * FRAME, FRAME, RW, segment, 2 * FRAME), 0);
	assert_int_equal(load(address + 2 * FRAME), 2);
	assert_int_equal(os->ops->vacate(os, address, 4 * FRAME), 0);
	expect_maps(1);
	assert_int_equal(os->ops->vacate(os, address, 4096), -EINVAL);
	unmap(address, 4 * FRAME);
	destroy_segment(segment);
}

/* ---- Kernel mappings ------------------------------------------------------------------------------------------- */

static void test_map_count(void **state)
{
	hp_segment segment = make_segment(HP_BACKING_HUGETLB, 8 * FRAME);
	char *address = reserve(10 * FRAME, FRAME, 0);

	expect_maps(1);
	assert_int_equal(map(address + FRAME, 4 * FRAME, RW, segment, 0), 0);
	expect_maps(3);
	assert_int_equal(map(address + 5 * FRAME, 4 * FRAME, RW, segment, 4 * FRAME), 0);
	expect_maps(4); /* neighbours in both, and not merged */
	assert_int_equal(map(address + 2 * FRAME, FRAME, RW, segment, FRAME), 0);
	expect_maps(6); /* split in three, though nothing is mapped elsewhere than before */
	unmap(address + 6 * FRAME, FRAME);
	expect_maps(7);
	unmap(address + 6 * FRAME, FRAME);
	expect_maps(7);
	assert_int_equal(map(address + FRAME, 8 * FRAME, HP_PROT_READ, segment, 0), 0);
	expect_maps(3); /* one, between two reservations */
	unmap(address + FRAME, 8 * FRAME);
	expect_maps(2);
	unmap(address, FRAME);
	unmap(address + 9 * FRAME, FRAME);
	expect_maps(0);
	destroy_segment(segment);
}

static void test_protect_splits(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, 8 * FRAME, &segment);

	assert_int_equal(os->ops->protect(os, address, 8 * FRAME, HP_PROT_READ), 0);
	expect_maps(1);
	assert_int_equal(os->ops->protect(os, address + 2 * FRAME, 2 * FRAME, HP_PROT_READ), 0);
	expect_maps(1); /* no change, no split */
	assert_int_equal(os->ops->protect(os, address + 2 * FRAME, 2 * FRAME, RW), 0);
	expect_maps(3);
	assert_int_equal(os->ops->protect(os, address + 3 * FRAME, 2 * FRAME, RW), 0);
	expect_maps(4); /* split behind only; the new piece does not join the one before */
	assert_int_equal(os->ops->protect(os, address + 3 * FRAME, 5 * FRAME, HP_PROT_READ), 0);
	expect_maps(5);
	assert_int_equal(os->ops->protect(os, address, 8 * FRAME, RW), 0);
	expect_maps(5);
	assert_int_equal(map(address, 8 * FRAME, RW, segment, 0), 0);
	expect_maps(1);
	unmap(address, 8 * FRAME);
	destroy_segment(segment);
}

static void test_reservations_merge(void **state)
{
	char *one = reserve(4 * FRAME, FRAME, 0);
	char *two = reserve(4 * FRAME, FRAME, 0);

	assert_ptr_equal(two, one + 4 * FRAME);
	expect_maps(1);
	unmap(one + 3 * FRAME, 2 * FRAME);
	expect_maps(2);
	unmap(one, 8 * FRAME);
	expect_maps(0);
}

static void test_max_map_count(void **state)
{
	hp_segment segment = make_segment(HP_BACKING_HUGETLB, 16 * FRAME);
	char *address = reserve(16 * FRAME, FRAME, 0);
	void *none;

	assert_int_equal(os->ops->max_map_count(os), 6);
	assert_int_equal(map(address, 16 * FRAME, RW, segment, 0), 0);
	assert_int_equal(map(address + 2 * FRAME, FRAME, RW, segment, 2 * FRAME), 0);
	assert_int_equal(map(address + 6 * FRAME, FRAME, RW, segment, 6 * FRAME), 0);
	expect_maps(5);
	assert_int_equal(map(address + 10 * FRAME, FRAME, HP_PROT_READ, segment, 0), -ENOMEM);
	expect_at(address + 10 * FRAME, segment, 10 * FRAME);
	store(address + 10 * FRAME, 1);
	assert_int_equal(os->ops->move(os, address, address + 8 * FRAME, FRAME), -ENOMEM);
	assert_int_equal(os->ops->protect(os, address + 10 * FRAME, FRAME, HP_PROT_READ), -ENOMEM);
	store(address + 10 * FRAME, 1);
	assert_int_equal(map(address + 15 * FRAME, FRAME, RW, segment, 0), 0);
	expect_maps(6);
	/* An unmap in the middle splits, one that takes all of a mapping does not. */
	assert_int_equal(os->ops->unmap(os, address + 10 * FRAME, FRAME), -ENOMEM);
	assert_int_equal(os->ops->reserve(os, 2 * FRAME, GIB, 0, &none), -ENOMEM);
	assert_int_equal(map(address + 2 * FRAME, FRAME, RW, segment, 0), 0);
	unmap(address + 2 * FRAME, FRAME);
	expect_maps(5);
	unmap(address, 16 * FRAME);
	destroy_segment(segment);
}

/* The count that is kept against a count of all places, over random changes. */
static void test_map_count_random(void **state)
{
	enum { PLACES = 12 };
	hp_segment segment = make_segment(HP_BACKING_HUGETLB, PLACES * FRAME);
	char *base = reserve(PLACES * FRAME, 16 * FRAME, 0);
	int owner[PLACES + 1] = {0}; /* 0 unmapped, else the number of the piece; pieces never join */
	int pieces = 0;
	unsigned seed = 2;

	unmap(base, PLACES * FRAME);
	for (int round = 0; round < 20000; round++) {
		unsigned count = 1 + (unsigned)rand_r(&seed) % 4;
		unsigned first = (unsigned)rand_r(&seed) % (PLACES + 1 - count);
		bool is_map = rand_r(&seed) % 2;
		int right = owner[first + count];
		uint64_t expected = 0;

		/* What lies behind the range becomes a piece of its own if the range cuts it off. */
		if (right && right == owner[first + count - 1]) {
			pieces++;
			for (unsigned i = first + count; owner[i] == right; i++)
				owner[i] = pieces;
		}
		pieces++;
		for (unsigned i = first; i < first + count; i++)
			owner[i] = is_map ? pieces : 0;
		if (is_map)
			assert_int_equal(map(base + first * FRAME, count * FRAME, RW, segment, first * FRAME), 0);
		else
			unmap(base + first * FRAME, count * FRAME);
		for (int i = 0; i < PLACES; i++)
			expected += owner[i] && (i == 0 || owner[i] != owner[i - 1]);
		expect_maps(expected);
	}
	unmap(base, PLACES * FRAME);
	destroy_segment(segment);
}

/* ---- Budgets --------------------------------------------------------------------------------------------------- */

static void test_hugetlb_budget(void **state)
{
	hp_segment one, two, three;
	char *first = make_mapping(HP_BACKING_HUGETLB, 4 * FRAME, &one);
	char *second = make_mapping(HP_BACKING_HUGETLB, 8 * FRAME, &two);
	char *other = make_mapping(HP_BACKING_BASE, 4 * FRAME, &three);
	uint64_t tag;

	assert_int_equal(os->ops->hugetlb_available(os), 8);
	assert_int_equal(os->ops->populate(os, first, 4 * FRAME), 0);
	assert_int_equal(os->ops->populate(os, first, 4 * FRAME), 0);
	assert_int_equal(os->ops->hugetlb_available(os), 4);
	assert_int_equal(os->ops->populate(os, second, 8 * FRAME), -EFAULT); /* the control group's limit */
	assert_int_equal(os->ops->hugetlb_available(os), 2);                 /* what was populated stays */
	assert_int_equal(hp_sim_load(os, second + 2 * FRAME, &tag), -EIO);
	assert_int_equal(hp_sim_store(os, second + 2 * FRAME, 1), -EIO);
	store(second + FRAME, 1);
	assert_int_equal(os->ops->populate(os, other, 4 * FRAME), 0); /* from a budget of its own */

	assert_int_equal(os->ops->segment_punch(os, two, 0, 8 * FRAME), 0);
	assert_int_equal(os->ops->hugetlb_available(os), 4);
	store(second + 7 * FRAME, 1);
	assert_int_equal(os->ops->hugetlb_available(os), 3);
	/* Destroyed, but mapped: the memory is still in use. */
	destroy_segment(one);
	assert_int_equal(os->ops->hugetlb_available(os), 3);
	unmap(first, 4 * FRAME);
	assert_int_equal(os->ops->hugetlb_available(os), 7);
	unmap(second, 8 * FRAME);
	assert_int_equal(os->ops->hugetlb_available(os), 7);
	destroy_segment(two);
	assert_int_equal(os->ops->hugetlb_available(os), 8);
	unmap(other, 4 * FRAME);
	destroy_segment(three);
}

/* As with the kernel's pool: populated again, a punched page is zero; renewed, it is promised. */
static void test_renew(void **state)
{
	hp_segment one, two;
	char *first = make_mapping(HP_BACKING_HUGETLB, 4 * FRAME, &one);
	char *second = make_mapping(HP_BACKING_HUGETLB, 8 * FRAME, &two);
	uint64_t tag;

	store(first + FRAME, 1);
	assert_int_equal(os->ops->segment_punch(os, one, 0, 4 * FRAME), 0);
	assert_int_equal(os->ops->populate(os, first, 3 * FRAME), 0);
	assert_int_equal(load(first + FRAME), 0);
	store(first, 7);
	assert_int_equal(os->ops->hugetlb_available(os), 5);

	/* Only what is absent is charged, and once. */
	assert_int_equal(os->ops->segment_renew(os, one, 0, 4 * FRAME), 0);
	assert_int_equal(os->ops->segment_renew(os, one, 0, 4 * FRAME), 0);
	assert_int_equal(os->ops->hugetlb_available(os), 4);
	assert_int_equal(load(first), 7);
	assert_int_equal(os->ops->populate(os, second, 2 * FRAME), 0); /* the control group has no more */
	assert_int_equal(os->ops->segment_renew(os, two, FRAME, 2 * FRAME), -ENOMEM);
	assert_int_equal(os->ops->hugetlb_available(os), 2);
	assert_int_equal(hp_sim_load(os, second + 2 * FRAME, &tag), -EIO);
	store(first + 3 * FRAME, 4); /* this was promised */
	assert_int_equal(load(first + 3 * FRAME), 4);
	assert_int_equal(os->ops->hugetlb_available(os), 2);

	/* All or nothing. */
	assert_int_equal(os->ops->segment_punch(os, one, 3 * FRAME, FRAME), 0);
	assert_int_equal(os->ops->segment_renew(os, two, 0, 4 * FRAME), -ENOMEM);
	assert_int_equal(os->ops->hugetlb_available(os), 3);
	assert_int_equal(os->ops->segment_renew(os, two, 0, 3 * FRAME), 0);
	assert_int_equal(os->ops->segment_renew(os, one, 3 * FRAME, FRAME), -ENOMEM);
	/* A punch gives a promise back, and so does the end of the segment. */
	assert_int_equal(os->ops->segment_punch(os, two, 2 * FRAME, FRAME), 0);
	assert_int_equal(os->ops->segment_renew(os, one, 3 * FRAME, FRAME), 0);
	os->ops->zero(os, first + 3 * FRAME, FRAME);
	assert_int_equal(load(first + 3 * FRAME), 0);
	unmap(first, 4 * FRAME);
	destroy_segment(one);
	assert_int_equal(os->ops->segment_renew(os, two, 2 * FRAME, 2 * FRAME), 0);
	unmap(second, 8 * FRAME);
	destroy_segment(two);
	assert_int_equal(os->ops->hugetlb_available(os), 8);
	assert_int_equal(os->ops->segment_renew(os, two, 0, FRAME), -EBADF);
}

/* Other kinds promise nothing. */
static void test_renew_base(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_BASE, 8 * FRAME, &segment);

	assert_int_equal(os->ops->segment_renew(os, segment, 0, 8 * FRAME), 0);
	assert_int_equal(os->ops->segment_renew(os, segment, 0, 9 * FRAME), -EINVAL);
	assert_int_equal(os->ops->touch(os, address, 8 * FRAME), -ENOMEM);
	unmap(address, 8 * FRAME);
	destroy_segment(segment);
}

static void test_memory_budget(void **state)
{
	hp_segment base, thp;
	char *one = make_mapping(HP_BACKING_BASE, 4 * FRAME, &base);
	char *two = make_mapping(HP_BACKING_THP, 4 * FRAME, &thp);

	assert_int_equal(os->ops->populate(os, one, 2 * FRAME), 0);
	assert_int_equal(os->ops->populate(os, two, 4 * FRAME), -ENOMEM);
	assert_int_equal(hp_sim_store(os, one + 2 * FRAME, 1), -EIO);
	unmap(two, 4 * FRAME);
	destroy_segment(thp);
	store(one + 2 * FRAME, 1);
	assert_int_equal(os->ops->hugetlb_available(os), 8);
	unmap(one, 4 * FRAME);
	destroy_segment(base);
}

/* Base pages are paid for one by one. */
static void test_memory_budget_of_base_pages(void **state)
{
	hp_segment base, thp;
	char *one = make_mapping(HP_BACKING_BASE, 8 * FRAME, &base);
	char *two = make_mapping(HP_BACKING_THP, 4 * FRAME, &thp);
	uint64_t tag;

	for (uint64_t i = 0; i < 8; i++)
		store(one + 7 * i * PAGE, 1);
	assert_int_equal(os->ops->populate(os, two, 3 * FRAME), 0);
	assert_int_equal(hp_sim_store(os, two + 3 * FRAME, 1), -EIO); /* the rest has no room for a frame */
	assert_int_equal(os->ops->populate(os, one, FRAME), 0);       /* but for the other pages of this */
	assert_int_equal(count_backed(base, 0, 8 * PAGES_PER_FRAME), PAGES_PER_FRAME);
	assert_int_equal(hp_sim_store(os, one + FRAME, 1), -EIO);
	unmap(two, 4 * FRAME);
	destroy_segment(thp);
	/* What became present before the budget ran out stays. */
	assert_int_equal(os->ops->populate(os, one + FRAME, 4 * FRAME), -ENOMEM);
	assert_int_equal(count_backed(base, 0, 8 * PAGES_PER_FRAME), 4 * PAGES_PER_FRAME);
	assert_int_equal(hp_sim_load(os, one + 8 * FRAME - PAGE, &tag), -EIO);
	assert_int_equal(os->ops->segment_punch(os, base, PAGE, PAGE), 0);
	store(one + 8 * FRAME - PAGE, 1);
	assert_int_equal(hp_sim_load(os, one + PAGE, &tag), -EIO);
	unmap(one, 8 * FRAME);
	destroy_segment(base);
}

static void test_no_hugetlb(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_HUGETLB, FRAME, &segment);

	assert_int_equal(os->ops->hugetlb_available(os), 0);
	assert_int_equal(os->ops->populate(os, address, FRAME), -ENOMEM);
	unmap(address, FRAME);
	destroy_segment(segment);
}

static void test_collapse(void **state)
{
	hp_segment thp, base;
	char *one = make_mapping(HP_BACKING_THP, 2 * FRAME, &thp);
	char *two = make_mapping(HP_BACKING_BASE, FRAME, &base);

	assert_int_equal(os->ops->collapse(os, one, 2 * FRAME), 0);
	assert_int_equal(os->ops->collapse(os, one, 3 * FRAME), -EINVAL);
	assert_int_equal(os->ops->collapse(os, two, FRAME), -EINVAL);
	assert_false(os->ops->shares_page_tables(os));
	unmap(one, 2 * FRAME);
	unmap(two, FRAME);
	destroy_segment(thp);
	destroy_segment(base);
}

static void test_no_thp(void **state)
{
	hp_segment segment;
	char *address = make_mapping(HP_BACKING_THP, FRAME, &segment);

	store(address, 1);
	assert_int_equal(os->ops->collapse(os, address, FRAME), -EINVAL);
	assert_true(os->ops->shares_page_tables(os));
	unmap(address, FRAME);
	destroy_segment(segment);
}

static void test_segment_create_refuses(void **state)
{
	hp_segment segment;

	assert_int_equal(os->ops->segment_create(os, HP_BACKING_AUTO, FRAME, &segment), -EINVAL);
	assert_int_equal(os->ops->segment_create(os, HP_BACKING_THP, 0, &segment), -EINVAL);
	assert_int_equal(os->ops->segment_create(os, HP_BACKING_THP, 4096, &segment), -EINVAL);
	assert_int_equal(os->ops->segment_destroy(os, HP_NO_SEGMENT), -EBADF);
}

static void test_control(void **state)
{
	hp_segment handle;
	void *address;

	assert_int_equal(os->ops->control_create(os, 100000, &address, &handle), 0);
	for (int i = 0; i < 100000; i++)
		assert_int_equal(((char *)address)[i], 0);
	memset(address, 1, 100000);
	/* In pieces too. */
	assert_int_equal(os->ops->control_destroy(os, (char *)address + 8192, 100000 - 8192, HP_NO_SEGMENT), 0);
	assert_int_equal(os->ops->control_destroy(os, address, 8192, handle), 0);
	assert_int_equal(os->ops->control_create(os, TIB, &address, &handle), 0);
	((char *)address)[TIB - 1] = 1;
	assert_int_equal(os->ops->control_destroy(os, address, TIB, handle), 0);
	assert_int_equal(os->ops->control_create(os, 0, &address, &handle), -EINVAL);
}

/* ---- Whole sims ------------------------------------------------------------------------------------------------ */

static void test_destroy_reports_what_is_left(void **state)
{
	const struct hp_sim_config config = {.hugetlb_bytes = TIB};
	hp_segment segment;

	assert_int_equal(start(&config), 0);
	make_segment(HP_BACKING_HUGETLB, FRAME);
	assert_int_equal(hp_sim_destroy(os), 1);

	assert_int_equal(start(&config), 0);
	reserve(FRAME, FRAME, 0);
	assert_int_equal(hp_sim_destroy(os), 1);

	assert_int_equal(start(&config), 0);
	store(make_mapping(HP_BACKING_HUGETLB, 2 * FRAME, &segment), 1);
	assert_int_equal(hp_sim_destroy(os), 2);

	assert_int_equal(start(&config), 0);
	make_mapping(HP_BACKING_HUGETLB, 2 * FRAME, &segment);
	destroy_segment(segment);
	assert_int_equal(hp_sim_destroy(os), 1);

	assert_int_equal(start(&config), 0);
	assert_int_equal(hp_sim_destroy(os), 0);
	assert_null(hp_sim_create(&(struct hp_sim_config){.address_bytes = 256 * TIB}));
}

static void test_two_sims(void **state)
{
	struct hp_os *first = hp_sim_create(&(struct hp_sim_config){.hugetlb_bytes = TIB});
	struct hp_os *second = hp_sim_create(&(struct hp_sim_config){.hugetlb_bytes = TIB});
	hp_segment segment;

	os = first;
	char *address = make_mapping(HP_BACKING_HUGETLB, FRAME, &segment);
	os = second;
	expect_trap(address);
	expect_at(address, HP_NO_SEGMENT, 0);
	assert_int_equal(os->ops->unmap(os, address, FRAME), -EINVAL);
	os = first;
	unmap(address, FRAME);
	destroy_segment(segment);
	assert_int_equal(hp_sim_destroy(first), 0);
	assert_int_equal(hp_sim_destroy(second), 0);
}

/* The segment is sparse; what costs time is the number of places that are changed. */
static void test_terabytes(void **state)
{
	hp_segment segment = make_segment(HP_BACKING_HUGETLB, 16 * TIB);
	char *address = reserve(2 * TIB, GIB, 0);

	for (uint64_t offset = 0; offset < 16 * TIB; offset += 8 * TIB)
		assert_int_equal(map(address + offset / 8, TIB, RW, segment, offset + 7 * TIB), 0);
	for (uint64_t offset = 0; offset < 2 * TIB; offset += 64 * GIB)
		store(address + offset, offset + 1);
	for (uint64_t offset = 0; offset < 2 * TIB; offset += 64 * GIB)
		assert_int_equal(load(address + offset), offset + 1);
	expect_at(address + 2 * TIB - 1, segment, 16 * TIB - 1);
	assert_int_equal(os->ops->populate(os, address, TIB / 4), 0);
	assert_int_equal(os->ops->segment_punch(os, segment, 15 * TIB, TIB), 0);
	assert_int_equal(load(address + TIB), 0);
	unmap(address, 2 * TIB);
	destroy_segment(segment);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
#define TEST_WITH(function, with) cmocka_unit_test_setup_teardown(function, with, teardown)
		TEST(test_tags),
		TEST(test_two_mappings_share),
		TEST(test_punch_and_zero),
		TEST(test_backed),
		TEST(test_backed_and_private),
		TEST(test_base_pages_of_frames),
		TEST(test_base_pages_random),
		TEST(test_gather),
		TEST(test_scatter),
		TEST_WITH(test_scatter_budget, setup_budgets),
		TEST(test_segments_begin_zeroed),
		TEST(test_protection),
		TEST(test_protect),
		TEST(test_end),
		TEST(test_private),
		TEST(test_private_move),
		TEST(test_reserve),
		TEST_WITH(test_reserve_all_and_again, setup_small_span),
		TEST_WITH(test_reserve_random, setup_small_span),
		TEST(test_map_refuses),
		TEST(test_move),
		TEST(test_vacate),
		TEST(test_map_count),
		TEST(test_protect_splits),
		TEST(test_reservations_merge),
		TEST_WITH(test_max_map_count, setup_few_maps),
		TEST(test_map_count_random),
		TEST_WITH(test_hugetlb_budget, setup_budgets),
		TEST_WITH(test_renew, setup_budgets),
		TEST_WITH(test_renew_base, setup_budgets),
		TEST_WITH(test_memory_budget, setup_budgets),
		TEST_WITH(test_memory_budget_of_base_pages, setup_budgets),
		TEST_WITH(test_no_hugetlb, setup_no_thp),
		TEST(test_collapse),
		TEST_WITH(test_no_thp, setup_no_thp),
		TEST(test_segment_create_refuses),
		TEST(test_control),
		cmocka_unit_test(test_destroy_reports_what_is_left),
		cmocka_unit_test(test_two_sims),
		TEST_WITH(test_terabytes, setup_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
