/* chat.h - conversations as the text a model was trained on.
 *
 * Models come with a template, a small program that writes messages as text.  Programs are not run:
 * the few templates that most models have are recognised by what they say, and others are
 * refused. */
#ifndef FOVEA_CHAT_H
#define FOVEA_CHAT_H

#include "fovea/store.h"

typedef struct fv_chat fv_chat;

typedef struct fv_message {
    const char *role; /* "system" (only the first), "user", "assistant" */
    const char *text;
} fv_message;

/* The template of a model's directory: chat_template.jinja, or chat_template in
 * tokenizer_config.json. */
FV_API fv_status fv_chat_open(fv_chat **out, const fv_env *env, const char *dir, fv_err *e);
/* The same from a template's text and the texts of the tokens that begin and end a sequence ("" for
 * none). */
FV_API fv_status fv_chat_read(fv_chat **out, const fv_env *env, const char *template_text,
                              const char *begin, const char *end, fv_err *e);
FV_API void fv_chat_close(fv_chat *c); /* NULL is allowed */
/* "chatml", "llama3", "llama2", "mistral", "zephyr" */
FV_API const char *fv_chat_name(const fv_chat *c);
/* The token that ends a reply, as text; NULL: the model's own end. */
FV_API const char *fv_chat_end(const fv_chat *c);

/* n messages, and what begins a reply; *text is NUL-terminated and freed with fv_chat_free_text. */
FV_API fv_status fv_chat_render(const fv_chat *c, char **text, const fv_message *m, int n,
                                fv_err *e);
FV_API void fv_chat_free_text(const fv_chat *c, char *text);

#endif
