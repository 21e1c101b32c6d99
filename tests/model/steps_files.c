/* SPDX-License-Identifier: MIT */
/* Files and tenants. */
#include "model/steps.h"

#include <errno.h>
#include <string.h>

enum { BUFFER = 20000 };

static const char *const name_of[MODEL_SLOTS] = {"alpha", "beta", "a name that is somewhat longer than the others"};

/* ---- files ------------------------------------------------------------------------------------------------------ */

static void take_handle(unsigned slot, int file, hp_file handle)
{
	model.handle[slot] =
		(struct model_handle){.file = file, .serial = model.file[file].serial, .open = true, .handle = handle};
	model.file[file].opens++;
	model.file[file].number = handle.id >> 8 & 0xffffff; /* file/file.c */
}

static void create(const struct op *op, unsigned flags)
{
	unsigned slot = op->a % MODEL_SLOTS, wrong = op->d == 255 ? 1u << op->e % 2 : 0;
	uint32_t pages = choose_size(op->b);
	int file = model_free_file(&model), result;
	hp_file handle;

	if (model.handle[slot].open || file < 0)
		return;
	result = hp_file_create(pool, pages * MODEL_FRAME - op->c % 3, flags | wrong, &handle, &last_error);
	say("create handle %u: %u pages, flags %u -> %d\n", slot, pages, flags | wrong, result);
	must_answer(result, wrong ? -EINVAL : 0);
	if (result)
		return;
	model_make_file(&model, file, pages, -1, flags);
	take_handle(slot, file, handle);
}

/* Mostly both. */
static unsigned choose_special(const struct op *op)
{
	static const unsigned flags[] = {HP_FILE_FALLBACK | HP_FILE_MOVABLE, HP_FILE_FALLBACK | HP_FILE_MOVABLE,
	                                 HP_FILE_MOVABLE, HP_FILE_FALLBACK};

	return flags[op->e / 4 % 4];
}

void step_create(const struct op *op)
{
	create(op, 0);
}

void step_create_special(const struct op *op)
{
	create(op, choose_special(op));
}

static int open_answer(const hp_file_options *options, int found, int tenant)
{
	if (options->flags & ~(HP_FILE_CREATE | HP_FILE_EXCLUSIVE | HP_FILE_FALLBACK | HP_FILE_MOVABLE))
		return -EINVAL;
	if (found >= 0)
		return options->flags & HP_FILE_EXCLUSIVE ? -EEXIST : 0;
	if (!(options->flags & HP_FILE_CREATE))
		return -ENOENT;
	return options->tenant.id && !model.tenant[tenant].exists ? -EBADF : 0;
}

static void open_file(const struct op *op, unsigned flags)
{
	unsigned slot = op->a % MODEL_SLOTS, name = op->a / MODEL_SLOTS % MODEL_SLOTS;
	int found = model.name[name], file = model_free_file(&model), tenant = op->e % (MODEL_TENANTS + 1), result;
	hp_file_options options = {.struct_size = sizeof(options),
	                           .flags = op->d % 8 == 7 ? 64
	                                    : op->d % 4    ? HP_FILE_CREATE | op->d / 8 % 4 / 3 * 2u | flags
	                                                   : flags,
	                           .size = choose_size(op->b) * MODEL_FRAME,
	                           .wait_ms = flags && op->c % 64 == 9};
	hp_file handle;

	if (model.handle[slot].open || file < 0)
		return;
	if (tenant < MODEL_TENANTS && model.tenant[tenant].made)
		options.tenant = model.tenant[tenant].handle;
	result = hp_file_open(pool, name_of[name], &options, &handle, &last_error);
	say("open handle %u: name %u, flags %u, %lu pages, tenant %d -> %d\n", slot, name, options.flags,
	    options.size / MODEL_FRAME, options.tenant.id ? tenant : -1, result);
	must_answer(result, open_answer(&options, found, tenant));
	if (result)
		return;
	if (found < 0) {
		model_make_file(&model, file, (uint32_t)(options.size / MODEL_FRAME), options.tenant.id ? tenant : -1,
		                flags);
		model.name[name] = found = file;
		model.file[file].names++;
	}
	take_handle(slot, found, handle);
}

void step_open_file(const struct op *op)
{
	open_file(op, 0);
}

void step_open_special(const struct op *op)
{
	open_file(op, choose_special(op));
}

void step_unlink_file(const struct op *op)
{
	unsigned name = op->a % MODEL_SLOTS;
	int file = model.name[name], result = hp_file_unlink(pool, name_of[name], &last_error);

	say("unlink name %u -> %d\n", name, result);
	must_answer(result, file < 0 ? -ENOENT : 0);
	if (result)
		return;
	model.name[name] = -1;
	model.file[file].names--;
	model_drop_if_unused(&model.file[file]);
}

void step_close_file(const struct op *op)
{
	unsigned slot = op->a % MODEL_SLOTS;
	struct model_handle *handle = &model.handle[slot];
	struct model_file *file = model_file_of(&model, slot);
	int result;

	/* A handle that is closed may be as good as another one of the same file, which is not ours to close. */
	if (handle->file < 0 || (!handle->open && file))
		return;
	result = hp_file_close(handle->handle);
	say("close handle %u -> %d\n", slot, result);
	must_answer(result, file ? 0 : -EBADF);
	handle->open = false;
	if (!file)
		return;
	file->opens--;
	model_drop_if_unused(file);
}

