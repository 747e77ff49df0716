/* translate.c - lines through a model with an encoder and a decoder, over fovea/translate.h.
 *
 * The typed call does the work: it sorts lines by length, batches them and hands them back in
 * order. Therefore the pipeline gives it large slices (4096 lines) instead of batches, and passes
 * each line on as it comes. Settings go, later over earlier: defaults, the directory's
 * generation_config.json, --beam and --nbest, the options of generating. */
#include "fovea/translate.h"

#include <stdio.h>

#include "fovea/author/gen.h"
#include "task_pipeline.h"

typedef struct translate_options {
    char from[64], to[64]; /* languages, "" for what the directory says */
    int64_t beam, nbest;
    bool attention;
} translate_options;

static const fv_field options[] = {
    FV_TEXT(translate_options, to, "",
            "LANG: into this language, of a model that has several: de, de_DE, deu_Latn"),
    FV_TEXT(translate_options, from, "", "LANG: from this one"),
    FV_INT(translate_options, beam, 1, 0, 256, "beams; as the model says, else 4"),
    FV_INT(translate_options, nbest, 1, 0, 256,
           "translations of each line; from 2 on: line, score and text, with tabs between"),
    FV_BOOL(translate_options, attention, false,
            "how much each token of the translation attended to each of the source, mean of all "
            "layers and heads; as JSON"),
    {0}};

/* ---- opening ---- */

/* The settings over the directory's. What cannot work is refused here, before the first line is
 * read. */
static fv_status apply(fv_pipeline *p, fv_translator *t, fv_err *e)
{
    const translate_options *o = p->options;
    fv_gen_opt *gen = fv_translator_gen(t);
    int64_t n_positions = fv_model_context(fv_translator_model(t));
    if (o->beam) gen->num_beams = o->beam;
    if (o->nbest) gen->num_return_sequences = o->nbest;
    fv_status st = fv__apply_gen(gen, p->opt.settings, p->opt.n_settings, e);
    if (st) return st;
    if (!gen->do_sample && gen->num_return_sequences > gen->num_beams)
        return fv_fail(e, FV_EUSAGE,
                       "nbest: %lld translations need as many beams, and there are %lld; say "
                       "--beam %lld",
                       (long long)gen->num_return_sequences, (long long)gen->num_beams,
                       (long long)gen->num_return_sequences);
    if (n_positions && gen->max_length > n_positions)
        return fv_fail(e, FV_EUSAGE, "max_length: %lld is more than the model's %lld positions",
                       (long long)gen->max_length, (long long)n_positions);
    return FV_OK;
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    const translate_options *o = p->options;
    fv_translator *t;
    fv_translate_opt how = {.weights = p->opt.weights,
                            .widen = p->opt.widen,
                            .adapters = p->opt.adapters,
                            .batch = p->opt.batch,
                            .attention = o->attention,
                            .from = o->from[0] ? o->from : NULL,
                            .to = o->to[0] ? o->to : NULL};
    fv_status st = fv_translator_open(&t, p->dev, p->opt.model, how, e);
    if (st) return st;
    p->self = t;
    p->opt.batch = 4096; /* the translator sorts them by length and makes batches itself */
    p->opt.json |= o->attention;
    return apply(p, t, e);
}

static void close_task(fv_pipeline *p)
{
    fv_translator_close(p->self);
    p->self = NULL;
}

/* ---- results ---- */

/* Tokens as the vocabulary writes them: attention has a row and a column for each. */
static void put_tokens(fv_buf *b, const fv_tok *t, const char *key, const int32_t *ids, int64_t n)
{
    fv__json_key(b, key);
    fv__json_begin(b, '[');
    for (int64_t i = 0; i < n; i++) {
        const char *token = fv_tok_token(t, ids[i]);
        fv__json_put_text(b, token ? token : "", token ? strlen(token) : 0);
    }
    fv__json_end(b, ']');
}

static void put_best(fv_buf *b, const fv_tok *t, const fv_translated *x)
{
    fv__json_begin(b, '{');
    fv__json_text_at(b, "text", x->text, x->len);
    fv__json_number_at(b, "score", x->score);
    fv__json_key(b, "ids");
    fv__json_begin(b, '[');
    for (int64_t i = 0; i < x->n; i++) fv__json_put_int(b, x->ids[i]);
    fv__json_end(b, ']');
    put_tokens(b, t, "tokens", x->ids, x->n);
    fv__json_end(b, '}');
}

static void put_attention(fv_buf *b, const fv_translation *x)
{
    int64_t rows = x->attention ? x->best->n : 0, cols = x->n_source;
    fv__json_key(b, "attention");
    fv__json_begin(b, '[');
    for (int64_t i = 0; i < rows; i++) {
        fv__json_begin(b, '[');
        for (int64_t j = 0; j < cols; j++)
            fv__json_put_number(b, (double)x->attention[i * cols + j]);
        fv__json_end(b, ']');
    }
    fv__json_end(b, ']');
}

