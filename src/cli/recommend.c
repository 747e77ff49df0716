/* recommend.c - fovea recommend: the items that a user may turn to next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "fovea/author/recommend.h"
#include "json.h"

typedef struct recommend_values {
    cli_model model;
    cli_list users, items;
    int layout;
    int64_t top;
    bool header, evaluate, valid, why, json;
} recommend_values;

static const cli_option options[] = {
    CLI_MODEL(recommend_values),
    CLI_LIST(recommend_values, users, 0, "user", "NAME",
             "a user of FILE; may be repeated; all of them unless given"),
    CLI_LIST(recommend_values, items, 0, "item", "NAME",
             "an item of a history, in order of time, instead of a FILE; may be repeated"),
    CLI_INT(recommend_values, top, 0, "top", "N", 1, 1000, "items for each user"),
    CLI_CHOICE(recommend_values, layout, 0, "layout", fv_events_layouts,
               "of FILE: user, item and time on each line, or a user with all its items"),
    CLI_FLAG(recommend_values, header, 0, "header",
             "the first line of FILE only names its columns"),
    CLI_FLAG(recommend_values, why, 0, "why",
             "also how much the last position looked at each item of the history"),
    CLI_FLAG(recommend_values, evaluate, 0, "evaluate",
             "rank the last item of each user instead, and print how well that went"),
    CLI_FLAG(recommend_values, valid, 0, "valid", "with --evaluate: the item before the last"),
    CLI_FLAG(recommend_values, json, 0, "json", "a JSON object for each user, or one"),
    {0},
};

static const recommend_values defaults = {.top = 10};

static const cli_example examples[] = {
    {"fovea recommend -m runs/beauty/model --layout sequences Beauty_5core_seq.txt.gz --user 7 "
     "--why",
     "for one user of a file, with what the model looked at"},
    {"fovea recommend -m runs/beauty/model --item 12 --item 830 --item 41 --top 5",
     "behind three items"},
    {"fovea recommend -m runs/beauty/model --layout sequences Beauty_5core_seq.txt.gz --evaluate",
     "hit rate, NDCG and MRR, beside those of popularity"},
    {0},
};

typedef struct asking {
    const cli *c;
    const recommend_values *v;
    fv_recommender *r;
    fv_err e;
} asking;

/* ---- output ---- */

static void print_json(const asking *a, const char *user, const fv_recommended *out, int64_t found,
                       const int32_t *history, const float *looked, int64_t n)
{
    const fv_labels *items = fv_recommender_items(a->r);
    cli_json j = {0};
    cli_json_put(&j, "{");
    if (user) cli_json_put(&j, "s:s", "user", user);
    cli_json_put(&j, "s:[", "items");
    for (int64_t i = 0; i < found; i++)
        cli_json_put(&j, "{s:s, s:f}", "item", items->name[out[i].item], "score",
                     (double)out[i].score);
    cli_json_put(&j, "]");
    if (a->v->why) cli_json_put(&j, "s:[", "looked_at");
    for (int64_t i = 0; a->v->why && i < n; i++)
        cli_json_put(&j, "{s:s, s:f}", "item", items->name[history[i]], "weight",
                     (double)looked[i]);
    if (a->v->why) cli_json_put(&j, "]");
    cli_json_put(&j, "}");
    cli_json_end();
}

static void print_plain(const asking *a, const char *user, const fv_recommended *out, int64_t found,
                        const int32_t *history, const float *looked, int64_t n)
{
    const fv_labels *items = fv_recommender_items(a->r);
    for (int64_t i = 0; i < found; i++)
        printf("%s%s%s\t%.4f\n", user ? user : "", user ? "\t" : "", items->name[out[i].item],
               (double)out[i].score);
    for (int64_t i = 0; a->v->why && i < n; i++)
        printf("  looked at %s: %.4f\n", items->name[history[i]], (double)looked[i]);
}

static fv_status ask(asking *a, const char *user, const int32_t *history, int64_t n)
{
    int64_t found, k = a->v->top;
    fv_recommended *out = calloc((size_t)k, sizeof *out);
    float *looked = calloc((size_t)n + 1, sizeof *looked);
    fv_status st = out && looked ? FV_OK : fv_fail(&a->e, FV_ENOMEM, "out of memory");
    if (!st)
        st = fv_recommender_run(a->r, history, n, k, out, &found, a->v->why ? looked : NULL, &a->e);
    if (!st) (a->v->json ? print_json : print_plain)(a, user, out, found, history, looked, n);
    free(out);
    free(looked);
    return st;
}

