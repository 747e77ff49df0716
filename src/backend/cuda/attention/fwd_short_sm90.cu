/* fwd_short_sm90.cu - the forward pass of attention over up to 128 queries and keys on Hopper: a
 * head at a time.
 *
 *     s = scale q k';  m = max s;  p = exp(s - m);  y = p v / sum p;  lse = (m, sum p);
 *     keys that are hidden have s = -inf
 *
 * A head that short is one tile: 48 KB of q, k and v, and so few products that what counts is bytes
 * under way.  One block a processor stays there and takes head after head.  One warp brings them,
 * Q_STAGES ahead, and says which keys are seen; two groups of four warps, 64 rows each, make a pair
 * that takes a head, and there are two pairs, so that one's exponentials fall into the other's
 * products.  The last sequences come first: their q, k and v were written last and are in the cache
 * still. */
#include "attention.h"
#include "dispatch.h"
#include "backend/cuda/device/sm90.h"

#define SIDE 128   /* the most queries, and keys */
#define Q_STAGES 4 /* heads in memory */
#define PAIRS 2
#define GROUP 128
#define PAD_ROWS 8 /* that a warp writes at a time */

template <class T> struct whole_head {
    T q[SIDE * PANEL], k[SIDE * PANEL], v[SIDE * PANEL];
};
template <class T> struct smem_layout {
    whole_head<T> of[Q_STAGES];
    T pad[8 * PAIRS][PAD_ROWS * PANEL]; /* of each warp: rows on their way out */
    uint4 seen[Q_STAGES];               /* a bit for each key */
    uint64_t full[Q_STAGES], empty[Q_STAGES];
};

/* Head n of all, from the last sequence to the first. */
template <class T> __device__ inline int sequence_of(const job<T> &o, int n)
{
    return (int)o.a.B - 1 - n / (int)o.a.H;
}
template <class T> __device__ inline int head_of(const job<T> &o, int n) { return n % (int)o.a.H; }

/* By a warp. */
template <class T>
__device__ void produce_tiles(const job<T> &o, smem_layout<T> *r, const qkv_tensor_maps *of,
                              int count)
{
    int lane = threadIdx.x % 32, keys = (int)o.a.Tk;
    unsigned step = 0;
    for (int n = blockIdx.x; n < count; n += gridDim.x, step++) {
        whole_head<T> *to = &r->of[step % Q_STAGES];
        uint64_t *full = &r->full[step % Q_STAGES];
        int b = sequence_of(o, n), h = head_of(o, n), g = o.kv_head(h), length = (int)o.length(b);
        const uint8_t *mask = o.a.key_mask ? o.a.key_mask + (int64_t)b * keys : NULL;
        uint32_t seen[SIDE / 32];
        mbarrier_wait(&r->empty[step % Q_STAGES], (step / Q_STAGES & 1) ^ 1);
        if (lane == 0) {
            mbarrier_arrive_expect_tx(full, sizeof *to);
            tma_load_4d(to->q, &of->q, full, 0, h, 0, b);
            tma_load_4d(to->k, &of->k, full, 0, g, 0, b);
            tma_load_4d(to->v, &of->v, full, 0, g, 0, b);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SIDE / 32; i++) {
            int j = i * 32 + lane;
            seen[i] = __ballot_sync(~0u, j < length && (!mask || mask[j]));
        }
        if (lane == 0) {
            r->seen[step % Q_STAGES] = make_uint4(seen[0], seen[1], seen[2], seen[3]);
            mbarrier_arrive(full);
        }
    }
}

/* Turns products into weights that are yet to be divided by their sums; those and the row's largest
 * are in units of log 2. */
__device__ inline void exp_row(float (&s)[SIDE / 8][4], float (&top)[2], float (&sum)[2],
                               uint4 seen, float scale)
{
    if ((seen.x & seen.y & seen.z & seen.w) != ~0u) {
        int mine = threadIdx.x % 4 * 2;
        const uint32_t bits[] = {seen.x >> mine, seen.y >> mine, seen.z >> mine, seen.w >> mine};
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
        top[i] = most == -INFINITY ? 0 : most;
        sum[i] = 0;
#pragma unroll
        for (int n = 0; n < SIDE / 8; n++)
#pragma unroll
            for (int e = 2 * i; e < 2 * i + 2; e++) {
                s[n][e] = exp2_fast(fmaf(s[n][e], scale, -top[i]));
                sum[i] += s[n][e];
            }
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    }
}

/* Writes the 16 rows of a warp from row on in accesses of 16 bytes: as the tensor cores leave them
 * they are scattered. */
