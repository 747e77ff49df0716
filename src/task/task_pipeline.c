/* task_pipeline.c - pipelines: settings, batches, results, and what a failed record gives.
 *
 * A task's run takes a batch and hands its results on in order.  Where it fails for a reason that
 * may lie in one record, the records that have no result yet run one by one, and those that fail
 * again get an error for a result.  The alternative, errors per record inside every task, would
 * have each of them sort good records from bad ones; a batch with a bad record is rare, and what a
 * record gives does not depend on the others, so running it again costs time only then. */
#include "task_pipeline.h"

#include <stdio.h>

#include "fovea/author/comm.h"
#include "fovea/author/family.h"

#define X(name) extern const fv_task_kind fv__##name##_task;
#include "task_files.h"
#undef X

static const fv_task_kind *const kinds[] = {
#define X(name) &fv__##name##_task,
#include "task_files.h"
#undef X
    NULL};

const fv_task_kind *fv_task_kind_at(int i)
{
    return i >= 0 && i < (int)(sizeof kinds / sizeof *kinds) ? kinds[i] : NULL;
}

const fv_task_kind *fv__task_kind_find(const char *name)
{
    for (int i = 0; kinds[i]; i++)
        if (!strcmp(kinds[i]->name, name)) return kinds[i];
    return NULL;
}

/* ---- settings ---- */

static bool has_key(const fv_field *table, const char *key)
{
    for (; table && table->name; table++)
        if (!strcmp(table->name, key)) return true;
    return false;
}

/* The last one holds: a command line may repeat an option to overrule an alias or a script. */
const char *fv__setting(const fv_setting *s, int n, const char *key)
{
    for (int i = n - 1; i >= 0; i--)
        if (!strcmp(s[i].key, key)) return s[i].value;
    return NULL;
}

const char *fv__setting_at(const fv_pipeline *p, const char *key, int i)
{
    for (int k = 0; k < p->opt.n_settings; k++)
        if (!strcmp(p->opt.settings[k].key, key) && !i--) return p->opt.settings[k].value;
    return NULL;
}

/* Keys of the task and, where it generates, of generating; the latter are applied when the model's
 * own are known. */
static fv_status read_settings(fv_pipeline *p, fv_err *e)
{
    const fv_task_kind *k = p->kind;
    fv_fields_default(p->options, k->options);
    for (int i = 0; i < p->opt.n_settings; i++) {
        const fv_setting *s = &p->opt.settings[i];
        if (has_key(k->options, s->key)) {
            fv_status st = fv_fields_set(p->options, k->options, s->key, s->value, e);
            if (st) return fv_fail(e, FV_EUSAGE, "%s", e ? e->text : "");
        } else if (!k->generates || !has_key(fv_gen_fields, s->key)) {
            return fv_fail(e, FV_EUSAGE, "%s: %s has no such setting", s->key, k->name);
        }
    }
    return FV_OK;
}

/* ---- opening ---- */

/* In the order in which errors are useful: wrong settings first, then a missing model, then what
 * opening it says. */
static fv_status open_all(fv_pipeline *p, fv_err *e)
{
    const fv_task_kind *k = p->kind;
    fv_err local;
    if (!e) e = &local;
    p->options = fv__alloc(&p->env, k->size);
    if (!p->options && k->size) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = read_settings(p, e);
    if (!st && !p->opt.model && !k->no_model)
        st = fv_fail(e, FV_EUSAGE, "a model is needed: -m DIR");
    if (!st && k->check) st = k->check(p, e);
    if (!st) st = k->open(p, e);
    bool shared = p->opt.tensor_parallel || p->opt.pipeline_parallel;
    if (!st && shared && fv_comm_size(p->opt.comm) > 1 && !p->writer.model)
        st = fv_fail(e, FV_EUSAGE, "ranks share models that generate; %s has none", k->name);
    if (!st && p->opt.tensor_parallel && p->opt.pipeline_parallel)
        st = fv_fail(e, FV_EUSAGE, "ranks share the weights or the layers of a model, not both");
    return st;
}

/* The pipeline has its own copy of the device's environment, so tests count and limit its memory by
 * it. */
fv_status fv_pipeline_open(fv_pipeline **out, fv_device *d, fv_pipeline_opt opt, fv_err *e)
{
    const fv_task_kind *k = fv__task_kind_find(opt.task);
    *out = NULL;
    if (!k) return fv_fail(e, FV_EUSAGE, "there is no task \"%s\"", opt.task);
    fv_env env = d ? *fv_device_env(d) : (fv_env){0};
    fv_pipeline *p = fv__alloc(&env, sizeof *p);
    if (!p) return fv_fail(e, FV_ENOMEM, "out of memory");
    p->env = env;
    p->kind = k;
    p->opt = opt;
    p->dev = d;
    p->out.env = p->kept.env = p->extra.env = &p->env;
    if (!p->opt.batch) p->opt.batch = k->batch ? k->batch : 1;
    fv_status st = open_all(p, e);
    if (st)
        fv_pipeline_close(p);
    else
        *out = p;
    return st;
}

