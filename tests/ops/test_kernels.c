/* test_kernels.c - fast kernels beside the reference: one element after another, and moving. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/kernels.h"

/* ---- one element after another ---- */

typedef struct {
    fv_unary_op op;
    int64_t n;
    const void *dy, *x, *y;
    float p0, p1;
} unary_case;

static void run_unary(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const unary_case *c = in;
    k->unary(s, c->op, y->data, c->x, c->n, c->p0, c->p1);
}

static void run_unary_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const unary_case *c = in;
    k->unary_bwd(s, c->op, y[0], c->dy, c->x, c->y, c->n, c->p0, c->p1);
}

static void unary_functions_and_gradients(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int l = 0; l < LENGTHS; l++)
            for (fv_unary_op op = 0; op < FV_U_COUNT; op++) {
                int64_t n = lengths[l];
                bool positive = op == FV_U_LOG || op == FV_U_SQRT || op == FV_U_RSQRT;
                void *x = numbers(kinds[t], n, positive ? 0.1f : -6, 6),
                     *dy = numbers(kinds[t], n, -1, 1);
                void *y = memory((size_t)n * 4);
                unary_case c = {op,
                                n,
                                dy,
                                x,
                                y,
                                op == FV_U_CLAMP ? -1.5f : 0.25f,
                                op == FV_U_CLAMP ? 2.0f : 0.75f};
                reference[kinds[t]].unary(NULL, op, y, x, n, c.p0, c.p1);
                compare("unary", kinds[t], run_unary, &c, &(out){kinds[t], n, false, false}, 1, 16);
                /* the reference itself cancels in 1 - tanh^2 */
                compare_sinks("unary_bwd", kinds[t], run_unary_bwd, &c, n, 96);
                free(x), free(dy), free(y);
            }
}

/* An element has one value, wherever in the array it stands and however long the array is. */
static void an_element_does_not_depend_on_its_place(void **state)
{
    (void)state;
    float x[64], whole[64], part[64];
    for (int i = 0; i < 64; i++) x[i] = 5 * uniform();
    for (int l = 0; l < n_level; l++)
        for (fv_unary_op op = 0; op < FV_U_COUNT; op++) {
            const fv_kernels *k = at_level[l]->k[FV_F32];
            fv_stream s = {.dev = at_level[l], .threads = 1};
            k->unary(&s, op, whole, x, 64, 0.3f, 0.6f);
            for (int from = 0; from < 20; from++)
                for (int n = 1; n <= 40; n++) {
                    k->unary(&s, op, part, x + from, n, 0.3f, 0.6f);
                    assert_memory_equal(part, whole + from, (size_t)n * 4);
                }
        }
}

typedef struct {
    fv_binary_op op;
    const void *dy, *a, *b;
    const uint8_t *mask;
    fv_walk w;
} binary_case;

static void run_binary(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const binary_case *c = in;
    k->binary(s, c->op, y->data, c->a, c->b, &c->w);
}

static void run_binary_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const binary_case *c = in;
    k->binary_bwd(s, c->op, y[0], y[1], c->dy, c->a, c->b, &c->w);
}

static void run_masked_fill(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const binary_case *c = in;
    k->masked_fill(s, y[0], c->a, c->mask, -0.5f, &c->w);
}

/* A row of these: shape, then which axes a and b have. */
typedef struct {
    int n;
    int64_t shape[4];
    bool a[4], b[4];
} broadcast;

static const broadcast broadcasts[] = {
    {1, {1}, {1}, {1}},
    {1, {70001}, {1}, {1}},
    {1, {2049}, {1}, {0}},                   /* with a scalar */
    {1, {70000}, {1}, {0}},                  /* whose gradient is summed in pieces */
    {2, {97, 777}, {1, 1}, {0, 1}},          /* a bias */
    {2, {97, 777}, {1, 1}, {1, 0}},          /* one number for each row */
    {2, {5, 3}, {0, 1}, {1, 0}},             /* an outer sum */
    {3, {3, 17, 300}, {1, 1, 1}, {0, 1, 0}}, /* the bias of a convolution */
    {3, {20, 3, 1024}, {1, 1, 1}, {0, 1, 0}},
    {3, {4, 40, 96}, {1, 1, 1}, {1, 0, 1}}, /* a mask for all tokens of a sequence */
    {3, {4, 40, 96}, {1, 1, 1}, {1, 1, 0}}, /* one for all numbers of a token */
    {3, {7, 5, 1030}, {1, 0, 1}, {1, 1, 0}},
    {4, {3, 4, 5, 6}, {1, 0, 1, 0}, {0, 1, 1, 1}},
};
#define BROADCASTS (int)(sizeof broadcasts / sizeof *broadcasts)

