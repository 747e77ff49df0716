/* program.cu - a step of writing in one kernel: a block on each multiprocessor goes through all ops of a program, and all
 * blocks meet between one op and the next.
 *
 * For few rows a step is a walk through the weights, and nobody writes weights: one warp of each block does nothing but
 * fetch its block's share of them, op after op, into a ring of slots in shared memory, as far ahead as the ring reaches
 * (about a layer).  The others multiply.  So memory is busy while blocks wait for one another, and a product costs little
 * more than the meeting before it.
 *
 * A tile is 8 columns of the result; its weights are 8 rows of w, each fetched by one bulk copy.  Up to 16 rows of x are the
 * left factor of the tensor core's product (16 by 16 of k), a tile is the right one (16 of k by 8).  The order of k within
 * a product is free, so a thread takes 8 neighbours of both with one access each.  Warps share k; their sums are added in
 * order.  More rows are dealt to groups of blocks, which read the same weights at about the same time: they come from
 * memory once.  What tile a block makes has no influence on its numbers. */
#include <new>

#include "attention_one.h"
#include "row_linear.h"

#define PROGRAM_BYTES 32000 /* what a kernel may be given is 32,764 */
#define MULTIPLIERS 8       /* warps */
#define FETCHER MULTIPLIERS
#define READER (MULTIPLIERS + 1)
#define WARPS_ALL (MULTIPLIERS + 2)
#define OPS 8 /* that are at hand: the one under way, and the next */
#define MOST_ROWS 64
#define PROGRAM_LANES 16 /* threads that share a key: heads of 64 */
#define ROWS_BLOCK 16    /* that a block treats */
#define TILE 8           /* columns */
#define GROUP 4          /* tiles that are multiplied with the same x at once */
#define STEP 32          /* of k, for a warp: 8 for each of 4 threads */
#define MOST_CHUNK 768
#define ROW_BYTES (MOST_CHUNK * 2 + 64) /* of a slot: threads of a quarter of a warp read 32 different banks */
#define SLOT_BYTES (TILE * ROW_BYTES)
#define MOST_SLOTS 16
#define TILE_SUMS (ROWS_BLOCK * TILE)

static_assert(MULTIPLIERS * 32 == ONE_THREADS && GROUP * TILE_SUMS == 2 * ONE_THREADS, "two numbers of a group for each thread");
static_assert(one_floats<float> <= GROUP * MULTIPLIERS * TILE_SUMS, "attention uses the memory of sums");

/* A product as an op.  Rows are dealt to groups of `wide` blocks, tiles of columns to the blocks of a group, from `first` on. */
struct few_product : row_job {
    int tiles, wide, first, chunk; /* chunk: of k, in a slot */
    float per_wide;                /* 1 / wide */
};

struct program_op {
    int lanes; /* threads that share a key, and 0 for a product */
    union {
        few_product product;
        one_job<float> attention;
    };
};

struct program {
    int n, slots, x_bytes, first;
    unsigned *arrived; /* one of the device's tickets */
    program_op op[(PROGRAM_BYTES - 64) / sizeof(program_op)];
};

/* What lies at the beginning of shared memory; behind it rows of x, and slots. */
struct __align__(128) desk
{
    uint64_t full[MOST_SLOTS], empty[MOST_SLOTS];
    uint64_t op_full[OPS], op_empty[OPS];
    program_op op[OPS];
    __align__(16) float sums[GROUP][MULTIPLIERS][TILE_SUMS];
};

/* ---- waiting ---- */

__device__ inline unsigned at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ inline void barrier_init(uint64_t *b, int n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n));
}

__device__ inline void arrive(uint64_t *b) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at(b)) : "memory"); }

__device__ inline void wait(uint64_t *b, int parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p bra AGAIN;\n}" ::"r"(at(b)),
                 "r"(parity)
                 : "memory");
#endif
}

__device__ inline void expect(uint64_t *b, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at(b)), "r"(bytes) : "memory");
#endif
}

__device__ inline void fetch(void *to, const void *from, int bytes, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at(to)),
                 "l"(from), "r"(bytes), "r"(at(b))
                 : "memory");
