/* helper_files.h - files of a test. */
#ifndef HELPER_FILES_H
#define HELPER_FILES_H

#include <stddef.h>

/* All of a file, behind which a 0 stands; the test fails where it cannot be read.  The caller frees. */
char *slurp(const char *path, size_t *n);

#endif
