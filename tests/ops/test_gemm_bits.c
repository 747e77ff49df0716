/* test_gemm_bits.c - the matrix product has the same bits whatever surrounds a row.
 *
 * Runs once for each instruction level (FOVEA_CPU); one test compares the levels with each
 * other. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "helper/gemm.h"

/* All of a batch into one C: the products are added in order. */
static void test_batch_into_one(void **state)
{
    (void)state;
    gemm_case t = {.m = 40, .n = 50, .k = 60, .batch = 7, .add = true};
    gemm_problem p = gemm_make(&t);
    fv_gemm together = p.g, each = p.g;
    float *one = gemm_memory(40 * 50 * 4), *other = gemm_memory(40 * 50 * 4);
    memset(one, 0, 40 * 50 * 4);
    memset(other, 0, 40 * 50 * 4);
    fv_stream s;
    fv_err e = {0};
    assert_int_equal(fv__stream_open(&s, gemm_device, 3, &e), FV_OK);
    together.c = one;
    together.stride_c = 0;
    gemm_device->k[FV_F32]->gemm(&s, &together);
    each.c = other;
    each.batch = 1;
    for (int i = 0; i < 7; i++) {
        each.a = (const float *)p.g.a + i * p.g.stride_a;
        each.b = (const float *)p.g.b + i * p.g.stride_b;
        gemm_device->k[FV_F32]->gemm(&s, &each);
    }
    assert_memory_equal(one, other, 40 * 50 * 4);
    fv__stream_close(&s);
    free(one);
    free(other);
    gemm_drop(&p);
}

/* A weight as a file holds it gives the same bits as one that was laid out, in every dtype that
 * both can have. */
static void test_stored(void **state)
{
    (void)state;
    const fv_dtype kinds[] = {FV_F32, FV_BF16, FV_F16};
    const int64_t shapes[][2] = {{40, 776}, {3112, 64}, {75, 400},           {17, 1032},
                                 {8, 8},    {24, 33},   {43, 2 * FV_GEMM_KC}};
    fv_stream s;
    fv_err e = {0};
    for (int q = 0; q < 3 * 7 * 2; q++) {
        fv_dtype dt = kinds[q % 3];
        bool tb = q / 21;
        int64_t n = shapes[q / 3 % 7][0], k = shapes[q / 3 % 7][1];
        float *wide, *a;
        void *w = gemm_numbers(dt, n * k, &wide);
        free(gemm_numbers(FV_F32, 9 * k, &a));
        void *packed = gemm_memory(gemm_device->k[FV_F32]->pack_bytes(n, k, dt));
        float *one = gemm_memory((size_t)(9 * n) * 4), *other = gemm_memory((size_t)(9 * n) * 4);
        for (int64_t m = 1; m <= 9; m++) {
            assert_int_equal(fv__stream_open(&s, gemm_device, 1 + (int)m % 3, &e), FV_OK);
            fv_gemm g = {.m = m,
                         .n = n,
                         .k = k,
                         .batch = 1,
                         .a = a,
                         .b = w,
                         .c = one,
                         .bias = wide,
                         .act = FV_GELU,
                         .bt = dt};
            g.lda = k;
            g.ldb = tb ? k : n;
            g.ldc = n;
            g.tb = tb;
            g.alpha = m % 2 ? 0 : 0.5f;
            gemm_device->k[FV_F32]->gemm(&s, &g);
            gemm_device->k[FV_F32]->pack(&s, packed, dt, w, dt, n, k, g.ldb, tb);
            g.packed = true;
            g.b = packed;
            g.c = other;
            gemm_device->k[FV_F32]->gemm(&s, &g);
            assert_memory_equal(one, other, (size_t)(m * n) * 4);
            fv__stream_close(&s);
        }
        free(w);
        free(wide);
        free(a);
        free(packed);
        free(one);
        free(other);
    }
}

/* A NaN or an infinity among activations that are rounded to bytes: its row shows it, and no other
 * row does. */
