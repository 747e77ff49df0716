/* table_bwd_sm90.cu - the gradient of a table by distance on Hopper.
 *
 *     drel_d = sum of w_ij (keep dy_i.v_j - dy_i.y_i)  over all pairs at distance d, of all
 *     sequences
 *
 * A band is what stands at the same place beside the diagonal, tile by tile along it: there each
 * number of a tile always belongs to one distance.  So a block goes through a band as that of a
 * bias goes through sequences (pairs_sm90.h), and only then adds up along the diagonals of its
 * sums.  What all blocks found is added in order. */
#include "pairs_sm90.h"

#define LINE 192       /* distances that 64 rows and 128 keys have between them, and one more */
#define STRIP_LINE 144 /* and 16 rows */
#define ITEMS_EACH 8   /* items for each block, if there are sequences enough */
#define MAX_NUMBERS ((int64_t)32 << 20) /* kept on the way */

/* How bands are numbered: by head, by run of sequences that go together, and by the key that the
 * first row meets. */
struct bands {
    int runs, interleaved; /* one sequence where lengths differ: distances do, too */
    int all, before;       /* bands of a head, and those that begin left of the first key */
};

template <class P> struct band {
    const job<typename P::T> &o;
    int h, b, b_end, offset;
    __device__ band(const job<typename P::T> &job_, const bands &by, int n) : o(job_)
    {
        int run = n / by.all % by.runs;
        h = n / by.all / by.runs;
        b = run * by.interleaved;
        b_end = min(b + by.interleaved, (int)o.a.B);
        offset = (n % by.all - by.before) * P::KEYS;
    }
    template <class F> __device__ void each(F f) const
    {
        int from = offset < 0 ? (P::QUERIES - 1 - offset) / P::QUERIES * P::QUERIES : 0;
        for (int s = b; s < b_end; s++) {
            head<typename P::T> at(o, s, h);
            for (int top = from; top < at.rows && top + offset < at.len; top += P::QUERIES)
                if (some(at, top, P::QUERIES, top + offset, P::KEYS)) f(at, top, top + offset);
        }
    }
};

/* Adds up along the diagonals of a warp's strip of 16 rows: line[15 + column - row].  A thread's
 * second row, 8 further down, meets in a block of 8 columns what the first met in the block
 * before. */
template <int N> __device__ inline void add_diagonals(float *line, const float (&sum)[N][4])
{
    int lane = threadIdx.x % 32, x = lane - 7; /* of a block: threads 0 .. 14 have column - row */
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
        /* of the block before, at the same distance */
        float residual = __shfl_down_sync(~0u, before, 8);
        if (lane < 8) line[(m + 1) * 8 + lane] = lane < 7 ? all + residual : all;
        before = all;
    }
    if (lane >= 8 && lane < 15) line[N * 8 + lane] = before;
}

/* lines: (items, groups, LINE) */
template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    grad_table_wgmma(const __grid_constant__ job<typename P::T> o,
                     const __grid_constant__ tensor_maps of, const float2 *stat, float *lines,
                     bands by, int items)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    auto item = [&](int n) { return band<P>(o, by, n); };
    run_block<P>(memory, &of, o, stat, items, item,
                 [&](int n, const auto &sum, const void *, int group) {
                     /* where a bias would be */
                     float *strips = (float *)smem_layout<P>(memory).bias + group * 4 * STRIP_LINE;
                     int thread = threadIdx.x % 128;
                     add_diagonals(strips + thread / 32 * STRIP_LINE, sum);
                     warpgroup_sync(3 + group);
                     float *line = lines + ((int64_t)n * P::GROUPS + group) * LINE;
                     for (int i = thread; i < LINE - 1; i += 128) {
                         float all = 0;
                         for (int w = 0; w < 4; w++) {
                             int at = i - 48 + 16 * w;
                             if (at >= 0 && at < STRIP_LINE - 1) all += strips[w * STRIP_LINE + at];
                         }
                         line[i] = all;
                     }
                     warpgroup_sync(3 + group);
                 });
}

/* What the lines of a head hold: f(first, number) for each run of sequences and each group, in
 * order.  number(k, i) is that of band k and index first + k * KEYS + i of the table, before it is
 * held within it. */
template <class P, class F>
__device__ inline void each_row_of_bias(const job<typename P::T> &o, const float *lines,
                                        const bands &by, int h, F f)
{
    for (int run = 0; run < by.runs; run++) {
        int zero = (int)o.a.rel_zero - ((int)o.length(run * by.interleaved) - (int)o.a.Tq);
        const float *of = lines + (int64_t)(h * by.runs + run) * by.all * P::GROUPS * LINE;
        for (int group = 0; group < P::GROUPS; group++)
            f(zero - by.before * P::KEYS - group * 64 - 63,
              [&](int k, int i) { return of[(k * P::GROUPS + group) * LINE + i]; });
    }
}

