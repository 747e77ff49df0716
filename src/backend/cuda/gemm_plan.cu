/* gemm_plan.cu - how cuBLASLt does a product: its library, its algorithms kept by shape, and the fastest of them.
 *
 * Looking up an algorithm takes longer than a small product, so plans are kept by shape.  The library's guess is not always
 * its best, so a large product is timed with others of its algorithms the first time it comes.  Only those that give the
 * guess's bits are taken: which one wins may differ from run to run, what is computed may not.  The library is opened with the
 * first product: a program that only asks which devices there are does not wait for 600 MB of kernels. */
#include "gemm_plan.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstring>
#include <new>

#define LT_WORK ((size_t)32 << 20) /* bytes; what NVIDIA advises for Hopper */
#define PLANS 1024                 /* a power of two */
#define TRIES 8                    /* places a plan may stand at */
#define CANDIDATES 2               /* algorithms that are timed, with a workspace and without: each must first be loaded */
#define WORTH_TIMING 1.5e10        /* operations */
#define MOST_TIMED 64              /* products: where lengths vary there is no end of shapes */

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

struct plan {
    gemm_shape key;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t work;
    bool made, can; /* can: there is an algorithm */
    bool timed;     /* or not worth it */
};

struct products {
    std::mutex lock; /* a device may be shared by threads */
    lt_library lt;
    cublasLtHandle_t handle;
    void *work;
    plan plans[PLANS];
    unsigned turn;
    int timed; /* products, so far */
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

/* Its first factor is our b, its second our a: see gemm.cu. */
static bool describe(const lt_library *lt, plan *p)
{
    const gemm_shape *k = &p->key;
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

/* Up to `many` algorithms with at most so much workspace, the library's guess first. */
static int propose(const products *mm, const plan *p, cublasLtMatmulHeuristicResult_t *out, int many, size_t work)
{
    const lt_library *lt = &mm->lt;
    cublasLtMatmulPreference_t prefer = NULL;
    int found = 0;
    uint32_t a = (uint32_t)p->key.align_b, b = (uint32_t)p->key.align_a, c = (uint32_t)p->key.align_c;
    if (lt->prefer_create(&prefer) != CUBLAS_STATUS_SUCCESS) return 0;
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work, sizeof work);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c);
    lt->prefer_set(prefer, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c);
    cublasStatus_t rc = lt->choose(mm->handle, p->desc, p->a, p->b, p->c, p->c, prefer, many, out, &found);
    lt->prefer_destroy(prefer);
    return rc == CUBLAS_STATUS_SUCCESS ? found : 0;
}

static bool pick(const products *mm, plan *p)
{
    cublasLtMatmulHeuristicResult_t guess;
    const gemm_shape *k = &p->key;
    if (!propose(mm, p, &guess, 1, LT_WORK)) return false;
    p->algo = guess.algo;
    p->work = guess.workspaceSize;
    p->timed = k->add || k->batch > 1 || k->ldc % 4 || 2.0 * (double)k->m * (double)k->n * (double)k->k < WORTH_TIMING;
    return true;
}

static plan *plan_for(products *mm, const gemm_shape *key)
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

static bool multiply(const products *mm, const plan *p, const gemm_call *g, void *to, const cublasLtMatmulAlgo_t *algo,
                     size_t work, cudaStream_t stream)
{
    const void *onto = g->plus ? g->plus : g->c;
    float alpha = g->alpha, beta = g->plus || p->key.add ? 1 : 0;
    return mm->lt.matmul(mm->handle, p->desc, &alpha, g->b, p->a, g->a, p->b, &beta, onto, p->c, to, p->c, algo, mm->work, work,
                         stream) == CUBLAS_STATUS_SUCCESS;
}

/* ---- the fastest of those that give the same bits ---- */

__global__ static void differ(int *flag, const uint32_t *a, const uint32_t *b, int64_t cols, int64_t step, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
        if (i % step < cols && a[i] != b[i]) *flag = 1;
}

