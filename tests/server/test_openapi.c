/* test_openapi.c - /openapi.json is true: every path and field it names is taken, and no other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "helper/http.h"

#define STORIES FOVEA_TESTS "/golden/stories260K"

static int start(void **state)
{
    scratch_open(state);
    serve_start("-m plain='%s' --quiet", STORIES);
    return 0;
}

/* What the server says to a body {key: null}: a field that it has may be null. */
static bool takes(const char *path, const char *key)
{
    char body[200];
    snprintf(body, sizeof body, "{\"%s\":null}", key);
    const answer *a = http(path, body);
    if (a->status >= 500) fail_msg("%s %s: %d %s", path, body, a->status, a->body);
    return !strstr(a->body, "is not a field of this request");
}

static void check_body(const char *path, const json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)at(schema, "properties"), key, value) if (!takes(path, key))
        fail_msg("%s does not take %s", path, key);
    assert_false(takes(path, "nonsense"));
    /* needed: without it the request is refused */
    for (size_t i = 0; i < json_array_size(at(schema, "required")); i++)
        assert_int_equal(http(path, "{}")->status, 400);
}

/* Every field that any path has, sent to each: taken exactly where the document says so. */
static void check_others(const char *path, const json_t *schema, const json_t *all)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)all, key, value)
    {
        bool listed = json_object_get(at(schema, "properties"), key);
        if (takes(path, key) != listed)
            fail_msg("%s: the document and the server disagree about %s", path, key);
    }
}

/* The types that a body may have; NULL: there is none. */
static const json_t *operation_body(const json_t *operation)
{
    return json_object_get(json_object_get(operation, "requestBody"), "content");
}

static void the_document_is_true(void **state)
{
    (void)state;
    static const char body[] = "requestBody.content.application/json.schema";
    json_t *doc = post("/openapi.json", NULL), *all = json_object(), *operations;
    const char *path, *method;
    json_t *operation;
    assert_int_equal(strncmp(text_at(doc, "openapi"), "3.1", 3), 0);
    assert_true(json_object_size(at(doc, "paths")) >= 20);
    json_object_foreach((json_t *)at(doc, "paths"), path, operations)
        json_object_foreach(operations, method,
                            operation) if (json_object_get(operation_body(operation),
                                                           "application/json"))
            json_object_update(all, (json_t *)at(at(operation, body), "properties"));
    json_object_foreach((json_t *)at(doc, "paths"), path, operations)
    {
        json_object_foreach(operations, method, operation)
        {
            if (!strcmp(method, "post") &&
                !json_object_get(operation_body(operation), "application/json")) {
                assert_int_equal(http(path, "{}")->status, 400); /* a form */
            } else if (!strcmp(method, "post")) {
                check_body(path, at(operation, body));
                check_others(path, at(operation, body), all);
            } else {
                bool one = strchr(path, '{');
                const char *named = strstr(path, "models") ? "/v1/models/plain" : "/v1/runs/none";
                int status = http(one ? named : path, NULL)->status;
                if (status != 200 && !(one && status == 404 && strstr(path, "runs")))
                    fail_msg("%s: %d", path, status);
            }
        }
    }
    json_decref(all);
    json_decref(doc);
}

static void the_page_is_one_file(void **state)
{
    (void)state;
    const answer *a = http("/", NULL);
    assert_int_equal(a->status, 200);
    assert_non_null(strstr(a->head, "text/html"));
    assert_non_null(strstr(a->head, "Content-Security-Policy"));
    assert_non_null(strstr(a->body, "<script>"));
    /* nothing is fetched; the one address is the name of SVG's namespace */
    const char *address = strstr(a->body, "http://");
    assert_non_null(address);
    assert_int_equal(strncmp(address, "http://www.w3.org/2000/svg", 26), 0);
    assert_null(strstr(address + 1, "http://"));
    assert_null(strstr(a->body, "https://"));
    assert_null(strstr(a->body, "@js@"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_document_is_true),
        cmocka_unit_test(the_page_is_one_file),
    };
    return cmocka_run_group_tests(tests, start, serve_close);
}
