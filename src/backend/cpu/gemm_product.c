/* gemm_product.c - one matrix product as its plan divides it: packing, tiles, and what is fetched
 * ahead.  gemm.c has the loop nest that this follows. */
#include "gemm_tile_end.h"

/* Part of a product: strips s0..s1 of a block of rows, which are rows i0..i1 of it, times panels of
 * B.  A chunk of a loop is such a part:
 *
 *             panels
 *           +-----+-----+-----+-----+
 *    strips |  0  |  2  |  4  |  6  |    each reads its strips of packed A and its panels of B,
 *           +-----+-----+-----+-----+    and is the only one that writes its part of C
 *           |  1  |  3  |  5  |  7  |
 *           +-----+-----+-----+-----+ */
typedef struct share {
    int64_t rows, strips; /* of the block */
    int64_t s0, s1, i0, i1;
    const void *b; /* as it came, or packed from panel `first` on */
    int64_t first;
    const char *a; /* the block of A: packed, or its first row in place */
    char *own;     /* of this thread: a group of B */
    float *sum;
    gemm_end end; /* at row i0, column 0 */
} share;

/* ---- packing ---- */

/* Where k does not run along memory a row there holds many strips (or panels): GEMM_GROUP of them
 * are packed together, a unit of k at a time, so that it is read once.
 * A strip has ceil or floor of rows / strips rows, so that no tile is much smaller than the
 * others. */
typedef struct {
    const gemm_plan *p;
    char *to;
    const void *a;
    int64_t i0, rows, strips, side; /* strips packed together */
} pack_args;

static void pack_part(void *arg, int64_t from, int64_t to, int slot)
{
    const pack_args *l = arg;
    const fv_gemm *g = l->p->g;
    const gemm_kind *kind = l->p->kind;
    fv_dtype table = l->p->table;
    int64_t runs = gemm_ceil_div(g->k, kind->run);
    (void)slot;
    for (int64_t u = from; u < to; u++) {
        int64_t s0 = u / runs * l->side, k = u % runs * kind->run,
                kc = gemm_min(kind->run, g->k - k), piece = l->side > 1 ? GEMM_UNIT : kc;
        for (int64_t v = 0; v < kc; v += piece)
            for (int64_t s = s0; s < gemm_min(s0 + l->side, l->strips); s++) {
                int64_t i = l->i0 + gemm_part(l->rows, s, l->strips),
                        end = l->i0 + gemm_part(l->rows, s + 1, l->strips);
                gemm_src src = {gemm_at(l->a, g->ta ? (k + v) * g->lda + i : i * g->lda + k, table),
                                table, g->lda, !g->ta, (int)(end - i)};
                char *at = l->to + (size_t)l->strips * gemm_a_bytes(kind, k) +
                           (size_t)s * gemm_a_bytes(kind, kc);
                kind->pack_a(at + gemm_units(v) * kind->a_unit, &src, gemm_min(piece, kc - v));
            }
    }
}

/* The number of iterations of pack_part, for so many threads. */
static int64_t pack_pieces(pack_args *l, int threads)
{
    const gemm_plan *p = l->p;
    bool across = p->g->ta && !p->kind->a_head;
    l->side = across ? gemm_min(GEMM_GROUP, gemm_ceil_div(l->strips, threads)) : 1;
    return gemm_ceil_div(l->strips, l->side) * gemm_ceil_div(p->g->k, p->kind->run);
}

static void pack_rows(fv_stream *s, int threads, pack_args l)
{
    int64_t pieces = pack_pieces(&l, threads);
    fv__cpu_parallel(s, threads, pieces, 0, pack_part, &l);
}

/* Panels of B all along k, by themselves or before a block of A in one loop. */
typedef struct {
    const gemm_kind *kind;
    char *out;
    gemm_b b;
    int64_t pieces; /* of B: those of A come behind */
    pack_args a;
} slice_args;

static void pack_slice(void *arg, int64_t from, int64_t to, int slot)
{
    slice_args *l = arg;
    int64_t mine = gemm_min(to, l->pieces);
    if (from < mine) NAME(gemm_pack_panels)(l->kind, l->out, &l->b, from, mine);
    from = from > l->pieces ? from : l->pieces;
    if (from < to) pack_part(&l->a, from - l->pieces, to - l->pieces, slot);
}

/* ---- prefetch: while the tiles of a run are multiplied, the operand that is packed next is
 * prefetched; with few strips there is no time for it ---- */

#define FETCH_FROM 3 /* strips */

