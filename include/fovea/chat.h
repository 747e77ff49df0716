/* chat.h - conversations: the template that makes them text, and a chat that goes on turn by turn.
 *
 *     fv_chat_template *t;  fv_chat *chat;
 *     fv_chat_template_open(&t, NULL, "Qwen2.5-0.5B-Instruct", &err);
 *     fv_chat_open(&chat, device, model, tok, t, (fv_chat_opt){0}, &err);
 *     fv_chat_add(chat, "user", "Hello", 5, &err);
 *     fv_chat_reply(chat, &options, print_piece, NULL, &err);      adds the assistant's message
 */
#ifndef FOVEA_CHAT_H
#define FOVEA_CHAT_H

#include "fovea/gen.h"
#include "fovea/tok.h"

/* ---- templates ---- */

/* A model's chat template: a Jinja program that writes messages as the text the model was trained
 * on.  Never changes once it is open; any number of threads may render with one. */
typedef struct fv_chat_template fv_chat_template;

typedef struct fv_message {
    const char *role; /* "system", "user", "assistant", "tool": what the template knows */
    const char *text;
} fv_message;

/* The template of a model's directory: chat_template.jinja, or chat_template in
 * tokenizer_config.json.  A construct outside the subset that is implemented is refused by its
 * name.  On failure *out is NULL. */
FV_API fv_status fv_chat_template_open(fv_chat_template **out, const fv_env *env, const char *dir,
                                       fv_err *e);
FV_API void fv_chat_template_close(fv_chat_template *t); /* NULL is allowed */

/* What a template may look at beside the messages; {0} or NULL for none of it. */
typedef struct fv_chat_render {
    const char *tools;     /* a JSON array of tools as transformers describes them, or NULL */
    const char *variables; /* a JSON object of further variables (documents, enable_thinking) */
    bool closed;           /* without the generation prompt that begins a reply */
    int64_t now;           /* seconds since 1970 for strftime_now, in local time; 0: the clock's */
} fv_chat_render;

/* The text of n messages; NUL-terminated, freed with fv_chat_template_free_text.  What the
 * template raises (raise_exception) is FV_EARG with its message. */
FV_API fv_status fv_chat_template_render(const fv_chat_template *t, char **text,
                                         const fv_message *m, int n, const fv_chat_render *opt,
                                         fv_err *e);
/* The same for messages as a JSON array, with what fv_message has no place for: tool calls, lists
 * of parts as content. */
FV_API fv_status fv_chat_template_render_json(const fv_chat_template *t, char **text,
                                              const char *messages, const fv_chat_render *opt,
                                              fv_err *e);
/* The special token that stands behind an assistant's message, at which a reply ends; -1: there is
 * none.  enc: an encoding of tok, whose results are overwritten. */
FV_API int32_t fv_chat_end_of_turn(const fv_chat_template *t, const fv_tok *tok, fv_encoding *enc);
FV_API void fv_chat_template_free_text(const fv_chat_template *t, char *text);

/* ---- chats ---- */

/* One conversation with a model.  Its session keeps the KV cache between turns: a reply reads
 * only the tokens behind the longest common prefix of this turn's prompt and what the cache
 * holds, and is the same, bit for bit, as that of a chat which reads everything anew.  Belongs to
 * one thread; the model, the tokenizer and the template are shared and stay open longer than it. */
typedef struct fv_chat fv_chat;

typedef struct fv_chat_opt {
    int64_t capacity; /* tokens of the whole conversation; 0: the model's context, or 4096 */
    /* A conversation that does not fit loses its oldest turns, the system message aside, until a
     * quarter of the capacity (or max_new_tokens, if less) is free.  Else it is refused. */
    bool trim;
    const char *tools; /* as in fv_chat_render; borrowed */
} fv_chat_opt;

FV_API fv_status fv_chat_open(fv_chat **out, fv_device *d, const fv_model *m, const fv_tok *tok,
                              const fv_chat_template *t, fv_chat_opt opt, fv_err *e);
FV_API void fv_chat_close(fv_chat *c); /* NULL is allowed */

/* Appends a message; n bytes of UTF-8, copied. */
FV_API fv_status fv_chat_add(fv_chat *c, const char *role, const char *text, size_t n, fv_err *e);
/* Called with each piece of a reply as it is generated, never half a character.  false: the reply
 * ends here, and what there is of it is kept. */
typedef bool fv_chat_text_fn(void *user, const char *text, size_t n);
/* Generates the reply to the messages so far and appends it as the assistant's.  opt: one beam,
 * one sequence; its token callback is not called.  The token that ends a turn in the template
 * ends a reply, too.  on_text may be NULL.  On failure no message is added. */
FV_API fv_status fv_chat_reply(fv_chat *c, const fv_gen_opt *opt, fv_chat_text_fn *on_text,
                               void *user, fv_err *e);
/* The messages so far, *n of them; valid until the chat changes. */
FV_API const fv_message *fv_chat_messages(const fv_chat *c, int *n);
/* Forgets all messages but a first one of role "system". */
FV_API void fv_chat_reset(fv_chat *c);
/* Messages as a JSON file, {"messages": [{"role": .., "content": ..}, ..]}; loading replaces those
 * there are. */
FV_API fv_status fv_chat_save(const fv_chat *c, const char *path, fv_err *e);
FV_API fv_status fv_chat_load(fv_chat *c, const char *path, fv_err *e);

#endif
