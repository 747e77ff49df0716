/* options.c - parsing: --name=value, --name value, -n value, -nvalue, -ab for flags, -- ends the
 * options.
 *
 * Parsing is a walk over argv with two rules: "--" ends options, and operands may stand between
 * them. A value is checked against its table entry at once, so the message can name option, value
 * and what was expected. getopt_long lost: it knows neither ranges nor choices, and cannot suggest
 * the option that was meant. */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static bool by_name(const cli_command *cmd, const char *name, size_t len, cli_each *at)
{
    for (*at = (cli_each){0}; cli_next(cmd, at);)
        if (!strncmp(at->option.name, name, len) && !at->option.name[len]) return true;
    return false;
}

static bool by_letter(const cli_command *cmd, char letter, cli_each *at)
{
    for (*at = (cli_each){0}; cli_next(cmd, at);)
        if (at->option.letter == letter) return true;
    return false;
}

static int unknown(const cli *c, const cli_command *cmd, const char *name, size_t len)
{
    cli_each all[94]; /* their names must stay for as long as the list */
    const char *names[96] = {"help"};
    char word[64];
    size_t n = 0;
    for (cli_each at = {0}; n < 94 && cli_next(cmd, &at); n++) {
        all[n] = at;
        names[n + 1] = at.option.field ? all[n].name : at.option.name;
    }
    names[n + 1] = NULL;
    snprintf(word, sizeof word, "%.*s", (int)len, name);
    const char *suggestion = fv_closest(word, names);
    if (suggestion)
        return cli_usage(c, "unknown option '--%s'; did you mean '--%s'?", word, suggestion);
    return cli_usage(c, "unknown option '--%s'; see '%s --help'", word, c->name);
}

/* ---- values ---- */

static int store_number(const cli *c, const cli_option *o, void *at, const char *value)
{
    char *end;
    errno = 0;
    if (o->kind == CLI_IS_INT) {
        int64_t x = strtoll(value, &end, 10);
        if (end == value || *end || errno || (double)x < o->least || (double)x > o->greatest)
            return cli_usage(c, "--%s wants a whole number from %.0f to %.0f, not '%s'", o->name,
                             o->least, o->greatest, value);
        *(int64_t *)at = x;
    } else {
        double x = strtod(value, &end);
        if (end == value || *end || isnan(x) || x < o->least || x > o->greatest)
            return cli_usage(c, "--%s wants a number from %g to %g, not '%s'", o->name, o->least,
                             o->greatest, value);
        *(double *)at = x;
    }
    return CLI_OK;
}

static int store_choice(const cli *c, const cli_option *o, void *at, const char *value)
{
    char all[256];
    for (int i = 0; o->words[i]; i++)
        if (!strcmp(o->words[i], value)) {
            *(int *)at = i;
            return CLI_OK;
        }
    cli_value_text(all, sizeof all, o);
    return cli_usage(c, "--%s wants one of %s, not '%s'", o->name, all, value);
}

static int store_more(const cli *c, const cli_option *o, cli_list *list, const char *value)
{
    const int most = (int)(sizeof list->at / sizeof *list->at);
    if (list->n == most) return cli_usage(c, "--%s is given more than %d times", o->name, most);
    list->at[list->n++] = value;
    return CLI_OK;
}

/* A key of a field table: checked now, applied by the command once it knows what lies below (the
 * model's own settings). */
static int store_setting(const cli *c, const cli_option *o, cli_settings *s, const fv_field *table,
                         const char *value)
{
    union {
        max_align_t align;
        char bytes[32768];
    } storage = {0};
    fv_err e;
    if (o->field->offset + o->field->size > sizeof storage ||
        s->n == (int)(sizeof s->at / sizeof *s->at))
        return cli_usage(c, "--%s: too many settings", o->name);
    /* greedy, which the table of sampling has no value for */
    char *end;
    bool greedy = !strcmp(o->field->name, "temperature") && strtod(value, &end) == 0 &&
                  end != value && !*end;
    if (!greedy && fv_fields_set(&storage, table, o->field->name, value, &e)) {
        /* behind the key, which is not how the option is written */
        const char *why = strchr(e.text, ':');
        return cli_usage(c, "--%s%s", o->name, why ? why : e.text);
    }
    s->at[s->n].key = o->field->name;
    s->at[s->n++].value = value;
    return CLI_OK;
}

