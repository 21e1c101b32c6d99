/* SPDX-License-Identifier: MIT */
/*
 * hugepool: huge pages that are ready when a program asks for them.
 *
 * This header is the whole public interface and its manual.
 *
 * Conventions
 *   - Sizes and offsets are bytes; a *frame* is one huge page of a pool, HP_FRAME_SIZE bytes.
 *   - A function returns 0 (or a count) on success and a negative errno on failure; errno itself is left alone.
 *   - A failing create, map or alloc also fills an hp_error where one is passed: the code, the limit that was hit,
 *     and a sentence that says what to do. The hp_error pointer may always be NULL.
 *   - Pools and files are values, not pointers: a number that holds an id and a generation, so that the use of a
 *     closed one is detected and answered with -EBADF. A zeroed value is never valid.
 *   - Threads: every function may be called by any number of threads at the same time, unless it says otherwise.
 *   - Signals: a function may be called from a signal handler only where it says so. What a handler may do is to touch
 *     memory that hugepool mapped; lazy memory too, as long as SIGSEGV is not blocked. A handler must not leave a call
 *     of hugepool that it interrupted by siglongjmp.
 *   - Fork: the child has everything the parent had, under the same handles. fork must not be called from a signal
 *     handler that interrupted a call of hugepool, and handlers of pthread_atfork must not call hugepool. Children of
 *     vfork, posix_spawn and a raw clone must not call hugepool before exec; a raw clone's child mostly gets -ECHILD.
 *   - Descriptors: a pool has up to four (close-on-exec, with high numbers). A program that closes them keeps the
 *     memory that it has; calls that need more of it then answer -EBADF, and an untouched page of lazy memory cannot be
 *     resolved.
 *
 * Two kinds of memory
 *   *Ready memory* (hp_map without HP_MAP_LAZY, hp_alloc) is an ordinary kernel mapping whose pages are there. System
 *   calls, devices, futexes, ptrace: everything works in it as always.
 *   *Engine memory* (HP_MAP_LAZY) is resolved page by page in a SIGSEGV handler. A system call that is handed an
 *   untouched page of it answers EFAULT: touch it, or hp_populate() it, first. Memory of movable files
 *   (HP_FILE_MOVABLE) is engine memory too: see hp_collapse().
 */
#ifndef HUGEPOOL_H
#define HUGEPOOL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The interface's version. Before 1.0 a minor version may change what is here, and says so in docs/changes.md. */
#define HP_VERSION_MAJOR 0
#define HP_VERSION_MINOR 4
#define HP_VERSION_STRING "0.4"

#define HP_FRAME_SHIFT 21
#define HP_FRAME_SIZE ((uint64_t)1 << HP_FRAME_SHIFT) /* bytes: 2 MiB */
#define HP_BASE_PAGE_SIZE ((uint64_t)4096)            /* bytes */

/* ---- Handles and errors ---------------------------------------------------------------------------------------- */

typedef struct hp_pool {
	uint64_t id;
} hp_pool;

typedef struct hp_file {
	uint64_t id;
} hp_file;

/* What was in the way. HP_LIMIT_NONE: no limit; the call itself was wrong. */
typedef enum hp_limit {
	HP_LIMIT_NONE = 0,
	HP_LIMIT_POOL,        /* the pool's free frames, less what is promised to others */
	HP_LIMIT_KERNEL_POOL, /* /proc/sys/vm/nr_hugepages and its overcommit */
	HP_LIMIT_CGROUP,      /* a hugetlb or memory limit of the control group */
	HP_LIMIT_MAP_COUNT,   /* /proc/sys/vm/max_map_count */
	HP_LIMIT_ADDRESS,     /* no free range of addresses, or RLIMIT_AS */
	HP_LIMIT_MEMORY,      /* the machine's memory */
	HP_LIMIT_TABLE,       /* a table of the pool that does not grow: processes, threads, files, mappings */
	HP_LIMIT_TENANT,      /* the limit of the file's tenant */
	HP_LIMIT_PINNED,      /* pages that must stay where they are */
} hp_limit;

#define HP_ERROR_MESSAGE_SIZE 244

typedef struct hp_error {
	int code; /* the negative errno that the call returned */
	hp_limit limit;
	char message[HP_ERROR_MESSAGE_SIZE]; /* one line, no newline at its end */
} hp_error;

/* The name of a limit, for messages and JSON: "kernel_pool". Signal safe. */
const char *hp_limit_name(hp_limit limit);

