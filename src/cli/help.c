/* help.c - the help texts, and the command that prints them. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

enum { WIDTH = 80, COLUMN = 26 };

/* Prints paragraphs, broken at WIDTH.  The first line goes on at `column`, the others begin with
 * `indent` spaces. */
static void wrap(const char *text, int column, int indent)
{
    while (*text) {
        int gap = (int)strspn(text, " "), word = (int)strcspn(text + gap, " \n"), skip = gap;
        if (column > indent && column + gap + word > WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
            gap = 0;
        }
        printf("%*s%.*s", gap, "", word, text + skip);
        column += gap + word;
        for (text += skip + word; *text == '\n'; text++, column = indent)
            printf(text[1] == '\n' ? "\n" : "\n%*s", indent, "");
    }
    putchar('\n');
}

void cli_value_text(char *out, size_t size, const cli_option *o)
{
    size_t used = 0;
    out[0] = 0;
    if (o->kind != CLI_IS_CHOICE) {
        snprintf(out, size, "%s", o->value ? o->value : "");
        return;
    }
    for (int i = 0; o->words[i] && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? "|" : "", o->words[i]);
}

void cli_help_text(char *out, size_t size, const cli_command *cmd, const cli_option *o)
{
    const char *d = cmd->defaults && !o->field ? (const char *)cmd->defaults + o->at : NULL;
    int64_t whole = 0;
    double real = 0;
    const char *text = NULL;
    int choice = 0;
    if (d && o->kind == CLI_IS_INT) memcpy(&whole, d, sizeof whole);
    if (d && o->kind == CLI_IS_REAL) memcpy(&real, d, sizeof real);
    if (d && o->kind == CLI_IS_CHOICE) memcpy(&choice, d, sizeof choice);
    if (d && o->kind >= CLI_IS_TEXT && o->kind <= CLI_IS_DIR) memcpy(&text, d, sizeof text);

    if (whole)
        snprintf(out, size, "%s (default %lld)", o->help, (long long)whole);
    else if (real != 0)
        snprintf(out, size, "%s (default %g)", o->help, real);
    else if (text)
        snprintf(out, size, "%s (default %s)", o->help, text);
    else if (o->kind == CLI_IS_CHOICE && !o->field)
        snprintf(out, size, "%s (default %s)", o->help, o->words[choice]);
    else
        snprintf(out, size, "%s", o->help);
}

static void print_option(char letter, const char *name, const char *value, const char *help)
{
    int n = letter ? printf("  -%c, --%s", letter, name) : printf("      --%s", name);
    if (*value) n += printf(" %s", value);
    if (n + 2 > COLUMN) {
        putchar('\n');
        n = 0;
    }
    printf("%*s", COLUMN - n, "");
    wrap(help, COLUMN, COLUMN);
}

static void print_options(const cli_command *cmd)
{
    puts("\nOptions:");
    for (cli_each at = {0}; cli_next(cmd, &at);) {
        const cli_option *o = &at.option;
        char value[256], help[1024];
        cli_value_text(value, sizeof value, o);
        cli_help_text(help, sizeof help, cmd, o);
        print_option(o->letter, o->name, value, help);
    }
    print_option('h', "help", "", "print this help");
    if (cmd == &cli_root) print_option('V', "version", "", "print the version");
}

void cli_print_help(const cli_command *cmd, const char *path)
{
    printf("%s - %s\n\nUsage: %s", path, cmd->summary, path);
    if (cmd->subs)
        puts(" COMMAND [OPTION]... [ARGUMENT]...");
    else
        printf(" [OPTION]...%s%s\n", cmd->operands ? " " : "", cmd->operands ? cmd->operands : "");
    if (cmd->about) {
        putchar('\n');
        wrap(cmd->about, 0, 0);
    }
    if (cmd->subs) puts("\nCommands:");
    for (const cli_command *const *s = cmd->subs; s && *s; s++) {
        int n = printf("  %s", (*s)->name);
        printf("%*s", COLUMN - 8 - n, "");
        wrap((*s)->summary, COLUMN - 8, COLUMN - 8);
    }
    print_options(cmd);
    if (cmd->examples) puts("\nExamples:");
    for (const cli_example *x = cmd->examples; x && x->line; x++) {
        printf("  %s\n      ", x->line);
        wrap(x->what, 6, 6);
    }
}

/* ---- fovea help ---- */

typedef struct help_values {
    bool man;
    int completion;
} help_values;

static const cli_option help_options[] = {
    CLI_FLAG(help_values, man, 0, "man", "print the manual page, as man(7) source"),
    CLI_CHOICE(help_values, completion, 0, "completion", cli_shells,
               "print the completion script of a shell"),
    {0},
};

static const cli_example help_examples[] = {
    {"fovea help bench gemm", "what the matrix product benchmark measures, and its options"},
    {"fovea help --man attend | man -l -", "the manual page of attend"},
    {"source <(fovea help --completion bash)", "completion in the shell that is running"},
    {0},
};

static int run_help(const cli *c, const void *values, int n, char **operand)
{
    const help_values *v = values;
    cli_path path;
    int used;
    const cli_command *cmd = cli_find(operand, n, &used, &path);
    if (used < n) {
        const char *suggestion = cli_nearest_sub(cmd, operand[used]);
        if (suggestion)
            return cli_usage(c, "there is no command '%s %s'; did you mean '%s'?", path.s,
                             operand[used], suggestion);
        return cli_usage(c, "there is no command '%s %s'", path.s, operand[used]);
    }
    if (v->completion)
        cli_print_completion(v->completion);
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
             "are made from the same tables that "
             "parse the command line.",
    .options = help_options,
    .size = sizeof(help_values),
    .operands = "[COMMAND]...",
    .max_operands = 8,
    .examples = help_examples,
    .run = run_help,
};
