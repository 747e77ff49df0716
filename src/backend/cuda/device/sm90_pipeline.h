/* sm90_pipeline.h - what the warp-specialised kernels for Hopper are made of.
 *
 * Such a kernel is one persistent block per SM.  A producer warpgroup gives most of its registers
 * away (setmaxnreg) and loads tiles by TMA into a ring of stages in shared memory; two to four
 * consumer warpgroups of 64 rows each run wgmma on them.  Everything the kernels share is here:
 *
 *     smem_carver     lays out dynamic shared memory; the same list measures it on the host
 *     stage_ring      full and empty mbarriers of N stages, addressed by an iteration count
 *     pingpong        consumer warpgroups issue wgmma in turns
 *     tma_load_tile   all 64-column panels of a tile
 *     store_swizzled  accumulators to a swizzled tile, and from there to global memory
 *     *_acquire, *_release   counters in global memory between blocks, a flag in shared memory
 *
 * A ring has no state of its own.  Producer and consumers count iterations, over all work items of
 * the block, and a count gives stage i % N and phase i / N: one register instead of two, and a
 * consumer may look ahead by adding to it. */
#ifndef FV_CUDA_DEVICE_SM90_PIPELINE_H
#define FV_CUDA_DEVICE_SM90_PIPELINE_H

#include "sm90.h"

/* ---- shared memory ---- */

/* A layout lists its arrays in carve(c), by calls of c.take(pointer, count), in order of alignment.
 * With smem_carver that sets the pointers, with smem_meter it adds up their bytes. */
struct smem_carver {
    unsigned char *next;

    template <class U> __host__ __device__ void take(U *&p, size_t count)
    {
        p = (U *)next;
        next += count * sizeof(U);
    }
};
struct smem_meter {
    size_t bytes = 0;

    template <class U> __host__ __device__ constexpr void take(U *&, size_t count)
    {
        bytes += count * sizeof(U);
    }
};

/* The block's layout, its barriers initialised. */
template <class LAYOUT> __device__ inline LAYOUT open_layout(unsigned char *memory)
{
    LAYOUT m;
    smem_carver carver = {memory};
    m.carve(carver);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    return m;
}

template <class LAYOUT> constexpr size_t smem_bytes()
{
    smem_meter meter;
    LAYOUT layout{};
    layout.carve(meter);
    return meter.bytes;
}

/* Swizzled tiles begin at multiples of 1024 bytes.  Whoever cannot ask for that by __align__ adds
 * 1024 bytes to the launch and rounds up. */
__device__ inline unsigned char *align_1024(unsigned char *memory)
{
    return memory + (1024 - smem_addr(memory) % 1024) % 1024;
}

/* ---- stages ---- */

/* Iteration i uses stage i % N, for the i / N-th time.  full: the producer's arrivals and the bytes
 * of its TMA loads; empty: the consumers' arrivals.  Waiting for an empty stage returns at once the
 * first time round: the phase before the first counts as complete.
 *
 * A wait names a phase by its parity, which the phase two before it shares.  So a wait for the full
 * barrier is right only if the stage's previous use is known to be full: because this warpgroup has
 * waited for that use, too, because warpgroups take turns, or because it has waited until the stage
 * was empty behind it. */
template <int N> struct stage_ring {
    uint64_t *full, *empty;

    template <class CARVER> __host__ __device__ constexpr void carve(CARVER &c)
    {
        c.take(full, N);
        c.take(empty, N);
    }
    __device__ void init(unsigned full_arrivals, unsigned empty_arrivals) const
    {
        for (int i = 0; i < N; i++) {
            mbarrier_init(full + i, full_arrivals);
            mbarrier_init(empty + i, empty_arrivals);
        }
    }
    __device__ static int stage(unsigned i) { return (int)(i % N); }
    __device__ void wait_full(unsigned i) const { mbarrier_wait(full + stage(i), i / N & 1); }
    __device__ void wait_empty(unsigned i) const
    {
        mbarrier_wait(empty + stage(i), (i / N + 1) & 1);
    }
    __device__ bool test_full(unsigned i) const
    {
        return mbarrier_test(full + stage(i), i / N & 1);
    }
    __device__ bool test_empty(unsigned i) const
    {
        return mbarrier_test(empty + stage(i), (i / N + 1) & 1);
    }
};

/* ---- consumer warpgroups in turns ---- */

/* Warpgroups 0 .. GROUPS - 1 issue their wgmmas one after the other, so that the exponentials of
 * one overlap the products of the next.  Named barriers FIRST .. FIRST + GROUPS - 1, each between
 * the warpgroup that waits and the one before it. */
