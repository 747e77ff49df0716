/* test_see_cli.c - fovea demo and fovea see from outside: what they write, and what they say when called wrongly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static char folder[] = "/tmp/fovea-seecli-XXXXXX";

typedef struct result {
    int code;
    char out[16384], err[4096];
} result;

static size_t read_text(char *to, size_t size, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) print_error("%s is not there\n", path);
    assert_non_null(f);
    size_t n = fread(to, 1, size - 1, f);
    to[n] = 0;
    fclose(f);
    return n;
}

static const result *fovea(const char *fmt, ...)
{
    static result r; /* one at a time */
    char arguments[1024], line[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(arguments, sizeof arguments, fmt, ap);
    va_end(ap);
    snprintf(line, sizeof line, "cd %s && ASAN_OPTIONS=detect_leaks=0 exec '%s' %s > out 2> err < /dev/null", folder,
             FOVEA_PROGRAM, arguments);
    int status = system(line);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_text(r.out, sizeof r.out, "out");
    read_text(r.err, sizeof r.err, "err");
    return &r;
}

static bool exists(const char *name)
{
    char path[256];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return !stat(path, &st) && st.st_size > 0;
}

/* A model that has learnt next to nothing is enough to be looked at. */
static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    const result *r = fovea("demo --quiet --updates 3 --sentences 300 --tests 5 --threads 1 -o demo");
    if (r->code) print_error("%s\n", r->err);
    return r->code;
}

static int tear_down(void **state)
{
    (void)state;
    char line[64];
    snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line);
}

static void the_demo_leaves_a_model_and_its_pictures(void **state)
{
    (void)state;
    static const char *const names[] = {"demo/model/config.json", "demo/model/model.safetensors", "demo/model/tokenizer.json",
                                        "demo/model/generation_config.json", "demo/attention.html"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_true(exists(names[i]));
#ifdef HAVE_CAIRO
    assert_true(exists("demo/alignment.svg") && exists("demo/alignment.png") && exists("demo/heads.svg"));
#endif
}

static void the_demo_is_the_same_for_a_seed(void **state)
{
    (void)state;
    static char one[1 << 23], two[1 << 23];
    assert_int_equal(fovea("demo --quiet --updates 3 --sentences 300 --tests 5 --threads 2 -o again")->code, 0);
    size_t n = read_text(one, sizeof one, "demo/model/model.safetensors");
    assert_true(n > 100000 && n < sizeof one - 1);
    assert_int_equal(read_text(two, sizeof two, "again/model/model.safetensors"), n);
    assert_memory_equal(one, two, n);
    assert_int_equal(fovea("demo --quiet --updates 3 --sentences 300 --tests 5 --seed 2 -o other")->code, 0);
    read_text(two, sizeof two, "other/model/model.safetensors");
    assert_true(memcmp(one, two, n) != 0);
}

static void every_format_is_written(void **state)
{
    (void)state;
    static const struct {
        const char *name, *begins;
    } files[] = {{"a.html", "<!DOCTYPE html>"},
                 {"a.json", "{\"attentions\""},
                 {"a.csv", "kind,layer,head"},
#ifdef HAVE_CAIRO
                 {"a.svg", "<?xml"},
                 {"a.pdf", "%PDF-"},
                 {"a.png", "\x89PNG"}
#endif
    };
    char text[64];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const result *r = fovea("see -m demo/model --source 'I like to eat apples.' --target \"J'aime manger des pommes.\" -o %s",
                                files[i].name);
        if (r->code) print_error("%s\n", r->err);
        assert_int_equal(r->code, 0);
        assert_string_equal(r->out, "");
        read_text(text, sizeof text, files[i].name);
        assert_int_equal(strncmp(text, files[i].begins, strlen(files[i].begins)), 0);
    }
    const result *r = fovea("see -m demo/model --source 'I like to eat apples.' -o b.csv");
    assert_int_equal(r->code, 0);
    assert_true(strlen(r->out) > 1 && strchr(r->out, '\n') == r->out + strlen(r->out) - 1); /* the translation it made */
}

