/* SPDX-License-Identifier: MIT */
/* The command `hugepool bench fallocate`. */
#include "fallocate.h"

#include "command.h"

#include <stdio.h>

#define SIM_MAX (16 * FALLOCATE_LARGE) /* its addresses end there */

const char bench_fallocate_help[] =
	"Usage: hugepool bench fallocate [OPTIONS]\n\n"
	"How long it takes to make every page of a file present, and where the time goes. Ways to fill:\n\n"
	"  kernel               a memfd of huge pages, fallocate(2), which has one thread in a file at a time\n"
	"  tuned                a memfd, MADV_POPULATE_WRITE by a thread for each CPU\n"
	"  hugepool             hp_file_allocate() by one thread, from a pool whose frames were zeroed before the\n"
	"                       clock: by the workers, in idle time\n"
	"  hugepool stock=dirty the same from a pool whose frames have all been used, and no workers: a thread for\n"
	"                       each CPU allocates its part, and zeroes it\n\n"
	"Threads are there when the clock starts. By itself, pages are entered in an index, for this file and always\n"
	"for one of 1 TiB:\n\n"
	"  radix insert=frame   the library's page-cache index, page by page, as scattered faults fill it\n"
	"  radix insert=run     the same, up to 512 pages in a row at once, as a fill from a stock does\n"
	"  flat                 a table of 4 bytes for each page\n\n"
	"An index is filled in the order of the file, into memory that is mapped already, and looked up in random\n"
	"order, 1024 pages in each read section (lookup), and with a read section for each (section each).\n\n"
	"Where the time goes, of the wall clock:\n\n"
	"  zeroing       the same frames zeroed once more by themselves, by as many threads; those that the pool\n"
	"                counted as zeroed in the fill\n"
	"  index         insert=frame where frames are dirty, else insert=run\n"
	"  system calls  counted by ptrace(2) before the clock, where one thread fills the file; if all of them are\n"
	"                rt_sigprocmask(2), valued at what one takes here; kernel and tuned are nothing but calls\n"
	"  other         the rest, and below zero where the parts by themselves come to more than the whole\n\n"
	"of a fill: the insertion's part in the time of the threads that fill from dirty frames.\n\n"
	"With --sim nothing has memory: hugepool is a pool on the backend for tests, so that filling a file of any\n"
	"size costs the books alone. insert_ns then is all of hp_file_allocate() for a frame, bytes_per_frame what\n"
	"it made resident.\n\n"
	"  --size SIZE   of the file (default 2G, with --sim 1T), rounded up to huge pages\n"
	"  --no-stock    hugepool without a stock only\n"
	"  --sim         without memory; --size is at most 16T\n"
	"  --rounds N    rounds that count (default 5)\n"
	"  --json        JSON alone on standard output\n\n"
	"JSON: metrics bytes_per_s, elapsed_ns, syscalls, syscalls_ns (of all threads together), zeroed_frames and\n"
	"zeroing_ns of what fills; of the indexes, for a page, insert_ns, lookup_ns, lookup_alone_ns and\n"
	"bytes_per_frame. Beside what all workloads have: where, a list of {engine, variant, elapsed_ns, zeroing_ns,\n"
	"index_ns, syscalls_ns, other_ns}; index, of {engine, variant, share_percent}; ratios.elapsed_ns.pairs, of\n"
	"{ours, theirs, ratio, min, max, low, high, samples}, round by round, low and high with 95 % confidence from\n"
	"6 rounds on.\n\n"
	"Examples:\n"
	"  hugepool bench fallocate --size 2G\n"
	"  hugepool bench fallocate --size 8G --no-stock --rounds 9 --json\n"
	"  hugepool bench fallocate --sim --size 1T\n";

static const char *const option_names[] = {"size=", "no-stock", "sim", "rounds=", "json", NULL};
enum option { SIZE, NO_STOCK, SIM, ROUNDS, JSON };

struct asked {
	uint64_t size, rounds;
	bool no_stock, sim, json;
};

static int read_options(struct asked *asked, int argc, char **argv)
{
	struct bench_options options = {.command = "fallocate", .argc = argc, .argv = argv};
	int option;

	while ((option = bench_option(&options, option_names)) != -3) {
		if (option == -2)
			return BENCH_USAGE;
		if (option == -1)
			return bench_usage("fallocate", "'%s' is not an option", options.value);
		if (option == SIZE && !bench_parse_size(options.value, &asked->size))
			return bench_usage("fallocate", "--size takes a size like 2G or 1T");
		if (option == ROUNDS && !bench_parse_number(options.value, 1, BENCH_SAMPLES_MAX, &asked->rounds))
			return bench_usage("fallocate", "--rounds takes a number from 1 to %d", BENCH_SAMPLES_MAX);
		asked->no_stock |= option == NO_STOCK;
		asked->sim |= option == SIM;
		asked->json |= option == JSON;
	}
	if (asked->sim && asked->no_stock)
		return bench_usage("fallocate", "--sim has no memory to zero: --no-stock means nothing there");
	if (!asked->size)
		asked->size = asked->sim ? FALLOCATE_LARGE : 2 * BENCH_GIB;
	if (asked->size > SIM_MAX)
		return bench_usage("fallocate", "--size is at most 16T");
	asked->size = (asked->size + BENCH_FRAME - 1) / BENCH_FRAME * BENCH_FRAME;
	return BENCH_DONE;
}

static void add_report(const struct bench_run *run, json_t *report)
{
	if (report)
		fallocate_report(run, report);
}

int bench_fallocate(int argc, char **argv)
{
	static struct bench_run run = {.bench = "fallocate"};
	struct asked asked = {.rounds = BENCH_ROUNDS};
	int status = read_options(&asked, argc, argv);
	char size[TABLE_CELL];

	if (status != BENCH_DONE)
		return status;
	if (asked.sim)
		fallocate_plan_sim(&run, asked.size);
	else
		fallocate_plan(&run, asked.size, !asked.no_stock);
	run.rounds = (unsigned)asked.rounds;
	snprintf(run.title, sizeof(run.title), "fallocate, a file of %s%s", fallocate_size_text(size, asked.size),
	         asked.sim ? " without memory" : "");
	return bench_command_with(&run, asked.json,
	                          json_pack("{s:I,s:b,s:b,s:I}", "size", (json_int_t)asked.size, "no_stock",
	                                    asked.no_stock, "sim", asked.sim, "rounds", (json_int_t)asked.rounds),
	                          fallocate_print, add_report);
}
