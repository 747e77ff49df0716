/* write.h - what commands that write text share: the model with its tokenizer, options of
 * generating, input, output.
 *
 * A `writer` holds everything open; writer_close releases it.  Functions return an exit code and
 * have reported what failed. */
#ifndef FOVEA_CLI_WRITE_H
#define FOVEA_CLI_WRITE_H

#include "fovea/gen.h"
#include "fovea/tok.h"
#include "json.h"
#include "texts.h"

typedef struct writer {
    const cli *c;
    fv_device *device;
    fv_model *model;
    fv_tok *tok;
    fv_encoding *enc;
    fv_dir *dir;
    fv_gen_config *config;
    fv_gen_opt gen; /* its lists are the config's */
    bool encoder;   /* the model reads a source, else it continues a prompt */
    int32_t begin;  /* the id a text begins with, or -1 */
} writer;

/* set: keys of fv_gen_fields from the command line, over what the model says; NULL: none.  task:
 * as in fv_gen_config_open.  new_tokens: at most so many where neither says. */
int writer_open(writer *w, const cli *c, const cli_model *m, const cli_settings *set,
                const char *task, int64_t new_tokens);
void writer_close(writer *w);

/* ---- ids that grow ---- */

typedef struct ids {
    int32_t *at;
    int64_t n, cap;
} ids;
bool ids_add(ids *x, const int32_t *more, int64_t n);
void ids_free(ids *x);

/* ---- texts ---- */

/* The ids of a text, with what the tokenizer adds; for a prompt at least the one that texts begin
 * with. */
int writer_encode(writer *w, ids *out, const char *text, size_t len);
/* The text of ids that follow a prompt: only what they add to it. */
int writer_decode(writer *w, char **out, size_t *len, const ids *prompt, const int32_t *ids,
                  int64_t n);
/* A stream of what follows a prompt: it has read that already, and gives none of its text. */
int writer_stream_open(writer *w, fv_tok_stream **out, const ids *prompt);

/* Generates for all of in, `together` at a time, and hands every hypothesis to print.  encode
 * makes the ids of a text. */
typedef struct writer_job {
    int (*encode)(writer *w, const void *user, ids *out, const fv_text *text);
    int (*print)(writer *w, const void *user, const fv_text *text, const ids *source,
                 const fv_hyp *h);
    const void *user;
    int64_t together;
} writer_job;
int writer_run(writer *w, const writer_job *job, const fv_text *in, int64_t n);

/* ---- how likely a text is ---- */

/* log p of a text behind the token that texts begin with, so that its first token has a
 * probability too, and how many tokens count; window and stride as in fv_score. */
int writer_score(writer *w, const fv_text *text, int64_t window, int64_t stride, double *log_p,
                 int64_t *tokens);
/* The same of text->pair, for a model with an encoder, which reads the text. */
int writer_score_pair(writer *w, const fv_text *text, double *log_p, int64_t *tokens);

#endif
