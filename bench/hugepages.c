/* SPDX-License-Identifier: MIT */
#include "hugepages.h"

#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NR_HUGEPAGES "/proc/sys/vm/nr_hugepages"
#define SYS_POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static bool read_number(const char *path, uint64_t *number)
{
	char text[32];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	if (fd < 0)
		return false;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (got <= 0)
		return false;
	text[got] = 0;
	*number = strtoull(text, NULL, 10);
	return true;
}

static bool write_number(const char *path, uint64_t number)
{
	char text[32];
	int length = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)number);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool done;

	if (fd < 0)
		return false;
	done = write(fd, text, (size_t)length) == length;
	close(fd);
	return done;
}

static bool is_set(const char *variable)
{
	const char *value = getenv(variable);

	return value && !strcmp(value, "1");
}

/* Pages of the pool that nobody has taken and nobody was promised. */
static bool read_available(uint64_t *available)
{
	uint64_t unused, promised;

	if (!read_number(SYS_POOL "free_hugepages", &unused) || !read_number(SYS_POOL "resv_hugepages", &promised))
		return false;
	*available = unused > promised ? unused - promised : 0;
	return true;
}

uint64_t bench_memory_available(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return (uint64_t)kib << 10;
}

/*
 * Opening with O_CREAT a file that exists and belongs to someone else fails in a sticky folder (fs.protected_regular),
 * so that the lock is created only when it is not there.
 */
static int open_lock(void)
{
	static const char *const paths[] = {"/run/lock/hugepool-hugepages.lock", "/tmp/hugepool-hugepages.lock"};

	for (unsigned i = 0; i < 2; i++) {
		int fd = open(paths[i], O_RDONLY | O_CLOEXEC);

		if (fd < 0 && errno == ENOENT)
			fd = open(paths[i], O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
		if (fd >= 0)
			return fd;
	}
	return -1;
}

/* Returns the locked descriptor, -1 if no lock is to be taken or can be, -EINTR. */
static int take_lock(void)
{
	bool told = false;
	int fd;

	if (is_set("HUGEPOOL_PAGES_LOCKED"))
		return -1;
	fd = open_lock();
	if (fd < 0)
		return -1;
	while (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
		if (!told)
			fprintf(stderr,
			        "hugepool: waiting for another user of the kernel's huge pages, who has locked %s\n",
			        "hugepool-hugepages.lock in /run/lock or /tmp");
		told = true;
		bench_sleep_ms(100);
		if (bench_interrupted()) {
			close(fd);
			return -EINTR;
		}
	}
	return fd;
}

/*
 * The keeper. It takes away what was added, which arrives by the pipe, rather than writing the old number: others may
 * have changed it since. A bench that died before it could tell leaves the old number to be written.
 */
static _Noreturn void keep(int pipe_fd, int lock, uint64_t before)
{
	uint64_t now, added = UINT64_MAX, message;
	ssize_t got;
	int null = open("/dev/null", O_RDWR);

	setsid();
	prctl(PR_SET_NAME, "hugepool-keeper");
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	while ((got = read(pipe_fd, &message, sizeof(message))) != 0)
		if (got == sizeof(message))
			added = message;
	if (added && read_number(NR_HUGEPAGES, &now) && now > before)
		write_number(NR_HUGEPAGES, now - before > added ? now - added : before);
	if (lock >= 0)
		close(lock);
	_exit(0);
}

static int start_keeper(struct bench_pages *pages, int lock)
{
	int ends[2];
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid < 0) {
		close(ends[0]);
		close(ends[1]);
		return -errno;
	}
	if (!pid) {
		close(ends[1]);
		keep(ends[0], lock, pages->before);
	}
	close(ends[0]);
	pages->hold = ends[1];
	pages->keeper = pid;
	return 0;
}

static bool may_add(void)
{
	return !access(NR_HUGEPAGES, W_OK) && !is_set("HUGEPOOL_PAGES_NONE");
}

uint64_t bench_pages_missing(uint64_t bytes)
{
	uint64_t need = (bytes + BENCH_FRAME - 1) / BENCH_FRAME, available;

	if (!may_add() || !read_available(&available) || available >= need)
		return 0;
	return (need - available) * BENCH_FRAME;
}

int bench_pages_acquire(struct bench_pages *pages, uint64_t bytes)
{
	uint64_t need = (bytes + BENCH_FRAME - 1) / BENCH_FRAME, available = 0, added, now, room;
	int lock = -1, rc = 0;

	memset(pages, 0, sizeof(*pages));
	pages->hold = -1;
	if (!read_number(NR_HUGEPAGES, &pages->before) || !read_available(&available)) {
		snprintf(pages->why, sizeof(pages->why), "this kernel has no pool of 2 MiB pages");
		return 0;
	}
	pages->during = pages->before;
	if (!may_add()) {
		if (available < need)
			snprintf(pages->why, sizeof(pages->why),
			         "%llu huge pages of %llu are free in the kernel's pool, and none may be added",
			         (unsigned long long)available, (unsigned long long)need);
		return 0;
	}

	lock = take_lock();
	if (lock == -EINTR)
		return -EINTR;
	read_number(NR_HUGEPAGES, &pages->before);
	read_available(&available);
	room = bench_memory_available();
	room = room > BENCH_GIB ? (room - BENCH_GIB) / BENCH_FRAME : 0; /* some memory is left to everybody else */
	if (available < need || lock >= 0)
		rc = start_keeper(pages, lock);
	if (lock >= 0)
		close(lock);
	if (rc)
		return rc;
	/*
	 * More than once: what was free may have been the surplus of somebody who is just leaving, and memory may be
	 * there in smaller pieces only.
	 */
	for (int attempt = 0; attempt < 4 && available < need && !bench_interrupted(); attempt++) {
		if (attempt)
			write_number("/proc/sys/vm/compact_memory", 1);
		read_number(NR_HUGEPAGES, &now);
		added = now - pages->before + need - available;
		if (!write_number(NR_HUGEPAGES, pages->before + (added < room ? added : room)))
			snprintf(pages->why, sizeof(pages->why), "%s: %s", NR_HUGEPAGES, strerror(errno));
		read_available(&available);
	}
	read_number(NR_HUGEPAGES, &pages->during);
	if (pages->hold >= 0) {
		added = pages->during - pages->before;
		if (write(pages->hold, &added, sizeof(added)) != sizeof(added))
			return -EPIPE;
	}
	if (available < need && !pages->why[0])
		snprintf(pages->why, sizeof(pages->why), "the kernel made only %llu huge pages of %llu available",
		         (unsigned long long)available, (unsigned long long)need);
	return 0;
}

void bench_pages_forget(struct bench_pages *pages)
{
	if (pages->hold >= 0)
		close(pages->hold);
	pages->hold = -1;
	pages->keeper = 0;
}

void bench_pages_release(struct bench_pages *pages)
{
	pid_t keeper = pages->keeper;

	bench_pages_forget(pages);
	if (keeper)
		while (waitpid(keeper, NULL, 0) < 0 && errno == EINTR)
			;
}
