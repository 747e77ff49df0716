/* chat.c - fovea chat: talking with a model, line by line.
 *
 * The conversation is an fv_chat of the library: it keeps keys and values of what was read, so
 * that a turn reads only what is new. Here lines become messages, and lines that begin with a
 * slash become commands. A message that fails ends a conversation that comes from a pipe, whose
 * replies must stay in step with it. */
#include "fovea/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

typedef struct chat_values {
    cli_model model;
    cli_settings settings;
    bool json;
    const char *system, *load;
    bool trim;
} chat_values;

static const cli_option options[] = {
    CLI_MODEL(chat_values),
    CLI_FLAG(chat_values, json, 0, "json", "print one JSON object a line"),
    CLI_TEXT(chat_values, system, 's', "system", "TEXT",
             "what the model is told before the conversation"),
    CLI_FILE(chat_values, load, 0, "load", "FILE",
             "go on with a conversation that /save has written"),
    CLI_FLAG(chat_values, trim, 0, "trim",
             "drop the oldest turns of a conversation that does not fit the context"),
    {0},
};

static const cli_example examples[] = {
    {"fovea chat -m Qwen2-0.5B-Instruct", "a line is a message; end with Ctrl-D"},
    {"fovea chat -m Qwen2-0.5B-Instruct --system 'Answer in one word.' --json < questions.txt",
     "replies as JSON, one a line"},
    {0},
};

typedef struct talk {
    const cli *c;
    fv_device *device;
    fv_writer w; /* model, tokenizer and settings of generating */
    fv_chat_template *template;
    fv_chat *chat;
    bool json;
} talk;

/* Text as it is generated; with --json the whole reply follows at its end. */
static bool print_text(void *user, const char *text, size_t n)
{
    const talk *t = user;
    if (!t->json) fwrite(text, 1, n, stdout);
    if (!t->json) fflush(stdout);
    return true;
}

static int answer(talk *t, const char *text, size_t len)
{
    fv_err e;
    int n;
    if (fv_chat_add(t->chat, "user", text, len, &e) ||
        fv_chat_reply(t->chat, &t->w.gen, print_text, t, &e))
        return cli_error(t->c, &e);
    const fv_message *m = fv_chat_messages(t->chat, &n);
    cli_json j = {0};
    if (t->json) cli_json_put(&j, "{s:s, s:s}", "role", "assistant", "content", m[n - 1].text);
    putchar('\n');
    return CLI_OK;
}

/* A line that begins with a slash is for the command, not for the model. */
static int obey(talk *t, const char *line)
{
    fv_err e;
    if (!strcmp(line, "/reset")) {
        fv_chat_reset(t->chat);
        return CLI_OK;
    }
    if (!strncmp(line, "/save ", 6) && line[6])
        return fv_chat_save(t->chat, line + 6, &e) ? cli_error(t->c, &e) : CLI_OK;
    return cli_fail(t->c, "%s: expected /reset or /save FILE", line);
}

/* getline: a message may have any length. */
static int converse(talk *t)
{
    char *line = NULL;
    size_t cap = 0;
    int code = CLI_OK;
    bool live = isatty(STDIN_FILENO);
    if (live) fprintf(stderr, "> ");
    for (ssize_t n; !code && (n = getline(&line, &cap, stdin)) >= 0;) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        line[n] = 0;
        bool command = line[0] == '/';
        if (n > 0) code = command ? obey(t, line) : answer(t, line, (size_t)n);
        if (command && live) code = CLI_OK; /* a slip of the finger ends no conversation */
        if (live && !code) fprintf(stderr, "> ");
    }
    free(line);
    return code;
}

/* The settings given here come before the model's own; 512 new tokens where neither says. */
static int open_writer(talk *t, const chat_values *v)
{
    const cli_model *m = &v->model;
    fv_err e;
    fv_writer_opt how = {.settings = v->settings.at,
                         .n_settings = v->settings.n,
                         .new_tokens = 512};
    cli_adapters adapters;
    if (!m->dir) return cli_usage(t->c, "a model is needed: -m DIR");
    cli_choose_weights(m->dtype, &how.weights, &how.widen);
    int code = cli_take_adapters(t->c, &m->adapters, &adapters, &how.adapters);
    if (code != CLI_OK) return code;
    cli_name_ignored(t->c, m->verbose, m->dir);
    code = cli_open_device(t->c, &t->device, m->device, m->threads);
    if (code == CLI_OK && fv_writer_open(&t->w, t->device, m->dir, how, &e))
        code = cli_error(t->c, &e);
    return code;
}

/* Beams and several replies have no meaning in a conversation, which goes on with one. */
static int open_chat(talk *t, const chat_values *v)
{
    fv_err e;
    const fv_writer *w = &t->w;
    if (w->encoder)
        return cli_fail(t->c, "%s has an encoder: it does not chat", fv_model_head(w->model));
    if (w->gen.num_beams > 1 || w->gen.num_return_sequences > 1)
        return cli_usage(t->c, "a chat takes one beam and one reply");
    fv_chat_opt opt = {.trim = v->trim};
    if (fv_chat_template_open(&t->template, NULL, v->model.dir, &e) ||
        fv_chat_open(&t->chat, t->device, w->model, w->tok, t->template, opt, &e) ||
        (v->load && fv_chat_load(t->chat, v->load, &e)) ||
        (v->system && fv_chat_add(t->chat, "system", v->system, strlen(v->system), &e)))
        return cli_error(t->c, &e);
    return CLI_OK;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const chat_values *v = values;
    talk t = {.c = c, .json = v->json};
    (void)n, (void)operand;
    if (v->load && v->system) return cli_usage(c, "--load brings its own system message");
    int code = open_writer(&t, v);
    if (!code) code = open_chat(&t, v);
    if (!code) code = converse(&t);
    fv_chat_close(t.chat);
    fv_chat_template_close(t.template);
    fv_writer_close(&t.w);
    fv_device_close(t.device);
    return code;
}

const cli_command chat_command = {
    .name = "chat",
    .summary = "talk with a model",
    .about =
        "Each line of standard input is a message; the reply is printed as it is generated.  "
        "The model's chat template, from chat_template.jinja or tokenizer_config.json, lays the "
        "conversation out.  Each turn reads only what is new: keys and values of earlier turns "
        "are kept.\n\n"
        "Lines that begin with a slash are commands: /reset forgets the conversation but not "
        "the system message, /save FILE writes it as JSON.",
    CLI_OWN(chat_values),
    .fields = fv_gen_fields,
    .settings = offsetof(chat_values, settings),
};
