/* test_beams.c - beam search by the device beside beam search by the host: the same hypotheses.
 * Where the device has no kernel for it, the one written down here in plain C takes its place, and
 * says what it must do. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/backend.h"
#include "fovea/fovea.h"
#include "fovea/gen.h"
#include "fovea/author/family.h"
#include "fovea/author/op.h"
#include "helper/device.h"

enum { VOCAB = 40, SOURCES = 24 };

/* ---- one step in plain C, of f32 ---- */

typedef struct option {
    float total;
    int32_t beam, token;
} option;

/* Of equals the better beam comes first, then the lower token. */
static bool comes_first(const option *x, const option *y)
{
    if (x->total != y->total) return x->total > y->total;
    return x->beam != y->beam ? x->beam < y->beam : x->token < y->token;
}

/* Into a list of at most `most`, best first; returns how many there are. */
static int64_t put_in(option *list, int64_t n, int64_t most, option o)
{
    if (n == most && !comes_first(&o, &list[n - 1])) return n;
    int64_t at = n < most ? n++ : n - 1;
    for (; at > 0 && comes_first(&o, &list[at - 1]); at--) list[at] = list[at - 1];
    list[at] = o;
    return n;
}

static bool ruled_out(const fv_beams *a, int64_t i, int64_t v)
{
    return a->token_flags[v] & FV_TOKEN_BANNED ||
           (a->token_flags[v] & FV_TOKEN_EOS && a->made[i] < a->min_new[i]);
}

/* The best continuations of the source at place p. */
static int64_t options_of(option *out, const fv_beams *a, int64_t p)
{
    int64_t i = a->source[p], n = 0;
    bool first = a->forced_first >= 0 && a->made[i] == 0,
         last = a->forced_last >= 0 && a->made[i] == a->max_new[i];
    for (int32_t k = 0; k < a->K; k++) {
        const float *x = (const float *)a->logits + (p * a->K + k) * a->V,
                    before = a->score[i * a->K + k];
        double sum = 0;
        for (int64_t v = 0; v < a->V; v++)
            if (!a->renormalize || !ruled_out(a, i, v)) sum += exp((double)x[v]);
        float all = (float)log(sum);
        for (int32_t v = 0; v < a->V && !first && !last; v++)
            if (!ruled_out(a, i, v))
                n = put_in(out, n, a->wide, (option){before + (x[v] - all), k, v});
        if (first || last)
            n = put_in(out, n, a->wide,
                       (option){before, k, last ? a->forced_last : a->forced_first});
    }
    return n;
}

static void finish(fv_ended *done, int64_t K, fv_ended h)
{
    if (!(h.score > done[K - 1].score)) return;
    int64_t k = K - 1;
    for (; k > 0 && h.score > done[k - 1].score; k--) done[k] = done[k - 1];
    done[k] = h;
}

static void move_caches(const fv_beams *a, int64_t p, const option *kept)
{
    for (int64_t c = 0; c < a->n_caches; c++) {
        const fv_cache_rows *at = &a->cache[c];
        char *rows = (char *)at->data + (size_t)(p * a->K) * at->row,
             *was = malloc((size_t)a->K * at->row);
        assert_non_null(was);
        memcpy(was, rows, (size_t)a->K * at->row);
        for (int64_t k = 0; k < a->K; k++)
            memcpy(rows + (size_t)k * at->row, was + (size_t)kept[k].beam * at->row, at->row);
        free(was);
    }
}

