/* series_recommend.c - recommendations with a trained model, and their ranking.
 *
 * Ranking is full: the right item against every item that the user has not had before it.  Ranks
 * among a hundred drawn items, as in the first papers, order models differently, and are there to
 * compare with them alone.
 *
 * A model that looks both ways (it takes attention_mask) finds what is hidden behind the history:
 * the mask, whose id is the number of items, is read as the last item. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"
#include "data/dice.h"
#include "fovea/author/family.h"
#include "fovea/author/recommend.h"
#include "model/series.h"
#include "task_pipeline.h"

struct fv_recommender {
    fv_env env;
    fv_model *model;
    fv_ctx *c;
    fv_labels items;
    int64_t longest;
    bool both_ways;
    int32_t *ids; /* (longest): what is read */
    float *score; /* (items) */
    size_t score_bytes;
    float *row;    /* (longest): attention of one head */
    float *looked; /* of a run: (read), or NULL: not wanted */
    int64_t read;
};

/* ---- opening ---- */

/* Two items of one name could not be told apart in a history that names them. */
fv_status fv__item_names(fv_labels *items, const char *dir, int64_t n, fv_err *e)
{
    fv_dir *files;
    fv_status st = fv_dir_open(&files, items->env, dir, e);
    for (int64_t i = 0; !st && i < n; i++) {
        char key[40], number[24];
        int32_t id;
        snprintf(key, sizeof key, "id2label.%lld", (long long)i);
        snprintf(number, sizeof number, "%lld", (long long)i);
        const char *name = fv_json_text(fv_dir_config(files), key);
        if (!name) name = number;
        st = fv_labels_add(items, &id, name, strlen(name), e);
        if (!st && id != i)
            st = fv_fail(e, FV_EFORMAT, "%s/config.json: id2label has \"%.60s\" twice", dir, name);
    }
    items->closed = true;
    fv_dir_close(files);
    return st;
}

