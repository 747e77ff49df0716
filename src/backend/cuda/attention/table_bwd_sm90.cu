/* table_bwd_sm90.cu - the gradient of a table by relative position on Hopper.
 *
 *     drel_d = sum of w_ij (keep dy_i.v_j - dy_i.y_i)
 *              over all pairs with j - i = d, of all sequences
 *
 * A work item is a band: the tiles along one diagonal, in which each element of a tile always
 * has the same distance.  So a block sums ds over a band as it does over sequences for a bias
 * (pairs_sm90.h), and only then adds up along the diagonals of the sum, to a line of distances.
 * The lines of all bands are added in a fixed order by add_lines and add_ends. */
#include "pairs_sm90.h"

namespace
{
#define LINE 192                        /* distances of 64 queries by 128 keys, and one more */
#define STRIP_LINE 144                  /* and of 16 queries */
#define ITEMS_EACH 8                    /* work items per block to aim for, if sequences suffice */
#define MAX_NUMBERS ((int64_t)32 << 20) /* floats of lines */

/* How bands are numbered: by head, by run of sequences that are summed together, and by the key
 * that query 0 meets.
 *             keys ->
 *    queries  [b2][b3][b4]     a band is a diagonal of tiles; element (r, c) of every tile in it
 *      |      [b1][b2][b3]     has the same distance c - r + offset, so ds is summed tile on tile
 *      v      [b0][b1][b2]     first, and along diagonals once */
struct band_plan {
    int runs,
        per_run; /* runs, and sequences of a run: one where lengths differ, as distances then do */
    int all, before; /* bands of a head, and those that begin left of key 0 */
};

template <class P> struct band {
    const attn_params<typename P::T> &attn;
    int h, b, b_end, offset;
    __device__ band(const attn_params<typename P::T> &params, const band_plan &plan, int n)
        : attn(params)
    {
        int run = n / plan.all % plan.runs;
        h = n / plan.all / plan.runs;
        b = run * plan.per_run;
        b_end = min(b + plan.per_run, (int)attn.a.B);
        offset = (n % plan.all - plan.before) * P::KEYS;
    }
    template <class F> __device__ void each(F f) const
    {
        int from = offset < 0 ? (P::QUERIES - 1 - offset) / P::QUERIES * P::QUERIES : 0;
        for (int s = b; s < b_end; s++) {
            head_view<typename P::T> head(attn, s, h);
            for (int top = from; top < head.rows && top + offset < head.len; top += P::QUERIES)
                if (any_visible(head, top, P::QUERIES, top + offset, P::KEYS))
                    f(head, top, top + offset);
        }
    }
};

/* Adds up along the diagonals of a warp's 16 rows: line[15 + column - row].  A thread's second
 * row, 8 further down, has in a column block the distances that its first has in the block
 * before. */
template <int N> __device__ inline void add_diagonals(float *line, const float (&sum)[N][4])
{
    int lane = threadIdx.x % 32,
        x = lane - 7; /* of a column block: lanes 0 .. 14 have column - row */
    float before = 0;
#pragma unroll
    for (int m = -1; m < N; m++) {
        float both[2], all = 0;
#pragma unroll
        for (int e = 0; e < 2; e++)
            both[e] = (m < 0 ? 0 : sum[m < 0 ? 0 : m][e]) +
                      (m + 1 < N ? sum[m + 1 < N ? m + 1 : 0][2 + e] : 0);
#pragma unroll
        for (int row = 0; row < 8; row++) {
            int column = x + row, from = row * 4 + (column & 7) / 2;
            float even = __shfl_sync(~0u, both[0], from), odd = __shfl_sync(~0u, both[1], from);
            if (column >= 0 && column < 8) all += column & 1 ? odd : even;
        }
        /* of the column block before, at the same distance */
        float residual = __shfl_down_sync(~0u, before, 8);
        if (lane < 8) line[(m + 1) * 8 + lane] = lane < 7 ? all + residual : all;
        before = all;
    }
    if (lane >= 8 && lane < 15) line[N * 8 + lane] = before;
}

/* lines: (items, GROUPS, LINE) */
template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    grad_table_wgmma(const __grid_constant__ attn_params<typename P::T> attn,
                     const __grid_constant__ pairs_maps maps, const float2 *stat, float *lines,
                     band_plan plan, int items)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    auto item = [&](int n) { return band<P>(attn, plan, n); };
    run_block<P>(memory, &maps, attn, stat, items, item,
                 [&](int n, const auto &sum, const void *, int group) {
                     /* where the bias would be in shared memory */
                     float *strips = (float *)((typename P::T *)memory + P::STAGES * P::OPERANDS) +
                                     group * 4 * STRIP_LINE;
                     int thread = threadIdx.x % 128;
                     add_diagonals(strips + thread / 32 * STRIP_LINE, sum);
                     warpgroup_sync(3 + group);
                     float *line = lines + ((int64_t)n * P::GROUPS + group) * LINE;
                     for (int i = thread; i < LINE - 1; i += 128) {
                         float all = 0;
                         for (int w = 0; w < 4; w++) {
                             int x = i - 48 + 16 * w;
                             if (x >= 0 && x < STRIP_LINE - 1) all += strips[w * STRIP_LINE + x];
                         }
                         line[i] = all;
                     }
                     warpgroup_sync(3 + group);
                 });
}

/* Calls f(first, number) for each run of sequences and each warpgroup of a head, in order.
 * number(k, i) is the entry of band k for table index first + k * KEYS + i, not yet clamped. */
