/* mega_plan.cu - which ops become one program: kernels that were asked for are written down, and
 * started together before whatever must see their results.
 *
 * Where blocks meet ops may be any, as each treats a row by itself.  Ops that send mail run into
 * one another, so what each reads and writes is looked at: numbers of an op of the same program
 * must come by mail, whole; what is written must not be read from memory by an op that may still be
 * under way.  Where that does not hold, the program written down so far is started, and the op
 * begins the next one. */
#include <bitset>
#include <new>

#include "mega.h"

#define MAX_OPS (int)(sizeof(mk_ops::op) / sizeof(mk_op))

struct region {
    const char *from, *end;
    bool overlaps(const region &r) const { return from < r.end && r.from < end; }
    bool is(const region &r) const { return from == r.from && end == r.end && from != end; }
};

static region over(const void *p, int64_t bytes)
{
    return {(const char *)p, (const char *)p + (p ? bytes : 0)};
}

typedef std::bitset<MAX_OPS> ops;

/* What an op does to memory, and on which others it depends. */
struct op_access {
    /* written: the result, which may go by mail; and caches and scratch, which do not */
    region y, other_writes[3];
    region read[3]; /* from memory that the program has not written */
    int64_t wide;   /* words of a row of mail; 0: nothing is sent */
    /* those that are over when the first number of this op is made; when all are */
    ops before, all_before;
    ops readers; /* of its mail */
    int area;    /* of its mail, or -1 */
};

struct megakernel {
    mk_ops p;
    int first; /* block that begins with the next product */
    op_access of[MAX_OPS];
    int owner[FLAGGED_AREAS]; /* the op that sent last to an area, or -1 */
};

void fv_cuda_launch_deferred(fv_stream *s)
{
    megakernel *g = stream_state_of(s)->deferred;
    for (int i = 0; i < g->p.n; i++)
        if (g->of[i].readers.none()) g->p.op[i].to.area = NULL; /* nobody waits for it */
    if (g->p.n && !s->err.code) fv_cuda_megakernel_launch(s, g->p);
    g->p.n = 0;
}

void fv_cuda_megakernel_free(megakernel *p) { delete p; }

/* ---- mail ---- */

/* The op whose result this region is; -1: none has written there; -2: it was, in part. */
static int writer_of(const megakernel *g, const region &r)
{
    for (int i = g->p.n - 1; i >= 0; i--) {
        const op_access &n = g->of[i];
        if (n.y.overlaps(r)) return n.y.is(r) && n.area >= 0 ? i : -2;
        for (const region &k : n.other_writes)
            if (k.overlaps(r)) return -2;
    }
    return -1;
}

static flagged_word *area_at(fv_stream *s, int area)
{
    return device_of(s)->flagged + (int64_t)area * FLAGGED_WORDS;
}

/* Who sends what is read at r, in rows of `wide` words.  False: nobody can, though the program has
 * written there. */
static bool find(fv_stream *s, megakernel *g, op_access *n, region *r, int64_t wide, mk_input *from)
{
    int op = writer_of(g, *r);
    *from = {NULL, 0};
    if (op == -1) return true;
    if (op < 0 || g->of[op].wide != wide) return false;
    *from = {area_at(s, g->of[op].area), op};
    *r = {};
    n->before |= g->of[op].all_before;
    n->before.set((size_t)op);
    g->of[op].readers.set((size_t)g->p.n);
    return true;
}

/* Writes n may go to memory: whoever reads or keeps something there is over by then. */
static bool writes_are_safe(const megakernel *g, const op_access &n)
{
    for (int i = 0; i < g->p.n; i++) {
        const op_access &o = g->of[i];
        if (n.before[(size_t)i]) continue;
        for (const region &r : o.read)
            if (n.y.overlaps(r) || n.other_writes[0].overlaps(r) || n.other_writes[1].overlaps(r) ||
                n.other_writes[2].overlaps(r))
                return false;
        for (const region &k : o.other_writes)
            if (n.y.overlaps(k) || n.other_writes[0].overlaps(k) || n.other_writes[1].overlaps(k) ||
                n.other_writes[2].overlaps(k))
                return false;
        if (n.other_writes[0].overlaps(o.y) || n.other_writes[1].overlaps(o.y) ||
            n.other_writes[2].overlaps(o.y))
            return false;
    }
    return true;
}

