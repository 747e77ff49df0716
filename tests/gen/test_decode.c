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
#include <string.h>

#include <cmocka.h>

#include "fovea/author/session.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/numbers.h"

enum {
    MOST_WORDS = 8501,
    NEW = 8,
    MOST_ROWS = 100,
    LONG = 290,
    CAPACITY = 640,
    LAYERS = 2,
    POSITIONS = 1024
};
/* of the distance between a row's largest and smallest logit.  Measured on an H200: 0.031 with bf16
 * weights, 0.021 with 8 and 4 bits; on a CPU with 8 and 4 bits, whose activations have 8: 0.039 */
#define TOLERANCE 0.05f

#define LLAMA                                                                                      \
    "\"num_hidden_layers\":2,\"max_position_embeddings\":1024,"                                    \
    "\"initializer_range\":0.1,"

/* heads 64 wide; 128 wide with biases, so many that warps share them; a window; no rotation; the
 * width that rows are normalised at two by two, with so many words that groups of blocks share
 * their weights; GPT-2 small's width, and rows longer than the registers and slots of a block */
static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":256,\"intermediate_size\":352,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2}",
    "{\"model_type\":\"qwen2\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":256,\"intermediate_size\":416,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":128,"
    "\"tie_word_embeddings\":true}",
    "{\"model_type\":\"mistral\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":128,\"intermediate_size\":160,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":3,\"head_dim\":64,\"sliding_window\":8}",
    ("{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":1024,\"initializer_range\":0.1,"
     "\"n_embd\":128,\"n_layer\":2,\"n_head\":2}"),
    "{\"model_type\":\"llama\",\"vocab_size\":8501," LLAMA
    "\"hidden_size\":768,\"intermediate_size\":192,"
    "\"num_attention_heads\":12,\"num_key_value_heads\":4}",
    ("{\"model_type\":\"gpt2\",\"vocab_size\":8501,\"n_positions\":1024,"
     "\"initializer_range\":0.05,\"n_embd\":768,\"n_layer\":2,\"n_head\":12}"),
    ("{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":1024,"
     "\"initializer_range\":0.05,\"n_embd\":1600,\"n_layer\":2,\"n_head\":25}"),
};
#define LAST_NARROW 3

static fv_device *cpu, *dev;
static int V;       /* words of the model at hand */
static float worst; /* difference so far, in the same measure */

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

/* The values of a block of 32 along the axis that products sum over, as FV_Q8 or FV_Q4 has them:
 * quantising them again changes nothing, so a device with quantised weights and a CPU with floats
 * multiply by the same numbers. */
static void round_block(float *x, int64_t step, int64_t n, fv_dtype kind)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabsf(x[i * step]) > fabsf(most)) most = x[i * step];
    float scale = kind == FV_Q8 ? fabsf(most) / 127 : most / -8;
    for (int64_t i = 0; i < n && most != 0; i++) {
        float q = rintf(x[i * step] / scale);
        x[i * step] = scale * (kind == FV_Q4 ? fminf(q, 7) : q);
    }
}

/* GPT-2 stores the weights of its layers (k,n), everything else is (n,k), its embeddings, too. */
static void round_weights(fv_params *p, bool gpt2, fv_dtype kind)
{
    fv_err e;
    for (int i = 0; i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        if (t->shape.n != 2) continue;
        int64_t rows = t->shape.d[0], cols = t->shape.d[1];
        bool by_column = gpt2 && rows != V && rows != POSITIONS;
        int64_t k = by_column ? rows : cols, n = by_column ? cols : rows;
        float *x = malloc((size_t)fv_len(t) * sizeof *x);
        assert_non_null(x);
        check(fv_params_get(p, t, x, fv_len(t), &e), &e);
        for (int64_t r = 0; r < n; r++)
            for (int64_t b = 0; b < k; b += 32)
                round_block(x + (by_column ? b * cols + r : r * cols + b), by_column ? cols : 1,
                            k - b < 32 ? k - b : 32, kind);
        check(fv_params_set(p, t, x, fv_len(t), &e), &e);
        free(x);
    }
}

