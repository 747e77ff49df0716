/* task.c - a command for each task of the library: parses, reads lines, prints results.
 *
 * Lines are read as they come and results printed as they are done, so memory stays flat and the
 * command can be used in a conversation.  A line that fails is named on standard error; the others
 * go on, and the exit code says that some failed.
 *
 * A task of the library is a table (fv_task_kind): name, options as fields, flags that say what a
 * record is. From it come the command, its parser and its help, so a new task is a new command
 * without a line here. What a record is decides how input is found: texts come by argument, by
 * file or by standard input; images and sounds are named on the command line, also as folders;
 * files that are records (forecast, recommend) are named, never read as lists of names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

typedef struct task_values {
    cli_model model;
    cli_settings settings;
    cli_list texts;
    const char *file;
    int64_t batch;
    bool whole, json, stats, tensor_parallel, pipeline_parallel;
} task_values;

static const cli_option options[] = {
    CLI_MODEL(task_values),
    CLI_LIST(task_values, texts, 0, "text", "TEXT", "a text, instead of a file; may be repeated"),
    CLI_FILE(task_values, file, 'f', "file", "FILE", "read this file, plain or gzip"),
    CLI_FLAG(task_values, whole, 'w', "whole", "the input is one text, not one a line"),
    CLI_INT(task_values, batch, 'b', "batch", "N", 0, 4096,
            "lines that go through the model together; 0: as suits the task"),
    CLI_FLAG(task_values, json, 0, "json", "one JSON object a line"),
    CLI_FLAG(task_values, tensor_parallel, 0, "tensor-parallel",
             "by mpirun: the ranks share a model that generates, not the lines"),
    CLI_FLAG(task_values, pipeline_parallel, 0, "pipeline-parallel",
             "likewise, each rank some of its layers"),
    CLI_FLAG(task_values, stats, 0, "stats",
             "at the end, on standard error: lines, tokens and seconds, as JSON"),
    {0},
};

/* Of a task that has no input but its settings. */
static const cli_option model_options[] = {
    CLI_MODEL(task_values),
    CLI_FLAG(task_values, json, 0, "json", "results as JSON objects"),
    {0},
};

/* Of a task whose records are files. */
static const cli_option path_options[] = {
    CLI_MODEL(task_values),
    CLI_FILE(task_values, file, 'f', "file", "FILE", "the file, as by argument"),
    CLI_FLAG(task_values, json, 0, "json", "results as JSON objects"),
    {0},
};

/* ---- results ---- */

enum { TOGETHER = 4096, MOST_ERRORS = 20 }; /* lines read at once; failures that are named */

typedef struct printing {
    const cli *c;
    const char *file;   /* NULL: standard input */
    char *const *names; /* of images, instead of numbers of lines; NULL: there are none */
    bool label;         /* results begin with the image's name: there are several, and no JSON */
    const char *path;   /* of a task whose record is a file; messages of the library name it */
    bool numbered;      /* lines have numbers worth naming */
    bool progress;
    int64_t done, failed;
    double start, shown;
} printing;

/* Monotonic: a clock that is set back must not make a negative rate. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Only on a terminal, only after two seconds, at most five times a second: a line that nobody can
 * read costs time. */
static void show_progress(printing *p)
{
    double t = now();
    if (!p->progress || t - p->start < 2 || t - p->shown < 0.2) return;
    p->shown = t;
    fprintf(stderr, "\r%lld lines, %.1f a second ", (long long)p->done,
            (double)p->done / (t - p->start));
}

static void clear_progress(printing *p)
{
    if (p->shown > 0) fprintf(stderr, "\r%40s\r", "");
    p->shown = 0;
}

/* "fovea tag: news.txt: line 3", or "fovea classify: cat.jpg: " unless the text says it itself. */
static void name_line(const printing *p, int64_t line, const char *text)
{
    const char *file = p->names ? p->names[line - 1] : p->file;
    bool numbered = p->numbered && !p->names, said = file && !strncmp(text, file, strlen(file));
    fprintf(stderr, "%s: ", p->c->name);
    if (file && !said && (p->names || numbered)) fprintf(stderr, "%s: ", file);
    if (numbered) fprintf(stderr, "line %lld", (long long)line);
}

/* Results as they come. Errors and notes go to standard error and name their record; after
 * MOST_ERRORS the count at the end stands for the rest. false, where standard output is closed,
 * ends the run. */
static bool print_result(void *user, const fv_task_result *r)
{
    printing *p = user;
    if (r->note || r->error) clear_progress(p);
    bool numbered = p->numbered && !p->names;
    if (r->note) {
        name_line(p, r->record, r->note);
        const char *subject = numbered ? " " : "the text ";
        if (p->path) fprintf(stderr, "%s: ", p->path);
        fprintf(stderr, "%s%s\n", p->path || p->names ? "" : subject, r->note);
    }
    if (r->error && p->failed++ < MOST_ERRORS) {
        name_line(p, r->record, r->error->text);
        fprintf(stderr, "%s%s\n", numbered ? ": " : "", r->error->text);
    }
    const char *label = p->names && p->label && r->n ? p->names[r->record - 1] : NULL;
    if (label) printf("%s\t", label);
    fwrite(r->text, 1, r->n, stdout);
    p->done += !r->more;
    show_progress(p);
    return !fflush(stdout) && !ferror(stdout);
}

