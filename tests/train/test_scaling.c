/* test_scaling.c - `fovea plan`: the formulas at their ends, and the command on a small recipe. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/scaling.h"
#include "helper/program.h"
#include "helper/ranks.h"

/* 100 million numbers, a second of computing for 64 rows. */
static const fv_scaling large = {.numbers = 100000000,
                                 .number_bytes = 4,
                                 .state_bytes = 8,
                                 .tokens = 65536,
                                 .rows = 64,
                                 .leaf = 0.01,
                                 .token = 1.5e-5,
                                 .block = 0.02,
                                 .optimiser = 0.04,
                                 .token_bytes = 1e5,
                                 .kept_token_bytes = 1e4};

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

/* One rank sends nothing; a network without bounds leaves computing; a slow one is all there is. */
static void a_network_counts_as_it_should(void **state)
{
    (void)state;
    fv_scaling_net fast = {.bandwidth = 1e18, .efficiency = 1, .overhead = 1e-12}, slow = fast;
    slow.bandwidth = 1e6;
    fv_scaling_layout one = fv_scaling_predict(&large, slow, 1, 1, false);
    assert_true(near(one.seconds, 0.01 + 1.5e-5 * 65536 + 0.04));
    assert_true(one.exposed == 0);
    fv_scaling_layout four = fv_scaling_predict(&large, fast, 4, 4, false);
    assert_true(four.exposed < 0.01 && near(four.compute, 0.01 + 1.5e-5 * 16384 + 0.01));
    four = fv_scaling_predict(&large, slow, 4, 4, false);
    /* reduce and gather: 3/4 of 400 MB each, at a megabyte a second */
    assert_true(fabs(four.reduce - 300) < 1 && fabs(four.gather - 300) < 1);
    assert_true(four.seconds > 599 && four.seconds < 602);
    /* three ranks with eight leaves send more than one node each */
    fv_scaling_layout three = fv_scaling_predict(&large, slow, 3, 8, false);
    assert_true(three.reduce > 1.9 * 400 * 2 / 3);
}

/* Moments and gradients are divided; memory decides between layouts. */
static void memory_decides(void **state)
{
    (void)state;
    fv_scaling_net net = {.bandwidth = 1e9, .latency = 1e-4};
    fv_scaling_layout l;
    double one = fv_scaling_predict(&large, net, 1, 1, false).bytes,
           four = fv_scaling_predict(&large, net, 4, 4, false).bytes;
    assert_true(one > 400e6 + 400e6 + 800e6 + 6e9);
    assert_true(four < 400e6 + 140e6 + 210e6 + 1.7e9);
    assert_true(fv_scaling_best(&l, &large, net, 4, 0) && !l.recompute && l.shards == 4);
    assert_true(fv_scaling_best(&l, &large, net, 4, 1.2e9) && l.recompute);
    assert_true(l.bytes <= 1.2e9);
    assert_false(fv_scaling_best(&l, &large, net, 4, 1e8));
    assert_true(fv_scaling_best(&l, &large, net, 64, 0));
    assert_false(fv_scaling_best(&l, &large, net, 128, 0)); /* 64 rows */
}

static const char recipe[] = "[model]\nmodel_type = gpt2\nn_embd = 32\nn_layer = 1\nn_head = 2\n"
                             "n_positions = 32\n[data]\nobjective = causal\ntrain = lines.txt\n"
                             "context = 16\n[tokenizer]\nkind = byte_bpe\nvocab = 270\n"
                             "min_count = 1\n[train]\nupdates = 6\nbatch_tokens = 128\n";

static void the_command_plans_a_recipe(void **state)
{
    (void)state;
    ranks_recipe(recipe);
    const result *r = succeeded(sh("$fovea plan r.ini -t 1 --json"));
    for (int i = 0; i < 3; i++) {
        json_t *line = json_line(r, i);
        assert_int_equal(json_integer_value(json_object_get(line, "ranks")), 1 << i);
        assert_true(json_real_value(json_object_get(line, "seconds")) > 0);
        json_decref(line);
    }
    r = succeeded(sh("$fovea plan r.ini -t 1 --batch-tokens 10000000 --bandwidth 400"));
    assert_non_null(strstr(r->out, "\n  4096 "));
    refused(sh("$fovea plan r.ini -t 1 --memory 0.001"), 1, "no layout fits");
    refused(sh("$fovea plan r.ini --bandwidth none"), 2, "bandwidth");
    refused(sh("$fovea plan nothing.ini"), 1, "nothing.ini");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_network_counts_as_it_should),
        cmocka_unit_test(memory_decides),
        cmocka_unit_test(the_command_plans_a_recipe),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
