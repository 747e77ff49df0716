/* test_vectors.c - word vectors: files of word2vec and fastText, what is near, the same bits for
 * any number of threads, and pictures. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/vectors.h"
#include "helper/files.h"

static void check(fv_status st, const fv_err *e)
{
    if (st) fail_msg("%s", e->text);
}

/* Two topics whose words never stand together: a text from which anything can learn them. */
static const char *topics(void)
{
    static char text[1 << 18];
    static const char *const words[2][6] = {{"sun", "moon", "star", "sky", "cloud", "rain"},
                                            {"bread", "milk", "cheese", "butter", "egg", "salt"}};
    uint32_t seed = 7;
    size_t n = 0;
    for (int line = 0; line < 1500; line++) {
        int topic = line % 2;
        for (int i = 0; i < 8; i++) {
            seed = seed * 1664525 + 1013904223;
            n += (size_t)snprintf(text + n, sizeof text - n, "%s ", words[topic][(seed >> 20) % 6]);
        }
        n += (size_t)snprintf(text + n, sizeof text - n, "\n");
    }
    return scratch_text("topics.txt", text);
}

static fv_vectors *train(fv_vectors_opt o)
{
    fv_vectors *v;
    fv_err e;
    const char *files[] = {topics()};
    o.width = 20;
    o.seed = 3;
    check(fv_vectors_train(&v, NULL, files, 1, o, NULL, &e), &e);
    return v;
}

/* Of each word the five nearest are the five others of its topic. */
static void topics_are_apart(const fv_vectors *v)
{
    static const char *const food = "bread milk cheese butter egg salt";
    assert_int_equal(fv_vectors_count(v), 12);
    for (int64_t w = 0; w < 12; w++) {
        fv_near near[5];
        bool is_food = strstr(food, fv_vectors_word(v, w));
        assert_int_equal(fv_vectors_nearest(v, fv_vectors_row(v, w), 5, &w, 1, near), 5);
        for (int i = 0; i < 5; i++) {
            assert_true(near[i].word != w);
            assert_int_equal(!strstr(food, fv_vectors_word(v, near[i].word)), !is_food);
        }
    }
}

static void words_of_a_topic_are_near(void **state)
{
    (void)state;
    for (int model = 0; model < 3; model++)
        for (int sub = 0; sub < 2; sub++) {
            if (sub && model == FV_GLOVE) continue;
            fv_vectors *v = train((fv_vectors_opt){.model = (fv_vectors_model)model,
                                                   .epochs = 20,
                                                   .sample = 1,
                                                   .ngram_least = sub ? 3 : 0,
                                                   .buckets = 500});
            topics_are_apart(v);
            fv_vectors_free(v);
        }
}

static void bits_do_not_depend_on_threads(void **state)
{
    (void)state;
    for (int model = 0; model < 3; model++) {
        fv_vectors *one = train((fv_vectors_opt){.model = (fv_vectors_model)model, .threads = 1});
        for (int threads = 2; threads < 5; threads++) {
            fv_vectors *v = train(
                (fv_vectors_opt){.model = (fv_vectors_model)model, .threads = threads});
            for (int64_t w = 0; w < 12; w++)
                assert_memory_equal(fv_vectors_row(v, w), fv_vectors_row(one, w),
                                    20 * sizeof(float));
            fv_vectors_free(v);
        }
        fv_vectors_free(one);
    }
}

static void files_give_every_bit_back(void **state)
{
    (void)state;
    static const char *const names[] = {"v.vec", "v.bin"};
    fv_vectors *v = train((fv_vectors_opt){.epochs = 1}), *w;
    fv_err e;
    for (int i = 0; i < 2; i++) {
        check(fv_vectors_save(v, scratch("%s", names[i]), FV_VECTORS_AUTO, &e), &e);
        check(fv_vectors_open(&w, NULL, scratch("%s", names[i]), FV_VECTORS_AUTO, &e), &e);
        assert_int_equal(fv_vectors_count(w), 12);
        assert_int_equal(fv_vectors_width(w), 20);
        for (int64_t k = 0; k < 12; k++) {
            assert_string_equal(fv_vectors_word(w, k), fv_vectors_word(v, k));
            assert_memory_equal(fv_vectors_row(w, k), fv_vectors_row(v, k), 20 * sizeof(float));
        }
        fv_vectors_free(w);
    }
    fv_vectors_free(v);
}

