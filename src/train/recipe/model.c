/* model.c - [model]: a family with a configuration, or a directory to go on from. */
#include <ctype.h>
#include <stdio.h>

#include "core/params.h"
#include "model/adapter.h"
#include "store/json.h"
#include "train/recipe/keys.h"
#include "fovea/author/backend.h"
#include "fovea/author/family.h"
#include "fovea/author/parallel.h"
#include "fovea/author/train.h"

/* Keys of [model] that are the recipe's, not of config.json. */
static bool own_key(const char *key)
{
    static const char *const own[] = {"model_type",   "architecture", "from",        "encoder.from",
                                      "decoder.from", "vectors",      "vectors_into"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(key, own[i])) return true;
    return false;
}

/* ---- checking ---- */

/* Names the nearest family. */
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

/* The family in whose table a key of [model] stands, by *name: the recipe's own, or, where that is
 * made of others (captions: an encoder and a decoder), the one which encoder.model_type names.  A
 * model_type of that kind has no entry itself: *type is set then. */
static const fv_family *family_of(const fv_recipe *r, const fv_family *f, const char *key,
                                  const char **name, bool *type)
{
    const char *dot = strchr(key, '.');
    char at[80];
    *name = key;
    *type = false;
    if (!dot || fv__field_find(f->config, key)) return f;
    snprintf(at, sizeof at, "%.*s.model_type", (int)(dot - key < 60 ? dot - key : 60), key);
    const char *of = fv__late_get(&r->model, at);
    const fv_family *half = of ? fv_family_find(of) : NULL;
    if (!half) return f;
    *name = dot + 1;
    *type = !strcmp(dot + 1, "model_type");
    return half;
}

/* The value is tried on a configuration that is thrown away: range and choices are the family's
 * own. */
static fv_status check_key(const fv_recipe *r, const fv_family *f, const fv__late_key *k, fv_err *e)
{
    const char *name;
    bool type;
    const fv_family *of = family_of(r, f, k->key, &name, &type);
    if (type) return FV_OK;
    void *config = fv__alloc(r->env, of->config_size);
    if (!config) return fv_fail(e, FV_ENOMEM, "recipe: out of memory");
    fv_fields_default(config, of->config);
    fv_status st = fv_fields_set(config, of->config, name, k->value, e);
    fv__free(r->env, config, of->config_size);
    return st;
}

/* Every key and value against the family's table, with the line of the recipe in the message. */
static fv_status check_keys(const fv_recipe *r, const fv_family *f, fv_err *e)
{
    fv_err why;
    fv_status st = FV_OK;
    for (size_t i = 0; !st && i < r->model.n; i++) {
        const fv__late_key *k = &r->model.at[i];
        if (own_key(k->key)) continue;
        st = check_key(r, f, k, &why);
        if (st) fv_fail(e, st, "%s: [model] %s", k->location, why.text);
    }
    return st;
}

/* The head that is asked for, else the source's, else the first of this model type that fits the
 * objective: a family serves several types, each with heads of its own.  NULL: the family has no
 * head of that name. */
static const char *head_of(const fv_recipe *r, const fv_family *f, const char *type,
                           const char *was)
{
    const char *name = fv__late_get(&r->model, "architecture");
    fv_head_job job = fv__recipe_objective(r)->head;
    if (!name) name = was;
    for (const fv_family_head *h = f->heads; h->name && !name; h++)
        if ((!h->type || !strcmp(h->type, type)) && h->job == job) name = h->name;
    const fv_family_head *head = fv_family_head_find(f, name ? name : f->heads[0].name);
    return head ? head->name : NULL; /* the table's, which outlives the source */
}

enum { MAX_HEADS = 64 }; /* that a message chooses from */

/* The nearest head of the family, whether the recipe or the source named the one that is not
 * there. */
