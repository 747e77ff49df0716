/* heads.cu - norms and rotations of the heads of a decode step, between its product and attention:
 * one warp for a head.  On Hopper it is an op of the megakernel instead (fv_cuda_defer). */
#include "heads.h"

namespace
{

#define WARPS 4

template <int E>
__global__ void __launch_bounds__(32 * WARPS)
    fused_heads_kernel(const __grid_constant__ heads_job j)
{
    const fv_fused_heads &a = j.a;
    int heads = a.H + 2 * a.G;
    int64_t unit = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = unit / heads;
    pdl_launch_dependents();
    pdl_wait();
    if (row >= a.rows) return;
    const head_unit u(a, (int)(unit % heads));
    head_values<E> w;
    w.prefetch(a, u, [&](int i) {
        return rotation(a.rope.pos[row], a.rope.freq[row * a.rope.freq_row + i]);
    });
    const float *x = a.x + row * heads * a.W + u.column + w.first();
#pragma unroll
    for (int e = 0; e < E; e += 2) {
        float2 pair = *(const float2 *)(x + e);
        w.v[e] = pair.x, w.v[e + 1] = pair.y;
    }
    w.finish(a);
    w.store(j, u, row, a.pos[row], true);
}

template <int E> void start(fv_stream *s, const heads_job &j)
{
    int64_t warps = j.a.rows * (j.a.H + 2 * j.a.G);
    launch_pdl(s, "fused_heads", j.a.rows <= PDL_MAX_ROWS, fused_heads_kernel<E>,
               dim3((unsigned)ceil_div(warps, WARPS)), 32 * WARPS, 0, j);
}

/* The kernel table's entry; false: another width or alignment. */
bool fused_heads(fv_stream *s, const fv_fused_heads *a)
{
    int each = a->W / 32;
    bool can = a->W % 64 == 0 && a->W <= 256 && (a->yt == FV_F32 || a->yt == FV_BF16) &&
               (!a->rope.freq || a->rope.half % each == 0) &&
               (int64_t)(a->H + 2 * a->G) * a->W < INT32_MAX && a->cap <= INT32_MAX &&
               a->cache_row % 2 == 0 && a->cache_batch % 2 == 0 &&
               aligned(a->x, a->y, a->k_cache, a->v_cache);
    if (!can || s->err.code || !a->rows) return can;
    heads_job j = {*a, faults_of(s) + FAULT_CACHE};
    if (fv_cuda_defer(s, j)) return true;
    switch (each) {
    case 2: start<2>(s, j); break;
    case 4: start<4>(s, j); break;
    case 6: start<6>(s, j); break;
    default: start<8>(s, j); break;
    }
    return true;
}
} // namespace

/* In the f32 table alone: x is f32. */
template <class T> void fv_cuda_heads(fv_kernels *k)
{
    if (kind<T>::dtype == FV_F32) k->fused_heads = fused_heads;
}
FOR_ALL_DTYPES(fv_cuda_heads)