/* ---- input ---- */

/* Texts that are there already. They may hold line ends: each is one record. */
static int run_texts(printing *out, fv_pipeline *p, const fv_task_kind *k, const char *const *text,
                     int n)
{
    fv_line *lines = malloc((size_t)n * sizeof *lines);
    fv_err e;
    if (!lines) return cli_fail(out->c, "out of memory for %d texts", n);
    for (int i = 0; i < n; i++)
        lines[i] = fv_line_of(text[i], strlen(text[i]), i + 1,
                              (fv_reader_opt){.pairs = k->pairs, .whole = true});
    out->numbered = n > 1;
    int failed = fv_pipeline_run_lines(p, lines, n, print_result, out, &e) != FV_OK;
    free(lines);
    return failed ? cli_error(out->c, &e) : CLI_OK;
}

/* Takes what is waiting, up to TOGETHER lines, so that a program may talk with the command over a
 * pipe and a large file is still read in large pieces. */
static int run_file(printing *out, fv_pipeline *p, const fv_task_kind *k, bool whole)
{
    fv_reader *r;
    fv_err e;
    const fv_line *lines;
    int64_t n = 1, all = 0;
    int code = CLI_OK;
    fv_reader_opt how = {.pairs = k->pairs && !whole, .whole = whole};
    if (fv_reader_open(&r, NULL, out->file, how, &e)) return cli_error(out->c, &e);
    out->numbered = !whole;
    while (n && code == CLI_OK && !ferror(stdout)) {
        if (fv_reader_next(r, TOGETHER, &lines, &n, &e) ||
            (n && fv_pipeline_run_lines(p, lines, n, print_result, out, &e)))
            code = cli_error(out->c, &e);
        all += n;
    }
    fv_reader_close(r);
    if (code == CLI_OK && !all && !k->may_be_empty)
        code = cli_fail(out->c, "%s: no text in it", out->file ? out->file : "standard input");
    return code;
}

static bool is_given(const cli_settings *s, const char *key)
{
    for (int i = 0; key && i < s->n; i++)
        if (!strcmp(s->at[i].key, key)) return true;
    return false;
}

/* The path of a task whose record is a file, as its one text; none where a setting replaces it. */
static int choose_path(const cli *c, const task_values *v, int n, char **operand, cli_list *texts,
                       const char **file)
{
    const fv_task_kind *k = c->command->more;
    const char *path = n ? operand[0] : v->file;
    bool instead = is_given(&v->settings, k->instead);
    if (n && v->file)
        return cli_usage(c, "--file %s and '%s' are one file too many", v->file, path);
    if (!path == !instead)
        return cli_usage(c, k->instead ? "either a FILE or --%s is needed" : "a FILE is needed",
                         k->instead);
    if (path) texts->at[texts->n++] = path;
    *file = NULL;
    return CLI_OK;
}

/* Which of the three ways a text is given: by argument, by file, by standard input. */
static int choose_input(const cli *c, const task_values *v, int n, char **operand,
                        const cli_images *images, cli_list *texts, const char **file)
{
    const fv_task_kind *k = c->command->more;
    *texts = v->texts;
    *file = v->file;
    if (images->n && !k->files && (texts->n || *file))
        return cli_usage(c, "'%s' and a text or --file are one input too many", operand[0]);
    if (images->n || k->no_records) return CLI_OK;
    if (k->path) return choose_path(c, v, n, operand, texts, file);
    if (n > 1) return cli_usage(c, "'%s' is neither an image nor a folder nor a sound", operand[0]);
    if (n && k->prompt)
        texts->at[texts->n++] = operand[0];
    else if (n && v->file)
        return cli_usage(c, "--file %s and '%s' are one file too many", v->file, operand[0]);
    else if (n)
        *file = operand[0];
    if (texts->n && *file)
        return cli_usage(c, "a text and a file (%s) are one input too many", *file);
    return CLI_OK;
}

/* Results of the last step (totals, files) come only if all records were handed in: finish is not
 * called after a failure. */
static int run_all(const cli *c, const task_values *v, fv_pipeline *p, printing *out,
                   const cli_list *texts, const cli_images *images)
{
    const fv_task_kind *k = c->command->more;
    fv_err e;
    if (images->n) {
        int failed = run_texts(out, p, k, (const char *const *)images->path, images->n);
        if (failed == CLI_OK && fv_pipeline_finish(p, print_result, out, &e))
            failed = cli_error(c, &e);
        return failed;
    }
    /* a file that holds a prompt holds one; a file of texts has one on each line */
    bool whole = v->whole || (k->prompt && out->file);
    int code = CLI_OK;
    if (texts->n)
        code = run_texts(out, p, k, texts->at, texts->n);
    else if (!k->path && !k->no_records)
        code = run_file(out, p, k, whole);
    if (code == CLI_OK && !ferror(stdout) && fv_pipeline_finish(p, print_result, out, &e))
        code = cli_error(c, &e);
    return code;
}

