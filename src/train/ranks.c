/* ranks.c - see ranks.h.
 *
 * A rank keeps a stack of nodes of the tree, each a block of gradients; the newest is where
 * backward writes it, in the parameters' own gradients.  A leaf that completes its parent is
 * added to it at once, so the stack is no deeper than the tree: three blocks beside the
 * gradients for one rank with eight leaves, none for a rank with one leaf.
 *
 * When all leaves are done the stack holds the largest nodes within this rank's range.  For each
 * bucket they are sent to the ranks that own its shares, who add them up in the order of the tree.
 * Where the number of ranks is a power of two a rank has one node, and what it sends is what a ring
 * would send: (N-1)/N of the gradients.  Recursive doubling was the alternative for the sums; it
 * sends log N times as much. */
#include "backend/backends.h"
#include "core/params.h"
#include "train/reduce.h"

static fv_status no_memory(fv_err *e) { return fv_fail(e, FV_ENOMEM, "ranks: out of memory"); }

/* NCCL, where the device is a GPU and it is wanted. */
static fv_status open_nccl(fv__ranks *r, fv_err *e)
{
    bool wanted = false;
    if (r->on_host || r->params->ranks) return FV_OK;
    fv_status st = fv__nccl_wanted(&wanted, r->comm, fv_cuda_devices(NULL, 0, NULL), e);
    if (st || !wanted) return st;
    fv__cuda_stream(r->stream); /* makes the device this thread's current one */
    return fv__nccl_open(&r->nccl, &r->dev->env, r->comm, e);
}

static size_t sums_bytes(const fv__ranks *r)
{
    return (size_t)fv__shares_chunks(&r->shares) * sizeof(float);
}

fv_status fv__ranks_new(fv__ranks **out, fv_params *p, fv_stream *s, fv_comm *c, bool fast,
                        fv_err *e)
{
    fv_device *d = s->dev;
    fv__ranks *r = *out = fv__alloc(&d->env, sizeof *r);
    int64_t n;
    if (!r) return no_memory(e);
    fv_params_data(p, &n);
    *r = (fv__ranks){.params = p, .dev = d, .comm = c, .stream = s, .fast = fast};
    r->shares = fv__shares_of(n, c);
    r->on_host = fv__device_is_host(d);
    fv_status st = open_nccl(r, e);
    r->alone = !r->on_host && r->shares.ranks == 1;
    r->direct = r->on_host || r->nccl || r->alone;
    if (!st && r->alone) {
        r->kept_losses = fv__ranks_alloc(r, FV__TREE_NODES * sizeof(float));
        r->device_sums = fv__ranks_alloc(r, sums_bytes(r));
        if (!r->kept_losses || !r->device_sums) st = no_memory(e);
    }
    if (!st && !r->direct && !(r->staging = fv__alloc_raw(&d->env, (size_t)n * sizeof(float))))
        st = no_memory(e);
    /* ranks that share the model talk in backward: a second thread would come in between */
    bool beside = r->on_host && !fast && r->shares.ranks > 1 && !p->ranks;
    if (!st && beside) st = fv__overlap_new(&r->overlap, r, e);
    /* zeros that were written there would stay in memory until the first bucket is sent */
    if (r->on_host && p->grad && r->shares.ranks > 1 && d->backend->discard)
        d->backend->discard(d, p->grad, (size_t)n * sizeof(float));
    if (!st) return FV_OK;
    fv__ranks_free(r);
    *out = NULL;
    return st;
}

void fv__ranks_free(fv__ranks *r)
{
    if (!r) return;
    fv_env env = r->dev->env;
    size_t bytes = (size_t)r->shares.n * sizeof(float);
    fv__overlap_free(r->overlap);
    for (int i = 0; i < FV__TREE_NODES; i++) fv__ranks_release(r, r->block[i], bytes);
    fv__free(&env, r->staging, bytes);
    fv__ranks_release(r, r->received, r->received_bytes);
    fv__ranks_release(r, r->kept_losses, FV__TREE_NODES * sizeof(float));
    fv__ranks_release(r, r->device_sums, sums_bytes(r));
    fv__nccl_close(r->nccl);
    fv__free(&env, r->nodes, r->nodes_bytes);
    fv__free(&env, r->counts, r->counts_bytes);
    fv__free(&env, r->sums, r->sums_bytes);
    fv__free(&env, r, sizeof *r);
}

fv__nccl *fv__ranks_nccl(const fv__ranks *r) { return r->nccl; }

bool fv__ranks_alone(const fv__ranks *r) { return r->alone; }

void fv__ranks_set_results(fv__ranks *r, float *loss, float *sumsq)
{
    r->loss = loss;
    r->sumsq = sumsq;
}

/* Where the device adds blocks up they lie there. */
static bool on_device(const fv__ranks *r) { return r->nccl || r->alone; }

