/* mega_sm90.cu - the decode megakernel: one persistent block per SM executes all op descriptors of
 * a decode step.
 *
 * With few rows a step is bound by reading the weights, which no kernel writes.  So in every block
 * producer warps do nothing but load the block's share of the weights, op after op, into a ring
 * of smem slots, as far ahead as the ring reaches (about a layer).  DRAM stays busy while the MMA
 * warps wait for the results of other blocks.  Separate kernels, even with programmatic dependent
 * launch, leave it idle at every boundary: GPT-2 124M at batch 1 went from 2,270 to 4,396
 * tokens/s.
 *
 * Dependencies between ops.  Up to FLAGGED_MAX_ROWS rows: flagged words (flags.h), one L2 round
 * trip.  Beyond, spinning on every value costs too much: rows are split over groups of blocks,
 * with a barrier of the group between ops.  Rows are independent, so groups do not wait for each
 * other; they read the same weights at about the same time, so DRAM is read once.
 *
 * Warps of a block: MMA_WARPS compute, PRODUCERS load weights, OP_READER_WARP copies
 * descriptors to smem and prefetches keys and values. */
#include "mega_gemm_warp.h"
#include "mega_one_row.h"
#include "mega_attention.h"
#include "mega_heads.h"

namespace
{

/* ---- producer warps ---- */

/* Gain and shift of the norm into one slot. */
__device__ inline void produce_gain(const decode_gemm &f, mk_smem *d, slot_ring &r, int producer)
{
    int bytes = f.k * (int)sizeof(float);
    bool mine = r.is_of(producer);
    if (mine && r.laps) mbarrier_wait(r.empty(), (r.laps - 1) & 1);
    if (mine && threadIdx.x % 32 == 0) {
        store_release_cta(&d->issued[r.i], (unsigned)r.laps + 1);
        mbarrier_arrive_expect_tx(r.full(), bytes * ((f.a.gain != NULL) + (f.a.shift != NULL)));
        if (f.a.gain) bulk_load(r.slot(), f.a.gain, bytes, r.full());
        if (f.a.shift)
            bulk_load(r.slot() + (unsigned)(f.a.gain ? bytes : 0), f.a.shift, bytes, r.full());
    }
    r.next();
}

/* Of a tile's rows, in runs of ROWS that are neighbours in memory, the first of run i.  Where pairs
 * belong together a run of several has one row of each. */
template <int ROWS>
__device__ inline weight_row first_row(const fv_fused_linear &a, int tile, int i)
{
    const tile_columns c(a, tile);
    return weight_row_of(a, c, ROWS > 1 && c.apart == 1 ? i * ROWS : i);
}

/* The weights of this block's tiles, in the order in which gemm_shared_k and gemm_own_tiles
 * consume them: groups of GROUP tiles, within them K chunk by chunk, within that tile by tile.  A
 * slot is one tile's chunk: a bulk copy for each run of rows that lie together in memory, issued by
 * as many lanes.  A run is a row of W, or QUANT_ROWS quantised ones. */
template <int NEEDS>
__device__ inline void produce_gemm(const decode_gemm &f, mk_smem *d, slot_ring &r, int first,
                                    int blocks, int producer)
{
    constexpr int WT = weights_of(NEEDS), ROWS = WT == FV_BF16 ? 1 : QUANT_ROWS,
                  APART = WT == FV_BF16 ? ROW_BYTES : HALF_SLOT,
                  BLOCK_BYTES = WT == FV_BF16 ? 2 * QUANT_BLOCK : quant_block_bytes(WT);
    /* else rows of a tile are neighbours */
    bool paired = (NEEDS & NEEDS_PAIRS) && (f.a.up || f.a.rope.freq);
    int lane = threadIdx.x % 32, n = f.columns, k = f.k, tiles = f.tiles, chunk = f.chunk;
    int64_t run = (int64_t)k / QUANT_BLOCK * BLOCK_BYTES; /* bytes of ROWS rows */
    for (int t0 = first; t0 < tiles; t0 += GROUP * blocks)
        for (int from = 0; from < k; from += chunk)
            for (int tile = t0; tile < tiles && tile < t0 + GROUP * blocks; tile += blocks) {
                int rows = n - tile * TILE < TILE ? n - tile * TILE : TILE,
                    runs = (rows + ROWS - 1) / ROWS,
                    bytes = (k - from < chunk ? k - from : chunk) / QUANT_BLOCK * BLOCK_BYTES;
                bool bias = f.bias_in_slot && from == 0;
                if (!r.is_of(producer)) {
                    r.next();
                    continue;
                }
                if (r.laps) mbarrier_wait(r.empty(), (r.laps - 1) & 1);
                if (lane == 0) {
                    store_release_cta(&d->issued[r.i], (unsigned)r.laps + 1);
                    mbarrier_arrive_expect_tx(r.full(), runs * bytes +
                                                            (bias ? TILE * (int)sizeof(float) : 0));
                }
                __syncwarp();
                if (lane == TILE && bias)
                    bulk_load(r.slot() + BIAS_AT, (const float *)f.a.bias + tile * TILE,
                              TILE * (int)sizeof(float), r.full());
                weight_row row = {(const char *)f.a.w, tile * TILE + lane * ROWS};
                if (paired) row = first_row<ROWS>(f.a, tile, lane);
                if (lane < runs)
                    bulk_load(r.slot() + (unsigned)(lane * APART),
                              row.w + row.row / ROWS * run + from / QUANT_BLOCK * BLOCK_BYTES,
                              bytes, r.full());
                r.next();
            }
}

/* Producers run through all ops without waiting for their results: weights do not depend on
 * them.  Only full slots stop them.  They take turns, slot by slot: issuing the eight copies of a
 * tile takes a warp longer than L2 takes to deliver them. */
template <int NEEDS> __device__ void produce_weights(const mk_ops &p, mk_smem *d, slot_ring r)
{
    int producer = (int)threadIdx.x / 32 - MMA_WARPS;
    for (int i = 0; i < p.n; i++) {
        const mk_op &o = d->op[i % OP_STAGES];
        mbarrier_wait(smem_addr(&d->op_full[i % OP_STAGES]), i / OP_STAGES & 1);
        const block_group t = d->group[o.groups - 1];
        if (o.kind == GEMM && t.tile(o.gemm) < o.gemm.tiles) {
            if (has_gain(o.gemm)) produce_gain(o.gemm, d, r, producer);
            produce_gemm<NEEDS>(o.gemm, d, r, t.tile(o.gemm), t.blocks, producer);
        }
        warp_arrive(&d->op_empty[i % OP_STAGES]);
    }
}

/* ---- op descriptors ---- */

/* Copies descriptors from the kernel parameter to smem, OP_STAGES ahead.  Each wait for a free
 * stage means that an op has ended, which times the prefetch of the keys and values of the
 * attention PREFETCH_OPS later. */
template <int NEEDS> __device__ void read_ops(const mk_ops &p, const block_group &t, mk_smem *d)
{
    int lane = threadIdx.x % 32;
    for (int i = 0; i < p.n + OP_STAGES - PREFETCH_OPS; i++) {
        if (i >= OP_STAGES)
            mbarrier_wait(smem_addr(&d->op_empty[i % OP_STAGES]), (i / OP_STAGES - 1) & 1);
        if (i < p.n) {
            const unsigned *from = (const unsigned *)&p.op[i];
            unsigned *to = (unsigned *)&d->op[i % OP_STAGES];
            for (int e = lane; e < (int)(sizeof(mk_op) / 4); e += 32) to[e] = from[e];
            __syncwarp(); /* every lane reads the whole descriptor below */
            mbarrier_arrive(smem_addr(&d->op_full[i % OP_STAGES]));
        }
        int soon = i - (OP_STAGES - PREFETCH_OPS);
        if ((NEEDS & NEEDS_F32_CACHE) && soon >= 0 && d->op[soon % OP_STAGES].kind == ATTENTION)
            prefetch_kv(d->op[soon % OP_STAGES].attention, t);
        if (soon >= 0 && d->op[soon % OP_STAGES].kind == ATTENTION_BF16)
            prefetch_kv(d->op[soon % OP_STAGES].attention_bf16, t);
    }
}

/* The last block to exit resets the counters for the next launch and advances the epoch. */
__device__ inline void reset_counters(const mk_ops &p)
{
    if (threadIdx.x || atomicAdd(&p.counters->exited, 1u) != gridDim.x - 1) return;
    *p.counters = mk_counters{{}, {}, 0, 0, p.counters->epoch + (unsigned)p.n};
}

/* Barriers: a slot is full after one arrival and its bytes, empty after one arrival per MMA warp; a
 * descriptor is full after 32 arrivals (the reader warp), empty after one per MMA and producer
 * warp. */
__device__ inline void init_smem(const mk_ops &p, mk_smem *d)
{
    for (int i = 0; i < p.slots; i++) {
        d->issued[i] = 0;
        mbarrier_init(&d->full[i], 1);
        mbarrier_init(&d->empty[i], MMA_WARPS);
    }
    for (int i = 0; i < OP_STAGES; i++) {
        mbarrier_init(&d->op_full[i], 32);
        mbarrier_init(&d->op_empty[i], MMA_WARPS + PRODUCERS);
    }
    for (int i = 0; i < 2; i++) d->group[i] = block_group(p, i + 1);
    mbarrier_init_fence();
    fence_async_proxy();
}

/* Fills the table of rotations, once for all layers. */
__device__ inline void compute_turns(const mk_ops &p, const block_group &t, mk_smem *d)
{
    const fv_fused_rope &o = p.rope;
    for (int i = threadIdx.x; o.freq && i < t.rows * o.half; i += DECODE_THREADS) {
        int row = i / o.half, pair = i % o.half;
        int64_t at = (int64_t)(t.row + row) * o.freq_row + pair;
        turns_of(d)[i] = rotation(o.pos[t.row + row], o.freq[at]);
    }
    decode_sync();
}

/* ---- the kernel ---- */

/* ROWS: how many sequences (mega.h).  NEEDS: mk_ops::needs.
 * An instance for GPT-2, one for Llama, one for wide heads, one for heads that are normed (Qwen3)
 * or sorted (GPT-NeoX), one for those wider still (Gemma), one for BART and one for all else, so
 * that each is given registers for its own path only, and its code stays small: with Llama's paths
 * in the one kernel GPT-2 was 5 to 9 % slower, though it took none of them.  No register of the
 * first three is spilled with many rows: waiting for other blocks invalidates L1, so that each
 * spilled one would come back from L2. */
template <row_count ROWS, int NEEDS>
__global__ void __launch_bounds__(32 * BLOCK_WARPS, 1)
    decode_megakernel(const __grid_constant__ mk_ops p)
{
    constexpr bool MANY = ROWS == MANY_ROWS;
    extern __shared__ __align__(128) unsigned char memory[];
    mk_smem *d = (mk_smem *)memory;
    bf16 *x = (bf16 *)(memory + p.x_at);
    const unsigned char *slots = memory + p.slots_at;
    slot_ring r(p, d);
    /* tag of the first op; 0 is the tag of unused words */
    const unsigned epoch = MANY ? 0 : p.counters->epoch + 1;
    if (threadIdx.x == 0) init_smem(p, d);
    __syncthreads();
    if (threadIdx.x / 32 >= MMA_WARPS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x / 32 == OP_READER_WARP)
            read_ops<NEEDS>(p, block_group(p, 1), d);
        else
            produce_weights<NEEDS>(p, d, r);
        return;
    }
    setmaxnreg_inc<MMA_REGISTERS>();
    if (NEEDS & NEEDS_PAIRS) compute_turns(p, block_group(p, 1), d);
    const block_group single(p, 1);
    int buffer = 0; /* of partial sums, for one row */
    for (int i = 0; i < p.n; i++) {
        const mk_op &o = d->op[i % OP_STAGES];
        mbarrier_wait(smem_addr(&d->op_full[i % OP_STAGES]), i / OP_STAGES & 1);
        const block_group &t = MANY ? d->group[o.groups - 1] : single;
        block_barrier barrier = {p, o, t, !MANY || !o.round || t.rows <= 0};
        barrier.arrive();
        if (MANY && o.kind == GEMM && !o.gemm.tile_per_warp) barrier.wait();
        if ((NEEDS & NEEDS_WIDEST_HEADS) && o.kind == HEADS && o.heads.a.W == 256)
            split_heads<MANY, 8>(o, t, turns_of(d), epoch, i, barrier);
        else if ((NEEDS & NEEDS_HEADS) && o.kind == HEADS && o.heads.a.W == 128)
            split_heads<MANY, 4>(o, t, turns_of(d), epoch, i, barrier);
        else if ((NEEDS & NEEDS_HEADS) && o.kind == HEADS)
            split_heads<MANY, 2>(o, t, turns_of(d), epoch, i, barrier);
        else if ((NEEDS & NEEDS_F32_CACHE) && o.kind == ATTENTION)
            attend<MANY, 64>(o, o.attention, t, d->sums[0][0], epoch, i, barrier);
        else if (!MANY && (NEEDS & NEEDS_WIDEST_HEADS) && o.kind == ATTENTION_BF16 &&
                 o.attention_bf16.attn.a.Wk == 256)
            attend<false, 256>(o, o.attention_bf16, t, d->sums[0][0], epoch, i, barrier);
        else if ((NEEDS & NEEDS_WIDE_HEADS) && o.kind == ATTENTION_BF16 &&
                 o.attention_bf16.attn.a.Wk == 128)
            attend<MANY, 128>(o, o.attention_bf16, t, d->sums[0][0], epoch, i, barrier);
        else if (o.kind == ATTENTION_BF16)
            attend<MANY, 64>(o, o.attention_bf16, t, d->sums[0][0], epoch, i, barrier);
        else if (MANY && o.groups == 2)
            gemm_own_tiles<2, NEEDS & ~NEEDS_PAIRS>(o, t, r, d, x, slots, epoch, barrier);
        else if (MANY && o.gemm.tile_per_warp)
            gemm_own_tiles<1, NEEDS>(o, t, r, d, x, slots, epoch, barrier);
        else if (ROWS == ONE_ROW)
            gemm_one_row<NEEDS>(o, t, r, d, x, slots, epoch, i, buffer);
        else
            gemm_shared_k<MANY, NEEDS>(o, t, r, d, x, slots, epoch, i);
        barrier.wait(); /* also where a block has no part in the op */
        warp_arrive(&d->op_empty[i % OP_STAGES]);
    }
    decode_sync(); /* every thread has read the epoch */
    reset_counters(p);
}

