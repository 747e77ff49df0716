/* test_image_data.c - images of folders, archives, IDX files and tables; what training changes in
 * them; batches that do not depend on the number of workers. */
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

#include "data/augment.h"
#include "data/tar.h"
#include "fovea/author/objective.h"
#include "fovea/author/author.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/files.h"

/* ---- making data ---- */

enum { SIDE = 12 };

/* A picture whose first pixel is `level`. */
static void put_picture(const char *path, int level)
{
    fv_image im = {0};
    fv_err e;
    check(fv_image_new(&im, NULL, SIDE, SIDE, 3, &e), &e);
    for (int i = 0; i < SIDE * SIDE * 3; i++) im.data[i] = (uint8_t)(level + i % 7);
    check(fv_image_save(&im, path, &e), &e);
    fv_image_free(&im);
}

static void put_folder(const char *name, int n)
{
    static const char *const labels[] = {"cat", "dog", "emu"};
    mkdir(scratch("%s", name), 0777);
    for (int k = 0; k < 3; k++) {
        mkdir(scratch("%s/%s", name, labels[k]), 0777);
        for (int i = 0; i < n; i++)
            put_picture(scratch("%s/%s/%03d.png", name, labels[k], i), 50 * k + i);
    }
    scratch_text("notes.txt", "no image");
}

/* A header of tar's with its sum. */
static void tar_header(char h[512], const char *name, size_t size, char type)
{
    memset(h, 0, 512);
    snprintf(h, 100, "%s", name);
    snprintf(h + 100, 8, "%07o", 0644u);
    snprintf(h + 124, 12, "%011zo", size);
    memcpy(h + 148, "        ", 8);
    h[156] = type;
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    unsigned sum = 0;
    for (int i = 0; i < 512; i++) sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
}

typedef struct archive {
    char *data;
    size_t n;
} archive;

static void tar_add(archive *a, const char *name, const void *data, size_t n, char type)
{
    size_t whole = (n + 511) / 512 * 512;
    a->data = realloc(a->data, a->n + 512 + whole + 1024);
    tar_header(a->data + a->n, name, n, type);
    memset(a->data + a->n + 512, 0, whole + 1024);
    memcpy(a->data + a->n + 512, data, n);
    a->n += 512 + whole;
}

static void big_endian(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * (3 - i));
}

static fv_images *open_images(fv_images_opt o, fv_labels *labels)
{
    fv_images *m;
    fv_data_report r = {0};
    fv_err e;
    o.labels = labels;
    check(fv_images_open(&m, NULL, &o, &r, &e), &e);
    assert_int_equal(r.kept, fv_images_count(m));
    return m;
}

static int first_level(const fv_images *m, int64_t i)
{
    fv_image im = {0};
    fv_err e;
    check(fv_images_get(m, i, &im, &e), &e);
    int level = im.data[0];
    fv_image_free(&im);
    return level;
}

/* ---- sources ---- */

static void a_folder_names_its_label(void **state)
{
    (void)state;
    fv_labels labels = {0};
    put_folder("zoo", 4);
    fv_images *m = open_images((fv_images_opt){.from = {.file = scratch("zoo")}}, &labels);
    assert_int_equal(fv_images_count(m), 12);
    assert_int_equal(labels.n, 3);
    assert_string_equal(labels.name[1], "dog");
    for (int64_t i = 0; i < 12; i++) {
        assert_int_equal(fv_images_label(m, i), i / 4);
        assert_int_equal(first_level(m, i), 50 * (i / 4) + i % 4);
    }
    fv_images_close(m);
    /* what is held out is spread over the labels, and both parts are all */
    fv_images *a = open_images((fv_images_opt){.from = {.file = scratch("zoo"), .part = {0, 0.75}}},
                               &labels);
    fv_images *b = open_images((fv_images_opt){.from = {.file = scratch("zoo"), .part = {0.75, 1}}},
                               &labels);
    assert_int_equal(fv_images_count(a) + fv_images_count(b), 12);
    assert_true(fv_images_count(b) >= 2 && fv_images_count(b) <= 4);
    assert_true(fv_images_label(b, 0) < fv_images_label(b, fv_images_count(b) - 1));
    fv_images_close(a);
    fv_images_close(b);
    m = open_images((fv_images_opt){.from = {.file = scratch("zoo"), .most = 3}}, &labels);
    assert_int_equal(fv_images_count(m), 3);
    assert_int_equal(fv_images_label(m, 2), 2);
    fv_images_close(m);
    fv_labels_free(&labels);
}

