/* reader.h - a strict JSON reader that builds no tree.
 *
 * Vocabularies are most of a tokenizer.json: hundreds of thousands of members, each wanted once and
 * in order.  A tree of them costs more memory than the file and most of the time to open it, and
 * comes from an allocator that a test cannot make fail.  So the document is checked once, whole
 * (grammar, UTF-8, depth), and then walked in place: a value is the offset of its first byte. */
#ifndef FV_BASE_JSON_READER_H
#define FV_BASE_JSON_READER_H

#include "base/pool.h"

#define FV__JSON_DEPTH 64
#define FV__JSON_MEMBERS 96
#define FV__JSON_LARGE 8

typedef struct fv__json {
    const char *s; /* the whole document; not NUL-terminated */
    size_t n;
    const char *file; /* for messages */
    /* Objects and arrays of 64 KiB and more, and where they end: the check notes them, so that none
     * of them is walked through only to get past it. */
    int n_large;
    struct {
        size_t at, end;
    } large[FV__JSON_LARGE];
} fv__json;

/* A value; path says where it is, for messages ("model.vocab"). */
typedef struct fv__jval {
    const fv__json *j;
    size_t at;
    char path[96];
} fv__jval;

/* Checks all of the document and sets *root. */
fv_status fv__json_open(fv__jval *root, fv__json *j, fv_err *e);

/* '{' '[' '"' 't' 'f' 'n' or '0' for a number. */
char fv__json_kind(fv__jval v);
static inline bool fv__json_null(fv__jval v) { return fv__json_kind(v) == 'n'; }

/* Walking an array or object: it starts at the value, next sets value (and key, for objects) until
 * it returns false. */
typedef struct fv__jiter {
    const fv__json *j;
    size_t at;
    bool object;
    size_t key, key_end; /* of the raw key, without its quotes */
    size_t value;
    int64_t index;
} fv__jiter;

fv__jiter fv__json_iter(fv__jval v);
bool fv__json_next(fv__jiter *it);
int64_t fv__json_count(fv__jval v);
/* The value an iterator is at; its path is path[index]. */
fv__jval fv__json_item(fv__jval parent, const fv__jiter *it);
int64_t fv__json_id(const fv__jiter *it); /* a whole number from 0 to INT32_MAX / 4, or -1 */
size_t fv__json_size(fv__jval v);         /* bytes of its text */

/* Text of a string without its quotes: raw is in the document, text has its escapes undone.  dst
 * needs raw.n bytes. */
fv__str fv__json_raw(fv__jval v);
size_t fv__json_unescape(char *dst, const char *raw, size_t n);

/* An object of few members, indexed.  Duplicate keys are an error. */
typedef struct fv__jobj {
    fv__jval self;
    int n;
    struct {
        size_t key, key_end, value;
        bool used;
    } m[FV__JSON_MEMBERS];
} fv__jobj;

fv_status fv__json_object(fv__jobj *o, fv__jval v, fv_err *e);
/* Sets *v to a member and marks it used; false if it is missing. */
bool fv__json_get(fv__jval *v, fv__jobj *o, const char *key);
/* An error naming the first member nobody asked for: it might have changed the result. */
fv_status fv__json_done(const fv__jobj *o, fv_err *e);

/* Typed members.  A missing or null one leaves *out as it is, unless `must`. */
fv_status fv__json_bool(bool *out, fv__jobj *o, const char *key, bool must, fv_err *e);
fv_status fv__json_int(int64_t *out, fv__jobj *o, const char *key, int64_t least, int64_t most,
                       bool must, fv_err *e);
fv_status fv__json_str(fv__str *out, fv__pool *p, fv__jobj *o, const char *key, bool must,
                       fv_err *e);

/* Typed values. */
fv_status fv__json_to_int(int64_t *out, fv__jval v, int64_t least, int64_t most, fv_err *e);
fv_status fv__json_to_double(double *out, fv__jval v, fv_err *e);
fv_status fv__json_to_str(fv__str *out, fv__pool *p, fv__jval v, fv_err *e);

/* The number, if it is a whole one that fits. */
bool fv__json_whole(int64_t *out, fv__jval v);
/* The nearest double to any number; false where it is not finite. */
bool fv__json_real(double *out, fv__jval v);

/* FV_EFORMAT with file, line and column in front. */
fv_status fv__json_bad_at(fv__jval v, fv_err *e, const char *fmt, ...) FV_PRINTF(3, 4);
/* FV_EFORMAT with file and path in front. */
fv_status fv__json_bad(fv__jval v, fv_err *e, const char *fmt, ...) FV_PRINTF(3, 4);

#endif
