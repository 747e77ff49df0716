/* task_pipeline.h - what the files of the tasks share: the open pipeline, results, JSON. */
#ifndef FV_TASK_PIPELINE_H
#define FV_TASK_PIPELINE_H

#include "fovea/author/data.h"
#include "fovea/gen.h"
#include "fovea/author/metric.h"
#include "fovea/pipeline.h"
#include "task/task.h"

struct fv_pipeline {
    fv_env env;
    const fv_task_kind *kind;
    fv_pipeline_opt opt;
    fv_device *dev;
    void *options; /* kind->size bytes, filled from the settings */
    void *self;    /* what the task keeps, self_size bytes */
    size_t self_size;
    fv_task *task;    /* of an encoder, where the task opened one */
    fv_writer writer; /* of a model that generates, likewise */
    int64_t tokens;   /* generated */

    fv_buf out; /* the result that is being written */
    char note[160];
    int64_t first, done; /* number of the first record of this run, results handed on */
    fv_task_result_fn *fn;
    void *user;
    bool stopped;     /* fn wants no more */
    bool finished;    /* all records have been handed in, by every rank */
    fv_buf kept;      /* of several ranks: this one's results, until all are done */
    fv_buf extra;     /* what the record that is being written adds to the total */
    fv_err add_error; /* why that failed; code FV_OK: it did not */
};

const fv_task_kind *fv__task_kind_find(const char *name); /* NULL: there is none */

/* Hands p->out on as the result of the next record, and empties it. */
fv_status fv__task_emit(fv_pipeline *p, fv_err *e);
/* What the next record adds to the total besides its text: kind->add gets it. */
void fv__task_extra(fv_pipeline *p, const void *extra, size_t n);
/* Hands on part of the next record's result. */
fv_status fv__task_emit_part(fv_pipeline *p, const char *text, size_t n, fv_err *e);
/* ---- ranks (task_ranks.c) ---- */

/* Whether this rank runs the record of this number, from 1. */
bool fv__task_owns(const fv_pipeline *p, int64_t record);
void fv__task_deliver(fv_pipeline *p, const fv_task_result *r);
/* Rank 0 delivers the results of all. */
fv_status fv__task_gather(fv_pipeline *p, fv_err *e);

/* ---- opening ---- */

/* Room for what the task keeps, zeroed; p->self. */
fv_status fv__pipeline_self(fv_pipeline *p, size_t size, fv_err *e);
/* How its model is opened, as the settings say. */
fv_model_opt fv__pipeline_model_opt(const fv_pipeline *p);
fv_status fv__open_encoder(fv_pipeline *p, fv_job job, fv_err *e); /* p->task */
/* p->writer; task and new_tokens as in fv_writer_open. */
fv_status fv__open_writer(fv_pipeline *p, const char *task, int64_t new_tokens, fv_err *e);
const char *fv__setting(const fv_setting *s, int n, const char *key); /* the last one, or NULL */
/* Of a setting that may be repeated: the i-th that was given, in order; NULL behind the last. */
const char *fv__setting_at(const fv_pipeline *p, const char *key, int i);

/* A record that is the path of a file, with a NUL behind it. */
fv_status fv__task_path(char *out, size_t size, const fv_text *record, fv_err *e);

/* A task whose records are paths: calls one for each, until one fails. */
fv_status fv__task_each_path(fv_pipeline *p, const fv_text *in, int64_t n,
                             fv_status (*one)(fv_pipeline *p, const char *path, fv_err *e),
                             fv_err *e);

/* Calls each for the regular files of a folder in order of their names, hidden ones left out, until
 * one fails. */
typedef fv_status fv__file_fn(void *user, const char *path, fv_err *e);
fv_status fv__each_file(const fv_env *env, const char *dir, fv__file_fn *each, void *user,
                        fv_err *e);

/* Entries of a task that gives one result for each image. */
#define FV__TASK_OF_IMAGES .images = true, .aligned = true, .batch = 32

/* Settings of generating over what gen has. */
fv_status fv__apply_gen(fv_gen_opt *gen, const fv_setting *set, int n, fv_err *e);

/* ---- JSON: compact, nine digits, null for what is not finite ---- */

