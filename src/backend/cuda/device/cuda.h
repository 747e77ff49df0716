/* cuda.h - shared by every CUDA file: device and stream state, kernel launches, vectorised loads
 * and stores, reductions, strided indexing, Philox.
 *
 * Kernels are templates over T, the element type in global memory (float, bf16 or f16); arithmetic
 * is in f32.
 *
 * One CUDA stream per device: every fv_stream of a device launches on the same cudaStream_t.
 * Contexts, parameters and the optimiser are then ordered without events, and stream-ordered
 * allocation can reuse a freed block immediately.  A stream per context would overlap small
 * kernels, but would need an event at every shared parameter.
 *
 * Determinism: the order of every floating-point reduction depends on the shape alone, never on
 * scheduling.  No float atomics, so a run repeats bit by bit. */
#ifndef FV_CUDA_H
#define FV_CUDA_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <mutex>

#include "backend/cuda_host.h"
#include "fovea/author/backend.h"

typedef __nv_bfloat16 bf16;
typedef __half f16;

/* ---- the device ---- */

/* Fault record, one per kind of bad input a kernel can detect (an id, label or length out of
 * range).  Kernels write it in mapped host memory; the next sync turns it into an error. */
enum fault_kind {
    FAULT_GATHER,
    FAULT_GATHER_BWD,
    FAULT_LABEL,
    FAULT_LENS,
    FAULT_CACHE,
    FAULT_RNNT,
    FAULT_RNNT_LABEL,
    FAULT_CTC,
    FAULT_CTC_LABEL,
    FAULTS
};
struct fault {
    /* index << 32 | value, so atomicMin keeps the lowest index; all ones: no fault */
    unsigned long long where;
    long long limit, more; /* bounds that were violated; meaning by kind (raise_fault) */
};

/* TICKETS: arrival counters for "the last block reduces" kernels; each kernel resets its own.
 * PDL_MAX_ROWS: beyond it kernels are long enough that overlapping their prologues does not pay. */
enum { TICKETS = 1 << 16, MEGAKERNEL_TICKETS = 16, PDL_MAX_ROWS = 8 };
enum { FLAGGED_AREAS = 8, FLAGGED_WORDS = 1 << 16 }; /* decode/flags.h; words per area */
enum { KEPT_BYTES = 4 << 20 };                       /* queries: decode/mega_attention.h */

struct megakernel;   /* decode/mega_plan.cu: op descriptors deferred to one launch */
struct cublas_state; /* gemm/plan.cu: cuBLASLt, its plan cache and workspace */
struct dnn_state;    /* device/cudnn.h: cuDNN and its plans */
struct reservation;  /* device/pages.cu: addresses and the pages mapped there */

struct device {
    fv_cuda_host host;
    int number; /* CUDA ordinal */
    cudaStream_t stream;
    fault *faults;             /* mapped host memory: FAULTS records per fv_stream */
    unsigned long long in_use; /* bit r: fault row r belongs to an open fv_stream */
    int sm_count;
    size_t max_smem;   /* opt-in dynamic smem limit per block, bytes */
    bool supports_pdl; /* programmatic dependent launch */
    bool hopper;       /* sm_90: TMA, wgmma, setmaxnreg */
    /* zero between kernels: TICKETS counters, then the megakernel's group barriers; then
     * KEPT_BYTES */
    unsigned *tickets;
    unsigned long long *flagged; /* (FLAGGED_AREAS,FLAGGED_WORDS) */
    char level[16];              /* "sm_90" */
    std::mutex open_mutex;       /* guards creation of cublas and cudnn */
    std::mutex stage_mutex;      /* guards the staging buffer below */
    char *stage;                 /* pinned upload buffer, two halves; NULL until first used */
    int half;                    /* half being filled */
    size_t staged;               /* bytes used in it */
    cudaEvent_t half_copied[2];
    std::mutex landing_mutex; /* guards the pinned buffer that small downloads go through */
    char *landing;            /* LANDING bytes; NULL until first used */
    std::mutex pages_mutex;   /* guards the list below */
    reservation *reserved;    /* device/pages.cu */
    cublas_state *cublas;
    dnn_state *cudnn; /* NULL: not opened, or not available */
    bool cudnn_tried;
    /* attention/dispatch.cu: first eligible implementation; one forced by the user, or -1 */
    int attn_first_impl, attn_requested;
    fv_kernels k[FV_FLOATS];
};

/* Behind an fv_stream. */
struct stream_state {
    int row;                     /* row of fault records */
    const char *last;            /* last kernel launched, for error messages */
    cudaStream_t capture_stream; /* records graphs; NULL until first used */
    bool capturing;
    bool capture_broken;  /* something ran that a replay could not repeat */
    megakernel *deferred; /* ops not yet launched; NULL until first used */
};