template <class P, class F>
__device__ inline void each_line(const attn_params<typename P::T> &attn, const float *lines,
                                 const band_plan &plan, int h, F f)
{
    for (int run = 0; run < plan.runs; run++) {
        int zero = (int)attn.a.rel_zero - ((int)attn.length(run * plan.per_run) - (int)attn.a.Tq);
        const float *maps = lines + (int64_t)(h * plan.runs + run) * plan.all * P::GROUPS * LINE;
        for (int group = 0; group < P::GROUPS; group++)
            f(zero - plan.before * P::KEYS - group * 64 - 63,
              [&](int k, int i) { return maps[(k * P::GROUPS + group) * LINE + i]; });
    }
}

/* The table without its two ends. */
template <class P> struct add_lines {
    attn_params<typename P::T> attn;
    const float *lines;
    band_plan plan;
    sink<typename P::T> drel;
    __device__ void operator()(int64_t i) const
    {
        int len = (int)attn.a.rel_len, l = (int)(i % len);
        float all = 0;
        if (l == 0 || l == len - 1) return;
        each_line<P>(attn, lines, plan, (int)(i / len), [&](int first, auto number) {
            int k = min((l - first) / P::KEYS,
                        plan.all - 1); /* the last band whose line begins before */
            for (; k >= 0 && l - first - k * P::KEYS < LINE - 1; k--)
                if (l >= first + k * P::KEYS) all += number(k, l - first - k * P::KEYS);
        });
        sink_put(drel, i, all);
    }
};

/* Blocks (head, end): an end of the table stands for all distances beyond it. */
template <class P>
__global__ void __launch_bounds__(THREADS)
    add_ends(const __grid_constant__ attn_params<typename P::T> attn, const float *lines,
             band_plan plan, sink<typename P::T> drel)
{
    int h = blockIdx.x, last = (int)attn.a.rel_len - 1, end = blockIdx.y ? last : 0;
    float all = 0;
    each_line<P>(attn, lines, plan, h, [&](int first, auto number) {
        for (int n = threadIdx.x; n < plan.all * (LINE - 1); n += THREADS) {
            int k = n / (LINE - 1), i = n % (LINE - 1);
            if (max(0, min(first + k * P::KEYS + i, last)) == end) all += number(k, i);
        }
    });
    all = block_allreduce(all, sum_op());
    if (threadIdx.x == 0 && (blockIdx.y == 0 || last > 0))
        sink_put(drel, h * attn.a.rel_len + end, all);
}

template <class T, int W> using config_of = pairs_config<T, W, false>;

template <class P> band_plan band_plan_of(const device *d, const fv_attn_args *a)
{
    band_plan plan;
    plan.before = (int)ceil_div(a->Tq, P::QUERIES) - 1;
    plan.all = plan.before + (int)ceil_div(a->Tk, P::KEYS);
    int64_t wanted = ceil_div((int64_t)ITEMS_EACH * d->sm_count, a->H * plan.all);
    plan.per_run = a->lens || wanted >= a->B ? 1 : (int)ceil_div(a->B, wanted);
    plan.runs = (int)ceil_div(a->B, plan.per_run);
    return plan;
}
int64_t items_of(const band_plan &plan, const fv_attn_args *a)
{
    return a->H * plan.runs * plan.all;
}

template <class P>
bool start(fv_stream *s, const attn_params<typename P::T> &attn, const fv_attn_grads *g,
           const float2 *stat, float *lines)
{
    typedef typename P::T T;
    pairs_maps maps;
    if (!make_pairs_maps<P>(&maps, attn, g)) return false;
    band_plan plan = band_plan_of<P>(device_of(s), &attn.a);
    int64_t items = items_of(plan, &attn.a);
    sink<T> drel = to<T>(g->drel);
    launch(s, "attention_bwd", grad_table_wgmma<P>, persistent_grid(s, items), P::BLOCK_THREADS,
           smem_bytes<pairs_layout<P>>(), attn, maps, stat, lines, plan, (int)items);
    each(s, "attention_bwd", attn.a.H * attn.a.rel_len, add_lines<P>{attn, lines, plan, drel});
    launch(s, "attention_bwd", add_ends<P>, dim3((unsigned)attn.a.H, 2), THREADS, 0, attn, lines,
           plan, drel);
    return true;
}

} // namespace

int64_t fv_cuda_table_numbers(fv_stream *s, const fv_attn_args *a)
{
    typedef config_of<bf16, 64> P; /* the same for all of them */
    int64_t numbers = items_of(band_plan_of<P>(device_of(s), a), a) * P::GROUPS * LINE;
    return numbers <= MAX_NUMBERS ? numbers : 0;
}

template <class T>
bool fv_cuda_table_hopper(fv_stream *s, const attn_params<T> &attn, const fv_attn_grads *g,
                          const float2 *stat, float *lines)
{
    bool narrow_heads = attn.a.Wk <= 64 && attn.a.Wv <= 64;
    return narrow_heads ? start<config_of<T, 64>>(s, attn, g, stat, lines)
                        : start<config_of<T, 128>>(s, attn, g, stat, lines);
}

template bool fv_cuda_table_hopper<bf16>(fv_stream *, const attn_params<bf16> &,
                                         const fv_attn_grads *, const float2 *, float *);
template bool fv_cuda_table_hopper<f16>(fv_stream *, const attn_params<f16> &,
                                        const fv_attn_grads *, const float2 *, float *);
