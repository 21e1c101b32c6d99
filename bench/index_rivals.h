/* SPDX-License-Identifier: MIT */
/*
 * Ways to keep what frame is behind each page of a file, by themselves: the library's page-cache index, filled frame by
 * frame or in whole runs, and what it is held against, a flat table with an entry for each page.
 *
 * Each walks over many pages by itself, so that what is measured is the structure and not how it is called.
 */
#ifndef BENCH_INDEX_RIVALS_H
#define BENCH_INDEX_RIVALS_H

#include <stdbool.h>
#include <stdint.h>

struct index_site; /* the memory of one */

struct index_rival {
	const char *name, *insert; /* "radix", "frame" */
	bool (*open)(struct index_site *site);
	/* Enters all pages, in the order of the file. False: there was no room. */
	bool (*fill)(struct index_site *site);
	/* The sum of the frames behind `count` pages; in one read section, where it has such. */
	uint64_t (*look_up)(struct index_site *site, const uint32_t *pages, uint32_t count);
	/* The same with a read section for each page. NULL: it needs none. */
	uint64_t (*look_up_alone)(struct index_site *site, const uint32_t *pages, uint32_t count);
	/* Nothing is entered any more; the memory is kept for the next fill, which finds it mapped. */
	void (*clear)(struct index_site *site);
	uint64_t (*bytes)(const struct index_site *site); /* in use now */
};

extern const struct index_rival index_by_frame, index_by_run, index_flat;

/* NULL: no memory. Not freed: it is the whole of its process. */
struct index_site *index_site_open(const struct index_rival *rival, uint32_t pages);
/* What look_up() of all pages comes to. */
uint64_t index_site_sum(const struct index_site *site);

#endif
