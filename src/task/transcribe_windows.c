/* transcribe_windows.c - long sounds through a model that hears windows of fixed length and writes
 * times among its tokens: Whisper's way, as transformers' generate goes it.
 *
 *     start  [language]  [task]  [<|notimestamps|>]  text ..
 *
 * A window that ends inside a sentence is heard again from the end of its last whole segment, so
 * that no word is cut in two.  A sound of one window needs no times; longer ones always have them.
 * Texts of earlier windows are not put before later ones, which is transformers' default too: what
 * is misheard once is then not repeated to the end. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <zlib.h>

#include "fovea/author/family.h"
#include "task/transcribe.h"

/* ---- what is asked of the model ---- */

static int32_t id_at(const fv_json *j, const char *at)
{
    double x;
    return j && fv_json_number(j, at, &x) && x >= 0 && x < INT32_MAX ? (int32_t)x : -1;
}

/* The id of "<|de|>" in lang_to_id, given de or <|de|>; -1: there is none. */
static int32_t language_id(const fv_json *generation, const char *language)
{
    char at[96] = "lang_to_id.<|", *end = at + strlen(at);
    bool bare = strncmp(language, "<|", 2) != 0;
    const char *s = bare ? language : language + 2;
    size_t n = bare ? strlen(s) : strcspn(s, "|");
    if (n > 16) return -1;
    for (size_t i = 0; i < n; i++) *end++ = (char)tolower((unsigned char)s[i]);
    memcpy(end, "|>", 3);
    return id_at(generation, at);
}

static fv_status ask_language(fv__asked *q, const char *language, fv_err *e)
{
    if (!fv_json_has(q->generation, "lang_to_id"))
        return fv_fail(e, FV_EARG, "--language: the model knows one language only");
    q->ids[q->n++] = language_id(q->generation, language);
    if (q->ids[0] >= 0) return FV_OK;
    return fv_fail(e, FV_EARG, "--language: generation_config.json has no <|%s|> (it has %d codes)",
                   language, fv_json_count(q->generation, "lang_to_id"));
}

static fv_status ask_task(fv__asked *q, const char *task, fv_err *e)
{
    char at[64];
    snprintf(at, sizeof at, "task_to_id.%s", task);
    int32_t id = id_at(q->generation, at);
    if (id < 0) return fv_fail(e, FV_EARG, "--task: the model does not %s", task);
    q->ids[q->n++] = id;
    return FV_OK;
}

/* forced_decoder_ids, [[1, null], [2, 50359]]: null is a language that is to be heard. */
static fv_status ask_forced(fv__asked *q, const fv_json *j, fv_err *e)
{
    char at[64];
    int n = fv_json_count(j, "forced_decoder_ids");
    for (int i = 0; i < n; i++) {
        snprintf(at, sizeof at, "forced_decoder_ids.%d.0", i);
        if (id_at(j, at) != i + 1 || q->n > 5)
            return fv_fail(e, FV_EFORMAT, "forced_decoder_ids must be [[1, id], [2, id], ..]");
        snprintf(at, sizeof at, "forced_decoder_ids.%d.1", i);
        q->ids[q->n++] = id_at(j, at);
    }
    return FV_OK;
}

/* What stands before the text: language, task, and whether there are timestamps. In order: what was
 * asked for, generation_config.json's language and task, its forced_decoder_ids (older models have
 * them in config.json), and -1 for a language that is to be heard. */
fv_status fv__ask(fv__asked *q, const fv_json *generation, const fv_json *config,
                  const char *language, const char *task, fv_err *e)
{
    fv_status st = FV_OK;
    const char *said = generation ? fv_json_text(generation, "language") : NULL;
    *q = (fv__asked){.generation = generation, .none = id_at(generation, "no_timestamps_token_id")};
    q->latest = id_at(generation, "max_initial_timestamp_index");
    if (!generation || q->none < 0) {
        if (!*language && !*task) return FV_OK;
        return fv_fail(e, FV_EARG, "--language and --task: the model was not made for a choice");
    }
    if (!*language && said) language = said;
    said = fv_json_text(generation, "task");
    if (!*task && said) task = said;
    bool many = fv_json_has(generation, "lang_to_id");
    if (!*language && !*task) {
        const fv_json *from = fv_json_has(generation, "forced_decoder_ids") ? generation : config;
        st = ask_forced(q, from, e);
    }
    if (*language) st = ask_language(q, language, e);
    if (!st && !*language && !q->n && many) q->ids[q->n++] = -1;
    if (!st && *task) st = ask_task(q, task, e);
    if (!st && *language && !*task && fv_json_has(generation, "task_to_id"))
        st = ask_task(q, "transcribe", e);
    if (!st && q->n && q->ids[q->n - 1] == q->none) q->n--;
    if (!st && q->n && q->ids[0] < 0 && !many)
        st = fv_fail(e, FV_EFORMAT, "generation_config.json has no lang_to_id to hear one of");
    return st;
}

