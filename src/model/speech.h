/* speech.h - the parts of families that speak, and their losses: spectrograms, the end of a clip,
 * guided attention. */
#ifndef FV_MODEL_SPEECH_H
#define FV_MODEL_SPEECH_H

#include "model/part.h"

/* Rules for the keys of SpecAugment, which is the objective's here: they change nothing. */
#define FV__SPEC_AUGMENT_RULES                                                                     \
    {"apply_spec_augment", NULL}, {"mask_time_prob", NULL}, {"mask_time_length", NULL},            \
        {"mask_time_min_masks", NULL}, {"mask_feature_prob", NULL}, {"mask_feature_length", NULL}, \
    {                                                                                              \
        "mask_feature_min_masks", NULL                                                             \
    }

/* ---- parts ---- */

#define FV__MOST_NETS 16 /* layers of a prenet or postnet */

/* x (B,T,D) + alpha P[0 .. T-1], or P[at], at I32 (B,T): sin and cos side by side, times a scalar
 * that is learned.  More than `most` positions are an error that calls them `what`. */
fv_tensor *fv__scaled_positions(fv_ctx *c, fv_tensor *x, fv_tensor *alpha, int64_t most,
                                fv_tensor *at, const char *what);
/* q (B,T,H*W), table (2 most,W) -> (B,H,T,T): q_i . table[i - j] / sqrt(W), to be added to scores;
 * distances from `most` on count as one. */
fv_tensor *fv__distance_scores(fv_ctx *c, fv_tensor *q, fv_tensor *table, int64_t n_head);

/* Dense layers under a mask, then positions and who speaks: path.layers.N, .final_layer,
 * .encode_positions.alpha, .speaker_embeds_layer. */
typedef struct fv__prenet {
    fv_lin nets[FV__MOST_NETS], out, speaker;
    fv_tensor *alpha; /* a scalar: how much positions count */
    int layers;
    int64_t most;                      /* positions */
    float dropout, positional_dropout; /* of units, always; behind positions, in training */
} fv__prenet;
void fv__prenet_init(fv_params *p, fv__prenet *l, int64_t mel, int64_t units, int64_t width,
                     int64_t speaker, int layers, float std, const char *path);
/* x (B,T,mel) -> (B,T,width).  mask (layers,T,units), of 0 and 1 / (1 - p), the same for all rows;
 * NULL: drawn in training, else nothing is dropped.  speaker (B,dim) or NULL; at I32 (B,T): where
 * the frames stand, NULL: from 0 on. */
fv_tensor *fv__prenet_fwd(fv_ctx *c, const fv__prenet *l, fv_tensor *x, fv_tensor *mask,
                          fv_tensor *speaker, fv_tensor *at);

/* Convolutions over frames with batch norms, tanh behind all but the last: path.layers.N.conv and
 * .batch_norm. */
typedef struct fv__postnet {
    fv_conv convs[FV__MOST_NETS];
    fv_bn norms[FV__MOST_NETS];
    int layers;
    float dropout;
} fv__postnet;
void fv__postnet_init(fv_params *p, fv__postnet *l, int64_t mel, int64_t units, int layers,
                      int kernel, const char *path);
/* x (B,frames,mel) + convolutions(x) */
fv_tensor *fv__postnet_fwd(fv_ctx *c, const fv__postnet *l, fv_tensor *x);

/* ---- losses ---- */

/* labels (B,frames,mel): 1 where there is a number, 0 where -100 stands for none.  Logarithms of
 * magnitudes are never below -98. */
fv_tensor *fv__speech_known(fv_ctx *c, fv_tensor *labels);

/* Guided attention: cross-attention costs where it is far from the diagonal.  heads, sigma, mask
 * (of the text) and step (frames of a decoder's step) are given; open fills in the rest. */
typedef struct fv__guide {
    int heads; /* the first so many of each layer; negative: as Python counts, from the end */
    float sigma;
    fv_tensor *mask;
    int64_t step;
    fv_tensor *far;   /* (B,1,Tq,Tk): 1 - exp(-distance^2 / 2 sigma^2); 0 where one side ends */
    fv_tensor *cells; /* a scalar: pairs that exist */
    fv_tensor *sum;   /* over layers and heads so far */
    int64_t maps;     /* layers times heads so far */
} fv__guide;

/* T: tokens of the text. */
void fv__guide_open(fv_ctx *c, fv__guide *g, fv_tensor *labels, int64_t T);
/* q (B,Tq,H*W) and k (B,Tk,H*W) of a cross-attention of n_head heads. */
void fv__guide_add(fv_ctx *c, fv__guide *g, fv_tensor *q, fv_tensor *k, int64_t n_head);

/* What a decoder gives: spectrograms (B,frames,mel) and logits of the end (B,frames). */
typedef struct fv__speech_out {
    fv_tensor *before, *after, *stop;
} fv__speech_out;

/* For the labels of `in`: the means of |after - labels| and |before - labels|, of the cross-entropy
 * of the end, and `weight` times that of the guided maps (guide NULL: none).  As a part of a batch
 * it counts by its share of the numbers. */
fv_tensor *fv__speech_loss(fv_ctx *c, const fv_items *in, const fv__speech_out *y,
                           const fv__guide *guide, float weight);

#endif
