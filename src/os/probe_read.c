/* SPDX-License-Identifier: MIT */
#include "os/probe_read.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

FILE *hp_read_open(const char *root, const char *path)
{
	char full[2 * HP_PROBE_PATH];

	if (snprintf(full, sizeof(full), "%s%s", root, path) >= (int)sizeof(full)) {
		errno = ENAMETOOLONG;
		return NULL;
	}
	return fopen(full, "re");
}

void hp_read_copy(char *to, size_t size, const char *from)
{
	size_t length = strnlen(from, size - 1);

	memcpy(to, from, length);
	to[length] = '\0';
}

int hp_read_line(const char *root, const char *path, char *line, size_t size)
{
	FILE *file = hp_read_open(root, path);
	char buffer[1024];

	if (!file)
		return -errno;
	/* An empty file and a read error look alike and mean the same here: nothing is known. */
	if (!fgets(buffer, sizeof(buffer), file)) {
		fclose(file);
		return -ENODATA;
	}
	fclose(file);
	buffer[strcspn(buffer, "\n")] = '\0';
	hp_read_copy(line, size, buffer);
	return 0;
}

static int parse_number(const char *text, uint64_t *number)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (errno)
		return -errno;
	*number = value;
	return 0;
}

int hp_read_number(const char *root, const char *path, uint64_t *number)
{
	char line[64];
	int error = hp_read_line(root, path, line, sizeof(line));

	return error ? error : parse_number(line, number);
}

int hp_read_choice(const char *root, const char *path, char *word, size_t size)
{
	char line[256];
	int error = hp_read_line(root, path, line, sizeof(line));

	if (error)
		return error;
	char *begin = strchr(line, '[');
	char *end = begin ? strchr(begin, ']') : NULL;
	if (!end)
		return -EINVAL;
	*end = '\0';
	hp_read_copy(word, size, begin + 1);
	return 0;
}

int hp_read_kb(const char *root, const char *path, const char *key, uint64_t *bytes)
{
	FILE *file = hp_read_open(root, path);
	char line[256];
	int error = -ENOENT;

	if (!file)
		return -errno;
	while (fgets(line, sizeof(line), file)) {
		/* A node's meminfo has "Node 0" before the key. */
		char *found = strstr(line, key);
		if (!found || found[strlen(key)] != ':' || (found != line && found[-1] != ' '))
			continue;
		char *value = found + strlen(key) + 1;
		uint64_t kb;
		error = parse_number(value + strspn(value, " \t"), &kb);
		if (!error && kb > UINT64_MAX / 1024)
			error = -ERANGE;
		if (!error)
			*bytes = kb * 1024;
		break;
	}
	fclose(file);
	return error;
}
