/* template.c - chat templates of model directories: opened, and rendered with messages.
 *
 * Opening lexes and parses, so that a template outside the subset is refused before a conversation
 * begins.  Rendering makes a pool and a global frame with the variables that transformers passes:
 * messages, tools, documents, add_generation_prompt and the special tokens that the tokenizer
 * defines, those it does not being undefined. */
#include <stdio.h>

#include "fovea/author/gen.h"
#include "fovea/chat.h"
#include "fovea/author/config.h"
#include "gen/template/jinja.h"

/* One text of a directory; most have one, some a second for conversations with tools. */
typedef struct program {
    jinja_node *body;
    bool found;
} program;

struct fv_chat_template {
    jinja_pool pool; /* of both trees and the tokens' texts */
    program plain, tools;
    jinja_value special; /* bos_token and the like, a dict */
};

void fv_chat_template_close(fv_chat_template *t)
{
    if (!t) return;
    fv_env env = t->pool.env;
    fv__jinja_pool_free(&t->pool);
    fv__free(&env, t, sizeof *t);
}

/* ---- opening ---- */

static void add_special(fv_chat_template *t, const char *name, const char *text)
{
    fv_buf b = {.env = &t->pool.env};
    if (!text) return; /* then it is not defined, as in transformers */
    fv__buf_str(&b, text);
    fv__jinja_put(&t->pool, t->special.dict, fv__jinja_chars(name), fv__jinja_take(&t->pool, &b));
}

/* An empty template with its pool, which reports to e until it is finished. */
static fv_chat_template *new_template(const fv_env *env, fv_err *e)
{
    fv_chat_template *t = fv__alloc(env, sizeof *t);
    if (!t) {
        fv_fail(e, FV_ENOMEM, "chat template: out of memory");
        return NULL;
    }
    if (env) t->pool.env = *env;
    t->pool.limit = FV_JINJA_MAX_MEMORY;
    t->pool.e = e;
    t->special = fv__jinja_new_dict(&t->pool, JINJA_DICT);
    return t;
}

/* Lexes and parses one text; a second failure does not replace the first. */
static void add_program(fv_chat_template *t, program *to, const char *text, size_t n)
{
    if (t->pool.st) return;
    if (!n || strspn(text, " \t\r\n") >= n)
        t->pool.st = fv_fail(t->pool.e, FV_EFORMAT, "the chat template is empty");
    *to = (program){.body = fv__jinja_parse(&t->pool, text, n), .found = true};
}

/* Hands the template over, or frees what has failed. */
static fv_status finish(fv_chat_template **out, fv_chat_template *t)
{
    fv_status st = t->pool.st;
    t->pool.e = NULL;
    *out = st ? NULL : t;
    if (st) fv_chat_template_close(t);
    return st;
}

fv_status fv_chat_template_read(fv_chat_template **out, const fv_env *env, const char *text,
                                const char *bos, const char *eos, fv_err *e)
{
    fv_chat_template *t = new_template(env, e);
    *out = NULL;
    if (!t) return FV_ENOMEM;
    add_special(t, "bos_token", bos);
    add_special(t, "eos_token", eos);
    add_program(t, &t->plain, text, strlen(text));
    return finish(out, t);
}

/* A special token is its text, or an object with the text as its content. */
static const char *token_text(const fv_json *j, const char *key)
{
    char inner[64];
    const char *s = fv_json_text(j, key);
    snprintf(inner, sizeof inner, "%s.content", key);
    return s ? s : fv_json_text(j, inner);
}

/* chat_template of tokenizer_config.json: a text, or a list of {name, template}. */
static void read_config(fv_chat_template *t, const fv_json *j, const char *dir)
{
    char name[64], body[64];
    const char *text = fv_json_text(j, "chat_template");
    if (text) add_program(t, &t->plain, text, strlen(text));
    int n = text ? 0 : fv_json_count(j, "chat_template");
    for (int i = 0; i < n && !t->pool.st; i++) {
        snprintf(name, sizeof name, "chat_template.%d.name", i);
        snprintf(body, sizeof body, "chat_template.%d.template", i);
        const char *which = fv_json_text(j, name), *source = fv_json_text(j, body);
        if (which && source && !strcmp(which, "default"))
            add_program(t, &t->plain, source, strlen(source));
        if (which && source && !strcmp(which, "tool_use"))
            add_program(t, &t->tools, source, strlen(source));
    }
    if (!t->pool.st && !t->plain.found)
        t->pool.st = fv_fail(t->pool.e, FV_EMISSING,
                             "%s: no chat template in it: the model was not made to chat; try "
                             "fovea generate",
                             dir);
}

/* chat_template.jinja, which newer directories have instead. */
static fv_status read_jinja(fv_chat_template *t, const fv_env *env, const char *path, fv_err *e)
{
    fv_file jinja = {0};
    fv_status st = fv__file_open(&jinja, env, path, e);
    if (st) return st;
    add_program(t, &t->plain, jinja.data, jinja.size);
    fv__file_close(&jinja);
    return t->pool.st;
}

