/* audio_spectrogram_transformer.c - AST: sounds told apart by their spectrogram, seen as an image.
 *
 *     x = [class token, distillation token, patches] + positions;   layers as in ViT
 *     label = W norm((x[0] + x[1]) / 2)
 *
 * Patches overlap: squares of 16 bins by 16 frames, 10 apart, so they are a convolution and not a
 * product.  The spectrogram comes frame by frame and is transposed first: rows of the grid of
 * patches are frequencies, columns are times.
 *
 * Paper: Gong et al. 2021, AST: Audio Spectrogram Transformer (arXiv:2104.01778).  Layers and names
 * are those of DeiT (model/vit.h), whose weights it was made from; what differs is the input, the
 * overlap, and that the mean of both tokens is what is read.  Positions are those of one length:
 * the processor pads or cuts every clip to max_length frames. */
#include <stddef.h>

#include "core/core.h"
#include "model/vit.h"

typedef struct config {
    fv__vit_config vit;
    int patch_size, frequency_stride, time_stride, max_length, num_mel_bins;
} config;

static const fv_field fields[] = {
    FV__VIT_STACK_FIELDS,
    FV__VIT_LAYER_FIELDS,
    FV__VIT_FIELD(FV_BOOL, qkv_bias, true, "queries, keys and values have biases"),
    FV__VIT_FIELD(FV_INT, num_labels, 1, 2, 1 << 20, "labels"),
    FV__VIT_FIELD(FV_CHOICE, problem_type, 0, fv_problem_words,
                  "what the labels are; not given: as they look"),
    FV_INT(config, patch_size, 1, 16, 1 << 12, "bins and frames of a patch"),
    FV_INT(config, frequency_stride, 1, 10, 1 << 12, "bins from one patch to the next"),
    FV_INT(config, time_stride, 1, 10, 1 << 12, "frames from one patch to the next: the same"),
    FV_INT(config, max_length, 1, 1024, 1 << 20, "frames of a clip"),
    FV_INT(config, num_mel_bins, 1, 128, 1 << 16, "bins of a frame"),
    {0},
};

static const fv_input inputs[] = {
    {"input_values", FV_F32, true},
    {"labels", FV_I32, false},
    {0},
};

static const fv_family_head heads[] = {
    {"ASTForAudioClassification", FV_HEAD_CLASSIFY, .base = "ASTModel"},
    {"ASTModel", .job = FV_HEAD_BASE},
    {0},
};

typedef struct ast {
    config cfg;
    fv_head_job job;
    fv_tensor *class_token, *distillation_token; /* (1,1,D) each */
    fv_tensor *positions;                        /* (1,2+N,D) */
    fv_conv patches;
    fv__vit_block *blocks;
    fv_norm norm, label_norm;
    fv_lin label;
} ast;

/* The convolution has one stride; published models have 10 along both axes. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (k->frequency_stride != k->time_stride)
        return fv_fail(e, FV_EMISSING, "frequency_stride %d, time_stride %d: they must be equal",
                       k->frequency_stride, k->time_stride);
    if (k->patch_size > k->num_mel_bins || k->patch_size > k->max_length)
        return fv_fail(e, FV_EFORMAT,
                       "patch_size %d does not fit into num_mel_bins %d by max_length %d",
                       k->patch_size, k->num_mel_bins, k->max_length);
    return fv__heads_check(k->vit.hidden_size, k->vit.num_attention_heads, e);
}

/* Patches along one side. */
static int64_t along(const config *k, int size)
{
    return (size - k->patch_size) / k->time_stride + 1;
}

/* ---- parameters ---- */

