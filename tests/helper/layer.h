/* layer.h - whole layers made of the parts of nn, with an option for each way of putting them
 * together: for tests that go through all of these.  Families write their blocks out instead. */
#ifndef HELPER_LAYER_H
#define HELPER_LAYER_H

#include "fovea/author/nn.h"

/* Names below the layer's path; NULL: BART's, which are given here. */
typedef struct fv_layer_names {
    const char *self, *self_norm;   /* self_attn, self_attn_layer_norm */
    const char *cross, *cross_norm; /* encoder_attn, encoder_attn_layer_norm */
    const char *mlp, *mlp_norm; /* "" (fc1 and fc2 stand in the layer itself), final_layer_norm */
} fv_layer_names;

typedef struct fv_layer_opt {
    int64_t width, n_head;
    fv_mha_opt mha; /* of both attentions; where it packs q, k and v, of the first alone */
    int64_t hidden; /* of the feed-forward part */
    fv_mlp_opt mlp;
    fv_norm_opt norm;
    bool pre_norm;     /* x + f(norm(x)), else norm(x + f(x)) */
    bool no_self_norm; /* pre-norm only: x meets the attention as it is */
    float dropout;     /* on what each part adds */
    fv_layer_names names;
} fv_layer_opt;

/* An encoder's layer; with arg.causal also that of a decoder without cross-attention. */
typedef struct fv_encoder_layer {
    fv_mha self;
    fv_norm self_norm, mlp_norm;
    fv_mlp mlp;
    bool pre_norm;
    float dropout;
} fv_encoder_layer;

/* (B,T,width) -> the same. */
void fv_encoder_layer_init(fv_params *p, fv_encoder_layer *l, fv_layer_opt opt, const char *path,
                           ...) FV_PRINTF(4, 5);
fv_tensor *fv_encoder_layer_fwd(fv_ctx *c, const fv_encoder_layer *l, fv_tensor *x,
                                fv_mha_arg self);
void fv_encoder_layer_pack(fv_params *p, fv_encoder_layer *l, fv_dtype dtype);

typedef struct fv_decoder_layer {
    fv_mha self, cross;
    fv_norm self_norm, cross_norm, mlp_norm;
    fv_mlp mlp;
    bool pre_norm;
    float dropout;
} fv_decoder_layer;

/* Likewise; cross.memory, or cross.kv, is what the encoder made. */
void fv_decoder_layer_init(fv_params *p, fv_decoder_layer *l, fv_layer_opt opt, const char *path,
                           ...) FV_PRINTF(4, 5);
fv_tensor *fv_decoder_layer_fwd(fv_ctx *c, const fv_decoder_layer *l, fv_tensor *x, fv_mha_arg self,
                                fv_mha_arg cross);
void fv_decoder_layer_pack(fv_params *p, fv_decoder_layer *l, fv_dtype dtype);

#endif
