/* generate.c - text that follows a prompt, token by token for one prompt or many at a time.
 *
 * One prompt alone is streamed: tokens go out as parts of the result. Many prompts, JSON,
 * beams and several hypotheses run in batches instead, because they have no one text that grows.
 * What is sampled depends on the seed and the record's number, not on the way. */
#include "task_pipeline.h"

typedef struct generate_options {
    bool echo;
    char stop[256];
    char assistant[1024];
} generate_options;

static const fv_field options[] = {
    FV_BOOL(generate_options, echo, false, "print the prompt before what follows it"),
    FV_TEXT(generate_options, stop, "",
            "end the text before this string; may be given several times"),
    FV_TEXT(generate_options, assistant, "",
            "DIR: a smaller model with the same tokenizer that drafts tokens: the same "
            "text, sooner"),
    {0}};

static fv_status check(fv_pipeline *p, fv_err *e)
{
    for (int i = 0; i < p->opt.n_settings; i++)
        if (!strcmp(p->opt.settings[i].key, "stop") && !p->opt.settings[i].value[0])
            return fv_fail(e, FV_EUSAGE, "stop: an empty string ends every text");
    return FV_OK;
}

static fv_status open_task(fv_pipeline *p, fv_err *e) { return fv__open_writer(p, NULL, 128, e); }

/* ---- one prompt, as it comes ---- */

typedef struct stream {
    fv_pipeline *p;
    fv_tok_stream *s;
    fv_buf text; /* all of it */
    size_t shown;
    fv_status st;
    fv_err e;
    bool ended; /* by a stop string */
} stream;

/* The longest end of the text that may be the beginning of a stop string, which is held back. */
static size_t held_back(const fv_pipeline *p, const fv_buf *text)
{
    size_t most = 0;
    bool kept;
    const char *stop;
    for (int i = 0; (stop = fv__stop_string(p, i, &kept)); i++) {
        size_t n = kept ? 0 : strlen(stop);
        for (size_t k = n < text->len + 1 ? n : text->len + 1; k-- > most + 1;)
            if (!memcmp(text->data + text->len - k, stop, k)) most = k;
    }
    return most;
}

/* Text that may be the beginning of a stop string is held back until it is clear that it is not. */
static fv_status show(stream *s, const char *piece, size_t n, bool last)
{
    fv__buf_add(&s->text, piece, n);
    if (s->text.failed) return fv_fail(&s->e, FV_ENOMEM, "out of memory");
    s->ended = fv__cut_at_stop(s->p, &s->text);
    size_t to = s->text.len - (last || s->ended || !s->text.len ? 0 : held_back(s->p, &s->text));
    if (to <= s->shown) return FV_OK;
    fv_status st = fv__task_emit_part(s->p, s->text.data + s->shown, to - s->shown, &s->e);
    s->shown = to;
    return st;
}

/* A token may be a part of a character: the stream gives text only when characters are whole. */
static bool print_token(void *user, int64_t source, int32_t token)
{
    stream *s = user;
    const char *text;
    size_t len;
    (void)source;
    s->st = fv_tok_stream_push(s->s, token, &text, &len, &s->e);
    if (!s->st) s->st = show(s, text, len, false);
    return !s->st && !s->ended;
}

/* `number` is the record's, so that sampling draws the same for a text whether or not others run
 * before it in this call. */
static fv_status stream_ids(fv_pipeline *p, stream *s, const fv_buf *ids, fv_err *e)
{
    fv_generated out = {0};
    fv_gen_opt gen = p->writer.gen;
    const int32_t *at = fv__ids(ids);
    int64_t n = fv__n_ids(ids), number = p->first - 1 + p->done;
    const char *text;
    size_t len;
    fv_status st = fv__writer_stream(&p->writer, &s->s, at, n, e);
    gen.token = print_token;
    gen.user = s;
    gen.numbers = &number;
    if (!st) st = fv_generate(&out, p->dev, p->writer.model, &at, &n, 1, &gen, e);
    if (!st) p->tokens += out.hyp[0].n;
    fv_generated_free(&out);
    if (!st && !s->st && !s->ended) s->st = fv_tok_stream_finish(s->s, &text, &len, &s->e);
    if (!st && !s->st && !s->ended) s->st = show(s, text, len, true);
    if (!st && s->st) st = fv_fail(e, s->st, "%s", s->e.text);
    return st;
}

/* Text goes out as parts while it is generated; the line end that completes the record comes last.
 */
