/* layer.c - the layers of an encoder and of a decoder, with the norm before or after each part. */
#include "helper/layer.h"

#include "core/core.h"
#include "nn/part.h"

/* Names without a default of their own fall back on BART's. */
static void norm_init(fv_params *p, fv_norm *l, const fv_layer_opt *o, const fv_path *at,
                      const char *name, const char *otherwise)
{
    fv_norm_init(p, l, o->width, o->norm, "%s", fv__below(at, name, otherwise).s);
}

static void mlp_init(fv_params *p, fv_mlp *l, const fv_layer_opt *o, const fv_path *at)
{
    fv_mlp_init(p, l, o->width, o->hidden, o->mlp, "%s", fv__below(at, o->names.mlp, "").s);
}

static void self_init(fv_params *p, fv_mha *l, const fv_layer_opt *o, const fv_path *at)
{
    fv_mha_init(p, l, o->width, o->n_head, o->mha, "%s",
                fv__below(at, o->names.self, "self_attn").s);
}

static void cross_init(fv_params *p, fv_mha *l, const fv_layer_opt *o, const fv_path *at)
{
    fv_mha_opt cross = o->mha;
    if (cross.names && fv__names(cross.names) == 2) cross.names = NULL;
    fv_mha_init(p, l, o->width, o->n_head, cross, "%s",
                fv__below(at, o->names.cross, "encoder_attn").s);
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

static fv_tensor *encode(fv_ctx *c, const void *layer, fv_tensor *x, fv_mha_arg self,
                         fv_mha_arg cross)
{
    (void)cross;
    const fv_encoder_layer *l = layer;
    if (l->pre_norm && l->self_norm.gain)
        return fv_pre_norm(c, &l->self_norm, &l->self, &l->mlp_norm, &l->mlp, x, self, l->dropout);
    if (l->pre_norm) {
        fv_tensor *h = fv_mha_add_norm(c, &l->self, &x, x, self, l->dropout, &l->mlp_norm);
        return fv_mlp_add(c, &l->mlp, x, h, l->dropout);
    }
    x = fv_norm_add(c, &l->self_norm, NULL, x,
                    fv_dropout(c, fv_mha_fwd(c, &l->self, x, self), l->dropout));
    return fv_mlp_norm(c, &l->mlp, x, l->dropout, &l->mlp_norm);
}

fv_tensor *fv_encoder_layer_fwd(fv_ctx *c, const fv_encoder_layer *l, fv_tensor *x, fv_mha_arg self)
{
    return fv_layer_run(c, encode, l, x, self, (fv_mha_arg){0});
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

static fv_tensor *decode(fv_ctx *c, const void *layer, fv_tensor *x, fv_mha_arg self,
                         fv_mha_arg cross)
{
    const fv_decoder_layer *l = layer;
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
    return fv_layer_run(c, decode, l, x, self, cross);
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