/* The task's own close comes first: what it keeps may use the model and the writer. */
void fv_pipeline_close(fv_pipeline *p)
{
    if (!p) return;
    fv_env env = p->env;
    if (!p->finished) fv_comm_abort(p->opt.comm, "its share of the records failed");
    if (p->kind->close) p->kind->close(p);
    fv_task_close(p->task);
    fv_writer_close(&p->writer);
    fv__buf_free(&p->out);
    fv__buf_free(&p->kept);
    fv__buf_free(&p->extra);
    fv__free(&env, p->self, p->self_size);
    fv__free(&env, p->options, p->kind->size);
    fv__free(&env, p, sizeof *p);
}

fv_status fv__pipeline_self(fv_pipeline *p, size_t size, fv_err *e)
{
    p->self = fv__alloc(&p->env, size);
    if (!p->self) return fv_fail(e, FV_ENOMEM, "out of memory");
    p->self_size = size;
    return FV_OK;
}

/* Records are texts of a length; paths are strings. */
fv_status fv__task_path(char *out, size_t size, const fv_text *record, fv_err *e)
{
    if (record->n >= size || memchr(record->s, 0, record->n))
        return fv_fail(e, FV_EARG, "a path of at most %zu bytes was expected", size - 1);
    memcpy(out, record->s, record->n);
    out[record->n] = 0;
    return FV_OK;
}

fv_status fv__task_each_path(fv_pipeline *p, const fv_text *in, int64_t n,
                             fv_status (*one)(fv_pipeline *p, const char *path, fv_err *e),
                             fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n && !st; i++) {
        char path[4096];
        st = fv__task_path(path, sizeof path, &in[i], e);
        if (!st) st = one(p, path, e);
    }
    return st;
}

fv_model_opt fv__pipeline_model_opt(const fv_pipeline *p)
{
    return (fv_model_opt){.weights = p->opt.weights,
                          .widen = p->opt.widen,
                          .adapters = p->opt.adapters};
}

fv_status fv__open_encoder(fv_pipeline *p, fv_job job, fv_err *e)
{
    fv_model_opt opt = fv__pipeline_model_opt(p);
    if (opt.weights == FV_BF16) opt.dtype = FV_BF16;
    return fv_task_open(&p->task, p->dev, p->opt.model, job, opt, e);
}

/* Reads config.json and no weights: tasks that can be done by several kinds of model choose by it.
 */
fv_head_job fv__head_job(const char *dir, char *name, size_t size)
{
    fv_dir *d;
    if (name) name[0] = 0;
    if (fv_dir_open(&d, NULL, dir, NULL)) return FV_HEAD_BASE;
    const char *type = fv_config_type(fv_dir_config(d)),
               *architecture = fv_json_text(fv_dir_config(d), "architectures.0");
    const fv_family *f = type ? fv_family_find(type) : NULL;
    const fv_family_head *head = f && architecture ? fv_family_head_find(f, architecture) : NULL;
    fv_head_job job = head ? head->job : FV_HEAD_BASE;
    if (name && architecture) snprintf(name, size, "%s", architecture);
    fv_dir_close(d);
    return job;
}

int64_t fv_pipeline_tokens(const fv_pipeline *p) { return p->tokens; }

/* ---- results ---- */

/* p->done does not move: parts and the result that completes them have the record's number. */
fv_status fv__task_emit_part(fv_pipeline *p, const char *text, size_t n, fv_err *e)
{
    fv_task_result r = {.record = p->first + p->done, .text = text, .n = n, .more = true};
    if (n) fv__task_deliver(p, &r);
    return p->stopped ? fv_fail(e, FV_ESTATE, "no more results are wanted") : FV_OK;
}

void fv__task_extra(fv_pipeline *p, const void *extra, size_t n)
{
    fv__buf_add(&p->extra, extra, n);
}

/* A task calls this once for each record, in order; the number of calls is how run_batch knows
 * which record failed. */
fv_status fv__task_emit(fv_pipeline *p, fv_err *e)
{
    if (p->out.failed || p->extra.failed) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_task_result r = {.record = p->first + p->done++,
                        .text = p->out.data ? p->out.data : "",
                        .n = p->out.len,
                        .note = p->note[0] ? p->note : NULL};
    fv__task_deliver(p, &r);
    p->out.len = 0;
    p->note[0] = 0;
    if (p->add_error.code) return fv_fail(e, p->add_error.code, "%s", p->add_error.text);
    return p->stopped ? fv_fail(e, FV_ESTATE, "no more results are wanted") : FV_OK;
}

