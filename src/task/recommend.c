/* recommend.c - the task of recommending: the items that a user may turn to next.
 *
 * A record is the path of a file of events, whose users each get their items; or there is no file,
 * and the setting "item", given once for each item, is the history.  The work is in
 * series_recommend.c behind author/recommend.h.
 *
 *     plain   user <tab> item <tab> score          one line an item, best first
 *
 *     --json  {"user", "items": [{"item", "score"}], "looked_at": [{"item", "weight"}]}
 *
 * Items are named as in the training data; a name that the model does not know is an error and
 * not an unknown item, since scores behind it would mean nothing. */
#include "fovea/author/recommend.h"

#include "task_pipeline.h"

/* user and item hold the last value given; fv__setting_at finds all of them. */
typedef struct recommend_options {
    char user[256], item[256]; /* may be repeated: all of them are taken from the settings */
    fv_events_layout layout;
    int64_t top, sampled, seed;
    bool header, evaluate, valid, why;
} recommend_options;

static const fv_field options[] = {
    FV_TEXT(recommend_options, user, "",
            "NAME: a user of FILE; may be repeated; all of them unless given"),
    FV_TEXT(recommend_options, item, "",
            "NAME: an item of a history, in order of time, instead of a FILE; may be repeated"),
    FV_INT(recommend_options, top, 1, 10, 1000, "items for each user"),
    FV_CHOICE(recommend_options, layout, FV_EVENTS_ROWS, fv_events_layouts,
              "of FILE: user, item and time on each line, or a user with all its items"),
    FV_BOOL(recommend_options, header, false, "the first line of FILE only names its columns"),
    FV_BOOL(recommend_options, why, false,
            "also how much the last position attended to each item of the history"),
    FV_BOOL(recommend_options, evaluate, false,
            "rank the last item of each user instead, and print how well that went"),
    FV_BOOL(recommend_options, valid, false, "with --evaluate: the item before the last"),
    FV_INT(recommend_options, sampled, 0, 0, 1 << 20,
           "with --evaluate: against so many drawn items, as in the SASRec paper; 0: all"),
    FV_INT(recommend_options, seed, 0, 1, 1 << 30, "of drawing them"),
    {0}};

/* ---- output ---- */

/* What one history gave. */
typedef struct answer {
    const char *user; /* or NULL */
    const fv_recommended *items;
    int64_t n_items;
    const int32_t *history;
    const float *looked; /* (n): attention to each item of the history */
    int64_t n;
} answer;

static void put_list(fv_buf *b, const char *key)
{
    fv__json_key(b, key);
    fv__json_begin(b, '[');
}

/* {"item": name, KEY: x} */
static void put_item(fv_buf *b, const char *name, const char *key, float x)
{
    fv__json_begin(b, '{');
    fv__json_text_at(b, "item", name, strlen(name));
    fv__json_number_at(b, key, (double)x);
    fv__json_end(b, '}');
}

/* Names are those of the training data: fv_labels maps numbers back. */
static void put_json(fv_pipeline *p, const answer *a)
{
    const fv_labels *items = fv_recommender_items(p->self);
    fv_buf *b = &p->out;
    fv__json_begin(b, '{');
    if (a->user) fv__json_text_at(b, "user", a->user, strlen(a->user));
    put_list(b, "items");
    for (int64_t i = 0; i < a->n_items; i++)
        put_item(b, items->name[a->items[i].item], "score", a->items[i].score);
    fv__json_end(b, ']');
    if (a->looked) {
        put_list(b, "looked_at");
        for (int64_t i = 0; i < a->n; i++)
            put_item(b, items->name[a->history[i]], "weight", a->looked[i]);
        fv__json_end(b, ']');
    }
    fv__buf_str(b, "}\n");
}

static void put_plain(fv_pipeline *p, const answer *a)
{
    const fv_labels *items = fv_recommender_items(p->self);
    for (int64_t i = 0; i < a->n_items; i++)
        fv__buf_fmt(&p->out, "%s%s%s\t%.4f\n", a->user ? a->user : "", a->user ? "\t" : "",
                    items->name[a->items[i].item], (double)a->items[i].score);
    for (int64_t i = 0; a->looked && i < a->n; i++)
        fv__buf_fmt(&p->out, "  attended to %s: %.4f\n", items->name[a->history[i]],
                    (double)a->looked[i]);
}

