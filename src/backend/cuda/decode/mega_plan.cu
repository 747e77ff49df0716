/* mega_plan.cu - the planner of the decode megakernel: while a step is captured, fused linear
 * layers and attentions are deferred as op descriptors and launched together before the next
 * kernel that is not one of them (stream_of).
 *
 * The planner tracks what memory each op reads and writes.
 *
 * Many rows, with barriers of a group of blocks between ops: an op never reads another row, so
 * groups need not wait for one another, as long as rows are where they were.  But the arena gives
 * the memory of one tensor to the next, whose rows have another width: one group's logits may lie
 * where another, which is still in the last layer, has its activations.  Before an op that
 * overlaps an earlier one so, all groups meet (crosses_groups, mk_op::grid_barrier): in practice
 * once a step, before the logits.
 *
 * Few rows, with flagged words: ops overlap in time, so
 *   - a result of an earlier op of this launch must be read through its flagged words, as a whole;
 *   - an op may write global memory only if no op that might still be running reads or writes it.
 * `before` holds the ops known to have finished by dataflow.  Where a rule fails, the ops so far
 * are launched and the new one starts the next launch.
 *
 * Dataflow is found from addresses at capture time.  Declaring it in the ops layer instead would
 * make every family spell out its graph. */
#include <bitset>
#include <new>

#include "mega.h"
#include "mega_region.h"

#define MAX_AFTER 32
#define MAX_OPS (int)(sizeof(mk_ops::op) / sizeof(mk_op))

namespace
{

typedef std::bitset<MAX_OPS> op_set;

/* Memory accesses and dependencies of an op.
 *    op        reads                 writes                 through flagged words
 *    qkv       x                     q, K cache, V cache    q (and this step's k, v)
 *    heads     q, k, v               likewise               likewise
 *    attention q, caches             y                      y
 *    out       y, x (residual)       x                      x */
struct op_access {
    /* writes: the result, which may also go to flagged words; caches and scratch, which do not */
    region y, other_writes[3];
    region read[3];    /* global memory not written in this launch */
    int64_t row_words; /* flagged words per row of the result; 0: none */
    /* ops that have finished when this one stores its first value; when it has stored all */
    op_set before, all_before;
    int onto;       /* the op that made a GEMM's residual, or -1 */
    op_set readers; /* of its flagged words */
    int area;       /* of its flagged words, or -1 */
};
} // namespace

struct megakernel {
    mk_ops p;
    int next_block; /* first block of the next GEMM: balances the tiles of successive ones */
    op_access access[MAX_OPS];
    int owner[FLAGGED_AREAS];      /* the last op that writes to an area, or -1 */
    int rounds[3];                 /* barriers so far: of a group, of two, of all */
    int met;                       /* the last op before which all groups met; 0: the first */
    weights_rows after[MAX_AFTER]; /* launched behind the ops */
    int n_after;
    size_t kept; /* bytes of the device's that hold queries for them */
};

void fv_cuda_launch_deferred(fv_stream *s)
{
    megakernel *g = stream_state_of(s)->deferred;
    for (int i = 0; i < g->p.n; i++)
        if (g->access[i].readers.none()) g->p.op[i].out.area = NULL; /* saves the stores */
    if (g->p.n && !s->err.code) fv_cuda_megakernel_launch(s, g->p);
    int n = s->err.code ? 0 : g->n_after;
    g->p.n = g->n_after = 0; /* first: each launch asks for the stream, and so comes here */
    g->kept = 0;
    for (int i = 0; i < n; i++) fv_cuda_weights_launch(s, g->after[i]);
}

void fv_cuda_megakernel_free(megakernel *p) { delete p; }

