/* rotary.c - frequencies of rotary positions, plain and stretched to contexts longer than the
 * trained one. */
#include "nn/part.h"

#include <math.h>
#include <string.h>

#include "core/core.h"

#define TWO_PI 6.283185307179586
#define MAX_FREQS 256

static double plain(double base, int64_t i, int64_t width)
{
    return pow(base, -2.0 * (double)i / (double)width);
}

/* The base such that the slowest pair covers len positions as it covered those it was trained
 * on. */
static double dynamic_base(const fv_rotary *r, double base, int64_t len)
{
    double n = (double)(len > r->trained ? len : r->trained), w = (double)r->width;
    return base *
           pow((double)r->factor * n / (double)r->trained - ((double)r->factor - 1), w / (w - 2));
}

/* The pair (not whole) that turns `rotations` times within the trained context. */
static double yarn_correction_pair(const fv_rotary *r, double base, double rotations)
{
    return (double)r->width * log((double)r->trained / (rotations * TWO_PI)) / (2 * log(base));
}

/* Pairs that turn often keep their frequency, those that turn rarely are slowed by factor, a ramp
 * lies between. */
static double yarn(const fv_rotary *r, double base, int64_t i)
{
    double low = yarn_correction_pair(r, base, r->high > 0 ? (double)r->high : 32);
    double high = yarn_correction_pair(r, base, r->low > 0 ? (double)r->low : 1);
    if (!r->no_truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, (double)(r->width - 1));
    if (low == high) high += 0.001;
    double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1), f = plain(base, i, r->width);
    return f / (double)r->factor * ramp + f * (1 - ramp);
}

/* The same idea by wavelength: shorter than trained/high stays, longer than trained/low is
 * slowed. */
static double llama3(const fv_rotary *r, double base, int64_t i)
{
    double low = r->low > 0 ? (double)r->low : 1, high = r->high > 0 ? (double)r->high : 4;
    double f = plain(base, i, r->width), turns = (double)r->trained * f / TWO_PI;
    if (turns > high) return f;
    if (turns < low) return f / (double)r->factor;
    double smooth = (turns - low) / (high - low);
    return (1 - smooth) * f / (double)r->factor + smooth * f;
}

bool fv_rotary_grows(const fv_rotary *r)
{
    return r->kind == FV_ROTARY_DYNAMIC || r->kind == FV_ROTARY_LONG;
}

void fv_rotary_freqs(const fv_rotary *r, int64_t len, float *freq)
{
    double base = r->base > 0 ? (double)r->base : 10000;
    const float *divisor = len > r->trained ? r->long_factor : r->short_factor;
    if (r->kind == FV_ROTARY_DYNAMIC) base = dynamic_base(r, base, len);
    for (int64_t i = 0; i < r->width / 2; i++) {
        double f = plain(base, i, r->width);
        if (r->kind == FV_ROTARY_LINEAR) f /= (double)r->factor;
        if (r->kind == FV_ROTARY_YARN) f = yarn(r, base, i);
        if (r->kind == FV_ROTARY_LLAMA3) f = llama3(r, base, i);
        if (r->kind == FV_ROTARY_LONG) f /= (double)divisor[i];
        freq[i] = (float)f;
    }
}

/* Yarn and longrope multiply cos and sin by it, and so what is rotated of q and of k. */
static double attention_factor(const fv_rotary *r)
{
    bool yarn = r->kind == FV_ROTARY_YARN;
    if (!yarn && r->kind != FV_ROTARY_LONG) return 1;
    if (r->attention_factor > 0) return (double)r->attention_factor;
    if (!(r->factor > 1)) return 1;
    double grown = log((double)r->factor);
    return yarn ? 0.1 * grown + 1 : sqrt(1 + grown / log((double)r->trained));
}

static void listed(void *out, const void *user, int64_t from, int64_t n)
{
    memcpy(out, (const float *)user + from, (size_t)n * sizeof(float));
}

/* Frequencies of several sequences, of which each has its length: written row by row. */
typedef struct by_row {
    const fv_rotary *r;
    const int64_t *len;
} by_row;

static void listed_rows(void *out, const void *user, int64_t from, int64_t n)
{
    const by_row *u = user;
    int64_t half = u->r->width / 2, row = -1;
    float freq[MAX_FREQS], *to = out;
    for (int64_t i = 0; i < n; i++) {
        if ((from + i) / half != row) {
            row = (from + i) / half;
            fv_rotary_freqs(u->r, u->len[row], freq);
        }
        to[i] = freq[(from + i) % half];
    }
}

fv_rope_arg fv_rotary_rows(fv_ctx *c, const fv_rotary *r, fv_tensor *pos, const int64_t *len,
                           int64_t rows)
{
    /* Up to the trained length nothing grows, and longrope does not beyond it. */
    bool alike = true, stays = r->kind == FV_ROTARY_LONG;
    for (int64_t i = 1; i < rows; i++)
        alike = alike && (len[i] == len[0] || (len[i] <= r->trained && len[0] <= r->trained) ||
                          (stays && len[i] > r->trained && len[0] > r->trained));
    fv_rope_arg a = fv_rotary_at(c, r, pos, rows > 0 ? len[0] : 1);
    if (alike || !fv_rotary_grows(r) || !a.freq) return a;
    by_row u = {r, len};
    a.freq = fv__table(c, FV_F32, FV_SHAPE(rows, r->width / 2), listed_rows, &u, 0);
    return a;
}

fv_rope_arg fv_rotary_at(fv_ctx *c, const fv_rotary *r, fv_tensor *pos, int64_t len)
{
    float freq[MAX_FREQS];
    bool scaled = r->kind != FV_ROTARY_PLAIN, by_length = scaled && r->kind != FV_ROTARY_LINEAR;
    if (r->width < 2 || r->width % 2 || r->width > 2 * MAX_FREQS || (scaled && !(r->factor > 0)) ||
        (by_length && r->trained < 1)) {
        fv_raise(c, FV_EARG, "rotary: width %lld, factor %g, trained on %lld positions",
                 (long long)r->width, (double)r->factor, (long long)r->trained);
        return (fv_rope_arg){0};
    }
    if (r->kind == FV_ROTARY_LONG && (!r->short_factor || !r->long_factor)) {
        fv_raise(c, FV_EARG, "rotary: longrope without its factors");
        return (fv_rope_arg){0};
    }
    fv_rotary_freqs(r, len, freq);
    /* They may change from step to step where a session's sequences grow; while recording the
     * length is the batch's own. */
    bool grows = fv_rotary_grows(r) && !c->record;
    size_t kept = grows ? 0 : (size_t)(r->width / 2) * sizeof *freq;
    fv_tensor *f = fv__table(c, FV_F32, FV_SHAPE(r->width / 2), listed, freq, kept);
    return (fv_rope_arg){.pos = pos,
                         .freq = f,
                         .adjacent = r->adjacent,
                         .attention_factor = (float)attention_factor(r),
                         .at_read = r->kind == FV_ROTARY_LONG};
}
