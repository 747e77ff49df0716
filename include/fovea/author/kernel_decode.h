/* kernel_decode.h - for authors of kernels: what those of a decode step take beside kernel_args.h:
 * choosing tokens, moving and copying what is cached, rows of weights, beams. */
#ifndef FOVEA_AUTHOR_KERNEL_DECODE_H
#define FOVEA_AUTHOR_KERNEL_DECODE_H

#include "fovea/author/kernel_args.h"

/* How one row of a batch of strangers goes on: tokens that may not come, and how it is drawn. */
enum { FV_SAMPLE_BANNED = 7 };
typedef struct fv_sample_row {
    float temperature, top_p, min_p;
    int32_t top_k; /* 0: all */
    int32_t do_sample;
    int32_t made; /* tokens so far: with seed and number, its random number */
    uint64_t seed;
    int64_t number;
    int32_t n_banned, banned[FV_SAMPLE_BANNED];
} fv_sample_row;

/* Takes a token for each row of logits and moves the row on.  Rows that have ended repeat `pad` and
 * stay where they are. */
enum { FV_TOKEN_BANNED = 1, FV_TOKEN_EOS = 2 };
typedef struct fv_sample {
    int64_t rows, V;
    const void *logits;         /* (rows,V) */
    const uint8_t *token_flags; /* (V): what a token is, or NULL: all may come and none ends */
    const int32_t *min_new,
        *max_new; /* (rows): tokens before one that ends may come, and those before the last one */
    int32_t forced_first, forced_last,
        pad;        /* forced_first, forced_last: the one that must come, or -1 */
    bool do_sample; /* by a random number, else the likeliest, ties to the lower */
    float temperature, top_p, min_p;
    int64_t top_k; /* 0: all */
    uint64_t seed;
    const int64_t *number;     /* (rows): which sequence, for its random numbers */
    int32_t *made, *ended;     /* (rows): tokens so far, and whether it is over */
    int32_t *token, *position; /* (rows): chosen; and (steps,rows), all incremented */
    int64_t n_positions;
    int32_t *tokens; /* (log,rows): chosen, at made modulo log */
    float *scores;   /* likewise, their log-probabilities */
    int64_t log;
    /* (rows), or NULL: each row has settings of its own, and of the fields above only logits,
     * do_sample (of any row), tokens and scores are used, the last two being (rows) then */
    const fv_sample_row *row;
} fv_sample;

/* Tokens [first, end) of row `from` go to row `to`. */
typedef struct fv_cache_move {
    int32_t to, from, first, end;
} fv_cache_move;
typedef struct fv_cache_rows {
    void *data;
    size_t token, row; /* bytes from one to the next */
} fv_cache_rows;

/* Bytes from one address of device memory to another that they do not overlap; all multiples of
 * 16. */
typedef struct fv_copy {
    void *to;
    const void *from;
    size_t bytes;
} fv_copy;

/* The weights of one query of sequence b and a head, to its first n keys, at out[at ..]; n 0:
 * none. */
typedef struct fv_weights_job {
    int32_t b, head, query;
    int32_t n;
    int32_t at;
} fv_weights_job;

/* A hypothesis that ended: behind `made` tokens of what beam `parent` was then came `token`. */
typedef struct fv_ended {
    float score;
    int32_t made, parent, token; /* made -1: none */
} fv_ended;

/* A step of beam search, all in device memory: the K running beams of each source go on, change
 * slots and move on, and so do their caches.  Rows of a step are sources * K; which of all sources
 * a slot has is in `source`, and what is kept about one is found by that number.  Sources that are
 * over stay where they are. */
enum { FV_BEAMS_MAX = 16, FV_BEAMS_MAX_CANDIDATES = 64 }; /* K and wide at most */
typedef struct fv_beams {
    int64_t sources, K, V, all;
    int64_t wide;               /* continuations looked at: enough that K of them do not end */
    const void *logits;         /* (sources*K,V) */
    const uint8_t *token_flags; /* (V) */
    int32_t forced_first, forced_last, pad; /* as for fv_sample */
    bool renormalize;                       /* probabilities are those of what may come */
    bool early;                             /* over as soon as K have ended */
    bool hopeful; /* over only if no length could make the best beat the worst that ended */
    const double *penalty;            /* what a score is divided by, by new tokens */
    const int32_t *source;            /* (sources) */
    const int32_t *min_new, *max_new; /* (all) */
    int32_t *made, *over;             /* (all) */
    float *score;                     /* (all,K), best first */
    fv_ended *done;                   /* (all,K), best first */
    int32_t *common; /* (all,K,K): first tokens of their caches that two beams have in common */
    int32_t *tokens, *parents; /* (made,all,K): what each beam got, and which it was before */
    int32_t *token, *position; /* (sources*K) and (steps,sources*K) */
    int64_t n_positions;
    const fv_cache_rows *cache;
    int64_t n_caches;
} fv_beams;

#endif
