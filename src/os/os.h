/* SPDX-License-Identifier: MIT */
/*
 * The whole contract with the kernel.
 *
 * Only src/os asks the kernel for memory. Everything above calls through a `struct hp_os`: a backend behind one table
 * of operations. `linux` does it; `sim` has no memory and records what is mapped where; `inject` stands before either
 * and makes chosen calls fail.
 *
 * All operations: sizes, offsets and addresses in bytes, multiples of HP_FRAME_SIZE unless said otherwise; 0 or a
 * negative errno; the global errno is left as it was found. Those marked [signal] are reached from the fault handler:
 * they make direct system calls, take no lock and allocate nothing.
 */
#ifndef HP_OS_H
#define HP_OS_H

#include "hugepool.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hp_os;

/* A segment's memory: a descriptor on Linux, an index in sim. -1 is none; 0 is a valid value. */
typedef int hp_segment;
#define HP_NO_SEGMENT (-1)

/* Flags of map. */
enum {
	HP_OS_MAP_REPLACE = 1,  /* whatever is mapped there is replaced; otherwise an overlap is -EEXIST */
	HP_OS_MAP_POPULATE = 2, /* enter present pages into the page table at once */
	/* Copy on write: a store is seen through this mapping only. Of hugetlb, Linux reserves huge pages for all of the
	 * mapping (-ENOMEM: the pool has none), gives it a page of its own also where it reads an absent one, and
	 * drops its pages when the segment is punched. Moved only whole: of a part, Linux loses what was reserved for
	 * the rest of the mapping until the next boot. */
	HP_OS_MAP_PRIVATE = 4,
	/* With PRIVATE: nothing is reserved for the copies. A store is SIGBUS when the pool is empty by then. */
	HP_OS_MAP_UNRESERVED = 8,
};

struct hp_os_ops {
	const char *name;

	/* -- control memory: shared with fork children, zero-filled, sparse; bytes of any size --------------- */

	/* -EFBIG: RLIMIT_FSIZE. */
	int (*control_create)(struct hp_os *os, uint64_t size, void **address, hp_segment *handle);
	int (*control_destroy)(struct hp_os *os, void *address, uint64_t size, hp_segment handle);

	/* -- segments: memory without an address ------------------------------------------------------------- */

	/*
	 * A sparse segment of `size` bytes. backing is not AUTO. -ENOTSUP: this kind does not exist here;
	 * -EFBIG: RLIMIT_FSIZE.
	 *
	 * A touch of HP_BACKING_BASE brings a base page. Where shmem_enabled is `always`, `within_size` or `force` it
	 * brings a whole huge page, which costs memory and is right in all else: a punch of base pages splits it, and
	 * `backed` knows. MADV_NOHUGEPAGE would keep a mapping from that, but makes its collapse -EINVAL; lifting it
	 * for a frame splits the mapping, and every map would take a third longer.
	 */
	int (*segment_create)(struct hp_os *os, hp_backing backing, uint64_t size, hp_segment *segment);
	int (*segment_destroy)(struct hp_os *os, hp_segment segment);
	/* Gives the memory of a range back; later touches find zeroes. Of HP_BACKING_BASE, any base pages. */
	int (*segment_punch)(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length);
	/* Reserves the memory of a range again that was punched: a touch of it is then no SIGBUS. -ENOMEM: the kernel's
	 * pool has none to promise; nothing is reserved then. Only hugetlb promises: other kinds answer 0. */
	int (*segment_renew)(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length);
	/*
	 * Which base pages of a range of a segment of shared memory (not hugetlb) are in memory: a byte for each, 0 or 1.
	 * None gets memory by asking. Any base pages. Good for an estimate: a 0 may also be swapped out, or on its way.
	 */
	int (*backed)(struct hp_os *os, hp_segment segment, uint64_t offset, uint64_t length, unsigned char *pages);

	/* -- addresses --------------------------------------------------------------------------------------- */

	/*
	 * [signal] Takes an inaccessible range of addresses: *address % align == skew; align is a power of two of at
	 * least a frame. Replaced piecewise by map, emptied by vacate, given back by unmap.
	 */
	int (*reserve)(struct hp_os *os, uint64_t length, uint64_t align, uint64_t skew, void **address);
	/* The same at an address of choice. -EEXIST: something is there. */
	int (*reserve_at)(struct hp_os *os, void *address, uint64_t length);
	/*
	 * [signal] Maps a range of a segment at `address`, shared unless PRIVATE; prot as in hp_map, 0 for
	 * inaccessible. A map that fails with REPLACE may have left a hole: what must not be lost is replaced with
	 * move.
	 */
	int (*map)(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_segment segment, uint64_t offset,
	           unsigned flags);
	/* Makes a range inaccessible again and keeps its addresses, whatever was mapped there. */
	int (*vacate)(struct hp_os *os, void *address, uint64_t length);
	/* [signal] */
	int (*unmap)(struct hp_os *os, void *address, uint64_t length);
	/* [signal] Moves a mapping over another, atomically for all who look on. */
	int (*move)(struct hp_os *os, void *from, void *to, uint64_t length);
	/*
	 * [signal] Replaces whatever is mapped there by addresses that lie beyond the end of the control memory: an
	 * access is SIGBUS, a system call that is handed them answers EFAULT.
	 */
	int (*end)(struct hp_os *os, void *address, uint64_t length, hp_segment control, uint64_t control_size);
	/* Changes the protection of a range of mapped pages; prot as in map. */
	int (*protect)(struct hp_os *os, void *address, uint64_t length, unsigned prot);
	/*
	 * Private memory of the kernel's own, zero-filled, in the place of whatever is mapped there: hugetlb
	 * (reserved, -ENOMEM: the pool has none), else of any page size.
	 */
	int (*anonymous)(struct hp_os *os, void *address, uint64_t length, unsigned prot, hp_backing backing);
	/*
	 * Takes an inaccessible range of addresses with so much of the kernel's pool reserved for it, which is free
	 * again when it is unmapped. -ENOMEM: the pool has not as much. Backings that are not reserved have no such
	 * range: -ENOTSUP.
	 */
	int (*hold)(struct hp_os *os, uint64_t length, hp_backing backing, void **address);
	/* A fork child gets nothing mapped there. What replaces the mapping is inherited again. */
	int (*keep_from_children)(struct hp_os *os, void *address, uint64_t length);