/* ---- Logging --------------------------------------------------------------------------------------------------- */

typedef enum hp_log_level { HP_LOG_ERROR = 0, HP_LOG_WARNING, HP_LOG_INFO, HP_LOG_DEBUG } hp_log_level;

/*
 * Everything the library has to say goes to one callback; until one is set, errors and warnings go to standard error.
 * `line` ends without a newline and is gone when the callback returns. The callback may run in any thread, also inside
 * the fault handler with all signals blocked: it must be async-signal-safe and must not call hugepool.
 * A NULL callback restores the default. Takes effect for calls that start later.
 */
typedef void (*hp_log_fn)(hp_log_level level, const char *line, void *context);
void hp_log_set(hp_log_fn fn, hp_log_level most_verbose, void *context);

/* ---- Pools ----------------------------------------------------------------------------------------------------- */

/* What frames are made of, best first. */
typedef enum hp_backing {
	HP_BACKING_AUTO = 0, /* the best that can be had, for each part of the pool */
	HP_BACKING_HUGETLB,  /* the kernel's pool of huge pages */
	HP_BACKING_THP,      /* shared memory made of transparent huge pages; needs no privilege */
	HP_BACKING_BASE,     /* shared memory in base pages: works everywhere, without the speed */
	/*
	 * The kernel's pool of huge pages of 1 GiB, never chosen by itself. Of such a pool all sizes, offsets and
	 * addresses are multiples of 1 GiB, where this header says HP_FRAME_SIZE; there are no zeroing workers and no
	 * private memory.
	 */
	HP_BACKING_HUGETLB_1G,
} hp_backing;

const char *hp_backing_name(hp_backing backing);

/* Flags of hp_pool_options. */
#define HP_POOL_BACKGROUND 1u       /* return before the pool is filled; see hp_pool_wait() */
#define HP_POOL_UNSAFE 2u           /* allow the tuning values that exist to show what goes wrong without a mechanism */
#define HP_POOL_NO_TABLE_SHARING 4u /* do not arrange addresses so that the kernel can share page tables */
/*
 * The pool takes as many frames of `size` as the kernel's pool of huge pages has, none perhaps, and hp_pool_create()
 * succeeds with them. A thread of this process looks for more every collapse_scan_ms, until all are there;
 * hp_pool_wait() does not wait for that, hp_pool_stats.hugetlb tells. Until then files that may fall back
 * (HP_FILE_FALLBACK) have base pages, which come to lie in frames in the background if they are movable. `backing` has
 * to be HP_BACKING_HUGETLB.
 */
#define HP_POOL_LATE 8u
/* A thread of this process collapses files with HP_FILE_MOVABLE in idle time. Comes with HP_POOL_LATE. */
#define HP_POOL_COLLAPSE 16u

#define HP_WORKERS_DEFAULT 0u
#define HP_WORKERS_NONE UINT32_MAX

typedef struct hp_pool_options {
	uint32_t struct_size; /* sizeof(hp_pool_options); lets the struct grow */
	uint32_t flags;
	uint64_t size;      /* bytes, rounded up to frames: what the pool is filled with; more than 0 */
	uint64_t max_size;  /* bytes that addresses and tables are set aside for: at least `size`; 0 means `size` */
	hp_backing backing; /* HP_BACKING_AUTO, or the only kind that is acceptable */
	/* Threads that zero freed frames in idle time: a number, HP_WORKERS_DEFAULT (by CPUs), HP_WORKERS_NONE. */
	uint32_t workers;
	/*
	 * "key=value" pairs with blanks between, NULL for the defaults:
	 *   fault_window=N   most pages mapped by one lazy fault, a power of two from 1 to 512 (default 16)
	 *   fault_mutexes=N  mutexes that order faults: 1 or a power of two (default: by number of CPUs); 0 is unsafe
	 *   fault_sleep_us=N sleeps under the mutex, as if taking a frame lasted so long (for measurements; default 0)
	 *   file_lock=WORD   what orders faults against truncation and fork: biased (the default, its readers share no
	 *                    cache line), invalidate, vma, rwsem; none is unsafe
	 *   resv_lock=WORD   the lock over reservations: file (one each, the default) or global
	 *   zero_mb_per_s=N  how fast each worker zeroes at most (default 0: no limit; they only use idle time)
	 *   collapse=WORD    what a collapse does between looking and changing: upgrade (its lock; the default), or
	 *                    relock (lets it go, takes it for writing, and checks all again)
	 *   collapse_none=N  base pages of a frame's 512 that may be missing for the background to collapse it (default
	 *                    511)
	 *   collapse_mb_per_s=N  how fast the background collapses at most (default 0: no limit; only in idle time)
	 *   collapse_scan_ms=N   how long it rests after it found nothing to do (default 1000)
	 *   collapse_verify=1    compares every page with its copy before the old one is freed, and reports what was
	 *                    written past hugepool meanwhile: by devices and calls without hp_pin() (default 0)
	 */
	const char *tuning;
} hp_pool_options;

