/* test_scheduler_share.c - rows of a paged KV cache that show blocks of a common beginning: the
 * same tokens and scores as without, less memory, blocks that are shown stay, and a row that writes
 * into one gets a copy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/gen.h"
#include "fovea/author/session.h"
#include "fovea/fovea.h"
#include "helper/device.h"
#include "helper/dice.h"
#include "model/session.h"

/* A block of 16 tokens is a page in each of the four caches. */
#define CONFIG                                                                                     \
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":1024,\"initializer_range\":"      \
    "0.2,\"n_embd\":64,\"n_layer\":2,\"n_head\":4}"
enum { REQUESTS = 20, SYSTEM = 150, MOST = 24, V = 211, ROWS = 9, TOKEN_BYTES = 4 * 64 * 4 };

typedef struct request {
    int32_t prompt[SYSTEM + 40], token[MOST];
    float score[MOST];
    int64_t n, got;
    fv_gen_opt opt;
} request;

static bool take(void *user, const fv_sched_event *ev)
{
    request *r = user;
    assert_true(ev->finish != FV_FINISH_FAILED);
    if (ev->token < 0) return true;
    r->token[r->got] = ev->token;
    r->score[r->got++] = ev->score;
    return true;
}

/* Two system prompts, of which the second parts from the first in its middle. */
static void make_request(request *r, int i)
{
    *r = (request){.n = SYSTEM + 1 + dice(39)};
    for (int64_t k = 0; k < r->n; k++) r->prompt[k] = (int32_t)(k < SYSTEM ? 5 * k % V : dice(V));
    for (int64_t k = 80; i % 3 == 2 && k < SYSTEM; k++) r->prompt[k] = (int32_t)(7 * k % V);
    fv_fields_default(&r->opt, fv_gen_fields);
    r->opt.num_beams = 1;
    r->opt.max_new_tokens = 1 + dice(MOST - 1);
    r->opt.eos = -1;
}

/* All requests, some at a time; returns the greatest number of tokens that rows shared. */
static int64_t run(const fv_model *m, fv_scheduler_opt opt, request *all)
{
    fv_scheduler *s;
    fv_err e;
    int64_t left = 1, most = 0;
    int next = 0;
    check(fv_scheduler_new(&s, device, m, opt, &e), &e);
    dice_seed(5);
    while (left || next < REQUESTS) {
        for (uint32_t k = dice(4); k > 0 && next < REQUESTS; k--) {
            request *r = &all[next++];
            fv_sched_request q = {
                .prompt = r->prompt, .n = r->n, .opt = &r->opt, .fn = take, .user = r};
            check(fv_scheduler_submit(s, &(uint64_t){0}, &q, &e), &e);
        }
        check(fv_scheduler_step(s, &left, &e), &e);
        fv_sched_stats now = fv_scheduler_stats(s);
        assert_true(now.prefix_bytes <= opt.prefix_bytes);
        if (opt.cache_bytes) assert_true(now.cache_bytes <= opt.cache_bytes);
        assert_int_equal(now.cache_bytes, (now.cache_tokens - now.cache_shared) * TOKEN_BYTES);
        most = now.cache_shared > most ? now.cache_shared : most;
    }
    fv_scheduler_free(s);
    return most;
}

/* Prefix budgets: of everything, of fewer blocks than rows show, of less than one prompt. */
static void shared_rows_have_the_same_bits(void **state)
{
    (void)state;
    static request alone[REQUESTS], all[REQUESTS];
    static const int64_t budgets[] = {1 << 24, 14 * 16 * TOKEN_BYTES, 3 * 16 * TOKEN_BYTES};
    fv_model *m;
    fv_err e;
    check(fv_model_new(&m, device, CONFIG, (fv_model_opt){.serve = true}, 7, &e), &e);
    dice_seed(3);
    for (int i = 0; i < REQUESTS; i++) make_request(&alone[i], i);
    memcpy(all, alone, sizeof all);
    assert_int_equal(run(m, (fv_scheduler_opt){.rows = 1}, alone), 0);
    for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
        for (int i = 0; i < REQUESTS; i++) all[i].got = 0;
        fv_scheduler_opt opt = {.rows = ROWS,
                                .prefill = 64,
                                .cache_bytes = 1 << 22,
                                .prefix_bytes = budgets[b]};
        int64_t shared = run(m, opt, all);
        if (test_on_cpu()) assert_true(shared > (b ? 0 : 3 * SYSTEM));
        for (int i = 0; i < REQUESTS; i++) {
            assert_int_equal(all[i].got, alone[i].got);
            assert_memory_equal(all[i].token, alone[i].token, sizeof alone[i].token);
            assert_memory_equal(all[i].score, alone[i].score, sizeof alone[i].score);
        }
    }
    fv_model_free(m);
}