template <class T>
__device__ inline void write_rows(const job<T> &o, const float (&y)[8][4], const float (&by)[2],
                                  T *pad, int b, int h, int row)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int n = 0; n < 8; n += 4) {
            uint32_t x[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                x[k] = pack2(y[n + k][2 * i] * by[i], y[n + k][2 * i + 1] * by[i], T());
            stmatrix_x4(pad + lane % 8 * PANEL + ((n + lane / 8) ^ (lane % 8)) * 8, x);
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < PAD_ROWS; k += 4) {
            int at = k + lane / 8, c = lane % 8, to = row + i * PAD_ROWS + at;
            uint4 x = *(const uint4 *)(pad + at * PANEL + (c ^ at) * 8);
            if (to < o.a.Tq && c * 8 < o.a.Wv)
                *(uint4 *)((T *)o.a.y + o.y_offset(b, h, to) + c * 8) = x;
        }
        __syncwarp();
    }
}

/* 64 rows of a head. */
template <class T>
__device__ inline void attend(const job<T> &o, const whole_head<T> *x, uint4 seen, uint64_t *empty,
                              T *pad, int b, int h, int half)
{
    int row = half * 64 + (int)threadIdx.x / 32 % 4 * 16;
    float s[SIDE / 8][4], y[PANEL / 8][4], top[2], sum[2], by[2];
    uint32_t p[SIDE / 16][4];
    wgmma_fence();
    gemm_nt<PANEL, SIDE, SIDE>(s, x->q + half * 64 * PANEL, x->k);
    wgmma_commit();
    wgmma_wait<0>();
    exp_row(s, top, sum, seen, o.scale);
    pack_fragments(p, s, T());
    wgmma_fence();
    gemm_rs(y, p, x->v, false);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int at = tile_row(row, 2 * i);
        by[i] = sum[i] > 0 ? 1 / sum[i] : 0;
        if (threadIdx.x % 4 == 0 && at < o.a.Tq) o.lse(b, h, at) = make_float2(top[i], sum[i]);
    }
    wgmma_wait<0>();
    warp_arrive(empty);
    write_rows(o, y, by, pad, b, h, row);
}

template <class T>
__global__ void __launch_bounds__((2 * PAIRS + 1) * GROUP, 1)
    attention_short(const __grid_constant__ job<T> o, const __grid_constant__ qkv_tensor_maps of,
                    int count)
{
    extern __shared__ unsigned char memory[];
    smem_layout<T> *r = (smem_layout<T> *)(((uintptr_t)memory + 1023) / 1024 * 1024);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_STAGES; i++) {
            mbarrier_init(&r->full[i], 2);  /* what is brought, and what is seen of it */
            mbarrier_init(&r->empty[i], 8); /* each warp of a pair */
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    pdl_wait();
    pdl_launch_dependents();
    int group = warpgroup_index();
    if (group == 2 * PAIRS) {
        setmaxnreg_dec<24>();
        if (threadIdx.x < 2 * PAIRS * GROUP + 32) produce_tiles(o, r, &of, count);
    } else {
        setmaxnreg_inc<112>(); /* with 24 of the rest what a block has: 96 of each thread */
        unsigned step = group / 2;
        for (int n = blockIdx.x + step * gridDim.x; n < count;
             n += PAIRS * gridDim.x, step += PAIRS) {
            uint64_t *empty = &r->empty[step % Q_STAGES];
            mbarrier_wait(&r->full[step % Q_STAGES], step / Q_STAGES & 1);
            if (group % 2 * 64 < o.a.Tq)
                attend(o, &r->of[step % Q_STAGES], r->seen[step % Q_STAGES], empty,
                       r->pad[threadIdx.x / 32], sequence_of(o, n), head_of(o, n), group % 2);
            else
                warp_arrive(empty);
        }
    }
}

template <class T> bool fv_cuda_attention_short(fv_stream *s, const fv_attn_args *a)
{
    job<T> o = prepare<T>(s, a);
    qkv_tensor_maps tensor_maps;
    int64_t heads = a->B * a->H, most = device_of(s)->sm_count;
    if (!o.plain || heads > INT32_MAX / 2 ||
        !fv_cuda_tensor_map_qkv(&tensor_maps, a, kind<T>::dtype, SIDE, SIDE))
        return false;
    launch_pdl(s, "attention", true, attention_short<T>,
               dim3((unsigned)(heads < most ? heads : most)), (2 * PAIRS + 1) * GROUP,
               sizeof(smem_layout<T>) + 1024, o, tensor_maps, (int)heads);
    return true;
}

template bool fv_cuda_attention_short<bf16>(fv_stream *, const fv_attn_args *);
template bool fv_cuda_attention_short<f16>(fv_stream *, const fv_attn_args *);
