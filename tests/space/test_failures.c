/* SPDX-License-Identifier: MIT */
/*
 * Every call to the system fails once, each time that it is made in a scenario that goes through everything, or at
 * many of these times. The step that meets the failure says so or does without; the pool's books are right; the same
 * step works when it is repeated, and so does the rest. What was stored is still there.
 */
#include "support/pool.h"

#include "os/inject.h"

#include <sched.h>

enum { POOL_FRAMES = 700, HUGETLB_FRAMES = 592, LARGE = 600, SCATTERED = 10, EXTENTS = POOL_FRAMES - LARGE };
enum { MOVING = 6, FALLING = 9 }; /* pages of files that fall back: the pool has MOVING frames left for them */
enum { LARGE_CUT = 590, SCATTERED_CUT = 4, AT = 6, REPLACED = 3, PUNCHED = 100, PUNCHED_END = 140, GIB_PAGES = 512 };

struct scene {
	hp_pool pool;
	hp_file large, scattered, moving, falling;
	char *lazy, *ready, *moved, *second, *fallen;
	void *extent[EXTENTS];
	void *run;                      /* an extent of several frames */
	unsigned lazy_gone, ready_gone; /* mappings of them that are unmapped */
	bool repeated;                  /* the step has failed once */
};

static unsigned logged; /* errors */

static void count_errors(hp_log_level level, const char *line, void *context)
{
	logged += level == HP_LOG_ERROR && line[0];
}

/* ---- the scenario: steps that can be repeated when they have failed --------------------------------------------- */

static int create_pool(struct scene *s)
{
	hp_pool_options options = {
		.struct_size = sizeof(options), .size = POOL_FRAMES * FRAME, .workers = HP_WORKERS_NONE};

	return pool_try(&options, &s->pool);
}

static int create_files(struct scene *s)
{
	int result = s->large.id ? 0 : hp_file_create(s->pool, LARGE * FRAME, 0, &s->large, &error);

	return result ? result : hp_file_create(s->pool, SCATTERED * FRAME, 0, &s->scattered, &error);
}

static int map_lazily(struct scene *s)
{
	return map_try(s->large, 0, LARGE, HP_MAP_LAZY, &s->lazy);
}

/* By faults that go up, down and to and fro. */
static int touch_some(struct scene *s)
{
	static const unsigned pages[] = {0, 1, 2, 3, 400, 399, 398, 511, 512, 599, 77, 300, 301};

	for (unsigned i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
		int result = touch_store(s->lazy + pages[i] * FRAME, pages[i] + 1);

		if (result)
			return logged ? result : 1; /* a fault that fails is logged */
	}
	return 0;
}

/* The first GiB becomes one kernel mapping. */
static int populate(struct scene *s)
{
	int result = hp_populate(s->lazy, LARGE * FRAME);

	for (unsigned page = 0; page < LARGE && !result; page++)
		result = touch_store(s->lazy + page * FRAME, page + 1);
	return result;
}

/* All that is left, one by one; then some of it is given back, so that what comes next lies in pieces. */
static int scatter(struct scene *s)
{
	for (unsigned i = 0; i < EXTENTS; i++) {
		int result = s->extent[i] ? 0 : hp_alloc(s->pool, FRAME, &s->extent[i], &error);

		if (result)
			return result;
		if (!result)
			store(s->extent[i], i + 1000);
	}
	for (unsigned i = 0; i < 2 * SCATTERED; i += 2)
		assert_int_equal(hp_free(s->pool, s->extent[i]), 0);
	return 0;
}

static int map_ready(struct scene *s)
{
	uint64_t before = hp_maps_taken(os);
	int result = map_try(s->scattered, 0, SCATTERED, 0, &s->ready);

	for (unsigned page = 0; page < SCATTERED && !result; page++) {
		assert_int_equal(load(s->ready + page * FRAME), 0);
		store(s->ready + page * FRAME, page + 2000);
	}
	if (!result)
		assert_in_range(hp_maps_taken(os) - before, 2, SCATTERED);
	return result;
}

static int check_contents(struct scene *s)
{
	for (unsigned page = 0; page < LARGE; page++)
		assert_int_equal(load(s->lazy + page * FRAME), page + 1);
	for (unsigned page = 0; page < SCATTERED; page++)
		assert_int_equal(load(s->ready + page * FRAME), page + 2000);
	for (unsigned i = 1; i < EXTENTS; i += i < 2 * SCATTERED ? 2 : 1)
		assert_int_equal(load(s->extent[i]), i + 1000);
	return 0;
}

