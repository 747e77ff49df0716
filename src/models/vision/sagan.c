/* sagan.c - SAGAN: a generator and a discriminator of small images, both with self-attention at one
 * feature map (Zhang et al. 2019).
 *
 *     generator:      z -> 4x4 map; blocks that double it, under conditional batch norm; attention;
 *                     norm, relu, convolution, tanh
 *     discriminator:  blocks that halve the image; attention; relu, sum over the map;
 *                     w.h + embedding[label].h
 *     attention:      x + gamma out(softmax(q'k) v), gamma from 0; q and k have an eighth of the
 *                     channels, v a half
 *
 * Every weight but those of the norms is divided by its largest singular value (spectral norm).
 * The hinge losses of both players come from one pass, in which each player's parameters are
 * constants to the other: the discriminator reads a detached image, and the generator is judged by
 * detached weights.  So one backward pass and one Adam train both at once, and two learning rates
 * (TTUR) are factors by name (train.lr_scale).  Two optimisers in turn lost: they would differ in
 * that the generator sees the discriminator one update later, and would cost a second pass through
 * it.
 *
 * Inputs: latents (B,latent_size) and, where there are classes, labels (B): images come out.  With
 * pixel_values in -1..1 as well, the losses. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "model/vit.h"
#include "nn/part.h"
#include "ops/stat.h"

#define MAX_BLOCKS 6
#define SN_EPS 1e-12f

static const fv_family_head heads[] = {
    {"SaganModel", .job = FV_HEAD_GAN},
    {0},
};

typedef struct config {
    int image_size, num_channels, latent_size, generator_channels, discriminator_channels,
        attention_size, num_labels;
} config;

static const fv_field fields[] = {
    FV_INT(config, image_size, 8, 32, 256, "pixels of a side: 4 times a power of 2"),
    FV_INT(config, num_channels, 1, 3, 16, "channels of an image"),
    FV_INT(config, latent_size, 1, 128, 1 << 12, "numbers that an image is made from"),
    FV_INT(config, generator_channels, 8, 128, 1 << 12, "channels of the generator's maps"),
    FV_INT(config, discriminator_channels, 8, 128, 1 << 12, "of the discriminator's"),
    FV_INT(config, attention_size, 0, 16, 256,
           "side of the maps that attend to themselves; 0: none do"),
    FV_INT(config, num_labels, 1, 1, 1 << 16, "classes; 1: all images are of one kind"),
    {0},
};

static const fv_input inputs[] = {
    {"latents", FV_F32, false},
    {"labels", FV_I32, false},
    {"pixel_values", FV_F32, false},
    {0},
};

/* A weight under spectral norm: (N,..) with its singular vectors. */
typedef struct normed {
    fv_tensor *w, *b, *u, *v; /* b may be NULL */
} normed;

typedef struct cond_norm {
    fv_bn norm;
    fv_tensor *gain, *bias; /* (labels,C) */
} cond_norm;

typedef struct attention {
    normed q, k, v, out;
    fv_tensor *gamma; /* (1); NULL: there is none */
    const char *name;
} attention;

typedef struct block {
    cond_norm norm1, norm2; /* of the generator */
    normed conv1, conv2, side;
} block;

typedef struct sagan {
    config cfg;
    int blocks;
    normed first, last; /* of the generator: latents to a map, maps to pixels */
    block up[MAX_BLOCKS], down[MAX_BLOCKS];
    cond_norm end;
    attention g_attn, d_attn;
    normed judge, classes; /* (1,C) and (labels,C) */
} sagan;

/* Maps double from 4 x 4 to the image; attention stands at one of the sizes between. */
static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    int size = k->image_size;
    while (size > 4 && size % 2 == 0) size /= 2;
    if (size != 4 || k->image_size < 8)
        return fv_fail(e, FV_EFORMAT, "image_size %d is not 4 times a power of 2", k->image_size);
    for (size = 8; size < k->attention_size; size *= 2) continue;
    if (k->attention_size && (size != k->attention_size || size >= k->image_size))
        return fv_fail(e, FV_EFORMAT,
                       "attention_size %d is no side of a map between 8 and image_size / 2",
                       k->attention_size);
    if (k->generator_channels % 8 || k->discriminator_channels % 8)
        return fv_fail(e, FV_EFORMAT, "channels are no multiple of 8, which attention divides by");
    return FV_OK;
}

/* ---- parameters ---- */

/* u and v: the singular vectors that power iteration keeps from step to step, saved with the weight
 * as PyTorch saves them. */
