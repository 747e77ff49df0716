/* test_recognise.c - recognisers against searches written out plainly: greedy one frame and one
 * label at a time, all alignments there are, streams against the mask that chunks make. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/author/author.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/golden.h"

#define MODELS FOVEA_TESTS "/golden/models/"

enum { F = 6, D = 8, V = 7, CHUNK = 3, LEFT = 2, MOST = 160 }; /* of the golden transducers */

/* Features that make a small random model say something. */
static void fill(float *x, int64_t n, unsigned seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)((double)(seed >> 8) / (1 << 24) * 6 - 3);
    }
}

/* The encoder's states of T frames, whole or under the mask of chunks. */
static void states_of(const fv_model *m, float *out, const float *x, int64_t T, bool chunks)
{
    fv_ctx *c;
    fv_err e;
    fv_items in = {0}, given = {0};
    uint8_t mask[MOST * MOST];
    for (int64_t q = 0; q < T; q++)
        for (int64_t k = 0; k < T; k++)
            mask[q * T + k] = k >= q / CHUNK * CHUNK - LEFT && k < (q / CHUNK + 1) * CHUNK;
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_items_put(&in, "input_features", fv_floats(c, x, FV_SHAPE(1, T, F)));
    if (chunks) fv_items_put(&in, "attention_mask", fv_bytes(c, mask, FV_SHAPE(1, T, T)));
    fv_model_forward(c, m, &in, &given);
    const fv_tensor *y = fv_items_get(&given, "encoder_last_hidden_state");
    assert_int_equal(fv_read(c, y, out, T * D), FV_OK);
    fv_ctx_free(c);
}

/* Logits behind all labels so far, at one frame. */
static void logits_at(const fv_model *m, float *out, const float *state, const int32_t *labels,
                      int64_t n)
{
    fv_ctx *c;
    fv_err e;
    fv_items in = {0}, given = {0};
    int32_t ids[MOST] = {0};
    float all[MOST * V];
    memcpy(ids + 1, labels, (size_t)n * sizeof *ids);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_items_put(&in, "encoder_hidden_states", fv_floats(c, state, FV_SHAPE(1, 1, D)));
    fv_items_put(&in, "decoder_input_ids", fv_ints(c, ids, FV_SHAPE(1, n + 1)));
    fv_model_forward(c, m, &in, &given);
    assert_int_equal(fv_read(c, fv_items_get(&given, "logits"), all, (n + 1) * V), FV_OK);
    memcpy(out, all + n * V, V * sizeof *out);
    fv_ctx_free(c);
}

static fv_model *open_model(const char *name)
{
    fv_model *m;
    fv_err e;
    char path[400];
    snprintf(path, sizeof path, MODELS "%s", name);
    check(fv_model_open(&m, device, path, (fv_model_opt){.serve = true}, &e), &e);
    return m;
}

static fv_recogniser *hear(const fv_model *m, const float *x, int64_t T, fv_recognise_opt how,
                           int64_t at_once)
{
    fv_recogniser *r;
    fv_err e;
    check(fv_recogniser_new(&r, device, m, how, &e), &e);
    for (int64_t t = 0; t < T; t += at_once)
        check(fv_recogniser_add(r, x + t * F, t + at_once < T ? at_once : T - t, F, &e), &e);
    check(fv_recogniser_end(r, &e), &e);
    return r;
}

/* ---- greedy ---- */

static int64_t plain_greedy(const fv_model *m, const float *state, int64_t T, int32_t *ids,
                            int64_t *frame)
{
    int64_t n = 0;
    for (int64_t t = 0; t < T; t++)
        for (int here = 0; here < 8; here++) {
            float z[V];
            int best = 0;
            logits_at(m, z, state + t * D, ids, n);
            for (int v = 1; v < V; v++)
                if (z[v] > z[best]) best = v;
            if (!best || n == MOST - 2) break;
            ids[n] = best;
            frame[n++] = t;
        }
    return n;
}

