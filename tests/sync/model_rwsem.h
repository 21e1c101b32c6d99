/* SPDX-License-Identifier: MIT */
/*
 * The reader-writer lock's protocol as a model: the state word, the three events and a few threads, whose steps are the
 * atomic steps of sync/rwsem.c. Who changes one changes the other.
 *
 * Sleepers have no timeout here, so that a lost wake-up, which the lock would get over after HP_LIVENESS_NS, is a
 * deadlock. Only a writer's patience may end, once, or never: then it holds readers off. Deaths are not in the model.
 *
 * An event is only compared with what it was: instead of a number the model keeps for each thread whether the event it
 * has read is still the present one. A CAS in a loop that ends only with success is one step.
 */
#ifndef SYNC_MODEL_RWSEM_H
#define SYNC_MODEL_RWSEM_H

#include "sync/rwsem.h"

#include <stdint.h>

enum { THREADS_MAX = 4, SCRIPT_MAX = 5 };

enum role { READER, WRITER, UPGRADER, UPGRADEABLE, DOWNGRADER, RETURNER, COLLAPSER, ROLES };
enum op {
	END,
	READ_LOCK,
	UPGRADEABLE_LOCK,
	WRITE_LOCK,
	UPGRADE,
	DOWNGRADE,
	DOWNGRADE_UPGRADEABLE,
	READ_UNLOCK,
	UPGRADEABLE_UNLOCK,
	WRITE_UNLOCK
};

static const char *const role_names[] = {"reader",     "writer",   "upgrader", "upgradeable",
                                         "downgrader", "returner", "collapser"};
static const enum op scripts[ROLES][SCRIPT_MAX + 1] = {
	[READER] = {READ_LOCK, READ_UNLOCK},
	[WRITER] = {WRITE_LOCK, WRITE_UNLOCK},
	[UPGRADER] = {UPGRADEABLE_LOCK, UPGRADE, WRITE_UNLOCK},
	[UPGRADEABLE] = {UPGRADEABLE_LOCK, UPGRADEABLE_UNLOCK},
	[DOWNGRADER] = {WRITE_LOCK, DOWNGRADE, READ_UNLOCK},
	[RETURNER] = {WRITE_LOCK, DOWNGRADE_UPGRADEABLE, UPGRADEABLE_UNLOCK},
	[COLLAPSER] = {UPGRADEABLE_LOCK, UPGRADE, DOWNGRADE_UPGRADEABLE, UPGRADE, WRITE_UNLOCK},
};

/* Where a thread stands: the step that it does next. */
enum pc {
	BEGIN, /* an operation; with the lock held, it may stay here */
	TAKE_CAS,
	READ_EVENT,
	READ_STATE,
	SLOW_TAKE,
	SLOW_TAKE_CAS,
	SET_FLAG,
	WAIT,
	ASLEEP,
	UPGRADE_STATE,
	UPGRADE_CAS,
	UPGRADE_FLAG,
	READERS_CLEAR,
	READERS_BUMP,
	READERS_WAKE,
	WRITERS_CLEAR,
	WRITERS_BUMP,
	WRITERS_WAKE,
	UPGRADE_BUMP,
	UPGRADE_WAKE,
	DONE,
};

static const char *const pc_names[] = {"begins the next operation",
                                       "takes (CAS)",
                                       "reads the event",
                                       "reads the state",
                                       "reads the state to take",
                                       "takes in the slow path (CAS)",
                                       "sets its wait flag (CAS)",
                                       "futex wait",
                                       "asleep",
                                       "reads the state to upgrade",
                                       "upgrades (CAS)",
                                       "sets UPGRADING (CAS)",
                                       "clears READERS_WAIT",
                                       "bumps the readers' event",
                                       "wakes readers",
                                       "clears WRITERS_WAIT",
                                       "bumps the writers' event",
                                       "wakes a writer",
                                       "bumps the upgrade event",
                                       "wakes the upgrader",
                                       "done"};

enum { EVENT_IS_PRESENT = 1, MARK = 2, HOLDS_OFF = 4, WRITERS_WAITED = 8, WAS_HELD_OFF = 16 }; /* a thread's locals */
enum holds { NOTHING, READS, READS_UPGRADEABLY, WRITES };

struct thread {
	uint32_t seen; /* for the CAS to come; 0 where there is none */
	uint8_t pc, op, round;
	uint8_t locals : 5, holds : 2;
};