/* ---- host ---- */

/* Quantised: one for all, one for Llama, and with few rows one without f32 caches and post-norm. */
template <row_count ROWS, int WEIGHTS> auto instance_of_weights(const mk_ops &p)
{
    constexpr int RARE = NEEDS_F32_CACHE | NEEDS_POST_NORM;
    if (!(p.needs & ~(NEEDS_PAIRS | WEIGHTS)))
        return decode_megakernel<ROWS, NEEDS_PAIRS | WEIGHTS>;
    if constexpr (ROWS != MANY_ROWS)
        if (!(p.needs & RARE)) return decode_megakernel<ROWS, (NEEDS_ALL & ~RARE) | WEIGHTS>;
    return decode_megakernel<ROWS, NEEDS_ALL | WEIGHTS>;
}

template <row_count ROWS> auto instance_for(const mk_ops &p)
{
    if (p.needs & NEEDS_Q8) return instance_of_weights<ROWS, NEEDS_Q8>(p);
    if (p.needs & NEEDS_Q4) return instance_of_weights<ROWS, NEEDS_Q4>(p);
    constexpr int RARE = NEEDS_F32_CACHE | NEEDS_POST_NORM;
    auto kernel = decode_megakernel<ROWS, NEEDS_ALL>;
    if (!(p.needs & RARE)) kernel = decode_megakernel<ROWS, NEEDS_ALL & ~RARE>;
    if (!(p.needs & (RARE | NEEDS_WIDEST_HEADS)))
        kernel = decode_megakernel<ROWS, NEEDS_PAIRS | NEEDS_WIDE_HEADS | NEEDS_HEADS>;
    if (!(p.needs & (RARE | NEEDS_HEADS | NEEDS_WIDEST_HEADS)))
        kernel = decode_megakernel<ROWS, NEEDS_PAIRS | NEEDS_WIDE_HEADS>;
    if (p.needs == NEEDS_PAIRS) kernel = decode_megakernel<ROWS, NEEDS_PAIRS>;
    if (p.needs == NEEDS_POST_NORM) kernel = decode_megakernel<ROWS, NEEDS_POST_NORM>;
    if (p.needs == 0) kernel = decode_megakernel<ROWS, 0>;
    return kernel;
}

