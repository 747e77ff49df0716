/* sm90.h - what only Hopper (sm_90a) has, as functions: mbarriers, TMA, setmaxnreg, wgmma.
 *
 * A tile in shared memory is one or more panels.  A panel is some rows of 64 elements of 16
 * bits, 128 bytes, in the 128-byte swizzle: the 16-byte chunk c of a row is stored as chunk c
 * xor (row % 8). TMA writes tiles that way and wgmma reads them that way, free of bank
 * conflicts.  Panels begin at multiples of 1024 bytes, where the swizzle repeats.
 *
 * sm90_pipeline.h puts these together: stage rings, layouts, swizzled stores. */
#ifndef FV_CUDA_DEVICE_SM90_H
#define FV_CUDA_DEVICE_SM90_H

#include <cuda.h>

#include "tile.h"

#define PANEL 64 /* columns of a panel */

__device__ inline uint32_t smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- mbarriers: a phase is complete when all arrivals and all bytes expected are in; a wait
 * names the phase by its parity.  Each takes a pointer, or a 32-bit shared-memory address: a ring
 * that computes slot and barrier from an index does it in half the registers with addresses ---- */

__device__ inline void mbarrier_init(uint64_t *b, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(b)), "r"(arrivals)
                 : "memory");
}

/* Makes initialised mbarriers visible to the async proxy, which TMA runs in. */
__device__ inline void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(uint32_t b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ inline void mbarrier_arrive(uint64_t *b) { mbarrier_arrive(smem_addr(b)); }

/* Counts as n arrivals: one warp for all. */
__device__ inline void mbarrier_arrive_count(uint32_t b, int n)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(n) : "memory");
}

__device__ inline void mbarrier_arrive_expect_tx(uint32_t b, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
                 : "memory");
}
__device__ inline void mbarrier_arrive_expect_tx(uint64_t *b, unsigned bytes)
{
    mbarrier_arrive_expect_tx(smem_addr(b), bytes);
}

__device__ inline void mbarrier_wait(uint64_t *b, unsigned parity)
{
    uint32_t done;
    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], "
                     "%2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(smem_addr(b)), "r"(parity)
                     : "memory");
    while (!done);
}
/* The loop inside: no register for the result, which the megakernel has not. */
__device__ inline void mbarrier_wait(uint32_t b, unsigned parity)
{
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], "
                 "%1;\n@!p bra AGAIN;\n}" ::"r"(b),
                 "r"(parity)
                 : "memory");
}

/* Whether a phase is complete, without waiting.  Asked some instructions ahead, it spares
 * try_wait, which takes long even where the phase is complete. */
__device__ inline bool mbarrier_test(uint32_t b, unsigned parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], "
                 "%2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(b), "r"(parity)
                 : "memory");
    return done;
}
__device__ inline bool mbarrier_test(uint64_t *b, unsigned parity)
{
    return mbarrier_test(smem_addr(b), parity);
}

/* One arrival for the warp, after all of its lanes. */
__device__ inline void warp_arrive(uint64_t *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(b);
}

/* Named barriers 1 .. 15 between two warpgroups: sync waits for the other's sync or arrive,
 * arrive does not wait. */
__device__ inline void named_barrier_sync(int id)
{
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
}
__device__ inline void named_barrier_arrive(int id)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory");
}

/* The four warps of one warpgroup. */
__device__ inline void warpgroup_sync(int id)
{
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

template <int N> __device__ inline void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ inline void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- TMA ---- */

/* Loads one panel: from column c of head h, row t of sequence seq on; out of bounds reads 0.
 * Its bytes count on mbarrier b. */
__device__ inline void tma_load_4d(void *to, const CUtensorMap *map, uint64_t *b, int c, int h,
                                   int t, int seq)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], "
                 "[%2];" ::"r"(smem_addr(to)),
                 "l"((uint64_t)map), "r"(smem_addr(b)), "r"(c), "r"(h), "r"(t), "r"(seq)
                 : "memory");
}

/* Prefetches the same into L2. */
__device__ inline void tma_prefetch_4d(const CUtensorMap *map, int c, int h, int t, int seq)
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(
                     (uint64_t)map),
                 "r"(c), "r"(h), "r"(t), "r"(seq)
                 : "memory");
}

/* Loads contiguous bytes (cp.async.bulk); they count on mbarrier b. */
__device__ inline void bulk_load(uint32_t to, const void *from, unsigned bytes, uint32_t b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(b)
        : "memory");
}
__device__ inline void bulk_load(void *to, const void *from, unsigned bytes, uint64_t *b)
{
    bulk_load(smem_addr(to), from, bytes, smem_addr(b));
}

