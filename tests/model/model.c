/* SPDX-License-Identifier: MIT */
#include "model/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void model_begin(struct model *m, uint64_t frames, uint32_t frames_max)
{
	*m = (struct model){.frames = frames, .frames_max = frames_max};
	for (unsigned i = 0; i < MODEL_SLOTS; i++) {
		m->name[i] = -1;
		m->handle[i].file = -1;
	}
}

void model_end(struct model *m)
{
	for (unsigned i = 0; i < MODEL_FILES; i++)
		for (uint32_t page = 0; page < MODEL_PAGES; page++)
			free(m->file[i].content[page]);
}

/* ---- frames ----------------------------------------------------------------------------------------------------- */

uint64_t model_tenant_used(const struct model *m, int tenant)
{
	uint64_t used = 0;

	for (unsigned i = 0; i < MODEL_FILES; i++)
		if (m->file[i].exists && m->file[i].tenant == tenant)
			used += m->file[i].promised_count;
	return used;
}

uint64_t model_tenant_files(const struct model *m, int tenant)
{
	uint64_t files = 0;

	for (unsigned i = 0; i < MODEL_FILES; i++)
		files += m->file[i].exists && m->file[i].tenant == tenant;
	return files;
}

static uint64_t committed_to(const struct model_tenant *tenant, uint64_t used)
{
	return used > tenant->minimum ? used : tenant->minimum;
}

uint64_t model_committed(const struct model *m)
{
	uint64_t committed = model_tenant_used(m, -1);

	for (int i = 0; i < MODEL_TENANTS; i++)
		if (m->tenant[i].exists)
			committed += committed_to(&m->tenant[i], model_tenant_used(m, i));
	return committed;
}

/* -1 is no tenant: neither limit nor minimum. */
static int charge(const struct model *m, int tenant, uint64_t pages)
{
	uint64_t used = model_tenant_used(m, tenant), needed = pages;

	if (tenant >= 0 && used + pages > m->tenant[tenant].limit)
		return -EDQUOT;
	if (tenant >= 0)
		needed = committed_to(&m->tenant[tenant], used + pages) - committed_to(&m->tenant[tenant], used);
	return model_committed(m) + needed > m->frames ? -ENOMEM : 0;
}

int model_promise(struct model *m, struct model_file *file, uint32_t first, uint32_t pages)
{
	uint32_t missing = 0;
	int result;

	for (uint32_t page = first; page < first + pages; page++)
		missing += !file->promised[page];
	result = missing ? charge(m, file->tenant, missing) : 0;
	if (result)
		return result;
	memset(file->promised + first, true, pages);
	file->promised_count += missing;
	return 0;
}

int model_tenant_create(struct model *m, int tenant, uint64_t limit, uint64_t minimum)
{
	uint64_t most = limit ? limit / MODEL_FRAME : UINT64_MAX, least = (minimum + MODEL_FRAME - 1) / MODEL_FRAME;

	if (most == 0 || least > most)
		return -EINVAL;
	if (model_committed(m) + least > m->frames)
		return -ENOMEM;
	m->tenant[tenant] = (struct model_tenant){.exists = true, .made = true, .limit = most, .minimum = least};
	return 0;
}

