/* decode.h - what decoding writes to, used again by the next call: a stream, which decodes for
 * every token, allocates nothing once its buffers have grown. */
#ifndef FV_TOK_DECODE_H
#define FV_TOK_DECODE_H

#include "work.h"

/* Strings one after the other; string i ends at ends[i]. */
struct fv__strings {
    fv_buf text;
    size_t *ends;
    size_t n, cap;
    bool failed;
    size_t most; /* bytes that replacing may make of it */
};

/* Begin with {0}. */
typedef struct fv__decoding {
    fv_buf text; /* the last answer */
    fv__work w;
    fv__str *pieces;
    size_t cap_pieces;
    struct fv__strings list[2];
    fv_buf run; /* bytes that make characters together */
} fv__decoding;

/* The text of n ids into x->text. */
fv_status fv__decode_ids(const fv_tok *t, fv__decoding *x, const int32_t *ids, int64_t n,
                         bool skip_specials, fv_err *e);
void fv__decoding_free(const fv_tok *t, fv__decoding *x);

#endif
