/* tag.c - fovea tag: entities in texts, as spans. */
#include <stdio.h>

#include "json.h"
#include "texts.h"

typedef struct tag_values {
    cli_model model;
    int join; /* fv_join */
    bool json;
} tag_values;

static const char *const joins[] = {"first", "simple", NULL}; /* in the order of fv_join */

static const cli_option options[] = {
    CLI_MODEL(tag_values),
    CLI_CHOICE(tag_values, join, 0, "aggregation", joins,
               "what is joined: words by their first token, or tokens as they are"),
    CLI_FLAG(tag_values, json, 0, "json", "one JSON object a line: text and entities"),
    {0},
};

static const cli_example examples[] = {
    {"echo 'Angela Merkel was born in Hamburg.' | fovea tag -m bert-ner",
     "line, from, to, label, probability, words"},
    {"fovea tag -m bert-ner --json < news.txt", "for scripts"},
    {0},
};

static json_t *entity(const fv_entity *x)
{
    return json_pack("{s:s, s:o, s:I, s:I, s:s%}", "label", x->label, "score",
                     cli_json_number((double)x->score), "start", (json_int_t)x->from, "end",
                     (json_int_t)x->to, "text", x->s, x->n);
}

static int print_json(const cli *c, const cli_texts *texts, const fv_entity *found, int64_t n)
{
    int code = CLI_OK;
    for (int64_t i = 0, at = 0; i < texts->n && code == CLI_OK; i++) {
        json_t *list = json_array();
        for (; at < n && found[at].text == i; at++) json_array_append_new(list, entity(&found[at]));
        code = cli_print_json(c, json_pack("{s:s%, s:o}", "text", texts->at[i].s, texts->at[i].n,
                                           "entities", list));
    }
    return code;
}

static void print_plain(const fv_entity *x)
{
    printf("%lld\t%lld\t%lld\t%s\t%.6f\t", (long long)x->text + 1, (long long)x->from,
           (long long)x->to, x->label, (double)x->score);
    cli_print_flat(x->s, x->n);
    printf("\n");
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const tag_values *v = values;
    cli_task t;
    cli_texts texts = {0};
    fv_entity *found;
    int64_t n_found;
    fv_err e;
    int code = cli_open_task(c, &t, &v->model, FV_JOB_TAG);
    if (code == CLI_OK) code = cli_read_texts(c, n ? operand[0] : NULL, 0, &texts);
    if (code == CLI_OK &&
        fv_task_tag(t.task, texts.at, texts.n, (fv_join)v->join, &found, &n_found, &e))
        code = cli_error(c, &e);
    if (code == CLI_OK && v->json) code = print_json(c, &texts, found, n_found);
    for (int64_t i = 0; code == CLI_OK && !v->json && i < n_found; i++) print_plain(&found[i]);
    cli_free_texts(&texts);
    cli_close_task(&t);
    return code;
}

const cli_command tag_command = {
    .name = "tag",
    .summary = "entities in texts, as spans",
    .about = "Reads lines and prints the entities in each: where they stand (in characters of the "
             "line), their label and its mean "
             "probability.  A word has the label of its first token, which is what taggers learn; "
             "words with one label are joined, B- "
             "begins a new entity, and O is left out: transformers' aggregation \"first\".  With "
             "\"simple\" every token goes by its "
             "own "
             "label.  Texts longer than the model sees are cut.",
    .options = options,
    .size = sizeof(tag_values),
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