static void an_archive_is_read_like_a_folder(void **state)
{
    (void)state;
    static const char long_name[] =
        "a/very/long/path/that/does/not/fit/into/a/hundred/characters/of/the/old/format/and/so/on/"
        "and/so/on/emu/0.png";
    archive a = {0};
    size_t n;
    fv_labels labels = {0};
    put_folder("zoo", 2);
    char *png = slurp(scratch("zoo/dog/000.png"), &n);
    tar_add(&a, "x/", "", 0, '5');
    tar_add(&a, "x/dog/1.png", png, n, '0');
    tar_add(&a, "x/cat/0.png", png, n, '0');
    tar_add(&a, "././@LongLink", long_name, sizeof long_name, 'L');
    tar_add(&a, "short", png, n, '0');
    tar_add(&a, "x/readme", "text", 4, '0');
    scratch_put("zoo.tar", a.data, a.n + 1024);
    fv_images *m = open_images((fv_images_opt){.from = {.file = scratch("zoo.tar")}}, &labels);
    assert_int_equal(fv_images_count(m), 3);
    assert_string_equal(labels.name[0], "emu"); /* by path: a/very... comes first */
    assert_string_equal(labels.name[2], "dog");
    assert_int_equal(first_level(m, 2), 50);
    fv_images_close(m);
    fv_labels_free(&labels);
    /* sizes, sums and names are not believed */
    fv__tar_entry f;
    fv_err e;
    fv__tar t = {.data = a.data, .size = 600 + 512, .path = "cut.tar"}; /* in the first picture */
    assert_int_equal(fv__tar_next(&t, &f, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "longer than the archive"));
    a.data[3] ^= 1;
    t = (fv__tar){.data = a.data, .size = a.n, .path = "bad.tar"};
    assert_int_equal(fv__tar_next(&t, &f, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "sum over the header"));
    char h[1024] = {0};
    tar_header(h, "x/../../etc/passwd", 0, '0');
    t = (fv__tar){.data = h, .size = sizeof h, .path = "out.tar"};
    assert_int_equal(fv__tar_next(&t, &f, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "out of the archive"));
    tar_header(h, "x", 100000, '0');
    t = (fv__tar){.data = h, .size = sizeof h, .path = "long.tar"};
    assert_int_equal(fv__tar_next(&t, &f, &e), FV_EFORMAT);
    free(a.data);
    free(png);
}

/* Five images of 2 x 3 and their labels 0, 9, 3, 9, 1. */
static void put_idx(void)
{
    uint8_t images[16 + 30] = {0, 0, 8, 3}, labels[8 + 5] = {0, 0, 8, 1};
    big_endian(images + 4, 5);
    big_endian(images + 8, 2);
    big_endian(images + 12, 3);
    for (int i = 0; i < 30; i++) images[16 + i] = (uint8_t)(10 * i / 6 + i % 6);
    big_endian(labels + 4, 5);
    memcpy(labels + 8, "\0\x09\x03\x09\x01", 5);
    scratch_put("t-images-idx3-ubyte", images, sizeof images);
    scratch_put("t-labels-idx1-ubyte", labels, sizeof labels);
}

