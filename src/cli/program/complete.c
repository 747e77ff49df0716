/* complete.c - completion scripts for bash, zsh and fish, made from the tables.
 *
 * Each script finds out which command the line is in and offers that command's options, the words
 * of a choice, file names where a file is wanted, or the commands below it.
 *
 * Three dialects of one walk over the tree of commands. bash gets one function with a case for
 * each command; zsh a function for each, in the words of _arguments; fish a line for each option
 * with a condition. Scripts that call the program for every key press lost: starting it takes
 * longer than a shell may wait, and completion would need the program to be installed. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

const char *const cli_shells[] = {"none", "bash", "zsh", "fish", NULL};

typedef void visit_fn(const cli_command *cmd, const char *path);

/* Calls visit for a command and all below it; path is "fovea bench gemm". */
static void each(const cli_command *cmd, const char *path, visit_fn *visit)
{
    visit(cmd, path);
    for (const cli_command *const *s = cmd->subs; s && *s; s++)
        each(*s, cli_below(path, (*s)->name).s, visit);
}

static bool takes_files(const cli_command *cmd)
{
    return cmd->operands && strstr(cmd->operands, "FILE");
}

static void print_words(const char *const *words)
{
    for (; *words; words++) printf("%s%s", *words, words[1] ? " " : "");
}

/* ---- bash ---- */

/* The case of one command: values of the option before the cursor, else its options and commands.
 */
static void bash_case(const cli_command *cmd, const char *path)
{
    printf("    \"%s\")\n        case \"$prev\" in\n", path);
    for (cli_each at = {0}; cli_next(cmd, &at);) {
        const cli_option *o = &at.option;
        if (o->kind == CLI_IS_FLAG) continue;
        printf("        --%s", o->name);
        if (o->letter) printf("|-%c", o->letter);
        printf(") COMPREPLY=(");
        if (o->kind == CLI_IS_FILE) printf("$(compgen -f -- \"$cur\")");
        if (o->kind == CLI_IS_DIR) printf("$(compgen -d -- \"$cur\")");
        if (o->kind == CLI_IS_CHOICE) {
            printf("$(compgen -W \"");
            print_words(o->words);
            printf("\" -- \"$cur\")");
        }
        printf("); return ;;\n");
    }
    printf("        esac\n        words=\"");
    for (const cli_command *const *s = cmd->subs; s && *s; s++) printf("%s ", (*s)->name);
    for (cli_each at = {0}; cli_next(cmd, &at);) printf("--%s ", at.option.name);
    printf(!strchr(path, ' ') ? "--help --version\"\n" : "--help\"\n");
    if (takes_files(cmd)) printf("        files=$(compgen -f -- \"$cur\")\n");
    printf("        ;;\n");
}

static void bash_known(const cli_command *cmd, const char *path)
{
    (void)cmd;
    printf("|\"%s\"", path);
}

static void bash(const cli_command *root)
{
    puts("# bash completion for fovea\n"
         "_fovea() {\n"
         "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\" "
         "path=fovea words= files= i\n"
         "    [ \"$prev\" = = ] && prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n"
         "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "        case \"$path ${COMP_WORDS[i]}\" in");
    printf("        fovea");
    each(root, "fovea", bash_known);
    puts(") path=\"$path ${COMP_WORDS[i]}\" ;;\n"
         "        *) break ;;\n"
         "        esac\n"
         "    done\n"
         "    case \"$path\" in");
    each(root, "fovea", bash_case);
    puts("    esac\n"
         "    case \"$cur\" in\n"
         "    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n"
         "    *) COMPREPLY=($(compgen -W \"${words%%--*}\" -- \"$cur\") $files) ;;\n"
         "    esac\n"
         "}\n"
         "complete -o filenames -F _fovea fovea");
}

/* ---- zsh ---- */

/* Text inside a zsh specification in single quotes: brackets and colons would end a field. */
static void zsh_text(const char *s)
{
    for (; *s; s++) {
        if (*s == '\'')
            printf("'\\''");
        else if (strchr("[]:\\", *s))
            printf("\\%c", *s);
        else
            putchar(*s == '\n' ? ' ' : *s);
    }
}

/* Commands below this one get functions of their own; the state machine of _arguments finds them.
 */
static void zsh_function_name(const char *path)
{
    putchar('_');
    for (; *path; path++) putchar(*path == ' ' || *path == '-' ? '_' : *path);
}

