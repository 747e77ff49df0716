/* scaling.c - a model of time and memory on N ranks, fitted to runs on one (scaling.h).
 *
 *     update(N) = k leaf + token T_r + (k - 1) block + optimiser / N
 *               + exposed reduce + gather + small exchanges
 *     k: leaves of a rank, T_r: its tokens
 *
 *     reduce = B (latency + overhead) + nodes (N-1)/N 4 P / (efficiency bandwidth)  of gradients
 *     gather = B (latency + overhead) + (N-1)/N w P / (efficiency bandwidth)        of parameters
 *     small  = (B + 2) (latency + overhead)                                counts, loss, norm
 *     B buckets of P numbers of w bytes (shares.h); nodes of the tree that a rank sends
 *
 * A bucket is one exchange, whose messages need no answer before they are sent (comm/mpi.c): one
 * latency.  reduce is hidden behind the backward pass of a rank's last leaf, two thirds of its
 * time, but for the two buckets, of the first layer and of all vectors, that are final only at its
 * end.  Efficiency and overhead are fitted to
 * runs on slow links (tools/plan_fit.py; docs/scale.md has the fit), and a caller may give others.
 * Simulating every message was the alternative, which says no more where all links are alike. */
#include <math.h>
#include <time.h>

#include "comm/comm.h"
#include "core/core.h"
#include "fovea/author/scaling.h"
#include "fovea/author/train.h"
#include "train/adam.h"
#include "train/ranks.h"
#include "train/reduce.h"

/* Of a link's bandwidth, what TCP in frames of 1,500 bytes leaves; seconds of MPI's progress and
 * ours in an exchange between processes that share cores. */
#define EFFICIENCY 0.934
#define OVERHEAD 250e-6
#define MESSAGE 2e-6       /* seconds to start one message */
#define BACKWARD (2.0 / 3) /* of a leaf's time */
#define AGAIN (4.0 / 3)    /* time of a leaf whose forward pass is computed twice */
enum { MOST_LEAVES = 8, UPDATES = 4, CUT = 4 };

/* ---- measuring ---- */

typedef struct timing {
    double last, least; /* seconds: of the last update's end, and of the fastest */
    double tokens;
} timing;

static void note_step(void *user, const fv_train_state *s, const char *event)
{
    timing *t = user;
    if (strcmp(event, "step")) return;
    if (s->step > 1 && (t->least <= 0 || s->seconds - t->last < t->least))
        t->least = s->seconds - t->last;
    t->last = s->seconds;
    t->tokens = (double)s->tokens / (double)s->step;
}

/* A few updates with batches cut so; the fastest counts: what disturbs only makes slower. */
static fv_status time_updates(timing *t, const fv_train_job *job, int64_t shards, fv_err *e)
{
    fv_train_state s;
    fv_train_job j = *job;
    *t = (timing){0};
    j.dir = j.trace = NULL;
    j.valid = NULL;
    j.score = NULL;
    j.comm = NULL;
    j.progress = note_step;
    j.user = t;
    j.opt.updates = UPDATES;
    j.opt.warmup = 0;
    j.opt.eval_every = j.opt.save_every = j.opt.patience = 0;
    j.opt.accumulate = 1;
    j.opt.shards = shards;
    return fv_train(&j, &s, e);
}

static double seconds_of(void (*work)(void *user), void *user)
{
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double from = fv__comm_now();
        work(user);
        double took = fv__comm_now() - from;
        if (!i || took < best) best = took;
    }
    return best;
}

typedef struct stepping {
    fv_adam *adam;
    const fv_train_opt *opt;
    int64_t step;
    fv_status st;
    fv_err *e;
} stepping;

static void one_step(void *user)
{
    stepping *s = user;
    double norm;
    if (!s->st) s->st = fv_adam_step(s->adam, s->opt, ++s->step, &norm, s->e);
}

/* The optimiser by itself, with whatever gradients there are. */
static fv_status time_optimiser(double *seconds, const fv_train_job *j, fv_err *e)
{
    stepping s = {.opt = &j->opt, .e = e};
    fv_status st = fv_adam_new(&s.adam, fv_model_params(j->model), j->device, &j->opt, e);
    if (st) return st;
    *seconds = seconds_of(one_step, &s);
    fv_adam_free(s.adam);
    return s.st;
}

/* Memory of a leaf as a line through two sizes. */
static fv_status measure_memory(double *leaf, double *token, double *rows, const fv_train_job *job,
                                bool recompute, fv_err *e)
{
    fv_train_memory whole, cut;
    fv_train_job j = *job;
    j.opt.recompute = recompute;
    j.opt.accumulate = 1;
    j.opt.shards = 1;
    fv_status st = fv_train_dry_run(&j, &whole, e);
    j.opt.shards = CUT;
    if (!st) st = fv_train_dry_run(&j, &cut, e);
    if (st) return st;
    double a = (double)(whole.rows * whole.columns), b = (double)(cut.rows * cut.columns);
    *token = a > b ? ((double)whole.batch - (double)cut.batch) / (a - b) : 0;
    if (*token < 0) *token = 0;
    *leaf = fmax(0, (double)whole.batch - *token * a);
    *rows = (double)whole.rows;
    return FV_OK;
}

/* Two ways of cutting give what each leaf and each token cost.  Putting a block aside and adding
 * it is two passes of memory, which the optimiser's four or more passes estimate. */
