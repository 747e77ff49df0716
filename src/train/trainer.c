/* trainer.c - the training loop: batches, updates, evaluations, checkpoints.
 *
 * Updates are started ahead of the device: their losses are read several at a time, so the state
 * that each would have is kept in `waiting` until its loss is known.  The number that may be ahead
 * is limited to a quarter of a second of work, so that Ctrl-C and the progress bar stay prompt.
 * Before an evaluation or a checkpoint everything pending is read: a loss that is not finite is
 * found before anything is saved. */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "core/adapter.h"
#include "train/evaluate.h"
#include "train/options.h"
#include "train/pace.h"
#include "train/reduce.h"
#include "train/run.h"
#include "train/sharded.h"
#include "train/tensor.h"
#include "train/update.h"
#include "fovea/author/params.h"

/* updates whose losses are still to be read: at least what an updater lets go unread */
#define MAX_WAITING 64
/* seconds a device may be behind: so soon it stops when asked to, and tells how it goes */
#define MAX_LATE 0.25

typedef struct options {
    double time_limit;
    bool fit_updates;
} options;

static const fv_field fields[] = {
    FV_FLOAT(options, time_limit, 0, 0, 1e9,
             "seconds after which this process saves and stops, to be resumed; 0: none",
             FV_ON_RESUME),
    FV_BOOL(options, fit_updates, 0,
            "end the schedule within time_limit: fewer updates where they are too slow",
            FV_ON_RESUME),
    {0},
};

const fv__own_keys fv__own_trainer = {"train", fields, sizeof(options)};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The caller's callback, where there is one. */
static void report_progress(const fv_train_job *j, const fv_train_state *s, const char *event)
{
    if (j->progress) j->progress(j->user, s, event);
}

/* ---- one update ---- */

typedef struct loop {
    const fv_train_job *job;
    options own;
    int64_t updates; /* the last: of the recipe, or fewer where they are fitted to the limit */
    fv__pace pace;
    fv_train_state *s;
    fv_updater *updater;
    fv_loader *loader;
    const fv_batch **part; /* the batches of one update, or this rank's shards of them */
    size_t part_bytes;
    fv__trace *trace;
    bool stopping; /* a rank was asked to stop, and all know */
    fv_run *run;   /* NULL: nothing is written */
    fv_train_state waiting[MAX_WAITING];
    int n_waiting;
    int64_t ended; /* the epoch that the last update started ends, or -1 */
    /* since: when the first that waits was started, in seconds from the start */
    double start, since;
    double waited; /* seconds for batches */
} loop;

static fv_dtype dtype_of(const fv_train_job *j)
{
    return fv_params_at(fv_model_params(j->model), 0)->dtype;
}

/* Pieces of a batch; 0: it is whole.  Ranks that share a model take the way of pieces, on which
 * they wait for each other. */
static int64_t shards_of(const fv_train_job *j)
{
    bool shared = fv__tensor_ranks(fv_model_params(j->model));
    return shared && !j->opt.shards ? 1 : j->opt.shards;
}

/* The batches of one update: their losses are divided by the labels of all of them, so they must
 * all be there first.  An update ends with its epoch, however many it has got. */
static fv_status load_batches(loop *l, int64_t *n, const fv_loaded **loaded, fv_err *e)
{
    *n = 0;
    fv_loader_release(l->loader);
    do {
        fv_status st = fv_loader_next(l->loader, loaded, e);
        if (st) return st;
        l->part[(*n)++] = &(*loaded)->batch;
    } while (!(*loaded)->last && *n < l->job->opt.accumulate);
    return FV_OK;
}

/* By the caller, or by the clock: a run on a machine of one hour saves in time. */
static bool asked_to_stop(const loop *l)
{
    double limit = l->own.fit_updates ? 0 : l->own.time_limit;
    return (l->job->stop && *l->job->stop) || (limit > 0 && now() - l->start >= limit);
}

/* The same where batches are cut: this rank's leaves, of which it has at least one. */
static fv_status load_leaves(loop *l, fv__leaves *of, const fv_loaded **loaded, fv_err *e)
{
    fv_comm *c = fv__data_ranks(l->job);
    int rank = fv_comm_rank(c), ranks = fv_comm_size(c);
    *of = (fv__leaves){.leaf = l->part, .n = 1};
    fv_loader_release(l->loader);
    for (int64_t i = 0; i < of->n; i++) {
        fv_status st = fv_loader_next(l->loader, loaded, e);
        if (st) return st;
        l->part[i] = &(*loaded)->batch;
        of->all = (*loaded)->leaves;
        of->from = fv__tree_from(of->all, rank, ranks);
        of->n = fv__tree_from(of->all, rank + 1, ranks) - of->from;
    }
    return FV_OK;
}

