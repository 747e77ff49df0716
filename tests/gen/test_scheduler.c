/* test_scheduler.c - sequences that join and leave a batch get, bit for bit, what each gets alone:
 * over random arrivals, cancellations, thread counts and ways of sampling; requests from several
 * threads; what is refused. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper/device.h"

enum { REQUESTS = 24, MOST = 40, V = 211 };

static const char *const configs[] = {
    "{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":80,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":211,\"max_position_embeddings\":256,\"initializer_range\":0.3}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":256,\"initializer_range\":0.2,"
    "\"n_embd\":64,\"n_layer\":2,\"n_head\":4}",
};

typedef struct request {
    int32_t prompt[80];
    int64_t n;
    fv_gen_opt opt;
    int64_t number;
    int32_t ends[2], banned[3];
    /* what came */
    uint64_t id;
    int32_t token[MOST];
    float score[MOST];
    int64_t got;
    int calls;
    fv_finish finish;
    int64_t stop_at; /* the callback ends it there; 0: never */
} request;

static uint32_t state_of_dice = 1;
static uint32_t dice(uint32_t n)
{
    state_of_dice = state_of_dice * 1664525u + 1013904223u;
    return (state_of_dice >> 8) % n;
}

static bool take(void *user, const fv_sched_event *ev)
{
    request *r = user;
    assert_int_equal(r->finish, FV_FINISH_NOT);
    assert_int_equal(ev->id, r->id);
    r->calls++;
    r->finish = ev->finish;
    if (ev->token < 0) return true;
    assert_int_equal(ev->n, r->got + 1);
    r->token[r->got] = ev->token;
    r->score[r->got++] = ev->score;
    return !r->stop_at || r->got < r->stop_at;
}

static void make_request(request *r, int i)
{
    *r = (request){.n = 1 + dice(70), .number = dice(5)};
    for (int64_t k = 0; k < r->n; k++) r->prompt[k] = (int32_t)dice(V);
    fv_fields_default(&r->opt, fv_gen_fields);
    r->opt.num_beams = 1;
    r->opt.max_new_tokens = 1 + dice(MOST - 1);
    r->opt.do_sample = i % 3;
    r->opt.temperature = 0.5f + 0.25f * (float)dice(4);
    r->opt.top_k = dice(3) ? 20 : 0;
    r->opt.top_p = dice(2) ? 0.9f : 1;
    r->opt.seed = dice(100);
    r->opt.repetition_penalty = dice(2) ? 1.3f : 1;
    r->opt.no_repeat_ngram_size = dice(2) ? 3 : 0;
    r->opt.eos = (int32_t)dice(V);
    r->ends[0] = (int32_t)dice(V);
    r->banned[0] = (int32_t)dice(V);
    r->opt.ends = r->ends;
    r->opt.n_ends = 1;
    r->opt.banned = r->banned;
    r->opt.n_banned = 1;
    r->opt.numbers = &r->number;
}

static void submit(fv_scheduler *s, request *r)
{
    fv_err e;
    check(fv_scheduler_submit(s, &r->id, r->prompt, r->n, &r->opt, take, r, &e), &e);
}

/* The same request in a scheduler of its own, and by fv_generate. */
static void compare_alone(fv_device *d, const fv_model *m, const request *r)
{
    fv_scheduler *s;
    fv_err e;
    fv_generated out;
    int64_t left = 1;
    request alone = *r;
    alone.opt.ends = alone.ends;
    alone.opt.banned = alone.banned;
    alone.opt.numbers = &alone.number;
    alone.got = alone.calls = 0;
    alone.finish = FV_FINISH_NOT;
    check(fv_scheduler_new(&s, d, m, (fv_scheduler_opt){.rows = 1}, &e), &e);
    submit(s, &alone);
    while (left) check(fv_scheduler_step(s, &left, &e), &e);
    fv_scheduler_free(s);
    assert_true(r->got <= alone.got);
    if (r->finish != FV_FINISH_CANCELLED) assert_int_equal(r->got, alone.got);
    assert_memory_equal(r->token, alone.token, (size_t)r->got * sizeof *r->token);
    assert_memory_equal(r->score, alone.score, (size_t)r->got * sizeof *r->score);
    const int32_t *source = r->prompt;
    check(fv_generate(&out, d, m, &source, &r->n, 1, &alone.opt, &e), &e);
    assert_true(out.hyp[0].n >= alone.got);
    if (!r->stop_at) assert_int_equal(out.hyp[0].n, alone.got);
    assert_memory_equal(out.hyp[0].ids, alone.token, (size_t)alone.got * sizeof *r->token);
    fv_generated_free(&out);
}