static void step_source(const fv_beams *a, int64_t p)
{
    option all[FV_BEAMS_MAX_CANDIDATES], kept[FV_BEAMS_MAX];
    int64_t i = a->source[p], K = a->K, have = 0, n = options_of(all, a, p);
    fv_ended *done = a->done + i * K;
    bool full = a->early && done[K - 1].made >= 0;
    for (int64_t j = 0; j < n; j++) {
        bool ends = a->made[i] >= a->max_new[i] || a->token_flags[all[j].token] & FV_TOKEN_EOS;
        float score = (float)((double)all[j].total / a->penalty[a->made[i] + 1]);
        if (ends && j < K && !full)
            finish(done, K, (fv_ended){score, a->made[i], all[j].beam, all[j].token});
        if (!ends && have < K) kept[have++] = all[j];
    }
    a->over[i] = !have;
    for (; have < K; have++)
        kept[have] = have ? (option){-1e9f, kept[0].beam, kept[0].token}
                          : (option){-1e9f, 0, a->pad};
    move_caches(a, p, kept);
    for (int64_t k = 0; k < K; k++) {
        int64_t at = (a->made[i] * a->all + i) * K + k;
        a->tokens[at] = a->token[p * K + k] = kept[k].token;
        a->parents[at] = kept[k].beam;
        a->score[i * K + k] = kept[k].total;
        for (int64_t q = 0; q < a->n_positions; q++) a->position[q * a->sources * K + p * K + k]++;
    }
    a->made[i]++;
    float best = (float)((double)kept[0].total /
                         a->penalty[a->hopeful ? a->max_new[i] + 1 : a->made[i]]);
    if (!(best > done[K - 1].score) || (a->early && done[K - 1].made >= 0)) a->over[i] = 1;
}

static void plain_beams(fv_stream *s, const fv_beams *a)
{
    (void)s;
    for (int64_t p = 0; p < a->sources; p++)
        if (!a->over[a->source[p]]) step_source(a, p);
}

/* ---- a step of the device's beside it ---- */

enum { CACHES = 3, ROOM = 20 };
/* the last is no multiple of what is moved at once */
static const size_t token_bytes[CACHES] = {64, 48, 10};

/* All that a step reads and writes, in one block. */
typedef struct everything {
    float logits[SOURCES * FV_BEAMS_MAX * VOCAB], score[SOURCES * FV_BEAMS_MAX];
    double penalty[ROOM + 2];
    fv_ended done[SOURCES * FV_BEAMS_MAX];
    uint8_t token_flags[VOCAB];
    int32_t source[SOURCES], min_new[SOURCES], max_new[SOURCES], made[SOURCES], over[SOURCES];
    int32_t common[SOURCES * FV_BEAMS_MAX * FV_BEAMS_MAX];
    int32_t tokens[ROOM * SOURCES * FV_BEAMS_MAX], parents[ROOM * SOURCES * FV_BEAMS_MAX];
    int32_t token[SOURCES * FV_BEAMS_MAX], position[3 * SOURCES * FV_BEAMS_MAX];
    fv_cache_rows cache[CACHES];
    _Alignas(16) unsigned char keys[CACHES][SOURCES * FV_BEAMS_MAX * ROOM * 64];
} everything;

/* b with the addresses of what lies at `at`. */
static fv_beams at_block(fv_beams b, everything *at)
{
    b.logits = at->logits, b.token_flags = at->token_flags, b.penalty = at->penalty,
    b.source = at->source;
    b.min_new = at->min_new, b.max_new = at->max_new, b.made = at->made, b.over = at->over,
    b.score = at->score, b.done = at->done;
    b.common = at->common, b.tokens = at->tokens, b.parents = at->parents, b.token = at->token,
    b.position = at->position;
    b.cache = at->cache;
    return b;
}

static void give_caches(everything *x, everything *lie_at)
{
    for (int c = 0; c < CACHES; c++)
        x->cache[c] = (fv_cache_rows){lie_at->keys[c], token_bytes[c], token_bytes[c] * ROOM};
}

static float random_float(uint32_t *seed)
{
    return (float)((*seed = *seed * 1664525u + 1013904223u) >> 8) / (float)(1 << 24);
}