/* score holds one row of scores for all items; a history longer than the model reads is cut at its
 * front. */
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
        st = fv_fail(e, FV_EARG,
                     "%s: %s does not recommend items; SasRecModel and Bert4RecModel do", dir,
                     fv_model_head(r->model));
    if (!st) {
        const fv_field *table = fv_model_family(r->model)->config;
        fv_fields_get(fv_model_config(r->model), table, "num_labels", text, sizeof text);
        int64_t n = strtoll(text, NULL, 10);
        r->longest = fv_model_family(r->model)->longest(fv_model_self(r->model));
        r->score_bytes = (size_t)n * sizeof *r->score;
        r->score = fv__alloc(env, r->score_bytes);
        r->row = fv__alloc(env, (size_t)r->longest * sizeof *r->row);
        r->ids = fv__alloc(env, (size_t)r->longest * sizeof *r->ids);
        r->both_ways = fv_family_takes(fv_model_family(r->model), "attention_mask");
        if (!r->score || !r->row || !r->ids) st = fv_fail(e, FV_ENOMEM, "recommend: out of memory");
        if (!st) st = fv__item_names(&r->items, dir, n, e);
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
    fv__free(&env, r->ids, (size_t)r->longest * sizeof *r->ids);
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
    if (s.d[3] != r->read + r->both_ways) return;
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
    int64_t room = r->longest - r->both_ways;
    r->read = n < room ? n : room;
    if (n < 1) return fv_fail(e, FV_EARG, "a history needs at least one item");
    r->looked = looked ? looked + n - r->read : NULL;
    if (looked) memset(looked, 0, (size_t)n * sizeof *looked);
    fv_ctx_reset(r->c, 0);
    fv_ctx_set_tap(r->c, looked ? tap : NULL, r);
    int32_t last = (int32_t)r->read - 1 + r->both_ways;
    memcpy(r->ids, history + n - r->read, (size_t)r->read * sizeof *r->ids);
    if (r->both_ways) r->ids[r->read] = r->items.n;
    fv_items_put(&in, "input_ids", fv_ints(r->c, r->ids, FV_SHAPE(1, last + 1)));
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

enum { DICE_SAMPLED = 13, TRIES = 100 };

static void put_rank(fv_ranking *k, int64_t rank)
{
    static const int at[] = {5, 10, 20};
    for (int i = 0; i < 3; i++) {
        if (rank > at[i]) continue;
        k->hr[i]++;
        k->ndcg[i] += 1 / log2(1 + (double)rank);
        k->mrr[i] += 1 / (double)rank;
    }
    k->users++;
}

/* 1 for a score before the right item's, 1/2 for an equal one: the mean rank of those that tie.
 * Baselines give most items no score at all, and would be right by chance if ties counted for
 * them. */
static double before(float score, float right)
{
    return score > right ? 1 : score == right ? 0.5 : 0;
}

static void add_rank(fv_ranking *k, const float *score, int64_t n, int32_t right)
{
    double rank = 1;
    for (int64_t i = 0; i < n; i++) rank += i != right ? before(score[i], score[right]) : 0;
    put_rank(k, (int64_t)rank);
}

static void finish(fv_ranking *k)
{
    double n = k->users ? (double)k->users : 1;
    for (int i = 0; i < 3; i++) k->hr[i] /= n, k->ndcg[i] /= n, k->mrr[i] /= n;
}

/* ---- baselines: what the training part alone says ---- */

/* Users of each item in the training part, which is all but the last two items of a user. */
typedef struct counts {
    const fv_events *v;
    float *score;   /* (items): of a baseline, for one user */
    int64_t *start; /* (items + 1) */
    int32_t *user;  /* those of the first item, then of the next */
    size_t score_bytes, start_bytes, user_bytes;
} counts;

static int64_t training(const fv_events *v, int64_t u, const int32_t **x)
{
    int64_t n;
    *x = fv_events_items(v, u, &n);
    return n > 2 ? n - 2 : 0;
}

static void counts_free(const fv_env *env, counts *k)
{
    fv__free(env, k->score, k->score_bytes);
    fv__free(env, k->start, k->start_bytes);
    fv__free(env, k->user, k->user_bytes);
}

static fv_status counts_init(const fv_env *env, counts *k, const fv_events *v, int64_t items,
                             fv_err *e)
{
    int64_t total = 0, n;
    const int32_t *x;
    for (int64_t u = 0; u < fv_events_users(v); u++) total += training(v, u, &x);
    *k = (counts){.v = v,
                  .score_bytes = (size_t)items * sizeof *k->score,
                  .start_bytes = (size_t)(items + 1) * sizeof *k->start,
                  .user_bytes = (size_t)(total + 1) * sizeof *k->user};
    k->score = fv__alloc(env, k->score_bytes);
    k->start = fv__alloc(env, k->start_bytes);
    k->user = fv__alloc(env, k->user_bytes);
    if (!k->score || !k->start || !k->user)
        return fv_fail(e, FV_ENOMEM, "recommend: out of memory");
    for (int64_t u = 0; u < fv_events_users(v); u++) {
        n = training(v, u, &x);
        for (int64_t i = 0; i < n; i++) k->start[x[i] + 1]++;
    }
    for (int64_t i = 0; i < items; i++) k->start[i + 1] += k->start[i];
    /* start[i] moves to where item i + 1 begins while users are placed, and back again */
    for (int64_t u = 0; u < fv_events_users(v); u++) {
        n = training(v, u, &x);
        for (int64_t i = 0; i < n; i++) k->user[k->start[x[i]]++] = (int32_t)u;
    }
    for (int64_t i = items; i > 0; i--) k->start[i] = k->start[i - 1];
    k->start[0] = 0;
    return FV_OK;
}

static double times(const counts *k, int64_t item)
{
    return (double)(k->start[item + 1] - k->start[item]);
}

static void by_popularity(counts *k, int64_t items)
{
    for (int64_t i = 0; i < items; i++) k->score[i] = (float)times(k, i);
}

/* score(j) = sum over i of the history of |users of i and j| / sqrt(|users of i| |users of j|) */
static void by_neighbours(counts *k, int64_t items, const int32_t *history, int64_t n)
{
    const int32_t *x;
    memset(k->score, 0, (size_t)items * sizeof *k->score);
    for (int64_t i = 0; i < n; i++)
        for (int64_t at = k->start[history[i]]; at < k->start[history[i] + 1]; at++) {
            int64_t had = training(k->v, k->user[at], &x);
            for (int64_t j = 0; j < had; j++)
                k->score[x[j]] += (float)(1 / sqrt(times(k, history[i]) * times(k, x[j])));
        }
}

/* ---- evaluation ---- */

typedef struct question {
    const int32_t *all; /* every item of the user */
    int64_t n_all, n;   /* of which the last of n is to be found */
    int64_t user;
} question;

static bool had(const question *q, int32_t item)
{
    for (int64_t i = 0; i < q->n_all; i++)
        if (q->all[i] == item) return true;
    return false;
}

/* Scores of all items: its rank among those that may be recommended, or among drawn ones, which are
 * the same for every model. */
static void ask(fv_ranking *k, float *score, int64_t items, const question *q, fv_ranking_opt opt)
{
    int32_t right = q->all[q->n - 1];
    fv__dice d = fv__dice_of((fv_data_rng){opt.seed, 0}, DICE_SAMPLED, q->user);
    if (!opt.sampled) {
        leave_out(score, q->all, q->n - 1, right);
        add_rank(k, score, items, right);
        return;
    }
    double rank = 1;
    for (int64_t i = 0; i < opt.sampled; i++) {
        int32_t item = fv__dice_below(&d, (int)items);
        for (int t = 0; t < TRIES && had(q, item); t++) item = fv__dice_below(&d, (int)items);
        rank += before(score[item], score[right]);
    }
    put_rank(k, (int64_t)rank);
}

fv_status fv_recommender_evaluate(fv_recommender *r, const fv_events *v, fv_ranking_opt opt,
                                  fv_ranking *out, fv_err *e)
{
    counts k = {0};
    int64_t items = r->items.n;
    for (int i = 0; i < FV_RANKED; i++) out[i] = (fv_ranking){0};
    fv_status st = counts_init(&r->env, &k, v, items, e);
    for (int64_t u = 0; !st && u < fv_events_users(v); u++) {
        question q = {.user = u};
        q.all = fv_events_items(v, u, &q.n_all);
        q.n = q.n_all - opt.valid;
        /* the papers' protocol leaves out users without a training part */
        if (q.n < 2 || (opt.sampled && q.n_all < 3)) continue;
        st = score(r, q.all, q.n - 1, NULL, e);
        if (st) break;
        ask(&out[FV_RANKED_MODEL], r->score, items, &q, opt);
        by_popularity(&k, items);
        ask(&out[FV_RANKED_POPULAR], k.score, items, &q, opt);
        by_neighbours(&k, items, q.all, q.n - 1);
        ask(&out[FV_RANKED_NEIGHBOURS], k.score, items, &q, opt);
    }
    for (int i = 0; i < FV_RANKED; i++) finish(&out[i]);
    counts_free(&r->env, &k);
    return st;
}
