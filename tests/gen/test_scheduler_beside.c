/* test_scheduler_beside.c - the scheduler with a device that works beside the host: it chooses
 * tokens, events wait for its next step, rows are padded and prompts are read side by side.  Here
 * the CPU plays that device, with kernels that do what CUDA's do: every sequence gets, bit for bit,
 * what it gets alone on the CPU as it is. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/op.h"
#include "fovea/fovea.h"
#include "gen/scheduler.h"
#include "helper/device.h"
#include "helper/dice.h"
#include "helper/requests.h"

enum { REQUESTS = 40 };

/* ---- a device that works beside the host ---- */

static fv_backend backend;
static fv_kernels kernels;
static int64_t chosen, listed, of_prompts, copied; /* what these kernels have done */

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
        chosen++;
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
        listed++;
        of_prompts += a->Tq > 1;
    }
    free(row);
}

static void copy_many(fv_stream *s, const fv_copy *list, int64_t n)
{
    (void)s;
    for (int64_t i = 0; i < n; i++) memcpy(list[i].to, list[i].from, list[i].bytes);
    copied += n;
}

static bool capture(fv_stream *s)
{
    (void)s;
    return false; /* nothing is: every step runs */
}

static fv_device dress(const fv_device *d)
{
    fv_device beside = *d;
    backend = *d->backend;
    backend.capture = capture;
    kernels = *d->k[FV_F32];
    kernels.sample = sample;
    kernels.attention_rows = attention_rows;
    kernels.copy_many = copy_many;
    beside.backend = &backend;
    beside.k[FV_F32] = &kernels;
    return beside;
}

/* ---- requests ---- */

/* Most leave the choice to the device; some have a penalty, for which the host chooses. */
static void make_request(request *r, int i)
{
    static const int32_t layer = 1;
    static const int32_t head = 2;
    request_make(r, i);
    r->opt.min_new_tokens = dice(2) ? 10 : 0;
    r->opt.repetition_penalty = dice(4) ? 1 : 1.3f;
    r->ask.unscored = dice(5) > 0;
    if (!dice(3))
        r->ask.layers = &layer, r->ask.n_layers = 1, r->ask.heads = &head, r->ask.n_heads = 1;
}

/* ---- tests ---- */

static void run_once(fv_device *plain, const fv_model *m, fv_scheduler_opt opt, uint32_t seed)
{
    static request all[REQUESTS], alone;
    fv_device beside = dress(plain);
    fv_scheduler *s;
    fv_err e;
    dice_seed(seed);
    for (int i = 0; i < REQUESTS; i++) make_request(&all[i], i);
    for (int i = 0; i < REQUESTS; i += 5) all[i].stop_at = 1 + dice(6);
    check(fv_scheduler_new(&s, &beside, m, opt, &e), &e);
    assert_true(s->beside && s->choice.row);
    request_run_all(s, all, REQUESTS, 5);
    fv_scheduler_free(s);
    request_all_ended(all, REQUESTS);
    for (int i = 0; i < REQUESTS; i++) request_compare_alone(plain, m, &all[i], &alone);
}

static void it_changes_no_bit(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 5, 24}, parts[] = {512, 100, 17},
                         prefixes[] = {0, 1 << 20, 1 << 24};
    chosen = listed = of_prompts = copied = 0;
    for (int f = 0; f < 2; f++) {
        fv_model *m;
        fv_err e;
        check(fv_model_new(&m, device, request_configs[f], (fv_model_opt){.serve = true}, 7, &e),
              &e);
        for (int i = 0; i < 9; i++)
            run_once(device, m,
                     (fv_scheduler_opt){.rows = rows[i % 3],
                                        .prefill = parts[i / 3],
                                        .prefix_bytes = prefixes[(i + f) % 3]},
                     (uint32_t)(10 * f + i));
        fv_model_free(m);
    }
    assert_true(chosen > 1000 && listed > 100 && of_prompts > 50 && copied > 100);
}

/* A failure ends what runs, once each, and what was written before is told first. */
static void failure_is_told_last(void **state)
{
    (void)state;
    static request all[6];
    fv_device beside = dress(device);
    fv_model *m;
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1;
    check(fv_model_new(&m, device, request_configs[0], (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_scheduler_new(&s, &beside, m, (fv_scheduler_opt){.rows = 6}, &e), &e);
    dice_seed(5);
    for (int i = 0; i < 6; i++) {
        make_request(&all[i], 0);
        all[i].opt.eos = -1, all[i].opt.n_ends = 0, all[i].opt.max_new_tokens = 30;
        request_submit(s, &all[i]);
    }
    for (int i = 0; i < 3; i++) check(fv_scheduler_step(s, &left, &e), &e);
    s->session->cap = 1; /* the next step does not fit */
    assert_int_equal(fv_scheduler_step(s, &left, &e), FV_EARG);
    assert_int_equal(left, 0);
    for (int i = 0; i < 6; i++) assert_int_equal(all[i].finish, FV_FINISH_FAILED);
    for (int i = 0; i < 6; i++) assert_int_equal(all[i].got, 4);
    fv_scheduler_free(s);
    fv_model_free(m);
}

int main(void)
{
    if (!test_on_cpu()) return 77; /* host code cannot play a GPU: it has no access to its memory */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_changes_no_bit),
        cmocka_unit_test(failure_is_told_last),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
