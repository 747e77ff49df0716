/* kernels.c - kernels beside the reference kernels of the same table. */
#include "kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/ref/tables.h"

#define MOST_THREADS 4
#define MOST_OUT 5
#define GUARD 64 /* bytes behind every output that must not change */

const fv_dtype kinds[KINDS] = {FV_F32, FV_BF16, FV_F16};
const int64_t lengths[LENGTHS] = {1, 3, 4, 5, 16, 31, 257, 1024, 1025, 70001};

fv_kernels reference[FV_FLOATS];
fv_device *at_level[MOST_LEVELS];
int n_level;

/* ---- data ---- */

static uint64_t dice = 1;

float uniform(void) /* -1..1 */
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(dice >> 32) * 0x1p-31f;
}

void *memory(size_t bytes)
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
void *numbers(fv_dtype t, int64_t n, float low, float high)
{
    float *f = memory((size_t)n * 4);
    void *p = memory((size_t)n * fv_dtype_size(t));
    for (int64_t i = 0; i < n; i++) f[i] = low + (high - low) * 0.5f * (uniform() + 1);
    put_floats(p, t, f, n);
    free(f);
    return p;
}

int32_t *integers(int64_t n, int32_t below)
{
    int32_t *p = memory((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)((double)(uniform() + 1) * 0.4999999 * below);
    return p;
}

double number(const void *p, fv_dtype t, int64_t i)
{
    double v;
    if (t == FV_I32) return ((const int32_t *)p)[i];
    if (t == FV_F64) return ((const double *)p)[i];
    reference[t].cast(NULL, (fv_sink){&v, FV_F64, false},
                      (const char *)p + (size_t)i * fv_dtype_size(t), 1);
    return v;
}

/* ---- cases ---- */

static double unit(fv_dtype t) { return t == FV_BF16 ? 0x1p-8 : t == FV_F16 ? 0x1p-11 : 0x1p-24; }

/* Within tol units in the last place of 1 plus tol of the number's own. */
static void near(const char *what, const char *level, const out *o, const void *want,
                 const void *got, double tol)
{
    for (int64_t i = 0; i < o->n; i++) {
        double a = number(want, o->t, i), b = number(got, o->t, i),
               tolerance = tol * unit(o->t) * (1 + fabs(a));
        if (a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance) continue;
        fail_msg("%s, %s, %s: element %lld of %lld is %.9g, not %.9g", what, level,
                 fv_dtype_name(o->t), (long long)i, (long long)o->n, b, a);
    }
}

static void perform(action act, const fv_kernels *k, fv_device *d, int threads, const void *in,
                    const out *o, int n_out, void *const *start, void **result)
{
    fv_stream s = {.dev = d, .threads = threads};
    fv_sink sink[MOST_OUT] = {0};
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
    if (s.scratch) d->backend->release(d, s.scratch, s.scratch_bytes);
}

void compare(const char *what, fv_dtype t, action act, const void *in, const out *o, int n_out,
             double tol)
{
    void *start[MOST_OUT] = {0}, *want[MOST_OUT] = {0}, *first[MOST_OUT] = {0},
         *got[MOST_OUT] = {0};
    for (int i = 0; i < n_out; i++) {
        size_t bytes = (size_t)o[i].n * fv_dtype_size(o[i].t);
        start[i] = o[i].t == FV_I32 ? integers(o[i].n, 9) : numbers(o[i].t, o[i].n, -1, 1);
        memset((char *)start[i] + bytes, 0x5a, GUARD);
    }
    perform(act, &reference[t], at_level[0], 1, in, o, n_out, start, want);
    for (int l = 0; l < n_level; l++)
        for (int threads = 1; threads <= MOST_THREADS; threads++) {
            perform(act, at_level[l]->k[t], at_level[l], threads, in, o, n_out, start,
                    threads == 1 ? first : got);
            for (int i = 0; i < n_out; i++) {
                size_t bytes = (size_t)o[i].n * fv_dtype_size(o[i].t);
                if (threads == 1) {
                    near(what, fv_device_level(at_level[l]), &o[i], want[i], first[i], tol);
                    continue;
                }
                if (memcmp(first[i], got[i], bytes))
                    fail_msg("%s: %d threads give other bits than one", what, threads);
                free(got[i]);
            }
            for (int i = 0; threads == MOST_THREADS && i < n_out; i++) free(first[i]);
        }
    for (int i = 0; i < n_out; i++) free(start[i]), free(want[i]);
}

out sink_out(fv_dtype t, int64_t n, int mode)
{
    return (out){mode > 2 ? FV_F32 : t, n, mode == 2 || mode == 4, mode == 0};
}

/* ---- levels ---- */

int open_levels(void **state)
{
    (void)state;
    const char *levels[MOST_LEVELS];
    fv__ref_fill(reference);
    n_level = fv_cpu_levels(levels, MOST_LEVELS);
    for (int i = 0; i < n_level; i++)
        if (fv_device_open(&at_level[i], "cpu",
                           (fv_device_opt){.threads = MOST_THREADS, .level = levels[i]}, NULL))
            return -1;
    return n_level ? 0 : -1;
}

int close_levels(void **state)
{
    (void)state;
    for (int i = 0; i < n_level; i++) fv_device_close(at_level[i]);
    return 0;
}

void compare_sinks(const char *what, fv_dtype t, action act, const void *in, int64_t n, double tol)
{
    for (int mode = 0; mode < MODES; mode++) {
        out o = sink_out(t, n, mode);
        compare(what, t, act, in, &o, 1, tol);
    }
}
