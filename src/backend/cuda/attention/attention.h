/* attention.h - what all attention kernels share: parameters, visibility, scores, dropout,
 * weights.
 *
 *     score_ij = scale q_i.k_j + bias_ij + rel_(j - i)   (-inf where masked)
 *     w_ij = softmax_j(score_ij),  y_i = sum_j dropout(w_ij) v_j
 *
 * Kernels work on tiles: 16 rows per warp by some column blocks of 8, laid out as device/tile.h
 * says. Rows are queries and columns keys; in the gradients of keys and values it is the other
 * way round (TRANSPOSED).  Scores are in base 2, that is times log2 e, so that a weight is one
 * ex2. */
#ifndef FV_CUDA_ATTENTION_H
#define FV_CUDA_ATTENTION_H

#include "backend/attention_dropout.h"
#include "backend/cuda/device/tile.h"

/* What a kernel is specialised for.  ANY tests everything at run time.  PLAIN: causal, window,
 * lengths and key mask only.  WITH_DROPOUT: PLAIN and dropout.  WITH_BIAS: a dense bias whose
 * tiles bias_sm90.h loads by TMA, and perhaps dropout. */
enum { ANY, PLAIN, WITH_DROPOUT, WITH_BIAS };

/* A strip of 16 rows by 8 columns of one warp, as mma leaves it; thread = lane of the warp:
 *
 *             col 0 1   2 3   4 5   6 7
 *    row 0      t0 e01  t1    t2    t3        e = 0, 1: row lane/4, columns 2 (lane%4) and the next
 *    row 1      t4      t5    t6    t7
 *     ..
 *    row 8      t0 e23  t1    t2    t3        e = 2, 3: the same columns, row lane/4 + 8
 *
 * so the four threads of a quad hold all columns of two rows, and a row maximum or sum takes two
 * shuffles (xor 1, xor 2). */
#define WARPS 4
#define TILE_ROWS (16 * WARPS) /* rows of a tile, 16 per warp */
#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f

/* A (Tq, Tk) mask packed into bits: rows of keys for each query, or transposed. */
struct mask_bits {
    const uint32_t *p; /* NULL: read the byte mask */
    int64_t s[2];      /* words from one sequence to the next, from one head to the next */
    int row;           /* and from one row to the next */
};
#define BITS_TILE 128 /* rows are padded to a multiple of this */

/* Softmax statistics of a row, exact: the maximum of its base-2 scores, 1 / sum of 2^(score -
 * max), and dy.y. */
struct row_stat {
    float row_max, inv_sum, dy_y;
};

