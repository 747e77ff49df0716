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
    bool held, cancel_asked; /* where ranks share the model: until their next round */
    bool done;
    bool told_later; /* an event of it waits to be told */
    bool left;       /* meanwhile it has given up its row */
    size_t bytes;    /* of this block: sequence, ids and lists */
} sequence;

/* An event of a token that the device has chosen, told while the next step runs. */
typedef struct fv_sched_told {
    sequence *q;
    fv_sched_event ev;
    /* where its weights lie in tap.host, floats from one map to the next, keys; cols 0: none */
    int64_t weights, every, cols;
} fv_sched_told;

/* Where the device chooses tokens: settings of each row, then what it chose, in one block.  Lists
 * of weights that are wanted end where the settings begin, so that both are written at once; the
 * weights follow what was chosen, so that both are read at once. */
typedef struct fv_sched_choice {
    fv_sample_row *row;  /* device memory, `rows` of them; NULL: the host chooses */
    int32_t *token;      /* device, behind these; then scores */
    fv_sample_row *host; /* the same settings in host memory, with lists before them */
    size_t bytes;        /* of settings, tokens and scores */
    size_t lists;        /* bytes for lists before these, device and host */
    size_t weights;      /* device, bytes for weights behind these */
    size_t listed;       /* of the lists, bytes that the step under way has */
    float *logits; /* device, (rows,V) f32: of a step in which the host chooses for some rows */
    bool any;      /* the device chooses for some row of the step under way */
    bool draws;    /* and draws at random for some */
    bool keeps;    /* and the host for some */
} fv_sched_choice;

/* Where the tap writes the weights of the step under way. */
typedef struct fv_sched_tap {
    int64_t layer;       /* attentions seen in this step */
    int64_t first, rows; /* session rows of the step */
    int64_t queries;     /* tokens of a row of the step */
    const int32_t *n;    /* of a padded step, those of each row that are none of the padding */
    bool prompt;         /* the step reads prompts */
    bool listed;         /* the device has a list of what is wanted */
    int64_t *start;      /* rows + 1: where the maps of each row begin, and end */
    int64_t *width;      /* rows: floats of a query's row in its maps */
    float *device;       /* all maps of the step, one behind the other */
    void *maps;          /* device memory for them; where they are listed it is the choice's */
    size_t maps_bytes;
    float *host;           /* the same maps in host memory */
    const int32_t *tokens; /* and, read with them, tokens that the device chose; or NULL */
    void *read;
    size_t read_bytes;
    float *packed; /* of one event: without what stands behind the last key */
    size_t packed_bytes;
    /* where the device takes a list: jobs of the layers that somebody wants, `padded` each */
    fv_weights_job *jobs, *device_jobs; /* of the choice's block */
    int64_t padded;
    int64_t *next; /* layers: where the next job of each goes */
    size_t next_bytes;
    uint64_t wanted; /* who asked for what in the last step; a captured one is for that alone */
} fv_sched_tap;

