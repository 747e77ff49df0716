/* layer.c - the layers of an encoder and of a decoder, with the norm before or after each part.
 *
 *   pre-norm:   x + drop(f(norm(x)))      the sum meets the next part's norm in one pass
 *   post-norm:  norm(x + drop(f(x)))      the sum meets its own */
#include "core/core.h"
#include "nn/part.h"

/* ---- a layer that is computed twice, where the context asks for it ---- */

typedef struct block {
    const fv_encoder_layer *encoder; /* one of the two */
    const fv_decoder_layer *decoder;
    fv_mha_arg self, cross;
} block;

static fv_tensor *run(fv_ctx *c, void *user, fv_tensor *x);

/* A copy that lives until backward; NULL: the layer is recorded as it is. */
static block *recomputed(fv_ctx *c, block b)
{
    if (!c->recompute || !c->record || b.self.kv) return NULL;
    block *p = fv__arena_alloc(&c->host, sizeof *p);
    if (p) *p = b;
    return p ? p : fv_raise(c, FV_ENOMEM, "layer: out of memory");
}

/* ---- layers ---- */

/* Names without a default of their own fall back on BART's. */
static void norm_init(fv_params *p, fv_norm *l, const fv_layer_opt *o, const fv_path *at,
                      const char *name, const char *otherwise)
{
    fv_norm_init(p, l, o->mha.width, o->norm, "%s", fv__below(at, name, otherwise).s);
}

static void mlp_init(fv_params *p, fv_mlp *l, const fv_layer_opt *o, const fv_path *at)
{
    fv_mlp_init(p, l, o->mha.width, o->hidden, o->mlp, "%s", fv__below(at, o->names.mlp, "").s);
}

static void self_init(fv_params *p, fv_mha *l, const fv_layer_opt *o, const fv_path *at)
{
    fv_mha_opt self = o->mha;
    self.memory = 0;
    fv_mha_init(p, l, self, "%s", fv__below(at, o->names.self, "self_attn").s);
}

static void cross_init(fv_params *p, fv_mha *l, const fv_layer_opt *o, const fv_path *at)
{
    fv_mha_opt cross = o->mha;
    cross.packed = false;
    fv_mha_init(p, l, cross, "%s", fv__below(at, o->names.cross, "encoder_attn").s);
}

void fv_encoder_layer_init(fv_params *p, fv_encoder_layer *l, fv_layer_opt opt, const char *path,
                           ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    *l = (fv_encoder_layer){.pre_norm = opt.pre_norm, .dropout = opt.dropout};
    self_init(p, &l->self, &opt, &at);
    if (!opt.no_self_norm)
        norm_init(p, &l->self_norm, &opt, &at, opt.names.self_norm, "self_attn_layer_norm");
    mlp_init(p, &l->mlp, &opt, &at);
    norm_init(p, &l->mlp_norm, &opt, &at, opt.names.mlp_norm, "final_layer_norm");
}

/* The last product of each part can add what it makes: nothing of that is dropped, and the device
 * knows how. */
static bool can_add(const fv_ctx *c, const fv_encoder_layer *l, const fv_tensor *x)
{
    const fv_kernels *k = x && (unsigned)x->dtype < FV_FLOATS ? c->dev->k[x->dtype] : NULL;
    bool drops = c->train && (l->dropout > 0 || l->self.out_dropout > 0);
    return k && k->gemm_plus && !drops && l->self.out.w && !l->self.out.w->packed &&
           l->mlp.down.w && !l->mlp.down.w->packed;
}

/* In post-norm layers only the long sum of the last product hides that x is read, so the norm
 * behind it is faster alone; what is recorded would keep one tensor more. */
static bool adds_last(const fv_ctx *c, const fv_encoder_layer *l, const fv_tensor *x)
{
    const fv_kernels *k = x && (unsigned)x->dtype < FV_FLOATS ? c->dev->k[x->dtype] : NULL;
    return k && k->gemm_plus && !c->record && !c->train && l->mlp.down.w &&
           l->mlp.down.w->dtype == x->dtype;
}

