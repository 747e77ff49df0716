/* test_metric.c - BLEU and chrF against sacreBLEU 2.6.0 (the expected numbers are what it printed);
 * labels, entities, answers and summaries against scikit-learn, seqeval, SQuAD's normalisation and
 * rouge-score, whose numbers tools/golden/metric.py has written down. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <cmocka.h>

#include "fovea/author/metric.h"

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
        {{FV_BLEU_13A, false},
         43.221592,
         44,
         48,
         "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"},
        {{FV_BLEU_NONE, false},
         17.781019,
         29,
         36,
         "nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:2.6.0"},
        {{FV_BLEU_13A, true},
         51.356104,
         44,
         48,
         "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"},
        {{FV_BLEU_NONE, true},
         32.077995,
         29,
         36,
         "nrefs:1|case:lc|eff:no|tok:none|smooth:exp|version:2.6.0"},
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
        assert_int_equal(fv_bleu_score(&b, NULL, &cases[i].text, &cases[i].reference, 1,
                                       (fv_bleu_opt){0}, NULL),
                         FV_OK);
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

/* Two and three references: the numbers of sacrebleu 2.6.0 and of rouge-score's score_multi. */
static void several_references(void **state)
{
    (void)state;
    static const char *const given[] = {"the cat sat on the mat", "a dog runs in the park today"};
    static const char *const wanted[] = {"the cat is on the mat" FV_NEXT_TEXT
                                         "there is a cat on the mat , sat",
                                         "a dog ran in the park" FV_NEXT_TEXT
                                         "a dog runs through the park today" FV_NEXT_TEXT
                                         "dogs run today"};
    fv_bleu b;
    fv_chrf c;
    fv_rouge x;
    assert_int_equal(fv_bleu_score(&b, NULL, given, wanted, 2, (fv_bleu_opt){0}, NULL), FV_OK);
    near(b.score, 38.980436);
    assert_int_equal(b.reference_length, 13);
    assert_memory_equal(b.signature, "nrefs:var|", 10);
    assert_int_equal(fv_bleu_score(&b, NULL, given, wanted, 1, (fv_bleu_opt){0}, NULL), FV_OK);
    assert_memory_equal(b.signature, "nrefs:2|", 8);
    assert_int_equal(fv_chrf_score(&c, NULL, given, wanted, 2, NULL), FV_OK);
    near(c.score, 63.752920);
    assert_int_equal(fv_rouge_score(&x, NULL, given, wanted, 2, NULL), FV_OK);
    near(x.rouge1, 84.523810);
    near(x.rouge2, 63.333333);
    near(x.rougeL, 84.523810);
}

/* ---- error rates ---- */

static void put_step(void *user, char edit, const char *said, const char *written)
{
    char *to = user;
    snprintf(to + strlen(to), 200 - strlen(to), "%c(%s,%s)", edit, said, written);
}

/* The numbers are those of a plain recursion for the distance, over all pairs. */
static void error_rates_count_edits(void **state)
{
    (void)state;
    static const char *const said[] = {"ask not what your country can do for you",
                                       "the cat sat on the mat",
                                       ("gr\xc3\xbc\xc3\x9f"
                                        "e an alle"),
                                       "one two three four", "seven"};
    static const char *const written[] = {"ask not what you country can do do for you",
                                          "cat sat in the big mat",
                                          ("gru\xc3\x9f"
                                           "e  an alle"),
                                          "four three two one", ""};
    fv_edits words = {0}, chars = {0}, plain = {0};
    fv_err e;
    for (int i = 0; i < 5; i++) {
        fv_edit_opt by_char = {.chars = true};
        assert_int_equal(fv_edits_add(&words, NULL, written[i], said[i], (fv_edit_opt){0}, NULL,
                                      NULL, &e),
                         FV_OK);
        assert_int_equal(fv_edits_add(&chars, NULL, written[i], said[i], by_char, NULL, NULL, &e),
                         FV_OK);
    }
    near(fv_error_rate(words), 47.826087);
    near(fv_error_rate(chars), 32.653061);
    assert_int_equal(words.right + words.substituted + words.deleted, 23);
    assert_int_equal(chars.right + chars.substituted + chars.deleted, 98);
    char steps[200] = "";
    fv_edit_opt how = {.plain = true};
    assert_int_equal(fv_edits_add(&plain, NULL, "don\xe2\x80\x99t  go there now",
                                  "Don't go, \"now\"!", how, put_step, steps, &e),
                     FV_OK);
    assert_string_equal(steps, "=(don't,don't)=(go,go)I(,there)=(now,now)");
    near(fv_error_rate(plain), 100.0 / 3);
    near(fv_error_rate((fv_edits){0}), 0);
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
        assert_int_equal(fv_bleu_score(&b, &env, texts, references, N, (fv_bleu_opt){0}, &e),
                         FV_ENOMEM);
        assert_int_equal(mem.live, 0);
    }
    mem.count = 0;
    mem.fail_at = 1;
    assert_int_equal(fv_chrf_score(&c, &env, texts, references, N, &e), FV_ENOMEM);
    assert_int_equal(mem.live, 0);
}

