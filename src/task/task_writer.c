/* task_writer.c - models that generate: opened with tokenizer and generation settings, run on a
 * batch of prompts, asked for log-probabilities.
 *
 * Three sources say how to generate, the later ones first: settings of the caller,
 * generation_config.json (with task_specific_params), and the default number of new tokens of
 * the task. fv__apply_gen has the two rules that users expect of a command line and that the
 * files do not have.
 *
 * Ids of a prompt go into an fv_buf of int32 (fv__ids, fv__n_ids): prompts are built piece by
 * piece and their length is not known before.
 *
 * A writer belongs to one thread; its model may be shared. Sampling is seeded by the number of
 * the record, so the batch size never changes what is written. */
#include <pthread.h>
#include <stdlib.h>

#include <stdio.h>

#include "fovea/author/comm.h"
#include "task_pipeline.h"
#include "fovea/author/family.h"
#include "fovea/author/gen.h"
#include "fovea/author/parallel.h"

/* ---- settings ---- */

static bool model_says(const fv_writer *w, const char *key)
{
    const fv_json *generation = fv_dir_generation(w->dir);
    return fv_json_has(fv_dir_config(w->dir), key) || (generation && fv_json_has(generation, key));
}

static bool is_gen_key(const char *key)
{
    for (const fv_field *f = fv_gen_fields; f->name; f++)
        if (!strcmp(f->name, key)) return true;
    return false;
}

/* Whatever decides how a token is sampled means sampling, except a temperature of 0, which is
 * greedy. */
fv_status fv__apply_gen(fv_gen_opt *gen, const fv_setting *set, int n, fv_err *e)
{
    static const char *const sampling[] = {"temperature", "top_k", "top_p", "min_p", "typical_p"};
    const char *temperature = fv__setting(set, n, "temperature");
    char *end;
    /* "0" and "0.0" alike; a temperature of 0 cannot be divided by, so it never reaches the
     * table. */
    bool greedy = temperature && strtod(temperature, &end) == 0 && end != temperature && !*end;
    bool samples = false;
    for (int i = 0; i < n; i++) {
        if (!is_gen_key(set[i].key) || (greedy && !strcmp(set[i].key, "temperature"))) continue;
        if (fv_fields_set(gen, fv_gen_fields, set[i].key, set[i].value, e)) return FV_EUSAGE;
        for (size_t k = 0; k < sizeof sampling / sizeof *sampling; k++)
            samples |= !strcmp(set[i].key, sampling[k]);
    }
    if (greedy)
        gen->do_sample = false;
    else if (samples && !fv__setting(set, n, "do_sample"))
        gen->do_sample = true;
    /* Sampling from beams is another algorithm: asking for a temperature means sampling one
     * sequence. */
    if (gen->do_sample && !fv__setting(set, n, "num_beams")) gen->num_beams = 1;
    return FV_OK;
}

/* What the caller says about generating, over what the model says. */
static fv_status apply(fv_writer *w, fv_writer_opt o, fv_err *e)
{
    char of_task[96];
    fv_status st = fv__apply_gen(&w->gen, o.settings, o.n_settings, e);
    if (st) return st;
    /* Only where nobody says how long: transformers' own default of 20 tokens in all surprises
     * everybody. */
    snprintf(of_task, sizeof of_task, "task_specific_params.%s.max_length", o.task ? o.task : "");
    if (!w->gen.max_new_tokens && !fv__setting(o.settings, o.n_settings, "max_length") &&
        !model_says(w, "max_length") && !model_says(w, of_task))
        w->gen.max_new_tokens = o.new_tokens;
    return FV_OK;
}

/* ---- opening ---- */

/* The tokenizer is read while the weights are mapped: it is a third of the time to the first
 * token. */
typedef struct reading {
    const char *dir;
    const fv_env *env;
    fv_tok *tok;
    fv_err e;
} reading;

static void *read_tokenizer(void *user)
{
    reading *r = user;
    r->e.code = fv_tok_open(&r->tok, r->env, r->dir, &r->e);
    return NULL;
}

/* The tokenizer is read in a thread while the model is opened: a large vocabulary takes as long as
 * mapping the weights. */
