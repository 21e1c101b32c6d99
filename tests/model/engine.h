/* SPDX-License-Identifier: MIT */
/*
 * Runs a list of operations, as a string of bytes, on a pool on the sim backend and against the model.
 *
 * The first ENGINE_HEADER bytes choose the pool; then each operation has ENGINE_OP bytes: its kind, which handle or
 * mapping, two 16-bit numbers that mostly choose a range, and two bytes of flags. They mean something in whatever
 * state they find: any string of bytes is a list, and any part of a list is one. What is missing of the last operation
 * is zero.
 */
#ifndef MODEL_ENGINE_H
#define MODEL_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ENGINE_HEADER = 4, ENGINE_OP = 8 };

/* Ends the process by abort() where something is not as it should be. Verbose: says what it does. */
void engine_run(const uint8_t *data, size_t size, bool verbose);

#endif
