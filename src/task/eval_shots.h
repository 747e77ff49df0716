/* eval_shots.h - what few-shot evaluation is made of: a subject for each task, and the table. */
#ifndef FV_EVAL_SHOTS_H
#define FV_EVAL_SHOTS_H

#include "fovea/author/shots.h"
#include "task/task_pipeline.h"

enum { FV__SHOT_FIGURES = 4, FV__SHOT_COUNTS = 32 };

typedef struct fv__shots fv__shots;

/* One task: what is asked and how answers are judged. */
typedef struct fv__shot_task {
    const char *name, *prompt; /* for --task; the template where none is given */
    const char *figure[FV__SHOT_FIGURES];
    fv_status (*open)(fv__shots *s, fv_err *e);
    /* All records after the solved examples in s->solved: the figures of this draw. */
    fv_status (*judge)(fv__shots *s, double figure[FV__SHOT_FIGURES], fv_err *e);
} fv__shot_task;

extern const fv__shot_task fv__shots_classify, fv__shots_answer, fv__shots_translate;

struct fv__shots {
    fv_eval_run *r;
    fv_shots_opt opt;
    const fv__shot_task *task;
    fv_eval_texts text, gold;               /* of the records that are judged */
    fv_eval_texts solved_text, solved_gold; /* what examples are drawn from */
    fv_buf solved;  /* the examples of this draw, as they stand in the prompt */
    int64_t *order; /* of a draw: examples, shuffled */
    size_t order_bytes;
    fv_pipeline *pipe;
    fv_setting setting[8];
    fv_buf words;       /* classify: the labels' words with commas between */
    const char **label; /* (labels) as the data name them */
    const char **word;  /* (labels) as the prompt does */
    int labels;
    float *prior; /* (vocabulary) answer, translate: mean probabilities of the first token behind
                     texts without content */
    size_t prior_bytes;
    fv_arena memory;
};

/* The prompt of one text behind the solved examples, appended. */
void fv__shots_prompt(const fv__shots *s, fv_buf *b, const char *text);
/* Texts and references of a file: a table of two fields, or SQuAD's questions. */
fv_status fv__shots_table(fv__shots *s, const char *file, fv_eval_texts *text, fv_eval_texts *gold,
                          fv_err *e);

fv_status fv__shots_open_pipeline(fv__shots *s, const char *task, int n_settings, fv_err *e);

/* Texts without content, by which figures are calibrated; NULL behind the last. */
extern const char *const fv__shots_empty[];

/* ---- texts that are written (eval_shots_write.c) ---- */

fv_status fv__shots_open_writer(fv__shots *s, fv_err *e);
/* What the model writes behind the prompt of each record: as it is, and with its first token
 * calibrated where opt.calibrate says so.  Both are freed by the caller. */
fv_status fv__shots_write(fv__shots *s, fv_eval_texts *plain, fv_eval_texts *calibrated, fv_err *e);
/* Logits (V) of a first token, divided by their probabilities behind texts without content, none of
 * which is 0. */
void fv__shots_calibrate(float *logits, const float *prior, int64_t V);

#endif
