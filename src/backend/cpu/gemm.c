/* gemm.c - the matrix product: blocks, threads and tables.  The arithmetic is in the kinds, see
 * gemm.h.
 *
 *   for each slice of B that packed is no larger than B_BYTES (B whole where it came packed or rows
 *   are few):
 *       pack it, if there are several blocks of rows                 (shared, then a barrier)
 *       for each block of rows of A, a run of which stays in L2:
 *           pack it, run by run of k, in strips of mr rows
 *           for each group of panels of B:
 *               for each run of values of k (FV_GEMM_KC of them in f32):
 *                   pack the group's run of B, unless it is packed         (own cache)
 *                   for each panel of the group, for each strip:  tile (panel in L1, strips in L2)
 *               bias, activation, rounding
 *
 * Where rows are many each thread has its own; where they are few the threads share packed A and
 * deal out the panels.
 *
 * Every element gets its runs in order from one thread, so neither the split nor the other rows can
 * change it. */
#include <omp.h>

#include "gemm.h"

#define A_BYTES ((size_t)2 << 20)
/* of packed A for one run of k: it is read again for every panel */
#define A_RUN ((size_t)384 << 10)
#define B_BYTES ((size_t)16 << 20)
#define ENOUGH 16                             /* strips of a block that are worth a passage of B */
#define L2_RESIDENT_BYTES ((size_t)256 << 10) /* of packed A that stays near whatever else passes */

typedef struct plan {
    const fv_gemm *g;
    const gemm_kind *kind;
    fv_dtype table;
    float alpha;
    int64_t panels;                     /* of B */
    int64_t block;                      /* rows of A packed at a time */
    int64_t strips;                     /* in the largest block */
    int group;                          /* panels at a time */
    size_t a_bytes, b_bytes, sum_bytes; /* of scratch: one team's, one thread's, one thread's */
    int64_t slice;      /* panels of B that are packed before anything else; 0: none are */
    size_t slice_bytes; /* of scratch for them */
    bool by_rows;       /* each thread has rows of its own */
} plan;

/* Who computes one product: this thread, as one of `size` that share packed A. */
typedef struct team {
    int id, size;
    char *a, *b, *slice;
    float *sum;
} team;

/* What a thread does of one block of rows: strips s0..s1 of it, which are rows i0..i1, times all or
 * some of B. */
typedef struct share {
    int64_t rows, strips; /* of the block */
    int64_t s0, s1, i0, i1;
    const void *b;         /* as it came, or packed from panel `first` on */
    int64_t first, j0, j1; /* times panels j0..j1 */
    bool more;             /* than these panels of this product */
    gemm_end end;          /* at row i0, column 0 */
} share;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Where part i of n equal parts of `all` begins. */
static int64_t part(int64_t all, int64_t i, int64_t n) { return all * i / n; }

static void wait(const team *t)
{
    if (t->size > 1) {
#pragma omp barrier
    }
}

/* ---- packing ---- */

static const void *at(const void *p, int64_t i, fv_dtype t)
{
    return (const char *)p + i * (int64_t)fv_dtype_size(t);
}

/* Where k does not run along memory a row there holds many strips (or panels): GEMM_GROUP of them
 * are packed together, a unit of k at a time, so that it is read once. */
static void pack_rows(const plan *p, const team *t, const void *a, int64_t i0, int64_t rows,
                      int64_t strips)
{
    const fv_gemm *g = p->g;
    const gemm_kind *kind = p->kind;
    bool across = g->ta && !kind->a_head;
    int64_t runs = up(g->k, kind->run), side = across ? least(GEMM_GROUP, up(strips, t->size)) : 1,
            all = up(strips, side) * runs;
    for (int64_t u = part(all, t->id, t->size); u < part(all, t->id + 1, t->size); u++) {
        int64_t s0 = u / runs * side, k = u % runs * kind->run, kc = least(kind->run, g->k - k),
                piece = across ? GEMM_UNIT : kc;
        for (int64_t v = 0; v < kc; v += piece)
            for (int64_t s = s0; s < least(s0 + side, strips); s++) {
                int64_t i = i0 + part(rows, s, strips);
                gemm_src src = {at(a, g->ta ? (k + v) * g->lda + i : i * g->lda + k, p->table),
                                p->table, g->lda, !g->ta,
                                (int)(i0 + part(rows, s + 1, strips) - i)};
                char *to = t->a + (size_t)strips * gemm_a_bytes(kind, k) +
                           (size_t)s * gemm_a_bytes(kind, kc);
                kind->pack_a(to + gemm_units(v) * kind->a_unit, &src, least(piece, kc - v));
            }
    }
}

