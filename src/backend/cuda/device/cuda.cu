/* cuda.cu - an NVIDIA GPU as a device: its memory, its stream, what went wrong on it, and its
 * tables of kernels.
 *
 * Memory comes from the driver's stream-ordered pool, which keeps what was given back; with one
 * stream for everything a block can be handed out again before the kernels that used it have
 * run. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cuda.h"

#define ROWS_OF_FAULTS 64 /* streams beyond so many share the last row */
#define MIN_SM 80
#define HALF_STAGE ((size_t)4 << 20) /* bytes */

/* ---- errors ---- */

/* A device that keeps no steps was asked to wait for each kernel. */
static bool waits(const fv_stream *s) { return !s->dev->backend->capture; }

/* A sentence for the context.  After an error of this kind the device is lost to the process, and
 * which of the kernels that were under way has failed cannot be asked any more: it is known where
 * each was waited for. */
static void lost(fv_stream *s, const char *kernel, cudaError_t rc)
{
    device_of(s)->host.fail(
        s, rc == cudaErrorMemoryAllocation ? FV_ENOMEM : FV_EDEVICE, "cuda: %s (%s) %s %s%s",
        cudaGetErrorString(rc), cudaGetErrorName(rc), waits(s) ? "in" : "in or before",
        kernel ? kernel : "the first kernel",
        waits(s) ? "" : "; with CUDA_LAUNCH_BLOCKING=1 in the environment the kernel is named");
}

void fv_cuda_check_launch(fv_stream *s, const char *kernel)
{
    stream_state_of(s)->last = kernel;
    cudaError_t rc = cudaGetLastError();
    if (rc == cudaSuccess && waits(s)) rc = cudaStreamSynchronize(device_of(s)->stream);
    if (rc == cudaSuccess) return;
    if (stream_state_of(s)->capturing)
        stream_state_of(s)->capture_broken = true;
    else
        lost(s, kernel, rc);
}

bool fv_cuda_set_max_smem(fv_stream *s, const char *name, const void *kernel, size_t bytes)
{
    const device *d = device_of(s);
    if (bytes <= 48 << 10) return true; /* every chip has that */
    if (bytes <= d->max_smem) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        return true;
    }
    d->host.fail(
        s, FV_EMISSING,
        "%s: rows or heads so wide take %zu bytes of shared memory in this dtype, %s has %zu", name,
        bytes, d->level, d->max_smem);
    return false;
}

static void raise_fault(fv_stream *s, int which, const fault *f)
{
    const fv_cuda_host *h = &device_of(s)->host;
    long long index = (long long)(f->where >> 32), limit = f->limit;
    int number = (int)(uint32_t)f->where;
    switch (which) {
    case FAULT_GATHER:
        h->fail(s, FV_EARG, "gather: id %d at place %lld is outside 0..%lld", number, index,
                limit - 1);
        break;
    case FAULT_GATHER_BWD:
        h->fail(s, FV_EARG, "gather_bwd: id %d at place %lld is outside 0..%lld", number, index,
                limit - 1);
        break;
    case FAULT_LABEL:
        h->fail(s, FV_EARG, "cross_entropy: label %d of row %lld is outside 0..%lld", number, index,
                limit - 1);
        break;
    case FAULT_LENS:
        h->fail(s, FV_EARG, "attention: lens[%lld] is %d, there are %lld keys", index, number,
                limit);
        break;
    case FAULT_CACHE:
        h->fail(s, FV_EARG, "cache_write: %lld rows at %d do not fit a cache of %lld", f->more,
                number, limit);
        break;
    case FAULT_RNNT:
        h->fail(s, FV_EARG,
                "rnnt: sequence %lld has %d frames and %lld labels, room is for %lld and %lld",
                index, number, f->more, limit >> 32, limit & 0xffffffff);
        break;
    case FAULT_RNNT_LABEL:
        h->fail(s, FV_EARG, "rnnt: label %d of sequence %lld is the blank or outside 0..%lld",
                number, index, limit - 1);
        break;
    }
}

/* ---- memory and streams ---- */

static void enter(const device *d) { cudaSetDevice(d->number); }

