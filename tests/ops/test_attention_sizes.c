/* test_attention_sizes.c - attention of the sizes that fast kernels are made for, with every
 * option, against f32 on the CPU.
 *
 * The op table's rows are small; what is tiled has borders only where lengths pass a tile, and may
 * take other paths where heads are wide. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "fovea/author/ops.h"
#include "fovea/author/tensor.h"
#include "helper/device.h"
#include "helper/numbers.h"

enum {
    CAUSAL = 1,
    KEY_MASK = 2,
    MASK = 4,
    BIAS = 8,
    REL = 16,
    DROP = 32,
    WINDOW = 64,
    LENS = 128,
    OUTLIERS = 256
};
/* with BIAS: the same for all heads, another for each sequence */
enum { BIAS_ONE = 512, BIAS_EACH = 1024 };
enum { RISING = 2048, OPPOSED = 4096 }; /* make_rising, make_opposed */

typedef struct {
    int64_t B, Tq, Tk, H, G, Wk, Wv;
    int with;
} shape;

enum { Y, WEIGHTS, DQ, DK, DV, DBIAS, DREL, RESULTS };
static const char *const result_name[RESULTS] = {"y", "weights", "dq", "dk", "dv", "dbias", "drel"};
static fv_device *cpu, *dev;

static fv_tensor *floats(fv_ctx *c, fv_shape s, uint32_t seed)
{
    float *x = numbers_drawn(fv_shape_len(s), seed, 1);
    fv_tensor *t = fv_watch(c, fv_floats(c, x, s));
    free(x);
    return t;
}

/* What models have at their first tokens: a key far larger than the others, which no query looks
 * at, and a value that all do. */
static void make_outliers(float *q, float *k, float *v, const shape *s)
{
    int64_t wide = s->G * s->Wk, value = s->G * s->Wv;
    for (int64_t i = 0; i < s->B * s->Tq * s->H; i++)
        q[i * s->Wk] = fabsf(q[i * s->Wk]) + 1.0f / 16;
    for (int64_t b = 0; b < s->B; b++) {
        for (int64_t c = 0; c < wide; c++) k[b * s->Tk * wide + c] = c % s->Wk ? 0 : -16384;
        for (int64_t c = 0; c < value; c++) v[(b * s->Tk + 1) * value + c] *= 256;
    }
}

/* Keys that grow from one tile to the next, so that scores do: past what an exponential can hold
 * relative to those before. */
static void make_rising(float *k, const shape *s)
{
    for (int64_t i = 0; i < s->B * s->Tk * s->G * s->Wk; i++) {
        int64_t tile = i / (s->G * s->Wk) % s->Tk / 64;
        k[i] *= (float)(1 << 2 * (tile < 5 ? tile : 5));
    }
}

/* Keys and values that are all one vector or its opposite, and queries that see no difference: a
 * key adds as much to dq as one of this length can. */
static void make_opposed(float *q, float *k, float *v, const shape *s)
{
    int64_t wide = s->G * s->Wk, value = s->G * s->Wv;
    memset(q, 0, (size_t)(s->B * s->Tq * s->H * s->Wk) * sizeof *q);
    for (int64_t j = 0; j < s->B * s->Tk; j++) {
        float sign = j % 2 ? -1 : 1;
        for (int64_t c = 0; c < wide; c++) k[j * wide + c] = sign;
        for (int64_t c = 0; c < value; c++) v[j * value + c] = sign;
    }
}

static fv_tensor *flags(fv_ctx *c, fv_shape s, uint32_t seed)
{
    int64_t n = fv_shape_len(s);
    float *x = numbers_drawn(n, seed, 1);
    uint8_t *f = malloc((size_t)n);
    assert_non_null(f);
    for (int64_t i = 0; i < n; i++) f[i] = x[i] > -0.5f;
    fv_tensor *t = fv_bytes(c, f, s);
    free(x);
    free(f);
    return t;
}

