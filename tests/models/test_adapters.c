/* test_adapters.c - adapters against PEFT (bottlenecks against PyTorch): outputs, gradients, three
 * steps of AdamW, generation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/adapter.h"
#include "fovea/fovea.h"
#include "fovea/author/author.h"
#include "helper/adapters.h"
#include "helper/device.h"
#include "helper/files.h"

#define PREFIX "base_model.model."
#define VIRTUAL_PREFIX "base_model."

/* A parameter by its name in PEFT's file. */
static fv_tensor *param(fv_params *p, const char *name)
{
    fv_tensor *t = fv_params_find(p, name);
    const char *wrapped = strstr(name, ".base_layer.");
    char plain[300];
    if (!t && !strncmp(name, PREFIX, strlen(PREFIX))) t = fv_params_find(p, name + strlen(PREFIX));
    if (!t && !strncmp(name, VIRTUAL_PREFIX, strlen(VIRTUAL_PREFIX)))
        t = fv_params_find(p, name + strlen(VIRTUAL_PREFIX));
    if (!t && wrapped) {
        snprintf(plain, sizeof plain, "%.*s.%s", (int)(wrapped - name), name,
                 wrapped + strlen(".base_layer."));
        t = fv_params_find(p, plain + strlen(PREFIX));
    }
    if (!t) fail_msg("no parameter %s", name);
    return t;
}

/* ---- folded into the weights ---- */

static void folded(const char *name, const adapter_case *p)
{
    fv_err e;
    fv_adapter_use use = {.dir = p->dir};
    for (int serve = 0; serve < 2; serve++) {
        fv_model *m;
        fv_model_opt opt = {.serve = serve, .adapters = {&use, 1}};
        check(fv_model_open(&m, device, p->base, opt, &e), &e);
        const char *out = scratch("folded.safetensors");
        check(fv_model_run(m, device, p->in, out, (fv_run_opt){0}, &e), &e);
        fv_st *got, *want;
        int64_t n, k;
        check(fv_st_open(&got, NULL, out, &e), &e);
        check(fv_st_open(&want, NULL, p->out, &e), &e);
        float *a = st_numbers(got, "logits", &n), *b = st_numbers(want, "logits", &k);
        assert_int_equal(n, k);
        near_numbers(name, "folded logits", a, b, n, 1e-5);
        free(a), free(b);
        fv_st_close(got), fv_st_close(want);
        fv_model_free(m);
    }
}

static void test_folded(void **state)
{
    (void)state;
    each_adapter(folded);
}

/* ---- generation ---- */

static fv_tensor *ids_of(fv_ctx *c, const int32_t *ids, int64_t from, int64_t n)
{
    return fv_ints(c, ids + from, FV_SHAPE(1, n));
}

/* Scores of a session that gets the text in two steps are those of the whole pass, whatever virtual
 * tokens stand in front; and again after the last tokens were taken back. */