static fv_status open_both(fv_writer *w, const char *dir, fv_model_opt how, const fv_writer_opt *o,
                           fv_err *e)
{
    pthread_t thread;
    reading r = {.dir = dir, .env = fv_device_env(w->device)};
    /* Without a thread the tokenizer is read afterwards: slower, and no error. */
    bool aside = !pthread_create(&thread, NULL, read_tokenizer, &r);
    fv_status st = o->stages ? fv_model_open_stages(&w->model, w->device, dir, how, o->stages, e)
                             : fv_model_open_ranks(&w->model, w->device, dir, how, o->ranks, e);
    if (aside)
        pthread_join(thread, NULL);
    else
        read_tokenizer(&r);
    w->tok = r.tok;
    if (!st && r.e.code && e) *e = r.e;
    /* The model's error wins over the tokenizer's, whichever came first. */
    if (st || r.e.code) return st ? st : r.e.code;
    return fv_encoding_new(&w->enc, w->tok, e);
}

/* Settings in the order in which they hold: generation_config.json, its part for the task, then
 * what was given. */
static fv_status open_all(fv_writer *w, const char *dir, fv_writer_opt o, fv_err *e)
{
    double begin;
    const fv_env *env = fv_device_env(w->device);
    fv_model_opt how = {.serve = true,
                        .weights = o.weights,
                        .widen = o.widen,
                        .adapters = o.adapters};
    fv_status st = fv_dir_open(&w->dir, env, dir, e);
    if (!st) st = open_both(w, dir, how, &o, e);
    if (!st) st = fv_gen_config_open(&w->config, env, dir, o.task, e);
    if (st) return st;
    w->gen = *fv_gen_config_options(w->config);
    const char *assistant = fv__setting(o.settings, o.n_settings, "assistant");
    how.adapters = (fv_adapter_list){0}; /* which are the model's */
    if (assistant && *assistant) st = fv_model_open(&w->assistant, w->device, assistant, how, e);
    if (st) return st;
    w->gen.assistant = w->assistant;
    const fv_family *f = fv_model_family(w->model);
    w->encoder = f->begin != NULL;
    /* config.json's, not the generation config's: it is what a prompt begins with. */
    if (fv_json_number(fv_dir_config(w->dir), "bos_token_id", &begin)) w->begin = (int32_t)begin;
    if (!f->step || f->vocabulary(fv_model_self(w->model)) < 1)
        return fv_fail(e, FV_EARG, "%s: %s does not write text", dir, fv_model_head(w->model));
    return apply(w, o, e);
}

fv_status fv_writer_open(fv_writer *w, fv_device *d, const char *dir, fv_writer_opt o, fv_err *e)
{
    *w = (fv_writer){.device = d, .begin = -1};
    fv_status st = open_all(w, dir, o, e);
    if (st) fv_writer_close(w);
    return st;
}

void fv_writer_close(fv_writer *w)
{
    fv_gen_config_close(w->config);
    fv_model_free(w->assistant);
    fv_model_free(w->model);
    fv_encoding_free(w->enc);
    fv_tok_close(w->tok);
    fv_dir_close(w->dir);
    *w = (fv_writer){0};
}

fv_status fv__open_writer(fv_pipeline *p, const char *task, int64_t new_tokens, fv_err *e)
{
    return fv_writer_open(&p->writer, p->dev, p->opt.model,
                          (fv_writer_opt){.weights = p->opt.weights,
                                          .widen = p->opt.widen,
                                          .adapters = p->opt.adapters,
                                          .settings = p->opt.settings,
                                          .n_settings = p->opt.n_settings,
                                          .task = task,
                                          .new_tokens = new_tokens,
                                          .ranks = p->opt.tensor_parallel ? p->opt.comm : NULL,
                                          .stages = p->opt.pipeline_parallel ? p->opt.comm : NULL},
                          e);
}

/* ---- text and ids ---- */

fv_status fv__ids_add(fv_buf *b, const int32_t *ids, int64_t n, fv_err *e)
{
    if (n > 0) fv__buf_add(b, ids, (size_t)n * sizeof *ids);
    return b->failed ? fv_fail(e, FV_ENOMEM, "out of memory for %lld ids", (long long)n) : FV_OK;
}

