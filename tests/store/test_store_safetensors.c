/* test_store_safetensors.c - the safetensors reader: torch's own files, every rule of the format,
 * and broken files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/store.h"
#include "fovea/author/checkpoint.h"
#include "helper/memfs.h"
#include "helper/failing.h"

#define GOLDEN FOVEA_TESTS "/golden/store/"

/* A file of this header and that many zero bytes of data; returns its size. */
static size_t build(char *file, const char *header, size_t data)
{
    uint64_t n = strlen(header);
    memcpy(file, &n, 8);
    memcpy(file + 8, header, n);
    memset(file + 8 + n, 0, data);
    return 8 + n + data;
}

static fv_status try(const void *file, size_t n, fv_err *e)
{
    memfs fs;
    fv_st *s;
    fv_mem_counter mem;
    fv_mem_counter_init(&mem);
    memfs_init(&fs);
    memfs_put(&fs, "x.safetensors", file, n);
    fv_env env = {.io = &fs.io, .mem = &mem.mem};
    fv_status st = fv_st_open(&s, &env, "x.safetensors", e);
    for (int i = 0; !st && i < fv_st_count(s); i++) {
        fv_st_info t = fv_st_at(s, i), found;
        assert_int_equal(fv_st_find(s, t.name, &found, NULL), FV_OK);
        assert_ptr_equal(found.data, t.data);
    }
    fv_st_close(s);
    assert_int_equal(fs.maps, 0);
    assert_int_equal(fs.opened, 0);
    assert_int_equal(mem.live, 0);
    assert_true(mem.peak <= 3 * n + 1024); /* the header once, and a plan of it */
    memfs_free(&fs);
    return st;
}

static void values_are_torchs(void **state)
{
    (void)state;
    static const char *const names[] = {"f64",     "f32", "f16", "bf16", "f8_e4m3",
                                        "f8_e5m2", "i64", "i32", "i16",  "i8",
                                        "u8",      "u16", "u32", "u64",  "bool"};
    fv_st *s;
    fv_st_info t, want;
    fv_err e = {0};
    assert_int_equal(fv_st_open(&s, NULL, GOLDEN "all.safetensors", &e), FV_OK);
    assert_null(fv_st_meta(s, "format"));
    assert_string_equal(fv_st_meta(s, "made by"), "store.py \u00e9 \"quoted\"");
    assert_null(fv_st_meta(s, "store.py \u00e9 \"quoted\""));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        uint32_t got[65], ref[65];
        snprintf(name, sizeof name, "as_f32.%s", names[i]);
        assert_int_equal(fv_st_find(s, names[i], &t, &e), FV_OK);
        assert_int_equal(fv_st_find(s, name, &want, &e), FV_OK);
        assert_string_equal(t.dtype_name, names[i]);
        assert_int_equal(want.bytes, want.count * 4);
        if (fv_st_read(s, &t, got, FV_F32, t.count, &e)) fail_msg("%s", e.text);
        memcpy(ref, want.data, want.bytes);
        for (int64_t k = 0; k < t.count; k++) {
            bool both_nan = (got[k] << 1) > 0xFF000000u && (ref[k] << 1) > 0xFF000000u;
            if (got[k] != ref[k] && !both_nan)
                fail_msg("%s: element %lld: %08x, torch %08x", names[i], (long long)k, got[k],
                         ref[k]);
        }
    }
    fv_st_close(s);
}

static void rounding_is_torchs(void **state)
{
    (void)state;
    fv_st *s;
    fv_st_info t, want;
    assert_int_equal(fv_st_open(&s, NULL, GOLDEN "all.safetensors", NULL), FV_OK);
    static const struct {
        const char *name;
        fv_dtype to;
    } cases[] = {{"round.f16", FV_F16}, {"round.bf16", FV_BF16}};
    for (int i = 0; i < 2; i++) {
        uint16_t got[66];
        assert_int_equal(fv_st_find(s, "round", &t, NULL), FV_OK);
        assert_int_equal(fv_st_find(s, cases[i].name, &want, NULL), FV_OK);
        assert_int_equal(fv_st_read(s, &t, got, cases[i].to, t.count, NULL), FV_OK);
        assert_memory_equal(got, want.data, want.bytes);
    }
    fv_st_close(s);
}

