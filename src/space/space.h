/* SPDX-License-Identifier: MIT */
/*
 * One process's address space, as far as it is ours: the mappings of all its pools, by address.
 *
 * Faults find their mapping in the range map inside a read section of `epoch`, without a lock. Whoever changes the map
 * holds `lock`. What a change replaced is freed, and a lazy mapping's addresses are given back, only after a
 * synchronization: a handler that found the mapping before it was removed may still put pages there, and must not find
 * that the addresses belong to somebody else by then:
 *
 *   fault                                   unmap
 *   enter the epoch
 *   find the mapping
 *                                           remove it from the map
 *                                           synchronize: waits
 *   map frames over the range
 *   leave the epoch
 *                                           unmap the range
 */
#ifndef HP_SPACE_SPACE_H
#define HP_SPACE_SPACE_H

#include "base/range_map.h"
#include "file/vma.h"
#include "space/touched.h"
#include "sync/epoch.h"

/*
 * A mapping. Found by faults, so its memory goes through the range map's retired list. What is cut out of one, or gets
 * another protection, becomes mappings of its own: pieces.
 */
struct hp_mapping {
	void *retired_link;
	/* Never change once faults can find it. */
	uintptr_t start;
	uint64_t length;
	struct hp_pool_view *pool;
	uint32_t file; /* the mapping's record in the file's list holds a reference */
	uint32_t first, pages;
	uint32_t flags;
	struct hp_touched *touched; /* of a lazy one */

	uint32_t prot;          /* changes where the kernel refused the change that it was made for */
	_Atomic uint32_t reach; /* pages that are the file's; what lies beyond its end raises SIGBUS */
	_Atomic bool moving;    /* its memory is on the way to its place: touches wait */
	_Atomic bool frozen;    /* private memory that is the kernel's since a fork */
	bool gone;              /* in a child that did not get it: see hp_space_enter() */

	/* Under the space lock. */
	uint64_t maps;      /* kernel mappings set aside for it */
	uint32_t vma;       /* its record; 0: not registered (a child that is not a member) */
	uint32_t child_vma; /* the record that the last child was given; under the fork gate for writing */
	uintptr_t holder; /* of private memory that may be frozen: what is reserved for it, page by page; 0: nothing */
	uintptr_t copy;   /* what the child will get instead; while a fork is prepared */
	uintptr_t staged; /* new memory of a page that is moved, until it takes its place; else 0 */
};

struct hp_space {
	/*
	 * Held for reading while a mapping is made or removed, for writing by fork: a child must not get a kernel
	 * mapping that stands in no books, or the other way round.
	 */
	struct hp_rwsem fork_gate;
	struct hp_mutex lock;       /* protects changes of `ranges` */
	struct hp_mutex grace_lock; /* one synchronization at a time; taken without `lock` held */
	uint32_t cuts; /* calls that still look at pieces they made: nothing is freed until they have ended */
	struct hp_range_map ranges;
	struct hp_epoch epoch;
	_Atomic uint32_t privates; /* private mappings were made: a fork has to look for them */
	_Atomic bool some_gone;    /* the map has mappings that this child did not get */
};

/* Of a mapping, beside those of hp_map() and hp_map_private(). */
#define HP_MAPPING_PRIVATE 0x10000u

extern struct hp_space hp_space;

/* The calling thread's part in the locks of the space: it has another one in each pool, and may have none there. */
const struct hp_locker *hp_space_locker(void);

/* -- mapping.c --------------------------------------------------------------------------------------------------- */

static inline void *hp_mapping_at(const struct hp_mapping *m, uint32_t page)
{
	return (void *)(m->start + hp_bytes(page - m->first));
}

static inline uint32_t hp_mapping_end(const struct hp_mapping *m)
{
	return m->first + m->pages;
}

static inline struct hp_file_use hp_mapping_file(const struct hp_mapping *m)
{
	return (struct hp_file_use){hp_file_at(m->pool, m->file), m->file};
}

/* A mapping without a record or an address; NULL: no memory. */
struct hp_mapping *hp_mapping_new(struct hp_pool_view *view, uint32_t file, uint32_t first, uint32_t pages,
                                  unsigned prot, unsigned flags);
/* What its file's list says of a mapping, for a process that has it. */
struct hp_vma_record hp_mapping_facts(const struct hp_mapping *m, uint32_t process);
/* Enters the mapping into its file's list. */
int hp_mapping_register(struct hp_thread *t, struct hp_mapping *m, hp_error *error);
/* Faults never saw it, or see it no more: gives its record and its kernel mappings back. *t may be NULL: no books. */
void hp_mapping_forget(struct hp_thread *t, struct hp_mapping *m);
/* Sets kernel mappings aside. */
int hp_mapping_take_maps(struct hp_mapping *m, uint64_t maps, hp_error *error);

/* The alignment at which the kernel shares page tables with the direct map, or a frame. */
uint64_t hp_mapping_alignment(const struct hp_mapping *m);
/* Takes inaccessible addresses, equal to `skew` modulo the alignment; m->start says where. */
int hp_mapping_reserve(struct hp_mapping *m, uint64_t skew, hp_error *error);
/* Maps pages that are present into a mapping, in one kernel mapping. Signal safe. */
int hp_mapping_place(const struct hp_mapping *mapping, uint32_t page, uint32_t pages, hp_frame_id frame,
                     unsigned os_flags);
