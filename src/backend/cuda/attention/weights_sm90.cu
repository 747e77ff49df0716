/* weights_sm90.cu - exact weights of some rows of a head on Hopper, from the log-sum-exp.
 *
 * What counts is how fast weights reach memory, 2 or 4 bytes for every pair.  Groups of four warps
 * have 64 queries and 128 keys each, one at its products while the others have exponentials, and
 * beside them the copy engine writes whole lines from shared memory.  Tiles that no query can see
 * are zeros, and cost nothing but their bytes.
 *
 * There is one block for each processor.  It takes runs of tiles down a column, for which keys
 * stay, and blocks side by side have columns side by side.  Runs are short: long ones write all
 * over the matrix, which memory takes more slowly. */
#include "attention.h"
#include "dispatch.h"
#include "backend/cuda/device/sm90.h"

namespace
{
enum { KEYS = 128, STAGES = 2 };

/* Weights are written in sheets of 64 rows of 128 bytes, laid out as panels are; a group has a TILE
 * of them. */
template <class O> struct sheet {
    static constexpr int ACROSS = 128 / sizeof(O), SIZE = 64 * ACROSS, TILE = KEYS / ACROSS * SIZE;
};

/* What a block has: groups, as many as weights of f32 leave room for and 16 bits need, and in
 * shared memory two times keys and queries, and weights on their way out. */
template <class T, class O, int W> struct traits {
    static constexpr bool NARROW = sizeof(O) == 2;
    static constexpr int GROUPS = NARROW ? 3 : 2, QUERIES = 64 * GROUPS,
                         THREADS = 128 * (GROUPS + 1);
    static constexpr int CONSUMER_REGISTERS = NARROW ? 160 : 240,
                         REGISTERS_LEFT = NARROW ? 32 : 24; /* no more than a block begins with */
    static constexpr int BUFFERS = W <= 64 ? 2 : 1, LONGEST_RUN = NARROW ? 4 : 2;
    static constexpr size_t ROOM = STAGES * (QUERIES + KEYS) * W * sizeof(T) +
                                   (GROUPS * BUFFERS * sheet<O>::TILE + sheet<O>::SIZE) * sizeof(O);
};

/* Rows [from, to) of one head, in so many runs, so many of them side by side. */
struct span {
    int b, h, from, to, run, across, runs;
};

struct weight_maps {
    qkv_tensor_maps in;
    CUtensorMap w;
};

/* A factor's two places in shared memory, which are filled and freed in turns. */
struct ring {
    uint64_t *full, *free_;
    int iter;
    __device__ int at() const { return iter % STAGES; }
    __device__ unsigned phase() const { return (unsigned)(iter / STAGES) & 1; }
    __device__ void wait_free() const
    {
        if (iter >= STAGES) mbarrier_wait(free_ + at(), phase() ^ 1);
    }
    __device__ void wait_full() const { mbarrier_wait(full + at(), phase()); }
};
} // namespace

/* No query of the tile can see a key of it. */
template <int QUERIES, class T> __device__ inline bool hidden(const head<T> &at, int row, int key)
{
    return key >= at.last_key(row, QUERIES) || key + KEYS <= at.first(row);
}

/* Weights of 64 rows and a tile's keys as sheets. */
__device__ inline void store_swizzled_weights(float *to, const float (&s)[KEYS / 8][4])
{
    int row = tile_row((int)threadIdx.x / 32 % 4 * 16, 0), lane = threadIdx.x % 4;
    bool odd =
        row % 2; /* has the blocks two further on first, or two rows would meet in the same banks */
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int four = (n % 4 * 2 + lane / 2) ^ row % 8 ^
                       (odd ? 4 : 0); /* numbers of a row; 8 rows on is the same place */
            float2 v = make_float2(odd ? s[n ^ 2][r * 2] : s[n][r * 2],
                                   odd ? s[n ^ 2][r * 2 + 1] : s[n][r * 2 + 1]);
            *(float2 *)(to + n / 4 * sheet<float>::SIZE + (row + r * 8) * sheet<float>::ACROSS +
                        four * 4 + lane % 2 * 2) = v;
        }
}
template <class O>
__device__ inline void store_swizzled_weights(O *to, const float (&s)[KEYS / 8][4])
{
    int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
    uint32_t x[KEYS / 16][4];
    pack_fragments(x, s, O());
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        int eight = n * 2 + lane / 16; /* numbers of a row */
        stmatrix_x4(to + eight / 8 * sheet<O>::SIZE + row * sheet<O>::ACROSS +
                        (eight % 8 ^ row % 8) * 8,
                    x[n]);
    }
}

