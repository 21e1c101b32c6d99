/* SPDX-License-Identifier: MIT */
/* Mappings. */
#include "model/steps.h"

#include "os/sim.h"
#include "space/space.h"
#include "sync/signals.h"

#include <errno.h>

enum { RECENT = 8 };

static uintptr_t recent[RECENT]; /* where something was mapped */
static unsigned recent_count;

void forget_addresses(void)
{
	recent_count = 0;
}

static enum hp_fault_result fault(uintptr_t address, bool write)
{
	enum hp_fault_result result;
	sigset_t saved;

	hp_signals_block(&saved);
	result = hp_space_fault(address, write);
	hp_signals_restore(&saved);
	return result;
}

/* As a thread touches: a fault that is resolved repeats the access. */
static int touch(uintptr_t address, bool write, uint64_t *tag)
{
	int result;

	do
		result = write ? hp_sim_store(os, (void *)address, *tag) : hp_sim_load(os, (void *)address, tag);
	while (result == -EFAULT && fault(address, write) == HP_FAULT_RESOLVED);
	return result;
}

void touch_piece(const struct model_piece *piece, uint32_t page, uint32_t base, bool write)
{
	struct model_file *file = &model.file[piece->file];
	uint32_t in_file = piece->first + page;
	bool beyond = in_file >= file->size, allowed = piece->prot & (write ? HP_PROT_WRITE : HP_PROT_READ);
	uint64_t tag = ++next_tag;
	int result = touch(piece->start + page * MODEL_FRAME + base * HP_BASE_PAGE_SIZE, write, &tag);

	say("%s 0x%lx: page %u (%u), base page %u -> %d\n", write ? "store" : "load", piece->start, page, in_file, base,
	    result);
	if (beyond && !allowed && result == -EFAULT)
		return;
	must_answer(result, beyond ? -ENXIO : allowed ? 0 : -EFAULT);
	if (result)
		return;
	file->framed[in_file] = true;
	if (write)
		model_set_tag(file, in_file, base, tag);
	else
		must(tag == model_tag(file, in_file, base), "finds %lu, and should find %lu", tag,
		     model_tag(file, in_file, base));
}

static void touch_op(const struct op *op, bool write)
{
	const struct model_piece *piece = pick_piece(op->a);

	if (piece)
		touch_piece(piece, choose_place(op->b, piece->pages - 1), choose_base_page(op->c), write);
}

void step_load(const struct op *op)
{
	touch_op(op, false);
}

void step_store(const struct op *op)
{
	touch_op(op, true);
}

static uintptr_t wish_of(const struct op *op, unsigned flags)
{
	const struct model_piece *piece = pick_piece(op->e);
	uint64_t skip = op->e / 32 % 4 * MODEL_FRAME;

	if (flags & HP_MAP_REPLACE || op->e % 4 == 0)
		return piece ? piece->start + skip % (piece->pages * MODEL_FRAME) : 0;
	return recent_count ? recent[op->e % RECENT % recent_count] + skip : 0;
}

/* What hp_map must answer, and does to the file before it looks at what is mapped already. */
static int map_answer(struct model_file *file, struct model_piece *piece, uint64_t length, unsigned flags,
                      uintptr_t wish)
{
	bool taken = flags & HP_MAP_AT && model_overlaps(&model, wish, wish + length);
	int result;

	if (!file)
		return -EBADF;
	if (!(piece->prot & HP_PROT_READ) || flags > 15 || (flags & (HP_MAP_AT | HP_MAP_REPLACE) && !wish))
		return -EINVAL;
	result = model_check_range(file, piece->first * MODEL_FRAME, length);
	if (!result && piece->lazy && taken)
		return -EEXIST;
	if (!result)
		result = piece->lazy ? model_promise(&model, file, piece->first, piece->pages)
		                     : model_allocate(&model, file, piece->first, piece->pages);
	if (result)
		return result;
	if (flags & HP_MAP_REPLACE && !model_is_covered(&model, wish, wish + length))
		return -EINVAL;
	return taken ? -EEXIST : 0;
}

static void put_piece(struct model_piece *piece, void *address, unsigned flags, uintptr_t wish, bool was_free)
{
	uintptr_t end;

	piece->start = (uintptr_t)address;
	end = model_piece_end(piece);
	must(!(flags & (HP_MAP_AT | HP_MAP_REPLACE)) || piece->start == wish, "mapped at %p", address);
	must(!(flags & HP_MAP_WISH) || !wish || !was_free || piece->pages >= 512 || piece->start == wish,
	     "a wish for a free range is not heard: mapped at %p", address);
	must(flags & HP_MAP_REPLACE || !model_overlaps(&model, piece->start, end), "mapped over something at %p",
	     address);
	if (flags & HP_MAP_REPLACE) {
		model.file[piece->file].pieces++; /* the new one comes before the old ones go */
		model_cut(&model, piece->start, end, NULL);
		model.file[piece->file].pieces--;
	}
	model_add_piece(&model, piece);
	recent[recent_count++ % RECENT] = piece->start;
}