/* Brings contiguous bytes, a multiple of 16, into L2: a hint, which nothing waits for. */
__device__ inline void bulk_prefetch(const void *from, unsigned bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

/* Loads one panel of a matrix, from column c and row `row` on; the tensor map has the number of
 * rows. */
__device__ inline void tma_load_2d(void *to, const CUtensorMap *map, uint64_t *b, int c, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(smem_addr(to)),
                 "l"((uint64_t)map), "r"(smem_addr(b)), "r"(c), "r"(row)
                 : "memory");
}

/* The same of a matrix whose tensor map has rows in runs: row `in` of each run, from run `run`
 * on. */
__device__ inline void tma_load_3d(void *to, const CUtensorMap *map, uint64_t *b, int c, int in,
                                   int run)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], "
                 "[%2];" ::"r"(smem_addr(to)),
                 "l"((uint64_t)map), "r"(smem_addr(b)), "r"(c), "r"(in), "r"(run)
                 : "memory");
}

/* Stores rows of 128 bytes of a matrix, from column c on; out of bounds is not written.
 * evict_first: the result is not read again soon, and should not push inputs out of L2.
 * bulk_commit closes a group. */
__device__ inline void tma_store_2d(const CUtensorMap *map, const void *from, int c, int row)
{
    asm volatile("{\n.reg .b64 first;\ncreatepolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
                 "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, "
                 "{%2, %3}], [%1], first;\n}" ::"l"((uint64_t)map),
                 "r"(smem_addr(from)), "r"(c), "r"(row)
                 : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Stores one panel to column c of head h, row t of sequence seq on. */
__device__ inline void tma_store_4d(const CUtensorMap *map, const void *from, int c, int h, int t,
                                    int seq)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, "
                 "%5}], [%1];" ::"l"((uint64_t)map),
                 "r"(smem_addr(from)), "r"(c), "r"(h), "r"(t), "r"(seq)
                 : "memory");
}

/* Orders this thread's writes to shared memory before later accesses of the async proxy: TMA
 * stores and wgmma operands. */
__device__ inline void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Adds integers from shared to global memory, a multiple of 16 bytes, as one bulk group.
 * bulk_wait_read: shared memory of all but the last LEFT groups of this thread has been read. */
__device__ inline void bulk_reduce_add_s32(void *to, const void *from, unsigned bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], "
                 "%2;\ncp.async.bulk.commit_group;" ::"l"(to),
                 "r"(smem_addr(from)), "r"(bytes)
                 : "memory");
}
template <int LEFT = 0> __device__ inline void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

/* All bulk groups of this thread are complete, and their writes visible to it. */
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* Four 8x8 matrices of 16-bit elements, the inverse of ldmatrix; each lane has the address of
 * one row of 16 bytes. */
__device__ inline void stmatrix_x4(void *row, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     smem_addr(row)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---- operands of wgmma ---- */

/* The matrix descriptor of an operand in the 128-byte swizzle, with 1024 bytes from eight rows
 * to the next eight (stride byte offset).  `apart`: bytes from one panel to the next (leading
 * byte offset), used where the operand is transposed and wider than a panel. */
__device__ inline uint64_t smem_desc(const void *p, unsigned apart = 16)
{
    return (uint64_t)((smem_addr(p) & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* The matrix descriptor of an operand without a swizzle, whose rows are eight 16-bit elements, one
 * row behind the other.  A k-step takes 16 elements: as the leading byte offset is 0, elements 8 to
 * 15 are 0 to 7 once more, and the other operand must be 0 there. */
__device__ inline uint64_t smem_desc_unswizzled(const void *p)
{
    return (uint64_t)((smem_addr(p) & 0x3ffff) >> 4) | (uint64_t)(128 >> 4) << 32;
}

/* The descriptor of an address `bytes` further on.  The upper half is left alone, so that
 * constant advances fold and cost no registers. */
__device__ inline uint64_t smem_desc_advance(uint64_t f, unsigned bytes)
{
    return (f & 0xffffffff00000000ull) | (uint32_t)((uint32_t)f + (bytes >> 4));
}

/* The index of this thread's warpgroup, warp-uniform for the compiler. */
__device__ inline int warpgroup_index() { return __shfl_sync(~0u, (int)threadIdx.x / 128, 0); }

/* wgmma_fence: accumulators and A fragments in registers are ready.  wgmma_commit closes a
 * group. wgmma_wait: at most LEFT groups are in flight. */
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> __device__ inline void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

template <int N> __device__ inline uint32_t or_bits(const float (&x)[N][4])
{
    uint32_t bits = 0;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) bits |= __float_as_uint(x[n][e]);
    return bits;
}

/* Keeps what `bits` is computed from ahead of the wait for wgmma: ptxas would sink exponentials
 * below it, where nothing overlaps them.  The predicate is never true in practice, and would
 * only sleep for 0 ns. */
__device__ inline void pin_before_wait(uint32_t bits)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0xffffffff;\n@p nanosleep.u32 0;\n}" ::"r"(bits)
        : "memory");
}

