/* model.c - [model]: a family with a configuration, or a directory to go on from. */
#include <stdio.h>

#include "store/json.h"
#include "train/recipe/recipe.h"

static bool own_key(const char *key)
{
    return !strcmp(key, "model_type") || !strcmp(key, "architecture") || !strcmp(key, "from");
}

/* ---- checking ---- */

static fv_status unknown_family(const char *type, const char *location, fv_err *e)
{
    const char *names[64];
    int n = 0;
    for (const fv_family *f; n < 63 && (f = fv_family_at(n));) names[n++] = f->type;
    names[n] = NULL;
    const char *suggestion = fv_closest(type, names);
    return fv_fail(e, FV_EARG, "%s: [model] model_type: there is no family %.60s%s%s%s", location,
                   type, suggestion ? "; did you mean " : "", suggestion ? suggestion : "",
                   suggestion ? "?" : "");
}

static fv_status check_keys(const fv_recipe *r, const fv_family *f, fv_err *e)
{
    fv_err why;
    fv_status st = FV_OK;
    void *config = fv__alloc(r->env, f->config_size);
    if (!config) return fv_fail(e, FV_ENOMEM, "recipe: out of memory");
    fv_fields_default(config, f->config);
    for (size_t i = 0; !st && i < r->n_model; i++) {
        const fv__model_key *k = &r->model[i];
        if (own_key(k->key)) continue;
        st = fv_fields_set(config, f->config, k->key, k->value, &why);
        if (st) fv_fail(e, st, "%s: [model] %s", k->location, why.text);
    }
    fv__free(r->env, config, f->config_size);
    return st;
}

fv_status fv__recipe_family(const fv_recipe *r, const fv_family **out, fv_err *e)
{
    const char *type = fv__recipe_model(r, "model_type"), *from = fv__recipe_model(r, "from"),
               *location = r->path;
    fv_dir *dir = NULL;
    fv_status st = FV_OK;
    for (size_t i = 0; i < r->n_model; i++)
        if (!strcmp(r->model[i].key, "model_type")) location = r->model[i].location;
    if (from && type)
        return fv_fail(e, FV_EARG,
                       "%s: [model] has both model_type and from: one of them is enough", location);
    if (!from && !type)
        return fv_fail(e, FV_EARG, "%s: [model]: neither model_type nor from is given", location);
    if (from) {
        st = fv_dir_open(&dir, r->env, from, e);
        if (!st && !(type = fv_config_type(fv_dir_config(dir))))
            st = fv_fail(e, FV_EFORMAT, "%s/config.json: model_type is missing", from);
        st = fv__recipe_prefix_error(r, "[model] from", st, e);
        location = from;
    }
    *out = st ? NULL : fv_family_find(type);
    if (!st && !*out) st = unknown_family(type, location, e);
    fv_dir_close(dir);
    return *out ? check_keys(r, *out, e) : st;
}

/* ---- the configuration ---- */

static const fv_field *field_of(const fv_family *f, const char *key)
{
    for (const fv_field *t = f->config; t->name; t++)
        if (!strcmp(t->name, key)) return t;
    return NULL;
}

/* A value of the recipe as JSON: texts and choices in quotes, words as a list. */
static fv_status set_value(fv_json *j, const fv_family *f, const char *key, const char *value,
                           fv_err *e)
{
    const fv_field *t = field_of(f, key);
    char text[2048];
    fv_field_type type = t ? t->type : FV_END;
    if (type == FV_FIELD_WORDS) {
        int n = snprintf(text, sizeof text, "[");
        for (size_t len; value += strspn(value, " "), (len = strcspn(value, " ")) > 0; value += len)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s\"%.*s\"", n > 1 ? ", " : "",
                          (int)len, value);
        snprintf(text + n, sizeof text - (size_t)n, "]");
        return fv_json_set(j, key, text, e);
    }
    if (type == FV_FIELD_BOOL && !value[1]) value = *value == '1' ? "true" : "false";
    bool quoted = type == FV_FIELD_TEXT || type == FV_FIELD_CHOICE;
    /* transformers wants a float where it expects one, even if it is whole */
    bool whole = type == FV_FIELD_FLOAT && !strpbrk(value, ".eE");
    snprintf(text, sizeof text, quoted ? "\"%s\"" : whole ? "%s.0" : "%s", value);
    return fv_json_set(j, key, text, e);
}