static void conversions_that_lose_are_refused(void **state)
{
    (void)state;
    fv_st *s;
    fv_st_info t;
    fv_err e;
    int32_t ids[65];
    double d[65];
    uint16_t half[66];
    assert_int_equal(fv_st_open(&s, NULL, GOLDEN "all.safetensors", NULL), FV_OK);
    fv_st_find(s, "i64", &t, NULL);
    assert_int_equal(fv_st_read(s, &t, ids, FV_I32, t.count, &e), FV_OK);
    assert_int_equal(ids[0], -100);
    assert_int_equal(fv_st_read(s, &t, ids, FV_U8, t.count, &e), FV_ENUMERIC);
    assert_int_equal(fv_st_read(s, &t, ids, FV_I32, t.count - 1, &e), FV_ESHAPE);
    assert_int_equal(fv_st_read(s, &t, d, FV_F64, t.count, &e), FV_OK);
    assert_true(d[6] == -94);
    fv_st_find(s, "f32", &t, NULL);
    assert_int_equal(fv_st_read(s, &t, ids, FV_I32, t.count, &e), FV_EDTYPE);
    assert_non_null(strstr(e.text, "f32 cannot be read as i32"));
    assert_int_equal(fv_st_read(s, &t, ids, FV_Q8, t.count, &e), FV_EDTYPE);
    fv_st_find(s, "bf16", &t, NULL); /* holds 65536, f16 ends at 65504 */
    assert_int_equal(fv_st_read(s, &t, half, FV_F16, t.count, &e), FV_ENUMERIC);
    assert_non_null(strstr(e.text, "the bf16 at (0,4) cannot be held in f16"));
    fv_st_find(s, "f8_e4m3fnuz", &t, NULL);
    assert_int_equal(fv_st_read(s, &t, half, FV_F16, t.count, &e), FV_EDTYPE);
    fv_st_find(s, "empty", &t, NULL);
    assert_int_equal(t.count, 0);
    assert_int_equal(fv_st_read(s, &t, NULL, FV_F32, 0, &e), FV_OK);
    fv_st_close(s);
}

/* Each breaks one rule; the message must say which. */
static void every_rule_is_enforced(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } cases[] = {
        {"{}", 0, NULL},
        {"{}   ", 0, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, NULL},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4],\"dtype\":\"F32\"}}", 4, NULL},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},\"a\":{\"dtype\":\"F16\","
         "\"shape\":[1],\"data_offsets\":"
         "[0,2]}}",
         3, NULL},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},\"b\":{\"dtype\":\"U8\","
         "\"shape\":[1],\"data_offsets\":"
         "[0,1]}}",
         1, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4611686018427387904,0],\"data_"
         "offsets\":[0,0]}}",
         0, NULL},
        {"{\"__metadata__\":{\"k\":\"v\",\"l\":\"\"}}", 0, NULL},
        {" {}", 0, "does not begin with '{'"},
        {"[]", 0, "does not begin with '{'"},
        {"", 0, "does not begin with '{'"},
        {"{", 0, "a key was expected"},
        {"{}x", 0, "something follows"},
        {"{},", 0, "something follows"},
        {"{\"a\":1}", 0, "an object was expected"},
        {"{}", 1, "1 bytes at the end belong to no tensor"},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
         "dtype is none of the format"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "not negative"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, "bad number"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,],\"data_offsets\":[0,4]}}", 4,
         "a value was expected"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],}}", 4,
         "a key was expected"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two integers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "two integers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
         "not inside the data"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
         "not inside the data"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8,
         "do not give the size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "overflows"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0,
         "overflows"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}", 0,
         "an integer of 64 bits"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,0]}}", 0,
         "beyond 63 bits"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "inside a byte"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
         "more than six axes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "is missing"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1,
         "a key other than"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "a key stands twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"a\":{\"dtype\":\"U8\","
         "\"shape\":[1],\"data_offsets\":["
         "1,2]}}",
         2, "\"a\" stands twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"\\u0061\":{\"dtype\":"
         "\"U8\",\"shape\":[1],\"data_"
         "offsets\":[1,2]}}",
         2, "\"a\" stands twice"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2, "a hole"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\","
         "\"shape\":[2],\"data_offsets\":["
         "1,3]}}",
         3, "an overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\","
         "\"shape\":[1],\"data_offsets\":["
         "2,3]}}",
         3, "a hole"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "a string was expected"},
        {"{\"__metadata__\":[]}", 0, "an object was expected"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ stands twice"},
        {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "metadata \"k\" stands twice"},
        {"{\"\xFF\":{}}", 0, "malformed UTF-8"},
        {"{\"\xC0\x80\":{}}", 0, "malformed UTF-8"},
        {"{\"\\ud800\":{}}", 0, "half of a surrogate pair"},
        {"{\"\\u0000\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "u0000"},
        {"{\"\\x\":{}}", 0, "unknown escape"},
        {"{\"a\nb\":{}}", 0, "control character"},
    };
    char file[1024];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_err e = {0};
        size_t n = build(file, cases[i].header, cases[i].data);
        fv_status st = try(file, n, &e);
        if (!cases[i].message && st) fail_msg("%s: %s", cases[i].header, e.text);
        if (cases[i].message && st != FV_EFORMAT) fail_msg("%s: was read", cases[i].header);
        if (cases[i].message && !strstr(e.text, cases[i].message))
            fail_msg("%s: says \"%s\"", cases[i].header, e.text);
    }
    fv_err e;
    assert_int_equal(try("", 0, &e), FV_EFORMAT);
    assert_int_equal(try("\2\0\0\0\0\0\0", 7, &e), FV_EFORMAT);
    assert_int_equal(try("\3\0\0\0\0\0\0\0{}", 10, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "a header of 3 bytes in a file of 10"));
    assert_int_equal(try("\0\0\0\0\1\0\0\0{}", 10, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "safetensors allows 100000000"));
}

