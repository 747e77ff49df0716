/* statistics.c - running statistics of batch norms for weights that no update ever had.
 *
 * A moving average of the weights, or a mean of checkpoints, is drawn from with the statistics that
 * the last weights left behind, which are not its own: a GAN's images lose by it (of 1,000 by
 * fashion-mnist-sagan a classifier recognised 84.3 % with the old ones, 86.3 % with new ones).  So
 * before such a model is saved, batches go forward through it as in training, without updates, as
 * torch.optim.swa_utils.update_bn does it.
 *
 *     running <- mean over passes SETTLE .. PASSES - 1 of what the norm keeps after each
 *
 * The mean of moving averages is that of the batches whatever the norm's momentum is, and has not
 * the noise of the last few; singular vectors (spectral norm) move to the new weights by the same
 * passes.  Batches are those of the first epoch: the result does not depend on interruptions. */
#include "core/core.h"
#include "train/run.h"
#include "train/update.h"

enum { PASSES = 120, SETTLE = 40 };

static bool is_statistic(const fv_tensor *t)
{
    static const char *const ends[] = {".running_mean", ".running_var"};
    size_t n = strlen(t->name);
    for (int i = 0; i < 2; i++) {
        size_t m = strlen(ends[i]);
        if (fv__param_buffer(t) && n > m && !strcmp(t->name + n - m, ends[i])) return true;
    }
    return false;
}

/* Numbers of all statistics. */
static int64_t count(const fv_params *p)
{
    int64_t n = 0;
    for (int i = 0; i < fv_params_count(p); i++)
        if (is_statistic(fv_params_at(p, i))) n += fv_len(fv_params_at(p, i));
    return n;
}

/* sum += what the norms keep now, or the norms get sum / of.  now: room for all of them. */
static fv_status exchange(fv_params *p, double *sum, float *now, int64_t of, fv_err *e)
{
    int64_t at = 0;
    fv_status st = FV_OK;
    for (int i = 0; !st && i < fv_params_count(p); i++) {
        fv_tensor *t = fv_params_at(p, i);
        int64_t n = fv_len(t);
        if (!is_statistic(t)) continue;
        for (int64_t k = 0; of && k < n; k++) now[k] = (float)(sum[at + k] / (double)of);
        st = of ? fv_params_set(p, t, now, n, e) : fv_params_get(p, t, now, n, e);
        for (int64_t k = 0; !of && k < n; k++) sum[at + k] += (double)now[k];
        at += n;
    }
    return st;
}

static fv_status pass(const fv_train_job *j, fv_ctx *c, const fv_plan *plan, fv_batch *b, int64_t i,
                      fv_err *e)
{
    int64_t n;
    const int32_t *rows = fv_plan_batch(plan, i % fv_plan_count(plan), &n);
    fv_ctx_reset(c, (uint64_t)i);
    fv_batch_clear(b);
    fv_status st = j->train->make(j->train->self, b, rows, n,
                                  (fv_data_rng){.seed = (uint64_t)j->opt.seed}, e);
    if (st) return st;
    fv_items in = fv_batch_items(c, b), out = {0};
    fv__train_forward(j->train, c, j->model, &in, &out);
    float loss;
    if (!fv_read(c, fv_items_get(&out, "loss"), &loss, 1)) return FV_OK;
    return fv_fail(e, fv_ctx_status(c), "%s", fv_ctx_err(c)->text);
}

fv_status fv__run_statistics(const fv_train_job *j, fv_err *e)
{
    fv_params *p = fv_model_params(j->model);
    const fv_env *env = fv_device_env(j->device);
    int64_t n = count(p);
    if (!n || j->train->ordered) return FV_OK;
    fv_plan_opt how = {.tokens = j->opt.batch_tokens,
                       .rows = j->opt.batch_rows,
                       .rng = {.seed = (uint64_t)j->opt.seed}};
    size_t doubles = (size_t)n * sizeof(double), floats = (size_t)n * sizeof(float);
    double *sum = fv__alloc(env, doubles);
    float *now = fv__alloc(env, floats);
    fv_batch b = {.env = env};
    fv_plan *plan = NULL;
    fv_ctx *c = NULL;
    fv_ctx_opt opt = {.dtype = fv_params_at(p, 0)->dtype,
                      .seed = (uint64_t)j->opt.seed,
                      .train = true};
    fv_status st = sum && now ? FV_OK : fv_fail(e, FV_ENOMEM, "statistics: out of memory");
    if (!st) memset(sum, 0, doubles);
    if (!st) st = fv_plan_make(&plan, env, j->train, how, e);
    if (!st) st = fv_ctx_new(&c, j->device, opt, e);
    for (int64_t i = 0; !st && i < PASSES; i++) {
        st = pass(j, c, plan, &b, i, e);
        if (!st && i >= SETTLE) st = exchange(p, sum, now, 0, e);
    }
    if (!st) st = exchange(p, sum, now, PASSES - SETTLE, e);
    fv_batch_free(&b);
    fv_ctx_free(c);
    fv_plan_free(plan);
    if (sum) fv__free(env, sum, doubles);
    if (now) fv__free(env, now, floats);
    return st;
}
