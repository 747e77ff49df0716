/* write.c - what commands that write text share. */
#include "write.h"

#include <pthread.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool given(const cli_settings *s, const char *key)
{
    for (int i = 0; s && i < s->n; i++)
        if (!strcmp(s->at[i].key, key)) return true;
    return false;
}

static bool model_says(const writer *w, const char *key)
{
    const fv_json *generation = fv_dir_generation(w->dir);
    return fv_json_has(fv_dir_config(w->dir), key) || (generation && fv_json_has(generation, key));
}

/* What the command line says about generating, over what the model says; what decides how a token
 * is drawn means drawing. */
static int apply(writer *w, const cli_settings *set, const char *task, int64_t new_tokens)
{
    char of_task[96];
    static const char *const drawing[] = {"temperature", "top_k", "top_p", "min_p", "typical_p"};
    int code = set ? cli_apply(w->c, set, &w->gen, fv_gen_fields) : CLI_OK;
    for (size_t i = 0; i < sizeof drawing / sizeof *drawing; i++)
        if (given(set, drawing[i]) && !given(set, "do_sample")) w->gen.do_sample = true;
    if (w->gen.do_sample && !given(set, "num_beams")) w->gen.num_beams = 1;
    snprintf(of_task, sizeof of_task, "task_specific_params.%s.max_length", task ? task : "");
    if (!w->gen.max_new_tokens && !given(set, "max_length") && !model_says(w, "max_length") &&
        !model_says(w, of_task))
        w->gen.max_new_tokens = new_tokens;
    return code;
}

/* The tokenizer is read while the weights are laid out: it is a third of the time to the first
 * token. */
typedef struct reading {
    const char *dir;
    fv_tok *tok;
    fv_err e;
} reading;

static void *read_tokenizer(void *user)
{
    reading *r = user;
    r->e.code = fv_tok_open(&r->tok, NULL, r->dir, &r->e);
    return NULL;
}

static fv_status open_both(writer *w, const cli_model *m, fv_model_opt how, fv_err *e)
{
    pthread_t thread;
    reading r = {.dir = m->dir};
    bool aside = !pthread_create(&thread, NULL, read_tokenizer, &r);
    fv_status st = fv_model_open(&w->model, w->device, m->dir, how, e);
    if (aside)
        pthread_join(thread, NULL);
    else
        read_tokenizer(&r);
    w->tok = r.tok;
    if (!st && r.e.code) *e = r.e;
    return st ? st : r.e.code ? r.e.code : fv_encoding_new(&w->enc, w->tok, e);
}

int writer_open(writer *w, const cli *c, const cli_model *m, const cli_settings *set,
                const char *task, int64_t new_tokens)
{
    fv_err e;
    double begin;
    fv_model_opt how = {.serve = true};
    *w = (writer){.c = c, .begin = -1};
    cli_choose_weights(m->dtype, &how.weights, &how.widen);
    if (!m->dir) return cli_usage(c, "a model is needed: -m DIR");
    if (fv_device_open(&w->device, m->device, (fv_device_opt){.threads = (int)m->threads}, &e) ||
        fv_dir_open(&w->dir, NULL, m->dir, &e) || open_both(w, m, how, &e) ||
        fv_gen_config_open(&w->config, NULL, m->dir, task, &e))
        return cli_error(c, &e);
    const fv_family *f = fv_model_family(w->model);
    w->gen = *fv_gen_config_options(w->config);
    w->encoder = f->begin != NULL;
    if (fv_json_number(fv_dir_config(w->dir), "bos_token_id", &begin)) w->begin = (int32_t)begin;
    if (!f->step || f->vocabulary(fv_model_self(w->model)) < 1)
        return cli_fail(c, "%s: %s does not write text", m->dir, fv_model_head(w->model));
    return apply(w, set, task, new_tokens);
}

void writer_close(writer *w)
{
    fv_gen_config_close(w->config);
    fv_model_free(w->model);
    fv_encoding_free(w->enc);
    fv_tok_close(w->tok);
    fv_dir_close(w->dir);
    fv_device_close(w->device);
}

/* ---- ids ---- */

bool ids_add(ids *x, const int32_t *more, int64_t n)
{
    if (x->n + n > x->cap) {
        int64_t cap = 2 * (x->n + n) + 64;
        int32_t *bigger = realloc(x->at, (size_t)cap * sizeof *bigger);
        if (!bigger) return false;
        x->at = bigger;
        x->cap = cap;
    }
    if (n > 0) memcpy(x->at + x->n, more, (size_t)n * sizeof *more);
    x->n += n;
    return true;
}

void ids_free(ids *x)
{
    free(x->at);
    *x = (ids){0};
}

/* ---- text ---- */

int writer_encode(writer *w, ids *out, const char *text, size_t len)
{
    fv_err e;
    if (fv_tok_encode(w->enc, text, len, (fv_tok_opts){.specials = true}, &e))
        return cli_error(w->c, &e);
    if (!w->enc->n && !w->encoder && w->begin >= 0 && !ids_add(out, &w->begin, 1))
        return cli_fail(w->c, "out of memory");
    return ids_add(out, w->enc->ids, w->enc->n) ? CLI_OK : cli_fail(w->c, "out of memory");
}

