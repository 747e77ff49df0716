/* sharded.c - see sharded.h.
 *
 * Addresses stay: the flat block of parameters has room for all, but the pages of what other ranks
 * own are given back to the system until the weight is gathered again, as it is with gradients
 * (reduce.c).  So neither models nor the optimiser know, and a parameter has one place in the flat
 * block whether it is divided or not.  Shares are those of the optimiser (shares.h): a rank updates
 * exactly what it keeps.
 *
 * Divided are the weights of linear maps, which ops read through fv__param_fetch; tables of words,
 * norms and biases are whole on every rank.  Units of whole layers, as PyTorch has them, would
 * gather in fewer and larger messages and need a family to say what a layer is; a weight is a
 * megabyte or more where it matters.
 *
 * Nothing is gathered ahead: a second thread would need a communicator of its own, or the order in
 * which ranks talk would be left to chance.  For the same reason gradients are sent by the thread
 * that computes (overlap.c). */
#include "train/sharded.h"

#include "core/params.h"
#include "fovea/author/comm.h"
#include "train/options.h"
#include "train/tensor.h"

typedef struct options {
    bool shard_parameters;
} options;

static const fv_field fields[] = {
    FV_BOOL(options, shard_parameters, false,
            "several ranks: divide the weights of linear maps among them, too, and gather each "
            "where it is used (FSDP)",
            FV_ON_RESUME),
    {0},
};

const fv__own_keys fv__own_sharded = {"train", fields, sizeof(options)};

struct fv__sharded {
    fv_params *params;
    fv_device *dev;
    fv_comm *comm;
    fv__shares shares;
    fv__param_store store;
    fv_comm_part *part; /* of one weight: what is sent, then what is received */
    size_t part_bytes;
    fv_entry *held; /* rank 0 drives: the weight that it read last, which the next piece is of */
    bool driving;
};

enum { LEAST = 1024 }; /* numbers of a weight that is worth a message */

static fv_status no_memory(fv_err *e) { return fv_fail(e, FV_ENOMEM, "ranks: out of memory"); }

static bool is_divided(const fv_entry *t)
{
    return t->linear != FV_LINEAR_NONE && t->tensor.shape.n == 2 && t->tensor.wants_grad &&
           !t->frozen && !t->adapter && !t->ranks && !t->table && fv_len(&t->tensor) >= LEAST;
}

bool fv__sharded_wanted(const fv_train_opt *o, const fv_comm *c)
{
    options own;
    fv__own_get(&own, &fv__own_sharded, o->own);
    return own.shard_parameters && fv_comm_size(c) > 1;
}

/* All ranks read weights in step, so they have equally many leaves; and what looks at parameters
 * beside the model's forward pass would find holes. */
static fv_status check_sharded(const fv_train_job *j, fv_err *e)
{
    int ranks = fv_comm_size(j->comm);
    if (!fv__sharded_wanted(&j->opt, j->comm)) return FV_OK;
    if (!fv__device_is_host(j->device))
        return fv_fail(e, FV_EUSAGE, "train.shard_parameters: ranks share parameters on CPUs only");
    if (j->opt.shards % ranks)
        return fv_fail(e, FV_EUSAGE,
                       "train.shard_parameters: train.shards = %lld is no multiple of %d ranks",
                       (long long)j->opt.shards, ranks);
    if (j->train->adjust || j->train->end_epoch)
        return fv_fail(e, FV_EUSAGE,
                       "train.shard_parameters: this objective looks at all parameters itself");
    return FV_OK;
}

/* What cannot be shared among ranks, or cut. */
fv_status fv__check_shards(const fv_train_job *j, fv_err *e)
{
    int ranks = fv_comm_size(fv__data_ranks(j));
    fv_status st = fv__check_tensor(j, e);
    if (st) return st;
    if (ranks > 1 && j->opt.shards < ranks)
        return fv_fail(e, FV_EUSAGE,
                       "train.shards = %lld: %d %s need batches cut into at least %d shards",
                       (long long)j->opt.shards, ranks,
                       ranks == fv_comm_size(j->comm) ? "ranks" : "groups of ranks", ranks);
    if (j->opt.shards && (j->train->ordered || j->train->save_state))
        return fv_fail(e, FV_EUSAGE,
                       "train.shards: this objective carries a memory from batch to batch, so its "
                       "batches cannot be cut; set it to 0");
    return check_sharded(j, e);
}

/* ---- one weight ---- */

