/* SPDX-License-Identifier: MIT */
/* Changing parts of mappings: hp_unmap and hp_protect. */
#include "space/cut.h"

#include "file/lock.h"

#include <errno.h>

/* ---- hp_unmap --------------------------------------------------------------------------------------------------- */

static int unmap_part(struct hp_thread *t, struct hp_cut *cut)
{
	const struct hp_mapping *old = cut->old;
	struct hp_os *os = old->pool->os;
	void *address = hp_mapping_at(old, cut->from);
	uint64_t length = hp_bytes(cut->end - cut->from);
	int result;

	if (t)
		hp_intent_begin(t->intents, HP_INTENT_UNMAP, old->vma, cut->from, cut->end - cut->from);
	result = os->ops->unmap(os, address, length);
	if (t)
		hp_intent_end(t->intents);
	if (result) {
		hp_cut_keep_part(t, cut);
		return result;
	}
	if (old->touched)
		hp_touched_clear(old->touched, cut->from, cut->end);
	hp_space_remember_address((uintptr_t)address, length);
	hp_cut_touch_rest(t, cut);
	hp_cut_finish(t, cut, true);
	return 0;
}

static bool is_range(const void *address, uint64_t length)
{
	uintptr_t start = (uintptr_t)address;

	return hp_is_frame_aligned(start) && hp_is_frame_aligned(length) && length && start + length > start;
}

int hp_unmap(void *address, uint64_t length)
{
	uintptr_t start = (uintptr_t)address, end = start + length;
	int result;

	if (!is_range(address, length))
		return -EINVAL;
	hp_space_enter();
	result = hp_space_is_ours(start, end) ? 0 : -EINVAL;
	/* Never twice at one address: what was given back may be somebody else's new mapping by then. */
	while (!result && start < end) {
		struct hp_thread *t;
		struct hp_cut cut;

		result = hp_cut_begin(start, end, NULL, &cut, &t);
		if (!result) {
			start = (uintptr_t)hp_mapping_at(cut.old, cut.end);
			result = unmap_part(t, &cut);
		}
	}
	hp_space_leave();
	return result == -ENOENT ? -EINVAL : result; /* another thread was faster */
}

/* ---- hp_protect ------------------------------------------------------------------------------------------------- */

/* What has been mapped of a piece gets its protection; the rest does when it is touched. */
static int protect_piece(const struct hp_mapping *m, unsigned prot)
{
	uint32_t end = m->first + atomic_load(&m->reach);
	struct hp_os *os = m->pool->os;
	int result = 0;

	if (!m->touched || atomic_load(&m->frozen))
		return m->first < end ? os->ops->protect(os, (void *)m->start, hp_bytes(end - m->first), prot) : 0;
	for (uint32_t page = m->first, run; !result && hp_touched_next(m->touched, &page, end, &run); page += run)
		result = os->ops->protect(os, hp_mapping_at(m, page), hp_bytes(run), prot);
	return result;
}

/* The piece with the new protection, which begins where the change does. */
static struct hp_mapping *changed_piece(const struct hp_cut *cut)
{
	unsigned i = 0;

	while (cut->piece[i]->first != cut->from)
		i++;
	return cut->piece[i];
}

/*
 * Nobody may cut the piece to its file's end meanwhile: what lies there is memory of another kind, which keeps its own
 * protection. Catching up holds the space lock, faults the file's or their mapping's. In a child that is not a member
 * nobody does either.
 */
static int protect_alone(struct hp_thread *t, const struct hp_mapping *m, unsigned prot)
{
	struct hp_file_use use = hp_mapping_file(m);
	uint32_t vma = m->vma; /* another thread may cut the piece meanwhile */
	sigset_t saved;
	int result;

	if (!t)
		return protect_piece(m, prot);
	hp_signals_block(&saved);
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	hp_file_mapping_lock(t, use, vma);
	result = protect_piece(m, prot);
	hp_file_mapping_unlock(t, use, vma);
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	hp_signals_restore(&saved);
	return result;
}

static int protect_part(struct hp_thread *t, struct hp_cut *cut, unsigned prot)
{
	struct hp_mapping *m = changed_piece(cut);
	int result = protect_alone(t, m, prot);

	if (result) {
		m->prot = cut->old->prot;
		protect_alone(t, m, m->prot);
	}
	hp_cut_touch_rest(t, cut);
	hp_cut_finish(t, cut, false);
	return result;
}

/* What has this protection already needs no piece. */
static uintptr_t skip_equal(uintptr_t start, uintptr_t end, unsigned prot)
{
	struct hp_range range;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	while (start < end && hp_range_map_next(&hp_space.ranges, start, &range) && range.start <= start &&
	       ((struct hp_mapping *)range.value)->prot == prot)
		start = range.end;
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	return start;
}

int hp_protect(void *address, uint64_t length, unsigned prot)
{
	uintptr_t start = (uintptr_t)address, end = start + length;
	int result;

	if (!is_range(address, length) || prot & ~(HP_PROT_READ | HP_PROT_WRITE) || prot == HP_PROT_WRITE)
		return -EINVAL;
	hp_space_enter();
	result = hp_space_is_ours(start, end) ? 0 : -EINVAL;
	while (!result && (start = skip_equal(start, end, prot)) < end) {
		struct hp_thread *t;
		struct hp_cut cut;

		result = hp_cut_begin(start, end, &prot, &cut, &t);
		if (!result) {
			start = (uintptr_t)hp_mapping_at(cut.old, cut.end);
			result = protect_part(t, &cut, prot);
		}
	}
	hp_space_leave();
	return result == -ENOENT ? -EINVAL : result;
}
