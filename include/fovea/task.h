/* task.h - what people do with an encoder: text in, an answer out.  To a model of images a text is
 * the path of a PNG or JPEG file; to one that sees and reads (CLIP), where it ends in .png, .jpg or
 * .jpeg.
 *
 * A task is a model opened for one job with its tokenizer and what its directory says about their
 * use (labels, pooling).  It takes any number of texts at once and puts those of like length into
 * one batch; a text's result does not depend on the others.  Results are transformers' and
 * sentence-transformers'.  A task belongs to one thread. */
#ifndef FOVEA_TASK_H
#define FOVEA_TASK_H

#include "fovea/comm.h"
#include "fovea/gen.h"
#include "fovea/tok.h"

typedef struct fv_task fv_task;

typedef enum fv_job {
    FV_JOB_EMBED,
    FV_JOB_CLASSIFY,
    FV_JOB_FILL,
    FV_JOB_TAG,
    FV_JOB_ANSWER,
    FV_JOB_DETECT,   /* boxes in images */
    FV_JOB_SEGMENT,  /* labels of pixels */
    FV_JOB_CONTRAST, /* images and texts in one space: CLIP, SigLIP */
    FV_JOB_REGRESS   /* numbers of time series */
} fv_job;

/* Opens dir for a job, to serve (opt.serve is understood).  A model without the head that the job
 * needs is refused, with what it has instead. */
FV_API fv_status fv_task_open(fv_task **out, fv_device *d, const char *dir, fv_job job,
                              fv_model_opt opt, fv_err *e);
FV_API void fv_task_close(fv_task *t); /* NULL is allowed */
FV_API const fv_tok *fv_task_tok(const fv_task *t);

/* UTF-8, and a second text that goes with the first (an answer, a hypothesis) or NULL. */
typedef struct fv_text {
    const char *s;
    size_t n;
    const char *pair;
    size_t pair_n;
} fv_text;

/* ---- models that generate ---- */

/* A key of fv_gen_fields or of a task's own options, as text. */
typedef struct fv_setting {
    const char *key, *value;
} fv_setting;

/* A model with its tokenizer and generation settings.  The members may be used; gen may be
 * changed. */
typedef struct fv_writer {
    fv_device *device;
    fv_model *model, *assistant; /* the assistant of speculative decoding, or NULL */
    fv_tok *tok;
    fv_encoding *enc;
    struct fv_dir *dir;
    fv_gen_config *config;
    fv_gen_opt gen; /* its lists are the config's */
    bool encoder;   /* the model reads a source, else it continues a prompt */
    int32_t begin;  /* the id a text begins with, or -1 */
} fv_writer;

typedef struct fv_writer_opt {
    fv_dtype weights; /* as in fv_model_opt */
    bool widen;
    fv_adapter_list adapters;
    const fv_setting *settings; /* over what the model says; keys that are none of fv_gen_fields
                                   are passed over */
    int n_settings;
    const char *task;   /* as in fv_gen_config_open */
    int64_t new_tokens; /* at most so many where neither says */
    fv_comm *ranks;     /* that share the model's weights (tensor parallel); NULL: they are whole */
    fv_comm *stages;    /* that share its layers (stages of a pipeline); NULL: all are here */
} fv_writer_opt;

/* Fills *w from a model's directory; on failure w is empty and may be closed. */
FV_API fv_status fv_writer_open(fv_writer *w, fv_device *d, const char *dir, fv_writer_opt opt,
                                fv_err *e);
FV_API void fv_writer_close(fv_writer *w);

/* ---- vectors ---- */

typedef enum fv_pool {
    FV_POOL_GIVEN = 0,
    FV_POOL_MEAN,
    FV_POOL_CLS, /* the first token */
    FV_POOL_MAX,
    FV_POOL_LAST,     /* the last token */
    FV_POOL_WEIGHTED, /* the mean, token t counting t times */
    FV_POOL_ROOT      /* the sum over the root of the length */
} fv_pool;