/* ---- labels and entities ---- */

static json_t *golden; /* tests/golden/metric.json */

static int read_golden(void **state)
{
    (void)state;
    golden = json_load_file(FOVEA_TESTS "/golden/metric.json", 0, NULL);
    return golden ? 0 : -1;
}

static int drop_golden(void **state)
{
    (void)state;
    json_decref(golden);
    return 0;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}
static double number_at(const json_t *o, const char *key, size_t i)
{
    return json_number_value(json_array_get(json_object_get(o, key), i));
}

static void labels_equal_scikit_learn(void **state)
{
    (void)state;
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(golden, "classes"), i, one)
    {
        int64_t table[64];
        int n = (int)number(one, "labels");
        for (int k = 0; k < n * n; k++)
            table[k] = json_integer_value(
                json_array_get(json_array_get(json_object_get(one, "table"), (size_t)(k / n)),
                               (size_t)(k % n)));
        near(fv_accuracy(table, n), number(one, "accuracy"));
        near(fv_macro_f1(table, n), number(one, "macro_f1"));
        for (int k = 0; k < n; k++) {
            fv_match m = fv_label_match(table, n, k);
            near(fv_precision(m), number_at(one, "precision", (size_t)k));
            near(fv_recall(m), number_at(one, "recall", (size_t)k));
            near(fv_f1(m), number_at(one, "f1", (size_t)k));
        }
    }
    assert_int_equal(i, 3);
    int64_t nothing[4] = {0};
    near(fv_accuracy(nothing, 2) + fv_macro_f1(nothing, 2), 0);
}

static void match_equals(fv_match m, const json_t *want)
{
    near(fv_precision(m), json_number_value(json_array_get(want, 0)));
    near(fv_recall(m), json_number_value(json_array_get(want, 1)));
    near(fv_f1(m), json_number_value(json_array_get(want, 2)));
    assert_int_equal(m.gold, json_integer_value(json_array_get(want, 3)));
}

static void entities_equal_seqeval(void **state)
{
    (void)state;
    size_t i, k;
    json_t *one, *sentence;
    json_array_foreach(json_object_get(golden, "entities"), i, one)
    {
        fv_entities x = {0};
        json_array_foreach(json_object_get(one, "gold"), k, sentence)
        {
            const json_t *other = json_array_get(json_object_get(one, "given"), k);
            const char *gold[64], *given[64];
            size_t n = json_array_size(sentence);
            for (size_t w = 0; w < n; w++) {
                gold[w] = json_string_value(json_array_get(sentence, w));
                given[w] = json_string_value(json_array_get(other, w));
            }
            fv_entities_add(&x, gold, given, (int64_t)n);
        }
        match_equals(x.all, json_object_get(one, "all"));
        assert_int_equal(x.n, json_object_size(json_object_get(one, "types")));
        for (int t = 0; t < x.n; t++) {
            match_equals(x.type[t].match,
                         json_object_get(json_object_get(one, "types"), x.type[t].name));
            if (t) assert_true(strcmp(x.type[t - 1].name, x.type[t].name) < 0);
        }
    }
    assert_int_equal(i, 3);
}

/* What conlleval prints for it: 5 tokens, 4 of them with the right tag; 2 phrases, 3 found, 1
 * correct. */
