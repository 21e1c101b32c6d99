/* SPDX-License-Identifier: MIT */
/*
 * The linux backend by itself: each operation against what the kernel then says.
 */
#include "real.h"

#include "os/budget.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#define FRAMES 8

static struct hp_os *os;
static hp_backing kind; /* of the segments of a test */

static void start(void)
{
	os = hp_os_linux();
	kind = huge_pages_available() >= 2 * FRAMES ? HP_BACKING_HUGETLB : HP_BACKING_BASE;
}

static hp_segment make_segment(uint64_t frames)
{
	hp_segment segment = HP_NO_SEGMENT;

	EXPECT_EQ(os->ops->segment_create(os, kind, frames * FRAME, &segment), 0);
	EXPECT(segment >= 0);
	return segment;
}

static char *reserve(uint64_t length, uint64_t align, uint64_t skew)
{
	void *address = NULL;

	EXPECT_EQ(os->ops->reserve(os, length, align, skew, &address), 0);
	EXPECT_EQ((uintptr_t)address % align, skew);
	return address;
}

static int map_at(char *address, uint64_t frames, unsigned prot, hp_segment segment, uint64_t frame, unsigned flags)
{
	return os->ops->map(os, address, frames * FRAME, prot, segment, frame * FRAME, flags);
}

/* A segment of FRAMES frames, mapped. */
static char *make_mapping(hp_segment *segment)
{
	char *address = reserve(FRAMES * FRAME, FRAME, 0);

	*segment = make_segment(FRAMES);
	EXPECT_EQ(map_at(address, FRAMES, RW, *segment, 0, HP_OS_MAP_REPLACE), 0);
	return address;
}

static void drop(char *address, uint64_t frames, hp_segment segment)
{
	EXPECT_EQ(os->ops->unmap(os, address, frames * FRAME), 0);
	EXPECT_EQ(os->ops->segment_destroy(os, segment), 0);
}

/* For what does not depend on the kind as well as for what does. */
static const hp_backing kinds[] = {HP_BACKING_HUGETLB, HP_BACKING_BASE};

/* False: there are no huge pages. */
static bool start_kind(int i)
{
	start();
	if (kinds[i] == HP_BACKING_HUGETLB && kind != HP_BACKING_HUGETLB)
		return false;
	kind = kinds[i];
	return true;
}

/* Asks the kernel, who answers EFAULT where a touch would trap. */
static bool is_readable(const char *address)
{
	int ends[2];
	ssize_t n;

	EXPECT_EQ(pipe(ends), 0);
	n = write(ends[1], address, 1);
	EXPECT(n == 1 || errno == EFAULT);
	close(ends[0]);
	close(ends[1]);
	return n == 1;
}

static bool is_writable(char *address)
{
	int ends[2];
	ssize_t n;

	EXPECT_EQ(pipe(ends), 0);
	EXPECT_EQ(write(ends[1], "x", 1), 1);
	n = read(ends[0], address, 1);
	EXPECT(n == 1 || errno == EFAULT);
	close(ends[0]);
	close(ends[1]);
	return n == 1;
}

/* ---- addresses -------------------------------------------------------------------------------------------------- */

static void test_reserve(void)
{
	const uint64_t aligns[] = {FRAME, 4 * FRAME, GIB, 4 * GIB};
	void *address;

	start();
	for (unsigned i = 0; i < sizeof(aligns) / sizeof(aligns[0]); i++)
		for (uint64_t skew = 0; skew<aligns[i]; skew += aligns[i]> 4 * FRAME ? 123 * FRAME : FRAME)
			for (uint64_t length = FRAME; length <= 2 * GIB; length *= 32) {
				char *at = reserve(length, aligns[i], skew);

				EXPECT(!is_readable(at));
				EXPECT(!is_readable(at + length - 1));
				EXPECT_EQ(os->ops->unmap(os, at, length), 0);
				/* What was taken to align is given back: nothing lies beside it. */
				EXPECT_EQ(mincore(at, length, (void *)&address), -1);
				EXPECT_EQ(errno, ENOMEM);
			}
	errno = 5;
	EXPECT_EQ(os->ops->reserve(os, UINT64_MAX - FRAME + 1, GIB, 0, &address), -ENOMEM);
	EXPECT_EQ(os->ops->reserve(os, UINT64_C(1) << 60, GIB, 0, &address), -ENOMEM);
	EXPECT_EQ(errno, 5);
}

static void test_map(void)
{
	hp_segment segment;
	char *address, *second;

	start();
	address = make_mapping(&segment);
	for (int i = 0; i < FRAMES; i++) {
		EXPECT(is_zero(address + i * FRAME));
		write_tag(address + i * FRAME, i);
	}
	second = reserve(FRAMES * FRAME, FRAME, 0);
	EXPECT_EQ(map_at(second, 2, RO, segment, 3, HP_OS_MAP_REPLACE | HP_OS_MAP_POPULATE), 0);
	EXPECT(has_tag(second, 3));
	EXPECT(has_tag(second + FRAME, 4));
	EXPECT(!is_writable(second));
	EXPECT(is_writable(address));
	EXPECT(!is_readable(second + 2 * FRAME));
	EXPECT_EQ(map_at(second, 1, 0, segment, 0, HP_OS_MAP_REPLACE), 0);
	EXPECT(!is_readable(second));
	EXPECT(has_tag(second + FRAME, 4));

	/* Without REPLACE nothing that is there is touched, a reservation included. */
	errno = 5;
	EXPECT_EQ(map_at(second + FRAME, 1, RW, segment, 0, 0), -EEXIST);
	EXPECT_EQ(map_at(second + 4 * FRAME, 1, RW, segment, 0, 0), -EEXIST);
	EXPECT_EQ(errno, 5);
	EXPECT(has_tag(second + FRAME, 4));
	EXPECT_EQ(os->ops->unmap(os, second + 4 * FRAME, 4 * FRAME), 0);
	EXPECT_EQ(map_at(second + 3 * FRAME, 2, RW, segment, 0, 0), -EEXIST); /* half of it is free */
	EXPECT_EQ(map_at(second + 4 * FRAME, 4, RW, segment, 4, 0), 0);
	EXPECT(has_tag(second + 7 * FRAME, 7));

	EXPECT_EQ(map_at(second, 1, RW, -1, 0, HP_OS_MAP_REPLACE), -EBADF);
	EXPECT_EQ(errno, 5);
	EXPECT_EQ(os->ops->unmap(os, second, FRAMES * FRAME), 0);
	/* Memory stays as long as somebody has it mapped. */
	EXPECT_EQ(os->ops->segment_destroy(os, segment), 0);
	EXPECT(has_tag(address + FRAME, 1));
	EXPECT_EQ(os->ops->unmap(os, address, FRAMES * FRAME), 0);
}

static void test_move(void)
{
	hp_segment segment;
	char *address, *elsewhere;

	start();
	address = make_mapping(&segment);
	elsewhere = reserve(4 * FRAME, FRAME, 0);
	for (int i = 0; i < FRAMES; i++)
		write_tag(address + i * FRAME, i);
	EXPECT_EQ(map_at(elsewhere, 2, RW, segment, 6, HP_OS_MAP_REPLACE), 0);
	EXPECT_EQ(os->ops->move(os, elsewhere, address + FRAME, 2 * FRAME), 0);
	EXPECT(has_tag(address, 0));
	EXPECT(has_tag(address + FRAME, 6));
	EXPECT(has_tag(address + 2 * FRAME, 7));
	EXPECT(has_tag(address + 3 * FRAME, 3));
	EXPECT(!is_readable(elsewhere));
	EXPECT(!is_readable(elsewhere + FRAME));
	/* What is not there cannot be moved, and what is there stays. */
	errno = 5;
	EXPECT_EQ(os->ops->move(os, elsewhere, address, FRAME), -EFAULT);
	EXPECT_EQ(errno, 5);
	EXPECT_EQ(os->ops->unmap(os, elsewhere, 4 * FRAME), 0);
	EXPECT(has_tag(address + 3 * FRAME, 3));
	drop(address, FRAMES, segment);
}

struct mover {
	char *address;
	_Atomic int stop;
};

static void *keep_reading(void *context)
{
	struct mover *mover = context;

	while (!atomic_load(&mover->stop))
		EXPECT(has_tag(mover->address, 1));
	return NULL;
}

/* Who looks on never sees a gap. */
static void test_move_beside_a_reader(void)
{
	struct mover mover = {0};
	hp_segment segment;
	pthread_t thread;
	char *address;

	start();
	mover.address = address = make_mapping(&segment);
	write_tag(address, 1);
	thread = start_thread(keep_reading, &mover);
	for (int i = 0; i < 5000; i++) {
		char *scratch = reserve(FRAME, FRAME, 0);

		EXPECT_EQ(map_at(scratch, 1, RW, segment, 0, HP_OS_MAP_REPLACE), 0);
		EXPECT_EQ(os->ops->move(os, scratch, address, FRAME), 0);
	}
	atomic_store(&mover.stop, 1);
	join_thread(thread);
	drop(address, FRAMES, segment);
}

static void test_vacate(void)
{
	hp_segment segment;
	char *address;

	start();
	address = make_mapping(&segment);
	for (int i = 0; i < FRAMES; i++)
		write_tag(address + i * FRAME, i);
	EXPECT_EQ(os->ops->vacate(os, address + 2 * FRAME, 3 * FRAME), 0);
	EXPECT(!is_readable(address + 2 * FRAME));
	EXPECT(!is_readable(address + 5 * FRAME - 1));
	EXPECT(has_tag(address + FRAME, 1));
	EXPECT(has_tag(address + 5 * FRAME, 5));
	EXPECT_EQ(map_at(address + 3 * FRAME, 1, RW, segment, 3, 0), -EEXIST); /* the addresses are still taken */
	EXPECT_EQ(map_at(address + 3 * FRAME, 1, RW, segment, 3, HP_OS_MAP_REPLACE), 0);
	EXPECT(has_tag(address + 3 * FRAME, 3)); /* the memory is the segment's */
	drop(address, FRAMES, segment);
}