/* Weights as the dtype of everything are those of f32, rounded once. */
static void compare_rounded(fv_ctx *c, const fv_attn_view *view, fv_dtype t, const float *want)
{
    fv_shape s = fv_attn_view_shape(view);
    int64_t n = s.d[2] * s.d[3];
    double *w = malloc((size_t)n * sizeof *w), least = t == FV_BF16 ? 0x1p-134 : 0x1p-25;
    /* of the last place; the kernel may be another */
    double half = t == FV_F32 ? 0 : 1.01 * (t == FV_BF16 ? 0x1p-8 : 0x1p-11);
    assert_non_null(w);
    check(fv_read_f64(c, fv_attn_view_map(c, view, t, s.d[0] - 1, s.d[1] - 1, 0, s.d[2]), w, n),
          fv_ctx_err(c));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(w[i] - (double)want[i]) <= fmax(half * (double)want[i], least)))
            fail_msg("%s, %d rows, %d keys: weight %d is %g, and %g in f32", fv_dtype_name(t),
                     (int)s.d[2], (int)s.d[3], (int)i, w[i], (double)want[i]);
    free(w);
}

typedef struct {
    fv_dtype t; /* of everything */
    numbers *weights;
} onlooker;

/* The exact weights of the last head of the last sequence. */
static void look(void *user, fv_ctx *c, const char *site, const char *name, const void *what)
{
    const onlooker *o = user;
    (void)name;
    if (strcmp(site, "attention")) return;
    fv_shape s = fv_attn_view_shape(what);
    numbers w = {.n = s.d[2] * s.d[3]};
    w.x = malloc((size_t)w.n * sizeof *w.x);
    assert_non_null(w.x);
    check(fv_attn_view_weights(c, what, s.d[0] - 1, s.d[1] - 1, 0, s.d[2], w.x), fv_ctx_err(c));
    compare_rounded(c, what, o->t, w.x);
    *o->weights = w;
}

static void attend(numbers *to, fv_device *d, fv_dtype t, bool expected, const void *size)
{
    const shape *s = size;
    onlooker weights = {t, &to[WEIGHTS]};
    fv_ctx *c = NULL;
    fv_err e;
    (void)expected;
    check(fv_ctx_new(&c, d, (fv_ctx_opt){.dtype = t, .record = true, .train = true, .seed = 5}, &e),
          &e);
    const fv_shape of[] = {FV_SHAPE(s->B, s->Tq, s->H * s->Wk), FV_SHAPE(s->B, s->Tk, s->G * s->Wk),
                           FV_SHAPE(s->B, s->Tk, s->G * s->Wv)};
    float *x[3];
    for (uint32_t i = 0; i < 3; i++) x[i] = numbers_drawn(fv_shape_len(of[i]), i + 1, 1);
    if (s->with & OUTLIERS) make_outliers(x[0], x[1], x[2], s);
    if (s->with & RISING) make_rising(x[1], s);
    if (s->with & OPPOSED) make_opposed(x[0], x[1], x[2], s);
    fv_tensor *in[3];
    for (int i = 0; i < 3; i++) {
        in[i] = fv_watch(c, fv_floats(c, x[i], of[i]));
        free(x[i]);
    }
    fv_tensor *q = in[0], *k = in[1], *v = in[2];
    fv_attn how = {.n_head = s->H, .n_kv_head = s->G, .causal = s->with & CAUSAL};
    const int32_t keys = (int32_t)s->Tk, less = keys - 9,
                  lens[9] = {keys, keys - 3, keys / 3, 0, less, less, less, less, less};
    if (s->with & KEY_MASK) how.key_mask = flags(c, FV_SHAPE(s->B, s->Tk), 4);
    if (s->with & MASK) how.mask = flags(c, FV_SHAPE(s->H, s->Tq, s->Tk), 5);
    fv_shape pairs = s->with & BIAS_EACH ? FV_SHAPE(s->B, s->H, s->Tq, s->Tk)
                                         : FV_SHAPE(s->with & BIAS_ONE ? 1 : s->H, s->Tq, s->Tk);
    if (s->with & BIAS) how.bias = floats(c, pairs, 6);
    int64_t table = s->Tk > 400 ? 801 : 41; /* that ends within reach of all, or of few */
    if (s->with & REL) how.rel = floats(c, FV_SHAPE(s->H, table), 7), how.rel_zero = table / 2;
    if (s->with & DROP) how.dropout = 0.2f;
    if (s->with & WINDOW) how.window = 50;
    if (s->with & LENS) how.lens = fv_ints(c, lens, FV_SHAPE(s->B));
    fv_ctx_set_tap(c, look, &weights);
    fv_tensor *y = fv_hold(c, fv_attention(c, q, k, v, how));
    check(fv_ctx_status(c), fv_ctx_err(c));
    float *dy = numbers_drawn(s->B * s->Tq * s->H * s->Wv, 8, 1);
    fv_backward_from(c, y, dy);
    free(dy);
    check(fv_ctx_status(c), fv_ctx_err(c));
    to[Y] = numbers_of(c, y, false);
    to[DQ] = numbers_of(c, q, true);
    to[DK] = numbers_of(c, k, true);
    to[DV] = numbers_of(c, v, true);
    if (how.bias) to[DBIAS] = numbers_of(c, how.bias, true);
    if (how.rel) to[DREL] = numbers_of(c, how.rel, true);
    fv_ctx_free(c);
}

