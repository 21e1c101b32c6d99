/* SPDX-License-Identifier: MIT */
#include "os/sentinel.h"

#include "base/units.h"

#include <sys/mman.h>

static _Atomic uint32_t never_wiped = 1;

_Atomic uint32_t *hp_sentinel_word = &never_wiped;

void hp_sentinel_arm(void)
{
	if (hp_sentinel_word == &never_wiped) {
		void *page = mmap(NULL, HP_BASE_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (page == MAP_FAILED)
			return;
		if (madvise(page, HP_BASE_PAGE_SIZE, MADV_WIPEONFORK)) {
			munmap(page, HP_BASE_PAGE_SIZE);
			return;
		}
		hp_sentinel_word = page;
	}
	atomic_store(hp_sentinel_word, 1);
}

bool hp_sentinel_wipes(void)
{
	return hp_sentinel_word != &never_wiped;
}
