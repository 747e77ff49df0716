/* segformer.c - SegFormer: a pyramid of four stages without positions, and a head that labels
 * pixels.
 *
 *     stage: overlapping patches (a strided convolution), then layers
 *         x = x + attn(norm(x));   x = x + fc2(act(dwconv(fc1(norm(x)))))
 *     head:  every stage to one width, to the size of the first, side by side, fused, norm, classes
 *
 * Attention reads keys and values of a sequence that a strided convolution has shortened; where
 * things stand is told by the padding of the depthwise convolution in the feed-forward part.
 *
 * Paper: Xie et al. 2021 (arXiv:2105.15203). Names are those of transformers'
 * SegformerForSemanticSegmentation: segformer.encoder.block.S.L, decode_head.linear_c.S. */
#include <stddef.h>
#include <stdio.h>

#include "model/vit.h"

#define MAX_STAGES 8

static const fv_family_head heads[] = {
    {"SegformerModel", .job = FV_HEAD_BASE},
    {"SegformerForImageClassification", FV_HEAD_CLASSIFY, .base = "SegformerModel"},
    {"SegformerForSemanticSegmentation", FV_HEAD_SEGMENT, .base = "SegformerModel"},
    {0},
};

typedef struct config {
    int num_channels, num_encoder_blocks, hidden_act, decoder_hidden_size, num_labels, problem_type,
        semantic_loss_ignore_index;
    fv_int_list depths, sr_ratios, hidden_sizes, patch_sizes, strides, num_attention_heads,
        mlp_ratios;
    float hidden_dropout_prob, attention_probs_dropout_prob, classifier_dropout_prob,
        initializer_range, drop_path_rate;
} config;

static const fv_field fields[] = {
    FV_INT(config, num_channels, 1, 3, 1024, "channels of an image"),
    FV_INT(config, num_encoder_blocks, 1, 4, MAX_STAGES, "stages"),
    FV_INTS(config, depths, 1, "2 2 2 2", 256, "layers of each stage"),
    FV_INTS(config, sr_ratios, 1, "8 4 2 1", 256, "pixels of a side that share a key"),
    FV_INTS(config, hidden_sizes, 1, "32 64 160 256", 1 << 16, "width of each stage"),
    FV_INTS(config, patch_sizes, 1, "7 3 3 3", 1 << 10, "pixels of a patch's side"),
    FV_INTS(config, strides, 1, "4 2 2 2", 1 << 10, "pixels from one patch to the next"),
    FV_INTS(config, num_attention_heads, 1, "1 2 5 8", 1024, "attention heads"),
    FV_INTS(config, mlp_ratios, 1, "4 4 4 4", 256, "width of the feed-forward parts, in widths"),
    FV_CHOICE(config, hidden_act, 0, fv_act_words, "activation of the feed-forward part"),
    FV_FLOAT(config, hidden_dropout_prob, 0, 0, 0.99, "on what each part of a layer adds"),
    FV_FLOAT(config, attention_probs_dropout_prob, 0, 0, 0.99, "on the attention weights"),
    FV_FLOAT(config, classifier_dropout_prob, 0, 0.1, 0.99, "before the labels of pixels"),
    FV_FLOAT(config, initializer_range, 0, 0.02, 10,
             "standard deviation of first values; 0: Xavier"),
    FV_FLOAT(config, drop_path_rate, 0, 0.1, 0.99,
             "share of images that skip a part of the last layer; of the first none do"),
    FV_INT(config, decoder_hidden_size, 1, 256, 1 << 16, "width of the head"),
    FV_INT(config, semantic_loss_ignore_index, -1000, 255, 1 << 20, "label that does not count"),
    FV_CHOICE(config, problem_type, 0, fv_problem_words,
              "what the labels of an image are; not given: as they look"),
    FV_INT(config, num_labels, 1, 2, 1 << 20, "labels"),
    {0},
};

/* reshape_last_stage false would hand the last map on as a sequence; no published model does. */
static const fv_key_rule rules[] = {
    {"reshape_last_stage", "true"},
    {"layer_norm_eps", NULL}, /* transformers does not read it: norms have 1e-5 */
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"pixel_values", FV_F32, true},
    {"labels", FV_I32, false},
    {0},
};

/* Widths differ from stage to stage, so a block knows its own; reduce and reduced shorten the
 * sequence that keys and values are made of, by sr_ratio on each side of the map. */
typedef struct block {
    fv_norm norm1, norm2, reduced;
    fv_mha attn;
    fv_conv reduce, depthwise; /* reduce: has no weight where keys are not shortened */
    fv_lin fc1, fc2;
    fv_act act;
    float dropout, drop_path;
} block;