#define HP_POOL_OPTIONS_INIT                           \
	{                                              \
		.struct_size = sizeof(hp_pool_options) \
	}

/*
 * Makes a pool, private to this process and its fork children, and fills it with zeroed frames on all CPUs. All of
 * `size` is there when this returns, or nothing is: a limit that prevents it is named in `error`. Memory that the
 * machine or the control group does not have is not begun to be filled. Where no thread can be made for the workers
 * the pool comes without. With HP_POOL_BACKGROUND it returns at once and a thread fills the pool.
 * Errors: -EINVAL options that make no sense; -ENOMEM, -ENOSPC a limit, see error->limit; -EMFILE descriptors, or too
 * many pools in this process; -ENOTSUP the backing asked for does not exist here. Not to be called from a signal
 * handler.
 */
int hp_pool_create(const hp_pool_options *options, hp_pool *pool, hp_error *error);

/*
 * Gives up this process's part in the pool. Its mappings must be unmapped and its files closed first: -EBUSY else.
 * Extents that it took stay with the pool. Other processes that share the pool keep it. No other thread may be in a
 * call on this pool. Not to be called from a signal handler.
 */
int hp_pool_close(hp_pool pool);

/*
 * Waits until the pool is filled and, if it has zeroing workers, until no frame that could be zeroed is dirty.
 * Also takes back what dead processes left. timeout_ms < 0 waits for ever. Errors: -ETIMEDOUT; the error of a
 * background fill that failed, in `error`.
 */
int hp_pool_wait(hp_pool pool, int timeout_ms, hp_error *error);

/* Figures of a pool, in frames unless the name says otherwise. Each is exact when nothing else runs. */
typedef struct hp_pool_stats {
	uint32_t struct_size;   /* set by the caller: sizeof(hp_pool_stats) */
	uint32_t table_sharing; /* 1: large mappings are placed so that the kernel shares page tables */
	uint64_t frames;        /* and places for base pages that are in use, so that it may be more than the size */
	uint64_t zeroed;        /* ready to be handed out */
	uint64_t dirty;         /* free, to be zeroed first */
	uint64_t zeroing;       /* in the hands of a worker */
	uint64_t used;          /* pages of files and extents of hp_alloc */
	uint64_t holes;         /* punched while mapped elsewhere; the place stays with its file */
	uint64_t reserved;      /* free frames that are promised */
	uint64_t hugetlb;       /* frames by backing; their sum is `frames` */
	uint64_t thp;
	uint64_t base;
	uint64_t files;
	uint64_t mappings; /* of all processes */
	uint64_t processes;
	uint64_t faults;           /* lazy faults resolved, by all processes */
	uint64_t fault_pages;      /* pages that these mapped */
	uint64_t zeroed_by_worker; /* frames, since the pool was made */
	uint64_t zeroed_by_caller;
	uint64_t fill_ns;                           /* what filling took */
	uint64_t page_size;                         /* bytes: what sizes, offsets and addresses are multiples of */
	uint32_t kernel_maps;                       /* kernel mappings set aside for hugepool in this process */
	uint32_t kernel_maps_max;                   /* the most it takes: 80 % of vm.max_map_count */
	char why_not_better[HP_ERROR_MESSAGE_SIZE]; /* why frames are not all hugetlb; empty if they are */
} hp_pool_stats;

/* Errors: -EINVAL struct_size is too small; -EBADF. Takes time with the pool's size: it looks at every frame. */
int hp_pool_stats_get(hp_pool pool, hp_pool_stats *stats);

/*
 * Proves the pool's invariants from the ground truth: the sums of frames by state, reservations against what is there,
 * each page of each file against its frame. To be called when no other call on the pool is running in any process.
 * Returns 0, or -EUCLEAN with the first violation in `error`. Also takes back what dead processes left.
 */
int hp_pool_check(hp_pool pool, hp_error *error);

/* ---- Statistics of locks --------------------------------------------------------------------------------------- */

