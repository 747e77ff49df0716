/* gemm.c - the matrix product: blocks, threads and tables.  The arithmetic is in the kinds, see
 * gemm.h.
 *
 *   for each slice of B that packed is no larger than B_BYTES (B whole where it came packed or rows
 *   are few):
 *       pack it, if there are several blocks of rows                 (by all threads)
 *       for each block of rows of A, a run of which stays in L2:
 *           pack it, run by run of k, in strips of mr rows
 *           for each group of panels of B:
 *               for each run of values of k (FV_GEMM_KC of them in f32):
 *                   pack the group's run of B, unless it is packed         (own cache)
 *                   for each panel of the group, for each strip:  tile (panel in L1, strips in L2)
 *               bias, activation, rounding
 *
 * With many rows a thread takes whole blocks of them; with few the threads pack A together and
 * divide strips and panels.  From SHARE_FROM threads on they pack both factors together, in one
 * loop, and divide the tiles both ways: blocks of rows would be so few that all wait for the
 * slowest thread, and each would pack panels of its own, or wait once for every block.  With a
 * packed weight they do so from MANY_THREADS on, and on the tiles of AMX, which take so little time
 * that waiting weighs more, from TILES_FROM on unless rows are few.
 *
 * An AMX tile can load bf16 rows of A from where they are.  With several threads it does
 * (reads_a_in_place): packed rows are in the cache of the thread that packed them, and every other
 * thread would wait for the transfer.
 *
 * Every element gets its runs in order from one thread, so its bits depend neither on the division
 * of work nor on the other rows. */
#include "gemm_plan.h"

/* Sizes are chosen for 32-64 KiB of L1, 512 KiB-2 MiB of L2 a core; none of them changes a bit
 * of the result, only the time. */
#define A_BYTES ((size_t)2 << 20)
/* of packed A for one run of k: it is read again for every panel */
#define A_RUN ((size_t)384 << 10)
#define B_BYTES ((size_t)16 << 20)
#define ENOUGH 16 /* strips of a block that amortise one pass over B */
/* Threads that share both packed factors, which come from the last cache then.  On Neoverse V1 two
 * do better with blocks of rows of their own. */
#define SHARE_FROM (VW == 16 ? 2 : 4)
#define SHARE_STRIPS 4 /* with fewer, packing B is most of the work and each packs what it needs */
/* Threads and rows from which a packed weight is divided both ways on the tiles of AMX.  BERT-base
 * on 2, 3, 4 and 6 threads, times as fast as in blocks of rows: with 1,024 rows bf16 1.14, 1.57,
 * 1.35 and 1.52, int8 1.29, 1.11, 0.99 and 1.01; with 128 rows bf16 0.84, 0.76, 0.97 and 0.79. */
#define TILES_FROM 2
#define TILES_ROWS 256
/* Tiles of one run for each thread: a smaller product is done before its parts have moved from
 * cache to cache (128x768x768 on 16 threads: 430 GFLOP/s shared, 640 not). */
#define SHARE_TILES 128
#define SHARE_BYTES ((size_t)32 << 20)
/* Rows and k of a product on tiles for which threads do better if each packs the panels it needs
 * (in bf16 512x3072x768 on 16 threads is 1.22 times as fast, 256x3072x768 on 6 1.12 times,
 * 128x768x768 on 2 1.19 times). */
#define SHALLOW_ROWS 512
#define SHALLOW_K 768
/* Threads that take longer runs in bf16 (of 16 the product of 2048^3 is 1.19 times as fast, of 8
 * 0.93 times). */
#define LONG_FROM 12
/* AMX tiles read A in place with this many threads, and with two or more if A has at most so many
 * rows.  Times as fast as packing A: 128x768x768 2.3 on 16 threads and 1.5 on 2, 512x768x3072 1.7
 * and 1.1, but 1024x3072x768 0.94 on 2. */
#define IN_PLACE_THREADS 8
#define IN_PLACE_ROWS 512
#define L1_WAY 4096 /* bytes: rows a multiple of it apart share one set of L1, so they are packed */
/* of packed A that stays in L2 while B streams past */
#define L2_RESIDENT_BYTES ((size_t)256 << 10)

/* ---- the call ---- */

static int64_t strips_within(size_t by_all, size_t by_run)
{
    size_t most = by_all < by_run ? by_all : by_run;
    return most > 1 ? (int64_t)most : 1;
}

static bool is_shallow(const fv_gemm *g) { return g->m <= SHALLOW_ROWS && g->k <= SHALLOW_K; }

