/* quant_sm90.cu - products of 2 to 128 rows by quantised weights on Hopper: weights are read as
 * they are packed (quant.h), once, and become A fragments of wgmma in registers.
 *
 *     sums (parts,rows,n) f32 = x (rows,k) W' over the part's blocks of k,   x in bf16
 *
 * A block has one part of k: its columns of x stay in shared memory, and tiles of 64 rows of W pass
 * by.
 *
 *   producers   four warps copy chunks of W into a ring of stages.  They do not wait for the kernel
 *               before: that does not write weights
 *   consumers   two or three warpgroups, each with tiles of its own.  Values are exact in bf16, so
 *               a block of 32 is two wgmmas, whose sums take the scale when they are done, while
 *               those of the next block are in flight
 *
 * A lane's share of a block is eight neighbours, where an A fragment has pairs that are eight
 * apart: so x has another order in shared memory, the one in which lanes have W. */
#include "quant.h"
#include "backend/cuda/device/sm90_pipeline.h"

namespace
{
enum {
    TILE_ROWS = 64, /* of W: a warpgroup's */
    QUADS = TILE_ROWS / QUANT_ROWS,
    LEAST_STAGES = 4,
    MOST_STAGES = 12,
    MOST_BLOCKS = 32, /* of k in a part */
    WHOLE_STEP = 8,   /* blocks that are taken without a wait for all products */
    PRODUCER_REGISTERS = 24,
    MOST_SMEM = 227 << 10
};

template <int WEIGHTS, int ROWS_> struct quant_config {
    static constexpr int WT = WEIGHTS, ROWS = ROWS_;   /* ROWS: of x, at most */
    static constexpr int GROUPS = ROWS == 128 ? 2 : 3; /* consumer warpgroups */
    static constexpr int CONSUMER_REGISTERS = ROWS == 128 ? 240 : 160;
    static constexpr int BLOCK_THREADS = 128 * (GROUPS + 1);
    static constexpr int BLOCK_BYTES = quant_block_bytes(WT);
    static constexpr int CHUNK = WT == FV_Q8 ? 8 : 16; /* blocks of k in a stage */
    /* padded, so that lanes read different banks */
    static constexpr int QUAD_BYTES = CHUNK * BLOCK_BYTES + (WT == FV_Q8 ? 16 : 64);
    static constexpr int STAGE_BYTES = QUADS * QUAD_BYTES;
    static constexpr int X_BYTES = ROWS * QUANT_BLOCK * (int)sizeof(bf16); /* of a block of k */
};

struct quant_job {
    const bf16 *x;
    const char *w;
    float *sums;
    int64_t ld;    /* of sums */
    int64_t apart; /* from part to part of sums */
    int rows, n, k;
    int parts, part_blocks; /* part_blocks: blocks of k of each but the last; even */
    int stages;
};

/* What a block of the grid does: its part of k, and every `step`-th tile from `tile` on. */
struct quant_share {
    int part, tile, step, tiles, first, blocks; /* first, blocks: of k */
    __device__ explicit quant_share(const quant_job &j)
        : part((int)blockIdx.x % j.parts), tile((int)blockIdx.x / j.parts),
          step((int)gridDim.x / j.parts), tiles((j.n + TILE_ROWS - 1) / TILE_ROWS),
          first(part * j.part_blocks),
          blocks(min((j.k + QUANT_BLOCK - 1) / QUANT_BLOCK - first, j.part_blocks))
    {
    }
    /* Of the tiles from t on, those that warpgroups take together. */
    __device__ int together(int t, int groups) const
    {
        return min(groups, (tiles - t + step - 1) / step);
    }
};

/* Shared memory: x in panels of 64 columns, the stages, their barriers. */
template <class P> struct quant_smem {
    bf16 *x;
    unsigned char *stage;
    uint64_t *full, *empty;
    int stages;

    __device__ quant_smem(unsigned char *memory, const quant_job &j)
        : x((bf16 *)memory), stage(memory + j.part_blocks * P::X_BYTES),
          full((uint64_t *)(stage + j.stages * P::STAGE_BYTES)), empty(full + j.stages),
          stages(j.stages)
    {
    }
    __device__ void init() const
    {
        for (int i = 0; i < stages; i++) {
            mbarrier_init(full + i, 4);
            mbarrier_init(empty + i, 4);
        }
        mbarrier_init_fence();
    }
};

/* Stage and lap of the iterations of a ring with a number of stages that only the launch knows. */
struct stage_cursor {
    int stage = 0;
    unsigned lap = 0;
    __device__ void advance(int by, int stages)
    {
        for (stage += by; stage >= stages; stage -= stages) lap++;
    }
};

/* Four warps share the copies of a stage: issuing all of them takes one warp longer than memory
 * takes to deliver them.  A lane copies four rows. */
template <class P>
__device__ inline void produce_weights(const quant_smem<P> &m, const quant_job &j)
{
    const quant_share c(j);
    int lane = (int)threadIdx.x % 32, mine = lane + (int)threadIdx.x / 32 * (QUADS / 4);
    int64_t quad_bytes = quant_tile_bytes(P::WT, j.k);
    const char *w = j.w + (int64_t)c.first * P::BLOCK_BYTES;
    stage_cursor i;
    for (int t = c.tile; t < c.tiles; t += P::GROUPS * c.step) {
        int together = c.together(t, P::GROUPS);
        for (int b = 0; b < c.blocks; b += P::CHUNK)
            for (int g = 0; g < together; g++, i.advance(1, m.stages)) {
                int quad = (t + g * c.step) * QUADS,
                    quads = min(QUADS, (j.n + QUANT_ROWS - 1) / QUANT_ROWS - quad),
                    bytes = min(P::CHUNK, c.blocks - b) * P::BLOCK_BYTES;
                mbarrier_wait(m.empty + i.stage, (i.lap + 1) & 1);
                int some = min(max(quads - (mine - lane), 0), QUADS / 4); /* of this warp */
                if (lane == 0)
                    mbarrier_arrive_expect_tx(m.full + i.stage, (unsigned)(some * bytes));
                __syncwarp();
                if (lane < some)
                    bulk_load(m.stage + i.stage * P::STAGE_BYTES + mine * P::QUAD_BYTES,
                              w + (quad + mine) * quad_bytes + b * P::BLOCK_BYTES, (unsigned)bytes,
                              m.full + i.stage);
            }
    }
}

/* The part's columns of x to shared memory, zeros where there are none: a warp of the consumers
 * takes panels, four rows at a time, a lane eight neighbours of a row.  Pair p of those goes where
 * wgmma wants the columns 2 t and 2 t + 1 of the p-th eight; t is the lane that has them of W. */
template <class P> __device__ inline void load_x(const quant_smem<P> &m, const quant_job &j)
{
    constexpr int WARPS = 4 * P::GROUPS, FOURS = P::ROWS / 4, IN_FLIGHT = FOURS < 8 ? FOURS : 8;
    const quant_share c(j);
    int lane = (int)threadIdx.x % 32, eight = lane % 8, row = lane / 8;
    for (int panel = (int)threadIdx.x / 32 - 4; panel * 2 < c.blocks; panel += WARPS) {
        int block = panel * 2 + eight / 4, k = (c.first + block) * QUANT_BLOCK + eight % 4 * 8,
            rows = block < c.blocks && k < j.k ? j.rows : 0;
        const bf16 *from = j.x + (int64_t)row * j.k + k;
        unsigned to = smem_addr(m.x + (panel * P::ROWS + row) * PANEL) + (unsigned)(eight % 4 * 4);
#pragma unroll
        for (int first = 0; first < FOURS; first += IN_FLIGHT) {
            uint4 v[IN_FLIGHT];
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++) {
                int down = (first + u) * 4;
                v[u] = row + down < rows ? *(const uint4 *)(from + (int64_t)down * j.k) : uint4{};
            }
#pragma unroll
            for (int u = 0; u < IN_FLIGHT; u++) {
                const unsigned pair[4] = {v[u].x, v[u].y, v[u].z, v[u].w};
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    unsigned chunk = (unsigned)((eight / 4 * 4 + p) ^ (row + u % 2 * 4));
                    asm volatile("st.shared.u32 [%0], %1;" ::"r"(
                                     to + chunk * 16 + (unsigned)((first + u) * 4 * PANEL * 2)),
                                 "r"(pair[p])
                                 : "memory");
                }
            }
        }
    }
    fence_async_proxy();
    asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory"); /* consumers alone */
}

