/* rope.cu - rotary position embedding, forward and (with the opposite angle) backward. */
#include "backend/cuda/device/cuda.h"

namespace
{

/* (a, b) -> (a cos - b sin, a sin + b cos), angle = pos * freq[i], for the first 2 * half elements
 * of each head; the rest is copied.  Pairs are (i, i + half), or (2i, 2i + 1) if adjacent.  One
 * thread per pair and per copied element. */
template <class T> struct rope_pair {
    sink<T> y;
    const T *x;
    const int32_t *pos;
    const float *freq;
    int64_t H, W, half;
    bool adjacent, back;
    template <int V> __device__ void at(int64_t e) const
    {
        int64_t copied = W - half, i = e % copied, head = e / copied, row = head / H;
        if (i >= half) {
            sink_put(y, head * W + half + i, to_float(x[head * W + half + i]));
            return;
        }
        int64_t p = head * W + i * (adjacent ? 2 : 1), q = p + (adjacent ? 1 : half);
        float co, si, a = to_float(x[p]), b = to_float(x[q]);
        sincosf((float)pos[row] * freq[i], &si, &co);
        if (back) si = -si;
        sink_put(y, p, a * co - b * si);
        sink_put(y, q, a * si + b * co);
    }
};

template <class T>
void rope(fv_stream *s, fv_sink y, const void *x, const int32_t *pos, const float *freq, int64_t B,
          int64_t T_, int64_t H, int64_t W, int64_t half, bool adjacent, bool back)
{
    if (y.data)
        each(s, "rope", B * T_ * H * (W - half),
             rope_pair<T>{to<T>(y), (const T *)x, pos, freq, H, W, half, adjacent, back});
}
} // namespace

template <class T> void fv_cuda_rope(fv_kernels *k) { k->rope = rope<T>; }
FOR_ALL_DTYPES(fv_cuda_rope)