static fv_status stream_one(fv_pipeline *p, const fv_text *text, fv_err *e)
{
    stream s = {.p = p, .text = {.env = &p->env}};
    fv_buf ids = {.env = &p->env};
    fv_status st = fv__writer_encode(&p->writer, &ids, text->s, text->n, e);
    if (!st && ((const generate_options *)p->options)->echo)
        st = fv__task_emit_part(p, text->s, text->n, e);
    if (!st) st = stream_ids(p, &s, &ids, e);
    if (s.s) fv_tok_stream_free(s.s);
    fv__buf_free(&s.text);
    fv__buf_free(&ids);
    fv__buf_str(&p->out, "\n");
    return st ? st : fv__task_emit(p, e);
}

/* ---- many, when they are done ---- */

static fv_status encode(fv_pipeline *p, fv_buf *ids, const fv_text *text, fv_err *e)
{
    return fv__writer_encode(&p->writer, ids, text->s, text->n, e);
}

/* Several hypotheses of one prompt are one result. */
static fv_status each(fv_pipeline *p, const fv_text *text, const fv_buf *prompt, int64_t i,
                      const fv_hyp *h, bool last, fv_err *e)
{
    const generate_options *o = p->options;
    fv_buf more = {.env = &p->env}, *b = &p->out;
    fv_status st = fv__writer_decode(&p->writer, &more, prompt, h->ids, h->n, e);
    fv__cut_at_stop(p, &more);
    if (!st && p->opt.json) {
        fv__json_begin(b, '{');
        fv__json_text_at(b, "prompt", text->s, text->n);
        fv__json_text_at(b, "text", more.data ? more.data : "", more.len);
        fv__json_int_at(b, "tokens", h->n);
        fv__json_number_at(b, "score", h->score);
        fv__json_end(b, '}');
    } else if (!st) {
        /* a generated text may hold line ends: an empty line stands between two of them */
        if (i || p->first + p->done > 1) fv__buf_str(b, "\n");
        if (o->echo) fv__buf_add(b, text->s, text->n);
        fv__buf_add(b, more.data ? more.data : "", more.len);
    }
    fv__buf_str(b, "\n");
    fv__buf_free(&more);
    if (st) return st;
    return last ? fv__task_emit(p, e) : FV_OK;
}

/* One prompt is written as it is generated; several go through the model together and come out
 * whole. */
static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    static const fv_writer_job job = {.encode = encode, .each = each};
    const fv_gen_opt *g = &p->writer.gen;
    bool alone = n == 1 && p->first + p->done == 1;
    if (alone && !p->opt.json && g->num_beams == 1 && g->num_return_sequences == 1)
        return stream_one(p, in, e);
    return fv__write_all(p, &job, in, n, e);
}

static const fv_task_example examples[] = {
    {"fovea generate -m gpt2 'The meaning of life is'",
     "greedy, or as the model's generation_config.json says"},
    {"fovea generate -m gpt2 --temperature 0.8 --top-p 0.95 --seed 7 'Once upon a time'",
     "sampled"},
    {"fovea generate -m gpt2 --stop . --stop ! 'Once upon a time'", "one sentence"},
    {"fovea generate -m gpt2-xl --assistant gpt2 --num-assistant-tokens 6 'Once upon a time'",
     "the same text in less time: a smaller model drafts, this one verifies"},
    {"fovea generate -m t5-small --num-beams 4 'translate English to German: The house is small.'",
     "with an encoder"},
    {"fovea generate -m gpt2 --json < prompts.txt", "a prompt a line, a JSON object a line"},
    {0}};

const fv_task_kind fv__generate_task = {
    .name = "generate",
    .summary = "continue a prompt",
    .about = "Continues a prompt with a language model, or answers a source with a model that has "
             "an encoder.  The prompt is the argument, the text of a file, or each line of "
             "standard input.  A single prompt is continued token by token as it is generated; of "
             "many, --batch go through the model together, each gives the same text as alone, and "
             "an empty line stands between two texts.\n\n"
             "What the command line does not say comes from the model's generation_config.json; "
             "names and meanings are those of transformers.  A temperature, top-k, top-p, min-p or "
             "typical-p means sampling, except a temperature of 0, which is greedy.  The same seed "
             "gives the same text.",
    .examples = examples,
    .options = options,
    .size = sizeof(generate_options),
    .generates = true,
    .prompt = true,
    .may_be_empty = true,
    .batch = 16,
    .check = check,
    .open = open_task,
    .run = run};
