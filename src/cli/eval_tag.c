/* eval_tag.c - entities as conlleval counts them, on a file of CoNLL columns. */
#include "eval.h"

#include <stdlib.h>
#include <string.h>

typedef struct work {
    const cli *c;
    const eval_values *v;
    cli_task model;
    fv_tagged *text;
    fv_entities found;
    FILE *predictions;
} work;

/* Compares sentence i; labels: what the model gave its words. */
static int count(work *w, int64_t i, const int32_t *labels)
{
    const char *const *word, *const *tag;
    int64_t line, n = fv_tagged_sentence(w->text, i, &word, &tag, &line);
    const char **given = calloc((size_t)n, sizeof *given);
    if (!given) return cli_fail(w->c, "out of memory");
    for (int64_t k = 0; k < n; k++)
        given[k] = labels[k] < 0 ? "O" : fv_task_label(w->model.task, labels[k]);
    fv_entities_add(&w->found, tag, given, n);
    for (int64_t k = 0; k < n && w->predictions; k++)
        fprintf(w->predictions, "%s %s %s\n", word[k], tag[k], given[k]);
    if (w->predictions) fputc('\n', w->predictions);
    free(given);
    return CLI_OK;
}

static int run_slice(void *user, int64_t from, int64_t n)
{
    work *w = user;
    fv_err e;
    int64_t words = 0, line;
    const char *const *tag;
    fv_sentence *s = calloc((size_t)n, sizeof *s);
    int code = s ? CLI_OK : cli_fail(w->c, "out of memory");
    for (int64_t i = 0; code == CLI_OK && i < n; words += s[i++].n)
        s[i].n = fv_tagged_sentence(w->text, from + i, &s[i].word, &tag, &line);
    int32_t *labels = calloc((size_t)words + 1, sizeof *labels);
    if (code == CLI_OK && !labels) code = cli_fail(w->c, "out of memory");
    if (code == CLI_OK && fv_task_tag_words(w->model.task, s, n, labels, &e))
        code = cli_error(w->c, &e);
    for (int64_t i = 0, at = 0; code == CLI_OK && i < n; at += s[i++].n)
        code = count(w, from + i, labels + at);
    free(labels);
    free(s);
    return code;
}

static double word_accuracy(const fv_entities *x)
{
    return 100 * (double)x->right_words / (double)x->words;
}

static int print_json(const work *w)
{
    const fv_entities *x = &w->found;
    json_t *types = json_array();
    for (int i = 0; i < x->n; i++) {
        json_t *one = eval_match_json(x->type[i].match);
        json_object_set_new(one, "type", json_string(x->type[i].name));
        json_array_append_new(types, one);
    }
    json_t *all = eval_match_json(x->all);
    json_object_update_new(all, json_pack("{s:s, s:I, s:I, s:f, s:o}", "task", "tag", "records",
                                          (json_int_t)fv_tagged_count(w->text), "words",
                                          (json_int_t)x->words, "accuracy", word_accuracy(x),
                                          "types", types));
    return cli_print_json(w->c, all);
}

static void print_plain(const work *w)
{
    const fv_entities *x = &w->found;
    int width = 8;
    for (int i = 0; i < x->n; i++)
        width = (int)strlen(x->type[i].name) > width ? (int)strlen(x->type[i].name) : width;
    printf("%-*s %9.2f  of %lld words in %lld sentences\n", width, "accuracy", word_accuracy(x),
           (long long)x->words, (long long)fv_tagged_count(w->text));
    eval_row(NULL, width, (fv_match){0});
    eval_row("entities", width, x->all);
    for (int i = 0; i < x->n; i++) eval_row(x->type[i].name, width, x->type[i].match);
}

static int run(const cli *c, const eval_values *v, const char *file)
{
    fv_err e;
    fv_data_report report = {0};
    work w = {.c = c, .v = v};
    if (!file) return cli_usage(c, "a file of words with their tags is needed");
    fv_records from = eval_records(v, file);
    int code = cli_open_task(c, &w.model, &v->model, FV_JOB_TAG);
    if (code == CLI_OK && fv_tagged_open(&w.text, NULL, &from, &report, &e))
        code = cli_error(c, &e);
    if (code == CLI_OK) code = eval_open_predictions(c, v, &w.predictions);
    if (code == CLI_OK) code = eval_in_slices(v, fv_tagged_count(w.text), run_slice, &w);
    code = eval_close_predictions(c, v, w.predictions, code);
    if (code == CLI_OK && v->json)
        code = print_json(&w);
    else if (code == CLI_OK)
        print_plain(&w);
    fv_tagged_close(w.text);
    cli_close_task(&w.model);
    return code;
}

static const char *const heads[] = {"ForTokenClassification", NULL};
const eval_kind eval_tag = {.name = "tag", .heads = heads, .run = run};
