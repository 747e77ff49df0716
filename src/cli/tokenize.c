/* tokenize.c - fovea tokenize: text to ids and back.
 *
 * One text, whole: line ends are characters to a tokenizer, and cutting a file into lines would
 * change its ids. Ids come back as plain numbers, as a list, or as the object that --json prints,
 * so that the two directions fit together in a pipe. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "fovea/store.h"
#include "fovea/tok.h"

typedef struct tokenize_values {
    const char *model, *text;
    bool decode, json, no_special;
} tokenize_values;

static const cli_option options[] = {
    CLI_FILE(tokenize_values, model, 'm', "model", "DIR_OR_FILE",
             "a model directory, or a tokenizer.json, vocab.txt, merges.txt or SentencePiece file"),
    CLI_TEXT(tokenize_values, text, 0, "text", "TEXT", "the text, instead of a file"),
    CLI_FLAG(tokenize_values, decode, 0, "decode", "read ids, write text"),
    CLI_FLAG(tokenize_values, json, 0, "json",
             "one JSON object: ids, tokens and offsets in characters; ids or such an object with "
             "--decode"),
    CLI_FLAG(tokenize_values, no_special, 0, "no-special",
             "without special tokens: none are added, and decoding leaves them out"),
    {0},
};

static const cli_example examples[] = {
    {"echo -n 'I like apples' | fovea tokenize -m bert-base-uncased", "ids, with [CLS] and [SEP]"},
    {"fovea tokenize -m gpt2 --json text.txt", "ids, tokens and where each stands in the text"},
    {"echo 40 588 22514 | fovea tokenize -m gpt2 --decode", "back to text"},
    {0},
};

/* Offsets count characters, as the Python tokenizers' do. */
static void print_encoding(const fv_tok *t, const fv_encoding *enc)
{
    cli_json j = {0};
    cli_json_put(&j, "{s:[", "ids");
    for (int64_t i = 0; i < enc->n; i++) cli_json_put(&j, "i", enc->ids[i]);
    cli_json_put(&j, "], s:[", "tokens");
    for (int64_t i = 0; i < enc->n; i++) {
        const char *token = fv_tok_token(t, enc->ids[i]);
        cli_json_put(&j, "s", token ? token : "");
    }
    cli_json_put(&j, "], s:[", "offsets");
    for (int64_t i = 0; i < enc->n; i++)
        cli_json_put(&j, "[I, I]", (int64_t)enc->spans[i].from, (int64_t)enc->spans[i].to);
    cli_json_put(&j, "]}");
    cli_json_end();
}

static int encode(const cli *c, const tokenize_values *v, const fv_tok *t, const fv_text *text)
{
    fv_err e;
    fv_encoding *enc;
    fv_tok_opts o = {.specials = !v->no_special,
                     .offsets = v->json ? FV_OFFSETS_CHARS : FV_OFFSETS_NONE};
    if (fv_encoding_new(&enc, t, &e)) return cli_error(c, &e);
    int code = CLI_OK;
    if (fv_tok_encode(enc, text->s, text->n, o, &e)) {
        code = cli_error(c, &e);
    } else if (v->json) {
        print_encoding(t, enc);
    } else {
        for (int64_t i = 0; i < enc->n; i++) printf("%s%d", i ? " " : "", enc->ids[i]);
        printf("\n");
    }
    fv_encoding_free(enc);
    return code;
}

/* Behind a string of JSON that begins at p; NULL: it does not end. */
static const char *past_string(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1]) p++;
    return *p ? p + 1 : NULL;
}

/* Where the list of an object's own member "ids" begins, as --json prints one; NULL: nowhere. */
static const char *find_ids(const char *p)
{
    for (int depth = 0; p && *p;) {
        if (*p == '"') {
            const char *key = p;
            p = past_string(p);
            bool ids = depth == 1 && p && p - key == 5 && !strncmp(key, "\"ids\"", 5);
            const char *colon = ids ? p + strspn(p, " \t\r\n") : NULL;
            if (colon && *colon == ':') return colon + 1 + strspn(colon + 1, " \t\r\n");
            continue;
        }
        depth += *p == '{' || *p == '[';
        depth -= *p == '}' || *p == ']';
        p++;
    }
    return NULL;
}

