/* SPDX-License-Identifier: MIT */
/*
 * Tenants: a part of a pool with a limit, as hugetlbfs's size=, and a minimum, as its min_size=.
 *
 * A tenant's `used` frames are those that its files were promised, present or not. The pool has committed
 * max(used, minimum) frames to it: so a promise within the minimum takes nothing from the pool and cannot fail. Places
 * for base pages count against the limit, as much as frames do, and not for the minimum.
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
 * leaves in it what is too much. And `base` places for base pages, which are committed. -EDQUOT: its limit; -ENOMEM: so many are missing. Nothing is promised then. Signals
 * are blocked.
 */
int hp_tenant_charge(struct hp_thread *t, uint32_t number, uint64_t frames, uint64_t base, uint64_t *committed,
                     uint64_t *missing);
/* Gives up what was promised, to the pool as far as the minimum does not keep it. Signals are blocked. */
void hp_tenant_uncharge(struct hp_thread *t, uint32_t number, uint64_t frames);
void hp_tenant_uncharge_base(struct hp_thread *t, uint32_t number, uint64_t places);
/*
 * A place for base pages that the tenant has is to become a frame, which is committed by this: -ENOMEM: there is none.
 * Signals are blocked.
 */
int hp_tenant_to_frame(struct hp_thread *t, uint32_t number);
/* The other way round: the frame is free by now, and is given up as far as the minimum does not keep it. */
void hp_tenant_to_base(struct hp_thread *t, uint32_t number);
/* Says which limit was in the way. */
int hp_tenant_explain(const struct hp_pool_view *view, uint32_t number, uint64_t frames, hp_error *error);

/* Frames that are committed to minimums and not used. Exact when nothing runs. */
uint64_t hp_tenants_reserved(const struct hp_pool_view *view);
/* Frames and places that a tenant says that it uses; 0: no such tenant. */
uint64_t hp_tenant_used(const struct hp_pool_view *view, uint32_t number);

#endif