static bool reads_a_in_place(const fv_gemm *g, fv_dtype table, const gemm_kind *kind, int threads)
{
    bool can = kind->in_place && table == FV_BF16 && !g->ta && g->k % GEMM_UNIT == 0,
         aliases = g->lda * (int64_t)fv_dtype_size(table) % L1_WAY == 0;
    return can && !aliases &&
           (threads >= IN_PLACE_THREADS || (threads > 1 && g->m <= IN_PLACE_ROWS));
}

/* threads: those that share every product; 1 if each product of a batch has one thread.
 * The two questions of a plan: how many rows are packed at a time (bounded by A_BYTES for all of
 * k and A_RUN for one run), and whether B is packed as a whole first (only if several blocks of
 * rows would pack it again and again).  Rows are then spread evenly over blocks: 9 strips in
 * blocks of at most 8 become 5 + 4, not 8 + 1. */
static gemm_plan make_plan(const fv_gemm *g, fv_dtype table, const gemm_kind *kind, int threads)
{
    gemm_plan p = {.g = g, .kind = kind, .table = table, .alpha = g->alpha == 0 ? 1 : g->alpha};
    size_t strip_bytes = gemm_a_bytes(kind, g->k),
           run_bytes = gemm_a_bytes(kind, gemm_min(g->k, kind->run));
    int64_t strips = gemm_ceil_div(g->m, kind->mr),
            most = strips_within(A_BYTES / (strip_bytes + 1), A_RUN / (run_bytes + 1));
    p.panels = gemm_ceil_div(g->n, kind->nr);
    int64_t tiles = strips * p.panels * gemm_ceil_div(g->k, kind->run);
    p.shared = threads >= SHARE_FROM && strips >= SHARE_STRIPS && (!g->packed || !kind->enter) &&
               tiles >= (int64_t)threads * SHARE_TILES && !(kind->continues && is_shallow(g));
    p.in_place = reads_a_in_place(g, table, kind, threads);
    bool tiles_of_amx = kind->enter && g->m >= TILES_ROWS;
    p.both_ways = p.shared || (g->packed && threads >= (tiles_of_amx ? TILES_FROM : MANY_THREADS));
    p.by_rows = threads > 1 && !p.both_ways && strips > most && strips >= (int64_t)threads * ENOUGH;
    if (p.both_ways)
        most = strips_within(SHARE_BYTES / (strip_bytes + 1), SIZE_MAX);
    else if (!p.by_rows && threads >= MANY_THREADS)
        most = strips_within(SHARE_BYTES / (strip_bytes + 1), 2 * CHUNK_STRIPS);
    if (p.by_rows) strips = gemm_ceil_div(strips, threads);
    p.strips = gemm_ceil_div(strips, gemm_ceil_div(strips, most));
    p.block = p.strips * kind->mr;
    if (p.block > g->m) p.block = g->m;
    p.a_bytes = ((size_t)p.strips * strip_bytes + 63) / 64 * 64;
    /* With few rows the product is bound by reading the packed weight: each panel is then
     * processed to its end, over all runs of k. */
    bool reuse_a = g->packed && p.a_bytes <= L2_RESIDENT_BYTES && g->k > kind->run;
    p.group = reuse_a ? gemm_walk(kind, gemm_ceil_div(p.block, p.strips)) : GEMM_GROUP;
    if (!g->packed && (p.by_rows || p.shared || p.block < g->m)) {
        size_t panel = gemm_b_bytes(kind, g->k), all = p.shared ? SHARE_BYTES : B_BYTES;
        int64_t slices = gemm_ceil_div(p.panels, gemm_min(p.panels, (int64_t)(all / panel) + 1));
        p.slice = gemm_ceil_div(gemm_ceil_div(p.panels, slices), GEMM_GROUP) * GEMM_GROUP;
        p.slice_bytes = ((size_t)p.slice * panel + 63) / 64 * 64;
    }
    if (!g->packed && !p.slice)
        p.b_bytes = (size_t)p.group * gemm_units(gemm_min(g->k, kind->run)) * kind->b_unit;
    int64_t rows = p.both_ways ? gemm_min(p.block, CHUNK_STRIPS * kind->mr) : p.block;
    if (g->ct != FV_F32)
        p.sum_bytes = (size_t)rows * (size_t)(p.group * kind->nr + GEMM_PAD) * sizeof(float);
    p.sum_bytes = (p.sum_bytes + 63) / 64 * 64;
    return p;
}

/* A plan and its threads. */
typedef struct crew {
    gemm_plan p;
    int threads;
    bool whole; /* each product of the batch is computed by one thread */
    size_t a_all, shared, bytes;
} crew;

