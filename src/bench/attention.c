/* attention.c - bench attention: the operator, forward and with its gradient.
 *
 * Kernels are called without the op around them: recording and the upload of a gradient would be
 * measured with them. Inputs are nearly normal numbers, because a softmax of constants is easier
 * than any real one. Every option of the operator can be switched on, one by one, to see what it
 * costs. */
#include "bench.h"

#include <stdlib.h>

#include "fovea/author/op.h"

/* none, then as bench_dtypes */
static const char *const weights_words[] = {"none", "f32", "bf16", "f16", "f64", NULL};

typedef struct attention_values {
    int64_t batch, heads, kv_heads, len, keys, width, value_width, window;
    int dtype, weights; /* indices into bench_dtypes and weights_words */
    double dropout;
    bool causal, mask, key_mask, bias, distances, bias_gradient, backward;
} attention_values;

static const fv_field options[] = {
    FV_INT(attention_values, batch, 1, 4, 1 << 20, "sequences"),
    FV_INT(attention_values, heads, 1, 8, 4096, "heads"),
    FV_INT(attention_values, kv_heads, 0, 0, 4096,
           "heads of keys and values, shared by groups; 0: as many as heads"),
    FV_INT(attention_values, len, 1, 512, 1 << 24, "queries in a sequence"),
    FV_INT(attention_values, keys, 0, 0, 1 << 24, "keys in a sequence; 0: as many as queries"),
    FV_INT(attention_values, width, 1, 64, 1 << 16, "width of a head"),
    FV_INT(attention_values, value_width, 0, 0, 1 << 16, "width of a head's values; 0: as --width"),
    FV_CHOICE(attention_values, dtype, 0, bench_dtypes, "of everything"),
    FV_BOOL(attention_values, causal, false, "a row sees only the keys up to its own position"),
    FV_INT(attention_values, window, 0, 0, 1 << 24,
           "a row sees only so many keys back; 0: all of them"),
    FV_BOOL(attention_values, key_mask, false, "a mask that hides keys, one in eight"),
    FV_BOOL(attention_values, mask, false,
            "a mask that hides pairs of query and key, one in eight, of each sequence its own"),
    FV_BOOL(attention_values, bias, false,
            "something added to each score, of its own for each head"),
    FV_BOOL(attention_values, distances, false,
            "something added by the distance of key and query, from a table a head"),
    FV_BOOL(attention_values, bias_gradient, false,
            "with --bias or --distances, and --backward: what is added has a gradient, too"),
    FV_FLOAT(attention_values, dropout, 0, 0, 0.99, "share of the weights that is dropped"),
    FV_BOOL(attention_values, backward, false, "with the gradients of queries, keys and values"),
    FV_CHOICE(attention_values, weights, 0, weights_words,
              "with the exact weights of one head of one sequence, of this dtype: --dtype's or "
              "f32"),
    {0}};

static const fv_task_example examples[] = {
    {"fovea bench attention --len 2048 --causal", "each row sees its past: half the work"},
    {"fovea bench attention --len 512 --backward", "a training step's share"},
    {"fovea bench attention --batch 1 --len 16384 --json",
     "memory is linear in the length: see extra_bytes"},
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
    if (!k || !fv_need(c, k->attention && k->attention_bwd && k->attention_weights, "attention",
                       a->dtype))
        return;
    k->attention(fv_ctx_stream(c), &a->args);
    if (a->weights.data)
        k->attention_weights(fv_ctx_stream(c), a->weights, &a->args, 0, 0, 0, a->args.Tq);
    if (a->grads.dy) k->attention_bwd(fv_ctx_stream(c), &a->args, &a->grads);
}

/* Log-sum-exps are kept wider than the matrices: f32, and f64 for f64. */
static fv_dtype stat_dtype(fv_dtype t) { return t == FV_F64 ? FV_F64 : FV_F32; }

static void *numbers(bench *b, fv_shape s)
{
    fv_tensor *t = bench_floats(b, s);
    return t ? t->data : NULL;
}

/* A mask in which one in eight is 0. */
static const uint8_t *mask_of(bench *b, fv_shape s)
{
    int64_t n = fv_shape_len(s);
    uint8_t *x = malloc((size_t)n);
    for (int64_t i = 0; x && i < n; i++) {
        int32_t one;
        bench_draw(b, &one, 1, 8);
        x[i] = one > 0;
    }
    fv_tensor *t = x ? fv_bytes(b->hold, x, s) : fv_raise(b->hold, FV_ENOMEM, "out of memory");
    free(x);
    return t ? t->data : NULL;
}

