/* cuda.cu - opens a CUDA device: checks driver and GPU, creates the stream and the device-wide
 * buffers, fills the kernel tables. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "cuda.h"
#include "stream.h"

#define MIN_SM 80

/* ---- kernel tables ---- */

/* gen/cuda_files.h: X(name) for every file that ends with FOR_ALL_DTYPES(fv_cuda_<name>). */
#define X(name) template <class T> void fv_cuda_##name(fv_kernels *k);
#include "cuda_files.h"
#undef X

namespace
{

template <class T> void fill(fv_kernels *k)
{
#define X(name) fv_cuda_##name<T>(k);
#include "cuda_files.h"
#undef X
}

void fill_tables(device *d, fv_device *dev)
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

/* The driver honours this too, but to it a replayed graph is one launch. */
bool launch_blocking()
{
    const char *requested = getenv("CUDA_LAUNCH_BLOCKING");
    return requested && *requested && strcmp(requested, "0");
}

/* The number of CUDA devices, or -1 and the reason in e. */
int device_count(const fv_cuda_host *h, fv_err *e)
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

__global__ void probe_kernel() {}

/* pdl_wait is compiled in for sm_90 and up only: kernels that the driver built from sm_80 PTX do
 * not have it, whatever GPU they run on.  So ask a kernel, not the device. */
cudaError_t query_pdl(bool *supported)
{
    cudaFuncAttributes a = {};
    cudaError_t rc = cudaFuncGetAttributes(&a, probe_kernel);
    *supported = a.ptxVersion >= 90;
    return rc;
}

/* Creates the stream, the fault records in mapped host memory (kernels write them, the host reads
 * them without a copy), and one zeroed allocation for flagged words, tickets and the megakernel's
 * counters.
 * Everything that kernels need across launches is made here, so that no launch allocates. */
cudaError_t device_init(device *d, const cudaDeviceProp *p)
{
    cudaMemPool_t pool;
    uint64_t keep = UINT64_MAX; /* release threshold: never trim the pool at a sync */
    cudaError_t rc = cudaSetDevice(d->number);
    d->sm_count = p->multiProcessorCount;
    d->max_smem = p->sharedMemPerBlockOptin;
    if (rc == cudaSuccess) rc = query_pdl(&d->supports_pdl);
    d->hopper = p->major == 9 && p->minor == 0;
    snprintf(d->level, sizeof d->level, "sm_%d%d", p->major, p->minor);
    if (rc == cudaSuccess) rc = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    if (rc == cudaSuccess)
        rc = cudaHostAlloc((void **)&d->faults, FAULT_ROWS * FAULTS * sizeof(fault),
                           cudaHostAllocMapped);
    size_t flagged = (size_t)FLAGGED_AREAS * FLAGGED_WORDS * sizeof *d->flagged,
           tickets = (TICKETS + MEGAKERNEL_TICKETS) * sizeof *d->tickets + KEPT_BYTES;
    if (rc == cudaSuccess) rc = cudaMalloc((void **)&d->flagged, flagged + tickets);
    /* on the device's stream, which is non-blocking: the legacy stream would not order it */
    if (rc == cudaSuccess) rc = cudaMemsetAsync(d->flagged, 0, flagged + tickets, d->stream);
    d->tickets = (unsigned *)(d->flagged + FLAGGED_AREAS * FLAGGED_WORDS);
    if (rc == cudaSuccess) rc = cudaDeviceGetDefaultMemPool(&pool, d->number);
    if (rc == cudaSuccess)
        rc = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
    for (int i = 0; rc == cudaSuccess && i < FAULT_ROWS * FAULTS; i++) d->faults[i].where = ~0ull;
    return rc;
}

fv_status check_abi(const fv_cuda_host *h, size_t abi, fv_err *e)
{
    if (abi == FV_CUDA_ABI) return FV_OK;
    return h->refuse(e, FV_EDEVICE,
                     "device cuda: the backend was built from other sources than the library; "
                     "build both together");
}
} // namespace

FV_API fv_status fv_cuda_open(fv_device *dev, const fv_cuda_host *host, size_t abi, int number,
                              fv_err *e)
{
    if (check_abi(host, abi, e)) return FV_EDEVICE;
    int n = device_count(host, e);
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
        fv_cuda_device_close(dev);
        return e ? e->code : FV_EDEVICE;
    }
    if (rc == cudaSuccess) rc = device_init(d, &p);
    if (rc != cudaSuccess) {
        fv_cuda_device_close(dev);
        cudaGetLastError(); /* clear it: it is not the next device's error */
        return host->refuse(e, FV_EDEVICE, "device cuda:%d: %s", number, cudaGetErrorString(rc));
    }
    dev->backend = fv_cuda_backend(launch_blocking());
    dev->level = d->level;
    dev->threads = 1;
    fill_tables(d, dev);
    return FV_OK;
}

FV_API int fv_cuda_list(const fv_cuda_host *host, size_t abi, char (*lines)[128], int most,
                        fv_err *e)
{
    int n = check_abi(host, abi, e) ? -1 : device_count(host, e);
    for (int i = 0; i < n && i < most; i++) {
        cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess) p = cudaDeviceProp{};
        snprintf(lines[i], sizeof lines[i], "%.80s, sm_%d%d, %.1f GiB", p.name, p.major, p.minor,
                 (double)p.totalGlobalMem / (1 << 30));
    }
    return n;
}

/* Work that NCCL puts on it follows what was launched before and comes before what is launched
 * behind. */
FV_API void *fv_cuda_stream(fv_stream *s)
{
    cudaSetDevice(device_of(s)->number);
    return stream_of(s);
}