/* Ids of "[1, 2]", of {"ids": [1, 2], ...}, or of numbers with space between. */
static int read_ids(const cli *c, const fv_text *text, int32_t **out, int64_t *n)
{
    static const char between[] = " \t\r\n,";
    const char *p = text->s + strspn(text->s, " \t\r\n"); /* a NUL stands behind the text */
    bool object = *p == '{';
    *n = 0;
    *out = NULL;
    if (object) p = find_ids(p);
    if (!p) return cli_fail(c, "the input is an object without ids");
    bool list = *p == '[';
    *out = malloc((text->n / 2 + 1) * sizeof **out);
    if (!*out) return cli_fail(c, "out of memory");
    if (list) p++, p += strspn(p, between);
    for (char *end; *p && *p != ']'; p = end + strspn(end, between)) {
        long long x = strtoll(p, &end, 10);
        if (end == p || x < 0 || x > INT32_MAX)
            return cli_fail(c, "the input is no list of ids: \"%.20s\"", p);
        (*out)[(*n)++] = (int32_t)x;
    }
    if (object && list && *p == ']') return CLI_OK;
    if (list == (*p == ']') && !p[list + strspn(p + list, " \t\r\n")]) return CLI_OK;
    return cli_fail(c, "the input is no list of ids: \"%.20s\"", p);
}

/* A text is written without a line end of its own, except to a terminal, whose prompt would follow
 * it. */
static int decode(const cli *c, const tokenize_values *v, const fv_tok *t, const fv_text *text)
{
    int32_t *ids;
    int64_t n;
    char *s = NULL;
    size_t len = 0;
    fv_err e;
    int code = read_ids(c, text, &ids, &n);
    if (code == CLI_OK && fv_tok_decode(t, &s, &len, ids, n, v->no_special, &e))
        code = cli_error(c, &e);
    free(ids);
    if (code != CLI_OK) return code;
    cli_json j = {0};
    if (v->json) {
        cli_json_put(&j, "{s:", "text");
        cli_json_text(&j, s, len);
        cli_json_put(&j, "}");
        cli_json_end();
    } else {
        fwrite(s, 1, len, stdout);
    }
    /* what goes to a file or a pipe is the text, exactly */
    if (!v->json && isatty(STDOUT_FILENO)) printf("\n");
    fv_tok_free_text(t, s, len);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const tokenize_values *v = values;
    fv_tok *t = NULL;
    fv_reader *r = NULL;
    fv_err e;
    const fv_line *line;
    int64_t lines;
    if (!v->model) return cli_usage(c, "a tokenizer is needed: -m DIR_OR_FILE");
    if (v->text && n)
        return cli_usage(c, "--text and the file %s are one input too many", operand[0]);
    int code = CLI_OK;
    if (fv_tok_open(&t, NULL, v->model, &e) ||
        (!v->text &&
         (fv_reader_open(&r, NULL, n ? operand[0] : NULL, (fv_reader_opt){.whole = true}, &e) ||
          fv_reader_next(r, 1, &line, &lines, &e))))
        code = cli_error(c, &e);
    if (code == CLI_OK) {
        fv_text given = {.s = v->text, .n = v->text ? strlen(v->text) : 0};
        const fv_text *text = v->text ? &given : &line->text;
        code = v->decode ? decode(c, v, t, text) : encode(c, v, t, text);
    }
    fv_reader_close(r);
    fv_tok_close(t);
    return code;
}

const cli_command tokenize_command = {
    .name = "tokenize",
    .summary = "turn text into token ids, and back",
    .about = "Reads a text (the whole file, or standard input) and prints the ids of its tokens.  "
             "The tokenizer is opened as it is: a model directory, a tokenizer.json, vocab.txt, "
             "vocab.json with merges.txt, or a SentencePiece model.\n\n"
             "Bytes that are not UTF-8 are read as U+FFFD.  Offsets count characters.",
    CLI_OWN(tokenize_values),
    .operands = "[FILE]",
    .max_operands = 1,
};