/* Commas are put where they belong. */
void fv__json_begin(fv_buf *b, char bracket);
void fv__json_end(fv_buf *b, char bracket);
void fv__json_key(fv_buf *b, const char *key);
void fv__json_put_text(fv_buf *b, const char *s, size_t n);
void fv__json_put_int(fv_buf *b, int64_t x);
void fv__json_put_number(fv_buf *b, double x);
/* A member of the object that is open. */
void fv__json_text_at(fv_buf *b, const char *key, const char *s, size_t n);
void fv__json_int_at(fv_buf *b, const char *key, int64_t x);
void fv__json_number_at(fv_buf *b, const char *key, double x);

/* Text of an SVG file: what XML has a meaning for becomes numbers. */
void fv__put_xml(fv_buf *b, const char *s);
/* Text on one line: tabs and line ends become blanks. */
void fv__put_flat(fv_buf *b, const char *s, size_t n);
/* The template with s instead of {}, and \n for a line's end. */
void fv__put_template(fv_buf *b, const char *how, const char *s, size_t n);

/* A text and its pair with the tab between them, for models to which a tab means nothing. */
static inline fv_text fv__joined(const fv_text *x)
{
    return x->pair ? (fv_text){.s = x->s, .n = (size_t)(x->pair - x->s) + x->pair_n} : *x;
}

/* ---- ids in a buffer ---- */

static inline const int32_t *fv__ids(const fv_buf *b) { return (const int32_t *)(void *)b->data; }
static inline int64_t fv__n_ids(const fv_buf *b) { return (int64_t)(b->len / sizeof(int32_t)); }
fv_status fv__ids_add(fv_buf *b, const int32_t *ids, int64_t n, fv_err *e);

/* ---- generating for many ---- */

/* The ids of a text, with what the tokenizer adds; for a prompt at least the one that texts begin
 * with. */
fv_status fv__writer_encode(fv_writer *w, fv_buf *ids, const char *text, size_t n, fv_err *e);
/* Appends the text of ids that follow a prompt: only what they add to it. */
fv_status fv__writer_decode(fv_writer *w, fv_buf *out, const fv_buf *prompt, const int32_t *ids,
                            int64_t n, fv_err *e);

/* Generates for n texts together and hands every hypothesis to each. */
typedef struct fv_writer_job {
    fv_status (*encode)(fv_pipeline *p, fv_buf *ids, const fv_text *text, fv_err *e);
    fv_status (*each)(fv_pipeline *p, const fv_text *text, const fv_buf *ids, int64_t i,
                      const fv_hyp *h, bool last, fv_err *e);
} fv_writer_job;
fv_status fv__write_all(fv_pipeline *p, const fv_writer_job *job, const fv_text *in, int64_t n,
                        fv_err *e);
/* Cuts p's text at the first of the strings given as the setting "stop". */
bool fv__cut_at_stop(const fv_pipeline *p, fv_buf *text);
/* The i-th text that ends what is generated, NULL behind the last: those of the settings, then
 * those of generation_config.json, which stay in the text (*kept), as transformers leaves them. */
const char *fv__stop_string(const fv_pipeline *p, int i, bool *kept);

/* Log-probability of a text behind the token that texts begin with, and how many tokens count. */
fv_status fv__writer_score(fv_writer *w, const fv_text *text, int64_t window, int64_t stride,
                           double *log_p, int64_t *tokens, fv_err *e);
/* The same by all ranks of c, which share its windows; each gets the sum.  log_p[1]: that with the
 * cache of `how`, whose out is not read. */
fv_status fv__writer_score_ranks(fv_writer *w, const fv_text *text, fv_score_opt how, fv_comm *c,
                                 double log_p[2], int64_t *tokens, fv_err *e);
/* The same of text->pair, for a model with an encoder, which reads the text. */
fv_status fv__writer_score_pair(fv_writer *w, const fv_text *text, double *log_p, int64_t *tokens,
                                fv_err *e);

/* What the architecture that a directory names computes; FV_HEAD_BASE where it cannot be opened or
 * no family has that architecture: opening the model will say why.  name, if not NULL, gets the
 * architecture's, "" for none. */
fv_head_job fv__head_job(const char *dir, char *name, size_t size);

/* ---- models of items ---- */

/* The n items of a model's directory by name, into an empty list, which is closed then. */
fv_status fv__item_names(fv_labels *items, const char *dir, int64_t n, fv_err *e);

/* ---- passages of a folder of files, for answer ---- */

