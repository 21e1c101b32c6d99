/* SPDX-License-Identifier: MIT */
/*
 * The kernel's version, and what it says about the sharing of page tables.
 */
#include "os/probe_read.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

struct version {
	unsigned part[3]; /* 6.18.13 */
	bool candidate;   /* -rc: not yet that version */
};

/*
 * Page tables of shared huge pages have been shared between processes since Linux 2.6.20. In June 2025 a race of that
 * with lockless readers was fixed (mainline 6.16, stable 5.15.186, 6.15.4 and others) with a broadcast of interrupts
 * for each table that is unshared: a storm at fork and exit. The mend of that came with 6.19.
 *
 *   series                        shared     because
 *   up to 6.0, 6.2-6.5, 6.7-6.11  no         without race or storm is no release of them that we know of; those that
 *                                            distributions maintain got the storm in unnumbered updates
 *   6.1                           from .167  the mend
 *   6.6                           from .127
 *   6.12                          from .74
 *   6.13-6.17                     no         ended with the race (to 6.14) or with the storm
 *   6.18                          from .13
 *   6.19 and later                yes        the mend was in the release, not in all candidates
 *
 * On arm64 the mend itself left stale entries in the processors' walk caches, which is worse than slow. Mainline 7.1
 * is the first release without: nothing older is trusted there, as it did not apply to the stable series as it was.
 *
 * Vendor kernels that count their own patches (6.12.0-124) are judged by the number they show: no. A wrong no costs
 * page faults; a wrong yes costs a machine that stops answering.
 */
static const unsigned mended_series[][3] = {{6, 1, 167}, {6, 6, 127}, {6, 12, 74}, {6, 18, 13}};
static const unsigned mended_mainline[3] = {6, 19, 0};
static const unsigned mended_arm64[3] = {7, 1, 0};

static bool parse_version(const char *text, struct version *version)
{
	*version = (struct version){.part = {0}};
	for (int i = 0; i < 3; i++) {
		char *end;
		if (!isdigit((unsigned char)*text))
			return false;
		version->part[i] = (unsigned)strtoul(text, &end, 10);
		text = end;
		if (*text != '.')
			/* "6.19-rc1" and "7.0" have no third part; one part alone is no version. */
			break;
		text++;
	}
	version->candidate = strncmp(text, "-rc", 3) == 0;
	return version->part[0] > 0 && (version->part[0] < 1000);
}

static bool at_least(const struct version *version, const unsigned wanted[3])
{
	for (int i = 0; i < 3; i++)
		if (version->part[i] != wanted[i])
			return version->part[i] > wanted[i];
	return !version->candidate;
}

bool hp_probe_table_sharing_on(const char *machine, const char *release, char *why, unsigned why_size)
{
	bool arm64 = strcmp(machine, "aarch64") == 0;
	const char *fixed_in = "6.19";
	char fixed_text[32];
	struct version version;

	if (why_size)
		why[0] = '\0';
	if (!arm64 && strcmp(machine, "x86_64") != 0) {
		snprintf(why, why_size, "hugepool does not rely on shared page tables on %s", machine);
		return false;
	}
	if (!parse_version(release, &version)) {
		snprintf(why, why_size, "the kernel's version \"%s\" cannot be read", release);
		return false;
	}
	if (arm64) {
		if (at_least(&version, mended_arm64))
			return true;
		snprintf(why, why_size,
		         "Linux %s may leave stale entries in arm64 walk caches when shared tables are torn down; "
		         "Linux 7.1 does not",
		         release);
		return false;
	}
	if (at_least(&version, mended_mainline))
		return true;
	for (size_t i = 0; i < sizeof(mended_series) / sizeof(mended_series[0]); i++) {
		const unsigned *mended = mended_series[i];
		if (version.part[0] != mended[0] || version.part[1] != mended[1])
			continue;
		if (at_least(&version, mended))
			return true;
		snprintf(fixed_text, sizeof(fixed_text), "%u.%u.%u", mended[0], mended[1], mended[2]);
		fixed_in = fixed_text;
	}
	snprintf(why, why_size,
	         "Linux %s tears shared tables down with a race, or with a storm of interrupts at fork and exit; Linux "
	         "%s does neither",
	         release, fixed_in);
	return false;
}

/*
 * Distributions number their kernels themselves (Debian's 6.1.0-40 is 6.1.153), and say elsewhere what they are built
 * from: Ubuntu in a file of its own, Debian behind the build number, where the compiler's version cannot be meant.
 */
static void find_upstream(const char *root, const char *version_line, const char *release, char *upstream, size_t size)
{
	char line[HP_PROBE_TEXT];
	struct version parsed;
	const char *found = NULL;

	if (hp_read_line(root, "/proc/version_signature", line, sizeof(line)) == 0) {
		found = strrchr(line, ' ');
		if (found)
			found++;
	} else {
		found = strstr(version_line, " #");
		found = found ? strstr(found, " Debian ") : NULL;
		if (found)
			found += strlen(" Debian ");
	}
	if (!found || !parse_version(found, &parsed)) {
		hp_read_copy(upstream, size, release);
		return;
	}
	hp_read_copy(upstream, size, found);
	/* What follows the numbers is the distribution's: "-1 (2025-09-20)", "~bpo12+1", but "-rc" is not. */
	size_t numbers = strspn(upstream, "0123456789.");
	if (!parsed.candidate)
		upstream[numbers] = '\0';
}

void hp_probe_read_kernel(struct hp_probe *probe, const char *root)
{
	char line[1024] = "";
	struct utsname name;

	if (uname(&name) == 0) {
		hp_read_copy(probe->machine, sizeof(probe->machine), name.machine);
		hp_read_copy(probe->kernel, sizeof(probe->kernel), name.release);
	}
	/* The kernel's own word: a personality (setarch --uname-2.6) changes what uname says. */
	if (hp_read_line(root, "/proc/version", line, sizeof(line)) == 0 && strncmp(line, "Linux version ", 14) == 0) {
		hp_read_copy(probe->kernel, sizeof(probe->kernel), line + 14);
		probe->kernel[strcspn(probe->kernel, " ")] = '\0';
	}
	find_upstream(root, line, probe->kernel, probe->kernel_upstream, sizeof(probe->kernel_upstream));
	probe->table_sharing = hp_probe_table_sharing_on(probe->machine, probe->kernel_upstream,
	                                                 probe->table_sharing_why, sizeof(probe->table_sharing_why));
}

bool hp_probe_table_sharing(const char *release, char *why, unsigned why_size)
{
	struct hp_probe probe = {.table_sharing = false};

	hp_probe_read_kernel(&probe, "");
	return hp_probe_table_sharing_on(probe.machine, release ? release : probe.kernel_upstream, why, why_size);
}
