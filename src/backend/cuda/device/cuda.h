/* cuda.h - what the files of this folder share: the device behind an fv_device, launching, reading
 * and writing numbers.
 *
 * Kernels are templates over T, what memory holds (float, bf16 or f16); arithmetic is in f32.  All
 * streams of a device are one CUDA stream: contexts, parameters and the optimiser then follow one
 * another without events, and memory that was given back can be handed out again at once.  Sums are
 * made in an order that only the shape decides: no atomic addition of floats anywhere, so a run
 * repeats bit by bit. */
#ifndef FV_CUDA_H
#define FV_CUDA_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <mutex>

#include "backend/cuda_host.h"
#include "fovea/author/op.h"

typedef __nv_bfloat16 bf16;
typedef __half f16;

/* ---- the device ---- */

/* What a kernel found wrong: the first place, the number there and the limits it broke.  Read at
 * the next sync. */
enum fault_kind {
    FAULT_GATHER,
    FAULT_GATHER_BWD,
    FAULT_LABEL,
    FAULT_LENS,
    FAULT_CACHE,
    FAULT_RNNT,
    FAULT_RNNT_LABEL,
    FAULTS
};
struct fault {
    /* place << 32 | number, so that the least is the first; all ones: nothing happened */
    unsigned long long where;
    long long limit, more;
};

/* PDL_MAX_ROWS: with more, kernels are large */
enum { TICKETS = 1 << 16, MEGAKERNEL_TICKETS = 8, PDL_MAX_ROWS = 8 };
enum { FLAGGED_AREAS = 8, FLAGGED_WORDS = 1 << 16 }; /* see decode/flags.h; words of an area */

struct megakernel;      /* decode/mega_plan.cu: kernels that are put off */
struct products;        /* gemm/gemm.cu: cuBLASLt, its plans and its workspace */
struct cudnn_attention; /* attention/cudnn.cu: cuDNN and its plans */

struct device {
    fv_cuda_host host;
    int number;
    cudaStream_t stream;
    fault *faults;             /* pinned: FAULTS for each stream */
    unsigned long long in_use; /* streams that have a row of faults */
    int sm_count;
    size_t max_smem;   /* bytes a block may ask for */
    bool supports_pdl; /* kernels can start before those they wait for are done */
    bool hopper;       /* sm_90, with instructions that no other chip has */
    /* zeros: TICKETS counters that every kernel leaves as it found them, and those of programs */
    unsigned *tickets;
    unsigned long long *flagged; /* (FLAGGED_AREAS,FLAGGED_WORDS) */
    char level[16];
    std::mutex open_mutex;  /* of mm and fused */
    std::mutex stage_mutex; /* over what follows */
    /* pinned: what is on its way to the device, in two halves; NULL before the first time */
    char *stage;
    int half;      /* that is being filled */
    size_t staged; /* bytes of it */
    cudaEvent_t half_copied[2];
    products *mm;
    cudnn_attention *cudnn; /* NULL: not yet, or none */
    bool cudnn_tried;
    /* attention/dispatch.cu: the first way that may be taken; one asked for, or -1 */
    int attn_first_impl, attn_requested;
    fv_kernels k[FV_FLOATS];
};

/* Behind an fv_stream. */
struct stream_state {
    int row;          /* of faults */
    const char *last; /* the kernel started last, for messages */
    cudaStream_t
        capture_stream;   /* where kernels are kept instead of run; NULL before the first time */
    bool capturing;       /* they are, now */
    bool capture_broken;  /* by something that cannot be repeated */
    megakernel *deferred; /* NULL before the first time */
};

static inline device *device_of(const fv_stream *s) { return (device *)s->dev->impl; }
static inline stream_state *stream_state_of(const fv_stream *s) { return (stream_state *)s->impl; }
static inline fault *faults_of(const fv_stream *s)
{
    return device_of(s)->faults + (size_t)stream_state_of(s)->row * FAULTS;
}
/* decode/mega_plan.cu: starts the kernels that were put off. */
void fv_cuda_launch_deferred(fv_stream *s);
void fv_cuda_megakernel_free(megakernel *p);

