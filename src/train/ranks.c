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
#include "train/ranks.h"

typedef struct entry {
    fv__node node;
    float loss;
    float *grad; /* host; of the newest entry the parameters' own, or a copy of theirs */
} entry;

struct fv__ranks {
    fv_params *params;
    fv_device *dev;
    fv_comm *comm;
    fv__shares shares;
    bool fast, on_host;
    int64_t leaves, from, mine, done; /* of the update: all, and this rank's */
    entry stack[FV__TREE_NODES];
    int depth;
    float *block[FV__TREE_NODES]; /* memory of the stack */
    float *staging;               /* the gradients of a device, in host memory */
    float *received;              /* of other ranks' nodes, for a share */
    size_t received_bytes;
    fv__node *nodes; /* of all ranks, from left to right */
    size_t nodes_bytes;
    int n_nodes, first_own; /* of them: all, and where this rank's begin */
    double *counts;
    size_t counts_bytes;
    float *sums;
    size_t sums_bytes;
};

static fv_status no_memory(fv_err *e) { return fv_fail(e, FV_ENOMEM, "ranks: out of memory"); }

fv_status fv__ranks_new(fv__ranks **out, fv_params *p, fv_device *d, fv_comm *c, bool fast,
                        fv_err *e)
{
    fv__ranks *r = *out = fv__alloc(&d->env, sizeof *r);
    int64_t n;
    if (!r) return no_memory(e);
    fv_params_data(p, &n);
    *r = (fv__ranks){.params = p, .dev = d, .comm = c, .fast = fast};
    r->shares = fv__shares_of(n, c);
    r->on_host = fv__device_is_host(d);
    if (r->on_host) return FV_OK;
    r->staging = fv__alloc_raw(&d->env, (size_t)n * sizeof(float));
    if (r->staging) return FV_OK;
    fv__ranks_free(r);
    *out = NULL;
    return no_memory(e);
}

void fv__ranks_free(fv__ranks *r)
{
    if (!r) return;
    fv_env env = r->dev->env;
    size_t bytes = (size_t)r->shares.n * sizeof(float);
    for (int i = 0; i < FV__TREE_NODES; i++) fv__free(&env, r->block[i], bytes);
    fv__free(&env, r->staging, bytes);
    fv__free(&env, r->received, r->received_bytes);
    fv__free(&env, r->nodes, r->nodes_bytes);
    fv__free(&env, r->counts, r->counts_bytes);
    fv__free(&env, r->sums, r->sums_bytes);
    fv__free(&env, r, sizeof *r);
}

size_t fv__ranks_bytes(const fv__ranks *r)
{
    size_t all = r->received_bytes, block = (size_t)r->shares.n * sizeof(float);
    for (int i = 0; i < FV__TREE_NODES; i++) all += r->block[i] ? block : 0;
    return all + (r->staging ? block : 0);
}

/* Memory of at least this many bytes, whose contents may go. */
static bool grow_block(const fv__ranks *r, void *pointer, size_t *have, size_t want)
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

