/* test_sampler.c - writing on a device: the CPU's choices, whether the host or the device makes
 * them, steps that are replayed, memory that stays, and what happens when there is none left.  On
 * the CPU itself the same tests hold. */
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
#include "fovea/author/op.h"
#include "fovea/author/session.h"
#include "gen/sample.h"
#include "helper/device.h"
#include "helper/writer.h"

enum { VOCAB = 1003, PLACES = 160, SOURCES = 5 };

#define GPT2                                                                                       \
    "{\"model_type\":\"gpt2\",\"vocab_size\":1003,\"n_positions\":160,\"initializer_range\":0.15,"
static const char gpt2[] = GPT2 "\"n_embd\":192,\"n_layer\":2,\"n_head\":3}";
/* and many heads */
static const char gpt2_long[] = GPT2 "\"n_embd\":384,\"n_layer\":2,\"n_head\":6,\"n_inner\":2304}";
static const char gpt2_deep[] = GPT2 "\"n_embd\":64,\"n_layer\":24,\"n_head\":1}";
static const char marian[] = "{\"model_type\":\"marian\",\"vocab_size\":503,\"d_model\":64,"
                             "\"encoder_layers\":2,\"decoder_layers\":2,"
                             "\"encoder_attention_heads\":2,\"decoder_attention_heads\":2,"
                             "\"encoder_ffn_dim\":96,\"decoder_ffn_dim\":96,"
                             "\"max_position_embeddings\":64,\"scale_embedding\":true,\"init_std\":"
                             "0.2,\"pad_token_id\":502,\"eos_token_id\":0,"
                             "\"decoder_start_token_id\":502}";
static const char bart[] = "{\"model_type\":\"bart\",\"vocab_size\":503,\"d_model\":64,\"encoder_"
                           "layers\":1,\"decoder_layers\":2,"
                           "\"encoder_attention_heads\":2,\"decoder_attention_heads\":2,\"encoder_"
                           "ffn_dim\":96,\"decoder_ffn_dim\":96,"
                           "\"max_position_embeddings\":64,\"init_std\":0.2,\"pad_token_id\":1,"
                           "\"eos_token_id\":2,\"bos_token_id\":0,"
                           "\"decoder_start_token_id\":2}";
static const char llama[] = "{\"model_type\":\"llama\",\"vocab_size\":503,\"hidden_size\":128,"
                            "\"intermediate_size\":256,\"num_hidden_layers\":2,"
                            "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"max_position_"
                            "embeddings\":128,\"initializer_range\":0.15}";

static fv_device *cpu;

static int open_devices(void **state)
{
    fv_device_opt o = {.threads = 2};
    return open_device(state) || fv_device_open(&cpu, "cpu", o, NULL);
}

static int close_devices(void **state)
{
    fv_device_close(cpu);
    return close_device(state);
}

static fv_model *open_model(fv_device *d, const char *config, fv_dtype weights)
{
    fv_model *m;
    fv_err e;
    check(fv_model_new(&m, d, config, (fv_model_opt){.serve = true, .weights = weights}, 7, &e),
          &e);
    return m;
}

/* ---- generation: the device's hypotheses are the CPU's ---- */

typedef struct example {
    const char *what, *config;
    fv_gen_opt o;
} example;

static int64_t source_len(int64_t i) { return 3 + 2 * i; }
static int32_t source_word(int64_t i, int64_t j) { return (int32_t)(3 + (i * 131 + j * 37) % 400); }

static void generate(fv_generated *out, fv_device *d, const example *x, bool encoder)
{
    int32_t ids[SOURCES][16];
    const int32_t *source[SOURCES];
    int64_t len[SOURCES];
    fv_err e;
    for (int i = 0; i < SOURCES; i++) {
        len[i] = source_len(i);
        for (int j = 0; j < len[i]; j++) ids[i][j] = source_word(i, j);
        if (encoder) ids[i][len[i] - 1] = 2;
        source[i] = ids[i];
    }
    fv_model *m = open_model(d, x->config, FV_F32);
    if (fv_generate(out, d, m, source, len, SOURCES, &x->o, &e))
        fail_msg("%s on %s: %s", x->what, fv_device_name(d), e.text);
    fv_model_free(m);
}