/* ---- fetching ahead: while the tiles of a run are multiplied, what is packed next comes into the
 * cache; with few strips there is no time for it ---- */

#define FETCH_FROM 3 /* strips */

typedef struct ahead {
    const char *p; /* `rows` rows of `lines` cache lines, `stride` bytes apart */
    int64_t stride, rows, lines;
    int64_t row, line; /* where it stands */
    int64_t each;      /* lines to ask for at each tile */
} ahead;

static ahead ahead_of(const void *p, int64_t stride, int64_t rows, int64_t bytes, int64_t tiles)
{
    ahead f = {.p = p, .stride = stride, .rows = rows, .lines = up(bytes, 64)};
    f.each = up(f.rows * f.lines, tiles);
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

/* A tile that sticks out of C on the right goes through a small one of its own. */
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
 * C. */
static void multiply(const gemm_kind *kind, gemm_tile *t, ahead *next, const share *w,
                     const char *a, float *sum, int count, int64_t cols)
{
    size_t strip_bytes = gemm_a_bytes(kind, t->kc);
    int widest = gemm_walk(kind->mr, (int)up(w->rows, w->strips));
    const char *b = t->b;
    /* Each strip asks for its part of the panel that comes next, evenly over its tile; one strip
     * alone leaves that to the processor, which follows a few long streams better. */
    int64_t panel_bytes = (int64_t)gemm_b_bytes(kind, t->kc), mine = w->s1 - w->s0;
    int64_t each = mine > 1 ? panel_bytes / mine : 0, low = w->rows / w->strips,
            extra = w->rows % w->strips;
    t->ahead_step = t->kc ? each / up(t->kc, 4) : 0;
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
        /* strip s ends at row part(rows, s + 1, strips); this saves a division */
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
static ahead next_run(const plan *p, const share *w, int64_t panel, int64_t k, int count)
{
    const fv_gemm *g = p->g;
    int64_t size = (int64_t)fv_dtype_size(g->bt), tiles = (w->s1 - w->s0) * count;
    k += p->kind->run;
    if (k >= g->k) {
        k = 0;
        panel += count;
    }
    int64_t j = panel * p->kind->nr, cols = least((int64_t)count * p->kind->nr, g->n - j),
            kc = least(p->kind->run, g->k - k);
    if (g->packed || p->slice || cols <= 0 || p->strips < FETCH_FROM) return (ahead){0};
    if (g->tb)
        return ahead_of(at(w->b, j * g->ldb + k, g->bt), g->ldb * size, cols, kc * size, tiles);
    return ahead_of(at(w->b, k * g->ldb + j, g->bt), g->ldb * size, kc, cols * size, tiles);
}

/* One run of k of a group of panels of B: packed already, or packed now into this thread's
 * memory. */
static void find_panels(const plan *p, gemm_tile *t, const share *w, char *own, int64_t panel,
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

/* A share of C in the columns of a group of panels. */
static void columns(const plan *p, const team *t, const share *w, int64_t panel, int count)
{
    const fv_gemm *g = p->g;
    const gemm_kind *kind = p->kind;
    int64_t j = panel * kind->nr;
    gemm_end e = w->end;
    e.cols = least((int64_t)count * kind->nr, g->n - j);
    e.c = (char *)e.c + j * (int64_t)fv_dtype_size(g->ct);
    if (e.pre) e.pre = (char *)e.pre + j * (int64_t)fv_dtype_size(p->table);
    if (e.bias) e.bias = at(e.bias, j, p->table);
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
        tile.kc = least(p->kind->run, g->k - k);
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
        int64_t work = up(strips, down) * up(panels, size / down);
        if (best == down || work + work / 16 < least_work) {
            least_work = work;
            best = down;
        }
    }
    return best;
}

/* Rows from..to of product number e, times panels j0..j1 of B, by a team. */
static void rows_of(const plan *p, const team *t, share w, int64_t e, int64_t from, int64_t to)
{
    const fv_gemm *g = p->g;
    const void *a = at(g->a, e * g->stride_a, p->table);
    for (int64_t i0 = from; i0 < to; i0 += p->block) {
        w.rows = least(p->block, to - i0);
        w.strips = up(w.rows, p->kind->mr);
        pack_rows(p, t, a, i0, w.rows, w.strips);
        wait(t);
        int down = split_down(t->size, w.strips, w.j1 - w.j0), across = t->size / down;
        w.s0 = part(w.strips, t->id / across, down);
        w.s1 = part(w.strips, t->id / across + 1, down);
        w.i0 = part(w.rows, w.s0, w.strips);
        w.i1 = part(w.rows, w.s1, w.strips);
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
        int64_t j0 = w.j0 + part(w.j1 - w.j0, t->id % across, across),
                j1 = w.j0 + part(w.j1 - w.j0, t->id % across + 1, across);
        for (int64_t j = j0; j < j1 && w.s0 < w.s1; j += p->group)
            columns(p, t, &w, j, (int)least(p->group, j1 - j));
        if (i0 + p->block < to || w.more) wait(t); /* the next rows are packed over these */
    }
}

/* Product number e of the batch. */
static void product(const plan *p, const team *t, int64_t e)
{
    const fv_gemm *g = p->g;
    int64_t each = p->slice ? p->slice : p->panels, strips = up(g->m, p->kind->mr), from = 0,
            to = g->m;
    team own = *t;
    if (p->by_rows) {
        own.id = 0;
        own.size = 1;
        own.a += (size_t)t->id * p->a_bytes;
        from = least(part(strips, t->id, t->size) * p->kind->mr, g->m);
        to = least(part(strips, t->id + 1, t->size) * p->kind->mr, g->m);
    }
    share w = {.b = g->packed ? g->b : at(g->b, e * g->stride_b, g->bt)};
    for (; w.j0 < p->panels; w.j0 = w.j1) {
        w.j1 = least(w.j0 + each, p->panels);
        if (p->slice) {
            int64_t j = w.j0 * p->kind->nr;
            gemm_b b = {at(g->b, e * g->stride_b + (g->tb ? j * g->ldb : j), g->bt),
                        g->bt,
                        g->ldb,
                        g->tb,
                        g->n - j,
                        g->k};
            b.n = least(b.n, (w.j1 - w.j0) * p->kind->nr);
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

/* ---- the call ---- */

/* Threads that share every product; 1 where products are dealt out whole. */
static plan make_plan(const fv_gemm *g, fv_dtype table, const gemm_kind *kind, int threads)
{
    plan p = {.g = g, .kind = kind, .table = table, .alpha = g->alpha == 0 ? 1 : g->alpha};
    size_t strip_bytes = gemm_a_bytes(kind, g->k),
           run_bytes = gemm_a_bytes(kind, least(g->k, kind->run));
    int64_t strips = up(g->m, kind->mr), most = (int64_t)(A_BYTES / (strip_bytes + 1));
    if (most > (int64_t)(A_RUN / (run_bytes + 1))) most = (int64_t)(A_RUN / (run_bytes + 1));
    if (most < 1) most = 1;
    p.panels = up(g->n, kind->nr);
    p.by_rows = threads > 1 && strips > most && strips >= (int64_t)threads * ENOUGH;
    if (p.by_rows) strips = up(strips, threads);
    p.strips = up(strips, up(strips, most));
    p.block = p.strips * kind->mr;
    if (p.block > g->m) p.block = g->m;
    p.a_bytes = ((size_t)p.strips * strip_bytes + 63) / 64 * 64;
    /* Few rows read a packed weight as fast as memory gives it: then each panel is followed to its
     * end, over all its runs. */
    bool reuse_a = g->packed && p.a_bytes <= L2_RESIDENT_BYTES && g->k > kind->run;
    p.group = reuse_a ? gemm_walk(kind->mr, (int)up(p.block, p.strips)) : GEMM_GROUP;
    if (!g->packed && (p.by_rows || p.block < g->m)) {
        size_t panel = gemm_b_bytes(kind, g->k);
        int64_t slices = up(p.panels, least(p.panels, (int64_t)(B_BYTES / panel) + 1));
        p.slice = up(up(p.panels, slices), GEMM_GROUP) * GEMM_GROUP;
        p.slice_bytes = ((size_t)p.slice * panel + 63) / 64 * 64;
    }
    if (!g->packed && !p.slice)
        p.b_bytes = (size_t)p.group * gemm_units(least(g->k, kind->run)) * kind->b_unit;
    if (g->ct != FV_F32)
        p.sum_bytes = (size_t)p.block * (size_t)(p.group * kind->nr) * sizeof(float);
    p.sum_bytes = (p.sum_bytes + 63) / 64 * 64;
    return p;
}

/* A plan, and who follows it. */
typedef struct crew {
    plan p;
    int threads;
    bool whole; /* products of a batch are dealt out whole */
    size_t a_all, shared, bytes;
} crew;

static crew prepare(const fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    double work = (double)(g->m + 8) * (double)g->n * (double)g->k;
    crew w = {.threads = work * (double)g->batch < GEMM_SMALL ? 1 : s->threads};
    size_t threads = (size_t)w.threads;
    /* Products of a batch are dealt out whole, unless they are few and large, or all go into one
     * C. */
    w.whole = threads == 1 || (g->batch >= w.threads && g->stride_c &&
                               (work < 8 * GEMM_SMALL || g->batch >= 4 * w.threads));
    w.p = make_plan(g, table, kind, w.whole ? 1 : w.threads);
    const plan *p = &w.p;
    w.a_all = p->a_bytes * (w.whole || p->by_rows ? threads : 1);
    w.shared = w.a_all + p->slice_bytes * (w.whole ? threads : 1);
    w.bytes = w.shared + threads * (p->b_bytes + p->sum_bytes) + 64;
    return w;
}

static void reuse_a(const crew *w, char *scratch)
{
    const plan *p = &w->p;
#pragma omp parallel num_threads(w->threads) if (w->threads > 1)
    {
        int id = omp_get_thread_num(), size = omp_get_num_threads();
        char *own = scratch + w->shared + (size_t)id * (p->b_bytes + p->sum_bytes);
        team t = {id, size, scratch, own, scratch + w->a_all, (float *)(own + p->b_bytes)};
        int64_t from = 0, to = p->g->batch;
        if (w->whole) {
            from = part(p->g->batch, id, size);
            to = part(p->g->batch, id + 1, size);
            t = (team){.size = 1,
                       .a = scratch + (size_t)id * p->a_bytes,
                       .b = own,
                       .slice = scratch + w->a_all + (size_t)id * p->slice_bytes,
                       .sum = t.sum};
        }
        for (int64_t e = from; e < to; e++) product(p, &t, e);
    }
}

/* ---- long inner axes: k in pieces, so that a block keeps enough rows to be worth a passage of B
 * ---- The pieces end where runs do, and the sums stay in f32 between them: every element still
 * gets its runs one by one. */

#define PIECE 8 /* runs */

static bool is_long(const fv_gemm *g, const gemm_kind *kind)
{
    size_t strip = gemm_a_bytes(kind, g->k);
    return !g->packed && g->batch == 1 && g->k > PIECE * kind->run &&
           A_BYTES / (strip + 1) < ENOUGH && g->m > (int64_t)(A_BYTES / (strip + 1)) * kind->mr &&
           g->m > ENOUGH * kind->mr;
}

static void finish_rows(const fv_stream *s, const fv_gemm *g, fv_dtype table, float *sum,
                        int64_t ld_sum, bool start)
{
#pragma omp parallel num_threads(s->threads) if (s->threads > 1)
    {
        int id = omp_get_thread_num(), size = omp_get_num_threads();
        int64_t i0 = part(g->m, id, size), i1 = part(g->m, id + 1, size), from = i0 * g->ldc;
        gemm_end e = {.sum = sum + i0 * ld_sum,
                      .ld_sum = ld_sum,
                      .ldc = g->ldc,
                      .rows = i1 - i0,
                      .cols = g->n,
                      .bias = g->bias,
                      .table = table,
                      .ct = g->ct,
                      .act = g->act,
                      .c = (char *)g->c + from * (int64_t)fv_dtype_size(g->ct),
                      .pre = g->pre ? (char *)g->pre + from * (int64_t)fv_dtype_size(table) : NULL};
        start ? NAME(gemm_start)(&e) : NAME(gemm_finish)(&e);
    }
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
        now.a = at(g->a, g->ta ? k * g->lda : k, table);
        now.b = at(g->b, g->tb ? k : k * g->ldb, g->bt);
        now.k = least(piece, g->k - k);
        now.add = g->add || k > 0;
        w = prepare(s, &now, table, kind);
        reuse_a(&w, scratch + sums);
    }
    if (!direct || g->bias || g->act || g->pre) finish_rows(s, g, table, now.c, now.ldc, false);
}

static void run(fv_stream *s, const fv_gemm *g, fv_dtype table, const gemm_kind *kind)
{
    if (g->m < 1 || g->n < 1 || g->batch < 1) return;
    if (NAME(gemm_few)(s, g, table, kind) || NAME(gemm_stored)(s, g, table, kind)) return;
    if (is_long(g, kind)) {
        run_long(s, g, table, kind);
        return;
    }
    crew w = prepare(s, g, table, kind);
    char *scratch = fv_stream_scratch(s, w.bytes);
    if (scratch) reuse_a(&w, scratch);
}

/* Without instructions for it, what is not f32 is widened while packing. */
static const gemm_kind *plain_kind(fv_dtype table)
{
    const gemm_kind *bf16 = table == FV_BF16 ? NAME(gemm_bf16)() : NULL;
    return bf16 ? bf16 : NAME(gemm_f32)(FV_F32);
}

static void gemm(fv_stream *s, const fv_gemm *g, fv_dtype table)
{
    const gemm_kind *kind = g->packed || g->bt != table ? NAME(gemm_packed)(g->bt)
                                                        : plain_kind(table);
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