/* Positions are learned for one number of frames, max_length, and not interpolated. */
static void declare(void *self, const fv_setup *s)
{
    ast *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    m->job = s->head->job;
    const config *k = &m->cfg;
    const fv__vit_config *v = &k->vit;
    const char *at = m->job == FV_HEAD_BASE ? "" : "audio_spectrogram_transformer.";
    int64_t D = v->hidden_size, N = along(k, k->num_mel_bins) * along(k, k->max_length);
    fv_init normal = {.kind = FV_INIT_NORMAL, .scale = v->initializer_range};
    fv_norm_opt norm = {.eps = v->layer_norm_eps};
    m->class_token = fv_param(p, normal, FV_SHAPE(1, 1, D), "%sembeddings.cls_token", at);
    m->distillation_token = fv_param(p, normal, FV_SHAPE(1, 1, D),
                                     "%sembeddings.distillation_token", at);
    m->positions = fv_param(p, normal, FV_SHAPE(1, 2 + N, D), "%sembeddings.position_embeddings",
                            at);
    fv_conv_init(p, &m->patches, 1, D, k->patch_size,
                 (fv_conv_layer_opt){.std = v->initializer_range, .conv.stride = k->time_stride},
                 "%sembeddings.patch_embeddings.projection", at);
    m->blocks = fv__vit_blocks(p, v, at);
    fv_norm_init(p, &m->norm, D, norm, "%slayernorm", at);
    if (m->job != FV_HEAD_CLASSIFY) return;
    fv_norm_init(p, &m->label_norm, D, norm, "classifier.layernorm");
    fv_lin_init(p, &m->label, D, v->num_labels, (fv_lin_opt){.std = v->initializer_range},
                "classifier.dense");
}

static fv_load_opt load(const void *self)
{
    (void)self;
    static const char *const others[] = {"classifier.*", NULL};
    return (fv_load_opt){.prefix = "audio_spectrogram_transformer.", .ignore = others};
}

static void pack(void *self, fv_params *p, fv_dtype dtype)
{
    ast *m = self;
    fv__vit_pack(p, m->blocks, m->cfg.vit.num_hidden_layers, dtype);
}

/* ---- forward ---- */

/* (B,frames,bins) -> (B,2+N,D) */
static fv_tensor *embed(fv_ctx *c, const ast *m, fv_tensor *x)
{
    const config *k = &m->cfg;
    if (!x) return NULL;
    if (x->shape.n != 3 || fv_dim(x, 1) != k->max_length || fv_dim(x, 2) != k->num_mel_bins)
        return fv_raise(c, FV_ESHAPE,
                        "audio-spectrogram-transformer: input_values %s, expected (B,%d,%d)",
                        fv_desc(x).s, k->max_length, k->num_mel_bins);
    int64_t B = fv_dim(x, 0);
    x = fv_permute(c, fv_cast(c, x, c->dtype), (int[]){0, 2, 1});
    x = fv_conv_fwd(c, &m->patches,
                    fv_reshape(c, x, FV_SHAPE(B, 1, k->num_mel_bins, k->max_length)));
    x = fv_reshape(c, x, FV_SHAPE(B, k->vit.hidden_size, -1));
    x = fv_permute(c, x, (int[]){0, 2, 1});
    x = fv__prepend(c, m->class_token, fv__prepend(c, m->distillation_token, x));
    return fv_dropout(c, fv_add(c, x, m->positions), k->vit.hidden_dropout_prob);
}

/* Both tokens are read and averaged; the classifier has a norm of its own. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const ast *m = self;
    fv_tensor *x = embed(c, m, fv_items_get(in, "input_values"));
    x = fv_norm_fwd(c, &m->norm, fv__vit_encode(c, m->blocks, &m->cfg.vit, x));
    if (!x) return;
    fv_tensor *both = fv_mean(c, fv_slice(c, x, 1, 0, 2), 1);
    if (m->job == FV_HEAD_BASE) {
        fv_items_put(out, "last_hidden_state", x);
        fv_items_put(out, "pooler_output", both);
        return;
    }
    fv__put_classes(c, in, out, fv_lin_fwd(c, &m->label, fv_norm_fwd(c, &m->label_norm, both)),
                    m->cfg.vit.problem_type);
}

const fv_family fv__family_audio_spectrogram_transformer = {
    FV__FAMILY_PLAIN(ast),
    .type = "audio-spectrogram-transformer",
};