static void same_hypotheses(const example *x, bool encoder)
{
    fv_generated a, b;
    generate(&a, device, x, encoder);
    generate(&b, cpu, x, encoder);
    for (int64_t i = 0; i < a.n * a.each; i++) {
        if (a.hyp[i].n != b.hyp[i].n)
            fail_msg("%s: hypothesis %d has %d tokens, not %d", x->what, (int)i, (int)a.hyp[i].n,
                     (int)b.hyp[i].n);
        for (int64_t t = 0; t < a.hyp[i].n; t++)
            if (a.hyp[i].ids[t] != b.hyp[i].ids[t])
                fail_msg("%s: token %d of hypothesis %d is %d, not %d", x->what, (int)t, (int)i,
                         a.hyp[i].ids[t], b.hyp[i].ids[t]);
        if (fabs(a.hyp[i].score - b.hyp[i].score) > 2e-3 * (1 + fabs(b.hyp[i].score)))
            fail_msg("%s: hypothesis %d scores %g, not %g", x->what, (int)i, a.hyp[i].score,
                     b.hyp[i].score);
    }
    fv_generated_free(&a);
    fv_generated_free(&b);
}

static fv_gen_opt defaults(int64_t more)
{
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.max_new_tokens = test_brief() && more > 12 ? 12 : more;
    o.num_beams = 1;
    o.top_k = 0;
    return o;
}

static void the_likeliest_are_the_same(void **state)
{
    (void)state;
    static const int32_t never[] = {5, 17, 300}, ends[] = {40, 41, 42, 43, 44, 45, 46, 47, 48};
    example x = {"greedy", gpt2, defaults(40)};
    same_hypotheses(&x, false);
    x.what = "greedy to the end";
    x.o.max_new_tokens = PLACES - 11;
    if (!test_brief()) same_hypotheses(&x, false);
    x = (example){"greedy with rules", gpt2, defaults(25)};
    x.o.banned = never;
    x.o.n_banned = 3;
    x.o.ends = ends;
    x.o.n_ends = 9;
    x.o.min_new_tokens = 4;
    x.o.forced_eos = 99;
    same_hypotheses(&x, false);
    x.what = "greedy with a penalty"; /* the host chooses */
    x.o.repetition_penalty = 1.3f;
    same_hypotheses(&x, false);
    x = (example){"llama, greedy", llama, defaults(40)};
    same_hypotheses(&x, false);
}

/* The CPU draws from the same past, with the same random number and with one a little smaller and
 * a little greater: scores that differ by rounding move the borders between tokens by less than
 * that. */
static void drawn_as_the_cpu_would(const example *x, fv_model *m, const fv_hyp *h,
                                   const int32_t *prompt, int64_t len, uint64_t number)
{
    static float logits[VOCAB];
    static fv_candidate scratch[VOCAB];
    const double near = 1e-5;
    fv_session *s;
    fv_ctx *c;
    fv_err e;
    check(fv_ctx_new(&c, cpu, (fv_ctx_opt){0}, &e), &e);
    check(fv_session_new(&s, m, cpu, 1, PLACES, &e), &e);
    for (int64_t t = 0; t < h->n; t++) {
        uint32_t w[4];
        fv_ctx_reset(c, 0);
        fv_tensor *ids = t ? fv_ints(c, h->ids + t - 1, FV_SHAPE(1, 1))
                           : fv_ints(c, prompt, FV_SHAPE(1, len));
        if (fv_read(c, fv_session_step(c, s, ids), logits, VOCAB))
            fail_msg("%s", fv_ctx_err(c)->text);
        fv_philox(w, (uint64_t)x->o.seed, number, (uint64_t)t, 0);
        double u = ((double)w[0] + 0.5) * 0x1p-32;
        bool found = false;
        for (int k = -1; k <= 1 && !found; k++)
            found = fv__sample_token(logits, VOCAB, &x->o, fmin(fmax(u + k * near, 0), 1 - 1e-12),
                                     scratch) == h->ids[t];
        if (!found)
            fail_msg("%s: token %d of sequence %d is %d", x->what, (int)t, (int)number, h->ids[t]);
    }
    fv_session_free(s);
    fv_ctx_free(c);
}

static void same_draws(const example *x)
{
    fv_generated a;
    fv_model *m = open_model(cpu, x->config, FV_F32);
    generate(&a, device, x, false);
    for (int64_t i = 0; i < a.n * a.each; i++) {
        int32_t prompt[16];
        int64_t source = i / a.each, len = source_len(source);
        for (int64_t j = 0; j < len; j++) prompt[j] = source_word(source, j);
        drawn_as_the_cpu_would(x, m, &a.hyp[i], prompt, len, (uint64_t)i);
    }
    fv_generated_free(&a);
    fv_model_free(m);
}