static void check_not_finite(fv_dtype dt, int64_t m, float bad, int64_t at)
{
    enum { WIDTH = 40, DEPTH = 256 };
    const fv_kernels *f = gemm_device->k[FV_F32];
    float *a, *w, *clean = gemm_memory((size_t)(m * WIDTH) * 4),
                  *c = gemm_memory((size_t)(m * WIDTH) * 4);
    void *packed = gemm_memory(f->pack_bytes(WIDTH, DEPTH, dt));
    int64_t row = m / 2;
    fv_stream s;
    fv_err e = {0};
    free(gemm_numbers(FV_F32, m * DEPTH, &a));
    free(gemm_numbers(FV_F32, WIDTH * DEPTH, &w));
    assert_int_equal(fv__stream_open(&s, gemm_device, 2, &e), FV_OK);
    f->pack(&s, packed, dt, w, FV_F32, WIDTH, DEPTH, DEPTH, true);
    fv_gemm g = {.m = m,
                 .n = WIDTH,
                 .k = DEPTH,
                 .batch = 1,
                 .a = a,
                 .b = packed,
                 .c = clean,
                 .lda = DEPTH,
                 .ldc = WIDTH,
                 .bt = dt};
    g.packed = true;
    f->gemm(&s, &g);
    a[row * DEPTH + at] = bad;
    g.c = c;
    f->gemm(&s, &g);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < WIDTH; j++)
            if (i == row)
                assert_false(isfinite(c[i * WIDTH + j]));
            else
                assert_memory_equal(&c[i * WIDTH + j], &clean[i * WIDTH + j], 4);
    fv__stream_close(&s);
    free(a);
    free(w);
    free(clean);
    free(c);
    free(packed);
}

static void test_not_finite(void **state)
{
    (void)state;
    const fv_dtype kinds[] = {FV_Q8, FV_Q4, FV_I8};
    const int64_t rows[] = {1, 3, 12, 40};
    for (int q = 0; q < 3; q++)
        for (int r = 0; r < 4; r++)
            for (int64_t at = 0; at < 40; at += 13) {
                check_not_finite(kinds[q], rows[r], NAN, at);
                check_not_finite(kinds[q], rows[r], INFINITY, at);
                check_not_finite(kinds[q], rows[r], -INFINITY, at);
            }
}

/* A row has the same bits alone and among others, and with the weight packed or not. */
static void test_row_alone(void **state)
{
    (void)state;
    const fv_dtype packs[] = {FV_F32, FV_BF16, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int q = 0; q < 6; q++)
        for (int64_t m = 2; m < 70; m += 1 + m / 3) {
            gemm_case t = {.m = m,
                           .n = 75,
                           .k = 530,
                           .tb = true,
                           .packed = true,
                           .pack_as = packs[q],
                           .bias = true,
                           .act = FV_GELU};
            gemm_problem p = gemm_make(&t);
            float *all = gemm_run(gemm_device, &t, &p, 2, NULL);
            for (int64_t i = 0; i < m; i++) {
                gemm_case alone = t;
                gemm_problem row = p;
                alone.m = row.g.m = 1;
                row.g.a = (const float *)p.g.a + i * p.g.lda;
                row.c_len = row.g.ldc;
                float *one = gemm_run(gemm_device, &alone, &row, 1, NULL);
                assert_memory_equal(one, all + i * p.g.ldc, 75 * 4);
                free(one);
            }
            if (packs[q] == FV_F32) {
                gemm_case plain = t;
                plain.packed = false;
                float *other = gemm_run(gemm_device, &plain, &p, 1, NULL);
                assert_memory_equal(other, all, (size_t)p.c_len * 4);
                free(other);
            }
            free(all);
            gemm_drop(&p);
        }
}

/* The runs of a few rows may be computed by several threads: no bit tells. */
static void test_few_rows_on_threads(void **state)
{
    (void)state;
    const fv_dtype packs[] = {FV_F32, FV_BF16, FV_F16, FV_Q8, FV_Q4, FV_I8};
    const int64_t sizes[][2] = {{75, 530}, {400, 2100}};
    for (int q = 0; q < 6 * 2 * 3; q++) {
        gemm_case t = {.m = 1 + q % 3,
                       .n = sizes[q / 3 % 2][0],
                       .k = sizes[q / 3 % 2][1],
                       .tb = true,
                       .packed = true,
                       .pack_as = packs[q / 6],
                       .alpha = q % 2 ? 0.3f : 0,
                       .bias = true,
                       .act = FV_GELU};
        gemm_problem p = gemm_make(&t);
        float *one = gemm_run(gemm_device, &t, &p, 1, NULL);
        for (int threads = 2; threads < 20; threads += 5) {
            float *several = gemm_run(gemm_device, &t, &p, threads, NULL);
            assert_memory_equal(several, one, (size_t)p.c_len * 4);
            free(several);
        }
        free(one);
        gemm_drop(&p);
    }
}