/* m + 8 in the estimate: reading B costs as much as about eight rows of products. */
static crew prepare(const fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    double work = (double)(g->m + 8) * (double)g->n * (double)g->k;
    crew w = {.threads = work * (double)g->batch < GEMM_SMALL ? 1 : s->threads};
    size_t threads = (size_t)w.threads;
    /* One thread for each product of the batch, unless products are few and large, or all are
     * added into one C. */
    w.whole = threads == 1 || (g->batch >= w.threads && g->stride_c &&
                               (work < 8 * GEMM_SMALL || g->batch >= 4 * w.threads));
    w.p = make_plan(g, table, kind, w.whole ? 1 : w.threads);
    const gemm_plan *p = &w.p;
    w.a_all = p->in_place ? 0 : p->a_bytes * (w.whole || p->by_rows ? threads : 1);
    w.shared = w.a_all + p->slice_bytes * (w.whole ? threads : 1);
    w.bytes = w.shared + threads * (p->b_bytes + p->sum_bytes) + 64;
    return w;
}

typedef struct {
    const crew *w;
    gemm_team all;
} batch_args;

/* Whole products, each by one thread in memory of its own. */
static void whole_products(void *arg, int64_t from, int64_t to, int slot)
{
    const batch_args *l = arg;
    const gemm_plan *p = &l->w->p;
    gemm_team t = l->all;
    t.threads = 1;
    t.a += (size_t)slot * p->a_bytes;
    t.slice += (size_t)slot * p->slice_bytes;
    t.own += (size_t)slot * t.own_bytes;
    for (int64_t e = from; e < to; e++) NAME(gemm_product)(p, &t, e);
}

/* stride_c == 0 means that all products of the batch add into one C, as a weight gradient over a
 * batch does: then they are taken in order by all threads. */
static void follow_plan(fv_stream *s, const crew *w, char *scratch)
{
    const gemm_plan *p = &w->p;
    gemm_team t = {
        s, w->threads, scratch, scratch + w->a_all, scratch + w->shared, p->b_bytes + p->sum_bytes};
    if (w->whole)
        fv__cpu_parallel(s, w->threads, p->g->batch, 0, whole_products, &(batch_args){w, t});
    else
        for (int64_t e = 0; e < p->g->batch; e++) NAME(gemm_product)(p, &t, e);
}

/* ---- long inner axes ----
 * k is divided into pieces, so that a block of A has enough rows to amortise a pass over B.  Pieces
 * end where runs do, and the sums stay in f32 between them: every element still adds its runs in
 * order. */

#define PIECE 8 /* runs */

/* The shape of a weight gradient: k is the number of tokens, m and n are widths.  Without pieces
 * a strip of A all along k would fill A_BYTES by itself, and B be read once for every few
 * strips. */
static bool is_long(const fv_gemm *g, const gemm_kind *kind)
{
    size_t strip = gemm_a_bytes(kind, g->k);
    return !g->packed && g->batch == 1 && g->k > PIECE * kind->run &&
           A_BYTES / (strip + 1) < ENOUGH && g->m > (int64_t)(A_BYTES / (strip + 1)) * kind->mr &&
           g->m > ENOUGH * kind->mr;
}

typedef struct {
    const fv_gemm *g;
    fv_dtype table;
    float *sum;
    int64_t ld_sum;
    bool start;
} finish_args;

static void finish_part(void *arg, int64_t from, int64_t to, int slot)
{
    const finish_args *l = arg;
    const fv_gemm *g = l->g;
    int64_t at = from * g->ldc;
    gemm_end e = {.sum = l->sum + from * l->ld_sum,
                  .ld_sum = l->ld_sum,
                  .ldc = g->ldc,
                  .rows = to - from,
                  .cols = g->n,
                  .bias = g->bias,
                  .table = l->table,
                  .ct = g->ct,
                  .act = g->act,
                  .c = (char *)g->c + at * (int64_t)fv_dtype_size(g->ct),
                  .pre = g->pre ? (char *)g->pre + at * (int64_t)fv_dtype_size(l->table) : NULL};
    (void)slot;
    l->start ? NAME(gemm_start)(&e) : NAME(gemm_finish)(&e);
}

static void finish_rows(fv_stream *s, const fv_gemm *g, fv_dtype table, float *sum, int64_t ld_sum,
                        bool start)
{
    fv__cpu_parallel(s, s->threads, g->m, 0, finish_part,
                     &(finish_args){g, table, sum, ld_sum, start});
}