static void draws_are_the_same(void **state)
{
    (void)state;
    example x = {"drawn from all", gpt2, defaults(30)};
    x.o.do_sample = true;
    x.o.seed = 11;
    x.o.num_return_sequences = 3;
    same_draws(&x);
    x.what = "drawn at a temperature";
    x.o.temperature = 0.7f;
    same_draws(&x);
    x.what = "drawn from the best 50";
    x.o.top_k = 50;
    same_draws(&x);
    x.what = "drawn from the best 50 and their better half";
    x.o.top_p = 0.5f;
    same_draws(&x);
    x.what = "drawn from the better 90 %";
    x.o.top_k = 0;
    x.o.top_p = 0.9f;
    same_draws(&x);
    x.what = "drawn above a share of the best";
    x.o.top_p = 1;
    x.o.min_p = 0.05f;
    same_draws(&x);
}

/* A model that is broken gives no sense, but tokens of its vocabulary. */
static void scores_that_are_no_numbers_do_no_harm(void **state)
{
    (void)state;
    float no_numbers[192];
    int32_t prompt[] = {5, 9, 2};
    const int32_t *source = prompt;
    int64_t len = 3;
    fv_model *m;
    fv_err e;
    for (int i = 0; i < 192; i++) no_numbers[i] = NAN;
    check(fv_model_new(&m, device, gpt2, (fv_model_opt){0}, 7, &e), &e);
    fv_params *p = fv_model_params(m);
    check(fv_params_set(p, fv_params_find(p, "transformer.ln_f.weight"), no_numbers, 192, &e), &e);
    for (int k = 0; k < 4; k++) {
        fv_generated out;
        fv_gen_opt o = defaults(6);
        o.do_sample = true;
        if (k == 1) o.top_k = 9;
        if (k == 2) o.top_p = 0.5f;
        if (k == 3) o.min_p = 0.1f;
        check(fv_generate(&out, device, m, &source, &len, 1, &o, &e), &e);
        for (int64_t t = 0; t < out.hyp[0].n; t++)
            assert_true(out.hyp[0].ids[t] >= 0 && out.hyp[0].ids[t] < VOCAB);
        fv_generated_free(&out);
    }
    fv_model_free(m);
}

static void beams_are_the_same(void **state)
{
    (void)state;
    example x = {"marian, beams", marian, defaults(30)};
    x.o.num_beams = x.o.num_return_sequences = 4;
    x.o.start = 502;
    x.o.eos = 0;
    x.o.pad = 502;
    same_hypotheses(&x, true);
    x.what = "marian, greedy";
    x.o.num_beams = x.o.num_return_sequences = 1;
    same_hypotheses(&x, true);
    x = (example){"bart, beams", bart, defaults(24)};
    x.o.num_beams = 3;
    x.o.start = x.o.eos = 2;
    x.o.pad = 1;
    x.o.forced_bos = 0;
    same_hypotheses(&x, true);
    x.what = "bart, greedy";
    x.o.num_beams = 1;
    same_hypotheses(&x, true);
    x = (example){"gpt2, beams", gpt2, defaults(20)};
    x.o.num_beams = 4;
    x.o.length_penalty = 0.8f;
    same_hypotheses(&x, false);
}

/* ---- steps ---- */

static int32_t word(int row, int t) { return (row * 53 + t * 17 + 5) % 500; }

/* Reads a prompt of T tokens a row: the logits that follow. */
static void read_prompt(writer *w, int from, int T, float *logits)
{
    int32_t ids[128 * 8];
    for (int i = 0; i < w->rows * T; i++) ids[i] = word(i / T, from + i % T);
    fv_ctx_reset(w->ctx, 0);
    fv_tensor *y = fv_session_step(w->ctx, w->session, fv_ints(w->ctx, ids, FV_SHAPE(w->rows, T)));
    if (fv_read(w->ctx, y, logits, (int64_t)w->rows * VOCAB))
        fail_msg("%s", fv_ctx_err(w->ctx)->text);
}

/* A prompt and some tokens with weights of bf16, by as many rows as kernels treat apart: the CPU's
 * logits, nearly.  A device keeps keys and values in bf16 then, the CPU in f32, and these weights
 * make scores that a rounded key moves far.  For the CPU, compared with itself, the fewest do. */
