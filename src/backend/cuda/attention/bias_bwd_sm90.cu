/* bias_bwd_sm90.cu - the gradient of a bias by pairs on Hopper.
 *
 *     dbias_ij = sum of w_ij (keep dy_i.v_j - dy_i.y_i)  over the sequences and heads that it was
 *     repeated for
 *
 * A block owns a tile of the bias and goes through those in order: pairs_sm90.h.  Gradients of
 * queries, keys and values come from another kernel: one that has a tile of keys of a single
 * sequence would have to add up slopes in memory, 4 bytes for each pair and sequence. */
#include "pairs_sm90.h"

/* The n-th tile of the bias, from (i, j) on, and what it adds up: sequences and heads [b, b_end)
 * and [h, h_end). */
template <class P> struct share {
    const job<typename P::T> &o;
    int i, j, b, b_end, h, h_end;
    __device__ share(const job<typename P::T> &job_, int n) : o(job_)
    {
        const fv_attn_args &a = o.a;
        int across = (int)ceil_div(a.Tk, P::KEYS), down = (int)ceil_div(a.Tq, P::QUERIES),
            image = n / across / down;
        bool own_b = a.bias_s[0], own_h = a.bias_s[1];
        int heads = own_h ? (int)a.H : 1;
        i = n / across % down * P::QUERIES;
        j = n % across * P::KEYS;
        b = own_b ? image / heads : 0;
        h = own_h ? image % heads : 0;
        b_end = own_b ? b + 1 : (int)a.B;
        h_end = own_h ? h + 1 : (int)a.H;
    }
    template <class F> __device__ void each(F f) const
    {
        for (int y = b; y < b_end; y++) {
            head<typename P::T> at(o, y, h);
            if (!some(at, i, P::QUERIES, j, P::KEYS)) continue;
            for (at.h = h; at.h < h_end; at.h++) f(at, i, j);
        }
    }
};

/* A strip of sums, from row row0 and key j on, to where rows are `step` apart: laid where its bias
 * was, then in whole lines. */
template <class P, int N>
__device__ inline void write_strip(typename P::T *to, int64_t step, typename P::T *scratch,
                                   const float (&sum)[N][4], int row0, int rows, int j, int keys)
{
    typedef typename P::T T;
    int lane = threadIdx.x % 32, row = lane % 16;
    uint32_t narrowed[N / 2][4];
    pack_fragments(narrowed, sum, T());
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        int eight = n * 2 + lane / 16; /* columns */
        stmatrix_x4(scratch + (eight / 8 * P::QUERIES + row) * PANEL + (eight % 8 ^ row % 8) * 8,
                    narrowed[n]);
    }
    __syncwarp();
    int c = lane % 16;
#pragma unroll
    for (int r = lane / 16; r < 16; r += 2) {
        const uint4 *from = (const uint4 *)(scratch + (c / 8 * P::QUERIES + r) * PANEL +
                                            (c % 8 ^ r % 8) * 8);
        if (row0 + r < rows && j + c * 8 < keys)
            *(uint4 *)(to + (row0 + r) * step + j + c * 8) = *from;
    }
    fence_async_proxy(); /* which brings the next bias there */
}

template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    grad_bias_wgmma(const __grid_constant__ job<typename P::T> o,
                    const __grid_constant__ tensor_maps of, const float2 *stat,
                    sink<typename P::T> dbias, int items, bool lines)
{
    typedef typename P::T T;
    extern __shared__ __align__(1024) unsigned char memory[];
    auto item = [&](int n) { return share<P>(o, n); };
    run_block<P>(memory, &of, o, stat, items, item,
                 [&](int n, const auto &sum, T *scratch, int group) {
                     share<P> mine(o, n);
                     int64_t base = mine.b * o.a.bias_s[0] + mine.h * o.a.bias_s[1];
                     int row0 = mine.i + group * 64 + (int)threadIdx.x / 32 % 4 * 16,
                         rows = (int)o.a.Tq, keys = (int)o.a.Tk;
                     if (lines && scratch)
                         write_strip<P>((T *)dbias.p + base, o.a.bias_s[2], scratch, sum, row0,
                                        rows, mine.j, keys);
                     else
                         write_rows(dbias, base + mine.j, o.a.bias_s[2], sum, row0, rows,
                                    min(P::KEYS, keys - mine.j), 1);
                 });
}

template <class P>
static bool start(fv_stream *s, const job<typename P::T> &o, const fv_attn_grads *g,
                  const float2 *stat)
{
    typedef typename P::T T;
    const fv_attn_args &a = o.a;
    tensor_maps of;
    if (!tensor_map_pairs<P>(&of, o, g)) return false;
    int64_t images = (a.bias_s[0] ? a.B : 1) * (a.bias_s[1] ? a.H : 1);
    int64_t items = images * ceil_div(a.Tk, P::KEYS) * ceil_div(a.Tq, P::QUERIES);
    sink<T> dbias = to<T>(g->dbias);
    bool lines = !dbias.wide && !dbias.add && aligned(dbias.p) && a.Tk % 8 == 0;
    launch(s, "attention_bwd", grad_bias_wgmma<P>, grid_of(s, items), P::BLOCK_THREADS, P::BYTES, o,
           of, stat, dbias, (int)items, lines);
    return true;
}

template <class T>
bool fv_cuda_bias_hopper(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const float2 *stat)
{
    if (!biased(o)) return false;
    bool narrow_heads = o.a.Wk <= 64 && o.a.Wv <= 64;
    return narrow_heads ? start<traits<T, 64, true>>(s, o, g, stat)
                        : start<traits<T, 128, true>>(s, o, g, stat);
}

template bool fv_cuda_bias_hopper<bf16>(fv_stream *, const job<bf16> &, const fv_attn_grads *,
                                        const float2 *);
template bool fv_cuda_bias_hopper<f16>(fv_stream *, const job<f16> &, const fv_attn_grads *,
                                       const float2 *);