void step_map(const struct op *op)
{
	static const unsigned places[] = {0, HP_MAP_WISH, HP_MAP_AT, HP_MAP_REPLACE};
	unsigned slot = pick_handle(op), flags = op->d % 2 | places[op->d / 2 % 4];
	struct model_file *file = model_file_of(&model, slot);
	struct model_piece piece = {.lazy = op->d % 2, .file = model.handle[slot].file};
	uintptr_t wish;
	void *address;
	bool was_free;
	int result;

	if (!model_has_room(&model, 5))
		return;
	piece.prot = op->d / 8 % 16 == 15 ? 0 : op->d / 8 % 4 ? HP_PROT_READ | HP_PROT_WRITE : HP_PROT_READ;
	flags |= op->d == 254 ? 32 : 0;
	choose_range(op, file ? file->size : 1, &piece.first, &piece.pages);
	wish = wish_of(op, flags);
	address = (void *)wish;
	was_free = !model_overlaps(&model, wish, wish + piece.pages * MODEL_FRAME);
	result = hp_map(model.handle[slot].handle, piece.first * MODEL_FRAME, piece.pages * MODEL_FRAME, piece.prot,
	                flags, &address, &last_error);
	say("map handle %u: pages %u+%u, prot %u, flags %u, wish 0x%lx -> %d, %p\n", slot, piece.first, piece.pages,
	    piece.prot, flags, wish, result, address);
	must_answer(result, map_answer(file, &piece, piece.pages * MODEL_FRAME, flags, wish));
	if (!result)
		put_piece(&piece, address, flags, wish, was_free);
}

/* A range that begins in a piece, and may go on into others, or into nothing. */
static void range_mapped(const struct op *op, const struct model_piece *piece, uintptr_t *start, uint64_t *length)
{
	uint32_t first, pages;

	choose_range(op, piece->pages, &first, &pages);
	*start = piece->start + first * MODEL_FRAME;
	*length = (pages + (op->e % 8 == 7 ? op->e / 8 % 4 : 0)) * MODEL_FRAME;
}

void step_unmap(const struct op *op)
{
	const struct model_piece *piece = pick_piece(op->a);
	uintptr_t start;
	uint64_t length, tag;
	int result, should;

	if (!piece || !model_has_room(&model, 5))
		return;
	range_mapped(op, piece, &start, &length);
	if (op->d % 2) { /* all of it */
		start = piece->start;
		length = piece->pages * MODEL_FRAME;
	}
	should = length && model_is_covered(&model, start, start + length) ? 0 : -EINVAL;
	result = hp_unmap((void *)start, length);
	say("unmap 0x%lx: %lu pages -> %d\n", start, length / MODEL_FRAME, result);
	must_answer(result, should);
	if (result)
		return;
	model_cut(&model, start, start + length, NULL);
	must_answer(touch(start, false, &tag), -EFAULT);
	must_answer(touch(start + length - 1, false, &tag), -EFAULT);
}

void step_protect(const struct op *op)
{
	static const unsigned prots[] = {0, HP_PROT_READ, HP_PROT_READ | HP_PROT_WRITE, HP_PROT_READ | HP_PROT_WRITE,
	                                 HP_PROT_WRITE};
	const struct model_piece *piece = pick_piece(op->a);
	unsigned prot = prots[op->d % 5];
	uintptr_t start;
	uint64_t length;
	int result, should;

	if (!piece || !model_has_room(&model, 5))
		return;
	range_mapped(op, piece, &start, &length);
	should = length && prot != HP_PROT_WRITE && model_is_covered(&model, start, start + length) ? 0 : -EINVAL;
	result = hp_protect((void *)start, length, prot);
	say("protect 0x%lx: %lu pages, prot %u -> %d\n", start, length / MODEL_FRAME, prot, result);
	must_answer(result, should);
	if (!result)
		model_cut(&model, start, start + length, &prot);
}

void step_populate(const struct op *op)
{
	const struct model_piece *piece = pick_piece(op->a);
	uintptr_t start;
	uint64_t length;
	int result, should;

	if (!piece)
		return;
	range_mapped(op, piece, &start, &length);
	result = hp_populate((void *)start, length);
	say("populate 0x%lx: %lu pages -> %d\n", start, length / MODEL_FRAME, result);
	should =
		!length || start + length > model_piece_end(piece)
			? -EINVAL
			: model_populate(&model, piece, (uint32_t)((start - piece->start) / MODEL_FRAME) + piece->first,
	                                 (uint32_t)(length / MODEL_FRAME));
	must_answer(result, should);
}
