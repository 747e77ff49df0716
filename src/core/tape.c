/* tape.c - recording ops and running them backwards.
 *
 * Nodes form a list, newest first; backward walks it once.  When a node has run, nothing that is
 * still to come can need its output or that output's gradient: everything that read them was
 * recorded later, so has run already.  Their memory is handed to the gradients that follow, which
 * keeps the peak near that of the forward pass alone. */
#include "core.h"
#include "params.h"

/* One block of host memory for a node: [ fv_node and the op's own fields | pointers to inputs ].
 * NULL means that nothing is recorded, because no input wants a gradient: the op then keeps
 * nothing either. */
void *fv_record_n(fv_ctx *c, const char *op, size_t size, void (*backward)(fv_ctx *, fv_node *),
                  fv_tensor *y, int n_in, fv_tensor **in)
{
    bool wanted = false;
    if (!y || fv__failed(c)) return NULL;
    for (int i = 0; i < n_in; i++) {
        const fv_entry *t = in[i] && in[i]->is_param ? (const fv_entry *)in[i] : NULL;
        if (t && t->store && !t->fetched)
            return fv_raise(c, FV_EMISSING, "%s reads %s, which ranks share: it has no way to", op,
                            in[i]->name);
    }
    if (!c->record) return NULL;
    for (int i = 0; i < n_in; i++) wanted = wanted || (in[i] && in[i]->wants_grad);
    if (!wanted) return NULL;
    if (!backward)
        return fv_raise(
            c, FV_ESTATE,
            "%s has no gradient, but its input wants one; fv_detach the input if that is meant",
            op);

    size_t at = (size + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
    fv_node *n = fv__arena_alloc(&c->host, at + (size_t)n_in * sizeof *in);
    if (!n) return fv_raise(c, FV_ENOMEM, "%s: out of memory", op);
    memset(n, 0, size);
    n->in = (fv_tensor **)(void *)((char *)n + at);
    memcpy(n->in, in, (size_t)n_in * sizeof *in);
    n->n_in = n_in;
    n->backward = backward;
    n->y = y;
    n->prev = c->tape;
    c->tape = n;
    y->wants_grad = true;
    return n;
}

/* ---- memory that comes free on the way back ---- */

/* Spare blocks are handed out only during backward, and forgotten at the next reset; they stay
 * parts of the arena throughout. */
void fv__block_free(fv_ctx *c, void *data, size_t bytes)
{
    void *array = c->spare;
    if (!data || !bytes) return;
    /* only less reuse */
    if (!fv__grow(&c->dev->env, &array, &c->spare_capacity, (c->n_spare + 1) * sizeof *c->spare))
        return;
    c->spare = array;
    c->spare[c->n_spare++] = (fv_block){data, bytes};
}

/* The smallest block that fits and wastes at most an eighth, else fresh memory.
 * An eighth: a looser fit would let small gradients take large blocks that a later one needs. */
void *fv__block_alloc(fv_ctx *c, size_t bytes)
{
    size_t best = c->n_spare;
    for (size_t i = 0; c->backward && i < c->n_spare; i++) {
        size_t have = c->spare[i].bytes;
        if (have >= bytes && have - bytes <= bytes / 8 &&
            (best == c->n_spare || have < c->spare[best].bytes))
            best = i;
    }
    if (best == c->n_spare) return fv__arena_alloc(&c->data, bytes);
    void *p = c->spare[best].data;
    c->spare[best] = c->spare[--c->n_spare];
    return p;
}

fv_dtype fv__grad_dtype(const fv_tensor *t)
{
    return t->is_param && t->dtype != FV_F64 ? FV_F32 : t->dtype;
}

static size_t grad_bytes(const fv_tensor *t)
{
    return fv__tensor_bytes(fv__grad_dtype(t), fv_len(t));
}

/* The first op to reach t writes its gradient, later ones add: `add` tells the kernel which.  So
 * no gradient is ever cleared beforehand, and a kernel that writes saves a read. */
fv_sink fv_grad(fv_ctx *c, fv_tensor *t)
{
    if (!t || !t->wants_grad || fv__failed(c)) return (fv_sink){0};
    if (!t->grad) t->grad = fv__block_alloc(c, grad_bytes(t));
    if (!t->grad)
        fv_raise(c, FV_ENOMEM, "out of memory: the gradient of %s, %zu bytes held%s", fv_desc(t).s,
                 c->data.total, fv__memory_left(c->dev).s);
    fv_sink s = {.data = t->grad, .dtype = fv__grad_dtype(t), .add = t->has_grad};
    t->has_grad = t->grad != NULL;
    return s;
}

/* For ops whose dx is dy (reshape, add, dropout off): the buffer changes hands instead of being
 * copied. Not where y's gradient is still wanted by others: held by the user, or aliased. */
void fv_grad_pass(fv_ctx *c, fv_tensor *x, fv_node *n)
{
    fv_tensor *y = n->y;
    if (!x || !x->wants_grad || fv__failed(c)) return;
    if (!x->grad && !y->held && y->grad != c->aliased_grad && y->dtype == x->dtype &&
        fv_len(x) == fv_len(y)) {
        x->grad = y->grad;
        x->has_grad = true;
        y->grad = NULL;
        y->has_grad = false;
        return;
    }
    const fv_kernels *k = fv_kernels_of(c, y->dtype);
    if (k && fv_need(c, k->cast, "cast", y->dtype))
        k->cast(&c->stream, fv_grad(c, x), y->grad, fv_len(y));
}

/* The maker of a must leave x alone: it would write where it reads.
 * The residual stream is the case: y = x + a in every layer, so this saves one (B,T,D) copy a
 * layer. */
bool fv__grad_alias(fv_ctx *c, fv_tensor *x, fv_tensor *a, fv_node *n)
{
    fv_node *maker = n->prev;
    void *shared = n->y->grad;
    bool next = maker && maker->y == a && a != x && a->wants_grad && !a->grad && !a->held &&
                a->dtype == x->dtype;
    if (!next || !x->wants_grad || x->grad || n->y->held || c->aliased_grad || fv__failed(c))
        return false;
    for (int i = 0; i < maker->n_in; i++)
        if (maker->in[i] == x) return false;
    fv_grad_pass(c, x, n);
    a->grad = c->aliased_grad = shared;
    a->has_grad = true;
    return true;
}

static void release(fv_ctx *c, fv_node *n)
{
    fv_tensor *y = n->y;
    if (n->temp) fv__block_free(c, n->temp, n->temp_bytes);
    if (y->held) return;
    bool aliased_grad = y->grad && y->grad == c->aliased_grad;
    if (aliased_grad) c->aliased_grad = NULL;
    /* a gradient may have been written over y */
    if (y->grad && !aliased_grad && y->grad != y->data) fv__block_free(c, y->grad, grad_bytes(y));
    y->grad = NULL;
    y->has_grad = false;
    if (y->base) return;
    fv__block_free(c, y->data, fv__tensor_bytes(y->dtype, fv_len(y)));
    y->released = true;
}

/* ---- gradients that are final ---- */

static void rerun(fv_ctx *c, fv_node *n);

/* Counts the nodes that read each parameter.  A checkpoint hides those inside it: false. */
static bool count_uses(const fv_ctx *c)
{
    for (const fv_node *n = c->tape; n; n = n->prev)
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i] && n->in[i]->is_param) ((fv_entry *)n->in[i])->uses = 0;
    for (const fv_node *n = c->tape; n; n = n->prev) {
        if (n->backward == rerun) return false;
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i] && n->in[i]->is_param) ((fv_entry *)n->in[i])->uses++;
    }
    return true;
}

