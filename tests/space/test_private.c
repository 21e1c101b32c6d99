/* SPDX-License-Identifier: MIT */
/*
 * Private memory and forks: who sees which store, and what is left in the books. Input and output into it is in
 * test_private_io.c.
 */
#include "real.h"

#include <spawn.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define PAGES 8
#define HALF (PAGES / 2)
#define POOL 32
#define SPARE 48 /* huge pages for copies, of all processes of a test */
#define POLICIES 3

static const unsigned policies[POLICIES] = {0, HP_FORK_WITHOUT, HP_FORK_COPY};

static _Atomic int *step; /* shared by the processes of a test */

/* ---- what the kernel has given us -------------------------------------------------------------------------------- */

/*
 * The kernel's own figures are of all programs on the machine. Those of a control group are exact; where none can be
 * had they are not looked at.
 */
#define GROUPS "/sys/fs/cgroup/unified"

static struct {
	char folder[64];
	bool switched_on;
} group;

static bool write_word(const char *folder, const char *name, const char *word)
{
	char path[128];
	FILE *file;
	bool done;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "w");
	done = file && fputs(word, file) >= 0;
	return file && !fclose(file) && done;
}

static bool has_word(const char *name, const char *word)
{
	char path[128], text[256] = "";
	FILE *file;

	snprintf(path, sizeof(path), GROUPS "/%s", name);
	file = fopen(path, "r");
	if (!file)
		return false;
	if (!fgets(text, sizeof(text), file))
		text[0] = 0;
	fclose(file);
	return strstr(text, word) != NULL;
}

static void enter_group(void)
{
	char pid[16];

	group.folder[0] = 0;
	if (geteuid() != 0 || !has_word("cgroup.controllers", "hugetlb"))
		return;
	group.switched_on = !has_word("cgroup.subtree_control", "hugetlb") &&
	                    write_word(GROUPS, "cgroup.subtree_control", "+hugetlb");
	snprintf(group.folder, sizeof(group.folder), GROUPS "/hugepool-test-%d", getpid());
	snprintf(pid, sizeof(pid), "%d", getpid());
	if (!mkdir(group.folder, 0700) && write_word(group.folder, "cgroup.procs", pid))
		return;
	rmdir(group.folder);
	group.folder[0] = 0;
}

static void leave_group(void)
{
	char pid[16];

	if (!group.folder[0])
		return;
	snprintf(pid, sizeof(pid), "%d", getpid());
	EXPECT(write_word(GROUPS, "cgroup.procs", pid));
	for (int i = 0; i < 100 && rmdir(group.folder); i++)
		nap(10000); /* the last member is still on its way out */
	if (group.switched_on)
		write_word(GROUPS, "cgroup.subtree_control", "-hugetlb");
}

static uint64_t figure(const char *name)
{
	unsigned long long bytes = 0;
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", group.folder, name);
	file = group.folder[0] ? fopen(path, "r") : NULL;
	if (!file)
		return 0;
	EXPECT_EQ(fscanf(file, "%llu", &bytes), 1);
	fclose(file);
	return bytes / FRAME;
}

struct kernel_pages {
	uint64_t used, reserved;
};

static struct kernel_pages kernel_pages(void)
{
	return (struct kernel_pages){figure("hugetlb.2MB.current"), figure("hugetlb.2MB.rsvd.current")};
}

static struct {
	struct kernel_pages pages;
	uint32_t kernel_maps;
} before;

static hp_backing backing; /* of the pools */

static void start(const char *tuning)
{
	hp_pool_options options = HP_POOL_OPTIONS_INIT;

	step = make_shared(4096);
	enter_group();
	options.size = POOL * FRAME;
	options.workers = HP_WORKERS_NONE;
	options.tuning = tuning;
	options.backing = backing;
	if (hp_pool_create(&options, &pool, &error)) {
		leave_group();
		EXPECT(backing == HP_BACKING_THP); /* depends on what memory there is */
		skip_test(error.message);
	}
	if (stats_now().hugetlb && huge_pages_available() < SPARE) {
		hp_pool_close(pool);
		leave_group();
		skip_test("the kernel has huge pages for the pool, and too few for copies");
	}
	before.pages = kernel_pages();
	before.kernel_maps = stats_now().kernel_maps;
}

static void expect_kernel_pages(struct kernel_pages should)
{
	for (int i = 0; i < 100 && kernel_pages().used != should.used; i++)
		nap(10000); /* the kernel frees pages in its own time */
	EXPECT_EQ(kernel_pages().used, should.used);
	EXPECT_EQ(kernel_pages().reserved, should.reserved);
}

/* Everything is back where it was. */
static void end(void)
{
	check_pool(); /* takes back what the dead had */
	expect_kernel_pages(before.pages);
	EXPECT_EQ(stats_now().kernel_maps, before.kernel_maps);
	EXPECT_EQ(stats_now().processes, 1);
	end_pool();
	expect_kernel_pages((struct kernel_pages){0, 0});
	leave_group();
	munmap(step, 4096);
}

/* ---- short forms ------------------------------------------------------------------------------------------------- */

static char *map_private(uint64_t pages, unsigned prot, unsigned flags)
{
	void *address;

	EXPECT_OK(hp_map_private(pool, pages * FRAME, prot, flags, &address, &error));
	EXPECT_EQ((uintptr_t)address % FRAME, 0);
	return address;
}

/* The mapping's kind in /proc/self/maps: 's' shared, 'p' private; 0: there is none, '?': some of both. */
static char kind_of(const char *address, uint64_t pages)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[4096], perms[8], kind = 0;

	EXPECT(maps);
	while (fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %7s", &from, &to, perms) != 3 || from >= (uintptr_t)address + pages * FRAME ||
		    to <= (uintptr_t)address)
			continue;
		kind = kind && kind != perms[3] ? '?' : perms[3];
	}
	fclose(maps);
	return kind;
}

static void exit_at_once(void *unused)
{
}

static void touch_written(void *address)
{
	*(volatile char *)address = 1;
}

/* ---- who sees what ---------------------------------------------------------------------------------------------- */

static void tag_pages(char *memory, int first, int end, int base)
{
	for (int i = first; i < end; i++)
		write_tag(memory + i * FRAME, base + i);
}

static void expect_tags(const char *memory, int first, int end, int base)
{
	for (int i = first; i < end; i++)
		EXPECT(has_tag(memory + i * FRAME, base + i));
}