int cli_apply(const cli *c, const cli_settings *s, void *obj, const fv_field *table)
{
    fv_err e;
    for (int i = 0; i < s->n; i++)
        if (fv_fields_set(obj, table, s->at[i].key, s->at[i].value, &e)) return cli_error(c, &e);
    return CLI_OK;
}

static int store(const cli *c, const cli_command *cmd, const cli_option *o, void *values,
                 const char *value)
{
    if (o->field)
        return store_setting(c, o, (cli_settings *)((char *)values + cmd->settings),
                             o->has_default ? cmd->task_fields : cmd->fields,
                             value ? value : "true");
    void *at = (char *)values + o->at;
    switch (o->kind) {
    case CLI_IS_FLAG: *(bool *)at = true; return CLI_OK;
    case CLI_IS_INT:
    case CLI_IS_REAL: return store_number(c, o, at, value);
    case CLI_IS_CHOICE: return store_choice(c, o, at, value);
    case CLI_IS_LIST: return store_more(c, o, at, value);
    default: *(const char **)at = value; return CLI_OK;
    }
}

/* One "--..." argument; *used counts the arguments it took. */
static int parse_long(const cli *c, const cli_command *cmd, void *values, char **argv, int *used,
                      bool *help)
{
    const char *name = argv[0] + 2, *value = strchr(name, '=');
    size_t len = value ? (size_t)(value - name) : strlen(name);
    cli_each found;
    const cli_option *o = by_name(cmd, name, len, &found) ? &found.option : NULL;
    *used = 1;
    if (!o && !strcmp(name, "help")) {
        *help = true;
        return CLI_OK;
    }
    if (!o) return unknown(c, cmd, name, len);
    if (value && o->kind == CLI_IS_FLAG && !o->field)
        return cli_usage(c, "--%s takes no value", o->name);
    if (value)
        value++;
    else if (o->kind != CLI_IS_FLAG) {
        char what[256];
        cli_value_text(what, sizeof what, o);
        if (!argv[1]) return cli_usage(c, "--%s needs a value: %s", o->name, what);
        value = argv[1];
        *used = 2;
    }
    return store(c, cmd, o, values, value);
}

/* One "-..." argument: flags in a row, the last of them may take a value. */
static int parse_short(const cli *c, const cli_command *cmd, void *values, char **argv, int *used,
                       bool *help)
{
    *used = 1;
    for (const char *p = argv[0] + 1; *p; p++) {
        cli_each found;
        const cli_option *o = by_letter(cmd, *p, &found) ? &found.option : NULL;
        if (!o && *p == 'h') {
            *help = true;
            return CLI_OK;
        }
        if (!o) return cli_usage(c, "unknown option '-%c'; see '%s --help'", *p, c->name);
        const char *value = NULL;
        if (o->kind != CLI_IS_FLAG) {
            value = p[1] ? p + 1 : argv[1];
            if (!value) return cli_usage(c, "-%c needs a value", *p);
            if (!p[1]) *used = 2;
        }
        int code = store(c, cmd, o, values, value);
        if (code || value) return code;
    }
    return CLI_OK;
}

int cli_parse(const cli *c, const cli_command *cmd, void *values, int argc, char **argv, int *n,
              bool *help)
{
    *n = 0;
    for (int i = 0, used; i < argc; i += used) {
        int code = CLI_OK;
        used = 1;
        if (!strcmp(argv[i], "--")) {
            while (++i < argc) argv[(*n)++] = argv[i];
            break;
        }
        if (!strncmp(argv[i], "--", 2))
            code = parse_long(c, cmd, values, argv + i, &used, help);
        else if (argv[i][0] == '-' && argv[i][1])
            code = parse_short(c, cmd, values, argv + i, &used, help);
        else
            argv[(*n)++] = argv[i];
        if (code || *help) return code;
    }
    if (*n > cmd->max_operands)
        return cli_usage(c, "'%s' is one argument too many; see '%s --help'",
                         argv[cmd->max_operands], c->name);
    if (*n < cmd->min_operands)
        return cli_usage(c, "an argument is missing: %s %s", c->name, cmd->operands);
    return CLI_OK;
}
