/* SPDX-License-Identifier: MIT */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PLACES 64     /* sampled in a page */
#define PLACE_WORDS 8 /* 64 bits each */
#define WHOLE_PAGES 4 /* looked through entirely */

int bench_memfd(uint64_t size)
{
	int fd = memfd_create("hugepool-bench", MFD_CLOEXEC | MFD_HUGETLB | MFD_HUGE_2MB);

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size)) {
		int rc = -errno;

		close(fd);
		return rc;
	}
	return fd;
}

void *bench_reserve(uint64_t size)
{
	uint64_t align = size >= BENCH_GIB ? BENCH_GIB : BENCH_FRAME, head;
	char *p = mmap(NULL, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	head = -(uintptr_t)p & (align - 1);
	if (head)
		munmap(p, head);
	munmap(p + head + size, align - head);
	return p + head;
}

/* ---- Threads ---------------------------------------------------------------------------------------------------- */

unsigned bench_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

void bench_pin(unsigned index, unsigned threads)
{
	cpu_set_t all, one;

	if (sched_getaffinity(0, sizeof(all), &all) || threads > (unsigned)CPU_COUNT(&all))
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all) || index--)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

struct share {
	char *address;
	uint64_t length;
	int (*work)(char *address, uint64_t length);
	int rc;
};

static void *do_share(void *arg)
{
	struct share *share = arg;

	share->rc = share->length ? share->work(share->address, share->length) : 0;
	return NULL;
}

int bench_in_parallel(unsigned threads, char *address, uint64_t length, int (*work)(char *address, uint64_t length))
{
	struct share share[64];
	pthread_t thread[64];
	uint64_t frames = length / BENCH_FRAME;
	unsigned started;
	int rc = 0;

	threads = threads > 64 ? 64 : threads;
	for (started = 0; started < threads; started++) {
		uint64_t from = frames * started / threads, to = frames * (started + 1) / threads;

		share[started] = (struct share){address + from * BENCH_FRAME, (to - from) * BENCH_FRAME, work, 0};
		if (pthread_create(&thread[started], NULL, do_share, &share[started])) {
			rc = -EAGAIN;
			break;
		}
	}
	while (started--) {
		pthread_join(thread[started], NULL);
		rc = rc ? rc : share[started].rc;
	}
	return rc;
}

int bench_populate(char *address, uint64_t length)
{
	if (!madvise(address, length, MADV_POPULATE_WRITE))
		return 0;
	if (errno != EINVAL)
		return -errno;
	for (uint64_t offset = 0; offset < length; offset += BENCH_FRAME)
		*(volatile char *)(address + offset) = 0;
	return 0;
}

int bench_clear(char *address, uint64_t length)
{
	bench_stream_zero(address, length);
	return 0;
}

char *bench_huge_memory(uint64_t size)
{
	int fd = bench_memfd(size);
	char *p = MAP_FAILED;

	if (fd >= 0) {
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	if (p != MAP_FAILED && !bench_populate(p, size))
		return p;
	if (p != MAP_FAILED)
		munmap(p, size);
	p = bench_reserve(size);
	if (!p || mprotect(p, size, PROT_READ | PROT_WRITE))
		return NULL;
	madvise(p, size, MADV_HUGEPAGE);
	return bench_populate(p, size) ? NULL : p;
}

/* ---- Is it huge? ------------------------------------------------------------------------------------------------ */

bool bench_is_huge(const char *address, uint64_t length, char why[BENCH_WHY])
{
	uintptr_t from = (uintptr_t)address, to = from + length, start = 0, end = 0;
	uint64_t kib, rss = 0, by_huge = 0, small = 0;
	bool inside = false, accessible = false, kernel_pool = false, any = false;
	char line[512], perms[8];
	FILE *f = fopen("/proc/self/smaps", "re");

	if (!f) {
		snprintf(why, BENCH_WHY, "/proc/self/smaps: %s", strerror(errno));
		return false;
	}
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &start, &end, perms) == 3) {
			inside = start < to && end > from;
			accessible = perms[0] == 'r';
			rss = by_huge = 0;
			if (start >= to)
				break;
			continue;
		}
		if (!inside || !accessible)
			continue;
		if (sscanf(line, "KernelPageSize: %" SCNu64 " kB", &kib) == 1)
			kernel_pool = kib >= 2048;
		else if (sscanf(line, "Rss: %" SCNu64 " kB", &kib) == 1)
			rss = kib;
		else if (sscanf(line, "ShmemPmdMapped: %" SCNu64 " kB", &kib) == 1 ||
		         sscanf(line, "AnonHugePages: %" SCNu64 " kB", &kib) == 1)
			by_huge += kib;
		else if (!strncmp(line, "VmFlags:", 8)) { /* the last of a mapping */
			small += kernel_pool || rss < by_huge ? 0 : rss - by_huge;
			any |= kernel_pool || rss;
		}
	}
	fclose(f);
	if (small || !any) {
		snprintf(why, BENCH_WHY, "not huge pages: %" PRIu64 " KiB of %" PRIu64 " are mapped by base pages",
		         any ? small : length >> 10, length >> 10);
		return false;
	}
	return true;
}

