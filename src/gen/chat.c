/* chat.c - conversations as text: templates recognised by the expressions they are made of.
 *
 * A template is compared without the blanks between its parts.  It is one of ours if it holds that
 * kind's expressions and none of the words by which templates do more: tools, dates, macros.
 * Running templates instead would mean an interpreter for programs that come with a download. */
#include "fovea/chat.h"

#include <ctype.h>
#include <stdio.h>

#include "base/base.h"

typedef enum kind { CHATML, LLAMA3, LLAMA2, MISTRAL, ZEPHYR, KINDS } kind;

static const struct {
    const char *name, *end;
    const char *parts[3]; /* all must be there, blanks between parts aside */
} kinds[KINDS] = {
    [CHATML] = {"chatml",
                "<|im_end|>",
                {"'<|im_start|>'+message['role']+'\\n'+message['content']+'<|im_end|>'",
                 "'<|im_start|>assistant\\n'"}},
    [LLAMA3] = {"llama3",
                "<|eot_id|>",
                {"'<|start_header_id|>'+message['role']+'<|end_header_id|>\\n\\n'+message['content'"
                 "]|trim+'<|eot_id|>'",
                 "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'", "bos_token+content"}},
    [LLAMA2] = {"llama2",
                NULL,
                {"'<<SYS>>\\n'+system_message+'\\n<</SYS>>\\n\\n'+message['content']",
                 "bos_token+'[INST] '+content.strip()+' [/INST]'",
                 "' '+content.strip()+' '+eos_token"}},
    [MISTRAL] = {"mistral",
                 NULL,
                 {"{{bos_token}}", "'[INST] '+message['content']+' [/INST]'",
                  "message['content']+eos_token}}"}},
    [ZEPHYR] = {"zephyr",
                NULL,
                {"'<|user|>\\n'+message['content']+eos_token",
                 "'<|assistant|>\\n'+message['content']+eos_token", "{{'<|assistant|>'}}"}},
};

/* Words of templates that do more than these. */
static const char *const more[] = {"tools",     "tool_call", "strftime",  "date_string", "macro",
                                   "namespace", "documents", "reasoning", NULL};

struct fv_chat {
    fv_env env;
    kind kind;
    bool newline;     /* chatml: whether a message ends its line */
    char system[512]; /* chatml: what is said where no system message is; "" for nothing */
    char begin[64], end[64];
};

/* The text without blanks outside of quotes; a line's end inside them is written as \n. */
static void squeeze(fv_buf *out, const char *s)
{
    char quote = 0;
    for (; *s; s++) {
        if (quote ? *s == quote : *s == '\'' || *s == '"') quote = quote ? 0 : *s;
        if (*s == '\n' && quote)
            fv__buf_str(out, "\\n");
        else if (quote || !isspace((unsigned char)*s))
            fv__buf_add(out, *s == '"' ? "'" : s, 1);
    }
}

static bool is_kind(const char *text, kind k)
{
    for (int i = 0; i < 3 && kinds[k].parts[i]; i++)
        if (!strstr(text, kinds[k].parts[i])) return false;
    return true;
}

/* "<|im_start|>system\nYou are ..<|im_end|>" said by the template itself. */
static void find_system(fv_chat *c, const char *text)
{
    static const char before[] = "'<|im_start|>system\\n";
    const char *at = strstr(text, before), *end = at ? strstr(at, "<|im_end|>") : NULL;
    if (!end) return;
    at += sizeof before - 1;
    if ((size_t)(end - at) < sizeof c->system) memcpy(c->system, at, (size_t)(end - at));
}

static fv_status recognise(fv_chat *c, const char *text, fv_err *e)
{
    for (int i = 0; more[i]; i++)
        if (strstr(text, more[i]))
            return fv_fail(e, FV_EMISSING,
                           "the chat template uses \"%s\", which is not implemented", more[i]);
    for (int k = 0; k < KINDS; k++) {
        if (!is_kind(text, (kind)k)) continue;
        c->kind = (kind)k;
        c->newline = strstr(text, "'<|im_end|>'+'\\n'") || strstr(text, "<|im_end|>\\n'");
        if (k == CHATML) find_system(c, text);
        return FV_OK;
    }
    return fv_fail(
        e, FV_EMISSING,
        "the chat template is none of those known: chatml, llama3, llama2, mistral, zephyr");
}

fv_status fv_chat_read(fv_chat **out, const fv_env *env, const char *template_text,
                       const char *begin, const char *end, fv_err *e)
{
    fv_buf text = {.env = env};
    fv_chat *c = *out = fv__alloc(env, sizeof *c);
    if (c && env) c->env = *env;
    squeeze(&text, template_text);
    fv_status st = FV_OK;
    if (!c || text.failed)
        st = fv_fail(e, FV_ENOMEM, "out of memory for the chat template");
    else if (!text.data || strlen(begin) >= sizeof c->begin || strlen(end) >= sizeof c->end)
        st = fv_fail(e, FV_EFORMAT, "the chat template is empty, or a special token too long");
    if (!st) st = recognise(c, text.data, e);
    if (!st) {
        memcpy(c->begin, begin, strlen(begin) + 1);
        memcpy(c->end, end, strlen(end) + 1);
    }
    fv__buf_free(&text);
    if (st) {
        fv_chat_close(c);
        *out = NULL;
    }
    return st;
}

static const char *token_text(const fv_json *j, const char *key)
{
    char inner[64];
    const char *s = fv_json_text(j, key);
    snprintf(inner, sizeof inner, "%s.content", key);
    if (!s) s = fv_json_text(j, inner);
    return s ? s : "";
}

