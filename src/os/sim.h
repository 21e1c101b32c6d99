/* SPDX-License-Identifier: MIT */
/*
 * The sim backend: no memory, only records of what is mapped where. For deterministic tests and runs of terabytes.
 *
 * Each segment has a 64-bit content tag for each of its base pages; 0 is a zeroed page. Memory comes with the first
 * populate, touch, load or store, also of a zero, and goes with a punch: of HP_BACKING_BASE by the base page, of the
 * others by the frame, of HP_BACKING_THP too (which on Linux comes by the base page until it is collapsed).
 *
 * Each address space page of HP_FRAME_SIZE has a record: unmapped, reserved, or a frame of a segment with its
 * protection. Addresses come from a range that no real mapping can be in (bits 56 and up are set), so sim and linux
 * pools live in one process.
 *
 * Threads: map, unmap, move and touches may run at the same time; a record changes atomically, and when a call that
 * changes it returns, no touch uses the old one any more.
 *
 * As in the kernel, the memory of a destroyed segment stays until its last mapping has gone. Otherwise than there, a
 * call that fails has changed nothing, but for a populate or touch that ran out; move wants three mappings to spare
 * below max_map_count, and a private mapping whole (-EINVAL); a map reserves nothing; a zero, load, store, gather or
 * scatter that would trap ends the process; backed, gather and scatter of hugetlb are -EINVAL; keep_from_children does
 * nothing, as there are no children.
 *
 * A private mapping has a frame of its own from the first store, populate or zero on, whatever the backing. These
 * copies are charged to no budget, and a punch of the segment leaves them alone (Linux drops those of hugetlb).
 */
#ifndef HP_OS_SIM_H
#define HP_OS_SIM_H

#include "os/os.h"

struct hp_sim_config {
	/* Budgets: a frame, or base page of HP_BACKING_BASE, is charged when it is first populated, touched or renewed,
	 * until it is punched or destroyed. A renewed frame is as good as paid for: what makes it present cannot fail
	 * any more. */
	uint64_t hugetlb_bytes; /* the kernel's pool of huge pages: populate of hugetlb fails with -ENOMEM beyond it;
	                         * segment_renew does so beyond this or the next */
	uint64_t cgroup_bytes;  /* populate of hugetlb fails with -EFAULT beyond it; 0 is no limit */
	uint64_t memory_bytes;  /* the same for the other kinds, -ENOMEM; 0 is no limit */
	uint64_t address_bytes; /* size of the address space, at most 128 TiB; 0 is 8 TiB */
	uint64_t max_map_count; /* 0 is 65530; map fails with -ENOMEM beyond it */
	bool no_thp;            /* collapse fails with -EINVAL */
	bool table_sharing;     /* what shares_page_tables answers */
};

/* NULL: not enough memory or too large an address space. */
struct hp_os *hp_sim_create(const struct hp_sim_config *config);
/*
 * All segments must have been destroyed and all addresses unmapped: returns how many segments and kernel mappings were
 * left, 0 is clean. Control memory is not looked at: parts of it may be kept on purpose.
 */
int hp_sim_destroy(struct hp_os *os);

/*
 * Loads and stores of the base page that holds `address`, as a thread would do them. -EFAULT: the access traps
 * (SIGSEGV). -EIO: the page is absent and a budget forbids to bring it (SIGBUS). -ENXIO: it lies beyond the end of the
 * control memory (SIGBUS too).
 */
int hp_sim_load(struct hp_os *os, const void *address, uint64_t *tag);
int hp_sim_store(struct hp_os *os, void *address, uint64_t tag);

/*
 * How many kernel mappings (vmas) exist now, by the kernel's rules for hugetlb: neighbours of two maps never merge, nor
 * do the pieces of one that was split. Neighbouring reservations count as one.
 */
uint64_t hp_sim_map_count(struct hp_os *os);
/* What is at an address: the segment and the offset in it, also of a private mapping; or HP_NO_SEGMENT, also beyond the
 * end, which leaves `offset` alone. No lock. */
hp_segment hp_sim_mapped_at(struct hp_os *os, const void *address, uint64_t *offset);

#endif
