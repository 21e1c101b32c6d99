/* SPDX-License-Identifier: MIT */
/* Text tables: the first column's words to the left, figures to the right, columns as wide as they have to be. */
#ifndef BENCH_TABLE_H
#define BENCH_TABLE_H

#include <stdio.h>

#define TABLE_COLUMNS 12
#define TABLE_CELL 64

struct table {
	unsigned columns, left; /* the first `left` columns are words */
	unsigned rows, room;
	char (*cell)[TABLE_COLUMNS][TABLE_CELL];
};

void table_init(struct table *table, unsigned columns, unsigned left);
/* Begins a row; the first row is the heading. A cell that is not set is empty. */
void table_row(struct table *table);
void table_set(struct table *table, unsigned column, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Prints and frees it. */
void table_print(struct table *table, FILE *out);

/* A figure in the unit that suits its size: "3.42 k/s", "131 us", "15.2 GB/s"; "-" for NaN. */
const char *table_figure(char cell[TABLE_CELL], double value, const char *unit);
/* "1.03", "1250"; "-" for NaN. */
const char *table_ratio(char cell[TABLE_CELL], double ratio);

#endif
