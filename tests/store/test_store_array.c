/* test_store_array.c - arrays from CSV, NumPy and safetensors files: values, refusals, and files
 * written back. */
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/array.h"
#include "helper/memfs.h"
#include "helper/failing.h"

#define GOLDEN FOVEA_TESTS "/golden/store/"

/* Opens text as a file of that name; the array must be closed. */
static fv_status open_text(fv_array *a, const char *name, const char *text, size_t n,
                           bool nonfinite, fv_err *e)
{
    memfs fs;
    memfs_init(&fs);
    memfs_put(&fs, name, text, n);
    fv_env env = {.io = &fs.io};
    fv_status st = fv_array_open(a, &env, name, (fv_array_opt){.nonfinite = nonfinite}, e);
    assert_int_equal(fs.maps, 0);
    assert_int_equal(fs.opened, 0);
    a->env = NULL; /* its memory is malloc's, whatever the files were */
    memfs_free(&fs);
    return st;
}

static void csv_reads_every_separator(void **state)
{
    (void)state;
    static const char *const texts[] = {"1,2,3\n4,5,6\n", "1;2;3\n4;5;6", "1\t2\t3\r\n4\t5\t6\r\n",
                                        " 1  2 3 \n\n4 ,5, 6\n \n",
                                        "\xEF\xBB\xBF+1.0,2e0,.3e1\n4.,50e-1,+6\n\n\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        fv_array a;
        fv_err e = {0};
        assert_int_equal(open_text(&a, "a.csv", texts[i], strlen(texts[i]), false, &e), FV_OK);
        assert_int_equal(a.shape.n, 2);
        assert_int_equal(a.shape.d[0], 2);
        assert_int_equal(a.shape.d[1], 3);
        assert_string_equal(a.stored, "text");
        for (int k = 0; k < 6; k++) assert_true(a.data[k] == (float)(k + 1));
        fv_array_close(&a);
    }
}

static void csv_refuses_with_the_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
        fv_status code;
    } cases[] = {
        {"", "a.csv: no numbers in it", FV_EFORMAT},
        {"\n \n", "a.csv: no numbers in it", FV_EFORMAT},
        {"a,b\n1,2\n", "a.csv: line 1, column 1: \"a\" is not a number", FV_EFORMAT},
        {"1,2\n3,x4\n", "a.csv: line 2, column 2: \"x4\" is not a number", FV_EFORMAT},
        {"1,2\n3\n", "a.csv: line 2 has 1 numbers where the lines before have 2", FV_EFORMAT},
        {"1,2\n\n3,4,5\n", "a.csv: line 3 has 3 numbers where the lines before have 2", FV_EFORMAT},
        {"1,,2\n", "a.csv: line 1, column 2: no number here", FV_EFORMAT},
        {"1,2,\n", "a.csv: line 1, column 3: no number here", FV_EFORMAT},
        {"1,nan\n", "a.csv: line 1, column 2: nan, where a finite number must stand", FV_ENUMERIC},
        {"1\n-inf\n", "a.csv: line 2, column 1: -inf, where a finite number must stand",
         FV_ENUMERIC},
        {"1e39\n", "a.csv: line 1, column 1: 1e39 is beyond what f32 holds", FV_ENUMERIC},
        {"0x10\n", "a.csv: line 1, column 1: \"0x10\" is not a number", FV_EFORMAT},
        {"1e\n", "a.csv: line 1, column 1: \"1e\" is not a number", FV_EFORMAT},
        {".\n", "a.csv: line 1, column 1: \".\" is not a number", FV_EFORMAT},
        {"1\r2\n", "a.csv: line 1, column 2: no number here", FV_EFORMAT},
        {"\x01\xFF\n", "a.csv: line 1, column 1: \"??\" is not a number", FV_EFORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fv_array a;
        fv_err e = {0};
        assert_int_equal(open_text(&a, "a.csv", cases[i].text, strlen(cases[i].text), false, &e),
                         cases[i].code);
        assert_string_equal(e.text, cases[i].message);
        assert_null(a.data);
        fv_array_close(&a);
    }
    fv_array a;
    fv_err e = {0};
    assert_int_equal(open_text(&a, "a.csv", "1\0,2\n", 5, false, &e), FV_EFORMAT);
    assert_int_equal(open_text(&a, "a.csv", "0,-inf,nan", 10, true, &e), FV_OK);
    assert_true(a.data[1] == -INFINITY && isnan(a.data[2]));
    fv_array_close(&a);
    assert_int_equal(open_text(&a, "a.csv", "1e39", 4, true, &e), FV_ENUMERIC);
}

