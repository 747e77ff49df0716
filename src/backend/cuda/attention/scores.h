/* scores.h - scores of a strip from products, where a mask by pairs or something added makes them:
 * part of attention.h.
 *
 * A mask is read as bits where they were laid out before (mask.cu), a table's numbers once for all
 * pairs of a thread that stand at one distance. */
#ifndef FV_CUDA_ATTENTION_SCORES_H
#define FV_CUDA_ATTENTION_SCORES_H

/* Hides the pairs whose bits are 0: 64 columns to two words. */
template <bool TRANSPOSED, int N, class T>
__device__ inline void mask_by_bits(float (&s)[N][4], const head<T> &at, int row0, int col0)
{
    const job<T> &o = at.o;
    const uint32_t *image = o.bits.p + at.b * o.bits.s[0] + at.h * o.bits.s[1];
    int last = (TRANSPOSED ? (int)o.a.Tk : at.rows) - 1, first = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t *row = image + (int64_t)min(tile_row(row0, 2 * i), last) * o.bits.row +
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

/* f(k, x) with a table's numbers for columns 16 k and on: x[n][e] is number e of column block 2 k +
 * n.  A thread has two rows, 8 apart: what the one meets in a block of 8 columns the other met in
 * the block before. */
template <bool TRANSPOSED, int N, class T, class F>
__device__ inline void each_distance(const head<T> &at, int row0, int col0, F f)
{
    const fv_attn_args &a = at.o.a;
    const T *table = (const T *)a.rel + at.h * a.rel_len;
    const int zero = (int)a.rel_zero - at.shift, last = (int)a.rel_len - 1,
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

/* Products, or what they are multiplied by if scores fall as they rise, become what scale_of makes
 * scores; what is out of reach gets any. */
template <bool TRANSPOSED, int N, class T>
__device__ inline void add_scores(float (&s)[N][4], const head<T> &at, int row0, int col0)
{
    const fv_attn_args &a = at.o.a;
    bool rises = at.o.scale > 0;
    float times = rises ? at.o.bias_scale : LOG2E;
    auto each = [&](auto f) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = tile_row(row0, e), c = tile_col(col0, n, e);
                f(s[n][e], min(TRANSPOSED ? c : r, at.rows - 1),
                  min(TRANSPOSED ? r : c, (int)a.Tk - 1));
            }
    };
    if (!rises) each([&](float &x, int, int) { x *= at.o.scale; });
    if (N % 8 == 0 && at.o.bits.p) {
        if constexpr (N % 8 == 0) mask_by_bits<TRANSPOSED>(s, at, row0, col0);
    } else if (a.mask) {
        const uint8_t *mask = a.mask + at.b * a.mask_s[0] + at.h * a.mask_s[1];
        each([&](float &x, int i, int j) { x = mask[i * a.mask_s[2] + j] ? x : -INFINITY; });
    }
    if (a.bias) {
        const T *bias = (const T *)a.bias + at.b * a.bias_s[0] + at.h * a.bias_s[1];
        each([&](float &x, int i, int j) {
            x = fmaf(times, to_float(bias[i * a.bias_s[2] + j]), x);
        });
    }
    if (a.rel)
        each_distance<TRANSPOSED, N>(at, row0, col0, [&](int k, const float(&x)[2][4]) {
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[2 * k + n][e] = fmaf(times, x[n][e], s[2 * k + n][e]);
        });
}

#endif
