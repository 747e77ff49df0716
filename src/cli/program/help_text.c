/* help_text.c - the help texts, made from the tables. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

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

static void print_options(const cli_command *cmd, const char *path)
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
    if (!strchr(path, ' ')) print_option('V', "version", "", "print the version");
}

/* Sections in the order of GNU's own helps: usage, about, commands, options, examples. */
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
    print_options(cmd, path);
    if (cmd->examples) puts("\nExamples:");
    for (const cli_example *x = cmd->examples; x && x->line; x++) {
        printf("  %s\n      ", x->line);
        wrap(x->what, 6, 6);
    }
}
