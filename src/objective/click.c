/* click.c - the objective of advertisements: whether a user takes the candidate that is shown.
 *
 * A record is an impression: a candidate, the items of the user's history, features, and whether
 * the candidate was taken.  The model reads the candidate first and the history behind it, newest
 * item first.  The loss is the binary cross-entropy, so the validation loss is the log-loss of the
 * papers; AUC and calibration are those of "fovea click --evaluate".
 *
 * While training some items are read as unknown ones: what is new when the model is used would
 * otherwise meet a vector that was never trained. */
#include "base/base.h"
#include "data/dice.h"
#include "fovea/author/events.h"
#include "fovea/author/objective.h"

enum { DICE_UNKNOWN = 14 };

typedef struct options {
    int64_t longest, features, buckets;
    float unknown;
} options;

typedef struct shown {
    const fv_env *env;
    options opt;
    fv_impressions *rows;
    int32_t items;
    bool evaluation;
} shown;

/* The candidate, then what came before it, newest first; the rest of the row is masked out. */
static void put_row(const shown *s, int32_t *ids, uint8_t *seen, const fv_impression *x,
                    fv__dice *d)
{
    int64_t T = s->opt.longest + 1;
    for (int64_t t = 0; t < T; t++) {
        bool here = t <= x->n;
        ids[t] = !here ? 0 : t ? x->history[x->n - t] : x->item;
        seen[t] = here;
        if (here && !s->evaluation && fv__dice_unit(d) < (double)s->opt.unknown) ids[t] = s->items;
    }
}

/* input_ids and attention_mask (n,1+longest), features (n,F), labels (n). */
static fv_status make(const void *self, fv_batch *out, const int32_t *rows, int64_t n,
                      fv_data_rng how, fv_err *e)
{
    const shown *s = self;
    int64_t T = s->opt.longest + 1, F = fv_impressions_features(s->rows);
    int32_t *ids = fv_batch_put(out, "input_ids", FV_I32, FV_SHAPE(n, T)),
            *features = F ? fv_batch_put(out, "features", FV_I32, FV_SHAPE(n, F)) : NULL;
    uint8_t *seen = fv_batch_put(out, "attention_mask", FV_U8, FV_SHAPE(n, T));
    float *label = fv_batch_put(out, "labels", FV_F32, FV_SHAPE(n));
    if (!label || (F && !features)) return fv_fail(e, out->err.code, "%s", out->err.text);
    for (int64_t i = 0; i < n; i++) {
        fv_impression x = fv_impressions_at(s->rows, rows[i]);
        fv__dice d = fv__dice_of(how, DICE_UNKNOWN, rows[i]);
        put_row(s, ids + i * T, seen + i * T, &x, &d);
        if (F) memcpy(features + i * F, x.features, (size_t)F * sizeof *features);
        label[i] = (float)x.label;
        out->tokens += (double)(x.n < s->opt.longest ? x.n : s->opt.longest) + 1;
        out->labels++;
    }
    return FV_OK;
}

/* ---- the feed ---- */

static int64_t count(const void *self, int64_t epoch)
{
    (void)epoch;
    return fv_impressions_count(((const shown *)self)->rows);
}

static void size(const void *self, int64_t i, int64_t *source, int64_t *target)
{
    (void)i;
    *source = ((const shown *)self)->opt.longest + 1;
    *target = 0;
}

static void close_feed(void *self)
{
    shown *s = self;
    const fv_env *env = s->env;
    fv_impressions_close(s->rows);
    fv__free(env, s, sizeof *s);
}

static fv_status check_labels(const shown *s, const char *file, fv_err *e)
{
    for (int64_t i = 0; i < fv_impressions_count(s->rows); i++)
        if (fv_impressions_at(s->rows, i).label < 0)
            return fv_fail(e, FV_EFORMAT, "%s: impression %lld has no label", file,
                           (long long)i + 1);
    return FV_OK;
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    *out = (fv_feed){0};
    shown *s = fv__alloc(t->env, sizeof *s);
    if (!s) return fv_fail(e, FV_ENOMEM, "%s: out of memory", from->file);
    s->env = t->env;
    s->opt = *(const options *)t->options;
    s->evaluation = t->evaluation;
    fv_impressions_opt how = {.file = from->file,
                              .header = from->header,
                              .items = t->labels,
                              .buckets = s->opt.buckets};
    fv_status st = fv_impressions_open(&s->rows, t->env, &how, e);
    if (!st && fv_impressions_features(s->rows) != s->opt.features)
        st = fv_fail(e, FV_EFORMAT,
                     "%s: %lld columns of features, [data] feature_columns says %lld", from->file,
                     (long long)fv_impressions_features(s->rows), (long long)s->opt.features);
    if (!st) st = check_labels(s, from->file, e);
    s->items = t->labels->n;
    if (st) {
        close_feed(s);
        return st;
    }
    report->records = report->kept = fv_impressions_count(s->rows);
    *out = (fv_feed){.self = s, .count = count, .size = size, .make = make, .close = close_feed};
    return FV_OK;
}

static int64_t config_value(const void *own, const fv_processor *p, const char *key)
{
    const options *o = own;
    (void)p;
    if (!strcmp(key, "max_position_embeddings")) return o->longest + 1;
    if (!strcmp(key, "num_features")) return o->features;
    return strcmp(key, "feature_buckets") ? -1 : o->buckets;
}

static const fv_field keys[] = {
    FV_INT(options, longest, 1, 20, 1 << 16, "items of a history that are read: the last ones"),
    FV_INT_KEY("feature_columns", options, features, 0, 0, 256,
               "columns of features behind the history"),
    FV_INT_KEY("feature_buckets", options, buckets, 1, 1024, 1 << 24,
               "categories that all features share"),
    FV_FLOAT(options, unknown, 0, 0.02, 0.9, "share of items that are read as unknown ones"),
    {0},
};
static const char *const loss_inputs[] = {"input_ids", "attention_mask", "features", "labels",
                                          NULL};

const fv_objective fv__objective_click = {
    .name = "click",
    .help = "whether a user takes a candidate, given its history and features",
    .keys = keys,
    .options_size = sizeof(options),
    .processor = "none",
    .config_value = config_value,
    .head = FV_HEAD_REGRESS,
    .loss_inputs = loss_inputs,
    .names_labels = true,
    .open = open_feed,
};