static void greedy_is_frame_by_frame(void **state)
{
    (void)state;
    fv_model *m = open_model("transducer");
    int64_t labels = 0;
    for (unsigned seed = 1; seed < 9; seed++) {
        enum { T = 14 };
        float x[T * F], h[T * D];
        int32_t ids[MOST];
        int64_t frame[MOST], n;
        bool stream = seed % 2;
        fill(x, T * F, seed);
        states_of(m, h, x, T, stream);
        int64_t want = plain_greedy(m, h, T, ids, frame);
        /* a stream comes in pieces that are no chunks */
        fv_recogniser *r = hear(m, x, T, (fv_recognise_opt){.stream = stream}, stream ? 4 : T);
        const fv_recognised *token = fv_recogniser_tokens(r, &n);
        assert_int_equal(n, want);
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(token[i].id, ids[i]);
            assert_int_equal(token[i].from, frame[i]);
        }
        labels += n;
        fv_recogniser_free(r);
    }
    assert_true(labels > 20); /* there was something to hear */
    fv_model_free(m);
}

/* ---- beams ---- */

typedef struct sums {
    int32_t ids[2500][4];
    int64_t len[2500], n;
    double total[2500];
} sums;

static void add_way(sums *s, const int32_t *ids, int64_t n, double lp)
{
    int64_t i = 0;
    while (i < s->n && (s->len[i] != n || memcmp(s->ids[i], ids, (size_t)n * sizeof *ids) != 0))
        i++;
    if (i == s->n) {
        memcpy(s->ids[i], ids, (size_t)n * sizeof *ids);
        s->len[i] = n;
        s->total[s->n++] = 0;
    }
    s->total[i] += exp(lp);
}

/* All ways with at most a label a frame. */
static void all_ways(const fv_model *m, const float *state, int64_t t, int64_t T, int32_t *ids,
                     int64_t n, double lp, sums *s)
{
    float z[V];
    double sum = 0;
    if (t == T) {
        add_way(s, ids, n, lp);
        return;
    }
    logits_at(m, z, state + t * D, ids, n);
    for (int v = 0; v < V; v++) sum += exp((double)z[v]);
    for (int v = 0; v < V; v++) {
        ids[n] = v;
        all_ways(m, state, t + 1, T, ids, n + (v > 0), lp + (double)z[v] - log(sum), s);
    }
}

static void beams_find_the_likeliest_labels(void **state)
{
    (void)state;
    enum { T = 3 };
    fv_model *m = open_model("transducer");
    sums *s = calloc(1, sizeof *s);
    for (unsigned seed = 1; seed < 4; seed++) {
        float x[T * F], h[T * D];
        int32_t ids[8];
        int64_t n, best = 0;
        s->n = 0;
        fill(x, T * F, seed);
        states_of(m, h, x, T, false);
        all_ways(m, h, 0, T, ids, 0, 0, s);
        for (int64_t i = 1; i < s->n; i++)
            if (s->total[i] > s->total[best]) best = i;
        fv_recogniser *r = hear(m, x, T, (fv_recognise_opt){.beams = 64}, T);
        const fv_recognised *token = fv_recogniser_tokens(r, &n);
        assert_int_equal(n, s->len[best]);
        for (int64_t i = 0; i < n; i++) assert_int_equal(token[i].id, s->ids[best][i]);
        fv_recogniser_free(r);
    }
    free(s);
    fv_model_free(m);
}

/* ---- CTC ---- */

static void ctc_leaves_out_blanks_and_repeats(void **state)
{
    (void)state;
    enum { T = 13 };
    fv_model *m = open_model("transducer-ctc");
    fv_ctx *c;
    fv_err e;
    fv_items in = {0}, given = {0};
    float x[T * F], z[T * V];
    int32_t last = 0;
    int64_t n, k = 0;
    fill(x, T * F, 5);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_items_put(&in, "input_features", fv_floats(c, x, FV_SHAPE(1, T, F)));
    fv_model_forward(c, m, &in, &given);
    assert_int_equal(fv_read(c, fv_items_get(&given, "logits"), z, T * V), FV_OK);
    fv_ctx_free(c);
    fv_recogniser *r = hear(m, x, T, (fv_recognise_opt){0}, T);
    const fv_recognised *token = fv_recogniser_tokens(r, &n);
    for (int64_t t = 0; t < T; t++) {
        int best = 0;
        for (int v = 1; v < V; v++)
            if (z[t * V + v] > z[t * V + best]) best = v;
        if (best && best != last) {
            assert_true(k < n);
            assert_int_equal(token[k].id, best);
            assert_int_equal(token[k++].from, t);
        }
        last = best;
    }
    assert_int_equal(k, n);
    assert_true(n > 2);
    fv_recogniser_free(r);
    fv_model_free(m);
}

