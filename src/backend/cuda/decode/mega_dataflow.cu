/* mega_dataflow.cu - what an op of the decode megakernel reads, what it writes and what it must
 * wait for, found from addresses while a step is captured.
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
#include "mega_plan.h"

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
            bool own_residual = i == n.onto && &r == &o.read[1] && r.is(n.y) &&
                                !g->p.op[i].gemm.a.residual_norm;
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

/* y and the appended keys and values are written, x and the residual, which may be y, are read. */
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
    n->read[1] = range_of(a.residual, a.rows, a.n * (int64_t)sizeof(float));
    n->row_words = a.n % 2 == 0 && a.rows * a.n <= FLAGGED_WORDS ? a.n : 0;
}

/* Of the residual a block waits for its own columns only: then what the op that made it had waited
 * for is done.  Of one that lacks its norm it waits for whole rows. */
bool gemm_inputs(fv_stream *s, megakernel *g, op_access *n, decode_gemm *f)
{
    if (!connect_input(s, g, n, &n->read[0], f->a.k, &f->in)) return false;
    op_set before = n->before;
    n->onto = f->a.residual ? writer_of(g, n->read[1]) : -1;
    if (!connect_input(s, g, n, &n->read[1], f->a.n, &f->y_in)) return false;
    if (!f->a.residual_norm) n->before = n->onto >= 0 ? before | g->access[n->onto].before : before;
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

} // namespace

bool fv_cuda_megakernel_connect(fv_stream *s, megakernel *g, mk_op *o)
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

void fv_cuda_megakernel_separate(megakernel *g, mk_op *o)
{
    op_access n = access_of(*o);
    o->grid_barrier = false;
    for (int i = g->met; i < g->p.n && !o->grid_barrier; i++)
        o->grid_barrier = crosses_groups(n, g->access[i]);
    if (o->grid_barrier) g->met = g->p.n;
    o->round = g->p.n ? ++g->rounds[o->grid_barrier ? 2 : o->groups - 1] : 0;
    g->access[g->p.n] = n;
}
