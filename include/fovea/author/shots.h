/* shots.h - zero- and few-shot evaluation: a model judged by what it makes of a prompt with K
 * solved examples, for several K and several draws of the examples. */
#ifndef FOVEA_AUTHOR_SHOTS_H
#define FOVEA_AUTHOR_SHOTS_H

#include "fovea/fields.h"
#include "fovea/pipeline.h"

/* Keys of the section [shots] of a recipe. */
typedef struct fv_shots_opt {
    char prompt[4096];   /* {} is the text; \n a line's end */
    char labels[4096];   /* classify: words for labels, "0=negative 1=positive"; else themselves */
    char examples[4096]; /* the file they are drawn from, read as the one that is judged */
    char shots[256];     /* numbers of examples, "0 1 4" */
    int64_t seeds, seed; /* draws for each number, and the first of them */
    int64_t most;        /* records that are judged; 0: all */
    bool calibrate;      /* all figures also after contextual calibration (Zhao et al. 2021) */
} fv_shots_opt;

/* Their ranges, defaults and help. */
FV_DATA const fv_field fv_shots_fields[];

/* Fills *out, defaults first, with [shots] of an INI file; other sections are passed over. */
FV_API fv_status fv_shots_read(fv_shots_opt *out, const fv_env *env, const char *path, fv_err *e);

/* As fv_eval, with a language model (or, of labels, one for masks or inference).  opt->task:
 * "classify" (accuracy of labels by likelihood), "answer" (exact matches and F1 on SQuAD's JSON) or
 * "translate" (BLEU and chrF on pairs of texts); NULL: classify. */
FV_API fv_status fv_eval_shots(fv_device *d, const fv_eval_opt *opt, const fv_shots_opt *shots,
                               fv_task_result_fn *fn, void *user, fv_err *e);

#endif
