/* SPDX-License-Identifier: MIT */
/*
 * Tenants: a part of a pool with a limit, as hugetlbfs's size=, and a minimum, as its min_size=.
 *
 * A tenant's `used` frames are those that its files were promised, present or not. The pool has committed
 * max(used, minimum) frames to it: so a promise within the minimum takes nothing from the pool and cannot fail.
 * Tenant 0 is no tenant: neither limit nor minimum.
 */
#ifndef HP_POOL_TENANT_H
#define HP_POOL_TENANT_H

#include "pool/pool.h"

#define HP_TENANT_NO_LIMIT UINT64_MAX

/* A tenant gets another file. -EBADF: no such tenant. */
int hp_tenant_join(struct hp_pool_view *view, hp_tenant tenant, uint32_t *number);
void hp_tenant_leave(struct hp_pool_view *view, uint32_t number);

/*
 * Promises frames to a tenant, for which `*committed` frames are committed already; takes more if they are too few and
 * leaves in it what is too much. -EDQUOT: its limit; -ENOMEM: so many are missing. Nothing is promised then. Signals
 * are blocked.
 */
int hp_tenant_charge(struct hp_thread *t, uint32_t number, uint64_t frames, uint64_t *committed, uint64_t *missing);
/* Gives up what was promised, to the pool as far as the minimum does not keep it. Signals are blocked. */
void hp_tenant_uncharge(struct hp_thread *t, uint32_t number, uint64_t frames);
/* Says which limit was in the way. */
int hp_tenant_explain(const struct hp_pool_view *view, uint32_t number, uint64_t frames, hp_error *error);

/* Frames that are committed to minimums and not used. Exact when nothing runs. */
uint64_t hp_tenants_reserved(const struct hp_pool_view *view);
/* What a tenant says that it uses; 0: no such tenant. */
uint64_t hp_tenant_used(const struct hp_pool_view *view, uint32_t number);

#endif
