/* test_heads.c - heads, roles and labels as data: which head a model gets, which labels its loss is
 * divided by, families from outside of the library, and lengths that belong to a row alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/family.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"

#define SIZES                                                                                      \
    "\"vocab_size\": 20, \"hidden_size\": 16, \"intermediate_size\": 24, "                         \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2"
#define GPT2                                                                                       \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 20, \"n_embd\": 16, \"n_layer\": 2, "              \
    "\"n_head\": 2, \"n_positions\": 16}"

static int set_up(void **state) { return scratch_open(state) || open_device(state) ? -1 : 0; }
static int tear_down(void **state) { return scratch_close(state) || close_device(state) ? -1 : 0; }

static fv_model *make(const char *config, fv_model_opt opt)
{
    fv_model *m;
    fv_err e;
    check(fv_model_new(&m, device, config, opt, 7, &e), &e);
    return m;
}

static fv_ctx *context(void)
{
    fv_ctx *c;
    fv_err e;
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    return c;
}

/* ---- items ---- */

static void an_item_too_many_is_an_error(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 2, 3};
    fv_model *m = make(GPT2, (fv_model_opt){0});
    fv_ctx *c = context();
    fv_items in = {0}, out = {0};
    fv_tensor *x = fv_ints(c, ids, FV_SHAPE(1, 3));
    for (int i = 0; i < FV_MAX_ITEMS; i++) assert_true(fv_items_put(&in, "input_ids", x));
    assert_false(fv_items_put(&in, "labels", x));
    fv_model_forward(c, m, &in, &out);
    assert_int_equal(fv_ctx_status(c), FV_EARG);
    assert_non_null(strstr(fv_ctx_err(c)->text, "more than 24 inputs"));
    fv_ctx_free(c);
    fv_model_free(m);
}

/* ---- heads ---- */

static void the_model_type_decides_the_head(void **state)
{
    (void)state;
    static const struct {
        const char *config, *head;
        fv_head_job job;
    } cases[] = {
        {"{\"model_type\": \"llama\", " SIZES "}", "LlamaForCausalLM", FV_HEAD_CAUSAL_LM},
        {"{\"model_type\": \"qwen2\", " SIZES "}", "Qwen2ForCausalLM", FV_HEAD_CAUSAL_LM},
        {"{\"model_type\": \"mistral\", " SIZES "}", "MistralForCausalLM", FV_HEAD_CAUSAL_LM},
        {"{\"model_type\": \"camembert\", " SIZES "}", "CamembertModel", FV_HEAD_BASE},
        {"{\"model_type\": \"bert\", \"architectures\": [\"BertForTokenClassification\"], " SIZES
         "}",
         "BertForTokenClassification", FV_HEAD_TAG},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_model *m = make(cases[i].config, (fv_model_opt){0});
        assert_string_equal(fv_model_head(m), cases[i].head);
        assert_int_equal(fv_model_job(m), cases[i].job);
        fv_model_free(m);
    }
}

static void every_head_stands_on_one_of_its_family(void **state)
{
    (void)state;
    for (int i = 0; fv_family_at(i); i++)
        for (const fv_family_head *h = fv_family_at(i)->heads; h->name; h++) {
            assert_ptr_equal(fv_family_head_find(fv_family_at(i), h->name), h);
            if (h->base) assert_non_null(fv_family_head_find(fv_family_at(i), h->base));
            if (h->type) assert_ptr_equal(fv_family_find(h->type), fv_family_at(i));
        }
    const fv_family *bert = fv_family_find("bert");
    assert_string_equal(fv_family_base(bert, "BertForMaskedLM"), "BertModel");
    assert_string_equal(fv_family_base(bert, "BertForMultipleChoice"), "BertModel");
}

static void a_family_that_was_given_must_fit(void **state)
{
    (void)state;
    fv_model *m;
    fv_err e;
    fv_model_opt opt = {.family = fv_family_find("bert")};
    assert_int_equal(fv_model_new(&m, device, GPT2, opt, 1, &e), FV_EARG);
    assert_non_null(strstr(e.text, "the family given is bert"));
    assert_null(m);
}

/* ---- labels that count ---- */

typedef struct array {
    const char *name;
    int64_t B, T; /* T is 0 for one axis */
    const int32_t *data;
} array;

/* Runs m on these as "fovea forward" does; the loss, or the failure. */
static fv_status run(const fv_model *m, const array *a, int n, bool grad, float *loss, fv_err *e)
{
    fv_st_item items[4];
    char in[512], out[512];
    snprintf(in, sizeof in, "%s", scratch("in.safetensors"));
    snprintf(out, sizeof out, "%s", scratch("out.safetensors"));
    for (int i = 0; i < n; i++)
        items[i] = (fv_st_item){.name = a[i].name,
                                .dtype = FV_I32,
                                .shape = a[i].T ? FV_SHAPE(a[i].B, a[i].T) : FV_SHAPE(a[i].B),
                                .from = FV_I32,
                                .data = a[i].data};
    check(fv_st_save(NULL, in, items, n, (fv_st_save_opt){0}, e), e);
    fv_status st = fv_model_run(m, device, in, out, (fv_run_opt){.grad = grad}, e);
    if (st) return st;
    fv_st *file;
    fv_st_info t;
    check(fv_st_open(&file, NULL, out, e), e);
    check(fv_st_find(file, "loss", &t, e), e);
    check(fv_st_read(file, &t, loss, FV_F32, 1, e), e);
    fv_st_close(file);
    return FV_OK;
}