/* ---- a session by hand ---- */

static float *key_of(const fv_session *s, int64_t row, int64_t token)
{
    return (float *)s->k[0].t.data + (row * s->allocated + token) * 64;
}

static void read_tokens(fv_ctx *c, fv_session *s, int64_t row, int64_t n)
{
    int32_t ids[64];
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)dice(V);
    fv_ctx_reset(c, 0);
    assert_true(fv__session_narrow(c, s, row, 1, n));
    assert_non_null(fv_session_step(c, s, fv_ints(c, ids, FV_SHAPE(1, n))));
    fv__session_restore(s);
}

/* Row 0 reads three blocks and keeps two; row 1 shows them, is cut back into the second and goes on
 * otherwise; row 0 leaves and a third row takes its place. */
static void a_row_that_writes_gets_a_copy(void **state)
{
    (void)state;
    fv_model *m;
    fv_session *s;
    fv_ctx *c;
    fv_err e;
    float before[64];
    check(fv_model_new(&m, device, CONFIG, (fv_model_opt){.serve = true}, 7, &e), &e);
    check(fv_session_new(&s, m, device, ROWS, 1024, &e), &e);
    check(fv_ctx_new(&c, device, (fv_ctx_opt){0}, &e), &e);
    assert_true(fv__session_page(s, NULL, 0));
    read_tokens(c, s, 0, 48);
    assert_true(fv__session_share(s, 16, 4));
    for (int b = 0; b < 2; b++) {
        assert_true(fv__session_block_take(s, b));
        fv__session_block_keep(s, 0, b, b);
    }
    fv__session_block_show(s, 0, 0, 0, 2, true);
    fv__session_block_show(s, 1, 0, 0, 2, false);
    s->len[1] = 32;
    assert_int_equal(fv__session_shared(s, 1), 32);
    memcpy(before, key_of(s, 0, 21), sizeof before);
    assert_memory_equal(key_of(s, 1, 21), before, sizeof before);

    fv_session_truncate(s, 1, 20);
    assert_int_equal(fv__session_shared(s, 1), 16);
    assert_true(fv__session_block_used(s, 1)); /* by row 0 */
    assert_memory_equal(key_of(s, 1, 19), key_of(s, 0, 19), sizeof before);
    read_tokens(c, s, 1, 9);
    assert_memory_not_equal(key_of(s, 1, 21), before, sizeof before);
    assert_memory_equal(key_of(s, 0, 21), before, sizeof before);

    memcpy(before, key_of(s, 1, 28), sizeof before);
    fv_session_select(c, s, (int32_t[]){1, 0, 1}, 3);
    assert_memory_equal(key_of(s, 0, 28), before, sizeof before);
    assert_memory_equal(key_of(s, 2, 28), before, sizeof before);
    assert_int_equal(fv__session_shared(s, 0), 16);
    assert_int_equal(fv__session_shared(s, 1), 32);
    *key_of(s, 2, 3) += 1; /* what no row does: the MMU copies the page all the same */
    assert_memory_equal(key_of(s, 0, 3), key_of(s, 1, 3), sizeof before);
    fv__session_resize(s, 1);
    assert_false(fv__session_block_used(s, 1));
    assert_true(fv__session_block_used(s, 0));
    fv_session_free(s);
    fv_ctx_free(c);
    fv_model_free(m);
}

int main(void)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_rows_have_the_same_bits),
        cmocka_unit_test(a_row_that_writes_gets_a_copy),
    };
    size_t n = sizeof tests / sizeof *tests;
    if (!test_on_cpu()) n--; /* of the host alone */
    return _cmocka_run_group_tests("test_scheduler_share", tests, n, open_device, close_device);
}
