/* pipeline.h - tasks by name: lines of text in, results out, as text or as JSON.
 *
 * A pipeline is what transformers calls one: a task (classify, tag, translate, ...) with the model,
 * the tokenizer and the settings it needs, opened from one directory.
 *
 *     fv_pipeline *p;
 *     fv_setting top = {"top", "3"};
 *     fv_pipeline_open(&p, device, (fv_pipeline_opt){.task = "classify", .model = "sst2",
 *                      .settings = &top, .n_settings = 1, .json = true}, &err);
 *     fv_pipeline_run(p, texts, n, 1, print, NULL, &err);
 *
 * A record that cannot be handled (too long, no mask in it) gives a result with an error; the
 * others go on.  What one record gives does not depend on the others.  The typed calls below this
 * are in task.h and translate.h.  A pipeline belongs to one thread. */
#ifndef FOVEA_PIPELINE_H
#define FOVEA_PIPELINE_H

#include "fovea/comm.h"
#include "fovea/fields.h"
#include "fovea/records.h"
#include "fovea/adapter.h"
#include "fovea/task.h"

typedef struct fv_pipeline fv_pipeline;

/* What one record gave; valid during the call that receives it. */
typedef struct fv_task_result {
    int64_t record;   /* its number, counted from what fv_pipeline_run was told */
    const char *text; /* n bytes: a JSON object, or plain text, with its line end */
    size_t n;
    const char *note;    /* something the user should know (a text was cut), or NULL */
    const fv_err *error; /* why there is no result, or NULL */
    bool more;           /* more text of this record follows: tokens as they are generated */
} fv_task_result;

/* Receives results in the order of the records, each as soon as it and all before it are done.
 * false: no more are wanted. */
typedef bool fv_task_result_fn(void *user, const fv_task_result *r);

/* ---- lines ---- */

typedef struct fv_reader fv_reader;

/* A line, or why it is none: not UTF-8. */
typedef struct fv_line {
    fv_text text;
    int64_t number; /* from 1 */
    fv_err error;   /* code FV_OK: fine */
} fv_line;

typedef struct fv_reader_opt {
    bool pairs; /* a tab separates a text from its pair */
    bool whole; /* all of the input is one text */
} fv_reader_opt;

/* Reads a file, or standard input where path is NULL: plain or gzip, with or without a byte-order
 * mark, lines ending in \n or \r\n.  Of a file called .fasta, .fa or .faa each sequence is a
 * line. */
FV_API fv_status fv_reader_open(fv_reader **out, const fv_env *env, const char *path,
                                fv_reader_opt opt, fv_err *e);
/* Up to `most` lines: waits for one, then takes those that are there.  *n is 0 at the end.  Valid
 * until the next call. */
FV_API fv_status fv_reader_next(fv_reader *r, int64_t most, const fv_line **lines, int64_t *n,
                                fv_err *e);
FV_API void fv_reader_close(fv_reader *r); /* NULL is allowed */
/* The same for a text that is there already. */
FV_API fv_line fv_line_of(const char *s, size_t n, int64_t number, fv_reader_opt opt);

/* ---- the tasks ---- */

typedef struct fv_task_example {
    const char *line, *what; /* a command line and what it does */
} fv_task_example;

typedef struct fv_task_eval fv_task_eval; /* how a task is evaluated */

/* A task is one file of src/task/ that defines one of these; the list is made from the folder. */
typedef struct fv_task_kind {
    const char *name, *summary, *about; /* one word, half a line, paragraphs */
    const fv_task_example *examples;    /* ending in {0} */
    const fv_field *options;            /* its settings */
    size_t size;                        /* of the struct that holds them */
    bool generates;                     /* takes the keys of fv_gen_fields too */
    bool images;                        /* records may be paths of images or sounds */
    bool sound;                         /* they are sounds; "-" is one on standard input */
    bool pairs;                         /* a tab in a record separates a text from its pair */
    bool aligned;                       /* plain output is one line for each record */
    bool prompt;                        /* the text is usually given as an argument */
    /* records are paths of files, and help calls one this: "FILE"; NULL: they are texts */
    const char *path;
    bool files;      /* they are paths of files and folders, any number; "-" is standard input */
    bool no_records; /* the settings say all: finish does the work */
    bool no_model;   /* it computes without one, and on no device */
    /* a setting that is given instead of records, and that finish handles; NULL: none */
    const char *instead;
    bool may_be_empty; /* no record at all is fine */
    int64_t batch;     /* records that go together; 0: 1 */

    /* Whether the settings fit together, before anything is opened; NULL: they always do. */
    fv_status (*check)(fv_pipeline *p, fv_err *e);
    fv_status (*open)(fv_pipeline *p, fv_err *e);
    fv_status (*run)(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e);
    /* What a record adds to the total, as the task put it into its result (fv__task_extra); called
     * in order of the records, whichever rank computed them.  NULL: nothing. */
    fv_status (*add)(fv_pipeline *p, const void *extra, size_t n, fv_err *e);
    fv_status (*finish)(fv_pipeline *p, fv_err *e); /* after the last record; NULL: nothing */
    void (*close)(fv_pipeline *p);
    const fv_task_eval *eval; /* NULL: it is not */
} fv_task_kind;

