/* eval_texts.c - what evaluations of written text share: both sides, read from one file or from
 * two, and a pipeline over one of them.
 *
 * Translations and summaries are compared with references record by record. What is compared may
 * come from one file with two fields, from two files line by line, or, where texts were written by
 * another program, from a hypothesis in place of a model. */
#include <stdio.h>

#include "task_pipeline.h"

fv_status fv__eval_texts_new(fv_eval_texts *t, const fv_env *env, int64_t n, fv_err *e)
{
    *t = (fv_eval_texts){.env = env, .capacity = n};
    t->at = fv__alloc(env, (size_t)(n + 1) * sizeof *t->at);
    t->len = fv__alloc(env, (size_t)(n + 1) * sizeof *t->len);
    return t->at && t->len ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
}

/* The capacity is known before: more texts than records are an error of the caller, reported as
 * memory. */
fv_status fv__eval_texts_add(fv_eval_texts *t, const char *s, size_t n, fv_err *e)
{
    char *p = t->n < t->capacity ? fv__alloc(t->env, n + 1) : NULL;
    if (!p) return fv_fail(e, FV_ENOMEM, "out of memory");
    memcpy(p, s, n);
    t->len[t->n] = n;
    t->at[t->n++] = p;
    return FV_OK;
}

void fv__eval_texts_free(fv_eval_texts *t)
{
    for (int64_t i = 0; i < t->n; i++) fv__free(t->env, t->at[i], t->len[i] + 1);
    fv__free(t->env, t->at, (size_t)(t->capacity + 1) * sizeof *t->at);
    fv__free(t->env, t->len, (size_t)(t->capacity + 1) * sizeof *t->len);
    *t = (fv_eval_texts){0};
}

/* ---- both sides ---- */

/* Empty lines are texts: line i of one file belongs to line i of the other. */
static fv_status read_lines_of(fv_eval_texts *out, const fv_env *env, const char *path, fv_err *e)
{
    fv_textfile *file;
    fv_status st = fv_textfile_open(&file, env, path, e);
    if (st) return st;
    st = fv__eval_texts_new(out, env, fv_textfile_count(file), e);
    for (int64_t i = 0; !st && i < fv_textfile_count(file); i++) {
        size_t n, bad;
        const char *line = fv_textfile_line(file, i, &n);
        bad = fv__utf8_check(line, n);
        st = bad < n ? fv_fail(e, FV_EFORMAT, "%s: line %lld: not UTF-8 at byte %zu", path,
                               (long long)i + 1, bad + 1)
                     : fv__eval_texts_add(out, line, n, e);
    }
    fv_textfile_close(file);
    return st;
}

/* References may be lists: then they stand in one string with a separator. */
static fv_status read_table(fv_eval_run *r, fv_eval_texts *a, fv_eval_texts *b, fv_err *e)
{
    fv_table *t;
    fv_data_report report = {0};
    fv_records from = fv__eval_records(r);
    from.lists = true; /* several references */
    fv_status st = fv_table_open(&t, &r->env, &from, 2, &report, e);
    if (st) return st;
    st = fv__eval_texts_new(a, &r->env, fv_table_count(t), e);
    if (!st) st = fv__eval_texts_new(b, &r->env, fv_table_count(t), e);
    for (int64_t i = 0; i < fv_table_count(t) && !st; i++) {
        size_t n, m;
        const char *x = fv_table_text(t, i, 0, &n), *y = fv_table_text(t, i, 1, &m);
        st = fv__eval_texts_add(a, x, n, e);
        if (!st) st = fv__eval_texts_add(b, y, m, e);
    }
    fv_table_close(t);
    return st;
}

/* Exactly one of three ways: a model and a file of both sides; a model, a source and a reference;
 * a hypothesis and a reference. */
static bool sides_are_clear(const fv_eval_opt *o)
{
    if (o->file) return o->model && !o->source && !o->hypothesis && !o->reference;
    if (o->hypothesis) return o->reference && !o->model && !o->source && !o->predictions;
    return o->reference && o->model && o->source;
}

/* Two lengths that differ are refused: metrics over pairs that do not belong together would be
 * numbers all the same. */
