/* test_scheduler_models.c - several models in one batch, a KV cache of so many bytes, and sequences
 * that are cancelled: who is beside a sequence changes none of its bits, the budget holds at every
 * step, and a row is free one step after its client has gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/gen.h"
#include "fovea/fovea.h"
#include "helper/device.h"

enum { MODELS = 3, REQUESTS = 18, NEW = 20 };

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":80,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":211,\"max_position_embeddings\":128,\"initializer_range\":0.3}";
enum { TOKEN_BYTES = 2 * 2 * 24 * 4 }; /* layers, keys and values, heads x width, f32 */

typedef struct request {
    int32_t prompt[40], token[NEW];
    int64_t n, got, cached;
    int model;
    uint64_t id;
    fv_finish finish;
} request;

static bool take(void *user, const fv_sched_event *ev)
{
    request *r = user;
    r->finish = ev->finish;
    r->cached = ev->cached;
    if (ev->token >= 0) r->token[r->got++] = ev->token;
    return true;
}

static fv_status ask(fv_scheduler *s, request *r, fv_err *e)
{
    fv_gen_opt opt = {0};
    fv_fields_default(&opt, fv_gen_fields);
    opt.num_beams = 1;
    opt.max_new_tokens = NEW;
    opt.eos = -1;
    fv_sched_request q = {.prompt = r->prompt, .n = r->n, .opt = &opt, .fn = take, .user = r};
    q.model = r->model;
    return fv_scheduler_submit(s, &r->id, &q, e);
}

/* All begin alike: a prefix that one model has computed must not serve another. */
static void make_request(request *r, int i)
{
    *r = (request){.n = 20 + i % 7, .model = i % MODELS};
    for (int k = 0; k < r->n; k++) r->prompt[k] = (int32_t)(k < 17 ? 3 * k : 5 * k + i);
}

static void open_models(fv_model **m)
{
    fv_err e;
    for (int i = 0; i < MODELS; i++)
        check(fv_model_new(&m[i], device, config, (fv_model_opt){.serve = true}, 7 + (uint64_t)i,
                           &e),
              &e);
}

static void close_models(fv_model **m)
{
    for (int i = 0; i < MODELS; i++) fv_model_free(m[i]);
}

static void compare_alone(const fv_model *m, const request *r)
{
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1;
    request alone = *r;
    alone.got = alone.model = 0;
    check(fv_scheduler_new(&s, device, m, (fv_scheduler_opt){.rows = 1}, &e), &e);
    check(ask(s, &alone, &e), &e);
    while (left) check(fv_scheduler_step(s, &left, &e), &e);
    fv_scheduler_free(s);
    assert_int_equal(r->got, NEW);
    assert_memory_equal(r->token, alone.token, sizeof alone.token);
}

static void models_share_a_batch(void **state)
{
    (void)state;
    static request all[REQUESTS];
    fv_model *m[MODELS];
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1, saved = 0;
    int number = 0, next = 0;
    open_models(m);
    check(fv_scheduler_new(&s, device, m[0],
                           (fv_scheduler_opt){.rows = 7, .prefill = 30, .prefix_bytes = 1 << 20},
                           &e),
          &e);
    for (int i = 1; i < MODELS; i++) {
        check(fv_scheduler_add_model(s, &number, m[i], &e), &e);
        assert_int_equal(number, i);
    }
    for (int i = 0; i < REQUESTS; i++) make_request(&all[i], i);
    while (left || next < REQUESTS) {
        for (int k = 0; k < 2 && next < REQUESTS; k++) check(ask(s, &all[next++], &e), &e);
        check(fv_scheduler_step(s, &left, &e), &e);
    }
    for (int i = 0; i < REQUESTS; i++) {
        compare_alone(m[all[i].model], &all[i]);
        saved += all[i].cached;
    }
    assert_true(saved > 0);
    all[0].model = MODELS;
    assert_int_equal(ask(s, &all[0], &e), FV_EARG);
    fv_scheduler_free(s);
    close_models(m);
}

/* Rows of one length each would be two; what sequences have is what counts. */
static void the_budget_holds(void **state)
{
    (void)state;
    static request all[REQUESTS];
    fv_model *m[MODELS];
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1, most = 0, budget = 3 * 128 * TOKEN_BYTES;
    open_models(m);
    check(fv_scheduler_new(&s, device, m[0],
                           (fv_scheduler_opt){.rows = 16, .prefill = 64, .cache_bytes = budget},
                           &e),
          &e);
    for (int i = 0; i < REQUESTS; i++) {
        make_request(&all[i], i);
        all[i].model = 0;
        check(ask(s, &all[i], &e), &e);
    }
    while (left) {
        check(fv_scheduler_step(s, &left, &e), &e);
        fv_sched_stats now = fv_scheduler_stats(s);
        assert_true(now.cache_bytes <= budget);
        assert_int_equal(now.cache_bytes, now.cache_tokens * TOKEN_BYTES);
        most = now.running > most ? now.running : most;
    }
    assert_in_range(most, 2, 9);
    if (test_on_cpu()) assert_in_range(most, 7, 9); /* 384 tokens, 46 at most each */
    fv_scheduler_free(s);
    for (int i = 0; i < REQUESTS; i++) compare_alone(m[0], &all[i]);
    close_models(m);
}

static void a_cancelled_row_is_free_at_the_next_step(void **state)
{
    (void)state;
    request a, b;
    fv_model *m[MODELS];
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1;
    open_models(m);
    check(fv_scheduler_new(&s, device, m[0], (fv_scheduler_opt){.rows = 1}, &e), &e);
    make_request(&a, 0);
    make_request(&b, 3);
    check(ask(s, &a, &e), &e);
    check(ask(s, &b, &e), &e);
    check(fv_scheduler_step(s, &left, &e), &e);
    assert_true(a.got > 0);
    assert_int_equal(b.got, 0);
    check(fv_scheduler_cancel(s, a.id, &e), &e);
    check(fv_scheduler_step(s, &left, &e), &e);
    assert_int_equal(a.finish, FV_FINISH_CANCELLED);
    assert_true(b.got > 0); /* in the same step */
    while (left) check(fv_scheduler_step(s, &left, &e), &e);
    compare_alone(m[0], &b);
    fv_scheduler_free(s);
    close_models(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_share_a_batch),
        cmocka_unit_test(the_budget_holds),
        cmocka_unit_test(a_cancelled_row_is_free_at_the_next_step),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
