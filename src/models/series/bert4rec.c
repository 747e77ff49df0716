/* bert4rec.c - BERT4Rec: hidden items of a history, from the items on both sides (Sun et al. 2019).
 *
 *     x = norm(items[ids] + positions);   layers, each norm(x + attn(x)) and norm(x + mlp(x))
 *     score of item j at position t:  norm(gelu(W x_t)) . items[j] + bias_j
 *
 * Items are numbered from 0, and their names stand in config.json (id2label); id num_labels is the
 * mask.  What a user turns to next is what is hidden behind its history.  Rows are filled up at
 * their end, with attention_mask 0 there.  Positions are counted from the first item that is read,
 * as in sasrec.c; the published code counts from the end of a padded row, which is the same for
 * full rows.
 *
 * labels (B,T), -100 where nothing is hidden, give the cross-entropy over all items; with
 * last_positions (B), flat indices b*T + t, labels (B) and scores (B,V) are of these alone.
 * Names are our own: there is no published directory of this model. */
#include <stddef.h>

#include "model/item_config.h"
#include "model/series.h"
#include "nn/part.h"

static const fv_family_head heads[] = {
    {"Bert4RecModel", .job = FV_HEAD_NEXT_ITEM},
    {0},
};

typedef fv__item_config config;

static const fv_field fields[] = {FV__ITEM_FIELDS(256, 0, 2, 0.1, 1e-12), {0}};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"labels", FV_I32, false},
    {"last_positions", FV_I32, false},
    {0},
};

typedef struct bert4rec {
    config cfg;
    fv_emb items;
    fv_tensor *out; /* (V+1,D): the same table, laid out for products where the model serves */
    fv_tensor *positions, *bias;
    fv_norm norm, head_norm;
    fv_lin dense;
    fv__item_layer *layers;
} bert4rec;

/* ---- parameters ---- */

/* One item more than there are: the mask.  The table scores items, behind a dense layer and a
 * norm. */
static void declare(void *self, const fv_setup *s)
{
    bert4rec *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    fv_emb_init(p, &m->items, k->num_labels + 1, k->hidden_size, k->initializer_range,
                "item_embeddings");
    m->out = m->items.table;
    m->positions = fv_param(p, fv__weight(k->initializer_range),
                            FV_SHAPE(k->max_position_embeddings, k->hidden_size),
                            "position_embeddings.weight");
    fv_norm_init(p, &m->norm, k->hidden_size, norm, "embedding_norm");
    m->layers = fv__item_layers(p, k);
    fv_lin_init(p, &m->dense, k->hidden_size, k->hidden_size,
                (fv_lin_opt){.std = k->initializer_range}, "head.dense");
    fv_norm_init(p, &m->head_norm, k->hidden_size, norm, "head.norm");
    m->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(k->num_labels), "head.bias");
}

static int64_t longest(const void *self)
{
    return ((const bert4rec *)self)->cfg.max_position_embeddings;
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    bert4rec *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->layers[i].attn, dtype, true);
        fv_mlp_pack(p, &m->layers[i].mlp, dtype);
    }
    fv_lin_pack(p, &m->dense, dtype);
    m->out = fv__packed(p, m->out, dtype);
}

/* ---- forward ---- */

/* (B,T) -> (B,T,D) */
static fv_tensor *encode(fv_ctx *c, const bert4rec *m, fv_tensor *ids, fv_tensor *mask)
{
    const config *k = &m->cfg;
    int64_t T = fv_dim(ids, 1);
    if (ids && (ids->shape.n != 2 || T > k->max_position_embeddings))
        return fv_raise(c, FV_ESHAPE, "bert4rec: input_ids %s, expected (B,T) with T at most %d",
                        fv_desc(ids).s, k->max_position_embeddings);
    fv_tensor *x = fv_norm_add(c, &m->norm, NULL, fv_emb_fwd(c, &m->items, ids),
                               fv_expand(c, fv_head(c, m->positions, T),
                                         FV_SHAPE(fv_dim(ids, 0), T, k->hidden_size)));
    x = fv_dropout(c, x, k->hidden_dropout_prob);
    fv__layers_arg how = {.self = {.key_mask = mask}};
    x = fv__layers_run(c, fv__item_layer_fwd, m->layers, sizeof *m->layers, k->num_hidden_layers, x,
                       how, "hidden_states");
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

/* Scores are of items alone, not of the mask, whose row is the last of the table. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const bert4rec *m = self;
    const config *k = &m->cfg;
    fv_tensor *last = fv_items_get(in, "last_positions"), *labels = fv_items_get(in, "labels");
    fv_tensor *x = encode(c, m, fv_items_get(in, "input_ids"), fv_items_get(in, "attention_mask"));
    if (!x) return;
    if (last) x = fv_gather(c, fv_reshape(c, x, FV_SHAPE(-1, k->hidden_size)), last, -1);
    x = fv_norm_fwd(c, &m->head_norm, fv_lin_act(c, &m->dense, x, fv_act_of(k->hidden_act)));
    fv_tensor *scores = fv_linear(c, x, m->out, NULL, FV_ACT_NONE);
    scores = fv_add(c, fv_slice(c, scores, -1, 0, k->num_labels), m->bias);
    fv__put_tokens(c, in, out, scores, labels);
}

const fv_family fv__family_bert4rec = {
    .type = "bert4rec",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(bert4rec),
    .check = fv__item_config_check,
    .declare = declare,
    .longest = longest,
    .pack = pack,
    .forward = forward,
};
