/* attention.h - what the attention kernels share: who takes part, scores, dropout, and how tiles are chosen.
 *
 * A tile is a strip of rows for each warp against a number of columns; rows are queries and columns keys, or, for the
 * gradients of keys and values, the other way round (TURNED).  Scores are kept in units of log 2, so that exp2 serves. */
#ifndef FV_CUDA_ATTENTION_H
#define FV_CUDA_ATTENTION_H

#include "tile.h"

#define WARPS 4
#define ROWS (16 * WARPS) /* of a tile: a strip for each warp */
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

template <class T> struct job {
    fv_attn_args a;
    float scale;      /* of the product q k', in units of log 2 */
    float keep_scale; /* 1 / (1 - dropout) */
    uint32_t keep_from;
    bool plain; /* who takes part is decided by lengths, causality, window and key, and scores rise with products */
    bool quick_q, quick_k, quick_v, quick_y;
    fault *bad;

    __device__ const T *q(int64_t b, int64_t h, int64_t i) const
    {
        return (const T *)a.q + b * a.q_batch + i * a.q_row + h * a.Wk;
    }
    __device__ const T *k(int64_t b, int64_t g, int64_t j) const
    {
        return (const T *)a.k + b * a.k_batch + j * a.k_row + g * a.Wk;
    }
    __device__ const T *v(int64_t b, int64_t g, int64_t j) const
    {
        return (const T *)a.v + b * a.v_batch + j * a.v_row + g * a.Wv;
    }
    __device__ int64_t at_y(int64_t b, int64_t h, int64_t i) const { return ((b * a.Tq + i) * a.H + h) * a.Wv; }
    __device__ int64_t at_lse(int64_t b, int64_t h, int64_t i) const { return (b * a.H + h) * a.Tq + i; }
    __device__ int kv_head(int h) const { return h / (int)(a.H / a.G); }

    /* A length that cannot be is reported once and counts as 0. */
    __device__ int64_t length(int64_t b) const
    {
        if (!a.lens) return a.Tk;
        int64_t n = a.lens[b];
        if (n >= 0 && n <= a.Tk) return n;
        report(bad, b, n, a.Tk);
        return 0;
    }
};

__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* One head of one sequence.  Places within it fit 32 bits, and index arithmetic is what these kernels have most of. */
template <class T> struct head {
    const job<T> &o;
    int b, h, len, shift; /* row i stands at position i + shift */
    int rows, window;
    bool causal;

    __device__ head(const job<T> &job_, int b_, int h_) : o(job_), b(b_), h(h_)
    {
        len = (int)o.length(b);
        rows = (int)o.a.Tq;
        shift = len - rows;
        window = (int)o.a.window;
        causal = o.a.causal;
    }
    /* Keys [first, end) that row i can see by lengths, causality and window alone. */
    __device__ int first(int i) const { return window > 0 && i + shift >= window ? i + shift - window + 1 : 0; }
    __device__ int end(int i) const
    {
        if (i >= rows) return 0;
        return causal && i + shift + 1 < len ? i + shift + 1 : len;
    }
    /* All pairs of the tile can. */
    __device__ bool whole(int i0, int ni, int j0, int nj) const
    {
        return i0 + ni <= rows && j0 + nj <= end(i0) && j0 >= first(i0 + ni - 1);
    }
    /* Keys that any of rows [i0, i0 + ni) can see: from first(i0) to here. */
    __device__ int last_key(int i0, int ni) const
    {
        int e = end(i0 + ni < rows ? i0 + ni - 1 : rows - 1);
        return e > 0 ? e : 0;
    }
    /* Rows [first, last) that can see any of keys [j0, j0 + nj). */
    __device__ int first_row(int j0) const { return causal && j0 > shift ? j0 - shift : 0; }
    __device__ int last_row(int j0, int nj) const
    {
        if (j0 >= len) return 0;
        int i = window > 0 ? j0 + nj - 1 - shift + window : rows;
        return i < rows ? i : rows;
    }
    /* The score of a pair within reach, in units of log 2; -inf where a mask hides the key. */
    __device__ float score(float dot, int i, int j) const
    {
        const fv_attn_args &a = o.a;
        float s = o.scale * dot;
        if (a.key_mask && !a.key_mask[b * a.Tk + j]) return -INFINITY;
        if (o.plain) return s;
        if (a.mask && !a.mask[b * a.mask_s[0] + h * a.mask_s[1] + i * a.mask_s[2] + j]) return -INFINITY;
        if (a.bias) s += LOG2E * up(((const T *)a.bias)[b * a.bias_s[0] + h * a.bias_s[1] + i * a.bias_s[2] + j]);
        if (a.rel) s += LOG2E * up(((const T *)a.rel)[h * a.rel_len + rel_at(i, j)]);
        return s;
    }
    __device__ int rel_at(int i, int j) const { return max(0, min((int)o.a.rel_zero + j - (i + shift), (int)o.a.rel_len - 1)); }
    /* The four words of dropout for row i and keys j .. j+3, j a multiple of 4. */
    __device__ void words(uint32_t (&w)[4], int i, int j) const
    {
        uint64_t e = (uint64_t)o.at_lse(b, h, i) * (uint64_t)((o.a.Tk + 3) / 4) + (uint64_t)j / 4;
        philox(w, o.a.rng.seed, o.a.rng.site, *o.a.rng.step, e);
    }
};

