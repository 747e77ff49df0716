/* mega_sm90.cu - a step of writing in one kernel: a block on each multiprocessor goes through all
 * ops of a program.
 *
 * For few rows a step is a walk through the weights, and nobody writes weights: one warp of each
 * block does nothing but fetch its block's share of them, op after op, into a ring of slots in
 * shared memory, as far ahead as the ring reaches (about a layer).  The others multiply.  So memory
 * is busy while blocks wait for one another.
 *
 * What blocks wait for is the numbers of the op before.  For up to MAIL_ROWS rows these come by
 * mail (flags.h), which takes one way to the cache and back.  More rows are more than one cares to
 * look at again and again: they are dealt to teams of blocks, and those of a team meet between one
 * op and the next.  A row needs nothing of another, so teams need not wait for each other; they
 * read the same weights at about the same time, so that these come from memory once. */
#include "mega_apart.h"
#include "mega_attention.h"

/* ---- weights ---- */

__device__ inline void fetch_gain(const few_product &f, desk *d, ring &r)
{
    int bytes = f.k * (int)sizeof(float);
    if (r.turn) wait(r.empty(), (r.turn - 1) & 1);
    if (threadIdx.x % 32 == 0) {
        say(&d->asked, r.number() + 1);
        expect(r.full(), bytes * ((f.a.gain != NULL) + (f.a.shift != NULL)));
        if (f.a.gain) fetch(r.slot(), f.a.gain, bytes, r.full());
        if (f.a.shift) fetch(r.slot() + (unsigned)bytes, f.a.shift, bytes, r.full());
    }
    r.next();
}

__device__ inline void fetch_product(const few_product &f, desk *d, ring &r, int first, int wide)
{
    int lane = threadIdx.x % 32;
    const bf16 *w = (const bf16 *)f.a.w;
    int n = (int)f.a.n, k = f.k, tiles = f.tiles, chunk = f.chunk;
    for (int t0 = first; t0 < tiles; t0 += GROUP * wide)
        for (int from = 0; from < k; from += chunk)
            for (int tile = t0; tile < tiles && tile < t0 + GROUP * wide; tile += wide) {
                int rows = n - tile * TILE < TILE ? n - tile * TILE : TILE,
                    bytes = 2 * (k - from < chunk ? k - from : chunk);
                bool bias = f.bias_comes && from == 0;
                if (r.turn) wait(r.empty(), (r.turn - 1) & 1);
                if (lane == 0) {
                    say(&d->asked, r.number() + 1);
                    expect(r.full(), rows * bytes + (bias ? TILE * (int)sizeof(float) : 0));
                }
                __syncwarp();
                if (lane == TILE && bias)
                    fetch(r.slot() + BIAS_AT, (const float *)f.a.bias + tile * TILE,
                          TILE * (int)sizeof(float), r.full());
                if (lane < rows)
                    fetch(r.slot() + (unsigned)(lane * ROW_BYTES),
                          w + (int64_t)(tile * TILE + lane) * k + from, bytes, r.full());
                r.next();
            }
}

__device__ void fetch_weights(const program_ops &p, desk *d, ring r)
{
    for (int i = 0; i < p.n; i++) {
        const program_op &o = d->op[i % OPS];
        wait(at(&d->op_full[i % OPS]), i / OPS & 1);
        team t(p, o.span);
        if (o.kind == PRODUCT && t.tile(o.product) < o.product.tiles) {
            if (has_gain(o.product)) fetch_gain(o.product, d, r);
            fetch_product(o.product, d, r, t.tile(o.product), t.wide);
        }
        arrive(at(&d->op_empty[i % OPS]));
    }
}

/* ---- between ops ---- */

/* Ops are read ahead by a warp of its own, which sees one come to its end for each that it reads:
 * when it is time for keys and values of attention to be brought nearer. */
__device__ void read_ops(const program_ops &p, const team &t, desk *d)
{
    int lane = threadIdx.x % 32;
    for (int i = 0; i < p.n + OPS - NEAR; i++) {
        if (i >= OPS) wait(at(&d->op_empty[i % OPS]), (i / OPS - 1) & 1);
        if (i < p.n) {
            const unsigned *from = (const unsigned *)&p.op[i];
            unsigned *to = (unsigned *)&d->op[i % OPS];
            for (int e = lane; e < (int)(sizeof(program_op) / 4); e += 32) to[e] = from[e];
            __syncwarp(); /* each lane reads what others wrote, below */
            arrive(at(&d->op_full[i % OPS]));
        }
        int soon = i - (OPS - NEAR);
        if (soon >= 0 && d->op[soon % OPS].kind == ATTENTION)
            bring_nearer(d->op[soon % OPS].attention, t);
        if (soon >= 0 && d->op[soon % OPS].kind == ATTENTION_HALF)
            bring_nearer(d->op[soon % OPS].attention_half, t);
    }
}

