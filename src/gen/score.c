/* score.c - log-probability of a text: each token under the model's distribution at its position.
 *
 * All tokens of a window go through the model at once, as in training, and each costs its
 * cross-entropy.  A model with a memory reads segments one after the other instead of windows that
 * overlap. */
#include "base/base.h"
#include "fovea/gen.h"
#include "fovea/author/family.h"
#include "fovea/author/gen.h"
#include "gen/score_cache.h"
#include "model/memory.h"

/* A batch of sequences on the host: input ids, and the labels to be scored (-100: not this
 * one). */
typedef struct batch {
    const fv_env *env;
    int64_t rows, T;
    int32_t *ids, *labels;
    uint8_t *mask;
    float *loss;
    size_t bytes;
    void *block;
} batch;

static fv_status make_batch(batch *b, const fv_env *env, int64_t rows, int64_t T, fv_err *e)
{
    int64_t n = rows * T;
    *b = (batch){.env = env,
                 .rows = rows,
                 .T = T,
                 .bytes = (size_t)n * (2 * sizeof(int32_t) + sizeof(float) + 1)};
    b->block = fv__alloc(env, b->bytes);
    if (!b->block) return fv_fail(e, FV_ENOMEM, "score: out of memory for %zu bytes", b->bytes);
    b->ids = b->block;
    b->labels = b->ids + n;
    b->loss = (float *)(b->labels + n);
    b->mask = (uint8_t *)(b->loss + n);
    for (int64_t i = 0; i < n; i++) b->labels[i] = -100;
    return FV_OK;
}

static void free_batch(batch *b) { fv__free(b->env, b->block, b->bytes); }

/* loss = what each label costs; in: what the model gets besides the ids, which go under the name
 * given. */
static fv_status run(fv_ctx *c, const fv_model *m, batch *b, fv_items in, const char *ids,
                     const char *mask, fv_err *e)
{
    fv_items out = {0};
    fv_shape shape = FV_SHAPE(b->rows, b->T);
    fv_items_put(&in, ids, fv_ints(c, b->ids, shape));
    fv_items_put(&in, mask, fv_bytes(c, b->mask, shape));
    fv_model_forward(c, m, &in, &out);
    fv_tensor *loss = fv_cross_entropy(c, fv_items_get(&out, "logits"),
                                       fv_ints(c, b->labels, shape), (fv_ce_opt){.ignore = -100});
    if (!fv_read(c, loss, b->loss, b->rows * b->T)) return FV_OK;
    return fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
}

static fv_status check(const fv_model *m, const int32_t *ids, int64_t n, fv_err *e)
{
    const fv_family *f = fv_model_family(m);
    int64_t V = f->vocabulary ? f->vocabulary(fv_model_self(m)) : 0;
    if (V < 1)
        return fv_fail(e, FV_EMISSING, "score: %s gives no probabilities of tokens",
                       fv_model_head(m));
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= V)
            return fv_fail(e, FV_EARG, "score: id %d is outside the vocabulary of %lld", ids[i],
                           (long long)V);
    return FV_OK;
}

/* ---- models with a memory ---- */

/* The first segment has a context of its own, the others take turns in two: what one gave stays
 * where it is, on the device, while the next one reads it, and the projected positions of the first
 * serve all but a shorter last one. */
typedef struct segments {
    fv_ctx *first, *turn[2], *last;
    fv_items carried; /* of the segment before */
    fv_tensor *far;   /* mem_positions of segments of `stride` tokens */
    int64_t M, stride, n;
} segments;

static const char *const carried[] = {"mem_keys", "mem_values"};

