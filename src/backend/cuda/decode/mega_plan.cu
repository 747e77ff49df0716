/* mega_plan.cu - the planner of the decode megakernel: while a step is captured, fused linear
 * layers and attentions are deferred as op descriptors and launched together before the next
 * kernel that is not one of them (stream_of).
 *
 * Which op may join a launch, and what it waits for, is found by mega_dataflow.cu. */
#include <new>

#include "mega_plan.h"

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
    case GEMM:
        return (is_paired(o.gemm.a) ? NEEDS_PAIRS : 0) |
               (o.gemm.a.residual_norm ? NEEDS_POST_NORM : 0) |
               (o.gemm.a.wt == FV_Q8 ? NEEDS_Q8 : 0) | (o.gemm.a.wt == FV_Q4 ? NEEDS_Q4 : 0);
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

/* An instance of the kernel knows weights of one kind. */
bool same_weights(const mk_ops &p, const mk_op &o)
{
    bool any = false;
    for (int i = 0; i < p.n; i++) any |= p.op[i].kind == GEMM;
    return o.kind != GEMM || !any || weights_of(p.needs) == o.gemm.a.wt;
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
    if (!same_weights(*p, *o) || (turned.freq && !same_rope(*p, turned))) return false;
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
        if (is_quantised(f.a.wt) && p->rows == 1) x += f.k / QUANT_BLOCK * X_SCALE_BYTES;
        if (f.tile_per_warp) /* interleaved, whether all rows are there or not */
            x = (int)ceil_div(rows, ROWS_BLOCK) * ROWS_BLOCK * (f.k + 4) * 2;
        if (x > p->x_bytes) p->x_bytes = (x + 127) / 128 * 128;
    }
    if (!fv_cuda_megakernel_fit(p, device_of(s)->max_smem) ||
        (p->uses_flags && !fv_cuda_megakernel_connect(s, g, o))) {
        p->x_bytes = x_bytes, p->turn_bytes = turn_bytes, p->rope = rope;
        fv_cuda_megakernel_fit(p, device_of(s)->max_smem);
        return false;
    }
    if (!p->uses_flags) fv_cuda_megakernel_separate(g, o);
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
    bool quantised = is_quantised(j.a.wt);
    if (!device_of(s)->hopper || j.a.rows > MAX_ROWS || j.k % STEP || !even) return false;
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
    f.bias_in_slot = j.a.bias && !paired && !quantised && j.a.n % TILE == 0 && aligned(j.a.bias);
    int most = j.a.rows > FLAGGED_MAX_ROWS ? MAX_CHUNK : max_chunk(j.a.wt);
    f.chunk = (int)ceil_div(ceil_div(j.k, ceil_div(j.k, most)), STEP) * STEP;
    if (j.a.rows == 1) f.chunk = j.k < most ? j.k : most; /* mega_one_row.h's rounds */
    f.stream_x = j.a.rows > FLAGGED_MAX_ROWS && j.a.xt == FV_BF16;
    int64_t groups = ceil_div(j.a.rows, ROWS_BLOCK), blocks = device_of(s)->sm_count / groups;
    /* with a tile per warp, a tile must lie as a whole in y or in one cache */
    bool simple = !j.a.residual && j.a.xt != FV_BF16 &&
                  (!j.a.k_cache || (j.a.y_n % TILE == 0 && (j.a.n - j.a.y_n) % (2 * TILE) == 0));
    f.tile_per_warp = simple && j.a.rows > FLAGGED_MAX_ROWS && j.k <= MAX_CHUNK &&
                      tiles > GROUP * blocks;
    /* a vocabulary: two groups together read the weights once */
    if (f.tile_per_warp && groups > 1 && !j.a.act && !paired && !j.a.k_cache &&
        tiles >= 8 * device_of(s)->sm_count)
        o.groups = 2;
    return defer_op(s, &o, j.a.rows);
}