/* State behind the public handles. */
static inline device *device_of(const fv_stream *s) { return (device *)s->dev->impl; }
static inline stream_state *stream_state_of(const fv_stream *s) { return (stream_state *)s->impl; }
static inline fault *faults_of(const fv_stream *s)
{
    return device_of(s)->faults + (size_t)stream_state_of(s)->row * FAULTS;
}
/* decode/mega_plan.cu: launches the megakernel over the deferred op descriptors. */
void fv_cuda_launch_deferred(fv_stream *s);
void fv_cuda_megakernel_free(megakernel *p);

/* The CUDA stream to launch on.  Deferred ops come earlier in program order, so they go first. */
static inline cudaStream_t stream_of(fv_stream *s)
{
    if (stream_state_of(s)->deferred) fv_cuda_launch_deferred(s);
    return stream_state_of(s)->capturing ? stream_state_of(s)->capture_stream
                                         : device_of(s)->stream;
}

/* After every launch: records the kernel's name and turns a launch error into the stream's. */
void fv_cuda_check_launch(fv_stream *s, const char *kernel);

/* Raises the kernel's dynamic smem limit; false (and a stream error) if the GPU has less. */
bool fv_cuda_set_max_smem(fv_stream *s, const char *name, const void *kernel, size_t bytes);

__host__ __device__ static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* kernel<<<grid, threads, shared>>>(args...) on the stream; nothing for an empty grid or after an
 * error.  Arguments are converted to the kernel's parameter types.
 *
 * use_pdl, programmatic dependent launch: the kernel may start while its predecessor drains, so it
 * must call pdl_wait() before reading anything a kernel wrote; weights may be loaded before.  It
 * pays for small kernels; blocks of large ones would take smem and registers from the
 * predecessor. */
template <class... P, class... A>
static void launch_pdl(fv_stream *s, const char *name, bool use_pdl, void (*kernel)(P...),
                       dim3 grid, unsigned threads, size_t shared, A... args)
{
    if (!grid.x || !grid.y || !grid.z || s->err.code) return;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute pdl = {};
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream_of(s);
    config.attrs = &pdl;
    config.numAttrs = use_pdl && device_of(s)->supports_pdl ? 1 : 0;
    cudaSetDevice(device_of(s)->number);
    if (!fv_cuda_set_max_smem(s, name, (const void *)kernel, shared)) return;
    cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
    fv_cuda_check_launch(s, name);
}

template <class... P, class... A>
static void launch(fv_stream *s, const char *name, void (*kernel)(P...), dim3 grid,
                   unsigned threads, size_t shared, A... args)
{
    launch_pdl(s, name, false, kernel, grid, threads, shared, args...);
}

__device__ inline void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel in the stream start its prologue. */
__device__ inline void pdl_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* n elements of stream scratch (valid until the op returns to the arena); NULL after an error. */
template <class E> static E *alloc_scratch(fv_stream *s, int64_t n)
{
    return (E *)device_of(s)->host.work(s, (size_t)(n > 0 ? n : 1) * sizeof(E));
}

/* Records bad input at `index` (which must fit 32 bits).  limit and more are written without
 * ordering: all faults of a kind have the same limits, unless several sequences are bad at once. */
__device__ inline void report_fault(fault *f, int64_t index, int64_t number, int64_t limit,
                                    int64_t more = 0)
{
    f->limit = limit;
    f->more = more;
    atomicMin(&f->where, (unsigned long long)index << 32 | (uint32_t)number);
}

/* ---- element types ---- */

