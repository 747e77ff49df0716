/* opt.c - OPT: learned positions from row 2 of their table on, ReLU, norms first or last.
 *
 *     x = in(E[ids]) + P[2 + positions];   x += attn(norm x);   x += mlp(norm x);
 *     logits = out(norm x) E'
 *
 * Positions count the tokens that attention_mask leaves, so that padding before a text moves
 * nothing; what is hidden has row 1.  Where the table of tokens is narrower than the model
 * (word_embed_proj_dim, as in 350m) in and out are products, else nothing.  That model also has its
 * norms behind each part (do_layer_norm_before false), and then none at the end.
 *
 * Paper: Zhang et al. 2022 (arXiv:2205.01068). Next to GPT-2: ReLU, weights stored (out,in) with
 * q, k and v apart, and the two rows of offset that fairseq left in the table. Names are those
 * of transformers' OPTModel: model.decoder.layers.N, as of the decoder of a BART. */
#include "fovea/author/ops.h"
#include "model/causal.h"
#include "nn/part.h"

#define OFFSET 2 /* the row of position 0 */

typedef struct config {
    fv__causal_config head; /* it has no classifier_dropout */
    int vocab_size, hidden_size, ffn_dim, num_hidden_layers, num_attention_heads,
        word_embed_proj_dim;
    int activation_function, max_position_embeddings;
    float dropout, attention_dropout;
    bool do_layer_norm_before, remove_final_layer_norm, enable_bias;
} config;

static const fv_field fields[] = {
    FV_INT(config, vocab_size, 1, 50272, 1 << 24, "tokens"),
    FV_INT(config, hidden_size, 1, 768, 1 << 16, "model width"),
    FV_INT(config, ffn_dim, 1, 3072, 1 << 18, "width of the feed-forward part"),
    FV_INT(config, num_hidden_layers, 1, 12, FV__MAX_LAYERS, "layers"),
    FV_INT(config, num_attention_heads, 1, 12, 256, "attention heads"),
    FV_INT(config, word_embed_proj_dim, 1, 0, 1 << 16,
           "width of the table of tokens; the model's if not said"),
    FV_CHOICE(config, activation_function, 1, fv_act_words, "of the feed-forward part"),
    FV_INT(config, max_position_embeddings, 1, 2048, 1 << 20, "longest sequence"),
    FV_INT_KEY("pad_token_id", config, head.pad_token_id, 0, 1, 1 << 24,
               "padding, which a classifier skips"),
    FV__LABEL_FIELDS(config, head),
    FV_FLOAT(config, dropout, 0, 0.1, 0.99, "dropout on what each part of a layer adds"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "dropout on the attention weights"),
    FV_FLOAT_KEY("init_std", config, head.initializer_range, 0, 0.02, 10,
                 "standard deviation of first values; 0: Xavier"),
    FV_BOOL(config, do_layer_norm_before, true, "norms before each part of a layer, else behind"),
    FV_BOOL_KEY("_remove_final_layer_norm", config, remove_final_layer_norm, false,
                "no norm behind the last layer"),
    FV_BOOL(config, enable_bias, true, "biases in the layers"),
    FV_BOOL_KEY("tie_word_embeddings", config, head.tie_word_embeddings, true,
                "the table is the output weight too"),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "false"},
    {"layer_norm_elementwise_affine", "true"},
    {"layerdrop", "0.0"},
    {"activation_dropout", "0.0"},
    {"prefix", NULL}, /* text that an earlier pipeline put before prompts */
    {NULL, NULL},
};

static const fv_family_head heads[] = {
    {"OPTForCausalLM", FV_HEAD_CAUSAL_LM, .base = "OPTModel"},
    {"OPTModel", .job = FV_HEAD_BASE},
    {"OPTForSequenceClassification", FV_HEAD_CLASSIFY, .base = "OPTModel"},
    {"OPTForQuestionAnswering", FV_HEAD_ANSWER, .base = "OPTModel"},
    {0},
};

typedef struct block {
    fv__pre_norm base;
    bool pre_norm;
} block;

typedef struct opt {
    fv__causal base; /* its norm is without a gain where there is none */
    config cfg;
    fv_pos positions;
    fv_lin in, out; /* without a weight: none */
} opt;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    return fv__heads_check(k->hidden_size, k->num_attention_heads, e);
}

