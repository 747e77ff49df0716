/* tokens.c - /tokenize and /detokenize.
 *
 * Both answer on the HTTP thread: a tokenizer is const and shared, an encoding is taken from the
 * engine's pool, and a text is at most as long as a body may be, which bounds how long others
 * wait. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define BAD "invalid_request_error"

/* Ids, and beside them the pieces as the vocabulary has them: a page shows tokens by these. */
static void write_encoding(sv_request *r, const sv_engine *g, const fv_encoding *enc)
{
    sv_text t = {0};
    sv_open(&t, '{');
    sv_int_at(&t, "count", enc->n);
    sv_key(&t, "tokens");
    sv_open(&t, '[');
    for (int64_t i = 0; i < enc->n; i++) sv_int(&t, enc->ids[i]);
    sv_close(&t, ']');
    sv_key(&t, "pieces");
    sv_open(&t, '[');
    for (int64_t i = 0; i < enc->n; i++) {
        const char *piece = fv_tok_token(g->tok, enc->ids[i]);
        sv_string(&t, piece ? piece : "", piece ? strlen(piece) : 0);
    }
    sv_put(&t, "]}\n");
    sv_answer(r, 200, NULL, &t);
}

/* In the thread of the connection: a tokenizer is const, and an encoding is taken for the call.
 * "prompt" is vLLM's name of "text". */
void sv_tokenize(sv_request *r)
{
    static const char *const keys[] = {"model", "text", "prompt", "add_special_tokens", NULL};
    const char *text = NULL;
    size_t n = 0;
    bool specials = true;
    fv_err e;
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL) ||
        !sv_get_text(r, "prompt", &text, &n) || !sv_get_text(r, "text", &text, &n) ||
        !sv_get_bool(r, "add_special_tokens", &specials))
        return;
    sv_engine *g = sv_find_engine(r);
    if (!g) return;
    if (!text) {
        sv_refuse(r, 400, BAD, "text", "text: a string is needed");
        return;
    }
    fv_encoding *enc = sv_take_encoding(g, &e);
    if (!enc || fv_tok_encode(enc, text, n, (fv_tok_opts){.specials = specials}, &e))
        sv_refuse_error(r, &e);
    else
        write_encoding(r, g, enc);
    if (enc) sv_give_encoding(g, enc);
}

/* Ids are checked against the vocabulary here, so that decoding cannot fail on them. */
void sv_detokenize(sv_request *r)
{
    static const char *const keys[] = {"model", "tokens", "skip_special_tokens", NULL};
    bool skip = false;
    if (!sv_read_json(r) || !sv_check_keys(r, r->json, keys, NULL) ||
        !sv_get_bool(r, "skip_special_tokens", &skip))
        return;
    sv_engine *g = sv_find_engine(r);
    if (!g) return;
    if (!g->tok) {
        sv_refuse(r, 400, BAD, "model", "%s reads no text", g->name);
        return;
    }
    const json_t *list = json_object_get(r->json, "tokens");
    size_t n = json_array_size(list), len = 0;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    bool ok = ids && json_is_array(list);
    for (size_t i = 0; i < n && ok; i++) {
        int64_t x = json_integer_value(json_array_get(list, i));
        ok = json_is_integer(json_array_get(list, i)) && x >= 0 && x < fv_tok_size(g->tok);
        ids[i] = (int32_t)x;
    }
    char *text = NULL;
    fv_err e;
    if (!ok) {
        sv_refuse(r, 400, BAD, "tokens", "tokens: a list of ids below %d was expected",
                  fv_tok_size(g->tok));
    } else if (fv_tok_decode(g->tok, &text, &len, ids, (int64_t)n, skip, &e)) {
        sv_refuse_error(r, &e);
    } else {
        sv_text t = {0};
        sv_open(&t, '{');
        sv_key(&t, "text");
        sv_string(&t, text, len);
        sv_put(&t, "}\n");
        fv_tok_free_text(g->tok, text, len);
        sv_answer(r, 200, NULL, &t);
    }
    free(ids);
}
