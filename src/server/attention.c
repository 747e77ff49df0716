/* attention.c - /v1/attention: exact weights of a text or an image, as JSON, safetensors, or the
 * page of `fovea see`.
 *
 * One forward pass records queries, keys and log-sum-exps; the weights of the layers, heads and
 * rows asked for are recomputed from these (fovea/see.h).  With "through" a row is followed down
 * through the layers instead, by rollout or by flow; with "pool" maps come small.  The pass is kept
 * for a while (seen.c), so that a page can ask for what it shows, as it shows it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "see.h"

#define BAD "invalid_request_error"

typedef struct job {
    sv_see k;
    sv_request *r;
    sv_attention_ask ask;
    int64_t from, to;    /* rows */
    const char *through; /* "rollout" or "flow" up to the layers, instead of heads; NULL: neither */
    bool mean;           /* of all heads, instead of them */
    int64_t pool; /* maps are made at most this large, by the greatest weights; 0: as they are */
    int64_t tall, wide; /* of a map in the answer */
    float *w;           /* one map, of which `part` rows are computed at a time */
    float *rows;        /* those; w itself where nothing is pooled */
    int64_t part;
} job;

/* ---- what is wanted ---- */

/* Rows are half open, [from, to), and all of them where none are given. */
static bool read_rows(job *k)
{
    const json_t *j = json_object_get(k->r->json, "rows");
    k->from = 0, k->to = k->k.shape.rows;
    if (!j || json_is_null(j)) return true;
    k->from = json_integer_value(json_array_get(j, 0));
    k->to = json_integer_value(json_array_get(j, 1));
    if (json_array_size(j) == 2 && k->from >= 0 && k->from < k->to && k->to <= k->k.shape.rows)
        return true;
    sv_refuse(k->r, 400, BAD, "rows", "rows: [from, to) within 0 and %lld was expected",
              (long long)k->k.shape.rows);
    return false;
}

/* Before anything is written: an answer of a million rows would be refused half made otherwise. */
static bool check_size(job *k)
{
    int64_t rows = k->to - k->from, cols = k->k.shape.cols;
    bool pooled = k->pool && (rows > k->pool || cols > k->pool);
    k->tall = pooled && rows > k->pool ? k->pool : rows;
    k->wide = pooled && cols > k->pool ? k->pool : cols;
    /* a rollout goes through all rows below whichever are asked for: once, not once a part */
    k->part = pooled && !k->through && rows > 64 ? 64 : rows;
    double floats = (double)(k->tall * k->wide) * k->ask.n_layers * k->ask.n_heads;
    if (k->through && floats < (double)(rows * cols)) floats = (double)(rows * cols);
    if (floats > (double)k->r->server->opt.attention_floats) {
        sv_refuse(k->r, 400, BAD, "attention",
                  "attention: %.0f weights were asked for, an answer holds %lld; ask for fewer "
                  "layers, heads or rows",
                  floats, (long long)k->r->server->opt.attention_floats);
        return false;
    }
    k->w = malloc((size_t)(k->tall * k->wide) * sizeof *k->w);
    k->rows = pooled ? malloc((size_t)(k->part * cols) * sizeof *k->w) : k->w;
    if (k->w && k->rows) return true;
    sv_refuse(k->r, 503, "overloaded_error", NULL, "out of memory");
    return false;
}

/* Layers and heads as in a generation's "attention", with all of both where the request names none;
 * "heads" may also be "mean". */
static bool read_ask(job *k)
{
    fv_see_shape shape = k->k.shape;
    json_t *ask = json_object_get(k->r->json, "attention");
    if (!ask) {
        ask = json_object();
        /* through all layers, not through each number of them */
        if (k->through) json_object_set_new(ask, "layers", json_integer(-1));
        json_object_set_new(k->r->json, "attention", ask);
    }
    const char *heads = json_string_value(json_object_get(ask, "heads"));
    k->mean = heads && !strcmp(heads, "mean");
    if (k->mean) json_object_del(ask, "heads");
    if (!sv_get_int(k->r, "pool", 1, 1024, &k->pool) ||
        !sv_read_attention(k->r, &k->ask, shape.layers, shape.heads))
        return false;
    if (k->through || k->mean) k->ask.n_heads = 1; /* of all */
    return read_rows(k);
}

