/* spectrum.c - frames of a clip through a window, an FFT and a bank of mel filters.
 *
 *     y[t,m] = sum_f bank[m,f] |FFT(window * frame_t)|[f] ^ p,   p = 1 or 2
 *
 * One engine serves all extractors; what differs is data (spectrum.h).  Frames are cut and windowed
 * in double and rounded once, as NumPy's extractors do; kissfft computes in float, which is what
 * PyTorch's stft does.  Filters are triangles: a range of bins is stored with each, because most of
 * a row is 0. */
#include "media/audio/spectrum.h"

#include <math.h>

#ifdef HAVE_AUDIO
#include <kissfft/kiss_fftr.h>
#else
#include "media/audio/fft.h"
#endif

#define PI 3.14159265358979323846

/* ---- mel scales ---- */

/* Slaney's: linear to 1 kHz, logarithmic above. */
static double slaney_mel(double hz)
{
    return hz < 1000 ? 3 * hz / 200 : 15 + log(hz / 1000) * 27 / log(6.4);
}

static double slaney_hz(double mel)
{
    return mel < 15 ? 200 * mel / 3 : 1000 * exp(log(6.4) / 27 * (mel - 15));
}

static double kaldi_mel(double hz) { return 1127 * log(1 + hz / 700); }

/* The triangle between three corners at x: in Hz for Slaney's filters, in mel for Kaldi's. */
static double triangle(double x, const double corner[3])
{
    double up = (x - corner[0]) / (corner[1] - corner[0]),
           down = (corner[2] - x) / (corner[2] - corner[1]);
    double y = up < down ? up : down;
    return y > 0 ? y : 0;
}

/* mels + 2 corners, evenly spaced on the mel scale; filter m rises from corner m to m + 1 and falls
 * to m + 2. Slaney's triangles are drawn over Hz, Kaldi's over mels. */
static double corner_at(const fv__spectrum_opt *o, int i)
{
    double share = (double)i / (o->mels + 1);
    if (!o->slaney) {
        double low = kaldi_mel(o->low), high = kaldi_mel(o->high);
        return low + (high - low) * share;
    }
    double low = slaney_mel(o->low), high = slaney_mel(o->high);
    return slaney_hz(low + (high - low) * share);
}

/* A filter covers few bins: [from, to) bounds the sum to those that are not 0. Slaney's have an
 * area of one. */
static void fill_bank(fv__spectrum *s)
{
    const fv__spectrum_opt *o = &s->o;
    for (int m = 0; m < o->mels; m++) {
        double corner[3] = {corner_at(o, m), corner_at(o, m + 1), corner_at(o, m + 2)};
        double scale = o->slaney ? 2 / (corner[2] - corner[0]) : 1;
        s->from[m] = s->to[m] = 0;
        for (int f = 0; f < s->bins; f++) {
            double hz = (double)f * o->rate / o->fft;
            double y = scale * triangle(o->slaney ? hz : kaldi_mel(hz), corner);
            s->bank[m * s->bins + f] = (float)y;
            if (y > 0 && !s->to[m]) s->from[m] = f;
            if (y > 0) s->to[m] = f + 1;
        }
    }
}

/* Hann's; periodic for spectra that overlap (torch.hann_window's default), symmetric as Kaldi has
 * it. */
static void fill_window(fv__spectrum *s)
{
    int n = s->o.window, period = s->o.symmetric ? n - 1 : n;
    for (int i = 0; i < n; i++) s->window[i] = 0.5 - 0.5 * cos(2 * PI * i / period);
}

/* ---- opening ---- */

/* kissfft writes to its plan while it transforms, and threads share a spectrum: then a plan is made
 * for each run, in the run's memory, and only its size is kept here. */
static fv_status plan_fft(fv__spectrum *s, fv_err *e)
{
#ifdef HAVE_AUDIO
    kiss_fftr_alloc(s->o.fft, 0, NULL, &s->plan_bytes);
    s->plan_bytes = (s->plan_bytes + 63) / 64 * 64; /* doubles follow it */
    return s->plan_bytes ? FV_OK : fv_fail(e, FV_EARG, "FFT of %d samples: none", s->o.fft);
#else
    s->plan_bytes = fv__fft_bytes(s->o.fft);
    s->plan = fv__alloc(s->env, s->plan_bytes);
    if (!s->plan) return fv_fail(e, FV_ENOMEM, "FFT of %d samples: out of memory", s->o.fft);
    fv__fft_plan(s->plan, s->o.fft);
    return FV_OK;
#endif
}

/* Window, filters and the plan are made once for a processor and shared by threads, which bring
 * their own work memory. */
fv_status fv__spectrum_open(fv__spectrum *s, const fv_env *env, fv__spectrum_opt o, fv_err *e)
{
    *s = (fv__spectrum){.env = env, .o = o, .bins = o.fft / 2 + 1};
    size_t window = (size_t)o.window * sizeof *s->window,
           bank = (size_t)o.mels * (size_t)s->bins * sizeof *s->bank;
    s->bytes = window + bank + 2 * (size_t)o.mels * sizeof *s->from;
    s->memory = fv__alloc(env, s->bytes);
    if (!s->memory) return fv_fail(e, FV_ENOMEM, "mel filters: out of memory");
    s->window = s->memory;
    s->bank = (float *)(void *)((char *)s->memory + window);
    s->from = (int *)(void *)((char *)s->memory + window + bank);
    s->to = s->from + o.mels;
    fill_window(s);
    fill_bank(s);
    return plan_fft(s, e);
}