static void expect_zero(const char *memory, int first, int end)
{
	for (int i = first; i < end; i++)
		EXPECT(is_zero(memory + i * FRAME));
}

/* Every second page, from `mine` on, is as this process has written it; the others are as they were at the fork. */
static void expect_others(const char *memory, int mine, int base)
{
	for (int i = 0; i < PAGES; i++)
		if (i % 2 == mine)
			expect_tags(memory, i, i + 1, base);
		else if (i < HALF)
			expect_tags(memory, i, i + 1, 10);
		else
			expect_zero(memory, i, i + 1);
}

/* The first half had been written before the fork. */
static void child_of_both(void *context)
{
	char *memory = context;

	expect_tags(memory, 0, HALF, 10);
	expect_zero(memory, HALF, PAGES);
	for (int i = 0; i < PAGES; i += 2)
		write_tag(memory + i * FRAME, 100 + i);
	check_pool();
	REACH(step, 1);
	await(step, 2);
	expect_others(memory, 0, 100);
	EXPECT_EQ(hp_unmap(memory, PAGES * FRAME), 0);
	check_pool();
}

static void stores_stay(unsigned flags, const char *tuning)
{
	char *memory;
	pid_t pid;

	start(tuning);
	memory = map_private(PAGES, RW, flags);
	tag_pages(memory, 0, HALF, 10);
	pid = start_child(child_of_both, memory);
	await(step, 1);
	expect_tags(memory, 0, HALF, 10);
	expect_zero(memory, HALF, PAGES);
	for (int i = 1; i < PAGES; i += 2)
		write_tag(memory + i * FRAME, 200 + i);
	check_pool();
	REACH(step, 2);
	join_child(pid);
	expect_others(memory, 1, 200);
	unmap(memory, PAGES);
	end();
}

static void test_stores_stay(void)
{
	for (int i = 0; i < 4; i++)
		for (int lazy = 0; lazy < 2; lazy++)
			stores_stay((lazy ? LAZY : 0) | (i & 1 ? HP_FORK_COPY : 0),
			            i & 2 ? "fault_mutexes=1 fault_window=1" : NULL);
}

static void test_other_backings(void)
{
	static const hp_backing others[] = {HP_BACKING_THP, HP_BACKING_BASE};

	for (int i = 0; i < 4; i++) {
		backing = others[i % 2];
		stores_stay(i & 2 ? LAZY : 0, NULL);
		stores_stay(HP_FORK_COPY | (i & 2 ? LAZY : 0), NULL);
	}
}

/* Lazy pages that nobody touched before the fork are each process's own after it. */
static void write_untouched(void *memory)
{
	tag_pages(memory, 0, PAGES, 30);
	expect_tags(memory, 0, PAGES, 30);
}

static void test_untouched(void)
{
	start("fault_mutexes=1");
	for (int i = 0; i < POLICIES; i++) {
		char *memory = map_private(PAGES, RW, LAZY | policies[i]);

		if (policies[i] == HP_FORK_WITHOUT)
			expect_killed(touch_written, memory, SIGSEGV);
		else
			run_child(write_untouched, memory);
		expect_zero(memory, 0, PAGES);
		tag_pages(memory, 0, PAGES, 40);
		expect_tags(memory, 0, PAGES, 40);
		check_pool();
		unmap(memory, PAGES);
	}
	end();
}

static void generation(char *memory, int deep)
{
	expect_tags(memory, 0, deep, 50);
	expect_zero(memory, deep, PAGES);
	write_tag(memory + deep * FRAME, 50 + deep);
	if (deep + 1 < PAGES) {
		pid_t pid = fork();

		EXPECT(pid >= 0);
		if (pid == 0) {
			generation(memory, deep + 1);
			_exit(0);
		}
		join_child(pid);
	}
	expect_tags(memory, 0, deep + 1, 50);
	expect_zero(memory, deep + 1, PAGES);
	check_pool();
}

static void test_generations(void)
{
	for (int i = 0; i < 4; i++) {
		char *memory;

		start(i & 1 ? "fault_window=1" : NULL);
		memory = map_private(PAGES, RW, (i & 1 ? LAZY : 0) | (i & 2 ? HP_FORK_COPY : 0));
		generation(memory, 0);
		unmap(memory, PAGES);
		end();
	}
}

static void store_and_exit(void *memory)
{
	tag_pages(memory, 0, 2, 1000);
}

static void test_many_forks(void)
{
	for (int kind = 0; kind < 2; kind++) {
		char *memory;

		start(NULL);
		memory = map_private(PAGES, RW, kind ? LAZY : 0);
		for (int i = 0; i < 100; i++) {
			write_tag(memory + i % PAGES * FRAME, i);
			run_child(store_and_exit, memory);
			EXPECT(has_tag(memory + i % PAGES * FRAME, i));
		}
		check_pool();
		unmap(memory, PAGES);
		end();
	}
}

/* ---- what the child does ---------------------------------------------------------------------------------------- */

static void do_unmap(void *memory)
{
	char *fresh;

	unmap(memory, PAGES);
	fresh = map_private(PAGES, RW, 0);
	expect_zero(fresh, 0, PAGES);
	tag_pages(fresh, 0, PAGES, 70);
	unmap(fresh, PAGES);
	check_pool();
}

static void do_protect(void *context)
{
	char *memory = context;

	EXPECT_EQ(hp_protect(memory, HALF * FRAME, RO), 0);
	EXPECT_EQ(hp_protect(memory + 6 * FRAME, FRAME, 0), 0);
	expect_tags(memory, 0, 6, 60);
	expect_killed(touch_written, memory + FRAME, SIGSEGV);
	expect_killed(touch_it, memory + 6 * FRAME, SIGSEGV);
	tag_pages(memory, HALF, 6, 80);
	EXPECT_EQ(hp_protect(memory, PAGES * FRAME, RW), 0);
	EXPECT(has_tag(memory + 6 * FRAME, 66));
	tag_pages(memory, 0, PAGES, 90);
	expect_tags(memory, 0, PAGES, 90);
	check_pool();
}

static void do_cut(void *context)
{
	char *memory = context;

	unmap(memory + 2 * FRAME, 3);
	expect_killed(touch_it, memory + 3 * FRAME, SIGSEGV);
	tag_pages(memory, 0, 2, 80);
	tag_pages(memory, 5, PAGES, 80);
	expect_tags(memory, 0, 2, 80);
	expect_tags(memory, 5, PAGES, 80);
	check_pool();
	unmap(memory, 2);
}

