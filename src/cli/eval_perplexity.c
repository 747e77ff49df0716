/* eval_perplexity.c - how likely a text is to a language model: by token, by word, in bits per
 * character and byte.
 *
 * A model that writes reads the whole file as one text; one with an encoder has a source and a
 * target in each record; one that fills masks has a text in each line, and every token of it is
 * masked in turn. */
#include "eval.h"
#include "write.h"

#include <math.h>
#include <string.h>

typedef struct total {
    double log_p;
    int64_t tokens, words, characters, bytes;
} total;

static void add_text(total *t, const char *s, size_t n)
{
    t->bytes += (int64_t)n;
    for (size_t i = 0; i < n; i++) {
        bool blank = strchr(" \t\n\v\f\r", s[i]), before = !i || strchr(" \t\n\v\f\r", s[i - 1]);
        t->characters += ((unsigned char)s[i] & 0xC0) != 0x80;
        t->words += !blank && before;
    }
}

static int score_file(const cli *c, writer *w, const eval_values *v, const char *file, total *t)
{
    fv_textfile *text;
    fv_err e;
    if (fv_textfile_open(&text, NULL, file, &e)) return cli_error(c, &e);
    fv_text all = {0};
    all.s = fv_textfile_all(text, &all.n);
    int code = all.n ? writer_score(w, &all, v->window, v->stride, &t->log_p, &t->tokens)
                     : cli_fail(c, "%s: no text in it", file);
    if (code == CLI_OK) add_text(t, all.s, all.n);
    fv_textfile_close(text);
    return code;
}

static int score_targets(const cli *c, writer *w, const eval_values *v, const char *file, total *t)
{
    fv_table *rows;
    fv_err e;
    fv_data_report report = {0};
    fv_records from = eval_records(v, file);
    if (fv_table_open(&rows, NULL, &from, 2, &report, &e)) return cli_error(c, &e);
    int code = CLI_OK;
    for (int64_t i = 0; code == CLI_OK && i < fv_table_count(rows); i++) {
        fv_text text = {0};
        text.s = fv_table_text(rows, i, 0, &text.n);
        text.pair = fv_table_text(rows, i, 1, &text.pair_n);
        double log_p;
        int64_t tokens;
        code = writer_score_pair(w, &text, &log_p, &tokens);
        t->log_p += log_p;
        t->tokens += tokens;
        add_text(t, text.pair, text.pair_n);
    }
    fv_table_close(rows);
    return code;
}

static int score_masked(const cli *c, const eval_values *v, const char *file, total *t)
{
    fv_textfile *text;
    cli_task model;
    fv_err e;
    int code = cli_open_task(c, &model, &v->model, FV_JOB_FILL);
    if (code == CLI_OK && fv_textfile_open(&text, NULL, file, &e)) code = cli_error(c, &e);
    int64_t n = code == CLI_OK ? fv_textfile_count(text) : 0;
    for (int64_t i = 0; code == CLI_OK && i < n; i++) {
        double log_p;
        int64_t tokens;
        fv_text line = {0};
        line.s = fv_textfile_line(text, i, &line.n);
        if (!line.n) continue;
        if (fv_task_score(model.task, &line, 1, NULL, &log_p, &tokens, &e)) code = cli_error(c, &e);
        t->log_p += code == CLI_OK ? log_p : 0;
        t->tokens += code == CLI_OK ? tokens : 0;
        add_text(t, line.s, line.n);
    }
    if (n) fv_textfile_close(text);
    cli_close_task(&model);
    return code;
}

static int score_written(const cli *c, const eval_values *v, const char *file, total *t)
{
    writer w;
    int code = writer_open(&w, c, &v->model, NULL, NULL, 1);
    if (code == CLI_OK) code = (w.encoder ? score_targets : score_file)(c, &w, v, file, t);
    writer_close(&w);
    return code;
}

static int report(const cli *c, const eval_values *v, const total *t, bool masked)
{
    if (!t->tokens || !t->words) return cli_fail(c, "there is nothing to score");
    double by_token = exp(-t->log_p / (double)t->tokens),
           by_word = exp(-t->log_p / (double)t->words);
    double bits = -t->log_p / log(2), by_character = bits / (double)t->characters,
           by_byte = bits / (double)t->bytes;
    if (v->json)
        return cli_print_json(
            c, json_pack("{s:s, s:b, s:o, s:o, s:f, s:f, s:f, s:I, s:I, s:I, s:I}", "task",
                         "perplexity", "masked", masked, "perplexity", cli_json_number(by_token),
                         "word_perplexity", cli_json_number(by_word), "bits_per_character",
                         by_character, "bits_per_byte", by_byte, "log_probability", t->log_p,
                         "tokens", (json_int_t)t->tokens, "words", (json_int_t)t->words,
                         "characters", (json_int_t)t->characters, "bytes", (json_int_t)t->bytes));
    printf("%s%.4f  a token, of %lld\n", masked ? "pseudo-perplexity  " : "perplexity         ",
           by_token, (long long)t->tokens);
    printf("                   %.4f  a word, of %lld\n", by_word, (long long)t->words);
    printf("bits               %.4f  a character, of %lld\n", by_character,
           (long long)t->characters);
    printf("                   %.4f  a byte, of %lld\n", by_byte, (long long)t->bytes);
    return CLI_OK;
}

static bool fills_masks(const char *dir)
{
    fv_dir *d;
    if (fv_dir_open(&d, NULL, dir, NULL)) return false; /* opening the model will say why */
    const char *head = fv_json_text(fv_dir_config(d), "architectures.0");
    bool masked = head && strstr(head, "ForMaskedLM");
    fv_dir_close(d);
    return masked;
}

static int run(const cli *c, const eval_values *v, const char *file)
{
    total t = {0};
    if (!file) return cli_usage(c, "a file of text is needed");
    if (!v->model.dir) return cli_usage(c, "a model is needed: -m DIR");
    if (v->predictions) return cli_usage(c, "--predictions: a perplexity has none");
    bool masked = fills_masks(v->model.dir);
    int code = (masked ? score_masked : score_written)(c, v, file, &t);
    return code == CLI_OK ? report(c, v, &t, masked) : code;
}

static const char *const heads[] = {"ForCausalLM", "LMHeadModel", "ForMaskedLM", NULL};
const eval_kind eval_perplexity = {.name = "perplexity", .heads = heads, .run = run};