static void words_are_counted_beside_entities(void **state)
{
    (void)state;
    const char *const gold[] = {"B-PER", "I-PER", "O", "B-LOC", "O"}, *const given[] = {"B-PER",
                                                                                        "B-PER",
                                                                                        "O",
                                                                                        "B-LOC",
                                                                                        "O"};
    fv_entities x = {0};
    fv_entities_add(&x, gold, given, 5);
    fv_entities_add(&x, gold, given, 0);
    assert_int_equal(x.words, 5);
    assert_int_equal(x.right_words, 4);
    assert_int_equal(x.all.gold, 2);
    assert_int_equal(x.all.given, 3);
    assert_int_equal(x.all.right, 1);
    /* more types than there is room for: all are in the sum */
    for (int i = 0; i < 2 * FV_MAX_ENTITY_TYPES; i++) {
        char name[16];
        const char *tag = name;
        snprintf(name, sizeof name, "B-%d", i);
        fv_entities_add(&x, &tag, &tag, 1);
    }
    assert_int_equal(x.n, FV_MAX_ENTITY_TYPES);
    assert_int_equal(x.all.right, 1 + 2 * FV_MAX_ENTITY_TYPES);
}

/* ---- answers and summaries ---- */

static void answers_equal_squad(void **state)
{
    (void)state;
    size_t i, k;
    json_t *one, *text;
    json_array_foreach(json_object_get(golden, "answers"), i, one)
    {
        const char *answers[8];
        double exact, f1;
        json_array_foreach(json_object_get(one, "gold"), k, text)
            answers[k] = json_string_value(text);
        const char *given = json_string_value(json_object_get(one, "given"));
        assert_int_equal(fv_answer_score(&exact, &f1, NULL, given, answers, (int64_t)k, NULL),
                         FV_OK);
        if (fabs(exact - number(one, "exact")) > 1e-5 || fabs(f1 - number(one, "f1")) > 1e-5)
            fail_msg("\"%s\": exact %f, F1 %f", given, exact, f1);
    }
    assert_int_equal(i, 14);
    double exact, f1; /* no answer is right */
    assert_int_equal(fv_answer_score(&exact, &f1, NULL, "", NULL, 0, NULL), FV_OK);
    near(exact + f1, 200);
    assert_int_equal(fv_answer_score(&exact, &f1, NULL, "x", NULL, 0, NULL), FV_OK);
    near(exact + f1, 0);
}

static void summaries_equal_rouge_score(void **state)
{
    (void)state;
    static const char *const keys[] = {"rouge1", "rouge2", "rougeL"};
    const json_t *r = json_object_get(golden, "rouge"), *given = json_object_get(r, "given");
    const char *text[16], *reference[16];
    size_t n = json_array_size(given);
    double mean[3] = {0};
    fv_rouge x;
    assert_int_equal(n, 10);
    for (size_t i = 0; i < n; i++) {
        text[i] = json_string_value(json_array_get(given, i));
        reference[i] = json_string_value(json_array_get(json_object_get(r, "reference"), i));
        assert_int_equal(fv_rouge_score(&x, NULL, &text[i], &reference[i], 1, NULL), FV_OK);
        const double got[] = {x.rouge1, x.rouge2, x.rougeL};
        for (int k = 0; k < 3; k++) {
            double want = json_number_value(
                json_array_get(json_array_get(json_object_get(r, keys[k]), i), 2));
            if (fabs(got[k] - want) > 1e-5)
                fail_msg("%s of \"%s\": %f, not %f", keys[k], text[i], got[k], want);
            mean[k] += want / (double)n;
        }
    }
    assert_int_equal(fv_rouge_score(&x, NULL, text, reference, (int64_t)n, NULL), FV_OK);
    near(x.rouge1, mean[0]);
    near(x.rouge2, mean[1]);
    near(x.rougeL, mean[2]);
}

static void memory_may_run_out_anywhere(void **state)
{
    (void)state;
    fv_mem_counter mem;
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv_rouge x;
    fv_err e;
    double exact, f1;
    for (size_t fail = 1;; fail++) {
        mem.count = 0;
        mem.fail_at = fail;
        fv_status a = fv_rouge_score(&x, &env, texts, references, N, &e);
        bool through = mem.count < fail;
        assert_int_equal(a, through ? FV_OK : FV_ENOMEM);
        mem.count = 0;
        fv_status b = fv_answer_score(&exact, &f1, &env, texts[0], references, N, &e);
        assert_int_equal(b, mem.count < fail ? FV_OK : FV_ENOMEM);
        assert_int_equal(mem.live, 0);
        if (through && !b) break;
    }
}

