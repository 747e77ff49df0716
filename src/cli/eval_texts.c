/* eval_texts.c - what evaluations of written text share: both sides, read from one file or from
 * two. */
#include "eval.h"

#include <stdlib.h>
#include <string.h>

int eval_new_texts(const cli *c, eval_texts *t, int64_t n)
{
    *t = (eval_texts){.at = calloc((size_t)n + 1, sizeof *t->at),
                      .len = calloc((size_t)n + 1, sizeof *t->len)};
    return t->at && t->len ? CLI_OK : cli_fail(c, "out of memory");
}

bool eval_add_text(eval_texts *t, const char *s, size_t n)
{
    char *p = malloc(n + 1);
    if (!p) return false;
    memcpy(p, s, n);
    p[n] = 0;
    t->len[t->n] = n;
    t->at[t->n++] = p;
    return true;
}

void eval_free_texts(eval_texts *t)
{
    for (int64_t i = 0; i < t->n; i++) free(t->at[i]);
    free(t->at);
    free(t->len);
    *t = (eval_texts){0};
}

static int read_lines_of(const cli *c, eval_texts *out, const char *path)
{
    fv_textfile *file;
    fv_err e;
    if (fv_textfile_open(&file, NULL, path, &e)) return cli_error(c, &e);
    int code = eval_new_texts(c, out, fv_textfile_count(file));
    for (int64_t i = 0; code == CLI_OK && i < fv_textfile_count(file); i++) {
        size_t n;
        const char *line = fv_textfile_line(file, i, &n);
        if (!eval_add_text(out, line, n)) code = cli_fail(c, "out of memory");
    }
    fv_textfile_close(file);
    return code;
}

static int read_table(const cli *c, const eval_values *v, const char *file, eval_texts side[2])
{
    fv_table *t;
    fv_err e;
    fv_data_report report = {0};
    fv_records from = eval_records(v, file);
    if (fv_table_open(&t, NULL, &from, 2, &report, &e)) return cli_error(c, &e);
    int code = CLI_OK;
    for (int k = 0; k < 2 && code == CLI_OK; k++)
        code = eval_new_texts(c, &side[k], fv_table_count(t));
    for (int64_t i = 0; i < fv_table_count(t) * 2 && code == CLI_OK; i++) {
        size_t n;
        const char *text = fv_table_text(t, i / 2, (int)(i % 2), &n);
        if (!eval_add_text(&side[i % 2], text, n)) code = cli_fail(c, "out of memory");
    }
    fv_table_close(t);
    return code;
}

int eval_read_sides(const cli *c, const eval_values *v, const char *file, eval_texts *texts,
                    eval_texts *reference, bool *made)
{
    const char *path = v->hypothesis ? v->hypothesis : v->source;
    bool clear = file            ? v->model.dir && !v->source && !v->hypothesis && !v->reference
                 : v->hypothesis ? v->reference && !v->model.dir && !v->source && !v->predictions
                                 : v->reference && v->model.dir && v->source;
    if (!clear)
        return cli_usage(c, "-m DIR with a FILE of two texts a record, or with --source FILE "
                            "--reference FILE, is needed; or, "
                            "for what was written already, --hypothesis FILE --reference FILE");
    *made = v->hypothesis;
    eval_texts side[2] = {{0}, {0}};
    int code = file ? read_table(c, v, file, side) : read_lines_of(c, &side[0], path);
    if (code == CLI_OK && !file) code = read_lines_of(c, &side[1], v->reference);
    *texts = side[0];
    *reference = side[1];
    if (code == CLI_OK && texts->n != reference->n)
        code = cli_fail(c, "%s has %lld lines and %s %lld", path, (long long)texts->n, v->reference,
                        (long long)reference->n);
    return code == CLI_OK && !texts->n ? cli_fail(c, "%s: no lines", path) : code;
}

int eval_write_texts(const cli *c, const eval_values *v, const eval_texts *t)
{
    FILE *f;
    int code = eval_open_predictions(c, v, &f);
    for (int64_t i = 0; f && i < t->n; i++) {
        for (const char *s = t->at[i]; *s; s++) fputc(*s == '\n' || *s == '\r' ? ' ' : *s, f);
        fputc('\n', f);
    }
    return eval_close_predictions(c, v, f, code);
}