/* Scores are sums of log-probabilities divided by length to the power of the length penalty, as
 * transformers has them. */
static void put_json(fv_pipeline *p, const fv_translation *x)
{
    const fv_tok *tok = fv_translator_tok(p->self);
    fv_buf *b = &p->out;
    fv__json_begin(b, '{');
    fv__json_int_at(b, "line", x->line);
    put_tokens(b, tok, "source", x->source, x->n_source);
    fv__json_key(b, "translations");
    fv__json_begin(b, '[');
    for (int64_t i = 0; i < x->n_best; i++) put_best(b, tok, &x->best[i]);
    fv__json_end(b, ']');
    if (x->cut) fv__buf_str(b, ",\"cut\":true");
    if (((const translate_options *)p->options)->attention) put_attention(b, x);
    fv__buf_str(b, "}\n");
}

/* A translation is one line whatever the model wrote. */
static void put_line(fv_buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) fv__buf_add(b, s[i] == '\n' || s[i] == '\r' ? " " : s + i, 1);
    fv__buf_str(b, "\n");
}

/* Lines arrive in order, each when it and all before it are done. */
static bool take(void *user, const fv_translation *x)
{
    fv_pipeline *p = user;
    const translate_options *o = p->options;
    if (x->cut)
        snprintf(p->note, sizeof p->note,
                 "has too many tokens for the model; what is beyond %lld was left out",
                 (long long)x->n_source);
    if (p->opt.json)
        put_json(p, x);
    else if (o->nbest < 2)
        put_line(&p->out, x->best->text, x->best->len);
    else
        for (int64_t i = 0; i < x->n_best; i++) {
            fv__buf_fmt(&p->out, "%lld\t%.6f\t", (long long)x->line, x->best[i].score);
            put_line(&p->out, x->best[i].text, x->best[i].len);
        }
    p->tokens += x->best->n;
    return fv__task_emit(p, NULL) == FV_OK;
}

/* fv_translate stops without an error where take() ends it; a line without a result then means
 * that memory ran out in it. */
static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    size_t bytes = (size_t)n * (sizeof(char *) + sizeof(size_t));
    const char **text = fv__alloc(&p->env, bytes);
    if (!text) return fv_fail(e, FV_ENOMEM, "out of memory");
    size_t *len = (size_t *)(void *)(text + n);
    int64_t before = p->done;
    for (int64_t i = 0; i < n; i++) text[i] = in[i].s, len[i] = in[i].n;
    fv_lines lines = {.text = text, .len = len, .n = n, .first = p->first + p->done};
    fv_status st = fv_translate(p->self, lines, take, p, e);
    fv__free(&p->env, text, bytes);
    if (!st && p->done - before < n && !p->stopped) st = fv_fail(e, FV_ENOMEM, "out of memory");
    return st;
}

static const fv_task_example examples[] = {
    {"echo 'I like to eat apples.' | fovea translate -m fovea-demo/model", "one line"},
    {"fovea translate -m opus-mt-en-de --dtype q8 news.en > news.de",
     "a file, with weights of 8 bits"},
    {"fovea translate -m opus-mt-en-de --nbest 3 --beam 6 news.en",
     "the three best of each line with their scores"},
    {"fovea translate -m nllb-200-distilled-600M --from eng_Latn --to deu_Latn news.en",
     "a model of many languages"},
    {"fovea translate -m t5-small --from en --to fr news.en",
     "a model that is told by words before the text, those of its config.json"},
    {"fovea translate -m opus-mt-en-de --attention line.en",
     "which words of the source each word came from"},
    {0}};

const fv_task_kind fv__translate_task = {
    .name = "translate",
    .summary = "translate lines of text",
    .about = "Translates a file, plain or gzip, or standard input, line by line.  Lines come out "
             "in the order they went in, as soon as they are done; from standard input all lines "
             "that are waiting are taken together, so it can be used in a conversation.  Lines of "
             "like length go through the model together, which changes the time and nothing "
             "else.\n\n"
             "An empty line gives an empty line.  A line with more tokens than the model has "
             "positions is cut, with a message that names it.  A line that is not UTF-8 is named "
             "and gives an empty line; the others go on.\n\n"
             "Of a model with several languages --from and --to choose: mBART, NLLB and M2M-100 by "
             "tokens such as de_DE, deu_Latn and __de__, for which \"de\" will do where it is one "
             "language; multilingual Marian models by >>deu<<; T5 by the prefixes that its "
             "config.json has.\n\n"
             "How to generate stands in the model's generation_config.json, or else config.json; "
             "options override it and have the names of transformers' generate.",
    .examples = examples,
    .options = options,
    .size = sizeof(translate_options),
    .generates = true,
    .aligned = true,
    .may_be_empty = true,
    .batch = 32,
    .open = open_task,
    .run = run,
    .close = close_task,
    .eval = &fv__eval_translate};
