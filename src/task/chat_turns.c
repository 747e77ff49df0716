/* chat_turns.c - a conversation over a model, turn by turn.
 *
 * Each turn the template writes the whole conversation as text and the tokenizer encodes it, as
 * transformers does; what is saved is the model's work.  The chat knows the tokens whose keys and
 * values its session holds and compares them with the new prompt: the common prefix is kept, the
 * rest of the row is cut off, and only the new tokens go through the model.  Comparing tokens,
 * not messages, is right for every template: one that rewrites earlier turns (dates, dropped
 * reasoning) shortens the prefix, and a reply whose text encodes to other tokens than were
 * generated does so from there on.  Appending only the new turn's text instead would be cheaper
 * and wrong for those.
 */
#include "fovea/author/gen.h"
#include "fovea/chat.h"

#include <stdio.h>

#include "base/base.h"
#include "fovea/author/family.h"
#include "fovea/author/tok.h"

#define DEFAULT_CAPACITY 4096 /* tokens, for models without a limit */

struct fv_chat {
    fv_env env;
    const fv_model *model;
    const fv_tok *tok;
    const fv_chat_template *template;
    /* opt.tools is borrowed from the caller for as long as the chat lives. */
    fv_chat_opt opt;
    int64_t capacity;
    fv_encoding *enc;
    fv_ctx *ctx;
    fv_session *session; /* of one row */
    int32_t *held;       /* tokens that row holds */
    int64_t n_held;
    fv_message *messages; /* both texts of each are ours */
    int n;
    size_t messages_bytes;
    int32_t end_of_turn; /* the token behind an assistant's message, or -1 */
};

/* ---- messages ---- */

/* From the end: a reply that fails takes back the messages that were added for it. */
static void free_messages(fv_chat *c, int from)
{
    for (; c->n > from; c->n--) {
        fv_message m = c->messages[c->n - 1];
        fv__free(&c->env, (char *)m.role, strlen(m.role) + 1);
        fv__free(&c->env, (char *)m.text, strlen(m.text) + 1);
    }
}

/* Takes messages [from, to) out. */
static void drop_messages(fv_chat *c, int from, int to)
{
    int tail = c->n - to;
    for (int i = from; i < to; i++) {
        fv__free(&c->env, (char *)c->messages[i].role, strlen(c->messages[i].role) + 1);
        fv__free(&c->env, (char *)c->messages[i].text, strlen(c->messages[i].text) + 1);
    }
    memmove(c->messages + from, c->messages + to, (size_t)tail * sizeof *c->messages);
    c->n = from + tail;
}

/* Role and text are copied. The template is not rendered here: only fv_chat_reply knows what the
 * model has read. */
fv_status fv_chat_add(fv_chat *c, const char *role, const char *text, size_t n, fv_err *e)
{
    /* Refused here, so that neither the template nor a saved file can be broken by it. */
    size_t bad = fv__utf8_check(text, n);
    if (bad < n) return fv_fail(e, FV_EARG, "chat: the message is not UTF-8 at byte %zu", bad);
    if (memchr(text, 0, n)) return fv_fail(e, FV_EARG, "chat: the message holds a NUL byte");
    void *list = c->messages;
    fv_buf copy = {.env = &c->env};
    fv__buf_add(&copy, text, n);
    char *own = copy.failed ? NULL : fv__strdup(&c->env, copy.data ? copy.data : "");
    char *own_role = fv__strdup(&c->env, role);
    fv__buf_free(&copy);
    if (!own || !own_role ||
        !fv__grow(&c->env, &list, &c->messages_bytes, (size_t)(c->n + 1) * sizeof(fv_message))) {
        if (own) fv__free(&c->env, own, strlen(own) + 1);
        if (own_role) fv__free(&c->env, own_role, strlen(own_role) + 1);
        return fv_fail(e, FV_ENOMEM, "chat: out of memory for a message of %zu bytes", n);
    }
    c->messages = list;
    c->messages[c->n++] = (fv_message){own_role, own};
    return FV_OK;
}

const fv_message *fv_chat_messages(const fv_chat *c, int *n)
{
    *n = c->n;
    return c->messages;
}

static bool has_system(const fv_chat *c) { return c->n && !strcmp(c->messages[0].role, "system"); }

