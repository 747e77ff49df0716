/* test_attention_view.c - what a tap is shown of an attention: how long a view lives, its maps in
 * each dtype, and lists of rows with the same bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "helper/device.h"
#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"
#include "ops/attention.h"

static fv_device *dev;

static fv_ctx *recording(fv_dtype t)
{
    fv_ctx *c = NULL;
    assert_int_equal(fv_ctx_new(&c, dev, (fv_ctx_opt){.dtype = t, .record = true}, NULL), FV_OK);
    return c;
}

static void keep_view(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    (void)c;
    (void)name;
    if (!strcmp(site, "attention")) *(const fv_attn_view **)user = what;
}

/* While recording a view can be asked later, until backward has taken what it is made of. */
static void a_view_lives_until_its_inputs_go(void **state)
{
    float x[2 * 5 * 12], w[5], dy[2 * 5 * 4] = {0};
    (void)state;
    for (int i = 0; i < 120; i++) x[i] = (float)(i * 7 % 13) / 13;
    for (int held = 0; held < 2; held++) {
        const fv_attn_view *view = NULL;
        fv_ctx *c = recording(FV_F32);
        fv_ctx_set_tap(c, keep_view, &view);
        fv_tensor *qkv = fv_scale(c, fv_watch(c, fv_floats(c, x, FV_SHAPE(2, 5, 12))), 2);
        fv_tensor *y = fv_attention_packed(c, held ? fv_hold(c, qkv) : qkv, (fv_attn){.n_head = 2});
        assert_non_null(view);
        assert_int_equal(fv_attn_view_weights(c, view, 1, 1, 4, 5, w), FV_OK);
        assert_true(fabsf(w[0] + w[1] + w[2] + w[3] + w[4] - 1) < 1e-6f);
        assert_int_equal(fv_backward_from(c, y, dy), FV_OK);
        assert_int_equal(fv_attn_view_weights(c, view, 1, 1, 4, 5, w), held ? FV_OK : FV_ESTATE);
        fv_ctx_free(c);
    }
}

static void views_refuse_what_is_not_there(void **state)
{
    static const int64_t bad[][4] = {{-1, 0, 0, 1}, {1, 0, 0, 1}, {0, 2, 0, 1},
                                     {0, 0, 0, 6},  {0, 0, 3, 2}, {0, -1, 0, 1}};
    float x[60] = {0}, w[64];
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const fv_attn_view *view = NULL;
        fv_ctx *c = recording(FV_F32);
        fv_ctx_set_tap(c, keep_view, &view);
        fv_attention_packed(c, fv_floats(c, x, FV_SHAPE(1, 5, 12)), (fv_attn){.n_head = 2});
        assert_int_equal(fv_attn_view_weights(c, view, bad[i][0], bad[i][1], bad[i][2], bad[i][3],
                                              w),
                         FV_EARG);
        fv_ctx_free(c);
    }
}

/* The dtype of everything, and f32: no other. */
static void maps_have_the_dtype_that_is_asked_for(void **state)
{
    float x[60], wide[25], own[25];
    fv_ctx *c = recording(FV_BF16);
    const fv_attn_view *view = NULL;
    (void)state;
    for (int i = 0; i < 60; i++) x[i] = (float)(i * 7 % 13) / 13;
    fv_ctx_set_tap(c, keep_view, &view);
    fv_attention_packed(c, fv_floats(c, x, FV_SHAPE(1, 5, 12)),
                        (fv_attn){.n_head = 2, .causal = true});
    fv_tensor *narrow = fv_attn_view_map(c, view, FV_BF16, 0, 1, 0, 5);
    assert_non_null(narrow);
    assert_int_equal(narrow->dtype, FV_BF16);
    assert_true(fv_shape_same(narrow->shape, FV_SHAPE(5, 5)));
    assert_int_equal(fv_read(c, narrow, own, 25), FV_OK);
    assert_int_equal(fv_attn_view_weights(c, view, 0, 1, 0, 5, wide), FV_OK);
    for (int i = 0; i < 25; i++)
        assert_true(i % 5 > i / 5 ? own[i] == 0 : fabsf(own[i] - wide[i]) <= 0x1p-8f * wide[i]);
    assert_null(fv_attn_view_map(c, view, FV_F16, 0, 1, 0, 5));
    assert_int_equal(fv_ctx_status(c), FV_EDTYPE);
    fv_ctx_free(c);
}

/* Rows of a list, one query of each sequence, have the bits that they have as maps of their own. */
static void list_rows(fv_dtype t, int32_t Tq)
{
    enum { BATCH = 4, HEADS = 3, KEYS = 200, WIDTH = 64, ALL = BATCH * HEADS };
    static float x[BATCH * KEYS * HEADS * WIDTH], want[KEYS], got[ALL * KEYS];
    const int32_t lens[BATCH] = {Tq, 70, 131, KEYS};
    fv_weights_job jobs[ALL + 2] = {{0}};
    const fv_attn_view *view = NULL;
    fv_ctx *c = recording(t);
    int32_t at = 0;
    for (int i = 0; i < BATCH * KEYS * HEADS * WIDTH; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
    fv_ctx_set_tap(c, keep_view, &view);
    fv_tensor *k = fv_floats(c, x, FV_SHAPE(BATCH, KEYS, HEADS * WIDTH));
    fv_attention(c, fv_floats(c, x + 7, FV_SHAPE(BATCH, Tq, HEADS * WIDTH)), k, k,
                 (fv_attn){.n_head = HEADS,
                           .causal = true,
                           .lens = fv_ints(c, lens, FV_SHAPE(BATCH))});
    for (int32_t i = 0; i < ALL; at += jobs[i++].n) /* the last two want nothing */
        jobs[i] = (fv_weights_job){.b = i % BATCH,
                                   .head = i / BATCH,
                                   .query = i * 29 % Tq,
                                   .n = lens[i % BATCH],
                                   .at = at};
    const void *ints = jobs;
    fv_tensor *list = fv_ints(c, ints, FV_SHAPE(ALL + 2, sizeof *jobs / sizeof(int32_t))),
              *out = fv_new(c, FV_F32, FV_SHAPE(at));
    fv__attn_view_write_rows(c, view, out->data, list->data, ALL + 2);
    assert_int_equal(fv_read(c, out, got, at), FV_OK);
    for (const fv_weights_job *j = jobs; j < jobs + ALL; j++) {
        check(fv_attn_view_weights(c, view, j->b, j->head, j->query, j->query + 1, want),
              fv_ctx_err(c));
        assert_memory_equal(got + j->at, want, (size_t)j->n * sizeof *want);
    }
    fv_ctx_free(c);
}

static void listed_rows_have_the_bits_of_maps(void **state)
{
    static const fv_dtype types[] = {FV_F32, FV_BF16, FV_F16};
    static const int32_t queries[] = {1, 2, 17, 64, 70};
    (void)state;
    for (int t = 0; t < 3; t++)
        for (int q = 0; q < 5 && fv__attn_lists_rows(dev, types[t]); q++)
            list_rows(types[t], queries[q]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_view_lives_until_its_inputs_go),
        cmocka_unit_test(views_refuse_what_is_not_there),
        cmocka_unit_test(maps_have_the_dtype_that_is_asked_for),
        cmocka_unit_test(listed_rows_have_the_bits_of_maps),
    };
    fv_err e;
    if (fv_device_open(&dev, test_device(), (fv_device_opt){0}, &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fv_device_close(dev);
    return failed;
}
