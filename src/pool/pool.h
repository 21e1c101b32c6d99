/* SPDX-License-Identifier: MIT */
/*
 * One process's view of a pool, and one thread's part in it. Everything that is shared is in the arena (pool/layout.h).
 */
#ifndef HP_POOL_POOL_H
#define HP_POOL_POOL_H

#include "pool/frame.h"
#include "pool/layout.h"
#include "sync/point.h"
#include "sync/signals.h"

#define HP_POOLS_MAX 16u /* of one process */

struct hp_workers;
struct hp_collapser;
struct hp_background_fill;

struct hp_pool_view {
	/* Never change while the view is open. */
	struct hp_os *os;
	struct hp_arena arena;
	struct hp_pool_shared *shared;
	struct hp_processes processes;
	struct hp_slot *slots;
	struct hp_lock_domain locks;
	char (*lock_points)[HP_POINT_NAME]; /* [HP_POINTS_MAX]: names by number */
	struct hp_intents *intents;         /* by slot */
	struct hp_fault_mutex *fault_mutexes;
	struct hp_cpu_cache *caches;
	struct hp_region *regions;
	struct hp_frame *frames;
	uint64_t *zeroed_map, *free_map; /* under the extents lock */
	_Atomic uint64_t *huge_map;      /* frames of shared memory that the kernel has made huge */
	struct hp_page_store pages;
	void *files, *vmas;               /* records of the layers above */
	char (*names)[HP_FILE_NAME_SIZE]; /* of files, by number; "" is none; under names_lock */
	_Atomic uint16_t *opens;          /* [process][file]: handles, see file/file.h */
	hp_segment segment[HP_SEGMENTS_MAX];
	char *direct;                    /* frame 0 in the pool's own mapping */
	_Atomic uint32_t *direct_frames; /* [region]: frames that this process has mapped there */
	uint64_t maps;                   /* kernel mappings set aside for the direct map */
	struct hp_thread *threads;       /* [slot]: of this process's threads */
	uint32_t index;                  /* in the process's table of pools */
	uint32_t generation;

	/* Change at fork, when there is one thread. */
	uint32_t process;   /* 0: not a member (a raw clone, or no record left): engine calls fail */
	void *process_lock; /* os/life.h */
	uint32_t forks;     /* grows when a child takes the view over: threads of its parent are not its own */

	struct hp_workers *workers;         /* threads of this process; NULL in a fork child */
	struct hp_collapser *collapser;     /* the same */
	struct hp_background_fill *filling; /* the same */
};

struct hp_thread { /* a thread's part in a pool, as long as it holds a slot */
	struct hp_pool_view *pool;
	struct hp_slot *slot;
	struct hp_intents *intents;
	struct hp_locker locker;
};

/* In a repair routine: lockers of a pool are parts of its threads. */
static inline struct hp_thread *hp_thread_of(const struct hp_locker *who)
{
	return (struct hp_thread *)((uintptr_t)who - offsetof(struct hp_thread, locker));
}

/* -- registry.c: handles, views and threads ---------------------------------------------------------------------- */

/* The view of a handle, or NULL: closed, or never was. */
struct hp_pool_view *hp_pool_find(uint64_t id);
struct hp_pool_view *hp_pool_at(uint32_t index);
/* Enters an initialised view into the table: its index and generation are set. -EMFILE. */
int hp_pool_register(struct hp_pool_view *view);
/*
 * Takes the view out of the table and gives the calling thread's slot up. Returns how many slots, from the first on,
 * hold all those of other threads of this process: they must stay mapped as long as these threads live.
 */
uint32_t hp_pool_unregister(struct hp_pool_view *view);
/*
 * Held by a fork from before it until after it, in both processes: no pool appears or vanishes meanwhile, and one fork
 * at a time prepares a child.
 */
void hp_pools_lock(void);
void hp_pools_unlock(void);
/*
 * The calling thread's part in the pool. 0; -ECHILD this process is not a member; -EAGAIN no slot is left. An ordinary
 * call makes sure that the slot is given up when the thread ends; one that first comes in the fault path, signals
 * blocked, leaves it to the kernel to mark it.
 */
