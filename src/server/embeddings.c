/* embeddings.c - /v1/embeddings: a vector for each text, as numbers or in base 64.
 *
 * OpenAI's Python client asks for base 64 unless told otherwise and reads it with numpy: a third of
 * the bytes of decimal numbers, and exact.  Vectors are not cut to fewer dimensions: that is right
 * for models trained for it alone, and no configuration says which those are. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define BAD "invalid_request_error"

/* The bytes of little-endian f32, as numpy.frombuffer reads them. */
static void put_base64(sv_text *t, const float *x, int64_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *b = (const unsigned char *)x;
    size_t bytes = (size_t)n * sizeof *x;
    sv_text out = {0};
    for (size_t i = 0; i < bytes; i += 3) {
        size_t left = bytes - i;
        unsigned v = (unsigned)b[i] << 16 | (left > 1 ? (unsigned)b[i + 1] << 8 : 0) |
                     (left > 2 ? b[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], digits[v >> 6 & 63], digits[v & 63]};
        if (left < 3) four[3] = '=';
        if (left < 2) four[2] = '=';
        sv_add(&out, four, 4);
    }
    sv_string(t, out.s ? out.s : "", out.n);
    t->failed |= out.failed;
    sv_free(&out);
}

static void write_vectors(sv_request *r, const sv_engine *g, const float *x, int64_t n, int64_t D,
                          bool base64, int64_t tokens)
{
    sv_text t = {0};
    sv_begin_list(&t, g, "data");
    for (int64_t i = 0; i < n; i++) {
        sv_open(&t, '{');
        sv_string_at(&t, "object", "embedding");
        sv_int_at(&t, "index", i);
        sv_key(&t, "embedding");
        if (base64)
            put_base64(&t, x + i * D, D);
        else
            sv_packed_reals(&t, x + i * D, D);
        sv_close(&t, '}');
    }
    sv_close(&t, ']');
    sv_key(&t, "usage");
    sv_open(&t, '{');
    sv_int_at(&t, "prompt_tokens", tokens);
    sv_int_at(&t, "total_tokens", tokens);
    sv_put(&t, "}}\n");
    r->prompt_tokens = tokens;
    sv_answer(r, 200, NULL, &t);
}

/* Encoded once more, for the usage alone: the task does not tell, and encoding is cheap beside
 * it. */
static int64_t count_tokens(sv_engine *g, const fv_text *texts, int64_t n)
{
    fv_encoding *enc = sv_take_encoding(g, NULL);
    int64_t tokens = 0;
    for (int64_t i = 0; enc && i < n; i++)
        if (!fv_tok_encode(enc, texts[i].s, texts[i].n, (fv_tok_opts){.specials = true}, NULL))
            tokens += enc->n;
    if (enc) sv_give_encoding(g, enc);
    return tokens;
}

static void embed(sv_engine *g, sv_request *r)
{
    fv_err e;
    int64_t n;
    const char *format = "float";
    fv_task *task = sv_engine_task(g, r, FV_JOB_EMBED);
    fv_text *texts = task ? sv_read_texts(r, "input", false, &n) : NULL;
    if (!texts || !sv_get_text(r, "encoding_format", &format, NULL)) {
        free(texts);
        return;
    }
    int64_t D = fv_task_width(task), want = D;
    float *x = malloc((size_t)(n * D) * sizeof *x);
    if (strcmp(format, "float") && strcmp(format, "base64"))
        sv_refuse(r, 400, BAD, "encoding_format", "encoding_format: float or base64");
    else if (!sv_get_int(r, "dimensions", D, D, &want))
        ; /* refused: vectors are not cut */
    else if (!x)
        sv_refuse(r, 503, "overloaded_error", NULL, "out of memory");
    else if (fv_task_embed(task, texts, n, (fv_embed_opt){0}, x, &e))
        sv_refuse_error(r, &e);
    else
        write_vectors(r, g, x, n, D, !strcmp(format, "base64"), count_tokens(g, texts, n));
    free(x);
    free(texts);
}

void sv_embeddings(sv_request *r)
{
    static const char *const keys[] = {"model",      "input", "encoding_format",
                                       "dimensions", "user",  NULL};
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL)) return;
    sv_engine *g = sv_find_engine(r);
    if (g) sv_post(g, r, embed);
}
