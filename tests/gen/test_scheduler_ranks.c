/* test_scheduler_ranks.c - a scheduler whose model ranks share, by its weights or by its layers:
 * rank 0 tells the tokens of a whole model, whatever comes when; the others follow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/comm.h"
#include "fovea/author/gen.h"
#include "fovea/author/parallel.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/ranks.h"

enum { REQUESTS = 6, LONGEST = 14 };

static const char config[] =
    "{\"model_type\":\"llama\",\"vocab_size\":61,\"max_position_embeddings\":64,"
    "\"hidden_size\":32,\"num_hidden_layers\":4,\"num_attention_heads\":8,"
    "\"num_key_value_heads\":4,\"intermediate_size\":48,\"initializer_range\":0.2,"
    "\"bos_token_id\":60,\"eos_token_id\":60}";

/* What callbacks were told of one request. */
typedef struct told {
    int32_t token[LONGEST];
    int64_t n;
    fv_finish finish;
    int64_t stops_at; /* the callback ends it behind so many tokens; 0: never */
} told;

typedef struct outcome {
    bool follows;
    told of[REQUESTS];
} outcome;

static bool on_token(void *user, const fv_sched_event *ev)
{
    told *t = user;
    if (ev->token >= 0 && t->n < LONGEST) t->token[t->n++] = ev->token;
    if (ev->finish) t->finish = ev->finish;
    return t->n != t->stops_at;
}

static fv_status follow(fv_scheduler *s, fv_err *e)
{
    fv_status st = FV_OK;
    for (int64_t left = 0; !st && left >= 0;) st = fv_scheduler_step(s, &left, e);
    return st;
}

/* Request i, of 3 + 5 i tokens; odd ones are drawn at random.  Prompts 4 and 5 begin alike. */
static fv_status ask(fv_scheduler *s, outcome *o, int i, uint64_t *id, fv_err *e)
{
    int32_t prompt[32];
    int64_t n = 3 + 5 * i, number = i;
    fv_gen_opt opt = {.max_new_tokens = LONGEST - i, .eos = 60, .temperature = 1, .top_p = 1};
    opt.forced_bos = opt.forced_eos = -1;
    opt.do_sample = i % 2;
    opt.seed = 5;
    opt.numbers = &number;
    opt.repetition_penalty = 1;
    for (int64_t k = 0; k < n; k++) prompt[k] = (int32_t)((k * 7 + (i < 4 ? i : 4) * 11) % 59);
    o->of[i].stops_at = i == 2 ? 4 : 0;
    fv_sched_request r = {.prompt = prompt, .n = n, .opt = &opt, .fn = on_token};
    r.user = &o->of[i];
    r.owner = (uint64_t)(i % 2);
    r.priority = i == 3;
    return fv_scheduler_submit(s, id, &r, e);
}

/* Requests come before steps and between them; the second is cancelled behind the third step. */
static fv_status drive(fv_scheduler *s, outcome *o, fv_err *e)
{
    uint64_t id[REQUESTS];
    int64_t left = 1;
    fv_status st = FV_OK;
    for (int step = 0, next = 0; !st && (left || next < REQUESTS); step++) {
        for (int k = 0; !st && k < 1 + (step == 0) && next < REQUESTS && step % 2 == 0; k++, next++)
            st = ask(s, o, next, &id[next], e);
        if (!st && step == 3) fv_scheduler_cancel(s, id[1], NULL);
        if (!st) st = fv_scheduler_step(s, &left, e);
    }
    return st;
}

static fv_status compute(void *outcome_, const shared_job *job, const char *dir, fv_comm *c,
                         fv_err *e)
{
    outcome *o = outcome_;
    fv_device *d;
    fv_model *m = NULL;
    fv_scheduler *s = NULL;
    fv_scheduler_opt how = {.rows = 3, .prefill = 16, .prefix_bytes = 1 << 20};
    fv_status st = fv_device_open(&d, test_device(), (fv_device_opt){.threads = 1}, e);
    if (st) return st;
    st = job->models == 1 ? fv_model_open_ranks(&m, d, dir, (fv_model_opt){.serve = true}, c, e)
                          : fv_model_open_stages(&m, d, dir, (fv_model_opt){.serve = true}, c, e);
    if (!st) st = fv_scheduler_new(&s, d, m, how, e);
    o->follows = fv_comm_rank(c) > 0;
    if (!st) st = o->follows ? follow(s, e) : drive(s, o, e);
    fv_scheduler_free(s);
    fv_model_free(m);
    fv_device_close(d);
    return st;
}

static int compare(void *shared, const void *whole)
{
    const outcome *a = shared, *b = whole;
    if (a->follows) return 0;
    for (int i = 0; i < REQUESTS; i++) {
        const told *x = &a->of[i], *y = &b->of[i];
        if (y->n && x->n == y->n && x->finish == y->finish &&
            !memcmp(x->token, y->token, sizeof x->token))
            continue;
        fprintf(stderr, "request %d: %d tokens and %d, the end %d and %d\n", i, (int)x->n,
                (int)y->n, (int)x->finish, (int)y->finish);
        return 1;
    }
    return 0;
}

static void ranks_serve_what_one_serves(void **state)
{
    (void)state;
    const shared_job weights = {.size = sizeof(outcome),
                                .compute = compute,
                                .compare = compare,
                                .models = 1};
    shared_job layers = weights;
    layers.models = 2; /* stages */
    char dir[512];
    snprintf(dir, sizeof dir, "%s", scratch("model-0"));
    write_model(dir, config);
    for (int n = 2; n <= 4; n += 2) {
        share_by_threads(&weights, dir, n);
        share_by_threads(&layers, dir, n);
    }
}

/* Of a model that ranks share nobody has the attention of all heads. */
static fv_status refuse(void *outcome_, const shared_job *job, const char *dir, fv_comm *c,
                        fv_err *e)
{
    outcome *o = outcome_;
    fv_device *d;
    fv_model *m = NULL;
    fv_scheduler *s = NULL;
    const int32_t prompt = 1, layer = 0;
    uint64_t id;
    fv_gen_opt opt = {.max_new_tokens = 2, .eos = -1};
    (void)job;
    fv_status st = fv_device_open(&d, test_device(), (fv_device_opt){.threads = 1}, e);
    if (st) return st;
    st = fv_model_open_ranks(&m, d, dir, (fv_model_opt){.serve = true}, c, e);
    if (!st) st = fv_scheduler_new(&s, d, m, (fv_scheduler_opt){.rows = 2}, e);
    fv_sched_request r = {.prompt = &prompt, .n = 1, .opt = &opt, .fn = on_token, .user = o->of};
    r.layers = r.heads = &layer;
    r.n_layers = r.n_heads = 1;
    fv_err why = {0};
    if (!st && !fv_comm_rank(c)) {
        bool refused = fv_scheduler_submit(s, &id, &r, &why);
        if (refused != (c != NULL) || (c && !strstr(why.text, "ranks share the model")))
            st = fv_fail(e, FV_ESTATE, "attention: %s", why.text);
    } else if (!st) {
        st = follow(s, e);
    }
    fv_scheduler_free(s);
    fv_model_free(m);
    fv_device_close(d);
    return st;
}

static int nothing(void *shared, const void *whole)
{
    (void)shared, (void)whole;
    return 0;
}

static void what_ranks_cannot_tell_is_refused(void **state)
{
    (void)state;
    const shared_job job = {.size = sizeof(outcome), .compute = refuse, .compare = nothing};
    share_by_threads(&job, scratch("model-0"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_serve_what_one_serves),
        cmocka_unit_test(what_ranks_cannot_tell_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
