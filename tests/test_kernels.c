/* test_kernels.c - every fast kernel against the reference kernel of the same table.
 *
 * Each case runs on the reference table and, for each instruction level of this machine, on the fast table with one to
 * four threads.  The fast result must be near the reference, and the same bits for every number of threads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/ref/tables.h"
#include "fovea/fovea.h"
#include "fovea/op.h"

#define MOST_LEVELS 8
#define MOST_THREADS 4
#define MOST_OUT 4
#define GUARD 64 /* bytes behind every output that must not change */

static const fv_dtype kinds[] = {FV_F32, FV_BF16, FV_F16};
#define KINDS 3

static fv_kernels reference[FV_FLOATS];
static fv_device *device[MOST_LEVELS];
static int n_level;

/* ---- data ---- */

static uint64_t dice = 1;

static float uniform(void) /* -1..1 */
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(dice >> 32) * 0x1p-31f;
}

static void *memory(size_t bytes)
{
    void *p = calloc(1, bytes + GUARD);
    assert_non_null(p);
    return p;
}

/* To any float dtype, by the reference cast. */
static void put_floats(void *to, fv_dtype t, const float *from, int64_t n)
{
    reference[FV_F32].cast(NULL, (fv_sink){to, t, false}, from, n);
}

/* n numbers of dtype t, low..high */
static void *numbers(fv_dtype t, int64_t n, float low, float high)
{
    float *f = memory((size_t)n * 4);
    void *p = memory((size_t)n * fv_dtype_size(t));
    for (int64_t i = 0; i < n; i++) f[i] = low + (high - low) * 0.5f * (uniform() + 1);
    put_floats(p, t, f, n);
    free(f);
    return p;
}

