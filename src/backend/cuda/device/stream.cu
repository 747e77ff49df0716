/* stream.cu - the fv_backend of a CUDA device: memory, streams, copies, fault records, captured
 * graphs.
 *
 * Memory comes from the driver's stream-ordered pool (cudaMallocAsync), which never shrinks by
 * itself.  As everything runs on one stream, a freed block can be handed out again before the
 * kernels that used it have run.
 *
 * Captured steps.  A step whose shapes repeat is recorded on a second stream, so that launches of
 * other threads on the device's stream do not end up in the graph.  Copies between host and device
 * cannot be replayed (host memory will have other contents), so they mark the capture as broken and
 * the step is run eagerly. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cuda.h"
#include "pages.h"
#include "stream.h"

#define HALF_STAGE ((size_t)8 << 20) /* bytes */
#define LANDING ((size_t)1 << 20)

namespace
{
/* ---- errors ---- */

/* The backend for CUDA_LAUNCH_BLOCKING=1 has no capture. */
bool launches_block(const fv_stream *s) { return !s->dev->backend->capture; }

/* A sticky CUDA error: the context is unusable from here on.  The driver does not say which of the
 * kernels in flight failed; only with blocking launches is it the last one. */
void fail_device(fv_stream *s, const char *kernel, cudaError_t rc)
{
    device_of(s)->host.fail(
        s, rc == cudaErrorMemoryAllocation ? FV_ENOMEM : FV_EDEVICE, "cuda: %s (%s) %s %s%s",
        cudaGetErrorString(rc), cudaGetErrorName(rc), launches_block(s) ? "in" : "in or before",
        kernel ? kernel : "the first kernel",
        launches_block(s) ? ""
                          : "; with CUDA_LAUNCH_BLOCKING=1 in the environment the kernel is named");
}
} // namespace

void fv_cuda_check_launch(fv_stream *s, const char *kernel)
{
    stream_state_of(s)->last = kernel;
    cudaError_t rc = cudaGetLastError();
    if (rc == cudaSuccess && launches_block(s)) rc = cudaStreamSynchronize(device_of(s)->stream);
    if (rc == cudaSuccess) return;
    if (stream_state_of(s)->capturing)
        stream_state_of(s)->capture_broken = true;
    else
        fail_device(s, kernel, rc);
}

bool fv_cuda_set_max_smem(fv_stream *s, const char *name, const void *kernel, size_t bytes)
{
    const device *d = device_of(s);
    /* the default limit is 48 KiB with what the kernel declares itself */
    if (bytes <= 40 << 10) return true;
    if (bytes <= d->max_smem) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        return true;
    }
    d->host.fail(
        s, FV_EMISSING,
        "%s: rows or heads of this width need %zu bytes of shared memory in this dtype, %s has %zu",
        name, bytes, d->level, d->max_smem);
    return false;
}

