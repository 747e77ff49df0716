/* cli.h - what a command of the program is made of.
 *
 * A command is one file with one cli_command: what it does, its options, examples and a function.
 * The same tables drive the parser, --help, the manual pages and the shell completions, so they
 * cannot disagree.  To add a command, write src/cli/NAME.c with a NAME_command: CMake lists the
 * files of the folder, except those with an underscore in their names, which are parts of others.
 * The files of program/ are what all commands stand on; none of them calls a command, except main.c
 * through that list.
 *
 * Results go to standard output, messages to standard error.  A command exits with CLI_OK, with
 * CLI_FAILED when the work could not be done, with CLI_USAGE when it was called wrongly,
 * or with 128 + the signal that interrupted it (130 for Ctrl-C) once it has saved its work.  It
 * prints only once it can no longer fail, so a failed command writes nothing; where lines are
 * handled one by one, what it has printed stays. */
#ifndef FOVEA_CLI_H
#define FOVEA_CLI_H

#include <stddef.h>

#include "fovea/fovea.h"

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

typedef enum cli_kind {
    CLI_IS_FLAG,   /* bool */
    CLI_IS_INT,    /* int64_t */
    CLI_IS_REAL,   /* double */
    CLI_IS_TEXT,   /* const char *, NULL when absent */
    CLI_IS_FILE,   /* likewise; completed as a file name */
    CLI_IS_DIR,    /* likewise; completed as a directory */
    CLI_IS_CHOICE, /* int, an index into words */
    CLI_IS_LIST    /* cli_list: may be given again and again */
} cli_kind;

typedef struct cli_list {
    const char *at[64];
    int n;
} cli_list;

typedef struct cli_option {
    const char *name; /* "causal" for --causal */
    char letter;      /* 'c' for -c, or 0 */
    cli_kind kind;
    size_t at;                /* where the value goes in the command's struct */
    const char *value;        /* what the value is called in the help: "N", "FILE" */
    const char *help;         /* one line or a few; the default is added by itself */
    double least, greatest;   /* of numbers, both allowed */
    const char *const *words; /* of a choice, ending in NULL */
    const fv_field *field; /* of an option that stands for a key of a field table; NULL otherwise */
    bool has_default;      /* the field's default is what happens; else a model may know better */
} cli_option;

/* Entries of an option table: CLI_INT(struct, field, letter, name, value, least, greatest,
 * help). */
/* clang-format off */
#define CLI_ENTRY(s, field, letter, name, kind, value, least, greatest, help) \
    {name, letter, kind, offsetof(s, field), value, help, least, greatest, NULL, NULL, false}
#define CLI_FLAG(s, field, letter, name, help) \
    CLI_ENTRY(s, field, letter, name, CLI_IS_FLAG, NULL, 0, 0, help)
#define CLI_TEXT(s, field, letter, name, value, help) \
    CLI_ENTRY(s, field, letter, name, CLI_IS_TEXT, value, 0, 0, help)
#define CLI_FILE(s, field, letter, name, value, help) \
    CLI_ENTRY(s, field, letter, name, CLI_IS_FILE, value, 0, 0, help)
#define CLI_DIR(s, field, letter, name, value, help) \
    CLI_ENTRY(s, field, letter, name, CLI_IS_DIR, value, 0, 0, help)
#define CLI_LIST(s, field, letter, name, value, help) \
    CLI_ENTRY(s, field, letter, name, CLI_IS_LIST, value, 0, 0, help)
#define CLI_INT(s, field, letter, name, value, least, greatest, help) \
    CLI_ENTRY(s, field, letter, name, CLI_IS_INT, value, least, greatest, help)
#define CLI_REAL(s, field, letter, name, value, least, greatest, help) \
    CLI_ENTRY(s, field, letter, name, CLI_IS_REAL, value, least, greatest, help)
#define CLI_CHOICE(s, field, letter, name, words, help) \
    {name, letter, CLI_IS_CHOICE, offsetof(s, field), NULL, help, 0, 0, words, NULL, false}
/* Where to compute; NULL is the CPU. */
#define CLI_DEVICE(s, field) \
    CLI_TEXT(s, field, 'd', "device", "NAME", \
             "where to compute: cpu (unless given), cuda or cuda:N")
/* clang-format on */

/* Keys of a field table that were given as options, in this order: --num-beams 4 is num_beams,
 * "4". */
