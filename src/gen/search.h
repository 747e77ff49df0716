/* search.h - sequences that are being generated: what all ways of choosing tokens work on. */
#ifndef FV_SEARCH_H
#define FV_SEARCH_H

#include "gen/pick.h"

#define FAR (-1.0e9f) /* a score that never wins */

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
    int64_t copies;  /* neighbouring sources that are one, each drawing for itself */
    int64_t live;    /* sources not yet over: the first so many of `at`, and rows of the session */
    int64_t made;    /* tokens behind the prompt, of every running beam */
    int64_t *prompt, *end; /* n each: tokens given, and tokens at most */
    int64_t longest;       /* the greatest of end */
    int64_t known;         /* tokens of every prompt that the session holds already */
    int64_t first;    /* tokens of each prompt that the first step reads, the last one among them */
    int64_t wide;     /* continuations looked at: enough that K of them do not end */
    int64_t top;      /* best of each row that are looked at; 0: all scores are */
    beam *run, *done; /* n * K each */
    bool *over;       /* n */
    int64_t *at;      /* n: which source stands at a place of the batch */
    float *scores;    /* n * K rows of V, or of top */
    int32_t *tokens;  /* with top, those the scores are of */
    float *scratch;   /* longest */
    fv_candidate *candidates;      /* top, wide, or V when sampling */
    beam *next;                    /* wide, and their ids in spare */
    int32_t *row;                  /* wide: which row of the batch each of next continues */
    int32_t *spare, *token, *from; /* from and token: rows of the next step */
    fv_tensor *y, *y_token;        /* of the step under way: scores, or the best and their tokens */
    void *block;
    size_t bytes;
} search;

static inline int32_t fv__search_pad(const search *s)
{
    return s->o->pad >= 0 ? s->o->pad : s->o->eos >= 0 ? s->o->eos : 0;
}

static inline fv_prefix fv__prefix(const search *s, const beam *b, int64_t i)
{
    return (fv_prefix){b->ids, b->n, s->prompt[i], s->end[i]};
}

/* Whether this token, behind the others of source i, is its last. */
bool fv__search_ends(const search *s, int64_t i, int32_t token);
/* The best continuations of sequence f in s->picks, at most `want`; row: of the batch.  Returns
 * how many. */
int64_t fv__search_best(search *s, fv_prefix f, int64_t row, int64_t want);

/* Which of all sequences source i is, for its random numbers. */
int64_t fv__search_number(const search *s, int64_t i);
/* With one beam: the source at place p takes this token, and is its own hypothesis when it ends. */
void fv__search_append(search *s, int64_t p, fv_candidate best);
/* Sources that are over leave the batch; the last one takes the place. */
void fv__search_retire(search *s);
fv_status fv__search_failed(const search *s, fv_err *e); /* what the context says */

/* Whether the device can: not by rules that look at the tokens so far, nor for scores of what
 * rules left over. */
bool fv__device_samples(const search *s, bool encoder);
fv_status fv__sample_loop(search *s, fv_err *e);

/* V: what each token is, FV_TOKEN_*; the caller frees them.  NULL: no memory. */
uint8_t *fv__search_token_flags(const search *s);
/* Before it may end, and before its last: new tokens of source i. */
int32_t fv__search_min_new(const search *s, int64_t i);
int32_t fv__search_max_new(const search *s, int64_t i);

/* The same for beams. */
bool fv__device_searches(const search *s, bool encoder);
fv_status fv__beams_loop(search *s, fv_err *e);

/* The source at place p of the batch goes on: its beams, the rows they come from and their
 * tokens. */
void fv__beam_step(search *s, int64_t p);
/* No running beam of source i can come before its worst finished one. */
bool fv__beam_decided(const search *s, int64_t i);

#endif