fv_status fv__writer_encode(fv_writer *w, fv_buf *out, const char *text, size_t len, fv_err *e)
{
    fv_status st = fv_tok_encode(w->enc, text, len, (fv_tok_opts){.specials = true}, e);
    /* A decoder cannot continue nothing: an empty prompt becomes its begin token. */
    if (!st && !w->enc->n && !w->encoder && w->begin >= 0) st = fv__ids_add(out, &w->begin, 1, e);
    return st ? st : fv__ids_add(out, w->enc->ids, w->enc->n, e);
}

/* A decoder's own tokens follow those of the prompt, and the space before the first of them
 * shows only in that company. An encoder's prompt is another text. */
fv_status fv__writer_stream(fv_writer *w, fv_tok_stream **out, const int32_t *prompt, int64_t n,
                            fv_err *e)
{
    const char *text;
    size_t len;
    fv_status st = fv_tok_stream_new(out, w->tok, true, e);
    for (int64_t i = 0; !st && !w->encoder && i < n; i++)
        st = fv_tok_stream_push(*out, prompt[i], &text, &len, e);
    return st;
}

/* Appends the text of ids that follow a prompt. */
fv_status fv__writer_decode(fv_writer *w, fv_buf *out, const fv_buf *prompt, const int32_t *ids,
                            int64_t n, fv_err *e)
{
    fv_tok_stream *s = NULL;
    fv_status st = fv__writer_stream(w, &s, fv__ids(prompt), fv__n_ids(prompt), e);
    for (int64_t i = 0; i <= n && !st; i++) {
        const char *piece;
        size_t len;
        st = i < n ? fv_tok_stream_push(s, ids[i], &piece, &len, e)
                   : fv_tok_stream_finish(s, &piece, &len, e);
        if (!st) fv__buf_add(out, piece, len);
    }
    if (s) fv_tok_stream_free(s);
    return st || !out->failed ? st : fv_fail(e, FV_ENOMEM, "out of memory");
}

/* Settings first, then those of generation_config.json. The text of a setting's stop is cut off,
 * that of the model's stays, as transformers leaves stop_strings in the output. */
const char *fv__stop_string(const fv_pipeline *p, int i, bool *kept)
{
    int n = 0;
    *kept = false;
    for (int k = 0; k < p->opt.n_settings; k++)
        if (!strcmp(p->opt.settings[k].key, "stop") && !i--) return p->opt.settings[k].value;
    const char *const *more = p->writer.config ? fv_gen_config_stops(p->writer.config, &n) : NULL;
    *kept = true;
    return i < n ? more[i] : NULL;
}

/* The stop that ends first decides; false: there is none. */
bool fv__cut_at_stop(const fv_pipeline *p, fv_buf *text)
{
    size_t end = SIZE_MAX;
    bool kept;
    const char *stop;
    for (int i = 0; text->data && (stop = fv__stop_string(p, i, &kept)); i++) {
        const char *at = strstr(text->data, stop);
        size_t to = at ? (size_t)(at - text->data) + (kept ? strlen(stop) : 0) : SIZE_MAX;
        if (to < end) end = to;
    }
    if (end == SIZE_MAX) return false;
    text->data[text->len = end] = 0;
    return true;
}

/* ---- a batch ---- */

/* Where there are stop strings: a stream for each source, and its text so far. */
typedef struct stopping {
    const fv_pipeline *p;
    fv_tok_stream **stream;
    fv_buf *text;
    fv_err e;
} stopping;

/* false ends the sequence. Called for every new token, in the thread that generates. */
static bool stop_here(void *user, int64_t source, int32_t token)
{
    stopping *s = user;
    const char *piece;
    size_t n;
    if (fv_tok_stream_push(s->stream[source], token, &piece, &n, &s->e)) return false;
    fv__buf_add(&s->text[source], piece, n);
    return !fv__cut_at_stop(s->p, &s->text[source]);
}

