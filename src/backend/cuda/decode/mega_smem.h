/* mega_smem.h - the megakernel's shared memory: barriers, op descriptors, the ring of weight slots;
 * which rows and tiles belong to a block; and the barrier between blocks. */
#ifndef FV_CUDA_DECODE_MEGA_SMEM_H
#define FV_CUDA_DECODE_MEGA_SMEM_H

#include "backend/cuda/device/sm90_pipeline.h"
#include "mega.h"

/* The block group (or pair of groups) of this block, and its rows. */
struct block_group {
    int index, block, blocks, row, rows; /* block: of `blocks`; row: first of `rows` sequences */
    block_group() = default;
    __device__ block_group(const mk_ops &p, int groups)
    {
        int all = (p.rows + ROWS_BLOCK - 1) / ROWS_BLOCK;
        index = (int)blockIdx.x / p.group_blocks / groups;
        block = (int)blockIdx.x - index * groups * p.group_blocks;
        blocks = min(groups, all - index * groups) * p.group_blocks;
        row = index * groups * ROWS_BLOCK;
        /* SMs are not a multiple of the groups: the remainder has no rows */
        rows = block < blocks ? min(p.rows - row, groups * ROWS_BLOCK) : 0;
    }
    /* This block's first tile; the next ones are `blocks` apart. */
    __device__ int tile(const decode_gemm &f) const
    {
        int t = block - f.first_block;
        if (rows <= 0) return f.tiles;
        return t < 0 ? t + blocks : t;
    }
};

/* Start of the dynamic smem; a table of rotations (turn_bytes), rows of x (x_bytes) and the slots
 * follow. */
struct __align__(128) mk_smem
{
    uint64_t full[MAX_SLOTS], empty[MAX_SLOTS];
    uint64_t op_full[OP_STAGES], op_empty[OP_STAGES];
    mk_op op[OP_STAGES];
    unsigned issued[MAX_SLOTS]; /* how often the slot was filled or is being filled */
    block_group group[2];       /* of one group and of two: computing them takes divisions */
    __align__(16) float partial[2][MMA_WARPS]; /* sums over a row that all warps share */
    /* mean and 1 / deviation of rows of a residual with a norm: of an op, for one row of two */
    float2 residual[ROWS_BLOCK];
    __align__(16) float sums[GROUP][MMA_WARPS][TILE_SUMS];
};

/* (cos, sin) of the group's rows (ROWS_BLOCK,half): all layers of a step rotate alike. */
__device__ inline float2 *turns_of(const mk_smem *d) { return (float2 *)(d + 1); }

__device__ inline uint4 ld_shared16(uint32_t a)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(a)
                 : "memory");
    return v;
}

__device__ inline uint2 ld_shared8(uint32_t a)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a) : "memory");
    return v;
}

__device__ inline void st_shared8(uint32_t a, uint2 v)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(a), "r"(v.x), "r"(v.y) : "memory");
}

__device__ inline unsigned ld_shared4(uint32_t a)
{
    unsigned v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
    return v;
}

__device__ inline float ld_shared_f32(uint32_t a) { return __uint_as_float(ld_shared4(a)); }