static void do_kill(void *memory)
{
	tag_pages(memory, 0, PAGES, 90);
	kill(getpid(), SIGKILL);
}

static void do_exec(void *memory)
{
	tag_pages(memory, 0, PAGES, 90);
	execl("/bin/true", "true", NULL);
	_exit(1);
}

static void do_exit(void *memory)
{
	tag_pages(memory, 0, PAGES, 90);
}

static void test_child_does(void)
{
	static void (*const does[])(void *) = {do_unmap, do_protect, do_cut, do_kill, do_exec, do_exit};

	for (int i = 0; i < 4; i++) {
		char *memory;

		start(i & 1 ? "fault_mutexes=1" : NULL);
		memory = map_private(PAGES, RW, (i & 1 ? LAZY : 0) | (i & 2 ? HP_FORK_COPY : 0));
		for (size_t k = 0; k < sizeof(does) / sizeof(does[0]); k++) {
			tag_pages(memory, 0, PAGES, 60);
			if (does[k] == do_kill)
				expect_killed(does[k], memory, SIGKILL);
			else
				run_child(does[k], memory);
			expect_tags(memory, 0, PAGES, 60);
			check_pool();
		}
		unmap(memory, PAGES);
		end();
	}
}

static void live_on(void *memory)
{
	await(step, 1);
	check_pool();
	expect_tags(memory, 0, PAGES, 20);
	tag_pages(memory, 0, PAGES, 30);
	expect_tags(memory, 0, PAGES, 30);
	unmap(memory, PAGES);
	check_pool();
}

static void test_parent_unmaps_first(void)
{
	for (int i = 0; i < 4; i++) {
		char *memory;
		pid_t pid;

		start(NULL);
		memory = map_private(PAGES, RW, (i & 1 ? LAZY : 0) | (i & 2 ? HP_FORK_COPY : 0));
		tag_pages(memory, 0, PAGES, 20);
		pid = start_child(live_on, memory);
		unmap(memory, PAGES);
		check_pool();
		memory = map_private(PAGES, RW, 0); /* not the child's frames */
		expect_zero(memory, 0, PAGES);
		tag_pages(memory, 0, PAGES, 70);
		REACH(step, 1);
		join_child(pid);
		expect_tags(memory, 0, PAGES, 70);
		unmap(memory, PAGES);
		end();
	}
}

/* ---- the parent dies -------------------------------------------------------------------------------------------- */

static void fork_and_die(unsigned flags)
{
	char *memory;
	pid_t pid;

	make_pool(POOL, NULL);
	memory = map_private(PAGES, RW, flags);
	tag_pages(memory, 0, PAGES, 20);
	pid = fork(); /* it outlives us */
	if (pid == 0) {
		live_on(memory);
		EXPECT_EQ(stats_now().processes, 1);
		end_pool();
		_exit(0);
	}
	kill(getpid(), SIGKILL);
}

static void test_parent_is_killed(void)
{
	for (int i = 0; i < 4; i++) {
		pid_t pid;
		int status;

		step = make_shared(4096);
		pid = fork();
		if (pid == 0)
			fork_and_die((i & 1 ? LAZY : 0) | (i & 2 ? HP_FORK_COPY : 0));
		EXPECT(WIFSIGNALED(end_of(pid)));
		REACH(step, 1);
		EXPECT(waitpid(-1, &status, 0) > 0); /* this process is the subreaper */
		EXPECT_EQ(status, 0);
		munmap(step, 4096);
	}
}

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

static void look_at_pieces(void *context)
{
	char *memory = context;

	expect_tags(memory, 0, 2, 10);
	EXPECT_EQ(kind_of(memory + 2 * FRAME, 1), 0);
	expect_tags(memory, 3, PAGES, 10);
	expect_killed(touch_written, memory + 5 * FRAME, SIGSEGV);
	tag_pages(memory, 3, 5, 500);
	EXPECT_EQ(hp_protect(memory + 5 * FRAME, FRAME, RW), 0);
	tag_pages(memory, 5, PAGES, 500);
	expect_tags(memory, 3, PAGES, 500);
	EXPECT_EQ(hp_unmap(memory, PAGES * FRAME), -EINVAL);
	unmap(memory, 2);
	unmap(memory + 4 * FRAME, 2);
	check_pool();
}

static void test_pieces(void)
{
	for (int i = 0; i < 4; i++) {
		char *memory;

		start(i & 1 ? "fault_window=1" : NULL);
		memory = map_private(PAGES, RW, (i & 1 ? LAZY : 0) | (i & 2 ? HP_FORK_COPY : 0));
		tag_pages(memory, 0, PAGES, 10);
		unmap(memory + 2 * FRAME, 1);
		EXPECT_EQ(hp_protect(memory + 5 * FRAME, FRAME, RO), 0);
		check_pool();
		run_child(look_at_pieces, memory);
		EXPECT_EQ(hp_protect(memory + 4 * FRAME, 2 * FRAME, RW), 0);
		tag_pages(memory, 4, 6, 10);
		run_child(store_and_exit, memory);
		unmap(memory + FRAME, 1);
		unmap(memory + 6 * FRAME, 1);
		expect_tags(memory, 0, 1, 10);
		expect_tags(memory, 3, 6, 10);
		run_child(store_and_exit, memory + 3 * FRAME);
		expect_tags(memory, 3, 6, 10);
		EXPECT(has_tag(memory + 7 * FRAME, 17));
		unmap(memory, 1);
		unmap(memory + 3 * FRAME, 3);
		unmap(memory + 7 * FRAME, 1);
		end();
	}
}

/* A part of what is at `memory` gives way to new private memory. */
static void replace(char *memory, int first, int pages, unsigned flags)
{
	void *address = memory + first * FRAME;

	EXPECT_OK(hp_map_private(pool, pages * FRAME, RW, flags | HP_MAP_REPLACE, &address, &error));
	EXPECT(address == memory + first * FRAME);
	expect_zero(memory, first, first + pages);
}

static void replace_in_child(void *context)
{
	char *memory = context;
	hp_file file = make_file(2);
	void *address = memory + 6 * FRAME;

	replace(memory, 1, 2, 0);
	replace(memory, 4, 1, LAZY);
	EXPECT_OK(hp_map(file, 0, 2 * FRAME, RW, HP_MAP_REPLACE, &address, &error));
	close_file(file);
	expect_zero(memory, 6, 8);
	EXPECT(has_tag(memory, 10));
	EXPECT(has_tag(memory + 3 * FRAME, 13));
	EXPECT(has_tag(memory + 5 * FRAME, 15));
	tag_pages(memory, 0, PAGES, 300);
	run_child(store_and_exit, memory + FRAME);
	expect_tags(memory, 0, PAGES, 300);
	check_pool();
	unmap(memory, PAGES);
}