bool fv__asked_spaced(const fv__asked *q)
{
    static const char *const unspaced[] = {"zh", "ja", "th", "lo", "my", "yue"};
    for (int i = 0; q->n && q->ids[0] >= 0 && i < 6; i++)
        if (language_id(q->generation, unspaced[i]) == q->ids[0]) return false;
    return true;
}

/* ---- which language it is ---- */

/* A logits processor: everything but the likeliest language is impossible, so one step decides it.
 */
static void keep_languages(void *generation, float *score, int64_t V, const int32_t *ids, int64_t n)
{
    const fv_json *j = generation;
    int32_t best = -1;
    (void)ids, (void)n;
    for (int i = 0, k = fv_json_count(j, "lang_to_id"); i < k; i++) {
        const char *key = fv_json_key(j, "lang_to_id", i);
        int32_t id = key ? language_id(j, key) : -1;
        if (id >= 0 && id < V && (best < 0 || score[id] > score[best])) best = id;
    }
    for (int64_t v = 0; v < V && best >= 0; v++)
        if (v != best) score[v] = -INFINITY;
}

/* One token behind the start token: the likeliest language. */
static fv_status hear_language(const fv__windows *w, fv__asked *q, fv_err *e)
{
    fv_generated g = {0};
    fv_gen_opt o = *w->gen;
    o.num_beams = o.num_return_sequences = o.max_new_tokens = 1;
    o.do_sample = false;
    o.n_banned = o.n_begin_banned = 0;
    o.min_length = o.min_new_tokens = 0;
    o.logits = keep_languages;
    o.logits_user = (void *)(uintptr_t)q->generation;
    fv_status st = fv_generate_from(&g, w->dev, w->model, w->put, w->user, 1, &o, e);
    if (!st) q->ids[0] = g.hyp[0].ids[0];
    fv_generated_free(&g);
    return st;
}

/* ---- one window ---- */

/* How much shorter the ids become as bytes of zlib: loops compress well.  As transformers has it,
 * in as many bytes an id as the vocabulary needs. */
static double compression(const int32_t *ids, int64_t n, int64_t V)
{
    unsigned char raw[4096], out[5000];
    uLongf packed = sizeof out;
    size_t width = V < 256 ? 1 : V < 65536 ? 2 : 3, at = 0;
    for (int64_t i = 0; i < n && at + width <= sizeof raw; i++)
        for (size_t k = 0; k < width; k++) raw[at++] = (unsigned char)(ids[i] >> (8 * k));
    if (!at || compress(out, &packed, raw, (uLong)at) != Z_OK) return 0;
    return (double)at / (double)packed;
}

/* Below -1 for each token, or a loop: thresholds that openai's whisper has, the second one in
 * tokens. */
static bool is_doubtful(const fv_hyp *h, const fv_gen_opt *o, int64_t V)
{
    double mean = o->num_beams > 1 ? h->score : h->score / (double)(h->n ? h->n : 1);
    return mean < -1 || compression(h->ids, h->n, V) > 1.35;
}

/* What stands behind the start token: language, task, and that there are no times where there are
 * none. */
static int begin_ids(const fv__asked *q, bool times, int32_t begin[9])
{
    int n = q->n;
    memcpy(begin, q->ids, sizeof q->ids);
    if (!times && q->none >= 0) begin[n++] = q->none;
    return n;
}

/* Radford et al. 2022, 4.5: what looks wrong (too repetitive, too unlikely) is sampled again at
 * rising temperatures, 0.2 to 1. */
static fv_status hear(const fv__windows *w, const fv__asked *q, bool times, fv_generated *g,
                      fv_err *e)
{
    int32_t begin[9];
    fv_gen_opt o = *w->gen;
    int64_t V = fv_model_family(w->model)->vocabulary(fv_model_self(w->model));
    o.begin = begin;
    o.n_begin = begin_ids(q, times, begin);
    fv_times_rule rule = {.eos = o.eos,
                          .none = q->none,
                          .first = q->none + 1,
                          .latest = q->latest,
                          .begin = 1 + o.n_begin};
    if (times) o.logits = fv_times_logits, o.logits_user = &rule;
    if (!o.max_new_tokens) o.max_length += 1 + o.n_begin; /* as transformers counts here */
    fv_status st = fv_generate_from(g, w->dev, w->model, w->put, w->user, 1, &o, e);
    for (int i = 1; !st && w->fallback && i <= 5 && is_doubtful(&g->hyp[0], &o, V); i++) {
        fv_generated_free(g);
        o.do_sample = true;
        o.num_beams = 1;
        o.top_k = 0;
        o.temperature = 0.2f * (float)i;
        st = fv_generate_from(g, w->dev, w->model, w->put, w->user, 1, &o, e);
    }
    return st;
}

static bool ends(const fv_gen_opt *o, int32_t id)
{
    for (int i = 0; i < o->n_ends; i++)
        if (o->ends[i] == id) return true;
    return id == o->eos;
}

