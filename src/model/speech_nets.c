/* speech_nets.c - the parts of families that speak: positions under a learned scale, scores by
 * distance, units that are always dropped, convolutions behind the frames. */
#include <math.h>

#include "core/core.h"
#include "model/speech.h"
#include "nn/part.h"

/* ---- positions ---- */

/* sin and cos of position / 10000^(2i/width), side by side. */
static void waves(void *out, const void *user, int64_t from, int64_t n)
{
    const int64_t *width = user;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = (from + i) / *width, col = (from + i) % *width;
        double angle = (double)row * exp(-log(10000) * (double)(col / 2 * 2) / (double)*width);
        ((float *)out)[i] = (float)(col % 2 ? cos(angle) : sin(angle));
    }
}

/* The table of all positions is kept by the context: a decoder's steps read one row each. */
fv_tensor *fv__scaled_positions(fv_ctx *c, fv_tensor *x, fv_tensor *alpha, int64_t most,
                                fv_tensor *at, const char *what)
{
    if (!x) return NULL;
    int64_t T = fv_dim(x, 1), width = fv_dim(x, 2);
    if (T > most)
        return fv_raise(c, FV_EARG, "%lld %s, at most %lld", (long long)T, what, (long long)most);
    fv_tensor *p = fv__table(c, FV_F32, FV_SHAPE(most, width), waves, &width, sizeof width);
    p = fv_cast(c, at ? fv_gather(c, p, at, -1) : fv_head(c, p, T), c->dtype);
    return fv_add(c, x, fv_mul(c, p, alpha));
}

typedef struct ruler {
    int64_t T, most;
} ruler;

/* Row of the table for the distance T - 1 - i, i = 0 .. 2T - 2. */
static void rows_of(void *out, const void *user, int64_t from, int64_t n)
{
    const ruler *r = user;
    for (int64_t i = 0; i < n; i++) {
        int64_t d = r->T - 1 - (from + i);
        if (d < -r->most) d = -r->most;
        if (d > r->most - 1) d = r->most - 1;
        ((int32_t *)out)[i] = (int32_t)(d + r->most);
    }
}

/* Every query by every distance in one product, then each row is shifted so that column j is the
 * distance to j: 2T - 1 vectors of the table, where one for each pair would be T^2. */
fv_tensor *fv__distance_scores(fv_ctx *c, fv_tensor *q, fv_tensor *table, int64_t n_head)
{
    if (!q || !table) return NULL;
    int64_t B = fv_dim(q, 0), T = fv_dim(q, 1), W = fv_dim(table, 1);
    ruler r = {T, fv_dim(table, 0) / 2};
    fv_tensor *rows = fv__table(c, FV_I32, FV_SHAPE(2 * T - 1), rows_of, &r, sizeof r);
    q = fv_permute(c, fv_reshape(c, q, FV_SHAPE(B, T, n_head, W)), (int[]){0, 2, 1, 3});
    fv_tensor *s = fv_matmul(c, q, fv_gather(c, table, rows, -1),
                             (fv_mm){.tb = true, .alpha = 1 / sqrtf((float)W)});
    return fv_slice(c, fv_rel_shift(c, s), 3, 0, T);
}

/* ---- the prenet ---- */

void fv__prenet_init(fv_params *p, fv__prenet *l, int64_t mel, int64_t units, int64_t width,
                     int64_t speaker, int layers, float std, const char *path)
{
    fv_lin_opt lin = {.std = std};
    l->layers = layers;
    for (int i = 0; i < layers; i++)
        fv_lin_init(p, &l->nets[i], i ? units : mel, units, lin, "%s.layers.%d", path, i);
    fv_lin_init(p, &l->out, units, width, lin, "%s.final_layer", path);
    l->alpha = fv_param(p, (fv_init){.kind = FV_INIT_ONE}, (fv_shape){0},
                        "%s.encode_positions.alpha", path);
    fv_lin_init(p, &l->speaker, width + speaker, width, lin, "%s.speaker_embeds_layer", path);
}

/* One mask for all rows of x (B,T,units). */
static fv_tensor *drop_units(fv_ctx *c, fv_tensor *x, fv_tensor *mask, int i, float p)
{
    if (mask) return fv_mul(c, x, fv_slice(c, fv_cast(c, mask, c->dtype), 0, i, i + 1));
    if (!x || !fv_ctx_training(c)) return x;
    fv_tensor *ones = fv_full(c, FV_SHAPE(1, fv_dim(x, 1), fv_dim(x, 2)), 1);
    return fv_mul(c, x, fv_dropout(c, ones, p));
}