/* Where this thread's numbers stand in a strip of 16 rows from row0 on: number e of column block n. */
__device__ inline int tile_row(int row0, int e) { return row0 + (int)threadIdx.x % 32 / 4 + e / 2 * 8; }
__device__ inline int tile_col(int col0, int n, int e) { return col0 + n * 8 + (int)threadIdx.x % 4 * 2 + e % 2; }

/* The mask of keys over a tile, read once: (n, e) is whether the key of number e of column block n takes part. */
template <bool TURNED, int N> struct keys_seen {
    static_assert(TURNED || N % 4 == 0, "32 keys to a word");
    uint32_t bits[TURNED ? 1 : N / 4];
    bool all = true;

    template <class T> __device__ keys_seen(const head<T> &at, int row0, int col0)
    {
        int lane = threadIdx.x % 32, keys = (int)at.o.a.Tk;
        const uint8_t *mask = at.o.a.key_mask ? at.o.a.key_mask + (int64_t)at.b * keys : NULL;
#pragma unroll
        for (int i = 0; i < (TURNED ? 1 : N / 4); i++) {
            int j = TURNED ? row0 + lane % 16 : col0 + i * 32 + lane;
            bits[i] = mask ? __ballot_sync(~0u, j < keys && mask[j]) : ~0u;
            all = all && bits[i] == ~0u;
        }
    }
    __device__ bool operator()(int n, int e) const
    {
        int at = TURNED ? tile_row(0, e) % 16 : tile_col(0, n, e) % 32;
        return bits[TURNED ? 0 : n / 4] >> at & 1;
    }
};

/* Turns a strip of products into scores, in units of log 2, where masks or something added make them; what is out of reach
 * gets any. */
template <bool TURNED, int N, class T> __device__ inline void add_scores(float (&s)[N][4], const head<T> &at, int row0, int col0)
{
    const fv_attn_args &a = at.o.a;
    auto each = [&](auto f) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = tile_row(row0, e), c = tile_col(col0, n, e);
                f(s[n][e], min(TURNED ? c : r, at.rows - 1), min(TURNED ? r : c, (int)a.Tk - 1));
            }
    };
    each([&](float &x, int, int) { x *= at.o.scale; });
    if (a.mask) {
        const uint8_t *mask = a.mask + at.b * a.mask_s[0] + at.h * a.mask_s[1];
        each([&](float &x, int i, int j) { x = mask[i * a.mask_s[2] + j] ? x : -INFINITY; });
    }
    if (a.bias) {
        const T *bias = (const T *)a.bias + at.b * a.bias_s[0] + at.h * a.bias_s[1];
        each([&](float &x, int i, int j) { x = fmaf(LOG2E, up(bias[i * a.bias_s[2] + j]), x); });
    }
    if (a.rel) {
        const T *rel = (const T *)a.rel + at.h * a.rel_len;
        each([&](float &x, int i, int j) { x = fmaf(LOG2E, up(rel[at.rel_at(i, j)]), x); });
    }
}

/* Which of the four weights of column block n dropout leaves, a bit for each.  Four keys in a row share one draw, so threads draw
 * for one another: two of them where rows are queries, four where rows are keys. */
template <bool TURNED, class T> __device__ inline uint32_t keep(const head<T> &at, int row0, int col0, int n)
{
    uint32_t w[4], mine[4];
    if constexpr (!TURNED) {
        int odd = threadIdx.x % 2;
        at.words(w, tile_row(row0, odd * 2), tile_col(col0, n, 0) / 4 * 4);
        uint32_t u = __shfl_xor_sync(~0u, odd ? w[0] : w[2], 1), v = __shfl_xor_sync(~0u, odd ? w[1] : w[3], 1);
        mine[0] = odd ? u : w[0], mine[1] = odd ? v : w[1];
        mine[2] = odd ? w[2] : u, mine[3] = odd ? w[3] : v;
    } else {
        int t = threadIdx.x / 4 % 4; /* draws for keys of block t/2 and query t%2, and stands at key t of each block */
        at.words(w, tile_col(col0, n, t % 2), tile_row(row0, t / 2 * 2) / 4 * 4);
        uint32_t u = __shfl_xor_sync(~0u, t & 1 ? w[0] : w[1], 4), v = __shfl_xor_sync(~0u, t & 1 ? w[2] : w[3], 4);
        if (t & 1)
            w[0] = u, w[2] = v;
        else
            w[1] = u, w[3] = v;
        u = __shfl_xor_sync(~0u, t & 2 ? w[0] : w[2], 8), v = __shfl_xor_sync(~0u, t & 2 ? w[1] : w[3], 8);
        if (t & 2)
            w[0] = u, w[1] = v;
        else
            w[2] = u, w[3] = v;
        mine[0] = w[0], mine[1] = w[1], mine[2] = w[2], mine[3] = w[3];
    }
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) bits |= (uint32_t)(mine[e] >= at.o.keep_from) << e;
    return bits;
}