typedef struct ahead {
    const char *p; /* `rows` rows of `lines` cache lines, `stride` bytes apart */
    int64_t stride, rows, lines;
    int64_t row, line; /* where it stands */
    int64_t each;      /* lines to ask for at each tile */
} ahead;

/* Evenly over the tiles of the run: all at once would fill the line-fill buffers. */
static ahead ahead_of(const void *p, int64_t stride, int64_t rows, int64_t bytes, int64_t tiles)
{
    ahead f = {.p = p, .stride = stride, .rows = rows, .lines = gemm_ceil_div(bytes, 64)};
    f.each = gemm_ceil_div(f.rows * f.lines, tiles);
    return f;
}

static void fetch(ahead *f)
{
    for (int64_t i = 0; i < f->each && f->row < f->rows; i++) {
        __builtin_prefetch(f->p + f->row * f->stride + f->line * 64, 0, 2);
        if (++f->line == f->lines) {
            f->line = 0;
            f->row++;
        }
    }
}

/* ---- one product ---- */

/* A share's strips against one run of a group of `count` panels, which are `cols` columns of C.
 * end: this is the last run and each tile is finished at once; or NULL.  Strips are the inner loop:
 * one run of a panel of B stays in L1 while all strips of A pass by from L2.  The other order keeps
 * a strip in L1 and reads B, which is larger, again for every strip. */
static void multiply(const gemm_kind *kind, gemm_tile *t, ahead *next, const share *w,
                     const char *a, float *sum, int count, int64_t cols, const gemm_end *end)
{
    size_t strip_bytes = gemm_a_bytes(kind, t->kc);
    int widest = gemm_walk(kind, gemm_ceil_div(w->rows, w->strips));
    const char *b = t->b;
    /* Each strip asks for its part of the panel that comes next, evenly over its tile; for a
     * single strip the hardware prefetcher does better on a few long streams. */
    int64_t panel_bytes = (int64_t)gemm_b_bytes(kind, t->kc), mine = w->s1 - w->s0;
    int64_t each = mine > 1 ? panel_bytes / mine : 0, low = w->rows / w->strips,
            extra = w->rows % w->strips;
    t->ahead_step = t->kc ? each / gemm_ceil_div(t->kc, 4) : 0;
    /* A packed group is followed by its next run; this thread's own buffer by pages that may be
     * unmapped, where every prefetch is a page walk (128x768x768 on two N1: 33 GFLOP/s, not 71). */
    const char *after = b == w->own ? b : b + panel_bytes;
    for (int q = 0; q < count; q += t->panels) {
        t->panels = widest;
        while (t->panels > count - q) t->panels /= 2;
        t->b = b + (size_t)q * t->b_next;
        int64_t left = cols - (int64_t)q * kind->nr;
        const char *coming = q + t->panels < count
                                 ? (const char *)t->b + (size_t)t->panels * t->b_next
                                 : after;
        t->a = a + (t->a_stride ? (size_t)(w->i0 * t->a_stride) : (size_t)w->s0 * strip_bytes);
        t->c = sum + (int64_t)q * kind->nr;
        t->ahead = mine > 1 ? coming : t->b;
        /* strip s ends at row gemm_part(rows, s + 1, strips); this saves a division */
        int64_t over = extra * w->s0 % w->strips, row = 0;
        for (int64_t s = 0; s < mine; s++) {
            over += extra;
            t->rows = (int)(low + (over >= w->strips));
            if (over >= w->strips) over -= w->strips;
            fetch(next);
            int64_t wide = (int64_t)t->panels * kind->nr, col = (int64_t)q * kind->nr;
            if (end)
                last_tile(kind, t, end, row * end->ldc + col, col, gemm_min(left, wide));
            else if (left >= wide)
                kind->tile(t);
            else
                edge_tile(kind, t, left);
            t->a = (const char *)t->a +
                   (t->a_stride ? (size_t)(t->rows * t->a_stride) : strip_bytes);
            t->also += gemm_ceil_div(t->kc, 4) * t->also_step;
            t->c += t->rows * t->ldc;
            row += t->rows;
            t->ahead += each;
        }
    }
}

/* What will be packed of B after this run of k: the next of the same columns, or the first of the
 * next group's. */
