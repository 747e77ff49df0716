/* test_cli_ranks.c - tasks and evaluations by mpirun: what one process prints and writes, to the
 * byte, whatever the number of ranks; a rank that fails is named.  Skipped without OpenMPI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/mpi.h"
#include "helper/program.h"

/* $g is tests/golden and $e tests/golden/eval; lines.txt has 150 lines. */
static int set_up(void **state)
{
    char text[8000];
    size_t n = 0;
    setenv("g", FOVEA_TESTS "/golden", 1);
    setenv("e", FOVEA_TESTS "/golden/eval", 1);
    if (scratch_open(state)) return -1;
    for (int i = 0; i < 150; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "the cat %d sat %d\n", i, i * 7 % 31);
    scratch_text("lines.txt", text);
    return 0;
}

/* One process and so many ranks print the same and write the same file, called out.npy. */
static void same_on(int ranks, const char *line)
{
    succeeded(
        sh("rm -f out.npy one.npy; $fovea %s > one.txt && if test -e out.npy; then mv out.npy "
           "one.npy; fi",
           line));
    succeeded(sh(MPIRUN "-np %d $fovea %s -t 1 > many.txt", ranks, line));
    const result *r = sh("cmp one.txt many.txt && (test ! -e one.npy || cmp one.npy out.npy)");
    if (r->code) fail_msg("%d ranks, %s: %s%s", ranks, line, r->out, r->err);
}

static void ranks_share_the_lines_of_a_task(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    same_on(3, "embed -m $g/tasks/embed-mean lines.txt");
    same_on(3, "embed -m $g/tasks/embed-mean --output out.npy lines.txt");
    same_on(2, "score -m $g/stories260K lines.txt");
    same_on(2, "classify -m $e/classify --json lines.txt");
    same_on(3, "tag -m $e/tag -b 7 lines.txt");
    same_on(3, "translate -m $g/translate -b 2 $g/translate/lines.txt");
    same_on(2, "generate -m $g/stories260K --max-new-tokens 8 --text 'Once upon' --text 'A dog'");
}

/* The model is divided, not the lines: the same text, and scores that are near. */
static void ranks_share_a_model(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    same_on(2,
            "generate -m $g/stories260K --max-new-tokens 24 --tensor-parallel 'Once upon a time'");
    same_on(4, "generate -m $g/stories260K --max-new-tokens 12 --seed 3 --do-sample "
               "--tensor-parallel 'A dog'");
    same_on(2, "generate -m $g/stories260K --max-new-tokens 24 --pipeline-parallel 'Once upon'");
    same_on(3, "score -m $g/stories260K --pipeline-parallel --text 'Once upon a time'");
    const result *r = sh(MPIRUN "-np 2 $fovea embed -m $g/tasks/embed-mean --tensor-parallel -t 1 "
                                "lines.txt");
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "ranks share models that generate"));
}

static void what_ranks_cannot_share_is_refused(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    const result *r = sh(MPIRUN "-np 2 $fovea embed -m $g/tasks/embed-mean -t 1");
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "several ranks need a FILE"));
    r = sh(MPIRUN "-np 2 $fovea words --top 2 lines.txt");
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "this runs on one rank"));
    r = sh(MPIRUN "-np 2 $fovea eval -m $e/classify --shots 0 --task classify lines.txt");
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "few-shot evaluation runs on one rank"));
}

static void ranks_share_the_records_of_an_evaluation(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    same_on(
        3, "eval -m $e/classify --source-field text --target-field label -o out.npy $e/labels.tsv");
    same_on(2, "eval -m $e/tag -o out.npy --batch 1 $e/tags.conll");
    same_on(3, "eval -m $g/tasks/answer-bert -o out.npy --json $e/squad.json");
    same_on(3, "eval -m $g/stories260K --window 16 --stride 5 $g/stories260K/greedy.txt");
    same_on(2, "eval -m $g/tasks/fill-bert $e/lines.txt");
    same_on(3, "eval -m $e/summarize-t5 --task summarize --source-field article --target-field "
               "highlights -o out.npy $e/articles.jsonl");
}

/* A record that only one of the ranks sees is wrong: all leave, and the file is not written. */
static void a_record_that_fails_ends_all_ranks(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    succeeded(sh("{ cat $e/labels.tsv; printf 'x\\tno such label\\tx\\n'; } > bad.tsv"));
    const result *r = sh(MPIRUN "-np 3 $fovea eval -m $e/classify --source-field text "
                                "--target-field label -t 1 bad.tsv");
    assert_int_not_equal(r->code, 0);
    assert_int_not_equal(r->code, 124); /* of timeout */
    assert_non_null(strstr(r->err, "none of the model's"));
    /* rank 1 has no such file */
    r = sh(
        "cp lines.txt lines-0.txt; " MPIRUN
        "-np 2 sh -c '$fovea embed -m $g/tasks/embed-mean -t 1 lines-$OMPI_COMM_WORLD_RANK.txt'");
    assert_int_not_equal(r->code, 0);
    assert_int_not_equal(r->code, 124);
    assert_non_null(strstr(r->err, "lines-1.txt"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_the_lines_of_a_task),
        cmocka_unit_test(ranks_share_a_model),
        cmocka_unit_test(what_ranks_cannot_share_is_refused),
        cmocka_unit_test(ranks_share_the_records_of_an_evaluation),
        cmocka_unit_test(a_record_that_fails_ends_all_ranks),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