/* Sheets of a tile on their way to memory, `apart` numbers from one to the next: by one thread. */
template <class O>
__device__ inline void write_sheets(const CUtensorMap *map, const O *from, int apart, int key,
                                    int row)
{
#pragma unroll
    for (int n = 0; n < KEYS / sheet<O>::ACROSS; n++)
        tma_store_2d(map, from + n * apart, key + n * sheet<O>::ACROSS, row);
    bulk_commit();
}

/* f(row, key, run) for all tiles of this block, the first row and key of each.  In every band of
 * strips columns begin elsewhere, so that all blocks have zeros and weights in equal shares. */
template <int QUERIES, class F> __device__ inline void each_tile(const span &of, F f)
{
    constexpr int SHIFT = 37;
    for (int i = blockIdx.x; i < of.runs; i += gridDim.x) {
        int band = i / of.across, column = (i % of.across + band * SHIFT) % of.across;
        for (int strip = band * of.run; strip < (band + 1) * of.run; strip++) {
            int row = of.from + strip * QUERIES;
            if (row < of.to) f(row, column * KEYS, i);
        }
    }
}

template <class T, class O, int W, int KIND>
__global__ void __launch_bounds__(traits<T, O, W>::THREADS, 1)
    weights_wgmma(const __grid_constant__ job<T> o, const __grid_constant__ weight_maps tensor_maps,
                  const __grid_constant__ span of)
{
    typedef traits<T, O, W> P;
    constexpr int TILE = sheet<O>::TILE, QUERIES = P::QUERIES, GROUPS = P::GROUPS;
    constexpr int TURN = 1 + GROUPS; /* the first barrier of turns, behind those of groups */
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ uint64_t full[2][STAGES], free_[2][STAGES];
    T *k = (T *)memory, *q = k + STAGES * KEYS * W;
    O *sheets = (O *)(q + STAGES * QUERIES * W), *zeros = sheets + GROUPS * P::BUFFERS * TILE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; i++) {
            mbarrier_init(full[0] + i, 1);
            mbarrier_init(free_[0] + i, 4 * GROUPS);
        }
        mbarrier_init_fence();
    }
    for (int i = threadIdx.x; i < sheet<O>::SIZE; i += P::THREADS) zeros[i] = from_float<O>(0);
    fence_async_proxy();
    __syncthreads();
    head<T> at(o, of.b, of.h);
    ring keys = {full[0], free_[0], -1}, queries = {full[1], free_[1], 0};
    int group = warpgroup_index() - 1, run = -1;
    if (group < 0) {
        setmaxnreg_dec<P::REGISTERS_LEFT>();
        if (threadIdx.x > 0) return;
        auto bring = [&](T *to, int rows, const CUtensorMap *map, const ring &p, int h, int row) {
            p.wait_free();
            mbarrier_arrive_expect_tx(p.full + p.at(), rows * W * sizeof(T));
            for (int c = 0; c < W; c += PANEL)
                tma_load_4d(to + (p.at() * W + c) * rows, map, p.full + p.at(), c, h, row, of.b);
        };
        each_tile<QUERIES>(of, [&](int row, int key, int i) {
            if (hidden<QUERIES>(at, row, key)) return;
            if (run != i) {
                run = i;
                keys.iter++;
                bring(k, KEYS, &tensor_maps.in.k, keys, o.kv_head(of.h), key);
            }
            bring(q, QUERIES, &tensor_maps.in.q, queries, of.h, row);
            queries.iter++;
        });
        return;
    }
    setmaxnreg_inc<P::CONSUMER_REGISTERS>();
    bool sends = threadIdx.x % 128 == 0;
    float s[KEYS / 8][4];
    float2 lse[2];
    row_stat stat[2];
    if (group == GROUPS - 1) named_barrier_arrive(TURN);
    each_tile<QUERIES>(of, [&](int row, int key, int i) {
        int rows = row + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16;
        if (hidden<QUERIES>(at, row, key)) {
            if (sends) write_sheets(&tensor_maps.w, zeros, 0, key, rows - of.from);
            return;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int j = tile_row(row0, r * 2);
            lse[r] = j < of.to ? o.lse(of.b, of.h, j) : make_float2(0, 0);
        }
        if (run != i) {
            if (run >= 0) warp_arrive(keys.free_ + keys.at());
            run = i;
            keys.iter++;
            keys.wait_full();
        }
        named_barrier_sync(TURN + group);
        queries.wait_full();
        wgmma_fence();
        gemm_nt<W, QUERIES, KEYS>(s, q + queries.at() * QUERIES * W + group * 64 * PANEL,
                                  k + keys.at() * KEYS * W);
        wgmma_commit();
        wgmma_wait<0>();
        named_barrier_arrive(TURN + (group + 1) % GROUPS);
        warp_arrive(queries.free_ + queries.at());
#pragma unroll
        for (int r = 0; r < 2; r++) stat[r] = weight_stat(lse[r]);
        exp_scores<false, KIND>(s, at, row0, key, at.all_visible(rows, 64, key, KEYS),
                                [&](int e, int) { return stat[e / 2]; });
        O *own = sheets + (group * P::BUFFERS + queries.iter++ % P::BUFFERS) * TILE;
        if (sends)
            bulk_wait_read<P::BUFFERS -
                           1>(); /* what was laid there before has left shared memory */
        warpgroup_sync(1 + group);
        store_swizzled_weights(own, s);
        fence_async_proxy();
        warpgroup_sync(1 + group);
        if (sends) write_sheets(&tensor_maps.w, own, sheet<O>::SIZE, key, rows - of.from);
    });
    if (group == 0) named_barrier_sync(TURN); /* the last group's last */
    if (sends) bulk_wait_read();
}

