/* use_lite.c - the Universal Sentence Encoder Lite: two layers of a Transformer encoder, whose mean
 * over the tokens is the sentence.
 *
 *     x = 2 words + [sin, cos](position);   x = wide(x) + attn(norm x);   x += mlp(norm x)
 *     pooled = tanh(pool(mean of x over the tokens))
 *
 * The first layer widens: its attention works at the width of the embeddings, its last product and
 * residual_proj (`wide` above) give hidden_size, and the layers behind it stay there.  There is no
 * norm behind the last one.  Positions are tensor2tensor's: sines, then cosines, of wave lengths
 * that grow from 2 pi to 10000 * 2 pi.
 *
 * Paper: Cer et al. 2018 (arXiv:1803.11175).  Published as TensorFlow graphs without names for
 * parameters; the names here are those of its conversion to safetensors (tools/convert/use_lite.py
 * makes a directory of it).  A classifier reads what the encoder was trained to give: `pooled`,
 * before it is scaled to length 1. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "model/bert.h"
#include "nn/part.h"

#define EMBEDDING_SCALE 2

static const fv_family_head heads[] = {
    {"UseLiteModel", .job = FV_HEAD_BASE},
    {"UseLiteForSequenceClassification", FV_HEAD_CLASSIFY, .base = "UseLiteModel"},
    {0},
};

typedef struct config {
    int vocab_size, embedding_size, hidden_size, num_hidden_layers, num_attention_heads,
        intermediate_size, max_position_embeddings;
    int pad_token_id, num_labels, problem_type;
    float hidden_dropout_prob, attention_probs_dropout_prob, initializer_range, layer_norm_eps;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 8002, 1 << 24, "tokens"),
    FV_INT(config, embedding_size, 2, 256, 1 << 16,
           "width of the embeddings and of the first attention"),
    FV_INT(config, hidden_size, 1, 512, 1 << 16, "width behind the first attention"),
    FV_INT(config, num_hidden_layers, 1, 2, 256, "layers"),
    FV_INT(config, num_attention_heads, 1, 4, 1024, "attention heads"),
    FV_INT(config, intermediate_size, 1, 1536, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 128, 1 << 20, "longest sequence"),
    FV_FLOAT(config, hidden_dropout_prob, 0, 0.1, 0.99,
             "on the embeddings, on what each part of a layer adds, before the classifier"),
    FV_FLOAT(config, attention_probs_dropout_prob, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV_FLOAT(config, layer_norm_eps, 1e-20, 1e-6, 1, "under the square root of each norm"),
    FV_INT(config, pad_token_id, 0, 1, 1 << 24, "padding"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels of a text are; not given: as they look"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    {0},
};

static const fv_key_rule rules[] = {{NULL, NULL}};

static const fv_input inputs[] = {FV__TEXT_INPUTS, {0}};

typedef struct block {
    fv_norm attn_norm, mlp_norm;
    fv_mha attn;
    fv_lin wide; /* residual_proj, of the first layer alone */
    fv_mlp mlp;
    float dropout;
} block;

typedef struct use_lite {
    config cfg;
    fv_head_job job;
    fv_emb words;
    block *blocks;
    fv_lin pool, classifier;
} use_lite;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->embedding_size % 2)
        return fv_fail(e, FV_EFORMAT, "embedding_size %d is odd: half are sines, half cosines",
                       k->embedding_size);
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    fv_status st = fv__heads_check(k->embedding_size, k->num_attention_heads, e);
    return st ? st : fv__heads_check(k->hidden_size, k->num_attention_heads, e);
}

/* ---- parameters ---- */

/* Below `at`, "layers.0".  q, k and v are one weight of the width that comes in; the last product
 * gives the width that goes out. */
static void block_init(fv_params *p, block *b, const config *k, int64_t in, const char *at)
{
    int64_t out = k->hidden_size, n_head = k->num_attention_heads;
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    b->dropout = k->hidden_dropout_prob;
    fv_norm_init(p, &b->attn_norm, in, norm, "%s.ln1", at);
    fv_mha_bare(p, &b->attn, n_head, in / n_head, "%s.attn", at);
    b->attn.dropout = k->attention_probs_dropout_prob;
    fv_lin_init(p, &b->attn.qkv, in, 3 * in, lin, "%s.attn.qkv", at);
    fv_lin_init(p, &b->attn.out, in, out, lin, "%s.attn.out", at);
    fv_param_mark_end(b->attn.out.w, FV_ENDS_ATTENTION);
    if (in != out) fv_lin_init(p, &b->wide, in, out, lin, "%s.residual_proj", at);
    fv_norm_init(p, &b->mlp_norm, out, norm, "%s.ln2", at);
    fv_mlp_init(p, &b->mlp, out, k->intermediate_size, (fv_mlp_opt){.act = FV_RELU, .lin = lin},
                "%s.ffn", at);
}

