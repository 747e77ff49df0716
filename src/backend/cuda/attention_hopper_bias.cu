/* attention_hopper_bias.cu - the gradient of a bias by pairs on Hopper.
 *
 *     dbias_ij = sum of w_ij (keep dy_i.v_j - dy_i.y_i)  over the sequences and heads that it was repeated for
 *
 * A block owns 128 rows of the bias, 64 for each of two groups of four warps, and a tile of their keys.  It goes through those
 * sequences and heads in order, while a group of its own brings their tiles, and keeps the sums in registers.  Gradients of
 * queries, keys and values come from another kernel: one that has a tile of keys of a single sequence would have to add up slopes
 * in memory, 4 bytes for each pair and sequence. */
#include "attention_bias.h"
#include "attention_grads.h"

template <class T_, int W_> struct plan {
    typedef T_ T;
    static constexpr int W = W_, GROUPS = 2, QUERIES = 64 * GROUPS, KEYS = W == 64 ? 128 : 64, STAGES = 2;
    static constexpr int THREADS_ALL = 128 * (GROUPS + 1), REGISTERS = 240, SPARE_REGISTERS = 24;
    static constexpr int TILE = 2 * (QUERIES + KEYS) * W; /* queries, dy, keys, values */
    static constexpr size_t BYTES = 1024 + (STAGES * TILE + QUERIES * KEYS) * sizeof(T) + (1 + 2 * STAGES) * sizeof(uint64_t);
};

struct maps {
    attention_maps in;
    CUtensorMap dy, bias;
};

/* The pairs of a block, and what it adds up: sequences and heads [b, b_end) and [h, h_end). */
struct share {
    int i, j, b, b_end, h, h_end;
    __device__ share(const fv_attn_args &a, int queries, int keys)
    {
        bool own_b = a.bias_s[0], own_h = a.bias_s[1];
        int heads = own_h ? (int)a.H : 1;
        i = (int)blockIdx.y * queries;
        j = (int)blockIdx.x * keys;
        b = own_b ? (int)blockIdx.z / heads : 0;
        h = own_h ? (int)blockIdx.z % heads : 0;
        b_end = own_b ? b + 1 : (int)a.B;
        h_end = own_h ? h + 1 : (int)a.H;
    }
    /* f(head) for all in which some pair takes part; all threads see the same. */
    template <class P, class F> __device__ void each(const job<typename P::T> &o, F f) const
    {
        for (int y = b; y < b_end; y++)
            for (int x = h; x < h_end; x++) {
                head<typename P::T> at(o, y, x);
                if (j < at.last_key(i, P::QUERIES) && j + P::KEYS > at.first(i)) f(at);
            }
    }
};

