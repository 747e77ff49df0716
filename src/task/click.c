/* click.c - the task of advertisements: how likely a user is to take each candidate it is shown.
 *
 * A record is the path of a file of impressions (author/events.h).  The model gives a logit for
 * each; calibration.json beside the model, which --calibrate makes of labels, says how logits
 * become probabilities: networks that are trained long are too sure.
 *
 *     plain   probability <tab> candidate              one line an impression
 *
 *     --json  {"item", "probability"} */
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"
#include "fovea/author/events.h"
#include "fovea/author/family.h"
#include "task_pipeline.h"

#define CALIBRATION "calibration.json"
enum { BATCH = 256 };

typedef struct click_options {
    bool header, evaluate, calibrate;
} click_options;

static const fv_field options[] = {
    FV_BOOL(click_options, header, false, "the first line of FILE only names its columns"),
    FV_BOOL(click_options, evaluate, false,
            "print how good the probabilities are instead: AUC, log-loss, calibration"),
    FV_BOOL(click_options, calibrate, false,
            "fit the calibration to FILE, and keep it beside the model"),
    {0}};

typedef struct work {
    fv_model *model;
    fv_ctx *c;
    fv_labels items;
    int64_t longest, features, buckets; /* items of a row, the candidate included */
    fv_platt platt;
} work;

/* ---- opening ---- */

static int64_t config_number(const fv_model *m, const char *key)
{
    char text[32] = "0";
    fv_fields_get(fv_model_config(m), fv_model_family(m)->config, key, text, sizeof text);
    return strtoll(text, NULL, 10);
}

/* A model that was never calibrated has its logits as they are. */
static fv_status read_platt(work *w, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    fv_json *j;
    fv_err why;
    w->platt = (fv_platt){1, 0};
    if (snprintf(path, sizeof path, "%s/" CALIBRATION, dir) >= FV_PATH)
        return fv_fail(e, FV_EARG, "%.60s..: the path is too long", dir);
    fv_status st = fv_json_open(&j, w->items.env, path, &why);
    if (st == FV_EIO) return FV_OK;
    if (st) return fv_fail(e, st, "%s", why.text);
    if (!fv_json_number(j, "scale", &w->platt.scale) ||
        !fv_json_number(j, "shift", &w->platt.shift))
        st = fv_fail(e, FV_EFORMAT, "%s: expected the numbers \"scale\" and \"shift\"", path);
    fv_json_close(j);
    return st;
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_model_opt opt = fv__pipeline_model_opt(p);
    fv_status st = fv__pipeline_self(p, sizeof(work), e);
    if (st) return st;
    work *w = p->self;
    w->items.env = &p->env;
    opt.serve = true;
    st = fv_model_open(&w->model, p->dev, p->opt.model, opt, e);
    if (st) return st;
    if (strcmp(fv_model_head(w->model), "BstModel") != 0)
        return fv_fail(e, FV_EARG, "%s: %s does not judge candidates; BstModel does", p->opt.model,
                       fv_model_head(w->model));
    w->longest = config_number(w->model, "max_position_embeddings");
    w->features = config_number(w->model, "num_features");
    w->buckets = config_number(w->model, "feature_buckets");
    st = fv__item_names(&w->items, p->opt.model, config_number(w->model, "num_labels"), e);
    if (!st) st = read_platt(w, p->opt.model, e);
    if (!st) st = fv_ctx_new(&w->c, p->dev, (fv_ctx_opt){.dtype = fv_model_dtype(w->model)}, e);
    return st;
}

static void close_task(fv_pipeline *p)
{
    work *w = p->self;
    if (!w) return;
    fv_ctx_free(w->c);
    fv_labels_free(&w->items);
    fv_model_free(w->model);
}

/* ---- logits ---- */