/* The system message stays: it is the setting of the conversation, not a turn of it. */
void fv_chat_reset(fv_chat *c) { free_messages(c, has_system(c)); }

int64_t fv_chat_processed(const fv_chat *c) { return fv_session_processed(c->session); }

/* ---- opening ---- */

/* The tokens of messages, in c->enc. */
static fv_status encode(fv_chat *c, const fv_message *m, int n, bool closed, fv_err *e)
{
    char *text;
    fv_chat_render how = {.tools = c->opt.tools, .closed = closed};
    fv_status st = fv_chat_template_render(c->template, &text, m, n, &how, e);
    if (st) return st;
    /* the template writes the special tokens itself */
    st = fv_tok_encode(c->enc, text, strlen(text), (fv_tok_opts){0}, e);
    fv_chat_template_free_text(c->template, text);
    return st;
}

/* The special token that the template writes behind an assistant's message.
 * generation_config.json lists it for most models, not for all. */
int32_t fv_chat_end_of_turn(const fv_chat_template *t, const fv_tok *tok, fv_encoding *enc)
{
    static const char reply[] = "qzqzq";
    const fv_message m[] = {{"user", "a"}, {"assistant", reply}};
    fv_chat_render how = {.closed = true};
    char *text;
    int32_t found = -1;
    if (fv_chat_template_render(t, &text, m, 2, &how, NULL)) return -1;
    /* A text that no template writes by itself, to find where a reply ends. */
    const char *at = strstr(text, reply), *tail = at ? at + sizeof reply - 1 : "";
    /* What stands between may be a newline; the first token behind it counts if it is a special
     * one. */
    while (*tail == ' ' || *tail == '\n') tail++;
    if (*tail && !fv_tok_encode(enc, tail, strlen(tail), (fv_tok_opts){0}, NULL) && enc->n &&
        fv_tok_special(tok, enc->ids[0]))
        found = enc->ids[0];
    fv_chat_template_free_text(t, text);
    return found;
}

void fv_chat_close(fv_chat *c)
{
    if (!c) return;
    fv_env env = c->env;
    free_messages(c, 0);
    fv__free(&env, c->messages, c->messages_bytes);
    fv__free(&env, c->held, (size_t)c->capacity * sizeof *c->held);
    fv_session_free(c->session);
    fv_ctx_free(c->ctx);
    fv_encoding_free(c->enc);
    fv__free(&env, c, sizeof *c);
}

/* One row of KV cache for the whole conversation; `held` are the tokens it has read, so that the
 * next prompt can be compared with them and only what is new is computed. */
fv_status fv_chat_open(fv_chat **out, fv_device *d, const fv_model *m, const fv_tok *tok,
                       const fv_chat_template *t, fv_chat_opt opt, fv_err *e)
{
    const fv_family *f = fv_model_family(m);
    int64_t context = fv_model_context(m);
    *out = NULL;
    if (f->begin)
        return fv_fail(e, FV_EARG, "%s has an encoder: it does not chat", fv_model_head(m));
    if (opt.capacity < 0) return fv_fail(e, FV_EARG, "chat: a capacity below 0");
    fv_chat *c = fv__alloc(fv_device_env(d), sizeof *c);
    if (!c) return fv_fail(e, FV_ENOMEM, "chat: out of memory");
    *c = (fv_chat){.env = *fv_device_env(d),
                   .model = m,
                   .tok = tok,
                   .template = t,
                   .opt = opt,
                   .capacity = opt.capacity};
    /* Whichever is smaller: what the model was trained for, or what the caller pays memory for. */
    if (context && (!c->capacity || context < c->capacity)) c->capacity = context;
    if (!c->capacity) c->capacity = DEFAULT_CAPACITY;
    fv_status st = fv_encoding_new(&c->enc, tok, e);
    if (!st) st = fv_ctx_new(&c->ctx, d, (fv_ctx_opt){.dtype = fv_model_dtype(m)}, e);
    if (!st) st = fv_session_new(&c->session, m, d, 1, c->capacity, e);
    if (!st) c->held = fv__alloc(&c->env, (size_t)c->capacity * sizeof *c->held);
    if (!st && !c->held) st = fv_fail(e, FV_ENOMEM, "chat: out of memory");
    if (!st) c->end_of_turn = fv_chat_end_of_turn(t, tok, c->enc);
    if (st)
        fv_chat_close(c);
    else
        *out = c;
    return st;
}