/* At 5, 10 and 20, as fv_ranking has them. */
static void put_ranking(fv_pipeline *p, const char *name, const fv_ranking *k)
{
    /* The cut-offs are fixed in fv_ranking, whose arrays have these three. */
    static const int at[] = {5, 10, 20};
    static const char *const keys[] = {"hr", "ndcg", "mrr"};
    const double *values[] = {k->hr, k->ndcg, k->mrr};
    fv_buf *b = &p->out;
    if (!p->opt.json) {
        fv__buf_fmt(b, "%-12s", name);
        for (int i = 0; i < 3; i++)
            fv__buf_fmt(b, "  HR@%d %.4f NDCG@%d %.4f MRR@%d %.4f", at[i], k->hr[i], at[i],
                        k->ndcg[i], at[i], k->mrr[i]);
        fv__buf_str(b, "\n");
        return;
    }
    fv__json_key(b, name);
    fv__json_begin(b, '{');
    for (int i = 0; i < 3; i++) {
        put_list(b, keys[i]);
        for (int j = 0; j < 3; j++) fv__json_put_number(b, values[i][j]);
        fv__json_end(b, ']');
    }
    fv__json_end(b, '}');
}

/* ---- the task ---- */

static fv_status check(fv_pipeline *p, fv_err *e)
{
    const recommend_options *o = p->options;
    /* Either a file with users or a history: an option of the other would have no effect. */
    if (o->item[0] && (o->user[0] || o->evaluate))
        return fv_fail(e, FV_EUSAGE, "item: a history by itself has no users and no evaluation");
    return FV_OK;
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_recommender *r;
    fv_status st = fv_recommender_open(&r, p->dev, p->opt.model, fv__pipeline_model_opt(p), e);
    if (!st) p->self = r;
    return st;
}

static void close_task(fv_pipeline *p)
{
    fv_recommender_close(p->self);
    p->self = NULL;
}

/* Appends what follows one history to p->out. */
static fv_status ask(fv_pipeline *p, const char *user, const int32_t *history, int64_t n, fv_err *e)
{
    const recommend_options *o = p->options;
    answer a = {.user = user, .history = history, .n = n};
    /* One more, so that an empty history allocates something. */
    size_t list = (size_t)o->top * sizeof *a.items, row = (size_t)(n + 1) * sizeof *a.looked;
    fv_recommended *out = fv__alloc(&p->env, list);
    float *looked = fv__alloc(&p->env, row);
    fv_status st = out && looked ? FV_OK : fv_fail(e, FV_ENOMEM, "recommend: out of memory");
    if (!st)
        st = fv_recommender_run(p->self, history, n, o->top, out, &a.n_items,
                                o->why ? looked : NULL, e);
    a.items = out;
    a.looked = o->why ? looked : NULL;
    if (!st) (p->opt.json ? put_json : put_plain)(p, &a);
    fv__free(&p->env, out, list);
    fv__free(&p->env, looked, row);
    return st;
}

/* Behind the items that were given. */
static fv_status ask_items(fv_pipeline *p, fv_err *e)
{
    int n = 0;
    /* O(n^2) over the settings of a command line. */
    while (fv__setting_at(p, "item", n)) n++;
    size_t bytes = (size_t)(n + 1) * sizeof(int32_t);
    int32_t *history = fv__alloc(&p->env, bytes);
    fv_status st = history ? FV_OK : fv_fail(e, FV_ENOMEM, "recommend: out of memory");
    for (int i = 0; !st && i < n; i++) {
        const char *name = fv__setting_at(p, "item", i);
        history[i] = fv_labels_find(fv_recommender_items(p->self), name, strlen(name));
        if (history[i] < 0)
            st = fv_fail(e, FV_EARG, "--item %.60s: the model has no such item", name);
    }
    if (!st) st = ask(p, NULL, history, n, e);
    fv__free(&p->env, history, bytes);
    return st ? st : fv__task_emit(p, e);
}

/* Beside the model, what the items' popularity and their neighbours would give: a ranking that does
 * not beat them has learnt nothing of users. */