template <class T, class O, int W, int KIND>
static bool start(fv_stream *s, O *w, const job<T> &o, span of)
{
    typedef traits<T, O, W> P;
    const fv_attn_args &a = o.a;
    weight_maps tensor_maps;
    const cuuint64_t dim[] = {(cuuint64_t)a.Tk, (cuuint64_t)(of.to - of.from)},
                     step[] = {(cuuint64_t)a.Tk * sizeof(O)};
    const cuuint32_t box[] = {sheet<O>::ACROSS, 64};
    if (a.Tk * sizeof(O) % 16 || !aligned(w) ||
        !fv_cuda_tensor_map_nd(&tensor_maps.w, w, kind<O>::dtype, 2, dim, step, box) ||
        !fv_cuda_tensor_map_qkv(&tensor_maps.in, &a, kind<T>::dtype, P::QUERIES, KEYS))
        return false;
    int64_t most = device_of(s)->sm_count, across = ceil_div(a.Tk, KEYS),
            strips = ceil_div(of.to - of.from, P::QUERIES);
    int64_t run = ceil_div(across * strips, most);
    of.run = run < P::LONGEST_RUN ? (int)run : P::LONGEST_RUN;
    of.across = (int)across;
    of.runs = (int)(across * ceil_div(strips, of.run));
    dim3 grid((unsigned)(of.runs < most ? of.runs : most));
    launch(s, "attention_weights", weights_wgmma<T, O, W, KIND>, grid, P::THREADS, P::ROOM, o,
           tensor_maps, of);
    return true;
}

template <class T, class O> static bool start_as(fv_stream *s, O *w, const job<T> &o, span of)
{
    if (o.a.Wk <= 64)
        return o.plain ? start<T, O, 64, PLAIN>(s, w, o, of) : start<T, O, 64, ANY>(s, w, o, of);
    return o.plain ? start<T, O, 128, PLAIN>(s, w, o, of) : start<T, O, 128, ANY>(s, w, o, of);
}

template <class T>
bool fv_cuda_weights_hopper(fv_stream *s, fv_sink w, const job<T> *o, int64_t b, int64_t h,
                            int64_t i0, int64_t i1)
{
    span of = {(int)b, (int)h, (int)i0, (int)i1, 0, 0, 0};
    job<T> before = *o; /* weights are those before dropout */
    before.a.dropout = 0;
    if (w.add) return false;
    return w.dtype == FV_F32 ? start_as(s, (float *)w.data, before, of)
                             : start_as(s, (T *)w.data, before, of);
}

template bool fv_cuda_weights_hopper<bf16>(fv_stream *, fv_sink, const job<bf16> *, int64_t,
                                           int64_t, int64_t, int64_t);
template bool fv_cuda_weights_hopper<f16>(fv_stream *, fv_sink, const job<f16> *, int64_t, int64_t,
                                          int64_t, int64_t);