static sigjmp_buf after_signal;

static void on_signal(int number)
{
	siglongjmp(after_signal, number);
}

/* The signal that an access gets, or 0. */
static int signal_of(volatile char *address, bool is_store)
{
	int number = sigsetjmp(after_signal, 1);

	if (number)
		return number;
	if (is_store)
		*address = 1;
	else
		(void)*address;
	return 0;
}

static void expect_signals(char *address, int of_load, int of_store)
{
	EXPECT_EQ(signal_of(address, false), of_load);
	EXPECT_EQ(signal_of(address, true), of_store);
	EXPECT_EQ(is_readable(address), !of_load);
	EXPECT_EQ(is_writable(address), !of_store);
}

static void catch_signals(void)
{
	signal(SIGBUS, on_signal);
	signal(SIGSEGV, on_signal);
}

/* Of a size that ends within a page and of one that does not. */
static void test_end(void)
{
	const uint64_t sizes[] = {100001, 8192};

	start();
	catch_signals();
	for (int i = 0; i < 2; i++) {
		hp_segment segment, control;
		void *control_address;
		char *address = make_mapping(&segment);

		EXPECT_EQ(os->ops->control_create(os, sizes[i], &control_address, &control), 0);
		((char *)control_address)[sizes[i] - 1] = 7;
		write_tag(address, 1);
		write_tag(address + 3 * FRAME, 3);
		EXPECT_EQ(os->ops->end(os, address + FRAME, 2 * FRAME, control, sizes[i]), 0);
		expect_signals(address + FRAME, SIGBUS, SIGBUS);
		expect_signals(address + 3 * FRAME - 1, SIGBUS, SIGBUS);
		EXPECT(has_tag(address, 1));
		EXPECT(has_tag(address + 3 * FRAME, 3));
		EXPECT_EQ(((char *)control_address)[sizes[i] - 1], 7);
		errno = 5;
		EXPECT_EQ(os->ops->populate(os, address + FRAME, FRAME), -EFAULT);
		EXPECT_EQ(os->ops->touch(os, address + FRAME, FRAME), -EFAULT);
		EXPECT_EQ(os->ops->end(os, address, FRAME, HP_NO_SEGMENT, sizes[i]), -EBADF);
		EXPECT_EQ(errno, 5);
		/* It is a mapping as any: moved, and replaced. */
		EXPECT_EQ(os->ops->move(os, address + 2 * FRAME, address + 4 * FRAME, FRAME), 0);
		expect_signals(address + 4 * FRAME, SIGBUS, SIGBUS);
		EXPECT_EQ(map_at(address + FRAME, 1, RW, segment, 3, HP_OS_MAP_REPLACE), 0);
		EXPECT(has_tag(address + FRAME, 3));
		EXPECT_EQ(os->ops->control_destroy(os, control_address, sizes[i], control), 0);
		expect_signals(address + 4 * FRAME, SIGBUS, SIGBUS);
		drop(address, FRAMES, segment);
	}
}

static void test_protect(void)
{
	catch_signals();
	for (int i = 0; i < 2; i++) {
		hp_segment segment;
		char *address;

		if (!start_kind(i))
			continue;
		address = make_mapping(&segment);
		write_tag(address + FRAME, 1);
		EXPECT_EQ(os->ops->protect(os, address + FRAME, 2 * FRAME, RO), 0);
		expect_signals(address + FRAME, 0, SIGSEGV);
		EXPECT(has_tag(address + FRAME, 1));
		expect_signals(address + 3 * FRAME, 0, 0);
		EXPECT_EQ(os->ops->protect(os, address + 2 * FRAME, 2 * FRAME, 0), 0);
		expect_signals(address + 2 * FRAME, SIGSEGV, SIGSEGV);
		expect_signals(address + 3 * FRAME, SIGSEGV, SIGSEGV);
		expect_signals(address + FRAME, 0, SIGSEGV);
		EXPECT_EQ(os->ops->protect(os, address, FRAMES * FRAME, RW), 0);
		EXPECT(has_tag(address + FRAME, 1));
		expect_signals(address + 2 * FRAME, 0, 0);
		EXPECT_EQ(os->ops->unmap(os, address + FRAME, FRAME), 0);
		errno = 5;
		EXPECT_EQ(os->ops->protect(os, address + FRAME, FRAME, RO), -ENOMEM);
		EXPECT_EQ(errno, 5);
		drop(address, FRAMES, segment);
	}
}

static void look_as_a_child(void *context)
{
	char *address = context;

	EXPECT(has_tag(address, 0));
	EXPECT(!is_readable(address + FRAME));
	EXPECT(!is_readable(address + 2 * FRAME));
	EXPECT(has_tag(address + 3 * FRAME, 3));   /* it was mapped anew */
	EXPECT(!is_readable(address + 4 * FRAME)); /* it was moved */
	EXPECT(has_tag(address + 5 * FRAME, 5));
}

static void test_keep_from_children(void)
{
	for (int i = 0; i < 2; i++) {
		hp_segment segment;
		char *address;

		if (!start_kind(i))
			continue;
		address = make_mapping(&segment);
		for (int frame = 0; frame < FRAMES; frame++)
			write_tag(address + frame * FRAME, frame);
		errno = 5;
		EXPECT_EQ(os->ops->keep_from_children(os, address + FRAME, 3 * FRAME), 0);
		EXPECT_EQ(map_at(address + 3 * FRAME, 1, RW, segment, 3, HP_OS_MAP_REPLACE), 0);
		EXPECT_EQ(os->ops->move(os, address + 2 * FRAME, address + 4 * FRAME, FRAME), 0);
		EXPECT(has_tag(address + FRAME, 1));
		run_child(look_as_a_child, address);
		EXPECT_EQ(os->ops->keep_from_children(os, address + 2 * FRAME, FRAME), -ENOMEM); /* nothing there */
		EXPECT_EQ(errno, 5);
		drop(address, FRAMES, segment);
	}
}

static void test_map_private(void)
{
	for (int i = 0; i < 2; i++) {
		const uint64_t available = huge_pages_available();
		hp_segment segment;
		char *address, *own, *elsewhere;

		if (!start_kind(i))
			continue;
		address = make_mapping(&segment);
		own = reserve(4 * FRAME, FRAME, 0);
		elsewhere = reserve(4 * FRAME, FRAME, 0);
		for (int frame = 0; frame < FRAMES; frame++)
			write_tag(address + frame * FRAME, frame);
		EXPECT_EQ(map_at(own, 3, RW, segment, 1, HP_OS_MAP_REPLACE | HP_OS_MAP_PRIVATE), 0);
		for (int frame = 0; frame < 3; frame++)
			EXPECT(has_tag(own + frame * FRAME, frame + 1));
		write_tag(address + FRAME, 21);
		EXPECT(has_tag(own, 21)); /* nothing was stored there yet */
		write_tag(own, 31);
		EXPECT(has_tag(address + FRAME, 21));
		write_tag(address + FRAME, 41);
		EXPECT(has_tag(own, 31));
		/* A page that is populated is its own too. */
		EXPECT_EQ(os->ops->populate(os, own + FRAME, FRAME), 0);
		write_tag(address + 2 * FRAME, 22);
		EXPECT(has_tag(own + FRAME, 2));

		EXPECT_EQ(os->ops->move(os, own, elsewhere, 3 * FRAME), 0);
		EXPECT(!is_readable(own));
		EXPECT(has_tag(elsewhere, 31));
		EXPECT(has_tag(elsewhere + FRAME, 2));
		EXPECT(has_tag(elsewhere + 2 * FRAME, 3));
		write_tag(elsewhere + 2 * FRAME, 33);
		EXPECT(has_tag(address + 3 * FRAME, 3));
		/* Replaced, it takes its copies with it. */
		EXPECT_EQ(map_at(elsewhere, 3, RW, segment, 1, HP_OS_MAP_REPLACE | HP_OS_MAP_PRIVATE), 0);
		EXPECT(has_tag(elsewhere, 41));
		EXPECT_EQ(os->ops->unmap(os, own, 4 * FRAME), 0);
		EXPECT_EQ(os->ops->unmap(os, elsewhere, 4 * FRAME), 0);
		drop(address, FRAMES, segment);
		EXPECT_EQ(huge_pages_available(), available);
	}
}

/* ---- pages ------------------------------------------------------------------------------------------------------ */

static uint64_t blocks_of(hp_segment segment)
{
	struct stat stat;

	EXPECT_EQ(fstat(segment, &stat), 0);
	return (uint64_t)stat.st_blocks * 512;
}

