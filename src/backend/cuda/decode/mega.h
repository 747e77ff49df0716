/* mega.h - what the kernel of a program (mega_sm90.cu) is given, and what its parts share. */
#ifndef FV_CUDA_DECODE_MEGA_H
#define FV_CUDA_DECODE_MEGA_H

#include "backend/cuda/attention/decode.h"
#include "flags.h"
#include "row_linear.h"

#define PROGRAM_BYTES 32000 /* what a kernel may be given is 32,764 */
#define MULTIPLIERS 8       /* warps */
#define FETCHER MULTIPLIERS
#define READER (MULTIPLIERS + 1)
#define WARPS_ALL (MULTIPLIERS + 4) /* registers are handed on by groups of four */
#define REGISTERS_FEW 72            /* of a thread of those that do not multiply, */
#define REGISTERS_MANY 216          /* and of those that do */
#define OPS 8                       /* that are at hand: the one under way, and the next */
#define NEAR 2 /* ops before attention whose end is the time to bring its keys nearer */
#define MOST_ROWS 64
#define MAIL_ROWS 8     /* more would be too much to look at again and again */
#define PROGRAM_HEAD 64 /* numbers of a head */
#define ROWS_BLOCK 16   /* that are multiplied at once */
#define TILE 8          /* columns */
#define GROUP 4         /* tiles that are multiplied with the same x at once */
#define STEP 32         /* of k, for a warp: 8 for each of 4 threads */
#define ROUND (STEP * MULTIPLIERS)
#define STAGES 2 /* chunks of x that there is room for, where it is not there as a whole */
#define MOST_CHUNK 768
/* of a slot: threads of a quarter of a warp read 32 different banks */
#define ROW_BYTES (MOST_CHUNK * 2 + 64)
#define SLOT_BYTES (TILE * ROW_BYTES)
/* of a slot: bias of the tile, behind the first row of its first chunk */
#define BIAS_AT (MOST_CHUNK * 2)
#define MOST_SLOTS 16
#define TILE_SUMS (ROWS_BLOCK * TILE)

static_assert(MULTIPLIERS * 32 == ONE_THREADS && GROUP * TILE_SUMS == 2 * ONE_THREADS,
              "two numbers of a group for each thread");
static_assert(one_floats + 2 * ONE_WIDEST + 4 <= GROUP * MULTIPLIERS * TILE_SUMS,
              "attention uses the memory of sums");

/* Numbers that come from an op of the same program: where they are, and which op it is.  area NULL:
 * from memory. */
struct sender {
    const word *area;
    int op;
    __device__ inbox at(unsigned turn) const { return {area, turn + (unsigned)op}; }
};

/* Where results of an op go. */
struct receiver {
    word *area;  /* NULL: no op of the program reads them */
    bool memory; /* nor are they overwritten before the program is over */
};

/* A product as an op.  Tiles of columns are dealt to the blocks of a team, from `first` on. */
struct few_product : row_job {
    int tiles, first, chunk; /* chunk: of k, in a slot */
    bool bias_comes;         /* with the weights, else it is read from memory */
    bool streams;            /* x is read chunk by chunk */
    bool apart;              /* warps have tiles of their own: mega_apart.h */
    sender from, old;        /* x, and what y held */
};

/* Attention as an op.  What `from` sends is rows of q, k and v of this step, `wide` numbers
 * each. */
template <class T> struct few_attention : one_job<T> {
    sender from;
    const int32_t *pos; /* the key of this step */
    int wide;
};

enum op_kind { PRODUCT, ATTENTION, ATTENTION_HALF };

struct program_op {
    op_kind kind;
    int span; /* 2: made by two teams together, for the rows of both */
    receiver to;
    union {
        few_product product;
        few_attention<float> attention;
        few_attention<bf16> attention_half;
    };
};

