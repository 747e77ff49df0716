/* gemm.cu - the matrix product through cuBLASLt, with bias, activation and the value before it
 * written in the same pass.
 *
 * cuBLASLt thinks in columns: our row-major C = A B is its C' = B' A', so the factors change
 * places.  f32 means f32: tf32 would round the factors to 10 bits and is not used.  What its
 * kernels cannot do (no bias with these strides, an exact gelu, an empty sum) is done by a plain
 * kernel, or by a product and a pass over its result. */
#include <cublasLt.h>

#include <cstring>

#include "plan.h"
#include "backend/cuda/rows/scalar.h"

namespace
{

/* ---- what follows the product ---- */

int alignment(const void *p)
{
    uintptr_t a = (uintptr_t)p | 256;
    return (int)(a & (~a + 1));
}

/* The epilogue that does bias, act and pre at once, or -1. */
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

/* False when cuBLASLt has no algorithm for it. */
template <class T> static bool by_library(fv_stream *s, const fv_gemm *g, int how)
{
    gemm_shape key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k, key.batch = g->batch;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    if (g->batch > 1)
        key.stride_a = g->stride_a, key.stride_b = g->stride_b, key.stride_c = g->stride_c;
    key.dtype = kind<T>::dtype, key.ct = g->ct, key.epilogue = how;
    key.ta = g->ta, key.tb = g->tb, key.add = g->add;
    key.align_a = alignment(g->a), key.align_b = alignment(g->b), key.align_c = alignment(g->c);
    if (g->plus && alignment(g->plus) < key.align_c) key.align_c = alignment(g->plus);
    bool bare = how == CUBLASLT_EPILOGUE_DEFAULT;
    gemm_call call = {g->a,
                      g->b,
                      g->plus,
                      bare ? NULL : g->bias,
                      g->c,
                      bare ? NULL : g->pre,
                      g->alpha == 0 ? 1 : g->alpha};
    return fv_cuda_multiply(s, &key, &call);
}

/* y = act(y + bias), and pre = y + bias; both (rows,n), dense.  A thread has V columns of R rows:
 * their loads are all under way at once, and the bias is read once. */
template <class T, int V, int R, fv_act ACT>
__global__ void finish(T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
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
#pragma unroll
        for (int j = 0; j < V; j++) v[r][j] += b[j];
        if (pre) store(pre, (r0 + r) * n + c, v[r]);
#pragma unroll
        for (int j = 0; j < V; j++)
            v[r][j] = sizeof(T) == 2 && ACT == FV_GELU ? gelu_approx(v[r][j])
                                                       : activate(ACT ? ACT : act, v[r][j]);
        store(y, (r0 + r) * n + c, v[r]);
    }
}

