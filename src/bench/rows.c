/* rows.c - bench softmax, layernorm, ...: operations whose time is the memory they read and
 * write.
 *
 * Forward goes through the public ops.  Gradients are measured alone, by calling their kernels:
 * through a tape, handing in the gradient of the result would cost as much as the operation.
 *
 * Operations over rows are bound by memory: the figure is GB/s of what they must touch, to be held
 * against `bench machine`. Forward calls go through the ops, as models call them. */
#include "bench.h"
#include "fovea/author/op.h"
#include "fovea/author/ops.h"

typedef struct rows_values {
    int64_t rows, cols;
    int dtype;
    bool backward;
} rows_values;

/* Each operation has a size of its own by default: what a layer of a base model has. */
/* clang-format off */
#define ROWS_OPTIONS(rows_, cols_) \
    FV_INT(rows_values, rows, 1, rows_, 1 << 30, "rows"), \
    FV_INT(rows_values, cols, 1, cols_, 1 << 30, "columns")
/* clang-format on */
#define FLOAT_OPTIONS                                                                              \
    FV_CHOICE(rows_values, dtype, 0, bench_dtypes, "of the matrix"),                               \
        FV_BOOL(rows_values, backward, false, "the gradient instead")

static const fv_field matrix[] = {ROWS_OPTIONS(8192, 1024), FLOAT_OPTIONS, {0}};
static const fv_field logits[] = {ROWS_OPTIONS(1024, 32000), FLOAT_OPTIONS, {0}};
static const fv_field parameters[] = {ROWS_OPTIONS(16384, 1024), {0}};

/* The inputs: matrices of one size (y stands for a result, or for a moment), rows and columns of
 * numbers. */
typedef struct operands {
    int64_t rows, cols;
    fv_tensor *x, *y, *dx, *dy;
    fv_tensor *gain, *bias;         /* one for each column */
    fv_tensor *mean, *rstd, *dloss; /* one for each row, of the kind statistics have */
    fv_tensor *labels;
} operands;

typedef struct operation {
    bench_fn *forward, *backward;
    int reads_forward, reads_backward; /* how often a matrix crosses the bus, at least */
} operation;

static const fv_kernels *kernels(fv_ctx *c, const operands *o)
{
    return fv_kernels_of(c, o->x->dtype);
}
static fv_sink into(const fv_tensor *t) { return (fv_sink){.data = t->data, .dtype = t->dtype}; }

static void softmax(fv_ctx *c, void *what) { fv_softmax(c, ((operands *)what)->x); }

/* Gradients are measured as kernels, not by the tape, which would measure recording too; a backend
 * without the kernel fails with its sentence. */
static void softmax_bwd(fv_ctx *c, void *what)
{
    const operands *o = what;
    const fv_kernels *k = kernels(c, o);
    if (k && fv_need(c, k->softmax_bwd, "softmax_bwd", k->dtype))
        k->softmax_bwd(fv_ctx_stream(c), into(o->dx), o->dy->data, o->y->data, o->rows, o->cols,
                       false);
}

static void layernorm(fv_ctx *c, void *what)
{
    const operands *o = what;
    fv_layernorm(c, o->x, o->gain, o->bias, 1e-5f);
}

static void layernorm_bwd(fv_ctx *c, void *what)
{
    const operands *o = what;
    const fv_kernels *k = kernels(c, o);
    if (k && fv_need(c, k->layernorm_bwd, "layernorm_bwd", k->dtype))
        k->layernorm_bwd(fv_ctx_stream(c), into(o->dx), into(o->gain), into(o->bias), o->dy->data,
                         o->x->data, o->gain->data, o->mean->data, o->rstd->data, o->rows, o->cols);
}

static void rmsnorm(fv_ctx *c, void *what)
{
    const operands *o = what;
    fv_rmsnorm(c, o->x, o->gain, 1e-5f);
}

static void rmsnorm_bwd(fv_ctx *c, void *what)
{
    const operands *o = what;
    const fv_kernels *k = kernels(c, o);
    if (k && fv_need(c, k->rmsnorm_bwd, "rmsnorm_bwd", k->dtype))
        k->rmsnorm_bwd(fv_ctx_stream(c), into(o->dx), into(o->gain), o->dy->data, o->x->data,
                       o->gain->data, o->rstd->data, o->rows, o->cols);
}

static void gelu(fv_ctx *c, void *what) { fv_gelu(c, ((operands *)what)->x); }

static void gelu_bwd(fv_ctx *c, void *what)
{
    const operands *o = what;
    const fv_kernels *k = kernels(c, o);
    if (k && fv_need(c, k->unary_bwd, "unary_bwd", k->dtype))
        k->unary_bwd(fv_ctx_stream(c), FV_U_GELU, into(o->dx), o->dy->data, o->x->data, o->y->data,
                     o->rows * o->cols, 0, 0);
}

static void cross_entropy(fv_ctx *c, void *what)
{
    const operands *o = what;
    fv_cross_entropy(c, o->x, o->labels, (fv_ce_opt){.ignore = -100});
}