template <int GROUPS, int FIRST = 1> struct pingpong {
    __device__ static void start(int group)
    {
        if (group == GROUPS - 1) named_barrier_arrive(FIRST);
    }
    __device__ static void wait(int group) { named_barrier_sync(FIRST + group); }
    __device__ static void pass(int group) { named_barrier_arrive(FIRST + (group + 1) % GROUPS); }
    /* The last arrival of the last warpgroup has nobody else to wait for it. */
    __device__ static void finish(int group)
    {
        if (group == 0) named_barrier_sync(FIRST);
    }
};

/* ---- tiles ---- */

/* ROWS rows by W columns of head h, from row t of sequence b on, as W / 64 panels. */
template <int ROWS, int W, class T>
__device__ inline void tma_load_tile(T *to, const CUtensorMap *map, uint64_t *full, int h, int t,
                                     int b)
{
#pragma unroll
    for (int c = 0; c < W; c += PANEL) tma_load_4d(to + c * ROWS, map, full, c, h, t, b);
}

/* 16 rows by 16 N columns of a warp, packed as the A operand of wgmma is, to rows row0 .. row0 + 15
 * of a tile of panels with ROWS rows: chunk c of 16 bytes of a row is stored as chunk c xor
 * (row % 8). */
template <int ROWS, int N, class T>
__device__ inline void store_swizzled(T *to, const uint32_t (&x)[N][4], int row0)
{
    int lane = threadIdx.x % 32, row = row0 + lane % 16;
#pragma unroll
    for (int n = 0; n < N; n++) {
        int chunk = n % 4 * 2 + lane / 16;
        stmatrix_x4(to + (n / 4 * ROWS + row) * PANEL + (chunk ^ row % 8) * 8, x[n]);
    }
}

/* 16 rows by W columns of accumulators times scale to a row-major matrix, by way of 16 rows of
 * shared memory of this warp: as wgmma leaves them a thread has pairs of columns, and this way the
 * warp stores 16 bytes a thread, whole lines.  Only `rows` rows and `width` columns are written.
 * The warp's rows are scratch_row .. scratch_row + 15 of scratch, panels with ROWS rows. */
template <int ROWS, int W, class T>
__device__ inline void write_rows_coalesced(T *to, int64_t step, T *scratch, int scratch_row,
                                            const float (&x)[W / 8][4], int row0, int rows,
                                            int width, float scale)
{
    int lane = threadIdx.x % 32;
    uint32_t packed[W / 16][4];
    pack_fragments_by(packed, x,
                      [&](float a, float b) { return pack2(a * scale, b * scale, T()); });
    __syncwarp(); /* no lane still reads what was in scratch */
    store_swizzled<ROWS>(scratch, packed, scratch_row);
    __syncwarp();
    to += (row0 + lane / 8) * step + lane % 8 * 8;
#pragma unroll
    for (int panel = 0; panel < W / PANEL; panel++) {
        T *line = to + panel * PANEL;
#pragma unroll
        for (int i = 0; i < 4; i++, line += 4 * step) {
            int row = i * 4 + lane / 8;
            uint4 x = *(const uint4 *)(scratch + (panel * ROWS + scratch_row + row) * PANEL +
                                       (lane % 8 ^ row % 8) * 8);
            if (row0 + row < rows && panel * PANEL + lane % 8 * 8 < width) *(uint4 *)line = x;
        }
    }
}

/* ---- counters between blocks ---- */

__device__ inline unsigned load_relaxed_gpu(const unsigned *p)
{
    unsigned n;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(p) : "memory");
    return n;
}
__device__ inline unsigned load_acquire_gpu(const unsigned *p)
{
    unsigned n;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(p) : "memory");
    return n;
}
__device__ inline void store_release_gpu(unsigned *p, unsigned n)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(n) : "memory");
}
/* *p += 1, after all that this thread wrote. */
__device__ inline void increment_release_gpu(unsigned *p)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}

__device__ inline void store_release_cta(unsigned *smem, unsigned n)
{
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(smem_addr(smem)), "r"(n) : "memory");
}
__device__ inline unsigned load_acquire_cta(const unsigned *smem)
{
    unsigned n;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(n) : "r"(smem_addr(smem)) : "memory");
    return n;
}

/* ---- on the host ---- */

/* Blocks of a persistent kernel: one per SM, or as many as there are work items. */
static inline dim3 persistent_grid(fv_stream *s, int64_t items)
{
    int64_t sm_count = device_of(s)->sm_count;
    return dim3((unsigned)(items < sm_count ? items : sm_count));
}

#endif
