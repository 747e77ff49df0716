/* test_series_run.c - series with labels and numbers: they are learnt, by the mean square and by a
 * likelihood, an interrupted run ends with the same bits, and the commands read what training
 * does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/series.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/program.h"

static const char model[] = "[model]\nmodel_type = patchtst\npatch_length = 4\npatch_stride = 4\n"
                            "d_model = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2\n"
                            "ffn_dim = 16\nnorm_type = layernorm\nscaling = none\n"
                            "pooling_type = max\n";
static const char train[] = "[train]\nupdates = 120\nbatch_rows = 16\nlr = 1e-2\nwarmup = 0\n"
                            "save_every = 40\neval_every = 60\n";

static void write_recipe(const char *name, const char *objective)
{
    char text[2048];
    snprintf(text, sizeof text,
             "%s[data]\nobjective = %s\ntrain = %s\nhold_out = 0.2\ncontext = 24\n%s", model,
             objective, strstr(objective, "regress") ? "waves.tsv" : "kinds.tsv", train);
    scratch_text(name, text);
}

/* Waves of two channels, 20 or 24 steps long.  Kinds: slow or fast ones; numbers: how high they
 * are. */
static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    write_recipe("classify.ini", "series_classify");
    write_recipe("regress.ini", "series_regress");
    succeeded(sh("awk 'BEGIN { srand(1); for (i = 0; i < 240; i++) { f = i %% 2 ? 1.4 : 0.5; "
                 "p = rand() * 6; h = 0.2 + 2 * rand(); n = i %% 3 ? 24 : 20; a = b = \"\"; for (t "
                 "= 0; t < n; t++) { "
                 "a = a (t ? \" \" : \"\") sprintf(\"%%.3f\", h * sin(f * t + p)); "
                 "b = b (t ? \",\" : \"\") sprintf(\"%%.3f\", h * cos(f * t + p)) } "
                 "print a \":\" b \"\\t\" (i %% 2 ? \"fast\" : \"slow\") > \"kinds.tsv\"; "
                 "print a \":\" b \"\\t\" h > \"waves.tsv\" } }'"));
    succeeded(sh("tail -n 40 kinds.tsv > asked.tsv; cut -f 1 asked.tsv > lines.txt; "
                 "tail -n 40 waves.tsv > heights.tsv"));
    return 0;
}

static double figure(const char *key, const result *r)
{
    json_t *j = json_line(r, 0);
    double x = json_number_value(json_object_get(j, key));
    json_decref(j);
    return x;
}

static void labels_are_learnt(void **state)
{
    (void)state;
    succeeded(sh("$fovea train classify.ini -q -o kinds --threads 1"));
    double right = figure("accuracy", succeeded(sh("$fovea eval -m kinds/model --json asked.tsv")));
    if (!(right > 95)) fail_msg("an accuracy of %g", right);
    const result *r = succeeded(sh("$fovea classify -m kinds/model lines.txt"));
    assert_true(!strncmp(r->out, "slow ", 5) || !strncmp(r->out, "fast ", 5));
    r = succeeded(sh("head -n 1 lines.txt | $fovea classify -m kinds/model --json"));
    assert_non_null(strstr(r->out, "{\"series\":"));
    succeeded(sh("printf '1\\t2\\t3:4 5 6\\n' | $fovea classify -m kinds/model"));
    succeeded(sh("$fovea train classify.ini -q -o cut --set train.updates=70 --threads 2"));
    succeeded(sh("$fovea train classify.ini -q -o cut --resume --threads 1"));
    succeeded(sh("cmp kinds/model/model.safetensors cut/model/model.safetensors"));
}

static void numbers_are_learnt(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "", "--set model.loss=nll", "--set model.loss=nll --set model.distribution_output=normal"};
    for (int i = 0; i < 3; i++) {
        succeeded(sh("$fovea train regress.ini -q -o waves%d --threads 1 %s", i, ways[i]));
        const result *r = succeeded(sh("$fovea eval -m waves%d/model --json heights.tsv", i));
        double explained = figure("r2", r);
        if (!(explained > 0.9)) fail_msg("%s: R squared %g", ways[i], explained);
    }
    const result *r = succeeded(sh("$fovea regress -m waves1/model lines.txt"));
    assert_true(strtod(r->out, NULL) > 0);
    r = succeeded(sh("head -n 1 lines.txt | $fovea regress -m waves1/model --json"));
    assert_non_null(strstr(r->out, "{\"values\":["));
    succeeded(
        sh("$fovea train regress.ini -q -o cut1 --set train.updates=70 --threads 2 %s", ways[1]));
    succeeded(sh("$fovea train regress.ini -q -o cut1 --resume --threads 1 %s", ways[1]));
    succeeded(sh("cmp waves1/model/model.safetensors cut1/model/model.safetensors"));
}

