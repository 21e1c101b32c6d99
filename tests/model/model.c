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
	*m = (struct model){.frames = frames, .places = frames_max, .frames_max = frames_max};
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

/* Of what the tenant's files were promised. */
static uint64_t places_of(const struct model *m, int tenant)
{
	uint64_t places = 0;

	for (unsigned i = 0; i < MODEL_FILES; i++)
		if (m->file[i].exists && m->file[i].tenant == tenant)
			places += m->file[i].places;
	return places;
}

static uint64_t frames_of(const struct model *m, int tenant)
{
	return model_tenant_used(m, tenant) - places_of(m, tenant);
}

uint64_t model_places(const struct model *m)
{
	uint64_t places = 0;

	for (int tenant = -1; tenant < MODEL_TENANTS; tenant++)
		places += places_of(m, tenant);
	return places;
}

static uint64_t committed_to(const struct model_tenant *tenant, uint64_t used)
{
	return used > tenant->minimum ? used : tenant->minimum;
}

uint64_t model_committed(const struct model *m)
{
	uint64_t committed = frames_of(m, -1);

	for (int i = 0; i < MODEL_TENANTS; i++)
		if (m->tenant[i].exists)
			committed += committed_to(&m->tenant[i], frames_of(m, i));
	return committed;
}

uint64_t model_spare(const struct model *m, const struct model_file *file)
{
	uint64_t frames = frames_of(m, file->tenant);

	return file->tenant < 0 ? 0 : committed_to(&m->tenant[file->tenant], frames) - frames;
}

/* For pages that the file is promised more; the tenant -1 has neither limit nor minimum. */
static int charge(const struct model *m, struct model_file *file, uint64_t pages)
{
	uint64_t spare = model_spare(m, file), left = m->frames - model_committed(m), base;

	if (file->tenant >= 0 && model_tenant_used(m, file->tenant) + pages > m->tenant[file->tenant].limit)
		return -EDQUOT;
	base = pages > spare + left ? pages - spare - left : 0;
	if (base && (!(file->flags & HP_FILE_FALLBACK) || model_places(m) + base > m->places))
		return -ENOMEM;
	file->places += (uint32_t)base;
	return 0;
}