/* The node has run backwards: parameters that no other reads are final. */
static void report_final(fv_ctx *c, const fv_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] && n->in[i]->is_param && !--((fv_entry *)n->in[i])->uses)
            c->on_final(c->final_user, n->in[i]);
}

/* Runs the tape from its newest node; y, where it began, stays readable.
 * Order of recording is a topological order, so no sort is needed; nodes that got no gradient
 * are skipped but still release their memory. */
static fv_status run(fv_ctx *c, fv_tensor *y)
{
    bool outer = c->backward, watched = !outer && c->on_final && count_uses(c);
    c->backward = true;
    for (fv_node *n = c->tape; n && !fv__failed(c); n = n->prev) {
        if (n->y->has_grad) n->backward(c, n);
        if (watched) report_final(c, n);
        if (n->y != y) release(c, n);
    }
    c->backward = outer;
    c->tape = NULL;
    fv__failed(c);
    return c->err.code;
}

/* True when y can be differentiated; its gradient is then ready to be written. */
static bool start(fv_ctx *c, fv_tensor *y)
{
    if (!y || fv__failed(c)) return false;
    if (!y->wants_grad || !c->tape)
        fv_raise(c, FV_ESTATE, "backward: nothing that leads to %s was recorded", fv_desc(y).s);
    else
        fv_grad(c, y);
    return !c->err.code;
}