/* The arguments of an attention as kernels get them: the caller's, and what follows from these. */
template <class T> struct attn_params {
    fv_attn_args a;
    float scale;             /* score = scale * (q.k), in base 2 */
    float bias_scale;        /* log2 e / scale: makes a bias a part of q.k */
    float dropout_scale;     /* 1 / keep probability */
    uint32_t drop_threshold; /* dropped where a 16-bit draw << 16 is below */
    fv__philox_round_keys philox_keys;
    mask_bits bits;
    /* no mask by pairs, no bias, no table, and scale > 0: products are ordered as scores are */
    bool plain;
    bool vector_q, vector_k, vector_v, vector_y; /* rows are loaded 16 bytes at a time */
    fault *bad;                                  /* where a length out of range is reported */

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
    __device__ int64_t row_index(int64_t b, int64_t h, int64_t i) const
    {
        return (b * a.H + h) * a.Tq + i;
    }
    /* The log-sum-exp of a row in two parts: x, the maximum of its base-2 scores, and y, the sum
     * of 2^(score - x). */
    __device__ float2 &lse(int64_t b, int64_t h, int64_t i) const
    {
        return ((float2 *)a.lse)[row_index(b, h, i)];
    }
    /* The common case first: a 32-bit division takes some 100 cycles. */
    __device__ int kv_head(int h) const
    {
        int heads = (int)a.H, groups = (int)a.G;
        return heads == groups ? h : h / (heads / groups);
    }

    /* Statistics for the backward pass, with the dropout scale folded in: weights come out as w
     * / keep probability, and ds = w (keep dp - dy.y) with keep 0 or 1.  A row that sees no key
     * gets weights 0.
     * stat has the log-sum-exp as one base-2 number, so that a weight is one fma and one ex2;
     * the Hopper kernels use it.  It is exact where one key has all the weight, and else off by
     * up to |score| 2^-24: less than the rounding of a 16-bit weight up to scores of 2^15. */
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

    /* The number of keys of sequence b.  A length out of range is reported once and counts as 0. */
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

/* One head of one sequence, with all indices in 32 bits: index arithmetic is most of what these
 * kernels do besides products. */
template <class T> struct head_view {
    const attn_params<T> &attn;
    int b, h, len, shift; /* query i has position i + shift */
    int rows, window;
    bool causal;
    uint64_t step; /* of Philox: the counter of the training step */

    __device__ head_view(const attn_params<T> &params, int b_, int h_)
        : head_view(params, b_, h_, (int)params.length(b_))
    {
    }
    __device__ head_view(const attn_params<T> &params, int b_, int h_, int len_)
        : attn(params), b(b_), h(h_), len(len_)
    {
        step = attn.a.dropout > 0 ? *attn.a.rng.step : 0;
        rows = (int)attn.a.Tq;
        shift = len - rows;
        window = (int)attn.a.window;
        causal = attn.a.causal;
    }
    /* Keys [first_key, end_key) that query i may see by lengths, causality and window. */
    __device__ int first_key(int i) const
    {
        return window > 0 && i + shift >= window ? i + shift - window + 1 : 0;
    }
    __device__ int end_key(int i) const
    {
        if (i >= rows) return 0;
        return causal && i + shift + 1 < len ? i + shift + 1 : len;
    }
    /* Every pair of the tile is visible. */
    __device__ bool all_visible(int i0, int ni, int j0, int nj) const
    {
        return i0 + ni <= rows && j0 + nj <= end_key(i0) && j0 >= first_key(i0 + ni - 1);
    }
    /* The end of the keys that any of queries [i0, i0 + ni) may see; they begin at
     * first_key(i0). */
    __device__ int last_key(int i0, int ni) const
    {
        int e = end_key(i0 + ni < rows ? i0 + ni - 1 : rows - 1);
        return e > 0 ? e : 0;
    }
    /* Queries [first_row, last_row) that may see any of keys [j0, j0 + nj). */
    __device__ int first_row(int j0) const { return causal && j0 > shift ? j0 - shift : 0; }
    __device__ int last_row(int j0, int nj) const
    {
        if (j0 >= len) return 0;
        int i = window > 0 ? j0 + nj - 1 - shift + window : rows;
        return i < rows ? i : rows;
    }
    /* The base-2 score of a visible pair; -inf where a mask hides it. */
    __device__ float score(float dot, int i, int j) const
    {
        const fv_attn_args &a = attn.a;
        float s = attn.scale * dot;
        if (a.key_mask && !a.key_mask[b * a.Tk + j]) return -INFINITY;
        if (attn.plain) return s;
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
        return max(0, min((int)attn.a.rel_zero + j - (i + shift), (int)attn.a.rel_len - 1));
    }
    /* The row half of the Philox counter (backend/attention_dropout.h). */
    __device__ uint32_t philox_row(int i) const
    {
        return fv__philox_row_index((uint32_t)(b * (int)attn.a.H + h), (uint32_t)rows, (uint32_t)i);
    }
};

/* Row and column of element e of column block n, in a strip of 16 rows from row0 on. */
__device__ inline int tile_row(int row0, int e)
{
    return row0 + (int)threadIdx.x % 32 / 4 + e / 2 * 8;
}
__device__ inline int tile_col(int col0, int n, int e)
{
    return col0 + n * 8 + (int)threadIdx.x % 4 * 2 + e % 2;
}

#include "scores.h"

/* The key mask over a tile, loaded once by ballot: (n, e) tells whether the key of that element
 * is visible. */
template <bool TRANSPOSED, int N> struct key_mask_tile {
    static_assert(TRANSPOSED || N % 4 == 0, "32 keys to a word");
    uint32_t bits[TRANSPOSED ? 1 : N / 4];
    bool all = true;

    template <class T> __device__ key_mask_tile(const head_view<T> &head, int row0, int col0)
    {
        int lane = threadIdx.x % 32, keys = (int)head.attn.a.Tk;
        const uint8_t *mask = head.attn.a.key_mask ? head.attn.a.key_mask + (int64_t)head.b * keys
                                                   : NULL;
#pragma unroll
        for (int i = 0; i < (TRANSPOSED ? 1 : N / 4); i++) {
            int j = TRANSPOSED ? row0 + lane % 16 : col0 + i * 32 + lane;
            bits[i] = mask ? __ballot_sync(~0u, j < keys && mask[j]) : ~0u;
            all = all && bits[i] == ~0u;
        }
    }
    __device__ bool operator()(int n, int e) const
    {
        int bit = TRANSPOSED ? tile_row(0, e) % 16 : tile_col(0, n, e) % 32;
        return bits[TRANSPOSED ? 0 : n / 4] >> bit & 1;
    }
};

/* What turns the products into scores after add_scores, which has multiplied by a negative scale
 * itself: maxima are taken before this factor. */
template <int KIND, class T> __device__ inline float scale_of(const head_view<T> &head)
{
    return KIND != ANY || head.attn.scale > 0 ? head.attn.scale : 1;
}

template <int KIND, class T> __device__ inline bool has_dropout(const head_view<T> &head)
{
    return KIND == WITH_DROPOUT || (KIND != PLAIN && head.attn.a.dropout > 0);
}

/* The Philox words of column blocks 2 n and 2 n + 1: word[column parity][key half].  Where rows
 * are queries, a thread owns all eight weights of one draw.  TRANSPOSED: two threads with
 * neighbouring keys draw for one query each and exchange words by shuffle. */
template <bool TRANSPOSED, class T>
__device__ inline void dropout_bits(uint32_t (&word)[2][2], const head_view<T> &head, int row0,
                                    int col0, int n)
{
    uint32_t w[4];
    bool odd = threadIdx.x / 4 % 2;
    if constexpr (!TRANSPOSED) {
        uint32_t row = head.philox_row(tile_row(row0, 0)),
                 key = fv__philox_key_index((uint32_t)tile_col(0, 0, 0)) + (uint32_t)col0 / 4;
        fv__philox7(w, &head.attn.philox_keys, head.attn.a.rng.site, head.step, row, key + 4 * n);
        word[0][0] = w[0], word[0][1] = w[1], word[1][0] = w[2], word[1][1] = w[3];
    } else {
        uint32_t row = head.philox_row(tile_col(0, 0, odd)) + (uint32_t)col0 / 2,
                 key = fv__philox_key_index((uint32_t)tile_row(row0, 0) & ~1u);
        fv__philox7(w, &head.attn.philox_keys, head.attn.a.rng.site, head.step, row + 8 * n, key);
        uint32_t u = __shfl_xor_sync(~0u, odd ? w[0] : w[2], 4),
                 v = __shfl_xor_sync(~0u, odd ? w[1] : w[3], 4);
        word[0][0] = odd ? u : w[0], word[0][1] = odd ? v : w[1];
        word[1][0] = odd ? w[2] : u, word[1][1] = odd ? w[3] : v;
    }
}

/* x = -x where w < below.  By a predicated fma: the ALU pipe that selects is the busier one
 * here. */
__device__ inline void negate_below(float &x, uint32_t w, uint32_t below)
{
    asm("{\n.reg .pred p;\nsetp.lt.u32 p, %1, %2;\n@p fma.rn.f32 %0, %0, 0fbf800000, 0f80000000;\n}"
        : "+f"(x)
        : "r"(w), "r"(below));
}

/* Marks dropped weights of two column blocks by a minus sign: weights are never negative, and
 * the backward pass needs w of dropped pairs, too. */
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

/* The same for a strip of 16 rows. */
template <bool TRANSPOSED, int N, class T>
__device__ inline void apply_dropout(float (&s)[N][4], const head_view<T> &head, int row0, int col0)
{
    static_assert(N % 2 == 0, "16 columns to a draw");
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        uint32_t word[2][2];
        dropout_bits<TRANSPOSED>(word, head, row0, col0, n);
        mark_dropped<TRANSPOSED>(s + 2 * n, word, head.attn.drop_threshold);
    }
}

