/* test_grammar.c - the demonstration corpus: sound French, one translation each, and a split
 * without leaks. */
#include <search.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/grammar.h"

enum { N = 60000 };
static fv_grammar_pair all[N];

static int make_all(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) fv_grammar_sentence(&all[i], 1, (uint64_t)i);
    return 0;
}

static int by_text(const void *x, const void *y)
{
    const fv_grammar_pair *a = x, *b = y;
    int d = strcmp(a->en, b->en);
    return d ? d : strcmp(a->fr, b->fr);
}

/* The translation of an English sentence, or NULL if the corpus has none. */
static const char *french(const char *en)
{
    for (int i = 0; i < N; i++)
        if (!strcmp(all[i].en, en)) return all[i].fr;
    return NULL;
}

static void every_sentence_has_one_translation(void **state)
{
    (void)state;
    static fv_grammar_pair sorted[N];
    int distinct = 1, held = 0;
    memcpy(sorted, all, sizeof all);
    qsort(sorted, N, sizeof *sorted, by_text);
    for (int i = 1; i < N; i++) {
        bool same = !strcmp(sorted[i].en, sorted[i - 1].en);
        if (same) {
            assert_string_equal(sorted[i].fr, sorted[i - 1].fr);
            assert_int_equal(sorted[i].held_out, sorted[i - 1].held_out);
        }
        distinct += !same;
        held += !same && sorted[i].held_out;
    }
    assert_true(distinct > 40000);
    assert_true(held > distinct / 12 && held < distinct / 6);
}

/* Neighbours that French never leaves side by side. */
static void spelling_follows_the_neighbours(void **state)
{
    (void)state;
    static const char *const never[] = {" de le ", " de les ", " je a",      " je e",       " ne a",
                                        " ne é",   " le o",    " la é",      " que i",      " de e",
                                        " ce h",   " ma é",    "vieux ami ", "beau oiseau", "  "};
    for (int i = 0; i < N; i++) {
        for (size_t k = 0; k < sizeof never / sizeof *never; k++)
            assert_null(strstr(all[i].fr, never[k]));
        size_t n = strlen(all[i].fr);
        assert_true(n > 5 && n < sizeof all[i].fr - 1 && strlen(all[i].en) < sizeof all[i].en - 1);
        assert_true(strchr(".?", all[i].fr[n - 1]) != NULL);
    }
}

static void known_sentences_come_out_right(void **state)
{
    (void)state;
    static const char *const known[][2] = {
        {"I like cakes.", "J'aime les gâteaux."},
        {"The teachers do not drink cold coffee.", "Les professeurs ne boivent pas de café froid."},
        {"He prefers to carry an old ladder.", "Il préfère porter une vieille échelle."},
        {"Do they drink hot water?", "Est-ce qu'ils boivent de l'eau chaude ?"},
        {"This interesting brother drinks good coffee.", "Ce frère intéressant boit du bon café."},
        {"I do not write these new stories.", "Je n'écris pas ces nouvelles histoires."},
        {"Where is the old key?", "Où est la vieille clé ?"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *fr = french(known[i][0]);
        assert_non_null(fr);
        assert_string_equal(fr, known[i][1]);
    }
}

/* Every word of a test sentence is known from training. */
static void held_out_sentences_use_known_words(void **state)
{
    (void)state;
    static char text[2 * N][200];
    assert_true(hcreate(20000) != 0);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < N; i++) {
            if (all[i].held_out != (pass == 1)) continue;
            for (int side = 0; side < 2; side++) {
                char *t = text[2 * i + side], *save = NULL;
                const char *from = side ? all[i].fr : all[i].en;
                memcpy(t, from, strlen(from) + 1);
                for (char *w = strtok_r(t, " .?'", &save); w; w = strtok_r(NULL, " .?'", &save)) {
                    ENTRY e = {.key = w, .data = w};
                    assert_non_null(hsearch(e, pass ? FIND : ENTER));
                }
            }
        }
    hdestroy();
}

/* A corpus has each sentence once and both kinds apart; what one kind holds does not depend on how
 * many of the other are wanted. */
static void a_corpus_is_distinct(void **state)
{
    (void)state;
    enum { TRAIN = 2000, TEST = 300 };
    fv_grammar_corpus k, fewer;
    fv_err e;
    assert_int_equal(fv_grammar_corpus_new(&k, NULL, 3, TRAIN, TEST, &e), FV_OK);
    assert_int_equal(k.n_train, TRAIN);
    assert_int_equal(k.n_test, TEST);
    assert_int_equal(fv_grammar_corpus_new(&fewer, NULL, 3, TRAIN, 10, &e), FV_OK);
    for (int i = 0; i < TRAIN + TEST; i++) assert_int_equal(k.pair[i].held_out, i >= TRAIN);
    for (int i = 0; i < TRAIN; i++) assert_string_equal(k.fr[i], fewer.fr[i]);
    qsort(k.pair, TRAIN + TEST, sizeof *k.pair, by_text);
    for (int i = 1; i < TRAIN + TEST; i++) assert_string_not_equal(k.pair[i - 1].en, k.pair[i].en);
    fv_grammar_corpus_free(&k);
    fv_grammar_corpus_free(&fewer);
    for (size_t at = 1; at <= 4; at++) {
        fv_mem_counter m;
        fv_mem_counter_init(&m);
        m.fail_at = at;
        fv_env env = {.mem = &m.mem};
        assert_int_equal(fv_grammar_corpus_new(&k, &env, 3, 10, 10, &e), FV_ENOMEM);
        assert_int_equal(m.live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sentence_has_one_translation),
        cmocka_unit_test(spelling_follows_the_neighbours),
        cmocka_unit_test(known_sentences_come_out_right),
        cmocka_unit_test(held_out_sentences_use_known_words),
        cmocka_unit_test(a_corpus_is_distinct),
    };
    return cmocka_run_group_tests(tests, make_all, NULL);
}
