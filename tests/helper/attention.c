/* attention.c - see attention.h. */
#include "attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* A multiple of 1/64 in -1..1: every float dtype holds it. */
static double number(uint64_t *state) { return ((int)(draw(state) % 129) - 64) / 64.0; }

static double *numbers(uint64_t *state, int64_t n)
{
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; x && i < n; i++) x[i] = number(state);
    return x;
}

double read_as(const void *x, fv_dtype t, int64_t i)
{
    if (t == FV_F64) return ((const double *)x)[i];
    if (t == FV_F32) return ((const float *)x)[i];
    if (t == FV_F16) return ((const _Float16 *)x)[i];
    uint32_t u = (uint32_t)((const uint16_t *)x)[i] << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void write_as(void *x, fv_dtype t, int64_t i, double value)
{
    float f = (float)value;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (t == FV_F64)
        ((double *)x)[i] = value;
    else if (t == FV_F32)
        ((float *)x)[i] = f;
    else if (t == FV_F16)
        ((_Float16 *)x)[i] = (_Float16)f;
    else
        ((uint16_t *)x)[i] = (uint16_t)(u >> 16); /* exact: see number */
}

double difference(const double *got, const double *want, int64_t n)
{
    double most = 0, scale = 0.05; /* a gradient that is 0 in theory is allowed its rounding */
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(got[i]) != isfinite(want[i])) return 1e30;
        if (!isfinite(want[i])) continue;
        most = fmax(most, fabs(got[i] - want[i]));
        scale = fmax(scale, fabs(want[i]));
    }
    return most / scale;
}

/* ---- problems ---- */

/* Strides of a grid (B|1, H|1, Tq|1, Tk): bits of `repeat` say which axes have length 1.  Returns
 * its elements. */
static int64_t grid(int64_t s[3], sizes n, unsigned repeat)
{
    int64_t axis[3] = {n.B, n.H, n.Tq}, len = n.Tk;
    for (int i = 2; i >= 0; i--) {
        bool once = repeat >> i & 1 || axis[i] == 1;
        s[i] = once ? 0 : len;
        len *= once ? 1 : axis[i];
    }
    return len;
}

static uint8_t *bits(uint64_t *state, int64_t n, uint32_t one_in)
{
    uint8_t *x = malloc((size_t)n + 1);
    for (int64_t i = 0; x && i < n; i++) x[i] = draw(state) % one_in != 0;
    return x;
}

problem problem_new(sizes n, int options, uint64_t seed)
{
    uint64_t state = seed * 77 + 5;
    int64_t gap = options & APART ? 5 : 0;
    problem p = {.n = n, .options = options, .seed = seed, .step = seed + 3};
    p.n_q = n.B * n.Tq * (n.H * n.Wk + gap);
    p.n_k = n.B * n.Tk * (n.G * n.Wk + gap);
    p.n_v = n.B * n.Tk * (n.G * n.Wv + gap);
    p.n_y = n.B * n.Tq * n.H * n.Wv;
    p.q = numbers(&state, p.n_q);
    p.k = numbers(&state, p.n_k);
    p.v = numbers(&state, p.n_v);
    p.dy = numbers(&state, p.n_y);
    for (int64_t i = 0; i < p.n_q; i++) p.q[i] *= 2; /* weights that differ */
    if (options & BIAS) p.n_bias = grid(p.bias_s, n, (unsigned)seed % 8);
    if (options & BIAS) p.bias = numbers(&state, p.n_bias);
    if (options & REL) p.n_rel = n.H * (n.Tk + 2);
    if (options & REL) p.rel = numbers(&state, p.n_rel);
    if (options & MASK) p.mask = bits(&state, grid(p.mask_s, n, (unsigned)(seed / 8) % 8), 3);
    if (options & KEY_MASK) p.key_mask = bits(&state, n.B * n.Tk, 4);
    if (options & LENS) {
        p.lens = malloc((size_t)n.B * sizeof *p.lens);
        for (int64_t b = 0; b < n.B; b++)
            p.lens[b] = (int32_t)(b == 1 ? 0 : n.Tk - draw(&state) % (uint32_t)(n.Tk / 2 + 1));
    }
    return p;
}

void problem_free(problem *p)
{
    void *all[] = {p->q, p->k, p->v, p->dy, p->bias, p->rel, p->mask, p->key_mask, p->lens};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    *p = (problem){0};
}

/* ---- arguments ---- */

static void *zeros(prepared *x, fv_dtype t, int64_t n)
{
    return x->memory[x->n++] = malloc((size_t)(n + 1) * fv_dtype_size(t));
}

static void *copy_as(prepared *x, fv_dtype t, const double *from, int64_t n)
{
    if (!from) return NULL;
    void *to = zeros(x, t, n);
    for (int64_t i = 0; to && i < n; i++) write_as(to, t, i, from[i]);
    return to;
}