static void *mem_alloc(fv_device *dev, size_t bytes)
{
    device *d = (device *)dev->impl;
    void *p = NULL;
    enter(d);
    if (cudaMallocAsync(&p, bytes ? bytes : 1, d->stream) == cudaSuccess) return p;
    cudaGetLastError();
    /* What the pool keeps may be in pieces too small: give them back and try once more. */
    cudaMemPool_t pool;
    cudaStreamSynchronize(d->stream);
    if (cudaDeviceGetDefaultMemPool(&pool, d->number) == cudaSuccess) cudaMemPoolTrimTo(pool, 0);
    if (cudaMallocAsync(&p, bytes ? bytes : 1, d->stream) == cudaSuccess) return p;
    cudaGetLastError();
    return NULL;
}

static void mem_release(fv_device *dev, void *p, size_t bytes)
{
    (void)bytes;
    device *d = (device *)dev->impl;
    enter(d);
    cudaFreeAsync(p, d->stream);
}

static fv_status stream_open(fv_stream *s, fv_err *e)
{
    device *d = device_of(s);
    stream_state *l = new (std::nothrow) stream_state{};
    if (!l) return d->host.refuse(e, FV_ENOMEM, "device cuda: out of memory");
    while (l->row < ROWS_OF_FAULTS - 1 &&
           (__atomic_fetch_or(&d->in_use, 1ull << l->row, __ATOMIC_ACQ_REL) >> l->row & 1))
        l->row++;
    s->impl = l;
    return FV_OK;
}

static void stream_close(fv_stream *s)
{
    stream_state *l = stream_state_of(s);
    if (l && l->capture_stream) cudaStreamDestroy(l->capture_stream);
    if (l) fv_cuda_megakernel_free(l->deferred);
    if (l && l->row < ROWS_OF_FAULTS - 1)
        __atomic_fetch_and(&device_of(s)->in_use, ~(1ull << l->row), __ATOMIC_ACQ_REL);
    delete l;
    s->impl = NULL;
}

static void sync(fv_stream *s)
{
    const device *d = device_of(s);
    stream_state *l = stream_state_of(s);
    if (!l) return;
    if (l->capturing) {
        l->capture_broken = true;
        return;
    }
    enter(d);
    cudaError_t rc = cudaStreamSynchronize(d->stream);
    if (rc != cudaSuccess) lost(s, l->last, rc);
    fault *f = faults_of(s);
    for (int i = 0; i < FAULTS; i++) {
        if (f[i].where == ~0ull) continue;
        raise_fault(s, i, &f[i]);
        f[i].where = ~0ull;
    }
}

static void copy(fv_stream *s, void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                 const char *name)
{
    if (!bytes || s->err.code) return;
    cudaStream_t on = stream_of(s);
    if (stream_state_of(s)->capturing && kind != cudaMemcpyDeviceToDevice) {
        stream_state_of(s)->capture_broken =
            true; /* the host's memory will be another's when this comes again */
        if (kind == cudaMemcpyDeviceToHost) return;
        on = device_of(s)->stream; /* who uploads something once counts on it */
    }
    enter(device_of(s));
    cudaMemcpyAsync(dst, src, bytes, kind, on);
    fv_cuda_check_launch(s, name);
}

static bool open_stage(device *d)
{
    if (d->stage) return true;
    bool ok = true;
    for (int i = 0; i < 2; i++)
        ok = ok &&
             (d->half_copied[i] ||
              cudaEventCreateWithFlags(&d->half_copied[i], cudaEventDisableTiming) == cudaSuccess);
    if (ok &&
        cudaHostAlloc((void **)&d->stage, 2 * HALF_STAGE, cudaHostAllocDefault) != cudaSuccess)
        d->stage = NULL;
    cudaGetLastError();
    return d->stage != NULL;
}

/* Room for bytes in pinned memory.  It goes round: a half is filled again once what was in it has
 * left. */
static char *stage_for(device *d, size_t bytes)
{
    if (d->staged + bytes > HALF_STAGE) {
        cudaEventRecord(d->half_copied[d->half], d->stream);
        d->half = 1 - d->half;
        cudaEventSynchronize(d->half_copied[d->half]);
        d->staged = 0;
    }
    char *at = d->stage + (size_t)d->half * HALF_STAGE + d->staged;
    d->staged += (bytes + 15) / 16 * 16;
    return at;
}