/* Starts an update; its loss is read later.  Where batches are cut it is also finished, and the
 * ranks agree on whether to stop after it. */
static fv_status update(loop *l, fv_err *e)
{
    int64_t n = 0;
    const fv_loaded *loaded;
    fv__leaves leaves;
    fv__batch_counts counts;
    fv_train_state s = l->n_waiting ? l->waiting[l->n_waiting - 1] : *l->s;
    bool cut = shards_of(l->job), stop = asked_to_stop(l);
    double from = fv__trace_now(l->trace), asked = now();
    fv_status st = cut ? load_leaves(l, &leaves, &loaded, e) : load_batches(l, &n, &loaded, e);
    if (st) return st;
    l->waited += now() - asked;
    fv__trace_add(l->trace, FV__TRACK_MAIN, "load", s.step + 1, from);
    from = fv__trace_now(l->trace);
    if (cut) {
        st = fv__updater_step_shards(l->updater, s.step + 1, &leaves, &counts, &stop, e);
        l->stopping = l->stopping || stop;
    } else {
        st = fv_updater_step(l->updater, s.step + 1, l->part, n, e);
        counts = fv__batch_counts_of(l->part, n);
    }
    if (st) return st;
    fv__trace_add(l->trace, FV__TRACK_MAIN, "update", s.step + 1, from);
    s.epoch = loaded->epoch;
    s.batch = cut ? loaded->next : loaded->index + 1;
    s.step++;
    fv_train_opt as_planned = l->job->opt;
    as_planned.updates = l->updates;
    s.lr = fv_learning_rate(&as_planned, s.step);
    s.tokens += (int64_t)counts.tokens;
    l->waiting[l->n_waiting++] = s;
    l->ended = loaded->last ? loaded->epoch : -1;
    return FV_OK;
}

/* Whether something that happens every so many updates happens at this one. */
static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* Reads the losses of the updates that were started, and reports them.  When each of them ended is
 * not known: the time is divided evenly among them. */
static fv_status read_updates(loop *l, fv_err *e)
{
    const fv_train_job *j = l->job;
    fv_updated came[MAX_WAITING];
    int64_t n;
    fv_status st = fv_updater_read(l->updater, came, &n, e), report_status = FV_OK;
    double each = (now() - l->start - l->since) / l->n_waiting;
    for (int64_t i = 0; i < n && !report_status; i++) {
        *l->s = l->waiting[i];
        l->s->loss = came[i].loss;
        l->s->norm = came[i].norm;
        l->s->seconds = l->since + each * (double)(i + 1);
        l->s->waited = l->waited;
        fv__updater_spent(l->updater, &l->s->comm, &l->s->comm_exposed);
        report_progress(j, l->s, "step");
        if (l->run && due(l->s->step, j->opt.log_every))
            report_status = fv__run_log(l->run, j, l->s, "train", st ? NULL : e);
    }
    l->n_waiting = 0;
    return st ? st : report_status;
}

/* ---- evaluation ---- */

/* Where the EMA is the result of the run, the EMA is evaluated: it is swapped in, and the caller
 * swaps it out. */
static fv_status measure(loop *l, bool average, fv_err *e)
{
    const fv_train_job *j = l->job;
    fv_status st = average ? fv_adam_swap(fv__updater_adam(l->updater), e) : FV_OK;
    if (st) return st;
    st = fv__evaluate(j, j->valid, &l->s->valid, &l->s->metric, e);
    if (!st && j->score)
        st = fv__tensor_ranks(fv_model_params(j->model))
                 ? j->score(j->score_user, &l->s->metric, e) /* all generate together */
                 : fv__sharded_score(j, &l->s->metric, e);
    if (j->score) { /* rank 0 alone generates */
        st = fv_comm_agree(j->comm, st, e);
        if (!st) st = fv_comm_broadcast(j->comm, &l->s->metric, sizeof l->s->metric, 0, e);
    }
    return st;
}

/* Evaluates, and saves best/ where it is the best so far.  A loss that is not finite is an
 * error: it is never compared, because every comparison with NaN is false. */
