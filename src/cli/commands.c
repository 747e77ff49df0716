/* commands.c - the table of commands, and the way down to one. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

/* One line for each command. */
/* clang-format off */
extern const cli_command answer_command;
extern const cli_command attend_command;
extern const cli_command bench_command;
extern const cli_command chat_command;
extern const cli_command classify_command;
extern const cli_command demo_command;
extern const cli_command embed_command;
extern const cli_command eval_command;
extern const cli_command fill_command;
extern const cli_command forward_command;
extern const cli_command generate_command;
extern const cli_command info_command;
extern const cli_command quantize_command;
extern const cli_command score_command;
extern const cli_command see_command;
extern const cli_command summarize_command;
extern const cli_command tag_command;
extern const cli_command tokenize_command;
extern const cli_command tokenizer_command;
extern const cli_command train_command;
extern const cli_command translate_command;
extern const cli_command help_command;

static const cli_command *const commands[] = {
    &answer_command,
    &attend_command,
    &bench_command,
    &chat_command,
    &classify_command,
    &demo_command,
    &embed_command,
    &eval_command,
    &fill_command,
    &forward_command,
    &generate_command,
    &info_command,
    &quantize_command,
    &score_command,
    &see_command,
    &summarize_command,
    &tag_command,
    &tokenize_command,
    &tokenizer_command,
    &train_command,
    &translate_command,
    &help_command,
    NULL,
};
/* clang-format on */

const cli_command cli_root = {
    .name = "fovea",
    .summary = "self-attention in C: compute it, train it, look at it",
    .about = "fovea is a library and a program for models built on self-attention.  Each command "
             "below does one thing; "
             "\"fovea help COMMAND\" explains it and shows examples.\n\n"
             "The environment variable FOVEA_CPU forces the kernels of one instruction level "
             "(\"fovea info\" lists them).",
    .subs = commands,
};

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

const cli_command *cli_find(char **words, int n_words, int *n, cli_path *path)
{
    const cli_command *cmd = &cli_root, *next;
    *path = (cli_path){"fovea"};
    for (*n = 0; *n < n_words && (next = cli_sub(cmd, words[*n])); ++*n) {
        cmd = next;
        *path = cli_below(path->s, cmd->name);
    }
    return cmd;
}