static int32_t *integers(int64_t n, int32_t below)
{
    int32_t *p = memory((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)((double)(uniform() + 1) * 0.4999999 * below);
    return p;
}

static double number(const void *p, fv_dtype t, int64_t i)
{
    double v;
    if (t == FV_I32) return ((const int32_t *)p)[i];
    if (t == FV_F64) return ((const double *)p)[i];
    reference[t].cast(NULL, (fv_sink){&v, FV_F64, false}, (const char *)p + (size_t)i * fv_dtype_size(t), 1);
    return v;
}

/* ---- cases ---- */

typedef struct out {
    fv_dtype t;
    int64_t n;
    bool add, absent;
} out;

/* What a case does with one table: it reads `in`, its own structure, and writes the sinks. */
typedef void (*action)(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y);

static double unit(fv_dtype t) { return t == FV_BF16 ? 0x1p-8 : t == FV_F16 ? 0x1p-11 : 0x1p-24; }

/* Within tol units in the last place of 1 plus tol of the number's own. */
static void near(const char *what, const char *level, const out *o, const void *want, const void *got, double tol)
{
    for (int64_t i = 0; i < o->n; i++) {
        double a = number(want, o->t, i), b = number(got, o->t, i), room = tol * unit(o->t) * (1 + fabs(a));
        if (a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= room) continue;
        fail_msg("%s, %s, %s: element %lld of %lld is %.9g, not %.9g", what, level, fv_dtype_name(o->t), (long long)i,
                 (long long)o->n, b, a);
    }
}

static void perform(action act, const fv_kernels *k, fv_device *d, int threads, const void *in, const out *o, int n_out,
                    void *const *start, void **result)
{
    fv_stream s = {.dev = d, .threads = threads};
    fv_sink sink[MOST_OUT];
    for (int i = 0; i < n_out; i++) {
        size_t bytes = (size_t)o[i].n * fv_dtype_size(o[i].t);
        result[i] = memory(bytes);
        memcpy(result[i], start[i], bytes + GUARD);
        sink[i] = (fv_sink){o[i].absent ? NULL : result[i], o[i].t, o[i].add};
    }
    act(k, &s, in, sink);
    assert_int_equal(s.err.code, FV_OK);
    for (int i = 0; i < n_out; i++) {
        size_t bytes = (size_t)o[i].n * fv_dtype_size(o[i].t);
        assert_memory_equal((char *)result[i] + bytes, (char *)start[i] + bytes, GUARD);
    }
    if (s.work) d->backend->release(d, s.work, s.work_bytes);
}

static void check(const char *what, fv_dtype t, action act, const void *in, const out *o, int n_out, double tol)
{
    void *start[MOST_OUT], *want[MOST_OUT], *first[MOST_OUT], *got[MOST_OUT];
    for (int i = 0; i < n_out; i++) {
        size_t bytes = (size_t)o[i].n * fv_dtype_size(o[i].t);
        start[i] = o[i].t == FV_I32 ? integers(o[i].n, 9) : numbers(o[i].t, o[i].n, -1, 1);
        memset((char *)start[i] + bytes, 0x5a, GUARD);
    }
    perform(act, &reference[t], device[0], 1, in, o, n_out, start, want);
    for (int l = 0; l < n_level; l++)
        for (int threads = 1; threads <= MOST_THREADS; threads++) {
            perform(act, device[l]->k[t], device[l], threads, in, o, n_out, start, threads == 1 ? first : got);
            for (int i = 0; i < n_out; i++) {
                size_t bytes = (size_t)o[i].n * fv_dtype_size(o[i].t);
                if (threads == 1) {
                    near(what, fv_device_level(device[l]), &o[i], want[i], first[i], tol);
                    continue;
                }
                if (memcmp(first[i], got[i], bytes)) fail_msg("%s: %d threads give other bits than one", what, threads);
                free(got[i]);
            }
            for (int i = 0; threads == MOST_THREADS && i < n_out; i++) free(first[i]);
        }
    for (int i = 0; i < n_out; i++) free(start[i]), free(want[i]);
}

/* Sink modes: absent, write, add, and the last two once more in f32. */
#define MODES 5
static out sink_out(fv_dtype t, int64_t n, int mode)
{
    return (out){mode > 2 ? FV_F32 : t, n, mode == 2 || mode == 4, mode == 0};
}

static const int64_t lengths[] = {1, 3, 4, 5, 16, 31, 257, 1024, 1025, 70001};
#define LENGTHS (int)(sizeof lengths / sizeof *lengths)

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
                void *x = numbers(kinds[t], n, positive ? 0.1f : -6, 6), *dy = numbers(kinds[t], n, -1, 1);
                void *y = memory((size_t)n * 4);
                unary_case c = {op, n, dy, x, y, op == FV_U_CLAMP ? -1.5f : 0.25f, op == FV_U_CLAMP ? 2.0f : 0.75f};
                reference[kinds[t]].unary(NULL, op, y, x, n, c.p0, c.p1);
                check("unary", kinds[t], run_unary, &c, &(out){kinds[t], n, false, false}, 1, 16);
                for (int mode = 0; mode < MODES; mode++) {
                    out o = sink_out(kinds[t], n, mode);
                    check("unary_bwd", kinds[t], run_unary_bwd, &c, &o, 1, 96); /* the reference itself cancels in 1 - tanh^2 */
                }
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
            const fv_kernels *k = device[l]->k[FV_F32];
            fv_stream s = {.dev = device[l], .threads = 1};
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
    {2, {97, 777}, {1, 1}, {0, 1}},          /* a bias */
    {2, {97, 777}, {1, 1}, {1, 0}},          /* one number for each row */
    {2, {5, 3}, {0, 1}, {1, 0}},             /* an outer sum */
    {3, {3, 17, 300}, {1, 1, 1}, {0, 1, 0}}, /* the bias of a convolution */
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
            int64_t ny = operand(c.w.y, b, all), na = operand(c.w.a, b, b->a), nb = operand(c.w.b, b, b->b);
            void *x = numbers(kinds[t], na, 0.5f, 2), *z = numbers(kinds[t], nb, 0.5f, 2), *dy = numbers(kinds[t], ny, -1, 1);
            uint8_t *mask = memory((size_t)nb);
            for (int64_t j = 0; j < nb; j++) mask[j] = uniform() > 0;
            c.dy = dy, c.a = x, c.b = z, c.mask = mask;
            double sums = 16 + 4 * sqrt((double)ny); /* rounding of the longest sum */
            for (c.op = 0; c.op < FV_B_COUNT; c.op++) {
                check("binary", kinds[t], run_binary, &c, &(out){kinds[t], ny, false, false}, 1, 4);
                for (int mode = 0; mode < MODES; mode++) {
                    out o[2] = {sink_out(kinds[t], na, mode), sink_out(kinds[t], nb, (mode + 1) % MODES)};
                    check("binary_bwd", kinds[t], run_binary_bwd, &c, o, 2, sums);
                }
            }
            for (int mode = 0; mode < MODES; mode++) {
                out o = sink_out(kinds[t], ny, mode);
                check("masked_fill", kinds[t], run_masked_fill, &c, &o, 1, 2);
            }
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
            for (int mode = 0; mode < MODES; mode++) {
                out o = sink_out(kinds[t], 80000, mode);
                check("copy", kinds[t], run_copy, &c, &o, 1, 2);
            }
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
            check("fill", kinds[t], run_fill, &c, &(out){kinds[t], c.n, false, false}, 1, 0);
            for (fv_dtype to = 0; to < FV_FLOATS; to++)
                for (int add = 0; add < 2; add++)
                    check("cast", kinds[t], run_cast, &c, &(out){to, c.n, add, false}, 1, add ? 2 : 0);
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
            fv_stream s = {.dev = device[l], .threads = 1};
            reference[kinds[t]].cast(&s, (fv_sink){f, FV_F32, false}, h, N);
            device[l]->k[kinds[t]]->cast(&s, (fv_sink){wide, FV_F32, false}, h, N);
            for (int i = 0; i < N; i++) assert_true(f[i] == wide[i] || (isnan(f[i]) && isnan(wide[i])));
            for (int step = -2; step <= 2; step++) {
                for (int i = 0; i < N; i++) {
                    uint32_t u;
                    float mid = isfinite(f[i]) ? f[i] + (f[i] - f[i > 0 ? i - 1 : 0]) * 0.5f : f[i];
                    memcpy(&u, &mid, 4);
                    u += (uint32_t)step;
                    memcpy(&wide[i], &u, 4);
                }
                reference[FV_F32].cast(&s, (fv_sink){want, kinds[t], false}, wide, N);
                device[l]->k[FV_F32]->cast(&s, (fv_sink){got, kinds[t], false}, wide, N);
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
            move_case c = {.n = big ? 300 : 7, .vocab = big ? 101 : 3, .d = big ? 1100 : 5, .skip = 2};
            int32_t *ids = integers(c.n, (int32_t)c.vocab);
            void *dy = numbers(kinds[t], c.n * c.d, -1, 1);
            c.ids = ids;
            for (c.tt = 0; c.tt < FV_FLOATS; c.tt++) {
                void *table = numbers(c.tt, c.vocab * c.d, -1, 1);
                c.x = table;
                check("gather", kinds[t], run_gather, &c, &(out){kinds[t], c.n * c.d, false, false}, 1, 0);
                free(table);
            }
            c.x = dy;
            for (int mode = 0; mode < MODES; mode++) {
                out o = sink_out(kinds[t], c.vocab * c.d, mode);
                check("gather_bwd", kinds[t], run_gather_bwd, &c, &o, 1, 32);
            }
            free(ids), free(dy);
        }
}

