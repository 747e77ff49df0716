/* test_masked_series.c - pre-training on hidden patches of a series: the loss goes down, an
 * interrupted run ends with the same bits, and a forecaster goes on from the result. */
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
    scratch_text("masked.ini",
                 "[model]\nmodel_type = patchtst\npatch_length = 4\npatch_stride = 4\n"
                 "d_model = 8\nnum_hidden_layers = 1\nnum_attention_heads = 2\nffn_dim = 16\n"
                 "[data]\nobjective = masked_series\ntrain = series.csv\nvalid = series.csv\n"
                 "context = 24\nmask = 0.4\n"
                 "[train]\nupdates = 60\nbatch_rows = 16\nlr = 1e-2\nwarmup = 0\nlog_every = 1\n"
                 "save_every = 20\neval_every = 60\n");
    scratch_text("tuned.ini",
                 "[model]\nfrom = masked/model\narchitecture = PatchTSTForPrediction\n"
                 "prediction_length = 4\n[data]\nobjective = forecast\ntrain = series.csv\n"
                 "context = 24\nhorizon = 4\n"
                 "[train]\nupdates = 2\nbatch_rows = 16\nsave_every = 0\n");
    succeeded(sh("awk 'BEGIN { print \"date,a,b\"; for (i = 0; i < 240; i++) "
                 "printf \"%%d,%%.3f,%%.3f\\n\", i, sin(i / 2), cos(i / 3) }' > series.csv"));
    return 0;
}

static double loss_of(const char *command)
{
    json_t *j = json_line(succeeded(sh("%s", command)), 0);
    double x = json_number_value(json_object_get(j, "loss"));
    json_decref(j);
    return x;
}

static void hidden_patches_are_learnt(void **state)
{
    (void)state;
    succeeded(sh("$fovea train masked.ini -q -o masked --threads 1"));
    double first = loss_of("head -n 1 masked/train.jsonl"),
           last = loss_of("grep '\"train\"' masked/train.jsonl | tail -n 1");
    if (!(last < 0.6 * first)) fail_msg("a loss of %g, %g in the beginning", last, first);
    succeeded(sh("$fovea train masked.ini -q -o cut --set train.updates=31 --threads 2"));
    succeeded(sh("$fovea train masked.ini -q -o cut --resume --threads 1"));
    succeeded(sh("cmp masked/model/model.safetensors cut/model/model.safetensors"));
}

static void a_forecaster_goes_on_from_it(void **state)
{
    (void)state;
    const result *r = succeeded(sh("$fovea train tuned.ini -o tuned --threads 1 2>&1"));
    assert_non_null(strstr(r->out, "new: head.projection.weight"));
    succeeded(sh("$fovea forecast -m tuned/model series.csv"));
}

static void windows_of_one_patch_are_refused(void **state)
{
    (void)state;
    refused(sh("$fovea train masked.ini -q -o no --set data.context=6"), 1, "two are needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_patches_are_learnt),
        cmocka_unit_test(a_forecaster_goes_on_from_it),
        cmocka_unit_test(windows_of_one_patch_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