/* What rank k owns of numbers [lo, hi), in bucket b. */
static bool piece_of(const fv__shares *h, int64_t b, int k, int64_t lo, int64_t hi, int64_t *from,
                     int64_t *n)
{
    int64_t to;
    fv__share(h, b, k, from, &to);
    *from = *from > lo ? *from : lo;
    *n = (to < hi ? to : hi) - *from;
    return *n > 0;
}

static int64_t bucket_at(const fv__shares *h, int64_t i) { return i / (h->per_rank * h->ranks); }

static fv_comm_part part_of(const fv__sharded *s, int rank, int64_t from, int64_t n)
{
    size_t size = fv_dtype_size(s->params->dtype);
    return (fv_comm_part){rank, (char *)s->params->data + (size_t)from * size, (size_t)n * size};
}

/* Every rank sends its pieces to all others, and they arrive where they belong. */
static fv_status gather(fv__sharded *s, const fv_entry *t, fv_err *e)
{
    const fv__shares *h = &s->shares;
    int64_t lo = t->offset, hi = lo + fv_len(&t->tensor), first = bucket_at(h, lo),
            last = bucket_at(h, hi - 1), at, n;
    size_t most = (size_t)(last - first + 1) * (size_t)h->ranks;
    void *parts = s->part;
    if (!fv__grow(&s->dev->env, &parts, &s->part_bytes, 2 * most * sizeof *s->part))
        return no_memory(e);
    s->part = parts;
    fv_comm_part *send = s->part, *recv = send + most;
    int n_send = 0, n_recv = 0;
    for (int64_t b = first; b <= last; b++)
        for (int k = 0; k < h->ranks; k++) {
            if (k == h->rank) continue;
            if (piece_of(h, b, h->rank, lo, hi, &at, &n)) send[n_send++] = part_of(s, k, at, n);
            if (piece_of(h, b, k, lo, hi, &at, &n)) recv[n_recv++] = part_of(s, k, at, n);
        }
    return fv_comm_exchange(s->comm, send, n_send, recv, n_recv, e);
}

/* The pages of others go back to the system. */
static void forget(fv__sharded *s, const fv_entry *t)
{
    const fv__shares *h = &s->shares;
    int64_t lo = t->offset, hi = lo + fv_len(&t->tensor), at, n;
    for (int64_t b = bucket_at(h, lo); b <= bucket_at(h, hi - 1); b++)
        for (int k = 0; k < h->ranks; k++) {
            if (k == h->rank || !piece_of(h, b, k, lo, hi, &at, &n)) continue;
            fv_comm_part p = part_of(s, k, at, n);
            if (s->dev->backend->discard) s->dev->backend->discard(s->dev, p.data, p.bytes);
        }
}

static int number_of(const fv__sharded *s, const fv_entry *t)
{
    int i = 0;
    while (s->params->list[i] != t) i++;
    return i;
}

static void release_held(fv__sharded *s)
{
    if (s->held) forget(s, s->held);
    s->held = NULL;
}

/* Where rank 0 drives, the others are told which weight it is. */
static fv_status fetch(void *user, fv_entry *t, fv_err *e)
{
    fv__sharded *s = user;
    int64_t number;
    if (s->held == t) return FV_OK;
    if (!s->driving) return gather(s, t, e);
    release_held(s);
    number = number_of(s, t);
    fv_status st = fv_comm_broadcast(s->comm, &number, sizeof number, 0, e);
    if (!st) st = gather(s, t, e);
    if (!st) s->held = t;
    return st;
}

static void release(void *user, fv_entry *t)
{
    fv__sharded *s = user;
    if (!s->driving) forget(s, t);
}

/* ---- reading by rank 0 ---- */

void fv__sharded_drive(fv__sharded *s)
{
    if (s) s->driving = true;
}

fv_status fv__sharded_done(fv__sharded *s, fv_err *e)
{
    int64_t none = -1;
    if (!s) return FV_OK;
    release_held(s);
    s->driving = false;
    return fv_comm_broadcast(s->comm, &none, sizeof none, 0, e);
}

fv_status fv__sharded_serve(fv__sharded *s, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t number = 0; s && !st && number >= 0;) {
        st = fv_comm_broadcast(s->comm, &number, sizeof number, 0, e);
        if (st || number < 0) continue;
        if (number >= (int64_t)s->params->n)
            return fv_fail(e, FV_ESTATE, "ranks: there is no parameter %lld", (long long)number);
        st = gather(s, s->params->list[number], e);
        forget(s, s->params->list[number]);
    }
    return st;
}