/*
 * One row for each class of locks and mode, over all processes of the pool. Times are in ns; waits are of contended
 * acquisitions, all of which are measured. An acquisition that nobody stands in the way of is counted and reads no
 * clock, but for one in `sampled`: hold times and acq_bounces are of these alone.
 */
#define HP_LOCK_POINTS 8
#define HP_LOCK_NAME_SIZE 64

typedef struct hp_lock_place {
	char name[HP_LOCK_NAME_SIZE]; /* "function (file.c:12)" */
	uint64_t count;
} hp_lock_place;

typedef struct hp_lock_times {
	uint64_t count, min, max, total;
} hp_lock_times;

typedef struct hp_lock_stat {
	char name[24];    /* of the class: "file" */
	char mode;        /* 'W' or 'R'; 0 for a mutex */
	uint32_t sampled; /* one acquisition of so many */
	uint64_t acquisitions, acq_bounces, contentions, con_bounces;
	uint64_t deaths; /* owners and readers that ended without letting go, and were found */
	hp_lock_times wait, hold;
	hp_lock_place waiter[HP_LOCK_POINTS]; /* where those who waited stood; ends with a count of 0 */
	hp_lock_place holder[HP_LOCK_POINTS]; /* where those whom they found there had taken it */
} hp_lock_stat;

#define HP_LOCK_STATS_MAX 48

/*
 * Fills at most `*count` rows, which is set to their number. Classes that were never taken are left out.
 * `struct_size` is sizeof(hp_lock_stat). Errors: -EINVAL struct_size is another one; -EBADF. Takes no lock.
 */
int hp_pool_lockstat(hp_pool pool, hp_lock_stat *rows, unsigned *count, size_t struct_size);

typedef enum hp_lockstat_action { HP_LOCKSTAT_OFF = 0, HP_LOCKSTAT_ON, HP_LOCKSTAT_RESET } hp_lockstat_action;

/* Statistics are on from the start. Takes effect for all processes of the pool. Errors: -EINVAL, -EBADF. */
int hp_pool_lockstat_set(hp_pool pool, hp_lockstat_action action);

/*
 * The same for the pools of another running process, by number from 0 on. Needs the right to trace it (ptrace(2)).
 * Errors: -ESRCH no such process; -ENOENT it has no pool of that number; -EACCES; -EPROTO the pool was made by another
 * version of the library; each with a sentence in `error`.
 */
int hp_process_lockstat(int pid, unsigned number, hp_lock_stat *rows, unsigned *count, size_t struct_size,
                        hp_error *error);
int hp_process_lockstat_set(int pid, unsigned number, hp_lockstat_action action, hp_error *error);

/*
 * Writes rows in the layout of the kernel's /proc/lock_stat, version 0.4, with times in us. Returns the length that it
 * has without the limit, as snprintf(3) does.
 */
size_t hp_lockstat_format(const hp_lock_stat *rows, unsigned count, char *text, size_t size);

/* ---- Extents without a file ------------------------------------------------------------------------------------ */

/*
 * Takes contiguous zeroed frames, `size` rounded up to whole ones, for allocators and buffer pools. `*address` is in
 * the pool's own mapping: the same in this process and in children forked later, who share the contents. Aligned to
 * HP_FRAME_SIZE.
 * Errors: -EINVAL size 0; -ENOMEM with limit HP_LIMIT_POOL when there are not as many free frames, or none in a row.
 */
int hp_alloc(hp_pool pool, uint64_t size, void **address, hp_error *error);

/* Gives an extent of hp_alloc back, whole. Any process of the pool may do so. Errors: -EINVAL not such an address. */
int hp_free(hp_pool pool, void *address);

/* ---- Tenants --------------------------------------------------------------------------------------------------- */

/*
 * A part of a pool for some of its files, as size= and min_size= give to a mount of hugetlbfs. A tenant lives in its
 * pool, for all processes, until it is closed.
 */
typedef struct hp_tenant {
	uint64_t id;
} hp_tenant;

/*
 * `limit`: bytes that its files can be promised together; 0: no limit. `minimum`: bytes that are kept for them from
 * now on, rounded up to frames. Errors: -EINVAL a limit below 2 MiB, or below the minimum; -ENOMEM, HP_LIMIT_POOL: the
 * pool cannot promise the minimum; -ENFILE too many tenants.
 */