/* An fv_layer_fn: x = wide(x) + attn(norm x);  x += mlp(norm x) */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    fv_tensor *h = fv_norm_fwd(c, &b->attn_norm, x);
    if (b->wide.w) x = fv_lin_fwd(c, &b->wide, x);
    h = fv_mha_add_norm(c, &b->attn, &x, h, arg, b->dropout, &b->mlp_norm);
    return fv_mlp_add(c, &b->mlp, x, h, b->dropout);
}

static void declare(void *self, const fv_setup *s)
{
    use_lite *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_emb_init(p, &m->words, k->vocab_size, k->embedding_size, k->initializer_range, "embed");
    m->words.scale = EMBEDDING_SCALE;
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) {
        char at[32];
        snprintf(at, sizeof at, "layers.%d", i);
        block_init(p, &m->blocks[i], k, i ? k->hidden_size : k->embedding_size, at);
    }
    fv_lin_init(p, &m->pool, k->hidden_size, k->hidden_size, lin, "pool");
    if (m->job == FV_HEAD_CLASSIFY)
        fv_lin_init(p, &m->classifier, k->hidden_size, k->num_labels, lin, "classifier");
}

/* The published file has the frequencies of the positions too, which are computed here. */
static fv_load_opt load(const void *self)
{
    static const char *const own[] = {"inv_timescales", NULL}, *const others[] = {"inv_timescales",
                                                                                  "classifier.*",
                                                                                  NULL};
    const use_lite *m = self;
    return (fv_load_opt){.ignore = m->job == FV_HEAD_BASE ? others : own};
}

/* What reads one row of a text, the pooler and the classifier, stays as it is. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    use_lite *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        block *b = &m->blocks[i];
        fv_mha_pack(p, &b->attn, dtype, true);
        fv_mlp_pack(p, &b->mlp, dtype);
        if (b->wide.w) fv_lin_pack(p, &b->wide, dtype);
    }
}

static int64_t longest(const void *self)
{
    return ((const use_lite *)self)->cfg.max_position_embeddings;
}

/* ---- forward ---- */

/* P[t] = sin(t w_i), then cos(t w_i), w_i = 10000^(-i / (E/2 - 1)), i = 0 .. E/2 - 1 */
static void fill_positions(void *out, const void *user, int64_t from, int64_t n)
{
    int64_t width = *(const int64_t *)user, half = width / 2;
    float *y = out;
    for (int64_t i = from; i < from + n; i++) {
        double octave = (double)(i % half) / (double)(half > 1 ? half - 1 : 1);
        double angle = (double)(i / width) * exp(-log(10000) * octave);
        *y++ = (float)(i % width < half ? sin(angle) : cos(angle));
    }
}

/* (B,T) ids -> (B,T,embedding_size) */
static fv_tensor *embed(fv_ctx *c, const use_lite *m, const fv_items *in)
{
    const config *k = &m->cfg;
    int64_t width = k->embedding_size, most = k->max_position_embeddings;
    fv_tensor *at = fv_items_get(in, "position_ids");
    fv_tensor *x = fv_emb_fwd(c, &m->words, fv_items_get(in, "input_ids"));
    if (!x) return NULL;
    if (fv_dim(x, 1) > most)
        return fv_raise(c, FV_ESHAPE, "use_lite: %lld tokens, but max_position_embeddings is %d",
                        (long long)fv_dim(x, 1), k->max_position_embeddings);
    fv_tensor *table = fv__table(c, FV_F32, FV_SHAPE(most, width), fill_positions, &width,
                                 sizeof width);
    fv_tensor *rows = at ? fv_gather(c, table, at, -1) : fv_head(c, table, fv_dim(x, 1));
    return fv_dropout(c, fv_add(c, x, fv_cast(c, rows, x->dtype)), k->hidden_dropout_prob);
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const use_lite *m = self;
    const config *k = &m->cfg;
    fv_tensor *mask = fv_items_get(in, "attention_mask");
    fv__layers_arg arg = {.self = {.key_mask = mask}};
    fv_tensor *x = fv__layers_run(c, block_fwd, m->blocks, sizeof *m->blocks, k->num_hidden_layers,
                                  embed(c, m, in), arg, "hidden_states");
    fv_tap(c, "hidden", "hidden_states", x);
    fv_tensor *pooled = fv_lin_act(c, &m->pool, fv__mean_tokens(c, x, mask), FV_TANH);
    fv__put_encoded(c, in, out,
                    (fv__encoder_head){m->job, &m->classifier, NULL, k->hidden_dropout_prob,
                                       k->problem_type},
                    x, pooled);
}

const fv_family fv__family_use_lite = {
    FV__FAMILY_PARTS(use_lite),
    .type = "use_lite",
    .longest = longest,
};
