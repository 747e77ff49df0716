/* sasrec.c - SASRec: the next item of a user from the items before it (Kang and McAuley 2018).
 *
 *     x = sqrt(D) items[ids] + positions;   layers, each x + attn(norm(x)) causal, x + mlp(norm(x))
 *     score of item j after position t:  norm(x_t) . items[j]
 *
 * Items are numbered from 0, and their names stand in config.json (id2label).  Rows of a batch are
 * filled up at their end: attention is causal, so what stands there changes nothing before it, and
 * no item is spent on padding.  Positions count from the first item that is read.
 *
 * Scores are for all items at every position ("logits" (B,T,V)); with last_positions (B), the flat
 * index b*T + t of one position of each row, for that one only ((B,V)); with candidates (B,T,K) for
 * those ((B,T,K)), which losses with sampled negatives are made of, T being 1 with last_positions.
 * labels, (B,T) or (B), give the full cross-entropy.
 *
 * The block is the pre-norm one of model/part.h. Parameters have names of our own: there is no
 * published checkpoint format for this model. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "model/item_config.h"
#include "model/series.h"
#include "nn/part.h"

static const fv_family_head heads[] = {
    {"SasRecModel", .job = FV_HEAD_NEXT_ITEM},
    {0},
};

typedef fv__item_config config;

static const fv_field fields[] = {FV__ITEM_FIELDS(64, 1, 1, 0.2, 1e-8), {0}};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"labels", FV_I32, false},
    {"last_positions", FV_I32, false},
    {"candidates", FV_I32, false},
    {0},
};

typedef fv__pre_norm block;

typedef struct sasrec {
    config cfg;
    fv_emb items;
    fv_tensor *out; /* (V,D): the same table, laid out for products where the model serves */
    fv_tensor *positions;
    block *blocks;
    fv_norm norm;
} sasrec;

/* ---- parameters ---- */

/* Names of our own: no checkpoint of this model is published. */
static void block_init(fv_params *p, block *b, const config *k, int i)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    float std = k->initializer_range;
    b->dropout = k->hidden_dropout_prob;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "layers.%d.attention_norm", i);
    fv_lin_opt proj = {.std = std};
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = proj, .out = proj}, "layers.%d.attention", i);
    b->attn.dropout = k->attention_probs_dropout_prob;
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "layers.%d.feed_forward_norm", i);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act), .lin = {.std = std}},
                "layers.%d.feed_forward", i);
}

/* The table of items is read both ways, and multiplied by sqrt(D) only on the way in. */
static void declare(void *self, const fv_setup *s)
{
    sasrec *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    fv_emb_init(p, &m->items, k->num_labels, k->hidden_size, k->initializer_range,
                "item_embeddings");
    m->items.scale = sqrtf((float)k->hidden_size);
    m->out = m->items.table;
    m->positions = fv_param(p, fv__weight(k->initializer_range),
                            FV_SHAPE(k->max_position_embeddings, k->hidden_size),
                            "position_embeddings.weight");
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) block_init(p, &m->blocks[i], k, i);
    fv_norm_init(p, &m->norm, k->hidden_size, (fv_norm_opt){.eps = k->layer_norm_eps}, "norm");
}

static int64_t longest(const void *self)
{
    return ((const sasrec *)self)->cfg.max_position_embeddings;
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    sasrec *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->blocks[i].attn, dtype, true);
        fv_mlp_pack(p, &m->blocks[i].mlp, dtype);
    }
    m->out = fv__packed(p, m->out, dtype);
}

/* ---- forward ---- */

/* (B,T) -> (B,T,D) */
static fv_tensor *encode(fv_ctx *c, const sasrec *m, fv_tensor *ids)
{
    const config *k = &m->cfg;
    int64_t T = fv_dim(ids, 1);
    if (ids && (ids->shape.n != 2 || T > k->max_position_embeddings))
        return fv_raise(c, FV_ESHAPE, "sasrec: input_ids %s, expected (B,T) with T at most %d",
                        fv_desc(ids).s, k->max_position_embeddings);
    fv_tensor *x = fv_add(c, fv_emb_fwd(c, &m->items, ids), fv_head(c, m->positions, T));
    x = fv_dropout(c, x, k->hidden_dropout_prob);
    fv__layers_arg how = {.self = {.causal = true}};
    x = fv__layers_run(c, fv__pre_norm_fwd, m->blocks, sizeof *m->blocks, k->num_hidden_layers, x,
                       how, "hidden_states");
    x = fv_norm_fwd(c, &m->norm, x);
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

/* x (B,T,D), candidates (B,T,K) -> (B,T,K) */
static fv_tensor *score(fv_ctx *c, const sasrec *m, fv_tensor *x, fv_tensor *candidates)
{
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1), D = fv_dim(x, 2), K = fv_dim(candidates, 2);
    fv_emb plain = {.table = m->items.table, .scale = 1, .skip = -1};
    fv_tensor *of = fv_reshape(c, fv_emb_fwd(c, &plain, candidates), FV_SHAPE(B * T, K, D));
    fv_tensor *y = fv_matmul(c, of, fv_reshape(c, x, FV_SHAPE(B * T, D, 1)), (fv_mm){0});
    return fv_reshape(c, y, FV_SHAPE(B, T, K));
}

/* One of three: scores of all items everywhere, at one position of each row, or of candidates
 * alone. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const sasrec *m = self;
    fv_tensor *last = fv_items_get(in, "last_positions"),
              *candidates = fv_items_get(in, "candidates");
    fv_tensor *x = encode(c, m, fv_items_get(in, "input_ids"));
    if (!x) return;
    if (last) x = fv_gather(c, fv_reshape(c, x, FV_SHAPE(-1, fv_dim(x, 2))), last, -1);
    if (candidates && last) x = fv_reshape(c, x, FV_SHAPE(fv_dim(x, 0), 1, fv_dim(x, 1)));
    if (candidates)
        fv_items_put(out, "logits", score(c, m, x, candidates));
    else
        fv__put_words(c, in, out, x, m->out, fv_items_get(in, "labels"));
}

const fv_family fv__family_sasrec = {
    .type = "sasrec",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(sasrec),
    .check = fv__item_config_check,
    .declare = declare,
    .longest = longest,
    .pack = pack,
    .forward = forward,
};