#endif
}

/* ---- the ring ---- */

struct ring {
    desk *d;
    char *slot;
    int slots, i, turn; /* the slot that comes next, and how often the ring went round */
    __device__ void next()
    {
        if (++i == slots) i = 0, turn++;
    }
};

/* What this block does of a product: tiles from `tile` on, `wide` apart, of rows from `row` on. */
struct share {
    int tile, row, rows;
    __device__ share(const few_product &f)
    {
        int group = (int)(((float)blockIdx.x + 0.5f) * f.per_wide), t = (int)blockIdx.x - group * f.wide - f.first;
        row = group * ROWS_BLOCK;
        rows = (int)f.a.rows - row < ROWS_BLOCK ? (int)f.a.rows - row : ROWS_BLOCK;
        tile = rows <= 0 ? f.tiles : t < 0 ? t + f.wide : t;
    }
};

/* Gain and shift of a norm have a slot of their own, before the weights, where they fit it. */
__device__ inline bool has_gain(const few_product &f)
{
    return f.a.norm && (f.a.gain || f.a.shift) && 2 * f.k * (int)sizeof(float) <= SLOT_BYTES;
}

__device__ inline void fetch_gain(const few_product &f, ring &r)
{
    int bytes = f.k * (int)sizeof(float);
    char *to = r.slot + r.i * SLOT_BYTES;
    if (r.turn) wait(&r.d->empty[r.i], (r.turn - 1) & 1);
    if (threadIdx.x % 32 == 0) {
        expect(&r.d->full[r.i], bytes * ((f.a.gain != NULL) + (f.a.shift != NULL)));
        if (f.a.gain) fetch(to, f.a.gain, bytes, &r.d->full[r.i]);
        if (f.a.shift) fetch(to + bytes, f.a.shift, bytes, &r.d->full[r.i]);
    }
    r.next();
}

__device__ inline void fetch_product(const few_product &f, ring &r, int first)
{
    int lane = threadIdx.x % 32;
    const bf16 *w = (const bf16 *)f.a.w;
    int n = (int)f.a.n, k = f.k, tiles = f.tiles, chunk = f.chunk, wide = f.wide;
    for (int t0 = first; t0 < tiles; t0 += GROUP * wide)
        for (int from = 0; from < k; from += chunk)
            for (int tile = t0; tile < tiles && tile < t0 + GROUP * wide; tile += wide) {
                int rows = n - tile * TILE < TILE ? n - tile * TILE : TILE, bytes = 2 * (k - from < chunk ? k - from : chunk);
                if (r.turn) wait(&r.d->empty[r.i], (r.turn - 1) & 1);
                if (lane == 0) expect(&r.d->full[r.i], rows * bytes);
                __syncwarp();
                if (lane < rows)
                    fetch(r.slot + r.i * SLOT_BYTES + lane * ROW_BYTES, w + (int64_t)(tile * TILE + lane) * k + from, bytes,
                          &r.d->full[r.i]);
                r.next();
            }
}

__device__ void fetch_weights(int n, ring r)
{
    for (int i = 0; i < n; i++) {
        const program_op &o = r.d->op[i % OPS];
        wait(&r.d->op_full[i % OPS], i / OPS & 1);
        if (!o.lanes) {
            share mine(o.product);
            if (mine.tile < o.product.tiles && has_gain(o.product)) fetch_gain(o.product, r);
            fetch_product(o.product, r, mine.tile);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&r.d->op_empty[i % OPS]);
    }
}

/* ---- a product ---- */

__device__ inline int x_stride(int k) { return k + 32; }