static void cross_entropy_bwd(fv_ctx *c, void *what)
{
    const operands *o = what;
    const fv_kernels *k = kernels(c, o);
    if (k && fv_need(c, k->cross_entropy_bwd, "cross_entropy_bwd", k->dtype))
        k->cross_entropy_bwd(fv_ctx_stream(c), into(o->dx), o->dloss->data, o->mean->data,
                             o->x->data, o->labels->data, o->rows, o->cols, 0, -100);
}

/* Master weights and moments as in training; lr is so small that thousands of repetitions leave the
 * numbers finite. */
static void adamw(fv_ctx *c, void *what)
{
    const operands *o = what;
    const fv_kernels *k = kernels(c, o);
    const fv_update now = {.lr = 1e-6f,
                           .bias_correction1 = 1,
                           .bias_correction2 = 1,
                           .grad_scale = 1};
    fv_tensor *u = fv_bytes(c, (const uint8_t *)&now, FV_SHAPE((int64_t)sizeof now));
    if (!u || !k || !fv_need(c, k->adamw, "adamw", k->dtype)) return;
    const fv_adamw step = {
        .lr = 1, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decay = 0.01f, .now = u->data};
    k->adamw(fv_ctx_stream(c), o->x->data, o->y->data, o->dx->data, NULL, NULL, o->dy->data,
             o->rows * o->cols, &step);
}

static const operation softmax_op = {softmax, softmax_bwd, 2, 3};
static const operation layernorm_op = {layernorm, layernorm_bwd, 2, 3};
static const operation rmsnorm_op = {rmsnorm, rmsnorm_bwd, 2, 3};
static const operation gelu_op = {gelu, gelu_bwd, 2, 3};
static const operation cross_entropy_op = {cross_entropy, cross_entropy_bwd, 1, 2};
static const operation adamw_op = {adamw, NULL, 7, 0};

/* Statistics are f32, and f64 for f64: a cast to the wider of f32 and the dtype makes them. */
static fv_tensor *per_row(bench *b, int64_t rows, float value)
{
    fv_tensor *t = fv_full(b->hold, FV_SHAPE(rows), value);
    return t && t->dtype != FV_F64 ? fv_cast(b->hold, t, FV_F32) : t;
}

/* Everything that any of the operations needs: what one does not read costs memory, not time. */
static operands make(bench *b, const rows_values *v, const operation *op)
{
    fv_shape s = FV_SHAPE(v->rows, v->cols), column = FV_SHAPE(v->cols);
    operands o = {.rows = v->rows, .cols = v->cols, .x = bench_floats(b, s)};
    if (v->backward || !op->backward) {
        o.y = fv_zeros(b->hold, s);
        o.dx = fv_zeros(b->hold, s);
        o.dy = bench_floats(b, s);
    }
    o.gain = bench_floats(b, column);
    o.bias = bench_floats(b, column);
    o.mean = per_row(b, v->rows, 0);
    o.rstd = per_row(b, v->rows, 1);
    o.dloss = per_row(b, v->rows, 1);
    o.labels = bench_ids(b, FV_SHAPE(v->rows), (int32_t)v->cols);
    return o;
}

/* Bytes are how often the operation must read or write its (rows,cols) at least; the rate against
 * that of `bench machine` says how near it is to memory speed. */
static fv_status run(const bench_kind *k, const bench_opt *o, const void *values, fv_err *e)
{
    const rows_values *v = values;
    const operation *op = k->more;
    bench b;
    fv_status st = bench_open(&b, o, bench_dtype(v->dtype), e);
    if (!st) {
        operands all = make(&b, v, op);
        bench_row r = {.name = k->name};
        bench_number(&r, "rows", (double)v->rows);
        bench_number(&r, "cols", (double)v->cols);
        bench_word(&r, "dtype", bench_dtypes[v->dtype]);
        if (op->backward) bench_flag(&r, "backward", v->backward);
        double passes = v->backward ? op->reads_backward : op->reads_forward;
        double bytes = passes * (double)v->rows * (double)v->cols *
                       (double)fv_dtype_size(bench_dtype(v->dtype));
        st = bench_run(&b, &r, v->backward ? op->backward : op->forward, &all,
                       (bench_work){.bytes = bytes}, e);
    }
    bench_close(&b);
    return st;
}

/* clang-format off */
#define ROWS(word, text, table, op) \
    {.name = word, .summary = text, .options = table, .size = sizeof(rows_values), \
     .more = op, .run = run}

const bench_kind bench_rows[] = {
    ROWS("softmax", "softmax over rows", matrix, &softmax_op),
    ROWS("layernorm", "layer normalisation of rows", matrix, &layernorm_op),
    ROWS("rmsnorm", "root-mean-square normalisation of rows", matrix, &rmsnorm_op),
    ROWS("gelu", "the activation x Phi(x)", matrix, &gelu_op),
    ROWS("cross-entropy", "loss of logits over a vocabulary (the columns)", logits,
         &cross_entropy_op),
    ROWS("adamw", "one step of the optimiser over f32 parameters", parameters, &adamw_op),
    {0}};
/* clang-format on */