static fv_tensor *encode(fv_ctx *c, const fv_encoder_layer *l, fv_tensor *x, fv_mha_arg self)
{
    bool first = l->pre_norm && l->self_norm.gain;
    if (first && fv__mha_decode_supported(c, &l->self, x, &self) &&
        fv__mlp_decode_supported(c, &l->mlp, x))
        return fv__mlp_decode(c, &l->mlp, &l->mlp_norm,
                              fv__mha_decode(c, &l->self, &l->self_norm, x, self));
    fv_tensor *h = first ? fv_norm_fwd(c, &l->self_norm, x) : x;
    if (l->pre_norm && can_add(c, l, x)) {
        x = fv__lin_add(c, &l->self.out, x, fv__mha_heads(c, &l->self, h, self));
        h = fv_norm_fwd(c, &l->mlp_norm, x);
        return fv__lin_add(c, &l->mlp.down, x, fv__mlp_hidden(c, &l->mlp, h));
    }
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &l->self, h, self), l->dropout);
    if (l->pre_norm) {
        h = fv_norm_add(c, &l->mlp_norm, &x, x, a);
        return fv_add(c, x, fv_dropout(c, fv_mlp_fwd(c, &l->mlp, h), l->dropout));
    }
    x = fv_norm_add(c, &l->self_norm, NULL, x, a);
    if (adds_last(c, l, x))
        return fv_norm_fwd(c, &l->mlp_norm,
                           fv__lin_add(c, &l->mlp.down, x, fv__mlp_hidden(c, &l->mlp, x)));
    return fv_norm_add(c, &l->mlp_norm, NULL, x,
                       fv_dropout(c, fv_mlp_fwd(c, &l->mlp, x), l->dropout));
}

fv_tensor *fv_encoder_layer_fwd(fv_ctx *c, const fv_encoder_layer *l, fv_tensor *x, fv_mha_arg self)
{
    block *b = recomputed(c, (block){.encoder = l, .self = self});
    return b ? fv_checkpoint(c, run, b, x) : encode(c, l, x, self);
}

void fv_decoder_layer_init(fv_params *p, fv_decoder_layer *l, fv_layer_opt opt, const char *path,
                           ...)
{
    va_list ap;
    va_start(ap, path);
    fv_path at = fv__path(path, ap);
    va_end(ap);
    *l = (fv_decoder_layer){.pre_norm = opt.pre_norm, .dropout = opt.dropout};
    self_init(p, &l->self, &opt, &at);
    norm_init(p, &l->self_norm, &opt, &at, opt.names.self_norm, "self_attn_layer_norm");
    cross_init(p, &l->cross, &opt, &at);
    norm_init(p, &l->cross_norm, &opt, &at, opt.names.cross_norm, "encoder_attn_layer_norm");
    mlp_init(p, &l->mlp, &opt, &at);
    norm_init(p, &l->mlp_norm, &opt, &at, opt.names.mlp_norm, "final_layer_norm");
}

static fv_tensor *decode(fv_ctx *c, const fv_decoder_layer *l, fv_tensor *x, fv_mha_arg self,
                         fv_mha_arg cross)
{
    fv_tensor *h = l->pre_norm ? fv_norm_fwd(c, &l->self_norm, x) : x;
    fv_tensor *a = fv_dropout(c, fv_mha_fwd(c, &l->self, h, self), l->dropout);
    if (l->pre_norm) {
        h = fv_norm_add(c, &l->cross_norm, &x, x, a);
        a = fv_dropout(c, fv_mha_fwd(c, &l->cross, h, cross), l->dropout);
        h = fv_norm_add(c, &l->mlp_norm, &x, x, a);
        return fv_add(c, x, fv_dropout(c, fv_mlp_fwd(c, &l->mlp, h), l->dropout));
    }
    x = fv_norm_add(c, &l->self_norm, NULL, x, a);
    x = fv_norm_add(c, &l->cross_norm, NULL, x,
                    fv_dropout(c, fv_mha_fwd(c, &l->cross, x, cross), l->dropout));
    return fv_norm_add(c, &l->mlp_norm, NULL, x,
                       fv_dropout(c, fv_mlp_fwd(c, &l->mlp, x), l->dropout));
}

fv_tensor *fv_decoder_layer_fwd(fv_ctx *c, const fv_decoder_layer *l, fv_tensor *x, fv_mha_arg self,
                                fv_mha_arg cross)
{
    block *b = recomputed(c, (block){.decoder = l, .self = self, .cross = cross});
    return b ? fv_checkpoint(c, run, b, x) : decode(c, l, x, self, cross);
}

static fv_tensor *run(fv_ctx *c, void *user, fv_tensor *x)
{
    const block *b = user;
    return b->encoder ? encode(c, b->encoder, x, b->self)
                      : decode(c, b->decoder, x, b->self, b->cross);
}

void fv_encoder_layer_pack(fv_params *p, fv_encoder_layer *l, fv_dtype dtype)
{
    fv_mha_pack(p, &l->self, dtype, true);
    fv_mlp_pack(p, &l->mlp, dtype);
}

void fv_decoder_layer_pack(fv_params *p, fv_decoder_layer *l, fv_dtype dtype)
{
    fv_mha_pack(p, &l->self, dtype, true);
    fv_mha_pack(p, &l->cross, dtype, false);
    fv_mlp_pack(p, &l->mlp, dtype);
}