/* What a segment gets of the one before, or an empty memory: states that are masked. */
static void put_memory(segments *s, fv_ctx *c, const batch *b, const float *none, fv_shape shape,
                       fv_items *in)
{
    static const uint8_t yes = 1;
    fv_items_put(in, "input_ids", fv_ints(c, b->ids, FV_SHAPE(1, b->T)));
    fv_items_put(in, "attention_mask", fv_bytes(c, b->mask, FV_SHAPE(1, s->M + b->T)));
    if (!s->M) return;
    fv_items_put(in, "use_cache", fv_bytes(c, &yes, FV_SHAPE(1)));
    if (!s->n) fv_items_put(in, "mems", fv_floats(c, none, shape));
    for (int i = 0; s->n && i < 2; i++)
        fv_items_put(in, carried[i], fv_items_get(&s->carried, carried[i]));
    if (s->n && b->T == s->stride) fv_items_put(in, "mem_positions", s->far);
}

/* Runs one segment of T tokens behind those before it. */
static fv_status run_segment(segments *s, const fv_model *m, batch *b, const float *none,
                             fv_shape shape, fv_err *e)
{
    fv_ctx *c = s->n ? s->turn[s->n % 2] : s->first;
    fv_items in = {0}, out = {0};
    fv_ctx_reset(c, 0);
    put_memory(s, c, b, none, shape, &in);
    fv_model_forward(c, m, &in, &out);
    fv_tensor *loss = fv_cross_entropy(c, fv_items_get(&out, "logits"),
                                       fv_ints(c, b->labels, FV_SHAPE(1, b->T)),
                                       (fv_ce_opt){.ignore = -100});
    /* read before the other context goes on: this one has done all its work then */
    if (fv_read(c, loss, b->loss, b->T))
        return fv_fail(e, fv_ctx_err(c)->code, "%s", fv_ctx_err(c)->text);
    if (!s->n) s->far = fv_items_get(&out, "mem_positions");
    s->last = c;
    s->carried = out;
    s->n++;
    return FV_OK;
}

/* Segments of `stride` tokens with a memory of window - stride, which may be 0.  Not given: the
 * model's own mem_len, and segments of at most 128. */
static fv_status score_segments(double *out, fv_device *d, const fv_model *m, const int32_t *ids,
                                int64_t n, int64_t window, int64_t stride, fv__memory memory,
                                fv__score_cache *cache, fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    if (window < 2) window = memory.len + (stride > 0 ? stride : 128);
    if (stride < 1) stride = window > 256 ? 128 : window / 2;
    if (stride > window) stride = window;
    segments s = {.M = window - stride, .stride = stride};
    fv_shape shape = FV_SHAPE(memory.layers, 1, s.M, memory.width);
    size_t bytes = (size_t)fv_shape_len(shape) * sizeof(float);
    fv_ctx **contexts[] = {&s.first, &s.turn[0], &s.turn[1]};
    batch b;
    fv_status st = make_batch(&b, env, 1, window, e);
    float *none = s.M ? fv__alloc(env, bytes) : NULL;
    if (!st && s.M && !none)
        st = fv_fail(e, FV_ENOMEM, "score: out of memory for %zu bytes", bytes);
    for (int i = 0; !st && i < 3; i++)
        st = fv_ctx_new(contexts[i], d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    for (int i = 0; !st && i < 3; i++) fv__score_cache_watch(cache, *contexts[i]);
    if (!st && none) memset(none, 0, bytes);
    for (int64_t from = 0; !st && from + 1 < n; from += stride) {
        b.T = n - 1 - from < stride ? n - 1 - from : stride;
        memcpy(b.ids, ids + from, (size_t)b.T * sizeof *ids);
        memcpy(b.labels, ids + from + 1, (size_t)b.T * sizeof *ids);
        fv__memory_mask(b.mask, s.M, b.T, from);
        st = run_segment(&s, m, &b, none, shape, e);
        for (int64_t i = 0; !st && i < b.T; i++) out[from + 1 + i] = -(double)b.loss[i];
        if (!st) st = fv__score_cache_add(cache, s.last, 0, b.T, b.labels, b.loss, from + 1, e);
    }
    for (int i = 0; i < 3; i++) fv_ctx_free(*contexts[i]);
    fv__free(env, none, bytes);
    free_batch(&b);
    return st;
}

/* Window k reads from k stride on.  The first gives all its tokens, the others those that no window
 * before them had: T is known up to `known`. */
static fv_status score_window(double *out, fv_ctx *c, const fv_model *m, batch *b,
                              const int32_t *ids, int64_t from, int64_t T, int64_t known,
                              fv__score_cache *cache, fv_err *e)
{
    b->T = T;
    memcpy(b->ids, ids + from, (size_t)T * sizeof *ids);
    memset(b->mask, 1, (size_t)T);
    for (int64_t i = 0; i < T; i++)
        b->labels[i] = from + i + 1 >= known && i + 1 < T ? ids[from + i + 1] : -100;
    fv_ctx_reset(c, 0);
    fv_status st = run(c, m, b, (fv_items){0}, "input_ids", "attention_mask", e);
    for (int64_t i = known; !st && i < from + T; i++) out[i] = -(double)b->loss[i - 1 - from];
    int64_t first = known - 1 - from;
    return st ? st
              : fv__score_cache_add(cache, c, first, from + T - known, b->labels + first,
                                    b->loss + first, known, e);
}

/* Windows lo to hi - 1 of those that n tokens need. */
static fv_status score_windows(double *out, fv_device *d, const fv_model *m, const int32_t *ids,
                               int64_t n, int64_t window, int64_t stride, int64_t lo, int64_t hi,
                               fv__score_cache *cache, fv_err *e)
{
    batch b = {0};
    fv_ctx *c = NULL;
    fv_status st = make_batch(&b, fv_device_env(d), 1, n < window ? n : window, e);
    if (!st) st = fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st) fv__score_cache_watch(cache, c);
    for (int64_t k = lo; !st && k < hi; k++) {
        int64_t from = k * stride, T = n - from < window ? n - from : window;
        st = score_window(out, c, m, &b, ids, from, T, k ? from - stride + window : 1, cache, e);
    }
    fv_ctx_free(c);
    free_batch(&b);
    return st;
}