int hp_tenant_create(hp_pool pool, uint64_t limit, uint64_t minimum, hp_tenant *tenant, hp_error *error);
/* Errors: -EBUSY it has files (one with a name until it is unlinked), or another call on it is running; -EBADF. */
int hp_tenant_close(hp_tenant tenant);

typedef struct hp_tenant_stat {
	uint32_t struct_size; /* set by the caller */
	uint32_t files;
	uint64_t limit, minimum; /* bytes; a limit of 0 is none */
	uint64_t used;           /* bytes that its files were promised, present or not */
} hp_tenant_stat;

/* Errors: -EINVAL struct_size is too small; -EBADF. */
int hp_tenant_stat_get(hp_tenant tenant, hp_tenant_stat *stat);

/* ---- Files ----------------------------------------------------------------------------------------------------- */

/*
 * Makes a file without a name: `size` bytes (rounded up to frames) that read as zeroes; no frame is taken yet. It
 * lives until every process has closed it and unmapped its mappings of it; then its frames are recycled. `flags`:
 * HP_FILE_FALLBACK, HP_FILE_MOVABLE. Errors: -EINVAL size 0, unknown flags; -EFBIG larger than the pool can ever index;
 * -ENFILE too many files.
 */
int hp_file_create(hp_pool pool, uint64_t size, unsigned flags, hp_file *file, hp_error *error);

#define HP_FILE_CREATE 1u    /* make the file if there is none of that name */
#define HP_FILE_EXCLUSIVE 2u /* it must not be there */

/*
 * Kinds of new files, for hp_file_open() and hp_file_create().
 *
 * HP_FILE_FALLBACK: where no frame can be promised the file takes base pages of 4 KiB, from memory outside of the
 * pool's size. They lie in places of 2 MiB, each for a page of the file; a pool has places for its max_size, rounded up
 * to GiB. Ready memory and hp_file_allocate() give all of a place its memory at once; of lazy memory, and of what is
 * written by hp_file_write(), a base page comes when it is touched, without any SIGSEGV. What was promised can end, as
 * all memory that is not set aside, with the kernel killing a process.
 *
 * HP_FILE_MOVABLE: hugepool may move its pages (hp_collapse(), hp_split()), in the process that maps them. All mappings
 * of it are engine memory, those without HP_MAP_LAZY only have their pages from the start. A store to a page that is
 * being moved waits some hundred us, in the SIGSEGV handler; so a system call that is handed such memory to write to
 * may answer EFAULT at any time, as it does for lazy memory that was not touched. What is in flight to it from devices
 * and asynchronous input is lost unless the memory is pinned (hp_pin()). A futex shared between processes must not lie
 * in it: who waits misses the wake-up.
 */
#define HP_FILE_FALLBACK 4u
#define HP_FILE_MOVABLE 8u

typedef struct hp_file_options {
	uint32_t struct_size; /* sizeof(hp_file_options); lets the struct grow */
	uint32_t flags;       /* HP_FILE_... */
	uint64_t size;        /* of a new file: bytes, rounded up to frames */
	hp_tenant tenant;     /* of a new file; zeroed: none */
	/* Of a new file: how long a call that needs frames waits for them, before it falls back or is refused. */
	uint32_t wait_ms;
	uint32_t reserved;
} hp_file_options;

#define HP_FILE_OPTIONS_INIT                           \
	{                                              \
		.struct_size = sizeof(hp_file_options) \
	}

/*
 * Opens a file by its name, or makes it: a name of up to 255 bytes that all processes of the pool see. A named file
 * lives until it is unlinked, and closed and unmapped by all. Each opening is a handle to be closed. Without options
 * the file must be there; without a name (NULL) one is made that has none. Errors: -ENOENT; -EEXIST; -EINVAL;
 * -ENAMETOOLONG; -EBADF the tenant is closed; those of hp_file_create().
 */
int hp_file_open(hp_pool pool, const char *name, const hp_file_options *options, hp_file *file, hp_error *error);

/* Takes a file's name away; who has it open or mapped keeps it. Errors: -ENOENT. */
int hp_file_unlink(hp_pool pool, const char *name, hp_error *error);

/* Gives up one handle of this process; mappings stay. Errors: -EBADF. */
int hp_file_close(hp_file file);

/*
 * Makes every page of the range present and zeroed, on all CPUs where many frames have to be zeroed for it. What was
 * there before is kept. All or nothing as far as the promise goes: -ENOMEM takes no frame.
 * Errors: -EINVAL offset or length not a multiple of HP_FRAME_SIZE, or outside the file; -ENOMEM, HP_LIMIT_POOL;
 * -EDQUOT, HP_LIMIT_TENANT.
 */
