/* inputs.c - texts of a request, and the beginning of an answer that lists results.
 *
 * A list of two strings is a list of two texts, or a text and its pair where a task takes pairs:
 * the route says which. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

enum { MOST_TEXTS = 2048 };

/* ["text", "pair"] where pairs are taken, else a string. */
static bool read_one(const json_t *j, bool pairs, fv_text *out)
{
    const json_t *a = j, *b = NULL;
    if (pairs && json_is_array(j) && json_array_size(j) == 2)
        a = json_array_get(j, 0), b = json_array_get(j, 1);
    if (!json_is_string(a) || (b && !json_is_string(b))) return false;
    *out = (fv_text){.s = json_string_value(a), .n = json_string_length(a)};
    if (b) out->pair = json_string_value(b), out->pair_n = json_string_length(b);
    return true;
}

/* The texts point into the request's JSON; the list is the caller's to free. NULL: refused. */
fv_text *sv_read_texts(sv_request *r, const char *key, bool pairs, int64_t *n)
{
    const json_t *j = json_object_get(r->json, key);
    bool one = json_is_string(j);
    size_t many = one ? 1 : json_array_size(j);
    fv_text *texts = many && many <= MOST_TEXTS ? calloc(many, sizeof *texts) : NULL;
    bool ok = texts != NULL;
    for (size_t i = 0; i < many && ok; i++)
        ok = read_one(one ? j : json_array_get(j, i), pairs, &texts[i]);
    *n = (int64_t)many;
    if (ok) return texts;
    free(texts);
    sv_refuse(r, 400, "invalid_request_error", key,
              "%s: a string or a list of 1 to %d strings was expected", key, MOST_TEXTS);
    return NULL;
}

void sv_begin_list(sv_text *t, const sv_engine *g, const char *key)
{
    sv_open(t, '{');
    sv_string_at(t, "object", "list");
    sv_string_at(t, "model", g->name);
    sv_key(t, key);
    sv_open(t, '[');
}
