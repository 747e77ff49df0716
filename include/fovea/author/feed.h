/* feed.h - the examples a model is trained on: numbered, planned into batches of named arrays.
 *
 * A feed is an object with a handful of functions; each training objective (author/objective.h)
 * makes one.  A feed is read-only: several threads may make batches of one at once.  Random choices
 * (masks, spans, offsets) come from counters, so a batch is a function of the feed, its rows, the
 * seed and the epoch, and of nothing else. */
#ifndef FOVEA_AUTHOR_FEED_H
#define FOVEA_AUTHOR_FEED_H

#include "fovea/model.h"

/* ---- a batch: arrays in host memory, by the names the model knows them by ---- */

typedef struct fv_batch_part {
    const char *name; /* must outlive the batch */
    fv_dtype dtype;   /* FV_I32, FV_U8 or FV_F32 become tensors */
    fv_shape shape;
    void *data; /* memory that the next batch uses again */
    size_t capacity;
} fv_batch_part;

typedef struct fv_batch {
    const fv_env *env;
    int n;
    fv_batch_part *part; /* n of them are in use, the first with a row for each example */
    size_t part_bytes;
    double labels; /* number of labels that count in the loss */
    double tokens; /* for the speed that is reported; 0: as many as labels */
    fv_err err;    /* the first failure of fv_batch_put */
} fv_batch;

/* Memory for one more array, with undefined contents.  NULL when memory is out: the batch then
 * holds the error, and every further call gives NULL too. */
FV_API void *fv_batch_put(fv_batch *b, const char *name, fv_dtype t, fv_shape s);
FV_API void fv_batch_clear(fv_batch *b); /* empties it; memory stays for the next batch */
FV_API void fv_batch_free(fv_batch *b);
/* The array of that name, NULL if there is none. */
FV_API const fv_batch_part *fv_batch_get(const fv_batch *b, const char *name);
/* The arrays as tensors of the context, under the same names; the context fails on a dtype that no
 * tensor can have. */
FV_API fv_items fv_batch_items(fv_ctx *c, const fv_batch *b);

/* ---- feeds ---- */

typedef struct fv_feed fv_feed;

typedef struct fv_data_rng {
    uint64_t seed;
    int64_t epoch; /* -1: evaluation, the same whenever it happens */
} fv_data_rng;

struct fv_feed {
    void *self;
    const char *metric;  /* what count_correct counts: "accuracy"; NULL: only the loss is known */
    bool less_is_better; /* the metric is an error */
    /* each example is a batch, and they come in order, since one goes on where the last stopped */
    bool ordered;
    int64_t (*count)(const void *self, int64_t epoch);
    /* Tokens of example i, so that examples of like length share a batch; *target is 0 where there
     * is one side only. */
    void (*size)(const void *self, int64_t i, int64_t *source, int64_t *target);
    fv_status (*make)(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e);
    /* Adds to *hits how many predictions of the model's output are right, and to *of how many
     * there are.  NULL: the objective has no metric. */
    fv_status (*count_correct)(const void *self, fv_ctx *c, const fv_batch *b, const fv_items *out,
                               double *hits, double *of);
    /* A forward pass with a loss of the objective's own: runs the model on what it needs of in and
     * puts "loss" into out, divided as in->n_labels or per_label says.  NULL: the family's
     * forward, which computes its loss from labels. */
    void (*forward)(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in,
                    fv_items *out);
    /* The family's forward with what the objective carries from batch to batch, a memory.  A batch
     * may come with its rows several times over, one copy of all behind the other: each copy sees
     * the same memory, and the last one's is carried on.  NULL: nothing is carried. */
    void (*pass)(const void *self, fv_ctx *c, const fv_model *m, const fv_items *in, fv_items *out);
    /* Called once before training, when the model has its first values: what the objective wants to
     * know of these.  NULL: nothing. */
    fv_status (*prepare)(void *self, const fv_model *m, fv_device *d, fv_err *e);
    /* The last update of an epoch is done, and nothing is pending.  NULL: nothing is to be done. */
    fv_status (*end_epoch)(void *self, const fv_model *m, int64_t epoch, fv_err *e);
    /* Changes the gradient of p after the backward pass, before the optimiser.  It may be captured
     * and replayed: what it keeps is in device memory of its own.  NULL: it stays as it is. */
    void (*adjust)(void *self, fv_ctx *c, fv_params *p);
    /* What pass carries from batch to batch, as a file of a checkpoint (x.safetensors).  NULL:
     * nothing. */
    fv_status (*save_state)(const void *self, const fv_env *env, const char *path, fv_err *e);
    fv_status (*load_state)(void *self, const fv_env *env, const char *path, fv_err *e);
    void (*close)(void *self);
};

FV_API void fv_feed_close(fv_feed *f); /* NULL, and an empty one, are allowed */

/* ---- plans: which examples share a batch ---- */

typedef struct fv_plan fv_plan;

typedef struct fv_plan_opt {
    /* padded tokens of a side, at most; a longer example is a batch of its own */
    int64_t tokens;
    int64_t rows;    /* examples, at most; 0: no limit */
    fv_data_rng rng; /* epoch -1 (evaluation): sorted by length, not shuffled */
} fv_plan_opt;

/* All batches of one epoch.  The same feed and options give the same plan on every machine. */
FV_API fv_status fv_plan_make(fv_plan **out, const fv_env *env, const fv_feed *f, fv_plan_opt opt,
                              fv_err *e);
FV_API void fv_plan_free(fv_plan *p); /* NULL is allowed */
FV_API int64_t fv_plan_count(const fv_plan *p);
/* The numbers of the n examples of batch i. */
FV_API const int32_t *fv_plan_batch(const fv_plan *p, int64_t i, int64_t *n);

/* ---- loaders: batches in order, made ahead of their use by threads ---- */

typedef struct fv_loader fv_loader;

typedef struct fv_loader_opt {
    fv_plan_opt plan; /* with the epoch to begin with */
    int64_t batch;    /* batches of that epoch to skip: used before the run was resumed */
    int64_t hold;     /* batches that the caller holds at a time; 0: 1 */
    int64_t ahead;    /* batches that are prefetched; 0: none, and no thread */
    int64_t workers;  /* threads that make them; 0: 1 */
    /* Each batch is cut by rows into this many shards, which come instead of it; one may have no
     * rows, and then no arrays.  Of the shards of `group` batches, the leaves of an update,
     * those of one of `ranks` ranks come, the others are not made.  0: batches are not cut. */
    int64_t shards, group;
    int rank, ranks;
} fv_loader_opt;

typedef struct fv_loaded {
    fv_batch batch;
    int64_t epoch, index; /* number of the batch in its epoch */
    bool last;            /* of its epoch */
    /* of a shard: its number among the `leaves` of its update, and the number of the batch that
     * follows the update */
    int64_t leaf, leaves, next;
} fv_loaded;

FV_API fv_status fv_loader_new(fv_loader **out, const fv_env *env, const fv_feed *f,
                               fv_loader_opt opt, fv_err *e);
FV_API void fv_loader_free(fv_loader *f); /* NULL is allowed; waits for the threads */
/* The next batch, valid until fv_loader_release has been called and `hold` more were asked for. */
FV_API fv_status fv_loader_next(fv_loader *f, const fv_loaded **out, fv_err *e);
/* The caller holds none of the batches it was given so far any more. */
FV_API void fv_loader_release(fv_loader *f);

#endif