int writer_stream_open(writer *w, fv_tok_stream **out, const ids *prompt)
{
    fv_err e;
    const char *text;
    size_t len;
    if (fv_tok_stream_new(out, w->tok, true, &e)) return cli_error(w->c, &e);
    for (int64_t i = 0; !w->encoder && i < prompt->n; i++)
        if (fv_tok_stream_push(*out, prompt->at[i], &text, &len, &e)) return cli_error(w->c, &e);
    return CLI_OK;
}

int writer_decode(writer *w, char **out, size_t *len, const ids *prompt, const int32_t *more,
                  int64_t n)
{
    fv_err e;
    fv_tok_stream *s = NULL;
    int code = writer_stream_open(w, &s, prompt);
    *out = NULL;
    *len = 0;
    size_t cap = 0;
    for (int64_t i = 0; i <= n && !code; i++) {
        const char *piece;
        size_t k;
        if (i < n ? fv_tok_stream_push(s, more[i], &piece, &k, &e)
                  : fv_tok_stream_finish(s, &piece, &k, &e)) {
            code = cli_error(w->c, &e);
            break;
        }
        char *bigger = *len + k + 1 > cap ? realloc(*out, cap = 2 * (*len + k) + 64) : *out;
        if (!bigger) {
            code = cli_fail(w->c, "out of memory");
            break;
        }
        *out = bigger;
        memcpy(*out + *len, piece, k);
        (*out)[ *len += k] = 0;
    }
    if (s) fv_tok_stream_free(s);
    return code;
}

/* ---- many together ---- */

static int run_part(writer *w, const writer_job *job, const fv_text *in, int64_t n)
{
    fv_err e;
    fv_generated out = {0};
    int code = CLI_OK;
    ids *source = calloc((size_t)n, sizeof *source);
    const int32_t **at = calloc((size_t)n, sizeof *at);
    int64_t *len = calloc((size_t)n, sizeof *len);
    if (!source || !at || !len) code = cli_fail(w->c, "out of memory");
    for (int64_t i = 0; i < n && !code; i++) {
        code = job->encode(w, job->user, &source[i], &in[i]);
        at[i] = source[i].at;
        len[i] = source[i].n;
    }
    if (!code && fv_generate(&out, w->device, w->model, at, len, n, &w->gen, &e))
        code = cli_error(w->c, &e);
    for (int64_t i = 0; i < out.n * out.each && !code; i++)
        code = job->print(w, job->user, &in[i / out.each], &source[i / out.each], &out.hyp[i]);
    fv_generated_free(&out);
    for (int64_t i = 0; source && i < n; i++) ids_free(&source[i]);
    free(source);
    free(at);
    free(len);
    return code;
}

int writer_run(writer *w, const writer_job *job, const fv_text *in, int64_t n)
{
    int code = CLI_OK;
    for (int64_t i = 0; i < n && !code; i += job->together)
        code = run_part(w, job, in + i, n - i < job->together ? n - i : job->together);
    return code;
}

/* ---- how likely a text is ---- */

int writer_score(writer *w, const fv_text *text, int64_t window, int64_t stride, double *log_p,
                 int64_t *tokens)
{
    fv_err e;
    ids x = {0};
    if (fv_tok_encode(w->enc, text->s, text->n, (fv_tok_opts){.specials = true}, &e))
        return cli_error(w->c, &e);
    bool begun = w->begin < 0 || (w->enc->n && w->enc->ids[0] == w->begin);
    bool ok = (begun || ids_add(&x, &w->begin, 1)) && ids_add(&x, w->enc->ids, w->enc->n);
    double *p = malloc((size_t)(x.n + 1) * sizeof *p);
    int code = ok && p ? CLI_OK : cli_fail(w->c, "out of memory");
    if (!code && x.n > 1 && fv_score(p, w->device, w->model, x.at, x.n, window, stride, &e))
        code = cli_error(w->c, &e);
    *tokens = x.n > 1 ? x.n - 1 : 0;
    *log_p = 0;
    for (int64_t i = 1; i < x.n && !code; i++) *log_p += p[i];
    free(p);
    ids_free(&x);
    return code;
}

int writer_score_pair(writer *w, const fv_text *text, double *log_p, int64_t *tokens)
{
    fv_err e;
    ids source = {0}, target = {0};
    *log_p = 0;
    int code = writer_encode(w, &source, text->s, text->n);
    if (!code && fv_tok_encode(w->enc, text->pair, text->pair_n,
                               (fv_tok_opts){.specials = true, .as_target = true}, &e))
        code = cli_error(w->c, &e);
    if (!code && !ids_add(&target, w->enc->ids, w->enc->n)) code = cli_fail(w->c, "out of memory");
    *tokens = target.n;
    const int32_t *at = target.at;
    if (!code && target.n &&
        fv_score_continuations(log_p, w->device, w->model, source.at, source.n, &at, &target.n, 1,
                               w->gen.start, &e))
        code = cli_error(w->c, &e);
    ids_free(&source);
    ids_free(&target);
    return code;
}
