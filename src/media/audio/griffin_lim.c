/* griffin_lim.c - samples whose mel spectrogram is a given one, without a trained vocoder.
 *
 *     S = the magnitudes of bins whose filters give mel        (nonnegative least squares)
 *     c = S e^(i random);  then, again and again:
 *     d = STFT(ISTFT(c));  t = d + 0.99 (d - last d);  c = S t / |t|
 *
 * Griffin and Lim 1984, with the momentum of Perraudin et al. 2013, which comes as near in a third
 * of the rounds.  A spectrogram of overlapping frames says nearly everything about a signal: only
 * phases that fit together at the overlaps are those of one, and each round makes them fit better.
 *
 * The magnitudes are found by Lee and Seung's multiplicative updates, S *= B'm / B'B S, which keep
 * them positive; the pseudo-inverse of the filters that is often taken gives negative ones, which
 * must be cut off.
 *
 * The inverse transform is the forward one: with h = Re X - Im X of the whole, symmetric spectrum,
 * its transform F gives x[n] = (Re F[n] - Im F[n]) / N, Hartley's way.  So one FFT serves both. */
#include "media/audio/griffin_lim.h"

#include <math.h>

#include "fovea/author/backend.h"

#define PI 3.14159265358979323846
enum { LEAST_SQUARES_ROUNDS = 60 };

typedef struct work {
    const fv__spectrum *s;
    int64_t frames, n; /* samples, with half a window at either side */
    float *magnitude;  /* (frames,bins) */
    float *now, *last; /* (frames,bins,2): the spectra of this round and of the one before */
    float *wave;       /* (n) */
    double *sum;       /* (n) */
    double *cover;     /* (n): squares of the windows above each sample */
    float *frame;      /* (fft) */
    void *transform;
} work;

/* ---- magnitudes ---- */

/* y (mels) = B x;  x (bins) = B' y: filters are 0 outside [from,to). */
static void filter(const fv__spectrum *s, double *y, const float *x)
{
    for (int m = 0; m < s->o.mels; m++) {
        y[m] = 0;
        for (int f = s->from[m]; f < s->to[m]; f++)
            y[m] += (double)s->bank[m * s->bins + f] * (double)x[f];
    }
}

static void spread(const fv__spectrum *s, double *x, const double *y)
{
    for (int f = 0; f < s->bins; f++) x[f] = 0;
    for (int m = 0; m < s->o.mels; m++)
        for (int f = s->from[m]; f < s->to[m]; f++) x[f] += (double)s->bank[m * s->bins + f] * y[m];
}

/* x (bins) so that B x is near mel (mels); `sums` has room for 2 (mels + bins) numbers.  Bins that
 * no filter hears stay 0. */
static void invert(const fv__spectrum *s, float *x, const float *mel, double *sums)
{
    double *y = sums, *seen = y + s->o.mels, *want = seen + s->o.mels, *have = want + s->bins;
    for (int m = 0; m < s->o.mels; m++) y[m] = (double)mel[m];
    spread(s, want, y);
    for (int f = 0; f < s->bins; f++) x[f] = want[f] > 0 ? 1 : 0;
    for (int round = 0; round < LEAST_SQUARES_ROUNDS; round++) {
        filter(s, seen, x);
        spread(s, have, seen);
        for (int f = 0; f < s->bins; f++)
            x[f] = (float)((double)x[f] * want[f] / (have[f] + 1e-12));
    }
}

/* ---- transforms ---- */

/* now = STFT of the wave. */
static void analyse(work *w)
{
    const fv__spectrum *s = w->s;
    for (int64_t t = 0; t < w->frames; t++) {
        const float *x = w->wave + t * s->o.hop;
        for (int i = 0; i < s->o.fft; i++)
            w->frame[i] = i < s->o.window ? (float)((double)x[i] * s->window[i]) : 0;
        memcpy(w->now + t * s->bins * 2, fv__transform(s, w->transform, w->frame),
               (size_t)s->bins * 2 * sizeof *w->now);
    }
}

/* One frame's samples, of bins y (bins,2), into w->frame. */
static void invert_frame(work *w, const float *y)
{
    int N = w->s->o.fft, half = N / 2;
    for (int k = 0; k <= half; k++) {
        float re = y[2 * k], im = k && k < half ? y[2 * k + 1] : 0; /* of a real signal */
        w->frame[k] = re - im;
        if (k && k < half) w->frame[N - k] = re + im;
    }
    const float *F = fv__transform(w->s, w->transform, w->frame);
    for (int n = 0; n <= half; n++) {
        float re = F[2 * n] / (float)N, im = F[2 * n + 1] / (float)N;
        w->frame[n] = re - im;
        if (n && n < half) w->frame[N - n] = re + im;
    }
}

/* wave = the signal whose windowed frames are nearest to those of now: their sum under the window,
 * divided by the sum of its squares. */