/* As scipy.linalg.sqrtm has it; of a set and itself nothing, of one moved the move's square. */
static void frechet_distances_are_scipys(void **state)
{
    (void)state;
    enum { FIRST = 12, OTHER = 9, WIDTH = 3 };
    float x[FIRST * WIDTH], y[OTHER * WIDTH], shifted[FIRST * WIDTH];
    double d;
    fv_err e;
    for (int i = 0; i < FIRST * WIDTH; i++) {
        x[i] = (float)((i / WIDTH * 7 + i % WIDTH * 5) % 11) / 5 - 1;
        shifted[i] = x[i] + (i % WIDTH == 1 ? 2 : 0);
    }
    for (int i = 0; i < OTHER * WIDTH; i++)
        y[i] = (float)((i / WIDTH * 3 + i % WIDTH * 4) % 7) / 3 - 0.5F + 0.25F * (float)(i % WIDTH);
    assert_int_equal(fv_frechet_score(&d, NULL, x, FIRST, y, OTHER, WIDTH, &e), FV_OK);
    assert_true(fabs(d - 1.468013095731294) < 1e-5);
    assert_int_equal(fv_frechet_score(&d, NULL, x, FIRST, x, FIRST, WIDTH, &e), FV_OK);
    assert_true(fabs(d) < 1e-9);
    assert_int_equal(fv_frechet_score(&d, NULL, x, FIRST, shifted, FIRST, WIDTH, &e), FV_OK);
    assert_true(fabs(d - 4) < 1e-6);
    assert_int_equal(fv_frechet_score(&d, NULL, x, 1, y, OTHER, WIDTH, &e), FV_EARG);
}

/* roc_auc_score, log_loss and LogisticRegression without a penalty of scikit-learn 1.9.1. */
static void probabilities_equal_scikit_learn(void **state)
{
    (void)state;
    const float z[] = {-2, -1.5F, -1, -0.5F, -0.5F, 0, 0.25F, 0.5F, 1, 2};
    const uint8_t yes[] = {0, 0, 0, 1, 0, 0, 1, 0, 1, 1}, none[10] = {0};
    fv_binary b;
    fv_platt p;
    fv_err e;
    assert_int_equal(fv_binary_judge(&b, NULL, z, yes, 10, (fv_platt){1, 0}, &e), FV_OK);
    assert_int_equal(b.yes, 4);
    near(b.auc, 0.8541666666666666);
    near(b.log_loss, 0.4773110228084252);
    near(b.mean, 0.46221426934903);
    near(b.error, 0.35189970409066385); /* ten bins of one each: the mean of |P - yes| */
    assert_int_equal(fv_platt_fit(&p, z, yes, 10, &e), FV_OK);
    near(p.scale, 1.7974345);
    near(p.shift, -0.32103939);
    assert_int_equal(fv_binary_judge(&b, NULL, z, yes, 10, p, &e), FV_OK);
    near(b.auc, 0.8541666666666666);
    near(b.log_loss, 0.43608263143084436);
    near(b.mean, 0.4); /* what a fitted shift makes equal */
    assert_int_equal(fv_platt_fit(&p, z, none, 10, &e), FV_EARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probabilities_equal_scikit_learn),
        cmocka_unit_test(frechet_distances_are_scipys),
        cmocka_unit_test(bleu_equals_sacrebleu),
        cmocka_unit_test(the_corners_of_bleu),
        cmocka_unit_test(chrf_equals_sacrebleu),
        cmocka_unit_test(several_references),
        cmocka_unit_test(error_rates_count_edits),
        cmocka_unit_test(running_out_of_memory_is_reported),
        cmocka_unit_test(labels_equal_scikit_learn),
        cmocka_unit_test(entities_equal_seqeval),
        cmocka_unit_test(words_are_counted_beside_entities),
        cmocka_unit_test(answers_equal_squad),
        cmocka_unit_test(summaries_equal_rouge_score),
        cmocka_unit_test(memory_may_run_out_anywhere),
    };
    return cmocka_run_group_tests(tests, read_golden, drop_golden);
}
