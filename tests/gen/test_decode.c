/* test_decode.c - decode steps in bf16, one token of each sequence at a time, in the shapes that
 * have kernels of their own: grouped heads 64 and 128 wide, rotations, gates, biases, windows.
 *
 * A device generates greedily; the CPU, given the same tokens and the same bf16 weights, must find
 * each of them as likely as its own best one, up to rounding.  So every sequence is held against
 * what it is by itself, in batches of 1 to 100: neighbours change nothing but roundings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "fovea/author/session.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/numbers.h"

enum { V = 211, NEW = 8, MOST_ROWS = 100, LONG = 290, CAPACITY = 640, LAYERS = 2 };
/* of the distance between a row's largest and smallest logit; with quantised weights the CPU rounds
 * activations to 8 bits, too */
#define TOLERANCE 0.05f
#define TOLERANCE_QUANTISED 0.1f

#define LLAMA                                                                                      \
    "\"vocab_size\":211,\"num_hidden_layers\":2,\"max_position_embeddings\":1024,"                 \
    "\"initializer_range\":0.1,"

/* heads 64 wide; 128 wide with biases, so many that warps share them; a window; no rotation */
static const char *const configs[] = {
    "{\"model_type\":\"llama\"," LLAMA "\"hidden_size\":256,\"intermediate_size\":352,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2}",
    "{\"model_type\":\"qwen2\"," LLAMA "\"hidden_size\":256,\"intermediate_size\":416,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":128,"
    "\"tie_word_embeddings\":true}",
    "{\"model_type\":\"mistral\"," LLAMA "\"hidden_size\":128,\"intermediate_size\":160,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":3,\"head_dim\":64,\"sliding_window\":8}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":1024,\"initializer_range\":0.1,"
    "\"n_embd\":128,\"n_layer\":2,\"n_head\":2}",
};

static fv_device *cpu, *dev;

/* ---- a model with values everywhere, on both devices ---- */

/* What begins as 0 or 1 would hide that it is taken from the wrong column. */
static void draw(fv_params *p, const char *name, int layer, uint32_t seed)
{
    char path[96];
    fv_err e;
    snprintf(path, sizeof path, "model.layers.%d.%s", layer, name);
    fv_tensor *t = fv_params_find(p, path);
    if (!t) return; /* another family's */
    float *x = numbers_drawn(fv_len(t), seed, 0.5f);
    bool gain = fv_len(t) && x && name[0] != 's';
    for (int64_t i = 0; gain && i < fv_len(t); i++) x[i] += 1;
    check(fv_params_set(p, t, x, fv_len(t), &e), &e);
    free(x);
}

