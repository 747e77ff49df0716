/* own.c - one adapter a task: each task trains values of its own of the trained parameters.
 *
 * The base is frozen, so a task cannot change what another learnt, and forgetting is zero by
 * construction; the price is that one must know the task to ask the model, and that tasks do not
 * help one another.  A task with the labels of an earlier one (SST-2 again) goes on with its
 * values.  All values are rows of one array on the device; the parameters are a copy of the row of
 * the task at hand.  Adam's moments are not reset between tasks: what is left of the task before
 * fades within the first updates. */
#include "fovea/author/adapter.h"
#include "fovea/author/backend.h"
#include "fovea/author/params.h"
#include "train/continual/continual.h"

static bool has_own(const fv__continual *s) { return s->opt.method == FV__METHOD_ADAPTERS; }

/* The first task with the same labels. */
static int slot_of(const fv__continual *s, int t)
{
    int k = 0;
    while (k < t && memcmp(s->task[k].mask, s->task[t].mask, (size_t)s->n_labels)) k++;
    return k;
}

/* Parameters to a task's row, or back. */
static fv_status copy(fv__continual *s, const fv_model *m, int t, bool keep, fv_err *e)
{
    int64_t n;
    size_t bytes = (size_t)s->n_flat * sizeof(float);
    char *row = (char *)s->own.data + (size_t)slot_of(s, t) * bytes;
    void *x = fv_params_data(fv_model_params(m), &n);
    fv_ctx *c = NULL;
    fv_status st = fv_ctx_new(&c, s->dev, (fv_ctx_opt){0}, e);
    if (st) return st;
    s->dev->backend->move(fv_ctx_stream(c), keep ? row : x, keep ? x : row, bytes);
    s->dev->backend->sync(fv_ctx_stream(c));
    st = fv_ctx_status(c) ? fv__continual_failed(c, e) : FV_OK;
    fv_ctx_free(c);
    return st;
}

fv_status fv__own_use(fv__continual *s, const fv_model *m, int t, fv_err *e)
{
    return has_own(s) ? copy(s, m, t, false, e) : FV_OK;
}

fv_status fv__own_keep(fv__continual *s, const fv_model *m, int t, fv_err *e)
{
    return has_own(s) ? copy(s, m, t, true, e) : FV_OK;
}

/* Every task begins with the first values. */
fv_status fv__own_reserve(fv__continual *s, const fv_model *m, fv_err *e)
{
    fv_status st = FV_OK;
    if (!has_own(s)) return FV_OK;
    if (!fv_model_adapter(m))
        return fv_fail(e, FV_EARG, "[continual] method adapters: [adapter] is missing");
    if (s->opt.scenario != FV__SCENARIO_TASK || s->opt.permute)
        return fv_fail(e, FV_EARG,
                       "[continual] method adapters: which of them is used follows from the task, "
                       "so only with tasks by labels and scenario = task");
    s->own = (fv_tensor){.shape = FV_SHAPE(s->n_tasks, s->n_flat), .dtype = FV_F32};
    s->own.data = s->dev->backend->alloc(s->dev, (size_t)fv_len(&s->own) * sizeof(float));
    if (!s->own.data) st = fv_fail(e, FV_ENOMEM, "continual: out of memory");
    for (int t = 0; !st && t < s->n_tasks; t++) st = copy(s, m, t, true, e);
    return st;
}

fv_status fv__continual_each_own(const fv_feed *train, const fv_model *m,
                                 fv_status (*each)(void *user, const char *task, fv_err *e),
                                 void *user, fv_err *e)
{
    fv__continual *s = train->self;
    fv_status st = FV_OK;
    if (!has_own(s) || s->done < s->n_tasks) return FV_OK;
    for (int t = 0; !st && t < s->n_tasks; t++) {
        if (slot_of(s, t) < t) continue;
        st = copy(s, m, t, false, e);
        if (!st) st = each(user, s->task[t].name, e);
    }
    return st ? st : copy(s, m, s->n_tasks - 1, false, e);
}