static void check_count(const char *name, const char *stored, float first)
{
    char path[512];
    fv_array a;
    fv_err e = {0};
    snprintf(path, sizeof path, GOLDEN "%s.npy", name);
    if (fv_array_open(&a, NULL, path, (fv_array_opt){0}, &e)) fail_msg("%s", e.text);
    assert_string_equal(a.stored, stored);
    assert_int_equal(a.shape.n, 3);
    assert_true(a.shape.d[0] == 2 && a.shape.d[1] == 3 && a.shape.d[2] == 4);
    for (int i = 0; i < 24; i++) {
        float want = !strcmp(name, "bool") ? (float)(i % 3 == 0) : first + (float)i;
        if (a.data[i] != want)
            fail_msg("%s: element %d is %g, not %g", name, i, (double)a.data[i], (double)want);
    }
    fv_array_close(&a);
}

static void npy_reads_every_dtype_and_order(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"f2", "f16"}, {"f4", "f32"}, {"f8", "f64"},
                                           {"i1", "i8"},  {"i2", "i16"}, {"i4", "i32"},
                                           {"i8", "i64"}};
    for (int i = 0; i < 7; i++) {
        char name[32];
        check_count(pairs[i][0], pairs[i][1], -12);
        snprintf(name, sizeof name, "%s_fortran", pairs[i][0]);
        check_count(name, pairs[i][1], -12);
    }
    check_count("u1", "u8", 0);
    check_count("u2", "u16", 0);
    check_count("u4", "u32", 0);
    check_count("u8", "u64", 0);
    check_count("bool", "bool", 0);
    check_count("v2", "f32", -12);
    check_count("v3", "f32", -12);
    fv_array a;
    assert_int_equal(fv_array_open(&a, NULL, GOLDEN "scalar.npy", (fv_array_opt){0}, NULL), FV_OK);
    assert_true(a.shape.n == 0 && a.data[0] == 2.5f);
    fv_array_close(&a);
    assert_int_equal(fv_array_open(&a, NULL, GOLDEN "empty.npy", (fv_array_opt){0}, NULL), FV_OK);
    assert_true(a.shape.n == 3 && a.shape.d[1] == 0 && !a.data);
    fv_array_close(&a);
}

static void refuse(const char *source, fv_status code, const char *part)
{
    fv_array a;
    fv_err e = {0};
    assert_int_equal(fv_array_open(&a, NULL, source, (fv_array_opt){0}, &e), code);
    if (!strstr(e.text, part)) fail_msg("\"%s\" does not say \"%s\"", e.text, part);
    fv_array_close(&a);
}

static void npy_refuses_by_name(void **state)
{
    (void)state;
    refuse(GOLDEN "big_endian.npy", FV_EDTYPE, "dtype '>f4' is not read");
    refuse(GOLDEN "complex.npy", FV_EDTYPE, "dtype '<c8' is not read");
    refuse(GOLDEN "struct.npy", FV_EFORMAT, "structured");
    refuse(GOLDEN "int_too_large.npy", FV_ENUMERIC, "the i64 at (2) cannot be held in f32");
    refuse(GOLDEN "double_too_large.npy", FV_ENUMERIC, "the f64 at (1) cannot be held in f32");
    refuse(GOLDEN "nan.npy", FV_ENUMERIC, "nan at (1,0), where a finite number must stand");
    refuse(GOLDEN "none.npy", FV_EIO, "cannot open");
    refuse(GOLDEN, FV_EIO, "directory");
    fv_array a;
    fv_err e;
    assert_int_equal(open_text(&a, "x.npy", "1,2", 3, false, &e), FV_EFORMAT);
    assert_string_equal(e.text, "x.npy: not a NumPy file");
}

static void npy_headers_are_strict(void **state)
{
    (void)state;
    static const struct {
        const char *dict;
        bool good;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", true},
        {"{\"shape\":(1),\"descr\":\"<f4\",\"fortran_order\":True}  \n", true},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1), }", false},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (4611686018427387904, 4, 0), }", false},
        {"{'descr': '<f4', 'fortran_order': False}", false},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", false},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", false},
        {"{'descr': '<f4' 'fortran_order': False, 'shape': (1,)}", false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", false},
        {"[]", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char file[512] = "\x93NUMPY\x01";
        size_t n = strlen(cases[i].dict);
        fv_array a;
        fv_err e = {0};
        file[8] = (char)n;
        memcpy(file + 10, cases[i].dict, n);
        memcpy(file + 10 + n, &(float){7}, 4);
        fv_status st = open_text(&a, "x.npy", file, n + 14, false, &e);
        if (!st != cases[i].good) fail_msg("%s: %s", cases[i].dict, e.text);
        if (!st) assert_true(a.data[0] == 7);
        fv_array_close(&a);
    }
}