/* A block of k of this lane's two rows of W, g and g + 8 of the warp's 16. */
template <int WT> struct quant_fragment {
    uint32_t a[2][4];
    float scale[2];

    __device__ void load(const unsigned char *low, const unsigned char *low_scale, int to_high)
    {
        weight_part<WT> part[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            part[r].v = *(const decltype(part[r].v) *)(low + r * to_high);
            scale[r] = *(const float *)(low_scale + r * to_high);
            uint4 v = part[r].bf16x8();
            a[0][r] = v.x, a[0][2 + r] = v.y, a[1][r] = v.z, a[1][2 + r] = v.w;
        }
    }
};

/* sums += scale * products, rows g and g + 8. */
template <int N>
__device__ __forceinline__ void add_scaled(float (&sums)[N][4], const float (&products)[N][4],
                                           const float (&scale)[2])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sums[n][e] = fmaf(scale[e / 2], products[n][e], sums[n][e]);
}

/* A warpgroup's chunk of `blocks` blocks of k; x: descriptor of its first column.  STEP: how many
 * are taken at a time, without a wait for all products. */
template <class P, int STEP, int N>
__device__ __forceinline__ void add_chunk(float (&sums)[N][4], const unsigned char *low,
                                          const unsigned char *low_scale, uint64_t x, int blocks)
{
    quant_fragment<P::WT> f[2];
    float products[2][N][4];
    for (int from = 0; from < blocks; from += STEP) {
        uint64_t first = smem_desc_advance(x,
                                           (unsigned)(from / 2 * 2 * P::X_BYTES + from % 2 * 64));
#pragma unroll
        for (int u = 0; u < STEP; u++) {
            quant_fragment<P::WT> &now = f[u % 2];
            uint64_t at = smem_desc_advance(first, u / 2 * 2 * P::X_BYTES + u % 2 * 64);
            now.load(low + u * P::BLOCK_BYTES, low_scale + u * P::BLOCK_BYTES, 2 * P::QUAD_BYTES);
            wgmma_fence();
            wgmma<false>(products[u % 2], now.a[0], at, false, bf16());
            wgmma<false>(products[u % 2], now.a[1], smem_desc_advance(at, 32), true, bf16());
            wgmma_commit();
            if (u == 0) continue;
            wgmma_wait<1>();
            add_scaled(sums, products[(u - 1) % 2], f[(u - 1) % 2].scale);
        }
        low += STEP * P::BLOCK_BYTES, low_scale += STEP * P::BLOCK_BYTES;
        wgmma_wait<0>();
        add_scaled(sums, products[(STEP - 1) % 2], f[(STEP - 1) % 2].scale);
    }
}

