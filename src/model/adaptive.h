/* adaptive.h - adaptive embeddings and the adaptive softmax (Grave et al. 2017, Baevski and Auli
 * 2019), as Transformer-XL has them.
 *
 * Tokens are sorted by frequency and cut into clusters.  With div_val > 1 vectors of cluster i are
 * div_val^i times narrower, and projected to the model's width; with 1 all have one table.  The
 * first cluster is scored together with one entry for each of the others:
 *
 *     log p(w) = log p(cluster of w) + log p(w | cluster)
 *
 * All clusters are scored for every token: a captured step has fixed shapes, so the few tokens of a
 * rare cluster cannot be picked out.  The narrow clusters are cheap all the same. */
#ifndef FV_MODEL_ADAPTIVE_H
#define FV_MODEL_ADAPTIVE_H

#include "model/part.h"

#define FV__MAX_CLUSTERS (FV_MAX_LIST + 1)

typedef struct fv__adaptive_opt {
    int64_t vocab, width, d_embed; /* width: the model's; d_embed: of the first cluster's vectors */
    int div_val;
    fv_int_list cutoffs; /* where the second cluster begins, the third, ..; none: one cluster */
    bool tied;           /* tables are output weights too */
    bool share;          /* clusters but the first share projections between input and output */
    float std, proj_std; /* of first values */
} fv__adaptive_opt;

/* Tokens [from, to), and how they are looked up and scored. */
typedef struct fv__cluster {
    int64_t from, to;
    fv_tensor *table, *proj;              /* (tokens,d); (D,d) or NULL where no table has one */
    fv_tensor *out, *out_bias, *out_proj; /* (tokens,d), (tokens), (D,d) or NULL */
} fv__cluster;

typedef struct fv__adaptive {
    fv__adaptive_opt opt;
    int n, n_tables; /* clusters, and tables: as many, or one */
    fv__cluster at[FV__MAX_CLUSTERS];
    fv_tensor *weight, *bias; /* (n-1,d_embed), (n-1): scores of the clusters but the first */
    fv_tie *ties;             /* ending in {NULL,NULL}: names that a file may have too */
} fv__adaptive;

/* Whether cutoffs rise within the vocabulary, and the last cluster has a width. */
fv_status fv__adaptive_check(const fv__adaptive_opt *o, fv_err *e);
/* Declares below.word_emb.emb_layers.N.weight and below.word_emb.emb_projs.N, and with `scored`
 * what is needed for scores: crit.out_layers.N, crit.out_projs.N, crit.cluster_weight and
 * crit.cluster_bias.  below: "transformer." or "". */
void fv__adaptive_init(fv_params *p, fv__adaptive *a, fv__adaptive_opt opt, const char *below,
                       bool scored);
void fv__adaptive_pack(fv_params *p, fv__adaptive *a, fv_dtype dtype);
/* I32 (B,T) -> (B,T,D) */
fv_tensor *fv__adaptive_embed(fv_ctx *c, const fv__adaptive *a, fv_tensor *ids);
/* (..,D) -> (..,V): log-probabilities, or logits where there is one cluster. */
fv_tensor *fv__adaptive_scores(fv_ctx *c, const fv__adaptive *a, fv_tensor *x);

#endif
