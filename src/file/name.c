/* SPDX-License-Identifier: MIT */
/*
 * Names of files. A name holds a reference to its file, as a handle does: a named file lives until its name is taken
 * away and everybody has closed and unmapped it.
 */
#include "file/file.h"

#include "base/error.h"
#include "pool/tenant.h"

#include <errno.h>
#include <string.h>

/* 0: no file has this name. */
static uint32_t find_locked(const struct hp_pool_view *view, const char *name)
{
	uint32_t last = atomic_load(&view->shared->last_name), number = 1;

	while (number <= last && strcmp(view->names[number], name) != 0)
		number++;
	return number <= last ? number : 0;
}

static void set_locked(struct hp_pool_view *view, uint32_t number, const char *name)
{
	/* Its first letter last: who looks finds no name or all of it, also if this thread dies in between. */
	strcpy(view->names[number] + 1, name + 1);
	atomic_thread_fence(memory_order_release);
	view->names[number][0] = name[0];
	if (number > atomic_load(&view->shared->last_name))
		atomic_store(&view->shared->last_name, number);
}

static int check_name(const char *name, hp_error *error)
{
	if (!name || !name[0])
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "a file's name is empty");
	if (strlen(name) >= HP_FILE_NAME_SIZE)
		return hp_fail(error, -ENAMETOOLONG, HP_LIMIT_NONE, "a file's name has more than %u bytes",
		               HP_FILE_NAME_SIZE - 1);
	return 0;
}

static int check_options(const hp_file_options *options, const char *name, hp_error *error)
{
	if (options->struct_size < sizeof(*options))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "hp_file_options.struct_size is %u; use HP_FILE_OPTIONS_INIT", options->struct_size);
	if (options->flags & ~(HP_FILE_CREATE | HP_FILE_EXCLUSIVE | HP_FILE_FALLBACK | HP_FILE_MOVABLE))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "hp_file_open: unknown flags 0x%x", options->flags);
	if (options->reserved)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE,
		               "hp_file_options.reserved is not 0; use HP_FILE_OPTIONS_INIT");
	if (!name && !(options->flags & HP_FILE_CREATE))
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "a file without a name can only be made: HP_FILE_CREATE");
	return name ? check_name(name, error) : 0;
}

/* A new file, of a tenant if one is named. */
static int make(struct hp_thread *t, const hp_file_options *options, uint32_t *number, hp_error *error)
{
	uint32_t tenant = 0;
	int result = options->tenant.id ? hp_tenant_join(t->pool, options->tenant, &tenant) : 0;

	if (result)
		return hp_fail(error, result, HP_LIMIT_NONE, "the tenant is closed, or is another pool's");
	result = hp_file_make(t, options, tenant, number, error);
	if (result)
		hp_tenant_leave(t->pool, tenant);
	return result;
}

/*
 * Opens the file of that name, or gives the name to `fresh`, a file that was just made; 0: there is none. Signals are
 * blocked.
 */
static int open_locked(struct hp_thread *t, const char *name, bool exclusive, uint32_t fresh, uint32_t *number)
{
	*number = find_locked(t->pool, name);
	if (*number)
		return exclusive ? -EEXIST : hp_file_reopen(t, *number);
	if (!fresh)
		return -ENOENT;
	hp_file_get(t->pool, fresh);
	set_locked(t->pool, fresh, name);
	*number = fresh;
	return 0;
}

static int open_named(struct hp_thread *t, const char *name, unsigned flags, uint32_t fresh, uint32_t *number)
{
	struct hp_pool_shared *shared = t->pool->shared;
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	hp_mutex_lock(&shared->names_lock, &t->locker, HP_CLASS_NAMES);
	result = open_locked(t, name, flags & HP_FILE_EXCLUSIVE, fresh, number);
	hp_mutex_unlock(&shared->names_lock, &t->locker);
	hp_signals_restore(&saved);
	return result;
}

static int explain(int result, const char *name, hp_error *error)
{
	if (result == -ENOENT)
		return hp_fail(error, result, HP_LIMIT_NONE, "the pool has no file \"%s\"", name);
	if (result == -EEXIST)
		return hp_fail(error, result, HP_LIMIT_NONE, "the pool has a file \"%s\" already", name);
	return hp_fail(error, result, HP_LIMIT_TABLE, "this process has opened \"%s\" %u times already", name,
	               HP_OPENS_MAX);
}

/* A new file is made before the name is looked at again, because making one may take long. */
static int open_or_make(struct hp_thread *t, const char *name, const hp_file_options *options, uint32_t *number,
                        hp_error *error)
{
	uint32_t fresh;
	int result = open_named(t, name, options->flags, 0, number);

	if (result == -ENOENT && options->flags & HP_FILE_CREATE) {
		result = make(t, options, &fresh, error);
		if (result)
			return result;
		result = open_named(t, name, options->flags, fresh, number);
		if (result || *number != fresh) /* somebody else made it meanwhile */
			hp_file_close(hp_file_handle(t->pool, fresh));
	}
	return result ? explain(result, name, error) : 0;
}

int hp_file_open(hp_pool pool, const char *name, const hp_file_options *options, hp_file *file, hp_error *error)
{
	static const hp_file_options open_only = HP_FILE_OPTIONS_INIT;
	struct hp_thread *t;
	uint32_t number;
	int result = hp_pool_enter(pool.id, &t, error);

	if (!options)
		options = &open_only;
	if (!result)
		result = check_options(options, name, error);
	if (!result)
		result = name ? open_or_make(t, name, options, &number, error) : make(t, options, &number, error);
	if (!result)
		*file = hp_file_handle(t->pool, number);
	return result;
}

int hp_file_unlink(hp_pool pool, const char *name, hp_error *error)
{
	struct hp_thread *t;
	uint32_t number = 0;
	sigset_t saved;
	int result = hp_pool_enter(pool.id, &t, error);

	if (!result)
		result = check_name(name, error);
	if (result)
		return result;
	hp_signals_block(&saved);
	hp_mutex_lock(&t->pool->shared->names_lock, &t->locker, HP_CLASS_NAMES);
	number = find_locked(t->pool, name);
	if (number)
		t->pool->names[number][0] = 0;
	hp_mutex_unlock(&t->pool->shared->names_lock, &t->locker);
	hp_signals_restore(&saved);
	if (!number)
		return explain(-ENOENT, name, error);
	hp_file_put(t, number);
	return 0;
}
