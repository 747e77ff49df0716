/* scan.h - a pull scanner over JSON text: strict, without memory of its own.
 *
 * Headers of safetensors files may have 100 MB; a tree of such text (jansson's, which we use for
 * configurations) takes twenty times that.  The scanner takes nothing: the caller asks for what
 * must come next.  The first failure is kept, with its byte offset, and every later call is
 * false. */
#ifndef FV_STORE_SCAN_H
#define FV_STORE_SCAN_H

#include "base/base.h"

typedef struct fv_scan {
    const char *start, *at, *end;
    const char *path; /* for messages: "model.safetensors: header" */
    fv_err *e;
    fv_status st;
} fv_scan;

/* A string as it stands in the text, between its quotes, checked: UTF-8, no control characters,
 * sound escapes, no \u0000. */
typedef struct fv_raw {
    const char *s;
    size_t n;
    bool escaped;
} fv_raw;

/* Fails at the present place unless it has failed before: always false. */
bool fv__scan_fail(fv_scan *s, const char *what);

bool fv__scan_accept(fv_scan *s, char c); /* c, after white space, must come */
/* Inside an object or array: true if another member comes, with its comma consumed; false at the
 * closing bracket. */
bool fv__scan_more(fv_scan *s, char close, bool first);
bool fv__scan_string(fv_scan *s, fv_raw *out);
/* an integer >= 0, without sign, fraction or exponent */
bool fv__scan_u64(fv_scan *s, uint64_t *out);
bool fv__scan_skip(fv_scan *s, int depth); /* any value, nested at most that deep */
bool fv__scan_end(fv_scan *s);             /* nothing but white space may follow */

/* Writes the string with its escapes replaced, at most r.n bytes and a NUL; returns its length. */
size_t fv__raw_decode(char *out, fv_raw r);
bool fv__raw_is(fv_raw r, const char *word);

/* As much of it as belongs into a message: printf("%.*s", FV_RAW_SHOWN(r)). */
#define FV_RAW_SHOWN(r) fv__raw_cut(r), (r).s
int fv__raw_cut(fv_raw r);

#endif
