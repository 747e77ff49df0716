/* gen.h - generating sequences, and sessions: what a model remembers of them on the way.
 *
 * A session holds, on the model's device, the keys and values of every token so far for `rows`
 * sequences side by side.  It belongs to one thread at a time; the model is shared. */
#ifndef FOVEA_GEN_H
#define FOVEA_GEN_H

#include "fovea/model.h"
#include "fovea/nn.h"

/* cap: tokens a row can hold. */
FV_API fv_status fv_session_new(fv_session **out, const fv_model *m, fv_device *d, int64_t rows,
                                int64_t cap, fv_err *e);
FV_API void fv_session_free(fv_session *s); /* NULL is allowed */
/* Forgets all tokens; memory stays. */
FV_API void fv_session_reset(fv_session *s);

FV_API int64_t fv_session_count(const fv_session *s);            /* rows in use */
FV_API int64_t fv_session_len(const fv_session *s, int64_t row); /* tokens so far */
/* Tokens that went through the model since the session was made, those of all rows added up. */
FV_API int64_t fv_session_processed(const fv_session *s);
/* Cuts a row back to n tokens: after a prompt that was padded, or to try again from there. */
FV_API void fv_session_truncate(fv_session *s, int64_t row, int64_t n);

/* Runs the family's begin: an encoder on in, whose batch is the session's rows or divides them. */
FV_API void fv_session_begin(fv_ctx *c, fv_session *s, const fv_items *in);
/* Appends ids I32 (rows,T) and gives the logits (rows,V) that follow; NULL once the context has
 * failed. */
FV_API fv_tensor *fv_session_step(fv_ctx *c, fv_session *s, fv_tensor *ids);
/* Goes on from ids (rows), in host memory, by n tokens, the likeliest each time, which go to out
 * (n,rows).  Where the device can it does so without the host. */
FV_API fv_status fv_session_greedy(fv_ctx *c, fv_session *s, const int32_t *ids, int32_t *out,
                                   int64_t n);
/* Row i becomes a copy of what row from[i] was, and only n rows stay, until fv_session_reset:
 * beams that go on and beams that end, sequences that are done and make room. */
FV_API void fv_session_select(fv_ctx *c, fv_session *s, const int32_t *from, int64_t n);

/* ---- for families, inside begin and step ---- */

/* The cache of layer's self-attention, for the tokens of this step, in numbers of type t. */
FV_API fv_kv fv_session_kv(fv_ctx *c, fv_session *s, int layer, int64_t width, fv_dtype t);
/* I32 (rows,T): where the tokens of this step stand. */
FV_API fv_tensor *fv_session_positions(fv_ctx *c, fv_session *s);
/* counted from there, not from 0 */
FV_API fv_tensor *fv_session_positions_from(fv_ctx *c, fv_session *s, int32_t from);
/* Copies x into the session under a number, and gets it back in a later step.  Its first axis is
 * the rows, or divides them: then each serves as many neighbouring rows, which only change places
 * together with their group or within it. */
FV_API void fv_session_save_state(fv_ctx *c, fv_session *s, int slot, fv_tensor *x);
FV_API fv_tensor *fv_session_state(fv_ctx *c, fv_session *s, int slot); /* NULL: nothing there */

/* ---- generating ---- */

typedef enum fv_early { FV_EARLY_FALSE = 0, FV_EARLY_TRUE, FV_EARLY_NEVER } fv_early;

/* Called as tokens are chosen, where num_beams is 1: source counts from 0.  false: this sequence
 * ends here. */
typedef bool fv_token_fn(void *user, int64_t source, int32_t token);

/* Names and meanings are those of transformers' generate.  Begin with {0} and fv_fields_default,
 * or with a copy of fv_gen_config_options.  It is copied freely and owns nothing: its lists
 * belong to whoever made them, the fv_gen_config or the caller. */
