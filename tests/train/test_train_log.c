/* test_train_log.c - what a run tells of itself: records that TensorBoard reads, byte for byte, a
 * curve, a log that resumes. */
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

#include "train/groups.h"
#include "train/log.h"
#include "helper/files.h"

/* Written by TensorBoard's own EventFileWriter: file_version at time 1.5; then at time 2.25, step
 * 300, train/loss = 0.5. */
static const unsigned char expected[] = {
    0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xa3, 0x7f, 0x4b, 0x22, 0x09, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0xf8, 0x3f, 0x1a, 0x0d, 0x62, 0x72, 0x61, 0x69, 0x6e, 0x2e, 0x45,
    0x76, 0x65, 0x6e, 0x74, 0x3a, 0x32, 0x2a, 0x28, 0x64, 0x6c, 0x21, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x01, 0x7b, 0xec, 0xf6, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02,
    0x40, 0x10, 0xac, 0x02, 0x2a, 0x13, 0x0a, 0x11, 0x0a, 0x0a, 0x74, 0x72, 0x61, 0x69, 0x6e,
    0x2f, 0x6c, 0x6f, 0x73, 0x73, 0x15, 0x00, 0x00, 0x00, 0x3f, 0xd2, 0x01, 0x79, 0x83,
};

static void records_are_those_of_tensorboard(void **state)
{
    (void)state;
    fv_buf b = {0};
    fv__event_version(&b, 1.5);
    fv__event_scalar(&b, 2.25, 300, "train/loss", 0.5);
    assert_int_equal(b.len, sizeof expected);
    assert_memory_equal(b.data, expected, sizeof expected);
    fv__buf_free(&b);
}

static size_t lines(const char *path, const char *word)
{
    char line[400];
    size_t n = 0;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) n += strstr(line, word) != NULL;
    fclose(f);
    return n;
}

static void a_resumed_log_forgets_what_the_lost_run_told(void **state)
{
    (void)state;
    const char *path = scratch("train.jsonl");
    fv_err e;
    fv__log *l;
    assert_int_equal(fv__log_open(&l, NULL, scratch("."), -1, &e), FV_OK);
    for (int64_t i = 1; i <= 10; i++) {
        fv__entry x = {
            .step = i, .loss = 1.0 / (double)i, .metric = NAN, .lr = 0.1, .norm = 1, .rate = 10};
        assert_int_equal(fv__log_add(l, &x, NULL, &e), FV_OK);
    }
    fv__log_close(l);
    assert_int_equal(lines(path, "\"step\""), 10);
    FILE *f = fopen(path, "ab"); /* a crash in the middle of a line */
    fputs("{\"event\": \"train\", \"st", f);
    fclose(f);
    assert_int_equal(fv__log_open(&l, NULL, scratch("."), 6, &e), FV_OK);
    fv__entry x = {
        .step = 8, .valid = true, .loss = 0.3, .metric = 0.75, .lr = NAN, .norm = NAN, .rate = NAN};
    assert_int_equal(fv__log_add(l, &x, "accuracy", &e), FV_OK);
    assert_int_equal(fv__log_draw(l, &e), FV_OK);
    fv__log_close(l);
    assert_int_equal(lines(path, "\"step\""), 7);
    assert_int_equal(lines(path, "\"metric\": \"accuracy\", \"value\": 0.75"), 1);
    path = scratch("curve.svg");
    assert_int_equal(lines(path, "<polyline"), 2);
    assert_int_equal(lines(path, "update 8: 0.3000"), 1);
}

static void a_curve_of_nothing_is_a_picture_too(void **state)
{
    (void)state;
    fv_buf b = {0};
    fv__entry same[] = {{.step = 1, .loss = 2}, {.step = 2, .loss = 2}};
    fv__curve(&b, NULL, 0);
    assert_non_null(strstr(b.data, "</svg>"));
    fv__curve(&b, same, 2);
    assert_null(strstr(b.data, "nan"));
    fv__buf_free(&b);
}

static void names_match_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool yes;
    } cases[] = {
        {"a.b", "a.b", true},     {"a.b", "a.bc", false},     {"*", "anything", true},
        {"a*", "a", true},        {"*.bias", "x.bias", true}, {"*.bias", "x.biases", false},
        {"a*c*e", "abcde", true}, {"a*c*e", "abde", false},   {"", "", true},
        {"", "a", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(fv__name_matches(cases[i].pattern, strlen(cases[i].pattern),
                                          cases[i].name),
                         cases[i].yes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_those_of_tensorboard),
        cmocka_unit_test(a_resumed_log_forgets_what_the_lost_run_told),
        cmocka_unit_test(a_curve_of_nothing_is_a_picture_too),
        cmocka_unit_test(names_match_patterns),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