/* A record without a result; plain output that has a line for each stays in step with its input. */
static void emit_error(fv_pipeline *p, const fv_err *error)
{
    p->out.len = p->extra.len = 0;
    p->note[0] = 0;
    if (p->opt.json) {
        fv__json_begin(&p->out, '{');
        fv__json_int_at(&p->out, "line", p->first + p->done);
        fv__json_text_at(&p->out, "error", error->text, strlen(error->text));
        fv__json_end(&p->out, '}');
    }
    if (p->opt.json || p->kind->aligned) fv__buf_str(&p->out, "\n");
    fv_task_result r = {.record = p->first + p->done++,
                        .text = p->out.data ? p->out.data : "",
                        .n = p->out.len,
                        .error = error};
    fv__task_deliver(p, &r);
    p->out.len = 0;
}

/* Failures that are nobody's but the machine's or the caller's end a run. */
static bool ends_run(const fv_pipeline *p, fv_status st)
{
    return p->stopped || st == FV_ENOMEM || st == FV_EDEVICE || st == FV_EMISSING ||
           st == FV_EUSAGE || st == FV_EIO;
}

/* A batch, and where it fails, what is left of it record by record. */
static fv_status run_batch(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    int64_t before = p->done;
    fv_status st = p->kind->run(p, in, n, e);
    if (!st || p->stopped) return FV_OK;
    for (int64_t i = p->done - before; i < n; i = p->done - before) {
        if (ends_run(p, st)) return p->stopped ? FV_OK : st;
        p->out.len = p->extra.len = 0;
        if (n > 1) st = p->kind->run(p, in + i, 1, e);
        if (st && !ends_run(p, st)) emit_error(p, e);
    }
    return p->stopped || !ends_run(p, st) ? FV_OK : st;
}

static void begin(fv_pipeline *p, int64_t first, fv_task_result_fn *fn, void *user)
{
    p->first = first;
    p->done = 0;
    p->fn = fn;
    p->user = user;
    p->stopped = false;
}

/* Batches of opt.batch records, the last one smaller. */
static fv_status run_all(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n && !st && !p->stopped; i += p->opt.batch)
        st = run_batch(p, in + i, n - i < p->opt.batch ? n - i : p->opt.batch, e);
    return st;
}

/* Those of n records from `first` on that are this rank's, run by run. */
static fv_status run_own(fv_pipeline *p, const fv_text *in, int64_t n, int64_t first, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t i = 0, end; i < n && !st && !p->stopped; i = end) {
        bool own = fv__task_owns(p, first + i);
        for (end = i + 1; end < n && fv__task_owns(p, first + end) == own;) end++;
        p->first = first + i;
        p->done = 0;
        if (own) st = run_all(p, in + i, end - i, e);
    }
    return st;
}

fv_status fv_pipeline_run(fv_pipeline *p, const fv_text *in, int64_t n, int64_t first,
                          fv_task_result_fn *fn, void *user, fv_err *e)
{
    fv_err local;
    begin(p, first, fn, user);
    return run_own(p, in, n, first, e ? e : &local);
}

/* Lines that are no text break the input into stretches; each stretch runs as if it were alone. */
fv_status fv_pipeline_run_lines(fv_pipeline *p, const fv_line *lines, int64_t n,
                                fv_task_result_fn *fn, void *user, fv_err *e)
{
    fv_err local;
    fv_text *texts = fv__alloc(&p->env, (size_t)(n + 1) * sizeof *texts);
    if (!texts) return fv_fail(e, FV_ENOMEM, "out of memory for %lld lines", (long long)n);
    begin(p, n ? lines[0].number : 1, fn, user);
    fv_status st = FV_OK;
    for (int64_t i = 0, good; i < n && !st && !p->stopped; i += good) {
        for (good = 0; i + good < n && !lines[i + good].error.code; good++)
            texts[good] = lines[i + good].text;
        st = run_own(p, texts, good, lines[i].number, e ? e : &local);
        if (st || p->stopped || i + good == n) continue;
        p->first = lines[i + good].number;
        p->done = 0;
        if (fv__task_owns(p, p->first)) emit_error(p, &lines[i + good].error);
        good++;
    }
    fv__free(&p->env, texts, (size_t)(n + 1) * sizeof *texts);
    return st;
}

/* Results of the end have numbers behind the last record's. */
fv_status fv_pipeline_finish(fv_pipeline *p, fv_task_result_fn *fn, void *user, fv_err *e)
{
    p->fn = fn;
    p->user = user;
    fv_status st = fv__task_gather(p, e);
    if (!st && p->add_error.code) st = fv_fail(e, p->add_error.code, "%s", p->add_error.text);
    p->finished = !st;
    p->first += p->done;
    p->done = 0;
    if (st || !p->kind->finish || fv_comm_rank(p->opt.comm)) return st;
    fv_comm *ranks = p->opt.comm;
    p->opt.comm = NULL; /* what finish emits is rank 0's own */
    st = p->kind->finish(p, e);
    p->opt.comm = ranks;
    return st;
}