/* Rows of x (B,D) at length 1, as PyTorch's normalize. */
static fv_tensor *unit_length(fv_ctx *c, fv_tensor *x)
{
    if (!(x = fv_cast(c, x, c->dtype))) return NULL;
    fv_tensor *squares = fv_clamp(c, fv_sum(c, fv_square(c, x), 1), 1e-24f, INFINITY);
    return fv_mul(c, x, fv_reshape(c, fv_rsqrt(c, squares), FV_SHAPE(fv_dim(x, 0), 1)));
}

/* Sizes are those of the weights: (units,mel) of the first layer, (width,width + dim) of the
 * speaker's. */
static bool fits(fv_ctx *c, const fv__prenet *l, const fv_tensor *x, const fv_tensor *speaker)
{
    int64_t mel = fv_dim(l->nets[0].w, 1), dim = fv_dim(l->speaker.w, 1) - fv_dim(l->out.w, 0);
    bool ok = x->shape.n == 3 && fv_dim(x, 2) == mel;
    if (ok && speaker)
        ok = speaker->shape.n == 2 && fv_dim(speaker, 0) == fv_dim(x, 0) &&
             fv_dim(speaker, 1) == dim;
    if (!ok)
        fv_raise(c, FV_ESHAPE, "frames %s, speaker_embeddings %s, expected (B,T,%lld) and (B,%lld)",
                 fv_desc(x).s, speaker ? fv_desc(speaker).s : "none", (long long)mel,
                 (long long)dim);
    return ok;
}

fv_tensor *fv__prenet_fwd(fv_ctx *c, const fv__prenet *l, fv_tensor *x, fv_tensor *mask,
                          fv_tensor *speaker, fv_tensor *at)
{
    if (!x || !fits(c, l, x, speaker)) return NULL;
    int64_t B = fv_dim(x, 0), T = fv_dim(x, 1), S = fv_dim(speaker, 1);
    x = fv_cast(c, x, c->dtype);
    for (int i = 0; i < l->layers; i++)
        x = drop_units(c, fv_lin_act(c, &l->nets[i], x, FV_RELU), mask, i, l->dropout);
    x = fv__scaled_positions(c, fv_lin_fwd(c, &l->out, x), l->alpha, l->most, at,
                             "steps of the decoder");
    x = fv_dropout(c, x, l->positional_dropout);
    if (!speaker) return x;
    fv_tensor *s = fv_reshape(c, unit_length(c, speaker), FV_SHAPE(B, 1, S));
    fv_tensor *both[] = {x, fv_expand(c, s, FV_SHAPE(B, T, S))};
    return fv_lin_act(c, &l->speaker, fv_concat(c, both, 2, 2), FV_RELU);
}

/* ---- the postnet ---- */

/* First values are He's, as PyTorch's kaiming_normal_. */
void fv__postnet_init(fv_params *p, fv__postnet *l, int64_t mel, int64_t units, int layers,
                      int kernel, const char *path)
{
    l->layers = layers;
    for (int i = 0; i < layers; i++) {
        int64_t in = i ? units : mel, out = i < layers - 1 ? units : mel;
        fv_conv_layer_opt o = {.dims = 1, .no_bias = true, .conv = {.pad = kernel / 2}};
        o.std = sqrtf(2 / (float)(in * kernel));
        fv_conv_init(p, &l->convs[i], in, out, kernel, o, "%s.layers.%d.conv", path, i);
        fv_bn_init(p, &l->norms[i], out, (fv_bn_opt){0}, "%s.layers.%d.batch_norm", path, i);
    }
}

fv_tensor *fv__postnet_fwd(fv_ctx *c, const fv__postnet *l, fv_tensor *x)
{
    fv_tensor *y = fv_permute(c, x, (int[]){0, 2, 1});
    for (int i = 0; i < l->layers; i++) {
        y = fv_bn_fwd(c, &l->norms[i], fv_conv_fwd(c, &l->convs[i], y));
        if (i < l->layers - 1) y = fv_tanh(c, y);
        y = fv_dropout(c, y, l->dropout);
    }
    return fv_add(c, x, fv_permute(c, y, (int[]){0, 2, 1}));
}
