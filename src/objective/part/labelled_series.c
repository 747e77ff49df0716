/* labelled_series.c - whole series with a label or a number each, for classifiers and regressions.
 *
 * A record is two texts: the series (fv_series_parse) and what it is.  Series that are shorter than
 * the model reads stand at the end of its window; what is before them is not observed. */
#include "objective/part/labelled_series.h"

#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "base/decimal.h"
#include "data/labels.h"

enum { NAME = 24 }; /* bytes of a channel's name, which is its number */

/* ---- reading ---- */

static fv_status no_memory(const fv__reading *rd)
{
    return fv_fail(rd->e, FV_ENOMEM, "%s: out of memory", rd->from->file);
}

/* Room for row n of `bytes` each. */
static bool grow(const fv_env *env, void *at, size_t *size, int64_t n, size_t bytes)
{
    void **p = at;
    return fv__grow(env, p, size, (size_t)(n + 1) * bytes);
}

static bool grow_all(fv__labelled_series *s)
{
    size_t each = (size_t)(s->opt.context * s->channels);
    void *x = s->x, *observed = s->observed, *target = s->target, *label = s->label;
    bool ok = grow(s->env, &x, &s->x_bytes, s->n, each * sizeof *s->x);
    s->x = x;
    ok = ok && grow(s->env, &observed, &s->observed_bytes, s->n, each);
    s->observed = observed;
    ok = ok && grow(s->env, &target, &s->target_bytes, s->n,
                    (size_t)s->opt.targets * sizeof *s->target + 1);
    s->target = target;
    ok = ok && grow(s->env, &label, &s->label_bytes, s->n, sizeof *s->label);
    s->label = label;
    return ok;
}

/* The numbers of a regression, blanks or commas between them. */
static fv_status read_targets(float *to, int64_t n, fv__span text, fv_err *e)
{
    char copy[1024], *at = copy;
    if (text.n >= sizeof copy)
        return fv_fail(e, FV_EFORMAT, "too long for %lld numbers", (long long)n);
    memcpy(copy, text.s, text.n);
    copy[text.n] = 0;
    for (int64_t i = 0; i < n; i++) {
        char *end;
        to[i] = (float)fv__strtod(at, &end);
        if (end == at || !isfinite(to[i]))
            return fv_fail(e, FV_EFORMAT, "\"%.40s\": expected %lld numbers", copy, (long long)n);
        at = end + strspn(end, ", ");
    }
    return *at ? fv_fail(e, FV_EFORMAT, "\"%.40s\": expected %lld numbers", copy, (long long)n)
               : FV_OK;
}

static fv_status add(fv__reading *rd, const fv__record *rec)
{
    fv__labelled_series *s = rd->user;
    int64_t T = s->opt.context, C = s->channels;
    fv_err why;
    if (!grow_all(s)) return no_memory(rd);
    float *x = s->x + s->n * T * C;
    fv_status st = fv_series_parse(x, s->observed + s->n * T * C, T, C, rec->text[0].s,
                                   rec->text[0].n, &why);
    if (!st && s->opt.targets)
        st = read_targets(s->target + s->n * s->opt.targets, s->opt.targets, rec->text[1], &why);
    if (st) return fv_fail(rd->e, st, "%s:%lld: %s", rec->file[0], (long long)rec->line, why.text);
    if (!s->opt.targets)
        st = fv__label(s->labels, s->label + s->n, rec->file[1], rec->line, rec->text[1].s,
                       rec->text[1].n, rd->e);
    if (st) return st;
    fv_processor_normalise(s->processor, x, T);
    s->n++;
    rd->report->kept++;
    rd->report->tokens[0] += T * C;
    return FV_OK;
}

static fv_status read_all(void *user, const fv_env *env, const fv_records *from,
                          fv__record_fn *each, fv_data_report *report, fv_err *e)
{
    fv__reading rd = {.env = env,
                      .from = from,
                      .n_texts = 2,
                      .each = each,
                      .user = user,
                      .report = report,
                      .e = e};
    return fv__records_read(&rd);
}

fv_status fv__labelled_series_open(fv__labelled_series **out, const fv_feed_opt *t,
                                   const fv_records *from, int64_t targets, fv_data_report *report,
                                   fv_err *e)
{
    fv__labelled_series *s = *out = fv__alloc(t->env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *s = (fv__labelled_series){.env = t->env,
                               .opt = *(const fv__series_opt *)t->options,
                               .processor = t->processor,
                               .labels = t->labels,
                               .channels = fv_processor_columns(t->processor)};
    s->opt.targets = targets;
    fv_status st = read_all(s, t->env, from, add, report, e);
    if (!st && !s->n) st = fv_fail(e, FV_EFORMAT, "%s: no record can be used", from->file);
    return st;
}

void fv__labelled_series_close(void *self)
{
    fv__labelled_series *s = self;
    if (!s) return;
    const fv_env *env = s->env;
    fv__free(env, s->x, s->x_bytes);
    fv__free(env, s->observed, s->observed_bytes);
    fv__free(env, s->target, s->target_bytes);
    fv__free(env, s->label, s->label_bytes);
    fv__free(env, s, sizeof *s);
}

/* ---- batches ---- */

int64_t fv__labelled_series_count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const fv__labelled_series *)self)->n;
}

