/* test_events.c - events by user and time: files, batches of the next item, recommendations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/author.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"

/* ---- files ---- */

static void items_are(const fv_events *v, const fv_labels *l, const char *user, const char *names)
{
    char text[200] = "";
    int64_t n, u = fv_events_find(v, user);
    assert_true(u >= 0);
    const int32_t *x = fv_events_items(v, u, &n);
    for (int64_t i = 0; i < n; i++) {
        strcat(text, i ? " " : "");
        strcat(text, l->name[x[i]]);
    }
    assert_string_equal(text, names);
}

static fv_events *open_text(const char *text, fv_events_opt o)
{
    fv_events *v;
    fv_err e;
    o.file = scratch_text("e.txt", text);
    check(fv_events_open(&v, NULL, &o, &e), &e);
    return v;
}

static void events_are_sorted(void **state)
{
    (void)state;
    fv_labels l = {0};
    fv_events *v = open_text("user,item,time\nann,x,3\nbob,y,1\nann,z,2\nann,y,3\n",
                             (fv_events_opt){.header = true, .items = &l});
    assert_int_equal(fv_events_users(v), 2);
    items_are(v, &l, "ann", "z x y");
    items_are(v, &l, "bob", "y");
    assert_int_equal(fv_events_find(v, "cid"), -1);
    fv_events_close(v);
    fv_labels_free(&l);

    l = (fv_labels){0};
    v = open_text("1 a\n2 b\n1 c\n1 b\n", (fv_events_opt){.items = &l});
    items_are(v, &l, "1", "a c b");
    fv_events_close(v);
    v = open_text("1 a b c\n2 c\n", (fv_events_opt){.layout = FV_EVENTS_SEQUENCES, .items = &l});
    items_are(v, &l, "1", "a b c");
    fv_events_close(v);
    fv_labels_free(&l);
}

