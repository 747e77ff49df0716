/* attention_hopper_rows.cu - exact weights of some rows of a head on Hopper, from the log-sum-exp.
 *
 * What counts is how fast weights reach memory, 2 or 4 bytes for every pair: products are quick, keys are read once for 192 rows,
 * and the copy engine writes whole lines from shared memory while three groups of four warps work out the next.  Tiles that no
 * query of a strip can see are zeros, and cost nothing but their bytes.  There is one block for each processor; tiles are dealt
 * out in short runs, so that all blocks have zeros and weights to write in equal shares. */
#include "attention.h"
#include "attention_ways.h"
#include "hopper.h"

namespace
{
enum { GROUPS = 3, QUERIES = 64 * GROUPS, KEYS = 128, STAGES = 2, ALL_THREADS = 128 * (GROUPS + 1) };
constexpr int64_t LONGEST_RUN = 4; /* tiles */

/* Weights are written in sheets of 64 rows of 128 bytes, laid out as panels are. */
template <class O> struct sheet {
    static constexpr int ACROSS = 128 / sizeof(O), SIZE = 64 * ACROSS, OF_TILE = KEYS / ACROSS;
    static constexpr int BUFFERS = sizeof(O) == 2 ? 2 : 1; /* tiles of a group in shared memory */
};

template <class T, class O, int W>
constexpr size_t room_of = 1024 + (QUERIES + STAGES * KEYS) * W * sizeof(T) +
                           (GROUPS * sheet<O>::BUFFERS * sheet<O>::OF_TILE + 1) * sheet<O>::SIZE * sizeof(O);

/* Rows [from, to) of one head.  A run is so many tiles of a strip of QUERIES rows; there are so many across, and in all. */
struct span {
    int b, h, from, to, run, across, runs;
};

struct weight_maps {
    attention_maps in;
    CUtensorMap w;
};
} // namespace

/* No query of the strip can see a key of the tile. */
template <class T> __device__ inline bool hidden(const head<T> &at, int row, int key)
{
    return key >= at.last_key(row, QUERIES) || key + KEYS <= at.first(row);
}

/* Weights of 64 rows and a tile's keys as sheets. */
__device__ inline void lay_weights(float *to, const float (&s)[KEYS / 8][4])
{
    int row = tile_row((int)threadIdx.x / 32 % 4 * 16, 0), lane = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int four = n % 4 * 2 + lane / 2; /* numbers of a row of a sheet; 8 rows on is the same place */
            *(float2 *)(to + n / 4 * sheet<float>::SIZE + (row + r * 8) * sheet<float>::ACROSS + (four ^ row % 8) * 4 +
                        lane % 2 * 2) = make_float2(s[n][r * 2], s[n][r * 2 + 1]);
        }
}
template <class O> __device__ inline void lay_weights(O *to, const float (&s)[KEYS / 8][4])
{
    int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane % 16;
    uint32_t x[KEYS / 16][4];
    narrow(x, s, O());
#pragma unroll
    for (int n = 0; n < KEYS / 16; n++) {
        int eight = n * 2 + lane / 16; /* numbers of a row */
        store_matrices(to + eight / 8 * sheet<O>::SIZE + row * sheet<O>::ACROSS + (eight % 8 ^ row % 8) * 8, x[n]);
    }
}

/* Sheets of a tile on their way to memory, `apart` numbers from one to the next: by one thread. */
template <class O> __device__ inline void write_sheets(const CUtensorMap *map, const O *from, int apart, int key, int row)
{
#pragma unroll
    for (int n = 0; n < sheet<O>::OF_TILE; n++) write_rows_from(map, from + n * apart, key + n * sheet<O>::ACROSS, row);
    writes_end();
}

/* f(row, from, to) for all runs of this block: a strip's first row, and keys. */
template <class F> __device__ inline void each_run(const span &of, int keys, F f)
{
    for (int i = blockIdx.x; i < of.runs; i += gridDim.x) {
        int row = of.from + i / of.across * QUERIES, from = i % of.across * of.run * KEYS;
        f(row, from, min(from + of.run * KEYS, keys));
    }
}

