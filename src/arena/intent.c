/* SPDX-License-Identifier: MIT */
#include "arena/intent.h"

#include "base/assert.h"

/*
 * A fault handler may come between any two lines and put an intent of its own on top. So the place is taken first, with
 * no kind, and filled then; the kind is stored last.
 */
void hp_intent_begin(struct hp_intents *intents, enum hp_intent_kind kind, uint32_t object, uint64_t first,
                     uint64_t count)
{
	uint32_t depth = atomic_load_explicit(&intents->depth, memory_order_relaxed);
	struct hp_intent *intent = &intents->at[depth];

	HP_ASSERT(depth < HP_INTENTS_DEEP);
	atomic_store_explicit(&intent->kind, HP_INTENT_NONE, memory_order_relaxed);
	atomic_store_explicit(&intents->depth, depth + 1, memory_order_release);
	intent->object = object;
	intent->first = first;
	intent->count = count;
	atomic_store_explicit(&intent->kind, kind, memory_order_release);
}

void hp_intent_end(struct hp_intents *intents)
{
	uint32_t depth = atomic_load_explicit(&intents->depth, memory_order_relaxed);

	HP_ASSERT(depth > 0);
	atomic_store_explicit(&intents->depth, depth - 1, memory_order_release);
}