static fv_status unknown_head(const fv_recipe *r, const fv_family *f, const char *was, fv_err *e)
{
    const char *head = fv__late_get(&r->model, "architecture"), *wanted = head ? head : was;
    const char *names[MAX_HEADS + 1] = {NULL};
    for (int i = 0; i < MAX_HEADS && f->heads[i].name; i++) names[i] = f->heads[i].name;
    const char *suggestion = fv_closest(wanted, names);
    return fv_fail(e, FV_EARG, "%s: [model] %s: %s has no head \"%.80s\"; the nearest is %s",
                   r->path, head ? "architecture" : "from", f->type, wanted,
                   suggestion ? suggestion : f->heads[0].name);
}

/* By model_type for a new model, by the source directory with from; never by both. */
fv_status fv__recipe_family(const fv_recipe *r, const fv_family **out, const char **head, fv_err *e)
{
    const char *type = fv__late_get(&r->model, "model_type"),
               *from = fv__late_get(&r->model, "from"), *location = r->path, *was = NULL;
    fv_dir *dir = NULL;
    fv_status st = FV_OK;
    for (size_t i = 0; i < r->model.n; i++)
        if (!strcmp(r->model.at[i].key, "model_type")) location = r->model.at[i].location;
    if (from && type)
        return fv_fail(e, FV_EARG,
                       "%s: [model] has both model_type and from: one of them is enough", location);
    if (!from && !type)
        return fv_fail(e, FV_EARG, "%s: [model]: neither model_type nor from is given", location);
    if (from) {
        st = fv_dir_open(&dir, r->env, from, e);
        if (!st && !(type = fv_config_type(fv_dir_config(dir))))
            st = fv_fail(e, FV_EFORMAT, "%s/config.json: model_type is missing", from);
        if (!st) was = fv_json_text(fv_dir_config(dir), "architectures.0");
        st = fv__recipe_prefix_error(r, "[model] from", st, e);
        location = from;
    }
    *out = st ? NULL : fv_family_find(type);
    if (!st && !*out) st = unknown_family(type, location, e);
    *head = *out ? head_of(r, *out, type, was) : NULL;
    if (!st && !*head) st = unknown_head(r, *out, was, e);
    fv_dir_close(dir);
    return st ? st : check_keys(r, *out, e);
}

/* ---- the configuration ---- */

/* fv_json_set, but a dot in the key leads into an object, which is made where it is not there:
 * text_config.hidden_size. */
static fv_status set_at(fv_json *j, const char *key, const char *value, fv_err *e)
{
    const char *dot = strchr(key, '.');
    char outer[64];
    if (!dot || (size_t)(dot - key) >= sizeof outer) return fv_json_set(j, key, value, e);
    snprintf(outer, sizeof outer, "%.*s", (int)(dot - key), key);
    fv__jnode *object = fv__jnode_get(j->tree.root, outer);
    fv_buf text = {.env = j->env};
    fv_json *inner = NULL;
    if (fv__jnode_is(object, FV__J_OBJECT))
        fv__jnode_print(&text, object, -1);
    else
        fv__buf_str(&text, "{}");
    fv_status st = text.failed ? fv_fail(e, FV_ENOMEM, "config: out of memory")
                               : fv_json_parse(&inner, j->env, text.data, outer, e);
    if (!st) st = fv_json_set(inner, dot + 1, value, e);
    text.len = 0;
    if (!st) fv__jnode_print(&text, inner->tree.root, -1);
    if (!st)
        st = text.failed ? fv_fail(e, FV_ENOMEM, "config: out of memory")
                         : fv_json_set(j, outer, text.data, e);
    fv_json_close(inner);
    fv__buf_free(&text);
    return st;
}

/* Whether the key is one of the family's, or of a family that it is made of. */
static bool has_key(const fv_recipe *r, const fv_family *f, const char *key)
{
    const char *name;
    bool type;
    const fv_family *of = family_of(r, f, key, &name, &type);
    return fv__field_find(of->config, name);
}

/* The key of a family's table that holds it: the key itself, or below the configuration of one half
 * of a model with two, which has one of two names; NULL: none, or the recipe gives it a value. */