static void tell(char *text, size_t capacity, const void *size)
{
    const shape *s = size;
    snprintf(text, capacity, "B %d Tq %d Tk %d H %d G %d Wk %d Wv %d, options %d", (int)s->B,
             (int)s->Tq, (int)s->Tk, (int)s->H, (int)s->G, (int)s->Wk, (int)s->Wv, s->with);
}

static const numbers_trial trial = {RESULTS, result_name, sizeof(shape), 1e-3,
                                    6e-2,    1e-2,        attend,        tell};

static void compare(const shape *all, size_t n, int first, int last)
{
    numbers_compare(&trial, dev, cpu, all, n, first, last);
}

static void plain(void **state)
{
    static const shape all[] = {
        {1, 64, 64, 1, 1, 64, 64, 0},
        {1, 64, 128, 1, 1, 64, 64, 0},
        {1, 192, 256, 1, 1, 64, 64, 0},
        {1, 128, 256, 1, 1, 128, 128, 0},
        {2, 200, 328, 2, 2, 64, 64, 0},
        {2, 200, 328, 2, 1, 128, 128, 0},
        {2, 320, 320, 2, 2, 64, 64, CAUSAL},
        {2, 320, 320, 2, 1, 128, 128, CAUSAL},
        {1, 70, 300, 4, 2, 64, 64, CAUSAL},
        {1, 77, 301, 2, 1, 40, 48, CAUSAL},
        {1, 300, 300, 2, 2, 64, 96, 0},
        {1, 300, 300, 2, 2, 96, 64, CAUSAL},
        {1, 512, 512, 2, 2, 64, 64, 0},
        {1, 510, 400, 4, 1, 64, 64, CAUSAL},
        {1, 1024, 1024, 2, 2, 64, 64, CAUSAL},
        /* one query, as in each step of writing */
        {3, 1, 70, 4, 2, 96, 96, CAUSAL},
        {1, 1, 900, 2, 2, 96, 96, CAUSAL},
        {3, 1, 70, 4, 4, 80, 80, CAUSAL},
        {1, 1, 900, 2, 1, 80, 80, CAUSAL},
        {40, 1, 300, 8, 8, 96, 96, CAUSAL},
        {2, 1, 300, 2, 1, 256, 256, CAUSAL},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all, Y, DREL);
}

