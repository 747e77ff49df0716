/* test_sampler_bits.c - writing on a device that chooses by itself: tokens and scores are the
 * CPU's, have the same bits however a step is run and whichever row it is, also of a large
 * vocabulary; and a decoder that looks at its source does the same. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/backend.h"
#include "fovea/fovea.h"
#include "fovea/gen.h"
#include "model/session.h"
#include "helper/device.h"
#include "helper/writer.h"

enum { VOCAB = 9001, PLACES = 64, PROMPT = 5, STEPS = 7, MAX_ROWS = 64 };

/* More columns than two teams of blocks share out in one go, and a part of the choice that is not
 * whole. */
static const char words[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":9001,\"n_positions\":64,\"initializer_range\":0.15,"
    "\"n_embd\":128,\"n_layer\":2,\"n_head\":2}";

static fv_device *cpu;

/* All rows go on from the same tokens: their scores. */
static fv_tensor *step(writer *w, const int32_t *ids, int64_t T)
{
    int32_t all[MAX_ROWS * PROMPT];
    for (int64_t i = 0; i < w->rows * T; i++) all[i] = ids[i % T];
    fv_ctx_reset(w->ctx, 0);
    return fv_session_step(w->ctx, w->session, fv_ints(w->ctx, all, FV_SHAPE(w->rows, T)));
}

static const int32_t prompt[PROMPT + 1] = {17, 8999, 4, 523, 77, 1234};

/* STEPS tokens behind the prompt, some of which may not come. */
static void write_some(writer *w, int32_t *tokens, float *scores)
{
    static uint8_t token_flags[VOCAB];
    int32_t ids[MAX_ROWS];
    for (int i = 0; i < VOCAB; i++) token_flags[i] = i % 3 ? 0 : FV_TOKEN_BANNED;
    for (int i = 0; i < w->rows; i++) ids[i] = prompt[PROMPT];
    fv_session_reset(w->session);
    step(w, prompt, PROMPT);
    fv_sampler how = {
        .how = {.V = VOCAB, .forced_first = -1, .forced_last = -1, .temperature = 1, .top_p = 1},
        .token_flags = token_flags};
    bool ok = fv__sampler_begin(w->ctx, w->session, &how) &&
              fv__sampler_run(w->ctx, w->session, ids, STEPS, tokens, scores);
    if (!ok) fail_msg("%s", fv_ctx_err(w->ctx)->text);
}

/* The CPU reads the same tokens: none that may come is better by more than rounding, and the score
 * is as it says. */
static void judge(const int32_t *tokens, const float *scores, int rows)
{
    static float x[VOCAB];
    writer w = writer_begin(cpu, words, FV_BF16, 1, PLACES);
    step(&w, prompt, PROMPT);
    for (int t = 0; t < STEPS; t++) {
        int token = tokens[t * rows], best = 1;
        double most = 0, sum = 0;
        if (fv_read(w.ctx, step(&w, t ? &tokens[(t - 1) * rows] : &prompt[PROMPT], 1), x, VOCAB))
            fail_msg("no scores");
        for (int i = 0; i < VOCAB; i++) {
            if (i % 3 && x[i] > x[best]) best = i;
            if (fabs((double)x[i]) > most) most = fabs((double)x[i]);
        }
        for (int i = 0; i < VOCAB; i++) sum += exp((double)x[i] - most);
        double score = (double)x[token] - most - log(sum), near = 2e-2 * most;
        if (token % 3 == 0 || (double)(x[best] - x[token]) > near ||
            fabs(score - (double)scores[t * rows]) > near)
            fail_msg("%d rows, step %d: token %d with %g, not %d; the score of the first is %g",
                     rows, t, token, (double)scores[t * rows], best, score);
    }
    writer_end(&w);
}

/* The first step of the first time runs by itself, all of the second time are replayed. */
static void the_same_bits(void **state)
{
    (void)state;
    static const int rows[] = {1, 3, 8, 12, 40, 64};
    static int32_t a[STEPS * MAX_ROWS], b[STEPS * MAX_ROWS];
    static float x[STEPS * MAX_ROWS], y[STEPS * MAX_ROWS];
    for (int i = 0; i < (test_brief() ? 2 : 6); i++) {
        writer w = writer_begin(device, words, FV_BF16, rows[i], PLACES);
        size_t n = (size_t)(STEPS * rows[i]) * 4;
        if (!fv__sampler_supported(w.session, FV_F32)) {
            writer_end(&w);
            skip();
        }
        write_some(&w, a, x);
        write_some(&w, b, y);
        assert_memory_equal(a, b, n);
        assert_memory_equal(x, y, n);
        for (int j = 0; j < STEPS * rows[i]; j++)
            if (a[j] != a[j / rows[i] * rows[i]] || x[j] != x[j / rows[i] * rows[i]])
                fail_msg("%d rows, step %d: row %d has token %d with %g, the first %d with %g",
                         rows[i], j / rows[i], j % rows[i], a[j], (double)x[j],
                         a[j / rows[i] * rows[i]], (double)x[j / rows[i] * rows[i]]);
        judge(a, x, rows[i]);
        writer_end(&w);
    }
}

/* ---- a source that is attended to ---- */

#define MARIAN                                                                                     \
    "{\"model_type\":\"marian\",\"vocab_size\":503,\"d_model\":128,\"encoder_layers\":1,"          \
    "\"decoder_layers\":2,"                                                                        \
    "\"encoder_attention_heads\":2,\"decoder_attention_heads\":2,\"encoder_ffn_dim\":96,"          \
    "\"decoder_ffn_dim\":96,"                                                                      \
    "\"max_position_embeddings\":64,\"scale_embedding\":true,\"init_std\":0.2,\"pad_token_id\":"   \
    "502,\"eos_token_id\":0,"                                                                      \
    "\"decoder_start_token_id\":502}"

static void translate(fv_device *d, fv_generated *out, int64_t sources)
{
    int32_t ids[12][16];
    const int32_t *source[12];
    int64_t len[12];
    fv_model *m;
    fv_err e;
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.max_new_tokens = 30;
    o.num_beams = 1;
    o.top_k = 0;
    o.start = o.pad = 502;
    o.eos = 0;
    for (int i = 0; i < sources; i++) {
        len[i] = 3 + i;
        for (int j = 0; j < len[i]; j++) ids[i][j] = 3 + (i * 131 + j * 37) % 400;
        source[i] = ids[i];
    }
    check(fv_model_new(&m, d, MARIAN, (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_generate(out, d, m, source, len, sources, &o, &e), &e);
    fv_model_free(m);
}

/* Heads of 64, as the kernel of a kept step takes them; few sources, and more than it hands on
 * without a meeting. */
static void sources_are_attended_to(void **state)
{
    (void)state;
    static const int64_t sources[] = {1, 5, 12};
    for (int k = 0; k < 3; k++) {
        fv_generated a, b;
        translate(device, &a, sources[k]);
        translate(cpu, &b, sources[k]);
        for (int64_t i = 0; i < sources[k]; i++) {
            assert_int_equal(a.hyp[i].n, b.hyp[i].n);
            assert_memory_equal(a.hyp[i].ids, b.hyp[i].ids,
                                (size_t)a.hyp[i].n * sizeof *a.hyp[i].ids);
            if (fabs(a.hyp[i].score - b.hyp[i].score) > 2e-3 * (1 + fabs(b.hyp[i].score)))
                fail_msg("source %d scores %g, not %g", (int)i, a.hyp[i].score, b.hyp[i].score);
        }
        fv_generated_free(&a);
        fv_generated_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits),
                                       cmocka_unit_test(sources_are_attended_to)};
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &device, &cpu);
}