static char *load(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *data = malloc(1 << 16);
    *n = fread(data, 1, 1 << 16, f);
    fclose(f);
    return data;
}

static uint32_t next(uint32_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    return *x ^= *x << 5;
}

/* Bytes changed, removed, doubled, cut: never a crash, never more than twice the file in memory. */
static void mutated_files_are_survived(void **state)
{
    (void)state;
    size_t n;
    uint32_t seed = 1;
    char *good = load(GOLDEN "all.safetensors", &n), *bad = malloc(2 * n);
    size_t header = (unsigned char)good[0] | (size_t)(unsigned char)good[1] << 8;
    int refused = 0, total = 20000;
    for (int i = 0; i < total; i++) {
        size_t m = n;
        memcpy(bad, good, n);
        for (uint32_t k = next(&seed) % 4 + 1; k; k--) {
            size_t at = next(&seed) % (next(&seed) % 8 ? header + 8 : m), len = next(&seed) % 16;
            if (at + len > m) continue;
            switch (next(&seed) % 5) {
            case 0: bad[at] = (char)next(&seed); break;
            case 1: bad[at] = "{}[]\",:0123456789-.e\\u "[next(&seed) % 23]; break;
            case 2:
                memmove(bad + at, bad + at + len, m - at - len);
                m -= len;
                break;
            case 3:
                if (m + len > 2 * n) break;
                memmove(bad + at + len, bad + at, m - at);
                m += len;
                break;
            default: bad[at] ^= (char)(1u << next(&seed) % 8); break;
            }
        }
        fv_err e = {0};
        fv_status st = try(bad, m, &e);
        assert_true(!st || e.text[0]);
        refused += st != FV_OK;
    }
    assert_true(refused > total / 2);
    free(bad);
    free(good);
}

static void a_large_header_takes_little_memory(void **state)
{
    (void)state;
    size_t cap = 8 << 20, n = 8;
    char *file = malloc(cap);
    n += (size_t)sprintf(file + n, "{");
    for (int i = 0; i < 100000; i++)
        n += (size_t)sprintf(file + n,
                             "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%d,%d]}",
                             i ? "," : "", i, i, i + 1);
    n += (size_t)sprintf(file + n, "}");
    uint64_t header = n - 8;
    memcpy(file, &header, 8);
    memset(file + n, 0, 100000);
    fv_err e = {0};
    if (try(file, n + 100000, &e)) fail_msg("%s", e.text);
    free(file);
}

/* ---- shards ---- */

static void shards_are_one_file(void **state)
{
    (void)state;
    static const char *const paths[] = {GOLDEN "sharded", GOLDEN "sharded/",
                                        GOLDEN "sharded/model.safetensors.index.json"};
    for (int i = 0; i < 3; i++) {
        fv_st *s;
        fv_st_info t;
        float x[3];
        fv_err e = {0};
        if (fv_st_open(&s, NULL, paths[i], &e)) fail_msg("%s", e.text);
        assert_int_equal(fv_st_count(s), 3);
        assert_string_equal(fv_st_at(s, 2).name, "b.weight");
        assert_int_equal(fv_st_find(s, "b.weight", &t, &e), FV_OK);
        assert_int_equal(fv_st_read(s, &t, x, FV_F32, 3, &e), FV_OK);
        assert_true(x[2] == -2);
        fv_st_close(s);
    }
}