struct fv_scheduler {
    fv_env env;
    const fv_model *model; /* the first of these */
    const fv_model *models[FV_SCHED_MODELS];
    int n_models;
    int64_t token_bytes; /* of a token's keys and values in all layers */
    int64_t budget;      /* bytes that rows may come to together; 0: no limit */
    fv_session *like;    /* what the model was measured with; NULL once rows are open */
    fv_scheduler_opt opt;
    int64_t V;
    fv_ctx *ctx;
    fv_session *session;
    sequence **row; /* opt.rows: those that decode, then those whose prompts are read */
    int64_t decoding;
    int64_t reading;          /* rows behind these whose prompts are being read */
    float *logits;            /* (rows,V) */
    float *raw;               /* V: those of one row before they are changed */
    float *scratch;           /* capacity */
    fv_candidate *candidates; /* V */
    int32_t *token, *from;    /* rows each */
    void *block;
    size_t bytes;
    fv_tensor y; /* logits of the last step that ran, not replayed */
    fv_sched_tap tap;
    /* The device works beside the host: events wait until it has its next step, the number of rows
     * is padded to one that a graph was captured for, and prompts are read side by side. */
    bool beside;
    bool spans; /* the family asks how long a prompt is in all */
    fv_sched_choice choice;
    fv_sched_told *told; /* 2 * rows */
    int64_t n_told;
    int32_t *padded; /* prefill: ids of prompts side by side */
    fv_prefix_cache prefixes;
    struct fv_comm *ranks; /* that share the model; NULL: it is whole */
    bool follows;          /* this is not rank 0 of them */
    fv_buf round;
    fv_sched_times times; /* of the stepping thread; stats have them as of the last step */
    int64_t since;        /* what is not counted in them yet */
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

/* scheduler.c: adds the time since the last call to one of s->times; where it is inside of another,
 * that since `from`, which is the other's no more. */
int64_t fv__sched_now(void);
void fv__sched_lap(fv_scheduler *s, int64_t *time);
void fv__sched_inner(fv_scheduler *s, int64_t *time, int64_t from);

/* scheduler_queue.c: the next sequence for a free row, taken off the queue, or NULL.  With `most`
 * only one that can be read beside others: of at most so many tokens and of this model, and without
 * the attention of its whole prompt. */
sequence *fv__sched_next(fv_scheduler *s, int64_t most, int model);
bool fv__sched_cancelled(fv_scheduler *s, const sequence *q);
bool fv__sched_any_cancelled(fv_scheduler *s); /* of those that have a row */

/* scheduler.c: takes a sequence out of the live ones and frees it; it holds no row any more. */
void fv__sched_forget(fv_scheduler *s, sequence *q);
void fv__sched_admit(fv_scheduler *s);
/* Gives the sequence the next free row and what a kept prefix has of its prompt. */
void fv__sched_seat(fv_scheduler *s, sequence *q);
void fv__sched_keep_prefix(fv_scheduler *s, const sequence *q, int64_t row, int64_t n);
void fv__sched_count(fv_scheduler *s, int64_t prompt, int64_t shared);

/* scheduler_prompt.c: prompts up to `prefill` tokens; false once the context has failed. */
bool fv__sched_read_prompts(fv_scheduler *s);

/* scheduler_decode.c: the next token of every row that decodes.  And choosing for rows [first,
 * first + n), whose logits a step has left: prepared before it, done by the device behind it (an
 * fv_after_fn), and read. */
bool fv__sched_decode(fv_scheduler *s);
bool fv__sched_choice_open(fv_scheduler *s);
size_t fv__sched_capacity(size_t bytes);
/* Memory for so many bytes of lists before the settings, which fv__sched_choice_prepare uploads,
 * and of weights behind what is chosen: tap.jobs, tap.device_jobs, tap.device. */
bool fv__sched_choice_reserve(fv_scheduler *s, size_t lists, size_t weights);
void fv__sched_choice_free(fv_scheduler *s);
bool fv__sched_choice_prepare(fv_scheduler *s, int64_t first, int64_t n);
void fv__sched_choose(fv_ctx *c, void *scheduler, fv_tensor *logits);
bool fv__sched_take_tokens(fv_scheduler *s, int64_t first, int64_t n);

/* scheduler_token.c: the next token behind a row of logits, told to the sequence's callback. */
void fv__sched_take_token(fv_scheduler *s, sequence *q, float *logits,
                          const fv_sched_weights *attention);
/* The same for a token that the device has chosen: told by fv__sched_tell.  b: its row in the
 * step. */
void fv__sched_accept(fv_scheduler *s, sequence *q, int32_t token, int64_t b);
void fv__sched_tell(fv_scheduler *s);
/* Ends a sequence without a token. */
void fv__sched_end(fv_scheduler *s, sequence *q, fv_finish why, const fv_err *error);

/* scheduler_attention.c.  Before a step of rows [first, first + rows) with T tokens each, and
 * after it, before the events; weights of queries [from, from + n) of the sequence in row `first +
 * b`, or NULL; from -1: the last. */
bool fv__sched_watch(fv_scheduler *s, int64_t first, int64_t rows, int64_t T);
bool fv__sched_collect(fv_scheduler *s);
const fv_sched_weights *fv__sched_weights(fv_scheduler *s, fv_sched_weights *out, int64_t b,
                                          int64_t from, int64_t n);
/* Notes where the weights of the last query of row b lie in tap.host; and finds them there. */
void fv__sched_note_weights(const fv_scheduler *s, fv_sched_told *t, int64_t b);
const fv_sched_weights *fv__sched_weights_at(fv_scheduler *s, fv_sched_weights *out,
                                             const fv_sched_told *t);
void fv__sched_tap_free(fv_scheduler *s);

/* scheduler_ranks.c: nothing where the model is whole.  Rank 0 meets the others before a step, who
 * may learn that there is none any more (ended); it sends them the tokens of rows [first,
 * first + n), which they take in place of choosing.  false once the context has failed. */
void fv__sched_ranks_open(fv_scheduler *s);
void fv__sched_ranks_close(fv_scheduler *s);
fv_status fv__sched_ranks_check(const fv_scheduler *s, const fv_sched_request *r, fv_err *e);
bool fv__sched_meet(fv_scheduler *s, bool *ended);
bool fv__sched_send_tokens(fv_scheduler *s, int64_t first, int64_t n);
bool fv__sched_follow_tokens(fv_scheduler *s, int64_t first, int64_t n);
void fv__sched_ranks_failed(fv_scheduler *s, const fv_err *why);

#endif