/* An area whose sender and readers are over when this op begins to send; -1: there is none. */
static int free_area(const megakernel *g, const op_access &n)
{
    for (int a = 0; a < FLAGGED_AREAS; a++) {
        if (g->owner[a] < 0) return a;
        ops in_use = g->of[g->owner[a]].readers;
        in_use.set((size_t)g->owner[a]);
        if ((in_use & ~n.before).none()) return a;
    }
    return -1;
}

/* ---- one op more ---- */

static void gemm_access(op_access *n, const decode_gemm &f)
{
    const fv_fused_linear &a = f.a;
    int64_t y_n = a.k_cache ? a.y_n : a.n, half = (a.n - y_n) / 2;
    n->y = over(a.y, a.rows * y_n * (a.yt == FV_BF16 ? 2 : 4));
    n->other_writes[0] = over(a.k_cache, a.rows * a.cap * half * (a.yt == FV_BF16 ? 2 : 4));
    n->other_writes[1] = over(a.v_cache, a.rows * a.cap * half * (a.yt == FV_BF16 ? 2 : 4));
    n->read[0] = over(a.x, a.rows * a.k * (a.xt == FV_BF16 ? 2 : 4));
    n->wide = a.n % 2 == 0 && a.rows * a.n <= FLAGGED_WORDS ? a.n : 0;
}

static bool gemm_inputs(fv_stream *s, megakernel *g, op_access *n, decode_gemm *f)
{
    if (f->a.add) n->read[1] = n->y;
    if (!find(s, g, n, &n->read[0], f->a.k, &f->from)) return false;
    ops before = n->before; /* of what y held a block waits for its own part alone */
    if (!find(s, g, n, &n->read[1], f->a.n, &f->old)) return false;
    n->before = n->all_before = before;
    return true;
}

template <class T> static void attention_access(op_access *n, const decode_attention<T> &f)
{
    const fv_attn_args &a = f.o.a;
    int64_t size = (int64_t)sizeof(T);
    n->y = over(a.y, a.B * a.H * a.Wv * size);
    n->other_writes[0] = over(a.lse, a.B * a.H * (int64_t)sizeof(float2));
    n->other_writes[1] = over(f.sums, a.B * a.H * f.parts * (a.Wv + 2) * 4);
    n->read[0] = over(a.q, ((a.B - 1) * a.q_batch + a.H * a.Wk) * size);
    n->read[1] = over(a.k, ((a.B - 1) * a.k_batch + (a.Tk - 1) * a.k_row + a.G * a.Wk) * size);
    n->read[2] = over(a.v, ((a.B - 1) * a.v_batch + (a.Tk - 1) * a.v_row + a.G * a.Wv) * size);
    n->wide = a.H * a.Wv % 2 == 0 && a.B * a.H * a.Wv <= FLAGGED_WORDS ? a.H * a.Wv : 0;
}

/* The product that wrote this step's keys and values to the caches that are read, and sends them;
 * NULL: something else has. */
template <class T>
static const fv_fused_linear *cache_writer(const megakernel *g, const decode_attention<T> &f,
                                           int op)
{
    const fv_attn_args &a = f.o.a;
    if (op < 0 || g->p.op[op].kind != GEMM) return NULL;
    const fv_fused_linear &w = g->p.op[op].gemm.a;
    int64_t half = (w.n - w.y_n) / 2;
    bool same = w.yt == kind<T>::dtype && w.k_cache == a.k && w.v_cache == a.v && w.k_cache &&
                w.rows == a.B && w.y_n == a.H * a.Wk && half == a.G * a.Wk && a.Wk == a.Wv &&
                a.k_row == half && a.v_row == half && a.k_batch == w.cap * half &&
                a.v_batch == w.cap * half;
    return same ? &w : NULL;
}