static fv_status evaluate(loop *l, fv_err *e)
{
    fv_train_state *s = l->s;
    const fv_train_job *j = l->job;
    bool average = j->opt.result == FV_RESULT_EMA, by_metric = j->opt.best_by == 1;
    if (!j->valid) return FV_OK;
    fv_status st = measure(l, average, e);
    if (st) return st;
    if (!isfinite(s->valid)) {
        if (average) fv_adam_swap(fv__updater_adam(l->updater), NULL);
        return fv_fail(e, FV_ENUMERIC, "update %lld: the validation loss is not finite",
                       (long long)s->step);
    }
    if (by_metric && isnan(s->metric))
        return fv_fail(e, FV_EARG, "best_by = metric: this objective has no metric");
    double now_is = by_metric ? s->metric : s->valid;
    bool less = !by_metric || (!j->score && j->valid->less_is_better);
    bool better = less ? !(now_is >= s->best) : !(now_is <= s->best);
    if (better) s->best = now_is, s->best_step = s->step;
    s->worse = better ? 0 : s->worse + 1;
    if (better && l->run) st = fv__run_best(l->run, j, e);
    if (!st && average) st = fv_adam_swap(fv__updater_adam(l->updater), e);
    report_progress(j, s, "valid");
    return st || !l->run ? st : fv__run_log(l->run, j, s, "valid", e);
}

/* ---- a dry run ---- */

/* Completes an error: which checkpoint is intact, and which options to change where memory is
 * out. */
static fv_status with_advice(const loop *l, fv_status st, fv_err *e)
{
    int64_t good = l->run ? fv__run_last(l->run) : -1;
    bool memory = st == FV_ENOMEM;
    char intact[80] = "";
    bool failing = st == FV_ENUMERIC || st == FV_EDEVICE || (st == FV_EIO && good >= 0);
    if ((!failing && !memory) || !e) return st;
    fv_err why = *e;
    if (good >= 0)
        snprintf(intact, sizeof intact, "; the last checkpoint, of update %lld, is intact",
                 (long long)good);
    return fv_fail(e, st, "%.280s%s%s", why.text,
                   memory ? "; lower train.batch_tokens or set train.recompute" : "", intact);
}

/* The batch of an epoch with the most tokens, padding included. */
static fv_status largest(fv_batch *out, const fv_train_job *j, fv_err *e)
{
    const fv_feed *f = j->train;
    const fv_data_rng rng = {.seed = (uint64_t)j->opt.seed};
    fv_plan *plan = NULL;
    fv_status st = fv_plan_make(&plan, fv_device_env(j->device), f,
                                (fv_plan_opt){j->opt.batch_tokens, j->opt.batch_rows, rng}, e);
    int64_t most = -1, which = 0, n;
    for (int64_t i = 0; !st && i < fv_plan_count(plan); i++) {
        int64_t source, target, long_source = 0, long_target = 0;
        const int32_t *rows = fv_plan_batch(plan, i, &n);
        for (int64_t r = 0; r < n; r++) {
            f->size(f->self, rows[r], &source, &target);
            long_source = source > long_source ? source : long_source;
            long_target = target > long_target ? target : long_target;
        }
        if ((long_source + long_target) * n > most)
            most = (long_source + long_target) * n, which = i;
    }
    if (!st && most < 0) st = fv_fail(e, FV_EARG, "training: there is nothing to train on");
    if (!st) {
        const int32_t *rows = fv_plan_batch(plan, which, &n);
        /* rows are in order of length: the last shard is the largest */
        int64_t pieces = shards_of(j), part = pieces ? (n + pieces - 1) / pieces : n;
        st = f->make(f->self, out, rows + n - part, part, rng, e);
    }
    fv_plan_free(plan);
    return st;
}

/* Bytes of gradients of one rank.  Where it has one leaf, what it has sent is given back: it keeps
 * its share, and a few buckets are under way (reduce.c).  With more leaves it has a whole block and
 * those that are put aside: of rank 0, which has as many leaves as any or one fewer. */
static size_t gradient_bytes(const fv_train_job *j, const fv__shares *s)
{
    int64_t leaves = j->opt.accumulate * shards_of(j), mine = (leaves + s->ranks - 1) / s->ranks,
            all = s->n * (1 + fv__ranks_aside(leaves, 0, mine)),
            sharded = fv__shares_stored(s) + FV__UNDER_WAY * s->per_rank * s->ranks;
    bool gives_back = s->ranks > 1 && mine == 1 && fv__device_is_host(j->device) &&
                      !j->opt.fast_sums && !j->opt.recompute && j->comm == fv__data_ranks(j);
    return (size_t)(gives_back && sharded < all ? sharded : all) * sizeof(float);
}

