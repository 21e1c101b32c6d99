/* SPDX-License-Identifier: MIT */
/*
 * Many threads of many processes use the same files at random: map and unmap parts, protect, touch, read, write,
 * punch, cut, grow, collapse, split, pin, and fork children that touch; and processes are stopped and go on while
 * others punch.
 *
 *   torture_files [SECONDS]
 *
 * Who writes to a page writes a word with the page, itself and the page's next version. Who punches or cuts says
 * afterwards up to which version all is gone; whoever reads from then on must find newer ones, or zero.
 *
 *   write                              punch
 *   announce the page
 *   take version 7
 *   store it
 *   withdraw
 *                                      last = 7; nobody announces the page
 *                                      punch
 *                                      gone = 7
 *                                                                              read
 *                                                                              gone is 7: 8 and more, or 0
 *
 * Where somebody announces the page, the store may come after the punch: nothing is said then.
 *
 * That a store is lost is found by words that one thread alone writes: each has one in every page. It finds what it
 * wrote last, or zero if pages were being taken away since just before it wrote.
 *
 * A page is moved only by the one process that maps it. So of the file OWN each process maps a part of its own, and the
 * controller the rest, for the collapser of the pool; all read, write, punch and cut all of it.
 */
#include "real.h"
#include "support/random.h"

enum { PROCESSES = 4, THREADS = 16, FILES = 4, PAGES = 12, SPOTS = 3, MAPPINGS = 3, COMMON = 3, CHILDREN_MAX = 3 };
enum { CONTROLLER = PROCESSES * THREADS, WRITERS, END_SECONDS_MAX = 30 };
enum { WILD = 2 /* a file whose changes of size do not queue */, OWN = 3, OWN_PAGES = 2 /* of each process */ };
enum { MINE = 128 /* where in a base page the word of a thread is */ };

static const uint64_t spot_offset[SPOTS] = {0, FRAME / 2 + 64, FRAME - 8};
static const char *const names[FILES] = {"ready", "steady", "wild", "own"};
static unsigned flags_of[FILES], frames;
static int words_fd; /* a word for each writer, for system calls */

enum kind {
	MAP,
	UNMAP,
	UNMAP_PART,
	PROTECT,
	POPULATE,
	LOAD,
	STORE,
	READ,
	WRITE,
	ALLOCATE,
	PUNCH,
	PUNCH_ODD,
	CUT_OR_GROW,
	TOUCH_SURELY,
	STORE_MINE,
	WRITE_MINE,
	FIND_MINE,
	HAMMER,
	COLLAPSE,
	SPLIT,
	PIN,
	FORK,
	KINDS
};

static const struct {
	const char *name;
	unsigned weight;
} kinds[KINDS] = {
	[MAP] = {"map", 12},
	[UNMAP] = {"unmap", 5},
	[UNMAP_PART] = {"unmap a part", 6},
	[PROTECT] = {"protect", 6},
	[POPULATE] = {"populate", 3},
	[LOAD] = {"load", 40},
	[STORE] = {"store", 40},
	[READ] = {"read", 15},
	[WRITE] = {"write", 15},
	[ALLOCATE] = {"allocate", 2},
	[PUNCH] = {"punch", 5},
	[PUNCH_ODD] = {"punch odd bytes", 2},
	[CUT_OR_GROW] = {"cut or grow", 6},
	[TOUCH_SURELY] = {"touch surely", 3},
	[STORE_MINE] = {"store mine", 30},
	[WRITE_MINE] = {"write mine", 5},
	[FIND_MINE] = {"find mine", 30},
	[HAMMER] = {"hammer", 20},
	[COLLAPSE] = {"collapse", 20},
	[SPLIT] = {"split", 14},
	[PIN] = {"pin", 4},
	[FORK] = {"fork", 1},
};

struct page {
	_Atomic uint64_t last; /* versions that were given out */
	_Atomic uint64_t gone; /* nobody sees these and older ones any more */
	/* Calls that may take it away, or bring it back. */
	_Atomic uint64_t begun, ended;
};

/* What all processes share beside the pool. */
static struct torture {
	struct page page[FILES][PAGES];
	_Atomic uint64_t
		announced[WRITERS]; /* the page that is being written, plus 1, and the version, or 0 for not yet */
	_Atomic uint32_t size_lock[FILES];
	_Atomic uint32_t children[PROCESSES];
	_Atomic uint64_t done[KINDS], no_memory, beyond, forbidden, claims, unclaimed, stops, uncovered;
	_Atomic uint64_t kept, vanished, moved, refused, pinned, system_calls;
	_Atomic bool stop, wrong;
} * torture;

struct mapping {
	char *address; /* NULL: none */
	unsigned file, first, pages;
	bool lazy, mapped[PAGES];
	unsigned prot[PAGES];
};

/* What a thread wrote last into its word of a page. */
struct mine {
	uint64_t word, ended; /* 0: nothing, or it has vanished; the page's `ended` just before */
};

/* One thread. */
struct worker {
	unsigned process, number; /* the number is among all threads */
	uint64_t dice, last_mine;
	struct mapping mapping[MAPPINGS];
	struct mine mine[FILES][PAGES];
};

static hp_file files[FILES];
static struct mapping common[COMMON]; /* of each process; its threads only touch them */

#define WRONG(...)                                                                                  \
	do {                                                                                        \
		if (!atomic_exchange(&torture->wrong, true)) {                                      \
			fprintf(stderr, "torture_files.c:%d: in process %d: ", __LINE__, getpid()); \
			fprintf(stderr, __VA_ARGS__);                                               \
			fprintf(stderr, "\n");                                                      \
		}                                                                                   \
		atomic_store(&torture->stop, true);                                                 \
	} while (0)

/* ---- words ------------------------------------------------------------------------------------------------------ */