typedef struct fv_passage {
    const char *file;
    fv_text text;
    int64_t from; /* characters of the file before it */
} fv_passage;

typedef struct fv_passages {
    const fv_env *env;
    fv_buf at; /* of fv_passage */
    int64_t n;
    struct fv_passage_file *files;
    float *vectors; /* (n,width), as the embedder gives them */
    int64_t width;
    size_t vector_bytes;
    struct fv_words *words; /* without an embedder: each passage a document */
} fv_passages;

/* embedder, here and in nearest: NULL ranks by BM25. */
fv_status fv__passages_open(fv_passages *p, const fv_env *env, const char *dir, fv_task *embedder,
                            fv_err *e);
void fv__passages_close(fv_passages *p);
/* nearest (n,most): the passages nearest to each of the n questions, best first, by cosine or by
 * BM25.  most: at most 64, and no more than there are passages. */
fv_status fv__passages_nearest(const fv_passages *p, fv_task *embedder, const fv_text *questions,
                               int64_t n, int64_t most, int64_t *nearest, fv_err *e);

/* ---- labels that a model was not trained on, for classify ---- */

typedef struct fv_zero_shot fv_zero_shot;
typedef struct fv_zero_shot_opt {
    const char *hypothesis, *prompt, *examples;
    bool many;
    const char *const *labels;
    int n;
} fv_zero_shot_opt;

fv_status fv__zero_shot_open(fv_zero_shot **out, fv_pipeline *p, fv_zero_shot_opt opt, fv_err *e);
void fv__zero_shot_close(fv_zero_shot *z);
/* Of a pipeline that classifies by labels of its own. */
fv_zero_shot *fv__classify_zero_shot(const fv_pipeline *p);
fv_status fv__zero_shot_run(fv_zero_shot *z, const fv_text *in, int64_t n, float *scores,
                            fv_err *e); /* (n,labels) */

/* The same of images, for a model that sees and reads; opens p->task. */
typedef struct fv_photo_labels fv_photo_labels;
fv_status fv__photo_labels_open(fv_photo_labels **out, fv_pipeline *p, const char *hypothesis,
                                const char *const *labels, int n, fv_err *e);
void fv__photo_labels_close(fv_photo_labels *l);       /* NULL is allowed */
bool fv__photo_labels_apart(const fv_photo_labels *l); /* scores do not exclude each other */
fv_status fv__photo_labels_run(fv_photo_labels *l, const fv_text *in, int64_t n, float *scores,
                               fv_err *e); /* (n,labels) */

/* As fv_task_classify, of images of a set. */
fv_status fv__task_classify_set(fv_task *t, const fv_images *set, int64_t from, int64_t n,
                                float *scores, fv_err *e);

/* ---- labels of pixels ---- */

/* Of each pixel of an image (height,width) the label whose logit (labels,h,w), widened to it, is
 * the greatest. */
void fv__label_pixels(uint8_t *out, const float *logits, int labels, int64_t h, int64_t w,
                      int height, int width);

/* ---- boxes ---- */

typedef struct fv__found_box {
    int label;
    float score, box[4]; /* left, top, right, bottom, in pixels of the file */
} fv__found_box;

typedef struct fv__found {
    fv__found_box *box; /* n of them, most certain first; grown with the task's env */
    int64_t n;
    size_t bytes;
} fv__found;

/* What the model says of an image of width x height pixels: logits (queries,labels+1), boxes
 * (queries,4). */
fv_status fv__find_boxes(fv_task *t, const float *logits, const float *boxes, int64_t queries,
                         int width, int height, double threshold, fv__found *out, fv_err *e);

/* ---- captions ---- */

/* What is captioned: get decodes image i into raw, each receives its text and hypothesis. */
typedef struct fv__captions {
    const fv_env *env;
    fv_writer *writer;
    const fv_processor *processor;
    fv_status (*get)(void *user, int64_t i, fv_image *raw, fv_err *e);
    fv_status (*each)(void *user, int64_t i, const char *text, size_t n, const fv_hyp *h,
                      fv_err *e);
    void *user;
} fv__captions;

/* The image processor of a model that writes about images; the caller closes it. */
fv_status fv__captions_open(fv_processor **out, const fv_writer *w, const fv_env *env, fv_err *e);
fv_status fv__captions_write(const fv__captions *c, int64_t n, fv_err *e);

