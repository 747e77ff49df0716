/* chat.c - fovea chat: talking with a model, line by line. */
#include "fovea/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "write.h"

typedef struct chat_values {
    cli_model model;
    cli_settings settings;
    bool json;
    const char *system;
} chat_values;

static const cli_option options[] = {
    CLI_MODEL(chat_values),
    CLI_FLAG(chat_values, json, 0, "json", "print one JSON object a line"),
    CLI_TEXT(chat_values, system, 's', "system", "TEXT",
             "what the model is told before the conversation"),
    {0},
};

static const cli_example examples[] = {
    {"fovea chat -m Qwen2-0.5B-Instruct", "a line is a message; end with Ctrl-D"},
    {"fovea chat -m Qwen2-0.5B-Instruct --system 'Answer in one word.' --json < questions.txt",
     "replies as JSON, one a line"},
    {0},
};

enum { MOST = 2048 }; /* messages of a conversation */

typedef struct talk {
    writer w;
    fv_chat *chat;
    bool json;
    fv_message said[MOST];
    int n;
    fv_tok_stream *stream;
    char *reply;
    size_t len, cap;
    fv_err e;
    bool failed;
} talk;

static bool keep(talk *t, const char *role, const char *text, size_t len)
{
    char *copy = t->n < MOST ? malloc(len + 1) : NULL;
    if (!copy) return false;
    memcpy(copy, text, len);
    copy[len] = 0;
    t->said[t->n++] = (fv_message){role, copy};
    return true;
}

static bool hear(talk *t, const char *text, size_t len)
{
    if (t->len + len + 1 > t->cap) {
        char *bigger = realloc(t->reply, t->cap = 2 * (t->len + len) + 256);
        if (!bigger) return false;
        t->reply = bigger;
    }
    memcpy(t->reply + t->len, text, len);
    t->reply[t->len += len] = 0;
    if (!t->json) fwrite(text, 1, len, stdout);
    if (!t->json) fflush(stdout);
    return true;
}

static bool on_token(void *user, int64_t source, int32_t token)
{
    talk *t = user;
    const char *text;
    size_t len;
    (void)source;
    t->failed = fv_tok_stream_push(t->stream, token, &text, &len, &t->e) || !hear(t, text, len);
    return !t->failed;
}

/* The reply to all that was said. */
static int answer(talk *t)
{
    writer *w = &t->w;
    char *text;
    const char *rest;
    size_t len;
    fv_generated out = {0};
    t->e = (fv_err){0};
    if (fv_chat_render(t->chat, &text, t->said, t->n, &t->e)) return cli_error(w->c, &t->e);
    bool bad = fv_tok_encode(w->enc, text, strlen(text), (fv_tok_opts){0}, &t->e);
    fv_chat_free_text(t->chat, text);
    if (bad || fv_tok_stream_new(&t->stream, w->tok, true, &t->e)) return cli_error(w->c, &t->e);
    const int32_t *prompt = w->enc->ids;
    int64_t n = w->enc->n;
    t->len = 0;
    bad = fv_generate(&out, w->device, w->model, &prompt, &n, 1, &w->gen, &t->e) || t->failed ||
          fv_tok_stream_finish(t->stream, &rest, &len, &t->e);
    fv_generated_free(&out);
    if (!bad) bad = !hear(t, rest, len) || !keep(t, "assistant", t->reply, t->len);
    fv_tok_stream_free(t->stream);
    if (bad) return t->e.code ? cli_error(w->c, &t->e) : cli_fail(w->c, "out of memory");
    if (t->json)
        return cli_print_json(w->c, json_pack("{s:s, s:s%}", "role", "assistant", "content",
                                              t->reply, t->len));
    putchar('\n');
    return CLI_OK;
}

/* What ends a reply is one of the model's ends, or its template's. */
static void add_end(talk *t, int32_t end[1])
{
    const char *text = fv_chat_end(t->chat);
    end[0] = text ? fv_tok_id(t->w.tok, text) : -1;
    if (end[0] < 0 || end[0] == t->w.gen.eos || t->w.gen.n_ends) return;
    t->w.gen.ends = end;
    t->w.gen.n_ends = 1;
}

static int converse(talk *t)
{
    char *line = NULL;
    size_t cap = 0;
    int code = CLI_OK;
    bool live = isatty(STDIN_FILENO);
    if (live) fprintf(stderr, "> ");
    for (ssize_t n; !code && (n = getline(&line, &cap, stdin)) >= 0;) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        if (n > 0)
            code = keep(t, "user", line, (size_t)n)
                       ? answer(t)
                       : cli_fail(t->w.c, "the conversation is too long");
        if (live && !code) fprintf(stderr, "> ");
    }
    free(line);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const chat_values *v = values;
    talk *t = calloc(1, sizeof *t);
    int32_t end[1];
    fv_err e;
    (void)n, (void)operand;
    if (!t) return cli_fail(c, "out of memory");
    t->json = v->json;
    int code = writer_open(&t->w, c, &v->model, &v->settings, NULL, 512);
    if (!code && t->w.encoder)
        code = cli_fail(c, "%s has an encoder: it does not chat", fv_model_head(t->w.model));
    if (!code && fv_chat_open(&t->chat, NULL, v->model.dir, &e)) code = cli_error(c, &e);
    if (!code && (t->w.gen.num_beams > 1 || t->w.gen.num_return_sequences > 1))
        code = cli_usage(c, "a chat takes one beam and one reply");
    if (!code) {
        add_end(t, end);
        t->w.gen.token = on_token;
        t->w.gen.user = t;
        if (v->system && !keep(t, "system", v->system, strlen(v->system)))
            code = cli_fail(c, "out of memory");
    }
    if (!code) code = converse(t);
    for (int i = 0; i < t->n; i++) free((char *)t->said[i].text);
    free(t->reply);
    fv_chat_close(t->chat);
    writer_close(&t->w);
    free(t);
    return code;
}

const cli_command chat_command = {
    .name = "chat",
    .summary = "talk with a model",
    .about = "Each line of standard input is a message; the reply is written as it is generated.  "
             "The conversation is laid out as "
             "the model's chat template says, if it is one of those known: chatml, llama3, llama2, "
             "mistral, zephyr.  Others are "
             "refused: a template is a program, and it is recognised, never run.",
    .options = options,
    .size = sizeof(chat_values),
    .fields = fv_gen_fields,
    .settings = offsetof(chat_values, settings),
    .examples = examples,
    .run = run,
};
