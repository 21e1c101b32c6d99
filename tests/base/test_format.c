/* SPDX-License-Identifier: MIT */
/* The formatter, errors and the log. */
#include "base/error.h"
#include "base/format.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Without the attribute, so that the compiler lets through what is wrong. */
static size_t format(char *out, size_t size, const char *text, ...)
{
	va_list args;
	size_t used;

	va_start(args, text);
	used = hp_format_v(out, size, text, args);
	va_end(args);
	return used;
}

#define expect_format(expected, ...)                                                         \
	do {                                                                                 \
		char out_[200];                                                              \
		assert_int_equal(format(out_, sizeof(out_), __VA_ARGS__), strlen(expected)); \
		assert_string_equal(out_, expected);                                         \
	} while (0)

static void test_conversions(void **state)
{
	expect_format("", "%s", "");
	expect_format("plain", "plain");
	expect_format("a b (null) c", "%s b %s %c", "a", (char *)NULL, 'c');
	expect_format("0 -1 -2147483648 2147483647", "%d %d %d %d", 0, -1, INT_MIN, INT_MAX);
	expect_format("4294967295 ffffffff", "%u %x", UINT_MAX, UINT_MAX);
	expect_format("-9223372036854775808 18446744073709551615", "%ld %lu", LONG_MIN, ULONG_MAX);
	expect_format("18446744073709551615 ffffffffffffffff", "%llu %lx", ULLONG_MAX, ULONG_MAX);
	expect_format("7 0x1f", "%zu %p", (size_t)7, (void *)0x1f);
	expect_format("100%", "%u%%", 100u);
}

/* Whatever it gets, it stays within the size and ends with a 0. */
static void test_cut(void **state)
{
	char out[12];

	for (size_t size = 1; size <= sizeof(out); size++) {
		memset(out, 'x', sizeof(out));
		assert_int_equal(format(out, size, "%s%d", "1234567", 8901234), size - 1);
		assert_int_equal(strlen(out), size - 1);
		assert_memory_equal(out, "12345678901", size - 1);
		for (size_t i = size; i < sizeof(out); i++)
			assert_int_equal(out[i], 'x');
	}
	format(out, sizeof(out), "end%");
	assert_memory_equal(out, "end", 3);
	format(out, sizeof(out), "end%l");
	assert_memory_equal(out, "end", 3);
}

static void test_error(void **state)
{
	hp_error error;
	char wide[2 * HP_ERROR_MESSAGE_SIZE];

	assert_int_equal(hp_fail(NULL, -ENOMEM, HP_LIMIT_POOL, "nobody asks"), -ENOMEM);
	assert_int_equal(hp_fail(&error, -EBADF, HP_LIMIT_TABLE, "%u of %s", 3u, "them"), -EBADF);
	assert_int_equal(error.code, -EBADF);
	assert_int_equal(error.limit, HP_LIMIT_TABLE);
	assert_string_equal(error.message, "3 of them");
	memset(wide, 'w', sizeof(wide) - 1);
	wide[sizeof(wide) - 1] = 0;
	hp_fail(&error, -1, HP_LIMIT_NONE, "%s", wide);
	assert_int_equal(strlen(error.message), HP_ERROR_MESSAGE_SIZE - 1);
}

static void test_names(void **state)
{
	for (hp_limit a = HP_LIMIT_NONE; a <= HP_LIMIT_TABLE; a++)
		for (hp_limit b = HP_LIMIT_NONE; b <= HP_LIMIT_TABLE; b++)
			assert_int_equal(strcmp(hp_limit_name(a), hp_limit_name(b)) == 0, a == b);
	for (hp_backing a = HP_BACKING_AUTO; a <= HP_BACKING_BASE; a++)
		for (hp_backing b = HP_BACKING_AUTO; b <= HP_BACKING_BASE; b++)
			assert_int_equal(strcmp(hp_backing_name(a), hp_backing_name(b)) == 0, a == b);
	assert_string_equal(hp_limit_name(HP_LIMIT_KERNEL_POOL), "kernel_pool");
	assert_string_equal(hp_limit_name((hp_limit)99), "unknown");
	assert_string_equal(hp_backing_name((hp_backing)99), "unknown");
}

/* ---- the log ---------------------------------------------------------------------------------------------------- */

struct heard {
	unsigned lines;
	hp_log_level level;
	char line[300];
};

static void listen(hp_log_level level, const char *line, void *context)
{
	struct heard *heard = context;

	heard->lines++;
	heard->level = level;
	strncpy(heard->line, line, sizeof(heard->line) - 1);
	errno = EDOM; /* what it does to errno is not seen outside */
}

static void test_log_callback(void **state)
{
	struct heard heard = {0}, other = {0};

	hp_log_set(listen, HP_LOG_INFO, &heard);
	errno = ENOENT;
	hp_log(HP_LOG_DEBUG, "too much");
	assert_int_equal(heard.lines, 0);
	hp_log(HP_LOG_INFO, "%s %d", "line", 1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(heard.lines, 1);
	assert_int_equal(heard.level, HP_LOG_INFO);
	assert_string_equal(heard.line, "line 1");
	hp_log_set(listen, HP_LOG_ERROR, &other);
	hp_log(HP_LOG_WARNING, "no");
	hp_log(HP_LOG_ERROR, "yes");
	assert_int_equal(heard.lines, 1);
	assert_int_equal(other.lines, 1);
	assert_string_equal(other.line, "yes");
	hp_log_set(NULL, HP_LOG_DEBUG, NULL);
}

/* What arrives at standard error while `level` is logged. */
static void read_stderr(hp_log_level level, char *out, size_t size)
{
	int ends[2], saved = dup(STDERR_FILENO);
	ssize_t n;

	assert_int_equal(pipe(ends), 0);
	dup2(ends[1], STDERR_FILENO);
	close(ends[1]);
	hp_log(level, "about %s", "something");
	dup2(saved, STDERR_FILENO);
	close(saved);
	n = read(ends[0], out, size - 1);
	assert_true(n >= 0);
	out[n] = 0;
	close(ends[0]);
}

static void test_log_default(void **state)
{
	char out[200];

	hp_log_set(NULL, HP_LOG_DEBUG, NULL); /* the default has its own level */
	read_stderr(HP_LOG_WARNING, out, sizeof(out));
	assert_string_equal(out, "hugepool: warning: about something\n");
	read_stderr(HP_LOG_ERROR, out, sizeof(out));
	assert_string_equal(out, "hugepool: error: about something\n");
	read_stderr(HP_LOG_INFO, out, sizeof(out));
	assert_string_equal(out, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_conversions),  cmocka_unit_test(test_cut),
		cmocka_unit_test(test_error),        cmocka_unit_test(test_names),
		cmocka_unit_test(test_log_callback), cmocka_unit_test(test_log_default),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
