/* run.c - the directory of a run: checkpoints, the best model, the result and the log.
 *
 *     checkpoints/step-N/   a model's directory, moments.safetensors (of N ranks N files and an
 *                           index), state.json, MANIFEST.json; carried.safetensors where a memory
 *                           goes from batch to batch
 *     best/                 a model's directory: the best evaluation so far
 *     model/                a model's directory: the result
 *     train.jsonl, events.out.tfevents.fovea, curve.svg
 *
 * A model's directory has config.json, model.safetensors, tokenizer.json and what the job adds to
 * it. */
#include "train/run.h"

#include <math.h>
#include <stdio.h>

#include "core/adapter.h"
#include "store/checkpoint.h"
#include "train/adam.h"
#include "train/ranks.h"
#include "train/sharded.h"
#include "train/tensor.h"
#include "fovea/author/family.h"
#include "fovea/author/train.h"

/* What the training data's feed carries from batch to batch, where it carries anything. */
#define CARRIED "carried.safetensors"

fv_status fv__run_join(char out[FV_PATH], const char *dir, const char *name, fv_err *e)
{
    int n = snprintf(out, FV_PATH, "%s/%s", dir, name);
    return n > 0 && n < FV_PATH ? FV_OK
                                : fv_fail(e, FV_EARG, "%.100s...: the path is too long", dir);
}

int64_t fv__run_last(const fv_run *r) { return r->last; }

/* An evaluation has a loss and a metric; an update a loss, learning rate, norm and speed. */
fv_status fv__run_log(fv_run *r, const fv_train_job *job, const fv_train_state *s,
                      const char *event, fv_err *e)
{
    if (!r->writes) return FV_OK;
    bool valid = !strcmp(event, "valid");
    double rate = s->seconds > 0 ? (double)s->tokens / s->seconds : (double)NAN;
    fv__entry x = {.step = s->step,
                   .epoch = s->epoch,
                   .valid = valid,
                   .loss = valid ? s->valid : s->loss};
    x.metric = valid ? s->metric : (double)NAN;
    x.lr = valid ? (double)NAN : s->lr;
    x.norm = valid ? (double)NAN : s->norm;
    x.rate = valid ? (double)NAN : rate;
    x.wait = !valid && s->seconds > 0 ? s->waited / s->seconds : (double)NAN;
    x.ranks = valid ? 0 : fv_comm_size(job->comm);
    x.comm = s->seconds > 0 ? s->comm_exposed / s->seconds : (double)NAN;
    x.overlap = s->comm > 0 ? 1 - s->comm_exposed / s->comm : (double)NAN;
    return fv__log_add(r->log, &x,
                       job->score   ? job->score_name
                       : job->valid ? job->valid->metric
                                    : NULL,
                       e);
}

/* ---- models ---- */

/* An update can overflow a parameter although its own loss and gradient were finite.  Such a model
 * must not replace a good one. */
static fv_status check_finite(const fv_train_job *job, fv_err *e)
{
    const fv_env *env = fv_device_env(job->device);
    fv_params *p = fv_model_params(job->model);
    float *host = NULL;
    size_t bytes = 0;
    fv_status st = FV_OK;
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        const fv_tensor *t = fv_params_at(p, i);
        if (fv__param_frozen(t)) continue;
        int64_t n = fv_len(t), k = 0;
        void *grown = host;
        if (!fv__grow(env, &grown, &bytes, (size_t)n * sizeof *host + 1))
            st = fv_fail(e, FV_ENOMEM, "saving: out of memory");
        host = grown;
        if (!st) st = fv_params_get(p, t, host, n, e);
        while (!st && k < n && isfinite(host[k])) k++;
        if (!st && k < n)
            st = fv_fail(e, FV_ENUMERIC, "parameter %s is not finite after the update; not saved",
                         t->name);
    }
    fv__free(env, host, bytes);
    return st;
}

/* A model's directory: weights in f32, config.json, the processor's files, and what the caller
 * adds. */
