/* gemm.cu - the matrix product through cuBLASLt, with bias, activation and the value before it written in the same pass.
 *
 * cuBLASLt thinks in columns: our row-major C = A B is its C' = B' A', so the factors change places.  f32 means f32: tf32
 * would round the factors to 10 bits and is not used.  What its kernels cannot do (no bias with these strides, an exact
 * gelu, an empty sum) is done by a plain kernel, or by a product and a pass over its result.
 *
 * Looking up an algorithm takes longer than a small product, so plans are kept by shape.  The library is opened with the
 * first product: a program that only asks which devices there are does not wait for 600 MB of kernels. */
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstring>
#include <new>

#include "cuda.h"
#include "scalar.h"

#define LT_WORK ((size_t)32 << 20) /* bytes; what NVIDIA advises for Hopper */
#define PLANS 1024                 /* a power of two */
#define TRIES 8                    /* places a plan may stand at */

/* ---- the library ---- */

struct lt_library {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
    decltype(&cublasLtMatmulPreferenceCreate) prefer_create;
    decltype(&cublasLtMatmulPreferenceDestroy) prefer_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) prefer_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) choose;
};

template <class F> static bool find(F *f, void *from, const char *name) { return (*f = (F)dlsym(from, name)) != NULL; }

static bool load_library(lt_library *l)
{
    char name[32];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUDART_VERSION / 1000);
    void *so = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return so && find(&l->create, so, "cublasLtCreate") && find(&l->destroy, so, "cublasLtDestroy") &&
           find(&l->matmul, so, "cublasLtMatmul") && find(&l->desc_create, so, "cublasLtMatmulDescCreate") &&
           find(&l->desc_destroy, so, "cublasLtMatmulDescDestroy") && find(&l->desc_set, so, "cublasLtMatmulDescSetAttribute") &&
           find(&l->layout_create, so, "cublasLtMatrixLayoutCreate") &&
           find(&l->layout_destroy, so, "cublasLtMatrixLayoutDestroy") &&
           find(&l->layout_set, so, "cublasLtMatrixLayoutSetAttribute") &&
           find(&l->prefer_create, so, "cublasLtMatmulPreferenceCreate") &&
           find(&l->prefer_destroy, so, "cublasLtMatmulPreferenceDestroy") &&
           find(&l->prefer_set, so, "cublasLtMatmulPreferenceSetAttribute") &&
           find(&l->choose, so, "cublasLtMatmulAlgoGetHeuristic");
}

/* ---- plans ---- */

/* Everything an algorithm depends on.  Compared as bytes, so it must be cleared first. */
struct shape_key {
    int64_t m, n, k, batch, lda, ldb, ldc, stride_a, stride_b, stride_c;
    int dtype, ct, epilogue;
    int ta, tb, add;
    int align_a, align_b, align_c; /* largest power of two up to 256 that divides the address */
};

struct plan {
    shape_key key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t work;
    bool made, can; /* can: there is an algorithm */
};

struct products {
    std::mutex lock; /* a device may be shared by threads */
    lt_library lt;
    cublasLtHandle_t handle;
    void *work;
    plan plans[PLANS];
    unsigned turn;
};

static products *open_products(fv_stream *s)
{
    device *d = device_of(s);
    std::lock_guard<std::mutex> hold(d->opening);
    if (d->mm) return d->mm;
    products *p = new (std::nothrow) products{};
    if (!p) {
        d->host.fail(s, FV_ENOMEM, "gemm: out of memory");
        return NULL;
    }
    if (!load_library(&p->lt)) {
        d->host.fail(s, FV_EDEVICE, "gemm: libcublasLt.so.%d cannot be loaded: %s", CUDART_VERSION / 1000, dlerror());
        delete p;
        return NULL;
    }
    cudaSetDevice(d->number);
    if (p->lt.create(&p->handle) != CUBLAS_STATUS_SUCCESS || cudaMalloc(&p->work, LT_WORK) != cudaSuccess) {
        cudaGetLastError();
        d->host.fail(s, FV_ENOMEM, "gemm: cuBLASLt found no memory on the device");
        fv_cuda_products_free(p);
        return NULL;
    }
    return d->mm = p;
}

