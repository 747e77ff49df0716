/* test_scheduler_pages.c - the scheduler on a KV cache whose pages are given by name, as a GPU's
 * are: the same tokens and weights as without, whoever is beside; pages follow the tokens, within
 * the budget; where no memory is left there is an error, and the next request is served.  On the
 * CPU with pages of its own making (helper/beside.h), on a GPU with the device's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "gen/scheduler.h"
#include "helper/beside.h"
#include "helper/device.h"
#include "helper/dice.h"
#include "helper/requests.h"

/* A token of 4 and 2 KiB on the CPU, where 32 and 64 fill a page; of 32 KiB on a GPU, where 64
 * do. */
#define GPT2(positions, embd, layers, heads)                                                       \
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":" positions                       \
    ",\"initializer_range\":0.1,"                                                                  \
    "\"n_embd\":" embd ",\"n_layer\":" layers ",\"n_head\":" heads "}"
#define LLAMA(positions, hidden, layers, heads, kv)                                                \
    "{\"model_type\":\"llama\",\"hidden_size\":" hidden ",\"intermediate_size\":160,"              \
    "\"num_hidden_layers\":" layers ",\"num_attention_heads\":" heads                              \
    ",\"num_key_value_heads\":" kv ",\"vocab_size\":211,\"max_position_embeddings\":" positions    \
    ","                                                                                            \
    "\"initializer_range\":0.1}"
static const char *const on_cpu[] = {GPT2("256", "128", "4", "4"),
                                     LLAMA("256", "128", "4", "4", "2")};
static const char *const on_gpu[] = {GPT2("512", "512", "8", "8"),
                                     LLAMA("512", "512", "16", "8", "4")};

enum { REQUESTS = 24, MANY = 70 };

static int64_t context(void) { return test_on_cpu() ? 256 : 512; }

static fv_model *new_model(int family, fv_dtype weights)
{
    fv_model *m;
    fv_err e;
    check(fv_model_new(&m, device, (test_on_cpu() ? on_cpu : on_gpu)[family],
                       (fv_model_opt){.serve = true, .weights = weights}, 7, &e),
          &e);
    return m;
}

static size_t page(void)
{
    return test_on_cpu() ? BESIDE_PAGE : device->backend->page_size(device);
}

/* Bytes of a row of the whole context, of the GPT-2 or of the Llama; a GPU keeps bf16 beside
 * weights of bf16. */
static int64_t row_bytes(int family, fv_dtype weights)
{
    int64_t token = test_on_cpu() ? (family ? 2048 : 4096) : weights == FV_BF16 ? 16384 : 32768;
    return context() * token;
}

/* ---- requests ---- */

/* Half of them begin alike; some want the weights of a head, some those of their prompt as well. */
static void make_request(request *r, int i)
{
    static const int32_t layer = 1;
    static const int32_t head = 2;
    request_make(r, i);
    for (int64_t k = 0; i % 2 && k < r->n && k < 40; k++) r->prompt[k] = (int32_t)(3 * k + 1);
    r->ask.unscored = dice(5) > 0;
    if (!dice(3))
        r->ask.layers = &layer, r->ask.n_layers = 1, r->ask.heads = &head, r->ask.n_heads = 1;
    r->ask.prompt_rows = r->ask.n_layers && !dice(3);
}

static void run(fv_device *d, const fv_model *m, fv_scheduler_opt opt, request *all, int n,
                uint32_t seed)
{
    fv_scheduler *s;
    fv_err e;
    dice_seed(seed);
    for (int i = 0; i < n; i++) make_request(&all[i], i);
    check(fv_scheduler_new(&s, d, m, opt, &e), &e);
    assert_int_equal(s->session->pages.data != NULL, opt.cache_bytes > 0);
    request_run_all(s, all, n, 5);
    assert_true(beside_pages.most * (int64_t)page() <= opt.cache_bytes);
    if (opt.cache_bytes) assert_true(beside_pages.most > 0);
    fv_scheduler_free(s);
    request_all_ended(all, n);
}