static void test_populate_and_punch(void)
{
	hp_segment segment;
	char *address;

	start();
	address = make_mapping(&segment);
	EXPECT_EQ(blocks_of(segment), 0);
	EXPECT_EQ(os->ops->populate(os, address + FRAME, 3 * FRAME), 0);
	EXPECT_EQ(blocks_of(segment), 3 * FRAME);
	EXPECT_EQ(os->ops->populate(os, address, FRAMES * FRAME), 0);
	EXPECT_EQ(os->ops->populate(os, address, FRAMES * FRAME), 0);
	EXPECT_EQ(blocks_of(segment), FRAMES * FRAME);
	for (int i = 0; i < FRAMES; i++) {
		EXPECT(is_zero(address + i * FRAME));
		write_tag(address + i * FRAME, i);
	}
	EXPECT_EQ(os->ops->segment_punch(os, segment, 2 * FRAME, 3 * FRAME), 0);
	EXPECT_EQ(blocks_of(segment), (FRAMES - 3) * FRAME);
	for (int i = 0; i < FRAMES; i++)
		EXPECT(i >= 2 && i < 5 ? is_zero(address + i * FRAME) : has_tag(address + i * FRAME, i));
	errno = 5;
	EXPECT_EQ(os->ops->segment_punch(os, -1, 0, FRAME), -EBADF);
	EXPECT_EQ(os->ops->segment_punch(os, segment, 0, 0), -EINVAL);
	EXPECT_EQ(os->ops->vacate(os, address, FRAME), 0);
	EXPECT(os->ops->populate(os, address, FRAME) < 0); /* inaccessible */
	EXPECT_EQ(errno, 5);
	drop(address, FRAMES, segment);
}

/* What a lazy mapping of the pool's memory does to give a page away and to have it back. */
static void test_populate_again(void)
{
	for (int i = 0; i < 2; i++) {
		hp_segment segment;
		char *address;

		if (!start_kind(i))
			continue;
		address = make_mapping(&segment);
		for (int frame = 0; frame < FRAMES; frame++)
			write_tag(address + frame * FRAME, frame);
		EXPECT_EQ(os->ops->segment_punch(os, segment, FRAME, 2 * FRAME), 0);
		EXPECT_EQ(blocks_of(segment), (FRAMES - 2) * FRAME);
		EXPECT_EQ(os->ops->populate(os, address + FRAME, 2 * FRAME), 0);
		EXPECT_EQ(blocks_of(segment), FRAMES * FRAME);
		for (int frame = 0; frame < FRAMES; frame++)
			EXPECT(frame == 1 || frame == 2 ? is_zero(address + frame * FRAME)
			                                : has_tag(address + frame * FRAME, frame));
		drop(address, FRAMES, segment);
	}
}

enum { PAGES_PER_FRAME = HP_FRAME_SIZE / HP_BASE_PAGE_SIZE };

/* As make_mapping, of base pages also where the kernel's setting for shared memory is `always`. */
static char *make_base_mapping(uint64_t frames, hp_segment *segment)
{
	char *address = reserve(frames * FRAME, FRAME, 0);

	kind = HP_BACKING_BASE;
	*segment = make_segment(frames);
	EXPECT_EQ(map_at(address, frames, RW, *segment, 0, HP_OS_MAP_REPLACE), 0);
	madvise(address, frames * FRAME, MADV_NOHUGEPAGE);
	return address;
}

/* Of `pages` base pages from `first` on; writes no more than it was asked for. */
static void ask_backed(hp_segment segment, uint64_t first, uint64_t pages, unsigned char *answer)
{
	answer[pages] = 0xaa;
	memset(answer, 0xaa, pages);
	EXPECT_EQ(os->ops->backed(os, segment, first * HP_BASE_PAGE_SIZE, pages * HP_BASE_PAGE_SIZE, answer), 0);
	for (uint64_t i = 0; i < pages; i++)
		EXPECT(answer[i] <= 1);
	EXPECT_EQ(answer[pages], 0xaa);
}

static uint64_t count_backed(hp_segment segment, uint64_t first, uint64_t pages)
{
	unsigned char *answer = malloc(pages + 1);
	uint64_t count = 0;

	EXPECT(answer);
	ask_backed(segment, first, pages, answer);
	for (uint64_t i = 0; i < pages; i++)
		count += answer[i];
	free(answer);
	return count;
}

static bool is_backed(hp_segment segment, uint64_t page)
{
	return count_backed(segment, page, 1);
}

/* True if the page table has an entry for it. */
static bool is_entered(const char *address)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	uint64_t entry = 0;

	EXPECT(fd >= 0);
	EXPECT_EQ(pread(fd, &entry, sizeof(entry), (uintptr_t)address / HP_BASE_PAGE_SIZE * sizeof(entry)),
	          sizeof(entry));
	close(fd);
	return entry >> 63;
}

static void test_backed(void)
{
	const uint64_t pages = FRAMES * PAGES_PER_FRAME;
	hp_segment segment;
	char *address, *second;
	unsigned char answer[4];

	start();
	address = make_base_mapping(FRAMES, &segment);
	second = reserve(FRAMES * FRAME, FRAME, 0);
	EXPECT_EQ(map_at(second, FRAMES, RW, segment, 0, HP_OS_MAP_REPLACE), 0);
	madvise(second, FRAMES * FRAME, MADV_NOHUGEPAGE);
	errno = 5;
	EXPECT_EQ(count_backed(segment, 0, pages), 0);
	EXPECT_EQ(blocks_of(segment), 0); /* asking allocates nothing */

	/* Whichever mapping it came through. */
	EXPECT_EQ(os->ops->populate(os, address + FRAME, FRAME), 0);
	EXPECT_EQ(count_backed(segment, 0, pages), PAGES_PER_FRAME);
	EXPECT_EQ(count_backed(segment, PAGES_PER_FRAME, PAGES_PER_FRAME), PAGES_PER_FRAME);
	second[3 * FRAME + HP_BASE_PAGE_SIZE] = 1;
	EXPECT_EQ(signal_of(address + 5 * FRAME - 1, false), 0); /* a load brings a page too */
	EXPECT(is_backed(segment, 3 * PAGES_PER_FRAME + 1));
	EXPECT(!is_backed(segment, 3 * PAGES_PER_FRAME));
	EXPECT(!is_backed(segment, 3 * PAGES_PER_FRAME + 2));
	EXPECT(is_backed(segment, 5 * PAGES_PER_FRAME - 1));
	EXPECT_EQ(count_backed(segment, 0, pages), PAGES_PER_FRAME + 2);
	EXPECT_EQ(blocks_of(segment), FRAME + 2 * HP_BASE_PAGE_SIZE);
	EXPECT(!is_entered(address + 3 * FRAME + HP_BASE_PAGE_SIZE));

	/* To the end of the segment, with the last page there and without it. */
	EXPECT_EQ(count_backed(segment, 5 * PAGES_PER_FRAME, pages - 5 * PAGES_PER_FRAME), 0);
	address[FRAMES * FRAME - 1] = 1;
	EXPECT_EQ(count_backed(segment, 5 * PAGES_PER_FRAME, pages - 5 * PAGES_PER_FRAME), 1);
	EXPECT(is_backed(segment, pages - 1));
	EXPECT_EQ(os->ops->segment_punch(os, segment, (pages - 1) * HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE), 0);
	EXPECT(!is_backed(segment, pages - 1));

	/* Parts that were punched, and that no mapping reaches any more. */
	EXPECT_EQ(os->ops->segment_punch(os, segment, FRAME + 3 * HP_BASE_PAGE_SIZE, 2 * HP_BASE_PAGE_SIZE), 0);
	ask_backed(segment, PAGES_PER_FRAME + 2, 3, answer);
	EXPECT(answer[0] && !answer[1] && !answer[2]);
	EXPECT_EQ(count_backed(segment, 0, pages), PAGES_PER_FRAME);
	EXPECT_EQ(os->ops->vacate(os, address, FRAMES * FRAME), 0);
	EXPECT_EQ(os->ops->unmap(os, second, FRAMES * FRAME), 0);
	EXPECT_EQ(count_backed(segment, 0, pages), PAGES_PER_FRAME);
	EXPECT_EQ(os->ops->segment_punch(os, segment, 0, FRAMES * FRAME), 0);
	EXPECT_EQ(count_backed(segment, 0, pages), 0);
	EXPECT_EQ(blocks_of(segment), 0);

	EXPECT_EQ(os->ops->backed(os, HP_NO_SEGMENT, 0, HP_BASE_PAGE_SIZE, answer), -EBADF);
	EXPECT_EQ(errno, 5);
	drop(address, FRAMES, segment);
}

/* What made the pages huge does not make the answer wrong. */
static void test_backed_when_huge(void)
{
	hp_segment segment;
	char *address;

	start();
	kind = HP_BACKING_BASE;
	address = make_mapping(&segment);
	EXPECT_EQ(os->ops->populate(os, address + FRAME, FRAME), 0);
	if (os->ops->collapse(os, address + FRAME, FRAME))
		skip_test("nothing becomes huge");
	EXPECT_EQ(count_backed(segment, PAGES_PER_FRAME, PAGES_PER_FRAME), PAGES_PER_FRAME);
	EXPECT_EQ(count_backed(segment, PAGES_PER_FRAME + 5, 7), 7);
	EXPECT_EQ(count_backed(segment, 2 * PAGES_PER_FRAME - 1, 2), 1 + is_backed(segment, 2 * PAGES_PER_FRAME));
	EXPECT_EQ(os->ops->segment_punch(os, segment, FRAME + 5 * HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE), 0);
	EXPECT_EQ(count_backed(segment, 0, FRAMES * PAGES_PER_FRAME) * HP_BASE_PAGE_SIZE, blocks_of(segment));
	drop(address, FRAMES, segment);
}

/* Older kernels take for absent what they make huge, until it is. */
static bool is_old_kernel(void)
{
	struct utsname name;
	int major = 0, minor = 0;

	EXPECT_EQ(uname(&name), 0);
	EXPECT_EQ(sscanf(name.release, "%d.%d", &major, &minor), 2);
	return major < 6 || (major == 6 && minor < 4);
}

static _Atomic bool collapsed;

