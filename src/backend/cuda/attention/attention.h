/* attention.h - what the attention kernels share: who takes part, scores, dropout, and how tiles
 * are chosen.
 *
 * A tile is a strip of rows for each warp against a number of columns; rows are queries and columns
 * keys, or, for the gradients of keys and values, the other way round (TRANSPOSED).  Scores are
 * kept in units of log 2, so that exp2 serves. */
#ifndef FV_CUDA_ATTENTION_H
#define FV_CUDA_ATTENTION_H

#include "backend/attention_dropout.h"
#include "backend/cuda/device/tile.h"

/* What a kernel is made for, so that it does not ask for the rest.  PLAIN: no mask but of keys,
 * nothing added, no dropout; WITH_DROPOUT: the same, with dropout; WITH_BIAS: a bias by pairs that
 * bias_sm90.h brings is added, and there may be dropout. */
enum { ANY, PLAIN, WITH_DROPOUT, WITH_BIAS };

#define WARPS 4
#define ROWS (16 * WARPS) /* of a tile: a strip for each warp */
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

/* A mask by pairs as bits: for each query those of its keys, or for each key those of its
 * queries. */
struct mask_bits {
    const uint32_t *p; /* NULL: the mask is to be read as it is */
    int64_t s[2];      /* words from one sequence to the next, and from one head */
    int row;           /* and from one row */
};
#define BITS_TILE 128 /* rows are whole tiles of so many */

/* A row, exactly: the maximum of its scores in base 2, 1 over their sum, and dy.y. */
struct row_stat {
    float top, by, dy_y;
};

template <class T> struct job {
    fv_attn_args a;
    float scale;             /* of the product q k', in units of log 2 */
    float bias_scale;        /* of what is added, to be added to the product */
    float dropout_scale;     /* 1 over the share that dropout keeps */
    uint32_t drop_threshold; /* what the upper half of a word is compared with */
    fv__philox_round_keys philox_keys;
    mask_bits bits;
    bool
        /* who takes part is decided by lengths, causality, window and key, and scores rise with
         * products */
        plain;
    bool vector_q, vector_k, vector_v, vector_y;
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
    __device__ int64_t y_offset(int64_t b, int64_t h, int64_t i) const
    {
        return ((b * a.Tq + i) * a.H + h) * a.Wv;
    }
    __device__ int64_t at_row(int64_t b, int64_t h, int64_t i) const
    {
        return (b * a.H + h) * a.Tq + i;
    }
    /* The log-sum-exp of a row as its two parts: x, the maximum of its scores in base 2, and y, the
     * sum of 2^(score - x). */
    __device__ float2 &lse(int64_t b, int64_t h, int64_t i) const
    {
        return ((float2 *)a.lse)[at_row(b, h, i)];
    }
    __device__ int kv_head(int h) const { return h / (int)(a.H / a.G); }

    /* What the gradients need of a row: its log-sum-exp and dy.y, both such that weights come out
     * divided by the share that dropout keeps, and that slopes are w (keep dp - dy.y) with keep 0
     * or 1.  An empty row's weights are to be 0.
     * The Hopper kernels take the log-sum-exp as one number, in base 2, so that a weight costs one
     * multiply-add and one exp2: exact where one key has all the weight, else off by up to |score|
     * 2^-24, which is less than a weight in 16 bits is off by up to scores of 2^15. */
    __device__ float2 stat(float2 lse, float dy_y) const
    {
        return make_float2(lse.y == 0 ? INFINITY : lse.x + log2f(lse.y / dropout_scale),
                           dy_y / dropout_scale);
    }
    __device__ row_stat exact_stat(float2 lse, float dy_y) const
    {
        return lse.y == 0 ? row_stat{INFINITY, 0, 0}
                          : row_stat{lse.x, dropout_scale / lse.y, dy_y / dropout_scale};
    }

    /* A length that cannot be is reported once and counts as 0. */
    __device__ int64_t length(int64_t b) const
    {
        if (!a.lens) return a.Tk;
        int64_t n = a.lens[b];
        if (n >= 0 && n <= a.Tk) return n;
        report_fault(bad, b, n, a.Tk);
        return 0;
    }
};

__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* One head of one sequence.  Places within it fit 32 bits, and index arithmetic is what these
 * kernels have most of. */
