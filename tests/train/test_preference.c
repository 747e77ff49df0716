/* test_preference.c - DPO and ORPO against their formulas in double precision, and by finite
 * differences. */
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
#include "helper/differences.h"
#include "helper/files.h"

enum { PAIRS = 3 };
static const char records[] =
    "{\"prompt\": \"the cat\", \"chosen\": \" sees a tree\", \"rejected\": \" tree a\"}\n"
    "{\"prompt\": \"a bird\", \"chosen\": \" sings\", \"rejected\": \" the the the sings\"}\n"
    "{\"prompt\": \"my friend\", \"chosen\": \" likes some bread\", \"rejected\": \" bread\"}\n";

static fv_tok *tok;

static bool next_text(void *self, const char **text, size_t *len)
{
    int *i = self;
    *text = records;
    *len = strlen(records);
    return (*i)++ == 0;
}

static int set_up(void **state)
{
    static const char *const specials[] = {"<pad>", "</s>", NULL};
    int at = 0;
    fv_err e;
    if (scratch_open(state) || open_device(state)) return -1;
    fv_tok_train_opts o = {.kind = FV_TOK_BYTE_BPE,
                           .vocab = 270,
                           .min_count = 1,
                           .specials = specials};
    check(fv_tok_train(&tok, NULL, (fv_tok_source){next_text, &at}, &o, &e), &e);
    return 0;
}

static int tear_down(void **state)
{
    fv_tok_close(tok);
    return close_device(state) || scratch_close(state);
}

static fv_feed open_feed(const char *loss)
{
    static _Alignas(16) unsigned char options[512];
    const fv_objective *o = fv_objective_find("preference");
    fv_data_report r = {0};
    fv_labels labels = {0};
    fv_feed f;
    fv_err e;
    assert_non_null(o);
    assert_true(o->options_size <= sizeof options);
    fv_fields_default(options, o->keys);
    check(fv_fields_set(options, o->keys, "loss", loss, &e), &e);
    check(fv_fields_set(options, o->keys, "beta", "0.3", &e), &e);
    fv_feed_opt t = {.tok = tok,
                     .options = options,
                     .pad = fv_tok_id(tok, "<pad>"),
                     .eos = fv_tok_id(tok, "</s>"),
                     .labels = &labels};
    fv_records from = {.file = scratch_text("pairs.jsonl", records)};
    check(o->open(&f, &t, &from, &r, &e), &e);
    assert_int_equal(r.kept, PAIRS);
    return f;
}

static fv_model *new_model(uint64_t seed)
{
    char config[300];
    fv_model *m;
    fv_err e;
    snprintf(config, sizeof config,
             "{\"model_type\": \"gpt2\", \"vocab_size\": %d, \"n_embd\": 16, \"n_head\": 2, "
             "\"n_layer\": 1, \"n_positions\": 64, \"initializer_range\": 0.3}",
             fv_tok_size(tok));
    check(fv_model_new(&m, device, config, (fv_model_opt){.train = true, .dtype = FV_F64}, seed,
                       &e),
          &e);
    return m;
}

/* The batch of all pairs through the objective: its loss and, where asked for, gradients. */
static double loss_of(const fv_feed *f, const fv_model *m, bool grad)
{
    static const int32_t rows[PAIRS] = {0, 1, 2};
    fv_batch b = {0};
    fv_ctx *c;
    fv_err e;
    double loss;
    check(f->make(f->self, &b, rows, PAIRS, (fv_data_rng){.epoch = -1}, &e), &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){.dtype = FV_F64, .record = grad}, &e), &e);
    fv_items in = fv_batch_items(c, &b), out = {0};
    f->forward(f->self, c, m, &in, &out);
    fv_tensor *y = fv_items_get(&out, "loss");
    fv_params_zero_grad(fv_model_params(m));
    if (grad) check(fv_backward(c, y), fv_ctx_err(c));
    check(fv_read_f64(c, y, &loss, 1), fv_ctx_err(c));
    fv_ctx_free(c);
    fv_batch_free(&b);
    return loss;
}

/* ---- by hand ---- */

