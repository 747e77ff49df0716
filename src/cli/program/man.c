/* man.c - the manual pages, in man(7), made from the tables. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

/* Running text: hyphens stay hyphens, backslashes are literal, and no line can begin with a
 * request. */
static void text(const char *s)
{
    for (bool start = true; *s; s++) {
        if (*s == '\n' && s[1] == '\n') {
            printf("\n.PP\n");
            s++;
            start = true;
            continue;
        }
        if (start && (*s == '.' || *s == '\'')) printf("\\&");
        if (*s == '\\')
            printf("\\e");
        else if (*s == '-')
            printf("\\-");
        else if (*s == ' ' && s[1] == ' ')
            /* two spaces end a sentence, and in man(7) a sentence ends a line */
            s++, putchar('\n');
        else
            putchar(*s);
        start = *s == '\n' || (*s == ' ' && s[-1] == ' ');
    }
    putchar('\n');
}

/* Hyphens are escaped: a bare one may be typeset as a dash, which nobody can copy into a shell. */
static void option(char letter, const char *name, const char *value, const char *help)
{
    printf(".TP\n");
    if (letter) printf("\\fB\\-%c\\fR, ", letter);
    printf("\\fB\\-\\-");
    for (; *name; name++) printf(*name == '-' ? "\\-" : "%c", *name);
    printf(*value ? "\\fR \\fI%s\\fR\n" : "\\fR\n", value);
    text(help);
}

static void options(const cli_command *cmd)
{
    for (cli_each at = {0}; cli_next(cmd, &at);) {
        const cli_option *o = &at.option;
        char value[256], help[1024];
        cli_value_text(value, sizeof value, o);
        cli_help_text(help, sizeof help, cmd, o);
        option(o->letter, o->name, value, help);
    }
}

static void synopsis(const cli_command *cmd, const char *path)
{
    printf(".B %s\n", path);
    if (cmd->subs)
        printf(".I COMMAND\n[\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...\n");
    else
        printf("[\\fIOPTION\\fR]...%s%s\n", cmd->operands ? " " : "",
               cmd->operands ? cmd->operands : "");
}

static void examples(const cli_command *cmd)
{
    for (const cli_example *x = cmd->examples; x && x->line; x++) {
        printf(".TP\n.B ");
        text(x->line);
        text(x->what);
    }
}

/* The page's name is FOVEA-BENCH; in the text it keeps its blanks. */
static void title(const cli_command *cmd, const char *path)
{
    char name[128];
    snprintf(name, sizeof name, "%s", path);
    for (char *p = name; *p; p++) *p = *p == ' ' ? '-' : (char)toupper((unsigned char)*p);
    printf(".TH %s 1 \"\" \"fovea %s\" \"fovea manual\"\n.SH NAME\n", name, fv_version());
    for (const char *p = path; *p; p++) printf(*p == ' ' ? "\\-" : "%c", *p);
    printf(" \\- ");
    text(cmd->summary);
}

/* The commands below one that has its own page: each a subsection with its options and examples. */
static void subcommands(const cli_command *cmd, const char *path)
{
    for (const cli_command *const *s = cmd->subs; *s; s++) {
        printf(".SS %s\n", cli_below(path, (*s)->name).s);
        text((*s)->summary);
        if ((*s)->about) {
            printf(".PP\n");
            text((*s)->about);
        }
        options(*s);
        examples(*s);
    }
}

/* Commands with subcommands have one page with a subsection for each; the program's own lists the
 * others' pages. */
void cli_print_man(const cli_command *cmd, const char *path)
{
    bool top = !strchr(path, ' ');
    title(cmd, path);
    printf(".SH SYNOPSIS\n");
    synopsis(cmd, path);
    printf(".SH DESCRIPTION\n");
    text(cmd->about ? cmd->about : cmd->summary);
    if (cmd->subs) printf(".SH COMMANDS\n");
    for (const cli_command *const *s = top ? cmd->subs : NULL; s && *s; s++) {
        printf(".TP\n\\fBfovea\\-%s\\fR(1)\n", (*s)->name);
        text((*s)->summary);
    }
    if (cmd->subs && !top) subcommands(cmd, path);
    printf(".SH OPTIONS\n");
    options(cmd);
    option('h', "help", "", "print a short help");
    if (top) option('V', "version", "", "print the version");
    if (cmd->examples) printf(".SH EXAMPLES\n");
    examples(cmd);
    printf(
        ".SH EXIT STATUS\n0 when all went well, 1 when the work or part of it could not be done, "
        "2 when the command line was wrong, 130 after Ctrl\\-C.\n");
    if (!top) printf(".SH SEE ALSO\n.BR fovea (1)\n");
}
