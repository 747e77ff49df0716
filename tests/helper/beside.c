/* beside.c - a CPU that plays a GPU for the scheduler. */
#include "beside.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device.h"
#include "fovea/fovea.h"
#include "gen/scheduler.h"

/* ---- kernels ---- */

static fv_backend backend;
static fv_kernels kernels;
beside_counts beside_done;

/* As backend/cuda/decode/sample.cu, where rows have settings of their own. */
static bool sample(fv_stream *s, const fv_sample *a)
{
    (void)s;
    float *x = malloc((size_t)a->V * sizeof *x);
    fv_candidate *c = malloc((size_t)a->V * sizeof *c);
    assert_true(x && c && a->row);
    for (int64_t i = 0; i < a->rows; i++) {
        const fv_sample_row *r = &a->row[i];
        fv_gen_opt o;
        uint32_t w[4];
        fv_fields_default(&o, fv_gen_fields);
        o.temperature = r->temperature, o.top_p = r->top_p, o.min_p = r->min_p;
        o.top_k = r->top_k;
        memcpy(x, (const float *)a->logits + i * a->V, (size_t)a->V * sizeof *x);
        for (int k = 0; k < r->n_banned; k++) x[r->banned[k]] = -INFINITY;
        fv_philox(w, r->seed, (uint64_t)r->number, (uint64_t)r->made, 0);
        fv__top_k(c, 1, x, a->V);
        a->tokens[i] = c->token;
        if (a->do_sample && r->do_sample)
            a->tokens[i] = fv__sample_token(x, a->V, &o, ((double)w[0] + 0.5) * 0x1p-32, c);
        a->scores[i] = 0;
        beside_done.chosen++;
    }
    free(x);
    free(c);
    return true;
}

/* As backend/cuda/attention/weights.cu: a row of as many keys as the job says. */
static void attention_rows(fv_stream *s, float *out, const fv_attn_args *a,
                           const fv_weights_job *jobs, int64_t n)
{
    float *row = malloc((size_t)a->Tk * sizeof *row);
    assert_non_null(row);
    for (int64_t i = 0; i < n; i++) {
        if (!jobs[i].n) continue;
        kernels.attention_weights(s, (fv_sink){row, FV_F32, false}, a, jobs[i].b, jobs[i].head,
                                  jobs[i].query, jobs[i].query + 1);
        memcpy(out + jobs[i].at, row, (size_t)jobs[i].n * sizeof *row);
        beside_done.listed++;
        beside_done.of_prompts += a->Tq > 1;
    }
    free(row);
}

static void copy_many(fv_stream *s, const fv_copy *list, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++) memcpy(list[i].to, list[i].from, list[i].bytes);
    beside_done.copied += n;
}

/* As if all at once: everything is read before it is written. */
static void move_rows(fv_stream *s, const fv_cache_rows *cache, int64_t n_caches,
                      const fv_cache_move *m, int64_t n)
{
    (void)s;
    for (int64_t k = 0; k < n_caches; k++) {
        const fv_cache_rows *c = &cache[k];
        char **aside = malloc((size_t)(n + 1) * sizeof *aside);
        assert_non_null(aside);
        for (int64_t i = 0; i < n; i++) {
            size_t bytes = (size_t)(m[i].end - m[i].first) * c->token;
            aside[i] = malloc(bytes);
            assert_non_null(aside[i]);
            memcpy(aside[i],
                   (char *)c->data + (size_t)m[i].from * c->row + (size_t)m[i].first * c->token,
                   bytes);
        }
        for (int64_t i = 0; i < n; i++) {
            memcpy((char *)c->data + (size_t)m[i].to * c->row + (size_t)m[i].first * c->token,
                   aside[i], (size_t)(m[i].end - m[i].first) * c->token);
            free(aside[i]);
        }
        free(aside);
    }
    beside_done.moved += n;
}

