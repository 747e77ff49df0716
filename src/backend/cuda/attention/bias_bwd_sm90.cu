/* bias_bwd_sm90.cu - the gradient of a dense bias on Hopper.
 *
 *     dbias_ij = sum of w_ij (keep dy_i.v_j - dy_i.y_i)
 *                over the sequences and heads that it is broadcast to
 *
 * A work item is a tile of the bias, and sums over those in order: pairs_sm90.h.  dq, dk and dv
 * come from bwd_sm90.cu: its blocks have the keys of a single sequence, and would have to add ds
 * in global memory, 4 bytes for each pair and sequence. */
#include "pairs_sm90.h"

namespace
{
/* Work item n: the bias tile from (i, j) on, and the sequences [b, b_end) and heads [h, h_end)
 * that are summed. */
template <class P> struct bias_item {
    const attn_params<typename P::T> &attn;
    int i, j, b, b_end, h, h_end;
    __device__ bias_item(const attn_params<typename P::T> &params, int n) : attn(params)
    {
        const fv_attn_args &a = attn.a;
        int across = (int)ceil_div(a.Tk, P::KEYS), down = (int)ceil_div(a.Tq, P::QUERIES),
            plane = n / across / down;
        bool own_b = a.bias_s[0], own_h = a.bias_s[1];
        int heads = own_h ? (int)a.H : 1;
        i = n / across % down * P::QUERIES;
        j = n % across * P::KEYS;
        b = own_b ? plane / heads : 0;
        h = own_h ? plane % heads : 0;
        b_end = own_b ? b + 1 : (int)a.B;
        h_end = own_h ? h + 1 : (int)a.H;
    }
    template <class F> __device__ void each(F f) const
    {
        for (int y = b; y < b_end; y++) {
            head_view<typename P::T> head(attn, y, h);
            if (!any_visible(head, i, P::QUERIES, j, P::KEYS)) continue;
            for (head.h = h; head.h < h_end; head.h++) f(head, i, j);
        }
    }
};

template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    grad_bias_wgmma(const __grid_constant__ attn_params<typename P::T> attn,
                    const __grid_constant__ pairs_maps maps, const float2 *stat,
                    sink<typename P::T> dbias, int items, bool coalesced)
{
    typedef typename P::T T;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto item = [&](int n) { return bias_item<P>(attn, n); };
    run_block<P>(memory, &maps, attn, stat, items, item,
                 [&](int n, const auto &sum, T *scratch, int group) {
                     bias_item<P> own(attn, n);
                     int64_t base = own.b * attn.a.bias_s[0] + own.h * attn.a.bias_s[1];
                     int row0 = own.i + group * 64 + (int)threadIdx.x / 32 % 4 * 16,
                         rows = (int)attn.a.Tq, keys = (int)attn.a.Tk;
                     if (coalesced && scratch) {
                         write_rows_coalesced<P::QUERIES, P::KEYS>((T *)dbias.p + base + own.j,
                                                                   attn.a.bias_s[2], scratch, 0,
                                                                   sum, row0, rows, keys - own.j,
                                                                   1);
                         fence_async_proxy(); /* ahead of TMA, which loads the next bias there */
                     } else
                         write_rows(dbias, base + own.j, attn.a.bias_s[2], sum, row0, rows,
                                    min(P::KEYS, keys - own.j), 1);
                 });
}

template <class P>
bool start(fv_stream *s, const attn_params<typename P::T> &attn, const fv_attn_grads *g,
           const float2 *stat)
{
    typedef typename P::T T;
    const fv_attn_args &a = attn.a;
    pairs_maps maps;
    if (!make_pairs_maps<P>(&maps, attn, g)) return false;
    int64_t images = (a.bias_s[0] ? a.B : 1) * (a.bias_s[1] ? a.H : 1);
    int64_t items = images * ceil_div(a.Tk, P::KEYS) * ceil_div(a.Tq, P::QUERIES);
    sink<T> dbias = to<T>(g->dbias);
    bool coalesced = !dbias.wide && !dbias.add && aligned(dbias.p) && a.Tk % 8 == 0;
    launch(s, "attention_bwd", grad_bias_wgmma<P>, persistent_grid(s, items), P::BLOCK_THREADS,
           smem_bytes<pairs_layout<P>>(), attn, maps, stat, dbias, (int)items, coalesced);
    return true;
}

} // namespace

template <class T>
bool fv_cuda_bias_hopper(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g,
                         const float2 *stat)
{
    if (!has_tma_bias(attn)) return false;
    bool narrow_heads = attn.a.Wk <= 64 && attn.a.Wv <= 64;
    return narrow_heads ? start<pairs_config<T, 64, true>>(s, attn, g, stat)
                        : start<pairs_config<T, 128, true>>(s, attn, g, stat);
}

template bool fv_cuda_bias_hopper<bf16>(fv_stream *, const attn_params<bf16> &,
                                        const fv_attn_grads *, const float2 *);
template bool fv_cuda_bias_hopper<f16>(fv_stream *, const attn_params<f16> &, const fv_attn_grads *,
                                       const float2 *);