/* From the highest bit: version, writer, file, page, spot. */
static uint64_t make_word(uint64_t version, unsigned writer, unsigned file, unsigned page, unsigned spot)
{
	return version << 32 | writer << 24 | file << 20 | page << 8 | (spot + 1);
}

static void check_word(uint64_t word, unsigned file, unsigned page, unsigned spot, uint64_t gone, const char *how)
{
	uint64_t version = word >> 32, last = atomic_load(&torture->page[file][page].last);

	if (!word)
		return;
	if ((word & 0xffffff) != (make_word(0, 0, file, page, spot) & 0xffffff) || (word >> 24 & 0xff) >= WRITERS)
		WRONG("%s of file %u, page %u, spot %u finds 0x%lx, which is not of this place", how, file, page, spot,
		      word);
	else if (version <= gone || version > last)
		WRONG("%s of file %u, page %u, spot %u finds version %lu of writer %lu; %lu is gone, and %lu is the "
		      "last",
		      how, file, page, spot, version, word >> 24 & 0xff, gone, last);
}

static uint64_t announce(unsigned writer, unsigned file, unsigned page)
{
	uint64_t place = (uint64_t)(file * PAGES + page + 1) << 32, version;

	atomic_store(&torture->announced[writer], place);
	version = atomic_fetch_add(&torture->page[file][page].last, 1) + 1;
	atomic_store(&torture->announced[writer], place | version);
	return version;
}

static void withdraw(unsigned writer)
{
	atomic_store(&torture->announced[writer], 0);
}

/* Versions up to this one are there, or will never come; 0: that cannot be said. */
static uint64_t settled_version(unsigned file, unsigned page)
{
	uint64_t settled = atomic_load(&torture->page[file][page].last);

	for (unsigned i = 0; i < WRITERS; i++) {
		uint64_t announced = atomic_load(&torture->announced[i]), version = announced & UINT32_MAX;

		if (announced >> 32 == file * PAGES + page + 1 && version <= settled)
			settled = version ? version - 1 : 0;
	}
	return settled;
}

/* After what takes pages away has returned. */
static void claim(unsigned file, unsigned first, unsigned end, const uint64_t *settled)
{
	for (unsigned page = first; page < end; page++) {
		_Atomic uint64_t *gone = &torture->page[file][page].gone;
		uint64_t seen = atomic_load(gone);

		while (seen < settled[page] && !atomic_compare_exchange_weak(gone, &seen, settled[page]))
			;
		atomic_fetch_add(settled[page] ? &torture->claims : &torture->unclaimed, 1);
	}
}

/* Around what may take pages away. */
static void begin_taking(unsigned file, uint64_t first, uint64_t end)
{
	for (uint64_t page = first; page < end && page < PAGES; page++)
		atomic_fetch_add(&torture->page[file][page].begun, 1);
}

static void end_taking(unsigned file, uint64_t first, uint64_t end)
{
	for (uint64_t page = first; page < end && page < PAGES; page++)
		atomic_fetch_add(&torture->page[file][page].ended, 1);
}

static void settle_all(unsigned file, uint64_t *settled)
{
	for (unsigned page = 0; page < PAGES; page++)
		settled[page] = settled_version(file, page);
}

/* ---- accesses --------------------------------------------------------------------------------------------------- */

static __thread sigjmp_buf way_out;
static __thread volatile sig_atomic_t marked;

static void on_signal(int signal, siginfo_t *info, void *context)
{
	if (marked && info->si_code > 0)
		siglongjmp(way_out, signal);
	signal == SIGBUS ? real_failed(__FILE__, __LINE__, "SIGBUS in no access of the test's own")
			 : real_failed(__FILE__, __LINE__, "SIGSEGV in no access of the test's own");
}

static void catch_signals(void)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};

	EXPECT_EQ(sigaction(SIGBUS, &action, NULL), 0);
	EXPECT_EQ(sigaction(SIGSEGV, &action, NULL), 0);
}

/* 0, or the signal that the access was. */
static int access_word(volatile uint64_t *at, bool write, uint64_t *word)
{
	int signal = sigsetjmp(way_out, 1);

	if (!signal) {
		marked = 1;
		atomic_signal_fence(memory_order_seq_cst);
		if (write)
			*at = *word;
		else
			*word = *at;
		atomic_signal_fence(memory_order_seq_cst);
	}
	marked = 0;
	return signal;
}

static volatile uint64_t *word_at(const struct mapping *m, unsigned page, unsigned spot)
{
	return (volatile uint64_t *)(m->address + page * FRAME + spot_offset[spot]);
}

/* What an access beyond the end answers is SIGBUS, whatever the protection. */
static void check_signal(const struct mapping *m, unsigned page, unsigned needed, int signal)
{
	bool allowed = (m->prot[page] & needed) == needed;

	if (signal == SIGBUS)
		atomic_fetch_add(&torture->beyond, 1);
	else if (signal == SIGSEGV && !allowed)
		atomic_fetch_add(&torture->forbidden, 1);
	else if (signal || !allowed)
		WRONG("an access (%u) to page %u of a %s mapping of file %u, pages %u+%u, protection %u, ends with "
		      "signal %d",
		      needed, page, m->lazy ? "lazy" : "ready", m->file, m->first, m->pages, m->prot[page], signal);
}

static void load(const struct mapping *m, unsigned page, unsigned spot)
{
	uint64_t gone = atomic_load(&torture->page[m->file][m->first + page].gone), word = 0;
	int signal = access_word(word_at(m, page, spot), false, &word);

	check_signal(m, page, HP_PROT_READ, signal);
	if (!signal)
		check_word(word, m->file, m->first + page, spot, gone, m->lazy ? "a load (lazy)" : "a load (ready)");
}