/* Bytes of parameters, gradients, and moments with master weights and EMA, of one rank. */
static void sizes_of(const fv_train_job *j, fv_train_memory *m)
{
    const fv_params *p = fv_model_params(j->model);
    bool narrow = dtype_of(j) != FV_F32;
    int64_t n;
    fv_params_data(p, &n);
    fv__shares shares = fv__shares_of(n, fv__data_ranks(j));
    bool parted = fv__sharded_wanted(&j->opt, j->comm);
    m->parameters = (size_t)(parted ? fv__sharded_numbers(p, &shares) : n) *
                        fv_dtype_size(dtype_of(j)) +
                    fv__params_frozen_bytes(p);
    m->gradients = gradient_bytes(j, &shares);
    m->optimiser = (size_t)fv__shares_stored(&shares) * sizeof(float) *
                   (size_t)(2 + narrow + (j->opt.ema > 0));
}

fv_status fv_train_dry_run(const fv_train_job *j, fv_train_memory *out, fv_err *e)
{
    fv_train_state state = {0};
    loop l = {.job = j, .s = &state};
    fv_batch b = {.env = fv_device_env(j->device)};
    *out = (fv_train_memory){0};
    sizes_of(j, out);
    fv_status st = fv__check_shards(j, e);
    if (!st) st = largest(&b, j, e);
    if (!st) st = fv__updater_new(&l.updater, j->model, j->device, &j->opt, fv__data_ranks(j), e);
    if (!st) fv__updater_set_feed(l.updater, j->train);
    if (!st) st = fv__updater_dry_run(l.updater, &b, e);
    if (!st) out->batch = fv_updater_bytes(l.updater);
    if (!st)
        out->rows = b.part[0].shape.d[0],
        out->columns = b.part[0].shape.n > 1 ? b.part[0].shape.d[1] : 1;
    st = with_advice(&l, st, e);
    fv_updater_free(l.updater);
    fv_batch_free(&b);
    return st;
}

/* ---- the whole ---- */

/* A checkpoint, where the run has a directory. */
static fv_status save(loop *l, fv_err *e)
{
    fv_status st = l->run ? fv__run_save(l->run, l->job, fv__updater_adam(l->updater), l->s, e)
                          : FV_OK;
    if (!st && l->run) report_progress(l->job, l->s, "saved");
    return st;
}

/* Whether to stop here; with several ranks all of them do at the same update. */
static bool stops(const loop *l)
{
    return l->stopping || (fv_comm_size(l->job->comm) == 1 && asked_to_stop(l));
}

/* How many updates may be started before they are read, given how long n of them took. */
static int64_t ahead(const loop *l, int64_t n, double seconds)
{
    int64_t most = fv_updater_max_pending(l->updater),
            fit = (int64_t)fmin((double)n * MAX_LATE / fmax(seconds, 1e-6), (double)most);
    return fit > 1 ? fit : 1;
}

/* A run that is fast enough keeps its updates, and so its bits. */
static void fit_updates(loop *l, int64_t step)
{
    double limit = l->own.time_limit;
    if (!l->own.fit_updates || !(limit > 0)) return;
    l->updates = fv__pace_fit(&l->pace, step, now() - l->start, limit, l->job->opt.updates);
    fv__updater_set_updates(l->updater, l->updates);
}

static fv_status check_fit(const loop *l, fv_err *e)
{
    if (!l->own.fit_updates) return FV_OK;
    if (!(l->own.time_limit > 0))
        return fv_fail(e, FV_EUSAGE, "train.fit_updates: there is no train.time_limit to fit");
    if (fv_comm_size(l->job->comm) > 1)
        return fv_fail(e, FV_EUSAGE, "train.fit_updates: ranks would go by different clocks");
    return FV_OK;
}

/* From the state on: until all updates are done, patience is out or a stop is asked for.  Each
 * condition is looked at after an update has been started, so a stop always saves a whole one. */
