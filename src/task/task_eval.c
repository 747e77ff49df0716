/* task_eval.c - evaluation: which task, what the evaluations share, and the report.
 *
 * "fovea eval" finds the task by --task, or by the head that config.json names
 * (find_for_model): every task's file has an fv_task_eval beside its fv_task_kind, and lists
 * the heads that it judges. Adding an evaluation touches no list here.
 *
 * An evaluation fills r->out (the report, text or JSON) and r->predictions (one line a record);
 * both are handed over at the end, so a run that fails prints nothing half.  Where ranks share
 * the records all of them make the report, from the same results, and rank 0 hands it over. */
#include <errno.h>
#include <stdio.h>

#include "fovea/author/family.h"
#include "task_pipeline.h"

/* ---- shared ---- */

fv_status fv__eval_encoder(fv_eval_run *r, fv_task **out, fv_job job, fv_err *e)
{
    fv_model_opt opt = {.weights = r->opt->weights,
                        .widen = r->opt->widen,
                        .adapters = r->opt->adapters};
    /* As everywhere: bf16 weights mean computing in bf16. */
    if (opt.weights == FV_BF16) opt.dtype = FV_BF16;
    if (!r->opt->model) return fv_fail(e, FV_EUSAGE, "a model is needed: -m DIR");
    return fv_task_open(out, r->dev, r->opt->model, job, opt, e);
}

/* No text is written: the writer is opened for its probabilities. */
fv_status fv__eval_writer(fv_eval_run *r, fv_writer *out, fv_err *e)
{
    return fv_writer_open(out, r->dev, r->opt->model,
                          (fv_writer_opt){.weights = r->opt->weights,
                                          .widen = r->opt->widen,
                                          .adapters = r->opt->adapters,
                                          .new_tokens = 1},
                          e);
}

fv_records fv__eval_records(const fv_eval_run *r)
{
    return (fv_records){.file = r->opt->file,
                        .format = (fv_format)r->opt->format,
                        .field = {r->opt->source_field, r->opt->target_field},
                        .header = r->opt->header,
                        .latin1 = r->opt->latin1,
                        /* A record that is skipped would change what the figure is of. */
                        .malformed = FV_REFUSE,
                        .empty = FV_REFUSE};
}

void fv__eval_row(fv_buf *b, const char *name, int width, fv_match m)
{
    if (name) /* Percentages first, the three counts behind. */
        fv__buf_fmt(b, "%-*s %9.2f %9.2f %9.2f %9lld %9lld %9lld\n", width, name, fv_precision(m),
                    fv_recall(m), fv_f1(m), (long long)m.right, (long long)m.given,
                    (long long)m.gold);
    else
        fv__buf_fmt(b, "%-*s %9s %9s %9s %9s %9s %9s\n", width, "", "precision", "recall", "F1",
                    "right", "given", "gold");
}

void fv__eval_match_json(fv_buf *b, fv_match m)
{
    fv__json_number_at(b, "precision", fv_precision(m));
    fv__json_number_at(b, "recall", fv_recall(m));
    fv__json_number_at(b, "f1", fv_f1(m));
    fv__json_int_at(b, "right", m.right);
    fv__json_int_at(b, "given", m.given);
    fv__json_int_at(b, "gold", m.gold);
}

/* ---- predictions ---- */

/* Opened first, so that a run of an hour does not end with a file that cannot be written. */
static fv_status open_predictions(fv_eval_run *r, fv_err *e)
{
    const fv_io *io = fv__io(&r->env);
    const char *path = fv_comm_rank(r->opt->comm) ? NULL : r->opt->predictions;
    if (path) r->fd = io->open_write(io->self, path);
    return path && r->fd < 0 ? fv_fail(e, FV_EIO, "%s: cannot be written", path) : FV_OK;
}