static void an_index_must_agree_with_its_shards(void **state)
{
    (void)state;
    static const struct {
        const char *index, *message;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", NULL},
        {"{\"metadata\":{\"x\":[1,{}]},\"weight_map\":{\"b\":\"2.safetensors\",\"a\":\"1."
         "safetensors\"}}",
         NULL},
        {"{\"weight_map\":{\"a\":\"1.safetensors\"},\"weight_map\":{}}", "weight_map stands twice"},
        {"{\"metadata\":{}}", "no weight_map in it"},
        {"{\"weight_map\":{}}", "its weight_map is empty"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}",
         "its shard 3.safetensors is missing"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"1.safetensors\"}}",
         "\"b\": not in the shard"},
        {"{\"weight_map\":{\"a\":\"1.safetensors\",\"a\":\"1.safetensors\"}}",
         "\"a\": stands twice in the index"},
        {"{\"weight_map\":{\"b\":\"2.safetensors\"}}", NULL},
        {"{\"weight_map\":{\"c\":\"3c.safetensors\"}}",
         "3c.safetensors holds \"d\", which the index does not place there"},
        {"{\"weight_map\":{\"a\":\"../1.safetensors\"}}", "a file beside the index"},
        {"{\"weight_map\":{\"a\":\"1.bin\"}}", "must be a .safetensors file"},
        {"{\"weight_map\":{\"a\":1}}", "the name of a shard was expected"},
        {"[]", "an object was expected"},
        {"", "ends too early"},
    };
    char file[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memfs fs;
        fv_st *s;
        fv_err e = {0};
        memfs_init(&fs);
        size_t n = build(file, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                         1);
        memfs_put(&fs, "m/1.safetensors", file, n);
        n = build(file, "{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1);
        memfs_put(&fs, "m/2.safetensors", file, n);
        n = build(file,
                  "{\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"d\":{\"dtype\":"
                  "\"U8\",\"shape\":[0],\"data_"
                  "offsets\":[0,0]}}",
                  1);
        memfs_put(&fs, "m/3c.safetensors", file, n);
        memfs_put(&fs, "m/model.safetensors.index.json", cases[i].index, strlen(cases[i].index));
        fv_env env = {.io = &fs.io};
        fv_status st = fv_st_open(&s, &env, "m", &e);
        if (!cases[i].message && st) fail_msg("%s: %s", cases[i].index, e.text);
        if (cases[i].message && (!st || !strstr(e.text, cases[i].message)))
            fail_msg("%s: says \"%s\"", cases[i].index, e.text);
        fv_st_close(s);
        memfs_free(&fs);
    }
}

static void put_shards(memfs *fs, void *arg)
{
    (void)arg;
    char file[256];
    const char *index = "{\"weight_map\":{\"a\":\"1.safetensors\"}}";
    size_t n = build(file,
                     "{\"__metadata__\":{\"a\":\"b\",\"c\":\"d\"},\"a\":{\"dtype\":\"U8\","
                     "\"shape\":[1],\"data_offsets\":[0,1]}}",
                     1);
    memfs_put(fs, "m/1.safetensors", file, n);
    memfs_put(fs, "m/model.safetensors.index.json", index, strlen(index));
}

static fv_status open_and_close(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)fs, (void)arg;
    fv_st *s;
    fv_status st = fv_st_open(&s, env, "m", e);
    fv_st_close(s);
    return st;
}

static void every_failure_is_reported(void **state)
{
    (void)state;
    fail_in_turn(put_shards, open_and_close, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_torchs),
        cmocka_unit_test(rounding_is_torchs),
        cmocka_unit_test(conversions_that_lose_are_refused),
        cmocka_unit_test(every_rule_is_enforced),
        cmocka_unit_test(mutated_files_are_survived),
        cmocka_unit_test(a_large_header_takes_little_memory),
        cmocka_unit_test(shards_are_one_file),
        cmocka_unit_test(an_index_must_agree_with_its_shards),
        cmocka_unit_test(every_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
