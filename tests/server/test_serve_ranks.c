/* test_serve_ranks.c - one model that the ranks of a job serve together: the answers of one
 * process, what they cannot do together, and the end.  Skipped without OpenMPI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/http.h"
#include "helper/mpi.h"
#include "helper/program.h"

#define MODEL "-m " FOVEA_TESTS "/golden/stories260K -t 1 "
#define BY(n)                                                                                      \
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive "           \
    "exec mpirun --oversubscribe --bind-to none -np " n

static const char greedy[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":20,"
                             "\"temperature\":0}",
                  drawn[] = "{\"prompt\":[\"A dog\",\"The cat\"],\"max_tokens\":12,\"n\":2,"
                            "\"temperature\":0.9,\"seed\":7,\"stop\":\" a\"}";

/* The texts of both requests, to compare. */
static void ask(char *out, size_t size)
{
    json_t *a = post("/v1/completions", greedy), *b = post("/v1/completions", drawn);
    snprintf(out, size, "%s|%s|%s|%s|%s", text_at(a, "choices.0.text"),
             text_at(b, "choices.0.text"), text_at(b, "choices.1.text"),
             text_at(b, "choices.2.text"), text_at(b, "choices.3.text"));
    json_decref(a);
    json_decref(b);
}

static char of_one[4096];

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    serve_under("exec");
    serve_start(MODEL);
    ask(of_one, sizeof of_one);
    return serve_stop();
}

static void same_answers(const char *by, const char *how)
{
    char text[4096];
    serve_under(by);
    serve_start(MODEL "%s", how);
    ask(text, sizeof text);
    assert_string_equal(text, of_one);
    ask(text, sizeof text); /* prompts that are kept by now */
    assert_string_equal(text, of_one);
    http_refused(400, "which generate text and nothing else", "/v1/embeddings",
                 "{\"input\":\"a\"}");
    http_refused(400, "which generate text and nothing else", "/v1/attention", "{\"input\":\"a\"}");
    serve_stop();
    assert_false(serve_runs());
}

static void ranks_serve_one_model(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    same_answers(BY("2"), "--tensor-parallel");
    same_answers(BY("3"), "--pipeline-parallel");
}

static void what_ranks_do_not_serve_is_refused(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    const result *r = sh(MPIRUN "-np 2 $fovea serve " MODEL MODEL "--port 0 --tensor-parallel");
    assert_int_not_equal(r->code, 0);
    r = sh(MPIRUN "-np 2 $fovea serve " MODEL "--port 0 --runs . --tensor-parallel");
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "ranks serve one model"));
    r = sh(MPIRUN "-np 2 $fovea serve " MODEL
                  "--port 0 --dtype q8 --tensor-parallel"); /* q8 has stages only */
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "its weights are not floats"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_serve_one_model),
        cmocka_unit_test(what_ranks_do_not_serve_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, serve_close);
}