/* log p(answer | prompt), added up over its tokens, and their number. */
static double answer_logp(const fv_model *m, const char *prompt, const char *answer, int *tokens)
{
    int32_t ids[64];
    fv_encoding *enc;
    fv_ctx *c;
    fv_err e;
    int n = 0, first;
    double sum = 0;
    check(fv_encoding_new(&enc, tok, &e), &e);
    check(fv_tok_encode(enc, prompt, strlen(prompt), (fv_tok_opts){0}, &e), &e);
    for (int64_t i = 0; i < enc->n; i++) ids[n++] = enc->ids[i];
    first = n;
    check(fv_tok_encode(enc, answer, strlen(answer), (fv_tok_opts){0}, &e), &e);
    for (int64_t i = 0; i < enc->n; i++) ids[n++] = enc->ids[i];
    ids[n++] = fv_tok_id(tok, "</s>");
    check(fv_ctx_new(&c, device, (fv_ctx_opt){.dtype = FV_F64}, &e), &e);
    fv_items in = {0}, out = {0};
    fv_items_put(&in, "input_ids", fv_ints(c, ids, FV_SHAPE(1, n)));
    fv_model_forward(c, m, &in, &out);
    int V = fv_tok_size(tok);
    double *x = malloc((size_t)(n * V) * sizeof *x);
    assert_non_null(x);
    check(fv_read_f64(c, fv_items_get(&out, "logits"), x, n * V), fv_ctx_err(c));
    for (int t = first; t < n; t++) {
        const double *row = x + (t - 1) * V;
        double all = 0;
        for (int k = 0; k < V; k++) all += exp(row[k]);
        sum += row[ids[t]] - log(all);
    }
    *tokens = n - first;
    free(x);
    fv_ctx_free(c);
    fv_encoding_free(enc);
    return sum;
}

static const char *const prompt[PAIRS] = {"the cat", "a bird", "my friend"};
static const char *const answer[2][PAIRS] = {{" sees a tree", " sings", " likes some bread"},
                                             {" tree a", " the the the sings", " bread"}};

static double log_sigmoid(double z) { return -log1p(exp(-z)); }
static double log_odds(double p) { return p - log1p(-exp(p)); }

static double dpo_by_hand(const fv_model *m, const fv_model *reference)
{
    double loss = 0;
    int n;
    for (int i = 0; i < PAIRS; i++) {
        double p = answer_logp(m, prompt[i], answer[0][i], &n) -
                   answer_logp(m, prompt[i], answer[1][i], &n),
               r = answer_logp(reference, prompt[i], answer[0][i], &n) -
                   answer_logp(reference, prompt[i], answer[1][i], &n);
        loss -= log_sigmoid(0.3 * (p - r));
    }
    return loss / PAIRS;
}

static double orpo_by_hand(const fv_model *m)
{
    double loss = 0;
    for (int i = 0; i < PAIRS; i++) {
        int n[2];
        double p[2];
        for (int k = 0; k < 2; k++) p[k] = answer_logp(m, prompt[i], answer[k][i], &n[k]) / n[k];
        loss += -p[0] - 0.3 * log_sigmoid(log_odds(p[0]) - log_odds(p[1]));
    }
    return loss / PAIRS;
}

static void dpo_is_its_formula(void **state)
{
    (void)state;
    fv_feed f = open_feed("dpo");
    fv_model *before = new_model(3), *after = new_model(4);
    fv_err e;
    check(f.prepare(f.self, before, device, &e), &e);
    /* what has not changed prefers nothing */
    assert_true(fabs(loss_of(&f, before, false) - log(2)) < 1e-6);
    /* the reference is kept as f32 */
    assert_true(fabs(loss_of(&f, after, false) - dpo_by_hand(after, before)) < 1e-5);
    fv_model_free(before), fv_model_free(after);
    fv_feed_close(&f);
}

static void orpo_is_its_formula(void **state)
{
    (void)state;
    fv_feed f = open_feed("orpo");
    fv_model *m = new_model(5);
    assert_true(fabs(loss_of(&f, m, false) - orpo_by_hand(m)) < 1e-6);
    fv_model_free(m);
    fv_feed_close(&f);
}

static void gradients_are_differences(void **state)
{
    static const char *const losses[] = {"dpo", "orpo"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        fv_feed f = open_feed(losses[k]);
        fv_model *reference = new_model(6), *m = new_model(7);
        fv_err e;
        check(f.prepare(f.self, reference, device, &e), &e);
        gradients_match_differences(&f, m, loss_of, 1.0f / 1024, 1e-5);
        fv_model_free(reference), fv_model_free(m);
        fv_feed_close(&f);
    }
}

static void a_pair_must_be_whole(void **state)
{
    (void)state;
    static _Alignas(16) unsigned char options[512];
    const fv_objective *o = fv_objective_find("preference");
    fv_data_report r = {0};
    fv_feed f;
    fv_err e = {0};
    fv_fields_default(options, o->keys);
    fv_feed_opt t = {.tok = tok, .options = options, .eos = -1};
    fv_records from = {.file = scratch_text("half.jsonl",
                                            "{\"prompt\": \"a\", \"chosen\": \"b\"}\n"),
                       .malformed = FV_REFUSE,
                       .empty = FV_REFUSE};
    assert_int_not_equal(o->open(&f, &t, &from, &r, &e), FV_OK);
    assert_non_null(strstr(e.text, "rejected"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dpo_is_its_formula),
        cmocka_unit_test(orpo_is_its_formula),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(a_pair_must_be_whole),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
