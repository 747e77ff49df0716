/* speak.c - the spectrogram of a text, step after step of a decoder whose sequences are frames.
 *
 *     frame = 0;  until the end:  frames, stop = advance(last frame);  end where sum p(stop) >= 1/2
 *     spectrogram = postnet(all frames)
 *
 * The prenet's dropout is drawn here, by Philox from the seed, the step and the unit: the same text
 * and seed give the same frames on every machine, whatever was said before.  The weights of
 * cross-attention are taken by a tap as they are computed, one row of each head a step. */
#include "fovea/author/speak.h"

#include <math.h>

#include "base/base.h"
#include "fovea/author/backend.h"
#include "fovea/author/family.h"
#include "fovea/author/tensor.h"
#include "model/part.h"

struct fv_voice {
    const fv_env *env;
    const fv_model *model;
    fv_device *device;
    fv_ctx *ctx;
    fv_session *session;
    fv_voice_shape shape;
    fv_buf frames;    /* before the postnet */
    fv_buf rows;      /* of attention, (steps,layers,heads,tokens) */
    fv_buf mel, maps; /* what is given out */
    int64_t tokens, layers, heads, steps;
    fv_status failed; /* of the tap, which cannot return it */
};

static fv_status failed(const fv_voice *v, fv_err *e)
{
    return fv_fail(e, fv_ctx_err(v->ctx)->code, "%s", fv_ctx_err(v->ctx)->text);
}

/* ---- opening ---- */

fv_status fv_voice_new(fv_voice **out, fv_device *d, const fv_model *m, fv_err *e)
{
    const fv_family *f = fv_model_family(m);
    const fv_env *env = fv_device_env(d);
    *out = NULL;
    if (fv_model_job(m) != FV_HEAD_SPEECH || !f->voice || !f->advance)
        return fv_fail(e, FV_EARG, "%s does not speak", fv_model_head(m));
    fv_voice *v = fv__alloc(env, sizeof *v);
    if (!v) return fv_fail(e, FV_ENOMEM, "voice: out of memory");
    *v = (fv_voice){.env = env, .model = m, .device = d, .shape = f->voice(fv_model_self(m))};
    v->frames.env = v->rows.env = v->mel.env = v->maps.env = env;
    fv_status st = fv_ctx_new(&v->ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st) st = fv_session_new(&v->session, m, d, 1, fv_model_context(m), e);
    if (st) {
        fv_voice_free(v);
        return st;
    }
    *out = v;
    return FV_OK;
}

void fv_voice_free(fv_voice *v)
{
    if (!v) return;
    fv_session_free(v->session);
    fv_ctx_free(v->ctx);
    fv__buf_free(&v->frames);
    fv__buf_free(&v->rows);
    fv__buf_free(&v->mel);
    fv__buf_free(&v->maps);
    fv__free(v->env, v, sizeof *v);
}

int64_t fv_voice_speaker_dim(const fv_voice *v) { return v->shape.speaker; }

/* ---- a step ---- */

static const float *floats(const fv_buf *b) { return (const float *)(const void *)b->data; }

/* n floats more, for the caller to fill; NULL: memory is out. */
static float *grow(fv_buf *b, int64_t n)
{
    static const float none[256];
    size_t at = b->len;
    for (int64_t i = 0; i < n; i += 256)
        fv__buf_add(b, none, (size_t)(n - i < 256 ? n - i : 256) * sizeof *none);
    return b->failed ? NULL : (float *)(void *)(b->data + at);
}

/* Weights of one row of each head, as each layer computes them. */
static void tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    fv_voice *v = user;
    (void)name;
    if (strcmp(site, "attention") || !what || fv_attn_view_role(what) != FV_ATTN_CROSS) return;
    fv_shape s = fv_attn_view_shape(what);
    float *to = grow(&v->rows, s.d[1] * s.d[3]);
    if (!to) {
        v->failed = FV_ENOMEM;
        return;
    }
    for (int64_t h = 0; h < s.d[1]; h++)
        if (fv_attn_view_weights(c, what, 0, h, 0, 1, to + h * s.d[3])) return;
    v->heads = s.d[1];
    v->tokens = s.d[3];
    if (!v->steps) v->layers++;
}