template <class T, class O, int W, int KIND>
__global__ void __launch_bounds__(ALL_THREADS, 1)
    weights_wgmma(const __grid_constant__ job<T> o, const __grid_constant__ weight_maps maps, span of)
{
    constexpr int TILE = sheet<O>::OF_TILE * sheet<O>::SIZE, BUFFERS = sheet<O>::BUFFERS;
    extern __shared__ unsigned char memory[];
    __shared__ uint64_t q_full, q_free, full[STAGES], free_[STAGES];
    T *q = (T *)(memory + (1024 - shared_at(memory) % 1024) % 1024), *k = q + QUERIES * W;
    O *sheets = (O *)(k + STAGES * KEYS * W), *zeros = sheets + GROUPS * BUFFERS * TILE;
    if (threadIdx.x == 0) {
        barrier_init(&q_full, 1);
        barrier_init(&q_free, 4 * GROUPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(free_ + i, 4 * GROUPS);
        }
        barriers_ready();
    }
    for (int i = threadIdx.x; i < sheet<O>::SIZE; i += ALL_THREADS) zeros[i] = down<O>(0);
    written_for_engine();
    __syncthreads();
    head<T> at(o, of.b, of.h);
    int group = group_of() - 1, strips = 0, turn = 0, g = o.kv_head(of.h), keys = (int)o.a.Tk;
    if (group < 0) {
        registers_down<32>();
        if (threadIdx.x > 0) return;
        each_run(of, keys, [&](int row, int from, int to) {
            bool begun = false;
            for (int key = from; key < to; key += KEYS) {
                if (hidden(at, row, key)) continue;
                if (!begun) {
                    begun = true;
                    if (strips > 0) wait_for(&q_free, (unsigned)(strips - 1) & 1);
                    strips++;
                    arrive_expecting(&q_full, QUERIES * W * sizeof(T));
                    for (int c = 0; c < W; c += PANEL) bring_panel(q + c * QUERIES, &maps.in.q, &q_full, c, of.h, row, of.b);
                }
                int stage = turn % STAGES;
                if (turn >= STAGES) wait_for(free_ + stage, (unsigned)(turn / STAGES + 1) & 1);
                arrive_expecting(full + stage, KEYS * W * sizeof(T));
                for (int c = 0; c < W; c += PANEL)
                    bring_panel(k + stage * KEYS * W + c * KEYS, &maps.in.k, full + stage, c, g, key, of.b);
                turn++;
            }
        });
        return;
    }
    registers_up<160>();
    bool sends = threadIdx.x % 128 == 0;
    float s[KEYS / 8][4], lse[2];
    each_run(of, keys, [&](int row, int from, int to) {
        int rows = row + group * 64, row0 = rows + (int)threadIdx.x / 32 % 4 * 16;
        bool begun = false;
        for (int key = from; key < to; key += KEYS) {
            if (hidden(at, row, key)) {
                if (sends) write_sheets(&maps.w, zeros, 0, key, rows - of.from);
                continue;
            }
            if (!begun) {
                begun = true;
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    int i = tile_row(row0, r * 2);
                    float known = i < of.to ? ((const float *)o.a.lse)[o.at_lse(of.b, of.h, i)] : -INFINITY;
                    lse[r] = known == -INFINITY ? INFINITY : known * LOG2E; /* nothing seen: weights are 0 */
                }
                wait_for(&q_full, (unsigned)strips++ & 1);
            }
            int stage = turn % STAGES;
            O *own = sheets + (group * BUFFERS + turn % BUFFERS) * TILE;
            wait_for(full + stage, (unsigned)(turn++ / STAGES) & 1);
            products_begin();
            multiply_rows<W, QUERIES, KEYS>(s, q + group * 64 * PANEL, k + stage * KEYS * W);
            products_end();
            products_done<0>();
            release(free_ + stage);
            weigh<false, KIND>(s, at, row0, key, at.whole(rows, 64, key, KEYS), [&](int e, int) { return lse[e / 2]; });
            if (sends) added_read<BUFFERS - 1>(); /* what was laid there before has left shared memory */
            group_wait(1 + group);
            lay_weights(own, s);
            written_for_engine();
            group_wait(1 + group);
            if (sends) write_sheets(&maps.w, own, sheet<O>::SIZE, key, rows - of.from);
        }
        if (begun) release(&q_free);
    });
    if (sends) added_read();
}

template <class T, class O, int W, int KIND> static bool start(fv_stream *s, O *w, const job<T> &o, span of)
{
    const fv_attn_args &a = o.a;
    weight_maps maps;
    const cuuint64_t dim[] = {(cuuint64_t)a.Tk, (cuuint64_t)(of.to - of.from)}, step[] = {(cuuint64_t)a.Tk * sizeof(O)};
    const cuuint32_t box[] = {sheet<O>::ACROSS, 64};
    if (a.Tk * sizeof(O) % 16 || !aligned(w) || !fv_cuda_map_axes(&maps.w, w, kind<O>::dtype, 2, dim, step, box) ||
        !fv_cuda_map_attention(&maps.in, &a, kind<T>::dtype, QUERIES, KEYS))
        return false;
    int64_t most = device_of(s)->processors, across = ceil_div(a.Tk, KEYS), strips = ceil_div(of.to - of.from, QUERIES);
    int64_t run = ceil_div(across * strips, most);
    of.run = (int)(run < LONGEST_RUN ? run : LONGEST_RUN);
    of.across = (int)ceil_div(across, of.run);
    of.runs = of.across * (int)strips;
    dim3 grid((unsigned)(of.runs < most ? of.runs : most));
    launch(s, "attention_weights", weights_wgmma<T, O, W, KIND>, grid, ALL_THREADS, room_of<T, O, W>, o, maps, of);
    return true;
}

template <class T, class O> static bool start_as(fv_stream *s, O *w, const job<T> &o, span of)
{
    if (o.a.Wk <= 64) return o.plain ? start<T, O, 64, PLAIN>(s, w, o, of) : start<T, O, 64, ANY>(s, w, o, of);
    return o.plain ? start<T, O, 128, PLAIN>(s, w, o, of) : start<T, O, 128, ANY>(s, w, o, of);
}

template <class T>
bool fv_cuda_weights_hopper(fv_stream *s, fv_sink w, const job<T> *o, int64_t b, int64_t h, int64_t i0, int64_t i1)
{
    span of = {(int)b, (int)h, (int)i0, (int)i1, 0, 0, 0};
    job<T> before = *o; /* weights are those before dropout */
    before.a.dropout = 0;
    if (w.add) return false;
    return w.dtype == FV_F32 ? start_as(s, (float *)w.data, before, of) : start_as(s, (T *)w.data, before, of);
}

template bool fv_cuda_weights_hopper<bf16>(fv_stream *, fv_sink, const job<bf16> *, int64_t, int64_t, int64_t, int64_t);
template bool fv_cuda_weights_hopper<f16>(fv_stream *, fv_sink, const job<f16> *, int64_t, int64_t, int64_t, int64_t);
