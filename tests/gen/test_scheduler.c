/* test_scheduler.c - sequences that join and leave a batch get, bit for bit, what each gets alone:
 * over random arrivals, cancellations, thread counts and ways of sampling; requests from several
 * threads; what is refused. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/gen.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/dice.h"
#include "helper/requests.h"

enum { REQUESTS = 24, V = REQUEST_VOCABULARY, MOST = REQUEST_TOKENS };

/* One of request_make with penalties, for which the host chooses. */
static void make_request(request *r, int i)
{
    request_make(r, i);
    r->opt.repetition_penalty = dice(2) ? 1.3f : 1;
    r->opt.no_repeat_ngram_size = dice(2) ? 3 : 0;
}

static fv_status ask(fv_scheduler *s, request *r, int64_t n, fv_err *e)
{
    fv_sched_request q = r->ask;
    q.prompt = r->prompt, q.n = n, q.opt = &r->opt, q.user = r;
    return fv_scheduler_submit(s, &r->id, &q, e);
}

/* The same request in a scheduler of its own, and by fv_generate. */
static void compare_alone(fv_device *d, const fv_model *m, const request *r)
{
    fv_err e;
    fv_generated out;
    static request alone;
    request_compare_alone(d, m, r, &alone);
    assert_memory_equal(r->score, alone.score, (size_t)r->got * sizeof *r->score);
    const int32_t *source = r->prompt;
    check(fv_generate(&out, d, m, &source, &r->n, 1, &alone.opt, &e), &e);
    assert_true(out.hyp[0].n >= alone.got);
    if (!r->stop_at) assert_int_equal(out.hyp[0].n, alone.got);
    assert_memory_equal(out.hyp[0].ids, alone.token, (size_t)alone.got * sizeof *r->token);
    fv_generated_free(&out);
}

/* Requests come at random steps; some are cancelled on their way, some end by their callback. */
static void run_once(fv_device *d, const fv_model *m, fv_scheduler_opt opt, uint32_t seed)
{
    static request all[REQUESTS];
    fv_scheduler *s;
    fv_err e;
    dice_seed(seed);
    for (int i = 0; i < REQUESTS; i++) make_request(&all[i], i);
    for (int i = 0; i < REQUESTS; i += 5) all[i].stop_at = 1 + dice(6);
    check(fv_scheduler_new(&s, d, m, opt, &e), &e);
    request_run_all(s, all, REQUESTS, 2);
    assert_false(fv_scheduler_wait(s, 1));
    fv_sched_stats stats = fv_scheduler_stats(s);
    assert_true(opt.prefix_bytes ? stats.shared > 0 : !stats.shared);
    assert_true(stats.prefix_bytes <= opt.prefix_bytes);
    assert_in_range(stats.prompt_steps, 1, stats.prompt);
    assert_in_range(stats.decode_steps, 1, stats.generated);
    fv_scheduler_free(s);
    request_all_ended(all, REQUESTS);
    for (int i = 0; i < REQUESTS; i++) compare_alone(d, m, &all[i]);
}

static void neighbours_change_no_bit(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 4};
    static const int64_t rows[] = {1, 3, 8}, parts[] = {7, 512, 33},
                         prefixes[] = {0, 100000, 1 << 24}, caches[] = {0, 800000, 0};
    for (int t = 0; t < 3; t++) {
        fv_device *d;
        fv_err e;
        check(fv_device_open(&d, test_device(), (fv_device_opt){.threads = threads[t]}, &e), &e);
        for (int f = 0; f < 2; f++) {
            fv_model *m;
            check(fv_model_new(&m, d, request_configs[f], (fv_model_opt){.serve = true}, 7, &e),
                  &e);
            for (int i = 0; i < 3; i++)
                run_once(d, m,
                         (fv_scheduler_opt){.rows = rows[i],
                                            .prefill = parts[(i + t) % 3],
                                            .cache_bytes = caches[(i + f + t) % 3],
                                            .prefix_bytes = prefixes[(i + 2 * t) % 3]},
                         (uint32_t)(100 * t + 10 * f + i));
            fv_model_free(m);
        }
        fv_device_close(d);
    }
}