/* Private memory in the place of file memory, of other private memory, and of what a fork has frozen. */
static void test_replace(void)
{
	for (int i = 0; i < 4; i++) {
		unsigned flags = (i & 1 ? LAZY : 0) | (i & 2 ? HP_FORK_COPY : 0);
		hp_file file;
		char *memory;

		start(NULL);
		file = make_file(PAGES);
		memory = map(file, PAGES, 0);
		tag_pages(memory, 0, PAGES, 1);
		replace(memory, 0, PAGES, flags);
		tag_pages(memory, 0, PAGES, 10);
		run_child(replace_in_child, memory);
		expect_tags(memory, 0, PAGES, 10);
		replace(memory, 2, 3, flags);
		tag_pages(memory, 2, 5, 10);
		run_child(store_and_exit, memory + 2 * FRAME);
		expect_tags(memory, 0, PAGES, 10);
		run_child(replace_in_child, memory);
		expect_tags(memory, 0, PAGES, 10);
		unmap(memory, PAGES);
		memory = map(file, PAGES, 0);
		expect_tags(memory, 0, PAGES, 1);
		unmap(memory, PAGES);
		close_file(file);
		end();
	}
}

/* ---- the policies ----------------------------------------------------------------------------------------------- */

static void live_without(void *context)
{
	char *memory = context;
	void *address = memory;

	EXPECT_EQ(kind_of(memory, PAGES), 0);
	expect_killed(touch_it, memory, SIGSEGV);
	EXPECT_EQ(hp_populate(memory, FRAME), -EINVAL);
	EXPECT_EQ(hp_unmap(memory, PAGES * FRAME), -EINVAL);
	EXPECT_EQ(hp_protect(memory, FRAME, RO), -EINVAL);
	/* The kernel gives the last of it to whoever wants a mapping. */
	EXPECT_OK(hp_map_private(pool, HALF * FRAME, RW, HP_MAP_AT, &address, &error));
	expect_zero(memory, 0, HALF);
	tag_pages(memory, 0, HALF, 80);
	check_pool();
	run_child(store_and_exit, memory);
	expect_tags(memory, 0, HALF, 80);
	unmap(memory, HALF);
	check_pool();
}

static void touch_at_once(void *memory)
{
	touch(memory);
}

static void test_without(void)
{
	for (int i = 0; i < 2; i++) {
		char *memory;

		start(NULL);
		memory = map_private(PAGES, RW, HP_FORK_WITHOUT | (i ? LAZY : 0));
		tag_pages(memory, 0, HALF, 10);
		expect_killed(touch_at_once, memory, SIGSEGV);
		run_child(live_without, memory);
		EXPECT_EQ(kind_of(memory, 1), 's');
		expect_tags(memory, 0, HALF, 10);
		tag_pages(memory, HALF, PAGES, 10);
		run_child(live_without, memory);
		expect_tags(memory, 0, PAGES, 10);
		unmap(memory + FRAME, 1);
		EXPECT_EQ(hp_protect(memory + 3 * FRAME, FRAME, RO), 0);
		run_child(live_without, memory);
		EXPECT(has_tag(memory + 3 * FRAME, 13));
		unmap(memory, 1);
		unmap(memory + 2 * FRAME, PAGES - 2);
		end();
	}
}

static char *late; /* lazy memory */

static void touch_late(void)
{
	if (late)
		write_tag(late, 9);
}

static void look_at_late(void *context)
{
	const unsigned *policy = context;

	if (*policy == HP_FORK_WITHOUT)
		EXPECT_EQ(kind_of(late, 2), 0);
	else if (*policy == HP_FORK_COPY)
		expect_zero(late, 0, 2); /* it was copied before */
	else
		EXPECT(has_tag(late, 9));
}

/* The forking thread itself touches lazy memory when the fork has been prepared, as a signal handler may. */
static void test_touch_within_fork(void)
{
	EXPECT_EQ(pthread_atfork(touch_late, NULL, NULL), 0); /* comes after hugepool's, which is registered later */
	start("fault_window=1");
	for (int i = 0; i < POLICIES; i++) {
		unsigned policy = policies[i];

		late = map_private(2, RW, LAZY | policy);
		run_child(look_at_late, &policy);
		EXPECT(has_tag(late, 9));
		EXPECT(is_zero(late + FRAME));
		run_child(exit_at_once, NULL);
		unmap(late, 2);
		late = NULL;
	}
	end();
}

/* Of the kernel mapping that has an address: the size of its pages. */
static unsigned page_kib_at(const char *address)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	unsigned long from, to;
	unsigned kib = 0;
	bool found = false;
	char line[4096];

	EXPECT(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			found = from <= (uintptr_t)address && to > (uintptr_t)address;
		else if (found && sscanf(line, "KernelPageSize: %u kB", &kib) == 1)
			break;
	}
	fclose(smaps);
	return kib;
}

static void look_at_copy(void *context)
{
	char *memory = context;

	expect_tags(memory, 0, HALF, 10);
	expect_zero(memory, HALF, PAGES);
	EXPECT_EQ(kind_of(memory, PAGES), 'p');
	EXPECT_EQ(count_mappings(memory, PAGES * FRAME), 0);
	EXPECT_EQ(page_kib_at(memory), 4);
	expect_killed(touch_written, memory + 3 * FRAME, SIGSEGV);
	tag_pages(memory, 0, 3, 700);
	tag_pages(memory, 4, PAGES, 700);
	EXPECT_EQ(hp_protect(memory + 3 * FRAME, FRAME, RW), 0);
	expect_tags(memory, 3, 4, 10);
	run_child(store_and_exit, memory);
	expect_tags(memory, 0, 3, 700);
	EXPECT_EQ(hp_populate(memory, 3 * FRAME), 0);
	check_pool();
	unmap(memory, PAGES);
	check_pool();
}

/* The pool's memory, not its books. */
static void close_segments(void)
{
	for (int fd = 3; fd < 1024; fd++) {
		char path[32], name[32] = "";

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, name, sizeof(name) - 1) > 0 && !strncmp(name, "/memfd:hugepool (", 17))
			close(fd);
	}
}

