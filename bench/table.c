/* SPDX-License-Identifier: MIT */
#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_init(struct table *table, unsigned columns, unsigned left)
{
	memset(table, 0, sizeof(*table));
	table->columns = columns;
	table->left = left;
}

void table_row(struct table *table)
{
	if (table->rows == table->room) {
		table->room = table->room ? 2 * table->room : 16;
		table->cell = realloc(table->cell, table->room * sizeof(table->cell[0]));
		if (!table->cell)
			abort();
	}
	memset(table->cell[table->rows++], 0, sizeof(table->cell[0]));
}

void table_set(struct table *table, unsigned column, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(table->cell[table->rows - 1][column], TABLE_CELL, format, args);
	va_end(args);
}

void table_print(struct table *table, FILE *out)
{
	unsigned width[TABLE_COLUMNS] = {0}, last;

	for (unsigned r = 0; r < table->rows; r++)
		for (unsigned c = 0; c < table->columns; c++) {
			unsigned length = (unsigned)strlen(table->cell[r][c]);

			width[c] = length > width[c] ? length : width[c];
		}
	for (unsigned r = 0; r < table->rows; r++) {
		for (last = table->columns; last && !table->cell[r][last - 1][0]; last--)
			;
		fputs(" ", out);
		for (unsigned c = 0; c < last; c++) {
			const char *cell = table->cell[r][c];

			if (c < table->left)
				fprintf(out, " %-*s ", c + 1 < last ? (int)width[c] : 0, cell);
			else
				fprintf(out, " %*s ", (int)width[c], cell);
		}
		fputs("\n", out);
	}
	free(table->cell);
	memset(table, 0, sizeof(*table));
}

/* Three digits that count. */
static int decimals(double value)
{
	value = fabs(value);
	return value >= 100 ? 0 : value >= 10 ? 1 : 2;
}

const char *table_figure(char cell[TABLE_CELL], double value, const char *unit)
{
	static const char *const large[] = {"", "k", "M", "G", "T"};
	static const char *const small[] = {"s", "ms", "us", "ns"};
	unsigned step = 0;

	if (!strcmp(unit, "ns") || !strcmp(unit, "us")) {
		value /= *unit == 'n' ? 1e9 : 1e6;
		unit = "s";
	}
	if (isnan(value)) {
		snprintf(cell, TABLE_CELL, "-");
	} else if (!strcmp(unit, "s")) {
		for (; step < 3 && fabs(value) < 0.9995 && value != 0; step++)
			value *= 1000;
		snprintf(cell, TABLE_CELL, "%.*f %s", decimals(value), value, small[step]);
	} else {
		for (; step < 4 && fabs(value) >= 999.5; step++)
			value /= 1000;
		snprintf(cell, TABLE_CELL, "%.*f %s%s", decimals(value), value, large[step],
		         !strcmp(unit, "1/s") ? "/s" : unit);
	}
	return cell;
}

const char *table_ratio(char cell[TABLE_CELL], double ratio)
{
	if (isnan(ratio))
		snprintf(cell, TABLE_CELL, "-");
	else
		snprintf(cell, TABLE_CELL, "%.*f", fabs(ratio) < 0.1 ? 4 : decimals(ratio), ratio);
	return cell;
}
