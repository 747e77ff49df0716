/* memfs.h - a file system in memory that fails or crashes when told to.
 *
 * Every file has content as written and content as synced, every directory entries as they are and
 * as synced.  After a crash memfs_crash decides which of both survived, as a disk might. */
#ifndef HELPER_MEMFS_H
#define HELPER_MEMFS_H

#include "fovea/env.h"

typedef struct memfs_node memfs_node;

typedef struct memfs {
    fv_io io; /* hand this to an fv_env */
    memfs_node *root, *nodes;
    memfs_node *open[16];
    size_t at[16];
    int calls;        /* so far, of those that may fail */
    int fail_at;      /* the call that fails (the first is 1; 0: none) */
    int crash_at;     /* the call from which on everything fails; a write gets half way */
    int maps, opened; /* still mapped, still open: must be 0 at the end */
} memfs;

void memfs_init(memfs *fs);
void memfs_free(memfs *fs);

/* The power comes back: names and contents are those last synced, or those last seen.  Counters
 * start anew. */
void memfs_crash(memfs *fs, bool keep_names, bool keep_data);

/* Without counting.  put makes the file and the directories above it, synced; get is NULL for a
 * missing one. */
void memfs_put(memfs *fs, const char *path, const void *data, size_t n);
const char *memfs_get(const memfs *fs, const char *path, size_t *n);
bool memfs_has(const memfs *fs, const char *path); /* a file or a directory */

#endif