static fv_status write_model(const fv_train_job *job, const char *dir, fv_err *e)
{
    fv_status st = check_finite(job, e);
    fv_comm *ranks = fv__tensor_ranks(fv_model_params(job->model));
    st = fv_comm_agree(ranks, st, e);
    if (!st) st = fv_model_save(job->model, dir, FV_F32, e);
    if (fv_comm_rank(ranks)) return st;
    if (!st && job->processor) st = fv_processor_save(job->processor, dir, e);
    return st || !job->extra ? st : job->extra(job->extra_user, dir, e);
}

/* Also used for best/ and for averaging, so no other head than the model's is accepted. */
fv_status fv__run_params(const fv_run *r, const char *dir, fv_err *e)
{
    return fv_model_load(r->job->model, dir, e);
}

/* Where ranks share the parameters, those that do not write give rank 0 what it asks for until it
 * has all.  Rank 0 comes here even where it has failed before, st, or the others would wait. */
static fv_status write_shared(const fv_run *r, const fv_train_job *job, const char *dir,
                              fv_status st, fv_err *e)
{
    fv_err lost;
    fv__sharded *s = fv__sharded_of(fv_model_params(job->model));
    fv_comm *ranks = fv__tensor_ranks(fv_model_params(job->model));
    if (ranks) { /* rank 0 and those that have the rest of its model write together */
        if (fv_comm_rank(job->copies)) return st;
        st = fv_comm_agree(ranks, st, e);
        return st ? st : write_model(job, dir, e);
    }
    if (!r->writes) return st ? st : fv__sharded_serve(s, e);
    fv__sharded_drive(s);
    if (!st) st = write_model(job, dir, e);
    fv_status done = fv__sharded_done(s, &lost);
    return !st && done ? fv_fail(e, done, "%s", lost.text) : st;
}

/* Rank 0 writes, and all learn whether it could. */
fv_status fv__run_best(fv_run *r, const fv_train_job *job, fv_err *e)
{
    char dir[FV_PATH];
    fv_status st = fv__run_join(dir, r->dir, "best", e);
    st = write_shared(r, job, dir, st, e);
    return fv_comm_agree(job->comm, st, e);
}

/* ---- checkpoints ---- */

/* Doubles are written with all their digits: a resumed run compares them again. */
static void state_text(fv_buf *b, const fv_train_state *s, const fv_train_opt *o)
{
    fv__buf_fmt(
        b,
        "{\"step\": %lld, \"epoch\": %lld, \"batch\": %lld, \"best_step\": %lld, \"worse\": %lld",
        (long long)s->step, (long long)s->epoch, (long long)s->batch, (long long)s->best_step,
        (long long)s->worse);
    fv__buf_fmt(b, ", \"batch_tokens\": %lld, \"batch_rows\": %lld", (long long)o->batch_tokens,
                (long long)o->batch_rows);
    if (isfinite(s->loss)) fv__buf_fmt(b, ", \"loss\": %.17g", s->loss);
    if (isfinite(s->best)) fv__buf_fmt(b, ", \"best\": %.17g", s->best);
    if (isfinite(s->valid)) fv__buf_fmt(b, ", \"valid\": %.17g", s->valid);
    if (isfinite(s->metric)) fv__buf_fmt(b, ", \"metric\": %.17g", s->metric);
    fv__buf_str(b, "}\n");
}

/* Every file that writing a model left in the checkpoint's directory belongs to it. */
typedef struct adding {
    fv_ckpt *k;
    fv_status st;
    fv_err *e;
} adding;

static void add_file(void *user, const char *name)
{
    adding *a = user;
    if (!a->st) a->st = fv_ckpt_add_file(a->k, name, a->e);
}

static fv_status add_files(fv_run *r, fv_ckpt *k, fv_err *e)
{
    const fv_io *io = fv__io(r->env);
    adding a = {.k = k, .e = e};
    int rc = io->list(io->self, fv_ckpt_dir(k), add_file, &a);
    return rc ? fv_fail(e, FV_EIO, "%s: cannot be listed: %s", fv_ckpt_dir(k), strerror(-rc))
              : a.st;
}