/* This block's rows as bf16, normalised where that is asked for: a warp has every eighth. */
__device__ inline void fetch_x(const few_product &f, bf16 *to, const share &mine, ring &ring)
{
    int k = f.k, warp = threadIdx.x / 32;
    if (f.a.xt == FV_BF16) {
        for (int r = warp; r < mine.rows; r += MULTIPLIERS)
            for (int i = threadIdx.x % 32 * 8; i < k; i += 256)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at(to + r * x_stride(k) + i)),
                             "l"((const bf16 *)f.a.x + (int64_t)(mine.row + r) * k + i)
                             : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        return;
    }
    const float *gain = (const float *)f.a.gain, *shift = (const float *)f.a.shift;
    bool fetched = has_gain(f);
    if (fetched) {
        const float *at_hand = (const float *)(ring.slot + ring.i * SLOT_BYTES);
        gain = gain ? at_hand : NULL, shift = shift ? at_hand + k : NULL;
        wait(&ring.d->full[ring.i], ring.turn & 1);
    }
    for (int r = warp; r < mine.rows; r += MULTIPLIERS)
        normalise(f.a, to + r * x_stride(k), (const float *)f.a.x + (int64_t)(mine.row + r) * k, gain, shift);
    if (fetched) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&ring.d->empty[ring.i]);
        ring.next();
    }
}

/* This warp's share of N tiles: rows lane / 4 and 8 more, columns lane % 4 * 2 and the one behind it.  Rows that there are
 * none of are taken from elsewhere; what comes of them goes nowhere. */
template <int N> __device__ inline void multiply(float (&c)[GROUP][4], ring &r, const bf16 *x, int k, int chunk, int rows)
{
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * STEP + lane % 4 * 8;
    float odd[N][4] = {};
    const bf16 *low = x + (lane / 4 < rows ? lane / 4 : 0) * x_stride(k),
               *high = x + (lane / 4 + 8 < rows ? lane / 4 + 8 : 0) * x_stride(k);
    for (int from = 0; from < k; from += chunk) {
        int end = k - from < chunk ? k - from : chunk;
        const char *w[N];
        uint64_t *empty = NULL;
#pragma unroll
        for (int j = 0; j < N; j++) {
            w[j] = r.slot + r.i * SLOT_BYTES + lane / 4 * ROW_BYTES;
            if (lane == j) empty = &r.d->empty[r.i];
            wait(&r.d->full[r.i], r.turn & 1);
            r.next();
        }
#pragma unroll 1
        for (int s = first; s < end; s += STEP * MULTIPLIERS) {
            uint4 v[N], a = *(const uint4 *)(low + from + s), b = a;
            if (rows > 8) b = *(const uint4 *)(high + from + s);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] = *(const uint4 *)(w[j] + 2 * s);
#pragma unroll
            for (int j = 0; j < N; j++) {
                mma(c[j], a.x, b.x, a.y, b.y, v[j].x, v[j].y);
                mma(odd[j], a.z, b.z, a.w, b.w, v[j].z, v[j].w);
            }
        }
        __syncwarp();
        if (lane < N) arrive(empty);
    }
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[j][e] += odd[j][e];
}

/* Where results go, in registers: what lies in shared memory would be read again and again. */
struct goal {
    void *y;
    float *k, *v;
    const float *bias;
    const int32_t *pos;
    int n, y_n, cap, act;
    bool add, narrow, cached;
    __device__ goal(const few_product &f)
        : y(f.a.y), k((float *)f.a.k_cache), v((float *)f.a.v_cache), bias((const float *)f.a.bias), pos(f.a.pos), n((int)f.a.n),
          y_n((int)f.a.y_n), cap((int)f.a.cap), act(f.a.act), add(f.a.add), narrow(f.a.yt == FV_BF16), cached(f.a.k_cache != NULL)
    {
        if (!cached) y_n = n;
    }
};

