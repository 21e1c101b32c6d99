/* SPDX-License-Identifier: MIT */
/* `hugepool bench tlb`: what one series of it measures. */
#ifndef BENCH_TLB_H
#define BENCH_TLB_H

#include "harness.h"

/* The memory is in base pages; every second page of 2 MiB is huge; all are. */
enum tlb_phase { TLB_BASE, TLB_HALF, TLB_COLLAPSED, TLB_PHASES };

enum { TLB_READ, TLB_BASE_BYTES, TLB_FRAMES, TLB_IN_PLACE, TLB_FIGURES };
#define TLB_METRIC(figure, phase) ((figure)*TLB_PHASES + (phase))
#define TLB_METRICS (TLB_FIGURES * TLB_PHASES)

struct tlb {
	uint64_t size;           /* bytes */
	char why_not[BENCH_WHY]; /* it does not fit; empty: it does */
};

/* How many places are read in the memory, each once in a pass, and how far apart they are. */
uint64_t tlb_nodes(uint64_t size);
uint64_t tlb_stride(uint64_t size);

extern const struct bench_job tlb_job;

#endif
