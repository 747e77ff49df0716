/* help.c - fovea help: explains a command, prints manual pages and completion scripts. */
#include "cli.h"

typedef struct help_values {
    bool man;
    int completion;
} help_values;

static const cli_option options[] = {
    CLI_FLAG(help_values, man, 0, "man", "print the manual page, as man(7) source"),
    CLI_CHOICE(help_values, completion, 0, "completion", cli_shells,
               "print the completion script of a shell"),
    {0},
};

static const cli_example examples[] = {
    {"fovea help bench gemm", "what the matrix product benchmark measures, and its options"},
    {"fovea help --man attend | man -l -", "the manual page of attend"},
    {"source <(fovea help --completion bash)", "completion in the shell that is running"},
    {0},
};

/* The operands are a path in the tree of commands; what is misspelt is answered with what is near.
 */
static int run(const cli *c, const void *values, int n, char **operand)
{
    const help_values *v = values;
    cli_path path;
    int used;
    const cli_command *cmd = cli_find(c->root, operand, n, &used, &path);
    if (used < n) {
        const char *suggestion = cli_nearest_sub(cmd, operand[used]);
        if (suggestion)
            return cli_usage(c, "there is no command '%s %s'; did you mean '%s'?", path.s,
                             operand[used], suggestion);
        return cli_usage(c, "there is no command '%s %s'", path.s, operand[used]);
    }
    if (v->completion)
        cli_print_completion(c->root, v->completion);
    else if (v->man)
        cli_print_man(cmd, path.s);
    else
        cli_print_help(cmd, path.s);
    return CLI_OK;
}

const cli_command help_command = {
    .name = "help",
    .summary = "explain a command",
    .about = "Without a command, lists all of them.  The manual pages and the completion scripts "
             "are made from the same tables that parse the command line.",
    CLI_OWN(help_values),
    .operands = "[COMMAND]...",
    .max_operands = 8,
};