/* What lies there is zero, or was stored by the same step before it failed; then it is stored. */
static void refresh(char *address, uint64_t tag, bool repeated)
{
	uint64_t found = load(address);

	assert_true(found == 0 || (repeated && found == tag));
	store(address, tag);
}

static int protect(struct scene *s)
{
	int result = hp_protect(s->lazy + 5 * FRAME, 3 * FRAME, HP_PROT_READ);

	if (result) { /* nothing has changed */
		store(s->lazy + 5 * FRAME, 6);
		return result;
	}
	assert_int_equal(touch_store(s->lazy + 5 * FRAME, 1), -EFAULT);
	assert_int_equal(touch_store(s->lazy + 7 * FRAME, 1), -EFAULT);
	store(s->lazy + 8 * FRAME, 9);
	return hp_protect(s->ready, FRAME, HP_PROT_READ);
}

static int unprotect(struct scene *s)
{
	int result = hp_protect(s->lazy, LARGE * FRAME, HP_PROT_READ | HP_PROT_WRITE);

	if (!result)
		result = hp_protect(s->ready, SCATTERED * FRAME, HP_PROT_READ | HP_PROT_WRITE);
	if (!result)
		store(s->lazy + 5 * FRAME, 6);
	return result;
}

/* Mappings follow their files' ends; where the system does not let them that is logged, and done by the next call. */
static int resize(hp_file file, uint64_t pages)
{
	int result = hp_file_truncate(file, pages * FRAME, &error);

	if (result) {
		assert_int_equal(error.code, result);
		assert_true(strlen(error.message) > 10);
	}
	return result ? result : logged ? -EIO : 0;
}

static int cut(struct scene *s)
{
	int result = resize(s->large, LARGE_CUT);
	uint64_t tag;

	if (!result)
		result = resize(s->scattered, SCATTERED_CUT);
	for (unsigned page = LARGE_CUT; page < LARGE && !result; page++)
		assert_int_equal(touch_load(s->lazy + page * FRAME, &tag), -ENXIO);
	for (unsigned page = SCATTERED_CUT; page < SCATTERED && !result; page++)
		assert_int_equal(touch_load(s->ready + page * FRAME, &tag), -ENXIO);
	for (unsigned page = 0; page < LARGE_CUT; page++)
		assert_int_equal(load(s->lazy + page * FRAME), page + 1);
	for (unsigned page = 0; page < SCATTERED_CUT; page++)
		assert_int_equal(load(s->ready + page * FRAME), page + 2000);
	return result;
}

/* What nobody maps any more is free; memory that the kernel did not have at once is back with the check after the step. */
static int check_cut(struct scene *s)
{
	hp_pool_stats stats = pool_stats(s->pool);

	assert_int_equal(stats.holes, 0);
	assert_int_equal(stats.zeroed + stats.dirty, LARGE - LARGE_CUT + SCATTERED - SCATTERED_CUT);
	return 0;
}

static int grow(struct scene *s)
{
	int result = resize(s->large, LARGE);

	if (!result)
		result = resize(s->scattered, SCATTERED);
	for (unsigned page = LARGE_CUT; page < LARGE && !result; page++) {
		result = touch_store(s->lazy + page * FRAME + 4096, 0) ? -EFAULT : 0; /* a fault that fails is logged */
		if (!result)
			refresh(s->lazy + page * FRAME, page + 1, s->repeated);
	}
	for (unsigned page = SCATTERED_CUT; page < SCATTERED && !result; page++)
		refresh(s->ready + page * FRAME, page + 2000, s->repeated);
	return result;
}

/* Mapped pages in hugetlb: their memory goes back to the kernel, or they are zeroed where that is refused. */
static int punch(struct scene *s)
{
	int result = hp_file_punch(s->large, PUNCHED * FRAME, (PUNCHED_END - PUNCHED) * FRAME, 0, &error);

	for (unsigned page = PUNCHED; page < PUNCHED_END && !result; page++)
		refresh(s->lazy + page * FRAME, page + 1, s->repeated);
	return result;
}

static int unmap_a_part(struct scene *s)
{
	return hp_unmap(s->ready + AT * FRAME, (SCATTERED - AT) * FRAME);
}

