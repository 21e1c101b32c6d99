/* SPDX-License-Identifier: MIT */
#include "cli/cli.h"
#include "cli/findings.h"

#include "hugepool.h"
#include "os/probe.h"

#include <getopt.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Raised when a key of the JSON output goes away or changes its meaning; new keys do not raise it. */
#define JSON_VERSION 1

#define LINE_WIDTH 100
#define LABEL_WIDTH 26

/* ---- Table ----------------------------------------------------------------------------------------------------- */

static void section(const char *title)
{
	printf("\n%s\n", title);
}

static void row(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void row(const char *label, const char *format, ...)
{
	va_list arguments;

	printf("  %-*s", LABEL_WIDTH, label);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
}

static void row_bytes(const char *label, uint64_t bytes)
{
	char text[32];

	row(label, "%s", bytes ? hp_format_bytes(bytes, text, sizeof(text)) : "unknown");
}

static void row_limit(const char *label, const struct hp_probe_limit *limit)
{
	char text[32], used[32];

	if (limit->bytes < 0) {
		row(label, "none");
		return;
	}
	hp_format_bytes((uint64_t)limit->bytes, text, sizeof(text));
	if (limit->used_bytes < 0)
		row(label, "%s", text);
	else
		row(label, "%s, %s used", text, hp_format_bytes((uint64_t)limit->used_bytes, used, sizeof(used)));
}

static const char *known(const char *text)
{
	return text[0] ? text : "unknown";
}

/* Words of `text`, broken at LINE_WIDTH; lines after the first begin with `indent` blanks. */
static void print_wrapped(const char *text, int indent, int column)
{
	while (*text) {
		int length = (int)strcspn(text, " ");
		if (column > indent && column + 1 + length > LINE_WIDTH) {
			printf("\n%*s", indent, "");
			column = indent;
		} else if (column > indent) {
			putchar(' ');
			column++;
		}
		printf("%.*s", length, text);
		column += length;
		text += length;
		text += strspn(text, " ");
	}
	putchar('\n');
}

static void print_pools(const struct hp_probe *probe)
{
	section("The kernel's pools of huge pages");
	if (probe->pools == 0)
		puts("  none");
	else
		printf("  %-10s %10s %10s %10s %10s %10s\n", "page size", "pages", "free", "reserved", "surplus",
		       "overcommit");
	for (int i = 0; i < probe->pools; i++) {
		const struct hp_probe_pool *pool = &probe->pool[i];
		char size[32];
		printf("  %-10s %10llu %10llu %10llu %10llu %10llu\n",
		       hp_format_bytes(pool->page_bytes, size, sizeof(size)), (unsigned long long)pool->total,
		       (unsigned long long)pool->free, (unsigned long long)pool->reserved,
		       (unsigned long long)pool->surplus, (unsigned long long)pool->overcommit);
	}
	row("may be set from here", "%s", probe->may_set_pools ? "yes" : "no");
}

static void print_limits(const struct hp_probe *probe)
{
	const struct hp_probe_pool *pool = hp_probe_pool_of(probe, HP_FRAME_SIZE);
	char text[32];

	section("Limits of this process");
	row("control groups", "%s", known(probe->cgroup));
	if (pool) {
		row_limit("  2 MiB pages", &pool->cgroup);
		row_limit("  reservations of them", &pool->cgroup_rsvd);
	}
	row_limit("  memory", &probe->cgroup_memory);
	row("lockable memory", "%s",
	    probe->memlock_bytes < 0 ? "unlimited"
	                             : hp_format_bytes((uint64_t)probe->memlock_bytes, text, sizeof(text)));
	if (probe->max_map_count)
		row("mappings", "%llu", (unsigned long long)probe->max_map_count);
	else
		row("mappings", "unknown");
	row("userfaultfd", "%s", probe->userfaultfd ? "yes" : "no");
}

static void print_nodes(const struct hp_probe *probe)
{
	section("NUMA nodes");
	if (probe->nodes == 0) {
		puts("  unknown");
		return;
	}
	printf("  %-10s %12s %12s %14s %14s\n", "node", "memory", "free", "2 MiB pages", "of them free");
	for (int i = 0; i < probe->nodes; i++) {
		const struct hp_probe_node *node = &probe->node[i];
		char memory[32], free_memory[32];
		printf("  %-10d %12s %12s %14llu %14llu\n", node->id,
		       hp_format_bytes(node->memory_bytes, memory, sizeof(memory)),
		       hp_format_bytes(node->free_bytes, free_memory, sizeof(free_memory)),
		       (unsigned long long)node->huge_total, (unsigned long long)node->huge_free);
	}
}

static void print_findings(const struct hp_finding *findings, int count)
{
	section("What stands in the way");
	if (count == 0)
		puts("  nothing");
	for (int i = 0; i < count; i++) {
		int column = printf("  %d. %s:", i + 1, hp_severity_name(findings[i].severity));
		print_wrapped(findings[i].text, 5, column);
		if (findings[i].command[0])
			printf("         %s\n", findings[i].command);
	}
}

static void print_table(const struct hp_probe *probe, const struct hp_finding *findings, int count)
{
	printf("hugepool %s\n", HP_VERSION_STRING);
	section("Kernel and processor");
	row("kernel", "%s", known(probe->kernel));
	if (strcmp(probe->kernel, probe->kernel_upstream) != 0)
		row("  built from", "%s", probe->kernel_upstream);
	row("shared page tables", "%s", probe->table_sharing ? "yes" : "no");
	row("processor", "%s", known(probe->cpu[0] ? probe->cpu : probe->machine));
	row("usable CPUs", "%d", probe->cpus);
	row("zeroing", "%s", known(probe->zero_method));

	section("Memory");
	row_bytes("total", probe->memory_bytes);
	row_bytes("available", probe->available_bytes);

	print_pools(probe);

	section("Transparent huge pages");
	row("enabled", "%s", known(probe->thp_enabled));
	row("for shared memory", "%s", known(probe->thp_shmem));
	row("defragmentation", "%s", known(probe->thp_defrag));
	row("collapse of shared memory", "%s", probe->collapse_works ? "works" : "fails");

	print_limits(probe);
	print_nodes(probe);
	print_findings(findings, count);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

/* What is unknown or absent is null. Names from the kernel need not be UTF-8: then they are null too. */
static void set_text(json_t *object, const char *key, const char *text)
{
	json_t *value = text[0] ? json_string(text) : NULL;

	json_object_set_new(object, key, value ? value : json_null());
}

static void set_number(json_t *object, const char *key, uint64_t number)
{
	json_object_set_new(object, key, json_integer((json_int_t)number));
}

static void set_known(json_t *object, const char *key, int64_t number)
{
	json_object_set_new(object, key, number < 0 ? json_null() : json_integer((json_int_t)number));
}

static void set_positive(json_t *object, const char *key, uint64_t number)
{
	json_object_set_new(object, key, number == 0 ? json_null() : json_integer((json_int_t)number));
}

static void set_bool(json_t *object, const char *key, bool value)
{
	json_object_set_new(object, key, json_boolean(value));
}

static json_t *set_object(json_t *object, const char *key)
{
	json_t *member = json_object();

	json_object_set_new(object, key, member);
	return member;
}

static json_t *append_object(json_t *array)
{
	json_t *member = json_object();

	json_array_append_new(array, member);
	return member;
}

static json_t *set_array(json_t *object, const char *key)
{
	json_t *member = json_array();

	json_object_set_new(object, key, member);
	return member;
}

static void set_limit(json_t *object, const char *key, const struct hp_probe_limit *limit)
{
	json_t *member = set_object(object, key);

	set_known(member, "limit_bytes", limit->bytes);
	set_known(member, "used_bytes", limit->used_bytes);
	set_text(member, "file", limit->file);
}

static void set_pools(json_t *report, const struct hp_probe *probe)
{
	json_t *pools = set_array(report, "pools");

	for (int i = 0; i < probe->pools; i++) {
		const struct hp_probe_pool *pool = &probe->pool[i];
		json_t *entry = append_object(pools);
		set_number(entry, "page_bytes", pool->page_bytes);
		set_number(entry, "total_pages", pool->total);
		set_number(entry, "free_pages", pool->free);
		set_number(entry, "reserved_pages", pool->reserved);
		set_number(entry, "surplus_pages", pool->surplus);
		set_number(entry, "overcommit_pages", pool->overcommit);
		set_limit(entry, "cgroup", &pool->cgroup);
		set_limit(entry, "cgroup_reserved", &pool->cgroup_rsvd);
	}
	set_bool(report, "may_set_pools", probe->may_set_pools);
}

static void set_nodes(json_t *report, const struct hp_probe *probe)
{
	json_t *nodes = set_array(report, "numa_nodes");

	for (int i = 0; i < probe->nodes; i++) {
		json_t *entry = append_object(nodes);
		set_number(entry, "id", (uint64_t)probe->node[i].id);
		set_number(entry, "memory_bytes", probe->node[i].memory_bytes);
		set_number(entry, "free_bytes", probe->node[i].free_bytes);
		set_number(entry, "huge_total_pages", probe->node[i].huge_total);
		set_number(entry, "huge_free_pages", probe->node[i].huge_free);
	}
}

static void set_findings(json_t *report, const struct hp_finding *findings, int count)
{
	json_t *array = set_array(report, "findings");

	for (int i = 0; i < count; i++) {
		json_t *entry = append_object(array);
		set_text(entry, "id", findings[i].id);
		set_text(entry, "severity", hp_severity_name(findings[i].severity));
		set_text(entry, "text", findings[i].text);
		set_text(entry, "command", findings[i].command);
	}
}

static int print_json(const struct hp_probe *probe, const struct hp_finding *findings, int count)
{
	json_t *report = json_object();
	json_t *part;

	set_number(report, "version", JSON_VERSION);
	set_text(report, "hugepool", HP_VERSION_STRING);

	part = set_object(report, "kernel");
	set_text(part, "release", probe->kernel);
	set_text(part, "upstream", probe->kernel_upstream);
	set_text(part, "machine", probe->machine);
	set_bool(part, "table_sharing", probe->table_sharing);
	set_text(part, "table_sharing_why_not", probe->table_sharing_why);

	part = set_object(report, "processor");
	set_text(part, "model", probe->cpu);
	set_number(part, "usable_cpus", (uint64_t)probe->cpus);
	set_text(part, "zero_method", probe->zero_method);

	part = set_object(report, "memory");
	set_positive(part, "total_bytes", probe->memory_bytes);
	set_positive(part, "available_bytes", probe->available_bytes);

	set_pools(report, probe);

	part = set_object(report, "transparent_huge_pages");
	set_text(part, "enabled", probe->thp_enabled);
	set_text(part, "shmem_enabled", probe->thp_shmem);
	set_text(part, "defrag", probe->thp_defrag);
	set_bool(part, "disabled_by_prctl", probe->thp_disabled);
	set_bool(part, "collapse_works", probe->collapse_works);
	set_number(part, "collapse_errno", (uint64_t)-probe->collapse_error);

	part = set_object(report, "limits");
	set_text(part, "cgroup", probe->cgroup);
	set_limit(part, "cgroup_memory", &probe->cgroup_memory);
	set_known(part, "memlock_bytes", probe->memlock_bytes);
	set_positive(part, "max_map_count", probe->max_map_count);
	set_bool(part, "userfaultfd", probe->userfaultfd);

	set_nodes(report, probe);
	set_findings(report, findings, count);

	int failed = json_dumpf(report, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(report);
	return failed ? HP_CLI_FAILED : HP_CLI_OK;
}

/* ---- Command --------------------------------------------------------------------------------------------------- */

static void print_help(void)
{
	puts("Usage: hugepool info [--json]\n"
	     "\n"
	     "Prints what this machine, container and process offer for huge pages and, last, what stands in the\n"
	     "way: each finding with the command that mends it. Changes nothing and needs no privilege.\n"
	     "\n"
	     "Options:\n"
	     "  -j, --json     JSON on standard output; its \"version\" is raised when a key changes its meaning\n"
	     "  -h, --help     this text\n"
	     "\n"
	     "Findings: \"blocks\", a kind of memory cannot be had; \"slows\", it is slower than it could be;\n"
	     "\"note\", a limit that large programs run into.\n"
	     "\n"
	     "Examples:\n"
	     "  hugepool info\n"
	     "  hugepool info --json > machine.json\n"
	     "\n"
	     "Exit code: 0 done, also with findings; 1 failed; 2 wrong usage.");
}

int hp_cli_info(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	static struct hp_finding findings[HP_FINDINGS_MAX];
	static struct hp_probe probe;
	bool json = false;
	int option;

	while ((option = getopt_long(argc, argv, "jh", options, NULL)) != -1) {
		switch (option) {
		case 'j':
			json = true;
			break;
		case 'h':
			print_help();
			return HP_CLI_OK;
		default:
			fputs("See \"hugepool info --help\".\n", stderr);
			return HP_CLI_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "%s: \"%s\" is one argument too many.\nSee \"hugepool info --help\".\n", argv[0],
		        argv[optind]);
		return HP_CLI_USAGE;
	}
	hp_probe_read(&probe);
	int count = hp_findings(&probe, geteuid() == 0, findings);
	if (json)
		return print_json(&probe, findings, count);
	print_table(&probe, findings, count);
	return HP_CLI_OK;
}
