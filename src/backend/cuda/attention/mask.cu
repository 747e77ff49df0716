/* mask.cu - packs a byte mask by pairs into bits: kernels read it at every tile, an eighth of
 * the bytes and 32 pairs a load.
 *
 * Packed once a call, read by every tile of every head: for a mask without head axis H times.
 * Rows are padded to BITS_TILE columns, so that a tile loads whole words without a bounds test. */
#include "attention.h"

namespace
{

/* Word w of row r of a (sequence, head) plane: 32 keys of a query, or 32 queries of a key. */
struct pack_mask_bits {
    const uint8_t *mask;
    uint32_t *bits;
    int64_t of_sequence, of_head, of_row; /* strides of the mask */
    int heads, rows, columns, words;
    bool transposed, vectorised; /* vectorised: 16 bytes a load */

    __device__ void operator()(int64_t i) const
    {
        int w = (int)(i % words), r = (int)(i / words % rows), plane = (int)(i / words / rows);
        const uint8_t *from = mask + plane / heads * of_sequence + plane % heads * of_head;
        int first = w * 32, count = min(32, columns - first);
        uint32_t word = 0;
        if (transposed) {
            for (int c = 0; c < count; c++)
                word |= (uint32_t)(from[(first + c) * of_row + r] != 0) << c;
        } else if (vectorised && count == 32) {
            const uint4 *of = (const uint4 *)(from + r * of_row + first);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint4 x = of[half];
                word |= (nonzero_bytes(x.x) | nonzero_bytes(x.y) << 4 | nonzero_bytes(x.z) << 8 |
                         nonzero_bytes(x.w) << 12)
                        << 16 * half;
            }
        } else {
            for (int c = 0; c < count; c++)
                word |= (uint32_t)(from[r * of_row + first + c] != 0) << c;
        }
        bits[i] = word;
    }

  private:
    /* Which of four bytes are not 0: each is folded into its lowest bit, and the product gathers
     * those into the top four bits. */
    __device__ static uint32_t nonzero_bytes(uint32_t x)
    {
        x |= x >> 4 & 0x0f0f0f0f;
        x |= x >> 2 & 0x3f3f3f3f;
        x |= x >> 1 & 0x7f7f7f7f;
        return (x & 0x01010101) * 0x10204080 >> 28;
    }
};

int words_of(const fv_attn_args *a, bool transposed)
{
    return (int)ceil_div(transposed ? a->Tq : a->Tk, BITS_TILE) * (BITS_TILE / 32);
}

} // namespace

int64_t fv_cuda_mask_words(const fv_attn_args *a, bool transposed)
{
    if (!a->mask) return 0;
    return (a->mask_s[0] ? a->B : 1) * (a->mask_s[1] ? a->H : 1) * (transposed ? a->Tk : a->Tq) *
           words_of(a, transposed);
}

mask_bits fv_cuda_mask_bits(fv_stream *s, const fv_attn_args *a, bool transposed, void *scratch)
{
    if (!a->mask) return mask_bits{};
    bool each_head = a->mask_s[1];
    int64_t rows = transposed ? a->Tk : a->Tq, words = words_of(a, transposed),
            plane = rows * words;
    mask_bits to = {(uint32_t *)scratch,
                    {a->mask_s[0] ? plane * (each_head ? a->H : 1) : 0, each_head ? plane : 0},
                    (int)words};
    pack_mask_bits pack_bits = {a->mask,
                                (uint32_t *)scratch,
                                a->mask_s[0],
                                a->mask_s[1],
                                a->mask_s[2],
                                each_head ? (int)a->H : 1,
                                (int)rows,
                                (int)(transposed ? a->Tq : a->Tk),
                                (int)words,
                                transposed,
                                aligned(a->mask) && a->mask_s[0] % 16 == 0 &&
                                    a->mask_s[1] % 16 == 0 && a->mask_s[2] % 16 == 0};
    each(s, "attention", fv_cuda_mask_words(a, transposed), pack_bits);
    return to;
}
