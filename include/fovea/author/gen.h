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

/* The part-th of `parts` of fv_score's work: a range of its windows, whose tokens are *from to
 * *to - 1; the rest of out is not touched.  All ranges together are the whole text.  A model with a
 * memory, or beside a cache, reads from the beginning, so part 0 has all of it. */
FV_API fv_status fv_score_part(double *out, fv_device *d, const fv_model *m, const int32_t *ids,
                               int64_t n, fv_score_opt opt, int part, int parts, int64_t *from,
                               int64_t *to, fv_err *e);

/* fv_generate for n sources that are no token ids (sound, images): `fill` puts the inputs of the
 * family's encoder, made in c, whose first axis is n.  The same hypotheses as for ids. */
typedef void fv_source_fn(void *user, fv_ctx *c, fv_items *in);
FV_API fv_status fv_generate_from(fv_generated *out, fv_device *d, const fv_model *m,
                                  fv_source_fn *fill, void *user, int64_t n, const fv_gen_opt *opt,
                                  fv_err *e);

/* ---- timestamps among the tokens (Whisper) ---- */

/* Tokens from `first` on are times, 0.02 s apart; those before `eos` are text. */
typedef struct fv_times_rule {
    int32_t eos, none, first; /* none: <|notimestamps|>, which is not chosen; first: <|0.00|> */
    int32_t latest;           /* of the first time, counted from `first`; -1: any */
    int64_t begin;            /* tokens of a sequence that were given */
} fv_times_rule;
/* An fv_logits_fn whose user is such a rule: a text begins with a time, times come in pairs but
 * before the end and never go back, and where all times together are likelier than any other token
 * one of them comes. */
FV_API void fv_times_logits(void *rule, float *logits, int64_t V, const int32_t *ids, int64_t n);

/* A stretch of sound and its tokens, ids[at .. at + n) of what was generated for a window. */
typedef struct fv_times_segment {
    double from, to; /* seconds within the window */
    int64_t at, n;
} fv_times_segment;
/* Cuts ids (without the end) of a window of `frames` frames (0.01 s each) at pairs of times: at
 * most n segments.  *next: frames until the next window begins, the last whole segment's end, or
 * all.  out: for n + 1.  Returns how many. */
FV_API int64_t fv_times_cut(fv_times_segment *out, int64_t *next, const int32_t *ids, int64_t n,
                            int32_t first, int64_t frames);

/* ---- times of tokens, by cross-attention ---- */

typedef struct fv_align_opt {
    /* layer, head, layer, head, ..: those that look at what they write; head -1: all of a layer */
    const int32_t *heads;
    int n_heads; /* pairs; 0: all heads of all layers */
    int width;   /* of the median over columns, odd; 0: 7 */
} fv_align_opt;
/* Runs m once over the source that `fill` puts and the n ids that its decoder reads, and aligns
 * rows [from, n) of the cross-attention with the encoder's positions by dynamic time warping:
 * at[i], of n - from, is the position at which row from + i begins.  *columns: how many positions
 * are sound (0: all); becomes how many there are.  A row belongs to the token that is read in
 * Whisper as transformers takes it, to the one that is written next in openai's program. */
FV_API fv_status fv_align(int64_t *at, fv_device *d, const fv_model *m, fv_source_fn *fill,
                          void *user, const int32_t *ids, int64_t n, int64_t from, fv_align_opt o,
                          int64_t *columns, fv_err *e);

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