namespace
{

/* ---- dataflow ---- */

bool writes_besides_y(const op_access &n, const region &r)
{
    for (const region &w : n.other_writes)
        if (w.overlaps(r)) return true;
    return false;
}

/* The op whose result is exactly this region; -1: not written in this launch; -2: written, but not
 * available as flagged words. */
int writer_of(const megakernel *g, const region &r)
{
    for (int i = g->p.n - 1; i >= 0; i--) {
        const op_access &n = g->access[i];
        if (n.y.overlaps(r)) return n.y.is(r) && n.area >= 0 ? i : -2;
        if (writes_besides_y(n, r)) return -2;
    }
    return -1;
}

flagged_word *area_at(fv_stream *s, int area)
{
    return device_of(s)->flagged + (int64_t)area * FLAGGED_WORDS;
}

/* Resolves a read of r, rows of row_words, to an op's flagged words or global memory.  False: r was
 * written in this launch but cannot be read through flagged words. */
bool connect_input(fv_stream *s, megakernel *g, op_access *n, region *r, int64_t row_words,
                   mk_input *from)
{
    int op = writer_of(g, *r);
    *from = {NULL, 0};
    if (op == -1) return true;
    if (op < 0 || g->access[op].row_words != row_words) return false;
    *from = {area_at(s, g->access[op].area), op};
    *r = {};
    n->before |= g->access[op].all_before;
    n->before.set((size_t)op);
    g->access[op].readers.set((size_t)g->p.n);
    return true;
}

/* Every op that reads or writes what n writes has finished by then. */
bool writes_are_safe(const megakernel *g, const op_access &n)
{
    auto writes = [&](const region &r) { return n.y.overlaps(r) || writes_besides_y(n, r); };
    for (int i = 0; i < g->p.n; i++) {
        const op_access &o = g->access[i];
        if (n.before[(size_t)i]) continue;
        for (const region &r : o.read) {
            /* each element's sum was made from what was there before it is written again */
            bool own_residual = i == n.onto && &r == &o.read[1] && r.is(n.y);
            if (!own_residual && writes(r)) return false;
        }
        for (const region &w : o.other_writes)
            if (writes(w)) return false;
        if (writes_besides_y(n, o.y)) return false;
    }
    return true;
}

/* Whether a group in op n could meet, in its own rows, what another group that is still in op o
 * reads or writes. */
bool crosses_groups(const op_access &n, const op_access &o)
{
    auto any = [](const op_access &writer, const region &r) {
        if (writer.y.crosses_rows(r)) return true;
        for (const region &w : writer.other_writes)
            if (w.crosses_rows(r)) return true;
        return false;
    };
    for (const region &r : o.read)
        if (any(n, r)) return true;
    for (const region &r : n.read)
        if (any(o, r)) return true;
    for (const region &w : o.other_writes)
        if (any(n, w)) return true;
    return any(n, o.y);
}

/* An area whose writer and readers have finished before this op stores; -1: none is free.
 * Areas are reused like registers: one is free when its writer and all readers are known to be
 * done.  One that nobody has read yet may still be wanted, and is taken last. */
int free_area(const megakernel *g, const op_access &n)
{
    int unread = -1;
    for (int a = 0; a < FLAGGED_AREAS; a++) {
        if (g->owner[a] < 0) return a;
        op_set in_use = g->access[g->owner[a]].readers;
        bool read = in_use.any();
        in_use.set((size_t)g->owner[a]);
        if ((in_use & ~n.before).any()) continue;
        if (read) return a;
        unread = a;
    }
    return unread;
}

/* ---- accesses of each kind of op ---- */

/* y and the appended keys and values are written, x is read; the residual is y itself. */
void gemm_access(op_access *n, const decode_gemm &f)
{
    const fv_fused_linear &a = f.a;
    int64_t y_n = a.k_cache ? a.y_n : a.n, half = (a.n - y_n) / 2, size = a.yt == FV_BF16 ? 2 : 4;
    n->y = range_of(a.y, a.rows, y_n * size);
    void *const cache[] = {a.k_cache, a.v_cache};
    for (int i = 0; i < 2; i++)
        n->other_writes[i] = cache_range(cache[i], a.rows, a.cache_batch * size, a.cap,
                                         a.cache_row * size, half * size);
    n->read[0] = range_of(a.x, a.rows, a.k * (a.xt == FV_BF16 ? 2 : 4));
    n->row_words = a.n % 2 == 0 && a.rows * a.n <= FLAGGED_WORDS ? a.n : 0;
}

/* Of the residual a block waits for its own columns only: then what the op that made it had waited
 * for is done. */
bool gemm_inputs(fv_stream *s, megakernel *g, op_access *n, decode_gemm *f)
{
    if (f->a.add) n->read[1] = n->y;
    if (!connect_input(s, g, n, &n->read[0], f->a.k, &f->in)) return false;
    op_set before = n->before;
    n->onto = f->a.add ? writer_of(g, n->read[1]) : -1;
    if (!connect_input(s, g, n, &n->read[1], f->a.n, &f->y_in)) return false;
    n->before = n->onto >= 0 ? before | g->access[n->onto].before : before;
    n->all_before = n->before;
    /* every block has a tile of this op, so it is done with all that came before it */
    for (int i = 0; i < g->p.n && f->tiles >= g->p.group_blocks; i++) n->all_before.set((size_t)i);
    return true;
}

void heads_access(op_access *n, const decode_heads &f)
{
    const fv_fused_heads &a = f.a;
    int64_t size = a.yt == FV_BF16 ? 2 : 4, width = (int64_t)(a.H + 2 * a.G) * a.W;
    n->y = range_of(a.y, a.rows, (int64_t)a.H * a.W * size);
    void *const cache[] = {a.k_cache, a.v_cache};
    for (int i = 0; i < 2; i++)
        n->other_writes[i] = cache_range(cache[i], a.rows, a.cache_batch * size, a.cap,
                                         a.cache_row * size, (int64_t)a.G * a.W * size);
    n->read[0] = range_of(a.x, a.rows, width * (int64_t)sizeof(float));
    n->row_words = a.rows * width <= FLAGGED_WORDS ? width : 0;
}

/* A head waits for its own part of the product. */
bool heads_inputs(fv_stream *s, megakernel *g, op_access *n, decode_heads *f)
{
    int op = writer_of(g, n->read[0]);
    if (!connect_input(s, g, n, &n->read[0], (int64_t)(f->a.H + 2 * f->a.G) * f->a.W, &f->in))
        return false;
    n->all_before = n->before;
    n->before = op >= 0 ? g->access[op].before : op_set();
    return true;
}

template <class T> void attention_access(op_access *n, const decode_attention<T> &f)
{
    const fv_attn_args &a = f.attn.a;
    int64_t size = (int64_t)sizeof(T);
    n->y = range_of(a.y, a.B, a.H * a.Wv * size);
    n->other_writes[0] = range_of(a.lse, a.B, a.H * (int64_t)sizeof(float2));
    n->other_writes[1] = range_of(f.sums, a.B, a.H * f.parts * (a.Wv + 2) * 4);
    n->read[0] = range_of(a.q, a.B, a.q_batch * size);
    n->read[0].end += a.H * a.Wk * size - n->read[0].row; /* without the last gap */
    n->read[1] = cache_range(a.k, a.B, a.k_batch * size, a.Tk, a.k_row * size, a.G * a.Wk * size);
    n->read[2] = cache_range(a.v, a.B, a.v_batch * size, a.Tk, a.v_row * size, a.G * a.Wv * size);
    n->row_words = a.H * a.Wv % 2 == 0 && a.B * a.H * a.Wv <= FLAGGED_WORDS ? a.H * a.Wv : 0;
}

/* What an op appends to KV caches; width: elements of a row of its q, k and v.  k NULL: nothing. */
struct appended {
    const void *k, *v;
    int64_t rows, width, q, kv, cache_row, cache_batch;
    fv_dtype dtype;
    const int32_t *pos;
};

appended appended_by(const mk_op &o)
{
    if (o.kind == HEADS) {
        const fv_fused_heads &a = o.heads.a;
        int64_t q = (int64_t)a.H * a.W, kv = (int64_t)a.G * a.W;
        return {a.k_cache, a.v_cache,   a.rows,        q + 2 * kv, q,
                kv,        a.cache_row, a.cache_batch, a.yt,       a.pos};
    }
    if (o.kind != GEMM) return {};
    const fv_fused_linear &a = o.gemm.a;
    return {a.k_cache,         a.v_cache,   a.rows,        a.n,  a.y_n,
            (a.n - a.y_n) / 2, a.cache_row, a.cache_batch, a.yt, a.pos};
}

/* Whether op number `op` appends this step's key and value to the caches this attention reads. */
template <class T>
bool writes_cache(const megakernel *g, const decode_attention<T> &f, int op, appended *w)
{
    const fv_attn_args &a = f.attn.a;
    if (op < 0) return false;
    *w = appended_by(g->p.op[op]);
    return w->dtype == kind<T>::dtype && w->k == a.k && w->v == a.v && w->k && w->rows == a.B &&
           w->q == a.H * a.Wk && w->kv == a.G * a.Wk && a.Wk == a.Wv && a.k_row == w->cache_row &&
           a.v_row == w->cache_row && a.k_batch == w->cache_batch && a.v_batch == w->cache_batch;
}

/* q (and with a QKV projection in this launch the newest k and v) from flagged words; the rest of
 * the caches from global memory. */
template <class T>
bool attention_inputs(fv_stream *s, megakernel *g, op_access *n, decode_attention<T> *f)
{
    const fv_attn_args &a = f->attn.a;
    int op = writer_of(g, n->read[0]);
    appended w = {};
    bool appends = writes_cache(g, *f, op, &w);
    if (op >= 0 && a.q_batch != a.H * a.Wk) return false;
    f->row_width = appends ? (int)w.width : (int)(a.H * a.Wk);
    f->pos = appends ? w.pos : NULL;
    if (!connect_input(s, g, n, &n->read[0], f->row_width, &f->in)) return false;
    n->all_before = n->before;
    n->before = op >= 0 ? g->access[op].before : op_set(); /* a head waits for its own part only */
    for (int i = 1; i < 3; i++) /* no other op may have written to the caches */
        for (int o = 0; o < g->p.n; o++)
            if ((o != op || !appends) &&
                (g->access[o].y.overlaps(n->read[i]) || writes_besides_y(g->access[o], n->read[i])))
                return false;
    return true;
}

op_access access_of(const mk_op &o)
{
    op_access n = {};
    n.area = n.onto = -1;
    switch (o.kind) {
    case GEMM: gemm_access(&n, o.gemm); break;
    case HEADS: heads_access(&n, o.heads); break;
    case ATTENTION: attention_access(&n, o.attention); break;
    case ATTENTION_BF16: attention_access(&n, o.attention_bf16); break;
    }
    return n;
}

/* Resolves the op's inputs; false: one of them cannot be. */
bool resolve(fv_stream *s, megakernel *g, op_access *n, mk_op *o)
{
    switch (o->kind) {
    case GEMM: return gemm_inputs(s, g, n, &o->gemm);
    case HEADS: return heads_inputs(s, g, n, &o->heads);
    case ATTENTION: return attention_inputs(s, g, n, &o->attention);
    case ATTENTION_BF16: return attention_inputs(s, g, n, &o->attention_bf16);
    }
    return false;
}

/* ---- appending an op ---- */

/* Few rows: connects the op to those before it; false: it cannot join this launch. */
bool connect(fv_stream *s, megakernel *g, mk_op *o)
{
    op_access n = access_of(*o);
    o->out = {NULL, true};
    if (!resolve(s, g, &n, o) || !writes_are_safe(g, n)) return false;
    n.area = n.row_words ? free_area(g, n) : -1;
    if (n.area >= 0) {
        g->owner[n.area] = g->p.n;
        for (int i = 0; i < g->p.n; i++)
            if (g->access[i].area == n.area) g->access[i].area = -1;
        o->out.area = area_at(s, n.area);
    }
    for (int i = 0; i < g->p.n; i++)
        if (g->access[i].y.overlaps(n.y)) g->p.op[i].out.to_global = false;
    g->access[g->p.n] = n;
    return true;
}

/* Many rows: the barrier before the op, and whether all groups must meet there. */
void separate(megakernel *g, mk_op *o)
{
    op_access n = access_of(*o);
    o->grid_barrier = false;
    for (int i = g->met; i < g->p.n && !o->grid_barrier; i++)
        o->grid_barrier = crosses_groups(n, g->access[i]);
    if (o->grid_barrier) g->met = g->p.n;
    o->round = g->p.n ? ++g->rounds[o->grid_barrier ? 2 : o->groups - 1] : 0;
    g->access[g->p.n] = n;
}

/* An empty launch for batches of so many rows. */
void reset(fv_stream *s, megakernel *g, int64_t rows)
{
    device *d = device_of(s);
    g->p.n = g->p.x_bytes = g->p.turn_bytes = g->next_block = g->met = 0;
    g->p.needs = 0;
    g->p.rope = {};
    g->p.rows = (int)rows;
    g->p.group_blocks = d->sm_count / (int)ceil_div(rows, ROWS_BLOCK);
    g->p.uses_flags = rows <= FLAGGED_MAX_ROWS;
    g->p.counters = (mk_counters *)(d->tickets + TICKETS);
    for (int &n : g->rounds) n = 0;
    for (int &o : g->owner) o = -1;
}

/* Tiles are not 8 neighbouring columns: gated or rotated. */
bool is_paired(const fv_fused_linear &a) { return a.up || a.rope.freq; }

int needs_of(const mk_op &o)
{
    switch (o.kind) {
    case GEMM: return is_paired(o.gemm.a) ? NEEDS_PAIRS : 0;
    case HEADS: /* pairs: the table of rotations */
        return NEEDS_PAIRS | NEEDS_HEADS | (o.heads.a.W == 256 ? NEEDS_WIDEST_HEADS : 0);
    case ATTENTION: return NEEDS_F32_CACHE;
    case ATTENTION_BF16:
        return o.attention_bf16.attn.a.Wk == 128   ? NEEDS_WIDE_HEADS
               : o.attention_bf16.attn.a.Wk == 256 ? NEEDS_WIDEST_HEADS
                                                   : 0;
    }
    return NEEDS_ALL;
}

/* The launch has one table of rotations: false where the layer turns by other angles. */
bool same_rope(const mk_ops &p, const fv_fused_rope &r)
{
    const fv_fused_rope &o = p.rope;
    bool same = o.freq == r.freq && o.pos == r.pos && o.freq_row == r.freq_row && o.half == r.half;
    return !o.freq || same;
}

/* How the op rotates. */
fv_fused_rope rope_of(const mk_op &o)
{
    return o.kind == GEMM ? o.gemm.a.rope : o.kind == HEADS ? o.heads.a.rope : fv_fused_rope{};
}

/* Appends the op if smem suffices and its dataflow can be resolved. */
bool append(fv_stream *s, megakernel *g, mk_op *o)
{
    mk_ops *p = &g->p;
    const fv_fused_rope turned = rope_of(*o);
    int last = p->n ? p->op[p->n - 1].groups : 1;
    if (turned.freq && !same_rope(*p, turned)) return false;
    /* groups once paired stay paired: they no longer pass the barriers of a single group */
    if (o->groups < last) return false;
    const fv_fused_rope rope = p->rope;
    const int turn_bytes = p->turn_bytes, x_bytes = p->x_bytes;
    if (turned.freq) {
        p->rope = turned;
        p->turn_bytes = ROWS_BLOCK * p->rope.half * (int)sizeof(float2);
    }
    if (o->kind == GEMM) {
        const decode_gemm &f = o->gemm;
        int most = o->groups * ROWS_BLOCK, rows = (int)(f.a.rows < most ? f.a.rows : most);
        int stages = f.k > f.chunk ? STAGES : 1;
        int x = rows * (f.stream_x ? stages * (f.chunk + 32) : f.k + 32) * 2;
        if (f.tile_per_warp) /* interleaved, whether all rows are there or not */
            x = (int)ceil_div(rows, ROWS_BLOCK) * ROWS_BLOCK * (f.k + 4) * 2;
        if (x > p->x_bytes) p->x_bytes = (x + 127) / 128 * 128;
    }
    if (!fv_cuda_megakernel_fit(p, device_of(s)->max_smem) ||
        (p->uses_flags && !connect(s, g, o))) {
        p->x_bytes = x_bytes, p->turn_bytes = turn_bytes, p->rope = rope;
        fv_cuda_megakernel_fit(p, device_of(s)->max_smem);
        return false;
    }
    if (!p->uses_flags) separate(g, o);
    p->needs |= needs_of(*o);
    if (o->kind == GEMM) {
        o->gemm.first_block = g->next_block;
        g->next_block = (g->next_block + o->gemm.tiles) % p->group_blocks;
    }
    p->op[p->n++] = *o;
    return true;
}

/* Appends an op, launching what is deferred first if it does not fit; outside a capture the op is
 * launched at once. */
bool defer_op(fv_stream *s, mk_op *o, int64_t rows)
{
    stream_state *l = stream_state_of(s);
    if (!l->deferred && !(l->deferred = new (std::nothrow) megakernel{})) return false;
    megakernel *g = l->deferred;
    if (g->p.n == MAX_OPS || (g->p.n && g->p.rows != rows)) fv_cuda_launch_deferred(s);
    if (!g->p.n) reset(s, g, rows);
    bool done = append(s, g, o);
    if (!done && g->p.n) { /* as the first op of the next launch */
        fv_cuda_launch_deferred(s);
        reset(s, g, rows);
        done = append(s, g, o);
    }
    if (!l->capturing) fv_cuda_launch_deferred(s);
    return done;
}

/* The by_warp variant runs here even outside a capture: eager and captured steps must give the same
 * bits. */
template <class T>
bool attention_defer(fv_stream *s, const decode_job<T> &j, op_kind kind,
                     decode_attention<T> mk_op::*of)
{
    int64_t heads = j.attn.a.B * j.attn.a.H;
    bool many = j.attn.a.B > FLAGGED_MAX_ROWS,
         by_warp = many && heads > 2 * (int64_t)device_of(s)->sm_count;
    if (many && j.attn.a.Wk > MOST_BY_WARP) return false; /* blocks of its own are faster */
    if (!device_of(s)->hopper || !megakernel_head<T>(j.attn.a.Wk) || j.attn.a.B > MAX_ROWS)
        return false;
    if (!stream_state_of(s)->capturing && !by_warp) return false;
    if (sizeof(T) == 2 && !j.attn.plain) return false; /* the kernel has no code for it */
    mk_op o = {};
    o.kind = kind;
    o.groups = 1;
    o.out = {NULL, true};
    (decode_job<T> &)(o.*of) = j;
    (o.*of).by_warp = by_warp;
    return defer_op(s, &o, j.attn.a.B);
}
} // namespace

