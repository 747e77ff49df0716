/* mega_sm90.cu - a step of writing in one kernel: a block on each multiprocessor goes through all
 * ops of a program.
 *
 * For few rows a step is a walk through the weights, and nobody writes weights: one warp of each
 * block does nothing but fetch its block's share of them, op after op, into a ring of slots in
 * shared memory, as far ahead as the ring reaches (about a layer).  The others multiply.  So memory
 * is busy while blocks wait for one another.
 *
 * What blocks wait for is the numbers of the op before.  For up to FLAGGED_MAX_ROWS rows these come
 * by mail (flags.h), which takes one way to the cache and back.  More rows are more than one cares
 * to look at again and again: they are dealt to teams of blocks, and those of a team meet between
 * one op and the next.  A row needs nothing of another, so teams need not wait for each other; they
 * read the same weights at about the same time, so that these come from memory once. */
#include "mega_apart.h"
#include "mega_attention.h"

/* ---- weights ---- */

__device__ inline void fetch_gain(const decode_gemm &f, mk_smem *d, ring &r)
{
    int bytes = f.k * (int)sizeof(float);
    if (r.laps) wait(r.empty(), (r.laps - 1) & 1);
    if (threadIdx.x % 32 == 0) {
        store_release(&d->issued, r.number() + 1);
        mbarrier_expect_tx(r.full(), bytes * ((f.a.gain != NULL) + (f.a.shift != NULL)));
        if (f.a.gain) bulk_load(r.slot(), f.a.gain, bytes, r.full());
        if (f.a.shift) bulk_load(r.slot() + (unsigned)bytes, f.a.shift, bytes, r.full());
    }
    r.next();
}

__device__ inline void fetch_product(const decode_gemm &f, mk_smem *d, ring &r, int first, int wide)
{
    int lane = threadIdx.x % 32;
    const bf16 *w = (const bf16 *)f.a.w;
    int n = (int)f.a.n, k = f.k, tiles = f.tiles, chunk = f.chunk;
    for (int t0 = first; t0 < tiles; t0 += GROUP * wide)
        for (int from = 0; from < k; from += chunk)
            for (int tile = t0; tile < tiles && tile < t0 + GROUP * wide; tile += wide) {
                int rows = n - tile * TILE < TILE ? n - tile * TILE : TILE,
                    bytes = 2 * (k - from < chunk ? k - from : chunk);
                bool bias = f.bias_in_slot && from == 0;
                if (r.laps) wait(r.empty(), (r.laps - 1) & 1);
                if (lane == 0) {
                    store_release(&d->issued, r.number() + 1);
                    mbarrier_expect_tx(r.full(),
                                       rows * bytes + (bias ? TILE * (int)sizeof(float) : 0));
                }
                __syncwarp();
                if (lane == TILE && bias)
                    bulk_load(r.slot() + BIAS_AT, (const float *)f.a.bias + tile * TILE,
                              TILE * (int)sizeof(float), r.full());
                if (lane < rows)
                    bulk_load(r.slot() + (unsigned)(lane * ROW_BYTES),
                              w + (int64_t)(tile * TILE + lane) * k + from, bytes, r.full());
                r.next();
            }
}

__device__ void fetch_weights(const mk_ops &p, mk_smem *d, ring r)
{
    for (int i = 0; i < p.n; i++) {
        const mk_op &o = d->op[i % OP_STAGES];
        wait(at(&d->op_full[i % OP_STAGES]), i / OP_STAGES & 1);
        block_group t(p, o.span);
        if (o.kind == GEMM && t.tile(o.gemm) < o.gemm.tiles) {
            if (has_gain(o.gemm)) fetch_gain(o.gemm, d, r);
            fetch_product(o.gemm, d, r, t.tile(o.gemm), t.wide);
        }
        mbarrier_arrive(at(&d->op_empty[i % OP_STAGES]));
    }
}

/* ---- between ops ---- */

/* Ops are read ahead by a warp of its own, which sees one come to its end for each that it reads:
 * when it is time for keys and values of attention to be brought nearer. */
__device__ void read_ops(const mk_ops &p, const block_group &t, mk_smem *d)
{
    int lane = threadIdx.x % 32;
    for (int i = 0; i < p.n + OP_STAGES - PREFETCH_OPS; i++) {
        if (i >= OP_STAGES) wait(at(&d->op_empty[i % OP_STAGES]), (i / OP_STAGES - 1) & 1);
        if (i < p.n) {
            const unsigned *from = (const unsigned *)&p.op[i];
            unsigned *to = (unsigned *)&d->op[i % OP_STAGES];
            for (int e = lane; e < (int)(sizeof(mk_op) / 4); e += 32) to[e] = from[e];
            __syncwarp(); /* each lane reads what others wrote, below */
            mbarrier_arrive(at(&d->op_full[i % OP_STAGES]));
        }
        int soon = i - (OP_STAGES - PREFETCH_OPS);
        if (soon >= 0 && d->op[soon % OP_STAGES].kind == ATTENTION)
            prefetch_kv(d->op[soon % OP_STAGES].attention, t);
        if (soon >= 0 && d->op[soon % OP_STAGES].kind == ATTENTION_BF16)
            prefetch_kv(d->op[soon % OP_STAGES].attention_bf16, t);
    }
}