/* What comes of them does not depend on labels that are never predicted. */
static void the_first_label_of_a_causal_row_does_not_count(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8},
                         without[] = {-100, 2, 3, 4, -100, 6, 7, 8};
    fv_model *m = make(GPT2, (fv_model_opt){.train = true});
    float a, b;
    fv_err e;
    array plain[] = {{"input_ids", 2, 4, ids}, {"labels", 2, 4, ids}},
          left_out[] = {{"input_ids", 2, 4, ids}, {"labels", 2, 4, without}};
    check(run(m, plain, 2, false, &a, &e), &e);
    check(run(m, left_out, 2, false, &b, &e), &e);
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(fabs((double)a - log(20)) < 0.2); /* the mean of six, near that of chance */
    fv_model_free(m);
}

static void labels_of_which_none_counts_are_refused(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 2, 3}, none[] = {2, -100, -100};
    fv_model *m = make(GPT2, (fv_model_opt){0});
    array in[] = {{"input_ids", 1, 3, ids}, {"labels", 1, 3, none}};
    float loss;
    fv_err e;
    assert_int_equal(run(m, in, 2, false, &loss, &e), FV_EARG);
    assert_non_null(strstr(e.text, "labels: none of them counts"));
    fv_model_free(m);
}

/* The loss of spans in rows of three tokens; row 0 holds {1, 2, 3}, row 1 {4, 5, 6}. */
static double spans(const fv_model *m, int from, int rows, const int32_t *start, const int32_t *end)
{
    static const int32_t ids[] = {1, 2, 3, 4, 5, 6};
    array in[] = {{"input_ids", rows, 3, ids + (ptrdiff_t)from * 3},
                  {"start_positions", rows, 0, start},
                  {"end_positions", rows, 0, end}};
    float loss;
    fv_err e;
    check(run(m, in, 3, false, &loss, &e), &e);
    return (double)loss;
}

/* transformers clamps positions to 0 .. T and ignores T; each half is divided by its own count. */
static void spans_outside_of_the_sequence(void **state)
{
    (void)state;
    fv_model *m = make("{\"model_type\": \"bert\", \"architectures\": "
                       "[\"BertForQuestionAnswering\"], \"initializer_range\": 0.5, " SIZES "}",
                       (fv_model_opt){0});
    const int32_t start[] = {0, 1}, end[] = {2, 1}, before[] = {-100, 1}, beyond[] = {0, 3},
                  end_beyond[] = {2, 70};
    double both = spans(m, 0, 2, start, end), one = spans(m, 0, 1, start, end),
           other = spans(m, 1, 1, start + 1, end + 1), no_start = spans(m, 0, 2, beyond, end),
           no_end = spans(m, 0, 2, start, end_beyond);
    assert_true(spans(m, 0, 2, before, end) == both);
    /* With s and e of the two rows: both = ((s1+s2)/2 + (e1+e2)/2)/2, one = (s1+e1)/2,
     * other = (s2+e2)/2, no_start = (s1 + (e1+e2)/2)/2, no_end = ((s1+s2)/2 + e1)/2. */
    assert_true(fabs(one - other) > 1e-3);
    assert_true(fabs(2 * (no_start - both) + 2 * (no_end - both) - (one - other)) < 1e-5);
    fv_model_free(m);
}

/* ---- T5 ---- */

static void a_t5_without_lm_head_in_its_file_is_tied(void **state)
{
    (void)state;
    static const char tied[] = "{\"model_type\": \"t5\", \"vocab_size\": 20, \"d_model\": 16, "
                               "\"d_kv\": 8, \"d_ff\": 24, \"num_layers\": 1, \"num_heads\": 2}",
                      apart[] = "{\"model_type\": \"t5\", \"vocab_size\": 20, \"d_model\": 16, "
                                "\"d_kv\": 8, \"d_ff\": 24, \"num_layers\": 1, \"num_heads\": 2, "
                                "\"tie_word_embeddings\": false}";
    fv_err e;
    fv_model *m = make(tied, (fv_model_opt){0}), *untied = make(apart, (fv_model_opt){0}), *again;
    int n = fv_params_count(fv_model_params(m));
    assert_int_equal(fv_params_count(fv_model_params(untied)), n + 1);
    check(fv_model_save(m, scratch("t5"), FV_F32, &e), &e);
    scratch_text("t5/config.json", apart);
    check(fv_model_open(&again, device, scratch("t5"), (fv_model_opt){.train = true}, &e), &e);
    assert_int_equal(fv_params_count(fv_model_params(again)), n);
    fv_model_free(again);
    check(fv_model_new(&again, device, apart, (fv_model_opt){.from = scratch("t5")}, 1, &e), &e);
    assert_int_equal(fv_params_count(fv_model_params(again)), n);
    fv_model_free(again);
    fv_model_free(untied);
    fv_model_free(m);
}