static const char *derived_key(const fv_recipe *r, const fv_family *f, const char *key,
                               const char *half, const char *other, char out[80])
{
    snprintf(out, 80, "%s", key);
    if (!has_key(r, f, out)) snprintf(out, 80, "%s.%s", half, key);
    if (!has_key(r, f, out)) snprintf(out, 80, "%s.%s", other, key);
    return has_key(r, f, out) && !fv__late_get(&r->model, out) ? out : NULL;
}

/* Whether a value is written as a list: words are, and integers unless one stands for all. */
static bool is_list(const fv_field *t, const char *value)
{
    if (!t || t->type != FV_FIELD_INTS) return t && t->type == FV_FIELD_WORDS;
    bool one_by_default = *t->text && !strpbrk(t->text, " ,");
    return strpbrk(value, " ,") || !one_by_default;
}

/* Sets a value of the recipe as JSON: texts and choices in quotes, words as a list of strings. */
static fv_status set_value(fv_json *j, const fv_recipe *r, const fv_family *f, const char *key,
                           const char *value, fv_err *e)
{
    const char *name;
    bool names_family;
    const fv_family *of = family_of(r, f, key, &name, &names_family);
    const fv_field *t = fv__field_find(of->config, name);
    char text[2048];
    fv_field_type type = names_family ? FV_FIELD_TEXT : t ? t->type : FV_END;
    if (is_list(t, value)) {
        const char *between = type == FV_FIELD_WORDS ? " " : " ,",
                   *quote = type == FV_FIELD_WORDS ? "\"" : "";
        int n = snprintf(text, sizeof text, "[");
        for (size_t len; value += strspn(value, between), (len = strcspn(value, between)) > 0;
             value += len)
            n += snprintf(text + n, sizeof text - (size_t)n, "%s%s%.*s%s", n > 1 ? ", " : "", quote,
                          (int)len, value, quote);
        snprintf(text + n, sizeof text - (size_t)n, "]");
        return set_at(j, key, text, e);
    }
    if (type == FV_FIELD_BOOL && !value[1]) value = *value == '1' ? "true" : "false";
    bool quoted = type == FV_FIELD_TEXT || type == FV_FIELD_CHOICE;
    /* transformers wants a float where it expects one, even if it is whole */
    bool whole = type == FV_FIELD_FLOAT && !strpbrk(value, ".eE");
    snprintf(text, sizeof text, quoted ? "\"%s\"" : whole ? "%s.0" : "%s", value);
    return set_at(j, key, text, e);
}

/* What follows from the tokenizer, unless the recipe gives it. */
static fv_status set_derived(const fv_recipe *r, const fv__input *in, fv_json *j,
                             const fv_family *f, fv_err *e)
{
    const fv_tok *tok = fv_processor_tok(in->processor);
    const struct {
        const char *key;
        int32_t value;
        bool always; /* also where the family has no such field: other programs read it */
    } derived[] = {
        {"vocab_size", tok ? fv_tok_size(tok) : -1, false},
        {"pad_token_id", in->pad, false},
        {"eos_token_id", in->eos, false},
        {"bos_token_id", in->eos, true},
        {"decoder_start_token_id", in->start, true},
    };
    fv_status st = FV_OK;
    for (size_t i = 0; tok && !st && i < sizeof derived / sizeof *derived; i++) {
        char text[32];
        char at[80];
        if (derived[i].value < 0 || fv__late_get(&r->model, derived[i].key)) continue;
        const char *key = derived_key(r, f, derived[i].key, "text_config", "decoder", at);
        if (!key && derived[i].always) key = derived[i].key;
        if (!key) continue;
        snprintf(text, sizeof text, "%d", derived[i].value);
        st = set_at(j, key, text, e);
    }
    return st;
}

/* A new model has as many heads of keys as of queries, unless the recipe says otherwise.  It is
 * written, as transformers takes another number for some families (32 for Qwen2) where it is
 * not. */
static fv_status set_key_heads(const fv_recipe *r, fv_json *j, const fv_family *f, fv_err *e)
{
    const char *heads = fv__late_get(&r->model, "num_attention_heads"),
               *key = "num_key_value_heads";
    if (!heads || fv__late_get(&r->model, key) || !has_key(r, f, key)) return FV_OK;
    return set_value(j, r, f, key, heads, e);
}