int hp_file_allocate(hp_file file, uint64_t offset, uint64_t length, hp_error *error);

#define HP_PUNCH_KEEP 1u /* zero the memory in place, and keep it */

/*
 * A range of bytes reads as zeroes again, in every process, stopped ones included, when this returns. Whole frames of
 * it that nobody maps go back to the pool. Those that somebody maps are given back to the kernel (hugetlb) or zeroed
 * in place, and stay with the file as holes: their mappings find zeroed memory at the next touch. Parts of frames are
 * zeroed in place. A range beyond the end is none. A hole that is mapped keeps the kernel's reservation. If others
 * were faster and took the kernel's last huge pages, the range is punched and the result is -ENOSPC, with the number
 * of holes whose touch would be SIGBUS. A control group's hugetlb limit counts a hole's memory for whoever touches it:
 * a touch beyond that limit is SIGBUS.
 * Errors: -EINVAL length 0, unknown flags; -ENOSPC; -ENOMEM no room in the index: part of the range may be as it was.
 */
int hp_file_punch(hp_file file, uint64_t offset, uint64_t length, unsigned flags, hp_error *error);

/*
 * Changes the size of a file, up to what it was made with or the pool's max_size in whole GiB, whichever is more. What
 * lies beyond the new end is taken away; after growing again it is absent and reads as zeroes. Mappings that reach
 * beyond the end: a touch there is SIGBUS, and a system call that is handed such memory answers EFAULT. In this
 * process that holds when the call returns; another process finds, until its own next call on the pool, memory that is
 * empty at the cut and whose contents nobody else sees: what it stores there is lost. When the file has grown again,
 * its mappings are whole again: here at once, in other processes at their next call. What they have mapped is promised
 * again for that, so that growing may fail where the pool is short.
 * Errors: -EINVAL not a multiple of HP_FRAME_SIZE; -EFBIG; -ENOMEM, HP_LIMIT_POOL; -EDQUOT, HP_LIMIT_TENANT: nothing
 * has changed then.
 */
int hp_file_truncate(hp_file file, uint64_t size, hp_error *error);

/*
 * Copies bytes out of a file or into it, through the pool's own mapping; `buffer` may be any memory, lazy memory too.
 * Returns how many bytes were copied: fewer at the end of the file, which writing does not move, and 0 beyond it.
 * Reading takes no frame for what is absent; writing makes it present. Not atomic against other writers.
 * Errors: -ENOMEM no frame for the first page to be written, or no memory for a hole; -EDQUOT; -EBADF.
 */
int64_t hp_file_read(hp_file file, uint64_t offset, void *buffer, uint64_t length);
int64_t hp_file_write(hp_file file, uint64_t offset, const void *buffer, uint64_t length);

typedef struct hp_file_stat {
	uint32_t struct_size; /* set by the caller */
	uint32_t mappings;    /* of all processes */
	uint64_t size;        /* bytes */
	uint64_t present;     /* bytes of pages that have a frame, or a place, of which not all may have memory */
	uint64_t holes;       /* bytes that were punched while mapped: memory is the kernel's to give */
	uint64_t reserved;    /* bytes that are promised and have no frame yet */
	/* Of both, present and holes: bytes in places for base pages, also where the kernel made these huge in place. */
	uint64_t base;
} hp_file_stat;

/* Errors: -EINVAL struct_size is too small; -EBADF. */
int hp_file_stat_get(hp_file file, hp_file_stat *stat);

/* ---- Mappings -------------------------------------------------------------------------------------------------- */

#define HP_PROT_READ 1u
#define HP_PROT_WRITE 2u

/*
 * HP_MAP_LAZY: engine memory. Pages are reserved now, and taken and mapped at their first touch, in a SIGSEGV handler.
 * Limits: system calls answer EFAULT on pages not touched yet; SIGSEGV must not be blocked where a page may be touched
 * for the first time, and an alternate signal stack needs 8 KiB beyond the processor's minimum; a program that
 * replaces the SIGSEGV handler must call hp_handle_fault() from its own; a page never touched costs a reservation, not
 * a frame. A pool knows up to 2047 threads and 511 processes at a time: the first touch of one more cannot be
 * resolved.
 */
#define HP_MAP_LAZY 1u

