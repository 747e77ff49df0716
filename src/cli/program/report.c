/* report.c - messages on standard error, and what commands share that calls nothing else of the
 * program: so no two of its files need each other. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* Messages begin with the whole command, "fovea bench gemm: ", so that they can be told apart in a
 * log. */
static void message(const cli *c, const char *fmt, va_list ap)
{
    fprintf(stderr, "%s: ", c->name);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

int cli_fail(const cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    message(c, fmt, ap);
    va_end(ap);
    return CLI_FAILED;
}

int cli_usage(const cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    message(c, fmt, ap);
    va_end(ap);
    return CLI_USAGE;
}

/* The library names a key ("max_length: ..."), which here is an option. */
static bool key_as_option(const char *text, char name[64])
{
    size_t n = strcspn(text, ": ");
    if (text[n] != ':' || n > 60 || strspn(text, "abcdefghijklmnopqrstuvwxyz_") != n) return false;
    for (size_t i = 0; i < n; i++) name[i] = text[i] == '_' ? '-' : text[i];
    name[n] = 0;
    return true;
}

int cli_error(const cli *c, const fv_err *e)
{
    char name[64];
    if (e->code != FV_EUSAGE) return cli_fail(c, "%s", e->text);
    if (key_as_option(e->text, name)) return cli_usage(c, "--%s%s", name, strchr(e->text, ':'));
    return cli_usage(c, "%s", e->text);
}

/* ---- input ---- */

int cli_read_text(const cli *c, const char *path, char **out)
{
    fv_reader *r = NULL;
    const fv_line *line;
    int64_t n;
    fv_err e;
    *out = NULL;
    bool failed = fv_reader_open(&r, NULL, path, (fv_reader_opt){.whole = true}, &e) ||
                  fv_reader_next(r, 1, &line, &n, &e);
    if (!failed && line->error.code)
        failed = fv_fail(&e, FV_EFORMAT, "%s: %s", path ? path : "standard input",
                         line->error.text);
    if (!failed && !(*out = strndup(line->text.s, line->text.n)))
        failed = fv_fail(&e, FV_ENOMEM, "out of memory");
    fv_reader_close(r);
    return failed ? cli_error(c, &e) : CLI_OK;
}

/* ---- devices ---- */

/* OMP_NUM_THREADS says how many where --threads does not. */
int cli_threads(int64_t given)
{
    const char *text = given ? NULL : getenv("OMP_NUM_THREADS");
    long n = text ? strtol(text, NULL, 10) : 0;
    return given ? (int)given : n > 0 && n <= 4096 ? (int)n : 0;
}

int cli_open_device(const cli *c, fv_device **out, const char *name, int64_t threads)
{
    fv_err e;
    *out = NULL;
    if (fv_device_open(out, name, (fv_device_opt){.threads = cli_threads(threads)}, &e))
        return cli_error(c, &e);
    return CLI_OK;
}

int cli_agree(const cli *c, fv_comm *comm, int code)
{
    fv_err e = {.code = FV_ESTATE, .text = "it could not begin"};
    fv_status st = fv_comm_agree(comm, code == CLI_OK ? FV_OK : FV_ESTATE, &e);
    return code == CLI_OK && st ? cli_error(c, &e) : code;
}

const char *const cli_weights[] = {"stored", "f32", "bf16", "f16", "q8", "q4", "int8", NULL};

/* A weight stands behind the last '=': directories may have one, too. */
int cli_take_adapters(const cli *c, const cli_list *given, cli_adapters *a, fv_adapter_list *out)
{
    *out = (fv_adapter_list){.at = a->use, .n = given->n};
    for (int i = 0; i < given->n; i++) {
        const char *equals = strrchr(given->at[i], '=');
        char *end = NULL;
        double weight = equals ? strtod(equals + 1, &end) : 1;
        bool weighted = equals && end > equals + 1 && !*end;
        size_t n = weighted ? (size_t)(equals - given->at[i]) : strlen(given->at[i]);
        if (weighted && !(weight >= -1e6 && weight <= 1e6 && weight != 0))
            return cli_usage(c, "--adapter %s: expected a weight other than 0", given->at[i]);
        if (!n || n >= sizeof a->dir[i])
            return cli_usage(c, "--adapter %s: expected a directory", given->at[i]);
        snprintf(a->dir[i], sizeof a->dir[i], "%.*s", (int)n, given->at[i]);
        a->use[i] = (fv_adapter_use){.dir = a->dir[i], .weight = weighted ? (float)weight : 1};
    }
    return CLI_OK;
}

void cli_choose_weights(int choice, fv_dtype *weights, bool *widen)
{
    *weights = FV_F32;
    fv_dtype_parse(weights, cli_weights[choice]);
    *widen = !strcmp(cli_weights[choice], "f32");
}

static void name_key(void *user, const char *key)
{
    int *n = user;
    fprintf(stderr, "%s%s", (*n)++ ? ", " : " config.json has keys that nothing reads: ", key);
}

/* What keeps a model from being opened is said where it is. */
void cli_name_ignored(const cli *c, bool verbose, const char *dir)
{
    int n = 0;
    fv_err e;
    if (!verbose || !dir) return;
    fprintf(stderr, "%s: %s:", c->name, dir);
    bool failed = fv_model_ignored(dir, name_key, &n, &e) != FV_OK;
    fputs(failed || n ? "\n" : " every key of config.json is used or known\n", stderr);
}

/* ---- the tree of commands ---- */

const cli_command *cli_sub(const cli_command *parent, const char *name)
{
    for (const cli_command *const *s = parent->subs; s && *s; s++)
        if (!strcmp((*s)->name, name)) return *s;
    return NULL;
}

const char *cli_nearest_sub(const cli_command *parent, const char *word)
{
    const char *names[64];
    size_t n = 0;
    for (const cli_command *const *s = parent->subs; s && *s && n < 63; s++)
        names[n++] = (*s)->name;
    names[n] = NULL;
    return fv_closest(word, names);
}

cli_path cli_below(const char *path, const char *name)
{
    cli_path p;
    snprintf(p.s, sizeof p.s, "%.80s %.40s", path, name);
    return p;
}

/* Stops at the first word that is no command: the rest are its operands. */
const cli_command *cli_find(const cli_command *root, char **words, int n_words, int *n,
                            cli_path *path)
{
    const cli_command *cmd = root, *next;
    *path = (cli_path){"fovea"};
    for (*n = 0; *n < n_words && (next = cli_sub(cmd, words[*n])); ++*n) {
        cmd = next;
        *path = cli_below(path->s, cmd->name);
    }
    return cmd;
}

/* Through a buffer on the stack: a page may be larger than one wants to hold twice. */
fv_status cli_copy_out(const char *path, fv_err *e)
{
    char block[65536];
    size_t n;
    fv_status st = FV_OK;
    FILE *f = fopen(path, "rb");
    if (!f) return fv_fail(e, FV_EIO, "%s: cannot read it back", path);
    while (!st && (n = fread(block, 1, sizeof block, f)))
        if (fwrite(block, 1, n, stdout) != n)
            st = fv_fail(e, FV_EIO, "standard output: cannot write");
    fclose(f);
    return st;
}
