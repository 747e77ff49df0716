/* see.c - a text that is looked at: encoding it, one forward pass, and three questions about heads.
 *
 * /v1/heads tells what every head does, /v1/ablate what the model expects next when some of them
 * add nothing, /v1/neurons the query and the keys behind one row of weights.  All three cost a pass
 * or two and are asked by the page, a click at a time. */
#include "ranks.h"
#include "see.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BAD "invalid_request_error"

enum { MOST_SILENT = 1024 };

/* ---- the pass ---- */

/* A field's text as ids, which the caller frees; false: refused. */
static bool encode(sv_see *k, const char *key, bool as_target, int32_t **out, int64_t *n)
{
    const char *text = NULL;
    size_t len = 0;
    fv_err e;
    if (!sv_get_text(k->r, key, &text, &len)) return false;
    if (!text) {
        sv_refuse(k->r, 400, BAD, key, "%s: a string is needed", key);
        return false;
    }
    fv_encoding *enc = sv_take_encoding(k->g, &e);
    fv_tok_opts how = {.specials = true, .as_target = as_target};
    bool ok = enc && !fv_tok_encode(enc, text, len, how, &e);
    if (!ok) sv_refuse_error(k->r, &e);
    if (ok && (*out = malloc((size_t)(enc->n + 1) * sizeof **out))) {
        if (enc->n) memcpy(*out, enc->ids, (size_t)enc->n * sizeof **out);
        *n = enc->n;
    }
    if (enc) sv_give_encoding(k->g, enc);
    if (ok && !*n) sv_refuse(k->r, 400, BAD, key, "%s: the text has no tokens", key);
    return ok && *n > 0;
}

/* "kind" says which attention of a model of two stacks is meant; its cross-attention if it is
 * missing. */
static bool choose_kind(sv_see *k, bool pair)
{
    const char *word = NULL;
    k->kind = FV_SEE_KINDS;
    if (!sv_get_text(k->r, "kind", &word, NULL)) return false;
    for (int i = 0; i < FV_SEE_KINDS; i++) {
        bool meant = word ? !strcmp(word, fv_see_kind_name((fv_see_kind)i))
                          : !pair || i == FV_SEE_CROSS;
        if (meant && fv_see_shape_of(k->see, (fv_see_kind)i).layers && k->kind == FV_SEE_KINDS)
            k->kind = (fv_see_kind)i;
    }
    if (k->kind != FV_SEE_KINDS) {
        k->shape = fv_see_shape_of(k->see, k->kind);
        return true;
    }
    sv_refuse(k->r, 400, BAD, "kind",
              "kind: encoder, decoder or cross was expected, one that the model has");
    return false;
}

/* A translator needs the target too: here, unlike in `fovea see`, none is made. */
bool sv_see_read(sv_see *k, sv_engine *g, sv_request *r)
{
    const char *target = NULL; /* of the right type also where the model takes none */
    fv_err e;
    *k = (sv_see){.g = g, .r = r};
    if (sv_shared(&g->server->opt)) {
        sv_refuse_shared(&e);
        sv_refuse_error(r, &e);
        return false;
    }
    return sv_get_text(r, "target", &target, NULL) &&
           encode(k, "input", false, &k->source, &k->n_source) &&
           (!g->translator || encode(k, "target", true, &k->target, &k->n_target));
}

/* What the decoder of the model begins with, and its end token (-1: none). */
static bool read_ends(sv_see *k, int32_t *end)
{
    fv_gen_config *how;
    fv_err e;
    if (fv_gen_config_open(&how, NULL, k->g->dir, NULL, &e)) {
        sv_refuse_error(k->r, &e);
        return false;
    }
    k->start = fv_gen_config_options(how)->start;
    *end = fv_gen_config_options(how)->eos;
    fv_gen_config_close(how);
    return true;
}

/* What was heard in the sound as the decoder wrote it: the text's tokens with the special ones
 * around them, of which the first is what the decoder begins with. */