/* begins[i], i up to h->n: the second at which token i begins, from the beginning of the window
 * on.  The last token was written and not read, so it has no row: it begins where the one before
 * does, as in transformers. */
static fv_status time_tokens(const fv__windows *w, const fv__asked *q, const fv_hyp *h, bool times,
                             int64_t frames, double *begins, fv_err *e)
{
    const fv_env *env = fv_device_env(w->dev);
    int32_t begin[9];
    int64_t given = 1 + begin_ids(q, times, begin), n = given + h->n - 1, cols = frames / 2;
    size_t bytes = (size_t)(n + h->n) * sizeof(int64_t);
    int64_t *at = fv__alloc(env, bytes);
    if (!at) return fv_fail(e, FV_ENOMEM, "token times: out of memory");
    int32_t *ids = (int32_t *)(void *)(at + h->n);
    ids[0] = w->gen->start;
    memcpy(ids + 1, begin, (size_t)(given - 1) * sizeof *ids);
    memcpy(ids + given, h->ids, (size_t)(h->n - 1) * sizeof *ids);
    fv_align_opt o = {w->align->heads, w->align->n, w->align->width};
    fv_status st = h->n > 1
                       ? fv_align(at, w->dev, w->model, w->put, w->user, ids, n, given, o, &cols, e)
                       : FV_OK;
    for (int64_t i = 0; i <= h->n; i++) {
        int64_t row = i < h->n - 1 ? i : h->n - 2;
        begins[i] = h->n > 1 && !st ? 0.02 * (double)at[row] : 0;
    }
    fv__free(env, at, bytes);
    return st;
}

/* Hands on the segments of a window that begins at `frame`; *next: frames to go on by.  begins: of
 * tokens, or NULL. */
static fv_status put_segments(const fv__windows *w, const fv__asked *q, const fv_hyp *h, bool times,
                              int64_t frame, int64_t frames, const double *begins, int64_t *next,
                              fv_err *e)
{
    const fv_env *env = fv_device_env(w->dev);
    int64_t n = h->n && ends(w->gen, h->ids[h->n - 1]) ? h->n - 1 : h->n, count = 0;
    double begin = (double)frame / 100;
    *next = frames;
    if (!times)
        return w->segment(w->user, q, begin, begin + (double)frames / 100, h->ids, n, begins, e);
    if (!n) return FV_OK;
    size_t bytes = (size_t)(n + 1) * sizeof(fv_times_segment);
    fv_times_segment *s = fv__alloc(env, bytes);
    if (!s) return fv_fail(e, FV_ENOMEM, "out of memory for %lld tokens", (long long)n);
    count = fv_times_cut(s, next, h->ids, n, q->none + 1, frames);
    fv_status st = FV_OK;
    for (int64_t i = 0; !st && i < count; i++)
        st = w->segment(w->user, q, begin + s[i].from, begin + s[i].to, h->ids + s[i].at, s[i].n,
                        begins ? begins + s[i].at : NULL, e);
    fv__free(env, s, bytes);
    return st;
}

/* What was heard in a window, with times of tokens where they are asked for. */
static fv_status put_window(const fv__windows *w, const fv__asked *q, const fv_hyp *h, bool times,
                            int64_t frame, int64_t frames, int64_t *next, fv_err *e)
{
    const fv_env *env = fv_device_env(w->dev);
    if (!w->align || h->n < 1) return put_segments(w, q, h, times, frame, frames, NULL, next, e);
    size_t bytes = (size_t)(h->n + 1) * sizeof(double);
    double *begins = fv__alloc(env, bytes);
    if (!begins) return fv_fail(e, FV_ENOMEM, "token times: out of memory");
    fv_status st = time_tokens(w, q, h, times, frames, begins, e);
    for (int64_t i = 0; i <= h->n; i++) begins[i] += (double)frame / 100;
    if (!st) st = put_segments(w, q, h, times, frame, frames, begins, next, e);
    fv__free(env, begins, bytes);
    return st;
}

/* ---- all of them ---- */

/* put_segments says how far the window was heard; what lies behind its last whole segment is heard
 * again in the next one. */
fv_status fv__windows_run(const fv__windows *w, fv__asked *q, int64_t frames, int64_t window,
                          fv_err *e)
{
    fv_status st = FV_OK;
    bool times = q->none >= 0 && (w->times || frames > window);
    for (int64_t at = 0, next = 0; !st && at < frames; at += next) {
        int64_t n = frames - at < window ? frames - at : window;
        fv_generated g = {0};
        st = w->seek(w->user, at, n, e);
        if (!st && q->n && q->ids[0] < 0) st = hear_language(w, q, e);
        if (!st) st = hear(w, q, times, &g, e);
        if (!st) st = put_window(w, q, &g.hyp[0], times, at, n, &next, e);
        fv_generated_free(&g);
        if (next < 1) next = n; /* a pair of <|0.00|>: nothing was heard, and it goes on */
    }
    return st;
}
