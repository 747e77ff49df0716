/* option_table.c - the options of a command: its own and those made from field tables; their
 * letters, values and help. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

/* ---- the options of a command ---- */

/* Letters of options that come from field tables.  A letter means the same in every command. */
static const struct {
    const char *name;
    char letter;
} letters[] = {{"top", 'k'},  {"output", 'o'}, {"labels", 'l'}, {"pool", 'p'},
               {"echo", 'e'}, {"batch", 'b'},  {"heads", 'n'},  {"causal", 'c'}};

static char letter_of(const char *name)
{
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (!strcmp(letters[i].name, name)) return letters[i].letter;
    return 0;
}

/* A text's help may begin with what its value is called: "FILE: the text that ...". */
static const char *value_name(const fv_field *f, char out[16], cli_kind *kind)
{
    size_t n = strspn(f->help, "ABCDEFGHIJKLMNOPQRSTUVWXYZ,");
    bool named = n && n < 16 && f->help[n] == ':' && f->help[n + 1] == ' ';
    snprintf(out, 16, "%.*s", named ? (int)n : 4, named ? f->help : "TEXT");
    if (!strcmp(out, "FILE")) *kind = CLI_IS_FILE;
    if (!strcmp(out, "DIR")) *kind = CLI_IS_DIR;
    return named ? f->help + n + 2 : f->help;
}

/* A key becomes an option: max_new_tokens is --max-new-tokens, with the range and help of its
 * table. */
static cli_option of_field(const fv_field *f, cli_each *at)
{
    static const cli_kind kinds[] = {
        [FV_FIELD_INT] = CLI_IS_INT,       [FV_FIELD_FLOAT] = CLI_IS_REAL,
        [FV_FIELD_BOOL] = CLI_IS_FLAG,     [FV_FIELD_TEXT] = CLI_IS_TEXT,
        [FV_FIELD_CHOICE] = CLI_IS_CHOICE, [FV_FIELD_WORDS] = CLI_IS_TEXT};
    cli_option o = {
        .name = at->name, .kind = kinds[f->type], .help = f->help, .words = f->choices, .field = f};
    snprintf(at->name, sizeof at->name, "%s", f->name);
    for (char *p = at->name; *p; p++) *p = *p == '_' ? '-' : *p;
    o.letter = letter_of(f->name);
    if (o.kind == CLI_IS_INT) o.value = "N";
    if (o.kind == CLI_IS_REAL) o.value = "X";
    if (o.kind == CLI_IS_TEXT) {
        o.help = value_name(f, at->value, &o.kind);
        o.value = at->value;
    }
    return o;
}

static int count_fields(const fv_field *table)
{
    int n = 0;
    while (table && table[n].name) n++;
    return n;
}

/* Own options first, then those of the task, then those of generating: the order of the help. */
bool cli_next(const cli_command *cmd, cli_each *at)
{
    int own = 0, task = count_fields(cmd->task_fields), i = at->n++;
    while (cmd->options && cmd->options[own].name) own++;
    if (i < own) {
        at->option = cmd->options[i];
    } else if (i < own + task) {
        at->option = of_field(&cmd->task_fields[i - own], at);
        at->option.has_default = true;
    } else {
        if (i - own - task >= count_fields(cmd->fields)) return false;
        at->option = of_field(&cmd->fields[i - own - task], at);
    }
    return true;
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

/* The default is added where it says something: 0, no text and "off" are what one expects. */
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

    if (o->field && o->has_default) {
        const fv_field *f = o->field;
        bool in_range = f->normal >= f->least && f->normal <= f->greatest;
        if (o->kind == CLI_IS_INT && in_range) whole = (int64_t)f->normal;
        if (o->kind == CLI_IS_REAL && in_range) real = f->normal;
        if (o->kind >= CLI_IS_TEXT && o->kind <= CLI_IS_DIR && f->text && *f->text) text = f->text;
        choice = (int)f->normal;
    }
    if (whole)
        snprintf(out, size, "%s (default %lld)", o->help, (long long)whole);
    else if (real != 0)
        snprintf(out, size, "%s (default %g)", o->help, real);
    else if (text)
        snprintf(out, size, "%s (default %s)", o->help, text);
    else if (o->kind == CLI_IS_CHOICE && (!o->field || o->has_default))
        snprintf(out, size, "%s (default %s)", o->help, o->words[choice]);
    else
        snprintf(out, size, "%s", o->help);
}