int model_tenant_close(struct model *m, int tenant)
{
	if (!m->tenant[tenant].exists)
		return -EBADF;
	if (model_tenant_files(m, tenant))
		return -EBUSY;
	m->tenant[tenant].exists = false;
	return 0;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

int model_free_file(const struct model *m)
{
	for (int i = 0; i < MODEL_FILES; i++)
		if (!m->file[i].exists)
			return i;
	return -1;
}

struct model_file *model_file_of(struct model *m, unsigned slot)
{
	const struct model_handle *handle = &m->handle[slot];
	struct model_file *file = handle->file < 0 ? NULL : &m->file[handle->file];

	return file && file->exists && file->serial == handle->serial && file->opens ? file : NULL;
}

void model_make_file(struct model *m, int file, uint32_t pages, int tenant)
{
	m->file[file] = (struct model_file){.exists = true,
	                                    .serial = ++m->serial,
	                                    .size = pages,
	                                    .most = pages > m->frames_max ? pages : m->frames_max,
	                                    .tenant = tenant};
}

static void drop_content(struct model_file *file, uint32_t first, uint32_t end)
{
	for (uint32_t page = first; page < end; page++) {
		free(file->content[page]);
		file->content[page] = NULL;
	}
}

void model_drop_if_unused(struct model_file *file)
{
	if (file->opens || file->names || file->pieces)
		return;
	drop_content(file, 0, MODEL_PAGES);
	*file = (struct model_file){0};
}

int model_check_range(const struct model_file *file, uint64_t offset, uint64_t length)
{
	if (offset % MODEL_FRAME || length % MODEL_FRAME || !length)
		return -EINVAL;
	if (offset / MODEL_FRAME >= file->size || length / MODEL_FRAME > file->size - offset / MODEL_FRAME)
		return -EINVAL;
	return 0;
}

int model_allocate(struct model *m, struct model_file *file, uint32_t first, uint32_t pages)
{
	int result = model_promise(m, file, first, pages);

	if (!result)
		memset(file->framed + first, true, pages);
	return result;
}

static bool is_mapped(const struct model *m, const struct model_file *file, uint32_t page)
{
	for (unsigned i = 0; i < MODEL_PIECES; i++) {
		const struct model_piece *piece = &m->piece[i];

		if (piece->exists && &m->file[piece->file] == file && page >= piece->first &&
		    page - piece->first < piece->pages)
			return true;
	}
	return false;
}

static void unpromise(struct model_file *file, uint32_t page)
{
	file->promised_count -= file->promised[page];
	file->promised[page] = file->framed[page] = false;
}

/* As far as bytes go: those at the start of a base page are its tag (os/sim.c). */
static void store(struct model_file *file, uint64_t offset, const char *data, uint64_t length)
{
	for (uint64_t done = 0, part; done < length; done += part) {
		uint64_t at = offset + done, in_page = at % HP_BASE_PAGE_SIZE;
		uint32_t page = (uint32_t)(at / MODEL_FRAME), base = (uint32_t)(at % MODEL_FRAME / HP_BASE_PAGE_SIZE);
		uint64_t tag = model_tag(file, page, base);

		part = min(length - done, HP_BASE_PAGE_SIZE - in_page);
		for (uint64_t i = in_page; i < sizeof(tag) && i < in_page + part; i++)
			((char *)&tag)[i] = data ? data[done + i - in_page] : 0;
		model_set_tag(file, page, base, tag);
	}
}

void model_punch(struct model *m, struct model_file *file, uint64_t offset, uint64_t length, bool keep)
{
	uint64_t size = file->size * MODEL_FRAME, end;
	uint32_t first = (uint32_t)((offset + MODEL_FRAME - 1) / MODEL_FRAME), last;

	if (offset >= size)
		return;
	end = offset + min(length, size - offset);
	last = (uint32_t)(end / MODEL_FRAME);
	if (keep || first >= last) {
		store(file, offset, NULL, end - offset);
		return;
	}
	store(file, offset, NULL, first * MODEL_FRAME - offset);
	store(file, last * MODEL_FRAME, NULL, end - last * MODEL_FRAME);
	drop_content(file, first, last);
	for (uint32_t page = first; page < last; page++)
		if (!is_mapped(m, file, page))
			unpromise(file, page);
}

/* What mappings have beyond the end is promised again. */
static int promise_again(struct model *m, struct model_file *file, uint32_t pages)
{
	uint32_t missing = 0;
	int result;

	for (uint32_t page = file->size; page < pages; page++)
		missing += is_mapped(m, file, page);
	result = missing ? charge(m, file->tenant, missing) : 0;
	for (uint32_t page = file->size; page < pages && !result; page++)
		file->promised[page] = is_mapped(m, file, page);
	file->promised_count += result ? 0 : missing;
	return result;
}

static void cut(struct model_file *file, uint32_t pages)
{
	drop_content(file, pages, file->size);
	for (uint32_t page = pages; page < file->size; page++)
		unpromise(file, page);
}

/* A mapping of ready memory is ready again. */
static void frame_ready(struct model *m, const struct model_file *file, uint32_t first, uint32_t end)
{
	for (unsigned i = 0; i < MODEL_PIECES; i++) {
		const struct model_piece *piece = &m->piece[i];

		for (uint32_t page = first; page < end; page++)
			if (piece->exists && !piece->lazy && &m->file[piece->file] == file && page >= piece->first &&
			    page - piece->first < piece->pages)
				m->file[piece->file].framed[page] = true;
	}
}

int model_truncate(struct model *m, struct model_file *file, uint32_t pages)
{
	int result;

	if (pages > file->most)
		return -EFBIG;
	if (pages <= file->size) {
		cut(file, pages);
		file->size = pages;
		return 0;
	}
	result = promise_again(m, file, pages);
	if (result)
		return result;
	frame_ready(m, file, file->size, pages);
	file->size = pages;
	return 0;
}

int64_t model_write(struct model *m, struct model_file *file, uint64_t offset, const char *data, uint64_t length)
{
	uint64_t size = file->size * MODEL_FRAME, done = 0;

	length = offset < size ? min(length, size - offset) : 0;
	while (done < length) {
		uint64_t at = offset + done, part = min(length - done, MODEL_FRAME - at % MODEL_FRAME);
		int result = model_allocate(m, file, (uint32_t)(at / MODEL_FRAME), 1);

		if (result)
			return done ? (int64_t)done : result;
		store(file, at, data + done, part);
		done += part;
	}
	return (int64_t)done;
}

int64_t model_read(const struct model_file *file, uint64_t offset, char *data, uint64_t length)
{
	uint64_t size = file->size * MODEL_FRAME;

	length = offset < size ? min(length, size - offset) : 0;
	for (uint64_t i = 0; i < length; i++) {
		uint64_t at = offset + i;
		uint64_t tag =
			model_tag(file, (uint32_t)(at / MODEL_FRAME), (uint32_t)(at % MODEL_FRAME / HP_BASE_PAGE_SIZE));

		data[i] = ((const char *)&tag)[at % sizeof(tag)];
	}
	return (int64_t)length;
}

uint32_t model_framed(const struct model_file *file)
{
	uint32_t framed = 0;

	for (uint32_t page = 0; page < file->size; page++)
		framed += file->framed[page];
	return framed;
}

uint64_t model_tag(const struct model_file *file, uint32_t page, uint32_t base_page)
{
	return file->content[page] ? file->content[page][base_page] : 0;
}

void model_set_tag(struct model_file *file, uint32_t page, uint32_t base_page, uint64_t tag)
{
	if (!file->content[page] && !tag)
		return;
	if (!file->content[page])
		file->content[page] = calloc(MODEL_BASE_PAGES, sizeof(tag));
	if (!file->content[page])
		abort();
	file->content[page][base_page] = tag;
}

/* ---- mappings --------------------------------------------------------------------------------------------------- */

struct model_piece *model_piece_at(struct model *m, uintptr_t address)
{
	for (unsigned i = 0; i < MODEL_PIECES; i++)
		if (m->piece[i].exists && address >= m->piece[i].start && address < model_piece_end(&m->piece[i]))
			return &m->piece[i];
	return NULL;
}

bool model_is_covered(struct model *m, uintptr_t start, uintptr_t end)
{
	while (start < end) {
		const struct model_piece *piece = model_piece_at(m, start);

		if (!piece)
			return false;
		start = model_piece_end(piece);
	}
	return true;
}

bool model_overlaps(const struct model *m, uintptr_t start, uintptr_t end)
{
	for (unsigned i = 0; i < MODEL_PIECES; i++)
		if (m->piece[i].exists && m->piece[i].start < end && model_piece_end(&m->piece[i]) > start)
			return true;
	return false;
}

bool model_has_room(const struct model *m, unsigned pieces)
{
	unsigned unused = 0;

	for (unsigned i = 0; i < MODEL_PIECES; i++)
		unused += !m->piece[i].exists;
	return unused >= pieces;
}

void model_add_piece(struct model *m, const struct model_piece *piece)
{
	unsigned i = 0;

	while (m->piece[i].exists)
		i++;
	m->piece[i] = *piece;
	m->piece[i].exists = true;
	m->file[piece->file].pieces++;
}

/* The part of a piece that lies in a range becomes one of its own, with this protection. */
static void add_part(struct model *m, const struct model_piece *of, uintptr_t start, uintptr_t end, unsigned prot)
{
	struct model_piece part = *of;

	if (start >= end)
		return;
	part.start = start;
	part.first = of->first + (uint32_t)((start - of->start) / MODEL_FRAME);
	part.pages = (uint32_t)((end - start) / MODEL_FRAME);
	part.prot = prot;
	model_add_piece(m, &part);
}

void model_cut(struct model *m, uintptr_t start, uintptr_t end, const unsigned *prot)
{
	while (start < end) {
		struct model_piece *piece = model_piece_at(m, start), old = *piece;
		uintptr_t stop = model_piece_end(&old) < end ? model_piece_end(&old) : end;

		if (!prot || old.prot != *prot) {
			piece->exists = false;
			add_part(m, &old, old.start, start, old.prot);
			if (prot)
				add_part(m, &old, start, stop, *prot);
			add_part(m, &old, stop, model_piece_end(&old), old.prot);
			m->file[old.file].pieces--;
			model_drop_if_unused(&m->file[old.file]);
		}
		start = stop;
	}
}

int model_populate(struct model *m, const struct model_piece *piece, uint32_t first, uint32_t pages)
{
	struct model_file *file = &m->file[piece->file];

	for (uint32_t page = first; page < first + pages && page < file->size; page++)
		file->framed[page] = true;
	return first + pages > file->size ? -ENXIO : 0;
}