/* ---- letters ---- */

/* wav2vec2 with vocab.json and "|" between words: ids and text are those of transformers. */
static void letters_are_those_of_transformers(void **state)
{
    (void)state;
    fv_model *m = open_model("wav2vec2-ctc");
    fv_st *in;
    fv_tok *tok;
    fv_encoding *enc;
    fv_recogniser *r;
    fv_err e;
    int64_t n;
    int32_t ids[MOST];
    char *text;
    size_t len;
    json_error_t why;
    json_t *want = json_load_file(MODELS "wav2vec2-ctc/text.json", 0, &why);
    assert_non_null(want);
    check(fv_tok_open(&tok, NULL, MODELS "wav2vec2-ctc", &e), &e);
    check(fv_encoding_new(&enc, tok, &e), &e);
    const char *said = json_string_value(json_object_get(want, "text"));
    check(fv_tok_encode(enc, said, strlen(said), (fv_tok_opts){0}, &e), &e);
    assert_int_equal(enc->n, (int64_t)json_array_size(json_object_get(want, "ids")));
    for (int64_t i = 0; i < enc->n; i++)
        assert_int_equal(enc->ids[i], json_integer_value(
                                          json_array_get(json_object_get(want, "ids"), (size_t)i)));
    check(fv_tok_decode(tok, &text, &len, enc->ids, enc->n, true, &e), &e);
    assert_string_equal(text, said);
    fv_tok_free_text(tok, text, len);

    check(fv_st_open(&in, NULL, MODELS "wav2vec2-ctc/in.safetensors", &e), &e);
    float *x = golden_numbers(in, "input_values", &n);
    check(fv_recogniser_new(&r, device, m, (fv_recognise_opt){.input = "input_values"}, &e), &e);
    check(fv_recogniser_add(r, x, n / 2, 1, &e), &e); /* the first of two clips */
    check(fv_recogniser_end(r, &e), &e);
    const fv_recognised *token = fv_recogniser_tokens(r, &n);
    for (int64_t i = 0; i < n; i++) ids[i] = token[i].id;
    check(fv_tok_decode(tok, &text, &len, ids, n, true, &e), &e);
    assert_string_equal(text, json_string_value(json_object_get(want, "heard")));
    fv_tok_free_text(tok, text, len);
    free(x);
    fv_st_close(in);
    fv_recogniser_free(r);
    fv_encoding_free(enc);
    fv_tok_close(tok);
    fv_model_free(m);
    json_decref(want);
}

/* ---- refusals ---- */

static void what_cannot_be_gets_a_sentence(void **state)
{
    (void)state;
    fv_model *kwt = open_model("kwt-classify"), *ctc = open_model("transducer-ctc");
    fv_recogniser *r;
    fv_err e;
    float x[2 * F] = {0};
    assert_int_equal(fv_recogniser_new(&r, device, kwt, (fv_recognise_opt){0}, &e), FV_EARG);
    assert_non_null(strstr(e.text, "neither CTC's nor a transducer's"));
    assert_int_equal(fv_recogniser_new(&r, device, ctc, (fv_recognise_opt){.beams = 4}, &e),
                     FV_EARG);
    assert_non_null(strstr(e.text, "greedily"));
    check(fv_recogniser_new(&r, device, ctc, (fv_recognise_opt){0}, &e), &e);
    check(fv_recogniser_add(r, x, 1, F, &e), &e);
    assert_int_equal(fv_recogniser_add(r, x, 1, F - 1, &e), FV_EARG);
    fv_recogniser_reset(r);
    check(fv_recogniser_add(r, x, 2, F - 1, &e), &e);
    assert_int_equal(fv_recogniser_end(r, &e), FV_ESHAPE);
    fv_recogniser_free(r);
    fv_model_free(kwt);
    fv_model_free(ctc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_is_frame_by_frame),
        cmocka_unit_test(beams_find_the_likeliest_labels),
        cmocka_unit_test(ctc_leaves_out_blanks_and_repeats),
        cmocka_unit_test(letters_are_those_of_transformers),
        cmocka_unit_test(what_cannot_be_gets_a_sentence),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