/* GloVe's files have no first line; king - man + woman. */
static void analogies_are_sums_of_unit_vectors(void **state)
{
    (void)state;
    fv_vectors *v;
    fv_err e;
    float query[2];
    fv_near near[1];
    check(fv_vectors_open(&v, NULL,
                          scratch_text("g.txt", "man 1 0\nking 2 2\nwoman -0.2 1\nqueen -0.5 2.2\n"
                                                "tree 1 -3\n"),
                          FV_VECTORS_AUTO, &e),
          &e);
    int64_t left[] = {0, 1, 2};
    fv_vectors_analogy(v, 0, 1, 2, query);
    assert_true(fabs((double)query[0] - (-1 + sqrt(0.5) - 0.2 / sqrt(1.04))) < 1e-6);
    assert_int_equal(fv_vectors_nearest(v, query, 1, left, 3, near), 1);
    assert_string_equal(fv_vectors_word(v, near[0].word), "queen");
    fv_vectors_free(v);
}

static void refused(const char *name, const char *text, const char *says)
{
    fv_vectors *v;
    fv_err e;
    assert_int_not_equal(fv_vectors_open(&v, NULL, scratch_text(name, text), FV_VECTORS_AUTO, &e),
                         FV_OK);
    assert_null(v);
    if (!strstr(e.text, says)) fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

static void what_are_no_vectors_is_refused(void **state)
{
    (void)state;
    fv_vectors *v;
    fv_err e;
    refused("a.vec", "", "expected the numbers");
    refused("a.vec", "2 2\nx 1 2\n", "says 2 words, and there are 1");
    refused("a.vec", "1 2\nx 1 y\n", "number 2 of 2 is \"y\"");
    refused("a.vec", "1 2\nx 1 2 3\n", "more than 2 numbers");
    refused("a.vec", "2 1\nx 1\nx 2\n", "stands there twice");
    refused("a.bin", "2 2\nx 1234", "ends inside word 1");
    refused("a.bin", "no", "expected the numbers");
    const char *none[] = {scratch_text("few.txt", "one two three\n")};
    assert_int_not_equal(fv_vectors_train(&v, NULL, none, 1, (fv_vectors_opt){0}, NULL, &e), FV_OK);
    assert_non_null(strstr(e.text, "fewer than two words"));
    assert_int_not_equal(fv_vectors_train(&v, NULL, none, 1,
                                          (fv_vectors_opt){.model = FV_GLOVE, .ngram_least = 3},
                                          NULL, &e),
                         FV_OK);
    assert_non_null(strstr(e.text, "GloVe has no subwords"));
}

static void topics_are_apart_in_the_plane_too(void **state)
{
    (void)state;
    static const char *const food = "bread milk cheese butter egg salt";
    fv_vectors *v = train((fv_vectors_opt){.epochs = 20, .sample = 1});
    fv_err e;
    int64_t words[12];
    double xy[24];
    for (int i = 0; i < 12; i++) words[i] = i;
    for (int how = 0; how < 2; how++) {
        check(fv_vectors_project(v, words, 12, (fv_projection)how, 1, xy, &e), &e);
        double centre[2][2] = {{0}};
        for (int i = 0; i < 24; i++)
            centre[!strstr(food, fv_vectors_word(v, i / 2))][i % 2] += xy[i] / 6;
        for (int i = 0; i < 12; i++) {
            double d[2];
            for (int t = 0; t < 2; t++)
                d[t] = hypot(xy[2 * i] - centre[t][0], xy[2 * i + 1] - centre[t][1]);
            assert_int_equal(d[1] < d[0], !strstr(food, fv_vectors_word(v, i)));
        }
    }
    check(fv_vectors_plot(v, words, 12, xy, scratch("words.svg"), &e), &e);
    fv_vectors_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_a_topic_are_near),
        cmocka_unit_test(bits_do_not_depend_on_threads),
        cmocka_unit_test(files_give_every_bit_back),
        cmocka_unit_test(analogies_are_sums_of_unit_vectors),
        cmocka_unit_test(what_are_no_vectors_is_refused),
        cmocka_unit_test(topics_are_apart_in_the_plane_too),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
