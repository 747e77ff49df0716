/* test_transfo_xl.c - Transformer-XL's memory: five segments against the reference, sessions and
 * scores against whole passes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "fovea/fovea.h"
#include "fovea/author/gen.h"
#include "fovea/author/params.h"
#include "fovea/author/session.h"
#include "fovea/author/tensor.h"

#define CASE FOVEA_TESTS "/golden/transfo-xl-segments"
#define LONG FOVEA_TESTS "/golden/transfo-xl-memory"

enum { SEGMENTS = 5, B = 2, T = 6, M = 8, LAYERS = 3, D = 12, V = 35, MEM = LAYERS * B * M * D };

static void ok(fv_status st, const fv_err *e)
{
    if (st) fail_msg("%s", e->text);
}

static fv_model *open_model(const char *dir)
{
    fv_model *m;
    fv_err e;
    ok(fv_model_open(&m, device, dir, (fv_model_opt){0}, &e), &e);
    return m;
}

static void near(const float *got, const float *want, int64_t n, double most, const char *what)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= most))
            fail_msg("%s: element %lld is %g, expected %g", what, (long long)i, (double)got[i],
                     (double)want[i]);
}

static void expected(const fv_st *s, const char *name, int i, float *out, int64_t n)
{
    char full[64];
    fv_st_info t;
    fv_err e;
    snprintf(full, sizeof full, "%s.%d", name, i);
    ok(fv_st_find(s, full, &t, &e), &e);
    ok(fv_st_read(s, &t, out, FV_F32, t.count, &e), &e);
    assert_true(t.count <= n);
}

/* Memory that does not exist yet is masked: the reference lets it grow from nothing. */
static void memory_over_five_segments(void **state)
{
    static float mems[MEM], want[MEM], logits[B * T * V], want_logits[B * T * V];
    int32_t ids[SEGMENTS * B * T];
    fv_st *in, *out;
    fv_st_info t;
    fv_err e;
    fv_ctx *c;
    (void)state;
    ok(fv_st_open(&in, NULL, CASE "/in.safetensors", &e), &e);
    ok(fv_st_open(&out, NULL, CASE "/out.safetensors", &e), &e);
    ok(fv_st_find(in, "input_ids", &t, &e), &e);
    ok(fv_st_read(in, &t, ids, FV_I32, SEGMENTS * B * T, &e), &e);
    fv_model *m = open_model(CASE);
    ok(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    memset(mems, 0, sizeof mems);
    for (int i = 0; i < SEGMENTS; i++) {
        uint8_t mask[B * (M + T)];
        int known = i * T < M ? i * T : M, len = known + T < M ? known + T : M;
        fv_items inputs = {0}, outputs = {0};
        for (int j = 0; j < B * (M + T); j++) mask[j] = j % (M + T) >= M - known;
        fv_ctx_reset(c, 0);
        fv_items_put(&inputs, "input_ids", fv_ints(c, ids + i * B * T, FV_SHAPE(B, T)));
        fv_items_put(&inputs, "attention_mask", fv_bytes(c, mask, FV_SHAPE(B, M + T)));
        fv_items_put(&inputs, "mems", fv_floats(c, mems, FV_SHAPE(LAYERS, B, M, D)));
        fv_model_forward(c, m, &inputs, &outputs);
        ok(fv_read(c, fv_items_get(&outputs, "logits"), logits, B * T * V), fv_ctx_err(c));
        ok(fv_read(c, fv_items_get(&outputs, "mems"), mems, MEM), fv_ctx_err(c));
        expected(out, "logits", i, want_logits, B * T * V);
        expected(out, "mems", i, want, MEM);
        near(logits, want_logits, B * T * V, 1e-5, "logits");
        for (int r = 0; r < LAYERS * B; r++)
            near(mems + (r * M + M - len) * D, want + r * len * D, len * D, 1e-5, "mems");
    }
    fv_ctx_free(c);
    fv_model_free(m);
    fv_st_close(in);
    fv_st_close(out);
}

/* Rows of a session have lengths of their own, and come in steps of any size: each token's logits
 * are those of one pass over its sequence, as long as that fits into the memory.  The second model
 * counts distances beyond 4 as 4. */
static void session_and_pass(const char *dir)
{
    static const int32_t ids[2][7] = {{3, 30, 12, 5, 34, 7, 21}, {9, 1, 33, 2, 2, 18, 11}};
    float whole[2 * 7 * V], step[2 * V];
    fv_session *s;
    fv_ctx *c;
    fv_err e;
    fv_model *m = open_model(dir);
    fv_items in = {0}, out = {0};
    ok(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_items_put(&in, "input_ids", fv_ints(c, ids[0], FV_SHAPE(2, 7)));
    fv_model_forward(c, m, &in, &out);
    ok(fv_read(c, fv_items_get(&out, "logits"), whole, 2 * 7 * V), fv_ctx_err(c));

    ok(fv_session_new(&s, m, device, 2, 16, &e), &e);
    int32_t first[6] = {3, 30, 12, 9, 1, 33};
    fv_ctx_reset(c, 0);
    fv_tensor *y = fv_session_step(c, s, fv_ints(c, first, FV_SHAPE(2, 3)));
    ok(fv_read(c, y, step, 2 * V), fv_ctx_err(c));
    near(step, whole + 2 * V, V, 1e-5, "row 0 after 3");
    near(step + V, whole + 9 * V, V, 1e-5, "row 1 after 3");
    fv_session_truncate(s, 1, 1); /* row 1 goes on from its second token */
    for (int i = 0; i < 4; i++) {
        int32_t next[2] = {ids[0][3 + i], ids[1][1 + i]};
        fv_ctx_reset(c, 0);
        y = fv_session_step(c, s, fv_ints(c, next, FV_SHAPE(2, 1)));
        ok(fv_read(c, y, step, 2 * V), fv_ctx_err(c));
        near(step, whole + (3 + i) * V, V, 1e-5, "row 0");
        near(step + V, whole + (8 + i) * V, V, 1e-5, "row 1");
    }
    fv_session_free(s);
    fv_ctx_free(c);
    fv_model_free(m);
}

static void a_session_gives_what_a_pass_gives(void **state)
{
    (void)state;
    session_and_pass(CASE);
    session_and_pass(FOVEA_TESTS "/golden/models/transfo-xl-clamped");
}

/* A text is scored in segments with the memory between them: the reference's log-probabilities. */
static void a_score_carries_the_memory(void **state)
{
    enum { N = SEGMENTS * T };
    int32_t all[SEGMENTS * B * T], text[N];
    static float want[B * T * V];
    double got[N];
    fv_st *in, *out;
    fv_st_info t;
    fv_err e;
    (void)state;
    ok(fv_st_open(&in, NULL, CASE "/in.safetensors", &e), &e);
    ok(fv_st_open(&out, NULL, CASE "/out.safetensors", &e), &e);
    ok(fv_st_find(in, "input_ids", &t, &e), &e);
    ok(fv_st_read(in, &t, all, FV_I32, SEGMENTS * B * T, &e), &e);
    for (int i = 0; i < N; i++) text[i] = all[i / T * B * T + T + i % T]; /* row 1 */
    fv_model *m = open_model(CASE);
    ok(fv_score(got, device, m, text, N, (fv_score_opt){M + T, T, {0}}, &e), &e);
    for (int i = 1; i < N; i++) {
        expected(out, "logits", (i - 1) / T, want, B * T * V);
        double p = (double)want[(T + (i - 1) % T) * V + text[i]];
        if (!(fabs(got[i] - p) <= 1e-5)) fail_msg("token %d: %g, expected %g", i, got[i], p);
    }
    fv_model_free(m);
    fv_st_close(in);
    fv_st_close(out);
}

/* The text of the long case, and what is expected of it. */
static void read_long(fv_st **out, int32_t *text, int64_t n)
{
    fv_st *in;
    fv_st_info t;
    fv_err e;
    ok(fv_st_open(&in, NULL, LONG "/in.safetensors", &e), &e);
    ok(fv_st_find(in, "input_ids", &t, &e), &e);
    ok(fv_st_read(in, &t, text, FV_I32, n, &e), &e);
    fv_st_close(in);
    ok(fv_st_open(out, NULL, LONG "/out.safetensors", &e), &e);
}

/* Memories far longer than mem_len, which is 6 there: segments carry keys and values, and each
 * token has the log-probability that the reference computes from states. */
static void a_memory_may_be_long(void **state)
{
    enum { N = 2400, STRIDE = 48 };
    static const int lengths[] = {1, 256, 1000, 2000};
    static int32_t text[N];
    static float want[N];
    static double got[N];
    fv_st *out;
    fv_err e;
    (void)state;
    read_long(&out, text, N);
    fv_model *m = open_model(LONG);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        expected(out, "logp", lengths[k], want, N);
        ok(fv_score(got, device, m, text, N, (fv_score_opt){lengths[k] + STRIDE, STRIDE, {0}}, &e),
           &e);
        for (int i = 1; i < N; i++)
            if (!(fabs(got[i] - (double)want[i]) <= 2e-5))
                fail_msg("memory %d, token %d: %g, expected %g", lengths[k], i, got[i],
                         (double)want[i]);
    }
    fv_model_free(m);
    fv_st_close(out);
}

/* A window that moves on by all of itself leaves no memory: each segment is a text of its own. */
static void without_a_memory_segments_stand_alone(void **state)
{
    enum { N = 100, STRIDE = 24 };
    static int32_t text[2400];
    static double got[N], alone[STRIDE + 1];
    fv_st *in;
    fv_st_info t;
    fv_err e;
    (void)state;
    ok(fv_st_open(&in, NULL, LONG "/in.safetensors", &e), &e);
    ok(fv_st_find(in, "input_ids", &t, &e), &e);
    ok(fv_st_read(in, &t, text, FV_I32, 2400, &e), &e);
    fv_model *m = open_model(LONG);
    ok(fv_score(got, device, m, text, N, (fv_score_opt){STRIDE, STRIDE, {0}}, &e), &e);
    for (int from = 0; from + 1 < N; from += STRIDE) {
        int n = N - from < STRIDE + 1 ? N - from : STRIDE + 1;
        ok(fv_score(alone, device, m, text + from, n, (fv_score_opt){2 * STRIDE, STRIDE, {0}}, &e),
           &e);
        for (int i = 1; i < n; i++)
            if (!(fabs(got[from + i] - alone[i]) <= 1e-6))
                fail_msg("token %d: %g, expected %g", from + i, got[from + i], alone[i]);
    }
    fv_model_free(m);
    fv_st_close(in);
}

/* A continuous cache beside the model: the reference goes token by token, here by segments that are
 * not as long as the cache. */
static void a_cache_mixes_in_what_followed_before(void **state)
{
    enum { N = 2400, STRIDE = 48 };
    static int32_t text[N];
    static float want[N];
    static double plain[N], alone[N], got[N];
    fv_score_opt how = {256 + STRIDE, STRIDE, {.size = 100, .theta = 2, .weight = 0.2, .out = got}};
    fv_st *out;
    fv_err e;
    (void)state;
    read_long(&out, text, N);
    fv_model *m = open_model(LONG);
    expected(out, "cached", 256, want, N);
    ok(fv_score(plain, device, m, text, N, how, &e), &e);
    for (int i = 0; i < N; i++)
        if (!(fabs(got[i] - (double)want[i]) <= 2e-5))
            fail_msg("token %d: %g, expected %g", i, got[i], (double)want[i]);
    /* what the model alone gives stays as it is */
    how.cache.size = 0;
    ok(fv_score(alone, device, m, text, N, how, &e), &e);
    assert_memory_equal(plain, alone, sizeof plain);
    how.cache = (fv_score_cache){.size = 5, .weight = 1, .out = got};
    assert_int_equal(fv_score(plain, device, m, text, N, how, &e), FV_EARG);
    fv_model_free(m);
    fv_st_close(out);
}

/* ---- hidden words ---- */

enum { ROWS = 3, LEN = 40, WORDS = 20, WIDE = 8 };

/* What the first layer reads of `rows` sequences, (rows,LEN,WIDE): what it would remember. */
static void first_states(const fv_model *m, float *out, const int32_t *ids, int rows, bool train,
                         uint64_t step)
{
    fv_ctx *c;
    fv_err e;
    fv_items in = {0}, result = {0};
    ok(fv_ctx_new(&c, device, (fv_ctx_opt){.seed = 3, .train = train}, &e), &e);
    fv_ctx_reset(c, step);
    fv_items_put(&in, "input_ids", fv_ints(c, ids, FV_SHAPE(rows, LEN)));
    fv_model_forward(c, m, &in, &result);
    int64_t n = (int64_t)rows * LEN * WIDE;
    ok(fv_read(c, fv_items_get(&result, "mems"), out, n), fv_ctx_err(c));
    fv_ctx_free(c);
}

/* A hidden word is hidden wherever it stands, behind the word of the next sequence: no state is
 * zero, on which attention could rest as it cannot in an evaluation. */
static void hidden_words_are_words_of_others(void **state)
{
    static const char config[] =
        "{\"model_type\": \"transfo-xl\", \"vocab_size\": 20, \"d_model\": 8, \"d_embed\": 8, "
        "\"n_head\": 1, \"d_head\": 4, \"d_inner\": 8, \"n_layer\": 1, \"mem_len\": 40, "
        "\"cutoffs\": [], \"dropout\": 0, \"dropout_embedding\": 0.4}";
    static float plain[ROWS * LEN * WIDE], got[ROWS * LEN * WIDE], alone[LEN * WIDE];
    int32_t ids[ROWS * LEN];
    int all = 0;
    fv_model *m;
    fv_err e;
    (void)state;
    ok(fv_model_new(&m, device, config, (fv_model_opt){0}, 1, &e), &e);
    for (int i = 0; i < ROWS * LEN; i++) ids[i] = (i * 7 + i / LEN) % WORDS;
    first_states(m, plain, ids, ROWS, false, 0);
    for (uint64_t step = 1; step < 4; step++) {
        int hidden[WORDS];
        memset(hidden, -1, sizeof hidden);
        first_states(m, got, ids, ROWS, true, step);
        for (int i = 0; i < ROWS * LEN; i++) {
            const float *next = plain + (i + LEN) % (ROWS * LEN) * WIDE, *x = got + i * WIDE;
            int other = memcmp(x, plain + i * WIDE, WIDE * sizeof *x) != 0;
            if (other) near(x, next, WIDE, 0, "a hidden word");
            if (hidden[ids[i]] < 0) hidden[ids[i]] = other;
            assert_int_equal(hidden[ids[i]], other);
        }
        for (int w = 0; w < WORDS; w++) all += hidden[w];
        first_states(m, alone, ids, 1, true, step); /* one sequence has no others */
        assert_memory_equal(alone, plain, sizeof alone);
    }
    assert_in_range(all, 3 * WORDS / 4, 3 * WORDS * 6 / 10);
    fv_model_free(m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(memory_over_five_segments),
    cmocka_unit_test(a_session_gives_what_a_pass_gives),
    cmocka_unit_test(a_score_carries_the_memory),
    cmocka_unit_test(a_memory_may_be_long),
    cmocka_unit_test(without_a_memory_segments_stand_alone),
    cmocka_unit_test(a_cache_mixes_in_what_followed_before),
    cmocka_unit_test(hidden_words_are_words_of_others),
};

int main(void) { return cmocka_run_group_tests(tests, open_device, close_device); }
