/* test_cli.c - the program from outside: results, JSON, and what it says when called wrongly. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <setjmp.h>
#include <cmocka.h>

#include "fovea/array.h"
#include "fovea/fovea.h"
#include "helper/program.h"

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    scratch_text("q.csv", "0.1,0.2,0.3\n0.4,0.5,0.6\n0.7,0.8,0.9\n1.0,1.1,1.2\n");
    scratch_text("v.csv", "1.0,1.1,1.2\n1.3,1.4,1.5\n1.6,1.7,1.8\n1.9,2.0,2.1\n");
    return 0;
}

/* A failure says one sentence on standard error, which begins with the command, and prints no
 * result. */
static void told(const result *r, int code, const char *begin, const char *part)
{
    refused_silently(r, code, part);
    assert_int_equal(strncmp(r->err, begin, strlen(begin)), 0);
}

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!j) print_error("not JSON: %s\n%s", e.text, text);
    assert_non_null(j);
    return j;
}

/* The number at place (i), (i,j) or (h,i,j) of nested arrays. */
static double at(const json_t *a, int n, const int *place)
{
    for (int i = 0; i < n; i++) a = json_array_get(a, (size_t)place[i]);
    assert_true(json_is_number(a));
    return json_number_value(a);
}

#define AT(array, ...)                                                                             \
    at(array, (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)), (int[]){__VA_ARGS__})

/* ---- the program ---- */

static void test_version_and_help(void **state)
{
    (void)state;
    const result *r = fovea("--version");
    assert_int_equal(r->code, 0);
    assert_string_equal(r->out, "fovea " FV_VERSION "\n");
    r = fovea("--help");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "attend"));
    r = fovea("help");
    assert_non_null(strstr(r->out, "Commands:"));
    r = fovea("attend --help");
    assert_non_null(strstr(r->out, "--causal"));
    assert_non_null(strstr(r->out, "(default 4)"));
    assert_non_null(strstr(r->out, "Examples:"));
    r = fovea("help bench gemm");
    assert_non_null(strstr(r->out, "f32|bf16"));
}

/* Whether or not this machine has a GPU: none can be seen, its number is none, the backend is not
 * there or is another's. */
static void test_devices(void **state)
{
    (void)state;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    told(fovea("info --device cuda"), 1, "fovea info: device cuda", "device cuda");
    told(fovea("bench gemm --m 8 --n 8 --k 8 --device cuda"), 1, "fovea bench gemm: device cuda",
         "device cuda");
    unsetenv("CUDA_VISIBLE_DEVICES");
    told(fovea("info --device cuda:x"), 1, "fovea info: ", "N counts from 0");
    told(fovea("info --device tpu"), 1, "fovea info: ", "expected cpu or cuda");
    setenv("FOVEA_CUDA", "/nonexistent.so", 1);
    told(fovea("info --device cuda"), 1, "fovea info: ", "FOVEA_CUDA: /nonexistent.so");
    setenv("FOVEA_CUDA", "libm.so.6", 1);
    told(fovea("info --device cuda"), 1, "fovea info: ", "is not fovea's");
    unsetenv("FOVEA_CUDA");
}

static void test_usage(void **state)
{
    (void)state;
    told(fovea("%s", ""), 2, "fovea: ", "a command is missing");
    told(fovea("atend"), 2, "fovea: ", "did you mean 'attend'?");
    told(fovea("--nothing"), 2, "fovea: ", "unknown option '--nothing'");
    told(fovea("bench"), 2, "fovea bench: ", "a command is missing");
    told(fovea("bench gem"), 2, "fovea bench: ", "did you mean 'gemm'?");
    told(fovea("attend --casual"), 2, "fovea attend: ", "did you mean '--causal'?");
    told(fovea("attend -z"), 2, "fovea attend: ", "unknown option '-z'");
    told(fovea("attend --heads"), 2, "fovea attend: ", "--heads needs a value");
    told(fovea("attend --heads two"), 2,
         "fovea attend: ", "a whole number from 1 to 4096, not 'two'");
    told(fovea("attend --heads 0"), 2, "fovea attend: ", "not '0'");
    told(fovea("attend --heads=99999999999999999999"), 2, "fovea attend: ", "a whole number");
    told(fovea("attend --causal=yes"), 2, "fovea attend: ", "--causal takes no value");
    told(fovea("attend more"), 2, "fovea attend: ", "'more' is one argument too many");
    told(fovea("bench gemm --dtype f31"), 2, "fovea bench gemm: ", "--dtype: expected one of f32");
    told(fovea("bench gemm --seconds nan"), 2, "fovea bench gemm: ", "--seconds wants a number");
    told(fovea("help attnd"), 2, "fovea help: ", "did you mean 'attend'?");
    told(fovea("attend --q q.csv"), 2, "fovea attend: ", "belong together");
}