/* The driver copies from memory that is not pinned as well, but may wait for the device before it
 * does. */
static void upload(fv_stream *s, void *dst, const void *host, size_t bytes)
{
    device *d = device_of(s);
    std::lock_guard<std::mutex> hold(d->stage_mutex);
    enter(d);
    if (bytes <= HALF_STAGE && open_stage(d)) host = memcpy(stage_for(d, bytes), host, bytes);
    copy(s, dst, host, bytes, cudaMemcpyHostToDevice, "upload");
}

static void download(fv_stream *s, void *host, const void *src, size_t bytes)
{
    copy(s, host, src, bytes, cudaMemcpyDeviceToHost, "download");
    sync(s);
    /* nobody may act on what was there before */
    if (s->err.code || stream_state_of(s)->capturing) memset(host, 0, bytes);
}

/* cudaMemcpyAsync leaves overlapping moves undefined, so those go through scratch. */
static void move(fv_stream *s, void *dst, const void *src, size_t bytes)
{
    const char *to = (const char *)dst, *from = (const char *)src;
    if (!bytes || to == from) return;
    if (to + bytes <= from || from + bytes <= to) {
        copy(s, dst, src, bytes, cudaMemcpyDeviceToDevice, "move");
        return;
    }
    void *between = device_of(s)->host.work(s, bytes);
    if (!between) return;
    copy(s, between, src, bytes, cudaMemcpyDeviceToDevice, "move");
    copy(s, dst, between, bytes, cudaMemcpyDeviceToDevice, "move");
}

static void zero(fv_stream *s, void *dst, size_t bytes)
{
    if (!bytes || s->err.code) return;
    enter(device_of(s));
    cudaMemsetAsync(dst, 0, bytes, stream_of(s));
    fv_cuda_check_launch(s, "zero");
}

static void device_close(fv_device *dev)
{
    device *d = (device *)dev->impl;
    if (!d) return;
    enter(d);
    if (d->stream) cudaStreamSynchronize(d->stream);
    fv_cuda_cudnn_free(d->cudnn);
    fv_cuda_products_free(d->mm);
    if (d->faults) cudaFreeHost(d->faults);
    if (d->stage) cudaFreeHost(d->stage);
    for (int i = 0; i < 2; i++)
        if (d->half_copied[i]) cudaEventDestroy(d->half_copied[i]);
    if (d->flagged) cudaFree(d->flagged);
    if (d->stream) cudaStreamDestroy(d->stream);
    delete d;
    dev->impl = NULL;
}

/* What the driver has left, and what the pool keeps and could hand out. */
static void memory(fv_device *dev, size_t *left, size_t *all)
{
    device *d = (device *)dev->impl;
    uint64_t reserved = 0, used = 0;
    cudaMemPool_t pool;
    enter(d);
    *left = *all = 0;
    if (cudaMemGetInfo(left, all) == cudaSuccess &&
        cudaDeviceGetDefaultMemPool(&pool, d->number) == cudaSuccess &&
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) ==
            cudaSuccess &&
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) == cudaSuccess)
        *left += (size_t)(reserved - used);
    cudaGetLastError();
}

/* ---- steps that are kept and run again ---- */

/* On a stream of its own: what other threads start meanwhile on the device's is none of this
 * step. */
static bool capture(fv_stream *s)
{
    stream_state *l = stream_state_of(s);
    enter(device_of(s));
    if (!l->capture_stream &&
        cudaStreamCreateWithFlags(&l->capture_stream, cudaStreamNonBlocking) != cudaSuccess)
        l->capture_stream = NULL;
    l->capturing = l->capture_stream &&
                   cudaStreamBeginCapture(l->capture_stream, cudaStreamCaptureModeRelaxed) ==
                       cudaSuccess;
    l->capture_broken = false;
    cudaGetLastError();
    return l->capturing;
}