static void *collapse_frame(void *address)
{
	os->ops->collapse(os, address, FRAME); /* if not, then not */
	atomic_store(&collapsed, true);
	return NULL;
}

/* A page that holds something is never taken for absent, also when the kernel makes the frame huge just then. */
static void test_backed_and_collapse(void)
{
	enum { FIRST = 100 };
	unsigned char answer[PAGES_PER_FRAME + 1];
	hp_segment segment;
	char *address;

	start();
	if (is_old_kernel())
		skip_test("a kernel before 6.4");
	kind = HP_BACKING_BASE;
	address = make_mapping(&segment);
	for (int round = 0; round < 300; round++) {
		pthread_t thread;

		EXPECT_EQ(os->ops->segment_punch(os, segment, 0, FRAME), 0);
		for (int i = FIRST; i < PAGES_PER_FRAME; i++)
			address[i * HP_BASE_PAGE_SIZE] = 1;
		atomic_store(&collapsed, false);
		EXPECT_EQ(pthread_create(&thread, NULL, collapse_frame, address), 0);
		while (!atomic_load(&collapsed)) {
			ask_backed(segment, 0, PAGES_PER_FRAME, answer);
			for (int i = FIRST; i < PAGES_PER_FRAME; i++)
				EXPECT_EQ(answer[i], 1);
		}
		pthread_join(thread, NULL);
	}
	drop(address, FRAMES, segment);
}

struct question {
	hp_segment segment;
	uint64_t first, pages;
	char *changes; /* a page of the segment, but not of the range */
};

/* Of the frame every third page is there. */
static void *ask_again_and_again(void *argument)
{
	const struct question *question = argument;
	unsigned char answer[PAGES_PER_FRAME + 1];

	for (int round = 0; round < 3000; round++) {
		ask_backed(question->segment, question->first, question->pages, answer);
		for (uint64_t i = 0; i < question->pages; i++)
			EXPECT_EQ(answer[i], (question->first + i) % 3 == 0);
		*question->changes = 1;
		EXPECT_EQ(os->ops->segment_punch(os, question->segment, FRAME, FRAME), 0);
	}
	return NULL;
}

static void ask_in_child(void *context)
{
	ask_again_and_again(context);
}

/* Threads and a child share the position of the descriptor, but not what they find. */
static void test_backed_at_the_same_time(void)
{
	struct question questions[3];
	pthread_t threads[2];
	hp_segment segment;
	char *address;

	start();
	address = make_base_mapping(2, &segment);
	for (int i = 0; i < PAGES_PER_FRAME; i += 3)
		address[i * HP_BASE_PAGE_SIZE] = 1;
	for (unsigned i = 0; i < 3; i++)
		questions[i] = (struct question){segment, 7 * i, PAGES_PER_FRAME - 50 * i - 7 * i,
		                                 address + FRAME + i * 100 * HP_BASE_PAGE_SIZE};
	for (int i = 0; i < 2; i++)
		EXPECT_EQ(pthread_create(&threads[i], NULL, ask_again_and_again, &questions[i]), 0);
	run_child(ask_in_child, &questions[2]);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	drop(address, 2, segment);
}

/* The byte that a base page of the next test is full of. */
static void expect_filled(const char *page, int byte)
{
	for (unsigned i = 0; i < HP_BASE_PAGE_SIZE; i++)
		EXPECT_EQ(page[i], byte);
}

/* Memory of this process, of whole base pages. */
static char *make_buffer(uint64_t pages)
{
	char *buffer = aligned_alloc(HP_BASE_PAGE_SIZE, pages * HP_BASE_PAGE_SIZE);

	EXPECT(buffer);
	return buffer;
}

/* Random work on single base pages and runs of them, against a table of what each has to hold. */
static void test_base_pages(void)
{
	enum { PAGES = 2 * PAGES_PER_FRAME, RUN = 40, ROUNDS = 3000 };
	static char holds[PAGES];
	static bool present[PAGES];
	static unsigned char answer[PAGES + 1];
	unsigned seed = 7;
	char *address, *buffer = make_buffer(RUN);
	hp_segment segment;

	start();
	address = make_base_mapping(2, &segment);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned first = (unsigned)rand_r(&seed) % PAGES, other = (unsigned)rand_r(&seed) % PAGES;
		unsigned count = 1 + (unsigned)rand_r(&seed) % RUN;
		char *at = address + first * HP_BASE_PAGE_SIZE, byte = (char)(1 + round % 100);
		uint64_t present_pages = 0;

		if (first + count > PAGES || other + count > PAGES)
			continue;
		switch (rand_r(&seed) % 5) {
		case 0:
			memset(holds + first, byte, count);
			memset(present + first, true, count);
			memset(at, byte, count * HP_BASE_PAGE_SIZE);
			break;
		case 1:
			memset(holds + first, 0, count);
			memset(present + first, false, count);
			EXPECT_EQ(os->ops->segment_punch(os, segment, first * HP_BASE_PAGE_SIZE,
			                                 count * HP_BASE_PAGE_SIZE),
			          0);
			break;
		case 2:
			memset(holds + first, 0, count);
			memset(present + first, true, count);
			os->ops->zero(os, at, count * HP_BASE_PAGE_SIZE);
			break;
		case 3: /* The target, which may overlap, loses what it has, as scatter wants it. */
			EXPECT_EQ(os->ops->gather(os, buffer, round % 2 ? address + other * HP_BASE_PAGE_SIZE : NULL,
			                          segment, other * HP_BASE_PAGE_SIZE, count * HP_BASE_PAGE_SIZE),
			          0);
			for (unsigned i = 0; i < count; i++)
				expect_filled(buffer + i * HP_BASE_PAGE_SIZE, holds[other + i]);
			EXPECT_EQ(os->ops->segment_punch(os, segment, first * HP_BASE_PAGE_SIZE,
			                                 count * HP_BASE_PAGE_SIZE),
			          0);
			EXPECT_EQ(os->ops->scatter(os, segment, first * HP_BASE_PAGE_SIZE, buffer,
			                           count * HP_BASE_PAGE_SIZE),
			          0);
			memmove(holds + first, holds + other, count);
			for (unsigned i = 0; i < count; i++)
				present[first + i] = holds[first + i] != 0;
			break;
		case 4:
			present[first] = true;
			expect_filled(at, holds[first]);
			break;
		}
		ask_backed(segment, first, count, answer);
		for (unsigned i = 0; i < count; i++)
			EXPECT_EQ(answer[i], present[first + i]);
		ask_backed(segment, 0, PAGES, answer);
		for (int i = 0; i < PAGES; i++) {
			EXPECT_EQ(answer[i], present[i]);
			present_pages += present[i];
		}
		EXPECT_EQ(blocks_of(segment), present_pages * HP_BASE_PAGE_SIZE);
	}
	for (int i = 0; i < PAGES; i++)
		expect_filled(address + i * HP_BASE_PAGE_SIZE, holds[i]);
	drop(address, 2, segment);
	free(buffer);
}

/* ---- gather and scatter ----------------------------------------------------------------------------------------- */

#define PAGE HP_BASE_PAGE_SIZE

/* Every word of a page says which page it is and where the word lies. Number 0 is a page of zeroes. */
static uint64_t word_of(unsigned number, unsigned word)
{
	return number ? (uint64_t)number << 32 | (word + 1) : 0;
}

static void write_page(char *page, unsigned number)
{
	uint64_t *words = (void *)page;

	for (unsigned i = 0; i < PAGE / sizeof(*words); i++)
		words[i] = word_of(number, i);
}

static void expect_page(const char *page, unsigned number)
{
	const uint64_t *words = (const void *)page;

	for (unsigned i = 0; i < PAGE / sizeof(*words); i++)
		EXPECT_EQ(words[i], word_of(number, i));
}

static int gather(char *to, const char *mapped, hp_segment segment, uint64_t first, uint64_t pages)
{
	return os->ops->gather(os, to, mapped, segment, first * PAGE, pages * PAGE);
}

static int scatter(hp_segment segment, uint64_t first, const char *from, uint64_t pages)
{
	return os->ops->scatter(os, segment, first * PAGE, from, pages * PAGE);
}

/* `mapping` is that of the segment's start, or NULL; `numbers` what its pages hold. */
static void expect_gathered(const char *mapping, hp_segment segment, const unsigned *numbers, uint64_t first,
                            uint64_t pages)
{
	char *buffer = make_buffer(pages + 2), *to = buffer + PAGE;
	const uint64_t blocks = blocks_of(segment);

	memset(buffer, 0x5a, (pages + 2) * PAGE);
	errno = 5;
	EXPECT_EQ(gather(to, mapping ? mapping + first * PAGE : NULL, segment, first, pages), 0);
	EXPECT_EQ(errno, 5);
	for (uint64_t i = 0; i < pages; i++)
		expect_page(to + i * PAGE, numbers[first + i]);
	expect_filled(buffer, 0x5a);
	expect_filled(to + pages * PAGE, 0x5a);
	EXPECT_EQ(blocks_of(segment), blocks);
	free(buffer);
}

enum { SPARSE_FRAMES = 4, SPARSE_PAGES = SPARSE_FRAMES * PAGES_PER_FRAME };

/*
 * Of the first frame every third page is there, the second is full, the third empty but for a page of zeroes that has
 * memory; of the fourth there is only the last page.
 */
static unsigned sparse_number(unsigned page)
{
	switch (page / PAGES_PER_FRAME) {
	case 0:
		return page % 3 == 0 ? page + 1 : 0;
	case 1:
		return page + 1;
	default:
		return page == SPARSE_PAGES - 1 ? page + 1 : 0;
	}
}