static fv_status iterate(loop *l, fv_err *e)
{
    const fv_train_job *j = l->job;
    const fv_train_opt *o = &j->opt;
    fv_train_state *s = l->s;
    int64_t most = 1;
    fv_status st = FV_OK;
    bool stop = o->patience && s->worse >= o->patience;
    l->start = now();
    l->updates = o->updates;
    l->pace.older = l->pace.newer = (fv__mark){s->step, 0};
    for (int64_t step = s->step + 1; !st && step <= l->updates && !stop; step++) {
        if (!l->n_waiting) l->since = now() - l->start;
        st = update(l, e);
        bool ends = !st && l->ended >= 0 && j->train->end_epoch;
        bool last = step == l->updates, judge = due(step, o->eval_every) || last,
             keep = due(step, o->save_every) || last;
        stop = stops(l);
        if (!st && (judge || keep || stop || ends || l->n_waiting >= most)) {
            int64_t n = l->n_waiting;
            st = read_updates(l, e);
            most = ahead(l, n, now() - l->start - l->since);
            stop = stops(l);
            fit_updates(l, step);
            if (step == l->updates) judge = keep = true;
        }
        if (!st && ends) st = j->train->end_epoch(j->train->self, j->model, l->ended, e);
        double from = fv__trace_now(l->trace);
        if (!st && judge) st = evaluate(l, e);
        if (judge) fv__trace_add(l->trace, FV__TRACK_MAIN, "evaluate", step, from);
        stop = stop || (o->patience && s->worse >= o->patience);
        from = fv__trace_now(l->trace);
        if (!st && (keep || stop)) st = save(l, e);
        if (keep || stop) fv__trace_add(l->trace, FV__TRACK_MAIN, "save", step, from);
    }
    if (l->n_waiting)
        read_updates(l, NULL); /* one could not be started: those before it are still reported */
    return st;
}

/* The optimiser, the run (which may load a checkpoint), then the loader at the position in the data
 * that the checkpoint gives. */
static fv_status start(loop *l, fv_err *e)
{
    const fv_train_job *j = l->job;
    const fv_train_opt *o = &j->opt;
    const fv_env *env = fv_device_env(j->device);
    fv_comm *c = fv__data_ranks(j);
    fv_status st = fv__updater_new(&l->updater, j->model, j->device, o, c, e);
    if (!st) fv__updater_set_feed(l->updater, j->train);
    if (!st && j->trace) st = fv__trace_new(&l->trace, env, e);
    if (!st) fv__updater_set_trace(l->updater, l->trace);
    st = fv_comm_agree(j->comm, st, e);
    if (!st && j->dir) st = fv__run_open(&l->run, j, fv__updater_adam(l->updater), l->s, e);
    if (st) return st;
    int ranks = fv_comm_size(c);
    int64_t shards = shards_of(j),
            hold = shards ? (o->accumulate * shards + ranks - 1) / ranks : o->accumulate;
    l->part_bytes = (size_t)hold * sizeof *l->part;
    l->part = fv__alloc(env, l->part_bytes);
    if (!l->part) return fv_fail(e, FV_ENOMEM, "training: out of memory");
    fv_loader_opt loader = {.plan = {.tokens = o->batch_tokens,
                                     .rows = o->batch_rows,
                                     .rng = {(uint64_t)o->seed, l->s->epoch}},
                            .batch = l->s->batch,
                            .hold = hold,
                            .ahead = o->prefetch,
                            .workers = o->workers,
                            .shards = shards,
                            .group = o->accumulate,
                            .rank = fv_comm_rank(c),
                            .ranks = ranks};
    return fv_loader_new(&l->loader, env, j->train, loader, e);
}

fv_status fv_train(const fv_train_job *job, fv_train_state *out, fv_err *e)
{
    loop l = {.job = job, .s = out};
    fv__own_get(&l.own, &fv__own_trainer, job->opt.own);
    *out = (fv_train_state){.loss = NAN, .valid = NAN, .metric = NAN, .best = NAN};
    fv_status st = fv__check_shards(job, e);
    if (!st) st = check_fit(&l, e);
    if (!st) st = start(&l, e);
    if (!st) st = iterate(&l, e);
    out->updates = l.updates;
    bool whole = out->step >= l.updates || (job->opt.patience && out->worse >= job->opt.patience);
    if (!st && l.run) st = fv__run_finish(l.run, job, fv__updater_adam(l.updater), whole, e);
    if (!st && l.trace) st = fv__trace_write(l.trace, job->comm, job->trace, e);
    /* a run's result is its directory; without one the caller's model is */
    if (!st && !l.run) st = fv__sharded_whole(fv__sharded_of(fv_model_params(job->model)), e);
    if (st) st = with_advice(&l, st, e);
    if (st) fv_comm_abort(job->comm, e ? e->text : "training failed");
    fv__run_close(l.run);
    fv_loader_free(l.loader);
    fv__free(fv_device_env(job->device), l.part, l.part_bytes);
    fv_updater_free(l.updater);
    fv__trace_free(l.trace);
    return st;
}
