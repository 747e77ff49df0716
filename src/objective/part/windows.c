/* windows.c - windows of a time series, for its objectives.
 *
 * One file is cut into three parts by time: training, validation, test.  Each channel gets mean 0
 * and deviation 1 by the numbers of the training part.  Windows of a later part may begin in the
 * one before it, so that the first forecast of a part is for its first moment (as in the papers on
 * ETT).  Training windows are `stride` time steps apart, those of an evaluation always one.
 *
 * Units: a moment is one row of the file, a channel one column.
 *
 * The series is kept in memory once, (steps,channels), and a batch copies windows out of it.
 * Storing the windows themselves would take context + horizon times as much. */
#include "objective/part/windows.h"

#include "base/base.h"
#include "fovea/author/processor.h"

const char *const fv__part_words[] = {"valid", "test", NULL};

static fv_series_opt source(const fv__windows_opt *o, const fv_records *from)
{
    return (fv_series_opt){.file = from->file,
                           .date = o->date,
                           .columns = o->columns,
                           .missing = (fv_missing)o->missing};
}

/* ---- parts ---- */

/* Moments [from, to) of part 0 training, 1 validation, 2 test, of n. */
static fv_status part_of(const fv__windows_opt *o, const char *file, int64_t n, int part,
                         int64_t *from, int64_t *to, fv_err *e)
{
    /* the middle part gets what rounding leaves, so that the three add up to n */
    int64_t size[3] = {n * 7 / 10, n - n * 7 / 10 - n * 2 / 10, n * 2 / 10};
    if (o->split.n > 3) return fv_fail(e, FV_EARG, "parts: at most three numbers are expected");
    for (int i = 0; o->split.at[0] && i < 3; i++) size[i] = i < o->split.n ? o->split.at[i] : 0;
    if (size[0] + size[1] + size[2] > n)
        return fv_fail(e, FV_EARG, "parts: %lld + %lld + %lld time steps, but %s has %lld",
                       (long long)size[0], (long long)size[1], (long long)size[2], file,
                       (long long)n);
    *from = part > 0 ? size[0] : 0;
    if (part > 1) *from += size[1];
    *to = *from + size[part];
    return FV_OK;
}

/* The windows of a part; one of training may not begin before it. */
static fv_status find_windows(fv__windows *w, const char *file, int64_t steps, int part, fv_err *e)
{
    const fv__windows_opt *o = &w->opt;
    int64_t from, to;
    fv_status st = part_of(o, file, steps, part, &from, &to, e);
    if (st) return st;
    /* context of the part before: else its first `context` time steps would never be forecast */
    if (part && from >= o->context) from -= o->context;
    w->first = from;
    w->stride = part ? 1 : o->stride;
    w->n = (to - from - o->context - o->horizon) / w->stride + 1;
    if (to - from < o->context + o->horizon)
        return fv_fail(e, FV_EARG,
                       "%s: %lld time steps hold no window of context %lld and horizon %lld", file,
                       (long long)(to - from), (long long)o->context, (long long)o->horizon);
    return FV_OK;
}

/* ---- reading ---- */

int64_t fv__windows_count(const void *self, int64_t epoch)
{
    (void)epoch;
    return ((const fv__windows *)self)->n;
}

const float *fv__windows_at(const fv__windows *w, int64_t row)
{
    return w->x + (w->first + row * w->stride) * w->channels;
}

void fv__windows_close(void *self)
{
    fv__windows *w = self;
    const fv_env *env = w->env;
    fv__free(env, w->x, w->bytes);
    fv__free(env, w, sizeof *w);
}

/* The columns of the file must be those that the processor was fitted to. */
static fv_status check_columns(const fv_series *s, const fv_processor *p, const char *file,
                               fv_err *e)
{
    if (fv_series_channels(s) != fv_processor_columns(p))
        return fv_fail(e, FV_EFORMAT, "%s: %d columns, but the model has %d", file,
                       fv_series_channels(s), fv_processor_columns(p));
    for (int i = 0; i < fv_series_channels(s); i++)
        if (strcmp(fv_series_name(s, i), fv_processor_column(p, i)) != 0)
            return fv_fail(e, FV_EFORMAT, "%s: column %d is %s, but the model's is %s", file, i + 1,
                           fv_series_name(s, i), fv_processor_column(p, i));
    return FV_OK;
}

/* Means and deviations are those of the training part alone: later values are not known when a
 * model is used. */
static fv_status read_windows(fv__windows *w, const fv_feed_opt *t, const fv_records *from,
                              fv_data_report *report, fv_err *e)
{
    fv_series *s;
    fv_series_opt how = source(&w->opt, from);
    fv_status st = fv_series_open(&s, t->env, &how, e);
    if (st) return st;
    st = check_columns(s, t->processor, from->file, e);
    int64_t n = fv_series_count(s);
    int part = t->evaluation ? 1 + (w->opt.evaluate == FV__PART_TEST) : 0;
    if (!st) st = find_windows(w, from->file, n, part, e);
    w->channels = fv_series_channels(s);
    w->bytes = (size_t)(n * w->channels) * sizeof *w->x;
    if (!st && !(w->x = fv__alloc(t->env, w->bytes)))
        st = fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    if (!st) {
        memcpy(w->x, fv_series_values(s), w->bytes);
        fv_processor_normalise(t->processor, w->x, n);
        report->records = report->kept = w->n;
        report->tokens[0] = w->n * w->opt.context * w->channels;
    }
    fv_series_close(s);
    return st;
}

fv_status fv__windows_open(fv__windows **out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = NULL;
    if (from->part[1] > 0)
        return fv_fail(e, FV_EARG,
                       "hold_out: parts of a series are cut by time: give parts, and the file "
                       "again as valid");
    fv__windows *w = fv__alloc(t->env, sizeof *w);
    if (!w) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    *w = (fv__windows){.env = t->env, .opt = *(const fv__windows_opt *)t->options};
    fv_status st = read_windows(w, t, from, report, e);
    if (st)
        fv__windows_close(w);
    else
        *out = w;
    return st;
}

/* ---- the model ---- */

/* Means and deviations of the training part. */
fv_status fv__windows_processor(fv_processor **out, const fv_env *env, const void *own,
                                const fv_records *from, fv_processor *tok, fv_err *e)
{
    const fv__windows_opt *o = own;
    fv_series *s;
    int64_t first = 0, end = 0;
    (void)tok;
    fv_series_opt how = source(o, from);
    fv_status st = fv_series_open(&s, env, &how, e);
    if (st) return st;
    int n = fv_series_channels(s);
    size_t bytes = (size_t)n * sizeof(char *);
    const char **name = fv__alloc(env, bytes);
    if (!name) st = fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    for (int i = 0; !st && i < n; i++) name[i] = fv_series_name(s, i);
    if (!st) st = part_of(o, from->file, fv_series_count(s), 0, &first, &end, e);
    if (!st) st = fv_processor_fit_table(out, env, name, n, fv_series_values(s), end, e);
    fv__free(env, (void *)name, bytes);
    fv_series_close(s);
    return st;
}

/* Windows and channels of the model are those of the data: a recipe does not repeat them. */
int64_t fv__windows_value(const void *own, const fv_processor *p, const char *key)
{
    const fv__windows_opt *o = own;
    if (!strcmp(key, "context_length")) return o->context;
    if (!strcmp(key, "prediction_length") && o->horizon) return o->horizon;
    return strcmp(key, "num_input_channels") ? -1 : fv_processor_columns(p);
}