/* ---- Was it zero? ----------------------------------------------------------------------------------------------- */

/* Where the places are: 64 bytes into each 32 KiB, where no touch can be, a touch being at a multiple of 1 KiB. */
static uint64_t *place(char *frame, unsigned index)
{
	return (uint64_t *)__builtin_assume_aligned(frame + index * (BENCH_FRAME / PLACES) + 64, 64);
}

static bool frame_was_touched(uint64_t frame, uint64_t skip)
{
	return frame * BENCH_FRAME % skip == 0 || skip - frame * BENCH_FRAME % skip < BENCH_FRAME;
}

static bool whole_frame_was_zero(const char *address, uint64_t frame, uint64_t skip)
{
	const char *page = address + frame * BENCH_FRAME;

	for (uint64_t i = 0; i < BENCH_FRAME; i += 8) {
		uint64_t word;

		memcpy(&word, page + i, sizeof(word));
		if (word && !(word == 1 && (frame * BENCH_FRAME + i) % skip == 0))
			return false;
	}
	return true;
}

bool bench_was_zero(char *address, uint64_t length, uint64_t skip, char why[BENCH_WHY])
{
	uint64_t frames = length / BENCH_FRAME, bad = 0, seen = 0, whole = frames / WHOLE_PAGES + 1;

	for (uint64_t frame = 0; frame < frames; frame++) {
		uint64_t found = 0;

		if (!frame_was_touched(frame, skip))
			continue;
		seen++;
		for (unsigned i = 0; i < PLACES; i++)
			for (unsigned w = 0; w < PLACE_WORDS; w++)
				found |= place(address + frame * BENCH_FRAME, i)[w];
		if (frame % whole == 0)
			found |= !whole_frame_was_zero(address, frame, skip);
		bad += found != 0;
	}
	if (bad)
		snprintf(why, BENCH_WHY, "not zero: %" PRIu64 " pages of %" PRIu64 " had bytes of their last owner",
		         bad, seen);
	return !bad;
}

void bench_soil(char *address, uint64_t length, uint64_t skip)
{
	for (uint64_t frame = 0; frame < length / BENCH_FRAME; frame++)
		if (frame_was_touched(frame, skip))
			for (unsigned i = 0; i < PLACES; i++)
				memset(place(address + frame * BENCH_FRAME, i), 0xa5, PLACE_WORDS * 8);
}

/* ---- The bare loop ---------------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void stream_avx512(char *p, const char *end)
{
	__m512i zero = _mm512_setzero_si512();

	for (; p < end; p += 256) {
		_mm512_stream_si512((void *)p, zero);
		_mm512_stream_si512((void *)(p + 64), zero);
		_mm512_stream_si512((void *)(p + 128), zero);
		_mm512_stream_si512((void *)(p + 192), zero);
	}
}

__attribute__((target("avx2"))) static void stream_avx2(char *p, const char *end)
{
	__m256i zero = _mm256_setzero_si256();

	for (; p < end; p += 128) {
		_mm256_stream_si256((void *)p, zero);
		_mm256_stream_si256((void *)(p + 32), zero);
		_mm256_stream_si256((void *)(p + 64), zero);
		_mm256_stream_si256((void *)(p + 96), zero);
	}
}

static void stream_sse2(char *p, const char *end)
{
	__m128i zero = _mm_setzero_si128();

	for (; p < end; p += 64) {
		_mm_stream_si128((void *)p, zero);
		_mm_stream_si128((void *)(p + 16), zero);
		_mm_stream_si128((void *)(p + 32), zero);
		_mm_stream_si128((void *)(p + 48), zero);
	}
}

void bench_stream_zero(void *address, uint64_t length)
{
	char *p = address;

	if (__builtin_cpu_supports("avx512f"))
		stream_avx512(p, p + length);
	else if (__builtin_cpu_supports("avx2"))
		stream_avx2(p, p + length);
	else
		stream_sse2(p, p + length);
	_mm_sfence();
}

const char *bench_stream_name(void)
{
	return __builtin_cpu_supports("avx512f") ? "avx512" : __builtin_cpu_supports("avx2") ? "avx2" : "sse2";
}
#else
void bench_stream_zero(void *address, uint64_t length)
{
	memset(address, 0, length);
}

const char *bench_stream_name(void)
{
	return "memset";
}
#endif
