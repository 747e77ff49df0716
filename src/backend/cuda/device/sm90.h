/* sm90.h - what only Hopper (sm_90a) has: tiles brought by the copy engine, products of four warps
 * at once, barriers.
 *
 * A tile in shared memory is one or more panels, each of so many rows of 64 numbers of 16 bits: 128
 * bytes a row, in which the 16 bytes numbered c stand at place c xor (row % 8).  The copy engine
 * writes tiles that way and wgmma reads them that way, so no two rows of eight meet in the same
 * banks.  Panels begin at multiples of 1024 bytes. */
#ifndef FV_CUDA_DEVICE_SM90_H
#define FV_CUDA_DEVICE_SM90_H

#include <cuda.h>

#include "tile.h"

#define PANEL 64 /* numbers in a row of a panel */

__device__ inline uint32_t smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers: a phase ends when all have arrived and all bytes have come; waiting names the
 * phase by its parity ---- */

__device__ inline void mbarrier_init(uint64_t *b, unsigned arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_addr(b)), "r"(arrivals)
                 : "memory");
}

/* What one thread prepared is seen by the copy engine. */
__device__ inline void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_addr(b)) : "memory");
}

__device__ inline void mbarrier_arrive_expect_tx(uint64_t *b, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(b)),
                 "r"(bytes)
                 : "memory");
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

/* Whether a phase has ended; asked ahead of a wait, which takes long even where there is nothing to
 * wait for. */
__device__ inline bool mbarrier_test(uint64_t *b, unsigned parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], "
                 "%2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(smem_addr(b)), "r"(parity)
                 : "memory");
    return done;
}

/* This warp is done with a tile. */
__device__ inline void warp_arrive(uint64_t *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(b);
}

/* Two groups of four warps take turns: named barriers 1 .. 15, for 256 threads of which one half
 * waits.  Both wait: they meet. */
__device__ inline void named_barrier_sync(int id)
{
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
}
__device__ inline void named_barrier_arrive(int id)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory");
}

/* The four warps of a group meet at named barrier id. */
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

/* ---- the copy engine ---- */

/* A panel from column c, head h, row t of sequence b on; what lies outside becomes 0.  The barrier
 * counts the bytes. */
__device__ inline void tma_load_4d(void *to, const CUtensorMap *map, uint64_t *b, int c, int h,
                                   int t, int seq)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], "
                 "[%2];" ::"r"(smem_addr(to)),
                 "l"((uint64_t)map), "r"(smem_addr(b)), "r"(c), "r"(h), "r"(t), "r"(seq)
                 : "memory");
}

/* The same as far as the second-level cache: it will be asked for soon. */
__device__ inline void tma_prefetch_4d(const CUtensorMap *map, int c, int h, int t, int seq)
{
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(
                     (uint64_t)map),
                 "r"(c), "r"(h), "r"(t), "r"(seq)
                 : "memory");
}

/* Bytes as they lie in memory; the barrier counts them. */
__device__ inline void bulk_load(void *to, const void *from, unsigned bytes, uint64_t *b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(smem_addr(to)),
        "l"(from), "r"(bytes), "r"(smem_addr(b))
        : "memory");
}

/* Rows of a matrix, so many as its map says, of a panel from column c on. */
__device__ inline void tma_load_2d(void *to, const CUtensorMap *map, uint64_t *b, int c, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(smem_addr(to)),
                 "l"((uint64_t)map), "r"(smem_addr(b)), "r"(c), "r"(row)
                 : "memory");
}

/* The same of a matrix whose map says that its rows stand in runs: from row `in` of each run, from
 * run `run` on. */
__device__ inline void tma_load_3d(void *to, const CUtensorMap *map, uint64_t *b, int c, int in,
                                   int run)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], "
                 "[%2];" ::"r"(smem_addr(to)),
                 "l"((uint64_t)map), "r"(smem_addr(b)), "r"(c), "r"(in), "r"(run)
                 : "memory");
}

/* The other way: rows of a matrix from column c on, of 128 bytes.  What lies outside is not
 * written.  Nobody is expected to read them soon, so they are the first to leave the second-level
 * cache.  bulk_commit: all so far count as one. */
__device__ inline void tma_store_2d(const CUtensorMap *map, const void *from, int c, int row)
{
    asm volatile("{\n.reg .b64 first;\ncreatepolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
                 "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, "
                 "{%2, %3}], [%1], first;\n}" ::"l"((uint64_t)map),
                 "r"(smem_addr(from)), "r"(c), "r"(row)
                 : "memory");
}
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* A panel to column c, head h, row t of sequence b on. */
__device__ inline void tma_store_4d(const CUtensorMap *map, const void *from, int c, int h, int t,
                                    int seq)
{
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, "
                 "%5}], [%1];" ::"l"((uint64_t)map),
                 "r"(smem_addr(from)), "r"(c), "r"(h), "r"(t), "r"(seq)
                 : "memory");
}