/* ---- tests ---- */

/* Budgets: the least, which one sequence of the whole context takes; of some sequences, so that
 * pages change hands; of all. */
static void pages_change_no_bit(void **state)
{
    (void)state;
    static request all[REQUESTS], alone;
    static const int64_t rows[] = {2, 5, 24}, parts[] = {512, 100, 17}, budgets[] = {2, 3, 40};
    int64_t discards = 0;
    for (int f = 0; f < 2; f++) {
        fv_model *m = new_model(f, FV_F32);
        for (int i = 0; i < 9; i += test_brief() ? 4 : test_on_cpu() ? 1 : 2) {
            fv_device beside = test_on_cpu() && i % 2 ? beside_dress(device) : *device,
                      with = beside_page(&beside);
            fv_scheduler_opt opt = {.rows = rows[i % 3],
                                    .prefill = parts[i / 3],
                                    .cache_bytes = budgets[(i + f) % 3] * row_bytes(f, FV_F32),
                                    .prefix_bytes = i % 4 ? 1 << 22 : 0};
            run(&with, m, opt, all, REQUESTS, (uint32_t)(10 * f + i));
            discards += beside_pages.discards;
            for (int k = 0; k < REQUESTS; k++) request_compare_alone(device, m, &all[k], &alone);
        }
        fv_model_free(m);
    }
    if (!test_brief()) assert_true(discards > 0);
}

/* Each among 63 others. */
static void so_they_do_among_many(void **state)
{
    (void)state;
    static request all[MANY], alone;
    fv_model *m = new_model(0, FV_F32);
    fv_device beside = test_on_cpu() ? beside_dress(device) : *device, with = beside_page(&beside);
    fv_scheduler_opt opt = {.rows = 64, .cache_bytes = 70 * row_bytes(0, FV_F32)};
    run(&with, m, opt, all, MANY, 3);
    for (int k = 0; k < MANY; k++) request_compare_alone(device, m, &all[k], &alone);
    fv_model_free(m);
}

/* Weights of 16 bits on a GPU: other kernels, whose bits are those of the same steps without
 * pages. */
static void narrow_weights_do_too(void **state)
{
    (void)state;
    static request all[REQUESTS], plain[REQUESTS];
    for (int f = 0; f < 2; f++)
        for (int few = 0; few < 2; few++) {
            fv_model *m = new_model(f, FV_BF16);
            fv_device with = beside_page(device);
            fv_scheduler_opt opt = {.rows = few ? 4 : 32};
            run(device, m, opt, plain, REQUESTS, 5);
            opt.cache_bytes = 40 * row_bytes(f, FV_BF16);
            run(&with, m, opt, all, REQUESTS, 5);
            for (int k = 0; k < REQUESTS; k++) {
                assert_int_equal(all[k].got, plain[k].got);
                assert_memory_equal(all[k].token, plain[k].token, sizeof plain[k].token);
                assert_memory_equal(all[k].w, plain[k].w, sizeof plain[k].w);
            }
            fv_model_free(m);
        }
}

static void plain_request(request *r, int64_t n, int64_t more)
{
    request_make(r, 0);
    dice_prompt(r->prompt, r->n = n, REQUEST_VOCABULARY);
    r->opt.max_new_tokens = more;
    r->opt.min_new_tokens = more;
    r->opt.eos = -1;
    r->opt.n_ends = 0;
}

/* One sequence has what its tokens fill, at every step; what it leaves serves the next, and no step
 * asks the device again. */
