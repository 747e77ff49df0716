/* test_keys.c - keys of config.json that change numbers: each is read as transformers reads it, or
 * refused.
 *
 * golden/configs/keys.jsonl, made by tools/golden/keys.py, has a line for each of a few models of
 * every family: keys of its configuration class, one at a time with another value, and what
 * transformers then computes.  A key that is ignored here although it counts there shows as numbers
 * that did not change. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "fovea/author/family.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"

#define MODELS FOVEA_TESTS "/golden/models"

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

/* A directory with the case's weights, and its configuration with the key changed. */
static void put_model(const char *name, const char *key, json_t *value)
{
    char path[600];
    snprintf(path, sizeof path, MODELS "/%s/config.json", name);
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    if (key) json_object_set(config, key, value); /* else as it is */
    char *text = json_dumps(config, 0);
    scratch_text("config.json", text);
    free(text);
    json_decref(config);
}

static fv_status run(const char *name, fv_st **out, fv_err *e)
{
    char in[600];
    fv_model *m;
    fv_status st = fv_model_open(&m, device, scratch("."), (fv_model_opt){0}, e);
    if (st) return st;
    snprintf(in, sizeof in, MODELS "/%s/in.safetensors", name);
    st = fv_model_run(m, device, in, scratch("out.safetensors"), (fv_run_opt){.threads = 1}, e);
    fv_model_free(m);
    return st ? st : fv_st_open(out, NULL, scratch("out.safetensors"), e);
}

/* Five numbers of an output, from its first to its last. */
static void sample(double out[5], const fv_st *s, const char *output, const char *which)
{
    fv_st_info t;
    fv_err e;
    if (fv_st_find(s, output, &t, &e)) fail_msg("%s: %s", which, e.text);
    float *x = malloc((size_t)t.count * sizeof *x + 1);
    if (fv_st_read(s, &t, x, FV_F32, t.count, &e)) fail_msg("%s: %s", which, e.text);
    for (int i = 0; i < 5; i++) out[i] = (double)x[i * (t.count - 1) / 4];
    free(x);
}

/* The numbers with this key; false: the model is refused. */
static bool computed(double out[5], const char *name, const char *output, const char *key,
                     json_t *value)
{
    fv_err e;
    fv_st *s;
    put_model(name, key, value);
    if (run(name, &s, &e)) return false;
    sample(out, s, output, key);
    fv_st_close(s);
    return true;
}

static void compare(const double *got, const double *want, const char *name, const char *key)
{
    for (int i = 0; i < 5; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-4 * fmax(1, fabs(want[i])) + 1e-4))
            fail_msg("%s with another %s: %g, expected %g", name, key, got[i], want[i]);
}

static void check_case(const json_t *line)
{
    const char *name = json_string_value(json_object_get(line, "case"));
    const char *output = json_string_value(json_object_get(line, "output"));
    double plain[5], got[5], want[5];
    size_t i, j;
    json_t *entry, *number;
    char path[600];
    snprintf(path, sizeof path, MODELS "/%s/model.safetensors", name);
    unlink(scratch("model.safetensors"));
    assert_int_equal(symlink(path, scratch("model.safetensors")), 0);
    fv_err e;
    fv_st *s;
    put_model(name, NULL, NULL);
    if (run(name, &s, &e)) fail_msg("%s: %s", name, e.text);
    sample(plain, s, output, name);
    fv_st_close(s);
    json_array_foreach(json_object_get(line, "same"), i, entry)
    {
        const char *key = json_string_value(json_array_get(entry, 0));
        if (!computed(got, name, output, key, json_array_get(entry, 1)))
            fail_msg("%s: %s is refused and was not", name, key);
        compare(got, plain, name, key);
    }
    json_array_foreach(json_object_get(line, "refused"), i, entry)
    {
        const char *key = json_string_value(json_array_get(entry, 0));
        if (computed(got, name, output, key, json_array_get(entry, 1)))
            fail_msg("%s: %s changes what transformers computes, and is accepted", name, key);
    }
    json_array_foreach(json_object_get(line, "changed"), i, entry)
    {
        const char *key = json_string_value(json_array_get(entry, 0));
        if (!computed(got, name, output, key, json_array_get(entry, 1)))
            fail_msg("%s: %s is refused and was not", name, key);
        json_array_foreach(json_array_get(entry, 2), j, number) want[j] = json_number_value(number);
        compare(got, want, name, key);
    }
}

static void keys_count_as_in_transformers(void **state)
{
    (void)state;
    FILE *f = fopen(FOVEA_TESTS "/golden/configs/keys.jsonl", "r");
    char *line = NULL;
    size_t capacity = 0;
    int n = 0;
    assert_non_null(f);
    while (getline(&line, &capacity, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        if (!test_brief() || n % 4 == 0) check_case(o);
        json_decref(o);
        n++;
    }
    free(line);
    fclose(f);
    assert_true(n > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(keys_count_as_in_transformers)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