static fv_sink sink(prepared *x, fv_dtype t, int64_t n, bool wanted, bool add)
{
    if (!wanted) return (fv_sink){0};
    fv_sink s = {.data = zeros(x, t, n), .dtype = t, .add = add};
    for (int64_t i = 0; s.data && i < n; i++) write_as(s.data, t, i, 0.25);
    return s;
}

prepared prepare(const problem *p, fv_dtype t)
{
    sizes n = p->n;
    int64_t gap = p->options & APART ? 5 : 0;
    fv_dtype stat = t == FV_F64 ? FV_F64 : FV_F32;
    prepared x = {
        .a = {.B = n.B, .Tq = n.Tq, .Tk = n.Tk, .H = n.H, .G = n.G, .Wk = n.Wk, .Wv = n.Wv}};
    fv_attn_args *a = &x.a;
    a->q_row = n.H * n.Wk + gap;
    a->k_row = n.G * n.Wk + gap;
    a->v_row = n.G * n.Wv + gap;
    a->q_batch = n.Tq * a->q_row;
    a->k_batch = n.Tk * a->k_row;
    a->v_batch = n.Tk * a->v_row;
    a->q = copy_as(&x, t, p->q, p->n_q);
    a->k = copy_as(&x, t, p->k, p->n_k);
    a->v = copy_as(&x, t, p->v, p->n_v);
    a->y = zeros(&x, t, p->n_y);
    a->lse = zeros(&x, stat, 2 * n.B * n.H * n.Tq);
    a->lens = p->lens;
    a->key_mask = p->key_mask;
    a->mask = p->mask;
    a->bias = copy_as(&x, t, p->bias, p->n_bias);
    memcpy(a->mask_s, p->mask_s, sizeof p->mask_s);
    memcpy(a->bias_s, p->bias_s, sizeof p->bias_s);
    a->rel = copy_as(&x, t, p->rel, p->n_rel);
    a->rel_len = n.Tk + 2;
    a->rel_zero = n.Tk / 2; /* so both ends are clamped */
    a->causal = p->options & CAUSAL;
    a->window = p->options & WINDOW ? n.Tk / 3 + 1 : 0;
    a->scale = p->seed % 3 ? 0 : 0.3f;
    a->dropout = p->options & DROPOUT ? 0.25f : 0;
    a->rng = (fv_rng){.seed = p->seed, .site = 9, .step = &p->step};

    bool add = p->options & ADD;
    x.g.dy = copy_as(&x, t, p->dy, p->n_y);
    x.g.dq = sink(&x, t, p->n_q, true, add);
    x.g.dk = sink(&x, t, p->n_k, true, add);
    x.g.dv = sink(&x, t, p->n_v, true, add);
    x.g.dbias = sink(&x, t, p->n_bias, p->bias, add);
    x.g.drel = sink(&x, stat, p->n_rel, p->rel, add); /* a parameter: f32 in the narrow tables */
    return x;
}

void prepared_free(prepared *x)
{
    for (int i = 0; i < x->n; i++) free(x->memory[i]);
    *x = (prepared){0};
}

/* ---- answers ---- */

static double *doubles(const void *x, fv_dtype t, int64_t n)
{
    double *y = malloc((size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; y && x && i < n; i++) y[i] = read_as(x, t, i);
    return y;
}

/* ln of the sum of exp(score), from the maximum and the sum that the kernels keep of each row; -inf
 * for a row without keys. */
static double *log_sum_exps(const void *lse, fv_dtype t, int64_t rows)
{
    double *y = malloc((size_t)(rows + 1) * sizeof *y);
    for (int64_t i = 0; y && i < rows; i++) {
        double sum = read_as(lse, t, 2 * i + 1);
        y[i] = sum == 0 ? -INFINITY : (read_as(lse, t, 2 * i) + log2(sum)) * M_LN2;
    }
    return y;
}

answer answer_new(const problem *p, const fv_kernels *k, fv_stream *s)
{
    fv_dtype t = k->dtype, stat = t == FV_F64 ? FV_F64 : FV_F32;
    prepared x = prepare(p, t);
    k->attention(s, &x.a);
    k->attention_bwd(s, &x.a, &x.g);
    answer r = {doubles(x.a.y, t, p->n_y),
                log_sum_exps(x.a.lse, stat, p->n.B * p->n.H * p->n.Tq),
                doubles(x.g.dq.data, t, p->n_q),
                doubles(x.g.dk.data, t, p->n_k),
                doubles(x.g.dv.data, t, p->n_v),
                doubles(x.g.dbias.data, t, p->n_bias),
                doubles(x.g.drel.data, stat, p->n_rel)};
    prepared_free(&x);
    return r;
}

void answer_free(answer *x)
{
    void *all[] = {x->y, x->lse, x->dq, x->dk, x->dv, x->dbias, x->drel};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    *x = (answer){0};
}
