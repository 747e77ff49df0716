/* bst.c - the behaviour sequence transformer: will this user take this candidate? (Chen et al.
 * 2019, arXiv:1905.06874)
 *
 *     x = items[candidate, newest, .., oldest] + positions;   layers, each as BERT's
 *     z = head([x of all positions, one vector for each feature]);   P(taken) = sigmoid(z)
 *
 * The candidate stands first and the history behind it, newest item first, so that a position says
 * how long ago something was: the paper takes the difference of times, of which the order is what
 * all data have.  Rows have max_position_embeddings items; those that are not there are masked out
 * of attention and are 0 where the head reads all positions.  A row of the table more than there
 * are items stands for those that are not known.
 *
 * Features (of the user, the candidate, the moment) are categories: features (B,F) has numbers
 * below feature_buckets, which share one table.
 *
 * labels (B), 1 or 0, give the loss, the binary cross-entropy.  Parameters have names of our own:
 * there is no published checkpoint format for this model. */
#include <stddef.h>

#include "model/item_config.h"
#include "model/series.h"
#include "nn/part.h"

#define LEAKY_RELU 15 /* in fv_act_words: the paper's */

typedef struct config {
    fv__item_config items; /* first: its fields count from the beginning */
    int num_features, feature_buckets, feature_size;
    fv_int_list head_sizes;
} config;

static const fv_family_head heads[] = {
    {"BstModel", .job = FV_HEAD_REGRESS},
    {0},
};

static const fv_field fields[] = {
    FV__ITEM_FIELDS(256, LEAKY_RELU, 2, 0.2, 1e-5),
    FV_INT(config, num_features, 0, 0, 256, "features of a candidate beside its history"),
    FV_INT(config, feature_buckets, 1, 1024, 1 << 24, "categories that all features share"),
    FV_INT(config, feature_size, 1, 8, 1 << 12, "width of a feature's vector"),
    FV_INTS(config, head_sizes, 1, "256 128", 1 << 16, "hidden layers of the head"),
    {0}};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"features", FV_I32, false},
    {"labels", FV_F32, false},
    {0},
};

typedef struct bst {
    config cfg;
    fv_emb items, features;
    fv_tensor *positions;
    fv__item_layer *layers;
    fv_lin head[FV_MAX_LIST + 1];
} bst;

/* ---- parameters ---- */

static void declare(void *self, const fv_setup *s)
{
    bst *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    const fv__item_config *i = &k->items;
    int64_t D = i->hidden_size, T = i->max_position_embeddings;
    fv_emb_init(p, &m->items, i->num_labels + 1, D, i->initializer_range, "item_embeddings");
    m->positions = fv_param(p, fv__weight(i->initializer_range), FV_SHAPE(T, D),
                            "position_embeddings.weight");
    if (k->num_features)
        fv_emb_init(p, &m->features, k->feature_buckets, k->feature_size, i->initializer_range,
                    "feature_embeddings");
    m->layers = fv__item_layers(p, i);
    int64_t in = T * D + k->num_features * k->feature_size;
    for (int n = 0; n <= k->head_sizes.n; n++) {
        int64_t to = n < k->head_sizes.n ? k->head_sizes.at[n] : 1;
        /* not the small deviation of embeddings: behind several layers no gradient would be left */
        fv_lin_init(p, &m->head[n], in, to, (fv_lin_opt){0}, "head.%d", n);
        in = to;
    }
}

static int64_t longest(const void *self)
{
    return ((const bst *)self)->cfg.items.max_position_embeddings;
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    bst *m = self;
    for (int i = 0; i < m->cfg.items.num_hidden_layers; i++) {
        fv_mha_pack(p, &m->layers[i].attn, dtype, true);
        fv_mlp_pack(p, &m->layers[i].mlp, dtype);
    }
    for (int n = 0; n <= m->cfg.head_sizes.n; n++) fv_lin_pack(p, &m->head[n], dtype);
}

/* ---- forward ---- */

