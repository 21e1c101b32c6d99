/* SPDX-License-Identifier: MIT */
/*
 * Input into private memory after a fork: parent and child read at the same time, each something else, and find their
 * own bytes there and none of the other's.
 */
#include "real.h"

#include <fcntl.h>
#include <sys/socket.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

#define PAGES 8
#define HALF (PAGES / 2)
#define POOL 16
#define ROUNDS 6
#define ALIGN 4096 /* of what O_DIRECT is asked for */
#define LENGTH_MAX ((size_t)1 << 20)

static struct step {
	_Atomic int here; /* processes that have come this far */
} * together;

static char source_name[64];
static char *memory;

/* Both have come this far. */
static void meet(int which)
{
	atomic_fetch_add(&together[which].here, 1);
	await(&together[which].here, 2);
}

/* ---- where bytes come from -------------------------------------------------------------------------------------- */

/* One way to read: `length` bytes come to `to` from a file of which every byte is one. False: it cannot be done here. */
struct way {
	const char *name;
	bool (*read)(int fd, char *to, size_t length);
	bool direct; /* the file is open with O_DIRECT */
};

static bool by_read(int fd, char *to, size_t length)
{
	for (size_t got = 0; got < length;) {
		ssize_t n = read(fd, to + got, length - got);

		EXPECT(n > 0);
		got += (size_t)n;
	}
	return true;
}

static bool by_pread(int fd, char *to, size_t length)
{
	for (size_t got = 0; got < length;) {
		ssize_t n = pread(fd, to + got, length - got, (off_t)got);

		EXPECT(n > 0);
		got += (size_t)n;
	}
	return true;
}

struct sender {
	int fd, socket;
	size_t length;
};

static void *send_all(void *context)
{
	const struct sender *sender = context;
	static char bytes[4096];

	EXPECT_EQ(pread(sender->fd, bytes, sizeof(bytes), 0), sizeof(bytes));
	for (size_t sent = 0; sent < sender->length;) {
		size_t left = sender->length - sent;
		ssize_t n = send(sender->socket, bytes, left < sizeof(bytes) ? left : sizeof(bytes), MSG_NOSIGNAL);

		if (n < 0 && errno == EPIPE) /* nobody can take it */
			break;
		EXPECT(n > 0);
		sent += (size_t)n;
	}
	return NULL;
}

static bool receive(int fd, char *to, size_t length, bool (*all)(int socket, char *to, size_t length))
{
	struct sender sender = {.fd = fd, .length = length};
	pthread_t thread;
	int ends[2];
	bool done;

	EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	sender.socket = ends[1];
	thread = start_thread(send_all, &sender);
	done = all(ends[0], to, length);
	close(ends[0]);
	join_thread(thread);
	close(ends[1]);
	return done;
}

static bool recv_all(int socket, char *to, size_t length)
{
	EXPECT_EQ(recv(socket, to, length, MSG_WAITALL), length);
	return true;
}

static bool by_recv(int fd, char *to, size_t length)
{
	return receive(fd, to, length, recv_all);
}

/* ---- io_uring --------------------------------------------------------------------------------------------------- */

#ifdef HAVE_LIBURING
static bool ring_init(struct io_uring *ring)
{
	int result = io_uring_queue_init(4, ring, 0);

	EXPECT(!result || result == -ENOSYS || result == -EPERM || result == -EACCES || result == -ENOMEM);
	return !result;
}

/* What is left of a request that came back short. */
static size_t ring_wait(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	int got;

	EXPECT_EQ(io_uring_submit(ring), 1);
	EXPECT_EQ(io_uring_wait_cqe(ring, &cqe), 0);
	got = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	EXPECT(got > 0);
	return (size_t)got;
}

static bool by_ring(int fd, char *to, size_t length)
{
	struct io_uring ring;

	if (!ring_init(&ring))
		return false;
	for (size_t got = 0; got < length;) {
		io_uring_prep_read(io_uring_get_sqe(&ring), fd, to + got, (unsigned)(length - got), got);
		got += ring_wait(&ring);
	}
	io_uring_queue_exit(&ring);
	return true;
}

