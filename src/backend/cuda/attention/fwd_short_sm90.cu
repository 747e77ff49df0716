/* fwd_short_sm90.cu - the forward pass of attention over up to 128 queries and keys on Hopper: one
 * head is one tile.
 *
 *     s = scale q k', -inf for masked keys;  w = exp(s - max s);  y = w v / sum w;
 *     lse = (max s, sum w)
 *
 * q, k and v of such a head are 48 KB and its products few, so what counts is bytes in flight.
 * Persistent kernel, one block per SM:
 *
 *   producer    one warp loads head after head by TMA, STAGES ahead, and packs the key mask of each
 *               into 128 bits
 *   consumers   two pairs of warpgroups.  A pair takes every second head, 64 rows per warpgroup, so
 *               that the exponentials of one pair overlap the products of the other
 *
 * Everything is in registers between the two products: no online softmax, no accumulator rescaling.
 * Sequences are taken from the last to the first: q, k and v of the last were written last, and are
 * still in L2.
 *
 * Shared memory: short_layout.  Registers: 112 per consumer thread, 24 per producer thread. */
#include "attention.h"
#include "dispatch.h"
#include "backend/cuda/device/sm90_pipeline.h"

namespace
{
enum {
    SIDE = 128, /* most queries, and keys */
    STAGES = 4,
    PAIRS = 2, /* of consumer warpgroups */
    WARPGROUP = 128,
    STAGING_ROWS = 8, /* rows of y that a warp stores at a time */
    BLOCK_THREADS = (2 * PAIRS + 1) * WARPGROUP,
    CONSUMER_REGISTERS = 112, /* with 24 for the producer: the 96 per thread of the launch */
    PRODUCER_REGISTERS = 24
};

/* A stage is q, k and v of a head, 16 KiB each; four stages are 192 KiB, 144 KiB of them ahead of
 * the one in use: bytes in flight that hide the latency of HBM with one block an SM. */
template <class T> struct head_tiles {
    T q[SIDE * PANEL], k[SIDE * PANEL], v[SIDE * PANEL];
};
template <class T> struct short_layout {
    head_tiles<T> tiles[STAGES];
    T staging[8 * PAIRS][STAGING_ROWS * PANEL]; /* one for each warp */
    uint4 key_bits[STAGES];                     /* visible keys */
    uint64_t full[STAGES], empty[STAGES];
};

/* The n-th work item, from the last sequence to the first. */
template <class T> __device__ inline int sequence_of(const attn_params<T> &attn, int n)
{
    return (int)attn.a.B - 1 - n / (int)attn.a.H;
}
template <class T> __device__ inline int head_of(const attn_params<T> &attn, int n)
{
    return n % (int)attn.a.H;
}

/* The producer warp. */
template <class T>
__device__ void produce_tiles(const attn_params<T> &attn, short_layout<T> *m,
                              const qkv_tensor_maps *maps, int count)
{
    int lane = threadIdx.x % 32, keys = (int)attn.a.Tk;
    stage_ring<STAGES> ring = {m->full, m->empty};
    unsigned iter = 0;
    for (int n = blockIdx.x; n < count; n += gridDim.x, iter++) {
        int stage = iter % STAGES;
        head_tiles<T> *to = &m->tiles[stage];
        uint64_t *full = ring.full + stage;
        int b = sequence_of(attn, n), h = head_of(attn, n), g = attn.kv_head(h),
            length = (int)attn.length(b);
        const uint8_t *mask = attn.a.key_mask ? attn.a.key_mask + (int64_t)b * keys : NULL;
        uint32_t visible[SIDE / 32];
        ring.wait_empty(iter);
        if (lane == 0) {
            mbarrier_arrive_expect_tx(full, sizeof *to);
            tma_load_4d(to->q, &maps->q, full, 0, h, 0, b);
            tma_load_4d(to->k, &maps->k, full, 0, g, 0, b);
            tma_load_4d(to->v, &maps->v, full, 0, g, 0, b);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SIDE / 32; i++) {
            int j = i * 32 + lane;
            visible[i] = __ballot_sync(~0u, j < length && (!mask || mask[j]));
        }
        if (lane == 0) {
            m->key_bits[stage] = make_uint4(visible[0], visible[1], visible[2], visible[3]);
            mbarrier_arrive(full);
        }
    }
}

/* Products s become weights 2^(score - max), not yet divided by their sum; row_max is in base 2. */
__device__ inline void softmax_rows(float (&s)[SIDE / 8][4], float (&row_max)[2],
                                    float (&row_sum)[2], uint4 key_bits, float scale)
{
    if ((key_bits.x & key_bits.y & key_bits.z & key_bits.w) != ~0u) {
        int column = threadIdx.x % 4 * 2;
        const uint32_t bits[] = {key_bits.x >> column, key_bits.y >> column, key_bits.z >> column,
                                 key_bits.w >> column};
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(bits[n / 4] & 1u << (n % 4 * 8 + e % 2))) s[n][e] = -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * scale;
        row_max[i] = most == -INFINITY ? 0 : most;
        row_sum[i] = 0;
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int e = 2 * i; e < 2 * i + 2; e++) {
                s[n][e] = exp2_fast(fmaf(s[n][e], scale, -row_max[i]));
                row_sum[i] += s[n][e];
            }
        row_sum[i] += __shfl_xor_sync(~0u, row_sum[i], 1);
        row_sum[i] += __shfl_xor_sync(~0u, row_sum[i], 2);
    }
}