size_t smem_bytes(const mk_ops &p) { return (size_t)(p.slots_at + p.slots * SLOT_BYTES); }
} // namespace

bool fv_cuda_megakernel_fit(mk_ops *p, size_t most)
{
    p->x_at = (int)sizeof(mk_smem) + p->turn_bytes;
    p->slots_at = p->x_at + p->x_bytes;
    size_t rest = (size_t)p->slots_at;
    p->slots = rest < most ? (int)((most - rest) / SLOT_BYTES) : 0;
    if (p->slots > MAX_SLOTS) p->slots = MAX_SLOTS;
    return p->slots >= GROUP;
}

/* Cooperative: all blocks must be resident, since they wait for one another. */
void fv_cuda_megakernel_launch(fv_stream *s, const mk_ops &p)
{
    device *d = device_of(s);
    size_t shared = smem_bytes(p);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute cooperative = {};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    config.gridDim = dim3((unsigned)d->sm_count);
    config.blockDim = dim3(32 * BLOCK_WARPS);
    config.dynamicSmemBytes = shared;
    config.stream = stream_state_of(s)->capturing ? stream_state_of(s)->capture_stream : d->stream;
    config.attrs = &cooperative;
    config.numAttrs = 1;
    cudaSetDevice(d->number);
    auto kernel = p.rows > FLAGGED_MAX_ROWS ? instance_for<MANY_ROWS>(p)
                  : p.rows > 1              ? instance_for<FEW_ROWS>(p)
                                            : instance_for<ONE_ROW>(p);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchKernelEx(&config, kernel, p);
    fv_cuda_check_launch(s, "fused_linear");
}
