/* transfo_xl.c - Transformer-XL: causal layers with relative positions, which attend to a memory of
 * the segments before.
 *
 *     x = E[ids] sqrt(D);   per layer, with m its memory and z = [m, x]:
 *     score_ij = ((q_i + u).k_j + (q_i + v).r_(i-j)) / sqrt(W),  q of x, k and v of z
 *     x = norm(x + attn);   x = norm(x + mlp(x));   m = the end of z, without gradient
 *
 * A memory is an input and an output of forward, "mems" (layers,B,M,D): whoever runs segments one
 * after the other hands on what came out, and decides by M how far back it reaches (config.json's
 * mem_len where a first segment is given none).  With a memory, attention_mask is (B,M+T): zeros
 * stand for memory that does not exist yet, so that all segments have one shape.  (Growing the
 * memory from nothing, as the paper's code does, gives the same numbers and a new shape each time.)
 * With use_cache a pass gives "mem_keys", "mem_values" (layers,B,M,H W) and "mem_positions"
 * (layers,M+T,H W) too; with these instead of mems the next one projects its own tokens alone.
 *
 * A session keeps keys and values instead, which do not depend on where a token stands.  Its rows
 * may be of different lengths, so no common shift turns "by distance" into "by key": the scores of
 * each token are moved by its own position (by_key).  r is not projected for them, the query is:
 *
 *     (q_i + v).r_d = b_i . [sin d, cos d],  b_i = (q_i + v) Wr
 *
 * Embeddings and softmax are adaptive (model/adaptive.h): with clusters "logits" are
 * log-probabilities.
 *
 * Paper: Dai et al. 2019 (arXiv:1901.02860). Names are those of the published checkpoint. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "model/adaptive.h"
#include "nn/part.h"

#define MAX_LAYER 128

typedef struct config {
    int vocab_size, d_model, d_embed, n_head, d_head, d_inner, n_layer;
    int mem_len, clamp_len, div_val;
    fv_int_list cutoffs;
    float dropout, dropatt, dropout_embedding, dropout_input, dropout_output, dropout_qkv,
        dropconnect;
    float init_std, proj_init_std, layer_norm_epsilon;
    bool pre_lnorm, same_length, proj_share_all_but_first, untie_r, tie_word_embeddings;
    bool variational_dropout;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 267735, 1 << 24, "tokens"),
    FV_INTS(config, cutoffs, 1, "", 1 << 24, "where clusters of tokens begin; none: one cluster"),
    FV_INT(config, div_val, 1, 1, 16, "each cluster's vectors are so much narrower"),
    FV_INT(config, d_model, 2, 1024, 1 << 16, "model width, even"),
    FV_INT(config, d_embed, 1, 1024, 1 << 16, "width of the embeddings"),
    FV_INT(config, n_head, 1, 16, 256, "attention heads"),
    FV_INT(config, d_head, 1, 64, 1 << 12, "width of a head"),
    FV_INT(config, d_inner, 1, 4096, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, n_layer, 1, 18, MAX_LAYER, "layers"),
    FV_INT(config, mem_len, 0, 1600, 1 << 20, "states of earlier segments that are attended to"),
    FV_INT(config, clamp_len, -1, -1, 1 << 20, "distances beyond count as this one; -1: all count"),
    FV_BOOL(config, same_length, false, "every token attends to mem_len tokens, itself included"),
    FV_BOOL(config, pre_lnorm, false, "the norm stands before each part, not behind it"),
    FV_BOOL(config, untie_r, true, "u and v are each layer's own"),
    FV_BOOL(config, proj_share_all_but_first, true,
            "clusters but the first share projections between input and output"),
    FV_BOOL(config, tie_word_embeddings, true, "tables of tokens are the output weights too"),
    FV_FLOAT(config, dropout, 0, 0.1, 0.99, "dropout on what a part adds, and within it"),
    FV_FLOAT(config, dropout_input, -1, -1, 0.99, "that of embeddings and positions; -1: the same"),
    FV_FLOAT(config, dropout_output, -1, -1, 0.99, "that of the last states; -1: the same"),
    FV_FLOAT(config, dropout_qkv, 0, 0, 0.99,
             "dropout of queries, keys and values, one mask for all tokens"),
    FV_FLOAT(config, dropconnect, 0, 0, 0.99,
             "dropout of the weights that make queries, keys and values"),
    FV_FLOAT(config, dropatt, 0, 0, 0.99, "dropout on the attention weights"),
    FV_FLOAT(config, dropout_embedding, 0, 0, 0.99,
             "share of words hidden in all of a batch, behind words of other sequences"),
    FV_BOOL(config, variational_dropout, false, "dropout masks are the same for all tokens"),
    FV_FLOAT(config, init_std, 0, 0.02, 10, "standard deviation of first values"),
    FV_FLOAT(config, proj_init_std, 0, 0.01, 10, "that of projections of clusters"),
    FV_FLOAT(config, layer_norm_epsilon, 1e-12, 1e-5, 1, "added to the variance"),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    {"adaptive", "true"},
    {"attn_type", "0"}, /* relative positions of the paper */
    {"sample_softmax", NULL},
    {"init", NULL},
    {"init_range", NULL},
    {"tie_weight", "true"},
    {"tie_projs", NULL}, /* derived from proj_share_all_but_first */
    {"ext_len", NULL},
    {"tgt_len", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true}, {"attention_mask", FV_U8, false}, {"mems", FV_F32, false},
    {"mem_keys", FV_F32, false}, {"mem_values", FV_F32, false},    {"mem_positions", FV_F32, false},
    {"use_cache", FV_U8, false}, {"labels", FV_I32, false},        {0},
};

