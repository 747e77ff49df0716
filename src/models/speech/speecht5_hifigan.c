/* speecht5_hifigan.c - HiFi-GAN's generator: a waveform from a log-mel spectrogram.
 *
 *     x = conv7((mel - mean) / scale)
 *     for each rate:  x = transposed_conv(leaky x);  x = mean over kernels of residual blocks(x)
 *     wave = tanh(conv7(leaky x))
 *     residual block: x += conv(leaky(conv_dilated(leaky x))), for each dilation
 *
 * Each rate multiplies the length and halves the channels; the rates' product is the hop of the
 * spectrogram.  It is convolutions alone, so a batch is a batch of lengths that are equal.  Without
 * a vocoder there is Griffin and Lim's way (media/audio/griffin_lim.c), which needs no training and
 * sounds hollow.
 *
 * Paper: Kong et al. 2020 (arXiv:2010.05646).  Names are those of transformers' SpeechT5HifiGan,
 * whose convolutions have no weight norm once they are trained. */
#include <stddef.h>
#include <stdio.h>

#include "core/core.h"
#include "model/part.h"
#include "nn/part.h"

enum { MOST_RATES = 8, MOST_KERNELS = 8, MOST_DILATIONS = 8 };
#define LAST_SLOPE 0.01f

typedef struct config {
    int model_in_dim, sampling_rate, upsample_initial_channel;
    fv_int_list upsample_rates, upsample_kernel_sizes, resblock_kernel_sizes;
    float initializer_range, leaky_relu_slope;
    bool normalize_before;
} config;

static const fv_field fields[] = {
    FV_INT(config, model_in_dim, 1, 80, 1 << 12, "mel bands of a frame"),
    FV_INT(config, sampling_rate, 1000, 16000, 192000, "samples a second"),
    FV_INT(config, upsample_initial_channel, 1, 512, 1 << 14, "channels before the first rate"),
    FV_INTS(config, upsample_rates, 1, "4 4 4 4", 1 << 10, "how much longer each makes the signal"),
    FV_INTS(config, upsample_kernel_sizes, 1, "8 8 8 8", 1 << 10, "lengths of their convolutions"),
    FV_INTS(config, resblock_kernel_sizes, 1, "3 7 11", 1 << 10,
            "lengths of the convolutions of the residual blocks"),
    FV_FLOAT(config, initializer_range, 0, 0.01, 10, "deviation of first values; 0: Xavier"),
    FV_FLOAT(config, leaky_relu_slope, 0, 0.1, 1, "below 0"),
    FV_BOOL(config, normalize_before, true, "the file's mean and scale are applied first"),
    {0},
};