static void an_id_out_of_range_fails_the_stream(void **state)
{
    (void)state;
    float table[6] = {0}, y[3];
    for (int l = 0; l < n_level; l++)
        for (int32_t id = -1; id <= 2; id += 3) {
            fv_stream s = {.dev = device[l], .threads = 1};
            device[l]->k[FV_F32]->gather(&s, y, table, FV_F32, &id, 1, 2, 3);
            assert_int_equal(s.err.code, FV_EARG);
            s = (fv_stream){.dev = device[l], .threads = 1};
            device[l]->k[FV_F32]->cross_entropy(&s, y, y + 1, table, &id, 1, 2, 0, -100);
            assert_int_equal(s.err.code, FV_EARG);
        }
}

/* ---- along an axis ---- */

typedef struct {
    const void *x, *dy;
    int32_t *arg;
    int64_t outer, n, inner;
    fv_reduce_op op;
    bool reverse;
} axis_case;

static void run_colsum(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const axis_case *c = in;
    k->colsum(s, y[0], c->x, c->n, c->inner);
}

static void run_reduce(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const axis_case *c = in;
    k->reduce(s, c->op, y[0].data, y[1].data, c->x, c->outer, c->n, c->inner);
}

static void run_reduce_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const axis_case *c = in;
    k->reduce_bwd(s, c->op, y[0], c->dy, c->arg, c->outer, c->n, c->inner);
}