/* Of the n impressions from `first` on.  ids and seen (BATCH,T), features (BATCH,F): room. */
static fv_status run_batch(work *w, const fv_impressions *v, int64_t first, int64_t n, int32_t *ids,
                           uint8_t *seen, int32_t *features, float *logit, fv_err *e)
{
    fv_items in = {0}, out = {0};
    int64_t T = w->longest, F = w->features;
    for (int64_t i = 0; i < n; i++) {
        fv_impression x = fv_impressions_at(v, first + i);
        for (int64_t t = 0; t < T; t++) {
            seen[i * T + t] = t <= x.n;
            ids[i * T + t] = t && t <= x.n ? x.history[x.n - t] : t ? 0 : x.item;
        }
        if (F) memcpy(features + i * F, x.features, (size_t)F * sizeof *features);
    }
    fv_ctx_reset(w->c, 0);
    fv_items_put(&in, "input_ids", fv_ints(w->c, ids, FV_SHAPE(n, T)));
    fv_items_put(&in, "attention_mask", fv_bytes(w->c, seen, FV_SHAPE(n, T)));
    if (F) fv_items_put(&in, "features", fv_ints(w->c, features, FV_SHAPE(n, F)));
    fv_model_forward(w->c, w->model, &in, &out);
    fv_status st = fv_read(w->c, fv_items_get(&out, "logits"), logit, n);
    return st ? fv_fail(e, st, "click: %s", fv_ctx_err(w->c)->text) : FV_OK;
}

static fv_status run_all(fv_pipeline *p, const fv_impressions *v, float *logit, fv_err *e)
{
    work *w = p->self;
    int64_t n = fv_impressions_count(v), T = w->longest, F = w->features;
    size_t bytes = (size_t)(BATCH * (T * 5 + F * 4));
    int32_t *ids = fv__alloc(&p->env, bytes);
    if (!ids) return fv_fail(e, FV_ENOMEM, "click: out of memory");
    int32_t *features = ids + BATCH * T;
    uint8_t *seen = (uint8_t *)(features + BATCH * F);
    fv_status st = FV_OK;
    for (int64_t i = 0; i < n && !st; i += BATCH)
        st = run_batch(w, v, i, n - i < BATCH ? n - i : BATCH, ids, seen, features, logit + i, e);
    fv__free(&p->env, ids, bytes);
    return st;
}

/* ---- results ---- */

static void put_probabilities(fv_pipeline *p, const fv_impressions *v, const float *logit)
{
    const work *w = p->self;
    for (int64_t i = 0; i < fv_impressions_count(v); i++) {
        int32_t item = fv_impressions_at(v, i).item;
        const char *name = item < w->items.n ? w->items.name[item] : "(unknown)";
        double probability = fv_platt_probability(w->platt, (double)logit[i]);
        if (p->opt.json) {
            fv__json_begin(&p->out, '{');
            fv__json_text_at(&p->out, "item", name, strlen(name));
            fv__json_number_at(&p->out, "probability", probability);
            fv__buf_str(&p->out, "}\n");
        } else {
            fv__buf_fmt(&p->out, "%.6f\t%s\n", probability, name);
        }
    }
}

static void put_binary(fv_pipeline *p, const char *name, const fv_binary *b)
{
    if (!p->opt.json) {
        fv__buf_fmt(&p->out,
                    "%-12s AUC %.4f  log-loss %.4f  mean probability %.4f of %.4f taken  "
                    "calibration error %.4f\n",
                    name, b->auc, b->log_loss, b->mean, (double)b->yes / (double)b->n, b->error);
        return;
    }
    fv__json_key(&p->out, name);
    fv__json_begin(&p->out, '{');
    fv__json_number_at(&p->out, "auc", b->auc);
    fv__json_number_at(&p->out, "log_loss", b->log_loss);
    fv__json_number_at(&p->out, "mean_probability", b->mean);
    fv__json_number_at(&p->out, "calibration_error", b->error);
    fv__json_end(&p->out, '}');
}

/* As the model says it, and calibrated where a calibration is there or was made. */
static fv_status put_judgement(fv_pipeline *p, const float *logit, const uint8_t *yes, int64_t n,
                               fv_err *e)
{
    const work *w = p->self;
    fv_binary raw, after;
    fv_status st = fv_binary_judge(&raw, &p->env, logit, yes, n, (fv_platt){1, 0}, e);
    if (!st) st = fv_binary_judge(&after, &p->env, logit, yes, n, w->platt, e);
    if (st) return st;
    bool calibrated = w->platt.scale != 1 || w->platt.shift != 0;
    if (p->opt.json) {
        fv__json_begin(&p->out, '{');
        fv__json_int_at(&p->out, "impressions", n);
        fv__json_int_at(&p->out, "taken", raw.yes);
    } else {
        fv__buf_fmt(&p->out, "%lld impressions\n", (long long)n);
    }
    put_binary(p, "model", &raw);
    if (calibrated) put_binary(p, "calibrated", &after);
    if (p->opt.json) fv__buf_str(&p->out, "}\n");
    return FV_OK;
}