static char *make_sparse(hp_segment *segment, unsigned *numbers)
{
	char *address = make_base_mapping(SPARSE_FRAMES, segment);

	for (unsigned i = 0; i < SPARSE_PAGES; i++) {
		numbers[i] = sparse_number(i);
		if (numbers[i])
			write_page(address + i * PAGE, numbers[i]);
	}
	write_page(address + 2 * FRAME + 7 * PAGE, 0);
	return address;
}

/* Whole, frames, across frames, within what is there and within what is not, single pages. */
static void gather_ranges(const char *mapping, hp_segment segment, const unsigned *numbers)
{
	static const struct {
		unsigned first, pages;
	} ranges[] = {
		{0, SPARSE_PAGES},
		{0, PAGES_PER_FRAME},
		{PAGES_PER_FRAME, PAGES_PER_FRAME},
		{2 * PAGES_PER_FRAME, PAGES_PER_FRAME},
		{1, PAGES_PER_FRAME},
		{PAGES_PER_FRAME - 5, 2 * PAGES_PER_FRAME + 10},
		{PAGES_PER_FRAME + 5, PAGES_PER_FRAME - 10},
		{2 * PAGES_PER_FRAME + 6, 3},
		{2 * PAGES_PER_FRAME + 100, 200},
		{3 * PAGES_PER_FRAME - 1, PAGES_PER_FRAME + 1},
		{3, 1},
		{4, 1},
		{SPARSE_PAGES - 2, 1},
		{SPARSE_PAGES - 1, 1},
	};

	for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
		expect_gathered(mapping, segment, numbers, ranges[i].first, ranges[i].pages);
}

static void expect_backed_as(hp_segment segment, const unsigned char *before)
{
	static unsigned char answer[SPARSE_PAGES + 1];

	ask_backed(segment, 0, SPARSE_PAGES, answer);
	EXPECT_EQ(memcmp(answer, before, SPARSE_PAGES), 0);
}

static void test_gather(void)
{
	static unsigned numbers[SPARSE_PAGES];
	static unsigned char before[SPARSE_PAGES + 1];
	char *address, *second, *reader;
	hp_segment segment;

	start();
	address = make_sparse(&segment, numbers);
	ask_backed(segment, 0, SPARSE_PAGES, before);
	gather_ranges(NULL, segment, numbers);
	gather_ranges(address, segment, numbers);
	expect_backed_as(segment, before);

	/* Not touched at all at first, then in part, and by gather itself. */
	second = reserve(SPARSE_FRAMES * FRAME, FRAME, 0);
	EXPECT_EQ(map_at(second, SPARSE_FRAMES, RW, segment, 0, HP_OS_MAP_REPLACE), 0);
	madvise(second, SPARSE_FRAMES * FRAME, MADV_NOHUGEPAGE);
	expect_gathered(second, segment, numbers, PAGES_PER_FRAME + 3, 1);
	EXPECT(!is_entered(second));
	touch(second);
	touch(second + FRAME + 9 * PAGE);
	gather_ranges(second, segment, numbers);
	EXPECT(!is_entered(second + PAGE));
	expect_backed_as(segment, before);

	/* Read-only from the start, and protected while its pages are entered. */
	reader = reserve(SPARSE_FRAMES * FRAME, FRAME, 0);
	EXPECT_EQ(map_at(reader, SPARSE_FRAMES, RO, segment, 0, HP_OS_MAP_REPLACE), 0);
	madvise(reader, SPARSE_FRAMES * FRAME, MADV_NOHUGEPAGE);
	gather_ranges(reader, segment, numbers);
	EXPECT_EQ(os->ops->protect(os, address, SPARSE_FRAMES * FRAME, RO), 0);
	EXPECT_EQ(os->ops->protect(os, second + FRAME, FRAME, RO), 0);
	gather_ranges(address, segment, numbers);
	gather_ranges(second, segment, numbers);
	expect_backed_as(segment, before);

	/* A punch is seen at once, also where it was mapped. */
	EXPECT_EQ(os->ops->segment_punch(os, segment, FRAME + 20 * PAGE, 30 * PAGE), 0);
	memset(numbers + PAGES_PER_FRAME + 20, 0, 30 * sizeof(numbers[0]));
	gather_ranges(address, segment, numbers);
	gather_ranges(NULL, segment, numbers);
	EXPECT_EQ(os->ops->unmap(os, second, SPARSE_FRAMES * FRAME), 0);
	EXPECT_EQ(os->ops->unmap(os, reader, SPARSE_FRAMES * FRAME), 0);
	drop(address, SPARSE_FRAMES, segment);
}

/* Nothing lies there: not even a page table, and none by asking. */
static void test_gather_nothing(void)
{
	static const unsigned numbers[SPARSE_PAGES];
	hp_segment segment;
	char *address;

	start();
	address = make_base_mapping(SPARSE_FRAMES, &segment);
	gather_ranges(NULL, segment, numbers);
	gather_ranges(address, segment, numbers);
	EXPECT_EQ(blocks_of(segment), 0);
	EXPECT_EQ(count_backed(segment, 0, SPARSE_PAGES), 0);
	for (unsigned i = 0; i < SPARSE_PAGES; i++)
		EXPECT(!is_entered(address + i * PAGE));
	drop(address, SPARSE_FRAMES, segment);
}

static void test_gather_when_huge(void)
{
	static unsigned numbers[SPARSE_PAGES];
	hp_segment segment;
	char *address;

	start();
	address = make_sparse(&segment, numbers);
	madvise(address, SPARSE_FRAMES * FRAME, MADV_HUGEPAGE);
	if (os->ops->collapse(os, address, 2 * FRAME))
		skip_test("nothing becomes huge");
	gather_ranges(NULL, segment, numbers);
	gather_ranges(address, segment, numbers);
	/* In parts. */
	madvise(address, SPARSE_FRAMES * FRAME, MADV_NOHUGEPAGE);
	EXPECT_EQ(os->ops->segment_punch(os, segment, FRAME + 20 * PAGE, 30 * PAGE), 0);
	memset(numbers + PAGES_PER_FRAME + 20, 0, 30 * sizeof(numbers[0]));
	gather_ranges(NULL, segment, numbers);
	gather_ranges(address, segment, numbers);
	drop(address, SPARSE_FRAMES, segment);
}

struct sparse {
	char *mapping;
	hp_segment segment;
	unsigned numbers[SPARSE_PAGES];
};

/* The kernel calls all pages present to whom the file is none of their business. */
static void gather_as_nobody(void *context)
{
	const struct sparse *sparse = context;

	EXPECT_EQ(setresuid(65534, 65534, 65534), 0);
	gather_ranges(sparse->mapping, sparse->segment, sparse->numbers);
}

static void gather_without_mincore(void *context)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mincore, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog program = {sizeof(steps) / sizeof(steps[0]), steps};
	const struct sparse *sparse = context;
	unsigned char answer;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return; /* not here */
	EXPECT(mincore(sparse->mapping, PAGE, &answer) == -1 && errno == EPERM);
	gather_ranges(sparse->mapping, sparse->segment, sparse->numbers);
}

/* Where the process may not do all that it could when the segment was made. */
static void test_gather_with_less_rights(void)
{
	static struct sparse sparse;

	start();
	sparse.mapping = make_sparse(&sparse.segment, sparse.numbers);
	run_child(gather_without_mincore, &sparse);
	if (geteuid() == 0)
		run_child(gather_as_nobody, &sparse);
	drop(sparse.mapping, SPARSE_FRAMES, sparse.segment);
}

static void test_gather_fails(void)
{
	static unsigned numbers[SPARSE_PAGES];
	char *buffer = make_buffer(PAGES_PER_FRAME), *address;
	hp_segment segment;

	start();
	address = make_sparse(&segment, numbers);
	errno = 5;
	EXPECT_EQ(gather(buffer, NULL, HP_NO_SEGMENT, 0, 1), -EBADF);
	EXPECT_EQ(gather(buffer, address, HP_NO_SEGMENT, 0, PAGES_PER_FRAME), -EBADF); /* some are absent */
	EXPECT_EQ(gather(buffer, NULL, segment, SPARSE_PAGES, 1), -EIO);               /* not all is the segment's */
	EXPECT_EQ(gather(buffer, NULL, segment, SPARSE_PAGES - 1, 2), -EIO);
	expect_page(buffer, numbers[SPARSE_PAGES - 1]);
	EXPECT_EQ(os->ops->segment_destroy(os, segment), 0);
	EXPECT_EQ(gather(buffer, NULL, segment, 0, 1), -EBADF);
	EXPECT_EQ(gather(buffer, address + 2 * FRAME, segment, 2 * PAGES_PER_FRAME, PAGES_PER_FRAME), -EBADF);
	EXPECT_EQ(errno, 5);
	EXPECT_EQ(os->ops->unmap(os, address, SPARSE_FRAMES * FRAME), 0);
	free(buffer);
}

/* The contents of make_sparse, from where they are gathered to. */
static char *make_sparse_buffer(void)
{
	char *buffer = make_buffer(SPARSE_PAGES);

	for (unsigned i = 0; i < SPARSE_PAGES; i++)
		write_page(buffer + i * PAGE, sparse_number(i));
	return buffer;
}

