/* plan.cu - cuBLASLt: opening the library, and a cache of its plans by shape.
 *
 * The heuristic takes longer than a small product, so its answer is cached.  The library is opened
 * with dlopen at the first product: a program that only lists devices does not load 600 MB of
 * kernels.
 *
 * MPS: with a partial GPU (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE) the 16-bit kernels of cuBLASLt 13.1
 * skip tiles and report success (seen on 26 to 104 of an H200's 132 SMs).  So under MPS two test
 * products must come out right before the library is used.
 *
 * Split-K: its 16-bit kernels that share K among blocks leave out the terms behind the last whole
 * tile of 64.  Seen with 13.1 on an H200 by all of the heuristic's algorithms that split: products
 * of ones over 6,402 terms gave 6,400.  So such a sum is given to them in whole tiles, and the rest
 * is a product of its own; where that is not possible (an epilogue, a 16-bit result, which would be
 * rounded twice) an algorithm is taken that does not split K. */
#include "plan.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace
{

#define LT_WORK ((size_t)32 << 20) /* workspace, bytes: NVIDIA's advice for Hopper */
#define PLANS 1024                 /* cache entries */
#define TRIES 8                    /* linear probing */
#define CHOICES 8                  /* algorithms asked for */
#define K_TILE 64                  /* terms of a sum that a split-K kernel takes at a time */

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
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_get;
};

template <class F> bool find(F *f, void *from, const char *name)
{
    return (*f = (F)dlsym(from, name)) != NULL;
}

bool load_library(lt_library *l)
{
    char name[32];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUDART_VERSION / 1000);
    void *so = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return so && find(&l->create, so, "cublasLtCreate") &&
           find(&l->destroy, so, "cublasLtDestroy") && find(&l->matmul, so, "cublasLtMatmul") &&
           find(&l->desc_create, so, "cublasLtMatmulDescCreate") &&
           find(&l->desc_destroy, so, "cublasLtMatmulDescDestroy") &&
           find(&l->desc_set, so, "cublasLtMatmulDescSetAttribute") &&
           find(&l->layout_create, so, "cublasLtMatrixLayoutCreate") &&
           find(&l->layout_destroy, so, "cublasLtMatrixLayoutDestroy") &&
           find(&l->layout_set, so, "cublasLtMatrixLayoutSetAttribute") &&
           find(&l->prefer_create, so, "cublasLtMatmulPreferenceCreate") &&
           find(&l->prefer_destroy, so, "cublasLtMatmulPreferenceDestroy") &&
           find(&l->prefer_set, so, "cublasLtMatmulPreferenceSetAttribute") &&
           find(&l->choose, so, "cublasLtMatmulAlgoGetHeuristic") &&
           find(&l->algo_get, so, "cublasLtMatmulAlgoConfigGetAttribute");
}

/* ---- plans ---- */

/* made without can: the heuristic found nothing for this shape; remembered, so that it is asked
 * once. */
struct plan {
    gemm_shape key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t work;
    bool made, can; /* can: an algorithm exists */
    bool in_two;    /* it splits K and may be given whole tiles only */
};
} // namespace

struct cublas_state {
    std::mutex lock; /* a device may be shared by threads */
    lt_library lt;
    cublasLtHandle_t handle;
    void *work;
    int sm_count;
    plan plans[PLANS];
    unsigned evictions; /* rotates the victim among TRIES */
};

namespace
{

void plan_free(const lt_library *lt, plan *p)
{
    if (!p->made) return;
    if (p->a) lt->layout_destroy(p->a);
    if (p->b) lt->layout_destroy(p->b);
    if (p->c) lt->layout_destroy(p->c);
    if (p->desc) lt->desc_destroy(p->desc);
    *p = plan{};
}
} // namespace

void fv_cuda_cublas_free(cublas_state *p)
{
    if (!p) return;
    for (int i = 0; i < PLANS; i++) plan_free(&p->lt, &p->plans[i]);
    if (p->handle) p->lt.destroy(p->handle);
    if (p->work) cudaFree(p->work);
    delete p;
}

