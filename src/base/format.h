/* SPDX-License-Identifier: MIT */
/*
 * A formatter that a signal handler may use: no locale, no allocation, no lock.
 * Knows %s %c %d %u %x with the lengths l, ll and z, %p and %%; no widths. Anything else is copied as it stands.
 */
#ifndef HP_BASE_FORMAT_H
#define HP_BASE_FORMAT_H

#include <stdarg.h>
#include <stddef.h>

/* Writes at most size - 1 bytes and a 0; returns the bytes written, without the 0. size > 0. */
size_t hp_format_v(char *out, size_t size, const char *format, va_list args);
size_t hp_format(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
