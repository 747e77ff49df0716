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

/* heads 64 wide; 128 wide with biases, so many that warps share them; a window; no rotation; norms
 * of heads, 128 and 64 wide; q, k and v head by head, a part of a head rotated and both parts of a
 * layer side by side, or one after the other and a factor on what is rotated; gate and up in one
 * weight, heads 96 wide; 80 wide; gains of 1 + w and one head of keys, 256 wide; norms behind each
 * part, too; the width that rows are normalised at two by two, with so many words that groups of
 * blocks share their weights; GPT-2 small's width; rows longer than the registers and slots of a
 * block, with biases, and others: products wide enough to be a library's, of no whole blocks of
 * 32 */
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
    "{\"model_type\":\"qwen3\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":256,\"intermediate_size\":352,\"head_dim\":128,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2}",
    "{\"model_type\":\"qwen3\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":128,\"intermediate_size\":160,\"head_dim\":64,\"attention_bias\":true,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":3}",
    "{\"model_type\":\"gpt_neox\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":256,\"intermediate_size\":352,\"num_attention_heads\":4}",
    "{\"model_type\":\"gpt_neox\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":256,\"intermediate_size\":352,\"num_attention_heads\":2,"
    "\"rotary_pct\":0.5,\"use_parallel_residual\":false,\"rope_scaling\":{\"rope_type\":\"yarn\","
    "\"factor\":4.0,\"original_max_position_embeddings\":256}}",
    "{\"model_type\":\"phi3\",\"vocab_size\":211,\"pad_token_id\":0," LLAMA
    "\"hidden_size\":384,\"intermediate_size\":384,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2}",
    "{\"model_type\":\"llama\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":160,\"intermediate_size\":224,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":2}",
    "{\"model_type\":\"gemma\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":256,\"intermediate_size\":352,\"head_dim\":256,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1}",
    "{\"model_type\":\"gemma3_text\",\"vocab_size\":211," LLAMA
    "\"hidden_size\":256,\"intermediate_size\":352,\"head_dim\":64,\"query_pre_attn_scalar\":64,"
    "\"sliding_window\":8,\"sliding_window_pattern\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":1}",
    "{\"model_type\":\"llama\",\"vocab_size\":8501," LLAMA
    "\"hidden_size\":768,\"intermediate_size\":192,"
    "\"num_attention_heads\":12,\"num_key_value_heads\":4}",
    ("{\"model_type\":\"gpt2\",\"vocab_size\":8501,\"n_positions\":1024,"
     "\"initializer_range\":0.05,\"n_embd\":768,\"n_layer\":2,\"n_head\":12}"),
    ("{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":1024,"
     "\"initializer_range\":0.05,\"n_embd\":1600,\"n_layer\":2,\"n_head\":25}"),
    "{\"model_type\":\"llama\",\"vocab_size\":2048,\"num_hidden_layers\":2,"
    "\"max_position_embeddings\":1024,\"initializer_range\":0.05,"
    "\"hidden_size\":1064,\"intermediate_size\":1560,\"head_dim\":64,"
    "\"num_attention_heads\":16,\"num_key_value_heads\":16}",
};
#define LAST_NARROW 11
#define LAST (sizeof configs / sizeof *configs - 1)

static fv_device *cpu, *dev;
static int V;       /* words of the model at hand */
static float worst; /* difference so far, in the same measure */

/* ---- a model with values everywhere, on both devices ---- */