fv_status fv__ranks_count(fv__ranks *r, fv__batch_counts *all, const fv_batch *const *leaf,
                          int64_t leaves, int64_t from, int64_t n, bool *stop, fv_err *e)
{
    const fv__shares *s = &r->shares;
    size_t bytes = (size_t)leaves * COUNTS * sizeof(double),
           parts = (size_t)s->ranks * sizeof(fv_comm_part);
    fv_comm_part *part = fv__alloc(&r->dev->env, parts);
    if (!part || !grow_block(r, &r->counts, &r->counts_bytes, bytes)) {
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

void fv__ranks_begin(fv__ranks *r, int64_t leaves, int64_t from, int64_t n)
{
    r->leaves = leaves;
    r->from = from;
    r->mine = n;
    r->done = 0;
    r->depth = 0;
}

bool fv__ranks_accumulates(const fv__ranks *r) { return r->fast && r->done; }

/* y += x, by the device's kernel where its memory is the host's. */
static void add(const fv__ranks *r, fv_stream *s, float *y, const float *x)
{
    int64_t n = r->shares.n;
    if (r->on_host)
        r->dev->k[FV_F32]->cast(s, (fv_sink){.data = y, .dtype = FV_F32, .add = true}, x, n);
    else
        for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

/* The newest entry gets memory of its own: the next leaf will be written over it. */
static fv_status put_aside(fv__ranks *r, fv_stream *s, fv_err *e)
{
    int at = r->depth - 1;
    size_t bytes = (size_t)r->shares.n * sizeof(float);
    if (!r->block[at] && !(r->block[at] = fv__alloc_raw(&r->dev->env, bytes))) return no_memory(e);
    if (r->on_host)
        r->dev->backend->move(s, r->block[at], r->stack[at].grad, bytes);
    else
        memcpy(r->block[at], r->stack[at].grad, bytes);
    r->stack[at].grad = r->block[at];
    return FV_OK;
}

fv_status fv__ranks_add(fv__ranks *r, fv_stream *s, float loss, fv_err *e)
{
    int64_t n;
    float *grad = fv_params_grad(r->params, &n);
    if (!r->on_host) {
        if (!r->fast || r->done == r->mine - 1)
            r->dev->backend->download(s, r->staging, grad, (size_t)n * sizeof *grad);
        grad = r->staging;
    }
    if (r->fast) { /* backward has added it already */
        float before = r->done ? r->stack[0].loss : 0;
        r->stack[0] = (entry){{r->from, r->mine}, before + loss, grad};
        r->depth = 1;
        r->done++;
        return FV_OK;
    }
    entry top = {{r->from + r->done++, 1}, loss, grad};
    while (r->depth) {
        const entry *left = &r->stack[r->depth - 1];
        fv__node parent = {left->node.first, left->node.count + top.node.count};
        if (!fv__tree_has(r->leaves, parent)) break;
        add(r, s, grad, left->grad);
        top.loss = left->loss + top.loss;
        top.node = parent;
        r->depth--;
    }
    r->stack[r->depth++] = top;
    return r->done < r->mine ? put_aside(r, s, e) : FV_OK;
}

/* ---- all ranks' nodes ---- */

/* The nodes of every rank for this number of leaves. */
static fv_status list_nodes(fv__ranks *r, fv_err *e)
{
    int ranks = r->shares.ranks;
    if (!grow_block(r, &r->nodes, &r->nodes_bytes,
                    (size_t)ranks * FV__TREE_NODES * sizeof *r->nodes))
        return no_memory(e);
    r->n_nodes = 0;
    for (int k = 0; k < ranks; k++) {
        if (k == r->shares.rank) r->first_own = r->n_nodes;
        r->n_nodes += fv__tree_nodes(r->leaves, fv__tree_from(r->leaves, k, ranks),
                                     fv__tree_from(r->leaves, k + 1, ranks), r->nodes + r->n_nodes,
                                     FV__TREE_NODES);
    }
    return FV_OK;
}

/* What is sent to and received from others for one bucket. */
typedef struct mail {
    fv_comm_part *send, *recv;
    const float **value; /* of each node, over this rank's share */
    int n_send, n_recv;
    size_t bytes;
    void *memory;
} mail;

static fv_status make_mail(mail *m, const fv__ranks *r, fv_err *e)
{
    size_t sends = (size_t)r->depth * (size_t)r->shares.ranks, nodes = (size_t)r->n_nodes;
    m->bytes = (sends + nodes) * sizeof(fv_comm_part) + nodes * sizeof *m->value;
    m->memory = fv__alloc(&r->dev->env, m->bytes);
    if (!m->memory) return no_memory(e);
    m->send = m->memory;
    m->recv = m->send + sends;
    m->value = (const float **)(void *)(m->recv + nodes);
    return FV_OK;
}

static void address_mail(mail *m, const fv__ranks *r, int64_t bucket)
{
    int64_t from, to, own_from, own_to;
    const fv__shares *s = &r->shares;
    m->n_send = m->n_recv = 0;
    fv__share(s, bucket, s->rank, &own_from, &own_to);
    for (int k = 0; k < s->ranks; k++) {
        fv__share(s, bucket, k, &from, &to);
        for (int i = 0; k != s->rank && i < r->depth; i++)
            m->send[m->n_send++] = (fv_comm_part){k, r->stack[i].grad + from,
                                                  (size_t)(to - from) * sizeof(float)};
    }
    for (int i = 0, k = 0; i < r->n_nodes; i++) {
        while (r->nodes[i].first >= fv__tree_from(r->leaves, k + 1, s->ranks)) k++;
        bool own = k == s->rank;
        float *place = r->received + (size_t)m->n_recv * (size_t)s->per_rank;
        m->value[i] = own ? r->stack[i - r->first_own].grad + own_from : place;
        if (!own)
            m->recv[m->n_recv++] = (fv_comm_part){k, place,
                                                  (size_t)(own_to - own_from) * sizeof(float)};
    }
}

/* Share after share of this rank, summed where the newest node stands. */
static fv_status reduce_buckets(fv__ranks *r, float *grad, fv_err *e)
{
    mail m = {0};
    size_t received = (size_t)(r->n_nodes - r->depth) * (size_t)r->shares.per_rank * sizeof(float);
    if (!grow_block(r, &r->received, &r->received_bytes, received)) return no_memory(e);
    fv_status st = make_mail(&m, r, e);
    for (int64_t b = 0; !st && b < r->shares.buckets; b++) {
        int64_t from, to;
        address_mail(&m, r, b);
        st = fv_comm_exchange(r->comm, m.send, m.n_send, m.recv, m.n_recv, e);
        fv__share(&r->shares, b, r->shares.rank, &from, &to);
        if (!st && from < to)
            fv__tree_sum(grad + from, m.value, r->nodes, r->n_nodes, r->leaves, to - from);
    }
    fv__free(&r->dev->env, m.memory, m.bytes);
    return st;
}

/* The same in the order of the engine. */
static fv_status reduce_fast(fv__ranks *r, float *grad, fv_err *e)
{
    const fv__shares *s = &r->shares;
    size_t bytes = 2 * (size_t)s->ranks * sizeof(int64_t);
    int64_t *from = fv__alloc(&r->dev->env, bytes), *n = from ? from + s->ranks : NULL;
    if (!from) return no_memory(e);
    fv_status st = FV_OK;
    for (int64_t b = 0; !st && b < s->buckets; b++) {
        for (int k = 0; k < s->ranks; k++) {
            fv__share(s, b, k, &from[k], &n[k]);
            n[k] -= from[k];
        }
        st = fv_comm_reduce_scatter(r->comm, grad, from, n, e);
    }
    fv__free(&r->dev->env, from, bytes);
    return st;
}

/* The losses of the nodes, summed as the gradients are. */
static fv_status reduce_loss(fv__ranks *r, float *loss, fv_err *e)
{
    const fv__shares *s = &r->shares;
    size_t ranks = (size_t)s->ranks, nodes = (size_t)r->n_nodes,
           bytes = ranks * sizeof(fv_comm_part) + nodes * (sizeof(float *) + sizeof(float));
    fv_comm_part *part = fv__alloc(&r->dev->env, bytes);
    if (!part) return no_memory(e);
    const float **value = (const float **)(void *)(part + ranks);
    float *all = (float *)(void *)(value + nodes);
    for (int i = 0; i < r->n_nodes; i++) value[i] = &all[i];
    for (int k = 0, at = 0; k < s->ranks; k++) {
        int64_t end = fv__tree_from(r->leaves, k + 1, s->ranks);
        int first = at;
        while (at < r->n_nodes && r->nodes[at].first < end) at++;
        part[k] = (fv_comm_part){k, all + first, (size_t)(at - first) * sizeof *all};
    }
    for (int i = 0; i < r->depth; i++) all[r->first_own + i] = r->stack[i].loss;
    fv_status st = fv_comm_all_gather(r->comm, part, e);
    if (!st) fv__tree_sum(loss, value, r->nodes, r->n_nodes, r->leaves, 1);
    fv__free(&r->dev->env, part, bytes);
    return st;
}

/* ---- the norm ---- */

/* Squares of each chunk that this rank owns; then all chunks, gathered, in order. */
static fv_status sum_squares(fv__ranks *r, fv_stream *s, const float *grad, float *sumsq, fv_err *e)
{
    const fv__shares *h = &r->shares;
    const fv_backend *b = r->dev->backend;
    int64_t chunks = fv__shares_chunks(h);
    size_t bytes = (size_t)chunks * sizeof(float);
    float *device = r->on_host ? NULL : b->alloc(r->dev, bytes);
    if (!grow_block(r, &r->sums, &r->sums_bytes, bytes) || (!r->on_host && !device))
        return no_memory(e);
    float *to = device ? device : r->sums;
    for (int64_t q = 0; q < chunks; q++) {
        int64_t from = q * h->chunk, n = h->n - from < h->chunk ? h->n - from : h->chunk;
        if (fv__chunk_owner(h, q) == h->rank) r->dev->k[FV_F32]->sumsq(s, to + q, grad + from, n);
    }
    if (device) {
        b->download(s, r->sums, device, bytes);
        b->release(r->dev, device, bytes);
    }
    /* chunks are owned as the numbers are: the sums are a block of one number a chunk */
    fv__shares per_chunk = *h;
    per_chunk.n = chunks;
    per_chunk.per_rank = h->ranks == 1 ? chunks : h->per_rank / h->chunk;
    fv_status st = fv__shares_gather(&per_chunk, r->comm, r->sums, sizeof(float), e);
    double all = 0;
    for (int64_t q = 0; q < chunks; q++) all += (double)r->sums[q];
    *sumsq = (float)all;
    return st;
}

fv_status fv__ranks_reduce(fv__ranks *r, fv_stream *s, float *loss, float *sumsq, fv_err *e)
{
    int64_t n;
    float *own = fv_params_grad(r->params, &n), *grad = r->on_host ? own : r->staging;
    r->dev->backend->sync(s);
    fv_status st = list_nodes(r, e);
    if (!st && r->fast) { /* one node for each rank, added from left to right by no tree */
        *loss = r->stack[0].loss;
        st = reduce_fast(r, grad, e);
        if (!st) st = fv_comm_all_reduce(r->comm, loss, 1, e);
    } else if (!st) {
        st = reduce_buckets(r, grad, e);
        if (!st) st = reduce_loss(r, loss, e);
    }
    if (!st && !r->on_host) r->dev->backend->upload(s, own, grad, (size_t)n * sizeof *own);
    return st ? st : sum_squares(r, s, own, sumsq, e);
}

/* ---- agreement at the start ---- */

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