static ahead next_run(const gemm_plan *p, const share *w, int64_t panel, int64_t k, int count)
{
    const fv_gemm *g = p->g;
    int64_t size = (int64_t)fv_dtype_size(g->bt), tiles = (w->s1 - w->s0) * count;
    k += p->kind->run;
    if (k >= g->k) {
        k = 0;
        panel += count;
    }
    int64_t j = panel * p->kind->nr, cols = gemm_min((int64_t)count * p->kind->nr, g->n - j),
            kc = gemm_min(p->kind->run, g->k - k);
    if (g->packed || p->slice || cols <= 0 || p->strips < FETCH_FROM) return (ahead){0};
    if (g->tb)
        return ahead_of(gemm_at(w->b, j * g->ldb + k, g->bt), g->ldb * size, cols, kc * size,
                        tiles);
    return ahead_of(gemm_at(w->b, k * g->ldb + j, g->bt), g->ldb * size, kc, cols * size, tiles);
}

/* The strips of the run of k that comes next, evenly over the tiles of this one: where threads
 * share A it comes from another's cache, and each tile of the run's first panel would wait. */
static void next_strips(const gemm_plan *p, gemm_tile *t, const share *w, int64_t k, int count)
{
    size_t strip = gemm_a_bytes(p->kind, gemm_min(p->kind->run, p->g->k - k));
    t->also = w->a + (size_t)w->strips * gemm_a_bytes(p->kind, k) + (size_t)w->s0 * strip;
    t->also_step = (int64_t)strip / count / gemm_ceil_div(t->kc, 4) + 1;
}

/* Where this run of k of the block's A starts, packed or in place. */
static const char *find_strips(const gemm_plan *p, gemm_tile *t, const share *w, int64_t k)
{
    if (!p->in_place) return w->a + (size_t)w->strips * gemm_a_bytes(p->kind, k);
    t->a_stride = p->g->lda * (int64_t)fv_dtype_size(p->table);
    return gemm_at(w->a, k, p->table);
}

/* One run of k of a group of panels of B: packed already, or packed now into this thread's
 * memory. */
static void find_panels(const gemm_plan *p, gemm_tile *t, const share *w, int64_t panel, int64_t k,
                        int count)
{
    const fv_gemm *g = p->g;
    const gemm_kind *kind = p->kind;
    if (g->packed || p->slice) {
        t->b_next = gemm_b_bytes(kind, g->k);
        t->b = (const char *)w->b + (size_t)(panel - w->first) * t->b_next + gemm_b_bytes(kind, k);
        return;
    }
    t->b_next = gemm_units(t->kc) * kind->b_unit;
    t->b = w->own;
    gemm_b b = {w->b, g->bt, g->ldb, g->tb, g->n, g->k};
    NAME(gemm_pack_run)(kind, w->own, t->b_next, &b, panel, panel + count, k, t->kc);
}

/* Elements of a tile that is finished while it is in L1; smaller ones wait for the others of their
 * group, which makes longer loops. */
#define LARGE_TILE 1024

/* A share of C in the columns of a group of panels.
 * Sums of a C that is not f32 live in w->sum until all runs are in, so C is rounded exactly
 * once. */
static void columns(const gemm_plan *p, const share *w, int64_t panel, int count)
{
    const fv_gemm *g = p->g;
    const gemm_kind *kind = p->kind;
    int64_t j = panel * kind->nr;
    gemm_end e = w->end;
    e.cols = gemm_min((int64_t)count * kind->nr, g->n - j);
    e.c = (char *)e.c + j * (int64_t)fv_dtype_size(g->ct);
    if (e.pre) e.pre = (char *)e.pre + j * (int64_t)fv_dtype_size(p->table);
    if (e.bias) e.bias = gemm_at(e.bias, j, p->table);
    bool direct = g->ct == FV_F32;
    e.sum = direct ? e.c : w->sum;
    e.ld_sum = direct ? g->ldc : (int64_t)count * kind->nr + GEMM_PAD;
    if (g->add && !direct) NAME(gemm_start)(&e);

    bool finish = !direct || g->bias || g->act || g->pre,
         at_once = kind->mr * kind->nr >= LARGE_TILE;
    int64_t k = 0;
    do {
        gemm_tile tile = {.ldc = e.ld_sum,
                          .c_next = kind->nr,
                          .alpha = p->alpha,
                          .also = w->a,
                          .add = g->add || k};
        tile.kc = gemm_min(p->kind->run, g->k - k);
        if (p->shared && !p->in_place && k + kind->run < g->k)
            next_strips(p, &tile, w, k + kind->run, count);
        find_panels(p, &tile, w, panel, k, count);
        const char *strips = find_strips(p, &tile, w, k);
        ahead next = next_run(p, w, panel, k, count);
        multiply(kind, &tile, &next, w, strips, e.sum, count, e.cols,
                 finish && at_once && k + kind->run >= g->k ? &e : NULL);
        k += p->kind->run;
    } while (k < g->k);
    if (finish && !at_once) NAME(gemm_finish)(&e);
}