void fv__spectrum_close(fv__spectrum *s)
{
    fv__free(s->env, s->memory, s->bytes);
    fv__free(s->env, s->plan, s->plan ? s->plan_bytes : 0);
    *s = (fv__spectrum){0};
}

/* ---- frames ---- */

/* Centred frames stand around every hop, the first around sample 0; others must lie within the
 * sound. */
int64_t fv__spectrum_frames(const fv__spectrum_opt *o, int64_t n)
{
    if (o->centre) return (n - o->window % 2) / o->hop + 1;
    return n < o->window ? 0 : (n - o->window) / o->hop + 1;
}

/* Sample i of a clip that is reflected at its ends, without repeating the last one. */
static double reflected(const float *x, int64_t n, int64_t i)
{
    while (i < 0 || i >= n) {
        if (n == 1) return (double)x[0];
        i = i < 0 ? -i : 2 * (n - 1) - i;
    }
    return (double)x[i];
}

/* Frame t, windowed, with zeros behind it up to the length of the FFT. */
static void cut_frame(const fv__spectrum *s, float *out, double *w, int64_t t, const float *x,
                      int64_t n)
{
    const fv__spectrum_opt *o = &s->o;
    int64_t first = t * o->hop - (o->centre ? o->window / 2 : 0);
    if (first >= 0 && first + o->window <= n)
        for (int i = 0; i < o->window; i++) w[i] = (double)x[first + i];
    else
        for (int i = 0; i < o->window; i++) w[i] = reflected(x, n, first + i);
    if (o->remove_mean) {
        double mean = 0;
        for (int i = 0; i < o->window; i++) mean += w[i];
        mean /= o->window;
        for (int i = 0; i < o->window; i++) w[i] -= mean;
    }
    if (o->preemphasis > 0) {
        for (int i = o->window - 1; i > 0; i--) w[i] -= o->preemphasis * w[i - 1];
        w[0] *= 1 - o->preemphasis;
    }
    for (int i = 0; i < o->window; i++) out[i] = (float)(w[i] * s->window[i]);
    for (int i = o->window; i < o->fft; i++) out[i] = 0;
}

static void apply_bank(const fv__spectrum *s, float *out, const float *power)
{
    for (int m = 0; m < s->o.mels; m++) {
        double sum = 0;
        for (int f = s->from[m]; f < s->to[m]; f++)
            sum += (double)s->bank[m * s->bins + f] * (double)power[f];
        out[m] = (float)sum;
    }
}

/* ---- transforms ---- */

/* A plan where kissfft wants one of its own, complex bins, and room for a transform of ours. */
size_t fv__transform_bytes(const fv__spectrum *s)
{
    return (s->plan ? 0 : s->plan_bytes) + 2 * (size_t)(s->bins + 2 * s->o.fft) * sizeof(float);
}

void fv__transform_open(const fv__spectrum *s, void *memory)
{
#ifdef HAVE_AUDIO
    size_t plan = s->plan_bytes;
    kiss_fftr_alloc(s->o.fft, 0, memory, &plan);
#else
    (void)s, (void)memory;
#endif
}

const float *fv__transform(const fv__spectrum *s, void *memory, const float *x)
{
#ifdef HAVE_AUDIO
    kiss_fft_cpx *y = (void *)((char *)memory + s->plan_bytes);
    kiss_fftr(memory, x, y);
    return &y->r;
#else
    fv__complex *y = memory;
    fv__fft_real(s->plan, x, y, y + s->bins);
    return &y->re;
#endif
}

/* out (frames,mels): power, or magnitude, through the filters; the logarithm is the caller's. */
fv_status fv__spectrum_run(const fv__spectrum *s, float *out, int64_t frames, const float *x,
                           int64_t n, fv_err *e)
{
    size_t window = (size_t)s->o.window * sizeof(double), fft = (size_t)s->o.fft * sizeof(float),
           transform = fv__transform_bytes(s), bytes = transform + window + fft;
    char *memory = fv__alloc(s->env, bytes), *work = memory + transform;
    if (!memory) return fv_fail(e, FV_ENOMEM, "spectrum: out of memory");
    fv__transform_open(s, memory);
    double *w = (double *)(void *)work;
    float *frame = (float *)(void *)(work + window);
    for (int64_t t = 0; t < frames; t++) {
        cut_frame(s, frame, w, t, x, n);
        const float *y = fv__transform(s, memory, frame);
        for (int f = 0; f < s->bins; f++) {
            float power = y[2 * f] * y[2 * f] + y[2 * f + 1] * y[2 * f + 1];
            frame[f] = s->o.magnitude ? sqrtf(power) : power;
        }
        apply_bank(s, out + t * s->o.mels, frame);
    }
    fv__free(s->env, memory, bytes);
    return FV_OK;
}
