/* main.c - finds the command, parses its options, runs it, and makes sure that its output
 * arrived.
 *
 * The commands are the files of src/cli/ (CMake lists them) and one for each task of the library;
 * nothing here names any of them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

#define X(name) extern const cli_command name##_command;
#include "command_files.h"
#undef X

static const cli_command *const from_files[] = {
#define X(name) &name##_command,
#include "command_files.h"
#undef X
    NULL};

enum { MOST = 128 };
static const cli_command *commands[MOST + 1];

static const cli_command root = {
    .name = "fovea",
    .summary = "self-attention in C: compute it, train it, look at it",
    .about = "fovea is a library and a program for models built on self-attention.  Each command "
             "below does one thing; \"fovea help COMMAND\" explains it and shows examples.\n\n"
             "The environment variable FOVEA_CPU forces the kernels of one instruction level "
             "(\"fovea info\" lists them); OMP_NUM_THREADS says how many threads compute.",
    .subs = commands,
};

static int by_name(const void *a, const void *b)
{
    const cli_command *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* By name: files, tasks and benchmarks are one list to whoever reads it. */
static void list_commands(void)
{
    int n = 0;
    const cli_command *task;
    for (int i = 0; from_files[i] && n < MOST; i++) commands[n++] = from_files[i];
    for (int i = 0; (task = cli_task_command(i)) && n < MOST; i++) commands[n++] = task;
    for (int i = 0; i < n; i++)
        if (commands[i]->list) commands[i]->list();
    qsort(commands, (size_t)n, sizeof *commands, by_name);
}

/* What was typed where a command belongs. */
static int not_a_command(const cli *c, const cli_command *parent, const char *word)
{
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        cli_print_help(parent, c->name);
        return CLI_OK;
    }
    if (parent == &root && (!strcmp(word, "-V") || !strcmp(word, "--version"))) {
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

/* The values are a struct of the command's own, filled from its defaults and then by the parser. */
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

/* A descriptor that the caller closed would be given to the next file that is opened, and what is
 * printed would end up in it.  The mode is the opposite of what it is for, so that using it fails
 * as it does without it. */
static bool open_standard_files(void)
{
    bool good = true;
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            good = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) == fd && good;
    return good;
}

int main(int argc, char **argv)
{
    cli_path path;
    if (!open_standard_files()) return CLI_FAILED; /* and nowhere to say so */
    struct sigaction bus = {.sa_handler = on_sigbus};
    sigaction(SIGBUS, &bus, NULL);
    int n, code;
    list_commands();
    const cli_command *cmd = cli_find(&root, argv + 1, argc - 1, &n, &path);
    const cli c = {path.s, cmd, &root};
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