static const fv_family_head heads[] = {
    {"TransfoXLLMHeadModel", FV_HEAD_CAUSAL_LM, .base = "TransfoXLModel"},
    {"TransfoXLModel", .job = FV_HEAD_BASE},
    {0},
};

typedef struct block {
    fv_rel_mha attn;
    fv_norm attn_norm, mlp_norm;
    fv_lin up, down;
} block;

typedef struct transfo_xl {
    config cfg;
    fv_head_job job;
    block *blocks;
    fv__adaptive words;
} transfo_xl;

static fv__adaptive_opt words_of(const config *k)
{
    return (fv__adaptive_opt){.vocab = k->vocab_size,
                              .width = k->d_model,
                              .d_embed = k->d_embed,
                              .div_val = k->div_val,
                              .cutoffs = k->cutoffs,
                              .tied = k->tie_word_embeddings,
                              .share = k->proj_share_all_but_first,
                              .std = k->init_std,
                              .proj_std = k->proj_init_std};
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv__adaptive_opt words = words_of(k);
    if (k->d_model % 2)
        return fv_fail(e, FV_EFORMAT, "d_model %d is odd: positions are sines and cosines",
                       k->d_model);
    return fv__adaptive_check(&words, e);
}

/* ---- parameters ---- */

/* Below `at`, "transformer.layers.0". */
static void block_init(fv_params *p, block *b, const config *k, fv_tensor *const uv[2],
                       const char *at)
{
    fv_norm_opt norm = {.eps = k->layer_norm_epsilon};
    int64_t D = k->d_model, H = k->n_head, W = k->d_head;
    fv_lin_opt lin = {.std = k->init_std}, bare = {.std = k->init_std, .no_bias = true};
    fv_mha_init(p, &b->attn.att, D, H,
                (fv_mha_opt){.head = W, .in = bare, .out = bare, .names = "qkv_net o_net"},
                "%s.dec_attn", at);
    b->attn.att.window = k->same_length ? k->mem_len : 0;
    b->attn.att.dropout = k->dropatt;
    b->attn.dropout = k->dropout_qkv;
    b->attn.dropconnect = k->dropconnect;
    fv_lin_init(p, &b->attn.r, D, H * W, bare, "%s.dec_attn.r_net", at);
    b->attn.u = uv[0];
    b->attn.v = uv[1];
    if (k->untie_r) {
        b->attn.u = fv_param(p, fv__weight(k->init_std), FV_SHAPE(H, W), "%s.dec_attn.r_w_bias",
                             at);
        b->attn.v = fv_param(p, fv__weight(k->init_std), FV_SHAPE(H, W), "%s.dec_attn.r_r_bias",
                             at);
    }
    fv_norm_init(p, &b->attn_norm, D, norm, "%s.dec_attn.layer_norm", at);
    fv_lin_init(p, &b->up, D, k->d_inner, lin, "%s.pos_ff.CoreNet.0", at);
    fv_lin_init(p, &b->down, k->d_inner, D, lin, "%s.pos_ff.CoreNet.3", at);
    fv_param_mark_end(b->down.w, FV_ENDS_MLP);
    fv_norm_init(p, &b->mlp_norm, D, norm, "%s.pos_ff.layer_norm", at);
}