typedef struct fv_gen_opt {
    int64_t num_beams, num_return_sequences;
    int64_t max_length, min_length;         /* with the start token or the prompt */
    int64_t max_new_tokens, min_new_tokens; /* without it; where not 0 these decide */
    float length_penalty;
    int early_stopping; /* fv_early */
    bool do_sample;     /* with one beam */
    float temperature;
    int64_t top_k; /* 0: all */
    float top_p, min_p, typical_p;
    float repetition_penalty;
    int64_t no_repeat_ngram_size;
    bool renormalize_logits; /* probabilities of what may be chosen add up to 1 */
    int64_t seed;
    int32_t start, eos, pad, forced_bos, forced_eos; /* ids; -1: none */
    const int32_t *ends;                             /* further ids that end a sequence */
    int n_ends;
    const int32_t *banned; /* ids that are never chosen */
    int n_banned;
    const int32_t *bad_words; /* runs of ids that are never completed, -1 behind each */
    int64_t n_bad_words;      /* length of the whole list */
    const int64_t *numbers;   /* of the sources, for their random numbers; NULL: 0, 1, .. */
    fv_token_fn *token;       /* or NULL */
    void *user;
} fv_gen_opt;

/* Keys, ranges, defaults and help of the above (not of the lists). */
FV_DATA const fv_field fv_gen_fields[];

/* How the directory of a model says to generate: its generation_config.json or, without one, its
 * config.json; then the parameters of a task ("summarization", or NULL) in config.json; for the
 * rest transformers' defaults.  Keys of generation_config.json that would change the result and
 * are not known here are errors that name the key.  Owns the lists of its options; on failure
 * *out is NULL. */
typedef struct fv_gen_config fv_gen_config;
FV_API fv_status fv_gen_config_open(fv_gen_config **out, const fv_env *env, const char *dir,
                                    const char *task, fv_err *e);
FV_API void fv_gen_config_close(fv_gen_config *c); /* NULL is allowed */
/* To be copied and changed; the lists of the copy are valid as long as c is open. */
FV_API const fv_gen_opt *fv_gen_config_options(const fv_gen_config *c);

typedef struct fv_hyp {
    /* behind the start token or the prompt, the end token included if it was reached */
    int32_t *ids;
    int64_t n;
    double score; /* sum of log-probabilities; with beams divided by length^length_penalty */
} fv_hyp;

/* n sources, each with `each` hypotheses, best first. */
typedef struct fv_generated {
    fv_hyp *hyp;
    int64_t n, each;
    const fv_env *env;
    size_t bytes;
} fv_generated;

/* Generates for n sources (token ids): what an encoder reads or, where a family has none, the
 * prompt to be continued.  The same hypotheses as transformers gives for each source alone, beam
 * for beam, whatever the others are. */
FV_API fv_status fv_generate(fv_generated *out, fv_device *d, const fv_model *m,
                             const int32_t *const *source, const int64_t *len, int64_t n,
                             const fv_gen_opt *opt, fv_err *e);
FV_API void fv_generated_free(fv_generated *g);
/* The same for one prompt of n tokens, with one beam, in a session of one row whose first `known`
 * tokens are the prompt's: only the others go through the model.  The row is cut back to these
 * first, and afterwards holds the prompt and all that was generated but the last token, so that
 * the next prompt of a conversation can begin there.  The result has the same bits as without
 * anything known.  Not for families with an encoder. */
FV_API fv_status fv_session_generate(fv_generated *out, fv_ctx *c, fv_session *s,
                                     const int32_t *prompt, int64_t n, int64_t known,
                                     const fv_gen_opt *opt, fv_err *e);

/* ---- how likely a text is ---- */

/* out[i] = log p(ids[i] | ids[0..i)), for i from 1 to n-1; out[0] = 0.  A text longer than the
 * model's context is read in windows of `window` tokens (0: all the context; for models without a
 * limit, 2048) that move on by `stride` (0: half of that): a token sees at least window - stride
 * before it.  For models without an encoder. */
FV_API fv_status fv_score(double *out, fv_device *d, const fv_model *m, const int32_t *ids,
                          int64_t n, int64_t window, int64_t stride, fv_err *e);
/* out[i] = log p(continuation i | the source or prompt), for n continuations of one: labels by
 * their likelihood. */
FV_API fv_status fv_score_continuations(double *out, fv_device *d, const fv_model *m,
                                        const int32_t *prompt, int64_t prompt_len,
                                        const int32_t *const *continuation, const int64_t *len,
                                        int64_t n, int32_t start, fv_err *e);

#endif