static int map_at(struct scene *s)
{
	void *address = s->ready + AT * FRAME;
	int result = hp_map(s->scattered, AT * FRAME, (SCATTERED - AT) * FRAME, RW, HP_MAP_AT, &address, &error);

	if (!result)
		assert_ptr_equal(address, s->ready + AT * FRAME);
	return result;
}

static int map_over(struct scene *s)
{
	void *address = s->ready;
	int result = hp_map(s->scattered, 0, REPLACED * FRAME, RW, HP_MAP_REPLACE, &address, &error);

	assert_ptr_equal(address, s->ready);
	for (unsigned page = 0; page < SCATTERED; page++)
		assert_int_equal(load(s->ready + page * FRAME), page + 2000);
	return result;
}

/* One mapping after the other: where a range of several fails some are gone. `ends`: in pages; the last is 0. */
static int unmap_each(char *address, const unsigned *ends, unsigned *gone, unsigned tag)
{
	for (; ends[*gone]; ++*gone) {
		unsigned first = *gone ? ends[*gone - 1] : 0;
		int result = hp_unmap(address + first * FRAME, (ends[*gone] - first) * FRAME);

		if (result) {
			assert_int_equal(load(address + first * FRAME), first + tag);
			return result;
		}
	}
	return 0;
}

static int unmap_ready(struct scene *s)
{
	static const unsigned ends[] = {REPLACED, AT, SCATTERED, 0};

	return unmap_each(s->ready, ends, &s->ready_gone, 2000);
}

/* At the address that was given back. */
static int map_again(struct scene *s)
{
	int result = map_try(s->large, 0, GIB_PAGES, 0, &s->ready);

	for (unsigned page = 0; page < GIB_PAGES && !result; page++)
		assert_int_equal(load(s->ready + page * FRAME), page + 1);
	return result;
}

/* What is left of the GiB gets a page table of its own. */
static int unmap_its_end(struct scene *s)
{
	int result = hp_unmap(s->ready + (GIB_PAGES - 1) * FRAME, FRAME);

	for (unsigned page = 0; page < GIB_PAGES - !result; page++)
		assert_int_equal(load(s->ready + page * FRAME), page + 1);
	return result;
}

static int unmap_again(struct scene *s)
{
	return hp_unmap(s->ready, (GIB_PAGES - 1) * FRAME);
}

static int unmap_lazy(struct scene *s)
{
	static const unsigned ends[] = {5, 8, LARGE, 0};

	return unmap_each(s->lazy, ends, &s->lazy_gone, 1);
}

/* ---- base pages ------------------------------------------------------------------------------------------------- */

/* A few base pages of each page. */
static unsigned base_page_of(unsigned page, unsigned i)
{
	return (page * 50 + i * 200) % 512;
}

static int store_base(char *address, unsigned pages, unsigned tag)
{
	int result = 0;

	for (unsigned page = 0; page < pages && !result; page++)
		for (unsigned i = 0; i < 3 && !result; i++)
			result = touch_store(address + page * FRAME + base_page_of(page, i) * HP_BASE_PAGE_SIZE,
			                     page + tag + i * 100);
	return result && !logged ? 1 : result; /* a fault that fails is logged */
}

static int check_base(const char *address, unsigned pages, unsigned tag)
{
	for (unsigned page = 0; page < pages; page++)
		for (unsigned i = 0; i < 4; i++) {
			unsigned at = i == 3 ? base_page_of(page, 0) + 1 : base_page_of(page, i);
			uint64_t found = 0;
			int result = touch_load(address + page * FRAME + at * HP_BASE_PAGE_SIZE, &found);

			if (result)
				return logged ? result : 1;
			assert_int_equal(found, i == 3 ? 0 : page + tag + i * 100);
		}
	return 0;
}

/* No frame is left. */
static int fall_back(struct scene *s)
{
	const unsigned flags = HP_FILE_FALLBACK | HP_FILE_MOVABLE;
	int result = s->moving.id ? 0 : hp_file_create(s->pool, MOVING * FRAME, flags, &s->moving, &error);

	if (!result && !s->moved)
		result = map_try(s->moving, 0, MOVING, HP_MAP_LAZY, &s->moved);
	if (!result && !s->second)
		result = map_try(s->moving, 0, MOVING, 0, &s->second);
	return result;
}