static int64_t operand(int64_t *stride, const broadcast *c, const bool *has)
{
    int64_t step = 1;
    for (int d = c->n - 1; d >= 0; d--) {
        stride[d] = has[d] ? step : 0;
        if (has[d]) step *= c->shape[d];
    }
    return step;
}

static void broadcast_operations_and_gradients(void **state)
{
    (void)state;
    static const bool all[4] = {1, 1, 1, 1};
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < BROADCASTS; i++) {
            const broadcast *b = &broadcasts[i];
            binary_case c = {.w = {.n = b->n}};
            memcpy(c.w.shape, b->shape, sizeof b->shape);
            int64_t ny = operand(c.w.y, b, all), na = operand(c.w.a, b, b->a),
                    nb = operand(c.w.b, b, b->b);
            void *x = numbers(kinds[t], na, 0.5f, 2), *z = numbers(kinds[t], nb, 0.5f, 2),
                 *dy = numbers(kinds[t], ny, -1, 1);
            uint8_t *mask = memory((size_t)nb);
            for (int64_t j = 0; j < nb; j++) mask[j] = uniform() > 0;
            c.dy = dy, c.a = x, c.b = z, c.mask = mask;
            /* rounding of the longest sum, whose terms are up to 8: a / b^2 */
            double sums = 16 + 16 * sqrt((double)ny);
            for (c.op = 0; c.op < FV_B_COUNT; c.op++) {
                compare("binary", kinds[t], run_binary, &c, &(out){kinds[t], ny, false, false}, 1,
                        4);
                for (int mode = 0; mode < MODES; mode++) {
                    out o[2] = {sink_out(kinds[t], na, mode),
                                sink_out(kinds[t], nb, (mode + 1) % MODES)};
                    compare("binary_bwd", kinds[t], run_binary_bwd, &c, o, 2, sums);
                }
            }
            compare_sinks("masked_fill", kinds[t], run_masked_fill, &c, ny, 2);
            free(x), free(z), free(dy), free(mask);
        }
}

/* ---- moving ---- */

typedef struct {
    const void *x;
    int64_t n, vocab, d;
    const int32_t *ids;
    fv_dtype tt;
    int32_t skip;
    fv_walk w;
} move_case;

static void run_copy(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const move_case *c = in;
    k->copy(s, y[0], c->x, &c->w);
}

static void copies(void **state)
{
    (void)state;
    static const fv_walk walks[] = {
        {1, {5000}, {1}, {1}, {0}},
        {2, {33, 70}, {70, 1}, {1, 33}, {0}},                      /* transposed */
        {3, {3, 129, 200}, {25800, 200, 1}, {25800, 1, 129}, {0}}, /* a batch of them */
        {3, {40, 9, 65}, {585, 65, 1}, {65, 2600, 1}, {0}},        /* heads first */
        {3, {40, 9, 65}, {65, 2600, 1}, {585, 65, 1}, {0}},        /* and back */
        {3, {7, 35, 36}, {36, 252, 1}, {1, 7 * 36, 7}, {0}},
        {2, {65, 40}, {1, 65}, {40, 1}, {0}},             /* written along the first axis */
        {3, {6, 50, 30}, {1500, 30, 1}, {0, 30, 1}, {0}}, /* repeated */
        {2, {50, 300}, {300, 1}, {1, 0}, {0}},
        {2, {64, 100}, {200, 2}, {300, 3}, {0}}, /* gaps in both */
    };
    for (int t = 0; t < KINDS; t++)
        for (size_t i = 0; i < sizeof walks / sizeof *walks; i++) {
            move_case c = {.x = numbers(kinds[t], 80000, -1, 1), .w = walks[i]};
            compare_sinks("copy", kinds[t], run_copy, &c, 80000, 2);
            free((void *)c.x);
        }
}

static void run_fill(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const move_case *c = in;
    k->fill(s, y->data, 0.3f, c->n);
}

static void run_cast(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const move_case *c = in;
    k->cast(s, y[0], c->x, c->n);
}

static void fills_and_casts(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int l = 0; l < LENGTHS; l++) {
            move_case c = {.n = lengths[l], .x = numbers(kinds[t], lengths[l], -100, 100)};
            compare("fill", kinds[t], run_fill, &c, &(out){kinds[t], c.n, false, false}, 1, 0);
            for (fv_dtype to = 0; to < FV_FLOATS; to++)
                for (int add = 0; add < 2; add++)
                    compare("cast", kinds[t], run_cast, &c, &(out){to, c.n, add, false}, 1,
                            add ? 2 : 0);
            free((void *)c.x);
        }
}

