/* gemm.c - bench gemm: the matrix product, plain and against a prepacked weight.
 *
 * y = x w with x (m,k) and w (n,k), as linear layers have it, or (k,n) with --nn. m = 1 to 16 is
 * decoding, where the weight is read once and the rate in GB/s counts; hundreds of rows are prompts
 * and training, where GFLOP/s count. Packed weights are laid out before the clock runs, as a model
 * that serves has them. Quantised weights are always packed, and activations are quantised inside
 * the product, which is measured. */
#include "bench.h"
#include "fovea/author/ops.h"

/* The weight's dtype.  The rest is f32 for the quantised ones and of the same dtype for the
 * others. */
static const char *const dtypes[] = {"f32", "bf16", "f16", "f64", "q8", "q4", "int8", NULL};

typedef struct gemm_values {
    int64_t m, n, k;
    int dtype; /* an index into dtypes */
    bool packed, nn;
} gemm_values;

static const fv_field options[] = {
    FV_INT(gemm_values, m, 1, 2048, 1 << 24, "rows of the activations"),
    FV_INT(gemm_values, n, 1, 2048, 1 << 24, "rows of the weight, columns of the result"),
    FV_INT(gemm_values, k, 1, 2048, 1 << 24, "the inner size"),
    FV_CHOICE(gemm_values, dtype, 0, dtypes,
              "of the weight; q8, q4 and int8 are packed and meet f32 activations"),
    FV_BOOL(gemm_values, packed, false, "pack the weight beforehand, as inference does"),
    FV_BOOL(gemm_values, nn, false, "the weight is stored (K,N), not (N,K)"),
    {0}};

static const fv_task_example examples[] = {
    {"fovea bench gemm", "2048 cubed, all cores"},
    {"fovea bench gemm --m 1 --n 3072 --k 768 --packed",
     "what generating one token costs: the weight is read once"},
    {"fovea bench gemm --dtype q8 --threads 1 --json", "int8 weights on one core, for a script"},
    {0},
};

typedef struct product {
    fv_tensor *x, *w;
    bool nn;
} product;

/* Through the op: packing, dispatch by size and the epilogue are part of what a layer pays. */
static void multiply(fv_ctx *c, void *what)
{
    product *p = what;
    if (p->nn)
        fv_linear_in_out(c, p->x, p->w, NULL, FV_ACT_NONE);
    else
        fv_linear(c, p->x, p->w, NULL, FV_ACT_NONE);
}

/* Bytes of a weight: quantised ones have one f32 scale for 32 numbers, or for a row. */
static double weight_bytes(double n, fv_dtype t)
{
    if (t == FV_Q8) return n * (1 + 4.0 / 32);
    if (t == FV_Q4) return n * (0.5 + 4.0 / 32);
    if (t == FV_I8) return n;
    return n * (double)fv_dtype_size(t);
}

/* 2 m n k FLOPs; bytes are the weight as it is held and activations once each, which is the least a
 * product can read. */
static fv_status run(const bench_kind *kind, const bench_opt *o, const void *values, fv_err *e)
{
    const gemm_values *v = values;
    const char *name = dtypes[v->dtype];
    fv_dtype dtype = FV_Q8;
    fv_dtype_parse(&dtype, name);
    bool quantised = dtype == FV_Q8 || dtype == FV_Q4 || dtype == FV_I8;
    fv_dtype outer = quantised ? FV_F32 : dtype;

    bench b;
    fv_status st = bench_open(&b, o, outer, e);
    if (!st) {
        bool packed = v->packed || quantised;
        product p = {.nn = v->nn};
        p.x = bench_floats(&b, FV_SHAPE(v->m, v->k));
        p.w = bench_floats(&b, v->nn ? FV_SHAPE(v->k, v->n) : FV_SHAPE(v->n, v->k));
        if (packed) p.w = fv_pack(b.hold, p.w, dtype, v->nn);
        double m = (double)v->m, n = (double)v->n, k = (double)v->k;
        bench_row r = {.name = kind->name};
        bench_number(&r, "m", m);
        bench_number(&r, "n", n);
        bench_number(&r, "k", k);
        bench_word(&r, "dtype", name);
        bench_flag(&r, "packed", packed);
        bench_flag(&r, "nn", v->nn);
        double bytes = weight_bytes(n * k, dtype) + (m * k + m * n) * (double)fv_dtype_size(outer);
        bench_work work = {.flops = 2 * m * n * k, .bytes = bytes};
        st = bench_run(&b, &r, multiply, &p, work, e);
    }
    bench_close(&b);
    return st;
}

const bench_kind bench_gemm[] = {
    {.name = "gemm",
     .summary = "matrix product of activations (M,K) and a weight (N,K)",
     .about = "The rate in GB/s counts both matrices and the result once: for small M it is how "
              "fast the weight is read.",
     .examples = examples,
     .options = options,
     .size = sizeof(gemm_values),
     .run = run},
    {0}};
