/* quant.cu - weights of 8 and 4 bits: made from floats, or laid out as the GPU reads them, when a
 * model is opened, and widened again where many rows are multiplied.
 *
 *     FV_Q8:  scale = max|w| / 127,  q = round(w 127 / max|w|)
 *     FV_Q4:  scale = w_max / -8,    q = min(round(w -8 / w_max), 7),  w_max of largest magnitude
 *
 * as the CPU has them (src/store/quant.c), so both devices multiply by the same weights. */
#include "quant.h"

namespace
{

#define TINY 0x1p-100f /* a block of such values is 0 */

/* One thread per block of a row; rows from n on fill the last tile. */
template <class T>
void quantise(fv_stream *s, char *out, fv_dtype to, const T *w, int64_t n, int64_t k, int64_t ld,
              bool tb)
{
    int64_t blocks = quant_blocks(k), rows = ceil_div(n, QUANT_ROWS) * QUANT_ROWS;
    each(s, "pack", rows * blocks, [=] __device__(int64_t e) {
        int64_t r = e / blocks, b = e % blocks;
        float x[QUANT_BLOCK], most = 0;
        for (int i = 0; i < QUANT_BLOCK; i++) {
            int64_t c = b * QUANT_BLOCK + i;
            x[i] = r < n && c < k ? to_float(w[tb ? r * ld + c : c * ld + r]) : 0;
            if (fabsf(x[i]) > fabsf(most)) most = x[i];
        }
        const row_start<char> row(out, to, r, k);
        char *value = row.value + b * row.block_bytes;
        bool none = fabsf(most) < TINY;
        float most8 = fabsf(most), by8 = none ? 0 : 127.0f / most8, by4 = none ? 0 : -8.0f / most;
        float scale = to == FV_Q8 ? most8 / 127.0f : most / -8.0f;
        *(float *)(row.scale + b * row.block_bytes) = none ? 0 : scale;
        for (int i = 0; to == FV_Q8 && i < QUANT_BLOCK; i++)
            value[i] = (char)(int)rintf(x[i] * by8);
        for (int i = 0; to == FV_Q4 && i < QUANT_BLOCK / 8; i++) {
            unsigned word = 0;
            for (int j = 0; j < 8; j++) {
                unsigned q = (unsigned)((int)fminf(rintf(x[8 * i + j] * by4), 7.0f) + 8);
                word |= q << (j / 2 * 4 + j % 2 * 16);
            }
            ((unsigned *)value)[i] = word;
        }
    });
}

/* Rows of blocks as files have them (widen_blocks), to tiles: the same numbers. */
void tile_blocks(fv_stream *s, char *out, fv_dtype t, const char *rows, int64_t n, int64_t k)
{
    int64_t blocks = quant_blocks(k), all = ceil_div(n, QUANT_ROWS) * QUANT_ROWS;
    int bytes = quant_row_bytes(t);
    each(s, "pack", all * blocks, [=] __device__(int64_t e) {
        int64_t r = e / blocks, b = e % blocks;
        const row_start<char> row(out, t, r, k);
        const unsigned *from = (const unsigned *)(rows + e * (bytes + (int)sizeof(float)));
        unsigned *value = (unsigned *)(row.value + b * row.block_bytes);
        *(unsigned *)(row.scale + b * row.block_bytes) = r < n ? from[0] : 0;
        for (int i = 0; t == FV_Q8 && i < QUANT_BLOCK / 4; i++) value[i] = r < n ? from[1 + i] : 0;
        for (int i = 0; t == FV_Q4 && i < QUANT_BLOCK / 8; i++) {
            unsigned word = 0;
            for (int j = 0; j < 8; j++) {
                int at = i % 2 * 8 + j; /* of 16 bytes, each with values `at` and at + 16 */
                unsigned two = r < n ? from[1 + at / 4] >> at % 4 * 8 : 0;
                unsigned q = ((i < 2 ? two : two >> 4) & 15) ^ 8; /* two's complement, + 8 */
                word |= q << (j / 2 * 4 + j % 2 * 16);
            }
            value[i] = word;
        }
    });
}

/* Eight neighbours a thread; what is behind the last of a row is padding.  A decode step of many
 * rows comes here (fused_linear_many.cu), with weights whose index needs no 64 bits. */
template <int WT> void dequantise(fv_stream *s, bf16 *out, const char *w, int64_t n, int64_t k)
{
    int64_t groups = ceil_div(k, 8);
    each(s, "gemm", n * groups, [=] __device__(int64_t e) {
        int64_t r = n * groups < UINT32_MAX ? (unsigned)e / (unsigned)groups : e / groups,
                i = (e - r * groups) * 8;
        weight_part<WT> part;
        const row_start<const char> row(w, WT, r, k);
        part.load(row.value + i % QUANT_BLOCK * part.VALUE_BITS / 8, row.scale,
                  (int)(i / QUANT_BLOCK));
        uint4 v = part.bf16x8();
        const bf16 *q = (const bf16 *)&v;
        float y[8];
        for (int j = 0; j < 8; j++) y[j] = part.scale * to_float(q[j]);
        if (k % 8 == 0) store(out, r * k + i, y);
        for (int j = 0; k % 8 && j < 8 && i + j < k; j++)
            out[r * k + i + j] = from_float<bf16>(y[j]);
    });
}
/* The layout of files: a block is an f32 scale and 32 bytes, or 16 with values k and k + 16 in four
 * bits of two's complement each. */
template <class T>
void widen_blocks(fv_stream *s, void *y, fv_dtype t, const void *rows, int64_t out, int64_t in)
{
    bool four = t == FV_Q4;
    int64_t block_bytes = 4 + (four ? QUANT_BLOCK / 2 : QUANT_BLOCK),
            row_bytes = quant_blocks(in) * block_bytes;
    each(s, "widen_blocks", out * in, [=] __device__(int64_t e) {
        int64_t c = e % in;
        int i = (int)(c % QUANT_BLOCK);
        const char *block = (const char *)rows + e / in * row_bytes + c / QUANT_BLOCK * block_bytes;
        int byte = block[4 + (four ? i % (QUANT_BLOCK / 2) : i)];
        int q = !four ? byte : i < QUANT_BLOCK / 2 ? (int)(signed char)(byte << 4) >> 4 : byte >> 4;
        ((T *)y)[e] = from_float<T>(*(const float *)block * (float)q);
    });
}
} // namespace

template <class T> void fv_cuda_quant(fv_kernels *k) { k->widen_blocks = widen_blocks<T>; }
FOR_ALL_DTYPES(fv_cuda_quant)

void fv_cuda_quantise(fv_stream *s, void *out, fv_dtype to, const void *w, fv_dtype from, int64_t n,
                      int64_t k, int64_t ld, bool tb)
{
    if (is_quantised(from))
        tile_blocks(s, (char *)out, to, (const char *)w, n, k);
    else if (from == FV_BF16)
        quantise(s, (char *)out, to, (const bf16 *)w, n, k, ld, tb);
    else if (from == FV_F16)
        quantise(s, (char *)out, to, (const f16 *)w, n, k, ld, tb);
    else
        quantise(s, (char *)out, to, (const float *)w, n, k, ld, tb);
}

void fv_cuda_dequantise(fv_stream *s, bf16 *out, const void *w, fv_dtype t, int64_t n, int64_t k)
{
    if (t == FV_Q8)
        dequantise<FV_Q8>(s, out, (const char *)w, n, k);
    else
        dequantise<FV_Q4>(s, out, (const char *)w, n, k);
}