__device__ inline unsigned seen_so_far(const unsigned *p)
{
    unsigned v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* All blocks of the team, or of the pair of teams, have come here for the n-th time. */
__device__ inline void meet(const program_ops &p, const team &t, int span, int n)
{
    one_sync();
    if (threadIdx.x == 0) {
        unsigned all = (unsigned)(t.wide * n),
                 *arrived = span == 2 ? &p.at->pairs[t.number] : &p.at->arrived[t.number];
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
        while (seen_so_far(arrived) < all) continue;
    }
    one_sync();
}

/* The last block leaves counters as the next program wants to find them. */
__device__ inline void leave(const program_ops &p, unsigned turn)
{
    if (threadIdx.x || atomicAdd(&p.at->left, 1u) != gridDim.x - 1) return;
    *p.at = counters{{}, {}, 0, turn - 1 + (unsigned)p.n};
}

__device__ inline void begin(const program_ops &p, desk *d)
{
    d->asked = 0;
    for (int i = 0; i < p.slots; i++) {
        barrier_init(&d->full[i], 1);
        barrier_init(&d->empty[i], MULTIPLIERS);
    }
    for (int i = 0; i < OPS; i++) {
        barrier_init(&d->op_full[i], 32);
        barrier_init(&d->op_empty[i], 32 * (MULTIPLIERS + 1));
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
#endif
}

/* MANY: more rows than send mail.  Kernels of their own: each has registers for what it does
 * alone. */
template <bool MANY>
__global__ void __launch_bounds__(32 * WARPS_ALL, 1)
    run_program(const __grid_constant__ program_ops p)
{
    extern __shared__ __align__(128) unsigned char memory[];
    desk *d = (desk *)memory;
    bf16 *x = (bf16 *)(d + 1);
    const unsigned char *slots = (const unsigned char *)x + p.x_bytes;
    ring r(d, slots, p.slots);
    unsigned turn = p.at->turn + 1; /* of the first op: mail that nobody has sent is of turn 0 */
    if (threadIdx.x == 0) begin(p, d);
    __syncthreads();
    if (threadIdx.x / 32 >= MULTIPLIERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS_FEW));
        if (threadIdx.x / 32 == FETCHER) fetch_weights(p, d, r);
        if (threadIdx.x / 32 == READER) read_ops(p, team(p, 1), d);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS_MANY));
    for (int i = 0, met = 0, met_in_pairs = 0; i < p.n; i++) {
        const program_op &o = d->op[i % OPS];
        wait(at(&d->op_full[i % OPS]), i / OPS & 1);
        team t(p, MANY ? o.span : 1);
        if (MANY && i && t.rows > 0) meet(p, t, o.span, o.span == 2 ? ++met_in_pairs : ++met);
        if (o.kind == ATTENTION)
            attend<MANY>(o, o.attention, t, d->sums[0][0], turn, i);
        else if (o.kind == ATTENTION_HALF)
            attend<MANY>(o, o.attention_half, t, d->sums[0][0], turn, i);
        else if (MANY && o.span == 2)
            make_apart<2>(o, t, r, d, x, slots, turn);
        else if (MANY && o.product.apart)
            make_apart<1>(o, t, r, d, x, slots, turn);
        else
            make<MANY>(o, t, r, d, x, slots, turn, i);
        arrive(at(&d->op_empty[i % OPS]));
    }
    one_sync(); /* all threads of the block have the turn */
    leave(p, turn);
}

/* ---- on the host ---- */

static size_t shared_of(const program_ops &p)
{
    return sizeof(desk) + (size_t)p.x_bytes + (size_t)p.slots * SLOT_BYTES;
}

bool fv_cuda_program_fit(program_ops *p, size_t most)
{
    p->slots = 0;
    size_t rest = shared_of(*p);
    p->slots = rest < most ? (int)((most - rest) / SLOT_BYTES) : 0;
    if (p->slots > MOST_SLOTS) p->slots = MOST_SLOTS;
    return p->slots >= GROUP;
}

void fv_cuda_program_start(fv_stream *s, const program_ops &p)
{
    device *d = device_of(s);
    size_t shared = shared_of(p);
    cudaLaunchConfig_t how = {};
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    how.gridDim = dim3((unsigned)d->processors);
    how.blockDim = dim3(32 * WARPS_ALL);
    how.dynamicSmemBytes = shared;
    how.stream = lane_of(s)->keeping ? lane_of(s)->aside : d->stream;
    how.attrs = &together;
    how.numAttrs = 1;
    cudaSetDevice(d->number);
    auto kernel = p.rows > MAIL_ROWS ? run_program<true> : run_program<false>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchKernelEx(&how, kernel, p);
    fv_cuda_started(s, "row_linear");
}