/* ---- replies ---- */

/* The oldest turn: a user's message and all up to the next one's.  0: only one is left. */
static int oldest_turn(const fv_chat *c)
{
    int first = has_system(c), to = first + 1;
    while (to < c->n && strcmp(c->messages[to].role, "user")) to++;
    return to < c->n ? to - first : 0;
}

/* The prompt in c->enc, short enough that a reply has room. */
static fv_status make_prompt(fv_chat *c, const fv_gen_opt *opt, fv_err *e)
{
    /* A quarter of the context is kept for the reply, less where fewer tokens are asked for. */
    int64_t reserve = c->capacity / 4;
    if (opt->max_new_tokens && opt->max_new_tokens < reserve) reserve = opt->max_new_tokens;
    if (!c->opt.trim || reserve < 1) reserve = 1;
    fv_status st = encode(c, c->messages, c->n, false, e);
    while (!st && c->enc->n > c->capacity - reserve) {
        int turn = c->opt.trim ? oldest_turn(c) : 0;
        if (!turn)
            return fv_fail(e, FV_EARG,
                           "chat: the conversation has %lld tokens and the context holds %lld: "
                           "start anew, or let the oldest turns be trimmed",
                           (long long)c->enc->n, (long long)c->capacity);
        drop_messages(c, has_system(c), has_system(c) + turn);
        st = encode(c, c->messages, c->n, false, e);
    }
    return st;
}

typedef struct reply {
    fv_chat *chat;
    fv_tok_stream *stream;
    fv_chat_text_fn *on_text;
    void *user;
    fv_buf text;
    fv_status st;
    fv_err e;
} reply;

/* A piece of the reply: kept, and handed on. */
static bool take_text(reply *r, const char *text, size_t n)
{
    fv__buf_add(&r->text, text, n);
    return !n || !r->on_text || r->on_text(r->user, text, n);
}

/* A token may be part of a character: the stream gives text only when it is whole. */
static bool take_token(void *user, int64_t source, int32_t token)
{
    reply *r = user;
    const char *text;
    size_t n;
    (void)source;
    r->st = fv_tok_stream_push(r->stream, token, &text, &n, &r->e);
    /* A failure of the decoder ends the generation, and is reported behind it. */
    return !r->st && take_text(r, text, n);
}

/* What the model ends a reply with, and what the template does. */
static fv_gen_opt with_end_of_turn(const fv_chat *c, const fv_gen_opt *opt, int32_t *ends)
{
    fv_gen_opt o = *opt;
    bool known = c->end_of_turn < 0 || c->end_of_turn == opt->eos;
    for (int i = 0; i < opt->n_ends; i++) {
        ends[i] = opt->ends[i];
        known = known || ends[i] == c->end_of_turn;
    }
    ends[opt->n_ends] = c->end_of_turn;
    o.ends = ends;
    o.n_ends = opt->n_ends + !known;
    return o;
}

/* How many tokens of the new prompt the session holds already. */
static int64_t common_prefix(const fv_chat *c)
{
    int64_t n = 0;
    while (n < c->n_held && n < c->enc->n && c->held[n] == c->enc->ids[n]) n++;
    return n;
}

/* Continues the prompt in c->enc, and records what the session holds afterwards. */
static fv_status generate(fv_chat *c, const fv_gen_opt *opt, fv_err *e)
{
    fv_generated out;
    int64_t n = c->enc->n, known = common_prefix(c);
    fv_status st = fv_session_generate(&out, c->ctx, c->session, c->enc->ids, n, known, opt, e);
    /* After a failure it is not known what the row holds: the next turn starts from nothing. */
    c->n_held = 0;
    if (!st) {
        /* the last token was chosen and not read */
        c->n_held = fv_session_len(c->session, 0);
        memcpy(c->held, c->enc->ids, (size_t)n * sizeof *c->held);
        memcpy(c->held + n, out.hyp[0].ids, (size_t)(c->n_held - n) * sizeof *c->held);
    }
    fv_generated_free(&out);
    return st;
}

/* On failure the conversation is as it was before the call: the reply becomes a message only when
 * it is complete. */
