/* test_store_config.c - JSON documents, field tables and model directories. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/store.h"
#include "fovea/author/config.h"
#include "helper/memfs.h"
#include "helper/failing.h"

typedef struct net {
    int n_layer;
    int64_t n_embd;
    float dropout;
    double eps;
    bool tied;
    char name[8];
    int act;
    char parts[12];
    fv_int_list size, depths;
    float stretch[3];
} net;

static const char *const acts[] = {"relu", "gelu", NULL};

static const fv_field table[] = {
    FV_INT(net, n_layer, 1, 12, 96, "number of blocks"),
    FV_INT_KEY("hidden_size", net, n_embd, 1, 768, 1 << 16, "model width"),
    FV_FLOAT(net, dropout, 0, 0.1f, 1, "share of activations dropped"),
    FV_FLOAT(net, eps, 0, 1e-12, 1, "added to the variance"),
    FV_BOOL(net, tied, true, "output embeddings are the input's"),
    FV_TEXT(net, name, "base", "what to call it"),
    FV_CHOICE(net, act, 1, acts, "activation"),
    FV_WORDS(net, parts, "what it has"),
    FV_INTS(net, size, 1, "224", 999, "pixels of a side, or height and width"),
    FV_INTS(net, depths, 1, "2 2", 64, "layers of each stage"),
    FV_NUMBERS_KEY("stretch", net, stretch, 0.5, 9, "of each frequency"),
    {0},
};

static const fv_key_rule mine[] = {{"use_cache", NULL},
                                   {"is_decoder", "false"},
                                   {"scaling", "{\"type\": \"none\"}"},
                                   {0}};
static const fv_key_rule *const rules[] = {mine, NULL};

static fv_status read_net(net *n, const char *text, fv_err *e)
{
    fv_json *j;
    fv_status st = fv_json_parse(&j, NULL, text, "config.json", e);
    if (st) return st;
    st = fv_fields_read(n, table, j, "", rules, e);
    fv_json_close(j);
    return st;
}

static void fields_are_read(void **state)
{
    (void)state;
    net n;
    fv_err e = {0};
    assert_int_equal(read_net(&n, "{}", &e), FV_OK);
    assert_true(n.n_layer == 12 && n.n_embd == 768 && n.dropout == 0.1f && n.eps == 1e-12 &&
                n.tied && n.act == 1);
    assert_string_equal(n.name, "base");
    if (read_net(&n,
                 "{\"n_layer\": 2, \"hidden_size\": 64, \"dropout\": 0, \"eps\": 1e-5, \"tied\": "
                 "false, \"name\": \"tiny\", \"act\": "
                 "\"relu\", \"use_cache\": [1], \"is_decoder\": false, \"scaling\": {\"type\": "
                 "\"none\"}, \"anything\": null}",
                 &e))
        fail_msg("%s", e.text);
    assert_true(n.n_layer == 2 && n.n_embd == 64 && n.dropout == 0 && n.eps == 1e-5 && !n.tied &&
                n.act == 0);
    assert_string_equal(n.name, "tiny");
    assert_string_equal(n.parts, "");
    assert_int_equal(read_net(&n, "{\"parts\": [\"near\", \"far\"]}", &e), FV_OK);
    assert_string_equal(n.parts, "near far");
    assert_true(n.stretch[0] == 0);
    assert_int_equal(read_net(&n, "{\"stretch\": [1, 2.5]}", &e), FV_OK);
    assert_true(n.stretch[0] == 1 && n.stretch[1] == 2.5f && n.stretch[2] == 0);
    assert_int_equal(read_net(&n, "{\"n_layer\": null}", &e), FV_OK);
    assert_int_equal(n.n_layer, 12);
}

static void every_problem_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"n_layer\": 0}", "config.json: n_layer: expected an integer from 1 to 96, found 0"},
        {"{\"n_layer\": 2.0}", "config.json: n_layer: expected an integer from 1 to 96, found 2.0"},
        {"{\"n_layer\": \"2\"}",
         "config.json: n_layer: expected an integer from 1 to 96, found \"2\""},
        {"{\"dropout\": 1.5}", "config.json: dropout: expected a number from 0 to 1, found 1.5"},
        {"{\"tied\": 1}", "config.json: tied: expected true or false, found 1"},
        {"{\"name\": \"much too long\"}",
         "config.json: name: expected a text of at most 7 bytes, found \"much too long\""},
        {"{\"act\": \"swish\"}", "config.json: act: expected one of relu, gelu, found \"swish\""},
        {"{\"parts\": 3}", "config.json: parts: expected words of at most 11 bytes"},
        {"{\"parts\": [\"near\", \"farther\"]}",
         "config.json: parts: expected words of at most 11 bytes"},
        {"{\"parts\": [\"a b\"]}", "config.json: parts: expected words"},
        {"{\"parts\": [1]}", "config.json: parts: expected words"},
        {"{\"stretch\": [1, 0]}",
         "config.json: stretch: expected a list of at most 3 numbers from 0.5 to 9, found [1, 0]"},
        {"{\"stretch\": [1, 1, 1, 1]}", "config.json: stretch: expected a list of at most 3"},
        {"{\"stretch\": [\"1\"]}", "config.json: stretch: expected a list"},
        {"{\"stretch\": 1}", "config.json: stretch: expected a list"},
        {"{\"size\": [480, 1.5]}",
         "config.json: size: expected one to 16 integers from 1 to 999, found [480, 1.5]"},
        {"{\"size\": 1000}", "config.json: size: expected one to 16 integers"},
        {"{\"size\": \"224\"}", "config.json: size: expected one to 16 integers"},
        {"{\"depths\": []}", "config.json: depths: expected one to 16 integers"},
        {"{\"depths\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}",
         "config.json: depths: expected one to 16 integers"},
        {"{\"n_layers\": 3}",
         "config.json: n_layers: 3 is not implemented (the nearest key that is: n_layer)"},
        {"{\"is_decoder\": true}", "config.json: is_decoder: true is not implemented"},
        {"{\"scaling\": {\"type\": \"yarn\"}}",
         "config.json: scaling: {\"type\": \"yarn\"} is not implemented"},
        {"{\"tied\": 1, \"n_layer\": 0}", "config.json: tied: expected true or false, found 1; "
                                          "n_layer: expected an integer from 1 to 96, found 0"},
        {"{\"n_layer\": 1, \"n_layer\": 2}",
         "config.json: line 1, column 1: the key \"n_layer\" is there twice"},
        {"[]", "config.json: not a JSON object"},
        {"{\"a\": }", "config.json: line 1, column 7: a value was expected"},
        {"{\n  \"a\": \"\\u0000\"}", "config.json: line 2, column 8: a string with \\u0000"},
        {"{\"a\": 1e999}", "config.json: line 1, column 7: a number too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        net n;
        fv_err e = {0};
        if (read_net(&n, cases[i].text, &e) != FV_EFORMAT) fail_msg("accepted: %s", cases[i].text);
        if (strncmp(e.text, cases[i].message, strlen(cases[i].message)))
            fail_msg("%s\nsays:     %s\nexpected: %s", cases[i].text, e.text, cases[i].message);
    }
    net n;
    fv_err e = {0};
    assert_int_equal(read_net(&n,
                              "{\"q1\":1,\"q2\":1,\"q3\":1,\"q4\":1,\"q5\":1,\"q6\":1,\"q7\":1}",
                              &e),
                     FV_EFORMAT);
    assert_non_null(strstr(e.text, "; and 2 more"));
    char deep[200];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    deep[sizeof deep - 1] = 0;
    assert_int_equal(read_net(&n, deep, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "nested too deep"));
}

/* One number for a list of one, where the default is one number; a list stays a list. */
static void lists_are_read_and_written(void **state)
{
    (void)state;
    net n;
    fv_err e = {0};
    fv_json *j;
    char text[64];
    double x;
    assert_int_equal(read_net(&n, "{}", &e), FV_OK);
    assert_true(n.size.n == 1 && n.size.at[0] == 224 && n.depths.n == 2 && n.depths.at[1] == 2);
    assert_int_equal(read_net(&n, "{\"size\": [480, 640], \"depths\": 3}", &e), FV_OK);
    assert_true(n.size.n == 2 && n.size.at[1] == 640 && n.depths.n == 1 && n.depths.at[0] == 3);
    assert_int_equal(fv_fields_get(&n, table, "size", text, sizeof text), 7);
    assert_string_equal(text, "480 640");
    assert_int_equal(fv_fields_set(&n, table, "size", "32", &e), FV_OK);
    assert_int_equal(fv_fields_set(&n, table, "depths", "1, 2,3", &e), FV_OK);
    assert_int_equal(fv_fields_set(&n, table, "depths", "1 x", &e), FV_EARG);
    assert_int_equal(fv_fields_set(&n, table, "depths", "1 2 3", &e), FV_OK);
    assert_int_equal(fv_json_parse(&j, NULL, "{\"size\": [32]}", "config.json", &e), FV_OK);
    assert_int_equal(fv_fields_write(&n, table, j, &e), FV_OK);
    assert_true(fv_json_count(j, "size") == 1 && fv_json_count(j, "depths") == 3); /* as it was */
    fv_json_close(j);
    assert_int_equal(fv_json_parse(&j, NULL, "{\"size\": [8, 9]}", "config.json", &e), FV_OK);
    assert_int_equal(fv_fields_write(&n, table, j, &e), FV_OK);
    assert_true(fv_json_number(j, "size", &x) && x == 32);
    fv_json_close(j);
}