typedef struct cli_settings {
    int n;
    fv_setting at[64];
} cli_settings;

typedef fv_task_example cli_example; /* "fovea attend --causal", "each row sees only the past" */

typedef struct cli_command cli_command;

typedef struct cli {
    const char *name; /* "fovea bench gemm": messages begin with it */
    const cli_command *command;
    const cli_command *root; /* the program, with all commands below it */
} cli;

struct cli_command {
    const char *name;    /* one word */
    const char *summary; /* half a line, no full stop */
    const char *about;   /* paragraphs, an empty line between them; wrapped when printed */
    /* commands below this one, ending in NULL; then there is no run and no options */
    const cli_command *const *subs;
    void (*list)(void); /* fills subs where a table elsewhere says what is below; or NULL */

    const cli_option *options; /* ending in {0}; NULL: none */
    size_t size;               /* of the struct that holds their values */
    const void *defaults;      /* such a struct; NULL: all zero */
    /* further options, one for each key of a table, NULL: none: of a task, with defaults that
     * hold; and others, which a model's own settings come before */
    const fv_field *task_fields, *fields;
    size_t settings;      /* where those that were given go: a cli_settings in the struct */
    const char *operands; /* "[FILE]", "COMMAND..."; NULL: none are taken */
    int min_operands, max_operands;
    const cli_example *examples; /* ending in {0}; NULL: none */

    const void *more; /* for commands that share a run: what tells them apart */

    /* values: the struct, filled in; returns the exit code. */
    int (*run)(const cli *c, const void *values, int n, char **operand);
};

/* Entries of a command whose file calls its tables `options` and `examples`, its function `run`;
 * values is the struct that holds what was given. */
#define CLI_OWN(values) .options = options, .size = sizeof(values), .examples = examples, .run = run

/* The command of the library's task i, or NULL past the last. */
const cli_command *cli_task_command(int i);

/* ---- for commands ---- */

/* "fovea attend: ...", returns CLI_FAILED */
int cli_fail(const cli *c, const char *fmt, ...) FV_PRINTF(2, 3);
int cli_usage(const cli *c, const char *fmt, ...) FV_PRINTF(2, 3); /* the same, returns CLI_USAGE */
/* the text of e; returns CLI_FAILED, or CLI_USAGE where e says that options are wrong */
int cli_error(const cli *c, const fv_err *e);
/* All of a file, or of standard input where path is NULL, as one text, to be freed. */
int cli_read_text(const cli *c, const char *path, char **out);
/* threads: 0 for what OMP_NUM_THREADS says, or else all cores. */
int cli_threads(int64_t threads);
struct fv_recipe;
fv_status cli_set_keys(struct fv_recipe *r, const cli_list *set, fv_err *e); /* of --set */
/* Every rank of a job comes here before its work; one that cannot begin stops all. */
int cli_agree(const cli *c, fv_comm *comm, int code);
int cli_open_device(const cli *c, fv_device **out, const char *name, int64_t threads);

/* Puts what was given into obj; values have been checked against the table already. */
int cli_apply(const cli *c, const cli_settings *s, void *obj, const fv_field *table);

/* How the weights of products may be held, for --dtype: as they are stored, which is what comes
 * first and is meant where nothing is said; q8 and q4 with a scale for each 32, int8 with one for
 * each row. */
extern const char *const cli_weights[];
#define CLI_WEIGHTS_HELP                                                                           \
    "how weight matrices are held: as in the file, widened to f32, rounded to 16 bits, or "        \
    "quantised: q8 and q4 with one scale for 32 weights, int8 with one for a row"
/* members of fv_model_opt and its like */
void cli_choose_weights(int choice, fv_dtype *weights, bool *widen);

#define CLI_ADAPTER_HELP                                                                           \
    "directory of a PEFT adapter (LoRA, DoRA, IA3) to fold into the weights; may be repeated; "    \
    "=WEIGHT scales a LoRA"
/* What --adapter gave, as fv_model_opt takes it. */
typedef struct cli_adapters {
    fv_adapter_use use[64];
    char dir[64][512];
} cli_adapters;
int cli_take_adapters(const cli *c, const cli_list *given, cli_adapters *a, fv_adapter_list *out);

/* A model and where it runs. */
typedef struct cli_model {
    const char *dir;
    const char *device;
    int64_t threads;
    int dtype;
    cli_list adapters;
    bool verbose;
} cli_model;