/* Sixty-four at once, with a system prompt that all share: each gets what it gets alone, with
 * kept prefixes and prompts read in parts, and without.  On a GPU most tokens are chosen there. */
static void alone_and_among_63_others(void **state)
{
    (void)state;
    enum { ALL = 64 };
    static request all[ALL];
    fv_model *m;
    fv_err e;
    check(fv_model_new(&m, device, request_configs[0], (fv_model_opt){.serve = true}, 7, &e), &e);
    for (int way = 0; way < 4; way++) {
        fv_scheduler *s;
        fv_scheduler_opt opt = {.rows = ALL, .prefill = way % 2 ? 16 : 512};
        int64_t left = 1;
        if (way / 2) opt.prefix_bytes = 1 << 24;
        dice_seed(31);
        check(fv_scheduler_new(&s, device, m, opt, &e), &e);
        for (int i = 0; i < ALL; i++) {
            make_request(&all[i], i);
            all[i].n = 40 + i % 24;
            for (int64_t k = 0; k < all[i].n; k++)
                all[i].prompt[k] = (int32_t)(k < 36 ? 5 * k % V : dice(V));
            all[i].ask.unscored = i % 4;
            if (i % 4) all[i].opt.repetition_penalty = 1, all[i].opt.no_repeat_ngram_size = 0;
            request_submit(s, &all[i]);
        }
        while (left) check(fv_scheduler_step(s, &left, &e), &e);
        assert_true(way / 2 ? fv_scheduler_stats(s).shared > 32 * 20 : true);
        fv_scheduler_free(s);
        for (int i = 0; i < ALL; i++) compare_alone(device, m, &all[i]);
    }
    fv_model_free(m);
}

/* ---- attention, likeliest tokens, biases ---- */

enum { LAYERS = 2, HEADS = 4 };

/* Weights of the rows of a sequence, as they came. */
typedef struct watching {
    request r;
    float w[LAYERS][HEADS][128][128];
    int64_t rows;
    fv_scored top[MOST][3];
} watching;

static bool watch(void *user, const fv_sched_event *ev)
{
    watching *x = user;
    const fv_sched_weights *w = ev->attention;
    if (ev->finish == FV_FINISH_CANCELLED) return true;
    assert_non_null(w);
    assert_int_equal(w->first, x->rows);
    assert_true(w->first + w->rows <= w->cols);
    const float *from = w->w;
    for (int l = 0; l < w->n_layers; l++)
        for (int h = 0; h < w->n_heads; h++)
            for (int64_t i = 0; i < w->rows; i++, from += w->cols)
                memcpy(x->w[1 - l][h][w->first + i], from, (size_t)w->cols * sizeof *from);
    x->rows += w->rows;
    if (ev->token < 0) return true;
    assert_int_equal(ev->n_top, 3);
    memcpy(x->top[x->r.got], ev->top, sizeof x->top[0]);
    fv_sched_event plain = *ev;
    plain.attention = NULL; /* x->r asked for none */
    return request_take(&x->r, &plain);
}

/* The weights beside the tokens are those of one pass over the whole sequence. */
static void compare_seen(fv_device *d, const fv_model *m, const watching *x)
{
    fv_see *see;
    fv_err e;
    int32_t all[128];
    static float want[128 * 128];
    int64_t n = x->rows;
    memcpy(all, x->r.prompt, (size_t)x->r.n * sizeof *all);
    memcpy(all + x->r.n, x->r.token, (size_t)x->r.got * sizeof *all);
    assert_int_equal(n, x->r.n + x->r.got - 1);
    check(fv_see_run(&see, d, m, (fv_see_in){.source = all, .n_source = n}, &e), &e);
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < HEADS; h++) {
            fv_see_pick p = {.kind = FV_SEE_DECODER, .layer = l, .head = h};
            check(fv_see_weights(see, p, 0, n, want, &e), &e);
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j <= i; j++)
                    if (!(fabsf(x->w[l][h][i][j] - want[i * n + j]) < 2e-5f))
                        fail_msg("layer %d head %d row %d key %d: %g, expected %g", l, h, (int)i,
                                 (int)j, (double)x->w[l][h][i][j], (double)want[i * n + j]);
        }
    fv_see_free(see);
}