static int store_moving(struct scene *s)
{
	return store_base(s->moved, MOVING, 3000);
}

static int check_moving(struct scene *s)
{
	int result = check_base(s->moved, MOVING, 3000);

	return result ? result : check_base(s->second, MOVING, 3000);
}

static uint64_t base_pages(hp_file file)
{
	hp_file_stat stat = {.struct_size = sizeof(stat)};

	assert_int_equal(hp_file_stat_get(file, &stat), 0);
	return stat.base / FRAME;
}

/* Then there are frames for it. */
static int free_some(struct scene *s)
{
	assert_int_equal(base_pages(s->moving), MOVING);
	for (unsigned i = EXTENTS - MOVING; i < EXTENTS; i++)
		assert_int_equal(hp_free(s->pool, s->extent[i]), 0);
	return 0;
}

static int collapse(struct scene *s)
{
	hp_file_stat stat = {.struct_size = sizeof(stat)};
	int result = hp_collapse(s->moved, MOVING * FRAME, &error);

	assert_int_equal(hp_file_stat_get(s->moving, &stat), 0);
	if (!result)
		assert_true(stat.base <= stat.holes); /* what was punched may stay as it is */
	return result;
}

static int split(struct scene *s)
{
	int result = hp_split(s->second, MOVING * FRAME, &error);

	if (!result)
		assert_int_equal(base_pages(s->moving), MOVING);
	return result;
}

/* Places that are mapped become holes. */
static int punch_moving(struct scene *s)
{
	int result = hp_file_punch(s->moving, FRAME, 2 * FRAME, 0, &error);

	for (unsigned page = 1; page < 3 && !result; page++) {
		assert_int_equal(load(s->moved + page * FRAME + base_page_of(page, 0) * HP_BASE_PAGE_SIZE), 0);
		assert_int_equal(load(s->second + page * FRAME + base_page_of(page, 2) * HP_BASE_PAGE_SIZE), 0);
	}
	return result;
}

static int store_again(struct scene *s)
{
	return store_base(s->moved, MOVING, 3000);
}

/* Ready memory of both kinds. */
static int map_fallen(struct scene *s)
{
	int result =
		s->falling.id ? 0 : hp_file_create(s->pool, FALLING * FRAME, HP_FILE_FALLBACK, &s->falling, &error);

	if (!result)
		result = map_try(s->falling, 0, FALLING, 0, &s->fallen);
	if (!result) {
		assert_int_equal(base_pages(s->falling), FALLING - MOVING);
		assert_int_equal(store_base(s->fallen, FALLING, 4000), 0);
	}
	return result;
}

static int check_fallen(struct scene *s)
{
	return check_base(s->fallen, FALLING, 4000);
}

static int unmap_fallen(struct scene *s)
{
	return hp_unmap(s->fallen, FALLING * FRAME);
}

static int unmap_moved(struct scene *s)
{
	return hp_unmap(s->moved, MOVING * FRAME);
}

static int unmap_second(struct scene *s)
{
	return hp_unmap(s->second, MOVING * FRAME);
}

/* What is cut is free: frames and places. */
static int cut_fallen(struct scene *s)
{
	int result = resize(s->falling, 1);

	if (!result)
		assert_true(base_pages(s->falling) <= 1);
	return result;
}

static int close_files(struct scene *s)
{
	file_close(s->large);
	file_close(s->scattered);
	file_close(s->moving);
	file_close(s->falling);
	return 0;
}

static int alloc_run(struct scene *s)
{
	int result = hp_alloc(s->pool, 5 * FRAME, &s->run, &error);

	if (!result)
		assert_int_equal(load(s->run), 0);
	return result;
}

static int close_pool(struct scene *s)
{
	return hp_pool_close(s->pool);
}