static void normed_init(fv_params *p, normed *l, fv_shape s, bool bias, const char *at,
                        const char *name)
{
    int64_t rest = fv_shape_len(s) / s.d[0];
    fv_init vector = {.kind = FV_INIT_NORMAL, .scale = 1, .buffer = true};
    *l = (normed){0};
    l->w = fv_param(p, (fv_init){.kind = FV_INIT_XAVIER}, s, "%s.%s.weight", at, name);
    if (bias)
        l->b = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(s.d[0]), "%s.%s.bias", at,
                        name);
    l->u = fv_param(p, vector, FV_SHAPE(s.d[0]), "%s.%s.weight_u", at, name);
    l->v = fv_param(p, vector, FV_SHAPE(rest), "%s.%s.weight_v", at, name);
}

static void conv_init(fv_params *p, normed *l, int64_t in, int64_t out, int64_t kernel,
                      const char *at, const char *name)
{
    normed_init(p, l, FV_SHAPE(out, in, kernel, kernel), true, at, name);
}

/* Conditional batch norm: each label has a gain and a bias of its own. */
static void cond_init(fv_params *p, cond_norm *l, int64_t channels, int64_t labels, const char *at,
                      const char *name)
{
    fv_shape s = FV_SHAPE(labels, channels);
    fv_bn_init(p, &l->norm, channels, (fv_bn_opt){.plain = true}, "%s.%s", at, name);
    l->gain = fv_param(p, (fv_init){.kind = FV_INIT_ONE}, s, "%s.%s.gain.weight", at, name);
    l->bias = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, s, "%s.%s.bias.weight", at, name);
}

/* 1 x 1 convolutions make q, k and v; gamma is 0 at first, so the block begins as the identity. */
static void attention_init(fv_params *p, attention *l, int64_t C, const char *at)
{
    conv_init(p, &l->q, C, C / 8, 1, at, "query");
    conv_init(p, &l->k, C, C / 8, 1, at, "key");
    conv_init(p, &l->v, C, C / 2, 1, at, "value");
    conv_init(p, &l->out, C / 2, C, 1, at, "output");
    l->gamma = fv_param(p, (fv_init){.kind = FV_INIT_ZERO}, FV_SHAPE(1), "%s.gamma", at);
    size_t n = strlen(at) + 1;
    char *name = fv_params_scratch(p, n);
    if (name) l->name = memcpy(name, at, n);
}

/* labels > 0: of the generator, with norms that know the label; the discriminator's have none. */
static void block_init(fv_params *p, block *b, int64_t in, int64_t out, int64_t labels,
                       const char *which, int i)
{
    fv_path at;
    snprintf(at.s, sizeof at.s, "%s.blocks.%d", which, i);
    if (labels) {
        cond_init(p, &b->norm1, in, labels, at.s, "norm1");
        cond_init(p, &b->norm2, out, labels, at.s, "norm2");
    }
    conv_init(p, &b->conv1, in, out, 3, at.s, "conv1");
    conv_init(p, &b->conv2, out, out, 3, at.s, "conv2");
    conv_init(p, &b->side, in, out, 1, at.s, "shortcut");
}

static void declare(void *self, const fv_setup *s)
{
    sagan *m = self;
    fv_params *p = s->params;
    m->cfg = *(const config *)s->config;
    const config *k = &m->cfg;
    int64_t G = k->generator_channels, D = k->discriminator_channels, labels = k->num_labels;
    for (int size = 4; size < k->image_size; size *= 2) m->blocks++;
    normed_init(p, &m->first, FV_SHAPE(G * 16, k->latent_size), true, "generator", "first");
    for (int i = 0; i < m->blocks; i++) block_init(p, &m->up[i], G, G, labels, "generator", i);
    if (k->attention_size) attention_init(p, &m->g_attn, G, "generator.attention");
    cond_init(p, &m->end, G, labels, "generator", "norm");
    conv_init(p, &m->last, G, k->num_channels, 3, "generator", "last");
    for (int i = 0; i < m->blocks; i++)
        block_init(p, &m->down[i], i ? D : k->num_channels, D, 0, "discriminator", i);
    if (k->attention_size) attention_init(p, &m->d_attn, D, "discriminator.attention");
    normed_init(p, &m->judge, FV_SHAPE(1, D), true, "discriminator", "judge");
    if (labels > 1)
        normed_init(p, &m->classes, FV_SHAPE(labels, D), false, "discriminator", "classes");
}