/* Requests come at random steps; some are cancelled on their way, some end by their callback. */
static void run_once(fv_device *d, const fv_model *m, int64_t rows, int64_t part, uint32_t seed)
{
    static request all[REQUESTS];
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1;
    int next = 0;
    state_of_dice = seed;
    for (int i = 0; i < REQUESTS; i++) make_request(&all[i], i);
    for (int i = 0; i < REQUESTS; i += 5) all[i].stop_at = 1 + dice(6);
    check(fv_scheduler_new(&s, d, m, (fv_scheduler_opt){.rows = rows, .prefill = part}, &e), &e);
    for (int steps = 0; left || next < REQUESTS; steps++) {
        assert_true(steps < 100000);
        for (uint32_t k = dice(3); k > 0 && next < REQUESTS; k--) submit(s, &all[next++]);
        if (next && !dice(12)) fv_scheduler_cancel(s, all[dice((uint32_t)next)].id, NULL);
        check(fv_scheduler_step(s, &left, &e), &e);
    }
    assert_false(fv_scheduler_wait(s, 1));
    fv_scheduler_free(s);
    for (int i = 0; i < REQUESTS; i++) {
        bool stopped = all[i].stop_at && all[i].got == all[i].stop_at;
        if (!all[i].finish && !stopped) fail_msg("request %d has not ended", i);
        compare_alone(d, m, &all[i]);
    }
}

static void neighbours_change_no_bit(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 4};
    static const int64_t rows[] = {1, 3, 8}, parts[] = {7, 512, 33};
    for (int t = 0; t < 3; t++) {
        fv_device *d;
        fv_err e;
        check(fv_device_open(&d, test_device(), (fv_device_opt){.threads = threads[t]}, &e), &e);
        for (int f = 0; f < 2; f++) {
            fv_model *m;
            check(fv_model_new(&m, d, configs[f], (fv_model_opt){.serve = true}, 7, &e), &e);
            for (int i = 0; i < 3; i++)
                run_once(d, m, rows[i], parts[(i + t) % 3], (uint32_t)(100 * t + 10 * f + i));
            fv_model_free(m);
        }
        fv_device_close(d);
    }
}

/* ---- threads ---- */

typedef struct client {
    fv_scheduler *s;
    request all[8];
} client;

static void *send_requests(void *user)
{
    client *c = user;
    for (int i = 0; i < 8; i++) {
        submit(c->s, &c->all[i]);
        if (i == 5) fv_scheduler_cancel(c->s, c->all[i].id, NULL);
    }
    return NULL;
}

static void requests_come_from_any_thread(void **state)
{
    (void)state;
    fv_model *m;
    fv_scheduler *s;
    fv_err e;
    static client clients[3];
    pthread_t thread[3];
    int64_t left = 0;
    int ended = 0;
    check(fv_model_new(&m, device, configs[0], (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_scheduler_new(&s, device, m, (fv_scheduler_opt){.rows = 4}, &e), &e);
    state_of_dice = 77;
    for (int i = 0; i < 3; i++) {
        clients[i].s = s;
        for (int k = 0; k < 8; k++) make_request(&clients[i].all[k], k);
        pthread_create(&thread[i], NULL, send_requests, &clients[i]);
    }
    for (int i = 0; i < 3; i++) assert_true(fv_scheduler_wait(s, 10000));
    for (int steps = 0; ended < 24 && steps < 100000; steps++) {
        if (fv_scheduler_wait(s, 100)) check(fv_scheduler_step(s, &left, &e), &e);
        ended = 0;
        for (int i = 0; i < 24; i++) ended += clients[i / 8].all[i % 8].finish != FV_FINISH_NOT;
    }
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    assert_int_equal(ended, 24);
    assert_int_equal(left, 0);
    for (int i = 0; i < 24; i++) compare_alone(device, m, &clients[i / 8].all[i % 8]);
    fv_scheduler_free(s);
    fv_model_free(m);
}

static void wrong_requests_are_refused(void **state)
{
    (void)state;
    fv_model *m;
    fv_scheduler *s;
    fv_err e;
    request r, two[3];
    uint64_t id;
    check(fv_model_new(&m, device, configs[1], (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_scheduler_new(&s, device, m,
                           (fv_scheduler_opt){.rows = 2, .capacity = 64, .waiting = 2}, &e),
          &e);
    make_request(&r, 0);
    assert_int_equal(fv_scheduler_submit(s, &id, r.prompt, 0, &r.opt, take, &r, &e), FV_EARG);
    assert_non_null(strstr(e.text, "empty"));
    assert_int_equal(fv_scheduler_submit(s, &id, r.prompt, 64, &r.opt, take, &r, &e), FV_EARG);
    assert_non_null(strstr(e.text, "holds 64"));
    r.prompt[0] = V;
    assert_int_equal(fv_scheduler_submit(s, &id, r.prompt, 2, &r.opt, take, &r, &e), FV_EARG);
    assert_non_null(strstr(e.text, "vocabulary"));
    r.opt.num_beams = 2;
    assert_int_equal(fv_scheduler_submit(s, &id, r.prompt, 2, &r.opt, take, &r, &e), FV_EARG);
    assert_int_equal(fv_scheduler_cancel(s, 99, &e), FV_EARG);
    for (int i = 0; i < 3; i++) {
        make_request(&two[i], i);
        two[i].n = 5;
        fv_status st = fv_scheduler_submit(s, &two[i].id, two[i].prompt, 5, &two[i].opt, take,
                                           &two[i], &e);
        assert_int_equal(st, i < 2 ? FV_OK : FV_EARG);
    }
    assert_non_null(strstr(e.text, "waiting"));
    fv_scheduler_free(s); /* with two in flight */
    fv_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(requests_come_from_any_thread),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
