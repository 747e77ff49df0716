/* test_store_params.c - parameters loaded from files and saved into them. */
#include <setjmp.h>
#include <stddef.h>
#include <stdarg.h>

#include <cmocka.h>

#include "helper/device.h"
#include "fovea/store.h"
#include "fovea/author/checkpoint.h"
#include "helper/memfs.h"
#include "helper/failing.h"

/* emb (3,2), head (2), with random values. */
static fv_params *make(fv_dtype dtype, uint64_t seed)
{
    fv_params *p;
    fv_err e = {0};
    assert_int_equal(fv_params_new(&p, NULL, NULL), FV_OK);
    fv_param(p, (fv_init){FV_INIT_NORMAL, 1, false}, FV_SHAPE(3, 2), "enc.emb");
    fv_param(p, (fv_init){FV_INIT_NORMAL, 1, false}, FV_SHAPE(2), "head");
    if (fv_params_alloc(p, device, dtype, false, &e) || fv_params_randomize(p, seed, &e))
        fail_msg("%s", e.text);
    return p;
}

static void values(fv_params *p, const char *name, float *x, int64_t n)
{
    assert_int_equal(fv_params_get(p, fv_params_find(p, name), x, n, NULL), FV_OK);
}

static void there_and_back_is_bit_equal(void **state)
{
    (void)state;
    static const fv_dtype dtypes[] = {FV_F32, FV_BF16, FV_F16, FV_F64};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) {
            memfs fs;
            memfs_init(&fs);
            fv_env env = {.io = &fs.io};
            fv_params *a = make(dtypes[i], 1), *b = make(dtypes[i], 2);
            float x[6], y[6];
            fv_err e = {0};
            fv_dtype stored = k ? dtypes[i] : FV_F32;
            if (fv_params_save(a, &env, "m.safetensors", stored, 0, &e)) fail_msg("%s", e.text);
            if (fv_params_load(b, &env, "m.safetensors", (fv_load_opt){0}, &e))
                fail_msg("%s", e.text);
            values(a, "enc.emb", x, 6);
            values(b, "enc.emb", y, 6);
            assert_memory_equal(x, y, sizeof x);
            values(a, "head", x, 2);
            values(b, "head", y, 2);
            assert_memory_equal(x, y, 2 * sizeof *x);
            fv_params_free(a);
            fv_params_free(b);
            memfs_free(&fs);
        }
}

static fv_status load(fv_params *p, const fv_st_item *items, int n, fv_load_opt opt, fv_err *e)
{
    memfs fs;
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    assert_int_equal(fv_st_save(&env, "m.safetensors", items, n, (fv_st_save_opt){0}, NULL), FV_OK);
    fv_status st = fv_params_load(p, &env, "m.safetensors", opt, e);
    memfs_free(&fs);
    return st;
}

static void what_does_not_fit_is_listed(void **state)
{
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, before[6], after[6];
    fv_params *p = make(FV_F32, 1);
    fv_err e = {0};
    fv_st_item items[] = {{.name = "enc.emb", .shape = FV_SHAPE(2, 3), .data = x},
                          {.name = "a", .data = x},
                          {.name = "b", .data = x},
                          {.name = "c", .data = x},
                          {.name = "d", .data = x}};
    values(p, "enc.emb", before, 6);
    assert_int_equal(load(p, items, 5, (fv_load_opt){0}, &e), FV_ESHAPE);
    assert_string_equal(e.text, "m.safetensors: missing: head; of another shape: enc.emb is (2,3), "
                                "expected (3,2); unexpected: a, b, c and 1 more");
    values(p, "enc.emb", after, 6);
    assert_memory_equal(before, after, sizeof before);
    items[0].shape = FV_SHAPE(3, 2);
    static const char *const ignore[] = {"a", "*b", "c*", "*d*", NULL}, *const fresh[] = {"he*",
                                                                                          NULL};
    assert_int_equal(load(p, items, 5, (fv_load_opt){.fresh = fresh}, &e), FV_EFORMAT);
    assert_int_equal(load(p, items, 5, (fv_load_opt){.ignore = ignore, .fresh = fresh}, &e), FV_OK);
    values(p, "enc.emb", after, 6);
    assert_memory_equal(x, after, sizeof after);
    fv_params_free(p);
}