/* What dropout multiplies the weights of a strip with, a bit for each; PLAIN: there is no dropout. */
template <bool PLAIN, int N> struct kept {
    uint32_t bits[PLAIN ? 1 : (N + 7) / 8];
    float scale;
    __device__ float operator()(int n, int e) const
    {
        return PLAIN || bits[PLAIN ? 0 : n / 8] >> (n % 8 * 4 + e) & 1 ? scale : 0;
    }
};

/* Weights of a strip from products s = q k':  w = exp(score - lse), before dropout, and what dropout makes of them.  PLAIN: no
 * mask but of keys, nothing added, no dropout.  lse(e, n), in units of log 2, is that of the query of number e. */
template <bool TURNED, bool PLAIN, int N, class T, class L>
__device__ inline kept<PLAIN, N> weigh(float (&s)[N][4], const head<T> &at, int row0, int col0, bool whole, L lse)
{
    bool drop = !PLAIN && at.o.a.dropout > 0, simple = PLAIN || at.o.plain;
    float scale = simple ? at.o.scale : 1;
    keys_seen<TURNED, N> seen(at, row0, col0);
    if (!simple) add_scores<TURNED>(s, at, row0, col0);
    if (!whole || !seen.all) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = tile_row(row0, e), c = tile_col(col0, n, e), i = TURNED ? c : r, j = TURNED ? r : c;
                bool near = j >= at.first(i) && j < at.end(i) && seen(n, e);
                if (!near) s[n][e] = -INFINITY;
            }
    }
    kept<PLAIN, N> k;
    k.scale = drop ? at.o.keep_scale : 1;
#pragma unroll
    for (int i = 0; !PLAIN && i < (N + 7) / 8; i++) k.bits[i] = drop ? 0 : ~0u;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if constexpr (!PLAIN)
            if (drop) k.bits[n / 8] |= keep<TURNED>(at, row0, col0, n) << n % 8 * 4;
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = exp2_fast(fmaf(s[n][e], scale, -lse(e, n)));
    }
    return k;
}

/* Weights and slopes of a strip: s as above, dp = dy v';  after this the weights with dropout are in s and
 * ds = w (keep dp - dy.y) in dp.  stat(e, n) gives lse and dy.y. */
template <bool TURNED, bool PLAIN, int N, class T, class L>
__device__ inline void slopes(float (&s)[N][4], float (&dp)[N][4], const head<T> &at, int row0, int col0, bool whole, L stat)
{
    kept<PLAIN, N> k = weigh<TURNED, PLAIN>(s, at, row0, col0, whole, [&](int e, int n) { return stat(e, n).x; });
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            dp[n][e] = s[n][e] * (k(n, e) * dp[n][e] - stat(e, n).y);
            s[n][e] *= k(n, e);
        }
}

/* ---- on the host ---- */

template <class T> static job<T> prepare(fv_stream *s, const fv_attn_args *a)
{
    job<T> o;
    constexpr int V = 16 / sizeof(T);
    o.a = *a;
    o.scale = (a->scale != 0 ? a->scale : 1 / sqrtf((float)a->Wk)) * LOG2E;
    o.keep_scale = 1 / (1 - a->dropout);
    o.keep_from = fv_drop_threshold(a->dropout);
    o.plain = !a->mask && !a->bias && !a->rel && o.scale > 0;
    o.quick_q = aligned(a->q) && a->q_row % V == 0 && a->q_batch % V == 0 && a->Wk % V == 0;
    o.quick_k = aligned(a->k) && a->k_row % V == 0 && a->k_batch % V == 0 && a->Wk % V == 0;
    o.quick_v = aligned(a->v) && a->v_row % V == 0 && a->v_batch % V == 0 && a->Wv % V == 0;
    o.quick_y = aligned(a->y) && a->Wv % V == 0;
    o.bad = faults_of(s) + FAULT_LENS;
    return o;
}

/* The width of tiles for these heads, a power of two from 32 on; 0 (and a failed stream) if they are too wide. */
static inline int tile_width(fv_stream *s, const fv_attn_args *a)
{
    int64_t most = a->Wk > a->Wv ? a->Wk : a->Wv;
    for (int w = 32; w <= 256; w *= 2)
        if (most <= w) return w;
    device_of(s)->host.fail(s, FV_EMISSING, "attention: heads of %lld numbers, cuda takes up to 256", (long long)most);
    return 0;
}

#endif