/* A forecast by a likelihood is the mean of its distribution; a back-test reads it. */
static void forecasts_may_be_distributions(void **state)
{
    (void)state;
    char text[1024];
    snprintf(text, sizeof text,
             "%sloss = nll\n[data]\nobjective = forecast\ntrain = wave.csv\nvalid = wave.csv\n"
             "context = 24\nhorizon = 4\n%s",
             model, train);
    scratch_text("forecast.ini", text);
    succeeded(sh("awk 'BEGIN { print \"date,a,b\"; for (i = 0; i < 240; i++) "
                 "printf \"%%d,%%.3f,%%.3f\\n\", i, sin(i / 2), cos(i / 3) }' > wave.csv"));
    succeeded(sh("$fovea train forecast.ini -q -o wave --threads 1"));
    const result *r = succeeded(
        sh("$fovea forecast -m wave/model wave.csv --backtest --from 190 --json"));
    json_t *j = json_line(r, 0);
    double mse = json_number_value(json_object_get(j, "mse")),
           repeated = json_number_value(json_object_get(j, "repeat_mse"));
    json_decref(j);
    if (!(mse < 0.5 * repeated))
        fail_msg("%g, and %g where the last value is repeated", mse, repeated);
    refused(sh("$fovea train forecast.ini -q -o no --set data.error=mae"), 1, "error = mae");
    refused(sh("$fovea train forecast.ini -q -o no "
               "--set model.distribution_output=negative_binomial"),
            1, "is of counts");
}

/* A series for the other task, a broken one, and one that is too long. */
static void what_is_wrong_is_said(void **state)
{
    (void)state;
    refused(sh("echo '1 2 x:3 4 5' | $fovea classify -m kinds/model"), 1, "\"x\" is no number");
    refused(sh("echo '1 2 3' | $fovea classify -m kinds/model"), 1,
            "a series of 1 channels, expected 2");
    refused(sh("echo '1 2 3:1 2' | $fovea classify -m kinds/model"), 1,
            "channel 2 has 2 numbers, those before it 3");
    refused(sh("$fovea train classify.ini -q -o no --set data.context=22"), 1,
            "a series of 24 time steps, at most 22 are read");
    refused(sh("$fovea train regress.ini -q -o no --set data.train=kinds.tsv"), 1,
            "expected 1 numbers");
    refused(sh("$fovea regress -m kinds/model lines.txt"), 1, "PatchTSTForRegression is needed");
}

static void texts_become_series(void **state)
{
    (void)state;
    const char *text = " 1, ?,3 : 4 NaN,8 ";
    const float want[] = {2, 6, 1, 4, 2, 6, 3, 8};
    const uint8_t seen[] = {0, 0, 1, 1, 0, 0, 1, 1};
    float x[8];
    uint8_t observed[8];
    int64_t steps, channels;
    fv_err e;
    check(fv_series_measure(text, strlen(text), &steps, &channels, &e), &e);
    assert_int_equal(steps, 3);
    assert_int_equal(channels, 2);
    check(fv_series_parse(x, observed, 4, 2, text, strlen(text), &e), &e);
    assert_memory_equal(x, want, sizeof want);
    assert_memory_equal(observed, seen, sizeof seen);
    assert_int_equal(fv_series_measure("  ", 2, &steps, &channels, &e), FV_EFORMAT);
    assert_int_equal(fv_series_parse(x, observed, 2, 2, text, strlen(text), &e), FV_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_are_learnt),
        cmocka_unit_test(numbers_are_learnt),
        cmocka_unit_test(forecasts_may_be_distributions),
        cmocka_unit_test(what_is_wrong_is_said),
        cmocka_unit_test(texts_become_series),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