static void store(struct worker *w, const struct mapping *m, unsigned page, unsigned spot)
{
	uint64_t version = announce(w->number, m->file, m->first + page);
	uint64_t word = make_word(version, w->number, m->file, m->first + page, spot);
	int signal = access_word(word_at(m, page, spot), true, &word);

	withdraw(w->number);
	check_signal(m, page, RW, signal);
}

/* ---- mappings --------------------------------------------------------------------------------------------------- */

static unsigned below(struct worker *w, unsigned count)
{
	return (unsigned)random_below(&w->dice, count);
}

/* A page that is mapped, in one of the thread's mappings, or mostly one that all threads of the process touch. */
static const struct mapping *pick_page(struct worker *w, unsigned *page)
{
	for (unsigned tries = 0; tries < 8; tries++) {
		unsigned i = below(w, MAPPINGS + COMMON);
		const struct mapping *m = i < MAPPINGS ? &w->mapping[i] : &common[i - MAPPINGS];

		*page = m->address ? below(w, m->pages) : 0;
		if (m->address && m->mapped[*page])
			return m;
	}
	return NULL;
}

/* Pages in a row of a mapping of the thread that are mapped. NULL: not this time. */
static struct mapping *pick_run(struct worker *w, unsigned *page, unsigned *pages)
{
	struct mapping *m = &w->mapping[below(w, MAPPINGS)];
	unsigned most;

	if (!m->address)
		return NULL;
	*page = below(w, m->pages);
	most = 1 + below(w, m->pages - *page);
	for (*pages = 0; *pages < most && m->mapped[*page + *pages]; ++*pages)
		;
	return *pages ? m : NULL;
}

/* False: the file has no such pages now, or the pool not as many frames. */
static bool map_into(struct mapping *m, unsigned file, unsigned first, unsigned pages, unsigned prot, bool lazy)
{
	hp_error why = {.code = 0};
	void *address;
	int result = hp_map(files[file], first * FRAME, pages * FRAME, prot, lazy ? LAZY : 0, &address, &why);

	if (result == -ENOMEM && why.limit == HP_LIMIT_POOL)
		atomic_fetch_add(&torture->no_memory, 1);
	else if (result && result != -EINVAL)
		WRONG("hp_map: %d %s", result, why.message);
	if (result)
		return false;
	*m = (struct mapping){.address = address, .file = file, .first = first, .pages = pages, .lazy = lazy};
	for (unsigned i = 0; i < pages; i++) {
		m->mapped[i] = true;
		m->prot[i] = prot;
	}
	return true;
}

static void unmap_run(struct mapping *m, unsigned page, unsigned pages)
{
	bool left = false;
	int result = hp_unmap(m->address + page * FRAME, pages * FRAME);

	if (result)
		WRONG("hp_unmap: %d", result);
	for (unsigned i = 0; i < pages; i++)
		m->mapped[page + i] = false;
	for (unsigned i = 0; i < m->pages; i++)
		left |= m->mapped[i];
	if (!left)
		m->address = NULL;
}

static void unmap_all(struct mapping *m)
{
	for (unsigned page = 0, pages; m->address && page < m->pages; page += pages) {
		for (pages = 0; page + pages < m->pages && m->mapped[page + pages]; pages++)
			;
		if (pages)
			unmap_run(m, page, pages);
		else
			pages = 1;
	}
}

/* The part of a file that a process may map. */
static unsigned first_of(unsigned file, unsigned process)
{
	return file == OWN ? process * OWN_PAGES : 0;
}

static unsigned end_of_part(unsigned file, unsigned process)
{
	return file == OWN && process < PROCESSES ? (process + 1) * OWN_PAGES : PAGES;
}

static void do_map(struct worker *w)
{
	struct mapping *m = &w->mapping[below(w, MAPPINGS)];
	unsigned file = below(w, FILES), end = end_of_part(file, w->process);
	unsigned first = first_of(file, w->process);

	first += below(w, end - first);
	if (!m->address)
		map_into(m, file, first, 1 + below(w, end - first), below(w, 4) ? RW : RO, below(w, 3) > 0);
}

static void do_unmap(struct worker *w)
{
	unmap_all(&w->mapping[below(w, MAPPINGS)]);
}

static void do_unmap_part(struct worker *w)
{
	unsigned page, pages;
	struct mapping *m = pick_run(w, &page, &pages);

	if (m)
		unmap_run(m, page, pages);
}

static void do_protect(struct worker *w)
{
	static const unsigned prots[] = {0, RO, RW, RW};
	unsigned page, pages, prot = prots[below(w, 4)];
	struct mapping *m = pick_run(w, &page, &pages);
	int result = m ? hp_protect(m->address + page * FRAME, pages * FRAME, prot) : 0;

	if (result)
		WRONG("hp_protect: %d", result);
	for (unsigned i = 0; m && i < pages; i++)
		m->prot[page + i] = prot;
}

static void do_populate(struct worker *w)
{
	unsigned page, pages;
	struct mapping *m = pick_run(w, &page, &pages);
	int result = m ? hp_populate(m->address + page * FRAME, FRAME) : 0;

	if (result && result != -ENXIO)
		WRONG("hp_populate: %d", result);
}

static void do_load(struct worker *w)
{
	unsigned page;
	const struct mapping *m = pick_page(w, &page);

	if (m)
		load(m, page, below(w, SPOTS));
}

