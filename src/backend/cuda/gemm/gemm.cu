/* gemm.cu - dispatch of C = act(A B + bias), optionally keeping the pre-activation.
 *
 * In order of preference:
 *   1. f32 rows by bf16 or quantised weights: the fused linear kernel, or rounding to bf16 and
 *      cuBLASLt;
 *   2. packed f32 weights: our own kernel, whose bits do not depend on the rows (gemm_f32.cu);
 *   3. bf16 on Hopper: our own tiles, where they were measured to be faster (gemm_sm90.h);
 *   4. cuBLASLt with the whole epilogue;
 *   5. cuBLASLt bare, then one pass over C for bias and activation;
 *   6. a plain kernel: odd strides, an empty sum, FOVEA_CUDA_PRODUCTS=plain.
 *
 * cuBLASLt is column-major: our row-major C = A B is its C' = B' A', so the operands are swapped.
 * f32 is computed in f32; TF32, which rounds the operands to 10 bits, is for those who ask for it
 * (FOVEA_CUDA_PRODUCTS=tf32). */
#include <cublasLt.h>

#include <cstring>

#include "plan.h"
#include "quant.h"
#include "backend/cuda/rows/scalar.h"

namespace
{

/* ---- cuBLASLt and its epilogues ---- */

/* The cuBLASLt epilogue that does bias, act and pre at once, or -1. */
int epilogue(const fv_gemm *g, fv_dtype t)
{
    bool dense = g->ct == t && g->ldc % 8 == 0;
    if (!g->bias && !g->act && !g->pre) return CUBLASLT_EPILOGUE_DEFAULT;
    if (g->act == FV_ACT_NONE && !g->pre && dense) return CUBLASLT_EPILOGUE_BIAS;
    if (g->act == FV_RELU && !g->pre && dense)
        return g->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    if (g->act == FV_GELU_TANH && !g->pre && dense)
        return g->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    if (g->act == FV_GELU_TANH && dense)
        return g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return -1;
}

/* False: cuBLASLt has no algorithm for this shape.
 * memset first: the key is compared and hashed as bytes, padding included. */
template <class T> bool cublas_gemm(fv_stream *s, const fv_gemm *g, int epi)
{
    gemm_shape key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k, key.batch = g->batch;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    if (g->batch > 1)
        key.stride_a = g->stride_a, key.stride_b = g->stride_b, key.stride_c = g->stride_c;
    key.dtype = kind<T>::dtype, key.ct = g->ct, key.epilogue = epi;
    key.ta = g->ta, key.tb = g->tb, key.add = g->add;
    key.align_a = fv_cuda_alignment(g->a), key.align_b = fv_cuda_alignment(g->b),
    key.align_c = fv_cuda_alignment(g->c);
    if (g->plus && fv_cuda_alignment(g->plus) < key.align_c)
        key.align_c = fv_cuda_alignment(g->plus);
    bool bare = epi == CUBLASLT_EPILOGUE_DEFAULT;
    gemm_call call = {g->a,
                      g->b,
                      g->plus,
                      bare ? NULL : g->bias,
                      g->c,
                      bare ? NULL : g->pre,
                      g->alpha == 0 ? 1 : g->alpha};
    return fv_cuda_multiply(s, &key, &call);
}

/* The epilogue as a pass of its own: pre = y + bias, y = act(pre); (rows,n), contiguous.  A thread
 * has V columns of R rows: all loads are in flight together, and the bias is read once. */
template <class T, int V, int R, fv_act ACT>
__global__ void epilogue_pass(T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
{
    int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, r0 = (int64_t)blockIdx.y * R;
    float v[R][V], b[V] = {};
    if (c >= n) return;
    if (bias) load(b, bias, c);
#pragma unroll
    for (int r = 0; r < R; r++)
        if (r0 + r < rows) load(v[r], y, (r0 + r) * n + c);
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (r0 + r >= rows) break;
        for (int j = 0; j < V; j++) v[r][j] += b[j];
        if (pre) store(pre, (r0 + r) * n + c, v[r]);
        for (int j = 0; j < V; j++)
            v[r][j] = sizeof(T) == 2 && ACT == FV_GELU ? gelu_approx(v[r][j])
                                                       : activate(ACT ? ACT : act, v[r][j]);
        store(y, (r0 + r) * n + c, v[r]);
    }
}

template <class T, int V, int R>
void launch_epilogue(fv_stream *s, T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
{
    dim3 grid((unsigned)ceil_div(n, 128 * V), 1);
    for (int64_t r = 0; r < rows; r += 65535 * R) { /* gridDim.y limit */
        int64_t some = rows - r < 65535 * R ? rows - r : 65535 * R;
        grid.y = (unsigned)ceil_div(some, R);
        T *before = pre ? pre + r * n : NULL;
        if (act == FV_GELU)
            launch(s, "gemm", epilogue_pass<T, V, R, FV_GELU>, grid, 128, 0, y + r * n, before,
                   bias, some, n, act);
        else
            launch(s, "gemm", epilogue_pass<T, V, R, FV_ACT_NONE>, grid, 128, 0, y + r * n, before,
                   bias, some, n, act);
    }
}

template <class T>
void run_epilogue(fv_stream *s, T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
{
    constexpr int V = 16 / sizeof(T);
    if (!act && !pre && !bias) return;
    /* too small to give every thread of the GPU eight rows */
    bool few = rows * n < (int64_t)device_of(s)->sm_count * 128 * 8 * V;
    if (n % V || !aligned(y, pre, bias))
        launch_epilogue<T, 1, 8>(s, y, pre, bias, rows, n, act);
    else if (few)
        launch_epilogue<T, V, 1>(s, y, pre, bias, rows, n, act);
    else
        launch_epilogue<T, V, 8>(s, y, pre, bias, rows, n, act);
}

/* ---- plain kernel: one thread per element of C ---- */

/* Slow and without conditions: any stride, any size, k = 0. */
template <class T> void plain_gemm(fv_stream *s, const fv_gemm &gemm)
{
    fv_gemm g = gemm;
    sink<T> c = {g.c, g.ct == FV_F32 && kind<T>::dtype != FV_F32, g.add};
    each(s, "gemm", g.batch * g.m * g.n, [=] __device__(int64_t e) {
        int64_t j = e % g.n, i = e / g.n % g.m, z = e / g.n / g.m,
                to = z * g.stride_c + i * g.ldc + j;
        const T *a = (const T *)g.a + z * g.stride_a, *b = (const T *)g.b + z * g.stride_b;
        float sum = 0;
        for (int64_t k = 0; k < g.k; k++)
            sum = fmaf(to_float(a[g.ta ? k * g.lda + i : i * g.lda + k]),
                       to_float(b[g.tb ? j * g.ldb + k : k * g.ldb + j]), sum);
        sum *= g.alpha == 0 ? 1 : g.alpha;
        if (g.bias) sum += to_float(((const T *)g.bias)[j]);
        if (g.pre) ((T *)g.pre)[to] = from_float<T>(sum);
        sink_put(c, to, activate(g.act, sum));
    });
}

/* ---- f32 rows by bf16 or quantised weights ---- */

/* Few rows, as in a decode step: the fused linear kernel.  Not for batches, transposed A or
 * accumulation, which a linear layer never needs. */
bool few_rows_gemm(fv_stream *s, const fv_gemm *g)
{
    bool plain = g->batch == 1 && !g->ta && !g->add && !g->pre && (g->alpha == 0 || g->alpha == 1);
    if (!plain || g->m > 64 || g->lda != g->k || g->ldc != g->n || g->ct != FV_F32) return false;
    fv_fused_linear a = {};
    a.rows = g->m, a.n = g->n, a.k = g->k;
    a.x = g->a, a.w = g->b, a.bias = g->bias;
    a.xt = a.yt = FV_F32, a.wt = g->bt;
    a.act = g->act;
    a.y = g->c;
    return s->dev->k[FV_F32]->fused_linear(s, &a);
}

/* Many rows: A and quantised weights rounded to bf16, accumulation in f32. */
bool rounded_gemm(fv_stream *s, const fv_gemm *g)
{
    bool plain = g->batch == 1 && !g->ta && !g->add && g->lda == g->k && g->ldc == g->n &&
                 g->ct == FV_F32 && g->k > 0;
    int64_t rows = ceil_div(g->m * g->k, 8) * 8, weight = is_quantised(g->bt) ? g->n * g->k : 0;
    bf16 *a = plain ? alloc_scratch<bf16>(s, rows + weight) : NULL;
    if (!a) return s->err.code != FV_OK;
    s->dev->k[FV_F32]->cast(s, fv_sink{a, FV_BF16, false}, g->a, g->m * g->k);
    fv_gemm bare = *g;
    bare.a = a;
    if (weight) {
        fv_cuda_dequantise(s, a + rows, g->b, g->bt, g->n, g->k);
        bare.b = a + rows;
    }
    bare.bias = NULL, bare.act = FV_ACT_NONE, bare.pre = NULL;
    if (!cublas_gemm<bf16>(s, &bare, CUBLASLT_EPILOGUE_DEFAULT)) return false;
    run_epilogue(s, (float *)g->c, (float *)g->pre, (const float *)g->bias, g->m, g->n, g->act);
    return true;
}

/* ---- dispatch ---- */

template <class T> void gemm(fv_stream *s, const fv_gemm *call);

/* C = A B + plus where cuBLASLt cannot do both: a product, then an addition.
 * plus is the residual stream: y = x + A B saves one pass over (B,T,D) where the library can add
 * it. */
template <class T> void gemm_then_add(fv_stream *s, const fv_gemm &g)
{
    fv_gemm bare = g;
    fv_walk all = {};
    all.n = 1;
    all.shape[0] = g.m * g.n; /* C is contiguous where plus is given */
    all.y[0] = all.a[0] = all.b[0] = 1;
    bare.plus = NULL;
    gemm<T>(s, &bare);
    s->dev->k[kind<T>::dtype]->binary(s, FV_B_ADD, g.c, g.c, g.plus, &all);
}

template <class T> void gemm(fv_stream *s, const fv_gemm *call)
{
    fv_gemm g = *call;
    if (s->err.code || !g.m || !g.n || !g.batch) return;
    if (g.packed) { /* "packed" weights are a plain (n,k) matrix here */
        g.tb = true;
        g.ldb = g.k;
    }
    bool narrow = g.bt == FV_BF16 || is_quantised(g.bt);
    if (kind<T>::dtype == FV_F32 && g.packed && narrow &&
        (few_rows_gemm(s, &g) || rounded_gemm(s, &g)))
        return;
    if (is_quantised(g.bt)) {
        device_of(s)->host.fail(s, FV_EMISSING,
                                "gemm: cuda multiplies weights of %d bits by contiguous f32 rows, "
                                "and not these",
                                g.bt == FV_Q8 ? 8 : 4);
        return;
    }
    if (g.bt != kind<T>::dtype) {
        T *b = alloc_scratch<T>(s, g.n * g.k);
        if (!b) return;
        s->dev->k[g.bt]->cast(s, fv_sink{b, kind<T>::dtype, false}, g.b, g.n * g.k);
        g.b = b;
    }
    if (kind<T>::dtype == FV_F32 && g.packed && fv_cuda_gemm_f32(s, &g)) return;
    if (kind<T>::dtype == FV_BF16 &&
        (fv_cuda_gemm_hopper(s, &g) || fv_cuda_gemm_in_out(s, &g) || fv_cuda_gemm_plus(s, &g)))
        return;
    int epi = epilogue(&g, kind<T>::dtype);
    if (g.k && epi >= 0 && cublas_gemm<T>(s, &g, epi)) return;
    if (g.plus) {
        gemm_then_add<T>(s, g);
        return;
    }
    /* cuBLASLt without (or with only the bias of) the epilogue, then a pass over C */
    bool dense = g.ldc == g.n && (g.batch == 1 || g.stride_c == g.m * g.n) &&
                 g.ct == kind<T>::dtype;
    fv_gemm bare = g;
    bare.bias = NULL;
    bare.act = FV_ACT_NONE;
    bare.pre = NULL;
    if (g.k && epi != CUBLASLT_EPILOGUE_DEFAULT && dense) {
        bare.bias = g.bias;
        epi = epilogue(&bare, kind<T>::dtype);
        bool added = epi >= 0 && cublas_gemm<T>(s, &bare, epi);
        bare.bias = NULL;
        if (added || cublas_gemm<T>(s, &bare, CUBLASLT_EPILOGUE_DEFAULT)) {
            const void *bias = added ? NULL : g.bias;
            run_epilogue(s, (T *)g.c, (T *)g.pre, (const T *)bias, g.batch * g.m, g.n, g.act);
            return;
        }
    }
    plain_gemm<T>(s, g);
}

/* ---- odd sizes ---- */

#define WHOLE 8        /* 16-bit elements per 16-byte access of cuBLASLt's fast kernels */
#define MIN_SPLIT 4096 /* a shorter size is not worth a second product */

/* Splits off the last few of m, n or k where the leading dimensions are multiples of WHOLE but a
 * long size is not: cuBLASLt has only slow kernels for that.  A vocabulary of 50,257 becomes 50,256
 * and 1. */
template <class T> void split_gemm(fv_stream *s, const fv_gemm *call)
{
    const fv_gemm &g = *call;
    fv_gemm most = g, rest = g;
    bool whole = sizeof(T) == 2 && g.batch == 1 && !g.packed && g.bt == kind<T>::dtype &&
                 g.lda % WHOLE == 0 && g.ldb % WHOLE == 0 && g.ldc % WHOLE == 0 && !g.bias &&
                 !g.act && !g.pre && !g.plus;
    int64_t m = g.ta && g.m > MIN_SPLIT ? g.m % WHOLE : 0, n = g.n > MIN_SPLIT ? g.n % WHOLE : 0;
    int64_t k = (!g.ta || g.tb) && g.k > MIN_SPLIT ? g.k % WHOLE : 0;
    if (!whole || !(m || n || k)) {
        gemm<T>(s, call);
        return;
    }
    size_t size = g.ct == FV_F32 ? 4 : sizeof(T);
    if (m) {
        most.m -= m, rest.m = m;
        rest.a = (const T *)g.a + most.m;
        rest.c = (char *)g.c + (size_t)(most.m * g.ldc) * size;
    } else if (n) {
        most.n -= n, rest.n = n;
        rest.b = (const T *)g.b + most.n * (g.tb ? g.ldb : 1);
        rest.c = (char *)g.c + (size_t)most.n * size;
    } else {
        most.k -= k, rest.k = k;
        rest.a = (const T *)g.a + most.k * (g.ta ? g.lda : 1);
        rest.b = (const T *)g.b + most.k * (g.tb ? 1 : g.ldb);
        rest.add = true;
    }
    split_gemm<T>(s, &most);
    split_gemm<T>(s, &rest);
}

/* ---- packed weights: (n,k), the layout cuBLASLt reads fastest ---- */

/* 0: no packed form in this dtype (FV_I8 stays on the CPU). */
size_t pack_bytes(int64_t n, int64_t k, fv_dtype dt)
{
    if (is_quantised(dt)) return (size_t)(ceil_div(n, QUANT_ROWS) * quant_tile_bytes(dt, k));
    size_t size = dt == FV_F32 ? 4 : dt == FV_BF16 || dt == FV_F16 ? 2 : 0;
    return (size_t)n * (size_t)k * size;
}

/* out (n,k) = w, transposed if w is stored (k,n) (!tb); from T to E */
template <class E, class T>
void pack_to(fv_stream *s, void *out, const void *w, int64_t n, int64_t k, int64_t ld, bool tb)
{
    each(s, "pack", n * k, [=] __device__(int64_t i) {
        int64_t r = i / k, c = i % k;
        ((E *)out)[i] = from_float<E>(to_float(((const T *)w)[tb ? r * ld + c : c * ld + r]));
    });
}

template <class E>
void pack_as(fv_stream *s, void *out, const void *w, fv_dtype from, int64_t n, int64_t k,
             int64_t ld, bool tb)
{
    if (from == FV_BF16)
        pack_to<E, bf16>(s, out, w, n, k, ld, tb);
    else if (from == FV_F16)
        pack_to<E, f16>(s, out, w, n, k, ld, tb);
    else
        pack_to<E, float>(s, out, w, n, k, ld, tb);
}

void pack_weight(fv_stream *s, void *out, fv_dtype dt, const void *w, fv_dtype from, int64_t n,
                 int64_t k, int64_t ld, bool tb)
{
    if (is_quantised(dt))
        fv_cuda_quantise(s, out, dt, w, from, n, k, ld, tb);
    else if (dt == FV_BF16)
        pack_as<bf16>(s, out, w, from, n, k, ld, tb);
    else if (dt == FV_F16)
        pack_as<f16>(s, out, w, from, n, k, ld, tb);
    else
        pack_as<float>(s, out, w, from, n, k, ld, tb);
    /* kernels launched with PDL read weights before pdl_wait */
    s->dev->backend->sync(s);
}
} // namespace

template <class T> void fv_cuda_gemm(fv_kernels *k)
{
    k->gemm = split_gemm<T>;
    k->gemm_plus = true;
    if (kind<T>::dtype == FV_BF16) k->gemm_dact = fv_cuda_gemm_dact;
    k->pack_bytes = pack_bytes;
    k->pack = pack_weight;
}
FOR_ALL_DTYPES(fv_cuda_gemm)
