/* test_objectives.c - objectives as objects: what each says of itself, records that are held out,
 * and batches and labels without a limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/objective.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/tok.h"
#include "objective/part/shared_words.h"

static fv_tok *tok;

static int set_up(void **state)
{
    static const char *const specials[] = {"<pad>", "</s>", "<unk>", "<s>", "<mask>", NULL};
    if (scratch_open(state)) return -1;
    tok = tok_trained("text w10 sentence here w29 c q", 280, specials);
    return 0;
}

static int tear_down(void **state)
{
    fv_tok_close(tok);
    return scratch_close(state);
}

/* Opens the feed of an objective with its default options; *f may be NULL. */
static int64_t open_feed(fv_feed *f, const char *name, fv_records from)
{
    static _Alignas(16) unsigned char memory[256];
    const fv_objective *o = fv_objective_find(name);
    fv_labels labels = {0};
    fv_data_report r = {0};
    fv_feed here;
    fv_err e;
    assert_non_null(o);
    assert_true(o->options_size <= sizeof memory);
    if (o->keys) fv_fields_default(memory, o->keys);
    fv_feed_opt t = tok_feed(tok, memory, &labels);
    check(o->open(f ? f : &here, &t, &from, &r, &e), &e);
    if (!f) fv_feed_close(&here);
    fv_labels_free(&labels);
    return r.kept;
}

static int64_t records_kept(const char *name, fv_records from)
{
    return open_feed(NULL, name, from);
}

/* ---- held-out records ---- */

/* Two parts of a file have no record in common and together have all of them, in every
 * objective. */
static void parts_have_no_record_in_common(void **state)
{
    (void)state;
    static const struct {
        const char *name, *file, *format;
    } cases[] = {
        {"classify", "p.label", "L text w%d\n"},
        {"tag", "p.conll", "w%d L\n\n"},
        {"masked_next", "p.txt", "sentence w%d here\n"},
        {"seq2seq", "p.tsv", "w%d\tw%d\n"},
        {"causal", "p2.tsv", "w%d\n"},
        {"answer", "p.json", NULL},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char text[4096] = "", line[256];
        for (int i = 10; i < 30; i++) {
            if (cases[c].format)
                snprintf(line, sizeof line, cases[c].format, i, i);
            else
                snprintf(line, sizeof line,
                         "%s{\"context\": \"c w%d\", \"qas\": [{\"question\": \"q\", \"id\": "
                         "\"%d\", \"answers\": [{\"text\": \"w%d\", \"answer_start\": 2}]}]}",
                         i > 10 ? ", " : "{\"data\": [{\"paragraphs\": [", i, i, i);
            strcat(text, line);
        }
        if (!cases[c].format) strcat(text, "]}]}");
        int seen[2] = {0, 0};
        for (int half = 0; half < 2; half++) {
            fv_records from = {.file = scratch_text(cases[c].file, text),
                               .part = {half ? 0.8 : 0, half ? 1 : 0.8}};
            seen[half] = (int)records_kept(cases[c].name, from);
        }
        if (seen[0] != 16 || seen[1] != 4)
            fail_msg("%s: %d and %d records", cases[c].name, seen[0], seen[1]);
    }
}

/* ---- metrics ---- */

/* An evaluation that runs out of memory fails; it does not report 0 right of 0. */
static void a_metric_without_memory_is_an_error(void **state)
{
    (void)state;
    static const char text[] =
        "{\"data\": [{\"paragraphs\": [{\"context\": \"c w10 here\", \"qas\": [{\"question\": "
        "\"q\", \"answers\": [{\"text\": \"w10\", \"answer_start\": 2}]}]}]}]}";
    fv_mem_counter mem;
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv_feed f;
    fv_batch b = {0};
    fv_device *d;
    fv_ctx *c;
    fv_err e;
    const int32_t row = 0;
    double hits = 0, of = 0;
    const float zeros[64] = {0};
    assert_int_equal(open_feed(&f, "answer", (fv_records){.file = scratch_text("m.json", text)}),
                     1);
    check(f.make(f.self, &b, &row, 1, (fv_data_rng){.epoch = -1}, &e), &e);
    int64_t T = fv_batch_get(&b, "input_ids")->shape.d[1];
    assert_in_range(T, 4, 64);
    check(fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1, .env = &env}, &e), &e);
    check(fv_ctx_new(&c, d, (fv_ctx_opt){0}, &e), &e);
    fv_items out = {0};
    fv_items_put(&out, "start_logits", fv_floats(c, zeros, FV_SHAPE(1, T)));
    fv_items_put(&out, "end_logits", fv_floats(c, zeros, FV_SHAPE(1, T)));
    mem.fail_at = mem.count + 1;
    assert_int_equal(f.count_correct(f.self, c, &b, &out, &hits, &of), FV_ENOMEM);
    assert_int_equal(fv_ctx_status(c), FV_ENOMEM);
    fv_ctx_free(c);
    fv_device_close(d);
    fv_batch_free(&b);
    fv_feed_close(&f);
}

/* ---- batches and labels of any size ---- */

