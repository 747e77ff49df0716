/* gemm.c - products for tests. */
#include "gemm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

fv_kernels gemm_reference[FV_FLOATS];
fv_device *gemm_device;

int gemm_setup(void **state)
{
    (void)state;
    fv__ref_fill(gemm_reference);
    return fv_device_open(&gemm_device, "cpu", (fv_device_opt){0}, NULL);
}

int gemm_teardown(void **state)
{
    (void)state;
    fv_device_close(gemm_device);
    return 0;
}

static uint64_t dice = 1;

static float uniform(void) /* -1..1 */
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(dice >> 32) * 0x1p-31f;
}

void *gemm_memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

/* n numbers of dtype t, and the same numbers as f32 in *f. */
void *gemm_numbers(fv_dtype t, int64_t n, float **f)
{
    float *x = gemm_memory((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) x[i] = uniform();
    void *p = gemm_memory((size_t)n * fv_dtype_size(t));
    gemm_reference[FV_F32].cast(NULL, (fv_sink){p, t, false}, x, n);
    gemm_reference[t].cast(NULL, (fv_sink){x, FV_F32, false}, p, n);
    *f = x;
    return p;
}

gemm_problem gemm_make(const gemm_case *t)
{
    gemm_problem p = {0};
    int64_t pad = t->pad ? 3 : 0, batch = t->batch ? t->batch : 1;
    fv_gemm g = {.m = t->m,
                 .n = t->n,
                 .k = t->k,
                 .batch = batch,
                 .ta = t->ta,
                 .tb = t->tb,
                 .bt = t->table,
                 .ct = t->ct,
                 .add = t->add,
                 .alpha = t->alpha,
                 .act = t->act};
    g.lda = (t->ta ? t->m : t->k) + pad, g.ldb = (t->tb ? t->k : t->n) + pad, g.ldc = t->n + pad;
    g.stride_a = (t->ta ? t->k : t->m) * g.lda, g.stride_b = (t->tb ? t->n : t->k) * g.ldb,
    g.stride_c = t->m * g.ldc;
    p.c_len = batch * g.stride_c;
    p.a_real = gemm_numbers(t->table, batch * g.stride_a, &p.a);
    p.b_real = gemm_numbers(t->table, batch * g.stride_b, &p.b);
    p.bias_real = gemm_numbers(t->table, t->n, &p.bias);
    p.c_first = gemm_numbers(t->ct, p.c_len, &p.c);
    g.a = p.a_real, g.b = p.b_real;
    if (t->bias) g.bias = p.bias_real;
    p.g = g;
    return p;
}

void gemm_drop(gemm_problem *p)
{
    void *all[] = {p->a,      p->b,        p->bias,      p->c,      p->a_real,
                   p->b_real, p->b_packed, p->bias_real, p->c_first};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

void *gemm_run(fv_device *d, const gemm_case *t, const gemm_problem *p, int threads, void **pre)
{
    fv_stream s;
    fv_err e = {0};
    assert_int_equal(fv__stream_open(&s, d, threads, &e), FV_OK);
    size_t bytes = (size_t)p->c_len * fv_dtype_size(t->ct);
    void *c = gemm_memory(bytes), *packed = NULL;
    memcpy(c, p->c_first, bytes);
    fv_gemm g = p->g;
    g.c = c;
    if (t->pre) {
        *pre = g.pre = gemm_memory((size_t)p->c_len * fv_dtype_size(t->table));
        memset(g.pre, 0, (size_t)p->c_len * fv_dtype_size(t->table));
    }
    if (t->packed) {
        size_t size = d->k[t->table]->pack_bytes(g.n, g.k, t->pack_as);
        assert_true(size > 0);
        packed = gemm_memory(size);
        memset(packed, 0xff, size);
        d->k[t->table]->pack(&s, packed, t->pack_as, g.b, t->table, g.n, g.k, g.ldb, g.tb);
        g.packed = true, g.b = packed, g.bt = t->pack_as, g.ldb = 0, g.stride_b = 0, g.tb = false;
    }
    d->k[t->table]->gemm(&s, &g);
    assert_int_equal(s.err.code, FV_OK);
    fv__stream_close(&s);
    free(packed);
    return c;
}

const int64_t gemm_sizes[][3] = {{1, 1, 1},      {1, 5, 33},   {2, 13, 7},    {3, 47, 256},
                                 {4, 12, 257},   {5, 33, 64},  {6, 96, 31},   {7, 31, 513},
                                 {8, 8, 100},    {9, 25, 300}, {11, 130, 17}, {13, 49, 40},
                                 {14, 32, 32},   {15, 65, 65}, {16, 100, 96}, {17, 7, 600},
                                 {130, 70, 270}, {29, 200, 1}};
const size_t gemm_sizes_n = sizeof gemm_sizes / sizeof *gemm_sizes;