static void weights_come_with_the_tokens(void **state)
{
    (void)state;
    static watching x[4];
    static request others[6];
    static const int32_t layers[] = {1, 0}, heads[] = {0, 1, 2, 3};
    for (int f = 0; f < 2; f++) {
        fv_model *m;
        fv_scheduler *s;
        fv_err e;
        int64_t left = 1;
        dice_seed(9);
        check(fv_model_new(&m, device, request_configs[f], (fv_model_opt){.serve = true}, 7, &e),
              &e);
        check(fv_scheduler_new(&s, device, m,
                               (fv_scheduler_opt){.rows = 5, .prefill = 9, .prefix_bytes = 1 << 20},
                               &e),
              &e);
        assert_int_equal(fv_scheduler_stats(s).layers, LAYERS);
        assert_int_equal(fv_scheduler_stats(s).heads, HEADS);
        for (int i = 0; i < 6; i++) {
            make_request(&others[i], i);
            request_submit(s, &others[i]);
            if (i >= 4) continue;
            memset(&x[i], 0, sizeof x[i]);
            make_request(&x[i].r, i);
            fv_sched_request q = {.prompt = x[i].r.prompt, .n = x[i].r.n, .opt = &x[i].r.opt};
            q.fn = watch, q.user = &x[i], q.top = 3;
            q.layers = layers, q.heads = heads, q.n_layers = 2, q.n_heads = 4;
            q.prompt_rows = true;
            check(fv_scheduler_submit(s, &x[i].r.id, &q, &e), &e);
        }
        while (left) check(fv_scheduler_step(s, &left, &e), &e);
        fv_scheduler_free(s);
        for (int i = 0; i < 6; i++) compare_alone(device, m, &others[i]);
        for (int i = 0; i < 4; i++) compare_alone(device, m, &x[i].r);
        for (int i = 0; i < 4; i++) compare_seen(device, m, &x[i]);
        for (int i = 0; i < x[0].r.got; i++) /* greedy: the likeliest, but for penalties */
            assert_true(x[0].top[i][0].score >= x[0].top[i][1].score);
        fv_model_free(m);
    }
}

static void ban_all_but_seven(void *user, float *logits, int64_t n, const int32_t *ids, int64_t k)
{
    (void)ids, (void)k;
    for (int64_t i = 0; i < n; i++)
        if (i != *(int *)user) logits[i] = -INFINITY;
}

