/* mega.h - what the kernel of a program (mega_sm90.cu) is given, and what its parts share. */
#ifndef FV_CUDA_DECODE_MEGA_H
#define FV_CUDA_DECODE_MEGA_H

#include "backend/cuda/attention/decode.h"
#include "flags.h"
#include "fused_linear.h"

#define MEGAKERNEL_BYTES 32000 /* what a kernel may be given is 32,764 */
#define MMA_WARPS 8            /* warps */
#define PRODUCER_WARP MMA_WARPS
#define OP_READER_WARP (MMA_WARPS + 1)
#define BLOCK_WARPS (MMA_WARPS + 4) /* registers are handed on by groups of four */
#define PRODUCER_REGISTERS 72       /* of a thread of those that do not multiply, */
#define MMA_REGISTERS 216           /* and of those that do */
#define OP_STAGES 8                 /* that are at hand: the one under way, and the next */
#define PREFETCH_OPS 2 /* ops before attention whose end is the time to bring its keys nearer */
#define MAX_ROWS 64
#define FLAGGED_MAX_ROWS 8 /* more would be too much to look at again and again */
#define MEGAKERNEL_HEAD 64 /* numbers of a head */
#define ROWS_BLOCK 16      /* that are multiplied at once */
#define TILE 8             /* columns */
#define GROUP 4            /* tiles that are multiplied with the same x at once */
#define STEP 32            /* of k, for a warp: 8 for each of 4 threads */
#define ROUND (STEP * MMA_WARPS)
#define STAGES 2 /* chunks of x that there is room for, where it is not there as a whole */
#define MAX_CHUNK 768
/* of a slot: threads of a quarter of a warp read 32 different banks */
#define ROW_BYTES (MAX_CHUNK * 2 + 64)
#define SLOT_BYTES (TILE * ROW_BYTES)
/* of a slot: bias of the tile, behind the first row of its first chunk */
#define BIAS_AT (MAX_CHUNK * 2)
#define MAX_SLOTS 16
#define TILE_SUMS (ROWS_BLOCK * TILE)

static_assert(MMA_WARPS * 32 == DECODE_THREADS && GROUP * TILE_SUMS == 2 * DECODE_THREADS,
              "two numbers of a group for each thread");
static_assert(decode_floats + 2 * DECODE_MAX_WIDTH + 4 <= GROUP * MMA_WARPS * TILE_SUMS,
              "attention uses the memory of sums");

/* Numbers that come from an op of the same program: where they are, and which op it is.  area NULL:
 * from memory. */
struct mk_input {
    const flagged_word *area;
    int op;
    __device__ flagged_reader at(unsigned epoch) const { return {area, epoch + (unsigned)op}; }
};

/* Where results of an op go. */
struct mk_output {
    flagged_word *area; /* NULL: no op of the program reads them */
    bool memory;        /* nor are they overwritten before the program is over */
};

/* A product as an op.  Tiles of columns are dealt to the blocks of a team, from `first` on. */
struct decode_gemm : row_job {
    int tiles, first, chunk; /* chunk: of k, in a slot */
    bool bias_in_slot;       /* with the weights, else it is read from memory */
    bool streams;            /* x is read chunk by chunk */
    bool apart;              /* warps have tiles of their own: mega_apart.h */
    mk_input from, old;      /* x, and what y held */
};

/* Attention as an op.  What `from` sends is rows of q, k and v of this step, `wide` numbers
 * each. */
template <class T> struct decode_attention : decode_job<T> {
    mk_input from;
    const int32_t *pos; /* the key of this step */
    int wide;
};

enum op_kind { GEMM, ATTENTION, ATTENTION_BF16 };

struct mk_op {
    op_kind kind;
    int span; /* 2: made by two teams together, for the rows of both */
    mk_output to;
    union {
        decode_gemm gemm;
        decode_attention<float> attention;
        decode_attention<bf16> attention_bf16;
    };
};

/* On the device, all of them 0 before the first program. */
struct counters {
    unsigned arrived[MAX_ROWS / ROWS_BLOCK];   /* of blocks, one for each team */
    unsigned pairs[MAX_ROWS / ROWS_BLOCK / 2]; /* likewise, where two teams meet */
    unsigned left;
    unsigned epoch; /* of the mail: all ops of programs before this one */
};
static_assert(sizeof(counters) <= MEGAKERNEL_TICKETS * sizeof(unsigned),
              "they lie behind the device's tickets");