template <class T> struct head {
    const job<T> &o;
    int b, h, len, shift; /* row i stands at position i + shift */
    int rows, window;
    bool causal;
    uint64_t step; /* of the random sequence */

    __device__ head(const job<T> &job_, int b_, int h_) : head(job_, b_, h_, (int)job_.length(b_))
    {
    }
    __device__ head(const job<T> &job_, int b_, int h_, int len_) : o(job_), b(b_), h(h_), len(len_)
    {
        step = o.a.dropout > 0 ? *o.a.rng.step : 0;
        rows = (int)o.a.Tq;
        shift = len - rows;
        window = (int)o.a.window;
        causal = o.a.causal;
    }
    /* Keys [first, end) that row i can see by lengths, causality and window alone. */
    __device__ int first(int i) const
    {
        return window > 0 && i + shift >= window ? i + shift - window + 1 : 0;
    }
    __device__ int end(int i) const
    {
        if (i >= rows) return 0;
        return causal && i + shift + 1 < len ? i + shift + 1 : len;
    }
    /* All pairs of the tile can. */
    __device__ bool all_visible(int i0, int ni, int j0, int nj) const
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
        if (a.mask && !a.mask[b * a.mask_s[0] + h * a.mask_s[1] + i * a.mask_s[2] + j])
            return -INFINITY;
        if (a.bias)
            s += LOG2E *
                 to_float(
                     ((const T *)a.bias)[b * a.bias_s[0] + h * a.bias_s[1] + i * a.bias_s[2] + j]);
        if (a.rel) s += LOG2E * to_float(((const T *)a.rel)[h * a.rel_len + rel_index(i, j)]);
        return s;
    }
    __device__ int rel_index(int i, int j) const
    {
        return max(0, min((int)o.a.rel_zero + j - (i + shift), (int)o.a.rel_len - 1));
    }
    /* The row's part of a draw's place: backend/attention_dropout.h. */
    __device__ uint32_t philox_row(int i) const
    {
        return fv__philox_row_index((uint32_t)(b * (int)o.a.H + h), (uint32_t)rows, (uint32_t)i);
    }
};

/* Where this thread's numbers stand in a strip of 16 rows from row0 on: number e of column block
 * n. */
__device__ inline int tile_row(int row0, int e)
{
    return row0 + (int)threadIdx.x % 32 / 4 + e / 2 * 8;
}
__device__ inline int tile_col(int col0, int n, int e)
{
    return col0 + n * 8 + (int)threadIdx.x % 4 * 2 + e % 2;
}

#include "scores.h"

/* The mask of keys over a tile, read once: (n, e) is whether the key of number e of column block n
 * takes part. */
template <bool TRANSPOSED, int N> struct key_mask_tile {
    static_assert(TRANSPOSED || N % 4 == 0, "32 keys to a word");
    uint32_t bits[TRANSPOSED ? 1 : N / 4];
    bool all = true;

    template <class T> __device__ key_mask_tile(const head<T> &at, int row0, int col0)
    {
        int lane = threadIdx.x % 32, keys = (int)at.o.a.Tk;
        const uint8_t *mask = at.o.a.key_mask ? at.o.a.key_mask + (int64_t)at.b * keys : NULL;
#pragma unroll
        for (int i = 0; i < (TRANSPOSED ? 1 : N / 4); i++) {
            int j = TRANSPOSED ? row0 + lane % 16 : col0 + i * 32 + lane;
            bits[i] = mask ? __ballot_sync(~0u, j < keys && mask[j]) : ~0u;
            all = all && bits[i] == ~0u;
        }
    }
    __device__ bool operator()(int n, int e) const
    {
        int at = TRANSPOSED ? tile_row(0, e) % 16 : tile_col(0, n, e) % 32;
        return bits[TRANSPOSED ? 0 : n / 4] >> at & 1;
    }
};

/* What scores are of products to which add_scores has added what there is: it multiplies them
 * itself where scores fall as they rise. */
template <int KIND, class T> __device__ inline float scale_of(const head<T> &at)
{
    return KIND != ANY || at.o.scale > 0 ? at.o.scale : 1;
}

template <int KIND, class T> __device__ inline bool has_dropout(const head<T> &at)
{
    return KIND == WITH_DROPOUT || (KIND != PLAIN && at.o.a.dropout > 0);
}

/* What dropout draws for two column blocks, the n-th of a strip: by the parity of the column, and
 * by the eight keys.  Where rows are queries a thread has all that a draw serves.  Where they are
 * keys two threads, with keys side by side, draw for one query each and change words. */
