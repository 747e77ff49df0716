/* tok.h - the tokenizers of tests/golden/tok, and what tests of tokenizers do with one. */
#ifndef HELPER_TOK_H
#define HELPER_TOK_H

#include "fovea/tok.h"

#define TOK_GOLDEN FOVEA_TESTS "/golden/tok/"

/* The tokenizer called name in components.jsonl, as the text of a tokenizer.json, which the caller
 * frees, or opened. */
char *tok_component(const char *name, size_t *n);
fv_tok *tok_open_component(const char *name);

fv_encoding *tok_encode(const fv_tok *t, const char *text, size_t n, fv_tok_opts o);
void tok_assert_ids(const fv_encoding *enc, const int32_t *ids, int64_t n);

#endif