/* Somewhere to write a gradient, on the device. */
static fv_sink sink(bench *b, fv_dtype t, fv_shape s)
{
    return (fv_sink){.data = fv_scratch(b->hold, t, fv_shape_len(s)), .dtype = t};
}

/* What is hidden, and what is added to scores. */
static void options_of(bench *b, fv_attn_args *a, const attention_values *v)
{
    a->causal = v->causal;
    a->window = v->window < a->Tk ? v->window : 0;
    if (v->key_mask) a->key_mask = mask_of(b, FV_SHAPE(a->B, a->Tk));
    if (v->mask) {
        a->mask = mask_of(b, FV_SHAPE(a->B, a->Tq, a->Tk));
        a->mask_s[0] = a->Tq * a->Tk, a->mask_s[2] = a->Tk;
    }
    if (v->bias) {
        a->bias = numbers(b, FV_SHAPE(a->H, a->Tq, a->Tk));
        a->bias_s[1] = a->Tq * a->Tk, a->bias_s[2] = a->Tk;
    }
    if (v->distances) {
        a->rel_len = a->Tq + a->Tk - 1, a->rel_zero = a->Tk - 1;
        a->rel = numbers(b, FV_SHAPE(a->H, a->rel_len));
    }
    a->dropout = (float)v->dropout;
    if (v->dropout > 0) a->rng = fv_next_rng(b->hold);
}

/* Everything a call needs, on the device. */
static call prepare(bench *b, const attention_values *v, fv_attn_args a)
{
    fv_dtype t = bench_dtype(v->dtype);
    fv_shape q = FV_SHAPE(a.B, a.Tq, a.H * a.Wk), y = FV_SHAPE(a.B, a.Tq, a.H * a.Wv);
    fv_shape k = FV_SHAPE(a.B, a.Tk, a.G * a.Wk), values = FV_SHAPE(a.B, a.Tk, a.G * a.Wv);
    a.q_row = a.H * a.Wk, a.k_row = a.G * a.Wk, a.v_row = a.G * a.Wv;
    a.q_batch = a.Tq * a.q_row, a.k_batch = a.Tk * a.k_row, a.v_batch = a.Tk * a.v_row;
    a.q = numbers(b, q), a.k = numbers(b, k), a.v = numbers(b, values);
    a.y = fv_scratch(b->hold, t, fv_shape_len(y));
    a.lse = fv_scratch(b->hold, stat_dtype(t), 2 * a.B * a.H * a.Tq);
    options_of(b, &a, v);
    call c = {.args = a, .dtype = t};
    if (v->weights) c.weights = sink(b, bench_dtype(v->weights - 1), FV_SHAPE(a.Tq, a.Tk));
    if (v->backward)
        c.grads = (fv_attn_grads){.dy = numbers(b, y),
                                  .dq = sink(b, t, q),
                                  .dk = sink(b, t, k),
                                  .dv = sink(b, t, values)};
    if (v->bias_gradient && v->bias) c.grads.dbias = sink(b, t, FV_SHAPE(a.H, a.Tq, a.Tk));
    if (v->bias_gradient && v->distances) c.grads.drel = sink(b, t, FV_SHAPE(a.H, a.rel_len));
    return c;
}

/* Multiply-adds count two.  Forward has two products for each pair of query and key that can take
 * part, one as wide as keys and one as values; backward three and two. */
static double flops(const fv_attn_args *a, bool backward)
{
    double pairs = 0;
    for (int64_t i = 0; i < a->Tq; i++) {
        int64_t at = i + a->Tk - a->Tq,
                first = a->window > 0 && at >= a->window ? at - a->window + 1 : 0;
        pairs += (double)((a->causal ? at + 1 : a->Tk) - first);
    }
    return 2 * pairs * (double)(a->B * a->H) *
           (double)(backward ? 4 * a->Wk + 3 * a->Wv : a->Wk + a->Wv);
}