static void do_store(struct worker *w)
{
	unsigned page;
	const struct mapping *m = pick_page(w, &page);

	if (m)
		store(w, m, page, below(w, SPOTS));
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static void read_word(unsigned file, unsigned page, unsigned spot)
{
	uint64_t gone = atomic_load(&torture->page[file][page].gone), word = 0;
	int64_t result = hp_file_read(files[file], page * FRAME + spot_offset[spot], &word, sizeof(word));

	if (result == sizeof(word))
		check_word(word, file, page, spot, gone, "a read");
	else if (result && !(result == -ENOMEM && atomic_load(&torture->uncovered)))
		WRONG("hp_file_read: %ld", result);
}

static void do_read(struct worker *w)
{
	read_word(below(w, FILES), below(w, PAGES), below(w, SPOTS));
}

static void do_write(struct worker *w)
{
	unsigned file = below(w, FILES), page = below(w, PAGES), spot = below(w, SPOTS);
	uint64_t version = announce(w->number, file, page), word = make_word(version, w->number, file, page, spot);
	int64_t result = hp_file_write(files[file], page * FRAME + spot_offset[spot], &word, sizeof(word));

	withdraw(w->number);
	if (result == -ENOMEM)
		atomic_fetch_add(&torture->no_memory, 1);
	else if (result && result != sizeof(word))
		WRONG("hp_file_write: %ld", result);
}

static void do_allocate(struct worker *w)
{
	unsigned first = below(w, PAGES);
	int result = hp_file_allocate(files[below(w, FILES)], first * FRAME, FRAME, NULL);

	if (result == -ENOMEM)
		atomic_fetch_add(&torture->no_memory, 1);
	else if (result && result != -EINVAL)
		WRONG("hp_file_allocate: %d", result);
}

static void lock_size(unsigned file)
{
	uint32_t unlocked = 0;

	while (!atomic_compare_exchange_strong(&torture->size_lock[file], &unlocked, 1)) {
		unlocked = 0;
		nap(100);
	}
}

static void unlock_size(unsigned file)
{
	atomic_store(&torture->size_lock[file], 0);
}

static unsigned size_of(unsigned file)
{
	return (unsigned)(file_stat(files[file]).size / FRAME);
}

/* `known`: the file's size does not change meanwhile. A range beyond the end is none, and what is there stays. */
static void punch(unsigned file, unsigned first, unsigned pages, unsigned flags, bool known)
{
	unsigned size = known ? size_of(file) : 0, end = first + pages;
	uint64_t settled[PAGES];
	hp_error why = {.code = 0};
	int result;

	settle_all(file, settled);
	begin_taking(file, first, end);
	result = hp_file_punch(files[file], first * FRAME, pages * FRAME, flags, &why);
	end_taking(file, first, end);
	if (result == -ENOSPC)
		atomic_fetch_add(&torture->uncovered, 1);
	else if (result)
		WRONG("hp_file_punch: %d %s", result, why.message);
	claim(file, first, end < size ? end : size, settled);
}

static void punch_known(unsigned file, unsigned first, unsigned pages, unsigned flags)
{
	lock_size(file);
	punch(file, first, pages, flags, true);
	unlock_size(file);
}

static void do_punch(struct worker *w)
{
	unsigned file = below(w, FILES), first = below(w, PAGES), pages = 1 + below(w, below(w, 2) ? PAGES - first : 1);
	unsigned flags = below(w, 4) ? 0 : HP_PUNCH_KEEP;

	if (file != WILD && below(w, 2))
		punch_known(file, first, pages, flags);
	else
		punch(file, first, pages, flags, false);
}

/* An odd byte, but none in the middle of a word. */
static uint64_t odd_byte(struct worker *w, unsigned most)
{
	uint64_t byte = below(w, most), in_frame = byte % FRAME / 8 * 8;
	bool in_word = in_frame % HP_BASE_PAGE_SIZE == MINE;

	for (unsigned spot = 0; spot < SPOTS; spot++)
		in_word |= in_frame == spot_offset[spot];
	return in_word ? byte / 8 * 8 : byte;
}

static void do_punch_odd(struct worker *w)
{
	unsigned file = below(w, FILES);
	uint64_t offset = odd_byte(w, PAGES * (unsigned)FRAME), end = odd_byte(w, (PAGES + 2) * (unsigned)FRAME);
	int result;

	/* Mostly near: a frame and a bit. */
	if (end <= offset || end - offset > 2 * FRAME)
		end = (offset / FRAME + 1) * FRAME + odd_byte(w, (unsigned)FRAME);
	begin_taking(file, offset / FRAME, (end + FRAME - 1) / FRAME);
	result = hp_file_punch(files[file], offset, end - offset, 0, NULL);
	end_taking(file, offset / FRAME, (end + FRAME - 1) / FRAME);
	if (result && result != -ENOSPC)
		WRONG("hp_file_punch: %d", result);
}

/* When nobody else changes the size, what lies between the sizes was gone when it grew, too. */
static void claim_resized(unsigned file, unsigned before, unsigned pages, const uint64_t *settled)
{
	if (file == WILD)
		claim(file, 0, pages ? 0 : PAGES, settled);
	else
		claim(file, pages < before ? pages : before, pages < before ? PAGES : pages, settled);
}

static void resize(unsigned file, unsigned pages)
{
	unsigned before = size_of(file);
	uint64_t settled[PAGES];
	int result;

	settle_all(file, settled);
	begin_taking(file, 0, PAGES);
	result = hp_file_truncate(files[file], pages * FRAME, NULL);
	end_taking(file, 0, PAGES);
	if (result == -ENOMEM)
		atomic_fetch_add(&torture->no_memory, 1);
	else if (result)
		WRONG("hp_file_truncate: %d", result);
	else
		claim_resized(file, before, pages, settled);
}

static void do_cut_or_grow(struct worker *w)
{
	unsigned file = below(w, FILES), pages = below(w, 3) ? PAGES : below(w, PAGES + 1);

	if (file == OWN && below(w, 4))
		return; /* what is cut away cannot be collapsed */
	if (file == WILD) {
		resize(file, pages);
		return;
	}
	lock_size(file);
	resize(file, pages);
	unlock_size(file);
}

/* What is inside of a file whose size does not change can be touched by a process that knows the size. */
static void do_touch_surely(struct worker *w)
{
	unsigned page, size;
	const struct mapping *m = pick_page(w, &page);
	uint64_t word;

	if (!m || m->file == WILD)
		return;
	lock_size(m->file);
	size = size_of(m->file);
	for (page = 0; page < m->pages && m->first + page < size; page++) {
		if (!m->mapped[page] || !m->prot[page])
			continue;
		if (access_word(word_at(m, page, 0), false, &word) && !atomic_load(&torture->uncovered))
			WRONG("page %u of a %s mapping of file %u, which has %u pages, cannot be touched",
			      m->first + page, m->lazy ? "lazy" : "ready", m->file, size);
	}
	unlock_size(m->file);
}

/* ---- words of one thread ---------------------------------------------------------------------------------------- */

static uint64_t offset_of_mine(const struct worker *w)
{
	return (w->number * 7 + 1) * HP_BASE_PAGE_SIZE + MINE;
}

static uint64_t next_mine(struct worker *w, unsigned file, unsigned page, struct mine *mine)
{
	*mine = (struct mine){(uint64_t)(w->number + 1) << 56 | (uint64_t)file << 52 | (uint64_t)page << 48 |
	                              ++w->last_mine,
	                      atomic_load(&torture->page[file][page].ended)};
	return mine->word;
}

static void check_mine(struct worker *w, unsigned file, unsigned page, uint64_t word, const char *how)
{
	struct mine *mine = &w->mine[file][page];
	uint64_t begun = atomic_load(&torture->page[file][page].begun);

	if (word == mine->word) {
		atomic_fetch_add_explicit(&torture->kept, 1, memory_order_relaxed);
	} else if (!word && begun > mine->ended) {
		atomic_fetch_add_explicit(&torture->vanished, 1, memory_order_relaxed);
		mine->word = 0;
	} else {
		WRONG("%s of file %u (flags %u), page %u, finds 0x%lx in the word of thread %u, which wrote 0x%lx "
		      "there; %lu calls took pages away before that, and %lu have begun to",
		      how, file, flags_of[file], page, word, w->number, mine->word, mine->ended, begun);
	}
}

/* False: the access was a signal, and nothing is stored. */
static bool store_mine(struct worker *w, const struct mapping *m, unsigned page)
{
	struct mine mine;
	uint64_t word = next_mine(w, m->file, m->first + page, &mine);
	int signal = access_word((volatile uint64_t *)(m->address + page * FRAME + offset_of_mine(w)), true, &word);

	check_signal(m, page, RW, signal);
	if (!signal)
		w->mine[m->file][m->first + page] = mine;
	return !signal;
}

static bool find_mine(struct worker *w, const struct mapping *m, unsigned page)
{
	uint64_t word = 0;
	int signal = access_word((volatile uint64_t *)(m->address + page * FRAME + offset_of_mine(w)), false, &word);

	check_signal(m, page, HP_PROT_READ, signal);
	if (!signal)
		check_mine(w, m->file, m->first + page, word, m->lazy ? "a load (lazy)" : "a load (ready)");
	return !signal;
}

static void do_store_mine(struct worker *w)
{
	unsigned page;
	const struct mapping *m = pick_page(w, &page);

	if (m)
		store_mine(w, m, page);
}

/* A page of OWN that is being moved meanwhile is moved between a store and the next load, quite likely. */
static void do_hammer(struct worker *w)
{
	const struct mapping *m = &common[COMMON - 1];
	unsigned page = m->address ? below(w, m->pages) : 0, times = 50 + below(w, 300);

	while (m->address && times-- && store_mine(w, m, page) && find_mine(w, m, page))
		;
}

static void do_write_mine(struct worker *w)
{
	unsigned file = below(w, FILES), page = below(w, PAGES);
	struct mine mine;
	uint64_t word = next_mine(w, file, page, &mine);
	int64_t result = hp_file_write(files[file], page * FRAME + offset_of_mine(w), &word, sizeof(word));

	if (result == sizeof(word))
		w->mine[file][page] = mine;
	else if (result == -ENOMEM)
		atomic_fetch_add(&torture->no_memory, 1);
	else if (result)
		WRONG("hp_file_write: %ld", result);
}

static void do_find_mine(struct worker *w)
{
	unsigned page, file = below(w, FILES);
	const struct mapping *m = below(w, 4) ? pick_page(w, &page) : NULL;
	uint64_t word = 0;

	if (m) {
		find_mine(w, m, page);
		return;
	}
	page = below(w, PAGES);
	if (hp_file_read(files[file], page * FRAME + offset_of_mine(w), &word, sizeof(word)) == sizeof(word))
		check_mine(w, file, page, word, "a read");
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

/* Pages that are mapped, of one of the thread's mappings or one that all threads of the process have. */
static const struct mapping *pick_pages(struct worker *w, unsigned *page, unsigned *pages)
{
	/* The last one of these is of OWN. */
	const struct mapping *m = below(w, 2) ? &common[COMMON - 1 - below(w, 8) / 6] : pick_run(w, page, pages);

	if (m && m >= common && m < common + COMMON) {
		*page = m->address ? below(w, m->pages) : 0;
		*pages = m->address ? 1 + below(w, m->pages - *page) : 0;
	}
	return m && m->address ? m : NULL;
}

/* `pages`: a thread's own mapping may be in pieces. */
static void check_move(const char *what, const struct mapping *m, unsigned pages, int result, const hp_error *why)
{
	bool in_pieces = pages > 1 && !(m >= common && m < common + COMMON);
	bool no_memory = why->limit == HP_LIMIT_POOL || why->limit == HP_LIMIT_MEMORY;

	atomic_fetch_add_explicit(result ? &torture->refused : &torture->moved, 1, memory_order_relaxed);
	if (!result || result == -EBUSY || result == -EAGAIN || (result == -ENOMEM && no_memory) ||
	    (result == -EINVAL && in_pieces))
		return;
	WRONG("%s of %u pages of file %u (flags %u): %d (%s) %s", what, pages, m->file, flags_of[m->file], result,
	      hp_limit_name(why->limit), why->message);
}

static void do_collapse(struct worker *w)
{
	unsigned page, pages;
	const struct mapping *m = pick_pages(w, &page, &pages);
	hp_error why = {.code = 0};

	if (m)
		check_move("hp_collapse", m, pages, hp_collapse(m->address + page * FRAME, pages * FRAME, &why), &why);
}

static void do_split(struct worker *w)
{
	unsigned page, pages;
	const struct mapping *m = pick_pages(w, &page, &pages);
	hp_error why = {.code = 0};
	int result = m ? hp_split(m->address + page * FRAME, pages * FRAME, &why) : 0;

	if (m && !(flags_of[m->file] & HP_FILE_MOVABLE) && result == -EPERM)
		return;
	if (m)
		check_move("hp_split", m, pages, result, &why);
}

/* The kernel stores a word. `surely`: it must find the page. */
static void store_by_kernel(struct worker *w, const struct mapping *m, unsigned page, bool surely)
{
	unsigned spot = below(w, SPOTS), in_file = m->first + page;
	uint64_t version = announce(w->number, m->file, in_file);
	uint64_t word = make_word(version, w->number, m->file, in_file, spot);
	off_t offset = w->number * (off_t)sizeof(word);
	ssize_t stored;

	EXPECT_EQ(pwrite(words_fd, &word, sizeof(word), offset), sizeof(word));
	stored = pread(words_fd, m->address + page * FRAME + spot_offset[spot], sizeof(word), offset);
	withdraw(w->number);
	if (stored == sizeof(word))
		atomic_fetch_add_explicit(&torture->system_calls, 1, memory_order_relaxed);
	else if (surely && !atomic_load(&torture->uncovered))
		WRONG("a system call does not find page %u of file %u (flags %u), which is pinned: %ld, errno %d",
		      in_file, m->file, flags_of[m->file], stored, errno);
}

/* The page is pinned. `inside`: its file's size does not change, and has it. */
static void use_pinned(struct worker *w, const struct mapping *m, unsigned page, bool inside)
{
	bool movable = flags_of[m->file] & HP_FILE_MOVABLE, writable = (m->prot[page] & RW) == RW;
	char *address = m->address + page * FRAME;
	hp_error why = {.code = 0};
	int result;

	if (writable)
		store_by_kernel(w, m, page, inside && movable);
	result = below(w, 2) ? hp_collapse(address, FRAME, &why) : hp_split(address, FRAME, &why);
	if (result != -EPERM || movable)
		check_move("a move of a pinned page", m, 1, result, &why);
	if (writable)
		store_by_kernel(w, m, page, inside && movable);
}

static void pin(struct worker *w, const struct mapping *m, unsigned page, bool inside)
{
	uint64_t offset = below(w, (unsigned)FRAME), length = 1 + below(w, (unsigned)(FRAME - offset));
	char *address = m->address + page * FRAME + offset;
	bool alone = m >= w->mapping && m < w->mapping + MAPPINGS;
	int result = hp_pin(address, length);

	if (result) {
		if (result != -ENXIO || inside)
			WRONG("hp_pin of page %u of file %u: %d", m->first + page, m->file, result);
		return;
	}
	atomic_fetch_add_explicit(&torture->pinned, 1, memory_order_relaxed);
	use_pinned(w, m, page, inside);
	result = hp_unpin(address, length);
	if (result)
		WRONG("hp_unpin: %d", result);
	if (alone && flags_of[m->file] & HP_FILE_MOVABLE && hp_unpin(address, length) != -EINVAL)
		WRONG("hp_unpin of what is not pinned does not say so");
}

static void do_pin(struct worker *w)
{
	unsigned page;
	const struct mapping *m = pick_page(w, &page);

	if (!m)
		return;
	if (m->file == WILD) {
		pin(w, m, page, false);
		return;
	}
	lock_size(m->file);
	pin(w, m, page, m->first + page < size_of(m->file));
	unlock_size(m->file);
}

/* ---- children --------------------------------------------------------------------------------------------------- */

/* So that the parent's pages are its alone again. */
static void give_up_own(struct worker *w)
{
	unmap_all(&common[COMMON - 1]);
	for (unsigned i = 0; i < MAPPINGS; i++)
		if (w->mapping[i].address && w->mapping[i].file == OWN)
			unmap_all(&w->mapping[i]);
}

static void be_child(struct worker *w)
{
	unsigned rounds = below(w, 12);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	w->dice ^= (uint64_t)getpid() << 20;
	if (below(w, 4))
		give_up_own(w);
	for (unsigned i = 0; i < rounds; i++)
		do_load(w);
	if (below(w, 2))
		do_read(w);
	if (below(w, 4) == 0)
		do_unmap_part(w);
	if (below(w, 4) == 0)
		do_map(w);
	for (unsigned i = 0; i < rounds; i++)
		do_load(w);
	_exit(0);
}

static void do_fork(struct worker *w)
{
	pid_t pid;
	int status;

	if (atomic_fetch_add(&torture->children[w->process], 1) < CHILDREN_MAX) {
		pid = fork();
		if (pid == 0)
			be_child(w);
		EXPECT(pid > 0);
		status = end_of(pid);
		if (status)
			WRONG("a child ends with status 0x%x", status);
	}
	atomic_fetch_sub(&torture->children[w->process], 1);
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

static void (*const run_kind[KINDS])(struct worker *w) = {
	[MAP] = do_map,
	[UNMAP] = do_unmap,
	[UNMAP_PART] = do_unmap_part,
	[PROTECT] = do_protect,
	[POPULATE] = do_populate,
	[LOAD] = do_load,
	[STORE] = do_store,
	[READ] = do_read,
	[WRITE] = do_write,
	[ALLOCATE] = do_allocate,
	[PUNCH] = do_punch,
	[PUNCH_ODD] = do_punch_odd,
	[CUT_OR_GROW] = do_cut_or_grow,
	[TOUCH_SURELY] = do_touch_surely,
	[STORE_MINE] = do_store_mine,
	[WRITE_MINE] = do_write_mine,
	[FIND_MINE] = do_find_mine,
	[HAMMER] = do_hammer,
	[COLLAPSE] = do_collapse,
	[SPLIT] = do_split,
	[PIN] = do_pin,
	[FORK] = do_fork,
};

static enum kind choose_kind(struct worker *w)
{
	static unsigned sum;
	unsigned kind = 0, at, all = 0;

	for (unsigned i = 0; i < KINDS; i++)
		all += kinds[i].weight;
	sum = all;
	for (at = below(w, sum); at >= kinds[kind].weight; kind++)
		at -= kinds[kind].weight;
	return kind;
}

static void *work(void *context)
{
	struct worker *w = context;

	while (!atomic_load(&torture->stop)) {
		enum kind kind = choose_kind(w);

		run_kind[kind](w);
		atomic_fetch_add_explicit(&torture->done[kind], 1, memory_order_relaxed);
	}
	for (unsigned i = 0; i < MAPPINGS; i++)
		unmap_all(&w->mapping[i]);
	return NULL;
}

static void map_own(unsigned process)
{
	unsigned first = first_of(OWN, process);

	map_into(&common[COMMON - 1], OWN, first, end_of_part(OWN, process) - first, RW, true);
}

static void be_process(unsigned process, uint64_t seed)
{
	struct worker *workers = calloc(THREADS, sizeof(*workers));
	pthread_t threads[THREADS];

	EXPECT(workers);
	for (unsigned i = 0; i < COMMON - 1; i++)
		map_into(&common[i], (process + i) % OWN, 0, PAGES, RW, i == 0);
	map_own(process);
	for (unsigned i = 0; i < THREADS; i++) {
		unsigned number = process * THREADS + i;

		workers[i] = (struct worker){.process = process, .number = number, .dice = seed * 1000 + number};
		threads[i] = start_thread(work, &workers[i]);
	}
	for (unsigned i = 0; i < THREADS; i++)
		join_thread(threads[i]);
	for (unsigned i = 0; i < COMMON; i++)
		unmap_all(&common[i]);
	for (unsigned i = 0; i < FILES; i++)
		close_file(files[i]);
	free(workers);
	_exit(0);
}

/* ---- the controller --------------------------------------------------------------------------------------------- */

static pid_t pids[PROCESSES];

/* Stops one process after the other for a while. Another thread punches meanwhile; it may have to wait for one that is stopped. */
static void *stop_processes(void *context)
{
	uint64_t dice = *(uint64_t *)context;

	while (!atomic_load(&torture->stop)) {
		pid_t pid = pids[random_below(&dice, PROCESSES)];

		kill(pid, SIGSTOP);
		atomic_fetch_add(&torture->stops, 1);
		nap((unsigned)random_below(&dice, 10000));
		kill(pid, SIGCONT);
		nap((unsigned)random_below(&dice, 50000));
	}
	return NULL;
}

/* The controller uses its part of OWN, which the pool's own thread collapses. */
static void use_own(struct worker *w)
{
	unsigned page, pages;
	const struct mapping *m = &common[COMMON - 1];
	hp_error why = {.code = 0};

	for (unsigned i = 0; i < 20; i++) {
		do_hammer(w);
		do_store_mine(w);
		do_store(w);
		do_find_mine(w);
		do_load(w);
	}
	if (!m->address || below(w, 8))
		return;
	page = below(w, m->pages);
	pages = 1 + below(w, m->pages - page);
	check_move("hp_split", m, pages, hp_split(m->address + page * FRAME, pages * FRAME, &why), &why);
}

static void control(double seconds_to_run, uint64_t seed)
{
	static struct worker self = {.process = PROCESSES, .number = CONTROLLER};
	double deadline = seconds() + seconds_to_run;
	uint64_t dice = seed;
	pthread_t stopper = start_thread(stop_processes, &seed);

	self.dice = seed;
	map_own(PROCESSES);

	while (seconds() < deadline && !atomic_load(&torture->stop)) {
		unsigned file = (unsigned)random_below(&dice, WILD), page = (unsigned)random_below(&dice, PAGES);

		punch_known(file, page, 1, 0);
		read_word(file, page, (unsigned)random_below(&dice, SPOTS));
		use_own(&self);
		nap(1000);
	}
	atomic_store(&torture->stop, true);
	unmap_all(&common[COMMON - 1]);
	join_thread(stopper);
}

/* All processes end by themselves; false: one does not, or ended otherwise. */
static bool await_processes(void)
{
	double deadline = seconds() + END_SECONDS_MAX;
	bool well = true;

	for (unsigned i = 0; i < PROCESSES; i++) {
		int status = 0;
		pid_t done;

		while ((done = waitpid(pids[i], &status, WNOHANG)) == 0 && seconds() < deadline)
			nap(2000);
		if (done == pids[i] && status == 0)
			continue;
		if (done)
			fprintf(stderr, "process %d ended with status 0x%x\n", pids[i], status);
		else
			fprintf(stderr, "process %d does not end\n", pids[i]);
		well = false;
	}
	return well;
}

static void end_processes(void)
{
	for (unsigned i = 0; i < PROCESSES; i++)
		if (waitpid(pids[i], NULL, WNOHANG) == 0) {
			kill(pids[i], SIGKILL);
			waitpid(pids[i], NULL, 0);
		}
}

static hp_collapse_stats collapses(void)
{
	hp_collapse_stats stats = {.struct_size = sizeof(stats)};

	EXPECT_EQ(hp_collapse_stats_get(pool, &stats), 0);
	return stats;
}

static void print_collapses(void)
{
	hp_collapse_stats stats = collapses();

	printf("%lu pages collapsed, %lu in place, %lu split; %lu busy, %lu gave up of %lu looked at again, %lu "
	       "without a "
	       "frame; %lu stores waited, at most %.1f ms\n",
	       stats.collapsed, stats.in_place, stats.split, stats.busy, stats.gave_up, stats.rechecked, stats.no_frame,
	       stats.pause.count, (double)stats.pause.max / 1e6);
}

static void print_summary(double began)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < KINDS; i++)
		sum += atomic_load(&torture->done[i]);
	printf("%lu operations in %.1f s:", sum, seconds() - began);
	for (unsigned i = 0; i < KINDS; i++)
		printf(" %lu %s%s", atomic_load(&torture->done[i]), kinds[i].name, i + 1 < KINDS ? "," : "\n");
	printf("%lu accesses beyond the end, %lu forbidden; %lu times no frames; %lu pages known to be gone, %lu not; "
	       "%lu stops; "
	       "%lu punches without memory of the kernel's\n",
	       atomic_load(&torture->beyond), atomic_load(&torture->forbidden), atomic_load(&torture->no_memory),
	       atomic_load(&torture->claims), atomic_load(&torture->unclaimed), atomic_load(&torture->stops),
	       atomic_load(&torture->uncovered));
	printf("%lu words kept, %lu taken away; %lu calls moved pages or found nothing to do, %lu did not; %lu pins, "
	       "%lu "
	       "stores by the kernel\n",
	       atomic_load(&torture->kept), atomic_load(&torture->vanished), atomic_load(&torture->moved),
	       atomic_load(&torture->refused), atomic_load(&torture->pinned), atomic_load(&torture->system_calls));
	print_collapses();
	fflush(stdout);
}

/* OWN and one other file may fall back and are movable, and another one is movable, or may fall back too. */
static void choose_flags(uint64_t *dice)
{
	unsigned both = (unsigned)random_below(dice, OWN), second = (both + 1 + (unsigned)random_below(dice, 2)) % OWN;

	flags_of[OWN] = flags_of[both] = HP_FILE_FALLBACK | HP_FILE_MOVABLE;
	flags_of[second] = HP_FILE_MOVABLE | (random_below(dice, 2) ? HP_FILE_FALLBACK : 0);
}

static void make_files(void)
{
	hp_file_options named = HP_FILE_OPTIONS_INIT;

	named.size = PAGES * FRAME;
	for (unsigned i = 0; i < FILES; i++) {
		named.flags = HP_FILE_CREATE | HP_FILE_EXCLUSIVE | flags_of[i];
		EXPECT_OK(hp_file_open(pool, names[i], &named, &files[i], &error));
	}
}

static void set_up(uint64_t seed)
{
	static const char *const locks[] = {"file_lock=biased", "file_lock=vma", "file_lock=invalidate",
	                                    "file_lock=rwsem fault_window=4"};
	static const unsigned frame_counts[] = {18, 28, 40};
	char tuning[128];
	hp_pool_options options = HP_POOL_OPTIONS_INIT;

	frames = frame_counts[random_below(&seed, 3)];
	options.size = frames * FRAME;
	options.workers = random_below(&seed, 2) ? 1 : HP_WORKERS_NONE;
	options.flags = random_below(&seed, 2) ? HP_POOL_COLLAPSE : 0;
	snprintf(tuning, sizeof(tuning), "%s%s%s", locks[random_below(&seed, 4)],
	         random_below(&seed, 2) ? " collapse=relock" : "",
	         random_below(&seed, 2) ? " collapse_verify=1 collapse_scan_ms=1" : "");
	options.tuning = tuning;
	make_pool_with(&options);
	words_fd = memfd_create("words", MFD_CLOEXEC);
	EXPECT(words_fd >= 0);
	choose_flags(&seed);
	make_files();
	printf("%u frames, %s, %d workers, %s%s; files of flags %u, %u, %u, %u\n", frames, tuning, (int)options.workers,
	       stats_now().hugetlb ? "huge pages"
	       : stats_now().thp   ? "transparent huge pages"
	                           : "base pages",
	       options.flags ? ", collapse in the background" : "", flags_of[0], flags_of[1], flags_of[2], flags_of[3]);
}

static void tear_down(void)
{
	EXPECT_EQ(collapses().misused, 0);
	check_pool();
	for (unsigned i = 0; i < FILES; i++) {
		EXPECT_OK(hp_file_unlink(pool, names[i], &error));
		close_file(files[i]);
	}
	/* Children that ended have to be found, and the collapser may have a file in hand. */
	for (double deadline = seconds() + END_SECONDS_MAX; seconds() < deadline; nap(1000)) {
		EXPECT_EQ(hp_pool_wait(pool, 10000, &error), 0);
		if (!stats_now().files)
			break;
	}
	check_pool();
	EXPECT_EQ(stats_now().holes, 0);
	EXPECT_EQ(stats_now().frames, frames);
	end_pool();
	close(words_fd);
}

int main(int argc, char **argv)
{
	double length = argc > 1 ? strtod(argv[1], NULL) : 3, began = seconds();
	uint64_t seed;
	bool well;

#ifdef __SANITIZE_THREAD__
	return EXIT_SKIPPED; /* children of fork that have threads */
#endif
	seed = random_seed();
	torture = make_shared(sizeof(*torture));
	catch_signals();
	set_up(seed);
#ifdef __SANITIZE_ADDRESS__
	nap(300000); /* its allocator's locks are not held over a fork: the pool's threads have to be done with it */
#endif
	fflush(NULL);
	for (unsigned i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		EXPECT(pids[i] >= 0);
		if (pids[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			be_process(i, seed);
		}
	}
	control(length, seed);
	well = await_processes();
	end_processes();
	print_summary(began);
	if (!well || atomic_load(&torture->wrong))
		return 1;
	tear_down();
	return 0;
}
