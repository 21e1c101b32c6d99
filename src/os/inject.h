/* SPDX-License-Identifier: MIT */
/*
 * Fault injection: stands before another backend and makes chosen calls fail: any operation, any errno, any occurrence.
 * It counts calls also when it lets them through, so that a test first learns how many there are and then fails each.
 */
#ifndef HP_OS_INJECT_H
#define HP_OS_INJECT_H

#include "os/os.h"

enum hp_os_call {
	HP_CALL_CONTROL_CREATE,
	HP_CALL_CONTROL_DESTROY,
	HP_CALL_SEGMENT_CREATE,
	HP_CALL_SEGMENT_DESTROY,
	HP_CALL_SEGMENT_PUNCH,
	HP_CALL_SEGMENT_RENEW,
	HP_CALL_BACKED,
	HP_CALL_RESERVE,
	HP_CALL_RESERVE_AT,
	HP_CALL_VACATE,
	HP_CALL_MAP,
	HP_CALL_UNMAP,
	HP_CALL_MOVE,
	HP_CALL_END,
	HP_CALL_PROTECT,
	HP_CALL_ANONYMOUS,
	HP_CALL_HOLD,
	HP_CALL_KEEP_FROM_CHILDREN,
	HP_CALL_POPULATE,
	HP_CALL_TOUCH,
	HP_CALL_COLLAPSE,
	HP_CALL_GATHER,
	HP_CALL_SCATTER,
	HP_CALL_COUNT,
};

const char *hp_os_call_name(enum hp_os_call call);

struct hp_os *hp_inject_create(struct hp_os *inner);
void hp_inject_destroy(struct hp_os *os);

/*
 * Lets the `occurrence`-th call from now (1 is the next) and the `more` calls after it fail with `error` (negative
 * errno); they do not reach the inner backend. One rule for each kind of call: a new one replaces it. Calls that run at
 * the same time as this may see either rule or none.
 */
void hp_inject_fail(struct hp_os *os, enum hp_os_call call, uint64_t occurrence, uint64_t more, int error);
/* Forgets what was asked for; counting goes on. */
void hp_inject_clear(struct hp_os *os);
/* Calls seen since creation. */
uint64_t hp_inject_count(struct hp_os *os, enum hp_os_call call);

#endif