static void synthesise(work *w)
{
    const fv__spectrum *s = w->s;
    for (int64_t i = 0; i < w->n; i++) w->sum[i] = 0;
    for (int64_t t = 0; t < w->frames; t++) {
        invert_frame(w, w->now + t * s->bins * 2);
        for (int i = 0; i < s->o.window; i++)
            w->sum[t * s->o.hop + i] += (double)w->frame[i] * s->window[i];
    }
    for (int64_t i = 0; i < w->n; i++)
        w->wave[i] = w->cover[i] > 1e-9 ? (float)(w->sum[i] / w->cover[i]) : 0;
}

/* ---- rounds ---- */

/* The first phases: whatever they are, rounds lead to a signal, not always to the same. */
static void draw_phases(work *w, uint64_t seed)
{
    int64_t n = w->frames * w->s->bins;
    for (int64_t i = 0; i < n; i++) {
        uint32_t word[4];
        fv_philox(word, seed, 0, 0, (uint64_t)i);
        double angle = 2 * PI * word[0] / 4294967296.0;
        w->now[2 * i] = (float)((double)w->magnitude[i] * cos(angle));
        w->now[2 * i + 1] = (float)((double)w->magnitude[i] * sin(angle));
    }
}

/* now (the wave's) -> now with the wanted magnitudes, beyond where the last round came from. */
static void constrain(work *w, bool first)
{
    int64_t n = w->frames * w->s->bins;
    for (int64_t i = 0; i < n; i++) {
        float re = w->now[2 * i], im = w->now[2 * i + 1];
        double x = (double)re, y = (double)im;
        if (!first) {
            x += 0.99 * (x - (double)w->last[2 * i]);
            y += 0.99 * (y - (double)w->last[2 * i + 1]);
        }
        w->last[2 * i] = re;
        w->last[2 * i + 1] = im;
        double by = (double)w->magnitude[i] / (sqrt(x * x + y * y) + 1e-16);
        w->now[2 * i] = (float)(x * by);
        w->now[2 * i + 1] = (float)(y * by);
    }
}

static void measure_cover(work *w)
{
    const fv__spectrum *s = w->s;
    for (int64_t i = 0; i < w->n; i++) w->cover[i] = 0;
    for (int64_t t = 0; t < w->frames; t++)
        for (int i = 0; i < s->o.window; i++)
            w->cover[t * s->o.hop + i] += s->window[i] * s->window[i];
}

/* The arrays of a work, one behind the other in one block; its bytes. */
static size_t assign_arrays(work *w, char *memory)
{
    size_t cells = (size_t)(w->frames * w->s->bins), n = (size_t)w->n,
           transform = fv__transform_bytes(w->s), doubles = 2 * n * sizeof(double),
           floats = 5 * cells + n + (size_t)w->s->o.fft;
    if (memory) {
        w->transform = memory;
        w->sum = (double *)(void *)(memory + transform);
        w->cover = w->sum + n;
        w->magnitude = (float *)(void *)(memory + transform + doubles);
        w->now = w->magnitude + cells;
        w->last = w->now + 2 * cells;
        w->wave = w->last + 2 * cells;
        w->frame = w->wave + n;
    }
    return transform + doubles + floats * sizeof(float);
}

static void run(work *w, const float *mel, double *sums, int rounds, uint64_t seed)
{
    const fv__spectrum *s = w->s;
    for (int64_t t = 0; t < w->frames; t++)
        invert(s, w->magnitude + t * s->bins, mel + t * s->o.mels, sums);
    measure_cover(w);
    draw_phases(w, seed);
    for (int i = 0; i < rounds; i++) {
        synthesise(w);
        analyse(w);
        constrain(w, !i);
    }
    synthesise(w);
}

fv_status fv__griffin_lim(const fv__spectrum *s, fv_clip *out, const float *mel, int64_t frames,
                          int rounds, uint64_t seed, fv_err *e)
{
    work w = {.s = s, .frames = frames, .n = (frames - 1) * s->o.hop + s->o.window};
    int64_t samples = (frames - 1) * s->o.hop;
    if (frames < 2 || w.n > FV_CLIP_MOST)
        return fv_fail(e, FV_EARG,
                       "a spectrogram of %lld frames: expected 2 or more, of at most "
                       "%lld samples",
                       (long long)frames, (long long)FV_CLIP_MOST);
    fv_status st = fv_clip_new(out, s->env, s->o.rate, samples, e);
    if (st) return st;
    size_t bytes = assign_arrays(&w, NULL),
           more = 2 * (size_t)(s->o.mels + s->bins) * sizeof(double);
    char *memory = fv__alloc(s->env, bytes);
    double *sums = fv__alloc(s->env, more);
    if (memory && sums) {
        assign_arrays(&w, memory);
        fv__transform_open(s, w.transform);
        run(&w, mel, sums, rounds, seed);
        memcpy(out->data, w.wave + s->o.window / 2, (size_t)samples * sizeof *out->data);
    } else {
        st = fv_fail(e, FV_ENOMEM, "samples of %lld frames: out of memory", (long long)frames);
    }
    fv__free(s->env, memory, bytes);
    fv__free(s->env, sums, more);
    return st;
}