/* One resolution: the map is cut into overlapping patches, goes through the blocks as a sequence,
 * is normed, and becomes a map again for the next stage. */
typedef struct stage {
    fv_conv patches;
    fv_norm embedded, norm;
    block *blocks;
    int depth;
    fv_lin projection; /* of the head */
} stage;

typedef struct segformer {
    config cfg;
    fv_head_job job;
    stage stages[MAX_STAGES];
    fv_lin classifier; /* of an image */
    fv_conv fuse, labels;
    fv_bn norm;
} segformer;

/* All lists have an entry for each stage. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    const struct {
        const char *name;
        const fv_int_list *list;
    } all[] = {{"depths", &k->depths},
               {"sr_ratios", &k->sr_ratios},
               {"hidden_sizes", &k->hidden_sizes},
               {"patch_sizes", &k->patch_sizes},
               {"strides", &k->strides},
               {"num_attention_heads", &k->num_attention_heads},
               {"mlp_ratios", &k->mlp_ratios}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].list->n != k->num_encoder_blocks)
            return fv_fail(e, FV_EFORMAT, "%s has %d entries, but num_encoder_blocks is %d",
                           all[i].name, all[i].list->n, k->num_encoder_blocks);
    for (int i = 0; i < k->num_encoder_blocks; i++)
        if (k->hidden_sizes.at[i] % k->num_attention_heads.at[i])
            return fv_fail(e, FV_EFORMAT, "hidden_sizes: %d is no multiple of %d heads",
                           k->hidden_sizes.at[i], k->num_attention_heads.at[i]);
    return FV_OK;
}

/* ---- parameters ---- */

/* Below `at`, "segformer.encoder.block.0.1"; share: of its layer in the stochastic depth. */
static void block_init(fv_params *p, block *b, const config *k, int i, float share, const char *at)
{
    int64_t D = k->hidden_sizes.at[i], hidden = D * k->mlp_ratios.at[i], sr = k->sr_ratios.at[i];
    float std = k->initializer_range;
    fv_norm_opt norm = {0};
    fv_lin_opt lin = {.std = std};
    *b = (block){.act = fv_act_of(k->hidden_act),
                 .dropout = k->hidden_dropout_prob,
                 .drop_path = k->drop_path_rate * share};
    fv_norm_init(p, &b->norm1, D, norm, "%s.layer_norm_1", at);
    fv_lin_opt proj = {.std = std};
    fv_mha_init(p, &b->attn, D, k->num_attention_heads.at[i],
                (fv_mha_opt){.in = proj,
                             .out = proj,
                             .names = "self.query self.key self.value output.dense"},
                "%s.attention", at);
    b->attn.dropout = k->attention_probs_dropout_prob;
    if (sr > 1) {
        fv_conv_init(p, &b->reduce, D, D, sr,
                     (fv_conv_layer_opt){.conv = {.stride = sr}, .std = std},
                     "%s.attention.self.sr", at);
        fv_norm_init(p, &b->reduced, D, norm, "%s.attention.self.layer_norm", at);
    }
    fv_norm_init(p, &b->norm2, D, norm, "%s.layer_norm_2", at);
    fv_lin_init(p, &b->fc1, D, hidden, lin, "%s.mlp.dense1", at);
    fv_conv_init(p, &b->depthwise, hidden, hidden, 3,
                 (fv_conv_layer_opt){.conv = {.pad = 1, .groups = hidden}, .std = std},
                 "%s.mlp.dwconv.dwconv", at);
    fv_lin_init(p, &b->fc2, hidden, D, lin, "%s.mlp.dense2", at);
    fv_param_mark_end(b->fc2.w, FV_ENDS_MLP);
}

/* Stochastic depth rises evenly from the first layer of all stages to the last, so a block has to
 * know how many stand before its stage. */
static void stage_init(fv_params *p, stage *s, const config *k, int i, const char *at)
{
    int total = 0, before = 0;
    for (int j = 0; j < k->num_encoder_blocks; j++) {
        if (j < i) before += k->depths.at[j];
        total += k->depths.at[j];
    }
    int64_t D = k->hidden_sizes.at[i], in = i ? k->hidden_sizes.at[i - 1] : k->num_channels;
    fv_conv_opt overlap = {.stride = k->strides.at[i], .pad = k->patch_sizes.at[i] / 2};
    s->depth = k->depths.at[i];
    fv_conv_init(p, &s->patches, in, D, k->patch_sizes.at[i],
                 (fv_conv_layer_opt){.conv = overlap, .std = k->initializer_range},
                 "%sencoder.patch_embeddings.%d.proj", at, i);
    fv_norm_init(p, &s->embedded, D, (fv_norm_opt){0}, "%sencoder.patch_embeddings.%d.layer_norm",
                 at, i);
    s->blocks = fv_params_scratch(p, (size_t)s->depth * sizeof *s->blocks);
    for (int j = 0; s->blocks && j < s->depth; j++) {
        char path[64];
        snprintf(path, sizeof path, "%sencoder.block.%d.%d", at, i, j);
        float share = total > 1 ? (float)(before + j) / (float)(total - 1) : 0;
        block_init(p, &s->blocks[j], k, i, share, path);
    }
    fv_norm_init(p, &s->norm, D, (fv_norm_opt){0}, "%sencoder.layer_norm.%d", at, i);
}

