/* kwt.c - the keyword transformer (Berg et al. 2021): one word of a clip, from its MFCC.
 *
 *     x = [class token, W frames] + positions;   layers, each norm(x + attn(x)), norm(x + mlp(x))
 *     logits = head(x[class token])
 *
 * Frames stand where patches stand in a ViT, with the norms behind each part.  Names are those of
 * the published weights; their front end (frontend.*), matrices that compute the MFCC, is left
 * unread: the audio processor computes the same numbers by an FFT.  A clip of fewer
 * frames than max_frames uses the first positions. */
#include <stddef.h>
#include <stdio.h>

#include "core/core.h"
#include "model/seq2seq.h"

typedef struct config {
    int hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_act;
    int num_features, max_frames, num_labels, problem_type;
    float dropout, attention_dropout, layer_norm_eps, initializer_range;
} config;

static const fv_field fields[] = {
    FV_INT(config, hidden_size, 1, 64, 1 << 16, "model width"),
    FV_INT(config, num_hidden_layers, 1, 12, 256, "layers"),
    FV_INT(config, num_attention_heads, 1, 1, 1024, "attention heads"),
    FV_INT(config, intermediate_size, 1, 256, 1 << 18, "width of the feed-forward part"),
    FV_CHOICE(config, hidden_act, 5, fv_act_words, "activation of the feed-forward part"),
    FV_INT(config, num_features, 1, 40, 1 << 12, "numbers of a frame"),
    FV_INT(config, max_frames, 1, 98, 1 << 16, "frames of the longest clip"),
    FV_FLOAT(config, dropout, 0, 0, 0.99, "on what each part of a layer adds"),
    FV_FLOAT(config, attention_dropout, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, layer_norm_eps, 1e-20, 1e-6, 1, "under the square root of each norm"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels are; not given: as they look"),
    {0},
};

static const fv_input inputs[] = {
    {"input_features", FV_F32, true},
    {"labels", FV_I32, false},
    {0},
};

static const fv_family_head heads[] = {
    {"KWTForAudioClassification", FV_HEAD_CLASSIFY, .base = "KWTModel"},
    {"KWTModel", .job = FV_HEAD_BASE},
    {0},
};

typedef struct kwt {
    config cfg;
    fv_head_job job;
    fv_tensor *class_token, *positions; /* (1,D), (1+max_frames,D) */
    fv_lin embed, head;
    fv__stacks stacks; /* an encoder alone */
} kwt;

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    return fv__heads_check(k->hidden_size, k->num_attention_heads, e);
}

/* ---- parameters ---- */

/* "layers.N": q, k and v without biases. */
static void block_init(fv_params *p, fv__encoder_block *b, const config *k, int i)
{
    fv_norm_opt norm = {.eps = k->layer_norm_eps};
    b->dropout = k->dropout;
    fv_mha_init(p, &b->attn, k->hidden_size, k->num_attention_heads,
                (fv_mha_opt){.in = {.no_bias = true, .std = k->initializer_range},
                             .out = {.std = k->initializer_range},
                             .names = "q k v out"},
                "layers.%d.attn", i);
    b->attn.dropout = k->attention_dropout;
    fv_norm_init(p, &b->attn_norm, k->hidden_size, norm, "layers.%d.ln1", i);
    fv_mlp_init(p, &b->mlp, k->hidden_size, k->intermediate_size,
                (fv_mlp_opt){.act = fv_act_of(k->hidden_act), .lin = {.std = k->initializer_range}},
                "layers.%d.mlp", i);
    fv_norm_init(p, &b->mlp_norm, k->hidden_size, norm, "layers.%d.ln2", i);
}

/* One class token and a learned position for every frame; names are those of the published
 * weights. */
static void declare(void *self, const fv_setup *s)
{
    kwt *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    int64_t D = k->hidden_size;
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = k->initializer_range};
    fv_lin_opt lin = {.std = k->initializer_range};
    fv__stacks *t = &m->stacks;
    m->class_token = fv_param(p, normal, FV_SHAPE(1, D), "class_token");
    m->positions = fv_param(p, normal, FV_SHAPE(1 + k->max_frames, D), "pos_embed");
    fv_lin_init(p, &m->embed, k->num_features, D, lin, "embed");
    t->encoder_fn = fv__encoder_post_norm;
    t->n_encoder = k->num_hidden_layers;
    t->encoder = fv_params_scratch(p, (size_t)t->n_encoder * sizeof *t->encoder);
    for (int i = 0; t->encoder && i < t->n_encoder; i++) block_init(p, &t->encoder[i], k, i);
    if (m->job == FV_HEAD_CLASSIFY) fv_lin_init(p, &m->head, D, k->num_labels, lin, "head");
}

static fv_load_opt load(const void *self)
{
    static const char *const front_end[] = {"frontend.*", NULL}, *const others[] = {"frontend.*",
                                                                                    "head.*", NULL};
    const kwt *m = self;
    return (fv_load_opt){.ignore = m->job == FV_HEAD_CLASSIFY ? front_end : others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    kwt *m = self;
    fv__stacks_pack(p, &m->stacks, dtype);
}

/* ---- forward ---- */

/* (B,T,features) -> (B,1+T,D) */
static fv_tensor *embed(fv_ctx *c, const kwt *m, fv_tensor *x)
{
    const config *k = &m->cfg;
    if (!x) return NULL;
    if (x->shape.n != 3 || fv_dim(x, 2) != k->num_features || fv_dim(x, 1) > k->max_frames)
        return fv_raise(c, FV_ESHAPE, "kwt: input_features %s, expected (B,T,%d), T at most %d",
                        fv_desc(x).s, k->num_features, k->max_frames);
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1), D = k->hidden_size;
    fv_tensor *first = fv_expand(c, fv_reshape(c, m->class_token, FV_SHAPE(1, 1, D)),
                                 FV_SHAPE(B, 1, D));
    x = fv_concat(c, (fv_tensor *[]){first, fv_lin_fwd(c, &m->embed, fv_cast(c, x, c->dtype))}, 2,
                  1);
    return fv_dropout(c, fv_add(c, x, fv_head(c, m->positions, 1 + T)), k->dropout);
}

/* The class token is read behind the last norm. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const kwt *m = self;
    fv_tensor *x = embed(c, m, fv_items_get(in, "input_features"));
    x = fv__encode(c, &m->stacks, x, (fv_mha_arg){0}, "hidden_states");
    if (m->job == FV_HEAD_CLASSIFY)
        fv__put_classes(c, in, out, fv_lin_fwd(c, &m->head, fv_first(c, x)), m->cfg.problem_type);
    else
        fv_items_put(out, "last_hidden_state", x);
}

const fv_family fv__family_kwt = {
    .type = "kwt",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(kwt),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .forward = forward,
};