struct stopwatch {
    cudaEvent_t from, to;
    char *out; /* where candidates write */
    int *flag; /* device: what they wrote is not what was there */
};

/* Milliseconds of one product, or -1 where it was refused or gives other bits than c has. */
static float time_of(const products *mm, const plan *p, const gemm_call *g, const cublasLtMatmulHeuristicResult_t *h,
                     const stopwatch *w, float least, cudaStream_t stream)
{
    const gemm_shape *k = &p->key;
    int64_t words = k->ct == FV_F32 ? 4 : 2, cols = k->n * words / 4, step = k->ldc * words / 4;
    int off = 0, times = least > 0.3f ? 2 : 8;
    float ms = -1;
    bool ok = multiply(mm, p, g, w->out, &h->algo, h->workspaceSize, stream);
    if (!ok) return -1;
    cudaMemsetAsync(w->flag, 0, sizeof off, stream);
    differ<<<1024, 256, 0, stream>>>(w->flag, (const uint32_t *)g->c, (const uint32_t *)w->out, cols, step, k->m * step);
    cudaMemcpyAsync(&off, w->flag, sizeof off, cudaMemcpyDeviceToHost, stream);
    cudaEventRecord(w->from, stream);
    for (int i = 0; i < times; i++) multiply(mm, p, g, w->out, &h->algo, h->workspaceSize, stream);
    cudaEventRecord(w->to, stream);
    if (cudaStreamSynchronize(stream) != cudaSuccess || off) return -1;
    return cudaEventElapsedTime(&ms, w->from, w->to) == cudaSuccess ? ms / (float)times : -1;
}

/* After the product has been done as the library guessed, which is what c has. */
static void choose_fastest(products *mm, plan *p, const gemm_call *g, cudaStream_t stream)
{
    cublasLtMatmulHeuristicResult_t all[2 * CANDIDATES];
    stopwatch w = {};
    float least = -1;
    int found = propose(mm, p, all, CANDIDATES, LT_WORK);
    found += propose(mm, p, all + found, CANDIDATES, 0);
    size_t bytes = (size_t)(p->key.m * p->key.ldc) * (p->key.ct == FV_F32 ? 4 : 2);
    p->timed = true;
    mm->timed++;
    bool ok = cudaEventCreate(&w.from) == cudaSuccess && cudaEventCreate(&w.to) == cudaSuccess &&
              cudaMallocAsync((void **)&w.out, bytes, stream) == cudaSuccess &&
              cudaMallocAsync((void **)&w.flag, sizeof *w.flag, stream) == cudaSuccess;
    for (int i = 0; ok && i < found; i++) {
        float ms = time_of(mm, p, g, &all[i], &w, least, stream);
        if (ms < 0 || (least >= 0 && ms >= least)) continue;
        least = ms;
        p->algo = all[i].algo;
        p->work = all[i].workspaceSize;
    }
    if (w.out) cudaFreeAsync(w.out, stream);
    if (w.flag) cudaFreeAsync(w.flag, stream);
    if (w.from) cudaEventDestroy(w.from);
    if (w.to) cudaEventDestroy(w.to);
    cudaGetLastError(); /* without memory the guess stays */
}

bool fv_cuda_multiply(fv_stream *s, const gemm_shape *shape, const gemm_call *g)
{
    products *mm = open_products(s);
    if (!mm) return true;
    std::lock_guard<std::mutex> hold(mm->lock);
    plan *p = plan_for(mm, shape);
    if (!p->can) return false;
    if (g->bias) mm->lt.desc_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    if (g->pre) mm->lt.desc_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->pre, sizeof g->pre);
    cudaSetDevice(device_of(s)->number);
    p->can = multiply(mm, p, g, g->c, &p->algo, p->work, stream_of(s));
    fv_cuda_started(s, "gemm");
    if (p->can && !p->timed && mm->timed < MOST_TIMED && !lane_of(s)->keeping) choose_fastest(mm, p, g, stream_of(s));
    return p->can; /* refused after all: the plain kernel takes it, now and later */
}