static void pages_follow_tokens(void **state)
{
    (void)state;
    static request first, next;
    fv_model *m = new_model(0, FV_F32);
    fv_device with = beside_page(device);
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1, row = row_bytes(0, FV_F32), token = row / context(), commits = 0;
    check(fv_scheduler_new(&s, &with, m, (fv_scheduler_opt){.cache_bytes = 20 * row}, &e), &e);
    assert_int_equal(beside_pages.now, 0);
    int64_t asked = beside_pages.asked;
    dice_seed(1);
    plain_request(&first, 70, 39);
    request_submit(s, &first);
    while (left) {
        check(fv_scheduler_step(s, &left, &e), &e);
        fv_sched_stats now = fv_scheduler_stats(s);
        int64_t tokens = 69 + first.got,
                pages = (tokens * token + (int64_t)page() - 1) / (int64_t)page();
        assert_int_equal(now.cache_pages, pages * (int64_t)page());
        assert_int_equal(beside_pages.now, pages);
    }
    assert_int_equal(first.got, 39);
    commits = beside_pages.commits;
    plain_request(&next, 60, 39);
    request_submit(s, &next);
    for (left = 1; left;) check(fv_scheduler_step(s, &left, &e), &e);
    assert_int_equal(next.got, 39);
    assert_int_equal(beside_pages.commits, commits);
    assert_int_equal(beside_pages.asked, asked);
    fv_scheduler_free(s);
    fv_model_free(m);
}

/* The device runs out before the budget does: what runs ends with the reason, and when there is
 * memory again the next is served. */
static void no_memory_is_an_error(void **state)
{
    (void)state;
    static request all[6], after, alone;
    fv_model *m = new_model(0, FV_F32);
    fv_device with = beside_page(device);
    fv_scheduler *s;
    fv_err e;
    fv_status st = FV_OK;
    int64_t left = 1;
    check(fv_scheduler_new(&s, &with, m,
                           (fv_scheduler_opt){.cache_bytes = 20 * row_bytes(0, FV_F32)}, &e),
          &e);
    beside_pages.left = 4;
    dice_seed(2);
    for (int i = 0; i < 6; i++) {
        plain_request(&all[i], 75, 35);
        request_submit(s, &all[i]);
    }
    while (left && !st) st = fv_scheduler_step(s, &left, &e);
    assert_int_equal(st, FV_ENOMEM);
    assert_non_null(strstr(e.text, "out of memory"));
    beside_pages.left = 1000;
    plain_request(&after, 75, 35);
    request_submit(s, &after);
    while (left || !after.finish) check(fv_scheduler_step(s, &left, &e), &e);
    fv_scheduler_free(s);
    request_compare_alone(device, m, &after, &alone);
    fv_model_free(m);
}

/* A row of less than four pages, or a device that maps none: fewer rows, each with all its
 * memory. */
static size_t no_pages(fv_device *d)
{
    (void)d;
    return 0;
}

static void else_there_are_fewer_rows(void **state)
{
    (void)state;
    fv_model *m = new_model(0, FV_F32), *small;
    fv_device with = beside_page(device);
    fv_backend without = *with.backend;
    fv_scheduler *s;
    fv_err e;
    check(fv_model_new(&small, device, request_configs[0], (fv_model_opt){.serve = true}, 7, &e),
          &e);
    check(fv_scheduler_new(&s, &with, small, (fv_scheduler_opt){.cache_bytes = 5 * 256 * 384}, &e),
          &e);
    assert_null(s->session->pages.data);
    assert_int_equal(s->opt.rows, 4);
    fv_scheduler_free(s);
    without.page_size = no_pages;
    with.backend = &without;
    int64_t row = row_bytes(0, FV_F32);
    check(fv_scheduler_new(&s, &with, m, (fv_scheduler_opt){.cache_bytes = 3 * row}, &e), &e);
    assert_null(s->session->pages.data);
    assert_int_equal(s->opt.rows, 2);
    fv_scheduler_free(s);
    assert_int_equal(fv_scheduler_new(&s, &with, m, (fv_scheduler_opt){.cache_bytes = 2 * row - 1},
                                      &e),
                     FV_EARG);
    fv_model_free(small);
    fv_model_free(m);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_change_no_bit),       cmocka_unit_test(so_they_do_among_many),
        cmocka_unit_test(pages_follow_tokens),       cmocka_unit_test(no_memory_is_an_error),
        cmocka_unit_test(else_there_are_fewer_rows), cmocka_unit_test(narrow_weights_do_too),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