/* A list of lists, which no field is: declare reads it. */
static const fv_key_rule rules[] = {
    {"resblock_dilation_sizes", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {
    {"spectrogram", FV_F32, true}, /* (B,frames,mel) or (frames,mel) */
    {0},
};

static const fv_family_head heads[] = {
    {"SpeechT5HifiGan", .job = FV_HEAD_WAVEFORM},
    {0},
};

typedef struct block {
    fv_conv first[MOST_DILATIONS], second[MOST_DILATIONS];
    int n;
} block;

typedef struct hifigan {
    config cfg;
    fv_tensor *mean, *scale; /* (mel), buffers */
    fv_conv pre, post;
    fv_tensor *up_w[MOST_RATES], *up_b[MOST_RATES]; /* (in,out,K), (out) */
    block blocks[MOST_RATES][MOST_KERNELS];
} hifigan;

static bool lists_fit(const config *k)
{
    int n = k->upsample_rates.n;
    if (n < 1 || n > MOST_RATES || k->upsample_kernel_sizes.n != n) return false;
    if (k->resblock_kernel_sizes.n < 1 || k->resblock_kernel_sizes.n > MOST_KERNELS) return false;
    for (int i = 0; i < n; i++)
        if (k->upsample_kernel_sizes.at[i] < k->upsample_rates.at[i]) return false;
    return k->upsample_initial_channel >> n > 0;
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    if (lists_fit(k)) return FV_OK;
    return fv_fail(e, FV_EFORMAT,
                   "upsample_rates and upsample_kernel_sizes: expected as many of each, 1 to %d, "
                   "no kernel shorter than its rate, and upsample_initial_channel to be halved by "
                   "each; resblock_kernel_sizes: 1 to %d",
                   (int)MOST_RATES, (int)MOST_KERNELS);
}

/* ---- parameters ---- */

/* Dilation d of kernel i; 0: it has fewer, or the file's is no integer from 1 to 1024.  Without the
 * key they are 1, 3, 5. */
static int dilation_at(const fv_json *j, int i, int d)
{
    char at[64];
    double x = 0;
    if (!j || !fv_json_has(j, "resblock_dilation_sizes")) return d < 3 ? 1 + 2 * d : 0;
    snprintf(at, sizeof at, "resblock_dilation_sizes.%d.%d", i, d);
    if (!fv_json_number(j, at, &x) || !(x >= 1 && x <= 1024)) return 0;
    return (int)x;
}

static fv_conv_layer_opt same_length(const config *k, int kernel, int dilation)
{
    return (fv_conv_layer_opt){.dims = 1,
                               .std = k->initializer_range,
                               .conv = {.pad = (int64_t)(kernel - 1) * dilation / 2,
                                        .dilation = dilation}};
}

static void block_init(fv_params *p, block *b, const config *k, const fv_json *j, int channels,
                       int which, int number)
{
    int kernel = k->resblock_kernel_sizes.at[which];
    for (b->n = 0; b->n < MOST_DILATIONS; b->n++) {
        int dilation = dilation_at(j, which, b->n);
        if (!dilation) return;
        fv_conv_init(p, &b->first[b->n], channels, channels, kernel,
                     same_length(k, kernel, dilation), "resblocks.%d.convs1.%d", number, b->n);
        fv_conv_init(p, &b->second[b->n], channels, channels, kernel, same_length(k, kernel, 1),
                     "resblocks.%d.convs2.%d", number, b->n);
    }
}

static void declare(void *self, const fv_setup *s)
{
    hifigan *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    int channels = k->upsample_initial_channel, kinds = k->resblock_kernel_sizes.n;
    fv_conv_init(p, &m->pre, k->model_in_dim, channels, 7, same_length(k, 7, 1), "conv_pre");
    for (int i = 0; i < k->upsample_rates.n; i++) {
        int half = channels / 2;
        m->up_w[i] = fv_param(p, fv__weight(k->initializer_range),
                              FV_SHAPE(channels, half, k->upsample_kernel_sizes.at[i]),
                              "upsampler.%d.weight", i);
        m->up_b[i] = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(half),
                              "upsampler.%d.bias", i);
        channels = half;
        for (int n = 0; n < kinds; n++)
            block_init(p, &m->blocks[i][n], k, s->json, channels, n, i * kinds + n);
    }
    fv_conv_init(p, &m->post, channels, 1, 7, same_length(k, 7, 1), "conv_post");
    m->mean = fv_param(p, (fv_init){.kind = FV_INIT_ZERO, .buffer = true},
                       FV_SHAPE(k->model_in_dim), "mean");
    m->scale = fv_param(p, (fv_init){.kind = FV_INIT_ONE, .buffer = true},
                        FV_SHAPE(k->model_in_dim), "scale");
}

static fv_load_opt load(const void *self)
{
    (void)self;
    return (fv_load_opt){0};
}

/* Convolutions multiply weights as they are. */
static void pack(void *self, fv_params *p, fv_dtype dtype) { (void)self, (void)p, (void)dtype; }

/* ---- forward ---- */

/* x (B,C,T) -> the same */
static fv_tensor *residual(fv_ctx *c, const hifigan *m, const block *b, fv_tensor *x)
{
    float slope = m->cfg.leaky_relu_slope;
    for (int i = 0; i < b->n; i++) {
        fv_tensor *y = fv_conv_fwd(c, &b->first[i], fv_leaky_relu(c, x, slope));
        x = fv_add(c, x, fv_conv_fwd(c, &b->second[i], fv_leaky_relu(c, y, slope)));
    }
    return x;
}

/* x (B,C,T) -> (B,C/2,rate T), then the mean of what blocks of different reach make of it */
static fv_tensor *upsample(fv_ctx *c, const hifigan *m, int i, fv_tensor *x)
{
    const config *k = &m->cfg;
    int kinds = k->resblock_kernel_sizes.n, rate = k->upsample_rates.at[i];
    fv_conv_opt o = {.stride = rate, .pad = (k->upsample_kernel_sizes.at[i] - rate) / 2};
    fv_tensor *sum = NULL;
    x = fv_conv1d_transpose(c, fv_leaky_relu(c, x, k->leaky_relu_slope), m->up_w[i], m->up_b[i], o);
    for (int n = 0; n < kinds; n++) {
        fv_tensor *y = residual(c, m, &m->blocks[i][n], x);
        sum = n ? fv_add(c, sum, y) : y;
    }
    return fv_scale(c, sum, 1 / (float)kinds);
}

/* waveform (B,samples), or (samples) of a spectrogram without a batch */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const hifigan *m = self;
    const config *k = &m->cfg;
    fv_tensor *x = fv_cast(c, fv_items_get(in, "spectrogram"), c->dtype);
    if (!x) return;
    bool one = x->shape.n == 2;
    if (one) x = fv_reshape(c, x, FV_SHAPE(1, fv_dim(x, 0), fv_dim(x, 1)));
    if (x->shape.n != 3 || fv_dim(x, 2) != k->model_in_dim) {
        fv_raise(c, FV_ESHAPE, "speecht5_hifigan: spectrogram %s, expected (B,frames,%d)",
                 fv_desc(x).s, k->model_in_dim);
        return;
    }
    if (k->normalize_before) x = fv_div(c, fv_sub(c, x, m->mean), m->scale);
    x = fv_conv_fwd(c, &m->pre, fv_permute(c, x, (int[]){0, 2, 1}));
    for (int i = 0; i < k->upsample_rates.n; i++) x = upsample(c, m, i, x);
    /* PyTorch's own slope here, whatever the configuration says */
    x = fv_leaky_relu(c, x, LAST_SLOPE);
    x = fv_tanh(c, fv_conv_fwd(c, &m->post, x));
    if (!x) return;
    int64_t B = fv_dim(x, 0), n = fv_dim(x, 2);
    fv_items_put(out, "waveform", fv_reshape(c, x, one ? FV_SHAPE(n) : FV_SHAPE(B, n)));
}

const fv_family fv__family_speecht5_hifigan = {
    FV__FAMILY_PARTS(hifigan),
    .type = "speecht5_hifigan",
};
