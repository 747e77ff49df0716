/* position.h - layers that tell attention where things stand: added to the input, by distance, or
 * by rotation.
 *
 * They follow the rules of nn.h, which includes this. */
#ifndef FOVEA_AUTHOR_POSITION_H
#define FOVEA_AUTHOR_POSITION_H

#include "fovea/author/ops.h"
#include "fovea/author/params.h"

/* ---- positions that are added: path.weight (rows,width) ---- */

typedef enum fv_pos_kind {
    FV_POS_LEARNED = 0,
    FV_POS_PAIRS, /* sin and cos of pos / 10000^(2i/width), side by side, as in the paper */
    FV_POS_HALVES /* all sines, then all cosines, as Marian and Transformer-XL have them */
} fv_pos_kind;

typedef struct fv_pos {
    fv_tensor *table;
    fv_pos_kind kind;
    int64_t offset;
} fv_pos;

/* offset: row of position 0 (2 in BART and RoBERTa); std: of a learned table's first values.
 * Sinusoids are a buffer: declared, never trained, and computed by fv_pos_fill, once, after
 * fv_params_alloc and after any file was read (learned tables it leaves alone). */
FV_API void fv_pos_init(fv_params *p, fv_pos *l, int64_t rows, int64_t width, fv_pos_kind kind,
                        int64_t offset, float std, const char *path, ...) FV_PRINTF(8, 9);
FV_API fv_status fv_pos_fill(fv_params *p, const fv_pos *l, fv_err *e);
/* x (B,T,width) plus its positions: 0..T-1, or the table's rows I32 (B,T) where given. */
FV_API fv_tensor *fv_pos_fwd(fv_ctx *c, const fv_pos *l, fv_tensor *x, fv_tensor *rows);

/* ---- positions by distance: tables for fv_attn's rel ---- */

/* T5: path.weight (buckets,n_head), shared by all layers of a stack. */
typedef struct fv_rel_bias {
    fv_tensor *table;
    int64_t max_distance;
    bool unidirectional;
} fv_rel_bias;

/* farthest: distances from there on share a bucket (128); unidirectional: a decoder's, which never
 * looks ahead. */
FV_API void fv_rel_bias_init(fv_params *p, fv_rel_bias *l, int64_t buckets, int64_t n_head,
                             int64_t max_distance, bool unidirectional, const char *path, ...)
    FV_PRINTF(7, 8);
/* (n_head,L) for sequences of any length; *zero gets rel_zero. */
FV_API fv_tensor *fv_rel_bias_fwd(fv_ctx *c, const fv_rel_bias *l, int64_t *zero);
/* The bucket of key - query, of `buckets`, as T5 counts them. */
FV_API int32_t fv_rel_bucket(int64_t distance, int64_t buckets, int64_t max_distance,
                             bool unidirectional);

/* ALiBi: -slope * distance for each head, up to distance len-1; both ways, or (H,len) for causal
 * attention. */
FV_API fv_tensor *fv_alibi(fv_ctx *c, fv_dtype t, int64_t n_head, int64_t len, bool causal,
                           int64_t *zero);
FV_API float fv_alibi_slope(int64_t head, int64_t n_head);

/* ---- rotary positions ---- */

typedef enum fv_rotary_kind {
    FV_ROTARY_PLAIN = 0,
    FV_ROTARY_LINEAR,  /* all frequencies divided by factor */
    FV_ROTARY_DYNAMIC, /* the base grows with the length, once beyond `trained` */
    FV_ROTARY_YARN,
    FV_ROTARY_LLAMA3,
    FV_ROTARY_LONG /* a divisor of each frequency, by whether the length is beyond `trained` */
} fv_rotary_kind;

typedef struct fv_rotary {
    fv_rotary_kind kind;
    int64_t width; /* how much of a head is turned; an even number, at most 512 */
    bool adjacent; /* pairs (2i,2i+1), else (i,i+width/2) */
    float base;    /* 0: 10000 */
    float factor;  /* of the longer context */
    /* positions before that (yarn, llama3, longrope: original_max_position_embeddings) */
    int64_t trained;
    /* llama3: low_freq_factor, high_freq_factor (0: 1, 4); yarn: beta_slow, beta_fast (0: 1, 32) */
    float low, high;
    /* yarn's and longrope's attention_factor; 0: 0.1 ln(factor) + 1, and for longrope
     * sqrt(1 + ln(factor) / ln(trained)) */
    float attention_factor;
    bool no_truncate; /* yarn: bounds of the ramp are not rounded */
    /* longrope: width/2 divisors each, up to `trained` positions and beyond; they live as long */
    const float *short_factor, *long_factor;
} fv_rotary;

/* What a step needs: frequencies on the device, beside the positions I32 (B,T).  len: positions in
 * use, for dynamic and longrope. */
typedef struct fv_rope_arg {
    fv_tensor *pos, *freq;
    bool adjacent;
    /* multiplies the rotated part of q and of k (yarn, longrope); 0: 1 */
    float attention_factor;
    /* a cache holds keys as they are, and they are rotated when they are read: longrope rotates all
     * of them anew when a sequence grows beyond `trained` */
    bool at_read;
} fv_rope_arg;

/* Whether frequencies change with the length of a sequence. */
FV_API bool fv_rotary_grows(const fv_rotary *r);

FV_API void fv_rotary_freqs(const fv_rotary *r, int64_t len, float *freq); /* width/2 of them */
FV_API fv_rope_arg fv_rotary_at(fv_ctx *c, const fv_rotary *r, fv_tensor *pos, int64_t len);
/* The same where each of `rows` sequences has its own len: what one gets does not depend on those
 * beside it. */
FV_API fv_rope_arg fv_rotary_rows(fv_ctx *c, const fv_rotary *r, fv_tensor *pos, const int64_t *len,
                                  int64_t rows);
/* I32 (B,T): from, from+1, ... in every row. */
FV_API fv_tensor *fv_positions(fv_ctx *c, int64_t B, int64_t T, int32_t from);
/* I32 (B,T) from ids (B,T): pad+1, pad+2, ... in every row, over what is no padding; padding gets
 * pad (RoBERTa). */
FV_API fv_tensor *fv_positions_unpadded(fv_ctx *c, fv_tensor *ids, int32_t pad);

#endif