/* What this thread wrote to shared memory is seen by the engine and by products, once a barrier has
 * passed. */
__device__ inline void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Adds whole numbers from shared memory to those in memory, 16 bytes or a multiple.
 * bulk_wait_read: all that this thread sent, or wrote as above, has been read, but for the last
 * LEFT. */
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

/* All that this thread sent is there. */
__device__ inline void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* Four 8x8 matrices of 16 bits as ldmatrix reads them; each thread names one row of 16 bytes. */
__device__ inline void stmatrix_x4(void *row, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     smem_addr(row)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---- products of 64 rows by N columns by 16, of a group of four warps ---- */

/* Where a factor stands, as wgmma wants to know it.  Eight rows of a panel are 1024 bytes.  `apart`
 * is the way from one panel to the next where the row is the dimension that is not summed over and
 * it is wider than a panel. */
__device__ inline uint64_t smem_desc(const void *p, unsigned apart = 16)
{
    return (uint64_t)((smem_addr(p) & 0x3ffff) >> 4) | (uint64_t)(apart >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* The factor so many bytes further on.  Sums of what is known in advance stay out of registers. */
__device__ inline uint64_t smem_desc_advance(uint64_t f, unsigned bytes)
{
    return (f & 0xffffffff00000000ull) | (uint32_t)((uint32_t)f + (bytes >> 4));
}

/* Which group of four warps this thread is in, known to be the same for all of a warp. */
__device__ inline int warpgroup_index() { return __shfl_sync(~0u, (int)threadIdx.x / 128, 0); }

/* Registers of sums and factors are ready / everything before is one group / at most LEFT groups
 * are not done. */
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

/* What these bits come from is worked out here, beside the products under way: the assembler would
 * move exponentials behind the wait for these.  Nothing happens. */
__device__ inline void pin_before_wait(uint32_t bits)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0xffffffff;\n@p nanosleep.u32 0;\n}" ::"r"(bits)
        : "memory");
}

#define C4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define C32 C4(0), C4(1), C4(2), C4(3), C4(4), C4(5), C4(6), C4(7)
#define C64 C32, C4(8), C4(9), C4(10), C4(11), C4(12), C4(13), C4(14), C4(15)
#define C96 C64, C4(16), C4(17), C4(18), C4(19), C4(20), C4(21), C4(22), C4(23)
#define REGS32                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%" \
    "25,%26,%27,%28,%29,%30,%31}"
#define REGS64                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%" \
    "25,%26,%27,%28,%29,%30,%31,"                                                                  \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
    "%55,%56,%57,%58,%59,%60,%61,"                                                                 \
    "%62,%63}"
#define REGS96                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%" \
    "25,%26,%27,%28,%29,%30,%31,"                                                                  \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
    "%55,%56,%57,%58,%59,%60,%61,"                                                                 \
    "%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84," \
    "%85,%86,%87,%88,%89,%90,%91,"                                                                 \
    "%92,%93,%94,%95}"
#define WGMMA_SS(shape, type, list, a, b, add, ta, tb)                                             \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned." shape            \
    ".f32." type "." type " " list ", " a ", " b ", p, 1, 1, " ta ", " tb ";\n}"
#define WGMMA_RS(shape, type, list, a, b, add, tb)                                                 \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned." shape            \
    ".f32." type "." type " " list ", " a ", " b ", p, 1, 1, " tb ";\n}"

/* c = A B, or c += A B; both in shared memory.  A (64, 16), B (16, N).  TA, TB: the factor's rows
 * in memory run along the dimension that is kept, not the one summed over. */
template <bool TA, bool TB>
__device__ inline void wgmma(float (&c)[8][4], uint64_t a, uint64_t b, bool add, bf16)
{
    asm volatile(WGMMA_SS("m64n64k16", "bf16", REGS32, "%32", "%33", "%34", "%35", "%36")
                 : C32
                 : "l"(a), "l"(b), "r"((int)add), "n"(TA), "n"(TB));
}
template <bool TA, bool TB>
__device__ inline void wgmma(float (&c)[8][4], uint64_t a, uint64_t b, bool add, f16)
{
    asm volatile(WGMMA_SS("m64n64k16", "f16", REGS32, "%32", "%33", "%34", "%35", "%36")
                 : C32
                 : "l"(a), "l"(b), "r"((int)add), "n"(TA), "n"(TB));
}
template <bool TA, bool TB>
__device__ inline void wgmma(float (&c)[16][4], uint64_t a, uint64_t b, bool add, bf16)
{
    asm volatile(WGMMA_SS("m64n128k16", "bf16", REGS64, "%64", "%65", "%66", "%67", "%68")
                 : C64
                 : "l"(a), "l"(b), "r"((int)add), "n"(TA), "n"(TB));
}
template <bool TA, bool TB>
__device__ inline void wgmma(float (&c)[16][4], uint64_t a, uint64_t b, bool add, f16)
{
    asm volatile(WGMMA_SS("m64n128k16", "f16", REGS64, "%64", "%65", "%66", "%67", "%68")
                 : C64
                 : "l"(a), "l"(b), "r"((int)add), "n"(TA), "n"(TB));
}