/* ---- wgmma ----
 *
 * One instruction is 64 rows by 8 N columns by 16.  Inline assembly needs its operands spelled out,
 * so the lists of 4 to 96 accumulators are macros, and a shape and type each is a line. */

#define C4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define C16 C4(0), C4(1), C4(2), C4(3)
#define C32 C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7)
#define C64 C32, C4(8), C4(9), C4(10), C4(11), C4(12), C4(13), C4(14), C4(15)
#define C96 C64, C4(16), C4(17), C4(18), C4(19), C4(20), C4(21), C4(22), C4(23)
#define D4 "%0,%1,%2,%3"
#define D16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define D32                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define D64                                                                                        \
    D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"    \
        "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define D96                                                                                        \
    D64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,"    \
        "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WGMMA(shape, type, d, a, b, add, transposed)                                               \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned." shape            \
    ".f32." type "." type " {" d "}, " a ", " b ", p, 1, 1, " transposed ";\n}"
#define SS_INPUTS "l"(a), "l"(b), "r"((int)add), "n"(TA), "n"(TB)
#define RS_INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(TB)
#define SS32(type) WGMMA("m64n64k16", type, D32, "%32", "%33", "%34", "%35, %36")
#define SS64(type) WGMMA("m64n128k16", type, D64, "%64", "%65", "%66", "%67, %68")
#define SS96(type) WGMMA("m64n192k16", type, D96, "%96", "%97", "%98", "%99, %100")
#define RS4(type) WGMMA("m64n8k16", type, D4, "{%4,%5,%6,%7}", "%8", "%9", "%10")
#define RS16(type) WGMMA("m64n32k16", type, D16, "{%16,%17,%18,%19}", "%20", "%21", "%22")
#define RS32(type) WGMMA("m64n64k16", type, D32, "{%32,%33,%34,%35}", "%36", "%37", "%38")
#define RS64(type) WGMMA("m64n128k16", type, D64, "{%64,%65,%66,%67}", "%68", "%69", "%70")

/* c (64, 8 N) = A B, or c += A B where add: A (64, 16) and B (16, 8 N) by descriptor.  TA, TB: rows
 * of that operand in shared memory run along M or N, not along K. */
template <bool TA, bool TB, int N, class T>
__device__ inline void wgmma(float (&c)[N][4], uint64_t a, uint64_t b, bool add, T)
{
    constexpr bool IS_BF16 = kind<T>::dtype == FV_BF16;
    static_assert(N == 8 || N == 16 || (N == 24 && IS_BF16), "add the shape to this list");
    if constexpr (N == 8 && IS_BF16)
        asm volatile(SS32("bf16") : C32 : SS_INPUTS);
    else if constexpr (N == 8)
        asm volatile(SS32("f16") : C32 : SS_INPUTS);
    else if constexpr (N == 16 && IS_BF16)
        asm volatile(SS64("bf16") : C64 : SS_INPUTS);
    else if constexpr (N == 16)
        asm volatile(SS64("f16") : C64 : SS_INPUTS);
    else
        asm volatile(SS96("bf16") : C96 : SS_INPUTS);
}

/* The same with A in registers, fragments as of mma.sync (tile.h). */
template <bool TB, int N, class T>
__device__ inline void wgmma(float (&c)[N][4], const uint32_t (&a)[4], uint64_t b, bool add, T)
{
    constexpr bool IS_BF16 = kind<T>::dtype == FV_BF16;
    static_assert(((N == 1 || N == 4) && IS_BF16) || N == 8 || N == 16,
                  "add the shape to this list");
    if constexpr (N == 1)
        asm volatile(RS4("bf16") : C4(0) : RS_INPUTS);
    else if constexpr (N == 4)
        asm volatile(RS16("bf16") : C16 : RS_INPUTS);
    else if constexpr (N == 8 && IS_BF16)
        asm volatile(RS32("bf16") : C32 : RS_INPUTS);
    else if constexpr (N == 8)
        asm volatile(RS32("f16") : C32 : RS_INPUTS);
    else if constexpr (IS_BF16)
        asm volatile(RS64("bf16") : C64 : RS_INPUTS);
    else
        asm volatile(RS64("f16") : C64 : RS_INPUTS);
}