typedef struct fv_embed_opt {
    fv_pool pool; /* given: what 1_Pooling/config.json says; mean where nothing does */
    bool raw;     /* not scaled to length 1 */
} fv_embed_opt;

FV_API int64_t fv_task_width(const fv_task *t); /* numbers in a vector */
FV_API fv_status fv_task_embed(fv_task *t, const fv_text *texts, int64_t n, fv_embed_opt opt,
                               float *out, fv_err *e); /* (n,width) */

/* ---- labels of a text ---- */

FV_API int fv_task_labels(const fv_task *t);
/* as config.json names it, else LABEL_i */
FV_API const char *fv_task_label(const fv_task *t, int i);
/* Whether labels do not exclude each other: then scores are by sigmoid, else by softmax; a
 * regression's are as they come. */
FV_API bool fv_task_many(const fv_task *t);
/* (n,labels) */
FV_API fv_status fv_task_classify(fv_task *t, const fv_text *texts, int64_t n, float *scores,
                                  fv_err *e);

/* ---- masked words ---- */

typedef struct fv_word {
    int32_t id;
    float score; /* probability */
} fv_word;

typedef struct fv_mask_found {
    int64_t text;  /* which one */
    int64_t token; /* where, in tokens */
    fv_word *top;  /* k of them, likeliest first */
} fv_mask_found;

/* *found: all masks of all texts in order, *n_found of them, valid until the next call.  A text
 * without one is refused. */
FV_API fv_status fv_task_fill(fv_task *t, const fv_text *texts, int64_t n, int64_t k,
                              fv_mask_found **found, int64_t *n_found, fv_err *e);
/* The text's tokens as the last fv_task_fill saw them, with id in the mask's place: decode them for
 * the whole sentence. */
FV_API const int32_t *fv_task_filled(fv_task *t, const fv_mask_found *m, int32_t id, int64_t *n);

/* ---- spans ---- */

typedef struct fv_entity {
    int64_t text;     /* which one */
    int64_t from, to; /* characters */
    const char *s;    /* the n bytes there, in the text given */
    size_t n;
    const char *label; /* without B- and I- */
    float score;       /* mean probability of what was joined */
} fv_entity;

typedef enum fv_join {
    FV_JOIN_FIRST = 0, /* words, each by its first token: how fv_feed_tag teaches them */
    FV_JOIN_SIMPLE     /* tokens, each by itself */
} fv_join;

/* Runs of words or tokens with one label, as transformers' aggregations of these names; those
 * labelled O are left out.  Valid until the next call. */
FV_API fv_status fv_task_tag(fv_task *t, const fv_text *texts, int64_t n, fv_join join,
                             fv_entity **found, int64_t *n_found, fv_err *e);

typedef struct fv_answer {
    int64_t text;     /* which question */
    int64_t from, to; /* characters of the context; 0,0: there is no answer */
    const char *s;    /* the n bytes there, in the context given */
    size_t n;
    /* probability of its ends; those of equal words at several positions are added up */
    float score;
} fv_answer;

typedef struct fv_answer_opt {
    int64_t k;       /* answers to a question; 0: 1 */
    int64_t longest; /* tokens of an answer; 0: 15 */
    /* tokens at once, the question included; 0: 384, or what the model sees if that is less */
    int64_t window;
    int64_t stride; /* tokens that neighbouring windows share; 0: half of a window, at most 128 */
    bool or_none;   /* "no answer" competes, with the score of the first token */
} fv_answer_opt;

/* text: the question, pair: the context.  k for each question (fewer where there are no more), best
 * first; valid until the next call. */
FV_API fv_status fv_task_answer(fv_task *t, const fv_text *texts, int64_t n, fv_answer_opt opt,
                                fv_answer **found, int64_t *n_found, fv_err *e);

#endif
