/* tok.c - the tokenizers of tests/golden/tok, and what tests of tokenizers do with one. */
#include "tok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "files.h"
#include "fovea/author/tok.h"

char *tok_component(const char *name, size_t *n)
{
    size_t size;
    char *all = slurp(TOK_GOLDEN "components.jsonl", &size), *out = NULL;
    for (char *line = strtok(all, "\n"); line && !out; line = strtok(NULL, "\n")) {
        json_t *j = json_loads(line, 0, NULL);
        if (!strcmp(json_string_value(json_object_get(j, "name")), name))
            out = json_dumps(json_object_get(j, "tokenizer"), JSON_COMPACT);
        json_decref(j);
    }
    free(all);
    assert_non_null(out);
    *n = strlen(out);
    return out;
}

fv_tok *tok_open_component(const char *name)
{
    size_t n;
    fv_tok *t;
    fv_err e;
    char *s = tok_component(name, &n);
    if (fv_tok_read(&t, NULL, s, n, name, &e)) fail_msg("%s", e.text);
    free(s);
    return t;
}

fv_encoding *tok_encode(const fv_tok *t, const char *text, size_t n, fv_tok_opts o)
{
    fv_encoding *enc;
    fv_err e;
    assert_int_equal(fv_encoding_new(&enc, t, &e), FV_OK);
    if (fv_tok_encode(enc, text, n, o, &e)) fail_msg("%s", e.text);
    return enc;
}

void tok_assert_ids(const fv_encoding *enc, const int32_t *ids, int64_t n)
{
    assert_int_equal(enc->n, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(enc->ids[i], ids[i]);
}