static void with_options(void **state)
{
    static const shape all[] = {
        {2, 150, 210, 2, 1, 64, 64, KEY_MASK},
        {2, 150, 210, 2, 2, 128, 128, KEY_MASK},
        {2, 150, 210, 2, 2, 64, 64, MASK},
        {1, 210, 210, 2, 2, 64, 64, CAUSAL | WINDOW},
        {2, 210, 210, 2, 2, 64, 64, BIAS},
        {2, 210, 210, 2, 1, 128, 128, BIAS | CAUSAL},
        {2, 210, 210, 2, 2, 64, 64, REL},
        {1, 210, 210, 2, 1, 128, 64, REL | CAUSAL},
        {1, 330, 330, 2, 2, 64, 64, REL | CAUSAL},
        {1, 270, 390, 2, 1, 64, 64, MASK | CAUSAL},
        {2, 210, 210, 2, 2, 64, 64, DROP},
        {2, 210, 210, 2, 2, 128, 128, DROP | CAUSAL},
        {2, 70, 210, 2, 2, 64, 64, LENS | CAUSAL},
        {2, 150, 210, 2, 1, 64, 64, LENS | KEY_MASK | BIAS | DROP},
        {4, 128, 128, 4, 4, 64, 64, DROP | CAUSAL},
        {2, 128, 128, 4, 2, 64, 64, DROP | CAUSAL | KEY_MASK},
        {4, 300, 300, 2, 2, 64, 64, LENS | CAUSAL},
        {4, 300, 300, 2, 1, 128, 128, LENS | CAUSAL | WINDOW},
        {4, 500, 500, 2, 1, 64, 64, LENS},
        {4, 450, 450, 2, 2, 64, 64, LENS | CAUSAL | WINDOW | KEY_MASK},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all, Y, DREL);
}

/* More than a tile of everything. */
static void with_masks_and_tables(void **state)
{
    static const shape all[] = {
        {2, 520, 600, 3, 3, 64, 64, REL},
        {2, 600, 648, 6, 6, 128, 128, REL | CAUSAL | KEY_MASK},
        {4, 300, 330, 2, 2, 64, 64, REL | LENS | CAUSAL | DROP},
        {2, 264, 520, 4, 2, 128, 96, REL | MASK},
        {2, 270, 1030, 2, 2, 64, 64, MASK | DROP},
        {1, 400, 416, 2, 2, 128, 128, MASK | CAUSAL},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all, Y, DREL);
}

/* In whole 8s, which the copy engine reads. */
static void with_bias(void **state)
{
    static const shape all[] = {
        {2, 210, 216, 2, 2, 64, 64, BIAS},
        {3, 200, 208, 4, 2, 128, 128, BIAS | CAUSAL},
        {2, 330, 264, 2, 2, 64, 64, BIAS | DROP | BIAS_EACH},
        {2, 208, 208, 2, 1, 64, 64, BIAS | DROP | LENS | KEY_MASK | CAUSAL},
        {1, 300, 520, 2, 2, 128, 96, BIAS | DROP | BIAS_ONE},
        {2, 264, 264, 2, 2, 64, 64, BIAS | CAUSAL | WINDOW | BIAS_ONE},
        {2, 520, 1032, 8, 4, 64, 64, BIAS},
        {2, 600, 648, 12, 12, 128, 128, BIAS | CAUSAL | KEY_MASK},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all, Y, DREL);
}

/* A CPU has no blocks to fill. */
static void fewer_sequences(shape *all, size_t n)
{
    for (size_t i = 0; test_on_cpu() && i < n; i++)
        if (all[i].B > 2) all[i].B = 2;
}

/* A head that is one tile: more of them than a block has room for, whole and not. */
static void short_heads(void **state)
{
    shape all[] = {
        {48, 128, 128, 12, 12, 64, 64, 0},
        {60, 100, 120, 10, 5, 64, 64, KEY_MASK},
        {8, 33, 77, 12, 12, 48, 40, LENS},
        {8, 128, 128, 20, 20, 64, 64, LENS | KEY_MASK},
        {24, 65, 65, 6, 6, 64, 64, 0},
        {16, 50, 50, 2, 2, 32, 32, CAUSAL | DROP},
        {6, 17, 17, 4, 4, 16, 16, CAUSAL | KEY_MASK},
        {7, 80, 70, 3, 3, 64, 32, DROP | LENS},
    };
    (void)state;
    fewer_sequences(all, sizeof all / sizeof *all);
    compare(all, sizeof all / sizeof *all, Y, WEIGHTS);
}