static fv_status close_predictions(fv_eval_run *r, fv_status st, fv_err *e)
{
    const fv_io *io = fv__io(&r->env);
    bool bad = r->predictions.failed;
    size_t at = 0;
    while (r->fd >= 0 && !st && !bad && at < r->predictions.len) {
        int64_t n = io->write(io->self, r->fd, r->predictions.data + at, r->predictions.len - at);
        bad = n <= 0 && n != -EINTR;
        at += n > 0 ? (size_t)n : 0;
    }
    if (r->fd >= 0 && io->close(io->self, r->fd) < 0) bad = true;
    if (bad && !st) st = fv_fail(e, FV_EIO, "%s: cannot be written", r->opt->predictions);
    fv__buf_free(&r->predictions);
    return st;
}

/* ---- which task ---- */

static fv_status find_named(const char *name, const fv_task_eval **out, fv_err *e)
{
    char all[256] = "auto";
    size_t n = 4;
    const fv_task_kind *k;
    for (int i = 0; (k = fv_task_kind_at(i)); i++) {
        if (!k->eval) continue;
        if (!strcmp(k->eval->name, name)) *out = k->eval;
        if (n < sizeof all) n += (size_t)snprintf(all + n, sizeof all - n, ", %s", k->eval->name);
    }
    return *out ? FV_OK : fv_fail(e, FV_EUSAGE, "task: expected one of %s, not '%s'", all, name);
}

static fv_status find_for_model(const char *dir, const fv_task_eval **out, fv_err *e)
{
    fv_dir *d;
    char name[128];
    const fv_task_kind *k;
    fv_status st = fv_dir_open(&d, NULL, dir, e);
    if (st) return st;
    const char *type = fv_config_type(fv_dir_config(d));
    const fv_family *f = type ? fv_family_find(type) : NULL;
    /* Two tasks may judge one kind of head: that of images asks for pixel_values. */
    bool sees = f && fv_family_takes(f, "pixel_values");
    fv_dir_close(d);
    fv_head_job job = fv__head_job(dir, name, sizeof name);
    for (int i = 0; !*out && (k = fv_task_kind_at(i)); i++)
        for (const fv_head_job *h = k->eval ? k->eval->heads : NULL; h && *h != FV_HEAD_BASE; h++)
            if (*h == job && (sees || !k->eval->sees)) *out = k->eval;
    if (*out) return FV_OK;
    return fv_fail(e, FV_EARG,
                   "%s: what to evaluate is not clear from its architecture (%s); say --task", dir,
                   name[0] ? name : "none is named");
}

static fv_status find_task(const fv_eval_opt *o, const fv_task_eval **out, fv_err *e)
{
    *out = NULL;
    if (o->task && strcmp(o->task, "auto")) return find_named(o->task, out, e);
    /* Translations that exist are judged without any model. */
    if (o->hypothesis) return find_named("translate", out, e);
    if (o->model) return find_for_model(o->model, out, e);
    return fv_fail(e, FV_EUSAGE,
                   "a model is needed, -m DIR, or what was written, --hypothesis FILE");
}

fv_status fv_eval(fv_device *d, const fv_eval_opt *opt, fv_task_result_fn *fn, void *user,
                  fv_err *e)
{
    fv_eval_run r = {
        .env = *fv_device_env(d), .dev = d, .opt = opt, .fd = -1, .fn = fn, .user = user};
    const fv_task_eval *task;
    fv_err local;
    if (!e) e = &local;
    r.out.env = r.predictions.env = &r.env;
    fv_status st = find_task(opt, &task, e);
    if (!st && opt->predictions && task->no_predictions)
        st = fv_fail(e, FV_EUSAGE, "predictions: a %s has none", task->name);
    if (!st) st = open_predictions(&r, e);
    if (!st) st = task->run(&r, e);
    st = close_predictions(&r, st, e);
    /* a rank that failed alone tells the others, wherever they are */
    if (!r.settled) st = fv_comm_agree(opt->comm, st, e);
    if (!st && r.out.failed) st = fv_fail(e, FV_ENOMEM, "out of memory for the report");
    fv_task_result result = {.text = r.out.data ? r.out.data : "", .n = r.out.len};
    if (!st && !fv_comm_rank(opt->comm)) fn(user, &result);
    fv__buf_free(&r.out);
    return st;
}