/* What follows from the image processor, unless the recipe gives it. */
static fv_status set_image(const fv_recipe *r, const fv__input *in, fv_json *j, const fv_family *f,
                           fv_err *e)
{
    const fv_image_steps *s = fv_processor_steps(in->processor);
    char text[64], at[80];
    int w, h;
    if (!s) return FV_OK;
    fv_status st = fv_processor_image_size(in->processor, 224, 224, &w, &h, e);
    const char *key = derived_key(r, f, "image_size", "vision_config", "encoder", at);
    /* one number for both sides, where the family has one by default: transformers' YOLOS wants
     * two */
    const fv_field *t = key ? fv__field_find(f->config, key) : NULL;
    snprintf(text, sizeof text, w == h && !(t && is_list(t, "")) ? "%d" : "[%d, %d]", h, w);
    if (!st && key) st = set_at(j, key, text, e);
    key = derived_key(r, f, "num_channels", "vision_config", "encoder", at);
    snprintf(text, sizeof text, "%d", s->channels);
    if (!st && key) st = set_at(j, key, text, e);
    return st;
}

/* What follows from the data, by what the objective knows of them, unless the recipe gives it. */
static fv_status set_from_data(const fv_recipe *r, const fv__input *in, fv_json *j,
                               const fv_family *f, fv_err *e)
{
    const fv_objective *o = fv__recipe_objective(r);
    fv_status st = FV_OK;
    for (const fv_field *t = f->config; o->config_value && !st && t->name; t++) {
        char text[32];
        int64_t value = o->config_value(in->own, in->processor, t->name);
        if (value < 0 || fv__late_get(&r->model, t->name)) continue;
        snprintf(text, sizeof text, "%lld", (long long)value);
        st = fv_json_set(j, t->name, text, e);
    }
    return st;
}

/* The names of the labels, both ways, as transformers keeps them. */
static fv_status set_labels(const fv_recipe *r, const fv__input *in, fv_json *j, const fv_family *f,
                            fv_err *e)
{
    fv__jtree t = {.pool = {.env = in->env}};
    fv__jnode *to_name = fv__jnode_new(&t, FV__J_OBJECT), *to_id = fv__jnode_new(&t, FV__J_OBJECT);
    bool ok = to_name && to_id;
    for (int32_t i = 0; ok && i < in->labels.n; i++) {
        const char *name = in->labels.name[i];
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        ok = fv__jnode_put(&t, to_name, id, fv__jnode_text(&t, name, strlen(name))) &&
             fv__jnode_put(&t, to_id, name, fv__jnode_int(&t, i));
    }
    fv_buf a = {.env = in->env}, b = {.env = in->env};
    if (ok) fv__jnode_print(&a, to_name, -1);
    if (ok) fv__jnode_print(&b, to_id, -1);
    fv_status st = !ok || a.failed || b.failed ? fv_fail(e, FV_ENOMEM, "labels: out of memory")
                                               : fv_json_set(j, "id2label", a.data, e);
    if (!st) st = fv_json_set(j, "label2id", b.data, e);
    /* PatchTST counts them apart from their names */
    char number[16];
    snprintf(number, sizeof number, "%d", in->labels.n);
    if (!st && has_key(r, f, "num_targets")) st = fv_json_set(j, "num_targets", number, e);
    fv__buf_free(&a);
    fv__buf_free(&b);
    fv__jtree_free(&t);
    return st;
}

/* The text of a config.json: the source's or a new one with the recipe's model_type, the word
 * itself (a family serves several), then the recipe's keys. */
