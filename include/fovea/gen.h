/* gen.h - generating sequences: greedy, sampling, beam search; a scheduler over many requests. */
#ifndef FOVEA_GEN_H
#define FOVEA_GEN_H

#include "fovea/fields.h"
#include "fovea/model.h"
#include "fovea/tok.h"

/* ---- generating ---- */

typedef enum fv_early { FV_EARLY_FALSE = 0, FV_EARLY_TRUE, FV_EARLY_NEVER } fv_early;

/* Called as tokens are chosen, where num_beams is 1: source counts from 0.  false: this sequence
 * ends here. */
typedef bool fv_token_fn(void *user, int64_t source, int32_t token);

/* May change the V logits of the next token, before everything else looks at them: constrained
 * generation.  ids: the sequence so far, n of them. */
typedef void fv_logits_fn(void *user, float *logits, int64_t V, const int32_t *ids, int64_t n);

/* Names and meanings are those of transformers' generate.  Begin with {0} and fv_fields_default,
 * or with a copy of fv_gen_config_options.  It is copied freely and owns nothing: its lists
 * belong to whoever made them, the fv_gen_config or the caller. */
typedef struct fv_gen_opt {
    int64_t num_beams, num_return_sequences;
    int64_t max_length, min_length;         /* with the start token or the prompt */
    int64_t max_new_tokens, min_new_tokens; /* without it; where not 0 these decide */
    float length_penalty;
    int early_stopping; /* fv_early */
    bool do_sample;     /* with beams: continuations are drawn, without replacement */
    float temperature;
    int64_t top_k; /* 0: all */
    float top_p, min_p, typical_p;
    float repetition_penalty;
    int64_t no_repeat_ngram_size;
    int64_t encoder_no_repeat_ngram_size; /* of what the encoder read, or of the prompt */
    bool renormalize_logits;              /* probabilities of what may be chosen add up to 1 */
    int64_t seed;
    /* Speculative decoding, of one beam: tokens are drafted and verified several in one step.  The
     * result is the same, bit for bit, with less time for each token.  prompt_lookup_num_tokens:
     * drafted at most, as they followed the last tokens where these came before; 0: none.
     * assistant: or by this smaller model of the same vocabulary, num_assistant_tokens at most. */
    int64_t prompt_lookup_num_tokens, max_matching_ngram_size, num_assistant_tokens;
    const fv_model *assistant;                       /* or NULL */
    int32_t start, eos, pad, forced_bos, forced_eos; /* ids; -1: none */
    const int32_t *ends;                             /* further ids that end a sequence */
    int n_ends;
    const int32_t *banned; /* ids that are never chosen */
    int n_banned;
    const int32_t *bad_words;    /* runs of ids that are never completed, -1 behind each */
    int64_t n_bad_words;         /* length of the whole list */
    const int32_t *begin_banned; /* ids that are not chosen first (begin_suppress_tokens) */
    int n_begin_banned;
    const int32_t
        *biased;      /* sequence_bias: runs of ids, -1 behind each, and for each run what is */
    int64_t n_biased; /* added to the score of its last id where the others stand before it */
    const float *bias;
    const int64_t *numbers; /* of the sources, for their random numbers; NULL: 0, 1, .. */
    fv_token_fn *token;     /* or NULL */
    void *user;
    const int32_t *begin; /* behind an encoder: what follows the start token and is not chosen */
    int n_begin;
    /* or NULL; behind all other rules, on logits or, with beams, on log-probabilities */
    fv_logits_fn *logits;
    void *logits_user;
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
    int64_t drafted, accepted; /* tokens of speculative decoding */
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

/* ---- many requests in one batch ---- */

/* Sequences join and leave a running batch (continuous batching): each step reads some tokens of
 * waiting prompts and gives every running sequence its next token.  What a sequence gets has the
 * same bits whoever is beside it: it is what fv_generate gives for its prompt alone.  For
 * families without an encoder, one beam and one sequence a request.
 *
 * Threads: one calls fv_scheduler_step (and is where callbacks run); submit, cancel, wait and stats
 * may be called from any thread, and from callbacks.  The model is shared and outlives the
 * scheduler. */
typedef struct fv_scheduler fv_scheduler;

typedef struct fv_scheduler_opt {
    int64_t rows;     /* sequences in the batch at most; 0: 16 */
    int64_t capacity; /* tokens of a sequence with its prompt; 0: the model's context, or 2048 */
    int64_t prefill;  /* prompt tokens that one step reads at most; 0: 512 */
    int64_t waiting;  /* requests that may wait for a row; 0: 1024 */
    /* bytes of the KV cache at most; 0: no limit.  Memory follows the tokens, in pages, and a
     * sequence waits until all it may come to fits.  Where a GPU cannot map pages, or a row has
     * less than four, a row takes its capacity, and there are fewer rows than asked for */
    int64_t cache_bytes;
    /* bytes of keys and values kept of sequences that were read, for prompts that begin alike;
     * 0: none.  On the host, with cache_bytes, rows that begin alike share them and have no copy
     * of their own */
    int64_t prefix_bytes;
} fv_scheduler_opt;

typedef enum fv_finish {
    FV_FINISH_NOT = 0,   /* the sequence goes on */
    FV_FINISH_STOP,      /* an end token, or the callback has returned false */
    FV_FINISH_LENGTH,    /* max_new_tokens, max_length or the capacity */
    FV_FINISH_CANCELLED, /* no token comes with it */
    FV_FINISH_FAILED     /* likewise; error says why */
} fv_finish;

typedef struct fv_scored {
    int32_t token;
    float score; /* log-probability by the model's own logits */
} fv_scored;

/* Exact attention weights (layers, heads, rows, cols): of rows [first, first + rows) of the
 * sequence, each to positions 0 .. cols - 1. */
typedef struct fv_sched_weights {
    const float *w;
    int n_layers, n_heads; /* those the request lists, in its order */
    int64_t first, rows, cols;
} fv_sched_weights;

typedef struct fv_sched_event {
    uint64_t id;
    int32_t token; /* -1: none */
    float score;   /* its log-probability; 0 where the request is unscored */
    int64_t n;     /* tokens generated so far */
    fv_finish finish;
    const fv_err *error;  /* of FV_FINISH_FAILED, else NULL */
    const fv_scored *top; /* the likeliest tokens in its position, best first: n_top of them */
    int n_top;
    /* where asked for: of the row that chose the token or, with token -1, of rows of the prompt */
    const fv_sched_weights *attention;
    int64_t cached; /* tokens of the prompt that were not read, since a cache had them */
} fv_sched_event;

/* Called for each token, the last one with its reason; false: the sequence ends here, and there is
 * no further call. */
typedef bool fv_sched_fn(void *user, const fv_sched_event *event);

typedef struct fv_logit_bias {
    int32_t token;
    float add; /* to its logit */
} fv_logit_bias;

typedef struct fv_sched_request {
    const int32_t *prompt;
    int64_t n;
    const fv_gen_opt *opt; /* token and user are not used, and of numbers the first */
    fv_sched_fn *fn;
    void *user;
    const fv_logit_bias *bias;
    int n_bias;
    /* OpenAI's: taken from a logit for each time its token was generated, and once if it was */
    float frequency_penalty, presence_penalty;
    int top;              /* likeliest tokens that come with each token; at most 64 */
    bool unscored;        /* no score but with top: that spares a pass over the vocabulary */
    fv_logits_fn *logits; /* or NULL */
    void *logits_user;
    /* Exact weights of these layers and heads come with each token; none where n_layers is 0. */
    const int32_t *layers, *heads;
    int n_layers, n_heads;
    bool prompt_rows; /* those of the prompt's rows too, in calls without a token */
    int priority;     /* greater ones get a row first */
    int model;        /* 0, or a number of author/gen.h's fv_scheduler_add_model */
    uint64_t owner;   /* among equals the owner with the fewest rows comes first, then who waits */
} fv_sched_request;

FV_API fv_status fv_scheduler_new(fv_scheduler **out, fv_device *d, const fv_model *m,
                                  fv_scheduler_opt opt, fv_err *e);
/* Sequences in flight end without a call.  NULL is allowed. */
FV_API void fv_scheduler_free(fv_scheduler *s);
/* Another model for the same batch: the same one with adapters folded into its weights.  Rows of a
 * step are grouped by their model, and each sequence gets what it would get alone.  Before the
 * first request; m outlives the scheduler.  FV_EARG: its family, layers or heads differ, or there
 * are 64. */
FV_API fv_status fv_scheduler_add_model(fv_scheduler *s, int *number, const fv_model *m, fv_err *e);
/* Everything is copied, with the lists.  *id is known before the first callback.  Refused with a
 * sentence: an empty prompt, one that does not fit, too many that wait (FV_ESTATE). */
FV_API fv_status fv_scheduler_submit(fv_scheduler *s, uint64_t *id, const fv_sched_request *r,
                                     fv_err *e);
/* The sequence ends at the next step, with FV_FINISH_CANCELLED.  FV_EARG: there is none of that
 * id, or it has ended. */
FV_API fv_status fv_scheduler_cancel(fv_scheduler *s, uint64_t id, fv_err *e);
/* One step; *left: sequences that wait or run behind it.  A failure of the model or device ends
 * all that run with FV_FINISH_FAILED and is returned; the scheduler can go on with others. */
FV_API fv_status fv_scheduler_step(fv_scheduler *s, int64_t *left, fv_err *e);

/* Where the time of the stepping thread has gone, in nanoseconds; each is without the others.
 * Where a GPU works beside the host, prompts and decode are preparing and launching, and a host
 * that hardly waits is what the device waits for. */
typedef struct fv_sched_times {
    int64_t queue;   /* rows given, moved and taken back */
    int64_t prompts; /* reading prompts */
    int64_t decode;
    int64_t tell; /* callbacks, where they run while the device makes the next step */
    int64_t wait; /* for what the device computes */
} fv_sched_times;

typedef struct fv_sched_stats {
    int64_t rows, capacity;    /* as made: sequences side by side, tokens of each */
    int64_t layers, heads;     /* of the model's attention */
    int64_t waiting, running;  /* sequences now */
    int64_t prompt, generated; /* tokens read and written since it was made */
    /* passes through the model for these: of prompts, alone or side by side, and of rows that
     * decode */
    int64_t prompt_steps, decode_steps;
    int64_t shared;       /* tokens of prompts that a kept prefix saved */
    int64_t cache_tokens; /* in the KV cache now */
    int64_t cache_shared; /* of these, in memory that prefix_bytes counts, once for all */
    int64_t cache_bytes;  /* of the keys and values of the others */
    int64_t cache_pages;  /* bytes of pages that a GPU's rows have, where these follow the tokens */
    int64_t prefix_bytes; /* kept for prompts to come */
    fv_sched_times times; /* since it was made */
} fv_sched_stats;
FV_API fv_sched_stats fv_scheduler_stats(fv_scheduler *s);

/* ---- constrained generation: text that is JSON of a schema ---- */

/* Bytes of a tokenizer's tokens, made once; const, and shared by any number of constraints. */
typedef struct fv_token_bytes fv_token_bytes;
FV_API fv_status fv_token_bytes_new(fv_token_bytes **out, const fv_env *env, const fv_tok *tok,
                                    fv_err *e);
FV_API void fv_token_bytes_free(fv_token_bytes *t); /* NULL is allowed */

/* A JSON schema; NULL: any object.  Const, and shared.  A keyword that is not understood is refused
 * by its name (FV_EARG). */
typedef struct fv_schema fv_schema;
FV_API fv_status fv_schema_read(fv_schema **out, const fv_env *env, const char *schema, fv_err *e);
FV_API void fv_schema_free(fv_schema *s); /* NULL is allowed */

/* Where one sequence stands within a schema.  ends: tokens that end a text, at most 64, copied;
 * schema and tokens outlive it. */
typedef struct fv_constraint fv_constraint;
FV_API fv_status fv_constraint_new(fv_constraint **out, const fv_schema *s, const fv_token_bytes *t,
                                   const int32_t *ends, int n_ends, fv_err *e);
FV_API void fv_constraint_free(fv_constraint *c); /* NULL is allowed */
/* An fv_logits_fn whose user is the constraint: tokens that may not come get -infinity.  What
 * follows the first call's ids is the text. */
FV_API void fv_constraint_logits(void *constraint, float *logits, int64_t V, const int32_t *ids,
                                 int64_t n);

/* ---- how likely a text is ---- */

/* A continuous cache (Grave et al. 2017): the last `size` states of the model, each with the token
 * that followed it.  out[i] is the log-probability of token i with it, out[0] = 0:
 *
 *     log((1 - weight) p_model + weight * sum of softmax(theta h.h_i) where the token followed) */
typedef struct fv_score_cache {
    int64_t size;         /* 0: no cache, and the rest is not read */
    double theta, weight; /* 0: 0.3 and 0.1 */
    double *out;          /* the caller's, n of them */
} fv_score_cache;

typedef struct fv_score_opt {
    /* A text longer than the model's context is read in windows of so many tokens (0: all the
     * context; for models without a limit, 2048) that move on by `stride` (0: half of that): a
     * token sees at least window - stride before it. */
    int64_t window, stride;
    fv_score_cache cache;
} fv_score_opt;

/* out[i] = log p(ids[i] | ids[0..i)), for i from 1 to n-1; out[0] = 0.  For models without an
 * encoder. */
FV_API fv_status fv_score(double *out, fv_device *d, const fv_model *m, const int32_t *ids,
                          int64_t n, fv_score_opt opt, fv_err *e);

#endif
