/* explain.h - which tokens a prediction rests on, by several methods side by side.
 *
 *     fv_explainer *x;
 *     fv_explainer_open(&x, device, "runs/sst2/model", (fv_explain_opt){0}, &err);
 *     fv_explain(x, "A film of rare charm.", NULL, &out, &err);
 *     fv_explain_save(x, "charm.html", &err);
 *
 * A prediction is the label of a classifier of texts, images or sounds, or the next token of a
 * causal language model.  Of an image the patches are tokens, blanked by zeros; of a sound, where a
 * model has a token for each, the frames, blanked by their mean.  What is
 * explained is its log-probability, by every method alike, so that numbers can be compared.  An
 * explainer belongs to one thread. */
#ifndef FOVEA_AUTHOR_EXPLAIN_H
#define FOVEA_AUTHOR_EXPLAIN_H

#include "fovea/device.h"
#include "fovea/model.h"

/* Scores of tokens.  The first three are shares of attention and not negative; of the others a
 * negative score is a token that speaks against the prediction. */
typedef enum fv_explain_method {
    FV_EXPLAIN_ATTENTION = 0, /* weights of the last layer, the mean of its heads */
    FV_EXPLAIN_ROLLOUT,       /* layers multiplied (Abnar and Zuidema 2020) */
    FV_EXPLAIN_FLOW,          /* the greatest flow through the layers (the same) */
    FV_EXPLAIN_GRADIENT,      /* gradient x input of the first layer */
    FV_EXPLAIN_INTEGRATED,    /* integrated gradients (Sundararajan et al. 2017) from blanks */
    FV_EXPLAIN_OCCLUSION,     /* what is lost when the token is blanked out */
    FV_EXPLAIN_METHODS
} fv_explain_method;

FV_API const char *fv_explain_name(fv_explain_method m); /* "attention", "rollout", .. */

typedef struct fv_explain_opt {
    const char *label; /* that is explained: its name or number; NULL: the likeliest */
    const char *blank; /* the token that replaces others; NULL: the mask, else unknown, else pad */
    int steps;         /* of the integral; 0: 32 */
    bool heads;        /* also what is lost when each head is silenced */
    bool curves;       /* also deletion and insertion, which are added up over all texts */
    fv_model_opt model;
} fv_explain_opt;

enum { FV_EXPLAIN_POINTS = 11 }; /* of a curve: none, a tenth, .., all of the tokens */

/* One prediction; arrays belong to the explainer. */
typedef struct fv_explained {
    int64_t n;                 /* tokens, special ones among them */
    const char *const *token;  /* (n) */
    const uint8_t *special;    /* (n): 1 is never blanked, and counts in no comparison */
    const char *label;         /* what is explained */
    double log_p, log_p_blank; /* of the text, and with all its tokens blanked */
    const float *score[FV_EXPLAIN_METHODS]; /* (n) each; NULL: the text is too long for the flow */
    int64_t layers, heads;
    const float *head; /* (layers,heads): log_p less that without the head; NULL: not asked for */
    /* Spearman's rank correlation of the scores' magnitudes; NaN where one has a single value */
    double agreement[FV_EXPLAIN_METHODS][FV_EXPLAIN_METHODS];
} fv_explained;

/* What was added up over texts.  Method FV_EXPLAIN_METHODS is a random order, to compare with. */
typedef struct fv_explain_set {
    int64_t texts;
    double agreement[FV_EXPLAIN_METHODS][FV_EXPLAIN_METHODS]; /* means */
    int64_t agreed[FV_EXPLAIN_METHODS][FV_EXPLAIN_METHODS];   /* texts in them */
    /* Mean probability of the prediction when so many tokens are blanked, best first, or only so
     * many are not; and the areas below: a method is better where deletion is smaller and
     * insertion larger. */
    double deletion[FV_EXPLAIN_METHODS + 1][FV_EXPLAIN_POINTS];
    double insertion[FV_EXPLAIN_METHODS + 1][FV_EXPLAIN_POINTS];
    double deletion_area[FV_EXPLAIN_METHODS + 1], insertion_area[FV_EXPLAIN_METHODS + 1];
} fv_explain_set;

typedef struct fv_explainer fv_explainer;

/* Opens a classifier or a causal language model, with its tokenizer or processor. */
FV_API fv_status fv_explainer_open(fv_explainer **out, fv_device *d, const char *dir,
                                   fv_explain_opt opt, fv_err *e);
FV_API void fv_explainer_close(fv_explainer *x); /* NULL is allowed */

/* Explains one text, or two that are read together (pair may be NULL); *out until the next call.
 * A text that is longer than the model reads is refused.  To a classifier of images or sounds
 * `text` is the path of one. */
FV_API fv_status fv_explain(fv_explainer *x, const char *text, const char *pair,
                            const fv_explained **out, fv_err *e);
/* All texts so far. */
FV_API const fv_explain_set *fv_explain_set_of(const fv_explainer *x);

/* The last prediction and the set as "text", "json" or "html", until the next call; a page needs no
 * other file. */
FV_API fv_status fv_explain_report(fv_explainer *x, const char *format, const char **out, size_t *n,
                                   fv_err *e);
/* The same as a file, .html or .json by its ending: there whole or not at all. */
FV_API fv_status fv_explain_save(fv_explainer *x, const char *path, fv_err *e);

#endif