/* What several ranks cannot share: an input that only one of them has, and a result of all records
 * that is not made of theirs. */
static int check_ranks(const cli *c, const printing *out, const cli_list *texts,
                       const cli_images *images)
{
    const fv_task_kind *k = c->command->more;
    if (!texts->n && !images->n && !k->no_records && (!out->file || !strcmp(out->file, "-")))
        return cli_usage(c, "several ranks need a FILE: standard input goes to rank 0 alone");
    if (k->path || k->files || k->no_records || (k->finish && !k->add))
        return cli_usage(c, "this runs on one rank: its result is made of all records");
    return CLI_OK;
}

/* The input is found before the model is opened: a misspelt file should not cost the time that
 * loading takes. */
static int run(const cli *c, const void *values, int n, char **operand)
{
    const task_values *v = values;
    const fv_task_kind *k = c->command->more;
    fv_device *d = NULL;
    fv_pipeline *p = NULL;
    fv_err e;
    cli_list texts;
    cli_images images = {0};
    printing out = {.c = c, .progress = isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO)};
    fv_comm *comm;
    if (fv_comm_open(&comm, NULL, (fv_comm_opt){0}, &e)) return cli_error(c, &e);
    int code = k->images || k->files ? cli_find_images(c, &images, n, operand) : CLI_OK;
    if (code == CLI_OK) code = choose_input(c, v, n, operand, &images, &texts, &out.file);
    if (code == CLI_OK && comm) code = check_ranks(c, &out, &texts, &images);
    out.names = images.path;
    out.label = images.n > 1 && !v->json && !k->files;
    if (code == CLI_OK && k->path && texts.n) out.path = texts.at[0];
    fv_pipeline_opt how = {.task = k->name,
                           .model = v->model.dir,
                           .settings = v->settings.at,
                           .n_settings = v->settings.n,
                           .json = v->json,
                           .whole = v->whole,
                           .batch = v->batch,
                           .comm = comm,
                           .tensor_parallel = v->tensor_parallel,
                           .pipeline_parallel = v->pipeline_parallel};
    cli_choose_weights(v->model.dtype, &how.weights, &how.widen);
    cli_adapters adapters;
    if (code == CLI_OK) code = cli_take_adapters(c, &v->model.adapters, &adapters, &how.adapters);
    double start = now();
    if (code == CLI_OK) cli_name_ignored(c, v->model.verbose, v->model.dir);
    if (code == CLI_OK && !k->no_model)
        code = cli_open_device(c, &d, v->model.device, v->model.threads);
    code = cli_agree(c, comm, code);
    if (code == CLI_OK && fv_pipeline_open(&p, d, how, &e)) code = cli_error(c, &e);
    out.start = now();
    if (code == CLI_OK) code = run_all(c, v, p, &out, &texts, &images);
    clear_progress(&out);
    if (out.failed > MOST_ERRORS)
        cli_fail(c, "%lld of %lld lines failed", (long long)out.failed, (long long)out.done);
    if (code == CLI_OK && v->stats && (!how.comm || out.done))
        fprintf(stderr, "{\"lines\":%lld,\"tokens\":%lld,\"open_seconds\":%.3f,\"seconds\":%.3f}\n",
                (long long)out.done, (long long)fv_pipeline_tokens(p), out.start - start,
                now() - out.start);
    fv_pipeline_close(p);
    fv_comm_close(comm);
    fv_device_close(d);
    cli_free_images(&images);
    return code == CLI_OK && out.failed ? CLI_FAILED : code;
}

/* ---- the commands ---- */

enum { MOST_TASKS = 64 };

/* Which of its own options a command has besides those of the task's table. */
static const cli_option *options_of(const fv_task_kind *k)
{
    if (k->no_model) return NULL;
    if (k->no_records) return model_options;
    return k->path ? path_options : options;
}

static const char *operands_of(const fv_task_kind *k)
{
    if (k->no_records) return NULL;
    if (k->files) return "[FILE | FOLDER...]";
    if (k->prompt) return "[PROMPT]";
    if (k->path && !k->instead) return k->path;
    return k->images ? "[FILE | IMAGE...]" : "[FILE]";
}

const cli_command *cli_task_command(int i)
{
    static cli_command commands[MOST_TASKS];
    const fv_task_kind *k = i < MOST_TASKS ? fv_task_kind_at(i) : NULL;
    if (!k) return NULL;
    commands[i] = (cli_command){.name = k->name,
                                .summary = k->summary,
                                .about = k->about,
                                .options = options_of(k),
                                .size = sizeof(task_values),
                                .task_fields = k->options,
                                .fields = k->generates ? fv_gen_fields : NULL,
                                .settings = offsetof(task_values, settings),
                                .operands = operands_of(k),
                                .max_operands = k->images || k->files ? 4096 : !k->no_records,
                                .examples = k->examples,
                                .more = k,
                                .run = run};
    return &commands[i];
}
