/* explain.h - what the files of an explanation share.
 *
 *     explain.c         opening, tokens, one text from end to end
 *     explain_score.c   passes of the model: blanks, gradients, attention, heads
 *     explain_image.c   an image or a sound instead of a text, patches or frames for tokens
 *     flow.c            greatest flows, which fv_see_weights has too (see.h)
 *     explain_set.c     rank correlation, deletion and insertion
 *     explain_write.c   text, JSON and the page */
#ifndef FV_SEE_EXPLAIN_H
#define FV_SEE_EXPLAIN_H

#include "base/base.h"
#include "fovea/author/config.h"
#include "fovea/author/explain.h"
#include "see/see.h"

enum { FV__FLOW_LONGEST = 128, FV__EXPLAIN_ROWS = 32 };

struct fv_explainer {
    fv_env env;
    fv_device *dev;
    fv_dir *dir;
    fv_model *model;
    fv_tok *tok;
    fv_encoding *enc;
    fv_ctx *ctx;
    fv_explain_opt opt;
    int32_t blank;
    bool next_token; /* a language model is asked, not a classifier */
    bool apart;      /* labels do not exclude each other: sigmoid */
    bool sees;       /* a classifier of images or sounds: texts are paths */
    char name[160];  /* of what is explained */
    char text[512];  /* the beginning of what was read, or the path of an image */
    /* ---- of the text at hand ---- */
    int32_t *ids, *types;
    int64_t label;
    fv_see_image *image; /* NULL: it is a text */
    fv_see_kind kind;    /* of its attention */
    fv_see_axis axis;
    double *top; /* (n): share of each token in what the prediction reads above the last layer */
    void *memory;
    size_t bytes;
    float *head;
    size_t head_bytes;
    fv_explained now;
    fv_explain_set set;
    fv_buf out;
};

/* ---- explain_score.c ---- */

/* Log-probabilities of the label for rows texts (rows,n) like the one at hand.  label < 0: the
 * first row's likeliest, which x->label gets. */
fv_status fv__explain_log_p(fv_explainer *x, const int32_t *ids, int64_t rows, double *out,
                            fv_err *e);
/* Fills scores of one method or several, and x->top. */
fv_status fv__explain_gradients(fv_explainer *x, float *gradient, float *integrated, fv_err *e);
fv_status fv__explain_occlusion(fv_explainer *x, float *out, fv_err *e);
/* flow: NULL where it is not wanted. */
fv_status fv__explain_attention(fv_explainer *x, float *raw, float *rollout, float *flow,
                                fv_err *e);
fv_status fv__explain_heads(fv_explainer *x, float *out, fv_err *e);

/* ---- explain_image.c ---- */

/* What the pass reads that attention is captured from. */
fv_see_in fv__explain_seen(const fv_explainer *x);
/* Opens the image as the one at hand; *n: tokens, whose names x->axis gets. */
fv_status fv__explain_open_image(fv_explainer *x, const char *path, int64_t *n, fv_err *e);
/* Fills x->ids and special, (n) each. */
void fv__explain_image_tokens(fv_explainer *x, uint8_t *special);
/* Puts what the model reads for ids (rows,n), of which blanked ones are x->blank. */
void fv__explain_put_input(fv_explainer *x, const int32_t *ids, int64_t rows, fv_items *in);
/* For the page: the image, once, and then its patches in the colours of a method. */
void fv__explain_put_image(const fv_explainer *x, fv_buf *b);
void fv__explain_put_patches(const fv_explainer *x, fv_buf *b, const float *score, double most);

/* ---- explain_set.c ---- */

/* Spearman's rank correlation of |a| and |b| where skip is 0; equal values share their mean rank.
 * NaN where fewer than two are left or one side has a single value.  order: 2 n numbers. */
double fv__explain_rank(const float *a, const float *b, const uint8_t *skip, int64_t n,
                        double *order);
/* Adds the text at hand to x->set, with curves where they are asked for. */
fv_status fv__explain_add(fv_explainer *x, fv_err *e);

#endif