/* The stream to start something on, with everything before it started. */
static inline cudaStream_t stream_of(fv_stream *s)
{
    if (stream_state_of(s)->deferred) fv_cuda_launch_deferred(s);
    return stream_state_of(s)->capturing ? stream_state_of(s)->capture_stream
                                         : device_of(s)->stream;
}

/* Remembers what was started and picks up a refusal to start. */
void fv_cuda_check_launch(fv_stream *s, const char *kernel);

/* Lets blocks of a kernel have so many bytes of shared memory; where the chip has fewer the stream
 * fails, and says so. */
bool fv_cuda_set_max_smem(fv_stream *s, const char *name, const void *kernel, size_t bytes);

__host__ __device__ static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class... P, class... A>
static void launch(fv_stream *s, const char *name, void (*kernel)(P...), dim3 grid,
                   unsigned threads, size_t shared, A... args)
{
    if (!grid.x || !grid.y || !grid.z || s->err.code) return;
    cudaSetDevice(device_of(s)->number);
    if (!fv_cuda_set_max_smem(s, name, (const void *)kernel, shared)) return;
    kernel<<<grid, threads, shared, stream_of(s)>>>(static_cast<P>(args)...);
    fv_cuda_check_launch(s, name);
}

/* The same for a kernel that calls pdl_wait() before it reads what others wrote and begins
 * with memory that nobody writes: if early, it may start while the kernel before it is still
 * running.  That pays where kernels are small; else they take room from one another. */
template <class... P, class... A>
static void launch_pdl(fv_stream *s, const char *name, bool use_pdl, void (*kernel)(P...),
                       dim3 grid, unsigned threads, size_t shared, A... args)
{
    if (!grid.x || !grid.y || !grid.z || s->err.code) return;
    cudaLaunchConfig_t how = {};
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    how.gridDim = grid;
    how.blockDim = dim3(threads);
    how.dynamicSmemBytes = shared;
    how.stream = stream_of(s);
    how.attrs = &early;
    how.numAttrs = use_pdl && device_of(s)->supports_pdl ? 1 : 0;
    cudaSetDevice(device_of(s)->number);
    if (!fv_cuda_set_max_smem(s, name, (const void *)kernel, shared)) return;
    cudaLaunchKernelEx(&how, kernel, static_cast<P>(args)...);
    fv_cuda_check_launch(s, name);
}

__device__ inline void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The kernel behind this one may start. */
__device__ inline void pdl_launch_dependents()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Scratch for n elements of E on the stream; NULL once that failed. */
template <class E> static E *alloc_scratch(fv_stream *s, int64_t n)
{
    return (E *)device_of(s)->host.work(s, (size_t)(n > 0 ? n : 1) * sizeof(E));
}

__device__ inline void report_fault(fault *f, int64_t index, int64_t number, int64_t limit,
                                    int64_t more = 0)
{
    f->limit = limit;
    f->more = more;
    atomicMin(&f->where, (unsigned long long)index << 32 | (uint32_t)number);
}

/* ---- numbers ---- */

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

/* V neighbours, moved in accesses of up to 16 bytes. */
template <class T, int V> struct alignas(sizeof(T) * V > 16 ? 16 : sizeof(T) * V) pack {
    T v[V];
};

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

/* An fv_sink as a kernel sees it; wide: f32 where T is narrower. */
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

template <class... P> static bool aligned(P... p) { return (((uintptr_t)p | ...) & 15) == 0; }

/* ---- one thread for each element, or for V of them ---- */

enum { THREADS = 256 };

template <int V, class F> __global__ void each_kernel(int64_t n, F f)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x * V;
    for (int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * V; i < n; i += step)
        f.template at<V>(i);
}

/* F::at<V>(i) treats elements i .. i+V-1; V is F::wide where that divides n and the caller says
 * that memory is aligned. */
template <class F>
static void each(fv_stream *s, const char *name, int64_t n, bool can_be_wide, F f)
{
    bool wide = can_be_wide && n % F::wide == 0;
    int64_t blocks = ceil_div(wide ? n / F::wide : n, THREADS),
            most = (int64_t)device_of(s)->sm_count * 32;
    dim3 grid((unsigned)(blocks < most ? blocks : most));
    if (wide)
        launch(s, name, each_kernel<F::wide, F>, grid, THREADS, 0, n, f);
    else
        launch(s, name, each_kernel<1, F>, grid, THREADS, 0, n, f);
}