static bool capture(fv_stream *s)
{
    (void)s;
    return false; /* nothing is: every step runs */
}

fv_device beside_dress(const fv_device *d)
{
    fv_device beside = *d;
    backend = *d->backend;
    backend.capture = capture;
    kernels = *d->k[FV_F32];
    kernels.sample = sample;
    kernels.attention_rows = attention_rows;
    kernels.copy_many = copy_many;
    kernels.move_rows = move_rows;
    beside.backend = &backend;
    beside.k[FV_F32] = &kernels;
    return beside;
}

/* ---- pages ---- */

beside_memory beside_pages;
static fv_backend paging;
static const fv_backend *below;
static char *data; /* the only reservation */
static size_t n_pages;
static bool *has; /* its pages that have memory */

static size_t page_size(fv_device *d)
{
    beside_pages.asked++;
    return test_on_cpu() ? BESIDE_PAGE : below->page_size(d);
}

/* Numbers that would be seen if they counted. */
static void make_noise(size_t page)
{
    float *at = (float *)(data + page * BESIDE_PAGE);
    for (size_t i = 0; test_on_cpu() && i < BESIDE_PAGE / sizeof *at; i++)
        at[i] = i % 2 ? 30.f : -20.f;
}

static void *reserve(fv_device *d, size_t bytes)
{
    assert_null(data);
    assert_int_equal(bytes % page_size(d), 0);
    n_pages = bytes / page_size(d);
    data = test_on_cpu() ? below->alloc(d, bytes) : below->reserve(d, bytes);
    has = calloc(n_pages, sizeof *has);
    assert_true(data && has);
    for (size_t i = 0; i < n_pages; i++) make_noise(i);
    return data;
}

static void release(fv_device *d, void *p, size_t bytes)
{
    below->release(d, p, bytes);
    if (p != data || !p) return;
    free(has);
    data = NULL;
    beside_pages.now = 0;
}

/* The first of whole pages at p, and in *n how many they are. */
static size_t pages_at(fv_device *d, const void *p, size_t bytes, size_t *n)
{
    size_t each = test_on_cpu() ? BESIDE_PAGE : below->page_size(d);
    size_t from = (size_t)((const char *)p - data);
    assert_true(data && from % each == 0 && bytes % each == 0);
    *n = bytes / each;
    assert_true(from / each + *n <= n_pages);
    return from / each;
}

/* Refused where fewer are left.  The session knows what a row has, and asks for no page twice. */
static bool commit(fv_device *d, void *p, size_t bytes)
{
    size_t n, from = pages_at(d, p, bytes, &n);
    for (size_t i = from; i < from + n; i++) assert_false(has[i]);
    beside_pages.commits++;
    if ((int64_t)n > beside_pages.left || (!test_on_cpu() && !below->commit(d, p, bytes)))
        return false;
    if (test_on_cpu()) memset(p, 0, bytes);
    memset(has + from, true, n);
    beside_pages.left -= (int64_t)n;
    beside_pages.now += (int64_t)n;
    if (beside_pages.now > beside_pages.most) beside_pages.most = beside_pages.now;
    return true;
}

static void discard(fv_device *d, void *p, size_t bytes)
{
    size_t n, from = pages_at(d, p, bytes, &n);
    beside_pages.discards++;
    if (!test_on_cpu()) below->discard(d, p, bytes);
    for (size_t i = from; i < from + n; i++) {
        beside_pages.now -= has[i];
        beside_pages.left += has[i];
        has[i] = false;
        make_noise(i);
    }
}

fv_device beside_page(const fv_device *d)
{
    fv_device with = *d;
    below = d->backend;
    paging = *d->backend;
    paging.page_size = page_size;
    paging.reserve = reserve;
    paging.release = release;
    paging.commit = commit;
    paging.discard = discard;
    with.backend = &paging;
    beside_pages = (beside_memory){.left = INT64_MAX / 2};
    return with;
}
