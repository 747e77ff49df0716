/* series_recommend.c - recommendations with a trained model, and their ranking.
 *
 * Ranking is full: the right item against every item that the user has not had before it.  Ranks
 * among a hundred drawn items, as in the first papers, lost: they order models differently. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"
#include "fovea/author/family.h"
#include "fovea/author/recommend.h"
#include "model/series.h"

struct fv_recommender {
    fv_env env;
    fv_model *model;
    fv_ctx *c;
    fv_labels items;
    int64_t longest;
    float *score; /* (items) */
    size_t score_bytes;
    float *row;    /* (longest): attention of one head */
    float *looked; /* of a run: (read), or NULL: not wanted */
    int64_t read;
};

/* ---- opening ---- */

static fv_status read_names(fv_recommender *r, const char *dir, int64_t n, fv_err *e)
{
    fv_dir *files;
    fv_status st = fv_dir_open(&files, &r->env, dir, e);
    for (int64_t i = 0; !st && i < n; i++) {
        char key[40], number[24];
        int32_t id;
        snprintf(key, sizeof key, "id2label.%lld", (long long)i);
        snprintf(number, sizeof number, "%lld", (long long)i);
        const char *name = fv_json_text(fv_dir_config(files), key);
        if (!name) name = number;
        st = fv_labels_add(&r->items, &id, name, strlen(name), e);
        if (!st && id != i)
            st = fv_fail(e, FV_EFORMAT, "%s/config.json: id2label has \"%.60s\" twice", dir, name);
    }
    r->items.closed = true;
    fv_dir_close(files);
    return st;
}

fv_status fv_recommender_open(fv_recommender **out, fv_device *d, const char *dir, fv_model_opt opt,
                              fv_err *e)
{
    const fv_env *env = fv_device_env(d);
    char text[32] = "0";
    fv_recommender *r = *out = fv__alloc(env, sizeof *r);
    if (!r) return fv_fail(e, FV_ENOMEM, "recommend: out of memory");
    if (env) r->env = *env;
    r->items.env = &r->env;
    opt.serve = true;
    fv_status st = fv_model_open(&r->model, d, dir, opt, e);
    if (!st && fv_model_job(r->model) != FV_HEAD_NEXT_ITEM)
        st = fv_fail(e, FV_EARG, "%s: %s does not recommend items; SasRecModel would", dir,
                     fv_model_head(r->model));
    if (!st) {
        const fv_field *table = fv_model_family(r->model)->config;
        fv_fields_get(fv_model_config(r->model), table, "num_labels", text, sizeof text);
        int64_t n = strtoll(text, NULL, 10);
        r->longest = fv_model_family(r->model)->longest(fv_model_self(r->model));
        r->score_bytes = (size_t)n * sizeof *r->score;
        r->score = fv__alloc(env, r->score_bytes);
        r->row = fv__alloc(env, (size_t)r->longest * sizeof *r->row);
        if (!r->score || !r->row) st = fv_fail(e, FV_ENOMEM, "recommend: out of memory");
        if (!st) st = read_names(r, dir, n, e);
    }
    if (!st) st = fv_ctx_new(&r->c, d, (fv_ctx_opt){.dtype = fv_model_dtype(r->model)}, e);
    if (st) {
        fv_recommender_close(r);
        *out = NULL;
    }
    return st;
}

void fv_recommender_close(fv_recommender *r)
{
    if (!r) return;
    fv_env env = r->env;
    fv_ctx_free(r->c);
    fv_labels_free(&r->items);
    fv__free(&env, r->score, r->score_bytes);
    fv__free(&env, r->row, (size_t)r->longest * sizeof *r->row);
    fv_model_free(r->model);
    fv__free(&env, r, sizeof *r);
}

fv_labels *fv_recommender_items(fv_recommender *r) { return &r->items; }

/* ---- one history ---- */

/* The weights of the last position, mean over heads; layer after layer, so the last one stays. */
static void tap(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    fv_recommender *r = user;
    (void)name;
    if (strcmp(site, "attention") != 0 || !what) return;
    fv_shape s = fv_attn_view_shape(what);
    if (s.d[3] != r->read) return;
    memset(r->looked, 0, (size_t)r->read * sizeof *r->looked);
    for (int64_t h = 0; h < s.d[1]; h++) {
        if (fv_attn_view_weights(c, what, 0, h, s.d[2] - 1, s.d[2], r->row)) return;
        for (int64_t j = 0; j < r->read; j++) r->looked[j] += r->row[j] / (float)s.d[1];
    }
}

/* Items of a history are out of the ranking, except `keep`: a right item may come again. */
static void leave_out(float *score, const int32_t *history, int64_t n, int32_t keep)
{
    for (int64_t i = 0; i < n; i++)
        if (history[i] != keep) score[history[i]] = -INFINITY;
}

