/* rope.c - rotary positions: pairs within each head are rotated by an angle proportional to
 * the position. */
#ifndef DTYPE
#include "stage.h"
#include "vmath.h"

/* cos and sin of pos * freq[i], once for all heads of a row; the arrays are padded to whole
 * vectors. */
static void angles(float *cos, float *sin, const float *freq, int64_t half, int32_t pos, bool back)
{
    vf p = v_set1((float)pos);
    for (int64_t i = 0; i < half; i += VW) {
        vf s, c;
        v_sincos(&s, &c, v_mul(p, v_load_n(freq + i, half - i, 0)));
        v_store(cos + i, c);
        v_store(sin + i, back ? v_neg(s) : s);
    }
}

/* (a, b) -> (a cos - b sin, a sin + b cos), with a and b half a head apart
 * Pairs (i, i + half) are the convention of GPT-NeoX and of Llama checkpoints on Hugging Face,
 * pairs (2i, 2i + 1) that of GPT-J and of the paper (Su et al., 2021).  The gradient is the
 * rotation back. */
static void transpose_halves(float *y, const float *x, const float *cos, const float *sin,
                             int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        y[i] = a * cos[i] - b * sin[i];
        y[i + half] = a * sin[i] + b * cos[i];
    }
}

static void transpose_neighbours(float *y, const float *x, const float *cos, const float *sin,
                                 int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1];
        y[2 * i] = a * cos[i] - b * sin[i];
        y[2 * i + 1] = a * sin[i] + b * cos[i];
    }
}

#define BY_DTYPE "rope.c"
#include "by_dtype.h"

void NAME(rope)(fv_kernels *k);
void NAME(rope)(fv_kernels *k) { fill_by_dtype(k); }

#else /* the kernel of dtype DTYPE */

static void OF(rope)(fv_stream *s, fv_sink y, const void *x, const int32_t *pos, const float *freq,
                     int64_t B, int64_t T, int64_t H, int64_t W, int64_t half, bool adjacent,
                     bool back)
{
    if (!y.data) return;
    int threads = threads_for(s, B * T * H * W);
    int64_t table = pieces(half, VW) * VW, each = 2 * table + 2 * H * W;
    float *work = fv_stream_scratch(s, (size_t)(threads * each) * sizeof *work);
    if (!work) return;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < B * T; r++) {
        float *cos = work + omp_get_thread_num() * each, *sin = cos + table, *in = sin + table;
        const float *from = fetch(in, x, r * H * W, H * W, DTYPE);
        float *to = sink_target(y, r * H * W, in + H * W);
        angles(cos, sin, freq, half, pos[r], back);
        for (int64_t h = 0; h < H; h++) {
            (adjacent ? transpose_neighbours : transpose_halves)(to + h * W, from + h * W, cos, sin,
                                                                 half);
            memmove(to + h * W + 2 * half, from + h * W + 2 * half,
                    (size_t)(W - 2 * half) * sizeof *to);
        }
        sink_store(y, r * H * W, to, H * W);
    }
}

static void OF(table)(fv_kernels *k) { k->rope = OF(rope); }
#endif