struct mk_ops {
    int n, slots, x_bytes;
    /* of sequences; ROWS_BLOCK of them are the matter of a team of `wide` blocks, and of no
     * others */
    int rows, wide;
    bool uses_flags; /* else those blocks meet between one op and the next */
    counters *at;
    mk_op op[(MEGAKERNEL_BYTES - 64) / sizeof(mk_op)];
};

/* What lies at the beginning of shared memory; behind it rows of x, and slots. */
struct __align__(128) mk_smem
{
    uint64_t full[MAX_SLOTS], empty[MAX_SLOTS];
    uint64_t op_full[OP_STAGES], op_empty[OP_STAGES];
    mk_op op[OP_STAGES];
    unsigned issued; /* slots of the ring that were asked for so far */
    __align__(16) float sums[GROUP][MMA_WARPS][TILE_SUMS];
};

/* ---- waiting ---- */

/* Shared memory has addresses of 32 bits of its own. */
__device__ inline unsigned at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ inline void mbarrier_init(uint64_t *b, int n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n));
}

__device__ inline void mbarrier_arrive(unsigned b)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory");
}

/* So often as n warps would. */
__device__ inline void mbarrier_arrive_count(unsigned b, int n)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(b), "r"(n) : "memory");
}

__device__ inline void wait(unsigned b, int parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@!p "
                 "bra AGAIN;\n}" ::"r"(b),
                 "r"(parity)
                 : "memory");
#endif
}

__device__ inline void mbarrier_expect_tx(unsigned b, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
                 : "memory");
#endif
}

__device__ inline void bulk_load(unsigned to, const void *from, int bytes, unsigned b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(b)
        : "memory");
#endif
}

/* A number that one thread says and others wait for, and with it all that the first has seen. */
__device__ inline void store_release(unsigned *to, unsigned n)
{
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(at(to)), "r"(n) : "memory");
}

__device__ inline unsigned load_acquire(const unsigned *p)
{
    unsigned n;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(n) : "r"(at(p)) : "memory");
    return n;
}

/* ---- the ring ---- */

struct ring {
    unsigned first_slot, first_full; /* barriers that say empty lie behind those that say full */
    int slots, i, laps; /* the slot that comes next, and how often the ring went round */
    __device__ ring(const mk_smem *d, const void *slots_at, int n)
        : first_slot(at(slots_at)), first_full(at(d->full)), slots(n), i(0), laps(0)
    {
    }
    __device__ unsigned slot() const { return first_slot + (unsigned)(i * SLOT_BYTES); }
    __device__ unsigned full() const { return first_full + (unsigned)(i * 8); }
    __device__ unsigned empty() const { return full() + MAX_SLOTS * 8; }
    __device__ void next()
    {
        if (++i == slots) i = 0, laps++;
    }
    __device__ void skip(int n)
    {
        for (i += n; i >= slots; i -= slots) laps++;
    }
    __device__ unsigned number() const { return (unsigned)(laps * slots + i); }
};

/* The blocks that this one works with, and their rows. */
struct block_group {
    int number, block, wide, row, rows;
    __device__ block_group(const mk_ops &p, int span)
    {
        int teams = (p.rows + ROWS_BLOCK - 1) / ROWS_BLOCK;
        number = (int)blockIdx.x / p.wide / span;
        block = (int)blockIdx.x - number * span * p.wide;
        wide = min(span, teams - number * span) * p.wide;
        row = number * span * ROWS_BLOCK;
        /* blocks that are left over have none */
        rows = block < wide ? min(p.rows - row, span * ROWS_BLOCK) : 0;
    }
    /* This block's first tile of a product; the next are `wide` apart. */
    __device__ int tile(const decode_gemm &f) const
    {
        int t = block - f.first;
        return rows <= 0 ? f.tiles : t < 0 ? t + wide : t;
    }
};

/* Gain and shift of a norm have a slot of their own, before the weights, where they fit it. */
__device__ inline bool has_gain(const decode_gemm &f)
{
    return f.a.norm && (f.a.gain || f.a.shift) && 2 * f.k * (int)sizeof(float) <= SLOT_BYTES;
}

/* ---- on the host ---- */

/* Gives the ring what the rest of shared memory, `most` bytes, leaves; false if that is too
 * little. */
bool fv_cuda_megakernel_fit(mk_ops *p, size_t most);
void fv_cuda_megakernel_launch(fv_stream *s, const mk_ops &p);

#endif
