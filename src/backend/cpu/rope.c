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
static void rotate_halves(float *y, const float *x, const float *cos, const float *sin,
                          int64_t half)
{
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        y[i] = a * cos[i] - b * sin[i];
        y[i + half] = a * sin[i] + b * cos[i];
    }
}

static void rotate_adjacent(float *y, const float *x, const float *cos, const float *sin,
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

typedef struct {
    fv_sink y;
    const void *x;
    const int32_t *pos;
    const float *freq;
    float *work;
    int64_t table, each, H, W, half;
    bool adjacent, back;
} OF(rope_args);

static void OF(rope_part)(void *arg, int64_t lo, int64_t hi, int slot)
{
    const OF(rope_args) *l = arg;
    for (int64_t r = lo; r < hi; r++) {
        float *cos = l->work + slot * l->each, *sin = cos + l->table, *in = sin + l->table;
        const float *from = fetch(in, l->x, r * l->H * l->W, l->H * l->W, DTYPE);
        float *to = sink_target(l->y, r * l->H * l->W, in + l->H * l->W);
        angles(cos, sin, l->freq, l->half, l->pos[r], l->back);
        for (int64_t h = 0; h < l->H; h++) {
            (l->adjacent ? rotate_adjacent : rotate_halves)(to + h * l->W, from + h * l->W, cos,
                                                            sin, l->half);
            memmove(to + h * l->W + 2 * l->half, from + h * l->W + 2 * l->half,
                    (size_t)(l->W - 2 * l->half) * sizeof *to);
        }
        sink_store(l->y, r * l->H * l->W, to, l->H * l->W);
    }
}

static void OF(rope)(fv_stream *s, fv_sink y, const void *x, const int32_t *pos, const float *freq,
                     int64_t B, int64_t T, int64_t H, int64_t W, int64_t half, bool adjacent,
                     bool back)
{
    if (!y.data) return;
    int threads = threads_for(s, B * T * H * W);
    int64_t table = pieces(half, VW) * VW, each = 2 * table + 2 * H * W;
    float *work = fv_stream_scratch(s, (size_t)(threads * each) * sizeof *work);
    if (!work) return;
    fv__cpu_parallel(s, threads, B * T, 0, OF(rope_part),
                     &(OF(rope_args)){y, x, pos, freq, work, table, each, H, W, half, adjacent,
                                      back});
}

static void OF(table)(fv_kernels *k) { k->rope = OF(rope); }
#endif