/* Epilogue of a warp: 16 rows of y from `row` on, 8 at a time through its staging rows, so that
 * threads store 16 bytes each. */
template <class T>
__device__ inline void write_rows(const attn_params<T> &attn, const float (&y)[8][4],
                                  const float (&inv_sum)[2], T *staging, int b, int h, int row)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
            uint32_t x[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                x[k] = pack2(y[n + k][2 * i] * inv_sum[i], y[n + k][2 * i + 1] * inv_sum[i], T());
            stmatrix_x4(staging + lane % 8 * PANEL + ((n + lane / 8) ^ (lane % 8)) * 8, x);
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < STAGING_ROWS; k += 4) {
            int r = k + lane / 8, c = lane % 8, to = row + i * STAGING_ROWS + r;
            uint4 x = *(const uint4 *)(staging + r * PANEL + (c ^ r) * 8);
            if (to < attn.a.Tq && c * 8 < attn.a.Wv)
                *(uint4 *)((T *)attn.a.y + attn.y_offset(b, h, to) + c * 8) = x;
        }
        __syncwarp();
    }
}

/* One consumer warpgroup: rows 64 half .. 64 half + 63 of a head. */
template <class T>
__device__ inline void attend(const attn_params<T> &attn, const head_tiles<T> *x, uint4 key_bits,
                              uint64_t *empty, T *staging, int b, int h, int half)
{
    int row = half * 64 + (int)threadIdx.x / 32 % 4 * 16;
    float s[SIDE / 8][4], y[PANEL / 8][4], row_max[2], row_sum[2], inv_sum[2];
    uint32_t p[SIDE / 16][4];
    wgmma_fence();
    gemm_nt<PANEL, SIDE, SIDE>(s, x->q + half * 64 * PANEL, x->k);
    wgmma_commit();
    wgmma_wait<0>();
    softmax_rows(s, row_max, row_sum, key_bits, attn.scale);
    pack_fragments(p, s, T());
    wgmma_fence();
    gemm_rs(y, p, x->v, false);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int query = tile_row(row, 2 * i);
        inv_sum[i] = row_sum[i] > 0 ? 1 / row_sum[i] : 0;
        if (threadIdx.x % 4 == 0 && query < attn.a.Tq)
            attn.lse(b, h, query) = make_float2(row_max[i], row_sum[i]);
    }
    wgmma_wait<0>();
    warp_arrive(empty);
    write_rows(attn, y, inv_sum, staging, b, h, row);
}

template <class T>
__global__ void __launch_bounds__(BLOCK_THREADS, 1)
    attention_short(const __grid_constant__ attn_params<T> attn,
                    const __grid_constant__ qkv_tensor_maps maps, int count)
{
    extern __shared__ unsigned char memory[];
    short_layout<T> *m = (short_layout<T> *)(((uintptr_t)memory + 1023) / 1024 * 1024);
    stage_ring<STAGES> ring = {m->full, m->empty};
    if (threadIdx.x == 0) {
        ring.init(2, 8); /* TMA and key bits; each warp of a pair */
        mbarrier_init_fence();
    }
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
    int group = warpgroup_index();
    if (group == 2 * PAIRS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (threadIdx.x < 2 * PAIRS * WARPGROUP + 32) produce_tiles(attn, m, &maps, count);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        unsigned iter = group / 2;
        for (int n = blockIdx.x + iter * gridDim.x; n < count;
             n += PAIRS * gridDim.x, iter += PAIRS) {
            int stage = iter % STAGES;
            ring.wait_full(iter);
            if (group % 2 * 64 < attn.a.Tq)
                attend(attn, &m->tiles[stage], m->key_bits[stage], ring.empty + stage,
                       m->staging[threadIdx.x / 32], sequence_of(attn, n), head_of(attn, n),
                       group % 2);
            else
                warp_arrive(ring.empty + stage);
        }
    }
}
} // namespace

template <class T> bool fv_cuda_attention_short(fv_stream *s, const fv_attn_args *a)
{
    attn_params<T> attn = make_params<T>(s, a);
    qkv_tensor_maps maps;
    int64_t heads = a->B * a->H;
    if (!attn.plain || heads > INT32_MAX / 2 ||
        !fv_cuda_tensor_map_qkv(&maps, a, kind<T>::dtype, SIDE, SIDE))
        return false;
    launch_pdl(s, "attention", true, attention_short<T>, persistent_grid(s, heads), BLOCK_THREADS,
               sizeof(short_layout<T>) + 1024, attn, maps, (int)heads);
    return true;
}

template bool fv_cuda_attention_short<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_short<f16>(fv_stream *, const fv_attn_args *);