static fv_status keep_platt(fv_pipeline *p, const float *logit, const uint8_t *yes, int64_t n,
                            fv_err *e)
{
    work *w = p->self;
    char path[FV_PATH], text[128];
    fv_status st = fv_platt_fit(&w->platt, logit, yes, n, e);
    if (st) return st;
    snprintf(path, sizeof path, "%s/" CALIBRATION, p->opt.model);
    int len = snprintf(text, sizeof text, "{\"scale\": %.9g, \"shift\": %.9g}\n", w->platt.scale,
                       w->platt.shift);
    return fv__file_write(&p->env, path, text, (size_t)len, e);
}

/* yes (n); an impression without a label cannot be judged. */
static fv_status labels_of(const fv_impressions *v, uint8_t *yes, const char *file, fv_err *e)
{
    for (int64_t i = 0; i < fv_impressions_count(v); i++) {
        int32_t label = fv_impressions_at(v, i).label;
        if (label < 0)
            return fv_fail(e, FV_EFORMAT, "%s: impression %lld has no label", file,
                           (long long)i + 1);
        yes[i] = (uint8_t)label;
    }
    return FV_OK;
}

static fv_status judge_file(fv_pipeline *p, const fv_impressions *v, const char *file, float *logit,
                            uint8_t *yes, fv_err *e)
{
    const click_options *o = p->options;
    const work *w = p->self;
    int64_t n = fv_impressions_count(v);
    fv_status st = FV_OK;
    if (fv_impressions_features(v) != w->features)
        st = fv_fail(e, FV_EFORMAT, "%s: %lld columns of features, the model reads %lld", file,
                     (long long)fv_impressions_features(v), (long long)w->features);
    bool judged = o->evaluate || o->calibrate;
    if (!st && judged) st = labels_of(v, yes, file, e);
    if (!st) st = run_all(p, v, logit, e);
    if (!st && o->calibrate) st = keep_platt(p, logit, yes, n, e);
    if (!st && judged) return put_judgement(p, logit, yes, n, e);
    if (!st) put_probabilities(p, v, logit);
    return st;
}

static fv_status ask_file(fv_pipeline *p, const char *file, fv_err *e)
{
    const click_options *o = p->options;
    work *w = p->self;
    fv_impressions *v;
    fv_impressions_opt how = {file, o->header, &w->items, w->buckets};
    fv_status st = fv_impressions_open(&v, &p->env, &how, e);
    if (st) return st;
    size_t bytes = (size_t)fv_impressions_count(v) * (sizeof(float) + 1);
    float *logit = fv__alloc(&p->env, bytes);
    if (logit)
        st = judge_file(p, v, file, logit, (uint8_t *)(logit + fv_impressions_count(v)), e);
    else
        st = fv_fail(e, FV_ENOMEM, "click: out of memory");
    fv__free(&p->env, logit, bytes);
    fv_impressions_close(v);
    return st ? st : fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    return fv__task_each_path(p, in, n, ask_file, e);
}

static const fv_task_example examples[] = {
    {"fovea click -m runs/video-bst/model shown.tsv", "the probability of each candidate"},
    {"fovea click -m runs/video-bst/model --calibrate valid.tsv",
     "Platt's scaling, kept beside the model"},
    {"fovea click -m runs/video-bst/model --evaluate test.tsv", "AUC, log-loss, calibration"},
    {0}};

const fv_task_kind fv__click_task = {
    .name = "click",
    .summary = "how likely a user is to take a candidate",
    .about = "Reads impressions, one a line with tabs between columns (label 1, 0 or -, candidate, "
             "history with blanks between items, oldest first, then features), and prints the "
             "probability that the candidate is taken, with its name.  Items that the model does "
             "not know are read as unknown ones.\n\n"
             "--calibrate fits Platt's scaling to a file with labels that the model was not "
             "trained on, and writes it to calibration.json in the model's directory, where later "
             "calls find it.  --evaluate prints AUC, log-loss, the mean probability beside the "
             "share that was taken, and the expected calibration error in ten bins.",
    .examples = examples,
    .options = options,
    .size = sizeof(click_options),
    .path = "FILE",
    .open = open_task,
    .run = run,
    .close = close_task};