static void *captured(fv_stream *s)
{
    stream_state *l = stream_state_of(s);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t captured_graph = NULL;
    if (l->deferred) fv_cuda_launch_deferred(s);
    l->capturing = false;
    cudaError_t rc = cudaStreamEndCapture(l->capture_stream, &graph);
    if (rc == cudaSuccess && !l->capture_broken)
        rc = cudaGraphInstantiate(&captured_graph, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    return rc == cudaSuccess && !l->capture_broken ? captured_graph : NULL;
}

static void replay(fv_stream *s, void *captured_graph)
{
    if (s->err.code) return;
    enter(device_of(s));
    cudaGraphLaunch((cudaGraphExec_t)captured_graph, device_of(s)->stream);
    fv_cuda_check_launch(s, "a kept step");
}

/* A graph that is still running may be destroyed: the driver keeps it until it is done. */
static void free_graph(fv_device *dev, void *captured_graph)
{
    enter((device *)dev->impl);
    cudaGraphExecDestroy((cudaGraphExec_t)captured_graph);
}

static int choices(const fv_device *dev, char (*lines)[160], int most)
{
    (void)dev;
    return fv_cuda_attention_describe(lines, most);
}

static const fv_backend backend = {
    "cuda", mem_alloc,    mem_release, stream_open, stream_close, upload, download,   move,    zero,
    sync,   device_close, memory,      capture,     captured,     replay, free_graph, choices,
};

/* The same, but no step is kept: what is in it could not be waited for. */
static const fv_backend waiting = {
    "cuda", mem_alloc,    mem_release, stream_open, stream_close, upload, download, move,    zero,
    sync,   device_close, memory,      NULL,        NULL,         NULL,   NULL,     choices,
};

/* The driver looks at this too, but a kept step is one to it. */
static bool one_by_one()
{
    const char *requested = getenv("CUDA_LAUNCH_BLOCKING");
    return requested && *requested && strcmp(requested, "0");
}

/* ---- tables ---- */

template <class T> static void fill(fv_kernels *k)
{
    fv_cuda_attention_rows<T>(k);
    fv_cuda_attention_dispatch<T>(k);
    fv_cuda_batchnorm<T>(k);
    fv_cuda_beam<T>(k);
    fv_cuda_binary<T>(k);
    fv_cuda_sample<T>(k);
    fv_cuda_conv<T>(k);
    fv_cuda_copy<T>(k);
    fv_cuda_elementwise<T>(k);
    fv_cuda_embed<T>(k);
    fv_cuda_entropy<T>(k);
    fv_cuda_gather<T>(k);
    fv_cuda_gemm<T>(k);
    fv_cuda_ids<T>(k);
    fv_cuda_norm<T>(k);
    fv_cuda_optim<T>(k);
    fv_cuda_reduce<T>(k);
    fv_cuda_rnnt<T>(k);
    fv_cuda_rope<T>(k);
    fv_cuda_fused_linear<T>(k);
    fv_cuda_softmax<T>(k);
    fv_cuda_topk<T>(k);
}

static void tables(device *d, fv_device *dev)
{
    for (int i = 0; i < FV_FLOATS; i++) {
        d->k[i].dtype = (fv_dtype)i;
        dev->k[i] = &d->k[i];
    }
    fill<float>(&d->k[FV_F32]);
    fill<bf16>(&d->k[FV_BF16]);
    fill<f16>(&d->k[FV_F16]);
    fv_cuda_double(&d->k[FV_F64]);
}

/* ---- opening ---- */

/* How many devices there are, or -1 and why there are none. */
static int count(const fv_cuda_host *h, fv_err *e)
{
    int n = 0, driver = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    cudaGetLastError();
    if (rc == cudaSuccess && n > 0) return n;
    cudaDriverGetVersion(&driver);
    if (!driver)
        h->refuse(e, FV_EDEVICE, "device cuda: no NVIDIA driver is loaded");
    else if (rc == cudaErrorInsufficientDriver)
        h->refuse(e, FV_EDEVICE,
                  "device cuda: the driver is made for CUDA %d.%d, this build needs %d.%d",
                  driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                  CUDART_VERSION % 1000 / 10);
    else
        h->refuse(e, FV_EDEVICE, "device cuda: no CUDA device was found (%s)",
                  cudaGetErrorString(rc));
    return -1;
}

static __global__ void any_kernel() {}

/* Kernels know how to wait for one another (pdl_wait) where they were compiled for chips
 * that can; what the driver made of the form for older chips does not, whatever it runs on. */
static cudaError_t know_waiting(bool *do_they)
{
    cudaFuncAttributes a = {};
    cudaError_t rc = cudaFuncGetAttributes(&a, any_kernel);
    *do_they = a.ptxVersion >= 90;
    return rc;
}

static cudaError_t start(device *d, const cudaDeviceProp *p)
{
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX; /* the pool gives nothing back to the driver by itself */
    cudaError_t rc = cudaSetDevice(d->number);
    d->sm_count = p->multiProcessorCount;
    d->max_smem = p->sharedMemPerBlockOptin;
    if (rc == cudaSuccess) rc = know_waiting(&d->supports_pdl);
    d->hopper = p->major == 9 && p->minor == 0;
    snprintf(d->level, sizeof d->level, "sm_%d%d", p->major, p->minor);
    if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    if (rc == cudaSuccess)
        rc = cudaHostAlloc((void **)&d->faults, ROWS_OF_FAULTS * FAULTS * sizeof(fault),
                           cudaHostAllocMapped);
    size_t flagged = (size_t)FLAGGED_AREAS * FLAGGED_WORDS * sizeof *d->flagged,
           tickets = (TICKETS + MEGAKERNEL_TICKETS) * sizeof *d->tickets;
    if (rc == cudaSuccess) rc = cudaMalloc((void **)&d->flagged, flagged + tickets);
    /* which waits for no other */
    if (rc == cudaSuccess) rc = cudaMemsetAsync(d->flagged, 0, flagged + tickets, d->stream);
    d->tickets = (unsigned *)(d->flagged + FLAGGED_AREAS * FLAGGED_WORDS);
    if (rc == cudaSuccess) rc = cudaDeviceGetDefaultMemPool(&pool, d->number);
    if (rc == cudaSuccess)
        rc = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
    for (int i = 0; rc == cudaSuccess && i < ROWS_OF_FAULTS * FAULTS; i++)
        d->faults[i].where = ~0ull;
    return rc;
}

static fv_status same_build(const fv_cuda_host *h, size_t abi, fv_err *e)
{
    if (abi == FV_CUDA_ABI) return FV_OK;
    return h->refuse(e, FV_EDEVICE,
                     "device cuda: the backend was built from other sources than the library; "
                     "build both together");
}

FV_API fv_status fv_cuda_open(fv_device *dev, const fv_cuda_host *host, size_t abi, int number,
                              fv_err *e)
{
    if (same_build(host, abi, e)) return FV_EDEVICE;
    int n = count(host, e);
    if (n < 0) return FV_EDEVICE;
    if (number >= n)
        return host->refuse(e, FV_EDEVICE, "device cuda:%d: there are %d, counted from 0", number,
                            n);
    cudaDeviceProp p;
    cudaError_t rc = cudaGetDeviceProperties(&p, number);
    if (rc == cudaSuccess && p.major * 10 + p.minor < MIN_SM)
        return host->refuse(e, FV_EDEVICE, "device cuda:%d: %s is sm_%d%d, kernels begin at sm_%d",
                            number, p.name, p.major, p.minor, MIN_SM);
    device *d = new (std::nothrow) device{};
    if (!d) return host->refuse(e, FV_ENOMEM, "device cuda: out of memory");
    d->host = *host;
    d->number = number;
    dev->impl = d;
    if (fv_cuda_attention_select(d, e)) {
        device_close(dev);
        return e ? e->code : FV_EDEVICE;
    }
    if (rc == cudaSuccess) rc = start(d, &p);
    if (rc != cudaSuccess) {
        device_close(dev);
        cudaGetLastError(); /* the next device is not to blame */
        return host->refuse(e, FV_EDEVICE, "device cuda:%d: %s", number, cudaGetErrorString(rc));
    }
    dev->backend = one_by_one() ? &waiting : &backend;
    dev->level = d->level;
    dev->threads = 1;
    tables(d, dev);
    return FV_OK;
}

FV_API int fv_cuda_list(const fv_cuda_host *host, size_t abi, char (*lines)[128], int most,
                        fv_err *e)
{
    int n = same_build(host, abi, e) ? -1 : count(host, e);
    for (int i = 0; i < n && i < most; i++) {
        cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess) p = cudaDeviceProp{};
        snprintf(lines[i], sizeof lines[i], "%.80s, sm_%d%d, %.1f GiB", p.name, p.major, p.minor,
                 (double)p.totalGlobalMem / (1 << 30));
    }
    return n;
}