static void few_rows_are_right(void **state)
{
    (void)state;
    static const int rows[] = {1, 3, 8, 13, 30, 64, 100};
    static const char *const configs[] = {gpt2, gpt2_long};
    for (int i = 0; i < (test_brief() || test_on_cpu() ? 8 : 14); i++) {
        int n = rows[i / 2];
        size_t all = (size_t)n * VOCAB;
        float *a = malloc(all * sizeof *a), *b = malloc(all * sizeof *b);
        writer x = writer_begin(device, configs[i % 2], FV_BF16, n, PLACES),
               y = writer_begin(cpu, configs[i % 2], FV_BF16, n, PLACES);
        for (int t = 0; t < 4; t++) {
            read_prompt(&x, t + 8, t ? 1 : 8, a);
            read_prompt(&y, t + 8, t ? 1 : 8, b);
            float most = 0, off = 0;
            for (size_t j = 0; j < all; j++) {
                if (fabsf(b[j]) > most) most = fabsf(b[j]);
                if (!(fabsf(a[j] - b[j]) <= off)) off = fabsf(a[j] - b[j]);
            }
            if (!(off < 3e-2f * most))
                fail_msg("%d rows, step %d: off by %g of %g", n, t, (double)off, (double)most);
        }
        writer_end(&x);
        writer_end(&y);
        free(a);
        free(b);
    }
}

/* fv_session_greedy, long enough to be replayed and to come round in its log, against steps one by
 * one. */
static void written_at_once_or_step_by_step(void **state)
{
    (void)state;
    enum { MOST = 48, N = 75 };
    static const struct {
        const char *what, *config;
        fv_dtype weights;
        int rows;
    } cases[] = {{"f32", gpt2, FV_F32, 3},
                 {"bf16", gpt2, FV_BF16, 3},
                 {"one row", gpt2_long, FV_BF16, 1},
                 {"eight rows", gpt2_long, FV_BF16, 8},
                 {"many rows", gpt2_long, FV_BF16, MOST},
                 {"many layers", gpt2_deep, FV_BF16, 3}};
    static float logits[MOST * VOCAB];
    static int32_t first[MOST], a[N * MOST], b[N * MOST], again[N * MOST];
    for (int k = test_brief(); k < (test_brief() ? 2 : 6); k++) {
        int rows = cases[k].rows;
        writer w = writer_begin(device, cases[k].config, cases[k].weights, rows, PLACES);
        for (int r = 0; r < rows; r++) first[r] = word(r, 4);
        read_prompt(&w, 0, 4, logits);
        if (fv_session_greedy(w.ctx, w.session, first, a, N))
            fail_msg("%s", fv_ctx_err(w.ctx)->text);
        assert_int_equal(fv_session_len(w.session, rows - 1), 4 + N);

        fv_session_reset(w.session);
        read_prompt(&w, 0, 4, logits);
        for (int t = 0; t < N; t++) {
            fv_ctx_reset(w.ctx, 0);
            fv_tensor *ids = fv_ints(w.ctx, t ? b + (t - 1) * rows : first, FV_SHAPE(rows, 1));
            fv_tensor *best = fv_argmax(w.ctx, fv_session_step(w.ctx, w.session, ids), -1);
            assert_int_equal(fv_read_i32(w.ctx, best, b + t * rows, rows), FV_OK);
        }
        for (int i = 0; i < N * rows; i++)
            if (a[i] != b[i])
                fail_msg("%s: token %d of row %d is %d, not %d", cases[k].what, i / rows, i % rows,
                         a[i], b[i]);

        fv_session_reset(w.session); /* what was kept is of use once more */
        read_prompt(&w, 0, 4, logits);
        assert_int_equal(fv_session_greedy(w.ctx, w.session, first, again, 40), FV_OK);
        assert_int_equal(fv_session_greedy(w.ctx, w.session, again + 39 * rows, again + 40 * rows,
                                           N - 40),
                         FV_OK);
        assert_memory_equal(a, again, (size_t)(N * rows) * sizeof *a);
        assert_int_equal(fv_session_greedy(w.ctx, w.session, first, again, PLACES), FV_EARG);
        writer_end(&w);
    }
}

/* ---- one query ---- */

static double number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / (1 << 23) - 1;
}

static void attend(fv_device *d, float *out, const int64_t n[6], const int32_t *lens, bool masked)
{
    int64_t B = n[0], Tk = n[1], H = n[2], G = n[3], W = n[4];
    uint32_t seed = (uint32_t)(Tk * 31 + W);
    float *x = malloc((size_t)(B * Tk * G * W) * sizeof *x);
    uint8_t *mask = malloc((size_t)(B * Tk));
    fv_tensor *t[3];
    fv_ctx *c;
    fv_err e;
    check(fv_ctx_new(&c, d, (fv_ctx_opt){0}, &e), &e);
    for (int k = 0; k < 3; k++) {
        int64_t len = k ? Tk : 1, width = (k ? G : H) * W;
        for (int64_t i = 0; i < B * len * width; i++) x[i] = (float)number(&seed);
        t[k] = fv_floats(c, x, FV_SHAPE(B, len, width));
    }
    for (int64_t i = 0; i < B * Tk; i++) mask[i] = number(&seed) > -0.5;
    fv_attn how = {.n_head = H,
                   .n_kv_head = G,
                   .causal = true,
                   .window = n[5],
                   .lens = fv_ints(c, lens, FV_SHAPE(B))};
    if (masked) how.key_mask = fv_bytes(c, mask, FV_SHAPE(B, Tk));
    if (fv_read(c, fv_attention(c, t[0], t[1], t[2], how), out, B * H * W))
        fail_msg("%s", fv_ctx_err(c)->text);
    fv_ctx_free(c);
    free(x);
    free(mask);
}

