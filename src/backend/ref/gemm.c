/* gemm.c - the matrix product, element by element in the documented order.
 *
 * C = act(alpha * A B + bias): every element is a chain of fused multiply-adds over each run of
 * FV_GEMM_KC values of k; the runs are scaled by alpha and added in order.  Whatever the dtype,
 * sums are kept in acc and rounded once, when C is written.  A packed weight is here the plain
 * (n,k) matrix, converted to its dtype. */
#include "backend/ref/ref.h"

/* Element i of memory of any float dtype. */
static acc load(const void *p, int64_t i, fv_dtype t)
{
    switch (t) {
    case FV_F64: return (acc)((const double *)p)[i];
    case FV_BF16: return (acc)ref_from_bf16(((const uint16_t *)p)[i]);
    case FV_F16: return (acc)ref_from_f16(((const uint16_t *)p)[i]);
    default: return (acc)((const float *)p)[i];
    }
}

static void store(void *p, int64_t i, fv_dtype t, acc v)
{
    switch (t) {
    case FV_F64: ((double *)p)[i] = (double)v; break;
    case FV_BF16: ((uint16_t *)p)[i] = ref_to_bf16((float)v); break;
    case FV_F16: ((uint16_t *)p)[i] = ref_to_f16((float)v); break;
    default: ((float *)p)[i] = (float)v;
    }
}

static acc activate(fv_act act, acc x)
{
    switch (act) {
    case FV_RELU: return x > 0 ? x : 0;
    case FV_GELU: return (acc)0.5 * x * (1 + ERF(x * (acc)0.70710678118654752440));
    case FV_GELU_TANH:
        return (acc)0.5 * x *
               (1 + TANH((acc)0.79788456080286535588 * (x + (acc)0.044715 * x * x * x)));
    case FV_SILU: return x / (1 + EXP(-x));
    case FV_TANH: return TANH(x);
    case FV_SIGMOID: return 1 / (1 + EXP(-x));
    case FV_QUICK_GELU: return x / (1 + EXP((acc)-1.702 * x));
    default: return x;
    }
}

/* sum + alpha * (row i of A) . (column j of B)
 * This loop is the specification of the order of sums: the f32 kernels of the CPU match it bit
 * for bit where the machine has fma. */
static acc dot(const fv_gemm *g, const void *a, const void *b, int64_t i, int64_t j, acc sum)
{
    bool tb = g->tb || g->packed;
    int64_t ldb = g->packed ? g->k : g->ldb;
    acc alpha = g->alpha == 0 ? 1 : (acc)g->alpha;
    for (int64_t k0 = 0; k0 < g->k; k0 += FV_GEMM_KC) {
        int64_t k1 = k0 + FV_GEMM_KC < g->k ? k0 + FV_GEMM_KC : g->k;
        acc run = 0;
        for (int64_t k = k0; k < k1; k++)
            run = FMA(ld(a, g->ta ? k * g->lda + i : i * g->lda + k),
                      load(b, tb ? j * ldb + k : k * ldb + j, g->bt), run);
        sum = FMA(alpha, run, sum);
    }
    return sum;
}

static void gemm(fv_stream *s, const fv_gemm *g)
{
    (void)s;
    size_t b_size = fv_dtype_size(g->bt), c_size = fv_dtype_size(g->ct);
    for (int64_t e = 0; e < g->batch; e++) {
        const real *a = (const real *)g->a + e * g->stride_a;
        const void *b = (const char *)g->b + (size_t)(e * g->stride_b) * b_size;
        void *c = (char *)g->c + (size_t)(e * g->stride_c) * c_size;
        real *pre = g->pre ? (real *)g->pre + e * g->stride_c : NULL;
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                int64_t at = i * g->ldc + j;
                acc v = dot(g, a, b, i, j, g->add ? load(c, at, g->ct) : 0);
                if (g->bias) v += ld(g->bias, j);
                if (pre) st(pre, at, v);
                store(c, at, g->ct, activate(g->act, v));
            }
    }
}

/* 0 says that the dtype cannot be packed here: quantised weights have no reference. */
static size_t pack_bytes(int64_t n, int64_t k, fv_dtype dt)
{
    return dt < FV_FLOATS ? (size_t)n * (size_t)k * fv_dtype_size(dt) : 0;
}

static void pack(fv_stream *s, void *out, fv_dtype dt, const void *w, fv_dtype from, int64_t n,
                 int64_t k, int64_t ldw, bool tb)
{
    (void)s;
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < k; i++)
            store(out, j * k + i, dt, load(w, tb ? j * ldw + i : i * ldw + j, from));
}

void REF(gemm)(fv_kernels *k);
void REF(gemm)(fv_kernels *k)
{
    k->gemm = gemm;
    k->pack_bytes = pack_bytes;
    k->pack = pack;
}