/* Two weights as half an A fragment; a dropped one becomes 0 (relu). */
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

/* score - max, the exponent of a weight.  f32: the product is rounded as the maximum was, so that
 * the largest score gives exactly 0 however large it is; in one fma its rounding error of
 * |score| 2^-24 would stay, which beyond scores of 1e9 is more than a float's exponent.  16 bits:
 * one instruction, and scores do not get there. */
template <class T> __device__ inline float exponent(float s, float scale, float row_max)
{
    return sizeof(T) == 4 ? __fmul_rn(s, scale) - row_max : fmaf(s, scale, -row_max);
}

/* w = 2^(score - lse), or 2^(score - max) / sum. */
template <class T> __device__ inline float weight_of(float s, float scale, float lse)
{
    return exp2_fast(fmaf(s, scale, -lse));
}
template <class T> __device__ inline float weight_of(float s, float scale, const row_stat &r)
{
    return exp2_fast(exponent<T>(s, scale, r.row_max)) * r.inv_sum;
}

/* Statistics for exact weights: those before dropout. */
__device__ inline row_stat weight_stat(float2 lse)
{
    return lse.y == 0 ? row_stat{INFINITY, 0, 0} : row_stat{lse.x, 1 / lse.y, 0};
}

/* Products s = q k' of a strip become weights 2^(score - lse), negative where dropped.  lse(e,
 * n): of the query of that element, one base-2 number or a row_stat. */
