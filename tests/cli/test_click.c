/* test_click.c - BST and fovea click from outside: that it learns what a history says of a
 * candidate, from random vectors and from vectors of items, and what the command prints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "helper/program.h"

#define MODELS FOVEA_TESTS "/golden/models/"
#define TRAIN "train " FOVEA_TESTS "/../recipes/video-bst.ini -q --set data.dir= "

/* From a file of impressions to calibrated probabilities: even numbers take even candidates. */
static void clicks(void **state)
{
    (void)state;
    const char *table = "i=0; while [ $i -lt 200 ]; do echo \"$(((i+i/7)%2==0))\t$((i%6))\t"
                        "$((i/7%2)) $((i/7%2+2))\tf$((i%3))\"; i=$((i+1)); done";
    succeeded(sh("(%s) > shown.tsv", table));
    succeeded(fovea("train " FOVEA_TESTS "/../recipes/video-bst.ini -o click -q "
                    "--set data.train=shown.tsv --set data.valid=shown.tsv --set data.longest=3 "
                    "--set data.feature_columns=1 --set data.dir= --set train.updates=60 "
                    "--set model.vectors= "
                    "--set train.warmup=5 --set train.lr=1e-2 --set train.batch_rows=64 "
                    "--set train.eval_every=0 --set model.hidden_dropout_prob=0"));
    const result *r = succeeded(fovea("click -m click/model --calibrate shown.tsv --json"));
    json_t *j = json_line(r, 0);
    assert_int_equal(json_integer_value(json_object_get(j, "impressions")), 200);
    double before = json_real_value(json_object_get(json_object_get(j, "model"), "log_loss")),
           after = json_real_value(json_object_get(json_object_get(j, "calibrated"), "log_loss")),
           auc = json_real_value(json_object_get(json_object_get(j, "model"), "auc"));
    assert_true(after <= before && auc > 0.9);
    json_decref(j);
    r = succeeded(fovea("click -m click/model shown.tsv"));
    assert_int_equal(strcspn(r->out, "\t"), 8);
    succeeded(sh("printf -- '-\tnobody\t1 2\tf1\n' > new.tsv"));
    r = succeeded(fovea("click -m click/model new.tsv"));
    assert_non_null(strstr(r->out, "(unknown)"));
    refused(fovea("click -m click/model --evaluate new.tsv"), 1, "has no label");
    refused(fovea("click -m " MODELS "sasrec shown.tsv"), 1, "does not judge candidates");
    refused(fovea("click -m " MODELS "bst shown.tsv"), 1, "columns of features");
}

/* 60 items of 6 categories.  A history has one category, and every other candidate is of it:
 * neither candidate nor history tells anything alone.  sentences.txt: one category a line. */
static void write_categories(void)
{
    const char *make = "function item(c) { return 6 * int(10 * rand()) + c } "
                       "BEGIN { srand(5); for (n = 0; n < 4500; n++) { c = int(6 * rand()); "
                       "h = item(c); for (k = int(4 * rand()); k > 0; k--) h = h \" \" item(c); "
                       "y = n % 2; printf \"%d\\t%d\\t%s\\n\", y, item(y ? c : (c + 1 + int(5 * "
                       "rand())) % 6), h > (n < 4000 ? \"some.tsv\" : \"held.tsv\") } "
                       "for (n = 0; n < 600; n++) { c = n % 6; for (k = 0; k < 8; k++) "
                       "printf \"%d \", item(c) > \"sentences.txt\"; print \"\" > "
                       "\"sentences.txt\" } }";
    succeeded(sh("awk '%s'", make));
}

static double auc_of(const char *model)
{
    json_t *j = json_line(succeeded(fovea("click -m %s --evaluate held.tsv --json", model)), 0);
    double auc = json_real_value(json_object_get(json_object_get(j, "model"), "auc"));
    json_decref(j);
    return auc;
}

#define CATEGORIES                                                                                 \
    "--set data.train=some.tsv --set data.valid=held.tsv --set data.longest=4 "                    \
    "--set data.feature_columns=0 --set train.lr=3e-3 --set train.batch_rows=100 "                 \
    "--set train.warmup=20 --set train.eval_every=0 --set train.result=last --set data.unknown=0 "

/* Judged on impressions that were not trained on, with the recipe's own dropout. */
static void shared_categories_are_found(void **state)
{
    (void)state;
    write_categories();
    succeeded(fovea(TRAIN CATEGORIES "-o chance --set train.updates=1 --set model.vectors="));
    assert_true(auc_of("chance/model") < 0.65);
    succeeded(fovea(TRAIN CATEGORIES "-o learnt --set train.updates=600 --set model.vectors="));
    assert_true(auc_of("learnt/model") > 0.9);

    succeeded(fovea("vectors --width 32 --least 1 --sample 1 --epochs 20 -o items.vec "
                    "sentences.txt"));
    const result *r = succeeded(fovea("train " FOVEA_TESTS "/../recipes/video-bst.ini "
                                      "--set data.dir= " CATEGORIES "-o begun "
                                      "--set train.updates=150 --set model.vectors=items.vec"));
    assert_true(strstr(r->out, "60 of 60 items begin as vectors") ||
                strstr(r->err, "60 of 60 items begin as vectors"));
    assert_true(auc_of("begun/model") > 0.9);
    refused(fovea(TRAIN CATEGORIES
                  "-o no --set model.hidden_size=16 --set model.vectors=items.vec"),
            1, "fit no embedding");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clicks),
        cmocka_unit_test(shared_categories_are_found),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