static void begin_block(everything *x, const fv_beams *b)
{
    memset(x, 0, sizeof *x);
    for (int64_t t = 0; t < ROOM + 2; t++) x->penalty[t] = pow((double)t, 0.7);
    for (int v = 0; v < VOCAB; v++)
        x->token_flags[v] = v % 9 == 4 ? FV_TOKEN_EOS : v == 2 ? FV_TOKEN_BANNED : 0;
    for (int64_t i = 0; i < b->all; i++) {
        x->source[i] = (int32_t)(b->all - 1 - i); /* places and sources are not in one order */
        x->min_new[i] = (int32_t)(i % 4);
        x->max_new[i] = (int32_t)(4 + i % 9);
    }
    for (int64_t j = 0; j < b->all * b->K; j++) {
        x->done[j] = (fv_ended){.score = -1e9f, .made = -1};
        x->score[j] = j % b->K ? -1e9f : 0;
        for (int q = 0; q < 3; q++) x->position[q * b->all * b->K + j] = q;
    }
}

/* What the model would do: scores, and keys of this token at the end of each row. */
static void model_step(everything *x, const fv_beams *b, uint32_t *seed)
{
    for (int64_t j = 0; j < b->all * b->K * b->V; j++) x->logits[j] = 6 * random_float(seed);
    for (int c = 0; c < CACHES; c++)
        for (int64_t r = 0; r < b->all * b->K; r++)
            for (size_t t = 0; t < token_bytes[c]; t++)
                x->keys[c][((size_t)r * ROOM + (size_t)x->position[r]) * token_bytes[c] + t] =
                    (unsigned char)(*seed >> t % 4 * 8) + (unsigned char)r;
}

static void same_block(const everything *got, const everything *want, const fv_beams *b,
                       int64_t step)
{
    int64_t rows = b->all * b->K;
    for (int64_t j = 0; j < rows; j++) {
        int64_t i = j / b->K, at = ((want->made[i] - 1) * b->all + i) * b->K + j % b->K;
        const fv_ended *d = &got->done[j], *e = &want->done[j];
        bool ok = got->made[i] == want->made[i] && got->over[i] == want->over[i] &&
                  got->token[j] == want->token[j] && got->tokens[at] == want->tokens[at] &&
                  got->parents[at] == want->parents[at] && d->made == e->made &&
                  d->parent == e->parent && d->token == e->token &&
                  fabsf(got->score[j] - want->score[j]) <= 1e-4f &&
                  fabsf(d->score - e->score) <= 1e-4f;
        for (int q = 0; q < 3; q++)
            ok = ok && got->position[q * rows + j] == want->position[q * rows + j];
        if (!ok)
            fail_msg("step %d, %d beams, source %d, beam %d: made %d over %d token %d from %d "
                     "score %g, ended %d %d %d %g; "
                     "expected %d %d %d %d %g, %d %d %d %g",
                     (int)step, (int)b->K, (int)i, (int)(j % b->K), got->made[i], got->over[i],
                     got->tokens[at], got->parents[at], (double)got->score[j], d->made, d->parent,
                     d->token, (double)d->score, want->made[i], want->over[i], want->tokens[at],
                     want->parents[at], (double)want->score[j], e->made, e->parent, e->token,
                     (double)e->score);
    }
    for (int64_t r = 0; r < rows; r++) /* what is behind the last key of a row, nobody reads */
        for (int c = 0; c < CACHES; c++)
            for (size_t t = 0; t < (size_t)want->position[r] * token_bytes[c]; t++)
                if (got->keys[c][(size_t)r * ROOM * token_bytes[c] + t] !=
                    want->keys[c][(size_t)r * ROOM * token_bytes[c] + t])
                    fail_msg("step %d, %d beams: byte %d of row %d of cache %d", (int)step,
                             (int)b->K, (int)t, (int)r, c);
}

