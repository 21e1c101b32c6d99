/* SPDX-License-Identifier: MIT */
/*
 * What a pool keeps in the arena, section by section. Records of the layers above have fixed sizes here, which those
 * layers assert.
 */
#ifndef HP_POOL_LAYOUT_H
#define HP_POOL_LAYOUT_H

#include "arena/arena.h"
#include "arena/intent.h"
#include "arena/pages.h"
#include "arena/table.h"
#include "base/histogram.h"
#include "sync/fault_mutex.h"
#include "sync/process.h"

#define HP_FILES_MAX 4096u
#define HP_VMAS_MAX 65536u
#define HP_CPU_CACHES 64u
#define HP_CPU_CACHE_FRAMES 8u
#define HP_ZEROERS_MAX 64u
#define HP_SEGMENTS_MAX 3u /* hugetlb, shared memory for the rest, places for base pages */

#define HP_FILE_NAME_SIZE 256u /* its final 0 included */
#define HP_TENANTS_MAX 64u
#define HP_FILE_RECORD_SIZE 256u
#define HP_VMA_RECORD_SIZE 128u

enum hp_pool_section {
	HP_SECTION_SHARED,
	HP_SECTION_PROCESSES,
	HP_SECTION_SLOTS,
	HP_SECTION_LOCKS,
	HP_SECTION_LOCK_RECORDS,
	HP_SECTION_LOCK_POINTS,
	HP_SECTION_INTENTS,
	HP_SECTION_FAULT_MUTEXES,
	HP_SECTION_CPU_CACHES,
	HP_SECTION_REGIONS,
	HP_SECTION_FRAMES,
	HP_SECTION_ZEROED_MAP,
	HP_SECTION_FREE_MAP,
	HP_SECTION_HUGE_MAP,
	HP_SECTION_FILES,
	HP_SECTION_NAMES,
	HP_SECTION_VMAS,
	HP_SECTION_OPENS,
	HP_SECTION_PAGES_MAP,
	HP_SECTION_PAGES,
	HP_SECTIONS,
};

/*
 * One GiB of frames: the unit of claims, and a summary that spares searching the bitmaps. Under the extents lock, but
 * for `spoiled`.
 */
struct hp_region {
	uint16_t free;            /* bits set in the free map: zeroed and dirty ones */
	uint16_t zeroed;          /* of these */
	uint32_t claim;           /* number of the file whose pages should come here, or 0 */
	_Atomic uint32_t spoiled; /* page tables are not shared until the direct map is touched: pool/direct.c */
};

/* A few zeroed frames for one CPU, so that single frames are taken without the extents lock. */
struct hp_cpu_cache {
	struct hp_mutex lock;
	uint32_t count;                      /* under lock */
	uint32_t frame[HP_CPU_CACHE_FRAMES]; /* under lock; state FREE_ZEROED, bits clear in both maps */
} __attribute__((aligned(HP_CACHE_LINE)));

/* Where frames come from; each has the same number of regions, filled from its start. Never changes after creation,
 * except for `filled`. */
struct hp_segment_record {
	hp_backing backing;
	uint32_t first_region;
	_Atomic uint32_t filled; /* frames that are there, a prefix of the segment; of places for base pages, all */
};

/* What orders faults and allocations against truncation and, in the oldest scheme, fork. See file/lock.h. */
enum hp_file_lock {
	HP_FILE_LOCK_BIASED = 0,
	HP_FILE_LOCK_INVALIDATE,
	HP_FILE_LOCK_VMA,
	HP_FILE_LOCK_RWSEM,
	HP_FILE_LOCK_NONE,
	HP_FILE_LOCKS,
};

enum hp_resv_lock { HP_RESV_LOCK_FILE = 0, HP_RESV_LOCK_GLOBAL, HP_RESV_LOCKS };

/* See pool/tenant.h. Limit and minimum in frames; they never change while it is a tenant. */
struct hp_tenant_record {
	struct hp_mutex lock;
	_Atomic uint32_t generation; /* odd: it is a tenant */
	_Atomic uint32_t files;      /* and calls on it; with a mark while it is made or unmade */
	uint64_t limit, minimum;
	_Atomic uint64_t used; /* frames promised to its files; changes under lock */
	_Atomic uint64_t base; /* places for base pages promised to its files; the same */
} __attribute__((aligned(HP_CACHE_LINE)));