static bool read_heard(sv_see *k, fv_err *e)
{
    sv_engine *g = k->g;
    fv_encoding *enc = NULL;
    sv_text said = {0};
    int32_t end = -1;
    if (!read_ends(k, &end) || !sv_media_transcript(&k->image, &said)) {
        sv_free(&said);
        return false;
    }
    fv_status st = g->words ? FV_OK : fv_tok_open(&g->words, NULL, g->dir, e);
    if (!st) st = fv_encoding_new(&enc, g->words, e);
    if (!st)
        st = fv_tok_encode(enc, said.s ? said.s : "", said.n, (fv_tok_opts){.specials = true}, e);
    int64_t skip = !st && enc->n && enc->ids[0] == k->start;
    k->target = st ? NULL : malloc((size_t)(enc->n + 1) * sizeof *k->target);
    for (int64_t i = skip; k->target && i < enc->n; i++) k->target[k->n_target++] = enc->ids[i];
    bool ended = k->n_target && k->target[k->n_target - 1] == end;
    if (k->target && end >= 0 && !ended) k->target[k->n_target++] = end;
    if (st) sv_refuse_error(k->r, e);
    fv_encoding_free(enc);
    sv_free(&said);
    return k->target != NULL;
}

/* A model that describes images or writes what it hears is looked at while it writes. */
static bool read_media(sv_see *k, sv_engine *g, sv_request *r)
{
    fv_err e;
    int32_t end;
    *k = (sv_see){.g = g, .r = r};
    if (!sv_media_open(&k->image, g, r)) return false;
    if (!strcmp(g->media, "transcribe")) return read_heard(k, &e);
    if (strcmp(g->media, "caption")) return true;
    return sv_media_caption(&k->image, &k->target, &k->n_target) && read_ends(k, &end);
}

fv_see_in sv_see_in(const sv_see *k)
{
    fv_see_in in = {.tok = k->g->tok, .source = k->source, .n_source = k->n_source};
    bool hears = k->g->media && !strcmp(k->g->media, "transcribe");
    if (hears) in.tok = k->g->words;
    if (k->image.n) in.image = k->image.path[0], in.dir = k->g->dir, in.start = k->start;
    in.target = k->target, in.n_target = k->n_target;
    if (k->g->translator) in.start = fv_translator_gen(k->g->translator)->start;
    return in;
}

/* The capture that is kept, or a pass; an outline where that is enough and the model has one. */
static bool look(sv_see *k, bool outline)
{
    sv_engine *g = k->g;
    fv_err e;
    const fv_model *m = sv_engine_model(k->r, &e);
    k->adapted = k->r->adapted;
    if (!g->media && sv_seen_take(g, k)) return choose_kind(k, k->n_target > 0);
    fv_see_in in = sv_see_in(k);
    in.outline = k->outline = m && outline && !g->media;
    if (in.outline && fv_see_run(&k->see, g->device, m, in, NULL)) in.outline = k->outline = false;
    if (!m || (!k->see && fv_see_run(&k->see, g->device, m, in, &e))) {
        sv_refuse_error(k->r, &e);
        return false;
    }
    return choose_kind(k, k->n_target > 0);
}

/* Reads, runs one pass and chooses the kind of attention; whatever came of it, sv_see_free releases
 * it. */
bool sv_see_run(sv_see *k, sv_engine *g, sv_request *r)
{
    return (g->media ? read_media(k, g, r) : sv_see_read(k, g, r)) && look(k, false);
}

bool sv_see_outline(sv_see *k, sv_engine *g, sv_request *r)
{
    return (g->media ? read_media(k, g, r) : sv_see_read(k, g, r)) && look(k, true);
}

/* Whether it fails tells the request that needs it: that one is the next of the page. */
void sv_see_complete(sv_see *k)
{
    if (!k->outline) return;
    fv_see_free(k->see);
    k->see = NULL;
    k->outline = false;
    fv_see_run(&k->see, k->g->device, sv_asked_model(k->r), sv_see_in(k), NULL);
}

void sv_see_free(sv_see *k)
{
    if (k->see && !k->outline && !k->g->media && sv_seen_keep(k->g, k)) {
        *k = (sv_see){0};
        return;
    }
    fv_see_free(k->see);
    free(k->source);
    free(k->target);
    sv_media_close(&k->image);
    *k = (sv_see){0};
}

void sv_see_put_tokens(sv_text *t, const sv_see *k, const char *key, bool rows)
{
    int64_t n = rows ? k->shape.rows : k->shape.cols;
    sv_key(t, key);
    sv_open(t, '[');
    for (int64_t i = 0; i < n; i++) {
        const char *s = rows ? fv_see_row(k->see, k->kind, i) : fv_see_col(k->see, k->kind, i);
        sv_string(t, s, strlen(s));
    }
    sv_close(t, ']');
}

/* Every answer says which model it is of, by the name that was asked for. */
static void begin(sv_text *t, const sv_see *k)
{
    sv_open(t, '{');
    sv_string_at(t, "model", sv_asked_name(k->r));
}

