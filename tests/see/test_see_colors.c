/* test_see_colors.c - the colours of heads can be told apart, by colour-blind eyes too. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "see/palette.h"

typedef double matrix[3][3];

/* Linear RGB as seen by normal, protanopic and deuteranopic eyes (Machado, Oliveira and Fernandes
 * 2009, severity 1). */
static const matrix normal = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
                    protanopia = {{0.152286, 1.052583, -0.204868},
                                  {0.114503, 0.786281, 0.099216},
                                  {-0.003882, -0.048116, 1.051998}},
                    deuteranopia = {{0.367322, 0.860646, -0.227968},
                                    {0.280085, 0.672501, 0.047413},
                                    {-0.011820, 0.042940, 0.968881}};
/* to the cones of OKLab, and from their cube roots to L, a, b (Ottosson 2020) */
static const matrix cones = {{0.4122214708, 0.5363325363, 0.0514459929},
                             {0.2119034982, 0.6806995451, 0.1073969566},
                             {0.0883024619, 0.2817188376, 0.6299787005}},
                    oklab = {{0.2104542553, 0.7936177850, -0.0040720468},
                             {1.9779984951, -2.4285922050, 0.4505937099},
                             {0.0259040371, 0.7827717662, -0.8086757660}};

static void apply(const matrix m, double v[3])
{
    double out[3];
    for (int i = 0; i < 3; i++) out[i] = m[i][0] * v[0] + m[i][1] * v[1] + m[i][2] * v[2];
    for (int i = 0; i < 3; i++) v[i] = out[i];
}

static void linear(uint32_t hex, double v[3])
{
    for (int i = 0; i < 3; i++) {
        double c = (hex >> (16 - 8 * i) & 255) / 255.0;
        v[i] = c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4);
    }
}

static void lab(uint32_t hex, const matrix eye, double v[3])
{
    linear(hex, v);
    apply(eye, v);
    for (int i = 0; i < 3; i++) v[i] = fmin(1, fmax(0, v[i]));
    apply(cones, v);
    for (int i = 0; i < 3; i++) v[i] = cbrt(v[i]);
    apply(oklab, v);
}

static double least_distance(const uint32_t *c, int n, const matrix eye)
{
    double least = 9;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++) {
            double a[3], b[3];
            lab(c[i], eye, a);
            lab(c[j], eye, b);
            least = fmin(least,
                         sqrt(pow(a[0] - b[0], 2) + pow(a[1] - b[1], 2) + pow(a[2] - b[2], 2)));
        }
    return least;
}

/* A distance of 0.02 in OKLab is just noticeable side by side; lines of a figure lie apart, so
 * several times that is wanted. */
static void heads_are_told_apart(void **state)
{
    (void)state;
    assert_true(FV_HEAD_COLORS >= 12);
    assert_true(least_distance(fv__head_colors, FV_HEAD_COLORS, normal) >= 0.14);
    assert_true(least_distance(fv__head_colors, FV_HEAD_COLORS, protanopia) >= 0.10);
    assert_true(least_distance(fv__head_colors, FV_HEAD_COLORS, deuteranopia) >= 0.10);
    /* the measure can fail: red and green of one lightness are one colour to a protanope */
    const uint32_t alike[] = {0xb05050, 0x7a7a50};
    assert_true(least_distance(alike, 2, deuteranopia) < 0.10);
}

static double luminance(uint32_t hex)
{
    double v[3];
    linear(hex, v);
    return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
}

static void heads_stand_out_from_both_pages(void **state)
{
    (void)state;
    double paper = luminance(0xffffff), dark = luminance(0x10151c);
    for (int i = 0; i < FV_HEAD_COLORS; i++) {
        double y = luminance(fv__head_colors[i]);
        assert_true((paper + 0.05) / (y + 0.05) >= 1.85);
        assert_true((y + 0.05) / (dark + 0.05) >= 1.9);
    }
}

/* Printed in grey, a greater weight is still darker; on the dark page, lighter. */
static void shades_change_one_way(void **state)
{
    (void)state;
    for (int i = 1; i < FV_SHADES; i++) {
        assert_true(luminance(fv__shades_light[i]) < luminance(fv__shades_light[i - 1]));
        assert_true(luminance(fv__shades_dark[i]) > luminance(fv__shades_dark[i - 1]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_told_apart),
        cmocka_unit_test(heads_stand_out_from_both_pages),
        cmocka_unit_test(shades_change_one_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