namespace
{

cudaDataType type_of(int t)
{
    return t == FV_BF16 ? CUDA_R_16BF : t == FV_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* FOVEA_CUDA_PRODUCTS: plain, without the library, for compute-sanitizer, which takes minutes to
 * patch cuBLASLt; tf32, f32 products by tensor cores, which round their operands to 10 bits. */
bool requested(const char *what)
{
    static const char *const products = getenv("FOVEA_CUDA_PRODUCTS");
    return products && !strcmp(products, what);
}

/* Products of f32 by tensor cores. */
bool rounds(const gemm_shape *k) { return k->dtype == FV_F32 && requested("tf32"); }

/* A column-major matrix layout for strided batches. */
bool layout(const lt_library *lt, cublasLtMatrixLayout_t *l, int t, int64_t rows, int64_t cols,
            int64_t ld, int64_t batch, int64_t stride)
{
    int32_t count = (int32_t)batch;
    return lt->layout_create(l, type_of(t), (uint64_t)rows, (uint64_t)cols, ld) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->layout_set(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->layout_set(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                          sizeof stride) == CUBLAS_STATUS_SUCCESS;
}

/* cuBLASLt's A is our b, its B our a: see gemm.cu.
 * Row-major (m,k) is column-major (k,m), so only the order of operands changes and no data
 * moves. */
bool describe(const lt_library *lt, plan *p)
{
    const gemm_shape *k = &p->key;
    cublasOperation_t first = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)k->epilogue;
    cublasComputeType_t compute = rounds(k) ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (lt->desc_create(&p->desc, compute, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) return false;
    lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    int64_t ld_pre = k->ldc;
    lt->desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld_pre, sizeof ld_pre);
    return layout(lt, &p->a, k->dtype, k->tb ? k->k : k->n, k->tb ? k->n : k->k, k->ldb, k->batch,
                  k->stride_b) &&
           layout(lt, &p->b, k->dtype, k->ta ? k->m : k->k, k->ta ? k->k : k->m, k->lda, k->batch,
                  k->stride_a) &&
           layout(lt, &p->c, k->ct, k->n, k->m, k->ldc, k->batch, k->stride_c);
}

/* K ends inside a tile, which a 16-bit algorithm that splits K leaves out; those of TF32 are not
 * trusted either. */
bool tail_at_risk(const gemm_shape *k)
{
    return (k->dtype != FV_F32 || rounds(k)) && k->k % K_TILE;
}

/* The product may be taken in two: nothing is done to C between them, nor is it rounded. */
bool divisible(const gemm_shape *k)
{
    return k->dtype != FV_F32 && k->epilogue == CUBLASLT_EPILOGUE_DEFAULT && k->batch == 1 &&
           k->ct == FV_F32 && k->k > K_TILE;
}

bool splits_k(const lt_library *lt, const cublasLtMatmulAlgo_t *algo)
{
    int32_t parts = 0;
    size_t bytes = 0;
    lt->algo_get(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts, &bytes);
    return parts != 0 && parts != 1;
}

/* The first of the heuristic's choices, with at most `most` bytes of workspace, that leaves out
 * nothing. */
bool pick_with(const cublas_state *mm, plan *p, size_t most)
{
    const lt_library *lt = &mm->lt;
    cublasLtMatmulPreference_t prefer = NULL;
    cublasLtMatmulHeuristicResult_t choice[CHOICES];
    bool at_risk = tail_at_risk(&p->key);
    int found = 0;
    uint32_t a = (uint32_t)p->key.align_b, b = (uint32_t)p->key.align_a,
             c = (uint32_t)p->key.align_c;
    if (lt->prefer_create(&prefer) != CUBLAS_STATUS_SUCCESS) return false;
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c);
    cublasStatus_t rc = lt->choose(mm->handle, p->desc, p->a, p->b, p->c, p->c, prefer,
                                   at_risk ? CHOICES : 1, choice, &found);
    lt->prefer_destroy(prefer);
    for (int i = 0; rc == CUBLAS_STATUS_SUCCESS && i < found; i++) {
        bool drops = at_risk && splits_k(lt, &choice[i].algo);
        if (drops && !divisible(&p->key)) continue;
        p->in_two = drops;
        p->algo = choice[i].algo;
        p->work = choice[i].workspaceSize;
        return true;
    }
    return false;
}

/* With 128x128 tiles for a third of the SMs, smaller tiles are as fast as split-K; and split-K
 * needs a counter in the workspace, which cuBLASLt clears with a memset as long as a small kernel.
 */
bool pick(const cublas_state *mm, plan *p)
{
    bool enough = ceil_div(p->key.m, 128) * ceil_div(p->key.n, 128) * p->key.batch * 3 >=
                  mm->sm_count;
    return (enough && pick_with(mm, p, 0)) || pick_with(mm, p, LT_WORK) || pick_with(mm, p, 0);
}

/* The cached plan of a shape, or a new one: FNV-1a over the key, linear probing over TRIES entries,
 * round-robin eviction among them.
 * A training step has some dozens of shapes, so evictions are rare; a captured graph keeps the
 * kernel it was made with, not the plan. */
plan *plan_for(cublas_state *mm, const gemm_shape *key)
{
    uint64_t h = 1469598103934665603ull;
    for (size_t i = 0; i < sizeof *key; i++)
        h = (h ^ ((const unsigned char *)key)[i]) * 1099511628211ull;
    plan *free_one = NULL;
    for (unsigned i = 0; i < TRIES; i++) {
        plan *p = &mm->plans[(h + i) % PLANS];
        if (p->made && !memcmp(&p->key, key, sizeof *key)) return p;
        if (!p->made && !free_one) free_one = p;
    }
    plan *p = free_one ? free_one : &mm->plans[(h + mm->evictions++ % TRIES) % PLANS];
    plan_free(&mm->lt, p);
    p->key = *key;
    p->made = true;
    p->can = describe(&mm->lt, p) && pick(mm, p);
    return p;
}

bool run(cublas_state *mm, plan *p, const gemm_call *g, cudaStream_t stream)
{
    const void *onto = g->plus ? g->plus : g->c;
    float alpha = g->alpha, beta = g->plus || p->key.add ? 1 : 0;
    return mm->lt.matmul(mm->handle, p->desc, &alpha, g->b, p->a, g->a, p->b, &beta, onto, p->c,
                         g->c, p->c, &p->algo, mm->work, p->work, stream) == CUBLAS_STATUS_SUCCESS;
}

/* ---- self-test under MPS ---- */

/* Sets flag unless every x is `want`. */
template <class T> void check_all(int *flag, const T *x, float want, int64_t n)
{
    each_kernel<<<256, THREADS>>>(n, [=] __device__(int64_t i) {
        if (to_float(x[i]) != want) *flag = 1;
    });
}

/* A product of matrices of ones, whose elements must all be k: one with several tiles per SM, one
 * that may use split-K.
 * C starts as NaN, so a tile that is skipped shows. */
bool test_product(cublas_state *mm, const bf16 *x, void *c, int *flag, bool split)
{
    gemm_shape k;
    memset(&k, 0, sizeof k);
    k.m = split ? 512 : 8192, k.n = split ? 256 : 512, k.k = split ? 8192 : 256, k.batch = 1;
    k.lda = split ? k.m : k.k, k.ldb = split ? k.n : k.k, k.ldc = k.n;
    k.ta = split, k.tb = !split;
    k.dtype = FV_BF16, k.ct = split ? FV_F32 : FV_BF16, k.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    k.align_a = k.align_b = k.align_c = 256;
    gemm_call g = {x, x, NULL, NULL, c, NULL, 1};
    int off = 1;
    plan *p = plan_for(mm, &k);
    cudaMemset(c, 0xff, (size_t)(k.m * k.n) * 4); /* NaN */
    cudaMemset(flag, 0, sizeof *flag);
    if (!p->can || !run(mm, p, &g, 0)) return false;
    if (split)
        check_all(flag, (const float *)c, (float)k.k, k.m * k.n);
    else
        check_all(flag, (const bf16 *)c, (float)k.k, k.m * k.n);
    return cudaMemcpy(&off, flag, sizeof off, cudaMemcpyDeviceToHost) == cudaSuccess && !off;
}

bool self_test(cublas_state *mm)
{
    const int64_t n = 8192 * 512;
    bf16 *x = NULL;
    void *c = NULL;
    int *flag = NULL;
    bool ok = cudaMalloc((void **)&x, n * sizeof *x) == cudaSuccess &&
              cudaMalloc(&c, n * 4) == cudaSuccess &&
              cudaMalloc((void **)&flag, sizeof *flag) == cudaSuccess;
    if (ok)
        each_kernel<<<256, THREADS>>>(n, [=] __device__(int64_t i) { x[i] = from_float<bf16>(1); });
    ok = ok && test_product(mm, x, c, flag, false) && test_product(mm, x, c, flag, true);
    cudaFree(x);
    cudaFree(c);
    cudaFree(flag);
    for (int i = 0; i < PLANS; i++) plan_free(&mm->lt, &mm->plans[i]);
    cudaGetLastError();
    return ok;
}

bool under_mps(int number)
{
#if CUDART_VERSION >= 12040
    int on = 0;
    return cudaDeviceGetAttribute(&on, cudaDevAttrMpsEnabled, number) == cudaSuccess && on;
#else
    return getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") != NULL;
#endif
}

/* ---- cublas_state ---- */

/* The device's cuBLASLt, created at the first product; NULL and a stream error if that fails. */
cublas_state *open_cublas(fv_stream *s)
{
    device *d = device_of(s);
    std::lock_guard<std::mutex> hold(d->open_mutex);
    if (d->cublas) return d->cublas;
    cublas_state *p = new (std::nothrow) cublas_state{};
    if (!p) {
        d->host.fail(s, FV_ENOMEM, "gemm: out of memory");
        return NULL;
    }
    if (!load_library(&p->lt)) {
        d->host.fail(s, FV_EDEVICE, "gemm: libcublasLt.so.%d cannot be loaded: %s",
                     CUDART_VERSION / 1000, dlerror());
        delete p;
        return NULL;
    }
    cudaSetDevice(d->number);
    p->sm_count = d->sm_count;
    if (p->lt.create(&p->handle) != CUBLAS_STATUS_SUCCESS ||
        cudaMalloc(&p->work, LT_WORK) != cudaSuccess) {
        cudaGetLastError();
        d->host.fail(s, FV_ENOMEM, "gemm: cuBLASLt found no memory on the device");
        fv_cuda_cublas_free(p);
        return NULL;
    }
    if (under_mps(d->number) && !self_test(p)) {
        d->host.fail(s, FV_EDEVICE,
                     "gemm: cuBLASLt gives wrong results on the %d multiprocessors that MPS "
                     "leaves this process; set "
                     "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE to 100",
                     d->sm_count);
        fv_cuda_cublas_free(p);
        return NULL;
    }
    return d->cublas = p;
}

/* Launches a plan; false: it was refused, now and later, and the caller falls back. */
bool run_plan(fv_stream *s, cublas_state *mm, plan *p, const gemm_call *g)
{
    if (!p->can) return false;
    if (g->bias)
        mm->lt.desc_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    if (g->pre)
        mm->lt.desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->pre, sizeof g->pre);
    cudaSetDevice(device_of(s)->number);
    p->can = run(mm, p, g, stream_of(s));
    fv_cuda_check_launch(s, "gemm");
    return p->can;
}

