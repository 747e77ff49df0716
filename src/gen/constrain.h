/* constrain.h - the inside of constrained generation: rules over bytes, and bytes of tokens. */
#ifndef FV_CONSTRAIN_H
#define FV_CONSTRAIN_H

#include "base/base.h"
#include "fovea/gen.h"

/* ---- rules ---- */

/* A context-free grammar over bytes.  A rule has alternatives; an alternative is a run of elements
 * that ends in FV_ELEM_END.  Classes 0 to 255 are single bytes. */
enum { FV_ELEM_END, FV_ELEM_CLASS, FV_ELEM_RULE };

typedef struct fv_elem {
    int32_t kind, arg; /* arg: number of the class or rule */
} fv_elem;

typedef struct fv_byte_class {
    uint64_t bits[4];
} fv_byte_class;

typedef struct fv_alt {
    int32_t first; /* its first element */
    int32_t next;  /* the next alternative of the rule, or -1 */
} fv_alt;

typedef struct fv_rules {
    const fv_env *env;
    fv_buf elems, classes, alts, rules; /* arrays of the above; rules: int32_t, first alternative */
} fv_rules;

static inline const fv_elem *fv__elem(const fv_rules *r, int32_t i)
{
    return (const fv_elem *)(const void *)r->elems.data + i;
}

static inline bool fv__class_has(const fv_rules *r, int32_t i, unsigned char c)
{
    const fv_byte_class *k = (const fv_byte_class *)(const void *)r->classes.data + i;
    return k->bits[c / 64] >> c % 64 & 1;
}

/* An alternative is put together in a buffer of elements, then given to its rule. */
typedef fv_buf fv_seq;

void fv__rules_begin(fv_rules *r, const fv_env *env);
void fv__rules_free(fv_rules *r);
bool fv__rules_failed(const fv_rules *r); /* out of memory */
int32_t fv__rule_new(fv_rules *r);
int32_t fv__class_new(fv_rules *r, const char *ranges); /* pairs of bytes: from, to, .. */
void fv__seq_class(fv_seq *s, int32_t class);
void fv__seq_rule(fv_seq *s, int32_t rule);
void fv__seq_text(fv_seq *s, const char *text, size_t n);
void fv__rule_add(fv_rules *r, int32_t rule, fv_seq *s); /* empties s */

/* constrain_json.c: rules of JSON itself. */
typedef struct fv_json_rules {
    int32_t ws, character, string, characters, integer, number, object, array, value;
} fv_json_rules;
void fv__json_rules(fv_rules *r, fv_json_rules *out);

struct fv_schema {
    fv_env env;
    fv_rules rules;
    int32_t root;
};

/* ---- tokens ---- */

enum { FV_MOST_TOKEN_BYTES = 255 };

/* Bytes that each token adds to a text, and the tokens in the order of these: neighbours share the
 * beginnings that lcp counts. */
struct fv_token_bytes {
    fv_env env;
    int64_t V, n; /* tokens, and those that have bytes */
    uint32_t *at; /* V + 1 offsets into bytes */
    unsigned char *bytes;
    int32_t *order; /* n */
    uint8_t *lcp;   /* n: bytes in common with the one before */
    size_t blob, tables;
};

#endif
