/* tener.c - TENER: a tagger of words, read by their letters too (Yan et al. 2019).
 *
 *     letters  max over positions of conv3(bytes of the word)           (Ma and Hovy 2016)
 *     x        dropout([words, letters]) W_in
 *     layers   x = norm(x + W_o attention(x));   x = norm(x + mlp(x))
 *     scores   W x, and those of a label behind another: a conditional random field
 *
 * A score of attention knows the distance and its direction, and is not divided by sqrt(W):
 *
 *     a(t,j) = (q_t + u).k_j + (q_t + v).R(t - j),   k_j = x_j itself, R sinusoids
 *
 * The second term is one product of all queries with all distances, shifted, and handed to the
 * operator as a bias, as in nn/rel_mha.c, where distances go one way only and are projected.
 *
 * Letters are the bytes of a word in UTF-8, plus 1; 0 stands behind its end.  A vocabulary of
 * characters would have to be saved beside the model's, and has unknown ones.  Every token has
 * those of its whole word.  Names are our own: there is no published directory of this model. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "model/part.h"
#include "nn/part.h"

static const fv_family_head heads[] = {
    {"TenerForTokenClassification", .job = FV_HEAD_TAG},
    {0},
};

typedef struct config {
    int vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size;
    int word_embedding_size, char_embedding_size, char_hidden_size, max_word_bytes;
    int max_position_embeddings, pad_token_id, num_labels, hidden_act;
    float embedding_dropout, hidden_dropout_prob, attention_probs_dropout_prob, classifier_dropout;
    float initializer_range, layer_norm_eps;
    bool crf;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 30000, 1 << 24, "words"),
    FV_INT(config, hidden_size, 1, 256, 1 << 16, "model width"),
    FV_INT(config, num_hidden_layers, 1, 2, 256, "layers"),
    FV_INT(config, num_attention_heads, 1, 8, 1024, "attention heads"),
    FV_INT(config, intermediate_size, 1, 512, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, word_embedding_size, 1, 100, 1 << 16, "width of a word's vector"),
    FV_INT(config, char_embedding_size, 1, 30, 1 << 12, "width of a letter's vector"),
    FV_INT(config, char_hidden_size, 1, 60, 1 << 16, "width of what letters give for a word"),
    FV_INT(config, max_word_bytes, 0, 0, 256, "bytes of a word that are read; 0: none"),
    FV_INT(config, max_position_embeddings, 1, 512, 1 << 16, "longest sequence"),
    FV_INT(config, pad_token_id, 0, 0, 1 << 24, "padding"),
    FV_INT(config, num_labels, 1, 2, 1 << 12, "labels"),
    FV_CHOICE(config, hidden_act, 1, fv_act_words, "of the feed-forward part"),
    FV_FLOAT(config, embedding_dropout, 0, 0.3, 0.99, "on words and letters"),
    FV_FLOAT(config, hidden_dropout_prob, 0, 0.15, 0.99, "on what each part of a layer adds"),
    FV_FLOAT(config, attention_probs_dropout_prob, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, classifier_dropout, 0, 0.4, 0.99, "before the scores of labels"),
    FV_FLOAT(config, initializer_range, 0, 0, 10, "standard deviation of first values; 0: Xavier"),
    FV_FLOAT(config, layer_norm_eps, 1e-20, 1e-5, 1, "under the square root of each norm"),
    FV_BOOL(config, crf, true, "labels are scored as a sequence; else each for itself"),
    {0},
};

static const fv_input inputs[] = {
    {"input_ids", FV_I32, true},
    {"attention_mask", FV_U8, false},
    {"char_ids", FV_I32, false},
    {"labels", FV_I32, false},
    {0},
};

typedef struct block {
    fv_lin q, v, out;
    fv_tensor *u, *w; /* (H,W): the paper's u and v, added to queries */
    fv_norm attn_norm, mlp_norm;
    fv_mlp mlp;
    const char *name;
} block;

typedef struct tener {
    config cfg;
    fv_emb words, chars;
    fv_lin conv, in, classifier; /* conv (F,3C): three neighbours side by side */
    block *blocks;
    fv_tensor *transitions; /* (K+2,K), as fv_crf_loss reads them */
} tener;

/* Sines and cosines of a distance come in pairs, so a head's width is even. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->pad_token_id >= k->vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary of %d",
                       k->pad_token_id, k->vocab_size);
    int heads_ = k->num_attention_heads;
    if (k->hidden_size % heads_ == 0 && k->hidden_size / heads_ % 2)
        return fv_fail(e, FV_EFORMAT, "hidden_size %d over num_attention_heads %d is odd",
                       k->hidden_size, heads_);
    return fv__heads_check(k->hidden_size, heads_, e);
}

/* ---- parameters ---- */