/* fv_dtype of an element type. */
template <class T> struct kind;
template <> struct kind<float> {
    static constexpr fv_dtype dtype = FV_F32;
};
template <> struct kind<bf16> {
    static constexpr fv_dtype dtype = FV_BF16;
};
template <> struct kind<f16> {
    static constexpr fv_dtype dtype = FV_F16;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
__device__ inline float to_float(f16 x) { return __half2float(x); }
template <class T> __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline f16 from_float<f16>(float x) { return __float2half_rn(x); }

/* V consecutive elements, moved as one access of up to 16 bytes. */
template <class T, int V> struct alignas(sizeof(T) * V > 16 ? 16 : sizeof(T) * V) pack {
    T v[V];
};

/* x = p[i .. i+V-1] as f32, and back; i must be a multiple of V. */
template <int V, class T> __device__ inline void load(float (&x)[V], const T *p, int64_t i)
{
    pack<T, V> k = *(const pack<T, V> *)(p + i);
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = to_float(k.v[j]);
}

template <int V, class T> __device__ inline void store(T *p, int64_t i, const float (&x)[V])
{
    pack<T, V> k;
#pragma unroll
    for (int j = 0; j < V; j++) k.v[j] = from_float<T>(x[j]);
    *(pack<T, V> *)(p + i) = k;
}

/* An fv_sink in device code: destination of a result, stored or accumulated (add); wide: the
 * destination is f32 although T is 16-bit (gradients of master weights). */
template <class T> struct sink {
    void *p;
    bool wide, add;
};
template <class T> static sink<T> to(fv_sink s)
{
    return {s.data, s.dtype == FV_F32 && kind<T>::dtype != FV_F32, s.add};
}
template <class T> static sink<T> to(T *p) { return {p, false, false}; }

template <int V, class T, class E>
__device__ inline void sink_store_as(E *p, int64_t i, const float (&x)[V], bool add)
{
    float y[V];
    if (add) load(y, p, i);
#pragma unroll
    for (int j = 0; j < V; j++) y[j] = add ? y[j] + x[j] : x[j];
    store(p, i, y);
}

template <int V, class T>
__device__ inline void sink_store(sink<T> s, int64_t i, const float (&x)[V])
{
    if (s.wide)
        sink_store_as<V, T>((float *)s.p, i, x, s.add);
    else
        sink_store_as<V, T>((T *)s.p, i, x, s.add);
}

template <class T> __device__ inline void sink_put(sink<T> s, int64_t i, float v)
{
    const float x[1] = {v};
    sink_store(s, i, x);
}

/* Whether all pointers allow 16-byte accesses; NULL does. */
template <class... P> static bool aligned(P... p) { return (((uintptr_t)p | ...) & 15) == 0; }

/* ---- element-wise kernels ---- */

enum { THREADS = 256 };

/* A compile-time constant as an argument: the vector width, or vectors per lane. */
template <int V> struct width {
    static constexpr int value = V;
};

/* Grid-stride: at most 32 blocks an SM, whatever n is, so a launch is never too large for the
 * grid. */
template <class F> __global__ void each_kernel(int64_t n, F f)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) f(i);
}

template <int V, class F> __global__ void each_vec_kernel(int64_t n, F f)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x * V;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V; i < n; i += step)
        f(width<V>(), i);
}

static inline dim3 each_grid(const fv_stream *s, int64_t threads)
{
    int64_t blocks = ceil_div(threads, THREADS), most = (int64_t)device_of(s)->sm_count * 32;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

/* f(i) for each i below n, one thread per element. */
template <class F> static void each(fv_stream *s, const char *name, int64_t n, F f)
{
    launch(s, name, each_kernel<F>, each_grid(s, n), THREADS, 0, n, f);
}

/* f(width<V>(), i) for elements i .. i+V-1: V is WIDE where n is a multiple and `vectorised`
 * (pointers are aligned), else 1. */
template <int WIDE, class F>
static void each_vec(fv_stream *s, const char *name, int64_t n, bool vectorised, F f)
{
    if (vectorised && n % WIDE == 0)
        launch(s, name, each_vec_kernel<WIDE, F>, each_grid(s, n / WIDE), THREADS, 0, n, f);
    else
        launch(s, name, each_vec_kernel<1, F>, each_grid(s, n), THREADS, 0, n, f);
}

template <class T> constexpr int vec = 16 / sizeof(T); /* elements in 16 bytes */

/* Calls f with the vector width as a compile-time constant: 16 bytes of T, or 1 element. */
template <class T, class F> static void with_width(bool vectorised, F f)
{
    if (vectorised)
        f(width<16 / sizeof(T)>());
    else
        f(width<1>());
}

/* Asynchronous copy of 16 bytes, global to shared memory, past L1. */
__device__ inline void cp_async16(uint32_t smem, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(from) : "memory");
}
__device__ inline void cp_async16(void *smem, const void *from)
{
    cp_async16((uint32_t)__cvta_generic_to_shared(smem), from);
}

/* ---- allreduce over a warp or block: the order depends on the number of threads alone ---- */