fv_status fv__sharded_score(const fv_train_job *j, double *metric, fv_err *e)
{
    fv__sharded *s = fv__sharded_of(fv_model_params(j->model));
    if (fv_comm_rank(j->comm)) return fv__sharded_serve(s, e);
    fv__sharded_drive(s);
    fv_status st = j->score(j->score_user, metric, e), done = fv__sharded_done(s, st ? NULL : e);
    return st ? st : done;
}

/* ---- all of them ---- */

static fv_status refuse(void *user, fv_entry *t, fv_err *e)
{
    (void)user;
    return fv_fail(e, FV_ESTATE, "%s is divided among ranks that have ended; open what they saved",
                   t->tensor.name);
}

static void nothing(void *user, fv_entry *t) { (void)user, (void)t; }

static const fv__param_store parted = {refuse, nothing, NULL};

static void set_store(fv__sharded *s, const fv__param_store *store)
{
    for (size_t i = 0; i < s->params->n; i++)
        if (s->params->list[i]->store) s->params->list[i]->store = store;
}

fv_status fv__sharded_new(fv__sharded **out, fv_params *p, fv_device *d, fv_comm *c, fv_err *e)
{
    int64_t n;
    fv__sharded *s = *out = fv__alloc(&d->env, sizeof *s);
    if (!s) return no_memory(e);
    fv_params_data(p, &n);
    *s = (fv__sharded){.params = p, .dev = d, .comm = c, .shares = fv__shares_of(n, c)};
    s->store = (fv__param_store){fetch, release, s};
    for (size_t i = 0; i < p->n; i++)
        if (is_divided(p->list[i])) p->list[i]->store = &s->store, p->list[i]->fetched = 0;
    fv__sharded_forget(s);
    return FV_OK;
}

void fv__sharded_forget(fv__sharded *s)
{
    for (size_t i = 0; s && i < s->params->n; i++)
        if (s->params->list[i]->store) forget(s, s->params->list[i]);
}

fv_status fv__sharded_whole(fv__sharded *s, fv_err *e)
{
    fv_status st = FV_OK;
    for (size_t i = 0; s && !st && i < s->params->n; i++)
        if (s->params->list[i]->store) st = gather(s, s->params->list[i], e);
    if (s && !st) set_store(s, NULL);
    return st;
}

void fv__sharded_leave(fv__sharded *s, bool whole)
{
    if (s) set_store(s, whole ? NULL : &parted);
}

void fv__sharded_free(fv__sharded *s)
{
    if (!s) return;
    fv_env env = s->dev->env;
    set_store(s, &parted);
    fv__free(&env, s->part, s->part_bytes);
    fv__free(&env, s, sizeof *s);
}

fv__sharded *fv__sharded_of(const fv_params *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i]->store && p->list[i]->store->fetch == fetch) return p->list[i]->store->user;
    return NULL;
}

/* Whether a bucket lies within weights that are divided: then nobody asks for it now. */
static bool is_inside(const fv__sharded *s, int64_t bucket)
{
    int64_t size = s->shares.per_rank * s->shares.ranks, lo = bucket * size, hi = lo + size;
    int64_t covered = 0, end = hi < s->shares.n ? hi : s->shares.n;
    for (size_t i = 0; i < s->params->n; i++) {
        const fv_entry *t = s->params->list[i];
        int64_t from = t->offset, to = from + fv_len(&t->tensor);
        if (!t->store || t->frozen) continue;
        from = from > lo ? from : lo;
        to = to < end ? to : end;
        covered += to > from ? to - from : 0;
    }
    return covered == end - lo;
}

fv_status fv__sharded_gather(fv__sharded *s, const fv__shares *h, fv_comm *c, void *block,
                             size_t size, fv_err *e)
{
    if (!s) return fv__shares_gather(h, c, block, size, e);
    fv_status st = FV_OK;
    for (int64_t b = 0; !st && b < h->buckets; b++)
        if (!is_inside(s, b)) st = fv__shares_gather_bucket(h, c, b, block, size, e);
    fv__sharded_forget(s);
    return st;
}

int64_t fv__sharded_numbers(const fv_params *p, const fv__shares *h)
{
    int64_t all = 0, divided = 0, largest = 0;
    for (size_t i = 0; i < p->n; i++) {
        int64_t n = fv_len(&p->list[i]->tensor);
        if (p->list[i]->frozen) continue;
        all += n;
        if (!is_divided(p->list[i])) continue;
        divided += n;
        largest = n > largest ? n : largest;
    }
    return all - divided + (divided + h->ranks - 1) / h->ranks + largest;
}
