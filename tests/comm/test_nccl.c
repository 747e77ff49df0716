/* test_nccl.c - NCCL with one rank: its collectives, and a training whose gradients and parameters
 * go through it, which ends with the bits of one that does without.  On the CPU only what is
 * refused is looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backends.h"
#include "comm/nccl.h"
#include "core/core.h"
#include "helper/corpus.h"
#include "helper/device.h"
#include "helper/files.h"

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    bool wanted;
    fv__nccl *n;
    fv_err e = {0};
    setenv("FOVEA_GPU_COMM", "radio", 1);
    assert_int_equal(fv__nccl_wanted(&wanted, NULL, 1, &e), FV_EARG);
    assert_non_null(strstr(e.text, "expected auto, nccl or host"));
    setenv("FOVEA_GPU_COMM", "host", 1);
    check(fv__nccl_wanted(&wanted, NULL, 1, &e), &e);
    assert_false(wanted);
    unsetenv("FOVEA_GPU_COMM");
    check(fv__nccl_wanted(&wanted, NULL, 1, &e), &e);
    assert_false(wanted);
    char *file = getenv("FOVEA_NCCL"), *kept = file ? strdup(file) : NULL;
    setenv("FOVEA_NCCL", "/nowhere/libnccl.so.2", 1);
    assert_int_equal(fv__nccl_open(&n, NULL, NULL, &e), FV_EMISSING);
    assert_non_null(strstr(e.text, "NCCL cannot be opened"));
    assert_null(n);
    kept ? setenv("FOVEA_NCCL", kept, 1) : unsetenv("FOVEA_NCCL");
    free(kept);
}

/* One rank that sends to itself, and sums of one. */
static void collectives_of_one_rank(void **state)
{
    (void)state;
    enum { N = 1000 };
    if (test_on_cpu()) skip();
    fv_err e = {0};
    fv_device *d;
    fv_ctx *c;
    fv__nccl *n;
    float x[2 * N], y[2 * N];
    check(fv_device_open(&d, test_device(), (fv_device_opt){0}, &e), &e);
    check(fv_ctx_new(&c, d, (fv_ctx_opt){0}, &e), &e);
    const fv_backend *b = d->backend;
    void *stream = fv__cuda_stream(&c->stream);
    check(fv__nccl_open(&n, NULL, NULL, &e), &e);
    assert_true(atoi(fv__nccl_version(n)) == 2);
    for (int i = 0; i < 2 * N; i++) x[i] = (float)i;
    float *at = b->alloc(d, sizeof x);
    b->upload(&c->stream, at, x, sizeof x);
    fv_comm_part send = {0, at, N * sizeof *at}, recv = {0, at + N, N * sizeof *at};
    check(fv__nccl_exchange(n, stream, &send, 1, &recv, 1, &e), &e);
    check(fv__nccl_all_gather(n, stream, &send, &e), &e);
    check(fv__nccl_all_reduce(n, stream, at, N, &e), &e);
    int64_t from = N, count = N;
    check(fv__nccl_reduce_scatter(n, stream, at, &from, &count, &e), &e);
    b->download(&c->stream, y, at, sizeof y);
    check(fv__nccl_check(n, &e), &e);
    for (int i = 0; i < 2 * N; i++) assert_true(y[i] == x[i % N]);
    b->release(d, at, sizeof x);
    fv__nccl_close(n);
    fv_ctx_free(c);
    fv_device_close(d);
}

/* The parameters after ten updates, cut into shards. */
static float *trained(const char *gpu_comm, bool fast, fv_train_state *s, int64_t *len)
{
    fv_err e = {0};
    fv_device *d;
    setenv("FOVEA_GPU_COMM", gpu_comm, 1);
    check(fv_device_open(&d, test_device(), (fv_device_opt){0}, &e), &e);
    fv_model *m = corpus_model(d, 0.1, FV_F32);
    fv_train_job j = corpus_job(d, m, 10);
    j.opt.shards = 4;
    j.opt.accumulate = 2;
    j.opt.fast_sums = fast;
    check(fv_train(&j, s, &e), &e);
    float *w = test_values(fv_model_params(m), len);
    fv_model_free(m);
    fv_device_close(d);
    unsetenv("FOVEA_GPU_COMM");
    return w;
}

static void training_has_the_bits_of_the_host(void **state)
{
    (void)state;
    if (test_on_cpu()) skip();
    for (int fast = 0; fast < 2; fast++) {
        fv_train_state host, nccl;
        int64_t n, m;
        float *a = trained("host", fast, &host, &n), *b = trained("nccl", fast, &nccl, &m);
        assert_int_equal(n, m);
        assert_true(host.loss == nccl.loss && host.norm == nccl.norm);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
        free(a);
        free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(collectives_of_one_rank),
        cmocka_unit_test(training_has_the_bits_of_the_host),
    };
    return cmocka_run_group_tests(tests, corpus_open, corpus_close);
}