/* One warpgroup: tile after tile. */
template <class P>
__device__ inline void consume_tiles(const quant_smem<P> &m, const quant_job &j, int group)
{
    const quant_share c(j);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32 % 4, g = lane / 4;
    int row_bytes = quant_row_bytes(P::WT), chunks = (c.blocks + P::CHUNK - 1) / P::CHUNK;
    int quad = (warp * 4 + g / 4) * P::QUAD_BYTES;
    int low = quad + g % 4 * row_bytes + lane % 4 * (row_bytes / 4),
        low_scale = quad + QUANT_ROWS * row_bytes + g % 4 * (int)sizeof(float);
    uint64_t x = smem_desc(m.x);
    stage_cursor i;
    for (int t = c.tile; t < c.tiles; t += P::GROUPS * c.step) {
        int together = c.together(t, P::GROUPS);
        if (group >= together) break;
        float sums[P::ROWS / 8][4];
        clear(sums);
        for (int n = 0; n < chunks; n++, i.advance(together, m.stages)) {
            stage_cursor mine = i;
            mine.advance(group, m.stages);
            const unsigned char *stage = m.stage + mine.stage * P::STAGE_BYTES;
            uint64_t at = smem_desc_advance(x, (unsigned)(n * P::CHUNK * P::X_BYTES));
            int blocks = min(P::CHUNK, c.blocks - n * P::CHUNK);
            /* The stage's previous use may be another warpgroup's, whose load may still be in
             * flight.  This use has the parity of the one before that, which is complete, so wait
             * until the previous one has left the stage empty.  That barrier is not two phases
             * behind: what this warpgroup read last was loaded after the previous use, and that
             * only when the use before it had ended. */
            static_assert(LEAST_STAGES > P::GROUPS, "what was read last is less than a round ago");
            mbarrier_wait(m.empty + mine.stage, (mine.lap + 1) & 1);
            mbarrier_wait(m.full + mine.stage, mine.lap & 1);
            if (blocks % WHOLE_STEP == 0)
                add_chunk<P, WHOLE_STEP>(sums, stage + low, stage + low_scale, at, blocks);
            else
                add_chunk<P, 1>(sums, stage + low, stage + low_scale, at, blocks);
            warp_arrive(m.empty + mine.stage);
        }
        int column = (t + group * c.step) * TILE_ROWS + warp * 16 + g;
        float *to = j.sums + c.part * j.apart + column;
#pragma unroll
        for (int n = 0; n < P::ROWS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = n * 8 + lane % 4 * 2 + e % 2;
                if (row < j.rows && column + e / 2 * 8 < j.n)
                    to[row * j.ld + e / 2 * 8] = sums[n][e];
            }
    }
}