template <class T>
static bool attention_inputs(fv_stream *s, megakernel *g, op_access *n, decode_attention<T> *f)
{
    const fv_attn_args &a = f->o.a;
    int op = writer_of(g, n->read[0]);
    const fv_fused_linear *w = cache_writer(g, *f, op);
    if (op >= 0 && a.q_batch != a.H * a.Wk) return false;
    f->wide = w ? (int)w->n : (int)(a.H * a.Wk);
    f->pos = w ? w->pos : NULL;
    if (!find(s, g, n, &n->read[0], f->wide, &f->from)) return false;
    n->all_before = n->before;
    n->before = op >= 0 ? g->of[op].before : ops(); /* a head waits for its own part alone */
    for (int i = 1; i < 3; i++) /* of caches nothing else may have been written */
        for (int o = 0; o < g->p.n; o++)
            if (o != op || !w)
                if (g->of[o].y.overlaps(n->read[i]) ||
                    g->of[o].other_writes[0].overlaps(n->read[i]) ||
                    g->of[o].other_writes[1].overlaps(n->read[i]))
                    return false;
    return true;
}

/* What it does to memory and who sends what it reads; false: nobody can. */
static bool analyse(fv_stream *s, megakernel *g, op_access *n, mk_op *o)
{
    switch (o->kind) {
    case GEMM: gemm_access(n, o->gemm); return gemm_inputs(s, g, n, &o->gemm);
    case ATTENTION:
        attention_access(n, o->attention);
        return attention_inputs(s, g, n, &o->attention);
    case ATTENTION_BF16:
        attention_access(n, o->attention_bf16);
        return attention_inputs(s, g, n, &o->attention_bf16);
    }
    return false;
}

/* Connects the op with those before it; false where they cannot be of one program. */
static bool connect(fv_stream *s, megakernel *g, mk_op *o)
{
    op_access n = {};
    n.area = -1;
    o->to = {NULL, true};
    if (!analyse(s, g, &n, o) || !writes_are_safe(g, n)) return false;
    n.area = n.wide ? free_area(g, n) : -1;
    if (n.area >= 0) {
        g->owner[n.area] = g->p.n;
        for (int i = 0; i < g->p.n; i++)
            if (g->of[i].area == n.area) g->of[i].area = -1;
        o->to.area = area_at(s, n.area);
    }
    for (int i = 0; i < g->p.n; i++)
        if (g->of[i].y.overlaps(n.y)) g->p.op[i].to.memory = false;
    g->of[g->p.n] = n;
    return true;
}

/* Without ops, for those that come with so many rows. */
static void clear(fv_stream *s, megakernel *g, int64_t rows)
{
    device *d = device_of(s);
    g->p.n = g->p.x_bytes = g->first = 0;
    g->p.rows = (int)rows;
    g->p.wide = d->sm_count / (int)ceil_div(rows, ROWS_BLOCK);
    g->p.uses_flags = rows <= FLAGGED_MAX_ROWS;
    g->p.at = (counters *)(d->tickets + TICKETS);
    for (int &o : g->owner) o = -1;
}

/* Writes the op down if it goes with those before it. */
static bool add(fv_stream *s, megakernel *g, mk_op *o)
{
    mk_ops *p = &g->p;
    int x_bytes = p->x_bytes, slots = p->slots, last = p->n ? p->op[p->n - 1].span : 1;
    /* teams that went together stay so: they do not meet by themselves any more */
    if (o->span < last) return false;
    if (o->kind == GEMM) {
        const decode_gemm &f = o->gemm;
        int most = o->span * ROWS_BLOCK, rows = (int)(f.a.rows < most ? f.a.rows : most);
        int x = rows * (f.streams ? STAGES * (f.chunk + 32) : f.k + 32) * 2;
        if (x > p->x_bytes) p->x_bytes = (x + 127) / 128 * 128;
    }
    if (!fv_cuda_megakernel_fit(p, device_of(s)->max_smem) ||
        (p->uses_flags && !connect(s, g, o))) {
        p->x_bytes = x_bytes, p->slots = slots;
        return false;
    }
    if (o->kind == GEMM) {
        o->gemm.first = g->first;
        g->first = (g->first + o->gemm.tiles) % p->wide;
    }
    p->op[p->n++] = *o;
    return true;
}

