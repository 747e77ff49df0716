/* rope.c - rotary positions: pairs within each head are rotated by an angle proportional to the
 * position. */
#include "backend/ref/ref.h"

#if defined(REF_F64)
#define COS cos
#define SIN sin
#else
#define COS cosf
#define SIN sinf
#endif

/* (a, b) -> (a cos - b sin, a sin + b cos), angle = pos * freq[i]; what lies behind the pairs is
 * copied.
 * x (B,T,H,W), pos (B,T); the first 2 * half of each head rotate, the rest is partial rotary's. */
static void rope(fv_stream *s, fv_sink y, const void *x, const int32_t *pos, const float *freq,
                 int64_t B, int64_t T, int64_t H, int64_t W, int64_t half, bool adjacent, bool back)
{
    (void)s;
    if (!y.data) return;
    int64_t step = adjacent ? 2 : 1, apart = adjacent ? 1 : half;
    for (int64_t row = 0; row < B * T; row++) {
        for (int64_t i = 0; i < half; i++) {
            acc angle = (acc)pos[row] * (acc)freq[i], co = COS(angle),
                si = back ? -SIN(angle) : SIN(angle);
            for (int64_t h = 0; h < H; h++) {
                int64_t at = (row * H + h) * W + i * step;
                acc a = ld(x, at), b = ld(x, at + apart);
                sink_store(y, at, a * co - b * si);
                sink_store(y, at + apart, a * si + b * co);
            }
        }
        for (int64_t h = 0; h < H; h++)
            for (int64_t j = 2 * half; j < W; j++)
                sink_store(y, (row * H + h) * W + j, ld(x, (row * H + h) * W + j));
    }
}

void REF(rope)(fv_kernels *k);
void REF(rope)(fv_kernels *k) { k->rope = rope; }