/* Weights are divided by their norm in every pass, so none is laid out. */
static void pack(void *self, fv_params *p, fv_dtype dtype) { (void)self, (void)p, (void)dtype; }

/* ---- layers ---- */

/* Which gradients a pass wants: weights may be constants to it. */
typedef struct pass {
    fv_ctx *c;
    bool fixed; /* weights get no gradient */
    fv_tensor *labels;
} pass;

/* W / sigma(W); a constant where this player is not the one that learns. */
static fv_tensor *weight(const pass *t, const normed *l)
{
    fv_tensor *w = fv_spectral_norm(t->c, l->w, l->u, l->v, SN_EPS);
    return t->fixed ? fv_detach(t->c, w) : w;
}
static fv_tensor *bias(const pass *t, const normed *l)
{
    return t->fixed && l->b ? fv_detach(t->c, l->b) : l->b;
}

static fv_tensor *conv(const pass *t, const normed *l, fv_tensor *x)
{
    return fv_conv2d(t->c, x, weight(t, l), bias(t, l), (fv_conv_opt){.pad = fv_dim(l->w, 2) / 2});
}

static fv_tensor *linear(const pass *t, const normed *l, fv_tensor *x)
{
    return fv_linear(t->c, x, weight(t, l), bias(t, l), FV_ACT_NONE);
}

/* gain[label] norm(x) + bias[label] */
static fv_tensor *cond(const pass *t, const cond_norm *l, fv_tensor *x)
{
    fv_shape s = FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1), 1, 1);
    fv_tensor *gain = fv_reshape(t->c, fv_gather(t->c, l->gain, t->labels, -1), s),
              *shift = fv_reshape(t->c, fv_gather(t->c, l->bias, t->labels, -1), s);
    return fv_add(t->c, fv_mul(t->c, fv_bn_fwd(t->c, &l->norm, x), gain), shift);
}

/* (B,C,H,W) -> (B,C,H/2,W/2) */
static fv_tensor *halve(fv_ctx *c, fv_tensor *x)
{
    int64_t h = fv_dim(x, 2) / 2, w = fv_dim(x, 3) / 2;
    fv_tensor *y = fv_reshape(c, x, FV_SHAPE(fv_dim(x, 0) * fv_dim(x, 1), h, 2, w, 2));
    return fv_reshape(c, fv_mean(c, fv_mean(c, y, 4), 2),
                      FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1), h, w));
}

static fv_tensor *to_sequence(fv_ctx *c, fv_tensor *x)
{
    return fv_transpose(c, fv_reshape(c, x, FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1), -1)));
}

/* x + gamma out(softmax(q k') v) over all positions of the map, one head, scores not scaled, as
 * published. */
static fv_tensor *attend(const pass *t, const attention *l, fv_tensor *x)
{
    fv_ctx *c = t->c;
    fv_attn how = {.n_head = 1, .scale = 1, .name = l->name};
    fv_tensor *q = to_sequence(c, conv(t, &l->q, x)), *k = to_sequence(c, conv(t, &l->k, x)),
              *v = to_sequence(c, conv(t, &l->v, x));
    fv_tensor *y = fv_transpose(c, fv_attention(c, q, k, v, how));
    y = fv_reshape(c, y, FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1) / 2, fv_dim(x, 2), fv_dim(x, 3)));
    fv_tensor *gamma = t->fixed ? fv_detach(c, l->gamma) : l->gamma;
    return fv_add(c, x, fv_mul(c, conv(t, &l->out, y), gamma));
}

/* ---- the two players ---- */

/* (B,latent_size) -> (B,C,H,W) in -1..1. */
static fv_tensor *generate(const pass *t, const sagan *m, fv_tensor *z)
{
    fv_ctx *c = t->c;
    fv_tensor *x = linear(t, &m->first, z);
    x = fv_reshape(c, x, FV_SHAPE(fv_dim(z, 0), m->cfg.generator_channels, 4, 4));
    for (int i = 0; i < m->blocks; i++) {
        const block *b = &m->up[i];
        fv_tensor *y = fv_upsample_nearest(c, fv_relu(c, cond(t, &b->norm1, x)), 2);
        y = conv(t, &b->conv1, y);
        y = conv(t, &b->conv2, fv_relu(c, cond(t, &b->norm2, y)));
        x = fv_add(c, y, conv(t, &b->side, fv_upsample_nearest(c, x, 2)));
        if (m->g_attn.gamma && fv_dim(x, 2) == m->cfg.attention_size) x = attend(t, &m->g_attn, x);
    }
    return fv_tanh(c, conv(t, &m->last, fv_relu(c, cond(t, &m->end, x))));
}