static void biases_and_functions_decide(void **state)
{
    (void)state;
    fv_model *m;
    fv_scheduler *s;
    fv_err e;
    request r[3];
    int64_t left = 1;
    int seven = 7;
    fv_logit_bias five = {5, 1e4f};
    check(fv_model_new(&m, device, request_configs[0], (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_scheduler_new(&s, device, m, (fv_scheduler_opt){.rows = 4}, &e), &e);
    for (int i = 0; i < 3; i++) {
        make_request(&r[i], 0);
        r[i].opt.eos = -1, r[i].opt.n_ends = r[i].opt.n_banned = 0;
        r[i].opt.repetition_penalty = 1, r[i].opt.no_repeat_ngram_size = 0;
        r[i].opt.max_new_tokens = 8;
        fv_sched_request q = {.prompt = r[i].prompt, .n = r[i].n, .opt = &r[i].opt};
        q.fn = request_take, q.user = &r[i];
        if (i == 0) q.bias = &five, q.n_bias = 1;
        if (i == 1) q.logits = ban_all_but_seven, q.logits_user = &seven;
        if (i == 2) q.presence_penalty = 1e4f, q.frequency_penalty = 1;
        check(fv_scheduler_submit(s, &r[i].id, &q, &e), &e);
    }
    while (left) check(fv_scheduler_step(s, &left, &e), &e);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(r[0].token[i], 5);
        assert_int_equal(r[1].token[i], 7);
        assert_true(r[1].score[i] < 0); /* the model's own probability */
        for (int k = 0; k < i; k++) assert_int_not_equal(r[2].token[i], r[2].token[k]);
    }
    fv_scheduler_free(s);
    fv_model_free(m);
}

/* Priorities first; then whoever has fewer rows. */
static int order[8], ordered;
static bool note_order(void *user, const fv_sched_event *ev)
{
    if (ev->n == 1) order[ordered++] = *(int *)user;
    return true;
}

static void queueing_is_fair(void **state)
{
    (void)state;
    fv_model *m;
    fv_scheduler *s;
    fv_err e;
    request r;
    static int names[] = {0, 1, 2, 3, 4};
    static const int priority[] = {0, 0, 0, 0, 1}, owner[] = {1, 1, 1, 2, 1};
    int64_t left = 1;
    uint64_t id;
    check(fv_model_new(&m, device, request_configs[0], (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_scheduler_new(&s, device, m, (fv_scheduler_opt){.rows = 4}, &e), &e);
    make_request(&r, 0);
    r.opt.eos = -1, r.opt.n_ends = 0, r.opt.max_new_tokens = 30;
    ordered = 0;
    for (int i = 0; i < 5; i++) {
        fv_sched_request q = {.prompt = r.prompt, .n = 4, .opt = &r.opt};
        q.fn = note_order, q.user = &names[i], q.priority = priority[i];
        q.owner = (uint64_t)owner[i];
        check(fv_scheduler_submit(s, &id, &q, &e), &e);
    }
    while (left) check(fv_scheduler_step(s, &left, &e), &e);
    assert_int_equal(order[0], 4); /* priority */
    assert_int_equal(order[1], 3); /* the other owner has no row yet */
    assert_int_equal(order[2], 0);
    assert_int_equal(order[3], 1);
    assert_int_equal(order[4], 2);
    fv_scheduler_free(s);
    assert_int_equal(fv_scheduler_new(&s, device, m, (fv_scheduler_opt){.cache_bytes = 1000}, &e),
                     FV_EARG);
    assert_non_null(strstr(e.text, "holds no sequence"));
    fv_model_free(m);
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
        request_submit(c->s, &c->all[i]);
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
    check(fv_model_new(&m, device, request_configs[0], (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_scheduler_new(&s, device, m, (fv_scheduler_opt){.rows = 4}, &e), &e);
    dice_seed(77);
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
    check(fv_model_new(&m, device, request_configs[1], (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_scheduler_new(&s, device, m,
                           (fv_scheduler_opt){.rows = 2, .capacity = 64, .waiting = 2}, &e),
          &e);
    make_request(&r, 0);
    assert_int_equal(ask(s, &r, 0, &e), FV_EARG);
    assert_non_null(strstr(e.text, "empty"));
    assert_int_equal(ask(s, &r, 64, &e), FV_EARG);
    assert_non_null(strstr(e.text, "holds 64"));
    r.prompt[0] = V;
    assert_int_equal(ask(s, &r, 2, &e), FV_EARG);
    assert_non_null(strstr(e.text, "vocabulary"));
    r.opt.num_beams = 2;
    assert_int_equal(ask(s, &r, 2, &e), FV_EARG);
    assert_int_equal(fv_scheduler_cancel(s, 99, &e), FV_EARG);
    for (int i = 0; i < 3; i++) {
        make_request(&two[i], i);
        two[i].n = 5;
        fv_status st = ask(s, &two[i], 5, &e);
        assert_int_equal(st, i < 2 ? FV_OK : FV_ESTATE);
    }
    assert_non_null(strstr(e.text, "waiting"));
    fv_scheduler_free(s); /* with two in flight */
    fv_model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(alone_and_among_63_others),
        cmocka_unit_test(weights_come_with_the_tokens),
        cmocka_unit_test(biases_and_functions_decide),
        cmocka_unit_test(queueing_is_fair),
        cmocka_unit_test(requests_come_from_any_thread),
        cmocka_unit_test(wrong_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
