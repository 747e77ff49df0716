/* see.h - seeing what attends to what: the weights of a forward pass, combined, written down and
 * drawn.
 *
 *     fv_see *s;
 *     fv_see_run(&s, device, model, input, &err);                              one forward pass
 *     fv_see_weights(s, (fv_see_pick){.kind = FV_SEE_CROSS, .layer = 1, .head = 2}, 0, rows, out,
 *                    &err);
 *     fv_see_save(s, NULL, "attention.html",
 *                 (fv_see_opt){.every_kind = true, .pick = {.layer = FV_SEE_ALL,
 *                                                           .head = FV_SEE_ALL}}, &err);
 *
 * The pass runs the tiled operator, which stores no weights.  What is kept of it are queries, keys
 * and one log-sum-exp a row; exact weights are recomputed from these when somebody asks, only for
 * the layers, heads and rows asked for.  So memory is linear in the length of the text.  Layers and
 * heads count from 0, as in the names of parameters. */
#ifndef FOVEA_SEE_H
#define FOVEA_SEE_H

#include "fovea/model.h"
#include "fovea/ops.h"
#include "fovea/tok.h"

/* What attends to what.  A model of one text has one kind: decoder if it looks only back, else
 * encoder. */
typedef enum fv_see_kind {
    FV_SEE_ENCODER = 0, /* source to source */
    FV_SEE_DECODER,     /* target to target so far */
    FV_SEE_CROSS,       /* target to source */
    FV_SEE_KINDS
} fv_see_kind;

FV_API const char *fv_see_kind_name(fv_see_kind k); /* "encoder", "decoder", "cross" */

/* ---- looking ---- */

typedef struct fv_see fv_see;

typedef struct fv_see_in {
    const fv_tok *tok;     /* for the tokens' texts; NULL: they are shown as numbers */
    const int32_t *source; /* input_ids, special tokens included */
    int64_t n_source;
    /* token_type_ids of the source (0: sentence A, 1: sentence B), read where the model has them;
     * NULL: one sentence */
    const int32_t *types;
    /* what the decoder says, its end token included; for models that take a pair */
    const int32_t *target;
    int64_t n_target;
    int32_t start; /* what the decoder begins with */
    /* the file of an image, of a sound or of a time series, for models that take one: instead of a
     * source, or beside it where the model also reads texts.  It is fitted and normalised by the
     * processor in `dir`, the model's directory. */
    const char *image, *dir;
    int channel; /* of a series, counted from 1; 0: the last */
    /* names of items with blanks between, oldest first, for models of items, whose directory is
     * `dir`: instead of a source */
    const char *history;
    /* with an image and a text, of a model that says how well they agree (CLIP), opened not to
     * serve: weights over the image count as far as they bring it near the text */
    bool guided;
    /* of a GAN, whose directory is `dir`: the image that is drawn from this seed, its number (as
     * `fovea sample` counts) and its class; drawn false: none is */
    bool drawn;
    uint64_t seed, number;
    int32_t label;
    /* labels, layers and heads alone, for a page that asks for its maps (fv_see_opt.ask): a pass
     * over the first two tokens, whatever the text's length.  Weights cannot be asked for.  For
     * models of one text, else FV_EMISSING. */
    bool outline;
} fv_see_in;

/* One forward pass of m.  The model must outlive the fv_see. */
FV_API fv_status fv_see_run(fv_see **out, fv_device *d, const fv_model *m, fv_see_in in, fv_err *e);

FV_API void fv_see_free(fv_see *s); /* NULL is allowed */

/* ---- what was seen ---- */

/* How much there is of a kind; no layers: the model has none of it. */
typedef struct fv_see_shape {
    int64_t layers, heads;
    int64_t rows; /* those that look */
    int64_t cols; /* those that are looked at */
    size_t bytes; /* of memory that the capture holds, of all kinds together */
} fv_see_shape;
FV_API fv_see_shape fv_see_shape_of(const fv_see *s, fv_see_kind k);
/* Row i of a cross-attention is the token that this position says; of the decoder's own, the one it
 * reads. */