static void fork_without_descriptors(void *unused)
{
	char *memory = map_private(PAGES, RW, 0);

	(void)unused;
	tag_pages(memory, 0, PAGES, 10);
	close_segments();
	for (int i = 0; i < 2; i++) {
		expect_killed(touch_at_once, memory, SIGSEGV);
		expect_tags(memory, 0, PAGES, 10);
	}
}

/* What cannot be frozen is not shared. */
static void test_descriptors_are_closed(void)
{
	start(NULL);
	run_child(fork_without_descriptors, NULL);
	end();
}

static void test_copy(void)
{
	for (int i = 0; i < 2; i++) {
		char *memory;

		start(NULL);
		memory = map_private(PAGES, RW, HP_FORK_COPY | (i ? LAZY : 0));
		tag_pages(memory, 0, HALF, 10);
		EXPECT_EQ(hp_protect(memory + 3 * FRAME, FRAME, RO), 0);
		for (int k = 0; k < 3; k++) {
			run_child(look_at_copy, memory);
			expect_tags(memory, 0, HALF, 10);
		}
		EXPECT_EQ(kind_of(memory, HALF), 's');
		unmap(memory, PAGES);
		end();
	}
}

/* What the kernel has reserved for a mapping: before a fork, after it, and when it has been cut. */
static void test_holder(void)
{
	char *memory;

	start(NULL);
	if (!before.pages.used) {
		end();
		skip_test("needs huge pages of the kernel's and a control group");
	}
	for (int i = 0; i < 2; i++) {
		memory = map_private(PAGES, RW, i ? LAZY : 0);
		EXPECT_EQ(kernel_pages().reserved, before.pages.reserved + PAGES);
		unmap(memory + FRAME, 2);
		EXPECT_EQ(kernel_pages().reserved, before.pages.reserved + PAGES - 2);
		EXPECT_EQ(hp_protect(memory + 5 * FRAME, FRAME, RO), 0);
		replace(memory, 3, 1, HP_FORK_COPY);
		EXPECT_EQ(kernel_pages().reserved, before.pages.reserved + PAGES - 3);
		run_child(exit_at_once, NULL);
		EXPECT_EQ(kernel_pages().reserved, before.pages.reserved + PAGES - 3);
		EXPECT_EQ(kernel_pages().used, before.pages.used);
		*(volatile char *)memory = 1;
		EXPECT_EQ(kernel_pages().used, before.pages.used + 1);
		unmap(memory, 1);
		unmap(memory + 3 * FRAME, PAGES - 3);
		expect_kernel_pages(before.pages);
	}
	end();
}

/* ---- limits and errors ------------------------------------------------------------------------------------------ */

/* Whatever the kernel's pool has. */
static void *take_kernel_pages(uint64_t *length)
{
	void *all;

	*length = huge_pages_available() * FRAME;
	if (!*length)
		return NULL;
	all = mmap(NULL, *length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	EXPECT(all != MAP_FAILED);
	return all;
}

static void test_kernel_pool_is_empty(void)
{
	char *memory;
	void *all, *refused;
	uint64_t length;

	start(NULL);
	if (!stats_now().hugetlb) {
		end();
		skip_test("needs huge pages of the kernel's");
	}
	all = take_kernel_pages(&length);
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(hp_map_private(pool, PAGES * FRAME, RW, i ? LAZY : 0, &refused, &error), -ENOMEM);
		EXPECT_EQ(error.limit, HP_LIMIT_KERNEL_POOL);
		EXPECT(strstr(error.message, "nr_hugepages"));
		check_pool();
		EXPECT_EQ(stats_now().files, 0);
		for (int k = 1; k < POLICIES; k++) {
			memory = map_private(PAGES, RW, policies[k] | (i ? LAZY : 0));
			tag_pages(memory, 0, PAGES, 10);
			run_child(policies[k] == HP_FORK_COPY ? store_and_exit : exit_at_once, memory);
			expect_tags(memory, 0, PAGES, 10);
			unmap(memory, PAGES);
		}
	}
	if (all)
		munmap(all, length);
	end();
}

static _Atomic unsigned said[HP_LOG_DEBUG + 1];

static void count_lines(hp_log_level level, const char *line, void *context)
{
	atomic_fetch_add(&said[level], 1);
}

/* What is held for the copies: a mapping of huge pages that nobody can touch. */
static void take_holder_away(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[4096], perms[8];
	bool found = false;

	EXPECT(maps);
	while (!found && fgets(line, sizeof(line), maps))
		found = sscanf(line, "%lx-%lx %7s", &from, &to, perms) == 3 && strstr(line, "anon_hugepage") &&
		        !strcmp(perms, "---p");
	fclose(maps);
	EXPECT(found);
	EXPECT_EQ(to - from, PAGES * FRAME);
	EXPECT_EQ(munmap((void *)from, to - from), 0); /* NOLINT */
}

/* Somebody else takes the pages that were held: what is there stays so, and what is absent comes in other pages. */
static void test_kernel_pool_is_empty_at_fork(void)
{
	for (int i = 0; i < 2; i++) {
		uint64_t length;
		char *memory;
		void *all;

		start(NULL);
		if (!stats_now().hugetlb) {
			end();
			skip_test("needs huge pages of the kernel's");
		}
		memory = map_private(PAGES, RW, i ? LAZY : 0);
		tag_pages(memory, 0, HALF, 10);
		memset(said, 0, sizeof(said));
		hp_log_set(count_lines, HP_LOG_DEBUG, NULL);
		take_holder_away();
		all = take_kernel_pages(&length);
		run_child(exit_at_once, NULL);
		munmap(all, length);
		EXPECT_EQ(said[HP_LOG_WARNING], 1);
		EXPECT_EQ(said[HP_LOG_ERROR], 0);
		hp_log_set(NULL, HP_LOG_WARNING, NULL);
		expect_tags(memory, 0, HALF, 10);
		expect_zero(memory, HALF, PAGES);
		run_child(store_and_exit, memory);
		tag_pages(memory, HALF, PAGES, 10);
		expect_tags(memory, 0, PAGES, 10);
		unmap(memory, PAGES);
		end();
	}
}

/* Bytes of addresses that this process has. */
static rlim_t address_space(void)
{
	FILE *statm = fopen("/proc/self/statm", "r");
	unsigned long pages = 0;

	EXPECT(statm);
	EXPECT_EQ(fscanf(statm, "%lu", &pages), 1);
	fclose(statm);
	return pages * 4096;
}