template <class P>
__global__ void __launch_bounds__(P::THREADS_ALL, 1)
    grad_bias_wgmma(const __grid_constant__ job<typename P::T> o, const __grid_constant__ maps of, const float2 *stat,
                    sink<typename P::T> dbias)
{
    typedef typename P::T T;
    constexpr int W = P::W, N = P::KEYS / 8;
    extern __shared__ unsigned char memory[];
    T *tiles = (T *)(memory + (1024 - shared_at(memory) % 1024) % 1024), *bias = tiles + P::STAGES * P::TILE;
    uint64_t *bias_full = (uint64_t *)(bias + P::QUERIES * P::KEYS), *full = bias_full + 1, *free = full + P::STAGES;
    if (threadIdx.x == 0) {
        barrier_init(bias_full, 1);
        for (int i = 0; i < P::STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(free + i, 4 * P::GROUPS);
        }
        barriers_ready();
    }
    __syncthreads();
    share mine(o.a, P::QUERIES, P::KEYS);
    int group = group_of() - 1, turn = 0;
    if (group < 0) {
        registers_down<P::SPARE_REGISTERS>();
        if (threadIdx.x > 0) return;
        arrive_expecting(bias_full, P::QUERIES * P::KEYS * sizeof(T));
        for (int j = 0; j < P::KEYS; j += PANEL)
            bring_panel(bias + j * P::QUERIES, &of.bias, bias_full, mine.j + j, mine.h, mine.i, mine.b);
        mine.template each<P>(o, [&](const head<T> &at) {
            T *q = tiles + turn % P::STAGES * P::TILE, *dy = q + P::QUERIES * W, *k = dy + P::QUERIES * W, *v = k + P::KEYS * W;
            uint64_t *come = full + turn % P::STAGES;
            int g = o.kv_head(at.h);
            if (turn >= P::STAGES) wait_for(free + turn % P::STAGES, (unsigned)(turn / P::STAGES + 1) & 1);
            arrive_expecting(come, P::TILE * sizeof(T));
            for (int w = 0; w < W; w += PANEL) {
                bring_panel(q + w * P::QUERIES, &of.in.q, come, w, at.h, mine.i, at.b);
                bring_panel(k + w * P::KEYS, &of.in.k, come, w, g, mine.j, at.b);
                bring_panel(dy + w * P::QUERIES, &of.dy, come, w, at.h, mine.i, at.b);
                bring_panel(v + w * P::KEYS, &of.in.v, come, w, g, mine.j, at.b);
            }
            turn++;
        });
        return;
    }
    registers_up<P::REGISTERS>();
    int strip = group * 64 + (int)threadIdx.x / 32 % 4 * 16, row0 = mine.i + strip;
    float s[N][4], d[N][4], sum[N][4];
    clear(sum);
    wait_for(bias_full, 0);
    mine.template each<P>(o, [&](const head<T> &at) {
        const T *q = tiles + turn % P::STAGES * P::TILE + group * 64 * PANEL, *dy = q + P::QUERIES * W;
        const T *k = tiles + turn % P::STAGES * P::TILE + 2 * P::QUERIES * W, *v = k + P::KEYS * W;
        float2 known[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = tile_row(row0, r * 2);
            known[r] = i < at.rows ? stat[o.at_lse(at.b, at.h, i)] : make_float2(INFINITY, 0);
        }
        wait_for(full + turn % P::STAGES, (unsigned)(turn / P::STAGES) & 1);
        products_begin();
        multiply_rows<W, P::QUERIES, P::KEYS>(s, q, k);
        products_end();
        multiply_rows<W, P::QUERIES, P::KEYS>(d, dy, v);
        products_end();
        products_done<1>();
#pragma unroll
        for (int j = 0; j < P::KEYS; j += PANEL)
            add_bias<false, PANEL / 8>(s + j / 8, bias + j * P::QUERIES + strip * PANEL, 0, o.bias_scale);
        weigh<false, BIASED>(s, at, row0, mine.j, at.whole(mine.i, P::QUERIES, mine.j, P::KEYS),
                             [&](int e, int) { return known[e / 2].x; });
        products_done<0>();
        release(free + turn % P::STAGES);
        turn++;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[n][e] += slope_of<BIASED>(s[n][e], d[n][e], known[e / 2].y);
    });
    int64_t base = mine.b * o.a.bias_s[0] + mine.h * o.a.bias_s[1] + mine.j;
    write_rows(dbias, base, o.a.bias_s[2], sum, row0, (int)o.a.Tq, min(P::KEYS, (int)o.a.Tk - mine.j), 1);
}

template <class P>
static bool start(fv_stream *s, const job<typename P::T> &o, const fv_attn_grads *g, const float2 *stat)
{
    typedef typename P::T T;
    const fv_attn_args &a = o.a;
    fv_dtype t = kind<T>::dtype;
    maps of;
    if (!fv_cuda_map_attention(&of.in, &a, t, P::QUERIES, P::KEYS) || !map_bias(&of.bias, o, P::QUERIES) ||
        !fv_cuda_map(&of.dy, g->dy, t, a.B, a.Tq, a.H, a.Wv, a.H * a.Wv, a.Tq * a.H * a.Wv, P::QUERIES))
        return false;
    dim3 grid((unsigned)ceil_div(a.Tk, P::KEYS), (unsigned)ceil_div(a.Tq, P::QUERIES),
              (unsigned)((a.bias_s[0] ? a.B : 1) * (a.bias_s[1] ? a.H : 1)));
    launch(s, "attention_bwd", grad_bias_wgmma<P>, grid, P::THREADS_ALL, P::BYTES, o, of, stat, to<T>(g->dbias));
    return true;
}

template <class T> bool fv_cuda_bias_hopper(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const float2 *stat)
{
    if (!biased(o)) return false;
    return o.a.Wk <= 64 && o.a.Wv <= 64 ? start<plan<T, 64>>(s, o, g, stat) : start<plan<T, 128>>(s, o, g, stat);
}

template bool fv_cuda_bias_hopper<bf16>(fv_stream *, const job<bf16> &, const fv_attn_grads *, const float2 *);
template bool fv_cuda_bias_hopper<f16>(fv_stream *, const job<f16> &, const fv_attn_grads *, const float2 *);
