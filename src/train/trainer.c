/* trainer.c - the loop: batches in, updates out, evaluation and checkpoints on the way. */
#include <math.h>
#include <time.h>

#include "train/run.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void tell(const fv_train_job *j, const fv_train_state *s, const char *event)
{
    if (j->progress) j->progress(j->user, s, event);
}

/* ---- one update ---- */

typedef struct loop {
    const fv_train_job *job;
    fv_train_state *s;
    fv_ctx *ctx;
    fv_adam *adam;
    fv_plan *plan; /* of s->epoch */
    fv_run *run;   /* NULL: nothing is written */
} loop;

static fv_status context_failed(fv_ctx *c, fv_err *e)
{
    const fv_err *why = fv_ctx_err(c);
    return fv_fail(e, why->code, "%s", why->text);
}

/* The next batch of the plan; at its end the next epoch begins. */
static fv_status next_batch(loop *l, const int32_t **rows, int64_t *n, fv_err *e)
{
    const fv_train_job *j = l->job;
    if (l->plan && l->s->batch == fv_plan_count(l->plan)) {
        fv_plan_free(l->plan);
        l->plan = NULL;
        l->s->epoch++;
        l->s->batch = 0;
    }
    if (!l->plan) {
        fv_status st = fv_plan_make(&l->plan, fv_device_env(j->device), j->train, j->opt.batch_tokens, (uint64_t)j->opt.seed,
                                    l->s->epoch, e);
        if (st) return st;
    }
    *rows = fv_plan_batch(l->plan, l->s->batch++, n);
    return FV_OK;
}

/* Adds the gradient of one batch; *loss is its share of the update's. */
static fv_status accumulate(loop *l, const int32_t *rows, int64_t n, double n_labels, int64_t part, double *loss, fv_err *e)
{
    const fv_train_job *j = l->job;
    fv_ctx *c = l->ctx;
    float value = 0;
    fv_ctx_reset(c, (uint64_t)(l->s->step * j->opt.accumulate + part));
    fv_items in = fv_pairs_items(c, j->train, rows, n, j->pad, j->start), out = {0};
    in.n_labels = n_labels;
    in.smooth = j->opt.smooth;
    fv_model_forward(c, j->model, &in, &out);
    fv_tensor *y = fv_items_get(&out, "loss");
    if (fv_read(c, y, &value, 1)) return context_failed(c, e);
    if (!isfinite(value)) return fv_fail(e, FV_ENUMERIC, "update %lld: the loss is not finite", (long long)l->s->step + 1);
    if (fv_backward(c, y)) return context_failed(c, e);
    *loss += (double)value;
    return FV_OK;
}

static double labels_of(const fv_pairs *p, const int32_t *rows, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t len;
        fv_pairs_target(p, rows[i], &len);
        sum += (double)len;
    }
    return sum;
}

enum { MOST_PARTS = 1024 };

static fv_status update(loop *l, fv_err *e)
{
    const fv_train_job *j = l->job;
    const int32_t *rows[MOST_PARTS];
    int64_t n[MOST_PARTS], parts = j->opt.accumulate < MOST_PARTS ? j->opt.accumulate : MOST_PARTS;
    double labels = 0, loss = 0;
    fv_status st = FV_OK;
    fv_params_zero_grad(fv_model_params(j->model));

    /* An epoch's plan must stay while its batches are used, so an update never reaches into the next one. */
    int64_t got = 0;
    while (!st && got < parts && (got == 0 || l->s->batch < fv_plan_count(l->plan))) {
        st = next_batch(l, &rows[got], &n[got], e);
        if (!st) labels += labels_of(j->train, rows[got], n[got]), got++;
    }
    for (int64_t i = 0; !st && i < got; i++) st = accumulate(l, rows[i], n[i], labels, i, &loss, e);
    if (!st) st = fv_adam_step(l->adam, &j->opt, l->s->step + 1, &l->s->norm, e);
    if (st) return st;
    l->s->step++;
    l->s->loss = loss;
    l->s->lr = fv_learning_rate(&j->opt, l->s->step);
    l->s->tokens += (int64_t)labels;
    return FV_OK;
}

