/* SPDX-License-Identifier: MIT */
/*
 * What stands in the way of huge pages on a machine, and what mends it. Policy only: reads a probe, prints nothing.
 */
#ifndef HP_CLI_FINDINGS_H
#define HP_CLI_FINDINGS_H

#include "os/probe.h"

enum hp_severity {
	HP_SEVERITY_BLOCKS, /* a kind of memory cannot be had at all */
	HP_SEVERITY_SLOWS,  /* it works, with less speed than this machine could have */
	HP_SEVERITY_NOTE,   /* a limit that large programs run into */
};

struct hp_finding {
	const char *id; /* stable, for programs: "no_huge_pages" */
	enum hp_severity severity;
	char text[512];
	char command[HP_PROBE_PATH + 128]; /* to be pasted into a shell; "" where only the text can tell what to do */
};

/* More than there are kinds of findings, with room for one per node. */
#define HP_FINDINGS_MAX (16 + HP_PROBE_NODES)

/* Fills `findings` in order of severity and returns how many there are. `root`: commands need no sudo. */
int hp_findings(const struct hp_probe *probe, bool root, struct hp_finding findings[HP_FINDINGS_MAX]);

/* "blocks", "slows", "note". */
const char *hp_severity_name(enum hp_severity severity);

/* Bytes for people: "2 MiB", "23.5 GiB". Returns `text`. */
const char *hp_format_bytes(uint64_t bytes, char *text, size_t size);

#endif