/* The greatest weights of `part` rows from `at` on into the cells that they belong to. */
static void pool(job *k, int64_t at, int64_t n)
{
    int64_t rows = k->to - k->from, cols = k->k.shape.cols;
    for (int64_t i = 0; i < n; i++) {
        float *cells = k->w + (at + i) * k->tall / rows * k->wide;
        const float *w = k->rows + i * cols;
        for (int64_t j = 0; j < cols; j++) {
            float *most = cells + j * k->wide / cols;
            *most = w[j] > *most ? w[j] : *most;
        }
    }
}

/* One map at a time is in memory: (tall, wide) floats in k->w, overwritten by the next call. */
static const float *weights(job *k, int layer, int head, fv_err *e)
{
    fv_see_pick p = {.kind = k->k.kind, .layer = k->ask.layers[layer], .head = k->ask.heads[head]};
    int64_t n = k->to - k->from;
    if (k->mean) p.head = FV_SEE_ALL;
    if (k->through) {
        p.head = FV_SEE_ALL;
        p.flow = !strcmp(k->through, "flow");
        p.rollout = !p.flow;
    }
    if (k->rows == k->w) return fv_see_weights(k->k.see, p, k->from, k->to, k->w, e) ? NULL : k->w;
    memset(k->w, 0, (size_t)(k->tall * k->wide) * sizeof *k->w);
    for (int64_t at = 0; at < n; at += k->part) {
        int64_t end = at + k->part < n ? at + k->part : n;
        if (fv_see_weights(k->k.see, p, k->from + at, k->from + end, k->rows, e)) return NULL;
        pool(k, at, end - at);
    }
    return k->w;
}

/* ---- answers ---- */

/* What the answer is of, as the request had it or as "all" stands for. */
static void put_numbers(sv_text *t, const char *key, const int32_t *x, int n)
{
    sv_key(t, key);
    sv_open(t, '[');
    for (int i = 0; i < n; i++) sv_int(t, x[i]);
    sv_close(t, ']');
}

/* (layers,heads,rows,cols), nested; nine digits, which give an f32 back exactly, and which the
 * thread that sends the answer writes: sequences wait for this one. */
static fv_status put_weights(sv_text *t, job *k, fv_err *e)
{
    sv_key(t, "weights");
    sv_open(t, '[');
    for (int l = 0; l < k->ask.n_layers; l++) {
        sv_open(t, '[');
        for (int h = 0; h < k->ask.n_heads; h++) {
            const float *w = weights(k, l, h, e);
            if (!w) return e->code;
            sv_open(t, '[');
            for (int64_t i = 0; i < k->tall; i++) sv_packed_reals(t, w + i * k->wide, k->wide);
            sv_close(t, ']');
        }
        sv_close(t, ']');
    }
    sv_close(t, ']');
    return FV_OK;
}

/* The status is known only when the last weight has been computed, so the text is whole before
 * anything is sent. */