static void open_both(fv_model **here, fv_model **there, const char *config, fv_dtype weights)
{
    static const char *const names[] = {"self_attn.q_proj.bias", "self_attn.k_proj.bias",
                                        "self_attn.v_proj.bias", "input_layernorm.weight",
                                        "post_attention_layernorm.weight"};
    fv_model *plain;
    fv_err e;
    fv_model_opt how = {.serve = true, .weights = weights};
    const char *dir = scratch("saved");
    check(fv_model_new(&plain, cpu, config, (fv_model_opt){0}, 3, &e), &e);
    for (int layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
            draw(fv_model_params(plain), names[i], layer, 10 * (uint32_t)layer + i + 1);
    check(fv_model_save(plain, dir, FV_F32, &e), &e);
    check(fv_model_open(here, cpu, dir, how, &e), &e);
    check(fv_model_open(there, dev, dir, how, &e), &e);
    fv_model_free(plain);
    scratch_drop("saved");
}

/* ---- generation ---- */

typedef struct run {
    int64_t rows, len;                 /* len: of the prompts */
    int32_t prompt[MOST_ROWS * LONG];  /* (rows,len) */
    int32_t token[NEW + 1][MOST_ROWS]; /* what the device chose */
    float logits[MOST_ROWS * V];       /* of its last step */
} run;

static void prompts(run *r, int64_t rows, int64_t len)
{
    r->rows = rows;
    r->len = len;
    for (int64_t i = 0; i < rows * len; i++)
        r->prompt[i] = (int32_t)((i / len * 31 + i % len * 17 + 5) % V);
}

static void on_device(run *r, const fv_model *m)
{
    fv_ctx *c;
    fv_session *s;
    fv_err e;
    check(fv_ctx_new(&c, dev, (fv_ctx_opt){0}, &e), &e);
    check(fv_session_new(&s, m, dev, r->rows, CAPACITY, &e), &e);
    fv_tensor *y = fv_session_step(c, s, fv_ints(c, r->prompt, FV_SHAPE(r->rows, r->len)));
    check(fv_read_i32(c, fv_argmax(c, y, -1), r->token[0], r->rows), fv_ctx_err(c));
    int32_t *out = malloc((size_t)(NEW * r->rows) * sizeof *out);
    assert_non_null(out);
    check(fv_session_greedy(c, s, r->token[0], out, NEW), fv_ctx_err(c));
    for (int64_t i = 0; i < NEW * r->rows; i++) r->token[1 + i / r->rows][i % r->rows] = out[i];
    fv_ctx_reset(c, 1);
    y = fv_session_step(c, s, fv_ints(c, r->token[NEW], FV_SHAPE(r->rows, 1)));
    check(fv_read(c, y, r->logits, r->rows * V), fv_ctx_err(c));
    free(out);
    fv_session_free(s);
    fv_ctx_free(c);
}

/* The chosen token of each row is as likely as the best; at the end all logits are alike. */
static void compare(const run *r, const float *logits, int step, const char *config,
                    float tolerance)
{
    for (int64_t i = 0; i < r->rows; i++) {
        const float *x = logits + i * V;
        float low = INFINITY, high = -INFINITY, off = 0;
        for (int k = 0; k < V; k++) {
            low = fminf(low, x[k]);
            high = fmaxf(high, x[k]);
            off = fmaxf(off, fabsf(x[k] - r->logits[i * V + k]));
        }
        if (step <= NEW) off = high - x[r->token[step][i]];
        if (!(off <= tolerance * (high - low)))
            fail_msg("%s: row %d of %d, step %d: %.3g off, logits are %.3g wide", config, (int)i,
                     (int)r->rows, step, (double)off, (double)(high - low));
    }
}

static void on_cpu(const run *r, const fv_model *m, const char *config, float tolerance)
{
    static float logits[MOST_ROWS * V];
    fv_ctx *c;
    fv_session *s;
    fv_err e;
    check(fv_ctx_new(&c, cpu, (fv_ctx_opt){0}, &e), &e);
    check(fv_session_new(&s, m, cpu, r->rows, CAPACITY, &e), &e);
    for (int step = 0; step <= NEW + 1; step++) {
        fv_ctx_reset(c, (uint64_t)step);
        fv_tensor *ids = step ? fv_ints(c, r->token[step - 1], FV_SHAPE(r->rows, 1))
                              : fv_ints(c, r->prompt, FV_SHAPE(r->rows, r->len));
        check(fv_read(c, fv_session_step(c, s, ids), logits, r->rows * V), fv_ctx_err(c));
        compare(r, logits, step, config, tolerance);
    }
    fv_session_free(s);
    fv_ctx_free(c);
}

static void tokens_are_those_of_the_cpu(void **state)
{
    (void)state;
    static run r;
    /* many sequences, in eight, four and two groups of blocks that only meet where memory is
     * reused; so many keys that blocks share them, for one group and for few sequences; one */
    static const int64_t sizes[][2] = {{MOST_ROWS, 7}, {64, 7},   {20, 9},
                                       {12, LONG},     {3, LONG}, {1, 7}};
    for (size_t k = 0; k < sizeof configs / sizeof *configs; k++) {
        fv_model *here, *there;
        open_both(&here, &there, configs[k], FV_BF16);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            prompts(&r, sizes[i][0], sizes[i][1]);
            on_device(&r, there);
            on_cpu(&r, here, configs[k], TOLERANCE);
        }
        fv_model_free(here);
        fv_model_free(there);
    }
}

/* The same weights of 8 and 4 bits on both. */
static void quantised_weights_decode(void **state)
{
    (void)state;
    static run r;
    static const fv_dtype kinds[] = {FV_Q8, FV_Q4};
    static const int64_t sizes[][2] = {{100, 7}, {20, 9}, {3, LONG}, {1, 7}};
    for (size_t k = 0; k < 2 * sizeof kinds / sizeof *kinds; k++) {
        fv_model *here, *there;
        const char *config = configs[k % 2 ? 3 : 0];
        open_both(&here, &there, config, kinds[k / 2]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            prompts(&r, sizes[i][0], sizes[i][1]);
            on_device(&r, there);
            on_cpu(&r, here, config, TOLERANCE_QUANTISED);
        }
        fv_model_free(here);
        fv_model_free(there);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokens_are_those_of_the_cpu, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(quantised_weights_decode, scratch_open, scratch_close),
    };
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &dev, &cpu);
}
