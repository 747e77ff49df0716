/* texts.h - what commands on lines of text share: reading them, opening a model for them. */
#ifndef FOVEA_CLI_TEXTS_H
#define FOVEA_CLI_TEXTS_H

#include "cli.h"
#include "fovea/task.h"

typedef struct cli_bytes {
    char *s; /* NUL behind the last */
    size_t n;
} cli_bytes;

/* All of a file, or of standard input when path is NULL; freed with free. */
int cli_read_all(const cli *c, const char *path, cli_bytes *out);

typedef struct cli_texts {
    cli_bytes bytes;
    fv_text *at; /* lines of bytes, without their ends */
    int64_t n;
} cli_texts;

/* How an input is taken apart: one text a line, unless it says more.  Empty lines are texts too. */
enum {
    CLI_PAIRS = 1,  /* a tab stands between a text and its pair */
    CLI_WHOLE = 2,  /* all of it is one text */
    CLI_IF_ANY = 4, /* no line at all is fine, else an error */
};
int cli_read_texts(const cli *c, const char *path, int how, cli_texts *out);
void cli_free_texts(cli_texts *t);
/* Prints n bytes with their tabs and line ends as spaces, for output of one line a result. */
void cli_print_flat(const char *s, size_t n);

/* ---- a model for them ---- */

typedef struct cli_model {
    const char *dir;
    const char *device;
    int64_t threads;
    int dtype;
} cli_model;

/* Entries of an option table, for a struct with a cli_model called model. */
#define CLI_MODEL(s)                                                                               \
    CLI_DIR(s, model.dir, 'm', "model", "DIR",                                                     \
            "a model directory: config.json, model.safetensors and the tokenizer's files"),        \
        CLI_CHOICE(s, model.dtype, 0, "dtype", cli_weights, CLI_WEIGHTS_HELP),                     \
        CLI_DEVICE(s, model.device),                                                               \
        CLI_INT(s, model.threads, 't', "threads", "N", 0, 4096, "0: all cores")

typedef struct cli_task {
    fv_device *device;
    fv_task *task;
} cli_task;

int cli_open_task(const cli *c, cli_task *out, const cli_model *m, fv_job job);
void cli_close_task(cli_task *t);

#endif