/* untie_r: each layer has biases u and v of its own, else all share one pair. */
static void declare(void *self, const fv_setup *s)
{
    transfo_xl *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    if (m->cfg.dropout_input < 0) m->cfg.dropout_input = m->cfg.dropout;
    if (m->cfg.dropout_output < 0) m->cfg.dropout_output = m->cfg.dropout;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const char *below = m->job == FV_HEAD_BASE ? "" : "transformer.";
    fv__adaptive_init(p, &m->words, words_of(k), below, m->job != FV_HEAD_BASE);
    fv_tensor *uv[2] = {NULL, NULL};
    for (int i = 0; i < 2 && !k->untie_r; i++)
        uv[i] = fv_param(p, fv__weight(k->init_std), FV_SHAPE(k->n_head, k->d_head), "%sr_%c_bias",
                         below, i ? 'r' : 'w');
    m->blocks = fv_params_scratch(p, (size_t)k->n_layer * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->n_layer; i++) {
        char at[64];
        snprintf(at, sizeof at, "%slayers.%d", below, i);
        block_init(p, &m->blocks[i], k, uv, at);
    }
}

static fv_load_opt load(const void *self)
{
    static const char *const computed[] = {"*pos_emb.inv_freq", NULL};
    static const char *const computed_and_head[] = {"*pos_emb.inv_freq", "crit.*", NULL};
    const transfo_xl *m = self;
    return (fv_load_opt){.prefix = "transformer.",
                         .ties = m->words.ties,
                         .ignore = m->job == FV_HEAD_BASE ? computed_and_head : computed};
}

/* The weight of positions stays as it is: a session turns it into heads. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    transfo_xl *m = self;
    for (int i = 0; i < m->cfg.n_layer; i++) {
        fv_mha_pack(p, &m->blocks[i].attn.att, dtype, false);
        fv_lin_pack(p, &m->blocks[i].up, dtype);
        fv_lin_pack(p, &m->blocks[i].down, dtype);
    }
    if (m->job != FV_HEAD_BASE) fv__adaptive_pack(p, &m->words, dtype);
}

static fv_tensor *drop(fv_ctx *c, const config *k, fv_tensor *x, float p)
{
    return k->variational_dropout ? fv__variational_dropout(c, x, p) : fv_dropout(c, x, p);
}

/* Of distances n-1, .., 0: (n,D), kept by the context. */
static fv_tensor *sinusoids(fv_ctx *c, const config *k, int64_t n)
{
    return fv_cast(c, fv__distances(c, n, k->d_model, k->clamp_len), c->dtype);
}

/* ---- forward ---- */

/* (B,T,1): 0 for hidden words, each wherever it stands in the batch, 1 for the others. */
static fv_tensor *kept_words(fv_ctx *c, const config *k, fv_tensor *ids)
{
    fv_shape all = FV_SHAPE(k->vocab_size, 1);
    fv_tensor *words = fv_dropout(c, fv_full(c, all, -1), k->dropout_embedding);
    words = fv_scale(c, fv_maximum(c, words, fv_full(c, all, -1)), -1); /* without 1 / (1 - p) */
    return fv_gather(c, words, ids, -1);
}

/* Hidden words are replaced by those of the next sequence, (B,T,D).  Zeros instead would be keys
 * and values of zero in the first layer, which learns to use them as attention sinks; without
 * dropout there are none.  On PTB the training loss fell while evaluation went back to the loss of
 * a unigram model. */
static fv_tensor *hide_words(fv_ctx *c, const config *k, fv_tensor *x, fv_tensor *ids)
{
    int64_t B = fv_dim(ids, 0);
    if (B < 2) return x; /* there are no others */
    fv_tensor *kept = kept_words(c, k, ids);
    fv_tensor *others =
        fv_concat(c, (fv_tensor *[]){fv_slice(c, x, 0, 1, B), fv_slice(c, x, 0, 0, 1)}, 2, 0);
    fv_tensor *hidden = fv_sub(c, fv_full(c, FV_SHAPE(1), 1), kept);
    return fv_add(c, fv_mul(c, x, kept), fv_mul(c, others, hidden));
}

/* E[ids] sqrt(D) */
static fv_tensor *embed(fv_ctx *c, const transfo_xl *m, fv_tensor *ids)
{
    const config *k = &m->cfg;
    fv_tensor *x = fv__adaptive_embed(c, &m->words, ids);
    x = fv_scale(c, x, (float)sqrt((double)k->d_model));
    if (k->dropout_embedding > 0 && fv_ctx_training(c)) x = hide_words(c, k, x, ids);
    return drop(c, k, x, k->dropout_input);
}

