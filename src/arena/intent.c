/* SPDX-License-Identifier: MIT */
#include "arena/intent.h"

#include "base/assert.h"

/* The depth is stored last, and lowered before anything is reused: what lies below it is whole. */
void hp_intent_begin(struct hp_intents *intents, enum hp_intent_kind kind, uint32_t object, uint64_t first,
                     uint64_t count)
{
	uint32_t depth = atomic_load_explicit(&intents->depth, memory_order_relaxed);

	HP_ASSERT(depth < HP_INTENTS_DEEP);
	intents->at[depth] = (struct hp_intent){kind, object, first, count};
	atomic_store_explicit(&intents->depth, depth + 1, memory_order_release);
}

void hp_intent_end(struct hp_intents *intents)
{
	uint32_t depth = atomic_load_explicit(&intents->depth, memory_order_relaxed);

	HP_ASSERT(depth > 0);
	atomic_store_explicit(&intents->depth, depth - 1, memory_order_release);
}