static void open_both(fv_model **here, fv_model **there, const char *config, fv_dtype weights)
{
    V = atoi(strstr(config, "vocab_size") + strlen("vocab_size\":"));
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
    bool quantised = weights == FV_Q8 || weights == FV_Q4;
    if (quantised) round_weights(fv_model_params(plain), strstr(config, "gpt2"), weights);
    check(fv_model_save(plain, dir, FV_F32, &e), &e);
    check(fv_model_open(there, dev, dir, how, &e), &e);
    if (quantised) how.weights = FV_F32; /* the CPU would round activations to 8 bits, too */
    check(fv_model_open(here, cpu, dir, how, &e), &e);
    fv_model_free(plain);
    scratch_drop("saved");
}

/* ---- generation ---- */

typedef struct run {
    int64_t rows, len;                    /* len: of the prompts */
    int32_t prompt[MOST_ROWS * LONG];     /* (rows,len) */
    int32_t token[NEW + 1][MOST_ROWS];    /* what the device chose */
    float logits[MOST_ROWS * MOST_WORDS]; /* of its last step */
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
static void compare(const run *r, const float *logits, int step, const char *config)
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
        worst = fmaxf(worst, off / (high - low));
        if (!(off <= TOLERANCE * (high - low)))
            fail_msg("%s: row %d of %d, step %d: %.3g off, logits are %.3g wide", config, (int)i,
                     (int)r->rows, step, (double)off, (double)(high - low));
    }
}

static void on_cpu(const run *r, const fv_model *m, const char *config)
{
    static float logits[MOST_ROWS * MOST_WORDS];
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
        compare(r, logits, step, config);
    }
    fv_session_free(s);
    fv_ctx_free(c);
}

static void tokens_are_those_of_the_cpu(void **state)
{
    (void)state;
    static run r;
    /* many sequences, in seven, five, four and two groups of blocks that only meet where memory is
     * reused, with keys for one and for several steps of a warp; so many keys that blocks share
     * them, for one group and for few sequences; one */
    static const int64_t sizes[][2] = {{MOST_ROWS, 7}, {70, 45},  {64, 7}, {20, 9},
                                       {12, LONG},     {3, LONG}, {1, 7}};
    for (size_t k = 0; k < sizeof configs / sizeof *configs; k++) {
        fv_model *here, *there;
        bool wide = k > LAST_NARROW; /* long prompts would take seconds */
        if (wide && test_on_cpu()) continue;
        open_both(&here, &there, configs[k], FV_BF16);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (wide && sizes[i][1] == LONG) continue;
            prompts(&r, sizes[i][0], sizes[i][1]);
            on_device(&r, there);
            on_cpu(&r, here, configs[k]);
        }
        fv_model_free(here);
        fv_model_free(there);
    }
    print_message("at most %.2g of the logits' width off\n", (double)worst);
    worst = 0;
}

/* Weights of 8 and 4 bits on the device, the same numbers in f32 on the CPU; also where the last
 * block of 32 values is not whole. */
static void quantised_weights_decode(void **state)
{
    (void)state;
    static run r;
    static const fv_dtype kinds[] = {FV_Q8, FV_Q4};
    static const int64_t sizes[][2] = {{100, 7}, {20, 9}, {3, LONG}, {1, 7}};
    static const char part[] = "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":1024,"
                               "\"initializer_range\":0.1,\"n_embd\":72,\"n_layer\":2,"
                               "\"n_head\":3}";
    const char *const which[] = {configs[0], configs[3], part};
    for (size_t k = 0; k < 6; k++) {
        fv_model *here, *there;
        const char *config = which[k / 2];
        open_both(&here, &there, config, kinds[k % 2]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            prompts(&r, sizes[i][0], sizes[i][1]);
            on_device(&r, there);
            on_cpu(&r, here, config);
        }
        fv_model_free(here);
        fv_model_free(there);
    }
    print_message("at most %.2g of the logits' width off\n", (double)worst);
    worst = 0;
}