int hp_thread_enter(struct hp_pool_view *view, struct hp_thread **thread);
int hp_thread_enter_blocked(struct hp_pool_view *view, struct hp_thread **thread);
/*
 * True if this process may use its pools: it made them, or it has taken over what its parent prepared at a fork, which
 * this does at the first call. False in the child of a raw clone. Signal safe.
 */
bool hp_process_is_known(void);
/* What takes over: space/fork.c. */
void hp_process_on_fork(bool (*after)(void));
/* In a fork child, where the lock is held by the parent's thread. */
void hp_pools_reset(void);

/* -- hooks: what the layers above know about a process ---------------------------------------------------------- */

struct hp_promised { /* free frames, and places for base pages */
	uint64_t frames, base;
};

struct hp_pool_hooks { /* each may be NULL */
	/* Takes back everything that dead processes had: handles, mappings. Under the reap lock; may be begun again. */
	void (*reap)(struct hp_thread *t, const uint64_t *dead);
	/* Finishes what a dead thread was in the middle of. Under the reap lock; may be begun again. */
	void (*recover)(struct hp_thread *t, const struct hp_intent *intent);
	/* Begins what the layer does in the background, and ends it: a thread of the process that made the pool. */
	int (*start)(struct hp_thread *t, const hp_pool_options *options);
	void (*stop)(struct hp_pool_view *view);
	/* Whether this process has handles or mappings, for hp_pool_close. */
	bool (*in_use)(struct hp_thread *t);
	/* Pages promised and not taken, by their bits. Exact when nothing else runs. */
	struct hp_promised (*promised)(struct hp_thread *t);
	/* A file may have been cut or have grown under a mapping of this process. Not under a lock. */
	void (*catch_up)(struct hp_thread *t);
	/* The layer's invariants: 0, or -EUCLEAN and the first violation. Nothing else runs. */
	int (*check)(struct hp_thread *t, hp_error *error);
};
void hp_pool_hooks_add(const struct hp_pool_hooks *hooks);
int hp_pool_start_layers(struct hp_thread *t, const hp_pool_options *options);
void hp_pool_stop_layers(struct hp_pool_view *view);
bool hp_pool_in_use(struct hp_thread *t);
struct hp_promised hp_pool_promised(struct hp_thread *t);
/* Brings the process's mappings up to date, if they are behind. Not under a lock. */
void hp_pool_catch_up(struct hp_thread *t);
/* The same; and waits for another thread that is about it. */
void hp_pool_catch_up_now(struct hp_thread *t);
int hp_pool_check_layers(struct hp_thread *t, hp_error *error);
/* Buries dead processes. Returns how many. Not in the fault path. */
uint32_t hp_pool_reap(struct hp_thread *t);
/* Takes back what the processes had that are buried and not released, under the reap lock. Returns how many. */
uint32_t hp_pool_reap_buried(struct hp_thread *t);
/* `dead` has a bit for each process record. */
static inline bool hp_is_dead(const uint64_t *dead, uint32_t process)
{
	return dead[process / 64] >> process % 64 & 1;
}

/* -- pool.c ------------------------------------------------------------------------------------------------------ */

/* hp_pool_create, when the layers have been joined (space/library.c). */
int hp_pool_make(struct hp_os *os, const hp_pool_options *options, hp_pool *pool, hp_error *error);
/* Points the view at the sections of its arena. */
void hp_pool_find_sections(struct hp_pool_view *view);
/* -EPROTO: the arena's header is not the one that a pool of this size has. */
int hp_pool_verify_arena(const struct hp_pool_view *view);
/*
 * The way into every ordinary call: finds the pool and the thread's part in it, and explains what is wrong otherwise.
 * When slots have run out it takes those of dead processes first.
 */
int hp_pool_enter(uint64_t id, struct hp_thread **t, hp_error *error);
/* The same, for who has found the pool already. */
int hp_pool_enter_view(struct hp_pool_view *view, struct hp_thread **t, hp_error *error);
/* Commits frames. When short it first waits for frames that workers have in hand, then takes back what the dead had. */
int hp_pool_promise(struct hp_thread *t, uint64_t frames, hp_error *error);
/* Waits until some are uncommitted, or a time in ns comes: false then. */
bool hp_pool_await_frames(struct hp_thread *t, int64_t deadline_ns);
/* So many free frames are promised to nobody any more: workers may zero what is dirty, and hear of it. Signal safe. */
void hp_pool_unpromise(struct hp_pool_view *view, uint64_t frames);