static void test_option_forms(void **state)
{
    (void)state;
    const char *forms[] = {"attend --heads 3 --causal", "attend --heads=3 --causal",
                           "attend -n 3 -c", "attend -cn3", "attend -cn 3"};
    char first[65536];
    snprintf(first, sizeof first, "%s", fovea("%s", forms[0])->out);
    assert_non_null(strstr(first, "hidden"));
    for (size_t i = 1; i < sizeof forms / sizeof *forms; i++)
        assert_string_equal(fovea("%s", forms[i])->out, first);
}

/* A result that cannot be written is a failure. */
static void test_full_disk(void **state)
{
    (void)state;
    if (access("/dev/full", W_OK)) skip();
    assert_int_equal(sh("$fovea info > /dev/full")->code, 1);
}

/* ---- info ---- */

static void test_info(void **state)
{
    (void)state;
    const result *r = fovea("info --json --threads 3");
    assert_int_equal(r->code, 0);
    json_t *j = parse(r->out);
    assert_string_equal(json_string_value(json_object_get(j, "version")), FV_VERSION);
    json_t *device = json_array_get(json_object_get(j, "devices"), 0);
    assert_int_equal(json_integer_value(json_object_get(device, "threads")), 3);
    assert_true(json_array_size(json_object_get(j, "levels")) >= 1);
    assert_non_null(json_object_get(json_object_get(j, "libraries"), "pcre2"));
    json_decref(j);
    assert_non_null(strstr(fovea("info")->out, "kernels for"));
    assert_int_equal(sh("FOVEA_CPU=abacus $fovea info")->code, 1);
}

/* ---- attend ---- */

static void check_example(const char *text)
{
    json_t *j = parse(text);
    static const double weights[] = {0.2125, 0.2357, 0.2616, 0.2902},
                        output[] = {1.4889, 1.5889, 1.6889};
    for (int i = 0; i < 4; i++)
        assert_true(fabs(AT(json_object_get(j, "weights"), 0, 0, i) - weights[i]) < 5.1e-5);
    for (int i = 0; i < 3; i++)
        assert_true(fabs(AT(json_object_get(j, "output"), 0, i) - output[i]) < 5.1e-5);
    json_decref(j);
}

static void test_worked_example(void **state)
{
    (void)state;
    const result *r = fovea("attend");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "0.2125 0.2357 0.2616 0.2902"));
    assert_non_null(strstr(r->out, "1.4889 1.5889 1.6889"));
    check_example(fovea("attend --json")->out);
    check_example(fovea("attend --demo --json")->out);
    check_example(fovea("attend --q q.csv --k q.csv --v v.csv --json")->out);
}

static void test_causal(void **state)
{
    (void)state;
    json_t *j = parse(fovea("attend --causal --json")->out), *w = json_object_get(j, "weights");
    for (int i = 0; i < 4; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) {
            if (k > i) assert_true(AT(w, 0, i, k) == 0);
            sum += AT(w, 0, i, k);
        }
        assert_true(fabs(sum - 1) < 1e-6);
    }
    assert_true(json_is_null(
        json_array_get(json_array_get(json_array_get(json_object_get(j, "scaled"), 0), 0), 1)));
    /* the first row sees itself only */
    assert_true(fabs(AT(json_object_get(j, "output"), 0, 0) - 1.0) < 1e-6);
    json_decref(j);
    assert_non_null(strstr(fovea("attend --causal")->out, "hidden"));
}

