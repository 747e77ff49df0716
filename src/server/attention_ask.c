/* attention_ask.c - which attention weights a request wants: its layers, heads and rows.
 *
 * Numbers below 0 count from the end, as everywhere: -1 is the last layer of any model. */
#include <stdlib.h>
#include <string.h>

#include "generate.h"

#define BAD "invalid_request_error"

/* "all", a number or a list of numbers; those below 0 count from the end. */
static bool read_list(sv_request *r, const json_t *j, const char *what, int64_t most, int32_t **out,
                      int *n)
{
    bool all = !j || (json_is_string(j) && !strcmp(json_string_value(j), "all"));
    size_t given = all ? (size_t)most : json_is_array(j) ? json_array_size(j) : 1;
    bool ok = given <= (size_t)most && (*out = calloc(given + 1, sizeof **out));
    for (size_t i = 0; ok && i < given; i++) {
        const json_t *one = json_is_array(j) ? json_array_get(j, i) : j;
        int64_t x = all ? (int64_t)i : json_integer_value(one);
        ok = (all || json_is_integer(one)) && x >= -most && x < most;
        if (ok) (*out)[(*n)++] = (int32_t)(x < 0 ? x + most : x);
    }
    if (!ok || !*n)
        sv_refuse(r, 400, BAD, "attention",
                  "attention.%s: \"all\", or numbers from 0 to %lld, were expected", what,
                  (long long)most - 1);
    return ok && *n;
}

/* null and false are "none", as if the field were missing; rows say whether the prompt's are wanted
 * beside those of generated tokens. */
bool sv_read_attention(sv_request *r, sv_attention_ask *out, int64_t layers, int64_t heads)
{
    static const char *const keys[] = {"layers", "heads", "rows", NULL};
    const json_t *j = json_object_get(r->json, "attention");
    if (json_is_null(j) || json_is_false(j)) return true;
    if (!json_is_object(j)) {
        sv_refuse(r, 400, BAD, "attention",
                  "attention: an object with layers, heads and rows was expected");
        return false;
    }
    const json_t *rows = json_object_get(j, "rows");
    const char *word = json_is_string(rows) ? json_string_value(rows) : "";
    out->all_rows = !strcmp(word, "all");
    if (!sv_check_keys(r, j, keys, NULL)) return false;
    if (rows && strcmp(word, "all") && strcmp(word, "generated")) {
        sv_refuse(r, 400, BAD, "attention", "attention.rows: \"generated\" or \"all\"");
        return false;
    }
    return read_list(r, json_object_get(j, "layers"), "layers", layers, &out->layers,
                     &out->n_layers) &&
           read_list(r, json_object_get(j, "heads"), "heads", heads, &out->heads, &out->n_heads);
}