/*
 * Where to map, by *address as it is given; at most one of these. HP_MAP_WISH: there if nothing is and it suits, else
 * elsewhere. HP_MAP_AT: there, or not at all. HP_MAP_REPLACE: there, in the place of mappings of hugepool that have
 * all of the range: what is mapped there is replaced in one step, and a failure leaves it as it is.
 */
#define HP_MAP_WISH 2u
#define HP_MAP_AT 4u
#define HP_MAP_REPLACE 8u

/*
 * Maps a range of a file, shared with all who map it. Without HP_MAP_LAZY every page is allocated, zeroed and there on
 * return: ready memory. A mapping of 1 GiB and more is placed so that the kernel can share page tables.
 * Once mapped, every page of the range can be touched: what cannot be promised is refused here.
 * Errors: -EINVAL offset or length not a multiple of HP_FRAME_SIZE, length 0, outside the file, unknown flags, an
 * address that is no multiple of HP_FRAME_SIZE, HP_MAP_REPLACE where not all of the range is mapped; -EEXIST something
 * is mapped at the address of HP_MAP_AT; -ENOMEM with the limit that was hit: HP_LIMIT_POOL, HP_LIMIT_MAP_COUNT,
 * HP_LIMIT_ADDRESS, HP_LIMIT_TABLE; -EDQUOT, HP_LIMIT_TENANT. The first lazy mapping of a process installs the SIGSEGV
 * handler; faults that are not hugepool's go on to the handler that was there before, with their siginfo.
 */
int hp_map(hp_file file, uint64_t offset, uint64_t length, unsigned prot, unsigned flags, void **address,
           hp_error *error);

#define HP_FORK_WITHOUT 16u /* a fork child does not get it */
#define HP_FORK_COPY 32u    /* a fork child gets a copy in base pages, made while the fork waits */

/*
 * Maps private memory: zeroed, of this process, with the flags of hp_map(). What a fork makes of it is chosen here.
 * Without one of the flags above parent and child have it copy on write from the fork on, as the kernel's private
 * memory: the fork stays fast, and each page costs a copy at the first store to it, in the parent too. The copies are
 * made by the kernel, in huge pages of its own pool for a pool of hugetlb; those for this process are reserved here,
 * and refused if that is not possible. As with the kernel's own private huge pages, a child's copies are not reserved.
 * After the fork the memory is the kernel's: it is not lazy any more, its copies are in no figure of the pool, and its
 * frames come back when all of it is unmapped in every process that has it. Input and output into this memory that is
 * under way during a fork may be lost, as may what comes later through buffers that were registered before it. vfork,
 * posix_spawn, system(3) and exec change nothing; the child of a raw clone, or of _Fork(3), shares the memory.
 * Errors: those of hp_map(); -ENOMEM, HP_LIMIT_KERNEL_POOL: the kernel cannot promise pages for the copies.
 */
int hp_map_private(hp_pool pool, uint64_t length, unsigned prot, unsigned flags, void **address, hp_error *error);

/*
 * Removes what is mapped in a range, which mappings of hugepool have all of: whole mappings, or parts of them. No
 * thread may touch it any more.
 * Errors: -EINVAL not multiples of HP_FRAME_SIZE, or not all of it is mapped; -EAGAIN too many threads use the pool;
 * -ENOMEM the kernel or the C library had no memory for it, or no kernel mapping for what is left: mappings before the
 * one that failed are gone, and nothing else has changed.
 */
int hp_unmap(void *address, uint64_t length);

/*
 * Changes the protection of a range, which mappings of hugepool have all of: 0, HP_PROT_READ, or HP_PROT_READ |
 * HP_PROT_WRITE. Lazy memory that was not touched yet gets it with its first touch. An access that it forbids is
 * SIGSEGV.
 * Errors: those of hp_unmap().
 */
int hp_protect(void *address, uint64_t length, unsigned prot);

/*
 * Takes and maps all pages of a part of a mapping, so that they can be handed to system calls. Nothing to do for ready
 * memory. Errors: -EINVAL not multiples of HP_FRAME_SIZE, or not inside one mapping; -ENXIO beyond the end of the file.
 */
int hp_populate(void *address, uint64_t length);

/* ---- Collapse -------------------------------------------------------------------------------------------------- */

