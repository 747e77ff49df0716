/* test_detection.c - average precision against pycocotools, whose numbers tools/golden/detection.py
 * has written down; boxes of Pascal VOC and of COCO. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "data/voc.h"
#include "fovea/author/data.h"
#include "fovea/author/metric.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/golden.h"

static void average_precision_equals_pycocotools(void **state)
{
    (void)state;
    fv_st *s;
    fv_err e;
    int64_t n, m, k;
    check(fv_st_open(&s, NULL, FOVEA_TESTS "/golden/detection.safetensors", &e), &e);
    float *g = golden_numbers(s, "objects", &n), *d = golden_numbers(s, "found", &m),
          *want = golden_numbers(s, "ap", &k);
    n /= 7, m /= 7;
    fv_object *objects = calloc((size_t)n, sizeof *objects);
    fv_detected *found = calloc((size_t)m, sizeof *found);
    for (int64_t i = 0; i < n; i++) {
        objects[i] = (fv_object){(int64_t)g[7 * i], (int32_t)g[7 * i + 1], g[7 * i + 2] > 0, {0}};
        memcpy(objects[i].box, g + 7 * i + 3, sizeof objects[i].box);
    }
    for (int64_t i = 0; i < m; i++) {
        found[i] = (fv_detected){(int64_t)d[7 * i], (int32_t)d[7 * i + 1], d[7 * i + 2], {0}};
        memcpy(found[i].box, d + 7 * i + 3, sizeof found[i].box);
    }
    for (int64_t i = 0; i < k; i++) {
        double ap;
        check(fv_average_precision(&ap, NULL, found, m, objects, n, (int32_t)(i / 10),
                                   0.5 + 0.05 * (double)(i % 10), &e),
              &e);
        if (fabs(ap - (double)want[i]) > 1e-3)
            fail_msg("label %d at %g: %g instead of %g", (int)(i / 10),
                     0.5 + 0.05 * (double)(i % 10), ap, (double)want[i]);
    }
    double none;
    check(fv_average_precision(&none, NULL, found, m, objects, n, 99, 0.5, &e), &e);
    assert_true(isnan(none));
    free(g), free(d), free(want), free(objects), free(found);
    fv_st_close(s);
}

/* A detection of a difficult object counts neither way. */
static void difficult_objects_do_not_count(void **state)
{
    (void)state;
    const fv_object g[] = {{0, 0, true, {0, 0, 10, 10}}, {0, 0, false, {50, 50, 60, 60}}};
    const fv_detected d[] = {{0, 0, 0.9f, {0, 0, 10, 10}}, {0, 0, 0.8f, {50, 50, 60, 60}}};
    double ap;
    fv_err e;
    check(fv_average_precision(&ap, NULL, d, 2, g, 2, 0, 0.5, &e), &e);
    assert_true(fabs(ap - 100) < 1e-9);
}

/* ---- annotations ---- */

static void put_png(const char *path)
{
    fv_image im = {0};
    fv_err e;
    check(fv_image_new(&im, NULL, 40, 30, 3, &e), &e);
    memset(im.data, 7, 40 * 30 * 3);
    check(fv_image_save(&im, path, &e), &e);
    fv_image_free(&im);
}

static const char voc[] =
    "<?xml version=\"1.0\"?>\n<annotation>\n <!-- <object> -->\n <size><width>40</width></size>\n"
    " <object><name>R &amp; B</name><difficult>1</difficult>\n"
    "  <bndbox><xmin> 11 </xmin><ymin>6</ymin><xmax>20</xmax><ymax>15</ymax></bndbox></object>\n"
    " <object type='x'><name>cell</name><part/><bndbox><xmin>1</xmin><ymin>1</ymin>"
    "<xmax>40</xmax><ymax>30</ymax></bndbox></object>\n</annotation>\n";