void step_allocate(const struct op *op)
{
	unsigned slot = pick_handle(op);
	struct model_file *file = model_file_of(&model, slot);
	uint32_t first, pages;
	int result, should = -EBADF;

	choose_range(op, file ? file->size : 1, &first, &pages);
	result = hp_file_allocate(model.handle[slot].handle, first * MODEL_FRAME, pages * MODEL_FRAME, &last_error);
	say("allocate handle %u: pages %u+%u -> %d\n", slot, first, pages, result);
	if (file)
		should = model_check_range(file, first * MODEL_FRAME, pages * MODEL_FRAME);
	if (!should)
		should = model_allocate(&model, file, first, pages);
	must_answer(result, should);
}

void step_punch(const struct op *op)
{
	unsigned slot = pick_handle(op), flags = op->d % 4 == 3 ? HP_PUNCH_KEEP : op->d == 4 ? 8 : 0;
	struct model_file *file = model_file_of(&model, slot);
	uint64_t offset, length;
	uint32_t first, pages;
	int result, should;

	choose_range(op, file ? file->size : 1, &first, &pages);
	pages = flags & HP_PUNCH_KEEP && pages > 3 ? 3 : pages;
	offset = first * MODEL_FRAME + (op->d & 16 ? choose_odd(op->b, op->e) : 0);
	length = pages * MODEL_FRAME + (op->d & 32 ? choose_odd(op->c, op->e / 4) : 0);
	if (op->e == 255)
		length = UINT64_MAX - op->c;
	result = hp_file_punch(model.handle[slot].handle, offset, length, flags, &last_error);
	say("punch handle %u: %lu+%lu (pages %u+%u), flags %u -> %d\n", slot, offset, length, first, pages, flags,
	    result);
	should = !file ? -EBADF : flags > 1 || length == 0 ? -EINVAL : 0;
	must_answer(result, should);
	if (should)
		return;
	model_punch(&model, file, offset, length, flags);
	learn_places(file);
}

static uint32_t new_size(const struct op *op, const struct model_file *file)
{
	uint32_t size = file ? file->size : 1, most = file ? file->most : 1;

	switch (op->d % 8) {
	case 0:
		return size + op->c % 8;
	case 1:
		return 500 + op->c % 150;
	case 2:
		return 1 + op->c % 24;
	case 3:
		return most + op->c % 2;
	default:
		return choose_place(op->b, size + 2);
	}
}

void step_truncate_file(const struct op *op)
{
	unsigned slot = pick_handle(op);
	struct model_file *file = model_file_of(&model, slot);
	uint32_t pages = new_size(op, file), rest = op->e == 255;
	int result, should;

	if (file && pages <= file->most && pages > MODEL_PAGES)
		return;
	result = hp_file_truncate(model.handle[slot].handle, pages * MODEL_FRAME + rest, &last_error);
	say("truncate handle %u: %u pages and %u -> %d\n", slot, pages, rest, result);
	should = !file ? -EBADF : rest ? -EINVAL : model_truncate(&model, file, pages);
	/* Growing finds one limit or the other first. */
	if (should == -EDQUOT && result == -ENOMEM)
		should = result;
	must_answer(result, should);
	if (file)
		learn_places(file);
}

static char should_be[BUFFER], is[BUFFER];

void step_read_file(const struct op *op)
{
	unsigned slot = pick_handle(op);
	struct model_file *file = model_file_of(&model, slot);
	uint64_t offset = choose_place(op->b, file ? file->size : 1) * MODEL_FRAME + choose_odd(op->c, op->e);
	uint64_t length = op->d * 67ul + (op->e < 250);
	int64_t result, should;

	memset(is, 0x5a, length);
	result = hp_file_read(model.handle[slot].handle, offset, is, length);
	say("read handle %u: %lu+%lu (page %lu) -> %ld\n", slot, offset, length, offset / MODEL_FRAME, result);
	should = file ? model_read(file, offset, should_be, length) : -EBADF;
	must_answer(result, should);
	for (int64_t i = 0; i < result; i++)
		must(is[i] == should_be[i], "byte %ld of it is 0x%02hhx, and should be 0x%02hhx", i, is[i],
		     should_be[i]);
}

void step_write_file(const struct op *op)
{
	unsigned slot = pick_handle(op);
	struct model_file *file = model_file_of(&model, slot);
	uint64_t offset = choose_place(op->b, file ? file->size : 1) * MODEL_FRAME + choose_odd(op->c, op->e);
	uint64_t length = op->d * 67ul + (op->e < 250);
	int64_t result, should;

	next_tag++;
	for (uint64_t i = 0; i < length; i++)
		is[i] = (char)(next_tag * 7 + i);
	result = hp_file_write(model.handle[slot].handle, offset, is, length);
	say("write handle %u: %lu+%lu (page %lu) -> %ld\n", slot, offset, length, offset / MODEL_FRAME, result);
	should = file ? model_write(&model, file, offset, is, length) : -EBADF;
	must_answer(result, should);
}

/* ---- tenants ---------------------------------------------------------------------------------------------------- */

void step_tenant_create(const struct op *op)
{
	int tenant = op->a % MODEL_TENANTS, result, should;
	uint64_t limit = op->b % 40 * MODEL_FRAME + op->d % 2, minimum = op->c % 20 * MODEL_FRAME + op->e % 2;
	hp_tenant handle;

	if (model.tenant[tenant].exists)
		return;
	result = hp_tenant_create(pool, limit, minimum, &handle, &last_error);
	say("tenant %d: limit %lu, minimum %lu -> %d\n", tenant, limit, minimum, result);
	should = model_tenant_create(&model, tenant, limit, minimum);
	must_answer(result, should);
	if (!result)
		model.tenant[tenant].handle = handle;
}

void step_tenant_close(const struct op *op)
{
	int tenant = op->a % MODEL_TENANTS, result;

	if (!model.tenant[tenant].made)
		return;
	result = hp_tenant_close(model.tenant[tenant].handle);
	say("tenant %d closed -> %d\n", tenant, result);
	must_answer(result, model_tenant_close(&model, tenant));
}