/* fv_score_part with a cache that is open. */
static fv_status score_part(double *out, fv_device *d, const fv_model *m, const int32_t *ids,
                            int64_t n, const fv_score_opt *o, int part, int parts, int64_t *begin,
                            int64_t *end, fv__score_cache *cache, fv_err *e)
{
    int64_t context = fv_model_context(m), window = o->window, stride = o->stride;
    if (!context) context = window > 0 ? window : 2048;
    if (window < 1 || window > context) window = context;
    if (stride < 1 || stride > window) stride = window > 1 ? window / 2 : 1;
    if (fv__memory_taken(m)) {
        fv__memory memory;
        fv_status st = fv__memory_of(&memory, d, m, e);
        if (!st && memory.layers && !part)
            st = score_segments(out, d, m, ids, n, o->window, o->stride, memory, cache, e);
        if (st || memory.layers) return st;
    }
    if (n < 2) return FV_OK;
    int64_t windows = n > window ? 1 + (n - window + stride - 1) / stride : 1,
            lo = windows * part / parts, hi = windows * (part + 1) / parts;
    *begin = lo ? (lo - 1) * stride + window : 0;
    if (hi < windows) *end = hi ? (hi - 1) * stride + window : 0;
    return lo < hi ? score_windows(out, d, m, ids, n, window, stride, lo, hi, cache, e) : FV_OK;
}

fv_status fv_score_part(double *out, fv_device *d, const fv_model *m, const int32_t *ids, int64_t n,
                        fv_score_opt opt, int part, int parts, int64_t *begin, int64_t *end,
                        fv_err *e)
{
    fv__score_cache cache;
    *begin = part ? n : 0;
    *end = n;
    if (fv_model_family(m)->begin)
        return fv_fail(e, FV_EARG, "score: %s needs a source beside the text", fv_model_head(m));
    fv_status st = check(m, ids, n, e);
    if (st) return st;
    if (n > 0) out[0] = 0;
    if (n > 0 && opt.cache.size > 0) opt.cache.out[0] = 0;
    if (opt.cache.size > 0 && part) return FV_OK;
    st = fv__score_cache_open(&cache, d, opt.cache, e);
    if (!st)
        st = score_part(out, d, m, ids, n, &opt, part, opt.cache.size > 0 ? 1 : parts, begin, end,
                        &cache, e);
    fv__score_cache_close(&cache);
    return st;
}

