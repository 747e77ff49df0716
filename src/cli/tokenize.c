/* tokenize.c - fovea tokenize: text to ids and back; fovea tokenizer train: a vocabulary from text
 * files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "fovea/tok.h"
#include "json.h"
#include "texts.h"

/* ---- fovea tokenize ---- */

typedef struct tokenize_values {
    const char *model;
    bool decode, json, no_special;
} tokenize_values;

static const cli_option tokenize_options[] = {
    CLI_FILE(tokenize_values, model, 'm', "model", "DIR_OR_FILE",
             "a model directory, or a tokenizer.json, vocab.txt, merges.txt or SentencePiece file"),
    CLI_FLAG(tokenize_values, decode, 'd', "decode", "read ids, write text"),
    CLI_FLAG(tokenize_values, json, 0, "json",
             "one JSON object: ids, tokens and offsets in characters; ids or such an object with "
             "--decode"),
    CLI_FLAG(tokenize_values, no_special, 0, "no-special",
             "without special tokens: none are added, and decoding leaves them out"),
    {0},
};

static const cli_example tokenize_examples[] = {
    {"echo -n 'I like apples' | fovea tokenize -m bert-base-uncased", "ids, with [CLS] and [SEP]"},
    {"fovea tokenize -m gpt2 --json text.txt", "ids, tokens and where each stands in the text"},
    {"echo 40 588 22514 | fovea tokenize -m gpt2 --decode", "back to text"},
    {0},
};

static json_t *encoding_json(const fv_tok *t, const fv_encoding *enc)
{
    json_t *ids = json_array(), *tokens = json_array(), *offsets = json_array();
    for (int64_t i = 0; i < enc->n; i++) {
        const char *token = fv_tok_token(t, enc->ids[i]);
        json_array_append_new(ids, json_integer(enc->ids[i]));
        json_array_append_new(tokens, json_string(token ? token : ""));
        json_array_append_new(offsets, json_pack("[I,I]", (json_int_t)enc->spans[i].from,
                                                 (json_int_t)enc->spans[i].to));
    }
    return json_pack("{s:o, s:o, s:o}", "ids", ids, "tokens", tokens, "offsets", offsets);
}

static int encode(const cli *c, const tokenize_values *v, const fv_tok *t, cli_bytes text)
{
    fv_err e;
    fv_encoding *enc;
    fv_tok_opts o = {.specials = !v->no_special,
                     .offsets = v->json ? FV_OFFSETS_CHARS : FV_OFFSETS_NONE};
    if (fv_encoding_new(&enc, t, &e)) return cli_error(c, &e);
    int code = CLI_OK;
    if (fv_tok_encode(enc, text.s, text.n, o, &e)) {
        code = cli_error(c, &e);
    } else if (v->json) {
        code = cli_print_json(c, encoding_json(t, enc));
    } else {
        for (int64_t i = 0; i < enc->n; i++) printf("%s%d", i ? " " : "", enc->ids[i]);
        printf("\n");
    }
    fv_encoding_free(enc);
    return code;
}

/* Ids of "[1, 2]", of {"ids": [1, 2], ...}, or of numbers with space between. */
static int read_ids(const cli *c, cli_bytes text, int32_t **out, int64_t *n)
{
    size_t start = text.s ? strspn(text.s, " \t\r\n") : 0;
    *n = 0;
    *out = malloc((text.n / 2 + 1) * sizeof **out);
    if (!*out || !text.s) return cli_fail(c, "out of memory");
    if (text.s[start] == '{' || text.s[start] == '[') {
        json_t *root = json_loadb(text.s, text.n, JSON_REJECT_DUPLICATES, NULL);
        json_t *list = json_is_object(root) ? json_object_get(root, "ids") : root;
        bool ok = json_is_array(list);
        for (size_t i = 0; ok && i < json_array_size(list); i++) {
            json_t *x = json_array_get(list, i);
            ok = json_is_integer(x) && json_integer_value(x) >= 0 &&
                 json_integer_value(x) <= INT32_MAX;
            (*out)[(*n)++] = (int32_t)json_integer_value(x);
        }
        json_decref(root);
        return ok ? CLI_OK : cli_fail(c, "the input is no list of ids");
    }
    for (char *p = text.s + start, *end; *p; p = end + strspn(end, " \t\r\n,")) {
        long long x = strtoll(p, &end, 10);
        if (end == p || x < 0 || x > INT32_MAX)
            return cli_fail(c, "the input is no list of ids: \"%.20s\"", p);
        (*out)[(*n)++] = (int32_t)x;
    }
    return CLI_OK;
}

static int decode(const cli *c, const tokenize_values *v, const fv_tok *t, cli_bytes text)
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
    if (v->json)
        code = cli_print_json(c, json_pack("{s:s%}", "text", s, len));
    else
        fwrite(s, 1, len, stdout);
    /* what goes to a file or a pipe is the text, exactly */
    if (!v->json && isatty(STDOUT_FILENO)) printf("\n");
    fv_tok_free_text(t, s, len);
    return code;
}

static int run_tokenize(const cli *c, const void *values, int n, char **operand)
{
    const tokenize_values *v = values;
    fv_tok *t;
    fv_err e;
    cli_bytes text;
    if (!v->model) return cli_usage(c, "a tokenizer is needed: -m DIR_OR_FILE");
    if (fv_tok_open(&t, NULL, v->model, &e)) return cli_error(c, &e);
    int code = cli_read_all(c, n ? operand[0] : NULL, &text);
    if (code == CLI_OK) code = v->decode ? decode(c, v, t, text) : encode(c, v, t, text);
    if (text.s) free(text.s);
    fv_tok_close(t);
    return code;
}