static void test_scatter(void)
{
	static const struct {
		unsigned first, pages;
	} ranges[] = {
		{0, SPARSE_PAGES},
		{PAGES_PER_FRAME, PAGES_PER_FRAME},
		{2 * PAGES_PER_FRAME, PAGES_PER_FRAME},
		{1, PAGES_PER_FRAME},
		{PAGES_PER_FRAME - 5, PAGES_PER_FRAME + 10},
		{2, 2},
		{1, 1},
		{3, 1},
		{SPARSE_PAGES - 10, 10},
	};
	static unsigned char answer[SPARSE_PAGES + 1];
	char *address, *buffer = make_sparse_buffer();
	hp_segment segment;

	start();
	address = make_base_mapping(SPARSE_FRAMES, &segment);
	for (size_t r = 0; r < sizeof(ranges) / sizeof(ranges[0]); r++) {
		const unsigned first = ranges[r].first, end = first + ranges[r].pages;
		static unsigned numbers[SPARSE_PAGES];
		uint64_t written = 0;

		EXPECT_EQ(blocks_of(segment), 0);
		errno = 5;
		EXPECT_EQ(scatter(segment, first, buffer + first * PAGE, end - first), 0);
		EXPECT_EQ(errno, 5);
		ask_backed(segment, 0, SPARSE_PAGES, answer);
		for (unsigned i = 0; i < SPARSE_PAGES; i++) {
			numbers[i] = i >= first && i < end ? sparse_number(i) : 0;
			written += numbers[i] != 0;
			EXPECT_EQ(answer[i], numbers[i] != 0);
		}
		EXPECT_EQ(blocks_of(segment), written * PAGE);
		gather_ranges(NULL, segment, numbers);
		gather_ranges(address, segment, numbers);
		for (unsigned i = first; i < end; i++)
			expect_page(address + i * PAGE, numbers[i]);
		EXPECT_EQ(os->ops->segment_punch(os, segment, 0, SPARSE_FRAMES * FRAME), 0);
	}
	/* One byte anywhere is enough. */
	for (unsigned at = 0; at < PAGE; at += 455) { /* the first and the last too */
		memset(buffer, 0, 3 * PAGE);
		buffer[PAGE + at] = 1;
		EXPECT_EQ(scatter(segment, 0, buffer, 3), 0);
		EXPECT_EQ(blocks_of(segment), PAGE);
		EXPECT_EQ(address[PAGE + at], 1);
		EXPECT_EQ(os->ops->segment_punch(os, segment, 0, FRAME), 0);
	}
	/* From a mapping of another segment, which may be read-only. */
	{
		hp_segment from_segment;
		char *from = make_base_mapping(1, &from_segment);

		write_page(from + 5 * PAGE, 6);
		EXPECT_EQ(os->ops->protect(os, from, FRAME, RO), 0);
		EXPECT_EQ(scatter(segment, PAGES_PER_FRAME, from, PAGES_PER_FRAME), 0);
		EXPECT_EQ(blocks_of(segment), PAGE);
		expect_page(address + FRAME + 5 * PAGE, 6);
		drop(from, 1, from_segment);
	}
	drop(address, SPARSE_FRAMES, segment);
	free(buffer);
}

/* Writing beyond the limit would be a signal. Where nothing is to be written there is no limit. */
static void scatter_beyond_limit(void *context)
{
	const struct rlimit limit = {FRAME, FRAME};
	char *buffer = make_buffer(2);
	hp_segment segment = *(hp_segment *)context;

	EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	write_page(buffer, 1);
	write_page(buffer + PAGE, 2);
	errno = 5;
	EXPECT_EQ(scatter(segment, PAGES_PER_FRAME - 2, buffer, 2), 0);
	EXPECT_EQ(scatter(segment, PAGES_PER_FRAME, buffer, 2), -EFBIG);
	EXPECT_EQ(scatter(segment, PAGES_PER_FRAME - 1, buffer, 2), -EFBIG);
	EXPECT_EQ(errno, 5);
	EXPECT(!is_backed(segment, PAGES_PER_FRAME));
	memset(buffer, 0, 2 * PAGE);
	EXPECT_EQ(scatter(segment, PAGES_PER_FRAME, buffer, 2), 0);
	free(buffer);
}

static void test_scatter_fails(void)
{
	char *buffer = make_buffer(2), *address;
	hp_segment segment;

	start();
	address = make_base_mapping(2, &segment);
	run_child(scatter_beyond_limit, &segment);
	write_page(buffer, 1);
	write_page(buffer + PAGE, 2);
	errno = 5;
	EXPECT_EQ(scatter(HP_NO_SEGMENT, 0, buffer, 2), -EBADF);
	EXPECT_EQ(os->ops->segment_destroy(os, segment), 0);
	EXPECT_EQ(scatter(segment, 0, buffer, 2), -EBADF);
	EXPECT_EQ(errno, 5);
	EXPECT_EQ(os->ops->unmap(os, address, 2 * FRAME), 0);
	free(buffer);
}

struct half {
	char *mapping;
	hp_segment segment;
	unsigned frame, salt; /* writes this frame, reads the sparse ones */
};

/* Reads what nobody changes, and what it has written itself. */
static void gather_and_scatter(void *context)
{
	const struct half *half = context;
	const unsigned first = half->frame * PAGES_PER_FRAME;
	char *buffer = make_buffer(PAGES_PER_FRAME);

	for (unsigned round = 0; round < 200; round++) {
		const unsigned shift = round % 7, step = 2 + round % 3;
		const char *mapped = round % 2 ? half->mapping : NULL;

		EXPECT_EQ(gather(buffer, mapped ? mapped + shift * PAGE : NULL, half->segment, shift, PAGES_PER_FRAME),
		          0);
		for (unsigned i = 0; i < PAGES_PER_FRAME; i++)
			expect_page(buffer + i * PAGE, sparse_number(shift + i));

		for (unsigned i = 0; i < PAGES_PER_FRAME; i++)
			write_page(buffer + i * PAGE, i % step ? 0 : half->salt + round + i);
		EXPECT_EQ(scatter(half->segment, first, buffer, PAGES_PER_FRAME), 0);
		memset(buffer, 0x5a, FRAME);
		EXPECT_EQ(gather(buffer, mapped ? mapped + half->frame * FRAME : NULL, half->segment, first,
		                 PAGES_PER_FRAME),
		          0);
		for (unsigned i = 0; i < PAGES_PER_FRAME; i++)
			expect_page(buffer + i * PAGE, i % step ? 0 : half->salt + round + i);
		EXPECT_EQ(os->ops->segment_punch(os, half->segment, half->frame * FRAME, FRAME), 0);
	}
	free(buffer);
}

/* Parent and child share the descriptor, its position and the pages. */
static void test_gather_in_parent_and_child(void)
{
	static unsigned numbers[SPARSE_PAGES];
	struct half of_child, of_parent;
	hp_segment segment;
	char *address;
	pid_t child;

	start();
	address = make_sparse(&segment, numbers);
	EXPECT_EQ(os->ops->segment_punch(os, segment, 2 * FRAME, 2 * FRAME), 0);
	of_child = (struct half){address, segment, 2, 1000000};
	of_parent = (struct half){address, segment, 3, 2000000};
	child = start_child(gather_and_scatter, &of_child);
	gather_and_scatter(&of_parent);
	join_child(child);
	drop(address, SPARSE_FRAMES, segment);
}

struct collapsing {
	char *mapping;
	hp_segment segment;
	unsigned rounds, done; /* done: of how many the frame became huge */
	_Atomic int step;      /* 1: it runs; 2: it has ended */
};

/* A page that is punched makes the frame small again; it holds nothing. */
static void *collapse_often(void *context)
{
	struct collapsing *c = context;

	for (unsigned i = 0; i < c->rounds; i++) {
		EXPECT_EQ(os->ops->segment_punch(os, c->segment, (1 + i % 2) * PAGE, PAGE), 0);
		c->done += os->ops->collapse(os, c->mapping, FRAME) == 0;
		REACH(&c->step, 1);
	}
	REACH(&c->step, 2);
	return NULL;
}

/* Through a mapping that is collapsed, through one of its own, through none; every third page, from 0 on, is there. */
static void test_gather_and_collapse(void)
{
	struct collapsing collapsing = {.rounds = 2000};
	char *buffer = make_buffer(PAGES_PER_FRAME), *second;
	const char *mappings[3] = {NULL};
	unsigned gathered = 0;
	pthread_t thread;

	start();
	kind = HP_BACKING_BASE;
	mappings[1] = collapsing.mapping = make_mapping(&collapsing.segment);
	second = reserve(FRAME, FRAME, 0);
	EXPECT_EQ(map_at(second, 1, RO, collapsing.segment, 0, HP_OS_MAP_REPLACE), 0);
	mappings[2] = second;
	for (unsigned i = 0; i < PAGES_PER_FRAME; i += 3)
		write_page(collapsing.mapping + i * PAGE, i + 1);
	if (os->ops->collapse(os, collapsing.mapping, FRAME))
		skip_test("nothing becomes huge");

	thread = start_thread(collapse_often, &collapsing);
	await(&collapsing.step, 1);
	for (; atomic_load(&collapsing.step) < 2; gathered++) {
		const char *mapping = mappings[gathered % 3];
		unsigned first = gathered % 11, pages = PAGES_PER_FRAME - first - gathered % 5;

		memset(buffer, 0x5a, pages * PAGE);
		EXPECT_EQ(gather(buffer, mapping ? mapping + first * PAGE : NULL, collapsing.segment, first, pages), 0);
		for (unsigned i = 0; i < pages; i++)
			expect_page(buffer + i * PAGE, (first + i) % 3 ? 0 : first + i + 1);
	}
	join_thread(thread);
	EXPECT(gathered > 0);
	EXPECT(collapsing.done > 0);
	EXPECT_EQ(os->ops->unmap(os, second, FRAME), 0);
	drop(collapsing.mapping, FRAMES, collapsing.segment);
	free(buffer);
}