namespace
{
/* Turns a fault record into the stream's error.  The wording is that of the CPU kernels.
 * A kernel cannot return an error, so it writes what it met (index, number, limit) into a record
 * in mapped host memory; the first one by index wins, whatever order blocks run in. */
void raise_fault(fv_stream *s, int which, const fault *f)
{
    const fv_cuda_host *h = &device_of(s)->host;
    long long index = (long long)(f->where >> 32), limit = f->limit;
    int number = (int)(uint32_t)f->where;
    switch (which) {
    case FAULT_GATHER:
        h->fail(s, FV_EARG, "gather: id %d at position %lld is outside 0..%lld", number, index,
                limit - 1);
        break;
    case FAULT_GATHER_BWD:
        h->fail(s, FV_EARG, "gather_bwd: id %d at position %lld is outside 0..%lld", number, index,
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
    case FAULT_CTC:
        h->fail(s, FV_EARG,
                "%s: sequence %lld has %d frames and %lld labels, the tensors hold %lld and %lld",
                which == FAULT_CTC ? "ctc" : "rnnt", index, number, f->more, limit >> 32,
                limit & 0xffffffff);
        break;
    case FAULT_RNNT_LABEL:
    case FAULT_CTC_LABEL:
        h->fail(s, FV_EARG, "%s: label %d of sequence %lld is the blank or outside 0..%lld",
                which == FAULT_CTC_LABEL ? "ctc" : "rnnt", number, index, limit - 1);
        break;
    }
}

/* ---- memory and streams ---- */

void set_device(const device *d) { cudaSetDevice(d->number); }

void *mem_alloc(fv_device *dev, size_t bytes)
{
    device *d = (device *)dev->impl;
    void *p = NULL;
    set_device(d);
    if (cudaMallocAsync(&p, bytes ? bytes : 1, d->stream) == cudaSuccess) return p;
    cudaGetLastError();
    /* The pool may be fragmented: return its free blocks to the driver and retry once. */
    cudaMemPool_t pool;
    cudaStreamSynchronize(d->stream);
    if (cudaDeviceGetDefaultMemPool(&pool, d->number) == cudaSuccess) cudaMemPoolTrimTo(pool, 0);
    if (cudaMallocAsync(&p, bytes ? bytes : 1, d->stream) == cudaSuccess) return p;
    cudaGetLastError();
    return NULL;
}

void mem_release(fv_device *dev, void *p, size_t bytes)
{
    (void)bytes;
    device *d = (device *)dev->impl;
    set_device(d);
    if (!fv_cuda_unreserve(d, p)) cudaFreeAsync(p, d->stream);
}

/* A row of fault records per stream, found by claiming a bit of in_use: the first row whose bit was
 * clear.  The last row is shared and never claimed.
 * All fv_streams of a device share one CUDA stream: kernels of two contexts run one after the
 * other, which is what makes scratch and the pool safe without events.  An fv_stream is an owner
 * of errors and of captures, not of a queue. */
fv_status stream_open(fv_stream *s, fv_err *e)
{
    device *d = device_of(s);
    stream_state *st = new (std::nothrow) stream_state{};
    if (!st) return d->host.refuse(e, FV_ENOMEM, "device cuda: out of memory");
    while (st->row < FAULT_ROWS - 1 &&
           (__atomic_fetch_or(&d->in_use, 1ull << st->row, __ATOMIC_ACQ_REL) >> st->row & 1))
        st->row++;
    s->impl = st;
    return FV_OK;
}

void stream_close(fv_stream *s)
{
    stream_state *st = stream_state_of(s);
    if (st && st->capture_stream) cudaStreamDestroy(st->capture_stream);
    if (st) fv_cuda_megakernel_free(st->deferred);
    if (st && st->row < FAULT_ROWS - 1)
        __atomic_fetch_and(&device_of(s)->in_use, ~(1ull << st->row), __ATOMIC_ACQ_REL);
    delete st;
    s->impl = NULL;
}

/* Waits for the device, then checks the fault records.  Not possible while capturing: the step has
 * not run, so whatever needed its result cannot be captured. */
void sync(fv_stream *s)
{
    const device *d = device_of(s);
    stream_state *st = stream_state_of(s);
    if (!st) return;
    if (st->capturing) {
        st->capture_broken = true;
        return;
    }
    set_device(d);
    cudaError_t rc = cudaStreamSynchronize(d->stream);
    if (rc != cudaSuccess) fail_device(s, st->last, rc);
    fault *f = faults_of(s);
    for (int i = 0; i < FAULTS; i++) {
        if (f[i].where == ~0ull) continue;
        raise_fault(s, i, &f[i]);
        f[i].where = ~0ull;
    }
}

void copy(fv_stream *s, void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
          const char *name)
{
    if (!bytes || s->err.code) return;
    cudaStream_t on = stream_of(s);
    if (stream_state_of(s)->capturing && kind != cudaMemcpyDeviceToDevice) {
        stream_state_of(s)->capture_broken =
            true; /* a replay would read host memory that has been reused */
        if (kind == cudaMemcpyDeviceToHost) return;
        on = device_of(s)->stream; /* one-time uploads (tables) must happen all the same */
    }
    set_device(device_of(s));
    cudaMemcpyAsync(dst, src, bytes, kind, on);
    fv_cuda_check_launch(s, name);
}

bool open_stage(device *d)
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

/* Space in the pinned staging buffer.  The halves alternate: one is reused when the event behind
 * its last copy has passed.
 *    stage:  [ half 0: filled by the host | half 1: being copied ]     then the other way round */
char *stage_for(device *d, size_t bytes)
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

/* Through pinned memory, piece by piece: from pageable memory cudaMemcpyAsync blocks until the
 * stream is idle, so that a training step would wait for the one before it. */
void upload(fv_stream *s, void *dst, const void *host, size_t bytes)
{
    device *d = device_of(s);
    std::lock_guard<std::mutex> hold(d->stage_mutex);
    set_device(d);
    bool pinned = open_stage(d);
    size_t piece = pinned ? HALF_STAGE : bytes;
    for (size_t at = 0; at < bytes; at += piece) {
        const char *from = (const char *)host + at;
        size_t n = bytes - at < piece ? bytes - at : piece;
        if (pinned) from = (const char *)memcpy(stage_for(d, n), from, n);
        copy(s, (char *)dst + at, from, n, cudaMemcpyHostToDevice, "upload");
    }
}

/* A few bytes through pinned memory: into pageable memory the driver copies by a staging buffer of
 * its own, which takes some microseconds more, at every step of a server.  False: not done, as
 * another thread has the buffer, or there is none. */
bool land(fv_stream *s, void *host, const void *src, size_t bytes)
{
    device *d = device_of(s);
    std::unique_lock<std::mutex> hold(d->landing_mutex, std::try_to_lock);
    if (bytes > LANDING || stream_state_of(s)->capturing || !hold.owns_lock()) return false;
    set_device(d);
    if (!d->landing && cudaHostAlloc((void **)&d->landing, LANDING, cudaHostAllocDefault)) {
        d->landing = NULL;
        cudaGetLastError();
        return false;
    }
    copy(s, d->landing, src, bytes, cudaMemcpyDeviceToHost, "download");
    sync(s);
    if (!s->err.code) memcpy(host, d->landing, bytes);
    return true;
}

void download(fv_stream *s, void *host, const void *src, size_t bytes)
{
    if (!land(s, host, src, bytes)) {
        copy(s, host, src, bytes, cudaMemcpyDeviceToHost, "download");
        sync(s);
    }
    /* a failed read must not leave stale data behind */
    if (s->err.code || stream_state_of(s)->capturing) memset(host, 0, bytes);
}

/* cudaMemcpyAsync is undefined for overlapping ranges, so those go through scratch. */
void move(fv_stream *s, void *dst, const void *src, size_t bytes)
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

void zero(fv_stream *s, void *dst, size_t bytes)
{
    if (!bytes || s->err.code) return;
    set_device(device_of(s));
    cudaMemsetAsync(dst, 0, bytes, stream_of(s));
    fv_cuda_check_launch(s, "zero");
}

void device_close(fv_device *dev)
{
    device *d = (device *)dev->impl;
    if (!d) return;
    set_device(d);
    if (d->stream) cudaStreamSynchronize(d->stream);
    fv_cuda_unreserve_all(d);
    fv_cuda_cudnn_free(d->cudnn);
    fv_cuda_cublas_free(d->cublas);
    if (d->faults) cudaFreeHost(d->faults);
    if (d->stage) cudaFreeHost(d->stage);
    if (d->landing) cudaFreeHost(d->landing);
    for (int i = 0; i < 2; i++)
        if (d->half_copied[i]) cudaEventDestroy(d->half_copied[i]);
    if (d->flagged) cudaFree(d->flagged);
    if (d->stream) cudaStreamDestroy(d->stream);
    delete d;
    dev->impl = NULL;
}

/* Free memory: the driver's, plus what the pool holds unused. */
void memory(fv_device *dev, size_t *left, size_t *all)
{
    device *d = (device *)dev->impl;
    uint64_t reserved = 0, used = 0;
    cudaMemPool_t pool;
    set_device(d);
    *left = *all = 0;
    if (cudaMemGetInfo(left, all) == cudaSuccess &&
        cudaDeviceGetDefaultMemPool(&pool, d->number) == cudaSuccess &&
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved) ==
            cudaSuccess &&
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used) == cudaSuccess)
        *left += (size_t)(reserved - used);
    cudaGetLastError();
}