static void generated(const char *name, const char *encoder)
{
    static const int32_t ids[] = {3, 9, 4, 11, 2};
    enum { T = 5 };
    fv_err e;
    fv_model *m;
    fv_session *s;
    fv_ctx *c;
    adapter_case p = adapter_case_of(name);
    fv_adapter_use use = {.dir = p.dir};
    float want[64], got[64];
    check(fv_model_open(&m, device, p.base, (fv_model_opt){.serve = true, .adapters = {&use, 1}},
                        &e),
          &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    fv_items in = {0}, out = {0}, source = {0};
    fv_tensor *text = ids_of(c, ids, 0, T);
    fv_items_put(&source, "input_ids", text);
    fv_items_put(&in, "input_ids", text);
    if (encoder) fv_items_put(&in, encoder, ids_of(c, ids, 0, T));
    fv_model_forward(c, m, &in, &out);
    fv_tensor *logits = fv_items_get(&out, "logits");
    assert_int_equal(fv_dim(logits, 1), T);
    int64_t V = fv_cols(logits);
    assert_true(V <= 64);
    assert_int_equal(fv_read(c, fv_slice(c, logits, 1, T - 1, T), want, V), FV_OK);
    check(fv_session_new(&s, m, device, 1, T + 2, &e), &e);
    fv_session_begin(c, s, encoder ? &source : NULL);
    fv_session_step(c, s, ids_of(c, ids, 0, 2));
    for (int again = 0; again < 2; again++) {
        assert_int_equal(fv_session_len(s, 0), 2);
        fv_tensor *y = fv_session_step(c, s, ids_of(c, ids, 2, T - 2));
        if (fv_read(c, y, got, V)) fail_msg("%s: %s", name, fv_ctx_err(c)->text);
        near_numbers(name, "scores", got, want, V, 1e-5);
        fv_session_truncate(s, 0, 2);
    }
    fv_session_free(s);
    fv_ctx_free(c);
    fv_model_free(m);
}

static void test_generated(void **state)
{
    (void)state;
    generated("gpt2-prompt", NULL);
    generated("gpt2-houlsby", NULL);
    generated("gpt2-lora-embedding", NULL);
    generated("llama-pfeiffer", NULL);
    generated("t5-houlsby", "decoder_input_ids");
    generated("gpt2-prefix", NULL);
    generated("llama-p-tuning", NULL);
    generated("llama-prefix", NULL);
    generated("t5-prompt", "decoder_input_ids");
    generated("t5-prefix", "decoder_input_ids");
}

enum { MADE = 4 };

typedef struct sequence {
    int32_t made[MADE];
    int n;
} sequence;

static bool take(void *user, const fv_sched_event *event)
{
    sequence *q = user;
    if (event->finish == FV_FINISH_FAILED) fail_msg("%s", event->error->text);
    if (event->token >= 0 && q->n < MADE) q->made[q->n++] = event->token;
    return true;
}

/* The likeliest token behind ids, by a pass over all of them. */
static int32_t next_token(fv_ctx *c, const fv_model *m, const int32_t *ids, int64_t n)
{
    float row[64];
    fv_items in = {0}, out = {0};
    fv_ctx_reset(c, 0);
    fv_items_put(&in, "input_ids", ids_of(c, ids, 0, n));
    fv_model_forward(c, m, &in, &out);
    fv_tensor *logits = fv_items_get(&out, "logits");
    int64_t V = fv_cols(logits);
    assert_int_equal(fv_read(c, fv_slice(c, logits, 1, n - 1, n), row, V), FV_OK);
    int32_t best = 0;
    for (int32_t i = 1; i < V; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* Sequences of several lengths side by side, the second asked for twice so that the cache of
 * prefixes has it: each gets what it would get alone. */
static void scheduled(const char *name)
{
    static const int32_t ids[4][8] = {{3, 9, 4}, {11, 2, 5, 7, 1}, {8}, {11, 2, 5, 7, 1}};
    static const int64_t len[4] = {3, 5, 1, 5};
    fv_err e;
    fv_model *m;
    fv_ctx *c;
    fv_scheduler *s;
    adapter_case p = adapter_case_of(name);
    fv_adapter_use use = {.dir = p.dir};
    sequence got[4] = {0};
    check(fv_model_open(&m, device, p.base, (fv_model_opt){.serve = true, .adapters = {&use, 1}},
                        &e),
          &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    check(fv_scheduler_new(
              &s, device, m,
              (fv_scheduler_opt){.rows = 3, .capacity = 16, .prefill = 2, .prefix_bytes = 1 << 20},
              &e),
          &e);
    fv_gen_opt opt = {0};
    fv_fields_default(&opt, fv_gen_fields);
    opt.num_beams = 1;
    opt.eos = -1;
    opt.max_new_tokens = MADE;
    for (int i = 0; i < 4; i++) {
        uint64_t id;
        fv_sched_request r = {
            .prompt = ids[i], .n = len[i], .opt = &opt, .fn = take, .user = &got[i]};
        check(fv_scheduler_submit(s, &id, &r, &e), &e);
    }
    for (int64_t left = 1; left;) check(fv_scheduler_step(s, &left, &e), &e);
    for (int i = 0; i < 4; i++) {
        int32_t all[8 + MADE];
        memcpy(all, ids[i], (size_t)len[i] * sizeof *all);
        for (int k = 0; k < got[i].n; k++) {
            all[len[i] + k] = next_token(c, m, all, len[i] + k);
            if (all[len[i] + k] != got[i].made[k])
                fail_msg("%s: sequence %d, token %d", name, i, k);
        }
        assert_int_equal(got[i].n, MADE);
    }
    fv_scheduler_free(s);
    fv_ctx_free(c);
    fv_model_free(m);
}

static void test_scheduled(void **state)
{
    (void)state;
    scheduled("gpt2-prompt");
    scheduled("llama-prefix");
    scheduled("llama-pfeiffer");
}

/* ---- trained ---- */

static void gradients(const char *name, const adapter_case *p, fv_params *params)
{
    fv_err e;
    fv_st *want;
    int trained = 0, held = 0;
    check(fv_st_open(&want, NULL, p->out, &e), &e);
    for (int i = 0; i < fv_st_count(want); i++) {
        const char *full = fv_st_at(want, i).name;
        int64_t n;
        if (strncmp(full, "grad.", 5)) continue;
        float *b = st_numbers(want, full, &n), *a = malloc((size_t)n * sizeof *a);
        check(fv_params_get_grad(params, param(params, full + 5), a, n, &e), &e);
        near_numbers(name, full, a, b, n, 1e-4);
        free(a), free(b);
        trained++;
    }
    for (int i = 0; i < fv_params_count(params); i++) held += !!fv_params_at(params, i)->grad;
    assert_int_equal(held, trained); /* only what is trained has a gradient */
    fv_st_close(want);
}

/* The bias of keys changes nothing, and its gradient is rounding that Adam makes large. */
static bool has_gradient(const fv_st *want, const char *name)
{
    char full[400];
    int64_t n;
    double norm = 0;
    snprintf(full, sizeof full, "grad.%s", name);
    float *g = st_numbers(want, full, &n);
    for (int64_t i = 0; i < n; i++) norm += (double)g[i] * (double)g[i];
    free(g);
    return sqrt(norm) > 1e-6;
}

static void after_steps(const char *name, const adapter_case *p, fv_params *params)
{
    fv_err e;
    fv_st *want;
    check(fv_st_open(&want, NULL, p->out, &e), &e);
    for (int i = 0; i < fv_st_count(want); i++) {
        const char *full = fv_st_at(want, i).name;
        int64_t n;
        if (strncmp(full, "after.", 6) || !has_gradient(want, full + 6)) continue;
        float *b = st_numbers(want, full, &n), *a = malloc((size_t)n * sizeof *a);
        check(fv_params_get(params, param(params, full + 6), a, n, &e), &e);
        near_numbers(name, full, a, b, n, 1e-4);
        free(a), free(b);
    }
    fv_st_close(want);
}

static void trained(const char *name, const adapter_case *p)
{
    fv_err e;
    fv_model *m = adapter_trainable(p);
    fv_params *params = fv_model_params(m);
    fv_train_opt o = {.lr = 1e-2f,
                      .schedule = FV_CONSTANT,
                      .updates = 3,
                      .beta1 = 0.9f,
                      .beta2 = 0.98f,
                      .eps = 1e-5f,
                      .decay = 0.01f,
                      .layer_decay = 1};
    fv_adam *adam;
    check(fv_adam_new(&adam, params, device, &o, &e), &e);
    for (int step = 1; step <= 3; step++) {
        const char *out = scratch("trained.safetensors");
        double norm;
        fv_params_zero_grad(params);
        check(fv_model_run(m, device, p->in, out, (fv_run_opt){.grad = true}, &e), &e);
        if (step == 1) {
            fv_st *got, *want;
            int64_t n;
            check(fv_st_open(&got, NULL, out, &e), &e);
            check(fv_st_open(&want, NULL, p->out, &e), &e);
            float *a = st_numbers(got, "logits", &n), *b = st_numbers(want, "logits", &n);
            near_numbers(name, "logits", a, b, n, 1e-5);
            free(a), free(b);
            a = st_numbers(got, "loss", &n), b = st_numbers(want, "loss", &n);
            near_numbers(name, "loss", a, b, n, 1e-5);
            free(a), free(b);
            fv_st_close(got), fv_st_close(want);
            gradients(name, p, params);
        }
        check(fv_adam_step(adam, &o, step, &norm, &e), &e);
    }
    after_steps(name, p, params);
    fv_adam_free(adam);
    fv_model_free(m);
}

static void test_trained(void **state)
{
    (void)state;
    each_adapter(trained);
}

/* In, and out again with the opposite weight. */
static void test_taken_out(void **state)
{
    (void)state;
    fv_err e;
    fv_model *base, *again;
    adapter_case p = adapter_case_of("llama-lora");
    fv_adapter_use use[] = {{.dir = p.dir}, {.dir = p.dir, .weight = -1}};
    check(fv_model_open(&base, device, p.base, (fv_model_opt){0}, &e), &e);
    check(fv_model_open(&again, device, p.base, (fv_model_opt){.adapters = {use, 2}}, &e), &e);
    int64_t n, k;
    float *a = test_values(fv_model_params(again), &n), *b = test_values(fv_model_params(base), &k);
    assert_int_equal(n, k);
    for (int64_t i = 0; i < n; i++) assert_true(fabs((double)a[i] - (double)b[i]) <= 1e-6);
    free(a), free(b);
    fv_model_free(base), fv_model_free(again);
}

static int set_up(void **state) { return scratch_open(state) || open_device(state); }
static int tear_down(void **state) { return close_device(state) || scratch_close(state); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folded),    cmocka_unit_test(test_trained),
        cmocka_unit_test(test_generated), cmocka_unit_test(test_scheduled),
        cmocka_unit_test(test_taken_out),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
