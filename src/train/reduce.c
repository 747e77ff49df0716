/* reduce.c - the gradients of all ranks' leaves, bucket by bucket, where their owners add them
 * up; the loss and the norm.
 *
 * A leaf is a shard of the global batch, and there are as many of them whatever the number of
 * ranks.  Their gradients are added as the nodes of one fixed binary tree (comm/tree.c): a rank
 * adds up the nodes that lie within its own leaves, sends the roots of those to the bucket's owner,
 * and the owner adds the rest, in the tree's order.  So each sum is taken in the same order for 1
 * rank and for 8.  An all-reduce of MPI would send less, but the order of its sums is its own
 * affair. */
#include "backend/backends.h"
#include "train/reduce.h"

static fv_status no_memory(fv_err *e) { return fv_fail(e, FV_ENOMEM, "ranks: out of memory"); }

/* ---- all ranks' nodes ---- */

/* The nodes of every rank for this number of leaves. */
static fv_status list_nodes(fv__ranks *r, fv_err *e)
{
    int ranks = r->shares.ranks;
    if (!fv__ranks_grow(r, &r->nodes, &r->nodes_bytes,
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

fv_status fv__mail_new(fv__mail *m, fv__ranks *r, fv_err *e)
{
    *m = (fv__mail){0};
    fv_status st = list_nodes(r, e);
    if (st) return st;
    size_t received = (size_t)(r->n_nodes - r->depth) * (size_t)r->shares.per_rank * sizeof(float);
    if (received > r->received_bytes) {
        fv__ranks_release(r, r->received, r->received_bytes);
        r->received = fv__ranks_alloc(r, received);
        r->received_bytes = r->received ? received : 0;
        if (!r->received) return no_memory(e);
    }
    size_t sends = (size_t)r->depth * (size_t)r->shares.ranks, nodes = (size_t)r->n_nodes;
    m->bytes = (sends + nodes) * sizeof(fv_comm_part) + nodes * sizeof *m->value;
    m->memory = fv__alloc(&r->dev->env, m->bytes);
    if (!m->memory) return no_memory(e);
    m->send = m->memory;
    m->recv = m->send + sends;
    m->value = (float **)(void *)(m->recv + nodes);
    return FV_OK;
}

void fv__mail_free(fv__mail *m, const fv__ranks *r) { fv__free(&r->dev->env, m->memory, m->bytes); }

static void address_mail(fv__mail *m, const fv__ranks *r, int64_t bucket)
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

/* The newest node is not yet added to those it completes: of this bucket. */
static void merge_bucket(const fv__ranks *r, float *grad, int64_t bucket)
{
    int64_t from, to, end;
    fv__share(&r->shares, bucket, 0, &from, &end);
    fv__share(&r->shares, bucket, r->shares.ranks - 1, &end, &to);
    for (int k = 0; k < r->n_merged && r->nccl; k++)
        fv__ranks_sum(r, grad + from, r->merged[k] + from, to - from);
    for (int k = 0; k < r->n_merged && !r->nccl; k++) /* beside backward: one core, no kernel */
        for (int64_t i = from; i < to; i++) grad[i] = r->merged[k][i] + grad[i];
}

/* ---- by NCCL: the same sums on GPUs ---- */

typedef struct gpu_sum {
    fv__ranks *r;
    float *const *value;
    int64_t len;
} gpu_sum;

static void add_values(void *self, int i, int j)
{
    const gpu_sum *g = self;
    fv__ranks_sum(g->r, g->value[i], g->value[j], g->len);
}

/* Nodes are added where they were received or, this rank's own, where they are: of its share
 * nothing but the sum is read again. */
static fv_status exchange_gpu(fv__ranks *r, const fv__mail *m, float *share, int64_t len, fv_err *e)
{
    void *stream = fv__cuda_stream(r->stream);
    fv_status st = fv__nccl_exchange(r->nccl, stream, m->send, m->n_send, m->recv, m->n_recv, e);
    if (st || len < 1) return st;
    gpu_sum g = {r, m->value, len};
    fv__tree_fold(r->nodes, r->leaves, add_values, &g);
    if (m->value[0] != share)
        r->dev->backend->move(r->stream, share, m->value[0], (size_t)len * sizeof *share);
    return FV_OK;
}

/* The owners have this bucket of a node: its pages, but for this rank's share, go back to the
 * system until backward writes there again (ZeRO-2).  Addresses stay, so neither the tape nor the
 * optimiser knows.  A block for each bucket was the alternative: every parameter's gradient would
 * have to be looked up by bucket. */
static void give_back(const fv__ranks *r, float *node, int64_t bucket)
{
    const fv_backend *b = r->dev->backend;
    for (int k = 0; k < r->shares.ranks; k++) {
        int64_t from, to;
        fv__share(&r->shares, bucket, k, &from, &to);
        if (k != r->shares.rank && from < to)
            b->discard(r->dev, node + from, (size_t)(to - from) * sizeof *node);
    }
}

static void give_back_bucket(const fv__ranks *r, int64_t bucket)
{
    if (!r->on_host || !r->dev->backend->discard) return;
    for (int i = 0; i < r->depth; i++) give_back(r, r->stack[i].grad, bucket);
    for (int i = 0; i < r->n_merged; i++) give_back(r, r->merged[i], bucket);
}

static fv_status exchange_host(fv__ranks *r, const fv__mail *m, float *share, int64_t len,
                               fv_err *e)
{
    fv_status st = fv_comm_exchange(r->comm, m->send, m->n_send, m->recv, m->n_recv, e);
    if (!st && len > 0)
        fv__tree_sum(share, (const float *const *)m->value, r->nodes, r->n_nodes, r->leaves, len);
    return st;
}

fv_status fv__reduce_bucket(fv__ranks *r, fv__mail *m, float *grad, int64_t bucket, fv_err *e)
{
    int64_t from, to;
    double start = fv__trace_now(r->trace);
    merge_bucket(r, grad, bucket);
    address_mail(m, r, bucket);
    fv__share(&r->shares, bucket, r->shares.rank, &from, &to);
    fv_status st = (r->nccl ? exchange_gpu : exchange_host)(r, m, grad + from, to - from, e);
    if (!st) give_back_bucket(r, bucket);
    fv__trace_add(r->trace, r->overlap ? FV__TRACK_COMM : FV__TRACK_MAIN, "reduce bucket", r->step,
                  start);
    return st;
}

static fv_status reduce_buckets(fv__ranks *r, float *grad, fv_err *e)
{
    fv__mail m;
    fv_status st = fv__mail_new(&m, r, e);
    for (int64_t b = 0; !st && b < r->shares.buckets; b++)
        st = fv__reduce_bucket(r, &m, grad, b, e);
    fv__mail_free(&m, r);
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
        st = r->nccl
                 ? fv__nccl_reduce_scatter(r->nccl, fv__cuda_stream(r->stream), grad, from, n, e)
                 : fv_comm_reduce_scatter(r->comm, grad, from, n, e);
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
    if (!fv__ranks_grow(r, &r->sums, &r->sums_bytes, bytes) || (!r->on_host && !device))
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

/* Leaves of one rank alone need no other; the tree has come down to its root. */
static fv_status reduce_exactly(fv__ranks *r, float *grad, fv_err *e)
{
    if (r->shares.ranks == 1 && !r->nccl) return list_nodes(r, e);
    return r->overlap ? fv__overlap_end(r->overlap, e) : reduce_buckets(r, grad, e);
}

/* Alone there is nobody to wait for: loss and squares stay on the device, which may be several
 * updates behind.  NCCL is called all the same where it is asked for, in the order of the
 * stream. */
static fv_status reduce_alone(fv__ranks *r, fv_stream *s, fv_err *e)
{
    float *grad = fv__params_grad_on(r->params, s);
    const fv_kernels *k = r->dev->k[FV_F32];
    fv_status st = FV_OK;
    if (!k->sumsq_chunks)
        return fv_fail(e, FV_EMISSING, "ranks: %s has no sumsq_chunks", r->dev->backend->name);
    if (r->nccl) st = (r->fast ? reduce_fast : reduce_buckets)(r, grad, e);
    if (!st) k->sumsq_chunks(s, r->device_sums, r->sumsq, grad, r->shares.n, r->shares.chunk);
    return st || !r->nccl ? st : fv__nccl_check(r->nccl, e);
}

fv_status fv__ranks_reduce(fv__ranks *r, fv_stream *s, float *loss, float *sumsq, fv_err *e)
{
    int64_t n;
    if (r->alone) return reduce_alone(r, s, e);
    float *own = fv_params_grad(r->params, &n), *grad = r->direct ? own : r->staging;
    double start = fv__trace_now(r->trace);
    fv_status st;
    r->dev->backend->sync(s);
    if (r->fast) {
        *loss = r->stack[0].loss;
        st = reduce_fast(r, grad, e);
        if (!st) st = fv_comm_all_reduce(r->comm, loss, 1, e);
    } else {
        st = reduce_exactly(r, grad, e);
        if (!st) st = reduce_loss(r, loss, e);
    }
    if (!st && !r->direct) r->dev->backend->upload(s, own, grad, (size_t)n * sizeof *own);
    if (!st) st = sum_squares(r, s, own, sumsq, e);
    /* the squares were waited for, so a sum that NCCL gave up is known before it is applied */
    if (!st && r->nccl) st = fv__nccl_check(r->nccl, e);
    fv__trace_add(r->trace, FV__TRACK_MAIN, "reduce", r->step, start);
    return st;
}