static void prefixes_and_ties(void **state)
{
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[6];
    fv_params *p = make(FV_F32, 1);
    fv_err e = {0};
    fv_st_item items[] = {{.name = "emb", .shape = FV_SHAPE(3, 2), .data = x},
                          {.name = "enc.head", .shape = FV_SHAPE(2), .data = x + 6}};
    if (load(p, items, 2, (fv_load_opt){.prefix = "enc."}, &e)) fail_msg("%s", e.text);
    values(p, "head", y, 2);
    assert_true(y[0] == 7 && y[1] == 8);
    static const fv_tie missing[] = {{"head", "tail"}, {0}}, surplus[] = {{"copy", "head"}, {0}};
    fv_st_item tied[] = {{.name = "enc.emb", .shape = FV_SHAPE(3, 2), .data = x},
                         {.name = "tail", .shape = FV_SHAPE(2), .data = x}};
    if (load(p, tied, 2, (fv_load_opt){.ties = missing}, &e)) fail_msg("%s", e.text);
    values(p, "head", y, 2);
    assert_true(y[0] == 1 && y[1] == 2);
    fv_st_item more[] = {{.name = "enc.emb", .shape = FV_SHAPE(3, 2), .data = x},
                         {.name = "head", .shape = FV_SHAPE(2), .data = x},
                         {.name = "copy", .shape = FV_SHAPE(2), .data = x}};
    if (load(p, more, 3, (fv_load_opt){.ties = surplus}, &e)) fail_msg("%s", e.text);
    more[2].data = x + 1;
    assert_int_equal(load(p, more, 3, (fv_load_opt){.ties = surplus}, &e), FV_EFORMAT);
    assert_string_equal(e.text, "m.safetensors: unexpected: copy");
    fv_params_free(p);
}

/* From a file in bf16 into f32 parameters, and a value that f16 cannot hold. */
static void dtypes_are_converted(void **state)
{
    (void)state;
    float x[8] = {1, -2, 3.140625f, 0, 5, 6, 7, 70000}, y[6];
    fv_st_item items[] = {{.name = "enc.emb", .shape = FV_SHAPE(3, 2), .data = x, .dtype = FV_BF16},
                          {.name = "head", .shape = FV_SHAPE(2), .data = x + 6, .dtype = FV_F64}};
    fv_params *p = make(FV_F32, 1);
    fv_err e = {0};
    if (load(p, items, 2, (fv_load_opt){0}, &e)) fail_msg("%s", e.text);
    values(p, "enc.emb", y, 6);
    assert_memory_equal(x, y, sizeof y);
    fv_params_free(p);
    p = make(FV_F16, 1);
    assert_int_equal(load(p, items, 2, (fv_load_opt){0}, &e), FV_ENUMERIC);
    assert_string_equal(e.text,
                        "m.safetensors: tensor \"head\": the f64 at (1) cannot be held in f16");
    fv_params_free(p);
}

static fv_status save_and_load(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)fs, (void)arg;
    fv_params *p = make(FV_BF16, 1);
    fv_status st = fv_params_save(p, env, "m.safetensors", FV_F32, 0, e);
    if (!st) st = fv_params_load(p, env, "m.safetensors", (fv_load_opt){0}, e);
    fv_params_free(p);
    return st;
}

static void every_failure_is_reported(void **state)
{
    (void)state;
    fail_in_turn(NULL, save_and_load, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back_is_bit_equal),
        cmocka_unit_test(what_does_not_fit_is_listed),
        cmocka_unit_test(prefixes_and_ties),
        cmocka_unit_test(dtypes_are_converted),
        cmocka_unit_test(every_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
