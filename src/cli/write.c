/* write.c - what commands that write text share. */
#include "write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The keys of the library's table, in the order of GENERATE_OPTIONS. */
static const char *const keys[WRITER_KEYS] = {
    "max_new_tokens",     "min_new_tokens",       "num_beams", "length_penalty", "early_stopping", "num_return_sequences",
    "do_sample",          "temperature",          "top_k",     "top_p",          "min_p",          "typical_p",
    "repetition_penalty", "no_repeat_ngram_size", "seed",
};

/* What the command line says about generating, over what the model says. */
static int apply_keys(writer *w, const writer_values *v, int64_t new_tokens)
{
    fv_err e;
    bool draws = false;
    for (int i = 0; i < WRITER_KEYS && keys[i]; i++) {
        if (!v->key[i]) continue;
        if (fv_fields_set(&w->gen, fv_gen_fields, keys[i], v->key[i], &e)) return cli_usage(w->c, "%s", e.text);
        draws = draws || (i >= 7 && i <= 11);
    }
    if (draws && !v->key[6]) w->gen.do_sample = true;
    if (w->gen.do_sample && !v->key[2]) w->gen.num_beams = 1;
    bool said = v->key[0] || w->gen.max_new_tokens || fv_json_has(fv_dir_config(w->dir), "max_length") ||
                (fv_dir_generation(w->dir) && fv_json_has(fv_dir_generation(w->dir), "max_length"));
    if (!said) w->gen.max_new_tokens = new_tokens;
    return CLI_OK;
}

int writer_open(writer *w, const cli *c, const writer_values *v, const char *task, int64_t new_tokens)
{
    fv_err e;
    double begin;
    fv_model_opt how = {.serve = true};
    *w = (writer){.c = c, .begin = -1};
    fv_dtype_parse(&how.weights, cli_weights[v->dtype]);
    if (!v->model) return cli_usage(c, "a model is needed: -m DIR");
    if (fv_device_open(&w->device, v->device, (fv_device_opt){.threads = (int)v->threads}, &e) ||
        fv_dir_open(&w->dir, NULL, v->model, &e) || fv_tok_open(&w->tok, NULL, v->model, &e) ||
        fv_encoding_new(&w->enc, w->tok, &e) || fv_model_open(&w->model, w->device, v->model, how, &e) ||
        fv_gen_open(&w->gen, NULL, v->model, task, &e))
        return cli_error(c, &e);
    const fv_family *f = fv_model_family(w->model);
    w->has_gen = true;
    w->encoder = f->begin != NULL;
    if (fv_json_number(fv_dir_config(w->dir), "bos_token_id", &begin)) w->begin = (int32_t)begin;
    if (!f->step || f->vocabulary(fv_model_self(w->model)) < 1)
        return cli_fail(c, "%s: %s does not write text", v->model, fv_model_head(w->model));
    return apply_keys(w, v, new_tokens);
}

void writer_close(writer *w)
{
    if (w->has_gen) fv_gen_close(&w->gen);
    fv_model_free(w->model);
    if (w->enc) fv_encoding_free(w->enc);
    if (w->tok) fv_tok_close(w->tok);
    fv_dir_close(w->dir);
    fv_device_close(w->device);
}

/* ---- ids and lines ---- */

bool ids_add(ids *x, const int32_t *more, int64_t n)
{
    if (x->n + n > x->cap) {
        int64_t cap = 2 * (x->n + n) + 64;
        int32_t *bigger = realloc(x->at, (size_t)cap * sizeof *bigger);
        if (!bigger) return false;
        x->at = bigger;
        x->cap = cap;
    }
    memcpy(x->at + x->n, more, (size_t)n * sizeof *more);
    x->n += n;
    return true;
}

void ids_free(ids *x)
{
    free(x->at);
    *x = (ids){0};
}

static char *slurp(FILE *f, size_t *len)
{
    char *text = NULL;
    size_t cap = 0, got = 1;
    for (*len = 0; got; *len += got) {
        if (cap - *len < 65537) {
            char *bigger = realloc(text, cap = cap * 2 + 131072);
            if (!bigger) break;
            text = bigger;
        }
        got = fread(text + *len, 1, cap - *len - 1, f);
    }
    if (got || ferror(f)) {
        free(text);
        return NULL;
    }
    text[*len] = 0;
    return text;
}

/* Cuts the text at its line ends. */
static bool cut(lines *l, size_t len)
{
    int64_t cap = 1;
    for (size_t i = 0; i < len; i++) cap += l->text[i] == '\n';
    l->at = calloc((size_t)cap, sizeof *l->at);
    l->len = calloc((size_t)cap, sizeof *l->len);
    if (!l->at || !l->len) return false;
    for (size_t from = 0; from < len;) {
        char *end = memchr(l->text + from, '\n', len - from);
        size_t n = end ? (size_t)(end - (l->text + from)) : len - from;
        l->at[l->n] = l->text + from;
        l->len[l->n++] = n && l->text[from + n - 1] == '\r' ? n - 1 : n;
        from += n + 1;
    }
    return true;
}

int read_lines(const cli *c, lines *out, const char *path, bool whole)
{
    FILE *f = path ? fopen(path, "rb") : stdin;
    size_t len;
    *out = (lines){0};
    if (!f) return cli_fail(c, "%s: cannot open", path);
    out->text = slurp(f, &len);
    if (path) fclose(f);
    if (!out->text) return cli_fail(c, "%s: cannot read", path ? path : "standard input");
    if (!whole) return cut(out, len) ? CLI_OK : cli_fail(c, "out of memory");
    out->at = calloc(1, sizeof *out->at);
    out->len = calloc(1, sizeof *out->len);
    if (!out->at || !out->len) return cli_fail(c, "out of memory");
    out->at[0] = out->text;
    out->len[0] = len;
    out->n = 1;
    return CLI_OK;
}

void free_lines(lines *l)
{
    free(l->text);
    free(l->at);
    free(l->len);
    *l = (lines){0};
}

/* ---- text ---- */

int writer_encode(writer *w, ids *out, const char *text, size_t len)
{
    fv_err e;
    if (fv_tok_encode(w->enc, text, len, (fv_tok_opts){.specials = true}, &e)) return cli_error(w->c, &e);
    if (!w->enc->n && !w->encoder && w->begin >= 0 && !ids_add(out, &w->begin, 1)) return cli_fail(w->c, "out of memory");
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

int writer_decode(writer *w, char **out, size_t *len, const ids *prompt, const int32_t *more, int64_t n)
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
        if (i < n ? fv_tok_stream_push(s, more[i], &piece, &k, &e) : fv_tok_stream_finish(s, &piece, &k, &e)) {
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
