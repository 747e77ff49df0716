/* write.h - what commands that write text share: the model with its tokenizer, options of generating, input, output.
 *
 * A `writer` holds everything open; writer_close releases it.  Functions return an exit code and have reported what failed. */
#ifndef FOVEA_CLI_WRITE_H
#define FOVEA_CLI_WRITE_H

#include "fovea/gen.h"
#include "fovea/tok.h"
#include "json.h"

#define WRITER_KEYS 16 /* options of generating that the command line has */

typedef struct writer_values {
    const char *model;
    const char *device;
    int64_t threads;
    int dtype;
    bool json;
    const char *key[WRITER_KEYS]; /* as texts: the library's table checks them */
} writer_values;

/* s is the command's struct, with a writer_values named w. */
#define WRITER_OPTIONS(s)                                                                                                        \
    CLI_DIR(s, w.model, 'm', "model", "DIR", "a model directory: config.json, model.safetensors and a tokenizer"),               \
        CLI_CHOICE(s, w.dtype, 0, "dtype", cli_weights, "of the weights"), CLI_DEVICE(s, w.device),                              \
        CLI_INT(s, w.threads, 't', "threads", "N", 0, 4096, "0: all cores"),                                                     \
        CLI_FLAG(s, w.json, 0, "json", "print one JSON object a line")

#define WRITER_KEY(s, i, name, value, help) CLI_TEXT(s, w.key[i], 0, name, value, help)
#define GENERATE_OPTIONS(s)                                                                                                      \
    WRITER_KEY(s, 0, "max-new-tokens", "N", "write at most so many tokens"),                                                     \
        WRITER_KEY(s, 1, "min-new-tokens", "N", "and at least so many"),                                                         \
        WRITER_KEY(s, 2, "num-beams", "N", "beam search with so many beams"),                                                    \
        WRITER_KEY(s, 3, "length-penalty", "X", "scores of beams are divided by length to this power"),                          \
        WRITER_KEY(s, 4, "early-stopping", "false|true|never", "stop once enough beams have ended"),                             \
        WRITER_KEY(s, 5, "num-return-sequences", "N", "texts for each input"),                                                   \
        WRITER_KEY(s, 6, "do-sample", "true|false", "draw tokens instead of taking the best"),                                   \
        WRITER_KEY(s, 7, "temperature", "X", "above 1 flattens, below sharpens; drawing follows"),                               \
        WRITER_KEY(s, 8, "top-k", "N", "draw from so many best; 0: from all"),                                                   \
        WRITER_KEY(s, 9, "top-p", "X", "draw from the best that hold this share"),                                               \
        WRITER_KEY(s, 10, "min-p", "X", "draw from those with at least this share of the best one's probability"),               \
        WRITER_KEY(s, 11, "typical-p", "X", "draw from the most typical that hold this share"),                                  \
        WRITER_KEY(s, 12, "repetition-penalty", "X", "above 1 makes repeating less likely"),                                     \
        WRITER_KEY(s, 13, "no-repeat-ngram-size", "N", "no run of so many tokens comes twice"),                                  \
        WRITER_KEY(s, 14, "seed", "N", "of drawing")

typedef struct writer {
    const cli *c;
    fv_device *device;
    fv_model *model;
    fv_tok *tok;
    fv_encoding *enc;
    fv_dir *dir;
    fv_gen_opt gen;
    bool encoder;  /* the model reads a source, else it continues a prompt */
    bool has_gen;  /* gen is open */
    int32_t begin; /* the id a text begins with, or -1 */
} writer;

/* task: as in fv_gen_open.  new_tokens: at most so many where neither the model nor the command line says. */
int writer_open(writer *w, const cli *c, const writer_values *v, const char *task, int64_t new_tokens);
void writer_close(writer *w);

/* ---- ids and lines that grow ---- */

typedef struct ids {
    int32_t *at;
    int64_t n, cap;
} ids;
bool ids_add(ids *x, const int32_t *more, int64_t n);
void ids_free(ids *x);

typedef struct lines {
    char *text; /* all of the input */
    char **at;
    size_t *len;
    int64_t n;
} lines;
/* All of a file or, if path is NULL, of standard input, by lines or as one. */
int read_lines(const cli *c, lines *out, const char *path, bool whole);
void free_lines(lines *l);

/* The ids of a text, with what the tokenizer adds; for a prompt at least the one that texts begin with. */
int writer_encode(writer *w, ids *out, const char *text, size_t len);
/* The text of ids that follow a prompt: only what they add to it. */
int writer_decode(writer *w, char **out, size_t *len, const ids *prompt, const int32_t *ids, int64_t n);
/* Prints tokens as they come; see fv_gen_opt.token.  Begin with the prompt, which is not printed. */
int writer_stream_open(writer *w, fv_tok_stream **out, const ids *prompt);

#endif
