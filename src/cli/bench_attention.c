/* bench_attention.c - fovea bench attention: the operator, forward and with its gradient. */
#include "bench.h"
#include "fovea/op.h"

typedef struct attention_values {
    bench_values common;
    int64_t batch, heads, kv_heads, len, keys, width;
    int dtype, weights;
    double dropout;
    bool causal, bias, bias_gradient, backward;
} attention_values;

static const char *const weights_words[] = {"none", "f32", "bf16", "f16", "f64", NULL}; /* none, then as bench_dtypes */

static const attention_values defaults = {.common = BENCH_DEFAULTS, .batch = 4, .heads = 8, .len = 512, .width = 64};

static const cli_option options[] = {
    CLI_INT(attention_values, batch, 'b', "batch", "N", 1, 1 << 20, "sequences"),
    CLI_INT(attention_values, heads, 'n', "heads", "N", 1, 4096, "heads"),
    CLI_INT(attention_values, kv_heads, 0, "kv-heads", "N", 0, 4096,
            "heads of keys and values, shared by groups; 0: as many as heads"),
    CLI_INT(attention_values, len, 'l', "len", "N", 1, 1 << 24, "queries in a sequence"),
    CLI_INT(attention_values, keys, 0, "keys", "N", 0, 1 << 24, "keys in a sequence; 0: as many as queries"),
    CLI_INT(attention_values, width, 'w', "width", "N", 1, 1 << 16, "width of a head"),
    CLI_CHOICE(attention_values, dtype, 'd', "dtype", bench_dtypes, "of everything"),
    CLI_FLAG(attention_values, causal, 'c', "causal", "a row sees only the keys up to its own position"),
    CLI_FLAG(attention_values, bias, 0, "bias", "something added to each score, of its own for each head"),
    CLI_FLAG(attention_values, bias_gradient, 0, "bias-gradient",
             "with --bias and --backward: what is added has a gradient, too"),
    CLI_REAL(attention_values, dropout, 0, "dropout", "P", 0, 0.99, "share of the weights that is dropped"),
    CLI_FLAG(attention_values, backward, 0, "backward", "with the gradients of queries, keys and values"),
    CLI_CHOICE(attention_values, weights, 0, "weights", weights_words,
               "with the exact weights of one head of one sequence, of this dtype: --dtype's or f32"),
    BENCH_OPTIONS(attention_values),
    {0},
};

static const cli_example examples[] = {
    {"fovea bench attention --len 2048 --causal", "each row sees its past: half the work"},
    {"fovea bench attention --len 512 --backward", "a training step's share"},
    {"fovea bench attention --batch 1 --len 16384 --json", "memory is linear in the length: see extra_bytes"},
    {0},
};

typedef struct call {
    fv_attn_args args;
    fv_attn_grads grads; /* dy NULL: forward only */
    fv_sink weights;     /* of head 0 of sequence 0 */
    fv_dtype dtype;
} call;

/* The kernels alone: an op would upload the slope of its output each time. */
static void attend(fv_ctx *c, void *what)
{
    call *a = what;
    const fv_kernels *k = fv_kernels_of(c, a->dtype);
    if (!k || !fv_need(c, k->attention && k->attention_bwd && k->attention_weights, "attention", a->dtype)) return;
    k->attention(fv_ctx_stream(c), &a->args);
    if (a->weights.data) k->attention_weights(fv_ctx_stream(c), a->weights, &a->args, 0, 0, 0, a->args.Tq);
    if (a->grads.dy) k->attention_bwd(fv_ctx_stream(c), &a->args, &a->grads);
}

static fv_dtype stat_dtype(fv_dtype t) { return t == FV_F64 ? FV_F64 : FV_F32; }

static void *numbers(bench *b, fv_shape s)
{
    fv_tensor *t = bench_floats(b, s);
    return t ? t->data : NULL;
}

static fv_sink sink(bench *b, fv_dtype t, fv_shape s)
{
    return (fv_sink){.data = fv_scratch(b->hold, t, fv_shape_len(s)), .dtype = t};
}