/* Three heads of width one: each has weights of its own. */
static void test_heads(void **state)
{
    (void)state;
    json_t *j = parse(fovea("attend --heads 3 --json")->out), *w = json_object_get(j, "weights");
    assert_int_equal(json_array_size(w), 3);
    for (int h = 0; h < 3; h++) {
        double x[4], sum = 0, q = 0.1 * (h + 1);
        for (int k = 0; k < 4; k++) sum += x[k] = exp(q * (q + 0.3 * k));
        for (int k = 0; k < 4; k++) assert_true(fabs(AT(w, h, 0, k) - x[k] / sum) < 1e-6);
    }
    json_decref(j);
}

static void test_masks(void **state)
{
    (void)state;
    scratch_text("mask.csv", "1,0,1,0\n0,0,0,0\n1,1,1,1\n0,0,0,1\n");
    scratch_text("padding.csv", "1,1,0,0\n");
    scratch_text("added.csv", "0,-inf,0.5,0\n0,0,0,0\n0,0,0,0\n-inf,-inf,-inf,-inf\n");
    json_t *j = parse(fovea("attend --mask mask.csv --json")->out),
           *w = json_object_get(j, "weights");
    assert_true(AT(w, 0, 0, 1) == 0 && AT(w, 0, 0, 3) == 0 && AT(w, 0, 0, 0) > 0);
    for (int k = 0; k < 4; k++) assert_true(AT(w, 0, 1, k) == 0);
    for (int k = 0; k < 3; k++) assert_true(AT(json_object_get(j, "output"), 1, k) == 0);
    assert_true(fabs(AT(w, 0, 3, 3) - 1) < 1e-6);
    json_decref(j);

    j = parse(fovea("attend --mask padding.csv --json")->out), w = json_object_get(j, "weights");
    for (int i = 0; i < 4; i++) assert_true(AT(w, 0, i, 2) == 0 && AT(w, 0, i, 0) > 0);
    json_decref(j);

    j = parse(fovea("attend --mask added.csv --json")->out), w = json_object_get(j, "weights");
    assert_true(AT(w, 0, 0, 1) == 0);
    double scale = 1 / sqrt(3), ratio = exp(scale * (0.50 - 0.14) + 0.5);
    assert_true(fabs(AT(w, 0, 0, 2) / AT(w, 0, 0, 0) - ratio) < 1e-5);
    for (int k = 0; k < 4; k++) assert_true(AT(w, 0, 3, k) == 0);
    json_decref(j);
    assert_non_null(strstr(fovea("attend --mask mask.csv")->out, "hidden"));
}