void *fv__ranks_alloc(const fv__ranks *r, size_t bytes)
{
    return on_device(r) ? r->dev->backend->alloc(r->dev, bytes)
                        : fv__alloc_raw(&r->dev->env, bytes);
}

void fv__ranks_release(const fv__ranks *r, void *p, size_t bytes)
{
    if (p && on_device(r))
        r->dev->backend->release(r->dev, p, bytes);
    else
        fv__free(&r->dev->env, p, bytes);
}

void fv__ranks_set_trace(fv__ranks *r, fv__trace *t) { r->trace = t; }

void fv__ranks_spent(const fv__ranks *r, double *all, double *exposed)
{
    double bytes;
    fv_comm_spent(r->comm, all, &bytes);
    *exposed = *all - r->hidden;
}

size_t fv__ranks_bytes(const fv__ranks *r)
{
    size_t all = r->received_bytes, block = (size_t)r->shares.n * sizeof(float);
    for (int i = 0; i < FV__TREE_NODES; i++) all += r->block[i] ? block : 0;
    return all + (r->staging ? block : 0);
}

bool fv__ranks_grow(const fv__ranks *r, void *pointer, size_t *have, size_t want)
{
    void *p;
    memcpy(&p, pointer, sizeof p);
    bool ok = fv__grow(&r->dev->env, &p, have, want + 1);
    memcpy(pointer, &p, sizeof p);
    return ok;
}

/* ---- counts ---- */

enum { COUNTS = 4 }; /* labels, rows, tokens, and a wish to stop */

static void add_counts(fv__batch_counts *all, const double *of, bool *stop)
{
    all->labels += of[0];
    all->rows += of[1];
    all->tokens += of[2];
    *stop = *stop || of[3] > 0;
}

/* Labels, rows and tokens of the whole update, which each leaf's loss is divided by: known to all
 * before any computes. */
fv_status fv__ranks_count(fv__ranks *r, fv__batch_counts *all, const fv_batch *const *leaf,
                          int64_t leaves, int64_t from, int64_t n, bool *stop, fv_err *e)
{
    const fv__shares *s = &r->shares;
    size_t bytes = (size_t)leaves * COUNTS * sizeof(double),
           parts = (size_t)s->ranks * sizeof(fv_comm_part);
    fv_comm_part *part = fv__alloc(&r->dev->env, parts);
    if (!part || !fv__ranks_grow(r, &r->counts, &r->counts_bytes, bytes)) {
        fv__free(&r->dev->env, part, parts);
        return no_memory(e);
    }
    for (int64_t i = 0; i < n; i++) {
        const fv_batch *b = leaf[i];
        fv__batch_counts one = b->n ? fv__batch_counts_of(&b, 1) : (fv__batch_counts){0};
        double *to = r->counts + COUNTS * (from + i);
        to[0] = one.labels, to[1] = one.rows, to[2] = one.tokens, to[3] = *stop;
    }
    for (int k = 0; k < s->ranks; k++) {
        int64_t lo = fv__tree_from(leaves, k, s->ranks),
                hi = fv__tree_from(leaves, k + 1, s->ranks);
        part[k] = (fv_comm_part){k, r->counts + COUNTS * lo,
                                 (size_t)(hi - lo) * COUNTS * sizeof(double)};
    }
    fv_status st = fv_comm_all_gather(r->comm, part, e);
    *all = (fv__batch_counts){0};
    for (int64_t i = 0; !st && i < leaves; i++) add_counts(all, r->counts + COUNTS * i, stop);
    fv__free(&r->dev->env, part, parts);
    return st;
}

/* ---- this rank's leaves ---- */

/* This rank has leaves [from, from + n) of the update's. */
void fv__ranks_begin(fv__ranks *r, int64_t step, int64_t leaves, int64_t from, int64_t n)
{
    r->step = step;
    r->leaves = leaves;
    r->from = from;
    r->mine = n;
    r->done = 0;
    r->depth = r->n_merged = 0;
}

bool fv__ranks_accumulates(const fv__ranks *r) { return r->fast && r->done; }

/* How many gradients must be kept at once while n leaves are added along the tree. */
int fv__ranks_aside(int64_t leaves, int64_t from, int64_t n)
{
    fv__node stack[FV__TREE_NODES];
    int depth = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        fv__node top = {from + i, 1};
        for (; depth; depth--) {
            fv__node parent = {stack[depth - 1].first, stack[depth - 1].count + top.count};
            if (!fv__tree_has(leaves, parent)) break;
            top = parent;
        }
        stack[depth++] = top;
        if (i < n - 1 && depth > most) most = depth; /* the last stays where backward writes it */
    }
    return most;
}

