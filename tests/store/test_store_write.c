/* test_store_write.c - safetensors files out: the reference's bytes, shards, and parameters there
 * and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/store.h"
#include "helper/memfs.h"
#include "helper/failing.h"

#define GOLDEN FOVEA_TESTS "/golden/store/"

static fv_dtype dtype_named(const char *name)
{
    static const struct {
        const char *name;
        fv_dtype t;
    } all[] = {{"f32", FV_F32}, {"f64", FV_F64}, {"bf16", FV_BF16},
               {"f16", FV_F16}, {"i32", FV_I32}, {"u8", FV_U8}};
    for (size_t i = 0; i < 6; i++)
        if (!strcmp(all[i].name, name)) return all[i].t;
    fail_msg("%s", name);
    return FV_F32;
}

static void bytes_are_the_references(void **state)
{
    (void)state;
    fv_st *s;
    fv_st_item items[16];
    memfs fs;
    size_t n, m;
    assert_int_equal(fv_st_open(&s, NULL, GOLDEN "written.safetensors", NULL), FV_OK);
    int count = fv_st_count(s);
    assert_int_equal(count, 8);
    for (int i = 0; i < count; i++) {
        fv_st_info t = fv_st_at(s, count - 1 - i);
        fv_dtype dtype = dtype_named(t.dtype_name);
        items[i] = (fv_st_item){
            .name = t.name, .dtype = dtype, .shape = t.shape, .from = dtype, .data = t.data};
    }
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    fv_err e = {0};
    if (fv_st_save(&env, "x.safetensors", items, count, (fv_st_save_opt){0}, &e))
        fail_msg("%s", e.text);
    FILE *f = fopen(GOLDEN "written.safetensors", "rb");
    char want[4096];
    n = fread(want, 1, sizeof want, f);
    fclose(f);
    const char *got = memfs_get(&fs, "x.safetensors", &m);
    assert_int_equal(m, n);
    assert_memory_equal(got, want, n);
    memfs_free(&fs);
    fv_st_close(s);
}

static fv_status give(void *user, const fv_st_item *item, int64_t at, int64_t n, void *out,
                      fv_err *e)
{
    (void)item;
    int *calls = user;
    if (++*calls > 100) return fv_fail(e, FV_EIO, "too often");
    for (int64_t i = 0; i < n; i++) ((float *)out)[i] = (float)(at + i);
    return FV_OK;
}

static void long_arrays_come_in_pieces(void **state)
{
    (void)state;
    memfs fs;
    fv_st *s;
    fv_st_info t;
    int calls = 0;
    fv_mem_counter mem;
    fv_mem_counter_init(&mem);
    memfs_init(&fs);
    fv_env env = {.io = &fs.io, .mem = &mem.mem};
    int64_t n = 300000;
    fv_st_item item = {.name = "long", .dtype = FV_F64, .shape = FV_SHAPE(n), .from = FV_F32};
    assert_int_equal(fv_st_save(&env, "x.safetensors", &item, 1,
                                (fv_st_save_opt){.fetch = give, .user = &calls}, NULL),
                     FV_OK);
    assert_true(calls > 2);
    assert_true(mem.peak < (size_t)n * 4);
    assert_int_equal(fv_st_open(&s, &env, "x.safetensors", NULL), FV_OK);
    assert_int_equal(fv_st_find(s, "long", &t, NULL), FV_OK);
    double *x = malloc((size_t)n * sizeof *x);
    assert_int_equal(fv_st_read(s, &t, x, FV_F64, n, NULL), FV_OK);
    for (int64_t i = 0; i < n; i++) assert_true(x[i] == (double)i);
    free(x);
    fv_st_close(s);
    item.dtype = FV_F16;
    fv_err e;
    assert_int_equal(fv_st_save(&env, "y.safetensors", &item, 1,
                                (fv_st_save_opt){.fetch = give, .user = &calls}, &e),
                     FV_ENUMERIC);
    assert_string_equal(e.text, "long: the f32 at (65520) cannot be held in f16");
    assert_false(memfs_has(&fs, "y.safetensors") || memfs_has(&fs, "y.safetensors.tmp"));
    assert_int_equal(mem.live, 0);
    memfs_free(&fs);
}

static void shards_replace_the_single_file(void **state)
{
    (void)state;
    memfs fs;
    fv_st *s;
    fv_st_info t;
    memfs_init(&fs);
    memfs_put(&fs, "m/config.json", "{}", 2);
    fv_env env = {.io = &fs.io};
    float x[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    fv_st_item items[] = {{.name = "c", .shape = FV_SHAPE(4), .data = x},
                          {.name = "a", .shape = FV_SHAPE(2), .data = x + 1},
                          {.name = "b", .shape = FV_SHAPE(2), .data = x + 2}};
    assert_int_equal(fv_st_save(&env, "m/model.safetensors", items, 3, (fv_st_save_opt){0}, NULL),
                     FV_OK);
    assert_int_equal(fv_st_save(&env, "m/model.safetensors", items, 3,
                                (fv_st_save_opt){.shard_bytes = 16}, NULL),
                     FV_OK);
    assert_false(memfs_has(&fs, "m/model.safetensors"));
    assert_true(memfs_has(&fs, "m/model-00001-of-00002.safetensors"));
    assert_true(memfs_has(&fs, "m/model-00002-of-00002.safetensors"));
    fv_err e = {0};
    if (fv_st_open(&s, &env, "m", &e)) fail_msg("%s", e.text);
    assert_int_equal(fv_st_count(s), 3);
    fv_st_find(s, "b", &t, NULL);
    assert_memory_equal(t.data, x + 2, 8);
    fv_st_close(s);
    assert_int_equal(fv_st_save(&env, "m/model.safetensors", items, 3,
                                (fv_st_save_opt){.shard_bytes = 1000}, NULL),
                     FV_OK);
    assert_true(memfs_has(&fs, "m/model.safetensors"));
    assert_false(memfs_has(&fs, "m/model.safetensors.index.json"));
    memfs_free(&fs);
}

static void impossible_items_are_refused(void **state)
{
    (void)state;
    memfs fs;
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    float x = 0;
    fv_st_item twice[] = {{.name = "a", .data = &x}, {.name = "a", .data = &x}};
    fv_st_item meta = {.name = "__metadata__", .data = &x},
               packed = {.name = "a", .dtype = FV_Q8, .data = &x};
    fv_st_item broken = {.name = "\xFF", .data = &x},
               shape = {.name = "a", .shape = {2, {INT64_MAX, 4}}, .data = &x};
    fv_err e;
    assert_int_equal(fv_st_save(&env, "x.safetensors", twice, 2, (fv_st_save_opt){0}, &e), FV_EARG);
    assert_int_equal(fv_st_save(&env, "x.safetensors", &meta, 1, (fv_st_save_opt){0}, &e), FV_EARG);
    assert_int_equal(fv_st_save(&env, "x.safetensors", &packed, 1, (fv_st_save_opt){0}, &e),
                     FV_EDTYPE);
    assert_int_equal(fv_st_save(&env, "x.safetensors", &broken, 1, (fv_st_save_opt){0}, &e),
                     FV_EARG);
    assert_int_equal(fv_st_save(&env, "x.safetensors", &shape, 1, (fv_st_save_opt){0}, &e),
                     FV_ESHAPE);
    assert_int_equal(fv_st_save(&env, "x.safetensors", &(fv_st_item){.name = "a"}, 1,
                                (fv_st_save_opt){0}, &e),
                     FV_EARG);
    assert_int_equal(fv_st_save(&env, "x.bin", &meta, 1, (fv_st_save_opt){0}, &e), FV_EARG);
    assert_false(memfs_has(&fs, "x.safetensors"));
    assert_int_equal(fv_st_save(&env, "x.safetensors", NULL, 0, (fv_st_save_opt){0}, &e), FV_OK);
    memfs_free(&fs);
}

static void put_old(memfs *fs, void *arg)
{
    (void)arg;
    memfs_put(fs, "m/model.safetensors", "old", 3);
}

/* The old file stays until the new ones are whole. */
static fv_status save_shards(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)arg;
    float x[4] = {1, 2, 3, 4};
    fv_st_item items[] = {{.name = "a", .shape = FV_SHAPE(2), .data = x, .dtype = FV_BF16},
                          {.name = "b", .shape = FV_SHAPE(4), .data = x}};
    fv_status st = fv_st_save(env, "m/model.safetensors", items, 2,
                              (fv_st_save_opt){.shard_bytes = 8}, e);
    if (st) assert_true(memfs_has(fs, "m/model.safetensors"));
    return st;
}

static void every_failure_is_reported(void **state)
{
    (void)state;
    fail_in_turn(put_old, save_shards, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_the_references),
        cmocka_unit_test(long_arrays_come_in_pieces),
        cmocka_unit_test(shards_replace_the_single_file),
        cmocka_unit_test(impossible_items_are_refused),
        cmocka_unit_test(every_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
