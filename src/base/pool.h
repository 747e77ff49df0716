/* pool.h - memory that lives as long as a tokenizer: many small pieces, freed all at once. */
#ifndef FV_TOK_POOL_H
#define FV_TOK_POOL_H

#include "base/base.h"

typedef struct fv__str {
    const char *s; /* NUL-terminated when it comes from a pool */
    size_t n;
} fv__str;

typedef struct fv__pool {
    const fv_env *env;
    struct fv__chunk *chunks;
} fv__pool;

/* size bytes, cleared, aligned to 16, or NULL; a size of 0 gives one byte, so that NULL always
 * means failure. */
void *fv__pool_alloc(fv__pool *p, size_t size);
/* n items of size bytes, checked for overflow. */
void *fv__pool_array(fv__pool *p, size_t n, size_t size);
/* A NUL-terminated copy. */
bool fv__pool_str(fv__pool *p, fv__str *out, const char *s, size_t n);
void fv__pool_free(fv__pool *p);

static inline bool fv__str_is(fv__str a, const char *b)
{
    return strlen(b) == a.n && !memcmp(a.s, b, a.n);
}
static inline bool fv__str_eq(fv__str a, fv__str b)
{
    return a.n == b.n && (!a.n || !memcmp(a.s, b.s, a.n));
}

#endif
