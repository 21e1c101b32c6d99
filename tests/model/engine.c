/* SPDX-License-Identifier: MIT */
#include "model/engine.h"

#include "model/steps.h"

#include "library/library.h"
#include "os/budget.h"
#include "os/sim.h"
#include "pool/base.h"
#include "space/space.h"

#include <errno.h>
#include <string.h>

enum { CHECK_EVERY = 8 };

struct model model;
struct hp_os *os;
hp_pool pool;
hp_error last_error;
bool big, verbose;
hp_backing backing;
uint64_t next_tag;
static uint64_t own_maps;
static char logged[256]; /* the first error that was logged */

static void note_error(hp_log_level level, const char *line, void *context)
{
	if (level == HP_LOG_ERROR && !logged[0])
		snprintf(logged, sizeof(logged), "%s", line);
}

/* ---- decoding --------------------------------------------------------------------------------------------------- */

uint32_t choose_place(uint16_t n, uint32_t size)
{
	uint32_t near = 508 + n % 8;

	return n & 0x8000 && near < size ? near : (n & 0x7fffu) % (size + 1);
}

void choose_range(const struct op *op, uint32_t size, uint32_t *first, uint32_t *pages)
{
	uint32_t end;

	*first = choose_place(op->b, size ? size - 1 : 0);
	end = choose_place(op->c, size + (op->c % 16 == 0));
	*pages = end > *first ? end - *first : op->c % 64 != 5;
}

uint32_t choose_size(uint16_t n)
{
	return n % (big ? 3 : 16) == 0 ? 500 + n / 16 % 150 : 1 + n / 16 % 24;
}

uint64_t choose_odd(uint16_t n, unsigned how)
{
	switch (how % 4) {
	case 0:
		return 0;
	case 1:
		return MODEL_FRAME - 1 - n % 9000;
	case 2:
		return n % 9000;
	default:
		return n * 32ul;
	}
}

uint32_t choose_base_page(uint16_t n)
{
	static const uint32_t some[] = {0, 1, MODEL_BASE_PAGES - 1};

	return n % 4 < 3 ? some[n % 4] : n / 4 % (uint32_t)MODEL_BASE_PAGES;
}

struct model_piece *pick_piece(unsigned n)
{
	for (unsigned i = 0; i < MODEL_PIECES; i++)
		if (model.piece[(n + i) % MODEL_PIECES].exists)
			return &model.piece[(n + i) % MODEL_PIECES];
	return NULL;
}

unsigned pick_handle(const struct op *op)
{
	for (unsigned i = 0; i < MODEL_SLOTS && op->a < 240; i++)
		if (model.handle[(op->a + i) % MODEL_SLOTS].open)
			return (op->a + i) % MODEL_SLOTS;
	return op->a % MODEL_SLOTS;
}

/* ---- looking ---------------------------------------------------------------------------------------------------- */

enum model_lies look_at(const struct model_file *file, uint32_t page, bool *hole)
{
	struct hp_pool_view *view = hp_pool_find(pool.id);
	hp_frame_id frame = hp_index_lookup(hp_file_index(view, hp_file_at(view, file->number)), page);

	*hole = frame != HP_NO_FRAME && hp_frame_state(hp_frame_load(&view->frames[frame])) == HP_FRAME_HOLE;
	return frame == HP_NO_FRAME ? MODEL_UNKNOWN : hp_is_base(view, frame) ? MODEL_IN_PLACE : MODEL_IN_FRAME;
}

void learn_page(struct model_file *file, uint32_t page)
{
	bool hole;
	enum model_lies lies = look_at(file, page, &hole);

	must(lies || !file->there[page], "page %u is not there", page);
	must(!lies || model_learn_lies(file, page, lies), "page %u lies in a %s, which it cannot", page,
	     lies == MODEL_IN_PLACE ? "place for base pages" : "frame");
}

void learn_places(struct model_file *file)
{
	const struct hp_file_record *record = hp_file_at(hp_pool_find(pool.id), file->number);
	uint32_t most = file->places, least = file->places - file->spread;
	uint32_t places = atomic_load(&record->base) + atomic_load(&record->base_promised);

	must(!file->exists || model_learn_places(file, places),
	     "%u pages lie in places for base pages, and should from %u to %u", places, least, most);
}

/* Page by page; returns how many lie in places, holes too. */
static uint64_t check_places(struct model_file *file)
{
	uint64_t base = 0;

	for (uint32_t page = 0; page < file->size; page++) {
		bool hole;

		learn_page(file, page);
		base += look_at(file, page, &hole) == MODEL_IN_PLACE;
	}
	must(model_lying(file, MODEL_IN_PLACE) <= file->places, "%u pages lie in places, and %u should",
	     model_lying(file, MODEL_IN_PLACE), file->places);
	must(model_lying(file, MODEL_IN_FRAME) <= file->promised_count - file->places,
	     "%u pages lie in frames, and %u should", model_lying(file, MODEL_IN_FRAME),
	     file->promised_count - file->places);
	return base;
}