/* Sends what was written, or the error. */
static void finish(sv_see *k, sv_text *t, fv_status st, const fv_err *e)
{
    sv_put(t, "}\n");
    if (st)
        sv_refuse_error(k->r, e);
    else
        sv_answer(k->r, 200, NULL, t);
    sv_free(t);
}

/* ---- /v1/heads ---- */

/* One table, (layers, heads), of a number of each head. */
static void put_table(sv_text *t, const char *key, const fv_see_head *all, const sv_see *k,
                      size_t at)
{
    sv_key(t, key);
    sv_open(t, '[');
    for (int64_t l = 0; l < k->shape.layers; l++) {
        sv_open(t, '[');
        for (int64_t h = 0; h < k->shape.heads; h++) {
            double x;
            memcpy(&x, (const char *)&all[l * k->shape.heads + h] + at, sizeof x);
            sv_real(t, x);
        }
        sv_close(t, ']');
    }
    sv_close(t, ']');
}

/* Statistics of every head, as tables (layers,heads): what the page colours its grid by. */
static void tell_heads(sv_engine *g, sv_request *r)
{
    sv_see k;
    sv_text t = {0};
    fv_err e;
    fv_status st = FV_OK;
    fv_see_head *all = NULL;
    if (sv_see_run(&k, g, r)) {
        /* rows of a decoder are what it reads: the start, then the target */
        const int32_t *ids = k.n_target ? NULL : k.source;
        int64_t n = k.shape.layers * k.shape.heads;
        all = calloc((size_t)n, sizeof *all);
        if (!all) st = fv_fail(&e, FV_ENOMEM, "out of memory");
        for (int64_t i = 0; i < n && !st; i++) {
            fv_see_pick p = {.kind = k.kind, .layer = i / k.shape.heads, .head = i % k.shape.heads};
            st = fv_see_head_type(k.see, p, ids, &all[i], &e);
        }
        begin(&t, &k);
        sv_string_at(&t, "kind", fv_see_kind_name(k.kind));
        sv_see_put_tokens(&t, &k, "tokens", true);
        if (!st) {
            put_table(&t, "entropy", all, &k, offsetof(fv_see_head, entropy));
            put_table(&t, "first", all, &k, offsetof(fv_see_head, first));
            put_table(&t, "previous", all, &k, offsetof(fv_see_head, previous));
            put_table(&t, "self", all, &k, offsetof(fv_see_head, self));
            put_table(&t, "induction", all, &k, offsetof(fv_see_head, induction));
        }
        finish(&k, &t, st, &e);
    }
    free(all);
    sv_see_free(&k);
}

void sv_heads(sv_request *r)
{
    static const char *const keys[] = {"model", "input", "target", "kind", NULL};
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL)) return;
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, tell_heads);
}

/* ---- /v1/ablate ---- */

/* "heads": [[layer, head], ..]; false: refused. */
static bool read_heads(sv_request *r, fv_see_pick *out, int *n)
{
    const json_t *list = json_object_get(r->json, "heads");
    size_t many = json_array_size(list);
    bool ok = json_is_array(list) && many <= MOST_SILENT;
    for (size_t i = 0; i < many && ok; i++) {
        const json_t *one = json_array_get(list, i), *layer = json_array_get(one, 0),
                     *head = json_array_get(one, 1);
        ok = json_array_size(one) == 2 && json_is_integer(layer) && json_is_integer(head) &&
             json_integer_value(layer) >= 0 && json_integer_value(head) >= 0;
        if (ok)
            out[i] = (fv_see_pick){.kind = FV_SEE_DECODER,
                                   .layer = json_integer_value(layer),
                                   .head = json_integer_value(head)};
    }
    *n = (int)many;
    if (!ok)
        sv_refuse(r, 400, BAD, "heads",
                  "heads: a list of at most %d pairs [layer, head] was expected", MOST_SILENT);
    return ok;
}

static void put_next(sv_text *t, const sv_see *k, const char *key, const fv_see_next *x)
{
    sv_key(t, key);
    sv_open(t, '{');
    sv_real_at(t, "loss", x->loss);
    sv_key(t, "top");
    sv_open(t, '[');
    for (int i = 0; i < x->n; i++) {
        sv_text text = {0};
        sv_open(t, '{');
        sv_token_text(&text, k->g->tok, k->source[k->n_source - 1], x->token[i]);
        sv_key(t, "token");
        sv_string(t, text.s ? text.s : "", text.n);
        sv_int_at(t, "id", x->token[i]);
        sv_real_at(t, "logprob", (double)x->score[i]);
        sv_close(t, '}');
        sv_free(&text);
    }
    sv_close(t, ']');
    sv_close(t, '}');
}