	/* -- pages of a mapping ------------------------------------------------------------------------------ */

	/* Allocates and enters writable pages, also those that were punched. -ENOMEM the kernel has none; -EFAULT a
	 * control group's limit, and on Linux also a pool that has none for a punched page that was not renewed. */
	int (*populate)(struct hp_os *os, void *address, uint64_t length);
	/* Enters the pages of a readable mapping into the page table, as reading a byte of each would: for page tables
	 * to be shared again. Fails as populate does. */
	int (*touch)(struct hp_os *os, void *address, uint64_t length);
	/*
	 * Makes touched shared memory huge. After an error, frames that it did not get to or could not make huge stay
	 * in base pages, with what they hold. -EINVAL: the kernel or its settings do not do it here, and hardly will
	 * the next time; -ENOMEM: no huge page can be had, or a part of the range is not mapped; -EBUSY: a control
	 * group's limit, or too many absent pages for this kernel; -EAGAIN: a page was in use, by I/O or another
	 * process, and it may go well the next time.
	 */
	int (*collapse)(struct hp_os *os, void *address, uint64_t length);
	/* [signal] Writes zeroes, past the caches. Base pages. */
	void (*zero)(struct hp_os *os, void *address, uint64_t length);
	/* Copy bytes of mapped memory, of any length, to and from memory of the caller's. */
	void (*load)(struct hp_os *os, const void *address, void *to, uint64_t length);
	void (*store)(struct hp_os *os, void *address, const void *from, uint64_t length);

	/*
	 * Copies base pages of a segment of shared memory to `to`. What has no memory is zeroes there, and gets none by
	 * it. `mapped` is where the range is mapped and readable, most of it in the page table, or NULL: it is faster
	 * from there. -EIO, -ENOMEM: not all could be read.
	 */
	int (*gather)(struct hp_os *os, void *to, const void *mapped, hp_segment segment, uint64_t offset,
	              uint64_t length);
	/*
	 * The other way: writes base pages to a range of a segment of shared memory that has none there, without those
	 * that are all zero. -ENOMEM, -ENOSPC, -EIO: not all could be written; -EFBIG: RLIMIT_FSIZE.
	 */
	int (*scatter)(struct hp_os *os, hp_segment segment, uint64_t offset, const void *from, uint64_t length);

	/* -- limits ------------------------------------------------------------------------------------------ */

	/* vm.max_map_count. */
	uint64_t (*max_map_count)(struct hp_os *os);
	/* Frames that a hugetlb segment could get from the kernel now, reservations of others and overcommit
	 * considered. */
	uint64_t (*hugetlb_available)(struct hp_os *os);
	/* Bytes of other kinds that can be filled without anybody being killed for it, and what bounds them. */
	uint64_t (*memory_room)(struct hp_os *os, hp_limit *limit);
	/* True where the kernel shares page tables of large aligned mappings, without the defect of some versions. */
	bool (*shares_page_tables)(struct hp_os *os);
};

/* Backends embed this as their first member. */
struct hp_os {
	const struct hp_os_ops *ops;
	_Atomic uint64_t maps_taken, maps_max; /* os/budget.h */
};

/* The kernel. There is one; it needs no destruction. */
struct hp_os *hp_os_linux(void);

/* Streaming stores by the best method of this processor. 64-byte aligned, a multiple of 64. Signal safe. */
void hp_zero_stream(void *address, size_t length);

/* The same for a copy of memory that does not overlap. */
void hp_copy_stream(void *to, const void *from, size_t length);

/* The methods, for tests and the bench; those this processor lacks are skipped. Ends with a NULL name. */
struct hp_zero_method {
	const char *name;
	void (*zero)(void *address, size_t length);
	bool (*usable)(void);
};
extern const struct hp_zero_method hp_zero_methods[];
const struct hp_zero_method *hp_zero_method_best(void);

struct hp_copy_method {
	const char *name;
	void (*copy)(void *to, const void *from, size_t length);
	bool (*usable)(void);
};
extern const struct hp_copy_method hp_copy_methods[];
const struct hp_copy_method *hp_copy_method_best(void);

#endif