static void a_step_does_what_is_written_here(void **state)
{
    (void)state;
    const fv_backend *k = device->backend;
    void (*beams)(fv_stream *, const fv_beams *) = device->k[FV_F32]->beams;
    everything *want = malloc(sizeof *want), *got = malloc(sizeof *got),
               *there = k->alloc(device, sizeof *there);
    fv_ctx *c;
    fv_err e;
    assert_true(want && got && there);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_stream *s = fv_ctx_stream(c);
    for (int64_t K = 2; K <= FV_BEAMS_MAX; K = K < 5 ? K + 1 : 2 * K - 2) {
        fv_beams b = {.sources = SOURCES,
                      .K = K,
                      .V = VOCAB,
                      .all = SOURCES,
                      .wide = 3 * K,
                      .forced_first = K == 3 ? 7 : -1,
                      .forced_last = K == 4 ? 4 : -1,
                      .pad = 0,
                      .renormalize = K % 2,
                      .early = K == 5,
                      .hopeful = K == 2,
                      .n_positions = 3,
                      .n_caches = CACHES};
        uint32_t seed = (uint32_t)K;
        begin_block(want, &b);
        for (int64_t step = 0; step < (test_brief() ? 3 : 14); step++) {
            model_step(want, &b, &seed);
            give_caches(want, there);
            k->upload(s, there, want, sizeof *want);
            fv_beams device_s = at_block(b, there), mine = at_block(b, want);
            (beams ? beams : plain_beams)(s, &device_s);
            k->download(s, got, there, sizeof *got);
            check(fv_ctx_status(c), fv_ctx_err(c));
            /* how little is copied is the device's own */
            memcpy(want->common, got->common, sizeof got->common);
            give_caches(want, want);
            plain_beams(s, &mine);
            same_block(got, want, &b, step);
        }
    }
    k->release(device, there, sizeof *there);
    fv_ctx_free(c);
    free(want);
    free(got);
}

/* ---- both ways ---- */

static const char *const families[] = {
    "{\"model_type\": \"marian\", \"vocab_size\": 40, \"d_model\": 32, \"encoder_layers\": 1, "
    "\"decoder_layers\": 2, "
    "\"encoder_attention_heads\": 2, \"decoder_attention_heads\": 2, \"encoder_ffn_dim\": 64, "
    "\"decoder_ffn_dim\": 64, "
    "\"init_std\": 0.6, \"pad_token_id\": 0, \"eos_token_id\": 1, \"decoder_start_token_id\": 0}",
    "{\"model_type\": \"llama\", \"vocab_size\": 40, \"hidden_size\": 24, \"num_hidden_layers\": "
    "2, \"num_attention_heads\": 4, "
    /* caches of 24 bytes a token */
    "\"num_key_value_heads\": 1, \"intermediate_size\": 48, \"initializer_range\": 0.6}",
    "{\"model_type\": \"t5\", \"vocab_size\": 40, \"d_model\": 32, \"d_kv\": 16, \"d_ff\": 64, "
    "\"num_layers\": 2, "
    "\"num_heads\": 2, \"initializer_factor\": 1.5, \"pad_token_id\": 0, "
    "\"decoder_start_token_id\": 0}",
    "{\"model_type\": \"gpt2\", \"vocab_size\": 9001, \"n_embd\": 32, \"n_head\": 4, \"n_layer\": "
    "1, \"n_positions\": 64, "
    "\"initializer_range\": 0.4}", /* rows of several parts */
};

static const int32_t end_too[] = {7, 11}, never[] = {3, 5};

static const struct {
    const char *name;
    fv_gen_opt o; /* what differs from the defaults */
} ways[] = {
    {"4 beams", {.num_beams = 4, .length_penalty = 1}},
    {"2 beams, early", {.num_beams = 2, .length_penalty = 1, .early_stopping = FV_EARLY_TRUE}},
    {"5 beams, never early, long ones first",
     {.num_beams = 5, .length_penalty = 2, .early_stopping = FV_EARLY_NEVER}},
    {"3 beams, no penalty, renormalised", {.num_beams = 3, .renormalize_logits = true}},
    {"9 beams, rules",
     {.num_beams = 9, .length_penalty = 0.5f, .min_length = 9, .banned = never, .n_banned = 2}},
    {"4 beams, more ends", {.num_beams = 4, .length_penalty = 1, .ends = end_too, .n_ends = 2}},
    {"16 beams", {.num_beams = 16, .length_penalty = 1, .early_stopping = FV_EARLY_TRUE}},
    /* the host's, either way */
    {"4 beams, nothing twice", {.num_beams = 4, .length_penalty = 1, .no_repeat_ngram_size = 2}},
    {"4 beams, a last token", {.num_beams = 4, .length_penalty = 1, .forced_eos = 1}},
};

