/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include "base/assert.h"
#include "base/format.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/*
 * The callback, its context and level change together: two copies, and an index that says which one holds. A logger
 * that read the older index still finds a whole setting, because the copy it uses is rewritten only by the call after
 * next; hp_log_set() is documented to take effect for calls that start later.
 */
struct setting {
	hp_log_fn fn;
	void *context;
	hp_log_level most_verbose;
};

static void log_to_stderr(hp_log_level level, const char *line, void *context)
{
	static const char *const names[] = {"error", "warning", "info", "debug"};
	char out[600];
	size_t n = hp_format(out, sizeof(out), "hugepool: %s: %s\n", names[level], line);

	(void)context;
	while (write(STDERR_FILENO, out, n) < 0 && errno == EINTR)
		;
}

static struct setting settings[2] = {{log_to_stderr, NULL, HP_LOG_WARNING}, {log_to_stderr, NULL, HP_LOG_WARNING}};
static _Atomic unsigned current;

void hp_log_set(hp_log_fn fn, hp_log_level most_verbose, void *context)
{
	unsigned next = !atomic_load(&current);

	settings[next] = (struct setting){fn ? fn : log_to_stderr, context, fn ? most_verbose : HP_LOG_WARNING};
	atomic_store(&current, next);
}

void hp_log(hp_log_level level, const char *format, ...)
{
	const struct setting *s = &settings[atomic_load(&current)];
	int saved_errno = errno;
	char line[512];
	va_list args;

	if (level > s->most_verbose)
		return;
	va_start(args, format);
	hp_format_v(line, sizeof(line), format, args);
	va_end(args);
	s->fn(level, line, s->context);
	errno = saved_errno;
}

void hp_assert_failed(const char *expression, const char *file, int line)
{
	hp_log(HP_LOG_ERROR, "%s:%d: this must hold and does not: %s", file, line, expression);
	abort();
}