static void idx_files_have_their_labels_beside_them(void **state)
{
    (void)state;
    fv_labels labels = {0};
    fv_data_report r = {0};
    fv_err e;
    put_idx();
    fv_images_opt o = {.from = {.file = scratch("t-images-idx3-ubyte")}};
    fv_images *m = open_images(o, &labels);
    assert_int_equal(fv_images_count(m), 5);
    assert_int_equal(labels.n, 10);
    assert_int_equal(fv_images_label(m, 3), 9);
    fv_image im = {0};
    check(fv_images_get(m, 1, &im, &e), &e);
    assert_true(im.width == 3 && im.height == 2 && im.channels == 1 && im.data[0] == 10);
    fv_image_free(&im);
    fv_images_close(m);
    fv_labels_free(&labels);
    scratch_put("t-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x02\x01\x02", 10);
    o.labels = &labels;
    assert_int_equal(fv_images_open(&m, NULL, &o, &r, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "expected 5 labels"));
    scratch_put("t-images-idx3-ubyte",
                "\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16);
    assert_int_equal(fv_images_open(&m, NULL, &o, &r, &e), FV_EFORMAT);
    fv_labels_free(&labels);
}

static void a_table_names_images(void **state)
{
    (void)state;
    fv_err e;
    fv_data_report r = {0};
    put_idx();
    scratch_text("t.tsv",
                 "index\tsplit\tcaption\n4\ttrain\tlast\n0\ttest\tfirst one\n2\ttrain\tmid\n");
    fv_images_opt o = {.from = {.file = scratch("t.tsv"), .field = {"index", "caption"}},
                       .images = "t-images-idx3-ubyte",
                       .where = "split=train"};
    fv_images *m = open_images(o, NULL);
    assert_int_equal(fv_images_count(m), 2);
    assert_string_equal(fv_images_text(m, 1), "mid");
    assert_int_equal(first_level(m, 0), 40);
    fv_images_close(m);
    put_folder("zoo", 2);
    scratch_text("p.jsonl", "{\"image\": \"zoo/emu/001.png\", \"text\": \"an emu\"}\n");
    o = (fv_images_opt){.from = {.file = scratch("p.jsonl"), .field = {"image", "text"}}};
    m = open_images(o, NULL);
    assert_int_equal(first_level(m, 0), 101);
    assert_string_equal(fv_images_text(m, 0), "an emu");
    fv_images_close(m);
    scratch_text("t.tsv", "index\tcaption\n7\tlast\n");
    o = (fv_images_opt){.from = {.file = scratch("t.tsv"), .field = {"index", "caption"}},
                        .images = "t-images-idx3-ubyte"};
    assert_int_equal(fv_images_open(&m, NULL, &o, &r, &e), FV_EFORMAT);
    assert_non_null(strstr(e.text, "no number of an image, 0 to 4"));
}

/* ---- augmentation ---- */

static fv_image copy_of(const fv_image *im)
{
    fv_image c = {0};
    fv_err e;
    check(fv_image_crop(&c, im, (fv_window){0, 0, im->width, im->height}, &e), &e);
    return c;
}

static void changes_come_from_the_seed(void **state)
{
    (void)state;
    const fv__augment a = {.flip = true,
                           .shift = 3,
                           .rand_augment = 3,
                           .magnitude = 12,
                           .brightness = 0.4f,
                           .contrast = 0.4f,
                           .saturation = 0.4f,
                           .hue = 0.1f,
                           .erase = 0.5f};
    const uint8_t fill[3] = {100, 110, 120};
    fv_image base = {0}, other = {0};
    fv_err e;
    int changed = 0;
    put_picture(scratch("a.png"), 80);
    check(fv_image_open(&base, NULL, scratch("a.png"), &e), &e);
    for (int i = 0; i < 200; i++) {
        fv_image x = copy_of(&base), y = copy_of(&base);
        fv_data_rng rng = {7, i / 10};
        fv__dice d = fv__dice_of(rng, FV__DICE_AUGMENT, i), again = d;
        check(fv__augment_image(&a, &x, &other, fill, &d, &e), &e);
        check(fv__augment_image(&a, &y, &other, fill, &again, &e), &e);
        assert_true(x.width == SIDE && x.height == SIDE && x.channels == 3);
        assert_memory_equal(x.data, y.data, SIDE * SIDE * 3);
        changed += memcmp(x.data, base.data, SIDE * SIDE * 3) != 0;
        fv_image_free(&x);
        fv_image_free(&y);
    }
    assert_true(changed > 190);
    fv_image_free(&base);
    fv_image_free(&other);
}

/* The part that is shown lies inside: nothing is filled in. */
static void a_zoom_shows_a_part(void **state)
{
    (void)state;
    const fv__augment a = {.zoom = 0.7f};
    const uint8_t fill[3] = {255, 255, 255};
    fv_image base = {0}, other = {0};
    fv_err e;
    check(fv_image_new(&base, NULL, SIDE, SIDE, 1, &e), &e);
    for (int i = 0; i < SIDE * SIDE; i++) base.data[i] = (uint8_t)(20 + i % SIDE);
    for (int i = 0; i < 100; i++) {
        fv_image x = copy_of(&base);
        fv__dice d = fv__dice_of((fv_data_rng){3, 0}, FV__DICE_AUGMENT, i);
        check(fv__augment_image(&a, &x, &other, fill, &d, &e), &e);
        for (int k = 1; k < SIDE; k++)
            assert_true(x.data[k] >= x.data[k - 1] && x.data[k] < 20 + SIDE);
        fv_image_free(&x);
    }
    fv_image_free(&base);
    fv_image_free(&other);
}

/* Pixel (x,y) of an image that is turned `turns` quarters, counter-clockwise. */
static const uint8_t *turned_back(const fv_image *im, int turns, int x, int y)
{
    for (int i = 0; i < turns; i++) {
        int was = x;
        x = SIDE - 1 - y;
        y = was;
    }
    return im->data + 3 * (y * SIDE + x);
}

/* Whatever was drawn, every pixel of the result is one of the image or of the other's part. */
static void pairs_are_changed_alike(void **state)
{
    (void)state;
    fv_image base = {0}, part = {0}, other = {0};
    fv_err e;
    int cut = 0, colours = 0, turned = 0, as_it_was = 0;
    check(fv_image_new(&base, NULL, SIDE, SIDE, 3, &e), &e);
    check(fv_image_new(&part, NULL, SIDE, SIDE, 3, &e), &e);
    for (int i = 0; i < SIDE * SIDE * 3; i++) base.data[i] = (uint8_t)(i * 7);
    memset(part.data, 255, SIDE * SIDE * 3);
    for (int i = 0; i < 400; i++) {
        fv__dice d = fv__dice_of((fv_data_rng){9, 2}, FV__DICE_JOINT, i);
        fv__joint j = fv__joint_of(0.5, SIDE, SIDE, &d);
        fv_image x = copy_of(&base);
        check(fv__joint_apply(&j, &x, &other, &part, &e), &e);
        assert_true(j.x >= 0 && j.y >= 0 && j.x + j.width <= SIDE && j.y + j.height <= SIDE);
        for (int at = 0; at < SIDE * SIDE; at++) {
            int px = at % SIDE, py = at / SIDE;
            const uint8_t *got = turned_back(&x, (4 - j.turns) % 4, px, py);
            int from = j.mirror ? SIDE - 1 - px : px;
            bool pasted = j.width && from >= j.x && from < j.x + j.width && py >= j.y &&
                          py < j.y + j.height;
            for (int c = 0; c < 3; c++)
                assert_int_equal(got[c],
                                 pasted ? 255 : base.data[3 * (py * SIDE + from) + j.order[c]]);
        }
        cut += j.width > 0, colours += j.order[0] != 0 || j.order[1] != 1, turned += j.turns > 0;
        as_it_was += !memcmp(x.data, base.data, SIDE * SIDE * 3);
        fv_image_free(&x);
    }
    assert_true(cut > 150 && cut < 250 && colours > 120 && turned > 110 && as_it_was > 20);
    fv__dice d = fv__dice_of((fv_data_rng){9, 2}, FV__DICE_JOINT, 0);
    fv__joint none = fv__joint_of(0, SIDE, SIDE, &d);
    assert_true(!none.width && !none.turns && !none.mirror && none.order[1] == 1);
    fv_image_free(&base);
    fv_image_free(&part);
    fv_image_free(&other);
}

static void operations_do_what_pil_does(void **state)
{
    (void)state;
    fv_image im = {0}, turned = {0};
    fv_err e;
    const uint8_t fill[3] = {0};
    check(fv_image_new(&im, NULL, 5, 5, 1, &e), &e);
    check(fv_image_new(&turned, NULL, 5, 5, 1, &e), &e);
    for (int i = 0; i < 25; i++) im.data[i] = (uint8_t)(10 * i);
    const double quarter[6] = {0, 1, 0, -1, 0, 0};
    fv__image_affine(&turned, &im, quarter, fill);
    for (int y = 0; y < 5; y++)
        for (int x = 0; x < 5; x++)
            assert_int_equal(turned.data[5 * y + x], im.data[5 * (4 - x) + y]);
    fv__image_posterize(&im, 4);
    assert_int_equal(im.data[10], 96); /* 100 */
    fv__image_solarize(&im, 128);
    assert_int_equal(im.data[24], 255 - 240);
    for (int i = 0; i < 25; i++) im.data[i] = (uint8_t)(50 + 2 * i);
    fv__image_autocontrast(&im);
    assert_true(im.data[0] == 0 && im.data[24] == 255 && im.data[12] == 127);
    const uint8_t red[3] = {200, 20, 40};
    check(fv_image_new(&im, NULL, 1, 1, 3, &e), &e);
    memcpy(im.data, red, 3);
    fv__image_hue(&im, 1. / 3);
    assert_true(im.data[0] == 40 && im.data[1] == 200 && im.data[2] == 20);
    fv__image_saturation(&im, 0);
    assert_true(im.data[0] == im.data[1] && im.data[1] == im.data[2]);
    fv_image_free(&im);
    fv_image_free(&turned);
}

static void mixing_keeps_what_it_says(void **state)
{
    (void)state;
    enum { N = 5, C = 2, H = 8, W = 8, ALL = C * H * W };
    const fv__augment kinds[] = {{.mixup = 0.5f}, {.cutmix = 1}, {.mixup = 0.8f, .cutmix = 1}};
    const int32_t rows[N] = {10, 11, 12, 13, 14};
    static float x[N * ALL], share[N];
    for (int k = 0; k < 3; k++)
        for (int epoch = 0; epoch < 20; epoch++) {
            for (int i = 0; i < N * ALL; i++) x[i] = (float)(i / ALL);
            fv__augment_mix(&kinds[k], x, share, rows, N, C, H, W, (fv_data_rng){3, epoch});
            assert_true(share[2] == 1); /* in the middle: alone */
            for (int i = 0; i < N; i++) {
                double mean = 0, want = (double)share[i] * i + (1 - (double)share[i]) * (N - 1 - i);
                for (int j = 0; j < ALL; j++) mean += (double)x[i * ALL + j] / ALL;
                assert_true(fabs(mean - want) < 1e-5);
                assert_true(share[i] >= 0 && share[i] <= 1);
            }
        }
}

/* ---- the objective's feed ---- */

static fv_labels feed_labels;

static void open_feed(fv_feed *out, fv_processor **p, void *own, const char *const *keys)
{
    const fv_objective *o = fv_objective_find("image_classify");
    fv_err e;
    fv_data_report r = {0};
    fv_records from = {.file = scratch("zoo")};
    fv_fields_default(own, o->keys);
    for (; keys[0]; keys += 2) check(fv_fields_set(own, o->keys, keys[0], keys[1], &e), &e);
    check(o->make_processor(p, NULL, own, &from, NULL, &e), &e);
    fv_feed_opt t = {.processor = *p, .options = own, .labels = &feed_labels};
    check(o->open(out, &t, &from, &r, &e), &e);
}

/* The sum over everything in the first batches of a loader. */
static void read_batches(const fv_feed *f, int64_t workers, int n, uint64_t *hash)
{
    fv_loader *l;
    fv_err e;
    const fv_loaded *b;
    fv_loader_opt o = {.plan = {.tokens = 1000, .rows = 4, .rng = {5, 0}},
                       .ahead = workers ? 6 : 0,
                       .workers = workers};
    check(fv_loader_new(&l, NULL, f, o, &e), &e);
    *hash = 1469598103934665603u;
    for (int i = 0; i < n; i++) {
        check(fv_loader_next(l, &b, &e), &e);
        for (int k = 0; k < b->batch.n; k++) {
            const fv_batch_part *p = &b->batch.part[k];
            const uint8_t *bytes = p->data;
            for (int64_t j = 0; j < fv_shape_len(p->shape) * 4; j++)
                *hash = (*hash ^ bytes[j]) * 1099511628211u;
        }
        fv_loader_release(l);
    }
    fv_loader_free(l);
}

static void batches_do_not_depend_on_workers(void **state)
{
    (void)state;
    static const char *const keys[] = {"image_size", "10",  "flip",  "true", "shift",        "2",
                                       "mixup",      "0.5", "cache", "0",    "rand_augment", "2",
                                       NULL};
    static const char *const cached[] = {"image_size", "10",  "flip",  "true", "shift",        "2",
                                         "mixup",      "0.5", "cache", "16",   "rand_augment", "2",
                                         NULL};
    static _Alignas(16) unsigned char own[4096];
    put_folder("zoo", 5);
    uint64_t want = 0, got;
    for (int c = 0; c < 2; c++) {
        fv_feed f;
        fv_processor *p;
        open_feed(&f, &p, own, c ? cached : keys);
        for (int workers = 0; workers <= 4; workers++) {
            read_batches(&f, workers, 11, &got);
            if (!want) want = got;
            assert_true(got == want);
        }
        fv_feed_close(&f);
        fv_processor_close(p);
    }
    fv_labels_free(&feed_labels);
}

static void a_batch_has_pixels_and_labels(void **state)
{
    (void)state;
    static const char *const keys[] = {"channels", "3", "cutmix", "1", NULL};
    static _Alignas(16) unsigned char own[4096];
    fv_feed f;
    fv_processor *p;
    fv_err e;
    fv_batch b = {0};
    const int32_t rows[] = {0, 7, 14};
    put_folder("zoo", 5);
    open_feed(&f, &p, own, keys);
    assert_int_equal(f.count(f.self, 0), 15);
    check(f.make(f.self, &b, rows, 3, (fv_data_rng){1, -1}, &e), &e);
    assert_null(fv_batch_get(&b, "mixed_labels"));
    const fv_batch_part *x = fv_batch_get(&b, "pixel_values");
    assert_true(x->shape.n == 4 && x->shape.d[1] == 3 && x->shape.d[3] == SIDE);
    assert_int_equal(((int32_t *)fv_batch_get(&b, "labels")->data)[2], 2);
    fv_batch_clear(&b);
    check(f.make(f.self, &b, rows, 3, (fv_data_rng){1, 0}, &e), &e);
    assert_int_equal(((int32_t *)fv_batch_get(&b, "mixed_labels")->data)[0], 2);
    assert_non_null(fv_batch_get(&b, "label_share"));
    fv_batch_free(&b);
    fv_feed_close(&f);
    fv_processor_close(p);
    fv_labels_free(&feed_labels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_names_its_label),
        cmocka_unit_test(an_archive_is_read_like_a_folder),
        cmocka_unit_test(idx_files_have_their_labels_beside_them),
        cmocka_unit_test(a_table_names_images),
        cmocka_unit_test(changes_come_from_the_seed),
        cmocka_unit_test(a_zoom_shows_a_part),
        cmocka_unit_test(pairs_are_changed_alike),
        cmocka_unit_test(operations_do_what_pil_does),
        cmocka_unit_test(mixing_keeps_what_it_says),
        cmocka_unit_test(batches_do_not_depend_on_workers),
        cmocka_unit_test(a_batch_has_pixels_and_labels),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