struct state {
	uint32_t lock; /* the low bits of the real state word; the owner, a thread's number plus 1, in OWNER */
	struct thread thread[THREADS_MAX];
};

#define OWNER_SHIFT 24
#define OWNER ((uint32_t)0xff << OWNER_SHIFT)
_Static_assert(HP_RWSEM_REPAIR < (uint64_t)1 << OWNER_SHIFT, "the low bits of the state");

#define BIT(name) ((uint32_t)HP_RWSEM_##name)
/* What sync/rwsem.c does when it wakes writers while readers are held off: all of them, or one. */
#ifndef WAKE_ALL_HELD_OFF
#define WAKE_ALL_HELD_OFF 1
#endif

/* The threads of this run. */
static unsigned threads, rounds;
static enum role role[THREADS_MAX];
static bool patience_ends;

/* ---- steps ------------------------------------------------------------------------------------------------------ */

/* What comes after a step is collected here. */
static struct state next[THREADS_MAX + 1];
static unsigned next_count;

static void emit(const struct state *s)
{
	next[next_count++] = *s;
}

static enum op op_of(const struct state *s, unsigned i)
{
	return scripts[role[i]][s->thread[i].op];
}

/* The futex that a thread looks at: that of readers, of writers or of the upgrader. */
static enum op futex_of(enum op op)
{
	return op == UPGRADEABLE_LOCK ? WRITE_LOCK : op;
}

static bool permits(uint32_t lock, enum op want)
{
	if (lock & BIT(REPAIR))
		return false;
	if (want == READ_LOCK)
		return !(lock & (BIT(WRITER) | BIT(UPGRADING) | BIT(HELD_OFF)));
	if (want == UPGRADEABLE_LOCK)
		return !(lock & (OWNER | BIT(HELD_OFF)));
	return !(lock & (OWNER | BIT(READERS)));
}

static void go(struct thread *t, enum pc pc)
{
	t->pc = pc;
	t->seen = 0;
}

static void operation_ends(struct state *s, unsigned i)
{
	struct thread *t = &s->thread[i];

	go(t, BEGIN);
	t->locals = 0;
	t->op++;
	if (op_of(s, i) != END)
		return;
	t->op = 0;
	if (++t->round == rounds)
		t->pc = DONE;
}

static void cas_take(struct state *s, unsigned i, enum pc otherwise)
{
	struct thread *t = &s->thread[i];
	enum op want = op_of(s, i);
	uint32_t owner = (i + 1) << OWNER_SHIFT;

	if (s->lock != t->seen) {
		go(t, otherwise);
		return;
	}
	if (want == READ_LOCK)
		s->lock++;
	else if (want == UPGRADEABLE_LOCK)
		s->lock |= owner | BIT(UPGRADEABLE);
	else
		s->lock = (s->lock & ~BIT(HELD_OFF)) | owner | BIT(WRITER);
	if (t->locals & MARK)
		s->lock |= BIT(WRITERS_WAIT);
	t->holds = want == READ_LOCK ? READS : want == UPGRADEABLE_LOCK ? READS_UPGRADEABLY : WRITES;
	operation_ends(s, i);
}

/* wake_next(): who is woken depends on the state that the thread has made. */
static void wake_next(struct state *s, unsigned i, uint32_t lock)
{
	struct thread *t = &s->thread[i];

	if (lock & BIT(UPGRADING)) {
		if (lock & BIT(READERS))
			operation_ends(s, i);
		else
			go(t, UPGRADE_BUMP);
	} else if (lock & BIT(WRITER)) {
		operation_ends(s, i);
	} else if (lock & BIT(READERS_WAIT) && !(lock & BIT(HELD_OFF))) {
		go(t, READERS_CLEAR);
	} else if (lock & BIT(WRITERS_WAIT) && !(lock & OWNER)) {
		go(t, WRITERS_CLEAR);
	} else {
		operation_ends(s, i);
	}
}

static void read_unlock(struct state *s, unsigned i)
{
	s->thread[i].holds = NOTHING;
	s->lock--;
	if (!(s->lock & BIT(READERS)) && s->lock & (BIT(UPGRADING) | BIT(WRITERS_WAIT)))
		wake_next(s, i, s->lock);
	else
		operation_ends(s, i);
}