bool fv_cuda_defer(fv_stream *s, const decode_job<float> &j)
{
    return attention_defer(s, j, ATTENTION, &mk_op::attention);
}

bool fv_cuda_defer(fv_stream *s, const decode_job<bf16> &j)
{
    return attention_defer(s, j, ATTENTION_BF16, &mk_op::attention_bf16);
}

/* Weights of the attention that was deferred last: launching them here would cut the step in two.
 * They wait for the end of the launch, with copies of its queries. */
bool fv_cuda_defer(fv_stream *s, const weights_rows &w)
{
    megakernel *g = stream_state_of(s)->deferred;
    const fv_attn_args &a = w.attn.a;
    if (!g || !g->p.n || g->p.uses_flags || g->n_after == MAX_AFTER) return false;
    mk_op *o = &g->p.op[g->p.n - 1];
    int64_t row = a.H * a.Wk;
    size_t bytes = (size_t)(a.B * row) * sizeof(bf16);
    bool same = o->kind == ATTENTION_BF16 && o->attention_bf16.attn.a.q == a.q &&
                o->attention_bf16.attn.a.k == a.k && w.attn.vector_q;
    if (!same || o->attention_bf16.kept || bytes > KEPT_BYTES - g->kept) return false;
    void *kept = (char *)(device_of(s)->tickets + TICKETS + MEGAKERNEL_TICKETS) + g->kept;
    o->attention_bf16.kept = (bf16 *)kept;
    weights_rows *to = &g->after[g->n_after++];
    *to = w;
    to->attn.a.q = kept;
    to->attn.a.q_batch = to->attn.a.q_row = row;
    g->kept += (bytes + 255) / 256 * 256;
    return true;
}