__device__ inline float2 ld_shared_f32x2(uint32_t a)
{
    uint2 v = ld_shared8(a);
    return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

/* Where in a slot the values 8 * lane .. of a block of a tile's row are, and the block's scale. */
template <int WT> __device__ inline unsigned value_in_slot(int row, int block, int lane)
{
    if (WT == FV_BF16) return (unsigned)(row * ROW_BYTES + (block * QUANT_BLOCK + lane * 8) * 2);
    return (unsigned)(row / QUANT_ROWS * HALF_SLOT + row % QUANT_ROWS * quant_row_bytes(WT) +
                      block * quant_block_bytes(WT) + lane * quant_row_bytes(WT) / 4);
}
template <int WT> __device__ inline unsigned scale_in_slot(int row, int block)
{
    return (unsigned)(row / QUANT_ROWS * HALF_SLOT + QUANT_ROWS * quant_row_bytes(WT) +
                      row % QUANT_ROWS * (int)sizeof(float) + block * quant_block_bytes(WT));
}
/* From a block to that of the warp's next step. */
template <int WT> __device__ constexpr unsigned step_in_slot()
{
    return WT == FV_BF16 ? 2 * ROUND : MMA_WARPS * quant_block_bytes(WT);
}

/* Ring of weight slots with a full and an empty mbarrier each; producer and consumers walk it in
 * the same order. */
struct slot_ring {
    const mk_ops &p; /* the kernel's parameter: what is there takes no register */
    unsigned smem;   /* address of mk_smem, which begins with full[] and empty[] */
    int i, laps;     /* current slot; laps & 1 is its phase */
    __device__ slot_ring(const mk_ops &p_, const mk_smem *d)
        : p(p_), smem(smem_addr(d)), i(0), laps(0)
    {
    }
    __device__ int slots() const { return p.slots; }
    __device__ unsigned slot(int s) const { return smem + (unsigned)(p.slots_at + s * SLOT_BYTES); }
    __device__ unsigned full(int s) const { return smem + (unsigned)(s * 8); }
    /* Index of the slot u positions after the current one, u < slots(). */
    __device__ int ahead(int u) const { return i + u - (i + u >= p.slots ? p.slots : 0); }
    __device__ unsigned slot() const { return slot(i); }
    __device__ unsigned full() const { return full(i); }
    __device__ unsigned empty() const { return full() + MAX_SLOTS * 8; }
    __device__ void next()
    {
        if (++i == p.slots) i = 0, laps++;
    }
    __device__ void skip(int n)
    {
        for (i += n; i >= p.slots; i -= p.slots) laps++;
    }
    /* skip without its loop, for n <= slots(). */
    __device__ void advance(int n)
    {
        i += n;
        if (i >= p.slots) i -= p.slots, laps++;
    }
    /* A slot always has the same producer: the parity of its barriers is never a lap old. */
    __device__ bool is_of(int producer) const { return i % PRODUCERS == producer; }
};

/* The next n slots of the ring, for a warp: lane u waits on the full barrier of slot u and arrives
 * on its empty one. */
struct next_slots {
    unsigned full, parity;
    bool mine;
    __device__ next_slots(const slot_ring &r, int n)
    {
        int lane = threadIdx.x % 32, i = r.i + lane, over = i >= r.slots() ? r.slots() : 0;
        mine = lane < n;
        full = r.full(i - over);
        parity = (unsigned)(r.laps + (over != 0)) & 1;
    }
    __device__ void wait() const
    {
        /* usually all are full already */
        if (!__all_sync(~0u, !mine || mbarrier_test(full, parity)))
            if (mine) mbarrier_wait(full, parity);
        __syncwarp(); /* orders the other lanes' reads behind the test */
    }
    /* The warp has read them. */
    __device__ void release() const
    {
        __syncwarp();
        if (mine) mbarrier_arrive(full + MAX_SLOTS * 8);
    }
};

/* v[u] of an array that is held in registers: indexing it would move it to local memory. */
__device__ inline unsigned select_element(const unsigned (&v)[GROUP], int u)
{
    return u < 2 ? u ? v[1] : v[0] : u == 2 ? v[2] : v[3];
}

/* The bias of this lane's pair of columns, from the slot of their tile. */
__device__ inline float2 slot_bias(unsigned slot)
{
    float2 b;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(b.x), "=f"(b.y)
                 : "r"(slot + BIAS_AT + threadIdx.x % 4 * 8)
                 : "memory");
    return b;
}

/* The barrier of all blocks of the group, of the pair of groups, or of all groups before an op.
 * Counters only grow during a launch.  What does not depend on other blocks is done between arrive
 * and wait.  Only the first thread knows the counter: 255 others need not compute its address. */
struct block_barrier {
    const mk_ops &p;
    const mk_op &o;
    const block_group &t;
    bool done; /* arrived and waited, or nothing to wait for */
    __device__ unsigned *counter() const
    {
        return o.grid_barrier  ? &p.counters->all_arrived
               : o.groups == 2 ? &p.counters->pair_arrived[t.index]
                               : &p.counters->arrived[t.index];
    }
    __device__ unsigned target() const
    {
        int groups = (p.rows + ROWS_BLOCK - 1) / ROWS_BLOCK;
        return (unsigned)(o.round * (o.grid_barrier ? groups * p.group_blocks : t.blocks));
    }
    __device__ void arrive() const
    {
        if (done) return;
        decode_sync();
        if (threadIdx.x == 0) increment_release_gpu(counter());
    }
    /* Once per thread. */
    __device__ void wait()
    {
        if (done) return;
        done = true;
        if (threadIdx.x == 0) {
            const unsigned *arrived = counter();
            unsigned blocks = target();
            /* an acquire load invalidates L1: one behind the polls, not one per poll */
            while (load_relaxed_gpu(arrived) < blocks) continue;
            load_acquire_gpu(arrived);
        }
        decode_sync();
    }
};

/* Gain and shift of the norm travel in a slot of their own, ahead of the weights, if they fit. */
__device__ inline bool has_gain(const decode_gemm &f)
{
    int vectors = (f.a.gain != NULL) + (f.a.shift != NULL);
    return f.a.norm && vectors && vectors * f.k * (int)sizeof(float) <= SLOT_BYTES;
}

#endif