/* By the device's kernel, or by hand where its gradients were staged. */
void fv__ranks_sum(const fv__ranks *r, float *y, const float *x, int64_t n)
{
    if (r->direct)
        r->dev->k[FV_F32]->cast(r->stream, (fv_sink){.data = y, .dtype = FV_F32, .add = true}, x,
                                n);
    else
        for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

/* The newest entry gets memory of its own: the next leaf will be written over it. */
static fv_status put_aside(fv__ranks *r, fv_stream *s, fv_err *e)
{
    int at = r->depth - 1;
    size_t bytes = (size_t)r->shares.n * sizeof(float);
    if (!r->block[at] && !(r->block[at] = fv__ranks_alloc(r, bytes))) return no_memory(e);
    if (r->direct)
        r->dev->backend->move(s, r->block[at], r->stack[at].grad, bytes);
    else
        memcpy(r->block[at], r->stack[at].grad, bytes);
    r->stack[at].grad = r->block[at];
    if (r->alone) r->dev->backend->move(s, r->kept_losses + at, r->loss, sizeof(float));
    return FV_OK;
}

/* Pushes a leaf and takes off the stack what it completes.  Its gradients are added to theirs at
 * once or, for the last leaf of one of several ranks, bucket by bucket when they are sent. */
static void push_leaf(fv__ranks *r, float *grad)
{
    bool later = r->shares.ranks > 1 && r->done == r->mine - 1;
    fv__stacked top = {{r->from + r->done++, 1}, 0, grad};
    while (r->depth) {
        fv__stacked *left = &r->stack[r->depth - 1];
        fv__node parent = {left->node.first, left->node.count + top.node.count};
        if (!fv__tree_has(r->leaves, parent)) break;
        if (later)
            r->merged[r->n_merged++] = left->grad;
        else
            fv__ranks_sum(r, grad, left->grad, r->shares.n);
        if (r->alone)
            fv__ranks_sum(r, r->loss, r->kept_losses + r->depth - 1, 1);
        else
            r->losses[r->n_losses++] = left->loss;
        top.node = parent;
        r->depth--;
    }
    r->stack[r->depth++] = top;
}

/* Losses are added as the gradients are, when that of the newest leaf is known. */
static void add_losses(fv__ranks *r, float loss)
{
    for (int i = 0; i < r->n_losses; i++) loss = r->losses[i] + loss;
    r->n_losses = 0;
    r->stack[r->depth - 1].loss = loss;
}

fv_status fv__ranks_add(fv__ranks *r, fv_stream *s, float loss, fv_err *e)
{
    float *grad = fv__params_grad_on(r->params, s);
    if (!r->direct) {
        if (!r->fast || r->done == r->mine - 1)
            r->dev->backend->download(s, r->staging, grad, (size_t)r->shares.n * sizeof *grad);
        grad = r->staging;
    }
    if (r->fast) { /* backward has added it already */
        float before = r->done ? r->stack[0].loss : 0;
        if (r->alone && r->done) fv__ranks_sum(r, r->loss, r->kept_losses, 1);
        if (r->alone) r->dev->backend->move(s, r->kept_losses, r->loss, sizeof(float));
        r->stack[0] = (fv__stacked){{r->from, r->mine}, before + loss, grad};
        r->depth = 1;
        r->done++;
        return FV_OK;
    }
    if (r->done < r->mine) push_leaf(r, grad); /* else fv__ranks_last has */
    add_losses(r, loss);
    return r->done < r->mine ? put_aside(r, s, e) : FV_OK;
}

/* What its gradients will be added to is known before they are, so buckets can be reduced as
 * soon as backward is done with them. */
fv_status fv__ranks_last(fv__ranks *r, fv_ctx *c, fv_err *e)
{
    if (!r->overlap || r->done != r->mine - 1) return FV_OK;
    push_leaf(r, r->params->grad);
    return fv__overlap_begin(r->overlap, c, e);
}

/* ---- agreement at the start ---- */

/* Hashes of what every rank must have started with; the first that differs is named. */
fv_status fv__ranks_same(fv_comm *c, const fv__same *of, int n, fv_err *e)
{
    enum { MOST = 8 };
    int ranks = fv_comm_size(c), rank = fv_comm_rank(c);
    size_t bytes = (size_t)ranks * (MOST * sizeof(uint64_t) + sizeof(fv_comm_part));
    uint64_t *all = fv__alloc(NULL, bytes);
    if (!all) return no_memory(e);
    fv_comm_part *part = (fv_comm_part *)(void *)(all + ranks * MOST);
    for (int r = 0; r < ranks; r++) part[r] = (fv_comm_part){r, all + r * MOST, MOST * sizeof *all};
    for (int i = 0; i < n && i < MOST; i++) all[rank * MOST + i] = of[i].hash;
    fv_status st = fv_comm_all_gather(c, part, e);
    for (int r = 1; !st && r < ranks; r++)
        for (int i = 0; !st && i < n && i < MOST; i++)
            if (all[r * MOST + i] != all[i])
                st = fv_fail(e, FV_ESTATE,
                             "rank %d: %s is not the same as that of rank 0 (%016llx and %016llx)",
                             r, of[i].what, (unsigned long long)all[r * MOST + i],
                             (unsigned long long)all[i]);
    fv__free(NULL, all, bytes);
    return st;
}
