/* search.h - the state of a search: sources, their beams, and the batch they decode in.
 *
 * Sources are numbered 0 to n-1 for good.  The batch holds the `live` ones, K rows each; at[p] is
 * the source at index p of the batch.  A source that is over leaves, and the last one moves to its
 * index. */
#ifndef FV_SEARCH_H
#define FV_SEARCH_H

#include "fovea/author/gen.h"
#include "fovea/author/tensor.h"
#include "gen/sample.h"

#define FAR (-1.0e9f) /* a score below every real one, as in transformers */

typedef struct beam {
    float score;
    bool finished;
    int64_t n; /* tokens, the prompt included */
    int32_t *ids;
} beam;

typedef struct search {
    fv_ctx *ctx;
    fv_session *session;
    const fv_gen_opt *o;
    const fv_env *env;
    int64_t n, K, V; /* sources, beams, vocabulary */
    int64_t copies;  /* consecutive sources with one prompt, sampled independently */
    int64_t live;    /* sources not over: the first entries of `at`, K session rows each */
    int64_t made;    /* tokens behind the prompt, of every running beam */
    int64_t depth;   /* tokens of a row that one step reads at most; 1: nothing is drafted */
    int64_t drafted, accepted;
    int64_t *prompt, *end;        /* n each: tokens given, and tokens at most */
    const int32_t *const *source; /* n each, where an encoder reads them; else NULL */
    const int64_t *n_source;
    fv_source_fn *fill; /* puts the encoder's inputs where sources are no ids; else NULL */
    void *user;         /* fill's */
    int64_t longest;    /* the greatest of end */
    int64_t known;      /* tokens of every prompt that the session holds already */
    int64_t first;    /* tokens of each prompt that the first step reads, the last one among them */
    int64_t wide;     /* continuations looked at: enough that K of them do not end */
    int64_t top;      /* best of each row that are looked at; 0: all scores are */
    beam *run, *done; /* n * K each */
    bool *over;       /* n */
    int64_t *at;      /* n: the source at each index of the batch */
    float *scores;    /* n * K * depth rows of V, or of top */
    int32_t *tokens;  /* with top, those the scores are of */
    float *scratch;   /* longest */
    fv_candidate *candidates;      /* top, wide, or V when sampling */
    beam *next;                    /* wide, and their ids in spare */
    int32_t *row;                  /* wide: which row of the batch each of next continues */
    double *key;                   /* wide: by which each was drawn */
    int32_t *spare, *token, *from; /* from and token: rows of the next step */
    fv_tensor *y, *y_token;        /* of the step under way: scores, or the best and their tokens */
    fv_tensor decoded[2];          /* these of the last decode step that was not a replay */
    void *block;
    size_t bytes;
} search;

static inline int32_t fv__search_pad(const search *s)
{
    return s->o->pad >= 0 ? s->o->pad : s->o->eos >= 0 ? s->o->eos : 0;
}

static inline fv_prefix fv__prefix(const search *s, const beam *b, int64_t i)
{
    fv_prefix f = {.ids = b->ids, .n = b->n, .prompt = s->prompt[i], .most = s->end[i]};
    if (s->source) f.source = s->source[i], f.n_source = s->n_source[i];
    return f;
}

/* search.c, in this order: allocates the state, which the caller frees as s->block; reads all
 * prompts into the KV cache up to what the first step reads, or with last_alone up to the last
 * token; runs to the end. */
fv_status fv__search_prepare(search *s, const int32_t *const *source, bool encoder, fv_err *e);
fv_status fv__search_prefill(search *s, bool last_alone, fv_err *e);
fv_status fv__search_loop(search *s, fv_err *e);

/* Reads all prompts into the KV cache of a session, behind `known` tokens of them and without the
 * last `first`, in runs of a bounded number of tokens.  False once the context has failed. */
bool fv__search_read(const search *s, fv_ctx *c, fv_session *to, int64_t known, int64_t first);

/* Whether this token is the last of source i, whose n-th it is, the prompt included. */
bool fv__search_ends(const search *s, int64_t i, int64_t n, int32_t token);
/* The best continuations of sequence f, whose scores are in a row of the batch: at most `want`, in
 * s->candidates.  Returns how many. */
int64_t fv__search_best(search *s, fv_prefix f, int64_t row, int64_t want);

/* The counter of source i for its random numbers: independent of the batch it is in. */
int64_t fv__search_number(const search *s, int64_t i);
/* With one beam: the token that the source at index p goes on with, by the scores of that row. */
fv_candidate fv__search_next(search *s, int64_t p, int64_t row);
/* A step, and its scores (or the best with their tokens) in host memory: of the next token of every
 * live row, s->token; or of T tokens each, ids (live,T), whose scores follow each other row by
 * row. */
fv_status fv__search_step(search *s, fv_err *e);
fv_status fv__search_step_many(search *s, const int32_t *ids, int64_t T, fv_err *e);
/* With one beam: appends a token to the source at index p, and finishes it where it ends. */
void fv__search_append(search *s, int64_t p, fv_candidate best);
/* Takes sources that are over out of the batch, and sets from and token for the next step. */
void fv__search_retire(search *s);
fv_status fv__search_failed(const search *s, fv_err *e); /* the context's error */

/* Whether the device can run greedy search or sampling by itself: not with processors that look at
 * earlier tokens, nor with renormalised scores. */
bool fv__device_samples(const search *s, bool encoder);
fv_status fv__sample_loop(search *s, fv_err *e);

/* V flags FV_TOKEN_*, which the caller frees; NULL: out of memory. */
uint8_t *fv__search_token_flags(const search *s);
/* Tokens that source i generates before it may end, and before its last one. */
int32_t fv__search_min_new(const search *s, int64_t i);
int32_t fv__search_max_new(const search *s, int64_t i);

/* speculate.c: the search loop where tokens are drafted, and how many tokens of a row its steps
 * read. */
int64_t fv__speculate_depth(const fv_gen_opt *o);
fv_status fv__speculate_loop(search *s, fv_err *e);

/* The same for beam search. */
bool fv__device_searches(const search *s, bool encoder);
fv_status fv__beams_loop(search *s, fv_err *e);

/* One step of beam search for the source at index p: its new beams, the rows they continue
 * (s->from) and their last tokens (s->token). */
void fv__beam_step(search *s, int64_t p);
/* Whether source i is over: no running beam can beat its worst finished hypothesis. */
bool fv__beam_decided(const search *s, int64_t i);

#endif
