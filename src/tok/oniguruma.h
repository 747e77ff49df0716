/* oniguruma.h - patterns of tokenizer files, written for Oniguruma, as PCRE2 understands them. */
#ifndef FV_TOK_ONIGURUMA_H
#define FV_TOK_ONIGURUMA_H

#include "base/base.h"

/* Puts the translation into *out, whose env is set.  What has no equal is refused: *refused says
 * what it is (else NULL) and *at where.  is_script: whether PCRE2 knows \p{sc:NAME}. */
void fv__oniguruma(fv_buf *out, const char *s, size_t n,
                   bool (*is_script)(const char *name, size_t n), const char **refused, size_t *at);

#endif
