/* gemm_product.c - one matrix product as its plan divides it: packing, tiles, and what is fetched
 * ahead.  gemm.c has the loop nest that this follows. */
#include "gemm_plan.h"

/* A thread's share of one block of rows: strips s0..s1 of it, which are rows i0..i1, times all or
 * some of B.
 * down x across = 2 x 2 threads on a block:
 *
 *             panels j0 .. j1
 *           +--------+--------+
 *    strips | t 0    | t 1    |    each reads its strips of packed A and its panels of B,
 *           +--------+--------+    and is the only one that writes its part of C
 *           | t 2    | t 3    |
 *           +--------+--------+ */
typedef struct share {
    int64_t rows, strips; /* of the block */
    int64_t s0, s1, i0, i1;
    const void *b;         /* as it came, or packed from panel `first` on */
    int64_t first, j0, j1; /* times panels j0..j1 */
    bool more;             /* than these panels of this product */
    gemm_end end;          /* at row i0, column 0 */
} share;

static void wait(const gemm_team *t)
{
    if (t->size > 1) {
#pragma omp barrier
    }
}

/* ---- packing ---- */

/* Where k does not run along memory a row there holds many strips (or panels): GEMM_GROUP of them
 * are packed together, a unit of k at a time, so that it is read once.
 * A strip has ceil or floor of rows / strips rows, so that no tile is much smaller than the
 * others. */