template <bool TA, bool TB>
__device__ inline void wgmma(float (&c)[24][4], uint64_t a, uint64_t b, bool add, bf16)
{
    asm volatile(WGMMA_SS("m64n192k16", "bf16", REGS96, "%96", "%97", "%98", "%99", "%100")
                 : C96
                 : "l"(a), "l"(b), "r"((int)add), "n"(TA), "n"(TB));
}

/* The same with A in registers, as tile.h's mma has it. */
template <bool TB>
__device__ inline void wgmma(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, bool add, bf16)
{
    asm volatile(WGMMA_RS("m64n64k16", "bf16", REGS32, "{%32,%33,%34,%35}", "%36", "%37", "%38")
                 : C32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(TB));
}
template <bool TB>
__device__ inline void wgmma(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, bool add, f16)
{
    asm volatile(WGMMA_RS("m64n64k16", "f16", REGS32, "{%32,%33,%34,%35}", "%36", "%37", "%38")
                 : C32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(TB));
}
template <bool TB>
__device__ inline void wgmma(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b, bool add, bf16)
{
    asm volatile(WGMMA_RS("m64n128k16", "bf16", REGS64, "{%64,%65,%66,%67}", "%68", "%69", "%70")
                 : C64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(TB));
}
template <bool TB>
__device__ inline void wgmma(float (&c)[16][4], const uint32_t (&a)[4], uint64_t b, bool add, f16)
{
    asm volatile(WGMMA_RS("m64n128k16", "f16", REGS64, "{%64,%65,%66,%67}", "%68", "%69", "%70")
                 : C64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(TB));
}

/* c (64, 8 N) = A B' over K numbers: A 64 rows of panels of RA rows, B 8 N rows of panels of RB
 * rows. */
template <int K, int RA, int RB, int N, class T>
__device__ inline void gemm_nt(float (&c)[N][4], const T *a, const T *b)
{
    uint64_t fa = smem_desc(a), fb = smem_desc(b);
#pragma unroll
    for (int k = 0; k < K; k += 16) {
        unsigned panel = k / PANEL, in = k % PANEL, size = sizeof(T);
        wgmma<false, false>(c, smem_desc_advance(fa, (panel * RA * PANEL + in) * size),
                            smem_desc_advance(fb, (panel * RB * PANEL + in) * size), k > 0, T());
    }
}

/* Sums as the first factor of a product that follows, two at a time as `both` has it. */
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

/* c (64, 8 N) += A B: A in registers, 16 columns each, B has 16 K rows of 8 N numbers in panels of
 * 16 K rows. */
template <int N, int K, class T>
__device__ inline void gemm_rs(float (&c)[N][4], const uint32_t (&a)[K][4], const T *b,
                               bool add = true)
{
    uint64_t fb = smem_desc(b, 16 * K * PANEL * sizeof(T));
#pragma unroll
    for (int k = 0; k < K; k++)
        wgmma<true>(c, a[k], smem_desc_advance(fb, k * 16 * PANEL * sizeof(T)), add || k > 0, T());
}

/* c (64, 64) = A' B: both have K rows of 64 numbers, one panel. */
template <int K, class T> __device__ inline void gemm_tn(float (&c)[8][4], const T *a, const T *b)
{
    uint64_t fa = smem_desc(a, K * PANEL * sizeof(T)), fb = smem_desc(b, K * PANEL * sizeof(T));
#pragma unroll
    for (int k = 0; k < K; k += 16)
        wgmma<true, true>(c, smem_desc_advance(fa, k * PANEL * sizeof(T)),
                          smem_desc_advance(fb, k * PANEL * sizeof(T)), k > 0, T());
}

/* ---- on the host ---- */

/* Describes x of `axes` axes, the last one first: lengths, bytes from one to the next of all but
 * the first, and what is brought at a time, a panel's row along the first.  False: the engine
 * cannot, or there is none. */
bool fv_cuda_tensor_map_nd(CUtensorMap *m, const void *x, fv_dtype t, int axes,
                           const cuuint64_t *dim, const cuuint64_t *step, const cuuint32_t *box);
/* Describes x (B, T, H heads of W numbers), rows `row` and sequences `batch` numbers apart, to be
 * brought `rows` rows of a panel at a time.  False: likewise. */
bool fv_cuda_tensor_map(CUtensorMap *m, const void *x, fv_dtype t, int64_t B, int64_t T, int64_t H,
                        int64_t W, int64_t row, int64_t batch, int rows);
/* Describes the inputs of an attention, of which so many queries, or keys with their values, are
 * brought at a time. */
struct qkv_tensor_maps {
    CUtensorMap q, k, v;
};
bool fv_cuda_tensor_map_qkv(qkv_tensor_maps *m, const fv_attn_args *a, fv_dtype t, int queries,
                            int keys);

#endif
