/* gemm.c - fovea bench gemm: the matrix product, plain and against a prepacked weight. */
#include "bench.h"
#include "fovea/author/ops.h"

typedef struct gemm_values {
    bench_values common;
    int64_t m, n, k;
    int dtype;
    bool packed, nn;
} gemm_values;

static const gemm_values defaults = {.common = BENCH_DEFAULTS, .m = 2048, .n = 2048, .k = 2048};

/* The weight's dtype.  The rest is f32 for the quantised ones and of the same dtype for the
 * others. */
static const char *const dtypes[] = {"f32", "bf16", "f16", "f64", "q8", "q4", "int8", NULL};

static const cli_option options[] = {
    CLI_INT(gemm_values, m, 0, "m", "N", 1, 1 << 24, "rows of the activations"),
    CLI_INT(gemm_values, n, 0, "n", "N", 1, 1 << 24, "rows of the weight, columns of the result"),
    CLI_INT(gemm_values, k, 0, "k", "N", 1, 1 << 24, "the inner size"),
    CLI_CHOICE(gemm_values, dtype, 0, "dtype", dtypes,
               "of the weight; q8 (also called int8) and q4 are packed and meet f32 activations"),
    CLI_FLAG(gemm_values, packed, 0, "packed", "pack the weight beforehand, as inference does"),
    CLI_FLAG(gemm_values, nn, 0, "nn", "the weight is stored (K,N), not (N,K)"),
    BENCH_OPTIONS(gemm_values),
    {0},
};

static const cli_example examples[] = {
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

static int run(const cli *c, const void *values, int n_operands, char **operand)
{
    (void)n_operands, (void)operand;
    const gemm_values *v = values;
    const char *name = dtypes[v->dtype];
    fv_dtype dtype = FV_Q8;
    fv_dtype_parse(&dtype, name);
    bool quantised = dtype == FV_Q8 || dtype == FV_Q4 || dtype == FV_I8;
    fv_dtype outer = quantised ? FV_F32 : dtype;

    bench b;
    int code = bench_open(&b, c, v->common, outer, false);
    if (!code) {
        bool packed = v->packed || quantised;
        product p = {.nn = v->nn};
        p.x = bench_floats(&b, FV_SHAPE(v->m, v->k));
        p.w = bench_floats(&b, v->nn ? FV_SHAPE(v->k, v->n) : FV_SHAPE(v->n, v->k));
        if (packed) p.w = fv_pack(b.hold, p.w, dtype, v->nn);
        double m = (double)v->m, n = (double)v->n, k = (double)v->k;
        bench_parameters of = {0};
        bench_number(&of, "m", m);
        bench_number(&of, "n", n);
        bench_number(&of, "k", k);
        bench_word(&of, "dtype", name);
        bench_flag(&of, "packed", packed);
        bench_flag(&of, "nn", v->nn);
        double bytes = weight_bytes(n * k, dtype) + (m * k + m * n) * (double)fv_dtype_size(outer);
        code = bench_run(&b, "gemm", &of, multiply, &p,
                         (bench_work){.flops = 2 * m * n * k, .bytes = bytes});
    }
    bench_close(&b);
    return code;
}

const cli_command bench_gemm_command = {
    .name = "gemm",
    .summary = "matrix product of activations (M,K) and a weight (N,K)",
    .about = "The rate in GB/s counts both matrices and the result once: for small M it is how "
             "fast the weight is read.",
    .options = options,
    .size = sizeof(gemm_values),
    .defaults = &defaults,
    .examples = examples,
    .run = run,
};
