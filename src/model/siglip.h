/* siglip.h - the two encoders of SigLIP: those of CLIP with other ends. */
#ifndef FV_MODEL_SIGLIP_H
#define FV_MODEL_SIGLIP_H

#include "model/clip.h"

#define FV__SIGLIP_TEXT_FIELDS(at, type, m)                                                        \
    FV__CLIP_LAYER_FIELDS(at, type, m, 768, 12, FV__ACT_GELU_TANH, 1e-6),                          \
        FV__CLIP_TEXT_FIELDS(at, type, m, 32000, 64),                                              \
        FV_INT_KEY(at "projection_size", type, m.projection_dim, 1, 0, 1 << 16,                    \
                   "of a text's vector; not given: hidden_size")
#define FV__SIGLIP_VISION_FIELDS(at, type, m)                                                      \
    FV__CLIP_LAYER_FIELDS(at, type, m, 768, 12, FV__ACT_GELU_TANH, 1e-6),                          \
        FV__CLIP_VISION_FIELDS(at, type, m, "16"),                                                 \
        FV_BOOL_KEY(at "vision_use_head", type, m.vision_use_head, true, "patches are pooled")

typedef struct fv__siglip_text {
    fv__clip_text encoder;
    fv_lin head;
} fv__siglip_text;

typedef struct fv__siglip_vision {
    fv__clip_vision encoder;
    fv_tensor *probe, *in_w, *in_b; /* (1,1,D), and q, k and v in one: (3D,D), (3D) */
    fv_lin out;
    fv_norm norm;
    fv_mlp mlp;
    const char *name; /* of the attention that pools */
} fv__siglip_vision;

void fv__siglip_text_init(fv_params *p, fv__siglip_text *l, const fv__clip_config *k,
                          const char *at);
void fv__siglip_vision_init(fv_params *p, fv__siglip_vision *l, const fv__clip_config *k,
                            const char *at);
void fv__siglip_text_pack(fv_params *p, fv__siglip_text *l, fv_dtype dtype);
void fv__siglip_vision_pack(fv_params *p, fv__siglip_vision *l, fv_dtype dtype);

/* The pooled vectors (B,..); *x gets the hidden states behind the last norm. */
fv_tensor *fv__siglip_text_fwd(fv_ctx *c, const fv__siglip_text *l, const fv_items *in,
                               fv_tensor **x, const char *hidden);
/* NULL where there is no head. */
fv_tensor *fv__siglip_vision_fwd(fv_ctx *c, const fv__siglip_vision *l, fv_tensor *image,
                                 fv_tensor **x, const char *hidden);

#endif
