/* regress.c - the task of regressions: the numbers that belong to a time series.
 *
 * A record is the numbers of a series on a line.  The model gives numbers as its training data had
 * them; of one that gives a distribution (loss nll) they are its mean. */
#include "fovea/author/task.h"
#include "task_pipeline.h"

int64_t fv_task_targets(const fv_task *t) { return fv__task_setting(t, "num_targets"); }

static fv_status keep_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                          int64_t width, fv_err *e)
{
    float *to = user;
    (void)s, (void)e;
    memcpy(to + i * width, out[0], (size_t)width * sizeof *to);
    return FV_OK;
}

fv_status fv_task_regress(fv_task *t, const fv_text *texts, int64_t n, float *out, fv_err *e)
{
    fv_wanted w = {.names = {"regression_outputs"}, .per_token = 1, .fn = keep_row, .user = out};
    fv__task_begin(t);
    if (!fv__task_reads_series(t))
        return fv_fail(e, FV_EARG, "%s does not read series", fv_model_head(t->model));
    return fv__task_run_series(t, texts, n, &w, e);
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    return fv__open_encoder(p, FV_JOB_REGRESS, e);
}

/* Numbers of one series: with blanks between them, or as a list. */
static void put(fv_pipeline *p, const float *y, int64_t n)
{
    fv_buf *b = &p->out;
    if (!p->opt.json) {
        for (int64_t i = 0; i < n; i++) fv__buf_fmt(b, "%s%.6g", i ? " " : "", (double)y[i]);
        fv__buf_str(b, "\n");
        return;
    }
    fv__json_begin(b, '{');
    fv__json_key(b, "values");
    fv__json_begin(b, '[');
    for (int64_t i = 0; i < n; i++) fv__json_put_number(b, (double)y[i]);
    fv__json_end(b, ']');
    fv__buf_str(b, "}\n");
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    int64_t K = fv_task_targets(p->task);
    size_t bytes = (size_t)(n * K) * sizeof(float);
    float *y = fv__alloc(&p->env, bytes);
    fv_status st = y ? fv_task_regress(p->task, in, n, y, e)
                     : fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; !st && i < n; i++) {
        put(p, y + i * K, K);
        st = fv__task_emit(p, e);
    }
    fv__free(&p->env, y, bytes);
    return st;
}

static const fv_field options[] = {{0}}; /* none of its own */

static const fv_task_example examples[] = {{"fovea regress -m runs/etth1-regress/model series.txt",
                                            "a number for each line"},
                                           {"fovea eval -m runs/etth1-regress/model test.tsv",
                                            "errors on series whose numbers are known"},
                                           {0}};

const fv_task_kind fv__regress_task = {
    .name = "regress",
    .summary = "find the number that belongs to a time series",
    .about =
        "Reads lines of numbers, a time series each, with commas or blanks between the values and "
        "\":\" between channels, and prints the numbers that the model finds for it.  A series "
        "that is shorter than the model reads stands at the end of its window; \"?\" or NaN is a "
        "value that is missing.  A model that gives a distribution prints its mean.",
    .examples = examples,
    .options = options,
    .aligned = true,
    .batch = 256,
    .open = open_task,
    .run = run,
    .eval = &fv__eval_regress};