static const struct step {
	const char *name;
	int (*run)(struct scene *s);
	bool explains; /* fills an hp_error when it fails */
} steps[] = {
	{"create_pool", create_pool, true},
	{"create_files", create_files, true},
	{"map_lazily", map_lazily, true},
	{"touch_some", touch_some, false},
	{"populate", populate, false},
	{"scatter", scatter, true},
	{"map_ready", map_ready, true},
	{"check_contents", check_contents, false},
	{"protect", protect, false},
	{"unprotect", unprotect, false},
	{"check_contents", check_contents, false},
	{"cut", cut, false},
	{"check_cut", check_cut, false},
	{"grow", grow, false},
	{"check_contents", check_contents, false},
	{"punch", punch, true},
	{"check_contents", check_contents, false},
	{"unmap_a_part", unmap_a_part, false},
	{"map_at", map_at, true},
	{"check_contents", check_contents, false},
	{"map_over", map_over, true},
	{"check_contents", check_contents, false},
	{"unmap_ready", unmap_ready, false},
	{"map_again", map_again, true},
	{"unmap_its_end", unmap_its_end, false},
	{"unmap_again", unmap_again, false},
	{"unmap_lazy", unmap_lazy, false},
	{"fall_back", fall_back, true},
	{"store_moving", store_moving, false},
	{"check_moving", check_moving, false},
	{"free_some", free_some, false},
	{"collapse", collapse, true},
	{"check_moving", check_moving, false},
	{"split", split, true},
	{"check_moving", check_moving, false},
	{"punch_moving", punch_moving, true},
	{"store_again", store_again, false},
	{"check_moving", check_moving, false},
	{"map_fallen", map_fallen, true},
	{"check_fallen", check_fallen, false},
	{"unmap_fallen", unmap_fallen, false},
	{"cut_fallen", cut_fallen, false},
	{"collapse", collapse, true},
	{"check_moving", check_moving, false},
	{"unmap_moved", unmap_moved, false},
	{"unmap_second", unmap_second, false},
	{"close_files", close_files, false},
	{"alloc_run", alloc_run, true},
	{"close_pool", close_pool, false},
};

enum { STEPS = sizeof(steps) / sizeof(steps[0]) };

/* ---- running it ------------------------------------------------------------------------------------------------- */

struct failure {
	enum hp_os_call call;
	uint64_t occurrence; /* 0: none */
	int error;
	uint64_t more; /* of the calls after it fail too, until a step says so */
};

static void expect_failed_well(const struct step *step, int result, const struct failure *failure, struct scene *s)
{
	hp_error of_step = error;

	if (!failure->occurrence || result > 0)
		fail_msg("%s, %s %lu fails with %d: %d %s", step->name, hp_os_call_name(failure->call),
		         failure->occurrence, failure->error, result, error.message);
	if (step->explains) {
		assert_int_equal(of_step.code, result);
		assert_true(strlen(of_step.message) > 10);
	}
	if (step->run == create_pool) {
		assert_int_equal(hp_maps_taken(os), 0);
		assert_int_equal(hp_sim_map_count(sim_behind), 0);
	} else {
		pool_check(s->pool);
	}
}

static void run_step(const struct step *step, const struct failure *failure, struct scene *s)
{
	int result;

	logged = 0;
	error = (hp_error){.code = 0};
	s->repeated = false;
	result = step->run(s);
	if (result) {
		expect_failed_well(step, result, failure, s);
		hp_inject_clear(os);
		logged = 0;
		s->repeated = true;
		result = step->run(s);
		if (result)
			fail_msg("%s failed again: %d %s", step->name, result, error.message);
	}
	if (step->run != close_pool)
		pool_check(s->pool);
}

/* Touches go to the sim itself, everything else through the fault injection before it. */
static void run_scenario(const struct failure *failure, bool sharing, uint64_t *counts)
{
	struct hp_os *inject;
	struct scene s = {.pool = {0}};
	uint64_t closing;
	int left;

	sim_behind = hp_sim_create(
		&(struct hp_sim_config){.hugetlb_bytes = HUGETLB_FRAMES * FRAME, .table_sharing = sharing});
	assert_non_null(sim_behind);
	inject = hp_inject_create(sim_behind);
	assert_non_null(inject);
	os = inject;
	if (failure->occurrence)
		hp_inject_fail(inject, failure->call, failure->occurrence, failure->more, failure->error);
	for (unsigned i = 0; i < STEPS - 1; i++)
		run_step(&steps[i], failure, &s);
	closing = hp_inject_count(inject, failure->call);
	run_step(&steps[STEPS - 1], failure, &s);
	assert_int_equal(hp_maps_taken(inject), 0);
	for (unsigned call = 0; counts && call < HP_CALL_COUNT; call++)
		counts[call] = hp_inject_count(inject, call);
	hp_inject_destroy(inject);
	left = hp_sim_destroy(sim_behind);
	/* Closing does not fail: what the system does not take back then is lost. */
	if (failure->occurrence <= closing)
		assert_int_equal(left, 0);
}

