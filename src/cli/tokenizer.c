/* tokenizer.c - fovea tokenizer train: learns a vocabulary.
 *
 * Training reads files line by line and writes Hugging Face's tokenizer.json. The same files and
 * options give the same file: ties are broken by text, never by the order of a hash table. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

typedef struct train_values {
    int kind, split;
    int64_t vocab, min_count, alphabet;
    const char *special, *output;
    bool lowercase, nfkc;
} train_values;

static const char *const kinds[] = {"byte-bpe", "bpe", "wordpiece", "unigram", "word", NULL};

static const char *const splits[] = {"gpt2", "qwen2", NULL};

static const train_values defaults = {.vocab = 8000, .min_count = 2};

static const cli_option options[] = {
    CLI_CHOICE(train_values, kind, 0, "kind", kinds, "the model to train"),
    CLI_CHOICE(train_values, split, 0, "split", splits,
               "whose rules byte-bpe normalises and splits by; a qwen2 model needs its own"),
    CLI_INT(train_values, vocab, 0, "vocab", "N", 1, 10000000,
            "tokens in the vocabulary, special ones included"),
    CLI_INT(train_values, min_count, 0, "min-count", "N", 1, 1e15,
            "a pair or piece must be seen so often"),
    CLI_INT(train_values, alphabet, 0, "alphabet", "N", 0, 1114111,
            "keep only the N most frequent characters; 0: all"),
    CLI_TEXT(train_values, special, 0, "special", "LIST",
             "special tokens, separated by commas; they get the first ids"),
    CLI_FLAG(train_values, lowercase, 0, "lowercase", "fold case"),
    CLI_FLAG(train_values, nfkc, 0, "nfkc", "normalise by NFKC (wordpiece: as BERT does)"),
    CLI_FILE(train_values, output, 'o', "output", "FILE", "the tokenizer.json to write"),
    {0},
};

static const cli_example examples[] = {
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

/* The trainer's stages with a share of each, on one line that is written over. */
static void show(void *self, const char *stage, double done)
{
    (void)self;
    fprintf(stderr, "\r%-10s %3.0f %% ", stage, 100 * done);
    fflush(stderr);
}

static int run(const cli *c, const void *values, int n, char **operand)
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
                           .split = (fv_tok_split)v->split,
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
    CLI_OWN(train_values),
    .defaults = &defaults,
    .operands = "FILE...",
    .min_operands = 1,
    .max_operands = 1 << 20,
};

static const cli_command *const tokenizer_subs[] = {&train_command, NULL};

const cli_command tokenizer_command = {
    .name = "tokenizer",
    .summary = "make tokenizers",
    .about = "Commands that make tokenizers.  To use one, see \"fovea tokenize\".",
    .subs = tokenizer_subs,
};