/* An option with a letter is one entry with two spellings that exclude each other. */
static void zsh_options(const cli_command *cmd, const char *path)
{
    for (cli_each at = {0}; cli_next(cmd, &at);) {
        const cli_option *o = &at.option;
        printf(" \\\n        ");
        if (o->letter)
            printf("'(-%c --%s)'{-%c,--%s}'[", o->letter, o->name, o->letter, o->name);
        else
            printf("'--%s%s[", o->name, o->kind == CLI_IS_FLAG ? "" : "=");
        zsh_text(o->help);
        printf("]");
        if (o->kind != CLI_IS_FLAG) printf(":%s:", o->value ? o->value : o->name);
        if (o->kind == CLI_IS_FILE) printf("_files");
        if (o->kind == CLI_IS_DIR) printf("_files -/");
        if (o->kind == CLI_IS_CHOICE) {
            printf("(");
            print_words(o->words);
            printf(")");
        }
        printf("'");
    }
    printf(" \\\n        '(-h --help)'{-h,--help}'[print help]'");
    if (!strchr(path, ' '))
        printf(" \\\n        '(-V --version)'{-V,--version}'[print the version]'");
}

/* A command with commands below it is a state machine of two states: `command` offers their names,
 * `argument` goes on in the function of the one that was typed. */
static void zsh_function(const cli_command *cmd, const char *path)
{
    zsh_function_name(path);
    printf("() {\n");
    if (cmd->subs) printf("    local curcontext=\"$curcontext\" state line\n");
    printf("    _arguments -s -S%s", cmd->subs ? " -C" : "");
    zsh_options(cmd, path);
    if (!cmd->subs) {
        printf("%s\n}\n\n", takes_files(cmd) ? " \\\n        '*:argument:_files'" : "");
        return;
    }
    printf(" \\\n        '1:command:->command' '*::argument:->argument'\n    case $state in\n    "
           "command) _values command");
    for (const cli_command *const *s = cmd->subs; *s; s++) {
        printf(" \\\n        '%s[", (*s)->name);
        zsh_text((*s)->summary);
        printf("]'");
    }
    printf(" ;;\n    argument)\n        case $line[1] in\n");
    for (const cli_command *const *s = cmd->subs; *s; s++) {
        printf("        %s) ", (*s)->name);
        zsh_function_name(path);
        printf("_%s ;;\n", (*s)->name);
    }
    printf("        esac ;;\n    esac\n}\n\n");
}

static void zsh(const cli_command *root)
{
    puts("#compdef fovea\n# zsh completion for fovea\n");
    each(root, "fovea", zsh_function);
    puts("_fovea \"$@\"");
}

/* ---- fish ---- */

static void fish_text(const char *s)
{
    putchar('\'');
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\') putchar('\\');
        putchar(*s == '\n' ? ' ' : *s);
    }
    putchar('\'');
}

/* The condition "the line is in this command": its words have been typed, and none of the commands
 * below it. */
static void fish_condition(const cli_command *cmd, const char *path)
{
    const char *words = strchr(path, ' ');
    printf("complete -c fovea -n '");
    if (!words) printf("__fish_use_subcommand");
    for (const char *p = words; p; p = strchr(p + 1, ' '))
        printf("%s__fish_seen_subcommand_from %.*s", p == words ? "" : "; and ",
               (int)strcspn(p + 1, " "), p + 1);
    if (words && cmd->subs) {
        printf("; and not __fish_seen_subcommand_from");
        for (const cli_command *const *s = cmd->subs; *s; s++) printf(" %s", (*s)->name);
    }
    printf("'");
}

/* -x: a value that is no file; -r -F: a file name. */
static void fish_lines(const cli_command *cmd, const char *path)
{
    for (const cli_command *const *s = cmd->subs; s && *s; s++) {
        fish_condition(cmd, path);
        printf(" -f -a %s -d ", (*s)->name);
        fish_text((*s)->summary);
        putchar('\n');
    }
    for (cli_each at = {0}; cli_next(cmd, &at);) {
        const cli_option *o = &at.option;
        fish_condition(cmd, path);
        printf(" -l %s", o->name);
        if (o->letter) printf(" -s %c", o->letter);
        if (o->kind == CLI_IS_FILE || o->kind == CLI_IS_DIR) printf(" -r -F");
        if (o->kind == CLI_IS_INT || o->kind == CLI_IS_REAL || o->kind == CLI_IS_TEXT ||
            o->kind == CLI_IS_LIST)
            printf(" -x");
        if (o->kind == CLI_IS_CHOICE) {
            printf(" -x -a '");
            print_words(o->words);
            printf("'");
        }
        printf(" -d ");
        fish_text(o->help);
        putchar('\n');
    }
}

static void fish(const cli_command *root)
{
    puts("# fish completion for fovea\ncomplete -c fovea -s h -l help -d 'print help'");
    each(root, "fovea", fish_lines);
}

void cli_print_completion(const cli_command *root, int shell)
{
    void (*const print[])(const cli_command *) = {bash, zsh, fish};
    print[shell - 1](root);
}