/* The head projects every stage to one width; its fusing convolution has no bias because a batch
 * norm follows it. */
static void declare(void *self, const fv_setup *s)
{
    segformer *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    int stages = k->num_encoder_blocks;
    int64_t width = k->decoder_hidden_size;
    fv_conv_layer_opt point = {.std = k->initializer_range}, bare = point;
    bare.no_bias = true;
    for (int i = 0; i < stages; i++)
        stage_init(p, &m->stages[i], k, i, m->job == FV_HEAD_BASE ? "" : "segformer.");
    if (m->job == FV_HEAD_CLASSIFY)
        fv_lin_init(p, &m->classifier, k->hidden_sizes.at[stages - 1], k->num_labels,
                    (fv_lin_opt){.std = k->initializer_range}, "classifier");
    if (m->job != FV_HEAD_SEGMENT) return;
    for (int i = 0; i < stages; i++)
        fv_lin_init(p, &m->stages[i].projection, k->hidden_sizes.at[i], width,
                    (fv_lin_opt){.std = k->initializer_range}, "decode_head.linear_c.%d.proj", i);
    fv_conv_init(p, &m->fuse, width * stages, width, 1, bare, "decode_head.linear_fuse");
    fv_bn_init(p, &m->norm, width, (fv_bn_opt){0}, "decode_head.batch_norm");
    fv_conv_init(p, &m->labels, width, k->num_labels, 1, point, "decode_head.classifier");
}

/* num_batches_tracked counts PyTorch's batches; the moving averages themselves are parameters
 * here. */
static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"*num_batches_tracked", "classifier.*", "decode_head.*",
                                         NULL};
    return (fv_load_opt){.prefix = "segformer.", .ignore = others};
}

/* q, k and v are one product only where all three read the same sequence, which a block that
 * reduces does not. */
static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    segformer *m = self;
    for (int i = 0; i < m->cfg.num_encoder_blocks; i++)
        for (int j = 0; j < m->stages[i].depth; j++) {
            block *b = &m->stages[i].blocks[j];
            fv_mha_pack(p, &b->attn, dtype, !b->reduce.w);
            fv_lin_pack(p, &b->fc1, dtype);
            fv_lin_pack(p, &b->fc2, dtype);
        }
}

/* The label of pixels that no loss counts, 255 as published; classes of images have no such. */
static int32_t ignored(const void *self)
{
    const segformer *m = self;
    return m->job == FV_HEAD_SEGMENT ? m->cfg.semantic_loss_ignore_index : -100;
}

/* ---- forward ---- */

/* (B,H*W,C) -> (B,C,H,W), and back. */
static fv_tensor *to_map(fv_ctx *c, fv_tensor *x, int64_t h, int64_t w)
{
    return fv_reshape(c, fv_transpose(c, x), FV_SHAPE(fv_dim(x, 0), fv_dim(x, 2), h, w));
}
static fv_tensor *to_sequence(fv_ctx *c, fv_tensor *x)
{
    return fv_transpose(c, fv_reshape(c, x, FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1), -1)));
}

/* fc2(act(dwconv(fc1 x))): the 3 x 3 depthwise convolution goes over the map (h,w) and is what
 * tells positions apart, since its border is padded with zeros. */
static fv_tensor *mix(fv_ctx *c, const block *b, fv_tensor *x, int64_t h, int64_t w)
{
    fv_tensor *map = to_map(c, fv_lin_fwd(c, &b->fc1, x), h, w);
    x = fv_activate(c, to_sequence(c, fv_conv_fwd(c, &b->depthwise, map)), b->act);
    return fv_dropout(c, fv_lin_fwd(c, &b->fc2, fv_dropout(c, x, b->dropout)), b->dropout);
}

/* x += attn(norm1 x), keys and values of norm(conv(norm1 x)) where they are reduced;  x +=
 * mix(norm2 x). x (B,h*w,D). */
