/* test_translator.c - fv_translate: order, stopping, batches by tokens, and every allocation
 * failing in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"

#define MODEL FOVEA_TESTS "/golden/translate"

static const char *const texts[] = {"the cat sat on the mat",  "",           "the dog sat", "house",
                                    "a dog runs to the house", "the dog sat"};
enum { N = sizeof texts / sizeof *texts };

typedef struct seen {
    int64_t n, stop_after;
    char text[N][128];
    double score[N];
} seen;

static bool take(void *user, const fv_translation *t)
{
    seen *s = user;
    assert_int_equal(t->line, s->n + 11);
    assert_int_equal(t->n_source == 0, texts[s->n][0] == 0);
    snprintf(s->text[s->n], sizeof s->text[0], "%s", t->best->text);
    s->score[s->n++] = t->best->score;
    return s->n != s->stop_after;
}

static fv_status translate(const fv_env *env, fv_translate_opt opt, seen *s, fv_err *e)
{
    size_t len[N];
    fv_device *d = NULL;
    fv_translator *t = NULL;
    for (int i = 0; i < N; i++) len[i] = strlen(texts[i]);
    fv_status st = fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1, .env = env}, e);
    if (!st) st = fv_translator_open(&t, d, MODEL, opt, e);
    if (!st)
        st = fv_translate(t, (fv_lines){.text = texts, .len = len, .n = N, .first = 11}, take, s,
                          e);
    fv_translator_close(t);
    fv_device_close(d);
    return st;
}

static void lines_come_in_order_whatever_the_batches(void **state)
{
    (void)state;
    static const fv_translate_opt ways[] = {{0},           {.batch = 1},   {.batch = 2},
                                            {.tokens = 1}, {.tokens = 12}, {.attention = true}};
    seen first = {0};
    fv_err e;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        seen s = {0};
        assert_int_equal(translate(NULL, ways[i], &s, &e), FV_OK);
        assert_int_equal(s.n, N);
        if (!i) first = s;
        assert_memory_equal(s.score, first.score, sizeof s.score);
        for (int k = 0; k < N; k++) assert_string_equal(s.text[k], first.text[k]);
    }
    assert_string_equal(first.text[1], "");
    assert_string_equal(first.text[2], first.text[5]);
}

static void it_stops_when_told(void **state)
{
    (void)state;
    fv_err e;
    for (int64_t after = 1; after <= N; after++) {
        seen s = {.stop_after = after};
        assert_int_equal(translate(NULL, (fv_translate_opt){.batch = 2}, &s, &e), FV_OK);
        assert_int_equal(s.n, after);
    }
}

static void running_out_of_memory_is_reported(void **state)
{
    (void)state;
    fv_mem_counter mem;
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv_translate_opt opt = {.batch = 4, .attention = true};
    seen s = {0};
    fv_err e;
    assert_int_equal(translate(&env, opt, &s, &e), FV_OK);
    assert_int_equal(mem.live, 0);
    size_t n = mem.count, step = n / 400 + 1, failed = 0;
    for (size_t fail = 1; fail <= n; fail += step) {
        s = (seen){0};
        mem.count = 0;
        mem.fail_at = fail;
        fv_status st = translate(&env, opt, &s, &e);
        if (st && st != FV_ENOMEM) print_error("allocation %zu of %zu: %s\n", fail, n, e.text);
        /* a chunk that is larger than needed is asked for again, smaller */
        assert_true(st == FV_ENOMEM || st == FV_OK);
        assert_int_equal(mem.live, 0);
        failed += st == FV_ENOMEM;
    }
    assert_true(failed > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_come_in_order_whatever_the_batches),
        cmocka_unit_test(it_stops_when_told),
        cmocka_unit_test(running_out_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