/* x += mlp(x), its norm before or behind. */
static fv_tensor *feed_forward(fv_ctx *c, const config *k, const block *b, fv_tensor *x)
{
    fv_tensor *h = k->pre_lnorm ? fv_norm_fwd(c, &b->mlp_norm, x) : x;
    h = drop(c, k, fv_lin_act(c, &b->up, h, FV_RELU), k->dropout);
    h = drop(c, k, fv_lin_fwd(c, &b->down, h), k->dropout);
    return k->pre_lnorm ? fv_add(c, x, h) : fv_norm_add(c, &b->mlp_norm, NULL, x, h);
}

/* One layer on x (B,T,D) with its memory (B,M,D) or NULL, or behind a past. */
static fv_tensor *block_fwd(fv_ctx *c, const config *k, const block *b, fv_tensor *x,
                            fv_tensor *memory, fv_rel_past *past, fv_tensor *positions,
                            fv_tensor *mask)
{
    fv_tensor *z = memory ? fv_concat(c, (fv_tensor *[]){memory, x}, 2, 1) : x, *q = x;
    if (k->pre_lnorm) {
        z = fv_norm_fwd(c, &b->attn_norm, z);
        q = fv_slice(c, z, 1, fv_dim(z, 1) - fv_dim(x, 1), fv_dim(z, 1));
    }
    fv_mha_arg arg = {.memory = z, .causal = true, .key_mask = mask};
    fv_tensor *y = fv__rel_mha_past(c, &b->attn, q, positions, past, arg);
    y = drop(c, k, y, k->dropout);
    x = k->pre_lnorm ? fv_add(c, x, y) : fv_norm_add(c, &b->attn_norm, NULL, x, y);
    return feed_forward(c, k, b, x);
}

/* The last n rows of x (B,L,..), as (1,B,n,..). */
static fv_tensor *newest(fv_ctx *c, fv_tensor *x, int64_t n)
{
    int64_t L = fv_dim(x, 1), B = fv_dim(x, 0);
    return fv_reshape(c, fv_slice(c, x, 1, L - n, L), FV_SHAPE(1, B, n, fv_cols(x)));
}

/* The memory after a segment: the last `keep` states of memory and x, (1,B,keep,D). */
static fv_tensor *remember(fv_ctx *c, fv_tensor *memory, fv_tensor *x, int64_t keep)
{
    x = fv_detach(c, x);
    if (keep > fv_dim(x, 1)) x = fv_concat(c, (fv_tensor *[]){memory, x}, 2, 1);
    return newest(c, x, keep);
}

/* Layer i of (layers,..), or NULL: the same memory, since what is carried has no gradient. */
static fv_tensor *layer_of(fv_ctx *c, fv_tensor *all, int i)
{
    if (!all || fv_dim(all, 0) <= i) return NULL;
    fv_shape s = {.n = all->shape.n - 1};
    memcpy(s.d, all->shape.d + 1, (size_t)s.n * sizeof *s.d);
    fv_tensor *y = fv_alias(c, all, s);
    if (y) y->data = (char *)all->data + (size_t)(i * fv_len(y)) * fv_dtype_size(all->dtype);
    return y;
}

/* Whether (layers,B,M,wide) is what segments may carry. */
static bool carries(const config *k, const fv_tensor *t, int64_t B, int64_t M, int64_t wide)
{
    return !t || fv_shape_same(t->shape, FV_SHAPE(k->n_layer, B, M, wide));
}

/* A memory of one kind and, with one, a mask over M + T keys. */
static bool memory_ok(fv_ctx *c, const config *k, const fv_items *in, int64_t B, int64_t T)
{
    const fv_tensor *mems = fv_items_get(in, "mems"), *keys = fv_items_get(in, "mem_keys"),
                    *values = fv_items_get(in, "mem_values"),
                    *mask = fv_items_get(in, "attention_mask");
    int64_t wide = k->n_head * k->d_head, M = fv_dim(keys ? keys : mems, 2);
    if (!carries(k, mems, B, M, k->d_model))
        fv_raise(c, FV_ESHAPE, "transfo-xl: mems %s, expected (%d,%lld,M,%d)", fv_desc(mems).s,
                 k->n_layer, (long long)B, k->d_model);
    else if (!carries(k, keys, B, M, wide) || !carries(k, values, B, M, wide) || !keys != !values)
        fv_raise(c, FV_ESHAPE, "transfo-xl: mem_keys %s, mem_values %s, expected (%d,%lld,M,%lld)",
                 fv_desc(keys).s, fv_desc(values).s, k->n_layer, (long long)B, (long long)wide);
    else if (mask && !fv_shape_same(mask->shape, FV_SHAPE(B, M + T)))
        fv_raise(c, FV_ESHAPE, "transfo-xl: attention_mask %s, expected (%lld,%lld), memory first",
                 fv_desc(mask).s, (long long)B, (long long)(M + T));
    else
        return true;
    return false;
}