static void run_cumsum(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const axis_case *c = in;
    k->cumsum(s, y[0], c->x, c->outer, c->n, c->inner, c->reverse);
}

static void reductions_and_their_gradients(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {3, 7, 1},    {5, 1025, 1}, {1, 70001, 1},
                                        {1, 600, 131}, {2, 300, 65}, {9, 4, 5},    {4, 33, 300}};
    for (int t = 0; t < KINDS; t++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            axis_case c = {.outer = shapes[i][0], .n = shapes[i][1], .inner = shapes[i][2]};
            int64_t all = c.outer * c.n * c.inner, kept = c.outer * c.inner;
            void *x = numbers(kinds[t], all, -1, 1), *dy = numbers(kinds[t], kept, -1, 1);
            int32_t *arg = integers(kept, (int32_t)c.n);
            c.x = x, c.dy = dy, c.arg = arg;
            double tol = 16 + sqrt((double)c.n) * 4;
            for (c.op = 0; c.op < FV_R_COUNT; c.op++) {
                out o[2] = {{kinds[t], kept, false, false}, {FV_I32, kept, false, c.op != FV_R_MAX}};
                check("reduce", kinds[t], run_reduce, &c, o, 2, tol);
                for (int mode = 0; mode < MODES; mode++) {
                    out d = sink_out(kinds[t], all, mode);
                    check("reduce_bwd", kinds[t], run_reduce_bwd, &c, &d, 1, 2);
                }
            }
            for (int mode = 0; mode < MODES; mode++) {
                out sums = sink_out(kinds[t], c.inner, mode), running = sink_out(kinds[t], all, mode);
                if (c.outer == 1) check("colsum", kinds[t], run_colsum, &c, &sums, 1, tol);
                c.reverse = mode & 1;
                check("cumsum", kinds[t], run_cumsum, &c, &running, 1, tol * 4);
            }
            free(x), free(dy), free(arg);
        }
}

/* NaN counts as the largest, equal ones go to the first. */
static void the_largest_is_the_first_and_nan_is_not_lost(void **state)
{
    (void)state;
    float x[] = {-INFINITY, 2, 7, 7, -1, 3, NAN, 7, 9, NAN, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    for (int l = 0; l < n_level; l++)
        for (int64_t n = 1; n <= 21; n++) {
            fv_stream s = {.dev = device[l], .threads = 1};
            float y;
            int32_t arg;
            device[l]->k[FV_F32]->reduce(&s, FV_R_MAX, &y, &arg, x, 1, n, 1);
            assert_int_equal(arg, n < 3 ? n - 1 : n < 7 ? 2 : 6);
            assert_true(isnan(y) == (n >= 7));
            if (s.work) device[l]->backend->release(device[l], s.work, s.work_bytes);
        }
}

/* ---- by rows ---- */

typedef struct {
    const void *x, *a, *dy, *y, *gain, *bias;
    const float *mean, *rstd, *dloss;
    const int32_t *labels;
    int64_t rows, cols;
    bool log;
    float smooth;
} row_case;

static void run_softmax(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->softmax(s, y->data, c->x, c->rows, c->cols, c->log);
}

static void run_softmax_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->softmax_bwd(s, y[0], c->dy, c->y, c->rows, c->cols, c->log);
}