/* Two passes, as the model is and with the heads silenced: loss and likeliest next tokens of both,
 * side by side. */
static void ablate(sv_engine *g, sv_request *r)
{
    static const fv_see_next none;
    fv_see_pick *heads = calloc(MOST_SILENT, sizeof *heads);
    fv_see_next before = none, after = none;
    sv_see k = {0};
    sv_text t = {0};
    fv_err e;
    int n = 0;
    int64_t top = 8;
    if (!heads) {
        sv_refuse(r, 503, "overloaded_error", NULL, "out of memory");
    } else if (read_heads(r, heads, &n) && sv_get_int(r, "top", 1, FV_SEE_NEXT, &top) &&
               sv_see_read(&k, g, r)) {
        const fv_model *m = sv_asked_model(r);
        fv_status st = fv_see_without(g->device, m, sv_see_in(&k), NULL, 0, (int)top, &before, &e);
        if (!st) st = fv_see_without(g->device, m, sv_see_in(&k), heads, n, (int)top, &after, &e);
        begin(&t, &k);
        if (!st) put_next(&t, &k, "before", &before);
        if (!st) put_next(&t, &k, "after", &after);
        finish(&k, &t, st, &e);
    }
    free(heads);
    sv_see_free(&k);
}

/* A model of two texts has no next token behind one: it is refused before anything is computed. */
void sv_ablate(sv_request *r)
{
    static const char *const keys[] = {"model", "input", "heads", "top", NULL};
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL)) return;
    sv_engine *g = sv_find_engine(r);
    if (g && g->translator)
        sv_refuse(r, 400, BAD, "model",
                  "%s reads a source: its next token depends on more than a "
                  "text",
                  g->name);
    else if (g)
        sv_post(g, r, ablate);
}

/* ---- /v1/neurons ---- */

/* q of the row, k of every column, and the weights that came of them. */
static fv_status put_neurons(sv_text *t, sv_see *k, fv_see_pick p, int64_t row, fv_err *e)
{
    int64_t W = 0, rows = k->shape.rows, cols = k->shape.cols;
    float scale = 0;
    fv_status st = fv_see_vectors(k->see, p, NULL, NULL, &W, &scale, e);
    if (st) return st;
    float *q = malloc((size_t)(rows * W + cols * W + cols) * sizeof *q);
    if (!q) return fv_fail(e, FV_ENOMEM, "out of memory");
    float *keys = q + rows * W, *weights = keys + cols * W;
    st = fv_see_vectors(k->see, p, q, keys, &W, &scale, e);
    if (!st) st = fv_see_weights(k->see, p, row, row + 1, weights, e);
    if (!st) {
        sv_see_put_tokens(t, k, "row_tokens", true);
        sv_see_put_tokens(t, k, "column_tokens", false);
        sv_real_at(t, "scale", (double)scale);
        sv_key(t, "query");
        sv_packed_reals(t, q + row * W, W);
        sv_key(t, "keys");
        sv_open(t, '[');
        for (int64_t j = 0; j < cols; j++) sv_packed_reals(t, keys + j * W, W);
        sv_close(t, ']');
        sv_key(t, "weights");
        sv_packed_reals(t, weights, cols);
    }
    free(q);
    return st;
}

/* Query and keys of one row of one head, number by number: what a score is the sum of. */
static void tell_neurons(sv_engine *g, sv_request *r)
{
    sv_see k;
    sv_text t = {0};
    fv_err e;
    if (sv_see_run(&k, g, r)) {
        int64_t layer = 0, head = 0, row = k.shape.rows - 1;
        if (sv_get_int(r, "layer", 0, k.shape.layers - 1, &layer) &&
            sv_get_int(r, "head", 0, k.shape.heads - 1, &head) &&
            sv_get_int(r, "row", 0, k.shape.rows - 1, &row)) {
            fv_see_pick p = {.kind = k.kind, .layer = layer, .head = head};
            begin(&t, &k);
            sv_int_at(&t, "layer", layer);
            sv_int_at(&t, "head", head);
            sv_int_at(&t, "row", row);
            fv_status st = put_neurons(&t, &k, p, row, &e);
            finish(&k, &t, st, &e);
        }
    }
    sv_see_free(&k);
}

void sv_neurons(sv_request *r)
{
    static const char *const keys[] = {"model", "input", "target", "kind",
                                       "layer", "head",  "row",    NULL};
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL)) return;
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, tell_neurons);
}