static void answer_json(job *k)
{
    sv_text t = {0};
    fv_err e;
    sv_open(&t, '{');
    sv_string_at(&t, "model", sv_asked_name(k->r));
    sv_string_at(&t, "kind", fv_see_kind_name(k->k.kind));
    sv_see_put_tokens(&t, &k->k, "row_tokens", true);
    sv_see_put_tokens(&t, &k->k, "column_tokens", false);
    put_numbers(&t, "layers", k->ask.layers, k->ask.n_layers);
    if (k->through)
        sv_string_at(&t, "through", k->through);
    else if (k->mean)
        sv_string_at(&t, "heads", "mean");
    else
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
    int64_t each = k->ask.n_heads * k->tall * k->wide * 4;
    sv_open(&head, '{');
    for (int l = 0; l < k->ask.n_layers; l++) {
        sv_text key = {0};
        sv_fmt(&key, "attentions.%d", k->ask.layers[l]);
        sv_key(&head, key.s ? key.s : "");
        sv_fmt(&head, "{\"dtype\":\"F32\",\"shape\":[%d,%lld,%lld],\"data_offsets\":[%lld,%lld]}",
               k->ask.n_heads, (long long)k->tall, (long long)k->wide, (long long)(l * each),
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
            if (w) sv_add(&t, (const char *)w, (size_t)(k->tall * k->wide) * sizeof *w);
        }
    t.failed |= head.failed;
    sv_free(&head);
    if (st)
        sv_refuse_error(k->r, &e);
    else
        sv_answer(k->r, 200, "application/octet-stream", &t);
    sv_free(&t);
}

/* What a page without maps asks for them with: the request's fields that say what is looked at. */
static char *page_ask(const job *k)
{
    static const char *const keys[] = {"model", "input", "target", NULL};
    json_t *ask = json_object();
    for (int i = 0; keys[i]; i++) {
        json_t *value = json_object_get(k->r->json, keys[i]);
        if (value) json_object_set(ask, keys[i], value);
    }
    char *text = json_dumps(ask, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(ask);
    /* it stands inside a page: "<" occurs in strings alone, where an escape is the same */
    sv_text out = {0};
    for (const char *p = text; p && *p; p++)
        sv_add(&out, *p == '<' ? "\\u003c" : p, *p == '<' ? 6 : 1);
    free(text);
    sv_add(&out, "", 1);
    return out.s;
}

/* The library writes pages as files: one is written into a folder of its own, read and removed. */
static void answer_page(job *k, bool whole)
{
    const char *temporary = getenv("TMPDIR"),
               *text = k->k.image.n ? NULL
                                    : json_string_value(json_object_get(k->r->json, "input"));
    char dir[256], path[300];
    sv_text t = {0};
    fv_err e;
    snprintf(dir, sizeof dir, "%.200s/fovea-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(dir)) {
        sv_refuse(k->r, 503, "overloaded_error", NULL, "no page can be written: %s",
                  strerror(errno));
        return;
    }
    snprintf(path, sizeof path, "%s/page.html", dir);
    char *ask = whole ? NULL : page_ask(k);
    fv_see_opt opt = {.every_kind = true, .text = text, .ask = ask};
    opt.pick = (fv_see_pick){.kind = k->k.kind, .layer = FV_SEE_ALL, .head = FV_SEE_ALL};
    fv_status st = fv_see_save(k->k.see, NULL, path, opt, &e);
    FILE *f = st ? NULL : fopen(path, "rb");
    char part[65536];
    for (size_t n; f && (n = fread(part, 1, sizeof part, f)) > 0;) sv_add(&t, part, n);
    if (f) fclose(f);
    unlink(path);
    rmdir(dir);
    free(ask);
    if (st)
        sv_refuse_error(k->r, &e);
    else
        sv_answer(k->r, 200, "text/html; charset=utf-8", &t);
    sv_free(&t);
}

/* In the engine's thread: the pass, then the format that was asked for. The page needs no layers
 * and rows, because it holds all of them, but wrong ones are refused there as well.  A view holds
 * none: it is answered first, and the pass runs while the browser builds what it has got. */
static void see(sv_engine *g, sv_request *r)
{
    job k = {.r = r};
    const char *format = "json";
    bool ok = sv_get_text(r, "format", &format, NULL) &&
              sv_get_text(r, "through", &k.through, NULL);
    bool view = !strcmp(format, "view");
    ok = ok && (view ? sv_see_outline(&k.k, g, r) : sv_see_run(&k.k, g, r)) && read_ask(&k);
    if (ok && (view || !strcmp(format, "html"))) {
        answer_page(&k, !view);
        if (view) sv_see_complete(&k.k);
    } else if (ok && check_size(&k)) {
        if (!strcmp(format, "safetensors"))
            answer_safetensors(&k);
        else
            answer_json(&k);
    }
    sv_see_free(&k.k);
    free(k.ask.layers);
    free(k.ask.heads);
    if (k.rows != k.w) free(k.rows);
    free(k.w);
}

/* In the thread of the connection: only what can be refused without a model. "Accept:
 * ...safetensors" is the same as "format", for clients that negotiate. */
void sv_attention(sv_request *r)
{
    static const char *const keys[] = {"model",  "input", "target",  "attention", "rows",
                                       "format", "kind",  "through", "pool",      NULL};
    const char *format = "json", *target = NULL, *through = NULL;
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL) ||
        !sv_get_text(r, "format", &format, NULL) || !sv_get_text(r, "target", &target, NULL) ||
        !sv_get_text(r, "through", &through, NULL))
        return;
    if (through && strcmp(through, "rollout") && strcmp(through, "flow")) {
        sv_refuse(r, 400, BAD, "through", "through: rollout or flow");
        return;
    }
    if (strcmp(format, "json") && strcmp(format, "safetensors") && strcmp(format, "html") &&
        strcmp(format, "view")) {
        sv_refuse(r, 400, BAD, "format", "format: json, safetensors, html or view");
        return;
    }
    const char *accept = MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, "Accept");
    if (accept && strstr(accept, "safetensors"))
        json_object_set_new(r->json, "format", json_string("safetensors"));
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, see);
}