static void unknown_keys_survive_being_written(void **state)
{
    (void)state;
    static const char text[] =
        "{\n  \"use_cache\": [\n    1,\n    -2.5,\n    \"a\\n\\u0001\u00e9\"\n  ],\n  \"dropout\": "
        "0,\n  \"eps\": 1e-12,\n"
        "  \"n_layer\": null,\n  \"empty\": {},\n  \"hidden_size\": 64,\n  \"list\": []\n}\n";
    memfs fs;
    fv_json *j;
    net n;
    memfs_init(&fs);
    memfs_put(&fs, "config.json", text, sizeof text - 1);
    fv_env env = {.io = &fs.io};
    static const fv_key_rule any[] = {{"use_cache", NULL}, {"empty", NULL}, {"list", NULL}, {0}};
    static const fv_key_rule *const lenient[] = {any, NULL};
    assert_int_equal(fv_json_open(&j, &env, "config.json", NULL), FV_OK);
    assert_int_equal(fv_fields_read(&n, table, j, "", lenient, NULL), FV_OK);
    assert_int_equal(fv_json_save(j, "same.json", NULL), FV_OK);
    size_t m;
    const char *same = memfs_get(&fs, "same.json", &m);
    assert_int_equal(m, sizeof text - 1);
    assert_memory_equal(same, text, m);
    n.n_embd = 32;
    n.dropout = 0.2f;
    snprintf(n.parts, sizeof n.parts, "near  far");
    n.stretch[0] = 1, n.stretch[1] = 1.1f;
    assert_int_equal(fv_fields_write(&n, table, j, NULL), FV_OK);
    assert_int_equal(fv_json_set(j, "architectures", "[\"Net\"]", NULL), FV_OK);
    assert_int_equal(fv_json_set(j, "broken", "[", NULL), FV_EARG);
    assert_int_equal(fv_json_save(j, "new.json", NULL), FV_OK);
    fv_json_close(j);
    assert_int_equal(fv_json_open(&j, &env, "new.json", NULL), FV_OK);
    double x = 0;
    bool b = false;
    assert_true(fv_json_number(j, "hidden_size", &x) && x == 32);
    assert_true(fv_json_number(j, "dropout", &x) && x == 0.2);
    assert_true(fv_json_number(j, "use_cache.1", &x) && x == -2.5);
    assert_true(fv_json_bool(j, "tied", &b) && b);
    assert_false(fv_json_has(j, "n_layer"));
    assert_int_equal(fv_json_count(j, "parts"), 2);
    assert_string_equal(fv_json_text(j, "parts.1"), "far");
    assert_int_equal(fv_json_count(j, "stretch"), 2);
    assert_true(fv_json_number(j, "stretch.1", &x) && x == 1.1);
    assert_string_equal(fv_json_text(j, "architectures.0"), "Net");
    assert_null(fv_json_text(j, "architectures.1"));
    assert_int_equal(fv_json_count(j, "use_cache"), 3);
    assert_int_equal(fv_json_count(j, "dropout"), -1);
    assert_string_equal(fv_json_key(j, "", 0), "use_cache");
    assert_null(fv_json_key(j, "", 100));
    fv_json_close(j);
    memfs_free(&fs);
}