const cli_command tokenize_command = {
    .name = "tokenize",
    .summary = "text to token ids, and back",
    .about = "Reads a text (the whole file, or standard input) and prints the ids of its tokens.  "
             "The tokenizer is opened as it is: a "
             "model directory, a tokenizer.json, vocab.txt, vocab.json with merges.txt, or a "
             "SentencePiece model.\n\n"
             "Bytes that are not UTF-8 are read as U+FFFD.  Offsets count characters.",
    .options = tokenize_options,
    .size = sizeof(tokenize_values),
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = tokenize_examples,
    .run = run_tokenize,
};

/* ---- fovea tokenizer train ---- */

typedef struct train_values {
    int kind;
    int64_t vocab, min_count, alphabet;
    const char *special, *output;
    bool lowercase, nfkc;
} train_values;

static const char *const kinds[] = {"byte-bpe", "bpe", "wordpiece", "unigram", NULL};

static const train_values train_defaults = {.vocab = 8000, .min_count = 2};

static const cli_option train_options[] = {
    CLI_CHOICE(train_values, kind, 'k', "kind", kinds, "the model to train"),
    CLI_INT(train_values, vocab, 'v', "vocab", "N", 1, 10000000,
            "tokens in the vocabulary, special ones included"),
    CLI_INT(train_values, min_count, 0, "min-count", "N", 1, 1e15,
            "a pair or piece must be seen so often"),
    CLI_INT(train_values, alphabet, 0, "alphabet", "N", 0, 1114111,
            "keep only the N most frequent characters; 0: all"),
    CLI_TEXT(train_values, special, 's', "special", "LIST",
             "special tokens, separated by commas; they get the first ids"),
    CLI_FLAG(train_values, lowercase, 0, "lowercase", "fold case"),
    CLI_FLAG(train_values, nfkc, 0, "nfkc", "normalise by NFKC (wordpiece: as BERT does)"),
    CLI_FILE(train_values, output, 'o', "output", "FILE", "the tokenizer.json to write"),
    {0},
};

static const cli_example train_examples[] = {
    {"fovea tokenizer train --kind bpe --vocab 10000 -o tokenizer.json train.en train.de",
     "one vocabulary for two languages"},
    {"fovea tokenizer train --kind byte-bpe --vocab 50257 --special '<|endoftext|>' -o "
     "tokenizer.json corpus.txt",
     "as GPT-2's"},
    {0},
};

/* Parts of a list "a,b,c", which is changed; at most MOST of them. */
enum { MAX_SPECIALS = 256 };

static int split_list(char *list, const char *out[MAX_SPECIALS + 1])
{
    int n = 0;
    for (char *p = strtok(list, ","); p && n < MAX_SPECIALS; p = strtok(NULL, ",")) out[n++] = p;
    out[n] = NULL;
    return n;
}

static void show(void *self, const char *stage, double done)
{
    (void)self;
    fprintf(stderr, "\r%-10s %3.0f %% ", stage, 100 * done);
    fflush(stderr);
}

static int run_train(const cli *c, const void *values, int n, char **operand)
{
    const train_values *v = values;
    const char *specials[MAX_SPECIALS + 1];
    fv_tok *t;
    fv_err e;
    if (!v->output) return cli_usage(c, "where the tokenizer goes is needed: -o FILE");
    char *list = v->special ? strdup(v->special) : NULL;
    if (v->special && !list) return cli_fail(c, "out of memory");
    if (list) split_list(list, specials);
    bool terminal = isatty(STDERR_FILENO);
    fv_tok_train_opts o = {.kind = (fv_tok_kind)v->kind,
                           .vocab = (int32_t)v->vocab,
                           .min_count = v->min_count,
                           .alphabet = (int32_t)v->alphabet,
                           .specials = list ? specials : NULL,
                           .lowercase = v->lowercase,
                           .nfkc = v->nfkc,
                           .progress = terminal ? show : NULL};
    fv_status st = fv_tok_train_files(&t, NULL, (const char *const *)operand, n, &o, &e);
    if (terminal) fprintf(stderr, "\r%30s\r", "");
    if (st == FV_OK) st = fv_tok_save(t, v->output, &e);
    free(list);
    if (st != FV_OK) {
        fv_tok_close(t);
        return cli_error(c, &e);
    }
    printf("%d tokens in %s\n", fv_tok_size(t), v->output);
    fv_tok_close(t);
    return CLI_OK;
}

static const cli_command train_command = {
    .name = "train",
    .summary = "learn a vocabulary from text files",
    .about = "Learns a tokenizer from plain text files, a text on each line, and writes it as a "
             "tokenizer.json, which Hugging Face "
             "tokenizers opens as well.  The same files and options give the same tokenizer.",
    .options = train_options,
    .size = sizeof(train_values),
    .defaults = &train_defaults,
    .operands = "FILE...",
    .min_operands = 1,
    .max_operands = 1 << 20,
    .examples = train_examples,
    .run = run_train,
};

static const cli_command *const tokenizer_subs[] = {&train_command, NULL};

const cli_command tokenizer_command = {
    .name = "tokenizer",
    .summary = "make tokenizers",
    .about = "Commands that make tokenizers.  To use one, see \"fovea tokenize\".",
    .subs = tokenizer_subs,
};
