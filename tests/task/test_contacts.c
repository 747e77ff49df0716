/* test_contacts.c - contacts of residues against transformers' predict_contacts, and FASTA as
 * input. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/fovea.h"
#include "fovea/pipeline.h"
#include "helper/device.h"
#include "helper/files.h"

#define CASE FOVEA_TESTS "/golden/tasks/contacts"

static json_t *results[8];
static int n_results;

static bool keep(void *user, const fv_task_result *r)
{
    (void)user;
    if (r->error) fail_msg("record %lld: %s", (long long)r->record, r->error->text);
    assert_true(n_results < 8);
    results[n_results] = json_loadb(r->text, r->n, 0, NULL);
    assert_non_null(results[n_results++]);
    return true;
}

static fv_pipeline *open_pipeline(void)
{
    static const fv_setting all[] = {{"matrix", "true"}, {"apart", "1"}};
    fv_pipeline *p;
    fv_err e;
    fv_pipeline_opt how = {
        .task = "contacts", .model = CASE, .settings = all, .n_settings = 2, .json = true};
    if (fv_pipeline_open(&p, device, how, &e)) fail_msg("%s", e.text);
    return p;
}

/* Result k against the case's. */
static void same_contacts(int k, const json_t *want)
{
    const json_t *rows = json_object_get(results[k], "probabilities"),
                 *expected = json_object_get(want, "contacts");
    size_t n = json_array_size(expected);
    assert_int_equal(json_array_size(rows), n);
    assert_int_equal(json_array_size(json_object_get(results[k], "contacts")),
                     n < 2 ? 0 : (n * (n - 1) / 2 < n ? n * (n - 1) / 2 : n));
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            double x = json_real_value(json_array_get(json_array_get(rows, i), j)),
                   y = json_real_value(json_array_get(json_array_get(expected, i), j));
            if (!(fabs(x - y) <= 1e-5)) fail_msg("%zu, %zu: %g instead of %g", i, j, x, y);
        }
}

static void contacts_are_the_published_ones(void **state)
{
    (void)state;
    json_t *expect = json_load_file(CASE "/expect.json", 0, NULL);
    fv_pipeline *p = open_pipeline();
    fv_err e;
    n_results = 0;
    for (size_t i = 0; i < json_array_size(expect); i++) {
        const char *s = json_string_value(json_object_get(json_array_get(expect, i), "text"));
        if (fv_pipeline_run(p, &(fv_text){.s = s, .n = strlen(s)}, 1, 1, keep, NULL, &e))
            fail_msg("%s", e.text);
        same_contacts((int)i, json_array_get(expect, i));
    }
    for (int i = 0; i < n_results; i++) json_decref(results[i]);
    fv_pipeline_close(p);
    json_decref(expect);
}

/* Sequences of a FASTA file go over lines of either end, and comments may stand between. */
static void fasta_is_read_as_lines(void **state)
{
    (void)state;
    static const char *const want[] = {"MKTAYIAK", "", "GAG"};
    const char *path = scratch_text("p.fasta", ">one first\r\nMKTA\r\nYI AK\r\n>two\n>three\n"
                                               ";a comment\nGA\nG");
    fv_reader *r;
    const fv_line *lines;
    int64_t n;
    fv_err e;
    if (fv_reader_open(&r, NULL, path, (fv_reader_opt){0}, &e)) fail_msg("%s", e.text);
    assert_int_equal(fv_reader_next(r, 100, &lines, &n, &e), FV_OK);
    assert_int_equal(n, 3);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(lines[i].text.n, strlen(want[i]));
        assert_memory_equal(lines[i].text.s, want[i], lines[i].text.n);
    }
    fv_reader_close(r);
}

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contacts_are_the_published_ones),
        cmocka_unit_test(fasta_is_read_as_lines),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