static void forget(const lt_library *lt, plan *p)
{
    if (!p->made) return;
    if (p->a) lt->layout_destroy(p->a);
    if (p->b) lt->layout_destroy(p->b);
    if (p->c) lt->layout_destroy(p->c);
    if (p->desc) lt->desc_destroy(p->desc);
    *p = plan{};
}

void fv_cuda_products_free(products *p)
{
    if (!p) return;
    for (int i = 0; i < PLANS; i++) forget(&p->lt, &p->plans[i]);
    if (p->handle) p->lt.destroy(p->handle);
    if (p->work) cudaFree(p->work);
    delete p;
}

static cudaDataType type_of(int t) { return t == FV_BF16 ? CUDA_R_16BF : t == FV_F16 ? CUDA_R_16F : CUDA_R_32F; }

static bool layout(const lt_library *lt, cublasLtMatrixLayout_t *l, int t, int64_t rows, int64_t cols, int64_t ld, int64_t batch,
                   int64_t stride)
{
    int32_t count = (int32_t)batch;
    return lt->layout_create(l, type_of(t), (uint64_t)rows, (uint64_t)cols, ld) == CUBLAS_STATUS_SUCCESS &&
           lt->layout_set(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) == CUBLAS_STATUS_SUCCESS &&
           lt->layout_set(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride) == CUBLAS_STATUS_SUCCESS;
}

/* Its first factor is our b, its second our a: see above. */
static bool describe(const lt_library *lt, plan *p)
{
    const shape_key *k = &p->key;
    cublasOperation_t first = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N, second = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)k->epilogue;
    if (lt->desc_create(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) return false;
    lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    int64_t ld_pre = k->ldc;
    lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld_pre, sizeof ld_pre);
    return layout(lt, &p->a, k->dtype, k->tb ? k->k : k->n, k->tb ? k->n : k->k, k->ldb, k->batch, k->stride_b) &&
           layout(lt, &p->b, k->dtype, k->ta ? k->m : k->k, k->ta ? k->k : k->m, k->lda, k->batch, k->stride_a) &&
           layout(lt, &p->c, k->ct, k->n, k->m, k->ldc, k->batch, k->stride_c);
}

static bool pick(const products *mm, plan *p)
{
    const lt_library *lt = &mm->lt;
    cublasLtMatmulPreference_t prefer = NULL;
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    size_t most = LT_WORK;
    uint32_t a = (uint32_t)p->key.align_b, b = (uint32_t)p->key.align_a, c = (uint32_t)p->key.align_c;
    if (lt->prefer_create(&prefer) != CUBLAS_STATUS_SUCCESS) return false;
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c);
    cublasStatus_t rc = lt->choose(mm->handle, p->desc, p->a, p->b, p->c, p->c, prefer, 1, &best, &found);
    lt->prefer_destroy(prefer);
    if (rc != CUBLAS_STATUS_SUCCESS || !found) return false;
    p->algo = best.algo;
    p->work = best.workspaceSize;
    return true;
}

static plan *plan_for(products *mm, const shape_key *key)
{
    uint64_t h = 1469598103934665603ull;
    for (size_t i = 0; i < sizeof *key; i++) h = (h ^ ((const unsigned char *)key)[i]) * 1099511628211ull;
    plan *free_one = NULL;
    for (unsigned i = 0; i < TRIES; i++) {
        plan *p = &mm->plans[(h + i) % PLANS];
        if (p->made && !memcmp(&p->key, key, sizeof *key)) return p;
        if (!p->made && !free_one) free_one = p;
    }
    plan *p = free_one ? free_one : &mm->plans[(h + mm->turn++ % TRIES) % PLANS];
    forget(&mm->lt, p);
    p->key = *key;
    p->made = true;
    p->can = describe(&mm->lt, p) && pick(mm, p);
    return p;
}

/* ---- what follows the product ---- */

static int alignment(const void *p)
{
    uintptr_t a = (uintptr_t)p | 256;
    return (int)(a & (~a + 1));
}