/* ---- chunks ---- */

#define A_RESIDENT ((size_t)1 << 20) /* bytes of packed A that L2 keeps */

typedef struct chunks {
    int64_t down; /* parts of the strips */
    int64_t each; /* panels */
    int64_t across;
    bool down_last; /* chunks of the same strips follow one another, not those of the same panels */
} chunks;

#define LATE 2 /* chunks by which the slowest of many threads is late */

/* For many threads, where a chunk also waits for its strips and panels to come from other caches,
 * about the time of a tile for each, and all wait for the slowest thread: the cores of a virtual
 * machine differ by a factor of two from one moment to the next, and with one chunk a thread 16 of
 * them waited for half of the time.  A thread takes chunks of the same strips, which stay in its
 * L2. */
static chunks cut_for_many(const gemm_plan *p, int threads, int64_t strips, int64_t panels)
{
    chunks best = {0};
    int64_t least = INT64_MAX, down = gemm_ceil_div(strips, CHUNK_STRIPS),
            most = gemm_min(strips, down > 2 * threads ? down : 2 * threads);
    for (; down <= most; down += p->shared ? 1 : down)
        for (int64_t each = p->group; each; each--) {
            int64_t s = gemm_ceil_div(strips, down), across = gemm_ceil_div(panels, each),
                    chunk = s * each + s + each, rounds = gemm_ceil_div(down * across, threads),
                    time = (rounds + LATE) * chunk;
            if (time >= least) continue;
            least = time;
            best = (chunks){down, each, across, true};
        }
    return best;
}

/* The parts that a block is cut into, so that all threads are done soonest: rounds of chunks,
 * each of which takes as long as its tiles, and packing its panels unless they are packed.  Of
 * equal ones the smallest, which suit threads of unequal speed, unless panels are packed together
 * or A comes from beyond L2 for each chunk. */
static chunks cut(const gemm_plan *p, int threads, int64_t strips, int64_t panels)
{
    chunks best = {1, p->group, gemm_ceil_div(panels, p->group), false};
    if (threads == 1) return best;
    if (p->both_ways) return cut_for_many(p, threads, strips, panels);
    bool packed = p->g->packed || p->slice,
         small = (packed || p->g->tb) && p->a_bytes <= A_RESIDENT;
    int64_t least = INT64_MAX, pack = packed ? 1 : 3;
    for (int64_t down = 1; down <= strips && down <= threads; down *= 2)
        for (int64_t each = p->group; each; each--) {
            chunks c = {down, each, gemm_ceil_div(panels, each), false};
            int64_t rounds = gemm_ceil_div(down * c.across, threads),
                    time = rounds * each * (gemm_ceil_div(strips, down) + pack);
            if (time < least || (time == least && small)) {
                least = time;
                best = c;
            }
        }
    return best;
}

/* Rows of product e against panels of B. */
typedef struct {
    const gemm_plan *p;
    const gemm_team *t;
    const void *a;
    share w;
    int64_t e, from, to, panels; /* rows, and panels of B from w.first on */
    chunks cut;
} block_args;

/* One part: strips s0..s1 of the block at row `row`, panels j0..j1. */
static void part(const block_args *l, share w, int64_t row, int64_t j0, int64_t j1)
{
    const gemm_plan *p = l->p;
    const fv_gemm *g = p->g;
    w.i0 = gemm_part(w.rows, w.s0, w.strips);
    w.i1 = gemm_part(w.rows, w.s1, w.strips);
    int64_t start = l->e * g->stride_c + (row + w.i0) * g->ldc;
    w.end = (gemm_end){.ldc = g->ldc,
                       .rows = w.i1 - w.i0,
                       .bias = g->bias,
                       .table = p->table,
                       .ct = g->ct,
                       .act = g->act,
                       .c = (char *)g->c + start * (int64_t)fv_dtype_size(g->ct),
                       .pre = g->pre ? (char *)g->pre + start * (int64_t)fv_dtype_size(p->table)
                                     : NULL};
    if (p->kind->enter) p->kind->enter();
    for (int64_t j = j0; j < j1; j += p->group) columns(p, &w, j, (int)gemm_min(p->group, j1 - j));
    if (p->kind->leave) p->kind->leave();
}

static share with_memory(const block_args *l, int slot)
{
    share w = l->w;
    w.own = l->t->own + (size_t)slot * l->t->own_bytes;
    w.sum = (float *)(w.own + l->p->b_bytes);
    return w;
}