typedef struct batch {
    fv_buf *ids; /* of each text */
    const int32_t **at;
    int64_t *len, *numbers;
    stopping stops;
    fv_generated out;
} batch;

/* A batch of prompts together; each has its own tokenizer stream where stop strings must be found
 * while text is generated. */
static fv_status generate(fv_pipeline *p, const fv_writer_job *job, batch *b, const fv_text *in,
                          int64_t n, fv_err *e)
{
    fv_status st = FV_OK;
    fv_gen_opt gen = p->writer.gen;
    /* Beams have no one text so far, so stop strings are then looked for at the end only. */
    bool kept,
        stops = fv__stop_string(p, 0, &kept) && gen.num_beams == 1 && gen.num_return_sequences == 1;
    for (int64_t i = 0; i < n && !st; i++) {
        b->ids[i].env = b->stops.text[i].env = &p->env;
        st = job->encode(p, &b->ids[i], &in[i], e);
        if (!st && stops)
            st = fv__writer_stream(&p->writer, &b->stops.stream[i], fv__ids(&b->ids[i]),
                                   fv__n_ids(&b->ids[i]), e);
        b->at[i] = fv__ids(&b->ids[i]);
        b->len[i] = fv__n_ids(&b->ids[i]);
        /* by the number of the record: what is sampled does not depend on the batch */
        b->numbers[i] = p->first - 1 + p->done + i;
    }
    gen.numbers = b->numbers;
    if (stops) gen.token = stop_here, gen.user = &b->stops;
    if (!st) st = fv_generate(&b->out, p->dev, p->writer.model, b->at, b->len, n, &gen, e);
    if (!st && b->stops.e.code) st = fv_fail(e, b->stops.e.code, "%s", b->stops.e.text);
    for (int64_t i = 0; i < b->out.n * b->out.each && !st; i++) {
        int64_t k = i / b->out.each;
        p->tokens += b->out.hyp[i].n;
        /* The last argument tells the job that this was the record's last hypothesis. */
        st = job->each(p, &in[k], &b->ids[k], i % b->out.each, &b->out.hyp[i],
                       i % b->out.each == b->out.each - 1, e);
    }
    return st;
}

fv_status fv__write_all(fv_pipeline *p, const fv_writer_job *job, const fv_text *in, int64_t n,
                        fv_err *e)
{
    /* All arrays of a batch in one block, the widest members first. */
    size_t each = 2 * sizeof(fv_buf) + 2 * sizeof(void *) + 2 * sizeof(int64_t);
    char *memory = fv__alloc(&p->env, (size_t)n * each);
    if (!memory) return fv_fail(e, FV_ENOMEM, "out of memory for %lld texts", (long long)n);
    batch b = {.ids = (fv_buf *)(void *)memory, .stops.p = p};
    b.stops.text = b.ids + n;
    b.stops.stream = (fv_tok_stream **)(void *)(b.stops.text + n);
    b.at = (const int32_t **)(void *)(b.stops.stream + n);
    b.len = (int64_t *)(void *)(b.at + n);
    b.numbers = b.len + n;
    fv_status st = generate(p, job, &b, in, n, e);
    fv_generated_free(&b.out);
    for (int64_t i = 0; i < n; i++) {
        fv__buf_free(&b.ids[i]);
        fv__buf_free(&b.stops.text[i]);
        if (b.stops.stream[i]) fv_tok_stream_free(b.stops.stream[i]);
    }
    fv__free(&p->env, memory, (size_t)n * each);
    return st;
}

/* ---- log-probabilities ---- */

/* Log-probabilities of ids 1 to n - 1, of which ranks compute some windows each; those with a cache
 * too. */
