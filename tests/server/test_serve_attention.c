/* test_serve_attention.c - the pieces that a page asks /v1/attention for: rows, means, pooled maps,
 * the page without maps; all from one pass that is kept, and the same numbers as without. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "helper/http.h"

#define TEXT "Once upon a time there was a little dog who liked to run"

static const char path[] = "/v1/attention";

static int start(void **state)
{
    scratch_open(state);
    serve_start("-m story='%s/golden/stories260K' --quiet", FOVEA_TESTS);
    return 0;
}

/* Layer 2 of the text, with these fields. */
static json_t *ask(const char *more)
{
    char body[512];
    snprintf(body, sizeof body, "{\"input\":\"" TEXT "\"%s}", more);
    return post(path, body);
}

static double weight(const json_t *j, int head, int row, int col)
{
    char where[64];
    snprintf(where, sizeof where, "weights.0.%d.%d.%d", head, row, col);
    return number_at(j, where);
}

static int rows_of(const json_t *j) { return (int)json_array_size(at(j, "row_tokens")); }

static void heads_have_a_mean(void **state)
{
    (void)state;
    json_t *all = ask(",\"attention\":{\"layers\":[2]}"),
           *mean = ask(",\"attention\":{\"layers\":[2],\"heads\":\"mean\"}");
    int n = rows_of(all);
    assert_string_equal(text_at(mean, "heads"), "mean");
    assert_int_equal(json_array_size(at(mean, "weights.0")), 1);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            double sum = 0;
            for (int h = 0; h < 8; h++) sum += weight(all, h, i, k) / 8;
            assert_true(fabs(sum - weight(mean, 0, i, k)) < 1e-6);
        }
    json_decref(all);
    json_decref(mean);
}

/* A cell has the greatest of its weights; maps that are small enough stay as they are. */
static void maps_are_pooled(void **state)
{
    (void)state;
    static const char *const how[] = {",\"pool\":5,\"attention\":{\"layers\":[2]}",
                                      ",\"pool\":500,\"attention\":{\"layers\":[2]}"};
    json_t *all = ask(",\"attention\":{\"layers\":[2]}");
    int n = rows_of(all);
    for (int c = 0; c < 2; c++) {
        json_t *small = ask(how[c]);
        int side = c ? n : 5;
        assert_int_equal(json_array_size(at(small, "weights.0.3")), side);
        assert_int_equal(json_array_size(at(small, "weights.0.3.0")), side);
        for (int i = 0; i < side; i++)
            for (int k = 0; k < side; k++) {
                double most = 0;
                for (int r = 0; r < n; r++)
                    for (int q = 0; q < n; q++)
                        if (r * side / n == i && q * side / n == k)
                            most = fmax(most, weight(all, 3, r, q));
                assert_true(weight(small, 3, i, k) == most);
            }
        json_decref(small);
    }
    json_decref(all);
}

/* Rows of a pass that is kept, of another text between them, and of the first again. */
static void kept_passes_give_the_same(void **state)
{
    (void)state;
    json_t *first = ask(",\"attention\":{\"layers\":[4],\"heads\":[1]}");
    for (int i = 0; i < 4; i++) {
        char body[256];
        snprintf(body, sizeof body, "{\"input\":\"The dog %d\",\"attention\":{\"layers\":[0]}}", i);
        json_decref(post(path, body));
        json_t *again = ask(",\"rows\":[3,5],\"attention\":{\"layers\":[4],\"heads\":[1]}");
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < rows_of(first); k++)
                assert_true(weight(again, 0, r, k) == weight(first, 0, r + 3, k));
        json_decref(again);
    }
    json_decref(first);
}

/* A view is answered before the pass is run, and is the same once it is kept. */
static void a_view_needs_no_pass(void **state)
{
    (void)state;
    static const char body[] = "{\"input\":\"The bird is far away\",\"format\":\"view\"}";
    const answer *a = http(path, body);
    assert_int_equal(a->status, 200);
    char *first = strdup(a->body);
    a = http(path, body);
    assert_int_equal(a->status, 200);
    assert_string_equal(a->body, first);
    free(first);
}

static void a_page_without_maps(void **state)
{
    (void)state;
    const answer *a = http(path, "{\"input\":\"a <b> \\u20ac\",\"format\":\"view\"}");
    assert_int_equal(a->status, 200);
    assert_non_null(strstr(a->body, "\"ask\": {\"input\":\"a \\u003cb> \\u20AC\"}"));
    assert_null(strstr(a->body, ".thumbs\">"));
    assert_null(strstr(a->body, "type=\"text/plain\""));
    size_t n = strlen(a->body);
    a = http(path, "{\"input\":\"a <b> \\u20ac\",\"format\":\"html\"}");
    assert_int_equal(a->status, 200);
    assert_true(strlen(a->body) > n);
    assert_non_null(strstr(a->body, ".thumbs\">"));
}

static void wrong_pieces_are_refused(void **state)
{
    (void)state;
    http_refused(400, "pool: a whole number", path, "{\"input\":\"a\",\"pool\":0}");
    http_refused(400, "pool: a whole number", path, "{\"input\":\"a\",\"pool\":\"x\"}");
    http_refused(400, "attention.heads", path,
                 "{\"input\":\"a\",\"attention\":{\"heads\":\"median\"}}");
    http_refused(400, "html or view", path, "{\"input\":\"a\",\"format\":\"png\"}");
    http_refused(400, "rows: [from, to)", path, "{\"input\":\"a\",\"rows\":[0,9],\"pool\":2}");
    http_refused(400, "rows: [from, to)", path,
                 "{\"input\":\"a\",\"rows\":\"x\",\"format\":\"view\"}");
    http_refused(400, "pool: a whole", path,
                 "{\"input\":\"a\",\"pool\":\"x\",\"format\":\"html\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_have_a_mean),         cmocka_unit_test(maps_are_pooled),
        cmocka_unit_test(kept_passes_give_the_same), cmocka_unit_test(a_page_without_maps),
        cmocka_unit_test(a_view_needs_no_pass),      cmocka_unit_test(wrong_pieces_are_refused),
    };
    return cmocka_run_group_tests(tests, start, serve_close);
}