/* By all ranks, into the directory of rank 0. */
static fv_status save_moments(fv_run *r, const fv_ckpt *k, const fv_train_job *job, fv_adam *adam,
                              fv_err *e)
{
    char path[FV_PATH] = "";
    fv_status st = k ? fv__run_join(path, fv_ckpt_dir(k), "moments.safetensors", e) : FV_OK;
    st = fv_comm_agree(job->comm, st, e);
    if (!st) st = fv_comm_broadcast(job->comm, path, sizeof path, 0, e);
    if (!st) st = fv_adam_save(adam, r->env, path, e);
    return fv_comm_agree(job->comm, st, e);
}

/* Beside the model's directory and the moments: the position in the data. */
static fv_status fill_checkpoint(fv_run *r, fv_ckpt *k, const fv_train_job *job,
                                 const fv_train_state *s, fv_err *e)
{
    char path[FV_PATH];
    fv_buf state = {.env = r->env};
    fv_status st = FV_OK;
    if (job->train->save_state) {
        st = fv__run_join(path, fv_ckpt_dir(k), CARRIED, e);
        if (!st) st = job->train->save_state(job->train->self, r->env, path, e);
    }
    if (!st) st = add_files(r, k, e);
    state_text(&state, s, &job->opt);
    if (!st && state.failed) st = fv_fail(e, FV_ENOMEM, "checkpoint: out of memory");
    if (!st) st = fv_ckpt_add(k, "state.json", state.data, state.len, e);
    fv__buf_free(&state);
    return st;
}

/* Checkpoints that only interruptions made: they do not count instead of one that will be
 * averaged. */
typedef struct extras {
    const fv_run *run;
    int n;
} extras;

static void count_extra(void *user, const char *name)
{
    extras *x = user;
    bool part;
    int64_t step = fv__ckpt_step(name, &part);
    x->n += step >= 0 && !part && !fv__run_regular(x->run, step);
}

static int to_keep(fv_run *r, const fv_train_opt *o)
{
    const fv_io *io = fv__io(r->env);
    extras x = {.run = r};
    if (o->result != FV_RESULT_AVERAGE) return (int)o->keep;
    if (io->list) io->list(io->self, r->checkpoints, count_extra, &x);
    return (int)(o->average > o->keep ? o->average : o->keep) + x.n;
}

/* Rank 0 writes the model and the rest, all ranks the moments; what any of them cannot write ends
 * in no checkpoint. */
static fv_status write_checkpoint(fv_run *r, const fv_train_job *job, fv_adam *adam,
                                  const fv_train_state *s, fv_err *e)
{
    fv_ckpt *k = NULL;
    int keep = r->writes ? to_keep(r, &job->opt) : 0;
    fv_status st = FV_OK;
    if (r->writes) st = fv_ckpt_begin(&k, r->env, r->checkpoints, s->step, job->config, e);
    st = write_shared(r, job, k ? fv_ckpt_dir(k) : "", st, e);
    st = fv_comm_agree(job->comm, st, e);
    if (!st) st = save_moments(r, k, job, adam, e);
    if (!st && k) st = fill_checkpoint(r, k, job, s, e);
    if (!k) return st;
    if (st)
        fv_ckpt_abandon(k);
    else
        st = fv_ckpt_commit(k, keep, e);
    return st;
}

fv_status fv__run_save(fv_run *r, const fv_train_job *job, fv_adam *adam, const fv_train_state *s,
                       fv_err *e)
{
    fv_status st = write_checkpoint(r, job, adam, s, e);
    st = fv_comm_agree(job->comm, st, e);
    if (!st) r->last = s->step;
    return st || !r->writes ? st : fv__log_draw(r->log, e);
}

/* ---- resuming ---- */

