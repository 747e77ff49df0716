/* attention.c - /v1/attention: exact weights of a text that is given, as JSON or safetensors.
 *
 * One forward pass records queries, keys and log-sum-exps; the weights of the layers, heads and
 * rows asked for are recomputed from these (fovea/see.h). */
#include <stdlib.h>
#include <string.h>

#include "generate.h"

#define BAD "invalid_request_error"

typedef struct job {
    sv_engine *g;
    sv_request *r;
    fv_see *see;
    fv_see_kind kind;
    sv_attention_ask ask;
    int64_t rows, cols, from, to;
    int32_t *source, *target;
    int64_t n_source, n_target;
    float *w; /* one head */
} job;

/* ---- the pass ---- */

static bool encode(job *k, const char *key, bool as_target, int32_t **out, int64_t *n)
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

/* "kind" says which attention of a model of two stacks is meant; its encoder's if it is missing. */
static bool choose_kind(job *k, bool pair)
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
    if (k->kind != FV_SEE_KINDS) return true;
    sv_refuse(k->r, 400, BAD, "kind",
              "kind: encoder, decoder or cross was expected, one that the model has");
    return false;
}

static bool run_pass(job *k)
{
    const fv_model *m = sv_asked_model(k->r);
    fv_err e;
    bool pair = k->g->translator != NULL;
    if (!encode(k, "input", false, &k->source, &k->n_source) ||
        (pair && !encode(k, "target", true, &k->target, &k->n_target)))
        return false;
    fv_see_in in = {.tok = k->g->tok, .source = k->source, .n_source = k->n_source};
    in.target = k->target, in.n_target = k->n_target;
    if (pair) in.start = fv_translator_gen(k->g->translator)->start;
    if (fv_see_run(&k->see, k->g->device, m, in, &e)) {
        sv_refuse_error(k->r, &e);
        return false;
    }
    return choose_kind(k, pair);
}

/* ---- what is wanted ---- */

static bool read_rows(job *k)
{
    const json_t *j = json_object_get(k->r->json, "rows");
    fv_see_shape shape = fv_see_shape_of(k->see, k->kind);
    k->rows = shape.rows;
    k->cols = shape.cols;
    k->from = 0, k->to = k->rows;
    if (!j || json_is_null(j)) return true;
    k->from = json_integer_value(json_array_get(j, 0));
    k->to = json_integer_value(json_array_get(j, 1));
    if (json_array_size(j) == 2 && k->from >= 0 && k->from < k->to && k->to <= k->rows) return true;
    sv_refuse(k->r, 400, BAD, "rows", "rows: [from, to) within 0 and %lld was expected",
              (long long)k->rows);
    return false;
}

static bool check_size(job *k)
{
    double floats = (double)(k->to - k->from) * (double)k->cols * k->ask.n_layers * k->ask.n_heads;
    k->w = malloc((size_t)((k->to - k->from) * k->cols) * sizeof *k->w);
    if (k->w && floats <= (double)k->r->server->opt.attention_floats) return true;
    sv_refuse(k->r, 400, BAD, "attention",
              "attention: %.0f weights were asked for, an answer holds %lld; ask for fewer layers, "
              "heads or rows",
              floats, (long long)k->r->server->opt.attention_floats);
    return false;
}

static bool read_ask(job *k)
{
    fv_see_shape shape = fv_see_shape_of(k->see, k->kind);
    if (!json_object_get(k->r->json, "attention"))
        json_object_set_new(k->r->json, "attention", json_object());
    if (!sv_read_attention(k->r, &k->ask, shape.layers, shape.heads)) return false;
    return read_rows(k) && check_size(k);
}

static const float *weights(job *k, int layer, int head, fv_err *e)
{
    fv_see_pick p = {.kind = k->kind, .layer = k->ask.layers[layer], .head = k->ask.heads[head]};
    return fv_see_weights(k->see, p, k->from, k->to, k->w, e) ? NULL : k->w;
}

/* ---- answers ---- */

static void put_tokens(sv_text *t, const job *k, const char *key, bool rows)
{
    int64_t n = rows ? k->rows : k->cols;
    sv_key(t, key);
    sv_open(t, '[');
    for (int64_t i = 0; i < n; i++) {
        const char *s = rows ? fv_see_row(k->see, k->kind, i) : fv_see_col(k->see, k->kind, i);
        sv_string(t, s, strlen(s));
    }
    sv_close(t, ']');
}

static void put_numbers(sv_text *t, const char *key, const int32_t *x, int n)
{
    sv_key(t, key);
    sv_open(t, '[');
    for (int i = 0; i < n; i++) sv_int(t, x[i]);
    sv_close(t, ']');
}

