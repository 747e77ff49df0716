/* scores.h - what makes scores of products besides the scale: masks by pairs, biases, the table
 * by relative position.  Part of attention.h.
 *
 * A mask is read as bits where mask.cu has packed it: an eighth of the bytes, and 32 pairs a
 * load.  A table entry is loaded once for all of a thread's pairs at that distance. */
#ifndef FV_CUDA_ATTENTION_SCORES_H
#define FV_CUDA_ATTENTION_SCORES_H

/* -inf where the mask bit is 0; 64 columns are two words. */
template <bool TRANSPOSED, int N, class T>
__device__ inline void mask_by_bits(float (&s)[N][4], const head_view<T> &head, int row0, int col0)
{
    const attn_params<T> &attn = head.attn;
    const uint32_t *plane = attn.bits.p + head.b * attn.bits.s[0] + head.h * attn.bits.s[1];
    int last = (TRANSPOSED ? (int)attn.a.Tk : head.rows) - 1, first = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t *row = plane + (int64_t)min(tile_row(row0, 2 * i), last) * attn.bits.row +
                              col0 / 32;
#pragma unroll
        for (int n = 0; n < N; n += 8) {
            uint2 two = *(const uint2 *)(row + n / 4);
            uint32_t word[2] = {two.x >> first, two.y >> first};
#pragma unroll
            for (int m = 0; m < 8; m++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(word[m / 4] >> (m % 4 * 8 + e) & 1)) s[n + m][2 * i + e] = -INFINITY;
        }
    }
}

/* Calls f(k, x) with the table's entries for columns 16 k .. 16 k + 15: x[n][e] is element e of
 * column block 2 k + n.  A thread's two rows are 8 apart, so the second has in a block what the
 * first had in the block before: half of the loads.
 * Distances of a thread in column block n: its first row has j - i, its second, 8 rows below, j
 * - i - 8, which the first row had in block n - 1. */
template <bool TRANSPOSED, int N, class T, class F>
__device__ inline void each_distance(const head_view<T> &head, int row0, int col0, F f)
{
    const fv_attn_args &a = head.attn.a;
    const T *table = (const T *)a.rel + head.h * a.rel_len;
    const int zero = (int)a.rel_zero - head.shift, last = (int)a.rel_len - 1,
              side = TRANSPOSED ? -1 : 1;
    int lowest = zero + (TRANSPOSED ? row0 - col0 - 8 * N + 1 : col0 - row0 - 15),
        highest = lowest + 8 * N + 14;
    int from = zero + side * (tile_col(col0, 0, 0) - tile_row(row0, 0));
    auto all = [&](auto number) {
        float before[2] = {number(-8 * side), number(-7 * side)};
#pragma unroll
        for (int k = 0; k < N / 2; k++) {
            float x[2][4];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    x[n][e] = number((16 * k + 8 * n + e) * side);
                    x[n][2 + e] = n ? x[0][e] : before[e];
                }
            before[0] = x[1][0];
            before[1] = x[1][1];
            f(k, x);
        }
    };
    if (lowest >= 0 && highest <= last)
        all([&](int i) { return to_float(table[from + i]); });
    else
        all([&](int i) { return to_float(table[max(0, min(from + i, last))]); });
}

/* Adds mask, bias and table to products, in units of the product; scale_of then gives scores.
 * Where scale <= 0 products are multiplied first, as their maximum would be the minimum of
 * scores.  Pairs out of range get any finite value and are masked later. */
template <bool TRANSPOSED, int N, class T>
__device__ inline void add_scores(float (&s)[N][4], const head_view<T> &head, int row0, int col0)
{
    const fv_attn_args &a = head.attn.a;
    bool rises = head.attn.scale > 0;
    float bias_scale = rises ? head.attn.bias_scale : LOG2E;
    auto each = [&](auto f) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = tile_row(row0, e), c = tile_col(col0, n, e);
                f(s[n][e], min(TRANSPOSED ? c : r, head.rows - 1),
                  min(TRANSPOSED ? r : c, (int)a.Tk - 1));
            }
    };
    if (!rises) each([&](float &x, int, int) { x *= head.attn.scale; });
    if (N % 8 == 0 && head.attn.bits.p) {
        if constexpr (N % 8 == 0) mask_by_bits<TRANSPOSED>(s, head, row0, col0);
    } else if (a.mask) {
        const uint8_t *mask = a.mask + head.b * a.mask_s[0] + head.h * a.mask_s[1];
        each([&](float &x, int i, int j) { x = mask[i * a.mask_s[2] + j] ? x : -INFINITY; });
    }
    if (a.bias) {
        const T *bias = (const T *)a.bias + head.b * a.bias_s[0] + head.h * a.bias_s[1];
        each([&](float &x, int i, int j) {
            x = fmaf(bias_scale, to_float(bias[i * a.bias_s[2] + j]), x);
        });
    }
    if (a.rel)
        each_distance<TRANSPOSED, N>(head, row0, col0, [&](int k, const float(&x)[2][4]) {
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[2 * k + n][e] = fmaf(bias_scale, x[n][e], s[2 * k + n][e]);
        });
}

#endif