static bool by_ring_fixed(int fd, char *to, size_t length)
{
	struct iovec buffer = {to, length};
	struct io_uring ring;
	int result;

	if (!ring_init(&ring))
		return false;
	result = io_uring_register_buffers(&ring, &buffer, 1);
	EXPECT(!result || result == -ENOMEM || result == -EPERM); /* RLIMIT_MEMLOCK counts whole huge pages */
	for (size_t got = 0; !result && got < length;) {
		io_uring_prep_read_fixed(io_uring_get_sqe(&ring), fd, to + got, (unsigned)(length - got), got, 0);
		got += ring_wait(&ring);
	}
	io_uring_queue_exit(&ring);
	return !result;
}

static bool ring_recv_all(int socket, char *to, size_t length)
{
	struct io_uring ring;

	if (!ring_init(&ring))
		return false;
	for (size_t got = 0; got < length;) {
		io_uring_prep_recv(io_uring_get_sqe(&ring), socket, to + got, length - got, MSG_WAITALL);
		got += ring_wait(&ring);
	}
	io_uring_queue_exit(&ring);
	return true;
}

#else /* the tests with these are skipped */
static bool by_ring(int fd, char *to, size_t length)
{
	return false;
}

static bool by_ring_fixed(int fd, char *to, size_t length)
{
	return false;
}

static bool ring_recv_all(int socket, char *to, size_t length)
{
	return false;
}
#endif

static bool by_ring_recv(int fd, char *to, size_t length)
{
	return receive(fd, to, length, ring_recv_all);
}

/* ---- both processes --------------------------------------------------------------------------------------------- */

