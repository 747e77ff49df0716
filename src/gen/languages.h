/* languages.h - the languages of a translation model that has several: which token or which words
 * stand before the source, and with which token the target begins. */
#ifndef FV_LANGUAGES_H
#define FV_LANGUAGES_H

#include "fovea/author/config.h"
#include "fovea/gen.h"
#include "fovea/tok.h"

typedef struct fv__languages {
    int32_t source;   /* the token of the source's language; -1: as the tokenizer has it */
    char prefix[256]; /* text before the source; "": none */
} fv__languages;

/* from and to may be NULL.  Changes how the target begins in gen. */
fv_status fv__languages_choose(fv__languages *l, fv_gen_opt *gen, const fv_tok *tok,
                               const fv_json *config, const char *from, const char *to, fv_err *e);
/* Whether the source's token must be put before what was encoded: no language stands there yet. */
bool fv__languages_before(const fv__languages *l, const fv_encoding *enc, const fv_tok *tok);
/* Writes it over the language that stands there. */
void fv__languages_set(const fv__languages *l, fv_encoding *enc, const fv_tok *tok);

#endif
