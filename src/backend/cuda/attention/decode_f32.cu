/* decode_f32.cu - attention of one query per sequence in f32, with the bits of the tiled kernel
 * (fwd.cu): a token read by itself has those of one read in a prompt.
 *
 *     tile t of keys:  m = max_j s_j;  l = sum_j 2^(s_j - m);  y = sum_j 2^(s_j - m) v_j
 *     all of them, merged in order (online_softmax.h)
 *
 * Tiles are at multiples of their size, so neither the length nor the number of blocks that share
 * them changes what a tile is.  Scores, sums and products are chains in the order in which the
 * tiled kernel's threads have them.  The last block of a head to finish merges.
 *
 * A block has TEAMS teams of 64 threads with a tile each: a thread has a key of the scores, then
 * a column (or two) of the values. */
#include "online_softmax.h"
#include "dispatch.h"

namespace
{

#define TEAM 64 /* threads */
#define TEAMS 4
#define MAX_PARTS 32 /* blocks per head */

/* The tiles' results (B, H, tiles, 2 + W): maximum, sum, y. */
struct tile_job {
    attn_params<float> attn;
    float *tiles;
    unsigned *ticket;
};

template <int W> struct team_smem {
    float weight[keys_of<float, W>], part[TEAM / 32];
};

/* q k_j as mul_nt has it; rows are whole vectors of 4. */
__device__ inline float score_of(const float *q, const float *k, int width)
{
    float s = 0;
#pragma unroll 16 /* all loads of a key in flight */
    for (int i = 0; i < width; i += 4)
        s = dot4(*(const float4 *)(q + i), *(const float4 *)(k + i), s);
    return s;
}

/* The sum of a tile's weights as exp_weights and merge_tile have it: four threads have two of
 * every eight columns each. */
template <int K> __device__ inline float sum_of(const float *w)
{
    float share[4] = {};
#pragma unroll
    for (int j = 0; j < K; j++) share[j % 8 / 2] += w[j];
    return (share[0] + share[1]) + (share[2] + share[3]);
}

/* Tile t by one team.  Barriers are the block's: all teams call it, with a tile or without
 * (count 0). */
template <int W>
__device__ inline void attend_tile(const head_view<float> &head, const float *q, int first,
                                   int from, int end, team_smem<W> *m, float *to)
{
    constexpr int K = keys_of<float, W>;
    const attn_params<float> &attn = head.attn;
    int i = threadIdx.x % TEAM, g = attn.kv_head(head.h), j = from + i;
    bool seen = i < K && j >= first && j < end &&
                (!attn.a.key_mask || attn.a.key_mask[(int64_t)head.b * attn.a.Tk + j]);
    float s = seen ? score_of(q, attn.k(head.b, g, j), (int)attn.a.Wk) : -INFINITY,
          top = warp_allreduce(s, [](float a, float b) { return fmaxf(a, b); });
    if (i % 32 == 0) m->part[i / 32] = top;
    __syncthreads();
    top = fmaxf(m->part[0], m->part[1]) * attn.scale;
    if (i < K) m->weight[i] = exp2_fast(exponent<float>(s, attn.scale, top == -INFINITY ? 0 : top));
    __syncthreads();
    if (from < end && i == 0) to[0] = top, to[1] = sum_of<K>(m->weight);
    int n = min(end - from, K);
    for (int c = i; c < (int)attn.a.Wv; c += TEAM) {
        float y = 0;
        const float *v = attn.v(head.b, g, from) + c;
#pragma unroll 16
        for (int k = 0; k < n; k++) y = fmaf(m->weight[k], v[k * attn.a.v_row], y);
        if (from < end) to[2 + c] = y;
    }
    __syncthreads(); /* the next tile overwrites weights and parts */
}

/* Whether this block is the last of its head: then all tiles are in memory. */
__device__ inline bool is_last(unsigned *ticket, unsigned parts)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1u) == parts - 1;
        if (last) *ticket = 0;
    }
    __syncthreads();
    __threadfence();
    return last;
}