template <class T, int V, int R>
void finish_as(fv_stream *s, T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
{
    dim3 grid((unsigned)ceil_div(n, 128 * V), 1);
    for (int64_t r = 0; r < rows; r += 65535 * R) { /* the most blocks along y */
        int64_t some = rows - r < 65535 * R ? rows - r : 65535 * R;
        grid.y = (unsigned)ceil_div(some, R);
        T *before = pre ? pre + r * n : NULL;
        if (act == FV_GELU)
            launch(s, "gemm", finish<T, V, R, FV_GELU>, grid, 128, 0, y + r * n, before, bias, some,
                   n, act);
        else
            launch(s, "gemm", finish<T, V, R, FV_ACT_NONE>, grid, 128, 0, y + r * n, before, bias,
                   some, n, act);
    }
}

template <class T>
void finish_in_place(fv_stream *s, T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
{
    constexpr int V = 16 / sizeof(T);
    if (!act && !pre && !bias) return;
    /* not eight rows for every thread there is */
    bool few = rows * n < (int64_t)device_of(s)->sm_count * 128 * 8 * V;
    if (n % V || !aligned(y, pre, bias))
        finish_as<T, 1, 8>(s, y, pre, bias, rows, n, act);
    else if (few)
        finish_as<T, V, 1>(s, y, pre, bias, rows, n, act);
    else
        finish_as<T, V, 8>(s, y, pre, bias, rows, n, act);
}

/* ---- the plain kernel: a thread for each element ---- */

template <class T> struct plain {
    fv_gemm g;
    template <int V> __device__ void at(int64_t e) const
    {
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
        sink<T> c = {g.c, g.ct == FV_F32 && kind<T>::dtype != FV_F32, g.add};
        sink_put(c, to, activate(g.act, sum));
    }
};

/* ---- weights of bf16 for rows of f32 ---- */

/* The few rows of a step of writing. */
bool by_rows(fv_stream *s, const fv_gemm *g)
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

/* Many rows: rounded to bf16 themselves, and added up in f32. */
bool by_rounding(fv_stream *s, const fv_gemm *g)
{
    bool plain = g->batch == 1 && !g->ta && !g->add && g->lda == g->k && g->ldc == g->n &&
                 g->ct == FV_F32 && g->k > 0;
    bf16 *a = plain ? alloc_scratch<bf16>(s, g->m * g->k) : NULL;
    if (!a) return s->err.code != FV_OK;
    s->dev->k[FV_F32]->cast(s, fv_sink{a, FV_BF16, false}, g->a, g->m * g->k);
    fv_gemm bare = *g;
    bare.a = a;
    bare.bias = NULL, bare.act = FV_ACT_NONE, bare.pre = NULL;
    if (!by_library<bf16>(s, &bare, CUBLASLT_EPILOGUE_DEFAULT)) return false;
    finish_in_place(s, (float *)g->c, (float *)g->pre, (const float *)g->bias, g->m, g->n, g->act);
    return true;
}

/* ---- the product ---- */

template <class T> static void gemm(fv_stream *s, const fv_gemm *want);

/* Where the library has no kernel for both. */
template <class T> static void product_then_sum(fv_stream *s, const fv_gemm &g)
{
    fv_gemm bare = g;
    fv_walk all = {};
    all.n = 1;
    all.shape[0] = g.m * g.n; /* what a plus is added to is dense */
    all.y[0] = all.a[0] = all.b[0] = 1;
    bare.plus = NULL;
    gemm<T>(s, &bare);
    s->dev->k[kind<T>::dtype]->binary(s, FV_B_ADD, g.c, g.c, g.plus, &all);
}

template <class T> static void gemm(fv_stream *s, const fv_gemm *want)
{
    fv_gemm g = *want;
    if (s->err.code || !g.m || !g.n || !g.batch) return;
    if (g.packed) { /* here a plain (n,k) matrix */
        g.tb = true;
        g.ldb = g.k;
    }
    if (kind<T>::dtype == FV_F32 && g.packed && g.bt == FV_BF16 &&
        (by_rows(s, &g) || by_rounding(s, &g)))
        return;
    if (g.bt != kind<T>::dtype) {
        T *b = alloc_scratch<T>(s, g.n * g.k);
        if (!b) return;
        s->dev->k[g.bt]->cast(s, fv_sink{b, kind<T>::dtype, false}, g.b, g.n * g.k);
        g.b = b;
    }
    if (kind<T>::dtype == FV_BF16 && (fv_cuda_gemm_hopper(s, &g) || fv_cuda_gemm_in_out(s, &g)))
        return;
    int how = epilogue(&g, kind<T>::dtype);
    if (g.k && how >= 0 && by_library<T>(s, &g, how)) return;
    if (g.plus) {
        product_then_sum<T>(s, g);
        return;
    }
    /* A bare product, and a pass over its result. */
    bool dense = g.ldc == g.n && (g.batch == 1 || g.stride_c == g.m * g.n) &&
                 g.ct == kind<T>::dtype;
    fv_gemm bare = g;
    bare.bias = NULL;
    bare.act = FV_ACT_NONE;
    bare.pre = NULL;
    if (g.k && how != CUBLASLT_EPILOGUE_DEFAULT && dense) {
        bare.bias = g.bias;
        how = epilogue(&bare, kind<T>::dtype);
        bool added = how >= 0 && by_library<T>(s, &bare, how);
        bare.bias = NULL;
        if (added || by_library<T>(s, &bare, CUBLASLT_EPILOGUE_DEFAULT)) {
            const void *bias = added ? NULL : g.bias;
            finish_in_place(s, (T *)g.c, (T *)g.pre, (const T *)bias, g.batch * g.m, g.n, g.act);
            return;
        }
    }
    each(s, "gemm", g.batch * g.m * g.n, plain<T>{g});
}

/* ---- odd lengths ---- */

#define WHOLE 8    /* numbers of 16 bits that the library's fast kernels read at once */
#define WORTH 4096 /* a shorter odd length is not worth a second product */

/* The last few of m, n or k apart, where rows begin at whole places but a long row ends in the
 * middle of one: the library has only slow kernels for that.  A vocabulary of 50,257 is 50,256 and
 * 1. */
template <class T> static void gemm_in_parts(fv_stream *s, const fv_gemm *want)
{
    const fv_gemm &g = *want;
    fv_gemm most = g, rest = g;
    bool whole = sizeof(T) == 2 && g.batch == 1 && !g.packed && g.bt == kind<T>::dtype &&
                 g.lda % WHOLE == 0 && g.ldb % WHOLE == 0 && g.ldc % WHOLE == 0 && !g.bias &&
                 !g.act && !g.pre && !g.plus;
    int64_t m = g.ta && g.m > WORTH ? g.m % WHOLE : 0, n = g.n > WORTH ? g.n % WHOLE : 0;
    int64_t k = (!g.ta || g.tb) && g.k > WORTH ? g.k % WHOLE : 0;
    if (!whole || !(m || n || k)) {
        gemm<T>(s, want);
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
    gemm_in_parts<T>(s, &most);
    gemm_in_parts<T>(s, &rest);
}

/* ---- packed weights: this library wants no layout of its own ---- */

size_t pack_bytes(int64_t n, int64_t k, fv_dtype dt)
{
    size_t size = dt == FV_F32 ? 4 : dt == FV_BF16 || dt == FV_F16 ? 2 : 0;
    return (size_t)n * (size_t)k * size;
}

/* out (n,k) = w (n,k), or of w stored (k,n) if !tb; from T to E */
template <class E, class T> struct lay_out {
    E *out;
    const T *w;
    int64_t k, ld;
    bool tb;
    template <int V> __device__ void at(int64_t i) const
    {
        int64_t r = i / k, c = i % k;
        out[i] = from_float<E>(to_float(w[tb ? r * ld + c : c * ld + r]));
    }
};

/* A backend has one pack for each table, but a weight comes in any dtype: `from` says which. */
template <class E>
void lay_out_as(fv_stream *s, E *out, const void *w, fv_dtype from, int64_t n, int64_t k,
                int64_t ld, bool tb)
{
    if (from == FV_BF16)
        each(s, "pack", n * k, lay_out<E, bf16>{out, (const bf16 *)w, k, ld, tb});
    else if (from == FV_F16)
        each(s, "pack", n * k, lay_out<E, f16>{out, (const f16 *)w, k, ld, tb});
    else
        each(s, "pack", n * k, lay_out<E, float>{out, (const float *)w, k, ld, tb});
}

void pack_weight(fv_stream *s, void *out, fv_dtype dt, const void *w, fv_dtype from, int64_t n,
                 int64_t k, int64_t ld, bool tb)
{
    if (dt == FV_BF16)
        lay_out_as(s, (bf16 *)out, w, from, n, k, ld, tb);
    else if (dt == FV_F16)
        lay_out_as(s, (f16 *)out, w, from, n, k, ld, tb);
    else
        lay_out_as(s, (float *)out, w, from, n, k, ld, tb);
    /* kernels that start early read weights before they wait for others */
    s->dev->backend->sync(s);
}
} // namespace

template <class T> void fv_cuda_gemm(fv_kernels *k)
{
    k->gemm = gemm_in_parts<T>;
    k->gemm_plus = true;
    if (kind<T>::dtype == FV_BF16) k->gemm_dact = fv_cuda_gemm_dact;
    k->pack_bytes = pack_bytes;
    k->pack = pack_weight;
}
FOR_ALL_DTYPES(fv_cuda_gemm)