/*
 * Makes the memory of a range huge. Base pages of a movable file are copied to a frame of the pool and their mappings
 * switched to it: who reads goes on meanwhile, who writes waits for that page. Where no frame is free, where another
 * process maps the page too, and in memory of other files, the kernel is asked to do the same in place, which it may
 * for memory that is not its pool's; such a page lies in a frame after a later call, when one is free. What is huge
 * already stays as it is, and what is absent stays absent. collapse_none does not matter here.
 * Errors: -EINVAL length 0, not multiples of HP_FRAME_SIZE, or not inside one mapping; -EBUSY with HP_LIMIT_PINNED a
 * page is pinned; -EBUSY another process maps it, and the kernel refuses; -ENOMEM, HP_LIMIT_POOL no frame is free, and
 * the kernel refuses; -ENOMEM, HP_LIMIT_MEMORY the kernel refuses, and there is no other way; -EAGAIN the page was
 * changed meanwhile (tuning collapse=relock). The pages before the one that failed are huge then.
 */
int hp_collapse(void *address, uint64_t length, hp_error *error);

/*
 * The way back: pages of a movable file that lie in frames of the pool come to lie in base pages, without those that
 * are all zero, and the frames go back to the pool. Other pages stay as they are, also those that the kernel made huge
 * in place, and are no error. Parts of pages in base pages are given back to the kernel by hp_file_punch(), in whole
 * base pages, where memory of frames would only be zeroed; a later collapse of such a page takes the memory again.
 * Errors: those of hp_collapse(); -EPERM the file is not movable; -ENOMEM, HP_LIMIT_TABLE no place is left for base
 * pages; -EBUSY another process maps the page.
 */
int hp_split(void *address, uint64_t length, hp_error *error);

/*
 * Keeps pages of a movable file where they are, present and mapped, for devices and asynchronous calls that will write
 * to them or read them: a hp_collapse() or hp_split() that would move one answers -EBUSY. Pins count, for each page of
 * 2 MiB that has a part of the range, and go when it is unmapped; a fork child has none. In memory that is not movable
 * there is nothing to do. Punching or cutting the file takes pinned memory away as any other: that is the program's own
 * wish.
 * Errors: -EINVAL not all of it inside one mapping, or length 0; hp_unpin: it is not pinned; -ENOMEM; -ENXIO beyond the
 * end of the file. Any address and length; not signal safe.
 */
int hp_pin(const void *address, uint64_t length);
int hp_unpin(const void *address, uint64_t length);

/*
 * Times by size, in ns: bucket b counts those from hp_histogram_bound(b) on, up to the next one's, which lies an eighth
 * to a quarter higher.
 */
#define HP_HISTOGRAM_BUCKETS 112

typedef struct hp_histogram {
	uint64_t count, total, max;
	uint64_t bucket[HP_HISTOGRAM_BUCKETS];
} hp_histogram;

uint64_t hp_histogram_bound(unsigned bucket);
/* The upper bound of the bucket where so many percent (0 to 100) of the times end, at most `max`; 0 of an empty one. */
uint64_t hp_histogram_percentile(const hp_histogram *histogram, double percent);

typedef struct hp_collapse_stats {
	uint32_t struct_size; /* set by the caller */
	uint32_t relock;      /* 1: the variant */
	uint64_t collapsed;   /* pages of 2 MiB, by copy */
	uint64_t in_place;    /* by the kernel */
	uint64_t split;
	uint64_t rechecked; /* relock: the lock was let go and all checked again, */
	uint64_t gave_up;   /*   and was not the same any more */
	uint64_t busy;      /* attempts at pages that are pinned, or mapped by others */
	uint64_t no_frame;  /* attempts for which no frame was free; the kernel may have done it in place then */
	uint64_t misused;   /* collapse_verify: pages that were written past hugepool */
	/* Of collapses by copy, in ns together: locking and looking, write-protecting the mappings, copying, switching
	 * them, giving the old memory back. */
	uint64_t lock_ns, protect_ns, copy_ns, switch_ns, free_ns;
	hp_histogram collapse; /* by copy, from the first lock until the old page is freed */
	hp_histogram pause;    /* of threads that wrote to a page that was being moved */
} hp_collapse_stats;

/* Errors: -EINVAL struct_size is too small; -EBADF. */
int hp_collapse_stats_get(hp_pool pool, hp_collapse_stats *stats);

/*
 * For a program that has its own SIGSEGV handler, installed after hugepool's: call this first, from inside it.
 * `siginfo` and `ucontext` are the handler's second and third argument. Returns 1 if the fault was resolved and the
 * instruction can be repeated, 0 if it is not hugepool's. Signal safe; meant for a handler that blocks all signals.
 */
int hp_handle_fault(void *siginfo, void *ucontext);

#ifdef __cplusplus
}
#endif

#endif
