/* base.h - memory, files, strings and checked sizes for the rest of the library; libc only. */
#ifndef FV_BASE_H
#define FV_BASE_H

#include <stdarg.h>
#include <string.h>

#include "fovea/env.h"

/* ---- memory: env may be NULL everywhere ---- */

#define FV__HUGE_PAGE ((size_t)2 << 20) /* of x86_64, and of aarch64 with pages of 4 KiB */

/* size bytes, 64-byte aligned, cleared; NULL if there are none (or size is 0).  fv__free gets the
 * same size. */
void *fv__alloc(const fv_env *env, size_t size);
void *fv__alloc_raw(const fv_env *env, size_t size); /* not cleared */
void fv__free(const fv_env *env, void *p, size_t size);
/* Grows *p, which holds `have` bytes, to at least `want` (doubling); false leaves it as it was. */
bool fv__grow(const fv_env *env, void **p, size_t *have, size_t want);

/* ---- sizes that come from files ---- */

static inline bool fv__add_size(size_t *out, size_t a, size_t b)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool fv__mul_size(size_t *out, size_t a, size_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool fv__mul_i64(int64_t *out, int64_t a, int64_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* ---- growing text or bytes; failed stays set once memory is out ---- */

typedef struct fv_buf {
    const fv_env *env;
    char *data; /* NUL-terminated once anything was added; NULL before */
    size_t len, cap;
    bool failed;
} fv_buf;

void fv__buf_add(fv_buf *b, const void *bytes, size_t n);
void fv__buf_str(fv_buf *b, const char *s);
void fv__buf_fmt(fv_buf *b, const char *fmt, ...) FV_PRINTF(2, 3);
void fv__buf_free(fv_buf *b);

/* gzip shrinks text to a third, seldom to a thirtieth; what it shrinks to a thousandth was made to
 * fill a memory.  Whether `in` compressed bytes may have become `out`. */
static inline bool fv__may_inflate(uint64_t in, uint64_t out)
{
    return out <= (16u << 20) || out / 200 <= in;
}

/* ---- strings ---- */

char *fv__strdup(const fv_env *env, const char *s); /* free with fv__free(env, p, strlen(p) + 1) */
static inline const char *fv__closest(const char *word, const char *const *list)
{
    return fv_closest(word, list);
}

/* Length of the valid UTF-8 sequence at s (1..4, at most n bytes), or 0; *cp gets the code
 * point. */
int fv__utf8_get(uint32_t *cp, const char *s, size_t n);
int fv__utf8_put(char out[4], uint32_t cp);
/* Offset of the first malformed byte, or n. */
size_t fv__utf8_check(const char *s, size_t n);

/* ---- files ---- */

const fv_io *fv__io(const fv_env *env); /* never NULL */

/* What the path names.  Only a path that is not there is FV_PATH_ABSENT: one that cannot be looked
 * at (no permission, no descriptors left, a loop of links) is FV_EIO. */
fv_status fv__path_kind(fv_path_kind *kind, const fv_env *env, const char *path, fv_err *e);
/* Whether anything is there.  Where that cannot be told it says yes, so that opening it, which the
 * caller does next, reports the reason. */
bool fv__file_exists(const fv_env *env, const char *path);

typedef struct fv_file {
    const fv_env *env;
    const char *data; /* not NUL-terminated; "" for an empty file */
    size_t size, cap; /* cap: bytes to free when not mapped */
    bool mapped;
} fv_file;

/* The whole file.  Small ones and everything that is not a regular file are read into memory, so
 * that another process cannot change them while they are parsed; the rest is mapped.  Errors name
 * the path and the reason. */
fv_status fv__file_open(fv_file *f, const fv_env *env, const char *path, fv_err *e);
/* Always a copy, of at most `most` bytes. */
fv_status fv__file_read(fv_file *f, const fv_env *env, const char *path, size_t most, fv_err *e);
/* Always mapped where that is possible, for data that is used in place. */
fv_status fv__file_map(fv_file *f, const fv_env *env, const char *path, fv_err *e);
/* The file at path still has the size with which it was opened: touching a page of a map beyond the
 * end of a file that was truncated kills the process. */
fv_status fv__file_same_size(const fv_file *f, const char *path, fv_err *e);
void fv__file_close(fv_file *f);

/* Writing in pieces: to a file with a random name beside it, which commit syncs and renames, so
 * path has the old or the new content, never half of it.  Where path is a link, what it points to
 * is replaced; a device or a FIFO is written to.  A failed write is remembered: add needs no check,
 * commit reports.  Between open and commit, abandon gives up. */
#define FV_PATH 4096
typedef struct fv_out {
    const fv_env *env;
    int fd;             /* -1 when nothing is open */
    int rc;             /* the first failure, a negative errno */
    bool in_place;      /* a device or a FIFO: nothing is renamed */
    uint64_t size;      /* bytes written so far */
    char path[FV_PATH]; /* what is written, links resolved */
    char tmp[FV_PATH];  /* the file beside it */
} fv_out;

fv_status fv__out_open(fv_out *o, const fv_env *env, const char *path, fv_err *e);
void fv__out_add(fv_out *o, const void *bytes, size_t n);
fv_status fv__out_commit(fv_out *o, fv_err *e);
void fv__out_abandon(fv_out *o);

/* The same for one piece. */
fv_status fv__file_write(const fv_env *env, const char *path, const void *data, size_t n,
                         fv_err *e);
/* Makes the directory unless it is there; the one above it must be, and is synced. */
fv_status fv__dir_make(const fv_env *env, const char *path, fv_err *e);
/* Locks a directory against every other run in it until fv__dir_unlock.  *lock is -1 where the file
 * system has no locks on directories (NFS): that is no error.  One that another holds is
 * FV_ESTATE. */
fv_status fv__dir_lock(int *lock, const fv_env *env, const char *path, fv_err *e);
void fv__dir_unlock(int *lock, const fv_env *env);
/* The directory of a path: "." if it names none. */
void fv__dir_of(char out[FV_PATH], const char *path);

#endif
