/* tar.h - the files of a tar archive that is in memory, one after another. */
#ifndef FV_DATA_TAR_H
#define FV_DATA_TAR_H

#include "base/base.h"

enum { FV__TAR_NAME = 1024 };

typedef struct fv__tar {
    const char *data; /* the whole archive, unpacked */
    size_t size, at;
    const char *path; /* for messages */
} fv__tar;

typedef struct fv__tar_entry {
    char name[FV__TAR_NAME];
    const char *data; /* in the archive; NULL: the archive has ended */
    size_t size;
} fv__tar_entry;

/* The next regular file; directories, links and devices are passed over.  Names by ustar's prefix,
 * GNU's long names and pax's path; a name that leaves the archive ("/x", "../x") is refused, as are
 * sums that do not fit and sizes beyond the end. */
fv_status fv__tar_next(fv__tar *t, fv__tar_entry *out, fv_err *e);

#endif
