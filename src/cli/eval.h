/* eval.h - a kind of evaluation: which models it is for, and what is done then.  Each is one
 * file. */
#ifndef FOVEA_CLI_EVAL_H
#define FOVEA_CLI_EVAL_H

#include <stdio.h>

#include "fovea/metric.h"
#include "json.h"
#include "texts.h"

typedef struct eval_values {
    cli_model model;
    int task; /* 0: what the model is for */
    /* how the file of records is read, as in the [data] of a recipe */
    int format;
    const char *source_field, *target_field, *label_until;
    bool header, latin1;
    int64_t window, stride, longest; /* of long texts */
    bool or_none;
    /* texts that stand side by side */
    const char *source, *reference, *hypothesis;
    const char *prefix;
    const char *predictions;
    int64_t beam, batch;
    bool lowercase, json;
    cli_settings settings;
} eval_values;

typedef struct eval_kind {
    const char *name; /* for --task */
    /* what the architecture's name holds, ending in NULL: models that are evaluated like this */
    const char *const *heads;
    /* file: the records, NULL where none was named */
    int (*run)(const cli *c, const eval_values *v, const char *file);
} eval_kind;

extern const eval_kind eval_classify;   /* accuracy and F1 of labels */
extern const eval_kind eval_tag;        /* entities as conlleval counts them */
extern const eval_kind eval_answer;     /* exact matches and F1, as SQuAD has them */
extern const eval_kind eval_perplexity; /* how likely a text is */
extern const eval_kind eval_translate;  /* BLEU and chrF */
extern const eval_kind eval_summarize;  /* ROUGE */

/* ---- what the kinds share ---- */

/* Does n records, --batch of them at a time. */
typedef int eval_slice(void *work, int64_t from, int64_t n);
int eval_in_slices(const eval_values *v, int64_t n, eval_slice *run, void *work);

/* How a file of labelled texts is to be read; records that cannot be used are refused. */
fv_records eval_records(const eval_values *v, const char *file);
/* A file for --predictions, NULL where there is none; closing reports what could not be written. */
int eval_open_predictions(const cli *c, const eval_values *v, FILE **out);
int eval_close_predictions(const cli *c, const eval_values *v, FILE *f, int code);
/* A table of precision, recall and F1: begin with a NULL name for its head. */
void eval_row(const char *name, int width, fv_match m);
json_t *eval_match_json(fv_match m);

/* ---- texts that a model makes of texts, against references ---- */

/* Texts of one side, NUL-terminated. */
typedef struct eval_texts {
    char **at;
    size_t *len;
    int64_t n;
} eval_texts;

/* Both sides, of the same length: from file, which has two texts a record, or from --reference with
 * --source or --hypothesis.
 * *made: the texts are what was written already. */
int eval_read_sides(const cli *c, const eval_values *v, const char *file, eval_texts *texts,
                    eval_texts *reference, bool *made);
/* Room for n texts, to be added to. */
int eval_new_texts(const cli *c, eval_texts *t, int64_t n);
bool eval_add_text(eval_texts *t, const char *s, size_t n);
void eval_free_texts(eval_texts *t);
/* One a line, for --predictions. */
int eval_write_texts(const cli *c, const eval_values *v, const eval_texts *t);

#endif
