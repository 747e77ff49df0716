/* mask.cu - a mask by pairs as bits, which kernels read at every tile: an eighth of its bytes, 32
 * pairs at a time. */
#include "attention.h"

/* Word w of row r of an image: 32 keys of a query, or 32 queries of a key. */
struct lay_bits {
    static constexpr int wide = 1;
    const uint8_t *mask;
    uint32_t *bits;
    int64_t of_sequence, of_head, of_row; /* of the mask */
    int heads, rows, columns, words;
    bool transposed, vectorised; /* quick: 16 bytes at a time */

    template <int V> __device__ void at(int64_t i) const
    {
        int w = (int)(i % words), r = (int)(i / words % rows), image = (int)(i / words / rows);
        const uint8_t *from = mask + image / heads * of_sequence + image % heads * of_head;
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
                word |= (four(x.x) | four(x.y) << 4 | four(x.z) << 8 | four(x.w) << 12)
                        << 16 * half;
            }
        } else {
            for (int c = 0; c < count; c++)
                word |= (uint32_t)(from[r * of_row + first + c] != 0) << c;
        }
        bits[i] = word;
    }

  private:
    /* Which of four bytes are not 0.  The product moves the lowest bit of each to the upper
     * four. */
    __device__ static uint32_t four(uint32_t x)
    {
        x |= x >> 4 & 0x0f0f0f0f;
        x |= x >> 2 & 0x3f3f3f3f;
        x |= x >> 1 & 0x7f7f7f7f;
        return (x & 0x01010101) * 0x10204080 >> 28;
    }
};

static int words_of(const fv_attn_args *a, bool transposed)
{
    return (int)ceil_div(transposed ? a->Tq : a->Tk, BITS_TILE) * (BITS_TILE / 32);
}

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
            image = rows * words;
    mask_bits to = {(uint32_t *)scratch,
                    {a->mask_s[0] ? image * (each_head ? a->H : 1) : 0, each_head ? image : 0},
                    (int)words};
    lay_bits lay = {a->mask,
                    (uint32_t *)scratch,
                    a->mask_s[0],
                    a->mask_s[1],
                    a->mask_s[2],
                    each_head ? (int)a->H : 1,
                    (int)rows,
                    (int)(transposed ? a->Tq : a->Tk),
                    (int)words,
                    transposed,
                    aligned(a->mask) && a->mask_s[0] % 16 == 0 && a->mask_s[1] % 16 == 0 &&
                        a->mask_s[2] % 16 == 0};
    each(s, "attention", fv_cuda_mask_words(a, transposed), false, lay);
    return to;
}
