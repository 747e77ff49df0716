/* kernels.h - the table of kernels a backend fills; kernel_args.h has the descriptions they are
 * given, backend.h the rules. */
#ifndef FOVEA_AUTHOR_KERNELS_H
#define FOVEA_AUTHOR_KERNELS_H

#include "fovea/author/kernel_args.h"
#include "fovea/author/kernel_decode.h"

typedef struct fv_stream fv_stream;

/* A linear-chain conditional random field: x (B,T,K) scores of labels, trans (K+2,K) a label's
 * score behind each label, at the start and at the end, labels (B,T); a negative one: the
 * position is no part of the chain. */
typedef struct fv_crf {
    const void *x, *trans;
    const int32_t *labels;
    int64_t B, T, K;
} fv_crf;

typedef struct fv_kernels {
    fv_dtype dtype;

    void (*gemm)(fv_stream *s, const fv_gemm *g);
    bool gemm_plus; /* gemm takes a plus, with weights as they are */
    /* c = f'(p) A B, and its columns' sums where these have data; p (m,n,ldc), c may be p.  False:
     * not this product, nothing was done; NULL: none.  Then gemm and unary_bwd_sums do it. */
    bool (*gemm_dact)(fv_stream *s, const fv_gemm *g, fv_unary_op op, const void *p, fv_sink sums);
    /* Lays a weight (n,k) (stored (k,n) if !tb) of dtype st out as dt for gemm's b.  pack_bytes is
     * 0 if it cannot.  st may be dt, one of the quantised: then w is n rows of fv_dtype_row(dt, k)
     * bytes, ld bytes apart.  Rows may be packed in pieces: those from i on, a multiple of
     * FV_PACK_ROWS, begin at pack_bytes(i, k, dt). */
    size_t (*pack_bytes)(int64_t n, int64_t k, fv_dtype dt);
    void (*pack)(fv_stream *s, void *out, fv_dtype dt, const void *w, fv_dtype st, int64_t n,
                 int64_t k, int64_t ld, bool tb);

    void (*unary)(fv_stream *s, fv_unary_op op, void *y, const void *x, int64_t n, float p0,
                  float p1);
    /* dx may be x itself; for relu, tanh and sigmoid x may be y: their gradient is computed from y
     * alone */
    void (*unary_bwd)(fv_stream *s, fv_unary_op op, fv_sink dx, const void *dy, const void *x,
                      const void *y, int64_t n, float p0, float p1);
    /* dp = f'(p) dy of (rows,cols), and the sums of its columns; dp may be p.  NULL: unary_bwd and
     * colsum do it */
    void (*unary_bwd_sums)(fv_stream *s, fv_unary_op op, void *dp, fv_sink sums, const void *dy,
                           const void *p, int64_t rows, int64_t cols);
    void (*binary)(fv_stream *s, fv_binary_op op, void *y, const void *a, const void *b,
                   const fv_walk *w);
    /* y strides are those of dy; where a (or b) has stride 0 its gradient is summed */
    void (*binary_bwd)(fv_stream *s, fv_binary_op op, fv_sink da, fv_sink db, const void *dy,
                       const void *a, const void *b, const fv_walk *w);
    /* y[w.y] (+)= x[w.a] */
    void (*copy)(fv_stream *s, fv_sink y, const void *x, const fv_walk *w);
    void (*fill)(fv_stream *s, void *y, float value, int64_t n);
    /* to y.dtype, any float dtype */
    void (*cast)(fv_stream *s, fv_sink y, const void *x, int64_t n);
    /* y[m,0] += ... over rows: column sums of (rows,cols) */
    void (*colsum)(fv_stream *s, fv_sink y, const void *x, int64_t rows, int64_t cols);
    void (*reduce)(fv_stream *s, fv_reduce_op op, void *y, int32_t *arg, const void *x,
                   int64_t outer, int64_t n, int64_t inner);
    void (*reduce_bwd)(fv_stream *s, fv_reduce_op op, fv_sink dx, const void *dy,
                       const int32_t *arg, int64_t outer, int64_t n, int64_t inner);
    /* largest first, ties to the lower index */
    void (*topk)(fv_stream *s, void *values, int32_t *index, const void *x, int64_t rows,
                 int64_t cols, int64_t k);
    void (*topk_bwd)(fv_stream *s, fv_sink dx, const void *dy, const int32_t *index, int64_t rows,
                     int64_t cols, int64_t k);
    void (*cumsum)(fv_stream *s, fv_sink y, const void *x, int64_t outer, int64_t n, int64_t inner,
                   bool reverse);
    /* y (+)= mask[w.b] ? x[w.a] : value */
    void (*masked_fill)(fv_stream *s, fv_sink y, const void *x, const uint8_t *mask, float value,
                        const fv_walk *w);

    void (*softmax)(fv_stream *s, void *y, const void *x, int64_t rows, int64_t cols, bool log);
    void (*softmax_bwd)(fv_stream *s, fv_sink dx, const void *dy, const void *y, int64_t rows,
                        int64_t cols, bool log);
    /* sum (or NULL) gets a + x first and is what is normalised: residual and norm in one pass.  It
     * may be y, which then holds the norm alone; gain, bias may be NULL */
    void (*layernorm)(fv_stream *s, void *y, fv_stat *mean, fv_stat *rstd, void *sum, const void *x,
                      const void *a, const void *gain, const void *bias, int64_t rows, int64_t cols,
                      float eps);
    void (*layernorm_bwd)(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, const void *dy,
                          const void *x, const void *gain, const fv_stat *mean, const fv_stat *rstd,
                          int64_t rows, int64_t cols);
    /* The same and the sums of dx's columns, as they are then.  NULL: layernorm_bwd and colsum do
     * it */
    void (*layernorm_bwd_sums)(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, fv_sink sums,
                               const void *dy, const void *x, const void *gain, const fv_stat *mean,
                               const fv_stat *rstd, int64_t rows, int64_t cols);
    void (*rmsnorm)(fv_stream *s, void *y, fv_stat *rstd, void *sum, const void *x, const void *a,
                    const void *gain, int64_t rows, int64_t cols, float eps);
    void (*rmsnorm_bwd)(fv_stream *s, fv_sink dx, fv_sink dgain, const void *dy, const void *x,
                        const void *gain, const fv_stat *rstd, int64_t rows, int64_t cols);
    /* x (outer,channels,inner); stats: mean and variance of the batch over outer and inner */
    void (*batchnorm_stats)(fv_stream *s, fv_stat *mean, fv_stat *var, const void *x, int64_t outer,
                            int64_t channels, int64_t inner);
    void (*batchnorm)(fv_stream *s, void *y, const void *x, const fv_stat *mean, const fv_stat *var,
                      const void *gain, const void *bias, int64_t outer, int64_t channels,
                      int64_t inner, float eps);
    /* batch: the statistics came from x itself, so they have gradients too */
    void (*batchnorm_bwd)(fv_stream *s, fv_sink dx, fv_sink dgain, fv_sink dbias, const void *dy,
                          const void *x, const fv_stat *mean, const fv_stat *var, const void *gain,
                          int64_t outer, int64_t channels, int64_t inner, float eps, bool batch);
    void (*dropout)(fv_stream *s, fv_sink y, const void *x, int64_t n, float p, fv_rng rng);

    /* y[i] = table[ids[i]]; table is (vocab,d) of dtype tt.  An id outside 0..vocab-1 fails the
     * stream. */
    void (*gather)(fv_stream *s, void *y, const void *table, fv_dtype tt, const int32_t *ids,
                   int64_t n, int64_t vocab, int64_t d);
    /* rows of dtable that no id names are left alone when adding, zeroed when not; skip: an id
     * without gradient, or -1 */
    void (*gather_bwd)(fv_stream *s, fv_sink dtable, const void *dy, const int32_t *ids, int64_t n,
                       int64_t vocab, int64_t d, int32_t skip);
    /* loss[r] = (1-smooth) * (lse - x[label]) + smooth * (lse - mean(x)); 0 where label ==
     * ignore */
    void (*cross_entropy)(fv_stream *s, fv_stat *loss, fv_stat *lse, const void *x,
                          const int32_t *labels, int64_t rows, int64_t vocab, float smooth,
                          int32_t ignore);
    void (*cross_entropy_bwd)(fv_stream *s, fv_sink dx, const fv_stat *dloss, const fv_stat *lse,
                              const void *x, const int32_t *labels, int64_t rows, int64_t vocab,
                              float smooth, int32_t ignore);
    /* loss as cross_entropy's, of x (rows,vocab) whose rows are `step` elements apart; x becomes
     * its gradient for a dloss of 1 in each row, and 0 between vocab and step.  scale_rows: y[r,:]
     * (+)= scale[r] * x[r,:].  Devices may have neither. */
    void (*cross_entropy_fused)(fv_stream *s, fv_stat *loss, void *x, const int32_t *labels,
                                int64_t rows, int64_t vocab, int64_t step, float smooth,
                                int32_t ignore);
    void (*scale_rows)(fv_stream *s, fv_sink y, const void *x, const fv_stat *scale, int64_t rows,
                       int64_t cols);
    /* x (2,rows,vocab): logits of p[r] and, rows further on, of q[r].  y[r] = KL(p||q) + KL(q||p);
     * kept (4,rows) gets what the gradient reads: the log-sum-exp of both, KL(p||q), KL(q||p) */
    void (*symmetric_kl)(fv_stream *s, fv_stat *y, fv_stat *kept, const void *x, int64_t rows,
                         int64_t vocab);
    void (*symmetric_kl_bwd)(fv_stream *s, fv_sink dx, const fv_stat *dy, const fv_stat *kept,
                             const void *x, int64_t rows, int64_t vocab);

    /* ---- ids, (rows,cols) ----
     * shift: y[r,t] = x[r,t+by], or edge where that is outside of the row; then `to` for every
     * `from`
     * positions: first, first+1, ... along each row; skip stays skip and is not counted, where
     * there is x
     * find_index: y[r] = r*cols + the t that `what` describes */
    void (*shift)(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols,
                  int64_t by, int32_t edge, int32_t from, int32_t to);
    void (*positions)(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols,
                      int32_t first, int32_t skip);
    void (*find_index)(fv_stream *s, int32_t *y, const int32_t *x, int64_t rows, int64_t cols,
                       int32_t id, fv_find what);

    void (*im2col)(fv_stream *s, void *col, const void *x, const fv_conv_geom *g);
    void (*col2im)(fv_stream *s, fv_sink x, const void *col, const fv_conv_geom *g);
    /* channels apart, strides of 1: y[b,c,p,q] = sum of w[c,i,j] x[b,c,p-ph+i*dh,q-pw+j*dw], w read
     * backwards if flip, which is the gradient of x; depthwise_dw is that of w (channels,kh,kw) */
    void (*depthwise)(fv_stream *s, fv_sink y, const void *x, const void *w, const fv_conv_geom *g,
                      bool flip);
    void (*depthwise_dw)(fv_stream *s, fv_sink dw, const void *dy, const void *x,
                         const fv_conv_geom *g);
    /* (planes,h,w) -> (planes,oh,ow), bilinear, corners not aligned */
    void (*bilinear)(fv_stream *s, void *y, const void *x, int64_t planes, int64_t h, int64_t w,
                     int64_t oh, int64_t ow);
    void (*bilinear_bwd)(fv_stream *s, fv_sink dx, const void *dy, int64_t planes, int64_t h,
                         int64_t w, int64_t oh, int64_t ow);

    /* rotates pairs of the first 2*half of each head of x (B,T,H*W) by pos[b*T+t] * freq[i]; pairs
     * are (i, i+half), or (2i, 2i+1) if adjacent.  back turns the other way, which is the
     * gradient. */
    void (*rope)(fv_stream *s, fv_sink y, const void *x, const int32_t *pos, const float *freq,
                 int64_t B, int64_t T, int64_t H, int64_t W, int64_t half, bool adjacent,
                 bool back);
    /* lp (B,T,U+1,V) log-probabilities; labels (B,U); tlen, ulen (B).  alpha is scratch (B,T,U+1)
     * kept for the gradient */
    void (*rnnt)(fv_stream *s, fv_stat *loss, fv_stat *alpha, const void *lp, const int32_t *labels,
                 const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T, int64_t U1,
                 int64_t V, int32_t blank);
    void (*rnnt_bwd)(fv_stream *s, fv_sink dlp, const fv_stat *dloss, const fv_stat *loss,
                     const fv_stat *alpha, const void *lp, const int32_t *labels,
                     const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T, int64_t U1,
                     int64_t V, int32_t blank);
    /* lp (B,T,V); labels (B,U); tlen, ulen (B); alpha (B,T,2U+1), likewise */
    void (*ctc)(fv_stream *s, fv_stat *loss, fv_stat *alpha, const void *lp, const int32_t *labels,
                const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T, int64_t U,
                int64_t V, int32_t blank);
    void (*ctc_bwd)(fv_stream *s, fv_sink dlp, const fv_stat *dloss, const fv_stat *loss,
                    const fv_stat *alpha, const void *lp, const int32_t *labels,
                    const int32_t *tlen, const int32_t *ulen, int64_t B, int64_t T, int64_t U,
                    int64_t V, int32_t blank);

    /* loss (B); alpha (B,T,K) is kept for the gradient, pairs (B,K+2,K) is scratch of it */
    void (*crf)(fv_stream *s, fv_stat *loss, fv_stat *alpha, const fv_crf *a);
    void (*crf_bwd)(fv_stream *s, fv_sink dx, fv_sink dtrans, const fv_stat *dloss,
                    const fv_stat *alpha, fv_stat *pairs, const fv_crf *a);

    void (*attention)(fv_stream *s, const fv_attn_args *a);
    void (*attention_bwd)(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g);
    /* exact weights, before dropout, of rows [i0,i1) of one head: w (i1-i0,Tk), from q, k and lse,
     * rounded once */
    void (*attention_weights)(fv_stream *s, fv_sink w, const fv_attn_args *a, int64_t b, int64_t h,
                              int64_t i0, int64_t i1);
    /* cache (B,cap,D), positions `row` elements apart and sequences `batch`: row pos[b]+t of
     * sequence b becomes x[b,t] */
    void (*cache_write)(fv_stream *s, void *cache, const void *x, const int32_t *pos, int64_t B,
                        int64_t T, int64_t cap, int64_t D, int64_t row, int64_t batch);

    /* w is the f32 master; copy (table dtype, or NULL) receives the rounded result, and ema (or
     * NULL) follows it */
    void (*adamw)(fv_stream *s, float *w, float *m, float *v, float *ema, void *copy,
                  const float *grad, int64_t n, const fv_adamw *o);
    /* sum of squares, added up in f64 */
    void (*sumsq)(fv_stream *s, float *out, const void *x, int64_t n);
    /* the norm of the gradient from its sum of squares, the scale that limits it to `most` (0: no
     * limit), and whether all is finite; result[index] gets loss and norm */
    void (*clip_norm)(fv_stream *s, fv_update *u, const float *sumsq, float most,
                      float (*result)[2]);

    /* ---- NULL where general kernels do it ---- */
    /* false: not with these sizes, and nothing was done */
    bool (*fused_linear)(fv_stream *s, const fv_fused_linear *a);
    bool fused_linear_gates; /* fused_linear takes `up` and `rope` */
    bool (*fused_heads)(fv_stream *s, const fv_fused_heads *a); /* false: likewise */
    bool (*embed)(fv_stream *s, const fv_embed *a);             /* false: likewise */
    bool (*sample)(fv_stream *s, const fv_sample *a);
    void (*beams)(fv_stream *s, const fv_beams *a);
    /* in every cache, as if all at once; moves and caches are in host memory */
    void (*move_rows)(fv_stream *s, const fv_cache_rows *cache, int64_t n_caches,
                      const fv_cache_move *m, int64_t n);
    /* sumsq of each chunk of x, the last one shorter, with the bits of one call for each; all:
     * their sum in f64, from the first to the last */
    void (*sumsq_chunks)(fv_stream *s, float *sums, float *all, const float *x, int64_t n,
                         int64_t chunk);
    /* y (out,in), of the table's dtype: the numbers that rows of FV_Q8 or FV_Q4 stand for (the
     * layout of files, fv_dtype_row) */
    void (*widen_blocks)(fv_stream *s, void *y, fv_dtype t, const void *rows, int64_t out,
                         int64_t in);
    /* in any order; list in host memory */
    void (*copy_many)(fv_stream *s, const fv_copy *list, int64_t n);
    /* attention_weights of many rows, with the same bits; jobs in device memory, so that a captured
     * step can be replayed with others */
    void (*attention_rows)(fv_stream *s, float *out, const fv_attn_args *a,
                           const fv_weights_job *jobs, int64_t n);
    /* sigma (1) = u' w v of w (rows,cols); renew: first a round of power iteration, v = unit(w' u)
     * and u = unit(w v), lengths not below eps.  The copies are of the u and v that sigma was made
     * with, for the gradient.  false: not with these sizes, and nothing was done */
    bool (*spectral_sigma)(fv_stream *s, void *sigma, void *u_copy, void *v_copy, void *u, void *v,
                           const void *w, int64_t rows, int64_t cols, float eps, bool renew);
    /* dw[r,c] (+)= dsigma u[r] v[c] */
    void (*spectral_sigma_bwd)(fv_stream *s, fv_sink dw, const void *dsigma, const void *u,
                               const void *v, int64_t rows, int64_t cols);
} fv_kernels;

#endif