static void run_long(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    bool direct = g->ct == FV_F32;
    size_t sums = direct ? 0 : ((size_t)g->m * (size_t)g->n * sizeof(float) + 63) / 64 * 64;
    int64_t piece = PIECE * kind->run;
    fv_gemm now = *g;
    now.k = piece;
    now.ct = FV_F32;
    now.bias = now.pre = NULL;
    now.act = FV_ACT_NONE;
    if (!direct) now.ldc = g->n;
    crew w = prepare(s, &now, table, kind);
    size_t bytes = w.bytes;
    now.k = g->k % piece ? g->k % piece : piece; /* the last one may pack more rows at a time */
    w = prepare(s, &now, table, kind);
    if (w.bytes > bytes) bytes = w.bytes;
    char *scratch = fv_stream_scratch(s, sums + bytes);
    if (!scratch) return;
    if (!direct) now.c = scratch;
    if (!direct && g->add) finish_rows(s, g, table, now.c, now.ldc, true);
    for (int64_t k = 0; k < g->k; k += piece) {
        now.a = gemm_at(g->a, g->ta ? k * g->lda : k, table);
        now.b = gemm_at(g->b, g->tb ? k : k * g->ldb, g->bt);
        now.k = gemm_min(piece, g->k - k);
        now.add = g->add || k > 0;
        w = prepare(s, &now, table, kind);
        follow_plan(s, &w, scratch + sums);
    }
    if (!direct || g->bias || g->act || g->pre) finish_rows(s, g, table, now.c, now.ldc, false);
}

/* From the most special: few rows and packed weight (decoding), few rows and a bf16 or f32
 * weight not yet packed (first use of a weight), and the loop nest above. */
static void run(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    if (g->m < 1 || g->n < 1 || g->batch < 1) return;
    if (NAME(gemm_few)(s, g, table, kind) || NAME(gemm_stored)(s, g, table, kind) ||
        NAME(gemm_direct)(s, g, table) || NAME(gemm_swapped)(s, g, table))
        return;
    if (is_long(g, kind)) {
        run_long(s, g, table, kind);
        return;
    }
    crew w = prepare(s, g, table, kind);
    char *scratch = fv_stream_scratch(s, w.bytes);
    if (scratch) follow_plan(s, &w, scratch);
}

/* Longer bf16 runs give the same bits where alpha is 1: a tile then continues the sums of the run
 * before. */
static bool can_take_long_runs(const fv_gemm *g)
{
    return (g->alpha == 0 || g->alpha == 1) && NAME(gemm_bf16_long)();
}

/* Without bf16 instructions, 16-bit operands are converted to f32 while packing. */
static const gemm_kind *plain_kind(const fv_stream *s, const fv_gemm *g, fv_dtype table)
{
    const gemm_kind *bf16 = table == FV_BF16 ? NAME(gemm_bf16)() : NULL;
    bool many = s->threads >= LONG_FROM && g->batch == 1;
    if (bf16 && many && !is_shallow(g) && can_take_long_runs(g)) return NAME(gemm_bf16_long)();
    return bf16 ? bf16 : NAME(gemm_f32)(FV_F32);
}

/* With a packed weight longer runs are faster: 1.01 to 1.1 times for the products of BERT-base on
 * one, two and 16 threads, since the epilogue then finds the sums in L1. */
static const gemm_kind *packed_kind(const fv_gemm *g)
{
    bool bf16 = g->packed && g->bt == FV_BF16;
    return bf16 && can_take_long_runs(g) ? NAME(gemm_bf16_long)() : NAME(gemm_packed)(g->bt);
}

static void gemm(fv_stream *s, const fv_gemm *g, fv_dtype table)
{
    const gemm_kind *kind = g->packed || g->bt != table ? packed_kind(g) : plain_kind(s, g, table);
    if (kind)
        run(s, g, table, kind);
    else
        fv_stream_fail(s, FV_EDTYPE, "gemm: no product with %s weights", fv_dtype_name(g->bt));
}
static void gemm_f32(fv_stream *s, const fv_gemm *g) { gemm(s, g, FV_F32); }
static void gemm_bf16(fv_stream *s, const fv_gemm *g) { gemm(s, g, FV_BF16); }
static void gemm_f16(fv_stream *s, const fv_gemm *g) { gemm(s, g, FV_F16); }

void NAME(gemm)(fv_kernels *k);
void NAME(gemm)(fv_kernels *k)
{
    if (k->dtype == FV_F64) return; /* the reference serves it */
    k->gemm = k->dtype == FV_F32 ? gemm_f32 : k->dtype == FV_BF16 ? gemm_bf16 : gemm_f16;
    NAME(gemm_panels)(k);
    NAME(gemm_few_rows)(k);
}
