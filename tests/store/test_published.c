/* test_published.c - configurations as they are published open: every line of
 * golden/configs/published.jsonl has the keys of one model's config.json and tokenizer_config.json,
 * with sizes small enough to build the model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/model.h"
#include "fovea/tok.h"
#include "helper/files.h"
#include "store/json.h"

#define FILE_OF_SHAPES FOVEA_TESTS "/golden/configs/published.jsonl"

/* The object at a key of a line, as text of its own; the caller frees. */
static char *member(const fv_json *line, const char *key)
{
    fv_buf b = {0};
    fv__jnode_print(&b, fv__json_at(line, key), -1);
    assert_false(b.failed);
    char *text = strdup(b.data);
    fv__buf_free(&b);
    return text;
}

static void each_line(void (*check)(const fv_json *line, const char *name))
{
    size_t n;
    int lines = 0;
    char *text = slurp(FILE_OF_SHAPES, &n), *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) && *line; lines++) {
        fv_json *j;
        fv_err e = {0};
        if (fv_json_parse(&j, NULL, line, FILE_OF_SHAPES, &e)) fail_msg("%s", e.text);
        check(j, fv_json_text(j, "name"));
        fv_json_close(j);
    }
    free(text);
    assert_true(lines >= 60);
}

static fv_device *cpu;

static void build_model(const fv_json *line, const char *name)
{
    fv_err e = {0};
    fv_model *m;
    char *config = member(line, "config");
    if (fv_model_new(&m, cpu, config, (fv_model_opt){0}, 1, &e)) fail_msg("%s: %s", name, e.text);
    fv_model_free(m);
    free(config);
}

static void models_are_built(void **state)
{
    (void)state;
    assert_int_equal(fv_device_open(&cpu, "cpu", (fv_device_opt){0}, NULL), FV_OK);
    each_line(build_model);
    fv_device_close(cpu);
}

/* The vocabularies beside tokenizer_config.json, as small as they can be. */
static void put_vocabulary(const char *kind)
{
    static const char bert[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n",
                      bytes[] =
                          "{\"<s>\":0,\"<pad>\":1,\"</s>\":2,\"<unk>\":3,\"<mask>\":4,\"a\":5,"
                          "\"<|endoftext|>\":6}",
                      whole[] =
                          "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0,\"<unk>\":1},"
                          "\"unk_token\":\"<unk>\"}}";
    if (!strcmp(kind, "vocab.txt")) scratch_text("vocab.txt", bert);
    if (!strcmp(kind, "vocab.json")) {
        scratch_text("vocab.json", bytes);
        scratch_text("merges.txt", "#version: 0.2\n");
    }
    if (!strcmp(kind, "tokenizer.json")) scratch_text("tokenizer.json", whole);
}

static void open_tokenizer(const fv_json *line, const char *name)
{
    fv_err e = {0};
    fv_tok *t;
    fv_json *j;
    const char *kind = fv_json_text(line, "files");
    char *config = member(line, "tokenizer_config");
    scratch_text("tokenizer_config.json", config);
    if (fv_json_open(&j, NULL, scratch("tokenizer_config.json"), &e))
        fail_msg("%s: %s", name, e.text);
    fv_json_close(j);
    put_vocabulary(kind);
    if (strcmp(kind, "source.spm")) {
        if (fv_tok_open(&t, NULL, scratch("."), &e)) fail_msg("%s: %s", name, e.text);
        fv_tok_close(t);
    }
    static const char *const files[] = {"vocab.txt", "vocab.json", "merges.txt", "tokenizer.json"};
    for (int i = 0; i < 4; i++)
        if (scratch_has(files[i])) scratch_drop(files[i]);
    free(config);
}

static void tokenizers_open(void **state)
{
    (void)state;
    each_line(open_tokenizer);
}

/* ---- what is ignored, what is refused ---- */

static void list_key(void *user, const char *key)
{
    char *out = user;
    snprintf(out + strlen(out), 200 - strlen(out), " %s", key);
}

#define SMALL "\"vocab_size\": 8, \"n_embd\": 8, \"n_head\": 2, \"n_layer\": 1, \"n_positions\": 8"

static void ignored_keys_are_told(void **state)
{
    (void)state;
    fv_err e = {0};
    char keys[200] = "";
    scratch_text("config.json",
                 "{\"model_type\": \"gpt2\", \"unsloth_version\": \"1\", \"_num_labels\": 3, "
                 "\"notes\": {\"a\": [1]}, " SMALL "}");
    if (fv_model_ignored(scratch("."), list_key, keys, &e)) fail_msg("%s", e.text);
    assert_string_equal(keys, " unsloth_version notes");
    scratch_text("config.json", "{\"model_type\": \"gtp2\"}");
    assert_int_equal(fv_model_ignored(scratch("."), list_key, keys, &e), FV_EARG);
    assert_non_null(strstr(e.text, "gtp2"));
}

static void keys_that_change_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"\"tie_encoder_decoder\": true", "tie_encoder_decoder: true is not implemented"},
        {"\"pruned_heads\": {\"0\": [1]}", "pruned_heads"},
        {"\"use_mrope\": true", "use_mrope"},
        {"\"hidden_size\": 16", "hidden_size"}, /* another name of n_embd, which is 8 */
    };
    assert_int_equal(fv_device_open(&cpu, "cpu", (fv_device_opt){0}, NULL), FV_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[512];
        fv_model *m;
        fv_err e = {0};
        snprintf(text, sizeof text, "{\"model_type\": \"gpt2\", %s, " SMALL "}", wrong[i][0]);
        if (fv_model_new(&m, cpu, text, (fv_model_opt){0}, 1, &e) != FV_EFORMAT)
            fail_msg("accepted: %s", wrong[i][0]);
        if (!strstr(e.text, wrong[i][1])) fail_msg("%s: %s", wrong[i][0], e.text);
    }
    fv_device_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_are_built),
        cmocka_unit_test(tokenizers_open),
        cmocka_unit_test(ignored_keys_are_told),
        cmocka_unit_test(keys_that_change_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
