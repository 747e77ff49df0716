/* read.c - reading recipes: sections and keys, each checked against its table, and writing them out
 * again. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <ini.h>

#include "base/decimal.h"
#include "train/recipe/recipe.h"

/* ---- tables ---- */

static const char *const objectives[] = {"seq2seq", "causal",   "masked", "masked_next", "spans",
                                         "denoise", "classify", "tag",    "answer",      NULL};
static const char *const kinds[] = {"byte_bpe", "bpe", "wordpiece", "unigram", NULL};

const fv_field fv_data_fields[] = {
    FV_CHOICE(fv_data_opt, objective, 0, objectives, "what is learnt"),
    FV_TEXT(fv_data_opt, dir, "", "where the files are; they may also be named whole"),
    FV_TEXT(fv_data_opt, train, "", "file to learn from, plain or gzip"),
    FV_TEXT(fv_data_opt, train_target, "", "its other side, line by line; empty: train is a table"),
    FV_TEXT(fv_data_opt, valid, "", "file for evaluation; empty: none"),
    FV_TEXT(fv_data_opt, valid_target, "", "its other side"),
    FV_CHOICE(fv_data_opt, format, 0, fv_formats, "of the files; auto goes by their names"),
    FV_TEXT(fv_data_opt, source_field, "",
            "field with the text: a name, or a number from 1 in a table"),
    FV_TEXT(fv_data_opt, target_field, "", "field with the target or label"),
    FV_BOOL(fv_data_opt, header, false, "the first line of a table only names its columns"),
    FV_BOOL(fv_data_opt, latin1, false, "files are ISO-8859-1, not UTF-8"),
    FV_CHOICE(fv_data_opt, malformed, FV_DROP, fv_policies,
              "records that are not UTF-8 (cut is drop)"),
    FV_CHOICE(fv_data_opt, empty, FV_DROP, fv_policies, "records with an empty text (cut is drop)"),
    FV_CHOICE(fv_data_opt, too_long, FV_DROP, fv_policies, "records with more than max_len tokens"),
    FV_INT(fv_data_opt, max_len, 4, 512, 1 << 20, "tokens of a text, specials included"),
    FV_INT(fv_data_opt, max_train, 0, 0, 1e9, "records to learn from; 0: all"),
    FV_INT(fv_data_opt, max_valid, 0, 0, 1e9, "records for evaluation; 0: all"),
    FV_INT(fv_data_opt, context, 2, 256, 1 << 20,
           "tokens of a window of running text (causal, masked, spans, denoise)"),
    FV_FLOAT(fv_data_opt, mask, 0.01, 0.15, 0.9,
             "share of tokens that are hidden (masked, spans, denoise)"),
    FV_FLOAT(fv_data_opt, span, 1, 3, 100, "mean length of a hidden span (spans, denoise)"),
    FV_FLOAT(
        fv_data_opt, drop, 0, 0, 0.9,
        "share of tokens hidden while learning, so that none is relied on (classify, tag, answer)"),
    FV_FLOAT(fv_data_opt, hold_out, 0, 0, 0.9,
             "share of a plain text's end that is kept for evaluation, where valid is empty"),
    FV_TEXT(fv_data_opt, label_until, "",
            "a label ends where one of these characters stands (classify)"),
    {0},
};

const fv_field fv_tokenizer_fields[] = {
    FV_TEXT(fv_tokenizer_opt, from, "",
            "directory or file of a tokenizer; empty: one is trained on the data"),
    FV_CHOICE(fv_tokenizer_opt, kind, FV_TOK_BPE, kinds, "what is trained"),
    FV_INT(fv_tokenizer_opt, vocab, 8, 8000, 1 << 24, "tokens wanted, specials included"),
    FV_INT(fv_tokenizer_opt, min_count, 1, 2, 1e9, "how often a pair or piece must be seen"),
    FV_BOOL(fv_tokenizer_opt, lowercase, false, "lower case first"),
    FV_BOOL(fv_tokenizer_opt, nfkc, false, "NFKC first"),
    {0},
};

typedef struct section {
    const char *name;
    const fv_field *table;
    size_t at;
} section;

static const section sections[] = {
    {"data", fv_data_fields, offsetof(fv_recipe, data)},
    {"tokenizer", fv_tokenizer_fields, offsetof(fv_recipe, tokenizer)},
    {"train", fv_train_fields, offsetof(fv_recipe, train)},
    {"generate", fv_gen_fields, offsetof(fv_recipe, generate)},
};
enum { SECTIONS = sizeof sections / sizeof *sections };

static void *part(fv_recipe *r, const section *s) { return (char *)r + s->at; }

/* ---- setting ---- */

const char *fv__recipe_model(const fv_recipe *r, const char *key)
{
    for (size_t i = 0; i < r->n_model; i++)
        if (!strcmp(r->model[i].key, key)) return r->model[i].value;
    return NULL;
}