fv_status fv_scaling_measure(fv_scaling *out, const fv_train_job *job, fv_err *e)
{
    timing whole, cut;
    const fv_params *p = fv_model_params(job->model);
    *out = (fv_scaling){0};
    if (job->comm) return fv_fail(e, FV_EARG, "a plan is measured on one rank");
    fv_status st = measure_memory(&out->leaf_bytes, &out->token_bytes, &out->rows, job, false, e);
    if (!st)
        st = measure_memory(&out->kept_leaf_bytes, &out->kept_token_bytes, &out->rows, job, true,
                            e);
    if (!st) st = time_updates(&whole, job, 1, e);
    if (!st) st = time_updates(&cut, job, CUT, e);
    if (!st) st = time_optimiser(&out->optimiser, job, e);
    if (st) return st;
    bool narrow = fv_params_at(p, 0)->dtype != FV_F32;
    fv_params_data(p, &out->numbers);
    out->number_bytes = (double)fv_dtype_size(fv_params_at(p, 0)->dtype);
    out->state_bytes = 4.0 * (2 + narrow + (job->opt.ema > 0));
    out->tokens = whole.tokens;
    out->block = out->optimiser / 2;
    out->leaf = fmax(0, (cut.least - whole.least - (CUT - 1) * out->block) / (CUT - 1));
    out->token = fmax(0, whole.least - out->leaf - out->optimiser) / fmax(1, out->tokens);
    return FV_OK;
}

/* ---- predicting ---- */

/* The most nodes of the tree that one rank sends. */
static int most_nodes(int64_t leaves, int ranks)
{
    int most = 1;
    fv__node node[FV__TREE_NODES];
    for (int r = 0; r < ranks; r++) {
        int n = fv__tree_nodes(leaves, fv__tree_from(leaves, r, ranks),
                               fv__tree_from(leaves, r + 1, ranks), node, FV__TREE_NODES);
        if (n > most) most = n;
    }
    return most;
}

/* Memory of a rank, as sizes_of has it for a dry run. */
static double bytes_of(const fv_scaling *s, const fv__shares *h, int64_t shards, int64_t k,
                       bool recompute)
{
    double all = (double)h->n * (1 + fv__ranks_aside(shards, 0, k)),
           shared = (double)(fv__shares_stored(h) + FV__UNDER_WAY * h->per_rank * h->ranks),
           grad = h->ranks > 1 && k == 1 && !recompute ? fmin(all, shared) : all,
           tokens = s->tokens / (double)shards,
           leaf = recompute ? s->kept_leaf_bytes + s->kept_token_bytes * tokens
                            : s->leaf_bytes + s->token_bytes * tokens;
    return (double)h->n * s->number_bytes + 4 * grad +
           (double)fv__shares_stored(h) * s->state_bytes + leaf;
}

/* What was measured, as it is planned: on faster devices, with longer updates. */
static fv_scaling adjusted(const fv_scaling *s, const fv_scaling_net *net)
{
    fv_scaling a = *s;
    double speed = net->speed > 0 ? net->speed : 1;
    a.leaf /= speed;
    a.token /= speed;
    a.block /= speed;
    a.optimiser /= speed;
    if (net->tokens > 0) {
        a.rows *= net->tokens / a.tokens;
        a.tokens = net->tokens;
    }
    return a;
}

fv_scaling_layout fv_scaling_predict(const fv_scaling *measured, fv_scaling_net net, int ranks,
                                     int64_t shards, bool recompute)
{
    fv_scaling planned = adjusted(measured, &net), *s = &planned;
    fv__shares h = fv__shares_for(s->numbers, 0, ranks);
    int64_t k = (shards + ranks - 1) / ranks;
    double share = (double)(ranks - 1) / ranks, buckets = (double)h.buckets,
           wide = net.bandwidth * (net.efficiency > 0 ? net.efficiency : EFFICIENCY),
           work = net.overhead > 0 ? net.overhead : OVERHEAD,
           large = net.latency + work + MESSAGE * (ranks - 1), small = net.latency + work,
           one = (s->leaf + s->token * s->tokens / (double)shards) * (recompute ? AGAIN : 1);
    fv_scaling_layout l = {.ranks = ranks, .shards = shards, .recompute = recompute};
    l.compute = (double)k * one + (double)(k - 1) * s->block + s->optimiser / ranks;
    l.bytes = bytes_of(s, &h, shards, k, recompute);
    if (ranks > 1) {
        double late = recompute ? 1 : fmin(1, 2 / buckets);
        l.buckets = h.buckets;
        double grads = most_nodes(shards, ranks) * share * 4 * (double)s->numbers,
               params = share * s->number_bytes * (double)s->numbers;
        l.sent = grads + params;
        l.reduce = buckets * large + grads / wide;
        l.gather = buckets * large + params / wide + (buckets + 2) * small;
        l.exposed = fmax(l.reduce - BACKWARD * one * (1 - late), l.reduce * late) + l.gather;
    }
    l.seconds = l.compute + l.exposed;
    l.tokens = s->tokens / l.seconds;
    return l;
}

bool fv_scaling_best(fv_scaling_layout *out, const fv_scaling *s, fv_scaling_net net, int ranks,
                     double memory)
{
    bool found = false;
    double rows = adjusted(s, &net).rows;
    for (int64_t k = 1; k <= MOST_LEAVES; k *= 2)
        for (int recompute = 0; recompute < 2; recompute++) {
            if ((double)(k * ranks) > rows) continue;
            fv_scaling_layout l = fv_scaling_predict(s, net, ranks, k * ranks, recompute);
            if (memory > 0 && l.bytes > memory) continue;
            if (!found || l.seconds < out->seconds) *out = l;
            found = true;
        }
    return found;
}
