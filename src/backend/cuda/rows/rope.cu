/* rope.cu - rotary positions: pairs within each head are turned by an angle proportional to the
 * position. */
#include "backend/cuda/device/cuda.h"

/* (a, b) -> (a cos - b sin, a sin + b cos), angle = pos * freq[i]; what lies behind the pairs is
 * copied.  One thread for each pair, and for each number behind them. */
template <class T> struct rope_pair {
    static constexpr int wide = 1;
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
static void rope(fv_stream *s, fv_sink y, const void *x, const int32_t *pos, const float *freq,
                 int64_t B, int64_t T_, int64_t H, int64_t W, int64_t half, bool adjacent,
                 bool back)
{
    if (y.data)
        each(s, "rope", B * T_ * H * (W - half), false,
             rope_pair<T>{to<T>(y), (const T *)x, pos, freq, H, W, half, adjacent, back});
}

template <class T> void fv_cuda_rope(fv_kernels *k) { k->rope = rope<T>; }
FOR_ALL_DTYPES(fv_cuda_rope)