static void one_query_sees_what_it_should(void **state)
{
    (void)state;
    /* B, Tk, H, G, W, window */
    static const int64_t sizes[][6] = {{1, 5, 2, 2, 64, 0},     {2, 300, 4, 2, 32, 0},
                                       {3, 1100, 2, 1, 64, 0},  {1, 4000, 3, 3, 128, 0},
                                       {2, 700, 4, 4, 16, 100}, {2, 90, 3, 3, 24, 0}};
    static float a[4096], b[4096];
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const int64_t *n = sizes[i / 2];
        int32_t lens[3] = {(int32_t)n[1], (int32_t)(n[1] / 2 + 1), 0};
        attend(device, a, n, lens, i % 2);
        attend(cpu, b, n, lens, i % 2);
        for (int64_t j = 0; j < n[0] * n[2] * n[4]; j++)
            if (!(fabs((double)a[j] - (double)b[j]) < 2e-5))
                fail_msg("case %zu, number %d: %g, not %g", i, (int)j, (double)a[j], (double)b[j]);
    }
}

/* ---- memory ---- */

static const fv_backend *real;
static fv_backend counting;
static int taken;
static void *count(fv_device *d, size_t bytes)
{
    taken++;
    return real->alloc(d, bytes);
}

static void nothing_is_allocated_once_it_is_warm(void **state)
{
    (void)state;
    enum { ROWS = 2 };
    static float logits[ROWS * VOCAB];
    int32_t first[ROWS] = {1, 2}, out[64 * ROWS];
    real = device->backend;
    counting = *real;
    counting.alloc = count;
    device->backend = &counting;
    writer w = writer_begin(device, gpt2, FV_BF16, ROWS, PLACES);
    for (int i = 0; i < 3; i++) {
        if (i == 2) taken = 0;
        fv_session_reset(w.session);
        read_prompt(&w, 0, 6, logits);
        assert_int_equal(fv_session_greedy(w.ctx, w.session, first, out, 64), FV_OK);
    }
    int later = taken;
    writer_end(&w);
    device->backend = real;
    assert_int_equal(later, 0);
}

static void too_much_is_an_error_and_not_the_end(void **state)
{
    (void)state;
    enum { ROWS = 2 };
    static float logits[ROWS * VOCAB];
    int32_t first[ROWS] = {1, 2}, out[4 * ROWS];
    fv_err e;
    fv_session *vast;
    if (test_on_cpu() || test_brief())
        skip(); /* a CPU takes memory as it is touched; a tool counts what is refused as an error */
    writer w = writer_begin(device, gpt2, FV_F32, ROWS, PLACES);
    check(fv_session_new(&vast, w.model, device, 1 << 20, 1 << 20, &e), &e);
    int32_t *ids = calloc(1 << 20, sizeof *ids);
    fv_session_step(w.ctx, vast, fv_ints(w.ctx, ids, FV_SHAPE(1 << 20, 1)));
    free(ids);
    assert_int_equal(fv_ctx_status(w.ctx), FV_ENOMEM);
    assert_non_null(strstr(fv_ctx_err(w.ctx)->text, "bytes"));
    fv_session_free(vast);
    read_prompt(&w, 0, 6, logits);
    assert_int_equal(fv_session_greedy(w.ctx, w.session, first, out, 4), FV_OK);
    writer_end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_likeliest_are_the_same),
        cmocka_unit_test(draws_are_the_same),
        cmocka_unit_test(scores_that_are_no_numbers_do_no_harm),
        cmocka_unit_test(beams_are_the_same),
        cmocka_unit_test(few_rows_are_right),
        cmocka_unit_test(written_at_once_or_step_by_step),
        cmocka_unit_test(one_query_sees_what_it_should),
        cmocka_unit_test(nothing_is_allocated_once_it_is_warm),
        cmocka_unit_test(too_much_is_an_error_and_not_the_end),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