/* ---- dynamic rotary positions ---- */

#define DYNAMIC                                                                                    \
    "{\"model_type\": \"llama\", \"max_position_embeddings\": 4, "                                 \
    "\"initializer_range\": 0.5, " SIZES                                                           \
    ", \"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": 2.0}}"
enum { LONG = 9, SHORT = 6, VOCAB = 20 };

/* Logits at the last token of the first row, of n tokens, in a batch of `rows` rows of T. */
static void last_logits(const fv_model *m, int rows, int T, int n, const int32_t *pos, float *out)
{
    int32_t ids[2 * LONG];
    uint8_t mask[2 * LONG];
    fv_ctx *c = context();
    fv_items in = {0}, y = {0};
    for (int i = 0; i < rows * T; i++) {
        ids[i] = 1 + i % T * 5 % 17;
        mask[i] = i >= T || i < n;
    }
    fv_items_put(&in, "input_ids", fv_ints(c, ids, FV_SHAPE(rows, T)));
    fv_items_put(&in, "attention_mask", fv_bytes(c, mask, FV_SHAPE(rows, T)));
    if (pos) fv_items_put(&in, "position_ids", fv_ints(c, pos, FV_SHAPE(rows, T)));
    fv_model_forward(c, m, &in, &y);
    fv_tensor *row = fv_slice(c, fv_items_get(&y, "logits"), 0, 0, 1);
    check(fv_read(c, fv_slice(c, row, 1, n - 1, n), out, VOCAB), fv_ctx_err(c));
    fv_ctx_free(c);
}

static void a_row_beyond_the_trained_length_is_alone(void **state)
{
    (void)state;
    float alone[VOCAB], beside[VOCAB], longer[VOCAB];
    fv_model *m = make(DYNAMIC, (fv_model_opt){0});
    last_logits(m, 1, SHORT, SHORT, NULL, alone);
    last_logits(m, 2, LONG, SHORT, NULL, beside);
    assert_memory_equal(alone, beside, sizeof alone);

    /* The length is that of the positions, not the number of tokens. */
    int32_t far[SHORT];
    for (int i = 0; i < SHORT; i++) far[i] = i + 30;
    last_logits(m, 1, SHORT, SHORT, far, longer);
    double off = 0;
    for (int i = 0; i < VOCAB; i++) off += fabs((double)longer[i] - (double)alone[i]);
    assert_true(off > 1e-4); /* a shift alone changes nothing: another base does */
    fv_model_free(m);
}

static void a_prompt_is_read_alike_in_any_company(void **state)
{
    (void)state;
    static const int32_t a[] = {1, 6, 11, 16, 4, 9}, b[] = {2, 3, 5, 7, 11, 13, 17, 19, 1, 2, 3};
    const int32_t *both[] = {a, b};
    const int64_t len[] = {6, 11};
    fv_model *m = make(DYNAMIC, (fv_model_opt){.serve = true});
    fv_gen_opt o = {0};
    fv_generated one, two;
    fv_err e;
    fv_fields_default(&o, fv_gen_fields);
    o.max_new_tokens = 8;
    check(fv_generate(&one, device, m, both, len, 1, &o, &e), &e);
    check(fv_generate(&two, device, m, both, len, 2, &o, &e), &e);
    assert_int_equal(one.hyp[0].n, two.hyp[0].n);
    assert_memory_equal(one.hyp[0].ids, two.hyp[0].ids, (size_t)one.hyp[0].n * sizeof(int32_t));
    assert_memory_equal(&one.hyp[0].score, &two.hyp[0].score, sizeof one.hyp[0].score);
    fv_generated_free(&one);
    fv_generated_free(&two);
    fv_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_item_too_many_is_an_error),
        cmocka_unit_test(the_model_type_decides_the_head),
        cmocka_unit_test(every_head_stands_on_one_of_its_family),
        cmocka_unit_test(a_family_that_was_given_must_fit),
        cmocka_unit_test(the_first_label_of_a_causal_row_does_not_count),
        cmocka_unit_test(labels_of_which_none_counts_are_refused),
        cmocka_unit_test(spans_outside_of_the_sequence),
        cmocka_unit_test(a_t5_without_lm_head_in_its_file_is_tied),
        cmocka_unit_test(a_row_beyond_the_trained_length_is_alone),
        cmocka_unit_test(a_prompt_is_read_alike_in_any_company),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