/* What collapses count and measure: relaxed; src/collapse. */
struct hp_collapse_books {
	_Atomic uint64_t collapsed, in_place, split, rechecked, gave_up, busy, no_frame, misused;
	_Atomic uint64_t lock_ns, protect_ns, copy_ns, switch_ns, free_ns;
	struct hp_shared_histogram collapse, pause;
};

enum hp_fill_state { HP_FILL_RUNNING = 0, HP_FILL_DONE, HP_FILL_FAILED };

struct hp_pool_shared {
	/* Never change after creation. */
	uint32_t regions; /* of all segments */
	uint32_t segments;
	uint32_t frame_regions;  /* of the segments with frames; those of places for base pages come after them */
	uint32_t unit;           /* frames that the kernel maps as one page: 1, or a region's */
	uint32_t fault_mutexes;  /* a power of two, or 0 */
	uint32_t fault_window;   /* pages */
	uint32_t fault_sleep_us; /* slept under the fault mutex, to show what it orders */
	uint32_t file_lock;      /* enum hp_file_lock */
	uint32_t resv_lock;      /* enum hp_resv_lock */
	uint32_t table_sharing;
	uint32_t zero_mb_per_s; /* limit for each worker; 0 is none */
	uint32_t late;          /* the pool is filled as the kernel gets huge pages */
	uint32_t collapse_relock, collapse_none, collapse_mb_per_s, collapse_scan_ms, collapse_verify;
	uint64_t size_frames; /* asked for at creation */
	struct hp_segment_record segment[HP_SEGMENTS_MAX];

	_Atomic uint32_t fill_state;   /* futex: enum hp_fill_state */
	_Atomic uint32_t fill_process; /* that fills in the background */
	_Atomic uint64_t fill_ns;
	hp_error fill_error; /* set before fill_state becomes FAILED; its message says why not better otherwise */

	/*
	 * Free frames that nobody was promised. Every promise takes from it first and every frame that becomes free
	 * adds to it last, so that a promise always finds a free frame somewhere: in the maps or in a CPU's cache.
	 */
	_Atomic uint64_t uncommitted __attribute__((aligned(HP_CACHE_LINE)));
	_Atomic uint32_t short_event; /* futex: grows when frames are uncommitted while somebody waits for them */
	_Atomic uint32_t short_waiters;
	_Atomic uint64_t base_uncommitted; /* the same for places for base pages: pool/base.h */

	struct hp_mutex extents_lock __attribute__((aligned(HP_CACHE_LINE)));
	uint32_t cursor;      /* region where the search for frames starts; under extents_lock */
	uint32_t base_cursor; /* the place where the search for places starts; the same */

	/* Zeroing. */
	_Atomic uint32_t dirty_event
		__attribute__((aligned(HP_CACHE_LINE))); /* futex: grows when frames become dirty */
	_Atomic uint32_t clean_event;                    /* futex: grows when a worker has zeroed a frame */
	_Atomic uint32_t workers;                        /* threads that zero; 0: callers do */
	_Atomic uint32_t worker_process;
	_Atomic uint32_t in_hand[HP_ZEROERS_MAX]; /* what each has, for who finds it dead: the frame plus 1, or 0 */
	_Atomic uint32_t zeroing;                 /* frames committed by workers */
	_Atomic uint32_t pause;                   /* while above 0 no worker takes a frame */

	/* Figures; relaxed. */
	_Atomic uint64_t faults __attribute__((aligned(HP_CACHE_LINE)));
	_Atomic uint64_t fault_pages;
	_Atomic uint64_t zeroed_by_worker;
	_Atomic uint64_t zeroed_by_caller;

	struct hp_collapse_books collapse;

	_Atomic uint32_t homeless;  /* holes without a file: pool/hole.h */
	_Atomic uint32_t last_name; /* numbers of files from here on never had a name */
	struct hp_mutex names_lock; /* protects the names of files */
	struct hp_tenant_record tenant[HP_TENANTS_MAX];
	struct hp_mutex reap_lock __attribute__((aligned(HP_CACHE_LINE)));
	struct hp_mutex resv_lock_of_all
		__attribute__((aligned(HP_CACHE_LINE))); /* of all files, by HP_RESV_LOCK_GLOBAL */
	_Atomic uint32_t file_generation;
	struct hp_table files __attribute__((aligned(HP_CACHE_LINE)));
	struct hp_table vmas __attribute__((aligned(HP_CACHE_LINE)));
	struct hp_pages pages __attribute__((aligned(HP_CACHE_LINE)));
};

#endif