/* The epilogue that does bias, act and pre at once, or -1. */
static int epilogue(const fv_gemm *g, fv_dtype t)
{
    bool dense = g->ct == t && g->ldc % 8 == 0;
    if (g->slope) return dense ? CUBLASLT_EPILOGUE_DGELU : -1;
    if (!g->bias && !g->act && !g->pre) return CUBLASLT_EPILOGUE_DEFAULT;
    if (g->act == FV_ACT_NONE && !g->pre && dense) return CUBLASLT_EPILOGUE_BIAS;
    if (g->act == FV_RELU && !g->pre && dense) return g->bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    if (g->act == FV_GELU_TANH && !g->pre && dense) return g->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    if (g->act == FV_GELU_TANH && dense) return g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return -1;
}

/* True when it ran (or failed for good); false when cuBLASLt has no algorithm for it. */
template <class T> static bool by_library(fv_stream *s, const fv_gemm *g, int how)
{
    products *mm = open_products(s);
    if (!mm) return true;
    shape_key key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k, key.batch = g->batch;
    key.lda = g->lda, key.ldb = g->ldb, key.ldc = g->ldc;
    if (g->batch > 1) key.stride_a = g->stride_a, key.stride_b = g->stride_b, key.stride_c = g->stride_c;
    key.dtype = kind<T>::dtype, key.ct = g->ct, key.epilogue = how;
    key.ta = g->ta, key.tb = g->tb, key.add = g->add;
    key.align_a = alignment(g->a), key.align_b = alignment(g->b), key.align_c = alignment(g->c);
    std::lock_guard<std::mutex> hold(mm->lock);
    plan *p = plan_for(mm, &key);
    if (!p->can) return false;
    if (g->bias && how != CUBLASLT_EPILOGUE_DEFAULT)
        mm->lt.desc_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    const void *aside = g->slope ? g->slope : g->pre;
    if (aside && how != CUBLASLT_EPILOGUE_DEFAULT)
        mm->lt.desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aside, sizeof aside);
    float alpha = g->alpha == 0 ? 1 : g->alpha, beta = g->add ? 1 : 0;
    cudaSetDevice(device_of(s)->number);
    cublasStatus_t rc = mm->lt.matmul(mm->handle, p->desc, &alpha, g->b, p->a, g->a, p->b, &beta, g->c, p->c, g->c, p->c,
                                      &p->algo, mm->work, p->work, stream_of(s));
    fv_cuda_started(s, "gemm");
    if (rc != CUBLAS_STATUS_SUCCESS) {
        p->can = false; /* refused after all: the plain kernel takes it, now and later */
        return false;
    }
    return true;
}

/* y = act(y + bias), and pre = y + bias; both (rows,n), dense.  A thread has V columns of FINISH_ROWS rows: their loads are
 * all under way at once, and the bias is read once. */
