/* SPDX-License-Identifier: MIT */
/* The invariants of files, proved from their indexes and the frames' own words. */
#include "file/remove.h"
#include "file/reserve.h"
#include "pool/base.h"
#include "pool/tenant.h"

#include "base/error.h"

#include <errno.h>

/* A page against its frame. Beyond the end there is nothing but what somebody still maps: holes. */
static int check_page(struct hp_pool_view *view, uint32_t number, uint32_t page, hp_frame_id frame, uint64_t *holes,
                      hp_error *error)
{
	uint64_t word = hp_frame_load(&view->frames[frame]);
	enum hp_frame_state state = hp_frame_state(word);

	if (hp_frame_owner(word) != number || hp_frame_page(word) != page ||
	    (state != HP_FRAME_USED && state != HP_FRAME_HOLE))
		return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE, "file %u page %u: frame %u does not say that it is here",
		               number, page, frame);
	if (page >= atomic_load(&hp_file_at(view, number)->pages) && state != HP_FRAME_HOLE)
		return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE, "file %u: page %u is beyond its end", number, page);
	*holes += state == HP_FRAME_HOLE;
	return 0;
}

/* Places for base pages that the file has, and is promised: no more than it is promised of both kinds. */
static int check_base(const struct hp_file_record *file, uint32_t number, uint64_t base, uint64_t reserved,
                      hp_error *error)
{
	if (base == atomic_load(&file->base) && atomic_load(&file->base_promised) <= reserved)
		return 0;
	return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE,
	               "file %u: %lu places for base pages, and its record says %u; %u more are promised, of %lu pages",
	               number, base, atomic_load(&file->base), atomic_load(&file->base_promised), reserved);
}

static int check_file(struct hp_pool_view *view, uint32_t number, hp_error *error)
{
	struct hp_file_record *file = hp_file_at(view, number);
	struct hp_index index = hp_file_index(view, file);
	uint64_t indexed = 0, holes = 0, base = 0, unpromised, reserved = hp_reserve_count(view, file, &unpromised);

	if (atomic_load(&file->moving))
		return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE, "file %u: page %u is being moved, and nothing runs",
		               number, atomic_load(&file->moving) - 1);
	for (uint32_t page = 0; page < atomic_load(&file->reach); page++) {
		hp_frame_id frame = hp_index_lookup(index, page);
		int result;

		if ((frame != HP_NO_FRAME) != hp_reserve_is_taken(view, file, page))
			return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE,
			               "file %u page %u: its token and its presence differ", number, page);
		result = frame == HP_NO_FRAME ? 0 : check_page(view, number, page, frame, &holes, error);
		if (result)
			return result;
		indexed += frame != HP_NO_FRAME;
		base += frame != HP_NO_FRAME && hp_is_base(view, frame);
	}
	if (indexed - holes != atomic_load(&file->present) || holes != atomic_load(&file->holes) || unpromised)
		return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE,
		               "file %u: %lu pages present and %lu holes, and its record says %u and %u; %lu taken "
		               "unpromised",
		               number, indexed - holes, holes, atomic_load(&file->present), atomic_load(&file->holes),
		               unpromised);
	return check_base(file, number, base, reserved, error);
}

/* Frames that are of files, or were and are homeless, by state: as many as files say. */
static int check_frames(struct hp_pool_view *view, uint64_t present, uint64_t holes, uint64_t *homeless,
                        hp_error *error)
{
	uint64_t used = 0, punched = 0;

	for (hp_frame_id frame = 0; frame < hp_pool_frames_max(view); frame++) {
		uint64_t word = hp_frame_load(&view->frames[frame]);
		uint32_t owner = hp_frame_owner(word);

		used += hp_frame_state(word) == HP_FRAME_USED && owner != HP_OWNER_EXTENT;
		if (hp_frame_state(word) != HP_FRAME_HOLE)
			continue;
		if (owner >= HP_OWNER_HOMELESS)
			homeless[owner % HP_TENANTS_MAX]++;
		else
			punched++;
	}
	if (used == present && punched == holes)
		return 0;
	return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE,
	               "files: %lu pages present and %lu holes, and %lu frames are used and %lu punched", present,
	               holes, used, punched);
}

/* Every tenant uses what its files were promised. */
static int check_tenants(struct hp_pool_view *view, uint64_t *used, hp_error *error)
{
	for (uint32_t number = 1; number < view->shared->files.fresh; number++) {
		const struct hp_file_record *file = hp_file_at(view, number);
		uint64_t unpromised;

		if (atomic_load(&file->generation))
			used[file->tenant] += hp_reserve_count(view, file, &unpromised) + atomic_load(&file->present) +
			                      atomic_load(&file->holes);
	}
	for (uint32_t tenant = 1; tenant < HP_TENANTS_MAX; tenant++)
		if (used[tenant] != hp_tenant_used(view, tenant))
			return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE,
			               "tenant %u: its files were promised %lu frames, and it says %lu", tenant,
			               used[tenant], hp_tenant_used(view, tenant));
	return 0;
}

int hp_files_check(struct hp_thread *t, hp_error *error)
{
	struct hp_pool_view *view = t->pool;
	uint64_t present = 0, holes = 0, by_tenant[HP_TENANTS_MAX] = {0};
	uint32_t live = 0;
	int result;

	for (uint32_t number = 1; number < view->shared->files.fresh; number++) {
		struct hp_file_record *file = hp_file_at(view, number);

		if (!atomic_load(&file->generation))
			continue;
		result = check_file(view, number, error);
		if (result)
			return result;
		present += atomic_load(&file->present);
		holes += atomic_load(&file->holes);
		live++;
	}
	if (live != atomic_load(&view->shared->files.live))
		return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE, "%u files live and the table says %u", live,
		               atomic_load(&view->shared->files.live));
	result = check_frames(view, present, holes, by_tenant, error);
	return result ? result : check_tenants(view, by_tenant, error);
}
