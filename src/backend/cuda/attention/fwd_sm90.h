/* fwd_sm90.h - fwd_sm90.cu: its configurations, shared memory, and the static schedule of work
 * items. */
#ifndef FV_CUDA_ATTENTION_FWD_SM90_H
#define FV_CUDA_ATTENTION_FWD_SM90_H

#include "bias_sm90.h"

namespace
{
template <class T_, int W_, int KIND_, int GROUPS_, int KEYS_, int STAGES_, int Q_STAGES_ = 2>
struct fwd_config {
    typedef T_ T;
    static constexpr int W = W_, KIND = KIND_, GROUPS = GROUPS_, KEYS = KEYS_, STAGES = STAGES_,
                         Q_STAGES = Q_STAGES_;
    static constexpr bool BIAS = KIND == WITH_BIAS, DROPOUT = KIND == WITH_DROPOUT;
    static constexpr int QUERIES = 64 * GROUPS, BLOCK_THREADS = 128 * (GROUPS + 1);
    static constexpr int CONSUMER_REGISTERS = GROUPS == 2   ? 240
                                              : GROUPS == 3 ? 160
                                                            : 112,
                         PRODUCER_REGISTERS = GROUPS == 2 ? 24 : 32;
    static constexpr int Q_TILE = QUERIES * W, KV_TILE = KEYS * W,
                         BIAS_TILE = BIAS ? QUERIES * KEYS : 0;
    static constexpr int PHILOX_KEYS = DROPOUT ? KEYS / 4 : 0; /* a draw serves four of 16 keys */
    static_assert((QUERIES - 64) / KEYS < STAGES,
                  "a warpgroup skips tiles while it holds one, whose stage they must not need");
};

struct fwd_maps {
    qkv_tensor_maps in;
    CUtensorMap y, bias;
};

template <class P> struct fwd_layout {
    typename P::T *q, *k, *v, *bias;
    uint4 *philox;
    stage_ring<P::Q_STAGES> q_ring;
    stage_ring<P::STAGES> k_ring, v_ring; /* the bias tile of k belongs to k_ring */

    template <class CARVER> __host__ __device__ constexpr void carve(CARVER &c)
    {
        c.take(q, P::Q_STAGES * P::Q_TILE);
        c.take(k, P::STAGES * P::KV_TILE);
        c.take(v, P::STAGES * P::KV_TILE);
        c.take(bias, P::STAGES * P::BIAS_TILE);
        c.take(philox, P::STAGES * P::PHILOX_KEYS);
        q_ring.carve(c);
        k_ring.carve(c);
        v_ring.carve(c);
    }
    /* WITH_DROPOUT every thread that writes or reads the Philox table arrives for itself: one
     * arrival per warp would do, but compute-sanitizer cannot follow that. */
    __device__ void init() const
    {
        q_ring.init(1, P::GROUPS);
        k_ring.init(P::DROPOUT ? 1 + 32 : 1, P::DROPOUT ? 128 * P::GROUPS : 4 * P::GROUPS);
        v_ring.init(1, 4 * P::GROUPS);
        mbarrier_init_fence();
    }
};

/* ---- the static schedule ---- */

/* Row tiles of one head follow one another, so that its keys stay in L2.  pairs: the first tile
 * goes with the last, the second with the last but one; when causal, all pairs cost the same.
 * by_length, where tiles are many: the longest tiles of all heads, then the next, which leaves
 * the shortest for the end. */
struct fwd_schedule {
    int tiles, parts; /* of a head; a part is a pair of row tiles, or one */
    int all;          /* parts of all heads */
    bool pairs, by_length;
};

/* A work item: query rows from `row` on of one head, and `tiles` key tiles from key `first` on. */
template <class P> struct fwd_item {
    int round = 0, n = 0; /* parts and items that this block has had */
    bool second = false;  /* of a pair */
    int part, b, h, row, first, tiles;

    __device__ static int tiles_to(int first, int end)
    {
        return end > first ? (end - first + P::KEYS - 1) / P::KEYS : 0;
    }

    /* False: no work is left.  Blocks are shifted by one each round, so that the short last tile of
     * a head meets each of them in turn.  by_length they go back and forth: the block with the
     * longest item gets the shortest of the next round. */
    __device__ bool find(const attn_params<typename P::T> &attn, const fwd_schedule &sched)
    {
        int blocks = gridDim.x, block = blockIdx.x, sequences = (int)attn.a.B,
            heads = (int)attn.a.H;
        int slot = !sched.by_length ? (block + round) % blocks
                   : round % 2      ? blocks - 1 - block
                                    : block;
        int i = round * blocks + slot;
        if (i >= sched.all) return false;
        /* sequences that share a bias follow one another, so that it is read from L2 */
        int step = sched.by_length ? heads * sequences
                   : P::BIAS       ? sequences
                                   : 1,
            one = i % step + i / step / sched.parts * step;
        part = i / step % sched.parts;
        b = P::BIAS ? one % sequences : one / heads;
        h = P::BIAS ? one / sequences : one % heads;
        head_view<typename P::T> head(attn, b, h);
        /* the longest first, when causal */
        row = (second ? part : sched.tiles - 1 - part) * P::QUERIES;
        first = head.first_key(row) / P::KEYS * P::KEYS;
        tiles = tiles_to(first, head.last_key(row, P::QUERIES));
        return true;
    }
    __device__ void next(const fwd_schedule &sched)
    {
        second = sched.pairs && !second && part != sched.tiles - 1 - part;
        if (!second) round++;
        n++;
    }
};
} // namespace

#endif