template <bool TRANSPOSED, int KIND, int N, class T, class L>
__device__ inline void exp_scores(float (&s)[N][4], const head_view<T> &head, int row0, int col0,
                                  bool full_tile, L lse)
{
    float scale = scale_of<KIND>(head);
    key_mask_tile<TRANSPOSED, N> seen(head, row0, col0);
    if (KIND == ANY && !head.attn.plain) add_scores<TRANSPOSED>(s, head, row0, col0);
    if (!full_tile || !seen.all) {
        int r[2] = {tile_row(row0, 0), tile_row(row0, 2)};
        int from[2] = {TRANSPOSED ? head.first_row(r[0]) : head.first_key(r[0]),
                       TRANSPOSED ? head.first_row(r[1]) : head.first_key(r[1])};
        int end[2] = {TRANSPOSED ? head.last_row(r[0], 1) : head.end_key(r[0]),
                      TRANSPOSED ? head.last_row(r[1], 1) : head.end_key(r[1])};
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
        for (int e = 0; e < 4; e++) s[n][e] = weight_of<T>(s[n][e], scale, lse(e, n));
    if (has_dropout<KIND>(head)) apply_dropout<TRANSPOSED>(s, head, row0, col0);
}

/* ds = w (keep dp - dy.y), from a weight that is negative where dropped. */
template <int KIND> __device__ inline float dscore(float w, float dp, float dy_y)
{
    return KIND == PLAIN ? w * (dp - dy_y) : fmaf(fmaxf(w, 0), dp, -fabsf(w) * dy_y);
}

/* Both of a strip: s = q k' becomes the weights after dropout, dp = dy v' becomes ds.  stat(e,
 * n) is the row_stat of that element's query. */
template <bool TRANSPOSED, int KIND, int N, class T, class L>
__device__ inline void exp_scores_and_dscores(float (&s)[N][4], float (&dp)[N][4],
                                              const head_view<T> &head, int row0, int col0,
                                              bool full_tile, L stat)
{
    exp_scores<TRANSPOSED, KIND>(s, head, row0, col0, full_tile, stat);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) dp[n][e] = dscore<KIND>(s[n][e], dp[n][e], stat(e, n).dy_y);
    if (KIND != PLAIN) zero_dropped(s);
}

/* ---- on the host ---- */

/* mask.cu: the words that a packed mask takes (0: no mask), and the mask packed into `scratch`. */
int64_t fv_cuda_mask_words(const fv_attn_args *a, bool transposed);
mask_bits fv_cuda_mask_bits(fv_stream *s, const fv_attn_args *a, bool transposed, void *scratch);

template <class T> static attn_params<T> make_params(fv_stream *s, const fv_attn_args *a)
{
    attn_params<T> attn;
    constexpr int V = 16 / sizeof(T);
    attn.a = *a;
    attn.scale = (a->scale != 0 ? a->scale : 1 / sqrtf((float)a->Wk)) * LOG2E;
    attn.bias_scale = LOG2E / attn.scale;
    attn.dropout_scale = (float)(1 / fv__keep_probability(a->dropout));
    attn.drop_threshold = fv__dropout_threshold(a->dropout) << 16;
    attn.philox_keys = fv__philox_schedule(a->rng.seed);
    attn.plain = !a->mask && !a->bias && !a->rel && attn.scale > 0;
    attn.vector_q = aligned(a->q) && a->q_row % V == 0 && a->q_batch % V == 0 && a->Wk % V == 0;
    attn.vector_k = aligned(a->k) && a->k_row % V == 0 && a->k_batch % V == 0 && a->Wk % V == 0;
    attn.vector_v = aligned(a->v) && a->v_row % V == 0 && a->v_batch % V == 0 && a->Wv % V == 0;
    attn.vector_y = aligned(a->y) && a->Wv % V == 0;
    attn.bits = mask_bits{};
    attn.bad = faults_of(s) + FAULT_LENS;
    return attn;
}

/* The tile width for these heads, 32 to 256; 0, and a failed stream, if they are wider. */
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