/* Entries of an option table, for a struct with a cli_model called model. */
#define CLI_MODEL(s)                                                                               \
    CLI_DIR(s, model.dir, 'm', "model", "DIR",                                                     \
            "a model directory: config.json, model.safetensors and the tokenizer's files"),        \
        CLI_LIST(s, model.adapters, 0, "adapter", "DIR[=WEIGHT]", CLI_ADAPTER_HELP),               \
        CLI_CHOICE(s, model.dtype, 0, "dtype", cli_weights, CLI_WEIGHTS_HELP),                     \
        CLI_DEVICE(s, model.device),                                                               \
        CLI_INT(s, model.threads, 't', "threads", "N", 0, 4096,                                    \
                "0: as OMP_NUM_THREADS says, else all cores"),                                     \
        CLI_VERBOSE(s, model.verbose)

/* Names, where it is wanted, the keys of a model's config.json that nothing reads. */
#define CLI_VERBOSE(s, field)                                                                      \
    CLI_FLAG(s, field, 0, "verbose",                                                               \
             "also name the keys of config.json that nothing reads, on standard error")
void cli_name_ignored(const cli *c, bool verbose, const char *dir);

/* ---- for the program ---- */

/* The options of a command, its own and those of its fields, one after the other: begin with
 * {0}. */
typedef struct cli_each {
    cli_option option;
    int n;
    char name[64], value[16];
} cli_each;
bool cli_next(const cli_command *cmd, cli_each *at);

/* Where a command stands in the tree: "fovea bench gemm". */
typedef struct cli_path {
    char s[128];
} cli_path;
cli_path cli_below(const char *path, const char *name); /* "fovea bench", "gemm" */

/* Follows words down the tree; *n says how many were used. */
const cli_command *cli_find(const cli_command *root, char **words, int n_words, int *n,
                            cli_path *path);
const cli_command *cli_sub(const cli_command *parent, const char *name);
/* The command nearest to a mistyped word, or NULL. */
const char *cli_nearest_sub(const cli_command *parent, const char *word);

/* Fills in values and moves the operands to the front of argv (*n of them).  *help: --help was
 * among the options. */
int cli_parse(const cli *c, const cli_command *cmd, void *values, int argc, char **argv, int *n,
              bool *help);

/* The texts made from the tables. */
void cli_print_help(const cli_command *cmd, const char *path);
void cli_print_man(const cli_command *cmd, const char *path);
extern const char *const cli_shells[]; /* "none", "bash", "zsh", "fish", NULL */
/* shell: an index into them, not 0 */
void cli_print_completion(const cli_command *root, int shell);
/* How an option's value is written: "N", "f32|bf16"; "" for a flag. */
void cli_value_text(char *out, size_t size, const cli_option *o);
/* The option's help and its default, if there is one worth showing. */
void cli_help_text(char *out, size_t size, const cli_command *cmd, const cli_option *o);

/* ---- JSON: one object on one line of standard output (program/json.c) ---- */

/* The writer; zeroed at the start of a value. */
typedef struct cli_json {
    bool comma; /* the next value stands behind another */
} cli_json;

/* Writes values as the format says, each letter taking an argument: s text, I int64_t, i int,
 * f double (nine digits, enough for f32; null where it is not finite), b bool as int.  Brackets and
 * colons are written as they stand, commas where they belong; blanks and commas of the format are
 * for its reader.  A value may be written in several calls: "{s:[", then "i" again and again, then
 * "]}". */
void cli_json_put(cli_json *j, const char *format, ...);
void cli_json_text(cli_json *j, const char *s, size_t n); /* bytes that are not UTF-8: U+FFFD */
/* (rows,cols) as an array of arrays; null where mask (unless it is NULL) is 0. */
void cli_json_matrix(cli_json *j, const float *x, const uint8_t *mask, int64_t rows, int64_t cols);
void cli_json_end(void); /* the end of the line */

/* ---- images on the command line ---- */

typedef struct cli_images {
    char **path; /* n of them */
    int n;
} cli_images;

/* All operands, if each is an image by its name or a folder, whose images are taken in order; else
 * none. */
int cli_find_images(const cli *c, cli_images *out, int n, char **operand);
void cli_free_images(cli_images *m);

/* Copies a file to standard output. */
fv_status cli_copy_out(const char *path, fv_err *e);

#endif