struct filling {
	char *mapping;
	hp_segment segment;
	bool by_scatter;
	_Atomic unsigned filled; /* pages, from the first on */
	_Atomic unsigned round;  /* they are filled with this; 0: the end */
};

static void *fill_hole(void *context)
{
	struct filling *f = context;
	char *page = make_buffer(1);
	unsigned round, last = 0;

	while ((round = atomic_load(&f->round))) {
		if (round == last)
			continue;
		last = round;
		memset(page, (int)(1 + round % 100), PAGE);
		for (unsigned i = 0; i < PAGES_PER_FRAME; i++) {
			if (f->by_scatter)
				EXPECT_EQ(scatter(f->segment, i, page, 1), 0);
			else
				memset(f->mapping + i * PAGE, page[0], PAGE);
			atomic_store(&f->filled, i + 1);
		}
	}
	free(page);
	return NULL;
}

/* A page that was full before is; one that comes meanwhile is seen or not, in part or whole, and nothing else is. */
static void test_gather_a_hole_that_is_filled(void)
{
	struct filling filling = {0};
	char *buffer = make_buffer(PAGES_PER_FRAME);

	start();
	filling.mapping = make_base_mapping(1, &filling.segment);
	for (int by_scatter = 0; by_scatter < 2; by_scatter++) {
		pthread_t thread;

		filling.by_scatter = by_scatter;
		atomic_store(&filling.round, 1);
		thread = start_thread(fill_hole, &filling);
		for (unsigned round = 1, full; round <= 60; round++) {
			unsigned gathers = 0;

			do {
				const char byte = (char)(1 + round % 100);

				full = atomic_load(&filling.filled);
				EXPECT_EQ(gather(buffer, gathers++ % 2 ? filling.mapping : NULL, filling.segment, 0,
				                 PAGES_PER_FRAME),
				          0);
				for (uint64_t i = 0; i < FRAME; i++)
					if (buffer[i] != byte)
						EXPECT(buffer[i] == 0 && i / PAGE >= full);
			} while (full < PAGES_PER_FRAME);
			EXPECT_EQ(os->ops->segment_punch(os, filling.segment, 0, FRAME), 0);
			atomic_store(&filling.filled, 0);
			atomic_store(&filling.round, round < 60 ? round + 1 : 0);
		}
		join_thread(thread);
	}
	drop(filling.mapping, 1, filling.segment);
	free(buffer);
}

/* ---- more of pages ---------------------------------------------------------------------------------------------- */

static void test_touch(void)
{
	for (int i = 0; i < 2; i++) {
		hp_segment segment;
		char *address, *second;

		if (!start_kind(i))
			continue;
		address = make_mapping(&segment);
		write_tag(address, 7);
		second = reserve(FRAMES * FRAME, FRAME, 0);
		EXPECT_EQ(map_at(second, FRAMES, RO, segment, 0, HP_OS_MAP_REPLACE), 0);
		EXPECT(!is_entered(second));
		errno = 5;
		EXPECT_EQ(os->ops->touch(os, second, 2 * FRAME), 0);
		EXPECT(is_entered(second));
		EXPECT(is_entered(second + 2 * FRAME - 1)); /* and that one was absent */
		EXPECT(!is_entered(second + 2 * FRAME));
		EXPECT_EQ(blocks_of(segment), 2 * FRAME);
		EXPECT(has_tag(second, 7));
		EXPECT(is_zero(second + FRAME));
		EXPECT_EQ(os->ops->populate(os, second, FRAME), -EINVAL); /* that would be a store */
		EXPECT_EQ(os->ops->protect(os, second, FRAME, 0), 0);
		EXPECT_EQ(os->ops->touch(os, second, FRAME), -EINVAL);
		EXPECT_EQ(os->ops->unmap(os, second, FRAMES * FRAME), 0);
		EXPECT_EQ(os->ops->touch(os, second, FRAME), -ENOMEM);
		EXPECT_EQ(errno, 5);
		drop(address, FRAMES, segment);
	}
}

static uint64_t huge_pages_reserved(void)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[256];
	unsigned long reserved = 0;

	EXPECT(file);
	while (fgets(line, sizeof(line), file) && sscanf(line, "HugePages_Rsvd: %lu", &reserved) != 1)
		;
	fclose(file);
	return reserved;
}

static void fail_to_take_a_page(void *context)
{
	hp_segment segment = make_segment(1);
	char *address = reserve(FRAME, FRAME, 0);

	EXPECT_EQ(map_at(address, 1, RW, segment, 0, HP_OS_MAP_REPLACE), -ENOMEM);
}

/* In a pool of which every page is used or promised. */
static void test_renew(void)
{
	hp_segment segment, rest_segment, another;
	char *address, *rest, *taken;
	uint64_t others, reserved;

	start();
	catch_signals();
	if (kind != HP_BACKING_HUGETLB)
		skip_test("no huge pages");
	address = make_mapping(&segment);
	for (int i = 0; i < FRAMES; i++)
		write_tag(address + i * FRAME, i);
	others = huge_pages_available();
	rest_segment = make_segment(others);
	rest = reserve(others * FRAME, FRAME, 0);
	EXPECT_EQ(map_at(rest, others, RW, rest_segment, 0, HP_OS_MAP_REPLACE), 0);
	reserved = huge_pages_reserved();
	EXPECT_EQ(huge_pages_available(), 0);

	EXPECT_EQ(os->ops->segment_punch(os, segment, 2 * FRAME, FRAME), 0);
	EXPECT_EQ(huge_pages_available(), 1);
	errno = 5;
	/* What is there needs nothing, and twice is once. */
	EXPECT_EQ(os->ops->segment_renew(os, segment, 0, FRAMES * FRAME), 0);
	EXPECT_EQ(os->ops->segment_renew(os, segment, 2 * FRAME, FRAME), 0);
	EXPECT_EQ(errno, 5);
	EXPECT_EQ(huge_pages_reserved(), reserved + 1);
	EXPECT_EQ(huge_pages_available(), 0);
	run_child(fail_to_take_a_page, NULL);
	EXPECT_EQ(signal_of(address + 2 * FRAME, false), 0);
	EXPECT(is_zero(address + 2 * FRAME));
	EXPECT_EQ(huge_pages_reserved(), reserved);

	/* Somebody else was faster. */
	EXPECT_EQ(os->ops->segment_punch(os, segment, 2 * FRAME, 2 * FRAME), 0);
	another = make_segment(1);
	taken = reserve(FRAME, FRAME, 0);
	EXPECT_EQ(map_at(taken, 1, RW, another, 0, HP_OS_MAP_REPLACE), 0);
	EXPECT_EQ(os->ops->segment_renew(os, segment, 2 * FRAME, 2 * FRAME), -ENOMEM);
	EXPECT_EQ(errno, 5);
	EXPECT_EQ(huge_pages_reserved(), reserved + 1); /* another's */
	EXPECT_EQ(os->ops->segment_renew(os, segment, 3 * FRAME, FRAME), 0);
	EXPECT_EQ(signal_of(address + 2 * FRAME, false), SIGBUS);
	EXPECT_EQ(os->ops->populate(os, address + 2 * FRAME, FRAME), -EFAULT);
	EXPECT_EQ(os->ops->touch(os, address + 2 * FRAME, FRAME), -EFAULT);
	EXPECT_EQ(os->ops->populate(os, address + 3 * FRAME, FRAME), 0);
	EXPECT(is_zero(address + 3 * FRAME));
	EXPECT_EQ(os->ops->segment_renew(os, HP_NO_SEGMENT, 0, FRAME), -EBADF);
	drop(taken, 1, another);
	drop(rest, others, rest_segment);
	drop(address, FRAMES, segment);
	EXPECT_EQ(huge_pages_available(), others + FRAMES);
}

/* Other kinds promise nothing. */
static void test_renew_base(void)
{
	hp_segment segment;
	char *address;

	start();
	kind = HP_BACKING_BASE;
	address = make_mapping(&segment);
	EXPECT_EQ(os->ops->segment_renew(os, segment, 0, FRAMES * FRAME), 0);
	EXPECT_EQ(blocks_of(segment), 0);
	drop(address, FRAMES, segment);
}

static void test_huge_pages_are_counted(void)
{
	uint64_t before;
	hp_segment segment;
	char *address;

	start();
	if (kind != HP_BACKING_HUGETLB)
		skip_test("no huge pages");
	/* Other processes may use some meanwhile, so this holds only when they do not. */
	before = huge_pages_available();
	address = make_mapping(&segment);
	EXPECT(huge_pages_available() <= before); /* mapping them reserves them */
	EXPECT_EQ(os->ops->populate(os, address, FRAMES * FRAME), 0);
	drop(address, FRAMES, segment);
}

/* The kernel's pool does not have as many: an error, and no signal later. */
static void test_too_many_huge_pages(void)
{
	uint64_t frames;
	hp_segment segment;
	char *address;

	start();
	if (kind != HP_BACKING_HUGETLB)
		skip_test("no huge pages");
	frames = huge_pages_available() + 4096;
	EXPECT_EQ(os->ops->segment_create(os, kind, frames * FRAME, &segment), 0);
	address = reserve(frames * FRAME, FRAME, 0);
	errno = 5;
	EXPECT_EQ(map_at(address, frames, RW, segment, 0, HP_OS_MAP_REPLACE), -ENOMEM);
	EXPECT_EQ(errno, 5);
	os->ops->unmap(os, address, frames * FRAME);
	EXPECT_EQ(os->ops->segment_destroy(os, segment), 0);
}

