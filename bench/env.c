/* SPDX-License-Identifier: MIT */
#include "env.h"

#include "memory.h"

#include "hugepool.h"
#include "os/probe.h"

#include <string.h>
#include <sys/utsname.h>

#if defined(__SANITIZE_ADDRESS__)
#define BUILD_SANITIZER ", address sanitizer"
#elif defined(__SANITIZE_THREAD__)
#define BUILD_SANITIZER ", thread sanitizer"
#else
#define BUILD_SANITIZER ""
#endif

#if defined(__OPTIMIZE__)
#define BUILD_OPTIMIZED ", optimised"
#else
#define BUILD_OPTIMIZED ", not optimised"
#endif

#if defined(__clang__)
#define BUILD_COMPILER "clang " __clang_version__
#else
#define BUILD_COMPILER "gcc " __VERSION__
#endif

json_t *bench_env(const struct bench_pages *pages)
{
	static struct hp_probe probe;
	struct utsname uts;

	hp_probe_read(&probe);
	uname(&uts);
	return json_pack("{s:s,s:s,s:s,s:i,s:I,s:s,s:s,s:{s:I,s:I,s:s},s:{s:s,s:s},s:b,s:s}", "machine", uts.machine,
	                 "cpu", probe.cpu, "kernel", probe.kernel, "cpus", probe.cpus, "memory_bytes",
	                 (json_int_t)probe.memory_bytes, "build",
	                 "hugepool " HP_VERSION_STRING ", " BUILD_COMPILER BUILD_OPTIMIZED BUILD_SANITIZER, "zeroing",
	                 probe.zero_method, "nr_hugepages", "before", (json_int_t)pages->before, "during",
	                 (json_int_t)pages->during, "why_not_more", pages->why, "thp", "enabled", probe.thp_enabled,
	                 "shmem", probe.thp_shmem, "page_table_sharing", probe.table_sharing, "page_table_sharing_why",
	                 probe.table_sharing_why);
}

static const char *text(const json_t *object, const char *key)
{
	const char *value = json_string_value(json_object_get(object, key));

	return value ? value : "";
}

static double number(const json_t *object, const char *key)
{
	return json_number_value(json_object_get(object, key));
}

void bench_env_print(const json_t *env, FILE *out)
{
	const json_t *pages = json_object_get(env, "nr_hugepages"), *thp = json_object_get(env, "thp");
	bool sharing = json_is_true(json_object_get(env, "page_table_sharing"));

	fprintf(out, "machine   %s, %s, %.0f CPUs, %.1f GiB\n", text(env, "cpu"), text(env, "machine"),
	        number(env, "cpus"), number(env, "memory_bytes") / (double)BENCH_GIB);
	fprintf(out, "kernel    %s, page tables %s%s\n", text(env, "kernel"),
	        sharing ? "can be shared" : "not shared: ", sharing ? "" : text(env, "page_table_sharing_why"));
	fprintf(out, "memory    nr_hugepages %.0f", number(pages, "before"));
	if (number(pages, "during") != number(pages, "before"))
		fprintf(out, ", %.0f meanwhile", number(pages, "during"));
	fprintf(out, "%s%s; transparent huge pages: %s, shared memory %s\n", *text(pages, "why_not_more") ? ": " : "",
	        text(pages, "why_not_more"), text(thp, "enabled"), text(thp, "shmem"));
	fprintf(out, "build     %s; zeroes with %s\n", text(env, "build"), text(env, "zeroing"));
}