/* Two neighbours of one row.  What they need besides their sums is asked for before those are ready. */
struct two_results {
    float bias[2], old[2];
    int at; /* row of the cache */
    __device__ void ask(const goal &g, int row, int n)
    {
        int64_t i = (int64_t)row * g.y_n + n;
        bool both = n + 1 < g.n;
        bias[0] = g.bias ? g.bias[n] : 0;
        bias[1] = g.bias && both ? g.bias[n + 1] : 0;
        old[0] = g.add ? ((const float *)g.y)[i] : 0;
        old[1] = g.add && both ? ((const float *)g.y)[i + 1] : 0;
        at = n >= g.y_n ? g.pos[row] : 0;
    }
    /* In memory two go at once where rows are even. */
    __device__ void deliver(const goal &g, int row, int n, float2 sum, fault *bad) const
    {
        float a = activate((fv_act)g.act, sum.x + bias[0]) + old[0], b = activate((fv_act)g.act, sum.y + bias[1]) + old[1];
        int64_t i = (int64_t)row * g.y_n + n;
        if (n >= g.y_n) {
            int half = (g.n - g.y_n) / 2, c = n - g.y_n;
            if (at >= 0 && at < g.cap)
                *(float2 *)((c < half ? g.k : g.v) + ((int64_t)row * g.cap + at) * half +
                            (c < half ? c : c - half)) = make_float2(a, b);
            else
                report(bad, row, at, g.cap, 1);
        } else if (g.narrow) {
            ((bf16 *)g.y)[i] = __float2bfloat16_rn(a);
            if (n + 1 < g.n) ((bf16 *)g.y)[i + 1] = __float2bfloat16_rn(b);
        } else if (g.y_n % 2 == 0) {
            *(float2 *)((float *)g.y + i) = make_float2(a, b);
        } else {
            ((float *)g.y)[i] = a;
            if (n + 1 < g.n) ((float *)g.y)[i + 1] = b;
        }
    }
};

__device__ inline void make(const few_product &f, ring &r, desk *d, bf16 *x)
{
    share mine(f);
    goal g(f);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wide = f.wide, tiles = f.tiles, k = f.k, chunk = f.chunk;
    int tile = threadIdx.x / 64, row = threadIdx.x / 4 % ROWS_BLOCK, column = threadIdx.x % 4 * 2;
    for (int t0 = mine.tile; t0 < tiles; t0 += GROUP * wide) {
        int n = (t0 + tile * wide) * TILE + column;
        bool now = row < mine.rows && n < g.n;
        two_results b = {};
        if (now) b.ask(g, mine.row + row, n);
        if (t0 == mine.tile) {
            fetch_x(f, x, mine, r);
            one_sync();
        }
        float c[GROUP][4] = {};
        if (t0 + 3 * wide < tiles)
            multiply<4>(c, r, x, k, chunk, mine.rows);
        else if (t0 + 2 * wide < tiles)
            multiply<3>(c, r, x, k, chunk, mine.rows);
        else if (t0 + wide < tiles)
            multiply<2>(c, r, x, k, chunk, mine.rows);
        else
            multiply<1>(c, r, x, k, chunk, mine.rows);
        if (t0 != mine.tile) one_sync(); /* the sums before these have been read */
        float *to = d->sums[0][warp] + lane / 4 * TILE + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            *(float2 *)(to + j * (MULTIPLIERS * TILE_SUMS)) = make_float2(c[j][0], c[j][1]);
            *(float2 *)(to + j * (MULTIPLIERS * TILE_SUMS) + 8 * TILE) = make_float2(c[j][2], c[j][3]);
        }
        one_sync();
        if (!now) continue;
        float2 v = make_float2(0, 0);
#pragma unroll
        for (int w = 0; w < MULTIPLIERS; w++) {
            float2 u = *(const float2 *)&d->sums[tile][w][row * TILE + column];
            v.x += u.x, v.y += u.y;
        }
        b.deliver(g, mine.row + row, n, v, f.bad);
    }
}

/* ---- attention ---- */

/* A block for each head, or a warp where they are many. */
__device__ __noinline__ void attend_all(const one_job<float> &j, float *record)
{
    int heads = (int)j.o.a.H, units = j.parts * heads * (int)j.o.a.B, blocks = (int)gridDim.x;
    if (j.by_warp) {
        for (int u = (int)blockIdx.x + (int)threadIdx.x / 32 * blocks; u < units; u += blocks * MULTIPLIERS)
            attend_one_by_warp<float, PROGRAM_LANES>(j.o, u % heads, u / heads);
        return;
    }
    for (int u = blockIdx.x; u < units; u += blocks) {
        if (u != (int)blockIdx.x) one_sync(); /* record is still being read */
        attend_one<float, PROGRAM_LANES>(j, u % j.parts, u / j.parts % heads, u / j.parts / heads, record);
    }
}

