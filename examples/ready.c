/* SPDX-License-Identifier: MIT */
/* A pool, a file in it, a ready mapping of the file. */
#include <hugepool.h>

#include <stdio.h>

#define SIZE ((uint64_t)64 << 20) /* bytes */

int main(void)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	hp_pool pool;
	hp_file file;
	void *memory;
	hp_error error;

	options.size = SIZE; /* filled and zeroed when hp_pool_create returns */
	if (hp_pool_create(&options, &pool, &error) || hp_file_create(pool, SIZE, 0, &file, &error) ||
	    hp_map(file, 0, SIZE, HP_PROT_READ | HP_PROT_WRITE, 0, &memory, &error)) {
		fprintf(stderr, "%s\n", error.message);
		return 1;
	}
	((char *)memory)[0] = 1; /* nothing is cleared here, and there is no SIGBUS */
	hp_pool_stats_get(pool, &stats);
	printf("%lu frames: %lu hugetlb, %lu transparent huge, %lu in base pages. %s\n", stats.frames, stats.hugetlb,
	       stats.thp, stats.base, stats.why_not_better);
	hp_unmap(memory, SIZE);
	hp_file_close(file);
	return hp_pool_close(pool) != 0;
}