static const int errors_of[HP_CALL_COUNT][3] = {
	[HP_CALL_CONTROL_CREATE] = {-ENOMEM, -EMFILE},
	[HP_CALL_CONTROL_DESTROY] = {-ENOMEM},
	[HP_CALL_SEGMENT_CREATE] = {-ENOTSUP, -EMFILE},
	[HP_CALL_SEGMENT_DESTROY] = {-EINTR},
	[HP_CALL_SEGMENT_PUNCH] = {-EINTR},
	[HP_CALL_SEGMENT_RENEW] = {-ENOMEM},
	[HP_CALL_GATHER] = {-EIO, -ENOMEM},
	[HP_CALL_SCATTER] = {-ENOMEM, -EIO},
	[HP_CALL_RESERVE] = {-ENOMEM},
	[HP_CALL_RESERVE_AT] = {-ENOMEM, -EEXIST},
	[HP_CALL_VACATE] = {-ENOMEM},
	[HP_CALL_MAP] = {-ENOMEM, -EAGAIN, -EEXIST},
	[HP_CALL_UNMAP] = {-ENOMEM},
	[HP_CALL_MOVE] = {-ENOMEM, -EFAULT},
	[HP_CALL_END] = {-ENOMEM},
	[HP_CALL_PROTECT] = {-ENOMEM},
	[HP_CALL_POPULATE] = {-ENOMEM, -EFAULT},
	[HP_CALL_TOUCH] = {-ENOMEM, -EFAULT},
	[HP_CALL_COLLAPSE] = {-EINVAL, -EAGAIN},
};

static bool is_exempt(enum hp_os_call call, bool sharing)
{
	switch (call) {
	case HP_CALL_ANONYMOUS: /* used by private mappings */
	case HP_CALL_HOLD:
	case HP_CALL_KEEP_FROM_CHILDREN:
	case HP_CALL_BACKED: /* used by the thread that collapses in the background */
		return true;
	case HP_CALL_TOUCH: /* for page tables that are shared */
		return !sharing;
	default:
		return false;
	}
}

/* A kind of call that is made more often is failed at so many of its times, or fewer. */
#ifdef __SANITIZE_THREAD__
enum { EACH_UP_TO = 6 };
#else
enum { EACH_UP_TO = 120 };
#endif

/* What is being tried, for who looks into a failed test. */
static struct failure failing;

static void fail_each_time(enum hp_os_call call, uint64_t count, bool sharing)
{
	uint64_t step = count / EACH_UP_TO + 1;
	uint64_t more = call == HP_CALL_POPULATE ? 0 : 2; /* memory of homeless holes may be out as long as it likes */

	assert_true(count > 0); /* the scenario goes through everything */
	for (unsigned e = 0; e < 3 && errors_of[call][e]; e++) {
		print_message("%s, %lu of %lu: error %d\n", hp_os_call_name(call), (count + step - 1) / step, count,
		              -errors_of[call][e]);
		/* From the last, which is always one of them. */
		for (uint64_t left = 0; left < count; left += step) {
			failing = (struct failure){call, count - left, errors_of[call][e], left % 2 ? more : 0};
			run_scenario(&failing, sharing, NULL);
			failing.more = more - failing.more;
			run_scenario(&failing, sharing, NULL);
		}
	}
	failing.occurrence = 0;
}

static void fail_all(bool sharing)
{
	uint64_t counts[HP_CALL_COUNT];

	hp_log_set(count_errors, HP_LOG_ERROR, NULL);
	run_scenario(&(struct failure){.occurrence = 0}, sharing, counts);
	for (unsigned call = 0; call < HP_CALL_COUNT; call++)
		if (!is_exempt(call, sharing))
			fail_each_time(call, counts[call], sharing);
	hp_log_set(NULL, HP_LOG_WARNING, NULL);
}

static void test_each_call_fails(void **state)
{
	fail_all(false);
}

static void test_each_call_fails_with_table_sharing(void **state)
{
	fail_all(true);
}

/* Each CPU has a few frames of its own: where files lie, and so which calls are made, would depend on the CPU. */
static void stay_on_this_cpu(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	sched_setaffinity(0, sizeof(set), &set);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_call_fails),
		cmocka_unit_test(test_each_call_fails_with_table_sharing),
	};

	stay_on_this_cpu();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