static void boxes_of_voc_are_read(void **state)
{
    (void)state;
    fv_labels labels = {0};
    fv_boxed *b;
    fv_err e;
    int64_t n;
    static const char *const dirs[] = {
        "v", "v/x", "v/x/Annotations", "v/x/JPEGImages", "v/x/ImageSets", "v/x/ImageSets/Main"};
    for (int i = 0; i < 6; i++) mkdir(scratch("%s", dirs[i]), 0777);
    put_png(scratch("v/x/JPEGImages/a.png"));
    put_png(scratch("v/x/JPEGImages/b.png"));
    scratch_text("v/x/Annotations/a.xml", voc);
    scratch_text("v/x/Annotations/b.xml", "<annotation></annotation>");
    scratch_text("v/x/ImageSets/Main/test.txt", "a  1\n");
    fv_boxed_opt o = {.path = scratch("v"), .labels = &labels};
    check(fv_boxed_open(&b, NULL, &o, &e), &e);
    assert_int_equal(fv_boxed_count(b), 2);
    fv_boxed_close(b);
    o.split = "test";
    check(fv_boxed_open(&b, NULL, &o, &e), &e);
    assert_int_equal(fv_boxed_count(b), 1);
    const fv_box *box = fv_boxed_boxes(b, 0, &n);
    assert_int_equal(n, 2);
    assert_true(box[0].difficult && box[0].x0 == 10 && box[0].y0 == 5 && box[0].x1 == 20);
    assert_string_equal(labels.name[box[0].label], "R & B");
    assert_true(box[1].x0 == 0 && box[1].x1 == 40 && !box[1].difficult);
    fv_boxed_close(b);
    o.split = "val";
    assert_int_equal(fv_boxed_open(&b, NULL, &o, &e), FV_EARG);
    assert_non_null(strstr(e.text, "ImageSets/Main/val.txt"));
    fv_labels_free(&labels);
}

static void boxes_of_coco_are_read(void **state)
{
    (void)state;
    fv_labels labels = {0};
    fv_boxed *b;
    fv_err e;
    int64_t n;
    mkdir(scratch("c"), 0777);
    mkdir(scratch("c/images"), 0777);
    put_png(scratch("c/images/1.png"));
    put_png(scratch("c/images/2.png"));
    scratch_text("c/all.json",
                 "{\"images\": [{\"id\": 5, \"file_name\": \"2.png\"}, {\"id\": 3, \"file_name\": "
                 "\"1.png\"}], \"categories\": [{\"id\": 9, \"name\": \"cell\"}], \"annotations\": "
                 "[{\"image_id\": 3, \"category_id\": 9, \"bbox\": [1, 2, 3, 4], \"iscrowd\": 1}, "
                 "{\"image_id\": 5, \"category_id\": 9, \"bbox\": [0, 0, 8, 8]}, {\"image_id\": 3, "
                 "\"category_id\": 9, \"bbox\": [5, 5, 5, 0]}]}");
    fv_boxed_opt o = {.path = scratch("c"), .split = "all.json", .labels = &labels};
    check(fv_boxed_open(&b, NULL, &o, &e), &e);
    assert_string_equal(fv_boxed_name(b, 0), "images/2.png");
    const fv_box *box = fv_boxed_boxes(b, 1, &n);
    assert_int_equal(n, 1); /* the one without area is left out */
    assert_true(box->difficult && box->x1 == 4 && box->y1 == 6);
    fv_boxed_close(b);
    scratch_text("c/all.json", "{\"images\": [], \"annotations\": []}");
    assert_int_equal(fv_boxed_open(&b, NULL, &o, &e), FV_EFORMAT);
    fv_labels_free(&labels);
}

static fv_status ignore(void *user, const fv__voc_object *o, fv_err *e)
{
    (void)user, (void)o, (void)e;
    return FV_OK;
}

static void bad_xml_is_refused_with_its_line(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "v.xml:1: the file ends"},
        {"<html></html>", "expected <annotation>"},
        {"<annotation>\n<a></b>", "v.xml:2: an element ends that did not begin"},
        {"<annotation><object><name>x</name></object></annotation>", "no bndbox"},
        {"<annotation><object><bndbox><xmin>x</xmin>", "no number of pixels"},
        {"<annotation", "ends inside a tag"},
        {"<!-- ", "does not end"},
        {"<annotation><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a><a>", "too deeply"},
    };
    fv_err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fv_status st = fv__voc_parse(bad[i][0], strlen(bad[i][0]), "v.xml", ignore, NULL, &e);
        if (st != FV_EFORMAT || !strstr(e.text, bad[i][1]))
            fail_msg("%s: %s", bad[i][0], st ? e.text : "accepted");
    }
    /* every truncation */
    for (size_t n = 0; n + 14 < sizeof voc; n++)
        assert_int_equal(fv__voc_parse(voc, n, "v.xml", ignore, NULL, &e), FV_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(average_precision_equals_pycocotools),
        cmocka_unit_test(difficult_objects_do_not_count),
        cmocka_unit_test(boxes_of_voc_are_read),
        cmocka_unit_test(boxes_of_coco_are_read),
        cmocka_unit_test(bad_xml_is_refused_with_its_line),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