static void pack_rows(const gemm_plan *p, const gemm_team *t, const void *a, int64_t i0,
                      int64_t rows, int64_t strips)
{
    const fv_gemm *g = p->g;
    const gemm_kind *kind = p->kind;
    bool across = g->ta && !kind->a_head;
    int64_t runs = gemm_ceil_div(g->k, kind->run),
            side = across ? gemm_min(GEMM_GROUP, gemm_ceil_div(strips, t->size)) : 1,
            all = gemm_ceil_div(strips, side) * runs;
    for (int64_t u = gemm_part(all, t->id, t->size); u < gemm_part(all, t->id + 1, t->size); u++) {
        int64_t s0 = u / runs * side, k = u % runs * kind->run, kc = gemm_min(kind->run, g->k - k),
                piece = across ? GEMM_UNIT : kc;
        for (int64_t v = 0; v < kc; v += piece)
            for (int64_t s = s0; s < gemm_min(s0 + side, strips); s++) {
                int64_t i = i0 + gemm_part(rows, s, strips);
                gemm_src src = {gemm_at(a, g->ta ? (k + v) * g->lda + i : i * g->lda + k, p->table),
                                p->table, g->lda, !g->ta,
                                (int)(i0 + gemm_part(rows, s + 1, strips) - i)};
                char *to = t->a + (size_t)strips * gemm_a_bytes(kind, k) +
                           (size_t)s * gemm_a_bytes(kind, kc);
                kind->pack_a(to + gemm_units(v) * kind->a_unit, &src, gemm_min(piece, kc - v));
            }
    }
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

/* Spread evenly over the tiles of the run: all at once would fill the line-fill buffers and
 * stall the loads of the tile itself. */
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

/* A tile that is wider than what is left of C is computed in a buffer and copied.
 * The panel of B was padded when it was packed, so the tile runs at its full width and needs no
 * variant for each number of columns. */
static void edge_tile(const gemm_kind *kind, gemm_tile *t, int64_t cols)
{
    float buf[GEMM_EDGE];
    float *c = t->c;
    int64_t ldc = t->ldc, wide = (int64_t)t->panels * kind->nr;
    for (int i = 0; i < t->rows && t->add; i++)
        for (int64_t j = 0; j < wide; j++) buf[i * wide + j] = j < cols ? c[i * ldc + j] : 0;
    t->c = buf;
    t->ldc = wide;
    kind->tile(t);
    for (int i = 0; i < t->rows; i++) memcpy(c + i * ldc, buf + i * wide, (size_t)cols * sizeof *c);
    t->c = c;
    t->ldc = ldc;
}

/* A share's strips against one run of a group of `positions` panels, which are `cols` columns of
 * C.
 * Strips are the inner loop: one run of a panel of B stays in L1 while all strips of A pass by
 * from L2.  The other order keeps a strip in L1 and reads B, which is larger, again for every
 * strip. */
static void multiply(const gemm_kind *kind, gemm_tile *t, ahead *next, const share *w,
                     const char *a, float *sum, int count, int64_t cols)
{
    size_t strip_bytes = gemm_a_bytes(kind, t->kc);
    int widest = gemm_walk(kind->mr, (int)gemm_ceil_div(w->rows, w->strips));
    const char *b = t->b;
    /* Each strip asks for its part of the panel that comes next, evenly over its tile; for a
     * single strip the hardware prefetcher does better on a few long streams. */
    int64_t panel_bytes = (int64_t)gemm_b_bytes(kind, t->kc), mine = w->s1 - w->s0;
    int64_t each = mine > 1 ? panel_bytes / mine : 0, low = w->rows / w->strips,
            extra = w->rows % w->strips;
    t->ahead_step = t->kc ? each / gemm_ceil_div(t->kc, 4) : 0;
    for (int q = 0; q < count; q += t->panels) {
        t->panels = widest;
        while (t->panels > count - q) t->panels /= 2;
        t->b = b + (size_t)q * t->b_next;
        int64_t left = cols - (int64_t)q * kind->nr;
        const char *coming = q + t->panels < count
                                 ? (const char *)t->b + (size_t)t->panels * t->b_next
                                 : b + panel_bytes;
        t->a = a + (size_t)w->s0 * strip_bytes;
        t->c = sum + (int64_t)q * kind->nr;
        t->ahead = mine > 1 ? coming : t->b;
        /* strip s ends at row gemm_part(rows, s + 1, strips); this saves a division */
        int64_t over = extra * w->s0 % w->strips;
        for (int64_t s = 0; s < mine; s++) {
            over += extra;
            t->rows = (int)(low + (over >= w->strips));
            if (over >= w->strips) over -= w->strips;
            fetch(next);
            if (left >= (int64_t)t->panels * kind->nr)
                kind->tile(t);
            else
                edge_tile(kind, t, left);
            t->a = (const char *)t->a + strip_bytes;
            t->c += t->rows * t->ldc;
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

/* One run of k of a group of panels of B: packed already, or packed now into this thread's
 * memory. */
static void find_panels(const gemm_plan *p, gemm_tile *t, const share *w, char *own, int64_t panel,
                        int64_t k, int count)
{
    const fv_gemm *g = p->g;
    const gemm_kind *kind = p->kind;
    if (g->packed || p->slice) {
        t->b_next = gemm_b_bytes(kind, g->k);
        t->b = (const char *)w->b + (size_t)(panel - w->first) * t->b_next + gemm_b_bytes(kind, k);
        return;
    }
    t->b_next = gemm_units(t->kc) * kind->b_unit;
    t->b = own;
    gemm_b b = {w->b, g->bt, g->ldb, g->tb, g->n, g->k};
    NAME(gemm_pack_run)(kind, own, t->b_next, &b, panel, panel + count, k, t->kc);
}

/* A share of C in the columns of a group of panels.
 * Sums of a C that is not f32 live in t->sum until all runs are in, so C is rounded exactly
 * once. */
static void columns(const gemm_plan *p, const gemm_team *t, const share *w, int64_t panel,
                    int count)
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
    e.sum = direct ? e.c : t->sum;
    e.ld_sum = direct ? g->ldc : (int64_t)p->group * kind->nr;
    if (g->add && !direct) NAME(gemm_start)(&e);

    int64_t k = 0;
    do {
        gemm_tile tile = {.ldc = e.ld_sum,
                          .c_next = kind->nr,
                          .alpha = p->alpha,
                          .add = g->add || k};
        tile.kc = gemm_min(p->kind->run, g->k - k);
        find_panels(p, &tile, w, t->b, panel, k, count);
        ahead next = next_run(p, w, panel, k, count);
        multiply(kind, &tile, &next, w, t->a + (size_t)w->strips * gemm_a_bytes(kind, k), e.sum,
                 count, e.cols);
        k += p->kind->run;
    } while (k < g->k);
    if (!direct || g->bias || g->act || g->pre) NAME(gemm_finish)(&e);
}

/* Splits a block among the team into down x across parts so that the largest is smallest.  Columns
 * first, unless it is a sixteenth larger so: threads that share columns read all of them twice. */
static int split_down(int size, int64_t strips, int64_t panels)
{
    int best = 1;
    int64_t least_work = INT64_MAX;
    for (int down = 1; down <= size; down++) {
        if (size % down) continue;
        int64_t work = gemm_ceil_div(strips, down) * gemm_ceil_div(panels, size / down);
        if (best == down || work + work / 16 < least_work) {
            least_work = work;
            best = down;
        }
    }
    return best;
}

/* Rows from..to of product number e, times panels j0..j1 of B, by a team. */
static void rows_of(const gemm_plan *p, const gemm_team *t, share w, int64_t e, int64_t from,
                    int64_t to)
{
    const fv_gemm *g = p->g;
    const void *a = gemm_at(g->a, e * g->stride_a, p->table);
    for (int64_t i0 = from; i0 < to; i0 += p->block) {
        w.rows = gemm_min(p->block, to - i0);
        w.strips = gemm_ceil_div(w.rows, p->kind->mr);
        pack_rows(p, t, a, i0, w.rows, w.strips);
        wait(t);
        int down = split_down(t->size, w.strips, w.j1 - w.j0), across = t->size / down;
        w.s0 = gemm_part(w.strips, t->id / across, down);
        w.s1 = gemm_part(w.strips, t->id / across + 1, down);
        w.i0 = gemm_part(w.rows, w.s0, w.strips);
        w.i1 = gemm_part(w.rows, w.s1, w.strips);
        int64_t start = e * g->stride_c + (i0 + w.i0) * g->ldc;
        w.end = (gemm_end){.ldc = g->ldc,
                           .rows = w.i1 - w.i0,
                           .bias = g->bias,
                           .table = p->table,
                           .ct = g->ct,
                           .act = g->act,
                           .c = (char *)g->c + start * (int64_t)fv_dtype_size(g->ct),
                           .pre = g->pre ? (char *)g->pre + start * (int64_t)fv_dtype_size(p->table)
                                         : NULL};
        int64_t j0 = w.j0 + gemm_part(w.j1 - w.j0, t->id % across, across),
                j1 = w.j0 + gemm_part(w.j1 - w.j0, t->id % across + 1, across);
        for (int64_t j = j0; j < j1 && w.s0 < w.s1; j += p->group)
            columns(p, t, &w, j, (int)gemm_min(p->group, j1 - j));
        if (i0 + p->block < to || w.more) wait(t); /* the next rows are packed over these */
    }
}

void NAME(gemm_product)(const gemm_plan *p, const gemm_team *t, int64_t e)
{
    const fv_gemm *g = p->g;
    int64_t each = p->slice ? p->slice : p->panels, strips = gemm_ceil_div(g->m, p->kind->mr),
            from = 0, to = g->m;
    gemm_team own = *t;
    if (p->by_rows) {
        own.id = 0;
        own.size = 1;
        own.a += (size_t)t->id * p->a_bytes;
        from = gemm_min(gemm_part(strips, t->id, t->size) * p->kind->mr, g->m);
        to = gemm_min(gemm_part(strips, t->id + 1, t->size) * p->kind->mr, g->m);
    }
    share w = {.b = g->packed ? g->b : gemm_at(g->b, e * g->stride_b, g->bt)};
    for (; w.j0 < p->panels; w.j0 = w.j1) {
        w.j1 = gemm_min(w.j0 + each, p->panels);
        if (p->slice) {
            int64_t j = w.j0 * p->kind->nr;
            gemm_b b = {gemm_at(g->b, e * g->stride_b + (g->tb ? j * g->ldb : j), g->bt),
                        g->bt,
                        g->ldb,
                        g->tb,
                        g->n - j,
                        g->k};
            b.n = gemm_min(b.n, (w.j1 - w.j0) * p->kind->nr);
            NAME(gemm_pack_panels)(p->kind, t->slice, &b, t->id, t->size);
            w.b = t->slice;
            w.first = w.j0;
            wait(t);
        }
        w.more = w.j1 < p->panels || e + 1 < g->batch;
        rows_of(p, &own, w, e, from, to);
        if (p->by_rows && p->slice && w.more) wait(t); /* the next slice is packed over this one */
    }
}