static void expect_gone(void *memory)
{
	EXPECT_EQ(hp_unmap(memory, PAGES * FRAME), -EINVAL);
	EXPECT_EQ(hp_populate(memory, FRAME), -EINVAL);
}

/* No memory for a copy: the child goes without. */
static void test_no_memory_to_copy(void)
{
	struct rlimit limit, little;
	char *memory;
	pid_t pid;

#if defined(__SANITIZE_ADDRESS__)
	skip_test("the address sanitizer needs addresses");
#endif
	start(NULL);
	memory = map_private(PAGES, RW, HP_FORK_COPY);
	tag_pages(memory, 0, PAGES, 10);
	memset(said, 0, sizeof(said));
	hp_log_set(count_lines, HP_LOG_DEBUG, NULL);
	EXPECT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
	little = (struct rlimit){address_space() + (1 << 20), limit.rlim_max};
	for (int i = 0; i < 2; i++) {
		EXPECT_EQ(setrlimit(RLIMIT_AS, &little), 0);
		pid = start_child(i ? expect_gone : touch_it, memory);
		EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
		EXPECT_EQ(end_of(pid), i ? 0 : SIGSEGV);
		EXPECT_EQ(said[HP_LOG_ERROR], i + 1);
	}
	hp_log_set(NULL, HP_LOG_WARNING, NULL);
	expect_tags(memory, 0, PAGES, 10);
	run_child(store_and_exit, memory);
	expect_tags(memory, 0, PAGES, 10);
	unmap(memory, PAGES);
	end();
}

/* A fork that the kernel refuses, because of the number of this user's processes. */
static bool fork_is_refused(void)
{
	struct rlimit limit, none = {0, 0};
	uid_t user, effective, saved;
	pid_t pid;

	EXPECT_EQ(getresuid(&user, &effective, &saved), 0);
	EXPECT_EQ(getrlimit(RLIMIT_NPROC, &limit), 0);
	none.rlim_max = limit.rlim_max;
	EXPECT_EQ(setrlimit(RLIMIT_NPROC, &none), 0);
	if (effective == 0)
		EXPECT_EQ(setresuid(65534, 65534, 0), 0); /* root is not counted */
	prctl(PR_SET_DUMPABLE, 1);
	pid = fork();
	if (pid == 0)
		_exit(0);
	if (effective == 0)
		EXPECT_EQ(setresuid(user, effective, saved), 0);
	prctl(PR_SET_DUMPABLE, 1);
	EXPECT_EQ(setrlimit(RLIMIT_NPROC, &limit), 0);
	if (pid > 0)
		join_child(pid);
	return pid < 0;
}

static void *tag_rest(void *memory)
{
	tag_pages(memory, HALF, PAGES, 10);
	return NULL;
}

static void test_fork_fails(void)
{
	for (int i = 0; i < 2 * POLICIES; i++) {
		char *memory;

		start("fault_window=1");
		memory = map_private(PAGES, RW, policies[i / 2] | (i % 2 ? LAZY : 0));
		tag_pages(memory, 0, HALF, 10);
		EXPECT(fork_is_refused());
		check_pool();
		EXPECT_EQ(stats_now().processes, 1);
		expect_tags(memory, 0, HALF, 10);
		join_thread(start_thread(tag_rest, memory));
		expect_tags(memory, 0, PAGES, 10);
		run_child(policies[i / 2] == HP_FORK_WITHOUT ? exit_at_once : store_and_exit, memory);
		expect_tags(memory, 0, PAGES, 10);
		unmap(memory, PAGES);
		end();
	}
}

static void expect_refused(uint64_t length, unsigned prot, unsigned flags, int code)
{
	void *address = NULL;

	error.message[0] = 0;
	EXPECT_EQ(hp_map_private(pool, length, prot, flags, &address, &error), code);
	EXPECT(error.message[0]);
	EXPECT_EQ(error.code, code);
	EXPECT_EQ(hp_map_private(pool, length, prot, flags, &address, NULL), code);
}

static void test_errors(void)
{
	hp_pool none = {0};
	void *address;
	char *memory;

	start(NULL);
	expect_refused(0, RW, 0, -EINVAL);
	expect_refused(FRAME + 4096, RW, 0, -EINVAL);
	expect_refused(FRAME, 0, 0, -EINVAL);
	expect_refused(FRAME, HP_PROT_WRITE, 0, -EINVAL);
	expect_refused(FRAME, 4, 0, -EINVAL);
	expect_refused(FRAME, RW, HP_FORK_WITHOUT | HP_FORK_COPY, -EINVAL);
	expect_refused(FRAME, RW, 64, -EINVAL);
	expect_refused(FRAME, RW, 0x10000, -EINVAL);
	expect_refused(FRAME, RW, HP_MAP_AT | HP_MAP_WISH, -EINVAL);
	expect_refused(FRAME, RW, HP_MAP_AT, -EINVAL);
	EXPECT_EQ(hp_map_private(none, FRAME, RW, 0, &address, &error), -EBADF);
	EXPECT_EQ(hp_map_private(pool, 1000 * POOL * FRAME, RW, HP_FORK_COPY, &address, &error), -ENOMEM);
	for (int i = 0; i < 2; i++) {
		memory = map_private(POOL - 2, RW, HP_FORK_COPY);
		expect_refused(3 * FRAME, RW, HP_FORK_COPY | (i ? LAZY : 0), -ENOMEM);
		EXPECT_EQ(hp_map_private(pool, 3 * FRAME, RW, HP_FORK_COPY, &address, &error), -ENOMEM);
		EXPECT_EQ(error.limit, HP_LIMIT_POOL);
		EXPECT_EQ(hp_pool_close(pool), -EBUSY);
		address = memory;
		EXPECT_EQ(hp_map_private(pool, FRAME, RW, HP_MAP_AT | HP_FORK_COPY, &address, &error), -EEXIST);
		unmap(memory, POOL - 2);
		end_pool();
		make_pool(POOL, NULL);
	}
	end();
}

/* ---- not a fork ------------------------------------------------------------------------------------------------- */

static char **words_in(char *memory, const char *first, const char *second, const char *third)
{
	char **list = (char **)(void *)memory;

	list[0] = strcpy(memory + 4096, first);
	list[1] = second ? strcpy(memory + FRAME, second) : NULL;
	list[2] = third ? strcpy(memory + 2 * FRAME - 2, third) : NULL; /* over the end of a page */
	list[3] = NULL;
	return list;
}

