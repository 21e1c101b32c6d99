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
	file->there[in_file] = true;
	learn_page(file, in_file);
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
	bool lazy = flags & HP_MAP_LAZY; /* a mapping of a movable file is so anyhow, but may be complete */
	bool taken = flags & HP_MAP_AT && model_overlaps(&model, wish, wish + length);
	int result;

	if (!file)
		return -EBADF;
	if (!(piece->prot & HP_PROT_READ) || flags > 15 || (flags & (HP_MAP_AT | HP_MAP_REPLACE) && !wish))
		return -EINVAL;
	result = model_check_range(file, piece->first * MODEL_FRAME, length);
	if (!result && lazy && taken)
		return -EEXIST;
	if (!result)
		result = lazy ? model_promise(&model, file, piece->first, piece->pages)
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
	bool movable = file && file->flags & HP_FILE_MOVABLE;
	struct model_piece piece = {.lazy = op->d % 2 || movable, .file = model.handle[slot].file};
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
	if (result)
		return;
	put_piece(&piece, address, flags, wish, was_free);
	if (!(flags & HP_MAP_LAZY))
		must_answer(model_populate(&model, &piece, piece.first, piece.pages), 0);
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

/* ---- collapse --------------------------------------------------------------------------------------------------- */

/* A range as step_populate has it, and sometimes one of no whole pages. */
static void range_to_move(const struct op *op, const struct model_piece *piece, uintptr_t *start, uint64_t *length)
{
	range_mapped(op, piece, start, length);
	*start += op->d == 250 ? HP_BASE_PAGE_SIZE : 0;
	*length += op->d == 251 ? 1 : op->d == 252 ? UINT64_MAX / 2 : 0;
}

static bool is_range(const struct model_piece *piece, uintptr_t start, uint64_t length)
{
	return length && length % MODEL_FRAME == 0 && start % MODEL_FRAME == 0 &&
	       length <= model_piece_end(piece) - start;
}

/* What a call on one page may have to answer. */
struct verdict {
	int code;
	hp_limit limit;
};

static const struct verdict well = {0, HP_LIMIT_NONE}, pinned = {-EBUSY, HP_LIMIT_PINNED};

/* The sim's kernel makes frames of HP_BACKING_THP huge, and nothing else. A hole is absent. */
static struct verdict collapse_in_place(enum model_lies lies, bool hole)
{
	static const struct verdict refused = {-ENOMEM, HP_LIMIT_MEMORY};

	if (!lies || hole || (lies == MODEL_IN_FRAME && backing != HP_BACKING_BASE))
		return well;
	return refused;
}

/* `moved`: whether it lies in a frame now. Who takes a frame of its tenant's that nobody uses is not said. */
static struct verdict collapse_page(struct model_file *file, uint32_t page, enum model_lies before, bool hole,
                                    bool moved)
{
	static const struct verdict no_frame = {-ENOMEM, HP_LIMIT_POOL};
	uint64_t left = model.frames - model_committed(&model);

	if (!(file->flags & HP_FILE_MOVABLE) || before != MODEL_IN_PLACE)
		return collapse_in_place(before, hole);
	if (model_is_pinned(&model, file, page))
		return pinned;
	if (!left && !(moved && model_spare(&model, file)))
		return no_frame;
	model_move(file, page, MODEL_IN_FRAME);
	return well;
}

/* A hole is moved too: somebody may have stored to it. */
static struct verdict split_page(struct model_file *file, uint32_t page, enum model_lies before, bool hole, bool moved)
{
	static const struct verdict never = {-EPERM, HP_LIMIT_NONE}, no_place = {-ENOMEM, HP_LIMIT_TABLE};

	if (!(file->flags & HP_FILE_MOVABLE))
		return never;
	if (before != MODEL_IN_FRAME)
		return well;
	if (model_is_pinned(&model, file, page))
		return pinned;
	if (model_places(&model) == model.places)
		return no_place;
	model_move(file, page, MODEL_IN_PLACE);
	return well;
}

typedef struct verdict judge_page(struct model_file *file, uint32_t page, enum model_lies before, bool hole,
                                  bool moved);

/* Where the pages of a range were. */
static struct {
	enum model_lies lies;
	bool hole;
} were[MODEL_PAGES];

