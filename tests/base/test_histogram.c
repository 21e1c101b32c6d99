/* SPDX-License-Identifier: MIT */
/* Times by size: bounds, where values go, percentiles, and many threads that add. */
#include "base/histogram.h"

#include "support/random.h"
#include "support/threads.h"

static struct hp_shared_histogram shared;

static hp_histogram read_all(void)
{
	hp_histogram histogram;

	hp_histogram_read(&shared, &histogram);
	return histogram;
}

static hp_histogram of_one(uint64_t ns)
{
	shared = (struct hp_shared_histogram){0};
	hp_histogram_add(&shared, ns);
	return read_all();
}

static unsigned bucket_of(uint64_t ns)
{
	hp_histogram histogram = of_one(ns);
	unsigned found = HP_HISTOGRAM_BUCKETS, count = 0;

	for (unsigned b = 0; b < HP_HISTOGRAM_BUCKETS; b++)
		if (histogram.bucket[b]) {
			assert_int_equal(histogram.bucket[b], 1);
			found = b;
			count++;
		}
	assert_int_equal(count, 1);
	return found;
}

/* Each bucket is an eighth to a quarter wider than the one before, from the second on. */
static void test_bounds(void **state)
{
	assert_int_equal(hp_histogram_bound(0), 0);
	for (unsigned b = 1; b < HP_HISTOGRAM_BUCKETS; b++)
		assert_true(hp_histogram_bound(b) > hp_histogram_bound(b - 1));
	for (unsigned b = 2; b < HP_HISTOGRAM_BUCKETS; b++) {
		double ratio = (double)hp_histogram_bound(b) / (double)hp_histogram_bound(b - 1);

		assert_true(ratio > 1.125 && ratio <= 1.25);
	}
	assert_true(hp_histogram_bound(HP_HISTOGRAM_BUCKETS) == UINT64_MAX);
	assert_true(hp_histogram_bound(UINT32_MAX) == UINT64_MAX);
	/* Enough for a minute. */
	assert_true(hp_histogram_bound(HP_HISTOGRAM_BUCKETS - 1) > 10ull * 1000 * 1000 * 1000);
}

static void expect_in_its_bucket(uint64_t ns)
{
	unsigned bucket = bucket_of(ns);

	if (ns < hp_histogram_bound(bucket) ||
	    (bucket + 1 < HP_HISTOGRAM_BUCKETS && ns >= hp_histogram_bound(bucket + 1)))
		fail_msg("%lu ns came into bucket %u, from %lu to %lu", ns, bucket, hp_histogram_bound(bucket),
		         hp_histogram_bound(bucket + 1));
}

static void test_every_value_is_in_its_bucket(void **state)
{
	uint64_t seed = random_seed();

	for (uint64_t ns = 0; ns < 5000; ns++)
		expect_in_its_bucket(ns);
	for (unsigned b = 1; b < HP_HISTOGRAM_BUCKETS; b++) {
		assert_int_equal(bucket_of(hp_histogram_bound(b)), b);
		assert_int_equal(bucket_of(hp_histogram_bound(b) - 1), b - 1);
		expect_in_its_bucket(hp_histogram_bound(b) + 1);
	}
	for (unsigned i = 0; i < 20000; i++)
		expect_in_its_bucket(random_next(&seed) >> random_below(&seed, 64));
	expect_in_its_bucket(UINT64_MAX);
	assert_int_equal(bucket_of(UINT64_MAX), HP_HISTOGRAM_BUCKETS - 1);
}