/* Everything a call needs, on the device. */
static call prepare(bench *b, const attention_values *v, int64_t keys, int64_t kv_heads)
{
    fv_dtype t = bench_dtype(v->dtype);
    fv_shape q = FV_SHAPE(v->batch, v->len, v->heads * v->width), k = FV_SHAPE(v->batch, keys, kv_heads * v->width);
    fv_attn_args a = {.B = v->batch, .Tq = v->len, .Tk = keys, .H = v->heads, .G = kv_heads, .Wk = v->width, .Wv = v->width};
    a.q_row = v->heads * v->width, a.k_row = a.v_row = kv_heads * v->width;
    a.q_batch = v->len * a.q_row, a.k_batch = a.v_batch = keys * a.k_row;
    a.causal = v->causal;
    a.q = numbers(b, q), a.k = numbers(b, k), a.v = numbers(b, k);
    a.y = fv_scratch(b->hold, t, fv_shape_len(q));
    a.lse = fv_scratch(b->hold, stat_dtype(t), v->batch * v->heads * v->len);
    if (v->bias) {
        a.bias = numbers(b, FV_SHAPE(v->heads, v->len, keys));
        a.bias_s[1] = v->len * keys, a.bias_s[2] = keys;
    }
    a.dropout = (float)v->dropout;
    if (v->dropout > 0) a.rng = fv_next_rng(b->hold);
    call c = {.args = a, .dtype = t};
    if (v->weights) c.weights = sink(b, bench_dtype(v->weights - 1), FV_SHAPE(v->len, keys));
    if (v->backward)
        c.grads = (fv_attn_grads){.dy = numbers(b, q), .dq = sink(b, t, q), .dk = sink(b, t, k), .dv = sink(b, t, k)};
    if (v->backward && v->bias && v->bias_gradient) c.grads.dbias = sink(b, t, FV_SHAPE(v->heads, v->len, keys));
    return c;
}

/* Multiply-adds count two.  Forward has two products for each pair of query and key, backward five. */
static double flops(const attention_values *v, int64_t keys)
{
    double pairs = (double)v->len * (double)keys;
    if (v->causal) pairs -= 0.5 * (double)v->len * (double)(v->len - 1);
    return (v->backward ? 14 : 4) * pairs * (double)(v->batch * v->heads * v->width);
}

static int measure(bench *b, const attention_values *v, int64_t keys, int64_t kv_heads)
{
    call a = prepare(b, v, keys, kv_heads);
    int64_t rows = v->batch * v->len * v->heads * v->width;
    json_t *parameters = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:b, s:b}", "batch", (json_int_t)v->batch, "heads",
                                   (json_int_t)v->heads, "kv_heads", (json_int_t)kv_heads, "len", (json_int_t)v->len, "keys",
                                   (json_int_t)keys, "width", (json_int_t)v->width, "dtype", bench_dtypes[v->dtype], "causal",
                                   v->causal, "backward", v->backward);
    double size = (double)fv_dtype_size(bench_dtype(v->dtype));
    double inputs = size * (double)(2 * rows + 2 * v->batch * keys * kv_heads * v->width);
    bench_work work = {.flops = flops(v, keys), .inputs = v->backward ? 2 * inputs : inputs};
    if (v->bias) json_object_set_new(parameters, "bias", json_true());
    if (v->bias_gradient) json_object_set_new(parameters, "bias_gradient", json_true());
    if (v->dropout > 0) json_object_set_new(parameters, "dropout", json_real(v->dropout));
    if (v->weights) json_object_set_new(parameters, "weights", json_string(weights_words[v->weights]));
    return bench_run(b, "attention", parameters, attend, &a, work);
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    (void)n, (void)operand;
    const attention_values *v = values;
    int64_t keys = v->keys ? v->keys : v->len, kv_heads = v->kv_heads ? v->kv_heads : v->heads;
    fv_dtype t = bench_dtype(v->dtype), w = v->weights ? bench_dtype(v->weights - 1) : t;
    if (v->causal && keys < v->len) return cli_usage(c, "--causal needs at least as many keys as queries");
    if (w != t && w != stat_dtype(t))
        return cli_usage(c, "--weights %s: expected %s, as --dtype is%s", fv_dtype_name(w), fv_dtype_name(t),
                         stat_dtype(t) == t ? "" : ", or f32");
    bench b;
    int code = bench_open(&b, c, v->common, bench_dtype(v->dtype), false);
    if (!code) code = measure(&b, v, keys, kv_heads);
    bench_close(&b);
    return code;
}

const cli_command bench_attention_command = {
    .name = "attention",
    .summary = "scaled dot-product attention, tiled",
    .about =
        "The rate counts the multiply-adds that the result needs (half of them when causal), and with --backward those of the "
        "gradient, in which the scores are computed once more.  extra_bytes is the memory held beside queries, keys, values, "
        "the output and, with --backward, their gradients.",
    .options = options,
    .size = sizeof(attention_values),
    .defaults = &defaults,
    .examples = examples,
    .run = run,
};