/* What begins as 0 or 1 would hide that it is taken from the wrong column. */
static void draw(fv_params *p, const char *name, int layer, uint32_t seed)
{
    static const char *const below[] = {"model", "gpt_neox"};
    char path[96];
    fv_err e;
    fv_tensor *t = NULL;
    for (int i = 0; i < 2 && !t; i++) {
        snprintf(path, sizeof path, "%s.layers.%d.%s", below[i], layer, name);
        t = fv_params_find(p, path);
    }
    if (!t) return; /* another family's */
    float *x = numbers_drawn(fv_len(t), seed, 0.5f);
    bool gain = fv_len(t) && x && strstr(name, "norm.weight");
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
    static const char *const names[] = {
        "self_attn.q_proj.bias",   "self_attn.k_proj.bias",           "self_attn.v_proj.bias",
        "input_layernorm.weight",  "post_attention_layernorm.weight", "self_attn.q_norm.weight",
        "self_attn.k_norm.weight", "attention.query_key_value.bias",  "mlp.dense_h_to_4h.bias"};
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
    static const int64_t sizes[][2] = {{100, 7},  {50, 7}, {20, 9}, {8, 9},
                                       {3, LONG}, {2, 7},  {1, 7}};
    static const char part[] = "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":1024,"
                               "\"initializer_range\":0.1,\"n_embd\":72,\"n_layer\":2,"
                               "\"n_head\":3}";
    /* so large that the ring of gemm/quant_sm90.cu has 5 or 8 stages for three warpgroups */
    static const char large[] = "{\"model_type\":\"llama\",\"vocab_size\":211,"
                                "\"num_hidden_layers\":2,\"max_position_embeddings\":1024,"
                                "\"initializer_range\":0.02,"
                                "\"hidden_size\":2048,\"intermediate_size\":8192,"
                                "\"num_attention_heads\":16,\"num_key_value_heads\":4}";
    /* gates and rotations; plain; norms of heads; rows of several slots */
    const char *const which[] = {configs[0], configs[3], part, configs[4], configs[LAST], large};
    for (size_t k = 0; k < 2 * sizeof which / sizeof *which; k++) {
        fv_model *here, *there;
        const char *config = which[k / 2];
        bool wide = config == configs[LAST] || config == large; /* LONG would take seconds */
        if (wide && test_on_cpu()) continue;
        open_both(&here, &there, config, kinds[k % 2]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            if (wide && sizes[i][1] == LONG) continue;
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

/* ---- beside a whole pass ---- */

enum { READ = 5, STEPS = 4, TOKENS = READ + STEPS, PAIR = 2, CROWD = 20, SOURCE = 6 };

/* norms first: biases of positions in the scores, a gate; learned positions and biases.  Norms
 * last: with biases; wider than what a warp keeps in registers. */
static const char *const readers[] = {
    "{\"model_type\":\"t5\",\"vocab_size\":211,\"d_model\":128,\"d_kv\":64,\"d_ff\":160,"
    "\"num_layers\":2,\"num_heads\":2,\"feed_forward_proj\":\"gated-gelu\"}",
    "{\"model_type\":\"mbart\",\"vocab_size\":211,\"d_model\":128,\"encoder_layers\":2,"
    "\"decoder_layers\":2,\"encoder_attention_heads\":2,\"decoder_attention_heads\":2,"
    "\"encoder_ffn_dim\":160,\"decoder_ffn_dim\":160,\"max_position_embeddings\":64,"
    "\"init_std\":0.1,\"activation_function\":\"gelu\"}",
    "{\"model_type\":\"bart\",\"vocab_size\":211,\"d_model\":128,\"encoder_layers\":2,"
    "\"decoder_layers\":2,\"encoder_attention_heads\":2,\"decoder_attention_heads\":2,"
    "\"encoder_ffn_dim\":160,\"decoder_ffn_dim\":160,\"max_position_embeddings\":64,"
    "\"init_std\":0.1,\"activation_function\":\"gelu\"}",
    "{\"model_type\":\"marian\",\"vocab_size\":211,\"d_model\":640,\"encoder_layers\":2,"
    "\"decoder_layers\":2,\"encoder_attention_heads\":10,\"decoder_attention_heads\":10,"
    "\"encoder_ffn_dim\":160,\"decoder_ffn_dim\":160,\"max_position_embeddings\":64,"
    "\"init_std\":0.05,\"activation_function\":\"swish\",\"scale_embedding\":true,"
    "\"pad_token_id\":1,\"eos_token_id\":0,\"decoder_start_token_id\":1}",
};

typedef struct text {
    const char *config;
    bool reads;                                          /* a source, with an encoder */
    int32_t source[CROWD * SOURCE], ids[CROWD * TOKENS]; /* every PAIR rows the same again */
    float logits[PAIR * TOKENS * 211];                   /* of a whole pass */
    float tolerance; /* of the distance between its least and greatest */
} text;

static void put_source(fv_ctx *c, fv_items *in, const text *t, int64_t rows)
{
    if (t->reads) fv_items_put(in, "input_ids", fv_ints(c, t->source, FV_SHAPE(rows, SOURCE)));
}

static void read_at_once(text *t, const fv_model *m)
{
    fv_ctx *c;
    fv_err e;
    fv_items in = {0}, out = {0};
    check(fv_ctx_new(&c, cpu, (fv_ctx_opt){0}, &e), &e);
    put_source(c, &in, t, PAIR);
    fv_items_put(&in, t->reads ? "decoder_input_ids" : "input_ids",
                 fv_ints(c, t->ids, FV_SHAPE(PAIR, TOKENS)));
    fv_model_forward(c, m, &in, &out);
    check(fv_read(c, fv_items_get(&out, "logits"), t->logits, PAIR * TOKENS * V), fv_ctx_err(c));
    fv_ctx_free(c);
}

/* Behind n tokens row i has the logits of row `like`. */
static void same_as_at_once(const text *t, const float *got, int64_t n, int64_t i, int64_t like)
{
    const float *x = t->logits + (like * TOKENS + n - 1) * V, *y = got + i * V;
    float low = INFINITY, high = -INFINITY, off = 0;
    for (int k = 0; k < V; k++) {
        low = fminf(low, x[k]);
        high = fmaxf(high, x[k]);
        off = y[k] - x[k] <= 0 || y[k] - x[k] > 0 ? fmaxf(off, fabsf(y[k] - x[k])) : INFINITY;
    }
    if (!(off <= t->tolerance * (high - low)))
        fail_msg("%s: row %d behind %d tokens: %.3g off, logits are %.3g wide", t->config, (int)i,
                 (int)n, (double)off, (double)(high - low));
}

/* The last n of `behind` tokens of `rows` rows; row i is the text's row i, or 0 if alike. */
static void write_on(fv_ctx *c, fv_session *s, const text *t, int64_t behind, int64_t n,
                     int64_t rows, bool alike)
{
    int32_t next[CROWD * TOKENS];
    float got[CROWD * 211];
    for (int64_t i = 0; i < rows * n; i++)
        next[i] = t->ids[(alike ? 0 : i / n) * TOKENS + behind - n + i % n];
    check(fv_read(c, fv_session_step(c, s, fv_ints(c, next, FV_SHAPE(rows, n))), got, rows * V),
          fv_ctx_err(c));
    for (int64_t i = 0; i < rows; i++) same_as_at_once(t, got, behind, i, alike ? 0 : i % PAIR);
}

/* A model that serves writes the text again: a pair of rows, a crowd, its first, or that twice from
 * one source, as beams do. */
static void write_again(const fv_model *served, const text *t, int64_t sources, int64_t rows)
{
    fv_ctx *c;
    fv_session *s;
    fv_err e;
    fv_items in = {0};
    check(fv_ctx_new(&c, dev, (fv_ctx_opt){0}, &e), &e);
    check(fv_session_new(&s, served, dev, rows, TOKENS, &e), &e);
    put_source(c, &in, t, sources);
    if (t->reads) fv_session_begin(c, s, &in);
    write_on(c, s, t, READ, READ, rows, sources < rows);
    for (int64_t n = READ + 1; n <= TOKENS; n++) {
        fv_ctx_reset(c, (uint64_t)n);
        write_on(c, s, t, n, 1, rows, sources < rows);
    }
    fv_session_free(s);
    fv_ctx_free(c);
}

static void beside_a_pass(const char *config, bool reads, fv_dtype weights, float tolerance)
{
    static text t;
    fv_model *here, *there;
    t.config = config, t.reads = reads, t.tolerance = tolerance;
    open_both(&here, &there, config, weights);
    for (int i = 0; i < CROWD * SOURCE; i++) {
        int at = i % (PAIR * SOURCE);
        t.source[i] = 3 + (at * at * 5 + at * 11) % (V - 3);
    }
    for (int i = 0; i < CROWD * TOKENS; i++) {
        int at = i % (PAIR * TOKENS);
        t.ids[i] = 3 + (at * at * 7 + at * 3) % (V - 3);
    }
    read_at_once(&t, here);
    write_again(there, &t, PAIR, PAIR);
    write_again(there, &t, CROWD, CROWD);
    write_again(there, &t, 1, 1);
    if (reads) write_again(there, &t, 1, PAIR);
    fv_model_free(here);
    fv_model_free(there);
}

/* Fused kernels and general ones differ by rounding alone, and steps from a pass over the whole. */
static void steps_are_those_of_a_whole_pass(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        fv_dtype weights = half ? FV_BF16 : FV_F32;
        float tolerance = half ? TOLERANCE : 1e-4f;
        for (size_t k = 0; k <= LAST_NARROW; k++)
            beside_a_pass(configs[k], false, weights, tolerance);
        for (size_t k = 0; k < sizeof readers / sizeof *readers; k++)
            beside_a_pass(readers[k], true, weights, tolerance);
    }
}

/* On a CPU, where one or two rows take the fused kernels and more the general ones. */
static void a_row_has_the_same_bits_in_any_batch(void **state)
{
    (void)state;
    static run r;
    static float alone[MOST_WORDS];
    static const int64_t rows[] = {1, 2, 5};
    for (size_t k = 0; k <= LAST_NARROW && test_on_cpu(); k++) {
        fv_model *here, *there;
        open_both(&here, &there, configs[k], FV_F32);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            prompts(&r, rows[i], 7);
            on_device(&r, there);
            if (!i) memcpy(alone, r.logits, (size_t)V * sizeof *alone);
            if (memcmp(alone, r.logits, (size_t)V * sizeof *alone))
                fail_msg("%s: other bits among %d rows", configs[k], (int)rows[i]);
        }
        fv_model_free(here);
        fv_model_free(there);
    }
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
        cmocka_unit_test_setup_teardown(steps_are_those_of_a_whole_pass, scratch_open,
                                        scratch_close),
        cmocka_unit_test_setup_teardown(a_row_has_the_same_bits_in_any_batch, scratch_open,
                                        scratch_close),
        cmocka_unit_test_setup_teardown(weights_of_a_batch, scratch_open, scratch_close),
    };
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &dev, &cpu);
}