static void rows_layers_and_heads_narrow_what_is_written(void **state)
{
    (void)state;
    static char text[1 << 16];
    const char *given = "see -m demo/model --source 'I like apples.' --target \"J'aime les pommes.\"";
    assert_int_equal(fovea("%s --kind decoder --layer 1 --head 3 --rows 2:4 -o c.json", given)->code, 0);
    size_t n = read_text(text, sizeof text, "c.json");
    json_error_t je;
    json_t *j = json_loadb(text, n, 0, &je), *map = json_array_get(json_object_get(j, "attentions"), 0);
    assert_non_null(map);
    assert_int_equal(json_array_size(json_object_get(j, "attentions")), 1);
    assert_string_equal(json_string_value(json_object_get(map, "kind")), "decoder");
    assert_int_equal(json_integer_value(json_object_get(map, "first_row")), 2);
    assert_int_equal(json_array_size(json_object_get(map, "rows")), 2);
    json_t *layer = json_array_get(json_object_get(map, "layers"), 0), *head = json_array_get(json_object_get(layer, "heads"), 0);
    assert_int_equal(json_integer_value(json_object_get(layer, "layer")), 1);
    assert_int_equal(json_integer_value(json_object_get(head, "head")), 3);
    assert_int_equal(json_array_size(json_object_get(layer, "heads")), 1);
    assert_int_equal(json_array_size(json_object_get(head, "weights")), 2);
    json_decref(j);
}

static void heads_are_weighed(void **state)
{
    (void)state;
    const char *given = "see -m demo/model --source 'I like apples.' --target \"J'aime les pommes.\" --ablate";
    const result *r = fovea("%s --json", given);
    json_error_t je;
    json_t *j = json_loads(r->out, 0, &je);
    assert_int_equal(r->code, 0);
    assert_true(json_real_value(json_object_get(j, "loss")) > 0);
    assert_int_equal(json_array_size(json_object_get(j, "heads")), 3 * 2 * 4);
    json_decref(j);
    r = fovea("%s --kind cross", given);
    assert_int_equal(r->code, 0);
    assert_non_null(strstr(r->out, "cross    layer 1"));
    assert_null(strstr(r->out, "encoder"));
}

static void wrong_calls_are_explained(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *says;
        int code;
    } cases[] = {
        {"see --source x -o x.csv", "--model is missing", 2},
        {"see -m demo/model --source x", "--output is missing", 2},
        {"see -m demo/model -o x.csv", "--source", 2},
        {"see -m demo/model --source x --json -o x.csv", "--json goes with --ablate", 2},
        {"see -m demo/model --text x --target y -o x.csv", "--target goes with --source", 2},
        {"see -m demo/model --text x -o x.csv", "give --source", 1},
        {"see -m demo/model --source '' -o x.csv", "empty", 1},
        {"see -m demo/model --source x -l 2 -o x.csv", "layers 0 to 1", 1},
        {"see -m demo/model --source x -n 4 -o x.csv", "heads 0 to 3", 1},
        {"see -m demo/model --source x -r -n 1 -o x.csv", "rollout", 1},
        {"see -m demo/model --source x --rows 4:2 -o x.csv", "A:B", 1},
        {"see -m demo/model --source x --rows 0:9999 -o x.csv", "rows 0 to 9998", 1},
        {"see -m demo/model --source x -o x.gif", ".svg, .png, .pdf, .html, .json or .csv", 1},
        {"see -m demo/model --source x -o no/such/place.csv", "no/such/place.csv", 1},
        {"see -m nowhere --source x -o x.csv", "nowhere", 1},
        {"see -m demo/model --source x --kind crossed -o x.csv", "crossed", 2},
        {"see -m demo/model --source \"$(yes apple | head -n 99 | tr '\\n' ' ')\" -o x.csv", "at most 64", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const result *r = fovea("%s", cases[i].arguments);
        if (r->code != cases[i].code || !strstr(r->err, cases[i].says))
            print_error("%s: %d, %s\n", cases[i].arguments, r->code, r->err);
        assert_int_equal(r->code, cases[i].code);
        assert_non_null(strstr(r->err, cases[i].says));
        assert_string_equal(r->out, "");
    }
    assert_false(exists("x.csv") || exists("x.csv.tmp"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_demo_leaves_a_model_and_its_pictures),
        cmocka_unit_test(the_demo_is_the_same_for_a_seed),
        cmocka_unit_test(every_format_is_written),
        cmocka_unit_test(rows_layers_and_heads_narrow_what_is_written),
        cmocka_unit_test(heads_are_weighed),
        cmocka_unit_test(wrong_calls_are_explained),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