fv_status fv__labelled_series_put(const fv__labelled_series *s, fv_batch *out, const int32_t *rows,
                                  int64_t n, fv_err *e)
{
    int64_t T = s->opt.context, C = s->channels;
    size_t each = (size_t)(T * C);
    float *x = fv_batch_put(out, "past_values", FV_F32, FV_SHAPE(n, T, C));
    for (int64_t i = 0; x && i < n; i++)
        memcpy(x + (size_t)i * each, s->x + (size_t)rows[i] * each, each * sizeof *x);
    uint8_t *observed = fv_batch_put(out, "past_observed_mask", FV_U8, FV_SHAPE(n, T, C));
    for (int64_t i = 0; observed && i < n; i++)
        memcpy(observed + (size_t)i * each, s->observed + (size_t)rows[i] * each, each);
    if (!observed) return fv_fail(e, out->err.code, "%s", out->err.text);
    out->labels = (double)n;
    out->tokens = (double)(n * T * C);
    return FV_OK;
}

/* ---- the model ---- */

/* What the processor is fitted to: all values of the training records, (rows,channels). */
typedef struct fitting {
    const fv_env *env;
    int64_t context, channels, rows;
    float *x;
    uint8_t *observed; /* of one series */
    size_t x_bytes, observed_bytes;
} fitting;

/* Values that are not observed stand there as NaN, which do not count. */
static fv_status fit_one(fv__reading *rd, const fv__record *rec)
{
    fitting *f = rd->user;
    int64_t steps, channels;
    fv_err why;
    fv_status st = fv_series_measure(rec->text[0].s, rec->text[0].n, &steps, &channels, &why);
    if (!st && !f->channels) f->channels = channels;
    if (!st && steps > f->context) steps = f->context; /* fv_series_parse says that it is longer */
    size_t each = (size_t)(steps * f->channels);
    void *x = f->x, *observed = f->observed;
    bool ok = st || (fv__grow(f->env, &x, &f->x_bytes,
                              ((size_t)(f->rows * f->channels) + each) * sizeof *f->x) &&
                     fv__grow(f->env, &observed, &f->observed_bytes, each));
    f->x = x;
    f->observed = observed;
    if (!ok) return no_memory(rd);
    float *to = f->x + f->rows * f->channels;
    if (!st)
        st = fv_series_parse(to, f->observed, steps, f->channels, rec->text[0].s, rec->text[0].n,
                             &why);
    if (st) return fv_fail(rd->e, st, "%s:%lld: %s", rec->file[0], (long long)rec->line, why.text);
    for (size_t i = 0; i < each; i++)
        if (!f->observed[i]) to[i] = NAN;
    f->rows += steps;
    return FV_OK;
}

/* Channels are named by their numbers. */
static fv_status fit(fv_processor **out, const fitting *f, const char *file, fv_err *e)
{
    size_t bytes = (size_t)f->channels * (sizeof(char *) + NAME);
    const char **name = fv__alloc(f->env, bytes);
    if (!name) return fv_fail(e, FV_ENOMEM, "%s: out of memory", file);
    char *text = (char *)(name + f->channels);
    for (int64_t i = 0; i < f->channels; i++, text += NAME) {
        snprintf(text, NAME, "%lld", (long long)i);
        name[i] = text;
    }
    fv_status st = fv_processor_fit_table(out, f->env, name, (int)f->channels, f->x, f->rows, e);
    fv__free(f->env, (void *)name, bytes);
    return st;
}

fv_status fv__labelled_series_processor(fv_processor **out, const fv_env *env, const void *own,
                                        const fv_records *from, fv_processor *tok, fv_err *e)
{
    fitting f = {.env = env, .context = ((const fv__series_opt *)own)->context};
    fv_data_report report = {0};
    (void)tok;
    *out = NULL;
    fv_status st = read_all(&f, env, from, fit_one, &report, e);
    if (!st && !f.rows) st = fv_fail(e, FV_EFORMAT, "%s: no record can be used", from->file);
    if (!st) st = fit(out, &f, from->file, e);
    fv__free(env, f.x, f.x_bytes);
    fv__free(env, f.observed, f.observed_bytes);
    return st;
}

int64_t fv__labelled_series_value(const void *own, const fv_processor *p, const char *key)
{
    const fv__series_opt *o = own;
    if (!strcmp(key, "context_length")) return o->context;
    if (!strcmp(key, "num_targets") && o->targets) return o->targets;
    return strcmp(key, "num_input_channels") ? -1 : fv_processor_columns(p);
}