/* ---- figures ---------------------------------------------------------------------------------------------------- */

static void check_tenant(int i)
{
	const struct model_tenant *tenant = &model.tenant[i];
	hp_tenant_stat stat = {.struct_size = sizeof(stat)};
	int result;

	if (!tenant->made)
		return;
	result = hp_tenant_stat_get(tenant->handle, &stat);
	must_answer(result, tenant->exists ? 0 : -EBADF);
	if (result)
		return;
	must_answer(stat.files, model_tenant_files(&model, i));
	must_answer(stat.limit, tenant->limit == UINT64_MAX ? 0 : tenant->limit * MODEL_FRAME);
	must_answer(stat.minimum, tenant->minimum * MODEL_FRAME);
	must_answer(stat.used, model_tenant_used(&model, i) * MODEL_FRAME);
}

static void check_file(unsigned slot)
{
	struct model_file *file = model_file_of(&model, slot);
	hp_file_stat stat = {.struct_size = sizeof(stat)};
	int result = hp_file_stat_get(model.handle[slot].handle, &stat);

	must_answer(result, file ? 0 : -EBADF);
	if (result)
		return;
	must_answer(stat.size, file->size * MODEL_FRAME);
	must_answer(stat.mappings, file->pieces);
	must_answer(stat.present + stat.holes + stat.reserved, file->promised_count * MODEL_FRAME);
	must_answer(stat.base, check_places(file) * MODEL_FRAME);
	must(stat.present + stat.holes >= model_there(file) * MODEL_FRAME,
	     "%lu pages present and %lu holes; %u were touched", stat.present / MODEL_FRAME, stat.holes / MODEL_FRAME,
	     model_there(file));
}

static void stat_all(const struct op *op)
{
	for (unsigned slot = 0; slot < MODEL_SLOTS; slot++)
		check_file(slot);
	for (int i = 0; i < MODEL_TENANTS; i++)
		check_tenant(i);
}

static void check(const struct op *op)
{
	hp_pool_stats stats = {.struct_size = sizeof(stats)};
	uint64_t files = 0, pieces = 0, in_places;

	say("check\n");
	stat_all(op);
	must_answer(hp_pool_check(pool, &last_error), 0);
	must_answer(hp_pool_stats_get(pool, &stats), 0);
	for (unsigned i = 0; i < MODEL_FILES; i++) {
		files += model.file[i].exists;
		pieces += model.file[i].pieces;
	}
	must_answer(stats.files, files);
	must_answer(stats.mappings, pieces);
	/* Frames that are free and not promised; what is used, or a hole, may lie in a place. */
	must_answer(model.frames - (stats.zeroed + stats.dirty - stats.reserved), model_committed(&model));
	in_places = stats.zeroed + stats.dirty + stats.used + stats.holes - model.frames;
	must(in_places <= model_places(&model), "%lu places are in use, and %lu can be", in_places,
	     model_places(&model));
	must(hp_sim_map_count(os) <= hp_maps_taken(os), "%lu kernel mappings where %lu were set aside",
	     hp_sim_map_count(os), hp_maps_taken(os));
}

/* ---- a list ----------------------------------------------------------------------------------------------------- */

/*
 * Some more than once: what is touched often finds more. The second half came later, and has the first one's steps
 * where it has none of its own: lists from before mean much the same.
 */
static void (*const run_op[])(const struct op *op) = {
	step_create,
	step_open_file,
	step_unlink_file,
	step_close_file,
	step_allocate,
	step_punch,
	step_truncate_file,
	step_read_file,
	step_write_file,
	step_map,
	step_unmap,
	step_protect,
	step_populate,
	step_load,
	step_store,
	step_tenant_create,
	step_tenant_close,
	check,
	step_map,
	step_map,
	step_load,
	step_store,
	step_store,
	step_punch,
	step_truncate_file,
	step_open_file,
	step_map,
	step_unmap,
	step_load,
	step_truncate_file,
	step_protect,
	step_map,
	/* 32 */
	step_create_special,
	step_open_special,
	step_unlink_file,
	step_close_file,
	step_allocate,
	step_punch,
	step_truncate_file,
	step_read_file,
	step_write_file,
	step_map,
	step_unmap,
	step_collapse,
	step_populate,
	step_load,
	step_store,
	step_tenant_create,
	step_tenant_close,
	step_split,
	step_map,
	step_collapse,
	step_pin,
	step_store,
	step_collapse,
	step_punch,
	step_split,
	step_open_special,
	step_create_special,
	step_unpin,
	step_load,
	step_pin,
	step_store,
	step_map,
};