/* ---- evaluation ---- */

fv_status fv_train_evaluate(const fv_train_job *j, const fv_pairs *pairs, double *loss, fv_err *e)
{
    fv_ctx *c;
    fv_plan *plan = NULL;
    double sum = 0, labels = 0;
    fv_status st = fv_ctx_new(&c, j->device, (fv_ctx_opt){.dtype = fv_params_at(fv_model_params(j->model), 0)->dtype}, e);
    if (st) return st;
    st = fv_plan_make(&plan, fv_device_env(j->device), pairs, j->opt.batch_tokens, 0, -1, e);
    for (int64_t i = 0; !st && i < fv_plan_count(plan); i++) {
        int64_t n;
        float value = 0;
        const int32_t *rows = fv_plan_batch(plan, i, &n);
        fv_ctx_reset(c, (uint64_t)i);
        fv_items in = fv_pairs_items(c, pairs, rows, n, j->pad, j->start), out = {0};
        double here = in.n_labels;
        fv_model_forward(c, j->model, &in, &out);
        if (fv_read(c, fv_items_get(&out, "loss"), &value, 1)) st = context_failed(c, e);
        sum += (double)value * here;
        labels += here;
    }
    *loss = labels > 0 ? sum / labels : NAN;
    fv_plan_free(plan);
    fv_ctx_free(c);
    return st;
}

static fv_status evaluate(loop *l, fv_err *e)
{
    fv_train_state *s = l->s;
    if (!l->job->valid) return FV_OK;
    fv_status st = fv_train_evaluate(l->job, l->job->valid, &s->valid, e);
    if (st) return st;
    bool better = !(s->valid >= s->best);
    if (better) s->best = s->valid, s->best_step = s->step;
    s->worse = better ? 0 : s->worse + 1;
    tell(l->job, s, "valid");
    return l->run ? fv__run_log(l->run, s, "valid", e) : FV_OK;
}

/* ---- the whole ---- */

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static fv_status save(loop *l, fv_err *e)
{
    fv_status st = l->run ? fv__run_save(l->run, l->job, l->adam, l->s, e) : FV_OK;
    if (!st && l->run) tell(l->job, l->s, "saved");
    return st;
}

static fv_status iterate(loop *l, fv_err *e)
{
    const fv_train_job *j = l->job;
    const fv_train_opt *o = &j->opt;
    fv_train_state *s = l->s;
    double start = now();
    fv_status st = FV_OK;
    bool stop = false;
    while (!st && s->step < o->updates && !stop) {
        st = update(l, e);
        if (st) break;
        s->seconds = now() - start;
        tell(j, s, "step");
        if (l->run && due(s->step, o->log_every)) st = fv__run_log(l->run, s, "train", e);
        bool last = s->step == o->updates;
        if (!st && (due(s->step, o->eval_every) || last)) st = evaluate(l, e);
        stop = (j->stop && *j->stop) || (o->patience && s->worse >= o->patience);
        if (!st && (due(s->step, o->save_every) || last || stop)) st = save(l, e);
    }
    return st;
}

fv_status fv_train(const fv_train_job *job, fv_train_state *out, fv_err *e)
{
    loop l = {.job = job, .s = out};
    *out = (fv_train_state){.valid = NAN, .best = NAN};
    fv_ctx_opt how = {.dtype = fv_params_at(fv_model_params(job->model), 0)->dtype,
                      .seed = (uint64_t)job->opt.seed,
                      .record = true,
                      .train = true};
    fv_status st = fv_ctx_new(&l.ctx, job->device, how, e);
    if (!st) st = fv_adam_new(&l.adam, fv_model_params(job->model), job->device, e);
    if (!st && job->dir) st = fv__run_open(&l.run, job, l.adam, out, e);
    if (!st) st = iterate(&l, e);
    if (!st && l.run) st = fv__run_finish(l.run, job, e);
    fv__run_close(l.run);
    fv_plan_free(l.plan);
    fv_adam_free(l.adam);
    fv_ctx_free(l.ctx);
    return st;
}