/* ---- weights of served steps ---- */

enum { ASKED = 20, FEW = 7 };

typedef struct asked {
    int32_t ids[FEW + NEW];
    int64_t n, rows;
    float w[LAYERS][NEW][FEW + NEW];
} asked;

static bool take_weights(void *user, const fv_sched_event *ev)
{
    asked *x = user;
    const fv_sched_weights *w = ev->attention;
    assert_true(w && w->rows == 1 && w->n_layers == LAYERS && w->first == x->n - 1);
    for (int l = 0; l < LAYERS; l++)
        memcpy(x->w[l][x->rows], w->w + l * w->cols, (size_t)x->n * sizeof *w->w);
    x->rows++;
    x->ids[x->n++] = ev->token;
    return true;
}

/* So many rows that one launch makes a whole step, which weights of its first layer must not cut:
 * they are those of a pass of the CPU over the tokens that were chosen. */
static void weights_of_a_batch(void **state)
{
    (void)state;
    static asked all[ASKED];
    static const int32_t layers[] = {0, 1}, heads[] = {3};
    static float want[(FEW + NEW) * (FEW + NEW)];
    fv_model *here, *there;
    fv_scheduler *s;
    fv_err e;
    fv_gen_opt opt = {0};
    int64_t left = 1;
    open_both(&here, &there, configs[0], FV_BF16);
    fv_fields_default(&opt, fv_gen_fields);
    opt.num_beams = 1, opt.max_new_tokens = NEW, opt.eos = -1;
    check(fv_scheduler_new(&s, dev, there, (fv_scheduler_opt){.rows = ASKED}, &e), &e);
    for (int i = 0; i < ASKED; i++) {
        fv_sched_request q = {.prompt = all[i].ids, .opt = &opt, .fn = take_weights};
        for (int j = 0; j < FEW; j++) all[i].ids[j] = (i * 31 + j * j * 7) % V;
        q.n = all[i].n = FEW, q.user = &all[i], q.unscored = true;
        q.layers = layers, q.n_layers = LAYERS, q.heads = heads, q.n_heads = 1;
        check(fv_scheduler_submit(s, &(uint64_t){0}, &q, &e), &e);
    }
    while (left) check(fv_scheduler_step(s, &left, &e), &e);
    for (int i = 0; i < ASKED; i++) {
        const asked *x = &all[i];
        int64_t n = FEW + NEW - 1;
        fv_see *see;
        assert_int_equal(x->rows, NEW);
        check(fv_see_run(&see, cpu, here, (fv_see_in){.source = x->ids, .n_source = n}, &e), &e);
        for (int l = 0; l < LAYERS; l++) {
            fv_see_pick pick = {.kind = FV_SEE_DECODER, .layer = l, .head = heads[0]};
            check(fv_see_weights(see, pick, 0, n, want, &e), &e);
            for (int64_t k = 0; k < NEW; k++)
                for (int64_t j = 0; j < FEW + k; j++)
                    if (!(fabsf(x->w[l][k][j] - want[(FEW - 1 + k) * n + j]) < TOLERANCE))
                        fail_msg("row %d, layer %d, token %d, key %d: %g, on the CPU %g", i, l,
                                 (int)k, (int)j, (double)x->w[l][k][j],
                                 (double)want[(FEW - 1 + k) * n + j]);
        }
        fv_see_free(see);
    }
    fv_scheduler_free(s);
    fv_model_free(here);
    fv_model_free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokens_are_those_of_the_cpu, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(quantised_weights_decode, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(weights_of_a_batch, scratch_open, scratch_close),
    };
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &dev, &cpu);
}