#define KINDS (sizeof(run_op) / sizeof(run_op[0]))

_Static_assert(KINDS == 64, "the kinds of older lists are counted from 0 on and round");

static void begin(const uint8_t *header)
{
	static const uint32_t frames_of[] = {4, 24, 24, 40, 100, 100, 640, 800};
	static const char *const tunings[] = {
		"",
		"fault_window=1 file_lock=vma",
		"fault_window=4 fault_mutexes=1 file_lock=invalidate",
		"fault_window=512 file_lock=rwsem resv_lock=global",
	};
	static const hp_backing backing_of[] = {HP_BACKING_BASE, HP_BACKING_HUGETLB, HP_BACKING_HUGETLB,
	                                        HP_BACKING_HUGETLB};
	bool scarce = header[3] % 4 == 3; /* for files that fall back */
	uint64_t frames = scarce ? 1u + header[3] / 4 % 8 : frames_of[header[0] % 8];
	char tuning[128];
	struct hp_sim_config config = {.address_bytes = UINT64_C(1) << 36, .table_sharing = header[1] & 1};
	hp_pool_options options = {.struct_size = sizeof(options),
	                           .size = frames * MODEL_FRAME,
	                           .max_size = header[1] & 2 ? 1024 * MODEL_FRAME : 0,
	                           .backing = header[3] & 32 ? HP_BACKING_THP : backing_of[header[1] / 4 % 4],
	                           .workers = HP_WORKERS_NONE,
	                           .tuning = tuning};

	snprintf(tuning, sizeof(tuning), "%s%s", tunings[header[2] % 4], header[3] & 64 ? " collapse=relock" : "");
	config.hugetlb_bytes = frames * MODEL_FRAME;
	big = frames > 600;
	forget_addresses();
	next_tag = 0;
	logged[0] = 0;
	last_error.message[0] = 0;
	hp_log_set(note_error, HP_LOG_WARNING, NULL);
	os = hp_sim_create(&config);
	must(os, "no sim");
	must_answer(hp_pool_create_on(os, &options, &pool, &last_error), 0);
	say("pool of %lu frames of at most %lu, %s, tuning %s%s\n", frames, options.max_size / MODEL_FRAME,
	    hp_backing_name(options.backing), options.tuning, config.table_sharing ? ", table sharing" : "");
	own_maps = hp_maps_taken(os);
	backing = options.backing;
	model_begin(&model, frames, hp_segment_frames(hp_pool_find(pool.id)->shared));
}

/* Everything that was stored is found, through mappings and by read. */
static void check_contents(void)
{
	for (unsigned slot = 0; slot < MODEL_SLOTS; slot++) {
		const struct model_file *file = model_file_of(&model, slot);

		for (uint32_t page = 0; file && page < file->size; page++)
			if (file->content[page])
				step_read_file(&(struct op){.a = (uint8_t)slot, .b = (uint16_t)page, .d = 200});
	}
	for (unsigned i = 0; i < MODEL_PIECES; i++)
		for (uint32_t page = 0; page < model.piece[i].pages && model.piece[i].exists; page += 1 + page / 8)
			touch_piece(&model.piece[i], page, page % 4, false);
}

static void end(void)
{
	const struct op none = {0};

	check_contents();
	check(&none);
	for (unsigned i = 0; i < MODEL_PIECES; i++)
		if (model.piece[i].exists)
			step_unmap(&(struct op){.a = (uint8_t)i, .d = 1});
	check(&none);
	for (uint8_t i = 0; i < MODEL_SLOTS; i++) {
		if (model.handle[i].open)
			step_close_file(&(struct op){.a = i});
		step_unlink_file(&(struct op){.a = i});
	}
	for (uint8_t i = 0; i < MODEL_TENANTS; i++)
		step_tenant_close(&(struct op){.a = i});
	check(&none);
	must(model_committed(&model) == 0, "the model is left with %lu frames", model_committed(&model));
	must_answer(hp_maps_taken(os), own_maps);
	must_answer(hp_pool_close(pool), 0);
	must_answer(hp_sim_destroy(os), 0);
	model_end(&model);
}

void engine_run(const uint8_t *data, size_t size, bool is_verbose)
{
	uint8_t header[ENGINE_HEADER] = {0};
	unsigned count = 0;

	verbose = is_verbose;
	memcpy(header, data, size < sizeof(header) ? size : sizeof(header));
	begin(header);
	for (size_t at = sizeof(header); at < size; at += ENGINE_OP) {
		struct op op = {0};

		memcpy(&op, data + at, size - at < sizeof(op) ? size - at : sizeof(op));
		run_op[op.kind % KINDS](&op);
		must(!logged[0], "logged: %s", logged);
		if (++count % CHECK_EVERY == 0)
			check(&op);
	}
	end();
	must(!logged[0], "logged: %s", logged);
}
