/* dispatch.h - the implementations of attention that dispatch.cu chooses from: cuDNN's, and
 * ours. */
#ifndef FV_CUDA_ATTENTION_DISPATCH_H
#define FV_CUDA_ATTENTION_DISPATCH_H

#include "backend/cuda/device/cuda.h"

/* Portable: fwd.cu, bwd.cu. */
template <class T> void fv_cuda_attention_tiled(fv_stream *s, const fv_attn_args *a);
/* hopper: gradients of a bias or table by the Hopper kernels, where TMA can address the tensors. */
template <class T>
void fv_cuda_attention_tiled_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g,
                                 bool hopper);

/* Hopper: fwd_sm90.cu, bwd_sm90.cu; the latter leaves out gradients of a bias or table.  False,
 * here and below: TMA cannot address these tensors. */
template <class T> bool fv_cuda_attention_hopper(fv_stream *s, const fv_attn_args *a);
template <class T>
bool fv_cuda_attention_hopper_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g);

/* bwd_smem_sm90.cu: heads up to 64 wide, PLAIN. */
template <class T>
bool fv_cuda_attention_bwd_smem(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g);
/* its blocks fill at least three in four SMs */
bool fv_cuda_attention_bwd_smem_fills(const device *d, const fv_attn_args *a);

/* fwd_short_sm90.cu: up to 128 queries and keys. */
template <class T> bool fv_cuda_attention_short(fv_stream *s, const fv_attn_args *a);

/* bwd_short.cu: up to 128 queries and keys, as many heads of keys as of queries, up to 64 wide, no
 * mask or bias by pairs. */
template <class T>
bool fv_cuda_attention_short_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g);

/* decode.cu, decode_f32.cu: one query per sequence.  False: not a case for it. */
template <class T> bool fv_cuda_attention_decode(fv_stream *s, const fv_attn_args *a);
bool fv_cuda_attention_decode_f32(fv_stream *s, const fv_attn_args *a);

/* cudnn.cu.  False where there is no cuDNN, or it has no engine for the shape. */
bool fv_cuda_cudnn_fwd(fv_stream *s, const fv_attn_args *a, fv_dtype t);
/* deterministic: the same bits each time, which takes scratch for all scores, 2 bytes each.
 * y_row: elements from one row of y and dy to the next; a slice of heads has the rows of all of
 * them. */
bool fv_cuda_cudnn_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g, int64_t y_row,
                       fv_dtype t, bool deterministic);

#endif