static void fields_are_set_from_text(void **state)
{
    (void)state;
    net n;
    fv_err e;
    char text[32];
    fv_fields_default(&n, table);
    assert_int_equal(fv_fields_set(&n, table, "n_layer", "3", &e), FV_OK);
    assert_int_equal(fv_fields_set(&n, table, "dropout", "2.5e-1", &e), FV_OK);
    assert_int_equal(fv_fields_set(&n, table, "tied", "false", &e), FV_OK);
    assert_int_equal(fv_fields_set(&n, table, "name", "x", &e), FV_OK);
    assert_int_equal(fv_fields_set(&n, table, "act", "relu", &e), FV_OK);
    assert_true(n.n_layer == 3 && n.dropout == 0.25f && !n.tied && n.act == 0);
    static const char *const got[][2] = {{"n_layer", "3"}, {"dropout", "0.25"}, {"tied", "false"},
                                         {"name", "x"},    {"act", "relu"},     {"eps", "1e-12"}};
    for (size_t i = 0; i < sizeof got / sizeof *got; i++) {
        assert_int_equal(fv_fields_get(&n, table, got[i][0], text, sizeof text),
                         (int)strlen(got[i][1]));
        assert_string_equal(text, got[i][1]);
    }
    assert_int_equal(fv_fields_get(&n, table, "none", text, sizeof text), -1);
    static const char *const bad[][2] = {{"n_layer", ""},       {"n_layer", "3x"},
                                         {"n_layer", "2.5"},    {"n_layer", "97"},
                                         {"dropout", "nan"},    {"tied", "maybe"},
                                         {"name", "too long!"}, {"act", "swish"},
                                         {"stretch", "1"},      {"n_layer", "0x3"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(fv_fields_set(&n, table, bad[i][0], bad[i][1], &e), FV_EARG);
    assert_string_equal(e.text, "n_layer: expected an integer from 1 to 96, found \"0x3\"");
    assert_int_equal(fv_fields_set(&n, table, "n_lyer", "3", &e), FV_EARG);
    assert_string_equal(e.text, "n_lyer: no such key; did you mean n_layer?");
}

static void gather(void *user, const char *line)
{
    strcat(user, line);
    strcat(user, "\n");
}

static void help_is_printed(void **state)
{
    (void)state;
    char text[2048] = "";
    fv_fields_help(table, gather, text);
    assert_non_null(
        strstr(text, "n_layer                  number of blocks; an integer from 1 to 96 [12]\n"));
    assert_non_null(
        strstr(text, "act                      activation; one of relu, gelu [gelu]\n"));
    assert_non_null(strstr(
        text,
        "dropout                  share of activations dropped; a number from 0 to 1 [0.1]\n"));
}

/* ---- directories ---- */

static void directories_are_opened(void **state)
{
    (void)state;
    memfs fs;
    fv_dir *d;
    fv_st *s;
    fv_err e = {0};
    char path[256];
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    assert_int_equal(fv_dir_open(&d, &env, "m", &e), FV_EIO);
    assert_non_null(strstr(e.text, "m: no such directory"));
    assert_non_null(strstr(e.text, "hf download m"));
    assert_int_equal(fv_dir_open(&d, &env, "./m", &e), FV_EIO);
    assert_string_equal(e.text, "./m: no such file or directory");
    memfs_put(&fs, "f", "", 0);
    assert_int_equal(fv_dir_open(&d, &env, "f", &e), FV_EIO);
    assert_string_equal(e.text, "f: not a directory");
    memfs_put(&fs, "m/vocab.txt", "", 0);
    assert_int_equal(fv_dir_open(&d, &env, "m", &e), FV_EIO);
    assert_non_null(strstr(e.text, "no config.json"));
    memfs_put(&fs, "m/config.json", "{\"model_type\": \"bert\"}", 22);
    assert_int_equal(fv_dir_open(&d, &env, "m", &e), FV_OK);
    assert_string_equal(fv_json_text(fv_dir_config(d), "model_type"), "bert");
    assert_null(fv_dir_generation(d));
    assert_true(fv_dir_file(d, "vocab.txt", path, sizeof path));
    assert_string_equal(path, "m/vocab.txt");
    assert_false(fv_dir_file(d, "merges.txt", path, sizeof path));
    assert_false(fv_dir_file(d, "vocab.txt", path, 4));
    assert_int_equal(fv_dir_weights(d, &s, &e), FV_EIO);
    memfs_put(&fs, "m/pytorch_model.bin", "", 0);
    assert_int_equal(fv_dir_weights(d, &s, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "'model.safetensors', {'format': 'pt'})\""));
    memfs_put(&fs, "m/model.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
    assert_int_equal(fv_dir_weights(d, &s, &e), FV_OK);
    fv_st_close(s);
    fv_dir_close(d);
    memfs_put(&fs, "m/generation_config.json", "{\"max_length\": 20", 16);
    assert_int_equal(fv_dir_open(&d, &env, "m", &e), FV_EFORMAT);
    memfs_put(&fs, "m/generation_config.json", "{\"max_length\": 20}", 18);
    assert_int_equal(fv_dir_open(&d, &env, "m", &e), FV_OK);
    assert_true(fv_json_has(fv_dir_generation(d), "max_length"));
    fv_dir_close(d);
    assert_int_equal(fs.opened + fs.maps, 0);
    memfs_free(&fs);
}

static uint32_t next(uint32_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    return *x ^= *x << 5;
}

static void mutated_configurations_are_survived(void **state)
{
    (void)state;
    static const char good[] =
        "{\"n_layer\": 2, \"hidden_size\": 64, \"dropout\": 0.5, \"eps\": 1e-5, \"tied\": false, "
        "\"name\": \"t\\u00e9\", "
        "\"act\": \"relu\", \"use_cache\": [1, {\"a\": null}], \"scaling\": {\"type\": \"none\"}}";
    uint32_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        char bad[sizeof good + 8];
        memcpy(bad, good, sizeof good);
        for (uint32_t k = next(&seed) % 3 + 1; k; k--) {
            size_t at = next(&seed) % (sizeof good - 1);
            bad[at] = next(&seed) % 2 ? "{}[]\",:0123456789-.e\\u "[next(&seed) % 23]
                                      : (char)(next(&seed) % 255 + 1);
        }
        if (!(next(&seed) % 8)) bad[next(&seed) % (sizeof good - 1)] = 0;
        net n;
        fv_err e = {0};
        fv_status st = read_net(&n, bad, &e);
        assert_true(!st || e.text[0]);
        if (!st) assert_true(n.n_layer >= 1 && n.n_layer <= 96 && n.act >= 0 && n.act < 2);
    }
}

static void put_configs(memfs *fs, void *arg)
{
    (void)arg;
    memfs_put(fs, "m/config.json", "{\"n_layer\": 0}", 14);
    memfs_put(fs, "m/generation_config.json", "{}", 2);
}

static fv_status read_and_save(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)fs, (void)arg;
    fv_dir *d;
    net n;
    fv_err wrong = {0};
    fv_status st = fv_dir_open(&d, env, "m", e);
    if (!st)
        assert_int_equal(fv_fields_read(&n, table, fv_dir_config(d), "", NULL, &wrong), FV_EFORMAT);
    if (!st) st = fv_json_save(fv_dir_config(d), "m/config.json", e);
    fv_dir_close(d);
    return st;
}

static void every_failure_is_reported(void **state)
{
    (void)state;
    fail_in_turn(put_configs, read_and_save, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(every_problem_is_named),
        cmocka_unit_test(lists_are_read_and_written),
        cmocka_unit_test(unknown_keys_survive_being_written),
        cmocka_unit_test(fields_are_set_from_text),
        cmocka_unit_test(help_is_printed),
        cmocka_unit_test(directories_are_opened),
        cmocka_unit_test(mutated_configurations_are_survived),
        cmocka_unit_test(every_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