static fv_status evaluate(fv_pipeline *p, const fv_events *v, fv_err *e)
{
    static const char *const names[] = {"model", "popularity", "neighbours"};
    const recommend_options *o = p->options;
    fv_ranking k[FV_RANKED];
    fv_buf *b = &p->out;
    fv_ranking_opt how = {.valid = o->valid, .sampled = o->sampled, .seed = (uint64_t)o->seed};
    fv_status st = fv_recommender_evaluate(p->self, v, how, k, e);
    if (st) return st;
    if (p->opt.json) {
        fv__json_begin(b, '{');
        fv__json_int_at(b, "users", k[0].users);
        fv__json_int_at(b, "sampled", o->sampled);
        fv__json_key(b, "at");
        fv__buf_str(b, "[5,10,20]");
    } else if (o->sampled) {
        fv__buf_fmt(b, "%lld users, ranking among %lld drawn items\n", (long long)k[0].users,
                    (long long)o->sampled);
    } else {
        fv__buf_fmt(b, "%lld users, full ranking\n", (long long)k[0].users);
    }
    for (int i = 0; i < FV_RANKED; i++) put_ranking(p, names[i], &k[i]);
    if (p->opt.json) fv__buf_str(b, "}\n");
    return FV_OK;
}

/* The user of that number, or of that name where names were given; parts of the result go out user
 * by user, so memory does not grow with the file. */
static fv_status ask_user(fv_pipeline *p, const fv_events *v, int64_t i, const char *file,
                          fv_err *e)
{
    const char *name = fv__setting_at(p, "user", (int)i);
    int64_t n, user = name ? fv_events_find(v, name) : i;
    if (user < 0) return fv_fail(e, FV_EARG, "--user %.60s: %s has no such user", name, file);
    const int32_t *history = fv_events_items(v, user, &n);
    fv_status st = ask(p, fv_events_user(v, user), history, n, e);
    if (!st && p->out.failed) st = fv_fail(e, FV_ENOMEM, "recommend: out of memory");
    if (!st) st = fv__task_emit_part(p, p->out.data, p->out.len, e);
    p->out.len = 0;
    return st;
}

/* Named users in the order they were named; else all of the file, in its order. */
static fv_status ask_file(fv_pipeline *p, const char *file, fv_err *e)
{
    fv_events *v;
    const recommend_options *o = p->options;
    /* The model's item names are given, so that ids in the file's histories are the model's. */
    fv_events_opt how = {file, o->layout, o->header, fv_recommender_items(p->self)};
    fv_status st = fv_events_open(&v, &p->env, &how, e);
    if (st) return st;
    int64_t n = 0;
    while (o->user[0] && fv__setting_at(p, "user", (int)n)) n++;
    if (!n) n = fv_events_users(v);
    if (o->evaluate) st = evaluate(p, v, e);
    for (int64_t i = 0; !st && !o->evaluate && i < n; i++) st = ask_user(p, v, i, file, e);
    fv_events_close(v);
    return st ? st : fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    return fv__task_each_path(p, in, n, ask_file, e);
}

static fv_status finish(fv_pipeline *p, fv_err *e)
{
    const recommend_options *o = p->options;
    /* Without a file nothing is read, and the history is asked for once, at the end. */
    return o->item[0] ? ask_items(p, e) : FV_OK;
}

static const fv_task_example examples[] = {
    {"fovea recommend -m runs/beauty/model --layout sequences Beauty_5core_seq.txt.gz --user 7 "
     "--why",
     "for one user of a file, with what the model attended to"},
    {"fovea recommend -m runs/beauty/model --item 12 --item 830 --item 41 --top 5",
     "behind three items"},
    {"fovea recommend -m runs/beauty/model --layout sequences Beauty_5core_seq.txt.gz --evaluate",
     "hit rate, NDCG and MRR, beside those of popularity and neighbours"},
    {0}};

const fv_task_kind fv__recommend_task = {
    .name = "recommend",
    .summary = "rank the items that a user may want next",
    .about =
        "Reads what users did (user, item and perhaps time on each line, or a user with all its "
        "items; plain or gzip) and prints the items that score best behind each history, best "
        "first.  Items of the history are left out.  Items must be those that the model was "
        "trained on.\n\n"
        "--why adds how much the last position attended to each item of the history: exact "
        "attention "
        "weights of the last layer, mean over its heads.\n\n"
        "--evaluate ranks the last item of each user against all that it has not had before (full "
        "ranking) and prints hit rate, NDCG and MRR at 5, 10 and 20, beside those of recommending "
        "what is popular in the training part, and what the same users had (the cosine of items' "
        "sets "
        "of users, summed over the history).  --sampled 100 ranks among so many drawn items "
        "instead, "
        "as the first papers did; such figures say little and compare with nothing else.",
    .examples = examples,
    .options = options,
    .size = sizeof(recommend_options),
    .path = "FILE",
    .instead = "item",
    .check = check,
    .open = open_task,
    .run = run,
    .finish = finish,
    .close = close_task};
