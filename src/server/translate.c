/* translate.c - /v1/translate: texts through a model with an encoder and a decoder.
 *
 * The translator belongs to the engine's thread, and its settings are changed for one request and
 * put back: a request is one piece of work between two steps, so no other can see them. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define BAD "invalid_request_error"

typedef struct job {
    sv_text t;
    const fv_tok *tok;
    bool attention;
    int64_t each;
} job;

static void put_tokens(sv_text *t, const char *key, const fv_tok *tok, const int32_t *ids,
                       int64_t n)
{
    sv_key(t, key);
    sv_open(t, '[');
    for (int64_t i = 0; i < n; i++) {
        const char *s = fv_tok_token(tok, ids[i]);
        sv_string(t, s ? s : "", s ? strlen(s) : 0);
    }
    sv_close(t, ']');
}

/* Mean of all layers and heads of the attention to the source: a row for each token written. */
static void put_attention(job *k, const fv_translation *x)
{
    sv_text *t = &k->t;
    put_tokens(t, "source_tokens", k->tok, x->source, x->n_source);
    put_tokens(t, "target_tokens", k->tok, x->best->ids, x->best->n);
    sv_key(t, "attention");
    sv_open(t, '[');
    for (int64_t i = 0; x->attention && i < x->best->n; i++)
        sv_packed_reals(t, x->attention + i * x->n_source, x->n_source);
    sv_close(t, ']');
}

/* Receives translations in the order of the texts, whatever order they were computed in. */
static bool take(void *user, const fv_translation *x)
{
    job *k = user;
    sv_text *t = &k->t;
    sv_open(t, '{');
    sv_key(t, "text");
    sv_string(t, x->best->text, x->best->len);
    sv_real_at(t, "score", x->best->score);
    if (x->cut) sv_raw_at(t, "cut", "true");
    if (k->each > 1) {
        sv_key(t, "alternatives");
        sv_open(t, '[');
        for (int64_t i = 1; i < x->n_best; i++) {
            sv_open(t, '{');
            sv_key(t, "text");
            sv_string(t, x->best[i].text, x->best[i].len);
            sv_real_at(t, "score", x->best[i].score);
            sv_close(t, '}');
        }
        sv_close(t, ']');
    }
    if (k->attention) put_attention(k, x);
    sv_close(t, '}');
    return true;
}

/* Changes the translator's settings; translate puts them back. */
static bool read_options(sv_request *r, fv_gen_opt *o, job *k)
{
    int64_t beams = o->num_beams, most = 0;
    if (!sv_get_int(r, "num_beams", 1, 64, &beams) || !sv_get_int(r, "n", 1, beams, &k->each) ||
        !sv_get_int(r, "max_tokens", 1, 1 << 20, &most) ||
        !sv_get_bool(r, "attention", &k->attention))
        return false;
    o->num_beams = beams;
    o->num_return_sequences = k->each;
    if (most) o->max_new_tokens = most;
    return true;
}

/* The translator's settings are changed for this request and put back: the engine's thread runs one
 * request at a time. */
static void translate(sv_engine *g, sv_request *r)
{
    job k = {.tok = g->tok, .each = 1};
    fv_err e;
    int64_t n;
    if (!g->translator) {
        sv_refuse(r, 400, BAD, "model", "%s does not translate: it has no encoder and decoder",
                  g->name);
        return;
    }
    fv_gen_opt *o = fv_translator_gen(g->translator), before = *o;
    fv_text *texts = sv_read_texts(r, "input", false, &n);
    const char **s = texts ? calloc((size_t)n, sizeof *s) : NULL;
    size_t *len = texts ? calloc((size_t)n, sizeof *len) : NULL;
    for (int64_t i = 0; s && len && i < n; i++) s[i] = texts[i].s, len[i] = texts[i].n;
    if (s && len && read_options(r, o, &k)) {
        sv_begin_list(&k.t, g, "data");
        fv_lines lines = {.text = s, .len = len, .n = n};
        if (fv_translate(g->translator, lines, take, &k, &e)) {
            sv_refuse_error(r, &e);
        } else {
            sv_put(&k.t, "]}\n");
            sv_answer(r, 200, NULL, &k.t);
        }
    }
    *o = before;
    sv_free(&k.t);
    free(s);
    free(len);
    free(texts);
}

void sv_translate(sv_request *r)
{
    static const char *const keys[] = {"model",      "input",     "num_beams", "n",
                                       "max_tokens", "attention", NULL};
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL)) return;
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, translate);
}