/* Keys and values that this block will read, brought nearer by one warp, long before.  Those of this step are not there yet,
 * which does not matter: this is a hint.  Where a warp does a head many are under way at once anyway. */
__device__ void bring_nearer(const one_job<float> &j)
{
    const job<float> &o = j.o;
    int units = j.parts * (int)(o.a.H * o.a.B), lines = ((int)o.a.Wk * 4 + 127) / 128;
    for (int u = blockIdx.x; u < units && !j.by_warp; u += (int)gridDim.x) {
        int b = u / j.parts / (int)o.a.H, g = o.kv_head(u / j.parts % (int)o.a.H), n = (int)o.a.Tk;
        if (o.a.lens && o.a.lens[b] < n) n = o.a.lens[b];
        int each = (n + j.parts - 1) / j.parts, from = u % j.parts * each;
        for (int i = threadIdx.x % 32; i < 2 * lines * each; i += 32) {
            int key = from + i / (2 * lines), line = i / 2 % lines;
            if (key >= n) break;
            const float *p = (i & 1 ? o.v(b, g, key) : o.k(b, g, key)) + line * 32;
            asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
        }
    }
}

/* ---- between ops ---- */

/* Ops are read ahead by a warp of its own. */
__device__ void read_ops(const program &p, desk *d)
{
    int lane = threadIdx.x % 32;
    for (int i = 0; i < p.n; i++) {
        if (i >= OPS) wait(&d->op_empty[i % OPS], (i / OPS - 1) & 1);
        const unsigned *from = (const unsigned *)&p.op[i];
        unsigned *to = (unsigned *)&d->op[i % OPS];
        for (int e = lane; e < (int)(sizeof(program_op) / 4); e += 32) to[e] = from[e];
        __syncwarp();
        if (lane == 0) arrive(&d->op_full[i % OPS]);
        if (d->op[i % OPS].lanes) bring_nearer(d->op[i % OPS].attention);
    }
}

__device__ inline unsigned seen_so_far(const unsigned *p)
{
    unsigned v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* All blocks have made op i.  After the last one nobody waits. */
__device__ inline void meet(const program &p, int i)
{
    unsigned all = gridDim.x * (unsigned)(i + 1);
    if (threadIdx.x) return;
    if (i + 1 < p.n) {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p.arrived) : "memory");
        while (seen_so_far(p.arrived) < all) continue;
    } else if (atomicAdd(p.arrived, 1u) == all - 1) {
        *p.arrived = 0; /* nobody looks any more */
    }
}

__global__ void __launch_bounds__(32 * WARPS_ALL, 1) run_program(const __grid_constant__ program p)
{
    extern __shared__ __align__(128) unsigned char memory[];
    desk *d = (desk *)memory;
    bf16 *x = (bf16 *)(d + 1);
    ring r = {d, (char *)x + p.x_bytes, p.slots, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < p.slots; i++) {
            barrier_init(&d->full[i], 1);
            barrier_init(&d->empty[i], MULTIPLIERS);
        }
        for (int i = 0; i < OPS; i++) {
            barrier_init(&d->op_full[i], 1);
            barrier_init(&d->op_empty[i], MULTIPLIERS + 1);
        }
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
#endif
    }
    __syncthreads();
    if (threadIdx.x / 32 == FETCHER) {
        fetch_weights(p.n, r);
        return;
    }
    if (threadIdx.x / 32 == READER) {
        read_ops(p, d);
        return;
    }
    for (int i = 0; i < p.n; i++) {
        const program_op &o = d->op[i % OPS];
        wait(&d->op_full[i % OPS], i / OPS & 1);
        if (o.lanes)
            attend_all(o.attention, d->sums[0][0]);
        else
            make(o.product, r, d, x);
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&d->op_empty[i % OPS]);
        one_sync();
        meet(p, i);
        if (i + 1 < p.n) one_sync();
    }
}

/* ---- on the host ---- */

static size_t shared_of(const program &p) { return sizeof(desk) + (size_t)p.x_bytes + (size_t)p.slots * SLOT_BYTES; }