fv_status fv__eval_sides(fv_eval_run *r, fv_eval_texts *texts, fv_eval_texts *reference, bool *made,
                         fv_err *e)
{
    const fv_eval_opt *o = r->opt;
    const char *path = o->hypothesis ? o->hypothesis : o->source;
    if (!sides_are_clear(o))
        return fv_fail(e, FV_EUSAGE,
                       "-m DIR with a FILE of two texts a record, or with --source FILE "
                       "--reference FILE, is needed; or, for what was written already, "
                       "--hypothesis FILE --reference FILE");
    *made = o->hypothesis;
    if (o->file) {
        path = o->file;
        fv_status st = read_table(r, texts, reference, e);
        if (st) return st;
    } else {
        fv_status st = read_lines_of(texts, &r->env, path, e);
        if (!st) st = read_lines_of(reference, &r->env, o->reference, e);
        if (st) return st;
    }
    if (texts->n != reference->n)
        return fv_fail(e, FV_EFORMAT, "%s has %lld lines and %s %lld", path, (long long)texts->n,
                       o->reference, (long long)reference->n);
    return texts->n ? FV_OK : fv_fail(e, FV_EFORMAT, "%s: no lines", path);
}

/* ---- what a model makes of them ---- */

typedef struct making {
    fv_eval_run *r;
    fv_pipeline *p;
    const fv_eval_texts *in;
    fv_eval_texts *made;
    fv_buf *out; /* of the slice that runs */
    fv_err e;
} making;

/* The line of one record, without its end. */
static bool give(void *user, const fv_task_result *x)
{
    making *t = user;
    const fv_eval_opt *o = t->r->opt;
    const char *file = o->file ? o->file : o->source;
    if (x->note) {
        char note[512];
        snprintf(note, sizeof note, "%.300s: line %lld %s", file, (long long)x->record, x->note);
        t->r->fn(t->r->user, &(fv_task_result){.record = x->record, .text = "", .note = note});
    }
    if (x->error)
        fv_fail(&t->e, x->error->code, "%.200s: line %lld: %s", file, (long long)x->record,
                x->error->text);
    else
        fv__eval_give(t->out, x->text, x->n ? x->n - 1 : 0);
    return !t->e.code;
}

static fv_status make_slice(void *user, int64_t from, int64_t n, fv_buf *out, fv_err *e)
{
    making *t = user;
    size_t bytes = (size_t)n * sizeof(fv_text);
    fv_text *texts = fv__alloc(&t->r->env, bytes);
    if (!texts) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; i < n; i++)
        texts[i] = (fv_text){.s = t->in->at[from + i], .n = t->in->len[from + i]};
    t->out = out;
    fv_status st = fv_pipeline_run(t->p, texts, n, from + 1, give, t, e);
    if (!st && t->e.code) st = fv_fail(e, t->e.code, "%s", t->e.text);
    fv__free(&t->r->env, texts, bytes);
    return st;
}

static fv_status take(void *user, int64_t i, const void *result, size_t n, fv_err *e)
{
    (void)i;
    return fv__eval_texts_add(((making *)user)->made, result, n, e);
}

/* The task's own settings come before the user's, which override them. */
fv_status fv__eval_pipeline(fv_eval_run *r, const char *task, const fv_setting *more, int n_more,
                            const fv_eval_texts *in, fv_eval_texts *out, fv_err *e)
{
    const fv_eval_opt *o = r->opt;
    size_t bytes = (size_t)(o->n_settings + n_more + 1) * sizeof(fv_setting);
    fv_setting *all = fv__alloc(&r->env, bytes);
    making t = {.r = r, .in = in, .made = out};
    fv_status st = fv__eval_texts_new(out, &r->env, in->n, e);
    if (!st && !all) st = fv_fail(e, FV_ENOMEM, "out of memory");
    for (int i = 0; !st && i < n_more; i++) all[i] = more[i];
    for (int i = 0; !st && i < o->n_settings; i++) all[n_more + i] = o->settings[i];
    if (!st)
        st = fv_pipeline_open(&t.p, r->dev,
                              (fv_pipeline_opt){.task = task,
                                                .model = o->model,
                                                .weights = o->weights,
                                                .widen = o->widen,
                                                .adapters = o->adapters,
                                                .settings = all,
                                                .n_settings = o->n_settings + n_more,
                                                .batch = o->batch},
                              e);
    /* a translator sorts what it is given by length, so it gets much at once */
    if (!st) st = fv__eval_slices(r, in->n, &(fv_slices){make_slice, take, 4096}, &t, e);
    if (!st) fv__eval_put_texts(r, out);
    fv_pipeline_close(t.p);
    fv__free(&r->env, all, bytes);
    return st;
}

/* A line for each record, whatever was generated: line ends become blanks. */
void fv__eval_put_texts(fv_eval_run *r, const fv_eval_texts *t)
{
    for (int64_t i = 0; r->opt->predictions && i < t->n; i++) {
        for (size_t k = 0; k < t->len[i]; k++) {
            const char *c = t->at[i] + k;
            fv__buf_add(&r->predictions, *c == '\n' || *c == '\r' ? " " : c, 1);
        }
        fv__buf_str(&r->predictions, "\n");
    }
}