/* (layers,1,units): 0 with probability p, else 1 / (1 - p). */
static fv_tensor *draw_mask(const fv_voice *v, uint64_t seed)
{
    int64_t n = v->shape.prenet_layers * v->shape.prenet_units;
    float *host = fv__step_memory(v->ctx, (size_t)n * sizeof *host);
    if (!host) return NULL;
    for (int64_t i = 0; i < n; i++) {
        uint32_t word[4];
        fv_philox(word, seed, 0, (uint64_t)v->steps, (uint64_t)i);
        bool kept = word[0] / 4294967296.0 >= (double)v->shape.prenet_dropout;
        host[i] = kept ? 1 / (1 - v->shape.prenet_dropout) : 0;
    }
    return fv_floats(v->ctx, host, FV_SHAPE(v->shape.prenet_layers, 1, v->shape.prenet_units));
}

/* One step: r frames more; *stop: the sum of their probabilities to be the last. */
static fv_status step(fv_voice *v, const fv_speak_opt *opt, double *stop, fv_err *e)
{
    int64_t r = v->shape.frames, mel = v->shape.mels;
    const float *end = (const float *)(const void *)(v->frames.data + v->frames.len);
    fv_items in = {0}, out = {0};
    fv_ctx_reset(v->ctx, 0);
    fv_ctx_set_tap(v->ctx, tap, v);
    fv_items_put(&in, "decoder_input_values",
                 v->steps ? fv_floats(v->ctx, end - mel, FV_SHAPE(1, 1, mel))
                          : fv_zeros(v->ctx, FV_SHAPE(1, 1, mel)));
    if (!opt->no_dropout && v->shape.prenet_dropout > 0)
        fv_items_put(&in, "prenet_mask", draw_mask(v, opt->seed));
    if (!fv_session_advance(v->ctx, v->session, &in, &out)) return failed(v, e);
    fv_ctx_set_tap(v->ctx, NULL, NULL);
    float *to = grow(&v->frames, r * mel), logits[64];
    if (!to || v->failed) return fv_fail(e, FV_ENOMEM, "voice: out of memory");
    if (fv_read(v->ctx, fv_items_get(&out, "outputs_before_postnet"), to, r * mel) ||
        fv_read(v->ctx, fv_items_get(&out, "stop_logits"), logits, r))
        return failed(v, e);
    *stop = 0;
    for (int64_t i = 0; i < r; i++) *stop += 1 / (1 + exp(-(double)logits[i]));
    v->steps++;
    return FV_OK;
}

/* ---- a text ---- */

static fv_status begin(fv_voice *v, const int32_t *ids, int64_t n, const fv_speak_opt *opt,
                       fv_err *e)
{
    fv_items in = {0};
    v->frames.len = v->rows.len = v->mel.len = v->maps.len = 0;
    v->layers = v->heads = v->tokens = v->steps = 0;
    v->failed = FV_OK;
    fv_ctx_reset(v->ctx, 0);
    fv_items_put(&in, "input_ids", fv_ints(v->ctx, ids, FV_SHAPE(1, n)));
    /* of nobody in particular: the vector that says nothing */
    fv_items_put(&in, "speaker_embeddings",
                 opt->speaker ? fv_floats(v->ctx, opt->speaker, FV_SHAPE(1, v->shape.speaker))
                              : fv_zeros(v->ctx, FV_SHAPE(1, v->shape.speaker)));
    fv_session_begin(v->ctx, v->session, &in);
    return fv_ctx_err(v->ctx)->code ? failed(v, e) : FV_OK;
}

