/* test_scheduler_beside.c - the scheduler with a device that works beside the host: it chooses
 * tokens, events wait for its next step, rows are padded and prompts are read side by side.  Here
 * the CPU plays that device, with kernels that do what CUDA's do: every sequence gets, bit for bit,
 * what it gets alone on the CPU as it is. */
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

enum { REQUESTS = 40 };

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
    fv_device beside = beside_dress(plain);
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
    beside_done = (beside_counts){0};
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
    assert_true(beside_done.chosen > 1000 && beside_done.listed > 100);
    assert_true(beside_done.of_prompts > 50 && beside_done.copied > 100);
}

/* A failure ends what runs, once each, and what was written before is told first. */
static void failure_is_told_last(void **state)
{
    (void)state;
    static request all[6];
    fv_device beside = beside_dress(device);
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
