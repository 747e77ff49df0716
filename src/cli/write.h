/* write.h - a model that generates, opened for a command; what it failed at has been reported. */
#ifndef FOVEA_CLI_WRITE_H
#define FOVEA_CLI_WRITE_H

#include "cli.h"
#include "json.h"

typedef struct writer {
    const cli *c;
    fv_device *device;
    fv_model *model;
    fv_tok *tok;
    fv_encoding *enc;
    fv_gen_opt gen; /* may be changed */
    bool encoder;   /* the model reads a source, else it continues a prompt */
    fv_writer all;
} writer;

/* set: keys of fv_gen_fields from the command line, over what the model says.  task: as in
 * fv_gen_config_open.  new_tokens: at most so many where neither says. */
int writer_open(writer *w, const cli *c, const cli_model *m, const cli_settings *set,
                const char *task, int64_t new_tokens);
void writer_close(writer *w);

#endif