fv_status fv_chat_reply(fv_chat *c, const fv_gen_opt *opt, fv_chat_text_fn *on_text, void *user,
                        fv_err *e)
{
    const char *rest;
    size_t n, bytes = (size_t)(opt->n_ends + 1) * sizeof(int32_t);
    reply r = {.chat = c, .on_text = on_text, .user = user, .text.env = &c->env};
    fv_status st = make_prompt(c, opt, e);
    if (st) return st;
    int32_t *ends = fv__alloc(&c->env, bytes);
    if (!ends) return fv_fail(e, FV_ENOMEM, "chat: out of memory");
    fv_gen_opt o = with_end_of_turn(c, opt, ends);
    o.token = take_token;
    o.user = &r;
    /* Special tokens are left out of the text: a reply is what follows the prompt, decoded by
     * itself. */
    st = fv_tok_stream_new(&r.stream, c->tok, true, e);
    if (!st) st = generate(c, &o, e);
    if (!st && r.st) st = fv_fail(e, r.st, "%s", r.e.text);
    if (!st) st = fv_tok_stream_finish(r.stream, &rest, &n, e);
    if (!st) take_text(&r, rest, n);
    if (!st && r.text.failed) st = fv_fail(e, FV_ENOMEM, "chat: out of memory");
    if (!st) st = fv_chat_add(c, "assistant", r.text.data ? r.text.data : "", r.text.len, e);
    if (r.stream) fv_tok_stream_free(r.stream);
    fv__buf_free(&r.text);
    fv__free(&c->env, ends, bytes);
    return st;
}

/* ---- files ---- */

/* A JSON string; the text is UTF-8, which fv_chat_add has checked. */
static void add_quoted(fv_buf *b, const char *s)
{
    fv__buf_str(b, "\"");
    for (; *s; s++) {
        unsigned char ch = (unsigned char)*s;
        if (ch == '"' || ch == '\\')
            fv__buf_fmt(b, "\\%c", ch);
        else if (ch == '\n')
            fv__buf_str(b, "\\n");
        else if (ch < 0x20 || ch == 0x7f)
            fv__buf_fmt(b, "\\u%04x", ch);
        else
            fv__buf_add(b, s, 1);
    }
    fv__buf_str(b, "\"");
}

/* OpenAI's form of a conversation, one message a line so that files can be compared. */
fv_status fv_chat_save(const fv_chat *c, const char *path, fv_err *e)
{
    fv_buf b = {.env = &c->env};
    fv__buf_str(&b, "{\"messages\": [");
    for (int i = 0; i < c->n; i++) {
        fv__buf_str(&b, i ? ",\n {\"role\": " : "\n {\"role\": ");
        add_quoted(&b, c->messages[i].role);
        fv__buf_str(&b, ", \"content\": ");
        add_quoted(&b, c->messages[i].text);
        fv__buf_str(&b, "}");
    }
    fv__buf_str(&b, "]}\n");
    fv_status st = b.failed ? fv_fail(e, FV_ENOMEM, "%s: out of memory", path)
                            : fv__file_write(&c->env, path, b.data, b.len, e);
    fv__buf_free(&b);
    return st;
}

/* The new messages are added behind the old ones first: a file that is wrong changes nothing. */
fv_status fv_chat_load(fv_chat *c, const char *path, fv_err *e)
{
    fv_json *j;
    char role[64], content[64];
    fv_status st = fv_json_open(&j, &c->env, path, e);
    if (st) return st;
    int n = fv_json_count(j, "messages"), before = c->n;
    if (n < 0) st = fv_fail(e, FV_EFORMAT, "%s: \"messages\" is not a list", path);
    for (int i = 0; i < n && !st; i++) {
        snprintf(role, sizeof role, "messages.%d.role", i);
        snprintf(content, sizeof content, "messages.%d.content", i);
        const char *who = fv_json_text(j, role), *text = fv_json_text(j, content);
        if (!who || !text)
            st = fv_fail(e, FV_EFORMAT, "%s: message %d has no text as role and content", path,
                         i + 1);
        else
            st = fv_chat_add(c, who, text, strlen(text), e);
    }
    if (st)
        free_messages(c, before);
    else
        drop_messages(c, 0, before);
    fv_json_close(j);
    return st;
}