/* Keys have no weight: they are the input itself, as published. */
static void block_init(fv_params *p, block *b, const config *k, int i)
{
    int64_t D = k->hidden_size, H = k->num_attention_heads;
    float std = k->initializer_range;
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    fv_mha named; /* for its name, by which taps know an attention */
    fv_mha_bare(p, &named, H, D / H, "layers.%d.attention", i);
    b->name = named.name;
    fv_lin_init(p, &b->q, D, D, (fv_lin_opt){.no_bias = true, .std = std},
                "layers.%d.attention.q_proj", i);
    fv_lin_init(p, &b->v, D, D, (fv_lin_opt){.no_bias = true, .std = std},
                "layers.%d.attention.v_proj", i);
    fv_lin_init(p, &b->out, D, D, (fv_lin_opt){.std = std}, "layers.%d.attention.out_proj", i);
    fv_param_mark_end(b->out.w, FV_ENDS_ATTENTION);
    b->u = fv_param(p, fv__weight(std), FV_SHAPE(H, D / H), "layers.%d.attention.u", i);
    b->w = fv_param(p, fv__weight(std), FV_SHAPE(H, D / H), "layers.%d.attention.v", i);
    fv_norm_init(p, &b->attn_norm, D, norm, "layers.%d.attention_norm", i);
    fv_mlp_init(p, &b->mlp, D, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act), .lin = {.std = std}},
                "layers.%d.feed_forward", i);
    b->mlp.dropout = k->hidden_dropout_prob;
    fv_norm_init(p, &b->mlp_norm, D, norm, "layers.%d.feed_forward_norm", i);
}

/* Words, and beside them what a small network makes of their bytes; max_word_bytes 0: words
 * alone. */
static void declare(void *self, const fv_setup *s)
{
    tener *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    int64_t C = k->char_embedding_size, F = k->max_word_bytes ? k->char_hidden_size : 0;
    fv_lin_opt lin = {.std = k->initializer_range};
    fv_emb_init(p, &m->words, k->vocab_size, k->word_embedding_size, 0, "word_embeddings");
    m->words.skip = k->pad_token_id;
    if (F) {
        fv_emb_init(p, &m->chars, 257, C, 0, "char_embeddings");
        m->chars.skip = 0;
        fv_lin_init(p, &m->conv, 3 * C, F, lin, "char_conv");
    }
    fv_lin_init(p, &m->in, k->word_embedding_size + F, k->hidden_size, lin, "in_proj");
    m->blocks = fv_params_scratch(p, (size_t)k->num_hidden_layers * sizeof *m->blocks);
    for (int i = 0; m->blocks && i < k->num_hidden_layers; i++) block_init(p, &m->blocks[i], k, i);
    fv_lin_init(p, &m->classifier, k->hidden_size, k->num_labels, lin, "classifier");
    if (k->crf)
        m->transitions = fv_param(p, (fv_init){.kind = FV_INIT_ZERO},
                                  FV_SHAPE(k->num_labels + 2, k->num_labels), "crf.transitions");
}

static int64_t longest(const void *self)
{
    return ((const tener *)self)->cfg.max_position_embeddings;
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    tener *m = self;
    for (int i = 0; i < m->cfg.num_hidden_layers; i++) {
        block *b = &m->blocks[i];
        fv_lin_pack(p, &b->q, dtype);
        fv_lin_pack(p, &b->v, dtype);
        fv_lin_pack(p, &b->out, dtype);
        fv_mlp_pack(p, &b->mlp, dtype);
    }
    fv_lin_pack(p, &m->in, dtype);
}

/* ---- forward ---- */

/* Bytes of words (B,T,L) -> (B,T,F): a convolution over three neighbours, then the greatest.
 * Behind the end of a word stand zeros up to L, whatever the batch, so a word's features are its
 * own. */
static fv_tensor *letters(fv_ctx *c, const tener *m, fv_tensor *ids)
{
    const config *k = &m->cfg;
    int64_t B = fv_dim(ids, 0), T = fv_dim(ids, 1), L = k->max_word_bytes,
            C = k->char_embedding_size;
    if (ids && (ids->shape.n != 3 || fv_dim(ids, 2) != L))
        return fv_raise(c, FV_ESHAPE, "tener: char_ids %s, expected (B,T,%lld)", fv_desc(ids).s,
                        (long long)L);
    fv_tensor *x = fv_reshape(c, fv_emb_fwd(c, &m->chars, ids), FV_SHAPE(B * T, L, C));
    x = fv_pad(c, fv_dropout(c, x, k->embedding_dropout), 1, 1, 1, 0);
    fv_tensor *near[3];
    for (int i = 0; i < 3; i++) near[i] = fv_slice(c, x, 1, i, i + L);
    x = fv_max(c, fv_lin_fwd(c, &m->conv, fv_concat(c, near, 3, 2)), 1);
    return fv_reshape(c, x, FV_SHAPE(B, T, k->char_hidden_size));
}

typedef struct waves {
    int64_t T, W;
} waves;

