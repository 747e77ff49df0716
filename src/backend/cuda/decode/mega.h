/* mega.h - op descriptors of the decode megakernel, as the planner (mega_plan.cu) writes and the
 * kernel (mega_sm90.cu) reads them.
 *
 * While a decode step is captured, its fused linear layers, heads and attentions are not launched
 * but appended to an mk_ops, which becomes the parameter of one cooperative kernel.  Each op knows
 * where its inputs come from (flagged words of an earlier op, or global memory) and where its
 * result goes.
 *
 * Sequences (rows of the batch) are split into groups of ROWS_BLOCK; a group of sequences belongs
 * to a group of blocks, and no other block touches it.  Groups run apart from one another, up to a
 * whole layer; where an op reuses memory of another group's rows, a barrier of all groups comes
 * before it (grid_barrier). */
#ifndef FV_CUDA_DECODE_MEGA_H
#define FV_CUDA_DECODE_MEGA_H

#include "backend/cuda/attention/decode.h"
#include "flags.h"
#include "backend/cuda/gemm/quant.h"
#include "fused_linear.h"
#include "heads.h"

#define MEGAKERNEL_BYTES 32000 /* of kernel parameters; CUDA's limit is 32,764 */

/* warps of a block: MMA_WARPS compute, PRODUCERS load weights, one reads op descriptors */
#define MMA_WARPS 8
#define PRODUCERS 3
#define OP_READER_WARP (MMA_WARPS + PRODUCERS)
#define BLOCK_WARPS (MMA_WARPS + 4) /* setmaxnreg works on whole warpgroups */
#define PRODUCER_REGISTERS 72       /* per thread */
#define MMA_REGISTERS 216

#define OP_STAGES 8    /* op descriptors in smem: the current one and the next */
#define PREFETCH_OPS 3 /* how many ops ahead of an attention its keys are prefetched into L2 */
#define MAX_ROWS 128
#define FLAGGED_MAX_ROWS 8 /* beyond, spinning on every value costs more than a barrier */
#define ROWS_BLOCK 16      /* sequences per block group: M of the mma */

/* tiles of a GEMM, and its K loop */
#define TILE 8  /* columns: N of the mma */
#define GROUP 4 /* tiles that share one load of x */
#define STEP 32 /* K per warp and step: 8 elements for each of 4 lanes */
#define ROUND (STEP * MMA_WARPS)
#define STAGES 2 /* chunks of x in smem, where the row does not fit */
#define MAX_CHUNK 768

/* a slot of the weight ring: TILE rows of a chunk; 64 bytes of padding spread a quarter warp's
 * reads over all 32 banks, and in the first row's padding lies the tile's bias */
#define ROW_BYTES (MAX_CHUNK * 2 + 64)
#define SLOT_BYTES (TILE * ROW_BYTES)
#define BIAS_AT (MAX_CHUNK * 2)
#define MAX_SLOTS 16
#define TILE_SUMS (ROWS_BLOCK * TILE)

static_assert(MMA_WARPS * 32 == DECODE_THREADS && GROUP * TILE_SUMS == 2 * DECODE_THREADS,
              "a thread finishes two outputs of a group of tiles");
static_assert(decode_floats + 2 * DECODE_MAX_WIDTH + 4 <= GROUP * MMA_WARPS * TILE_SUMS,
              "attention reuses the smem of the partial sums");

/* An input: the flagged words of op number `op` of this launch; area NULL: from global memory. */
struct mk_input {
    const flagged_word *area;
    int op;
    __device__ flagged_reader reader(unsigned epoch) const { return {area, epoch + (unsigned)op}; }
};

struct mk_output {
    flagged_word *area; /* NULL: no op of this launch reads the result */
    bool to_global;     /* false: a later op overwrites it before the launch ends */
};

/* With many rows wider heads are the stand-alone kernel's: a warp has no registers for one. */
#define MOST_BY_WARP 128

/* Head widths of attentions in the megakernel.  Every width is code in both kernels, and an f32
 * cache is not what serving uses. */
template <class T> constexpr bool megakernel_head(int64_t width)
{
    return width == 64 || (sizeof(T) == 2 && (width == 128 || width == 256));
}

/* A fused linear layer.  Its tiles of columns go round-robin over the blocks of a group, starting
 * at first_block, where the GEMM before ended. */
struct decode_gemm : row_job {
    int tiles, first_block, chunk; /* chunk: K per slot */
    bool bias_in_slot;             /* loaded with the weights, else read from global memory */
    bool stream_x;                 /* x passes through smem in chunks */
    bool tile_per_warp;            /* mega_gemm_warp.h instead of mega_gemm.h */
    mk_input in, y_in;             /* x, and the residual that y held */
};