/* Below `at`, "model.decoder.layers.0". */
static void block_init(fv_params *p, void *block_, const void *config_, int i, const char *at)
{
    (void)i; /* layers are alike */
    block *b = block_;
    const config *k = config_;
    b->base.dropout = k->dropout;
    b->pre_norm = k->do_layer_norm_before;
    fv_lin_opt proj = {.no_bias = !k->enable_bias, .std = k->head.initializer_range};
    fv_mha_init(p, &b->base.attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = proj, .out = proj}, "%s.self_attn", at);
    b->base.attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->base.attn_norm, k->hidden_size, (fv_norm_opt){0}, "%s.self_attn_layer_norm",
                 at);
    fv_mlp_init(p, &b->base.mlp, k->hidden_size, k->ffn_dim,
                (fv_mlp_opt){.act = fv_act_of(k->activation_function),
                             .lin = {.no_bias = !k->enable_bias, .std = k->head.initializer_range}},
                "%s", at);
    fv_norm_init(p, &b->base.mlp_norm, k->hidden_size, (fv_norm_opt){0}, "%s.final_layer_norm", at);
}

/* x += attn(norm x);  x += mlp(norm x), or with the norms behind: x = norm(x + ..) */
static fv_tensor *block_fwd(fv_ctx *c, const void *self, fv_tensor *x, fv_mha_arg arg,
                            fv_mha_arg none)
{
    (void)none;
    const block *b = self;
    if (!b->pre_norm) {
        fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &b->base.attn, x, arg), b->base.dropout);
        x = fv_norm_add(c, &b->base.attn_norm, NULL, x, a);
        return fv_mlp_norm(c, &b->base.mlp, x, b->base.dropout, &b->base.mlp_norm);
    }
    return fv__pre_norm_fwd(c, &b->base, x, arg, none);
}

/* Files keep the two rows that fairseq put before position 0, so the table is longer than
 * max_position_embeddings. */
static void declare(void *self, const fv_setup *s)
{
    static const fv__block_type type = {sizeof(block), block_init, block_fwd};
    opt *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    const char *below = s->head->job == FV_HEAD_BASE ? "decoder" : "model.decoder";
    int64_t D = k->hidden_size, table = k->word_embed_proj_dim ? k->word_embed_proj_dim : D;
    fv_lin_opt narrow = {.no_bias = true, .std = k->head.initializer_range};
    m->base.context = k->max_position_embeddings;
    fv__causal_tokens(p, &m->base, &k->head, k->vocab_size, (int)table, "%s.embed_tokens", below);
    fv_pos_init(p, &m->positions, k->max_position_embeddings + OFFSET, D, FV_POS_LEARNED, OFFSET,
                k->head.initializer_range, "%s.embed_positions", below);
    if (table != D) {
        fv_lin_init(p, &m->out, D, table, narrow, "%s.project_out", below);
        fv_lin_init(p, &m->in, table, D, narrow, "%s.project_in", below);
    }
    if (k->do_layer_norm_before && !k->remove_final_layer_norm)
        fv_norm_init(p, &m->base.norm, D, (fv_norm_opt){0}, "%s.final_layer_norm", below);
    fv__causal_blocks(p, &m->base, &type, k->num_hidden_layers, k, "%s.layers", below);
    fv__causal_head_init(p, &m->base, s->head->job, &k->head, NULL, NULL);
}

static fv_load_opt load(const void *self)
{
    static const fv_tie ties[] = {{"lm_head.weight", "model.decoder.embed_tokens.weight"},
                                  {NULL, NULL}};
    const fv__causal *m = self;
    fv_load_opt how = fv__causal_load(self);
    how.ties = m->tied ? ties : NULL;
    return how;
}

/* in and out have no weight where the table is as wide as the model. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    opt *m = self;
    fv__causal_pack(self, p, dtype);
    fv_lin_pack(p, &m->in, dtype);
    fv_lin_pack(p, &m->out, dtype);
}

/* ---- forward ---- */

static void halves(void *out, const void *user, int64_t from, int64_t n)
{
    (void)user, (void)from;
    for (int64_t i = 0; i < n; i++) ((float *)out)[i] = 0.5f;
}