/* More heads than are under way at a time on any chip: those that come later use what earlier ones
 * leave. */
static void many_heads(void **state)
{
    shape all[] = {
        {20, 260, 260, 16, 16, 64, 64, CAUSAL},
        {24, 130, 260, 16, 8, 128, 128, 0},
        {12, 500, 260, 16, 8, 64, 64, 0},
        {18, 200, 200, 16, 16, 64, 64, REL | CAUSAL},
        {18, 200, 200, 16, 8, 128, 128, BIAS | CAUSAL},
        {18, 200, 200, 16, 8, 64, 64, DROP | CAUSAL},
    };
    (void)state;
    fewer_sequences(all, sizeof all / sizeof *all);
    compare(all, sizeof all / sizeof *all, DQ, DV);
}

/* Sums that many blocks add to must not lose the small numbers beside what large ones might make of
 * them. */
static void with_outliers(void **state)
{
    static const shape all[] = {{1, 300, 700, 2, 2, 64, 64, OUTLIERS},
                                {2, 130, 400, 2, 1, 128, 128, OUTLIERS}};
    (void)state;
    /* a dk is as large as its key's value lets it be, and as coarse */
    compare(all, sizeof all / sizeof *all, DQ, DQ);
}

/* Nor may they be lost where what a block adds is nearly all that it could. */
static void with_opposed(void **state)
{
    static const shape all[] = {{1, 300, 700, 2, 2, 64, 64, OPPOSED},
                                {2, 200, 400, 2, 1, 64, 64, OPPOSED | CAUSAL | WINDOW},
                                {2, 130, 400, 2, 1, 128, 128, OPPOSED | CAUSAL},
                                {2, 300, 520, 2, 2, 128, 128, OPPOSED | LENS},
                                {2, 130, 400, 2, 1, 128, 128, OPPOSED | DROP}};
    (void)state;
    compare(all, sizeof all / sizeof *all, DQ, DQ);
}

/* Weights are relative to a score that is found again where later ones leave it far behind. */
static void with_rising(void **state)
{
    static const shape all[] = {
        {1, 200, 400, 2, 2, 64, 64, RISING},
        {2, 200, 330, 2, 1, 128, 128, RISING | CAUSAL},
        {1, 200, 400, 2, 2, 64, 64, RISING | DROP},
        {1, 260, 400, 2, 2, 128, 128, RISING | DROP | KEY_MASK},
        {1, 200, 400, 2, 2, 64, 64, RISING | BIAS | DROP},
        {1, 200, 400, 2, 2, 64, 64, RISING | MASK | DROP},
    };
    (void)state;
    compare(all, sizeof all / sizeof *all, Y, WEIGHTS);
}

/* The same bits each time, unless that was given up for speed. */
static void repeats(void **state)
{
    static const shape all[] = {{2, 520, 520, 2, 1, 64, 64, CAUSAL},
                                {2, 512, 512, 4, 2, 64, 64, 0}};
    const char *impl = getenv("FOVEA_CUDA_ATTENTION");
    (void)state;
    if (impl && !strcmp(impl, "cudnn-atomic")) skip();
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) numbers_repeat(&trial, dev, &all[n]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain),
                                       cmocka_unit_test(with_options),
                                       cmocka_unit_test(with_masks_and_tables),
                                       cmocka_unit_test(with_bias),
                                       cmocka_unit_test(short_heads),
                                       cmocka_unit_test(many_heads),
                                       cmocka_unit_test(with_outliers),
                                       cmocka_unit_test(with_opposed),
                                       cmocka_unit_test(with_rising),
                                       cmocka_unit_test(repeats)};
    return run_beside_cpu(tests, sizeof tests / sizeof *tests, &dev, &cpu);
}
