/* text.h - bytes that grow: bodies of requests, and answers written as JSON. */
#ifndef SV_TEXT_H
#define SV_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fovea/error.h"

/* Begin with {0}.  Once memory is out `failed` stays set and nothing more is added. */
typedef struct sv_text {
    char *s; /* NUL-terminated once anything was added */
    size_t n, cap;
    bool failed;
} sv_text;

void sv_add(sv_text *t, const char *s, size_t n);
void sv_put(sv_text *t, const char *s);
void sv_fmt(sv_text *t, const char *fmt, ...) FV_PRINTF(2, 3);
void sv_free(sv_text *t);
void sv_empty(sv_text *t); /* its memory serves again */

/* ---- JSON: a comma is added where one is needed ---- */

void sv_open(sv_text *t, char bracket); /* '{' or '[' */
void sv_close(sv_text *t, char bracket);
void sv_key(sv_text *t, const char *key);
void sv_string(sv_text *t, const char *s, size_t n); /* malformed UTF-8 becomes U+FFFD */
void sv_real(sv_text *t, double x);                  /* nine digits; null where it is not finite */
void sv_int(sv_text *t, int64_t x);
void sv_raw(sv_text *t, const char *json); /* a value that is JSON already */
/* [x0,x1,..] of n floats, whose digits sv_unpack writes: see text.c.  It appends to `to`. */
void sv_packed_reals(sv_text *t, const float *x, int64_t n);
bool sv_is_packed(const sv_text *t); /* there are such lists in it */
void sv_unpack(sv_text *to, const sv_text *from);
/* the same with their keys */
void sv_string_at(sv_text *t, const char *key, const char *s);
void sv_real_at(sv_text *t, const char *key, double x);
void sv_int_at(sv_text *t, const char *key, int64_t x);
void sv_raw_at(sv_text *t, const char *key, const char *json);

#endif