static void test_bad_input(void **state)
{
    (void)state;
    scratch_text("ragged.csv", "1,2,3\n4,5\n");
    scratch_text("nan.csv", "1,2,nan\n");
    scratch_text("words.csv", "1,two,3\n");
    scratch_text("empty.csv", "");
    scratch_text("narrow.csv", "1,2\n3,4\n5,6\n7,8\n");
    scratch_text("short.csv", "1,2,3\n");
    scratch_text("not.npy", "this is not NumPy");
    scratch_text("not.safetensors", "nor is this safetensors");
    scratch_text("mask.csv", "1,0\n0,1\n");
    scratch_text("nanmask.csv", "1,0,nan,1\n");
    static const struct {
        const char *q, *k, *v, *more, *part;
    } cases[] = {
        {"missing.csv", "q.csv", "v.csv", "", "missing.csv"},
        {"ragged.csv", "q.csv", "v.csv", "", "ragged.csv"},
        {"nan.csv", "q.csv", "v.csv", "", "nan.csv"},
        {"words.csv", "q.csv", "v.csv", "", "words.csv"},
        {"empty.csv", "q.csv", "v.csv", "", "empty.csv"},
        {"not.npy", "q.csv", "v.csv", "", "not.npy"},
        {"not.safetensors:x", "q.csv", "v.csv", "", "not.safetensors"},
        {".", "q.csv", "v.csv", "", ""},
        {"narrow.csv", "q.csv", "v.csv", "", "equally wide"},
        {"q.csv", "q.csv", "short.csv", "", "one value for each key"},
        {"q.csv", "q.csv", "v.csv", "--heads 2", "2 heads do not divide a width of 3"},
        {"q.csv", "q.csv", "v.csv", "--mask mask.csv",
         "mask.csv is 2 by 2, but there are 4 queries and 4 keys"},
        {"q.csv", "q.csv", "v.csv", "--mask nanmask.csv", "nanmask.csv"},
        {"q.csv", "q.csv", "v.csv", "--mask missing.csv", "missing.csv"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        told(fovea("attend --q %s --k %s --v %s %s", cases[i].q, cases[i].k, cases[i].v,
                   cases[i].more),
             1, "fovea attend: ", cases[i].part);
}

static void test_other_formats(void **state)
{
    (void)state;
    fv_array a;
    fv_err e;
    assert_int_equal(fv_array_open(&a, NULL, scratch("v.csv"), (fv_array_opt){0}, &e), FV_OK);
    assert_int_equal(fv_array_save(&a, NULL, scratch("v.npy"), &e), FV_OK);

    static const char header[] =
        "{\"v\":{\"dtype\":\"F32\",\"shape\":[4,3],\"data_offsets\":[0,48]}}     ";
    char file[256];
    uint64_t n = sizeof header - 1;
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, a.data, 48);
    scratch_put("x.safetensors", file, 8 + n + 48);
    fv_array_close(&a);

    check_example(fovea("attend --q q.csv --k q.csv --v v.npy --json")->out);
    check_example(fovea("attend --q q.csv --k q.csv --v x.safetensors:v --json")->out);
    told(fovea("attend --q q.csv --k q.csv --v x.safetensors:w"), 1, "fovea attend: ", "w");
}

/* Nothing is left behind, neither after a result nor after a failure. */
static void test_leaks(void **state)
{
    (void)state;
    succeeded(sh("ASAN_OPTIONS= $fovea attend --q q.csv --k q.csv --v v.csv --heads 3 --json"));
    told(sh("ASAN_OPTIONS= $fovea attend --q q.csv --k q.csv --v v.csv --heads 2"), 1,
         "fovea attend: ", "do not divide");
    succeeded(sh("ASAN_OPTIONS= $fovea bench attention --len 9 --backward --seconds 0 --json"));
}

/* ---- bench ---- */

static void test_bench(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "gemm --m 33 --n 20 --k 17",
        "gemm --m 5 --n 64 --k 64 --packed --nn",
        "attention --batch 1 --heads 2 --len 20 --width 8 --causal",
        "attention --batch 1 --heads 2 --kv-heads 1 --len 20 --keys 30 --width 8 --backward",
        "attention --batch 1 --heads 2 --len 20 --width 8 --value-width 16 --mask --key-mask "
        "--backward",
        "attention --batch 1 --heads 2 --len 20 --width 8 --causal --window 5 --distances "
        "--bias-gradient --backward",
        "attention --batch 1 --heads 2 --len 20 --width 8 --dtype bf16 --weights bf16",
        "attention --batch 1 --heads 2 --len 20 --width 8 --dtype f16 --weights f32",
        "softmax --rows 9 --cols 30",
        "layernorm --rows 9 --cols 30 --backward",
        "rmsnorm --rows 9 --cols 30 --dtype bf16",
        "gelu --rows 9 --cols 30 --backward",
        "cross-entropy --rows 9 --cols 30 --backward",
        "adamw --rows 9 --cols 30",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const result *r = fovea("bench %s --seconds 0.001 --threads 2 --json", lines[i]);
        if (r->code) print_error("%s: %s", lines[i], r->err);
        assert_int_equal(r->code, 0);
        json_t *j = parse(r->out);
        const char *name = json_string_value(json_object_get(j, "name"));
        assert_int_equal(strncmp(name, lines[i], strlen(name)), 0);
        assert_int_equal(json_integer_value(json_object_get(j, "threads")), 2);
        assert_true(json_number_value(json_object_get(j, "median_s")) > 0);
        assert_true(json_number_value(json_object_get(j, "spread_s")) >= 0);
        assert_true(json_integer_value(json_object_get(j, "peak_bytes")) > 0);
        assert_true(json_object_get(j, "gflops") || json_object_get(j, "gb_per_s"));
        json_decref(j);
    }
    told(fovea("bench attention --len 20 --weights bf16"), 2,
         "fovea bench attention: ", "expected f32, as --dtype is");
    told(fovea("bench attention --heads 4 --kv-heads 3"), 2,
         "fovea bench attention: ", "a divisor of --heads 4");
    told(fovea("bench attention --window 9 --len 20 --keys 10"), 2,
         "fovea bench attention: ", "--window needs at least as many");
    told(fovea("bench attention --backward --bias-gradient"), 2,
         "fovea bench attention: ", "--bias or --distances");
    const result *r = fovea("bench gelu --rows 9 --cols 30 --seconds 0");
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "gelu rows=9 cols=30 dtype=f32"));
}