/* C (+)= A B over the whole tiles of K, then C += A B over the rest. */
bool run_in_two(fv_stream *s, cublas_state *mm, const gemm_shape *shape, const gemm_call *g)
{
    gemm_shape part = *shape;
    gemm_call call = *g;
    int64_t rest = shape->k % K_TILE, whole = shape->k - rest;
    part.k = whole;
    if (!run_plan(s, mm, plan_for(mm, &part), g)) return false;
    part.k = rest, part.add = 1, call.plus = NULL;
    call.a = (const bf16 *)g->a + whole * (shape->ta ? shape->lda : 1);
    call.b = (const bf16 *)g->b + whole * (shape->tb ? 1 : shape->ldb);
    part.align_a = fv_cuda_alignment(call.a), part.align_b = fv_cuda_alignment(call.b);
    if (!run_plan(s, mm, plan_for(mm, &part), &call))
        device_of(s)->host.fail(s, FV_EDEVICE, "gemm: cuBLASLt refuses the last %lld of %lld terms",
                                (long long)rest, (long long)shape->k);
    return true;
}
} // namespace

/* The lock covers bias and pre pointers, which are attributes of the shared descriptor. */
bool fv_cuda_multiply(fv_stream *s, const gemm_shape *shape, const gemm_call *g)
{
    if (requested("plain")) return false;
    cublas_state *mm = open_cublas(s);
    if (!mm) return true;
    std::lock_guard<std::mutex> hold(mm->lock);
    plan *p = plan_for(mm, shape);
    return p->in_two ? run_in_two(s, mm, shape, g) : run_plan(s, mm, p, g);
}