static fv_status set_model(fv_recipe *r, const char *key, const char *value, const char *location,
                           fv_err *e)
{
    size_t i = 0;
    while (i < r->n_model && strcmp(r->model[i].key, key)) i++;
    void *p = r->model;
    if (!fv__grow(r->env, &p, &r->model_bytes, (r->n_model + 1) * sizeof *r->model))
        return fv_fail(e, FV_ENOMEM, "%s: out of memory", location);
    r->model = p;
    fv__model_key *m = &r->model[i];
    if (strlen(key) >= sizeof m->key || strlen(value) >= sizeof m->value)
        return fv_fail(e, FV_EARG, "%s: [model] %.60s: too long", location, key);
    snprintf(m->key, sizeof m->key, "%s", key);
    snprintf(m->value, sizeof m->value, "%s", value);
    snprintf(m->location, sizeof m->location, "%s", location);
    r->n_model += i == r->n_model;
    return FV_OK;
}

static fv_status set(fv_recipe *r, const char *name, const char *key, const char *value,
                     const char *location, fv_err *e)
{
    static const char *const names[] = {"model", "data", "tokenizer", "train", "generate", NULL};
    fv_err why;
    if (!strcmp(name, "model")) return set_model(r, key, value, location, e);
    for (int i = 0; i < SECTIONS; i++) {
        if (strcmp(sections[i].name, name)) continue;
        fv_status st = fv_fields_set(part(r, &sections[i]), sections[i].table, key, value, &why);
        return st ? fv_fail(e, st, "%s: [%s] %s", location, name, why.text) : FV_OK;
    }
    if (!*name) return fv_fail(e, FV_EARG, "%s: %.60s stands before any section", location, key);
    const char *suggestion = fv_closest(name, names);
    return fv_fail(e, FV_EARG, "%s: there is no section [%.60s]%s%s%s", location, name,
                   suggestion ? "; did you mean [" : "", suggestion ? suggestion : "",
                   suggestion ? "]?" : "");
}

fv_status fv_recipe_set(fv_recipe *r, const char *key, const char *value, fv_err *e)
{
    char name[64];
    const char *dot = strchr(key, '.');
    if (!dot || dot == key || !dot[1] || (size_t)(dot - key) >= sizeof name)
        return fv_fail(e, FV_EARG, "--set %.80s: expected section.key=value", key);
    snprintf(name, sizeof name, "%.*s", (int)(dot - key), key);
    return set(r, name, dot + 1, value, "--set", e);
}

/* ---- parsing ---- */

/* inih is handed one line after another, so that every complaint can name its line. */
typedef struct parsing {
    fv_recipe *r;
    const char *path;
    fv_file file;
    size_t at;
    int line;
    fv_status st;
    fv_err *e;
    fv_buf seen; /* "section.key\n" of all so far */
} parsing;

static fv_status complain(parsing *p, const char *what)
{
    if (!p->st) p->st = fv_fail(p->e, FV_EFORMAT, "%s:%d: %s", p->path, p->line, what);
    return p->st;
}

static char *next_line(char *out, int capacity, void *self)
{
    parsing *p = self;
    if (p->at >= p->file.size || p->st) return NULL;
    const char *from = p->file.data + p->at, *end = memchr(from, '\n', p->file.size - p->at);
    size_t n = end ? (size_t)(end - from) + 1 : p->file.size - p->at;
    p->line++;
    p->at += n;
    if (n + 1 > (size_t)capacity || memchr(from, 0, n) || fv__utf8_check(from, n) < n) {
        complain(p, n + 1 > (size_t)capacity ? "the line is too long" : "not UTF-8 text");
        return NULL;
    }
    memcpy(out, from, n);
    out[n] = 0;
    return out;
}

/* A key that stands twice is a mistake; so is a line that is indented under another, which inih
 * hands over as such. */
static bool first_time(parsing *p, const char *name, const char *key)
{
    char word[200];
    int n = snprintf(word, sizeof word, "\n%.60s.%.100s\n", name, key);
    bool there = p->seen.data && strstr(p->seen.data, word);
    fv__buf_add(&p->seen, p->seen.len ? word + 1 : word, (size_t)n - (p->seen.len ? 1 : 0));
    return !there;
}

static int take(void *self, const char *name, const char *key, const char *value)
{
    parsing *p = self;
    char location[160];
    if (p->st) return 0;
    snprintf(location, sizeof location, "%.140s:%d", p->path, p->line);
    if (!first_time(p, name, key)) return complain(p, "the key stands twice"), 0;
    p->st = set(p->r, name, key, value, location, p->e);
    return p->st == FV_OK;
}