static const int64_t row_shapes[][2] = {{1, 1}, {3, 5}, {7, 16}, {2, 1027}, {70, 768}, {9, 5003}};
#define ROW_SHAPES (int)(sizeof row_shapes / sizeof *row_shapes)

static void softmax_and_its_gradient(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < ROW_SHAPES; i++)
            for (int as_log = 0; as_log < 2; as_log++) {
                row_case c = {.rows = row_shapes[i][0], .cols = row_shapes[i][1], .log = as_log};
                int64_t n = c.rows * c.cols;
                void *x = numbers(kinds[t], n, -9, 9), *dy = numbers(kinds[t], n, -1, 1), *y = memory((size_t)n * 4);
                reference[kinds[t]].softmax(NULL, y, x, c.rows, c.cols, as_log);
                c.x = x, c.dy = dy, c.y = y;
                check("softmax", kinds[t], run_softmax, &c, &(out){kinds[t], n, false, false}, 1, 16);
                for (int mode = 0; mode < MODES; mode++) {
                    out o = sink_out(kinds[t], n, mode);
                    check("softmax_bwd", kinds[t], run_softmax_bwd, &c, &o, 1, 64);
                }
                free(x), free(dy), free(y);
            }
}

static void run_cross_entropy(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->cross_entropy(s, y[0].data, y[1].data, c->x, c->labels, c->rows, c->cols, c->smooth, -100);
}

static void run_cross_entropy_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->cross_entropy_bwd(s, y[0], c->dloss, c->rstd, c->x, c->labels, c->rows, c->cols, c->smooth, -100);
}

static void cross_entropy_and_its_gradient(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < ROW_SHAPES; i++)
            for (int smoothed = 0; smoothed < 2; smoothed++) {
                row_case c = {.rows = row_shapes[i][0], .cols = row_shapes[i][1], .smooth = smoothed ? 0.1f : 0};
                int64_t n = c.rows * c.cols;
                void *x = numbers(kinds[t], n, -9, 9);
                float *dloss = numbers(FV_F32, c.rows, -1, 1), *loss = memory((size_t)c.rows * 4),
                      *lse = memory((size_t)c.rows * 4);
                int32_t *labels = integers(c.rows, (int32_t)c.cols);
                if (c.rows > 2) labels[1] = -100;
                reference[kinds[t]].cross_entropy(NULL, loss, lse, x, labels, c.rows, c.cols, c.smooth, -100);
                c.x = x, c.dloss = dloss, c.labels = labels, c.rstd = lse;
                out o[2] = {{FV_F32, c.rows, false, false}, {FV_F32, c.rows, false, false}};
                check("cross_entropy", kinds[t], run_cross_entropy, &c, o, 2, 64);
                for (int mode = 0; mode < MODES; mode++) {
                    out d = sink_out(kinds[t], n, mode);
                    check("cross_entropy_bwd", kinds[t], run_cross_entropy_bwd, &c, &d, 1, 16);
                }
                free(x), free(dloss), free(loss), free(lse), free(labels);
            }
}

/* Logits of -inf, as masks make them, count as nothing, also where they fill whole pieces of the row. */
static void masked_logits_count_as_nothing(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float x[N];
    for (int i = 0; i < N; i++) x[i] = i >= 3000 && i < 3004 ? 1.0f : -INFINITY;
    int32_t label = 3001;
    for (int l = 0; l < n_level; l++) {
        fv_stream s = {.dev = device[l], .threads = 1};
        float loss, lse;
        device[l]->k[FV_F32]->cross_entropy(&s, &loss, &lse, x, &label, 1, N, 0, -100);
        assert_true(fabsf(loss - logf(4)) < 1e-6f && fabsf(lse - 1 - logf(4)) < 1e-6f);
    }
}