fv_status fv_score(double *out, fv_device *d, const fv_model *m, const int32_t *ids, int64_t n,
                   fv_score_opt opt, fv_err *e)
{
    int64_t from, to;
    return fv_score_part(out, d, m, ids, n, opt, 0, 1, &from, &to, e);
}

/* The prompt and then a continuation in each row; a label is at the position before its token. */
static void fill_continued(batch *b, const int32_t *prompt, int64_t n, const int32_t *const *more,
                           const int64_t *len)
{
    for (int64_t r = 0; r < b->rows; r++) {
        int32_t *ids = b->ids + r * b->T, *labels = b->labels + r * b->T;
        memcpy(ids, prompt, (size_t)n * sizeof *ids);
        memcpy(ids + n, more[r], (size_t)len[r] * sizeof *ids);
        memcpy(labels + n - 1, more[r], (size_t)len[r] * sizeof *ids);
        memset(b->mask + r * b->T, 1, (size_t)(n + len[r]));
    }
}

/* The start token and then a continuation but its last token. */
static void fill_answers(batch *b, int32_t start, const int32_t *const *more, const int64_t *len)
{
    fill_continued(b, &start, 1, more, len);
}

/* The same source for every row. */
static fv_items sources(fv_ctx *c, const batch *b, const int32_t *prompt, int64_t n, fv_err *e)
{
    fv_items in = {0};
    batch s;
    if (make_batch(&s, b->env, b->rows, n, e)) return in;
    for (int64_t r = 0; r < b->rows; r++) memcpy(s.ids + r * n, prompt, (size_t)n * sizeof *prompt);
    fv_items_put(&in, "input_ids", fv_ints(c, s.ids, FV_SHAPE(b->rows, n)));
    free_batch(&s);
    return in;
}

fv_status fv_score_continuations(double *out, fv_device *d, const fv_model *m,
                                 const int32_t *prompt, int64_t prompt_len,
                                 const int32_t *const *continuation, const int64_t *len, int64_t n,
                                 int32_t start, fv_err *e)
{
    bool encoder = fv_model_family(m)->begin != NULL;
    int64_t most = 0, before = encoder ? 1 : prompt_len;
    batch b = {0};
    fv_ctx *c = NULL;
    fv_status st = encoder ? FV_OK : check(m, prompt, prompt_len, e);
    if (prompt_len < 1 || n < 1 || (encoder && start < 0))
        return fv_fail(e, FV_EARG, "score: %lld continuations of %lld tokens", (long long)n,
                       (long long)prompt_len);
    for (int64_t i = 0; i < n && !st; i++) {
        st = check(m, continuation[i], len[i], e);
        most = len[i] > most ? len[i] : most;
    }
    if (!st) st = make_batch(&b, fv_device_env(d), n, before + most, e);
    if (!st) st = fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st && encoder) {
        fill_answers(&b, start, continuation, len);
        st = run(c, m, &b, sources(c, &b, prompt, prompt_len, e), "decoder_input_ids",
                 "decoder_attention_mask", e);
    } else if (!st) {
        fill_continued(&b, prompt, prompt_len, continuation, len);
        st = run(c, m, &b, (fv_items){0}, "input_ids", "attention_mask", e);
    }
    for (int64_t i = 0; i < n && !st; i++) {
        out[i] = 0;
        for (int64_t k = 0; k < len[i]; k++) out[i] -= (double)b.loss[i * b.T + before - 1 + k];
    }
    fv_ctx_free(c);
    free_batch(&b);
    return st;
}
