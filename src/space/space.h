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
#include "sync/epoch.h"

/* A mapping. Found by faults, so its memory goes through the range map's retired list. */
struct hp_mapping {
	void *retired_link;
	/* Never change. */
	uintptr_t start;
	uint64_t length;
	struct hp_pool_view *pool;
	uint32_t file; /* the mapping's record in the file's list holds a reference */
	uint32_t first, pages;
	uint32_t prot, flags;
	uint64_t maps; /* kernel mappings set aside for it */

	uint32_t vma;       /* its record; 0: not registered (a child that is not a member) */
	uint32_t child_vma; /* the record that the last child was given; under the fork gate for writing */

	/*
	 * Lazy mappings: a bit a page, set when the page has been mapped; and, by chunk of the file, how many are
	 * set.
	 */
	_Atomic uint64_t *mapped;
	_Atomic uint16_t *chunk_mapped;
};

struct hp_space {
	/*
	 * Held for reading while a mapping is made or removed, for writing by fork: a child must not get a kernel
	 * mapping that stands in no books, or the other way round.
	 */
	struct hp_rwsem fork_gate;
	struct hp_mutex lock;       /* protects changes of `ranges` */
	struct hp_mutex grace_lock; /* one synchronization at a time; taken without `lock` held */
	struct hp_range_map ranges;
	struct hp_epoch epoch;
};

extern struct hp_space hp_space;

/* What its file's list says of a mapping, for a process that has it. */
static inline struct hp_vma_record hp_mapping_facts(const struct hp_mapping *m, uint32_t process)
{
	return (struct hp_vma_record){.process = process,
	                              .first = m->first,
	                              .pages = m->pages,
	                              .prot = m->prot,
	                              .flags = m->flags,
	                              .address = m->start};
}

/* The calling thread's part in the locks of the space: it has another one in each pool, and may have none there. */
const struct hp_locker *hp_space_locker(void);

/* -- library.c --------------------------------------------------------------------------------------------------- */

/* hp_pool_create on a backend of choice. */
int hp_pool_create_on(struct hp_os *os, const hp_pool_options *options, hp_pool *pool, hp_error *error);

/* -- map.c ------------------------------------------------------------------------------------------------------- */

/* Maps pages that are present into a mapping: as many kernel mappings as they have runs of frames. */
int hp_mapping_place(const struct hp_mapping *mapping, uint32_t page, uint32_t pages, hp_frame_id frame,
                     unsigned os_flags);

/* -- fault.c ----------------------------------------------------------------------------------------------------- */

enum hp_fault_result {
	HP_FAULT_FOREIGN = 0, /* not ours, or an access that the mapping does not allow */
	HP_FAULT_RESOLVED,
	HP_FAULT_FAILED, /* ours, and it could not be resolved: logged */
};

/* Resolves a fault. Signals are blocked. Signal safe. */
enum hp_fault_result hp_space_fault(uintptr_t address, bool write);
/* The same for a part of a lazy mapping, from an ordinary call inside a read section, signals blocked. */
int hp_mapping_populate(struct hp_thread *t, struct hp_mapping *mapping, uint32_t page, uint32_t pages);

/* -- fork.c ------------------------------------------------------------------------------------------------------ */

/* Registers the fork handlers. Once. */
void hp_fork_watch(void);

/* -- handler.c --------------------------------------------------------------------------------------------------- */

/* Installs the SIGSEGV handler at the first call. */
int hp_handler_install(void);

#endif