/* A file of which all bytes are one. -1: the file system has no O_DIRECT. */
static int make_source(char byte, bool direct)
{
	char bytes[ALIGN], name[96];
	int fd;

	snprintf(name, sizeof(name), "%s-%d", source_name, getpid());
	fd = open(name, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
	EXPECT(fd >= 0);
	memset(bytes, byte, sizeof(bytes));
	for (size_t i = 0; i < LENGTH_MAX / ALIGN; i++)
		EXPECT_EQ(write(fd, bytes, ALIGN), ALIGN);
	EXPECT_EQ(lseek(fd, 0, SEEK_SET), 0);
	if (direct) {
		EXPECT_EQ(fsync(fd), 0);
		close(fd);
		fd = open(name, O_RDWR | O_DIRECT | O_CLOEXEC);
		EXPECT(fd >= 0 || errno == EINVAL);
	}
	unlink(name);
	return fd;
}

static bool is_all(const char *bytes, char byte, size_t length)
{
	return bytes[0] == byte && memcmp(bytes, bytes + 1, length - 1) == 0;
}

struct task {
	const struct way *way;
	size_t offset, length;    /* in the memory */
	_Atomic bool *impossible; /* shared by the processes */
};

/* The bytes around what is read stay what they were. */
static void expect_own(const struct task *task, char byte)
{
	const char *to = memory + task->offset, *page_end = memory + HALF * FRAME;

	EXPECT(is_all(to, byte, task->length));
	EXPECT(to[-1] == 0 || to[-1] == 'a');
	EXPECT(to[task->length] == (to + task->length >= page_end ? 0 : 'a'));
}

/* The pages of the first half had been written before the fork. */
static void read_own(const struct task *task, char byte)
{
	int fd = make_source(byte, task->way->direct);

	meet(0);
	if (fd < 0 || !task->way->read(fd, memory + task->offset, task->length))
		atomic_store(task->impossible, true);
	else
		expect_own(task, byte);
	meet(1);
	if (!atomic_load(task->impossible))
		expect_own(task, byte); /* after the other one has done the same */
	meet(2);
	if (fd >= 0)
		close(fd);
}

static void child_reads(void *context)
{
	read_own(context, 'c');
	unmap(memory, PAGES);
	check_pool();
}

/* Anywhere, but often over the ends of pages, and of what had been written. */
static void choose_place(struct task *task, unsigned *seed)
{
	unsigned units = LENGTH_MAX / ALIGN;
	size_t middle;

	task->length = ALIGN * (1 + (size_t)rand_r(seed) % units);
	middle = (1 + (size_t)rand_r(seed) % (PAGES - 1)) * FRAME;
	task->offset = middle - (size_t)rand_r(seed) % (task->length / ALIGN + 1) * ALIGN;
	if (!task->way->direct) {
		task->offset += (size_t)rand_r(seed) % 100;
		task->length -= (size_t)rand_r(seed) % 100;
	}
}

static bool read_once(const struct way *way, unsigned flags, unsigned *seed)
{
	struct task task = {.way = way};
	bool possible;
	void *address;
	pid_t pid;

	together = make_shared(4096);
	task.impossible = (_Atomic bool *)(together + 16);
	choose_place(&task, seed);
	EXPECT_OK(hp_map_private(pool, PAGES * FRAME, RW, flags, &address, &error));
	memory = address;
	memset(memory, 'a', HALF * FRAME);
	pid = start_child(child_reads, &task);
	if (flags & HP_FORK_COPY) /* nothing is frozen here */
		EXPECT_EQ(hp_populate(memory, PAGES * FRAME), 0);
	read_own(&task, 'p');
	join_child(pid);
	possible = !atomic_load(task.impossible);
	if (possible)
		expect_own(&task, 'p');
	unmap(memory, PAGES);
	munmap(together, 4096);
	return possible;
}

static void read_by(const struct way *way)
{
	static const unsigned flags[] = {0, HP_MAP_LAZY, HP_FORK_COPY, HP_FORK_COPY | HP_MAP_LAZY};
	const char *asked = getenv("HP_TEST_SEED");
	unsigned seed = asked ? (unsigned)strtoul(asked, NULL, 0) : (unsigned)time(NULL);
	bool possible = true;

	fprintf(stderr, "HP_TEST_SEED=%u\n", seed);
	snprintf(source_name, sizeof(source_name), "%s/hugepool-test-%d", P_tmpdir, getpid());
	make_pool(POOL, "fault_mutexes=1");
	if (stats_now().hugetlb && huge_pages_available() < 2 * PAGES) {
		hp_pool_close(pool);
		skip_test("the kernel has huge pages for the pool, and too few for copies");
	}
	for (int round = 0; round < ROUNDS * 4 && possible; round++)
		possible = read_once(way, flags[round % 4], &seed);
	end_pool();
	if (!possible)
		skip_test(way->direct ? "no O_DIRECT on this file system, or what io_uring needs is not to be had"
		                      : "io_uring, or as much locked memory as it needs, is not to be had");
}

static void test_read(void)
{
	read_by(&(struct way){"read", by_read, false});
}

static void test_pread(void)
{
	read_by(&(struct way){"pread", by_pread, false});
}

static void test_recv(void)
{
	read_by(&(struct way){"recv", by_recv, false});
}

static void test_direct(void)
{
	read_by(&(struct way){"O_DIRECT", by_pread, true});
}

static void test_ring_read(void)
{
	read_by(&(struct way){"io_uring", by_ring, false});
}

static void test_ring_direct(void)
{
	read_by(&(struct way){"io_uring, O_DIRECT", by_ring, true});
}

static void test_ring_fixed(void)
{
	read_by(&(struct way){"io_uring, registered", by_ring_fixed, false});
}

static void test_ring_fixed_direct(void)
{
	read_by(&(struct way){"io_uring, registered, O_DIRECT", by_ring_fixed, true});
}

static void test_ring_recv(void)
{
	read_by(&(struct way){"io_uring, recv", by_ring_recv, false});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_read),       REAL_TEST(test_pread),
		REAL_TEST(test_recv),       REAL_TEST(test_direct),
		REAL_TEST(test_ring_read),  REAL_TEST(test_ring_direct),
		REAL_TEST(test_ring_fixed), REAL_TEST(test_ring_fixed_direct),
		REAL_TEST(test_ring_recv),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
