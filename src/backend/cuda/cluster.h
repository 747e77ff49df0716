/* cluster.h - blocks of a cluster: what one of them brings comes to several, and each says to the others when it has room. */
#ifndef FV_CUDA_CLUSTER_H
#define FV_CUDA_CLUSTER_H

#include "hopper.h"

__device__ inline int cluster_rank()
{
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

/* All threads of all blocks meet. */
__device__ inline void cluster_meet()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* Where the same place of another block is, or of this, and arriving at a barrier there. */
__device__ inline uint32_t address_at(const void *p, int rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_at(p)), "r"(rank));
    return there;
}
__device__ inline void arrive_at(uint32_t there)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}

/* A panel as bring_panel has it, to the same place of all blocks whose bit is set; the barrier of each counts its bytes. */
__device__ inline void bring_panel_to(unsigned blocks, void *to, const CUtensorMap *map, uint64_t *b, int c, int h, int t,
                                      int seq)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_at(to)),
                 "l"((uint64_t)map), "r"(shared_at(b)), "r"(c), "r"(h), "r"(t), "r"(seq), "h"((unsigned short)blocks)
                 : "memory");
}

/* 8 bytes, or zeros, on their own way; arrive_with_copies: this thread arrives once all that it sent so has come. */
__device__ inline void copy_eight(void *to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_at(to)), "l"(from), "r"(there ? 8 : 0) : "memory");
}
__device__ inline void arrive_with_copies(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_at(b)) : "memory");
}

#endif
