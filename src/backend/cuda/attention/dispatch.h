/* dispatch.h - the kernels that attention may run on: cuDNN's, and our own. */
#ifndef FV_CUDA_ATTENTION_DISPATCH_H
#define FV_CUDA_ATTENTION_DISPATCH_H

#include "backend/cuda/device/cuda.h"

/* Our own tiled kernels: fwd.cu, bwd.cu. */
template <class T> void fv_cuda_attention_tiled(fv_stream *s, const fv_attn_args *a);
/* hopper: the gradient of a bias on that chip's own instructions, where it can be read by them. */
template <class T>
void fv_cuda_attention_tiled_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g,
                                 bool hopper);

/* The same with what only Hopper has: fwd_sm90.cu, bwd_sm90.cu, which leaves out the gradients of
 * what is added to scores.  False where the copy engine cannot read these tensors. */
template <class T> bool fv_cuda_attention_hopper(fv_stream *s, const fv_attn_args *a);
template <class T>
bool fv_cuda_attention_hopper_bwd(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g);

/* The gradients of heads up to 64 wide, nothing added to scores, no dropout: bwd_smem_sm90.cu.
 * False: likewise. */
template <class T>
bool fv_cuda_attention_bwd_smem(fv_stream *s, const fv_attn_args *a, const fv_attn_grads *g);
/* at least three in four multiprocessors */
bool fv_cuda_attention_bwd_smem_fills(const device *d, const fv_attn_args *a);

/* Up to 128 queries and keys, on Hopper: fwd_short_sm90.cu.  False: likewise. */
template <class T> bool fv_cuda_attention_short(fv_stream *s, const fv_attn_args *a);

/* One query in each sequence, as writing token by token has it: decode.cu.  False where this is
 * another case. */
template <class T> bool fv_cuda_attention_decode(fv_stream *s, const fv_attn_args *a);

/* cuDNN's: cudnn.cu.  Opened once for a device; NULL: there is none.  Both are false where cuDNN
 * has no kernel for this shape after all. */
struct cudnn_attention;
cudnn_attention *fv_cuda_cudnn_open(device *d);
void fv_cuda_cudnn_free(cudnn_attention *f);
bool fv_cuda_cudnn_fwd(fv_stream *s, cudnn_attention *f, const fv_attn_args *a, fv_dtype t);
/* in_order: the gradients are the same bits each time, which takes room for all scores, 2 bytes
 * each.  y_row: numbers from one row of y and dy to the next, which hold all heads, of which this
 * may be a part. */
bool fv_cuda_cudnn_bwd(fv_stream *s, cudnn_attention *f, const fv_attn_args *a,
                       const fv_attn_grads *g, int64_t y_row, fv_dtype t, bool in_order);
int fv_cuda_cudnn_version(void); /* 91400 for 9.14.0; 0: no cuDNN */

#endif