static void refused(const char *text, fv_labels *l, const char *says)
{
    fv_events *v;
    fv_err e;
    fv_events_opt o = {.file = scratch_text("e.txt", text), .items = l};
    assert_int_not_equal(fv_events_open(&v, NULL, &o, &e), FV_OK);
    assert_null(v);
    if (!strstr(e.text, says)) fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

static void what_are_no_events_is_refused(void **state)
{
    (void)state;
    fv_labels l = {0};
    refused("a\n", &l, ":1: a user without an item");
    refused("a x now\n", &l, ":1: \"now\" is no time");
    refused("a x 1 2\n", &l, ":1: more than user, item and time");
    refused("\n", &l, "there is no event");
    l.closed = true;
    refused("a new\n", &l, ":1:");
    fv_labels_free(&l);
}

/* ---- batches ---- */

/* A feed of next_item, and what it reads and makes. */
typedef struct fed {
    char own[256];
    fv_labels l;
    fv_feed f;
    fv_batch b;
} fed;

/* ...with one more key. */
static void open_with(fed *x, const char *loss, const char *mask, bool evaluation, const char *key,
                      const char *value)
{
    const char *const keys[] = {"layout", "sequences", "longest", "3",    "item_loss",
                                loss,     "negatives", "2",       "mask", mask,
                                key,      value,       NULL};
    const fv_objective *o = fv_objective_find("next_item");
    fv_err e;
    fv_data_report r = {0};
    fv_records from = {.file = scratch_text("seq.txt", "u a b c d e f\nv b c d\nw a b\n")};
    fv_fields_default(x->own, o->keys);
    for (int i = 0; keys[i]; i += 2)
        check(fv_fields_set(x->own, o->keys, keys[i], keys[i + 1], &e), &e);
    fv_feed_opt t = {.options = x->own, .labels = &x->l, .evaluation = evaluation};
    check(o->open(&x->f, &t, &from, &r, &e), &e);
}

static void open_feed(fed *x, const char *loss, const char *mask, bool evaluation)
{
    open_with(x, loss, mask, evaluation, NULL, NULL);
}

static void make_first(fed *x, fv_data_rng how)
{
    fv_err e;
    fv_batch_clear(&x->b);
    check(x->f.make(x->f.self, &x->b, (int32_t[]){0}, 1, how, &e), &e);
}

/* In an evaluation the item behind valid is asked for at the last position. */
static void check_evaluated(fed *x, const char *mask, const int32_t valid[3])
{
    fv_feed_close(&x->f);
    open_feed(x, "softmax", mask, true);
    assert_int_equal(x->f.count(x->f.self, 0), 2);
    make_first(x, (fv_data_rng){.epoch = -1});
    assert_memory_equal(fv_batch_get(&x->b, "input_ids")->data, valid, 3 * sizeof *valid);
    assert_int_equal(*(int32_t *)fv_batch_get(&x->b, "labels")->data, 4);
    assert_int_equal(*(int32_t *)fv_batch_get(&x->b, "last_positions")->data, 2);
    fv_batch_free(&x->b);
    fv_feed_close(&x->f);
    fv_labels_free(&x->l);
}

/* Of u "a b c d" are for training, e for validation, f for the test. */
static void the_last_items_are_left_out(void **state)
{
    (void)state;
    fed x = {0};
    const int32_t ids[] = {0, 1, 2}, labels[] = {1, 2, 3};
    open_feed(&x, "bce", "0", false);
    assert_int_equal(x.f.count(x.f.self, 0), 1); /* v and w have too few */
    make_first(&x, (fv_data_rng){.seed = 3});
    assert_memory_equal(fv_batch_get(&x.b, "input_ids")->data, ids, sizeof ids);
    assert_memory_equal(fv_batch_get(&x.b, "labels")->data, labels, sizeof labels);
    const int32_t *candidate = fv_batch_get(&x.b, "candidates")->data;
    for (int t = 0; t < 3; t++) assert_int_equal(candidate[3 * t], labels[t]);
    /* e and f are not known while training, and so are drawn as any other */
    for (int i = 0; i < 9; i++) assert_true(i % 3 == 0 || candidate[i] > 3);
    assert_true(x.b.labels == 3);
    check_evaluated(&x, "0", (int32_t[]){1, 2, 3});
}

static void close_fed(fed *x)
{
    fv_batch_free(&x->b);
    fv_feed_close(&x->f);
    fv_labels_free(&x->l);
}

/* The right item comes first, then some that the user has not had: of six items only f. */
static void ranking_may_be_among_drawn_items(void **state)
{
    (void)state;
    fed x = {0};
    const int32_t want[] = {4, 5, 5};
    open_with(&x, "softmax", "0", true, "rank_among", "2");
    make_first(&x, (fv_data_rng){.epoch = -1});
    const fv_batch_part *p = fv_batch_get(&x.b, "candidates");
    assert_true(fv_shape_same(p->shape, FV_SHAPE(1, 1, 3)));
    assert_memory_equal(p->data, want, sizeof want);
    close_fed(&x);
}

/* What is read changes, what is to be found does not; and what is evaluated is read as it is. */
static void other_items_stand_for_some(void **state)
{
    (void)state;
    fed x = {0};
    const int32_t ids[] = {0, 1, 2}, labels[] = {1, 2, 3};
    int changed = 0;
    open_with(&x, "softmax", "0", false, "replace", "0.5");
    for (int epoch = 0; epoch < 50; epoch++) {
        make_first(&x, (fv_data_rng){.seed = 3, .epoch = epoch});
        changed += memcmp(fv_batch_get(&x.b, "input_ids")->data, ids, sizeof ids) != 0;
        assert_memory_equal(fv_batch_get(&x.b, "labels")->data, labels, sizeof labels);
    }
    assert_in_range(changed, 20, 50);
    check_evaluated(&x, "0", (int32_t[]){1, 2, 3});
}

/* ---- recommendations ---- */

#define MODEL FOVEA_TESTS "/golden/models/sasrec"

static void recommendations_leave_out_the_history(void **state)
{
    (void)state;
    fv_recommender *r;
    fv_err e;
    fv_recommended out[20];
    int64_t found;
    const int32_t history[] = {4, 9, 4, 0};
    float looked[4];
    double sum = 0;
    check(fv_recommender_open(&r, device, MODEL, (fv_model_opt){0}, &e), &e);
    fv_labels *items = fv_recommender_items(r);
    assert_string_equal(items->name[3], "item 3");
    check(fv_recommender_run(r, history, 4, 20, out, &found, looked, &e), &e);
    assert_int_equal(found, 11 - 3);
    for (int i = 0; i < found; i++) {
        assert_true(out[i].item != 4 && out[i].item != 9 && out[i].item != 0);
        if (i) assert_true(out[i - 1].score >= out[i].score);
    }
    for (int i = 0; i < 4; i++) sum += (double)looked[i];
    assert_true(fabs(sum - 1) < 1e-5);
    fv_recommended best[2];
    check(fv_recommender_run(r, history, 4, 2, best, &found, NULL, &e), &e);
    assert_true(found == 2 && best[0].item == out[0].item && best[1].item == out[1].item);
    assert_int_equal(fv_recommender_run(r, history, 0, 2, best, &found, NULL, &e), FV_EARG);
    assert_int_equal(fv_recommender_run(r, (int32_t[]){11}, 1, 2, best, &found, NULL, &e), FV_EARG);
    fv_recommender_close(r);
}

/* Hidden items are the labels, and one is hidden at least; the mask is behind what is evaluated. */
static void masked_items_are_to_be_found(void **state)
{
    (void)state;
    fed x = {0};
    const int32_t items[] = {1, 2, 3};
    open_feed(&x, "softmax", "0.3", false);
    for (int epoch = 0; epoch < 50; epoch++) {
        make_first(&x, (fv_data_rng){.seed = 3, .epoch = epoch});
        const int32_t *ids = fv_batch_get(&x.b, "input_ids")->data,
                      *label = fv_batch_get(&x.b, "labels")->data;
        int hidden = 0;
        for (int t = 0; t < 3; t++) {
            hidden += label[t] >= 0;
            assert_int_equal(label[t] >= 0 ? label[t] : ids[t], items[t]);
            assert_int_equal(ids[t] == 6, label[t] >= 0);
        }
        assert_true(hidden > 0 && x.b.labels == hidden);
    }
    check_evaluated(&x, "0.3", (int32_t[]){2, 3, 6});
}

/* A recommender of new weights over the items a, b, .. */
static fv_recommender *new_recommender(const char *type, int items)
{
    fv_model *m;
    fv_recommender *r;
    fv_err e;
    char config[300];
    int n = snprintf(config, sizeof config,
                     "{\"model_type\": \"%s\", \"hidden_size\": 8, \"id2label\": {", type);
    for (int i = 0; i < items; i++)
        n += snprintf(config + n, sizeof config - (size_t)n, "%s\"%d\": \"%c\"", i ? ", " : "", i,
                      'a' + i);
    snprintf(config + n, sizeof config - (size_t)n, "}}");
    check(fv_model_new(&m, device, config, (fv_model_opt){0}, 5, &e), &e);
    check(fv_model_save(m, scratch("%s", type), FV_F32, &e), &e);
    fv_model_free(m);
    check(fv_recommender_open(&r, device, scratch("%s", type), (fv_model_opt){0}, &e), &e);
    return r;
}

/* What the model says is best is found at the first rank. */
static void ranking_counts_ranks(void **state)
{
    (void)state;
    fv_err e;
    fv_ranking k[FV_RANKED];
    fv_recommended next[1];
    int64_t found;
    char text[100];
    fv_recommender *r = new_recommender("sasrec", 4);
    check(fv_recommender_run(r, (int32_t[]){0, 1}, 2, 1, next, &found, NULL, &e), &e);
    snprintf(text, sizeof text, "u a b %s\n", fv_recommender_items(r)->name[next[0].item]);
    fv_events *v = open_text(text, (fv_events_opt){.layout = FV_EVENTS_SEQUENCES,
                                                   .items = fv_recommender_items(r)});
    check(fv_recommender_evaluate(r, v, (fv_ranking_opt){0}, k, &e), &e);
    assert_int_equal(k[FV_RANKED_MODEL].users, 1);
    assert_true(k[0].hr[0] == 1 && k[0].ndcg[1] == 1 && k[0].mrr[2] == 1);
    check(fv_recommender_evaluate(r, v, (fv_ranking_opt){.sampled = 3, .seed = 2}, k, &e), &e);
    assert_true(k[0].hr[0] == 1 && k[0].ndcg[1] == 1);
    fv_events_close(v);
    fv_recommender_close(r);
}

/* Two users had a with b, four others c: behind a stands b, though c is more popular.  And a model
 * that looks both ways reads the mask behind the history. */
static void neighbours_are_items_of_the_same_users(void **state)
{
    (void)state;
    fv_err e;
    fv_ranking k[FV_RANKED];
    fv_recommended next[1];
    float looked[2];
    int64_t found;
    fv_recommender *r = new_recommender("bert4rec", 5);
    check(fv_recommender_run(r, (int32_t[]){0, 1}, 2, 1, next, &found, looked, &e), &e);
    assert_int_equal(found, 1);
    assert_true(looked[0] > 0 && looked[0] + looked[1] < 1); /* the mask has the rest */
    fv_events *v = open_text("1 a b d e\n2 a b d e\n3 c d e\n4 c d e\n5 c d e\n6 c d e\nu a b\n",
                             (fv_events_opt){.layout = FV_EVENTS_SEQUENCES,
                                             .items = fv_recommender_items(r)});
    check(fv_recommender_evaluate(r, v, (fv_ranking_opt){0}, k, &e), &e);
    assert_int_equal(k[FV_RANKED_MODEL].users, 7);
    /* of u: neighbours put b first; popularity c, then b */
    assert_true(k[FV_RANKED_NEIGHBOURS].mrr[0] > k[FV_RANKED_POPULAR].mrr[0]);
    fv_events_close(v);
    fv_recommender_close(r);
}

/* ---- impressions ---- */

static fv_status read_impressions(fv_impressions **out, fv_labels *items, const char *text,
                                  fv_err *e)
{
    fv_impressions_opt how = {.file = scratch_text("shown.tsv", text),
                              .items = items,
                              .buckets = 16};
    return fv_impressions_open(out, NULL, &how, e);
}

static void impressions_are_read(void **state)
{
    (void)state;
    fv_err e;
    fv_labels items = {0};
    fv_impressions *v;
    check(read_impressions(&v, &items, "1\ta\tb c\tx\n0\tc\t\ty\n-\tb\ta\tx\n", &e), &e);
    assert_int_equal(fv_impressions_count(v), 3);
    assert_int_equal(fv_impressions_features(v), 1);
    fv_impression x = fv_impressions_at(v, 0), y = fv_impressions_at(v, 1),
                  z = fv_impressions_at(v, 2);
    assert_true(x.label == 1 && y.label == 0 && z.label == -1);
    assert_true(x.item == 0 && x.n == 2 && x.history[0] == 1 && x.history[1] == 2);
    assert_true(y.item == 2 && y.n == 0 && z.item == 1 && z.n == 1 && z.history[0] == 0);
    assert_true(x.features[0] == z.features[0] && x.features[0] >= 0 && x.features[0] < 16);
    fv_impressions_close(v);
    /* a closed list: what is new is the unknown item */
    items.closed = true;
    check(read_impressions(&v, &items, "0\tnew\ta other\n", &e), &e);
    x = fv_impressions_at(v, 0);
    assert_true(x.item == 3 && x.history[0] == 0 && x.history[1] == 3);
    fv_impressions_close(v);
    static const char *const bad[][2] = {{"2\ta\tb\n", "label \"2\""},
                                         {"1\ta\n", "expected label, candidate and history"},
                                         {"1\ta\tb\tx\n1\ta\tb\n", "0 features"},
                                         {"\n", "no impression"}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(read_impressions(&v, &items, bad[i][0], &e), FV_EFORMAT);
        assert_non_null(strstr(e.text, bad[i][1]));
    }
    fv_labels_free(&items);
}

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_sorted),
        cmocka_unit_test(what_are_no_events_is_refused),
        cmocka_unit_test(the_last_items_are_left_out),
        cmocka_unit_test(ranking_may_be_among_drawn_items),
        cmocka_unit_test(other_items_stand_for_some),
        cmocka_unit_test(recommendations_leave_out_the_history),
        cmocka_unit_test(masked_items_are_to_be_found),
        cmocka_unit_test(ranking_counts_ranks),
        cmocka_unit_test(neighbours_are_items_of_the_same_users),
        cmocka_unit_test(impressions_are_read),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