static void test_sums(void **state)
{
	uint64_t values[] = {5, 100, 7, 1000000, 99}, total = 0;
	hp_histogram histogram;

	shared = (struct hp_shared_histogram){0};
	histogram = read_all();
	assert_int_equal(histogram.count, 0);
	assert_int_equal(histogram.max, 0);
	for (unsigned i = 0; i < 5; i++) {
		hp_histogram_add(&shared, values[i]);
		total += values[i];
	}
	histogram = read_all();
	assert_int_equal(histogram.count, 5);
	assert_int_equal(histogram.total, total);
	assert_int_equal(histogram.max, 1000000);
	/* A zero counts as others do. */
	hp_histogram_add(&shared, 0);
	histogram = read_all();
	assert_int_equal(histogram.count, 6);
	assert_int_equal(histogram.total, total);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Never below the value that so many percent do not exceed, and at most one bucket above it. */
static void expect_percentile(const hp_histogram *histogram, const uint64_t *sorted, unsigned count, double percent)
{
	uint64_t answer = hp_histogram_percentile(histogram, percent), exact;
	unsigned rank = (unsigned)((double)count * percent / 100);

	/* The smallest value that at least so many percent lie at or below. */
	rank += rank < (double)count * percent / 100;
	exact = sorted[rank ? rank - 1 : 0];
	if (answer < exact || answer > histogram->max || (double)answer > (double)exact * 1.25 + 64)
		fail_msg("%g percent: %lu, and should be about %lu", percent, answer, exact);
}

static void test_percentiles(void **state)
{
	static const double percents[] = {0, 1, 10, 50, 90, 99, 99.9, 100};
	uint64_t seed = random_seed(), values[1000];

	for (unsigned round = 0; round < 50; round++) {
		unsigned count = 1 + (unsigned)random_below(&seed, 1000);
		hp_histogram histogram;
		uint64_t before = 0;

		shared = (struct hp_shared_histogram){0};
		for (unsigned i = 0; i < count; i++) {
			values[i] = random_next(&seed) >> (32 + random_below(&seed, 32)); /* not in the last bucket */
			hp_histogram_add(&shared, values[i]);
		}
		qsort(values, count, sizeof(values[0]), compare);
		histogram = read_all();
		assert_int_equal(histogram.max, values[count - 1]);
		for (unsigned p = 0; p < sizeof(percents) / sizeof(percents[0]); p++) {
			uint64_t answer = hp_histogram_percentile(&histogram, percents[p]);

			expect_percentile(&histogram, values, count, percents[p]);
			assert_true(answer >= before);
			before = answer;
		}
		assert_int_equal(hp_histogram_percentile(&histogram, 100), histogram.max);
	}
}

static void test_percentile_of_few(void **state)
{
	hp_histogram histogram = of_one(1000);

	assert_int_equal(hp_histogram_percentile(&histogram, 0), 1000);
	assert_int_equal(hp_histogram_percentile(&histogram, 50), 1000);
	assert_int_equal(hp_histogram_percentile(&histogram, 100), 1000);
	shared = (struct hp_shared_histogram){0};
	histogram = read_all();
	assert_int_equal(hp_histogram_percentile(&histogram, 50), 0);
	histogram = of_one(UINT64_MAX);
	assert_true(hp_histogram_percentile(&histogram, 50) == UINT64_MAX);
}

/* ---- many threads ----------------------------------------------------------------------------------------------- */

#define THREADS 4
#define ADDS 50000

static void *add_many(void *context)
{
	uint64_t seed = *(uint64_t *)context;

	for (unsigned i = 0; i < ADDS; i++)
		hp_histogram_add(&shared, random_next(&seed) >> 40);
	return NULL;
}

static void test_threads(void **state)
{
	struct hp_shared_histogram together;
	uint64_t seeds[THREADS], seed = random_seed();

	for (unsigned i = 0; i < THREADS; i++)
		seeds[i] = random_next(&seed);
	shared = (struct hp_shared_histogram){0};
	threads_run(THREADS, add_many, seeds, sizeof(seeds[0]));
	assert_int_equal(read_all().count, THREADS * ADDS);
	together = shared;
	/* The same, one after the other. */
	shared = (struct hp_shared_histogram){0};
	for (unsigned i = 0; i < THREADS; i++)
		add_many(&seeds[i]);
	assert_memory_equal(&together, &shared, sizeof(shared));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_every_value_is_in_its_bucket),
		cmocka_unit_test(test_sums),
		cmocka_unit_test(test_percentiles),
		cmocka_unit_test(test_percentile_of_few),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