/* ---- products of whole tiles ---- */

/* c (64, 8 N) = A B' over columns [FROM, K), or c += A B' where ADD: A is 64 rows of panels with RA
 * rows, B is 8 N rows of panels with RB rows. */
template <int K, int RA, int RB, bool ADD = false, int FROM = 0, int N, class T>
__device__ inline void gemm_nt(float (&c)[N][4], const T *a, const T *b)
{
    uint64_t fa = smem_desc(a), fb = smem_desc(b);
#pragma unroll
    for (int k = FROM; k < K; k += 16) {
        unsigned panel = k / PANEL, in = k % PANEL, size = sizeof(T);
        wgmma<false, false>(c, smem_desc_advance(fa, (panel * RA * PANEL + in) * size),
                            smem_desc_advance(fb, (panel * RB * PANEL + in) * size),
                            ADD || k > FROM, T());
    }
}

/* c += A B' over the first STEPS times 16 columns: A in registers, B as above. */
template <int RB, int STEPS, int N, class T>
__device__ inline void gemm_nt_rs(float (&c)[N][4], const uint32_t (*a)[4], const T *b)
{
    uint64_t fb = smem_desc(b);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        unsigned panel = k * 16 / PANEL, in = k * 16 % PANEL;
        wgmma<false>(c, a[k], smem_desc_advance(fb, (panel * RB * PANEL + in) * sizeof(T)), true,
                     T());
    }
}

/* Accumulators as A fragments of the next wgmma, two columns at a time through `both`. */
template <int K, int N, class F>
__device__ inline void pack_fragments_by(uint32_t (&p)[K][4], const float (&s)[N][4], F both)
{
    static_assert(N == 2 * K, "16 columns each");
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int n = 2 * k + e / 2, i = e % 2 * 2;
            p[k][e] = both(s[n][i], s[n][i + 1]);
        }
}
template <int K, int N, class T>
__device__ inline void pack_fragments(uint32_t (&p)[K][4], const float (&s)[N][4], T)
{
    pack_fragments_by(p, s, [](float a, float b) { return pack2(a, b, T()); });
}

/* c (64, 8 N) += A B: A in registers, K fragments of 16 columns, B (16 K, 8 N) in panels with 16
 * K rows. */
template <int N, int K, class T>
__device__ inline void gemm_rs(float (&c)[N][4], const uint32_t (&a)[K][4], const T *b,
                               bool add = true)
{
    uint64_t fb = smem_desc(b, 16 * K * PANEL * sizeof(T));
#pragma unroll
    for (int k = 0; k < K; k++)
        wgmma<true>(c, a[k], smem_desc_advance(fb, k * 16 * PANEL * sizeof(T)), add || k > 0, T());
}

/* c (64, 64) = A' B: A and B are one panel with K rows each. */
template <int K, class T> __device__ inline void gemm_tn(float (&c)[8][4], const T *a, const T *b)
{
    uint64_t fa = smem_desc(a, K * PANEL * sizeof(T)), fb = smem_desc(b, K * PANEL * sizeof(T));
#pragma unroll
    for (int k = 0; k < K; k += 16)
        wgmma<true, true>(c, smem_desc_advance(fa, k * PANEL * sizeof(T)),
                          smem_desc_advance(fb, k * PANEL * sizeof(T)), k > 0, T());
}

/* ---- on the host ---- */

/* Encodes a tensor map of x: `axes` lengths, innermost first, bytes from one index to the next
 * of all axes but the innermost, and the box that one TMA instruction moves.  False: the driver
 * has no such call, or TMA cannot address x. */
bool fv_cuda_tensor_map_nd(CUtensorMap *m, const void *x, fv_dtype t, int axes,
                           const cuuint64_t *dim, const cuuint64_t *step, const cuuint32_t *box);
/* The tensor map of x (B, T, H, W), rows `row` and sequences `batch` elements apart, in boxes of
 * `rows` rows by one panel.  False as above. */
bool fv_cuda_tensor_map(CUtensorMap *m, const void *x, fv_dtype t, int64_t B, int64_t T, int64_t H,
                        int64_t W, int64_t row, int64_t batch, int rows);
/* The tensor maps of q, k and v, in boxes of `queries` and `keys` rows. */
struct qkv_tensor_maps {
    CUtensorMap q, k, v;
};
bool fv_cuda_tensor_map_qkv(qkv_tensor_maps *m, const fv_attn_args *a, fv_dtype t, int queries,
                            int keys);

#endif