static fv_tensor *block_fwd(fv_ctx *c, const block *b, fv_tensor *x, int64_t h, int64_t w)
{
    fv_tensor *y = fv_norm_fwd(c, &b->norm1, x);
    fv_mha_arg arg = {0};
    if (b->reduce.w)
        arg.memory = fv_norm_fwd(c, &b->reduced,
                                 fv_conv_patches(c, &b->reduce, to_map(c, y, h, w)));
    y = fv_dropout(c, fv_mha_fwd(c, &b->attn, y, arg), b->dropout);
    y = fv_norm_add(c, &b->norm2, &x, x, fv_drop_path(c, y, b->drop_path));
    return fv_add(c, x, fv_drop_path(c, mix(c, b, y, h, w), b->drop_path));
}

/* (B,C,H,W) -> (B,D,H',W') */
static fv_tensor *stage_fwd(fv_ctx *c, const stage *s, fv_tensor *map)
{
    fv_mark mark = fv_mark_here(c);
    map = fv_conv_fwd(c, &s->patches, map);
    int64_t h = fv_dim(map, 2), w = fv_dim(map, 3);
    fv_tensor *x = fv_norm_fwd(c, &s->embedded, to_sequence(c, map));
    for (int i = 0; i < s->depth; i++) x = fv_keep(c, mark, block_fwd(c, &s->blocks[i], x, h, w));
    map = to_map(c, fv_norm_fwd(c, &s->norm, x), h, w);
    fv_tap(c, "hidden", "hidden_states", map);
    return map;
}

/* (B,labels,H',W') of the first stage's size. */
static fv_tensor *decode(fv_ctx *c, const segformer *m, fv_tensor *const *maps)
{
    fv_tensor *all[MAX_STAGES];
    int n = m->cfg.num_encoder_blocks;
    int64_t h = fv_dim(maps[0], 2), w = fv_dim(maps[0], 3);
    for (int i = 0; i < n; i++) {
        fv_tensor *x = fv_lin_fwd(c, &m->stages[i].projection, to_sequence(c, maps[i]));
        x = to_map(c, x, fv_dim(maps[i], 2), fv_dim(maps[i], 3));
        all[n - 1 - i] = i ? fv_upsample_bilinear(c, x, h, w) : x; /* the last stage comes first */
    }
    fv_tensor *x = fv_bn_fwd(c, &m->norm, fv_conv_fwd(c, &m->fuse, fv_concat(c, all, n, 1)));
    x = fv_dropout(c, fv_relu(c, x), m->cfg.classifier_dropout_prob);
    return fv_conv_fwd(c, &m->labels, x);
}

/* Labels (B,H,W) of pixels, under logits resized to theirs. */
static fv_tensor *pixel_loss(fv_ctx *c, const segformer *m, fv_tensor *logits, fv_tensor *labels,
                             const fv_items *in)
{
    static const int last[] = {0, 2, 3, 1};
    if (!labels || labels->shape.n != 3 || labels->dtype != FV_I32)
        return fv_raise(c, FV_ESHAPE, "segformer: labels %s, expected i32 (B,height,width)",
                        fv_desc(labels).s);
    if (m->cfg.num_labels == 1)
        return fv_raise(c, FV_EMISSING, "segformer: labels with num_labels = 1");
    fv_tensor *x = fv_upsample_bilinear(c, logits, fv_dim(labels, 1), fv_dim(labels, 2));
    x = fv_permute(c, x, last);
    labels = fv__replace_ids(c, labels, m->cfg.semantic_loss_ignore_index, -100);
    return fv_loss_tokens(c, x, labels, in);
}

/* The base model gives the last map (B,D,H',W'), a classifier reads its mean, and segmentation
 * gives a quarter of the image's size: (B,labels,H/4,W/4) for a first stride of 4. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const segformer *m = self;
    fv_tensor *map = fv_items_get(in, "pixel_values"), *labels = fv_items_get(in, "labels"),
              *maps[MAX_STAGES];
    int n = m->cfg.num_encoder_blocks;
    map = fv__image(c, "segformer", map, m->cfg.num_channels);
    for (int i = 0; i < n; i++) map = maps[i] = stage_fwd(c, &m->stages[i], map);
    if (m->job == FV_HEAD_BASE) fv_items_put(out, "last_hidden_state", map);
    if (m->job == FV_HEAD_CLASSIFY)
        fv__put_classes(c, in, out,
                        fv_lin_fwd(c, &m->classifier, fv_mean(c, to_sequence(c, map), 1)),
                        m->cfg.problem_type);
    if (m->job != FV_HEAD_SEGMENT) return;
    fv_tensor *logits = decode(c, m, maps);
    fv_items_put(out, "logits", logits);
    if (labels) fv_items_put(out, "loss", pixel_loss(c, m, logits, labels, in));
}

const fv_family fv__family_segformer = {
    .type = "segformer",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(segformer),
    .check = check,
    .declare = declare,
    .load = load,
    .pack = pack,
    .ignored = ignored,
    .forward = forward,
};
