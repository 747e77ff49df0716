/* files.h - files of a test, and a folder of its own for them. */
#ifndef HELPER_FILES_H
#define HELPER_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "fovea/error.h"

/* All of a file, behind which a 0 stands; the test fails where it cannot be read.  The caller
 * frees. */
char *slurp(const char *path, size_t *n);
bool same_files(const char *a, const char *b);

/* The folder: for cmocka's set-up and tear-down of a group.  It is removed with all that is in
 * it. */
int scratch_open(void **state);
int scratch_close(void **state);

/* The path of something in it; ".": of itself.  Holds for fifteen further calls. */
const char *scratch(const char *fmt, ...) FV_PRINTF(1, 2);
bool scratch_has(const char *name);  /* a file with something in it */
void scratch_drop(const char *name); /* removes a file or a folder with all that is in it */

/* Writes a file into it and gives its path. */
const char *scratch_put(const char *name, const void *data, size_t n);
const char *scratch_text(const char *name, const char *text);

#endif