static void print_ranking(const char *name, const fv_ranking *k)
{
    static const int at[] = {5, 10, 20};
    printf("%-12s", name);
    for (int i = 0; i < 3; i++)
        printf("  HR@%d %.4f NDCG@%d %.4f MRR@%d %.4f", at[i], k->hr[i], at[i], k->ndcg[i], at[i],
               k->mrr[i]);
    printf("\n");
}

static void put_ranking(cli_json *j, const char *name, const fv_ranking *k)
{
    cli_json_put(j, "s:{s:[f, f, f], s:[f, f, f], s:[f, f, f]}", name, "hr", k->hr[0], k->hr[1],
                 k->hr[2], "ndcg", k->ndcg[0], k->ndcg[1], k->ndcg[2], "mrr", k->mrr[0], k->mrr[1],
                 k->mrr[2]);
}

static fv_status evaluate(asking *a, const fv_events *v)
{
    fv_ranking model, popular;
    fv_status st = fv_recommender_evaluate(a->r, v, a->v->valid, &model, &popular, &a->e);
    if (st) return st;
    if (a->v->json) {
        cli_json j = {0};
        cli_json_put(&j, "{s:I, s:[i, i, i]", "users", model.users, "at", 5, 10, 20);
        put_ranking(&j, "model", &model);
        put_ranking(&j, "popularity", &popular);
        cli_json_put(&j, "}");
        cli_json_end();
        return FV_OK;
    }
    printf("%lld users, full ranking\n", (long long)model.users);
    print_ranking("model", &model);
    print_ranking("popularity", &popular);
    return FV_OK;
}

/* ---- the command ---- */

/* Behind the items that were given. */
static fv_status ask_items(asking *a)
{
    const cli_list *given = &a->v->items;
    int32_t history[sizeof given->at / sizeof *given->at];
    for (int i = 0; i < given->n; i++) {
        const char *name = given->at[i];
        history[i] = fv_labels_find(fv_recommender_items(a->r), name, strlen(name));
        if (history[i] < 0)
            return fv_fail(&a->e, FV_EARG, "--item %.60s: the model has no such item", name);
    }
    return ask(a, NULL, history, given->n);
}

static fv_status ask_file(asking *a, const char *file)
{
    fv_events *v;
    const recommend_values *o = a->v;
    fv_events_opt how = {file, (fv_events_layout)o->layout, o->header, fv_recommender_items(a->r)};
    fv_status st = fv_events_open(&v, NULL, &how, &a->e);
    if (st) return st;
    int64_t n, many = o->users.n ? o->users.n : fv_events_users(v);
    if (o->evaluate) st = evaluate(a, v);
    for (int64_t i = 0; !st && !o->evaluate && i < many; i++) {
        int64_t user = o->users.n ? fv_events_find(v, o->users.at[i]) : i;
        if (user < 0) {
            st = fv_fail(&a->e, FV_EARG, "--user %.60s: %s has no such user", o->users.at[i], file);
            break;
        }
        const int32_t *history = fv_events_items(v, user, &n);
        st = ask(a, fv_events_user(v, user), history, n);
    }
    fv_events_close(v);
    return st;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    asking a = {.c = c, .v = values};
    const recommend_values *v = values;
    fv_device *d = NULL;
    fv_model_opt how = {0};
    cli_adapters adapters;
    if (!v->model.dir) return cli_usage(c, "a model is needed: -m DIR");
    if (!n == !v->items.n) return cli_usage(c, "either a FILE or --item is needed");
    cli_choose_weights(v->model.dtype, &how.weights, &how.widen);
    int code = cli_take_adapters(c, &v->model.adapters, &adapters, &how.adapters);
    if (code == CLI_OK) code = cli_open_device(c, &d, v->model.device, v->model.threads);
    if (code != CLI_OK) return code;
    fv_status st = fv_recommender_open(&a.r, d, v->model.dir, how, &a.e);
    if (!st) st = n ? ask_file(&a, operand[0]) : ask_items(&a);
    fv_recommender_close(a.r);
    fv_device_close(d);
    return st ? cli_error(c, &a.e) : CLI_OK;
}

const cli_command recommend_command = {
    .name = "recommend",
    .summary = "the items that a user may turn to next",
    .about =
        "Reads what users did (user, item and perhaps time on each line, or a user with all its "
        "items; plain or gzip) and prints the items that score best behind each history, best "
        "first.  Items of the history are left out.  Items must be those that the model was "
        "trained on.\n\n"
        "--why adds how much the last position looked at each item of the history: exact attention "
        "weights of the last layer, mean over its heads.\n\n"
        "--evaluate ranks the last item of each user against all that it has not had before (full "
        "ranking, no sampling) and prints hit rate, NDCG and MRR at 5, 10 and 20, beside those of "
        "recommending what is popular in the training part.",
    .options = options,
    .size = sizeof(recommend_values),
    .defaults = &defaults,
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