/* What follows from the tokenizer, unless the recipe says it. */
static fv_status set_derived(fv__recipe_run *k, fv_json *j, const fv_family *f, bool fresh)
{
    const struct {
        const char *key;
        int32_t value;
    } derived[] = {
        {"vocab_size", fv_tok_size(k->tok)},
        {"pad_token_id", k->pad},
        {"eos_token_id", k->eos},
        {"bos_token_id", k->eos},
        {"decoder_start_token_id", k->start},
    };
    fv_status st = FV_OK;
    for (size_t i = 0; fresh && !st && i < sizeof derived / sizeof *derived; i++) {
        char text[32];
        if (derived[i].value < 0 || fv__recipe_model(k->r, derived[i].key)) continue;
        if (!field_of(f, derived[i].key) && i < 3) continue;
        snprintf(text, sizeof text, "%d", derived[i].value);
        st = fv_json_set(j, derived[i].key, text, k->e);
    }
    return st;
}

/* The names of the labels, both ways, as transformers keeps them. */
static fv_status set_labels(fv__recipe_run *k, fv_json *j)
{
    json_t *to_name = json_object(), *to_id = json_object();
    for (int i = 0; i < k->labels.n; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        json_object_set_new(to_name, id, json_string(k->labels.name[i]));
        json_object_set_new(to_id, k->labels.name[i], json_integer(i));
    }
    fv_buf a = {.env = k->env}, b = {.env = k->env};
    fv__json_print(&a, to_name, -1);
    fv__json_print(&b, to_id, -1);
    fv_status st = a.failed || b.failed ? fv_fail(k->e, FV_ENOMEM, "labels: out of memory")
                                        : fv_json_set(j, "id2label", a.data, k->e);
    if (!st) st = fv_json_set(j, "label2id", b.data, k->e);
    fv__buf_free(&a);
    fv__buf_free(&b);
    json_decref(to_name);
    json_decref(to_id);
    return st;
}

fv_status fv__recipe_labels(fv__recipe_run *k)
{
    const char *from = fv__recipe_model(k->r, "from"),
               *head = fv__recipe_model(k->r, "architecture"), *name;
    fv_dir *dir;
    if (!from || (k->r->data.objective != FV_CLASSIFY && k->r->data.objective != FV_TAG))
        return FV_OK;
    fv_status st = fv_dir_open(&dir, k->env, from, k->e);
    if (st) return fv__recipe_prefix_error(k->r, "[model] from", st, k->e);
    const fv_json *j = fv_dir_config(dir);
    const char *was = fv_json_text(j, "architectures.0");
    char key[32], nameless[32];
    for (int i = 0; !head || (was && !strcmp(was, head)); i++) {
        snprintf(key, sizeof key, "id2label.%d", i);
        snprintf(nameless, sizeof nameless, "LABEL_%d", i);
        if (!(name = fv_json_text(j, key)) || !strcmp(name, nameless)) break;
        if (i == (int)(sizeof k->labels.name / sizeof *k->labels.name) ||
            strlen(name) >= sizeof k->labels.name[0])
            break;
        snprintf(k->labels.name[k->labels.n++], sizeof k->labels.name[0], "%s", name);
    }
    fv_dir_close(dir);
    return FV_OK;
}

static fv_status make_config(fv__recipe_run *k, fv_json **out, const fv_family *f, const char *from)
{
    char path[FV_PATH];
    fv_status st;
    if (from) {
        fv__recipe_path(path, from, "config.json");
        st = fv_json_open(out, k->env, path, k->e);
    } else {
        st = fv_json_parse(out, k->env, "{}", "config", k->e);
        snprintf(path, sizeof path, "\"%s\"", f->type);
        if (!st) st = fv_json_set(*out, "model_type", path, k->e);
    }
    for (size_t i = 0; !st && i < k->r->n_model; i++) {
        const fv__model_key *m = &k->r->model[i];
        if (!own_key(m->key)) st = set_value(*out, f, m->key, m->value, k->e);
    }
    if (!st) st = set_derived(k, *out, f, !from);
    if (!st && k->labels.n) st = set_labels(k, *out);
    return st;
}