fv_status fv_chat_open(fv_chat **out, const fv_env *env, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    fv_dir *files;
    fv_json *j = NULL;
    fv_file jinja = {0};
    fv_buf text = {.env = env};
    *out = NULL;
    fv_status st = fv_dir_open(&files, env, dir, e);
    if (st) return st;
    if (!fv_dir_file(files, "tokenizer_config.json", path, sizeof path))
        st = fv_fail(e, FV_EMISSING, "%s: no tokenizer_config.json, so no chat template", dir);
    if (!st) st = fv_json_open(&j, env, path, e);
    if (!st && fv_dir_file(files, "chat_template.jinja", path, sizeof path)) {
        st = fv__file_open(&jinja, env, path, e);
        if (!st) fv__buf_add(&text, jinja.data, jinja.size);
        if (!st) fv__file_close(&jinja);
    } else if (!st && fv_json_text(j, "chat_template")) {
        fv__buf_str(&text, fv_json_text(j, "chat_template"));
    } else if (!st) {
        st = fv_fail(
            e, FV_EMISSING,
            "%s: no chat template in it: the model was not made to chat; try fovea generate", dir);
    }
    fv_err inner;
    if (!st && (st = fv_chat_read(out, env, text.data ? text.data : "", token_text(j, "bos_token"),
                                  token_text(j, "eos_token"), &inner)))
        fv_fail(e, st, "%s: %s", dir, inner.text);
    fv__buf_free(&text);
    fv_json_close(j);
    fv_dir_close(files);
    return st;
}

void fv_chat_close(fv_chat *c)
{
    fv_env env = c ? c->env : (fv_env){0};
    if (c) fv__free(&env, c, sizeof *c);
}

const char *fv_chat_name(const fv_chat *c) { return kinds[c->kind].name; }
const char *fv_chat_end(const fv_chat *c) { return kinds[c->kind].end; }

/* ---- writing ---- */

/* Without blanks at both ends. */
static void add_trimmed(fv_buf *b, const char *s)
{
    size_t n = strlen(s), from = 0;
    while (from < n && isspace((unsigned char)s[from])) from++;
    while (n > from && isspace((unsigned char)s[n - 1])) n--;
    fv__buf_add(b, s + from, n - from);
}

static void add_message(fv_buf *b, const fv_chat *c, const fv_message *m, const char *system,
                        bool first)
{
    bool user = !strcmp(m->role, "user");
    switch (c->kind) {
    case CHATML:
        fv__buf_fmt(b, "<|im_start|>%s\n%s<|im_end|>%s", m->role, m->text, c->newline ? "\n" : "");
        break;
    case LLAMA3:
        fv__buf_fmt(b, "%s<|start_header_id|>%s<|end_header_id|>\n\n", first ? c->begin : "",
                    m->role);
        add_trimmed(b, m->text);
        fv__buf_str(b, "<|eot_id|>");
        break;
    case LLAMA2: {
        fv_buf text = {.env = b->env};
        if (user && system) fv__buf_fmt(&text, "<<SYS>>\n%s\n<</SYS>>\n\n", system);
        fv__buf_str(&text, m->text);
        fv__buf_str(b, user ? c->begin : " ");
        if (user) fv__buf_str(b, "[INST] ");
        add_trimmed(b, text.data ? text.data : "");
        if (user)
            fv__buf_str(b, " [/INST]");
        else
            fv__buf_fmt(b, " %s", c->end);
        b->failed = b->failed || text.failed;
        fv__buf_free(&text);
        break;
    }
    case MISTRAL:
        fv__buf_fmt(b, user ? "[INST] %s [/INST]%s" : "%s%s", m->text, user ? "" : c->end);
        break;
    default: fv__buf_fmt(b, "<|%s|>\n%s%s\n", m->role, m->text, c->end); break;
    }
}

static fv_status check(const fv_chat *c, const fv_message *m, int n, fv_err *e)
{
    bool system = n > 0 && !strcmp(m[0].role, "system");
    if (system && c->kind == MISTRAL)
        return fv_fail(e, FV_EARG, "this model's chats have no system message");
    for (int i = system; i < n; i++) {
        const char *role = (i - system) % 2 ? "assistant" : "user";
        if (strcmp(m[i].role, role))
            return fv_fail(e, FV_EARG, "message %d is of role \"%s\", expected %s", i + 1,
                           m[i].role, role);
    }
    return FV_OK;
}

fv_status fv_chat_render(const fv_chat *c, char **text, const fv_message *m, int n, fv_err *e)
{
    fv_buf b = {.env = &c->env};
    *text = NULL;
    fv_status st = check(c, m, n, e);
    if (st) return st;
    bool given = n > 0 && !strcmp(m[0].role, "system");
    const char *system = given && c->kind == LLAMA2 ? m[0].text : NULL;
    if (c->kind == CHATML && !given && c->system[0])
        add_message(&b, c, &(fv_message){"system", c->system}, NULL, false);
    if (c->kind == MISTRAL) fv__buf_str(&b, c->begin);
    for (int i = system ? 1 : 0; i < n; i++)
        add_message(&b, c, &m[i], i == 1 ? system : NULL, i == 0);
    if (c->kind == CHATML) fv__buf_str(&b, "<|im_start|>assistant\n");
    if (c->kind == LLAMA3) fv__buf_str(&b, "<|start_header_id|>assistant<|end_header_id|>\n\n");
    if (c->kind == ZEPHYR) fv__buf_str(&b, "<|assistant|>\n");
    if (!b.failed && b.data) *text = fv__strdup(&c->env, b.data);
    fv__buf_free(&b);
    return *text ? FV_OK : fv_fail(e, FV_ENOMEM, "chat: out of memory");
}

void fv_chat_free_text(const fv_chat *c, char *text)
{
    if (text) fv__free(&c->env, text, strlen(text) + 1);
}
