/* SPDX-License-Identifier: MIT */
/*
 * Files: records in the arena, their handles and their lives.
 *
 * A file lives while it has references: one for each process that has it open, one for each mapping, and passing ones
 * of calls. When the last goes, its frames are recycled.
 */
#ifndef HP_FILE_FILE_H
#define HP_FILE_FILE_H

#include "file/index.h"
#include "pool/pool.h"
#include "sync/biased.h"

#define HP_PAGES_MAX (UINT32_MAX - 1) /* of one file */

struct hp_file_record {
	uint32_t next_free;          /* of a free record: arena/table.h */
	_Atomic uint32_t generation; /* 0: being made or unmade. Never changes while it has references */
	_Atomic uint32_t refs;
	_Atomic uint32_t pages;    /* the size: changes under vma_lock and the file lock for writing */
	_Atomic uint32_t reach;    /* the most that the size ever was: nothing was written for pages beyond */
	uint32_t most_pages;       /* what it can grow to. It and these never change: */
	uint32_t index_root;       /* base pages of the arena: the root of the index, */
	uint32_t index_level;      /*   (and its level) */
	uint32_t tenant;           /* that it belongs to; 0: none */
	uint32_t place_run;        /* where its GiBs should lie, */
	uint32_t promised_run;     /* which pages are promised, */
	uint32_t taken_run;        /* and which of these are taken */
	_Atomic uint32_t unlisted; /* pages below it may be mapped by processes that are in no list; never lowered */
	uint32_t vma_head;         /* first of its mappings, under vma_lock */
	_Atomic uint32_t vmas;     /* their number, under vma_lock, read by all */
	_Atomic uint32_t present;  /* pages that have a frame with memory */
	_Atomic uint32_t holes;    /* pages whose frame is a hole; those beyond the end are somebody's who is behind */
	_Atomic uint32_t base;     /* of both, those that have a place for base pages */
	uint32_t flags, wait_ms;   /* see hp_file_options; never change */
	_Atomic uint32_t base_promised;  /* of the pages that are promised and not taken, those that get such a place */
	_Atomic uint32_t moving;         /* futex: the page that is being moved, plus 1: file/moving.h */
	_Atomic uint32_t moves;          /* that have ended */
	uint32_t moving_from, moving_to; /* its frames */
	struct hp_biased lock;           /* the file lock: file/lock.h */
	struct hp_mutex reserve_lock;    /* protects the map of promised pages */
	struct hp_mutex vma_lock;        /* protects the list of mappings */
} __attribute__((aligned(HP_CACHE_LINE)));

_Static_assert(sizeof(struct hp_file_record) <= HP_FILE_RECORD_SIZE, "see pool/layout.h");

/* A file in use by a call. */
struct hp_file_use {
	struct hp_file_record *record;
	uint32_t number;
};

/*
 * A mark in a child's count of handles: a reference was taken for it, also if the parent closed the last handle then.
 */
#define HP_OPEN_INHERITED 0x8000u
#define HP_OPENS_MAX 0x7fffu /* handles of one file in one process */

static inline struct hp_file_record *hp_file_at(const struct hp_pool_view *view, uint32_t number)
{
	return (struct hp_file_record *)((char *)view->files + (size_t)number * HP_FILE_RECORD_SIZE);
}

static inline _Atomic uint16_t *hp_file_opens(const struct hp_pool_view *view, uint32_t process, uint32_t number)
{
	return &view->opens[(size_t)process * HP_FILES_MAX + number];
}

static inline struct hp_index hp_file_index(struct hp_pool_view *view, const struct hp_file_record *file)
{
	return (struct hp_index){&view->pages, file->index_root, file->index_level};
}

/* The way into calls on a file: finds the pool, the thread and the file, and takes a reference. */
int hp_file_enter(hp_file file, struct hp_thread **t, struct hp_file_use *use, hp_error *error);
/* A new file without a name, open once; its tenant counts it already. */
int hp_file_make(struct hp_thread *t, const hp_file_options *options, uint32_t tenant, uint32_t *number,
                 hp_error *error);
/* Another handle of this process, to a file that cannot go away meanwhile. -EMFILE. */
int hp_file_reopen(struct hp_thread *t, uint32_t number);
hp_file hp_file_handle(const struct hp_pool_view *view, uint32_t number);
/* A reference to a file that may be gone: false then. */
bool hp_file_get_live(struct hp_pool_view *view, uint32_t number);
/* Another reference to a file that cannot go away meanwhile. */
void hp_file_get(struct hp_pool_view *view, uint32_t number);
/*
 * A process that nobody knows maps the file up to page `end`: it is never destroyed, and pages below that stay with it
 * when they are cut or punched, since nobody could tell when that process is done with them.
 */
void hp_file_keep(struct hp_pool_view *view, uint32_t number, uint32_t end);
/* Gives a reference up; the last one destroys the file. Not in the fault path. */
void hp_file_put(struct hp_thread *t, uint32_t number);

/* Checks a range of bytes and turns it into pages. */
int hp_file_range(const struct hp_pool_view *view, const struct hp_file_record *file, uint64_t offset, uint64_t length,
                  uint32_t *first, uint32_t *pages, hp_error *error);

/* fork: see space/fork.c. In the parent: enters for the child what the parent has open. */
void hp_file_inherit(struct hp_pool_view *view, uint32_t child);

extern const struct hp_pool_hooks hp_file_hooks;

/* -- check.c and truncate.c: for the hooks ------------------------------------------------------------------------ */

int hp_files_check(struct hp_thread *t, hp_error *error);
void hp_file_recover(struct hp_thread *t, const struct hp_intent *intent);

/* -- repair.c ----------------------------------------------------------------------------------------------------- */

/* Tells the classes of this layer's locks how to make what they protect consistent when an owner has died. */
void hp_file_repairs(void);

/* -- allocate.c and fill.c ---------------------------------------------------------------------------------------- */

/*
 * The range is about to be mapped lazily: its faults find the nodes of the index that they need. The mapping is in the
 * file's list, which keeps them there. -ENOMEM.
 */
int hp_file_prepare(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages, hp_error *error);
/* What a page that is filled has where it has a place for base pages: their memory too, or the place. */
enum hp_fill { HP_FILL_MEMORY, HP_FILL_PLACES };
/* Promises all pages of a range, then makes them present. Signals need not be blocked. */
int hp_file_fill(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages, enum hp_fill what,
                 hp_error *error);
/*
 * Makes one promised page present, and with it up to `window` pages after it that have zeroed frames to continue its
 * own. The file lock is held for reading, signals are blocked. Signal safe. -ENXIO: it lies beyond the end; -ENOMEM: a
 * frame could not be mapped for zeroing, or (unsafe tuning fault_mutexes=0) a race was lost.
 */
int hp_file_fault_locked(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t window,
                         struct hp_fault_key key);

/*
 * The memory of a frame that is a hole comes back. The file lock is held for reading. -ENOMEM, -EFAULT: there is none.
 */
int hp_file_refill_locked(struct hp_thread *t, struct hp_file_use use, hp_frame_id frame);

#endif