/* Attention of one query per sequence.  `in` holds this step's q, k and v, row_width elements per
 * sequence. */
template <class T> struct decode_attention : decode_job<T> {
    mk_input in;
    const int32_t *pos; /* position of the newest key; NULL: no op of this launch wrote it */
    int row_width;
    T *kept; /* queries are copied there, (B,H,W), for a kernel behind this launch; NULL: not */
};

/* Norms and rotations of heads between a product and attention. */
struct decode_heads : heads_job {
    mk_input in;
};

enum op_kind { GEMM, HEADS, ATTENTION, ATTENTION_BF16 };

struct mk_op {
    op_kind kind;
    int groups;        /* 2: two block groups work together, on the rows of both */
    bool grid_barrier; /* before it, all groups wait for one another */
    int round;         /* which barrier of its kind is before it, from 1 on; 0: none */
    mk_output out;
    union {
        decode_gemm gemm;
        decode_heads heads;
        decode_attention<float> attention;
        decode_attention<bf16> attention_bf16;
    };
};

/* In global memory, zero before the first launch; the last block to exit resets all but epoch. */
struct mk_counters {
    unsigned arrived[MAX_ROWS / ROWS_BLOCK];          /* group barriers */
    unsigned pair_arrived[MAX_ROWS / ROWS_BLOCK / 2]; /* barriers of two groups */
    unsigned all_arrived;                             /* barriers of all groups */
    unsigned exited;
    unsigned epoch; /* total ops of all launches before: tags of flagged words never repeat */
};
static_assert(sizeof(mk_counters) <= MEGAKERNEL_TICKETS * sizeof(unsigned),
              "stored behind the device's tickets");

/* How much of a row a slot holds at most.  Quantised, the slot is two tiles of QUANT_ROWS rows:
 * HALF_SLOT apart, an odd multiple of 64 bytes, so that 16 bytes of eight rows, or 32 of four, are
 * in all banks. */
__host__ __device__ constexpr int max_chunk(int wt)
{
    return wt == FV_Q8 ? 1280 : wt == FV_Q4 ? 1536 : MAX_CHUNK;
}
#define HALF_SLOT 6336
static_assert(HALF_SLOT % 128 == 64 && 2 * HALF_SLOT <= SLOT_BYTES, "banks; a slot");
static_assert(max_chunk(FV_Q8) / QUANT_BLOCK * quant_block_bytes(FV_Q8) <= HALF_SLOT &&
                  max_chunk(FV_Q4) / QUANT_BLOCK * quant_block_bytes(FV_Q4) <= HALF_SLOT,
              "a tile's part of a chunk");

/* mega_int8.h: what a block of x takes in smem beside its values. */
#define X_SCALE_BYTES 8

/* What an instance of the kernel is for: one sequence, up to FLAGGED_MAX_ROWS, or more. */
enum row_count { ONE_ROW, FEW_ROWS, MANY_ROWS };

/* mk_ops::needs, and what an instance of the kernel has code for. */
enum {
    NEEDS_PAIRS = 1,      /* gated or rotated layers */
    NEEDS_WIDE_HEADS = 2, /* 128 */
    NEEDS_F32_CACHE = 4,
    NEEDS_HEADS = 8,         /* normed, or rotated by themselves */
    NEEDS_WIDEST_HEADS = 16, /* 256 */
    NEEDS_POST_NORM = 32,    /* residuals that still lack a norm */
    NEEDS_ALL = 63,
    /* all weights of the launch have 8 bits, or 4 */
    NEEDS_Q8 = 64,
    NEEDS_Q4 = 128
};

__host__ __device__ constexpr int weights_of(int needs)
{
    return needs & NEEDS_Q8 ? FV_Q8 : needs & NEEDS_Q4 ? FV_Q4 : FV_BF16;
}

struct mk_ops {
    int n, slots;
    int turn_bytes, x_bytes; /* of smem: the table of rotations, rows of x */
    int x_at, slots_at;      /* where in smem x and the slots begin */
    int rows, group_blocks;
    bool uses_flags;    /* ops exchange flagged words; else a group barrier separates them */
    int needs;          /* of what GPT-2 does not have, as bits: which instance of the kernel */
    fv_fused_rope rope; /* of all rotated layers; freq NULL: none is */
    mk_counters *counters;
    mk_op op[(MEGAKERNEL_BYTES - 64) / sizeof(mk_op)];
};

/* ---- host ---- */

/* Gives the weight ring all smem that is left of `most` bytes; false if that is too little. */
bool fv_cuda_megakernel_fit(mk_ops *p, size_t most);
void fv_cuda_megakernel_launch(fv_stream *s, const mk_ops &p);

#endif
