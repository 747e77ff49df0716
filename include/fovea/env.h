/* env.h - what the library asks of its surroundings: memory and files.
 *
 * Both are objects that travel in an fv_env, so there are no globals and a test can put a failing
 * one in their place.  Wherever a `const fv_env *` is taken, NULL means the C library and the file
 * system. */
#ifndef FOVEA_ENV_H
#define FOVEA_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fovea/error.h"

/* An allocator.  `alloc` returns size bytes aligned to 64, not cleared, or NULL; `release` gets the
 * same size back.  Both may be called from several threads at once. */
typedef struct fv_mem {
    void *(*alloc)(void *self, size_t size);
    void (*release)(void *self, void *p, size_t size);
    void *self;
} fv_mem;

typedef void fv_name_fn(void *user, const char *name);

/* What a path names; links are followed. */
typedef enum fv_path_kind {
    FV_PATH_ABSENT, /* nothing at all: every other failure to look is an error */
    FV_PATH_FILE,
    FV_PATH_DIR,
    FV_PATH_SPECIAL /* a device, a FIFO, a socket */
} fv_path_kind;

/* Files.  Every open, read, write, sync, rename, unlink and listing of the library goes through one
 * of these.  Calls return 0 or a count, or a negative errno.  The members after `list` may be NULL:
 * the library then does without. */
typedef struct fv_io {
    int (*open_read)(void *self, const char *path);
    int (*open_write)(void *self, const char *path); /* creates or truncates */
    int64_t (*read)(void *self, int fd, void *buf, size_t n);
    int64_t (*write)(void *self, int fd, const void *buf, size_t n);
    int64_t (*size)(void *self, int fd);
    const void *(*map)(void *self, int fd, size_t n); /* read only; NULL on failure */
    void (*unmap)(void *self, const void *p, size_t n);
    int (*sync)(void *self, int fd);
    int (*close)(void *self, int fd);
    int (*rename)(void *self, const char *from, const char *to);
    int (*unlink)(void *self, const char *path);
    int (*mkdir)(void *self, const char *path);
    int (*sync_dir)(void *self, const char *path);
    int (*rmdir)(void *self, const char *path); /* an empty directory */
    /* names in a directory, in no order */
    int (*list)(void *self, const char *path, fv_name_fn *each, void *user);
    /* part of a map may leave memory; NULL: it stays */
    void (*advise_unused)(void *self, const void *p, size_t n);
    /* an fv_path_kind other than FV_PATH_ABSENT, without opening the file; NULL: it is opened */
    int (*kind)(void *self, const char *path);
    /* where a symbolic link points, as a string of at most n - 1 bytes, whose length it returns;
     * -EINVAL for anything but a link; NULL: there are no links */
    int (*read_link)(void *self, const char *path, char *out, size_t n);
    /* creates a file that must not be there, not even as a link; NULL: open_write does */
    int (*open_new)(void *self, const char *path);
    /* removes the entry `name` of a directory that is not itself a link; NULL: unlink does */
    int (*unlink_in)(void *self, const char *dir, const char *name);
    /* locks a directory against other processes until the descriptor it returns is closed;
     * -EWOULDBLOCK where another has it; NULL: nothing is locked */
    int (*lock_dir)(void *self, const char *path);
    void *self;
} fv_io;

typedef struct fv_env {
    const fv_mem *mem; /* NULL: malloc */
    const fv_io *io;   /* NULL: POSIX */
} fv_env;

/* The counting allocator: malloc with counters, an optional limit in bytes (0: none) and, for
 * tests, the number of the one allocation that fails (0: none; the first is 1). */
typedef struct fv_mem_counter {
    fv_mem mem; /* hand this to an fv_env */
    size_t limit, fail_at;
    size_t live, peak, count; /* bytes now, most bytes at once, allocations so far */
} fv_mem_counter;

FV_API void fv_mem_counter_init(fv_mem_counter *m); /* all counters 0, no limit */

/* Between texts that stand in one string, such as the references of a translation: the record
 * separator of ASCII. */
#define FV_NEXT_TEXT "\x1E"

#endif