/* What the next segment takes instead of states: use_cache. */
static void put_past(fv_ctx *c, const config *k, const fv_items *in, fv_items *out,
                     const fv_rel_past *past, int64_t M)
{
    fv_tensor *part[3][MAX_LAYER];
    for (int i = 0; i < k->n_layer; i++) {
        part[0][i] = newest(c, past[i].k, M);
        part[1][i] = newest(c, past[i].v, M);
        part[2][i] = past[i].r;
    }
    fv_items_put(out, "mem_keys", fv_concat(c, part[0], k->n_layer, 0));
    fv_items_put(out, "mem_values", fv_concat(c, part[1], k->n_layer, 0));
    if (fv_items_get(in, "mem_positions")) return;
    fv_tensor *far = fv_concat(c, part[2], k->n_layer, 0);
    fv_items_put(out, "mem_positions",
                 fv_reshape(c, far, FV_SHAPE(k->n_layer, fv_dim(part[2][0], 0), fv_cols(far))));
}

/* Of labels (B,T), or (B,T+1) where what follows the last token is known: the next one of each. */
static fv_tensor *next_labels(fv_ctx *c, const fv_items *in, int64_t T)
{
    fv_tensor *labels = fv_items_get(in, "labels");
    if (!labels || fv_dim(labels, 1) != T + 1) return fv__next_labels(c, in);
    return fv_slice(c, labels, 1, 1, T + 1);
}

/* Memory is detached: gradients end at the segment.  What comes out as mems is the newest `keep`
 * states of each layer's input. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const transfo_xl *m = self;
    const config *k = &m->cfg;
    fv_rel_past past[MAX_LAYER] = {{0}};
    fv_tensor *ids = fv_items_get(in, "input_ids"), *mems = fv_items_get(in, "mems"),
              *keys = fv_items_get(in, "mem_keys"), *values = fv_items_get(in, "mem_values"),
              *far = fv_items_get(in, "mem_positions"), *mask = fv_items_get(in, "attention_mask"),
              *kept[MAX_LAYER] = {NULL};
    if (!ids || !memory_ok(c, k, in, fv_dim(ids, 0), fv_dim(ids, 1))) return;
    int64_t T = fv_dim(ids, 1), M = fv_dim(keys ? keys : mems, 2), keep = mems ? M : k->mem_len;
    if (!mems && (keys || keep > T)) keep = keys ? 0 : T;
    fv_tensor *next = m->job == FV_HEAD_BASE ? NULL : next_labels(c, in, T);
    fv_tensor *x = embed(c, m, ids);
    fv_tensor *positions = drop(c, k, sinusoids(c, k, M + T), k->dropout_input);
    for (int i = 0; i < k->n_layer; i++) {
        fv_tensor *memory = layer_of(c, mems, i);
        past[i] = (fv_rel_past){layer_of(c, keys, i), layer_of(c, values, i), layer_of(c, far, i)};
        fv_tap(c, "hidden", "hidden_states", x);
        if (keep) kept[i] = remember(c, memory, x, keep);
        x = block_fwd(c, k, &m->blocks[i], x, memory, &past[i], positions, mask);
    }
    x = drop(c, k, x, k->dropout_output);
    fv_tap(c, "hidden", "hidden_states", x);
    if (m->job == FV_HEAD_BASE)
        fv_items_put(out, "last_hidden_state", x);
    else
        fv__put_tokens(c, in, out, fv__adaptive_scores(c, &m->words, x), next);
    if (keep) fv_items_put(out, "mems", fv_concat(c, kept, k->n_layer, 0));
    if (fv_items_get(in, "use_cache") && M) put_past(c, k, in, out, past, M);
}

/* ---- generation ---- */

/* Scores by distance of q (H,B*T,W) for keys 0..n-1, (B,H,T,n).  at: where the B*T tokens stand.
 *
 * Only the d = min(window, n) distances that a token can see are computed, so that a token costs
 * the same however long its sequence is.  A row of them, from the farthest to its own, is written
 * where its token stands into a row of zeros that has d-1 more in front, which keys before the
 * first would have; other keys are hidden by the window. */
