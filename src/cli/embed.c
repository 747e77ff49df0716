/* embed.c - fovea embed: a vector for each line of text. */
#include <stdio.h>
#include <stdlib.h>

#include "fovea/array.h"
#include "json.h"
#include "texts.h"

typedef struct embed_values {
    cli_model model;
    int pool;
    bool raw, json;
    const char *output;
} embed_values;

static const char *const pools[] = {"given", "mean", "cls", "max", NULL}; /* fv_pool */

static const cli_option options[] = {
    CLI_MODEL(embed_values),
    CLI_CHOICE(embed_values, pool, 'p', "pool", pools,
               "how a text's tokens become one vector; given: as 1_Pooling/config.json says, else "
               "their mean"),
    CLI_FLAG(embed_values, raw, 0, "raw", "do not scale vectors to length 1"),
    CLI_FILE(embed_values, output, 'o', "output", "FILE",
             "write them as one array instead: x.npy or x.csv"),
    CLI_FLAG(embed_values, json, 0, "json", "one JSON object a line: text and embedding"),
    {0},
};

static const cli_example examples[] = {
    {"fovea embed -m all-MiniLM-L6-v2 sentences.txt -o vectors.npy",
     "a row for each line of the file"},
    {"echo 'a dog runs' | fovea embed -m all-MiniLM-L6-v2 --json", "one vector as JSON"},
    {"fovea embed -m bert-base-uncased --pool cls sentences.txt",
     "the first token's state, from any encoder"},
    {0},
};

static int print(const cli *c, const embed_values *v, const cli_texts *t, const float *x,
                 int64_t width)
{
    fv_err e;
    if (v->output) {
        fv_array a = {.shape = FV_SHAPE(t->n, width), .data = (float *)x};
        return fv_array_save(&a, NULL, v->output, &e) ? cli_error(c, &e) : CLI_OK;
    }
    for (int64_t i = 0; i < t->n; i++, x += width) {
        if (v->json) {
            json_t *row = json_array();
            for (int64_t j = 0; j < width; j++)
                json_array_append_new(row, cli_json_number((double)x[j]));
            int code = cli_print_json(c, json_pack("{s:s%, s:o}", "text", t->at[i].s, t->at[i].n,
                                                   "embedding", row));
            if (code != CLI_OK) return code;
            continue;
        }
        for (int64_t j = 0; j < width; j++) printf("%s%.9g", j ? " " : "", (double)x[j]);
        printf("\n");
    }
    return CLI_OK;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const embed_values *v = values;
    cli_task t;
    cli_texts texts = {0};
    float *x = NULL;
    fv_err e;
    int code = cli_open_task(c, &t, &v->model, FV_JOB_EMBED);
    if (code == CLI_OK) code = cli_read_texts(c, n ? operand[0] : NULL, 0, &texts);
    if (code == CLI_OK) {
        int64_t width = fv_task_width(t.task);
        x = calloc((size_t)(texts.n * width), sizeof *x);
        if (!x)
            code = cli_fail(c, "out of memory");
        else if (fv_task_embed(t.task, texts.at, texts.n,
                               (fv_embed_opt){.pool = (fv_pool)v->pool, .raw = v->raw}, x, &e))
            code = cli_error(c, &e);
        else
            code = print(c, v, &texts, x, width);
    }
    free(x);
    cli_free_texts(&texts);
    cli_close_task(&t);
    return code;
}

const cli_command embed_command = {
    .name = "embed",
    .summary = "a vector for each line of text",
    .about = "Reads lines and prints a vector for each, as sentence-transformers computes it: the "
             "states of a text's tokens are "
             "averaged (or the first is taken, as the directory says) and scaled to length 1, so "
             "that a product of two vectors "
             "is their cosine.  Texts longer than the model sees are cut.",
    .options = options,
    .size = sizeof(embed_values),
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