static void tensors_by_name(void **state)
{
    (void)state;
    fv_array a;
    assert_int_equal(fv_array_open(&a, NULL, GOLDEN "all.safetensors:i16", (fv_array_opt){0}, NULL),
                     FV_OK);
    assert_true(a.shape.n == 1 && a.shape.d[0] == 7 && a.data[6] == -94);
    fv_array_close(&a);
    refuse(GOLDEN "all.safetensors", FV_EARG, ":NAME");
    refuse(GOLDEN "all.safetensors:as_f32.bf17", FV_EARG, "did you mean \"as_f32.bf16\"?");
    refuse(GOLDEN "all.safetensors:completely different", FV_EARG,
           "no tensor \"completely different\" in it; it has");
    refuse(GOLDEN "all.safetensors:f32", FV_ENUMERIC,
           "inf at (0,11), where a finite number must stand");
    refuse(GOLDEN "all.safetensors:c64", FV_EDTYPE, "c64 is not read");
}

static void what_is_saved_is_read_back(void **state)
{
    (void)state;
    memfs fs;
    memfs_init(&fs);
    fv_env env = {.io = &fs.io};
    float x[6] = {0.1f, -3.4028235e38f, 1e-45f, 16777217.0f, -0.0f, 1.0f / 3};
    fv_array a = {.shape = FV_SHAPE(2, 3), .data = x}, b;
    static const char *const names[] = {"x.csv", "x.npy"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fv_array_save(&a, &env, names[i], NULL), FV_OK);
        assert_int_equal(fv_array_open(&b, &env, names[i], (fv_array_opt){0}, NULL), FV_OK);
        assert_true(b.shape.n == 2 && b.shape.d[0] == 2 && b.shape.d[1] == 3);
        assert_memory_equal(b.data, x, sizeof x);
        fv_array_close(&b);
    }
    size_t n;
    assert_int_equal(memfs_get(&fs, "x.npy", &n)[0], '\x93');
    assert_int_equal((n - sizeof x) % 64, 0);
    assert_false(memfs_has(&fs, "x.npy.tmp"));
    fv_err e;
    assert_int_equal(fv_array_save(&a, &env, "x.txt", &e), FV_EARG);
    a.shape = FV_SHAPE(1, 2, 3);
    assert_int_equal(fv_array_save(&a, &env, "x.csv", &e), FV_ESHAPE);
    memfs_free(&fs);
}

static void the_locale_does_not_matter(void **state)
{
    (void)state;
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) skip();
    fv_array a;
    assert_int_equal(open_text(&a, "a.csv", "1.5 2.5", 7, false, NULL), FV_OK);
    assert_true(a.data[0] == 1.5f);
    fv_array_close(&a);
    setlocale(LC_NUMERIC, "C");
}

static void put_table(memfs *fs, void *arg)
{
    (void)arg;
    memfs_put(fs, "a.csv", "1,2\n3,4\n", 8);
}

/* Nothing is half written. */
static fv_status read_and_save(memfs *fs, const fv_env *env, void *arg, fv_err *e)
{
    (void)arg;
    fv_array a;
    fv_status st = fv_array_open(&a, env, "a.csv", (fv_array_opt){0}, e);
    if (!st) st = fv_array_save(&a, env, "b.npy", e);
    /* 128 bytes of header and four numbers; it may be there although syncing its name failed */
    size_t n = 0;
    bool there = memfs_get(fs, "b.npy", &n) != NULL;
    assert_true(there ? n == 144 : st != FV_OK);
    fv_array_close(&a);
    return st;
}

static void every_failure_is_reported(void **state)
{
    (void)state;
    fail_in_turn(put_table, read_and_save, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(csv_reads_every_separator),
        cmocka_unit_test(csv_refuses_with_the_place),
        cmocka_unit_test(npy_reads_every_dtype_and_order),
        cmocka_unit_test(npy_refuses_by_name),
        cmocka_unit_test(npy_headers_are_strict),
        cmocka_unit_test(tensors_by_name),
        cmocka_unit_test(what_is_saved_is_read_back),
        cmocka_unit_test(the_locale_does_not_matter),
        cmocka_unit_test(every_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
