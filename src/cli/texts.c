/* texts.c - what commands on lines of text share: reading them, opening a model for them. */
#include "texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_read_all(const cli *c, const char *path, cli_bytes *out)
{
    FILE *f = path ? fopen(path, "rb") : stdin;
    size_t cap = 0, got;
    *out = (cli_bytes){0};
    if (!f) return cli_fail(c, "%s: cannot open", path);
    do {
        if (cap - out->n < 65536) {
            cap = cap * 2 + 65536 * 2;
            char *bigger = realloc(out->s, cap);
            if (!bigger) break;
            out->s = bigger;
        }
        got = fread(out->s + out->n, 1, 65535, f);
        out->n += got;
    } while (got);
    bool whole = out->s && feof(f) && !ferror(f);
    if (path) fclose(f);
    if (whole) {
        out->s[out->n] = 0;
        return CLI_OK;
    }
    free(out->s);
    out->s = NULL;
    return cli_fail(c, "%s: cannot read", path ? path : "standard input");
}

static fv_text line_of(char *s, size_t n, bool pairs)
{
    if (n && s[n - 1] == '\r') n--;
    char *tab = pairs ? memchr(s, '\t', n) : NULL;
    if (!tab) return (fv_text){.s = s, .n = n};
    return (fv_text){.s = s,
                     .n = (size_t)(tab - s),
                     .pair = tab + 1,
                     .pair_n = (size_t)(s + n - tab - 1)};
}

int cli_read_texts(const cli *c, const char *path, int how, cli_texts *out)
{
    *out = (cli_texts){0};
    int code = cli_read_all(c, path, &out->bytes);
    if (code != CLI_OK) return code;
    size_t lines = 1;
    for (size_t i = 0; i < out->bytes.n; i++) lines += out->bytes.s[i] == '\n';
    out->at = calloc(lines, sizeof *out->at);
    if (!out->at) return cli_fail(c, "out of memory");
    if (how & CLI_WHOLE) {
        out->at[out->n++] = (fv_text){.s = out->bytes.s, .n = out->bytes.n};
        return CLI_OK;
    }
    for (char *s = out->bytes.s, *end = s + out->bytes.n; s < end;) {
        char *stop = memchr(s, '\n', (size_t)(end - s));
        if (!stop) stop = end;
        out->at[out->n++] = line_of(s, (size_t)(stop - s), how & CLI_PAIRS);
        s = stop + 1;
    }
    return out->n || how & CLI_IF_ANY
               ? CLI_OK
               : cli_fail(c, "%s: no text in it", path ? path : "standard input");
}

void cli_free_texts(cli_texts *t)
{
    free(t->at);
    free(t->bytes.s);
}

void cli_print_flat(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        putchar(s[i] == '\n' || s[i] == '\r' || s[i] == '\t' ? ' ' : s[i]);
}

int cli_open_task(const cli *c, cli_task *out, const cli_model *m, fv_job job)
{
    fv_err e;
    fv_model_opt opt = {0};
    *out = (cli_task){0};
    cli_choose_weights(m->dtype, &opt.weights, &opt.widen);
    if (!m->dir) return cli_usage(c, "a model is needed: -m DIR");
    if (opt.weights == FV_BF16) opt.dtype = FV_BF16;
    if (fv_device_open(&out->device, m->device, (fv_device_opt){.threads = (int)m->threads}, &e) ||
        fv_task_open(&out->task, out->device, m->dir, job, opt, &e))
        return cli_error(c, &e);
    return CLI_OK;
}

void cli_close_task(cli_task *t)
{
    fv_task_close(t->task);
    fv_device_close(t->device);
}