/* ---- captured graphs ---- */

/* Starts recording.  Relaxed mode: other threads may call cudaMalloc meanwhile. */
bool capture(fv_stream *s)
{
    stream_state *st = stream_state_of(s);
    set_device(device_of(s));
    if (!st->capture_stream &&
        cudaStreamCreateWithFlags(&st->capture_stream, cudaStreamNonBlocking) != cudaSuccess)
        st->capture_stream = NULL;
    st->capturing = st->capture_stream &&
                    cudaStreamBeginCapture(st->capture_stream, cudaStreamCaptureModeRelaxed) ==
                        cudaSuccess;
    st->capture_broken = false;
    cudaGetLastError();
    return st->capturing;
}

/* Ends recording and returns the executable graph; NULL: the step cannot be replayed. */
void *captured(fv_stream *s)
{
    stream_state *st = stream_state_of(s);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t captured_graph = NULL;
    if (st->deferred) fv_cuda_launch_deferred(s);
    st->capturing = false;
    cudaError_t rc = cudaStreamEndCapture(st->capture_stream, &graph);
    if (rc == cudaSuccess && !st->capture_broken)
        rc = cudaGraphInstantiate(&captured_graph, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    return rc == cudaSuccess && !st->capture_broken ? captured_graph : NULL;
}

void replay(fv_stream *s, void *captured_graph)
{
    if (s->err.code) return;
    set_device(device_of(s));
    cudaGraphLaunch((cudaGraphExec_t)captured_graph, device_of(s)->stream);
    fv_cuda_check_launch(s, "a captured graph");
}

/* Safe while the graph is running: the driver keeps it until it has finished. */
void free_graph(fv_device *dev, void *captured_graph)
{
    set_device((device *)dev->impl);
    cudaGraphExecDestroy((cudaGraphExec_t)captured_graph);
}

int choices(const fv_device *dev, char (*lines)[160], int most)
{
    (void)dev;
    return fv_cuda_attention_describe(lines, most);
}

const fv_backend backend = {
    "cuda",
    mem_alloc,
    mem_release,
    stream_open,
    stream_close,
    upload,
    download,
    move,
    zero,
    sync,
    device_close,
    fv_cuda_page_size,
    fv_cuda_reserve,
    fv_cuda_commit,
    fv_cuda_discard,
    memory,
    capture,
    captured,
    replay,
    free_graph,
    choices,
};

/* For CUDA_LAUNCH_BLOCKING=1: without capture, as kernels inside a graph cannot be waited for. */
const fv_backend blocking = [] {
    fv_backend b = backend;
    b.capture = NULL;
    b.captured = NULL;
    b.replay = NULL;
    b.free_graph = NULL;
    return b;
}();
} // namespace

void fv_cuda_device_close(fv_device *dev) { device_close(dev); }

const fv_backend *fv_cuda_backend(bool is_blocking) { return is_blocking ? &blocking : &backend; }