/* The ring gets what the rest leaves; false if that is too little. */
static bool fit(program *p, size_t most)
{
    p->slots = 0;
    size_t rest = shared_of(*p);
    p->slots = rest < most ? (int)((most - rest) / SLOT_BYTES) : 0;
    if (p->slots > MOST_SLOTS) p->slots = MOST_SLOTS;
    return p->slots >= GROUP;
}

static void start(fv_stream *s, const program &p)
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
    cudaFuncSetAttribute(run_program, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    cudaLaunchKernelEx(&how, run_program, p);
    fv_cuda_started(s, "row_linear");
}

void fv_cuda_start_put_off(fv_stream *s)
{
    program *p = lane_of(s)->put_off;
    if (p->n && !s->err.code) start(s, *p);
    p->n = 0;
}

/* With one op more; it is written down only if the result fits the device. */
static bool take(fv_stream *s, const program_op &o)
{
    device *d = device_of(s);
    lane *l = lane_of(s);
    constexpr int most = (int)(sizeof(program::op) / sizeof(program_op));
    if (!l->put_off && !(l->put_off = new (std::nothrow) program{})) return false;
    program *p = l->put_off;
    if (p->n == most) fv_cuda_start_put_off(s);
    for (int again = 0; again < 2; again++) {
        if (!p->n) p->first = p->x_bytes = 0;
        program trial = *p;
        if (!o.lanes) {
            const few_product &f = o.product;
            int x = (int)(f.a.rows < ROWS_BLOCK ? f.a.rows : ROWS_BLOCK) * (f.k + 32) * 2;
            if (x > trial.x_bytes) trial.x_bytes = (x + 127) / 128 * 128;
        }
        if (fit(&trial, d->most_shared)) {
            int n = p->n;
            p->x_bytes = trial.x_bytes, p->slots = trial.slots;
            p->arrived = d->tickets + TICKETS;
            p->op[n] = o;
            if (!o.lanes) {
                p->op[n].product.first = p->first % o.product.wide;
                p->first = (p->first + o.product.tiles) % o.product.wide;
            }
            p->n++;
            if (!l->keeping) fv_cuda_start_put_off(s);
            return true;
        }
        if (!p->n) return false;
        fv_cuda_start_put_off(s); /* by itself it may fit */
    }
    return false;
}

/* By warps it is made here even if nothing is kept, so that the numbers are the same. */
bool fv_cuda_put_off(fv_stream *s, const one_job<float> &j, int lanes)
{
    bool by_warp = j.o.a.B * j.o.a.H > 2 * (int64_t)device_of(s)->processors;
    if (!device_of(s)->early || lanes != PROGRAM_LANES || j.o.a.B > MOST_ROWS) return false;
    if (!lane_of(s)->keeping && !by_warp) return false;
    program_op o;
    o.lanes = lanes;
    o.attention = j;
    o.attention.by_warp = by_warp;
    return take(s, o);
}

bool fv_cuda_put_off(fv_stream *s, const row_job &j)
{
    int64_t tiles = ceil_div(j.a.n, TILE);
    bool even = !j.a.k_cache || (j.a.y_n % 2 == 0 && (j.a.n - j.a.y_n) % 4 == 0);
    if (!device_of(s)->early || j.a.rows > MOST_ROWS || j.k % STEP || !even) return false;
    if (tiles > INT32_MAX / TILE || j.a.cap > INT32_MAX || !aligned(j.a.y, j.a.k_cache, j.a.v_cache)) return false;
    program_op o;
    o.lanes = 0;
    few_product &f = o.product;
    (row_job &)f = j;
    f.tiles = (int)tiles;
    f.wide = device_of(s)->processors / (int)ceil_div(j.a.rows, ROWS_BLOCK);
    f.per_wide = 1 / (float)f.wide;
    f.chunk = (int)ceil_div(ceil_div(j.k, ceil_div(j.k, MOST_CHUNK)), STEP) * STEP;
    return take(s, o);
}

void fv_cuda_program_free(program *p) { delete p; }
