/* test_metric.c - BLEU and chrF against sacreBLEU 2.6.0 (the expected numbers are what it printed). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fovea/metric.h"

static const char *const texts[] = {
    "The cat sat on the mat.",
    "Prices rose 3.5% (to $1,234.50) in 2019-20, didn't they?",
    "J’aime manger des pommes&amp;poires.",
    "",
    "Ein Hund läuft; er bellt..",
    "A B C D e",
};
static const char *const references[] = {
    "The cat is sitting on the mat.",
    "Prices rose by 3.5% (to $1,234.50) in 2019-2020, did n't they?",
    "J'aime manger des pommes & des poires.",
    "empty",
    "Ein Hund rennt, er bellt.",
    "a b c d e",
};
enum { N = sizeof texts / sizeof *texts };

static void near(double got, double want) { assert_true(fabs(got - want) < 1e-5); }

static void bleu_equals_sacrebleu(void **state)
{
    (void)state;
    static const struct {
        fv_bleu_opt opt;
        double score;
        int64_t length, reference;
        const char *signature;
    } cases[] = {
        {{FV_BLEU_13A, false}, 43.221592, 44, 48, "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"},
        {{FV_BLEU_NONE, false}, 17.781019, 29, 36, "nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0"},
        {{FV_BLEU_13A, true}, 51.356104, 44, 48, "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"},
        {{FV_BLEU_NONE, true}, 32.077995, 29, 36, "nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.6.0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_bleu b;
        assert_int_equal(fv_bleu_score(&b, NULL, texts, references, N, cases[i].opt, NULL), FV_OK);
        near(b.score, cases[i].score);
        assert_int_equal(b.length, cases[i].length);
        assert_int_equal(b.reference_length, cases[i].reference);
        assert_string_equal(b.signature, cases[i].signature);
    }
}

static void the_corners_of_bleu(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reference;
        double score;
    } cases[] = {
        {"The cat sat on the mat.", "dog ran", 0},
        {"the the the the", "the cat", 15.973578},
        {"the", "the", 0},
        {"", "", 0},
        {"", "x", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_bleu b;
        assert_int_equal(fv_bleu_score(&b, NULL, &cases[i].text, &cases[i].reference, 1, (fv_bleu_opt){0}, NULL), FV_OK);
        near(b.score, cases[i].score);
    }
}

static void chrf_equals_sacrebleu(void **state)
{
    (void)state;
    fv_chrf c;
    assert_int_equal(fv_chrf_score(&c, NULL, texts, references, N, NULL), FV_OK);
    near(c.score, 68.985192);
    const char *nothing = "", *word = "x";
    assert_int_equal(fv_chrf_score(&c, NULL, &nothing, &word, 1, NULL), FV_OK);
    near(c.score, 0);
}

static void running_out_of_memory_is_reported(void **state)
{
    (void)state;
    fv_mem_counter mem;
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv_bleu b;
    fv_chrf c;
    fv_err e;
    assert_int_equal(fv_bleu_score(&b, &env, texts, references, N, (fv_bleu_opt){0}, &e), FV_OK);
    size_t n = mem.count;
    for (size_t fail = 1; fail <= n; fail++) {
        mem.count = 0;
        mem.fail_at = fail;
        assert_int_equal(fv_bleu_score(&b, &env, texts, references, N, (fv_bleu_opt){0}, &e), FV_ENOMEM);
        assert_int_equal(mem.live, 0);
    }
    mem.count = 0;
    mem.fail_at = 1;
    assert_int_equal(fv_chrf_score(&c, &env, texts, references, N, &e), FV_ENOMEM);
    assert_int_equal(mem.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bleu_equals_sacrebleu),
        cmocka_unit_test(the_corners_of_bleu),
        cmocka_unit_test(chrf_equals_sacrebleu),
        cmocka_unit_test(running_out_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
