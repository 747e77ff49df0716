/* tok.h - what tasks, objectives and processors ask a tokenizer beyond fovea/tok.h. */
#ifndef FOVEA_AUTHOR_TOK_H
#define FOVEA_AUTHOR_TOK_H

#include "fovea/tok.h"

/* fv_tok_open from memory: the n bytes of a tokenizer.json or of a SentencePiece model, called
 * `name` in messages. */
FV_API fv_status fv_tok_read(fv_tok **out, const fv_env *env, const void *data, size_t n,
                             const char *name, fv_err *e);
/* Whether decoding may leave this id out: an added token marked special, a control piece. */
FV_API bool fv_tok_special(const fv_tok *t, int32_t id);
/* The unknown token's id, or -1. */
FV_API int32_t fv_tok_unknown(const fv_tok *t);
/* What the file says about length: 0 if nothing.  Never applied unless fv_tok_opts.max_len asks for
 * it. */
FV_API int64_t fv_tok_max_len(const fv_tok *t);
/* The padding token's id as the file's padding section says, else that of [PAD] or <pad>, else
 * -1. */
FV_API int32_t fv_tok_pad(const fv_tok *t);

#endif