static bool accept(fv_stream *s, mk_op *o, int64_t rows)
{
    stream_state *l = stream_state_of(s);
    if (!l->deferred && !(l->deferred = new (std::nothrow) megakernel{})) return false;
    megakernel *g = l->deferred;
    if (g->p.n == MAX_OPS || (g->p.n && g->p.rows != rows)) fv_cuda_launch_deferred(s);
    if (!g->p.n) clear(s, g, rows);
    bool done = add(s, g, o);
    if (!done && g->p.n) { /* by itself it may go */
        fv_cuda_launch_deferred(s);
        clear(s, g, rows);
        done = add(s, g, o);
    }
    if (!l->capturing) fv_cuda_launch_deferred(s);
    return done;
}

/* By warps it is made here even if nothing is kept, so that the numbers are the same. */
template <class T>
static bool attention_defer(fv_stream *s, const decode_job<T> &j, op_kind kind,
                            decode_attention<T> mk_op::*of)
{
    int64_t heads = j.o.a.B * j.o.a.H;
    bool by_warp = j.o.a.B > FLAGGED_MAX_ROWS && heads > 2 * (int64_t)device_of(s)->sm_count;
    if (!device_of(s)->hopper || j.o.a.Wk != MEGAKERNEL_HEAD || j.o.a.B > MAX_ROWS) return false;
    if (!stream_state_of(s)->capturing && !by_warp) return false;
    mk_op o = {};
    o.kind = kind;
    o.span = 1;
    o.to = {NULL, true};
    (decode_job<T> &)(o.*of) = j;
    (o.*of).by_warp = by_warp;
    return accept(s, &o, j.o.a.B);
}

bool fv_cuda_defer(fv_stream *s, const decode_job<float> &j)
{
    return attention_defer(s, j, ATTENTION, &mk_op::attention);
}

bool fv_cuda_defer(fv_stream *s, const decode_job<bf16> &j)
{
    return attention_defer(s, j, ATTENTION_BF16, &mk_op::attention_bf16);
}

bool fv_cuda_defer(fv_stream *s, const row_job &j)
{
    int64_t tiles = ceil_div(j.a.n, TILE);
    bool even = !j.a.k_cache || (j.a.y_n % 2 == 0 && (j.a.n - j.a.y_n) % 4 == 0);
    if (!device_of(s)->hopper || j.a.rows > MAX_ROWS || j.k % STEP || !even) return false;
    if (tiles > INT32_MAX / TILE || j.a.cap > INT32_MAX ||
        !aligned(j.a.y, j.a.k_cache, j.a.v_cache))
        return false;
    mk_op o = {};
    o.kind = GEMM;
    o.span = 1;
    o.to = {NULL, true};
    decode_gemm &f = o.gemm;
    (row_job &)f = j;
    f.tiles = (int)tiles;
    f.bias_in_slot = j.a.bias && j.a.n % TILE == 0 && aligned(j.a.bias);
    f.chunk = (int)ceil_div(ceil_div(j.k, ceil_div(j.k, MAX_CHUNK)), STEP) * STEP;
    f.streams = j.a.rows > FLAGGED_MAX_ROWS && j.a.xt == FV_BF16 && j.k > f.chunk;
    int64_t teams = ceil_div(j.a.rows, ROWS_BLOCK), wide = device_of(s)->sm_count / teams;
    /* Apart, a tile goes to one place as a whole. */
    bool simple = !j.a.add &&
                  (!j.a.k_cache || (j.a.y_n % TILE == 0 && (j.a.n - j.a.y_n) % (2 * TILE) == 0 &&
                                    j.a.rows * j.a.cap <= INT32_MAX));
    f.apart = simple && j.a.rows > FLAGGED_MAX_ROWS && j.k <= MAX_CHUNK && tiles > GROUP * wide;
    /* Of very many columns, as a vocabulary has, two teams together read the weights once. */
    if (f.apart && teams > 1 && !j.a.act && !j.a.k_cache && tiles >= 8 * device_of(s)->sm_count)
        o.span = 2;
    return accept(s, &o, j.a.rows);
}