/* Ten updates here and on the CPU in f32: the same numbers where that is where it runs, and they
 * fall. */
static void test_bench_compare(void **state)
{
    (void)state;
    scratch_text(
        "config.json",
        "{\"model_type\":\"gpt2\",\"vocab_size\":50,\"n_positions\":16,\"n_embd\":16,\"n_layer\":1,"
        "\"n_head\":2,\"embd_pdrop\":0,\"resid_pdrop\":0,\"attn_pdrop\":0}");
    const char *ask =
        "bench train --config config.json --batch 2 --len 8 --seconds 0.001 --compare --json";
    const result *r = succeeded(fovea("%s", ask));
    double first = 0, last = 0;
    for (int i = 1; i <= 10; i++) {
        json_t *j = json_line(r, i);
        assert_int_equal(json_integer_value(json_object_get(j, "update")), i);
        last = json_number_value(json_object_get(j, "loss"));
        assert_true(json_number_value(json_object_get(j, "cpu_loss")) == last);
        if (i == 1) first = last;
        json_decref(j);
    }
    assert_true(last < first);
    json_t *j = json_line(succeeded(fovea("%s --dtype bf16", ask)), 10);
    double off = json_number_value(json_object_get(j, "off"));
    assert_true(off > 0 && off < 1e-2);
    json_decref(j);
}

/* ---- what is made from the tables ---- */

static void test_manual_and_completion(void **state)
{
    (void)state;
    const result *r = fovea("help --man bench");
    assert_int_equal(strncmp(r->out, ".TH FOVEA-BENCH 1 ", 18), 0);
    assert_non_null(strstr(r->out, ".SS fovea bench gemm"));
    assert_non_null(strstr(fovea("help --man attend")->out, "\\fB\\-\\-causal\\fR"));
    assert_non_null(
        strstr(fovea("help --completion bash")->out, "complete -o filenames -F _fovea fovea"));
    assert_non_null(strstr(fovea("help --completion zsh")->out, "#compdef fovea"));
    assert_non_null(strstr(fovea("help --completion fish")->out, "-l causal"));
}

/* A letter stands for one option, whatever the command: -o is where results go. */
static void test_letters(void **state)
{
    (void)state;
    char names[256][32] = {{0}};
    char *text = strdup(succeeded(fovea("help --completion fish"))->out), *save = NULL;
    assert_non_null(text);
    int found = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char name[32], letter;
        const char *at = strstr(line, "' -l ");
        if (!at || sscanf(at, "' -l %31s -s %c", name, &letter) != 2) continue;
        char *known = names[(unsigned char)letter];
        if (!known[0]) snprintf(known, 32, "%s", name);
        if (letter != 'o' && strcmp(known, name))
            fail_msg("-%c is --%s and --%s", letter, known, name);
        found++;
    }
    free(text);
    assert_true(found > 20);
}

/* More threads than there are cores are not started, so any number fits into little memory; one
 * that cannot be started is an error like any other. */
static void test_too_many_threads(void **state)
{
    (void)state;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    skip(); /* a sanitizer maps terabytes */
#endif
    succeeded(sh("ulimit -v 2000000; exec $fovea info --threads 1024"));
}

/* The libraries that draw are loaded for pictures only. */
static void test_pictures_are_loaded_late(void **state)
{
    (void)state;
    assert_int_not_equal(sh("ldd \"$fovea\" | grep -E 'cairo|pango|glib'")->code, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version_and_help),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_usage),
        cmocka_unit_test(test_option_forms),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_other_formats),
        cmocka_unit_test(test_bench),
        cmocka_unit_test(test_bench_compare),
        cmocka_unit_test(test_manual_and_completion),
        cmocka_unit_test(test_letters),
        cmocka_unit_test(test_leaks),
        cmocka_unit_test(test_too_many_threads),
        cmocka_unit_test(test_pictures_are_loaded_late),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