/* Rows of the table of positions, I32 (B,T): OFFSET, OFFSET+1, ... along what the mask leaves, 1
 * where it hides.  The mask becomes ids by an argmax, (0.5, hidden) -> hidden: on the device, as in
 * training nothing is read back. */
static fv_tensor *rows_by_mask(fv_ctx *c, fv_tensor *mask)
{
    fv_tensor *hidden = NULL;
    if (!mask || mask->shape.n != 2)
        return fv_raise(c, FV_ESHAPE, "opt: attention_mask %s, expected (B,T)",
                        mask ? fv_desc(mask).s : "");
    fv_shape one = FV_SHAPE(fv_dim(mask, 0), fv_dim(mask, 1), 1);
    fv_tensor *half = fv__table(c, FV_F32, mask->shape, halves, NULL, 0);
    fv_tensor *masked = fv_masked_fill(c, fv_scale(c, half, 0), mask, 1);
    fv_tensor *both[] = {fv_reshape(c, half, one), fv_reshape(c, masked, one)};
    fv_topk(c, fv_concat(c, both, 2, -1), 1, &hidden);
    return fv_positions_unpadded(c, hidden ? fv_reshape(c, hidden, mask->shape) : NULL, OFFSET - 1);
}

/* in(E[ids]) and the positions in `rows` of their table; NULL: 0..T-1 */
static fv_tensor *embed(fv_ctx *c, const opt *m, fv_tensor *ids, fv_tensor *rows)
{
    int64_t T = fv_dim(ids, 1), most = m->cfg.max_position_embeddings;
    if (T > most)
        return fv_raise(c, FV_EARG, "opt: %lld tokens, and max_position_embeddings is %lld",
                        (long long)T, (long long)most);
    fv_tensor *x = fv_emb_fwd(c, &m->base.tokens, ids);
    if (m->in.w) x = fv_lin_fwd(c, &m->in, x);
    return fv_pos_fwd(c, &m->positions, x, rows);
}

/* out(norm x), where there are these */
static fv_tensor *finish(fv_ctx *c, const opt *m, fv_tensor *x)
{
    if (m->base.norm.gain) x = fv_norm_fwd(c, &m->base.norm, x);
    return m->out.w ? fv_lin_fwd(c, &m->out, x) : x;
}

/* Rows of the position table: by the mask, as given from OFFSET on, or plainly counted. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const opt *m = self;
    fv_tensor *mask = fv_items_get(in, "attention_mask"), *pos = fv_items_get(in, "position_ids"),
              *rows = NULL;
    fv_tensor *labels = fv__causal_labels(c, &m->base, in);
    if (mask && !pos) rows = rows_by_mask(c, mask);
    opt given = *m; /* positions that are given count from OFFSET on */
    if (pos) {
        fv_tensor *table = m->positions.table;
        given.positions.table = fv_slice(c, table, 0, OFFSET, fv_dim(table, 0));
        rows = pos;
    }
    if ((mask || pos) && !rows) return;
    fv_tensor *x = embed(c, &given, fv_items_get(in, "input_ids"), rows);
    x = fv__causal_run(c, &m->base, NULL, x, (fv_mha_arg){.causal = true, .key_mask = mask},
                       (fv_rope_arg){0});
    fv__causal_put(c, &m->base, in, out, finish(c, m, x), labels);
}

/* ---- generation ---- */

/* Where a norm stands before the output weight, both are one fused call. */
static fv_tensor *step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids)
{
    const opt *m = self;
    fv_tensor *x = embed(c, m, ids, fv_session_positions_from(c, s, OFFSET));
    fv_tensor *w = m->base.head.w;
    x = fv__causal_run(c, &m->base, s, x, (fv_mha_arg){.causal = true}, (fv_rope_arg){0});
    if (m->base.norm.gain && !m->out.w) return fv__last_scores(c, x, &m->base.norm, w, NULL);
    return fv_linear(c, finish(c, m, fv__last_position(c, x)), w, NULL, FV_ACT_NONE);
}

const fv_family fv__family_opt = {
    .type = "opt",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = fv__causal_span_inputs,
    .config_size = sizeof(config),
    .size = sizeof(opt),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
    .step = step,
    FV__CAUSAL_SIZES,
};