static void let_go(struct state *s, unsigned i, uint32_t bits, uint32_t added)
{
	s->thread[i].holds = added == BIT(UPGRADEABLE) ? READS_UPGRADEABLY : added ? READS : NOTHING;
	s->lock = (s->lock & ~bits) + added;
	if (s->lock & (BIT(READERS_WAIT) | BIT(WRITERS_WAIT)))
		wake_next(s, i, s->lock);
	else
		operation_ends(s, i);
}

static void begin(struct state *s, unsigned i)
{
	struct thread *t = &s->thread[i];

	switch (op_of(s, i)) {
	case READ_LOCK:
	case UPGRADEABLE_LOCK:
	case WRITE_LOCK:
		go(t, permits(s->lock, op_of(s, i)) ? TAKE_CAS : READ_EVENT);
		t->seen = t->pc == TAKE_CAS ? s->lock : 0;
		break;
	case UPGRADE:
		go(t, UPGRADE_STATE);
		t->locals |= EVENT_IS_PRESENT;
		break;
	case DOWNGRADE:
		let_go(s, i, OWNER | BIT(WRITER), 1);
		break;
	case DOWNGRADE_UPGRADEABLE:
		let_go(s, i, BIT(WRITER), BIT(UPGRADEABLE));
		break;
	case READ_UNLOCK:
		read_unlock(s, i);
		break;
	case UPGRADEABLE_UNLOCK:
		let_go(s, i, OWNER | BIT(UPGRADEABLE), 0);
		break;
	case WRITE_UNLOCK:
		let_go(s, i, OWNER | BIT(WRITER), 0);
		break;
	case END:
		break;
	}
}

static void bump(struct state *s, enum op futex)
{
	for (unsigned j = 0; j < threads; j++)
		if (futex_of(op_of(s, j)) == futex)
			s->thread[j].locals &= ~EVENT_IS_PRESENT;
}

static bool sleeps_on(const struct state *s, unsigned j, enum op futex)
{
	return s->thread[j].pc == ASLEEP && futex_of(op_of(s, j)) == futex;
}

static void wake_up(struct state *s, unsigned j)
{
	go(&s->thread[j], READ_EVENT);
	s->thread[j].locals &= ~EVENT_IS_PRESENT;
	if (op_of(s, j) != READ_LOCK && op_of(s, j) != UPGRADE)
		s->thread[j].locals |= MARK;
}

/* futex_wake() of one: any may be the first in the queue. Emits what may come. */
static void wake_one(const struct state *before, unsigned i, enum op futex)
{
	bool any = false;

	for (unsigned j = 0; j < threads; j++) {
		struct state s = *before;

		if (!sleeps_on(&s, j, futex))
			continue;
		wake_up(&s, j);
		operation_ends(&s, i);
		emit(&s);
		any = true;
	}
	if (!any) {
		struct state s = *before;

		operation_ends(&s, i);
		emit(&s);
	}
}

static void wake_all_readers(struct state *s, unsigned i)
{
	bool any = false;

	for (unsigned j = 0; j < threads; j++)
		if (sleeps_on(s, j, READ_LOCK)) {
			wake_up(s, j);
			any = true;
		}
	if (!any && s->thread[i].locals & WRITERS_WAITED)
		go(&s->thread[i], WRITERS_CLEAR);
	else
		operation_ends(s, i);
}

static void wait_step(struct state *s, unsigned i)
{
	struct thread *t = &s->thread[i];

	if (t->locals & EVENT_IS_PRESENT)
		go(t, ASLEEP);
	else
		wake_up(s, i);
}

/* sleep_until_taken() has loaded the event, and now the state. */
static void read_state(struct state *s, unsigned i)
{
	struct thread *t = &s->thread[i];
	enum op want = op_of(s, i);
	uint32_t flags = want == READ_LOCK ? BIT(READERS_WAIT) : BIT(WRITERS_WAIT);

	flags |= t->locals & HOLDS_OFF ? BIT(HELD_OFF) : 0;
	if (permits(s->lock, want)) {
		go(t, SLOW_TAKE);
	} else if ((s->lock & flags) == flags) {
		go(t, WAIT);
	} else {
		go(t, SET_FLAG);
		t->seen = s->lock;
	}
}

static void set_flag(struct state *s, unsigned i)
{
	struct thread *t = &s->thread[i];

	if (s->lock != t->seen) {
		go(t, READ_EVENT);
		return;
	}
	s->lock |= op_of(s, i) == READ_LOCK ? BIT(READERS_WAIT) : BIT(WRITERS_WAIT);
	s->lock |= t->locals & HOLDS_OFF ? BIT(HELD_OFF) : 0;
	go(t, WAIT);
}