static fv_gen_opt options(int impl)
{
    fv_gen_opt o = {0}, w = ways[impl].o;
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = o.num_return_sequences = w.num_beams;
    o.length_penalty = w.length_penalty;
    o.early_stopping = w.early_stopping;
    o.renormalize_logits = w.renormalize_logits;
    o.min_length = w.min_length;
    o.no_repeat_ngram_size = w.no_repeat_ngram_size;
    o.banned = w.banned, o.n_banned = w.n_banned;
    o.ends = w.ends, o.n_ends = w.n_ends;
    o.max_new_tokens = 24;
    o.start = o.pad = 0;
    o.eos = 1;
    o.forced_bos = -1;
    o.forced_eos = w.forced_eos ? w.forced_eos : -1; /* which need not be the end token */
    return o;
}

static void generate(fv_generated *out, const fv_model *m, const fv_gen_opt *o, const char *name)
{
    int32_t text[SOURCES][6];
    const int32_t *source[SOURCES];
    int64_t len[SOURCES];
    fv_err e;
    for (int i = 0; i < SOURCES; i++) {
        for (int t = 0; t < 6; t++) text[i][t] = 2 + (i * 7 + t * t * 5 + t) % (VOCAB - 2);
        source[i] = text[i];
        len[i] = 2 + i % 5;
    }
    if (fv_generate(out, device, m, source, len, SOURCES, o, &e)) fail_msg("%s: %s", name, e.text);
}

/* How many of all hypotheses are the same, token by token; those that are not are as good, but for
 * rounding. */
static int64_t same(const fv_generated *a, const fv_generated *b, const char *name)
{
    int64_t n = 0;
    for (int64_t j = 0; j < a->n * a->each; j++) {
        const fv_hyp *x = &a->hyp[j], *y = &b->hyp[j];
        n += x->n == y->n && !memcmp(x->ids, y->ids, (size_t)x->n * sizeof *x->ids);
        if (fabs(x->score - y->score) > 1e-4 * fabs(y->score) + 1e-4)
            fail_msg("%s: hypothesis %d of source %d has score %.7g, on the host %.7g", name,
                     (int)(j % a->each), (int)(j / a->each), x->score, y->score);
    }
    return n;
}

static void a_device_finds_what_the_host_finds(void **state)
{
    (void)state;
    fv_err e;
    const fv_kernels *real = device->k[FV_F32];
    fv_kernels by_device = *real, by_host = *real;
    if (!by_device.beams) by_device.beams = plain_beams;
    by_host.beams = NULL;
    for (int f = 0; f < (int)(sizeof families / sizeof *families); f++) {
        fv_model *m;
        check(fv_model_new(&m, device, families[f], (fv_model_opt){0}, 5, &e), &e);
        /* large rows take long */
        int some = test_brief() || f == 3 ? 2 : (int)(sizeof ways / sizeof *ways);
        for (int w = 0; w < some; w++) {
            fv_generated a, b;
            fv_gen_opt o = options(w);
            char name[96];
            snprintf(name, sizeof name, "%s, %s", fv_model_family(m)->type, ways[w].name);
            device->k[FV_F32] = &by_host;
            generate(&b, m, &o, name);
            /* what comes by itself, so that some end soon and some late */
            o.eos = b.hyp[3 * w].ids[6];
            fv_generated_free(&b);
            generate(&b, m, &o, name);
            device->k[FV_F32] = &by_device;
            generate(&a, m, &o, name);
            device->k[FV_F32] = real;
            int64_t n = same(&a, &b, name), all = a.n * a.each;
            if (100 * n < 97 * all)
                fail_msg("%s: %d of %d hypotheses are the same", name, (int)n, (int)all);
            fv_generated_free(&a);
            fv_generated_free(&b);
        }
        fv_model_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_does_what_is_written_here),
        cmocka_unit_test(a_device_finds_what_the_host_finds),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