/* (B,T) -> (B,T,D), 0 where nothing stands */
static fv_tensor *encode(fv_ctx *c, const bst *m, fv_tensor *ids, fv_tensor *mask)
{
    const fv__item_config *k = &m->cfg.items;
    fv_tensor *x = fv_add(c, fv_emb_fwd(c, &m->items, ids), m->positions);
    x = fv_dropout(c, x, k->hidden_dropout_prob);
    fv__layers_arg how = {.self = {.key_mask = mask}};
    x = fv__layers_run(c, fv__item_layer_fwd, m->layers, sizeof *m->layers, k->num_hidden_layers, x,
                       how, "hidden_states");
    fv_tap(c, "hidden", "hidden_states", x);
    if (!mask || !x) return x;
    fv_shape s = FV_SHAPE(fv_dim(ids, 0), fv_dim(ids, 1), 1);
    return fv_mul(c, x, fv_cast(c, fv__mask_floats(c, mask, s), x->dtype));
}

static bool inputs_ok(fv_ctx *c, const config *k, const fv_tensor *ids, const fv_tensor *features)
{
    int64_t T = k->items.max_position_embeddings, B = fv_dim(ids, 0);
    if (ids->shape.n != 2 || fv_dim(ids, 1) != T)
        fv_raise(c, FV_ESHAPE, "bst: input_ids %s, expected (B,%lld): a candidate and its history",
                 fv_desc(ids).s, (long long)T);
    else if (k->num_features &&
             (!features || !fv_shape_same(features->shape, FV_SHAPE(B, k->num_features))))
        fv_raise(c, FV_ESHAPE, "bst: features %s, expected (%lld,%d)", fv_desc(features).s,
                 (long long)B, k->num_features);
    else
        return true;
    return false;
}

/* (B): the logit of each candidate */
static fv_tensor *judge(fv_ctx *c, const bst *m, fv_tensor *x, fv_tensor *features)
{
    const config *k = &m->cfg;
    int64_t B = fv_dim(x, 0);
    x = fv_reshape(c, x, FV_SHAPE(B, fv_dim(x, 1) * fv_dim(x, 2)));
    if (k->num_features) {
        fv_tensor *f = fv_reshape(c, fv_emb_fwd(c, &m->features, features),
                                  FV_SHAPE(B, k->num_features * k->feature_size));
        x = fv_concat(c, (fv_tensor *[]){x, f}, 2, 1);
    }
    for (int n = 0; n < k->head_sizes.n; n++)
        x = fv_dropout(c, fv_lin_act(c, &m->head[n], x, FV_LEAKY_RELU),
                       k->items.hidden_dropout_prob);
    return fv_reshape(c, fv_lin_fwd(c, &m->head[k->head_sizes.n], x), FV_SHAPE(B));
}

/* loss = mean of softplus(z) - y z, which is -log P of what happened */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const bst *m = self;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *features = fv_items_get(in, "features"),
              *labels = fv_items_get(in, "labels");
    if (!ids || !inputs_ok(c, &m->cfg, ids, features)) return;
    fv_tensor *z = judge(c, m, encode(c, m, ids, fv_items_get(in, "attention_mask")), features);
    /* in f32 whatever the model is in: bf16 has not the digits of a log-loss */
    z = fv_cast(c, z, FV_F32);
    fv_items_put(out, "logits", z);
    if (!labels || !z) return;
    labels = fv_cast(c, labels, FV_F32);
    fv_tensor *loss = fv_sum_all(c, fv_sub(c, fv_softplus(c, z), fv_mul(c, labels, z)));
    if (in->n_labels > 0 || in->per_label)
        loss = fv__per_label(c, loss, in);
    else
        loss = fv_scale(c, loss, 1 / (float)fv_dim(ids, 0));
    fv_items_put(out, "loss", loss);
}

static fv_status check(const void *config_, fv_err *e)
{
    return fv__item_config_check(&((const config *)config_)->items, e);
}

const fv_family fv__family_bst = {
    .type = "bst",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(bst),
    .check = check,
    .declare = declare,
    .longest = longest,
    .pack = pack,
    .forward = forward,
};