/* ---- evaluation ---- */

/* One evaluation as it runs; its parts are in eval_*.c. */
typedef struct fv_eval_run {
    fv_env env;
    fv_device *dev;
    const fv_eval_opt *opt;
    fv_buf out;            /* the report */
    fv_buf predictions;    /* of --predictions, written at the end */
    int fd;                /* of that file, or -1 */
    fv_task_result_fn *fn; /* receives notes on the way */
    void *user;
    bool settled; /* a failure that all ranks have agreed on */
} fv_eval_run;

struct fv_task_eval {
    const char *name; /* for --task */
    /* what the heads of models that are evaluated like this compute, ending in FV_HEAD_BASE */
    const fv_head_job *heads;
    bool sees;           /* only of models that take images */
    bool no_predictions; /* there is nothing for --predictions */
    fv_status (*run)(fv_eval_run *r, fv_err *e);
};

extern const fv_task_eval fv__eval_caption;    /* exact matches, BLEU and chrF */
extern const fv_task_eval fv__eval_classify;   /* accuracy and F1 of labels */
extern const fv_task_eval fv__eval_regress;    /* errors of numbers */
extern const fv_task_eval fv__eval_tag;        /* entities as conlleval counts them */
extern const fv_task_eval fv__eval_answer;     /* exact matches and F1, as SQuAD has them */
extern const fv_task_eval fv__eval_perplexity; /* how likely a text is */
extern const fv_task_eval fv__eval_translate;  /* BLEU and chrF */
extern const fv_task_eval fv__eval_summarize;  /* ROUGE */
extern const fv_task_eval fv__eval_transcribe; /* word and character error rates */
extern const fv_task_eval fv__eval_detect;     /* average precision of boxes */
extern const fv_task_eval fv__eval_segment;    /* labels of pixels */
extern const fv_task_eval fv__eval_retrieve;   /* texts that find their images, and back */

fv_status fv__eval_encoder(fv_eval_run *r, fv_task **out, fv_job job, fv_err *e);
fv_status fv__eval_writer(fv_eval_run *r, fv_writer *out, fv_err *e);
/* How records are judged: compute gives the result of each of n of them (fv__eval_give, in order),
 * take counts one.  Where ranks share the records compute is called for some, take for all, in
 * order. */
typedef struct fv_slices {
    fv_status (*compute)(void *work, int64_t from, int64_t n, fv_buf *out, fv_err *e);
    fv_status (*take)(void *work, int64_t i, const void *result, size_t n, fv_err *e);
    int64_t slice; /* records at a time; 0: opt->batch, else 1,024 */
} fv_slices;
void fv__eval_give(fv_buf *out, const void *result, size_t n);
/* Does n records. */
fv_status fv__eval_slices(fv_eval_run *r, int64_t n, const fv_slices *s, void *work, fv_err *e);
/* How the file of records is to be read; records that cannot be used are refused. */
fv_records fv__eval_records(const fv_eval_run *r);
/* A table of precision, recall and F1: begin with a NULL name for its head. */
void fv__eval_row(fv_buf *b, const char *name, int width, fv_match m);
void fv__eval_match_json(fv_buf *b, fv_match m); /* members of the object that is open */

/* Texts of one side, NUL-terminated. */
typedef struct fv_eval_texts {
    const fv_env *env;
    char **at;
    size_t *len;
    int64_t n, capacity;
} fv_eval_texts;

/* Both sides, of the same length: from the file, which has two texts a record, or from reference
 * with source or hypothesis.  *made: the texts are what was written already. */
fv_status fv__eval_sides(fv_eval_run *r, fv_eval_texts *texts, fv_eval_texts *reference, bool *made,
                         fv_err *e);
fv_status fv__eval_texts_new(fv_eval_texts *t, const fv_env *env, int64_t n, fv_err *e);
fv_status fv__eval_texts_add(fv_eval_texts *t, const char *s, size_t n, fv_err *e);
void fv__eval_texts_free(fv_eval_texts *t);
/* What the pipeline of a task gives for each text, one line each; also the predictions. */
fv_status fv__eval_pipeline(fv_eval_run *r, const char *task, const fv_setting *more, int n_more,
                            const fv_eval_texts *in, fv_eval_texts *out, fv_err *e);
void fv__eval_put_texts(fv_eval_run *r, const fv_eval_texts *t);

#endif