template <class P>
__global__ void __launch_bounds__(P::BLOCK_THREADS, 1)
    multiply_quantised(const __grid_constant__ quant_job j)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    const quant_smem<P> m(memory, j);
    if (threadIdx.x == 0) m.init();
    __syncthreads();
    pdl_launch_dependents();
    int group = warpgroup_index() - 1;
    if (group < 0) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        produce_weights(m, j);
        return;
    }
    setmaxnreg_inc<P::CONSUMER_REGISTERS>();
    pdl_wait();
    load_x(m, j);
    consume_tiles(m, j, group);
}

/* ---- host ---- */

/* Bytes of a stage, and of a block of k of x. */
int stage_bytes(fv_dtype t)
{
    return t == FV_Q8 ? quant_config<FV_Q8, 32>::STAGE_BYTES : quant_config<FV_Q4, 32>::STAGE_BYTES;
}
int rows_of(int64_t m) { return m <= 8 ? 8 : m <= 32 ? 32 : m <= 64 ? 64 : 128; }

/* Blocks of k of a part: as many as give the least time, estimated from the bytes that an SM reads
 * and writes.  Fewer blocks are more sums to add up, more are fewer SMs for each part. */
int part_blocks_of(const device *d, fv_dtype t, int64_t m, int64_t n, int64_t k)
{
    int best = 0, rows = rows_of(m);
    int64_t least = INT64_MAX, tiles = ceil_div(n, TILE_ROWS), blocks = quant_blocks(k);
    for (int some = 8; some <= MOST_BLOCKS; some *= 2) {
        int x_bytes = some * rows * QUANT_BLOCK * (int)sizeof(bf16);
        if (x_bytes + LEAST_STAGES * stage_bytes(t) > MOST_SMEM) break;
        int64_t parts = ceil_div(blocks, some);
        if (parts > d->sm_count) continue;
        int64_t each = ceil_div(tiles, d->sm_count / parts);
        int64_t weights = each * some * QUADS * quant_block_bytes(t), floats = rows * 4,
                sums = each * TILE_ROWS * floats,
                added = (parts > 1 ? 2 : 1) * parts * n * floats / d->sm_count;
        int64_t bytes = weights + x_bytes + sums + added;
        if (bytes >= least) continue;
        least = bytes;
        best = some;
    }
    return best;
}

template <class P> void start(fv_stream *s, quant_job j)
{
    device *d = device_of(s);
    int x = j.part_blocks * P::X_BYTES, each = P::STAGE_BYTES + 2 * (int)sizeof(uint64_t);
    j.stages = (MOST_SMEM - x) / each < MOST_STAGES ? (MOST_SMEM - x) / each : MOST_STAGES;
    int64_t tiles = ceil_div(j.n, TILE_ROWS), most = d->sm_count / j.parts;
    dim3 grid((unsigned)((tiles < most ? tiles : most) * j.parts));
    launch_pdl(s, "gemm", true, multiply_quantised<P>, grid, P::BLOCK_THREADS,
               (size_t)(x + j.stages * each), j);
}

template <int WT> void start_rows(fv_stream *s, const quant_job &j)
{
    int rows = rows_of(j.rows);
    if (rows == 8)
        start<quant_config<WT, 8>>(s, j);
    else if (rows == 32)
        start<quant_config<WT, 32>>(s, j);
    else if (rows == 64)
        start<quant_config<WT, 64>>(s, j);
    else
        start<quant_config<WT, 128>>(s, j);
}
} // namespace

int fv_cuda_quant_parts(fv_stream *s, fv_dtype t, int64_t m, int64_t n, int64_t k)
{
    device *d = device_of(s);
    if (!d->hopper || m > 128 || n > INT32_MAX / 2 || k > INT32_MAX / 2 || k % 8) return 0;
    int some = part_blocks_of(d, t, m, n, k);
    return some ? (int)ceil_div(quant_blocks(k), some) : 0;
}

void fv_cuda_multiply_quantised(fv_stream *s, float *sums, int64_t ld, int64_t apart, const bf16 *x,
                                const void *w, fv_dtype t, int64_t m, int64_t n, int64_t k)
{
    quant_job j = {x, (const char *)w, sums, ld, apart, (int)m, (int)n, (int)k, 0, 0, 0};
    j.part_blocks = part_blocks_of(device_of(s), t, m, n, k);
    j.parts = (int)ceil_div(quant_blocks(k), j.part_blocks);
    if (t == FV_Q8)
        start_rows<FV_Q8>(s, j);
    else
        start_rows<FV_Q4>(s, j);
}
