/* SPDX-License-Identifier: MIT */
#include "sync/process.h"

#include "base/format.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static struct flock lock_of(uint32_t id, short type)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = id, .l_len = 1};
}

/* A new description of the control memory with the byte `id` locked, or -1. */
static int take_lock(int control, uint32_t id)
{
	struct flock lock = lock_of(id, F_WRLCK);
	char path[40];
	int fd;

	if (control < 0)
		return -1;
	hp_format(path, sizeof(path), "/proc/self/fd/%d", control);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) < 0) {
		close(fd);
		fd = -1;
	}
	return fd;
}

uint32_t hp_process_claim(struct hp_processes *processes, int32_t pid, int *lock)
{
	for (uint32_t id = 1; id < HP_PROCESSES_MAX; id++) {
		struct hp_process *process = &processes->record[id];
		uint32_t expected = HP_PROCESS_FREE;

		if (!atomic_compare_exchange_strong(&process->state, &expected, HP_PROCESS_CLAIMED))
			continue;
		atomic_fetch_add(&process->generation, 1);
		process->pid = pid;
		*lock = take_lock(processes->control, id);
		process->has_lock = *lock >= 0;
		atomic_store(&process->state, HP_PROCESS_LIVE);
		return id;
	}
	return 0;
}

void hp_process_release(struct hp_processes *processes, uint32_t id)
{
	atomic_store(&processes->record[id].state, HP_PROCESS_FREE);
}

bool hp_process_is_live(const struct hp_processes *processes, uint32_t id)
{
	return atomic_load(&processes->record[id].state) == HP_PROCESS_LIVE;
}

bool hp_process_bury(struct hp_processes *processes, uint32_t id, int lock)
{
	struct hp_process *process = &processes->record[id];
	struct flock asked = lock_of(id, F_WRLCK);
	uint32_t expected = HP_PROCESS_LIVE, generation = atomic_load(&process->generation);

	if (!hp_process_is_live(processes, id) || !process->has_lock || lock < 0)
		return false;
	if (fcntl(lock, F_OFD_GETLK, &asked) < 0 || asked.l_type != F_UNLCK)
		return false;
	if (hp_slots_process_has_thread(processes->slots, HP_SLOTS_MAX, id))
		return false;
	if (!atomic_compare_exchange_strong(&process->state, &expected, HP_PROCESS_CLAIMED))
		return false;
	if (atomic_load(&process->generation) == generation)
		return true;
	/* Buried and taken anew by others meanwhile: this one lives. */
	atomic_store(&process->state, HP_PROCESS_LIVE);
	return false;
}