/* A long inner axis is taken in pieces where there are many rows, and whole where there are few: no
 * bit may tell. */
static void test_long_row_alone(void **state)
{
    (void)state;
    const fv_dtype tables[] = {FV_F32, FV_BF16};
    for (int flags = 0; flags < 16; flags++) {
        fv_dtype table = tables[flags & 1];
        gemm_case t = {.m = 330,
                       .n = 21,
                       .k = 20011,
                       .tb = flags & 2,
                       .pad = true,
                       .table = table,
                       .ct = flags & 4 ? FV_F32 : table,
                       .add = flags & 8,
                       .bias = !(flags & 8),
                       .act = flags & 8 ? FV_ACT_NONE : FV_RELU};
        size_t size = fv_dtype_size(t.ct);
        gemm_problem p = gemm_make(&t);
        char *all = gemm_run(gemm_device, &t, &p, 2, NULL);
        for (int64_t i = 0; i < 330; i += 47) {
            gemm_case alone = t;
            gemm_problem row = p;
            alone.m = row.g.m = 1;
            row.g.a = (const char *)p.g.a + (size_t)(i * p.g.lda) * fv_dtype_size(table);
            row.c_first = (char *)p.c_first + (size_t)(i * p.g.ldc) * size;
            row.c_len = row.g.ldc;
            char *one = gemm_run(gemm_device, &alone, &row, 1, NULL);
            assert_memory_equal(one, all + (size_t)(i * p.g.ldc) * size, 21 * size);
            free(one);
        }
        free(all);
        gemm_drop(&p);
    }
}

/* Memory whose last byte is the last of a page, with no memory behind it. */
typedef struct last_page {
    char *pages;
    size_t bytes;
    void *p;
} last_page;

static last_page at_end_of_memory(const void *from, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), all = (bytes + page - 1) / page * page;
    last_page m = {.bytes = all + page};
    m.pages = mmap(NULL, m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(m.pages != MAP_FAILED);
    assert_int_equal(mprotect(m.pages + all, page, PROT_NONE), 0);
    m.p = memcpy(m.pages + all - bytes, from, bytes);
    return m;
}

/* Several threads read the rows of A where they lie: the same bits as one that packs them, for
 * any number of rows, and nothing behind the last is read. */
static void test_rows_in_place(void **state)
{
    const int64_t rows[] = {2, 15, 33, 48, 49, 95, 100, 129, 320}, ks[] = {64, 288, 800, 2048};
    (void)state;
    for (int i = 0; i < 9 * 4 * 6; i++) {
        fv_dtype table = i / 36 % 3 ? FV_BF16 : FV_F32;
        gemm_case t = {.m = rows[i % 9],
                       .n = 130,
                       .k = ks[i / 9 % 4],
                       .tb = true,
                       .table = table,
                       .ct = i / 36 % 3 == 1 ? FV_BF16 : FV_F32,
                       .add = i % 2,
                       .alpha = i % 5 ? 0 : 0.3f,
                       .packed = i / 108,
                       .pack_as = table};
        gemm_problem p = gemm_make(&t);
        size_t row = (size_t)t.k * fv_dtype_size(table),
               bytes = (size_t)p.c_len * fv_dtype_size(t.ct);
        last_page a = at_end_of_memory(p.g.a, (size_t)t.m * row);
        p.g.a = a.p;
        void *one = gemm_run(gemm_device, &t, &p, 1, NULL);
        for (int threads = 2; threads <= 12; threads += 5) {
            void *several = gemm_run(gemm_device, &t, &p, threads, NULL);
            assert_memory_equal(several, one, bytes);
            free(several);
        }
        free(one);
        munmap(a.pages, a.bytes);
        gemm_drop(&p);
    }
}

/* A large second factor is laid out a slice at a time, a large first one a block at a time; one
 * that came laid out is taken whole. */
