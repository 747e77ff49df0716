/* test_recipe.c - recipes: all of ours are read, every key is checked, mistakes are named with
 * their place. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/author/train.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"

static const char *file(const char *text) { return scratch_text("r.ini", text); }

static const char good[] = "[model]\nmodel_type = marian ; a comment\nd_model = 64\n[data]\ntrain "
                           "= x.tsv\n[train]\nlr = 1e-3\n";

static void refused(const char *text, const char *why)
{
    fv_recipe *r;
    fv_err e = {0};
    fv_status st = fv_recipe_open(&r, NULL, file(text), &e);
    if (!st) st = fv_recipe_check(r, &e);
    assert_int_not_equal(st, FV_OK);
    if (!strstr(e.text, why)) print_error("\"%s\" does not say \"%s\"\n", e.text, why);
    assert_non_null(strstr(e.text, why));
    fv_recipe_close(r);
}

static void mistakes_are_named_with_their_place(void **state)
{
    (void)state;
    refused("[train]\nlrr = 1\n", "r.ini:2: [train] lrr: no such key; did you mean lr?");
    refused("[distill]\nalpah = 1\n", "r.ini:2: [distill] alpah: no such key; did you mean alpha?");
    refused("[train]\n\n# x\nlr = fast\n",
            "r.ini:4: [train] lr: expected a number from 0 to 100, found \"fast\"");
    refused("[train]\nschedule = cosin\n", "expected one of inverse_sqrt, cosine");
    refused("[train]\nupdates = -1\n", "r.ini:2: [train] updates: expected an integer");
    refused("[trian]\nlr = 1\n", "r.ini:2: there is no section [trian]; did you mean [train]?");
    refused("lr = 1\n", "r.ini:1: lr stands before any section");
    refused("[train]\nlr = 1\nlr = 2\n", "r.ini:3: the key stands twice");
    refused("[train]\nlr 1\n", "r.ini:2: neither a [section] nor key = value");
    refused("[train]\nlr = \xff\n", "r.ini:2: not UTF-8");
    /* it would be written as "train = ; x", which is an empty value and a comment */
    refused("[data]\ntrain =; x\n", "r.ini:2: [data] train: a recipe cannot hold \"; x\"");
    refused("[model]\nmodel_type = marina\n[data]\ntrain=x\n",
            "r.ini:2: [model] model_type: there is no family marina; did you mean marian?");
    refused("[model]\nmodel_type = marian\nd_modl = 3\n[data]\ntrain=x\n",
            "r.ini:3: [model] d_modl: no such key; did you mean d_model?");
    refused("[model]\nmodel_type = marian\nd_model = wide\n[data]\ntrain=x\n",
            "r.ini:3: [model] d_model: expected an integer");
    refused("[model]\nd_model = 3\n[data]\ntrain=x\n",
            "r.ini: [model]: neither model_type nor from");
    refused("[model]\nfrom = nowhere\n[data]\ntrain=x\n", "r.ini: [model] from: nowhere");
    refused("[model]\nmodel_type = marian\n", "r.ini: [data] train: no file is named");
    refused("[model]\nmodel_type = marian\n[data]\ntrain=x\n[train]\nresult=ema\n",
            "r.ini: [train] result = ema: [train] ema is 0, so there is no moving average");
}

static void a_key_can_be_set_afterwards(void **state)
{
    (void)state;
    fv_recipe *r;
    fv_err e;
    check(fv_recipe_open(&r, NULL, file(good), &e), &e);
    check(fv_recipe_set(r, "train.lr", "3e-4", &e), &e);
    check(fv_recipe_set(r, "model.d_model", "32", &e), &e);
    check(fv_recipe_check(r, &e), &e);
    assert_true(fv_recipe_options(r)->lr == 3e-4f);
    assert_non_null(strstr(fv_recipe_text(r, &e), "d_model = 32\n"));
    assert_int_not_equal(fv_recipe_set(r, "lr", "1", &e), FV_OK);
    assert_non_null(strstr(e.text, "section.key=value"));
    assert_int_not_equal(fv_recipe_set(r, "train.wramup", "1", &e), FV_OK);
    assert_non_null(strstr(e.text, "did you mean warmup?"));
    fv_recipe_close(r);
}

/* What is written out reads as the same again, key for key. */
static void the_text_of_a_recipe_is_a_recipe(void **state)
{
    (void)state;
    fv_recipe *r, *again;
    fv_err e;
    check(fv_recipe_open(&r, NULL, file(good), &e), &e);
    check(fv_recipe_set(r, "train.freeze", "model.encoder.* *.bias", &e), &e);
    char *text = strdup(fv_recipe_text(r, &e));
    check(fv_recipe_open(&again, NULL, file(text), &e), &e);
    assert_string_equal(fv_recipe_text(again, &e), text);
    for (const fv_field *f = fv_train_fields; f->name; f++) {
        char key[80];
        snprintf(key, sizeof key, "\n%s =", f->name);
        assert_non_null(strstr(text, key));
    }
    /* of a file of src/train that declares its keys itself */
    assert_non_null(strstr(text, "[distill]\nteacher =\nalpha = 0.5\n"));
    free(text);
    fv_recipe_close(r);
    fv_recipe_close(again);
}

static void our_recipes_are_good(void **state)
{
    (void)state;
    DIR *d = opendir(FOVEA_TESTS "/../recipes");
    assert_non_null(d);
    int n = 0;
    for (struct dirent *x; (x = readdir(d));) {
        char path[400];
        fv_recipe *r;
        fv_err e;
        /* those of few-shot evaluation have sections of their own, which eval reads */
        if (!strstr(x->d_name, ".ini") || strstr(x->d_name, "-shots.ini")) continue;
        snprintf(path, sizeof path, FOVEA_TESTS "/../recipes/%s", x->d_name);
        check(fv_recipe_open(&r, NULL, path, &e), &e);
        /* where the data are is for the user to say */
        assert_non_null(strstr(fv_recipe_text(r, &e), "\ndir =\n"));
        assert_null(strstr(fv_recipe_text(r, &e), "../"));
        if (!strstr(fv_recipe_text(r, &e), "\nfrom = runs/"))
            check(fv_recipe_check(r, &e), &e); /* what it goes on from is made by another */
        fv_recipe_close(r);
        n++;
    }
    closedir(d);
    assert_true(n >= 1);
}

static void count_line(void *user, const char *text)
{
    assert_true(strlen(text) < 400); /* all objectives stand in one line */
    ++*(int *)user;
}

static void every_key_has_help(void **state)
{
    (void)state;
    int lines = 0, keys = 0;
    const fv_field *const tables[] = {fv_train_fields, fv_data_fields, fv_tokenizer_fields,
                                      fv_gen_fields};
    for (int i = 0; i < 4; i++)
        for (const fv_field *f = tables[i]; f->name; f++, keys++)
            assert_true(f->help && strlen(f->help) > 4);
    fv_recipe_help(NULL, count_line, &lines);
    assert_true(lines >= keys + 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_named_with_their_place),
        cmocka_unit_test(a_key_can_be_set_afterwards),
        cmocka_unit_test(the_text_of_a_recipe_is_a_recipe),
        cmocka_unit_test(our_recipes_are_good),
        cmocka_unit_test(every_key_has_help),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
