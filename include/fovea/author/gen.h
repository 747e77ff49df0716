/* gen.h - for authors of tasks: scores of continuations, what a scheduler and a translator hold. */
#ifndef FOVEA_AUTHOR_GEN_H
#define FOVEA_AUTHOR_GEN_H

#include "fovea/chat.h"
#include "fovea/translate.h"

/* ---- scores, the scheduler ---- */

/* out[i] = log p(continuation i | the source or prompt), for n continuations of one: labels by
 * their likelihood. */
FV_API fv_status fv_score_continuations(double *out, fv_device *d, const fv_model *m,
                                        const int32_t *prompt, int64_t prompt_len,
                                        const int32_t *const *continuation, const int64_t *len,
                                        int64_t n, int32_t start, fv_err *e);

/* fv_generate for n sources that are no token ids (sound, images): `fill` puts the inputs of the
 * family's encoder, made in c, whose first axis is n.  The same hypotheses as for ids. */
typedef void fv_source_fn(void *user, fv_ctx *c, fv_items *in);
FV_API fv_status fv_generate_from(fv_generated *out, fv_device *d, const fv_model *m,
                                  fv_source_fn *fill, void *user, int64_t n, const fv_gen_opt *opt,
                                  fv_err *e);

/* Tokens that went through a scheduler's model, prompts included. */
FV_API int64_t fv_scheduler_processed(const fv_scheduler *s);

/* fv_generate for one prompt of n tokens, with one beam, in a session of one row whose first
 * `known` tokens are the prompt's: only the others go through the model.  The row is cut back to
 * these first, and afterwards holds the prompt and all that was generated but the last token, so
 * that the next prompt of a conversation can begin there.  The result has the same bits as without
 * anything known.  Not for families with an encoder. */
FV_API fv_status fv_session_generate(fv_generated *out, fv_ctx *c, fv_session *s,
                                     const int32_t *prompt, int64_t n, int64_t known,
                                     const fv_gen_opt *opt, fv_err *e);

/* ---- translators ---- */

/* Owned by the translator. */
FV_API const fv_tok *fv_translator_tok(const fv_translator *t);
FV_API const fv_model *fv_translator_model(const fv_translator *t);

/* stop_strings: *n texts that end a sequence when they stand in it.  Whoever has the tokenizer
 * looks for them; they belong to c. */
FV_API const char *const *fv_gen_config_stops(const fv_gen_config *c, int *n);

/* Waits until there is something to do, at most so many milliseconds; whether there is. */
FV_API bool fv_scheduler_wait(fv_scheduler *s, int64_t milliseconds);

/* Tokens that went through the model since the chat was opened. */
FV_API int64_t fv_chat_processed(const fv_chat *c);

/* fv_chat_template_open from a template's text and the texts of the tokens that begin and end a
 * sequence; NULL: not defined. */
FV_API fv_status fv_chat_template_read(fv_chat_template **out, const fv_env *env, const char *text,
                                       const char *bos, const char *eos, fv_err *e);

#endif
