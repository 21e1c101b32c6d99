/* SPDX-License-Identifier: MIT */
/*
 * The reader-writer lock's protocol (model_rwsem.h), tried out in every order, with all combinations of roles: what must
 * hold is looked at in each state that can be reached. Prints the shortest way to one where it does not.
 *
 *   model_rwsem [THREADS [ROUNDS]]
 *
 * HP_MODEL_DELAYS=1 also prints ways to states where somebody sleeps though the lock permits it, until holders leave.
 */
#include "sync/model_rwsem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* All states that were reached, in the order of the search; `from` leads back to the first. */
static struct state *states;
static uint32_t *from, *table;
static uint8_t *can_end;
static uint32_t count, capacity, table_size;

static uint64_t hash(const struct state *s)
{
	const unsigned char *bytes = (const unsigned char *)s;
	uint64_t h = 0, word;

	for (size_t i = 0; i + 4 <= sizeof(*s); i += 4) {
		word = 0;
		memcpy(&word, bytes + i, 4);
		h = (h ^ word) * 0x9e3779b97f4a7c15u;
		h ^= h >> 29;
	}
	return h;
}

/* The place of a state; a new one is added if `add`. */
static uint32_t find(const struct state *s, uint32_t parent, bool add)
{
	uint64_t h = hash(s);
	uint32_t at;

	for (;; h++) {
		at = table[h & (table_size - 1)];
		if (!at || !memcmp(&states[at - 1], s, sizeof(*s)))
			break;
	}
	if (at || !add)
		return at - 1;
	if (count == capacity) {
		fprintf(stderr, "more than %u states\n", capacity);
		exit(2);
	}
	states[count] = *s;
	from[count] = parent;
	table[h & (table_size - 1)] = ++count;
	return count - 1;
}

/* ---- what must hold --------------------------------------------------------------------------------------------- */

static unsigned delayed[ROLES]; /* states where one sleeps beside holders though the lock permits it */
static uint32_t first_delayed;

static const char *wrong_in(const struct state *s)
{
	unsigned readers = 0, writers = 0, upgradeable = 0, owner = 0, upgrading = 0;

	for (unsigned i = 0; i < threads; i++) {
		const struct thread *t = &s->thread[i];

		readers += t->holds == READS;
		writers += t->holds == WRITES;
		upgradeable += t->holds == READS_UPGRADEABLY;
		owner = t->holds == WRITES || t->holds == READS_UPGRADEABLY ? i + 1 : owner;
		upgrading += t->holds == READS_UPGRADEABLY && op_of(s, i) == UPGRADE;
	}
	if (writers && readers)
		return "a writer beside readers";
	if (writers + upgradeable > 1)
		return "two owners";
	if ((s->lock & BIT(READERS)) != readers)
		return "the number of readers is wrong";
	if (s->lock >> OWNER_SHIFT != owner)
		return "the state names another owner";
	if (!(s->lock & BIT(WRITER)) != !writers || !(s->lock & BIT(UPGRADEABLE)) != !upgradeable)
		return "the owner's mode is wrong";
	if (s->lock & BIT(UPGRADING) && !upgrading)
		return "UPGRADING, and nobody is";
	return NULL;
}

/* Everybody is asleep, done, or holds the lock and may stay: if the lock permits a sleeper, nobody will wake it soon. */
static void look_for_delays(const struct state *s, uint32_t place)
{
	for (unsigned i = 0; i < threads; i++)
		if (s->thread[i].pc != ASLEEP && s->thread[i].pc != DONE &&
		    !(s->thread[i].pc == BEGIN && s->thread[i].holds != NOTHING))
			return;
	for (unsigned i = 0; i < threads; i++) {
		if (s->thread[i].pc != ASLEEP ||
		    !(op_of(s, i) == UPGRADE ? !(s->lock & BIT(READERS)) : permits(s->lock, op_of(s, i))))
			continue;
		delayed[role[i]]++;
		if (!first_delayed)
			first_delayed = place;
	}
}