static void test_collapse(void)
{
	hp_segment segment;
	char *address;
	int result;

	start();
	kind = HP_BACKING_THP;
	address = make_mapping(&segment);
	EXPECT_EQ(os->ops->populate(os, address, 2 * FRAME), 0);
	write_tag(address, 1);
	write_tag(address + FRAME, 2);
	errno = 5;
	result = os->ops->collapse(os, address, FRAME);
	if (!result)
		result = os->ops->collapse(os, address + FRAME, FRAME);
	EXPECT(result == 0 || result == -EINVAL || result == -ENOMEM || result == -EAGAIN || result == -EBUSY);
	EXPECT_EQ(errno, 5);
	EXPECT(has_tag(address, 1));
	EXPECT(has_tag(address + FRAME, 2));
	drop(address, FRAMES, segment);
}

/* Every method does the same, byte for byte, and touches nothing beside. */
static void test_zero_methods(void)
{
	enum { SIZE = 65536 };
	unsigned char *buffer = aligned_alloc(64, SIZE), *expected = malloc(SIZE);
	unsigned seed = 11, methods = 0;

	EXPECT(buffer && expected);
	for (const struct hp_zero_method *method = hp_zero_methods; method->name; method++) {
		if (!method->usable())
			continue;
		methods++;
		for (int round = 0; round < 300; round++) {
			size_t from = (size_t)rand_r(&seed) % (SIZE / 64),
			       count = (size_t)rand_r(&seed) % (SIZE / 64 - from + 1);

			for (int i = 0; i < SIZE; i++)
				buffer[i] = expected[i] = (unsigned char)(i * 7 + round + 1);
			memset(expected + from * 64, 0, count * 64);
			method->zero(buffer + from * 64, count * 64);
			EXPECT_EQ(memcmp(buffer, expected, SIZE), 0);
		}
	}
	EXPECT(methods >= 1);
	EXPECT(hp_zero_method_best()->usable());
	free(buffer);
	free(expected);
}

static void test_zero(void)
{
	hp_segment segment;
	char *address;

	start();
	address = make_mapping(&segment);
	memset(address, 0x5a, 3 * FRAME);
	os->ops->zero(os, address + FRAME, FRAME);
	EXPECT(is_zero(address + FRAME));
	EXPECT_EQ(address[FRAME - 1], 0x5a);
	EXPECT_EQ(address[2 * FRAME], 0x5a);
	drop(address, FRAMES, segment);
}

static void test_copy_methods(void)
{
	enum { SIZE = 131072, LINES = SIZE / 64 };
	unsigned char *from = aligned_alloc(64, SIZE), *to = aligned_alloc(64, SIZE), *expected = malloc(SIZE);
	unsigned seed = 12, methods = 0;

	EXPECT(from && to && expected);
	for (int i = 0; i < SIZE; i++)
		from[i] = (unsigned char)rand_r(&seed);
	for (const struct hp_copy_method *method = hp_copy_methods; method->name; method++) {
		if (!method->usable())
			continue;
		methods++;
		for (int round = 0; round < 300; round++) {
			size_t at = (size_t)rand_r(&seed) % LINES, source = (size_t)rand_r(&seed) % LINES,
			       count = (size_t)rand_r(&seed) % (LINES - (at > source ? at : source) + 1);

			memset(to, round, SIZE);
			memset(expected, round, SIZE);
			memcpy(expected + at * 64, from + source * 64, count * 64);
			method->copy(to + at * 64, from + source * 64, count * 64);
			EXPECT_EQ(memcmp(to, expected, SIZE), 0);
		}
	}
	EXPECT(methods >= 1);
	EXPECT(hp_copy_method_best()->usable());
	free(from);
	free(to);
	free(expected);
}

static void test_copy_stream(void)
{
	hp_segment segment;
	char *address;

	start();
	address = make_mapping(&segment);
	for (uint64_t i = 0; i < FRAME; i++)
		address[3 * FRAME + i] = (char)(i * 7 + i / HP_BASE_PAGE_SIZE);
	memset(address, 0x5a, 3 * FRAME);
	hp_copy_stream(address + FRAME, address + 3 * FRAME, FRAME);
	EXPECT_EQ(memcmp(address + FRAME, address + 3 * FRAME, FRAME), 0);
	EXPECT_EQ(address[FRAME - 1], 0x5a);
	EXPECT_EQ(address[2 * FRAME], 0x5a);
	/* Base pages of any kind. */
	os->ops->zero(os, address + FRAME + HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE);
	hp_copy_stream(address + 2 * FRAME - HP_BASE_PAGE_SIZE, address + 3 * FRAME + HP_BASE_PAGE_SIZE,
	               HP_BASE_PAGE_SIZE);
	expect_filled(address + FRAME + HP_BASE_PAGE_SIZE, 0);
	EXPECT_EQ(memcmp(address + FRAME, address + 3 * FRAME, HP_BASE_PAGE_SIZE), 0);
	EXPECT_EQ(memcmp(address + FRAME + 2 * HP_BASE_PAGE_SIZE, address + 3 * FRAME + 2 * HP_BASE_PAGE_SIZE,
	                 FRAME - 3 * HP_BASE_PAGE_SIZE),
	          0);
	EXPECT_EQ(memcmp(address + 2 * FRAME - HP_BASE_PAGE_SIZE, address + 3 * FRAME + HP_BASE_PAGE_SIZE,
	                 HP_BASE_PAGE_SIZE),
	          0);
	EXPECT_EQ(address[2 * FRAME], 0x5a);
	drop(address, FRAMES, segment);
}

/* ---- control memory --------------------------------------------------------------------------------------------- */

static void write_control(void *address)
{
	((char *)address)[99999] = 7;
}

static void test_control(void)
{
	hp_segment handle = HP_NO_SEGMENT;
	void *address;

	start();
	EXPECT_EQ(os->ops->control_create(os, 100000, &address, &handle), 0);
	EXPECT(handle >= 0);
	EXPECT(fcntl(handle, F_GETFD) & FD_CLOEXEC);
	for (int i = 0; i < 100000; i++)
		EXPECT_EQ(((char *)address)[i], 0);
	run_child(write_control, address);
	EXPECT_EQ(((char *)address)[99999], 7);
	/* In pieces too. */
	EXPECT_EQ(os->ops->control_destroy(os, (char *)address + 8192, 100000 - 8192, HP_NO_SEGMENT), 0);
	EXPECT(is_readable(address));
	EXPECT(!is_readable((char *)address + 8192));
	EXPECT_EQ(os->ops->control_destroy(os, address, 8192, handle), 0);
	/* Sparse. */
	EXPECT_EQ(os->ops->control_create(os, 64 * GIB, &address, &handle), 0);
	((char *)address)[64 * GIB - 1] = 1;
	EXPECT(blocks_of(handle) <= FRAME);
	EXPECT_EQ(os->ops->control_destroy(os, address, 64 * GIB, handle), 0);
}

/* ---- limits ----------------------------------------------------------------------------------------------------- */

static void test_budget(void)
{
	FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
	unsigned long max = 0;
	uint64_t taken;

	start();
	EXPECT(file && fscanf(file, "%lu", &max) == 1);
	fclose(file);
	EXPECT_EQ(os->ops->max_map_count(os), max);
	EXPECT_EQ(hp_maps_max(os), max / 5 * 4);
	taken = hp_maps_taken(os);
	EXPECT_EQ(hp_maps_take(os, 10), 0);
	EXPECT_EQ(hp_maps_taken(os), taken + 10);
	EXPECT_EQ(hp_maps_take(os, hp_maps_max(os)), -ENOMEM);
	EXPECT_EQ(hp_maps_take(os, UINT64_MAX), -ENOMEM);
	EXPECT_EQ(hp_maps_take(os, hp_maps_max(os) - taken - 10), 0);
	EXPECT_EQ(hp_maps_take(os, 1), -ENOMEM);
	hp_maps_give(os, hp_maps_max(os) - taken);
	EXPECT_EQ(hp_maps_taken(os), taken);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_reserve),
		REAL_TEST(test_map),
		REAL_TEST(test_move),
		REAL_TEST(test_move_beside_a_reader),
		REAL_TEST(test_vacate),
		REAL_TEST(test_end),
		REAL_TEST(test_protect),
		REAL_TEST(test_keep_from_children),
		REAL_TEST(test_map_private),
		REAL_TEST(test_populate_and_punch),
		REAL_TEST(test_populate_again),
		REAL_TEST(test_backed),
		REAL_TEST(test_backed_when_huge),
		REAL_TEST(test_backed_and_collapse),
		REAL_TEST(test_backed_at_the_same_time),
		REAL_TEST(test_base_pages),
		REAL_TEST(test_gather),
		REAL_TEST(test_gather_nothing),
		REAL_TEST(test_gather_when_huge),
		REAL_TEST(test_gather_with_less_rights),
		REAL_TEST(test_gather_fails),
		REAL_TEST(test_scatter),
		REAL_TEST(test_scatter_fails),
		REAL_TEST(test_gather_in_parent_and_child),
		REAL_TEST(test_gather_and_collapse),
		REAL_TEST(test_gather_a_hole_that_is_filled),
		REAL_TEST(test_touch),
		REAL_TEST(test_renew),
		REAL_TEST(test_renew_base),
		REAL_TEST(test_huge_pages_are_counted),
		REAL_TEST(test_too_many_huge_pages),
		REAL_TEST(test_collapse),
		REAL_TEST(test_zero_methods),
		REAL_TEST(test_zero),
		REAL_TEST(test_copy_methods),
		REAL_TEST(test_copy_stream),
		REAL_TEST(test_control),
		REAL_TEST(test_budget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
