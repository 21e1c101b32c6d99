/* SPDX-License-Identifier: MIT */
/*
 * For the files of the probe alone: small readers of /proc and /sys. `root` is put before every path.
 * All return 0 or a negative errno and leave the output as it was when they fail.
 */
#ifndef HP_OS_PROBE_READ_H
#define HP_OS_PROBE_READ_H

#include "os/probe.h"

#include <stdio.h>

/* For reading line by line; NULL if there is no such file. */
FILE *hp_read_open(const char *root, const char *path);

/* The first line, without its newline, cut to `size`. */
int hp_read_line(const char *root, const char *path, char *line, size_t size);

/* A file that begins with a decimal number. */
int hp_read_number(const char *root, const char *path, uint64_t *number);

/* The word in brackets of a file like "always [madvise] never". */
int hp_read_choice(const char *root, const char *path, char *word, size_t size);

/* The number after `key` in a file like /proc/meminfo, which counts in kB. */
int hp_read_kb(const char *root, const char *path, const char *key, uint64_t *bytes);

/* Copies as much as fits and always ends with a NUL. */
void hp_read_copy(char *to, size_t size, const char *from);

/* probe_cgroup.c: the kind of control groups and all limits in them. The pools must have been read. */
void hp_probe_read_cgroups(struct hp_probe *probe, const char *root);

/* probe_kernel.c: release, upstream version, machine. */
void hp_probe_read_kernel(struct hp_probe *probe, const char *root);

#endif