static void a_batch_has_any_number_of_arrays_of_any_dtype(void **state)
{
    (void)state;
    fv_batch b = {0};
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"};
    for (int again = 0; again < 2; again++) {
        fv_batch_clear(&b);
        for (int i = 0; i < 11; i++) {
            float *x = fv_batch_put(&b, names[i], FV_F32, FV_SHAPE(2));
            assert_non_null(x);
            x[0] = 0.25f + (float)i;
            x[1] = -1;
        }
    }
    fv_err e;
    fv_device *d;
    fv_ctx *c;
    check(fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1}, &e), &e);
    check(fv_ctx_new(&c, d, (fv_ctx_opt){0}, &e), &e);
    fv_items items = fv_batch_items(c, &b);
    assert_int_equal(items.n, 11);
    float x[2];
    assert_int_equal(fv_read(c, fv_items_get(&items, "k"), x, 2), FV_OK);
    assert_true(x[0] == 10.25f && x[1] == -1);
    assert_null(fv_batch_get(&b, "z"));
    assert_int_equal(fv_batch_get(&b, "c")->dtype, FV_F32);
    fv_ctx_free(c);
    fv_device_close(d);
    fv_batch_free(&b);
}

static void labels_have_no_limit(void **state)
{
    (void)state;
    fv_labels l = {0};
    fv_err e;
    char name[200];
    for (int32_t i = 0, id; i < 2000; i++) {
        int n = snprintf(name, sizeof name,
                         "a label whose name is longer than most, and number "
                         "%d, written out in full as a sentence",
                         i);
        check(fv_labels_add(&l, &id, name, (size_t)n, &e), &e);
        assert_int_equal(id, i);
        check(fv_labels_add(&l, &id, name, (size_t)n, &e), &e);
        assert_int_equal(id, i);
    }
    assert_int_equal(l.n, 2000);
    assert_int_equal(fv_labels_find(&l, l.name[1234], strlen(l.name[1234])), 1234);
    assert_int_equal(fv_labels_find(&l, "x", 1), -1);
    fv_labels_free(&l);
    assert_int_equal(l.n, 0);
}

static void objectives_say_all_about_themselves(void **state)
{
    (void)state;
    const fv_objective *o;
    int n = 0;
    for (; (o = fv_objective_at(n)); n++) {
        assert_string_equal(o->name, fv_objective_names[n]);
        assert_ptr_equal(fv_objective_find(o->name), o);
        assert_true(o->help && o->open && o->processor && o->loss_inputs);
        assert_true(o->texts || strcmp(o->processor, "tokenizer"));
        assert_true(!o->keys == !o->options_size);
    }
    assert_true(n >= 9 && !fv_objective_names[n] && !fv_objective_find("nothing"));
}

static bool same_kind(const fv_field *x, const fv_field *y)
{
    if (x->type != y->type || !x->choices != !y->choices) return false;
    for (int i = 0; x->choices; i++) {
        const char *a = x->choices[i], *b = y->choices[i];
        if (!a || !b) return a == b;
        if (strcmp(a, b)) return false;
    }
    return true;
}

/* A recipe's [data] is read before its objective is known: what a key may be must not depend on
 * it. */
static void a_key_means_the_same_kind_everywhere(void **state)
{
    (void)state;
    const fv_objective *a, *b;
    for (int i = 0; (a = fv_objective_at(i)); i++)
        for (int j = 0; j < i && (b = fv_objective_at(j)); j++)
            for (const fv_field *x = a->keys; x && x->name; x++)
                for (const fv_field *y = b->keys; y && y->name; y++)
                    if (!strcmp(x->name, y->name) && !same_kind(x, y))
                        fail_msg("%s: another kind in %s than in %s", x->name, a->name, b->name);
}

/* Words: 1 stands in three texts, 3 in two, 0 is the unknown one. */
static void texts_share_by_their_rarer_words(void **state)
{
    (void)state;
    int32_t rabbit[] = {7, 3, 1, 3}, hare[] = {3, 8, 1}, lorry[] = {9, 1}, unknown[] = {0};
    const int32_t rows[] = {0, 1, 2, 3};
    float share[4][4];
    fv__shared_words o = {0};
    assert_true(fv__shared_words_add(&o, rabbit, 4, 0) && fv__shared_words_add(&o, hare, 3, 0));
    assert_true(fv__shared_words_add(&o, lorry, 2, 0) && fv__shared_words_add(&o, unknown, 1, 0));
    assert_true(fv__shared_words_weigh(&o, 10));
    fv__shared_words_put(&o, share[0], rows, 4);
    assert_true(share[0][0] > share[0][1] && share[0][1] > share[0][2] && share[0][2] > 0);
    assert_true(share[0][3] == 0 && share[3][3] == 1);
    for (int i = 0; i < 4; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) sum += share[i][k];
        assert_float_equal(sum, 1, 1e-6);
    }
    fv__shared_words_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objectives_say_all_about_themselves),
        cmocka_unit_test(a_key_means_the_same_kind_everywhere),
        cmocka_unit_test(parts_have_no_record_in_common),
        cmocka_unit_test(a_metric_without_memory_is_an_error),
        cmocka_unit_test(a_batch_has_any_number_of_arrays_of_any_dtype),
        cmocka_unit_test(labels_have_no_limit),
        cmocka_unit_test(texts_share_by_their_rarer_words),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