static fv_tensor *by_key(fv_ctx *c, const config *k, const block *b, fv_tensor *q, fv_tensor *at,
                         int64_t n, int64_t window)
{
    int64_t H = k->n_head, W = k->d_head, D = k->d_model, B = fv_dim(at, 0), T = fv_dim(at, 1),
            d = window && window < n ? window : n;
    fv_tensor *w = fv_reshape(c, fv_cast(c, b->attn.r.w, c->dtype), FV_SHAPE(H, W, D));
    fv_tensor *all = fv_matmul(c, q, w, (fv_mm){.alpha = (float)(1 / sqrt((double)W))});
    fv_tensor *s = fv_matmul(c, all, sinusoids(c, k, d), (fv_mm){.tb = true});
    s = fv_permute(c, fv_reshape(c, s, FV_SHAPE(H, B * T, d)), (int[]){1, 2, 0});
    s = fv_cache_write(c, fv_zeros(c, FV_SHAPE(B * T, n + d - 1, H)), s,
                       fv_reshape(c, at, FV_SHAPE(B * T)));
    s = fv_reshape(c, fv_slice(c, s, 1, d - 1, n + d - 1), FV_SHAPE(B, T, n, H));
    return fv_permute(c, s, (int[]){0, 3, 1, 2});
}

/* Attention of the tokens of a step to all of their sequence, as far back as the memory reaches. */
static fv_tensor *attend_cached(fv_ctx *c, const config *k, const block *b, fv_session *s, int i,
                                fv_tensor *x)
{
    int64_t H = k->n_head, W = k->d_head, B = fv_dim(x, 0), T = fv_dim(x, 1);
    const fv_mha *l = &b->attn.att;
    fv_kv kv = fv_session_kv(c, s, i, H * W, c->dtype);
    fv_tensor *qkv[3] = {NULL};
    fv_split(c, qkv, fv_lin_fwd(c, &l->qkv, x), 3, -1);
    fv_tensor *q = fv_reshape(c, qkv[0], FV_SHAPE(B, T, H, W));
    fv_tensor *keys = fv_cache_write(c, kv.k, qkv[1], kv.pos),
              *values = fv_cache_write(c, kv.v, qkv[2], kv.pos);
    if (!q || !keys || !values) return NULL;
    fv_tensor *qv = fv_permute(c, fv_add(c, q, b->attn.v), (int[]){2, 0, 1, 3});
    fv_attn how = {.n_head = H,
                   .causal = true,
                   .window = k->mem_len ? k->mem_len + !k->same_length : 0,
                   .lens = kv.lens,
                   .name = l->name};
    qv = fv_reshape(c, qv, FV_SHAPE(H, B * T, W));
    how.bias = by_key(c, k, b, qv, fv_session_positions(c, s), fv_dim(keys, 1), how.window);
    if (!how.bias) return NULL;
    fv_tensor *qu = fv_reshape(c, fv_add(c, q, b->attn.u), FV_SHAPE(B, T, H * W));
    return fv_lin_fwd(c, &l->out, fv_attention(c, qu, keys, values, how));
}

/* Keys do not depend on where a token stands: the session keeps them as any causal model does. */
static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const transfo_xl *m = self;
    const config *k = &m->cfg;
    fv_tensor *x = embed(c, m, ids);
    fv_mark mark = fv_mark_here(c);
    for (int i = 0; i < k->n_layer; i++) {
        const block *b = &m->blocks[i];
        fv_tensor *h = k->pre_lnorm ? fv_norm_fwd(c, &b->attn_norm, x) : x;
        h = attend_cached(c, k, b, s, i, h);
        x = k->pre_lnorm ? fv_add(c, x, h) : fv_norm_add(c, &b->attn_norm, NULL, x, h);
        x = fv_keep(c, mark, feed_forward(c, k, b, x));
    }
    return fv__adaptive_scores(c, &m->words, fv__last_position(c, x));
}

static int64_t vocabulary(const void *self)
{
    const transfo_xl *m = self;
    return m->job == FV_HEAD_CAUSAL_LM ? m->cfg.vocab_size : 0;
}

const fv_family fv__family_transfo_xl = {
    .type = "transfo-xl",
    FV__FAMILY_PARTS(transfo_xl),
    .vocabulary = vocabulary,
    .step = step,
};