template <bool TRANSPOSED, class T>
__device__ inline void dropout_bits(uint32_t (&word)[2][2], const head<T> &at, int row0, int col0,
                                    int n)
{
    uint32_t w[4];
    bool odd = threadIdx.x / 4 % 2;
    if constexpr (!TRANSPOSED) {
        uint32_t row = at.philox_row(tile_row(row0, 0)),
                 key = fv__philox_key_index((uint32_t)tile_col(0, 0, 0)) + (uint32_t)col0 / 4;
        fv__philox7(w, &at.o.philox_keys, at.o.a.rng.site, at.step, row, key + 4 * n);
        word[0][0] = w[0], word[0][1] = w[1], word[1][0] = w[2], word[1][1] = w[3];
    } else {
        uint32_t row = at.philox_row(tile_col(0, 0, odd)) + (uint32_t)col0 / 2,
                 key = fv__philox_key_index((uint32_t)tile_row(row0, 0) & ~1u);
        fv__philox7(w, &at.o.philox_keys, at.o.a.rng.site, at.step, row + 8 * n, key);
        uint32_t u = __shfl_xor_sync(~0u, odd ? w[0] : w[2], 4),
                 v = __shfl_xor_sync(~0u, odd ? w[1] : w[3], 4);
        word[0][0] = odd ? u : w[0], word[0][1] = odd ? v : w[1];
        word[1][0] = odd ? w[2] : u, word[1][1] = odd ? w[3] : v;
    }
}

/* x gets a minus sign where w is less than `below`: by a multiplication, as what compares and
 * chooses has enough to do. */
__device__ inline void negate_below(float &x, uint32_t w, uint32_t below)
{
    asm("{\n.reg .pred p;\nsetp.lt.u32 p, %1, %2;\n@p fma.rn.f32 %0, %0, 0fbf800000, 0f80000000;\n}"
        : "+f"(x)
        : "r"(w), "r"(below));
}

/* Weights of those blocks that are dropped get a minus sign, as no weight is negative. */
template <bool TRANSPOSED>
__device__ inline void mark_dropped(float (*s)[4], const uint32_t (&word)[2][2], uint32_t below)
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t w = word[e % 2][TRANSPOSED ? e / 2 : n];
            negate_below(s[n][e], (TRANSPOSED ? n : e / 2) ? w : w << 16, below);
        }
}

/* The same for a strip. */
template <bool TRANSPOSED, int N, class T>
__device__ inline void apply_dropout(float (&s)[N][4], const head<T> &at, int row0, int col0)
{
    static_assert(N % 2 == 0, "16 columns to a draw");
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        uint32_t word[2][2];
        dropout_bits<TRANSPOSED>(word, at, row0, col0, n);
        mark_dropped<TRANSPOSED>(s + 2 * n, word, at.o.drop_threshold);
    }
}

/* Two weights as a factor of a product; those that are dropped count as 0. */
__device__ inline uint32_t pack2_relu(float a, float b, bf16)
{
    uint32_t v;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(b), "f"(a));
    return v;
}
__device__ inline uint32_t pack2_relu(float a, float b, f16)
{
    uint32_t v;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(b), "f"(a));
    return v;
}
template <int N> __device__ inline void zero_dropped(float (&s)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = s[n][e] < 0 ? 0 : s[n][e];
}

/* w = 2^x / sum, from a score's distance to the maximum; where the log-sum-exp is one number, x is
 * the distance to that. */
__device__ inline float weight_of(float s, float scale, float lse)
{
    return exp2_fast(fmaf(s, scale, -lse));
}
__device__ inline float weight_of(float s, float scale, const row_stat &r)
{
    return exp2_fast(fmaf(s, scale, -r.top)) * r.by;
}

/* What exact weights need of a row, which have no dropout. */
__device__ inline row_stat weight_stat(float2 lse)
{
    return lse.y == 0 ? row_stat{INFINITY, 0, 0} : row_stat{lse.x, 1 / lse.y, 0};
}

/* Weights of a strip from products s = q k':  w = 2^(score - lse), where dropout takes them with a
 * minus sign.  lse(e, n), in base 2 as one number or as a row_stat, is that of the query of number
 * e. */
