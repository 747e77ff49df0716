/* rope.cu - rotary position embedding, forward and (with the opposite angle) backward. */
#include "scalar.h"

namespace
{

/* (a, b) -> (a cos - b sin, a sin + b cos), angle = pos * freq[i], for the first 2 * half elements
 * of each head; the rest is copied.  Pairs are (i, i + half), or (2i, 2i + 1) if adjacent.  One
 * thread per pair and per copied element. */
template <class T>
void rope(fv_stream *s, fv_sink sink_y, const void *x_, const int32_t *pos, const float *freq,
          int64_t B, int64_t T_, int64_t H, int64_t W, int64_t half, bool adjacent, bool back)
{
    sink<T> y = to<T>(sink_y);
    const T *x = (const T *)x_;
    if (!sink_y.data) return;
    each(s, "rope", B * T_ * H * (W - half), [=] __device__(int64_t e) {
        int64_t copied = W - half, i = e % copied, head = e / copied, row = head / H;
        if (i >= half) {
            sink_put(y, head * W + half + i, to_float(x[head * W + half + i]));
            return;
        }
        int64_t p = head * W + i * (adjacent ? 2 : 1), q = p + (adjacent ? 1 : half);
        float a = to_float(x[p]), b = to_float(x[q]);
        float2 turn = rotation(pos[row], freq[i]);
        if (back) turn.y = -turn.y;
        sink_put(y, p, a * turn.x - b * turn.y);
        sink_put(y, q, a * turn.y + b * turn.x);
    });
}
} // namespace

template <class T> void fv_cuda_rope(fv_kernels *k) { k->rope = rope<T>; }
FOR_ALL_DTYPES(fv_cuda_rope)