/* The parts of a block of rows that all threads packed together. */
static void parts_of_block(void *arg, int64_t from, int64_t to, int slot)
{
    const block_args *l = arg;
    share w = with_memory(l, slot);
    for (int64_t i = from; i < to; i++) {
        bool last = l->cut.down_last;
        int64_t d = last ? i / l->cut.across : i % l->cut.down,
                j = (last ? i % l->cut.across : i / l->cut.down) * l->cut.each;
        w.s0 = gemm_part(w.strips, d, l->cut.down);
        w.s1 = gemm_part(w.strips, d + 1, l->cut.down);
        part(l, w, l->from, w.first + j, w.first + gemm_min(j + l->cut.each, l->panels));
    }
}

/* share.a of the block at `row`: A itself, or its copy, which so many threads pack into `to`. */
static const char *block_of_a(const block_args *l, int threads, char *to, int64_t row,
                              const share *w)
{
    const gemm_plan *p = l->p;
    if (p->in_place) return gemm_at(l->a, row * p->g->lda, p->table);
    pack_rows(l->t->s, threads, (pack_args){p, to, l->a, row, w->rows, w->strips, 1});
    return to;
}

/* Whole blocks, each packed and multiplied by one thread. */
static void whole_blocks(void *arg, int64_t from, int64_t to, int slot)
{
    const block_args *l = arg;
    const gemm_plan *p = l->p;
    share w = with_memory(l, slot);
    for (int64_t i = from; i < to; i++) {
        int64_t row = l->from + i * p->block;
        w.rows = gemm_min(p->block, l->to - row);
        w.strips = w.s1 = gemm_ceil_div(w.rows, p->kind->mr);
        w.a = block_of_a(l, 1, l->t->a + (size_t)slot * p->a_bytes, row, &w);
        part(l, w, row, w.first, w.first + l->panels);
    }
}

/* All rows of product e, times the panels in l.  slice: what is still to be packed of B, together
 * with the first block of rows; or NULL. */
static void rows_of(block_args l, slice_args *slice)
{
    const gemm_plan *p = l.p;
    const gemm_team *t = l.t;
    l.to = p->g->m;
    if (p->by_rows) {
        fv__cpu_parallel(t->s, t->threads, gemm_ceil_div(l.to, p->block), 1, whole_blocks, &l);
        return;
    }
    for (; l.from < l.to; l.from += p->block) {
        share *w = &l.w;
        w->rows = gemm_min(p->block, l.to - l.from);
        w->strips = gemm_ceil_div(w->rows, p->kind->mr);
        w->a = slice ? t->a : block_of_a(&l, t->threads, t->a, l.from, w);
        if (slice) {
            slice->a = (pack_args){p, t->a, l.a, l.from, w->rows, w->strips, 1};
            int64_t pieces = pack_pieces(&slice->a, t->threads);
            fv__cpu_parallel(t->s, t->threads, slice->pieces + pieces, 1, pack_slice, slice);
            slice = NULL;
        }
        l.cut = cut(p, t->threads, w->strips, l.panels);
        fv__cpu_parallel(t->s, t->threads, l.cut.down * l.cut.across, 1, parts_of_block, &l);
    }
}

void NAME(gemm_product)(const gemm_plan *p, const gemm_team *t, int64_t e)
{
    const fv_gemm *g = p->g;
    int64_t each = p->slice ? p->slice : p->panels;
    block_args l = {.p = p, .t = t, .e = e, .a = gemm_at(g->a, e * g->stride_a, p->table)};
    l.w.b = g->packed ? g->b : gemm_at(g->b, e * g->stride_b, g->bt);
    for (int64_t first = 0; first < p->panels; first += each) {
        l.panels = gemm_min(each, p->panels - first);
        l.w.first = first;
        if (!p->slice) {
            rows_of(l, NULL);
            continue;
        }
        int64_t j = first * p->kind->nr, n = gemm_min(g->n - j, l.panels * p->kind->nr);
        const void *b = gemm_at(g->b, e * g->stride_b + (g->tb ? j * g->ldb : j), g->bt);
        slice_args all = {p->kind, t->slice, {b, g->bt, g->ldb, g->tb, n, g->k}, 0, {0}};
        all.pieces = NAME(gemm_pack_pieces)(p->kind, &all.b);
        bool together = p->shared && !p->in_place; /* B and the first block of A, in one loop */
        if (!together)
            fv__cpu_parallel(t->s, t->threads, all.pieces, p->shared ? 1 : 0, pack_slice, &all);
        l.w.b = t->slice;
        rows_of(l, together ? &all : NULL);
    }
}
