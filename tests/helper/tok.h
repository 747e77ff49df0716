/* tok.h - the tokenizers of tests/golden/tok, and what tests of tokenizers do with one. */
#ifndef HELPER_TOK_H
#define HELPER_TOK_H

#include "fovea/author/data.h"
#include "fovea/tok.h"

#define TOK_GOLDEN FOVEA_TESTS "/golden/tok/"

/* The tokenizer called name in components.jsonl, as the text of a tokenizer.json, which the caller
 * frees, or opened. */
char *tok_component(const char *name, size_t *n);
fv_tok *tok_open_component(const char *name);

fv_encoding *tok_encode(const fv_tok *t, const char *text, size_t n, fv_tok_opts o);
void tok_assert_ids(const fv_encoding *enc, const int32_t *ids, int64_t n);

/* Writes the tokenizer.json of one whose 30 tokens are letters and digits, into the scratch
 * folder. */
void tok_put_letters(const char *name);
/* Byte-level BPE learnt from one text, <s> before and </s> after what it encodes. */
fv_tok *tok_trained(const char *text, int vocab, const char *const *specials);
/* What an objective's feed is opened with: the tokens <pad>, <s>, </s> and <mask> of tok. */
fv_feed_opt tok_feed(const fv_tok *tok, const void *options, fv_labels *labels);

#endif