static fv_status parse(fv_recipe *r, const char *path, fv_err *e)
{
    parsing p = {.r = r, .path = path, .e = e, .seen = {.env = r->env}};
    fv_status st = fv__file_open(&p.file, r->env, path, e);
    if (st) return st;
    int rc = ini_parse_stream(next_line, &p, take, &p);
    if (!p.st && rc > 0) {
        p.line = rc;
        complain(&p, "neither a [section] nor key = value");
    }
    if (!p.st && (rc < 0 || p.seen.failed)) p.st = fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    fv__file_close(&p.file);
    fv__buf_free(&p.seen);
    return p.st;
}

fv_status fv_recipe_open(fv_recipe **out, const fv_env *env, const char *path, fv_err *e)
{
    *out = NULL;
    fv_recipe *r = fv__alloc(env, sizeof *r);
    if (!r) return fv_fail(e, FV_ENOMEM, "%s: out of memory", path);
    r->env = r->text.env = env;
    size_t n = strlen(path), capacity = sizeof r->path - 1;
    snprintf(r->path, sizeof r->path, "%s", n > capacity ? path + (n - capacity) : path);
    for (int i = 0; i < SECTIONS; i++) fv_fields_default(part(r, &sections[i]), sections[i].table);
    fv_status st = parse(r, path, e);
    if (st)
        fv_recipe_close(r);
    else
        *out = r;
    return st;
}

void fv_recipe_close(fv_recipe *r)
{
    if (!r) return;
    fv__buf_free(&r->text);
    fv__free(r->env, r->model, r->model_bytes);
    fv__free(r->env, r, sizeof *r);
}

const fv_train_opt *fv_recipe_options(const fv_recipe *r) { return &r->train; }

/* ---- checking ---- */

fv_status fv__recipe_prefix_error(const fv_recipe *r, const char *key, fv_status st, fv_err *e)
{
    if (!st || !e) return st;
    fv_err why = *e;
    return fv_fail(e, st, "%s: %s: %s", r->path, key, why.text);
}

fv_status fv_recipe_check(fv_recipe *r, fv_err *e)
{
    const fv_family *f;
    if (!*r->data.train) return fv_fail(e, FV_EARG, "%s: [data] train: no file is named", r->path);
    if (r->train.bleu && (r->data.objective != FV_SEQ2SEQ || !*r->data.valid))
        return fv_fail(e, FV_EARG,
                       "%s: [train] bleu: needs the objective seq2seq and validation data",
                       r->path);
    if (r->train.result == FV_RESULT_EMA && !(r->train.ema > 0))
        return fv_fail(e, FV_EARG,
                       "%s: [train] result = ema: [train] ema is 0, so there is no moving average",
                       r->path);
    if (r->train.result == FV_RESULT_BEST && !*r->data.valid && !(r->data.hold_out > 0))
        return fv_fail(e, FV_EARG, "%s: [train] result = best: needs validation data", r->path);
    return fv__recipe_family(r, &f, e);
}

/* ---- writing ---- */

/* A default outside the range means that nothing was said, and cannot be said otherwise. */
static bool not_given(const void *obj, const fv_field *f)
{
    char value[64];
    bool number = f->type == FV_FIELD_INT || f->type == FV_FIELD_FLOAT;
    if (!number || (f->normal >= f->least && f->normal <= f->greatest)) return false;
    fv_field one[] = {*f, {0}};
    fv_fields_get(obj, one, f->name, value, sizeof value);
    return fv__strtod(value, NULL) == f->normal;
}

const char *fv_recipe_text(fv_recipe *r, fv_err *e)
{
    r->text.len = 0;
    fv__buf_str(&r->text, "[model]\n");
    for (size_t i = 0; i < r->n_model; i++)
        fv__buf_fmt(&r->text, "%s = %s\n", r->model[i].key, r->model[i].value);
    for (int i = 0; i < SECTIONS; i++) {
        fv__buf_fmt(&r->text, "\n[%s]\n", sections[i].name);
        for (const fv_field *f = sections[i].table; f->name; f++) {
            char value[600];
            if (not_given(part(r, &sections[i]), f)) continue;
            fv_fields_get(part(r, &sections[i]), sections[i].table, f->name, value, sizeof value);
            fv__buf_fmt(&r->text, "%s =%s%s\n", f->name, *value ? " " : "", value);
        }
    }
    if (r->text.failed) fv_fail(e, FV_ENOMEM, "recipe: out of memory");
    return r->text.failed ? NULL : r->text.data;
}

void fv_recipe_help(const char *type, void (*line)(void *user, const char *text), void *user)
{
    const fv_family *f = type ? fv_family_find(type) : NULL;
    line(user, "[model]");
    line(user, "model_type               family; then keys of its config.json, see --help-keys "
               "--family NAME");
    line(user, "architecture             head: one of the family's; the first by default");
    line(user,
         "from                     directory of a model to go on from, instead of model_type");
    if (f) fv_fields_help(f->config, line, user);
    for (int i = 0; i < SECTIONS; i++) {
        char name[32];
        snprintf(name, sizeof name, "[%s]", sections[i].name);
        line(user, "");
        line(user, name);
        fv_fields_help(sections[i].table, line, user);
    }
}