struct sum_op {
    template <class N> __device__ N operator()(N a, N b) const { return a + b; }
};
struct max_op { /* NaN propagates */
    __device__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

template <class N, class F> __device__ inline N warp_allreduce(N v, F join)
{
    for (int o = 16; o; o /= 2) v = join(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

/* All threads of the block must call it, and all get the result: warps first, then their results
 * in order, by every thread for itself, which saves a broadcast. */
template <class F> __device__ inline float block_allreduce(float v, F join)
{
    __shared__ float part[32];
    unsigned warps = (blockDim.x + 31) / 32;
    v = warp_allreduce(v, join);
    if (warps == 1) return v;
    __syncthreads(); /* an earlier call may still be reading part */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (unsigned i = 1; i < warps; i++) v = join(v, part[i]);
    return v;
}

/* Block size for a row of n vectors: one thread each, up to 512, whole warps.  Depends on n alone,
 * which keeps the reduction order fixed. */
static inline unsigned row_threads(int64_t n)
{
    unsigned t = 32;
    while (t < 512 && t < n) t *= 2;
    return t;
}

/* ---- strided indexing ---- */

/* Memory offsets of element i of an fv_walk. */
struct offsets {
    int64_t y, a, b;
};

__device__ inline offsets locate(const fv_walk &w, int64_t i)
{
    offsets o = {0, 0, 0};
    for (int d = w.n - 1; d >= 0; d--) {
        int64_t at;
        /* 32-bit division is several times faster */
        if (i <= 0x7fffffff && w.shape[d] <= 0x7fffffff) {
            uint32_t q = (uint32_t)i / (uint32_t)w.shape[d];
            at = (uint32_t)i - q * (uint32_t)w.shape[d];
            i = q;
        } else {
            at = i % w.shape[d];
            i /= w.shape[d];
        }
        o.y += at * w.y[d];
        o.a += at * w.a[d];
        o.b += at * w.b[d];
    }
    return o;
}

static inline int64_t walk_len(const fv_walk &w)
{
    int64_t n = 1;
    for (int i = 0; i < w.n; i++) n *= w.shape[i];
    return n;
}

/* Rescales a walk to vectors of `by` elements; false if a row or stride is not a multiple.
 * uses_b: the walk has a second operand. */
static inline bool walk_vectorise(fv_walk *w, int64_t by, bool uses_b)
{
    int last = w->n - 1;
    if (last < 0 || w->y[last] != 1 || w->a[last] != 1 || (uses_b && w->b[last] != 1) ||
        w->shape[last] % by)
        return false;
    for (int i = 0; i < last; i++) {
        if (w->y[i] % by || w->a[i] % by || (uses_b && w->b[i] % by)) return false;
        w->y[i] /= by, w->a[i] /= by, w->b[i] /= by;
    }
    w->shape[last] /= by;
    return true;
}

/* ---- Philox 4x32-10: the same words as fv_philox on the CPU ---- */

__device__ inline void philox(uint32_t (&out)[4], uint64_t seed, uint64_t site, uint64_t step,
                              uint64_t i)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)i, c1 = (uint32_t)(i >> 32) ^ (uint32_t)(step >> 32),
             c2 = (uint32_t)step, c3 = (uint32_t)site;
#pragma unroll
    for (int r = 0; r < 10; r++) {
        uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0,
                 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c2 = h0 ^ c3 ^ k1;
        c1 = l1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* ---- registration ---- */

/* Ends a file of kernels: fv_cuda_<name><T>(table) fills the file's entries of a kernel table.
 * CMake finds these lines and writes gen/cuda_files.h, from which device/cuda.cu calls them all;
 * so a new kernel file edits no list. */
#define FOR_ALL_DTYPES(name)                                                                       \
    template void name<float>(fv_kernels *);                                                       \
    template void name<bf16>(fv_kernels *);                                                        \
    template void name<f16>(fv_kernels *);

void fv_cuda_double(fv_kernels *k); /* rows/copy.cu: the f64 table has casts alone */

/* ---- calls between folders ---- */

void fv_cuda_cublas_free(cublas_state *p);
/* gemm/gemm_f32.cu, gemm_sm90.cu, in_out_sm90.cu, dact_sm90.cu; false: shape not supported, nothing
 * launched */
bool fv_cuda_gemm_f32(fv_stream *s, const fv_gemm *g);
bool fv_cuda_gemm_hopper(fv_stream *s, const fv_gemm *g);
bool fv_cuda_gemm_in_out(fv_stream *s, const fv_gemm *g);
bool fv_cuda_gemm_dact(fv_stream *s, const fv_gemm *g, fv_unary_op op, const void *p, fv_sink sums);
bool fv_cuda_gemm_plus(fv_stream *s, const fv_gemm *g);
/* rows/reduce.cu: y (cols) = sum over pieces of part (pieces,cols), in f32 */
void fv_cuda_sum_pieces(fv_stream *s, fv_sink y, const float *part, int64_t pieces, int64_t cols);
/* device/cudnn.cu: 91400 for 9.14.0, 0: no cuDNN */
int fv_cuda_cudnn_version(void);
void fv_cuda_cudnn_free(dnn_state *f);

/* attention/dispatch.cu: reads $FOVEA_CUDA_ATTENTION; describes the dispatch table in lines and
 * returns how many. */
fv_status fv_cuda_attention_select(device *d, fv_err *e);
int fv_cuda_attention_describe(char (*lines)[160], int most);

#endif