/* On the device, all of them 0 before the first program. */
struct counters {
    unsigned arrived[MOST_ROWS / ROWS_BLOCK];   /* of blocks, one for each team */
    unsigned pairs[MOST_ROWS / ROWS_BLOCK / 2]; /* likewise, where two teams meet */
    unsigned left;
    unsigned turn; /* of the mail: all ops of programs before this one */
};
static_assert(sizeof(counters) <= PROGRAM_TICKETS * sizeof(unsigned),
              "they lie behind the device's tickets");

struct program_ops {
    int n, slots, x_bytes;
    /* of sequences; ROWS_BLOCK of them are the matter of a team of `wide` blocks, and of no
     * others */
    int rows, wide;
    bool by_mail; /* else those blocks meet between one op and the next */
    counters *at;
    program_op op[(PROGRAM_BYTES - 64) / sizeof(program_op)];
};

/* What lies at the beginning of shared memory; behind it rows of x, and slots. */
struct __align__(128) desk
{
    uint64_t full[MOST_SLOTS], empty[MOST_SLOTS];
    uint64_t op_full[OPS], op_empty[OPS];
    program_op op[OPS];
    unsigned asked; /* slots of the ring that were asked for so far */
    __align__(16) float sums[GROUP][MULTIPLIERS][TILE_SUMS];
};

/* ---- waiting ---- */

/* Shared memory has addresses of 32 bits of its own. */
__device__ inline unsigned at(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ inline void barrier_init(uint64_t *b, int n)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at(b)), "r"(n));
}

__device__ inline void arrive(unsigned b)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(b) : "memory");
}

/* So often as n warps would. */
__device__ inline void arrive_for(unsigned b, int n)
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

__device__ inline void expect(unsigned b, int bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes)
                 : "memory");
#endif
}

__device__ inline void fetch(unsigned to, const void *from, int bytes, unsigned b)
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
__device__ inline void say(unsigned *to, unsigned n)
{
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(at(to)), "r"(n) : "memory");
}

__device__ inline unsigned said(const unsigned *p)
{
    unsigned n;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(n) : "r"(at(p)) : "memory");
    return n;
}

/* ---- the ring ---- */

struct ring {
    unsigned first_slot, first_full; /* barriers that say empty lie behind those that say full */
    int slots, i, turn; /* the slot that comes next, and how often the ring went round */
    __device__ ring(const desk *d, const void *slots_at, int n)
        : first_slot(at(slots_at)), first_full(at(d->full)), slots(n), i(0), turn(0)
    {
    }
    __device__ unsigned slot() const { return first_slot + (unsigned)(i * SLOT_BYTES); }
    __device__ unsigned full() const { return first_full + (unsigned)(i * 8); }
    __device__ unsigned empty() const { return full() + MOST_SLOTS * 8; }
    __device__ void next()
    {
        if (++i == slots) i = 0, turn++;
    }
    __device__ void skip(int n)
    {
        for (i += n; i >= slots; i -= slots) turn++;
    }
    __device__ unsigned number() const { return (unsigned)(turn * slots + i); }
};

/* The blocks that this one works with, and their rows. */
struct team {
    int number, block, wide, row, rows;
    __device__ team(const program_ops &p, int span)
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
    __device__ int tile(const few_product &f) const
    {
        int t = block - f.first;
        return rows <= 0 ? f.tiles : t < 0 ? t + wide : t;
    }
};

/* Gain and shift of a norm have a slot of their own, before the weights, where they fit it. */
__device__ inline bool has_gain(const few_product &f)
{
    return f.a.norm && (f.a.gain || f.a.shift) && 2 * f.k * (int)sizeof(float) <= SLOT_BYTES;
}

/* ---- on the host ---- */

/* Gives the ring what the rest of shared memory, `most` bytes, leaves; false if that is too
 * little. */
bool fv_cuda_program_fit(program_ops *p, size_t most);
void fv_cuda_program_start(fv_stream *s, const program_ops &p);

#endif
