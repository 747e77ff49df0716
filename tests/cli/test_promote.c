/* test_promote.c - versions of a model in a directory: better ones are taken, worse ones are not,
 * one command goes back, and to every command the directory is the version in use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper/program.h"

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    scratch_text("labels.tsv",
                 "the cat sat\tgood\nso bad a film\tbad\nit was a day\tfair\nthe good dog\tgood\n");
    scratch_text("r.ini",
                 "[model]\nmodel_type = bert\narchitecture = BertForSequenceClassification\n"
                 "hidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2\n"
                 "intermediate_size = 24\nmax_position_embeddings = 32\n"
                 "[data]\nobjective = classify\ntrain = labels.tsv\n"
                 "[tokenizer]\nkind = wordpiece\nvocab = 60\nmin_count = 1\n"
                 "[train]\nupdates = 60\nlr = 1e-2\nbatch_tokens = 64\nwarmup = 0\n");
    succeeded(sh("$fovea train r.ini -o good --threads 1"));
    succeeded(sh("$fovea train r.ini -o poor --set train.updates=1 --set train.lr=0 --threads 1"));
    return 0;
}

static void better_versions_are_taken(void **state)
{
    (void)state;
    prints("$fovea promote use -m poor/model labels.tsv | tail -n 1", "v1 is in use now\n");
    prints("$fovea promote use -m good/model labels.tsv | tail -n 1", "v2 is in use now\n");
    succeeded(sh("$fovea eval -m use --json labels.tsv > a; "
                 "$fovea eval -m good/model --json labels.tsv > b; cmp a b"));
    /* the other way round it stays, and the exit says so */
    const result *r = sh("$fovea promote use -m poor/model labels.tsv");
    assert_int_equal(r->code, 1);
    assert_non_null(strstr(r->out, "not taken: v2 stays in use\n"));
    succeeded(sh("test ! -e use/v3 && test ! -e use/v3.tmp"));
    /* unless that much worse is allowed */
    prints("$fovea promote use -m poor/model --margin 100 labels.tsv | tail -n 1",
           "v3 is in use now\n");
}

static void one_command_goes_back(void **state)
{
    (void)state;
    prints("$fovea promote use --back", "v2 is in use now\n");
    succeeded(sh("$fovea eval -m use --json labels.tsv > a; cmp a b"));
    json_t *j = json_line(succeeded(sh("$fovea promote use --back --json")), 0);
    assert_string_equal(json_string_value(json_object_get(j, "version")), "v3");
    assert_string_equal(json_string_value(json_object_get(j, "previous")), "v2");
    json_decref(j);
}

/* What was left by a copy that was interrupted is no version. */
static void an_unfinished_copy_is_left_alone(void **state)
{
    (void)state;
    succeeded(sh("mkdir use/v4.tmp; touch use/v4.tmp/config.json"));
    prints("$fovea promote use -m good/model labels.tsv | tail -n 1", "v5 is in use now\n");
}

static void bad_states_are_refused(void **state)
{
    (void)state;
    refused(sh("$fovea promote fresh --back"), 1, "no version before");
    refused(sh("mkdir trick; echo ../good/model > trick/CURRENT; "
               "$fovea eval -m trick labels.tsv"),
            1, "names no directory beside it");
    refused(sh("$fovea promote use -m good/model --metric bleu labels.tsv"), 1, "has no bleu");
    refused(sh("$fovea promote use -m nowhere labels.tsv"), 1, "nowhere");
    refused(sh("$fovea promote use labels.tsv"), 2, "a candidate");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(better_versions_are_taken),
        cmocka_unit_test(one_command_goes_back),
        cmocka_unit_test(an_unfinished_copy_is_left_alone),
        cmocka_unit_test(bad_states_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