fv_status fv_chat_template_open(fv_chat_template **out, const fv_env *env, const char *dir,
                                fv_err *e)
{
    static const char *const tokens[] = {"bos_token", "eos_token", "pad_token",  "unk_token",
                                         "sep_token", "cls_token", "mask_token", NULL};
    char path[FV_PATH];
    fv_dir *files;
    fv_json *j = NULL;
    fv_err inner = {0};
    *out = NULL;
    fv_status st = fv_dir_open(&files, env, dir, e);
    if (st) return st;
    fv_chat_template *t = new_template(env, &inner);
    if (!t) st = FV_ENOMEM;
    if (!st && !fv_dir_file(files, "tokenizer_config.json", path, sizeof path))
        st = fv_fail(&inner, FV_EMISSING, "%s: no tokenizer_config.json, so no chat template", dir);
    if (!st) st = fv_json_open(&j, env, path, &inner);
    for (int i = 0; tokens[i] && !st; i++) add_special(t, tokens[i], token_text(j, tokens[i]));
    if (!st && fv_dir_file(files, "chat_template.jinja", path, sizeof path)) {
        st = read_jinja(t, env, path, &inner);
    } else if (!st) {
        read_config(t, j, dir);
        st = t->pool.st;
    }
    if (st && t && !t->pool.st) t->pool.st = st;
    if (t) st = finish(out, t);
    if (st) fv_fail(e, st, strstr(inner.text, dir) ? "%.0s%s" : "%s: %s", dir, inner.text);
    fv_json_close(j);
    fv_dir_close(files);
    return st;
}

/* ---- rendering ---- */

/* A variable from JSON text; NULL: none. */
static void set_json(jinja_run *r, const char *name, const char *text)
{
    jinja_value v = {.kind = JINJA_NONE};
    if (text) v = fv__jinja_load(r->pool, text, name);
    fv__jinja_set(r, (jinja_text){name, strlen(name)}, v);
}

/* Messages as the dicts that templates expect; texts are borrowed. */
static jinja_value message_list(jinja_pool *p, const fv_message *m, int n)
{
    jinja_value list = fv__jinja_new_list(p, JINJA_LIST);
    for (int i = 0; i < n && !p->st; i++) {
        jinja_value d = fv__jinja_new_dict(p, JINJA_DICT);
        fv__jinja_put(p, d.dict, fv__jinja_chars("role"), fv__jinja_chars(m[i].role));
        fv__jinja_put(p, d.dict, fv__jinja_chars("content"), fv__jinja_chars(m[i].text));
        fv__jinja_append(p, list.list, d);
    }
    return list;
}

/* Further variables come last and may replace the others. */
static void set_variables(jinja_run *r, const fv_chat_template *t, const fv_chat_render *o,
                          jinja_value messages)
{
    const jinja_dict *special = t->special.dict;
    for (int64_t i = 0; i < special->n; i++)
        fv__jinja_set(r, special->key[i].text, special->value[i]);
    set_json(r, "tools", o->tools);
    set_json(r, "documents", NULL);
    fv__jinja_set(r, (jinja_text){"messages", 8}, messages);
    fv__jinja_set(r, (jinja_text){"add_generation_prompt", 21}, fv__jinja_bool(!o->closed));
    if (!o->variables) return;
    jinja_value more = fv__jinja_load(r->pool, o->variables, "variables");
    if (!r->pool->st && more.kind != JINJA_DICT)
        fv__jinja_fail(r->pool, FV_EARG, "variables that are no JSON object");
    for (int64_t i = 0; !r->pool->st && i < more.dict->n; i++)
        fv__jinja_set(r, more.dict->key[i].text, more.dict->value[i]);
}

/* messages: a list, or undefined where `json` is one as text. */
static fv_status render(const fv_chat_template *t, char **text, const fv_message *m, int n,
                        const char *json, const fv_chat_render *opt, fv_err *e)
{
    fv_chat_render o = opt ? *opt : (fv_chat_render){0};
    jinja_pool pool = {.env = t->pool.env, .limit = FV_JINJA_MAX_MEMORY, .e = e};
    jinja_frame global = {0};
    jinja_run r = {.pool = &pool, .frame = &global, .out.env = &pool.env, .now = o.now};
    *text = NULL;
    jinja_value messages = json ? fv__jinja_load(&pool, json, "messages")
                                : message_list(&pool, m, n);
    set_variables(&r, t, &o, messages);
    if (!pool.st) fv__jinja_exec(&r, o.tools && t->tools.found ? t->tools.body : t->plain.body);
    if (!pool.st && r.out.failed) fv__jinja_fail(&pool, FV_ENOMEM, "out of memory");
    if (!pool.st) *text = fv__strdup(&pool.env, r.out.data ? r.out.data : "");
    if (!pool.st && !*text) fv__jinja_fail(&pool, FV_ENOMEM, "out of memory");
    fv__buf_free(&r.out);
    fv__jinja_pool_free(&pool);
    return pool.st;
}

fv_status fv_chat_template_render(const fv_chat_template *t, char **text, const fv_message *m,
                                  int n, const fv_chat_render *opt, fv_err *e)
{
    return render(t, text, m, n, NULL, opt, e);
}

fv_status fv_chat_template_render_json(const fv_chat_template *t, char **text, const char *messages,
                                       const fv_chat_render *opt, fv_err *e)
{
    return render(t, text, NULL, 0, messages, opt, e);
}

void fv_chat_template_free_text(const fv_chat_template *t, char *text)
{
    if (text) fv__free(&t->pool.env, text, strlen(text) + 1);
}