static fv_status finish(fv_voice *v, fv_err *e)
{
    int64_t mel = v->shape.mels, frames = v->steps * v->shape.frames;
    fv_items in = {0}, out = {0};
    fv_ctx_reset(v->ctx, 0);
    fv_items_put(&in, "outputs_before_postnet",
                 fv_floats(v->ctx, floats(&v->frames), FV_SHAPE(1, frames, mel)));
    fv_model_forward(v->ctx, v->model, &in, &out);
    float *to = grow(&v->mel, frames * mel);
    if (!to) return fv_fail(e, FV_ENOMEM, "voice: out of memory");
    if (fv_ctx_err(v->ctx)->code ||
        fv_read(v->ctx, fv_items_get(&out, "spectrogram"), to, frames * mel))
        return failed(v, e);
    for (int64_t i = 0; i < frames * mel; i++)
        if (!isfinite(to[i]))
            return fv_fail(e, FV_EARG, "the model gave frames that are not finite");
    return FV_OK;
}

/* (steps,layers,heads,tokens) -> (layers,heads,steps,tokens) */
static fv_status order_maps(fv_voice *v, fv_err *e)
{
    int64_t maps = v->layers * v->heads, T = v->tokens;
    float *to = grow(&v->maps, v->steps * maps * T);
    if (!to) return fv_fail(e, FV_ENOMEM, "voice: out of memory");
    for (int64_t s = 0; s < v->steps; s++)
        for (int64_t m = 0; m < maps; m++)
            memcpy(to + (m * v->steps + s) * T, floats(&v->rows) + (s * maps + m) * T,
                   (size_t)T * sizeof *to);
    return FV_OK;
}

fv_status fv_voice_speak(fv_voice *v, const int32_t *ids, int64_t n, fv_speak_opt opt, fv_said *out,
                         fv_err *e)
{
    double threshold = opt.threshold > 0 ? opt.threshold : 0.5, stop = 0,
           ratio = opt.max_ratio > 0 ? opt.max_ratio : 20;
    *out = (fv_said){0};
    if (n < 1) return fv_fail(e, FV_EARG, "voice: a text without tokens");
    int64_t r = v->shape.frames, room = fv_model_context(v->model),
            most = (int64_t)((double)n * ratio / (double)r),
            least = (int64_t)((double)n * opt.min_ratio / (double)r);
    if (most > room) most = room;
    if (most < 1) most = 1;
    fv_status st = begin(v, ids, n, &opt, e);
    bool ended = false;
    while (!st && !ended && v->steps < most) {
        st = step(v, &opt, &stop, e);
        ended = !st && v->steps >= least && v->steps < most && stop >= threshold;
    }
    if (!st) st = finish(v, e);
    if (!st) st = order_maps(v, e);
    if (st) return st;
    *out = (fv_said){.mel = floats(&v->mel),
                     .frames = v->steps * r,
                     .mels = v->shape.mels,
                     .attention = floats(&v->maps),
                     .layers = v->layers,
                     .heads = v->heads,
                     .steps = v->steps,
                     .tokens = v->tokens,
                     .ended = ended};
    return FV_OK;
}

/* ---- alignment ---- */

/* Of one map (steps,tokens): the mean over steps of 1 - |E[token] / (tokens - 1) - step / (steps -
 * 1)|. */
static double diagonal(const float *map, int64_t steps, int64_t tokens)
{
    double sum = 0;
    for (int64_t s = 0; s < steps; s++) {
        double at = 0;
        for (int64_t t = 0; t < tokens; t++) at += (double)t * (double)map[s * tokens + t];
        at /= tokens > 1 ? (double)(tokens - 1) : 1;
        sum += 1 - fabs(at - (double)s / (steps > 1 ? (double)(steps - 1) : 1));
    }
    return sum / (double)steps;
}

double fv_said_diagonality(const fv_said *s, int64_t *best)
{
    double most = -1;
    for (int64_t m = 0; m < s->layers * s->heads; m++) {
        double x = diagonal(s->attention + m * s->steps * s->tokens, s->steps, s->tokens);
        if (x <= most) continue;
        most = x;
        if (best) *best = m;
    }
    return most;
}