fv_status fv_backward(fv_ctx *c, fv_tensor *loss)
{
    if (loss && fv_len(loss) != 1)
        fv_raise(c, FV_ESHAPE, "backward: the loss is %s, expected one number", fv_desc(loss).s);
    if (!start(c, loss)) return c->err.code;
    const fv_kernels *k = fv_kernels_of(c, loss->dtype);
    if (!k || !fv_need(c, k->fill, "fill", loss->dtype)) return c->err.code;
    k->fill(&c->stream, loss->grad, 1.0f, 1);
    return run(c, loss);
}

fv_status fv_backward_from(fv_ctx *c, fv_tensor *y, const float *dy)
{
    if (!start(c, y)) return c->err.code;
    fv_mark mark = fv_mark_here(c);
    float *t = fv_scratch(c, FV_F32, fv_len(y));
    const fv_kernels *k = fv_kernels_of(c, FV_F32);
    if (!t || !k || !fv_need(c, k->cast, "cast", FV_F32)) return c->err.code;
    c->dev->backend->upload(&c->stream, t, dy, fv__tensor_bytes(FV_F32, fv_len(y)));
    k->cast(&c->stream, (fv_sink){.data = y->grad, .dtype = y->dtype}, t, fv_len(y));
    fv__arena_rewind(&c->data, mark);
    return run(c, y);
}

/* ---- checkpointing ---- */

typedef struct checkpoint {
    fv_node node;
    fv_block_fn *fn;
    void *user;
    uint64_t site; /* of the random numbers at entry */
} checkpoint;

/* The block once more, recorded on a tape of its own; its ops reach x and everything outside by
 * themselves.
 * Gradient checkpointing (Chen et al., 2016): forward keeps x alone, backward runs the block
 * again. c->site is wound back, so dropout draws the same masks the second time. */
static void rerun(fv_ctx *c, fv_node *n)
{
    checkpoint *k = (checkpoint *)n;
    fv_node *outer = c->tape;
    uint64_t site = c->site;
    c->tape = NULL;
    c->site = k->site;
    fv_tensor *y = k->fn(c, k->user, n->in[0]);
    c->site = site;
    if (y && y->wants_grad && y != n->in[0]) {
        y->grad = n->y->grad;
        y->has_grad = true;
        n->y->grad = NULL;
        n->y->has_grad = false;
        run(c, NULL);
    }
    c->tape = outer;
}

fv_tensor *fv_checkpoint(fv_ctx *c, fv_block_fn *fn, void *user, fv_tensor *x)
{
    if (!x || !c->record || fv__failed(c)) return x ? fn(c, user, x) : NULL;
    uint64_t site = c->site;
    fv_mark mark = fv_mark_here(c);
    c->record = false;
    fv_tensor *y = fv_keep(c, mark, fn(c, user, x));
    c->record = true;
    if (!y || y == x) return y;

    /* Parameters inside may want gradients even where x does not. */
    bool wanted = x->wants_grad;
    x->wants_grad = true;
    checkpoint *k = fv_record_n(c, "checkpoint", sizeof *k, rerun, y, 1, &x);
    x->wants_grad = wanted;
    if (k) k->fn = fn, k->user = user, k->site = site;
    return y;
}
