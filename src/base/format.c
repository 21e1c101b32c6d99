/* SPDX-License-Identifier: MIT */
#include "base/format.h"

#include <stdbool.h>
#include <stdint.h>

struct sink {
	char *out;
	size_t size;
	size_t used;
};

static void put(struct sink *sink, char c)
{
	if (sink->used + 1 < sink->size)
		sink->out[sink->used++] = c;
}

static void put_string(struct sink *sink, const char *s)
{
	for (s = s ? s : "(null)"; *s; s++)
		put(sink, *s);
}

static void put_number(struct sink *sink, uint64_t value, unsigned base)
{
	char digits[20];
	unsigned n = 0;

	do {
		digits[n++] = "0123456789abcdef"[value % base];
		value /= base;
	} while (value);
	while (n)
		put(sink, digits[--n]);
}

static void put_signed(struct sink *sink, int64_t value)
{
	if (value < 0)
		put(sink, '-');
	put_number(sink, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 10);
}

size_t hp_format_v(char *out, size_t size, const char *format, va_list args)
{
	struct sink sink = {out, size, 0};

	for (const char *p = format; *p; p++) {
		unsigned longs = 0;

		if (*p != '%') {
			put(&sink, *p);
			continue;
		}
		for (p++; *p == 'l' || *p == 'z'; p++)
			longs++;
		switch (*p) {
		case 's':
			put_string(&sink, va_arg(args, const char *));
			break;
		case 'c':
			put(&sink, (char)va_arg(args, int));
			break;
		case 'd':
			put_signed(&sink, longs ? va_arg(args, long) : va_arg(args, int));
			break;
		case 'u':
		case 'x':
			put_number(&sink, longs ? va_arg(args, unsigned long) : va_arg(args, unsigned),
			           *p == 'u' ? 10 : 16);
			break;
		case 'p':
			put_string(&sink, "0x");
			put_number(&sink, (uintptr_t)va_arg(args, void *), 16);
			break;
		case '\0':
			p--;
			break;
		default:
			put(&sink, *p);
		}
	}
	out[sink.used] = '\0';
	return sink.used;
}

size_t hp_format(char *out, size_t size, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	size_t used = hp_format_v(out, size, format, args);
	va_end(args);
	return used;
}