bool fv_cuda_defer(fv_stream *s, const heads_job &j)
{
    if (!device_of(s)->hopper || j.a.rows > MAX_ROWS || !megakernel_head<bf16>(j.a.W)) return false;
    mk_op o = {};
    o.kind = HEADS;
    o.groups = 1;
    o.out = {NULL, true};
    (heads_job &)o.heads = j;
    return defer_op(s, &o, j.a.rows);
}

/* Chooses the variant of a GEMM op: chunk of K per slot, x streamed or resident, split-K or a tile
 * per warp, one block group or two. */
bool fv_cuda_defer(fv_stream *s, const row_job &j)
{
    int64_t tiles = ceil_div(j.columns, TILE);
    bool paired = is_paired(j.a);
    bool even = !j.a.k_cache || (j.a.y_n % 2 == 0 && (j.a.n - j.a.y_n) % 4 == 0 &&
                                 j.a.cache_row % 2 == 0 && j.a.cache_batch % 2 == 0);
    if (!device_of(s)->hopper || j.a.wt != FV_BF16 || j.a.rows > MAX_ROWS || j.k % STEP || !even)
        return false;
    if (tiles > INT32_MAX / TILE || j.a.cap > INT32_MAX ||
        !aligned(j.a.y, j.a.k_cache, j.a.v_cache))
        return false;
    mk_op o = {};
    o.kind = GEMM;
    o.groups = 1;
    o.out = {NULL, true};
    decode_gemm &f = o.gemm;
    (row_job &)f = j;
    f.tiles = (int)tiles;
    f.bias_in_slot = j.a.bias && !paired && j.a.n % TILE == 0 && aligned(j.a.bias);
    f.chunk = (int)ceil_div(ceil_div(j.k, ceil_div(j.k, MAX_CHUNK)), STEP) * STEP;
    if (j.a.rows == 1) f.chunk = j.k < MAX_CHUNK ? j.k : MAX_CHUNK; /* mega_one_row.h's rounds */
    f.stream_x = j.a.rows > FLAGGED_MAX_ROWS && j.a.xt == FV_BF16;
    int64_t groups = ceil_div(j.a.rows, ROWS_BLOCK), blocks = device_of(s)->sm_count / groups;
    /* with a tile per warp, a tile must lie as a whole in y or in one cache */
    bool simple = !j.a.add && j.a.xt != FV_BF16 &&
                  (!j.a.k_cache || (j.a.y_n % TILE == 0 && (j.a.n - j.a.y_n) % (2 * TILE) == 0));
    f.tile_per_warp = simple && j.a.rows > FLAGGED_MAX_ROWS && j.k <= MAX_CHUNK &&
                      tiles > GROUP * blocks;
    /* a vocabulary: two groups together read the weights once */
    if (f.tile_per_warp && groups > 1 && !j.a.act && !paired && !j.a.k_cache &&
        tiles >= 8 * device_of(s)->sm_count)
        o.groups = 2;
    return defer_op(s, &o, j.a.rows);
}