/* ---- going on from a directory ---- */

/* Names of parameters that only one side has: the first few, and how many there are. */
typedef struct apart {
    fv_buf names[2]; /* those of the file, and those of the model */
    int n[2];
} apart;

static void on_skipped(void *user, const char *name, bool is_fresh)
{
    apart *a = user;
    fv_buf *b = &a->names[is_fresh];
    if (++a->n[is_fresh] <= 8) fv__buf_fmt(b, "%s%.80s", b->len ? ", " : "", name);
}

static void say_apart(const fv__recipe_run *k, const char *what, const apart *a, bool is_fresh)
{
    if (!a->n[is_fresh]) return;
    char more[32] = "";
    if (a->n[is_fresh] > 8) snprintf(more, sizeof more, " and %d more", a->n[is_fresh] - 8);
    fv__recipe_log(k, "%s: %s%s", what, a->names[is_fresh].data ? a->names[is_fresh].data : "",
                   more);
}

/* With another head than the directory's, what it lacks is new and what it has beside is left; both
 * are told. */
static fv_status load(fv__recipe_run *k, const char *from, bool other_head)
{
    static const char *const any[] = {"*", NULL};
    fv_params *p = fv_model_params(k->model);
    const fv_family *f = fv_model_family(k->model);
    fv_load_opt how = f->load ? f->load(fv_model_self(k->model)) : (fv_load_opt){0};
    apart a = {.names = {{.env = k->env}, {.env = k->env}}};
    if (other_head) {
        how.fresh = how.ignore = any;
        how.on_skipped = on_skipped;
        how.user = &a;
    }
    fv_status st = fv_params_load(p, k->env, from, how, k->e);
    int n = fv_params_count(p);
    if (!st && a.n[1] == n)
        st = fv_fail(k->e, FV_EFORMAT, "%s: has no parameter of this model", from);
    if (!st) {
        fv__recipe_log(k, "%d of %d parameters come from %s", n - a.n[1], n, from);
        say_apart(k, "  new", &a, true);
        say_apart(k, "  left out", &a, false);
    }
    fv__buf_free(&a.names[0]);
    fv__buf_free(&a.names[1]);
    return st;
}

fv_status fv__recipe_new_model(fv__recipe_run *k)
{
    const char *from = fv__recipe_model(k->r, "from"),
               *head = fv__recipe_model(k->r, "architecture");
    const fv_family *f;
    fv_json *j = NULL;
    fv_buf text = {.env = k->env};
    fv_status st = fv__recipe_family(k->r, &f, k->e);
    if (st) return st;
    st = make_config(k, &j, f, from);
    if (!st) fv__json_print(&text, j->root, 0);
    if (!st && text.failed) st = fv_fail(k->e, FV_ENOMEM, "config: out of memory");
    fv_model_opt how = {.dtype = fv_train_dtype(&k->r->train), .train = true, .head = head};
    if (!st)
        st = fv_model_new(&k->model, k->job->device, text.data, how, (uint64_t)k->r->train.seed,
                          k->e);
    st = fv__recipe_prefix_error(k->r, "[model]", st, k->e);
    if (!st && from) {
        const char *was = fv_json_text(j, "architectures.0");
        st = fv__recipe_prefix_error(k->r, "[model] from",
                                     load(k, from,
                                          was && strcmp(was, fv_model_head(k->model)) != 0),
                                     k->e);
        if (!st && f->ready) /* it is ours still */
            st = f->ready((void *)fv_model_self(k->model), fv_model_params(k->model), k->e);
    }
    fv__buf_free(&text);
    fv_json_close(j);
    if (!st)
        fv__recipe_log(k, "%s: %lld parameters", fv_model_head(k->model),
                       (long long)fv_params_elements(fv_model_params(k->model), ""));
    return st;
}
