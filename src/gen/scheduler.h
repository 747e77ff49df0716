/* scheduler.h - the inside of the scheduler: sequences, the queue, and what hangs on a step. */
#ifndef FV_SCHEDULER_H
#define FV_SCHEDULER_H

#include <pthread.h>

#include "base/base.h"
#include "gen/prefix_cache.h"
#include "gen/sample.h"
#include "model/session.h"

#define FV_SCHED_TOP 64    /* likeliest tokens that an event may bring */
#define FV_SCHED_MODELS 64 /* of one batch */

typedef struct sequence {
    struct sequence *next_waiting; /* in the queue */
    struct sequence *next_live;    /* of all that wait or run */
    uint64_t id;
    fv_sched_request ask; /* its lists lie behind the sequence */
    fv_gen_opt opt;
    int64_t number; /* of its random numbers */
    int32_t *ids;   /* `end` of them at most, the prompt first */
    int64_t n, prompt, end;
    int64_t cached; /* tokens in the KV cache */
    int64_t shared; /* of the prompt, those that came from the prefix cache */
    bool cancelled;
    bool done;
    size_t bytes; /* of this block: sequence, ids and lists */
} sequence;

/* Where the tap writes the weights of the step under way. */
typedef struct fv_sched_tap {
    int64_t layer;         /* attentions seen in this step */
    int64_t first, rows;   /* session rows of the step */
    int64_t from, queries; /* rows of the prompt that are wanted, in a step that reads one */
    int64_t cols;          /* keys of a row as the caches are allocated */
    void *device;          /* all maps of the step, one behind the other */
    size_t device_bytes;
    float *host;
    size_t host_bytes;
    float *packed; /* of one event: without what stands behind the last key */
    size_t packed_bytes;
    uint64_t wanted; /* who asked for what in the last step; a captured one is for that alone */
} fv_sched_tap;

struct fv_scheduler {
    fv_env env;
    const fv_model *model; /* the first of these */
    const fv_model *models[FV_SCHED_MODELS];
    int n_models;
    int64_t token_bytes; /* of a token's keys and values in all layers */
    int64_t budget;      /* tokens that rows may come to together; 0: no limit */
    fv_scheduler_opt opt;
    int64_t V;
    fv_ctx *ctx;
    fv_session *session;
    sequence **row; /* opt.rows: those that decode, then the one whose prompt is read */
    int64_t decoding;
    bool reading;             /* row[decoding] is reading its prompt */
    float *logits;            /* (rows,V) */
    float *raw;               /* V: those of one row before they are changed */
    float *scratch;           /* capacity */
    fv_candidate *candidates; /* V */
    int32_t *token, *from;    /* rows each */
    void *block;
    size_t bytes;
    fv_tensor y; /* logits of the last batched step */
    fv_sched_tap tap;
    fv_prefix_cache prefixes;
    /* behind the lock */
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool locks;             /* both are there */
    sequence *first, *last; /* the queue */
    sequence *live;
    int64_t waiting, n_live;
    uint64_t last_id;
    fv_sched_stats stats;
};

/* scheduler_queue.c: the next sequence for a free row, taken off the queue, or NULL. */
sequence *fv__sched_next(fv_scheduler *s);
bool fv__sched_cancelled(fv_scheduler *s, const sequence *q);

/* scheduler_token.c: the next token behind a row of logits, told to the sequence's callback. */
void fv__sched_take_token(fv_scheduler *s, sequence *q, float *logits,
                          const fv_sched_weights *attention);
/* Ends a sequence without a token. */
void fv__sched_end(fv_scheduler *s, sequence *q, fv_finish why, const fv_err *error);

/* scheduler_attention.c.  Before a step of rows [first, first + rows) with T tokens each, and
 * after it, before the events; weights of the sequence in row `first + b`, or NULL. */
bool fv__sched_watch(fv_scheduler *s, int64_t first, int64_t rows, int64_t T);
bool fv__sched_collect(fv_scheduler *s);
const fv_sched_weights *fv__sched_weights(fv_scheduler *s, fv_sched_weights *out, int64_t b,
                                          int64_t from, int64_t n);
void fv__sched_tap_free(fv_scheduler *s);

#endif