/* A resumed run may have another batch size.  The epoch then begins anew: the number of batches
 * that were used does not say which examples they held. */
static void other_batches(const fv_train_job *job, const fv_json *j, fv_train_state *s)
{
    double tokens = (double)job->opt.batch_tokens, rows = (double)job->opt.batch_rows;
    fv_json_number(j, "batch_tokens", &tokens);
    fv_json_number(j, "batch_rows", &rows);
    if (((int64_t)tokens == job->opt.batch_tokens && (int64_t)rows == job->opt.batch_rows) ||
        !s->batch)
        return;
    s->batch = 0;
    if (job->on_message)
        job->on_message(job->user, "batches have another size than before: the epoch begins anew");
}

static fv_status read_state(fv_train_state *s, const fv_train_job *job, const fv_env *env,
                            const char *path, fv_err *e)
{
    fv_json *j;
    fv_status st = fv_json_open(&j, env, path, e);
    if (st) return st;
    double n[5] = {-1, -1, -1, -1, -1};
    static const char *const keys[] = {"step", "epoch", "batch", "best_step", "worse"};
    for (int i = 0; i < 5; i++)
        if (!fv_json_number(j, keys[i], &n[i]) || !(n[i] >= 0))
            st = fv_fail(e, FV_EFORMAT, "%s: %s is missing", path, keys[i]);
    s->step = (int64_t)n[0], s->epoch = (int64_t)n[1], s->batch = (int64_t)n[2],
    s->best_step = (int64_t)n[3], s->worse = (int64_t)n[4];
    fv_json_number(j, "loss", &s->loss);
    fv_json_number(j, "best", &s->best);
    fv_json_number(j, "valid", &s->valid);
    fv_json_number(j, "metric", &s->metric);
    if (!st) other_batches(job, j, s);
    fv_json_close(j);
    return st;
}

/* Checkpoints that do not verify: how many, and the reason of the first (the newest). */
typedef struct skipped {
    const fv_train_job *job;
    int n;
    char first[400];
} skipped;

static void skip(void *user, const char *dir, const char *why)
{
    skipped *s = user;
    char text[FV_PATH + 600];
    (void)dir;
    if (!s->n++) snprintf(s->first, sizeof s->first, "%s", why);
    snprintf(text, sizeof text, "skipped a checkpoint: %s", why);
    if (s->job->on_message) s->job->on_message(s->job->user, text);
}

/* The newest checkpoint that verifies, into model, optimiser and state.  None at all is a fresh
 * run; only broken ones are an error, as starting over would overwrite them. */
static fv_status resume(fv_run *r, const fv_train_job *job, fv_adam *adam, fv_train_state *s,
                        fv_err *e)
{
    fv_ckpt_found found;
    char path[FV_PATH];
    skipped bad = {.job = job};
    fv_status st = fv_ckpt_find(&found, r->env, r->checkpoints, job->config, skip, &bad, e);
    if (st) return st;
    if (found.step < 0)
        return bad.n ? fv_fail(e, FV_EFORMAT,
                               "%s: none of %d checkpoints can be used; the newest: %s",
                               r->checkpoints, bad.n, bad.first)
                     : FV_OK;
    st = fv__run_params(r, found.dir, e);
    fv__sharded_forget(fv__sharded_of(fv_model_params(job->model)));
    if (!st) st = fv__run_join(path, found.dir, "moments.safetensors", e);
    if (!st) st = fv_adam_load(adam, r->env, path, e);
    if (!st) st = fv__run_join(path, found.dir, "state.json", e);
    if (!st) st = read_state(s, job, r->env, path, e);
    if (!st && job->train->load_state) {
        st = fv__run_join(path, found.dir, CARRIED, e);
        if (!st) st = job->train->load_state(job->train->self, r->env, path, e);
    }
    r->last = s->step;
    if (!st && job->on_message && r->writes) {
        char text[FV_PATH + 64];
        snprintf(text, sizeof text, "resuming after update %lld of %lld, from %s",
                 (long long)s->step, (long long)job->opt.updates, found.dir);
        job->on_message(job->user, text);
    }
    return st;
}

