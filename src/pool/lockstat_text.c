/* SPDX-License-Identifier: MIT */
/*
 * Lock statistics as text, in the layout that the kernel's /proc/lock_stat has in its version 0.4, down to the column:
 * one line for each class and mode, and under them where waiters stood and where holders had taken the lock.
 */
#include "hugepool.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NAME_WIDTH 40
#define FIGURES 12
#define FIGURE_WIDTH 14
#define LINE_WIDTH (NAME_WIDTH + 1 + FIGURES * (FIGURE_WIDTH + 1))

struct text {
	char *out;
	size_t size, length; /* length: also of what did not fit */
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *format, ...)
{
	size_t room = text->length < text->size ? text->size - text->length : 0;
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(room ? text->out + text->length : NULL, room, format, args);
	va_end(args);
	text->length += n > 0 ? (size_t)n : 0;
}

static void add_line(struct text *text, char c, int indent, int width)
{
	char line[LINE_WIDTH + 1];

	memset(line, c, sizeof(line) - 1);
	line[sizeof(line) - 1] = 0;
	add(text, "%*s%.*s\n", indent, "", width, line);
}

/* A minimum above the maximum: these are not known. */
static void add_times(struct text *text, const hp_lock_times *times, uint64_t total)
{
	if (times->min > times->max)
		add(text, " %14s %14s", "-", "-");
	else
		add(text, " %14.2f %14.2f", (double)times->min / 1e3, (double)times->max / 1e3);
	add(text, " %14.2f %14.2f", (double)total / 1e3,
	    times->count ? (double)times->total / (double)times->count / 1e3 : 0);
}

/* One acquisition in `sampled` was measured: what a figure of the measured ones is for all. */
static uint64_t of_all(const hp_lock_stat *row, uint64_t measured)
{
	return row->hold.count ? (uint64_t)((double)measured / (double)row->hold.count * (double)row->acquisitions) : 0;
}

/* The kernel names the mode only where there are readers. */
static void add_row(struct text *text, const hp_lock_stat *row, bool read_too)
{
	uint64_t bounces = of_all(row, row->acq_bounces);

	if (row->mode == 'R' || (row->mode == 'W' && read_too))
		add(text, "%38s-%c:", row->name, row->mode);
	else
		add(text, "%40s:", row->name);
	add(text, "%14llu %14llu", (unsigned long long)row->con_bounces, (unsigned long long)row->contentions);
	add_times(text, &row->wait, row->wait.total);
	add(text, " %14llu %14llu", (unsigned long long)(bounces < row->acquisitions ? bounces : row->acquisitions),
	    (unsigned long long)row->acquisitions);
	add_times(text, &row->hold, of_all(row, row->hold.total));
	add(text, "\n");
}

#define GROUP_ROWS 2 /* of one class: for writing and for reading */

/* The places of the rows of one class together, the most frequent first. */
struct places {
	hp_lock_place place[GROUP_ROWS * HP_LOCK_POINTS];
	unsigned count;
};

static void merge_place(struct places *all, const hp_lock_place *place)
{
	unsigned at = 0;
	hp_lock_place sum = *place;

	while (at < all->count && strcmp(all->place[at].name, place->name) != 0)
		at++;
	if (at < all->count)
		sum.count += all->place[at].count;
	else
		all->count++;
	for (; at > 0 && all->place[at - 1].count < sum.count; at--)
		all->place[at] = all->place[at - 1];
	all->place[at] = sum;
}

static void merge_places(struct places *all, const hp_lock_place *places)
{
	for (unsigned i = 0; i < HP_LOCK_POINTS && places[i].count; i++)
		merge_place(all, &places[i]);
}

/* Where the kernel has an address there are zeroes, as it prints them itself where addresses are hidden. */
static void add_places(struct text *text, const char *name, int underline, const struct places *places)
{
	if (places->count)
		add_line(text, '-', NAME_WIDTH - underline, underline);
	for (unsigned i = 0; i < places->count; i++)
		add(text, "%40s %14llu %29s %s\n", name, (unsigned long long)places->place[i].count,
		    "[<0000000000000000>]", places->place[i].name);
}

/* The rows of one class, and under them where waiters stood and where holders had taken the lock. */
static void add_class(struct text *text, const hp_lock_stat *rows, unsigned count)
{
	struct places waiters = {.count = 0}, holders = {.count = 0};
	bool read_too = rows[count - 1].mode == 'R';

	for (unsigned i = 0; i < count; i++) {
		add_row(text, &rows[i], read_too);
		merge_places(&waiters, rows[i].waiter);
		merge_places(&holders, rows[i].holder);
	}
	if (!waiters.count && !holders.count)
		return;
	add_places(text, rows->name, (int)strlen(rows->name) + (read_too ? 2 : 0), &waiters);
	add_places(text, rows->name, (int)strlen(rows->name) + (read_too ? 2 : 0), &holders);
	add(text, "\n");
	add_line(text, '.', 0, LINE_WIDTH);
	add(text, "\n");
}

size_t hp_lockstat_format(const hp_lock_stat *rows, unsigned count, char *out, size_t size)
{
	static const char *const heading[FIGURES] = {
		"con-bounces", "contentions",  "waittime-min", "waittime-max", "waittime-total", "waittime-avg",
		"acq-bounces", "acquisitions", "holdtime-min", "holdtime-max", "holdtime-total", "holdtime-avg"};
	struct text text = {out, size, 0};

	add(&text, "lock_stat version 0.4\n");
	add_line(&text, '-', 0, LINE_WIDTH);
	add(&text, "%40s", "class name");
	for (unsigned i = 0; i < FIGURES; i++)
		add(&text, " %14s", heading[i]);
	add(&text, "\n");
	add_line(&text, '-', 0, LINE_WIDTH);
	add(&text, "\n");
	for (unsigned i = 0, group; i < count; i += group) {
		group = 1;
		while (group < GROUP_ROWS && i + group < count && !strcmp(rows[i].name, rows[i + group].name))
			group++;
		add_class(&text, &rows[i], group);
	}
	return text.length;
}