/* What was asked, besides sizes. */
static void name_options(bench_row *p, const attention_values *v)
{
    const struct {
        const char *name;
        bool is;
    } flags[] = {
        {"mask", v->mask},           {"key_mask", v->key_mask},           {"bias", v->bias},
        {"distances", v->distances}, {"bias_gradient", v->bias_gradient}, {NULL, false}};
    if (v->value_width) bench_number(p, "value_width", (double)v->value_width);
    if (v->window) bench_number(p, "window", (double)v->window);
    for (int i = 0; flags[i].name; i++)
        if (flags[i].is) bench_flag(p, flags[i].name, true);
    if (v->dropout > 0) bench_number(p, "dropout", v->dropout);
    if (v->weights) bench_word(p, "weights", weights_words[v->weights]);
}

/* Bytes are queries, keys, values and output, once each: scores are never in memory.  The backward
 * pass reads and writes as much again. */
static fv_status measure(bench *b, const attention_values *v, fv_attn_args sizes, fv_err *e)
{
    call c = prepare(b, v, sizes);
    const fv_attn_args *a = &c.args;
    bench_row r = {.name = "attention"};
    bench_number(&r, "batch", (double)a->B);
    bench_number(&r, "heads", (double)a->H);
    bench_number(&r, "kv_heads", (double)a->G);
    bench_number(&r, "len", (double)a->Tq);
    bench_number(&r, "keys", (double)a->Tk);
    bench_number(&r, "width", (double)a->Wk);
    bench_word(&r, "dtype", bench_dtypes[v->dtype]);
    bench_flag(&r, "causal", v->causal);
    bench_flag(&r, "backward", v->backward);
    double size = (double)fv_dtype_size(c.dtype);
    double inputs = size * (double)(a->B * (a->Tq * a->H + a->Tk * a->G) * (a->Wk + a->Wv));
    bench_work work = {.flops = flops(a, v->backward), .inputs = v->backward ? 2 * inputs : inputs};
    name_options(&r, v);
    return bench_run(b, &r, attend, &c, work, e);
}

/* What the operator would refuse is said in the words of the options. */
static fv_status check(const attention_values *v, const fv_attn_args *a, fv_err *e)
{
    fv_dtype t = bench_dtype(v->dtype), w = v->weights ? bench_dtype(v->weights - 1) : t;
    if (a->H % a->G)
        return fv_fail(e, FV_EUSAGE, "--kv-heads %lld: expected a divisor of --heads %lld",
                       (long long)a->G, (long long)a->H);
    if ((v->causal || v->window) && a->Tk < a->Tq)
        return fv_fail(e, FV_EUSAGE, "%s needs at least as many keys as queries",
                       v->causal ? "--causal" : "--window");
    if (v->bias_gradient && !(v->backward && (v->bias || v->distances)))
        return fv_fail(e, FV_EUSAGE, "--bias-gradient needs --backward, and --bias or --distances");
    if (w != t && w != stat_dtype(t))
        return fv_fail(e, FV_EUSAGE, "--weights %s: expected %s, as --dtype is%s", fv_dtype_name(w),
                       fv_dtype_name(t), stat_dtype(t) == t ? "" : ", or f32");
    return FV_OK;
}

static fv_status run(const bench_kind *k, const bench_opt *o, const void *values, fv_err *e)
{
    const attention_values *v = values;
    fv_attn_args a = {.B = v->batch,
                      .Tq = v->len,
                      .Tk = v->keys ? v->keys : v->len,
                      .H = v->heads,
                      .Wk = v->width};
    (void)k;
    a.G = v->kv_heads ? v->kv_heads : a.H, a.Wv = v->value_width ? v->value_width : a.Wk;
    fv_status st = check(v, &a, e);
    if (st) return st;
    bench b;
    st = bench_open(&b, o, bench_dtype(v->dtype), e);
    if (!st) st = measure(&b, v, a, e);
    bench_close(&b);
    return st;
}

const bench_kind bench_attention[] = {
    {.name = "attention",
     .summary = "scaled dot-product attention, tiled",
     .about = "The rate counts the multiply-adds that the result needs (half of them when causal; "
              "those that a mask hides count), and with --backward those of the gradient, in which "
              "the scores are computed once more.  extra_bytes is the memory held beside queries, "
              "keys, values, the output and, with --backward, their gradients.",
     .examples = examples,
     .options = options,
     .size = sizeof(attention_values),
     .run = run},
    {0}};
