/* SPDX-License-Identifier: MIT */
#include "file/moving.h"

#include "file/lock.h"
#include "sync/futex.h"

#include <errno.h>

void hp_file_await_move(struct hp_thread *t, struct hp_file_use use, uint32_t page)
{
	while (hp_file_is_moving(use.record, page)) {
		sigset_t saved;

		if (hp_futex_wait(&use.record->moving, page + 1, HP_SLICE_NS) != -ETIMEDOUT)
			continue;
		/* Its thread may be dead. Whoever can have its lock is alone with the move. */
		hp_signals_block(&saved);
		hp_file_modify_lock(t, use);
		hp_file_end_stale_move(use.record);
		hp_file_modify_unlock(t, use);
		hp_signals_restore(&saved);
	}
}

void hp_file_end_stale_move(struct hp_file_record *file)
{
	if (atomic_load(&file->moving))
		hp_file_end_move(file);
}

void hp_file_end_move(struct hp_file_record *file)
{
	atomic_fetch_add(&file->moves, 1);
	atomic_store(&file->moving, 0);
	hp_futex_wake(&file->moving, INT_MAX);
}