#define FINISH_ROWS 8
template <class T, int V, fv_act ACT> __global__ void finish(T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
{
    int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V, r0 = (int64_t)blockIdx.y * FINISH_ROWS;
    float v[FINISH_ROWS][V], b[V] = {};
    if (c >= n) return;
    if (bias) load(b, bias, c);
#pragma unroll
    for (int r = 0; r < FINISH_ROWS; r++)
        if (r0 + r < rows) load(v[r], y, (r0 + r) * n + c);
#pragma unroll
    for (int r = 0; r < FINISH_ROWS; r++) {
        if (r0 + r >= rows) break;
#pragma unroll
        for (int j = 0; j < V; j++) v[r][j] += b[j];
        if (pre) store(pre, (r0 + r) * n + c, v[r]);
#pragma unroll
        for (int j = 0; j < V; j++)
            v[r][j] = sizeof(T) == 2 && ACT == FV_GELU ? v[r][j] * normal_cdf_quick(v[r][j]) : activate(ACT ? ACT : act, v[r][j]);
        store(y, (r0 + r) * n + c, v[r]);
    }
}

template <class T, int V> static void finish_as(fv_stream *s, T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
{
    dim3 grid((unsigned)ceil_div(n, 128 * V), 1);
    for (int64_t r = 0; r < rows; r += 65535 * FINISH_ROWS) { /* the most blocks along y */
        int64_t some = rows - r < 65535 * FINISH_ROWS ? rows - r : 65535 * FINISH_ROWS;
        grid.y = (unsigned)ceil_div(some, FINISH_ROWS);
        T *before = pre ? pre + r * n : NULL;
        if (act == FV_GELU)
            launch(s, "gemm", finish<T, V, FV_GELU>, grid, 128, 0, y + r * n, before, bias, some, n, act);
        else
            launch(s, "gemm", finish<T, V, FV_ACT_NONE>, grid, 128, 0, y + r * n, before, bias, some, n, act);
    }
}

template <class T> static void finish_in_place(fv_stream *s, T *y, T *pre, const T *bias, int64_t rows, int64_t n, fv_act act)
{
    constexpr int V = 16 / sizeof(T);
    if (!act && !pre && !bias) return;
    if (n % V == 0 && aligned(y, pre, bias))
        finish_as<T, V>(s, y, pre, bias, rows, n, act);
    else
        finish_as<T, 1>(s, y, pre, bias, rows, n, act);
}

/* ---- the plain kernel: a thread for each element ---- */

template <class T> struct plain {
    static constexpr int wide = 1;
    fv_gemm g;
    template <int V> __device__ void at(int64_t e) const
    {
        int64_t j = e % g.n, i = e / g.n % g.m, z = e / g.n / g.m, to = z * g.stride_c + i * g.ldc + j;
        const T *a = (const T *)g.a + z * g.stride_a, *b = (const T *)g.b + z * g.stride_b;
        float sum = 0;
        for (int64_t k = 0; k < g.k; k++)
            sum = fmaf(up(a[g.ta ? k * g.lda + i : i * g.lda + k]), up(b[g.tb ? j * g.ldb + k : k * g.ldb + j]), sum);
        sum *= g.alpha == 0 ? 1 : g.alpha;
        if (g.bias) sum += up(((const T *)g.bias)[j]);
        if (g.pre) ((T *)g.pre)[to] = down<T>(sum);
        sink<T> c = {g.c, g.ct == FV_F32 && kind<T>::dtype != FV_F32, g.add};
        put(c, to, activate(g.act, sum));
    }
};

/* ---- weights of bf16 for rows of f32 ---- */

/* The few rows of a step of writing. */
static bool by_rows(fv_stream *s, const fv_gemm *g)
{
    bool plain = g->batch == 1 && !g->ta && !g->add && !g->pre && (g->alpha == 0 || g->alpha == 1);
    if (!plain || g->m > 64 || g->lda != g->k || g->ldc != g->n || g->ct != FV_F32) return false;
    fv_row_linear a = {};
    a.rows = g->m, a.n = g->n, a.k = g->k;
    a.x = g->a, a.w = g->b, a.bias = g->bias;
    a.xt = a.yt = FV_F32, a.wt = g->bt;
    a.act = g->act;
    a.y = g->c;
    return s->dev->k[FV_F32]->row_linear(s, &a);
}

/* Many rows: rounded to bf16 themselves, and added up in f32. */
static bool by_rounding(fv_stream *s, const fv_gemm *g)
{
    bool plain = g->batch == 1 && !g->ta && !g->add && g->lda == g->k && g->ldc == g->n && g->ct == FV_F32 && g->k > 0;
    bf16 *a = plain ? work<bf16>(s, g->m * g->k) : NULL;
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

/* Where the library has no kernel for both: the product, and a pass over its result. */
template <class T> static void product_then_slope(fv_stream *s, const fv_gemm &g)
{
    fv_gemm bare = g;
    bare.slope = NULL;
    bare.act = FV_ACT_NONE;
    gemm<T>(s, &bare);
    s->dev->k[kind<T>::dtype]->unary_bwd(s, FV_U_GELU_TANH, fv_sink{g.c, kind<T>::dtype, false}, g.c, g.slope, NULL,
                                         g.batch * g.m * g.n, 0, 0);
}

template <class T> static void gemm(fv_stream *s, const fv_gemm *want)
{
    fv_gemm g = *want;
    if (s->err.code || !g.m || !g.n || !g.batch) return;
    if (g.packed) { /* here a plain (n,k) matrix */
        g.tb = true;
        g.ldb = g.k;
    }
    if (kind<T>::dtype == FV_F32 && g.packed && g.bt == FV_BF16 && (by_rows(s, &g) || by_rounding(s, &g))) return;
    if (g.bt != kind<T>::dtype) {
        T *b = work<T>(s, g.n * g.k);
        if (!b) return;
        s->dev->k[g.bt]->cast(s, fv_sink{b, kind<T>::dtype, false}, g.b, g.n * g.k);
        g.b = b;
    }
    int how = epilogue(&g, kind<T>::dtype);
    if (g.k && how >= 0 && by_library<T>(s, &g, how)) return;
    if (g.slope) {
        product_then_slope<T>(s, g);
        return;
    }
    /* A bare product, and a pass over its result. */
    bool dense = g.ldc == g.n && (g.batch == 1 || g.stride_c == g.m * g.n) && g.ct == kind<T>::dtype;
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
    each(s, "gemm", g.batch * g.m * g.n, false, plain<T>{g});
}

/* ---- odd lengths ---- */

#define WHOLE 8    /* numbers of 16 bits that the library's fast kernels read at once */
#define WORTH 4096 /* a shorter odd length is not worth a second product */

/* The last few of m, n or k apart, where rows begin at whole places but a long row ends in the middle of one: the library
 * has only slow kernels for that.  A vocabulary of 50,257 is 50,256 and 1. */
template <class T> static void gemm_in_parts(fv_stream *s, const fv_gemm *want)
{
    const fv_gemm &g = *want;
    fv_gemm most = g, rest = g;
    bool whole = sizeof(T) == 2 && g.batch == 1 && !g.packed && g.bt == kind<T>::dtype && g.lda % WHOLE == 0 &&
                 g.ldb % WHOLE == 0 && g.ldc % WHOLE == 0 && !g.bias && !g.act && !g.pre && !g.slope;
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

static size_t pack_bytes(int64_t n, int64_t k, fv_dtype dt)
{
    size_t size = dt == FV_F32 ? 4 : dt == FV_BF16 || dt == FV_F16 ? 2 : 0;
    return (size_t)n * (size_t)k * size;
}

/* out (n,k) = w (n,k), or of w stored (k,n) if !tb; from T to E */
template <class E, class T> struct lay_out {
    static constexpr int wide = 1;
    E *out;
    const T *w;
    int64_t k, ld;
    bool tb;
    template <int V> __device__ void at(int64_t i) const
    {
        int64_t r = i / k, c = i % k;
        out[i] = down<E>(up(w[tb ? r * ld + c : c * ld + r]));
    }
};

/* A backend has one pack for each table, but a weight comes in any dtype: `from` says which. */
template <class E>
static void lay_out_as(fv_stream *s, E *out, const void *w, fv_dtype from, int64_t n, int64_t k, int64_t ld, bool tb)
{
    if (from == FV_BF16)
        each(s, "pack", n * k, false, lay_out<E, bf16>{out, (const bf16 *)w, k, ld, tb});
    else if (from == FV_F16)
        each(s, "pack", n * k, false, lay_out<E, f16>{out, (const f16 *)w, k, ld, tb});
    else
        each(s, "pack", n * k, false, lay_out<E, float>{out, (const float *)w, k, ld, tb});
}

static void pack_weight(fv_stream *s, void *out, fv_dtype dt, const void *w, fv_dtype from, int64_t n, int64_t k, int64_t ld,
                        bool tb)
{
    if (dt == FV_BF16)
        lay_out_as(s, (bf16 *)out, w, from, n, k, ld, tb);
    else if (dt == FV_F16)
        lay_out_as(s, (f16 *)out, w, from, n, k, ld, tb);
    else
        lay_out_as(s, (float *)out, w, from, n, k, ld, tb);
    s->dev->backend->sync(s); /* kernels that start early read weights before they wait for others */
}

template <class T> void fv_cuda_gemm(fv_kernels *k)
{
    k->gemm = gemm_in_parts<T>;
    k->gemm_slope[FV_GELU_TANH] = sizeof(T) == 2;
    k->pack_bytes = pack_bytes;
    k->pack = pack_weight;
}
FOR_ALL_DTYPES(fv_cuda_gemm)
