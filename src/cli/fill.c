/* fill.c - fovea fill: the likeliest words for masks in texts. */
#include <stdio.h>

#include "json.h"
#include "texts.h"

typedef struct fill_values {
    cli_model model;
    int64_t top;
    bool json;
} fill_values;

static const fill_values defaults = {.top = 5};

static const cli_option options[] = {
    CLI_MODEL(fill_values),
    CLI_INT(fill_values, top, 'k', "top", "N", 1, 1 << 20, "words for each mask, likeliest first"),
    CLI_FLAG(fill_values, json, 0, "json",
             "one JSON object a line: text and masks, a list of words for each"),
    {0},
};

static const cli_example examples[] = {
    {"echo 'Paris is the [MASK] of France.' | fovea fill -m bert-base-uncased",
     "five words with their probabilities"},
    {"echo 'Paris is the <mask> of France.' | fovea fill -m roberta-base -k 1 --json",
     "each model has its own mask"},
    {0},
};

typedef struct filled {
    fv_task *task;
    const fv_mask_found *at;
    int64_t n, top;
} filled;

/* One proposal as an object: score, token, token_str and sequence, as transformers names them. */
static json_t *proposal(const filled *f, const fv_mask_found *m, const fv_word *w, bool only,
                        fv_err *e)
{
    const fv_tok *tok = fv_task_tok(f->task);
    char *word = NULL, *line = NULL;
    size_t word_n = 0, line_n = 0;
    int64_t n;
    const int32_t *ids = fv_task_filled(f->task, m, w->id, &n);
    json_t *o = NULL;
    if (!fv_tok_decode(tok, &word, &word_n, &w->id, 1, false, e) &&
        !fv_tok_decode(tok, &line, &line_n, ids, n, only, e))
        o = json_pack("{s:o, s:i, s:s%, s:s%}", "score", cli_json_number((double)w->score), "token",
                      (int)w->id, "token_str", word, word_n, "sequence", line, line_n);
    if (word) fv_tok_free_text(tok, word, word_n);
    if (line) fv_tok_free_text(tok, line, line_n);
    return o;
}

/* The masks [from, to) of one text; NULL with e filled. */
static json_t *masks_of(const filled *f, int64_t from, int64_t to, fv_err *e)
{
    json_t *masks = json_array();
    for (int64_t i = from; i < to; i++) {
        json_t *words = json_array();
        json_array_append_new(masks, words);
        for (int64_t k = 0; k < f->top; k++) {
            json_t *o = proposal(f, &f->at[i], &f->at[i].top[k], to - from == 1, e);
            if (!o || json_array_append_new(words, o)) {
                json_decref(masks);
                return NULL;
            }
        }
    }
    return masks;
}

static void print_plain(const json_t *masks)
{
    size_t i, k;
    const json_t *words, *w;
    json_array_foreach(masks, i, words)
    {
        json_array_foreach(words, k, w)
            printf("%.6f\t%s\t%s\n", json_number_value(json_object_get(w, "score")),
                   json_string_value(json_object_get(w, "token_str")),
                   json_string_value(json_object_get(w, "sequence")));
    }
}

/* All is decoded before anything is printed. */
static int print(const cli *c, const filled *f, const cli_texts *texts, bool as_json)
{
    json_t *all = json_array();
    fv_err e = {.text = "out of memory"};
    int code = CLI_OK;
    for (int64_t i = 0, at = 0, past; i < texts->n && code == CLI_OK; i++, at = past) {
        for (past = at; past < f->n && f->at[past].text == i;) past++;
        json_t *masks = masks_of(f, at, past, &e);
        if (!masks || json_array_append_new(all, masks)) code = cli_error(c, &e);
    }
    for (int64_t i = 0; i < texts->n && code == CLI_OK; i++) {
        json_t *masks = json_array_get(all, (size_t)i);
        if (as_json)
            code = cli_print_json(c, json_pack("{s:s%, s:O}", "text", texts->at[i].s,
                                               texts->at[i].n, "masks", masks));
        else
            print_plain(masks);
    }
    json_decref(all);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const fill_values *v = values;
    cli_task t;
    cli_texts texts = {0};
    fv_err e;
    int code = cli_open_task(c, &t, &v->model, FV_JOB_FILL);
    if (code == CLI_OK) code = cli_read_texts(c, n ? operand[0] : NULL, 0, &texts);
    if (code == CLI_OK) {
        filled f = {.task = t.task, .top = v->top};
        fv_mask_found *found;
        if (fv_task_fill(t.task, texts.at, texts.n, v->top, &found, &f.n, &e)) {
            code = cli_error(c, &e);
        } else {
            f.at = found;
            code = print(c, &f, &texts, v->json);
        }
    }
    cli_free_texts(&texts);
    cli_close_task(&t);
    return code;
}

const cli_command fill_command = {
    .name = "fill",
    .summary = "the likeliest words for masks in texts",
    .about = "Reads lines with masks in them, written as the model's tokenizer writes them "
             "([MASK], <mask>), and prints for each "
             "mask the likeliest words: probability, word, and the sentence with it.",
    .options = options,
    .size = sizeof(fill_values),
    .defaults = &defaults,
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