static fv_status score_shared(double *p, fv_writer *w, const int32_t *ids, int64_t n,
                              fv_score_opt how, fv_comm *c, fv_err *e)
{
    int size = fv_comm_size(c), rank = fv_comm_rank(c);
    const fv_env *env = fv_device_env(w->device);
    size_t bytes = (size_t)size * (2 * sizeof(int64_t) + sizeof(fv_comm_part));
    int64_t(*range)[2] = fv__alloc(env, bytes);
    fv_comm_part *part = (fv_comm_part *)(void *)(range + size);
    fv_status st = range ? fv_score_part(p, w->device, w->model, ids, n, how, rank, size,
                                         &range[rank][0], &range[rank][1], e)
                         : fv_fail(e, FV_ENOMEM, "out of memory");
    st = fv_comm_agree(c, st, e);
    for (int r = 0; !st && r < size; r++) part[r] = (fv_comm_part){r, range[r], sizeof *range};
    if (!st) st = fv_comm_all_gather(c, part, e);
    double *parts[] = {p, how.cache.out};
    for (int i = 0; !st && i < 2; i++) {
        if (!parts[i]) continue;
        for (int r = 0; r < size; r++)
            part[r] = (fv_comm_part){r, parts[i] + range[r][0],
                                     (size_t)(range[r][1] - range[r][0]) * sizeof *p};
        st = fv_comm_all_gather(c, part, e);
    }
    fv__free(env, range, bytes);
    return st;
}

fv_status fv__writer_score(fv_writer *w, const fv_text *text, int64_t window, int64_t stride,
                           double *log_p, int64_t *tokens, fv_err *e)
{
    double both[2];
    fv_score_opt how = {.window = window, .stride = stride};
    fv_status st = fv__writer_score_ranks(w, text, how, NULL, both, tokens, e);
    *log_p = both[0];
    return st;
}

fv_status fv__writer_score_ranks(fv_writer *w, const fv_text *text, fv_score_opt how, fv_comm *c,
                                 double log_p[2], int64_t *tokens, fv_err *e)
{
    const fv_env *env = fv_device_env(w->device);
    fv_buf x = {.env = env};
    log_p[0] = log_p[1] = 0;
    *tokens = 0;
    fv_status st = fv_tok_encode(w->enc, text->s, text->n, (fv_tok_opts){.specials = true}, e);
    if (st) return st;
    /* Without a begin token the first token of a text has no probability: nothing precedes it. */
    bool begun = w->begin < 0 || (w->enc->n && w->enc->ids[0] == w->begin);
    if (!begun) st = fv__ids_add(&x, &w->begin, 1, e);
    if (!st) st = fv__ids_add(&x, w->enc->ids, w->enc->n, e);
    int64_t n = fv__n_ids(&x);
    size_t bytes = (size_t)(n + 1) * 2 * sizeof(double);
    double *p = fv__alloc(env, bytes);
    how.cache.out = how.cache.size > 0 && p ? p + n + 1 : NULL;
    if (!st && !p) st = fv_fail(e, FV_ENOMEM, "out of memory");
    if (!st && n > 1) st = score_shared(p, w, fv__ids(&x), n, how, c, e);
    /* The first token is given, not scored. */
    if (!st) *tokens = n > 1 ? n - 1 : 0;
    for (int64_t i = 1; i < n && !st; i++) {
        log_p[0] += p[i];
        if (how.cache.out) log_p[1] += how.cache.out[i];
    }
    fv__free(env, p, bytes);
    fv__buf_free(&x);
    return st;
}

fv_status fv__writer_score_pair(fv_writer *w, const fv_text *text, double *log_p, int64_t *tokens,
                                fv_err *e)
{
    const fv_env *env = fv_device_env(w->device);
    fv_buf source = {.env = env}, target = {.env = env};
    *log_p = 0;
    fv_status st = fv__writer_encode(w, &source, text->s, text->n, e);
    if (!st) /* The target side has a vocabulary or a model of its own in Marian's directories. */
        st = fv_tok_encode(w->enc, text->pair, text->pair_n,
                           (fv_tok_opts){.specials = true, .as_target = true}, e);
    if (!st) st = fv__ids_add(&target, w->enc->ids, w->enc->n, e);
    int64_t n = fv__n_ids(&target);
    const int32_t *at = fv__ids(&target);
    *tokens = n;
    if (!st && n)
        st = fv_score_continuations(log_p, w->device, w->model, fv__ids(&source),
                                    fv__n_ids(&source), &at, &n, 1, w->gen.start, e);
    fv__buf_free(&source);
    fv__buf_free(&target);
    return st;
}
