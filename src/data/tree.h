/* tree.h - the files of a directory, or of a tar archive, by their paths in it.
 *
 * Sorted by path, so that their order does not depend on the file system.  Those of an archive are
 * in memory, those of a directory are read when they are asked for.  Read-only once opened. */
#ifndef FV_DATA_TREE_H
#define FV_DATA_TREE_H

#include "base/base.h"
#include "base/pool.h"
#include "data/plain.h"

typedef struct fv__tree_file {
    const char *name; /* "train/cat/0001.jpg" */
    const char *data; /* NULL: it is on the disk */
    size_t size;
} fv__tree_file;

typedef struct fv__tree {
    const fv_env *env;
    fv__pool pool;
    fv__plain archive;
    char root[FV_PATH]; /* of a directory, or the archive's path */
    fv__tree_file *file;
    size_t bytes;
    int64_t n;
} fv__tree;

/* path: a directory, or an archive, plain or gzip.  Close it whatever comes back. */
fv_status fv__tree_open(fv__tree *t, const fv_env *env, const char *path, fv_err *e);
void fv__tree_close(fv__tree *t);
/* The number of a path, or -1. */
int64_t fv__tree_find(const fv__tree *t, const char *name);

/* The content of file i; close it with fv__file_close.  name gets its path, for messages. */
fv_status fv__tree_read(const fv__tree *t, int64_t i, fv_file *out, char name[FV_PATH], fv_err *e);

#endif