/* ---- opening and finishing ---- */

/* Rank 0 makes the directories and the log; the log last, as it forgets entries behind the update
 * that the checkpoint gives.  All ranks read the checkpoint, and must have found the same. */
fv_status fv__run_open(fv_run **out, const fv_train_job *job, fv_adam *adam, fv_train_state *s,
                       fv_err *e)
{
    const fv_env *env = fv_device_env(job->device);
    fv_run *r = *out = fv__alloc(env, sizeof *r);
    fv_status st = r ? FV_OK : fv_fail(e, FV_ENOMEM, "%s: out of memory", job->dir);
    if (r) {
        r->env = env;
        r->job = job;
        r->last = r->lock = -1;
        r->writes = !fv_comm_rank(job->comm);
        st = fv__run_join(r->checkpoints, job->dir, "checkpoints", e);
    }
    if (!st) memcpy(r->dir, job->dir, strlen(job->dir) + 1);
    if (!st && r->writes) st = fv__dir_make(env, job->dir, e);
    if (!st && r->writes && !job->locked) st = fv__dir_lock(&r->lock, env, job->dir, e);
    if (!st && r->writes) st = fv__dir_make(env, r->checkpoints, e);
    st = fv_comm_agree(job->comm, st, e);
    if (!st && job->resume) st = resume(r, job, adam, s, e);
    st = fv_comm_agree(job->comm, st, e);
    const fv__same step = {"the newest checkpoint", (uint64_t)s->step};
    if (!st) st = fv__ranks_same(job->comm, &step, 1, e);
    if (!st && r->writes) st = fv__log_open(&r->log, env, r->dir, job->resume ? s->step : -1, e);
    return fv_comm_agree(job->comm, st, e);
}

void fv__run_close(fv_run *r)
{
    if (!r) return;
    fv__log_close(r->log);
    fv__dir_unlock(&r->lock, r->env);
    fv__free(r->env, r, sizeof *r);
}

/* Replaces the parameters by those that train.result names. */
static fv_status choose(fv_run *r, const fv_train_job *job, fv_adam *adam, fv_err *e)
{
    char dir[FV_PATH];
    fv_status st;
    switch ((fv_result)job->opt.result) {
    case FV_RESULT_AVERAGE:
        st = fv__run_average(r, job->opt.average, e);
        return st ? st : fv__run_statistics(job, e);
    case FV_RESULT_EMA: st = fv_adam_swap(adam, e); return st ? st : fv__run_statistics(job, e);
    case FV_RESULT_BEST:
        if (!job->valid) return fv_fail(e, FV_EARG, "result = best needs validation data");
        st = fv__run_join(dir, r->dir, "best", e);
        return st ? st : fv__run_params(r, dir, e);
    case FV_RESULT_LAST: break;
    }
    return FV_OK;
}

/* A moving average is shared, so all ranks swap it in; the rest is rank 0's. */
fv_status fv__run_finish(fv_run *r, const fv_train_job *job, fv_adam *adam, bool whole, fv_err *e)
{
    char dir[FV_PATH];
    fv_status st = r->writes ? fv__log_draw(r->log, e) : FV_OK;
    st = fv_comm_agree(job->comm, st, e);
    if (st || !whole) return st;
    bool from_files = job->opt.result == FV_RESULT_AVERAGE || job->opt.result == FV_RESULT_BEST;
    if (from_files) fv__sharded_leave(fv__sharded_of(fv_model_params(job->model)), r->writes);
    bool shared = fv__tensor_ranks(fv_model_params(job->model));
    if (r->writes || shared || job->opt.result == FV_RESULT_EMA) st = choose(r, job, adam, e);
    if (!st) st = fv__run_join(dir, r->dir, "model", e);
    st = write_shared(r, job, dir, st, e);
    return fv_comm_agree(job->comm, st, e);
}