FV_API const fv_task_kind *fv_task_kind_at(int i); /* by name in order; NULL past the last */

/* ---- opening and running ---- */

typedef struct fv_pipeline_opt {
    const char *task, *model; /* names of a task and of a model directory */
    fv_dtype weights;         /* as in fv_model_opt */
    bool widen;
    fv_adapter_list adapters;
    const fv_setting *settings; /* need to live for as long as the pipeline */
    int n_settings;
    bool json;     /* results as JSON objects */
    bool whole;    /* there is one record only: its result is the total */
    int64_t batch; /* records that go together; 0: as suits the task */
    /* Ranks that share the records: each is handed all of them and runs its own, and rank 0 gets
     * the results of all, in order, when it finishes.  NULL: this process alone. */
    fv_comm *comm;
    /* the ranks of comm share the model instead, its heads and feed-forward parts: each runs all
     * records, and rank 0 gets the results as they come; of models that generate */
    bool tensor_parallel;
    bool pipeline_parallel; /* likewise its layers, each rank some of them */
} fv_pipeline_opt;

/* FV_EUSAGE: settings are missing or contradict each other.  d may be NULL for a task without a
 * model. */
FV_API fv_status fv_pipeline_open(fv_pipeline **out, fv_device *d, fv_pipeline_opt opt, fv_err *e);
/* NULL is allowed.  Of several ranks one that closes without having finished stops the others. */
FV_API void fv_pipeline_close(fv_pipeline *p);

/* first: the number of the first record. */
FV_API fv_status fv_pipeline_run(fv_pipeline *p, const fv_text *in, int64_t n, int64_t first,
                                 fv_task_result_fn *fn, void *user, fv_err *e);
/* The same for what a reader gave; lines that are no text become errors. */
FV_API fv_status fv_pipeline_run_lines(fv_pipeline *p, const fv_line *lines, int64_t n,
                                       fv_task_result_fn *fn, void *user, fv_err *e);
/* After the last record: totals, files that are written at the end.  Of several ranks every one
 * calls it; rank 0 writes. */
FV_API fv_status fv_pipeline_finish(fv_pipeline *p, fv_task_result_fn *fn, void *user, fv_err *e);
FV_API int64_t fv_pipeline_tokens(const fv_pipeline *p); /* that were generated so far */

/* ---- evaluation: what a model gives against what is right ---- */

typedef struct fv_eval_opt {
    const char *task; /* classify, tag, ...; NULL or "auto": what the model's architecture is for */
    const char *model; /* or NULL where texts are compared that were written already */
    const char *file;  /* of records, or NULL */
    fv_dtype weights;
    bool widen;
    fv_adapter_list adapters;
    const fv_setting *settings; /* keys of fv_gen_fields */
    int n_settings;
    int format; /* fv_format: how the file is read, as in the [data] of a recipe */
    const char *source_field, *target_field, *label_until;
    const char *images, *where; /* of a table of images, as in the [data] of a recipe; NULL: none */
    const char *between;        /* retrieval: the field whose values divide the images, as styles */
    const char *baseline;       /* captions: where, of the images whose nearest is compared with */
    const char *split;          /* of annotated images; NULL: all */
    bool header, latin1;
    int64_t window, stride, longest; /* of long texts */
    int64_t cache;                   /* perplexity: as fv_score_cache has them */
    double cache_theta, cache_weight;
    bool or_none;
    const char *source, *reference, *hypothesis; /* texts that stand side by side */
    const char *prefix, *predictions;
    int64_t beam, batch;
    bool lowercase, json;
    fv_comm *comm; /* ranks that share the records; NULL: this process alone */
} fv_eval_opt;

/* Calls fn with notes on records and, last, with the report: lines of text or one JSON object.  Of
 * several ranks rank 0 reports, with the figures that one alone would have. */
FV_API fv_status fv_eval(fv_device *d, const fv_eval_opt *opt, fv_task_result_fn *fn, void *user,
                         fv_err *e);

/* ---- a model in use, and its successors ---- */

/* dir holds versions (v1, v2, ..) and the file CURRENT, whose first line names the one in use: to
 * all that opens a model it is that version's directory.  Other programs may watch CURRENT, which
 * is replaced in one step. */
typedef struct fv_promote_opt {
    const char *dir;
    const char *candidate; /* a model's directory, or an adapter's */
    fv_eval_opt eval;      /* how both are evaluated; model and json are set here */
    const char *metric;    /* a number of the evaluation's JSON: "accuracy", "bleu.score" */
    bool less;             /* less of it is better */
    double margin;         /* worse by so much counts as not worse */
    bool back;             /* instead: the version before this one is in use again */
} fv_promote_opt;

typedef struct fv_promoted {
    bool taken;                     /* the version in use is another now */
    char version[64], previous[64]; /* in use now, and before; empty: none */
    double candidate, current;      /* the metric of both; NaN: not evaluated */
} fv_promoted;

/* Takes the candidate as a new version where it is not worse than the one in use, or there is none.
 * What is not taken leaves dir as it was, and is no error. */
FV_API fv_status fv_promote(fv_device *d, const fv_promote_opt *opt, fv_promoted *out, fv_err *e);

#endif