static void test_slices(void **state)
{
    (void)state;
    const int64_t sizes[][2] = {{272, 1450}, {60, 2900}, {2900, 19}};
    for (int i = 0; i < 3; i++) {
        gemm_case t = {.m = sizes[i][0], .n = sizes[i][1], .k = 3000, .tb = i != 1, .ta = i == 2};
        gemm_case laid_out = t;
        laid_out.packed = true;
        gemm_problem p = gemm_make(&t);
        float *whole = gemm_run(gemm_device, &laid_out, &p, 2, NULL);
        for (int threads = 1; threads <= 12; threads += threads == 3 ? 9 : 1) {
            float *slices = gemm_run(gemm_device, &t, &p, threads, NULL);
            assert_memory_equal(slices, whole, (size_t)p.c_len * sizeof *whole);
            free(slices);
        }
        free(whole);
        gemm_drop(&p);
    }
}

/* So many rows that the chunks of many threads are bounded: by the memory for their sums. */
static void test_bounded_chunks(void **state)
{
    (void)state;
    const fv_dtype packs[] = {FV_F32, FV_BF16, FV_Q8, FV_I8};
    for (int i = 0; i < 4; i++) {
        gemm_case t = {.m = 26000,
                       .n = 33,
                       .k = 800,
                       .tb = true,
                       .table = FV_BF16,
                       .ct = FV_BF16,
                       .bias = true,
                       .packed = true,
                       .pack_as = packs[i]};
        gemm_problem p = gemm_make(&t);
        void *one = gemm_run(gemm_device, &t, &p, 1, NULL),
             *many = gemm_run(gemm_device, &t, &p, 12, NULL);
        assert_memory_equal(many, one, (size_t)p.c_len * fv_dtype_size(t.ct));
        free(one);
        free(many);
        gemm_drop(&p);
    }
}

/* With fused multiply-add the fast product in f32 is the reference, bit by bit. */
static void test_documented_order(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (!strcmp(gemm_device->level, "generic")) skip();
#endif
    for (size_t i = 0; i < gemm_sizes_n; i++)
        for (int flags = 0; flags < 8; flags++) {
            gemm_case t = {.m = gemm_sizes[i][0],
                           .n = gemm_sizes[i][1],
                           .k = gemm_sizes[i][2],
                           .ta = flags & 1,
                           .tb = flags & 2,
                           .add = flags & 4,
                           .bias = !(flags & 4),
                           .alpha = i % 2 ? 0.3f : 0};
            gemm_problem p = gemm_make(&t);
            float *fast = gemm_run(gemm_device, &t, &p, 2, NULL);
            fv_device plain = *gemm_device;
            plain.k[FV_F32] = &gemm_reference[FV_F32];
            float *slow = gemm_run(&plain, &t, &p, 1, NULL);
            assert_memory_equal(fast, slow, (size_t)p.c_len * 4);
            free(fast);
            free(slow);
            gemm_drop(&p);
        }
}

/* Levels with fused multiply-add agree bit by bit, in f32 and with quantised weights. */
static void test_levels_agree(void **state)
{
    (void)state;
    const char *names[8];
    int n = fv_cpu_levels(names, 8);
    const fv_dtype packs[] = {FV_F32, FV_F16, FV_Q8, FV_Q4, FV_I8};
    for (int q = 0; q < 5; q++) {
        gemm_case t = {.m = 19,
                       .n = 61,
                       .k = 700,
                       .tb = true,
                       .packed = true,
                       .pack_as = packs[q],
                       .bias = true};
        gemm_problem p = gemm_make(&t);
        float *first = NULL;
        for (int i = 0; i < n; i++) {
            fv_device *d;
            fv_err e = {0};
#if defined(__x86_64__)
            if (!strcmp(names[i], "generic")) continue;
#endif
            assert_int_equal(fv_device_open(&d, "cpu",
                                            (fv_device_opt){.level = names[i], .threads = 2}, &e),
                             FV_OK);
            float *c = gemm_run(d, &t, &p, 2, NULL);
            if (first) assert_memory_equal(c, first, (size_t)p.c_len * 4);
            if (first)
                free(c);
            else
                first = c;
            fv_device_close(d);
        }
        free(first);
        gemm_drop(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_into_one), cmocka_unit_test(test_stored),
        cmocka_unit_test(test_not_finite),     cmocka_unit_test(test_row_alone),
        cmocka_unit_test(test_long_row_alone), cmocka_unit_test(test_few_rows_on_threads),
        cmocka_unit_test(test_rows_in_place),  cmocka_unit_test(test_slices),
        cmocka_unit_test(test_bounded_chunks), cmocka_unit_test(test_documented_order),
        cmocka_unit_test(test_levels_agree),
    };
    return cmocka_run_group_tests(tests, gemm_setup, gemm_teardown);
}
