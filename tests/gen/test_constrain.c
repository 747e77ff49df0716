/* test_constrain.c - text within a schema: whatever the logits, what comes is JSON of the schema;
 * what is not understood is refused by name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "fovea/fovea.h"

#define STORIES FOVEA_TESTS "/golden/stories260K"
#define END 2

static fv_tok *tok;
static fv_token_bytes *bytes;
static uint32_t state_of_dice = 1;

static uint32_t dice(uint32_t n)
{
    state_of_dice = state_of_dice * 1664525u + 1013904223u;
    return (state_of_dice >> 8) % n;
}

static int open_all(void **state)
{
    fv_err e;
    (void)state;
    return fv_tok_open(&tok, NULL, STORIES, &e) || fv_token_bytes_new(&bytes, NULL, tok, &e);
}

static int close_all(void **state)
{
    (void)state;
    fv_token_bytes_free(bytes);
    fv_tok_close(tok);
    return 0;
}

/* A random walk: logits by dice, and after a while those that close what is open. */
static char *walk(const char *schema, int most)
{
    fv_schema *s;
    fv_constraint *c;
    fv_err e;
    int32_t ids[4096] = {1}, end = END;
    int n = 1, V = fv_tok_size(tok);
    float *logits = malloc((size_t)V * sizeof *logits);
    if (fv_schema_read(&s, NULL, schema, &e)) fail_msg("%s", e.text);
    assert_int_equal(fv_constraint_new(&c, s, bytes, &end, 1, &e), FV_OK);
    for (; n < 4000; n++) {
        int best = -1;
        for (int i = 0; i < V; i++) {
            const char *piece = fv_tok_token(tok, i);
            logits[i] = (float)dice(1000);
            if (n > most && piece && strlen(piece) == 1 && strchr("\"}]", piece[0]))
                logits[i] += 1e4f;
        }
        logits[END] += n > most ? 1e5f : 0;
        fv_constraint_logits(c, logits, V, ids, n);
        for (int i = 0; i < V; i++)
            if (logits[i] > -INFINITY && (best < 0 || logits[i] > logits[best])) best = i;
        assert_true(best >= 0);
        if (best == END) break;
        ids[n] = best;
    }
    assert_true(n < 4000);
    fv_constraint_free(c);
    fv_schema_free(s);
    free(logits);
    char *text, *copy;
    size_t len;
    assert_int_equal(fv_tok_decode(tok, &text, &len, ids, n, true, &e), FV_OK);
    copy = strdup(text);
    fv_tok_free_text(tok, text, len);
    return copy;
}

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, JSON_DECODE_ANY, &e);
    if (!j) fail_msg("no JSON (%s): %s", e.text, text);
    return j;
}

static void any_object_is_json(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        char *text = walk(NULL, 10 + 3 * i);
        json_t *j = parse(text);
        assert_true(json_is_object(j));
        json_decref(j);
        free(text);
    }
}

static void objects_follow_their_schema(void **state)
{
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":2,"
        "\"maxLength\":5},\"age\":{\"type\":\"integer\"},\"kind\":{\"enum\":[\"cat\",\"car\",7]},"
        "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"minItems\":1,"
        "\"maxItems\":3},\"ok\":{\"type\":[\"boolean\",\"null\"]}},"
        "\"required\":[\"name\",\"kind\",\"tags\"],\"additionalProperties\":false}";
    bool with = false, without = false;
    for (int i = 0; i < 60; i++) {
        char *text = walk(schema, 20 + i);
        json_t *j = parse(text), *kind = json_object_get(j, "kind"),
               *tags = json_object_get(j, "tags"), *age = json_object_get(j, "age"),
               *ok = json_object_get(j, "ok"), *name = json_object_get(j, "name");
        assert_true(json_is_string(name));
        assert_in_range(json_array_size(tags), 1, 3);
        assert_true(json_is_number(json_array_get(tags, 0)));
        assert_true(!age || json_is_integer(age));
        assert_true(!ok || json_is_boolean(ok) || json_is_null(ok));
        const char *word = json_string_value(kind);
        assert_true(json_integer_value(kind) == 7 || !strcmp(word, "cat") || !strcmp(word, "car"));
        assert_int_equal(json_object_size(j), 3 + (age != NULL) + (ok != NULL));
        with = with || age;
        without = without || !age;
        json_decref(j);
        free(text);
    }
    assert_true(with && without);
}

static void schemas_refer_to_themselves(void **state)
{
    (void)state;
    static const char schema[] =
        "{\"$ref\":\"#/$defs/tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{"
        "\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"}},"
        "\"leaf\":{\"anyOf\":[{\"type\":\"null\"},{\"const\":\"\\u00e9t\\u00e9\"}]}},"
        "\"required\":[\"kids\",\"leaf\"]}}}";
    for (int i = 0; i < 20; i++) {
        char *text = walk(schema, 5 + i);
        json_t *j = parse(text);
        assert_true(json_is_array(json_object_get(j, "kids")));
        assert_non_null(json_object_get(j, "leaf"));
        json_decref(j);
        free(text);
    }
}

static void others_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *part;
    } table[] = {
        {"{\"type\":\"string\",\"pattern\":\"a*\"}", "pattern"},
        {"{\"type\":\"number\",\"minimum\":3}", "minimum"},
        {"{\"type\":\"thing\"}", "thing"},
        {"{\"$ref\":\"#/$defs/none\"}", "nowhere"},
        {"{\"enum\":[]}", "enum"},
        {"{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "maxItems"},
        {"[]", "an object"},
        {"{", "schema"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fv_schema *s;
        fv_err e;
        assert_int_not_equal(fv_schema_read(&s, NULL, table[i].schema, &e), FV_OK);
        assert_null(s);
        if (!strstr(e.text, table[i].part)) fail_msg("%s: %s", table[i].schema, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_object_is_json),
        cmocka_unit_test(objects_follow_their_schema),
        cmocka_unit_test(schemas_refer_to_themselves),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
