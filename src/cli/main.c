/* main.c - finds the command, parses its options, runs it, and makes sure that its output
 * arrived. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

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

int cli_error(const cli *c, const fv_err *e) { return cli_fail(c, "%s", e->text); }

/* What was typed where a command belongs. */
static int not_a_command(const cli *c, const cli_command *parent, const char *word)
{
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        cli_print_help(parent, c->name);
        return CLI_OK;
    }
    if (parent == &cli_root && (!strcmp(word, "-V") || !strcmp(word, "--version"))) {
        printf("fovea %s\n", fv_version());
        return CLI_OK;
    }
    const char *suggestion = cli_nearest_sub(parent, word);
    if (word[0] == '-')
        return cli_usage(c, "unknown option '%s'; a command comes first, see '%s --help'", word,
                         c->name);
    if (suggestion)
        return cli_usage(c, "there is no command '%s'; did you mean '%s'?", word, suggestion);
    return cli_usage(c, "there is no command '%s'; see '%s --help'", word, c->name);
}

static int run_command(const cli *c, const cli_command *cmd, int argc, char **argv)
{
    int n = 0;
    bool help = false;
    void *values = calloc(1, cmd->size + 1); /* never of size 0 */
    if (!values) return cli_fail(c, "out of memory");
    if (cmd->defaults) memcpy(values, cmd->defaults, cmd->size);

    int code = cli_parse(c, cmd, values, argc, argv, &n, &help);
    if (help)
        cli_print_help(cmd, c->name);
    else if (code == CLI_OK)
        code = cmd->run(c, values, n, argv);
    free(values);
    return code;
}

/* Weights are used where they are mapped: touching them after another process truncated the file
 * raises SIGBUS.  Only calls that a handler may make. */
static void on_sigbus(int signal)
{
    static const char text[] = "fovea: a file in use was truncated, or its disk failed; nothing "
                               "more can be read from it\n";
    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(CLI_FAILED);
    _exit(CLI_FAILED);
}

int main(int argc, char **argv)
{
    cli_path path;
    struct sigaction bus = {.sa_handler = on_sigbus};
    sigaction(SIGBUS, &bus, NULL);
    int n, code;
    const cli_command *cmd = cli_find(argv + 1, argc - 1, &n, &path);
    const cli c = {path.s, cmd};
    char **rest = argv + 1 + n;

    if (!cmd->subs)
        code = run_command(&c, cmd, argc - 1 - n, rest);
    else if (*rest)
        code = not_a_command(&c, cmd, *rest);
    else
        code = cli_usage(&c, "a command is missing; see '%s --help'", path.s);

    if (fflush(stdout) || ferror(stdout))
        return cli_fail(&c, "cannot write the output: %s", strerror(errno));
    return code;
}