/* The table without its ends. */
template <class P> struct add_lines {
    static constexpr int wide = 1;
    job<typename P::T> o;
    const float *lines;
    bands by;
    sink<typename P::T> drel;
    template <int V> __device__ void at(int64_t i) const
    {
        int len = (int)o.a.rel_len, l = (int)(i % len);
        float all = 0;
        if (l == 0 || l == len - 1) return;
        each_row_of_bias<P>(o, lines, by, (int)(i / len), [&](int first, auto number) {
            int k = min((l - first) / P::KEYS, by.all - 1); /* the last whose line begins before */
            for (; k >= 0 && l - first - k * P::KEYS < LINE - 1; k--)
                if (l >= first + k * P::KEYS) all += number(k, l - first - k * P::KEYS);
        });
        sink_put(drel, i, all);
    }
};

/* Blocks (head, end): an end stands for everything beyond. */
template <class P>
__global__ void __launch_bounds__(THREADS)
    add_ends(const __grid_constant__ job<typename P::T> o, const float *lines, bands by,
             sink<typename P::T> drel)
{
    int h = blockIdx.x, last = (int)o.a.rel_len - 1, end = blockIdx.y ? last : 0;
    float all = 0;
    each_row_of_bias<P>(o, lines, by, h, [&](int first, auto number) {
        for (int n = threadIdx.x; n < by.all * (LINE - 1); n += THREADS) {
            int k = n / (LINE - 1), i = n % (LINE - 1);
            if (max(0, min(first + k * P::KEYS + i, last)) == end) all += number(k, i);
        }
    });
    all = block_allreduce(all, sum_op());
    if (threadIdx.x == 0 && (blockIdx.y == 0 || last > 0))
        sink_put(drel, h * o.a.rel_len + end, all);
}

template <class T, int W> using plan_of = traits<T, W, false>;

template <class P> static bands bands_of(const device *d, const fv_attn_args *a)
{
    bands by;
    by.before = (int)ceil_div(a->Tq, P::QUERIES) - 1;
    by.all = by.before + (int)ceil_div(a->Tk, P::KEYS);
    int64_t wanted = ceil_div((int64_t)ITEMS_EACH * d->sm_count, a->H * by.all);
    by.interleaved = a->lens || wanted >= a->B ? 1 : (int)ceil_div(a->B, wanted);
    by.runs = (int)ceil_div(a->B, by.interleaved);
    return by;
}
static int64_t items_of(const bands &by, const fv_attn_args *a) { return a->H * by.runs * by.all; }

template <class P>
static bool start(fv_stream *s, const job<typename P::T> &o, const fv_attn_grads *g,
                  const float2 *stat, float *lines)
{
    typedef typename P::T T;
    tensor_maps of;
    if (!tensor_map_pairs<P>(&of, o, g)) return false;
    bands by = bands_of<P>(device_of(s), &o.a);
    int64_t items = items_of(by, &o.a);
    sink<T> drel = to<T>(g->drel);
    launch(s, "attention_bwd", grad_table_wgmma<P>, grid_of(s, items), P::BLOCK_THREADS, P::BYTES,
           o, of, stat, lines, by, (int)items);
    each(s, "attention_bwd", o.a.H * o.a.rel_len, false, add_lines<P>{o, lines, by, drel});
    launch(s, "attention_bwd", add_ends<P>, dim3((unsigned)o.a.H, 2), THREADS, 0, o, lines, by,
           drel);
    return true;
}

int64_t fv_cuda_table_numbers(fv_stream *s, const fv_attn_args *a)
{
    typedef plan_of<bf16, 64> P; /* all are alike in this */
    int64_t numbers = items_of(bands_of<P>(device_of(s), a), a) * P::GROUPS * LINE;
    return numbers <= MAX_NUMBERS ? numbers : 0;
}

template <class T>
bool fv_cuda_table_hopper(fv_stream *s, const job<T> &o, const fv_attn_grads *g, const float2 *stat,
                          float *lines)
{
    bool narrow_heads = o.a.Wk <= 64 && o.a.Wv <= 64;
    return narrow_heads ? start<plan_of<T, 64>>(s, o, g, stat, lines)
                        : start<plan_of<T, 128>>(s, o, g, stat, lines);
}

template bool fv_cuda_table_hopper<bf16>(fv_stream *, const job<bf16> &, const fv_attn_grads *,
                                         const float2 *, float *);
template bool fv_cuda_table_hopper<f16>(fv_stream *, const job<f16> &, const fv_attn_grads *,
                                        const float2 *, float *);