static void exec_words(void *context)
{
	char *memory = context;

	execve("/bin/sh", (char **)(void *)memory, (char **)(void *)(memory + 4 * FRAME));
	_exit(1);
}

/* vfork and its like change nothing, and their children read their arguments in private memory. */
static void other_children(unsigned flags)
{
	char *memory, **arguments, **environment;
	pid_t pid;

	start(NULL);
	memory = map_private(PAGES, RW, flags);
	arguments = words_in(memory, "sh", "-c", "test \"$WORD\" = private; exit $?");
	environment = words_in(memory + 4 * FRAME, "WORD=private", NULL, NULL);
	EXPECT_EQ(hp_populate(memory, PAGES * FRAME), 0);
	write_tag(memory + 7 * FRAME, 7);
	EXPECT_EQ(posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environment), 0);
	join_child(pid);
	pid = vfork();
	if (pid == 0) {
		execve("/bin/sh", arguments, environment);
		_exit(1);
	}
	join_child(pid);
	EXPECT_EQ(system(strcpy(memory + 6 * FRAME, "true")), 0);
	EXPECT_EQ(kind_of(memory, PAGES), 's');
	EXPECT_EQ(stats_now().processes, 1);
	EXPECT_EQ(stats_now().used, PAGES);
	if (!(flags & HP_FORK_WITHOUT)) {
		run_child(exec_words, memory);
		EXPECT_EQ(kind_of(memory, PAGES), flags & HP_FORK_COPY ? 's' : 'p');
		run_child(exec_words, memory);
		EXPECT_EQ(posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environment), 0);
		join_child(pid);
	}
	EXPECT(has_tag(memory + 7 * FRAME, 7));
	unmap(memory, PAGES);
	end();
}

static void test_other_children(void)
{
	for (int i = 0; i < POLICIES; i++) {
		other_children(policies[i]);
		other_children(policies[i] | LAZY);
	}
}

/* ---- forks among faults ----------------------------------------------------------------------------------------- */

#define TOUCHERS 2
#define EACH HALF
#define RACES 150

static struct {
	pthread_barrier_t begin, end;
	char *memory;
	bool populate; /* by a call */
	bool done;
	_Atomic unsigned touched; /* pages, in all */
} race;

/* Writes its own pages for the first time, and then again and again, so that a fork may come between. */
static void *keep_touching(void *context)
{
	char *own;

	for (;;) {
		pthread_barrier_wait(&race.begin);
		if (race.done)
			return NULL;
		own = race.memory + (uintptr_t)context * EACH * FRAME;
		for (unsigned i = 0; i < EACH; i++) {
			if (race.populate)
				EXPECT_EQ(hp_populate(own + i * FRAME, FRAME), 0);
			for (uint64_t value = 1; value <= 50; value++)
				*(volatile uint64_t *)(own + i * FRAME) = value;
			atomic_fetch_add(&race.touched, 1);
		}
		pthread_barrier_wait(&race.end);
	}
}

static void look_while_touched(void *context)
{
	unsigned policy = *(unsigned *)context;

	if (policy == HP_FORK_WITHOUT) {
		EXPECT_EQ(kind_of(race.memory, PAGES), 0);
		return;
	}
	for (unsigned i = 0; i < PAGES; i++) {
		volatile uint64_t *word = (volatile uint64_t *)(race.memory + i * FRAME);
		uint64_t value = *word;

		EXPECT(value <= 50);
		nap(10);
		EXPECT_EQ(*word, value);
		if (i % 3 == 0)
			*word = 1000;
	}
}

static void race_once(unsigned policy, unsigned round)
{
	race.memory = map_private(PAGES, RW, LAZY | policy);
	race.populate = round % 4 == 3;
	atomic_store(&race.touched, 0);
	pthread_barrier_wait(&race.begin);
	for (unsigned i = 0; i < 3; i++) {
		while (atomic_load(&race.touched) < i * round % PAGES)
			;
		run_child(look_while_touched, &policy);
	}
	pthread_barrier_wait(&race.end);
	for (unsigned i = 0; i < PAGES; i++)
		EXPECT_EQ(*(volatile uint64_t *)(race.memory + i * FRAME), 50);
	unmap(race.memory, PAGES);
}

static void race_all(const char *tuning)
{
	pthread_t thread[TOUCHERS];

	start(tuning);
	pthread_barrier_init(&race.begin, NULL, TOUCHERS + 1);
	pthread_barrier_init(&race.end, NULL, TOUCHERS + 1);
	race.done = false;
	for (uintptr_t i = 0; i < TOUCHERS; i++)
		thread[i] = start_thread(keep_touching, (void *)i);
	for (unsigned round = 0; round < RACES; round++)
		race_once(policies[round % POLICIES], round / POLICIES);
	race.done = true;
	pthread_barrier_wait(&race.begin);
	for (unsigned i = 0; i < TOUCHERS; i++)
		join_thread(thread[i]);
	end();
}

static void test_fork_while_touched(void)
{
	race_all("fault_window=1");
}

static void test_fork_while_touched_one_mutex(void)
{
	race_all("fault_window=2 fault_mutexes=1");
}

/* Each process is in its own loop of stores; the main thread's forks take nothing from the others'. */
struct counter {
	volatile uint64_t *word;
	_Atomic bool *stop;
	uint64_t count;
};

static void *keep_counting(void *context)
{
	struct counter *counter = context;

	while (!atomic_load(counter->stop)) {
		EXPECT_EQ(*counter->word, counter->count);
		*counter->word = ++counter->count;
	}
	return NULL;
}

static void forget_it(void *memory)
{
	memset(memory, 0xee, PAGES * FRAME);
}

static void test_no_store_is_lost(void)
{
	for (int i = 0; i < 20; i++) {
		static const unsigned flags[] = {0, LAZY, HP_FORK_COPY, HP_FORK_WITHOUT};
		_Atomic bool stop = false;
		struct counter counter = {.stop = &stop};
		pthread_t thread;
		char *memory;

		start(NULL);
		memory = map_private(PAGES, RW, flags[i % 4]);
		counter.word = (volatile uint64_t *)(memory + 3 * FRAME);
		thread = start_thread(keep_counting, &counter);
		for (int k = 0; k < 5; k++)
			if (flags[i % 4] & HP_FORK_WITHOUT)
				run_child(exit_at_once, NULL);
			else
				run_child(forget_it, memory);
		atomic_store(&stop, true);
		join_thread(thread);
		EXPECT_EQ(*counter.word, counter.count);
		unmap(memory, PAGES);
		end();
	}
}