/* Scores of all items behind a history, into r->score. */
static fv_status score(fv_recommender *r, const int32_t *history, int64_t n, float *looked,
                       fv_err *e)
{
    fv_items in = {0}, out = {0};
    r->read = n < r->longest ? n : r->longest;
    if (n < 1) return fv_fail(e, FV_EARG, "a history needs at least one item");
    r->looked = looked ? looked + n - r->read : NULL;
    if (looked) memset(looked, 0, (size_t)n * sizeof *looked);
    fv_ctx_reset(r->c, 0);
    fv_ctx_set_tap(r->c, looked ? tap : NULL, r);
    int32_t last = (int32_t)r->read - 1;
    fv_items_put(&in, "input_ids", fv_ints(r->c, history + n - r->read, FV_SHAPE(1, r->read)));
    fv_items_put(&in, "last_positions", fv_ints(r->c, &last, FV_SHAPE(1)));
    fv_model_forward(r->c, r->model, &in, &out);
    fv_status st = fv_read(r->c, fv_items_get(&out, "logits"), r->score, r->items.n);
    fv_ctx_set_tap(r->c, NULL, NULL);
    return st ? fv_fail(e, st, "recommend: %s", fv_ctx_err(r->c)->text) : FV_OK;
}

/* The best k by insertion into a sorted list: k is small, and most items are worse than the last
 * of it. */
fv_status fv_recommender_run(fv_recommender *r, const int32_t *history, int64_t n, int64_t k,
                             fv_recommended *out, int64_t *found, float *looked, fv_err *e)
{
    *found = 0;
    for (int64_t i = 0; i < n; i++)
        if (history[i] < 0 || history[i] >= r->items.n)
            return fv_fail(e, FV_EARG, "item %d: the model has items 0 to %d", history[i],
                           r->items.n - 1);
    fv_status st = score(r, history, n, looked, e);
    if (!st) leave_out(r->score, history, n, -1);
    for (int32_t i = 0; !st && i < r->items.n; i++) {
        /* out stays sorted: a better one moves those behind it on */
        int64_t at = *found;
        if (!(r->score[i] > -INFINITY)) continue;
        if (at == k && !(r->score[i] > out[k - 1].score)) continue;
        if (at == k) at--;
        for (; at > 0 && out[at - 1].score < r->score[i]; at--) out[at] = out[at - 1];
        out[at] = (fv_recommended){i, r->score[i]};
        if (*found < k) (*found)++;
    }
    return st;
}

/* ---- ranking ---- */

/* Items that score the same as the right one do not count before it. */
static void add_rank(fv_ranking *k, const float *score, int64_t n, int32_t right)
{
    static const int at[] = {5, 10, 20};
    int64_t rank = 1;
    for (int64_t i = 0; i < n; i++) rank += score[i] > score[right];
    for (int i = 0; i < 3; i++) {
        if (rank > at[i]) continue;
        k->hr[i]++;
        k->ndcg[i] += 1 / log2(1 + (double)rank);
        k->mrr[i] += 1 / (double)rank;
    }
    k->users++;
}

static void finish(fv_ranking *k)
{
    double n = k->users ? (double)k->users : 1;
    for (int i = 0; i < 3; i++) k->hr[i] /= n, k->ndcg[i] /= n, k->mrr[i] /= n;
}

/* How often each item stands in the training part. */
static void count_items(const fv_events *v, float *count)
{
    for (int64_t u = 0, n; u < fv_events_users(v); u++) {
        const int32_t *x = fv_events_items(v, u, &n);
        for (int64_t i = 0; i < n - 2; i++) count[x[i]]++;
    }
}

/* Users with fewer than two items have nothing to be ranked by and are left out. */
fv_status fv_recommender_evaluate(fv_recommender *r, const fv_events *v, bool valid,
                                  fv_ranking *out, fv_ranking *popular, fv_err *e)
{
    int64_t items = r->items.n, n;
    float *count = fv__alloc(&r->env, 2 * r->score_bytes), *left = count + items;
    fv_status st = count ? FV_OK : fv_fail(e, FV_ENOMEM, "recommend: out of memory");
    *out = (fv_ranking){0};
    if (popular) *popular = (fv_ranking){0};
    if (!st) count_items(v, count);
    for (int64_t u = 0; !st && u < fv_events_users(v); u++) {
        const int32_t *x = fv_events_items(v, u, &n);
        n -= valid;
        if (n < 2) continue;
        int32_t right = x[n - 1];
        st = score(r, x, n - 1, NULL, e);
        if (st) continue;
        leave_out(r->score, x, n - 1, right);
        add_rank(out, r->score, items, right);
        if (!popular) continue;
        memcpy(left, count, r->score_bytes);
        leave_out(left, x, n - 1, right);
        add_rank(popular, left, items, right);
    }
    finish(out);
    if (popular) finish(popular);
    fv__free(&r->env, count, 2 * r->score_bytes);
    return st;
}
