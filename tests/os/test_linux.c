/* SPDX-License-Identifier: MIT */
/*
 * The linux backend by itself: each operation against what the kernel then says.
 */
#include "real.h"

#include "os/budget.h"

#include <fcntl.h>
#include <sys/stat.h>

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
		REAL_TEST(test_touch),
		REAL_TEST(test_renew),
		REAL_TEST(test_renew_base),
		REAL_TEST(test_huge_pages_are_counted),
		REAL_TEST(test_too_many_huge_pages),
		REAL_TEST(test_collapse),
		REAL_TEST(test_zero_methods),
		REAL_TEST(test_zero),
		REAL_TEST(test_control),
		REAL_TEST(test_budget),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