/* Row m is for t - j = T-1-m: sines of the first W/2 frequencies, then cosines. */
static void fill_waves(void *out, const void *user, int64_t from, int64_t n)
{
    const waves *w = user;
    float *y = out;
    for (int64_t i = from; i < from + n; i++) {
        int64_t apart = w->T - 1 - i / w->W, f = i % w->W, half = w->W / 2;
        double turn = (double)apart *
                      exp(-log(10000) * (double)(f % half) / (double)(half > 1 ? half - 1 : 1));
        *y++ = (float)(f < half ? sin(turn) : cos(turn));
    }
}

/* (B,T,D) -> (B,H,T,T): (q_t + v).R(t - j) */
static fv_tensor *by_distance(fv_ctx *c, const block *b, fv_tensor *q, int64_t H)
{
    int64_t B = fv_dim(q, 0), T = fv_dim(q, 1), W = fv_dim(q, 2) / H;
    waves w = {T, W};
    fv_tensor *r = fv__table(c, FV_F32, FV_SHAPE(2 * T - 1, W), fill_waves, &w, sizeof w);
    fv_tensor *x = fv_add(c, fv_reshape(c, q, FV_SHAPE(B, T, H, W)), b->w);
    x = fv_permute(c, x, (int[]){0, 2, 1, 3});
    x = fv_linear(c, x, fv_cast(c, r, q ? q->dtype : FV_F32), NULL, FV_ACT_NONE);
    return fv_slice(c, fv_rel_shift(c, x), 3, 0, T);
}

/* score_ij = (q_i + u).k_j + (q_i + v).r_(i-j), not scaled: the direction of a distance counts, and
 * sharp scores suit tags. */
static fv_tensor *attend(fv_ctx *c, const config *k, const block *b, fv_tensor *x, fv_tensor *mask)
{
    int64_t H = k->num_attention_heads, D = k->hidden_size;
    fv_tensor *q = fv_lin_fwd(c, &b->q, x), *v = fv_lin_fwd(c, &b->v, x);
    fv_attn how = {.n_head = H,
                   .scale = 1,
                   .dropout = k->attention_probs_dropout_prob,
                   .key_mask = mask,
                   .bias = by_distance(c, b, q, H),
                   .name = b->name};
    if (!how.bias) return NULL;
    fv_tensor *y = fv_attention(c, fv_add(c, q, fv_reshape(c, b->u, FV_SHAPE(D))), x, v, how);
    return fv_dropout(c, fv_lin_fwd(c, &b->out, y), k->hidden_dropout_prob);
}

/* (B,T) words and (B,T,bytes) -> (B,T,D). */
static fv_tensor *encode(fv_ctx *c, const tener *m, const fv_items *in)
{
    const config *k = &m->cfg;
    fv_tensor *ids = fv_items_get(in, "input_ids"), *chars = fv_items_get(in, "char_ids"),
              *mask = fv_items_get(in, "attention_mask");
    if (fv_dim(ids, 1) > k->max_position_embeddings)
        return fv_raise(c, FV_ESHAPE, "tener: input_ids %s, but max_position_embeddings is %d",
                        fv_desc(ids).s, k->max_position_embeddings);
    if (k->max_word_bytes && !chars)
        return fv_raise(c, FV_EARG, "tener: char_ids are missing, max_word_bytes is %d",
                        k->max_word_bytes);
    fv_tensor *x = fv_dropout(c, fv_emb_fwd(c, &m->words, ids), k->embedding_dropout);
    if (k->max_word_bytes)
        x = fv_concat(c,
                      (fv_tensor *[]){x, fv_dropout(c, letters(c, m, chars), k->embedding_dropout)},
                      2, 2);
    x = fv_lin_fwd(c, &m->in, x);
    for (int i = 0; i < k->num_hidden_layers; i++) {
        const block *b = &m->blocks[i];
        fv_tap(c, "hidden", "hidden_states", x);
        x = fv_norm_add(c, &b->attn_norm, NULL, x, attend(c, k, b, x, mask));
        x = fv_mlp_norm(c, &b->mlp, x, k->hidden_dropout_prob, &b->mlp_norm);
    }
    fv_tap(c, "hidden", "hidden_states", x);
    return x;
}

/* "logits" (B,T,K); with a conditional random field also "transitions", by which the labels of a
 * sequence are chosen together (model/crf.h). */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const tener *m = self;
    const config *k = &m->cfg;
    fv_tensor *labels = fv_items_get(in, "labels"),
              *x = fv_dropout(c, encode(c, m, in), k->classifier_dropout),
              *logits = fv_lin_fwd(c, &m->classifier, x);
    if (!k->crf) {
        fv__put_tokens(c, in, out, logits, labels);
        return;
    }
    fv_items_put(out, "logits", logits);
    fv_items_put(out, "transitions", m->transitions);
    if (labels) {
        fv_tensor *loss = fv_sum_all(c, fv_crf_loss(c, logits, m->transitions, labels));
        fv_items_put(out, "loss", fv__per_label(c, loss, in));
    }
}

const fv_family fv__family_tener = {
    .type = "tener",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(tener),
    .check = check,
    .declare = declare,
    .longest = longest,
    .pack = pack,
    .forward = forward,
};