/*
 * What to place so many frames with: their page table at once, unless it is large or shared. Pages of a region that begin
 * where the region does can get theirs from the direct map.
 */
unsigned hp_mapping_populate_flag(const struct hp_mapping *m, uint32_t frames);
/* The run of frames that the pages from `page` on lie in, and how long it is; 0: the page is absent. */
uint32_t hp_mapping_run(struct hp_thread *t, const struct hp_mapping *m, uint32_t page, hp_frame_id *frame);
/* How many runs of frames the pages lie in; 0 if one is absent. */
uint32_t hp_mapping_runs(struct hp_thread *t, const struct hp_mapping *m);
/* Maps [page, end), which is present and whose addresses are ours, run by run. */
int hp_mapping_place_runs(struct hp_thread *t, const struct hp_mapping *m, uint32_t page, uint32_t end);
/*
 * What lies from `page` on is beyond the file's end: an access is SIGBUS from now on. The file lock is held for
 * reading. Signal safe.
 */
int hp_mapping_cut(struct hp_mapping *m, uint32_t page);

/* -- map.c ------------------------------------------------------------------------------------------------------- */

/* Checks what hp_map() is asked for. */
int hp_space_check(const struct hp_pool_view *view, unsigned prot, unsigned flags, uintptr_t wish, hp_error *error);
/*
 * Makes a new mapping: its record, its pages, its place in the range map. On failure nothing is left but its memory.
 * *start: where it is; the mapping may be gone already, unmapped by another thread.
 */
int hp_space_map(struct hp_thread *t, struct hp_mapping *m, uintptr_t wish, uintptr_t *start, hp_error *error);

/* -- private.c --------------------------------------------------------------------------------------------------- */

/* As hp_mapping_forget(), when pages of the mapping have been unmapped: gives up what private memory had there. */
void hp_private_forget(struct hp_thread *t, struct hp_mapping *m, uint32_t page, uint32_t end);
/* Around a fork, under the fork gate. In the child signal safe. */
void hp_private_prepare(void);
void hp_private_in_parent(void);
void hp_private_in_child(void);
/* Its memory is on the way to its place: touches wait. Signal safe. */
bool hp_private_is_moving(const struct hp_mapping *m);
/* A fault has put pages there. Signal safe. */
void hp_private_faulted(const struct hp_mapping *m);

/* -- cut.c ----------------------------------------------------------------------------------------------------- */

/*
 * Waits for all faults that may have found what was taken out of the range map, then frees a detached retired list, or
 * NULL. Without the space lock.
 */
void hp_space_reclaim(void *retired);
/* A mapping that is in the range map no more; frees what has waited when it has become much. */
void hp_space_retire(struct hp_mapping *m);

/* Addresses like these that were given back; 0: none. */
uintptr_t hp_space_recall_address(uint64_t length, uint64_t align, uint64_t skew);
/*
 * The way into calls that change the space: takes over what the parent prepared, in a fork child, and forgets mappings
 * that the child did not get. The fork gate is held for reading then, until hp_space_leave().
 */
void hp_space_enter(void);
void hp_space_leave(void);
/* This process has mappings of the pool, also such as are in no books. */
bool hp_space_in_use(struct hp_thread *t);

/* -- pin.c ------------------------------------------------------------------------------------------------------- */

/* A page of a file is pinned by this process. The space lock is held. */
bool hp_page_is_pinned(const struct hp_pool_view *view, uint32_t file, uint32_t page);
/* Addresses that are not this mapping's any more have no pins. The space lock is held. */
void hp_pins_drop_locked(uintptr_t start, uintptr_t end);
/* In a fork child, which has none. */
void hp_pins_reset(void);

/* -- replace.c --------------------------------------------------------------------------------------------------- */

/*
 * The mapping is made, at a scratch address: it comes to stand in the place of all that is mapped in its range at
 * `start`.
 */
int hp_space_replace(struct hp_thread *t, struct hp_mapping *m, uintptr_t start, hp_error *error);

/* -- catch_up.c -------------------------------------------------------------------------------------------------- */

/* Makes this process's mappings of the pool what their files' ends say. */
void hp_space_catch_up(struct hp_thread *t);

/* -- fault.c ----------------------------------------------------------------------------------------------------- */

enum hp_fault_result {
	HP_FAULT_FOREIGN = 0, /* not ours, or an access that the mapping does not allow */
	HP_FAULT_RESOLVED,
	HP_FAULT_FAILED, /* ours, and it could not be resolved: logged */
};

/*
 * Resolves a fault; one beyond the end of the file so that it is SIGBUS when repeated. Signals are blocked. Signal
 * safe.
 */
enum hp_fault_result hp_space_fault(uintptr_t address, bool write);
/*
 * The same for a part of a lazy mapping, from an ordinary call inside a read section, signals blocked. -ENXIO beyond
 * the end.
 */
int hp_mapping_populate(struct hp_thread *t, struct hp_mapping *mapping, uint32_t page, uint32_t pages);

/* -- fork.c ------------------------------------------------------------------------------------------------------ */

/* Registers the fork handlers. Once. */
void hp_fork_watch(void);

/* -- handler.c --------------------------------------------------------------------------------------------------- */

/* Installs the SIGSEGV handler at the first call. */
int hp_handler_install(void);

#endif
