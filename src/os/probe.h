/* SPDX-License-Identifier: MIT */
/*
 * What this machine, container and process offer for huge pages, and what stands in the way. Read once, from /proc and
 * /sys and a few harmless system calls; nothing is changed. What could not be read stays unknown, as each field says.
 */
#ifndef HP_OS_PROBE_H
#define HP_OS_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HP_PROBE_SIZES 8
#define HP_PROBE_NODES 64
#define HP_PROBE_TEXT 128
#define HP_PROBE_SENTENCE 256
#define HP_PROBE_PATH 512

/* A control group's limit. Of all groups up to the root it is the one with the least room left. */
struct hp_probe_limit {
	int64_t bytes;            /* -1 none */
	int64_t used_bytes;       /* of the same group; without a limit, of the own group; -1 unknown */
	char file[HP_PROBE_PATH]; /* where the limit can be changed; "" none */
};

struct hp_probe_pool { /* one size of the kernel's pools */
	uint64_t page_bytes;
	uint64_t total, free, reserved, surplus, overcommit; /* pages */
	struct hp_probe_limit cgroup;                        /* of pages in use */
	struct hp_probe_limit cgroup_rsvd;                   /* of reservations */
};

struct hp_probe_node {
	int id;
	uint64_t memory_bytes, free_bytes;
	uint64_t huge_total, huge_free; /* pages of HP_FRAME_SIZE */
};

struct hp_probe {
	char kernel[HP_PROBE_TEXT];             /* the running kernel's release */
	char kernel_upstream[HP_PROBE_TEXT];    /* the kernel.org version it is built from: differs on distributions */
	char machine[HP_PROBE_TEXT];            /* "x86_64" */
	char cpu[HP_PROBE_TEXT];                /* "" unknown */
	char zero_method[32];                   /* streaming stores that will be used */
	int cpus;                               /* usable by this process */
	uint64_t memory_bytes, available_bytes; /* 0 unknown */

	int pools; /* ascending by page size */
	struct hp_probe_pool pool[HP_PROBE_SIZES];
	bool may_set_pools; /* this process may write nr_hugepages */

	char thp_enabled[32], thp_shmem[32], thp_defrag[32]; /* the chosen word; "" unknown */
	bool thp_disabled;                                   /* for this process, by prctl */
	bool collapse_works;                                 /* MADV_COLLAPSE of shared memory, tried on one page */
	int collapse_error;                                  /* the negative errno of that trial, 0 if it works */

	char cgroup[16]; /* "v1", "v2", "hybrid" or "none" */
	struct hp_probe_limit cgroup_memory;
	int64_t memlock_bytes;  /* RLIMIT_MEMLOCK; -1 unlimited, also by privilege */
	uint64_t max_map_count; /* 0 unknown */
	bool userfaultfd;       /* usable by this process, at least for user-mode faults */

	bool table_sharing;
	char table_sharing_why[HP_PROBE_SENTENCE]; /* why not; "" if it is on */

	int nodes; /* ascending by id */
	struct hp_probe_node node[HP_PROBE_NODES];
};

/* Everything. Takes one frame of memory for a moment. Errno is left as it was. */
void hp_probe_read(struct hp_probe *probe);

/* The part that comes from files, below `root`: "" is the real machine, anything else a made-up tree for tests. */
void hp_probe_read_files(struct hp_probe *probe, const char *root);

/*
 * Whether the running kernel shares page tables of huge pages and is free of the defects that come with it. Its version
 * decides. `why` gets a sentence, "" if the answer is yes. release NULL is the running kernel, with the version that
 * its distribution built it from; otherwise a text as of uname -r.
 */
bool hp_probe_table_sharing(const char *release, char *why, unsigned why_size);

/* The same for any machine, named as by uname -m. */
bool hp_probe_table_sharing_on(const char *machine, const char *release, char *why, unsigned why_size);

/* The pool of a page size, NULL if the kernel has none. */
const struct hp_probe_pool *hp_probe_pool_of(const struct hp_probe *probe, uint64_t page_bytes);

#endif
