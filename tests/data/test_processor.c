/* test_processor.c - processors: what a directory has is written back, a new tokenizer gets what
 * AutoTokenizer needs, columns of numbers are normalised and restored. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/fovea.h"
#include "fovea/author/processor.h"
#include "helper/device.h"
#include "helper/files.h"

static bool next_text(void *self, const char **text, size_t *len)
{
    int *i = self;
    *text = "a few words";
    *len = strlen(*text);
    return (*i)++ == 0;
}

static fv_tok *make_tok(const char *const *specials)
{
    int at = 0;
    fv_err e;
    fv_tok *tok;
    fv_tok_train_opts o = {.kind = FV_TOK_BPE, .vocab = 40, .min_count = 1, .specials = specials};
    check(fv_tok_train(&tok, NULL, (fv_tok_source){next_text, &at}, &o, &e), &e);
    return tok;
}

static json_t *read_json(const char *path)
{
    json_t *o = json_load_file(path, 0, NULL);
    assert_non_null(o);
    return o;
}

/* Special tokens that JSON must escape. */
static void a_new_tokenizer_has_a_configuration(void **state)
{
    (void)state;
    static const char *const specials[] = {"<pad>", "</s>", "<unk>", "<\"mask\\>", NULL};
    fv_processor *p;
    fv_err e;
    mkdir(scratch("new"), 0777);
    check(fv_processor_from_tok(&p, NULL, make_tok(specials), 77, &e), &e);
    assert_string_equal(fv_processor_kind(p), "tokenizer");
    assert_int_equal(fv_processor_ids(p).eos, 1);
    assert_int_equal(fv_processor_ids(p).cls, -1);
    check(fv_processor_save(p, scratch("new"), &e), &e);
    fv_processor_close(p);
    json_t *o = read_json(scratch("new/tokenizer_config.json"));
    assert_string_equal(json_string_value(json_object_get(o, "tokenizer_class")),
                        "PreTrainedTokenizerFast");
    assert_string_equal(json_string_value(json_object_get(o, "eos_token")), "</s>");
    assert_int_equal(json_integer_value(json_object_get(o, "model_max_length")), 77);
    json_decref(o);

    static const char *const odd[] = {"<\"pad\"\\>", "<unk>", NULL};
    check(fv_processor_from_tok(&p, NULL, make_tok(odd), 0, &e), &e);
    check(fv_processor_save(p, scratch("new"), &e), &e);
    fv_processor_close(p);
    o = read_json(scratch("new/tokenizer_config.json"));
    assert_string_equal(json_string_value(json_object_get(o, "pad_token")), odd[0]);
    assert_null(json_object_get(o, "model_max_length"));
    json_decref(o);
}

static void what_stands_beside_a_tokenizer_is_kept(void **state)
{
    (void)state;
    static const char *const specials[] = {"<pad>", "</s>", "<unk>", "<|end|>", NULL};
    static const char config[] =
        "{\"tokenizer_class\": \"LlamaTokenizer\", \"eos_token\": {\"content\": \"<|end|>\"}, "
        "\"chat_template\": \"{% for m in messages %}\", \"model_max_length\": 4096}\n";
    fv_processor *p;
    fv_err e;
    fv_tok *tok = make_tok(specials);
    mkdir(scratch("source"), 0777);
    mkdir(scratch("copy"), 0777);
    check(fv_tok_save(tok, scratch("source/tokenizer.json"), &e), &e);
    fv_tok_close(tok);
    scratch_text("source/tokenizer_config.json", config);
    scratch_text("source/chat_template.jinja", "{{ messages }}");
    check(fv_processor_open(&p, NULL, NULL, scratch("source"), &e), &e);
    assert_string_equal(fv_processor_kind(p), "tokenizer");
    assert_int_equal(fv_processor_ids(p).eos, 3);
    check(fv_processor_save(p, scratch("copy"), &e), &e);
    fv_processor_close(p);
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    for (int i = 0; i < 3; i++)
        assert_true(same_files(scratch("source/%s", files[i]), scratch("copy/%s", files[i])));
}

static void columns_are_normalised_and_restored(void **state)
{
    (void)state;
    static const char *const names[] = {"age", "a \"quoted\" name", "same"};
    const float x[] = {1, 1e6f, 5, 3, 1e6f + 2, 5, NAN, 1e6f + 4, 5};
    float y[9];
    fv_processor *p, *q;
    fv_err e;
    mkdir(scratch("table"), 0777);
    check(fv_processor_fit_table(&p, NULL, names, 3, x, 3, &e), &e);
    check(fv_processor_save(p, scratch("table"), &e), &e);
    check(fv_processor_open(&q, NULL, NULL, scratch("table"), &e), &e);
    assert_string_equal(fv_processor_kind(q), "table");
    assert_int_equal(fv_processor_columns(q), 3);
    assert_string_equal(fv_processor_column(q, 1), names[1]);
    assert_null(fv_processor_tok(q));
    memcpy(y, x, sizeof y);
    fv_processor_normalise(q, y, 3);
    assert_true(y[0] == -1 && y[3] == 1 && isnan(y[6]));
    assert_true(fabs((double)y[1] + sqrt(1.5)) < 1e-6 && y[4] == 0);
    assert_true(y[2] == 0 && y[5] == 0 && y[8] == 0);
    fv_processor_restore(q, y, 3);
    for (int i = 0; i < 9; i++)
        if (i != 6) assert_true(fabs((double)y[i] - (double)x[i]) <= 1e-6 * fabs((double)x[i]));
    fv_processor_close(p);
    fv_processor_close(q);

    const float bad[] = {1, INFINITY};
    assert_int_equal(fv_processor_fit_table(&p, NULL, names, 1, bad, 2, &e), FV_ENUMERIC);
    scratch_text("table/preprocessor_config.json",
                 "{\"processor_kind\": \"table\", \"columns\": [\"a\"], \"mean\": [0], \"std\": "
                 "[0]}");
    assert_int_equal(fv_processor_open(&p, NULL, "table", scratch("table"), &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "one above 0 in std"));
}

static void a_directory_without_files_has_none(void **state)
{
    (void)state;
    fv_processor *p;
    fv_err e;
    mkdir(scratch("empty"), 0777);
    check(fv_processor_open(&p, NULL, NULL, scratch("empty"), &e), &e);
    assert_string_equal(fv_processor_kind(p), "none");
    check(fv_processor_save(p, scratch("empty"), &e), &e);
    assert_int_equal(fv_processor_ids(p).pad, -1);
    fv_processor_close(p);
    assert_int_equal(fv_processor_open(&p, NULL, "tabel", scratch("empty"), &e), FV_EARG);
    assert_non_null(strstr(e.text, "the nearest is table"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_tokenizer_has_a_configuration),
        cmocka_unit_test(what_stands_beside_a_tokenizer_is_kept),
        cmocka_unit_test(columns_are_normalised_and_restored),
        cmocka_unit_test(a_directory_without_files_has_none),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