FV_API const char *fv_see_row(const fv_see *s, fv_see_kind k, int64_t i);
FV_API const char *fv_see_col(const fv_see *s, fv_see_kind k, int64_t i);

/* ---- weights ---- */

#define FV_SEE_ALL (-1)

typedef struct fv_see_pick {
    fv_see_kind kind;
    int64_t layer; /* FV_SEE_ALL: the mean of all; of a rollout, up to which */
    int64_t head;  /* FV_SEE_ALL: the mean of all */
    /* Attention rollout (Abnar and Zuidema 2020): through each layer half of a token stays and half
     * is mixed by the mean of the heads; the layers are multiplied.  For a cross-attention the
     * paths go through decoder, cross-attention and encoder, and rows add up to what came from the
     * source. */
    bool rollout;
    /* Attention flow (the same paper): the greatest flow from a row above the layers down to each
     * token of the text, where half of a token's capacity is its own and half the mean of its
     * heads'.  For self-attention of at most FV_SEE_FLOW tokens; from layer 0 up to `layer`. */
    bool flow;
} fv_see_pick;
#define FV_SEE_FLOW 128

/* Rows [from,to) into out, (to-from, cols) of them. */
FV_API fv_status fv_see_weights(fv_see *s, fv_see_pick p, int64_t from, int64_t to, float *out,
                                fv_err *e);

/* The cross-attention head that reads most like an alignment: of all heads, the one whose rows are
 * surest and whose rows together look at all of the source.  *score in [0,1] is the geometric mean
 * of the two; NULL is allowed. */
FV_API fv_status fv_see_alignment(fv_see *s, fv_see_pick *best, double *score, fv_err *e);

/* What a head is worth: the mean loss of a token, in nats, when that head (kind, layer, head) adds
 * nothing; with layer FV_SEE_ALL of the model as it is.  Predicted are the target or, in a model of
 * one text that looks back, each next token; other models predict nothing (FV_EMISSING). */
FV_API fv_status fv_see_ablate(fv_device *d, const fv_model *m, fv_see_in in, fv_see_pick head,
                               double *loss, fv_err *e);

/* ---- writing ---- */

typedef enum fv_see_view {
    FV_VIEW_AUTO =
        0,         /* an image where one is looked at; heat for one head or a rollout, else grid */
    FV_VIEW_HEAT,  /* one map, with its tokens */
    FV_VIEW_GRID,  /* all layers and heads, small */
    FV_VIEW_LINES, /* lines between two columns of tokens; all heads of a layer in colours */
    FV_VIEW_ALIGNMENT, /* the source above, the target below, joined; for cross-attention */
    /* an image, veiled where nobody looks: one for each row, or for each layer and head of one row.
     * Without rows: what was written, or the boxes that were found, or the class token. */
    FV_VIEW_IMAGE,
    FV_VIEWS
} fv_see_view;

typedef struct fv_see_opt {
    fv_see_pick pick;
    fv_see_view view;
    bool every_kind;      /* pages, json and csv: all kinds, whatever pick.kind is */
    int64_t from, to;     /* rows; both 0: all */
    const int64_t *patch; /* instead of rows: row and column of a patch of the image; NULL: rows */
    bool words;           /* pictures: tokens of a word merged, as fv_see_save describes */
    /* pages: what is shown first; NULL: pick, or the last layer where pick names none */
    const fv_see_pick *start;
    /* pages: without maps, which the page asks /v1/attention of the server it came from for, as far
     * as they are shown, with the fields of this JSON object ("input", ..); NULL: with all */
    const char *ask;
    const char *format; /* "svg", "png", ..., whatever the path ends in; NULL: by its ending */
    const char *text;   /* what the model read and wrote, for the heading; NULL: nothing */
    const char *title;  /* NULL: what is seen, in words; of an alignment and a page, the text */
    const char *note;   /* a line under it; NULL: how to read the picture */
} fv_see_opt;