/* ---- anything --------------------------------------------------------------------------------------------------- */

/* What one process should find. */
struct model {
	unsigned seed, deep;
	struct {
		bool mapped;
		unsigned prot, policy;
		uint64_t tag; /* 0: zeroes */
	} page[PAGES];
};

static char *anything; /* the first address */

static unsigned any(struct model *model, unsigned below)
{
	model->seed = model->seed * 1103515245u + 12345u;
	return (model->seed >> 16) % below;
}

static void expect_model(const struct model *model)
{
	for (int i = 0; i < PAGES; i++) {
		const char *page = anything + i * FRAME;

		if (!model->page[i].mapped || !model->page[i].prot)
			continue;
		EXPECT(model->page[i].tag ? has_tag(page, model->page[i].tag) : touch(page) == 0 && is_zero(page));
	}
}

static bool is_mapped(const struct model *model, int first, int end)
{
	for (; first < end; first++)
		if (!model->page[first].mapped)
			return false;
	return true;
}

static void any_store(struct model *model)
{
	int i = any(model, PAGES);

	if (!model->page[i].mapped || model->page[i].prot != RW)
		return;
	model->page[i].tag = 1 + any(model, 10000);
	write_tag(anything + i * FRAME, model->page[i].tag);
}

static void any_unmap(struct model *model, int first, int end)
{
	int result = hp_unmap(anything + first * FRAME, (end - first) * FRAME);

	EXPECT_EQ(result, is_mapped(model, first, end) ? 0 : -EINVAL);
	for (int i = first; i < end && !result; i++)
		model->page[i].mapped = false;
}

static void any_protect(struct model *model, int first, int end)
{
	static const unsigned prots[] = {0, RO, RW, RW};
	unsigned prot = prots[any(model, 4)];
	int result = hp_protect(anything + first * FRAME, (end - first) * FRAME, prot);

	EXPECT_EQ(result, is_mapped(model, first, end) ? 0 : -EINVAL);
	for (int i = first; i < end && !result; i++)
		model->page[i].prot = prot;
}

/* Frozen files keep their frames, so that the pool may be short; and where nothing of ours is may be something else. */
static void any_map(struct model *model, int first, int end)
{
	unsigned policy = policies[any(model, POLICIES)], lazy = any(model, 2) ? LAZY : 0;
	bool replace = is_mapped(model, first, end);
	void *address = anything + first * FRAME;
	int result;

	for (int i = first; i < end && !replace; i++)
		if (model->page[i].mapped)
			return;
	result = hp_map_private(pool, (end - first) * FRAME, RW, policy | lazy | (replace ? HP_MAP_REPLACE : HP_MAP_AT),
	                        &address, &error);
	if (result == -ENOMEM || (result == -EEXIST && !replace))
		return;
	EXPECT_OK(result);
	for (int i = first; i < end; i++) {
		model->page[i].mapped = true;
		model->page[i].prot = RW;
		model->page[i].policy = policy;
		model->page[i].tag = 0;
	}
}

static void any_steps(struct model *model, int steps);

static void any_child(const struct model *parents)
{
	struct model model = *parents;

	model.seed += 77;
	model.deep++;
	for (int i = 0; i < PAGES; i++)
		model.page[i].mapped &= model.page[i].policy != HP_FORK_WITHOUT;
	if (any(&model, 2))
		expect_model(&model);
	any_steps(&model, 12);
	_exit(0);
}

static void any_fork(struct model *model)
{
	pid_t pid;

	if (model->deep == 2)
		return;
	pid = fork();
	EXPECT(pid >= 0);
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		any_child(model);
	}
	if (any(model, 2))
		any_store(model);
	join_child(pid);
}

static void any_steps(struct model *model, int steps)
{
	while (steps--) {
		int first = any(model, PAGES), end = first + 1 + any(model, PAGES - first);
		unsigned what = any(model, 10);

		if (what < 4)
			any_store(model);
		else if (what < 5)
			any_unmap(model, first, end);
		else if (what < 6)
			any_protect(model, first, end);
		else if (what < 8)
			any_map(model, first, end);
		else
			any_fork(model);
		expect_model(model);
	}
}

static void test_anything(void)
{
	const char *asked = getenv("HP_TEST_SEED");
	unsigned seed = asked ? (unsigned)strtoul(asked, NULL, 0) : (unsigned)time(NULL);

	fprintf(stderr, "HP_TEST_SEED=%u\n", seed);
	for (int round = 0; round < 12; round++) {
		struct model model = {.seed = seed + round * 1000};

		start(round % 2 ? "fault_window=1 fault_mutexes=1" : NULL);
		anything = map_private(PAGES, RW, any(&model, 2) ? LAZY : 0);
		for (int i = 0; i < PAGES; i++) {
			model.page[i].mapped = true;
			model.page[i].prot = RW;
		}
		any_steps(&model, 25);
		check_pool();
		for (int i = 0; i < PAGES; i++)
			if (model.page[i].mapped)
				unmap(anything + i * FRAME, 1);
		end();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		REAL_TEST(test_stores_stay),
		REAL_TEST(test_other_backings),
		REAL_TEST(test_untouched),
		REAL_TEST(test_generations),
		REAL_TEST(test_many_forks),
		REAL_TEST(test_child_does),
		REAL_TEST(test_parent_unmaps_first),
		REAL_TEST(test_parent_is_killed),
		REAL_TEST(test_pieces),
		REAL_TEST(test_replace),
		REAL_TEST(test_without),
		REAL_TEST(test_touch_within_fork),
		REAL_TEST(test_descriptors_are_closed),
		REAL_TEST(test_copy),
		REAL_TEST(test_holder),
		REAL_TEST(test_kernel_pool_is_empty),
		REAL_TEST(test_kernel_pool_is_empty_at_fork),
		REAL_TEST(test_no_memory_to_copy),
		REAL_TEST(test_fork_fails),
		REAL_TEST(test_errors),
		REAL_TEST(test_other_children),
		REAL_TEST(test_fork_while_touched),
		REAL_TEST(test_fork_while_touched_one_mutex),
		REAL_TEST(test_no_store_is_lost),
		REAL_TEST(test_anything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