int model_promise(struct model *m, struct model_file *file, uint32_t first, uint32_t pages)
{
	uint32_t missing = 0;
	int result;

	for (uint32_t page = first; page < first + pages; page++)
		missing += !file->promised[page];
	result = missing ? charge(m, file, missing) : 0;
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

void model_make_file(struct model *m, int file, uint32_t pages, int tenant, unsigned flags)
{
	m->file[file] = (struct model_file){.exists = true,
	                                    .serial = ++m->serial,
	                                    .size = pages,
	                                    .most = pages > m->frames_max ? pages : m->frames_max,
	                                    .tenant = tenant,
	                                    .flags = flags};
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
		memset(file->there + first, true, pages);
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

/* What of all that is left must lie in places, and what can. */
static void bound_places(struct model_file *file)
{
	uint32_t low = file->places - file->spread, high = file->places;
	uint32_t least = model_lying(file, MODEL_IN_PLACE);
	uint32_t most = file->promised_count - model_lying(file, MODEL_IN_FRAME);

	file->places = high < most ? high : most;
	file->spread = file->places - (low > least ? low : least);
}

static void unpromise(struct model_file *file, uint32_t page)
{
	uint32_t in_place = file->promised[page] && file->lies[page] == MODEL_IN_PLACE;

	if (file->promised[page] && file->lies[page] == MODEL_UNKNOWN && file->places > file->spread)
		file->spread++;
	file->places -= in_place;
	file->spread = file->spread < file->places ? file->spread : file->places;
	file->promised_count -= file->promised[page];
	file->promised[page] = file->there[page] = false;
	file->lies[page] = MODEL_UNKNOWN;
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
	bound_places(file);
}

/* What mappings have beyond the end is promised again. */
static int promise_again(struct model *m, struct model_file *file, uint32_t pages)
{
	uint32_t missing = 0;
	int result;

	for (uint32_t page = file->size; page < pages; page++)
		missing += is_mapped(m, file, page);
	result = missing ? charge(m, file, missing) : 0;
	for (uint32_t page = file->size; page < pages && !result; page++)
		file->promised[page] = is_mapped(m, file, page);
	file->promised_count += result ? 0 : missing;
	/* It was tried for one mapping after the other, and given back: frames may have come in the place of places. */
	if (result)
		file->spread = file->places;
	bound_places(file);
	return result;
}

static void cut(struct model_file *file, uint32_t pages)
{
	drop_content(file, pages, file->size);
	for (uint32_t page = pages; page < file->size; page++)
		unpromise(file, page);
	bound_places(file);
}

/* A mapping of ready memory is ready again. */
static void complete_ready(struct model *m, const struct model_file *file, uint32_t first, uint32_t end)
{
	for (unsigned i = 0; i < MODEL_PIECES; i++) {
		const struct model_piece *piece = &m->piece[i];

		for (uint32_t page = first; page < end; page++)
			if (piece->exists && !piece->lazy && &m->file[piece->file] == file && page >= piece->first &&
			    page - piece->first < piece->pages)
				m->file[piece->file].there[page] = true;
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
	complete_ready(m, file, file->size, pages);
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

uint32_t model_there(const struct model_file *file)
{
	uint32_t there = 0;

	for (uint32_t page = 0; page < file->size; page++)
		there += file->there[page];
	return there;
}

/* ---- base pages ------------------------------------------------------------------------------------------------- */

uint32_t model_lying(const struct model_file *file, enum model_lies lies)
{
	uint32_t lying = 0;

	for (uint32_t page = 0; page < MODEL_PAGES; page++)
		lying += file->promised[page] && file->lies[page] == lies;
	return lying;
}

bool model_learn_lies(struct model_file *file, uint32_t page, enum model_lies lies)
{
	if (!file->promised[page] || (file->lies[page] != MODEL_UNKNOWN && file->lies[page] != lies))
		return false;
	file->there[page] = true;
	file->lies[page] = (uint8_t)lies;
	return true;
}

bool model_learn_places(struct model_file *file, uint32_t places)
{
	bool possible = places <= file->places && places >= file->places - file->spread;

	file->places = places;
	file->spread = 0;
	return possible;
}

void model_move(struct model_file *file, uint32_t page, enum model_lies to)
{
	file->places += to == MODEL_IN_PLACE;
	file->places -= to == MODEL_IN_FRAME;
	file->lies[page] = (uint8_t)to;
}

/* ---- contents --------------------------------------------------------------------------------------------------- */

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

static void drop_pins(struct model *m, uintptr_t start, uintptr_t end)
{
	for (unsigned i = 0; i < MODEL_PINS; i++)
		if (m->pin[i].count && m->pin[i].address >= start && m->pin[i].address < end)
			m->pin[i].count = 0;
}

void model_cut(struct model *m, uintptr_t start, uintptr_t end, const unsigned *prot)
{
	while (start < end) {
		struct model_piece *piece = model_piece_at(m, start), old = *piece;
		uintptr_t stop = model_piece_end(&old) < end ? model_piece_end(&old) : end;

		if (!prot)
			drop_pins(m, start, stop);
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
		file->there[page] = true;
	return first + pages > file->size ? -ENXIO : 0;
}

/* ---- pins ------------------------------------------------------------------------------------------------------- */

/* MODEL_PINS: it is not pinned. */
static unsigned find_pin(const struct model *m, uintptr_t address)
{
	unsigned i = 0;

	while (i < MODEL_PINS && (!m->pin[i].count || m->pin[i].address != address))
		i++;
	return i;
}

bool model_is_pinned(const struct model *m, const struct model_file *file, uint32_t page)
{
	for (unsigned i = 0; i < MODEL_PIECES; i++) {
		const struct model_piece *piece = &m->piece[i];

		if (piece->exists && &m->file[piece->file] == file && page >= piece->first &&
		    page - piece->first < piece->pages &&
		    find_pin(m, piece->start + (page - piece->first) * MODEL_FRAME) < MODEL_PINS)
			return true;
	}
	return false;
}

bool model_has_pins(const struct model *m, uint32_t pages)
{
	uint32_t unused = 0;

	for (unsigned i = 0; i < MODEL_PINS; i++)
		unused += !m->pin[i].count;
	return unused >= pages;
}

void model_pin(struct model *m, uintptr_t start, uintptr_t end)
{
	for (; start < end; start += MODEL_FRAME) {
		unsigned i = find_pin(m, start);

		if (i == MODEL_PINS)
			for (i = 0; m->pin[i].count; i++)
				;
		m->pin[i].address = start;
		m->pin[i].count++;
	}
}

int model_unpin(struct model *m, uintptr_t start, uintptr_t end)
{
	for (uintptr_t at = start; at < end; at += MODEL_FRAME)
		if (find_pin(m, at) == MODEL_PINS)
			return -EINVAL;
	for (uintptr_t at = start; at < end; at += MODEL_FRAME)
		m->pin[find_pin(m, at)].count--;
	return 0;
}