/* Page by page, up to the one that fails. */
static void move_pages(const struct op *op, int (*call)(void *address, uint64_t length, hp_error *error),
                       judge_page *judge, const char *name)
{
	const struct model_piece *piece = pick_piece(op->a);
	struct verdict should = {-EINVAL, HP_LIMIT_NONE};
	struct model_file *file;
	uintptr_t start;
	uint64_t length;
	uint32_t first, end;
	int result;

	if (!piece)
		return;
	file = &model.file[piece->file];
	range_to_move(op, piece, &start, &length);
	first = piece->first + (uint32_t)((start - piece->start) / MODEL_FRAME);
	end = is_range(piece, start, length) ? first + (uint32_t)(length / MODEL_FRAME) : first;
	for (uint32_t page = first; page < end; page++)
		were[page].lies = page < file->size ? look_at(file, page, &were[page].hole) : MODEL_UNKNOWN;
	result = call((void *)start, length, &last_error);
	say("%s 0x%lx: %lu pages (from %u) of a file of flags %u -> %d\n", name, start, length / MODEL_FRAME, first,
	    file->flags, result);
	if (first < end)
		should = well;
	for (uint32_t page = first; page < end && !should.code; page++) {
		bool hole, moved = page < file->size && look_at(file, page, &hole) == MODEL_IN_FRAME;

		should = judge(file, page, were[page].lies, were[page].lies && were[page].hole, moved);
	}
	must_answer(result, should.code);
	must(!result || last_error.limit == should.limit, "the limit is %s, and should be %s",
	     hp_limit_name(last_error.limit), hp_limit_name(should.limit));
	for (uint32_t page = first; page < end && page < file->size; page++)
		learn_page(file, page);
}

void step_collapse(const struct op *op)
{
	move_pages(op, hp_collapse, collapse_page, "collapse");
}

void step_split(const struct op *op)
{
	move_pages(op, hp_split, split_page, "split");
}

/* ---- pins ------------------------------------------------------------------------------------------------------- */

/* Any bytes, of not too many pages, and the pages that they have a part of. */
static void range_to_pin(const struct op *op, const struct model_piece *piece, uintptr_t *start, uint64_t *length,
                         uintptr_t *first, uintptr_t *end)
{
	range_mapped(op, piece, start, length);
	*length = *length > 16 * MODEL_FRAME ? 16 * MODEL_FRAME : *length;
	if (op->d % 4 == 1 && *length) { /* within the same pages */
		*start += op->c % 4000;
		*length -= 4000 + op->b % 90000;
	}
	*length = op->d == 250 ? UINT64_MAX - op->c : *length;
	*first = *start & ~(MODEL_FRAME - 1);
	*end = (*start + *length + MODEL_FRAME - 1) & ~(MODEL_FRAME - 1);
}

static int pin_answer(const struct model_piece *piece, const struct model_file *file, uintptr_t first, uintptr_t end)
{
	uint32_t from = piece->first + (uint32_t)((first - piece->start) / MODEL_FRAME);

	if (!(file->flags & HP_FILE_MOVABLE))
		return 0;
	if (model_populate(&model, piece, from, (uint32_t)((end - first) / MODEL_FRAME)))
		return -ENXIO;
	model_pin(&model, first, end);
	return 0;
}

void step_pin(const struct op *op)
{
	const struct model_piece *piece = pick_piece(op->a);
	const struct model_file *file = piece ? &model.file[piece->file] : NULL;
	uintptr_t start, first, end;
	uint64_t length;
	int result, should = -EINVAL;

	if (!piece || !model_has_pins(&model, 20))
		return;
	range_to_pin(op, piece, &start, &length, &first, &end);
	result = hp_pin((void *)start, length);
	say("pin 0x%lx: %lu bytes -> %d\n", start, length, result);
	if (length && first < end && end <= model_piece_end(piece))
		should = pin_answer(piece, file, first, end);
	/* What is not movable is not looked at, or is. */
	if (!should && result == -ENXIO && !(file->flags & HP_FILE_MOVABLE) &&
	    piece->first + (end - piece->start) / MODEL_FRAME > file->size)
		should = result;
	must_answer(result, should);
}

/* From the i-th on, counted round; MODEL_PINS: there is none. */
static unsigned next_pin(unsigned i)
{
	for (unsigned tries = 0; tries < MODEL_PINS; tries++, i = (i + 1) % MODEL_PINS)
		if (model.pin[i].count)
			return i;
	return MODEL_PINS;
}

void step_unpin(const struct op *op)
{
	unsigned i = MODEL_PINS;
	const struct model_piece *piece = pick_piece(op->a);
	uintptr_t start, first, end;
	uint64_t length;
	int result, should = -EINVAL;

	/* Mostly a page that is pinned, or a mapping that has one. */
	if (op->d % 4)
		i = next_pin(op->b % MODEL_PINS);
	if (i < MODEL_PINS)
		piece = model_piece_at(&model, model.pin[i].address);
	if (!piece)
		return;
	range_to_pin(op, piece, &start, &length, &first, &end);
	if (i < MODEL_PINS && op->d % 4 < 3) {
		start = first = model.pin[i].address;
		length = MODEL_FRAME;
		end = start + length;
	}
	result = hp_unpin((void *)start, length);
	say("unpin 0x%lx: %lu bytes -> %d\n", start, length, result);
	if (length && first < end && end <= model_piece_end(piece))
		should = model.file[piece->file].flags & HP_FILE_MOVABLE ? model_unpin(&model, first, end) : 0;
	must_answer(result, should);
}