template <int W>
__global__ void __launch_bounds__(TEAM *TEAMS)
    attention_decode_f32(const __grid_constant__ tile_job p)
{
    constexpr int K = keys_of<float, W>;
    __shared__ __align__(16) float q[W];
    __shared__ team_smem<W> team[TEAMS];
    const attn_params<float> &attn = p.attn;
    pdl_launch_dependents();
    pdl_wait();
    head_view<float> head(attn, blockIdx.z, blockIdx.y);
    int first = head.first_key(0), end = head.end_key(0), mine = threadIdx.x / TEAM,
        tiles = (int)ceil_div(attn.a.Tk, K), first_tile = first / K, end_tile = (end + K - 1) / K;
    int64_t which = (int64_t)head.b * attn.a.H + head.h;
    float *all = p.tiles + which * tiles * (2 + attn.a.Wv);
    if (threadIdx.x < attn.a.Wk) q[threadIdx.x] = attn.q(head.b, head.h, 0)[threadIdx.x];
    __syncthreads();
    for (int t = first_tile + (int)blockIdx.x * TEAMS; t < end_tile; t += (int)gridDim.x * TEAMS)
        attend_tile<W>(head, q, first, (t + mine) * K, end, &team[mine],
                       all + (int64_t)(t + mine) * (2 + attn.a.Wv));
    if (!is_last(&p.ticket[which], gridDim.x) || threadIdx.x >= attn.a.Wv) return;
    int c = threadIdx.x;
    float row_max = -INFINITY, sum = 0, y = 0;
    for (int t = first_tile; t < end_tile; t++) {
        const float *r = all + (int64_t)t * (2 + attn.a.Wv);
        float2 by = merge_max(row_max, r[0]);
        sum = merge(sum, r[1], by);
        y = merge(y, r[2 + c], by);
    }
    ((float *)attn.a.y)[attn.y_offset(head.b, head.h, 0) + c] =
        y * (sum > 0 ? attn.dropout_scale / sum : 0);
    if (c == 0) attn.lse(head.b, head.h, 0) = make_float2(row_max, sum);
}

/* Parts of the keys for blocks of their own, while there are SMs for them; no bit depends on it. */
template <int W> bool start(fv_stream *s, const attn_params<float> &attn)
{
    const device *d = device_of(s);
    int64_t heads = attn.a.B * attn.a.H, tiles = ceil_div(attn.a.Tk, keys_of<float, W>),
            parts = ceil_div(tiles, TEAMS), most = 2 * d->sm_count / heads;
    if (heads > TICKETS) return false;
    if (parts > most) parts = most;
    parts = parts < 1 ? 1 : parts > MAX_PARTS ? MAX_PARTS : parts;
    tile_job p = {attn, alloc_scratch<float>(s, heads * tiles * (2 + attn.a.Wv)), d->tickets};
    if (p.tiles)
        launch_pdl(s, "attention", attn.a.B <= PDL_MAX_ROWS, attention_decode_f32<W>,
                   dim3((unsigned)parts, (unsigned)attn.a.H, (unsigned)attn.a.B), TEAM * TEAMS, 0,
                   p);
    return true;
}
} // namespace

/* False: not a case for this kernel, which is as good as the tiled one. */
bool fv_cuda_attention_decode_f32(fv_stream *s, const fv_attn_args *a)
{
    attn_params<float> attn = make_params<float>(s, a);
    int64_t most = a->Wk > a->Wv ? a->Wk : a->Wv;
    if (!attn.plain || !attn.vector_q || !attn.vector_k || a->dropout > 0 || a->B > 65535 || !a->Tk)
        return false;
    if (most <= 32) return start<32>(s, attn);
    if (most <= 64) return start<64>(s, attn);
    return most <= SPLIT_MAX_WIDTH && start<128>(s, attn);
}