static void run_layernorm(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->layernorm(s, y[0].data, y[1].data, y[2].data, y[3].data, c->x, c->a, c->gain, c->bias, c->rows, c->cols, 1e-5f);
}

static void run_rmsnorm(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->rmsnorm(s, y[0].data, y[2].data, y[3].data, c->x, c->a, c->gain, c->rows, c->cols, 1e-5f);
}

static void run_layernorm_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->layernorm_bwd(s, y[0], y[1], y[2], c->dy, c->x, c->gain, c->mean, c->rstd, c->rows, c->cols);
}

static void run_rmsnorm_bwd(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const row_case *c = in;
    k->rmsnorm_bwd(s, y[0], y[1], c->dy, c->x, c->gain, c->rstd, c->rows, c->cols);
}

static void norms_and_their_gradients(void **state)
{
    (void)state;
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < ROW_SHAPES; i++)
            for (int parts = 0; parts < 8; parts++) { /* with a residual, with a gain, with a bias */
                row_case c = {.rows = row_shapes[i][0], .cols = row_shapes[i][1]};
                int64_t n = c.rows * c.cols;
                fv_dtype k = kinds[t];
                void *x = numbers(k, n, -1, 2), *a = numbers(k, n, -1, 1), *dy = numbers(k, n, -1, 1);
                void *gain = numbers(k, c.cols, 0.5f, 1.5f), *bias = numbers(k, c.cols, -1, 1);
                float *mean = numbers(FV_F32, c.rows, 0.4f, 0.6f), *rstd = numbers(FV_F32, c.rows, 0.9f, 1.2f);
                c.x = x, c.a = parts & 1 ? a : NULL, c.gain = parts & 2 ? gain : NULL, c.bias = parts & 4 ? bias : NULL;
                c.dy = dy, c.mean = mean, c.rstd = rstd;
                out o[4] = {
                    {k, n, false, false}, {FV_F32, c.rows, false, false}, {FV_F32, c.rows, false, false}, {k, n, false, false}};
                check("layernorm", k, run_layernorm, &c, o, 4, 256);
                check("rmsnorm", k, run_rmsnorm, &c, o, 4, 256);
                for (int mode = 0; mode < MODES; mode++) {
                    out d[3] = {sink_out(k, n, mode), sink_out(k, c.cols, (mode + 1) % MODES),
                                sink_out(k, c.cols, (mode + 2) % MODES)};
                    check("layernorm_bwd", k, run_layernorm_bwd, &c, d, 3, 128);
                    check("rmsnorm_bwd", k, run_rmsnorm_bwd, &c, d, 2, 128);
                }
                free(x), free(a), free(dy), free(gain), free(bias), free(mean), free(rstd);
            }
}

/* A row alone gives the bits it gives among others. */
static void a_row_does_not_depend_on_its_batch(void **state)
{
    (void)state;
    enum { ROWS = 50, COLS = 1003 };
    float *x = numbers(FV_F32, ROWS * COLS, -2, 2), *all = memory(ROWS * COLS * 4), *one = memory(COLS * 4), stat[2 * ROWS];
    for (int l = 0; l < n_level; l++) {
        const fv_kernels *k = device[l]->k[FV_F32];
        fv_stream s = {.dev = device[l], .threads = 2};
        for (int r = 0; r < ROWS; r += 7) {
            k->softmax(&s, all, x, ROWS, COLS, false);
            k->softmax(&s, one, x + r * COLS, 1, COLS, false);
            assert_memory_equal(all + r * COLS, one, COLS * 4);
            k->layernorm(&s, all, stat, stat + ROWS, NULL, x, NULL, NULL, NULL, ROWS, COLS, 1e-5f);
            k->layernorm(&s, one, stat, stat + ROWS, NULL, x + r * COLS, NULL, NULL, NULL, 1, COLS, 1e-5f);
            assert_memory_equal(all + r * COLS, one, COLS * 4);
        }
        if (s.work) device[l]->backend->release(device[l], s.work, s.work_bytes);
    }
    free(x), free(all), free(one);
}