/* All 65536 halves, and floats around every place where rounding changes. */
static void half_precision_is_converted_exactly(void **state)
{
    (void)state;
    enum { N = 65536 };
    uint16_t *h = memory(N * 2), *want = memory(N * 2), *got = memory(N * 2);
    float *f = memory(N * 4), *wide = memory(N * 4);
    for (int i = 0; i < N; i++) h[i] = (uint16_t)i;
    for (int l = 0; l < n_level; l++)
        for (int t = 1; t < KINDS; t++) {
            fv_stream s = {.dev = at_level[l], .threads = 1};
            reference[kinds[t]].cast(&s, (fv_sink){f, FV_F32, false}, h, N);
            at_level[l]->k[kinds[t]]->cast(&s, (fv_sink){wide, FV_F32, false}, h, N);
            for (int i = 0; i < N; i++)
                assert_true(f[i] == wide[i] || (isnan(f[i]) && isnan(wide[i])));
            for (int step = -2; step <= 2; step++) {
                for (int i = 0; i < N; i++) {
                    uint32_t u;
                    float mid = isfinite(f[i]) ? f[i] + (f[i] - f[i > 0 ? i - 1 : 0]) * 0.5f : f[i];
                    memcpy(&u, &mid, 4);
                    u += (uint32_t)step;
                    memcpy(&wide[i], &u, 4);
                }
                reference[FV_F32].cast(&s, (fv_sink){want, kinds[t], false}, wide, N);
                at_level[l]->k[FV_F32]->cast(&s, (fv_sink){got, kinds[t], false}, wide, N);
                for (int i = 0; i < N; i++) assert_true(want[i] == got[i] || isnan(wide[i]));
            }
        }
    free(h), free(want), free(got), free(f), free(wide);
}

static void run_gather(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const move_case *c = in;
    k->gather(s, y->data, c->x, c->tt, c->ids, c->n, c->vocab, c->d);
}

static void run_gather_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const move_case *c = in;
    k->gather_bwd(s, y[0], c->x, c->ids, c->n, c->vocab, c->d, c->skip);
}

static void tables_are_read_and_summed_into(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int big = 0; big < 2; big++) {
            move_case c = {.n = big ? 300 : 7,
                           .vocab = big ? 101 : 3,
                           .d = big ? 1100 : 5,
                           .skip = 2};
            int32_t *ids = integers(c.n, (int32_t)c.vocab);
            void *dy = numbers(kinds[t], c.n * c.d, -1, 1);
            c.ids = ids;
            for (c.tt = 0; c.tt < FV_FLOATS; c.tt++) {
                void *table = numbers(c.tt, c.vocab * c.d, -1, 1);
                c.x = table;
                compare("gather", kinds[t], run_gather, &c,
                        &(out){kinds[t], c.n * c.d, false, false}, 1, 0);
                free(table);
            }
            c.x = dy;
            compare_sinks("gather_bwd", kinds[t], run_gather_bwd, &c, c.vocab * c.d, 32);
            free(ids), free(dy);
        }
}

static void an_id_out_of_range_fails_the_stream(void **state)
{
    (void)state;
    float table[6] = {0}, y[3];
    for (int l = 0; l < n_level; l++)
        for (int32_t id = -1; id <= 2; id += 3) {
            fv_stream s = {.dev = at_level[l], .threads = 1};
            at_level[l]->k[FV_F32]->gather(&s, y, table, FV_F32, &id, 1, 2, 3);
            assert_int_equal(s.err.code, FV_EARG);
            s = (fv_stream){.dev = at_level[l], .threads = 1};
            at_level[l]->k[FV_F32]->cross_entropy(&s, y, y + 1, table, &id, 1, 2, 0, -100);
            assert_int_equal(s.err.code, FV_EARG);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_functions_and_gradients),
        cmocka_unit_test(an_element_does_not_depend_on_its_place),
        cmocka_unit_test(broadcast_operations_and_gradients),
        cmocka_unit_test(copies),
        cmocka_unit_test(fills_and_casts),
        cmocka_unit_test(half_precision_is_converted_exactly),
        cmocka_unit_test(tables_are_read_and_summed_into),
        cmocka_unit_test(an_id_out_of_range_fails_the_stream),
    };
    return cmocka_run_group_tests(tests, open_levels, close_levels);
}
