/* attention_hopper_rows.cu - exact weights of some rows of a head on Hopper, from the log-sum-exp.
 *
 * What counts is how fast weights reach memory, 4 bytes for every pair: products are quick, keys are read once for 192 rows, and
 * the copy engine writes whole lines from shared memory while three groups of four warps work out the next.  Tiles that no query
 * of a strip can see are zeros, and cost nothing but their bytes.  There is one block for each processor, with an equal share of
 * all tiles. */
#include "attention.h"
#include "attention_ways.h"
#include "hopper.h"

namespace
{
enum { GROUPS = 3, QUERIES = 64 * GROUPS, KEYS = 128, STAGES = 2, ALL_THREADS = 128 * (GROUPS + 1) };
enum { ACROSS = 32, SHEET = 64 * ACROSS, SHEETS = KEYS / ACROSS }; /* weights are written in sheets of 64 rows of 128 bytes */

template <class T, int W>
constexpr size_t room_of = 1024 + (QUERIES + STAGES * KEYS) * W * sizeof(T) + (GROUPS * SHEETS + 1) * SHEET * sizeof(float);

struct span { /* rows [from, to) of one head; tiles of keys across, and tiles in all */
    int b, h, from, to, across, tiles;
};

/* The tiles of a block, strip by strip. */
struct share {
    int next, end;
    __device__ share(const span &of)
        : next((int)((int64_t)of.tiles * blockIdx.x / gridDim.x)), end((int)((int64_t)of.tiles * (blockIdx.x + 1) / gridDim.x))
    {
    }
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

/* Weights of 64 rows and a tile's keys as sheets, laid out as panels are. */
__device__ inline void lay_weights(float *to, const float (&s)[KEYS / 8][4])
{
    int row = tile_row((int)threadIdx.x / 32 % 4 * 16, 0), lane = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int four = n % 4 * 2 + lane / 2; /* numbers of a row of a sheet; 8 rows on is the same place */
            *(float2 *)(to + n / 4 * SHEET + (row + r * 8) * ACROSS + (four ^ row % 8) * 4 +
                        lane % 2 * 2) = make_float2(s[n][r * 2], s[n][r * 2 + 1]);
        }
}

/* Sheets of a tile on their way to memory, `apart` numbers from one to the next: by one thread. */
__device__ inline void write_sheets(const CUtensorMap *map, const float *from, int apart, int key, int row)
{
#pragma unroll
    for (int n = 0; n < SHEETS; n++) write_rows_from(map, from + n * apart, key + n * ACROSS, row);
    writes_end();
}

template <class T, int W, int KIND>
__global__ void __launch_bounds__(ALL_THREADS, 1)
    weights_wgmma(const __grid_constant__ job<T> o, const __grid_constant__ weight_maps maps, span of)
{
    extern __shared__ unsigned char memory[];
    __shared__ uint64_t q_full, q_free, full[STAGES], free_[STAGES];
    T *q = (T *)(memory + (1024 - shared_at(memory) % 1024) % 1024), *k = q + QUERIES * W;
    float *sheets = (float *)(k + STAGES * KEYS * W), *zeros = sheets + GROUPS * SHEETS * SHEET;
    if (threadIdx.x == 0) {
        barrier_init(&q_full, 1);
        barrier_init(&q_free, 4 * GROUPS);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(free_ + i, 4 * GROUPS);
        }
        barriers_ready();
    }
    for (int i = threadIdx.x; i < SHEET; i += ALL_THREADS) zeros[i] = 0;
    written_for_engine();
    __syncthreads();
    head<T> at(o, of.b, of.h);
    int group = group_of() - 1, strip = -1, strips = 0, turn = 0, g = o.kv_head(of.h);
    share mine(of);
    if (group < 0) {
        registers_down<32>();
        if (threadIdx.x > 0) return;
        for (int tile = mine.next; tile < mine.end; tile++) {
            int row = of.from + tile / of.across * QUERIES, key = tile % of.across * KEYS, stage = turn % STAGES;
            if (hidden(at, row, key)) continue;
            if (tile / of.across != strip) {
                strip = tile / of.across;
                if (strips > 0) wait_for(&q_free, (unsigned)(strips - 1) & 1);
                strips++;
                arrive_expecting(&q_full, QUERIES * W * sizeof(T));
                for (int c = 0; c < W; c += PANEL) bring_panel(q + c * QUERIES, &maps.in.q, &q_full, c, of.h, row, of.b);
            }
            if (turn >= STAGES) wait_for(free_ + stage, (unsigned)(turn / STAGES + 1) & 1);
            arrive_expecting(full + stage, KEYS * W * sizeof(T));
            for (int c = 0; c < W; c += PANEL)
                bring_panel(k + stage * KEYS * W + c * KEYS, &maps.in.k, full + stage, c, g, key, of.b);
            turn++;
        }
        return;
    }
    registers_up<160>();
    bool sends = threadIdx.x % 128 == 0;
    float s[KEYS / 8][4], lse[2], *own = sheets + group * SHEETS * SHEET;
    for (int tile = mine.next; tile < mine.end; tile++) {
        int row = of.from + tile / of.across * QUERIES, rows = row + group * 64, key = tile % of.across * KEYS;
        int row0 = rows + (int)threadIdx.x / 32 % 4 * 16, stage = turn % STAGES;
        if (hidden(at, row, key)) {
            if (sends) write_sheets(&maps.w, zeros, 0, key, rows - of.from);
            continue;
        }
        if (tile / of.across != strip) {
            if (strip >= 0) release(&q_free);
            strip = tile / of.across;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int i = tile_row(row0, r * 2);
                float known = i < of.to ? ((const float *)o.a.lse)[o.at_lse(of.b, of.h, i)] : -INFINITY;
                lse[r] = known == -INFINITY ? INFINITY : known * LOG2E; /* nothing seen: weights are 0 */
            }
            wait_for(&q_full, (unsigned)strips++ & 1);
        }
        wait_for(full + stage, (unsigned)(turn++ / STAGES) & 1);
        products_begin();
        multiply_rows<W, QUERIES, KEYS>(s, q + group * 64 * PANEL, k + stage * KEYS * W);
        products_end();
        products_done<0>();
        release(free_ + stage);
        weigh<false, KIND>(s, at, row0, key, at.whole(rows, 64, key, KEYS), [&](int e, int) { return lse[e / 2]; });
        if (sends) added_read(); /* the tile before has left shared memory */
        group_wait(1 + group);
        lay_weights(own, s);
        written_for_engine();
        group_wait(1 + group);
        if (sends) write_sheets(&maps.w, own, SHEET, key, rows - of.from);
    }
    if (sends) added_read();
}