/* ---- the rest ---- */

typedef struct {
    const void *x;
    int64_t n;
    float p;
    fv_rng rng;
} drop_case;

static void run_dropout(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const drop_case *c = in;
    k->dropout(s, y[0], c->x, c->n, c->p, c->rng);
}

static void dropout_keeps_the_same_elements_everywhere(void **state)
{
    (void)state;
    uint64_t step = 0x123456789abcdefu;
    for (int t = 0; t < KINDS; t++)
        for (int l = 0; l < LENGTHS; l++)
            for (int mode = 0; mode < MODES; mode++) {
                drop_case c = {.n = lengths[l], .p = 0.3f, .rng = {0xfedcba9876543210u, 77, &step}};
                void *x = numbers(kinds[t], c.n, 1, 2);
                out o = sink_out(kinds[t], c.n, mode);
                c.x = x;
                check("dropout", kinds[t], run_dropout, &c, &o, 1, 1);
                free(x);
            }
}

typedef struct {
    const void *x;
    fv_conv_geom g;
} conv_case;

static void run_im2col(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const conv_case *c = in;
    k->im2col(s, y->data, c->x, &c->g);
}

static void run_col2im(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const conv_case *c = in;
    k->col2im(s, y[0], c->x, &c->g);
}

static void images_are_unfolded_and_folded(void **state)
{
    (void)state;
    fv_conv_geom geoms[] = {
        {.batch = 2, .channels = 3, .h = 9, .w = 11, .kh = 3, .kw = 3, .sh = 1, .sw = 1, .ph = 1, .pw = 1, .dh = 1, .dw = 1},
        {.batch = 1, .channels = 2, .h = 32, .w = 48, .kh = 16, .kw = 16, .sh = 16, .sw = 16, .ph = 0, .pw = 0, .dh = 1, .dw = 1},
        {.batch = 2, .channels = 5, .h = 7, .w = 6, .kh = 3, .kw = 2, .sh = 2, .sw = 3, .ph = 2, .pw = 4, .dh = 2, .dw = 3},
        {.batch = 3, .channels = 40, .h = 1, .w = 300, .kh = 1, .kw = 5, .sh = 1, .sw = 1, .ph = 0, .pw = 2, .dh = 1, .dw = 1},
    };
    for (int t = 0; t < KINDS; t++)
        for (size_t i = 0; i < sizeof geoms / sizeof *geoms; i++) {
            fv_conv_geom g = geoms[i];
            g.oh = (g.h + 2 * g.ph - g.dh * (g.kh - 1) - 1) / g.sh + 1;
            g.ow = (g.w + 2 * g.pw - g.dw * (g.kw - 1) - 1) / g.sw + 1;
            int64_t image = g.batch * g.channels * g.h * g.w, col = g.batch * g.channels * g.kh * g.kw * g.oh * g.ow;
            conv_case in = {numbers(kinds[t], image, -1, 1), g}, back = {numbers(kinds[t], col, -1, 1), g};
            check("im2col", kinds[t], run_im2col, &in, &(out){kinds[t], col, false, false}, 1, 0);
            for (int mode = 0; mode < MODES; mode++) {
                out o = sink_out(kinds[t], image, mode);
                check("col2im", kinds[t], run_col2im, &back, &o, 1, 8);
            }
            free((void *)in.x), free((void *)back.x);
        }
}

typedef struct {
    const void *x;
    const int32_t *pos;
    const float *freq;
    int64_t B, T, H, W, half;
    bool adjacent, back;
} rope_case;

static void run_rope(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const rope_case *c = in;
    k->rope(s, y[0], c->x, c->pos, c->freq, c->B, c->T, c->H, c->W, c->half, c->adjacent, c->back);
}