/* (B,C,H,W) -> (B): above 0 for what looks real.  B may be twice the labels: two batches of the
 * same. */
static fv_tensor *judge(const pass *t, const sagan *m, fv_tensor *x)
{
    fv_ctx *c = t->c;
    for (int i = 0; i < m->blocks; i++) {
        const block *b = &m->down[i];
        fv_tensor *y = conv(t, &b->conv1, i ? fv_relu(c, x) : x);
        y = halve(c, conv(t, &b->conv2, fv_relu(c, y)));
        x = fv_add(c, y, halve(c, conv(t, &b->side, x)));
        if (m->d_attn.gamma && fv_dim(x, 2) == m->cfg.attention_size) x = attend(t, &m->d_attn, x);
    }
    fv_tensor *h = fv_reshape(c, fv_relu(c, x), FV_SHAPE(fv_dim(x, 0), fv_dim(x, 1), -1));
    h = fv_sum(c, h, 2);
    fv_tensor *y = fv_reshape(c, linear(t, &m->judge, h), FV_SHAPE(fv_dim(x, 0)));
    if (!m->classes.w) return y;
    fv_tensor *of = fv_gather(c, weight(t, &m->classes), t->labels, -1);
    if (fv_dim(of, 0) != fv_dim(h, 0)) of = fv_concat(c, (fv_tensor *[]){of, of}, 2, 0);
    return fv_add(c, y, fv_sum(c, fv_mul(c, of, h), 1));
}

/* relu(1 - real) + relu(1 + fake) for the discriminator, -fake for the generator. */
static void losses(fv_ctx *c, const sagan *m, fv_tensor *real, fv_tensor *fake, fv_tensor *labels,
                   fv_items *out)
{
    pass learns = {.c = c, .labels = labels}, judges = {c, true, labels};
    int64_t B = fv_dim(fake, 0);
    fv_tensor *both[] = {real, fv_detach(c, fake)};
    fv_tensor *said = fv__widen(c, judge(&learns, m, fv_concat(c, both, 2, 0))),
              *again = fv__widen(c, judge(&judges, m, fake)), *yes = fv_slice(c, said, 0, 0, B),
              *no = fv_slice(c, said, 0, B, 2 * B);
    fv_tensor *d = fv_add(c, fv_mean_all(c, fv_relu(c, fv_affine(c, yes, -1, 1))),
                          fv_mean_all(c, fv_relu(c, fv_affine(c, no, 1, 1)))),
              *g = fv_scale(c, fv_mean_all(c, again), -1);
    fv_items_put(out, "logits_real", yes);
    fv_items_put(out, "logits_fake", no);
    fv_items_put(out, "loss_dict.discriminator", d);
    fv_items_put(out, "loss_dict.generator", g);
    fv_items_put(out, "loss", fv_add(c, d, g));
}

static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const sagan *m = self;
    fv_tensor *z = fv_items_get(in, "latents"), *labels = fv_items_get(in, "labels"),
              *real = fv_items_get(in, "pixel_values");
    const fv_tensor *any = z ? z : real;
    if (!any || (z && fv_dim(z, 1) != m->cfg.latent_size)) {
        fv_raise(c, FV_ESHAPE, "sagan: latents %s, expected (B,%d)", z ? fv_desc(z).s : "missing",
                 m->cfg.latent_size);
        return;
    }
    if (m->cfg.num_labels == 1)
        labels = fv_reshape(c, fv_positions(c, fv_dim(any, 0), 1, 0), FV_SHAPE(fv_dim(any, 0)));
    if (!labels) {
        fv_raise(c, FV_EARG, "sagan: labels are missing: it has %d classes", m->cfg.num_labels);
        return;
    }
    if (real && !(real = fv__image(c, "sagan", real, m->cfg.num_channels))) return;
    if (z) z = fv_cast(c, z, c->dtype);
    pass learns = {.c = c, .labels = labels};
    if (!z) {
        fv_items_put(out, "logits_real", judge(&learns, m, real));
        return;
    }
    fv_tensor *images = generate(&learns, m, z);
    fv_items_put(out, "images", images);
    if (real) losses(c, m, real, images, labels, out);
}

const fv_family fv__family_sagan = {
    .type = "sagan",
    .heads = heads,
    .config = fields,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(sagan),
    .check = check,
    .declare = declare,
    .pack = pack,
    .forward = forward,
};