/* ---- sums of a block: to all threads, in an order that only the number of threads decides ---- */

struct sum_op {
    __device__ float operator()(float a, float b) const { return a + b; }
};
struct max_op {
    __device__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

template <class F> __device__ inline float warp_allreduce(float v, F join)
{
    for (int o = 16; o; o /= 2) v = join(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

template <class F> __device__ inline float block_allreduce(float v, F join)
{
    __shared__ float part[32];
    unsigned warps = (blockDim.x + 31) / 32;
    v = warp_allreduce(v, join);
    if (warps == 1) return v;
    __syncthreads(); /* part may still be read from the time before */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
    for (unsigned i = 1; i < warps; i++) v = join(v, part[i]);
    return v;
}

/* Threads for a row of n packs: one a pack where that is possible, whole warps, by the length of
 * the row alone. */
static inline unsigned row_threads(int64_t n)
{
    unsigned t = 32;
    while (t < 512 && t < n) t *= 2;
    return t;
}

/* ---- strided walks ---- */

/* Offsets of the element that stands at place i of the walk. */
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

/* ---- random numbers: the words of fv_philox ---- */

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

/* ---- the kernels of each file: name<T>(table) puts them in ---- */

template <class T> void fv_cuda_attention_rows(fv_kernels *k);
template <class T> void fv_cuda_attention_dispatch(fv_kernels *k);
template <class T> void fv_cuda_batchnorm(fv_kernels *k);
template <class T> void fv_cuda_beam(fv_kernels *k);
template <class T> void fv_cuda_binary(fv_kernels *k);
template <class T> void fv_cuda_sample(fv_kernels *k);
template <class T> void fv_cuda_conv(fv_kernels *k);
template <class T> void fv_cuda_copy(fv_kernels *k);
template <class T> void fv_cuda_elementwise(fv_kernels *k);
template <class T> void fv_cuda_embed(fv_kernels *k);
template <class T> void fv_cuda_entropy(fv_kernels *k);
template <class T> void fv_cuda_gather(fv_kernels *k);
template <class T> void fv_cuda_gemm(fv_kernels *k);
template <class T> void fv_cuda_ids(fv_kernels *k);
template <class T> void fv_cuda_norm(fv_kernels *k);
template <class T> void fv_cuda_optim(fv_kernels *k);
template <class T> void fv_cuda_reduce(fv_kernels *k);
template <class T> void fv_cuda_fused_linear(fv_kernels *k);
template <class T> void fv_cuda_rnnt(fv_kernels *k);
template <class T> void fv_cuda_rope(fv_kernels *k);
template <class T> void fv_cuda_softmax(fv_kernels *k);
template <class T> void fv_cuda_topk(fv_kernels *k);
void fv_cuda_double(fv_kernels *k); /* rows/copy.cu: what f64 has here, conversion */

/* What a file of kernels ends with. */
#define FOR_ALL_DTYPES(name)                                                                       \
    template void name<float>(fv_kernels *);                                                       \
    template void name<bf16>(fv_kernels *);                                                        \
    template void name<f16>(fv_kernels *);

void fv_cuda_products_free(products *p);
/* gemm_hopper*.cu; false: not this one, and nothing was done */
bool fv_cuda_gemm_hopper(fv_stream *s, const fv_gemm *g);
bool fv_cuda_gemm_in_out(fv_stream *s, const fv_gemm *g);
bool fv_cuda_gemm_dact(fv_stream *s, const fv_gemm *g, fv_unary_op op, const void *p, fv_sink sums);
/* rows/reduce.cu; y in f32 */
void fv_cuda_sum_pieces(fv_stream *s, fv_sink y, const float *part, int64_t pieces, int64_t cols);
void fv_cuda_cudnn_free(cudnn_attention *f);

/* attention/dispatch.cu: reads $FOVEA_CUDA_ATTENTION; says which kernel is used when, and returns
 * how many lines that takes. */
fv_status fv_cuda_attention_select(device *d, fv_err *e);
int fv_cuda_attention_describe(char (*lines)[160], int most);

#endif