/* Writes path, by its ending: .svg, .png, .pdf a picture; .html a page to explore; .json and .csv
 * numbers.  A page, as json and csv, holds the layer, head and rows that opt names, and all of what
 * it does not name; a page of more than 256 MB is refused (FV_EARG) with the size it would have.
 * Merged words add up the weights of their columns and take the mean of their rows (Clark et al.
 * 2019), so rows still add up to 1.  The file is there whole or not at all.  Pictures need a build
 * with cairo (else FV_EMISSING). */
FV_API fv_status fv_see_save(fv_see *s, const fv_env *env, const char *path, fv_see_opt opt,
                             fv_err *e);

/* ---- heads ---- */

/* What a head does, as the mean over its rows. */
typedef struct fv_see_head {
    double entropy;  /* of a row's weights, in nats: 0 looks at one token, ln(cols) at all alike */
    double first;    /* weight of the first token, of rows behind it */
    double previous; /* of the token before, likewise */
    double self;     /* of the token itself */
    /* Of tokens that stood behind an earlier occurrence of the row's own (Olsson et al. 2022), over
     * rows whose token has one; 0: no token comes twice */
    double induction;
} fv_see_head;
/* p names one head.  ids: the tokens of the rows, for induction; NULL: there is none.  A
 * cross-attention has entropy and first alone, the others are 0. */
FV_API fv_status fv_see_head_type(fv_see *s, fv_see_pick p, const int32_t *ids, fv_see_head *out,
                                  fv_err *e);

/* Queries (rows,width) and keys (cols,width) of one head as the operator multiplies them: rotated,
 * where the model rotates.  A score is their product times *scale, with masks and biases on top.
 * q or k NULL: not wanted; both NULL: *width alone. */
FV_API fv_status fv_see_vectors(fv_see *s, fv_see_pick p, float *q, float *k, int64_t *width,
                                float *scale, fv_err *e);

#define FV_SEE_NEXT 32

/* What a model that looks back expects after a text. */
typedef struct fv_see_next {
    double loss; /* as fv_see_ablate; NaN where one token has nothing to predict */
    int n;       /* likeliest next tokens, best first: as many as were asked for */
    int32_t token[FV_SEE_NEXT];
    float score[FV_SEE_NEXT]; /* log-probabilities */
} fv_see_next;
/* The same when all of these heads add nothing; top: likeliest tokens wanted, at most 32.  For
 * models of one text that look back, else FV_EMISSING. */
FV_API fv_status fv_see_without(fv_device *d, const fv_model *m, fv_see_in in,
                                const fv_see_pick *heads, int n, int top, fv_see_next *out,
                                fv_err *e);

/* ---- one attention, step by step ---- */

/* The caller owns all arrays.  H heads of width Wk (queries, keys) and Wv (values). */
typedef struct fv_see_steps {
    int64_t Tq, Tk, H, Wk, Wv;
    float scale; /* 1 / sqrt(Wk), which is what the operator takes */
    bool causal;
    bool masked, biased;    /* whether mask is read; whether bias is added, too */
    const float *q, *k, *v; /* (Tq,H*Wk), (Tk,H*Wk), (Tk,H*Wv) */
    /* (H,Tq,Tk): 1 where a key takes part; in the end causality included, whether read or not */
    uint8_t *mask;
    float *bias;    /* (H,Tq,Tk): added to the scores; zeros where it is not read */
    float *scores;  /* (H,Tq,Tk): q.k */
    float *scaled;  /* (H,Tq,Tk): scale * q.k + bias, of which the softmax is taken */
    float *weights; /* (H,Tq,Tk) */
    float *output;  /* (Tq,H*Wv) */
} fv_see_steps;
/* Fills scores, scaled, weights and output, by the operator that models run. */
FV_API fv_status fv_see_attention(fv_device *d, fv_see_steps *a, fv_err *e);

#endif
