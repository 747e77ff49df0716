/* write.c - a model that generates, opened for a command. */
#include "cli/write.h"

int writer_open(writer *w, const cli *c, const cli_model *m, const cli_settings *set,
                const char *task, int64_t new_tokens)
{
    fv_err e;
    fv_writer_opt how = {.settings = set->at,
                         .n_settings = set->n,
                         .task = task,
                         .new_tokens = new_tokens};
    *w = (writer){.c = c};
    cli_choose_weights(m->dtype, &how.weights, &how.widen);
    if (!m->dir) return cli_usage(c, "a model is needed: -m DIR");
    cli_adapters adapters;
    int code = cli_take_adapters(c, &m->adapters, &adapters, &how.adapters);
    if (code != CLI_OK) return code;
    cli_name_ignored(c, m->verbose, m->dir);
    code = cli_open_device(c, &w->device, m->device, m->threads);
    if (code == CLI_OK && fv_writer_open(&w->all, w->device, m->dir, how, &e))
        code = cli_error(c, &e);
    if (code != CLI_OK) return code;
    w->model = w->all.model;
    w->tok = w->all.tok;
    w->enc = w->all.enc;
    w->gen = w->all.gen;
    w->encoder = w->all.encoder;
    return CLI_OK;
}

void writer_close(writer *w)
{
    fv_writer_close(&w->all);
    fv_device_close(w->device);
}
