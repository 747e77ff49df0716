/* sm90_addr.h - the mbarrier and bulk-copy primitives of sm90.h for callers that keep 32-bit
 * shared-memory addresses, and release/acquire accesses.
 *
 * A ring that computes the address of slot and barrier from an index does it in 32 bits with an
 * address, in 64 bits with a generic pointer; in the megakernel those registers are short. */
#ifndef FV_CUDA_DEVICE_SM90_ADDR_H
#define FV_CUDA_DEVICE_SM90_ADDR_H

#include "sm90.h"

__device__ inline void mbarrier_arrive(uint32_t b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}

/* Counts as n arrivals: one warp for all. */
__device__ inline void mbarrier_arrive_count(uint32_t b, int n)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(n) : "memory");
}

__device__ inline void mbarrier_arrive_expect_tx(uint32_t b, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
                 : "memory");
}

__device__ inline void mbarrier_wait(uint32_t b, int parity)
{
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], "
                 "%1;\n@!p bra AGAIN;\n}" ::"r"(b),
                 "r"(parity)
                 : "memory");
}

__device__ inline void bulk_load(uint32_t to, const void *from, int bytes, uint32_t b)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(b)
        : "memory");
}

__device__ inline uint4 ld_shared16(uint32_t a)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(a)
                 : "memory");
    return v;
}

/* ---- release and acquire: a flag in smem within a block, a counter in global memory between
 * blocks; writes before the release are visible after the acquire that reads it ---- */

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
__device__ inline void add_release_gpu(unsigned *p)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory");
}
__device__ inline unsigned load_acquire_gpu(const unsigned *p)
{
    unsigned n;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(p) : "memory");
    return n;
}

#endif