/* -- repair.c ---------------------------------------------------------------------------------------------------- */

/* Tells the classes of this layer's locks how to make what they protect consistent when an owner has died. */
void hp_pool_repairs(void);

/* -- options.c --------------------------------------------------------------------------------------------------- */

struct hp_tuning {
	uint32_t fault_window, fault_mutexes, fault_sleep_us, zero_mb_per_s;
	uint32_t file_lock, resv_lock;
	uint32_t collapse, collapse_none, collapse_mb_per_s, collapse_scan_ms, collapse_verify;
};
int hp_tuning_parse(const char *text, bool unsafe, struct hp_tuning *tuning, hp_error *error);
int hp_options_check(const hp_pool_options *given, hp_pool_options *options, hp_error *error);

/* -- direct.c: the pool's own mapping of its memory --------------------------------------------------------------- */

/* All segments have room for as many frames. */
static inline uint32_t hp_segment_frames(const struct hp_pool_shared *shared)
{
	return shared->regions / shared->segments * HP_REGION_FRAMES;
}

/* Those that have frames, and no places for base pages. */
static inline uint32_t hp_frame_segments(const struct hp_pool_shared *shared)
{
	return shared->frame_regions / (shared->regions / shared->segments);
}

/* Frames come, go and are mapped in so many, aligned: a huge page of the kernel's. */
static inline uint32_t hp_unit(const struct hp_pool_view *view)
{
	return view->shared->unit;
}

static inline bool hp_is_aligned(const struct hp_pool_view *view, uint64_t bytes)
{
	return (bytes & (hp_bytes(hp_unit(view)) - 1)) == 0;
}

/* Numbers that frames may ever have, and places for base pages. */
static inline uint32_t hp_pool_frames_max(const struct hp_pool_view *view)
{
	return view->shared->regions * HP_REGION_FRAMES;
}

/* The segment record of a frame and the frame's offset in it. */
unsigned hp_segment_of(const struct hp_pool_view *view, hp_frame_id frame, uint64_t *offset);
/* The address of a frame, mapped in this process when needed. NULL: it could not be mapped. Signal safe. */
void *hp_direct(struct hp_pool_view *view, hp_frame_id frame);
/*
 * Maps the first `frames` of a region there, as many as are, or are about to be, filled; those that were mapped stay.
 * -ENOMEM: the kernel's pool has not as many. Signal safe.
 */
int hp_direct_map(struct hp_pool_view *view, uint32_t region, uint32_t frames);
/* The kernel has taken pages of these frames out of every page table, shared ones as a whole. */
void hp_direct_is_spoiled(struct hp_pool_view *view, hp_frame_id first, uint32_t count);
/* Makes page tables of these frames ones that can be shared, if they are not. */
void hp_direct_repair(struct hp_pool_view *view, hp_frame_id first, uint32_t count);

/* -- fill.c ------------------------------------------------------------------------------------------------------ */

/* Fills the pool; its result stands in shared->fill_state and fill_error afterwards. */
int hp_pool_fill(struct hp_thread *t, const hp_pool_options *options, hp_error *error);
/*
 * A pool that is filled late gets what the kernel's pool of huge pages has for it now. Returns how many frames it got.
 */
uint32_t hp_pool_fill_more(struct hp_thread *t);
/* The machine, or the control group, has the memory for so many frames of shared memory. */
bool hp_pool_has_room(struct hp_os *os, uint64_t frames, hp_error *why);
/* The fill is over; what there is to say stands in shared->fill_error. Wakes who waits. */
void hp_fill_end(struct hp_pool_shared *shared, enum hp_fill_state state);
/* Processes are dead: a fill that one was in the middle of has failed. */
void hp_fill_reap(struct hp_pool_view *view, const uint64_t *dead);

/* -- zeroing.c --------------------------------------------------------------------------------------------------- */

/*
 * Zeroes the dirty ones among frames that the caller has taken, at most `*most` of them, which it counts down. Returns
 * how many are zeroed now, from the first on: fewer than `count` also where a frame cannot be mapped. Signal safe.
 */
uint32_t hp_frames_make_zeroed(struct hp_thread *t, hp_frame_id first, uint32_t count, uint32_t *most);

#endif