template <class T, int W, int KIND> static bool start(fv_stream *s, float *w, const job<T> &o, span of)
{
    const fv_attn_args &a = o.a;
    weight_maps maps;
    const cuuint64_t dim[] = {(cuuint64_t)a.Tk, (cuuint64_t)(of.to - of.from)}, step[] = {(cuuint64_t)a.Tk * sizeof(float)};
    const cuuint32_t box[] = {ACROSS, 64};
    if (a.Tk % 4 || !aligned(w) || !fv_cuda_map_axes(&maps.w, w, FV_F32, 2, dim, step, box) ||
        !fv_cuda_map_attention(&maps.in, &a, kind<T>::dtype, QUERIES, KEYS))
        return false;
    int most = device_of(s)->processors;
    of.across = (int)ceil_div(a.Tk, KEYS);
    of.tiles = of.across * (int)ceil_div(of.to - of.from, QUERIES);
    dim3 grid((unsigned)(of.tiles < most ? of.tiles : most));
    launch(s, "attention_weights", weights_wgmma<T, W, KIND>, grid, ALL_THREADS, room_of<T, W>, o, maps, of);
    return true;
}

template <class T>
bool fv_cuda_weights_hopper(fv_stream *s, float *w, const job<T> *o, int64_t b, int64_t h, int64_t i0, int64_t i1)
{
    span of = {(int)b, (int)h, (int)i0, (int)i1, 0, 0};
    job<T> before = *o; /* weights are those before dropout */
    before.a.dropout = 0;
    if (o->a.Wk <= 64) return o->plain ? start<T, 64, PLAIN>(s, w, before, of) : start<T, 64, ANY>(s, w, before, of);
    return o->plain ? start<T, 128, PLAIN>(s, w, before, of) : start<T, 128, ANY>(s, w, before, of);
}

template bool fv_cuda_weights_hopper<bf16>(fv_stream *, float *, const job<bf16> *, int64_t, int64_t, int64_t, int64_t);
template bool fv_cuda_weights_hopper<f16>(fv_stream *, float *, const job<f16> *, int64_t, int64_t, int64_t, int64_t);
