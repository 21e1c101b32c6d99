/* SPDX-License-Identifier: MIT */
/*
 * Zeroing with stores that go past the caches: the memory is for somebody else, later. Non-temporal stores skip the
 * read for ownership and leave the caches to those who work. Chosen by the processor once, before the first call.
 */
#include "os/cpu.h"
#include "os/os.h"

#include <string.h>

static void zero_portable(void *address, size_t length)
{
	memset(address, 0, length);
}

#if defined(__x86_64__)
#include <immintrin.h>

static void zero_sse2(void *address, size_t length)
{
	char *p = address, *end = p + length;

	for (; p < end; p += 64) {
		_mm_stream_si128((__m128i *)(void *)p, _mm_setzero_si128());
		_mm_stream_si128((__m128i *)(void *)(p + 16), _mm_setzero_si128());
		_mm_stream_si128((__m128i *)(void *)(p + 32), _mm_setzero_si128());
		_mm_stream_si128((__m128i *)(void *)(p + 48), _mm_setzero_si128());
	}
	_mm_sfence();
}

__attribute__((target("avx2"))) static void zero_avx2(void *address, size_t length)
{
	char *p = address, *end = p + length;

	for (; p < end; p += 64) {
		_mm256_stream_si256((__m256i *)(void *)p, _mm256_setzero_si256());
		_mm256_stream_si256((__m256i *)(void *)(p + 32), _mm256_setzero_si256());
	}
	_mm_sfence();
	_mm256_zeroupper();
}

__attribute__((target("avx512f"))) static void zero_avx512(void *address, size_t length)
{
	char *p = address, *end = p + length;

	for (; p < end; p += 64)
		_mm512_stream_si512((__m512i *)(void *)p, _mm512_setzero_si512());
	_mm_sfence();
	_mm256_zeroupper();
}
#endif

const struct hp_zero_method hp_zero_methods[] = {
#if defined(__x86_64__)
	{"avx512", zero_avx512, hp_cpu_has_avx512},
	{"avx2", zero_avx2, hp_cpu_has_avx2},
	{"sse2", zero_sse2, hp_cpu_any},
#endif
	{"portable", zero_portable, hp_cpu_any},
	{NULL, NULL, NULL},
};

const struct hp_zero_method *hp_zero_method_best(void)
{
	const struct hp_zero_method *method = hp_zero_methods;

	while (!method->usable())
		method++;
	return method;
}

/* Set by a constructor, so that the fault path never has to look. */
static void (*best_zero)(void *address, size_t length) = zero_portable;

__attribute__((constructor)) static void choose(void)
{
	best_zero = hp_zero_method_best()->zero;
}

void hp_zero_stream(void *address, size_t length)
{
	best_zero(address, length);
}