static fv_status put_weights(sv_text *t, job *k, fv_err *e)
{
    int64_t rows = k->to - k->from;
    sv_key(t, "weights");
    sv_open(t, '[');
    for (int l = 0; l < k->ask.n_layers; l++) {
        sv_open(t, '[');
        for (int h = 0; h < k->ask.n_heads; h++) {
            const float *w = weights(k, l, h, e);
            if (!w) return e->code;
            sv_open(t, '[');
            for (int64_t i = 0; i < rows; i++) {
                sv_open(t, '[');
                for (int64_t j = 0; j < k->cols; j++) sv_real(t, (double)w[i * k->cols + j]);
                sv_close(t, ']');
            }
            sv_close(t, ']');
        }
        sv_close(t, ']');
    }
    sv_close(t, ']');
    return FV_OK;
}

static void answer_json(job *k)
{
    sv_text t = {0};
    fv_err e;
    sv_open(&t, '{');
    sv_string_at(&t, "model", sv_asked_name(k->r));
    sv_string_at(&t, "kind", fv_see_kind_name(k->kind));
    put_tokens(&t, k, "row_tokens", true);
    put_tokens(&t, k, "column_tokens", false);
    put_numbers(&t, "layers", k->ask.layers, k->ask.n_layers);
    put_numbers(&t, "heads", k->ask.heads, k->ask.n_heads);
    put_numbers(&t, "rows", (int32_t[]){(int32_t)k->from, (int32_t)k->to}, 2);
    fv_status st = put_weights(&t, k, &e);
    sv_put(&t, "}\n");
    if (st)
        sv_refuse_error(k->r, &e);
    else
        sv_answer(k->r, 200, NULL, &t);
    sv_free(&t);
}

/* One tensor for each layer, (heads, rows, columns) in f32: the header of a safetensors file,
 * padded to 8 bytes, then the numbers. */
static void answer_safetensors(job *k)
{
    sv_text head = {0}, t = {0};
    fv_err e;
    fv_status st = FV_OK;
    int64_t rows = k->to - k->from, each = k->ask.n_heads * rows * k->cols * 4;
    sv_open(&head, '{');
    for (int l = 0; l < k->ask.n_layers; l++) {
        sv_text key = {0};
        sv_fmt(&key, "attentions.%d", k->ask.layers[l]);
        sv_key(&head, key.s ? key.s : "");
        sv_fmt(&head, "{\"dtype\":\"F32\",\"shape\":[%d,%lld,%lld],\"data_offsets\":[%lld,%lld]}",
               k->ask.n_heads, (long long)rows, (long long)k->cols, (long long)(l * each),
               (long long)((l + 1) * each));
        sv_free(&key);
    }
    sv_close(&head, '}');
    while (head.n % 8) sv_add(&head, " ", 1);
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)head.n >> 8 * i);
    sv_add(&t, (const char *)size, 8);
    sv_add(&t, head.s ? head.s : "", head.n);
    for (int l = 0; l < k->ask.n_layers && !st; l++)
        for (int h = 0; h < k->ask.n_heads && !st; h++) {
            const float *w = weights(k, l, h, &e);
            st = w ? FV_OK : e.code;
            if (w) sv_add(&t, (const char *)w, (size_t)(rows * k->cols) * sizeof *w);
        }
    t.failed |= head.failed;
    sv_free(&head);
    if (st)
        sv_refuse_error(k->r, &e);
    else
        sv_answer(k->r, 200, "application/octet-stream", &t);
    sv_free(&t);
}

static void see(sv_engine *g, sv_request *r)
{
    job k = {.g = g, .r = r};
    const char *format = "json";
    if (sv_get_text(r, "format", &format, NULL) && run_pass(&k) && read_ask(&k)) {
        if (!strcmp(format, "safetensors"))
            answer_safetensors(&k);
        else
            answer_json(&k);
    }
    fv_see_free(k.see);
    free(k.source);
    free(k.target);
    free(k.ask.layers);
    free(k.ask.heads);
    free(k.w);
}

void sv_attention(sv_request *r)
{
    static const char *const keys[] = {"model", "input",  "target", "attention",
                                       "rows",  "format", "kind",   NULL};
    const char *format = "json", *target = NULL;
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL) ||
        !sv_get_text(r, "format", &format, NULL) || !sv_get_text(r, "target", &target, NULL))
        return;
    if (strcmp(format, "json") && strcmp(format, "safetensors")) {
        sv_refuse(r, 400, BAD, "format", "format: json or safetensors");
        return;
    }
    const char *accept = MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, "Accept");
    if (accept && strstr(accept, "safetensors"))
        json_object_set_new(r->json, "format", json_string("safetensors"));
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, see);
}