template <bool TRANSPOSED, int KIND, int N, class T, class L>
__device__ inline void exp_scores(float (&s)[N][4], const head<T> &at, int row0, int col0,
                                  bool full_tile, L lse)
{
    float scale = scale_of<KIND>(at);
    key_mask_tile<TRANSPOSED, N> seen(at, row0, col0);
    if (KIND == ANY && !at.o.plain) add_scores<TRANSPOSED>(s, at, row0, col0);
    if (!full_tile || !seen.all) {
        int r[2] = {tile_row(row0, 0), tile_row(row0, 2)};
        int from[2] = {TRANSPOSED ? at.first_row(r[0]) : at.first(r[0]),
                       TRANSPOSED ? at.first_row(r[1]) : at.first(r[1])};
        int end[2] = {TRANSPOSED ? at.last_row(r[0], 1) : at.end(r[0]),
                      TRANSPOSED ? at.last_row(r[1], 1) : at.end(r[1])};
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int c = tile_col(col0, n, e);
                bool in_range = c >= from[e / 2] && c < end[e / 2] && seen(n, e);
                if (!in_range) s[n][e] = -INFINITY;
            }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] = weight_of(s[n][e], scale, lse(e, n));
    if (has_dropout<KIND>(at)) apply_dropout<TRANSPOSED>(s, at, row0, col0);
}

/* The slope of a score, w (keep dp - dy.y), from a weight that has a minus sign if it was
 * dropped. */
template <int KIND> __device__ inline float dscore(float w, float dp, float dy_y)
{
    return KIND == PLAIN ? w * (dp - dy_y) : fmaf(fmaxf(w, 0), dp, -fabsf(w) * dy_y);
}

/* Weights and slopes of a strip: s as above, dp = dy v';  after this the weights with dropout are
 * in s and ds in dp.  stat(e, n) gives the row_stat. */
template <bool TRANSPOSED, int KIND, int N, class T, class L>
__device__ inline void exp_scores_and_dscores(float (&s)[N][4], float (&dp)[N][4],
                                              const head<T> &at, int row0, int col0, bool full_tile,
                                              L stat)
{
    exp_scores<TRANSPOSED, KIND>(s, at, row0, col0, full_tile, stat);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) dp[n][e] = dscore<KIND>(s[n][e], dp[n][e], stat(e, n).dy_y);
    if (KIND != PLAIN) zero_dropped(s);
}

/* ---- on the host ---- */

/* mask.cu: how many words the bits of a mask take (0: there is none), and the bits, laid out in so
 * much room. */
int64_t fv_cuda_mask_words(const fv_attn_args *a, bool transposed);
mask_bits fv_cuda_mask_bits(fv_stream *s, const fv_attn_args *a, bool transposed, void *scratch);

template <class T> static job<T> prepare(fv_stream *s, const fv_attn_args *a)
{
    job<T> o;
    constexpr int V = 16 / sizeof(T);
    o.a = *a;
    o.scale = (a->scale != 0 ? a->scale : 1 / sqrtf((float)a->Wk)) * LOG2E;
    o.bias_scale = LOG2E / o.scale;
    o.dropout_scale = (float)(1 / fv__keep_probability(a->dropout));
    o.drop_threshold = fv__dropout_threshold(a->dropout) << 16;
    o.philox_keys = fv__philox_schedule(a->rng.seed);
    o.plain = !a->mask && !a->bias && !a->rel && o.scale > 0;
    o.vector_q = aligned(a->q) && a->q_row % V == 0 && a->q_batch % V == 0 && a->Wk % V == 0;
    o.vector_k = aligned(a->k) && a->k_row % V == 0 && a->k_batch % V == 0 && a->Wk % V == 0;
    o.vector_v = aligned(a->v) && a->v_row % V == 0 && a->v_batch % V == 0 && a->Wv % V == 0;
    o.vector_y = aligned(a->y) && a->Wv % V == 0;
    o.bits = mask_bits{};
    o.bad = faults_of(s) + FAULT_LENS;
    return o;
}

/* The width of tiles for these heads, a power of two from 32 on; 0 (and a failed stream) if they
 * are too wide. */
static inline int tile_width(fv_stream *s, const fv_attn_args *a)
{
    int64_t most = a->Wk > a->Wv ? a->Wk : a->Wv;
    for (int w = 32; w <= 256; w *= 2)
        if (most <= w) return w;
    device_of(s)->host.fail(s, FV_EMISSING,
                            "attention: heads of %lld numbers, cuda takes up to 256",
                            (long long)most);
    return 0;
}

#endif
