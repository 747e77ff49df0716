/* clip.c - clips: memory, raw samples from a stream, a WAV file written. */
#include <math.h>

#include "base/base.h"
#include "fovea/author/audio.h"

/* Memory that is there is kept and grown, so that a clip can be filled again and again without
 * allocating. */
fv_status fv_clip_new(fv_clip *out, const fv_env *env, int rate, int64_t n, fv_err *e)
{
    if (rate < 1 || rate > FV_CLIP_MOST_RATE)
        return fv_fail(e, FV_EARG, "%d samples a second: expected 1 to %d", rate,
                       FV_CLIP_MOST_RATE);
    if (n < 1 || n > FV_CLIP_MOST)
        return fv_fail(e, FV_EARG, "a clip of %lld samples: expected 1 to %lld", (long long)n,
                       (long long)FV_CLIP_MOST);
    void *p = out->data;
    if (!out->data) out->env = env;
    if (!fv__grow(out->env, &p, &out->bytes, (size_t)n * sizeof *out->data))
        return fv_fail(e, FV_ENOMEM, "a clip of %lld samples: out of memory", (long long)n);
    out->data = p;
    out->rate = rate;
    out->n = n;
    return FV_OK;
}

void fv_clip_free(fv_clip *x)
{
    fv__free(x->env, x->data, x->bytes);
    *x = (fv_clip){0};
}

/* Signed 16 bits, little endian, one channel: -32768 is -1, as every tool scales it. */
fv_status fv_clip_pcm(fv_clip *out, const fv_env *env, const void *bytes, size_t n, int rate,
                      const char *name, fv_err *e)
{
    const uint8_t *p = bytes;
    if (n < 2) return fv_fail(e, FV_EFORMAT, "%s: there are no samples in it", name);
    if (n % 2)
        return fv_fail(e, FV_EFORMAT, "%s: %zu bytes are no samples of 16 bits: one is cut", name,
                       n);
    if (n / 2 > (size_t)FV_CLIP_MOST)
        return fv_fail(e, FV_EFORMAT, "%s: more than %lld samples", name, (long long)FV_CLIP_MOST);
    fv_status st = fv_clip_new(out, env, rate, (int64_t)(n / 2), e);
    for (int64_t i = 0; !st && i < out->n; i++)
        out->data[i] = (float)(int16_t)(p[2 * i] | p[2 * i + 1] << 8) / 32768;
    return st;
}

/* ---- writing ---- */

static void little_endian(uint8_t *p, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> 8 * i);
}

/* RIFF, "fmt " (PCM, one channel, 16 bits), "data". */
static void header(uint8_t h[44], uint32_t rate, uint32_t bytes)
{
    memcpy(h, "RIFF----WAVEfmt ", 16);
    little_endian(h + 4, 36 + bytes, 4);
    little_endian(h + 16, 16, 4);
    little_endian(h + 20, 1, 2);
    little_endian(h + 22, 1, 2);
    little_endian(h + 24, rate, 4);
    little_endian(h + 28, 2 * rate, 4);
    little_endian(h + 32, 2, 2);
    little_endian(h + 34, 16, 2);
    memcpy(h + 36, "data", 4);
    little_endian(h + 40, bytes, 4);
}

/* A WAV of 16 bits: rounded to nearest and clipped; what is not a number becomes the lowest level,
 * not noise. */
fv_status fv_clip_save(const fv_clip *x, const char *path, fv_err *e)
{
    fv_out o;
    uint8_t head[44], block[8192];
    fv_status st = fv__out_open(&o, x->env, path, e);
    if (st) return st;
    header(head, (uint32_t)x->rate, (uint32_t)(2 * x->n));
    fv__out_add(&o, head, sizeof head);
    for (int64_t i = 0; i < x->n;) {
        size_t k = 0;
        for (; i < x->n && k < sizeof block; i++, k += 2) {
            double level = nearbyint((double)x->data[i] * 32768);
            if (!(level >= -32768)) level = -32768;
            if (level > 32767) level = 32767;
            little_endian(block + k, (uint32_t)(int32_t)level, 2);
        }
        fv__out_add(&o, block, k);
    }
    return fv__out_commit(&o, e);
}