static fv_status make_config(fv_buf *text, const fv_recipe *r, const fv__input *in,
                             const fv_family *f, const fv_dir *source, fv_err *e)
{
    char path[FV_PATH];
    fv_json *j = NULL;
    fv_status st;
    if (source) {
        fv_dir_file(source, "config.json", path, sizeof path);
        st = fv_json_open(&j, in->env, path, e);
    } else {
        st = fv_json_parse(&j, in->env, "{}", "config", e);
        snprintf(path, sizeof path, "\"%s\"", fv__late_get(&r->model, "model_type"));
        if (!st) st = fv_json_set(j, "model_type", path, e);
    }
    for (size_t i = 0; !st && i < r->model.n; i++) {
        const fv__late_key *m = &r->model.at[i];
        if (!own_key(m->key)) st = set_value(j, r, f, m->key, m->value, e);
    }
    if (!st && !source) st = set_derived(r, in, j, f, e);
    if (!st && !source) st = set_key_heads(r, j, f, e);
    if (!st && !source) st = set_image(r, in, j, f, e);
    if (!st && !source) st = set_from_data(r, in, j, f, e);
    if (!st && in->labels.n) st = set_labels(r, in, j, f, e);
    if (!st) fv__jnode_print(text, j->tree.root, 0);
    if (!st && text->failed) st = fv_fail(e, FV_ENOMEM, "config: out of memory");
    fv_json_close(j);
    return st;
}

/* ---- the whole ---- */

/* Parameters in all, and those that are trained where not all are. */
static void report_size(const fv_model *model, const fv__messages *m)
{
    fv_params *p = fv_model_params(model);
    int64_t all = 0, trained = 0;
    for (int i = 0; i < fv_params_count(p); i++) {
        fv_tensor whole = {.shape = fv__split_whole((const fv_entry *)fv_params_at(p, i))};
        all += fv_len(&whole);
        if (!fv__param_frozen(fv_params_at(p, i))) trained += fv_len(&whole);
    }
    if (trained == all)
        fv__message(m, "%s: %lld parameters", fv_model_head(model), (long long)all);
    else
        fv__message(m, "%s: %lld parameters, %lld (%.2f %%) of them trained", fv_model_head(model),
                    (long long)all, (long long)trained, 100.0 * (double)trained / (double)all);
}

/* Everything is checked against the family's table before memory is taken. */
fv_status fv__recipe_model(fv_model **out, const fv_recipe *r, fv_device *d, const fv__input *in,
                           const fv_dir *source, fv_comm *ranks, const fv__messages *m, fv_err *e)
{
    const fv_family *f;
    const char *head;
    fv_buf text = {.env = in->env};
    *out = NULL;
    fv_status st = fv__recipe_family(r, &f, &head, e);
    if (st) return st;
    st = make_config(&text, r, in, f, source, e);
    fv_adapter_opt adapter;
    fv_model_opt how = {.dtype = fv_train_dtype(&r->train),
                        .weights = fv_train_base(&r->train),
                        .train = true,
                        .head = head,
                        .adapter = &adapter};
    if (source) how.from = fv__late_get(&r->model, "from");
    if (!st && source && fv_json_has(fv_dir_config(source), "quantization_config"))
        st = fv_fail(e, FV_EMISSING,
                     "%s: its weights are quantised; an adapter goes with the float model: train "
                     "on that with train.base = q8 or q4",
                     how.from);
    if (!st && !source && how.weights)
        st = fv_fail(e, FV_EARG, "train.base: there is no model below: [model] from is missing");
    if (!st) st = fv__recipe_adapter(&adapter, r, how.from, e);
    if (!st) st = fv_model_new_ranks(out, d, text.data, how, (uint64_t)r->train.seed, ranks, e);
    st = fv__recipe_prefix_error(r, "[model]", st, e);
    if (!st && source) {
        const char *was = fv_json_text(fv_dir_config(source), "architectures.0");
        bool other_head = was && strcmp(was, fv_model_head(*out)) != 0;
        st = fv__recipe_load(*out, in->env, fv__late_get(&r->model, "from"), other_head, m, e);
        if (!st) st = fv__recipe_prompt(*out, r, in, e);
        st = fv__recipe_prefix_error(r, "[model] from", st, e);
    }
    if (!st && !source) st = fv__recipe_halves(*out, r, in, m, e);
    fv__buf_free(&text);
    if (!st && !source)
        st = fv__recipe_prefix_error(r, "[model] vectors", fv__recipe_vectors(*out, r, in, m, e),
                                     e);
    if (!st) report_size(*out, m);
    return st;
}