__device__ inline unsigned load_acquire_gpu(const unsigned *p)
{
    unsigned v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* All blocks of the team, or of the pair of teams, have come here for the n-th time. */
__device__ inline void group_barrier(const mk_ops &p, const block_group &t, int span, int n)
{
    decode_sync();
    if (threadIdx.x == 0) {
        unsigned all = (unsigned)(t.wide * n),
                 *arrived = span == 2 ? &p.at->pairs[t.number] : &p.at->arrived[t.number];
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
        while (load_acquire_gpu(arrived) < all) continue;
    }
    decode_sync();
}

/* The last block leaves counters as the next program wants to find them. */
__device__ inline void reset_counters(const mk_ops &p, unsigned epoch)
{
    if (threadIdx.x || atomicAdd(&p.at->left, 1u) != gridDim.x - 1) return;
    *p.at = counters{{}, {}, 0, epoch - 1 + (unsigned)p.n};
}

__device__ inline void begin(const mk_ops &p, mk_smem *d)
{
    d->issued = 0;
    for (int i = 0; i < p.slots; i++) {
        mbarrier_init(&d->full[i], 1);
        mbarrier_init(&d->empty[i], MMA_WARPS);
    }
    for (int i = 0; i < OP_STAGES; i++) {
        mbarrier_init(&d->op_full[i], 32);
        mbarrier_init(&d->op_empty[i], 32 * (MMA_WARPS + 1));
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
#endif
}

/* MANY: more rows than send mail.  Kernels of their own: each has registers for what it does
 * alone. */
template <bool MANY>
__global__ void __launch_bounds__(32 * BLOCK_WARPS, 1)
    decode_megakernel(const __grid_constant__ mk_ops p)
{
    extern __shared__ __align__(128) unsigned char memory[];
    mk_smem *d = (mk_smem *)memory;
    bf16 *x = (bf16 *)(d + 1);
    const unsigned char *slots = (const unsigned char *)x + p.x_bytes;
    ring r(d, slots, p.slots);
    unsigned epoch = p.at->epoch + 1; /* of the first op: mail that nobody has sent is of turn 0 */
    if (threadIdx.x == 0) begin(p, d);
    __syncthreads();
    if (threadIdx.x / 32 >= MMA_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x / 32 == PRODUCER_WARP) fetch_weights(p, d, r);
        if (threadIdx.x / 32 == OP_READER_WARP) read_ops(p, block_group(p, 1), d);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MMA_REGISTERS));
    for (int i = 0, mixed = 0, met_in_pairs = 0; i < p.n; i++) {
        const mk_op &o = d->op[i % OP_STAGES];
        wait(at(&d->op_full[i % OP_STAGES]), i / OP_STAGES & 1);
        block_group t(p, MANY ? o.span : 1);
        if (MANY && i && t.rows > 0)
            group_barrier(p, t, o.span, o.span == 2 ? ++met_in_pairs : ++mixed);
        if (o.kind == ATTENTION)
            attend<MANY>(o, o.attention, t, d->sums[0][0], epoch, i);
        else if (o.kind == ATTENTION_BF16)
            attend<MANY>(o, o.attention_bf16, t, d->sums[0][0], epoch, i);
        else if (MANY && o.span == 2)
            gemm_own_tiles<2>(o, t, r, d, x, slots, epoch);
        else if (MANY && o.gemm.apart)
            gemm_own_tiles<1>(o, t, r, d, x, slots, epoch);
        else
            gemm_shared_k<MANY>(o, t, r, d, x, slots, epoch, i);
        mbarrier_arrive(at(&d->op_empty[i % OP_STAGES]));
    }
    decode_sync(); /* all threads of the block have the turn */
    reset_counters(p, epoch);
}

/* ---- on the host ---- */

static size_t shared_of(const mk_ops &p)
{
    return sizeof(mk_smem) + (size_t)p.x_bytes + (size_t)p.slots * SLOT_BYTES;
}

bool fv_cuda_megakernel_fit(mk_ops *p, size_t most)
{
    p->slots = 0;
    size_t rest = shared_of(*p);
    p->slots = rest < most ? (int)((most - rest) / SLOT_BYTES) : 0;
    if (p->slots > MAX_SLOTS) p->slots = MAX_SLOTS;
    return p->slots >= GROUP;
}

void fv_cuda_megakernel_launch(fv_stream *s, const mk_ops &p)
{
    device *d = device_of(s);
    size_t shared = shared_of(p);
    cudaLaunchConfig_t how = {};
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    how.gridDim = dim3((unsigned)d->sm_count);
    how.blockDim = dim3(32 * BLOCK_WARPS);
    how.dynamicSmemBytes = shared;
    how.stream = stream_state_of(s)->capturing ? stream_state_of(s)->capture_stream : d->stream;
    how.attrs = &together;
    how.numAttrs = 1;
    cudaSetDevice(d->number);
    auto kernel = p.rows > FLAGGED_MAX_ROWS ? decode_megakernel<true> : decode_megakernel<false>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchKernelEx(&how, kernel, p);
    fv_cuda_check_launch(s, "fused_linear");
}