static void print_state(const struct state *s)
{
	static const struct {
		uint32_t bit;
		const char *name;
	} bits[] = {{BIT(WRITER), "WRITER"},
	            {BIT(UPGRADEABLE), "UPGRADEABLE"},
	            {BIT(UPGRADING), "UPGRADING"},
	            {BIT(READERS_WAIT), "READERS_WAIT"},
	            {BIT(WRITERS_WAIT), "WRITERS_WAIT"},
	            {BIT(HELD_OFF), "HELD_OFF"}};

	printf("    readers %u", s->lock & BIT(READERS));
	if (s->lock & OWNER)
		printf(" owner %u", (s->lock >> OWNER_SHIFT) - 1);
	for (unsigned i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
		if (s->lock & bits[i].bit)
			printf(" %s", bits[i].name);
	printf("\n");
}

/* The shortest way to a state. */
static void print_way(uint32_t place)
{
	uint32_t length = 0, at, *way;

	for (at = place; at; at = from[at])
		length++;
	way = malloc((length + 1) * sizeof(*way));
	if (!way)
		exit(2);
	way[0] = 0;
	for (at = place; at; at = from[at])
		way[length--] = at;
	for (length = 1; way[length - 1] != place; length++) {
		const struct state *a = &states[way[length - 1]], *b = &states[way[length]];
		unsigned i = 0;

		/* Who did the step: whose pc is not what it was, and who was not woken by it. */
		while (a->thread[i].pc == ASLEEP || !memcmp(&a->thread[i], &b->thread[i], sizeof(a->thread[i])))
			if (++i == threads)
				break;
		if (i == threads)
			for (i = 0; !memcmp(&a->thread[i], &b->thread[i], sizeof(a->thread[i])); i++)
				;
		printf("  %u %s %s", i, role_names[role[i]],
		       a->thread[i].pc == ASLEEP ? "gets impatient" : pc_names[a->thread[i].pc]);
		printf(" -> %s\n", pc_names[b->thread[i].pc]);
		print_state(b);
	}
	free(way);
}

static int complain(const char *what, uint32_t place)
{
	printf("%s:", what);
	for (unsigned i = 0; i < threads; i++)
		printf(" %s", role_names[role[i]]);
	printf("%s\n", patience_ends ? "; patience may end" : "");
	print_way(place);
	return 1;
}

/* ---- search ----------------------------------------------------------------------------------------------------- */

/* Whether all can finish from every state: backwards from the ends, until no more states are found. */
static int check_ends(void)
{
	bool more = true;

	while (more) {
		more = false;
		for (uint32_t at = count; at-- > 0;) {
			for (unsigned i = 0; i < threads && !can_end[at]; i++) {
				step(&states[at], i);
				for (unsigned n = 0; n < next_count && !can_end[at]; n++)
					can_end[at] = can_end[find(&next[n], 0, false)];
				more |= can_end[at];
			}
		}
	}
	for (uint32_t at = 0; at < count; at++)
		if (!can_end[at])
			return complain("from here not all can finish", at);
	return 0;
}

static int search(void)
{
	struct state first = {0};

	memset(table, 0, table_size * sizeof(*table));
	memset(can_end, 0, capacity);
	count = 0;
	find(&first, 0, true);
	for (uint32_t at = 0; at < count; at++) {
		unsigned done = 0;
		bool moved = false;

		if (wrong_in(&states[at]))
			return complain(wrong_in(&states[at]), at);
		look_for_delays(&states[at], at);
		for (unsigned i = 0; i < threads; i++) {
			done += states[at].thread[i].pc == DONE;
			step(&states[at], i);
			moved |= next_count > 0;
			for (unsigned n = 0; n < next_count; n++)
				find(&next[n], at, true);
			if (patience(&states[at], i))
				find(&next[0], at, true);
		}
		if (done == threads)
			can_end[at] = 1;
		else if (!moved)
			return complain("a wake-up is lost", at);
	}
	return check_ends();
}

/* All ways to give the threads roles, each once. */
static int try_roles(unsigned i, uint64_t *total)
{
	int wrong = 0;

	if (i == threads) {
		for (int ends = 0; ends <= 1; ends++) {
			patience_ends = ends;
			wrong += search();
			*total += count;
			if (getenv("HP_MODEL_DELAYS") && first_delayed)
				complain("one sleeps beside holders though the lock permits it", first_delayed);
			first_delayed = 0;
		}
		return wrong;
	}
	for (unsigned r = i ? role[i - 1] : 0; r < ROLES; r++) {
		role[i] = r;
		wrong += try_roles(i + 1, total);
	}
	return wrong;
}

int main(int argc, char **argv)
{
	uint64_t total = 0;
	int wrong;

	threads = argc > 1 ? (unsigned)atoi(argv[1]) : 3;
	rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
	if (threads < 1 || threads > THREADS_MAX || rounds < 1 || rounds > 10)
		return 2;
	capacity = threads * rounds > 3 ? 30000000 : 3000000;
	table_size = threads * rounds > 3 ? 1u << 26 : 1u << 22;
	states = malloc(capacity * sizeof(*states));
	from = malloc(capacity * sizeof(*from));
	can_end = malloc(capacity);
	table = malloc(table_size * sizeof(*table));
	if (!states || !from || !can_end || !table)
		return 2;
	wrong = try_roles(0, &total);
	printf("%u threads, %u rounds: %lu states, %d wrong\n", threads, rounds, (unsigned long)total, wrong);
	for (unsigned r = 0; r < ROLES; r++)
		if (delayed[r])
			printf("%s sleeps beside holders though the lock permits it, until they leave: in %u states\n",
			       role_names[r], delayed[r]);
	free(states);
	free(from);
	free(can_end);
	free(table);
	return wrong != 0;
}