static void rotary_positions(void **state)
{
    (void)state;
    float freq[32];
    for (int i = 0; i < 32; i++) freq[i] = powf(10000, -(float)i / 32);
    for (int t = 0; t < KINDS; t++)
        for (int form = 0; form < 8; form++) {
            rope_case c = {.B = 2, .T = 50, .H = 6, .W = 64, .half = form & 1 ? 32 : 13, .freq = freq};
            c.adjacent = form & 2, c.back = form & 4;
            int64_t n = c.B * c.T * c.H * c.W;
            int32_t *pos = integers(c.B * c.T, 5000);
            void *x = numbers(kinds[t], n, -1, 1);
            c.x = x, c.pos = pos;
            for (int mode = 0; mode < MODES; mode++) {
                out o = sink_out(kinds[t], n, mode);
                check("rope", kinds[t], run_rope, &c, &o, 1, 8);
            }
            free(x), free(pos);
        }
}

typedef struct {
    const float *grad;
    const void *x;
    int64_t n;
    bool copy;
    fv_adamw o;
} optim_case;

static void run_adamw(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const optim_case *c = in;
    float *v = y[2].data;
    for (int64_t i = 0; i < c->n; i++) v[i] = fabsf(v[i]);
    k->adamw(s, y[0].data, y[1].data, v, c->copy ? y[3].data : NULL, c->grad, c->n, &c->o);
}

static void run_sumsq(const fv_kernels *k, fv_stream *s, const void *in, const fv_sink *y)
{
    const optim_case *c = in;
    k->sumsq(s, y->data, c->x, c->n);
}

static void optimiser_steps(void **state)
{
    (void)state;
    float scale = 0.7f;
    for (int t = 0; t < KINDS; t++)
        for (int l = 0; l < LENGTHS; l++)
            for (int form = 0; form < 4; form++) {
                optim_case c = {.n = lengths[l], .copy = form & 1};
                c.o = (fv_adamw){1e-2f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.3f, 0.05f, form & 2 ? &scale : NULL};
                float *grad = numbers(FV_F32, c.n, -1, 1);
                void *x = numbers(kinds[t], c.n, -1, 1);
                c.grad = grad, c.x = x;
                out o[4] = {{FV_F32, c.n, 0, 0}, {FV_F32, c.n, 0, 0}, {FV_F32, c.n, 0, 0}, {kinds[t], c.n, 0, 0}};
                check("adamw", kinds[t], run_adamw, &c, o, 4, 8);
                check("sumsq", kinds[t], run_sumsq, &c, &(out){FV_F32, 1, 0, 0}, 1, 2);
                free(grad), free(x);
            }
}

static int open_all(void **state)
{
    (void)state;
    const char *levels[MOST_LEVELS];
    fv__ref_fill(reference);
    n_level = fv_cpu_levels(levels, MOST_LEVELS);
    for (int i = 0; i < n_level; i++)
        if (fv_device_open(&device[i], "cpu", (fv_device_opt){.threads = MOST_THREADS, .level = levels[i]}, NULL)) return -1;
    return n_level ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < n_level; i++) fv_device_close(device[i]);
    return 0;
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
        cmocka_unit_test(reductions_and_their_gradients),
        cmocka_unit_test(the_largest_is_the_first_and_nan_is_not_lost),
        cmocka_unit_test(softmax_and_its_gradient),
        cmocka_unit_test(cross_entropy_and_its_gradient),
        cmocka_unit_test(masked_logits_count_as_nothing),
        cmocka_unit_test(norms_and_their_gradients),
        cmocka_unit_test(a_row_does_not_depend_on_its_batch),
        cmocka_unit_test(dropout_keeps_the_same_elements_everywhere),
        cmocka_unit_test(images_are_unfolded_and_folded),
        cmocka_unit_test(rotary_positions),
        cmocka_unit_test(optimiser_steps),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
