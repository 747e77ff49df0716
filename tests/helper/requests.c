/* requests.c - random requests to a scheduler. */
#include "requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "device.h"
#include "dice.h"

const char *const request_configs[2] = {
    "{\"model_type\":\"llama\",\"hidden_size\":48,\"intermediate_size\":80,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"vocab_size\":211,\"max_position_embeddings\":256,\"initializer_range\":0.3}",
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":256,\"initializer_range\":0.2,"
    "\"n_embd\":64,\"n_layer\":2,\"n_head\":4}",
};

/* A copy has lists of its own. */
static void point_at_own(request *r)
{
    r->opt.ends = r->ends, r->opt.banned = r->banned, r->opt.numbers = &r->number;
}

void request_make(request *r, int i)
{
    *r = (request){.n = 1 + dice(70), .number = dice(5)};
    dice_prompt(r->prompt, r->n, REQUEST_VOCABULARY);
    fv_fields_default(&r->opt, fv_gen_fields);
    r->opt.num_beams = 1;
    r->opt.max_new_tokens = 1 + dice(REQUEST_TOKENS - 1);
    r->opt.do_sample = i % 3;
    r->opt.temperature = 0.5f + 0.25f * (float)dice(4);
    r->opt.top_k = dice(3) ? 20 : 0;
    r->opt.top_p = dice(2) ? 0.9f : 1;
    r->opt.seed = dice(100);
    r->opt.eos = (int32_t)dice(REQUEST_VOCABULARY);
    r->ends[0] = (int32_t)dice(REQUEST_VOCABULARY);
    r->banned[0] = (int32_t)dice(REQUEST_VOCABULARY);
    r->opt.n_ends = r->opt.n_banned = 1;
    point_at_own(r);
    r->ask = (fv_sched_request){.n = r->n, .fn = request_take};
}

bool request_take(void *user, const fv_sched_event *ev)
{
    request *r = user;
    const fv_sched_weights *w = ev->attention;
    assert_int_equal(r->finish, FV_FINISH_NOT);
    assert_int_equal(ev->id, r->id);
    r->calls++;
    r->finish = ev->finish;
    if (ev->token < 0) return true;
    assert_true(!r->stop_at || r->got < r->stop_at); /* nothing comes behind its last */
    assert_int_equal(ev->n, r->got + 1);
    assert_int_equal(!w, !r->ask.n_layers);
    if (w) {
        assert_int_equal(w->rows, 1);
        assert_int_equal(w->first, r->n + r->got - 1);
        assert_int_equal(w->cols, r->n + r->got);
        memcpy(r->w[r->got], w->w, (size_t)w->cols * sizeof *w->w);
    }
    r->token[r->got] = ev->token;
    r->score[r->got++] = ev->score;
    return !r->stop_at || r->got < r->stop_at;
}

void request_submit(fv_scheduler *s, request *r)
{
    fv_err e;
    point_at_own(r);
    r->ask.prompt = r->prompt, r->ask.n = r->n, r->ask.opt = &r->opt, r->ask.user = r;
    check(fv_scheduler_submit(s, &r->id, &r->ask, &e), &e);
}

void request_compare_alone(fv_device *d, const fv_model *m, const request *r, request *alone)
{
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1;
    *alone = *r;
    alone->got = alone->calls = 0;
    alone->finish = FV_FINISH_NOT;
    check(fv_scheduler_new(&s, d, m, (fv_scheduler_opt){.rows = 1}, &e), &e);
    request_submit(s, alone);
    while (left) check(fv_scheduler_step(s, &left, &e), &e);
    fv_scheduler_free(s);
    assert_true(r->got <= alone->got);
    if (r->finish != FV_FINISH_CANCELLED) assert_int_equal(r->got, alone->got);
    assert_memory_equal(r->token, alone->token, (size_t)r->got * sizeof *r->token);
    for (int64_t i = 0; r->ask.n_layers && i < r->got; i++)
        assert_memory_equal(r->w[i], alone->w[i], (size_t)(r->n + i) * sizeof(float));
}

void request_run_all(fv_scheduler *s, request *all, int n, uint32_t rush)
{
    fv_err e;
    int64_t left = 1;
    int next = 0;
    for (int steps = 0; left || next < n; steps++) {
        assert_true(steps < 100000);
        for (uint32_t k = dice(rush + 1); k > 0 && next < n; k--) request_submit(s, &all[next++]);
        if (next && !dice(12)) fv_scheduler_cancel(s, all[dice((uint32_t)next)].id, NULL);
        check(fv_scheduler_step(s, &left, &e), &e);
    }
    fv_sched_stats stats = fv_scheduler_stats(s);
    assert_int_equal(stats.waiting + stats.running, 0);
}

void request_all_ended(const request *all, int n)
{
    for (int i = 0; i < n; i++) {
        bool stopped = all[i].stop_at && all[i].got == all[i].stop_at;
        if (!all[i].finish && !stopped) fail_msg("request %d has not ended", i);
    }
}