static void upgrade_state(struct state *s, unsigned i)
{
	struct thread *t = &s->thread[i];

	go(t, !(s->lock & BIT(READERS)) ? UPGRADE_CAS : s->lock & BIT(UPGRADING) ? WAIT : UPGRADE_FLAG);
	if (t->pc != WAIT)
		t->seen = s->lock;
}

static void upgrade_cas(struct state *s, unsigned i)
{
	struct thread *t = &s->thread[i];

	if (s->lock != t->seen) {
		go(t, READ_EVENT);
		return;
	}
	if (t->pc == UPGRADE_FLAG) {
		s->lock |= BIT(UPGRADING);
		go(t, WAIT);
		return;
	}
	s->lock = (s->lock & ~(BIT(UPGRADEABLE) | BIT(UPGRADING))) | BIT(WRITER);
	t->holds = WRITES;
	operation_ends(s, i);
}

/* Fills `next` with what may come when thread i does its step; nothing if it is asleep or done. */
static void step(const struct state *before, unsigned i)
{
	struct state s = *before;
	struct thread *t = &s.thread[i];

	next_count = 0;
	switch ((enum pc)t->pc) {
	case ASLEEP:
	case DONE:
		return;
	case WRITERS_WAKE:
		if (!(t->locals & WAS_HELD_OFF)) {
			wake_one(before, i, WRITE_LOCK);
			return;
		}
		for (unsigned j = 0; j < threads; j++)
			if (sleeps_on(&s, j, WRITE_LOCK))
				wake_up(&s, j);
		operation_ends(&s, i);
		break;
	case UPGRADE_WAKE:
		wake_one(before, i, UPGRADE);
		return;
	case BEGIN:
		begin(&s, i);
		break;
	case TAKE_CAS:
	case SLOW_TAKE_CAS:
		cas_take(&s, i, READ_EVENT);
		break;
	case READ_EVENT:
		go(t, op_of(&s, i) == UPGRADE ? UPGRADE_STATE : READ_STATE);
		t->locals |= EVENT_IS_PRESENT;
		break;
	case READ_STATE:
		read_state(&s, i);
		break;
	case SLOW_TAKE:
		go(t, permits(s.lock, op_of(&s, i)) ? SLOW_TAKE_CAS : READ_EVENT);
		t->seen = t->pc == SLOW_TAKE_CAS ? s.lock : 0;
		break;
	case SET_FLAG:
		set_flag(&s, i);
		break;
	case WAIT:
		wait_step(&s, i);
		break;
	case UPGRADE_STATE:
		upgrade_state(&s, i);
		break;
	case UPGRADE_CAS:
	case UPGRADE_FLAG:
		upgrade_cas(&s, i);
		break;
	case READERS_CLEAR:
		if (s.lock & BIT(WRITERS_WAIT))
			t->locals |= WRITERS_WAITED;
		s.lock &= ~BIT(READERS_WAIT);
		go(t, READERS_BUMP);
		break;
	case READERS_BUMP:
		bump(&s, READ_LOCK);
		go(t, READERS_WAKE);
		break;
	case READERS_WAKE:
		wake_all_readers(&s, i);
		break;
	case WRITERS_CLEAR:
		if (WAKE_ALL_HELD_OFF && s.lock & BIT(HELD_OFF))
			t->locals |= WAS_HELD_OFF;
		s.lock &= ~BIT(WRITERS_WAIT);
		go(t, WRITERS_BUMP);
		break;
	case WRITERS_BUMP:
		bump(&s, WRITE_LOCK);
		go(t, WRITERS_WAKE);
		break;
	case UPGRADE_BUMP:
		bump(&s, UPGRADE);
		go(t, UPGRADE_WAKE);
		break;
	}
	emit(&s);
}

/* The one step that need not come: a writer that sleeps gets impatient. */
static bool patience(const struct state *before, unsigned i)
{
	struct state s = *before;

	if (!patience_ends || s.thread[i].pc != ASLEEP || op_of(&s, i) != WRITE_LOCK || s.thread[i].locals & HOLDS_OFF)
		return false;
	wake_up(&s, i);
	s.thread[i].locals |= HOLDS_OFF;
	next_count = 0;
	emit(&s);
	return true;
}

#endif
